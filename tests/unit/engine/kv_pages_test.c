/* KV pages under random operations: the invariants hold after each, and no page is handed out twice. */
#include "engine/kv_pages.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { PAGES = 37, TABLES = 11 };

static uint32_t rnd_state = 12345;
static int rnd(int n) { return (int)((rnd_state = rnd_state * 1664525u + 1013904223u) >> 16) % n; }

static void random_takes_shares_and_returns_keep_the_invariants(void **state) {
  (void)state;
  sh_pages p;
  assert_int_equal(sh_pages_init(&p, PAGES, NULL), 0);
  int32_t table[TABLES][PAGES];
  int len[TABLES] = {0};
  for (int step = 0; step < 20000; step++) {
    int t = rnd(TABLES), u = rnd(TABLES);
    switch (rnd(4)) {
    case 0:
    case 1:
      if (len[t] == PAGES) break;
      int32_t page = sh_pages_take(&p);
      if (page < 0) {
        assert_int_equal(p.n_free, 0);
        break;
      }
      for (int a = 0; a < TABLES; a++)
        for (int i = 0; i < len[a]; i++) assert_int_not_equal(table[a][i], page);
      table[t][len[t]++] = page;
      break;
    case 2: /* u becomes a fork of t */
      if (t == u || len[u]) break;
      for (int i = 0; i < len[t]; i++) {
        sh_pages_ref(&p, table[t][i]);
        table[u][len[u]++] = table[t][i];
      }
      break;
    case 3:
      while (len[t]) sh_pages_unref(&p, table[t][--len[t]]);
      break;
    }
    assert_true(sh_pages_check(&p));
    int32_t refs[PAGES] = {0};
    for (int a = 0; a < TABLES; a++)
      for (int i = 0; i < len[a]; i++) refs[table[a][i]]++;
    assert_memory_equal(refs, p.refs, sizeof refs);
  }
  sh_pages_free(&p);
}

static void the_check_finds_a_page_that_is_free_twice(void **state) {
  (void)state;
  sh_pages p;
  assert_int_equal(sh_pages_init(&p, 5, NULL), 0);
  assert_true(sh_pages_check(&p));
  p.free[1] = p.free[2];
  assert_false(sh_pages_check(&p));
  sh_pages_free(&p);
}

static void the_check_finds_a_free_page_that_someone_holds(void **state) {
  (void)state;
  sh_pages p;
  assert_int_equal(sh_pages_init(&p, 5, NULL), 0);
  p.refs[2] = 1;
  assert_false(sh_pages_check(&p));
  sh_pages_free(&p);
}

static void a_failed_start_leaves_nothing(void **state) {
  (void)state;
  for (long n = 0; n < 3; n++) {
    sh_pages p;
    sh_mem_fail_after(n);
    assert_int_equal(sh_pages_init(&p, 5, NULL), SH_ERR_NOMEM);
    sh_mem_fail_after(-1);
    assert_null(p.free);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_takes_shares_and_returns_keep_the_invariants),
      cmocka_unit_test(the_check_finds_a_page_that_is_free_twice),
      cmocka_unit_test(the_check_finds_a_free_page_that_someone_holds),
      cmocka_unit_test(a_failed_start_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
