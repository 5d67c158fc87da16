/* The outputs of a load: text for people, JSON and CSV for programs. Any thread. The page is in serve_html.c.
 *
 * Names are those of vLLM's benchmark, so that results can be laid side by side. */
#include "bench/serve.h"

#include "base/json.h"
#include "base/text.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct metric {
  const char *title, *key;
  const sh_bsummary *s;
} metric;

enum { N_METRICS = 4 };

static void metrics_of(const sh_bserve_row *row, metric out[N_METRICS]) {
  out[0] = (metric){"TTFT", "ttft_ms", &row->ttft};
  out[1] = (metric){"TPOT", "tpot_ms", &row->tpot};
  out[2] = (metric){"ITL", "itl_ms", &row->itl};
  out[3] = (metric){"E2EL", "e2el_ms", &row->e2el};
}

static double per_second(const sh_bserve_row *row, int64_t n) { return row->seconds > 0 ? (double)n / row->seconds : 0; }

void sh_bserve_label(const sh_bserve_row *row, char out[64]) {
  char cap[32] = "";
  if (row->concurrency) snprintf(cap, sizeof cap, "%lld at once", (long long)row->concurrency);
  if (row->rate == 0) snprintf(out, 64, "%s", cap);
  else if (isinf(row->rate)) snprintf(out, 64, "all together%s%s", cap[0] ? ", " : "", cap);
  else snprintf(out, 64, "%g/s%s%s", row->rate, cap[0] ? ", " : "", cap);
}

/* ---- Text ---- */

__attribute__((format(printf, 3, 4))) static void line(sh_buf *out, const char *title, const char *fmt, ...) {
  char text[96];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  sh_buf_printf(out, "%-38s %s\n", title, text);
}

static void write_tokens(const sh_bserve_row *row, sh_buf *out) {
  line(out, "Total input tokens:", "%lld", (long long)row->input_tokens);
  line(out, "Total generated tokens:", "%lld", (long long)row->output_tokens);
  if (row->cached_tokens >= 0) line(out, "Input tokens found in its cache:", "%lld", (long long)row->cached_tokens);
  if (row->estimated > 0)
    sh_buf_printf(out, "%lld answers came without usage: their output is counted as events, their input is left out\n",
                  (long long)row->estimated);
}

static void write_failures(const sh_bserve_row *row, sh_buf *out) {
  for (int i = 0; i < row->n_kinds; i++)
    sh_buf_printf(out, "  %-15s %6lld   first: %s\n", row->kinds[i].name, (long long)row->kinds[i].n, row->kinds[i].first);
}

void sh_bserve_write_row(const sh_bserve *r, const sh_bserve_row *row, sh_buf *out) {
  char label[64];
  metric m[N_METRICS];
  sh_bserve_label(row, label);
  metrics_of(row, m);
  sh_buf_printf(out, "==== %s ====\n", label);
  line(out, "Successful requests:", "%lld", (long long)row->done);
  line(out, "Failed requests:", "%lld", (long long)row->failed);
  write_failures(row, out);
  if (row->unfinished) line(out, "Unfinished requests (interrupted):", "%lld", (long long)row->unfinished);
  line(out, "Benchmark duration (s):", "%.2f", row->seconds);
  write_tokens(row, out);
  line(out, "Request throughput (req/s):", "%.2f", per_second(row, row->done));
  if (r->o->goal.given) line(out, "Request goodput (req/s):", "%.2f", per_second(row, row->good));
  line(out, "Input token throughput (tok/s):", "%.2f", per_second(row, row->input_tokens));
  line(out, "Output token throughput (tok/s):", "%.2f", per_second(row, row->output_tokens));
  line(out, "Total token throughput (tok/s):", "%.2f", per_second(row, row->input_tokens + row->output_tokens));
  line(out, "Peak concurrent requests:", "%lld", (long long)row->peak);
  if (row->resent) line(out, "Sent again (kept connection closed):", "%lld", (long long)row->resent);
  if (row->events > 0) line(out, "Tokens per stream event:", "%.2f", (double)row->output_tokens / (double)row->events);
  if (row->late.n) line(out, "Started late by (ms), mean and p99:", "%.2f, %.2f", row->late.mean, row->late.q[99]);
  line(out, "CPU of this client (% of a core):", "%.1f", row->cpu * 100);
  sh_buf_printf(out, "%-12s %10s %10s %10s %10s %10s\n", "ms", "mean", "median", "p90", "p95", "p99");
  for (int i = 0; i < N_METRICS; i++)
    sh_buf_printf(out, "%-12s %10.2f %10.2f %10.2f %10.2f %10.2f\n", m[i].title, m[i].s->mean, m[i].s->q[50], m[i].s->q[90], m[i].s->q[95],
                  m[i].s->q[99]);
  if (row->cpu > 0.8)
    sh_buf_puts(out, "this client used most of a core: its own times are part of the latencies; spread the load over several clients\n");
  sh_buf_putc(out, '\n');
}

void sh_bserve_write_summary(const sh_bserve *r, sh_buf *out) {
  bool goal = r->o->goal.given;
  sh_buf_printf(out, "%-24s %6s %6s %9s%s %10s %10s %10s %10s %10s\n", "load", "done", "failed", "req/s", goal ? "    good/s" : "",
                "out tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "ITL p99");
  for (int i = 0; i < r->n_rows; i++) {
    const sh_bserve_row *row = &r->rows[i];
    char label[64], good[32] = "";
    sh_bserve_label(row, label);
    if (goal) snprintf(good, sizeof good, " %9.2f", per_second(row, row->good));
    sh_buf_printf(out, "%-24s %6lld %6lld %9.2f%s %10.2f %10.2f %10.2f %10.2f %10.2f\n", label, (long long)row->done,
                  (long long)row->failed, per_second(row, row->done), good, per_second(row, row->output_tokens), row->ttft.q[50],
                  row->ttft.q[99], row->tpot.q[50], row->itl.q[99]);
  }
}

/* ---- JSON ---- */

static const int REPORTED[] = {50, 90, 95, 99};
enum { N_REPORTED = 4 };

static void json_summary(sh_jw *w, const char *key, const sh_bsummary *s) {
  char name[8];
  sh_jw_key(w, key);
  sh_jw_obj(w);
  sh_jw_kint(w, "n", (int64_t)s->n);
  sh_jw_kdouble(w, "mean", s->mean);
  sh_jw_kdouble(w, "std", s->sd);
  sh_jw_kdouble(w, "min", s->q[0]);
  sh_jw_kdouble(w, "max", s->q[100]);
  sh_jw_kdouble(w, "median", s->q[50]);
  for (int i = 1; i < N_REPORTED; i++) {
    snprintf(name, sizeof name, "p%d", REPORTED[i]);
    sh_jw_kdouble(w, name, s->q[REPORTED[i]]);
  }
  sh_jw_end_obj(w);
}

static void json_failures(sh_jw *w, const sh_bserve_row *row) {
  sh_jw_key(w, "failures");
  sh_jw_obj(w);
  for (int i = 0; i < row->n_kinds; i++) {
    sh_jw_key(w, row->kinds[i].name);
    sh_jw_obj(w);
    sh_jw_kint(w, "requests", row->kinds[i].n);
    sh_jw_kstr(w, "first", row->kinds[i].first);
    sh_jw_end_obj(w);
  }
  sh_jw_end_obj(w);
}

static void json_row(sh_jw *w, const sh_bserve *r, const sh_bserve_row *row) {
  metric m[N_METRICS];
  metrics_of(row, m);
  sh_jw_obj(w);
  if (row->concurrency) sh_jw_kint(w, "max_concurrency", row->concurrency);
  else sh_jw_knull(w, "max_concurrency");
  if (isinf(row->rate)) sh_jw_kstr(w, "request_rate", "inf");
  else if (row->rate > 0) sh_jw_kdouble(w, "request_rate", row->rate);
  else sh_jw_knull(w, "request_rate");
  sh_jw_kint(w, "completed", row->done);
  sh_jw_kint(w, "failed", row->failed);
  sh_jw_kint(w, "unfinished", row->unfinished);
  json_failures(w, row);
  sh_jw_kdouble(w, "duration", row->seconds);
  sh_jw_kint(w, "total_input_tokens", row->input_tokens);
  sh_jw_kint(w, "total_output_tokens", row->output_tokens);
  if (row->cached_tokens >= 0) sh_jw_kint(w, "cached_input_tokens", row->cached_tokens);
  else sh_jw_knull(w, "cached_input_tokens");
  sh_jw_kint(w, "without_usage", row->estimated);
  sh_jw_kint(w, "text_events", row->events);
  sh_jw_kdouble(w, "request_throughput", per_second(row, row->done));
  if (r->o->goal.given) sh_jw_kdouble(w, "request_goodput", per_second(row, row->good));
  sh_jw_kdouble(w, "input_throughput", per_second(row, row->input_tokens));
  sh_jw_kdouble(w, "output_throughput", per_second(row, row->output_tokens));
  sh_jw_kdouble(w, "total_token_throughput", per_second(row, row->input_tokens + row->output_tokens));
  sh_jw_kint(w, "peak_concurrency", row->peak);
  sh_jw_kint(w, "connections", row->connections);
  sh_jw_kint(w, "resent", row->resent);
  sh_jw_kdouble(w, "client_cpu", row->cpu);
  for (int i = 0; i < N_METRICS; i++) json_summary(w, m[i].key, m[i].s);
  if (row->late.n) json_summary(w, "started_late_ms", &row->late);
  sh_jw_end_obj(w);
}

static void json_length(sh_jw *w, const char *key, const sh_blen *l) {
  char text[96];
  switch (l->kind) {
  case SH_BLEN_FIXED: snprintf(text, sizeof text, "%lld", (long long)l->low); break;
  case SH_BLEN_UNIFORM: snprintf(text, sizeof text, "%lld-%lld", (long long)l->low, (long long)l->high); break;
  case SH_BLEN_NORMAL: snprintf(text, sizeof text, "normal:%g,%g", l->mean, l->sd); break;
  case SH_BLEN_FILE: snprintf(text, sizeof text, "file"); break;
  }
  sh_jw_kstr(w, key, text);
}

void sh_bserve_write_json(const sh_bserve *r, sh_buf *out) {
  const sh_bserve_opts *o = r->o;
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "kind", "sheng bench serve");
  sh_jw_kint(&w, "version", 1);
  sh_jw_kstr(&w, "url", r->url);
  sh_jw_kstr(&w, "model", r->model);
  sh_jw_kstr(&w, "endpoint", o->chat ? "chat" : "completions");
  json_length(&w, "input_len", &o->input);
  json_length(&w, "output_len", &o->output);
  sh_jw_kint(&w, "shared_prefix", o->shared);
  sh_jw_kint(&w, "prefix_groups", o->groups);
  sh_jw_kdouble(&w, "burstiness", o->burstiness);
  sh_jw_kint(&w, "seed", (int64_t)o->seed);
  sh_jw_kdouble(&w, "tokens_per_word", r->tokens_per_word);
  sh_jw_kbool(&w, "interrupted", r->interrupted);
  sh_jw_key(&w, "rows");
  sh_jw_arr(&w);
  for (int i = 0; i < r->n_rows; i++) json_row(&w, r, &r->rows[i]);
  sh_jw_end_arr(&w);
  sh_jw_end_obj(&w);
  sh_buf_putc(out, '\n');
}

/* ---- CSV ---- */

static void csv_header(sh_buf *out) {
  sh_bserve_row none = {0};
  metric m[N_METRICS];
  metrics_of(&none, m);
  sh_buf_puts(out, "url,model,max_concurrency,request_rate,completed,failed,unfinished,duration,total_input_tokens,total_output_tokens,"
                   "request_throughput,request_goodput,input_throughput,output_throughput,total_token_throughput,peak_concurrency,"
                   "client_cpu");
  for (int i = 0; i < N_METRICS; i++) {
    sh_buf_printf(out, ",mean_%s", m[i].key);
    for (int k = 0; k < N_REPORTED; k++) sh_buf_printf(out, ",p%d_%s", REPORTED[k], m[i].key);
  }
  sh_buf_putc(out, '\n');
}

void sh_bserve_write_csv(const sh_bserve *r, sh_buf *out) {
  csv_header(out);
  for (int i = 0; i < r->n_rows; i++) {
    const sh_bserve_row *row = &r->rows[i];
    metric m[N_METRICS];
    metrics_of(row, m);
    sh_csv_text(out, r->url);
    sh_buf_putc(out, ',');
    sh_csv_text(out, r->model);
    sh_buf_putc(out, ',');
    if (row->concurrency) sh_buf_printf(out, "%lld", (long long)row->concurrency);
    sh_buf_putc(out, ',');
    if (row->rate > 0) sh_buf_printf(out, "%g", row->rate);
    sh_buf_printf(out, ",%lld,%lld,%lld,%.6g,%lld,%lld,%.6g,", (long long)row->done, (long long)row->failed, (long long)row->unfinished,
                  row->seconds, (long long)row->input_tokens, (long long)row->output_tokens, per_second(row, row->done));
    if (r->o->goal.given) sh_buf_printf(out, "%.6g", per_second(row, row->good));
    sh_buf_printf(out, ",%.6g,%.6g,%.6g,%lld,%.4g", per_second(row, row->input_tokens), per_second(row, row->output_tokens),
                  per_second(row, row->input_tokens + row->output_tokens), (long long)row->peak, row->cpu);
    for (int k = 0; k < N_METRICS; k++) {
      sh_buf_printf(out, ",%.6g", m[k].s->mean);
      for (int j = 0; j < N_REPORTED; j++) sh_buf_printf(out, ",%.6g", m[k].s->q[REPORTED[j]]);
    }
    sh_buf_putc(out, '\n');
  }
}
