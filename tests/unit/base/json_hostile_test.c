/* JSON under damage: a refusal with a sentence, or a tree that is written and read again as the same text. Truncations and failing
 * allocations are in json_test.c. */
#include "unit/hostile.h"

static const char TEXT[] = "{\"a\": [1, -2.5e+3, 0.1, 12345678901234567890], \"b\": {\"c\": null, \"d\": [true, false, {}], \"\": []},\n"
                           " \"s\": \"caf\\u00e9 \\ud83d\\ude00 \\\"q\\\" \\\\ \\n \xE6\x97\xA5\", \"deep\": [[[[[[{\"k\": [[]]}]]]]]]}";

static sh_buf written(const sh_json *v) {
  sh_buf b;
  sh_jw w;
  sh_buf_init(&b, 1 << 16);
  sh_jw_init(&w, &b);
  sh_jw_value(&w, v);
  assert_int_equal(b.failed, 0);
  return b;
}

static int read_write_read(const char *p, size_t n, void *ctx, sh_error *e) {
  (void)ctx;
  sh_arena *a = sh_arena_new(1 << 18);
  sh_json *v, *again;
  assert_non_null(a);
  int rc = sh_json_parse(p, n, NULL, a, &v, e);
  if (!rc) {
    sh_buf one = written(v);
    assert_int_equal(sh_json_parse(one.p, one.len, NULL, a, &again, NULL), 0);
    sh_buf two = written(again);
    assert_true(one.len == two.len && memcmp(one.p, two.p, one.len) == 0);
    sh_buf_free(&one);
    sh_buf_free(&two);
  }
  sh_arena_free(a);
  return rc;
}

static void damaged_texts_are_refused_or_read_whole(void **state) {
  (void)state;
  hostile h = {.fn = read_write_read};
  every_truncation(&h, TEXT, sizeof TEXT - 1);
  assert_int_equal(h.accepted, 1);
  seeded_damage(&h, TEXT, sizeof TEXT - 1, 40, 8000);
  assert_both(&h, 300, 3000);
}

static void replaced_values_are_read(void **state) {
  (void)state;
  hostile h = {.fn = read_write_read};
  every_value_replaced(&h, TEXT, sizeof TEXT - 1);
  assert_int_equal(h.refused, 0); /* a number is text until it is asked for */
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged_texts_are_refused_or_read_whole),
      cmocka_unit_test(replaced_values_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
