/* Log probabilities against double arithmetic and sorting. */
#include "engine/logprob.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { V = 501 };

static uint32_t r = 3;
static void random_row(float *x) {
  for (int i = 0; i < V; i++) {
    r = r * 1664525u + 1013904223u;
    x[i] = (float)(int)(r >> 20) / 256.0f - 8.0f; /* some are equal */
  }
}

static double norm(const float *x) {
  double sum = 0;
  for (int i = 0; i < V; i++) sum += exp((double)x[i]);
  return log(sum);
}

static void the_normaliser_is_that_of_double_arithmetic(void **state) {
  (void)state;
  for (int round = 0; round < 50; round++) {
    float x[V];
    random_row(x);
    assert_true(fabs(sh_logprob_norm(x, V) - norm(x)) < 1e-6);
  }
}

static void the_top_k_are_those_of_sorting_with_equal_logits_by_id(void **state) {
  (void)state;
  for (int k = 0; k <= V + 2; k += k < 30 ? 1 : 59) {
    float x[V];
    bool used[V] = {false};
    sh_logprob top[V + 2];
    random_row(x);
    double lse = sh_logprob_norm(x, V);
    int n = sh_logprob_top(x, V, lse, k, top);
    assert_int_equal(n, k < V ? k : V);
    for (int i = 0; i < n; i++) {
      int best = -1;
      for (int v = 0; v < V; v++)
        if (!used[v] && (best < 0 || x[v] > x[best])) best = v;
      used[best] = true;
      assert_int_equal(top[i].id, best);
      assert_int_equal(top[i].rank, i + 1);
      assert_true(fabs((double)top[i].logprob - ((double)x[best] - lse)) < 1e-6);
    }
  }
}

static void the_rank_counts_larger_logits(void **state) {
  (void)state;
  float x[] = {1, 3, 2, 3, -INFINITY};
  double lse = sh_logprob_norm(x, 5);
  assert_int_equal(sh_logprob_of(x, 5, lse, 1).rank, 1);
  assert_int_equal(sh_logprob_of(x, 5, lse, 3).rank, 1);
  assert_int_equal(sh_logprob_of(x, 5, lse, 2).rank, 3);
  assert_int_equal(sh_logprob_of(x, 5, lse, 0).rank, 4);
  assert_true(sh_logprob_of(x, 5, lse, 4).logprob == -INFINITY);
}

static void a_broken_row_has_no_finite_normaliser(void **state) {
  (void)state;
  float a[] = {1, NAN, 2}, b[] = {1, INFINITY}, c[] = {-INFINITY, -INFINITY};
  assert_false(isfinite(sh_logprob_norm(a, 3)));
  assert_false(isfinite(sh_logprob_norm(b, 2)));
  assert_false(isfinite(sh_logprob_norm(c, 2)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_normaliser_is_that_of_double_arithmetic),
      cmocka_unit_test(the_top_k_are_those_of_sorting_with_equal_logits_by_id),
      cmocka_unit_test(the_rank_counts_larger_logits),
      cmocka_unit_test(a_broken_row_has_no_finite_normaliser),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
