/* Reading ahead: what is asked for is in memory, nothing else is read, what does not fit is left, and a file that shrank is an error. */
#include "base/prefetch.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "unit/base/child.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum { MB = 1 << 20, PAGE = 4096 };

static char dir[] = "/tmp/sheng_prefetch_test.XXXXXX";
static char path[sizeof dir + 32], other[sizeof dir + 32];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(path, sizeof path, "%s/data", dir);
  snprintf(other, sizeof other, "%s/other", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(path);
  unlink(other);
  return rmdir(dir);
}

/* A file of that many MB, out of the page cache as far as the system follows the advice, mapped. */
static void map_file(sh_map *m, const char *name, int mb) {
  static char block[MB];
  FILE *f = fopen(name, "wb");
  assert_non_null(f);
  for (int i = 0; i < mb; i++) {
    memset(block, 'a' + i % 26, sizeof block);
    assert_int_equal(fwrite(block, 1, sizeof block, f), sizeof block);
  }
  assert_int_equal(fflush(f), 0);
  assert_int_equal(fsync(fileno(f)), 0);
  (void)posix_fadvise(fileno(f), 0, 0, POSIX_FADV_DONTNEED);
  fclose(f);
  sh_error e = {0};
  if (sh_map_open(m, name, &e)) fail_msg("%s", e.text);
}

static bool all_cached(const uint8_t *p, size_t n) {
  static unsigned char pages[64 * MB / PAGE];
  assert_true(n <= 64u * MB);
  assert_int_equal(mincore((void *)(uintptr_t)p, n, pages), 0);
  for (size_t i = 0; i < n / PAGE; i++)
    if (!(pages[i] & 1)) return false;
  return true;
}

static size_t read_ahead(const sh_span *s, size_t n, sh_prefetch_opts o) {
  sh_prefetch *p;
  sh_error e = {0};
  o.what = "test data";
  if (sh_prefetch_start(&p, s, n, &o, &e) || sh_prefetch_wait(p, &e)) fail_msg("%s", e.text);
  size_t bytes = sh_prefetch_bytes(p);
  sh_prefetch_free(p);
  return bytes;
}

static void what_is_asked_for_is_in_memory(void **state) {
  (void)state;
  for (int by_touch = 0; by_touch < 2; by_touch++) {
    sh_map m;
    map_file(&m, path, 40);
    /* out of order, overlapping, unaligned, empty */
    const sh_span s[] = {{m.p + 30 * MB + 5, 10 * MB - 5}, {m.p + 100, 25 * MB}, {m.p + 20 * MB, 11 * MB}, {m.p, 0}, {m.p + 1, 1}};
    assert_int_equal(read_ahead(s, 5, (sh_prefetch_opts){.by_touch = by_touch}), 40 * MB);
    assert_true(all_cached(m.p, m.len));
    assert_int_equal(m.p[39 * MB], 'a' + 39 % 26);
    sh_map_close(&m);
  }
}

static void one_thread_or_many_read_the_same(void **state) {
  (void)state;
  sh_map m;
  map_file(&m, path, 33);
  const sh_span s[] = {{m.p, m.len}};
  assert_int_equal(read_ahead(s, 1, (sh_prefetch_opts){.threads = 1}), 33 * MB);
  assert_int_equal(read_ahead(s, 1, (sh_prefetch_opts){.threads = 1000}), 33 * MB);
  assert_true(all_cached(m.p, m.len));
  sh_map_close(&m);
}

static void large_gaps_and_other_files_are_left_out(void **state) {
  (void)state;
  sh_map m, n;
  map_file(&m, path, 20);
  map_file(&n, other, 1);
  const sh_span far[] = {{m.p + 16 * MB, PAGE}, {m.p, PAGE}}, near[] = {{m.p, 1}, {m.p + 3 * PAGE, 1}}, both[] = {{n.p, PAGE}, {m.p, PAGE}};
  assert_int_equal(read_ahead(far, 2, (sh_prefetch_opts){0}), 2 * PAGE);
  assert_int_equal(read_ahead(near, 2, (sh_prefetch_opts){0}), 4 * PAGE);
  assert_int_equal(read_ahead(both, 2, (sh_prefetch_opts){0}), 2 * PAGE);
  sh_map_close(&n);
  sh_map_close(&m);
}

static void nothing_is_read_ahead_of_nothing(void **state) {
  (void)state;
  sh_prefetch *p;
  const sh_span empty = {(const uint8_t *)"", 0};
  assert_int_equal(sh_prefetch_start(&p, NULL, 0, &(sh_prefetch_opts){.what = "x"}, NULL), 0);
  assert_null(p);
  assert_int_equal(sh_prefetch_start(&p, &empty, 1, &(sh_prefetch_opts){.what = "x"}, NULL), 0);
  assert_null(p);
  assert_int_equal(sh_prefetch_wait(NULL, NULL), 0);
  assert_int_equal(sh_prefetch_bytes(NULL), 0);
  sh_prefetch_free(NULL);
}

/* The log of a start with that much memory, in text. */
static sh_prefetch *start_with(const sh_span *s, sh_prefetch_opts o, char *text, size_t cap) {
  sh_prefetch *p;
  FILE *log = tmpfile();
  assert_non_null(log);
  int saved = dup(STDERR_FILENO);
  dup2(fileno(log), STDERR_FILENO);
  o.what = "test data";
  int rc = sh_prefetch_start(&p, s, 1, &o, NULL);
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t n = pread(fileno(log), text, cap - 1, 0);
  text[n < 0 ? 0 : n] = '\0';
  fclose(log);
  assert_int_equal(rc, 0);
  return p;
}

static void what_does_not_fit_in_memory_is_one_line_in_the_log(void **state) {
  (void)state;
  char text[1000];
  sh_map m;
  map_file(&m, path, 20);
  const sh_span s = {m.p, m.len};
  if (sh_map_in_memory(m.p)) skip(); /* /tmp is a tmpfs: the next test's case */
  assert_null(start_with(&s, (sh_prefetch_opts){.available = 20 * MB - 1}, text, sizeof text));
  assert_contains(text, "test data (20.0 MiB) are not read ahead");
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
  assert_null(start_with(&s, (sh_prefetch_opts){.available = 20 * MB, .spare = 1}, text, sizeof text));
  sh_prefetch *p = start_with(&s, (sh_prefetch_opts){.available = 20 * MB}, text, sizeof text);
  assert_non_null(p);
  assert_string_equal(text, "");
  sh_prefetch_free(p);
  sh_map_close(&m);
}

static void a_file_that_is_in_memory_needs_no_room(void **state) {
  (void)state;
  char text[1000], name[64];
  int fd = memfd_create("test", MFD_CLOEXEC);
  sh_map m;
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, 20 * MB), 0);
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  assert_int_equal(sh_map_open(&m, name, NULL), 0);
  assert_true(sh_map_in_memory(m.p));
  const sh_span s = {m.p, m.len};
  sh_prefetch *p = start_with(&s, (sh_prefetch_opts){.available = 1}, text, sizeof text);
  assert_non_null(p);
  assert_int_equal(sh_prefetch_wait(p, NULL), 0);
  assert_int_equal(sh_prefetch_wait(p, NULL), 0); /* again: nothing more */
  assert_int_equal(sh_prefetch_bytes(p), 20 * MB);
  sh_prefetch_free(p);
  sh_map_close(&m);
  close(fd);
}

static bool touching; /* how the child reads */

static void read_a_shrunk_map(void) {
  sh_map m;
  sh_prefetch *p;
  sh_error e = {0};
  sh_map_guard_install();
  map_file(&m, path, 20);
  const sh_span s = {m.p, m.len};
  if (truncate(path, 5 * MB) != 0) _exit(1);
  if (sh_prefetch_start(&p, &s, 1, &(sh_prefetch_opts){.what = "test data", .by_touch = touching}, &e)) _exit(2);
  int rc = sh_prefetch_wait(p, &e);
  sh_prefetch_free(p);
  fprintf(stderr, "%s\n", e.text);
  _exit(rc == SH_ERR_IO && e.code == rc ? 3 : 4);
}

/* In a child, as the fault may end it: its exit status. */
static int after_shrinking(bool by_touch, char *text, size_t cap) {
  touching = by_touch;
  int status = in_child(read_a_shrunk_map, text, cap);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static bool kernel_populates(void) {
  void *p = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(p != MAP_FAILED);
  int rc = madvise(p, PAGE, MADV_POPULATE_READ);
  munmap(p, PAGE);
  return rc == 0;
}

static void a_file_that_shrank_is_an_error_with_its_name(void **state) {
  (void)state;
  char text[1000];
  assert_int_equal(after_shrinking(false, text, sizeof text), kernel_populates() ? 3 : 74);
  assert_contains(text, path);
  assert_contains(text, "shrank");
  assert_int_equal(after_shrinking(true, text, sizeof text), 74); /* by the guard of maps */
  assert_contains(text, path);
  assert_contains(text, "shrank");
}

static void it_may_be_given_up_at_any_time(void **state) {
  (void)state;
  sh_map m;
  map_file(&m, path, 60);
  const sh_span s = {m.p, m.len};
  for (int i = 0; i < 10; i++) {
    sh_prefetch *p;
    assert_int_equal(sh_prefetch_start(&p, &s, 1, &(sh_prefetch_opts){.what = "test data"}, NULL), 0);
    if (i % 2) usleep(100u * (unsigned)i);
    sh_prefetch_free(p);
  }
  sh_map_close(&m);
}

static void without_memory_for_its_list_it_is_an_error(void **state) {
  (void)state;
  sh_map m;
  map_file(&m, path, 1);
  const sh_span s = {m.p, m.len};
  int rc = -1;
  long n = 0;
  for (; rc; n++) {
    sh_prefetch *p;
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = sh_prefetch_start(&p, &s, 1, &(sh_prefetch_opts){.what = "test data"}, &e);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || (rc == SH_ERR_NOMEM && e.code == rc && e.text[0] && !p));
    sh_prefetch_free(p);
    assert_true(n < 100);
  }
  assert_true(n > 3);
  sh_map_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_asked_for_is_in_memory),
      cmocka_unit_test(one_thread_or_many_read_the_same),
      cmocka_unit_test(large_gaps_and_other_files_are_left_out),
      cmocka_unit_test(nothing_is_read_ahead_of_nothing),
      cmocka_unit_test(what_does_not_fit_in_memory_is_one_line_in_the_log),
      cmocka_unit_test(a_file_that_is_in_memory_needs_no_room),
      cmocka_unit_test(a_file_that_shrank_is_an_error_with_its_name),
      cmocka_unit_test(it_may_be_given_up_at_any_time),
      cmocka_unit_test(without_memory_for_its_list_it_is_an_error),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
