/* JSON writer: compact text into a buffer, commas put by the writer.
 *
 * Any thread; the state of the open containers is two bit sets in sh_jw (one bit a level: "nothing written yet", "is an object"), so a
 * writer lives on the stack and costs no allocation. Strings from a model may be cut anywhere, so invalid UTF-8 becomes U+FFFD here: what
 * leaves is always valid JSON. Misuse (a value without a key in an object, an end that matches no begin) marks the buffer failed with
 * SH_ERR_INTERNAL: a fault of this program, and still an error and no broken text. Refused: building a tree and printing it (a streamed
 * answer prints thousands of small objects). */
#include "base/json.h"

#include "base/err.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

void sh_jw_init(sh_jw *w, sh_buf *buf) { *w = (sh_jw){.buf = buf}; }

static void fail(sh_jw *w, int code) {
  if (!w->buf->failed) w->buf->failed = code;
}

static uint64_t level_bit(const sh_jw *w) { return UINT64_C(1) << (w->private_depth - 1); }

/* The comma between siblings. */
static void separate(sh_jw *w) {
  if (w->private_depth == 0) return;
  if (w->private_first & level_bit(w)) w->private_first &= ~level_bit(w);
  else sh_buf_putc(w->buf, ',');
}

/* What comes before any value: a comma in an array; in an object the key has put it. */
static void before_value(sh_jw *w) {
  bool in_object = w->private_depth > 0 && (w->private_obj & level_bit(w));
  if (in_object != w->private_key) fail(w, SH_ERR_INTERNAL);
  if (!in_object) separate(w);
  w->private_key = false;
}

static void begin(sh_jw *w, char bracket) {
  before_value(w);
  if (w->private_depth >= MAX_DEPTH) {
    fail(w, SH_ERR_LIMIT);
    return;
  }
  w->private_depth++;
  w->private_first |= level_bit(w);
  if (bracket == '{') w->private_obj |= level_bit(w);
  else w->private_obj &= ~level_bit(w);
  sh_buf_putc(w->buf, bracket);
}

static void end(sh_jw *w, char bracket) {
  bool object = bracket == '}';
  if (w->private_depth == 0 || w->private_key || ((w->private_obj & level_bit(w)) != 0) != object) {
    fail(w, SH_ERR_INTERNAL);
    return;
  }
  w->private_depth--;
  sh_buf_putc(w->buf, bracket);
}

void sh_jw_obj(sh_jw *w) { begin(w, '{'); }
void sh_jw_end_obj(sh_jw *w) { end(w, '}'); }
void sh_jw_arr(sh_jw *w) { begin(w, '['); }
void sh_jw_end_arr(sh_jw *w) { end(w, ']'); }

/* --- Scalars -------------------------------------------------------------------------------------------------------------------------- */

/* Readers of lines (Python's splitlines, JavaScript's) end one at these too: as escapes they cannot tear a line of JSON or an SSE event. */
static bool ends_line(uint32_t cp) { return cp == 0x85 || cp == 0x2028 || cp == 0x2029; }

static void put_escape(sh_buf *b, uint32_t c) {
  static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
  const char *at = c && c < 0x80 ? strchr(from, (int)c) : NULL;
  if (!at) {
    sh_buf_printf(b, "\\u%04x", (unsigned)c);
    return;
  }
  char pair[2] = {'\\', to[at - from]};
  sh_buf_put(b, pair, 2);
}

/* Quotes s[0..n): runs of plain bytes are copied at once. */
static void put_string(sh_buf *b, const char *s, size_t n) {
  sh_buf_putc(b, '"');
  size_t run = 0; /* start of the bytes not yet copied */
  for (size_t i = 0; i < n;) {
    unsigned char c = (unsigned char)s[i];
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
      i++;
      continue;
    }
    uint32_t cp;
    int used = sh_utf8_decode(s + i, n - i, &cp);
    if (used > 1 && !ends_line(cp)) {
      i += (size_t)used;
      continue;
    }
    sh_buf_put(b, s + run, i - run);
    if (used < 0) sh_buf_put(b, "\xEF\xBF\xBD", 3);
    else put_escape(b, cp);
    i += (size_t)(used < 0 ? -used : used);
    run = i;
  }
  sh_buf_put(b, s + run, n - run);
  sh_buf_putc(b, '"');
}

void sh_jw_key(sh_jw *w, const char *key) {
  if (w->private_depth == 0 || !(w->private_obj & level_bit(w)) || w->private_key) fail(w, SH_ERR_INTERNAL);
  separate(w);
  put_string(w->buf, key, strlen(key));
  sh_buf_putc(w->buf, ':');
  w->private_key = true;
}

void sh_jw_strn(sh_jw *w, const char *s, size_t n) {
  before_value(w);
  put_string(w->buf, s, n);
}

void sh_jw_str(sh_jw *w, const char *s) {
  if (s) sh_jw_strn(w, s, strlen(s));
  else sh_jw_null(w);
}

void sh_jw_int(sh_jw *w, int64_t v) {
  before_value(w);
  sh_buf_printf(w->buf, "%" PRId64, v);
}

/* A double carries 15 decimal digits exactly, so if any text of up to 15 digits reads back as v, %.15g is that text; else 16 or 17 digits
 * are needed. Subnormals carry fewer digits, and there every length is tried. */
void sh_jw_double(sh_jw *w, double v) {
  before_value(w);
  if (!isfinite(v)) {
    sh_buf_puts(w->buf, "null");
    return;
  }
  char text[40];
  double back;
  int digits = v != 0 && fabs(v) < 2.2250738585072014e-308 ? 1 : 15;
  do {
    snprintf(text, sizeof text, "%.*g", digits, v);
    for (char *c = text; *c; c++)
      if (!strchr("0123456789+-eE", *c)) *c = '.'; /* whatever the locale's decimal point is */
  } while (digits++ < 17 && (sh_parse_f64(text, &back) != 0 || back != v));
  sh_buf_puts(w->buf, text);
}

void sh_jw_bool(sh_jw *w, bool b) {
  before_value(w);
  sh_buf_puts(w->buf, b ? "true" : "false");
}

void sh_jw_null(sh_jw *w) {
  before_value(w);
  sh_buf_puts(w->buf, "null");
}

/* --- Trees and pairs ------------------------------------------------------------------------------------------------------------------ */

/* A recursion that MAX_DEPTH bounds: begin() fails the buffer at that level and the walk ends. */
void sh_jw_value(sh_jw *w, const sh_json *v) {
  if (w->buf->failed) return;
  if (!v) {
    sh_jw_null(w);
    return;
  }
  switch (v->type) {
  case SH_JSON_NULL: sh_jw_null(w); break;
  case SH_JSON_BOOL: sh_jw_bool(w, v->b); break;
  case SH_JSON_STRING: sh_jw_strn(w, v->s, v->len); break;
  case SH_JSON_NUMBER:
    before_value(w);
    sh_buf_put(w->buf, v->s, v->len);
    break;
  case SH_JSON_ARRAY:
    sh_jw_arr(w);
    for (size_t i = 0; i < v->len && !w->buf->failed; i++) sh_jw_value(w, &v->items[i]);
    sh_jw_end_arr(w);
    break;
  case SH_JSON_OBJECT:
    sh_jw_obj(w);
    for (size_t i = 0; i < v->len && !w->buf->failed; i++) {
      separate(w);
      put_string(w->buf, v->members[i].key, v->members[i].key_len); /* may hold NUL, which sh_jw_key cannot say */
      sh_buf_putc(w->buf, ':');
      w->private_key = true;
      sh_jw_value(w, &v->members[i].value);
    }
    sh_jw_end_obj(w);
    break;
  }
}

void sh_jw_kstr(sh_jw *w, const char *key, const char *s) {
  sh_jw_key(w, key);
  sh_jw_str(w, s);
}

void sh_jw_kint(sh_jw *w, const char *key, int64_t v) {
  sh_jw_key(w, key);
  sh_jw_int(w, v);
}

void sh_jw_kdouble(sh_jw *w, const char *key, double v) {
  sh_jw_key(w, key);
  sh_jw_double(w, v);
}

void sh_jw_kbool(sh_jw *w, const char *key, bool b) {
  sh_jw_key(w, key);
  sh_jw_bool(w, b);
}

void sh_jw_knull(sh_jw *w, const char *key) {
  sh_jw_key(w, key);
  sh_jw_null(w);
}

/* --- For people ----------------------------------------------------------------------------------------------------------------------- */

int sh_json_indent(sh_buf *out, const char *s, size_t n) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < n; i++) {
    char c = s[i], before = i ? s[i - 1] : 0, after = i + 1 < n ? s[i + 1] : 0;
    bool opens = !quoted && (c == '{' || c == '['), closes = !quoted && (c == '}' || c == ']');
    if (closes) {
      depth--;
      if (before != '{' && before != '[') sh_buf_printf(out, "\n%*s", 2 * depth, "");
    }
    sh_buf_putc(out, c);
    if (opens) depth++;
    if ((opens && after != '}' && after != ']') || (!quoted && c == ',')) sh_buf_printf(out, "\n%*s", 2 * depth, "");
    if (!quoted && c == ':') sh_buf_putc(out, ' ');
    if (quoted && c == '\\' && i + 1 < n) sh_buf_putc(out, s[++i]);
    else if (c == '"') quoted = !quoted;
  }
  return sh_buf_putc(out, '\n');
}
