/* Binding: from the names and layouts of files to the fields of sh_weights.
 *
 * Runs once at load, on one thread; what it makes is immutable. Every tensor is asked for by its Hugging Face and its GGUF name side by
 * side, with the shape the config demands, so that one list of calls is the whole knowledge of layouts. Matrices stay in the map: a bound
 * model of 20 GB costs a few MB here. Small vectors are converted to float32 in the form that is computed with, because files differ (1 + w
 * stored or not, A_log or -exp(A_log)) and kernels must not. Quantized modules are asked for by the same calls: a matrix that is stored
 * packed becomes a view of formats/repack.h, whatever its neighbours are, and the repacking runs once at the end, when all are known.
 *
 * Where the mode is panels, every quantized matrix that a product reads becomes some. Rows stay: the embedding, of which single rows are
 * looked up (a head tied to it gets panels of its own), and the router and the shared expert's switch, small matrices whose results are
 * choices: int8 activations there would send tokens to other experts. */
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "formats/dequant.h"

#define MAX_OWNED                                                                                                                          \
  ((size_t)8 << 30) /* bytes of float32 vectors and expert views; what is taken is bounded by the shapes found in the file */

typedef enum form { AS_STORED, ONE_PLUS, MINUS_EXP } form;

typedef struct binder {
  sh_weights *w;
  const sh_config *c;
  const sh_ckpt *ck;
  sh_error *e;
  const char *root; /* what stands before "layers.", HF: "model.language_model.", "model.", "" */
  char scope[64];   /* of the layer being bound: "model.layers.3.", "blk.3." */
  char name[192];   /* last name that was asked for */
  uint8_t *used;    /* [count of tensors] */
  bool in_mtp;
  bool keep_rows; /* of the matrix being bound, whatever the mode */
  const sh_repack_opts *o;
  sh_head head;      /* what becomes of a head of floats; SH_HEAD_BF16: it stays */
  bool head_rounded; /* that happened */
  sh_quant quant;
  const sh_w_audit *audit; /* NULL: the first error ends the binding */
  int rc;                  /* first error; later steps do nothing */
} binder;

/* The end of a step: an audit notes the error and goes on. */
static void settle(binder *b) {
  if (!b->audit || !b->rc || b->rc == SH_ERR_NOMEM) return;
  b->audit->problem(b->audit->ctx, b->rc, b->e->text);
  b->rc = 0;
}

static size_t module_bytes(const sh_qmodule *m) {
  const sh_ftensor *const parts[] = {m->weight, m->scales, m->zeros, m->order, m->shape};
  size_t bytes = 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) bytes += parts[i] ? parts[i]->bytes : 0;
  return bytes;
}

static void tell_found(binder *b, const sh_w_found *f) {
  if (b->audit && !b->rc) b->audit->found(b->audit->ctx, f);
}

/* b->name was found, as one of the two. */
static void tell(binder *b, const sh_ftensor *t, const sh_qmodule *m, const sh_wview *view) {
  const sh_w_found f = {.name = b->name,
                        .tensor = m ? m->weight : t,
                        .module = m,
                        .view = view,
                        .bytes = m ? module_bytes(m) : t->bytes,
                        .mtp = b->in_mtp,
                        .looked_up = view && view == &b->w->embed && (!b->c->tied || b->w->own_head)};
  tell_found(b, &f);
}

/* --- Finding and checking */

/* The name in this kind of file: scope + its spelling there. */
static const char *spell(binder *b, const char *scope, const char *hf, const char *gguf) {
  snprintf(b->name, sizeof b->name, "%s%s", scope, b->c->from_gguf ? gguf : hf);
  return b->name;
}

/* Counts a tensor as used. NULL is none. */
static void mark(binder *b, const sh_ftensor *t) {
  int i = t ? sh_ckpt_index(b->ck, t->name) : -1;
  if (i < 0 || b->used[i]) return;
  b->used[i] = 1;
  b->w->bytes += t->bytes;
  if (b->in_mtp) b->w->mtp_bytes += t->bytes;
}

static const sh_ftensor *take(binder *b, const char *name) {
  if (b->rc) return NULL;
  const sh_ftensor *t = sh_ckpt_find(b->ck, name);
  if (!t) b->rc = sh_fail(b->e, SH_ERR_FORMAT, "%s: tensor %s is missing", sh_ckpt_path(b->ck), name);
  mark(b, t);
  return t;
}

static void fail_shape(binder *b, const sh_ftensor *t, const int64_t *want, int n) { b->rc = sh_ckpt_fail_shape(b->ck, t, want, n, b->e); }

/* Shapes are compared without dimensions of 1: files write [H], [1, H], [C, 1, K] and [C, K] for the same thing. */
static bool same_shape(const sh_ftensor *t, const int64_t *want, int n) {
  int i = 0, k = 0;
  for (;;) {
    while (i < t->n_dims && t->dims[i] == 1) i++;
    while (k < n && want[k] == 1) k++;
    if (i == t->n_dims || k == n) return i == t->n_dims && k == n;
    if (t->dims[i++] != want[k++]) return false;
  }
}

/* A tensor of weights of that shape; NULL (and b->rc set) when it is not to be had. */
static const sh_ftensor *weights_of(binder *b, const char *name, const int64_t *want, int n) {
  const sh_ftensor *t = take(b, name);
  if (!t) return NULL;
  int64_t cols = want[n - 1];
  if (!sh_dequant_supported(t->type)) {
    b->rc = sh_fail(b->e, SH_ERR_UNSUPPORTED,
                    "%s: tensor %s is stored as %s, which is not supported; F32, F16, BF16 and quantized folders are, and in a GGUF Q8_0, "
                    "Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and IQ4_NL",
                    sh_ckpt_path(b->ck), t->name, t->type_name);
  } else if (!same_shape(t, want, n)) {
    fail_shape(b, t, want, n);
  } else if (cols % sh_dtype_block(t->type)) {
    b->rc = sh_fail(b->e, SH_ERR_FORMAT, "%s: tensor %s: %lld columns are no multiple of %s's block of %d", sh_ckpt_path(b->ck), t->name,
                    (long long)cols, t->type_name, sh_dtype_block(t->type));
  }
  if (b->rc) return NULL;
  b->w->dtypes |= 1u << t->type;
  return t;
}

/* --- The kinds of bindings */

static size_t row_bytes(sh_dtype t, int64_t cols) { return (size_t)(cols / sh_dtype_block(t)) * (size_t)sh_dtype_block_bytes(t); }

/* Rows [first, first + rows) of a tensor whose last dimension is cols. */
static sh_wview view(const sh_ftensor *t, int64_t first, int64_t rows, int64_t cols) {
  size_t rb = row_bytes(t->type, cols);
  return (sh_wview){.type = t->type, .rows = rows, .cols = cols, .data = t->data + (size_t)first * rb, .row_bytes = rb, .name = t->name};
}

static void mark_module(binder *b, const sh_qmodule *m) {
  const sh_ftensor *const parts[] = {m->weight, m->scales, m->zeros, m->order, m->shape};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) mark(b, parts[i]);
  b->w->dtypes |= 1u << (m->layout == SH_QL_F8 ? SH_F8_E4M3 : m->layout == SH_QL_I8 ? SH_I8 : m->bits == 8 ? SH_U8 : SH_I4);
}

/* MTP's matrices stay rows: no pass reads them. */
static unsigned how_of(const binder *b) { return (b->in_mtp ? SH_REPACK_ASIDE | SH_REPACK_ROWS : 0) | (b->keep_rows ? SH_REPACK_ROWS : 0); }

/* Whether the module of that name (b->name, with ".weight") is stored quantized: then out is its view, at the end of the binding at the
 * latest. An error counts as yes. */
static bool quantized(binder *b, int64_t rows, int64_t cols, sh_wview *out) {
  char base[sizeof b->name];
  sh_qmodule m;
  bool found = false;
  size_t n = strlen(b->name);
  if (b->rc || b->c->from_gguf || n <= 7 || strcmp(b->name + n - 7, ".weight")) return b->rc != 0;
  memcpy(base, b->name, n - 7);
  base[n - 7] = 0;
  b->rc = sh_quant_find(&b->quant, b->ck, base, rows, cols, &m, &found, b->e);
  if (b->rc || !found) return found;
  mark_module(b, &m);
  if (m.layout == SH_QL_F8) *out = sh_qmodule_f8_view(&m, 0, 0, rows);
  else b->rc = sh_repack_add(b->w->private_repack, &m, out, how_of(b), b->e);
  if (!b->rc) tell(b, NULL, &m, out);
  return true;
}

/* Whether there are weights other than floats, judged by what is declared and stored. */
static bool is_quantized(const binder *b) {
  if (b->quant.method != SH_QUANT_NONE) return true;
  for (int i = 0; i < sh_ckpt_count(b->ck); i++) {
    sh_dtype t = sh_ckpt_at(b->ck, i)->type;
    if (sh_dtype_block(t) > 1 && sh_dequant_supported(t)) return true;
  }
  return false;
}

static void choose_head(binder *b) {
  sh_head asked = b->o->panels ? b->o->head : SH_HEAD_BF16;
  b->head = asked != SH_HEAD_AUTO ? asked : is_quantized(b) ? SH_HEAD_DEFAULT : SH_HEAD_BF16;
}

/* *out becomes what is computed with in place of the rows of `src`. */
static void computed(binder *b, const sh_wview *src, sh_head head, sh_wview *out, unsigned how) {
  if (!b->rc) b->rc = sh_repack_add_matrix(b->w->private_repack, src, head, out, how | how_of(b), b->e);
}

static void note_rounding(binder *b, sh_dtype stored) {
  b->head_rounded = sh_dtype_is_panel(b->w->head.type) && (stored == SH_F32 || stored == SH_F16 || stored == SH_BF16);
}

/* Whether it is there. out must stay where it is until the binding is over: a repacked view is filled last. */
static bool matrix(binder *b, const char *scope, const char *hf, const char *gguf, int64_t rows, int64_t cols, sh_wview *out) {
  const int64_t want[2] = {rows, cols};
  spell(b, scope, hf, gguf);
  if (!quantized(b, rows, cols, out)) {
    const sh_ftensor *t = weights_of(b, b->name, want, 2);
    sh_wview stored = t ? view(t, 0, rows, cols) : (sh_wview){0};
    bool is_head = out == &b->w->head;
    if (t) computed(b, &stored, is_head ? b->head : SH_HEAD_BF16, out, 0);
    if (t && is_head) note_rounding(b, t->type);
    if (t && !b->rc) tell(b, t, NULL, out);
  }
  bool ok = !b->rc;
  settle(b);
  return ok;
}

/* The same for one that stays in rows. */
static bool rows_matrix(binder *b, const char *scope, const char *hf, const char *gguf, int64_t rows, int64_t cols, sh_wview *out) {
  b->keep_rows = true;
  bool ok = matrix(b, scope, hf, gguf, rows, cols, out);
  b->keep_rows = false;
  return ok;
}

static void to_form(float *x, int64_t n, form f) {
  if (f == ONE_PLUS) {
    for (int64_t i = 0; i < n; i++) x[i] = 1.0f + x[i];
  } else if (f == MINUS_EXP) {
    for (int64_t i = 0; i < n; i++) x[i] = -expf(x[i]);
  }
}

/* An owned float32 copy of a tensor of shape want[n]. */
static void copy_array(binder *b, const char *scope, const char *hf, const char *gguf, const int64_t *want, int n, form f,
                       const float **out) {
  const sh_ftensor *t = take(b, spell(b, scope, hf, gguf));
  if (!t) return;
  int64_t count = 1;
  for (int i = 0; i < n; i++) count *= want[i];
  if (!same_shape(t, want, n)) {
    fail_shape(b, t, want, n);
    return;
  }
  if (t->type != SH_F32 && t->type != SH_F16 && t->type != SH_BF16) {
    b->rc = sh_fail(b->e, SH_ERR_UNSUPPORTED, "%s: tensor %s is stored as %s; F32, F16 or BF16 is wanted", sh_ckpt_path(b->ck), t->name,
                    t->type_name);
    return;
  }
  float *x = sh_arena_array(b->w->private_arena, (size_t)count, sizeof *x);
  if (!x) {
    b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory for tensor %s", t->name);
    return;
  }
  sh_dequant(t->type, t->data, count, x);
  to_form(x, count, f);
  tell(b, t, NULL, NULL);
  *out = x;
}

static void array(binder *b, const char *scope, const char *hf, const char *gguf, const int64_t *want, int n, form f, const float **out) {
  copy_array(b, scope, hf, gguf, want, n, f, out);
  settle(b);
}

static void vector(binder *b, const char *scope, const char *hf, const char *gguf, int64_t n, form f, const float **out) {
  array(b, scope, hf, gguf, &n, 1, f, out);
}

/* Gains that Qwen3.5 folders store as w of (1 + w); llama and every GGUF store the multiplier. */
static form gain_form(const binder *b) { return b->c->from_gguf || b->c->arch == SH_ARCH_LLAMA ? AS_STORED : ONE_PLUS; }

static void gain(binder *b, const char *scope, const char *hf, const char *gguf, int64_t n, const float **out) {
  vector(b, scope, hf, gguf, n, gain_form(b), out);
}

static bool has(binder *b, const char *scope, const char *hf, const char *gguf) {
  return sh_ckpt_find(b->ck, spell(b, scope, hf, gguf)) != NULL;
}

/* The same for a matrix, in whatever state: hf is its name without ".weight". */
static bool has_module(binder *b, const char *scope, const char *hf, const char *gguf) {
  static const char *const ENDS[] = {".weight", ".qweight", ".weight_packed"};
  char name[96];
  if (b->c->from_gguf) return has(b, scope, "", gguf);
  for (size_t i = 0; i < sizeof ENDS / sizeof ENDS[0]; i++) {
    snprintf(name, sizeof name, "%s%s", hf, ENDS[i]);
    if (has(b, scope, name, "")) return true;
  }
  return false;
}

/* --- A layer */

static void bind_attention(binder *b, sh_w_layer *l) {
  const sh_config *c = b->c;
  const char *s = b->scope;
  int64_t q = sh_config_q_rows(c), kv = (int64_t)c->n_kv_heads * c->head_dim, inner = (int64_t)c->n_heads * c->head_dim;
  matrix(b, s, "self_attn.q_proj.weight", "attn_q.weight", q, c->hidden, &l->q);
  matrix(b, s, "self_attn.k_proj.weight", "attn_k.weight", kv, c->hidden, &l->k);
  matrix(b, s, "self_attn.v_proj.weight", "attn_v.weight", kv, c->hidden, &l->v);
  matrix(b, s, "self_attn.o_proj.weight", "attn_output.weight", c->hidden, inner, &l->o);
  if (c->qk_norm) {
    gain(b, s, "self_attn.q_norm.weight", "attn_q_norm.weight", c->head_dim, &l->q_norm);
    gain(b, s, "self_attn.k_norm.weight", "attn_k_norm.weight", c->head_dim, &l->k_norm);
  }
  if (!c->attn_bias) return;
  vector(b, s, "self_attn.q_proj.bias", "attn_q.bias", q, AS_STORED, &l->q_bias);
  vector(b, s, "self_attn.k_proj.bias", "attn_k.bias", kv, AS_STORED, &l->k_bias);
  vector(b, s, "self_attn.v_proj.bias", "attn_v.bias", kv, AS_STORED, &l->v_bias);
  if (has(b, s, "self_attn.o_proj.bias", "attn_output.bias"))
    vector(b, s, "self_attn.o_proj.bias", "attn_output.bias", c->hidden, AS_STORED, &l->o_bias);
}

static void bind_linear(binder *b, sh_w_layer *l) {
  const sh_config *c = b->c;
  const char *s = b->scope;
  int64_t channels = sh_config_conv_channels(c), inner = (int64_t)c->lin_v_heads * c->lin_v_dim;
  const int64_t conv[3] = {channels, 1, c->conv_kernel};
  matrix(b, s, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", channels, c->hidden, &l->in_qkv);
  matrix(b, s, "linear_attn.in_proj_z.weight", "attn_gate.weight", inner, c->hidden, &l->in_z);
  matrix(b, s, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", c->lin_v_heads, c->hidden, &l->in_a);
  matrix(b, s, "linear_attn.in_proj_b.weight", "ssm_beta.weight", c->lin_v_heads, c->hidden, &l->in_b);
  matrix(b, s, "linear_attn.out_proj.weight", "ssm_out.weight", c->hidden, inner, &l->lin_out);
  array(b, s, "linear_attn.conv1d.weight", "ssm_conv1d.weight", conv, 3, AS_STORED, &l->conv);
  vector(b, s, "linear_attn.A_log", "ssm_a", c->lin_v_heads, c->from_gguf ? AS_STORED : MINUS_EXP, &l->neg_exp_a);
  vector(b, s, "linear_attn.dt_bias", "ssm_dt.bias", c->lin_v_heads, AS_STORED, &l->dt_bias);
  vector(b, s, "linear_attn.norm.weight", "ssm_norm.weight", c->lin_v_dim, AS_STORED, &l->lin_norm);
}

/* One tensor of all experts' matrices: [E, rows, cols], plain or in FP8. */
typedef struct stack {
  const sh_ftensor *t; /* NULL: it is f8, or there was an error */
  sh_qmodule f8;       /* weight NULL: there was */
  int64_t rows, cols;  /* of one expert */
} stack;

static stack fused(binder *b, const char *hf, const char *gguf, int64_t rows, int64_t cols) {
  const int64_t want[3] = {b->c->n_experts, rows, cols};
  stack s = {.rows = rows, .cols = cols};
  bool f8 = false;
  spell(b, b->scope, hf, gguf);
  if (!b->rc && !b->c->from_gguf) b->rc = sh_quant_find_fused(&b->quant, b->ck, b->name, want[0], rows, cols, &s.f8, &f8, b->e);
  if (!b->rc && f8) mark_module(b, &s.f8);
  else s.t = weights_of(b, b->name, want, 3);
  if (!b->rc) {
    sh_wview first = s.t ? view(s.t, 0, rows, cols) : sh_qmodule_f8_view(&s.f8, 0, 0, rows);
    if (b->o->panels && !b->in_mtp) (void)sh_panel_plan(&first, SH_HEAD_BF16, &first);
    tell(b, s.t, s.t ? NULL : &s.f8, &first);
  }
  settle(b);
  return s;
}

/* *out becomes rows [first, first + rows) of an expert's matrix. */
static void cut(binder *b, const stack *s, int64_t expert, int64_t first, int64_t rows, sh_wview *out) {
  if (b->rc || (!s->t && !s->f8.weight)) return;
  if (s->t) {
    sh_wview stored = view(s->t, expert * s->rows + first, rows, s->cols);
    computed(b, &stored, SH_HEAD_BF16, out, 0);
    return;
  }
  if (first % s->f8.scale_rows && s->f8.scale_rows < s->rows)
    b->rc = sh_fail(b->e, SH_ERR_UNSUPPORTED, "%s: tensor %s: blocks of %lld rows straddle its halves of %lld", sh_ckpt_path(b->ck),
                    s->f8.weight->name, (long long)s->f8.scale_rows, (long long)first);
  settle(b);
  *out = sh_qmodule_f8_view(&s->f8, expert, first, rows);
}

/* Gate and up rows in one tensor [E, 2 I, H], gate first; or (GGUF) one tensor [E, I, H] each. */
static void bind_fused_inputs(binder *b, sh_w_moe *m) {
  int64_t H = b->c->hidden, I = b->c->moe_ffn;
  bool joint = has(b, b->scope, "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight");
  stack gate, up;
  if (joint) gate = up = fused(b, "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", 2 * I, H);
  else {
    gate = fused(b, "mlp.experts.gate_proj", "ffn_gate_exps.weight", I, H);
    up = fused(b, "mlp.experts.up_proj", "ffn_up_exps.weight", I, H);
  }
  for (int64_t e = 0; e < b->c->n_experts && !b->rc; e++) {
    cut(b, &gate, e, 0, I, &m->experts[e].gate);
    cut(b, &up, e, joint ? I : 0, I, &m->experts[e].up);
  }
}

static void bind_single(binder *b, int expert, const char *hf, int64_t rows, int64_t cols, sh_wview *out) {
  char scope[128];
  snprintf(scope, sizeof scope, "%smlp.experts.%d.", b->scope, expert);
  matrix(b, scope, hf, "", rows, cols, out);
}

/* Inputs and outputs are stored apart, so each may be fused or not, and quantized or not. */
static void bind_experts(binder *b, sh_w_moe *m) {
  const sh_config *c = b->c;
  bool single_in = !c->from_gguf && has_module(b, b->scope, "mlp.experts.0.gate_proj", "");
  bool single_out = !c->from_gguf && has_module(b, b->scope, "mlp.experts.0.down_proj", "");
  if (!single_in) bind_fused_inputs(b, m);
  for (int e = 0; single_in && e < c->n_experts && !b->rc; e++) {
    bind_single(b, e, "gate_proj.weight", c->moe_ffn, c->hidden, &m->experts[e].gate);
    bind_single(b, e, "up_proj.weight", c->moe_ffn, c->hidden, &m->experts[e].up);
  }
  stack down = {0};
  if (!single_out) down = fused(b, "mlp.experts.down_proj", "ffn_down_exps.weight", c->hidden, c->moe_ffn);
  for (int e = 0; e < c->n_experts && !b->rc; e++) {
    if (single_out) bind_single(b, e, "down_proj.weight", c->hidden, c->moe_ffn, &m->experts[e].down);
    else cut(b, &down, e, 0, c->hidden, &m->experts[e].down);
  }
}

static void bind_moe(binder *b, sh_w_layer *l) {
  const sh_config *c = b->c;
  const char *s = b->scope;
  sh_w_moe *m = sh_arena_alloc(b->w->private_arena, sizeof *m);
  /* the router first: it proves that the file knows that many experts */
  if (m && !rows_matrix(b, s, "mlp.gate.weight", "ffn_gate_inp.weight", c->n_experts, c->hidden, &m->router)) return;
  if (m) m->experts = sh_arena_array(b->w->private_arena, (size_t)c->n_experts, sizeof *m->experts);
  if (!m || !m->experts) {
    b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory for %d experts", c->n_experts);
    return;
  }
  m->n_experts = c->n_experts;
  bind_experts(b, m);
  matrix(b, s, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", c->shared_ffn, c->hidden, &m->shared_gate);
  matrix(b, s, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", c->shared_ffn, c->hidden, &m->shared_up);
  matrix(b, s, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", c->hidden, c->shared_ffn, &m->shared_down);
  rows_matrix(b, s, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 1, c->hidden, &m->shared_expert_gate);
  l->moe = m;
}

/* The layer of b->scope. */
static void bind_layer(binder *b, bool is_linear, sh_w_layer *l) {
  const sh_config *c = b->c;
  const char *s = b->scope;
  l->is_linear = is_linear;
  gain(b, s, "input_layernorm.weight", "attn_norm.weight", c->hidden, &l->input_norm);
  gain(b, s, "post_attention_layernorm.weight", c->arch == SH_ARCH_LLAMA ? "ffn_norm.weight" : "post_attention_norm.weight", c->hidden,
       &l->post_norm);
  if (is_linear) bind_linear(b, l);
  else bind_attention(b, l);
  if (c->n_experts) {
    bind_moe(b, l);
    return;
  }
  matrix(b, s, "mlp.gate_proj.weight", "ffn_gate.weight", c->ffn, c->hidden, &l->gate);
  matrix(b, s, "mlp.up_proj.weight", "ffn_up.weight", c->ffn, c->hidden, &l->up);
  matrix(b, s, "mlp.down_proj.weight", "ffn_down.weight", c->hidden, c->ffn, &l->down);
}

/* --- Head and tail */

static void set_scope(binder *b, int layer) {
  if (b->c->from_gguf) snprintf(b->scope, sizeof b->scope, "blk.%d.", layer);
  else if (b->in_mtp) snprintf(b->scope, sizeof b->scope, "mtp.layers.0.");
  else snprintf(b->scope, sizeof b->scope, "%slayers.%d.", b->root, layer);
}

static void bind_mtp(binder *b) {
  const sh_config *c = b->c;
  b->in_mtp = true;
  set_scope(b, c->n_layers);
  const char *s = c->from_gguf ? b->scope : "mtp.";
  if (c->mtp_layers != 1 || !has_module(b, s, "fc", "nextn.eh_proj.weight")) {
    if (c->mtp_layers > 1) sh_log(SH_LOG_INFO, "%d MTP layers are left unbound; one is what is used", c->mtp_layers);
    return;
  }
  sh_w_mtp *m = sh_arena_alloc(b->w->private_arena, sizeof *m);
  if (!m) {
    b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory");
    return;
  }
  matrix(b, s, "fc.weight", "nextn.eh_proj.weight", c->hidden, 2 * (int64_t)c->hidden, &m->fc);
  gain(b, s, "pre_fc_norm_embedding.weight", "nextn.enorm.weight", c->hidden, &m->norm_embedding);
  gain(b, s, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight", c->hidden, &m->norm_hidden);
  gain(b, s, "norm.weight", "nextn.shared_head_norm.weight", c->hidden, &m->norm);
  bind_layer(b, false, &m->layer);
  b->w->mtp = m;
}

/* What a folder's names begin with: that which makes an embedding matrix appear. */
static void find_root(binder *b) {
  static const char *const ROOTS[] = {"model.", "model.language_model.", "language_model.model.", "", NULL};
  b->root = ROOTS[0];
  for (int i = 0; ROOTS[i] && !b->c->from_gguf; i++) {
    if (!has(b, ROOTS[i], "embed_tokens.weight", "")) continue;
    b->root = ROOTS[i];
    return;
  }
}

/* A head of its own for a tied embedding, where that lies in rows that become panels. */
static void bind_tied_head(binder *b) {
  sh_wview stored = b->w->embed;
  const sh_ftensor *t = sh_ckpt_find(b->ck, b->name);
  b->w->head = stored;
  if (!b->w->own_head || !t) return;
  computed(b, &stored, b->head, &b->w->head, SH_REPACK_SHARED);
  note_rounding(b, t->type);
  spell(b, "", "lm_head.weight", "output.weight");
  const sh_w_found f = {.name = b->name, .tensor = t, .view = &b->w->head, .shared = true};
  tell_found(b, &f);
  settle(b);
}

/* Whether a tied embedding of that type and width gets panels as a head beside it. */
static bool has_own_head(binder *b, const char *scope) {
  const sh_ftensor *t = sh_ckpt_find(b->ck, spell(b, scope, "embed_tokens.weight", "token_embd.weight"));
  sh_wview plan = {.rows = b->c->vocab_size, .cols = b->c->hidden};
  if (!b->o->panels || !b->c->tied || !t) return false;
  plan.type = t->type;
  return !sh_dtype_has_groups(t->type) && sh_panel_plan(&plan, b->head, &plan);
}

static void bind_ends(binder *b) {
  const sh_config *c = b->c;
  const char *s = c->from_gguf ? "" : b->root;
  b->w->own_head = has_own_head(b, s);
  rows_matrix(b, s, "embed_tokens.weight", "token_embd.weight", c->vocab_size, c->hidden, &b->w->embed);
  if (c->tied) bind_tied_head(b);
  gain(b, s, "norm.weight", "output_norm.weight", c->hidden, &b->w->final_norm);
  if (!c->tied) matrix(b, "", "lm_head.weight", "output.weight", c->vocab_size, c->hidden, &b->w->head);
}

/* The number of the layer a tensor belongs to; -1: none of the main model's. */
static int layer_of(const binder *b, const char *name) {
  const char *root = b->c->from_gguf ? "" : b->root, *word = b->c->from_gguf ? "blk." : "layers.";
  size_t n = strlen(root), k = strlen(word);
  if (strncmp(name, root, n) != 0 || strncmp(name + n, word, k) != 0) return -1;
  const char *p = name + n + k;
  int layer = 0, digits = 0;
  for (; p[digits] >= '0' && p[digits] <= '9' && digits < 6; digits++) layer = layer * 10 + (p[digits] - '0');
  return digits && p[digits] == '.' ? layer : -1;
}

/* More layers in the file than the config speaks of: the model would answer, and wrongly. A GGUF counts its prediction blocks among them.
 */
static void refuse_surplus_layers(binder *b) {
  int known = b->c->n_layers + (b->c->from_gguf ? b->c->mtp_layers : 0), first = -1, lowest = 0, most = 0;
  for (int i = 0; i < sh_ckpt_count(b->ck); i++) {
    int layer = layer_of(b, sh_ckpt_at(b->ck, i)->name);
    if (layer < known) continue;
    if (layer >= most) most = layer + 1;
    if (first >= 0 && layer >= lowest) continue;
    first = i;
    lowest = layer;
  }
  if (first >= 0)
    b->rc = sh_fail(b->e, SH_ERR_FORMAT, "%s: tensor %s is surplus: the file has %d layers, %s says %d", sh_ckpt_path(b->ck),
                    sh_ckpt_at(b->ck, first)->name, most, b->c->from_gguf ? "block_count" : "num_hidden_layers", known);
}

/* Counts what nobody asked for. Known and left alone: the vision tower; a head that is tied anyway; the converter's rotary factors (part of
 * the config). */
static void account_rest(binder *b) {
  for (int i = 0; i < sh_ckpt_count(b->ck); i++) {
    const char *name = sh_ckpt_at(b->ck, i)->name;
    if (b->used[i] || strcmp(name, "rope_freqs.weight") == 0) continue;
    if (strncmp(name, "model.visual.", 13) == 0 || strncmp(name, "visual.", 7) == 0) {
      b->w->n_visual++;
      if (b->audit) b->audit->unused(b->audit->ctx, sh_ckpt_at(b->ck, i), true);
      continue;
    }
    if (b->audit) b->audit->unused(b->audit->ctx, sh_ckpt_at(b->ck, i), false);
    if (b->w->n_unused++ < 50) sh_log(SH_LOG_DEBUG, "tensor %s is not used", name);
  }
  if (b->w->n_unused) sh_log(SH_LOG_DEBUG, "%d tensors are not used", b->w->n_unused);
}

/* The small vectors are read by the binding, one after the other, spread over all files: they are asked for together. Read-ahead would
 * bring in megabytes around each, in a folder to repack of weights that nobody reads. */
static void ask_for_vectors(const sh_ckpt *ck) {
  enum { LARGE = 1 << 18 }; /* bytes */
  for (int i = 0; i < sh_ckpt_count(ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(ck, i);
    bool vector = (t->n_dims == 1 || t->n_dims == 3) && (t->type == SH_F32 || t->type == SH_F16 || t->type == SH_BF16);
    if (vector && t->bytes <= LARGE) sh_map_ask(t->data, t->bytes);
  }
}

/* --head that cannot be followed is said: the head is stored in integers, or groups of 32 do not divide its rows. */
static void check_head(const binder *b) {
  if (!b->o->panels || b->o->head == SH_HEAD_AUTO || b->o->head == SH_HEAD_BF16 || b->head_rounded) return;
  sh_log(SH_LOG_WARN,
         "the head keeps the precision it is stored in: --head is for heads of F32, F16 or BF16, whose width is a multiple of 32");
}

/* What had to wait until everything was found. */
static void repack(binder *b) {
  sh_weights *w = b->w;
  size_t rewritten, replaced;
  b->rc = b->audit ? sh_repack_check(w->private_repack, b->e) : sh_repack_run(w->private_repack, b->e);
  settle(b);
  if (b->rc) return;
  w->repacked_bytes = sh_repack_bytes(w->private_repack);
  w->repacked_in_memory = sh_repack_result(w->private_repack) == SH_REPACK_MEMORY;
  sh_repack_count(w->private_repack, &rewritten, &replaced);
  w->held_bytes = w->bytes - w->mtp_bytes - replaced + (w->repacked_in_memory ? w->repacked_bytes : rewritten);
  if (b->c->tied && !w->own_head) w->head = w->embed;
  check_head(b);
}

static int bind_all(sh_weights *w, const sh_config *c, const sh_ckpt *ck, const sh_repack_opts *o, const sh_w_audit *audit, sh_error *e) {
  static const sh_repack_opts DEFAULTS;
  memset(w, 0, sizeof *w);
  binder b = {.w = w, .c = c, .ck = ck, .e = e, .root = "", .audit = audit, .o = o ? o : &DEFAULTS};
  w->private_arena = sh_arena_new(MAX_OWNED);
  b.used = sh_calloc((size_t)sh_ckpt_count(ck) + 1, 1);
  if (w->private_arena) w->layers = sh_arena_array(w->private_arena, (size_t)c->n_layers, sizeof *w->layers);
  if (!b.used || !w->layers) b.rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for %d layers", c->n_layers);
  w->n_layers = b.rc ? 0 : c->n_layers;
  if (!b.rc) b.rc = sh_quant_parse(&b.quant, sh_ckpt_config(ck), e);
  settle(&b);
  if (!b.rc) b.rc = sh_repack_new(&w->private_repack, ck, b.o, e);
  if (!b.rc) {
    choose_head(&b);
    if (!c->from_gguf) ask_for_vectors(ck);
    find_root(&b);
    bind_ends(&b);
    if (!b.rc) refuse_surplus_layers(&b);
    settle(&b);
  }
  for (int i = 0; i < c->n_layers && !b.rc; i++) {
    set_scope(&b, i);
    bind_layer(&b, c->layer_is_linear[i], &w->layers[i]);
  }
  if (!b.rc) bind_mtp(&b);
  if (!b.rc) account_rest(&b);
  sh_ckpt_sparse(ck, false);
  if (!b.rc) repack(&b);
  sh_free(b.used);
  if (b.rc) sh_weights_free(w);
  return b.rc;
}

int sh_weights_bind(sh_weights *w, const sh_config *c, const sh_ckpt *ck, const sh_repack_opts *o, sh_error *e) {
  return bind_all(w, c, ck, o, NULL, e);
}

int sh_weights_audit(sh_weights *w, const sh_config *c, const sh_ckpt *ck, const sh_repack_opts *o, const sh_w_audit *a, sh_error *e) {
  sh_error local = {0}; /* what is told is taken from it */
  return bind_all(w, c, ck, o, a, e ? e : &local);
}

void sh_weights_free(sh_weights *w) {
  sh_repack_free(w->private_repack);
  sh_arena_free(w->private_arena);
  memset(w, 0, sizeof *w);
}

/* --- Where they lie */

typedef struct span_list {
  const sh_repack *repack;
  sh_span *v; /* [cap]; NULL: only counted */
  size_t n;
} span_list;

static void add_span(span_list *l, const uint8_t *p, size_t n) {
  if (!p || !n || sh_repack_in_memory(l->repack, p)) return;
  if (l->v) l->v[l->n] = (sh_span){p, n};
  l->n++;
}

static void add_view(span_list *l, const sh_wview *v) {
  int64_t scale_rows = v->scale_rows > 0 ? (v->rows + v->scale_rows - 1) / v->scale_rows : 0;
  int64_t rows = sh_dtype_is_panel(v->type) ? sh_panel_count(v->rows) * SH_PANEL_ROWS : v->rows;
  add_span(l, v->data, (size_t)rows * v->row_bytes);
  add_span(l, v->scales, (size_t)scale_rows * v->scale_row_bytes);
  add_span(l, v->zeros, (size_t)v->rows * v->zero_row_bytes);
}

/* The views that a layer lacks are zeroed. */
static void add_layer(span_list *out, const sh_w_layer *l) {
  const sh_wview *const v[] = {&l->q,    &l->k,    &l->v,       &l->o,    &l->in_qkv, &l->in_z,
                               &l->in_a, &l->in_b, &l->lin_out, &l->gate, &l->up,     &l->down};
  for (size_t i = 0; i < sizeof v / sizeof *v; i++) add_view(out, v[i]);
  const sh_w_moe *m = l->moe;
  if (!m) return;
  const sh_wview *const x[] = {&m->router, &m->shared_gate, &m->shared_up, &m->shared_down, &m->shared_expert_gate};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) add_view(out, x[i]);
  for (int i = 0; i < m->n_experts; i++) {
    add_view(out, &m->experts[i].gate);
    add_view(out, &m->experts[i].up);
    add_view(out, &m->experts[i].down);
  }
}

static void add_all(span_list *l, const sh_weights *w) {
  l->n = 0;
  add_view(l, &w->embed);
  if (w->head.data != w->embed.data) add_view(l, &w->head);
  for (int i = 0; i < w->n_layers; i++) add_layer(l, &w->layers[i]);
}

int sh_weights_spans(const sh_weights *w, sh_span **out, size_t *n, sh_error *e) {
  span_list l = {.repack = w->private_repack};
  *out = NULL;
  *n = 0;
  add_all(&l, w);
  l.v = sh_calloc(l.n + 1, sizeof *l.v);
  if (!l.v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for a list of %zu parts of the weights", l.n);
  add_all(&l, w);
  *out = l.v;
  *n = l.n;
  return 0;
}

const char *sh_weights_dtypes(const sh_weights *w, char *buf, size_t size) {
  size_t at = 0;
  if (size) buf[0] = 0;
  for (int t = 0; t < SH_DTYPE_COUNT && at < size; t++) {
    if (w->dtypes >> t & 1) at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "", sh_dtype_name((sh_dtype)t));
  }
  return buf;
}
