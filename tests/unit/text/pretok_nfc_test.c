/* NFC: equal to utf8proc's own (slow) normalization of the whole text, for every character and for random texts of those that interact. */
#include "text/pretok_nfc.h"

#include "base/text.h"
#include "unit/formats/files.h"

#include <utf8proc.h>

static sh_nfc *nfc;

static int setup(void **state) {
  (void)state;
  nfc = sh_nfc_new();
  return nfc ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  sh_nfc_free(nfc);
  return 0;
}

static void same_as_utf8proc(const char *s, size_t n) {
  utf8proc_uint8_t *want = NULL;
  utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  assert_true(len >= 0);
  sh_buf got;
  sh_buf_init(&got, 1 << 20);
  assert_int_equal(sh_nfc_append(nfc, s, n, &got), 0);
  if (got.len != (size_t)len || (len && memcmp(got.p, want, got.len) != 0)) fail_msg("not the same for: %.*s", (int)n, s);
  if (sh_nfc_is_normal(nfc, s, n) && ((size_t)len != n || memcmp(s, want, n) != 0)) fail_msg("taken for normal: %.*s", (int)n, s);
  sh_buf_free(&got);
  free(want);
}

static void every_character_is_normalized_also_beside_others(void **state) {
  (void)state;
  for (uint32_t cp = 1; cp < 0x110000; cp++) {
    if ((cp >= 0xD800 && cp < 0xE000) || (cp > 0x32000 && cp < 0xE0000) || cp > 0xE0200) continue;
    char s[24];
    size_t n = (size_t)sh_utf8_encode(cp, s);
    memcpy(s + n, "\u0301a", 3);
    n += 3;
    n += (size_t)sh_utf8_encode(cp, s + n);
    same_as_utf8proc(s, n);
  }
}

static void random_texts_are_normalized(void **state) {
  (void)state;
  /* letters that compose, their composites, marks of several classes, Hangul parts and syllables, Indic vowels, singletons, far planes */
  static const uint32_t chars[] = {'a',    'e',    'q',    ' ',     0xC5,    0xE9,    0x1E69,  0x300,   0x301,  0x316,
                                   0x323,  0x327,  0x345,  0x344,   0x1100,  0x1161,  0x11A8,  0xAC00,  0xAC01, 0x9C7,
                                   0x9BE,  0x9CB,  0x212B, 0x2126,  0xFB1D,  0x3B1,   0x1F80,  0x5B4,   0x5BC,  0x3099,
                                   0x304B, 0x4E00, 0xF900, 0x2F800, 0x1D15E, 0x11131, 0x11127, 0x1F600, 0xE0100};
  uint64_t seed = 88172645463325252ull;
  for (int round = 0; round < 100000; round++) {
    char s[64];
    size_t n = 0;
    for (uint64_t k = next_random(&seed) % 13; k > 0; k--)
      n += (size_t)sh_utf8_encode(chars[next_random(&seed) % (sizeof chars / sizeof *chars)], s + n);
    same_as_utf8proc(s, n);
  }
}

static void common_text_is_seen_to_be_normal(void **state) {
  (void)state;
  static const char text[] = "Plain text, caf\u00E9, \u4f60\u597d\uFF0C \u043f\u0440\u0438\u0432\u0435\u0442 \uD55C\uAD6D\uC5B4 "
                             "\u3072\u3089\u304C\u306A \U0001F600";
  assert_true(sh_nfc_is_normal(nfc, text, strlen(text)));
  assert_false(sh_nfc_is_normal(nfc, "cafe\u0301", 6));
  assert_false(sh_nfc_is_normal(nfc, "\u212B", 3));
}

static void a_buffer_that_is_full_is_reported(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 3);
  assert_int_equal(sh_nfc_append(nfc, "abcd", 4, &b), SH_ERR_LIMIT);
  sh_buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_character_is_normalized_also_beside_others),
      cmocka_unit_test(random_texts_are_normalized),
      cmocka_unit_test(common_text_is_seen_to_be_normal),
      cmocka_unit_test(a_buffer_that_is_full_is_reported),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
