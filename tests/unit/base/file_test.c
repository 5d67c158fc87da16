/* Files: reads with limits, maps, what happens when a mapped file shrinks, atomic writes, paths. */
#include "base/file.h"
#include "base/pool.h"
#include "unit/base/child.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/sheng_file_test.XXXXXX";
static char path[sizeof dir + 32];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(path, sizeof path, "%s/data", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(path);
  return rmdir(dir);
}

static void put_file(const char *s, size_t n) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(s, 1, n, f), n);
  fclose(f);
}

static void a_whole_file_is_read_and_terminated(void **state) {
  (void)state;
  put_file("a\0b", 3);
  char *s;
  size_t n;
  assert_int_equal(sh_file_read(path, 3, &s, &n, NULL), 0); /* a limit of exactly its size */
  assert_int_equal(n, 3);
  assert_memory_equal(s, "a\0b", 4);
  sh_free(s);
  put_file("", 0);
  assert_int_equal(sh_file_read(path, 0, &s, &n, NULL), 0);
  assert_int_equal(n, 0);
  assert_string_equal(s, "");
  sh_free(s);
}

static void a_file_over_the_limit_is_refused(void **state) {
  (void)state;
  put_file("abcd", 4);
  char *s;
  size_t n;
  sh_error e;
  assert_int_equal(sh_file_read(path, 3, &s, &n, &e), SH_ERR_LIMIT);
  assert_null(s);
  assert_contains(e.text, path);
  assert_contains(e.text, "4 bytes");
}

static void a_file_without_a_known_size_is_read_to_its_end(void **state) {
  (void)state;
  char *s;
  size_t n;
  assert_int_equal(sh_file_read("/proc/self/status", 1 << 20, &s, &n, NULL), 0); /* st_size is 0 there */
  assert_true(n > 100);
  assert_int_equal(strlen(s), n);
  sh_free(s);
  sh_error e;
  assert_int_equal(sh_file_read("/proc/self/status", 10, &s, &n, &e), SH_ERR_LIMIT);
  assert_int_equal(sh_file_read("/dev/zero", 100000, &s, &n, &e), SH_ERR_LIMIT);
}

static void a_file_in_a_folder_that_is_not_there_is_named_as_the_user_named_it(void **state) {
  (void)state;
  char name[sizeof dir + 32];
  sh_file_out o;
  sh_error e;
  snprintf(name, sizeof name, "%s/none/out", dir);
  assert_int_equal(sh_file_out_open(&o, name, &e), SH_ERR_IO);
  assert_contains(e.text, "none/out: cannot create: ");
  assert_contains(e.text, "is its folder there?");
}

static void missing_files_and_folders_have_their_own_errors(void **state) {
  (void)state;
  char *s;
  size_t n;
  sh_error e;
  sh_map m;
  assert_int_equal(sh_file_read("/nonexistent/x", 10, &s, &n, &e), SH_ERR_NOT_FOUND);
  assert_contains(e.text, "/nonexistent/x");
  assert_int_equal(sh_file_read(dir, 10, &s, &n, &e), SH_ERR_IO);
  assert_contains(e.text, "folder");
  assert_int_equal(sh_map_open(&m, "/nonexistent/x", &e), SH_ERR_NOT_FOUND);
  assert_int_equal(sh_map_open(&m, dir, &e), SH_ERR_IO);
  assert_int_equal(sh_map_open(&m, "/dev/null", &e), SH_ERR_IO);
  sh_map_close(&m);
}

static void reading_without_memory_is_an_error(void **state) {
  (void)state;
  put_file("abcd", 4);
  char *s;
  size_t n;
  sh_mem_fail_after(0);
  int rc = sh_file_read(path, 100, &s, &n, NULL);
  sh_mem_fail_after(-1);
  assert_int_equal(rc, SH_ERR_NOMEM);
  assert_null(s);
}

static void a_map_shows_the_file(void **state) {
  (void)state;
  put_file("hello", 5);
  sh_map m;
  assert_int_equal(sh_map_open(&m, path, NULL), 0);
  assert_int_equal(m.len, 5);
  assert_memory_equal(m.p, "hello", 5);
  sh_map_close(&m);
  assert_null(m.p);
  sh_map_close(&m);
  put_file("", 0);
  assert_int_equal(sh_map_open(&m, path, NULL), 0);
  assert_int_equal(m.len, 0);
  assert_non_null(m.p);
  sh_map_close(&m);
}

static void more_maps_than_the_guard_has_slots_still_work(void **state) {
  (void)state;
  put_file("x", 1);
  enum { N = 300 };
  static sh_map maps[N];
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < N; i++) assert_int_equal(sh_map_open(&maps[i], path, NULL), 0);
    for (int i = 0; i < N; i++) {
      assert_int_equal(maps[i].p[0], 'x');
      sh_map_close(&maps[i]);
    }
  }
}

static volatile uint8_t sink;

static void touch_a_shrunk_map(void) {
  sh_map_guard_install();
  sh_map other, m;
  if (sh_map_open(&other, "/proc/self/exe", NULL) || sh_map_open(&m, path, NULL) || truncate(path, 10) != 0) _exit(1);
  sink = m.p[m.len - 1];
}

static void a_shrunk_file_ends_the_program_with_a_sentence_and_status_74(void **state) {
  (void)state;
  size_t n = 5 * 4096;
  char *zeros = calloc(1, n);
  put_file(zeros, n);
  free(zeros);
  char text[2000];
  int status = in_child(touch_a_shrunk_map, text, sizeof text);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 74);
  assert_contains(text, path);
  assert_contains(text, "shrank");
}

static void a_map_takes_no_memory_of_its_own(void **state) {
  (void)state;
  put_file("hello", 5);
  sh_map m;
  char name[SH_MAP_PATH];
  sh_mem_fail_after(0);
  int rc = sh_map_open(&m, path, NULL);
  sh_mem_fail_after(-1);
  assert_int_equal(rc, 0);
  assert_memory_equal(m.p, "hello", 5);
  assert_true(sh_map_path_of(m.p + 4, name));
  assert_string_equal(name, path);
  assert_true(sh_map_same(m.p, m.p + 4));
  assert_false(sh_map_same(m.p, name));
  assert_false(sh_map_path_of(name, name));
  assert_false(sh_map_in_memory(name));
  sh_map_ask(m.p + 1, 3);
  sh_map_sparse(m.p, m.len, true);
  sh_map_sparse(m.p, m.len, false);
  sh_map_ask(m.p, 0);
  assert_memory_equal(m.p, "hello", 5);
  sh_map_close(&m);
}

/* Not as many bytes as the system has addresses for: the map fails, and the file is closed again. */
static void a_map_that_the_system_refuses_is_an_error(void **state) {
  (void)state;
  put_file("x", 1);
  if (truncate(path, (off_t)1 << 43) != 0) skip(); /* the file system has no such files */
  struct rlimit was, small;
  sh_map m;
  sh_error e = {0};
  assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
  small = was;
  small.rlim_cur = (rlim_t)1 << 42;
  int next = dup(STDERR_FILENO);
  close(next);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
  assert_int_equal(sh_map_open(&m, path, &e), SH_ERR_NOMEM);
  assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
  assert_contains(e.text, path);
  assert_null(m.p);
#else
  (void)m, (void)e, (void)small;
#endif
  int again = dup(STDERR_FILENO);
  close(again);
  assert_int_equal(again, next);
}

static void an_output_file_without_memory_is_an_error_and_leaves_nothing(void **state) {
  (void)state;
  put_file("old", 3);
  int rc = -1;
  long n = 0;
  for (; rc; n++) {
    sh_file_out o;
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = sh_file_out_open(&o, path, &e);
    sh_mem_fail_after(-1);
    if (rc) assert_true(rc == SH_ERR_NOMEM && e.code == rc && e.text[0]);
    sh_file_out_abandon(&o);
    assert_true(n < 50);
  }
  assert_true(n > 2);
  char *s;
  size_t len;
  assert_int_equal(sh_file_read(path, 100, &s, &len, NULL), 0);
  assert_string_equal(s, "old");
  sh_free(s);
}

static void a_file_is_replaced_as_a_whole(void **state) {
  (void)state;
  put_file("old", 3);
  assert_int_equal(sh_file_write_atomic(path, "new content", 11, NULL), 0);
  char *s;
  size_t n;
  assert_int_equal(sh_file_read(path, 100, &s, &n, NULL), 0);
  assert_string_equal(s, "new content");
  sh_free(s);
  sh_error e;
  assert_int_equal(sh_file_write_atomic("/nonexistent/x", "a", 1, &e), SH_ERR_IO);
  assert_contains(e.text, "/nonexistent/x");
}

static void a_write_that_fails_leaves_the_old_file_and_nothing_else(void **state) {
  (void)state;
  char sub[sizeof path + 8];
  snprintf(sub, sizeof sub, "%s/sub", dir);
  assert_int_equal(mkdir(sub, 0777), 0);
  assert_int_equal(sh_file_write_atomic(sub, "a", 1, NULL), SH_ERR_IO); /* no file can take its place */
  char tmp[sizeof sub + 32];
  snprintf(tmp, sizeof tmp, "%s.tmp.%ld", sub, (long)getpid());
  assert_false(sh_file_exists(tmp));
  assert_int_equal(rmdir(sub), 0);
}

/* Nothing may take the place of a pipe or a device, nor of a link to one. */
static void a_pipe_is_written_to_and_stays_one(void **state) {
  (void)state;
  char fifo[sizeof path + 8], got[16] = "";
  struct stat st;
  snprintf(fifo, sizeof fifo, "%s/fifo", dir);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  int fd = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  assert_true(fd >= 0);
  alarm(20);
  assert_int_equal(sh_file_write_atomic(fifo, "through", 7, NULL), 0);
  alarm(0);
  assert_int_equal(read(fd, got, sizeof got - 1), 7);
  assert_string_equal(got, "through");
  close(fd);
  assert_int_equal(lstat(fifo, &st), 0);
  assert_true(S_ISFIFO(st.st_mode));
  assert_int_equal(unlink(fifo), 0);
}

static void a_link_stays_and_its_target_is_written(void **state) {
  (void)state;
  char links[sizeof path + 8];
  struct stat st;
  snprintf(links, sizeof links, "%s/link", dir);
  put_file("old", 3);
  assert_int_equal(symlink("data", links), 0);
  assert_int_equal(sh_file_write_atomic(links, "new", 3, NULL), 0);
  char *s;
  size_t n;
  assert_int_equal(sh_file_read(path, 100, &s, &n, NULL), 0);
  assert_string_equal(s, "new");
  sh_free(s);
  assert_int_equal(lstat(links, &st), 0);
  assert_true(S_ISLNK(st.st_mode));
  assert_int_equal(unlink(links), 0);
  assert_int_equal(symlink("/dev/null", links), 0); /* a mistake here replaces the link in this folder and nothing else */
  assert_int_equal(sh_file_write_atomic(links, "new", 3, NULL), 0);
  assert_int_equal(lstat(links, &st), 0);
  assert_true(S_ISLNK(st.st_mode));
  assert_int_equal(unlink(links), 0);
}

static void a_file_that_was_given_up_is_as_it_was(void **state) {
  (void)state;
  put_file("old", 3);
  sh_file_out o;
  assert_int_equal(sh_file_out_open(&o, path, NULL), 0);
  assert_int_equal(sh_file_out_write(&o, "half", 4, NULL), 0);
  sh_file_out_abandon(&o);
  sh_file_out_abandon(&o);
  char *s, tmp[sizeof path + 32];
  size_t n;
  assert_int_equal(sh_file_read(path, 100, &s, &n, NULL), 0);
  assert_string_equal(s, "old");
  sh_free(s);
  snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid());
  assert_false(sh_file_exists(tmp));
}

static void a_pipe_where_a_file_was_meant_is_refused_at_once(void **state) {
  (void)state;
  char fifo[sizeof path + 8], *s;
  size_t n;
  sh_map m;
  sh_error e;
  snprintf(fifo, sizeof fifo, "%s/fifo", dir);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  alarm(20); /* without a writer an open waits for ever */
  assert_int_equal(sh_map_open(&m, fifo, &e), SH_ERR_IO);
  assert_contains(e.text, "not a regular file");
  assert_int_equal(sh_file_read_regular(fifo, 100, &s, &n, &e), SH_ERR_IO);
  assert_contains(e.text, fifo);
  assert_int_equal(sh_file_read_regular("/dev/zero", 100, &s, &n, &e), SH_ERR_IO);
  alarm(0);
  assert_int_equal(unlink(fifo), 0);
  put_file("abc", 3);
  assert_int_equal(sh_file_read_regular(path, 100, &s, &n, &e), 0);
  assert_string_equal(s, "abc");
  sh_free(s);
}

static void paths_are_joined_and_split(void **state) {
  (void)state;
  static const struct {
    const char *dir, *name, *want;
  } cases[] = {
      {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a//", "b", "a/b"},         {"", "b", "b"},
      {"a", "/b", "/b"}, {"/", "b", "/b"},   {"/a/b", "c/d", "/a/b/c/d"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *p = sh_path_join(cases[i].dir, cases[i].name);
    assert_string_equal(p, cases[i].want);
    sh_free(p);
  }
  assert_string_equal(sh_path_base("/a/b.gguf"), "b.gguf");
  assert_string_equal(sh_path_base("b"), "b");
  put_file("x", 1);
  assert_true(sh_file_exists(path));
  assert_false(sh_file_exists(dir));
  assert_true(sh_dir_exists(dir));
  assert_false(sh_dir_exists(path));
  assert_false(sh_dir_exists("/nonexistent"));
}

/* Sizes around an item and a page; what the file becomes afterwards no longer matters to a copy. */
static void a_copy_on_large_pages_has_the_bytes_of_the_file(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 4096, (2 << 20) + 1, (8 << 20) + 4095, 17 << 20};
  sh_pool *pool;
  assert_int_equal(sh_pool_new(&pool, 3, NULL), 0);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    char *bytes = malloc(sizes[i]);
    assert_non_null(bytes);
    for (size_t j = 0; j < sizes[i]; j++) bytes[j] = (char)(j * 2654435761u >> 13);
    put_file(bytes, sizes[i]);
    sh_map m;
    assert_int_equal(sh_map_open(&m, path, NULL), 0);
    const uint8_t *mapped = m.p;
    assert_false(sh_map_into_memory(&m, pool, INT64_MAX / 2)); /* nobody has so much to spare */
    assert_ptr_equal(m.p, mapped);
    if (sh_map_into_memory(&m, pool, 0)) {
      assert_ptr_not_equal(m.p, mapped);
      assert_int_equal((uintptr_t)m.p % (2 << 20), 0);
      put_file("", 0);
    }
    assert_int_equal(m.len, sizes[i]);
    assert_memory_equal(m.p, bytes, sizes[i]);
    sh_map_close(&m);
    free(bytes);
  }
  put_file("", 0);
  sh_map empty;
  assert_int_equal(sh_map_open(&empty, path, NULL), 0);
  assert_false(sh_map_into_memory(&empty, pool, 0));
  sh_map_close(&empty);
  sh_pool_free(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_whole_file_is_read_and_terminated),
      cmocka_unit_test(a_file_over_the_limit_is_refused),
      cmocka_unit_test(a_copy_on_large_pages_has_the_bytes_of_the_file),
      cmocka_unit_test(a_file_without_a_known_size_is_read_to_its_end),
      cmocka_unit_test(a_file_in_a_folder_that_is_not_there_is_named_as_the_user_named_it),
      cmocka_unit_test(missing_files_and_folders_have_their_own_errors),
      cmocka_unit_test(reading_without_memory_is_an_error),
      cmocka_unit_test(a_map_shows_the_file),
      cmocka_unit_test(more_maps_than_the_guard_has_slots_still_work),
      cmocka_unit_test(a_shrunk_file_ends_the_program_with_a_sentence_and_status_74),
      cmocka_unit_test(a_map_takes_no_memory_of_its_own),
      cmocka_unit_test(a_map_that_the_system_refuses_is_an_error),
      cmocka_unit_test(an_output_file_without_memory_is_an_error_and_leaves_nothing),
      cmocka_unit_test(a_file_is_replaced_as_a_whole),
      cmocka_unit_test(a_write_that_fails_leaves_the_old_file_and_nothing_else),
      cmocka_unit_test(a_pipe_is_written_to_and_stays_one),
      cmocka_unit_test(a_link_stays_and_its_target_is_written),
      cmocka_unit_test(a_file_that_was_given_up_is_as_it_was),
      cmocka_unit_test(a_pipe_where_a_file_was_meant_is_refused_at_once),
      cmocka_unit_test(paths_are_joined_and_split),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
