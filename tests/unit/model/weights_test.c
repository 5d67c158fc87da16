/* Binding: values of every layout against numpy, shapes and names that are missing or wrong, types that are not computed. */
#include "model/weights.h"

#include <math.h>

#include "formats/dequant.h"
#include "formats/safetensors.h"
#include "unit/formats/files.h"

typedef struct model {
  sh_ckpt *ck;
  sh_config c;
  sh_weights w;
} model;

static int try_load(model *m, const char *path, sh_error *e) {
  memset(m, 0, sizeof *m);
  int rc = sh_ckpt_open(&m->ck, path, 0, e);
  if (!rc) rc = sh_config_load(&m->c, m->ck, e);
  if (!rc) rc = sh_weights_bind(&m->w, &m->c, m->ck, NULL, e);
  return rc;
}

static void unload(model *m) {
  sh_weights_free(&m->w);
  sh_ckpt_close(m->ck);
}

static void load(model *m, const char *path) {
  sh_error e = {0};
  if (try_load(m, path, &e)) fail_msg("%s", e.text);
}

static void expect_row(const sh_wview *v, int64_t rows, int64_t cols, int64_t row, const float *want, int n) {
  assert_int_equal(v->rows, rows);
  assert_int_equal(v->cols, cols);
  float *x = sh_malloc((size_t)cols * sizeof *x);
  assert_non_null(x);
  sh_dequant_row(v, row, x);
  for (int i = 0; i < n; i++) {
    if (x[i] != want[i]) fail_msg("%s row %lld: %a in place of %a", v->name, (long long)row, (double)x[i], (double)want[i]);
  }
  sh_free(x);
}

#define ROW(view, rows, cols, row, ...)                                                                                                    \
  do {                                                                                                                                     \
    static const float want[] = {__VA_ARGS__};                                                                                             \
    expect_row(&(view), rows, cols, row, want, (int)(sizeof want / sizeof want[0]));                                                       \
  } while (0)

static void expect_near(const float *got, const float *want, int n) {
  for (int i = 0; i < n; i++) {
    if (fabsf(got[i] - want[i]) > 2.5e-7f * fabsf(want[i])) fail_msg("%d: %a in place of %a", i, (double)got[i], (double)want[i]);
  }
}

static void vectors_of_a_folder_are_in_computing_form(void **state) {
  (void)state;
  static const float GAIN[] = {0x1.0a2p+0, 0x1.089p+0, 0x1.3c4p+0}, A[] = {-0x1.a46d5ap+0, -0x1.a5fbacp-1, -0x1.9f876cp+0, -0x1.947e1p+2};
  static const float CONV[] = {-0x1.ep-2, 0x1.fp-3, -0x1.16p-4, 0x1.02p-2}, PLAIN[] = {0x1.14p+0, 0x1.6ap-1, 0x1.0cp+0};
  model m;
  load(&m, "tests/golden/models/dense-small");
  const sh_w_layer *l = &m.w.layers[0];
  assert_true(l->is_linear && !m.w.layers[3].is_linear);
  assert_memory_equal(l->input_norm, GAIN, sizeof GAIN); /* 1 + w */
  expect_near(l->neg_exp_a, A, 4);
  assert_memory_equal(l->conv + 200 * 4, CONV, sizeof CONV);
  assert_memory_equal(l->lin_norm, PLAIN, sizeof PLAIN); /* w */
  assert_int_equal((uintptr_t)l->conv % 16, 0);
  assert_null(l->q_norm);
  assert_null(l->moe);
  assert_non_null(m.w.layers[3].q_norm);
  assert_null(m.w.layers[3].q_bias);
  ROW(m.w.embed, 640, 128, 5, 0x1.b8p-4, -0x1.5p-5, 0x1.34p-5, 0x1.34p-4);
  assert_ptr_equal(m.w.head.data, m.w.embed.data); /* tied */
  assert_null(m.w.mtp);
  assert_int_equal(m.w.bytes, 3077344);
  assert_int_equal(m.w.n_unused, 0);
  unload(&m);
}

static void experts_of_fused_and_single_tensors_are_the_same_kind_of_view(void **state) {
  (void)state;
  model m;
  load(&m, "tests/golden/models/moe-real-fused");
  const sh_w_moe *x = m.w.layers[0].moe;
  ROW(x->experts[5].gate, 128, 256, 3, 0x1.e2p-7, 0x1.9cp-7, 0x1.cp-5);
  ROW(x->experts[5].up, 128, 256, 3, 0x1.84p-5, -0x1.a2p-5, 0x1.84p-5);
  ROW(x->experts[7].down, 256, 128, 200, 0x1.dp-5, 0x1.bep-5, 0x1.8ep-8);
  assert_int_equal(x->router.rows, 16);
  assert_int_equal(x->shared_expert_gate.rows, 1);
  assert_int_equal(m.w.n_visual, 33);
  assert_int_equal(m.w.n_unused, 0);
  assert_non_null(m.w.mtp);
  assert_non_null(m.w.mtp->layer.moe);
  assert_int_equal(m.w.mtp->fc.cols, 512);
  assert_true(m.w.mtp_bytes > 0 && m.w.mtp_bytes < m.w.bytes);
  unload(&m);

  load(&m, "tests/golden/models/moe-small");
  ROW(m.w.layers[1].moe->experts[6].up, 128, 128, 100, 0x1.eap-8, -0x1.b2p-5, -0x1.6ep-7);
  ROW(m.w.mtp->layer.moe->experts[2].down, 128, 128, 9, 0x1.2ep-6, 0x1.1ep-4, 0x1.6cp-5);
  unload(&m);
}

static void the_prediction_head_is_bound_beside_a_vision_tower(void **state) {
  (void)state;
  static const float GAIN[] = {0x1.a18p-1, 0x1.03d4p+0, 0x1.bd8p-1};
  model m;
  load(&m, "tests/golden/models/dense-real");
  assert_non_null(m.w.mtp);
  assert_memory_equal(m.w.mtp->norm_hidden, GAIN, sizeof GAIN);
  assert_non_null(m.w.mtp->norm_embedding);
  assert_non_null(m.w.mtp->norm);
  assert_int_equal(m.w.mtp->layer.q.rows, 2048);
  assert_false(m.w.mtp->layer.is_linear);
  assert_int_equal(m.w.n_visual, 33);
  unload(&m);
}

static void a_gguf_is_bound_as_it_is_stored(void **state) {
  (void)state;
  static const float A[] = {-0x1.6144f6p-1, -0x1.f76624p+2, -0x1.ae947ap+2, -0x1.8427bcp+1}, GAIN[] = {0x1.c8p-1, 0x1.3fp-1, 0x1.6p-1};
  model m;
  char buf[64];
  load(&m, "tests/golden/gguf/dense-real-Q4_0.gguf");
  assert_memory_equal(m.w.layers[0].neg_exp_a, A, sizeof A);
  assert_memory_equal(m.w.layers[0].input_norm, GAIN, sizeof GAIN);
  ROW(m.w.layers[3].q, 2048, 256, 1000, 0x1.dp-4, -0.0f, 0x1.dp-6, 0x1.5cp-5);
  ROW(m.w.head, 640, 256, 639, 0x1.80ap-5, -0x1.f1cp-5, -0x1.6ap-4, 0x1.0f8p-6);
  assert_string_equal(sh_weights_dtypes(&m.w, buf, sizeof buf), "Q4_0, Q6_K");
  unload(&m);

  load(&m, "tests/golden/gguf/moe-small-Q8_0.gguf");
  ROW(m.w.layers[2].moe->experts[4].up, 128, 128, 17, -0x1.437p-7, 0x1.6521p-5, 0, -0x1.036c8p-4);
  assert_int_equal(m.w.n_unused, 0);
  unload(&m);
}

static void the_prediction_block_of_a_gguf_follows_the_main_layers(void **state) {
  (void)state;
  model m;
  load(&m, "tests/fuzz/corpus/gguf/qwen35_mtp.gguf");
  assert_int_equal(m.c.n_layers, 1);
  assert_int_equal(m.c.n_linear, 0);
  assert_non_null(m.w.mtp);
  assert_int_equal(m.w.mtp->fc.rows, 32);
  assert_int_equal(m.w.mtp->fc.cols, 64);
  assert_true(m.w.mtp->norm_embedding[5] == 1.25f && m.w.mtp->norm[4] == 1.0f); /* as stored, not 1 + w */
  assert_string_equal(m.w.mtp->layer.q.name, "blk.1.attn_q.weight");
  assert_string_equal(m.w.layers[0].q.name, "blk.0.attn_q.weight");
  assert_int_equal(m.w.n_unused, 0);
  assert_ptr_not_equal(m.w.head.data, m.w.embed.data);
  unload(&m);
}

/* The converter stores 1 + w and -exp(A_log); both routes must meet. Value heads are re-tiled, so the four of them compare as g0v0 g1v0
 * g0v1 g1v1. */
static void folder_and_gguf_agree_on_every_gain(void **state) {
  (void)state;
  static const int TILED[4] = {0, 2, 1, 3};
  model h, g;
  load(&h, "tests/golden/models/dense-small");
  load(&g, "tests/golden/gguf/dense-small-bf16.gguf");
  expect_near(g.w.final_norm, h.w.final_norm, 128);
  for (int i = 0; i < 8; i++) {
    const sh_w_layer *a = &h.w.layers[i], *b = &g.w.layers[i];
    expect_near(b->input_norm, a->input_norm, 128);
    expect_near(b->post_norm, a->post_norm, 128);
    if (!a->is_linear) {
      expect_near(b->q_norm, a->q_norm, 64);
      expect_near(b->k_norm, a->k_norm, 64);
      assert_memory_equal(b->q.data, a->q.data, 512 * 256);
      continue;
    }
    expect_near(b->lin_norm, a->lin_norm, 32);
    for (int k = 0; k < 4; k++) {
      expect_near(b->neg_exp_a + k, a->neg_exp_a + TILED[k], 1);
      expect_near(b->dt_bias + k, a->dt_bias + TILED[k], 1);
    }
    expect_near(b->conv, a->conv, 128 * 4); /* q and k channels keep their order */
  }
  unload(&h);
  unload(&g);
}

static void smollm2_is_bound_without_copies(void **state) {
  (void)state;
  const char *path = getenv("SHENG_SMOLLM2");
  if (!path || !*path) {
    print_message("skipped: SHENG_SMOLLM2 does not name the GGUF of SmolLM2-135M-Instruct\n");
    skip();
  }
  static const float GAIN[] = {0x1.8p-4, 0x1.bp-4, 0x1.a2p-4};
  model m;
  load(&m, path);
  ROW(m.w.layers[7].down, 576, 1536, 500, -0x1.104p-5, 0x1.a038p-2, -0x1.acp-2, 0x1.a038p-2);
  ROW(m.w.embed, 49152, 576, 49151, 0x1.79p-7, 0x1.79p-8, 0x1.909p-4, -0x1.909p-4);
  assert_memory_equal(m.w.layers[0].post_norm, GAIN, sizeof GAIN);
  assert_null(m.w.layers[0].q_norm);
  assert_int_equal(m.w.n_unused, 0);
  assert_true(sh_arena_used(m.w.private_arena) < 1 << 20);
  unload(&m);
}

/* --- Wrong files: the golden folder written again with one tensor changed. */

typedef struct change {
  const char *name;     /* of the tensor */
  const char *new_name; /* NULL: keep; "" : leave the tensor out */
  sh_dtype type;        /* with set_type */
  bool set_type;
  int n_dims; /* 0: keep */
  int64_t dims[3];
  const char *says;
  int code;
} change;

/* Copies the folder's tensors to the temporary folder with the change applied; data is the golden data, or zeros where the size differs. */
static void put_changed(const char *folder, const change *x) {
  sh_ckpt *ck;
  sh_error e = {0};
  if (sh_ckpt_open(&ck, folder, 0, &e)) fail_msg("%s", e.text);
  int n = sh_ckpt_count(ck), k = 0;
  sh_ftensor *t = calloc((size_t)n, sizeof *t);
  uint8_t *zeros = calloc(1, 1 << 22);
  for (int i = 0; i < n; i++) {
    t[k] = *sh_ckpt_at(ck, i);
    if (strcmp(t[k].name, x->name) == 0) {
      if (x->new_name && !*x->new_name) continue;
      if (x->new_name) t[k].name = x->new_name;
      if (x->set_type) t[k].type = x->type;
      if (x->n_dims) {
        t[k].n_dims = x->n_dims;
        memcpy(t[k].dims, x->dims, sizeof x->dims);
      }
      size_t bytes = (size_t)sh_ftensor_count(&t[k]) * (size_t)sh_dtype_block_bytes(t[k].type);
      if (bytes != t[k].bytes) t[k].data = zeros;
      t[k].bytes = bytes;
    }
    k++;
  }
  if (sh_st_write(in_temp("model.safetensors"), t, k, &e)) fail_msg("%s", e.text);
  char config[200];
  snprintf(config, sizeof config, "%s/config.json", folder);
  copy_in(config, "config.json");
  free(t);
  free(zeros);
  sh_ckpt_close(ck);
}

static void a_missing_or_wrong_tensor_is_named_with_both_shapes(void **state) {
  (void)state;
#define L "model.layers."
  static const change CASES[] = {
      {.name = "model.embed_tokens.weight", .new_name = "", .says = "model.embed_tokens.weight is missing", .code = SH_ERR_FORMAT},
      {.name = "model.norm.weight", .new_name = "", .says = "model.norm.weight is missing", .code = SH_ERR_FORMAT},
      {.name = L "7.self_attn.q_proj.weight", .new_name = "x", .says = L "7.self_attn.q_proj.weight is missing", .code = SH_ERR_FORMAT},
      {.name = L "5.linear_attn.A_log", .new_name = "", .says = L "5.linear_attn.A_log is missing", .code = SH_ERR_FORMAT},
      {.name = L "3.self_attn.k_proj.weight",
       .n_dims = 2,
       .dims = {128, 64},
       .says = "shape [128, 128] is wanted, [128, 64] is found",
       .code = SH_ERR_FORMAT},
      {.name = L "3.self_attn.k_proj.weight", .n_dims = 1, .dims = {16384}, .says = "[16384] is found", .code = SH_ERR_FORMAT},
      {.name = L "0.linear_attn.conv1d.weight",
       .n_dims = 3,
       .dims = {256, 1, 3},
       .says = "shape [256, 1, 4] is wanted, [256, 1, 3]",
       .code = SH_ERR_FORMAT},
      {.name = L "0.input_layernorm.weight", .n_dims = 1, .dims = {127}, .says = "shape [128] is wanted, [127]", .code = SH_ERR_FORMAT},
      {.name = L "0.linear_attn.in_proj_qkv.weight",
       .n_dims = 2,
       .dims = {192, 128},
       .says = "[256, 128] is wanted",
       .code = SH_ERR_FORMAT},
      {.name = L "1.mlp.up_proj.weight", .set_type = true, .type = SH_I32, .says = "stored as I32", .code = SH_ERR_UNSUPPORTED},
      {.name = L "1.mlp.up_proj.weight", .set_type = true, .type = SH_F64, .says = "stored as F64", .code = SH_ERR_UNSUPPORTED},
      {.name = L "2.linear_attn.dt_bias", .set_type = true, .type = SH_I16, .says = "stored as I16", .code = SH_ERR_UNSUPPORTED},
  };
#undef L
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    model m;
    sh_error e = {0};
    put_changed("tests/golden/models/dense-small", &CASES[i]);
    int rc = try_load(&m, temp_dir, &e);
    if (rc != CASES[i].code) fail_msg("%s: %d %s", CASES[i].name, rc, e.text);
    assert_says(e.text, CASES[i].says);
    assert_says(e.text, CASES[i].name);
    assert_null(m.w.layers);
    unload(&m);
  }
}

/* A config that knows fewer layers than the file would give a model that answers, and wrongly. */
static void layers_the_config_does_not_know_are_an_error(void **state) {
  (void)state;
  static const char config[] =
      "{\"model_type\":\"qwen3_5_text\",\"vocab_size\":640,\"hidden_size\":128,\"num_hidden_layers\":%d,\"num_attention_heads\":4,"
      "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":256,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
      "\"linear_key_head_dim\":32,\"linear_value_head_dim\":32,\"max_position_embeddings\":4096,\"tie_word_embeddings\":true}";
  const change none = {.name = ""};
  char text[600];
  model m;
  sh_error e = {0};
  put_changed("tests/golden/models/dense-small", &none);
  snprintf(text, sizeof text, config, 8);
  put_text("config.json", text);
  load(&m, temp_dir);
  unload(&m);
  snprintf(text, sizeof text, config, 4);
  put_text("config.json", text);
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, "tensor model.layers.4.");
  assert_says(e.text, "8 layers");
  assert_says(e.text, "num_hidden_layers says 4");
  unload(&m);

  size_t n, key = strlen("qwen35.block_count");
  char *p = slurp("tests/golden/gguf/dense-small-bf16.gguf", &n);
  char *at = memmem(p, n, "qwen35.block_count", key);
  assert_non_null(at);
  assert_int_equal(at[key + 4], 8); /* after the type of the value */
  at[key + 4] = 4;
  assert_int_equal(try_load(&m, memory_file(p, n), &e), SH_ERR_FORMAT);
  assert_says(e.text, "tensor blk.4.");
  assert_says(e.text, "8 layers, block_count says 4");
  unload(&m);
  sh_free(p);
}

static void shapes_may_differ_in_dimensions_of_one(void **state) {
  (void)state;
  const change squeezed = {.name = "model.layers.0.linear_attn.conv1d.weight", .n_dims = 2, .dims = {256, 4}};
  model m;
  put_changed("tests/golden/models/dense-small", &squeezed);
  load(&m, temp_dir);
  unload(&m);
}

static void extra_tensors_are_counted_and_do_no_harm(void **state) {
  (void)state;
  const change renamed = {.name = "mtp.fc.weight", .new_name = "mtp.other.weight"};
  model m;
  put_changed("tests/golden/models/dense-real", &renamed);
  load(&m, temp_dir);
  assert_null(m.w.mtp); /* without its first matrix the whole head is left alone */
  assert_int_equal(m.w.n_unused, 15);
  assert_int_equal(m.w.mtp_bytes, 0);
  unload(&m);
}

static void a_half_prediction_head_is_an_error(void **state) {
  (void)state;
  const change gone = {.name = "mtp.layers.0.mlp.up_proj.weight", .new_name = ""};
  model m;
  sh_error e = {0};
  put_changed("tests/golden/models/dense-real", &gone);
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, "mtp.layers.0.mlp.up_proj.weight is missing");
  unload(&m);
}

static void wrong_expert_tensors_are_named(void **state) {
  (void)state;
  static const change SMALL = {
      .name = "model.layers.2.mlp.experts.5.down_proj.weight", .new_name = "", .says = "experts.5.down_proj.weight is missing"};
  static const change FUSED = {.name = "model.language_model.layers.1.mlp.experts.gate_up_proj",
                               .n_dims = 3,
                               .dims = {16, 128, 256},
                               .says = "[16, 256, 256] is wanted, [16, 128, 256] is found"};
  model m;
  sh_error e = {0};
  put_changed("tests/golden/models/moe-small", &SMALL);
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, SMALL.says);
  unload(&m);
  put_changed("tests/golden/models/moe-real-fused", &FUSED);
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, FUSED.says);
  unload(&m);
}

/* --- A llama folder of one layer, with and without biases */

static void put_llama(bool attention_bias, bool biases, bool head) {
  static const struct {
    const char *name;
    int rows, cols; /* cols 0: a vector */
    int kind;       /* 1: bias, 2: head */
  } T[] = {{"model.embed_tokens.weight", 20, 16, 0},
           {"model.norm.weight", 16, 0, 0},
           {"lm_head.weight", 20, 16, 2},
           {"model.layers.0.input_layernorm.weight", 16, 0, 0},
           {"model.layers.0.post_attention_layernorm.weight", 16, 0, 0},
           {"model.layers.0.self_attn.q_proj.weight", 16, 16, 0},
           {"model.layers.0.self_attn.k_proj.weight", 8, 16, 0},
           {"model.layers.0.self_attn.v_proj.weight", 8, 16, 0},
           {"model.layers.0.self_attn.o_proj.weight", 16, 16, 0},
           {"model.layers.0.self_attn.q_proj.bias", 16, 0, 1},
           {"model.layers.0.self_attn.k_proj.bias", 8, 0, 1},
           {"model.layers.0.self_attn.v_proj.bias", 8, 0, 1},
           {"model.layers.0.self_attn.o_proj.bias", 16, 0, 1},
           {"model.layers.0.mlp.gate_proj.weight", 24, 16, 0},
           {"model.layers.0.mlp.up_proj.weight", 24, 16, 0},
           {"model.layers.0.mlp.down_proj.weight", 16, 24, 0}};
  float data[400];
  for (int i = 0; i < 400; i++) data[i] = (float)i / 8;
  sh_ftensor t[16];
  int n = 0;
  for (int i = 0; i < 16; i++) {
    if ((T[i].kind == 1 && !biases) || (T[i].kind == 2 && !head)) continue;
    int count = T[i].rows * (T[i].cols ? T[i].cols : 1);
    t[n++] = (sh_ftensor){.name = T[i].name,
                          .type = SH_F32,
                          .n_dims = T[i].cols ? 2 : 1,
                          .dims = {T[i].rows, T[i].cols},
                          .data = (uint8_t *)data,
                          .bytes = 4 * (size_t)count};
  }
  sh_error e = {0};
  if (sh_st_write(in_temp("model.safetensors"), t, n, &e)) fail_msg("%s", e.text);
  char config[400];
  snprintf(config, sizeof config,
           "{\"model_type\":\"llama\",\"vocab_size\":20,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":1,\"num_"
           "attention_heads\":4,"
           "\"num_key_value_heads\":2,\"attention_bias\":%s}",
           attention_bias ? "true" : "false");
  put_text("config.json", config);
}

static void llama_gains_are_plain_and_biases_are_bound_where_the_config_has_them(void **state) {
  (void)state;
  model m;
  sh_error e = {0};
  put_llama(true, true, true);
  load(&m, temp_dir);
  const sh_w_layer *l = &m.w.layers[0];
  assert_true(l->input_norm[8] == 1.0f && l->post_norm[9] == 1.125f && m.w.final_norm[0] == 0);
  assert_non_null(l->q_bias);
  assert_true(l->k_bias[7] == 0.875f && l->v_bias[0] == 0 && l->o_bias[15] == 1.875f);
  unload(&m);

  put_llama(false, true, true);
  load(&m, temp_dir);
  assert_null(m.w.layers[0].q_bias);
  assert_int_equal(m.w.n_unused, 4);
  unload(&m);

  put_llama(true, false, true);
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, "self_attn.q_proj.bias is missing");
  unload(&m);

  put_llama(false, false, false); /* not tied, and no head */
  assert_int_equal(try_load(&m, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, "lm_head.weight is missing");
  unload(&m);
}

static void quantized_types_that_are_not_computed_are_named(void **state) {
  (void)state;
  size_t n;
  char *p = slurp("tests/golden/gguf/dense-real-Q4_0.gguf", &n);
  /* the type number of token_embd.weight follows its name, dimension count and two dimensions */
  char *at = memmem(p, n, "token_embd.weight", 17);
  assert_non_null(at);
  assert_int_equal(at[17 + 4 + 16], 2);
  at[17 + 4 + 16] = 23; /* IQ4_XS takes a little less room */
  model m;
  sh_error e = {0};
  assert_int_equal(try_load(&m, memory_file(p, n), &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "token_embd.weight is stored as IQ4_XS");
  unload(&m);
  sh_free(p);
}

static void a_bind_survives_failing_allocations(void **state) {
  (void)state;
  model m;
  load(&m, "tests/golden/models/moe-small");
  sh_weights_free(&m.w);
  long n = 0;
  for (;; n++) {
    assert_true(n < 2000);
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_weights_bind(&m.w, &m.c, m.ck, NULL, &e);
    sh_mem_fail_after(-1);
    if (rc == 0) break;
    assert_int_equal(rc, SH_ERR_NOMEM);
    assert_null(m.w.private_arena);
  }
  assert_true(n >= 3);
  unload(&m);
}

/* Damage in the header of a whole model: an error, or a model whose every bound row can be read. */
static void mutated_models_are_refused_or_can_be_read(void **state) {
  (void)state;
  size_t n;
  char *p = slurp("tests/golden/gguf/dense-real-Q4_0.gguf", &n);
  uint8_t *copy = malloc(n);
  memcpy(copy, p, n);
  size_t head = (size_t)((char *)memmem(p, n, "output.weight", 13) - p);
  uint64_t seed = 0xabcdef;
  float *row = malloc(1 << 20);
  for (int i = 0; i < 1000; i++) {
    /* the keys before the vocabulary, or the list of tensors */
    size_t from = i % 2 ? head : 0, len = i % 2 ? 3000 : 1400;
    mutate(copy + from, len, &seed);
    model m;
    sh_error e = {0};
    int rc = try_load(&m, memory_file(copy, n), &e);
    assert_int_not_equal(rc, SH_ERR_NOMEM);
    assert_int_not_equal(rc, SH_ERR_INTERNAL);
    if (!rc) {
      sh_dequant_row(&m.w.embed, m.w.embed.rows - 1, row);
      sh_dequant_row(&m.w.head, m.w.head.rows - 1, row);
      for (int k = 0; k < m.w.n_layers; k++) sh_dequant_row(&m.w.layers[k].down, m.w.layers[k].down.rows - 1, row);
    } else {
      assert_true(strlen(e.text) > 10);
    }
    unload(&m);
    memcpy(copy + from, p + from, len);
  }
  free(row);
  free(copy);
  sh_free(p);
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(vectors_of_a_folder_are_in_computing_form),
      cmocka_unit_test(experts_of_fused_and_single_tensors_are_the_same_kind_of_view),
      cmocka_unit_test(the_prediction_head_is_bound_beside_a_vision_tower),
      cmocka_unit_test(a_gguf_is_bound_as_it_is_stored),
      cmocka_unit_test(the_prediction_block_of_a_gguf_follows_the_main_layers),
      cmocka_unit_test(folder_and_gguf_agree_on_every_gain),
      cmocka_unit_test(smollm2_is_bound_without_copies),
      cmocka_unit_test_setup_teardown(a_missing_or_wrong_tensor_is_named_with_both_shapes, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(layers_the_config_does_not_know_are_an_error, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(shapes_may_differ_in_dimensions_of_one, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(extra_tensors_are_counted_and_do_no_harm, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_half_prediction_head_is_an_error, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(wrong_expert_tensors_are_named, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(llama_gains_are_plain_and_biases_are_bound_where_the_config_has_them, make_temp_dir, remove_temp_dir),
      cmocka_unit_test(quantized_types_that_are_not_computed_are_named),
      cmocka_unit_test(a_bind_survives_failing_allocations),
      cmocka_unit_test(mutated_models_are_refused_or_can_be_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
