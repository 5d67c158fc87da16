/* The model beside the program: the places where it is looked for. */
#include "ops/small_model.h"
#include "base/file.h"
#include "unit/base/harness.h"

#include <sys/stat.h>

static char root[64];

static int set_up(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/sheng_small_test.XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

/* Makes root/place/sheng-small, with a config.json when `whole`, and root/bin, where the program is. */
static void put_model(const char *place, bool whole) {
  char command[512];
  snprintf(command, sizeof command, "mkdir -p '%s/bin/x/y' '%s/%s/" SH_SMALL_MODEL "'", root, root, place);
  assert_int_equal(system(command), 0);
  if (!whole) return;
  snprintf(command, sizeof command, "%s/%s/" SH_SMALL_MODEL "/config.json", root, place);
  assert_int_equal(sh_file_write_atomic(command, "{}", 2, NULL), 0);
}

static void expect_found(const char *program_dir, const char *wanted) {
  char dir[256], want[256], *path = NULL;
  sh_error e = {0};
  snprintf(dir, sizeof dir, "%s/%s", root, program_dir);
  snprintf(want, sizeof want, "%s/%s", root, wanted);
  assert_int_equal(sh_small_model_find_from(dir, &path, &e), SH_OK);
  assert_string_equal(path, want);
  sh_free(path);
}

static void it_lies_in_models_beside_the_program(void **state) {
  (void)state;
  put_model("bin/models", true);
  expect_found("bin", "bin/models/" SH_SMALL_MODEL);
}

static void it_lies_where_make_install_puts_it(void **state) {
  (void)state;
  put_model("share/sheng/models", true);
  expect_found("bin", "bin/../share/sheng/models/" SH_SMALL_MODEL);
}

static void it_lies_two_folders_up_from_a_build_folder(void **state) {
  (void)state;
  put_model("models", true);
  expect_found("bin/x", "bin/x/../../models/" SH_SMALL_MODEL);
}

static void the_nearest_is_taken(void **state) {
  (void)state;
  put_model("bin/models", true);
  put_model("share/sheng/models", true);
  expect_found("bin", "bin/models/" SH_SMALL_MODEL);
}

static void a_folder_without_config_is_passed_over_and_the_error_names_every_place(void **state) {
  (void)state;
  put_model("bin/models", false);
  char dir[128], *path = root;
  sh_error e = {0};
  snprintf(dir, sizeof dir, "%s/bin", root);
  assert_int_equal(sh_small_model_find_from(dir, &path, &e), SH_ERR_NOT_FOUND);
  assert_null(path);
  assert_contains(e.text, "bin/models/" SH_SMALL_MODEL);
  assert_contains(e.text, "share/sheng/models/" SH_SMALL_MODEL);
}

static void every_failing_allocation_is_an_error(void **state) {
  (void)state;
  put_model("share/sheng/models", true);
  char dir[128];
  snprintf(dir, sizeof dir, "%s/bin", root);
  int failures = 0;
  for (int n = 0;; n++) {
    char *path = NULL;
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_small_model_find_from(dir, &path, &e);
    sh_mem_fail_after(-1);
    if (rc == SH_OK) {
      sh_free(path);
      break;
    }
    assert_null(path);
    failures++;
  }
  assert_true(failures >= 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(it_lies_in_models_beside_the_program, set_up, tear_down),
      cmocka_unit_test_setup_teardown(it_lies_where_make_install_puts_it, set_up, tear_down),
      cmocka_unit_test_setup_teardown(it_lies_two_folders_up_from_a_build_folder, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_nearest_is_taken, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_folder_without_config_is_passed_over_and_the_error_names_every_place, set_up, tear_down),
      cmocka_unit_test_setup_teardown(every_failing_allocation_is_an_error, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
