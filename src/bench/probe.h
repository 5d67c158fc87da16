/* The limits of the machine, measured: how fast all threads read memory, how many fp32 and u8 x s8 operations they do. One thread calls;
 * a probe has a pool of its own. Each call is one round of some 10 to 60 ms, so that rounds can stand between the runs they are compared
 * with. */
#ifndef SH_BENCH_PROBE_H
#define SH_BENCH_PROBE_H

#include "base/pool.h"
#include "kernels/peak.h"

#include <stdbool.h>

typedef struct sh_probe {
  sh_peak loops;
  sh_pool *pool;
  int threads;
  uint8_t *buffer; /* [bytes], every page its own */
  size_t bytes;    /* far larger than the caches */
  bool own_clock;  /* on one thread: processor time, which other programs disturb less; false: always the time that passes */
  float sink[64];  /* [SH_PROBE_SINKS] what the loops returned */
} sh_probe;

enum { SH_PROBE_SINKS = 64, SH_PROBE_PART = 4 << 20 }; /* PART: bytes read by one item; `bytes` is a multiple */

/* threads: 0 is every usable core; bytes: of the buffer, 0 for as much as sh_probe_bytes says. Caller frees. */
int sh_probe_new(sh_probe *p, int threads, size_t bytes, const char *cpu, sh_error *e);
void sh_probe_free(sh_probe *p); /* accepts a zeroed or half-built struct */
/* 2 GiB, or 1 GiB, or 256 MiB: the most that is at most half of the memory that is free now. */
size_t sh_probe_bytes(void);

double sh_probe_read(sh_probe *p); /* bytes per second */
double sh_probe_f32(sh_probe *p);  /* operations per second */
double sh_probe_u8s8(sh_probe *p); /* the same; NAN without such instructions */

/* Seconds: of the processor when the probe has one thread and own_clock is set, else those that pass. */
double sh_probe_seconds(const sh_probe *p);

#endif
