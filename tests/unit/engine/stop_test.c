/* Stop strings fed in pieces against searching the whole text. */
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t r = 5;
static int rnd(int n) { return (int)((r = r * 1664525u + 1013904223u) >> 16) % n; }

/* The first byte position at which some pattern ends, and the first pattern that ends there. */
static int naive_find(const sh_str *p, int n, const char *text, size_t len, size_t *end) {
  for (size_t i = 1; i <= len; i++)
    for (int k = 0; k < n; k++)
      if (p[k].n <= i && memcmp(text + i - p[k].n, p[k].p, p[k].n) == 0) {
        *end = i;
        return k;
      }
  return -1;
}

static size_t naive_held(const sh_str *p, int n, const char *text, size_t len) {
  size_t most = 0;
  for (int k = 0; k < n; k++)
    for (size_t m = 1; m < p[k].n && m <= len; m++)
      if (m > most && memcmp(text + len - m, p[k].p, m) == 0) most = m;
  return most;
}

static void pieces_give_what_the_whole_text_gives(void **state) {
  (void)state;
  int found = 0;
  for (int round = 0; round < 5000; round++) {
    char text[41], pat[4][8];
    sh_str p[4];
    int n = 1 + rnd(4);
    for (int i = 0; i < 40; i++) text[i] = (char)('a' + rnd(2));
    for (int k = 0; k < n; k++) {
      p[k] = (sh_str){pat[k], (size_t)(2 + rnd(6))};
      for (size_t i = 0; i < p[k].n; i++) pat[k][i] = (char)('a' + rnd(2 + (k == 0)));
    }
    sh_arena *a = sh_arena_new(1 << 16);
    sh_stops s;
    int32_t st[4] = {0};
    assert_int_equal(sh_stops_compile(&s, p, n, a), 0);
    size_t at = 0, end = 0, want_end = 0;
    int hit = -1, want = naive_find(p, n, text, 40, &want_end);
    while (at < 40 && hit < 0) {
      size_t piece = (size_t)rnd(6);
      if (piece > 40 - at) piece = 40 - at;
      hit = sh_stops_feed(&s, st, text + at, piece, true, &end);
      if (hit >= 0) end += at;
      at += piece;
      if (hit < 0) assert_int_equal(sh_stops_held(&s, st), naive_held(p, n, text, at));
    }
    assert_int_equal(hit, want);
    if (hit >= 0) assert_int_equal(end, want_end);
    found += hit >= 0;
    sh_arena_free(a);
  }
  assert_in_range(found, 1000, 4900);
}

static void a_match_that_may_not_count_yet_is_passed_over(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(1 << 16);
  sh_stops s;
  int32_t st[1] = {0};
  size_t end;
  sh_str p = {"abab", 4};
  assert_int_equal(sh_stops_compile(&s, &p, 1, a), 0);
  assert_int_equal(sh_stops_feed(&s, st, "xabab", 5, false, &end), -1);
  assert_int_equal(sh_stops_held(&s, st), 2);
  assert_int_equal(sh_stops_feed(&s, st, "ab", 2, true, &end), 0); /* the overlapping one ends after the border */
  assert_int_equal(end, 2);
  sh_arena_free(a);
}

static void no_patterns_hold_nothing(void **state) {
  (void)state;
  sh_stops s;
  size_t end;
  assert_int_equal(sh_stops_compile(&s, NULL, 0, NULL), 0);
  assert_int_equal(sh_stops_feed(&s, NULL, "text", 4, true, &end), -1);
  assert_int_equal(sh_stops_held(&s, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_give_what_the_whole_text_gives),
      cmocka_unit_test(a_match_that_may_not_count_yet_is_passed_over),
      cmocka_unit_test(no_patterns_hold_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
