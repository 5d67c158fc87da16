/* Filters on strings and numbers, and the table of all filters (those on sequences are in jinja_seq.c).
 *
 * Each does what jinja2's filter of the name does with autoescape off, odd corners included: upper of None is "NONE", trim of an undefined
 * value is "", replace forgets that a string was safe. Not there: urlize, random (nothing in a prompt should be random),
 * xmlattr's siblings in extensions. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An optional whole-number argument. */
static int int_arg(jj_ctx *c, jj_val v, const char *what, int64_t dflt, int64_t *out) {
  *out = dflt;
  if (!jj_given(v)) return 0;
  if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
  return sh_jj_as_int(v, out) ? 0 : sh_jj_fail(c, "%s must be an integer, not %s", what, sh_jj_type_name(v));
}

static bool truthy(jj_ctx *c, jj_val v) { return jj_given(v) && sh_jj_truth(c, v); }

/* --- Strings ------------------------------------------------------------------------------------------------------------------------ */
static int change_case(jj_ctx *c, jj_val self, jj_case how, jj_val *out) {
  JJ_TRY(sh_jj_to_str(c, self, &self));
  JJ_TRY(sh_jj_change_case(c, self.s, how, out));
  out->flag = self.flag & JJ_MARKUP;
  return 0;
}
static int f_upper(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return (void)a, change_case(c, self, JJ_UPPER, out); }
static int f_lower(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return (void)a, change_case(c, self, JJ_LOWER, out); }
static int f_capitalize(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return (void)a, change_case(c, self, JJ_CAPITALIZE, out); }
static int f_title(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)a;
  JJ_TRY(change_case(c, self, JJ_TITLE_FILTER, out));
  out->flag = 0; /* jinja2 joins the words to a plain string */
  return 0;
}

static int f_string(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return (void)a, sh_jj_to_str(c, self, out); }

static int f_safe(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)a;
  JJ_TRY(sh_jj_to_str(c, self, out));
  out->flag = JJ_MARKUP;
  return 0;
}

static int f_escape(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return (void)a, sh_jj_escaped(c, self, out); }
static int f_forceescape(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)a;
  self.flag &= (uint8_t)~JJ_MARKUP;
  return sh_jj_escaped(c, self, out);
}

static int f_trim(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  const char *p;
  size_t n;
  jj_val chars = a->v[0];
  JJ_TRY(sh_jj_to_str(c, self, &self));
  if (jj_given(chars) && chars.kind != JJ_NONE && chars.kind != JJ_STR) return sh_jj_fail(c, "strip arg must be None or str");
  sh_jj_strip(self.s, chars.kind == JJ_STR ? chars.s : NULL, true, true, &p, &n);
  JJ_TRY(sh_jj_str_ref(c, p, n, out));
  out->flag = self.flag & JJ_MARKUP;
  return 0;
}

static int f_replace(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t count = -1;
  JJ_TRY(sh_jj_to_str(c, self, &self));
  JJ_TRY(sh_jj_to_str(c, a->v[0], &a->v[0]));
  JJ_TRY(sh_jj_to_str(c, a->v[1], &a->v[1]));
  if (a->v[2].kind != JJ_NONE) JJ_TRY(int_arg(c, a->v[2], "count", -1, &count));
  return sh_jj_replace(c, self.s, a->v[0].s, a->v[1].s, count, out);
}

static int f_center(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t width;
  size_t mark = c->out.len;
  JJ_TRY(sh_jj_to_str(c, self, &self));
  JJ_TRY(int_arg(c, a->v[0], "width", 80, &width));
  int64_t n = (int64_t)sh_jj_cps(self.s), room = width > n ? width - n : 0, left = room / 2 + (room & width & 1);
  if (room > 1 << 24) return sh_jj_limit(c, "output");
  for (int64_t i = 0; i < left; i++) JJ_TRY(sh_jj_put(c, " ", 1));
  JJ_TRY(sh_jj_put(c, self.s->p, self.s->len));
  for (int64_t i = left; i < room; i++) JJ_TRY(sh_jj_put(c, " ", 1));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = self.flag & JJ_MARKUP;
  return 0;
}

/* Every line but the first (and, unless asked, but empty ones) moved right. */
static int f_indent(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *lines;
  jj_val with = a->v[0], text;
  int64_t width = 4;
  size_t mark = c->out.len;
  bool first = truthy(c, a->v[1]), blank = truthy(c, a->v[2]);
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind != JJ_STR) return sh_jj_fail(c, "indent wants a string, not %s", sh_jj_type_name(self));
  if (with.kind != JJ_STR) {
    JJ_TRY(int_arg(c, with, "width", 4, &width));
    if (width > 1 << 20) return sh_jj_limit(c, "output");
    for (int64_t i = 0; i < width; i++) JJ_TRY(sh_jj_put(c, " ", 1));
    JJ_TRY(sh_jj_cut(c, mark, &with));
  }
  jj_str nl = {"\n", 1, 1, NULL};
  JJ_TRY(sh_jj_concat(c, self.s, &nl, &text)); /* a newline at the end makes one more (empty) line, as jinja2 does it */
  JJ_TRY(sh_jj_splitlines(c, text.s, false, &lines));
  for (size_t i = 0; i < lines->n; i++) {
    const jj_str *l = lines->v[i].s;
    if (i) JJ_TRY(sh_jj_put(c, "\n", 1));
    if (i ? blank || l->len : first) JJ_TRY(sh_jj_put(c, with.s->p, with.s->len));
    JJ_TRY(sh_jj_put(c, l->p, l->len));
  }
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = self.flag & JJ_MARKUP;
  return 0;
}

static int f_truncate(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t length, leeway = 5, n;
  bool ok;
  jj_val end = a->v[2];
  if (!jj_given(end)) JJ_TRY(sh_jj_str_ref(c, "...", 3, &end));
  if (end.kind != JJ_STR) return sh_jj_fail(c, "truncate: end must be a string");
  JJ_TRY(int_arg(c, a->v[0], "length", 255, &length));
  if (a->v[3].kind != JJ_NONE) JJ_TRY(int_arg(c, a->v[3], "leeway", 5, &leeway));
  int64_t end_n = (int64_t)sh_jj_cps(end.s);
  if (length < end_n) return sh_jj_fail(c, "expected length >= %lld, got %lld", (long long)end_n, (long long)length);
  if (leeway < 0) return sh_jj_fail(c, "expected leeway >= 0, got %lld", (long long)leeway);
  JJ_TRY(sh_jj_len(c, self, &ok, &n));
  if (!ok) return sh_jj_fail(c, "object of type '%s' has no len()", sh_jj_type_name(self));
  *out = self;
  if (n <= length || n - length <= leeway) return 0;
  if (self.kind != JJ_STR) return sh_jj_fail(c, "truncate wants a string, not %s", sh_jj_type_name(self));
  size_t keep = sh_jj_offset(self.s, (size_t)(length - end_n));
  if (!truthy(c, a->v[1])) {
    const char *space = memrchr(self.s->p, ' ', keep);
    if (space) keep = (size_t)(space - self.s->p);
  }
  jj_str head = {self.s->p, keep, SIZE_MAX, NULL};
  jj_val h = jj_str_val(&head);
  h.flag = self.flag;
  return sh_jj_arith(c, OP_ADD, h, end, out);
}

static int f_wordcount(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t n = 0;
  size_t k;
  bool in = false;
  (void)a;
  JJ_TRY(sh_jj_to_str(c, self, &self));
  JJ_TRY(sh_jj_step(c, self.s->len / 8));
  for (size_t i = 0; i < self.s->len; i += k) {
    bool w = sh_jj_is_word(sh_jj_cp(self.s->p + i, self.s->len - i, &k));
    n += w && !in;
    in = w;
  }
  *out = sh_jj_int(n);
  return 0;
}

static int f_format(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_val args;
  JJ_TRY(sh_jj_to_str(c, self, &self));
  if (a->n && a->nkw) return sh_jj_fail(c, "can't handle positional and keyword arguments at the same time");
  if (a->nkw) {
    jj_dict *d = sh_jj_dict(c);
    if (!d) return sh_jj_nomem(c);
    for (int i = 0; i < a->nkw; i++) JJ_TRY(sh_jj_dict_set(c, d, jj_str_val(a->kw[i].name), a->kw[i].v));
    args = (jj_val){.kind = JJ_DICT, .d = d};
  } else {
    jj_list *l = sh_jj_list(c, 0);
    if (!l) return sh_jj_nomem(c);
    *l = (jj_list){a->v, (size_t)a->n, (size_t)a->n, NULL};
    args = (jj_val){.kind = JJ_TUPLE, .l = l};
  }
  return sh_jj_percent(c, self.s, args, self.flag & JJ_MARKUP, out);
}

/* --- striptags, urlencode, xmlattr -------------------------------------------------------------------------------------------------- */
static bool strip_between(char *s, size_t *n, const char *open, const char *close) {
  char *from = memmem(s, *n, open, strlen(open));
  char *to = from ? memmem(from + strlen(open), *n - (size_t)(from - s) - strlen(open), close, strlen(close)) : NULL;
  if (!to) return false;
  to += strlen(close);
  memmove(from, to, *n - (size_t)(to - s));
  *n -= (size_t)(to - from);
  return true;
}

/* The five entities that escape() makes, and their decimal and hexadecimal relatives. */
static size_t unescape(char *s, size_t n) {
  static const struct {
    const char *from;
    char to;
  } t[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&#39;", '\''}, {"&#34;", '"'}, {"&apos;", '\''}};
  size_t w = 0;
  for (size_t i = 0; i < n; i++) {
    size_t k = 0;
    for (; k < sizeof t / sizeof *t; k++)
      if (i + strlen(t[k].from) <= n && memcmp(s + i, t[k].from, strlen(t[k].from)) == 0) break;
    if (k < sizeof t / sizeof *t) {
      s[w++] = t[k].to;
      i += strlen(t[k].from) - 1;
    } else {
      s[w++] = s[i];
    }
  }
  return w;
}

static int f_striptags(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)a;
  JJ_TRY(sh_jj_to_str(c, self, &self));
  size_t n = self.s->len, w = 0, k;
  char *s = sh_jj_alloc(c, n + 1, 1);
  if (!s) return sh_jj_nomem(c);
  if (n) memcpy(s, self.s->p, n);
  do JJ_TRY(sh_jj_step(c, 1 + n / 64));
  while (strip_between(s, &n, "<!--", "-->"));
  do JJ_TRY(sh_jj_step(c, 1 + n / 64));
  while (strip_between(s, &n, "<", ">"));
  bool space = true; /* runs of white space become one space */
  for (size_t i = 0; i < n; i += k) {
    bool sp = sh_jj_is_space(sh_jj_cp(s + i, n - i, &k));
    if (sp && !space) s[w++] = ' ';
    for (size_t j = 0; !sp && j < k; j++) s[w++] = s[i + j];
    space = sp;
  }
  if (w && s[w - 1] == ' ') w--;
  return sh_jj_str_ref(c, s, unescape(s, w), out);
}

static int url_quote(jj_ctx *c, jj_val v, bool query) {
  char buf[4];
  size_t mark = c->out.len;
  JJ_TRY(sh_jj_to_str(c, v, &v));
  c->out.len = mark;
  for (size_t i = 0; i < v.s->len; i++) {
    unsigned char ch = (unsigned char)v.s->p[i];
    bool plain = (ch < 0x80 && sh_jj_is_word(ch)) || ch == '.' || ch == '-' || ch == '~' || (ch == '/' && !query);
    if (plain) buf[0] = (char)ch;
    else if (ch == ' ' && query) buf[0] = '+';
    else snprintf(buf, sizeof buf, "%%%02X", ch);
    JJ_TRY(sh_jj_put(c, buf, plain || (ch == ' ' && query) ? 1 : 3));
  }
  return 0;
}

static int f_urlencode(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  size_t mark = c->out.len;
  jj_iter it;
  jj_view view = {.what = 2};
  bool more = true, first = true;
  jj_val v;
  jj_list *pair;
  (void)a;
  if (self.kind == JJ_STR || !sh_jj_iterable(self)) {
    JJ_TRY(url_quote(c, self, false));
    return sh_jj_cut(c, mark, out);
  }
  if (self.kind == JJ_DICT) {
    view.d = self.d;
    self = (jj_val){.kind = JJ_VIEW, .view = &view};
  }
  JJ_TRY(sh_jj_iter(c, self, &it));
  for (;;) {
    JJ_TRY(sh_jj_next(c, &it, &more, &v));
    if (!more) return sh_jj_cut(c, mark, out);
    JJ_TRY(sh_jj_to_list(c, v, &pair));
    if (pair->n != 2) return sh_jj_fail(c, "urlencode wants pairs");
    if (!first) JJ_TRY(sh_jj_put(c, "&", 1));
    first = false;
    JJ_TRY(url_quote(c, pair->v[0], true));
    JJ_TRY(sh_jj_put(c, "=", 1));
    JJ_TRY(url_quote(c, pair->v[1], true));
  }
}

static int f_xmlattr(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  size_t mark = c->out.len;
  bool autospace = !jj_given(a->v[0]) || sh_jj_truth(c, a->v[0]);
  if (self.kind != JJ_DICT) return sh_jj_fail(c, "xmlattr wants a mapping, not %s", sh_jj_type_name(self));
  for (size_t i = 0; i < self.d->n; i++) {
    jj_val k = self.d->e[i].k, v = self.d->e[i].v;
    if (v.kind == JJ_NONE || v.kind == JJ_UNDEF) continue;
    if (k.kind != JJ_STR) return sh_jj_fail(c, "xmlattr: a key is not a string");
    for (size_t j = 0; j < k.s->len; j++)
      if (strchr(" \t\n\r\f\v/>=", k.s->p[j])) return sh_jj_fail(c, "Invalid character in attribute name");
    if (c->out.len > mark || autospace) JJ_TRY(sh_jj_put(c, " ", 1));
    JJ_TRY(sh_jj_escape(c, k.s));
    JJ_TRY(sh_jj_put(c, "=\"", 2));
    JJ_TRY(sh_jj_escaped(c, v, &v));
    JJ_TRY(sh_jj_put(c, v.s->p, v.s->len));
    JJ_TRY(sh_jj_put(c, "\"", 1));
  }
  return sh_jj_cut(c, mark, out);
}

/* --- Numbers ------------------------------------------------------------------------------------------------------------------------ */
/* A number's text without white space around it and without single "_" between digits; false if it cannot be one. */
static bool number_text(const jj_str *s, char *buf, size_t cap) {
  const char *p;
  size_t n, w = 0;
  sh_jj_strip(s, NULL, true, true, &p, &n);
  if (n == 0 || n >= cap) return false;
  for (size_t i = 0; i < n; i++) {
    if (p[i] == '_') {
      if (i == 0 || i + 1 == n || p[i - 1] == '_' || !sh_jj_is_word((unsigned char)p[i - 1]) || !sh_jj_is_word((unsigned char)p[i + 1]))
        return false;
      continue;
    }
    if ((unsigned char)p[i] >= 0x80 || !p[i]) return false;
    buf[w++] = p[i];
  }
  buf[w] = 0;
  return true;
}

int sh_jj_parse_int(jj_ctx *c, const jj_str *s, int base, bool *ok, jj_val *out) {
  char buf[200];
  *ok = false;
  if (!number_text(s, buf, sizeof buf)) return 0;
  const char *p = buf;
  bool neg = *p == '-';
  if (*p == '-' || *p == '+') p++;
  char k = p[0] == '0' && p[1] ? p[1] | 32 : 0;
  int prefix = k == 'x' ? 16 : k == 'o' ? 8 : k == 'b' ? 2 : 0;
  if (prefix && (base == 0 || base == prefix)) p += 2, base = prefix;
  if (base == 0 && p[0] == '0' && strspn(p, "0") != strlen(p)) return 0;
  if (base == 0) base = 10;
  int64_t v = 0;
  bool big = false;
  if (!*p) return 0;
  for (const char *q = p; *q; q++) {
    int d = *q >= '0' && *q <= '9' ? *q - '0' : (*q | 32) >= 'a' && (*q | 32) <= 'z' ? (*q | 32) - 'a' + 10 : 99;
    if (d >= base) return 0;
    big = big || __builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v); /* kept negative: that side reaches further */
  }
  if (!big && !neg && v == INT64_MIN) big = true;
  *ok = true;
  if (big && base != 10) return sh_jj_fail(c, "an integer beyond 64 bits");
  if (!big) {
    *out = sh_jj_int(neg ? v : -v);
    return 0;
  }
  p += strspn(p, "0");
  size_t mark = c->out.len;
  if (neg) JJ_TRY(sh_jj_put(c, "-", 1));
  JJ_TRY(sh_jj_put(c, p, strlen(p)));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->kind = JJ_BIG;
  return 0;
}

int sh_jj_parse_float(jj_ctx *c, const jj_str *s, bool *ok, double *out) {
  char buf[400], *end;
  (void)c;
  *ok = false;
  if (!number_text(s, buf, sizeof buf) || strpbrk(buf, "xXpP(")) return 0;
  *out = strtod(buf, &end);
  *ok = *end == 0 && end != buf;
  return 0;
}

static int float_to_int(jj_ctx *c, double f, bool *ok, jj_val *out) {
  *ok = isfinite(f);
  if (!*ok) return 0;
  if (f >= 9223372036854775808.0 || f < -9223372036854775808.0) {
    char buf[400];
    JJ_TRY(sh_jj_str(c, buf, (size_t)snprintf(buf, sizeof buf, "%.0f", f), out));
    out->kind = JJ_BIG;
    return 0;
  }
  *out = sh_jj_int((int64_t)f);
  return 0;
}

static int f_int(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t i, base;
  double f = 0;
  bool ok = false;
  JJ_TRY(int_arg(c, a->v[1], "base", 10, &base));
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (sh_jj_as_int(self, &i)) {
    *out = sh_jj_int(i);
    return 0;
  }
  *out = self;
  if (self.kind == JJ_BIG) return 0;
  if (self.kind == JJ_FLOAT) {
    if (isinf(self.f)) return sh_jj_fail(c, "cannot convert float infinity to integer");
    JJ_TRY(float_to_int(c, self.f, &ok, out));
  } else if (self.kind == JJ_STR) {
    if (base == 0 || (base >= 2 && base <= 36)) JJ_TRY(sh_jj_parse_int(c, self.s, (int)base, &ok, out));
    if (ok) return 0;
    JJ_TRY(sh_jj_parse_float(c, self.s, &ok, &f));
    if (ok) JJ_TRY(float_to_int(c, f, &ok, out));
  }
  if (!ok) *out = jj_given(a->v[0]) ? a->v[0] : sh_jj_int(0);
  return 0;
}

static int f_float(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  double f = 0;
  bool ok = sh_jj_as_num(self, &f);
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind == JJ_BIG && isinf(f)) return sh_jj_fail(c, "int too large to convert to float");
  if (self.kind == JJ_STR) JJ_TRY(sh_jj_parse_float(c, self.s, &ok, &f));
  *out = ok ? sh_jj_float(f) : jj_given(a->v[0]) ? a->v[0] : sh_jj_float(0.0);
  return 0;
}

static int f_abs(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t i;
  (void)a;
  if (sh_jj_as_int(self, &i)) return sh_jj_negate(c, self, i < 0, out);
  if (self.kind == JJ_FLOAT) {
    *out = sh_jj_float(fabs(self.f));
    return 0;
  }
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind == JJ_BIG) {
    size_t sign = self.s->p[0] == '-';
    JJ_TRY(sh_jj_str_ref(c, self.s->p + sign, self.s->len - sign, out));
    out->kind = JJ_BIG;
    return 0;
  }
  return sh_jj_fail(c, "bad operand type for abs(): '%s'", sh_jj_type_name(self));
}

/* Half to even on the exact decimal value, which is what printf does too. */
static double round_to(double f, int64_t digits) {
  char buf[400];
  if (!isfinite(f) || digits > 320) return f;
  if (digits < -310) return copysign(0, f);
  if (digits < 0) {
    double p = pow(10, (double)-digits);
    return nearbyint(f / p) * p;
  }
  snprintf(buf, sizeof buf, "%.*f", (int)(digits > 60 ? 60 : digits), f);
  return digits > 60 ? f : strtod(buf, NULL);
}

/* To tens, hundreds, ...: half to even. */
static int round_int(jj_ctx *c, int64_t i, int64_t digits, jj_val *out) {
  int64_t p = 1, r;
  *out = sh_jj_int(i);
  if (digits >= 0) return 0;
  for (; digits < 0; digits++)
    if (__builtin_mul_overflow(p, 10, &p)) {
      *out = sh_jj_int(0);
      return 0;
    }
  int64_t q = i / p, rest = i % p, half = p / 2;
  if (rest > half || (rest == half && q % 2)) q++;
  else if (rest < -half || (rest == -half && q % 2)) q--;
  if (__builtin_mul_overflow(q, p, &r)) return sh_jj_fail(c, "the result is an integer beyond 64 bits");
  *out = sh_jj_int(r);
  return 0;
}

static int f_round(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t digits, i;
  double f;
  const char *method = "common";
  JJ_TRY(int_arg(c, a->v[0], "precision", 0, &digits));
  if (jj_given(a->v[1])) {
    method = a->v[1].kind != JJ_STR              ? ""
             : sh_jj_str_is(a->v[1].s, "common") ? "common"
             : sh_jj_str_is(a->v[1].s, "ceil")   ? "ceil"
             : sh_jj_str_is(a->v[1].s, "floor")  ? "floor"
                                                 : "";
    if (!*method) return sh_jj_fail(c, "method must be common, ceil or floor");
  }
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (!sh_jj_as_num(self, &f)) return sh_jj_fail(c, "type %s doesn't define __round__ method", sh_jj_type_name(self));
  if (*method == 'c' && method[1] == 'o') {
    if (self.kind == JJ_BIG) return sh_jj_fail(c, "an integer beyond 64 bits");
    if (sh_jj_as_int(self, &i)) return round_int(c, i, digits, out);
    *out = sh_jj_float(round_to(f, digits));
    return 0;
  }
  double p = pow(10, (double)digits), v = *method == 'c' ? ceil(f * p) : floor(f * p);
  if (!isfinite(v)) return sh_jj_fail(c, "cannot round this float");
  *out = sh_jj_float(v / p);
  return 0;
}

static int f_filesizeformat(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  static const char units[] = "kMGTPEZY";
  char buf[80];
  double f = 0;
  bool binary = truthy(c, a->v[0]), ok = sh_jj_as_num(self, &f);
  if (self.kind == JJ_STR) JJ_TRY(sh_jj_parse_float(c, self.s, &ok, &f));
  if (!ok) return sh_jj_fail(c, "filesizeformat wants a number, not %s", sh_jj_type_name(self));
  double base = binary ? 1024 : 1000, unit = base;
  if (f == 1) return sh_jj_str_ref(c, "1 Byte", 6, out);
  if (f < base) {
    snprintf(buf, sizeof buf, "%.0f Bytes", trunc(f) + 0.0);
  } else {
    int i = 0;
    for (unit = base * base; i < 7 && f >= unit; i++) unit *= base;
    snprintf(buf, sizeof buf, "%.1f %c%sB", base * f / unit, binary && i == 0 ? 'K' : units[i], binary ? "i" : "");
  }
  return sh_jj_str(c, buf, strlen(buf), out);
}

/* --- Others ------------------------------------------------------------------------------------------------------------------------- */
static int f_default(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  bool use = self.kind == JJ_UNDEF || (truthy(c, a->v[1]) && !sh_jj_truth(c, self));
  *out = self;
  if (!use) return 0;
  *out = a->v[0];
  return jj_given(a->v[0]) ? 0 : sh_jj_str_ref(c, "", 0, out);
}

static int f_attr(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  if (a->v[0].kind != JJ_STR) return sh_jj_fail(c, "attribute name must be string, not '%s'", sh_jj_type_name(a->v[0]));
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind != JJ_DICT) return sh_jj_getattr(c, self, a->v[0].s, out);
  jj_dict none = {0}; /* attributes only: the keys of a dictionary are no attributes here */
  JJ_TRY(sh_jj_getattr(c, (jj_val){.kind = JJ_DICT, .d = &none}, a->v[0].s, out));
  if (out->kind == JJ_METHOD) return sh_jj_getattr(c, self, a->v[0].s, out);
  return sh_jj_undef_of(c, self, a->v[0], out);
}

static int f_pprint(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  size_t mark = c->out.len;
  (void)a;
  if (self.kind == JJ_DICT) { /* keys in order; a value that needs more than one line is not laid out */
    jj_dict *d = sh_jj_dict(c);
    jj_val *v = sh_jj_alloc(c, self.d->n, sizeof *v), *k = sh_jj_alloc(c, self.d->n, sizeof *k);
    if (!d || !v || !k) return sh_jj_nomem(c);
    for (size_t i = 0; i < self.d->n; i++) v[i] = self.d->e[i].v, k[i] = self.d->e[i].k;
    JJ_TRY(sh_jj_sort(c, v, k, self.d->n, false));
    for (size_t i = 0; i < self.d->n; i++) JJ_TRY(sh_jj_dict_set(c, d, k[i], v[i]));
    self.d = d;
  }
  JJ_TRY(sh_jj_write_repr(c, self));
  JJ_TRY(sh_jj_cut(c, mark, out));
  return sh_jj_cps(out->s) <= 80 ? 0 : sh_jj_fail(c, "pprint of a value longer than a line");
}

static const jj_builtin filters[] = {
    {"abs", f_abs, "", 0, 0},
    {"attr", f_attr, "name", 1, 0},
    {"capitalize", f_capitalize, "", 0, 0},
    {"center", f_center, "width", 0, 0},
    {"d", f_default, "default_value|boolean", 0, 0},
    {"default", f_default, "default_value|boolean", 0, 0},
    {"e", f_escape, "", 0, 0},
    {"escape", f_escape, "", 0, 0},
    {"filesizeformat", f_filesizeformat, "binary", 0, 0},
    {"float", f_float, "default", 0, 0},
    {"forceescape", f_forceescape, "", 0, 0},
    {"format", f_format, NULL, 0, 0},
    {"indent", f_indent, "width|first|blank", 0, 0},
    {"int", f_int, "default|base", 0, 0},
    {"lower", f_lower, "", 0, 0},
    {"pprint", f_pprint, "", 0, 0},
    {"replace", f_replace, "old|new|count", 2, 0},
    {"round", f_round, "precision|method", 0, 0},
    {"safe", f_safe, "", 0, 0},
    {"string", f_string, "", 0, 0},
    {"striptags", f_striptags, "", 0, 0},
    {"title", f_title, "", 0, 0},
    {"tojson", sh_jj_tojson, "ensure_ascii|indent|separators|sort_keys", 0, 0},
    {"trim", f_trim, "chars", 0, 0},
    {"truncate", f_truncate, "length|killwords|end|leeway", 0, 0},
    {"upper", f_upper, "", 0, 0},
    {"urlencode", f_urlencode, "", 0, 0},
    {"wordcount", f_wordcount, "", 0, 0},
    {"wordwrap", sh_jj_wordwrap, "width|break_long_words|wrapstring|break_on_hyphens", 0, 0},
    {"xmlattr", f_xmlattr, "autospace", 0, 0},
};

const jj_builtin *sh_jj_table_find(const jj_builtin *t, size_t n, const char *name, size_t len) {
  for (size_t i = 0; i < n; i++)
    if (strlen(t[i].name) == len && memcmp(t[i].name, name, len) == 0) return &t[i];
  return NULL;
}

const jj_builtin *sh_jj_find_filter(const char *name, size_t n) {
  const jj_builtin *f = sh_jj_table_find(filters, sizeof filters / sizeof *filters, name, n);
  return f ? f : sh_jj_find_seq_filter(name, n);
}
