/* Characters as Python's str sees them: classes, case changes, stripping.
 *
 * Pure functions, any thread. The tables are utf8proc's (a dependency already, for NFC); what Python adds on top is written out here: the
 * characters whose upper case is longer than one character, the final sigma, isdigit's superscripts. Refused: a full SpecialCasing table.
 * The Greek letters with iota subscript, whose upper case becomes two letters, keep their one-letter title form. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <string.h>
#include <utf8proc.h>

uint32_t sh_jj_cp(const char *p, size_t n, size_t *len) {
  uint32_t cp;
  int k = sh_utf8_decode(p, n, &cp);
  *len = k > 0 ? (size_t)k : (size_t)-k;
  return cp;
}

static int category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool sh_jj_is_space(uint32_t cp) {
  if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
  return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
         cp == 0x205f || cp == 0x3000;
}

bool sh_jj_is_printable(uint32_t cp) {
  if (cp < 0x7f) return cp >= 0x20;
  switch (category(cp)) {
  case UTF8PROC_CATEGORY_CN:
  case UTF8PROC_CATEGORY_CC:
  case UTF8PROC_CATEGORY_CF:
  case UTF8PROC_CATEGORY_CS:
  case UTF8PROC_CATEGORY_CO:
  case UTF8PROC_CATEGORY_ZL:
  case UTF8PROC_CATEGORY_ZP:
  case UTF8PROC_CATEGORY_ZS: return false;
  default: return true;
  }
}

bool sh_jj_is_alpha(uint32_t cp) {
  int k = category(cp);
  return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || k == UTF8PROC_CATEGORY_LM ||
         k == UTF8PROC_CATEGORY_LO;
}
bool sh_jj_is_decimal(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }
bool sh_jj_is_digit(uint32_t cp) {
  return sh_jj_is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
         (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468) || (cp >= 0x2474 && cp <= 0x247c) ||
         (cp >= 0x2488 && cp <= 0x2490);
}
bool sh_jj_is_numeric(uint32_t cp) {
  int k = category(cp);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool sh_jj_is_upper(uint32_t cp) {
  return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) || (cp >= 0x24b6 && cp <= 0x24cf);
}
bool sh_jj_is_lower(uint32_t cp) {
  return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba || (cp >= 0x2170 && cp <= 0x217f) ||
         (cp >= 0x24d0 && cp <= 0x24e9);
}
bool sh_jj_is_title(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }
bool sh_jj_is_word(uint32_t cp) {
  if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
  return sh_jj_is_alpha(cp) || sh_jj_is_numeric(cp);
}

/* Upper case of more than one character. */
static const struct {
  uint16_t cp;
  const char *upper, *title;
} longer[] = {{0xdf, "SS", "Ss"},     {0x149, "ʼN", "ʼN"},  {0x1f0, "J̌", "J̌"},    {0x390, "Ϊ́", "Ϊ́"},    {0x3b0, "Ϋ́", "Ϋ́"},
              {0x587, "ԵՒ", "Եւ"},    {0x1e96, "H̱", "H̱"},   {0x1e97, "T̈", "T̈"},   {0x1e98, "W̊", "W̊"},   {0x1e99, "Y̊", "Y̊"},
              {0x1e9a, "Aʾ", "Aʾ"},   {0xfb00, "FF", "Ff"}, {0xfb01, "FI", "Fi"}, {0xfb02, "FL", "Fl"}, {0xfb03, "FFI", "Ffi"},
              {0xfb04, "FFL", "Ffl"}, {0xfb05, "ST", "St"}, {0xfb06, "ST", "St"}};

static int put_upper(jj_ctx *c, uint32_t cp, bool title) {
  char buf[4];
  if (cp >= 0x80)
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
      if (longer[i].cp == cp) {
        const char *s = title ? longer[i].title : longer[i].upper;
        return sh_jj_put(c, s, strlen(s));
      }
  utf8proc_int32_t u = title ? utf8proc_totitle((utf8proc_int32_t)cp) : utf8proc_toupper((utf8proc_int32_t)cp);
  return sh_jj_put(c, buf, (size_t)sh_utf8_encode((uint32_t)u, buf));
}

static bool cased(uint32_t cp) { return sh_jj_is_upper(cp) || sh_jj_is_lower(cp) || sh_jj_is_title(cp); }
static bool case_ignorable(uint32_t cp) {
  int k = category(cp);
  return cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xb7 || cp == 0x2019 || cp == 0x2018 ||
         k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM ||
         k == UTF8PROC_CATEGORY_SK;
}

/* A capital sigma at byte i of s is written as a final one: a letter before it, none after it. */
static bool final_sigma(const jj_str *s, size_t i) {
  size_t k, j = i;
  bool before = false;
  while (j > 0 && !before) {
    do j--;
    while (j > 0 && ((unsigned char)s->p[j] & 0xc0) == 0x80);
    uint32_t cp = sh_jj_cp(s->p + j, i - j, &k);
    if (case_ignorable(cp)) continue;
    before = cased(cp);
    break;
  }
  if (!before) return false;
  for (j = i + 2; j < s->len; j += k) {
    uint32_t cp = sh_jj_cp(s->p + j, s->len - j, &k);
    if (!case_ignorable(cp)) return !cased(cp);
  }
  return true;
}

static int put_lower(jj_ctx *c, const jj_str *s, size_t i, uint32_t cp) {
  char buf[4];
  if (cp == 0x130) return sh_jj_put(c, "i\xcc\x87", 3);
  if (cp == 0x3a3) return sh_jj_put(c, final_sigma(s, i) ? "ς" : "σ", 2);
  return sh_jj_put(c, buf, (size_t)sh_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), buf));
}

static int put_same(jj_ctx *c, uint32_t cp) {
  char buf[4];
  return sh_jj_put(c, buf, (size_t)sh_utf8_encode(cp, buf));
}

/* What begins a new word for jinja2's own title filter. */
static bool title_break(uint32_t cp) { return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || sh_jj_is_space(cp); }

static int put_cased(jj_ctx *c, const jj_str *s, size_t i, uint32_t cp, jj_case how, bool first) {
  switch (how) {
  case JJ_UPPER: return put_upper(c, cp, false);
  case JJ_LOWER: return put_lower(c, s, i, cp);
  case JJ_CASEFOLD:
    if (cp == 0xdf || cp == 0x1e9e) return sh_jj_put(c, "ss", 2);
    if (cp == 0x3c2) return sh_jj_put(c, "σ", 2);
    if (cp == 0x3a3) return sh_jj_put(c, "σ", 2);
    return put_lower(c, s, i, cp);
  case JJ_SWAPCASE: return sh_jj_is_upper(cp) ? put_lower(c, s, i, cp) : sh_jj_is_lower(cp) ? put_upper(c, cp, false) : put_same(c, cp);
  default: break;
  }
  if (!first) return put_lower(c, s, i, cp);
  return put_upper(c, cp, how != JJ_TITLE_FILTER);
}

int sh_jj_change_case(jj_ctx *c, const jj_str *s, jj_case how, jj_val *out) {
  size_t mark = c->out.len, k;
  bool first = true;
  JJ_TRY(sh_jj_step(c, s->len / 8));
  for (size_t i = 0; i < s->len; i += k) {
    uint32_t cp = sh_jj_cp(s->p + i, s->len - i, &k);
    if (how == JJ_TITLE_FILTER && title_break(cp)) {
      JJ_TRY(sh_jj_put(c, s->p + i, k));
      first = true;
      continue;
    }
    JJ_TRY(put_cased(c, s, i, cp, how, first));
    first = how == JJ_TITLE && !cased(cp);
  }
  return sh_jj_cut(c, mark, out);
}

static bool in_set(const jj_str *chars, uint32_t cp) {
  size_t k;
  if (!chars) return sh_jj_is_space(cp);
  for (size_t i = 0; i < chars->len; i += k)
    if (sh_jj_cp(chars->p + i, chars->len - i, &k) == cp) return true;
  return false;
}

void sh_jj_strip(const jj_str *s, const jj_str *chars, bool left, bool right, const char **p, size_t *n) {
  size_t from = 0, to = s->len, k;
  while (left && from < to && in_set(chars, sh_jj_cp(s->p + from, to - from, &k))) from += k;
  while (right && to > from) {
    size_t at = to;
    do at--;
    while (at > from && ((unsigned char)s->p[at] & 0xc0) == 0x80);
    if (!in_set(chars, sh_jj_cp(s->p + at, to - at, &k))) break;
    to = at;
  }
  *p = s->p + from;
  *n = to - from;
}
