/* Error sentences: what every caller relies on when it shows one to a user. */
#include "base/err.h"
#include "base/text.h"
#include "unit/base/harness.h"

static void fail_returns_the_code_and_writes_the_sentence(void **state) {
  (void)state;
  sh_error e = {0};
  assert_int_equal(sh_fail(&e, SH_ERR_LIMIT, "found %d, wanted %s", 7, "less"), SH_ERR_LIMIT);
  assert_int_equal(e.code, SH_ERR_LIMIT);
  assert_string_equal(e.text, "found 7, wanted less");
}

static void an_error_struct_is_optional(void **state) {
  (void)state;
  assert_int_equal(sh_fail(NULL, SH_ERR_IO, "x %d", 1), SH_ERR_IO);
  assert_int_equal(sh_fail_in(NULL, SH_ERR_IO, "x %d", 1), SH_ERR_IO);
}

static void a_prefix_goes_before_the_sentence(void **state) {
  (void)state;
  sh_error e;
  sh_fail(&e, SH_ERR_FORMAT, "bad header");
  assert_int_equal(sh_fail_in(&e, SH_ERR_FORMAT, "%s", "a.gguf"), SH_ERR_FORMAT);
  assert_string_equal(e.text, "a.gguf: bad header");
}

static void the_sentence_may_quote_itself(void **state) {
  (void)state;
  sh_error e;
  sh_fail(&e, SH_ERR_FORMAT, "inner");
  sh_fail(&e, SH_ERR_ARG, "outer (%s)", e.text);
  assert_string_equal(e.text, "outer (inner)");
}

static void a_long_sentence_is_cut_between_characters(void **state) {
  (void)state;
  static char many[4000];
  for (int shift = 0; shift < 3; shift++) { /* so that the cut falls on every byte of a three-byte character */
    memset(many, 'x', sizeof many);
    for (size_t i = (size_t)shift; i + 3 < sizeof many; i += 3) memcpy(many + i, "\xE2\x82\xAC", 3);
    many[sizeof many - 1] = '\0';
    sh_error e;
    sh_fail(&e, SH_ERR_ARG, "%s", many);
    assert_true(sh_utf8_valid(e.text, strlen(e.text)));
    assert_null(strstr(e.text, "\xEF\xBF\xBD\xEF\xBF\xBD"));
    assert_true(strlen(e.text) > sizeof e.text - 8);
    sh_fail_in(&e, SH_ERR_ARG, "%s", many);
    assert_true(sh_utf8_valid(e.text, strlen(e.text)));
  }
}

static void invalid_bytes_become_replacement_characters(void **state) {
  (void)state;
  sh_error e;
  sh_fail(&e, SH_ERR_ARG, "a%sb\n\n", "\xFF\xC3");
  assert_string_equal(e.text, "a\xEF\xBF\xBD\xEF\xBF\xBD"
                              "b");
}

static void every_code_has_a_name(void **state) {
  (void)state;
  for (int code = SH_ERR_INTERNAL; code <= 0; code++) assert_string_not_equal(sh_err_name(code), "unknown");
  assert_string_equal(sh_err_name(-99), "unknown");
  assert_string_equal(sh_err_name(SH_ERR_FORMAT), "format");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fail_returns_the_code_and_writes_the_sentence),
      cmocka_unit_test(an_error_struct_is_optional),
      cmocka_unit_test(a_prefix_goes_before_the_sentence),
      cmocka_unit_test(the_sentence_may_quote_itself),
      cmocka_unit_test(a_long_sentence_is_cut_between_characters),
      cmocka_unit_test(invalid_bytes_become_replacement_characters),
      cmocka_unit_test(every_code_has_a_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
