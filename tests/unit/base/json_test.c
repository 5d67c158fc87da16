/* The JSON reader: the rules of RFC 8259 as public conformance suites test them (own cases), what values become, limits, conversions,
 * builders. */
#include "base/json.h"
#include "base/text.h"
#include "unit/base/harness.h"

#include <locale.h>

static sh_arena *arena;

static int setup(void **state) {
  (void)state;
  arena = sh_arena_new(64 << 20);
  return arena ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  sh_arena_free(arena);
  return 0;
}

/* The bytes are copied to a block of exactly their size, so that the address sanitizer sees a read past the end. */
static int parse_n(const char *s, size_t n, sh_json **out, sh_error *e) {
  char *exact = malloc(n ? n : 1);
  memcpy(exact, s, n);
  int rc = sh_json_parse(exact, n, NULL, arena, out, e);
  free(exact);
  return rc;
}

static const sh_json *must(const char *s) {
  sh_json *v;
  sh_error e = {0};
  if (parse_n(s, strlen(s), &v, &e)) fail_msg("%s: %s", s, e.text);
  return v;
}

typedef struct text {
  const char *s;
  size_t n;
} text;
#define T(literal)                                                                                                                         \
  { literal, sizeof(literal) - 1 }

static const text accepted[] = {
    T("[]"),
    T("{}"),
    T("null"),
    T("true"),
    T("false"),
    T("0"),
    T("-0"),
    T("\"\""),
    T("\"a\""),
    T(" [] "),
    T("[]\n"),
    T("\t\r\n 1 \t\r\n"),
    T("[[]   ]"),
    T("[\"\"]"),
    T("[false]"),
    T("[null, 1, \"1\", {}]"),
    T("[1,null,null,null,2]"),
    T("[ 1]"),
    T("[1\n]"),
    T("[2] "),
    T("{\"a\":\"b\",\"a\":\"c\"}"),
    T("{\"a\":\"b\",\"a\":\"b\"}"),
    T("{\"\":0}"),
    T("{\"foo\\u0000bar\": 42}"),
    T("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    T("{\"a\":[]}"),
    T("{\"a\" : 1 , \"b\" : 2}"),
    T("{\n\"a\": \"b\"\n}"),
    T("{\"a\":{\"b\":{\"c\":{}}}}"),
    T("[123e65]"),
    T("[0e+1]"),
    T("[0e1]"),
    T("[ 4]"),
    T("[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    T("[20e1]"),
    T("[-123]"),
    T("[-1]"),
    T("[-0]"),
    T("[1E22]"),
    T("[1E-2]"),
    T("[1E+2]"),
    T("[123e45]"),
    T("[123.456e78]"),
    T("[1e-2]"),
    T("[1e+2]"),
    T("[123]"),
    T("[123.456789]"),
    T("1e400"),
    T("-1e400"),
    T("1e-400"),
    T("0.1"),
    T("100000000000000000000000000000000"),
    T("[\"\\u0060\\u012a\\u12AB\"]"),
    T("[\"\\uD801\\udc37\"]"),
    T("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    T("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    T("[\"\\\\u0000\"]"),
    T("[\"\\\"\"]"),
    T("[\"a/*b*/c/*d//e\"]"),
    T("[\"\\\\a\"]"),
    T("[\"\\\\n\"]"),
    T("[\"\\u0012\"]"),
    T("[\"\\uFFFF\"]"),
    T("[\"asd\"]"),
    T("[\"\xF4\x8F\xBF\xBF\"]"),
    T("[\"\xEF\xBF\xBF\"]"),
    T("[\"\\u0000\"]"),
    T("[\"\\u002c\"]"),
    T("[\"\xCF\x80\"]"),
    T("[\"\xF0\x9B\xBF\xBF\"]"),
    T("\" \""),
    T("[\"\\uDBFF\\uDFFF\"]"),
    T("[\"new\\u00A0line\"]"),
    T("[\"\xE2\x80\xA8\"]"),
    T("[\"\xE2\x80\xA9\"]"),
    T("[\"\\uA66D\"]"),
    T("[\"\x7F\"]"),
    T("[\"\\u200B\"]"),
    T("[\"\xE2\x82\xAC\xF0\x9D\x84\x9E\"]"),
    T("[\"a\x7F"
      "a\"]"),
    /* implementation-defined in the suites, decided here: lone surrogate escapes become U+FFFD */
    T("[\"\\uD800\"]"),
    T("[\"\\uDADA\"]"),
    T("[\"\\uD888\\u1234\"]"),
    T("[\"\\uDd1e\\uD834\"]"),
    T("[\"\\uD800\\uD800\\n\"]"),
    T("[\"\\ud800abc\"]"),
    T("[\"\\uDFAA\"]"),
    T("[\"\\uD800\\\"\"]"),
};

static const text rejected[] = {
    T(""),
    T(" "),
    T("["),
    T("]"),
    T("{"),
    T("}"),
    T("\""),
    T("\"a"),
    T("-"),
    T("+"),
    T("tru"),
    T("nul"),
    T("fals"),
    T("True"),
    T("truth"),
    T("nullx"),
    T("[1 true]"),
    T("[a\xE5]"),
    T("[\"\": 1]"),
    T("[\"\"],"),
    T("[,1]"),
    T("[1,,2]"),
    T("[\"x\",,]"),
    T("[\"x\"]]"),
    T("[\"\",]"),
    T("[\"x\""),
    T("[x"),
    T("[3[4]]"),
    T("[\xFF]"),
    T("[1:2]"),
    T("[,]"),
    T("[-]"),
    T("[   , \"\"]"),
    T("[\"a\",\n4\n,1,"),
    T("[1,]"),
    T("[\"\va\"\\f]"),
    T("[*]"),
    T("[\"\""),
    T("[1,"),
    T("[1,\n1\n,1"),
    T("[{}"),
    T("[fals]"),
    T("[nul]"),
    T("[tru]"),
    T("[1]x"),
    T("123\0"),
    T("[++1234]"),
    T("[+1]"),
    T("[+Inf]"),
    T("[-01]"),
    T("[-1.0.]"),
    T("[-2.]"),
    T("[-NaN]"),
    T("[.-1]"),
    T("[.2e-3]"),
    T("[0.1.2]"),
    T("[0.3e+]"),
    T("[0.3e]"),
    T("[0.e1]"),
    T("[0E+]"),
    T("[0E]"),
    T("[0e+]"),
    T("[0e]"),
    T("[1.0e+]"),
    T("[1.0e-]"),
    T("[1.0e]"),
    T("[1 000.0]"),
    T("[1eE2]"),
    T("[2.e+3]"),
    T("[2.e-3]"),
    T("[2.e3]"),
    T("[9.e+]"),
    T("[Inf]"),
    T("[NaN]"),
    T("[\xEF\xBC\x91]"),
    T("[1+2]"),
    T("[0x1]"),
    T("[0x42]"),
    T("[Infinity]"),
    T("[0e+-1]"),
    T("[-123.123foo]"),
    T("[123\xE5]"),
    T("[1e1\xE5]"),
    T("[0\xE5]"),
    T("[-Infinity]"),
    T("[-foo]"),
    T("[- 1]"),
    T("[-012]"),
    T("[-.123]"),
    T("[-1x]"),
    T("[1ea]"),
    T("[1e\xE5]"),
    T("[1.]"),
    T("[.123]"),
    T("[1.2a-3]"),
    T("[1.8011670033376514H-308]"),
    T("[012]"),
    T("[00]"),
    T("[1_000]"),
    T("2."),
    T("[\"x\", truth]"),
    T("{[: \"x\"}"),
    T("{\"x\", null}"),
    T("{\"x\"::\"b\"}"),
    T("{\xF0\x9F\x87\xA8}"),
    T("{\"a\":\"a\" 123}"),
    T("{key: 'value'}"),
    T("{\"\xB9\":\"0\",}"),
    T("{\"a\" b}"),
    T("{:\"b\"}"),
    T("{\"a\" \"b\"}"),
    T("{\"a\":"),
    T("{\"a\""),
    T("{1:1}"),
    T("{9999E9999:1}"),
    T("{null:null,null:null}"),
    T("{\"id\":0,,,,,}"),
    T("{'a':0}"),
    T("{\"id\":0,}"),
    T("{\"a\":\"b\"}/**/"),
    T("{\"a\":\"b\"}//"),
    T("{\"a\":/*comment*/\"b\"}"),
    T("{\"a\":\"b\",,\"c\":\"d\"}"),
    T("{a: \"b\"}"),
    T("{\"a\":\"a"),
    T("{ \"foo\" : \"bar\", \"a\" }"),
    T("{\"a\":\"b\"}#"),
    T("{\"a\":1]"),
    T("[1}"),
    T("{\"a\":1 \"b\":2}"),
    T("{,}"),
    T("{\"a\":,}"),
    T("{\"a\":}"),
    T("[\"\\uD800\\\"]"),
    T("[\"\\uD800\\u\"]"),
    T("[\"\\uD800\\u1\"]"),
    T("[\"\\uD800\\u1x\"]"),
    T("[\xC3\xA9]"),
    T("[\"\\x00\"]"),
    T("[\"\\\\\\\"]"),
    T("[\"\\\t\"]"),
    T("[\"\\\xF0\x9F\x8C\x80\"]"),
    T("[\"\\\"]"),
    T("[\"\\u00A\"]"),
    T("[\"\\uD834\\uDd\"]"),
    T("[\"\\uD800\\uD800\\x\"]"),
    T("[\"\\u\xE5\"]"),
    T("[\"\\a\"]"),
    T("[\"\\uqqqq\"]"),
    T("[\"\\\xE5\"]"),
    T("[\\u0020\"asd\"]"),
    T("[\\n]"),
    T("['single quote']"),
    T("abc"),
    T("[\"\\"),
    T("[\"a\0a\"]"),
    T("[\"new\nline\"]"),
    T("[\"\t\"]"),
    T("\"\\UA66D\""),
    T("\"\"x"),
    T("[\"\x1F\"]"),
    T("'a'"),
    T("<.>"),
    T("[<null>]"),
    T("[1]x"),
    T("[1]]"),
    T("[True]"),
    T("1]"),
    T("{\"x\": true,"),
    T("[][]"),
    T("{}}"),
    T("{\"\":"),
    T("\xE5"),
    T("[\0]"),
    T("\xEF\xBB\xBF"),
    T("\xEF\xBB\xBF{}"),
    T("\xEF\xBB"),
    T("[\xE2\x81\xA0]"),
    T("[\x0C]"),
    T("\xC2\xA0[]"),
    T("1 2"),
    T("[\v1]"),
    T("\0"),
    T("[]\0"),
    T("[\"\x80\"]"),
    T("[\"\xC0\xAF\"]"),
    T("[\"\xED\xA0\x80\"]"),
    T("[\"\xF4\xBF\xBF\xBF\"]"),
    T("[\"\xFC\x83\xBF\xBF\xBF\xBF\"]"),
    T("[\"\xE6\x97\xA5\xD1\x88\xFA\"]"),
    T("[\"\xE0\xFF\"]"),
    T("{\"\xFF\":1}"),
    T("[\"\xC3\"]"),
    T("\xFF\xFE[\0\"\0\xE9\0\"\0]\0"),
    T("[\"\\u123\"]"),
    T("[\"\\"),
    T("[\"\\u"),
    T("[\"\\u12"),
    T("[\"\\ud800\\"),
};

static void every_text_of_the_grammar_is_accepted(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
    sh_json *v = NULL;
    sh_error e = {0};
    if (parse_n(accepted[i].s, accepted[i].n, &v, &e)) fail_msg("case %zu, %s: %s", i, accepted[i].s, e.text);
    assert_non_null(v);
  }
}

static void every_other_text_is_refused_with_a_place(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rejected / sizeof rejected[0]; i++) {
    sh_json *v = NULL;
    sh_error e = {0};
    int rc = parse_n(rejected[i].s, rejected[i].n, &v, &e);
    if (rc != SH_ERR_FORMAT) fail_msg("case %zu, %s: returned %d", i, rejected[i].s, rc);
    assert_null(v);
    assert_contains(e.text, "line ");
    assert_true(sh_utf8_valid(e.text, strlen(e.text)));
  }
}

static void every_prefix_of_a_text_is_refused(void **state) {
  (void)state;
  static const char whole[] = "{\"a\": [1.5e3, \"x\\u00e9\\ud83d\\ude00\xC3\xA9\", true, false, null, {}, []], \"b\": -0}";
  sh_json *v;
  assert_int_equal(parse_n(whole, sizeof whole - 1, &v, NULL), 0);
  for (size_t n = 0; n + 1 < sizeof whole; n++) assert_int_equal(parse_n(whole, n, &v, NULL), SH_ERR_FORMAT);
}

static void an_error_says_line_column_and_what_was_found(void **state) {
  (void)state;
  sh_json *v;
  sh_error e;
  const char *s = "{\n  \"\xC3\xA9\": 1,\n  \"\xC3\xA9\": x}";
  assert_int_equal(parse_n(s, strlen(s), &v, &e), SH_ERR_FORMAT);
  assert_string_equal(e.text, "invalid JSON at line 3, column 8: found 'x', wanted a value");
  assert_int_equal(parse_n("[1", 2, &v, &e), SH_ERR_FORMAT);
  assert_contains(e.text, "found the end of the text, wanted ',' or ']'");
}

static void strings_are_decoded_and_keep_their_length(void **state) {
  (void)state;
  const sh_json *v = must("\"a\\u0000b\\n\\u00e9\\ud83d\\ude00\"");
  assert_int_equal(v->type, SH_JSON_STRING);
  assert_int_equal(v->len, 10);
  assert_memory_equal(v->s, "a\0b\n\xC3\xA9\xF0\x9F\x98\x80", 11);
}

static void a_lone_surrogate_becomes_a_replacement_character(void **state) {
  (void)state;
  static const struct {
    const char *in, *out;
  } cases[] = {
      {"\"\\ud800\"", "\xEF\xBF\xBD"},
      {"\"\\udc00x\"", "\xEF\xBF\xBDx"},
      {"\"\\ud800\\u0041\"", "\xEF\xBF\xBD"
                             "A"},
      {"\"\\ud800\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
      {"\"\\ud800\\n\"", "\xEF\xBF\xBD\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) assert_string_equal(must(cases[i].in)->s, cases[i].out);
}

static void a_number_keeps_its_text(void **state) {
  (void)state;
  static const char *const texts[] = {"1.50", "1e400", "-0.0", "123456789012345678901234567890", "1E+2"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    const sh_json *v = must(texts[i]);
    assert_int_equal(v->type, SH_JSON_NUMBER);
    assert_string_equal(v->s, texts[i]);
    assert_int_equal(v->len, strlen(texts[i]));
  }
}

static void containers_keep_order_and_count(void **state) {
  (void)state;
  const sh_json *v = must("{\"b\":[1,[2,3],{}],\"a\":{\"x\":null},\"c\\u0000d\":true}");
  assert_int_equal(v->len, 3);
  assert_string_equal(v->members[0].key, "b");
  assert_int_equal(v->members[0].value.len, 3);
  assert_string_equal(v->members[0].value.items[1].items[1].s, "3");
  assert_int_equal(v->members[0].value.items[2].type, SH_JSON_OBJECT);
  assert_int_equal(v->members[1].value.members[0].value.type, SH_JSON_NULL);
  assert_int_equal(v->members[2].key_len, 3);
  assert_memory_equal(v->members[2].key, "c\0d", 4);
  assert_true(v->members[2].value.b);
}

static void look_ups_find_the_last_of_equal_keys(void **state) {
  (void)state;
  const sh_json *v = must("{\"a\":1,\"t\":{\"r\":{\"x\":\"deep\"}},\"a\":2,\"t.r\":0}");
  assert_string_equal(sh_json_get(v, "a")->s, "2");
  assert_null(sh_json_get(v, "b"));
  assert_null(sh_json_get(v, "aa"));
  assert_null(sh_json_get(NULL, "a"));
  assert_null(sh_json_get(sh_json_get(v, "a"), "a"));
  assert_true(sh_json_eq_str(sh_json_path(v, "t.r.x"), "deep"));
  assert_null(sh_json_path(v, "t.q.x"));
  assert_null(sh_json_path(v, "a.x"));
  assert_false(sh_json_eq_str(sh_json_get(v, "a"), "2")); /* a number is no string */
  assert_false(sh_json_eq_str(must("\"a\\u0000\""), "a"));
  assert_true(sh_json_is(v, SH_JSON_OBJECT));
  assert_false(sh_json_is(NULL, SH_JSON_NULL));
  assert_string_equal(sh_json_type_name(SH_JSON_BOOL), "boolean");
}

static void integers_are_exact_or_refused(void **state) {
  (void)state;
  static const struct {
    const char *s;
    int64_t v;
  } good[] = {
      {"0", 0},
      {"-0", 0},
      {"1.0", 1},
      {"1e3", 1000},
      {"1.5e1", 15},
      {"100e-2", 1},
      {"9223372036854775807", INT64_MAX},
      {"-9223372036854775808", INT64_MIN},
      {"0e999999999999999999999", 0},
      {"0.000", 0},
      {"123456789012345678", 123456789012345678},
      {"92233720368547758.07e2", INT64_MAX},
      {"10.0e0", 10},
      {"0.001e3", 1},
      {"0.0120e3", 12},
      {"-25E-0", -25},
      {"1000000000000000000000e-21", 1},
      {"1.20e+2", 120},
  };
  int64_t v;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    if (sh_json_int(must(good[i].s), &v)) fail_msg("%s refused", good[i].s);
    if (v != good[i].v) fail_msg("%s read as %lld", good[i].s, (long long)v);
  }
  static const char *const bad[] = {"0.5",
                                    "1e-1",
                                    "9223372036854775808",
                                    "-9223372036854775809",
                                    "1e19",
                                    "1e999999999999999999999",
                                    "1.25e1",
                                    "true",
                                    "\"1\"",
                                    "1e-999999999999999999999",
                                    "[1]",
                                    "1e400",
                                    "10000000000000000000000",
                                    "0.1e0"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (sh_json_int(must(bad[i]), &v) != SH_ERR_ARG) fail_msg("%s accepted", bad[i]);
  assert_int_equal(sh_json_int(NULL, &v), SH_ERR_ARG);
}

static void doubles_are_correctly_rounded_whatever_the_locale(void **state) {
  (void)state;
  static const char *const locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8"};
  for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
    setlocale(LC_ALL, locales[i]); /* where it is not installed, this round repeats the one before */
    double d;
    assert_int_equal(sh_json_double(must("0.1"), &d), 0);
    assert_true(d == 0.1);
    assert_int_equal(sh_json_double(must("2.2250738585072011e-308"), &d), 0);
    assert_true(d == 2.2250738585072011e-308);
    assert_int_equal(sh_json_double(must("9007199254740993"), &d), 0);
    assert_true(d == 9007199254740992.0);
    assert_int_equal(sh_json_double(must("-1.5E-3"), &d), 0);
    assert_true(d == -1.5e-3);
    assert_int_equal(sh_json_double(must("1e400"), &d), SH_ERR_ARG);
    assert_int_equal(sh_json_double(must("true"), &d), SH_ERR_ARG);
    assert_int_equal(sh_json_double(NULL, &d), SH_ERR_ARG);
  }
  setlocale(LC_ALL, "C");
}

static char *repeat(const char *part, size_t times, size_t *n) {
  size_t len = strlen(part);
  char *s = malloc(len * times + 1);
  for (size_t i = 0; i < times; i++) memcpy(s + i * len, part, len);
  s[len * times] = '\0';
  *n = len * times;
  return s;
}

static void nesting_stops_at_the_limit(void **state) {
  (void)state;
  sh_json *v;
  sh_error e;
  size_t n;
  char *s = repeat("[", 100000, &n);
  assert_int_equal(sh_json_parse(s, n, NULL, arena, &v, &e), SH_ERR_LIMIT);
  assert_contains(e.text, "column 129");
  assert_int_equal(sh_json_parse(s, n, &(sh_json_limits){.max_depth = 1000000}, arena, &v, &e), SH_ERR_FORMAT); /* it ends too early */
  memset(s + 128, ']', 128);
  assert_int_equal(sh_json_parse(s, 256, NULL, arena, &v, &e), 0);
  assert_int_equal(sh_json_parse(s, 256, &(sh_json_limits){.max_depth = 127}, arena, &v, &e), SH_ERR_LIMIT);
  free(s);
  s = repeat("{\"a\":", 50000, &n);
  assert_int_equal(sh_json_parse(s, n, NULL, arena, &v, &e), SH_ERR_LIMIT);
  free(s);
}

static void values_are_counted_against_their_limit(void **state) {
  (void)state;
  sh_json *v;
  sh_json_limits lim = {.max_nodes = 4};
  assert_int_equal(sh_json_parse("[1,2,3]", 7, &lim, arena, &v, NULL), 0);
  assert_int_equal(sh_json_parse("[1,2,3,4]", 9, &lim, arena, &v, NULL), SH_ERR_LIMIT);
}

static void memory_is_bounded_by_the_arena(void **state) {
  (void)state;
  size_t n;
  char *s = repeat("[],", 200000, &n);
  s[0] = '[';
  s[1] = '0';
  sh_arena *small = sh_arena_new(100000);
  sh_json *v;
  sh_error e;
  assert_int_equal(sh_json_parse(s, n, NULL, small, &v, &e), SH_ERR_LIMIT);
  assert_true(sh_arena_used(small) <= 100000);
  sh_arena_free(small);
  small = sh_arena_new(64);
  assert_int_equal(sh_json_parse("\"0123456789012345678901234567890123456789012345678901234567890123456789\"", 72, NULL, small, &v, &e),
                   SH_ERR_LIMIT);
  sh_arena_free(small);
  free(s);
}

static void a_failed_allocation_is_reported_at_every_point(void **state) {
  (void)state;
  size_t n;
  char *body = repeat("{\"key\":[1,2,\"x\"]},", 3000, &n);
  body[n - 1] = ']';
  char *s = malloc(n + 1);
  s[0] = '[';
  memcpy(s + 1, body, n);
  int rc = SH_ERR_NOMEM;
  long k = 0;
  for (; rc && k < 1000; k++) {
    sh_arena *a = sh_arena_new(16 << 20);
    sh_json *v;
    sh_mem_fail_after(k);
    rc = sh_json_parse(s, n + 1, NULL, a, &v, NULL);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || rc == SH_ERR_NOMEM);
    sh_arena_free(a);
  }
  assert_int_equal(rc, 0);
  assert_true(k > 5);
  free(body);
  free(s);
}

static void built_trees_grow_and_replace(void **state) {
  (void)state;
  sh_json *o = sh_json_new_object(arena), *arr = sh_json_new_array(arena);
  sh_mem_guard_begin();
  for (int i = 0; i < 100000; i++) assert_int_equal(sh_json_push(arena, arr, sh_json_new_int(arena, i)), 0);
  assert_true(sh_mem_guard_end() < 100); /* chunks of the arena, not one allocation a push */
  assert_int_equal(arr->len, 100000);
  assert_string_equal(arr->items[99999].s, "99999");
  assert_int_equal(sh_json_set(arena, o, "list", arr), 0);
  assert_int_equal(sh_json_set(arena, o, "x", sh_json_new_bool(arena, true)), 0);
  assert_int_equal(sh_json_set(arena, o, "x", sh_json_new_null(arena)), 0);
  assert_int_equal(o->len, 2);
  assert_true(sh_json_is(sh_json_get(o, "x"), SH_JSON_NULL));
  assert_int_equal(sh_json_set(arena, arr, "x", o), SH_ERR_ARG);
  assert_int_equal(sh_json_push(arena, o, arr), SH_ERR_ARG);
  const sh_json *s = sh_json_new_string(arena, "a\0b", 3);
  assert_int_equal(s->len, 3);
  assert_memory_equal(s->s, "a\0b", 4);
}

static void an_added_member_stands_beside_those_of_its_name_and_the_last_is_found(void **state) {
  (void)state;
  enum { N = 200000 };
  sh_json *o = sh_json_new_object(arena), *v = sh_json_new_bool(arena, true);
  char key[16];
  for (int i = 0; i < N; i++) { /* with a look-up each this takes minutes */
    int n = snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(sh_json_add(arena, o, key, (size_t)n, v), 0);
  }
  assert_int_equal(o->len, N);
  assert_int_equal(sh_json_add(arena, o, "k7", 2, sh_json_new_int(arena, 5)), 0);
  assert_int_equal(o->len, N + 1);
  assert_string_equal(sh_json_get(o, "k7")->s, "5");
  assert_int_equal(sh_json_set(arena, o, "k7", sh_json_new_int(arena, 6)), 0); /* the one that is found */
  assert_int_equal(o->len, N + 1);
  assert_string_equal(sh_json_get(o, "k7")->s, "6");
  assert_int_equal(sh_json_add(arena, o, "a\0b", 3, v), 0);
  assert_null(sh_json_get(o, "a"));
  assert_int_equal(o->members[N + 1].key_len, 3);
  assert_int_equal(sh_json_add(arena, v, "x", 1, v), SH_ERR_ARG);
}

static void types_have_names_and_phrases(void **state) {
  (void)state;
  assert_string_equal(sh_json_type_name(SH_JSON_ARRAY), "array");
  assert_string_equal(sh_json_type_phrase(SH_JSON_ARRAY), "an array");
  assert_string_equal(sh_json_type_phrase(SH_JSON_OBJECT), "an object");
  assert_string_equal(sh_json_type_phrase(SH_JSON_NUMBER), "a number");
  assert_string_equal(sh_json_type_phrase(SH_JSON_NULL), "null");
}

static void appending_to_a_copy_leaves_the_original_alone(void **state) {
  (void)state;
  sh_json *arr = sh_json_new_array(arena), *o = sh_json_new_object(arena);
  sh_json_push(arena, arr, sh_json_new_int(arena, 1));
  sh_json_set(arena, o, "copy", arr);
  sh_json *copy = &o->members[0].value;
  sh_json_push(arena, arr, sh_json_new_int(arena, 2));
  sh_json_push(arena, copy, sh_json_new_int(arena, 3));
  assert_string_equal(arr->items[1].s, "2");
  assert_string_equal(copy->items[1].s, "3");
  sh_json *parsed;
  assert_int_equal(parse_n("[[1],{\"a\":1}]", 13, &parsed, NULL), 0);
  for (int i = 0; i < 10; i++) assert_int_equal(sh_json_push(arena, &parsed->items[0], sh_json_new_int(arena, i)), 0);
  assert_int_equal(sh_json_set(arena, &parsed->items[1], "b", &parsed->items[0]), 0);
  assert_int_equal(parsed->items[0].len, 11);
  assert_int_equal(sh_json_get(&parsed->items[1], "b")->len, 11);
  assert_string_equal(sh_json_get(&parsed->items[1], "a")->s, "1");
}

static void builders_without_memory_return_errors(void **state) {
  (void)state;
  sh_arena *tiny = sh_arena_new(sizeof(sh_json) + 16);
  sh_json *o = sh_json_new_object(tiny);
  assert_non_null(o);
  assert_null(sh_json_new_array(tiny));
  assert_null(sh_json_new_string(tiny, "0123456789012345678901234567890123456789", 40));
  assert_int_equal(sh_json_set(tiny, o, "k", o), SH_ERR_LIMIT);
  assert_int_equal(o->len, 0);
  sh_arena_free(tiny);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_text_of_the_grammar_is_accepted),
      cmocka_unit_test(every_other_text_is_refused_with_a_place),
      cmocka_unit_test(every_prefix_of_a_text_is_refused),
      cmocka_unit_test(an_error_says_line_column_and_what_was_found),
      cmocka_unit_test(strings_are_decoded_and_keep_their_length),
      cmocka_unit_test(a_lone_surrogate_becomes_a_replacement_character),
      cmocka_unit_test(a_number_keeps_its_text),
      cmocka_unit_test(containers_keep_order_and_count),
      cmocka_unit_test(look_ups_find_the_last_of_equal_keys),
      cmocka_unit_test(integers_are_exact_or_refused),
      cmocka_unit_test(doubles_are_correctly_rounded_whatever_the_locale),
      cmocka_unit_test(nesting_stops_at_the_limit),
      cmocka_unit_test(values_are_counted_against_their_limit),
      cmocka_unit_test(memory_is_bounded_by_the_arena),
      cmocka_unit_test(a_failed_allocation_is_reported_at_every_point),
      cmocka_unit_test(built_trees_grow_and_replace),
      cmocka_unit_test(an_added_member_stands_beside_those_of_its_name_and_the_last_is_found),
      cmocka_unit_test(types_have_names_and_phrases),
      cmocka_unit_test(appending_to_a_copy_leaves_the_original_alone),
      cmocka_unit_test(builders_without_memory_return_errors),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
