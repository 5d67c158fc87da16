/* A random model as a Hugging Face folder: config.json, and shards through the quantizer's writer.
 *
 * One thread. The writer (quant/writer.c) makes OUT.partial, looks whether the disk has room, and renames it at the end; a part of it is a
 * shard here, so nothing is written twice. Since the bytes follow from the options, a run that was interrupted is simply begun again: whole
 * shards are kept. config.json is what a release has, without the vision tower's part; what names the quantization comes from the quantizer
 * too (quant/qconfig.c), but for FP8, which it does not write. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "synth/run.h"

#define SHARD_BYTES 4000000000ll
enum { MAX_CONFIG = 64 << 20 };

/* --- config.json */

static void put_rope(sh_jw *w) {
  sh_jw_key(w, "rope_parameters");
  sh_jw_obj(w);
  sh_jw_kbool(w, "mrope_interleaved", true);
  sh_jw_key(w, "mrope_section");
  sh_jw_arr(w);
  for (int i = 0; i < 3; i++) sh_jw_int(w, i < 2 ? 11 : 10);
  sh_jw_end_arr(w);
  sh_jw_kdouble(w, "partial_rotary_factor", (double)SH_SYNTH_ROTARY / SH_SYNTH_HEAD_DIM);
  sh_jw_kint(w, "rope_theta", 10000000);
  sh_jw_kstr(w, "rope_type", "default");
  sh_jw_end_obj(w);
}

static void put_ffn(sh_jw *w, const sh_synth_shape *s) {
  if (!s->n_experts) {
    sh_jw_kint(w, "intermediate_size", s->ffn);
    return;
  }
  sh_jw_kint(w, "moe_intermediate_size", s->moe_ffn);
  sh_jw_kint(w, "shared_expert_intermediate_size", s->shared_ffn);
  sh_jw_kint(w, "num_experts", s->n_experts);
  sh_jw_kint(w, "num_experts_per_tok", s->top_k);
}

static void put_layer_types(sh_jw *w, int layers) {
  sh_jw_kint(w, "full_attention_interval", SH_SYNTH_INTERVAL);
  sh_jw_key(w, "layer_types");
  sh_jw_arr(w);
  for (int i = 0; i < layers; i++) sh_jw_str(w, (i + 1) % SH_SYNTH_INTERVAL ? "linear_attention" : "full_attention");
  sh_jw_end_arr(w);
}

static void put_text_config(sh_jw *w, const sh_synth_run *u) {
  const sh_synth_shape *s = u->s;
  sh_jw_key(w, "text_config");
  sh_jw_obj(w);
  sh_jw_kstr(w, "model_type", s->n_experts ? "qwen3_5_moe_text" : "qwen3_5_text");
  sh_jw_kbool(w, "attention_bias", false);
  sh_jw_kbool(w, "attn_output_gate", true);
  sh_jw_kstr(w, "dtype", u->f->type == SH_F16 ? "float16" : "bfloat16");
  sh_jw_kint(w, "eos_token_id", u->tok.endoftext);
  sh_jw_kint(w, "head_dim", SH_SYNTH_HEAD_DIM);
  sh_jw_kstr(w, "hidden_act", "silu");
  sh_jw_kint(w, "hidden_size", s->hidden);
  put_ffn(w, s);
  put_layer_types(w, u->layers);
  sh_jw_kint(w, "linear_conv_kernel_dim", SH_SYNTH_CONV);
  sh_jw_kint(w, "linear_key_head_dim", SH_SYNTH_LIN_DIM);
  sh_jw_kint(w, "linear_num_key_heads", s->lin_k_heads);
  sh_jw_kint(w, "linear_num_value_heads", s->lin_v_heads);
  sh_jw_kint(w, "linear_value_head_dim", SH_SYNTH_LIN_DIM);
  sh_jw_kstr(w, "mamba_ssm_dtype", "float32");
  sh_jw_kint(w, "max_position_embeddings", 262144);
  sh_jw_kint(w, "mtp_num_hidden_layers", 0);
  sh_jw_kint(w, "num_attention_heads", s->n_heads);
  sh_jw_kint(w, "num_hidden_layers", u->layers);
  sh_jw_kint(w, "num_key_value_heads", s->n_kv_heads);
  sh_jw_kdouble(w, "rms_norm_eps", 1e-6);
  put_rope(w);
  sh_jw_kbool(w, "tie_word_embeddings", s->tied);
  sh_jw_kint(w, "vocab_size", s->vocab);
  sh_jw_end_obj(w);
}

static void put_fp8(sh_jw *w, const sh_synth_run *u) {
  sh_jw_key(w, "quantization_config");
  sh_jw_obj(w);
  sh_jw_kstr(w, "activation_scheme", "dynamic");
  sh_jw_kstr(w, "fmt", "e4m3");
  sh_jw_key(w, "modules_to_not_convert");
  sh_jw_arr(w);
  for (int i = 0; i < u->list.n_left; i++) sh_jw_str(w, u->list.left[i]);
  if (u->s->tied) sh_jw_str(w, "lm_head");
  sh_jw_end_arr(w);
  sh_jw_kstr(w, "quant_method", "fp8");
  sh_jw_key(w, "weight_block_size");
  sh_jw_arr(w);
  for (int i = 0; i < 2; i++) sh_jw_int(w, 128);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

static void put_config(sh_jw *w, const sh_synth_run *u) {
  bool moe = u->s->n_experts > 0;
  sh_jw_obj(w);
  sh_jw_key(w, "architectures");
  sh_jw_arr(w);
  sh_jw_str(w, moe ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration");
  sh_jw_end_arr(w);
  sh_jw_kbool(w, "language_model_only", true);
  sh_jw_kstr(w, "model_type", moe ? "qwen3_5_moe" : "qwen3_5");
  put_text_config(w, u);
  sh_jw_kbool(w, "tie_word_embeddings", u->s->tied);
  if (u->f->layout == SH_SL_FP8) put_fp8(w, u);
  sh_jw_end_obj(w);
}

static sh_qscheme scheme_of(const sh_synth_run *u) {
  sh_synth_layout l = u->f->layout;
  bool int8 = l == SH_SL_INT8;
  return (sh_qscheme){.format = l == SH_SL_AWQ    ? SH_QF_AWQ
                                : l == SH_SL_GPTQ ? SH_QF_GPTQ
                                                  : SH_QF_CT,
                      .bits = int8 ? 8 : 4,
                      .group = int8 ? -1 : u->o->group,
                      .symmetric = l != SH_SL_AWQ,
                      .int8_activations = int8,
                      .ignored = u->list.left,
                      .n_ignored = u->list.n_left};
}

static int config_text(const sh_synth_run *u, sh_buf *out, sh_error *e) {
  sh_synth_layout l = u->f->layout;
  sh_buf plain;
  sh_jw w;
  sh_json *root = NULL;
  sh_arena *a = sh_arena_new(MAX_CONFIG);
  sh_buf_init(&plain, MAX_CONFIG);
  sh_jw_init(&w, &plain);
  put_config(&w, u);
  int rc = plain.failed || !a ? sh_fail(e, SH_ERR_NOMEM, "out of memory for config.json") : 0;
  if (!rc && (l == SH_SL_PLAIN || l == SH_SL_FP8)) {
    sh_json_indent(out, plain.p, plain.len);
    rc = out->failed ? sh_fail(e, out->failed, "out of memory for config.json") : 0;
  } else if (!rc) {
    const sh_qscheme s = scheme_of(u);
    rc = sh_json_parse(plain.p, plain.len, NULL, a, &root, e);
    if (!rc) rc = sh_qconfig_text(root, &s, out, e);
  }
  sh_arena_free(a);
  sh_buf_free(&plain);
  return rc;
}

/* --- Shards */

/* first [n + 1]: where shards begin in the list; bytes [n]. A shard has at least one tensor. */
typedef struct shards {
  int *first;
  int64_t *bytes;
  int n;
} shards;

static int plan_shards(const sh_synth_run *u, shards *s, sh_error *e) {
  int64_t most = u->o->shard_bytes > 0 ? u->o->shard_bytes : SHARD_BYTES;
  int n =
      (int)(u->list.bytes / most) * 2 + 2 < u->list.n ? (int)(u->list.bytes / most) * 2 + 2 : u->list.n; /* two neighbours exceed `most` */
  s->first = sh_calloc((size_t)n + 2, sizeof *s->first);
  s->bytes = sh_calloc((size_t)n + 1, sizeof *s->bytes);
  if (!s->first || !s->bytes) return sh_fail(e, SH_ERR_NOMEM, "out of memory for a plan of %d files", n);
  for (int i = 0; i < u->list.n; i++) {
    int64_t bytes = (int64_t)u->list.t[i].bytes;
    if (i > s->first[s->n] && bytes > most - s->bytes[s->n]) s->first[++s->n] = i;
    s->bytes[s->n] += bytes;
  }
  s->first[++s->n] = u->list.n;
  return 0;
}

static int write_shards(sh_synth_run *u, sh_qwriter *w, const shards *s, sh_error *e) {
  int rc = 0;
  for (int i = 0; i < s->n && !rc; i++) {
    if (sh_qwriter_has(w, i)) u->done += s->bytes[i];
    else rc = sh_qwriter_put_from(w, i, u->list.t + s->first[i], s->first[i + 1] - s->first[i], sh_synth_source, u, e);
  }
  return rc;
}

static int write_rest(sh_synth_run *u, sh_qwriter *w, sh_error *e) {
  char card[512];
  sh_buf config;
  sh_buf_init(&config, MAX_CONFIG);
  snprintf(card, sizeof card,
           "# %s, random weights\n\nThe shape of Qwen3.5-%s with %d layers, format %s, made by `sheng synth` with seed %llu to measure "
           "speed. It "
           "answers nonsense.\n",
           u->s->name, u->s->name, u->layers, u->f->name, (unsigned long long)u->o->seed);
  int rc = config_text(u, &config, e);
  if (!rc) rc = sh_qwriter_finish(w, config.p, card, u->tok.files, u->tok.n_files, e);
  sh_buf_free(&config);
  return rc;
}

int sh_synth_write_folder(sh_synth_run *u, sh_error *e) {
  char job[512];
  shards s = {0};
  sh_qwriter *w = NULL;
  snprintf(job, sizeof job, "sheng synth 2\tthe shape: %s\t--layers: %d\t--format: %s\t--group: %d\t--seed: %llu", u->s->name, u->layers,
           u->f->name, u->f->grouped ? u->o->group : 0, (unsigned long long)u->o->seed);
  int rc = plan_shards(u, &s, e);
  sh_qwriter_opts o = {.path = u->o->out,
                       .n_parts = s.n,
                       .bytes = s.bytes,
                       .shard_bytes = 1, /* each part is one */
                       .job = job,
                       .resume = true,
                       .go_on = "give the same command again"};
  if (!rc) rc = sh_qwriter_open(&w, &o, e);
  if (!rc) rc = write_shards(u, w, &s, e);
  if (!rc) rc = write_rest(u, w, e);
  sh_qwriter_close(w);
  u->r->n_files = s.n;
  sh_free(s.first);
  sh_free(s.bytes);
  return rc;
}
