/* The order and the names of a release's tensors, in the spelling of Hugging Face folders and of GGUF.
 *
 * Pure; any thread. One walk over the model serves all formats: it names every tensor twice, as model/weights.c does when it binds them,
 * and what becomes of a matrix is decided in one place (matrix): kept, packed, or stored as GGUF blocks. Vectors differ by more than their
 * names (norms are stored as 1 + w and A as -exp(A_log) in a GGUF), so each gives both fillings.
 *
 * Deviations are those of a trained net as far as speed is concerned: 0.7 / sqrt(inputs), so that what flows stays finite through any
 * number of layers. Left out: the vision tower and the draft (MTP) layer. */
#include "synth/list.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAMES ((size_t)256 << 20) /* bytes */
enum { FP8_BLOCK = 128 };

typedef struct maker {
  sh_synth_list *l;
  const sh_synth_shape *s;
  const sh_synth_format *f;
  int group;
  char scope[80]; /* what names in a layer begin with */
  sh_error *e;
  int rc; /* first error */
} maker;

static bool gguf(const maker *m) { return m->f->layout == SH_SL_GGUF; }

static void no_memory(maker *m) {
  if (!m->rc) m->rc = sh_fail(m->e, SH_ERR_NOMEM, "out of memory for a list of %d tensors", m->l->n);
}

/* --- The list */

static bool room_for_one(maker *m) {
  sh_synth_list *l = m->l;
  if (m->rc || l->n < l->private_cap) return !m->rc;
  int cap = l->private_cap ? 2 * l->private_cap : 1024;
  sh_ftensor *t = sh_realloc(l->t, (size_t)cap * sizeof *t);
  if (t) l->t = t;
  sh_fill *fill = t ? sh_realloc(l->fill, (size_t)cap * sizeof *fill) : NULL;
  if (!fill) {
    no_memory(m);
    return false;
  }
  l->fill = fill;
  l->private_cap = cap;
  return true;
}

/* A tensor of the name base and suffix. dims: slowest first. */
static void add(maker *m, const char *base, const char *suffix, sh_dtype type, int n_dims, const int64_t *dims, sh_fill fill) {
  if (!room_for_one(m)) return;
  sh_ftensor t = {.name = sh_arena_printf(m->l->private_arena, "%s%s", base, suffix), .type = type, .n_dims = n_dims};
  int64_t count = 1;
  for (int i = 0; i < n_dims; i++) count *= t.dims[i] = dims[i];
  t.type_name = sh_dtype_name(type);
  t.bytes = (size_t)(count / sh_dtype_block(type)) * (size_t)sh_dtype_block_bytes(type);
  if (!t.name) {
    no_memory(m);
    return;
  }
  m->l->t[m->l->n] = t;
  m->l->fill[m->l->n++] = fill;
  m->l->bytes += (int64_t)t.bytes;
}

/* b < 0: one dimension. */
static void add_part(maker *m, const char *base, const char *suffix, sh_dtype type, int64_t a, int64_t b, sh_fill fill) {
  add(m, base, suffix, type, b < 0 ? 1 : 2, (const int64_t[]){a, b}, fill);
}

static void leave(maker *m, const char *base) {
  sh_synth_list *l = m->l;
  if (m->rc) return;
  if (l->n_left == l->private_cap_left) {
    int cap = l->private_cap_left ? 2 * l->private_cap_left : 64;
    const char **v = sh_realloc((void *)l->left, (size_t)cap * sizeof *v);
    if (!v) {
      no_memory(m);
      return;
    }
    l->left = v;
    l->private_cap_left = cap;
  }
  const char *copy = sh_arena_strdup(l->private_arena, base, strlen(base));
  if (copy) l->left[l->n_left++] = copy;
  else no_memory(m);
}

/* --- Matrices */

static double deviation(int64_t cols) { return 0.7 / sqrt((double)cols); }
static sh_fill weights(double std) { return (sh_fill){SH_FILL_WEIGHT, std, 0, 0}; }
/* Scales, a quarter of them to each side, of codes with that deviation. */
static sh_fill scales(double std, double codes) { return (sh_fill){SH_FILL_RANGE, 0.875 * std / codes, 1.125 * std / codes, 0}; }

static void packed(maker *m, const char *base, int64_t rows, int64_t cols) {
  double std = deviation(cols);
  int64_t groups = m->group ? cols / m->group : 1;
  const sh_fill codes = {.kind = SH_FILL_CODES}, s = scales(std, SH_FILL_CODES_STD);
  switch (m->f->layout) {
  case SH_SL_AWQ:
    add_part(m, base, ".qweight", SH_I32, cols, rows / 8, codes);
    add_part(m, base, ".qzeros", SH_I32, groups, rows / 8, (sh_fill){.kind = SH_FILL_ZEROS});
    add_part(m, base, ".scales", SH_F16, groups, rows, s);
    break;
  case SH_SL_GPTQ: /* zero points are stored less one */
    add_part(m, base, ".qweight", SH_I32, cols / 8, rows, codes);
    add_part(m, base, ".qzeros", SH_I32, groups, rows / 8, (sh_fill){.kind = SH_FILL_WORD, .n = 0x77777777});
    add_part(m, base, ".scales", SH_F16, groups, rows, s);
    add_part(m, base, ".g_idx", SH_I32, cols, -1, (sh_fill){.kind = SH_FILL_STEPS, .n = m->group});
    break;
  case SH_SL_CT:
    add_part(m, base, ".weight_packed", SH_I32, rows, cols / 8, codes);
    add_part(m, base, ".weight_scale", SH_BF16, rows, groups, s);
    add_part(m, base, ".weight_shape", SH_I64, 2, -1, (sh_fill){SH_FILL_SHAPE, (double)rows, (double)cols, 0});
    break;
  case SH_SL_INT8:
    add_part(m, base, ".weight", SH_I8, rows, cols, weights(std));
    add_part(m, base, ".weight_scale", SH_BF16, rows, 1, scales(std, SH_FILL_I8_STD));
    break;
  case SH_SL_FP8:
    add_part(m, base, ".weight", SH_F8_E4M3, rows, cols, weights(std));
    add_part(m, base, ".weight_scale_inv", SH_BF16, (rows + FP8_BLOCK - 1) / FP8_BLOCK, (cols + FP8_BLOCK - 1) / FP8_BLOCK,
             scales(std, SH_FILL_F8_STD));
    break;
  default: add_part(m, base, ".weight", m->f->type, rows, cols, weights(std));
  }
}

/* hf and gg: names in a layer, hf without ".weight". quantize false: bf16 in every folder. */
static void matrix(maker *m, const char *hf, const char *gg, int64_t rows, int64_t cols, bool quantize) {
  char base[192];
  m->l->weights += rows * cols;
  snprintf(base, sizeof base, "%s%s", m->scope, gguf(m) ? gg : hf);
  if (gguf(m)) {
    add(m, base, "", m->f->type, 2, (const int64_t[]){rows, cols}, weights(deviation(cols)));
  } else if (quantize) {
    packed(m, base, rows, cols);
  } else {
    add_part(m, base, ".weight", m->f->type, rows, cols, weights(deviation(cols)));
    if (m->f->layout != SH_SL_PLAIN) leave(m, base);
  }
}

/* --- Vectors, and what GGUF keeps in float32 */

/* type: in a folder. */
static void small(maker *m, const char *hf, sh_dtype type, const char *gg, int n_dims, const int64_t *dims, sh_fill in_hf, sh_fill in_gg) {
  char name[192];
  int64_t n = 1;
  for (int i = 0; i < n_dims; i++) n *= dims[i];
  m->l->weights += n;
  snprintf(name, sizeof name, "%s%s", m->scope, gguf(m) ? gg : hf);
  add(m, name, "", gguf(m) ? SH_F32 : type, n_dims, dims, gguf(m) ? in_gg : in_hf);
}

/* A norm whose gain is 1 + w: GGUF stores the gain. */
static void norm(maker *m, const char *hf, const char *gg, int64_t n) {
  small(m, hf, m->f->type == SH_F16 ? SH_F16 : SH_BF16, gg, 1, &n, (sh_fill){SH_FILL_RANGE, -0.1, 0.1, 0},
        (sh_fill){SH_FILL_RANGE, 0.9, 1.1, 0});
}

/* --- Layers */

static sh_dtype plain_type(const maker *m) { return gguf(m) ? SH_F32 : m->f->type; }

static void linear_mixer(maker *m) {
  const sh_synth_shape *s = m->s;
  int64_t H = s->hidden, Hv = s->lin_v_heads, keys = (int64_t)s->lin_k_heads * SH_SYNTH_LIN_DIM, values = Hv * SH_SYNTH_LIN_DIM;
  int64_t C = 2 * keys + values, D = SH_SYNTH_LIN_DIM;
  const sh_fill conv = weights(deviation(SH_SYNTH_CONV)), a = {SH_FILL_RANGE, -1, 1, 0}, minus_exp = {SH_FILL_NEG_EXP, -1, 1, 0},
                dt = {SH_FILL_RANGE, 0, 1, 0}, gain = {SH_FILL_RANGE, 0.9, 1.1, 0};
  matrix(m, "linear_attn.in_proj_qkv", "attn_qkv.weight", C, H, true);
  matrix(m, "linear_attn.in_proj_z", "attn_gate.weight", values, H, true);
  matrix(m, "linear_attn.in_proj_a", "ssm_alpha.weight", Hv, H, false);
  matrix(m, "linear_attn.in_proj_b", "ssm_beta.weight", Hv, H, false);
  if (gguf(m)) small(m, "", SH_F32, "ssm_conv1d.weight", 2, (const int64_t[]){C, SH_SYNTH_CONV}, conv, conv);
  else small(m, "linear_attn.conv1d.weight", plain_type(m), "", 3, (const int64_t[]){C, 1, SH_SYNTH_CONV}, conv, conv);
  small(m, "linear_attn.A_log", SH_F32, "ssm_a", 1, &Hv, a, minus_exp);
  small(m, "linear_attn.dt_bias", plain_type(m), "ssm_dt.bias", 1, &Hv, dt, dt);
  small(m, "linear_attn.norm.weight", SH_F32, "ssm_norm.weight", 1, &D, gain, gain);
  matrix(m, "linear_attn.out_proj", "ssm_out.weight", H, values, true);
}

static void attention(maker *m) {
  const sh_synth_shape *s = m->s;
  int64_t H = s->hidden, q = (int64_t)s->n_heads * SH_SYNTH_HEAD_DIM, kv = (int64_t)s->n_kv_heads * SH_SYNTH_HEAD_DIM;
  matrix(m, "self_attn.q_proj", "attn_q.weight", 2 * q, H, true); /* queries and gates */
  matrix(m, "self_attn.k_proj", "attn_k.weight", kv, H, true);
  matrix(m, "self_attn.v_proj", "attn_v.weight", kv, H, true);
  matrix(m, "self_attn.o_proj", "attn_output.weight", H, q, true);
  norm(m, "self_attn.q_norm.weight", "attn_q_norm.weight", SH_SYNTH_HEAD_DIM);
  norm(m, "self_attn.k_norm.weight", "attn_k_norm.weight", SH_SYNTH_HEAD_DIM);
}

/* Experts of one kind: a tensor of three dimensions, or a module each. */
static void stacked(maker *m, const char *name, int64_t rows, int64_t cols) {
  char full[192];
  m->l->weights += m->s->n_experts * rows * cols;
  snprintf(full, sizeof full, "%s%s", m->scope, name);
  add(m, full, "", m->f->type, 3, (const int64_t[]){m->s->n_experts, rows, cols}, weights(deviation(cols)));
}

static void experts(maker *m) {
  int64_t H = m->s->hidden, I = m->s->moe_ffn;
  char name[64];
  if (gguf(m)) {
    stacked(m, "ffn_gate_exps.weight", I, H);
    stacked(m, "ffn_up_exps.weight", I, H);
    stacked(m, "ffn_down_exps.weight", H, I);
  } else if (m->f->layout == SH_SL_PLAIN) {
    stacked(m, "mlp.experts.gate_up_proj", 2 * I, H);
    stacked(m, "mlp.experts.down_proj", H, I);
  } else {
    static const char *const KINDS[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < m->s->n_experts * 3; i++) {
      snprintf(name, sizeof name, "mlp.experts.%d.%s", i / 3, KINDS[i % 3]);
      matrix(m, name, "", i % 3 < 2 ? I : H, i % 3 < 2 ? H : I, true);
    }
  }
}

/* The router and the shared expert's switch: float32 in a GGUF, the latter a vector there. */
static void moe(maker *m) {
  int64_t H = m->s->hidden, E = m->s->n_experts, Is = m->s->shared_ffn;
  const sh_fill w = weights(deviation(H));
  if (gguf(m)) {
    small(m, "", SH_F32, "ffn_gate_inp.weight", 2, (const int64_t[]){E, H}, w, w);
    small(m, "", SH_F32, "ffn_gate_inp_shexp.weight", 1, &H, w, w);
  } else {
    matrix(m, "mlp.gate", "", E, H, false);
    matrix(m, "mlp.shared_expert_gate", "", 1, H, false);
  }
  experts(m);
  matrix(m, "mlp.shared_expert.gate_proj", "ffn_gate_shexp.weight", Is, H, true);
  matrix(m, "mlp.shared_expert.up_proj", "ffn_up_shexp.weight", Is, H, true);
  matrix(m, "mlp.shared_expert.down_proj", "ffn_down_shexp.weight", H, Is, true);
}

static void dense(maker *m) {
  int64_t H = m->s->hidden, F = m->s->ffn;
  matrix(m, "mlp.gate_proj", "ffn_gate.weight", F, H, true);
  matrix(m, "mlp.up_proj", "ffn_up.weight", F, H, true);
  matrix(m, "mlp.down_proj", "ffn_down.weight", H, F, true);
}

static void layer(maker *m, int i) {
  snprintf(m->scope, sizeof m->scope, gguf(m) ? "blk.%d." : "model.language_model.layers.%d.", i);
  norm(m, "input_layernorm.weight", "attn_norm.weight", m->s->hidden);
  if ((i + 1) % SH_SYNTH_INTERVAL) linear_mixer(m);
  else attention(m);
  norm(m, "post_attention_layernorm.weight", "post_attention_norm.weight", m->s->hidden);
  if (m->s->n_experts) moe(m);
  else dense(m);
}

/* --- Head and tail. Types in a GGUF are those that llama-quantize leaves: the head is Q6_K (Q8_0 and BF16 keep themselves), and the
 * embedding where it is the head; else the embedding has the layers' type. */

static sh_dtype head_type(const maker *m) {
  sh_dtype t = m->f->type;
  return gguf(m) && t != SH_BF16 && t != SH_Q8_0 ? SH_Q6_K : t;
}

static void embedding(maker *m) {
  const int64_t dims[2] = {m->s->vocab, m->s->hidden};
  snprintf(m->scope, sizeof m->scope, "%s", gguf(m) ? "" : "model.language_model.");
  m->l->weights += dims[0] * dims[1];
  add(m, gguf(m) ? "token_embd.weight" : "model.language_model.embed_tokens.weight", "", m->s->tied ? head_type(m) : m->f->type, 2, dims,
      weights(0.05));
}

static void tail(maker *m) {
  const int64_t dims[2] = {m->s->vocab, m->s->hidden};
  snprintf(m->scope, sizeof m->scope, "%s", gguf(m) ? "" : "model.language_model.");
  norm(m, "norm.weight", "output_norm.weight", m->s->hidden);
  if (m->s->tied) return;
  m->l->weights += dims[0] * dims[1];
  add(m, gguf(m) ? "output.weight" : "lm_head.weight", "", head_type(m), 2, dims, weights(deviation(dims[1])));
  if (!gguf(m) && m->f->layout != SH_SL_PLAIN) leave(m, "lm_head");
}

int sh_synth_list_make(sh_synth_list *l, const sh_synth_shape *s, const sh_synth_format *f, int layers, int group, sh_error *e) {
  maker m = {.l = l, .s = s, .f = f, .group = f->grouped ? group : 0, .e = e};
  *l = (sh_synth_list){.private_arena = sh_arena_new(MAX_NAMES)};
  if (!l->private_arena) no_memory(&m);
  embedding(&m);
  for (int i = 0; i < layers && !m.rc; i++) layer(&m, i);
  tail(&m);
  if (m.rc) sh_synth_list_free(l);
  return m.rc;
}

void sh_synth_list_free(sh_synth_list *l) {
  sh_free(l->t);
  sh_free(l->fill);
  sh_free((void *)l->left);
  sh_arena_free(l->private_arena);
  *l = (sh_synth_list){0};
}
