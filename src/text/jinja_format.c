/* Text from numbers and formats: repr of a float, HTML escaping, the % operator of strings, str.format with its format specifications.
 *
 * Pure in the values; one thread per render. A field is built as sign, prefix, digits or text, and then padded by one routine for both
 * syntaxes, because they share all rules but the parsing. Widths and precisions are bounded (a width is also bounded by the output limit).
 * Refused: the "n" type's locale (it is "d" and "g"), %a beyond what repr gives. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PRECISION = 400, MAX_WIDTH = 1 << 24, NUM_BUF = 1100 };

/* The shortest digits that read back as f, laid out as Python's repr does: an exponent below 1e-4 and from 1e16 on. */
size_t sh_jj_float_repr(double f, char buf[40]) {
  if (isnan(f)) return (size_t)snprintf(buf, 40, "nan");
  if (isinf(f)) return (size_t)snprintf(buf, 40, f < 0 ? "-inf" : "inf");
  char sci[40];
  int prec = 0;
  do snprintf(sci, sizeof sci, "%.*e", prec, f);
  while (strtod(sci, NULL) != f && ++prec < 17);
  int exp = (int)strtol(strchr(sci, 'e') + 1, NULL, 10);
  if (exp >= -4 && exp < 16) {
    int n = snprintf(buf, 40, "%.*f", prec > exp ? prec - exp : 0, f);
    if (prec <= exp) n += snprintf(buf + n, 40 - (size_t)n, ".0");
    return (size_t)n;
  }
  return (size_t)snprintf(buf, 40, "%s", sci);
}

/* --- HTML --------------------------------------------------------------------------------------------------------------------------- */
int sh_jj_escape(jj_ctx *c, const jj_str *s) {
  size_t start = 0;
  for (size_t i = 0; i < s->len; i++) {
    const char *to = s->p[i] == '&'    ? "&amp;"
                     : s->p[i] == '<'  ? "&lt;"
                     : s->p[i] == '>'  ? "&gt;"
                     : s->p[i] == '\'' ? "&#39;"
                     : s->p[i] == '"'  ? "&#34;"
                                       : NULL;
    if (!to) continue;
    JJ_TRY(sh_jj_put(c, s->p + start, i - start));
    JJ_TRY(sh_jj_put(c, to, strlen(to)));
    start = i + 1;
  }
  return sh_jj_put(c, s->p + start, s->len - start);
}

int sh_jj_escaped(jj_ctx *c, jj_val v, jj_val *out) {
  if (v.kind == JJ_STR && v.flag & JJ_MARKUP) {
    *out = v;
    return 0;
  }
  JJ_TRY(sh_jj_to_str(c, v, &v));
  size_t mark = c->out.len;
  JJ_TRY(sh_jj_escape(c, v.s));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = JJ_MARKUP;
  return 0;
}

/* --- One field ---------------------------------------------------------------------------------------------------------------------- */
typedef struct spec {
  char fill[5]; /* one code point; "" = space */
  char align;   /* < > ^ =, 0 = by type */
  char sign;    /* + - space, 0 = minus only */
  char group;   /* , _ or 0 */
  bool alt, zero;
  int64_t width, prec; /* -1: not given */
  char type;           /* 0: none given */
} spec;

static int pad(jj_ctx *c, const spec *s, int64_t n) {
  const char *fill = s->fill[0] ? s->fill : " ";
  for (; n > 0; n--) JJ_TRY(sh_jj_put(c, fill, strlen(fill)));
  return 0;
}

/* head: sign and prefix, before which "=" does not pad. cps: code points of head and body. */
static int put_field(jj_ctx *c, const spec *s, char align, const char *head, const char *body, size_t n, size_t cps) {
  int64_t room = s->width > (int64_t)cps ? s->width - (int64_t)cps : 0;
  int64_t left = align == '>' ? room : align == '^' ? room / 2 : 0, middle = align == '=' ? room : 0;
  if (room > MAX_WIDTH) return sh_jj_limit(c, "output");
  JJ_TRY(sh_jj_step(c, (size_t)room / 8));
  JJ_TRY(pad(c, s, left));
  JJ_TRY(sh_jj_put(c, head, strlen(head)));
  JJ_TRY(pad(c, s, middle));
  JJ_TRY(sh_jj_put(c, body, n));
  return pad(c, s, room - left - middle);
}

static int put_text(jj_ctx *c, const spec *s, jj_str *t) {
  size_t n = t->len, cps = sh_jj_cps(t);
  if (s->prec >= 0 && (size_t)s->prec < cps) {
    cps = (size_t)s->prec;
    n = sh_jj_offset(t, cps);
  }
  return put_field(c, s, s->align && s->align != '=' ? s->align : '<', "", t->p, n, cps);
}

/* Separators into the whole part of the digits, to out[NUM_BUF * 2]. */
static void group_digits(const char *digits, char sep, int every, char *out) {
  size_t whole = strspn(digits, "0123456789abcdefABCDEF"), w = 0;
  if (strpbrk(digits, "naif") && !strpbrk(digits, "0123456789")) whole = 0; /* nan, inf */
  for (size_t i = 0; i < whole; i++) {
    if (i && (whole - i) % (size_t)every == 0) out[w++] = sep;
    out[w++] = digits[i];
  }
  memcpy(out + w, digits + whole, strlen(digits + whole) + 1); /* out is twice the size of digits */
}

static int put_number(jj_ctx *c, const spec *s, bool negative, const char *prefix, const char *digits) {
  char head[8], grouped[NUM_BUF * 2];
  const char *sign = negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
  snprintf(head, sizeof head, "%s%s", sign, prefix);
  if (s->group) {
    bool dec = s->type != 'x' && s->type != 'X' && s->type != 'o' && s->type != 'b';
    group_digits(digits, s->group, dec ? 3 : 4, grouped);
    digits = grouped;
  }
  size_t n = strlen(digits);
  return put_field(c, s, s->align ? s->align : s->zero ? '=' : '>', head, digits, n, n + strlen(head));
}

static int put_int(jj_ctx *c, const spec *s, int64_t v) {
  char buf[NUM_BUF], rev[72];
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
  const char *digits = s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  size_t n = 0, w = 0;
  do rev[n++] = digits[u % base];
  while (u /= base);
  if (s->prec > MAX_PRECISION) return sh_jj_fail(c, "precision too large in a number format");
  for (int64_t i = (int64_t)n; i < s->prec; i++) buf[w++] = '0';
  while (n) buf[w++] = rev[--n];
  buf[w] = 0;
  const char *prefix = !s->alt || base == 10 ? "" : s->type == 'x' ? "0x" : s->type == 'X' ? "0X" : s->type == 'o' ? "0o" : "0b";
  return put_number(c, s, v < 0, prefix, buf);
}

/* A precision without a type: like g, but with a digit after the point, so the exponent comes one digit earlier. */
static void plain_precision(char *buf, int prec, double v) {
  snprintf(buf, NUM_BUF, "%.*e", prec - 1, v);
  char *e = strchr(buf, 'e');
  int exp = (int)strtol(e + 1, NULL, 10);
  if (exp >= -4 && exp + 1 <= prec - 1) {
    size_t n = (size_t)snprintf(buf, NUM_BUF, "%.*g", prec, v);
    if (!strchr(buf, '.')) snprintf(buf + n, NUM_BUF - n, ".0");
    return;
  }
  char *w = e;
  if (memchr(buf, '.', (size_t)(e - buf)))
    while (w[-1] == '0') w--;
  if (w[-1] == '.') w--;
  memmove(w, e, strlen(e) + 1);
}

static int put_float(jj_ctx *c, const spec *s, double f) {
  char buf[NUM_BUF];
  char type = s->type == 'n' ? 'g' : s->type;
  int prec = s->prec < 0 ? 6 : (int)s->prec;
  bool neg = signbit(f) && !isnan(f), percent = type == '%';
  if (s->prec > MAX_PRECISION) return sh_jj_fail(c, "precision too large in a number format");
  double v = fabs(f);
  if (!isfinite(v)) {
    bool upper = type == 'F' || type == 'E' || type == 'G';
    snprintf(buf, sizeof buf, "%s%s", isnan(v) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf"), percent ? "%" : "");
  } else if (!type && s->prec < 0) {
    sh_jj_float_repr(v, buf);
  } else if (percent) {
    snprintf(buf, sizeof buf, "%.*f%%", prec, v * 100);
  } else {
    char fmt[8];
    snprintf(fmt, sizeof fmt, "%%%s.*%c", s->alt ? "#" : "", type ? type : 'g');
    snprintf(buf, sizeof buf, fmt, prec, v);
    if (!type) plain_precision(buf, prec ? prec : 1, v);
  }
  return put_number(c, s, neg, "", buf);
}

/* --- % ------------------------------------------------------------------------------------------------------------------------------ */
typedef struct percent {
  jj_ctx *c;
  const char *p, *end;
  jj_val args;
  size_t next;
  bool markup, keyed;
} percent;

static int next_arg(percent *x, jj_val *out) {
  size_t n = x->args.kind == JJ_TUPLE ? x->args.l->n : 1;
  if (x->next >= n) return sh_jj_fail(x->c, "not enough arguments for format string");
  *out = x->args.kind == JJ_TUPLE ? x->args.l->v[x->next] : x->args;
  x->next++;
  return 0;
}

static int digits_or_star(percent *x, int64_t *out) {
  jj_val v;
  *out = -1;
  if (x->p < x->end && *x->p == '*') {
    x->p++;
    JJ_TRY(next_arg(x, &v));
    if (!sh_jj_as_int(v, out)) return sh_jj_fail(x->c, "* wants int");
    return 0;
  }
  while (x->p < x->end && *x->p >= '0' && *x->p <= '9') {
    *out = (*out < 0 ? 0 : *out) * 10 + (*x->p++ - '0');
    if (*out > MAX_WIDTH) return sh_jj_limit(x->c, "output");
  }
  return 0;
}

/* (key) after a % */
static int keyed_arg(percent *x, jj_val *out) {
  const char *from = ++x->p;
  for (int open = 1; x->p < x->end; x->p++) {
    if (*x->p == '(') open++;
    if (*x->p == ')' && --open == 0) break;
  }
  if (x->p >= x->end) return sh_jj_fail(x->c, "incomplete format key");
  if (x->args.kind != JJ_DICT) return sh_jj_fail(x->c, "format requires a mapping");
  jj_str key = {from, (size_t)(x->p++ - from), SIZE_MAX, NULL};
  x->keyed = true;
  return sh_jj_dict_str(x->args.d, &key, out) ? 0 : sh_jj_fail(x->c, "'%.*s'", (int)key.len, key.p);
}

static int percent_text(percent *x, const spec *s, jj_val v) {
  jj_ctx *c = x->c;
  jj_val t;
  size_t mark = c->out.len;
  if (s->type == 's') {
    JJ_TRY(sh_jj_to_str(c, v, &t));
  } else {
    JJ_TRY(sh_jj_write_repr(c, v));
    JJ_TRY(sh_jj_cut(c, mark, &t));
  }
  if (x->markup && !(v.kind == JJ_STR && v.flag & JJ_MARKUP)) JJ_TRY(sh_jj_escaped(c, t, &t));
  return put_text(c, s, t.s);
}

static int percent_char(percent *x, spec *s, jj_val v) {
  char buf[4];
  int64_t i;
  s->prec = -1;
  if (v.kind == JJ_STR && sh_jj_cps(v.s) == 1) return put_text(x->c, s, v.s);
  if (!sh_jj_as_int(v, &i) || i < 0 || i > 0x10ffff) return sh_jj_fail(x->c, "%%c requires int or char");
  jj_str str = {buf, (size_t)sh_utf8_encode((uint32_t)i, buf), 1, NULL};
  return put_text(x->c, s, &str);
}

static int percent_value(percent *x, spec *s, jj_val v) {
  int64_t i;
  double f;
  switch (s->type) {
  case 's':
  case 'r':
  case 'a': return percent_text(x, s, v);
  case 'c': return percent_char(x, s, v);
  case 'd':
  case 'i':
  case 'u':
    s->type = 'd';
    if (v.kind == JJ_FLOAT && v.f > -9.2e18 && v.f < 9.2e18) return put_int(x->c, s, (int64_t)v.f);
    break;
  case 'o':
  case 'x':
  case 'X': break;
  case 'e':
  case 'E':
  case 'f':
  case 'F':
  case 'g':
  case 'G':
    if (!sh_jj_as_num(v, &f)) return sh_jj_fail(x->c, "must be real number, not %s", sh_jj_type_name(v));
    return put_float(x->c, s, f);
  default: return sh_jj_fail(x->c, "unsupported format character '%c'", s->type);
  }
  if (v.kind == JJ_BIG && s->type == 'd') return put_text(x->c, s, v.s);
  if (!sh_jj_as_int(v, &i)) return sh_jj_fail(x->c, "%%%c format: a number is required, not %s", s->type, sh_jj_type_name(v));
  return put_int(x->c, s, i);
}

static int percent_field(percent *x) {
  spec s = {.width = -1, .prec = -1};
  jj_val v = {.kind = JJ_MISSING};
  if (x->p < x->end && *x->p == '(') JJ_TRY(keyed_arg(x, &v));
  bool minus = false;
  for (; x->p < x->end && strchr("-+ #0", *x->p) && *x->p; x->p++) {
    if (*x->p == '-') minus = true;
    else if (*x->p == '+') s.sign = '+';
    else if (*x->p == ' ') s.sign = s.sign ? s.sign : ' ';
    else if (*x->p == '#') s.alt = true;
    else s.zero = true;
  }
  JJ_TRY(digits_or_star(x, &s.width));
  if (s.width < -1) {
    minus = true;
    s.width = s.width < -MAX_WIDTH ? MAX_WIDTH : -s.width;
  }
  if (x->p < x->end && *x->p == '.') {
    x->p++;
    JJ_TRY(digits_or_star(x, &s.prec));
    if (s.prec < 0) s.prec = 0;
  }
  while (x->p < x->end && (*x->p == 'l' || *x->p == 'h' || *x->p == 'L')) x->p++;
  if (x->p >= x->end) return sh_jj_fail(x->c, "incomplete format");
  s.type = *x->p++;
  if (s.type == '%') return sh_jj_put(x->c, "%", 1);
  if (!jj_given(v)) JJ_TRY(next_arg(x, &v));
  bool text = s.type == 's' || s.type == 'r' || s.type == 'a' || s.type == 'c';
  s.align = minus ? '<' : s.zero && !text ? '=' : '>';
  if (s.align == '=') s.fill[0] = '0';
  if (s.sign && text) s.sign = 0;
  return percent_value(x, &s, v);
}

int sh_jj_percent(jj_ctx *c, const jj_str *fmt, jj_val args, bool markup, jj_val *out) {
  percent x = {c, fmt->p, fmt->p + fmt->len, args, 0, markup, false};
  size_t mark = c->out.len;
  while (x.p < x.end) {
    const char *pc = memchr(x.p, '%', (size_t)(x.end - x.p));
    JJ_TRY(sh_jj_put(c, x.p, (size_t)((pc ? pc : x.end) - x.p)));
    if (!pc) break;
    x.p = pc + 1;
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(percent_field(&x));
  }
  size_t n = args.kind == JJ_TUPLE                                                                            ? args.l->n
             : args.kind == JJ_DICT || args.kind == JJ_LIST || args.kind == JJ_UNDEF || args.kind == JJ_RANGE ? x.next
                                                                                                              : 1;
  if (!x.keyed && x.next < n) return sh_jj_fail(c, "not all arguments converted during string formatting");
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = markup ? JJ_MARKUP : 0;
  return 0;
}

/* --- str.format --------------------------------------------------------------------------------------------------------------------- */
static int parse_spec(jj_ctx *c, const char *p, const char *end, spec *s) {
  size_t k = 0;
  *s = (spec){.width = -1, .prec = -1};
  if (p < end) sh_jj_cp(p, (size_t)(end - p), &k);
  if (k && p + k < end && strchr("<>^=", p[k]) && p[k]) {
    memcpy(s->fill, p, k);
    s->align = p[k];
    p += k + 1;
  } else if (p < end && *p && strchr("<>^=", *p)) {
    s->align = *p++;
  }
  if (p < end && (*p == '+' || *p == '-' || *p == ' ')) s->sign = *p++;
  if (p < end && *p == '#') s->alt = *p++;
  if (p < end && *p == '0') {
    s->zero = *p++;
    if (!s->fill[0]) s->fill[0] = '0';
  }
  for (; p < end && *p >= '0' && *p <= '9'; p++) {
    s->width = (s->width < 0 ? 0 : s->width) * 10 + (*p - '0');
    if (s->width > MAX_WIDTH) return sh_jj_limit(c, "output");
  }
  if (p < end && (*p == ',' || *p == '_')) s->group = *p++;
  if (p < end && *p == '.') {
    if (++p >= end || *p < '0' || *p > '9') return sh_jj_fail(c, "Format specifier missing precision");
    for (s->prec = 0; p < end && *p >= '0' && *p <= '9'; p++) {
      s->prec = s->prec * 10 + (*p - '0');
      if (s->prec > MAX_WIDTH) return sh_jj_limit(c, "output");
    }
  }
  if (p < end) s->type = *p++;
  return p < end ? sh_jj_fail(c, "Invalid format specifier") : 0;
}

static int bad_code(jj_ctx *c, const spec *s, jj_val v) {
  return sh_jj_fail(c, "Unknown format code '%c' for object of type '%s'", s->type, sh_jj_type_name(v));
}

static int format_int(jj_ctx *c, spec *s, jj_val v) {
  int64_t i = 0;
  double f = 0;
  if (!s->type || s->type == 'n') s->type = 'd';
  if (strchr("eEfFgG%", s->type)) {
    sh_jj_as_num(v, &f);
    return put_float(c, s, f);
  }
  if (!strchr("bcdoxX", s->type)) return bad_code(c, s, v);
  if (s->prec >= 0) return sh_jj_fail(c, "Precision not allowed in integer format specifier");
  sh_jj_as_int(v, &i);
  if (s->type != 'c') return put_int(c, s, i);
  char buf[4];
  if (i < 0 || i > 0x10ffff) return sh_jj_fail(c, "%%c arg not in range(0x110000)");
  jj_str str = {buf, (size_t)sh_utf8_encode((uint32_t)i, buf), 1, NULL};
  return put_text(c, s, &str);
}

/* format(v, spec), to c->out */
static int format_value(jj_ctx *c, jj_val v, const char *p, const char *end) {
  spec s;
  if (p == end) return sh_jj_write(c, v);
  JJ_TRY(parse_spec(c, p, end, &s));
  switch (v.kind) {
  case JJ_STR:
    if (s.type && s.type != 's') return bad_code(c, &s, v);
    if (s.sign || s.alt || s.group || s.align == '=') return sh_jj_fail(c, "this format is not allowed for a string");
    return put_text(c, &s, v.s);
  case JJ_BOOL:
  case JJ_INT: return format_int(c, &s, v);
  case JJ_FLOAT:
    if (s.type && !strchr("eEfFgGn%", s.type)) return bad_code(c, &s, v);
    return put_float(c, &s, v.f);
  case JJ_BIG: return sh_jj_fail(c, "an integer beyond 64 bits cannot be formatted");
  default: return sh_jj_fail(c, "unsupported format string passed to %s.__format__", sh_jj_type_name(v));
  }
}

typedef struct formatter {
  jj_ctx *c;
  jj_args *a;
  int64_t next; /* automatic numbering; -1 after a number was written out */
  bool markup;
} formatter;

static int field_number(formatter *x, const jj_str *name, int64_t *i) {
  *i = -1;
  if (name->len == 0) {
    if (x->next < 0) return sh_jj_fail(x->c, "cannot switch from manual field specification to automatic field numbering");
    *i = x->next++;
  } else if (strspn(name->p, "0123456789") >= name->len && name->len < 10) {
    if (x->next > 0) return sh_jj_fail(x->c, "cannot switch from automatic field numbering to manual field specification");
    x->next = -1;
    *i = 0;
    for (size_t k = 0; k < name->len; k++) *i = *i * 10 + (name->p[k] - '0');
  }
  return 0;
}

static size_t name_len(const char *p, const char *end) {
  size_t n = 0;
  while (p + n < end && p[n] != '.' && p[n] != '[') n++;
  return n;
}

static bool all_digits(const jj_str *s) {
  for (size_t i = 0; i < s->len; i++)
    if (s->p[i] < '0' || s->p[i] > '9') return false;
  return s->len > 0 && s->len < 10;
}

/* The value named by "0.attr[key]". */
static int field_value(formatter *x, const char *p, const char *end, jj_val *out) {
  jj_ctx *c = x->c;
  char name_buf[64];
  jj_val key;
  int64_t i;
  size_t n = name_len(p, end);
  jj_str name = {p, n, SIZE_MAX, NULL}, number = name;
  if (n < sizeof name_buf) { /* strspn wants an end */
    memcpy(name_buf, p, n);
    name_buf[n] = 0;
    number.p = name_buf;
  } else {
    number.len = 1;
    number.p = "x";
  }
  JJ_TRY(field_number(x, &number, &i));
  if (i >= 0) {
    if (i >= x->a->n) return sh_jj_fail(c, "Replacement index %lld out of range for positional args tuple", (long long)i);
    *out = x->a->v[i];
  } else {
    int k = 0;
    JJ_TRY(sh_jj_step(x->c, (size_t)x->a->nkw / 4));
    while (k < x->a->nkw && !(x->a->kw[k].name->len == n && memcmp(x->a->kw[k].name->p, p, n) == 0)) k++;
    if (k == x->a->nkw) return sh_jj_fail(c, "'%.*s' is not among the arguments of format", (int)n, p);
    *out = x->a->kw[k].v;
  }
  for (p += n; p < end; p += n) {
    bool item = *p++ == '[';
    const char *close = item ? memchr(p, ']', (size_t)(end - p)) : NULL;
    if (item && !close) return sh_jj_fail(c, "Missing ']' in format string");
    n = item ? (size_t)(close - p) : name_len(p, end);
    if (!n) return sh_jj_fail(c, "Empty attribute in format string");
    JJ_TRY(sh_jj_str_ref(c, p, n, &key));
    if (!item) {
      JJ_TRY(sh_jj_getattr(c, *out, key.s, out));
      continue;
    }
    if (all_digits(key.s)) {
      int64_t idx = 0;
      for (size_t k = 0; k < n; k++) idx = idx * 10 + (p[k] - '0');
      key = sh_jj_int(idx);
    }
    JJ_TRY(sh_jj_getitem(c, *out, key, out));
    n++;
    if (p + n < end && p[n] != '.' && p[n] != '[') return sh_jj_fail(c, "Only '.' or '[' may follow ']' in format field specifier");
  }
  return 0;
}

static int expand(formatter *x, const char *p, const char *end, int depth);

/* The inside of one {...}. */
static int format_field(formatter *x, const char *p, const char *end, int depth) {
  jj_ctx *c = x->c;
  jj_val v, spec_text;
  const char *e = p;
  size_t mark = c->out.len;
  for (int open = 0; e < end && (open || (*e != '!' && *e != ':')); e++) open += *e == '[' ? 1 : *e == ']' ? -1 : 0;
  JJ_TRY(field_value(x, p, e, &v));
  char conv = 0;
  if (e < end && *e == '!') {
    if (e + 1 >= end || (e + 2 < end && e[2] != ':')) return sh_jj_fail(c, "expected ':' after conversion specifier");
    conv = e[1];
    e += 2;
  }
  if (conv == 's') {
    JJ_TRY(sh_jj_to_str(c, v, &v));
  } else if (conv == 'r' || conv == 'a') {
    JJ_TRY(sh_jj_write_repr(c, v));
    JJ_TRY(sh_jj_cut(c, mark, &v));
  } else if (conv) {
    return sh_jj_fail(c, "Unknown conversion specifier '%c'", conv);
  }
  if (e < end) e++;
  JJ_TRY(expand(x, e, end, depth + 1));
  JJ_TRY(sh_jj_cut(c, mark, &spec_text));
  JJ_TRY(format_value(c, v, spec_text.s->p, spec_text.s->p + spec_text.s->len));
  if (!x->markup || (v.kind == JJ_STR && v.flag & JJ_MARKUP)) return 0;
  JJ_TRY(sh_jj_cut(c, mark, &v));
  return sh_jj_escape(c, v.s);
}

static int expand(formatter *x, const char *p, const char *end, int depth) {
  jj_ctx *c = x->c;
  if (depth > 2) return sh_jj_fail(c, "Max string recursion exceeded");
  while (p < end) {
    const char *b = p;
    JJ_TRY(sh_jj_step(c, 1));
    while (b < end && *b != '{' && *b != '}') b++;
    JJ_TRY(sh_jj_put(c, p, (size_t)(b - p)));
    if (b >= end) return 0;
    if (b + 1 < end && b[1] == *b) {
      JJ_TRY(sh_jj_put(c, b, 1));
      p = b + 2;
      continue;
    }
    if (*b == '}') return sh_jj_fail(c, "Single '}' encountered in format string");
    const char *e = b + 1;
    for (int open = 1; e < end; e++) {
      open += *e == '{' ? 1 : *e == '}' ? -1 : 0;
      if (!open) break;
    }
    if (e >= end) return sh_jj_fail(c, "expected '}' before end of string");
    JJ_TRY(format_field(x, b + 1, e, depth));
    p = e + 1;
  }
  return 0;
}

int sh_jj_str_format(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  formatter x = {c, a, 0, self.flag & JJ_MARKUP};
  size_t mark = c->out.len;
  JJ_TRY(expand(&x, self.s->p, self.s->p + self.s->len, 0));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = self.flag;
  return 0;
}
