/* Progress, stopping and output of a measurement. Main thread. */
#include "bench/run.h"

#include "base/pool.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_OUT = 64 << 20, BAR = 24 };

/* --- Progress */

void sh_bench_progress_begin(sh_bench_progress *p, int total) {
  *p = (sh_bench_progress){.total = total, .terminal = isatty(STDERR_FILENO) == 1, .private_began = sh_now_ns()};
}

void sh_bench_progress_row(sh_bench_progress *p, const char *name) {
  double spent = (double)(sh_now_ns() - p->private_began) * 1e-9;
  int done = p->done++, total = p->total > done ? p->total : done + 1;
  if (!p->terminal) {
    fprintf(stderr, "%d of %d: %s\n", done + 1, total, name);
    return;
  }
  char bar[BAR + 1], left[48] = "";
  for (int i = 0; i < BAR; i++) bar[i] = i * total < done * BAR ? '#' : '.';
  bar[BAR] = '\0';
  if (done > 0) {
    int64_t s = (int64_t)(spent / done * (total - done) + 0.5);
    snprintf(left, sizeof left, ", about %lld:%02d left", (long long)(s / 60), (int)(s % 60));
  }
  fprintf(stderr, "\r[%s] %d of %d%s: %s\033[K", bar, done + 1, total, left, name);
}

void sh_bench_progress_end(sh_bench_progress *p) {
  if (p->terminal && p->done > 0) fputs("\r\033[K", stderr);
  p->done = 0;
}

int sh_bench_stopped(const volatile bool *stop, sh_error *e) { return stop && *stop ? sh_fail(e, SH_ERR_CANCELLED, "stopped") : 0; }

/* --- Output */

int sh_bench_sink_open(sh_bench_sink *s, bool json, const char *csv, const char *html, sh_error *e) {
  *s = (sh_bench_sink){.json = json};
  int rc = csv ? sh_file_out_open(&s->private_files[0], csv, e) : 0;
  s->private_csv = csv && rc == 0;
  if (rc == 0 && html) rc = sh_file_out_open(&s->private_files[1], html, e);
  s->private_html = html && rc == 0;
  return rc;
}

void sh_bench_sink_close(sh_bench_sink *s) {
  for (int i = 0; i < 2; i++) sh_file_out_abandon(&s->private_files[i]);
  *s = (sh_bench_sink){0};
}

static int to_file(sh_file_out *f, const sh_buf *b, sh_error *e) {
  int rc = sh_file_out_write(f, b->p, b->len, e);
  return rc == 0 ? sh_file_out_commit(f, e) : rc;
}

static int too_large(int rc, sh_error *e) { return rc < 0 ? sh_fail(e, rc, "the result does not fit in memory") : 0; }

static int write_all(sh_bench_sink *s, const sh_bench_out *o, sh_buf *b, sh_error *e) {
  int rc = 0;
  if (s->private_csv && (rc = too_large(sh_bench_write_csv(o, b), e)) == 0) rc = to_file(&s->private_files[0], b, e);
  sh_buf_reset(b);
  if (rc == 0 && s->private_html && (rc = too_large(sh_bench_write_html(o, b), e)) == 0) rc = to_file(&s->private_files[1], b, e);
  sh_buf_reset(b);
  if (rc == 0) rc = too_large(s->json ? sh_bench_write_json(o, b) : sh_bench_write_text(o, b), e);
  if (rc == 0 && (fwrite(b->p, 1, b->len, stdout) != b->len || fflush(stdout) != 0))
    rc = sh_fail(e, SH_ERR_IO, "the result cannot be written to the standard output: %s", strerror(errno));
  return rc;
}

int sh_bench_sink_write(sh_bench_sink *s, sh_bench_out *o, int rc, sh_error *e) {
  if (rc < 0 && rc != SH_ERR_CANCELLED) return rc;
  o->complete = o->complete && rc == 0;
  sh_buf b;
  sh_error why = {0};
  sh_buf_init(&b, MAX_OUT);
  int wrote = write_all(s, o, &b, &why);
  sh_buf_free(&b);
  return wrote < 0 ? sh_fail(e, wrote, "%s", why.text) : rc;
}

/* --- Lists */

int sh_bench_list(const char *text, const char *name, int64_t min, int64_t max, int *out, int cap, sh_error *e) {
  int n = 0;
  for (const char *s = text, *stop; *s; s = *stop ? stop + 1 : stop) {
    char word[24];
    int64_t v;
    stop = s + strcspn(s, ",");
    snprintf(word, sizeof word, "%.*s", (int)(stop - s < 23 ? stop - s : 23), s);
    if (sh_parse_i64(word, &v) < 0)
      return sh_fail(e, SH_ERR_ARG, "--%s %.60s: found '%s', wanted whole numbers separated by commas", name, text, word);
    if (v < min || v > max)
      return sh_fail(e, SH_ERR_ARG, "--%s %.60s: found %s, wanted values from %lld to %lld", name, text, word, (long long)min,
                     (long long)max);
    if (n == cap) return sh_fail(e, SH_ERR_ARG, "--%s: more than %d values", name, cap);
    out[n++] = (int)v;
  }
  return n > 0 ? n : sh_fail(e, SH_ERR_ARG, "--%s: found nothing, wanted whole numbers separated by commas", name);
}
