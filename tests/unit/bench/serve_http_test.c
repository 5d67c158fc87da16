/* Responses and event streams, in any pieces and damaged. */
#include "unit/base/harness.h"
#include "unit/hostile.h"

#include "bench/serve_conn.h"
#include "bench/serve_http.h"

typedef struct seen {
  sh_buf text;
  int events;
  sh_bsse sse;
} seen;

static int on_event(void *ctx, const char *data, size_t n, sh_error *e) {
  seen *s = ctx;
  (void)e;
  s->events++;
  sh_buf_put(&s->text, data, n);
  return sh_buf_putc(&s->text, '|');
}

static int on_body(void *ctx, const char *p, size_t n, sh_error *e) {
  (void)e;
  return sh_buf_put(&((seen *)ctx)->text, p, n);
}

/* All of `text` in pieces of `step` bytes, each in memory of its own. */
static int sse(seen *s, const char *text, size_t n, size_t step, sh_error *e) {
  int rc = 0;
  sh_buf_init(&s->text, 1 << 20);
  s->events = 0;
  sh_bsse_init(&s->sse);
  for (size_t at = 0; rc == 0 && at < n; at += step) {
    size_t take = n - at < step ? n - at : step;
    char *copy = sh_malloc(take);
    assert_non_null(copy);
    memcpy(copy, text + at, take);
    rc = sh_bsse_feed(&s->sse, copy, take, on_event, s, e);
    sh_free(copy);
  }
  return rc;
}

static void an_event_stream_is_the_same_in_pieces_of_any_size(void **state) {
  (void)state;
  static const char text[] =
      ": a comment\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata:  three\n\nid: 4\rdata\r\rretry: 5\n\n\ndata: {\"a\":\"\xc3\xa9\"}"
      "\r\n\r\ndata: [DONE]\n\ndata: never ended";
  for (size_t step = 1; step < sizeof text; step++) {
    seen s = {.sse = {0}};
    sh_error e = {0};
    assert_int_equal(sse(&s, text, sizeof text - 1, step, &e), 0);
    assert_string_equal(s.text.p, "one|two\n three||{\"a\":\"\xc3\xa9\"}|[DONE]|");
    assert_int_equal(s.events, 5);
    sh_buf_free(&s.text);
    sh_bsse_free(&s.sse);
  }
}

static void what_is_no_event_stream_is_said_with_its_line(void **state) {
  (void)state;
  static const char *const bad[] = {"<html>\n", "{\"id\": 1}\n", "data: x\n\nbroken \x1b[31m line\n"};
  for (size_t i = 0; i < 3; i++)
    for (size_t step = 1; step < 40; step += 6) {
      seen s = {.sse = {0}};
      sh_error e = {0};
      assert_int_equal(sse(&s, bad[i], strlen(bad[i]), step, &e), SH_ERR_FORMAT);
      assert_contains(e.text, i == 0 ? "<html>" : i == 1 ? "{\"id\": 1}" : "broken  [31m line");
      sh_buf_free(&s.text);
      sh_bsse_free(&s.sse);
    }
}

/* A response in pieces of `step` bytes, and then its end. */
static int http(sh_bhttp *h, seen *s, const char *text, size_t n, size_t step, bool eof, sh_error *e) {
  int rc = 0;
  sh_buf_init(&s->text, 1 << 20);
  sh_bhttp_init(h);
  for (size_t at = 0; rc == 0 && at < n; at += step) {
    size_t take = n - at < step ? n - at : step;
    char *copy = sh_malloc(take);
    assert_non_null(copy);
    memcpy(copy, text + at, take);
    rc = sh_bhttp_feed(h, copy, take, on_body, s, e);
    sh_free(copy);
  }
  return rc == 0 && eof ? sh_bhttp_eof(h, e) : rc;
}

typedef struct response {
  const char *text, *body;
  int status;
  bool over, keep, eof; /* eof: and then the server closes */
} response;

static const response RESPONSES[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, true, true, false},
    {"HTTP/1.1 200 OK\nTransfer-Encoding: CHUNKED\n\n3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: a\r\n\r\n", "hello", 200, true, true, false},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", "no", 503, true, false, false},
    {"HTTP/1.0 200 OK\r\n\r\nto the end", "to the end", 200, true, false, true},
    {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", NULL, 200, true, true, false},
    {"HTTP/1.1 204 No Content\r\n\r\n", NULL, 204, true, true, false},
    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi and more", "hi", 200, true, false, false},
    {"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", "hi", 200, false, true, false},
};

static void a_response_is_the_same_in_pieces_of_any_size(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof RESPONSES / sizeof *RESPONSES; i++) {
    const response *r = &RESPONSES[i];
    for (size_t step = 1; step <= strlen(r->text); step++) {
      sh_bhttp h = {0};
      seen s = {.sse = {0}};
      sh_error e = {0};
      assert_int_equal(http(&h, &s, r->text, strlen(r->text), step, r->eof, &e), 0);
      assert_int_equal(h.status, r->status);
      assert_int_equal(h.over, r->over);
      if (r->over) assert_int_equal(h.keep_alive, r->keep);
      if (r->body) assert_string_equal(s.text.p, r->body);
      else assert_int_equal(s.text.len, 0);
      sh_buf_free(&s.text);
      sh_bhttp_free(&h);
    }
  }
}

static void a_response_that_is_none_is_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"SSH-2.0-OpenSSH\r\n",
                                    "HTTP/2 200\r\n\r\n",
                                    "HTTP/1.1 20 OK\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    for (size_t step = 1; step < 60; step += 9) {
      sh_bhttp h = {0};
      seen s = {.sse = {0}};
      sh_error e = {0};
      if (http(&h, &s, bad[i], strlen(bad[i]), step, false, &e) != SH_ERR_FORMAT) fail_msg("taken: %s", bad[i]);
      assert_true(e.text[0] && !strchr(e.text, '\r') && !strchr(e.text, '\n'));
      sh_buf_free(&s.text);
      sh_bhttp_free(&h);
    }
}

static void a_connection_that_ends_too_early_is_told_from_one_that_ends_the_body(void **state) {
  (void)state;
  static const char *const cut[] = {"", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
                                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"};
  static const char *const why[] = {"without an answer", "response head", "middle of the answer", "middle of the answer"};
  for (size_t i = 0; i < 4; i++) {
    sh_bhttp h = {0};
    seen s = {.sse = {0}};
    sh_error e = {0};
    assert_int_equal(http(&h, &s, cut[i], strlen(cut[i]), 7, true, &e), SH_ERR_IO);
    assert_contains(e.text, why[i]);
    sh_buf_free(&s.text);
    sh_bhttp_free(&h);
  }
}

static void a_head_without_an_end_is_bounded(void **state) {
  (void)state;
  sh_bhttp h = {0};
  seen s = {.sse = {0}};
  sh_error e = {0};
  char line[1024];
  int rc = 0, n = 0;
  memset(line, 'a', sizeof line);
  sh_bhttp_init(&h);
  memcpy(line, "HTTP/1.1 200 OK\r\nX:", 19);
  for (; rc == 0 && n < 1000; n++) rc = sh_bhttp_feed(&h, line, sizeof line, on_body, &s, &e);
  assert_int_equal(rc, SH_ERR_LIMIT);
  assert_true(n <= 66);
  sh_bhttp_free(&h);
}

static void events_tell_text_ends_usage_and_errors_apart(void **state) {
  (void)state;
  sh_bevent v;
  sh_error e = {0};
#define READ(text) assert_int_equal(sh_bevent_read(&v, text, strlen(text), &e), 0)
  READ("[DONE]");
  assert_true(v.done && !v.text);
  READ("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}");
  assert_true(!v.text && !v.finish && v.prompt_tokens == -1);
  READ("{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}");
  assert_true(v.text && !v.finish);
  READ("{\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}");
  assert_true(v.text);
  READ("{\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}");
  assert_true(v.text);
  READ("{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}],\"usage\":null}");
  assert_true(v.text && v.finish && v.completion_tokens == -1);
  READ("{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":5}}}");
  assert_true(v.prompt_tokens == 7 && v.completion_tokens == 3 && v.cached_tokens == 5);
  READ("{\"usage\":{\"prompt_tokens\":-7,\"completion_tokens\":\"3\"}}");
  assert_true(v.prompt_tokens == -1 && v.completion_tokens == -1);
  READ("{\"error\":{\"message\":\"no\\nmemory\",\"code\":500}}");
  assert_true(v.failed);
  assert_contains(e.text, "no memory");
  READ("{\"error\":\"plain\"}");
  assert_true(v.failed);
  READ("{\"error\":null,\"choices\":7}");
  assert_true(!v.failed && !v.text);
  static const char *const bad[] = {"", "{", "[]", "5", "{\"a\":1} x", "\xff"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(sh_bevent_read(&v, bad[i], strlen(bad[i]), &e), SH_ERR_FORMAT);
}

static void addresses_are_read_and_https_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *text, *host, *port, *base;
  } good[] = {{"http://a:8000", "a", "8000", ""},   {"a:1/v1/", "a", "1", ""},  {"HTTP://[::1]:80/x/v1", "::1", "80", "/x"},
              {"127.0.0.1", "127.0.0.1", "80", ""}, {"[::1]", "::1", "80", ""}, {"http://h/deep/er/", "h", "80", "/deep/er"}};
  sh_burl u;
  sh_error e = {0};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    assert_int_equal(sh_burl_parse(&u, good[i].text, &e), 0);
    assert_string_equal(u.host, good[i].host);
    assert_string_equal(u.port, good[i].port);
    assert_string_equal(u.base, good[i].base);
  }
  assert_int_equal(sh_burl_parse(&u, "https://a", &e), SH_ERR_UNSUPPORTED);
  assert_contains(e.text, "TLS");
  static const char *const bad[] = {"",       ":80",    "a:",       "a:0",    "a:99999",    "a:x",     "ftp://a",  "[::1",
                                    "[::1]x", "u@h:80", "a:80?q=1", "a b:80", "a:80/\r\nX", "http://", "a:80/x?y", "a:123456789"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (sh_burl_parse(&u, bad[i], &e) != SH_ERR_ARG) fail_msg("'%s' was taken", bad[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_event_stream_is_the_same_in_pieces_of_any_size),
      cmocka_unit_test(what_is_no_event_stream_is_said_with_its_line),
      cmocka_unit_test(a_response_is_the_same_in_pieces_of_any_size),
      cmocka_unit_test(a_response_that_is_none_is_refused),
      cmocka_unit_test(a_connection_that_ends_too_early_is_told_from_one_that_ends_the_body),
      cmocka_unit_test(a_head_without_an_end_is_bounded),
      cmocka_unit_test(events_tell_text_ends_usage_and_errors_apart),
      cmocka_unit_test(addresses_are_read_and_https_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
