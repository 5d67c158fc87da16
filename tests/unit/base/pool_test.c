/* The thread pool: every item once, at any size and pace, without allocation; meant to run under the thread sanitizer too. */
#include "base/pool.h"
#include "base/mem.h"
#include "unit/base/harness.h"

#include <stdatomic.h>
#include <time.h>

enum { MAX_ITEMS = 1000 };

typedef struct job {
  int times[MAX_ITEMS]; /* plain ints: an item done twice at once is a race that the thread sanitizer sees */
  atomic_int bad_worker;
  int size, add;
  int64_t busy_ns;
} job;

static void count(void *ctx, int item, int worker) {
  job *j = ctx;
  j->times[item] += j->add;
  if (worker < 0 || worker >= j->size) atomic_store(&j->bad_worker, 1);
  if (j->busy_ns)
    for (int64_t end = sh_now_ns() + j->busy_ns; sh_now_ns() < end;) {}
}

static void check_all(const job *j, int n, int want) {
  for (int i = 0; i < n; i++)
    if (j->times[i] != want) fail_msg("item %d of %d: %d, wanted %d", i, n, j->times[i], want);
  for (int i = n; i < MAX_ITEMS; i++) assert_int_equal(j->times[i], 0);
}

static sh_pool *pool_of(int n) {
  sh_pool *p;
  sh_error e;
  if (sh_pool_new(&p, n, &e)) fail_msg("%s", e.text);
  return p;
}

static void every_item_runs_once_at_any_pool_size(void **state) {
  (void)state;
  static const int sizes[] = {1, 2, 3, 4, 8}, items[] = {0, 1, 2, 3, 7, 64, MAX_ITEMS};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    sh_pool *p = pool_of(sizes[s]);
    assert_int_equal(sh_pool_size(p), sizes[s]);
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
      static job j;
      memset(&j, 0, sizeof j);
      j.size = sizes[s];
      j.add = 1;
      for (int round = 0; round < 20; round++) sh_pool_run(p, count, &j, items[i]);
      check_all(&j, items[i], 20);
      assert_int_equal(atomic_load(&j.bad_worker), 0);
    }
    sh_pool_free(p);
  }
}

static void sum_up(void *ctx, int item, int worker) {
  (void)worker;
  atomic_fetch_add((atomic_long *)ctx, item + 1);
}

static void jobs_that_follow_at_once_do_not_take_each_others_items(void **state) {
  (void)state;
  for (int size = 2; size <= 4; size++) {
    sh_pool *p = pool_of(size);
    for (int round = 0; round < 3000; round++) {
      static job j;
      atomic_long sum = 0;
      int n = 2 + round % 7;
      memset(&j, 0, sizeof j);
      j.size = size;
      j.add = round;
      sh_pool_run(p, count, &j, n);
      sh_pool_run(p, sum_up, &sum, n + 3); /* another function, other items, a context that dies with this round */
      check_all(&j, n, round);
      assert_int_equal(atomic_load(&sum), (n + 3) * (n + 4) / 2);
    }
    sh_pool_free(p);
  }
}

static void workers_that_went_to_sleep_wake_up(void **state) {
  (void)state;
  sh_pool *p = pool_of(2);
  for (int round = 0; round < 30; round++) {
    static job j;
    memset(&j, 0, sizeof j);
    j.size = 2;
    j.add = 1;
    j.busy_ns = 200 * 1000; /* longer than anyone spins: the caller sleeps too */
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    sh_pool_run(p, count, &j, 3);
    check_all(&j, 3, 1);
  }
  sh_pool_free(p);
}

static void note_worker(void *ctx, int item, int worker) {
  atomic_int *seen = ctx;
  (void)item;
  atomic_fetch_or(seen, 1 << worker);
  for (int64_t end = sh_now_ns() + 20 * 1000 * 1000; sh_now_ns() < end && atomic_load(seen) != 3;) {}
}

static void a_worker_helps_the_caller(void **state) {
  (void)state;
  sh_pool *p = pool_of(2);
  atomic_int seen = 0;
  for (int round = 0; round < 100 && atomic_load(&seen) != 3; round++) {
    atomic_store(&seen, 0);
    sh_pool_run(p, note_worker, &seen, 2);
  }
  assert_int_equal(atomic_load(&seen), 3);
  sh_pool_free(p);
}

static void idle_workers_stop_using_the_processor(void **state) {
  (void)state;
  sh_pool *p = pool_of(2);
  atomic_long sum = 0;
  sh_pool_run(p, sum_up, &sum, 8);
  nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
  struct timespec a, b;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  int64_t used = (b.tv_sec - a.tv_sec) * 1000000000 + (b.tv_nsec - a.tv_nsec);
  assert_true(used < 50 * 1000 * 1000);
  sh_pool_free(p);
}

static void running_a_job_allocates_nothing(void **state) {
  (void)state;
  sh_pool *p = pool_of(2);
  atomic_long sum = 0;
  sh_mem_guard_begin();
  for (int i = 0; i < 100; i++) sh_pool_run(p, sum_up, &sum, 16);
  assert_int_equal(sh_mem_guard_end(), 0);
  sh_pool_free(p);
}

static void a_pool_that_cannot_be_made_says_why(void **state) {
  (void)state;
  sh_pool *p;
  sh_error e;
  assert_int_equal(sh_pool_new(&p, -1, &e), SH_ERR_ARG);
  assert_null(p);
  assert_contains(e.text, "-1");
  assert_int_equal(sh_pool_new(&p, 1000000, &e), SH_ERR_ARG);
  for (long n = 0; n < 2; n++) {
    sh_mem_fail_after(n);
    int rc = sh_pool_new(&p, 2, &e);
    sh_mem_fail_after(-1);
    assert_int_equal(rc, SH_ERR_NOMEM);
    assert_null(p);
  }
  sh_pool_free(NULL);
}

static void zero_threads_means_one_per_usable_core(void **state) {
  (void)state;
  sh_pool *p = pool_of(0);
  assert_int_equal(sh_pool_size(p), sh_cpu_count());
  sh_pool_free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_item_runs_once_at_any_pool_size), cmocka_unit_test(jobs_that_follow_at_once_do_not_take_each_others_items),
      cmocka_unit_test(workers_that_went_to_sleep_wake_up),    cmocka_unit_test(a_worker_helps_the_caller),
      cmocka_unit_test(idle_workers_stop_using_the_processor), cmocka_unit_test(running_a_job_allocates_nothing),
      cmocka_unit_test(a_pool_that_cannot_be_made_says_why),   cmocka_unit_test(zero_threads_means_one_per_usable_core),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
