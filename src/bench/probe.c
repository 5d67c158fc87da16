/* Measuring the machine's limits. The calling thread and the probe's pool.
 *
 * Work is handed out in sixteen pieces per thread, so that a thread which wakes late costs a sixteenth of a round and not half of it.
 * Refused: one fixed figure for the machine, from a data sheet or from a quiet hour. Clocks and neighbours change by the minute, and a
 * share is honest only against what the machine could do at that moment. */
#include "bench/probe.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { PIECES = 16 };
static const int64_t ROUNDS = 30 * 1000; /* of a loop in a piece: about half a millisecond of fp32 on a core of 120 GFLOP/s */

size_t sh_probe_bytes(void) {
  int64_t free_now = sh_memory_available();
  for (int shift = 31; shift > 28; shift--)
    if (free_now >= (int64_t)2 << shift) return (size_t)1 << shift;
  return (size_t)1 << 28;
}

static void touch_item(void *ctx, int item, int worker) {
  sh_probe *p = ctx;
  (void)worker;
  memset(p->buffer + (size_t)item * SH_PROBE_PART, 1 + item % 7, SH_PROBE_PART);
}

int sh_probe_new(sh_probe *p, int threads, size_t bytes, const char *cpu, sh_error *e) {
  *p = (sh_probe){0};
  int rc = sh_peak_init(&p->loops, cpu, e);
  if (rc == 0) rc = sh_pool_new(&p->pool, threads, e);
  if (rc < 0) goto fail;
  p->threads = sh_pool_size(p->pool);
  p->bytes = (bytes ? bytes : sh_probe_bytes()) / SH_PROBE_PART * SH_PROBE_PART;
  if (p->bytes == 0) p->bytes = SH_PROBE_PART;
  p->buffer = sh_aligned(4096, p->bytes);
  if (!p->buffer) {
    rc = sh_fail(e, SH_ERR_NOMEM, "no memory for a buffer of %zu MiB to measure reading with", p->bytes >> 20);
    goto fail;
  }
  sh_pool_run(p->pool, touch_item, p, (int)(p->bytes / SH_PROBE_PART));
  return 0;
fail:
  sh_probe_free(p);
  return rc;
}

void sh_probe_free(sh_probe *p) {
  sh_pool_free(p->pool);
  sh_free(p->buffer);
  *p = (sh_probe){0};
}

double sh_probe_seconds(const sh_probe *p) {
  struct timespec t;
  if (p->threads > 1 || !p->own_clock) return (double)sh_now_ns() * 1e-9;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Results go where the compiler cannot know them unused; workers beyond the table have theirs dropped. */
static void keep(sh_probe *p, int worker, float v) {
  if (worker < SH_PROBE_SINKS) p->sink[worker] = v;
}

static void read_item(void *ctx, int item, int worker) {
  sh_probe *p = ctx;
  keep(p, worker, (float)p->loops.read(p->buffer + (size_t)item * SH_PROBE_PART, SH_PROBE_PART));
}

static void f32_item(void *ctx, int item, int worker) {
  sh_probe *p = ctx;
  (void)item;
  keep(p, worker, p->loops.f32(ROUNDS));
}

static void u8s8_item(void *ctx, int item, int worker) {
  sh_probe *p = ctx;
  (void)item;
  keep(p, worker, (float)p->loops.u8s8(ROUNDS));
}

/* Work per second of `items` items that do `each` of it. */
static double rate(sh_probe *p, sh_pool_fn fn, int items, double each) {
  double t = sh_probe_seconds(p);
  sh_pool_run(p->pool, fn, p, items);
  return each * items / (sh_probe_seconds(p) - t);
}

double sh_probe_read(sh_probe *p) { return rate(p, read_item, (int)(p->bytes / SH_PROBE_PART), SH_PROBE_PART); }

double sh_probe_f32(sh_probe *p) { return rate(p, f32_item, p->threads * PIECES, p->loops.f32_ops * (double)ROUNDS); }

double sh_probe_u8s8(sh_probe *p) {
  return p->loops.u8s8 ? rate(p, u8s8_item, p->threads * PIECES, p->loops.u8s8_ops * (double)ROUNDS) : (double)NAN;
}
