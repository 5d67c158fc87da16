/* Request fields: types, ranges, defaults, refusals. The engine's parameters come out of sh_params_fill. */
#include "server/params.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static sh_arena *arena;
static sh_params p;
static sh_api_error err;
static const sh_params_limits limits = {640, 20};

static int setup(void **state) {
  (void)state;
  arena = sh_arena_new(16 << 20);
  return arena ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  sh_arena_free(arena);
  return 0;
}

static int parse(sh_api_kind kind, const char *text) {
  sh_json *v = NULL;
  memset(&err, 0, sizeof err);
  assert_int_equal(sh_json_parse(text, strlen(text), NULL, arena, &v, NULL), 0);
  return sh_params_parse(v, kind, &limits, arena, &p, &err);
}

static void refused(sh_api_kind kind, const char *text, const char *param) {
  int rc = parse(kind, text);
  if (rc == 0 || strcmp(err.param, param) != 0) print_error("%s: rc %d, param %s, %s\n", text, rc, err.param, err.message);
  assert_int_equal(rc, -1);
  assert_int_equal(err.status, 400);
  assert_string_equal(err.param, param);
  assert_true(strlen(err.message) > 10);
}

static void nothing_given_means_openai_defaults(void **state) {
  (void)state;
  sh_gen_defaults d;
  sh_request_params r;
  sh_gen_defaults_read(NULL, &d);
  assert_int_equal(parse(SH_API_CHAT, "{\"temperature\": null, \"stop\": null, \"tools\": null, \"n\": null}"), 0);
  sh_params_fill(&p, &d, &r);
  assert_int_equal(r.n, 1);
  assert_true(r.temperature == 1 && r.top_p == 1 && r.min_p == 0 && r.top_k == 0 && r.repetition_penalty == 1);
  assert_false(r.has_seed);
  assert_int_equal(r.logprobs, -1);
  assert_int_equal(r.prompt_logprobs, -1);
  assert_true(r.skip_special_tokens);
  assert_true(p.max_tokens == SH_UNSET);
  assert_true(p.add_generation_prompt);
  assert_false(p.add_special_tokens);
}

static void request_comes_before_generation_config_before_openai(void **state) {
  (void)state;
  const char *text = "{\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"repetition_penalty\": -1, \"max_new_tokens\": 77}";
  sh_json *config = NULL;
  sh_gen_defaults d;
  sh_request_params r;
  assert_int_equal(sh_json_parse(text, strlen(text), NULL, arena, &config, NULL), 0);
  sh_gen_defaults_read(config, &d);
  assert_int_equal(d.max_new_tokens, 77);
  assert_int_equal(parse(SH_API_COMPLETION, "{\"temperature\": 0, \"top_k\": -1}"), 0);
  sh_params_fill(&p, &d, &r);
  assert_true(r.temperature == 0);             /* of the request */
  assert_int_equal(r.top_k, 0);                /* of the request: off */
  assert_true(fabsf(r.top_p - 0.95f) < 1e-6f); /* of the config */
  assert_true(r.repetition_penalty == 1);      /* the config's is out of range */
}

static void every_field_arrives(void **state) {
  (void)state;
  sh_gen_defaults d;
  sh_request_params r;
  sh_gen_defaults_read(NULL, &d);
  assert_int_equal(
      parse(SH_API_COMPLETION,
            "{\"n\": 2.0, \"min_tokens\": 3, \"seed\": -5, \"stop\": [\"a\", \"b\\u0000c\"], "
            "\"stop_token_ids\": [1, 639], \"ignore_eos\": true,"
            "\"logit_bias\": {\"5\": 200, \"6\": -1.5}, \"bad_words\": \"no\", \"allowed_token_ids\": [7], "
            "\"logprobs\": 4, \"prompt_logprobs\": 0,"
            "\"include_stop_str_in_output\": true, \"skip_special_tokens\": false, \"presence_penalty\": "
            "-2, \"frequency_penalty\": 2, \"min_p\": 1,"
            "\"stream\": true, \"stream_options\": {\"include_usage\": true}, \"prompt_logprobs\": null}" /* the last of two counts */),
      0);
  sh_params_fill(&p, &d, &r);
  assert_int_equal(r.n, 2);
  assert_int_equal(r.min_tokens, 3);
  assert_true(r.has_seed && r.seed == (uint64_t)-5);
  assert_int_equal(r.n_stop, 2);
  assert_int_equal(r.stop[1].n, 3);
  assert_int_equal(r.stop_ids[1], 639);
  assert_int_equal(r.n_bias, 2);
  assert_true(r.bias[0].id == 5 && r.bias[0].bias == 100); /* clamped */
  assert_true(r.bias[1].bias == -1.5f);
  assert_int_equal(p.n_bad_words, 1);
  assert_true(r.n_allowed == 1 && r.allowed[0] == 7);
  assert_int_equal(r.logprobs, 4);
  assert_true(r.ignore_eos && r.include_stop_str_in_output && !r.skip_special_tokens && p.stream && p.include_usage);
  assert_int_equal(parse(SH_API_CHAT, "{\"logprobs\": true, \"top_logprobs\": 5}"), 0);
  sh_params_fill(&p, &d, &r);
  assert_int_equal(r.logprobs, 5);
  assert_int_equal(parse(SH_API_CHAT, "{\"logprobs\": true}"), 0);
  sh_params_fill(&p, &d, &r);
  assert_int_equal(r.logprobs, 0);
}

static void wrong_types_and_ranges_are_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *text, *param;
  } cases[] = {
      {"{\"temperature\": \"hot\"}", "temperature"},
      {"{\"temperature\": -0.1}", "temperature"},
      {"{\"temperature\": 1e999}", "temperature"},
      {"{\"temperature\": true}", "temperature"},
      {"{\"top_p\": 0}", "top_p"},
      {"{\"top_p\": 1.01}", "top_p"},
      {"{\"top_k\": -2}", "top_k"},
      {"{\"top_k\": 1.5}", "top_k"},
      {"{\"min_p\": -0.5}", "min_p"},
      {"{\"n\": 0}", "n"},
      {"{\"n\": 129}", "n"},
      {"{\"n\": 1e30}", "n"},
      {"{\"n\": \"2\"}", "n"},
      {"{\"max_tokens\": -1}", "max_tokens"},
      {"{\"max_tokens\": 99999999999999999999}", "max_tokens"},
      {"{\"repetition_penalty\": 0}", "repetition_penalty"},
      {"{\"presence_penalty\": 2.5}", "presence_penalty"},
      {"{\"seed\": 1e300}", "seed"},
      {"{\"seed\": 0.5}", "seed"},
      {"{\"stop\": 5}", "stop"},
      {"{\"stop\": [\"a\", \"\"]}", "stop"},
      {"{\"stop\": [[]]}", "stop"},
      {"{\"stop_token_ids\": [640]}", "stop_token_ids"},
      {"{\"stop_token_ids\": [-1]}", "stop_token_ids"},
      {"{\"stop_token_ids\": \"1\"}", "stop_token_ids"},
      {"{\"logit_bias\": {\"640\": 1}}", "logit_bias"},
      {"{\"logit_bias\": {\"x\": 1}}", "logit_bias"},
      {"{\"logit_bias\": {\"1\": \"a\"}}", "logit_bias"},
      {"{\"logit_bias\": []}", "logit_bias"},
      {"{\"allowed_token_ids\": []}", "allowed_token_ids"},
      {"{\"bad_words\": [\"\"]}", "bad_words"},
      {"{\"stream\": 1}", "stream"},
      {"{\"stream_options\": {\"include_usage\": true}}", "stream_options"},
      {"{\"stream\": true, \"stream_options\": 5}", "stream_options"},
      {"{\"prompt_logprobs\": 1, \"stream\": true}", "prompt_logprobs"},
      {"{\"prompt_logprobs\": 21}", "prompt_logprobs"},
      {"{\"best_of\": 3}", "best_of"},
      {"{\"truncate_prompt_tokens\": 0}", "truncate_prompt_tokens"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refused(SH_API_CHAT, cases[i].text, cases[i].param);
    refused(SH_API_COMPLETION, cases[i].text, cases[i].param);
  }
  refused(SH_API_CHAT, "{\"top_logprobs\": 2}", "top_logprobs");
  refused(SH_API_CHAT, "{\"logprobs\": true, \"top_logprobs\": 21}", "top_logprobs");
  refused(SH_API_CHAT, "{\"logprobs\": 1}", "logprobs");
  refused(SH_API_COMPLETION, "{\"logprobs\": true}", "logprobs");
  refused(SH_API_COMPLETION, "{\"logprobs\": 21}", "logprobs");
  refused(SH_API_CHAT, "{\"continue_final_message\": true}", "continue_final_message");
  refused(SH_API_CHAT, "{\"reasoning_effort\": \"huge\"}", "reasoning_effort");
}

static void what_is_not_offered_is_refused_and_its_harmless_values_pass(void **state) {
  (void)state;
  static const struct {
    const char *text, *param;
  } cases[] = {
      {"{\"tools\": []}", "tools"},
      {"{\"tools\": [{\"type\": \"function\"}]}", "tools"},
      {"{\"tool_choice\": \"required\"}", "tool_choice"},
      {"{\"response_format\": {\"type\": \"json_object\"}}", "response_format"},
      {"{\"structured_outputs\": {\"regex\": \"a\"}}", "structured_outputs"},
      {"{\"guided_json\": {}}", "guided_json"},
      {"{\"use_beam_search\": true}", "use_beam_search"},
      {"{\"audio\": {\"voice\": \"x\"}}", "audio"},
      {"{\"logits_processors\": [\"x\"]}", "logits_processors"},
      {"{\"thinking_token_budget\": 5}", "thinking_token_budget"},
      {"{\"repetition_detection\": {}}", "repetition_detection"},
      {"{\"kv_transfer_params\": {\"a\": 1}}", "kv_transfer_params"},
      {"{\"priority\": 1}", "priority"},
      {"{\"modalities\": [\"audio\"]}", "modalities"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refused(SH_API_CHAT, cases[i].text, cases[i].param);
  refused(SH_API_COMPLETION, "{\"suffix\": \"x\"}", "suffix");
  assert_int_equal(
      parse(SH_API_CHAT,
            "{\"tool_choice\": \"auto\", \"response_format\": {\"type\": \"text\"}, \"structured_outputs\": {}, \"guided_json\": null,"
            "\"use_beam_search\": false, \"priority\": 0, \"modalities\": [\"text\"], \"user\": \"me\", \"never_heard_of\": [1]}"),
      0);
  assert_int_equal(parse(SH_API_COMPLETION, "{\"suffix\": \"\", \"best_of\": 2, \"n\": 2, \"tools\": [1]}"),
                   0); /* unknown to completions */
}

static void a_request_with_a_thousand_members_is_the_limit(void **state) {
  (void)state;
  static char text[32768];
  for (int n = SH_API_MAX_MEMBERS; n <= SH_API_MAX_MEMBERS + 1; n++) {
    size_t at = 0;
    text[at++] = '{';
    for (int i = 0; i < n; i++) at += (size_t)snprintf(text + at, sizeof text - at, "%s\"k%d\":1", i ? "," : "", i);
    snprintf(text + at, sizeof text - at, "}");
    assert_int_equal(parse(SH_API_CHAT, text), n == SH_API_MAX_MEMBERS ? 0 : -1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(nothing_given_means_openai_defaults, setup, teardown),
      cmocka_unit_test_setup_teardown(request_comes_before_generation_config_before_openai, setup, teardown),
      cmocka_unit_test_setup_teardown(every_field_arrives, setup, teardown),
      cmocka_unit_test_setup_teardown(wrong_types_and_ranges_are_refused_by_name, setup, teardown),
      cmocka_unit_test_setup_teardown(what_is_not_offered_is_refused_and_its_harmless_values_pass, setup, teardown),
      cmocka_unit_test_setup_teardown(a_request_with_a_thousand_members_is_the_limit, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
