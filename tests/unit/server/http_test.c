/* The HTTP layer over loopback connections: its loop runs on a second thread, the test is the client. Handlers by path: /echo answers with
 * the body, /early answers before the body, /hold never answers, /flood streams more than the sockets hold. The threads' queue (loop, work)
 * is tested beside it. */
#include "server/http.h"
#include "server/loop.h"
#include "server/work.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { FLOOD = 64 << 20, PIECE = 1 << 16 };

static sh_loop *loop;
static sh_http *http;
static pthread_t thread;
static sh_task stop_task;
static atomic_int gone, held, resumed;
static atomic_long flooded;

static void flood(sh_hreq *r) {
  static char piece[PIECE];
  while (flooded < FLOOD) {
    if (sh_http_full(r)) return;
    sh_http_stream_write(r, piece, sizeof piece);
    flooded += PIECE;
  }
  sh_http_stream_end(r);
}

static void on_head(void *ctx, sh_hreq *r) {
  (void)ctx;
  if (!strcmp(r->head.path, "/early")) sh_http_reply(r, 404, "text/plain", "early", 5);
}

static void on_request(void *ctx, sh_hreq *r) {
  (void)ctx;
  if (!strcmp(r->head.path, "/hold")) {
    held++;
  } else if (!strcmp(r->head.path, "/flood")) {
    flooded = 0;
    sh_http_stream_begin(r, 200, "text/plain");
    flood(r);
  } else {
    sh_http_set_header(r, "X-Method", r->head.method);
    sh_http_reply(r, 200, "text/plain", r->body.p ? r->body.p : "", r->body.len);
  }
}

static void on_gone(void *ctx, sh_hreq *r) {
  (void)ctx;
  (void)r;
  gone++;
}

static void on_writable(void *ctx, sh_hreq *r) {
  (void)ctx;
  resumed++;
  flood(r);
}

static void error_body(void *ctx, int status, const char *message, sh_buf *out) {
  (void)ctx;
  sh_buf_printf(out, "[%d] %s", status, message);
}

static void *run_loop(void *arg) {
  (void)arg;
  sh_loop_run(loop, NULL);
  return NULL;
}

static void on_stop(sh_task *t) {
  (void)t;
  sh_loop_stop(loop);
}

static int setup(void **state) {
  (void)state;
  const sh_http_limits limits = {
      .max_head = 4096, .max_body = 1 << 20, .max_bodies = 2 << 20, .idle_s = 60, .stall_s = 1, .max_connections = 50};
  const sh_http_handler handler = {NULL, on_head, on_request, on_gone, on_writable, error_body};
  sh_error e;
  gone = held = resumed = 0;
  if (sh_loop_new(&loop, &e) || sh_http_new(&http, sh_loop_base(loop), "127.0.0.1", 0, &limits, &handler, &e)) return -1;
  return pthread_create(&thread, NULL, run_loop, NULL);
}

static int teardown(void **state) {
  (void)state;
  stop_task.fn = on_stop;
  sh_loop_post(loop, &stop_task);
  pthread_join(thread, NULL);
  sh_http_free(http);
  sh_loop_free(loop);
  return 0;
}

static int dial(void) {
  struct sockaddr_in a = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)sh_http_port(http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct timeval tv = {20, 0};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
  assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
  return fd;
}

static void say(int fd, const char *text) { assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text)); }

/* Reads until the text has come or the connection ends; returns what came. */
static const char *hear(int fd, const char *until) {
  static char got[1 << 16];
  size_t n = 0;
  got[0] = 0;
  while (n < sizeof got - 1 && (!until || !strstr(got, until))) {
    ssize_t k = recv(fd, got + n, sizeof got - 1 - n, 0);
    if (k <= 0) break;
    n += (size_t)k;
    got[n] = 0;
  }
  return got;
}

static void wait_for(atomic_int *what, int value) {
  for (int i = 0; i < 2000 && *what != value; i++) usleep(5000);
  assert_int_equal(*what, value);
}

static void the_url_can_be_opened_whatever_is_listened_on(void **state) {
  (void)state;
  static const struct {
    const char *bound, *host, *url;
    bool everywhere;
  } cases[] = {{"127.0.0.1", "127.0.0.1", "http://127.0.0.1:8000", false},
               {"0.0.0.0", "0.0.0.0", "http://127.0.0.1:8000", true},
               {"0.0.0.0", "0", "http://127.0.0.1:8000", true},
               {"127.0.0.1", "localhost", "http://localhost:8000", false},
               {"10.1.2.3", "box.example", "http://box.example:8000", false},
               {"::1", "::1", "http://[::1]:8000", false},
               {"::", "::", "http://[::1]:8000", true},
               {"::", "0::0", "http://[::1]:8000", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(8000)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(8000)};
    bool six = strchr(cases[i].bound, ':');
    char url[300];
    int port;
    assert_int_equal(inet_pton(six ? AF_INET6 : AF_INET, cases[i].bound, six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr), 1);
    const struct sockaddr *bound = six ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4;
    assert_int_equal(sh_http_name_address(bound, cases[i].host, url, &port), cases[i].everywhere);
    assert_string_equal(url, cases[i].url);
    assert_int_equal(port, 8000);
  }
  const sh_http_limits limits = {
      .max_head = 4096, .max_body = 1 << 20, .max_bodies = 2 << 20, .idle_s = 60, .stall_s = 1, .max_connections = 5};
  const sh_http_handler handler = {NULL, on_head, on_request, on_gone, on_writable, error_body};
  sh_loop *l;
  sh_http *h;
  char want[64];
  assert_int_equal(sh_loop_new(&l, NULL), 0);
  assert_int_equal(sh_http_new(&h, sh_loop_base(l), "127.0.0.1", 0, &limits, &handler, NULL), 0);
  snprintf(want, sizeof want, "http://127.0.0.1:%d", sh_http_port(h));
  assert_string_equal(sh_http_url(h), want);
  assert_false(sh_http_everywhere(h));
  sh_http_free(h);
  sh_loop_free(l);
}

static void requests_on_one_connection_are_answered_in_order(void **state) {
  (void)state;
  int fd = dial();
  say(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nonePOST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
          "chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
          "GET /three HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const char *got = hear(fd, NULL), *one = strstr(got, "\r\n\r\none"), *two = strstr(got, "\r\n\r\ntwo"),
             *three = strstr(got, "X-Method: GET");
  assert_true(one && two && three && one < two && two < three);
  assert_non_null(strstr(three - 200, "Connection: close"));
  close(fd);
}

static void an_early_answer_throws_the_body_away_and_keeps_the_connection(void **state) {
  (void)state;
  int fd = dial();
  say(fd, "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n");
  assert_non_null(strstr(hear(fd, "early"), "404 Not Found"));
  say(fd, "12345POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok");
  assert_non_null(strstr(hear(fd, "\r\n\r\nok"), "200 OK"));
  close(fd);
}

static void errors_of_the_layer_have_the_handlers_body(void **state) {
  (void)state;
  static const struct {
    const char *send, *want;
  } cases[] = {
      {"nonsense\r\n\r\n", "[400]"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n", "[413]"},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nq\r\n", "[400]"},
  };
  for (size_t i = 0; i < 3; i++) {
    int fd = dial();
    say(fd, cases[i].send);
    assert_non_null(strstr(hear(fd, NULL), cases[i].want));
    close(fd);
  }
  int fd = dial();
  say(fd, "GET / HTTP/1.1\r\nHost: x\r\nX: ");
  for (int i = 0; i < 50; i++)
    say(fd, "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789");
  assert_non_null(strstr(hear(fd, NULL), "[431]"));
  close(fd);
}

static void a_request_that_stops_coming_is_408(void **state) {
  (void)state;
  int fd = dial();
  say(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n123");
  assert_non_null(strstr(hear(fd, NULL), "[408]"));
  close(fd);
}

static void a_hang_up_is_told_while_the_answer_is_awaited(void **state) {
  (void)state;
  int fds[10];
  for (int i = 0; i < 10; i++) {
    fds[i] = dial();
    say(fds[i], "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    if (i % 2) say(fds[i], "GET /next HTTP/1.1\r\nHost: x\r\n\r\n"); /* bytes behind the request hide nothing */
  }
  wait_for(&held, 10);
  assert_int_equal(gone, 0);
  for (int i = 0; i < 10; i++) close(fds[i]);
  wait_for(&gone, 10);
}

static void a_slow_reader_stops_the_writer_and_loses_nothing(void **state) {
  (void)state;
  static char sink[1 << 18];
  int fd = dial();
  long total = 0, before;
  ssize_t n;
  say(fd, "GET /flood HTTP/1.0\r\n\r\n");
  do {
    before = flooded;
    usleep(200000);
  } while (before == 0 || flooded != before);
  assert_true(flooded < FLOOD); /* it waits for us */
  while ((n = recv(fd, sink, sizeof sink, 0)) > 0) total += n;
  assert_true(total > FLOOD && total < FLOOD + 1000); /* and a head */
  assert_true(resumed > 0);
  close(fd);
}

static void held_requests_are_gone_when_the_server_ends(void **state) {
  (void)state;
  int fd = dial();
  say(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  wait_for(&held, 1);
  teardown(NULL);
  assert_int_equal(gone, 1);
  close(fd);
  assert_int_equal(setup(NULL), 0); /* for the teardown of this test */
}

/* --- Tasks and jobs from many threads --- */

typedef struct item {
  sh_task task;
  sh_job job;
  atomic_int *count;
} item;

static void item_done(sh_task *t) { (*((item *)(void *)t)->count)++; }

static void item_work(sh_job *j) {
  item *it = (item *)(void *)((char *)j - offsetof(item, job));
  sh_loop_post(loop, &it->task);
  sh_loop_post(loop, &it->task); /* queued once */
}

static void every_job_comes_back_to_the_loop(void **state) {
  (void)state;
  static item items[1000];
  static atomic_int count;
  sh_workers *w;
  count = 0;
  memset(items, 0, sizeof items);
  assert_int_equal(sh_workers_new(&w, 2, 2000, NULL), 0);
  for (int i = 0; i < 1000; i++) {
    items[i] = (item){.task.fn = item_done, .job.fn = item_work, .count = &count};
    assert_true(sh_workers_offer(w, &items[i].job));
  }
  sh_workers_free(w); /* runs what is queued */
  for (int i = 0; i < 2000 && count < 1000; i++) usleep(5000);
  assert_in_range(count, 1000, 2000); /* a task that had run already may have been posted again */
}

static void a_full_queue_refuses(void **state) {
  (void)state;
  static item items[3];
  static atomic_int count;
  sh_workers *w;
  assert_int_equal(sh_workers_new(&w, 0, 2, NULL), 0); /* nobody takes them */
  for (int i = 0; i < 3; i++) {
    items[i] = (item){.task.fn = item_done, .job.fn = item_work, .count = &count};
    assert_int_equal(sh_workers_offer(w, &items[i].job), i < 2);
  }
  sh_workers_free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_url_can_be_opened_whatever_is_listened_on),
      cmocka_unit_test_setup_teardown(requests_on_one_connection_are_answered_in_order, setup, teardown),
      cmocka_unit_test_setup_teardown(an_early_answer_throws_the_body_away_and_keeps_the_connection, setup, teardown),
      cmocka_unit_test_setup_teardown(errors_of_the_layer_have_the_handlers_body, setup, teardown),
      cmocka_unit_test_setup_teardown(a_request_that_stops_coming_is_408, setup, teardown),
      cmocka_unit_test_setup_teardown(a_hang_up_is_told_while_the_answer_is_awaited, setup, teardown),
      cmocka_unit_test_setup_teardown(a_slow_reader_stops_the_writer_and_loses_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(held_requests_are_gone_when_the_server_ends, setup, teardown),
      cmocka_unit_test_setup_teardown(every_job_comes_back_to_the_loop, setup, teardown),
      cmocka_unit_test_setup_teardown(a_full_queue_refuses, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
