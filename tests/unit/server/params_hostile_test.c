/* Request bodies under damage: a 4xx with a sentence, or parameters inside the ranges that the engine relies on. And memory that runs out
 * is a 503, wherever it does. */
#include "unit/hostile.h"

#include <math.h>

#include "base/log.h"
#include "server/params.h"

static const sh_params_limits LIMITS = {640, 20};
static const sh_api_kind KINDS[] = {SH_API_CHAT, SH_API_COMPLETION, SH_API_TOKENIZE};

static const char CHAT[] =
    "{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"h\"}], \"n\": 2, \"max_tokens\": 16, \"min_tokens\": 1,"
    "\"temperature\": 0.7, \"top_p\": 0.9, \"top_k\": 20, \"min_p\": 0.05, \"repetition_penalty\": 1.1, \"presence_penalty\": -0.5,"
    "\"frequency_penalty\": 0.5, \"seed\": 7, \"stop\": [\"a\", \"bc\"], \"stop_token_ids\": [1, 2], \"logit_bias\": {\"5\": 1.5, \"6\": "
    "-100},"
    "\"bad_words\": [\"x\"], \"allowed_token_ids\": [1, 5, 6], \"logprobs\": true, \"top_logprobs\": 3, \"stream\": true,"
    "\"stream_options\": {\"include_usage\": true}, \"chat_template_kwargs\": {\"enable_thinking\": false}, \"documents\": [],"
    "\"response_format\": {\"type\": \"text\"}, \"truncate_prompt_tokens\": 9, \"user\": \"u\", \"reasoning_effort\": \"low\"}";
static const char COMPLETION[] =
    "{\"prompt\": [\"a\", \"b\"], \"echo\": true, \"logprobs\": 4, \"prompt_logprobs\": 2, \"best_of\": 2, \"n\": 2, \"max_tokens\": 3,"
    "\"ignore_eos\": true, \"stop\": \"x\", \"logit_bias\": {\"1\": 2}, \"seed\": -3, \"suffix\": null, \"add_special_tokens\": false}";

static void check_ids(const int32_t *v, int n) {
  assert_true(n >= 0);
  for (int i = 0; i < n; i++) assert_true(v[i] >= 0 && v[i] < LIMITS.vocab);
}

static void check_strings(const sh_str *v, int n, int most) {
  assert_true(n >= 0 && n <= most);
  for (int i = 0; i < n; i++) assert_true(v[i].n > 0 && v[i].n <= SH_API_MAX_STOP_BYTES && sh_utf8_valid(v[i].p, v[i].n));
}

static void check_filled(const sh_params *p) {
  sh_gen_defaults d;
  sh_request_params r;
  sh_gen_defaults_read(NULL, &d);
  sh_params_fill(p, &d, &r);
  assert_true(r.n >= 1 && r.n <= SH_API_MAX_N);
  assert_true(r.temperature >= 0 && isfinite(r.temperature) && r.top_p > 0 && r.top_p <= 1 && r.min_p >= 0 && r.min_p <= 1);
  assert_true(r.repetition_penalty > 0 && isfinite(r.repetition_penalty) && r.top_k >= -1);
  assert_true(fabs(r.presence_penalty) <= 2 && fabs(r.frequency_penalty) <= 2);
  check_ids(p->stop_ids, p->n_stop_ids);
  check_ids(p->allowed, p->n_allowed);
  check_strings(p->stop, p->n_stop, SH_API_MAX_STOP);
  check_strings(p->bad_words, p->n_bad_words, SH_API_MAX_BAD_WORDS);
  for (int i = 0; i < p->n_bias; i++) assert_true(p->bias[i].id >= 0 && p->bias[i].id < LIMITS.vocab && fabs(p->bias[i].bias) <= 100);
}

/* ctx: which kind must accept the undamaged text; the others are tried too. */
static int read_body(const char *p, size_t n, void *ctx, sh_error *e) {
  int answer = 0;
  for (int k = 0; k < 3; k++) {
    sh_arena *a = sh_arena_new(1 << 20);
    sh_json *body;
    sh_params params;
    sh_api_error err = {0};
    assert_non_null(a);
    int rc = sh_json_parse(p, n, NULL, a, &body, e);
    if (!rc && !sh_json_is(body, SH_JSON_OBJECT)) rc = sh_fail(e, SH_ERR_FORMAT, "a body is an object");
    if (rc) {
      sh_arena_free(a);
      return rc;
    }
    rc = sh_params_parse(body, KINDS[k], &LIMITS, a, &params, &err);
    if (rc) {
      assert_int_equal(rc, -1);
      assert_int_equal(err.status, 400);
      assert_true(err.message[0] && sh_utf8_valid(err.message, strlen(err.message)) && sh_utf8_valid(err.param, strlen(err.param)));
      if (&KINDS[k] == ctx) answer = sh_fail(e, SH_ERR_ARG, "%s", err.message);
    } else {
      check_filled(&params);
    }
    sh_arena_free(a);
  }
  return answer;
}

static void hostile_body(const char *text, size_t n, const sh_api_kind *kind) {
  hostile h = {.fn = read_body, .ctx = (void *)(uintptr_t)kind};
  every_truncation(&h, text, n);
  assert_int_equal(h.accepted, 1);
  seeded_damage(&h, text, n, n / 3, 4000);
  every_value_replaced(&h, text, n);
  assert_both(&h, 300, 2000);
}

static void damaged_chats_are_refused_or_in_range(void **state) {
  (void)state;
  hostile_body(CHAT, sizeof CHAT - 1, &KINDS[0]);
}

static void damaged_completions_are_refused_or_in_range(void **state) {
  (void)state;
  hostile_body(COMPLETION, sizeof COMPLETION - 1, &KINDS[1]);
}

static void memory_that_runs_out_is_not_the_clients_fault(void **state) {
  (void)state;
  sh_arena *tree = sh_arena_new(1 << 20);
  sh_json *body;
  assert_int_equal(sh_json_parse(CHAT, sizeof CHAT - 1, NULL, tree, &body, NULL), 0);
  int rc = -1;
  for (long n = 0; rc; n++) {
    sh_arena *a = sh_arena_new(1 << 20);
    sh_params params;
    sh_api_error err = {0};
    assert_non_null(a);
    sh_mem_fail_after(n);
    rc = sh_params_parse(body, SH_API_CHAT, &LIMITS, a, &params, &err);
    sh_mem_fail_after(-1);
    if (rc && (err.status < 500 || !err.message[0])) fail_msg("allocation %ld: %d %s", n, err.status, err.message);
    sh_arena_free(a);
    assert_true(n < 1000);
  }
  sh_arena_free(tree);
}

int main(void) {
  cap_memory();
  sh_log_set_level(SH_LOG_ERROR); /* unknown fields are logged */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged_chats_are_refused_or_in_range),
      cmocka_unit_test(damaged_completions_are_refused_or_in_range),
      cmocka_unit_test(memory_that_runs_out_is_not_the_clients_fault),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
