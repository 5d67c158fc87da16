/* HTTP message syntax: heads and the chunked coding, right and wrong. */
#include "server/http_parse.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static char bytes[1 << 16];
static sh_http_head head;
static const char *why;

static int parse(const char *text) {
  size_t n = strlen(text);
  memcpy(bytes, text, n);
  return sh_http_head_parse(bytes, n, &head, &why);
}

static void a_head_ends_at_its_blank_line_wherever_it_is_cut(void **state) {
  (void)state;
  static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\nbody", "GET / HTTP/1.1\nHost: x\n\nbody",
                                      "GET / HTTP/1.1\nHost: x\r\n\r\nbody"};
  for (size_t t = 0; t < 3; t++) {
    size_t all = strlen(texts[t]), want = all - 4;
    for (size_t step = 1; step <= all; step++) {
      size_t from = 0, found = 0, n = 0;
      while (!found && n < all) {
        n = n + step < all ? n + step : all;
        found = sh_http_head_length(texts[t], n, &from);
        if (n < want) assert_int_equal(found, 0);
      }
      assert_int_equal(found, want);
    }
  }
}

static void a_head_is_taken_apart(void **state) {
  (void)state;
  assert_int_equal(parse("POST /v1/models/a%2Fb%20c?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nContent-LENGTH:  12 \r\nX-Two: a, b\r\n\r\n"), 0);
  assert_string_equal(head.method, "POST");
  assert_string_equal(head.path, "/v1/models/a/b c");
  assert_string_equal(head.query, "x=1&y=%20");
  assert_int_equal(head.content_length, 12);
  assert_true(head.keep_alive);
  assert_false(head.chunked);
  assert_string_equal(sh_http_head_get(&head, "x-two"), "a, b");
  assert_null(sh_http_head_get(&head, "x-three"));
}

static void keep_alive_follows_version_and_connection(void **state) {
  (void)state;
  assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n"), 0);
  assert_false(head.keep_alive);
  assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), 0);
  assert_true(head.keep_alive);
  assert_int_equal(parse("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade , CLOSE\r\n\r\n"), 0);
  assert_false(head.keep_alive);
  assert_int_equal(parse("GET http://x.example/health HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
  assert_string_equal(head.path, "/health");
}

static void what_two_parsers_could_read_differently_is_refused(void **state) {
  (void)state;
  static const struct {
    int status;
    const char *text;
  } cases[] = {
      {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {501, "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"},
      {501, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost : x\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\n"},
      {417, "GET / HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\n\r\n"},
      {505, "GET / HTTP/2.0\r\nHost: x\r\n\r\n"},
      {400, "GET / FTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET health HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "G@T / HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "\x16\x03\x01\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: x\r\nX: a\x01\r\n\r\n"},
      {400, "GET\r\n\r\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int status = parse(cases[i].text);
    if (status != cases[i].status) print_error("case %zu: %s\n", i, cases[i].text);
    assert_int_equal(status, cases[i].status);
    assert_non_null(why);
  }
}

static void the_101st_header_is_too_many(void **state) {
  (void)state;
  char text[8192];
  for (int n = 99; n <= 100; n++) {
    size_t at = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < n; i++) at += (size_t)snprintf(text + at, sizeof text - at, "X-%d: y\r\n", i);
    snprintf(text + at, sizeof text - at, "\r\n");
    assert_int_equal(parse(text), n == 99 ? 0 : 431);
  }
}

/* Decodes `text` in pieces of `step` bytes; returns the last result and collects data. */
static int decode(const char *text, size_t step, char *out, size_t *out_n, size_t *consumed) {
  sh_chunked c;
  size_t n = strlen(text), at = 0;
  int what = SH_CHUNKED_MORE;
  sh_chunked_init(&c);
  *out_n = 0;
  while (at < n && what >= 0 && what != SH_CHUNKED_END) {
    size_t end = at + step < n ? at + step : n;
    do {
      size_t used = 0, len = 0;
      const char *data = NULL;
      what = sh_chunked_feed(&c, text + at, end - at, &used, &data, &len);
      if (what == SH_CHUNKED_DATA) {
        memcpy(out + *out_n, data, len);
        *out_n += len;
      }
      at += used;
    } while (at < end && (what == SH_CHUNKED_DATA || what == SH_CHUNKED_MORE));
  }
  *consumed = at;
  return what;
}

static void chunks_decode_in_any_pieces(void **state) {
  (void)state;
  const char *text = "4\r\nWiki\r\n6;ext=\"x\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nTrailer: y\r\n\r\nNEXT";
  char out[256];
  size_t n, used;
  for (size_t step = 1; step < strlen(text); step++) {
    assert_int_equal(decode(text, step, out, &n, &used), SH_CHUNKED_END);
    assert_int_equal(n, 24);
    assert_memory_equal(out, "Wikipedia in \r\n\r\nchunks.", 24);
    assert_string_equal(text + used, "NEXT");
  }
}

static void a_size_may_have_blanks_before_its_extension_and_a_bare_line_end(void **state) {
  (void)state;
  static const char *const cases[] = {"5;a=b\r\nhello\r\n0\r\n\r\n", "5 \t;a=\"b c\"\r\nhello\r\n0;x\r\n\r\n", "5\nhello\n0\n\n",
                                      "05;a\nhello\r\n00\r\nA: b\n\n"};
  char out[256];
  size_t n, used;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (size_t step = 1; step < 8; step++) {
      assert_int_equal(decode(cases[i], step, out, &n, &used), SH_CHUNKED_END);
      assert_int_equal(n, 5);
      assert_memory_equal(out, "hello", 5);
      assert_int_equal(used, strlen(cases[i]));
    }
  }
}

static void broken_chunks_are_bad(void **state) {
  (void)state;
  static const char *const cases[] = {"x\r\n", "\r\n", "4\r\nWikiX", "ffffffffffffffffff\r\n", "-1\r\n", "4\r\nWiki\r\r\n",
                                      /* a size and something a second parser could take for another */
                                      "5 5\r\nhello\r\n0\r\n\r\n", "5\rfoo\nhello\r\n0\r\n\r\n", "5\r\r\nhello\r\n", "5 \r\nhello\r\n",
                                      "5 x\r\nhello\r\n", " 5\r\nhello\r\n", "5,5\r\n", "5;a\rb\r\nhello\r\n", "5;a\x01\r\nhello\r\n",
                                      "0x5\r\nhello\r\n", "+5\r\nhello\r\n", "0\r\n\r\r\n", "0\r\nA: b\rC: d\r\n\r\n",
                                      "0\r\n\rA: b\r\n\r\n", "0\r\nA: \x01\r\n\r\n"};
  char out[256];
  size_t n, used;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_int_equal(decode(cases[i], 3, out, &n, &used), SH_CHUNKED_BAD);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_head_ends_at_its_blank_line_wherever_it_is_cut),
      cmocka_unit_test(a_head_is_taken_apart),
      cmocka_unit_test(keep_alive_follows_version_and_connection),
      cmocka_unit_test(what_two_parsers_could_read_differently_is_refused),
      cmocka_unit_test(the_101st_header_is_too_many),
      cmocka_unit_test(chunks_decode_in_any_pieces),
      cmocka_unit_test(a_size_may_have_blanks_before_its_extension_and_a_bare_line_end),
      cmocka_unit_test(broken_chunks_are_bad),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
