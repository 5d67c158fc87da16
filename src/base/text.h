/* UTF-8 and small string helpers. */
#ifndef SH_BASE_TEXT_H
#define SH_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

/* Decodes the code point at s[0..n), n > 0: returns its bytes (1..4) and sets *cp; for an invalid sequence returns the negative length of
 * the maximal subpart to replace by one U+FFFD (WHATWG / Python "replace" rule) and sets *cp = 0xFFFD. */
int sh_utf8_decode(const char *s, size_t n, uint32_t *cp);
int sh_utf8_encode(uint32_t cp, char out[4]); /* returns bytes 1..4; surrogates and > 10FFFF encode U+FFFD */
bool sh_utf8_valid(const char *s, size_t n);
/* Bytes at the end of s[0..n) that begin a valid but incomplete sequence (0..3). */
size_t sh_utf8_incomplete_tail(const char *s, size_t n);
int sh_utf8_sanitize(const char *s, size_t n, sh_buf *out); /* appends with invalid parts replaced by U+FFFD */
/* Escaped for HTML content and attributes; control characters, which HTML does not allow, become U+FFFD. Failures stay in the buffer. */
void sh_html_text(sh_buf *out, const char *s);
void sh_csv_text(sh_buf *out, const char *s); /* one field of a CSV line, in quotes */
bool sh_str_starts(const char *s, const char *prefix);
bool sh_str_ends(const char *s, const char *suffix);
/* Whole-string number parsing: SH_ERR_ARG on trailing bytes, range or emptiness. */
int sh_parse_i64(const char *s, int64_t *out);
int sh_parse_f64(const char *s, double *out); /* finite, C locale */
/* "8GiB", "512M", "1000": bytes. K/M/G/T are powers of 1024. */
int sh_parse_size(const char *s, int64_t *out);
/* "1.5 GiB" into buf. */
const char *sh_format_size(int64_t bytes, char buf[32]);
uint64_t sh_hash(const void *p, size_t n, uint64_t seed); /* not cryptographic; for hash tables and keys */
/* A seed that differs from process to process, for tables whose keys come from clients: with a known seed keys that all collide are easily
 * made. Any thread. */
uint64_t sh_hash_secret(void);

#endif
