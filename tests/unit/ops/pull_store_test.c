/* The store: folders by the environment, manifests, what a name is found to be, and the choice of files. */
#include "ops/pull_store.h"
#include "base/file.h"
#include "ops/pull.h"
#include "ops/pull_select.h"
#include "unit/base/harness.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int set_up(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/sheng_store_test.XXXXXX");
  if (!mkdtemp(root)) return -1;
  setenv("SHENG_HOME", root, 1);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void write_file(const char *dir, const char *name, const char *text) {
  char *path = sh_path_join(dir, name);
  assert_int_equal(sh_file_write_atomic(path, text, strlen(text), NULL), 0);
  sh_free(path);
}

static void the_store_follows_the_environment(void **state) {
  (void)state;
  char *dir;
  sh_error e;
  assert_int_equal(sh_pull_store_dir("/opt/s", "a/b", &dir, &e), 0);
  assert_string_equal(dir, "/opt/s/models/a/b");
  sh_free(dir);
  setenv("SHENG_HOME", "/srv/s", 1);
  assert_int_equal(sh_pull_store_dir(NULL, "a/b", &dir, &e), 0);
  assert_string_equal(dir, "/srv/s/models/a/b");
  sh_free(dir);
  unsetenv("SHENG_HOME");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/u", 1);
  assert_int_equal(sh_pull_store_dir(NULL, "a/b", &dir, &e), 0);
  assert_string_equal(dir, "/home/u/.cache/sheng/models/a/b");
  sh_free(dir);
  setenv("XDG_CACHE_HOME", "/x", 1);
  assert_int_equal(sh_pull_store_dir(NULL, "a/b", &dir, &e), 0);
  assert_string_equal(dir, "/x/sheng/models/a/b");
  sh_free(dir);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  assert_int_equal(sh_pull_store_dir(NULL, "a/b", &dir, &e), SH_ERR_ARG);
  assert_contains(e.text, "SHENG_HOME");
}

static void a_manifest_reads_back_equal(void **state) {
  (void)state;
  sh_pull_entry v[2] = {{.path = "a b\"\n.json", .size = 1, .mtime_ns = 1700000000123456789},
                        {.path = "w/模", .size = INT64_C(1) << 40, .hash = "abc"}};
  v[0].path = "a b\".json";
  sh_pull_manifest m = {.name = "o/n", .hub = "h", .endpoint = "https://x", .revision = "main", .commit = "", .v = v, .n = 2}, r;
  assert_int_equal(sh_pull_manifest_write(root, &m, NULL), 0);
  assert_int_equal(sh_pull_manifest_read(root, &r, NULL), 0);
  assert_int_equal(r.n, 2);
  assert_string_equal(r.name, "o/n");
  assert_string_equal(r.endpoint, "https://x");
  const sh_pull_entry *f = sh_pull_manifest_find(&r, "w/模");
  assert_non_null(f);
  assert_int_equal(f->size, INT64_C(1) << 40);
  assert_string_equal(f->hash, "abc");
  assert_int_equal(sh_pull_manifest_find(&r, "a b\".json")->mtime_ns, 1700000000123456789);
  assert_null(sh_pull_manifest_find(&r, "w"));
  sh_pull_manifest_free(&r);
}

static void a_broken_manifest_is_none_and_its_unsafe_paths_are_dropped(void **state) {
  (void)state;
  sh_pull_manifest r;
  static const char *const broken[] = {"", "{", "[]", "{\"files\":3}", "\xff"};
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    write_file(root, ".sheng-pull.json", broken[i]);
    assert_int_equal(sh_pull_manifest_read(root, &r, NULL), 0);
    assert_int_equal(r.n, 0);
    sh_pull_manifest_free(&r);
  }
  write_file(root, ".sheng-pull.json",
             "{\"files\":[{\"path\":\"../../etc/"
             "passwd\",\"size\":1,\"mtime_ns\":1},{\"path\":\"ok\",\"size\":1,\"mtime_ns\":1,\"hash\":7},{\"path\":\"x\"}]}");
  assert_int_equal(sh_pull_manifest_read(root, &r, NULL), 0);
  assert_int_equal(r.n, 1);
  assert_string_equal(r.v[0].path, "ok");
  sh_pull_manifest_free(&r);
}

static void a_name_is_a_path_first_and_then_a_folder_of_the_store(void **state) {
  (void)state;
  char dir[128], *path;
  sh_error e;
  assert_int_equal(sh_pull_find("o/n", &path, &e), SH_ERR_NOT_FOUND);
  assert_contains(e.text, "sheng pull o/n");
  assert_int_equal(sh_pull_find("./none.gguf", &path, &e), SH_ERR_NOT_FOUND);
  assert_contains(e.text, "no such file or folder");
  snprintf(dir, sizeof dir, "%s/models/o/n", root);
  assert_int_equal(sh_pull_make_dirs(dir, &e), 0);
  assert_int_equal(sh_pull_find("o/n", &path, &e), SH_ERR_NOT_FOUND); /* an empty folder */
  assert_int_equal(sh_pull_find("o", &path, &e), SH_ERR_NOT_FOUND);
  write_file(dir, "x.gguf", "GGUF");
  assert_int_equal(sh_pull_find("o/n", &path, &e), 0);
  assert_string_equal(path, dir);
  sh_free(path);
  assert_int_equal(sh_pull_find("o/n/x.gguf", &path, &e), 0); /* one file of it */
  assert_true(strlen(path) == strlen(dir) + strlen("/x.gguf"));
  sh_free(path);
  assert_int_equal(sh_pull_find(dir, &path, &e), 0);
  assert_string_equal(path, dir);
  sh_free(path);
}

static void a_folder_with_a_pull_under_way_is_not_complete(void **state) {
  (void)state;
  char dir[128], *path;
  volatile sig_atomic_t stop = 0;
  sh_error e;
  int fd;
  snprintf(dir, sizeof dir, "%s/models/o/n", root);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), 0);
  assert_int_equal(sh_pull_mark(dir, "sheng pull o/n --revision 'v1'", &e), 0);
  write_file(dir, "config.json", "{}");
  assert_int_equal(sh_pull_find("o/n", &path, &e), SH_ERR_BUSY);
  assert_contains(e.text, "right now");
  sh_pull_unlock(dir, fd, false);
  assert_int_equal(sh_pull_find(dir, &path, &e), SH_ERR_BUSY);
  assert_contains(e.text, "`sheng pull o/n --revision 'v1'`");
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), 0);
  sh_pull_unlock(dir, fd, true);
  assert_int_equal(sh_pull_find("o/n", &path, &e), 0);
  sh_free(path);
}

static void a_pull_that_never_started_leaves_no_folder(void **state) {
  (void)state;
  char dir[128];
  volatile sig_atomic_t stop = 0;
  int fd;
  snprintf(dir, sizeof dir, "%s/models/o/n", root);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, NULL), 0);
  sh_pull_unlock(dir, fd, false);
  assert_false(sh_dir_exists(dir));
}

static void waiting_for_a_lock_ends_with_a_signal(void **state) {
  (void)state;
  char dir[128];
  volatile sig_atomic_t stop = 0;
  int fd, other;
  sh_error e;
  snprintf(dir, sizeof dir, "%s/m", root);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), 0);
  stop = 1;
  assert_int_equal(sh_pull_lock(dir, &stop, &other, &e), SH_ERR_CANCELLED);
  sh_pull_unlock(dir, fd, true);
}

static void a_pipe_in_place_of_the_manifest_is_said_before_the_download(void **state) {
  (void)state;
  char path[128];
  sh_pull_manifest m;
  sh_error e = {0};
  snprintf(path, sizeof path, "%s/.sheng-pull.json", root);
  assert_int_equal(mkfifo(path, 0666), 0);
  assert_int_equal(sh_pull_manifest_read(root, &m, &e), SH_ERR_IO);
  assert_contains(e.text, "it is no regular file");
  assert_contains(e.text, path);
  assert_int_equal(m.n, 0);
}

/* The working folder is emptied at the end of a pull: through a link that would be somebody's files. */
static void links_in_place_of_the_working_folder_or_its_lock_are_not_followed(void **state) {
  (void)state;
  char dir[96], files[96], link[128], lock[160], keep[128];
  volatile sig_atomic_t stop = 0;
  int fd = -1;
  sh_error e = {0};
  snprintf(dir, sizeof dir, "%s/m", root);
  snprintf(files, sizeof files, "%s/files", root);
  snprintf(keep, sizeof keep, "%s/keep", files);
  snprintf(link, sizeof link, "%s/.sheng-pull", dir);
  snprintf(lock, sizeof lock, "%s/lock", link);
  assert_int_equal(mkdir(dir, 0777), 0);
  assert_int_equal(mkdir(files, 0777), 0);
  write_file(files, "keep", "precious");
  assert_int_equal(symlink(files, link), 0);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), SH_ERR_IO);
  assert_contains(e.text, "is a symbolic link");
  assert_contains(e.text, link);
  assert_true(sh_file_exists(keep));

  assert_int_equal(unlink(link), 0);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), 0);
  assert_int_equal(unlink(lock), 0);
  assert_int_equal(rmdir(link), 0);
  assert_int_equal(symlink(files, link), 0); /* put there while a pull runs */
  sh_pull_unlock(dir, fd, true);
  assert_true(sh_file_exists(keep));

  assert_int_equal(unlink(link), 0);
  assert_int_equal(mkdir(link, 0777), 0);
  assert_int_equal(symlink(keep, lock), 0);
  assert_int_equal(sh_pull_lock(dir, &stop, &fd, &e), SH_ERR_IO);
  char *text = NULL;
  size_t n = 0;
  assert_int_equal(sh_file_read_regular(keep, 100, &text, &n, &e), 0);
  assert_string_equal(text, "precious");
  sh_free(text);
}

/* --- The choice --- */

static bool chosen[16];

static int choose(const char *const *paths, int n, const char *const *include, int n_include, const sh_pull_manifest *old, sh_error *e) {
  sh_hub_file v[16];
  sh_hub_list l = {.v = v, .n = n};
  FILE *nowhere = fopen("/dev/null", "w");
  for (int i = 0; i < n; i++) v[i] = (sh_hub_file){.path = paths[i], .size = 1};
  int rc = sh_pull_select(&l, include, n_include, old, chosen, nowhere, e);
  fclose(nowhere);
  return rc;
}

static void assert_chosen(const char *want) {
  for (int i = 0; want[i]; i++) assert_int_equal(chosen[i], want[i] == '1');
}

static void the_default_is_what_serving_needs(void **state) {
  (void)state;
  static const char *const hf[] = {".gitattributes",    "LICENSE",           "README.md",       "config.json",
                                   "merges.txt",        "model.safetensors", "onnx/m.json",     "pic.png",
                                   "pytorch_model.bin", "sub/x.safetensors", "tokenizer.model", "x.gguf"};
  static const char *const gguf[] = {"README.md",    "config.json", "d/imatrix.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf",
                                     "mmproj-m.gguf"};
  static const char *const two[] = {"a-Q4.gguf", "a-Q8.gguf"};
  const sh_pull_manifest none = {0};
  sh_error e;
  assert_int_equal(choose(hf, 12, NULL, 0, &none, &e), 0);
  assert_chosen("011111000010");
  assert_int_equal(choose(gguf, 6, NULL, 0, &none, &e), 0);
  assert_chosen("100110");
  assert_int_equal(choose(two, 2, NULL, 0, &none, &e), SH_ERR_ARG);
  assert_contains(e.text, "2 GGUF models");
  assert_int_equal(choose(hf, 2, NULL, 0, &none, &e), SH_ERR_UNSUPPORTED);
  assert_int_equal(choose(hf, 0, NULL, 0, &none, &e), SH_ERR_NOT_FOUND);
}

static void patterns_choose_and_what_was_pulled_before_stays(void **state) {
  (void)state;
  static const char *const paths[] = {"a-Q4.gguf", "a-Q8.gguf", "d/e/f.json", "d/g.json"};
  static const char *const q8[] = {"*Q8*"}, *const folder[] = {"d/e/"}, *const wrong[] = {"*Q8*", "*Q9*"}, *const star[] = {"*.json"};
  sh_pull_entry v[2] = {{.path = "a-Q4.gguf"}, {.path = "gone"}};
  const sh_pull_manifest none = {0}, old = {.v = v, .n = 2};
  sh_error e;
  assert_int_equal(choose(paths, 4, q8, 1, &none, &e), 0);
  assert_chosen("0100");
  assert_int_equal(choose(paths, 4, folder, 1, &none, &e), 0);
  assert_chosen("0010");
  assert_int_equal(choose(paths, 4, star, 1, &none, &e), 0);
  assert_chosen("0011");
  assert_int_equal(choose(paths, 4, wrong, 2, &none, &e), SH_ERR_ARG);
  assert_contains(e.text, "'*Q9*'");
  assert_int_equal(choose(paths, 4, q8, 1, &old, &e), 0);
  assert_chosen("1100");
  assert_int_equal(choose(paths, 4, NULL, 0, &old, &e), 0);
  assert_chosen("1000");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(the_store_follows_the_environment, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_manifest_reads_back_equal, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_broken_manifest_is_none_and_its_unsafe_paths_are_dropped, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_name_is_a_path_first_and_then_a_folder_of_the_store, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_folder_with_a_pull_under_way_is_not_complete, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_pull_that_never_started_leaves_no_folder, set_up, tear_down),
      cmocka_unit_test_setup_teardown(waiting_for_a_lock_ends_with_a_signal, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_pipe_in_place_of_the_manifest_is_said_before_the_download, set_up, tear_down),
      cmocka_unit_test_setup_teardown(links_in_place_of_the_working_folder_or_its_lock_are_not_followed, set_up, tear_down),
      cmocka_unit_test(the_default_is_what_serving_needs),
      cmocka_unit_test(patterns_choose_and_what_was_pulled_before_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
