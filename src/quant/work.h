/* What the searches compute with: threads, kernels and scratch; and what is known of the inputs of a matrix. */
#ifndef SH_QUANT_WORK_H
#define SH_QUANT_WORK_H

#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"

enum { SH_QROWS = 128 }; /* rows of a matrix that an item of the pool takes */

typedef struct sh_qwork {
  sh_pool *pool;
  sh_kernels k;
  int n_workers;
  void **scratch;        /* [n_workers] of scratch_bytes, aligned for sh_cut */
  size_t scratch_bytes;  /* private: grows by sh_qwork_need */
  double flops, seconds; /* of the scale searches so far: of their matrix products, and all the time they took */
} sh_qwork;

/* threads 0: every usable core; cpu as in sh_kernels_init. Free with sh_qwork_free, which accepts a zeroed struct. */
int sh_qwork_init(sh_qwork *w, int threads, const char *cpu, sh_error *e);
void sh_qwork_free(sh_qwork *w);
int sh_qwork_need(sh_qwork *w, size_t bytes, sh_error *e); /* makes every worker's scratch that large; contents are lost */

/* Inside an item: y[t][r] (+)= a[t] . b[r] over k values, for n_a <= SH_GEMM_TOKENS rows of a and n_b rows of b. Rows lie stride_a,
 * stride_b, stride_y floats apart. scratch: sh_qwork_product_bytes, aligned for sh_cut. */
void sh_qwork_product(const sh_qwork *w, const float *a, int64_t stride_a, int n_a, const float *b, int64_t stride_b, int64_t n_b,
                      int64_t k, bool add, float *y, int64_t stride_y, void *scratch);
size_t sh_qwork_product_bytes(const sh_qwork *w, int n_a, int64_t k);

/* --- The inputs of one or more matrices, over the calibration tokens. */
typedef struct sh_qsite {
  int64_t cols;  /* K */
  int64_t total; /* tokens that will be added */
  int64_t seen;
  double *abs; /* [K] sum of |x| */
  float *rows; /* [n_rows, K] tokens spread evenly over all of them: i * total / max_rows */
  int64_t n_rows, max_rows;
  int64_t block; /* of gram: the group size, or K for all of it */
  float *gram;   /* [K / block][block][block] sums of x x^T; whole after sh_qsite_end */
} sh_qsite;

/* block 0: no gram. Free with sh_qsite_free, which accepts a zeroed struct. */
int sh_qsite_new(sh_qsite *s, int64_t cols, int64_t total, int64_t max_rows, int64_t block, sh_error *e);
void sh_qsite_free(sh_qsite *s);
size_t sh_qsite_bytes(int64_t cols, int64_t max_rows, int64_t block);
/* The next n tokens, rows x + t * stride. Runs on the pool; the result does not depend on the number of threads (on how the tokens are cut
 * into calls it does, in the last bits). */
int sh_qsite_add(sh_qwork *w, sh_qsite *s, const float *x, int64_t stride, int n, sh_error *e);
void sh_qsite_end(sh_qsite *s); /* mirrors the gram */

#endif
