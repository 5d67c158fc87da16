/* From Oniguruma's pattern language (that of tokenizer.json files) to PCRE2's.
 *
 * Runs when a model is opened. The two agree on nearly everything a split pattern uses; this file knows where they do not, and there it
 * rewrites or refuses, so that a pattern never silently means something else: \s \S     White_Space in Oniguruma; PCRE2 adds U+180E \w \b
 * Oniguruma counts marks, connectors and some superscripts as word characters \h \v \O  hex digit, vertical tab, any character; PCRE2:
 * horizontal space, vertical space, - \p{Han}   the script property; PCRE2 means script extensions by it
 *   {,n}      is {0,n};  {n,m}+ repeats the interval (PCRE2: possessive) and is refused
 *   (?m)      lets the dot match a newline; PCRE2 calls that (?s)
 *   [a[b]] and && are set operations and are refused; so are back-references, conditionals, verbs, extended mode and what else no tokenizer
 * uses. ^ and $ match at line ends in both (the compile option MULTILINE). Where the two libraries' Unicode versions differ, characters
 * newer than PCRE2's version count as unassigned. Refused: linking Oniguruma itself, which has no JIT and no step limit that survives its
 * optimizer. */
#include "text/pretok.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define BARE WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" /* outside a class, Oniguruma takes the word bit of Latin-1 too */
#define HEX "0-9A-Fa-f"

typedef struct reader {
  const char *s;
  size_t n, i;
  sh_buf *out;
  sh_error *e;
} reader;

static bool more(const reader *r) { return r->i < r->n; }
static char at(const reader *r, size_t ahead) { return r->i + ahead < r->n ? r->s[r->i + ahead] : '\0'; }
static bool follows(const reader *r, const char *what) {
  size_t n = strlen(what);
  return r->n - r->i >= n && memcmp(r->s + r->i, what, n) == 0;
}

static int refuse(const reader *r, const char *what) {
  return sh_fail(r->e, SH_ERR_UNSUPPORTED, "the split pattern \"%.*s\" uses %s at byte %zu, which is not supported",
                 r->n > 200 ? 200 : (int)r->n, r->s, what, r->i);
}

/* --- Escapes -------------------------------------------------------------------------------------------------------------------------- */

static bool compiles(const char *re) {
  int code;
  PCRE2_SIZE where;
  pcre2_code *c = pcre2_compile((PCRE2_SPTR)re, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
  pcre2_code_free(c);
  return c != NULL;
}

/* \p{Name} \P{Name} \p{^Name}; r->i is at the backslash. */
static int property(reader *r) {
  char name[48];
  size_t n = 0, i = r->i + 3;
  bool negated = at(r, 1) == 'P';
  if (at(r, 2) != '{') return refuse(r, "a property without braces");
  if (i < r->n && r->s[i] == '^') {
    negated = !negated;
    i++;
  }
  for (; i < r->n && r->s[i] != '}'; i++) {
    if (!isalnum((unsigned char)r->s[i]) && !strchr("_- &", r->s[i])) return refuse(r, "an unusual property name");
    if (n + 1 >= sizeof name) return refuse(r, "a very long property name");
    name[n++] = r->s[i];
  }
  if (i >= r->n) return refuse(r, "an unterminated property");
  name[n] = '\0';
  char script[64];
  snprintf(script, sizeof script, "\\p{sc:%s}", name);
  const char *shown = strcmp(name, "Digit") == 0 ? "Nd" : strcmp(name, "Punct") == 0 ? "P" : name;
  r->i = i + 1;
  return sh_buf_printf(r->out, "\\%c{%s%s}", negated ? 'P' : 'p', n > 2 && compiles(script) ? "sc:" : "", shown);
}

/* \xHH \x{H...} \uHHHH; r->i is at the backslash. */
static int code_point(reader *r) {
  bool braces = at(r, 1) == 'x' && at(r, 2) == '{';
  size_t digits = at(r, 1) == 'u' ? 4 : braces ? 8 : 2, n = 0;
  size_t i = r->i + (braces ? 3 : 2);
  unsigned long v = 0;
  for (; n < digits && i < r->n && isxdigit((unsigned char)r->s[i]); i++, n++)
    v = v * 16 + (unsigned long)(isdigit((unsigned char)r->s[i]) ? r->s[i] - '0' : (r->s[i] | 0x20) - 'a' + 10);
  if (n == 0 || (!braces && n != digits) || (braces && (i >= r->n || r->s[i] != '}'))) return refuse(r, "an incomplete character code");
  if (!braces && digits == 2 && v >= 0x80) return refuse(r, "a single byte of a character");
  r->i = braces ? i + 1 : i;
  return sh_buf_printf(r->out, "\\x{%lx}", v);
}

static int replace(reader *r, size_t used, const char *text) {
  r->i += used;
  return sh_buf_puts(r->out, text);
}

static int copy(reader *r, size_t n) {
  r->i += n;
  return sh_buf_put(r->out, r->s + r->i - n, n);
}

/* An escape that means the same inside and outside a class; 1 when it is none of them. */
static int common_escape(reader *r) {
  char c = at(r, 1);
  if (r->i + 1 >= r->n) return refuse(r, "a backslash at the end");
  if (!isalnum((unsigned char)c)) return copy(r, 2);
  switch (c) {
  case 's': return replace(r, 2, "\\p{White_Space}");
  case 'S': return replace(r, 2, "\\P{White_Space}");
  case 'd':
  case 'D':
  case 'a':
  case 'e':
  case 'f':
  case 'n':
  case 'r':
  case 't': return copy(r, 2);
  case 'v': return replace(r, 2, "\\x0B");
  case 'p':
  case 'P': return property(r);
  case 'x':
  case 'u': return code_point(r);
  default: return 1;
  }
}

static int escape(reader *r) {
  int rc = common_escape(r);
  if (rc != 1) return rc;
  switch (at(r, 1)) {
  case 'w': return replace(r, 2, "[" BARE "]");
  case 'W': return replace(r, 2, "[^" BARE "]");
  case 'h': return replace(r, 2, "[" HEX "]");
  case 'H': return replace(r, 2, "[^" HEX "]");
  case 'O': return replace(r, 2, "(?s:.)");
  case 'b': return replace(r, 2, "(?:(?<=[" BARE "])(?![" BARE "])|(?<![" BARE "])(?=[" BARE "]))");
  case 'B': return replace(r, 2, "(?:(?<=[" BARE "])(?=[" BARE "])|(?<![" BARE "])(?![" BARE "]))");
  case 'A':
  case 'z':
  case 'Z':
  case 'G':
  case 'N':
  case 'R':
  case 'X': return copy(r, 2);
  default: return refuse(r, "an escape");
  }
}

/* --- Classes -------------------------------------------------------------------------------------------------------------------------- */

/* [:name:] inside a class. */
static int posix_class(reader *r) {
  static const struct {
    const char *name, *yes, *no;
  } known[] = {
      {"alpha", "\\p{Alphabetic}", "\\P{Alphabetic}"},
      {"digit", "\\p{Nd}", "\\P{Nd}"},
      {"space", "\\p{White_Space}", "\\P{White_Space}"},
      {"upper", "\\p{Uppercase}", "\\P{Uppercase}"},
      {"lower", "\\p{Lowercase}", "\\P{Lowercase}"},
      {"cntrl", "\\p{Cc}", "\\P{Cc}"},
      {"alnum", "\\p{Alphabetic}\\p{Nd}", NULL},
      {"word", WORD, NULL},
      {"xdigit", HEX, NULL},
      {"blank", "\\p{Zs}\\t", NULL},
      {"punct", "\\p{P}\\p{S}", NULL},
  };
  for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
    char yes[16], no[16];
    snprintf(yes, sizeof yes, "[:%s:]", known[k].name);
    snprintf(no, sizeof no, "[:^%s:]", known[k].name);
    if (follows(r, yes)) return replace(r, strlen(yes), known[k].yes);
    if (known[k].no && follows(r, no)) return replace(r, strlen(no), known[k].no);
  }
  return refuse(r, "a class inside a class");
}

static int class_escape(reader *r) {
  int rc = common_escape(r);
  if (rc != 1) return rc;
  switch (at(r, 1)) {
  case 'w': return replace(r, 2, WORD);
  case 'h': return replace(r, 2, HEX);
  case 'b': return replace(r, 2, "\\x08");
  default: return refuse(r, "an escape in a class");
  }
}

static int class(reader *r) {
  int rc = copy(r, at(r, 1) == '^' ? 2 : 1);
  if (!rc && at(r, 0) == ']') rc = replace(r, 1, "\\]");
  while (!rc && more(r)) {
    char c = at(r, 0);
    if (c == ']') return copy(r, 1);
    if (c == '\\') rc = class_escape(r);
    else if (c == '[') rc = posix_class(r);
    else if (follows(r, "&&")) rc = refuse(r, "an intersection of classes");
    else rc = copy(r, 1);
  }
  return rc ? rc : refuse(r, "an unterminated class");
}

/* --- Groups and repeats --------------------------------------------------------------------------------------------------------------- */

/* Options like (?i) (?i: (?-i: (?m:. r->i is at the bracket. */
static int options(reader *r) {
  size_t i = 2;
  char flags[8];
  size_t n = 0;
  for (; at(r, i) == 'i' || at(r, i) == 'm' || at(r, i) == '-'; i++) {
    if (n + 1 >= sizeof flags) return refuse(r, "many group options");
    flags[n++] = at(r, i) == 'm' ? 's' : at(r, i);
  }
  flags[n] = '\0';
  char end = at(r, i);
  if (n == 0 || (end != ':' && end != ')')) return refuse(r, "a kind of group");
  /* in the middle of a pattern the two languages disagree about the branches it reaches */
  if (end == ')' && r->i != 0) return refuse(r, "an option switch that is not at the start");
  r->i += i + 1;
  return sh_buf_printf(r->out, "(?%s%c", flags, end);
}

static int group(reader *r) {
  static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
  if (follows(r, "(*")) return refuse(r, "a verb");
  if (!follows(r, "(?")) return replace(r, 1, "(?:"); /* nothing refers to a group, so none is captured */
  for (size_t k = 0; k < sizeof same / sizeof *same; k++)
    if (follows(r, same[k])) return copy(r, strlen(same[k]));
  if (follows(r, "(?<") && (isalpha((unsigned char)at(r, 3)) || at(r, 3) == '_')) {
    const char *close = memchr(r->s + r->i, '>', r->n - r->i);
    if (!close) return refuse(r, "an unterminated group name");
    return replace(r, (size_t)(close - (r->s + r->i)) + 1, "(?:");
  }
  return options(r);
}

/* {n} {n,} {n,m} {,m}; anything else in braces is literal. */
static int interval(reader *r) {
  size_t i = 1, low = 0, high = 0;
  bool comma = false;
  for (; isdigit((unsigned char)at(r, i)); i++) low++;
  if (at(r, i) == ',') {
    comma = true;
    for (i++; isdigit((unsigned char)at(r, i)); i++) high++;
  }
  if (at(r, i) != '}' || low + high == 0) return replace(r, 1, "\\{");
  char next = at(r, i + 1);
  if (next == '+' || next == '*' || next == '{') return refuse(r, "a repeated interval");
  if (next == '?' && (!comma || at(r, i + 2) == '+')) return refuse(r, "an optional interval");
  if (low > 0) return copy(r, i + 1);
  int rc = sh_buf_puts(r->out, "{0");
  r->i++;
  return rc ? rc : copy(r, i);
}

int sh_pretok_translate(const char *pattern, size_t n, sh_buf *out, sh_error *e) {
  reader r = {.s = pattern, .n = n, .out = out, .e = e};
  int rc = 0;
  while (!rc && more(&r)) {
    switch (at(&r, 0)) {
    case '\\': rc = escape(&r); break;
    case '[': rc = class(&r); break;
    case '(': rc = group(&r); break;
    case '{': rc = interval(&r); break;
    default: rc = copy(&r, 1);
    }
  }
  return rc;
}
