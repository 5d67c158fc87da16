/* The model's dimensions from GGUF metadata (qwen35, qwen35moe, llama).
 *
 * Called at load, by one thread. Keys are "{architecture}.name". Where the tensors themselves say it (vocabulary, tying, which layers are
 * linear, biases), they are believed instead of a key: the converter writes only an interval of the layer pattern, and vocabulary keys are
 * optional. Frequencies come from the keys and, for llama3 scaling, from the factors of the tensor rope_freqs.weight, which the file stores
 * in place of the parameters. */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "formats/dequant.h"
#include "model/config_internal.h"
#include "model/rope.h"

typedef struct reader {
  const sh_gguf *g;
  const char *arch; /* prefix of the keys */
  sh_error *e;
  int rc; /* first error */
} reader;

static const char *full_key(const reader *r, const char *name, char buf[128]) {
  snprintf(buf, 128, "%s.%s", r->arch, name);
  return buf;
}

/* def < min: the key must be there. */
static void get_int(reader *r, const char *name, int64_t def, int64_t min, int64_t max, int *out) {
  char key[128];
  int64_t v = def;
  *out = 0;
  if (r->rc) return;
  int rc = sh_gguf_int(r->g, full_key(r, name, key), &v);
  if (rc == SH_ERR_NOT_FOUND && def < min) r->rc = sh_fail(r->e, SH_ERR_FORMAT, "the key %s is missing", key);
  else if (rc == SH_ERR_FORMAT) r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s is not a single whole number", key);
  else if (v < min || v > max)
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s is %lld; %lld to %lld is wanted", key, (long long)v, (long long)min, (long long)max);
  else *out = (int)v;
}

static double get_double(reader *r, const char *name, double def) {
  char key[128];
  double v = def;
  if (sh_gguf_float(r->g, full_key(r, name, key), &v) == SH_ERR_FORMAT && !r->rc)
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s is not a number", key);
  return v;
}

/* Keys that change the mathematics must be absent or have the neutral value. */
static void want_neutral(reader *r, const char *name, double neutral) {
  char key[128];
  double v = get_double(r, name, neutral);
  if (!r->rc && v != neutral) r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "%s = %g is not supported", full_key(r, name, key), v);
}

static bool str_is(const char *s, size_t n, const char *want) { return strlen(want) == n && memcmp(s, want, n) == 0; }

static void read_arch(reader *r, sh_config *c) {
  static const struct {
    const char *name;
    sh_arch arch;
  } KNOWN[] = {{"qwen35", SH_ARCH_QWEN35}, {"qwen35moe", SH_ARCH_QWEN35_MOE}, {"llama", SH_ARCH_LLAMA}};
  const char *s;
  size_t n;
  if (sh_gguf_str(r->g, "general.architecture", &s, &n)) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "the key general.architecture is missing");
    return;
  }
  for (int i = 0; i < 3; i++) {
    if (!str_is(s, n, KNOWN[i].name)) continue;
    r->arch = KNOWN[i].name;
    c->arch = KNOWN[i].arch;
    return;
  }
  char shown[64]; /* the file's bytes are not to be trusted in a message */
  size_t k = 0;
  for (; k < n && k < sizeof shown - 1; k++) shown[k] = s[k] > ' ' && s[k] < 127 ? s[k] : '?';
  shown[k] = 0;
  r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "the architecture %s is not supported; qwen35, qwen35moe and llama are", shown);
}

static void read_vocabulary(reader *r, sh_config *c) {
  const sh_ftensor *t = sh_gguf_find(r->g, "token_embd.weight");
  if (!t || t->n_dims != 2 || t->dims[0] > SH_MAX_VOCAB) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "the matrix token_embd.weight is missing or has no sensible size");
    return;
  }
  c->vocab_size = (int)t->dims[0];
  c->dtype = t->type;
  c->tied = !sh_gguf_find(r->g, "output.weight");
}

/* A layer is linear when it has ssm_a. */
static void read_layers(reader *r, sh_config *c) {
  int blocks = 0;
  get_int(r, "block_count", -1, 1, SH_MAX_LAYERS, &blocks);
  get_int(r, "nextn_predict_layers", 0, 0, 16, &c->mtp_layers);
  if (r->rc) return;
  c->n_layers = blocks - c->mtp_layers;
  if (c->n_layers < 1) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%d blocks, %d of them for prediction, leave no layer", blocks, c->mtp_layers);
    return;
  }
  for (int i = 0; i < c->n_layers; i++) {
    char name[48];
    snprintf(name, sizeof name, "blk.%d.ssm_a", i);
    c->layer_is_linear[i] = c->arch != SH_ARCH_LLAMA && sh_gguf_find(r->g, name);
  }
}

static void read_attention(reader *r, sh_config *c) {
  int value_length;
  char name[48];
  get_int(r, "embedding_length", -1, 1, SH_MAX_WIDTH, &c->hidden);
  get_int(r, "attention.head_count", -1, 1, SH_MAX_HEADS, &c->n_heads);
  get_int(r, "attention.head_count_kv", c->n_heads, 1, SH_MAX_HEADS, &c->n_kv_heads);
  get_int(r, "attention.key_length", c->n_heads ? c->hidden / c->n_heads : 0, 2, SH_MAX_HEAD_DIM, &c->head_dim);
  get_int(r, "attention.value_length", c->head_dim, c->head_dim, c->head_dim, &value_length);
  get_int(r, "context_length", -1, 1, SH_MAX_POSITION, &c->max_position);
  c->rms_eps = get_double(r, "attention.layer_norm_rms_epsilon", 1e-6);
  want_neutral(r, "attention.sliding_window", 0);
  want_neutral(r, "attention.clamp_kqv", 0);
  want_neutral(r, "attention.scale", 0);
  want_neutral(r, "logit_scale", 0);
  for (int i = 0; i < c->n_layers; i++) {
    snprintf(name, sizeof name, "blk.%d.attn_q.bias", i);
    c->attn_bias |= sh_gguf_find(r->g, name) != NULL;
  }
}

static void read_qwen35(reader *r, sh_config *c) {
  int inner = 0;
  if (c->arch == SH_ARCH_QWEN35_MOE) {
    get_int(r, "expert_count", -1, 1, SH_MAX_EXPERTS, &c->n_experts);
    get_int(r, "expert_used_count", -1, 1, SH_MAX_EXPERTS, &c->experts_per_tok);
    get_int(r, "expert_feed_forward_length", -1, 1, SH_MAX_WIDTH, &c->moe_ffn);
    get_int(r, "expert_shared_feed_forward_length", c->moe_ffn, 1, SH_MAX_WIDTH, &c->shared_ffn);
    c->norm_topk_prob = true;
  } else {
    get_int(r, "feed_forward_length", -1, 1, SH_MAX_WIDTH, &c->ffn);
  }
  c->attn_output_gate = true;
  c->qk_norm = true;
  c->lin_v_tiled = true;
  get_int(r, "ssm.conv_kernel", -1, 2, SH_MAX_CONV, &c->conv_kernel);
  get_int(r, "ssm.state_size", -1, 1, SH_MAX_HEAD_DIM, &c->lin_k_dim);
  get_int(r, "ssm.group_count", -1, 1, SH_MAX_HEADS, &c->lin_k_heads);
  get_int(r, "ssm.time_step_rank", -1, 1, SH_MAX_HEADS, &c->lin_v_heads);
  get_int(r, "ssm.inner_size", -1, 1, SH_MAX_WIDTH, &inner);
  if (r->rc) return;
  c->lin_v_dim = inner / c->lin_v_heads;
  if (inner % c->lin_v_heads || c->lin_v_dim > SH_MAX_HEAD_DIM) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s.ssm.inner_size %d is no sensible multiple of %d value heads", r->arch, inner, c->lin_v_heads);
  }
}

/* --- Rotary embedding */

static sh_rope_kind scaling_kind(reader *r, double factor) {
  char key[128];
  const char *s;
  size_t n;
  int rc = sh_gguf_str(r->g, full_key(r, "rope.scaling.type", key), &s, &n);
  if (rc == SH_ERR_NOT_FOUND) return factor != 1 ? SH_ROPE_LINEAR : SH_ROPE_NONE; /* files from before the type key mean linear */
  if (!rc && str_is(s, n, "none")) return SH_ROPE_NONE;
  if (!rc && str_is(s, n, "linear")) return SH_ROPE_LINEAR;
  if (!rc && str_is(s, n, "yarn")) return SH_ROPE_YARN;
  if (!r->rc) r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "%s is not supported; none, linear and yarn are", key);
  return SH_ROPE_NONE;
}

/* rope_freqs.weight [rotary / 2]: divisors of the frequencies (llama3 scaling, computed by the converter). */
static void apply_rope_freqs(reader *r, sh_config *c) {
  const sh_ftensor *t = sh_gguf_find(r->g, "rope_freqs.weight");
  if (!t) return;
  if (t->type != SH_F32 || t->n_dims != 1 || t->dims[0] != c->rotary_dim / 2) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "tensor rope_freqs.weight: F32 [%d] is wanted", c->rotary_dim / 2);
    return;
  }
  float f[SH_MAX_HEAD_DIM / 2];
  sh_dequant(SH_F32, t->data, t->dims[0], f);
  for (int i = 0; i < c->rotary_dim / 2; i++) {
    if (!(f[i] > 1e-6f && f[i] < 1e9f)) {
      r->rc = sh_fail(r->e, SH_ERR_FORMAT, "tensor rope_freqs.weight holds %g", (double)f[i]);
      return;
    }
    c->inv_freq[i] = (double)((float)c->inv_freq[i] / f[i]);
  }
}

static void read_rope(reader *r, sh_config *c) {
  double factor = get_double(r, "rope.scaling.factor", get_double(r, "rope.scale_linear", 1));
  sh_rope p = {.factor = factor == 0 ? 1 : factor, .truncate = true};
  p.kind = scaling_kind(r, p.factor);
  get_int(r, "rope.dimension_count", c->head_dim, 2, c->head_dim, &p.dim);
  p.theta = get_double(r, "rope.freq_base", 10000);
  p.original_max = get_double(r, "rope.scaling.original_context_length", c->max_position);
  p.beta_fast = get_double(r, "rope.scaling.yarn_beta_fast", 32);
  p.beta_slow = get_double(r, "rope.scaling.yarn_beta_slow", 1);
  double multiplier = get_double(r, "rope.scaling.attn_factor", 1);
  p.attention_factor = sh_rope_yarn_mscale(p.factor, 1) * multiplier;
  if (p.kind != SH_ROPE_YARN) want_neutral(r, "rope.scaling.attn_factor", 1);
  want_neutral(r, "rope.scaling.yarn_log_multiplier", 0);
  want_neutral(r, "rope.scaling.yarn_ext_factor", p.kind == SH_ROPE_YARN ? 1 : 0);
  if (!r->rc && p.dim % 2) r->rc = sh_fail(r->e, SH_ERR_FORMAT, "%s.rope.dimension_count %d is odd", r->arch, p.dim);
  if (!r->rc && (sh_gguf_find(r->g, "rope_factors_long.weight") || sh_gguf_find(r->g, "rope_factors_short.weight"))) {
    r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "rope scaling longrope (rope_factors_long.weight) is not supported");
  }
  if (r->rc) return;
  r->rc = sh_config_set_rope(c, &p, r->e);
  if (!r->rc) apply_rope_freqs(r, c);
}

static void read_token_ids(const reader *r, sh_config *c) {
  static const char *const ENDS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
  int64_t id;
  for (int i = 0; i < 2; i++) {
    if (sh_gguf_int(r->g, ENDS[i], &id) == 0) sh_config_add_eos(c, id);
  }
  if (sh_gguf_int(r->g, "tokenizer.ggml.bos_token_id", &id) == 0 && id >= 0 && id < c->vocab_size) c->bos_id = (int)id;
}

int sh_config_from_gguf(sh_config *c, const sh_gguf *g, sh_error *e) {
  memset(c, 0, sizeof *c);
  c->bos_id = -1;
  c->from_gguf = true;
  reader r = {g, "", e, 0};
  read_arch(&r, c);
  if (!r.rc) read_vocabulary(&r, c);
  if (!r.rc) read_layers(&r, c);
  if (!r.rc) read_attention(&r, c);
  if (!r.rc && c->arch != SH_ARCH_LLAMA) read_qwen35(&r, c);
  if (!r.rc && c->arch == SH_ARCH_LLAMA) {
    c->rope_interleaved = true; /* the converter permutes q and k rows for it */
    want_neutral(&r, "expert_count", 0);
    get_int(&r, "feed_forward_length", -1, 1, SH_MAX_WIDTH, &c->ffn);
  }
  if (!r.rc) read_rope(&r, c);
  if (!r.rc) read_token_ids(&r, c);
  return r.rc ? r.rc : sh_config_check(c, e);
}
