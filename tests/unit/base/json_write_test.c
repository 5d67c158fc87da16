/* The JSON writer: commas, escapes, numbers that read back, and errors instead of broken text. */
#include "base/json.h"
#include "unit/base/harness.h"

#include <math.h>

static sh_buf buf;
static sh_jw w;

static int setup(void **state) {
  (void)state;
  sh_buf_init(&buf, 1 << 20);
  sh_jw_init(&w, &buf);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  sh_buf_free(&buf);
  return 0;
}

static void commas_and_colons_are_put_by_the_writer(void **state) {
  (void)state;
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "a", "x");
  sh_jw_kint(&w, "b", -5);
  sh_jw_key(&w, "c");
  sh_jw_arr(&w);
  sh_jw_int(&w, 1);
  sh_jw_bool(&w, false);
  sh_jw_null(&w);
  sh_jw_arr(&w);
  sh_jw_end_arr(&w);
  sh_jw_obj(&w);
  sh_jw_end_obj(&w);
  sh_jw_str(&w, NULL);
  sh_jw_end_arr(&w);
  sh_jw_kbool(&w, "d", true);
  sh_jw_knull(&w, "e");
  sh_jw_kdouble(&w, "f", 0.5);
  sh_jw_end_obj(&w);
  assert_int_equal(buf.failed, 0);
  assert_string_equal(buf.p, "{\"a\":\"x\",\"b\":-5,\"c\":[1,false,null,[],{},null],\"d\":true,\"e\":null,\"f\":0.5}");
}

static void strings_are_escaped_and_made_valid(void **state) {
  (void)state;
  static const char raw[] = "q\"\\/\b\f\n\r\t\x01\x1f\x7f\0\xC3\xA9\xF0\x9F\x98\x80\xFF\xE2\x82z\xED\xA0\x80";
  sh_jw_strn(&w, raw, sizeof raw - 1);
  assert_string_equal(buf.p, "\"q\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\\u0000\xC3\xA9\xF0\x9F\x98\x80"
                             "\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void no_string_ends_a_line_for_anybody(void **state) {
  (void)state;
  sh_jw_str(&w, "a\xC2\x85"
                "b\xE2\x80\xA8"
                "c\xE2\x80\xA9"
                "d\xC2\x86\xE2\x80\xAA");
  assert_string_equal(buf.p, "\"a\\u0085b\\u2028c\\u2029d\xC2\x86\xE2\x80\xAA\"");
}

static void doubles_are_the_shortest_that_read_back(void **state) {
  (void)state;
  static const struct {
    double v;
    const char *s;
  } cases[] = {
      {0, "0"},
      {1, "1"},
      {-2.5, "-2.5"},
      {0.1, "0.1"},
      {1.0 / 3, "0.3333333333333333"},
      {5e-324, "5e-324"},
      {1e300, "1e+300"},
      {0.1 + 0.2, "0.30000000000000004"},
      {1e15, "1e+15"},
      {123456789, "123456789"},
      {NAN, "null"},
      {INFINITY, "null"},
      {-INFINITY, "null"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    sh_buf_reset(&buf);
    sh_jw_double(&w, cases[i].v);
    assert_string_equal(buf.p, cases[i].s);
  }
  uint64_t x = 88172645463325252u;
  for (int i = 0; i < 20000; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    double v;
    memcpy(&v, &x, sizeof v);
    if (!isfinite(v)) continue;
    sh_buf_reset(&buf);
    sh_jw_double(&w, v);
    if (strtod(buf.p, NULL) != v) fail_msg("%s is not %.17g", buf.p, v);
  }
}

static void integers_reach_both_ends(void **state) {
  (void)state;
  sh_jw_arr(&w);
  sh_jw_int(&w, INT64_MIN);
  sh_jw_int(&w, INT64_MAX);
  sh_jw_end_arr(&w);
  assert_string_equal(buf.p, "[-9223372036854775808,9223372036854775807]");
}

static void a_tree_is_written_as_it_was_read(void **state) {
  (void)state;
  static const char text[] = "{\"a\":[1.50,1e400,-0.0,\"x\\u0000\\n\",[],{}],\"b\\u0000\":{\"c\":null},\"a\":true}";
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *v;
  assert_int_equal(sh_json_parse(text, sizeof text - 1, NULL, a, &v, NULL), 0);
  sh_jw_value(&w, v);
  assert_string_equal(buf.p, text);
  sh_buf_reset(&buf);
  sh_jw_value(&w, NULL);
  assert_string_equal(buf.p, "null");
  sh_arena_free(a);
}

static void sixty_four_levels_and_no_more(void **state) {
  (void)state;
  for (int i = 0; i < 64; i++) {
    if (i % 3) {
      sh_jw_arr(&w);
    } else {
      sh_jw_obj(&w);
      sh_jw_key(&w, "k");
    }
  }
  assert_int_equal(buf.failed, 0);
  sh_jw_int(&w, 1); /* level 64 is an object (63 % 3 == 0) whose key is pending */
  for (int i = 63; i >= 0; i--) {
    if (i % 3) sh_jw_end_arr(&w);
    else sh_jw_end_obj(&w);
  }
  assert_int_equal(buf.failed, 0);
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *v;
  assert_int_equal(sh_json_parse(buf.p, buf.len, NULL, a, &v, NULL), 0);
  sh_arena_free(a);
  for (int i = 0; i < 65; i++) sh_jw_arr(&w);
  assert_int_equal(buf.failed, SH_ERR_LIMIT);
}

static void a_tree_deeper_than_the_writer_fails_the_buffer(void **state) {
  (void)state;
  char text[200];
  memset(text, '[', 100);
  memset(text + 100, ']', 100);
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *v;
  assert_int_equal(sh_json_parse(text, 200, NULL, a, &v, NULL), 0);
  sh_jw_value(&w, v);
  assert_int_equal(buf.failed, SH_ERR_LIMIT);
  sh_arena_free(a);
}

static void misuse_is_an_error_and_not_broken_text(void **state) {
  (void)state;
  for (int c = 0; c < 6; c++) {
    sh_buf_reset(&buf);
    sh_jw_init(&w, &buf);
    if (c == 0) sh_jw_key(&w, "k"); /* a key outside an object */
    if (c == 1) sh_jw_end_arr(&w);  /* an end without a begin */
    if (c == 2) {                   /* a value without a key */
      sh_jw_obj(&w);
      sh_jw_int(&w, 1);
    }
    if (c == 3) { /* the wrong end */
      sh_jw_obj(&w);
      sh_jw_end_arr(&w);
    }
    if (c == 4) { /* a key without a value */
      sh_jw_obj(&w);
      sh_jw_key(&w, "k");
      sh_jw_end_obj(&w);
    }
    if (c == 5) { /* two keys */
      sh_jw_obj(&w);
      sh_jw_key(&w, "k");
      sh_jw_key(&w, "k");
    }
    assert_int_equal(buf.failed, SH_ERR_INTERNAL);
  }
}

static void a_full_buffer_keeps_its_error(void **state) {
  (void)state;
  sh_buf small;
  sh_buf_init(&small, 10);
  sh_jw_init(&w, &small);
  sh_jw_arr(&w);
  for (int i = 0; i < 20; i++) sh_jw_str(&w, "abc");
  sh_jw_end_arr(&w);
  assert_int_equal(small.failed, SH_ERR_LIMIT);
  assert_true(small.len <= 10);
  sh_buf_free(&small);
}

static void a_file_for_people_has_lines_and_indents(void **state) {
  (void)state;
  static const char TEXT[] = "{\"a\":[1,{\"b\":\"{x,\\\":[\"}],\"c\":{},\"d\":[[]]}";
  static const char WANT[] =
      "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"{x,\\\":[\"\n    }\n  ],\n  \"c\": {},\n  \"d\": [\n    []\n  ]\n}\n";
  sh_buf b;
  sh_buf_init(&b, 1000);
  assert_int_equal(sh_json_indent(&b, TEXT, sizeof TEXT - 1), 0);
  assert_string_equal(b.p, WANT);
  sh_buf_reset(&b);
  assert_int_equal(sh_json_indent(&b, "7", 1), 0);
  assert_string_equal(b.p, "7\n");
  sh_buf_free(&b);
  sh_buf_init(&b, 10);
  assert_int_equal(sh_json_indent(&b, TEXT, sizeof TEXT - 1), SH_ERR_LIMIT);
  sh_buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(commas_and_colons_are_put_by_the_writer, setup, teardown),
      cmocka_unit_test_setup_teardown(strings_are_escaped_and_made_valid, setup, teardown),
      cmocka_unit_test_setup_teardown(no_string_ends_a_line_for_anybody, setup, teardown),
      cmocka_unit_test_setup_teardown(doubles_are_the_shortest_that_read_back, setup, teardown),
      cmocka_unit_test(a_file_for_people_has_lines_and_indents),
      cmocka_unit_test_setup_teardown(integers_reach_both_ends, setup, teardown),
      cmocka_unit_test_setup_teardown(a_tree_is_written_as_it_was_read, setup, teardown),
      cmocka_unit_test_setup_teardown(sixty_four_levels_and_no_more, setup, teardown),
      cmocka_unit_test_setup_teardown(a_tree_deeper_than_the_writer_fails_the_buffer, setup, teardown),
      cmocka_unit_test_setup_teardown(misuse_is_an_error_and_not_broken_text, setup, teardown),
      cmocka_unit_test_setup_teardown(a_full_buffer_keeps_its_error, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
