/* The memory plan: what fits, what is shortened, and what the sentences say. */
#include "engine/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((int64_t)1 << 20)

/* 4 KiB per row and 1 MiB per sequence: logits and the like. */
static int64_t scratch(void *ctx, int max_tokens, int n_seqs) {
  (void)ctx;
  return (int64_t)max_tokens * 4096 + n_seqs * MIB;
}

static sh_plan_in base(void) {
  return (sh_plan_in){.total_bytes = 16384 * MIB,
                      .utilization = 0.9,
                      .weight_bytes = 1600 * MIB,
                      .kv_bytes_per_token = 24576,
                      .state_bytes_per_seq = 19 * MIB,
                      .model_max_len = 262144,
                      .scratch = scratch};
}

static void on_a_roomy_machine_everything_is_served(void **state) {
  (void)state;
  sh_plan_in in = base();
  sh_plan p;
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_int_equal(p.max_num_seqs, 64);
  assert_int_equal(p.max_model_len, 262144);
  assert_false(p.shortened);
  assert_int_equal(p.page_size, 16);
  assert_int_equal(p.max_num_batched_tokens, 2048);
  int64_t used = p.weight_bytes + p.scratch_bytes + p.max_num_seqs * p.state_bytes_per_seq + p.n_pages * p.page_size * p.kv_bytes_per_token;
  assert_true(used <= p.budget_bytes);
  assert_true(used + p.page_size * p.kv_bytes_per_token > p.budget_bytes);
  assert_true(p.n_pages * p.page_size >= p.max_model_len);
}

static void whatever_the_sizes_the_budget_is_kept(void **state) {
  (void)state;
  uint32_t r = 77;
  int made = 0;
  for (int i = 0; i < 20000; i++) {
    sh_plan_in in = base();
    sh_plan p;
    uint32_t v[8];
    for (int k = 0; k < 8; k++) v[k] = (r = r * 1664525u + 1013904223u) >> 8;
    in.total_bytes = (int64_t)(v[0] % 30000 + 1) * MIB;
    in.weight_bytes = (int64_t)(v[1] % 8000) * MIB;
    in.kv_bytes_per_token = v[2] % 200000;
    in.state_bytes_per_seq = v[3] % (40 * MIB);
    in.model_max_len = v[4] % 300000 + 2;
    if (v[5] % 3 == 0) in.asked_max_num_seqs = v[5] % 200 + 1;
    if (v[6] % 3 == 0) in.asked_max_model_len = v[6] % in.model_max_len + 1;
    if (v[7] % 3 == 0) in.asked_block_size = v[7] % 256 + 1;
    sh_error e;
    int rc = sh_plan_make(&p, &in, &e);
    if (rc) {
      assert_true(rc == SH_ERR_LIMIT || rc == SH_ERR_ARG);
      assert_true(strlen(e.text) > 20);
      continue;
    }
    made++;
    assert_true(p.weight_bytes + p.scratch_bytes + p.max_num_seqs * p.state_bytes_per_seq +
                    p.n_pages * p.page_size * p.kv_bytes_per_token <=
                p.budget_bytes);
    assert_true(p.n_pages * p.page_size >= p.max_model_len);
    assert_true(p.max_num_batched_tokens >= p.max_num_seqs);
    assert_true(p.max_model_len <= in.model_max_len);
    assert_true(!in.asked_max_model_len || p.shortened == (p.max_model_len < in.asked_max_model_len));
    assert_true(!in.asked_max_num_seqs || p.max_num_seqs == in.asked_max_num_seqs);
  }
  assert_true(made > 5000);
}

static void a_context_that_does_not_fit_is_shortened(void **state) {
  (void)state;
  sh_plan_in in = base();
  sh_plan p;
  in.total_bytes = 4096 * MIB;
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_true(p.shortened);
  assert_true(p.max_model_len < 262144 && p.max_model_len >= 256);
  assert_int_equal(p.max_model_len, p.n_pages * p.page_size);
  in.asked_max_model_len = 200000;
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_true(p.shortened);
}

static void sequences_give_way_to_the_context_down_to_eight(void **state) {
  (void)state;
  sh_plan_in in = base();
  sh_plan p;
  in.total_bytes = 9500 * MIB; /* a whole context fits beside some 18 states */
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_false(p.shortened);
  assert_in_range(p.max_num_seqs, 8, 40);
}

static void an_impossible_start_says_the_numbers(void **state) {
  (void)state;
  sh_plan_in in = base();
  sh_plan p;
  sh_error e;
  in.total_bytes = 1700 * MIB;
  assert_int_equal(sh_plan_make(&p, &in, &e), SH_ERR_LIMIT);
  assert_non_null(strstr(e.text, "1.6 GiB"));
  assert_non_null(strstr(e.text, "256 are needed"));
}

static void a_small_machine_gets_smaller_steps_before_it_is_refused(void **state) {
  (void)state;
  sh_plan_in in = base();
  sh_plan p;
  in.utilization = 1;
  in.total_bytes = (1600 + 19 + 1 + 2 + 256 * 24576 / MIB + 1) * MIB; /* weights, state, scratch of one sequence and of 512 rows, KV */
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_true(p.max_num_batched_tokens < 2048);
  assert_int_equal(p.max_num_seqs, 1);
  in.asked_max_num_batched_tokens = 2048;
  assert_int_equal(sh_plan_make(&p, &in, NULL), SH_ERR_LIMIT);
}

static void more_memory_never_means_a_shorter_context(void **state) {
  (void)state;
  int64_t last = 0;
  int served = 0;
  for (int64_t mib = 1600; mib < 3000; mib++) {
    sh_plan_in in = base();
    sh_plan p;
    in.total_bytes = mib * MIB;
    in.utilization = 1;
    in.asked_max_num_seqs = 4;
    if (sh_plan_make(&p, &in, NULL)) continue;
    served++;
    assert_true(p.max_model_len >= last);
    last = p.max_model_len;
  }
  assert_true(served > 1000);
  assert_true(last > 32768);
}

static void contradictions_are_refused(void **state) {
  (void)state;
  sh_plan p;
  sh_error e;
  sh_plan_in in = base();
  in.asked_max_model_len = 262145;
  assert_int_equal(sh_plan_make(&p, &in, &e), SH_ERR_ARG);
  assert_non_null(strstr(e.text, "262145"));
  assert_non_null(strstr(e.text, "262144"));
  in = base();
  in.asked_max_num_seqs = 300;
  in.asked_max_num_batched_tokens = 299;
  assert_int_equal(sh_plan_make(&p, &in, &e), SH_ERR_ARG);
  in = base();
  in.utilization = 1.5;
  assert_int_equal(sh_plan_make(&p, &in, &e), SH_ERR_ARG);
  in = base();
  in.asked_block_size = -1;
  assert_int_equal(sh_plan_make(&p, &in, &e), SH_ERR_ARG);
}

static void a_short_asked_context_needs_no_more_than_itself(void **state) {
  (void)state;
  sh_plan p;
  sh_plan_in in = base();
  in.asked_max_model_len = 40;
  assert_int_equal(sh_plan_make(&p, &in, NULL), 0);
  assert_int_equal(p.max_model_len, 40);
  assert_int_equal(p.n_pages, 3 * p.max_num_seqs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(on_a_roomy_machine_everything_is_served),
      cmocka_unit_test(whatever_the_sizes_the_budget_is_kept),
      cmocka_unit_test(a_context_that_does_not_fit_is_shortened),
      cmocka_unit_test(sequences_give_way_to_the_context_down_to_eight),
      cmocka_unit_test(an_impossible_start_says_the_numbers),
      cmocka_unit_test(a_small_machine_gets_smaller_steps_before_it_is_refused),
      cmocka_unit_test(more_memory_never_means_a_shorter_context),
      cmocka_unit_test(contradictions_are_refused),
      cmocka_unit_test(a_short_asked_context_needs_no_more_than_itself),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
