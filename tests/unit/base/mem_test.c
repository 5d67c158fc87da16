/* Allocation, buffers, arenas: limits, sticky errors, the two test hooks. */
#include "base/mem.h"
#include "base/err.h"
#include "unit/base/harness.h"

static void sizes_that_overflow_are_refused(void **state) {
  (void)state;
  assert_null(sh_calloc(SIZE_MAX / 2, 3));
  assert_null(sh_malloc(SIZE_MAX));
  assert_null(sh_realloc(NULL, SIZE_MAX - 7));
  assert_null(sh_aligned(64, SIZE_MAX - 100));
  assert_null(sh_aligned(48, 100)); /* not a power of two */
  assert_null(sh_strndup("x", SIZE_MAX));
}

static void an_empty_allocation_is_not_null(void **state) {
  (void)state;
  void *a = sh_malloc(0), *b = sh_calloc(0, 8), *c = sh_aligned(64, 0);
  assert_non_null(a);
  assert_non_null(b);
  assert_non_null(c);
  assert_int_equal((uintptr_t)c % 64, 0);
  sh_free(a);
  sh_free(b);
  sh_free(c);
  sh_free(NULL);
}

static void the_nth_allocation_fails_and_all_after_it(void **state) {
  (void)state;
  sh_mem_fail_after(2);
  void *a = sh_malloc(1), *b = sh_calloc(1, 1), *c = sh_malloc(1), *d = sh_strdup("x");
  sh_mem_fail_after(-1);
  void *f = sh_malloc(1);
  assert_non_null(a);
  assert_non_null(b);
  assert_null(c);
  assert_null(d);
  assert_non_null(f);
  sh_free(a);
  sh_free(b);
  sh_free(f);
}

static void the_guard_counts_allocations(void **state) {
  (void)state;
  sh_mem_guard_begin();
  assert_int_equal(sh_mem_guard_end(), 0);
  sh_mem_guard_begin();
  void *a = sh_malloc(4);
  a = sh_realloc(a, 9);
  sh_free(a);
  assert_int_equal(sh_mem_guard_end(), 2);
}

static void a_buffer_grows_and_stays_terminated(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  for (int i = 0; i < 1000; i++) {
    assert_int_equal(sh_buf_printf(&b, "%03d,", i), 0);
    assert_int_equal(b.p[b.len], 0);
  }
  assert_int_equal(b.len, 4000);
  assert_memory_equal(b.p + 3996, "999,", 4);
  char *p = sh_buf_detach(&b);
  assert_int_equal(strlen(p), 4000);
  assert_null(b.p);
  sh_free(p);
  p = sh_buf_detach(&b);
  assert_string_equal(p, "");
  sh_free(p);
}

static void a_buffer_takes_exactly_its_maximum(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 100);
  char block[100];
  memset(block, 'x', sizeof block);
  assert_int_equal(sh_buf_put(&b, block, 60), 0);
  assert_int_equal(sh_buf_put(&b, block, 40), 0);
  assert_int_equal(b.p[100], 0);
  assert_int_equal(sh_buf_putc(&b, 'y'), SH_ERR_LIMIT);
  assert_int_equal(b.len, 100);
  sh_buf_free(&b);
  assert_int_equal(b.max, 100);
}

static void a_failed_append_sticks_until_reset(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 4);
  assert_int_equal(sh_buf_puts(&b, "abcde"), SH_ERR_LIMIT);
  assert_int_equal(sh_buf_puts(&b, "a"), SH_ERR_LIMIT);
  assert_int_equal(b.failed, SH_ERR_LIMIT);
  assert_null(sh_buf_detach(&b));
  sh_buf_reset(&b);
  assert_int_equal(sh_buf_puts(&b, "a"), 0);
  assert_string_equal(b.p, "a");
  assert_int_equal(sh_buf_reserve(&b, SIZE_MAX), SH_ERR_LIMIT);
  sh_buf_free(&b);
  sh_buf_init(&b, 1 << 20);
  sh_mem_fail_after(0);
  int rc = sh_buf_puts(&b, "a");
  sh_mem_fail_after(-1);
  assert_int_equal(rc, SH_ERR_NOMEM);
  assert_int_equal(b.failed, SH_ERR_NOMEM);
  sh_buf_free(&b);
}

static void arena_memory_is_zeroed_and_aligned(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(64 << 20);
  for (size_t n = 1; n < 3000; n += 7) {
    unsigned char *p = sh_arena_alloc(a, n);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
    memset(p, 0xAB, n);
  }
  unsigned char *big = sh_arena_alloc(a, 5 << 20);
  assert_non_null(big);
  assert_int_equal(big[(5 << 20) - 1], 0);
  assert_string_equal(sh_arena_printf(a, "%d-%s", 5, "x"), "5-x");
  assert_string_equal(sh_arena_strdup(a, "hello", 4), "hell");
  sh_arena_free(a);
  sh_arena_free(NULL);
}

static void an_arena_keeps_its_maximum(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(1000);
  assert_non_null(sh_arena_alloc(a, 500));
  assert_int_equal(sh_arena_used(a), 512);
  assert_int_equal(sh_arena_left(a), 488);
  assert_null(sh_arena_alloc(a, 489));
  assert_null(sh_arena_alloc(a, SIZE_MAX));
  assert_null(sh_arena_array(a, SIZE_MAX / 4, 8));
  assert_non_null(sh_arena_alloc(a, 480));
  assert_null(sh_arena_alloc(a, 16));
  assert_int_equal(sh_arena_used(a), 992);
  sh_arena_free(a);
}

static void a_large_piece_does_not_waste_the_chunk_in_use(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(1 << 20);
  char *first = sh_arena_alloc(a, 16);
  assert_non_null(sh_arena_alloc(a, 100000));
  char *second = sh_arena_alloc(a, 16);
  assert_ptr_equal(second, first + 16);
  sh_arena_free(a);
}

static void an_arena_without_memory_gives_null_and_stays_usable(void **state) {
  (void)state;
  sh_mem_fail_after(0);
  sh_arena *none = sh_arena_new(1000);
  sh_mem_fail_after(1);
  sh_arena *a = sh_arena_new(1000);
  void *p = sh_arena_alloc(a, 10);
  sh_mem_fail_after(-1);
  assert_null(none);
  assert_null(p);
  assert_int_equal(sh_arena_used(a), 0);
  assert_non_null(sh_arena_alloc(a, 10));
  sh_arena_free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_that_overflow_are_refused),
      cmocka_unit_test(an_empty_allocation_is_not_null),
      cmocka_unit_test(the_nth_allocation_fails_and_all_after_it),
      cmocka_unit_test(the_guard_counts_allocations),
      cmocka_unit_test(a_buffer_grows_and_stays_terminated),
      cmocka_unit_test(a_buffer_takes_exactly_its_maximum),
      cmocka_unit_test(a_failed_append_sticks_until_reset),
      cmocka_unit_test(arena_memory_is_zeroed_and_aligned),
      cmocka_unit_test(an_arena_keeps_its_maximum),
      cmocka_unit_test(a_large_piece_does_not_waste_the_chunk_in_use),
      cmocka_unit_test(an_arena_without_memory_gives_null_and_stays_usable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
