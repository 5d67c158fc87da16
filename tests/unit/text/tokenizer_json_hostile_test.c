/* tokenizer.json and tokenizer_config.json under damage: a refusal with a sentence, or a tokenizer whose ids lie in its vocabulary and
 * whose decoding is the same in pieces and as a whole. The texts are the seeds of the fuzz driver: every kind of step is in one of them. */
#include "unit/hostile.h"

#include "text/tokenizer.h"

static const char SAMPLE[] = "The caf\xC3\xA9  costs 12.50 \xFF<|im_end|> abab\n\n";

/* An answer of the tokenizer, once open, may be a limit of its pattern; nothing else. */
static void use(const sh_tok *t, unsigned flags) {
  sh_ids ids = {.max = 512};
  sh_error e = {0};
  sh_buf whole, parts;
  sh_detok d;
  int rc = sh_tok_encode(t, SAMPLE, sizeof SAMPLE - 1, flags, &ids, &e);
  if (rc) {
    assert_true(rc == SH_ERR_LIMIT || rc == SH_ERR_ARG || rc == SH_ERR_FORMAT || rc == SH_ERR_UNSUPPORTED);
    assert_true(ids.n == 0 && e.text[0]);
  }
  sh_buf_init(&whole, 1 << 20);
  sh_buf_init(&parts, 1 << 20);
  sh_detok_init(&d, t, false);
  for (size_t i = 0; i < ids.n; i++) {
    assert_true(ids.v[i] >= 0 && ids.v[i] < sh_tok_vocab_size(t));
    assert_non_null(sh_tok_piece(t, ids.v[i]));
    assert_int_equal(sh_detok_push(&d, ids.v[i], &parts), 0);
  }
  assert_int_equal(sh_detok_flush(&d, &parts), 0);
  assert_int_equal(sh_tok_decode(t, ids.v, ids.n, false, &whole, &e), 0);
  assert_true(whole.len == parts.len && (!whole.len || memcmp(whole.p, parts.p, whole.len) == 0));
  sh_buf_free(&whole);
  sh_buf_free(&parts);
  sh_ids_free(&ids);
}

static int open_and_use(const char *p, size_t n, void *ctx, sh_error *e) {
  sh_tok *t = NULL;
  int rc = sh_tok_open_json(&t, p, n, ctx, e);
  if (rc) {
    assert_null(t);
    return rc;
  }
  assert_true(sh_tok_bos(t) >= -1 && sh_tok_eos(t) >= -1);
  use(t, 0);
  use(t, SH_TOK_ADD_SPECIAL | SH_TOK_NO_ADDED);
  sh_tok_free(t);
  return 0;
}

/* The seed's tokenizer.json ends at its NUL. */
static char *seed_text(const char *name, size_t *n) {
  char path[128];
  snprintf(path, sizeof path, "tests/fuzz/corpus/tokenizer/%s", name);
  char *text = slurp(path, n);
  *n = strlen(text);
  return text;
}

/* Half of the damage is before the vocabulary: in the steps and the added tokens. */
static void hostile_tokenizer(const char *name, int times) {
  size_t n;
  char *text = seed_text(name, &n), *model = strstr(text, "\"model\"");
  hostile h = {.fn = open_and_use};
  assert_non_null(model);
  every_truncation(&h, text, n);
  seeded_damage(&h, text, n, (size_t)(model - text), times);
  assert_both(&h, 20, 500);
  sh_free(text);
}

static void added_tokens(void **state) {
  (void)state;
  hostile_tokenizer("added", 2000);
}

static void splits_and_their_behaviours(void **state) {
  (void)state;
  hostile_tokenizer("behaviours", 1000);
}

static void the_steps_of_qwen(void **state) {
  (void)state;
  hostile_tokenizer("qwen", 1000);
}

static void a_template_of_special_tokens(void **state) {
  (void)state;
  hostile_tokenizer("template", 1000);
}

static void hostile_values(const char *name) {
  size_t n;
  char *text = seed_text(name, &n);
  hostile h = {.fn = open_and_use};
  every_value_replaced(&h, text, n);
  assert_both(&h, 50, 500);
  sh_free(text);
}

static void every_value_of_a_tokenizer_with_added_tokens(void **state) {
  (void)state;
  hostile_values("added");
}

static void every_value_of_a_tokenizer_with_a_template(void **state) {
  (void)state;
  hostile_values("template");
}

typedef struct beside {
  const char *tokenizer;
  size_t n;
} beside;

static int open_with_config(const char *p, size_t n, void *ctx, sh_error *e) {
  const beside *b = ctx;
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *config;
  assert_non_null(a);
  int rc = sh_json_parse(p, n, NULL, a, &config, e);
  if (!rc) rc = open_and_use(b->tokenizer, b->n, config, e);
  sh_arena_free(a);
  return rc;
}

static void every_value_of_tokenizer_config(void **state) {
  (void)state;
  static const char CONFIG[] =
      "{\"add_bos_token\": true, \"add_eos_token\": false, \"bos_token\": {\"content\": \"<|im_end|>\", \"special\": true},"
      "\"eos_token\": \"<|im_end|>\", \"added_tokens_decoder\": {\"34\": {\"content\": \"<|im_end|>\", "
      "\"special\": true, \"lstrip\": false}}, \"additional_special_tokens\": [\"<|im\"]}";
  size_t n;
  char *text = seed_text("added", &n);
  beside b = {text, n};
  hostile h = {.fn = open_with_config, .ctx = &b};
  every_truncation(&h, CONFIG, sizeof CONFIG - 1);
  seeded_damage(&h, CONFIG, sizeof CONFIG - 1, 120, 1500);
  every_value_replaced(&h, CONFIG, sizeof CONFIG - 1);
  assert_both(&h, 100, 300);
  sh_free(text);
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(added_tokens),
      cmocka_unit_test(splits_and_their_behaviours),
      cmocka_unit_test(the_steps_of_qwen),
      cmocka_unit_test(a_template_of_special_tokens),
      cmocka_unit_test(every_value_of_a_tokenizer_with_added_tokens),
      cmocka_unit_test(every_value_of_a_tokenizer_with_a_template),
      cmocka_unit_test(every_value_of_tokenizer_config),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
