/* The name table: finds what was put in, knows duplicates, stays within its room. */
#include "formats/nameindex.h"

#include "unit/formats/files.h"

static void every_name_is_found_and_no_other(void **state) {
  (void)state;
  enum { N = 5000 };
  static char names[N][24];
  sh_nameindex x;
  assert_int_equal(sh_nameindex_init(&x, N), 0);
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof names[i], "blk.%d.w", i);
    assert_int_equal(sh_nameindex_add(&x, names[i], strlen(names[i]), i), 0);
  }
  for (int i = 0; i < N; i++) assert_int_equal(sh_nameindex_find(&x, names[i], strlen(names[i])), i);
  assert_int_equal(sh_nameindex_find(&x, "blk.5000.w", 10), -1);
  assert_int_equal(sh_nameindex_find(&x, "blk.1.", 6), -1);
  sh_nameindex_free(&x);
}

static void a_second_equal_name_is_refused(void **state) {
  (void)state;
  sh_nameindex x;
  assert_int_equal(sh_nameindex_init(&x, 2), 0);
  assert_int_equal(sh_nameindex_add(&x, "a", 1, 7), 0);
  assert_int_equal(sh_nameindex_add(&x, "a", 1, 8), SH_ERR_FORMAT);
  assert_int_equal(sh_nameindex_find(&x, "a", 1), 7);
  sh_nameindex_free(&x);
}

static void a_zeroed_table_finds_nothing(void **state) {
  (void)state;
  sh_nameindex x = {0};
  assert_int_equal(sh_nameindex_find(&x, "a", 1), -1);
  sh_nameindex_free(&x);
}

static void an_absurd_size_is_an_error(void **state) {
  (void)state;
  sh_nameindex x;
  assert_int_equal(sh_nameindex_init(&x, SIZE_MAX / 4), SH_ERR_NOMEM);
  sh_nameindex_free(&x);
}

static void without_memory_it_is_an_error_and_finds_nothing(void **state) {
  (void)state;
  sh_nameindex x;
  sh_mem_fail_after(0);
  int rc = sh_nameindex_init(&x, 5);
  sh_mem_fail_after(-1);
  assert_int_equal(rc, SH_ERR_NOMEM);
  assert_int_equal(sh_nameindex_find(&x, "a", 1), -1);
  sh_nameindex_free(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_name_is_found_and_no_other),
      cmocka_unit_test(a_second_equal_name_is_refused),
      cmocka_unit_test(a_zeroed_table_finds_nothing),
      cmocka_unit_test(an_absurd_size_is_an_error),
      cmocka_unit_test(without_memory_it_is_an_error_and_finds_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
