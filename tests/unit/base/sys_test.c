/* Clocks, cores and memory of this process. */
#include "base/pool.h"
#include "unit/base/harness.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

static void the_clock_runs_forward_in_nanoseconds(void **state) {
  (void)state;
  int64_t a = sh_now_ns();
  nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
  int64_t d = sh_now_ns() - a;
  assert_in_range(d, 5 * 1000 * 1000, INT64_C(5000) * 1000 * 1000);
  assert_true(sh_unix_time() > 1700000000);
}

static void cores_follow_the_affinity_mask(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  int n = sh_cpu_count();
  assert_in_range(n, 1, CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(sh_cpu_count(), 1);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_int_equal(sh_cpu_count(), n);
}

static void memory_is_within_the_machine(void **state) {
  (void)state;
  int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  assert_in_range(sh_memory_limit(), 1 << 20, machine);
  assert_in_range(sh_rss_bytes(), 100 * 1024, machine);
  assert_in_range(sh_memory_available(), 1 << 20, machine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_clock_runs_forward_in_nanoseconds),
      cmocka_unit_test(cores_follow_the_affinity_mask),
      cmocka_unit_test(memory_is_within_the_machine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
