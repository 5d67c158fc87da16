/* Values that are drawn: their mean and deviation, whatever the type; never a code that no quantizer writes; the same for any number of
 * threads. */
#include "synth/fill.h"

#include <math.h>

#include "formats/dequant.h"
#include "unit/quant/fast_dir.h"

static sh_pool *pools[3];

static int begin(void **state) {
  sh_error e = {0};
  for (int i = 0; i < 3; i++) {
    if (sh_pool_new(&pools[i], i + 1, &e)) return -1;
  }
  return make_fast_dir(state);
}

static int end(void **state) {
  for (int i = 0; i < 3; i++) sh_pool_free(pools[i]);
  return remove_temp_dir(state);
}

static sh_ftensor tensor(const char *name, sh_dtype type, int64_t rows, int64_t cols) {
  return (sh_ftensor){.name = name,
                      .type = type,
                      .n_dims = 2,
                      .dims = {rows, cols},
                      .bytes = (size_t)(rows * cols / sh_dtype_block(type)) * (size_t)sh_dtype_block_bytes(type)};
}

/* The bytes (sh_free) with that many threads. */
static uint8_t *draw(const sh_ftensor *t, const sh_fill *fill, int threads, uint64_t seed) {
  sh_filler *f;
  sh_file_out o = {0};
  sh_error e = {0};
  size_t n = 0;
  if (sh_filler_new(&f, pools[threads - 1], seed, &e) || sh_file_out_open(&o, in_temp("drawn"), &e) ||
      sh_filler_write(f, t, fill, NULL, &o, &e) || sh_file_out_commit(&o, &e))
    fail_msg("%s", e.text);
  sh_filler_free(f);
  uint8_t *p = (uint8_t *)slurp(in_temp("drawn"), &n);
  assert_int_equal(n, t->bytes);
  return p;
}

static void check_moments(const char *what, const float *x, int64_t n, double mean, double std) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) fail_msg("%s: weight %lld is not finite", what, (long long)i);
    sum += (double)x[i];
    squares += (double)x[i] * (double)x[i];
  }
  double m = sum / (double)n, s = sqrt(squares / (double)n - m * m);
  /* over 1e6 weights a mean of 0 is found within 0.001 deviations; scales of random sign make that 0.002 */
  if (fabs(m - mean) > 0.008 * std) fail_msg("%s: mean %g, wanted %g (deviation %g)", what, m, mean, std);
  if (s < 0.95 * std || s > 1.05 * std) fail_msg("%s: deviation %g, wanted %g", what, s, std);
}

static const sh_dtype BLOCKS[] = {SH_F32, SH_F16, SH_BF16, SH_Q8_0, SH_Q4_0, SH_Q4_1, SH_Q4_K, SH_Q5_K, SH_Q6_K};
enum { N_BLOCKS = sizeof BLOCKS / sizeof *BLOCKS };

static void weights_have_the_deviation_that_was_asked_for(void **state) {
  (void)state;
  static const double STDS[] = {0.7 / 16, 0.7 / 132}; /* 256 and 17408 columns: scales of float16 are subnormal with the latter */
  for (int k = 0; k < N_BLOCKS; k++) {
    for (int j = 0; j < 2; j++) {
      sh_ftensor t = tensor("w", BLOCKS[k], 600, 2048);
      const sh_fill fill = {SH_FILL_WEIGHT, STDS[j], 0, 0};
      uint8_t *p = draw(&t, &fill, 2, 1);
      int64_t n = t.dims[0] * t.dims[1];
      float *x = sh_malloc((size_t)n * sizeof *x);
      sh_dequant(t.type, p, n, x);
      check_moments(sh_dtype_name(t.type), x, n, 0, STDS[j]);
      sh_free(x);
      sh_free(p);
    }
  }
}

static void codes_lie_evenly_around_their_zero_point(void **state) {
  (void)state;
  enum { N = 1 << 20 };
  float *x = sh_malloc(N * sizeof *x);
  sh_ftensor words = tensor("q", SH_I32, 1, N / 8), i8 = tensor("i", SH_I8, 1, N), f8 = tensor("f", SH_F8_E4M3, 1, N);
  const sh_fill codes = {.kind = SH_FILL_CODES}, zeros = {.kind = SH_FILL_ZEROS}, weights = {.kind = SH_FILL_WEIGHT, .a = 1};
  uint8_t *p = draw(&words, &codes, 2, 1);
  for (int i = 0; i < N; i++) {
    int q = p[i / 2] >> (i % 2 * 4) & 15;
    assert_int_not_equal(q, 0);
    x[i] = (float)(q - 8);
  }
  check_moments("codes", x, N, 0, SH_FILL_CODES_STD);
  sh_free(p);
  p = draw(&words, &zeros, 2, 1);
  for (int i = 0; i < N; i++) {
    int z = p[i / 2] >> (i % 2 * 4) & 15;
    assert_in_range(z, 7, 9);
    x[i] = (float)(z - 8);
  }
  check_moments("zero points", x, N, 0, sqrt(0.5));
  sh_free(p);
  p = draw(&i8, &weights, 2, 1);
  for (int i = 0; i < N; i++) {
    assert_int_not_equal(p[i], 0x80);
    x[i] = (float)(int8_t)p[i];
  }
  check_moments("I8", x, N, 0, SH_FILL_I8_STD);
  sh_free(p);
  p = draw(&f8, &weights, 2, 1);
  for (int i = 0; i < N; i++) x[i] = sh_f8_e4m3_to_f32(p[i]);
  check_moments("F8_E4M3", x, N, 0, SH_FILL_F8_STD);
  sh_free(p);
  sh_free(x);
}

static void small_tensors_hold_what_their_kind_says(void **state) {
  (void)state;
  sh_ftensor scales = tensor("s", SH_F16, 3, 1001), a = tensor("a", SH_F32, 1, 48), idx = tensor("g", SH_I32, 1, 300),
             word = tensor("z", SH_I32, 7, 3), shape = tensor("shape", SH_I64, 1, 2);
  const sh_fill range = {SH_FILL_RANGE, 0.01, 0.02, 0}, minus_exp = {SH_FILL_NEG_EXP, -1, 1, 0}, steps = {SH_FILL_STEPS, 0, 0, 128},
                sevens = {SH_FILL_WORD, 0, 0, 0x77777777}, dims = {SH_FILL_SHAPE, 17408, 5120, 0};
  uint16_t h;
  float x;
  int32_t v;
  int64_t d[2];
  uint8_t *p = draw(&scales, &range, 2, 1);
  for (size_t i = 0; i < scales.bytes; i += 2) {
    memcpy(&h, p + i, 2);
    assert_true(sh_f16_to_f32(h) >= 0.0099f && sh_f16_to_f32(h) <= 0.0201f);
  }
  sh_free(p);
  p = draw(&a, &minus_exp, 2, 1);
  for (size_t i = 0; i < a.bytes; i += 4) {
    memcpy(&x, p + i, 4);
    assert_true(x <= -0.367f && x >= -2.72f);
  }
  sh_free(p);
  p = draw(&idx, &steps, 2, 1);
  for (int i = 0; i < 300; i++) {
    memcpy(&v, p + 4 * i, 4);
    assert_int_equal(v, i / 128);
  }
  sh_free(p);
  p = draw(&word, &sevens, 2, 1);
  for (size_t i = 0; i < word.bytes; i++) assert_int_equal(p[i], 0x77);
  sh_free(p);
  p = draw(&shape, &dims, 2, 1);
  memcpy(d, p, 16);
  assert_int_equal(d[0], 17408);
  assert_int_equal(d[1], 5120);
  sh_free(p);
}

static void bytes_follow_from_seed_and_name_alone(void **state) {
  (void)state;
  const sh_fill fill = {SH_FILL_WEIGHT, 0.02, 0, 0};
  for (int k = 0; k < N_BLOCKS; k++) {
    /* over a window and a part of a piece */
    sh_ftensor t = tensor("w", BLOCKS[k], 101, 256 * (BLOCKS[k] == SH_F32 ? 301 : 17)), other = t;
    other.name = "v";
    uint8_t *one = draw(&t, &fill, 1, 7), *three = draw(&t, &fill, 3, 7), *seed = draw(&t, &fill, 1, 8), *name = draw(&other, &fill, 1, 7);
    assert_memory_equal(one, three, t.bytes);
    assert_memory_not_equal(one, seed, t.bytes);
    assert_memory_not_equal(one, name, t.bytes);
    sh_free(one);
    sh_free(three);
    sh_free(seed);
    sh_free(name);
  }
}

static void a_stop_and_a_wrong_type_are_errors(void **state) {
  (void)state;
  bool stop = true;
  sh_filler *f;
  sh_file_out o = {0};
  sh_error e = {0};
  sh_ftensor t = tensor("w", SH_BF16, 10, 10), words = tensor("q", SH_I32, 10, 10);
  const sh_fill fill = {SH_FILL_WEIGHT, 0.02, 0, 0};
  if (sh_filler_new(&f, pools[0], 1, &e) || sh_file_out_open(&o, in_temp("drawn"), &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_filler_write(f, &t, &fill, &stop, &o, &e), SH_ERR_CANCELLED);
  assert_int_equal(sh_filler_write(f, &words, &fill, NULL, &o, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_file_out_bytes(&o), 0);
  sh_file_out_abandon(&o);
  sh_filler_free(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(weights_have_the_deviation_that_was_asked_for),
      cmocka_unit_test(codes_lie_evenly_around_their_zero_point),
      cmocka_unit_test(small_tensors_hold_what_their_kind_says),
      cmocka_unit_test(bytes_follow_from_seed_and_name_alone),
      cmocka_unit_test(a_stop_and_a_wrong_type_are_errors),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
