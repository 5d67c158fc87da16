/* Encoding: equal to the reference on the golden cases, on long words and hostile texts, from several threads, with every flag. */
#include "unit/text/tok_rig.h"

#include "base/pool.h"
#include "base/text.h"

#include <pthread.h>

static sh_tok *qwen, *small;

static int setup(void **state) {
  (void)state;
  qwen = open_qwen();
  small = open_model(SMALL_MODEL);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  sh_tok_free(qwen);
  sh_tok_free(small);
  return 0;
}

static void encode_must_be(const sh_tok *t, const char *text, unsigned flags, const int32_t *want, size_t n) {
  sh_ids got = encode(t, text, strlen(text), flags);
  assert_ids(&got, want, n);
  sh_ids_free(&got);
}

/* --- Golden cases --------------------------------------------------------------------------------------------------------------------- */

static void the_qwen_vocabulary_gives_the_reference_ids_and_texts(void **state) {
  (void)state;
  assert_in_range(each_line(GOLDEN "tokenizer_cases.jsonl", check_golden_line, qwen), 240, 100000);
}

static void the_small_vocabulary_gives_the_reference_ids_and_texts(void **state) {
  (void)state;
  assert_in_range(each_line(GOLDEN "tokenizer_cases_small.jsonl", check_golden_line, small), 100, 100000);
}

/* --- Questions about ids -------------------------------------------------------------------------------------------------------------- */

static void ids_pieces_and_bytes_belong_together(void **state) {
  (void)state;
  assert_int_equal(sh_tok_vocab_size(qwen), 248077);
  int32_t id = sh_tok_find(qwen, "\u0120the");
  size_t n;
  assert_true(id > 0);
  assert_string_equal(sh_tok_piece(qwen, id), "\u0120the");
  const char *bytes = sh_tok_bytes(qwen, id, &n);
  assert_int_equal(n, 4);
  assert_memory_equal(bytes, " the", 4);
  assert_int_equal(sh_tok_find(qwen, "no such token at all"), -1);
  assert_int_equal(sh_tok_find(qwen, "<|im_end|>"), 248046);
  assert_string_equal(sh_tok_piece(qwen, 248046), "<|im_end|>");
  static const int32_t none[] = {-1, 248077, INT32_MAX};
  for (int i = 0; i < 3; i++) {
    assert_null(sh_tok_piece(qwen, none[i]));
    assert_null(sh_tok_bytes(qwen, none[i], &n));
    assert_int_equal(n, 0);
    assert_false(sh_tok_is_special(qwen, none[i]));
  }
}

static void special_tokens_are_those_that_the_file_calls_so(void **state) {
  (void)state;
  assert_true(sh_tok_is_special(qwen, sh_tok_find(qwen, "<|im_end|>")));
  assert_false(sh_tok_is_special(qwen, sh_tok_find(qwen, "<think>")));
  assert_false(sh_tok_is_special(qwen, 0));
}

static void begin_and_end_come_from_the_tokenizer_config(void **state) {
  (void)state;
  assert_int_equal(sh_tok_bos(small), -1);
  assert_int_equal(sh_tok_eos(small), 594);
  assert_int_equal(sh_tok_eos(qwen), -1); /* opened without a config */
}

/* --- Flags and limits ----------------------------------------------------------------------------------------------------------------- */

static void user_text_can_be_kept_from_becoming_a_token(void **state) {
  (void)state;
  static const char text[] = "a<|im_end|>b";
  int32_t end = sh_tok_find(qwen, "<|im_end|>");
  sh_ids with = encode(qwen, text, strlen(text), 0), without = encode(qwen, text, strlen(text), SH_TOK_NO_ADDED);
  assert_int_equal(with.n, 3);
  assert_int_equal(with.v[1], end);
  assert_in_range(without.n, 4, 20);
  for (size_t i = 0; i < without.n; i++) assert_int_not_equal(without.v[i], end);
  sh_buf back = decode(qwen, without.v, without.n, true);
  assert_string_equal(back.p, text);
  sh_buf_free(&back);
  sh_ids_free(&with);
  sh_ids_free(&without);
}

static void ids_are_appended(void **state) {
  (void)state;
  sh_ids ids = {0};
  sh_error e = {0};
  assert_int_equal(sh_ids_push(&ids, 7), 0);
  assert_int_equal(sh_tok_encode(qwen, "Hello", 5, 0, &ids, &e), 0);
  assert_int_equal(sh_tok_encode(qwen, ",", 1, 0, &ids, &e), 0);
  assert_ids(&ids, (int32_t[]){7, 9419, 11}, 3);
  sh_ids_free(&ids);
}

static void a_list_with_a_limit_refuses_more_and_keeps_what_it_had(void **state) {
  (void)state;
  sh_ids ids = {.max = 4};
  sh_error e = {0};
  assert_int_equal(sh_ids_push(&ids, 7), 0);
  assert_int_equal(sh_tok_encode(qwen, "one two three four five", 23, 0, &ids, &e), SH_ERR_LIMIT);
  assert_says(e.text, "more than 4 tokens");
  assert_ids(&ids, (int32_t[]){7}, 1);
  assert_int_equal(sh_tok_encode(qwen, "one two three", 13, 0, &ids, &e), 0);
  assert_int_equal(ids.n, 4);
  assert_int_equal(sh_ids_push(&ids, 1), SH_ERR_LIMIT);
  sh_ids_free(&ids);
}

static void invalid_utf8_is_replaced_before_anything_else(void **state) {
  (void)state;
  static const char *const pairs[][2] = {{"a\xFF z", "a\uFFFD z"}, {"\xE4\xBD", "\uFFFD"}, {"\xF0\x9F\xF0", "\uFFFD\uFFFD"}};
  for (int i = 0; i < 3; i++) {
    sh_ids want = encode(qwen, pairs[i][1], strlen(pairs[i][1]), 0);
    encode_must_be(qwen, pairs[i][0], 0, want.v, want.n);
    sh_ids_free(&want);
  }
}

static void a_text_may_hold_nul(void **state) {
  (void)state;
  sh_ids ids = encode(qwen, "a\0b", 3, 0);
  sh_buf back = decode(qwen, ids.v, ids.n, false);
  assert_int_equal(back.len, 3);
  assert_memory_equal(back.p, "a\0b", 3);
  sh_buf_free(&back);
  sh_ids_free(&ids);
}

static void no_text_gives_no_ids(void **state) {
  (void)state;
  encode_must_be(qwen, "", SH_TOK_ADD_SPECIAL, NULL, 0);
  sh_ids ids = encode(qwen, NULL, 0, 0);
  assert_int_equal(ids.n, 0);
  sh_ids_free(&ids);
}

/* --- Long and hostile texts ----------------------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LONG = 100000 };
#else
enum { LONG = 1000000 };
#endif

/* n bytes made of `unit` again and again; encoding takes less than `seconds` and decodes to the text. A quadratic step takes minutes here.
 */
static void long_text(const sh_tok *t, const char *unit, size_t n) {
  size_t len = strlen(unit);
  char *text = sh_malloc(n + len);
  assert_non_null(text);
  for (size_t i = 0; i < n; i += len) memcpy(text + i, unit, len);
  n = n / len * len;
  int64_t start = sh_now_ns();
  sh_ids ids = encode(t, text, n, 0);
  assert_in_range(sh_now_ns() - start, 0, 30000000000ll);
  sh_buf back = decode(t, ids.v, ids.n, false);
  assert_int_equal(back.len, n);
  assert_memory_equal(back.p, text, n);
  sh_buf_free(&back);
  sh_ids_free(&ids);
  sh_free(text);
}

static void a_megabyte_of_anything_is_encoded_quickly(void **state) {
  (void)state;
  static const char *const units[] = {"a",  " ",   "\n",   "!", "7",      "A",          "'",       "ab",
                                      "啊", " \n", "\t x", "<", "<|im_e", "<|im_end|>", "\u00E9 ", "\u180E"};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    long_text(qwen, units[i], LONG);
    long_text(small, units[i], LONG);
  }
}

static void a_megabyte_of_accents_in_the_wrong_order_is_normalized_quickly(void **state) {
  (void)state;
  enum { PAIRS = LONG / 4 };
  char *text = sh_malloc(PAIRS * 4 + 1);
  assert_non_null(text);
  text[0] = 'q';
  for (size_t i = 0; i < PAIRS; i++) memcpy(text + 1 + 4 * i, "\u0301\u0316", 4);
  sh_ids ids = encode(qwen, text, PAIRS * 4 + 1, 0);
  sh_buf back = decode(qwen, ids.v, ids.n, false);
  assert_int_equal(back.len, PAIRS * 4 + 1);
  for (size_t i = 0; i < PAIRS; i++) { /* first all of class 220, then all of class 230 */
    assert_memory_equal(back.p + 1 + 2 * i, "\u0316", 2);
    assert_memory_equal(back.p + 1 + 2 * (PAIRS + i), "\u0301", 2);
  }
  sh_buf_free(&back);
  sh_ids_free(&ids);
  sh_free(text);
}

/* The rule itself: again and again the pair of lowest rank, here found by merging bytes with the ids of a vocabulary whose ids are in merge
 * order. */
static size_t merge_by_rule(const sh_tok *t, const char *word, size_t n, int32_t *ids) {
  char *s = sh_malloc(2 * n + 1);
  assert_non_null(s);
  size_t m = n;
  for (size_t i = 0; i < n; i++) ids[i] = sh_tok_find(t, (char[]){word[i], 0});
  for (;;) {
    int32_t best = INT32_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < m; i++) {
      snprintf(s, 2 * n + 1, "%s%s", sh_tok_piece(t, ids[i]), sh_tok_piece(t, ids[i + 1]));
      int32_t id = sh_tok_find(t, s);
      if (id >= 0 && id < best) {
        best = id;
        at = i;
      }
    }
    if (best == INT32_MAX) break;
    ids[at] = best;
    memmove(ids + at + 1, ids + at + 2, (m - at - 2) * sizeof *ids);
    m--;
  }
  sh_free(s);
  return m;
}

static void words_of_every_length_merge_by_the_rule(void **state) {
  (void)state;
  static const size_t lengths[] = {2, 3, 17, 47, 48, 49, 50, 255, 256, 257, 700};
  static char word[701];
  static int32_t want[701];
  uint64_t seed = 88172645463325252ull;
  for (int round = 0; round < 66; round++) {
    size_t n = lengths[round % 11];
    /* few different letters give many merges */
    for (size_t i = 0; i < n; i++) word[i] = "estainorhel"[next_random(&seed) % (round % 3 == 0 ? 11 : round % 3 == 1 ? 4 : 2)];
    sh_ids got = encode(small, word, n, 0);
    assert_ids(&got, want, merge_by_rule(small, word, n, want));
    sh_ids_free(&got);
  }
}

static void a_repeated_word_is_the_same_the_second_time(void **state) {
  (void)state; /* long enough for the cache of words; every word against its own encoding */
  static const char *const words[] = {
      " tokenization", " the", " 推理", " Donaudampfschifffahrt", " x_y", "!!", " antidisestablishmentarianism"};
  sh_buf text;
  sh_ids want = {0};
  sh_buf_init(&text, 1 << 20);
  uint64_t seed = 1234567;
  for (int i = 0; i < 3000; i++) {
    const char *w = words[next_random(&seed) % 7];
    sh_ids one = encode(qwen, w, strlen(w), 0);
    for (size_t k = 0; k < one.n; k++) assert_int_equal(sh_ids_push(&want, one.v[k]), 0);
    sh_ids_free(&one);
    assert_int_equal(sh_buf_puts(&text, w), 0);
    if (strcmp(w, "!!") == 0) { /* two in a row would be one word */
      assert_int_equal(sh_buf_puts(&text, " the"), 0);
      one = encode(qwen, " the", 4, 0);
      assert_int_equal(sh_ids_push(&want, one.v[0]), 0);
      sh_ids_free(&one);
    }
  }
  sh_ids got = encode(qwen, text.p, text.len, 0);
  assert_ids(&got, want.v, want.n);
  sh_ids_free(&got);
  sh_ids_free(&want);
  sh_buf_free(&text);
}

/* --- Threads and memory --------------------------------------------------------------------------------------------------------------- */

/* A text and its ids, for threads: an assertion that fails outside the main thread cannot be reported, so differences are counted. */
typedef struct shared_case {
  char *text;
  size_t n;
  sh_ids ids;
} shared_case;

enum { MAX_CASES = 200 };
static shared_case cases[MAX_CASES];
static int n_cases;

static void keep_case(const sh_json *line, sh_arena *a, void *ctx) {
  (void)a, (void)ctx;
  assert_true(n_cases < MAX_CASES);
  const sh_json *text = sh_json_get(line, "text");
  shared_case *c = &cases[n_cases++];
  c->n = text->len;
  c->text = sh_strndup(text->s, text->len);
  assert_non_null(c->text);
  c->ids = json_ids(sh_json_get(line, "ids"));
}

static void *encode_all_cases(void *ctx) {
  long *differences = ctx;
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < n_cases; i++) {
      sh_ids ids = {0};
      const shared_case *c = &cases[i];
      int rc = sh_tok_encode(small, c->text, c->n, 0, &ids, NULL);
      if (rc || ids.n != c->ids.n || (ids.n && memcmp(ids.v, c->ids.v, ids.n * sizeof *ids.v) != 0)) ++*differences;
      sh_ids_free(&ids);
    }
  return NULL;
}

static void several_threads_encode_at_once(void **state) {
  (void)state;
  pthread_t threads[4];
  long differences[4] = {0};
  each_line(GOLDEN "tokenizer_cases_small.jsonl", keep_case, NULL);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_all_cases, &differences[i]), 0);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(differences[i], 0);
  }
  for (int i = 0; i < n_cases; i++) {
    sh_free(cases[i].text);
    sh_ids_free(&cases[i].ids);
  }
}

static void an_allocation_that_fails_is_an_error_and_leaks_nothing(void **state) {
  (void)state;
  size_t n;
  char *json = slurp(SMALL_MODEL "/tokenizer.json", &n);
  static const char text[] = "Cafe\u0301 <|im_end|> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xFF";
  int rc = SH_ERR_NOMEM;
  for (long k = 0; rc != 0; k++) {
    sh_tok *t = NULL;
    sh_error e = {0};
    sh_mem_fail_after(k);
    rc = sh_tok_open_json(&t, json, n, NULL, &e);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 ? t != NULL : t == NULL && rc == SH_ERR_NOMEM && e.text[0]);
    sh_tok_free(t);
  }
  sh_free(json);
  rc = SH_ERR_NOMEM;
  for (long k = 0; rc != 0; k++) {
    sh_ids ids = {0};
    sh_error e = {0};
    sh_mem_fail_after(k);
    rc = sh_tok_encode(small, text, strlen(text), 0, &ids, &e);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || (rc == SH_ERR_NOMEM && ids.n == 0 && e.text[0]));
    sh_ids_free(&ids);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_qwen_vocabulary_gives_the_reference_ids_and_texts),
      cmocka_unit_test(the_small_vocabulary_gives_the_reference_ids_and_texts),
      cmocka_unit_test(ids_pieces_and_bytes_belong_together),
      cmocka_unit_test(special_tokens_are_those_that_the_file_calls_so),
      cmocka_unit_test(begin_and_end_come_from_the_tokenizer_config),
      cmocka_unit_test(user_text_can_be_kept_from_becoming_a_token),
      cmocka_unit_test(ids_are_appended),
      cmocka_unit_test(a_list_with_a_limit_refuses_more_and_keeps_what_it_had),
      cmocka_unit_test(invalid_utf8_is_replaced_before_anything_else),
      cmocka_unit_test(a_text_may_hold_nul),
      cmocka_unit_test(no_text_gives_no_ids),
      cmocka_unit_test(a_megabyte_of_anything_is_encoded_quickly),
      cmocka_unit_test(a_megabyte_of_accents_in_the_wrong_order_is_normalized_quickly),
      cmocka_unit_test(words_of_every_length_merge_by_the_rule),
      cmocka_unit_test(a_repeated_word_is_the_same_the_second_time),
      cmocka_unit_test(several_threads_encode_at_once),
      cmocka_unit_test(an_allocation_that_fails_is_an_error_and_leaks_nothing),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
