/* Blocks of rows on the pool: loading and scaling, rounding to nearest, judging a choice by its outputs, codes.
 *
 * fn and everything it calls run on the pool's workers, each block on one; a block writes its own rows of the codes and its own partial
 * sums, which are added in the blocks' order afterwards. */
#include "quant/fit.h"

#include "base/mem.h"

#include <string.h>

typedef struct fit_job {
  const sh_qwork *k;
  const sh_qfit *f;
  const sh_qgrid *g;
  sh_qcodes *codes;
  sh_qblock_fn fn;
  void *ctx;
  size_t own;
  double *sums; /* [blocks][3]: err_nearest, err, output */
} fit_job;

static int64_t sampled(const sh_qfit *f) { return f->site ? f->site->n_rows : 0; }

static size_t cut(const sh_qwork *k, const sh_qfit *f, int64_t groups, size_t own, void *p, sh_qblock *b) {
  sh_cut c = {.p = p};
  size_t rows = SH_QROWS, cols = (size_t)f->w->cols;
  b->w = sh_cut_take(&c, rows * cols, sizeof *b->w);
  b->inverse = sh_cut_take(&c, cols, sizeof *b->inverse);
  b->nearest = sh_cut_take(&c, rows * (size_t)groups, sizeof *b->nearest);
  b->error = sh_cut_take(&c, rows * cols, sizeof *b->error);
  b->out = sh_cut_take(&c, rows * (size_t)sampled(f), sizeof *b->out);
  b->product = sh_cut_take(&c, sh_qwork_product_bytes(k, SH_QROWS, f->w->cols), 1);
  b->own = sh_cut_take(&c, own, 1);
  return c.used;
}

static void load(sh_qblock *b) {
  const sh_qfit *f = b->f;
  for (int64_t c = 0; c < b->cols; c++) b->inverse[c] = f->in ? 1.0f / f->in[c] : 1.0f;
  for (int i = 0; i < b->rows; i++) {
    float *w = b->w + i * b->cols, back = f->out ? 1.0f / f->out[b->r0 + i] : 1.0f;
    b->k->k.dequant(f->w, b->r0 + i, 0, b->cols, w);
    for (int64_t c = 0; c < b->cols; c++) w[c] *= (f->in ? f->in[c] : 1.0f) * back;
    for (int64_t gi = 0; gi < b->groups; gi++) {
      float lo, hi;
      sh_qrange(w + gi * b->group, b->group, &lo, &hi);
      b->nearest[i * b->groups + gi] = sh_qparam_of(b->g, lo, hi);
    }
  }
}

/* err[i]: output error of row i, as it was before its row was divided, with the weights rounded [rows, cols], or NULL: rounded with p
 * [rows, groups], or that NULL too: 0, so the error is the output. */
static void output_errors(const sh_qblock *b, const sh_qparam *p, const float *rounded, double *err) {
  int64_t m = sampled(b->f);
  for (int i = 0; i < b->rows; i++) {
    const float *w = b->w + i * b->cols, *y = rounded ? rounded + i * b->cols : NULL;
    float *d = b->error + i * b->cols;
    if (!y && !p) memset(d, 0, (size_t)b->cols * sizeof *d);
    for (int64_t gi = 0; !y && p && gi < b->groups; gi++)
      sh_qround(b->g, p[i * b->groups + gi], w + gi * b->group, b->group, d + gi * b->group);
    for (int64_t c = 0; c < b->cols; c++) d[c] = ((y ? y[c] : d[c]) - w[c]) * b->inverse[c];
  }
  sh_qwork_product(b->k, b->error, b->cols, b->rows, b->f->site->rows, b->cols, m, b->cols, false, b->out, m, b->product);
  for (int i = 0; i < b->rows; i++) {
    double sum = 0, back = b->f->out ? (double)b->f->out[b->r0 + i] : 1.0;
    for (int64_t t = 0; t < m; t++) sum += (double)b->out[i * m + t] * (double)b->out[i * m + t];
    err[i] = sum * back * back;
  }
}

void sh_qblock_keep(sh_qblock *b, const sh_qparam *p, const float *rounded) {
  double nearest[SH_QROWS], chosen[SH_QROWS], output[SH_QROWS];
  if (b->f->site) {
    output_errors(b, b->nearest, NULL, nearest);
    output_errors(b, p, rounded, chosen);
    output_errors(b, NULL, NULL, output);
  }
  for (int i = 0; i < b->rows; i++) {
    bool keep = b->f->site && chosen[i] < nearest[i];
    const float *w = (keep && rounded ? rounded : b->w) + i * b->cols; /* on the grid already: rounding it again changes nothing */
    sh_qcodes_set_row(b->codes, b->g, b->r0 + i, w, (keep ? p : b->nearest) + i * b->groups);
    if (!b->f->site) continue;
    b->sums[0] += nearest[i];
    b->sums[1] += keep ? chosen[i] : nearest[i];
    b->sums[2] += output[i];
  }
}

static void fit_item(void *ctx, int item, int worker) {
  fit_job *j = ctx;
  int64_t r0 = (int64_t)item * SH_QROWS, left = j->f->w->rows - r0;
  sh_qblock b = {.k = j->k,
                 .f = j->f,
                 .g = j->g,
                 .codes = j->codes,
                 .r0 = r0,
                 .cols = j->f->w->cols,
                 .group = j->codes->group,
                 .groups = j->f->w->cols / j->codes->group,
                 .rows = (int)(left < SH_QROWS ? left : SH_QROWS),
                 .sums = j->sums + 3 * item};
  cut(j->k, j->f, b.groups, j->own, j->k->scratch[worker], &b);
  load(&b);
  j->fn(j->ctx, &b);
}

int sh_qfit_run(sh_qwork *k, sh_qfit *f, const sh_qgrid *g, size_t own, sh_qblock_fn fn, void *ctx, sh_qcodes *codes, sh_error *e) {
  int64_t group = g->group > 0 ? g->group : f->w->cols;
  int items = (int)((f->w->rows + SH_QROWS - 1) / SH_QROWS);
  sh_qblock none;
  int rc = sh_qwork_need(k, cut(k, f, f->w->cols / group, own, NULL, &none), e);
  if (rc == 0) rc = sh_qcodes_new(codes, g, f->w->rows, f->w->cols, e);
  if (rc < 0) return rc;
  fit_job j = {k, f, g, codes, fn, ctx, own, sh_calloc(3 * (size_t)items, sizeof(double))};
  if (!j.sums) {
    sh_qcodes_free(codes);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  sh_pool_run(k->pool, fit_item, &j, items);
  f->err_nearest = f->err = f->output = 0;
  for (int i = 0; i < items; i++) {
    f->err_nearest += j.sums[3 * i];
    f->err += j.sums[3 * i + 1];
    f->output += j.sums[3 * i + 2];
  }
  sh_free(j.sums);
  return 0;
}
