/* Progress of a pull, on stderr: stdout has only the folder's path, so that `sheng serve $(sheng pull NAME)` works. Main thread.
 *
 * On a terminal the bar is rewritten five times a second; elsewhere (a log, a container) there is a line every ten seconds. File names come
 * from a hub: they were checked to hold no control characters. */
#include "ops/pull_show.h"

#include "base/pool.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR = 24, TTY_MS = 200, PLAIN_MS = 10000 };

void sh_pshow_init(sh_pshow *s) {
  *s = (sh_pshow){.private_tty = isatty(STDERR_FILENO) == 1};
  s->private_last_ns = sh_now_ns();
  s->private_next_ns = s->private_last_ns + (s->private_tty ? TTY_MS : PLAIN_MS) * 1000000LL;
}

void sh_pshow_end(sh_pshow *s) {
  if (s->private_bar) fputs("\r\033[K", stderr);
  s->private_bar = false;
}

void sh_pshow_note(sh_pshow *s, const char *fmt, ...) {
  va_list ap;
  sh_pshow_end(s);
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
}

bool sh_pshow_due(const sh_pshow *s) { return sh_now_ns() >= s->private_next_ns; }

static void format_time(double seconds, char out[32]) {
  long t = seconds < 360000 ? (long)seconds : 360000;
  if (t >= 3600) snprintf(out, 32, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
  else snprintf(out, 32, "%ld:%02ld", t / 60, t % 60);
}

static int columns(void) {
  struct winsize w;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

/* The line, cut so that it does not wrap: a wrapped bar cannot be rewritten. */
static void draw(const char *line) {
  size_t n = strlen(line), max = (size_t)columns() - 1;
  if (n > max) n = max - sh_utf8_incomplete_tail(line, max);
  fprintf(stderr, "\r\033[K%.*s", (int)n, line);
  fflush(stderr);
}

void sh_pshow_progress(sh_pshow *s, const char *what, int64_t done, int64_t total, int64_t received) {
  char have[32], all[32], rate[32], left[32] = "-", line[512], bar[BAR + 1];
  int64_t now = sh_now_ns();
  double seconds = (double)(now - s->private_last_ns) / 1e9;
  if (seconds > 0) {
    double v = (double)(received - s->private_last_bytes) / seconds, keep = s->private_tty ? 0.9 : 0.3;
    s->private_speed = s->private_speed > 0 ? keep * s->private_speed + (1 - keep) * v : v;
  }
  s->private_last_ns = now;
  s->private_last_bytes = received;
  s->private_next_ns = now + (s->private_tty ? TTY_MS : PLAIN_MS) * 1000000LL;
  double part = total > 0 ? (double)done / (double)total : 1;
  for (int i = 0; i < BAR; i++) bar[i] = i < (int)(part * BAR) ? '#' : '.';
  bar[BAR] = 0;
  if (s->private_speed >= 1) format_time((double)(total - done) / s->private_speed, left);
  snprintf(line, sizeof line, "%s%s%s%3d%%  %s of %s  %s/s  %s left  %s", s->private_tty ? "[" : "  ", s->private_tty ? bar : "",
           s->private_tty ? "] " : "", (int)(part * 100), sh_format_size(done, have), sh_format_size(total, all),
           sh_format_size((int64_t)s->private_speed, rate), left, what);
  if (s->private_tty) draw(line);
  else fprintf(stderr, "%s\n", line);
  s->private_bar = s->private_tty;
}
