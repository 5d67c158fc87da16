/* Logging: a level, and lines to stderr that never mix and cannot be forged.
 *
 * Any thread, no lock: a line is built on the stack and leaves in one write(), which the kernel keeps whole for pipes up to PIPE_BUF and
 * for files. Text may quote a request, so control characters (C0, DEL and the C1 range that some terminals obey) and invalid UTF-8 are
 * written as escapes. A line is cut at a few KiB: a log is for reading. Refused: stdio (its lock is held across a slow terminal's write by
 * whichever thread logs, the engine's included) and an own log thread. */
#include "base/log.h"

#include "base/err.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MAX = 4000, LINE_MAX_BYTES = 8000 };

static atomic_int level = SH_LOG_INFO;

void sh_log_set_level(sh_log_level l) { atomic_store_explicit(&level, (int)l, memory_order_relaxed); }

int sh_log_level_parse(const char *name, sh_log_level *out) {
  static const struct {
    const char *name;
    sh_log_level level;
  } names[] = {
      {"error", SH_LOG_ERROR}, {"warning", SH_LOG_WARN}, {"warn", SH_LOG_WARN}, {"info", SH_LOG_INFO}, {"debug", SH_LOG_DEBUG},
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcasecmp(name, names[i].name) != 0) continue;
    *out = names[i].level;
    return 0;
  }
  return SH_ERR_ARG;
}

/* Appends one character of the text at `at`, escaped when it must not reach a terminal; returns its bytes. room: at least 5. */
static size_t put_char(char *at, const char *s, int used, uint32_t cp) {
  unsigned char c = (unsigned char)*s;
  if (used < 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) {
    if (c == '\n' || c == '\t' || c == '\r') return (size_t)snprintf(at, 5, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    if (used > 1) c = (unsigned char)cp;
    return (size_t)snprintf(at, 5, "\\x%02x", c);
  }
  memcpy(at, s, (size_t)used);
  return (size_t)used;
}

/* Escapes `text` into line[at..LINE_MAX_BYTES - 8), marks a cut, ends the line; returns its bytes. */
static size_t put_text(char *line, size_t at, const char *text, bool cut) {
  size_t n = strlen(text);
  while (n > 0 && text[n - 1] == '\n') n--;
  for (size_t i = 0; i < n;) {
    uint32_t cp;
    int used = sh_utf8_decode(text + i, n - i, &cp);
    if (at + 16 > LINE_MAX_BYTES) {
      cut = true;
      break;
    }
    size_t step = used < 0 ? 1 : (size_t)used; /* each byte of an invalid sequence is shown */
    at += put_char(line + at, text + i, used, cp);
    i += step;
  }
  if (cut) {
    memcpy(line + at, "...", 3);
    at += 3;
  }
  line[at++] = '\n';
  return at;
}

static void write_line(const char *line, size_t len) {
  for (size_t done = 0; done < len;) {
    ssize_t w = write(STDERR_FILENO, line + done, len - done);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) break; /* nobody reads stderr: not a reason to stop serving */
    done += (size_t)w;
  }
}

/* Writes line, of which `at` bytes are there, with the formatted text after them. */
__attribute__((format(printf, 3, 0))) static void write_text(char line[LINE_MAX_BYTES], size_t at, const char *fmt, va_list ap) {
  char text[TEXT_MAX];
  int n = vsnprintf(text, sizeof text, fmt, ap);
  if (n < 0) text[0] = '\0';
  write_line(line, put_text(line, at, text, n >= (int)sizeof text));
}

void sh_log_plain(const char *fmt, ...) {
  int saved = errno;
  char line[LINE_MAX_BYTES];
  va_list ap;
  va_start(ap, fmt);
  write_text(line, 0, fmt, ap);
  va_end(ap);
  errno = saved;
}

void sh_log(sh_log_level l, const char *fmt, ...) {
  static const char *const names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
  if ((int)l > atomic_load_explicit(&level, memory_order_relaxed) || (int)l < 0 || l > SH_LOG_DEBUG) return;
  int saved = errno; /* a caller may log between a failure and its use of errno */
  char line[LINE_MAX_BYTES];
  struct timespec ts;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &ts);
  gmtime_r(&ts.tv_sec, &tm);
  size_t at = strftime(line, 32, "%Y-%m-%dT%H:%M:%S", &tm);
  at += (size_t)snprintf(line + at, 32, ".%03ldZ %s ", ts.tv_nsec / 1000000, names[l]);
  va_list ap;
  va_start(ap, fmt);
  write_text(line, at, fmt, ap);
  va_end(ap);
  errno = saved;
}
