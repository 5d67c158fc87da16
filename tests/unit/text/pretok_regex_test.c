/* The pattern translator: what it rewrites, and what it refuses because PCRE2 would read it differently. That the results split as the
 * reference does is tested with whole tokenizers (tokenizer_json_test.c). */
#include "text/pretok.h"
#include "unit/formats/files.h"

static void becomes(const char *from, const char *to) {
  sh_buf out;
  sh_error e = {0};
  sh_buf_init(&out, 1 << 16);
  if (sh_pretok_translate(from, strlen(from), &out, &e)) fail_msg("%s", e.text);
  assert_string_equal(out.p, to);
  sh_buf_free(&out);
}

static void refused(const char *from, const char *part) {
  sh_buf out;
  sh_error e = {0};
  sh_buf_init(&out, 1 << 16);
  int rc = sh_pretok_translate(from, strlen(from), &out, &e);
  if (rc != SH_ERR_UNSUPPORTED) fail_msg("%d for %s", rc, from);
  assert_says(e.text, part);
  assert_says(e.text, from);
  sh_buf_free(&out);
}

static void what_means_the_same_stays(void **state) {
  (void)state;
  static const char *const same[] = {
      "abc",          "a|b",   "(?:a)",     "(?i:'s|'t)", "[^\\r\\n]",  " ?\\p{L}+", "\\p{N}{1,3}", "a(?!b)(?=c)(?<=d)(?<!e)",
      "\\d\\D\\n\\t", "[a-z]", "x*?y+?z??", "x++y*+",     "\\.\\[\\\\", "\u4f60",    "\\P{Lu}",     "^a$"};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) becomes(same[i], same[i]);
}

static void white_space_is_the_unicode_property(void **state) {
  (void)state;
  becomes("\\s+(?!\\S)", "\\p{White_Space}+(?!\\P{White_Space})");
  becomes("[^\\s\\p{L}]", "[^\\p{White_Space}\\p{L}]");
  becomes("[[:space:]]", "[\\p{White_Space}]");
}

static void escapes_that_pcre2_reads_differently_are_rewritten(void **state) {
  (void)state;
  becomes("\\h\\v", "[0-9A-Fa-f]\\x0B");
  becomes("[\\h_]", "[0-9A-Fa-f_]");
  becomes("\\u4f60\\x41\\x{1F600}", "\\x{4f60}\\x{41}\\x{1f600}");
  becomes("\\p{^L}\\P{^L}", "\\P{L}\\p{L}");
  becomes("\\p{Han}", "\\p{sc:Han}");
  becomes("\\p{Lu}\\p{Digit}", "\\p{Lu}\\p{Nd}");
  becomes("[]a]", "[\\]a]");
}

static void groups_do_not_capture(void **state) {
  (void)state;
  becomes("(a)(?<name>b)", "(?:a)(?:b)");
  becomes("(?m:.)(?i-m:a)", "(?s:.)(?i-s:a)");
  becomes("(?i)a", "(?i)a");
}

static void braces_that_are_no_interval_are_text(void **state) {
  (void)state;
  becomes("a{,3}", "a{0,3}");
  becomes("a{2,}b{2}", "a{2,}b{2}");
  becomes("{a{b,c}{,}", "\\{a\\{b,c}\\{,}");
}

static void what_would_change_its_meaning_is_refused(void **state) {
  (void)state;
  refused("a{1,3}+", "repeated interval");
  refused("a{3}?", "optional interval");
  refused("[a&&b]", "intersection");
  refused("[a[bc]]", "class inside a class");
  refused("[\\W]", "escape in a class");
  refused("(a)\\1", "escape");
  refused("\\k<n>", "escape");
  refused("\\Qa\\E", "escape");
  refused("a\\Kb", "escape");
  refused("a(?i)b", "option switch");
  refused("(?x: a)", "kind of group");
  refused("(?(1)a)", "kind of group");
  refused("(*ACCEPT)", "verb");
  refused("\\xE9", "single byte");
  refused("\\u12", "incomplete");
  refused("\\x{12", "incomplete");
  refused("\\pL", "without braces");
  refused("\\p{L", "unterminated property");
  refused("\\p{L(}", "unusual property");
  refused("[abc", "unterminated class");
  refused("(?<n", "group name");
}

static void a_backslash_at_the_end_is_refused(void **state) {
  (void)state;
  refused("abc\\", "backslash at the end");
  refused("[abc\\", "backslash at the end");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_means_the_same_stays),
      cmocka_unit_test(white_space_is_the_unicode_property),
      cmocka_unit_test(escapes_that_pcre2_reads_differently_are_rewritten),
      cmocka_unit_test(groups_do_not_capture),
      cmocka_unit_test(braces_that_are_no_interval_are_text),
      cmocka_unit_test(what_would_change_its_meaning_is_refused),
      cmocka_unit_test(a_backslash_at_the_end_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
