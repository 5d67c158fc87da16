/* Lexer: template text to tokens, with jinja2's whitespace rules for trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False.
 *
 * Pure function; its output lives in the template's arena. The whole template becomes one array of tokens before parsing: templates are a
 * few kilobytes, and an array gives the parser its one token of look-ahead without a stream object. The rules that are easy to get wrong:
 *  - "-" at a tag eats all white space on its side, "+" switches trimming and stripping off on its side;
 *  - lstrip works for statements and comments, not for {{ }}, and only when nothing but white space stands before the tag on its line;
 *  - trim takes one newline after statements, comments and endraw, not after {{ }} nor after the opening raw tag;
 *  - "%}" and "}}" end a tag only outside of brackets, so {{ {'a': {}} }} works;
 *  - white space is Python's \s, which is Unicode's.
 * Refused: regular expressions (pcre2 is there, but the rules above are code in jinja2 too). */
#include "text/jinja_int.h"

#include "base/text.h"

#include <string.h>

enum { MAX_BRACKETS = 1000 };
typedef struct lexer {
  sh_arena *a;
  const char *s; /* newlines normalized to \n */
  size_t n, pos;
  int line;
  bool line_starting; /* the last tag ended with a newline, or we are at the start */
  jj_token *toks;
  size_t n_toks, cap;
  char open[MAX_BRACKETS]; /* closing brackets that are awaited */
  int n_open;
  sh_error *e;
} lexer;

static int fail_nomem(lexer *x) {
  if (sh_arena_left(x->a) < 1 << 20) return sh_fail(x->e, SH_ERR_LIMIT, "template: too large to compile");
  return sh_fail(x->e, SH_ERR_NOMEM, "template: out of memory");
}

static int emit(lexer *x, jj_tok type, const char *p, size_t len) {
  if (x->n_toks == x->cap) {
    size_t cap = x->cap ? x->cap * 2 : 256;
    jj_token *t = sh_arena_array(x->a, cap, sizeof *t);
    if (!t) return fail_nomem(x);
    if (x->n_toks) memcpy(t, x->toks, x->n_toks * sizeof *t);
    x->toks = t;
    x->cap = cap;
  }
  x->toks[x->n_toks++] = (jj_token){type, x->line, p, len};
  return 0;
}

static void count_lines(lexer *x, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) x->line += x->s[i] == '\n';
}

/* Bytes of white space at s[i..n). */
static size_t spaces(const char *s, size_t n, size_t i) {
  size_t start = i, k;
  while (i < n && sh_jj_is_space(sh_jj_cp(s + i, n - i, &k))) i += k;
  return i - start;
}

static size_t trimmed_end(const char *s, size_t from, size_t to) {
  jj_str str = {s + from, to - from, SIZE_MAX, NULL};
  const char *p;
  size_t n;
  sh_jj_strip(&str, NULL, false, true, &p, &n);
  return from + n;
}

static bool at(const lexer *x, size_t i, const char *lit) {
  size_t n = strlen(lit);
  return i + n <= x->n && memcmp(x->s + i, lit, n) == 0;
}

/* The text before a tag that begins at `to`, after that tag's sign and lstrip. variable: the tag is {{ */
static int emit_data(lexer *x, size_t from, size_t to, char sign, bool variable) {
  size_t end = to;
  if (sign == '-') {
    end = trimmed_end(x->s, from, to);
  } else if (sign != '+' && !variable) {
    size_t l = to;
    while (l > from && x->s[l - 1] != '\n') l--;
    if ((l > from || x->line_starting) && l < to && spaces(x->s, to, l) == to - l) end = l;
  }
  if (end > from) JJ_TRY(emit(x, T_DATA, x->s + from, end - from));
  count_lines(x, from, to);
  return 0;
}

/* The end of a statement, comment or endraw at i ("+%}", "-%}" and space, "%}" and one newline): its length, 0 if there is none. */
static size_t block_end(const lexer *x, size_t i, const char *close) {
  if ((x->s[i] == '+' || x->s[i] == '-') && at(x, i + 1, close)) return x->s[i] == '+' ? 3 : 3 + spaces(x->s, x->n, i + 3);
  if (!at(x, i, close)) return 0;
  return 2 + (at(x, i + 2, "\n") ? 1 : 0);
}

/* "{%- raw -%}" at i: its length, or 0. */
static size_t raw_begin(const lexer *x, size_t i) {
  size_t j = i + 2;
  if (j < x->n && (x->s[j] == '-' || x->s[j] == '+')) j++;
  j += spaces(x->s, x->n, j);
  if (!at(x, j, "raw")) return 0;
  j += 3;
  j += spaces(x->s, x->n, j);
  if (at(x, j, "-%}")) return j + 3 + spaces(x->s, x->n, j + 3) - i;
  return at(x, j, "%}") ? j + 2 - i : 0;
}

/* Text up to {% endraw %} as data. */
static int lex_raw(lexer *x) {
  for (size_t i = x->pos; i + 1 < x->n; i++) {
    if (!at(x, i, "{%")) continue;
    size_t j = i + 2;
    char sign = 0;
    if (j < x->n && (x->s[j] == '-' || x->s[j] == '+')) sign = x->s[j++];
    j += spaces(x->s, x->n, j);
    if (!at(x, j, "endraw")) continue;
    j += 6;
    j += spaces(x->s, x->n, j);
    size_t k = j < x->n ? block_end(x, j, "%}") : 0;
    if (!k) continue;
    JJ_TRY(emit_data(x, x->pos, i, sign, false));
    count_lines(x, i, j + k);
    x->line_starting = x->s[j + k - 1] == '\n';
    x->pos = j + k;
    return 0;
  }
  if (x->pos >= x->n) return 0;
  return sh_fail(x->e, SH_ERR_FORMAT, "line %d: Missing end of raw directive", x->line);
}

static int lex_comment(lexer *x) {
  for (size_t i = x->pos; i < x->n; i++) {
    size_t k = block_end(x, i, "#}");
    if (!k) continue;
    count_lines(x, x->pos, i + k);
    x->line_starting = x->s[i + k - 1] == '\n';
    x->pos = i + k;
    return 0;
  }
  if (x->pos >= x->n) return 0; /* jinja2 takes "{#" at the very end for an empty comment, and a raw tag for an empty block */
  return sh_fail(x->e, SH_ERR_FORMAT, "line %d: Missing end of comment tag", x->line);
}

/* --- String literals ----------------------------------------------------------------------------------------------------------------- */
static int hex_value(const char *p, size_t n, uint32_t *out) {
  uint32_t v = 0;
  for (size_t i = 0; i < n; i++) {
    char ch = p[i];
    int d = ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
    if (d < 0) return -1;
    v = v << 4 | (uint32_t)d;
  }
  *out = v;
  return 0;
}

/* \xHH \uHHHH \UHHHHHHHH at p[0..n), p[0] the letter. Returns the bytes used, 0 on error. A pair of surrogates becomes one character
 * (Python would keep two halves, which cannot be printed); a lone one becomes U+FFFD. */
static size_t hex_escape(const char *p, size_t n, uint32_t *cp) {
  size_t digits = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : 8;
  uint32_t lo;
  if (n < 1 + digits || hex_value(p + 1, digits, cp) || *cp > 0x10FFFF) return 0;
  if (*cp >= 0xD800 && *cp < 0xDC00 && n >= 11 && p[5] == '\\' && p[6] == 'u' && !hex_value(p + 7, 4, &lo) && lo >= 0xDC00 && lo < 0xE000) {
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (lo - 0xDC00);
    return 11;
  }
  return 1 + digits;
}

/* The escape after a backslash, p[0..n): appends its bytes at *w, returns the bytes of p used, 0 on error. */
static size_t unescape_one(const char *p, size_t n, char **w) {
  static const char from[] = "nrtbfav\\'\"", to[] = "\n\r\t\b\f\a\v\\'\"";
  const char *hit = p[0] ? strchr(from, p[0]) : NULL;
  uint32_t cp = 0;
  size_t used;
  if (hit) {
    *(*w)++ = to[hit - from];
    return 1;
  }
  if (p[0] == '\n') return 1;
  if (p[0] >= '0' && p[0] <= '7') {
    for (used = 0; used < 3 && used < n && p[used] >= '0' && p[used] <= '7'; used++) cp = cp * 8 + (uint32_t)(p[used] - '0');
  } else if (p[0] == 'x' || p[0] == 'u' || p[0] == 'U') {
    used = hex_escape(p, n, &cp);
    if (!used) return 0;
  } else if (p[0] == 'N') {
    return 0; /* names of characters: no table here, no template uses them */
  } else {
    *(*w)++ = '\\'; /* an unknown escape stays as it is, as in Python */
    return SIZE_MAX;
  }
  *w += sh_utf8_encode(cp, *w);
  return used;
}

static int lex_string(lexer *x) {
  char quote = x->s[x->pos];
  size_t i = x->pos + 1;
  while (i < x->n && x->s[i] != quote) i += x->s[i] == '\\' ? 2 : 1;
  if (i >= x->n) return sh_fail(x->e, SH_ERR_FORMAT, "line %d: a string that begins with %c is not closed", x->line, quote);
  const char *p = x->s + x->pos + 1, *end = x->s + i;
  char *buf = sh_arena_alloc(x->a, (size_t)(end - p) * 2 + 4), *w = buf; /* "\377" grows to 2 bytes from 4, "\x" pairs never grow */
  if (!buf) return fail_nomem(x);
  while (p < end) {
    if (*p != '\\') {
      *w++ = *p++;
      continue;
    }
    p++;
    size_t used = unescape_one(p, (size_t)(end - p), &w);
    if (!used) return sh_fail(x->e, SH_ERR_FORMAT, "line %d: bad escape \\%c in a string", x->line, *p);
    if (used != SIZE_MAX) p += used;
  }
  JJ_TRY(emit(x, T_STRING, buf, (size_t)(w - buf)));
  count_lines(x, x->pos, i + 1);
  x->pos = i + 1;
  return 0;
}

/* --- Numbers, names, operators ------------------------------------------------------------------------------------------------------- */
static bool digit_of(char ch, int base) {
  if (base == 16 && (ch | 32) >= 'a' && (ch | 32) <= 'f') return true;
  return ch >= '0' && ch < '0' + (base < 10 ? base : 10);
}

/* Digits with single "_" between them, from i: the end. */
static size_t digits_end(const lexer *x, size_t i, int base) {
  while (i < x->n) {
    if (digit_of(x->s[i], base)) i++;
    else if (x->s[i] == '_' && i + 1 < x->n && digit_of(x->s[i + 1], base)) i += 2;
    else break;
  }
  return i;
}

static size_t integer_end(const lexer *x, size_t i) {
  char k = i + 1 < x->n ? x->s[i + 1] | 32 : 0;
  int base = k == 'x' ? 16 : k == 'o' ? 8 : k == 'b' ? 2 : 0;
  if (x->s[i] == '0' && base) {
    size_t end = digits_end(x, i + 2, base);
    if (end > i + 2) return end;
  }
  if (x->s[i] != '0') return digits_end(x, i, 10);
  i++;
  while (i < x->n && (x->s[i] == '0' || (x->s[i] == '_' && i + 1 < x->n && x->s[i + 1] == '0'))) i++;
  return i;
}

static size_t float_end(const lexer *x, size_t i) {
  size_t start = i, end = 0;
  if (start > 0 && x->s[start - 1] == '.') return 0; /* a.0.1 is two subscripts */
  i = digits_end(x, i, 10);
  if (i < x->n && x->s[i] == '.' && i + 1 < x->n && digit_of(x->s[i + 1], 10)) end = i = digits_end(x, i + 1, 10);
  if (i < x->n && (x->s[i] | 32) == 'e') {
    size_t j = i + 1;
    if (j < x->n && (x->s[j] == '+' || x->s[j] == '-')) j++;
    if (j < x->n && digit_of(x->s[j], 10)) end = digits_end(x, j, 10);
  }
  return end;
}

static int lex_number(lexer *x) {
  size_t end = float_end(x, x->pos);
  bool is_float = end != 0;
  if (!is_float) end = integer_end(x, x->pos);
  char *buf = sh_arena_alloc(x->a, end - x->pos + 1), *w = buf;
  if (!buf) return fail_nomem(x);
  for (size_t i = x->pos; i < end; i++)
    if (x->s[i] != '_') *w++ = x->s[i];
  JJ_TRY(emit(x, is_float ? T_FLOAT : T_INT, buf, (size_t)(w - buf)));
  x->pos = end;
  return 0;
}

static int lex_operator(lexer *x) {
  static const struct {
    const char *s;
    jj_tok t;
  } ops[] = {{"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},      {"<=", T_LE},      {"+", T_ADD},
             {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},    {"[", T_LBRACKET}, {"]", T_RBRACKET},
             {"(", T_LPAREN},    {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE}, {">", T_GT},       {"<", T_LT},       {"=", T_ASSIGN},
             {".", T_DOT},       {":", T_COLON},  {"|", T_PIPE},   {",", T_COMMA},  {";", T_SEMICOLON}};
  char ch = x->s[x->pos];
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    if (!at(x, x->pos, ops[i].s)) continue;
    if (ch == '(' || ch == '[' || ch == '{') {
      if (x->n_open == MAX_BRACKETS) return sh_fail(x->e, SH_ERR_LIMIT, "line %d: more than %d open brackets", x->line, MAX_BRACKETS);
      x->open[x->n_open++] = ch == '(' ? ')' : ch == '[' ? ']' : '}';
    } else if (ch == ')' || ch == ']' || ch == '}') {
      if (!x->n_open) return sh_fail(x->e, SH_ERR_FORMAT, "line %d: unexpected '%c'", x->line, ch);
      char want = x->open[--x->n_open];
      if (want != ch) return sh_fail(x->e, SH_ERR_FORMAT, "line %d: unexpected '%c', expected '%c'", x->line, ch, want);
    }
    size_t n = strlen(ops[i].s);
    JJ_TRY(emit(x, ops[i].t, x->s + x->pos, n));
    x->pos += n;
    return 0;
  }
  size_t k;
  sh_jj_cp(x->s + x->pos, x->n - x->pos, &k);
  return sh_fail(x->e, SH_ERR_FORMAT, "line %d: unexpected character '%.*s'", x->line, (int)k, x->s + x->pos);
}

static size_t name_end(const lexer *x, size_t i) {
  size_t k;
  while (i < x->n && sh_jj_is_word(sh_jj_cp(x->s + i, x->n - i, &k))) i += k;
  return i;
}

/* Tokens up to and with the end of a {% %} or {{ }} tag. */
static int lex_tag(lexer *x, bool block) {
  while (x->pos < x->n) {
    char ch = x->s[x->pos];
    size_t k = 0;
    if (!x->n_open) {
      if (block) k = block_end(x, x->pos, "%}");
      else if (at(x, x->pos, "}}")) k = 2;
      else if (at(x, x->pos, "-}}")) k = 3 + spaces(x->s, x->n, x->pos + 3);
    }
    if (k) {
      JJ_TRY(emit(x, block ? T_BLOCK_END : T_VAR_END, x->s + x->pos, k));
      count_lines(x, x->pos, x->pos + k);
      x->pos += k;
      x->line_starting = x->s[x->pos - 1] == '\n';
      return 0;
    }
    if ((k = spaces(x->s, x->n, x->pos))) {
      count_lines(x, x->pos, x->pos + k);
      x->pos += k;
    } else if (digit_of(ch, 10)) {
      JJ_TRY(lex_number(x));
    } else if ((k = name_end(x, x->pos)) > x->pos) {
      JJ_TRY(emit(x, T_NAME, x->s + x->pos, k - x->pos));
      x->pos = k;
    } else if (ch == '"' || ch == '\'') {
      JJ_TRY(lex_string(x));
    } else {
      JJ_TRY(lex_operator(x));
    }
  }
  return 0; /* the parser says what is missing */
}

static int lex_root(lexer *x) {
  while (x->pos < x->n) {
    size_t i = x->pos;
    const char *brace = NULL;
    for (; i + 1 < x->n; i++) {
      brace = memchr(x->s + i, '{', x->n - 1 - i);
      if (!brace) break;
      i = (size_t)(brace - x->s);
      if (x->s[i + 1] == '{' || x->s[i + 1] == '%' || x->s[i + 1] == '#') break;
      brace = NULL;
    }
    if (!brace) {
      JJ_TRY(emit(x, T_DATA, x->s + x->pos, x->n - x->pos));
      x->pos = x->n;
      return 0;
    }
    char kind = x->s[i + 1], sign = i + 2 < x->n ? x->s[i + 2] : 0;
    if (sign != '-' && sign != '+') sign = 0;
    size_t raw = kind == '%' ? raw_begin(x, i) : 0;
    JJ_TRY(emit_data(x, x->pos, i, sign, kind == '{'));
    x->pos = i + 2 + (sign ? 1 : 0);
    x->line_starting = false;
    if (raw) {
      count_lines(x, i, i + raw);
      x->pos = i + raw;
      x->line_starting = x->s[x->pos - 1] == '\n';
      JJ_TRY(lex_raw(x));
    } else if (kind == '#') {
      JJ_TRY(lex_comment(x));
    } else {
      JJ_TRY(emit(x, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, x->s + i, 2));
      JJ_TRY(lex_tag(x, kind == '%'));
    }
  }
  return 0;
}

int sh_jj_lex(sh_arena *a, const char *src, size_t len, jj_token **out, size_t *n, sh_error *e) {
  lexer *x = sh_arena_alloc(a, sizeof *x);
  char *s = sh_arena_alloc(a, len + 1);
  if (!x || !s) return sh_fail(e, SH_ERR_NOMEM, "template: out of memory");
  size_t w = 0;
  for (size_t i = 0; i < len; i++) {
    if (src[i] == '\r') {
      s[w++] = '\n';
      if (i + 1 < len && src[i + 1] == '\n') i++;
    } else {
      s[w++] = src[i];
    }
  }
  if (w && s[w - 1] == '\n') w--;
  x->a = a;
  x->s = s;
  x->n = w;
  x->line = 1;
  x->line_starting = true;
  x->e = e;
  JJ_TRY(lex_root(x));
  JJ_TRY(emit(x, T_EOF, s + w, 0));
  *out = x->toks;
  *n = x->n_toks;
  return 0;
}
