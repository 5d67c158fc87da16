/* Dequantization: conversions of half types against the definition, blocks against numbers worked out by hand and, on the golden files, by
 * the gguf package. */
#include "formats/dequant.h"

#include <math.h>

#include "formats/checkpoint.h"
#include "unit/formats/files.h"

static void f16_conversions_are_inverse_for_every_value(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = sh_f16_to_f32((uint16_t)h);
    int exp = h >> 10 & 31, man = h & 1023;
    double want = exp ? ldexp(1 + man / 1024.0, exp - 15) : ldexp(man, -24);
    if (exp == 31) {
      assert_true(man ? isnan(f) : isinf(f));
      if (man) assert_true((sh_f32_to_f16(f) & 0x7c00) == 0x7c00 && (sh_f32_to_f16(f) & 0x3ff));
      else assert_int_equal(sh_f32_to_f16(f), h);
      continue;
    }
    assert_true((double)f == (h & 0x8000 ? -want : want));
    assert_int_equal(sh_f32_to_f16(f), h);
  }
}

static void f16_rounds_halfway_cases_to_even(void **state) {
  (void)state;
  assert_int_equal(sh_f32_to_f16(1 + 0x1p-11f), 0x3c00);     /* halfway to 1 + 2^-10: stays even */
  assert_int_equal(sh_f32_to_f16(1 + 3 * 0x1p-11f), 0x3c02); /* halfway, odd below: up */
  assert_int_equal(sh_f32_to_f16(nextafterf(1 + 0x1p-11f, 2)), 0x3c01);
  assert_int_equal(sh_f32_to_f16(0x1p-25f), 0); /* halfway to the least subnormal */
  assert_int_equal(sh_f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
  assert_int_equal(sh_f32_to_f16(0x1.ff8p-15f), 0x3ff); /* 2^-14 - 2^-24: the largest subnormal */
  assert_int_equal(sh_f32_to_f16(0x1.fffp-15f), 0x400); /* rounds up into the normals */
  assert_int_equal(sh_f32_to_f16(65519.0f), 0x7bff);
  assert_int_equal(sh_f32_to_f16(65520.0f), 0x7c00);
  assert_int_equal(sh_f32_to_f16(-1e30f), 0xfc00);
}

static void bf16_conversions_round_to_even_and_keep_nan(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = sh_bf16_to_f32((uint16_t)h);
    if (isnan(f)) assert_true(isnan(sh_bf16_to_f32(sh_f32_to_bf16(f))));
    else assert_int_equal(sh_f32_to_bf16(f), h);
  }
  assert_int_equal(sh_f32_to_bf16(1 + 0x1p-8f), 0x3f80);
  assert_int_equal(sh_f32_to_bf16(1 + 3 * 0x1p-8f), 0x3f82);
  uint32_t low_nan = 0x7f800001; /* the payload lies in the bits that are cut off */
  float f;
  memcpy(&f, &low_nan, 4);
  assert_true(isnan(sh_bf16_to_f32(sh_f32_to_bf16(f))));
}

static void a_q8_0_block_is_scale_times_integer(void **state) {
  (void)state;
  uint8_t b[34] = {0x00, 0x38}; /* d = 0.5 */
  for (int i = 0; i < 32; i++) b[2 + i] = (uint8_t)(i * 8 - 128);
  float out[32];
  sh_dequant(SH_Q8_0, b, 32, out);
  for (int i = 0; i < 32; i++) assert_true(out[i] == 0.5f * (float)(i * 8 - 128));
}

static void q4_blocks_put_low_nibbles_first(void **state) {
  (void)state;
  uint8_t b0[18] = {0x00, 0x40}, b1[20] = {0x00, 0x40, 0x00, 0xbc}; /* d = 2; m = -1 */
  for (int i = 0; i < 16; i++) b0[2 + i] = b1[4 + i] = (uint8_t)(i | (15 - i) << 4);
  float x[32], y[32];
  sh_dequant(SH_Q4_0, b0, 32, x);
  sh_dequant(SH_Q4_1, b1, 32, y);
  for (int i = 0; i < 16; i++) {
    assert_true(x[i] == 2.0f * (float)(i - 8));
    assert_true(x[16 + i] == 2.0f * (float)(7 - i));
    assert_true(y[i] == 2.0f * (float)i - 1);
    assert_true(y[16 + i] == 2.0f * (float)(15 - i) - 1);
  }
}

/* Every position of the block set alone: 6 bits go where they belong, under the scale of their 16. */
static void a_q6_k_block_assembles_six_bits_per_weight(void **state) {
  (void)state;
  for (int w = 0; w < 256; w++) {
    uint8_t b[210] = {0};
    int half = w / 128, r = w % 128 / 32, i = w % 32;
    int q = (w * 37 + 11) % 64;
    b[64 * half + 32 * (r & 1) + i] = (uint8_t)(r < 2 ? q & 15 : (q & 15) << 4);
    b[128 + 32 * half + i] = (uint8_t)(q >> 4 << (2 * r));
    for (int s = 0; s < 16; s++) b[192 + s] = (uint8_t)(s - 8);
    b[208] = 0x00, b[209] = 0x34; /* d = 0.25 */
    float out[256];
    sh_dequant(SH_Q6_K, b, 256, out);
    for (int k = 0; k < 256; k++) assert_true(out[k] == 0.25f * (float)(k / 16 - 8) * (float)((k == w ? q : 0) - 32));
  }
}

/* Bytes from a formula, scales put in place; the numbers are the gguf package's (0.19) for the same bytes. */
static void blocks_of_any_bytes_equal_the_gguf_package(void **state) {
  (void)state;
  static const struct {
    sh_dtype type;
    struct {
      int at, bits;
    } half[2]; /* bits 0: none */
    float first[4], last[2];
    double sum;
  } CASES[] = {
      {SH_Q5_0, {{0, 0x2e66}}, {-0x1.ccbp-1, 0x1.998p-1, -0x1.998p-2, 0x1.332p-2}, {0x1.332p-1, -0x1.998p0}, 1.6995849609375},
      {SH_Q5_1, {{0, 0x2e66}, {2, 0xb00d}}, {0x1.561cp1, 0x1.c5ep0, 0x1.12b8p0, 0x1.162p1}, {0x1.3c84p1, 0x1.e4ap-2}, 53.13525390625},
      {SH_Q4_K,
       {{0, 0x1e66}, {2, 0x240d}},
       {0x1.c4d7p0, -0x1.30b8p-4, 0x1.2df6cp2, 0x1.165eap2},
       {0x1.4aap0, 0x1.3547p1},
       395.90960693359375},
      {SH_Q5_K,
       {{0, 0x1e66}, {2, 0x240d}},
       {0x1.2df6cp2, 0x1.18c01p3, 0x1.c4d7p0, 0x1.d31fap2},
       {-0x1.52cp-6, 0x1.054ap1},
       914.3829956054688},
      {SH_IQ4_NL, {{0, 0x2166}}, {0x1.0decp-2, -0x1.18b8p0, 0x1.9a48p-2, 0x1.598p-7}, {0x1.747ep-1, -0x1.c012p-1}, -0.274139404296875},
      {SH_Q6_K, {{208, 0x1166}}, {-0x1.2e5p-6, 0x1.9faep-4, -0x1.79e4p-4, 0x1.1b6bp-3}, {0x1.acd6ap0, 0x1.75812p0}, 9.65023422241211},
  };
  for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
    uint8_t b[210];
    float out[256];
    int n = sh_dtype_block(CASES[c].type);
    for (int i = 0; i < sh_dtype_block_bytes(CASES[c].type); i++) b[i] = (uint8_t)((i * i * 37 + i * 101 + 11) >> 2);
    for (int i = 0; i < 2 && CASES[c].half[i].bits; i++) {
      b[CASES[c].half[i].at] = (uint8_t)CASES[c].half[i].bits;
      b[CASES[c].half[i].at + 1] = (uint8_t)(CASES[c].half[i].bits >> 8);
    }
    assert_true(sh_dequant_supported(CASES[c].type));
    sh_dequant(CASES[c].type, b, n, out);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)out[i];
    for (int i = 0; i < 4; i++) assert_true(out[i] == CASES[c].first[i]);
    for (int i = 0; i < 2; i++) assert_true(out[n - 2 + i] == CASES[c].last[i]);
    assert_true(sum == CASES[c].sum);
  }
}

static void e4m3_has_no_infinities_and_one_nan_of_each_sign(void **state) {
  (void)state;
  for (int b = 0; b < 256; b++) {
    int exp = b >> 3 & 15, man = b & 7;
    float f = sh_f8_e4m3_to_f32((uint8_t)b);
    if ((b & 0x7f) == 0x7f) {
      assert_true(isnan(f));
      continue;
    }
    double want = exp ? ldexp(8 + man, exp - 10) : ldexp(man, -9);
    assert_true((double)f == (b & 0x80 ? -want : want) && !!signbit(f) == b >> 7);
  }
  assert_true(sh_f8_e4m3_to_f32(0x7e) == 448);
  assert_true(sh_f8_e4m3_to_f32(0x01) == 0x1p-9f);
}

/* Two rows of 48 columns in groups of 16: weight (r, c) holds c % 16, in a group with zero point and scale of its own. */
static void int4_rows_take_scale_and_zero_point_of_their_group(void **state) {
  (void)state;
  uint8_t q[2 * 24], zeros[2 * 3] = {0, 8, 16, 3, 15, 1}, scales[2 * 3 * 4 + 1];
  static const float S[6] = {1, 0.1f, -2, 0.3f, 1e-30f, 7};
  for (int i = 0; i < 48; i++) q[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
  sh_wview v = {.type = SH_I4, .rows = 2, .cols = 48, .data = q, .row_bytes = 24, .group = 16, .scale_rows = 1, .scales = scales + 1};
  for (int t = 0; t < 3; t++) {
    v.scale_type = t == 0 ? SH_F32 : t == 1 ? SH_F16 : SH_BF16;
    v.scale_row_bytes = t == 0 ? 12 : 6;
    float s[6], row[48], part[20];
    for (int i = 0; i < 6; i++) {
      uint16_t h = t == 1 ? sh_f32_to_f16(S[i]) : sh_f32_to_bf16(S[i]);
      s[i] = t == 0 ? S[i] : t == 1 ? sh_f16_to_f32(h) : sh_bf16_to_f32(h);
      if (t == 0) memcpy(scales + 1 + 4 * i, &s[i], 4);
      else memcpy(scales + 1 + 2 * i, &h, 2);
    }
    for (int with_zeros = 0; with_zeros < 2; with_zeros++) {
      v.zeros = with_zeros ? zeros : NULL;
      v.zero_row_bytes = 3;
      for (int r = 0; r < 2; r++) {
        sh_dequant_row(&v, r, row);
        for (int c = 0; c < 48; c++) assert_true(row[c] == (float)(c % 16 - (with_zeros ? zeros[3 * r + c / 16] : 8)) * s[3 * r + c / 16]);
        sh_dequant_cols(&v, r, 10, 20, part);
        assert_memory_equal(part, row + 10, sizeof part);
      }
    }
  }
}

static void an_order_of_columns_is_undone(void **state) {
  (void)state;
  enum { COLS = 320 };
  uint8_t q[COLS / 2], scale[4];
  int32_t perm[COLS];
  float one = 1, row[COLS], stored[COLS];
  memcpy(scale, &one, 4);
  for (int i = 0; i < COLS; i++) perm[i] = i * 7 % COLS;
  for (int i = 0; i < COLS / 2; i++) q[i] = (uint8_t)(i * 29);
  sh_wview v = {.type = SH_I4,
                .rows = 1,
                .cols = COLS,
                .data = q,
                .row_bytes = COLS / 2,
                .group = COLS,
                .scale_rows = 1,
                .scales = scale,
                .scale_type = SH_F32,
                .scale_row_bytes = 4};
  sh_dequant_row(&v, 0, stored);
  v.perm = perm;
  sh_dequant_row(&v, 0, row);
  for (int c = 0; c < COLS; c++) assert_true(row[perm[c]] == stored[c]);
}

/* Blocks of 2 x 48 over 5 x 100: the last ones are short. */
static void e4m3_blocks_share_scales_between_rows(void **state) {
  (void)state;
  uint8_t q[5 * 100];
  float scales[3 * 3], row[100];
  for (int i = 0; i < 500; i++) q[i] = (uint8_t)(i * 7 % 127); /* no NaN */
  for (int i = 0; i < 9; i++) scales[i] = 0.1f * (float)(i + 1);
  sh_wview v = {.type = SH_F8_E4M3,
                .rows = 5,
                .cols = 100,
                .data = q,
                .row_bytes = 100,
                .group = 48,
                .scale_rows = 2,
                .scale_type = SH_F32,
                .scales = (const uint8_t *)scales,
                .scale_row_bytes = 12};
  for (int r = 0; r < 5; r++) {
    sh_dequant_row(&v, r, row);
    for (int c = 0; c < 100; c++) assert_true(row[c] == sh_f8_e4m3_to_f32(q[100 * r + c]) * scales[r / 2 * 3 + c / 48]);
  }
}

static void the_source_may_have_any_alignment(void **state) {
  (void)state;
  uint8_t raw[4 * 8 + 1];
  for (int i = 0; i < 33; i++) raw[i] = (uint8_t)(i * 11 + 1);
  float a[8], b[8];
  uint8_t copy[32];
  memcpy(copy, raw + 1, 32);
  sh_dequant(SH_F32, raw + 1, 8, a);
  memcpy(b, copy, 32);
  assert_memory_equal(a, b, 32);
}

typedef struct golden_row {
  const char *file, *tensor;
  int64_t row;
  float first[4], last[2];
  double sum;
} golden_row;

static void check_rows(const golden_row *rows, int n) {
  for (int i = 0; i < n; i++) {
    sh_ckpt *c;
    sh_error e = {0};
    if (sh_ckpt_open(&c, rows[i].file, 0, &e)) fail_msg("%s", e.text);
    const sh_ftensor *t = sh_ckpt_find(c, rows[i].tensor);
    assert_non_null(t);
    int64_t cols = t->dims[t->n_dims - 1];
    size_t row_bytes = (size_t)(cols / sh_dtype_block(t->type)) * (size_t)sh_dtype_block_bytes(t->type);
    sh_wview v = {
        .type = t->type, .rows = sh_ftensor_count(t) / cols, .cols = cols, .data = t->data, .row_bytes = row_bytes, .name = t->name};
    float *out = sh_malloc((size_t)cols * sizeof *out);
    assert_non_null(out);
    sh_dequant_row(&v, rows[i].row, out);
    double sum = 0;
    for (int64_t k = 0; k < cols; k++) sum += (double)out[k];
    for (int k = 0; k < 4; k++) assert_true(out[k] == rows[i].first[k]);
    for (int k = 0; k < 2; k++) assert_true(out[cols - 2 + k] == rows[i].last[k]);
    assert_true(sum == rows[i].sum);
    sh_free(out);
    sh_ckpt_close(c);
  }
}

static void rows_of_the_golden_files_equal_the_gguf_package(void **state) {
  (void)state;
  static const golden_row ROWS[] = {
      {"tests/golden/gguf/dense-real-Q4_0.gguf",
       "blk.3.attn_q.weight",
       1000,
       {0x1.dp-4, -0.0f, 0x1.dp-6, 0x1.5cp-5},
       {0x1.82p-6, -0x1.218p-4},
       -0.1339111328125},
      {"tests/golden/gguf/dense-real-Q4_0.gguf",
       "output.weight",
       639,
       {0x1.80ap-5, -0x1.f1cp-5, -0x1.6ap-4, 0x1.0f8p-6},
       {-0x1.6ap-6, 0x1.6ap-8},
       0.12661314010620117},
      {"tests/golden/gguf/moe-small-Q8_0.gguf",
       "blk.2.ffn_up_exps.weight",
       4 * 128 + 17,
       {-0x1.437p-7, 0x1.6521p-5, 0, -0x1.036c8p-4},
       {-0x1.9b08p-8, 0x1.d5cp-8},
       0.48580455780029297},
      {"tests/golden/gguf/moe-small-bf16.gguf",
       "blk.0.ffn_gate_inp.weight",
       3,
       {-0x1.68p-5, -0x1.54p-5, -0x1.14p-5, -0x1.52p-6},
       {-0x1.e8p-9, -0x1.eap-6},
       -1.148305892944336},
      {"tests/golden/gguf/dense-real-Q5_0.gguf",
       "blk.3.attn_q.weight",
       1000,
       {0x1.dp-4, -0.0f, 0x1.dp-6, 0x1.5cp-5},
       {0x1.218p-5, -0x1.e28p-5},
       -0.1011962890625},
      {"tests/golden/gguf/dense-real-Q5_1.gguf",
       "blk.0.ffn_down.weight",
       17,
       {0x1.1cp-3, -0x1p-5, -0x1.4p-6, 0x1.6p-6},
       {-0x1.6ap-5, 0x1.93b8p-6},
       -0.09450149536132812},
      {"tests/golden/gguf/dense-real-Q4_K_M.gguf",
       "blk.3.attn_q.weight",
       1000,
       {0x1.d7e58p-4, 0x1.c35p-8, 0x1.fb38p-6, 0x1.6035p-5},
       {0x1.dc2ap-6, -0x1.e434p-5},
       -0.07199907302856445},
      {"tests/golden/gguf/dense-real-Q4_K_M.gguf",
       "token_embd.weight",
       77,
       {-0x1.b7bp-4, 0x1.438ep-1, -0x1.b7bp-4, 0x1.04p-6},
       {0x1.ec6p-4, 0x1.ec6p-4},
       11.330390930175781},
      {"tests/golden/gguf/dense-real-Q5_K_M.gguf",
       "blk.0.attn_qkv.weight",
       300,
       {0x1.8cf0cp-5, -0x1.b7aep-7, -0x1.77ccp-6, 0x1.e1f78p-6},
       {0x1.88a4ep-5, -0x1.e6f42p-5},
       0.9562137126922607},
  };
  check_rows(ROWS, (int)(sizeof ROWS / sizeof ROWS[0]));
}

static void rows_of_smollm2_equal_the_gguf_package(void **state) {
  (void)state;
  const char *path = getenv("SHENG_SMOLLM2");
  if (!path || !*path) {
    print_message("skipped: SHENG_SMOLLM2 does not name the GGUF of SmolLM2-135M-Instruct\n");
    skip();
  }
  const golden_row rows[] = {
      {path, "blk.7.ffn_down.weight", 500, {-0x1.104p-5, 0x1.a038p-2, -0x1.acp-2, 0x1.a038p-2}, {-0x1.49p-5, -0x1.a2p-2}, 6.998046875},
      {path, "token_embd.weight", 49151, {0x1.79p-7, 0x1.79p-8, 0x1.909p-4, -0x1.909p-4}, {-0x1.eb16p-4, -0x1.55ap-5}, -0.4662208557128906},
  };
  check_rows(rows, 2);
}

static void bytes_with_scales_follow_their_layouts(void **state) {
  (void)state;
  static const uint8_t q[2][4] = {{0, 127, 128, 255}, {1, 2, 3, 200}}, zeros[2][2] = {{0, 255}, {7, 128}};
  static const float scales[2][2] = {{0.5f, -2}, {1, 3}};
  sh_wview v = {.type = SH_I8, .rows = 2, .cols = 4, .data = q[0], .row_bytes = 4, .group = 2, .scale_rows = 1};
  float out[4];
  v.scale_type = SH_F32;
  v.scales = (const uint8_t *)scales;
  v.scale_row_bytes = 8;
  sh_dequant_row(&v, 0, out);
  assert_memory_equal(out, ((float[]){0, 63.5f, 256, 2}), sizeof out);
  v.type = SH_U8; /* no zero points: 128 */
  sh_dequant_row(&v, 1, out);
  assert_memory_equal(out, ((float[]){-127, -126, -375, 216}), sizeof out);
  v.zeros = zeros[0];
  v.zero_row_bytes = 2;
  sh_dequant_row(&v, 0, out);
  assert_memory_equal(out, ((float[]){0, 63.5f, 254, -0.0f}), sizeof out);
  sh_dequant_cols(&v, 1, 1, 2, out);
  assert_memory_equal(out, ((float[]){-5, -375}), 2 * sizeof *out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_with_scales_follow_their_layouts),
      cmocka_unit_test(f16_conversions_are_inverse_for_every_value),
      cmocka_unit_test(f16_rounds_halfway_cases_to_even),
      cmocka_unit_test(bf16_conversions_round_to_even_and_keep_nan),
      cmocka_unit_test(a_q8_0_block_is_scale_times_integer),
      cmocka_unit_test(q4_blocks_put_low_nibbles_first),
      cmocka_unit_test(a_q6_k_block_assembles_six_bits_per_weight),
      cmocka_unit_test(blocks_of_any_bytes_equal_the_gguf_package),
      cmocka_unit_test(e4m3_has_no_infinities_and_one_nan_of_each_sign),
      cmocka_unit_test(int4_rows_take_scale_and_zero_point_of_their_group),
      cmocka_unit_test(an_order_of_columns_is_undone),
      cmocka_unit_test(e4m3_blocks_share_scales_between_rows),
      cmocka_unit_test(the_source_may_have_any_alignment),
      cmocka_unit_test(rows_of_the_golden_files_equal_the_gguf_package),
      cmocka_unit_test(rows_of_smollm2_equal_the_gguf_package),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
