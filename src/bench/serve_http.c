/* Push parsers for what comes back. Loop thread; no sockets, so that they can be tested and fuzzed alone.
 *
 * A response is read strictly where a fault would spoil a measurement (status line, framing) and loosely elsewhere: unknown headers are
 * nobody's business. An event stream is read more strictly than browsers do, which skip unknown fields: a line that is neither a field nor
 * a comment means that the server sent something else under 200, and that is worth a message. */
#include "bench/serve_http.h"

#include "base/json.h"
#include "base/text.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_HEAD = 64 << 10, MAX_EVENT = 16 << 20, EVENT_ARENA = 64 << 20 }; /* bytes */

void sh_bquote(char out[200], const char *s, size_t n) {
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  size_t take = n < 160 ? n : 160;
  take -= sh_utf8_incomplete_tail(s, take);
  sh_utf8_sanitize(s, take, &b);
  snprintf(out, 200, "%.190s", b.p ? b.p : "");
  sh_buf_free(&b);
  size_t len = strlen(out), cut = sh_utf8_incomplete_tail(out, len);
  out[len - cut] = '\0';
  for (char *p = out; *p; p++)
    if ((unsigned char)*p < 32 || *p == 127) *p = ' ';
}

/* ---- A response ---- */

void sh_bhttp_init(sh_bhttp *h) {
  sh_buf head = h->private_head;
  if (head.max == 0) sh_buf_init(&head, MAX_HEAD);
  else sh_buf_reset(&head);
  *h = (sh_bhttp){.private_head = head, .private_left = -1};
  sh_chunked_init(&h->private_chunks);
}

void sh_bhttp_free(sh_bhttp *h) { sh_buf_free(&h->private_head); }

static int bad(sh_error *e, const char *what, const char *s, size_t n) {
  char quote[200];
  sh_bquote(quote, s, n);
  return sh_fail(e, SH_ERR_FORMAT, "%s: \"%s\"", what, quote);
}

/* "HTTP/1.1 200 OK" */
static int status_line(sh_bhttp *h, const char *s, size_t n, sh_error *e) {
  bool ok = n >= 12 && memcmp(s, "HTTP/1.", 7) == 0 && (s[7] == '0' || s[7] == '1') && s[8] == ' ' && (n == 12 || s[12] == ' ');
  int status = 0;
  for (int i = 9; ok && i < 12; i++) {
    ok = s[i] >= '0' && s[i] <= '9';
    status = status * 10 + (s[i] - '0');
  }
  if (!ok || status < 100) return bad(e, "an HTTP/1 status line is wanted, found", s, n);
  h->status = status;
  h->keep_alive = s[7] == '1';
  return 0;
}

static bool is_name(const char *s, size_t n, const char *name) { return n == strlen(name) && strncasecmp(s, name, n) == 0; }

/* Whether a comma-separated list has the word. */
static bool has_word(const char *s, size_t n, const char *word) {
  size_t len = strlen(word);
  for (size_t i = 0; i + len <= n; i++) {
    bool begins = i == 0 || s[i - 1] == ' ' || s[i - 1] == ',' || s[i - 1] == '\t';
    bool ends = i + len == n || s[i + len] == ' ' || s[i + len] == ',' || s[i + len] == '\t' || s[i + len] == ';';
    if (begins && ends && strncasecmp(s + i, word, len) == 0) return true;
  }
  return false;
}

static int length_of(sh_bhttp *h, const char *v, size_t n, sh_error *e) {
  int64_t len = 0;
  bool ok = n > 0 && n <= 18;
  for (size_t i = 0; ok && i < n; i++) {
    ok = v[i] >= '0' && v[i] <= '9';
    len = len * 10 + (v[i] - '0');
  }
  if (!ok || (h->private_left >= 0 && h->private_left != len)) return bad(e, "the response's Content-Length is no length", v, n);
  h->private_left = len;
  return 0;
}

static int header(sh_bhttp *h, const char *s, size_t n, sh_error *e) {
  const char *colon = memchr(s, ':', n);
  if (!colon || colon == s) return bad(e, "a response header is wanted, found", s, n);
  size_t name = (size_t)(colon - s);
  const char *v = colon + 1, *end = s + n;
  while (v < end && (*v == ' ' || *v == '\t')) v++;
  while (end > v && (end[-1] == ' ' || end[-1] == '\t')) end--;
  size_t len = (size_t)(end - v);
  if (is_name(s, name, "content-length")) return length_of(h, v, len, e);
  if (is_name(s, name, "transfer-encoding")) {
    if (!is_name(v, len, "chunked")) return bad(e, "the response's Transfer-Encoding is not chunked", v, len);
    h->private_chunked = true;
  } else if (is_name(s, name, "connection")) {
    if (has_word(v, len, "close")) h->keep_alive = false;
    else if (has_word(v, len, "keep-alive")) h->keep_alive = true;
  }
  return 0;
}

/* A complete head, with its blank line. */
static int read_head(sh_bhttp *h, const char *p, size_t n, sh_error *e) {
  bool first = true;
  for (size_t at = 0; at < n;) {
    const char *line = p + at, *nl = memchr(line, '\n', n - at);
    size_t len = nl ? (size_t)(nl - line) : n - at;
    at += len + 1;
    if (len && line[len - 1] == '\r') len--;
    if (first && len == 0) continue; /* an empty line before the status line is let through, as servers do for requests */
    int rc = first ? status_line(h, line, len, e) : len ? header(h, line, len, e) : 0;
    if (rc < 0) return rc;
    first = false;
  }
  if (first) return sh_fail(e, SH_ERR_FORMAT, "an HTTP/1 status line is wanted, found only empty lines");
  if (h->private_chunked) h->private_left = -1;
  bool no_body = h->status == 204 || h->status == 304;
  h->private_to_end = !no_body && !h->private_chunked && h->private_left < 0;
  h->over = no_body || h->private_left == 0;
  if (h->private_to_end) h->keep_alive = false;
  return 0;
}

/* Takes bytes until the head is complete; *used of them. A head of 1xx is thrown away. */
static int feed_head(sh_bhttp *h, const char *p, size_t n, size_t *used, sh_error *e) {
  sh_buf *b = &h->private_head;
  size_t before = b->len, room = MAX_HEAD - before, take = n < room ? n : room;
  if (take == 0) return sh_fail(e, SH_ERR_LIMIT, "a response head is longer than %d bytes", MAX_HEAD);
  if (sh_buf_put(b, p, take) < 0) return sh_fail(e, b->failed, "out of memory");
  size_t len = sh_http_head_length(b->p, b->len, &h->private_from);
  *used = take;
  if (!len) {
    if (b->len >= 5 && memcmp(b->p, "HTTP/", 5) != 0 && b->p[0] != '\r' && b->p[0] != '\n')
      return bad(e, "an HTTP/1 status line is wanted, found", b->p, strcspn(b->p, "\r\n"));
    return 0;
  }
  *used = len > before ? len - before : 0;
  int rc = read_head(h, b->p, len, e);
  if (rc == 0 && h->status < 200) sh_bhttp_init(h);
  return rc;
}

static int feed_chunks(sh_bhttp *h, const char *p, size_t n, sh_bhttp_body body, void *ctx, sh_error *e) {
  while (n > 0 && !h->over) {
    size_t used = 0, len = 0;
    const char *data = NULL;
    int what = sh_chunked_feed(&h->private_chunks, p, n, &used, &data, &len);
    if (what == SH_CHUNKED_BAD) return bad(e, "the chunked body is malformed at", p, used);
    if (what == SH_CHUNKED_END) h->over = true;
    int rc = what == SH_CHUNKED_DATA ? body(ctx, data, len, e) : 0;
    if (rc < 0) return rc;
    p += used;
    n -= used;
  }
  if (n > 0) h->keep_alive = false;
  return 0;
}

int sh_bhttp_feed(sh_bhttp *h, const char *p, size_t n, sh_bhttp_body body, void *ctx, sh_error *e) {
  while (n > 0 && h->status == 0) {
    size_t used = 0;
    int rc = feed_head(h, p, n, &used, e);
    if (rc < 0) return rc;
    p += used;
    n -= used;
  }
  if (n == 0) return 0;
  if (h->over) {
    h->keep_alive = false;
    return 0;
  }
  if (h->private_chunked) return feed_chunks(h, p, n, body, ctx, e);
  if (h->private_to_end) return body(ctx, p, n, e);
  size_t take = n < (size_t)h->private_left ? n : (size_t)h->private_left;
  h->private_left -= (int64_t)take;
  h->over = h->private_left == 0;
  if (take < n) h->keep_alive = false;
  return body(ctx, p, take, e);
}

int sh_bhttp_eof(sh_bhttp *h, sh_error *e) {
  h->keep_alive = false;
  if (h->status && h->private_to_end) h->over = true;
  if (h->over) return 0;
  return sh_fail(e, SH_ERR_IO, "the server closed the connection %s",
                 h->status             ? "in the middle of the answer"
                 : h->private_head.len ? "in the middle of the response head"
                                       : "without an answer");
}

/* ---- Server-sent events ---- */

void sh_bsse_init(sh_bsse *s) {
  sh_buf line = s->private_line, data = s->private_data;
  if (line.max == 0) sh_buf_init(&line, MAX_EVENT);
  if (data.max == 0) sh_buf_init(&data, MAX_EVENT);
  sh_buf_reset(&line);
  sh_buf_reset(&data);
  *s = (sh_bsse){.private_line = line, .private_data = data};
}

void sh_bsse_free(sh_bsse *s) {
  sh_buf_free(&s->private_line);
  sh_buf_free(&s->private_data);
}

/* One line without its end. */
static int sse_line(sh_bsse *s, const char *p, size_t n, sh_bsse_fn fn, void *ctx, sh_error *e) {
  sh_buf *data = &s->private_data;
  if (n == 0) {
    bool any = s->private_has_data;
    s->private_has_data = false;
    int rc = any ? fn(ctx, data->p ? data->p : "", data->len, e) : 0;
    sh_buf_reset(data);
    return rc;
  }
  if (p[0] == ':') return 0;
  const char *colon = memchr(p, ':', n);
  size_t name = colon ? (size_t)(colon - p) : n;
  if (name == 4 && memcmp(p, "data", 4) == 0) {
    const char *v = colon ? colon + 1 : p + n;
    if (v < p + n && *v == ' ') v++;
    if (s->private_has_data) sh_buf_putc(data, '\n');
    s->private_has_data = true;
    if (sh_buf_put(data, v, (size_t)(p + n - v)) < 0) return sh_fail(e, data->failed, "an event is longer than %d bytes", MAX_EVENT);
    return 0;
  }
  if ((name == 5 && memcmp(p, "event", 5) == 0) || (name == 2 && memcmp(p, "id", 2) == 0) || (name == 5 && memcmp(p, "retry", 5) == 0))
    return 0;
  return bad(e, "a line \"data: ...\" of an event stream is wanted, found", p, n);
}

int sh_bsse_feed(sh_bsse *s, const char *p, size_t n, sh_bsse_fn fn, void *ctx, sh_error *e) {
  sh_buf *line = &s->private_line;
  size_t at = 0;
  int rc = 0;
  if (n > 0 && s->private_after_cr && p[0] == '\n') at = 1; /* the second half of a \r\n */
  if (n > 0) s->private_after_cr = false;
  while (rc == 0 && at < n) {
    size_t end = at;
    while (end < n && p[end] != '\n' && p[end] != '\r') end++;
    if (end == n || line->len > 0) {
      if (sh_buf_put(line, p + at, end - at) < 0) return sh_fail(e, line->failed, "a line of an event is longer than %d bytes", MAX_EVENT);
      if (end == n) return 0;
      rc = sse_line(s, line->p, line->len, fn, ctx, e);
      sh_buf_reset(line);
    } else {
      rc = sse_line(s, p + at, end - at, fn, ctx, e);
    }
    bool cr = p[end] == '\r';
    at = end + 1;
    if (cr && at < n && p[at] == '\n') at++;
    else if (cr && at == n) s->private_after_cr = true;
  }
  return rc;
}

/* ---- Events ---- */

static bool has_text(const sh_json *v) { return sh_json_is(v, SH_JSON_STRING) && v->len > 0; }

static void read_choice(sh_bevent *out, const sh_json *c) {
  static const char *const parts[] = {"content", "reasoning_content", "reasoning", "refusal"};
  const sh_json *delta = sh_json_get(c, "delta"), *calls = sh_json_get(delta, "tool_calls");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) out->text |= has_text(sh_json_get(delta, parts[i]));
  out->text |= has_text(sh_json_get(c, "text")) || (sh_json_is(calls, SH_JSON_ARRAY) && calls->len > 0);
  out->finish |= has_text(sh_json_get(c, "finish_reason"));
}

static int64_t count(const sh_json *v) {
  int64_t n;
  return sh_json_int(v, &n) == 0 && n >= 0 && n < INT64_C(1) << 40 ? n : -1;
}

static void read_error(sh_bevent *out, const sh_json *v, const char *data, size_t n, sh_error *e) {
  char quote[200];
  const sh_json *message = sh_json_is(v, SH_JSON_OBJECT) ? sh_json_get(v, "message") : v;
  if (has_text(message)) sh_bquote(quote, message->s, message->len);
  else sh_bquote(quote, data, n);
  out->failed = true;
  sh_fail(e, SH_ERR_IO, "the server broke off with an error: %s", quote);
}

int sh_bevent_read(sh_bevent *out, const char *data, size_t n, sh_error *e) {
  *out = (sh_bevent){.prompt_tokens = -1, .completion_tokens = -1, .cached_tokens = -1};
  if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
    out->done = true;
    return 0;
  }
  sh_arena *a = sh_arena_new(EVENT_ARENA);
  sh_json *v = NULL;
  if (!a) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = sh_json_parse(data, n, NULL, a, &v, NULL);
  if (rc == SH_ERR_NOMEM) {
    sh_arena_free(a);
    return sh_fail(e, rc, "out of memory");
  }
  if (rc < 0 || !sh_json_is(v, SH_JSON_OBJECT)) {
    sh_arena_free(a);
    return bad(e, "an event's data is no JSON object", data, n);
  }
  const sh_json *error = sh_json_get(v, "error"), *choices = sh_json_get(v, "choices"), *usage = sh_json_get(v, "usage");
  if (error && error->type != SH_JSON_NULL) read_error(out, error, data, n, e);
  for (size_t i = 0; sh_json_is(choices, SH_JSON_ARRAY) && i < choices->len; i++) read_choice(out, &choices->items[i]);
  out->prompt_tokens = count(sh_json_get(usage, "prompt_tokens"));
  out->completion_tokens = count(sh_json_get(usage, "completion_tokens"));
  out->cached_tokens = count(sh_json_path(usage, "prompt_tokens_details.cached_tokens"));
  sh_arena_free(a);
  return 0;
}
