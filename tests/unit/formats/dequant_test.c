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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f16_conversions_are_inverse_for_every_value),
      cmocka_unit_test(f16_rounds_halfway_cases_to_even),
      cmocka_unit_test(bf16_conversions_round_to_even_and_keep_nan),
      cmocka_unit_test(a_q8_0_block_is_scale_times_integer),
      cmocka_unit_test(q4_blocks_put_low_nibbles_first),
      cmocka_unit_test(a_q6_k_block_assembles_six_bits_per_weight),
      cmocka_unit_test(the_source_may_have_any_alignment),
      cmocka_unit_test(rows_of_the_golden_files_equal_the_gguf_package),
      cmocka_unit_test(rows_of_smollm2_equal_the_gguf_package),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
