/* Rounding with error compensation.
 *
 * The factor is made once per kind of inputs, on the pool, in float32 by blocks: H is reversed, factored as L L^T, L is inverted, and U =
 * inverse(L) reversed (for then U^T U = inverse(H)); that needs one factorisation where inverting H and factoring the inverse needs three.
 * Rows of a matrix are independent of each other, so blocks of SH_QROWS rows are items of the pool, and the number of threads changes
 * nothing. Inside an item columns go in blocks: compensation inside a block at once, that of all later columns by one product per block
 * (the paper's "lazy batch updates"). */
#include "quant/gptq.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NB = 128 }; /* columns of a block */

/* --- The factor */

typedef struct factor_job {
  const sh_qwork *k;
  float *a;   /* [n, n] lower triangle: H, then L */
  float *xt;  /* [n, n] row c: column c of inverse(L) */
  float *neg; /* [n, NB] the panel, negated */
  int64_t n, j0;
  int nb;
} factor_job;

/* L of the diagonal block in place; false: not positive definite. */
static bool factor_diagonal(float *a, int64_t stride, int n) {
  for (int j = 0; j < n; j++) {
    double d = a[j * stride + j];
    for (int k = 0; k < j; k++) d -= (double)a[j * stride + k] * (double)a[j * stride + k];
    if (!(d > 0)) return false;
    double root = sqrt(d);
    a[j * stride + j] = (float)root;
    for (int i = j + 1; i < n; i++) {
      double v = a[i * stride + j];
      for (int k = 0; k < j; k++) v -= (double)a[i * stride + k] * (double)a[j * stride + k];
      a[i * stride + j] = (float)(v / root);
    }
  }
  return true;
}

/* Rows below the diagonal block: row <- row inverse(L_jj)^T. */
static void panel_item(void *ctx, int item, int worker) {
  (void)worker;
  factor_job *j = ctx;
  const float *l = j->a + j->j0 * j->n + j->j0;
  int64_t first = j->j0 + j->nb + (int64_t)item * SH_QROWS, last = first + SH_QROWS < j->n ? first + SH_QROWS : j->n;
  for (int64_t r = first; r < last; r++) {
    float *row = j->a + r * j->n + j->j0, *neg = j->neg + r * NB;
    for (int c = 0; c < j->nb; c++) {
      double v = row[c];
      for (int k = 0; k < c; k++) v -= (double)row[k] * (double)l[c * j->n + k];
      row[c] = (float)(v / l[c * j->n + c]);
      neg[c] = -row[c];
    }
  }
}

/* The rest of the triangle loses the panel's product. */
static void trailing_item(void *ctx, int item, int worker) {
  factor_job *j = ctx;
  int64_t c0 = j->j0 + j->nb, r0 = c0 + (int64_t)item * SH_QROWS;
  int rows = (int)(j->n - r0 < SH_QROWS ? j->n - r0 : SH_QROWS);
  sh_qwork_product(j->k, j->neg + r0 * NB, NB, rows, j->a + c0 * j->n + j->j0, j->n, r0 + rows - c0, j->nb, true, j->a + r0 * j->n + c0,
                   j->n, j->k->scratch[worker]);
}

static int blocks(int64_t n) { return (int)((n + SH_QROWS - 1) / SH_QROWS); }

static bool factor_lower(factor_job *j, sh_pool *pool) {
  for (j->j0 = 0; j->j0 < j->n; j->j0 += NB) {
    j->nb = (int)(j->n - j->j0 < NB ? j->n - j->j0 : NB);
    if (!factor_diagonal(j->a + j->j0 * j->n + j->j0, j->n, j->nb)) return false;
    int left = blocks(j->n - j->j0 - j->nb);
    if (left) sh_pool_run(pool, panel_item, j, left);
    if (left) sh_pool_run(pool, trailing_item, j, left);
  }
  return true;
}

typedef struct inverse_part {
  float *sum; /* [NB, NB] */
  void *product;
} inverse_part;

static size_t cut_inverse(const sh_qwork *k, int64_t n, void *p, inverse_part *out) {
  sh_cut c = {.p = p};
  out->sum = sh_cut_take(&c, (size_t)NB * NB, sizeof *out->sum);
  out->product = sh_cut_take(&c, sh_qwork_product_bytes(k, SH_QROWS, n), 1);
  return c.used;
}

/* Columns [128 item, +128) of inverse(L), all rows from there on, into rows of xt. */
static void inverse_item(void *ctx, int item, int worker) {
  factor_job *j = ctx;
  int64_t n = j->n, c0 = (int64_t)item * NB;
  int nc = (int)(n - c0 < NB ? n - c0 : NB);
  inverse_part part;
  cut_inverse(j->k, n, j->k->scratch[worker], &part);
  float *sum = part.sum;
  for (int64_t i0 = c0; i0 < n; i0 += NB) {
    int ni = (int)(n - i0 < NB ? n - i0 : NB);
    memset(sum, 0, NB * NB * sizeof *sum);
    if (i0 > c0) /* sum[c][i] = sum over k in [c0, i0) of X[k][c] L[i][k] */
      sh_qwork_product(j->k, j->xt + c0 * n + c0, n, nc, j->a + i0 * n + c0, n, ni, i0 - c0, false, sum, NB, part.product);
    for (int c = 0; c < nc; c++) {
      float *x = j->xt + (c0 + c) * n + i0;
      for (int i = 0; i < ni; i++) {
        const float *l = j->a + (i0 + i) * n + i0;
        double v = (i0 + i == c0 + c ? 1.0 : 0.0) - (double)sum[c * NB + i];
        for (int k = 0; k < i; k++) v -= (double)l[k] * (double)x[k];
        x[i] = (float)(v / l[i]);
      }
    }
  }
}

typedef struct rank {
  float d;
  int32_t c;
} rank;

static int by_falling(const void *a, const void *b) {
  const rank *x = a, *y = b;
  if (x->d != y->d) return x->d < y->d ? 1 : -1;
  return x->c < y->c ? -1 : 1;
}

static int order_columns(sh_qfactor *f, const float *gram, bool act_order, sh_error *e) {
  rank *r = sh_calloc((size_t)f->n, sizeof *r);
  if (!r) return sh_fail(e, SH_ERR_NOMEM, "out of memory for an order of %lld columns", (long long)f->n);
  for (int64_t c = 0; c < f->n; c++) r[c] = (rank){gram[c * f->n + c], (int32_t)c};
  if (act_order) qsort(r, (size_t)f->n, sizeof *r, by_falling);
  for (int64_t i = 0; i < f->n; i++) f->order[i] = r[i].c;
  sh_free(r);
  return 0;
}

/* a = H reversed, damped, by the columns' order. An input that is always 0 has nothing to compensate: its diagonal is the mean. */
static void fill_reversed(const sh_qfactor *f, const float *gram, double damp, float *a) {
  int64_t n = f->n;
  double mean = 0;
  for (int64_t c = 0; c < n; c++) mean += gram[c * n + c];
  mean /= (double)n;
  if (!(mean > 0)) mean = 1;
  for (int64_t i = 0; i < n; i++) {
    int64_t ci = f->order[n - 1 - i];
    for (int64_t k = 0; k <= i; k++) a[i * n + k] = gram[ci * n + f->order[n - 1 - k]];
    if (!(a[i * n + i] > 0)) a[i * n + i] = (float)mean;
    a[i * n + i] += (float)(damp * mean);
  }
}

int sh_qfactor_new(sh_qwork *k, const sh_qsite *site, const sh_qgptq *o, sh_qfactor *f, sh_error *e) {
  int64_t n = site->cols;
  memset(f, 0, sizeof *f);
  f->n = n;
  f->order = sh_calloc((size_t)n, sizeof *f->order);
  f->u = sh_aligned(64, (size_t)(n * n) * sizeof *f->u);
  f->ut = sh_aligned(64, (size_t)(n * n) * sizeof *f->ut);
  factor_job j = {.k = k, .a = f->u, .n = n};
  j.xt = sh_aligned(64, (size_t)(n * n) * sizeof *j.xt);
  j.neg = sh_aligned(64, (size_t)n * NB * sizeof *j.neg);
  inverse_part none;
  int rc = !f->order || !f->u || !f->ut || !j.xt || !j.neg
               ? sh_fail(e, SH_ERR_NOMEM, "out of memory for the second moments of %lld inputs (%zu bytes); --method awq needs less",
                         (long long)n, 3 * (size_t)(n * n) * sizeof(float))
               : order_columns(f, site->gram, o->act_order, e);
  if (rc == 0) rc = sh_qwork_need(k, cut_inverse(k, n, NULL, &none), e);
  double damp = o->damp;
  bool ok = false;
  for (int tries = 0; rc == 0 && !ok && tries < 6; tries++, damp *= 10) {
    fill_reversed(f, site->gram, damp, j.a);
    ok = factor_lower(&j, k->pool);
  }
  if (rc == 0 && !ok) rc = sh_fail(e, SH_ERR_FORMAT, "the second moments of %lld inputs cannot be factored (not finite?)", (long long)n);
  if (rc == 0) {
    memset(j.xt, 0, (size_t)(n * n) * sizeof *j.xt);
    sh_pool_run(k->pool, inverse_item, &j, blocks(n));
    for (int64_t i = 0; i < n; i++)
      for (int64_t c = 0; c < n; c++) {
        f->u[i * n + c] = j.xt[(n - 1 - c) * n + (n - 1 - i)];
        f->ut[c * n + i] = j.xt[(n - 1 - c) * n + (n - 1 - i)];
      }
  }
  sh_free(j.xt);
  sh_free(j.neg);
  if (rc < 0) sh_qfactor_free(f);
  return rc;
}

void sh_qfactor_free(sh_qfactor *f) {
  sh_free(f->order);
  sh_free(f->u);
  sh_free(f->ut);
  memset(f, 0, sizeof *f);
}

/* --- The rounding */

/* Scratch of a block beside what all methods have. */
typedef struct rest {
  float *left; /* [rows, cols] weights in the order of rounding, as they are compensated; then the rounded ones */
  float *lost; /* [rows, NB] what a column lost, over U's diagonal, negated */
  float *made; /* [rows, cols] the rounded ones in the matrix's order */
} rest;

static size_t cut_rest(int64_t cols, void *p, rest *r) {
  sh_cut c = {.p = p};
  r->left = sh_cut_take(&c, SH_QROWS * (size_t)cols, sizeof(float));
  r->lost = sh_cut_take(&c, SH_QROWS * (size_t)NB, sizeof(float));
  r->made = sh_cut_take(&c, SH_QROWS * (size_t)cols, sizeof(float));
  return c.used;
}

/* Columns [j0, j0 + nb) of all rows: rounded, and compensated inside the block. */
static void round_columns(const sh_qblock *b, const sh_qfactor *f, const rest *r, int64_t j0, int nb) {
  for (int i = 0; i < b->rows; i++) {
    float *left = r->left + i * b->cols, *lost = r->lost + i * NB;
    for (int k = 0; k < nb; k++) {
      const float *u = f->u + (j0 + k) * f->n;
      float w = left[j0 + k], y;
      sh_qround(b->g, b->nearest[i * b->groups + f->order[j0 + k] / b->group], &w, 1, &y);
      float loss = (w - y) / u[j0 + k];
      left[j0 + k] = y;
      lost[k] = -loss;
      for (int64_t c = j0 + k + 1; c < j0 + nb; c++) left[c] -= loss * u[c];
    }
  }
}

static void compensate(void *ctx, sh_qblock *b) {
  const sh_qfactor *f = ctx;
  rest r;
  cut_rest(b->cols, b->own, &r);
  for (int i = 0; i < b->rows; i++)
    for (int64_t c = 0; c < b->cols; c++) r.left[i * b->cols + c] = b->w[i * b->cols + f->order[c]];
  for (int64_t j0 = 0; j0 < b->cols; j0 += NB) {
    int nb = (int)(b->cols - j0 < NB ? b->cols - j0 : NB);
    int64_t next = j0 + nb;
    round_columns(b, f, &r, j0, nb);
    if (next < b->cols) /* left[i][c] -= sum over the block of loss U[k][c] */
      sh_qwork_product(b->k, r.lost, NB, b->rows, f->ut + next * f->n + j0, f->n, b->cols - next, nb, true, r.left + next, b->cols,
                       b->product);
  }
  for (int i = 0; i < b->rows; i++)
    for (int64_t c = 0; c < b->cols; c++) r.made[i * b->cols + f->order[c]] = r.left[i * b->cols + c];
  sh_qblock_keep(b, b->nearest, r.made);
}

int sh_qgptq_matrix(sh_qwork *k, sh_qfit *f, const sh_qfactor *u, const sh_qgrid *g, sh_qcodes *codes, sh_error *e) {
  rest none;
  return sh_qfit_run(k, f, g, cut_rest(f->w->cols, NULL, &none), compensate, (void *)(uintptr_t)u, codes, e);
}
