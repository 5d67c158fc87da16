/* HTTP transfers for `sheng pull`, over libcurl's multi interface. One thread, no locks: callbacks run inside sh_fetch_poll.
 *
 * Redirects are followed here and not by libcurl, for two reasons. A hub answers a file's address with a signed address at a storage host:
 * that address is kept by the caller for the other parts of the file, and the hub's token must not travel along (libcurl drops an
 * Authorization header for another host only since 7.58, and a cookie by other rules). And a redirect from https to plain http is refused.
 *
 * HTTP/1.1 is asked for: with HTTP/2 the parts of a file would share one connection, and several connections are what parts are for.
 * Proxies come from the usual variables (https_proxy, http_proxy, all_proxy, no_proxy), which libcurl reads itself. Refused: a thread per
 * transfer (locks around journals and progress for no gain: the network is the slow side), and libcurl's own time limit for a whole
 * transfer (a weights file may take hours; a stall is what must end it). */
#include "ops/fetch.h"

#include "base/pool.h"
#include "base/text.h"
#include "sheng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_HOPS = 8, MAX_ERROR_BODY = 4096, STALL_BYTES_PER_S = 256, MAX_CONNECT_S = 30 };

struct sh_fetch {
  sh_fetch_config c;
  const sh_curl_api *curl;
  void *multi;
  int running;
};

/* --- URLs ----------------------------------------------------------------------------------------------------------------------------- */

typedef struct origin {
  bool tls;
  const char *host; /* borrowed */
  size_t host_len;
  long port;
} origin;

static bool parse_origin(const char *url, origin *o) {
  if (strncasecmp(url, "https://", 8) == 0) *o = (origin){.tls = true, .host = url + 8, .port = 443};
  else if (strncasecmp(url, "http://", 7) == 0) *o = (origin){.host = url + 7, .port = 80};
  else return false;
  size_t n = strcspn(o->host, "/?#");
  for (size_t i = 0; i < n; i++) {
    char c = o->host[i];
    if (c <= ' ' || c == 0x7f || c == '@' || c == '\\' || c == '%') return false;
  }
  const char *colon = memrchr(o->host, ':', n);
  if (colon && memchr(colon, ']', (size_t)(o->host + n - colon))) colon = NULL; /* inside [::1] */
  o->host_len = colon ? (size_t)(colon - o->host) : n;
  if (colon) {
    char digits[8] = "", *end;
    size_t d = (size_t)(o->host + n - colon - 1);
    if (d == 0 || d >= sizeof digits) return false;
    memcpy(digits, colon + 1, d);
    o->port = strtol(digits, &end, 10);
    if (*end || digits[0] < '0' || digits[0] > '9' || o->port > 65535) return false;
  }
  return o->host_len > 0;
}

bool sh_url_same_origin(const char *a, const char *b) {
  origin x, y;
  return parse_origin(a, &x) && parse_origin(b, &y) && x.tls == y.tls && x.port == y.port && x.host_len == y.host_len &&
         strncasecmp(x.host, y.host, x.host_len) == 0;
}

int sh_url_escape(sh_buf *out, const char *s, const char *keep) {
  for (; *s; s++) {
    unsigned char c = (unsigned char)*s;
    bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("-._~", c) || strchr(keep, c);
    if (plain) sh_buf_putc(out, (char)c);
    else sh_buf_printf(out, "%%%02X", c);
  }
  return out->failed;
}

/* --- Headers -------------------------------------------------------------------------------------------------------------------------- */

static void copy_text(char *out, size_t cap, const char *s, size_t n) {
  if (n >= cap) n = cap - 1;
  n -= sh_utf8_incomplete_tail(s, n);
  size_t to = 0;
  for (size_t i = 0; i < n; i++) out[to++] = (unsigned char)s[i] < ' ' || s[i] == 0x7f ? ' ' : s[i];
  out[to] = 0;
  if (!sh_utf8_valid(out, to)) out[0] = 0;
}

static bool header_is(const char *line, size_t n, const char *name, const char **value, size_t *len) {
  size_t k = strlen(name);
  if (n <= k || strncasecmp(line, name, k) != 0 || line[k] != ':') return false;
  line += k + 1;
  n -= k + 1;
  while (n && (*line == ' ' || *line == '\t')) line++, n--;
  while (n && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' ')) n--;
  *value = line;
  *len = n;
  return true;
}

/* Digits s[0..n) to a number, -1 when there is none; *used counts them. */
static int64_t digits(const char *s, size_t n, size_t *used) {
  int64_t v = 0;
  size_t i = 0;
  for (; i < n && s[i] >= '0' && s[i] <= '9'; i++) {
    if (v > (INT64_MAX - 9) / 10) return -1;
    v = v * 10 + (s[i] - '0');
  }
  *used = i;
  return i ? v : -1;
}

static int64_t whole_number(const char *s, size_t n) {
  size_t used;
  int64_t v = digits(s, n, &used);
  return v >= 0 && used == n ? v : -1;
}

/* "bytes 0-99/1000" or "bytes 0-99/" followed by a star */
static void read_content_range(sh_xfer *x, const char *s, size_t n) {
  size_t used;
  if (n < 6 || strncasecmp(s, "bytes ", 6) != 0) return;
  s += 6;
  n -= 6;
  int64_t from = digits(s, n, &used);
  if (from < 0 || used >= n || s[used] != '-') return;
  const char *slash = memchr(s, '/', n);
  if (!slash) return;
  x->range_from = from;
  x->range_total = whole_number(slash + 1, (size_t)(s + n - slash - 1));
}

static int64_t retry_after(const char *s, size_t n) {
  int64_t v = whole_number(s, n);
  char text[64];
  struct tm tm = {0};
  if (v >= 0 || n >= sizeof text) return v;
  memcpy(text, s, n);
  text[n] = 0;
  if (!strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm)) return -1;
  v = (int64_t)timegm(&tm) - sh_unix_time();
  return v > 0 ? v : 0;
}

/* <https://...>; rel="next" */
static void read_link(sh_xfer *x, const char *s, size_t n) {
  const char *lt = memchr(s, '<', n), *gt = lt ? memchr(lt, '>', (size_t)(s + n - lt)) : NULL;
  if (!gt || !memmem(gt, (size_t)(s + n - gt), "rel=\"next\"", 10)) return;
  sh_free(x->next_url);
  x->next_url = sh_strndup(lt + 1, (size_t)(gt - lt - 1));
}

static void forget_answer(sh_xfer *x) {
  x->status = 0;
  x->length = x->range_from = x->range_total = x->retry_after_s = -1;
  x->etag[0] = x->error_code[0] = x->message[0] = 0;
  sh_free(x->next_url);
  x->next_url = NULL;
  sh_buf_reset(&x->private_body);
}

static size_t on_header(char *p, size_t size, size_t count, void *ctx) {
  sh_xfer *x = ctx;
  size_t n = size * count, len, used;
  const char *v;
  if (n > 5 && strncasecmp(p, "HTTP/", 5) == 0) forget_answer(x); /* of a 100 or a proxy before the real one */
  else if (header_is(p, n, "Content-Length", &v, &len)) x->length = whole_number(v, len);
  else if (header_is(p, n, "Content-Range", &v, &len)) read_content_range(x, v, len);
  else if (header_is(p, n, "Retry-After", &v, &len)) x->retry_after_s = retry_after(v, len);
  else if (header_is(p, n, "X-Error-Code", &v, &len)) copy_text(x->error_code, sizeof x->error_code, v, len);
  else if (header_is(p, n, "X-Error-Message", &v, &len)) copy_text(x->message, sizeof x->message, v, len);
  else if (header_is(p, n, "Link", &v, &len)) read_link(x, v, len);
  else if (header_is(p, n, "ETag", &v, &len)) {
    if (len > 2 && strncmp(v, "W/", 2) == 0) v += 2, len -= 2;
    if (len > 1 && v[0] == '"' && v[len - 1] == '"') v++, len -= 2;
    copy_text(x->etag, sizeof x->etag, v, len);
  } else if (header_is(p, n, "RateLimit", &v, &len) && x->retry_after_s < 0) {
    const char *none = memmem(v, len, ";r=0;", 5), *t = memmem(v, len, ";t=", 3); /* "api";r=0;t=55: none left for 55 s */
    if (none && t) x->retry_after_s = digits(t + 3, (size_t)(v + len - t - 3), &used);
  }
  return n;
}

/* --- One transfer --------------------------------------------------------------------------------------------------------------------- */

static bool good(long status) { return status == 200 || status == 206; }

static int begin_body(sh_xfer *x) {
  if (x->private_headed) return 0;
  x->private_headed = true;
  return x->head ? x->head(x) : 0;
}

static size_t on_body(char *p, size_t size, size_t count, void *ctx) {
  sh_xfer *x = ctx;
  size_t n = size * count;
  x->private_fetch->curl->easy_getinfo(x->private_easy, SH_CURL_INFO_RESPONSE_CODE, &x->status);
  if (!good(x->status)) {
    size_t room = MAX_ERROR_BODY - x->private_body.len;
    sh_buf_put(&x->private_body, p, n < room ? n : room);
    return n;
  }
  if (begin_body(x) == 0 && x->data(x, p, n) == 0) return n;
  x->private_aborted = true;
  return 0;
}

static int add_header(sh_xfer *x, const char *name, const char *value) {
  const sh_curl_api *curl = x->private_fetch->curl;
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  sh_buf_printf(&b, "%s%s", name, value);
  void *list = b.failed ? NULL : curl->slist_append(x->private_headers, b.p);
  sh_buf_free(&b);
  if (!list) return SH_ERR_NOMEM;
  x->private_headers = list;
  return SH_OK;
}

/* Puts the request for x->url into the handle. */
static int set_up(sh_fetch *f, sh_xfer *x) {
  const sh_curl_api *curl = f->curl;
  void *h = x->private_easy;
  char range[64];
  curl->easy_reset(h);
  curl->slist_free_all(x->private_headers);
  x->private_headers = NULL;
  x->private_headed = x->private_aborted = false;
  x->private_note[0] = 0;
  forget_answer(x);
  int rc = add_header(x, "Accept-Encoding: ", "identity"); /* lengths and ranges are those of the file itself */
  if (rc == SH_OK && f->c.token && sh_url_same_origin(x->url, f->c.endpoint)) {
    rc = add_header(x, "Authorization: Bearer ", f->c.token);
    if (rc == SH_OK && f->c.session_cookie) rc = add_header(x, "Cookie: m_session_id=", f->c.token);
  }
  if (rc != SH_OK) return rc;
  long connect_s = f->c.stall_s < MAX_CONNECT_S ? f->c.stall_s : MAX_CONNECT_S;
  curl->easy_setopt(h, SH_CURL_OPT_NOSIGNAL, 1L);
  curl->easy_setopt(h, SH_CURL_OPT_FOLLOWLOCATION, 0L);
  curl->easy_setopt(h, SH_CURL_OPT_PROTOCOLS, (long)SH_CURL_PROTO_HTTP_HTTPS);
  curl->easy_setopt(h, SH_CURL_OPT_HTTP_VERSION, (long)SH_CURL_HTTP_1_1);
  curl->easy_setopt(h, SH_CURL_OPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl->easy_setopt(h, SH_CURL_OPT_CONNECTTIMEOUT, connect_s);
  curl->easy_setopt(h, SH_CURL_OPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_PER_S);
  curl->easy_setopt(h, SH_CURL_OPT_LOW_SPEED_TIME, (long)f->c.stall_s);
  curl->easy_setopt(h, SH_CURL_OPT_USERAGENT, "sheng/" SHENG_VERSION);
  curl->easy_setopt(h, SH_CURL_OPT_HTTPHEADER, x->private_headers);
  curl->easy_setopt(h, SH_CURL_OPT_ERRORBUFFER, x->private_note);
  curl->easy_setopt(h, SH_CURL_OPT_HEADERFUNCTION, on_header);
  curl->easy_setopt(h, SH_CURL_OPT_HEADERDATA, (void *)x);
  curl->easy_setopt(h, SH_CURL_OPT_WRITEFUNCTION, on_body);
  curl->easy_setopt(h, SH_CURL_OPT_WRITEDATA, (void *)x);
  curl->easy_setopt(h, SH_CURL_OPT_PRIVATE, (void *)x);
  if (f->c.ca_file) curl->easy_setopt(h, SH_CURL_OPT_CAINFO, f->c.ca_file);
  if (x->to > 0) {
    snprintf(range, sizeof range, "%lld-%lld", (long long)x->from, (long long)x->to - 1);
    curl->easy_setopt(h, SH_CURL_OPT_RANGE, range); /* copied */
  }
  return curl->easy_setopt(h, SH_CURL_OPT_URL, x->url) == SH_CURL_OK ? SH_OK : SH_ERR_NOMEM;
}

int sh_fetch_start(sh_fetch *f, sh_xfer *x, const char *url, sh_error *e) {
  x->private_fetch = f;
  x->private_hops = 0;
  x->redirected = false;
  sh_buf_init(&x->private_body, MAX_ERROR_BODY);
  if (!(x->url = sh_strdup(url)) || !(x->private_easy = f->curl->easy_init()) || set_up(f, x) != SH_OK ||
      f->curl->multi_add_handle(f->multi, x->private_easy) != 0) {
    sh_xfer_stop(x);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for a request");
  }
  f->running++;
  return SH_OK;
}

void sh_xfer_stop(sh_xfer *x) {
  if (x->private_easy) {
    const sh_curl_api *curl = x->private_fetch->curl;
    curl->multi_remove_handle(x->private_fetch->multi, x->private_easy); /* of one that is not in it: does nothing */
    curl->easy_cleanup(x->private_easy);
    curl->slist_free_all(x->private_headers);
  }
  sh_free(x->url);
  sh_free(x->next_url);
  sh_buf_free(&x->private_body);
  *x = (sh_xfer){0};
}

/* --- The end of a transfer ------------------------------------------------------------------------------------------------------------ */

/* An address without its query, which may be a signature that is as good as a token. */
static const char *shown(const char *url, char out[200]) {
  size_t n = strcspn(url, "?#");
  copy_text(out, 200, url, n);
  return out;
}

static sh_xfer_end finish(sh_xfer *x, sh_xfer_end end, int code, const char *what, const char *detail) {
  sh_fail(&x->error, code, "%s%s%s", what, detail[0] ? ": " : "", detail);
  return end;
}

/* Follows a redirect: true when the transfer goes on. */
static bool follow(sh_fetch *f, sh_xfer *x) {
  const char *to = NULL;
  char text[200];
  f->curl->easy_getinfo(x->private_easy, SH_CURL_INFO_REDIRECT_URL, &to);
  origin was, will;
  if (!to || !*to) x->end = finish(x, SH_XFER_FAILED, SH_ERR_FORMAT, "a redirect without an address", "");
  else if (++x->private_hops > MAX_HOPS)
    x->end = finish(x, SH_XFER_FAILED, SH_ERR_LIMIT, "more than 8 redirects in a row, last to", shown(to, text));
  else if (!parse_origin(to, &will) || !parse_origin(x->url, &was))
    x->end = finish(x, SH_XFER_FAILED, SH_ERR_FORMAT, "a redirect to an address that is not plain http or https", shown(to, text));
  else if (was.tls && !will.tls)
    x->end = finish(x, SH_XFER_FAILED, SH_ERR_FORMAT, "a redirect from https to unprotected http is not followed", shown(to, text));
  else {
    char *url = sh_strdup(to); /* `to` belongs to the handle */
    if (url) {
      sh_free(x->url);
      x->url = url;
      x->redirected = true;
      if (set_up(f, x) == SH_OK && f->curl->multi_add_handle(f->multi, x->private_easy) == 0) return true;
    }
    x->end = finish(x, SH_XFER_FAILED, SH_ERR_NOMEM, "out of memory", "");
  }
  return false;
}

/* The server's own words from an error's body: {"error": "..."} (Hugging Face), {"Message"} (ModelScope), {"msg"} (Modelers). */
static void read_message(sh_xfer *x) {
  static const char *const keys[] = {"\"error\":", "\"Message\":", "\"msg\":", "\"message\":"};
  if (x->message[0] || !x->private_body.len) return;
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    const char *at = strstr(x->private_body.p, keys[i]);
    if (!at) continue;
    at += strlen(keys[i]);
    at += strspn(at, " ");
    const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
    if (!end) continue;
    copy_text(x->message, sizeof x->message, at + 1, (size_t)(end - at - 1));
    return;
  }
}

static bool is_passing(long status) { return status == 408 || status == 425 || status == 429 || status >= 500; }

static sh_xfer_end end_by_status(sh_fetch *f, sh_xfer *x) {
  if (good(x->status)) {
    if (begin_body(x) == 0) return SH_XFER_OK; /* of an empty body */
    return SH_XFER_ABORTED;
  }
  char what[64];
  read_message(x);
  snprintf(what, sizeof what, "the server answered %ld", x->status);
  if (!is_passing(x->status)) return finish(x, SH_XFER_REFUSED, SH_ERR_IO, what, x->message);
  if (x->retry_after_s > SH_FETCH_MAX_WAIT_S) {
    sh_fail(&x->error, SH_ERR_BUSY, "%s and asks to come back in %lld seconds; run the same command again then", what,
            (long long)x->retry_after_s);
    return SH_XFER_FAILED;
  }
  (void)f;
  return finish(x, SH_XFER_RETRY, SH_ERR_BUSY, what, x->message);
}

static sh_xfer_end end_by_curl(sh_fetch *f, sh_xfer *x, int result) {
  const char *note = x->private_note[0] ? x->private_note : f->curl->easy_strerror(result);
  char what[96], text[200];
  switch (result) {
  case SH_CURL_UNSUPPORTED_PROTOCOL:
  case SH_CURL_URL_MALFORMAT: return finish(x, SH_XFER_FAILED, SH_ERR_ARG, "not an address that can be fetched", shown(x->url, text));
  case SH_CURL_SSL_CERTPROBLEM:
  case SH_CURL_SSL_CIPHER:
  case SH_CURL_PEER_VERIFICATION:
  case SH_CURL_CACERT_BADFILE:
  case SH_CURL_SSL_ISSUER:
    return finish(x, SH_XFER_FAILED, SH_ERR_IO,
                  "the server's certificate is not trusted (a proxy that inspects TLS needs its own: --ca-file or CURL_CA_BUNDLE)", note);
  case SH_CURL_NO_MEMORY: return finish(x, SH_XFER_FAILED, SH_ERR_NOMEM, "out of memory", "");
  case SH_CURL_TIMEDOUT:
    snprintf(what, sizeof what, "nothing came for %d seconds", f->c.stall_s);
    return finish(x, SH_XFER_RETRY, SH_ERR_IO, what, note);
  default: return finish(x, SH_XFER_RETRY, SH_ERR_IO, "the connection failed", note);
  }
}

/* One message of libcurl: the transfer it ends, or NULL when that goes on after a redirect. */
static sh_xfer *take_message(sh_fetch *f, void *easy, int result) {
  void *p = NULL;
  f->curl->easy_getinfo(easy, SH_CURL_INFO_PRIVATE, &p);
  sh_xfer *x = p;
  f->curl->multi_remove_handle(f->multi, easy);
  f->curl->easy_getinfo(easy, SH_CURL_INFO_RESPONSE_CODE, &x->status);
  bool redirect = x->status == 301 || x->status == 302 || x->status == 303 || x->status == 307 || x->status == 308;
  if (x->private_aborted) x->end = SH_XFER_ABORTED;
  else if (result != SH_CURL_OK) x->end = end_by_curl(f, x, result);
  else if (!redirect) x->end = end_by_status(f, x);
  else if (follow(f, x)) return NULL;
  return x;
}

static sh_xfer *next_ended(sh_fetch *f) {
  int left;
  sh_curl_msg *m;
  while ((m = f->curl->multi_info_read(f->multi, &left))) {
    sh_xfer *x = m->msg == SH_CURL_MSG_DONE ? take_message(f, m->easy, m->data.result) : NULL;
    if (x) return x;
  }
  return NULL;
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL); }

sh_xfer *sh_fetch_poll(sh_fetch *f, int ms) {
  sh_xfer *x = next_ended(f);
  if (x) return x;
  f->curl->multi_perform(f->multi, &f->running);
  if ((x = next_ended(f))) return x;
  if (f->running == 0) {
    sleep_ms(ms);
    return NULL;
  }
  int64_t start = sh_now_ns();
  int ready = 0;
  f->curl->multi_wait(f->multi, NULL, 0, ms, &ready);
  if (ready == 0 && ms >= 10 && sh_now_ns() - start < 1000000) sleep_ms(10); /* nothing to wait on yet: a name is being resolved */
  f->curl->multi_perform(f->multi, &f->running);
  return next_ended(f);
}

int sh_fetch_open(sh_fetch **out, const sh_fetch_config *c, sh_error *e) {
  *out = NULL;
  const sh_curl_api *curl;
  int rc = sh_curl_load(c->libcurl, &curl, e);
  if (rc != SH_OK) return rc;
  sh_fetch *f = sh_calloc(1, sizeof *f);
  if (!f || !(f->multi = curl->multi_init())) {
    sh_free(f);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  f->c = *c;
  f->curl = curl;
  *out = f;
  return SH_OK;
}

void sh_fetch_close(sh_fetch *f) {
  if (!f) return;
  f->curl->multi_cleanup(f->multi);
  sh_free(f);
}

/* --- Whole texts ---------------------------------------------------------------------------------------------------------------------- */

int64_t sh_fetch_backoff_ms(int attempt, int64_t retry_after_s) {
  int64_t ms = 500;
  for (int i = 1; i < attempt && ms < 30000; i++) ms *= 2;
  if (ms > 30000) ms = 30000;
  if (retry_after_s * 1000 > ms) ms = retry_after_s * 1000;
  return ms + (int64_t)((uint64_t)sh_now_ns() / 1000 % (uint64_t)(ms / 4 + 1));
}

static bool stopped(const sh_fetch *f) { return f->c.stop && *f->c.stop; }

static int take_text(sh_xfer *x, const char *p, size_t n) {
  sh_buf *body = x->ctx;
  int rc = sh_buf_put(body, p, n);
  return rc == SH_OK ? 0 : sh_fail(&x->error, rc, "the answer is larger than %zu bytes", body->max);
}

static int drop_text(sh_xfer *x) {
  sh_buf_reset(x->ctx);
  return 0;
}

static int text_once(sh_fetch *f, const char *url, sh_buf *body, sh_xfer *x, sh_error *e) {
  *x = (sh_xfer){.head = drop_text, .data = take_text, .ctx = body};
  int rc = sh_fetch_start(f, x, url, e);
  while (rc == SH_OK && sh_fetch_poll(f, 100) != x)
    if (stopped(f)) rc = sh_fail(e, SH_ERR_CANCELLED, "interrupted");
  return rc;
}

int sh_fetch_text(sh_fetch *f, const char *url, sh_buf *body, sh_fetch_reply *reply, sh_error *e) {
  *reply = (sh_fetch_reply){0};
  for (int attempt = 1;; attempt++) {
    sh_xfer x;
    int rc = text_once(f, url, body, &x, e);
    if (rc != SH_OK) {
      sh_xfer_stop(&x);
      return rc;
    }
    bool again = x.end == SH_XFER_RETRY && attempt <= f->c.retries;
    int64_t wait = again ? sh_fetch_backoff_ms(attempt, x.retry_after_s) : 0;
    reply->status = x.status;
    reply->unreachable = x.end == SH_XFER_RETRY && x.status == 0;
    memcpy(reply->error_code, x.error_code, sizeof reply->error_code);
    memcpy(reply->message, x.message, sizeof reply->message);
    if (x.end == SH_XFER_OK) {
      reply->next_url = x.next_url;
      x.next_url = NULL;
    } else if (e) {
      *e = x.error;
    }
    rc = x.end == SH_XFER_OK ? SH_OK : x.error.code;
    sh_xfer_stop(&x);
    if (!again) return rc;
    if (f->c.note && e) f->c.note(e->text, (double)wait / 1000, attempt, f->c.retries);
    for (int64_t until = sh_now_ns() + wait * 1000000; sh_now_ns() < until && !stopped(f);) sleep_ms(50);
    if (stopped(f)) return sh_fail(e, SH_ERR_CANCELLED, "interrupted");
  }
}
