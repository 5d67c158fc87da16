/* Private to the bench of kernels: what bench_kernels.c (operations of the backend, on all threads) and kernel_rows.c (single kernels, on
 * one) share. */
#ifndef SH_BENCH_KERNEL_PARTS_H
#define SH_BENCH_KERNEL_PARTS_H

#include "backend/backend.h"
#include "bench/bench_kernels.h"
#include "bench/probe.h"
#include "kernels/kernels.h"

enum { SH_KB_PLAIN, SH_KB_BEST, SH_KB_VARIANTS };

typedef struct sh_kb {
  const sh_bench_kernels_opts *o;
  sh_bench_table *table;
  sh_bench_progress show;
  bool counting;                  /* a first pass, which only counts the rows that are wanted */
  sh_probe probe;                 /* its buffer holds the weights */
  sh_backend *be[SH_KB_VARIANTS]; /* plain C; the best there is (NULL when that is plain C) */
  sh_kernels k[SH_KB_VARIANTS];
  uint8_t *side;          /* [2 * SH_KB_SIDE]: scales, then zero points, for types with groups */
  sh_dtype filled;        /* type of the weights in the buffer; SH_OTHER: none */
  double peak, bandwidth; /* the best so far: operations and bytes per second */
  int rc;                 /* the first failure; everything after it does nothing */
  sh_error *e;
} sh_kb;

enum { SH_KB_SIDE = 64 << 20 }; /* bytes: 2 for each 128 weights of 4 bits in the buffer */

/* Is the row measured now? Counts it, and says it to the progress. */
bool sh_kb_wanted(sh_kb *b, const char *name);

typedef enum sh_kb_unit { SH_KB_FLOPS, SH_KB_BYTES, SH_KB_ELEMENTS, SH_KB_FLOPS_ONE } sh_kb_unit; /* _ONE: of one thread's peak */
/* A row: rate[] in operations, bytes or elements per second (0: not measured), `ms` of the best variant's call. remark: NULL or a text. */
void sh_kb_row(sh_kb *b, const char *name, sh_kb_unit unit, const double rate[SH_KB_VARIANTS], double ms, const char *remark);

void sh_kb_single_rows(sh_kb *b); /* kernel_rows.c */

#endif
