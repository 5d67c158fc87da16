/* `sheng bench roofline`: the machine's limits per number of threads. Main thread. */
#ifndef SH_BENCH_ROOFLINE_H
#define SH_BENCH_ROOFLINE_H

#include "bench/run.h"

enum { SH_ROOFLINE_THREADS = 64 };

typedef struct sh_roofline_opts {
  int threads[SH_ROOFLINE_THREADS], n_threads; /* 0: 1, 2, 4, ... and every usable core */
  int repeat;                                  /* rounds of each measure, >= 1 */
  size_t bytes;                                /* of the buffer; 0: what sh_probe_bytes says */
  const char *cpu;                             /* as for sh_kernels_init */
  const volatile bool *stop;                   /* NULL: nothing stops it */
} sh_roofline_opts;

/* Adds facts and the table "rows" to `out`: three rows (read, fp32, u8 x s8) for each number of threads. SH_ERR_CANCELLED leaves the rows
 * measured so far. */
int sh_roofline_run(sh_bench_out *out, const sh_roofline_opts *o, sh_error *e);

#endif
