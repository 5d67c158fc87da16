/* `sheng bench model`: how fast a model reads prompts and draws tokens, beside what the machine could do at that moment. Main thread. */
#ifndef SH_BENCH_BENCH_MODEL_H
#define SH_BENCH_BENCH_MODEL_H

#include "backend/backend.h"
#include "bench/run.h"

enum { SH_BENCH_SIZES = 32, SH_BENCH_MODEL_REPEAT = 1000 };

/* Values of one kind of row. `asked`: by the user, so that one which cannot be done is an error; else it is left out with a note. */
typedef struct sh_bench_sizes {
  int v[SH_BENCH_SIZES], n;
  bool asked;
} sh_bench_sizes;

typedef struct sh_bench_model_opts {
  const char *model;           /* a folder or a file */
  sh_bench_sizes prefill;      /* tokens of a prompt, >= 1 */
  sh_bench_sizes depth;        /* position at which one sequence draws, >= 0 */
  sh_bench_sizes seqs;         /* sequences that draw together, >= 1 */
  bool mixed;                  /* also: as many sequences drawing while a prompt is read */
  int chunk;                   /* tokens of a prompt in one step at most */
  int repeat;                  /* timed runs of a row */
  int threads;                 /* 0: every usable core */
  const char *cpu, *cache_dir; /* as for sh_backend_cpu_new, sh_repack_opts */
  bool exact;                  /* names the mode; the type of the KV cache follows from kv_type */
  sh_kv_type kv_type;
  const volatile bool *stop; /* NULL: nothing stops it */
} sh_bench_model_opts;

/* Adds facts, the table "rows" and the table "profile" to `out`. SH_ERR_CANCELLED leaves the rows measured so far. */
int sh_bench_model_run(sh_bench_out *out, const sh_bench_model_opts *o, sh_error *e);

#endif
