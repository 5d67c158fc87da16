/* Constructors of the server's parts when memory runs out at any allocation, their own or libevent's, which is given sh_malloc here: an
 * error with a sentence, nothing left open, nothing leaked. */
#include "unit/hostile.h"

#include <dirent.h>
#include <event2/event.h>

#include "server/http.h"
#include "server/loop.h"
#include "server/work.h"

static int open_fds(void) {
  DIR *d = opendir("/proc/self/fd");
  int n = 0;
  assert_non_null(d);
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static int make_loop(sh_error *e) {
  sh_loop *l;
  int rc = sh_loop_new(&l, e);
  if (rc) assert_null(l);
  sh_loop_free(l);
  return rc;
}

static sh_loop *loop;

static int make_http(sh_error *e) {
  static const sh_http_limits limits = {1 << 14, 1 << 20, 1 << 22, 5, 5, 10};
  static const sh_http_handler handler = {0};
  sh_http *h;
  int rc = sh_http_new(&h, sh_loop_base(loop), "127.0.0.1", 0, &limits, &handler, e);
  if (rc) assert_null(h);
  else assert_true(sh_http_port(h) > 0);
  sh_http_free(h);
  return rc;
}

static int make_workers(sh_error *e) {
  sh_workers *w;
  int rc = sh_workers_new(&w, 2, 8, e);
  if (rc) assert_null(w);
  sh_workers_free(w);
  return rc;
}

static void fails_cleanly_everywhere(int (*make)(sh_error *e), int at_least) {
  sh_error e = {0};
  assert_int_equal(make(&e), 0);
  int rc = -1, fds = open_fds();
  long n = 0;
  for (; rc; n++) {
    memset(&e, 0, sizeof e);
    sh_mem_fail_after(n);
    rc = make(&e);
    sh_mem_fail_after(-1);
    if (rc && (rc != SH_ERR_NOMEM || e.code != rc || !e.text[0])) fail_msg("allocation %ld: %d %s", n, rc, e.text);
    assert_int_equal(open_fds(), fds);
    assert_true(n < 1000);
  }
  assert_true(n > at_least);
}

static void an_event_loop(void **state) {
  (void)state;
  fails_cleanly_everywhere(make_loop, 4);
}

static void a_listener(void **state) {
  (void)state;
  assert_int_equal(sh_loop_new(&loop, NULL), 0);
  fails_cleanly_everywhere(make_http, 3);
  sh_loop_free(loop);
}

static void text_workers(void **state) {
  (void)state;
  fails_cleanly_everywhere(make_workers, 1);
}

int main(void) {
  event_set_mem_functions(sh_malloc, sh_realloc, sh_free);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_event_loop),
      cmocka_unit_test(a_listener),
      cmocka_unit_test(text_workers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
