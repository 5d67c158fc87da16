/* `sheng bench kernels` and `checkkern --bench`: the CPU backend's operations and the kernels under them, plain C beside the best that the
 * machine allows. Main thread. */
#ifndef SH_BENCH_BENCH_KERNELS_H
#define SH_BENCH_BENCH_KERNELS_H

#include "bench/run.h"

typedef struct sh_bench_kernels_opts {
  const char *only;          /* rows whose name contains this; NULL: all */
  int threads;               /* 0: every usable core */
  size_t bytes;              /* of the buffer of weights; 0: 1 GiB, less when memory is short */
  const char *cpu;           /* as for sh_kernels_init: the best to compare with */
  const volatile bool *stop; /* NULL: nothing stops it */
} sh_bench_kernels_opts;

/* Adds facts and the table "rows" to `out`. SH_ERR_CANCELLED leaves the rows measured so far. */
int sh_bench_kernels_run(sh_bench_out *out, const sh_bench_kernels_opts *o, sh_error *e);

#endif
