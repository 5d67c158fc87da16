/* checkkern --bench: the rows of `sheng bench kernels`, which only here follow the checks: numbers of kernels that are right. */
#include "bench/bench_kernels.h"
#include "check.h"

#include <stdio.h>

int ck_bench(int threads, const char *only) {
  sh_error e = {0};
  sh_bench_out out;
  sh_bench_sink sink = {.json = false};
  sh_bench_out_init(&out, "bench kernels");
  int rc = sh_bench_kernels_run(&out, &(sh_bench_kernels_opts){.threads = threads, .only = only}, &e);
  if (rc == 0) rc = sh_bench_sink_write(&sink, &out, rc, &e);
  if (rc < 0) printf("bench: %s\n", e.text);
  sh_bench_out_free(&out);
  return rc;
}
