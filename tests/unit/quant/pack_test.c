/* Codes to layouts and back: what is packed is read by the program's own reader and, bit by bit, by the layouts' definitions; what a layout
 * cannot hold is refused by a sentence that says what can. */
#include "quant/pack.h"

#include "base/text.h"
#include "unit/quant/codes.h"

/* --- The definitions: integer i of a line of words, lowest bits first. */

static int int_of(const sh_ftensor *t, int64_t word, int i, int bits) {
  uint32_t w;
  memcpy(&w, t->data + 4 * word, 4);
  return (int)(w >> (bits * i) & ((1u << bits) - 1));
}

static const sh_ftensor *tensor(const sh_ftensor *t, int n, const char *suffix) {
  for (int i = 0; i < n; i++) {
    if (sh_str_ends(t[i].name, suffix)) return &t[i];
  }
  return NULL;
}

static float scale_at(const sh_ftensor *t, int64_t i) {
  float v;
  sh_dequant(t->type, t->data + 2 * i, 1, &v);
  return v;
}

static float unpacked(const sh_ftensor *t, int n, const sh_qscheme *s, int64_t N, int64_t K, int64_t r, int64_t k) {
  int per = 32 / s->bits, half = 1 << (s->bits - 1);
  int64_t G = K / group_of_scheme(s, K), g = k / group_of_scheme(s, K);
  const sh_ftensor *idx = tensor(t, n, "g_idx"), *z;
  if (idx) g = ((const int32_t *)(const void *)idx->data)[k];
  if (s->format == SH_QF_AWQ) {
    const sh_ftensor *w = tensor(t, n, ".qweight");
    z = tensor(t, n, ".qzeros");
    int q = int_of(w, k * (N / 8) + r / 8, AWQ_NIBBLE[r % 8], 4), zero = int_of(z, g * (N / 8) + r / 8, AWQ_NIBBLE[r % 8], 4);
    return (float)(q - zero) * scale_at(tensor(t, n, ".scales"), g * N + r);
  }
  if (s->format == SH_QF_GPTQ) {
    int q = int_of(tensor(t, n, ".qweight"), k / per * N + r, (int)(k % per), s->bits);
    int zero = int_of(tensor(t, n, ".qzeros"), g * (N / per) + r / per, (int)(r % per), s->bits) + 1;
    return (float)(q - zero) * scale_at(tensor(t, n, ".scales"), g * N + r);
  }
  float scale = scale_at(tensor(t, n, ".weight_scale"), r * G + g);
  if (s->int8_activations) return (float)(int8_t)tensor(t, n, ".weight")->data[r * K + k] * scale;
  z = tensor(t, n, ".weight_zero_point");
  int q = int_of(tensor(t, n, ".weight_packed"), r * (K / per) + k / per, (int)(k % per), s->bits);
  return (float)(q - (z ? int_of(z, r / per * G + g, (int)(r % per), s->bits) : half)) * scale;
}

/* --- Round trips */

static const sh_qscheme SCHEMES[] = {
    {.format = SH_QF_AWQ, .bits = 4},
    {.format = SH_QF_AWQ, .bits = 4, .symmetric = true},
    {.format = SH_QF_GPTQ, .bits = 4},
    {.format = SH_QF_GPTQ, .bits = 4, .symmetric = true},
    {.format = SH_QF_GPTQ, .bits = 4, .order = true},
    {.format = SH_QF_GPTQ, .bits = 4, .symmetric = true, .order = true},
    {.format = SH_QF_GPTQ, .bits = 8},
    {.format = SH_QF_GPTQ, .bits = 8, .symmetric = true},
    {.format = SH_QF_GPTQ, .bits = 8, .order = true},
    {.format = SH_QF_CT, .bits = 4},
    {.format = SH_QF_CT, .bits = 4, .symmetric = true},
    {.format = SH_QF_CT, .bits = 4, .order = true},
    {.format = SH_QF_CT, .bits = 4, .symmetric = true, .order = true},
    {.format = SH_QF_CT, .bits = 8},
    {.format = SH_QF_CT, .bits = 8, .symmetric = true},
    {.format = SH_QF_CT, .bits = 8, .order = true},
    {.format = SH_QF_CT, .bits = 8, .symmetric = true, .int8_activations = true},
};

static void expect_definition(const sh_ftensor *t, int n, const sh_qscheme *s, const sh_qcodes *c, const float *want) {
  for (int64_t r = 0; r < c->rows; r++) {
    for (int64_t k = 0; k < c->cols; k++) {
      float got = unpacked(t, n, s, c->rows, c->cols, r, k);
      if (got != want[r * c->cols + k])
        fail_msg("%s, %d bits: weight (%d, %d) is %g, %g is wanted", sh_qformat_name(s->format), s->bits, (int)r, (int)k, (double)got,
                 (double)want[r * c->cols + k]);
    }
  }
}

static void expect_read_back(const sh_ftensor *t, int n, const sh_qscheme *s, const sh_qcodes *c, const float *want) {
  sh_error e = {0};
  qopen o;
  sh_wview v;
  if (sh_st_write(in_temp("model.safetensors"), t, n, &e)) fail_msg("%s", e.text);
  put_scheme_config(s);
  int rc = qo_open_as(&o, &(sh_repack_opts){.cache_dir = "", .threads = 1}, &e);
  if (!rc) rc = qo_add(&o, "m.up", c->rows, c->cols, &v, &e);
  if (!rc) rc = sh_repack_run(o.r, &e);
  if (rc) fail_msg("%s, %d bits: %s", sh_qformat_name(s->format), s->bits, e.text);
  expect_weights(&v, want);
  qo_close(&o);
}

static void packed_codes_are_read_back_as_they_were(void **state) {
  (void)state;
  static const struct { int rows, cols, group; } SIZES[] = {{8, 96, 32}, {24, 64, 64}, {136, 256, 128}, {40, 352, -1}, {264, 160, 32}};
  for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
    for (size_t k = 0; k < sizeof SCHEMES / sizeof SCHEMES[0]; k++) {
      sh_qscheme s = SCHEMES[k];
      s.group = s.int8_activations ? -1 : SIZES[i].group;
      if (s.order && s.group < 0) continue;
      int64_t rows = SIZES[i].rows - (s.format == SH_QF_CT ? 3 : 0); /* rows of any number there */
      sh_qcodes c = draw_codes(&s, rows, SIZES[i].cols, k % 2 ? SH_F16 : SH_BF16, 77 + i * 100 + k);
      float *want = weights_of_codes(&c);
      sh_arena *a = sh_arena_new(1 << 24);
      sh_ftensor t[SH_QPACK_MAX];
      sh_error e = {0};
      int n = 0;
      if (sh_qpack(&c, &s, "m.up", a, t, &n, &e)) fail_msg("%s", e.text);
      expect_definition(t, n, &s, &c, want);
      expect_read_back(t, n, &s, &c, want);
      sh_arena_free(a);
      free(want);
      free_codes(&c);
    }
  }
}

static void every_layout_has_its_tensors(void **state) {
  (void)state;
  static const struct {
    sh_qscheme s;
    const char *names;
  } WANT[] = {
      {{.format = SH_QF_AWQ, .bits = 4, .group = 32, .symmetric = true}, "m.qweight I32 m.qzeros I32 m.scales F16 "},
      {{.format = SH_QF_GPTQ, .bits = 8, .group = 32, .symmetric = true}, "m.qweight I32 m.qzeros I32 m.scales F16 m.g_idx I32 "},
      {{.format = SH_QF_CT, .bits = 4, .group = 32, .symmetric = true}, "m.weight_packed I32 m.weight_scale F16 m.weight_shape I64 "},
      {{.format = SH_QF_CT, .bits = 8, .group = -1, .symmetric = true}, "m.weight_packed I32 m.weight_scale F16 m.weight_shape I64 "},
      {{.format = SH_QF_CT, .bits = 4, .group = 32, .order = true},
       "m.weight_packed I32 m.weight_scale F16 m.weight_shape I64 m.weight_zero_point I32 m.weight_g_idx I32 "},
      {{.format = SH_QF_CT, .bits = 8, .group = -1, .symmetric = true, .int8_activations = true}, "m.weight I8 m.weight_scale F16 "},
  };
  for (size_t i = 0; i < sizeof WANT / sizeof WANT[0]; i++) {
    sh_qcodes c = draw_codes(&WANT[i].s, 16, 64, SH_F16, 5);
    sh_arena *a = sh_arena_new(1 << 20);
    sh_ftensor t[SH_QPACK_MAX];
    sh_error e = {0};
    char names[400] = "";
    int n = 0;
    if (sh_qpack(&c, &WANT[i].s, "m", a, t, &n, &e)) fail_msg("%s", e.text);
    for (int k = 0; k < n; k++) snprintf(names + strlen(names), sizeof names - strlen(names), "%s %s ", t[k].name, t[k].type_name);
    assert_string_equal(names, WANT[i].names);
    sh_arena_free(a);
    free_codes(&c);
  }
}

/* --- Refusals */

static void what_a_layout_cannot_hold_is_refused_with_what_can(void **state) {
  (void)state;
  static const struct {
    sh_qscheme s;
    int rows, cols;
    const char *says;
  } BAD[] = {
      {{.format = SH_QF_AWQ, .bits = 8, .group = 32}, 16, 64, "8 bits want GPTQ or compressed-tensors"},
      {{.format = SH_QF_AWQ, .bits = 4, .group = 32, .order = true}, 16, 64, "AWQ cannot hold columns in an order of their own"},
      {{.format = SH_QF_AWQ, .bits = 4, .group = 32}, 12, 64, "12 rows are no multiple of 8, which awq packs into a word"},
      {{.format = SH_QF_GPTQ, .bits = 4, .group = 32}, 12, 64, "12 rows are no multiple of 8, which gptq"},
      {{.format = SH_QF_GPTQ, .bits = 4, .group = -1}, 16, 60, "60 columns are no multiple of 8"},
      {{.format = SH_QF_GPTQ, .bits = 8, .group = -1}, 16, 62, "62 columns are no multiple of 4"},
      {{.format = SH_QF_CT, .bits = 4, .group = -1}, 5, 44, "44 columns are no multiple of 8, which compressed-tensors"},
      {{.format = SH_QF_CT, .bits = 3, .group = -1}, 16, 64, "3-bit weights cannot be packed; 4 or 8 bits can"},
      {{.format = SH_QF_CT, .bits = 4, .group = 48}, 16, 64, "64 columns are no multiple of the group size 48"},
      {{.format = SH_QF_CT, .bits = 4, .group = 128}, 16, 64, "64 columns are no multiple of the group size 128"},
      {{.format = SH_QF_CT, .bits = 4, .group = 0}, 16, 64, "no multiple of the group size 0"},
      {{.format = SH_QF_CT, .bits = 4, .group = 8}, 16, 64, "groups of 8 columns; a multiple of 16 is wanted"},
      {{.format = SH_QF_GPTQ, .bits = 4, .group = -1, .order = true}, 16, 64, "an order of columns wants groups"},
      {{.format = SH_QF_GPTQ, .bits = 8, .group = -1, .symmetric = true, .int8_activations = true}, 16, 64, "want compressed-tensors"},
      {{.format = SH_QF_CT, .bits = 4, .group = -1, .symmetric = true, .int8_activations = true}, 16, 64, "with 8-bit weights"},
      {{.format = SH_QF_CT, .bits = 8, .group = 32, .symmetric = true, .int8_activations = true}, 16, 64, "one scale a row"},
      {{.format = SH_QF_CT, .bits = 8, .group = -1, .int8_activations = true}, 16, 64, "want symmetric weights"},
  };
  for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
    sh_error e = {0};
    assert_int_equal(sh_qpack_check(&BAD[i].s, "model.layers.3.mlp.up_proj", BAD[i].rows, BAD[i].cols, &e), SH_ERR_UNSUPPORTED);
    assert_says(e.text, "model.layers.3.mlp.up_proj: ");
    assert_says(e.text, BAD[i].says);
  }
  sh_qscheme odd = {.format = SH_QF_CT, .bits = 8, .group = -1, .symmetric = true, .int8_activations = true};
  assert_int_equal(sh_qpack_check(&odd, "m", 5, 43, NULL), 0); /* a byte each: any shape */
  assert_int_equal(sh_qpack_check(&odd, "m", 0, 43, NULL), SH_ERR_ARG);
}

static int pack_changed(const sh_qscheme *s, const sh_qcodes *c, sh_error *e) {
  sh_arena *a = sh_arena_new(1 << 20);
  sh_ftensor t[SH_QPACK_MAX];
  int n = 7, rc = sh_qpack(c, s, "m", a, t, &n, e);
  if (rc) assert_int_equal(n, 0);
  sh_arena_free(a);
  return rc;
}

static void codes_that_contradict_the_scheme_are_refused(void **state) {
  (void)state;
  sh_qscheme s = {.format = SH_QF_GPTQ, .bits = 4, .group = 32}, sym = {.format = SH_QF_GPTQ, .bits = 4, .group = 32, .symmetric = true};
  sh_qscheme order = {.format = SH_QF_GPTQ, .bits = 4, .group = 32, .order = true};
  sh_qcodes c = draw_codes(&s, 16, 64, SH_F16, 5), d = draw_codes(&order, 16, 64, SH_F16, 5);
  sh_error e = {0};
  assert_int_equal(pack_changed(&sym, &c, &e), SH_ERR_INTERNAL);
  assert_int_equal(pack_changed(&s, &d, &e), SH_ERR_INTERNAL);
  d.order[9] = 2;
  assert_int_equal(pack_changed(&order, &d, &e), SH_ERR_INTERNAL);
  c.group = 64;
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_INTERNAL);
  c.group = 32;
  c.scale_type = SH_F32;
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_INTERNAL);
  c.scale_type = SH_F16;
  c.q[100] = 16;
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_INTERNAL);
  assert_says(e.text, "more than 4 bits");
  c.q[100] = 15;
  assert_int_equal(pack_changed(&s, &c, &e), 0);
  c.zeros[3] = 0;
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "GPTQ stores zero points less one and cannot hold a 0");
  s.format = SH_QF_AWQ;
  assert_int_equal(pack_changed(&s, &c, &e), 0);
  c.scales[5] = 1.0001f; /* no f16 */
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_ARG);
  assert_says(e.text, "row 2, group 1 is not one of F16");
  c.scales[5] = 1e6f; /* over the largest */
  assert_int_equal(pack_changed(&s, &c, &e), SH_ERR_ARG);
  free_codes(&c);
  free_codes(&d);
}

static void packing_survives_failing_allocations(void **state) {
  (void)state;
  sh_qscheme s = {.format = SH_QF_CT, .bits = 4, .group = 32, .order = true};
  sh_qcodes c = draw_codes(&s, 512, 1024, SH_F16, 5);
  int failed = 0;
  for (long n = 0;; n++) {
    assert_true(n < 50);
    sh_arena *a = sh_arena_new(1 << 24);
    sh_ftensor t[SH_QPACK_MAX];
    int k;
    sh_mem_fail_after(n);
    int rc = sh_qpack(&c, &s, "m", a, t, &k, NULL);
    sh_mem_fail_after(-1);
    sh_arena_free(a);
    if (!rc) break;
    assert_int_equal(rc, SH_ERR_NOMEM);
    failed++;
  }
  assert_true(failed > 0);
  free_codes(&c);
}

/* --- config.json */

static void the_config_is_the_sources_with_the_scheme(void **state) {
  (void)state;
  static const char SOURCE[] = "{\"model_type\":\"x\",\"quantization_config\":{\"quant_method\":\"fp8\"},\"text_config\":{\"a\":1.50,"
                               "\"compression_config\":{},\"b\":[]},\"z\":\"{\\\"[,:\"}";
  static const char *const IGNORED[] = {"lm_head",
                                        "model.language_model.layers.0.linear_attn.in_proj_a",
                                        "model.language_model.layers.2.linear_attn.in_proj_a",
                                        "model.language_model.layers.2.mlp.gate",
                                        "mtp.layers.0.mlp.up_proj",
                                        "mtp.fc",
                                        "model.visual.blocks.1.attn.qkv"};
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *source, *made;
  sh_buf text;
  sh_buf_init(&text, 1 << 20);
  assert_int_equal(sh_json_parse(SOURCE, sizeof SOURCE - 1, NULL, a, &source, NULL), 0);
  for (size_t k = 0; k < sizeof SCHEMES / sizeof SCHEMES[0]; k++) {
    sh_qscheme s = SCHEMES[k];
    s.group = s.int8_activations || (k % 3 == 0 && !s.order) ? -1 : 128;
    s.ignored = IGNORED;
    s.n_ignored = 7;
    sh_error e = {0};
    sh_buf_reset(&text);
    if (sh_qconfig_text(source, &s, &text, &e)) fail_msg("%s", e.text);
    if (sh_json_parse(text.p, text.len, NULL, a, &made, &e)) fail_msg("%s in %s", e.text, text.p);
    assert_null(sh_json_path(made, "text_config.compression_config"));
    assert_string_equal(sh_json_path(made, "text_config.a")->s, "1.50");
    assert_string_equal(sh_json_get(made, "z")->s, "{\"[,:");
    const sh_json *q = sh_json_get(made, "quantization_config");
    assert_true(sh_json_eq_str(sh_json_get(q, "quant_method"), sh_qformat_name(s.format)));
    const sh_json *names = sh_json_get(q, s.format == SH_QF_AWQ ? "modules_to_not_convert" : "ignore");
    if (s.format != SH_QF_GPTQ) {
      assert_int_equal(names->len, 7);
      assert_string_equal(names->items[6].s, IGNORED[6]);
      continue;
    }
    static const char *const RULES[] = {"-:.*lm_head$", "-:(?!.*mtp).*layers\\.(0|2)\\.linear_attn\\.(in_proj_a|in_proj_ba)$",
                                        "-:(?!.*mtp).*layers\\.(2)\\.mlp\\.gate$", "-:.*mtp.*", "-:.*visual.*"};
    const sh_json *rules = sh_json_get(q, "dynamic");
    assert_int_equal(rules->len, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(rules->members[i].key, RULES[i]);
    assert_false(sh_json_get(q, "lm_head")->b);
  }
  sh_qscheme with_mtp = {.format = SH_QF_GPTQ, .bits = 4, .group = 64, .mtp = true, .ignored = IGNORED + 4, .n_ignored = 2};
  sh_buf_reset(&text);
  assert_int_equal(sh_qconfig_text(source, &with_mtp, &text, NULL), 0);
  assert_int_equal(sh_json_parse(text.p, text.len, NULL, a, &made, NULL), 0);
  const sh_json *single = sh_json_path(made, "quantization_config.dynamic");
  assert_int_equal(single->len, 2);
  assert_string_equal(single->members[0].key, "-:.*mtp\\.layers\\.(0)\\.mlp\\.(up_proj|gate_up_proj)$");
  assert_string_equal(single->members[1].key, "-:.*mtp\\.fc$");
  assert_int_equal(sh_qconfig_text(NULL, &SCHEMES[0], &text, NULL), SH_ERR_ARG);
  sh_buf_free(&text);
  sh_arena_free(a);
}

int main(void) {
#define IN_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, make_temp_dir, remove_temp_dir)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(packed_codes_are_read_back_as_they_were),
      cmocka_unit_test(every_layout_has_its_tensors),
      cmocka_unit_test(what_a_layout_cannot_hold_is_refused_with_what_can),
      cmocka_unit_test(codes_that_contradict_the_scheme_are_refused),
      cmocka_unit_test(packing_survives_failing_allocations),
      cmocka_unit_test(the_config_is_the_sources_with_the_scheme),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
