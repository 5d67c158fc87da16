/* The routed part of an MoE layer: which tokens each expert saw, its scales and its codes.
 *
 * The driving thread; products run on the pool. What the router read lies in a file, one row per token. The tokens are routed again with
 * the model's router, and each expert is judged on its own tokens only: an average over all tokens would say nothing about it. The norm
 * before is shared by all experts, so its scale is chosen by the sum of all their errors; up into down is chosen expert by expert. An
 * expert that saw few tokens is given others as well. */
#include "quant/job.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Tokens by expert. */
typedef struct routes {
  int32_t *token; /* [tokens * top_k], grouped by expert, ascending inside one */
  int64_t *start; /* [E + 1] */
} routes;

typedef struct route_job {
  const sh_qwork *k;
  const sh_wview *router;
  const float *h;
  int64_t tokens;
  int top_k;
  int32_t *index; /* [tokens, top_k] */
} route_job;

typedef struct route_part {
  float *logits; /* [SH_QROWS, E] */
  float *w;      /* [E, cols] the router */
  void *product;
} route_part;

static size_t cut_route(const sh_qwork *k, const sh_wview *router, void *p, route_part *out) {
  sh_cut c = {.p = p};
  out->logits = sh_cut_take(&c, SH_QROWS * (size_t)router->rows, sizeof(float));
  out->w = sh_cut_take(&c, (size_t)router->rows * (size_t)router->cols, sizeof(float));
  out->product = sh_cut_take(&c, sh_qwork_product_bytes(k, SH_QROWS, router->cols), 1);
  return c.used;
}

static void route_item(void *ctx, int item, int worker) {
  route_job *j = ctx;
  int64_t t0 = (int64_t)item * SH_QROWS, cols = j->router->cols, E = j->router->rows;
  int n = (int)(j->tokens - t0 < SH_QROWS ? j->tokens - t0 : SH_QROWS);
  float chosen[64];
  route_part p;
  cut_route(j->k, j->router, j->k->scratch[worker], &p);
  for (int64_t e = 0; e < E; e++) j->k->k.dequant(j->router, e, 0, cols, p.w + e * cols);
  sh_qwork_product(j->k, j->h + t0 * cols, cols, n, p.w, cols, E, cols, false, p.logits, E, p.product);
  for (int t = 0; t < n; t++) {
    int at[64];
    j->k->k.route(p.logits + t * E, (int)E, j->top_k, at, chosen);
    for (int i = 0; i < j->top_k; i++) j->index[(t0 + t) * j->top_k + i] = at[i];
  }
}

static void routes_free(routes *r) {
  sh_free(r->token);
  sh_free(r->start);
}

static int route_all(sh_qjob *j, const sh_qlayer *l, const float *h, int64_t tokens, routes *r, sh_error *e) {
  const sh_wview *router = &l->w->moe->router;
  int k = l->c->experts_per_tok, E = l->w->moe->n_experts;
  memset(r, 0, sizeof *r);
  if (k > 64) return sh_fail(e, SH_ERR_UNSUPPORTED, "%d experts per token, at most 64 are computed", k);
  route_part none;
  int rc = sh_qwork_need(&j->work, cut_route(&j->work, router, NULL, &none), e);
  if (rc < 0) return rc;
  route_job q = {&j->work, router, h, tokens, k, sh_malloc((size_t)tokens * (size_t)k * sizeof(int32_t))};
  r->token = sh_malloc((size_t)tokens * (size_t)k * sizeof *r->token);
  r->start = sh_calloc((size_t)E + 1, sizeof *r->start);
  int64_t *fill = sh_calloc((size_t)E, sizeof *fill);
  if (q.index && r->token && r->start && fill) {
    sh_pool_run(j->work.pool, route_item, &q, (int)((tokens + SH_QROWS - 1) / SH_QROWS));
    for (int64_t i = 0; i < tokens * k; i++) r->start[q.index[i] + 1]++;
    for (int x = 0; x < E; x++) r->start[x + 1] += r->start[x];
    for (int64_t i = 0; i < tokens * k; i++) r->token[r->start[q.index[i]] + fill[q.index[i]]++] = (int32_t)(i / k);
  } else {
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for the routes of %lld tokens", (long long)tokens);
  }
  sh_free(q.index);
  sh_free(fill);
  return rc;
}

/* n of all tokens' rows, spread evenly, into x [n, H]. */
static void spread(const float *h, int64_t H, int64_t tokens, int64_t n, float *x) {
  for (int64_t i = 0; i < n; i++) memcpy(x + i * H, h + i * tokens / n * H, (size_t)H * sizeof *x);
}

/* The rows an expert is judged on: its own tokens, at most `most` spread evenly over them, and if it has few, others spread over all. *x
 * [*n, H], sh_free. */
static int gather(const routes *r, int expert, const float *h, int64_t H, int64_t tokens, int64_t most, float **x, int64_t *n,
                  sh_error *e) {
  int64_t own = r->start[expert + 1] - r->start[expert], take = own < most ? own : most;
  int64_t more = take < SH_QJOB_EXPERT_MIN ? SH_QJOB_EXPERT_MIN - take : 0;
  if (more > tokens) more = tokens;
  *n = take + more;
  *x = sh_malloc((size_t)(*n * H) * sizeof **x);
  if (!*x) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the inputs of expert %d", expert);
  for (int64_t i = 0; i < take; i++)
    memcpy(*x + i * H, h + (int64_t)r->token[r->start[expert] + i * own / take] * H, (size_t)H * sizeof **x);
  spread(h, H, tokens, more, *x + take * H);
  return 0;
}

/* --- The values between: silu(gate x) * (up x) */

typedef struct mid_job {
  const sh_qwork *k;
  const sh_wview *gate, *up;
  const float *x;
  int64_t n;
  float *y; /* [n, I] */
} mid_job;

typedef struct mid_part {
  float *packed;
  float *up; /* [SH_QROWS, I] */
  float *work;
} mid_part;

static size_t cut_mid(const sh_qwork *k, const sh_wview *gate, void *p, mid_part *out) {
  sh_cut c = {.p = p};
  out->packed = sh_cut_take(&c, k->k.pack_floats(SH_QROWS, gate->cols), sizeof(float));
  out->up = sh_cut_take(&c, SH_QROWS * (size_t)gate->rows, sizeof(float));
  out->work = sh_cut_take(&c, k->k.gemm_floats(gate->cols), sizeof(float));
  return c.used;
}

static void mid_item(void *ctx, int item, int worker) {
  mid_job *j = ctx;
  int64_t H = j->gate->cols, I = j->gate->rows, t0 = (int64_t)item * SH_QROWS;
  int n = (int)(j->n - t0 < SH_QROWS ? j->n - t0 : SH_QROWS);
  const float *x[SH_QROWS];
  float *a[SH_QROWS], *b[SH_QROWS];
  mid_part p;
  cut_mid(j->k, j->gate, j->k->scratch[worker], &p);
  for (int t = 0; t < n; t++) {
    x[t] = j->x + (t0 + t) * H;
    a[t] = j->y + (t0 + t) * I;
    b[t] = p.up + t * I;
  }
  j->k->k.pack(x, n, H, p.packed);
  sh_mm mm = {.w = j->gate, .n_rows = (int)I, .n_tok = n, .x = x, .packed = p.packed, .y = a, .scratch = p.work};
  j->k->k.gemm(&mm);
  mm.w = j->up;
  mm.y = b;
  j->k->k.gemm(&mm);
  for (int t = 0; t < n; t++) j->k->k.swiglu(a[t], b[t], (int)I, a[t]);
}

static int between(sh_qjob *j, const sh_wview *gate, const sh_wview *up, const float *x, int64_t n, float **y, sh_error *e) {
  mid_part none;
  int rc = sh_qwork_need(&j->work, cut_mid(&j->work, gate, NULL, &none), e);
  *y = rc == 0 ? sh_malloc((size_t)(n * gate->rows + 1) * sizeof **y) : NULL;
  if (rc < 0) return rc;
  if (!*y) return sh_fail(e, SH_ERR_NOMEM, "out of memory for an expert's values");
  mid_job m = {&j->work, gate, up, x, n, *y};
  sh_pool_run(j->work.pool, mid_item, &m, (int)((n + SH_QROWS - 1) / SH_QROWS));
  return 0;
}

/* --- The scale of the norm before all of them */

typedef struct ffn {
  sh_qjob *j;
  sh_qlayer *l;
  const sh_qsite *site;
  const float *h;
  int64_t tokens;
  routes r;
} ffn;

static int list_readers(const ffn *f, sh_qreader *r, bool experts) {
  int n = 0, first = experts ? f->l->experts : 0, last = experts ? f->l->n_mods : f->l->experts;
  for (int i = first; i < last; i++) {
    const sh_qmod *m = &f->l->mods[i];
    if (m->input == SH_QIN_FFN && m->quantize)
      r[n++] = (sh_qreader){m->w, f->site->rows, f->site->n_rows, (double)f->site->seen / (double)f->site->n_rows};
  }
  return n;
}

/* The candidates' errors of one expert's gate and up, added to sum. */
static int expert_errors(ffn *f, int expert, const float *cand, int n_cand, double *sum, sh_error *e) {
  const sh_config *c = f->l->c;
  const sh_qmod *m = &f->l->mods[f->l->experts + 3 * expert];
  sh_qscaling sc = {.cols = c->hidden, .n_channels = c->hidden};
  double err[SH_QCANDS], own = (double)(f->r.start[expert + 1] - f->r.start[expert]);
  float *x = NULL;
  int64_t n = 0;
  if ((!m[0].quantize && !m[1].quantize) || own == 0) return 0; /* no token came: it has no say, but gets the scale */
  int rc = gather(&f->r, expert, f->h, c->hidden, f->tokens, SH_QJOB_EXPERT_ROWS, &x, &n, e);
  sh_qreader r[2];
  int readers = 0;
  for (int k = 0; k < 2; k++)
    if (m[k].quantize) r[readers++] = (sh_qreader){m[k].w, x, n, own / (double)n};
  if (rc == 0) rc = sh_qscale_errors(&f->j->work, r, readers, &sc, &f->j->grid, cand, n_cand, err, e);
  for (int i = 0; rc == 0 && i < n_cand; i++) sum[i] += err[i];
  sh_free(x);
  return rc;
}

/* The same of all readers of the norm. */
static int ffn_errors(void *ctx, const float *cand, int n_cand, double *sum, sh_error *e) {
  ffn *f = ctx;
  sh_qreader shared[8];
  sh_qscaling sc = {.cols = f->l->c->hidden, .n_channels = f->l->c->hidden};
  int n = list_readers(f, shared, false), rc = 0;
  for (int i = 0; i < n_cand; i++) sum[i] = 0;
  if (n) rc = sh_qscale_errors(&f->j->work, shared, n, &sc, &f->j->grid, cand, n_cand, sum, e);
  for (int i = 0; rc == 0 && i < f->l->w->moe->n_experts; i++) {
    rc = sh_qjob_stopped(f->j, e);
    if (rc == 0) rc = expert_errors(f, i, cand, n_cand, sum, e);
  }
  return rc;
}

static int scale_ffn_norm(ffn *f, int *best, sh_error *e) {
  sh_qlayer *l = f->l;
  int64_t H = l->c->hidden;
  sh_qscaling sc = {.cols = H, .n_channels = H};
  float *x = sh_arena_array(l->a, (size_t)H, 3 * sizeof *x), *w = x ? x + H : NULL, *s = x ? x + 2 * H : NULL;
  sh_qreader *r = sh_calloc((size_t)l->n_mods + 1, sizeof *r);
  int rc = x && r ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of layer %d", l->number);
  *best = 0;
  int shared = rc == 0 ? list_readers(f, r, false) : 0, all = rc == 0 ? shared + list_readers(f, r + shared, true) : 0;
  if (rc == 0 && all) {
    sh_qsearch_means(f->site, &sc, x);
    rc = sh_qweight_means(&f->j->work, r, all, &sc, f->j->grid.group, w, e);
    if (rc == 0) rc = sh_qsearch_best(x, w, H, ffn_errors, f, s, best, e);
    if (rc == 0 && *best) rc = sh_qlayer_fold_norm(l, SH_QIN_FFN, s, f->j->o->method == SH_QM_FOLD, e);
  }
  sh_free(r);
  return rc;
}

/* --- Up into down, and the codes */

/* The statistics of x [n, cols]. */
static int site_of(sh_qjob *j, const float *x, int64_t n, int64_t cols, sh_qsite *s, sh_error *e) {
  enum { STEP = 1024 };
  int rc = sh_qsite_new(s, cols, n, SH_QJOB_EXPERT_ROWS, sh_qjob_block(j, cols), e);
  for (int64_t t = 0; rc == 0 && t < n; t += STEP)
    rc = sh_qsite_add(&j->work, s, x + t * cols, cols, (int)(n - t < STEP ? n - t : STEP), e);
  if (rc == 0) sh_qsite_end(s);
  return rc;
}

/* gate, up and down of one feed-forward whose inputs are x [n, H]. */
static int fit_ffn(ffn *f, int gate, int up, int down, const float *x, int64_t n, const char *scale, sh_error *e) {
  sh_qjob *j = f->j;
  sh_qlayer *l = f->l;
  sh_qmod *m[3] = {&l->mods[gate], &l->mods[up], &l->mods[down]};
  int64_t H = m[0]->w->cols, I = m[0]->w->rows;
  bool awq = j->o->method == SH_QM_AWQ || j->o->method == SH_QM_FOLD;
  sh_qsite in = {0}, mid = {0};
  sh_qfactor factor = {0};
  char name[16] = "-";
  float *y = NULL;
  int rc = 0;
  if (m[2]->quantize) {
    rc = between(j, m[0]->w, m[1]->w, x, n, &y, e);
    if (rc == 0) rc = site_of(j, y, n, I, &mid, e);
    if (rc == 0 && awq && (m[1]->quantize || j->o->method == SH_QM_FOLD)) {
      sh_qscaling sc = {.cols = I, .n_channels = I};
      sh_qreader r = {m[2]->w, mid.rows, mid.n_rows, 1};
      int best = 0;
      float *s = sh_arena_array(l->a, (size_t)I, 2 * sizeof *s);
      if (!s) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of %s", m[2]->name);
      if (rc == 0) sh_qsearch_means(&mid, &sc, s + I);
      if (rc == 0) rc = sh_qsearch_scale(j, &r, 1, &sc, s + I, s, &best, e);
      if (rc == 0 && best) rc = sh_qlayer_fold_pair(l, up, down, s, NULL, e);
      sh_qsearch_name(best, name);
    }
    if (rc == 0) rc = sh_qsearch_factor(j, &mid, &factor, e);
    if (rc == 0) rc = sh_qsearch_fit(j, m[2], &mid, &factor, name, e);
    sh_qfactor_free(&factor);
  }
  if (rc == 0 && (m[0]->quantize || m[1]->quantize)) {
    rc = site_of(j, x, n, H, &in, e);
    if (rc == 0) rc = sh_qsearch_factor(j, &in, &factor, e);
    for (int k = 0; rc == 0 && k < 2; k++)
      if (m[k]->quantize) rc = sh_qsearch_fit(j, m[k], &in, &factor, scale, e);
    sh_qfactor_free(&factor);
  }
  sh_qsite_free(&in);
  sh_qsite_free(&mid);
  sh_free(y);
  return rc;
}

static int fit_shared(ffn *f, const char *scale, sh_error *e) {
  sh_qlayer *l = f->l;
  int gate = -1, down = -1;
  for (int i = 0; i < l->experts; i++) {
    if (l->mods[i].w == &l->w->moe->shared_gate) gate = i;
    if (l->mods[i].w == &l->w->moe->shared_down) down = i;
  }
  if (gate < 0 || down < 0 || l->shared_up < 0) return 0;
  int64_t H = l->c->hidden, n = f->tokens < SH_QJOB_EXPERT_TOKENS ? f->tokens : SH_QJOB_EXPERT_TOKENS;
  float *x = sh_malloc((size_t)(n * H) * sizeof *x);
  if (!x) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the inputs of the shared expert");
  spread(f->h, H, f->tokens, n, x);
  int rc = fit_ffn(f, gate, l->shared_up, down, x, n, scale, e);
  sh_free(x);
  return rc;
}

int sh_qexperts(sh_qjob *j, sh_qlayer *l, const sh_qsite *site, const float *h, int64_t tokens, sh_error *e) {
  ffn f = {.j = j, .l = l, .site = site, .h = h, .tokens = tokens};
  char name[16] = "-";
  int best = 0;
  if (!site->cols) return 0; /* nothing of the feed-forward is quantized */
  int rc = route_all(j, l, h, tokens, &f.r, e);
  if (rc == 0 && (j->o->method == SH_QM_AWQ || j->o->method == SH_QM_FOLD)) rc = scale_ffn_norm(&f, &best, e);
  sh_qsearch_name(best, name);
  if (rc == 0) rc = fit_shared(&f, name, e);
  for (int i = 0; rc == 0 && i < l->w->moe->n_experts; i++) {
    float *x = NULL;
    int64_t n = 0;
    rc = sh_qjob_stopped(j, e);
    if (rc == 0) rc = gather(&f.r, i, h, l->c->hidden, tokens, SH_QJOB_EXPERT_TOKENS, &x, &n, e);
    if (rc == 0) rc = fit_ffn(&f, l->experts + 3 * i, l->experts + 3 * i + 1, l->experts + 3 * i + 2, x, n, name, e);
    sh_free(x);
  }
  routes_free(&f.r);
  return rc;
}
