/* JSON reader, look-ups, conversions and builders.
 *
 * Any thread; a tree belongs to its arena. The parser is a loop, not a recursion: open containers and finished children lie on one explicit
 * stack of members; when a container closes, its children are copied from there into the arena as one exact array, so a look-up walks
 * contiguous memory and nothing is ever grown inside the arena. The stack is bounded by what the arena may still hand out, depth and the
 * number of values by limits of their own, so a 10 MB body of brackets costs no more than it should and no C stack at all.
 *
 * Strings are decoded into the arena at once (a decoded string is never longer than its source). Numbers keep their text: 0.1, 1e400 and a
 * 30-digit id mean what the reader of the value makes of them. Refused: a lazy tape over the source text (fast, but every accessor then has
 * an error path). */
#include "base/json.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_DEPTH = 128, DEFAULT_NODES = 16 * 1000 * 1000 };

typedef struct parser {
  const char *text; /* [n] */
  size_t n, at;     /* bytes */
  sh_arena *arena;
  sh_json_member *stack; /* open containers and, after each, its finished children */
  size_t top, cap;       /* members in use, members allocated */
  size_t open;           /* 1 + index of the innermost open container, 0: none; an open container's value.len keeps the `open` around it */
  int depth;             /* open containers */
  size_t nodes;          /* values seen */
  const char *key;       /* of the next value, when it is a member */
  size_t key_len;
  int max_depth;
  size_t max_nodes;
  sh_error *e;
} parser;

/* --- Errors --------------------------------------------------------------------------------------------------------------------------- */

static int fail_at(const parser *p, int code, const char *what) {
  size_t line = 1, column = 1; /* in characters */
  for (size_t i = 0; i < p->at && i < p->n; i++) {
    unsigned char c = (unsigned char)p->text[i];
    if (c == '\n') {
      line++;
      column = 1;
    } else if ((c & 0xC0) != 0x80) {
      column++;
    }
  }
  return sh_fail(p->e, code, "invalid JSON at line %zu, column %zu: %s", line, column, what);
}

/* "found ..., wanted ..." at the current byte. */
static int fail_found(const parser *p, const char *wanted) {
  char what[160];
  if (p->at >= p->n) {
    snprintf(what, sizeof what, "found the end of the text, wanted %s", wanted);
  } else {
    unsigned char c = (unsigned char)p->text[p->at];
    if (c >= 0x20 && c < 0x7F) snprintf(what, sizeof what, "found '%c', wanted %s", c, wanted);
    else snprintf(what, sizeof what, "found byte 0x%02X, wanted %s", c, wanted);
  }
  return fail_at(p, SH_ERR_FORMAT, what);
}

/* Why the arena gave nothing for `bytes` (it rounds up to 16). */
static int arena_error(const sh_arena *a, size_t bytes) {
  return sh_arena_left(a) < 16 || bytes > sh_arena_left(a) - 15 ? SH_ERR_LIMIT : SH_ERR_NOMEM;
}

static int fail_memory(const parser *p, int code) {
  return fail_at(p, code, code == SH_ERR_LIMIT ? "the value needs more memory than this JSON text may take" : "out of memory");
}

/* --- Stack ---------------------------------------------------------------------------------------------------------------------------- */

/* Pushes a value under the pending key. */
static int push(parser *p, const sh_json *v) {
  if (p->nodes >= p->max_nodes) return fail_at(p, SH_ERR_LIMIT, "too many values");
  p->nodes++;
  if (p->top == p->cap) {
    /* what lies here will be copied into the arena when its container closes; open containers (bounded by depth) are the surplus */
    if (p->top > sh_arena_left(p->arena) / sizeof(sh_json) + (size_t)p->max_depth) return fail_memory(p, SH_ERR_LIMIT);
    size_t cap = p->cap ? p->cap * 2 : 32;
    sh_json_member *m = sh_realloc(p->stack, cap * sizeof *m);
    if (!m) return fail_memory(p, SH_ERR_NOMEM);
    p->stack = m;
    p->cap = cap;
  }
  p->stack[p->top++] = (sh_json_member){.key = p->key, .key_len = p->key_len, .value = *v};
  p->key = NULL;
  p->key_len = 0;
  return 0;
}

static int open_container(parser *p, sh_json_type type) {
  if (p->depth >= p->max_depth) return fail_at(p, SH_ERR_LIMIT, "nested too deeply");
  int rc = push(p, &(sh_json){.type = type, .len = p->open});
  if (rc) return rc;
  p->open = p->top;
  p->depth++;
  p->at++;
  return 0;
}

/* The innermost container is complete: its children leave the stack for the arena. */
static int close_container(parser *p) {
  sh_json *c = &p->stack[p->open - 1].value;
  const sh_json_member *kids = p->stack + p->open;
  size_t n = p->top - p->open, outer = c->len;
  c->len = n;
  if (n > 0 && c->type == SH_JSON_OBJECT) {
    c->members = sh_arena_array(p->arena, n, sizeof *c->members);
    if (!c->members) return fail_memory(p, arena_error(p->arena, n * sizeof *c->members));
    memcpy(c->members, kids, n * sizeof *kids);
  } else if (n > 0) {
    c->items = sh_arena_array(p->arena, n, sizeof *c->items);
    if (!c->items) return fail_memory(p, arena_error(p->arena, n * sizeof *c->items));
    for (size_t i = 0; i < n; i++) c->items[i] = kids[i].value;
  }
  p->top = p->open;
  p->open = outer;
  p->depth--;
  p->at++;
  return 0;
}

/* --- Scalars -------------------------------------------------------------------------------------------------------------------------- */

static void skip_blanks(parser *p) {
  while (p->at < p->n) {
    char c = p->text[p->at];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    p->at++;
  }
}

static int hex4(const char *s, size_t n) {
  if (n < 4) return -1;
  int v = 0;
  for (int i = 0; i < 4; i++) {
    char c = s[i];
    int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (d < 0) return -1;
    v = v << 4 | d;
  }
  return v;
}

/* An escape at text[at] == '\\', inside [at..end): writes its bytes to *out and moves both. */
static int read_escape(parser *p, size_t end, char **out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = p->text[p->at + 1]; /* never past the end: the scan stopped at an unescaped quote */
  const char *simple = c ? strchr(from, c) : NULL;
  if (simple) {
    *(*out)++ = to[simple - from];
    p->at += 2;
    return 0;
  }
  if (c != 'u') return fail_at(p, SH_ERR_FORMAT, "unknown escape in a string");
  int unit = hex4(p->text + p->at + 2, end - p->at - 2);
  if (unit < 0) return fail_at(p, SH_ERR_FORMAT, "\\u wants four hexadecimal digits");
  p->at += 6;
  uint32_t cp = (uint32_t)unit;
  if (cp >= 0xD800 && cp < 0xDC00 && end - p->at >= 6 && p->text[p->at] == '\\' && p->text[p->at + 1] == 'u') {
    int low = hex4(p->text + p->at + 2, end - p->at - 2);
    if (low >= 0xDC00 && low < 0xE000) {
      cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
      p->at += 6;
    }
  }
  *out += sh_utf8_encode(cp, *out); /* a surrogate that is still alone becomes U+FFFD there */
  return 0;
}

/* Finds the closing quote of the string whose first byte is at `p->at`, checking bytes on the way. */
static int scan_string(parser *p, size_t *end, bool *escaped) {
  size_t i = p->at;
  bool high = false;
  for (;; i++) {
    if (i >= p->n) {
      p->at = p->n;
      return fail_found(p, "the closing quote of a string");
    }
    unsigned char c = (unsigned char)p->text[i];
    if (c == '"') break;
    if (c < 0x20) {
      p->at = i;
      return fail_found(p, "an escape (control characters must be escaped in strings)");
    }
    if (c == '\\') {
      *escaped = true;
      i++; /* the next byte is not a closing quote; read_escape judges it */
    }
    high |= c >= 0x80;
  }
  if (high && !sh_utf8_valid(p->text + p->at, i - p->at)) {
    for (uint32_t cp; p->at < i;) { /* to the offending byte, for the message */
      int used = sh_utf8_decode(p->text + p->at, i - p->at, &cp);
      if (used < 0) break;
      p->at += (size_t)used;
    }
    return fail_found(p, "valid UTF-8");
  }
  *end = i;
  return 0;
}

/* A string at text[at] == '"', decoded into the arena. */
static int read_string(parser *p, const char **s, size_t *len) {
  size_t end = 0;
  bool escaped = false;
  p->at++;
  int rc = scan_string(p, &end, &escaped);
  if (rc) return rc;
  size_t raw = end - p->at;
  char *out = sh_arena_alloc(p->arena, raw + 1);
  if (!out) return fail_memory(p, arena_error(p->arena, raw + 1));
  *s = out;
  if (!escaped) {
    memcpy(out, p->text + p->at, raw);
    *len = raw;
    p->at = end + 1;
    return 0;
  }
  while (p->at < end) {
    if (p->text[p->at] != '\\') {
      *out++ = p->text[p->at++];
      continue;
    }
    rc = read_escape(p, end, &out);
    if (rc) return rc;
  }
  *out = '\0';
  *len = (size_t)(out - *s);
  p->at = end + 1;
  return 0;
}

static bool at_digit(const parser *p) { return p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9'; }

static int skip_digits(parser *p) {
  if (!at_digit(p)) return fail_found(p, "a digit");
  while (at_digit(p)) p->at++;
  return 0;
}

static int push_number(parser *p) {
  size_t start = p->at;
  int rc = 0;
  if (p->text[p->at] == '-') p->at++;
  if (p->at < p->n && p->text[p->at] == '0') p->at++; /* nothing may follow a leading zero but a point or an exponent */
  else rc = skip_digits(p);
  if (!rc && at_digit(p)) rc = fail_at(p, SH_ERR_FORMAT, "a number must not begin with 0");
  if (!rc && p->at < p->n && p->text[p->at] == '.') {
    p->at++;
    rc = skip_digits(p);
  }
  if (!rc && p->at < p->n && (p->text[p->at] | 32) == 'e') {
    p->at++;
    if (p->at < p->n && (p->text[p->at] == '+' || p->text[p->at] == '-')) p->at++;
    rc = skip_digits(p);
  }
  if (rc) return rc;
  sh_json v = {.type = SH_JSON_NUMBER, .len = p->at - start};
  v.s = sh_arena_strdup(p->arena, p->text + start, v.len);
  if (!v.s) return fail_memory(p, arena_error(p->arena, v.len + 1));
  return push(p, &v);
}

static int push_string(parser *p) {
  sh_json v = {.type = SH_JSON_STRING};
  int rc = read_string(p, &v.s, &v.len);
  return rc ? rc : push(p, &v);
}

static int push_word(parser *p, const char *word, const sh_json *v) {
  size_t n = strlen(word);
  if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0) return fail_found(p, "a value");
  int rc = push(p, v);
  p->at += n;
  return rc;
}

/* --- Grammar -------------------------------------------------------------------------------------------------------------------------- */

/* `"key" :` of a member. */
static int read_key(parser *p, const char *wanted) {
  skip_blanks(p);
  if (p->at >= p->n || p->text[p->at] != '"') return fail_found(p, wanted);
  int rc = read_string(p, &p->key, &p->key_len);
  if (rc) return rc;
  skip_blanks(p);
  if (p->at >= p->n || p->text[p->at] != ':') return fail_found(p, "':' after a key");
  p->at++;
  return 0;
}

/* One value or the opening of a container. *complete: a value ended here (a scalar or an empty container). */
static int read_value(parser *p, bool *complete) {
  skip_blanks(p);
  *complete = true;
  char c = p->at < p->n ? p->text[p->at] : '\0';
  switch (c) {
  case '"': return push_string(p);
  case 't': return push_word(p, "true", &(sh_json){.type = SH_JSON_BOOL, .b = true});
  case 'f': return push_word(p, "false", &(sh_json){.type = SH_JSON_BOOL});
  case 'n': return push_word(p, "null", &(sh_json){.type = SH_JSON_NULL});
  case '[':
  case '{': break;
  default:
    if (c == '-' || (c >= '0' && c <= '9')) return push_number(p);
    return fail_found(p, "a value");
  }
  int rc = open_container(p, c == '[' ? SH_JSON_ARRAY : SH_JSON_OBJECT);
  if (rc) return rc;
  skip_blanks(p);
  if (p->at < p->n && p->text[p->at] == (c == '[' ? ']' : '}')) return close_container(p);
  *complete = false;
  return c == '{' ? read_key(p, "a key in quotes or '}'") : 0;
}

/* After a complete value inside a container: a comma (with the next key) or the closing bracket. *complete as above. */
static int read_separator(parser *p, bool *complete) {
  skip_blanks(p);
  bool object = p->stack[p->open - 1].value.type == SH_JSON_OBJECT;
  char c = p->at < p->n ? p->text[p->at] : '\0';
  if (c == (object ? '}' : ']')) return close_container(p);
  if (c != ',') return fail_found(p, object ? "',' or '}'" : "',' or ']'");
  p->at++;
  *complete = false;
  return object ? read_key(p, "a key in quotes") : 0;
}

static int read_text(parser *p) {
  if (p->n >= 3 && memcmp(p->text, "\xEF\xBB\xBF", 3) == 0) return fail_at(p, SH_ERR_FORMAT, "a byte order mark stands before the value");
  bool complete = false;
  do {
    int rc = complete ? read_separator(p, &complete) : read_value(p, &complete);
    if (rc) return rc;
  } while (!complete || p->open);
  skip_blanks(p);
  return p->at < p->n ? fail_found(p, "the end of the text") : 0;
}

int sh_json_parse(const char *text, size_t n, const sh_json_limits *lim, sh_arena *a, sh_json **out, sh_error *e) {
  parser p = {.text = text, .n = n, .arena = a, .e = e, .max_depth = DEFAULT_DEPTH, .max_nodes = DEFAULT_NODES};
  if (lim && lim->max_depth > 0) p.max_depth = lim->max_depth;
  if (lim && lim->max_nodes > 0) p.max_nodes = lim->max_nodes;
  *out = NULL;
  int rc = read_text(&p);
  if (!rc) {
    *out = sh_arena_alloc(a, sizeof **out);
    if (*out) **out = p.stack[0].value;
    else rc = fail_memory(&p, arena_error(a, sizeof **out));
  }
  sh_free(p.stack);
  return rc;
}

/* --- Look-ups ------------------------------------------------------------------------------------------------------------------------- */

const char *sh_json_type_name(sh_json_type t) {
  static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
  return (unsigned)t <= SH_JSON_OBJECT ? names[t] : "unknown";
}

const char *sh_json_type_phrase(sh_json_type t) {
  static const char *const phrases[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};
  return (unsigned)t <= SH_JSON_OBJECT ? phrases[t] : "something unknown";
}

/* The last member named key[0..n). */
static sh_json_member *find(const sh_json *obj, const char *key, size_t n) {
  if (!obj || obj->type != SH_JSON_OBJECT) return NULL;
  for (size_t i = obj->len; i-- > 0;) {
    sh_json_member *m = &obj->members[i];
    if (m->key_len == n && memcmp(m->key, key, n) == 0) return m;
  }
  return NULL;
}

const sh_json *sh_json_get(const sh_json *obj, const char *key) {
  const sh_json_member *m = find(obj, key, strlen(key));
  return m ? &m->value : NULL;
}

const sh_json *sh_json_path(const sh_json *obj, const char *dotted) {
  for (;;) {
    size_t n = strcspn(dotted, ".");
    const sh_json_member *m = find(obj, dotted, n);
    if (!m) return NULL;
    obj = &m->value;
    if (dotted[n] == '\0') return obj;
    dotted += n + 1;
  }
}

bool sh_json_is(const sh_json *v, sh_json_type t) { return v && v->type == t; }

bool sh_json_eq_str(const sh_json *v, const char *s) {
  return sh_json_is(v, SH_JSON_STRING) && v->len == strlen(s) && memcmp(v->s, s, v->len) == 0;
}

/* --- Conversions ---------------------------------------------------------------------------------------------------------------------- */

/* The exponent after 'e', held to +-10^15: beyond any text that memory can hold, so that sums with digit counts do not overflow. */
static int64_t read_exponent(const char *s) {
  bool neg = *s == '-';
  if (*s == '-' || *s == '+') s++;
  int64_t v = 0;
  for (; *s >= '0' && *s <= '9'; s++)
    if (v < INT64_C(1000000000000000)) v = v * 10 + (*s - '0');
  return neg ? -v : v;
}

/* Exact, without a double in between: the number is its digits up to the last that is not 0, times a power of ten, which must not be
 * negative. */
int sh_json_int(const sh_json *v, int64_t *out) {
  if (!sh_json_is(v, SH_JSON_NUMBER)) return SH_ERR_ARG;
  bool neg = v->s[0] == '-';
  const char *digits = v->s + neg, *last = NULL, *point = NULL, *end = digits;
  for (; *end && (*end | 32) != 'e'; end++) {
    if (*end == '.') point = end;
    else if (*end >= '1' && *end <= '9') last = end;
    else if (*end != '0') return SH_ERR_ARG;
  }
  *out = 0;
  if (!last) return 0;
  if (!point) point = end;
  int64_t power = point > last ? point - last - 1 : point - last;
  if (*end) power += read_exponent(end + 1);
  int64_t r = 0; /* negative: that range is one larger */
  for (const char *p = digits; p <= last; p++) {
    if (p == point) continue;
    if (__builtin_mul_overflow(r, INT64_C(10), &r) || __builtin_sub_overflow(r, (int64_t)(*p - '0'), &r)) return SH_ERR_ARG;
  }
  if (power < 0) return SH_ERR_ARG;
  for (; power > 0; power--)
    if (__builtin_mul_overflow(r, INT64_C(10), &r)) return SH_ERR_ARG;
  if (!neg && __builtin_sub_overflow(INT64_C(0), r, &r)) return SH_ERR_ARG;
  *out = r;
  return 0;
}

int sh_json_double(const sh_json *v, double *out) {
  if (!sh_json_is(v, SH_JSON_NUMBER)) return SH_ERR_ARG;
  return sh_parse_f64(v->s, out);
}

/* --- Builders ------------------------------------------------------------------------------------------------------------------------- */

static sh_json *new_node(sh_arena *a, sh_json v) {
  sh_json *n = sh_arena_alloc(a, sizeof *n);
  if (n) *n = v;
  return n;
}

sh_json *sh_json_new_object(sh_arena *a) { return new_node(a, (sh_json){.type = SH_JSON_OBJECT}); }

sh_json *sh_json_new_array(sh_arena *a) { return new_node(a, (sh_json){.type = SH_JSON_ARRAY}); }

sh_json *sh_json_new_bool(sh_arena *a, bool b) { return new_node(a, (sh_json){.type = SH_JSON_BOOL, .b = b}); }

sh_json *sh_json_new_null(sh_arena *a) { return new_node(a, (sh_json){.type = SH_JSON_NULL}); }

sh_json *sh_json_new_string(sh_arena *a, const char *s, size_t n) {
  const char *copy = sh_arena_strdup(a, s, n);
  return copy ? new_node(a, (sh_json){.type = SH_JSON_STRING, .s = copy, .len = n}) : NULL;
}

sh_json *sh_json_new_int(sh_arena *a, int64_t v) {
  const char *text = sh_arena_printf(a, "%" PRId64, v);
  return text ? new_node(a, (sh_json){.type = SH_JSON_NUMBER, .s = text, .len = strlen(text)}) : NULL;
}

/* Makes room for one more child of `size` bytes in *storage (items or members of c). A container from the parser, or a copy of one that was
 * built, has no room: appending then moves to storage of its own and cannot write into what others share. */
static int grow(sh_arena *a, sh_json *c, void **storage, size_t size) {
  if (c->private_cap_log2 > 0 && c->len < (size_t)1 << c->private_cap_log2) return 0;
  unsigned log2 = 2;
  while (((size_t)1 << log2) <= c->len) log2++;
  size_t bytes = size << log2; /* len children of this size exist already, so twice their bytes fit a size_t */
  void *p = sh_arena_alloc(a, bytes);
  if (!p) return arena_error(a, bytes);
  if (c->len) memcpy(p, *storage, c->len * size);
  *storage = p;
  c->private_cap_log2 = (uint8_t)log2;
  return 0;
}

static sh_json shared_copy(const sh_json *v) {
  sh_json copy = *v;
  copy.private_cap_log2 = 0;
  return copy;
}

int sh_json_add(sh_arena *a, sh_json *obj, const char *key, size_t key_len, const sh_json *value) {
  if (!sh_json_is(obj, SH_JSON_OBJECT) || !value) return SH_ERR_ARG;
  sh_json copy = shared_copy(value);
  const char *k = sh_arena_strdup(a, key, key_len);
  if (!k) return arena_error(a, key_len + 1);
  void *storage = obj->members;
  int rc = grow(a, obj, &storage, sizeof *obj->members);
  if (rc) return rc;
  obj->members = storage;
  obj->members[obj->len++] = (sh_json_member){.key = k, .key_len = key_len, .value = copy};
  return 0;
}

int sh_json_set(sh_arena *a, sh_json *obj, const char *key, const sh_json *value) {
  if (!sh_json_is(obj, SH_JSON_OBJECT) || !value) return SH_ERR_ARG;
  sh_json_member *m = find(obj, key, strlen(key));
  if (!m) return sh_json_add(a, obj, key, strlen(key), value);
  m->value = shared_copy(value);
  return 0;
}

int sh_json_push(sh_arena *a, sh_json *arr, const sh_json *value) {
  if (!sh_json_is(arr, SH_JSON_ARRAY) || !value) return SH_ERR_ARG;
  sh_json copy = shared_copy(value);
  void *storage = arr->items;
  int rc = grow(a, arr, &storage, sizeof *arr->items);
  if (rc) return rc;
  arr->items = storage;
  arr->items[arr->len++] = copy;
  return 0;
}
