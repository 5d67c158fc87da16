/* The model's dimensions from config.json, the checks that hold for every source, and what can be said about a config in words.
 *
 * Called at load, by one thread; the result is a plain value. A value from the file passes one of the get_* functions, which know its
 * default (that of transformers) and its limits and leave the first error; later steps see it in reader.rc and do nothing. What
 * transformers ignores is ignored; what it honours and this program does not compute is refused by name, because a wrong answer is worse
 * than none. GGUF metadata is read in config_gguf.c. A table of field offsets was refused: half of the fields depend on others (head_dim on
 * hidden and heads, the rope block on three places). */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "formats/quant.h"
#include "model/config_internal.h"
#include "model/rope.h"

typedef struct reader {
  const sh_json *top, *text; /* the whole file; the language model's part (the same when flat) */
  sh_error *e;
  int rc; /* first error */
} reader;

static int fail(reader *r, int code, const char *text, const char *key) {
  if (!r->rc) r->rc = sh_fail(r->e, code, "%s %s", key, text);
  return r->rc;
}

/* A member that is there and not null. */
static const sh_json *present(const sh_json *obj, const char *key) {
  const sh_json *v = sh_json_get(obj, key);
  return sh_json_is(v, SH_JSON_NULL) ? NULL : v;
}

static void get_int(reader *r, const char *key, int64_t def, int64_t min, int64_t max, int *out) {
  const sh_json *v = present(r->text, key);
  int64_t n = def;
  *out = 0;
  if (r->rc) return;
  if (v && sh_json_int(v, &n)) {
    fail(r, SH_ERR_FORMAT, "is not a whole number", key);
  } else if (n < min || n > max) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s is %lld; %lld to %lld is wanted", key, (long long)n, (long long)min, (long long)max);
  } else {
    *out = (int)n;
  }
}

static double get_double_of(reader *r, const sh_json *obj, const char *key, double def) {
  const sh_json *v = present(obj, key);
  double x = def;
  if (v && sh_json_double(v, &x)) fail(r, SH_ERR_FORMAT, "is not a number", key);
  return x;
}

static bool get_bool(reader *r, const sh_json *obj, const char *key, bool def) {
  const sh_json *v = present(obj, key);
  if (v && !sh_json_is(v, SH_JSON_BOOL)) fail(r, SH_ERR_FORMAT, "is not true or false", key);
  return v ? v->b : def;
}

/* A string that must be one of two spellings when it is there. */
static void want_str(reader *r, const char *key, const char *a, const char *b) {
  const sh_json *v = present(r->text, key);
  if (!v || r->rc || sh_json_eq_str(v, a) || sh_json_eq_str(v, b)) return;
  r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "%s %.100s is not supported; %s is", key,
                  sh_json_is(v, SH_JSON_STRING) ? v->s : "of another type", a);
}

static void want_false(reader *r, const char *key) {
  if (get_bool(r, r->text, key, false)) fail(r, SH_ERR_UNSUPPORTED, "true is not supported", key);
}

/* --- What must not be there */

/* Which tensors are quantized is the business of weights.c; whether the method is one that is read is told here, before anything is mapped.
 */
static void check_quantization(reader *r) {
  sh_quant q;
  if (!r->rc) r->rc = sh_quant_parse(&q, r->top, r->e);
}

static void refuse_unknown_math(reader *r) {
  want_str(r, "hidden_act", "silu", "swish");
  want_str(r, "output_gate_type", "swish", "silu");
  want_false(r, "mlp_bias");
  if (present(r->text, "sliding_window") && get_bool(r, r->text, "use_sliding_window", true))
    fail(r, SH_ERR_UNSUPPORTED, "is not supported", "sliding_window");
  const sh_json *only = present(r->text, "mlp_only_layers");
  if (only && only->len) fail(r, SH_ERR_UNSUPPORTED, "is not supported", "mlp_only_layers");
  int step;
  get_int(r, "decoder_sparse_step", 1, 1, 1, &step);
}

/* --- Parts of the config */

static void read_layer_types(reader *r, sh_config *c) {
  const sh_json *v = present(r->text, "layer_types");
  int interval = 1;
  if (c->arch != SH_ARCH_LLAMA) get_int(r, "full_attention_interval", 4, 1, SH_MAX_LAYERS, &interval);
  if (r->rc) return;
  if (v && !sh_json_is(v, SH_JSON_ARRAY)) {
    fail(r, SH_ERR_FORMAT, "is not a list", "layer_types");
    return;
  }
  if (v && v->len != (size_t)c->n_layers) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "layer_types lists %zu layers, num_hidden_layers is %d", v->len, c->n_layers);
    return;
  }
  for (int i = 0; i < c->n_layers; i++) {
    const sh_json *t = v ? &v->items[i] : NULL;
    bool full = v ? sh_json_eq_str(t, "full_attention") : (i + 1) % interval == 0;
    bool linear = v ? sh_json_eq_str(t, "linear_attention") && c->arch != SH_ARCH_LLAMA : !full;
    if (!full && !linear) {
      r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "layer_types: layer %d is %.100s, which is not supported", i,
                      sh_json_is(t, SH_JSON_STRING) ? t->s : "no string");
      return;
    }
    c->layer_is_linear[i] = linear;
  }
}

static sh_dtype dtype_named(const sh_json *v) {
  if (sh_json_eq_str(v, "bfloat16")) return SH_BF16;
  if (sh_json_eq_str(v, "float16")) return SH_F16;
  if (sh_json_eq_str(v, "float32")) return SH_F32;
  return SH_OTHER;
}

static void read_dtype(const reader *r, sh_config *c) {
  const sh_json *v = present(r->text, "dtype");
  if (!v) v = present(r->text, "torch_dtype");
  if (!v) v = present(r->top, "dtype");
  if (!v) v = present(r->top, "torch_dtype");
  c->dtype = dtype_named(v);
}

void sh_config_add_eos(sh_config *c, int64_t id) {
  if (id < 0 || id >= c->vocab_size) {
    sh_log(SH_LOG_WARN, "end token %lld is outside the vocabulary of %d and ignored", (long long)id, c->vocab_size);
    return;
  }
  for (int i = 0; i < c->n_eos; i++) {
    if (c->eos_ids[i] == id) return;
  }
  if (c->n_eos < SH_MAX_EOS) c->eos_ids[c->n_eos++] = (int)id;
}

static void read_token_ids(reader *r, sh_config *c, int64_t def_bos, int64_t def_eos) {
  const sh_json *v = sh_json_get(r->text, "eos_token_id");
  if (!v) v = sh_json_get(r->top, "eos_token_id");
  const sh_json *items = sh_json_is(v, SH_JSON_ARRAY) ? v->items : v;
  size_t n = sh_json_is(v, SH_JSON_ARRAY) ? v->len : (v && !sh_json_is(v, SH_JSON_NULL));
  if (n > SH_MAX_EOS) fail(r, SH_ERR_LIMIT, "lists more ids than the limit of 16", "eos_token_id");
  for (size_t i = 0; i < n && !r->rc; i++) {
    int64_t id;
    if (sh_json_int(&items[i], &id)) fail(r, SH_ERR_FORMAT, "is not a token id or a list of them", "eos_token_id");
    else sh_config_add_eos(c, id);
  }
  if (!v && def_eos >= 0) sh_config_add_eos(c, def_eos);
  v = sh_json_get(r->text, "bos_token_id");
  if (!v) v = sh_json_get(r->top, "bos_token_id");
  int64_t bos = def_bos;
  if (sh_json_is(v, SH_JSON_NULL)) bos = -1;
  else if (v && sh_json_int(v, &bos)) fail(r, SH_ERR_FORMAT, "is not a token id", "bos_token_id");
  c->bos_id = bos >= 0 && bos < c->vocab_size ? (int)bos : -1;
}

/* --- Rotary embedding. The parameters stand in rope_parameters, or in rope_scaling (which replaces that block, as in transformers) with
 * rope_theta and partial_rotary_factor beside it. */

static sh_rope_kind rope_kind_of(reader *r, const sh_json *block) {
  const sh_json *v = present(block, "rope_type");
  if (!v) v = present(block, "type");
  if (!v || sh_json_eq_str(v, "default") || sh_json_eq_str(v, "mrope")) return SH_ROPE_NONE; /* mrope on text alone is the plain rotation */
  if (sh_json_eq_str(v, "linear")) return SH_ROPE_LINEAR;
  if (sh_json_eq_str(v, "llama3")) return SH_ROPE_LLAMA3;
  if (sh_json_eq_str(v, "yarn")) return SH_ROPE_YARN;
  if (!r->rc)
    r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "rope_type %.100s is not supported; default, linear, llama3 and yarn are",
                    sh_json_is(v, SH_JSON_STRING) ? v->s : "of another type");
  return SH_ROPE_NONE;
}

static const sh_json *rope_block(reader *r) {
  const sh_json *block = present(r->text, "rope_scaling");
  if (!block || block->len == 0) block = present(r->text, "rope_parameters");
  if (!block) return NULL;
  if (!sh_json_is(block, SH_JSON_OBJECT)) {
    fail(r, SH_ERR_FORMAT, "is not an object", "rope_parameters");
    return NULL;
  }
  for (size_t i = 0; i < block->len && !r->rc; i++) {
    if (sh_json_is(&block->members[i].value, SH_JSON_OBJECT))
      fail(r, SH_ERR_UNSUPPORTED, "by layer type is not supported", "rope_parameters");
  }
  return block;
}

/* A field of the block, else of the config, else of rope_parameters, else the default. */
static double rope_field(reader *r, const sh_json *block, const char *key, double def) {
  const sh_json *at[] = {block, r->text, sh_json_get(r->text, "rope_parameters")};
  for (int i = 0; i < 3; i++) {
    if (present(at[i], key)) return get_double_of(r, at[i], key, def);
  }
  return def;
}

/* What a kind of scaling cannot do without. transformers refuses the same; a default would be a guess about every position. */
static void want_rope_fields(reader *r, const sh_json *block, sh_rope_kind kind) {
  static const char *const LLAMA3[] = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL};
  static const char *const OTHERS[] = {"factor", NULL};
  const char *const *names = kind == SH_ROPE_LLAMA3 ? LLAMA3 : OTHERS;
  for (int i = 0; kind != SH_ROPE_NONE && names[i] && !r->rc; i++)
    if (!present(block, names[i]))
      r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s is missing: rope scaling %s (rope_type) needs it", names[i], sh_rope_kind_name(kind));
}

static void read_yarn(reader *r, const sh_json *block, sh_rope *p) {
  p->beta_fast = get_double_of(r, block, "beta_fast", 32);
  p->beta_slow = get_double_of(r, block, "beta_slow", 1);
  p->truncate = get_bool(r, block, "truncate", true);
  p->attention_factor = get_double_of(r, block, "attention_factor", 0);
  double m = get_double_of(r, block, "mscale", 0), all = get_double_of(r, block, "mscale_all_dim", 0);
  if (p->attention_factor == 0 && m != 0 && all != 0)
    p->attention_factor = sh_rope_yarn_mscale(p->factor, m) / sh_rope_yarn_mscale(p->factor, all);
  if (present(block, "attention_factor") && !(p->attention_factor > 0)) fail(r, SH_ERR_FORMAT, "must be above 0", "attention_factor");
}

static void read_rope(reader *r, sh_config *c, double def_partial) {
  const sh_json *block = rope_block(r);
  sh_rope p = {.kind = rope_kind_of(r, block), .truncate = true};
  double partial = rope_field(r, block, "partial_rotary_factor", def_partial);
  p.theta = rope_field(r, block, "rope_theta", 10000);
  if (!r->rc && !(partial > 0 && partial <= 1)) fail(r, SH_ERR_FORMAT, "must be above 0 and at most 1", "partial_rotary_factor");
  if (!r->rc) want_rope_fields(r, block, p.kind);
  if (r->rc) return;
  p.dim = (int)(c->head_dim * partial);
  if (p.dim < 2 || p.dim % 2) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%d rotary dims (head_dim %d, partial_rotary_factor %g); an even number is wanted", p.dim,
                    c->head_dim, partial);
    return;
  }
  p.original_max = get_double_of(r, block, "original_max_position_embeddings", c->max_position);
  p.factor = p.kind == SH_ROPE_NONE ? 1 : get_double_of(r, block, "factor", 0);
  if (p.kind == SH_ROPE_YARN) read_yarn(r, block, &p);
  p.low_freq = get_double_of(r, block, "low_freq_factor", 0);
  p.high_freq = get_double_of(r, block, "high_freq_factor", 0);
  if (!r->rc) r->rc = sh_config_set_rope(c, &p, r->e);
}

/* --- Architectures */

static void read_common(reader *r, sh_config *c, const int64_t def[7]) {
  get_int(r, "vocab_size", def[0], 1, SH_MAX_VOCAB, &c->vocab_size);
  get_int(r, "hidden_size", def[1], 1, SH_MAX_WIDTH, &c->hidden);
  get_int(r, "num_hidden_layers", def[2], 1, SH_MAX_LAYERS, &c->n_layers);
  get_int(r, "num_attention_heads", def[3], 1, SH_MAX_HEADS, &c->n_heads);
  get_int(r, "num_key_value_heads", def[4] ? def[4] : c->n_heads, 1, SH_MAX_HEADS, &c->n_kv_heads);
  get_int(r, "head_dim", def[5] ? def[5] : c->n_heads ? c->hidden / c->n_heads : 0, 2, SH_MAX_HEAD_DIM, &c->head_dim);
  get_int(r, "max_position_embeddings", def[6], 1, SH_MAX_POSITION, &c->max_position);
  c->rms_eps = get_double_of(r, r->text, "rms_norm_eps", 1e-6);
  c->attn_bias = get_bool(r, r->text, "attention_bias", false);
  c->tied = get_bool(r, present(r->top, "tie_word_embeddings") ? r->top : r->text, "tie_word_embeddings", false);
  read_dtype(r, c);
  if (!r->rc) read_layer_types(r, c);
}

static void read_llama(reader *r, sh_config *c) {
  static const int64_t DEF[7] = {32000, 4096, 32, 32, 0, 0, 2048};
  read_common(r, c, DEF);
  get_int(r, "intermediate_size", 11008, 1, SH_MAX_WIDTH, &c->ffn);
  if (!r->rc) read_rope(r, c, 1);
  if (!r->rc) read_token_ids(r, c, 1, 2);
}

static void read_qwen35(reader *r, sh_config *c) {
  static const int64_t DENSE[7] = {248320, 4096, 32, 16, 4, 256, 32768}, MOE[7] = {248320, 2048, 40, 16, 2, 256, 32768};
  bool moe = c->arch == SH_ARCH_QWEN35_MOE;
  read_common(r, c, moe ? MOE : DENSE);
  if (moe) {
    get_int(r, "num_experts", 256, 1, SH_MAX_EXPERTS, &c->n_experts);
    get_int(r, "num_experts_per_tok", 8, 1, SH_MAX_EXPERTS, &c->experts_per_tok);
    get_int(r, "moe_intermediate_size", 512, 1, SH_MAX_WIDTH, &c->moe_ffn);
    get_int(r, "shared_expert_intermediate_size", 512, 1, SH_MAX_WIDTH, &c->shared_ffn);
    c->norm_topk_prob = true;
  } else {
    get_int(r, "intermediate_size", 12288, 1, SH_MAX_WIDTH, &c->ffn);
  }
  c->attn_output_gate = get_bool(r, r->text, "attn_output_gate", true);
  c->qk_norm = true;
  get_int(r, "linear_num_key_heads", 16, 1, SH_MAX_HEADS, &c->lin_k_heads);
  get_int(r, "linear_num_value_heads", 32, 1, SH_MAX_HEADS, &c->lin_v_heads);
  get_int(r, "linear_key_head_dim", 128, 1, SH_MAX_HEAD_DIM, &c->lin_k_dim);
  get_int(r, "linear_value_head_dim", 128, 1, SH_MAX_HEAD_DIM, &c->lin_v_dim);
  get_int(r, "linear_conv_kernel_dim", 4, 2, SH_MAX_CONV, &c->conv_kernel);
  get_int(r, "mtp_num_hidden_layers", 0, 0, 16, &c->mtp_layers);
  if (get_bool(r, r->text, "mtp_use_dedicated_embeddings", false)) c->mtp_layers = 0; /* such a head is left unbound */
  if (!r->rc) read_rope(r, c, 0.25);
  if (!r->rc) read_token_ids(r, c, -1, -1);
}

/* The model_type decides; a nested text_config must agree with it. */
static void read_arch(reader *r, sh_config *c) {
  static const struct {
    const char *name;
    sh_arch arch;
  } KNOWN[] = {{"qwen3_5", SH_ARCH_QWEN35},
               {"qwen3_5_text", SH_ARCH_QWEN35},
               {"qwen3_5_moe", SH_ARCH_QWEN35_MOE},
               {"qwen3_5_moe_text", SH_ARCH_QWEN35_MOE},
               {"llama", SH_ARCH_LLAMA},
               {NULL, SH_ARCH_LLAMA}};
  const sh_json *obj[] = {r->top, r->text};
  for (int i = 0; i < (r->top == r->text ? 1 : 2) && !r->rc; i++) {
    const sh_json *v = present(obj[i], "model_type");
    int k = 0;
    if (i == 1 && !v) return; /* the outer type says enough */
    if (!sh_json_is(v, SH_JSON_STRING)) {
      fail(r, SH_ERR_FORMAT, "is missing: not the config of a model", "model_type");
      return;
    }
    while (KNOWN[k].name && !sh_json_eq_str(v, KNOWN[k].name)) k++;
    if (!KNOWN[k].name) {
      r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED,
                      "model_type %.100s is not supported; qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text and llama are", v->s);
    } else if (i == 1 && KNOWN[k].arch != c->arch) {
      r->rc = sh_fail(r->e, SH_ERR_FORMAT, "text_config.model_type %.100s contradicts the outer model_type", v->s);
    } else {
      c->arch = KNOWN[k].arch;
    }
  }
}

int sh_config_from_json(sh_config *c, const sh_json *root, sh_error *e) {
  memset(c, 0, sizeof *c);
  c->bos_id = -1;
  const sh_json *text = present(root, "text_config");
  reader r = {root, text ? text : root, e, 0};
  if (!sh_json_is(root, SH_JSON_OBJECT)) return sh_fail(e, SH_ERR_FORMAT, "an object is wanted");
  if (!sh_json_is(r.text, SH_JSON_OBJECT)) return sh_fail(e, SH_ERR_FORMAT, "text_config is not an object");
  read_arch(&r, c);
  if (!r.rc) check_quantization(&r);
  if (!r.rc) refuse_unknown_math(&r);
  if (r.rc) return r.rc;
  if (c->arch == SH_ARCH_LLAMA) read_llama(&r, c);
  else read_qwen35(&r, c);
  return r.rc ? r.rc : sh_config_check(c, e);
}

/* --- For both sources */

int sh_config_set_rope(sh_config *c, const sh_rope *p, sh_error *e) {
  c->rotary_dim = p->dim;
  c->rope_theta = p->theta;
  c->rope_kind = p->kind;
  c->rope_factor = p->kind == SH_ROPE_NONE ? 1 : p->factor;
  int rc = sh_rope_frequencies(p, c->inv_freq, &c->rope_mscale, e);
  if (rc || p->kind != SH_ROPE_YARN) return rc;
  double reach = p->original_max * p->factor; /* a config may keep the trained length beside the scaling that extends it */
  if (reach > c->max_position) c->max_position = reach < SH_MAX_POSITION ? (int)reach : SH_MAX_POSITION;
  return 0;
}

int sh_config_check(sh_config *c, sh_error *e) {
  c->n_linear = c->n_full = 0;
  for (int i = 0; i < c->n_layers; i++) {
    if (c->layer_is_linear[i]) c->n_linear++;
    else c->n_full++;
  }
  if (!(c->rms_eps > 0 && c->rms_eps < 1))
    return sh_fail(e, SH_ERR_FORMAT, "rms_norm_eps is %g; a small number above 0 is wanted", c->rms_eps);
  if (c->n_heads % c->n_kv_heads)
    return sh_fail(e, SH_ERR_FORMAT, "%d query heads cannot share %d key heads evenly", c->n_heads, c->n_kv_heads);
  if (c->lin_k_heads && c->lin_v_heads % c->lin_k_heads)
    return sh_fail(e, SH_ERR_FORMAT, "%d linear value heads cannot share %d key heads evenly", c->lin_v_heads, c->lin_k_heads);
  if (c->experts_per_tok > c->n_experts)
    return sh_fail(e, SH_ERR_FORMAT, "%d experts per token of only %d", c->experts_per_tok, c->n_experts);
  if (c->rotary_dim > c->head_dim) return sh_fail(e, SH_ERR_FORMAT, "%d rotary dims in heads of %d", c->rotary_dim, c->head_dim);
  return 0;
}

/* Where the two places contradict each other about tying, the file itself decides. */
static void settle_tied(sh_config *c, const sh_json *root, const sh_ckpt *ck) {
  static const char *const HEADS[] = {"lm_head.weight", "lm_head.qweight", "lm_head.weight_packed"};
  const sh_json *top = sh_json_get(root, "tie_word_embeddings"), *text = sh_json_path(root, "text_config.tie_word_embeddings");
  if (sh_json_is(top, SH_JSON_BOOL) && sh_json_is(text, SH_JSON_BOOL) && top->b != text->b) {
    c->tied = true;
    for (int i = 0; i < 3; i++) c->tied = c->tied && !sh_ckpt_find(ck, HEADS[i]);
  }
}

int sh_config_load(sh_config *c, const sh_ckpt *ck, sh_error *e) {
  int rc;
  if (sh_ckpt_is_gguf(ck)) {
    rc = sh_config_from_gguf(c, sh_ckpt_gguf(ck), e);
    return rc ? sh_fail_in(e, rc, "%s", sh_ckpt_path(ck)) : 0;
  }
  memset(c, 0, sizeof *c);
  if (!sh_ckpt_config(ck)) return sh_fail(e, SH_ERR_NOT_FOUND, "%s has no config.json", sh_ckpt_path(ck));
  rc = sh_config_from_json(c, sh_ckpt_config(ck), e);
  if (rc) return sh_fail_in(e, rc, "%s/config.json", sh_ckpt_path(ck));
  settle_tied(c, sh_ckpt_config(ck), ck);
  return 0;
}

const char *sh_arch_name(sh_arch a) {
  switch (a) {
  case SH_ARCH_QWEN35: return "qwen3_5";
  case SH_ARCH_QWEN35_MOE: return "qwen3_5_moe";
  case SH_ARCH_LLAMA: return "llama";
  }
  return "?";
}

const char *sh_rope_kind_name(sh_rope_kind k) {
  static const char *const NAMES[] = {
      [SH_ROPE_NONE] = "none", [SH_ROPE_LINEAR] = "linear", [SH_ROPE_LLAMA3] = "llama3", [SH_ROPE_YARN] = "yarn"};
  return (unsigned)k < sizeof NAMES / sizeof NAMES[0] ? NAMES[k] : "?";
}

int sh_config_q_rows(const sh_config *c) { return c->n_heads * c->head_dim * (c->attn_output_gate ? 2 : 1); }
int sh_config_conv_channels(const sh_config *c) { return 2 * c->lin_k_heads * c->lin_k_dim + c->lin_v_heads * c->lin_v_dim; }
size_t sh_config_state_floats(const sh_config *c) { return (size_t)c->lin_v_heads * (size_t)c->lin_k_dim * (size_t)c->lin_v_dim; }
size_t sh_config_conv_floats(const sh_config *c) {
  return c->conv_kernel ? (size_t)sh_config_conv_channels(c) * (size_t)(c->conv_kernel - 1) : 0;
}

const char *sh_config_describe(const sh_config *c, char *buf, size_t size) {
  char ffn[80], lin[80] = "", rope[48] = "";
  if (c->n_experts) snprintf(ffn, sizeof ffn, "%d experts of %d, %d per token", c->n_experts, c->moe_ffn, c->experts_per_tok);
  else snprintf(ffn, sizeof ffn, "ffn %d", c->ffn);
  if (c->n_linear)
    snprintf(lin, sizeof lin, " (%d linear of %d:%d heads, %d full)", c->n_linear, c->lin_v_heads, c->lin_k_heads, c->n_full);
  if (c->rope_kind) snprintf(rope, sizeof rope, ", rope %s x%g", sh_rope_kind_name(c->rope_kind), c->rope_factor);
  snprintf(buf, size, "%s, %d layers%s, hidden %d, %s, heads %d:%d of %d, vocabulary %d%s%s", sh_arch_name(c->arch), c->n_layers, lin,
           c->hidden, ffn, c->n_heads, c->n_kv_heads, c->head_dim, c->vocab_size, c->tied ? " tied" : "", rope);
  return buf;
}
