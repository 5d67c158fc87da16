/* The HTML page of an evaluation. Any thread.
 *
 * One file, with its style and its plots (inline SVG, base/page.h) inside: it is mailed, put beside a model, opened without a network. No
 * script: nothing on the page needs one, and a page that is opened from a stranger's model folder should not bring any. Every text that
 * comes from a file goes through sh_html_text. */
#include "quant/report.h"

#include "base/file.h"
#include "base/json.h"
#include "base/page.h"
#include "base/text.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RESULT = 64 << 20, TICKS = 5, MAX_POINTS = 66 };

/* ---- Results of earlier runs ---- */

static int want(const sh_json *root, const char *path, double *out, const char *file, sh_error *e) {
  const sh_json *v = sh_json_path(root, path);
  if (sh_json_double(v, out) == 0) return 0;
  return sh_fail(e, SH_ERR_FORMAT, "%s: \"%s\" is %s, wanted a number; is it a result of `sheng eval --json`?", file, path,
                 v ? sh_json_type_phrase(v->type) : "missing");
}

static int read_point(sh_report_point *out, const sh_json *root, const char *file, sh_error *e) {
  double bytes = 0;
  const sh_json *name = sh_json_path(root, "model.name"), *ref = sh_json_path(root, "reference.name");
  if (!sh_json_is(name, SH_JSON_STRING))
    return sh_fail(e, SH_ERR_FORMAT, "%s: \"model.name\" is %s, wanted a string; is it a result of `sheng eval --json`?", file,
                   name ? sh_json_type_phrase(name->type) : "missing");
  out->name = name->s;
  out->reference = sh_json_is(ref, SH_JSON_STRING) ? ref->s : NULL;
  int rc = want(root, "model.bytes", &bytes, file, e);
  if (rc == 0) rc = want(root, "model.perplexity", &out->ppl, file, e);
  if (rc == 0 && out->reference) rc = want(root, "kl.mean", &out->kl, file, e);
  if (rc == 0 && out->reference) rc = want(root, "top1_agreement", &out->top1, file, e);
  if (rc == 0 && !(bytes >= 0 && bytes < 1e18)) rc = sh_fail(e, SH_ERR_FORMAT, "%s: \"model.bytes\" is no size", file);
  if (rc == 0) out->bytes = (int64_t)bytes;
  return rc;
}

int sh_report_read(sh_report_point *out, const char *path, sh_arena *a, sh_error *e) {
  char *text = NULL;
  size_t n;
  sh_json *root;
  *out = (sh_report_point){0};
  int rc = sh_file_read(path, MAX_RESULT, &text, &n, e);
  if (rc < 0) return rc;
  rc = sh_json_parse(text, n, NULL, a, &root, e);
  if (rc < 0) sh_fail_in(e, rc, "%s", path);
  else rc = read_point(out, root, path, e);
  sh_free(text);
  return rc;
}

/* ---- Plots ---- */

static void plot_layers(const sh_eval *r, sh_buf *out) {
  double most = 0;
  for (int i = 0; i < r->n_layers; i++)
    if (r->layers[i].mean > most) most = r->layers[i].mean;
  double top = most > 0 ? sh_plot_round_up(most) : 1;
  sh_plot_begin(out, "Relative error of the residual stream by layer", "layer (0: embedding; the last: after the final norm)");
  for (int i = 0; i < TICKS; i++) sh_plot_y_tick(out, (double)i / (TICKS - 1), top * i / (TICKS - 1));
  int last = r->n_layers > 1 ? r->n_layers - 1 : 1, step = last / 12 + 1;
  for (int i = 0; i < r->n_layers; i += step) {
    char text[16];
    snprintf(text, sizeof text, "%d", i);
    sh_plot_x_tick(out, (double)i / last, text);
  }
  sh_buf_puts(out, "<polyline fill=\"none\" stroke=\"var(--a)\" stroke-width=\"2\" points=\"");
  for (int i = 0; i < r->n_layers; i++)
    sh_buf_printf(out, "%s%.1f,%.1f", i ? " " : "", sh_plot_x((double)i / last), sh_plot_y(r->layers[i].mean / top));
  sh_buf_puts(out, "\"/>\n");
  for (int i = 0; i < r->n_layers; i++)
    sh_buf_printf(out,
                  "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"var(--a)\"><title>layer %d: mean %.3g, largest %.3g</title></circle>\n",
                  sh_plot_x((double)i / last), sh_plot_y(r->layers[i].mean / top), i, r->layers[i].mean, r->layers[i].max);
  sh_buf_puts(out, "</svg>\n");
}

static void plot_histogram(const sh_eval *r, sh_buf *out) {
  int64_t most = 1;
  for (int i = 0; i < SH_EVAL_BINS; i++)
    if (r->bins[i] > most) most = r->bins[i];
  double top = sh_plot_round_up((double)most), width = 1.0 / SH_EVAL_BINS;
  sh_plot_begin(out, "Histogram of the KL divergence of each token",
                "KL divergence of a token, nats; four bins a decade, the first is all that is less");
  for (int i = 0; i < TICKS; i++) sh_plot_y_tick(out, (double)i / (TICKS - 1), top * i / (TICKS - 1));
  for (int i = 1; i < SH_EVAL_BINS; i += 4) {
    char text[16];
    snprintf(text, sizeof text, "1e%d", -8 + (i - 1) / 4);
    sh_plot_x_tick(out, i * width, text);
  }
  for (int i = 0; i < SH_EVAL_BINS; i++) {
    if (!r->bins[i]) continue;
    double y = sh_plot_y((double)r->bins[i] / top);
    sh_buf_printf(
        out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"var(--a)\"><title>from %.2g: %lld tokens</title></rect>\n",
        sh_plot_x(i * width) + 0.5, y, sh_plot_x(width) - sh_plot_x(0) - 1, sh_plot_y(0) - y, sh_eval_bin_from(i), (long long)r->bins[i]);
  }
  sh_buf_puts(out, "</svg>\n");
}

/* ---- Several results ---- */

typedef struct axis {
  double lo, hi;
  bool log;
} axis;

static double at(const axis *a, double v) {
  double x = a->log ? log10(v) : v;
  return a->hi > a->lo ? (x - a->lo) / (a->hi - a->lo) : 0.5;
}

/* Size against the mean KL divergence (logarithmic) when every result has one above zero, else against perplexity. */
static void plot_sizes(const sh_report_point *p, int n, sh_buf *out) {
  bool kl = true;
  double largest = 1;
  for (int i = 0; i < n; i++) {
    kl = kl && p[i].reference && p[i].kl > 0;
    if ((double)p[i].bytes > largest) largest = (double)p[i].bytes;
  }
  axis x = {0, sh_plot_round_up(largest / 1e6), false}, y = {INFINITY, -INFINITY, kl};
  for (int i = 0; i < n; i++) {
    double v = kl ? log10(p[i].kl) : p[i].ppl;
    if (v < y.lo) y.lo = v;
    if (v > y.hi) y.hi = v;
  }
  double pad = y.hi > y.lo ? (y.hi - y.lo) * 0.12 : 0.5;
  y.lo -= pad;
  y.hi += pad;
  sh_plot_begin(out, kl ? "Size against mean KL divergence" : "Size against perplexity", "size of the tensors, MB");
  for (int i = 0; i < TICKS; i++) {
    double v = y.lo + (y.hi - y.lo) * i / (TICKS - 1);
    char text[32];
    sh_plot_y_tick(out, (double)i / (TICKS - 1), kl ? pow(10, v) : v);
    snprintf(text, sizeof text, "%.4g", x.hi * i / (TICKS - 1));
    sh_plot_x_tick(out, (double)i / (TICKS - 1), text);
  }
  for (int i = 0; i < n; i++) {
    double cx = sh_plot_x(at(&x, (double)p[i].bytes / 1e6)), cy = sh_plot_y(at(&y, kl ? p[i].kl : p[i].ppl));
    bool right = cx > SH_PLOT_W * 0.7;
    sh_buf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(--%c)\"/>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", cx,
                  cy, i ? 'b' : 'a', cx + (right ? -9 : 9), cy + 4, right ? "end" : "start");
    sh_html_text(out, p[i].name);
    sh_buf_puts(out, "</text>\n");
  }
  sh_buf_printf(out, "</svg>\n<p class=\"soft\">Upwards: %s; lower is better.</p>\n",
                kl ? "mean KL divergence, nats, logarithmic" : "perplexity");
}

static void compare_table(const sh_report_point *p, int n, sh_buf *out) {
  sh_buf_puts(out, "<div class=\"scroll\"><table><tr><th>model</th><th>MB</th><th>perplexity</th><th>mean KL</th><th>same "
                   "token</th><th>reference</th></tr>\n");
  for (int i = 0; i < n; i++) {
    sh_buf_puts(out, "<tr><td>");
    sh_html_text(out, p[i].name);
    sh_buf_printf(out, "</td><td>%.1f</td><td>%.4f</td>", (double)p[i].bytes / 1e6, p[i].ppl);
    if (p[i].reference) {
      sh_buf_printf(out, "<td>%.3g</td><td>%.2f %%</td><td>", p[i].kl, p[i].top1 * 100);
      sh_html_text(out, p[i].reference);
      sh_buf_puts(out, "</td></tr>\n");
    } else {
      sh_buf_puts(out, "<td></td><td></td><td></td></tr>\n");
    }
  }
  sh_buf_puts(out, "</table></div>\n");
}

static void put_others(const sh_eval *r, const sh_report_point *others, int n, sh_buf *out) {
  sh_report_point all[MAX_POINTS] = {{.name = r->model.name, .bytes = r->model.bytes, .ppl = r->model.ppl}};
  if (r->ref.path) all[0].reference = r->ref.name;
  all[0].kl = r->kl_mean;
  all[0].top1 = r->top1;
  if (n > MAX_POINTS - 1) n = MAX_POINTS - 1;
  for (int i = 0; i < n; i++) all[i + 1] = others[i];
  sh_buf_puts(out, "<h2>Size against quality</h2>\n");
  plot_sizes(all, n + 1, out);
  compare_table(all, n + 1, out);
}

/* ---- The page ---- */

static void put_model(sh_buf *out, const char *label, const sh_eval_model *m) {
  char size[32];
  sh_buf_printf(out, "<p>%s: <code>", label);
  sh_html_text(out, m->path);
  sh_buf_puts(out, "</code><br><span class=\"soft\">");
  sh_html_text(out, m->describe);
  sh_buf_printf(out, ", %s</span></p>\n", sh_format_size(m->bytes, size));
}

static void put_cards(const sh_eval *r, sh_buf *out) {
  sh_buf_puts(out, "<div class=\"cards\">\n");
  sh_page_card(out, "perplexity", "%.4f", r->model.ppl);
  if (r->ref.path) {
    sh_page_card(out, "of the reference", "%.4f", r->ref.ppl);
    sh_page_card(out, "mean KL, nats", "%.3g", r->kl_mean);
    sh_page_card(out, "99 % KL, nats", "%.3g", r->kl_p99);
    sh_page_card(out, "same most likely token", "%.2f %%", r->top1 * 100);
    if (r->prefix_prompts) sh_page_card(out, "common greedy prefix, of 64", "%.1f", r->prefix_mean);
  }
  sh_buf_puts(out, "</div>\n");
}

static void put_comparison(const sh_eval *r, sh_buf *out) {
  sh_buf_puts(out, "<h2>KL divergence</h2>\n");
  plot_histogram(r, out);
  sh_buf_printf(out, "<p>Mean %.3g, median %.3g, 99 %% %.3g, worst %.3g nats.", r->kl_mean, r->kl_median, r->kl_p99, r->kl_max);
  if (r->kl_max > 0) {
    sh_buf_printf(out, " The worst is in line %d of the text (window %d, token %d): the token <q>", r->worst_line, r->worst_window,
                  r->worst_position);
    sh_html_text(out, r->worst_token);
    sh_buf_puts(out, "</q> after <q>");
    sh_html_text(out, r->worst_context);
    sh_buf_puts(out, "</q>.");
  }
  sh_buf_puts(out, "</p>\n");
  if (r->prefix_prompts)
    sh_buf_printf(out, "<p>Greedy continuations of %d prompts have %.1f tokens of %d in common with the reference's, at least %d.</p>\n",
                  r->prefix_prompts, r->prefix_mean, SH_EVAL_PREFIX, r->prefix_min);
  if (!r->n_layers) return;
  sh_buf_puts(out, "<h2>Relative error by layer</h2>\n");
  plot_layers(r, out);
}

static void task_row(sh_buf *out, const char *name, const char *kind, int n, const int right[2], bool two) {
  if (!n) return;
  sh_buf_puts(out, "<tr><td>");
  sh_html_text(out, name);
  sh_buf_printf(out, "</td><td>%s</td><td>%d</td><td>%.1f %%</td>", kind, n, 100.0 * right[0] / n);
  if (two) sh_buf_printf(out, "<td>%.1f %%</td>", 100.0 * right[1] / n);
  sh_buf_puts(out, "</tr>\n");
}

static void put_tasks(const sh_eval *r, sh_buf *out) {
  bool two = r->ref.path != NULL;
  sh_buf_printf(out, "<h2>Tasks</h2>\n<div class=\"scroll\"><table><tr><th>task</th><th>right by</th><th>n</th><th>model</th>%s</tr>\n",
                two ? "<th>reference</th>" : "");
  for (int i = 0; i < r->n_tasks; i++) {
    const sh_eval_task *t = &r->tasks[i];
    task_row(out, t->name, "greedy answer", t->n_answers, t->right, two);
    task_row(out, t->name, "choice", t->n_choices, t->best, two);
    task_row(out, t->name, "choice by length", t->n_choices, t->best_norm, two);
  }
  sh_buf_puts(out, "</table></div>\n");
}

int sh_report_html(const sh_eval *r, const sh_report_point *others, int n_others, sh_buf *out) {
  sh_page_begin(out, "sheng eval: ", r->model.name);
  put_model(out, "Model", &r->model);
  if (r->ref.path) put_model(out, "Reference", &r->ref);
  sh_buf_puts(out, "<p class=\"soft\">Measured over ");
  sh_html_text(out, r->text ? r->text : "the text in the program");
  sh_buf_printf(out, ": %lld tokens in %d windows of at most %d, %lld of them scored.</p>\n", (long long)r->tokens, r->windows, r->seq_len,
                (long long)r->scored);
  put_cards(r, out);
  if (r->ref.path) put_comparison(r, out);
  if (r->n_tasks) put_tasks(r, out);
  if (n_others > 0) put_others(r, others, n_others, out);
  sh_page_end(out);
  return out->failed;
}
