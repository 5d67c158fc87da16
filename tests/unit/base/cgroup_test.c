/* cgroup limits, read from made-up trees of both versions. */
#include "base/cgroup.h"
#include "base/err.h"
#include "unit/base/harness.h"

#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/sheng_cgroup_test.XXXXXX";
static char list[64];
static char made[32][256]; /* what to remove, in the order it was made */
static int n_made;

static int make_root(void **state) {
  (void)state;
  n_made = 0;
  memcpy(root + sizeof root - 7, "XXXXXX", 6);
  if (!mkdtemp(root)) return -1;
  snprintf(list, sizeof list, "%s/self", root);
  return 0;
}

static int remove_root(void **state) {
  (void)state;
  while (n_made > 0) remove(made[--n_made]);
  return rmdir(root);
}

static void add_dir(const char *name) {
  snprintf(made[n_made], sizeof made[0], "%s/%s", root, name);
  assert_int_equal(mkdir(made[n_made], 0777), 0);
  n_made++;
}

static void add_file(const char *name, const char *text) {
  snprintf(made[n_made], sizeof made[0], "%s/%s", root, name);
  FILE *f = fopen(made[n_made], "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
  n_made++;
}

static void without_files_there_is_no_limit(void **state) {
  (void)state;
  assert_int_equal(sh_cgroup_cpus("/nonexistent", root), -1);
  assert_true(sh_cgroup_memory("/nonexistent", root) == -1);
  add_file("self", "0::/a/b\n");
  assert_int_equal(sh_cgroup_cpus(list, root), -1);
  assert_true(sh_cgroup_memory(list, root) == -1);
}

static void version_2_takes_the_smallest_limit_on_the_way_up(void **state) {
  (void)state;
  add_file("self", "0::/a/b\n");
  add_dir("a");
  add_dir("a/b");
  add_file("a/b/cpu.max", "max 100000\n");
  add_file("a/cpu.max", "250000 100000\n");
  add_file("cpu.max", "400000 100000\n");
  add_file("a/b/memory.max", "3000000\n");
  add_file("a/memory.max", "max\n");
  add_file("memory.max", "2000000\n");
  assert_int_equal(sh_cgroup_cpus(list, root), 3); /* 2.5 rounded up */
  assert_true(sh_cgroup_memory(list, root) == 2000000);
}

static void version_2_in_a_container_reads_the_root(void **state) {
  (void)state;
  add_file("self", "0::/\n");
  add_file("cpu.max", "50000 100000\n");
  add_file("memory.max", "1048576\n");
  assert_int_equal(sh_cgroup_cpus(list, root), 1);
  assert_true(sh_cgroup_memory(list, root) == 1048576);
}

static void version_1_finds_its_controllers_even_when_the_path_is_the_hosts(void **state) {
  (void)state;
  add_file("self", "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n1:name=systemd:/x\n");
  add_dir("cpu,cpuacct");
  add_file("cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  add_file("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  add_dir("memory");
  add_file("memory/memory.limit_in_bytes", "5000000\n");
  assert_int_equal(sh_cgroup_cpus(list, root), 2);
  assert_true(sh_cgroup_memory(list, root) == 5000000);
}

static void version_1_without_quota_has_no_limit(void **state) {
  (void)state;
  add_file("self", "12:memory:/\n4:cpu:/\n");
  add_dir("cpu");
  add_file("cpu/cpu.cfs_quota_us", "-1\n");
  add_file("cpu/cpu.cfs_period_us", "100000\n");
  add_dir("memory");
  add_file("memory/memory.limit_in_bytes", "9223372036854771712\n");
  assert_int_equal(sh_cgroup_cpus(list, root), -1);
  assert_true(sh_cgroup_memory(list, root) == -1);
}

static void nonsense_is_no_limit(void **state) {
  (void)state;
  add_file("self", "garbage\n:\n::\n0:\n0::/x\n5:cpu\n");
  add_file("cpu.max", "banana\n");
  add_file("memory.max", "-5\n");
  assert_int_equal(sh_cgroup_cpus(list, root), -1);
  assert_true(sh_cgroup_memory(list, root) == -1);
}

static void what_is_free_counts_the_pages_of_files_as_free(void **state) {
  (void)state;
  add_file("self", "0::/a\n");
  add_dir("a");
  assert_true(sh_cgroup_memory_free(list, root) == -1);
  add_file("a/memory.max", "1000000\n");
  assert_true(sh_cgroup_memory_free(list, root) == -1); /* without a usage nothing is known */
  add_file("a/memory.current", "700000\n");
  assert_true(sh_cgroup_memory_free(list, root) == 300000);
  add_file("a/memory.stat", "anon 100\ninactive_file 200000\nactive_file_x 7\nactive_file 50000\n");
  assert_true(sh_cgroup_memory_free(list, root) == 550000);
  add_file("memory.max", "400000\n"); /* of the group around it, which is over its limit */
  add_file("memory.current", "500000\n");
  assert_true(sh_cgroup_memory_free(list, root) == 0);
}

static void version_1_counts_what_is_below_a_group_too(void **state) {
  (void)state;
  add_file("self", "12:memory:/docker/abc\n");
  add_dir("memory");
  add_file("memory/memory.limit_in_bytes", "5000000\n");
  add_file("memory/memory.usage_in_bytes", "4000000\n");
  add_file("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1000000\ntotal_active_file 500000\n");
  assert_true(sh_cgroup_memory_free(list, root) == 2500000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(without_files_there_is_no_limit, make_root, remove_root),
      cmocka_unit_test_setup_teardown(version_2_takes_the_smallest_limit_on_the_way_up, make_root, remove_root),
      cmocka_unit_test_setup_teardown(version_2_in_a_container_reads_the_root, make_root, remove_root),
      cmocka_unit_test_setup_teardown(version_1_finds_its_controllers_even_when_the_path_is_the_hosts, make_root, remove_root),
      cmocka_unit_test_setup_teardown(version_1_without_quota_has_no_limit, make_root, remove_root),
      cmocka_unit_test_setup_teardown(nonsense_is_no_limit, make_root, remove_root),
      cmocka_unit_test_setup_teardown(what_is_free_counts_the_pages_of_files_as_free, make_root, remove_root),
      cmocka_unit_test_setup_teardown(version_1_counts_what_is_below_a_group_too, make_root, remove_root),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
