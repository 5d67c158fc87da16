/* Lengths, arrivals and lists: their means, their limits, and that a seed fixes them. */
#include "unit/base/harness.h"

#include "bench/serve_dist.h"
#include <math.h>

enum { N = 40000 };

static void draw(const char *text, double *mean, double *sd, int64_t *low, int64_t *high) {
  sh_blen l;
  sh_error e;
  assert_int_equal(sh_blen_parse(&l, "--input-len", text, &e), 0);
  double sum = 0, square = 0;
  *low = INT64_MAX;
  *high = 0;
  for (int i = 0; i < N; i++) {
    sh_brng r = sh_brng_at(7, 1, (uint64_t)i);
    int64_t v = sh_blen_draw(&l, &r);
    if (v < *low) *low = v;
    if (v > *high) *high = v;
    sum += (double)v;
    square += (double)v * (double)v;
  }
  *mean = sum / N;
  *sd = sqrt(square / N - *mean * *mean);
}

static void lengths_have_the_mean_and_the_limits_that_were_asked_for(void **state) {
  (void)state;
  double mean, sd;
  int64_t low, high;
  draw("128", &mean, &sd, &low, &high);
  assert_true(mean == 128 && low == 128 && high == 128);
  draw("10-20", &mean, &sd, &low, &high); /* deviation of 11 equal values: sqrt(120 / 12) */
  assert_true(low == 10 && high == 20 && fabs(mean - 15) < 0.08 && fabs(sd - sqrt(10)) < 0.05);
  draw("normal:500,50", &mean, &sd, &low, &high);
  assert_true(fabs(mean - 500) < 1.5 && fabs(sd - 50) < 1);
  draw("normal:2,40", &mean, &sd, &low, &high);
  assert_true(low == 1 && high > 100);
}

static void a_length_that_makes_no_sense_is_refused_with_the_forms(void **state) {
  (void)state;
  static const char *const bad[] = {"",          "0",         "-5",          "5-3",         "3-",           "a",
                                    "1.5",       "normal:",   "normal:5",    "normal:0,1",  "normal:5,-1",  "normal:nan,1",
                                    "normal:5,", "file:",     "99999999999", "1-99999999",  "12 ",          "999999999999999999999999",
                                    "--",        "normal:,5", "1-2-3",       "normal:5,1x", "normal:1e9,1", "file"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    sh_blen l;
    sh_error e = {0};
    if (sh_blen_parse(&l, "--output-len", bad[i], &e) != SH_ERR_ARG) fail_msg("'%s' was taken", bad[i]);
    assert_contains(e.text, "--output-len");
    assert_contains(e.text, "normal:MEAN,SD");
  }
  sh_blen l;
  assert_int_equal(sh_blen_parse(&l, "--input-len", "file:a.jsonl", NULL), 0);
  assert_true(l.kind == SH_BLEN_FILE);
  assert_string_equal(l.path, "a.jsonl");
}

/* Mean and squared coefficient of variation of the gaps; the latter is 1 / burstiness. */
static void gaps(double rate, double burstiness, double *mean, double *cv2) {
  sh_brng r = sh_brng_at(3, 16, 0);
  double sum = 0, square = 0;
  for (int i = 0; i < N; i++) {
    double g = sh_barrival_gap(&r, rate, burstiness);
    assert_true(g >= 0 && isfinite(g));
    sum += g;
    square += g * g;
  }
  *mean = sum / N;
  *cv2 = square / N / (*mean * *mean) - 1;
}

static void arrivals_have_the_mean_rate_whatever_the_burstiness(void **state) {
  (void)state;
  static const double shapes[] = {0.25, 0.5, 1, 2, 10, 100};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    double mean, cv2;
    gaps(8, shapes[i], &mean, &cv2); /* five deviations of the mean of N gaps */
    assert_true(fabs(mean * 8 - 1) < 5 / sqrt(shapes[i] * N));
    assert_true(fabs(cv2 * shapes[i] - 1) < 0.15);
  }
  sh_brng r = sh_brng_at(3, 16, 0);
  assert_true(sh_barrival_gap(&r, INFINITY, 1) == 0);
}

static void the_same_seed_makes_the_same_schedule_and_another_one_another(void **state) {
  (void)state;
  sh_brng a = sh_brng_at(5, 16, 0), b = sh_brng_at(5, 16, 0), c = sh_brng_at(6, 16, 0), d = sh_brng_at(5, 17, 0);
  int same_c = 0, same_d = 0;
  for (int i = 0; i < 1000; i++) {
    double x = sh_barrival_gap(&a, 2, 0.7);
    assert_true(x == sh_barrival_gap(&b, 2, 0.7));
    same_c += x == sh_barrival_gap(&c, 2, 0.7);
    same_d += x == sh_barrival_gap(&d, 2, 0.7);
  }
  assert_int_equal(same_c, 0);
  assert_int_equal(same_d, 0);
}

static void numbers_below_a_limit_are_even(void **state) {
  (void)state;
  int seen[6] = {0};
  sh_brng r = sh_brng_at(1, 2, 3);
  for (int i = 0; i < N; i++) {
    uint64_t v = sh_brng_below(&r, 6);
    assert_true(v < 6);
    seen[v]++;
  }
  for (int i = 0; i < 6; i++) assert_true(abs(seen[i] - N / 6) < 400);
}

static void lists_are_read_and_their_faults_are_named(void **state) {
  (void)state;
  int64_t counts[4];
  double rates[4];
  int n;
  sh_error e = {0};
  assert_int_equal(sh_blist_counts(counts, 4, &n, "--concurrency", "1,4, 16", &e), 0);
  assert_true(n == 3 && counts[0] == 1 && counts[1] == 4 && counts[2] == 16);
  assert_int_equal(sh_blist_rates(rates, 4, &n, "--request-rate", "0.5,inf,20", &e), 0);
  assert_true(n == 3 && rates[0] == 0.5 && isinf(rates[1]) && rates[2] == 20);
  static const char *const bad[] = {"", ",", "0", "-1", "a", "1,2,3,4,5", "1;2", "70000", "1,x", "1e99999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    e.text[0] = 0;
    assert_int_equal(sh_blist_counts(counts, 4, &n, "--concurrency", bad[i], &e), SH_ERR_ARG);
    assert_contains(e.text, "--concurrency");
  }
  static const char *const bad_rates[] = {"", "0", "-1", "nan", "1,2,3,4,5", "infinite", "1e9"};
  for (size_t i = 0; i < sizeof bad_rates / sizeof *bad_rates; i++)
    assert_int_equal(sh_blist_rates(rates, 4, &n, "--request-rate", bad_rates[i], &e), SH_ERR_ARG);
}

static void goals_are_read_and_the_others_have_no_limit(void **state) {
  (void)state;
  sh_bgoal g;
  sh_error e = {0};
  assert_int_equal(sh_bgoal_parse(&g, "ttft:200,e2el:1500.5", &e), 0);
  assert_true(g.given && g.ttft_ms == 200 && isinf(g.tpot_ms) && g.e2el_ms == 1500.5);
  static const char *const bad[] = {"", "ttft", "ttft:", "ttft:0", "ttft:-1", "itl:5", "ttft:5,x:1", "tpot:nan"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(sh_bgoal_parse(&g, bad[i], &e), SH_ERR_ARG);
  assert_contains(e.text, "ttft:200");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lengths_have_the_mean_and_the_limits_that_were_asked_for),
      cmocka_unit_test(a_length_that_makes_no_sense_is_refused_with_the_forms),
      cmocka_unit_test(arrivals_have_the_mean_rate_whatever_the_burstiness),
      cmocka_unit_test(the_same_seed_makes_the_same_schedule_and_another_one_another),
      cmocka_unit_test(numbers_below_a_limit_are_even),
      cmocka_unit_test(lists_are_read_and_their_faults_are_named),
      cmocka_unit_test(goals_are_read_and_the_others_have_no_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
