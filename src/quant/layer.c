/* A layer's modules, and scales folded into and out of them.
 *
 * The driving thread only. What feeds what is written down once, here: a scale that a norm gives must be taken back by every reader of that
 * norm, also by those that stay as they are (in_proj_a and b, the router, the shared expert's switch); quantizers that forgot one of them
 * published broken checkpoints. A norm is stored in the source's type, and rounding it there changes the scale a little; the readers are
 * given the scale that results, so the pair stays exact. */
#include "quant/layer.h"

#include "base/text.h"
#include "formats/dequant.h"
#include "quant/pack.h"
#include "quant/round.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const size_t ARENA_MAX = (size_t)1 << 36; /* bytes: far over a layer's tensors */

/* --- Selection */

bool sh_qselect_matches(const char *p, const char *name) {
  if (fnmatch(p, name, 0) == 0) return true;
  size_t len = strlen(p);
  for (const char *at = strstr(name, p); len && at; at = strstr(at + 1, p)) {
    bool begins = at == name || at[-1] == '.', ends = at[len] == 0 || at[len] == '.';
    if (begins && ends) return true;
  }
  return false;
}

static bool matches(const char *const *patterns, int n, const char *name) {
  for (int i = 0; i < n; i++)
    if (sh_qselect_matches(patterns[i], name)) return true;
  return false;
}

bool sh_qselect_takes(const sh_qselect *s, const char *name, bool usually) {
  return (usually || matches(s->also, s->n_also, name)) && !matches(s->keep, s->n_keep, name);
}

/* --- The modules */

static void set_name(sh_qmod *m, const char *prefix, const char *rest) { snprintf(m->name, sizeof m->name, "%s%s", prefix, rest); }

/* Adds a module that may be absent (w->data NULL). Returns its index or -1. */
static int add(sh_qlayer *l, const sh_wview *w, const char *rest, sh_qinput input, bool quantize, const sh_qselect *s) {
  if (!w->data) return -1;
  sh_qmod *m = &l->mods[l->n_mods];
  set_name(m, l->prefix, rest);
  m->w = w;
  m->t = sh_ckpt_find(l->ck, w->name);
  m->input = input;
  m->quantize = sh_qselect_takes(s, m->name, quantize);
  return l->n_mods++;
}

static void add_experts(sh_qlayer *l, const sh_qselect *s) {
  static const char *const KINDS[] = {"gate_proj", "up_proj", "down_proj"};
  const sh_w_moe *m = l->w->moe;
  l->experts = l->n_mods;
  for (int i = 0; i < m->n_experts; i++) {
    const sh_wview *const v[] = {&m->experts[i].gate, &m->experts[i].up, &m->experts[i].down};
    for (int k = 0; k < 3; k++) {
      char rest[64];
      snprintf(rest, sizeof rest, "mlp.experts.%d.%s", i, KINDS[k]);
      add(l, v[k], rest, k < 2 ? SH_QIN_FFN : SH_QIN_EXPERT, true, s);
    }
  }
}

static void add_all(sh_qlayer *l, const sh_qselect *s) {
  const sh_w_layer *w = l->w;
  add(l, &w->q, "self_attn.q_proj", SH_QIN_MIXER, true, s);
  add(l, &w->k, "self_attn.k_proj", SH_QIN_MIXER, true, s);
  l->v = add(l, &w->v, "self_attn.v_proj", SH_QIN_MIXER, true, s);
  l->o = add(l, &w->o, "self_attn.o_proj", SH_QIN_OUT, true, s);
  add(l, &w->in_qkv, "linear_attn.in_proj_qkv", SH_QIN_MIXER, true, s);
  add(l, &w->in_z, "linear_attn.in_proj_z", SH_QIN_MIXER, true, s);
  add(l, &w->in_a, "linear_attn.in_proj_a", SH_QIN_MIXER, false, s);
  add(l, &w->in_b, "linear_attn.in_proj_b", SH_QIN_MIXER, false, s);
  if (w->is_linear) l->o = add(l, &w->lin_out, "linear_attn.out_proj", SH_QIN_OUT, true, s);
  add(l, &w->gate, "mlp.gate_proj", SH_QIN_FFN, true, s);
  l->up = add(l, &w->up, "mlp.up_proj", SH_QIN_FFN, true, s);
  add(l, &w->down, "mlp.down_proj", SH_QIN_DOWN, true, s);
  if (!w->moe) return;
  add(l, &w->moe->router, "mlp.gate", SH_QIN_FFN, false, s);
  add(l, &w->moe->shared_expert_gate, "mlp.shared_expert_gate", SH_QIN_FFN, false, s);
  add(l, &w->moe->shared_gate, "mlp.shared_expert.gate_proj", SH_QIN_FFN, true, s);
  l->shared_up = add(l, &w->moe->shared_up, "mlp.shared_expert.up_proj", SH_QIN_FFN, true, s);
  add(l, &w->moe->shared_down, "mlp.shared_expert.down_proj", SH_QIN_DOWN, true, s);
  add_experts(l, s);
}

static const sh_ftensor *find(const sh_qlayer *l, const char *rest) {
  char name[224];
  snprintf(name, sizeof name, "%s%s", l->prefix, rest);
  return sh_ckpt_find(l->ck, name);
}

int sh_qlayer_open(sh_qlayer *l, int number, const sh_config *c, const sh_w_layer *w, const sh_ckpt *ck, const sh_qselect *s, sh_error *e) {
  memset(l, 0, sizeof *l);
  l->number = number;
  l->c = c;
  l->w = w;
  l->ck = ck;
  l->v = l->up = l->shared_up = l->o = l->experts = -1;
  const char *known = w->is_linear ? w->in_qkv.name : w->q.name, *rest = w->is_linear ? "linear_attn." : "self_attn.";
  const char *end = strstr(known, rest);
  if (!end || (size_t)(end - known) >= sizeof l->prefix)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: tensor %s has no place in a layer; names as published are wanted", sh_ckpt_path(ck), known);
  memcpy(l->prefix, known, (size_t)(end - known));
  size_t most = 20 + 3 * (size_t)(w->moe ? w->moe->n_experts : 0);
  l->a = sh_arena_new(ARENA_MAX);
  if (l->a) l->mods = sh_arena_array(l->a, most, sizeof *l->mods);
  if (!l->mods) {
    sh_qlayer_free(l);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for the modules of layer %d", number);
  }
  add_all(l, s);
  bool one_plus = c->arch != SH_ARCH_LLAMA;
  l->input_norm = (sh_qgain){.t = find(l, "input_layernorm.weight"), .one_plus = one_plus};
  l->post_norm = (sh_qgain){.t = find(l, "post_attention_layernorm.weight"), .one_plus = one_plus};
  l->lin_norm = (sh_qgain){.t = find(l, "linear_attn.norm.weight")};
  return 0;
}

void sh_qlayer_free(sh_qlayer *l) {
  for (int i = 0; i < l->n_mods; i++) sh_qcodes_free(&l->mods[i].codes);
  sh_arena_free(l->a);
  memset(l, 0, sizeof *l);
}

/* --- Folding */

/* gain.s = what the stored gain is really divided by; s is overwritten with it. */
static int fold_gain(sh_qlayer *l, sh_qgain *g, float *s, bool exact, sh_error *e) {
  int64_t n = sh_ftensor_count(g->t);
  float *w = sh_arena_array(l->a, (size_t)n, sizeof *w);
  if (!w) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of %s", g->t->name);
  sh_dequant(g->t->type, g->t->data, n, w);
  double base = g->one_plus ? 1.0 : 0.0;
  for (int64_t i = 0; i < n; i++) {
    double gain = base + (double)w[i];
    float stored = exact ? (float)(gain / (double)s[i] - base) : sh_qstored(g->t->type, (float)(gain / (double)s[i] - base));
    double now = base + (double)stored;
    bool possible = gain != 0 && now != 0 && isfinite(gain / now);
    s[i] = possible ? (float)(gain / now) : 1.0f;
    w[i] = possible ? stored : w[i];
  }
  g->s = w; /* the new stored values */
  return 0;
}

static int scale_columns(sh_qlayer *l, sh_qmod *m, const float *s, const int32_t *tie, sh_error *e) {
  if (!m->in) {
    m->in = sh_arena_array(l->a, (size_t)m->w->cols, sizeof *m->in);
    if (!m->in) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of %s", m->name);
    for (int64_t c = 0; c < m->w->cols; c++) m->in[c] = 1.0f;
  }
  for (int64_t c = 0; c < m->w->cols; c++) m->in[c] *= s[tie ? tie[c] : c];
  return 0;
}

int sh_qlayer_fold_norm(sh_qlayer *l, sh_qinput input, float *s, bool exact, sh_error *e) {
  int rc = fold_gain(l, input == SH_QIN_MIXER ? &l->input_norm : &l->post_norm, s, exact, e);
  for (int i = 0; rc == 0 && i < l->n_mods; i++)
    if (l->mods[i].input == input) rc = scale_columns(l, &l->mods[i], s, NULL, e);
  return rc;
}

int sh_qlayer_fold_lin_norm(sh_qlayer *l, float *s, bool exact, sh_error *e) {
  int64_t cols = l->mods[l->o].w->cols, n = l->c->lin_v_dim;
  int rc = fold_gain(l, &l->lin_norm, s, exact, e);
  int32_t *tie = rc == 0 ? sh_arena_array(l->a, (size_t)cols, sizeof *tie) : NULL;
  if (rc == 0 && !tie) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of layer %d", l->number);
  for (int64_t c = 0; rc == 0 && c < cols; c++) tie[c] = (int32_t)(c % n);
  return rc == 0 ? scale_columns(l, &l->mods[l->o], s, tie, e) : rc;
}

int sh_qlayer_fold_pair(sh_qlayer *l, int from, int to, const float *s, const int32_t *tie, sh_error *e) {
  sh_qmod *f = &l->mods[from];
  f->out = sh_arena_array(l->a, (size_t)f->w->rows, sizeof *f->out);
  if (!f->out) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the scales of %s", f->name);
  memcpy(f->out, s, (size_t)f->w->rows * sizeof *s);
  return scale_columns(l, &l->mods[to], s, tie, e);
}

/* --- What is written */

typedef struct out_list {
  sh_ftensor *v;
  int n, cap;
} out_list;

static int push(out_list *o, const sh_ftensor *t, int n, sh_error *e) {
  if (o->n + n > o->cap) return sh_fail(e, SH_ERR_INTERNAL, "a layer has more tensors than were counted");
  memcpy(o->v + o->n, t, (size_t)n * sizeof *t);
  o->n += n;
  return 0;
}

/* x [count] in the source's type (or float32), as a tensor of the shape of `like`. */
static int converted(sh_qlayer *l, const sh_ftensor *like, const float *x, bool exact, sh_ftensor *out, sh_error *e) {
  int64_t n = sh_ftensor_count(like);
  sh_dtype t = exact ? SH_F32 : like->type;
  size_t size = t == SH_F32 ? 4 : 2;
  uint8_t *p = sh_arena_array(l->a, (size_t)n, size);
  if (!p) return sh_fail(e, SH_ERR_NOMEM, "out of memory for tensor %s", like->name);
  for (int64_t i = 0; i < n; i++) {
    uint16_t h = t == SH_BF16 ? sh_f32_to_bf16(x[i]) : sh_f32_to_f16(x[i]);
    if (t == SH_F32) memcpy(p + 4 * i, &x[i], 4);
    else memcpy(p + 2 * i, &h, 2);
  }
  *out = *like;
  out->type = t;
  out->type_name = sh_dtype_name(t);
  out->data = p;
  out->bytes = (size_t)n * size;
  return 0;
}

/* Rows of m with its scales, into x [rows, cols]. */
static void scaled_rows(const sh_qmod *m, float *x) {
  for (int64_t r = 0; r < m->w->rows; r++) {
    float *row = x + r * m->w->cols, back = m->out ? 1.0f / m->out[r] : 1.0f;
    sh_dequant_row(m->w, r, row);
    for (int64_t c = 0; c < m->w->cols; c++) row[c] = row[c] * (m->in ? m->in[c] : 1.0f) * back;
  }
}

/* A stored tensor that modules which stay are (parts of): with their scales. */
static int kept_tensor(sh_qlayer *l, const sh_ftensor *t, bool exact, out_list *o, sh_error *e) {
  bool scaled = false;
  for (int i = 0; i < l->n_mods; i++) scaled = scaled || (l->mods[i].t == t && (l->mods[i].in || l->mods[i].out));
  if (!scaled) return push(o, t, 1, e);
  size_t row_floats = (size_t)t->dims[t->n_dims - 1];
  size_t row_bytes = row_floats * (t->type == SH_F32 ? 4 : 2);
  float *x = sh_malloc((size_t)sh_ftensor_count(t) * sizeof *x);
  sh_ftensor made;
  if (!x) return sh_fail(e, SH_ERR_NOMEM, "out of memory for tensor %s", t->name);
  sh_dequant(t->type, t->data, sh_ftensor_count(t), x);
  for (int i = 0; i < l->n_mods; i++)
    if (l->mods[i].t == t) scaled_rows(&l->mods[i], x + (size_t)(l->mods[i].w->data - t->data) / row_bytes * row_floats);
  int rc = converted(l, t, x, exact, &made, e);
  sh_free(x);
  return rc == 0 ? push(o, &made, 1, e) : rc;
}

/* The experts of a fused tensor that are not quantized while others of it are get tensors of their own. */
static int single_expert(sh_qlayer *l, const sh_qmod *m, bool exact, out_list *o, sh_error *e) {
  size_t n = (size_t)(m->w->rows * m->w->cols);
  float *x = sh_malloc(n * sizeof *x);
  char *name = sh_arena_printf(l->a, "%s.weight", m->name);
  sh_ftensor like = {.name = name, .type = m->t->type, .type_name = m->t->type_name, .n_dims = 2, .dims = {m->w->rows, m->w->cols}}, made;
  if (!x || !name) {
    sh_free(x);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for %s", m->name);
  }
  scaled_rows(m, x);
  int rc = converted(l, &like, x, exact, &made, e);
  sh_free(x);
  return rc == 0 ? push(o, &made, 1, e) : rc;
}

static int module_tensors(sh_qlayer *l, const sh_qmod *m, const sh_qscheme *f, out_list *o, sh_error *e) {
  sh_ftensor t[SH_QPACK_MAX];
  int n = 0;
  int rc = sh_qpack(&m->codes, f, m->name, l->a, t, &n, e);
  return rc == 0 ? push(o, t, n, e) : rc;
}

/* Everything of one stored tensor. */
static int tensor(sh_qlayer *l, const sh_ftensor *t, const sh_qscheme *f, bool exact, out_list *o, sh_error *e) {
  sh_qgain *const gains[] = {&l->input_norm, &l->post_norm, &l->lin_norm};
  for (int i = 0; i < 3; i++) {
    sh_ftensor made;
    if (gains[i]->t != t || !gains[i]->s) continue;
    int rc = converted(l, t, gains[i]->s, exact, &made, e);
    return rc == 0 ? push(o, &made, 1, e) : rc;
  }
  bool any = false;
  for (int i = 0; i < l->n_mods; i++) any = any || (l->mods[i].t == t && l->mods[i].codes.q);
  if (!any) return kept_tensor(l, t, exact, o, e);
  for (int i = 0; i < l->n_mods; i++) {
    const sh_qmod *m = &l->mods[i];
    if (m->t != t) continue;
    int rc = m->codes.q ? module_tensors(l, m, f, o, e) : single_expert(l, m, exact, o, e);
    if (rc < 0) return rc;
  }
  return 0;
}

int sh_qlayer_tensors(sh_qlayer *l, const sh_qscheme *f, bool exact, sh_ftensor **out, int *n, sh_error *e) {
  out_list o = {0};
  size_t len = strlen(l->prefix);
  int total = sh_ckpt_count(l->ck);
  for (int i = 0; i < total; i++) o.cap += strncmp(sh_ckpt_at(l->ck, i)->name, l->prefix, len) == 0;
  o.cap += SH_QPACK_MAX * l->n_mods;
  o.v = sh_arena_array(l->a, (size_t)o.cap, sizeof *o.v);
  int rc = o.v ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for the tensors of layer %d", l->number);
  for (int i = 0; rc == 0 && i < total; i++) {
    const sh_ftensor *t = sh_ckpt_at(l->ck, i);
    if (strncmp(t->name, l->prefix, len) == 0) rc = tensor(l, t, f, exact, &o, e);
  }
  *out = o.v;
  *n = o.n;
  return rc;
}
