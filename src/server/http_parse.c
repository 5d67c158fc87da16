/* HTTP/1.1 message syntax.
 *
 * What is taken is RFC 9112 without its tolerances: whatever two parsers could read differently (folded header lines, a space before the
 * colon, two lengths, a length beside a transfer coding) is refused with 400, because a proxy in front of this server may have read it the
 * other way. The one tolerance kept is a bare LF as the end of a line, for people with nc.
 *
 * The head is parsed in place: names are lowered, lines are ended by NULs, and the views in sh_http_head live as long as the bytes. The
 * chunk decoder keeps a few counters and hands out ranges of its input, so a body is copied once, into the request. Pure functions; any
 * thread.
 *
 * Refused alternative: libevent's evhttp. It answers malformed and oversized requests with HTML, cannot be asked for the JSON error a
 * client of this API can read, does not look at the socket while a handler works, and buffers what a slow reader has not taken without
 * telling. */
#include "server/http_parse.h"
#include <string.h>

/* --- The head --- */

size_t sh_http_head_length(const char *p, size_t n, size_t *from) {
  size_t i = *from;
  while (i < n) {
    const char *nl = memchr(p + i, '\n', n - i);
    if (!nl) break;
    size_t k = (size_t)(nl - p) + 1;
    if (k < n && p[k] == '\n') return k + 1;
    if (k + 1 < n && p[k] == '\r' && p[k + 1] == '\n') return k + 2;
    if (k + 1 >= n) { /* the blank line may be half here: look at this line end again */
      *from = k - 1;
      return 0;
    }
    i = k;
  }
  *from = n;
  return 0;
}

static bool is_token(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex(int c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* Percent-decodes in place; false for a broken escape or a NUL. */
static bool decode_path(char *s) {
  char *o = s;
  for (; *s; s++) {
    if (*s != '%') {
      *o++ = *s;
      continue;
    }
    int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);
    if (lo < 0 || (hi == 0 && lo == 0)) return false;
    *o++ = (char)(hi * 16 + lo);
    s += 2;
  }
  *o = 0;
  return true;
}

static bool lower_equal(const char *a, const char *b) {
  for (; *a && *b; a++, b++) {
    char x = *a >= 'A' && *a <= 'Z' ? (char)(*a + 32) : *a;
    if (x != *b) return false;
  }
  return *a == *b;
}

/* Does a comma-separated header value hold this lower-case word? */
static bool has_word(const char *value, const char *word) {
  size_t n = strlen(word);
  while (*value) {
    while (*value == ' ' || *value == '\t' || *value == ',') value++;
    const char *end = value;
    while (*end && *end != ',') end++;
    const char *last = end;
    while (last > value && (last[-1] == ' ' || last[-1] == '\t')) last--;
    if ((size_t)(last - value) == n) {
      size_t i = 0;
      while (i < n && (value[i] | 0x20) == (word[i] | 0x20)) i++;
      if (i == n) return true;
    }
    value = end;
  }
  return false;
}

/* "METHOD SP target SP HTTP/1.x" */
static int parse_request_line(char *line, sh_http_head *h, const char **why) {
  char *sp = strchr(line, ' ');
  char *target = sp ? sp + 1 : NULL, *sp2 = target ? strchr(target, ' ') : NULL;
  *why = "the request line is not METHOD TARGET HTTP/1.1";
  if (!sp2 || sp == line || sp - line > 32) return 400;
  *sp = *sp2 = 0;
  for (const char *c = line; *c; c++)
    if (!is_token((unsigned char)*c)) return 400;
  const char *version = sp2 + 1;
  if (strncmp(version, "HTTP/", 5) != 0) return 400;
  if (strcmp(version, "HTTP/1.1") == 0) h->minor = 1;
  else if (strcmp(version, "HTTP/1.0") == 0) h->minor = 0;
  else {
    *why = "only HTTP/1.0 and HTTP/1.1 are spoken";
    return 505;
  }
  h->method = line;
  *why = "the request target is malformed";
  size_t scheme = strncmp(target, "http://", 7) == 0 ? 7 : strncmp(target, "https://", 8) == 0 ? 8 : 0;
  if (scheme) { /* absolute form, as sent to proxies */
    size_t host = strcspn(target + scheme, "/?#");
    if (host == 0) return 400;
    target += scheme + host;
  }
  if (target[0] != '/' && strcmp(target, "*") != 0) return 400;
  for (const char *c = target; *c; c++)
    if ((unsigned char)*c <= 0x20 || *c == 0x7f) return 400;
  char *q = strchr(target, '?');
  if (q) *q = 0;
  h->query = q ? q + 1 : "";
  if (!decode_path(target)) return 400;
  h->path = target;
  return 0;
}

static int parse_header_line(char *line, sh_http_head *h, const char **why) {
  char *colon = strchr(line, ':');
  *why = "a header line is malformed";
  if (!colon || colon == line) return 400;
  for (char *c = line; c < colon; c++) {
    if (!is_token((unsigned char)*c)) return 400; /* a blank before the colon or at the line's start (folding) as well */
    if (*c >= 'A' && *c <= 'Z') *c = (char)(*c + 32);
  }
  *colon = 0;
  char *v = colon + 1;
  while (*v == ' ' || *v == '\t') v++;
  char *end = v + strlen(v);
  while (end > v && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
  for (const char *c = v; *c; c++)
    if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f) return 400;
  if (h->n_headers == SH_HTTP_MAX_HEADERS) {
    *why = "there are more than 100 header lines";
    return 431;
  }
  h->headers[h->n_headers++] = (sh_http_header){line, v};
  return 0;
}

static int take_length(const char *v, sh_http_head *h, const char **why) {
  int64_t n = 0;
  *why = "Content-Length is not a number, or given twice";
  if (!*v) return 400;
  for (; *v; v++) {
    if (*v < '0' || *v > '9' || n > INT64_MAX / 10 - 1) return 400;
    n = n * 10 + (*v - '0');
  }
  if (h->content_length >= 0) return 400;
  h->content_length = n;
  return 0;
}

/* The headers that decide about the message itself. */
static int take_framing(sh_http_head *h, const char **why) {
  int hosts = 0, rc;
  h->content_length = -1;
  h->keep_alive = h->minor == 1;
  for (int i = 0; i < h->n_headers; i++) {
    const char *name = h->headers[i].name, *v = h->headers[i].value;
    if (!strcmp(name, "content-length")) {
      if ((rc = take_length(v, h, why)) != 0) return rc;
    } else if (!strcmp(name, "transfer-encoding")) {
      *why = "only Transfer-Encoding: chunked is known";
      if (!lower_equal(v, "chunked") || h->chunked || h->minor == 0) return 501;
      h->chunked = true;
    } else if (!strcmp(name, "connection")) {
      if (has_word(v, "close")) h->keep_alive = false;
      else if (h->minor == 0 && has_word(v, "keep-alive")) h->keep_alive = true;
    } else if (!strcmp(name, "expect")) {
      *why = "only Expect: 100-continue is known";
      if (!lower_equal(v, "100-continue")) return 417;
      h->expect_continue = h->minor == 1;
    } else if (!strcmp(name, "host")) {
      hosts++;
    }
  }
  *why = "Content-Length and Transfer-Encoding exclude each other";
  if (h->chunked && h->content_length >= 0) return 400;
  *why = "exactly one Host header is wanted";
  return h->minor == 1 && hosts != 1 ? 400 : 0;
}

int sh_http_head_parse(char *p, size_t n, sh_http_head *out, const char **why) {
  memset(out, 0, sizeof *out);
  *why = "the head holds a NUL byte";
  if (memchr(p, 0, n)) return 400;
  p[n] = 0;
  bool first = true;
  for (char *line = p; line < p + n;) {
    char *nl = memchr(line, '\n', (size_t)(p + n - line));
    char *next = nl ? nl + 1 : p + n;
    if (nl) {
      *nl = 0;
      if (nl > line && nl[-1] == '\r') nl[-1] = 0;
    }
    if (!*line) break;
    int rc = first ? parse_request_line(line, out, why) : parse_header_line(line, out, why);
    if (rc) return rc;
    first = false;
    line = next;
  }
  *why = "the request is empty";
  return first ? 400 : take_framing(out, why);
}

const char *sh_http_head_get(const sh_http_head *h, const char *lower_name) {
  for (int i = 0; i < h->n_headers; i++)
    if (!strcmp(h->headers[i].name, lower_name)) return h->headers[i].value;
  return NULL;
}

/* --- Chunked coding --- */

/* _CR: a CR was seen, nothing but LF may follow. IN_BLANKS: after the size, where only ";" may follow. */
enum {
  IN_SIZE,
  IN_BLANKS,
  IN_EXTENSION,
  IN_SIZE_CR,
  IN_DATA,
  IN_DATA_END,
  IN_DATA_CR,
  IN_TRAILER_START,
  IN_LAST_CR,
  IN_TRAILER,
  IN_TRAILER_CR,
  IS_OVER,
  IS_BAD
};
enum { MAX_EXTENSION = 4096, MAX_TRAILERS = 16384 }; /* bytes; nothing in them is of use here */

void sh_chunked_init(sh_chunked *c) { memset(c, 0, sizeof *c); }

static int after_size(const sh_chunked *c) { return c->private_left ? IN_DATA : IN_TRAILER_START; }

static int chunk_size_byte(sh_chunked *c, char ch) {
  int d = hex(ch);
  if (d >= 0) {
    if (++c->private_digits > 15) return IS_BAD;
    c->private_left = c->private_left * 16 + (uint64_t)d;
    return IN_SIZE;
  }
  if (!c->private_digits) return IS_BAD;
  if (ch == '\r') return IN_SIZE_CR;
  if (ch == '\n') return after_size(c);
  if (ch == ';') return IN_EXTENSION;
  return ch == ' ' || ch == '\t' ? IN_BLANKS : IS_BAD;
}

/* A byte that cannot stand inside a line. */
static bool is_control(char ch) { return ((unsigned char)ch < 0x20 && ch != '\t') || ch == 0x7f; }

/* One byte outside of data. */
static int chunk_byte(sh_chunked *c, char ch) {
  switch (c->private_state) {
  case IN_SIZE: return chunk_size_byte(c, ch);
  case IN_BLANKS:
    if (++c->private_line > MAX_EXTENSION) return IS_BAD;
    if (ch == ';') return IN_EXTENSION;
    return ch == ' ' || ch == '\t' ? IN_BLANKS : IS_BAD;
  case IN_EXTENSION:
    if (++c->private_line > MAX_EXTENSION) return IS_BAD;
    if (ch == '\r') return IN_SIZE_CR;
    if (ch == '\n') return after_size(c);
    return is_control(ch) ? IS_BAD : IN_EXTENSION;
  case IN_SIZE_CR: return ch == '\n' ? after_size(c) : IS_BAD;
  case IN_DATA_END:
    if (ch == '\r') return IN_DATA_CR;
    return ch == '\n' ? IN_SIZE : IS_BAD;
  case IN_DATA_CR: return ch == '\n' ? IN_SIZE : IS_BAD;
  case IN_TRAILER_START:
    if (ch == '\r') return IN_LAST_CR;
    if (ch == '\n') return IS_OVER;
    return is_control(ch) || ++c->private_trailer > MAX_TRAILERS ? IS_BAD : IN_TRAILER;
  case IN_LAST_CR: return ch == '\n' ? IS_OVER : IS_BAD;
  case IN_TRAILER:
    if (++c->private_trailer > MAX_TRAILERS) return IS_BAD;
    if (ch == '\r') return IN_TRAILER_CR;
    if (ch == '\n') return IN_TRAILER_START;
    return is_control(ch) ? IS_BAD : IN_TRAILER;
  case IN_TRAILER_CR: return ch == '\n' ? IN_TRAILER_START : IS_BAD;
  default: return IS_BAD;
  }
}

int sh_chunked_feed(sh_chunked *c, const char *p, size_t n, size_t *used, const char **data, size_t *len) {
  size_t i = 0;
  while (i < n && c->private_state < IS_OVER) {
    if (c->private_state == IN_DATA) {
      size_t take = n - i < c->private_left ? n - i : (size_t)c->private_left;
      c->private_left -= take;
      if (!c->private_left) {
        c->private_state = IN_DATA_END;
        c->private_line = c->private_digits = 0;
      }
      *data = p + i;
      *len = take;
      *used = i + take;
      return SH_CHUNKED_DATA;
    }
    c->private_state = chunk_byte(c, p[i++]);
  }
  *used = i;
  if (c->private_state == IS_BAD) return SH_CHUNKED_BAD;
  return c->private_state == IS_OVER ? SH_CHUNKED_END : SH_CHUNKED_MORE;
}

const char *sh_http_reason(int status) {
  static const struct {
    int status;
    const char *text;
  } table[] = {
      {100, "Continue"},
      {200, "OK"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].status == status) return table[i].text;
  return "Unknown";
}
