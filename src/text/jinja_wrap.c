/* The wordwrap filter: Python's textwrap.wrap over each line, as jinja2 calls it (tabs and white space kept as they are).
 *
 * A line is cut into chunks (a word, a part of a hyphenated word with its hyphen, a dash between words, a run of white space), which are
 * packed greedily. textwrap finds the chunks with a regular expression; here they are found by hand over an array of code points, since a
 * lazy expression with lookbehinds in a backtracking engine can be made slow by a template's input. White space at the ends of lines is
 * dropped by textwrap's rule, which looks at the last chunk only: a long word that is cut to nothing there saves the blank before it. */
#include "text/jinja_int.h"

typedef struct wrapper {
  jj_ctx *c;
  const uint32_t *s;  /* the line, [n] code points */
  const uint32_t *at; /* [n + 1] byte offsets */
  const char *bytes;
  size_t n, width;
  bool break_long, hyphens;
  const jj_str *sep;
  size_t lines; /* put so far for this line of the text */
  size_t rest;  /* end of the chunk that was cut: what remains of it stays one chunk */
} wrapper;

/* --- Chunks --------------------------------------------------------------------------------------------------------------------------- */
static bool blank(uint32_t ch) { return ch == ' ' || (ch >= 9 && ch <= 13); }
static bool letter(uint32_t ch) { return sh_jj_is_word(ch) && !sh_jj_is_decimal(ch); }
static bool word_punct(uint32_t ch) {
  return sh_jj_is_word(ch) || ch == '!' || ch == '"' || ch == '\'' || ch == '&' || ch == '.' || ch == ',' || ch == '?';
}

/* The end of a dash (two hyphens or more with a word character after them) that stands at i behind a word; 0 when there is none. */
static size_t dash_end(const wrapper *w, size_t i) {
  if (!i || !word_punct(w->s[i - 1])) return 0;
  size_t e = i;
  while (e < w->n && w->s[e] == '-') e++;
  return e - i >= 2 && e < w->n && sh_jj_is_word(w->s[e]) ? e : 0;
}

/* A hyphen at i that may end a line: letters on both sides, two of them or parted by other hyphens. */
static bool breaking_hyphen(const wrapper *w, size_t i) {
  const uint32_t *s = w->s;
  if (s[i] != '-') return false;
  bool before = (i >= 2 && letter(s[i - 1]) && letter(s[i - 2])) || (i >= 3 && letter(s[i - 1]) && s[i - 2] == '-' && letter(s[i - 3]));
  if (!before || i + 1 >= w->n || !letter(s[i + 1])) return false;
  return (i + 2 < w->n && letter(s[i + 2])) || (i + 3 < w->n && s[i + 2] == '-' && letter(s[i + 3]));
}

static size_t chunk_end(const wrapper *w, size_t i) {
  size_t e = i + 1;
  if (i < w->rest) return w->rest;
  if (blank(w->s[i])) {
    while (e < w->n && blank(w->s[e])) e++;
    return e;
  }
  size_t dash = w->hyphens && w->s[i] == '-' ? dash_end(w, i) : 0;
  if (dash) return dash;
  for (; e < w->n && !blank(w->s[e]); e++) {
    if (!w->hyphens || w->s[e] != '-') continue;
    if (breaking_hyphen(w, e)) return e + 1;
    if (dash_end(w, e)) return e;
  }
  return e;
}

/* --- Lines ---------------------------------------------------------------------------------------------------------------------------- */
static bool all_space(const wrapper *w, size_t from, size_t to) {
  while (from < to && sh_jj_is_space(w->s[from])) from++;
  return from == to;
}

/* Where a word [i, e) that is too long for any line is cut when `room` code points are left. */
static size_t cut_at(const wrapper *w, size_t i, size_t room) {
  if (!w->hyphens) return i + room;
  for (size_t h = room; h-- > 1;) {
    if (w->s[i + h] != '-') continue;
    for (size_t k = 0; k < h; k++)
      if (w->s[i + k] != '-') return i + h + 1;
    break; /* the last hyphen decides */
  }
  return i + room;
}

/* Fills one line from *pos; puts it. */
static int put_line(wrapper *w, size_t *pos) {
  size_t i = *pos, e = chunk_end(w, i);
  if (w->lines && all_space(w, i, e)) i = e;
  size_t start = i, last = i, used = 0; /* last: where the line's last chunk starts */
  bool any = false;
  while (i < w->n && (e = chunk_end(w, i)) - i <= w->width - used) {
    used += e - i;
    last = i;
    i = e;
    any = true;
  }
  if (i < w->n && e - i > w->width && (w->break_long || !any)) {
    last = i;
    w->rest = e;
    i = w->break_long ? cut_at(w, i, w->width - used) : e;
    any = true;
  }
  JJ_TRY(sh_jj_step(w->c, i - *pos + 1));
  *pos = i;
  size_t end = any && all_space(w, last, i) ? last : i;
  if (end == start) return 0;
  if (w->lines++) JJ_TRY(sh_jj_put(w->c, w->sep->p, w->sep->len));
  return sh_jj_put(w->c, w->bytes + w->at[start], w->at[end] - w->at[start]);
}

static int wrap_line(wrapper *w, const jj_str *line) {
  uint32_t *s = sh_jj_alloc(w->c, line->len + 1, sizeof *s), *at = sh_jj_alloc(w->c, line->len + 1, sizeof *at);
  if (!s || !at) return sh_jj_nomem(w->c);
  w->n = 0;
  w->lines = w->rest = 0;
  for (size_t i = 0, k; i < line->len; i += k) {
    at[w->n] = (uint32_t)i;
    s[w->n++] = sh_jj_cp(line->p + i, line->len - i, &k);
  }
  at[w->n] = (uint32_t)line->len;
  w->s = s;
  w->at = at;
  w->bytes = line->p;
  for (size_t pos = 0; pos < w->n;) JJ_TRY(put_line(w, &pos));
  return 0;
}

int sh_jj_wordwrap(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t width = 79;
  jj_list *lines;
  size_t mark = c->out.len;
  jj_val sep = a->v[2];
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind != JJ_STR) return sh_jj_fail(c, "wordwrap wants a string, not %s", sh_jj_type_name(self));
  if (self.s->len > UINT32_MAX) return sh_jj_limit(c, "memory");
  if (jj_given(a->v[0]) && !sh_jj_as_int(a->v[0], &width))
    return sh_jj_fail(c, "width must be an integer, not %s", sh_jj_type_name(a->v[0]));
  if (!jj_given(sep) || sep.kind == JJ_NONE) JJ_TRY(sh_jj_str_ref(c, "\n", 1, &sep));
  if (sep.kind != JJ_STR) return sh_jj_fail(c, "wrapstring must be a string, not %s", sh_jj_type_name(sep));
  wrapper w = {.c = c, .width = width > 0 ? (size_t)width : 0, .sep = sep.s};
  w.break_long = !jj_given(a->v[1]) || sh_jj_truth(c, a->v[1]);
  w.hyphens = !jj_given(a->v[3]) || sh_jj_truth(c, a->v[3]);
  JJ_TRY(sh_jj_splitlines(c, self.s, false, &lines));
  if (lines->n && width <= 0) return sh_jj_fail(c, "invalid width %lld (must be > 0)", (long long)width);
  for (size_t i = 0; i < lines->n; i++) {
    if (i) JJ_TRY(sh_jj_put(c, sep.s->p, sep.s->len));
    JJ_TRY(wrap_line(&w, lines->v[i].s));
  }
  return sh_jj_cut(c, mark, out);
}
