/* UTF-8, numbers, sizes and a hash: the small text helpers that exist once.
 *
 * Any thread; the only state is the "C" locale object that strtod reads with and the secret of hashes, each made once. Decoding replaces by
 * "maximal subparts" (Unicode 3.9, the rule of WHATWG and of Python's errors="replace"), because the tokenizers we are compared with count
 * the replaced characters that way. Refused: an own strtod (correct rounding is long code; glibc's is right and takes a locale), and a
 * table-driven decoder (request texts are short, and the tokenizer's time goes elsewhere). */
#include "base/text.h"

#include "base/err.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* --- UTF-8 ---------------------------------------------------------------------------------------------------------------------------- */

/* What a lead byte promises: length of the sequence (0 = not a lead) and the bounds of its second byte, which is where overlong forms,
 * surrogates and code points above 10FFFF are refused. */
static int lead_info(unsigned char c, unsigned char *lo, unsigned char *hi) {
  *lo = 0x80;
  *hi = 0xBF;
  if (c >= 0xC2 && c <= 0xDF) return 2;
  if (c >= 0xE0 && c <= 0xEF) {
    if (c == 0xE0) *lo = 0xA0;
    if (c == 0xED) *hi = 0x9F;
    return 3;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if (c == 0xF0) *lo = 0x90;
    if (c == 0xF4) *hi = 0x8F;
    return 4;
  }
  return 0;
}

int sh_utf8_decode(const char *s, size_t n, uint32_t *cp) {
  const unsigned char *u = (const unsigned char *)s;
  if (u[0] < 0x80) {
    *cp = u[0];
    return 1;
  }
  *cp = 0xFFFD;
  unsigned char lo, hi;
  int len = lead_info(u[0], &lo, &hi);
  if (len == 0) return -1;
  uint32_t v = u[0] & (0x7Fu >> len);
  for (int i = 1; i < len; i++) {
    if ((size_t)i >= n || u[i] < lo || u[i] > hi) return -i;
    v = v << 6 | (u[i] & 0x3Fu);
    lo = 0x80;
    hi = 0xBF;
  }
  *cp = v;
  return len;
}

int sh_utf8_encode(uint32_t cp, char out[4]) {
  if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = 0xFFFD;
  if (cp < 0x80) {
    out[0] = (char)cp;
    return 1;
  }
  if (cp < 0x800) {
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    return 2;
  }
  if (cp < 0x10000) {
    out[0] = (char)(0xE0 | cp >> 12);
    out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[2] = (char)(0x80 | (cp & 0x3F));
    return 3;
  }
  out[0] = (char)(0xF0 | cp >> 18);
  out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
  out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
  out[3] = (char)(0x80 | (cp & 0x3F));
  return 4;
}

/* Length of the valid prefix of s[0..n). Most text is ASCII: eight bytes at a time while no high bit is set. */
static size_t valid_prefix(const char *s, size_t n) {
  size_t i = 0;
  while (i < n) {
    uint64_t w;
    if (n - i >= sizeof w) {
      memcpy(&w, s + i, sizeof w);
      if ((w & UINT64_C(0x8080808080808080)) == 0) {
        i += sizeof w;
        continue;
      }
    }
    uint32_t cp;
    int used = sh_utf8_decode(s + i, n - i, &cp);
    if (used < 0) return i;
    i += (size_t)used;
  }
  return n;
}

bool sh_utf8_valid(const char *s, size_t n) { return valid_prefix(s, n) == n; }

size_t sh_utf8_incomplete_tail(const char *s, size_t n) {
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    unsigned char lo, hi, c = (unsigned char)s[n - back];
    if ((c & 0xC0) == 0x80) continue; /* a continuation byte: its lead is further back */
    int len = lead_info(c, &lo, &hi);
    if (len <= (int)back) return 0;
    uint32_t cp;
    return sh_utf8_decode(s + n - back, back, &cp) == -(int)back ? back : 0;
  }
  return 0;
}

int sh_utf8_sanitize(const char *s, size_t n, sh_buf *out) {
  while (n > 0) {
    size_t ok = valid_prefix(s, n);
    int rc = sh_buf_put(out, s, ok);
    if (rc) return rc;
    s += ok;
    n -= ok;
    if (n == 0) break;
    uint32_t cp;
    size_t bad = (size_t)-sh_utf8_decode(s, n, &cp);
    rc = sh_buf_put(out, "\xEF\xBF\xBD", 3);
    if (rc) return rc;
    s += bad;
    n -= bad;
  }
  return 0;
}

/* --- Strings and numbers -------------------------------------------------------------------------------------------------------------- */

void sh_html_text(sh_buf *out, const char *s) {
  for (; *s; s++) {
    switch (*s) {
    case '&': sh_buf_puts(out, "&amp;"); break;
    case '<': sh_buf_puts(out, "&lt;"); break;
    case '>': sh_buf_puts(out, "&gt;"); break;
    case '"': sh_buf_puts(out, "&quot;"); break;
    case '\'': sh_buf_puts(out, "&#39;"); break;
    default:
      if (((unsigned char)*s < 32 && !strchr("\t\n\r", *s)) || *s == 127) sh_buf_puts(out, "\xef\xbf\xbd");
      else sh_buf_putc(out, *s);
    }
  }
}

void sh_csv_text(sh_buf *out, const char *s) {
  sh_buf_putc(out, '"');
  for (; *s; s++) {
    if (*s == '"') sh_buf_putc(out, '"');
    sh_buf_putc(out, *s);
  }
  sh_buf_putc(out, '"');
}

bool sh_str_starts(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

bool sh_str_ends(const char *s, const char *suffix) {
  size_t n = strlen(s), m = strlen(suffix);
  return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

int sh_parse_i64(const char *s, int64_t *out) {
  bool neg = *s == '-';
  if (*s == '-' || *s == '+') s++;
  if (*s == '\0') return SH_ERR_ARG;
  int64_t v = 0;
  for (; *s; s++) {
    if (*s < '0' || *s > '9') return SH_ERR_ARG;
    int digit = *s - '0';
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, digit, &v))
      return SH_ERR_ARG; /* negative: its range is one larger */
  }
  if (!neg && __builtin_sub_overflow(INT64_C(0), v, &v)) return SH_ERR_ARG;
  *out = v;
  return 0;
}

static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void c_locale_make(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

int sh_parse_f64(const char *s, double *out) {
  size_t n = strlen(s);
  if (n == 0 || strspn(s, "0123456789+-.eE") != n) return SH_ERR_ARG; /* keeps out blanks, hex, "inf" and "nan", which strtod takes */
  pthread_once(&c_locale_once, c_locale_make);
  char *end;
  double v = c_locale ? strtod_l(s, &end, c_locale) : strtod(s, &end);
  if (end != s + n || !isfinite(v)) return SH_ERR_ARG;
  *out = v;
  return 0;
}

/* --- Sizes ---------------------------------------------------------------------------------------------------------------------------- */

/* The power of 1024 that a unit names ("", "B", "K", "KB", "KiB"..., any case); -1: not a unit. */
static int unit_power(const char *u) {
  static const char letters[] = "kmgtp";
  if (*u == '\0') return 0;
  if ((*u | 32) == 'b') return u[1] == '\0' ? 0 : -1;
  const char *at = strchr(letters, *u | 32);
  if (!at) return -1;
  u++;
  if ((*u | 32) == 'i') {
    if ((u[1] | 32) != 'b') return -1;
    u++;
  }
  if ((*u | 32) == 'b') u++;
  return *u == '\0' ? (int)(at - letters) + 1 : -1;
}

int sh_parse_size(const char *s, int64_t *out) {
  size_t digits = strspn(s, "0123456789.");
  char num[32];
  if (digits == 0 || digits >= sizeof num) return SH_ERR_ARG;
  memcpy(num, s, digits);
  num[digits] = '\0';
  const char *unit = s + digits;
  while (*unit == ' ') unit++;
  int power = unit_power(unit);
  if (power < 0) return SH_ERR_ARG;
  int64_t scale = INT64_C(1) << (10 * power), whole;
  if (!strchr(num, '.')) {
    if (sh_parse_i64(num, &whole) || __builtin_mul_overflow(whole, scale, &whole)) return SH_ERR_ARG;
    *out = whole;
    return 0;
  }
  double v;
  if (sh_parse_f64(num, &v)) return SH_ERR_ARG;
  v *= (double)scale;
  if (v >= 9.2e18) return SH_ERR_ARG;
  *out = (int64_t)v;
  return 0;
}

const char *sh_format_size(int64_t bytes, char buf[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double v = (double)bytes;
  int u = 0;
  while (fabs(v) >= 1024 && u < 6) {
    v /= 1024;
    u++;
  }
  if (u == 0) snprintf(buf, 32, "%" PRId64 " B", bytes);
  else snprintf(buf, 32, "%.*f %s", fabs(v) < 100 ? 1 : 0, v, units[u]);
  return buf;
}

/* --- Hash ----------------------------------------------------------------------------------------------------------------------------- */

/* Both halves of a 64 x 64 product: one multiplication mixes every input bit into the result. */
static uint64_t fold(uint64_t a, uint64_t b) {
  unsigned __int128 p = (unsigned __int128)a * b;
  return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t sh_hash(const void *p, size_t n, uint64_t seed) {
  const unsigned char *u = p;
  uint64_t h = seed ^ UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)n * UINT64_C(0xD6E8FEB86659FD93);
  uint64_t w;
  for (; n >= sizeof w; n -= sizeof w, u += sizeof w) {
    memcpy(&w, u, sizeof w);
    h = fold(h ^ w, UINT64_C(0xA0761D6478BD642F)) + UINT64_C(0xE7037ED1A0B428DB);
  }
  w = 0;
  if (n) memcpy(&w, u, n);
  h = fold(h ^ w, UINT64_C(0xE7037ED1A0B428DB));
  return fold(h ^ (h >> 32), UINT64_C(0x8EBC6AF09C88C6E3));
}

static uint64_t secret;

static void make_secret(void) {
  if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) == (ssize_t)sizeof secret) return;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  secret = sh_hash(&t, sizeof t, (uint64_t)(uintptr_t)&t); /* the stack's place is random as well */
}

uint64_t sh_hash_secret(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_secret);
  return secret;
}
