/* Calls when memory runs out. Every handler of a text worker with each of its allocations failing: 503 with a sentence, or the right answer
 * where the code can do without; nothing leaks (the address sanitizer looks). Then whole requests over a loopback connection with the loop
 * thread's allocations failing: an answer or the end of the connection, never a hang, and the next request is answered as the first one
 * was. libevent's own allocations are left alone there: 2.1's bufferevent_setwatermark does not survive a failure (evbuffer_cb_set_flags of
 * NULL). */
#include "unit/hostile.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/log.h"
#include "server/gen.h"
#include "server/state.h"

#define MODEL "tests/golden/models/dense-small"

static sh_serve_options opt;
static sh_server srv;
static const char *name = "m";

static void *run_loop(void *arg) {
  (void)arg;
  sh_loop_run(srv.loop, NULL);
  return NULL;
}

static int open_world(void **state) {
  (void)state;
  static const sh_http_limits limits = {1 << 14, 1 << 20, 1 << 22, 60, 5, 10};
  const sh_http_handler handler = {&srv, sh_api_head, sh_api_request, sh_api_gone, sh_api_writable, sh_api_error_body};
  const sh_engine_options eo = {
      .model = MODEL, .threads = 1, .max_model_len = 256, .max_num_seqs = 2, .max_num_batched_tokens = 64, .memory_limit = 1 << 30};
  sh_error e = {0};
  opt = sh_serve_option_defaults;
  opt.model = MODEL;
  opt.trust_request_chat_template = true;
  srv = (sh_server){.opt = &opt, .names = &name, .n_names = 1, .bos = "", .eos = "", .fingerprint = "f", .phase = SH_PHASE_READY};
  sh_gen_defaults_read(NULL, &srv.defaults);
  if (sh_engine_open(&srv.engine, &eo, &e) || sh_engine_start(srv.engine, &e) || sh_loop_new(&srv.loop, &e) ||
      sh_http_new(&srv.http, sh_loop_base(srv.loop), "127.0.0.1", 0, &limits, &handler, &e) || sh_workers_new(&srv.workers, 1, 8, &e)) {
    print_error("%s\n", e.text);
    return -1;
  }
  return 0;
}

static int close_world(void **state) {
  (void)state;
  sh_workers_free(srv.workers);
  sh_http_free(srv.http);
  assert_int_equal(srv.n_calls, 0);
  sh_engine_close(srv.engine);
  sh_loop_free(srv.loop);
  return 0;
}

/* --- Handlers --- */

static const struct {
  const char *path, *body;
} WORK[] = {
    {"/v1/completions", "{\"prompt\":\"a b\",\"max_tokens\":3}"},
    {"/v1/completions", "{\"prompt\":[\"a\",[9,10],\"c\"],\"n\":2,\"echo\":true,\"logprobs\":2,\"stop\":[\"x\",\"yy\"],\"stream\":true,"
                        "\"bad_words\":[\"q\"],\"logit_bias\":{\"9\":1},\"truncate_prompt_tokens\":4}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"hi\"}]}],\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"a\":[1,{\"b\":2}]},\"max_tokens\":4}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"chat_template\":\"{% for m in messages %}{{ m.content "
     "~ 'x' }}{% endfor %}\",\"request_id\":\"r\"}"},
    {"/tokenize", "{\"prompt\":\"The quick brown fox\",\"return_token_strs\":true}"},
    {"/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"},
    {"/detokenize", "{\"tokens\":[9,10,11,12]}"},
};

static const sh_route *route_of(const char *path) {
  for (const sh_route *r = sh_routes; r->path; r++)
    if (strcmp(r->path, path) == 0) return r;
  fail_msg("no route %s", path);
  return NULL;
}

static sh_call *call_of(const sh_route *route, const char *body) {
  sh_call *c = sh_calloc(1, sizeof *c);
  sh_json *root = NULL;
  assert_non_null(c);
  *c = (sh_call){.srv = &srv, .route = route, .type = "application/json", .method = "POST", .rest = "m"};
  c->arena = sh_arena_new(64 << 20);
  assert_non_null(c->arena);
  if (body) assert_int_equal(sh_json_parse(body, strlen(body), NULL, c->arena, &root, NULL), 0);
  c->json = root;
  sh_buf_init(&c->out, 1 << 24);
  c->next = srv.calls;
  if (srv.calls) srv.calls->prev = c;
  srv.calls = c;
  srv.n_calls++;
  return c;
}

/* What a call came to, in a few words: the answer, or the prompts it would run. */
static void describe(const sh_call *c, sh_buf *out) {
  sh_buf_reset(out);
  if (c->out.len) sh_buf_put(out, c->out.p, c->out.len);
  for (int i = 0; c->gen && i < c->gen->n_runs; i++) {
    const sh_run *r = &c->gen->runs[i];
    sh_buf_printf(out, "[%d", r->max_tokens);
    for (int k = 0; k < r->n_ids; k++) sh_buf_printf(out, " %d", (int)r->ids[k]);
    sh_buf_printf(out, " %.*s]", (int)r->text_len, r->text ? r->text : "");
  }
  if (c->gen) sh_buf_printf(out, "%d %d %d", c->gen->n_choices, c->gen->engine.n_stop, c->gen->engine.n_bad_words);
}

typedef int (*handler_fn)(sh_call *c, sh_api_error *e);

/* One handler with the n-th allocation failing. true: it did as it should without. */
static bool one_failure(const sh_route *route, handler_fn fn, const char *body, long n, const sh_buf *want, sh_buf *got) {
  sh_api_error e = {0};
  sh_call *c = call_of(route, body);
  sh_mem_fail_after(n);
  int rc = fn(c, &e);
  sh_mem_fail_after(-1);
  bool ok = rc == 0 && !c->out.failed;
  if (rc && (e.status != 503 || !e.message[0])) fail_msg("%s, allocation %ld: %d %s", route->path, n, e.status, e.message);
  if (rc == 0 && c->out.failed) assert_int_equal(c->out.failed, SH_ERR_NOMEM);
  if (ok) {
    describe(c, got);
    if (got->len != want->len || memcmp(got->p, want->p, got->len))
      fail_msg("%s, allocation %ld: %s in place of %s", route->path, n, got->p, want->p);
  }
  sh_call_free(c);
  return ok;
}

static void torture(const sh_route *route, handler_fn fn, const char *body, int at_least) {
  sh_api_error e = {0};
  sh_buf want, got;
  int failed = 0;
  sh_buf_init(&want, 1 << 24);
  sh_buf_init(&got, 1 << 24);
  sh_call *c = call_of(route, body);
  sh_mem_guard_begin();
  int rc = fn(c, &e);
  long n = sh_mem_guard_end();
  if (rc) fail_msg("%s: %d %s", route->path, e.status, e.message);
  describe(c, &want);
  sh_call_free(c);
  for (long i = 0; i < n; i++) failed += !one_failure(route, fn, body, i, &want, &got);
  assert_true(one_failure(route, fn, body, n, &want, &got));
  print_message("           %s: %ld allocations, %d of them cost the answer\n", route->path, n, failed);
  assert_true(failed >= at_least);
  sh_buf_free(&want);
  sh_buf_free(&got);
}

static void every_handler_of_a_text_worker(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof WORK / sizeof *WORK; i++) {
    const sh_route *r = route_of(WORK[i].path);
    torture(r, r->work, WORK[i].body, 2);
  }
}

static void every_handler_of_the_loop(void **state) {
  (void)state;
  static const char *const PATHS[] = {"/v1/models", "/v1/models/*", "/version"};
  for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
    const sh_route *r = route_of(PATHS[i]);
    torture(r, r->now, NULL, 1);
  }
  const sh_route *m = route_of("/metrics"); /* its numbers change from call to call */
  for (long n = 0; n < 8; n++) {
    sh_api_error e = {0};
    sh_call *c = call_of(m, NULL);
    sh_mem_fail_after(n);
    int rc = m->now(c, &e);
    sh_mem_fail_after(-1);
    if (n == 0) assert_true(rc ? e.status == 503 : c->out.failed == SH_ERR_NOMEM);
    sh_call_free(c);
  }
}

/* --- Whole requests --- */

static pthread_t thread;
static atomic_long allowed; /* allocations of the loop thread from the next mark on; -1: all */
static atomic_int marks;
static sh_task mark_task, stop_task;

static void on_mark(sh_task *t) {
  (void)t;
  sh_mem_fail_after(allowed);
  marks++;
}

static void on_stop(sh_task *t) {
  (void)t;
  sh_loop_stop(srv.loop);
}

static void allow(long n) {
  int before = marks;
  allowed = n;
  mark_task.fn = on_mark;
  sh_loop_post(srv.loop, &mark_task);
  for (int i = 0; i < 4000 && marks == before; i++) usleep(1000);
  assert_int_equal(marks, before + 1);
}

static int dial(void) {
  struct sockaddr_in a = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)sh_http_port(srv.http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
  return fd;
}

/* Everything until the connection ends; fails when nothing happens for 20 s. After `failing` allocations of its own code the loop thread
 * gets no more (-1: all it wants). */
static size_t ask(const char *request, long failing, char *got, size_t cap) {
  int fd = dial();
  size_t n = 0;
  allow(failing);
  (void)send(fd, request, strlen(request), MSG_NOSIGNAL); /* it may have been closed already */
  for (;;) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 20000) != 1) fail_msg("no answer and no end: %s", got);
    ssize_t k = recv(fd, got + n, cap - 1 - n, 0);
    if (k <= 0) break;
    n += (size_t)k;
    got[n] = 0;
  }
  got[n] = 0;
  close(fd);
  allow(-1);
  return n;
}

/* The text of an answer, or of a stream's chunks one after the other, without what differs from call to call. */
static void text_of(const char *answer, char *out, size_t cap) {
  size_t n = 0;
  for (const char *at = answer; (at = strstr(at, "\"text\":\"")); at++)
    for (const char *p = at + 8; *p && *p != '"' && n + 1 < cap; p++) out[n++] = *p;
  out[n] = 0;
}

static void request_survives(const char *body, int at_least) {
  static char request[1000], got[1 << 16], want[4000], text[4000];
  int failed = 0, good = 0;
  snprintf(
      request, sizeof request,
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
      strlen(body), body);
  ask(request, -1, got, sizeof got);
  assert_int_equal(strncmp(got, "HTTP/1.1 200", 12), 0);
  text_of(got, want, sizeof want);
  assert_true(want[0]);
  for (long n = 0; n < 400 && good < 5; n++) {
    size_t len = ask(request, n, got, sizeof got);
    text_of(got, text, sizeof text);
    bool ok = strncmp(got, "HTTP/1.1 200", 12) == 0 && strcmp(text, want) == 0;
    if (len && !ok && strncmp(got, "HTTP/1.1 200", 12) && strncmp(got, "HTTP/1.1 50", 11)) fail_msg("allocation %ld: %s", n, got);
    good = ok ? good + 1 : 0;
    failed += !ok;
    ask(request, -1, got, sizeof got);
    text_of(got, text, sizeof text);
    assert_string_equal(text, want);
  }
  print_message("           %d failures\n", failed);
  assert_int_equal(good, 5);
  assert_true(failed >= at_least);
}

static void whole_requests_over_a_connection(void **state) {
  (void)state;
  assert_int_equal(pthread_create(&thread, NULL, run_loop, NULL), 0);
  request_survives("{\"prompt\":\"a b\",\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true}", 10);
  request_survives("{\"prompt\":\"a b\",\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"logprobs\":2}", 10);
  stop_task.fn = on_stop;
  sh_loop_post(srv.loop, &stop_task);
  pthread_join(thread, NULL);
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR - 1); /* failing is what they are here for */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_handler_of_a_text_worker),
      cmocka_unit_test(every_handler_of_the_loop),
      cmocka_unit_test(whole_requests_over_a_connection),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
