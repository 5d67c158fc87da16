/* Threads, scratch and input statistics of the quantizer.
 *
 * One thread drives; items run on the pool. Products use the backend's float32 matrix kernels with the second operand in the place of the
 * weights. Sums over tokens are made chunk by chunk in a fixed order: the same calibration gives the same bits with any number of threads.
 */
#include "quant/work.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { GRAM_TOKENS = 256 }; /* tokens of a step of the gram: [K, 256] floats of transposed inputs */

int sh_qwork_init(sh_qwork *w, int threads, const char *cpu, sh_error *e) {
  memset(w, 0, sizeof *w);
  int rc = sh_kernels_init(&w->k, cpu, e);
  if (rc == 0) rc = sh_pool_new(&w->pool, threads, e);
  if (rc < 0) return rc;
  w->n_workers = sh_pool_size(w->pool);
  w->scratch = sh_calloc((size_t)w->n_workers, sizeof *w->scratch);
  if (w->scratch) return 0;
  sh_qwork_free(w);
  return sh_fail(e, SH_ERR_NOMEM, "out of memory");
}

void sh_qwork_free(sh_qwork *w) {
  for (int i = 0; w->scratch && i < w->n_workers; i++) sh_free(w->scratch[i]);
  sh_free(w->scratch);
  sh_pool_free(w->pool);
  memset(w, 0, sizeof *w);
}

int sh_qwork_need(sh_qwork *w, size_t bytes, sh_error *e) {
  if (bytes <= w->scratch_bytes) return 0;
  for (int i = 0; i < w->n_workers; i++) {
    sh_free(w->scratch[i]);
    w->scratch[i] = bytes == SIZE_MAX ? NULL : sh_aligned(SH_CUT_ALIGN, bytes);
    if (!w->scratch[i]) {
      w->scratch_bytes = 0;
      return sh_fail(e, SH_ERR_NOMEM, "out of memory for %zu bytes of scratch for each of %d threads", bytes, w->n_workers);
    }
  }
  w->scratch_bytes = bytes;
  return 0;
}

typedef struct product {
  float *packed, *work;
} product;

static size_t cut_product(const sh_qwork *w, int n_a, int64_t k, void *p, product *out) {
  sh_cut c = {.p = p};
  out->packed = sh_cut_take(&c, w->k.pack_floats(n_a, k), sizeof(float));
  out->work = sh_cut_take(&c, w->k.gemm_floats(k), sizeof(float));
  return c.used;
}

size_t sh_qwork_product_bytes(const sh_qwork *w, int n_a, int64_t k) {
  product none;
  return cut_product(w, n_a, k, NULL, &none);
}

void sh_qwork_product(const sh_qwork *w, const float *a, int64_t stride_a, int n_a, const float *b, int64_t stride_b, int64_t n_b,
                      int64_t k, bool add, float *y, int64_t stride_y, void *scratch) {
  product p;
  const float *x[SH_GEMM_TOKENS];
  float *out[SH_GEMM_TOKENS];
  for (int t = 0; t < n_a; t++) {
    x[t] = a + t * stride_a;
    out[t] = y + t * stride_y;
  }
  sh_wview view = {
      .type = SH_F32, .rows = n_b, .cols = k, .data = (const uint8_t *)b, .row_bytes = (size_t)stride_b * sizeof(float), .name = ""};
  cut_product(w, n_a, k, scratch, &p);
  w->k.pack(x, n_a, k, p.packed);
  sh_mm mm = {.w = &view, .n_rows = (int)n_b, .n_tok = n_a, .x = x, .packed = p.packed, .y = out, .add = add, .scratch = p.work};
  w->k.gemm(&mm);
}

/* --- Sites */

size_t sh_qsite_bytes(int64_t cols, int64_t max_rows, int64_t block) {
  return (size_t)cols * (sizeof(double) + ((size_t)max_rows + (size_t)block) * sizeof(float));
}

int sh_qsite_new(sh_qsite *s, int64_t cols, int64_t total, int64_t max_rows, int64_t block, sh_error *e) {
  memset(s, 0, sizeof *s);
  s->cols = cols;
  s->total = total;
  s->max_rows = max_rows < total ? max_rows : total;
  s->block = block;
  s->abs = sh_calloc((size_t)cols, sizeof *s->abs);
  s->rows = sh_malloc((size_t)(s->max_rows * cols + 1) * sizeof *s->rows);
  if (block) s->gram = sh_calloc((size_t)(cols * block), sizeof *s->gram);
  if (s->abs && s->rows && (!block || s->gram)) return 0;
  sh_qsite_free(s);
  return sh_fail(e, SH_ERR_NOMEM, "out of memory for the statistics of %lld inputs (%zu bytes)", (long long)cols,
                 sh_qsite_bytes(cols, max_rows, block));
}

void sh_qsite_free(sh_qsite *s) {
  sh_free(s->abs);
  sh_free(s->rows);
  sh_free(s->gram);
  memset(s, 0, sizeof *s);
}

typedef struct add_job {
  const sh_qwork *w;
  sh_qsite *s;
  const float *x; /* [n] rows, stride apart */
  int64_t stride;
  int n;
  float *t; /* [K, GRAM_TOKENS] transposed inputs, the rows padded with zeros */
} add_job;

enum { STRIP = 64 }; /* channels of an item of the first pass */

/* Sums of |x| and the transposed chunk, for a strip of channels. */
static void strip_item(void *ctx, int item, int worker) {
  (void)worker;
  add_job *j = ctx;
  int64_t c0 = (int64_t)item * STRIP, c1 = c0 + STRIP < j->s->cols ? c0 + STRIP : j->s->cols;
  for (int t = 0; t < j->n; t++) {
    const float *x = j->x + t * j->stride;
    for (int64_t c = c0; c < c1; c++) j->s->abs[c] += fabsf(x[c]);
  }
  if (!j->t) return;
  for (int64_t c = c0; c < c1; c++) {
    float *out = j->t + c * GRAM_TOKENS;
    for (int t = 0; t < j->n; t++) out[t] = j->x[t * j->stride + c];
    for (int t = j->n; t < GRAM_TOKENS; t++) out[t] = 0;
  }
}

/* Rows [r0, r0 + n) of one block of the gram, columns up to the last of these rows: the rest is mirrored at the end. */
static void gram_item(void *ctx, int item, int worker) {
  add_job *j = ctx;
  sh_qsite *s = j->s;
  int64_t per = (s->block + SH_QROWS - 1) / SH_QROWS, b = item / per, r0 = item % per * SH_QROWS;
  int n = (int)(s->block - r0 < SH_QROWS ? s->block - r0 : SH_QROWS);
  const float *t = j->t + b * s->block * GRAM_TOKENS;
  float *y = s->gram + (b * s->block + r0) * s->block;
  sh_qwork_product(j->w, t + r0 * GRAM_TOKENS, GRAM_TOKENS, n, t, GRAM_TOKENS, r0 + n, GRAM_TOKENS, true, y, s->block,
                   j->w->scratch[worker]);
}

static void take_rows(sh_qsite *s, const float *x, int64_t stride, int n) {
  while (s->n_rows < s->max_rows) {
    int64_t at = s->n_rows * s->total / s->max_rows - s->seen;
    if (at >= n) return;
    memcpy(s->rows + s->n_rows++ * s->cols, x + at * stride, (size_t)s->cols * sizeof *x);
  }
}

int sh_qsite_add(sh_qwork *w, sh_qsite *s, const float *x, int64_t stride, int n, sh_error *e) {
  float *t = NULL;
  if (s->seen + n > s->total)
    return sh_fail(e, SH_ERR_INTERNAL, "%lld tokens of statistics, %lld expected", (long long)(s->seen + n), (long long)s->total);
  if (s->gram) {
    int rc = sh_qwork_need(w, sh_qwork_product_bytes(w, SH_QROWS, GRAM_TOKENS), e);
    if (rc < 0) return rc;
    t = sh_aligned(64, (size_t)s->cols * GRAM_TOKENS * sizeof *t);
    if (!t) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %lld inputs of %d tokens", (long long)s->cols, GRAM_TOKENS);
  }
  for (int at = 0; at < n; at += GRAM_TOKENS) {
    add_job j = {w, s, x + at * stride, stride, n - at < GRAM_TOKENS ? n - at : GRAM_TOKENS, t};
    take_rows(s, j.x, stride, j.n);
    sh_pool_run(w->pool, strip_item, &j, (int)((s->cols + STRIP - 1) / STRIP));
    if (t) sh_pool_run(w->pool, gram_item, &j, (int)(s->cols / s->block * ((s->block + SH_QROWS - 1) / SH_QROWS)));
    s->seen += j.n;
  }
  sh_free(t);
  return 0;
}

void sh_qsite_end(sh_qsite *s) {
  if (!s->gram) return;
  for (int64_t b = 0; b < s->cols / s->block; b++) {
    float *g = s->gram + b * s->block * s->block;
    for (int64_t r = 0; r < s->block; r++)
      for (int64_t c = r + 1; c < s->block; c++) g[r * s->block + c] = g[c * s->block + r];
  }
}
