/* Sampling against a naive implementation that sorts, and against the distribution it must follow. */
#include "engine/sample.h"

#include "base/mem.h"
#include "engine/weight_exp.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t rnd_state = 4101842887655102017u;
static double uniform(void) {
  rnd_state ^= rnd_state >> 21;
  rnd_state ^= rnd_state << 35;
  rnd_state ^= rnd_state >> 4;
  return (double)((rnd_state * 2685821657736338717u) >> 11) * 0x1p-53;
}

enum { V = 300 };

typedef struct entry {
  int id;
  float x;
  double w;
} entry;

static int by_likelihood(const void *a, const void *b) {
  const entry *p = a, *q = b;
  if (p->x != q->x) return p->x < q->x ? 1 : -1;
  return p->id - q->id;
}

/* vLLM's filters the plain way: sort, cut, cut. keep[id]. */
static void naive(const float *logits, const sh_draw *p, bool keep[V]) {
  entry e[V];
  for (int i = 0; i < V; i++) e[i] = (entry){i, logits[i] / p->temperature, 0};
  qsort(e, V, sizeof *e, by_likelihood);
  int n = 0;
  for (int i = 0; i < V; i++) {
    e[i].w = exp((double)e[i].x - (double)e[0].x);
    if (e[i].w >= (double)p->min_p && e[i].x > -INFINITY) n = i + 1;
  }
  if (p->top_k > 0 && p->top_k < n) {
    int k = p->top_k;
    while (k < n && e[k].x == e[p->top_k - 1].x) k++;
    n = k;
  }
  double total = 0, above = 0;
  for (int i = 0; i < n; i++) total += e[i].w;
  memset(keep, 0, V * sizeof *keep);
  for (int i = 0; i < n; i++) {
    if (i == 0 || above / total < (double)p->top_p || p->top_p >= 1) keep[e[i].id] = true;
    above += e[i].w;
  }
}

static void random_logits(float *x, int kind) {
  for (int i = 0; i < V; i++) {
    x[i] = (float)((uniform() + uniform() + uniform() - 1.5) * (kind == 1 ? 40 : 8));
    if (kind == 2) x[i] = floorf(x[i]); /* many equal */
    if (kind == 3 && uniform() < 0.4) x[i] = -INFINITY;
    if (kind == 4) x[i] = 1e-4f * x[i];
    if (kind == 5) x[i] = i % 7 ? x[i] : -0.0f;
  }
}

static void the_kept_ids_are_those_of_sorting(void **state) {
  (void)state;
  sh_sampler s;
  assert_int_equal(sh_sampler_init(&s, V, NULL), 0);
  int kept_some = 0;
  for (int round = 0; round < 4000; round++) {
    float x[V];
    random_logits(x, round % 6);
    sh_draw p = {.temperature = round % 3 ? 1.0f : 0.1f + (float)uniform() * 2, .top_p = 1, .min_p = 0, .top_k = 0};
    if (round & 8) p.top_k = 1 + (int)(uniform() * (round & 64 ? V + 5 : 60)); /* small ones and large ones go different ways */
    if (round & 16) p.top_p = (float)uniform() * 0.999f + 0.0005f;
    if (round & 32) p.min_p = (float)(uniform() * uniform());
    bool keep[V];
    naive(x, &p, keep);
    assert_int_equal(sh_sample_prepare(&s, x, &p, NULL), 0);
    int n = 0;
    for (int i = 0; i < V; i++) {
      bool has = n < s.m && s.ids[n] == i;
      n += has;
      assert_int_equal(has, keep[i]);
    }
    assert_int_equal(n, s.m);
    kept_some += n > 1 && n < V;
  }
  assert_true(kept_some > 1000);
  sh_sampler_free(&s);
}

/* Pearson's statistic over ids that are expected at least 5 times; the bound is the 1 - 1e-6 quantile by Wilson and Hilferty. */
static void check_chi_square(const long *count, const double *prob, int n, long draws) {
  double stat = 0;
  int cells = 0;
  for (int i = 0; i < n; i++) {
    double want = prob[i] * (double)draws;
    if (want == 0) assert_int_equal(count[i], 0);
    if (want < 5) continue;
    stat += ((double)count[i] - want) * ((double)count[i] - want) / want;
    cells++;
  }
  double k = cells - 1, z = 4.75, h = 2 / (9 * k), bound = k * pow(1 - h + z * sqrt(h), 3);
  assert_true(cells > 3);
  assert_true(stat < bound);
}

static void draws_follow_the_softmax(void **state) {
  (void)state;
  enum { N = 24, DRAWS = 400000 };
  sh_sampler s;
  assert_int_equal(sh_sampler_init(&s, N, NULL), 0);
  const sh_draw how[] = {{1, 1, 0, 0}, {0.7f, 1, 0, 6}, {1.3f, 0.8f, 0, 0}, {1, 1, 0.2f, 0}};
  for (int k = 0; k < 4; k++) {
    float x[N];
    double prob[N] = {0}, total = 0;
    long count[N] = {0};
    for (int i = 0; i < N; i++) x[i] = (float)(uniform() * 4);
    float raw[N];
    memcpy(raw, x, sizeof raw);
    assert_int_equal(sh_sample_prepare(&s, x, &how[k], NULL), 0);
    for (int i = 0; i < s.m; i++) total += prob[s.ids[i]] = exp((double)(raw[s.ids[i]] / how[k].temperature));
    for (int i = 0; i < N; i++) prob[i] /= total;
    for (long d = 0; d < DRAWS; d++) count[sh_sample_draw(&s, sh_sample_uniform(11, (uint64_t)d, (uint64_t)k))]++;
    check_chi_square(count, prob, N, DRAWS);
  }
  sh_sampler_free(&s);
}

static void uniforms_are_uniform_along_each_counter(void **state) {
  (void)state;
  enum { CELLS = 64, DRAWS = 200000 };
  double prob[CELLS];
  for (int i = 0; i < CELLS; i++) prob[i] = 1.0 / CELLS;
  for (int axis = 0; axis < 3; axis++) {
    long count[CELLS] = {0};
    double last = 0, corr = 0;
    for (uint64_t d = 0; d < DRAWS; d++) {
      double u = sh_sample_uniform(axis == 0 ? d : 5, axis == 1 ? d : 6, axis == 2 ? d : 7);
      assert_true(u >= 0 && u < 1);
      count[(int)(u * CELLS)]++;
      corr += (u - 0.5) * (last - 0.5) * 12;
      last = u;
    }
    check_chi_square(count, prob, CELLS, DRAWS);
    assert_true(fabs(corr / DRAWS) < 0.012); /* five standard deviations */
  }
}

static void the_same_key_gives_the_same_number_for_ever(void **state) {
  (void)state;
  assert_true(sh_sample_uniform(1, 2, 3) == sh_sample_uniform(1, 2, 3));
  assert_true(sh_sample_uniform(0, 0, 0) != sh_sample_uniform(0, 0, 1));
  assert_true(sh_sample_uniform(0, 1, 0) != sh_sample_uniform(1, 0, 0));
  /* Written down once: a change would change what every stored seed gives. */
  assert_true(sh_sample_uniform(42, 7, 1) == 0x1.aa0c5b5fcd066p-1);
}

static void below_the_least_temperature_the_lowest_of_the_best_is_taken(void **state) {
  (void)state;
  sh_sampler s;
  assert_int_equal(sh_sampler_init(&s, 6, NULL), 0);
  float x[] = {1, 5, 2, 5, 5, -INFINITY};
  sh_draw p = {.temperature = 0.9e-5f, .top_p = 1};
  assert_int_equal(sh_sample_prepare(&s, x, &p, NULL), 0);
  assert_int_equal(sh_sample_draw(&s, 0.999), 1);
  sh_sampler_free(&s);
}

static void a_single_id_left_is_always_drawn(void **state) {
  (void)state;
  sh_sampler s;
  assert_int_equal(sh_sampler_init(&s, 4, NULL), 0);
  for (int k = 0; k < 3; k++) {
    float x[] = {-3, -INFINITY, 2, 1};
    sh_draw p = {.temperature = 1, .top_p = k == 0 ? 1e-6f : 1, .min_p = k == 1 ? 1.0f : 0, .top_k = k == 2 ? 1 : 0};
    assert_int_equal(sh_sample_prepare(&s, x, &p, NULL), 0);
    assert_int_equal(s.m, 1);
    assert_int_equal(sh_sample_draw(&s, 0), 2);
    assert_int_equal(sh_sample_draw(&s, 0.9999999), 2);
  }
  sh_sampler_free(&s);
}

static void an_id_of_no_weight_is_never_drawn(void **state) {
  (void)state;
  sh_sampler s;
  assert_int_equal(sh_sampler_init(&s, 4, NULL), 0);
  float x[] = {-500, 0, -INFINITY, -500};
  sh_draw p = {.temperature = 1, .top_p = 1};
  assert_int_equal(sh_sample_prepare(&s, x, &p, NULL), 0);
  assert_int_equal(sh_sample_draw(&s, 0), 1);
  assert_int_equal(sh_sample_draw(&s, 1 - 0x1p-53), 1);
  sh_sampler_free(&s);
}

static void broken_logits_are_an_error(void **state) {
  (void)state;
  sh_sampler s;
  sh_error e;
  assert_int_equal(sh_sampler_init(&s, 3, NULL), 0);
  sh_draw p = {.temperature = 1, .top_p = 1};
  float nan_row[] = {1, NAN, 2}, inf_row[] = {1, INFINITY, 2}, masked[] = {-INFINITY, -INFINITY, -INFINITY};
  assert_int_equal(sh_sample_prepare(&s, nan_row, &p, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_sample_prepare(&s, inf_row, &p, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_sample_prepare(&s, masked, &p, &e), SH_ERR_ARG);
  p.temperature = 0;
  float again[] = {NAN, 1, 2};
  assert_int_equal(sh_sample_prepare(&s, again, &p, &e), SH_ERR_INTERNAL);
  sh_sampler_free(&s);
}

/* Quotients beyond a float: the distribution is that of the difference to the best. */
static void a_low_temperature_over_far_logits_draws_the_best(void **state) {
  (void)state;
  static const float rows[][4] = {
      {1, FLT_MAX, -FLT_MAX, -INFINITY}, {-FLT_MAX, -1e38f, -INFINITY, -FLT_MAX}, {3e34f, 3.1e34f, 0, -5}, {-FLT_MAX, FLT_MAX, 1e30f, 3}};
  static const sh_draw draws[] = {{.temperature = 1.1e-5f, .top_p = 1},
                                  {.temperature = 1.1e-5f, .top_p = 0.5f},
                                  {.temperature = 0.01f, .top_p = 1, .top_k = 2},
                                  {.temperature = 1, .top_p = 0.9f, .min_p = 0.1f}};
  sh_sampler s;
  sh_error e;
  assert_int_equal(sh_sampler_init(&s, 4, NULL), 0);
  for (size_t i = 0; i < 4; i++) {
    for (size_t k = 0; k < 4; k++) {
      float x[4];
      memcpy(x, rows[i], sizeof x);
      if (sh_sample_prepare(&s, x, &draws[k], &e)) fail_msg("%zu %zu: %s", i, k, e.text);
      assert_true(isfinite(s.total) && s.total == 1);
      assert_int_equal(sh_sample_draw(&s, 0), 1);
      assert_int_equal(sh_sample_draw(&s, 1 - 0x1p-53), 1);
    }
  }
  float equal[] = {FLT_MAX, 1, FLT_MAX, FLT_MAX};
  assert_int_equal(sh_sample_prepare(&s, equal, &draws[0], &e), 0);
  assert_true(s.total == 3);
  sh_sampler_free(&s);
}

static void the_own_exp_is_that_of_libm(void **state) {
  (void)state;
  for (float x = 0; x > -86.9f; x -= 0.00137f) {
    double want = exp((double)x);
    assert_true(fabs((double)sh_weight_exp(x) - want) < 2.5e-7 * want);
  }
  assert_true(sh_weight_exp(0) == 1);
  assert_true(sh_weight_exp(-INFINITY) == 0);
  assert_true(sh_weight_exp(-1e30f) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_kept_ids_are_those_of_sorting),
      cmocka_unit_test(draws_follow_the_softmax),
      cmocka_unit_test(uniforms_are_uniform_along_each_counter),
      cmocka_unit_test(the_same_key_gives_the_same_number_for_ever),
      cmocka_unit_test(below_the_least_temperature_the_lowest_of_the_best_is_taken),
      cmocka_unit_test(a_single_id_left_is_always_drawn),
      cmocka_unit_test(an_id_of_no_weight_is_never_drawn),
      cmocka_unit_test(broken_logits_are_an_error),
      cmocka_unit_test(a_low_temperature_over_far_logits_draws_the_best),
      cmocka_unit_test(the_own_exp_is_that_of_libm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
