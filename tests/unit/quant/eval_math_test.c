/* The measures against values worked out by hand. */
#include "quant/eval_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void near(double got, double want, double tolerance) {
  if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) fail_msg("%.17g, wanted %.17g", got, want);
}

/* Logits are float32, so log 3 and the like are rounded before anything is computed: 2^-24 relative. */
static const double F32 = 1e-7;

static void kl_of_two_known_distributions(void **state) {
  (void)state;
  /* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): sum p log(p/q) = 1/2 log 2 - 1/4 log 2 = log(2) / 4; offsets of logits do not count */
  const float p[] = {5 + logf(2), 5, 5}, q[] = {-3, -3, -3 + logf(2)};
  sh_eval_row row;
  sh_eval_score_row(q, p, 3, 0, &row);
  assert_true(row.finite);
  near(row.kl, log(2) / 4, F32);
  near(row.nll, log(4), F32);
  near(row.nll_ref, log(2), F32);
  assert_int_equal(row.top, 2);
  assert_int_equal(row.top_ref, 0);
  /* the other way round is another number in general: p = (2/3, 1/3), q = (1/3, 2/3) is symmetric, (9/10, 1/10) to (1/2, 1/2) is not */
  const float a[] = {logf(9), 0}, b[] = {0, 0};
  sh_eval_score_row(b, a, 2, 1, &row);
  near(row.kl, 0.9 * log(1.8) + 0.1 * log(0.2), F32);
  sh_eval_score_row(a, b, 2, 1, &row);
  near(row.kl, 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1), F32);
  near(row.nll, log(10), F32);
}

static void equal_rows_have_kl_exactly_zero(void **state) {
  (void)state;
  float x[1000];
  uint32_t r = 7;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 1000; i++) x[i] = (float)((r = r * 1664525u + 1013904223u) >> 8) / (float)(1 << 19) - 16;
    sh_eval_row row;
    sh_eval_score_row(x, x, 1000, 3, &row);
    assert_true(row.kl == 0 && row.finite);
    assert_true(row.nll == row.nll_ref);
    assert_int_equal(row.top, row.top_ref);
  }
}

static void kl_is_never_negative(void **state) {
  (void)state;
  float x[50], y[50];
  uint32_t r = 9;
  for (int round = 0; round < 2000; round++) {
    for (int i = 0; i < 50; i++) {
      x[i] = (float)((r = r * 1664525u + 1013904223u) >> 8) / (float)(1 << 20);
      y[i] = nextafterf(x[i], (r >> 20) % 2 ? 100 : -100); /* so near that rounding decides */
    }
    sh_eval_row row;
    sh_eval_score_row(x, y, 50, 0, &row);
    assert_true(row.kl >= 0 && row.kl < 1e-10);
  }
}

static void ties_go_to_the_lowest_id(void **state) {
  (void)state;
  const float x[] = {1, 3, 3, 2};
  assert_int_equal(sh_eval_argmax(x, 4), 1);
}

static void logits_that_are_no_numbers_are_noticed(void **state) {
  (void)state;
  float x[] = {1, 2, 3}, good[] = {1, 1, 1};
  sh_eval_row row;
  x[1] = NAN;
  sh_eval_score_row(x, NULL, 3, 0, &row);
  assert_false(row.finite);
  sh_eval_score_row(good, x, 3, 0, &row);
  assert_false(row.finite);
  x[1] = INFINITY;
  sh_eval_score_row(x, good, 3, 0, &row);
  assert_false(row.finite);
}

static void log_probabilities_of_known_logits(void **state) {
  (void)state;
  const float x[] = {logf(1), logf(2), logf(5)};
  near(sh_eval_log_prob(x, 3, 1), log(0.25), F32);
  near(sh_eval_log_prob(x, 2, 1), log(2.0 / 3), F32); /* ids beyond the count are ignored */
}

static void quantiles_lie_between_neighbours(void **state) {
  (void)state;
  double v[] = {4, 1, 3, 2}; /* numpy.quantile([1, 2, 3, 4], [0, .5, .99, 1]) = 1, 2.5, 3.97, 4 */
  sh_eval_sort(v, 4);
  near(sh_eval_quantile(v, 4, 0), 1, 0);
  near(sh_eval_quantile(v, 4, 0.5), 2.5, 1e-15);
  near(sh_eval_quantile(v, 4, 0.99), 3.97, 1e-15);
  near(sh_eval_quantile(v, 4, 1), 4, 0);
  near(sh_eval_quantile(v, 1, 0.99), 1, 0);
}

static void prefixes_end_at_the_first_difference(void **state) {
  (void)state;
  const int32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 9, 4};
  assert_int_equal(sh_eval_common_prefix(a, 4, b, 4), 2);
  assert_int_equal(sh_eval_common_prefix(a, 4, a, 4), 4);
  assert_int_equal(sh_eval_common_prefix(a, 4, a, 3), 3);
  assert_int_equal(sh_eval_common_prefix(a, 0, b, 4), 0);
}

static void relative_errors_of_known_vectors(void **state) {
  (void)state;
  const float ref[] = {3, 4}, h[] = {3, 4.5f}, zero[] = {0, 0};
  near(sh_eval_relative_error(h, ref, 2), 0.1, 1e-15);
  assert_true(sh_eval_relative_error(ref, ref, 2) == 0);
  assert_true(sh_eval_relative_error(zero, ref, 2) == 1);
  assert_true(sh_eval_relative_error(zero, zero, 2) == 0);
  assert_true(sh_eval_relative_error(h, zero, 2) == 1);
}

static void bins_are_four_a_decade(void **state) {
  (void)state;
  assert_int_equal(sh_eval_bin(0), 0);
  assert_int_equal(sh_eval_bin(9e-9), 0);
  assert_int_equal(sh_eval_bin(1.01e-8), 1);
  assert_int_equal(sh_eval_bin(1.1), 33);
  assert_int_equal(sh_eval_bin(1000), SH_EVAL_BINS - 1);
  near(sh_eval_bin_from(33), 1, 1e-12);
  near(sh_eval_bin_from(SH_EVAL_BINS - 1), 100, 1e-12);
  for (int i = 1; i < SH_EVAL_BINS; i++) {
    assert_true(sh_eval_bin_from(i) > sh_eval_bin_from(i - 1));
    assert_int_equal(sh_eval_bin(sh_eval_bin_from(i)), i);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kl_of_two_known_distributions),
      cmocka_unit_test(equal_rows_have_kl_exactly_zero),
      cmocka_unit_test(kl_is_never_negative),
      cmocka_unit_test(ties_go_to_the_lowest_id),
      cmocka_unit_test(logits_that_are_no_numbers_are_noticed),
      cmocka_unit_test(log_probabilities_of_known_logits),
      cmocka_unit_test(quantiles_lie_between_neighbours),
      cmocka_unit_test(prefixes_end_at_the_first_difference),
      cmocka_unit_test(relative_errors_of_known_vectors),
      cmocka_unit_test(bins_are_four_a_decade),
  };
  return cmocka_run_group_tests_name("eval_math", tests, NULL, NULL);
}
