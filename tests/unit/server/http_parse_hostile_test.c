/* Request heads and chunked bodies under damage. A head is refused with a status and a reason, or keeps what the rest of the server relies
 * on: every string lies in its bytes and ends there, one framing, no byte in a name or path that could end a line. A chunked body gives the
 * same answer however it is cut into pieces. */
#include "unit/hostile.h"

#include "server/http_parse.h"

static const char HEAD[] = "POST /v1/chat/completions%20x?stream=1&a=%41 HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 128\r\n"
                           "Content-Type: application/json; charset=utf-8\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n"
                           "Authorization: Bearer sk-abc\r\nX-Empty:\r\nAccept: */*\r\n\r\n";
static const char HEAD_CHUNKED[] = "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close, te\r\n\r\n";
static const char CHUNKS[] = "5\r\nhello\r\n1a;ext=\"v\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0003\r\nxyz\r\n0\r\nTrailer: v\r\nTwo: w\r\n\r\n";

static void inside(const char *s, const char *p, size_t n) {
  assert_true(s >= p && s <= p + n);
  assert_true(memchr(s, 0, (size_t)(p + n - s) + 1) != NULL);
}

static int parse_head(const char *p, size_t n, void *ctx, sh_error *e) {
  (void)ctx;
  static sh_http_head head;
  const char *why = NULL;
  size_t from = 0, length = sh_http_head_length(p, n, &from), grown = 0, step = 0;
  assert_true(length <= n);
  for (from = 0; !grown && step < n;) grown = sh_http_head_length(p, ++step, &from);
  assert_int_equal(grown, length); /* byte by byte, the same end */
  size_t size = length ? length : n;
  char *copy = malloc(size + 1); /* p[n] is writable, as promised */
  assert_non_null(copy);
  if (size) memcpy(copy, p, size);
  copy[size] = 'x';
  memset(&head, 0xa5, sizeof head);
  int status = sh_http_head_parse(copy, size, &head, &why);
  if (status) {
    assert_true(status == 400 || status == 417 || status == 431 || status == 501 || status == 505);
    assert_true(why && why[0] && sh_utf8_valid(why, strlen(why)));
    free(copy);
    return sh_fail(e, SH_ERR_FORMAT, "%d %s", status, why);
  }
  inside(head.method, copy, size);
  inside(head.path, copy, size);
  if (head.query[0]) inside(head.query, copy, size);
  assert_true(head.path[0] == '/' || head.path[0] == '*');
  for (const char *c = head.query; *c; c++) assert_true((unsigned char)*c > 0x20 && *c != 0x7f);
  for (const char *c = head.path; *c && !memchr(p, '%', size); c++) assert_true((unsigned char)*c > 0x20 && *c != 0x7f);
  assert_true(head.minor == 0 || head.minor == 1);
  assert_true(head.content_length >= -1 && !(head.chunked && head.content_length >= 0));
  assert_true(head.n_headers >= 0 && head.n_headers <= SH_HTTP_MAX_HEADERS);
  for (int i = 0; i < head.n_headers; i++) {
    inside(head.headers[i].name, copy, size);
    inside(head.headers[i].value, copy, size);
    assert_true(head.headers[i].name[0] && !strpbrk(head.headers[i].name, " \r\n\t:"));
    assert_null(strpbrk(head.headers[i].value, "\r\n"));
  }
  free(copy);
  return length ? 0 : sh_fail(e, SH_ERR_FORMAT, "a head without its blank line");
}

static void damaged_heads_are_refused_or_whole(void **state) {
  (void)state;
  hostile h = {.fn = parse_head};
  every_truncation(&h, HEAD, sizeof HEAD - 1);
  assert_int_equal(h.accepted, 1);
  seeded_damage(&h, HEAD, sizeof HEAD - 1, 100, 12000);
  assert_both(&h, 1000, 1000);
  static const char ABSOLUTE[] = "GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n";
  every_truncation(&h, ABSOLUTE, sizeof ABSOLUTE - 1);
  seeded_damage(&h, ABSOLUTE, sizeof ABSOLUTE - 1, 20, 4000);
  every_truncation(&h, HEAD_CHUNKED, sizeof HEAD_CHUNKED - 1);
  seeded_damage(&h, HEAD_CHUNKED, sizeof HEAD_CHUNKED - 1, 30, 12000);
  assert_both(&h, 2000, 2000);
}

/* An absolute target needs a host and a path of its own: the version's slash is not one. */
static void absolute_targets_do_not_read_on_into_the_version(void **state) {
  (void)state;
  static const char *const TARGETS[] = {"http://",    "https://", "http:///",       "http:///a",
                                        "https:///a", "http://h", "https://h?a=/b", "http://?/b"};
  for (size_t i = 0; i < sizeof TARGETS / sizeof TARGETS[0]; i++) {
    char text[128];
    sh_error e = {0};
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", TARGETS[i]);
    if (!parse_head(text, (size_t)n, NULL, &e)) fail_msg("%s is accepted", TARGETS[i]);
    assert_says(e.text, "400");
  }
}

/* Data of the whole body, fed `step` bytes at a time, as a status and a hash that does not know the cuts. */
static int feed(const char *p, size_t n, size_t step, uint64_t *hash, size_t *used_all) {
  sh_chunked c;
  size_t at = 0;
  int what = SH_CHUNKED_MORE;
  sh_chunked_init(&c);
  *hash = 14695981039346656037u;
  while (at < n && what != SH_CHUNKED_END) {
    size_t used = 0, len = 0, now = n - at < step ? n - at : step;
    const char *data = NULL;
    char *piece = malloc(now);
    assert_non_null(piece);
    memcpy(piece, p + at, now);
    what = sh_chunked_feed(&c, piece, now, &used, &data, &len);
    assert_true(used <= now);
    if (what == SH_CHUNKED_DATA) {
      assert_true(len > 0 && used > 0 && data >= piece && data + len <= piece + now);
      for (size_t i = 0; i < len; i++) *hash = (*hash ^ (uint8_t)data[i]) * 1099511628211u;
    }
    if (what == SH_CHUNKED_MORE) assert_int_equal(used, now);
    free(piece);
    if (what == SH_CHUNKED_BAD) break;
    at += used;
  }
  *used_all = at;
  return what == SH_CHUNKED_BAD ? -1 : what == SH_CHUNKED_END ? 1 : 0;
}

static int chunked_body(const char *p, size_t n, void *ctx, sh_error *e) {
  (void)ctx;
  static const size_t STEPS[] = {1, 2, 7, 64};
  uint64_t whole, hash;
  size_t end, used;
  int rc = feed(p, n, n ? n : 1, &whole, &end);
  for (size_t i = 0; i < sizeof STEPS / sizeof STEPS[0]; i++) {
    assert_int_equal(feed(p, n, STEPS[i], &hash, &used), rc);
    if (rc == 1) assert_true(hash == whole && used == end);
  }
  if (rc == 1) return 0;
  return sh_fail(e, SH_ERR_FORMAT, rc ? "a bad chunk" : "an unfinished body");
}

static void damaged_chunks_mean_the_same_however_they_are_cut(void **state) {
  (void)state;
  hostile h = {.fn = chunked_body};
  every_truncation(&h, CHUNKS, sizeof CHUNKS - 1);
  assert_int_equal(h.accepted, 1);
  seeded_damage(&h, CHUNKS, sizeof CHUNKS - 1, 12, 10000);
  assert_both(&h, 300, 3000);
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged_heads_are_refused_or_whole),
      cmocka_unit_test(absolute_targets_do_not_read_on_into_the_version),
      cmocka_unit_test(damaged_chunks_mean_the_same_however_they_are_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
