/* One layer at a time over all calibration tokens, with the engine's own forward pass.
 *
 * The driving thread only. The model runs as it always does (m->layer on the model's scratch); what its matrices read is seen by standing
 * in for two of the backend's operations, linear and moe, while a layer runs. The residual stream between layers is a file of float32 rows:
 * memory stays that of one step, whatever the number of tokens, and a killed run finds the stream before the layer it was at. */
#include "quant/stream.h"

#include "base/file.h"
#include "base/mem.h"
#include "model/pass.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 16 };

typedef struct tap {
  sh_backend_ops ops; /* first: be->ops points here while a layer runs */
  const sh_backend_ops *real;
  const sh_config *config;
  const sh_layer *layer;
  sh_qstream_fn fn;
  void *ctx;
  float *host; /* [step_tokens, max cols] */
} tap;

struct sh_qstream {
  sh_model *m;
  sh_backend *be;
  sh_qstream_opts o;
  char *dir;
  int64_t tokens;
  int32_t *pages; /* [max_seqs, pages_each] */
  int pages_each, max_seqs;
  sh_seq *seqs; /* [max_seqs] */
  int32_t *ids; /* [step_tokens] */
  float *x;     /* [step_tokens, H] */
  tap tap;
};

/* Floats of a row of what a layer's modules read: each lies in a tensor of just that width (model.c, scratch_table). */
static int64_t width(const sh_config *c, bool is_linear, sh_qinput input) {
  switch (input) {
  case SH_QIN_OUT: return is_linear ? (int64_t)c->lin_v_heads * c->lin_v_dim : (int64_t)c->n_heads * c->head_dim;
  case SH_QIN_DOWN: return c->ffn;
  default: return c->hidden;
  }
}

static int see(tap *t, sh_backend *be, sh_qinput input, const sh_tensor *x, int n, sh_error *e) {
  int rc = t->real->tensor_read(be, x, 0, n, t->host, e);
  return rc == 0 ? t->fn(t->ctx, input, t->host, width(t->config, t->layer->is_linear, input), n, e) : rc;
}

static tap *tap_of(const sh_backend *be) { return (tap *)(void *)((char *)(uintptr_t)be->ops - offsetof(tap, ops)); }

static int tap_linear(sh_backend *be, const sh_weight *w, const sh_tensor *x, int n, const sh_tensor *bias, bool add, sh_tensor *y,
                      sh_error *e) {
  tap *t = tap_of(be);
  const sh_layer *l = t->layer;
  int rc = 0;
  if (t->fn) {
    if (w == l->q || w == l->in_qkv) rc = see(t, be, SH_QIN_MIXER, x, n, e);
    else if (w == l->o || w == l->lin_out) rc = see(t, be, SH_QIN_OUT, x, n, e);
    else if (w == l->gate) rc = see(t, be, SH_QIN_FFN, x, n, e);
    else if (w == l->down) rc = see(t, be, SH_QIN_DOWN, x, n, e);
  }
  return rc == 0 ? t->real->linear(be, w, x, n, bias, add, y, e) : rc;
}

static int tap_moe(sh_backend *be, const sh_moe *p, const sh_tensor *x, int n, bool add, sh_tensor *y, sh_error *e) {
  tap *t = tap_of(be);
  int rc = t->fn ? see(t, be, SH_QIN_FFN, x, n, e) : 0;
  return rc == 0 ? t->real->moe(be, p, x, n, add, y, e) : rc;
}

static char *stream_path(const sh_qstream *s, int layer) {
  char name[32];
  snprintf(name, sizeof name, "spill-x-%d", layer);
  return sh_path_join(s->dir, name);
}

int64_t sh_qstream_tokens(const sh_qstream *s) { return s->tokens; }

static int reserve(sh_qstream *s, int longest, sh_error *e) {
  s->pages_each = (longest + PAGE - 1) / PAGE;
  s->max_seqs = s->o.step_tokens / longest;
  sh_model_sizes z = {.page_size = PAGE,
                      .n_pages = s->pages_each * s->max_seqs,
                      .n_slots = s->max_seqs,
                      .kv_type = SH_KV_F32,
                      .max_tokens = s->o.step_tokens,
                      .max_seqs = s->max_seqs,
                      .max_out = 1,
                      .max_context = longest};
  int rc = sh_model_reserve(s->m, &z, e);
  if (rc < 0) return rc;
  const sh_config *c = sh_model_config(s->m);
  int64_t most = c->hidden;
  for (int i = 0; i < SH_QINPUTS; i++) {
    int64_t a = width(c, true, (sh_qinput)i), b = width(c, false, (sh_qinput)i);
    most = a > most ? a : most;
    most = b > most ? b : most;
  }
  s->pages = sh_calloc((size_t)(s->pages_each * s->max_seqs), sizeof *s->pages);
  s->seqs = sh_calloc((size_t)s->max_seqs, sizeof *s->seqs);
  s->ids = sh_calloc((size_t)s->o.step_tokens, sizeof *s->ids);
  s->x = sh_malloc((size_t)s->o.step_tokens * (size_t)c->hidden * sizeof *s->x);
  s->tap.host = sh_malloc((size_t)s->o.step_tokens * (size_t)most * sizeof *s->tap.host);
  if (!s->pages || !s->seqs || !s->ids || !s->x || !s->tap.host)
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for a step of %d tokens", s->o.step_tokens);
  for (int i = 0; i < s->pages_each * s->max_seqs; i++) s->pages[i] = i;
  return 0;
}

int sh_qstream_new(sh_qstream **out, sh_model *m, sh_backend *be, const sh_qstream_opts *o, sh_error *e) {
  *out = NULL;
  sh_qstream *s = sh_calloc(1, sizeof *s);
  if (!s) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  s->m = m;
  s->be = be;
  s->o = *o;
  s->dir = sh_strdup(o->dir);
  int longest = 1;
  for (int i = 0; i < o->n_seqs; i++) {
    longest = o->lens[i] > longest ? o->lens[i] : longest;
    s->tokens += o->lens[i];
  }
  if (s->o.step_tokens < longest) s->o.step_tokens = longest;
  int rc = s->dir ? reserve(s, longest, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc < 0) {
    sh_qstream_free(s);
    return rc;
  }
  *out = s;
  return 0;
}

void sh_qstream_free(sh_qstream *s) {
  if (!s) return;
  sh_free(s->dir);
  sh_free(s->pages);
  sh_free(s->seqs);
  sh_free(s->ids);
  sh_free(s->x);
  sh_free(s->tap.host);
  sh_free(s);
}

bool sh_qstream_has(const sh_qstream *s, int layer) {
  if (layer == 0) return true;
  char *p = stream_path(s, layer);
  bool there = p && sh_file_exists(p);
  sh_free(p);
  return there;
}

void sh_qstream_drop(sh_qstream *s, int layer) {
  char *p = stream_path(s, layer);
  if (p) unlink(p);
  sh_free(p);
}

/* The sequences from `first` on that fit a step, as a batch; returns how many. */
static int batch_from(sh_qstream *s, int first, sh_batch *b) {
  int n = 0, rows = 0;
  for (; first + n < s->o.n_seqs && n < s->max_seqs && rows + s->o.lens[first + n] <= s->o.step_tokens; n++) {
    int len = s->o.lens[first + n];
    s->seqs[n] = (sh_seq){.row = rows, .count = len, .pos = 0, .slot = n, .pages = s->pages + n * s->pages_each};
    memcpy(s->ids + rows, s->o.ids[first + n], (size_t)len * sizeof *s->ids);
    rows += len;
  }
  *b = (sh_batch){.n_seqs = n, .seqs = s->seqs, .n_tokens = rows, .ids = s->ids};
  return n;
}

static int one_step(sh_qstream *s, int layer, const sh_batch *b, const float *before, sh_error *e) {
  const sh_backend_ops *op = s->tap.real;
  int rc = 0;
  for (int i = 0; rc == 0 && i < b->n_seqs; i++) rc = sh_model_slot_zero(s->m, b->seqs[i].slot, e);
  if (rc == 0 && before) rc = op->tensor_write(s->be, s->m->s.x, 0, b->n_tokens, before, e);
  if (rc == 0 && !before) rc = op->embed(s->be, s->m->embed, b->ids, b->n_tokens, s->m->s.x, e);
  if (rc == 0) rc = s->m->layer(s->m, &s->m->layers[layer], b, e);
  return rc == 0 ? op->tensor_read(s->be, s->m->s.x, 0, b->n_tokens, s->x, e) : rc;
}

/* The layer with the tap in place; the backend's own operations are put back whatever happens. */
static int run(sh_qstream *s, int layer, const sh_map *before, sh_file_out *after, sh_error *e) {
  size_t H = (size_t)sh_model_config(s->m)->hidden, at = 0;
  int rc = 0;
  for (int first = 0; rc == 0 && first < s->o.n_seqs;) {
    sh_batch b;
    first += batch_from(s, first, &b);
    rc = one_step(s, layer, &b, before->len ? (const float *)(const void *)(before->p) + at * H : NULL, e);
    if (rc == 0) rc = sh_file_out_write(after, s->x, (size_t)b.n_tokens * H * sizeof *s->x, e);
    at += (size_t)b.n_tokens;
  }
  return rc;
}

int sh_qstream_layer(sh_qstream *s, int layer, sh_qstream_fn fn, void *ctx, sh_error *e) {
  size_t bytes = (size_t)s->tokens * (size_t)sh_model_config(s->m)->hidden * sizeof(float);
  char *from = stream_path(s, layer), *to = stream_path(s, layer + 1);
  sh_map before = {0};
  sh_file_out after = {0};
  int rc = from && to ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0 && layer > 0) rc = sh_map_open(&before, from, e);
  if (rc == 0 && layer > 0 && before.len != bytes)
    rc = sh_fail(e, SH_ERR_FORMAT, "%s has %zu bytes, %zu are wanted: remove the folder it is in and start again", from, before.len, bytes);
  if (rc == 0) rc = sh_file_out_open(&after, to, e);
  if (rc == 0) {
    s->tap.real = s->be->ops;
    s->tap.ops = *s->be->ops;
    s->tap.ops.linear = tap_linear;
    s->tap.ops.moe = tap_moe;
    s->tap.config = sh_model_config(s->m);
    s->tap.layer = &s->m->layers[layer];
    s->tap.fn = fn;
    s->tap.ctx = ctx;
    s->be->ops = &s->tap.ops;
    rc = run(s, layer, &before, &after, e);
    s->be->ops = s->tap.real;
  }
  if (rc == 0) rc = sh_file_out_commit(&after, e);
  sh_file_out_abandon(&after);
  sh_map_close(&before);
  sh_free(from);
  sh_free(to);
  return rc;
}
