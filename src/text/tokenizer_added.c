/* The matcher of added tokens.
 *
 * Built by the thread that opens a model, then read-only. The tokens lie sorted; from a position of the text the range of those that still
 * fit is narrowed byte by byte, and the last one that was complete wins. Nearly all tokens begin with "<", so memchr does the walking. The
 * white space and word rules are those of HF tokenizers (whose regex engine defines both): they look at the text as it was before any token
 * was cut out, and a token that is refused for standing inside a word still moves the search behind itself. Two tokens can have the same
 * text after normalization; then the one listed first matches (HF tokenizers picks one at random). Refused: an Aho-Corasick automaton. It
 * is linear even where tokens share long prefixes, but its tables are large, and the files that would need it do not exist: the narrowing
 * ends after one or two bytes at all but the real tokens. */
#include "text/tokenizer_added.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int sh_added_add(sh_added *a, int32_t id, const char *content, size_t len, unsigned flags, sh_error *e) {
  if (a->n == a->cap) {
    uint32_t cap = a->cap ? 2 * a->cap : 32;
    sh_added_token *v = sh_realloc(a->v, cap * sizeof *v);
    if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the added tokens");
    a->v = v;
    a->cap = cap;
  }
  if (a->text.max == 0) sh_buf_init(&a->text, 1 << 28);
  size_t off = a->text.len;
  int rc = sh_buf_put(&a->text, content, len);
  if (rc) return sh_fail(e, rc, "the added tokens are too long or memory ran out");
  a->v[a->n++] = (sh_added_token){(uint32_t)off, (uint32_t)len, id, (uint8_t)flags};
  return 0;
}

static int compare(const void *x, const void *y, void *text) {
  const sh_added_token *a = x, *b = y;
  int d = memcmp((char *)text + a->off, (char *)text + b->off, a->len < b->len ? a->len : b->len);
  if (d == 0) d = (a->len > b->len) - (a->len < b->len);
  return d ? d : (a->off > b->off) - (a->off < b->off);
}

void sh_added_finish(sh_added *a) {
  a->only_first = -1;
  if (a->n == 0) return;
  qsort_r(a->v, a->n, sizeof *a->v, compare, a->text.p);
  uint32_t i = 0;
  for (int c = 0; c < 256; c++) {
    a->first[c] = i;
    while (i < a->n && (unsigned char)a->text.p[a->v[i].off] == c) i++;
    if (a->first[c] == 0 && i == a->n) a->only_first = c;
  }
  a->first[256] = i;
}

void sh_added_free(sh_added *a) {
  sh_free(a->v);
  sh_buf_free(&a->text);
  memset(a, 0, sizeof *a);
}

/* --- White space and words, as Rust's regex engine defines them ----------------------------------------------------------------------- */

static bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* \w: alphabetic, mark, decimal digit, connector, joiner. Circled and squared letters are symbols that Unicode calls alphabetic. */
static bool is_word(uint32_t c) {
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
    return true;
  if (c == 0x200C || c == 0x200D) return true;
  switch (utf8proc_category((utf8proc_int32_t)c)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC: return true;
  default: return false;
  }
}

static size_t char_at(const char *s, size_t n, size_t i, uint32_t *cp) {
  int used = sh_utf8_decode(s + i, n - i, cp);
  return (size_t)(used < 0 ? -used : used);
}

/* The start of the character that ends at i > 0. */
static size_t char_before(const char *s, size_t i, uint32_t *cp) {
  size_t start = i - 1;
  while (start > 0 && i - start < 4 && ((unsigned char)s[start] & 0xC0) == 0x80) start--;
  char_at(s, i, start, cp);
  return start;
}

static bool inside_word(const char *s, size_t n, size_t start, size_t end) {
  uint32_t cp;
  if (start > 0) {
    char_before(s, start, &cp);
    if (is_word(cp)) return true;
  }
  if (end == n) return false;
  char_at(s, n, end, &cp);
  return is_word(cp);
}

/* Where the white space that ends at `i` begins, not before `from`. */
static size_t skip_space_back(const char *s, size_t from, size_t i) {
  while (i > from) {
    uint32_t cp;
    size_t start = char_before(s, i, &cp);
    if (!is_space(cp)) break;
    i = start;
  }
  return i;
}

static size_t skip_space(const char *s, size_t n, size_t i) {
  while (i < n) {
    uint32_t cp;
    size_t used = char_at(s, n, i, &cp);
    if (!is_space(cp)) break;
    i += used;
  }
  return i;
}

/* --- Search --------------------------------------------------------------------------------------------------------------------------- */

/* The first of v[lo..hi) whose byte `depth` is at least c (all are longer than depth and agree before it). */
static uint32_t lower_bound(const sh_added *a, uint32_t lo, uint32_t hi, size_t depth, int c) {
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    if ((unsigned char)a->text.p[a->v[mid].off + depth] < c) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

/* The longest token at s[i], or NULL. */
static const sh_added_token *longest_at(const sh_added *a, const char *s, size_t n, size_t i) {
  int c = (unsigned char)s[i];
  uint32_t lo = a->first[c], hi = a->first[c + 1];
  const sh_added_token *best = NULL;
  for (size_t depth = 1; lo < hi; depth++) {
    for (; lo < hi && a->v[lo].len == depth; lo++)
      if (!best || best->len < depth) best = &a->v[lo];
    if (lo == hi || i + depth >= n) break;
    c = (unsigned char)s[i + depth];
    lo = lower_bound(a, lo, hi, depth, c);
    hi = lower_bound(a, lo, hi, depth, c + 1);
  }
  return best;
}

static const sh_added_token *find(const sh_added *a, const char *s, size_t n, size_t *i) {
  while (*i < n) {
    if (a->only_first >= 0) {
      const char *p = memchr(s + *i, a->only_first, n - *i);
      if (!p) break;
      *i = (size_t)(p - s);
    }
    const sh_added_token *t = longest_at(a, s, n, *i);
    if (t) return t;
    ++*i;
  }
  *i = n;
  return NULL;
}

int32_t sh_added_next(const sh_added *a, const char *s, size_t n, sh_added_cursor *c, size_t *start, size_t *end) {
  if (a->n == 0) return -1;
  for (;;) {
    size_t i = c->at;
    const sh_added_token *t = find(a, s, n, &i);
    if (!t) return -1;
    size_t stop = i + t->len;
    c->at = stop;
    if ((t->flags & SH_ADDED_SINGLE_WORD) && inside_word(s, n, i, stop)) continue;
    if (t->flags & SH_ADDED_LSTRIP) { i = i > c->done ? skip_space_back(s, c->done, i) : c->done; }
    /* inside white space that the token before took, that run's end is known: a text of spaces must not cost n * n */
    if (t->flags & SH_ADDED_RSTRIP) stop = stop <= c->done ? c->done : skip_space(s, n, stop);
    if (i >= stop) continue; /* all of it went to the token before */
    *start = i;
    *end = c->done = stop;
    return t->id;
  }
}
