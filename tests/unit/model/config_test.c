/* The config: every golden model, defaults, the rotary scalings against the reference's formulas computed with numpy, and what must be
 * refused by name. */
#include "model/config.h"

#include <math.h>

#include "unit/formats/files.h"

static void load(sh_config *c, const char *path) {
  sh_ckpt *ck;
  sh_error e = {0};
  if (sh_ckpt_open(&ck, path, 0, &e) || sh_config_load(c, ck, &e)) fail_msg("%s", e.text);
  sh_ckpt_close(ck);
}

static int parse(sh_config *c, const char *text, sh_error *e) {
  sh_arena *a = sh_arena_new(1 << 22);
  sh_json *root;
  if (!a || sh_json_parse(text, strlen(text), NULL, a, &root, e)) fail_msg("%s", e->text);
  int rc = sh_config_from_json(c, root, e);
  sh_arena_free(a);
  return rc;
}

static void accept(sh_config *c, const char *text) {
  sh_error e = {0};
  if (parse(c, text, &e)) fail_msg("%s: %s", text, e.text);
}

static void the_golden_folders_give_their_sizes(void **state) {
  (void)state;
  sh_config c;
  char buf[300];
  load(&c, "tests/golden/models/dense-real");
  assert_int_equal(c.arch, SH_ARCH_QWEN35);
  assert_false(c.from_gguf || c.tied || c.rope_interleaved || c.lin_v_tiled || c.attn_bias || c.norm_topk_prob);
  assert_true(c.attn_output_gate && c.qk_norm);
  assert_int_equal(c.vocab_size, 640);
  assert_int_equal(c.hidden, 256);
  assert_int_equal(c.ffn, 512);
  assert_int_equal(c.n_layers, 4);
  assert_int_equal(c.n_linear, 3);
  assert_int_equal(c.n_full, 1);
  assert_true(c.layer_is_linear[2] && !c.layer_is_linear[3]);
  assert_int_equal(c.n_heads, 4);
  assert_int_equal(c.n_kv_heads, 1);
  assert_int_equal(c.head_dim, 256);
  assert_int_equal(c.rotary_dim, 64);
  assert_int_equal(sh_config_q_rows(&c), 2048);
  assert_int_equal(sh_config_conv_channels(&c), 1024);
  assert_int_equal(sh_config_state_floats(&c), 4 * 128 * 128);
  assert_int_equal(sh_config_conv_floats(&c), 1024 * 3);
  assert_int_equal(c.mtp_layers, 1);
  assert_int_equal(c.max_position, 8192);
  assert_int_equal(c.n_eos, 1);
  assert_int_equal(c.eos_ids[0], 1);
  assert_int_equal(c.bos_id, -1);
  assert_int_equal(c.dtype, SH_BF16);
  assert_true(c.rms_eps == 1e-6 && c.rope_theta == 1e7);
  assert_string_equal(sh_config_describe(&c, buf, sizeof buf),
                      "qwen3_5, 4 layers (3 linear of 4:2 heads, 1 full), hidden 256, ffn 512, heads 4:1 of 256, vocabulary 640");

  load(&c, "tests/golden/models/dense-small");
  assert_true(c.tied);
  assert_int_equal(c.mtp_layers, 0);

  load(&c, "tests/golden/models/moe-real-fused");
  assert_int_equal(c.arch, SH_ARCH_QWEN35_MOE);
  assert_int_equal(c.n_experts, 16);
  assert_int_equal(c.experts_per_tok, 4);
  assert_int_equal(c.moe_ffn, 128);
  assert_int_equal(c.shared_ffn, 128);
  assert_int_equal(c.ffn, 0);
  assert_true(c.norm_topk_prob);
}

/* The converter changes layouts, not sizes. */
static void a_gguf_gives_the_same_sizes_as_its_folder(void **state) {
  (void)state;
  static const char *const PAIRS[][2] = {{"tests/golden/models/dense-small", "tests/golden/gguf/dense-small-bf16.gguf"},
                                         {"tests/golden/models/moe-small", "tests/golden/gguf/moe-small-Q8_0.gguf"},
                                         {"tests/golden/models/dense-real", "tests/golden/gguf/dense-real-Q4_0.gguf"}};
  for (int i = 0; i < 3; i++) {
    sh_config h, g;
    load(&h, PAIRS[i][0]);
    load(&g, PAIRS[i][1]);
    assert_true(g.from_gguf && g.lin_v_tiled && !g.rope_interleaved);
    assert_int_equal(g.arch, h.arch);
    assert_int_equal(g.tied, h.tied);
    assert_true(fabs(g.rms_eps - h.rms_eps) < 1e-12);
    static const size_t INTS[] = {offsetof(sh_config, vocab_size), offsetof(sh_config, hidden),          offsetof(sh_config, n_layers),
                                  offsetof(sh_config, n_heads),    offsetof(sh_config, n_kv_heads),      offsetof(sh_config, head_dim),
                                  offsetof(sh_config, ffn),        offsetof(sh_config, n_linear),        offsetof(sh_config, n_full),
                                  offsetof(sh_config, rotary_dim), offsetof(sh_config, lin_k_heads),     offsetof(sh_config, lin_v_heads),
                                  offsetof(sh_config, lin_k_dim),  offsetof(sh_config, lin_v_dim),       offsetof(sh_config, conv_kernel),
                                  offsetof(sh_config, n_experts),  offsetof(sh_config, experts_per_tok), offsetof(sh_config, moe_ffn),
                                  offsetof(sh_config, shared_ffn), offsetof(sh_config, max_position)};
    for (size_t k = 0; k < sizeof INTS / sizeof INTS[0]; k++) assert_memory_equal((char *)&g + INTS[k], (char *)&h + INTS[k], sizeof(int));
    assert_memory_equal(g.layer_is_linear, h.layer_is_linear, sizeof g.layer_is_linear);
    assert_memory_equal(g.inv_freq, h.inv_freq, (size_t)g.rotary_dim / 2 * sizeof(double));
    assert_int_equal(g.eos_ids[0], 594);
  }
}

static void smollm2_rotates_interleaved_pairs(void **state) {
  (void)state;
  const char *path = getenv("SHENG_SMOLLM2");
  if (!path || !*path) {
    print_message("skipped: SHENG_SMOLLM2 does not name the GGUF of SmolLM2-135M-Instruct\n");
    skip();
  }
  sh_config c;
  load(&c, path);
  assert_int_equal(c.arch, SH_ARCH_LLAMA);
  assert_true(c.rope_interleaved && c.tied && !c.qk_norm && !c.attn_output_gate);
  assert_int_equal(c.n_layers, 30);
  assert_int_equal(c.n_full, 30);
  assert_int_equal(c.n_heads, 9);
  assert_int_equal(c.n_kv_heads, 3);
  assert_int_equal(c.head_dim, 64);
  assert_int_equal(c.rotary_dim, 64);
  assert_int_equal(c.vocab_size, 49152);
  assert_int_equal(c.bos_id, 1);
  assert_int_equal(c.eos_ids[0], 2);
  assert_true(c.rope_theta == 1e5);
  assert_int_equal(sh_config_conv_floats(&c), 0);
}

static void absent_fields_have_the_defaults_of_transformers(void **state) {
  (void)state;
  sh_config c;
  accept(&c, "{\"model_type\":\"qwen3_5\",\"text_config\":{}}");
  assert_int_equal(c.vocab_size, 248320);
  assert_int_equal(c.hidden, 4096);
  assert_int_equal(c.n_layers, 32);
  assert_int_equal(c.n_full, 8);
  assert_int_equal(c.rotary_dim, 64);
  assert_int_equal(c.lin_v_heads, 32);
  assert_false(c.tied);
  assert_int_equal(c.n_eos, 0);
  accept(&c, "{\"model_type\":\"qwen3_5_moe_text\",\"full_attention_interval\":2,\"num_hidden_layers\":6}");
  assert_int_equal(c.n_full, 3);
  assert_int_equal(c.n_experts, 256);
  accept(&c, "{\"model_type\":\"llama\",\"hidden_size\":512,\"num_attention_heads\":8,\"head_dim\":null,\"num_key_value_heads\":null}");
  assert_int_equal(c.head_dim, 64);
  assert_int_equal(c.n_kv_heads, 8);
  assert_int_equal(c.rotary_dim, 64);
  assert_int_equal(c.ffn, 11008);
  assert_int_equal(c.max_position, 2048);
  assert_true(c.rope_theta == 10000);
  assert_int_equal(c.bos_id, 1);
  assert_int_equal(c.eos_ids[0], 2);
}

static void end_tokens_may_be_one_or_several(void **state) {
  (void)state;
  sh_config c;
  accept(&c, "{\"model_type\":\"llama\",\"eos_token_id\":[5,7,5,99999999],\"bos_token_id\":null}");
  assert_int_equal(c.n_eos, 2); /* once each, and none beyond the vocabulary */
  assert_int_equal(c.eos_ids[1], 7);
  assert_int_equal(c.bos_id, -1);
  accept(&c, "{\"model_type\":\"qwen3_5\",\"eos_token_id\":3,\"text_config\":{\"bos_token_id\":4}}");
  assert_int_equal(c.eos_ids[0], 3);
  assert_int_equal(c.bos_id, 4);
}

/* --- Rotary embedding. Expected numbers: the reference's formulas in float32 with numpy. */

static void near(double got, double want) {
  if (fabs(got - want) > 2.5e-7 * fabs(want)) fail_msg("%a in place of %a", got, want); /* two steps of float32 */
}

static void plain_frequencies_are_powers_of_theta(void **state) {
  (void)state;
  sh_config c;
  accept(&c, "{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"rope_type\":"
             "\"default\","
             "\"mrope_section\":[11,11,10],\"mrope_interleaved\":true}}");
  assert_int_equal(c.rope_kind, SH_ROPE_NONE);
  assert_true(c.rope_mscale == 1 && c.inv_freq[0] == 1);
  near(c.inv_freq[1], 0x1.3566560000000p-1);
  near(c.inv_freq[8], 0x1.235a720000000p-6);
  near(c.inv_freq[31], 0x1.635e880000000p-23);
  for (int i = 0; i < 32; i++) assert_true((double)(float)c.inv_freq[i] == c.inv_freq[i]);
}

static void old_style_rope_fields_mean_the_same(void **state) {
  (void)state;
  sh_config a, b;
  accept(&a, "{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{\"rope_theta\":5000,\"partial_rotary_factor\":0.5,\"rope_type\":"
             "\"linear\",\"factor\":3}}");
  accept(&b, "{\"model_type\":\"qwen3_5_text\",\"rope_theta\":5000,\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"linear\","
             "\"factor\":3}}");
  assert_int_equal(a.rotary_dim, 128);
  assert_int_equal(a.rope_kind, SH_ROPE_LINEAR);
  assert_memory_equal(a.inv_freq, b.inv_freq, sizeof a.inv_freq);
  near(a.inv_freq[0], 1.0 / 3);
  /* rope_scaling replaces the block beside it */
  accept(
      &b,
      "{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{\"rope_theta\":5000,\"partial_rotary_factor\":0.5,\"rope_type\":\"default\"},"
      "\"rope_scaling\":{\"type\":\"linear\",\"factor\":3}}");
  assert_memory_equal(a.inv_freq, b.inv_freq, sizeof a.inv_freq);
  accept(&b, "{\"model_type\":\"llama\",\"rope_scaling\":null}");
  assert_int_equal(b.rope_kind, SH_ROPE_NONE);
}

static void llama3_scaling_keeps_short_and_divides_long_wavelengths(void **state) {
  (void)state;
  sh_config c;
  accept(&c, "{\"model_type\":\"llama\",\"head_dim\":128,\"rope_theta\":500000.0,\"max_position_embeddings\":131072,\"rope_scaling\":{"
             "\"rope_type\":\"llama3\","
             "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}");
  assert_int_equal(c.rope_kind, SH_ROPE_LLAMA3);
  assert_int_equal(c.max_position, 131072);
  near(c.inv_freq[1], 0x1.a115820000000p-1);
  near(c.inv_freq[28], 0x1.a4ee400000000p-9);
  near(c.inv_freq[29], 0x1.1bfa0c0000000p-9);
  near(c.inv_freq[32], 0x1.132ba40000000p-11);
  near(c.inv_freq[34], 0x1.765ba40000000p-13);
  near(c.inv_freq[35], 0x1.90d10e0000000p-14);
  near(c.inv_freq[63], 0x1.4985fe0000000p-22);
}

static const char *YARN = "{\"model_type\":\"qwen3_5_text\",\"max_position_embeddings\":262144,\"rope_parameters\":{\"rope_type\":\"yarn\","
                          "\"rope_theta\":10000000,"
                          "\"partial_rotary_factor\":0.25,\"factor\":4.0,\"original_max_position_embeddings\":262144%s}}";

static void yarn_blends_by_rotations_and_scales_cos_and_sin(void **state) {
  (void)state;
  sh_config c;
  char text[500];
  snprintf(text, sizeof text, YARN, "");
  accept(&c, text);
  assert_int_equal(c.rope_kind, SH_ROPE_YARN);
  assert_int_equal(c.max_position, 1048576);
  near(c.rope_mscale, 1.138629436111989);
  near(c.inv_freq[14], 0x1.c603c40000000p-11);
  near(c.inv_freq[15], 0x1.f146c80000000p-12);
  near(c.inv_freq[18], 0x1.2eb81c0000000p-14);
  near(c.inv_freq[21], 0x1.25eddc0000000p-17);
  near(c.inv_freq[22], 0x1.025b560000000p-18);
  near(c.inv_freq[31], 0x1.635e880000000p-25);
  snprintf(text, sizeof text, YARN, ",\"attention_factor\":1.5");
  accept(&c, text);
  assert_true(c.rope_mscale == 1.5);
  snprintf(text, sizeof text, YARN, ",\"mscale\":2.0,\"mscale_all_dim\":1.0");
  accept(&c, text);
  near(c.rope_mscale, (0.2 * log(4) + 1) / (0.1 * log(4) + 1));
}

/* --- Refusals */

static void what_is_not_computed_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
    int code;
  } CASES[] = {
      {"{}", "model_type", SH_ERR_FORMAT},
      {"{\"model_type\":7}", "model_type", SH_ERR_FORMAT},
      {"{\"model_type\":\"mistral\"}", "mistral", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5\",\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"}}", "contradicts", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5\",\"text_config\":[]}", "text_config is not an object", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5\",\"layer_types\":\"full_attention\"}", "layer_types is not a list", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5\",\"quantization_config\":{\"quant_method\":\"hqq\"}}", "hqq", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5\",\"text_config\":{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}}", "MXFP4", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"quantization_config\":7}", "quantization_config", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", "hidden_act gelu", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5_text\",\"output_gate_type\":\"sigmoid\"}", "output_gate_type sigmoid", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"mlp_bias\":true}", "mlp_bias", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"sliding_window\":4096}", "sliding_window", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5_moe_text\",\"mlp_only_layers\":[0]}", "mlp_only_layers", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5_moe_text\",\"decoder_sparse_step\":2}", "decoder_sparse_step", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}", "sliding_attention",
       SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}", "linear_attention", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"qwen3_5_text\",\"layer_types\":[\"full_attention\"]}", "lists 1 layers", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":1,\"layer_types\":[3]}", "layer 0", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}}", "rope_type dynamic", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"longrope\"}}", "rope_type longrope", SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", "by layer type",
       SH_ERR_UNSUPPORTED},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\"}}", "factor", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"x\"}}", "factor", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "low_freq_factor", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":2}}", "beta_slow",
       SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attention_factor\":-1}}", "attention_factor",
       SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\"}}", "factor is missing", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", "factor is missing", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5_text\",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":null,"
       "\"original_max_position_embeddings\":4096}}",
       "factor is missing", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"low_freq_factor\":1,\"high_freq_factor\":4,"
       "\"original_max_position_embeddings\":8192}}",
       "factor is missing", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
       "\"high_freq_factor\":4}}",
       "original_max_position_embeddings is missing", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_theta\":0}", "rope_theta", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rope_theta\":1e300}", "rope_theta", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"partial_rotary_factor\":1.5}", "partial_rotary_factor", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"head_dim\":6,\"partial_rotary_factor\":0.5}", "3 rotary dims", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"rms_norm_eps\":0}", "rms_norm_eps", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"head_dim\":64,\"num_attention_heads\":9,\"num_key_value_heads\":2}", "9 query heads", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5_text\",\"linear_num_key_heads\":5,\"linear_num_value_heads\":8}", "8 linear value heads", SH_ERR_FORMAT},
      {"{\"model_type\":\"qwen3_5_moe_text\",\"num_experts\":4,\"num_experts_per_tok\":5}", "5 experts per token", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"tie_word_embeddings\":\"yes\"}", "tie_word_embeddings", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"eos_token_id\":\"</s>\"}", "eos_token_id", SH_ERR_FORMAT},
      {"{\"model_type\":\"llama\",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "limit of 16", SH_ERR_LIMIT},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    sh_config c;
    sh_error e = {0};
    int rc = parse(&c, CASES[i].text, &e);
    if (rc != CASES[i].code) fail_msg("%s: %d %s", CASES[i].text, rc, e.text);
    assert_says(e.text, CASES[i].says);
  }
}

static void absurd_sizes_are_refused(void **state) {
  (void)state;
  static const char *const KEYS[] = {"vocab_size",
                                     "hidden_size",
                                     "num_hidden_layers",
                                     "num_attention_heads",
                                     "num_key_value_heads",
                                     "head_dim",
                                     "max_position_embeddings",
                                     "num_experts",
                                     "num_experts_per_tok",
                                     "moe_intermediate_size",
                                     "shared_expert_intermediate_size",
                                     "linear_num_key_heads",
                                     "linear_num_value_heads",
                                     "linear_key_head_dim",
                                     "linear_value_head_dim",
                                     "linear_conv_kernel_dim",
                                     "full_attention_interval"};
  static const char *const VALUES[] = {"0", "-1", "1.5", "2147483648", "9223372036854775807", "1e400", "\"4\"", "[]", "true"};
  for (size_t k = 0; k < sizeof KEYS / sizeof KEYS[0]; k++) {
    for (size_t v = 0; v < sizeof VALUES / sizeof VALUES[0]; v++) {
      char text[200];
      sh_config c;
      sh_error e = {0};
      snprintf(text, sizeof text, "{\"model_type\":\"qwen3_5_moe_text\",\"%s\":%s}", KEYS[k], VALUES[v]);
      if (parse(&c, text, &e) != SH_ERR_FORMAT) fail_msg("%s: %s", text, e.text);
      assert_says(e.text, KEYS[k]);
    }
  }
}

/* --- GGUF metadata */

typedef struct gguf_case {
  const char *key; /* one more key */
  uint32_t type;   /* G_STR: text; G_F32: number; G_U32: number */
  const char *text;
  double number;
  const char *skip; /* a key to leave out */
  const char *says;
} gguf_case;

static void key_u32(gguf_writer *w, const gguf_case *k, const char *name, uint32_t v) {
  char key[100];
  snprintf(key, sizeof key, "llama.%s", name);
  if (!k->skip || strcmp(k->skip, name)) gguf_u32(w, key, v);
}

static int load_llama_gguf(sh_config *c, const gguf_case *k, const float *rope_freqs, sh_error *e) {
  static const uint64_t EMBED[2] = {32, 10}, HALF[1] = {4};
  gguf_writer w;
  gguf_begin(&w, 3);
  if (!k->skip || strcmp(k->skip, "architecture")) gguf_s(&w, "general.architecture", "llama");
  key_u32(&w, k, "block_count", 2);
  key_u32(&w, k, "context_length", 100);
  key_u32(&w, k, "embedding_length", 32);
  key_u32(&w, k, "feed_forward_length", 64);
  key_u32(&w, k, "attention.head_count", 4);
  gguf_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  if (k->key && k->type == G_STR) gguf_s(&w, k->key, k->text);
  if (k->key && k->type == G_F32) gguf_f32(&w, k->key, (float)k->number);
  if (k->key && k->type == G_U32) gguf_u32(&w, k->key, (uint32_t)k->number);
  gguf_tensor(&w, "token_embd.weight", 0, 2, EMBED, 1280);
  if (rope_freqs) {
    gguf_tensor(&w, "rope_freqs.weight", 0, 1, HALF, 16);
    memcpy(w.data.p + w.data.len - 16, rope_freqs, 16);
  }
  gguf_done(&w);
  sh_gguf *g;
  int rc = sh_gguf_open(&g, memory_file(w.b.p, w.b.len), e);
  if (rc) fail_msg("%s", e->text);
  rc = sh_config_from_gguf(c, g, e);
  sh_gguf_close(g);
  sh_buf_free(&w.b);
  return rc;
}

static void gguf_rope_factors_divide_the_frequencies(void **state) {
  (void)state;
  static const float FACTORS[4] = {1, 2, 4, 8};
  sh_config a, b;
  sh_error e = {0};
  const gguf_case none = {0};
  assert_int_equal(load_llama_gguf(&a, &none, NULL, &e), 0);
  assert_int_equal(load_llama_gguf(&b, &none, FACTORS, &e), 0);
  assert_int_equal(a.rotary_dim, 8);
  for (int i = 0; i < 4; i++) near(b.inv_freq[i], a.inv_freq[i] / (double)FACTORS[i]);
  static const float BAD[4] = {1, 0, 4, 8};
  assert_int_equal(load_llama_gguf(&b, &none, BAD, &e), SH_ERR_FORMAT);
  assert_says(e.text, "rope_freqs.weight");
}

static void wrong_gguf_metadata_is_refused_by_key(void **state) {
  (void)state;
  static const gguf_case CASES[] = {
      {.skip = "architecture", .says = "general.architecture"},
      {.skip = "block_count", .says = "llama.block_count is missing"},
      {.skip = "embedding_length", .says = "llama.embedding_length"},
      {.skip = "attention.head_count", .says = "llama.attention.head_count"},
      {.skip = "feed_forward_length", .says = "llama.feed_forward_length"},
      {.skip = "context_length", .says = "llama.context_length"},
      {"llama.rope.scaling.type", G_STR, "longrope", 0, NULL, "llama.rope.scaling.type"},
      {"llama.expert_count", G_U32, NULL, 8, NULL, "llama.expert_count = 8"},
      {"llama.attention.sliding_window", G_U32, NULL, 512, NULL, "sliding_window"},
      {"llama.attention.value_length", G_U32, NULL, 16, NULL, "value_length"},
      {"llama.attention.head_count_kv", G_U32, NULL, 3, NULL, "3 key heads"},
      {"llama.rope.dimension_count", G_U32, NULL, 7, NULL, "odd"},
      {"llama.rope.dimension_count", G_U32, NULL, 16, NULL, "dimension_count"},
      {"llama.rope.freq_base", G_F32, NULL, -1, NULL, "rope_theta"},
      {"llama.rope.freq_base", G_STR, "x", 0, NULL, "freq_base"},
      {"llama.attention.key_length", G_STR, "x", 0, NULL, "key_length"},
      {"llama.nextn_predict_layers", G_U32, NULL, 2, NULL, "leave no layer"},
      {"llama.rope.scaling.yarn_log_multiplier", G_F32, NULL, 0.1, NULL, "yarn_log_multiplier"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    sh_config c;
    sh_error e = {0};
    if (load_llama_gguf(&c, &CASES[i], NULL, &e) == 0) fail_msg("accepted: %s", CASES[i].says);
    assert_says(e.text, CASES[i].says);
  }
}

static void gguf_scaling_keys_are_computed(void **state) {
  (void)state;
  sh_config plain, c;
  sh_error e = {0};
  const gguf_case none = {0}, old = {"llama.rope.scale_linear", G_F32, NULL, 2, NULL, NULL},
                  factor = {"llama.rope.scaling.factor", G_F32, NULL, 4, NULL, NULL};
  assert_int_equal(load_llama_gguf(&plain, &none, NULL, &e), 0);
  assert_int_equal(load_llama_gguf(&c, &old, NULL, &e), 0);
  assert_int_equal(c.rope_kind, SH_ROPE_LINEAR);
  near(c.inv_freq[2], plain.inv_freq[2] / 2);
  assert_int_equal(load_llama_gguf(&c, &factor, NULL, &e), 0);
  near(c.inv_freq[2], plain.inv_freq[2] / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_golden_folders_give_their_sizes),
      cmocka_unit_test(a_gguf_gives_the_same_sizes_as_its_folder),
      cmocka_unit_test(smollm2_rotates_interleaved_pairs),
      cmocka_unit_test(absent_fields_have_the_defaults_of_transformers),
      cmocka_unit_test(end_tokens_may_be_one_or_several),
      cmocka_unit_test(plain_frequencies_are_powers_of_theta),
      cmocka_unit_test(old_style_rope_fields_mean_the_same),
      cmocka_unit_test(llama3_scaling_keeps_short_and_divides_long_wavelengths),
      cmocka_unit_test(yarn_blends_by_rotations_and_scales_cos_and_sin),
      cmocka_unit_test(what_is_not_computed_is_refused_by_name),
      cmocka_unit_test(absurd_sizes_are_refused),
      cmocka_unit_test(gguf_rope_factors_divide_the_frequencies),
      cmocka_unit_test(wrong_gguf_metadata_is_refused_by_key),
      cmocka_unit_test(gguf_scaling_keys_are_computed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
