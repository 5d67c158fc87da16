/* UTF-8, number and size texts, hash. */
#include "base/text.h"
#include "base/err.h"
#include "unit/base/harness.h"

#include <math.h>

static void every_code_point_survives_encode_and_decode(void **state) {
  (void)state;
  for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    char s[4];
    uint32_t back;
    int n = sh_utf8_encode(cp, s);
    if (sh_utf8_decode(s, (size_t)n, &back) != n || back != cp) fail_msg("U+%04X", cp);
  }
  char s[4];
  assert_int_equal(sh_utf8_encode(0xD800, s), 3);
  assert_memory_equal(s, "\xEF\xBF\xBD", 3);
  assert_int_equal(sh_utf8_encode(0x110000, s), 3);
}

static void invalid_sequences_are_replaced_by_maximal_subparts(void **state) {
  (void)state;
  /* the counts that Python's bytes.decode("utf-8", "replace") gives */
  static const struct {
    const char *in;
    const char *out;
  } cases[] = {
      {"a\x80z", "a?z"},
      {"\xC0\x80", "??"},           /* overlong NUL */
      {"\xE0\x80\x80", "???"},      /* overlong: the second byte is out of its bounds */
      {"\xED\xA0\x80", "???"},      /* a surrogate */
      {"\xF4\x90\x80\x80", "????"}, /* above 10FFFF */
      {"\xF5\x80", "??"},
      {"\xE2\x82", "?"}, /* cut: one subpart */
      {"\xE2\x82z", "?z"},
      {"\xF0\x9F\x98", "?"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "?\xF0\x9F\x98\x80"},
      {"\xFF\xFE", "??"},
      {"\xC3", "?"},
      {"\xF0\x80\x80\x80", "????"},
      {"plain text of more than eight bytes \xC3\xA9", "plain text of more than eight bytes \xC3\xA9"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    sh_buf got, want;
    sh_buf_init(&got, 1000);
    sh_buf_init(&want, 1000);
    for (const char *c = cases[i].out; *c; c++) {
      if (*c == '?') sh_buf_puts(&want, "\xEF\xBF\xBD");
      else sh_buf_putc(&want, *c);
    }
    assert_int_equal(sh_utf8_sanitize(cases[i].in, strlen(cases[i].in), &got), 0);
    assert_string_equal(got.p, want.p);
    assert_true(sh_utf8_valid(got.p, got.len));
    assert_int_equal(sh_utf8_valid(cases[i].in, strlen(cases[i].in)), strchr(cases[i].out, '?') == NULL);
    sh_buf_free(&got);
    sh_buf_free(&want);
  }
}

static void the_incomplete_tail_is_what_may_still_become_a_character(void **state) {
  (void)state;
  static const struct {
    const char *s;
    size_t tail;
  } cases[] = {
      {"", 0},
      {"a", 0},
      {"\xC3", 1},
      {"a\xE2\x82", 2},
      {"\xF0\x9F\x98", 3},
      {"\xF0\x9F\x98\x80", 0},
      {"\xE2\x82\xAC", 0},
      {"\xED\xA0", 0},
      {"\xE0\x80", 0},
      {"\x80", 0},
      {"\x80\x80\x80", 0},
      {"\xF0\x9F", 2},
      {"\xFF", 0},
      {"\xC0", 0},
      {"\xF4\x90", 0},
      {"\xED", 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    assert_int_equal(sh_utf8_incomplete_tail(cases[i].s, strlen(cases[i].s)), cases[i].tail);
}

static void prefixes_and_suffixes(void **state) {
  (void)state;
  assert_true(sh_str_starts("model.layers", "model."));
  assert_false(sh_str_starts("mod", "model"));
  assert_true(sh_str_ends("a.gguf", ".gguf"));
  assert_false(sh_str_ends("gguf", ".gguf"));
  assert_true(sh_str_ends("x", ""));
}

static void whole_numbers_are_read_whole(void **state) {
  (void)state;
  int64_t v;
  assert_int_equal(sh_parse_i64("9223372036854775807", &v), 0);
  assert_true(v == INT64_MAX);
  assert_int_equal(sh_parse_i64("-9223372036854775808", &v), 0);
  assert_true(v == INT64_MIN);
  assert_int_equal(sh_parse_i64("+12", &v), 0);
  assert_int_equal(v, 12);
  static const char *const bad[] = {"", "-", "+", "1x", " 1", "1 ", "9223372036854775808", "-9223372036854775809", "1.0", "0x10", "--1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(sh_parse_i64(bad[i], &v), SH_ERR_ARG);
}

static void floats_are_read_exactly_and_finite(void **state) {
  (void)state;
  double v;
  assert_int_equal(sh_parse_f64("0.1", &v), 0);
  assert_true(v == 0.1);
  assert_int_equal(sh_parse_f64("-2.5e-3", &v), 0);
  assert_true(v == -2.5e-3);
  assert_int_equal(sh_parse_f64("1e-400", &v), 0);
  assert_true(v == 0);
  static const char *const bad[] = {"", "nan", "inf", "1e400", "0x1p3", " 1", "1 ", "1,5", "1.2.3", "e5", "-"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(sh_parse_f64(bad[i], &v), SH_ERR_ARG);
}

static void sizes_take_units_of_1024(void **state) {
  (void)state;
  static const struct {
    const char *s;
    int64_t v;
  } good[] = {
      {"1000", 1000},
      {"0", 0},
      {"8GiB", INT64_C(8) << 30},
      {"512M", 512 << 20},
      {"1.5k", 1536},
      {"2 TB", INT64_C(2) << 40},
      {"7B", 7},
      {"3mib", 3 << 20},
      {"4K", 4096},
      {"0.5 GiB", 512 << 20},
  };
  int64_t v;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    assert_int_equal(sh_parse_size(good[i].s, &v), 0);
    assert_true(v == good[i].v);
  }
  static const char *const bad[] = {"",      "G", "-1", "8X", "8GiBs", "8Gi", "1..5G", "9999999999T", "99999999999999999999",
                                    "8 G B", ".", "bib"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(sh_parse_size(bad[i], &v), SH_ERR_ARG);
  char buf[32];
  assert_string_equal(sh_format_size(1536 << 20, buf), "1.5 GiB");
  assert_string_equal(sh_format_size(999, buf), "999 B");
  assert_string_equal(sh_format_size(INT64_MAX, buf), "8.0 EiB");
}

static void the_hash_depends_on_every_byte_the_length_and_the_seed(void **state) {
  (void)state;
  unsigned char data[40] = {0};
  for (size_t n = 0; n <= sizeof data; n++) {
    uint64_t h = sh_hash(data, n, 1);
    assert_true(h == sh_hash(data, n, 1));
    assert_true(h != sh_hash(data, n, 2));
    if (n < sizeof data) assert_true(h != sh_hash(data, n + 1, 1));
    for (size_t i = 0; i < n; i++) {
      data[i] ^= 1;
      assert_true(h != sh_hash(data, n, 1));
      data[i] ^= 1;
    }
  }
}

static void hashes_of_small_numbers_spread_over_low_bits(void **state) {
  (void)state;
  int buckets[256] = {0};
  for (uint32_t i = 0; i < 65536; i++) buckets[sh_hash(&i, sizeof i, 0) & 255]++;
  for (int i = 0; i < 256; i++) assert_in_range(buckets[i], 256 - 96, 256 + 96); /* six standard deviations */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code_point_survives_encode_and_decode),
      cmocka_unit_test(invalid_sequences_are_replaced_by_maximal_subparts),
      cmocka_unit_test(the_incomplete_tail_is_what_may_still_become_a_character),
      cmocka_unit_test(prefixes_and_suffixes),
      cmocka_unit_test(whole_numbers_are_read_whole),
      cmocka_unit_test(floats_are_read_exactly_and_finite),
      cmocka_unit_test(sizes_take_units_of_1024),
      cmocka_unit_test(the_hash_depends_on_every_byte_the_length_and_the_seed),
      cmocka_unit_test(hashes_of_small_numbers_spread_over_low_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
