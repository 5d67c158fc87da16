/* The page of a load: figures, a table, and plots of throughput, latencies and their distributions. Any thread.
 *
 * Rows are set beside each other at equal distances: a sweep is made of powers of two or of rates around the server's limit, and neither is
 * read well on a linear axis. */
#include "bench/serve.h"

#include "base/page.h"
#include "base/text.h"
#include <math.h>
#include <stdio.h>

enum { TICKS = 5, MAX_CURVES = 8 };

static double per_second(const sh_bserve_row *row, int64_t n) { return row->seconds > 0 ? (double)n / row->seconds : 0; }

/* A colour for curve i of n. */
static void colour(char out[40], int i, int n) { snprintf(out, 40, "hsl(%d 65%% 48%%)", n > 1 ? 215 - 190 * i / (n - 1) : 215); }

static void legend(sh_buf *out, const char *const *names, int n) {
  sh_buf_puts(out, "<p class=\"soft\">");
  for (int i = 0; i < n; i++) {
    char c[40];
    colour(c, i, n);
    sh_buf_printf(out, "%s<span style=\"color:%s\">&#9632;</span> ", i ? " &nbsp; " : "", c);
    sh_html_text(out, names[i]);
  }
  sh_buf_puts(out, "</p>\n");
}

/* Values [n_series][n_rows] over the rows. */
static void plot_rows(sh_buf *out, const sh_bserve *r, const char *label, const double *v, int n_series, const char *const *names) {
  double most = 0;
  int n = r->n_rows;
  for (int i = 0; i < n * n_series; i++)
    if (v[i] > most) most = v[i];
  double top = most > 0 ? sh_plot_round_up(most) : 1;
  sh_plot_begin(out, label, "load");
  for (int i = 0; i < TICKS; i++) sh_plot_y_tick(out, (double)i / (TICKS - 1), top * i / (TICKS - 1));
  for (int k = 0; k < n; k += n / 9 + 1) {
    char text[64];
    sh_bserve_label(&r->rows[k], text);
    sh_plot_x_tick(out, (k + 0.5) / n, text);
  }
  for (int s = 0; s < n_series; s++) {
    char c[40];
    colour(c, s, n_series);
    sh_buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", c);
    for (int k = 0; k < n; k++) sh_buf_printf(out, "%s%.1f,%.1f", k ? " " : "", sh_plot_x((k + 0.5) / n), sh_plot_y(v[s * n + k] / top));
    sh_buf_puts(out, "\"/>\n");
    for (int k = 0; k < n; k++)
      sh_buf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s: %.4g</title></circle>\n",
                    sh_plot_x((k + 0.5) / n), sh_plot_y(v[s * n + k] / top), c, names[s], v[s * n + k]);
  }
  sh_buf_puts(out, "</svg>\n");
  legend(out, names, n_series);
}

/* How many of 100 were at most so long: one curve for each of the first rows. */
static void plot_spread(sh_buf *out, const sh_bserve *r, const char *label, size_t which) {
  int n = r->n_rows < MAX_CURVES ? r->n_rows : MAX_CURVES;
  double most = 0;
  for (int i = 0; i < n; i++) {
    const sh_bsummary *s = (const sh_bsummary *)((const char *)&r->rows[i] + which);
    if (s->q[99] > most) most = s->q[99];
  }
  double right = most > 0 ? sh_plot_round_up(most) : 1;
  const char *names[MAX_CURVES];
  char labels[MAX_CURVES][64];
  sh_plot_begin(out, label, "ms, to the 99th percentile");
  for (int i = 0; i < TICKS; i++) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", right * i / (TICKS - 1));
    sh_plot_x_tick(out, (double)i / (TICKS - 1), text);
    sh_plot_y_tick(out, (double)i / (TICKS - 1), 100.0 * i / (TICKS - 1));
  }
  for (int i = 0; i < n; i++) {
    const sh_bsummary *s = (const sh_bsummary *)((const char *)&r->rows[i] + which);
    char c[40];
    sh_bserve_label(&r->rows[i], labels[i]);
    names[i] = labels[i];
    colour(c, i, n);
    sh_buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", c);
    for (int p = 0; p < 100; p++)
      sh_buf_printf(out, "%s%.1f,%.1f", p ? " " : "", sh_plot_x(s->q[p] < right ? s->q[p] / right : 1), sh_plot_y(p / 100.0));
    sh_buf_puts(out, "\"/>\n");
  }
  sh_buf_puts(out, "</svg>\n");
  legend(out, names, n);
}

static void plots(sh_buf *out, const sh_bserve *r) {
  static const char *const rates[] = {"output tokens/s", "input tokens/s"};
  static const char *const first[] = {"median", "p90", "p99"};
  static double v[3 * SH_BSERVE_MAX_ROWS]; /* [series][rows] */
  int n = r->n_rows;
  for (int k = 0; k < n; k++) {
    v[k] = per_second(&r->rows[k], r->rows[k].output_tokens);
    v[n + k] = per_second(&r->rows[k], r->rows[k].input_tokens);
  }
  sh_buf_puts(out, "<h2>Throughput, tokens/s</h2>\n");
  plot_rows(out, r, "Throughput by load", v, 2, rates);
  const size_t which[] = {offsetof(sh_bserve_row, ttft), offsetof(sh_bserve_row, itl), offsetof(sh_bserve_row, e2el)};
  static const char *const titles[] = {"Time to first token, ms", "Inter-token latency, ms", "End-to-end latency, ms"};
  static const int percent[] = {50, 90, 99};
  for (int m = 0; m < 3; m++) {
    for (int s = 0; s < 3; s++)
      for (int k = 0; k < n; k++) v[s * n + k] = ((const sh_bsummary *)((const char *)&r->rows[k] + which[m]))->q[percent[s]];
    sh_buf_printf(out, "<h2>%s</h2>\n", titles[m]);
    if (n > 1) plot_rows(out, r, titles[m], v, 3, first);
    sh_buf_puts(out, "<p>Percent of them that took at most so long:</p>\n");
    plot_spread(out, r, titles[m], which[m]);
  }
}

static void table(sh_buf *out, const sh_bserve *r) {
  sh_buf_puts(out, "<h2>All rows</h2>\n<div class=\"scroll\"><table><tr><th>load</th><th>done</th><th>failed</th><th>s</th><th>req/s</th>");
  if (r->o->goal.given) sh_buf_puts(out, "<th>good/s</th>");
  sh_buf_puts(out, "<th>in tok/s</th><th>out tok/s</th><th>peak</th><th>TTFT p50</th><th>p99</th><th>TPOT p50</th><th>p99</th><th>ITL "
                   "p99</th><th>E2EL p50</th><th>p99</th></tr>\n");
  for (int i = 0; i < r->n_rows; i++) {
    const sh_bserve_row *row = &r->rows[i];
    char label[64];
    sh_bserve_label(row, label);
    sh_buf_printf(out, "<tr><td>%s</td><td>%lld</td><td>%lld</td><td>%.1f</td><td>%.2f</td>", label, (long long)row->done,
                  (long long)row->failed, row->seconds, per_second(row, row->done));
    if (r->o->goal.given) sh_buf_printf(out, "<td>%.2f</td>", per_second(row, row->good));
    sh_buf_printf(out, "<td>%.1f</td><td>%.1f</td><td>%lld</td><td>%.1f</td><td>%.1f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td>",
                  per_second(row, row->input_tokens), per_second(row, row->output_tokens), (long long)row->peak, row->ttft.q[50],
                  row->ttft.q[99], row->tpot.q[50], row->tpot.q[99], row->itl.q[99]);
    sh_buf_printf(out, "<td>%.1f</td><td>%.1f</td></tr>\n", row->e2el.q[50], row->e2el.q[99]);
  }
  sh_buf_puts(out, "</table></div>\n");
}

static void failures(sh_buf *out, const sh_bserve *r) {
  bool any = false;
  for (int i = 0; i < r->n_rows; i++) any |= r->rows[i].failed > 0;
  if (!any) return;
  sh_buf_puts(out, "<h2>Failures</h2>\n<div class=\"scroll\"><table><tr><th>load</th><th>kind</th><th>requests</th><th>first</th></tr>\n");
  for (int i = 0; i < r->n_rows; i++)
    for (int k = 0; k < r->rows[i].n_kinds; k++) {
      const sh_bfail *f = &r->rows[i].kinds[k];
      char label[64];
      sh_bserve_label(&r->rows[i], label);
      sh_buf_printf(out, "<tr><td>%s</td><td>%s</td><td>%lld</td><td><q>", label, f->name, (long long)f->n);
      sh_html_text(out, f->first);
      sh_buf_puts(out, "</q></td></tr>\n");
    }
  sh_buf_puts(out, "</table></div>\n");
}

void sh_bserve_write_html(const sh_bserve *r, sh_buf *out) {
  const sh_bserve_row *best = NULL;
  for (int i = 0; i < r->n_rows; i++)
    if (!best || per_second(&r->rows[i], r->rows[i].output_tokens) > per_second(best, best->output_tokens)) best = &r->rows[i];
  sh_page_begin(out, "sheng bench serve: ", r->model);
  sh_buf_puts(out, "<p>Load on <code>");
  sh_html_text(out, r->url);
  sh_buf_printf(out, "</code>, %s.%s</p>\n", r->o->chat ? "chat completions" : "completions",
                r->interrupted ? " Interrupted: the last row is not whole." : "");
  if (best) {
    char label[64];
    sh_bserve_label(best, label);
    sh_buf_puts(out, "<div class=\"cards\">\n");
    sh_page_card(out, "most output tokens/s", "%.1f", per_second(best, best->output_tokens));
    sh_page_card(out, "at a load of", "%s", label);
    sh_page_card(out, "median TTFT there, ms", "%.1f", best->ttft.q[50]);
    sh_page_card(out, "median TPOT there, ms", "%.2f", best->tpot.q[50]);
    sh_buf_puts(out, "</div>\n");
    plots(out, r);
    table(out, r);
    failures(out, r);
  }
  sh_page_end(out);
}
