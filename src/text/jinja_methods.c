/* Methods of strings, dictionaries, lists, tuples, and the objects of jinja2 itself: what value.name( finds.
 *
 * Python's methods with Python's results, counted in code points. Methods that change a list or dictionary are known by name only, to be
 * refused the way the immutable sandbox does. A method of a safe string (Markup) returns a safe string. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* --- Helpers ------------------------------------------------------------------------------------------------------------------------ */
static int yes(bool b, jj_val *out) {
  *out = sh_jj_bool(b);
  return 0;
}

static int piece(jj_ctx *c, jj_val self, const char *p, size_t n, jj_val *out) {
  JJ_TRY(sh_jj_str_ref(c, p, n, out));
  if (self.s->ncp == self.s->len) out->s->ncp = n;
  out->flag = self.flag;
  return 0;
}

static int need_str(jj_ctx *c, jj_val v, const char *what) {
  if (v.kind == JJ_STR) return 0;
  if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
  return sh_jj_fail(c, "%s must be str, not %s", what, sh_jj_type_name(v));
}

static int opt_int(jj_ctx *c, jj_val v, int64_t dflt, int64_t *out) {
  *out = dflt;
  if (!jj_given(v) || v.kind == JJ_NONE) return 0;
  if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
  return sh_jj_as_int(v, out) ? 0 : sh_jj_fail(c, "'%s' object cannot be interpreted as an integer", sh_jj_type_name(v));
}

/* --- Case, classes ------------------------------------------------------------------------------------------------------------------ */
static int change(jj_ctx *c, jj_val self, jj_case how, jj_val *out) {
  JJ_TRY(sh_jj_change_case(c, self.s, how, out));
  out->flag = self.flag;
  return 0;
}
static int m_upper(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_UPPER, out); }
static int m_lower(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_LOWER, out); }
static int m_title(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_TITLE, out); }
static int m_capitalize(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_CAPITALIZE, out); }
static int m_swapcase(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_SWAPCASE, out); }
static int m_casefold(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)a, change(c, s, JJ_CASEFOLD, out); }

static bool is_alnum(uint32_t cp) { return sh_jj_is_alpha(cp) || sh_jj_is_numeric(cp); }
static bool is_ascii(uint32_t cp) { return cp < 0x80; }

/* Every code point is of the class, and there is one. */
static int all(jj_val s, bool (*is)(uint32_t), bool empty, jj_val *out) {
  size_t k;
  for (size_t i = 0; i < s.s->len; i += k)
    if (!is(sh_jj_cp(s.s->p + i, s.s->len - i, &k))) return yes(false, out);
  return yes(s.s->len || empty, out);
}
static int m_isalpha(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_alpha, false, out); }
static int m_isalnum(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, is_alnum, false, out); }
static int m_isascii(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, is_ascii, true, out); }
static int m_isdecimal(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_decimal, false, out); }
static int m_isdigit(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_digit, false, out); }
static int m_isnumeric(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_numeric, false, out); }
static int m_isspace(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_space, false, out); }
static int m_isprintable(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return (void)c, (void)a, all(s, sh_jj_is_printable, true, out); }

static int m_isidentifier(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  (void)c, (void)a;
  if (s.s->len && s.s->p[0] >= '0' && s.s->p[0] <= '9') return yes(false, out);
  return all(s, sh_jj_is_word, false, out);
}

static int letters(jj_val s, bool (*wrong)(uint32_t), bool (*right)(uint32_t), jj_val *out) {
  size_t k;
  bool any = false;
  for (size_t i = 0; i < s.s->len; i += k) {
    uint32_t cp = sh_jj_cp(s.s->p + i, s.s->len - i, &k);
    if (wrong(cp) || sh_jj_is_title(cp)) return yes(false, out);
    any |= right(cp);
  }
  return yes(any, out);
}
static int m_isupper(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  return (void)c, (void)a, letters(s, sh_jj_is_lower, sh_jj_is_upper, out);
}
static int m_islower(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  return (void)c, (void)a, letters(s, sh_jj_is_upper, sh_jj_is_lower, out);
}

static int m_istitle(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  bool before = false, any = false;
  size_t k;
  (void)c, (void)a;
  for (size_t i = 0; i < s.s->len; i += k) {
    uint32_t cp = sh_jj_cp(s.s->p + i, s.s->len - i, &k);
    bool up = sh_jj_is_upper(cp) || sh_jj_is_title(cp), low = sh_jj_is_lower(cp);
    if (up && before) return yes(false, out);
    if (low && !before) return yes(false, out);
    before = up || low;
    any |= before;
  }
  return yes(any, out);
}

/* --- Stripping, padding ------------------------------------------------------------------------------------------------------------- */
static int strip(jj_ctx *c, jj_val self, jj_args *a, bool left, bool right, jj_val *out) {
  const char *p;
  size_t n;
  bool set = jj_given(a->v[0]) && a->v[0].kind != JJ_NONE;
  if (set) JJ_TRY(need_str(c, a->v[0], "strip arg"));
  sh_jj_strip(self.s, set ? a->v[0].s : NULL, left, right, &p, &n);
  return piece(c, self, p, n, out);
}
static int m_strip(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return strip(c, s, a, true, true, out); }
static int m_lstrip(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return strip(c, s, a, true, false, out); }
static int m_rstrip(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return strip(c, s, a, false, true, out); }

static bool starts(const jj_str *s, const jj_str *p) { return s->len >= p->len && memcmp(s->p, p->p, p->len) == 0; }
static bool ends(const jj_str *s, const jj_str *p) { return s->len >= p->len && memcmp(s->p + s->len - p->len, p->p, p->len) == 0; }

static int m_removeprefix(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  JJ_TRY(need_str(c, a->v[0], "removeprefix() argument"));
  size_t n = starts(s.s, a->v[0].s) ? a->v[0].s->len : 0;
  return piece(c, s, s.s->p + n, s.s->len - n, out);
}
static int m_removesuffix(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  JJ_TRY(need_str(c, a->v[0], "removesuffix() argument"));
  return piece(c, s, s.s->p, s.s->len - (ends(s.s, a->v[0].s) ? a->v[0].s->len : 0), out);
}

/* left, right: code points of fill on either side */
static int padded(jj_ctx *c, jj_val s, jj_val fill, int64_t left, int64_t right, jj_val *out) {
  size_t mark = c->out.len;
  jj_str space = {" ", 1, 1, NULL}, *f = &space;
  if (jj_given(fill)) {
    JJ_TRY(need_str(c, fill, "the fill character"));
    if (sh_jj_cps(fill.s) != 1) return sh_jj_fail(c, "The fill character must be exactly one character long");
    f = fill.s;
  }
  if (left > 1 << 24 || right > 1 << 24) return sh_jj_limit(c, "output");
  JJ_TRY(sh_jj_step(c, (size_t)(left + right) / 8));
  for (; left > 0; left--) JJ_TRY(sh_jj_put(c, f->p, f->len));
  JJ_TRY(sh_jj_put(c, s.s->p, s.s->len));
  for (; right > 0; right--) JJ_TRY(sh_jj_put(c, f->p, f->len));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = s.flag;
  return 0;
}

static int room(jj_ctx *c, jj_val s, jj_args *a, int64_t *width, int64_t *out) {
  JJ_TRY(opt_int(c, a->v[0], 0, width));
  int64_t n = (int64_t)sh_jj_cps(s.s);
  *out = *width > n ? *width - n : 0;
  return 0;
}
static int m_ljust(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t w, n;
  JJ_TRY(room(c, s, a, &w, &n));
  return padded(c, s, a->v[1], 0, n, out);
}
static int m_rjust(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t w, n;
  JJ_TRY(room(c, s, a, &w, &n));
  return padded(c, s, a->v[1], n, 0, out);
}
static int m_center(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t w, n;
  JJ_TRY(room(c, s, a, &w, &n));
  int64_t left = n / 2 + (n & w & 1);
  return padded(c, s, a->v[1], left, n - left, out);
}
static int m_zfill(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t w, n;
  size_t mark = c->out.len, sign = s.s->len && (s.s->p[0] == '-' || s.s->p[0] == '+');
  JJ_TRY(room(c, s, a, &w, &n));
  if (n > 1 << 24) return sh_jj_limit(c, "output");
  JJ_TRY(sh_jj_put(c, s.s->p, sign));
  for (; n > 0; n--) JJ_TRY(sh_jj_put(c, "0", 1));
  JJ_TRY(sh_jj_put(c, s.s->p + sign, s.s->len - sign));
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = s.flag;
  return 0;
}

static int m_expandtabs(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t size, col = 0;
  size_t mark = c->out.len, k;
  JJ_TRY(opt_int(c, a->v[0], 8, &size));
  for (size_t i = 0; i < s.s->len; i += k) {
    uint32_t cp = sh_jj_cp(s.s->p + i, s.s->len - i, &k);
    if (cp == '\t') {
      for (int64_t n = size > 0 ? size - col % size : 0; n > 0; n--, col++) JJ_TRY(sh_jj_put(c, " ", 1));
      continue;
    }
    col = cp == '\n' || cp == '\r' ? 0 : col + 1;
    JJ_TRY(sh_jj_put(c, s.s->p + i, k));
  }
  JJ_TRY(sh_jj_cut(c, mark, out));
  out->flag = s.flag;
  return 0;
}

/* --- Searching ---------------------------------------------------------------------------------------------------------------------- */
/* s[start:end] as find, count, startswith take it. from: code points before it. False when start lies behind the end of s. */
static int window(jj_ctx *c, jj_val s, jj_val start, jj_val end, jj_str *w, int64_t *from, bool *ok) {
  int64_t n = (int64_t)sh_jj_cps(s.s), lo, hi;
  JJ_TRY(opt_int(c, start, 0, &lo));
  JJ_TRY(opt_int(c, end, n, &hi));
  if (hi > n) hi = n;
  if (hi < 0) hi = hi + n < 0 ? 0 : hi + n;
  if (lo < 0) lo = lo + n < 0 ? 0 : lo + n;
  *ok = lo <= hi;
  *from = lo;
  *w = (jj_str){"", 0, 0, NULL};
  if (!*ok) return 0;
  size_t a = sh_jj_offset(s.s, (size_t)lo), b = sh_jj_offset(s.s, (size_t)hi);
  *w = (jj_str){s.s->p + a, b - a, s.s->ncp == s.s->len ? b - a : SIZE_MAX, NULL};
  return sh_jj_step(c, s.s->len / 64);
}

/* One prefix or a tuple of them. */
static int affix(jj_ctx *c, jj_val s, jj_args *a, bool (*has)(const jj_str *, const jj_str *), const char *what, jj_val *out) {
  jj_str w;
  int64_t from;
  bool ok, hit = false;
  jj_val p = a->v[0];
  JJ_TRY(window(c, s, a->v[1], a->v[2], &w, &from, &ok));
  if (p.kind != JJ_TUPLE) {
    JJ_TRY(need_str(c, p, what));
    return yes(ok && has(&w, p.s), out);
  }
  for (size_t i = 0; i < p.l->n && !hit; i++) {
    JJ_TRY(need_str(c, p.l->v[i], what));
    hit = ok && has(&w, p.l->v[i].s);
  }
  return yes(hit, out);
}
static int m_startswith(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return affix(c, s, a, starts, "startswith first arg", out); }
static int m_endswith(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return affix(c, s, a, ends, "endswith first arg", out); }

static const char *find_last(const char *s, size_t n, const jj_str *sub) {
  if (sub->len > n) return NULL;
  for (const char *p = s + (n - sub->len);; p--) {
    if (memcmp(p, sub->p, sub->len) == 0) return p;
    if (p == s) return NULL;
  }
}

static int search(jj_ctx *c, jj_val s, jj_args *a, bool last, bool must, jj_val *out) {
  jj_str w;
  int64_t from;
  bool ok;
  JJ_TRY(need_str(c, a->v[0], "the string to find"));
  const jj_str *sub = a->v[0].s;
  JJ_TRY(window(c, s, a->v[1], a->v[2], &w, &from, &ok));
  if (last) JJ_TRY(sh_jj_step(c, w.len / 8));
  const char *hit = !ok ? NULL : last ? find_last(w.p, w.len, sub) : sub->len ? memmem(w.p, w.len, sub->p, sub->len) : w.p;
  if (!hit && must) return sh_jj_fail(c, "substring not found");
  jj_str before = {w.p, hit ? (size_t)(hit - w.p) : 0, SIZE_MAX, NULL};
  *out = sh_jj_int(hit ? from + (int64_t)sh_jj_cps(&before) : -1);
  return 0;
}
static int m_find(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return search(c, s, a, false, false, out); }
static int m_rfind(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return search(c, s, a, true, false, out); }
static int m_index(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return search(c, s, a, false, true, out); }
static int m_rindex(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return search(c, s, a, true, true, out); }

static int m_count(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  jj_str w;
  int64_t from, n = 0;
  bool ok;
  JJ_TRY(need_str(c, a->v[0], "the string to count"));
  const jj_str *sub = a->v[0].s;
  JJ_TRY(window(c, s, a->v[1], a->v[2], &w, &from, &ok));
  if (!sub->len) {
    n = ok ? (int64_t)sh_jj_cps(&w) + 1 : 0;
  } else {
    for (const char *p = w.p, *end = w.p + w.len; (p = memmem(p, (size_t)(end - p), sub->p, sub->len)); p += sub->len) n++;
  }
  *out = sh_jj_int(n);
  return 0;
}

int sh_jj_replace(jj_ctx *c, const jj_str *s, const jj_str *old, const jj_str *with, int64_t count, jj_val *out) {
  size_t mark = c->out.len, k;
  const char *p = s->p, *end = s->p + s->len, *hit;
  JJ_TRY(sh_jj_step(c, s->len / 64));
  if (!old->len) { /* between all code points */
    for (; count; count--) {
      JJ_TRY(sh_jj_put(c, with->p, with->len));
      if (p >= end) break;
      sh_jj_cp(p, (size_t)(end - p), &k);
      JJ_TRY(sh_jj_put(c, p, k));
      p += k;
      JJ_TRY(sh_jj_step(c, 1));
    }
  } else {
    for (; count && (hit = memmem(p, (size_t)(end - p), old->p, old->len)); count--) {
      JJ_TRY(sh_jj_put(c, p, (size_t)(hit - p)));
      JJ_TRY(sh_jj_put(c, with->p, with->len));
      p = hit + old->len;
    }
  }
  JJ_TRY(sh_jj_put(c, p, (size_t)(end - p)));
  return sh_jj_cut(c, mark, out);
}

static int m_replace(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  int64_t count;
  jj_val with = a->v[1];
  JJ_TRY(need_str(c, a->v[0], "replace() argument 1"));
  JJ_TRY(need_str(c, with, "replace() argument 2"));
  JJ_TRY(opt_int(c, a->v[2], -1, &count));
  if (s.flag & JJ_MARKUP) JJ_TRY(sh_jj_escaped(c, with, &with));
  JJ_TRY(sh_jj_replace(c, s.s, a->v[0].s, with.s, count, out));
  out->flag = s.flag;
  return 0;
}

/* --- Splitting, joining ------------------------------------------------------------------------------------------------------------- */
static int add_piece(jj_ctx *c, jj_val self, jj_list *l, const char *from, const char *to) {
  jj_val v;
  JJ_TRY(piece(c, self, from, (size_t)(to - from), &v));
  return sh_jj_push(c, l, v);
}

static int split_space(jj_ctx *c, jj_val self, int64_t max, jj_list *l) {
  const char *p = self.s->p, *end = p + self.s->len;
  size_t k;
  for (;;) {
    while (p < end && sh_jj_is_space(sh_jj_cp(p, (size_t)(end - p), &k))) p += k;
    if (p >= end) return 0;
    if (max-- == 0) return add_piece(c, self, l, p, end); /* what is left keeps its spaces at the end */
    const char *from = p;
    while (p < end && !sh_jj_is_space(sh_jj_cp(p, (size_t)(end - p), &k))) p += k;
    JJ_TRY(add_piece(c, self, l, from, p));
  }
}

static int split_sep(jj_ctx *c, jj_val self, const jj_str *sep, int64_t max, jj_list *l) {
  const char *p = self.s->p, *end = p + self.s->len, *hit;
  while (max-- != 0 && (hit = memmem(p, (size_t)(end - p), sep->p, sep->len))) {
    JJ_TRY(add_piece(c, self, l, p, hit));
    p = hit + sep->len;
  }
  return add_piece(c, self, l, p, end);
}

static const char *space_before(const char *s, const char *end, bool want) { /* the end of s without its last run of (non-)space */
  while (end > s) {
    const char *p = end;
    size_t k;
    do p--;
    while (p > s && ((unsigned char)*p & 0xc0) == 0x80);
    if (sh_jj_is_space(sh_jj_cp(p, (size_t)(end - p), &k)) != want) break;
    end = p;
  }
  return end;
}

static int rsplit(jj_ctx *c, jj_val self, const jj_str *sep, int64_t max, jj_list *l) {
  const char *s = self.s->p, *end = s + self.s->len;
  if (sep) {
    const char *hit;
    for (; max-- != 0 && (hit = find_last(s, (size_t)(end - s), sep)); end = hit) {
      JJ_TRY(sh_jj_step(c, 1 + (size_t)(end - hit) / 8));
      JJ_TRY(add_piece(c, self, l, hit + sep->len, end));
    }
    JJ_TRY(add_piece(c, self, l, s, end));
  } else {
    for (;;) {
      end = space_before(s, end, true);
      if (end == s) break;
      if (max-- == 0) {
        JJ_TRY(add_piece(c, self, l, self.s->p, end));
        break;
      }
      const char *from = space_before(s, end, false);
      JJ_TRY(add_piece(c, self, l, from, end));
      end = from;
    }
  }
  for (size_t i = 0; i < l->n / 2; i++) {
    jj_val t = l->v[i];
    l->v[i] = l->v[l->n - 1 - i];
    l->v[l->n - 1 - i] = t;
  }
  return 0;
}

static int split(jj_ctx *c, jj_val s, jj_args *a, bool right, jj_val *out) {
  int64_t max;
  const jj_str *sep = NULL;
  jj_list *l = sh_jj_list(c, 0);
  if (!l) return sh_jj_nomem(c);
  if (jj_given(a->v[0]) && a->v[0].kind != JJ_NONE) {
    JJ_TRY(need_str(c, a->v[0], "the separator"));
    sep = a->v[0].s;
    if (!sep->len) return sh_jj_fail(c, "empty separator");
  }
  JJ_TRY(opt_int(c, a->v[1], -1, &max));
  if (max < 0) max = -1;
  JJ_TRY(sh_jj_step(c, s.s->len / 16));
  if (right) JJ_TRY(rsplit(c, s, sep, max, l));
  else if (sep) JJ_TRY(split_sep(c, s, sep, max, l));
  else JJ_TRY(split_space(c, s, max, l));
  *out = sh_jj_list_val(l);
  return 0;
}
static int m_split(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return split(c, s, a, false, out); }
static int m_rsplit(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return split(c, s, a, true, out); }

static bool line_end(uint32_t cp) {
  return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static int splitlines(jj_ctx *c, jj_val self, bool keep, jj_list **out) {
  const char *p = self.s->p, *end = p + self.s->len, *from = p;
  jj_list *l = *out = sh_jj_list(c, 0);
  size_t k;
  if (!l) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_step(c, self.s->len / 16));
  while (p < end) {
    uint32_t cp = sh_jj_cp(p, (size_t)(end - p), &k);
    const char *next = p + k;
    if (line_end(cp)) {
      if (cp == '\r' && next < end && *next == '\n') next++;
      JJ_TRY(add_piece(c, self, l, from, keep ? next : p));
      from = next;
    }
    p = next;
  }
  return from < end ? add_piece(c, self, l, from, end) : 0;
}

int sh_jj_splitlines(jj_ctx *c, const jj_str *s, bool keep, jj_list **out) {
  jj_str copy = *s;
  return splitlines(c, jj_str_val(&copy), keep, out);
}

static int m_splitlines(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  jj_list *l;
  JJ_TRY(splitlines(c, s, jj_given(a->v[0]) && sh_jj_truth(c, a->v[0]), &l));
  *out = sh_jj_list_val(l);
  return 0;
}

static int partition(jj_ctx *c, jj_val s, jj_args *a, bool right, jj_val *out) {
  jj_list *l = sh_jj_list(c, 3);
  if (!l) return sh_jj_nomem(c);
  JJ_TRY(need_str(c, a->v[0], "the separator"));
  const jj_str *sep = a->v[0].s;
  if (!sep->len) return sh_jj_fail(c, "empty separator");
  const char *p = s.s->p, *end = p + s.s->len;
  const char *hit = right ? find_last(p, s.s->len, sep) : memmem(p, s.s->len, sep->p, sep->len);
  const char *cut = hit ? hit : right ? p : end, *rest = hit ? hit + sep->len : cut;
  JJ_TRY(sh_jj_step(c, s.s->len / 16));
  JJ_TRY(add_piece(c, s, l, p, cut));
  JJ_TRY(add_piece(c, s, l, cut, rest));
  JJ_TRY(add_piece(c, s, l, rest, end));
  *out = (jj_val){.kind = JJ_TUPLE, .l = l};
  return 0;
}
static int m_partition(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return partition(c, s, a, false, out); }
static int m_rpartition(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) { return partition(c, s, a, true, out); }

int sh_jj_join(jj_ctx *c, const jj_str *sep, jj_list *l, bool strict, jj_val *out) {
  size_t mark = c->out.len;
  for (size_t i = 0; i < l->n; i++) {
    if (strict && l->v[i].kind != JJ_STR)
      return sh_jj_fail(c, "sequence item %zu: expected str instance, %s found", i, sh_jj_type_name(l->v[i]));
    JJ_TRY(sh_jj_step(c, 1));
    if (i) JJ_TRY(sh_jj_put(c, sep->p, sep->len));
    JJ_TRY(sh_jj_write(c, l->v[i]));
  }
  return sh_jj_cut(c, mark, out);
}

static int m_join(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  jj_list *l;
  JJ_TRY(sh_jj_to_list(c, a->v[0], &l));
  if (!(s.flag & JJ_MARKUP)) return sh_jj_join(c, s.s, l, true, out);
  jj_list *safe = sh_jj_list(c, l->n);
  if (!safe) return sh_jj_nomem(c);
  for (; safe->n < l->n; safe->n++) JJ_TRY(sh_jj_escaped(c, l->v[safe->n], &safe->v[safe->n]));
  JJ_TRY(sh_jj_join(c, s.s, safe, true, out));
  out->flag = s.flag;
  return 0;
}

static int m_format_map(jj_ctx *c, jj_val s, jj_args *a, jj_val *out) {
  jj_val map = a->v[0];
  if (map.kind != JJ_DICT) return sh_jj_fail(c, "format_map() wants a mapping, not %s", sh_jj_type_name(map));
  if (map.d->n > 10000) return sh_jj_limit(c, "argument");
  jj_args args = {.kw = sh_jj_alloc(c, map.d->n, sizeof *args.kw)};
  if (!args.kw) return sh_jj_nomem(c);
  for (size_t i = 0; i < map.d->n; i++)
    if (map.d->e[i].k.kind == JJ_STR) args.kw[args.nkw++] = (jj_kw){map.d->e[i].k.s, map.d->e[i].v};
  return sh_jj_str_format(c, s, &args, out);
}

/* --- Dictionaries, lists, objects --------------------------------------------------------------------------------------------------- */
static int m_get(jj_ctx *c, jj_val d, jj_args *a, jj_val *out) {
  bool found;
  *out = jj_given(a->v[1]) ? a->v[1] : sh_jj_none;
  return sh_jj_dict_get(c, d.d, a->v[0], &found, out);
}

static int view(jj_ctx *c, jj_val d, int what, jj_val *out) {
  jj_view *v = sh_jj_alloc(c, 1, sizeof *v);
  if (!v) return sh_jj_nomem(c);
  *v = (jj_view){d.d, what};
  *out = (jj_val){.kind = JJ_VIEW, .view = v};
  return 0;
}
static int m_keys(jj_ctx *c, jj_val d, jj_args *a, jj_val *out) { return (void)a, view(c, d, 0, out); }
static int m_values(jj_ctx *c, jj_val d, jj_args *a, jj_val *out) { return (void)a, view(c, d, 1, out); }
static int m_items(jj_ctx *c, jj_val d, jj_args *a, jj_val *out) { return (void)a, view(c, d, 2, out); }

static int m_copy(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { /* nothing can change it, so it is its own copy */
  (void)c, (void)a;
  *out = v;
  return 0;
}

static int m_list_count(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  int64_t n = 0;
  bool eq;
  jj_list *l;
  JJ_TRY(sh_jj_to_list(c, v, &l));
  for (size_t i = 0; i < l->n; i++) {
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(sh_jj_eq(c, l->v[i], a->v[0], &eq));
    n += eq;
  }
  *out = sh_jj_int(n);
  return 0;
}

static int m_list_index(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  int64_t n, lo, hi;
  bool eq;
  jj_list *l;
  JJ_TRY(sh_jj_to_list(c, v, &l));
  n = (int64_t)l->n;
  JJ_TRY(opt_int(c, a->v[1], 0, &lo));
  JJ_TRY(opt_int(c, a->v[2], n, &hi));
  if (lo < 0) lo = lo + n < 0 ? 0 : lo + n;
  if (hi < 0) hi += n;
  for (int64_t i = lo; i < n && i < hi; i++) {
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(sh_jj_eq(c, l->v[i], a->v[0], &eq));
    if (!eq) continue;
    *out = sh_jj_int(i);
    return 0;
  }
  return sh_jj_fail(c, "the value is not in the %s", sh_jj_type_name(v));
}

static int m_is_integer(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  return (void)c, (void)a, yes(isfinite(v.f) && v.f == floor(v.f), out);
}

static int m_next(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  (void)c, (void)a;
  *out = v.cyc->l->v[v.cyc->pos];
  v.cyc->pos = (v.cyc->pos + 1) % v.cyc->l->n;
  return 0;
}
static int m_reset(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  (void)c, (void)a;
  v.cyc->pos = 0;
  *out = sh_jj_none;
  return 0;
}

static const jj_builtin methods[] = {
    {"capitalize", m_capitalize, "", 0, JJ_STR},
    {"casefold", m_casefold, "", 0, JJ_STR},
    {"center", m_center, "width|fillchar", 1, JJ_STR},
    {"count", m_count, "sub|start|end", 1, JJ_STR},
    {"endswith", m_endswith, "suffix|start|end", 1, JJ_STR},
    {"expandtabs", m_expandtabs, "tabsize", 0, JJ_STR},
    {"find", m_find, "sub|start|end", 1, JJ_STR},
    {"format", sh_jj_str_format, NULL, 0, JJ_STR},
    {"format_map", m_format_map, "mapping", 1, JJ_STR},
    {"index", m_index, "sub|start|end", 1, JJ_STR},
    {"isalnum", m_isalnum, "", 0, JJ_STR},
    {"isalpha", m_isalpha, "", 0, JJ_STR},
    {"isascii", m_isascii, "", 0, JJ_STR},
    {"isdecimal", m_isdecimal, "", 0, JJ_STR},
    {"isdigit", m_isdigit, "", 0, JJ_STR},
    {"isidentifier", m_isidentifier, "", 0, JJ_STR},
    {"islower", m_islower, "", 0, JJ_STR},
    {"isnumeric", m_isnumeric, "", 0, JJ_STR},
    {"isprintable", m_isprintable, "", 0, JJ_STR},
    {"isspace", m_isspace, "", 0, JJ_STR},
    {"istitle", m_istitle, "", 0, JJ_STR},
    {"isupper", m_isupper, "", 0, JJ_STR},
    {"join", m_join, "iterable", 1, JJ_STR},
    {"ljust", m_ljust, "width|fillchar", 1, JJ_STR},
    {"lower", m_lower, "", 0, JJ_STR},
    {"lstrip", m_lstrip, "chars", 0, JJ_STR},
    {"partition", m_partition, "sep", 1, JJ_STR},
    {"removeprefix", m_removeprefix, "prefix", 1, JJ_STR},
    {"removesuffix", m_removesuffix, "suffix", 1, JJ_STR},
    {"replace", m_replace, "old|new|count", 2, JJ_STR},
    {"rfind", m_rfind, "sub|start|end", 1, JJ_STR},
    {"rindex", m_rindex, "sub|start|end", 1, JJ_STR},
    {"rjust", m_rjust, "width|fillchar", 1, JJ_STR},
    {"rpartition", m_rpartition, "sep", 1, JJ_STR},
    {"rsplit", m_rsplit, "sep|maxsplit", 0, JJ_STR},
    {"rstrip", m_rstrip, "chars", 0, JJ_STR},
    {"split", m_split, "sep|maxsplit", 0, JJ_STR},
    {"splitlines", m_splitlines, "keepends", 0, JJ_STR},
    {"startswith", m_startswith, "prefix|start|end", 1, JJ_STR},
    {"strip", m_strip, "chars", 0, JJ_STR},
    {"swapcase", m_swapcase, "", 0, JJ_STR},
    {"title", m_title, "", 0, JJ_STR},
    {"upper", m_upper, "", 0, JJ_STR},
    {"zfill", m_zfill, "width", 1, JJ_STR},
    {"copy", m_copy, "", 0, JJ_DICT},
    {"get", m_get, "key|default", 1, JJ_DICT},
    {"items", m_items, "", 0, JJ_DICT},
    {"keys", m_keys, "", 0, JJ_DICT},
    {"values", m_values, "", 0, JJ_DICT},
    {"copy", m_copy, "", 0, JJ_LIST},
    {"count", m_list_count, "value", 1, JJ_LIST},
    {"index", m_list_index, "value|start|stop", 1, JJ_LIST},
    {"count", m_list_count, "value", 1, JJ_RANGE},
    {"index", m_list_index, "value|start|stop", 1, JJ_RANGE},
    {"count", m_list_count, "value", 1, JJ_TUPLE},
    {"index", m_list_index, "value|start|stop", 1, JJ_TUPLE},
    {"is_integer", m_is_integer, "", 0, JJ_FLOAT},
    {"next", m_next, "", 0, JJ_CYCLER},
    {"reset", m_reset, "", 0, JJ_CYCLER},
};

const jj_builtin *sh_jj_find_method(jj_val self, const jj_str *name) {
  if (self.kind == JJ_LOOP) return sh_jj_loop_method(name);
  for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
    if (methods[i].kind == self.kind && sh_jj_str_is(name, methods[i].name)) return &methods[i];
  return NULL;
}

bool sh_jj_mutates(jj_kind k, const jj_str *name) {
  static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static const char *const of_list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  const char *const *t = k == JJ_DICT ? of_dict : of_list;
  size_t n = k == JJ_DICT ? sizeof of_dict / sizeof *of_dict : k == JJ_LIST ? sizeof of_list / sizeof *of_list : 0;
  for (size_t i = 0; i < n; i++)
    if (sh_jj_str_is(name, t[i])) return true;
  return false;
}
