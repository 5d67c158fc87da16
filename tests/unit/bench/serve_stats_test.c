/* Percentiles against values worked out by hand and by numpy. */
#include "unit/base/harness.h"

#include "base/mem.h"
#include "bench/serve_stats.h"
#include <math.h>

static void percentiles_are_linear_between_samples(void **state) {
  (void)state;
  static const double v[] = {1, 2, 4, 8};
  assert_true(sh_bpercentile(v, 4, 0) == 1);
  assert_true(sh_bpercentile(v, 4, 50) == 3); /* numpy.percentile([1, 2, 4, 8], 50) */
  assert_true(fabs(sh_bpercentile(v, 4, 90) - 6.8) < 1e-12);
  assert_true(fabs(sh_bpercentile(v, 4, 99) - 7.88) < 1e-12);
  assert_true(sh_bpercentile(v, 4, 100) == 8);
  assert_true(sh_bpercentile(v, 1, 99) == 1);
  assert_true(sh_bpercentile(v, 0, 50) == 0);
}

static void a_summary_sorts_and_keeps_every_sample(void **state) {
  (void)state;
  sh_bsamples s = {0}, more = {0};
  sh_bsummary sum;
  for (int i = 1000; i >= 1; i--) assert_int_equal(sh_bsamples_add(i % 2 ? &s : &more, i), 0);
  assert_int_equal(sh_bsamples_add_all(&s, &more), 0);
  sh_bsummary_of(&sum, &s);
  assert_int_equal(sum.n, 1000);
  assert_true(sum.mean == 500.5 && fabs(sum.sd - sqrt(999999 / 12.0)) < 1e-9);
  assert_true(sum.q[0] == 1 && sum.q[100] == 1000 && sum.q[50] == 500.5);
  assert_true(fabs(sum.q[99] - 990.01) < 1e-9);
  for (int i = 0; i < 100; i++) assert_true(sum.q[i] <= sum.q[i + 1]);
  sh_bsamples_free(&s);
  sh_bsamples_free(&more);
  sh_bsummary_of(&sum, &s);
  assert_true(sum.n == 0 && sum.mean == 0 && sum.q[99] == 0);
}

static void a_sample_that_has_no_room_is_an_error_and_the_others_stay(void **state) {
  (void)state;
  sh_bsamples s = {0};
  sh_mem_fail_after(1);
  int n = 0;
  while (sh_bsamples_add(&s, n) == 0) n++;
  sh_mem_fail_after(-1);
  assert_true(n > 0 && s.n == (size_t)n && s.v[n - 1] == n - 1);
  assert_int_equal(sh_bsamples_add(&s, 7), 0);
  sh_bsamples_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(percentiles_are_linear_between_samples),
      cmocka_unit_test(a_summary_sorts_and_keeps_every_sample),
      cmocka_unit_test(a_sample_that_has_no_room_is_an_error_and_the_others_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
