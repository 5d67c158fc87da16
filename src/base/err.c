/* Errors: writes the one sentence of a failure into the caller's sh_error.
 *
 * Any thread; no state. The sentence may quote bytes of a broken file or request, so it is cleaned to valid UTF-8 here, once, in place of
 * at every place that quotes: a response body or a log line can then take the text as it is. Text that is too long is cut between two
 * characters.
 *
 * The arguments may point into the very sh_error that is written (a caller that rewords what it got), so the sentence is first formatted
 * beside it. Refused: allocated messages of any length; the path that reports "out of memory" must not allocate. */
#include "base/err.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Copies s to dst[0..cap) as valid UTF-8 without a newline at the end, cut at a character to fit. */
static void copy_clean(char *dst, size_t cap, const char *s) {
  size_t n = strlen(s), out = 0, i = 0;
  while (i < n) {
    uint32_t cp;
    char enc[4];
    int used = sh_utf8_decode(s + i, n - i, &cp);
    int bytes = sh_utf8_encode(cp, enc);
    if (out + (size_t)bytes >= cap) break;
    memcpy(dst + out, enc, (size_t)bytes);
    out += (size_t)bytes;
    i += (size_t)(used < 0 ? -used : used);
  }
  while (out > 0 && (dst[out - 1] == '\n' || dst[out - 1] == '\r')) out--;
  dst[out] = '\0';
}

int sh_fail(sh_error *e, int code, const char *fmt, ...) {
  if (!e) return code;
  char raw[sizeof e->text];
  va_list ap;
  va_start(ap, fmt);
  if (vsnprintf(raw, sizeof raw, fmt, ap) < 0) raw[0] = '\0';
  va_end(ap);
  e->code = code;
  copy_clean(e->text, sizeof e->text, raw);
  return code;
}

int sh_fail_in(sh_error *e, int code, const char *fmt, ...) {
  if (!e) return code;
  char raw[2 * sizeof e->text];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(raw, sizeof e->text, fmt, ap);
  va_end(ap);
  if (n < 0) raw[0] = '\0';
  size_t at = strlen(raw);
  snprintf(raw + at, sizeof raw - at, ": %s", e->text);
  e->code = code;
  copy_clean(e->text, sizeof e->text, raw);
  return code;
}

const char *sh_err_name(int code) {
  switch (code) {
  case SH_OK: return "ok";
  case SH_ERR_NOMEM: return "nomem";
  case SH_ERR_IO: return "io";
  case SH_ERR_FORMAT: return "format";
  case SH_ERR_ARG: return "arg";
  case SH_ERR_UNSUPPORTED: return "unsupported";
  case SH_ERR_LIMIT: return "limit";
  case SH_ERR_NOT_FOUND: return "not_found";
  case SH_ERR_BUSY: return "busy";
  case SH_ERR_CANCELLED: return "cancelled";
  case SH_ERR_INTERNAL: return "internal";
  default: return "unknown";
  }
}
