/* Scale and range searches of AWQ.
 *
 * The driving thread calls; blocks of SH_QROWS rows are items of the pool, each with its own partial sums, which are added in the items'
 * order: the choice does not depend on the number of threads. A candidate is judged by a matrix product, (round(W s) / s - W) X^T, and not
 * by a norm of the weights: two channels' errors can cancel in the output. */
#include "quant/awq.h"

#include "base/mem.h"
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

void sh_qscale_candidate(int i, const float *x, const float *w, int64_t n, float *s) {
  float lo = INFINITY, hi = 0;
  double a = i > 20 ? (i - 20) / 20.0 : i / 20.0;
  for (int64_t c = 0; c < n; c++) {
    double v = i == 0 ? 1 : pow(x[c], a);
    if (i > 20) v /= pow(w[c], 1 - a) + 1e-4;
    s[c] = (float)fmin(fmax(v, 1e-4), 1e4);
    lo = fminf(lo, s[c]);
    hi = fmaxf(hi, s[c]);
  }
  float norm = sqrtf(lo * hi);
  for (int64_t c = 0; c < n; c++) s[c] /= norm;
}

/* --- Blocks of rows over several readers */

typedef struct block {
  int reader;
  int64_t r0;
  int rows;
} block;

static int64_t blocks_of(const sh_wview *w) { return (w->rows + SH_QROWS - 1) / SH_QROWS; }

/* The block of an item: items count through the readers in order. */
static block block_at(const sh_qreader *r, int item) {
  int i = 0;
  for (; item >= blocks_of(r[i].w); i++) item -= (int)blocks_of(r[i].w);
  int64_t r0 = (int64_t)item * SH_QROWS, left = r[i].w->rows - r0;
  return (block){i, r0, (int)(left < SH_QROWS ? left : SH_QROWS)};
}

static int count_blocks(const sh_qreader *r, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += blocks_of(r[i].w);
  return (int)sum;
}

/* --- Means of the weights */

typedef struct mean_job {
  const sh_qwork *k;
  const sh_qreader *r;
  int n;
  int64_t cols, group;
  double *sum; /* [cols] */
} mean_job;

/* A group of columns over all rows of all readers. */
static void mean_item(void *ctx, int item, int worker) {
  mean_job *j = ctx;
  float *w = j->k->scratch[worker];
  int64_t c0 = item * j->group;
  for (int i = 0; i < j->n; i++) {
    for (int64_t row = 0; row < j->r[i].w->rows; row++) {
      float most = 0;
      j->k->k.dequant(j->r[i].w, row, c0, j->group, w);
      for (int64_t c = 0; c < j->group; c++) most = fmaxf(most, fabsf(w[c]));
      if (most <= 0) continue;
      for (int64_t c = 0; c < j->group; c++) j->sum[c0 + c] += fabsf(w[c]) / most;
    }
  }
}

int sh_qweight_means(sh_qwork *k, const sh_qreader *r, int n, const sh_qscaling *sc, int64_t group, float *mean, sh_error *e) {
  mean_job j = {.k = k, .r = r, .n = n, .cols = sc->cols, .group = group > 0 ? group : sc->cols};
  int rc = sh_qwork_need(k, (size_t)j.group * sizeof(float), e);
  if (rc < 0) return rc;
  j.sum = sh_calloc((size_t)sc->cols, sizeof *j.sum);
  double *per = sh_calloc((size_t)sc->n_channels, sizeof *per);
  int64_t *count = sh_calloc((size_t)sc->n_channels, sizeof *count);
  if (j.sum && per && count) {
    int64_t rows = 0;
    for (int i = 0; i < n; i++) rows += r[i].w->rows;
    sh_pool_run(k->pool, mean_item, &j, (int)(sc->cols / j.group));
    for (int64_t c = 0; c < sc->cols; c++) {
      int64_t t = sc->tie ? sc->tie[c] : c;
      per[t] += j.sum[c];
      count[t] += rows;
    }
    for (int64_t t = 0; t < sc->n_channels; t++) mean[t] = count[t] ? (float)(per[t] / (double)count[t]) : 0;
  } else {
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for the means of %lld columns", (long long)sc->cols);
  }
  sh_free(j.sum);
  sh_free(per);
  sh_free(count);
  return rc;
}

/* --- Errors of candidate scales */

typedef struct scale_job {
  const sh_qwork *k;
  const sh_qreader *r;
  const sh_qscaling *sc;
  const sh_qgrid *g;
  const float *cand; /* [n_cand][n_channels] */
  int n_cand;
  double *err; /* [items][n_cand] */
} scale_job;

static double sum_of_squares(const float *y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)y[i] * (double)y[i];
  return sum;
}

/* out[cols] = round(w s) / s - w, group by group; s and its inverse by column. */
static void rounding_error(const sh_qgrid *g, const float *w, int64_t cols, const float *s, const float *inverse, float *out) {
  int64_t group = g->group > 0 ? g->group : cols;
  for (int64_t c = 0; c < cols; c++) out[c] = w[c] * s[c];
  for (int64_t c0 = 0; c0 < cols; c0 += group) {
    float lo, hi;
    sh_qrange(out + c0, group, &lo, &hi);
    sh_qround(g, sh_qparam_of(g, lo, hi), out + c0, group, out + c0);
  }
  for (int64_t c = 0; c < cols; c++) out[c] = out[c] * inverse[c] - w[c];
}

typedef struct scale_part {
  float *w, *delta;   /* [SH_QROWS, cols] */
  float *s, *inverse; /* [cols] */
  float *y;           /* [SH_QROWS, m] */
  void *product;
} scale_part;

/* m: sampled tokens at most. */
static size_t cut_scale(const sh_qwork *k, int64_t cols, int64_t m, void *p, scale_part *out) {
  sh_cut c = {.p = p};
  size_t rows = SH_QROWS, n = (size_t)cols;
  out->w = sh_cut_take(&c, rows * n, sizeof(float));
  out->delta = sh_cut_take(&c, rows * n, sizeof(float));
  out->s = sh_cut_take(&c, n, sizeof(float));
  out->inverse = sh_cut_take(&c, n, sizeof(float));
  out->y = sh_cut_take(&c, rows * (size_t)m, sizeof(float));
  out->product = sh_cut_take(&c, sh_qwork_product_bytes(k, SH_QROWS, cols), 1);
  return c.used;
}

static void scale_item(void *ctx, int item, int worker) {
  scale_job *j = ctx;
  block b = block_at(j->r, item);
  const sh_qreader *r = &j->r[b.reader];
  int64_t cols = j->sc->cols, m = r->n_rows;
  scale_part p;
  cut_scale(j->k, cols, m, j->k->scratch[worker], &p);
  for (int i = 0; i < b.rows; i++) j->k->k.dequant(r->w, b.r0 + i, 0, cols, p.w + i * cols);
  for (int q = 0; q < j->n_cand; q++) {
    const float *cand = j->cand + q * j->sc->n_channels;
    for (int64_t c = 0; c < cols; c++) {
      p.s[c] = cand[j->sc->tie ? j->sc->tie[c] : c];
      p.inverse[c] = 1.0f / p.s[c];
    }
    for (int i = 0; i < b.rows; i++) rounding_error(j->g, p.w + i * cols, cols, p.s, p.inverse, p.delta + i * cols);
    sh_qwork_product(j->k, p.delta, cols, b.rows, r->rows, cols, m, cols, false, p.y, m, p.product);
    j->err[item * j->n_cand + q] = r->weight * sum_of_squares(p.y, b.rows * m);
  }
}

int sh_qscale_errors(sh_qwork *k, const sh_qreader *r, int n, const sh_qscaling *sc, const sh_qgrid *g, const float *cand, int n_cand,
                     double *err, sh_error *e) {
  int items = count_blocks(r, n);
  int64_t m = 0;
  for (int i = 0; i < n; i++) m = r[i].n_rows > m ? r[i].n_rows : m;
  scale_part none;
  int rc = sh_qwork_need(k, cut_scale(k, sc->cols, m, NULL, &none), e);
  if (rc < 0) return rc;
  scale_job j = {k, r, sc, g, cand, n_cand, sh_calloc((size_t)items * (size_t)n_cand + 1, sizeof(double))};
  if (!j.err) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the errors of %d scales", n_cand);
  int64_t began = sh_now_ns();
  sh_pool_run(k->pool, scale_item, &j, items);
  k->seconds += (double)(sh_now_ns() - began) * 1e-9;
  for (int i = 0; i < n; i++) k->flops += 2.0 * (double)(r[i].w->rows * sc->cols) * (double)r[i].n_rows * n_cand;
  for (int q = 0; q < n_cand; q++) {
    err[q] = 0;
    for (int i = 0; i < items; i++) err[q] += j.err[i * n_cand + q];
  }
  sh_free(j.err);
  return 0;
}

/* --- Ranges of the groups, and the codes */

/* Parts of a group's range that are tried: of the lower end and of the upper. Symmetric grids take the diagonal. */
static const float ENDS[] = {1.0f, 0.92f, 0.84f, 0.76f, 0.68f, 0.6f};
enum { N_ENDS = sizeof ENDS / sizeof *ENDS };

/* Scratch of a block beside what all methods have. */
typedef struct ranges {
  sh_qparam *best; /* [rows, groups] */
  float *delta;    /* [rows, group] */
  float *y;        /* the same */
} ranges;

static size_t cut_ranges(int64_t groups, int64_t group, void *p, ranges *r) {
  sh_cut c = {.p = p};
  r->best = sh_cut_take(&c, SH_QROWS * (size_t)groups, sizeof *r->best);
  r->delta = sh_cut_take(&c, SH_QROWS * (size_t)group, sizeof *r->delta);
  r->y = sh_cut_take(&c, SH_QROWS * (size_t)group, sizeof *r->y);
  return c.used;
}

/* Errors of one candidate for all rows of a block in one group: err[i] = d^T G d, d = (round(w) - w) / in. */
static void group_errors(const sh_qblock *b, const ranges *r, int64_t gi, const sh_qparam *q, double *err) {
  int64_t group = b->group;
  for (int i = 0; i < b->rows; i++) {
    const float *w = b->w + i * b->cols + gi * group;
    float *d = r->delta + i * group;
    sh_qround(b->g, q[i], w, group, d);
    for (int64_t c = 0; c < group; c++) d[c] = (d[c] - w[c]) * b->inverse[gi * group + c];
  }
  sh_qwork_product(b->k, r->delta, group, b->rows, b->f->site->gram + gi * group * group, group, group, group, false, r->y, group,
                   b->product);
  for (int i = 0; i < b->rows; i++) {
    double sum = 0;
    for (int64_t c = 0; c < group; c++) sum += (double)r->delta[i * group + c] * (double)r->y[i * group + c];
    err[i] = sum;
  }
}

static void narrow_group(const sh_qblock *b, const ranges *r, int64_t gi) {
  sh_qparam q[SH_QROWS];
  double err[SH_QROWS], best[SH_QROWS];
  for (int i = 0; i < b->rows; i++) best[i] = INFINITY;
  for (int low = 0; low < N_ENDS; low++) {
    for (int high = b->g->symmetric ? low : 0; high < (b->g->symmetric ? low + 1 : N_ENDS); high++) {
      for (int i = 0; i < b->rows; i++) {
        float lo, hi;
        sh_qrange(b->w + i * b->cols + gi * b->group, b->group, &lo, &hi);
        q[i] = sh_qparam_of(b->g, lo * ENDS[low], hi * ENDS[high]);
      }
      group_errors(b, r, gi, q, err);
      for (int i = 0; i < b->rows; i++) {
        if (!(err[i] < best[i])) continue;
        best[i] = err[i];
        r->best[i * b->groups + gi] = q[i];
      }
    }
  }
}

static void narrow(void *ctx, sh_qblock *b) {
  (void)ctx;
  ranges r;
  cut_ranges(b->groups, b->group, b->own, &r);
  for (int64_t gi = 0; b->f->site && gi < b->groups; gi++) narrow_group(b, &r, gi);
  sh_qblock_keep(b, r.best, NULL);
}

int sh_qawq_matrix(sh_qwork *k, sh_qfit *f, const sh_qgrid *g, sh_qcodes *codes, sh_error *e) {
  int64_t group = g->group > 0 ? g->group : f->w->cols;
  ranges none;
  return sh_qfit_run(k, f, g, cut_ranges(f->w->cols / group, group, NULL, &none), narrow, NULL, codes, e);
}
