/* One layer's scales, ranges and codes.
 *
 * The driving thread; products run on the pool. The layer is run once over all calibration tokens while statistics of what its modules read
 * are taken. AWQ then goes through the places where scales fold, in order: the norm before the mixer into everything that reads it; values
 * (or the delta rule's output norm) into the output projection; the norm before the feed-forward; up into down. Each is a search over the
 * same candidates with "no scaling" among them, so none can end worse than it began. The unscaled weights are what each search looks at: a
 * scale on a matrix's inputs does not change how another place should be scaled. */
#include "quant/job.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void sh_qsearch_name(int cand, char name[16]) {
  if (cand == 0) snprintf(name, 16, "-");
  else if (cand <= 20) snprintf(name, 16, "x^%.2f", cand / 20.0);
  else snprintf(name, 16, "x^%.2f/w^%.2f", (cand - 20) / 20.0, 1 - (cand - 20) / 20.0);
}

int sh_qjob_record(sh_qjob *j, const sh_qmod *m, const char *scale, double nearest, double err, int64_t tokens, sh_error *e) {
  if (j->n_records == j->cap_records) {
    int cap = j->cap_records ? 2 * j->cap_records : 64;
    sh_qrecord *r = sh_realloc(j->records, (size_t)cap * sizeof *r);
    if (!r) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the record of %s", m->name);
    j->records = r;
    j->cap_records = cap;
  }
  sh_qrecord *r = &j->records[j->n_records++];
  memset(r, 0, sizeof *r);
  snprintf(r->name, sizeof r->name, "%s", m->name);
  snprintf(r->scale, sizeof r->scale, "%s", scale);
  r->err_nearest = nearest;
  r->err = err;
  r->tokens = tokens;
  return 0;
}

/* --- Scales */

void sh_qsearch_means(const sh_qsite *site, const sh_qscaling *sc, float *x) {
  for (int64_t t = 0; t < sc->n_channels; t++) x[t] = 0;
  double per = (double)(sc->cols / sc->n_channels) * (double)(site->seen ? site->seen : 1);
  for (int64_t c = 0; c < sc->cols; c++) x[sc->tie ? sc->tie[c] : c] += (float)(site->abs[c] / per);
}

/* Errors of the candidates in list [n], into err[their numbers]. */
static int try_candidates(const int *list, int n, const float *x, const float *w, int64_t n_channels, sh_qerrors_fn fn, void *ctx,
                          float *cand, double *err, sh_error *e) {
  double found[SH_QCANDS];
  for (int i = 0; i < n; i++) sh_qscale_candidate(list[i], x, w, n_channels, cand + i * n_channels);
  int rc = n ? fn(ctx, cand, n, found, e) : 0;
  for (int i = 0; rc == 0 && i < n; i++) err[list[i]] = found[i];
  return rc;
}

int sh_qsearch_best(const float *x, const float *w, int64_t n_channels, sh_qerrors_fn fn, void *ctx, float *s, int *best, sh_error *e) {
  int list[SH_QCANDS], n = 0;
  double err[SH_QCANDS];
  float *cand = sh_malloc((size_t)(SH_QCANDS * n_channels) * sizeof *cand);
  *best = 0;
  if (!cand) return sh_fail(e, SH_ERR_NOMEM, "out of memory for candidate scales of %lld channels", (long long)n_channels);
  for (int i = 0; i < SH_QCANDS; i++) err[i] = INFINITY;
  for (int i = 0; i < SH_QCANDS; i += 2) list[n++] = i;
  int rc = try_candidates(list, n, x, w, n_channels, fn, ctx, cand, err, e);
  for (int i = 1; rc == 0 && i < SH_QCANDS; i++)
    if (err[i] < err[*best]) *best = i;
  n = 0;
  for (int i = *best - 1; i <= *best + 1; i += 2)
    if (i > 0 && i < SH_QCANDS) list[n++] = i;
  if (rc == 0) rc = try_candidates(list, n, x, w, n_channels, fn, ctx, cand, err, e);
  for (int i = 1; rc == 0 && i < SH_QCANDS; i++)
    if (err[i] < err[*best]) *best = i;
  if (rc == 0) sh_qscale_candidate(*best, x, w, n_channels, s);
  sh_free(cand);
  return rc;
}

typedef struct reader_list {
  sh_qjob *j;
  const sh_qreader *r;
  int n;
  const sh_qscaling *sc;
} reader_list;

static int reader_errors(void *ctx, const float *cand, int n, double *err, sh_error *e) {
  reader_list *l = ctx;
  return sh_qscale_errors(&l->j->work, l->r, l->n, l->sc, &l->j->grid, cand, n, err, e);
}

int sh_qsearch_scale(sh_qjob *j, const sh_qreader *r, int n, const sh_qscaling *sc, const float *x, float *s, int *best, sh_error *e) {
  reader_list l = {j, r, n, sc};
  float *w = sh_malloc((size_t)sc->n_channels * sizeof *w);
  *best = 0;
  int rc = w ? sh_qweight_means(&j->work, r, n, sc, j->grid.group, w, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0) rc = sh_qsearch_best(x, w, sc->n_channels, reader_errors, &l, s, best, e);
  sh_free(w);
  return rc;
}

/* --- Statistics of a layer's inputs */

typedef struct collect {
  sh_qjob *j;
  sh_qsite site[SH_QINPUTS];
  sh_file_out h; /* MoE: what the router reads */
  bool spill_h;
} collect;

static int on_input(void *ctx, sh_qinput input, const float *x, int64_t stride, int n, sh_error *e) {
  collect *c = ctx;
  int rc = sh_qjob_stopped(c->j, e);
  if (rc < 0) return rc;
  rc = c->site[input].cols ? sh_qsite_add(&c->j->work, &c->site[input], x, stride, n, e) : 0;
  if (rc == 0 && input == SH_QIN_FFN && c->spill_h) rc = sh_file_out_write(&c->h, x, (size_t)n * (size_t)stride * sizeof *x, e);
  return rc;
}

static int open_sites(collect *c, const sh_qlayer *l, sh_error *e) {
  int64_t tokens = sh_qstream_tokens(c->j->stream);
  for (int i = 0; i < l->n_mods; i++) {
    const sh_qmod *m = &l->mods[i];
    if (m->input >= SH_QINPUTS || !m->quantize || c->site[m->input].cols || (l->w->moe && m->input == SH_QIN_DOWN)) continue;
    int rc = sh_qsite_new(&c->site[m->input], m->w->cols, tokens, c->j->rows, sh_qjob_block(c->j, m->w->cols), e);
    if (rc < 0) return rc;
  }
  return 0;
}

/* --- AWQ's places */

typedef struct place {
  const sh_qmod *readers[8];
  int n;
  sh_qscaling sc;
} place;

/* Quantized modules of an input (experts apart). */
static place readers_of(const sh_qlayer *l, sh_qinput input) {
  place p = {0};
  int last = l->experts >= 0 ? l->experts : l->n_mods;
  for (int i = 0; i < last; i++)
    if (l->mods[i].input == input && l->mods[i].quantize && p.n < 8) p.readers[p.n++] = &l->mods[i];
  if (p.n) p.sc = (sh_qscaling){.cols = p.readers[0]->w->cols, .n_channels = p.readers[0]->w->cols};
  return p;
}

/* Best scale of a place from its site; s [n_channels] in the layer's arena. */
static int search_place(sh_qjob *j, sh_qlayer *l, const place *p, const sh_qsite *site, float **s, int *best, sh_error *e) {
  sh_qreader r[8];
  for (int i = 0; i < p->n; i++)
    r[i] = (sh_qreader){
        .w = p->readers[i]->w, .rows = site->rows, .n_rows = site->n_rows, .weight = (double)site->seen / (double)site->n_rows};
  float *x = sh_arena_array(l->a, (size_t)p->sc.n_channels, sizeof *x);
  *s = sh_arena_array(l->a, (size_t)p->sc.n_channels, sizeof **s);
  if (!x || !*s) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of layer %d", l->number);
  sh_qsearch_means(site, &p->sc, x);
  return sh_qsearch_scale(j, r, p->n, &p->sc, x, *s, best, e);
}

static int scale_norm(sh_qjob *j, sh_qlayer *l, collect *c, sh_qinput input, int *best, sh_error *e) {
  place p = readers_of(l, input);
  float *s;
  *best = 0;
  if (!p.n) return 0;
  int rc = search_place(j, l, &p, &c->site[input], &s, best, e);
  return rc == 0 && *best ? sh_qlayer_fold_norm(l, input, s, j->o->method == SH_QM_FOLD, e) : rc;
}

/* Values into the output projection: a key-value head's channel feeds the same channel of every query head of its group. */
static int scale_values(sh_qjob *j, sh_qlayer *l, collect *c, int *best, sh_error *e) {
  const sh_config *f = l->c;
  place p = readers_of(l, SH_QIN_OUT);
  float *s;
  *best = 0;
  bool movable =
      l->w->is_linear ? l->lin_norm.t != NULL : l->v >= 0 && !l->w->v_bias && (l->mods[l->v].quantize || j->o->method == SH_QM_FOLD);
  if (!p.n || !movable) return 0;
  int64_t cols = p.sc.cols, d = l->w->is_linear ? f->lin_v_dim : f->head_dim, group = l->w->is_linear ? 0 : f->n_heads / f->n_kv_heads;
  int32_t *tie = sh_arena_array(l->a, (size_t)cols, sizeof *tie);
  if (!tie) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of layer %d", l->number);
  for (int64_t col = 0; col < cols; col++) tie[col] = (int32_t)(l->w->is_linear ? col % d : col / d / group * d + col % d);
  p.sc.tie = tie;
  p.sc.n_channels = l->w->is_linear ? d : f->n_kv_heads * d;
  int rc = search_place(j, l, &p, &c->site[SH_QIN_OUT], &s, best, e);
  if (rc < 0 || !*best) return rc;
  return l->w->is_linear ? sh_qlayer_fold_lin_norm(l, s, j->o->method == SH_QM_FOLD, e) : sh_qlayer_fold_pair(l, l->v, l->o, s, tie, e);
}

static int scale_up(sh_qjob *j, sh_qlayer *l, collect *c, int *best, sh_error *e) {
  place p = readers_of(l, SH_QIN_DOWN);
  float *s;
  *best = 0;
  if (!p.n || l->up < 0 || !(l->mods[l->up].quantize || j->o->method == SH_QM_FOLD)) return 0;
  int rc = search_place(j, l, &p, &c->site[SH_QIN_DOWN], &s, best, e);
  return rc == 0 && *best ? sh_qlayer_fold_pair(l, l->up, (int)(p.readers[0] - l->mods), s, NULL, e) : rc;
}

/* --- Codes */

/* *error: output error of rounding w to nearest without scales, which is that of the candidate that scales nothing. */
static int unscaled_error(sh_qjob *j, const sh_wview *w, const sh_qsite *site, double *error, sh_error *e) {
  float *ones = sh_malloc((size_t)w->cols * sizeof *ones);
  if (!ones) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  sh_qreader r = {.w = w, .rows = site->rows, .n_rows = site->n_rows, .weight = 1};
  sh_qscaling sc = {.cols = w->cols, .n_channels = w->cols};
  sh_qscale_candidate(0, NULL, NULL, w->cols, ones);
  int rc = sh_qscale_errors(&j->work, &r, 1, &sc, &j->grid, ones, 1, error, e);
  sh_free(ones);
  return rc;
}

int sh_qsearch_factor(sh_qjob *j, const sh_qsite *site, sh_qfactor *factor, sh_error *e) {
  memset(factor, 0, sizeof *factor);
  sh_qgptq o = {.act_order = j->o->act_order, .damp = j->o->damp > 0 ? j->o->damp : 0.01};
  return j->o->method == SH_QM_GPTQ ? sh_qfactor_new(&j->work, site, &o, factor, e) : 0;
}

int sh_qsearch_fit(sh_qjob *j, sh_qmod *m, const sh_qsite *site, const sh_qfactor *factor, const char *scale, sh_error *e) {
  sh_qfit f = {.w = m->w, .in = m->in, .out = m->out, .site = site};
  int rc = 0;
  if (j->o->method == SH_QM_FOLD) return 0;
  if (factor && factor->n) rc = sh_qgptq_matrix(&j->work, &f, factor, &j->grid, &m->codes, e);
  else rc = sh_qawq_matrix(&j->work, &f, &j->grid, &m->codes, e);
  double nearest = f.err_nearest;
  if (rc == 0 && site && (m->in || m->out)) rc = unscaled_error(j, m->w, site, &nearest, e);
  if (rc < 0) return rc;
  double by = f.output > 0 ? f.output : 1;
  return sh_qjob_record(j, m, scale, site ? nearest / by : -1, site ? f.err / by : -1, site ? site->seen : 0, e);
}

/* All quantized modules of one input. */
static int fit_input(sh_qjob *j, sh_qlayer *l, sh_qinput input, const sh_qsite *site, const char *scale, sh_error *e) {
  place p = readers_of(l, input);
  sh_qfactor factor;
  if (!p.n) return 0;
  int rc = sh_qsearch_factor(j, site, &factor, e);
  for (int i = 0; rc == 0 && i < p.n; i++) rc = sh_qsearch_fit(j, &l->mods[p.readers[i] - l->mods], site, &factor, scale, e);
  sh_qfactor_free(&factor);
  return rc;
}

static int without_inputs(sh_qjob *j, sh_qlayer *l, sh_error *e) {
  int rc = 0;
  for (int i = 0; rc == 0 && i < l->n_mods; i++)
    if (l->mods[i].quantize) rc = sh_qsearch_fit(j, &l->mods[i], NULL, NULL, "-", e);
  return rc;
}

static int with_inputs(sh_qjob *j, sh_qlayer *l, collect *c, sh_error *e) {
  int best[SH_QINPUTS] = {0}, rc = 0;
  char name[16];
  bool awq = j->o->method == SH_QM_AWQ || j->o->method == SH_QM_FOLD;
  for (int i = 0; i < SH_QINPUTS; i++) sh_qsite_end(&c->site[i]);
  if (awq) rc = scale_norm(j, l, c, SH_QIN_MIXER, &best[SH_QIN_MIXER], e);
  if (rc == 0 && awq) rc = scale_values(j, l, c, &best[SH_QIN_OUT], e);
  if (rc == 0 && awq && !l->w->moe) rc = scale_norm(j, l, c, SH_QIN_FFN, &best[SH_QIN_FFN], e);
  if (rc == 0 && awq && !l->w->moe) rc = scale_up(j, l, c, &best[SH_QIN_DOWN], e);
  for (int i = 0; rc == 0 && i < (l->w->moe ? SH_QIN_FFN : SH_QINPUTS); i++) {
    sh_qsearch_name(best[i], name);
    rc = fit_input(j, l, (sh_qinput)i, &c->site[i], name, e);
  }
  return rc;
}

int sh_qsearch_layer(sh_qjob *j, sh_qlayer *l, sh_error *e) {
  collect c = {.j = j, .spill_h = l->w->moe != NULL};
  sh_map h = {0};
  j->n_records = 0;
  if (!j->stream) return without_inputs(j, l, e);
  char *path = sh_path_join(j->dir, "spill-h");
  int rc = path ? open_sites(&c, l, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0 && c.spill_h) rc = sh_file_out_open(&c.h, path, e);
  if (rc == 0) rc = sh_qstream_layer(j->stream, l->number, on_input, &c, e);
  if (rc == 0 && c.spill_h) rc = sh_file_out_commit(&c.h, e);
  if (rc == 0) rc = with_inputs(j, l, &c, e);
  if (rc == 0 && c.spill_h) rc = sh_map_open(&h, path, e);
  if (rc == 0 && c.spill_h) rc = sh_qexperts(j, l, &c.site[SH_QIN_FFN], (const float *)(const void *)h.p, sh_qstream_tokens(j->stream), e);
  sh_map_close(&h);
  sh_file_out_abandon(&c.h);
  for (int i = 0; i < SH_QINPUTS; i++) sh_qsite_free(&c.site[i]);
  sh_free(path);
  return rc;
}
