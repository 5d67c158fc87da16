/* Requests: what is refused and in which words, text and stop strings of drawn tokens, and who frees when. */
#include "unit/engine/fake_model.h"

#include "base/text.h"
#include "engine/params.h"
#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define TOKENIZER "tests/golden/models/dense-small"

typedef struct world {
  sh_ckpt *ckpt;
  sh_tok *tok;
  sh_request_env env;
} world;

static const int32_t END_IDS[] = {594};

static int open_world(void **state) {
  static world w;
  sh_error e;
  if (sh_ckpt_open(&w.ckpt, TOKENIZER, SH_CKPT_TOKENIZER_ONLY, &e) || sh_tok_open(&w.tok, w.ckpt, &e)) {
    print_error("%s\n", e.text);
    return -1;
  }
  w.env = (sh_request_env){.tok = w.tok, .vocab = 640, .max_model_len = 100, .max_piece = 32, .end_ids = END_IDS, .n_end_ids = 1};
  *state = &w;
  return 0;
}

static int close_world(void **state) {
  world *w = *state;
  sh_tok_free(w->tok);
  sh_ckpt_close(w->ckpt);
  return 0;
}

static const int32_t IDS[] = {1, 2, 3};

static sh_request_params good(void) {
  sh_request_params p;
  sh_request_defaults(&p);
  p.ids = IDS;
  p.n_ids = 3;
  return p;
}

#define REFUSED(code, word, change)                                                                                                        \
  do {                                                                                                                                     \
    sh_request_params p = good();                                                                                                          \
    sh_error e = {0};                                                                                                                      \
    change;                                                                                                                                \
    assert_int_equal(sh_params_check(&w->env, &p, &e), code);                                                                              \
    if (!strstr(e.text, word)) print_error("%s\n", e.text);                                                                                \
    assert_non_null(strstr(e.text, word));                                                                                                 \
  } while (0)

static void wrong_parameters_are_named_in_wire_terms(void **state) {
  world *w = *state;
  static const int32_t high[] = {1, 640}, negative[] = {-1};
  static const sh_str empty[] = {{"", 0}}, broken[] = {{"\xff", 1}};
  static const sh_token_bias bias[] = {{640, 1}}, nan_bias[] = {{1, NAN}};
  static const sh_id_list none[] = {{NULL, 0}}, far[] = {{high, 2}};
  assert_int_equal(sh_params_check(&w->env, &(sh_request_params){0}, NULL), SH_ERR_ARG);
  sh_request_params ok = good();
  assert_int_equal(sh_params_check(&w->env, &ok, NULL), 0);
  REFUSED(SH_ERR_ARG, "prompt", p.n_ids = 0);
  REFUSED(SH_ERR_ARG, "640", (p.ids = high, p.n_ids = 2));
  REFUSED(SH_ERR_ARG, "-1", (p.ids = negative, p.n_ids = 1));
  REFUSED(SH_ERR_ARG, "temperature", p.temperature = -0.1f);
  REFUSED(SH_ERR_ARG, "temperature", p.temperature = NAN);
  REFUSED(SH_ERR_ARG, "temperature", p.temperature = INFINITY);
  REFUSED(SH_ERR_ARG, "top_p", p.top_p = 0);
  REFUSED(SH_ERR_ARG, "top_p", p.top_p = 1.01f);
  REFUSED(SH_ERR_ARG, "min_p", p.min_p = -0.01f);
  REFUSED(SH_ERR_ARG, "top_k", p.top_k = -2);
  REFUSED(SH_ERR_ARG, "repetition_penalty", p.repetition_penalty = 0);
  REFUSED(SH_ERR_ARG, "presence_penalty", p.presence_penalty = 2.1f);
  REFUSED(SH_ERR_ARG, "frequency_penalty", p.frequency_penalty = NAN);
  REFUSED(SH_ERR_ARG, "n must", p.n = 0);
  REFUSED(SH_ERR_ARG, "n must", p.n = 129);
  REFUSED(SH_ERR_ARG, "logprobs", p.logprobs = -2);
  REFUSED(SH_ERR_ARG, "prompt_logprobs", p.prompt_logprobs = 100000);
  REFUSED(SH_ERR_ARG, "max_tokens", p.max_tokens = 0);
  REFUSED(SH_ERR_ARG, "max_tokens", p.max_tokens = -5);
  REFUSED(SH_ERR_ARG, "min_tokens", p.min_tokens = 17);
  REFUSED(SH_ERR_ARG, "stop", (p.stop = empty, p.n_stop = 1));
  REFUSED(SH_ERR_ARG, "UTF-8", (p.stop = broken, p.n_stop = 1));
  REFUSED(SH_ERR_ARG, "stop_token_ids", (p.stop_ids = high, p.n_stop_ids = 2));
  REFUSED(SH_ERR_ARG, "allowed_token_ids", (p.allowed = high, p.n_allowed = 2));
  REFUSED(SH_ERR_ARG, "logit_bias", (p.bias = bias, p.n_bias = 1));
  REFUSED(SH_ERR_ARG, "logit_bias", (p.bias = nan_bias, p.n_bias = 1));
  REFUSED(SH_ERR_ARG, "bad_words", (p.bad_words = none, p.n_bad_words = 1));
  REFUSED(SH_ERR_ARG, "bad_words", (p.bad_words = far, p.n_bad_words = 1));
}

static void a_request_over_the_context_hears_both_numbers(void **state) {
  world *w = *state;
  REFUSED(SH_ERR_LIMIT, "100", p.max_tokens = 98);
  REFUSED(SH_ERR_LIMIT, "98", p.max_tokens = 98);
  REFUSED(SH_ERR_LIMIT, "2147483647", p.max_tokens = 2147483647);
  sh_request_params p = good();
  p.max_tokens = 97;
  assert_int_equal(sh_params_check(&w->env, &p, NULL), 0);
}

static void every_allocation_of_a_request_may_fail(void **state) {
  world *w = *state;
  static const sh_str stop[] = {{"ab", 2}, {"c", 1}};
  static const sh_id_list words[] = {{IDS, 2}};
  sh_request_params p = good();
  p.stop = stop;
  p.n_stop = 2;
  p.bad_words = words;
  p.n_bad_words = 1;
  p.allowed = p.stop_ids = IDS;
  p.n_allowed = p.n_stop_ids = 3;
  p.n = 2;
  int rc = -1;
  for (long n = 0; rc; n++) {
    sh_request *r = NULL;
    sh_mem_fail_after(n);
    rc = sh_request_new(&w->env, &p, 1, NULL, NULL, &r, NULL);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || rc == SH_ERR_NOMEM);
    if (rc == 0) {
      sh_request_free(r);
      sh_request_unref(r);
    }
    assert_true(n < 50);
  }
}

/* --- Drawn text: the model is made to say a sentence by allowing one token at a time through bias. --- */

typedef struct script {
  const int32_t *ids;
  int n, at;
} script;

static int script_forward(void *ctx, const sh_batch *b, float *logits, sh_error *e) {
  script *s = ctx;
  (void)e;
  for (int i = 0; i < b->n_out; i++)
    for (int v = 0; v < 640; v++) logits[i * 640 + v] = v == s->ids[s->at] ? 9.0f : 0.0f;
  if (b->n_out) s->at = (s->at + 1) % s->n;
  return 0;
}
static int no_slot(void *ctx, int slot, sh_error *e) { return (void)ctx, (void)slot, (void)e, 0; }
static int no_copy(void *ctx, int dst, int src, sh_error *e) { return (void)ctx, (void)dst, (void)src, (void)e, 0; }

typedef struct said {
  char text[2048], first_pieces[64][64];
  int n_tokens;
  sh_finish why;
  int32_t stop_id;
  char stop[64];
} said;

/* Lets the model say `text` (then ids `tail`) under p and collects what the reader sees. */
static void say(world *w, const char *text, int32_t tail, sh_request_params p, said *out) {
  sh_ids ids = {0};
  assert_int_equal(sh_tok_encode(w->tok, text, strlen(text), 0, &ids, NULL), 0);
  for (int i = 0; i < 40; i++) assert_int_equal(sh_ids_push(&ids, tail), 0);
  script s = {ids.v, (int)ids.n, 0};
  sh_sched sched;
  sh_model_iface m = {&s, 640, script_forward, no_slot, no_copy, no_copy};
  sh_sched_config c = {.page_size = 16, .n_pages = 7, .n_slots = 1, .max_batched = 16, .max_out = 2, .max_model_len = 100};
  assert_int_equal(sh_sched_init(&sched, &c, &w->env, &m, NULL), 0);
  p.temperature = 0;
  p.ids = IDS;
  p.n_ids = 3;
  sh_request *r;
  assert_int_equal(sh_request_new(&w->env, &p, 1, NULL, NULL, &r, NULL), 0);
  sh_sched_add(&sched, r);
  memset(out, 0, sizeof *out);
  sh_event ev = {0};
  while (ev.type != SH_EV_END) {
    sh_sched_step(&sched);
    while (sh_request_next(r, &ev)) {
      assert_true(sh_utf8_valid(ev.text, ev.text_len));
      memcpy(out->text + strlen(out->text), ev.text, ev.text_len);
      if (ev.type == SH_EV_TOKEN) memcpy(out->first_pieces[out->n_tokens++], ev.text, ev.text_len < 63 ? ev.text_len : 63);
      if (ev.type != SH_EV_FINISH) continue;
      out->why = ev.finish;
      out->stop_id = ev.stop_id;
      if (ev.stop_str) memcpy(out->stop, ev.stop_str, ev.stop_str_len);
    }
  }
  assert_int_equal(sched.step_allocs, 0);
  sh_request_free(r);
  sh_sched_free(&sched);
  sh_ids_free(&ids);
}

static void the_text_of_all_events_is_the_decoded_text(void **state) {
  said s;
  sh_request_params p = good();
  p.max_tokens = 90;
  say(*state, "Grüße, 世界 🌍 and more", 594, p, &s);
  assert_string_equal(s.text, "Grüße, 世界 🌍 and more");
  assert_int_equal(s.why, SH_FINISH_STOP);
  assert_int_equal(s.stop_id, -1);
  assert_string_equal(s.first_pieces[s.n_tokens - 1], "");
}

static void a_stop_string_across_tokens_ends_before_itself(void **state) {
  said s;
  sh_request_params p = good();
  sh_str stop[] = {{"never", 5}, {"rld 🌍 a", 10}};
  p.max_tokens = 90;
  p.stop = stop;
  p.n_stop = 2;
  say(*state, "hello world 🌍 and more", 594, p, &s);
  assert_string_equal(s.text, "hello wo");
  assert_int_equal(s.why, SH_FINISH_STOP);
  assert_string_equal(s.stop, "rld 🌍 a");
  p.include_stop_str_in_output = true;
  say(*state, "hello world 🌍 and more", 594, p, &s);
  assert_string_equal(s.text, "hello world 🌍 a");
}

static void what_only_looked_like_a_stop_string_is_shown(void **state) {
  said s;
  sh_request_params p = good();
  sh_str stop[] = {{"world peace", 11}};
  p.max_tokens = 90;
  p.stop = stop;
  p.n_stop = 1;
  say(*state, "hello world pea", 594, p, &s);
  assert_string_equal(s.text, "hello world pea"); /* the end comes while it is held back */
  say(*state, "hello world pearls", 594, p, &s);
  assert_string_equal(s.text, "hello world pearls");
}

static void stop_strings_are_not_looked_for_before_min_tokens(void **state) {
  said s;
  sh_request_params p = good();
  sh_str stop[] = {{"a", 1}};
  p.max_tokens = 12;
  p.stop = stop;
  p.n_stop = 1;
  p.min_tokens = 3;
  say(*state, "a b a b a b a b a b", 594, p, &s);
  assert_int_equal(s.n_tokens, 5); /* "a", " b", " a" are passed over */
  assert_string_equal(s.stop, "a");
  assert_string_equal(s.text, "a b a b ");
}

static void a_stop_id_is_named_and_an_end_token_is_not(void **state) {
  said s;
  sh_request_params p = good();
  int32_t stop_ids[] = {100, 65};
  p.max_tokens = 20;
  p.stop_ids = stop_ids;
  p.n_stop_ids = 2;
  say(*state, "", 65, p, &s);
  assert_int_equal(s.why, SH_FINISH_STOP);
  assert_int_equal(s.stop_id, 65);
  assert_int_equal(s.n_tokens, 1);
  assert_string_equal(s.text, "");
  p.ignore_eos = true; /* ignores end tokens, not stop ids */
  say(*state, "", 65, p, &s);
  assert_int_equal(s.stop_id, 65);
  p.n_stop_ids = 0;
  say(*state, "", 594, p, &s);
  assert_int_equal(s.why, SH_FINISH_LENGTH);
  assert_int_equal(s.n_tokens, 20);
}

static void an_unfinished_character_at_the_end_becomes_a_replacement(void **state) {
  world *w = *state;
  said s;
  sh_request_params p = good();
  sh_ids ids = {0};
  const char *earth = "🌍";
  assert_int_equal(sh_tok_encode(w->tok, earth, strlen(earth), 0, &ids, NULL), 0);
  p.max_tokens = 1;
  assert_true(ids.n > 1); /* the small vocabulary has bytes only */
  say(w, earth, 594, p, &s);
  assert_string_equal(s.text, "\xEF\xBF\xBD");
  assert_int_equal(s.why, SH_FINISH_LENGTH);
  sh_ids_free(&ids);
}

/* --- Notification --- */

static void count(void *ctx) { ++*(int *)ctx; }

static void notify_is_called_for_events_and_never_after_free(void **state) {
  world *w = *state;
  sh_request_params p = good();
  sh_request *r;
  int calls = 0;
  assert_int_equal(sh_request_new(&w->env, &p, 1, count, &calls, &r, NULL), 0);
  sh_request_notify(r);
  assert_int_equal(calls, 0);
  sh_rec rec = {.type = SH_EV_TOKEN, .stop_id = -1, .stop_str = -1};
  sh_request_push(r, &rec, NULL);
  sh_request_push(r, &rec, NULL);
  sh_request_notify(r);
  assert_int_equal(calls, 1);
  assert_true(sh_request_wait(r, 0));
  sh_event ev;
  assert_true(sh_request_next(r, &ev) && sh_request_next(r, &ev));
  assert_false(sh_request_next(r, &ev));
  assert_false(sh_request_wait(r, 1));
  sh_request_push(r, &rec, NULL);
  sh_request_free(r);
  sh_request_notify(r);
  assert_int_equal(calls, 1);
  assert_true(atomic_load(&r->cancelled));
  sh_request_unref(r); /* the engine's */
}

static void requests_without_a_seed_differ_and_are_repeatable(void **state) {
  world *w = *state;
  sh_request_params p = good();
  uint64_t seed[3];
  for (int i = 0; i < 3; i++) {
    sh_request *r;
    assert_int_equal(sh_request_new(&w->env, &p, (uint64_t)(i % 2), NULL, NULL, &r, NULL), 0);
    seed[i] = r->seed;
    sh_request_free(r);
    sh_request_unref(r);
  }
  assert_true(seed[0] != seed[1]);
  assert_true(seed[0] == seed[2]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_parameters_are_named_in_wire_terms),
      cmocka_unit_test(a_request_over_the_context_hears_both_numbers),
      cmocka_unit_test(every_allocation_of_a_request_may_fail),
      cmocka_unit_test(the_text_of_all_events_is_the_decoded_text),
      cmocka_unit_test(a_stop_string_across_tokens_ends_before_itself),
      cmocka_unit_test(what_only_looked_like_a_stop_string_is_shown),
      cmocka_unit_test(stop_strings_are_not_looked_for_before_min_tokens),
      cmocka_unit_test(a_stop_id_is_named_and_an_end_token_is_not),
      cmocka_unit_test(an_unfinished_character_at_the_end_becomes_a_replacement),
      cmocka_unit_test(notify_is_called_for_events_and_never_after_free),
      cmocka_unit_test(requests_without_a_seed_differ_and_are_repeatable),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
