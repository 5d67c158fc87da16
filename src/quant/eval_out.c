/* The result of an evaluation as a table for people, as JSON and as CSV. Any thread. */
#include "base/json.h"
#include "base/text.h"
#include "quant/eval.h"

#include <stdio.h>
#include <string.h>

static double share(int right, int n) { return n ? (double)right / n : 0; }

/* ---- The table ---- */

/* Text of a file in one line, with nothing that a terminal obeys: control characters (those of Latin-1 too, c2 80 to c2 9f) as blanks. */
static void put_quoted(sh_buf *out, const char *s) {
  sh_buf_putc(out, '"');
  for (; *s; s++) {
    if (*s == '\n') sh_buf_puts(out, "\\n");
    else if ((unsigned char)*s < 32 || *s == 127) sh_buf_putc(out, ' ');
    else if ((unsigned char)*s == 0xc2 && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0) sh_buf_putc(out, ' '), s++;
    else sh_buf_putc(out, *s);
  }
  sh_buf_putc(out, '"');
}

static void put_model(sh_buf *out, const char *label, const sh_eval_model *m) {
  char size[32];
  sh_buf_printf(out, "%-12s %s\n%-12s %s, %s\n", label, m->path, "", m->describe, sh_format_size(m->bytes, size));
}

static void put_worst(const sh_eval *r, sh_buf *out) {
  sh_buf_printf(out, "  worst at               line %d of the text, window %d, token %d: ", r->worst_line, r->worst_window,
                r->worst_position);
  put_quoted(out, r->worst_token);
  sh_buf_puts(out, " after ");
  put_quoted(out, r->worst_context);
  sh_buf_putc(out, '\n');
}

static void put_comparison(const sh_eval *r, sh_buf *out) {
  double drift = (r->model.ppl / r->ref.ppl - 1) * 100;
  sh_buf_printf(out, "  of the reference       %.4f  (%+.2f %%)\n", r->ref.ppl, drift);
  sh_buf_printf(out, "KL divergence, nats      mean %.3g, median %.3g, 99%% %.3g, worst %.3g\n", r->kl_mean, r->kl_median, r->kl_p99,
                r->kl_max);
  if (r->kl_max > 0) put_worst(r, out);
  sh_buf_printf(out, "same most likely token   %.2f %%\n", r->top1 * 100);
  if (r->prefix_prompts)
    sh_buf_printf(out, "common greedy prefix     mean %.1f, least %d of %d tokens (%d prompts)\n", r->prefix_mean, r->prefix_min,
                  SH_EVAL_PREFIX, r->prefix_prompts);
  if (!r->n_layers) sh_buf_puts(out, "relative error by layer  not compared: the models have layers of different number or width\n");
  else sh_buf_puts(out, "\nrelative error of the residual stream (mean, largest over the tokens)\n");
  for (int i = 0; i < r->n_layers; i++) {
    char name[32];
    snprintf(name, sizeof name, i == 0 ? "embedding" : i == r->n_layers - 1 ? "final norm" : "layer %d", i);
    sh_buf_printf(out, "  %-12s %9.3g %9.3g\n", name, r->layers[i].mean, r->layers[i].max);
  }
}

static void put_tasks(const sh_eval *r, sh_buf *out) {
  bool two = r->ref.path != NULL;
  sh_buf_printf(out, "\n%-24s %6s %9s%s\n", "tasks", "n", "right", two ? " reference" : "");
  for (int i = 0; i < r->n_tasks; i++) {
    const sh_eval_task *t = &r->tasks[i];
    const int *right[] = {t->right, t->best, t->best_norm};
    const char *kind[] = {"", ", choice", ", choice by length"};
    for (int k = 0; k < 3; k++) {
      int n = k ? t->n_choices : t->n_answers;
      char name[160];
      if (!n) continue;
      snprintf(name, sizeof name, "%.120s%s", t->name, kind[k]);
      sh_buf_printf(out, "%-24s %6d %7.1f %%", name, n, share(right[k][0], n) * 100);
      if (two) sh_buf_printf(out, " %7.1f %%", share(right[k][1], n) * 100);
      sh_buf_putc(out, '\n');
    }
  }
}

int sh_eval_write_table(const sh_eval *r, sh_buf *out) {
  put_model(out, "model", &r->model);
  if (r->ref.path) put_model(out, "reference", &r->ref);
  sh_buf_printf(out, "%-12s %s: %lld tokens in %d windows of at most %d, %lld scored\n", "text",
                r->text ? r->text : "the one in the program", (long long)r->tokens, r->windows, r->seq_len, (long long)r->scored);
  if (r->skipped) sh_buf_printf(out, "%-12s %d dialogues were left out: the model has no chat template that takes them\n", "", r->skipped);
  sh_buf_printf(out, "\nperplexity               %.4f\n", r->model.ppl);
  if (r->ref.path) put_comparison(r, out);
  if (r->n_tasks) put_tasks(r, out);
  return out->failed;
}

/* ---- JSON ---- */

static void json_model(sh_jw *w, const char *key, const sh_eval_model *m) {
  sh_jw_key(w, key);
  sh_jw_obj(w);
  sh_jw_kstr(w, "name", m->name);
  sh_jw_kstr(w, "path", m->path);
  sh_jw_kstr(w, "description", m->describe);
  sh_jw_kint(w, "bytes", m->bytes);
  sh_jw_kdouble(w, "nll", m->nll);
  sh_jw_kdouble(w, "perplexity", m->ppl);
  sh_jw_end_obj(w);
}

static void json_kl(sh_jw *w, const sh_eval *r) {
  sh_jw_key(w, "kl");
  sh_jw_obj(w);
  sh_jw_kdouble(w, "mean", r->kl_mean);
  sh_jw_kdouble(w, "median", r->kl_median);
  sh_jw_kdouble(w, "p99", r->kl_p99);
  sh_jw_kdouble(w, "max", r->kl_max);
  sh_jw_key(w, "worst");
  sh_jw_obj(w);
  sh_jw_kint(w, "window", r->worst_window);
  sh_jw_kint(w, "line", r->worst_line);
  sh_jw_kint(w, "position", r->worst_position);
  sh_jw_kstr(w, "token", r->worst_token);
  sh_jw_kstr(w, "context", r->worst_context);
  sh_jw_end_obj(w);
  sh_jw_key(w, "histogram");
  sh_jw_arr(w);
  for (int i = 0; i < SH_EVAL_BINS; i++) {
    sh_jw_obj(w);
    sh_jw_kdouble(w, "from", sh_eval_bin_from(i));
    sh_jw_kint(w, "count", r->bins[i]);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

static void json_comparison(sh_jw *w, const sh_eval *r) {
  json_kl(w, r);
  sh_jw_kdouble(w, "top1_agreement", r->top1);
  sh_jw_key(w, "greedy_prefix");
  if (r->prefix_prompts) {
    sh_jw_obj(w);
    sh_jw_kint(w, "prompts", r->prefix_prompts);
    sh_jw_kint(w, "of", SH_EVAL_PREFIX);
    sh_jw_kdouble(w, "mean", r->prefix_mean);
    sh_jw_kint(w, "min", r->prefix_min);
    sh_jw_end_obj(w);
  } else {
    sh_jw_null(w);
  }
  sh_jw_key(w, "layers");
  sh_jw_arr(w);
  for (int i = 0; i < r->n_layers; i++) {
    sh_jw_obj(w);
    sh_jw_kint(w, "layer", i);
    sh_jw_kdouble(w, "mean", r->layers[i].mean);
    sh_jw_kdouble(w, "max", r->layers[i].max);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
}

static void json_shares(sh_jw *w, const char *key, int n, int right, int right_ref, bool two) {
  if (!n) return;
  sh_jw_key(w, key);
  sh_jw_obj(w);
  sh_jw_kint(w, "n", n);
  sh_jw_kdouble(w, "model", share(right, n));
  if (two) sh_jw_kdouble(w, "reference", share(right_ref, n));
  sh_jw_end_obj(w);
}

static void json_tasks(sh_jw *w, const sh_eval *r) {
  bool two = r->ref.path != NULL;
  sh_jw_key(w, "tasks");
  sh_jw_arr(w);
  for (int i = 0; i < r->n_tasks; i++) {
    const sh_eval_task *t = &r->tasks[i];
    sh_jw_obj(w);
    sh_jw_kstr(w, "task", t->name);
    json_shares(w, "exact", t->n_answers, t->right[0], t->right[1], two);
    json_shares(w, "choice", t->n_choices, t->best[0], t->best[1], two);
    json_shares(w, "choice_by_length", t->n_choices, t->best_norm[0], t->best_norm[1], two);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
}

int sh_eval_write_json(const sh_eval *r, sh_buf *out) {
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "kind", "sheng eval");
  sh_jw_kint(&w, "version", 1);
  json_model(&w, "model", &r->model);
  if (r->ref.path) json_model(&w, "reference", &r->ref);
  sh_jw_key(&w, "text");
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "file", r->text);
  sh_jw_kint(&w, "seq_len", r->seq_len);
  sh_jw_kint(&w, "windows", r->windows);
  sh_jw_kint(&w, "tokens", r->tokens);
  sh_jw_kint(&w, "scored", r->scored);
  sh_jw_kint(&w, "left_out", r->skipped);
  sh_jw_end_obj(&w);
  sh_jw_kbool(&w, "exact", r->exact);
  sh_jw_kbool(&w, "ref_exact", r->ref_exact);
  sh_jw_kdouble(&w, "seconds", r->seconds);
  if (r->ref.path) json_comparison(&w, r);
  if (r->n_tasks) json_tasks(&w, r);
  sh_jw_end_obj(&w);
  sh_buf_putc(out, '\n');
  return out->failed;
}

/* ---- CSV ---- */

static void csv_row(sh_buf *out, const sh_eval *r, const char *measure, int layer, double value) {
  sh_jw w;
  sh_csv_text(out, r->model.name);
  sh_buf_putc(out, ',');
  sh_csv_text(out, r->ref.path ? r->ref.name : "");
  sh_buf_putc(out, ',');
  sh_csv_text(out, measure);
  sh_buf_putc(out, ',');
  if (layer >= 0) sh_buf_printf(out, "%d", layer);
  sh_buf_putc(out, ',');
  sh_jw_init(&w, out);
  sh_jw_double(&w, value);
  sh_buf_putc(out, '\n');
}

static void csv_tasks(const sh_eval *r, sh_buf *out) {
  for (int i = 0; i < r->n_tasks; i++) {
    const sh_eval_task *t = &r->tasks[i];
    const int *right[] = {t->right, t->best, t->best_norm};
    const char *kind[] = {"exact", "choice", "choice_by_length"};
    for (int k = 0; k < 3; k++)
      for (int side = 0; side < (r->ref.path ? 2 : 1); side++) {
        int n = k ? t->n_choices : t->n_answers;
        char name[320];
        if (!n) continue;
        snprintf(name, sizeof name, "%s: %.250s%s", kind[k], t->name, side ? " (reference)" : "");
        csv_row(out, r, name, -1, share(right[k][side], n));
      }
  }
}

int sh_eval_write_csv(const sh_eval *r, sh_buf *out) {
  sh_buf_puts(out, "model,reference,measure,layer,value\n");
  csv_row(out, r, "bytes", -1, (double)r->model.bytes);
  csv_row(out, r, "perplexity", -1, r->model.ppl);
  if (r->ref.path) {
    csv_row(out, r, "reference_bytes", -1, (double)r->ref.bytes);
    csv_row(out, r, "reference_perplexity", -1, r->ref.ppl);
    csv_row(out, r, "kl_mean", -1, r->kl_mean);
    csv_row(out, r, "kl_median", -1, r->kl_median);
    csv_row(out, r, "kl_p99", -1, r->kl_p99);
    csv_row(out, r, "kl_max", -1, r->kl_max);
    csv_row(out, r, "top1_agreement", -1, r->top1);
    if (r->prefix_prompts) csv_row(out, r, "greedy_prefix_mean", -1, r->prefix_mean);
    if (r->prefix_prompts) csv_row(out, r, "greedy_prefix_min", -1, r->prefix_min);
    for (int i = 0; i < r->n_layers; i++) csv_row(out, r, "relative_error_mean", i, r->layers[i].mean);
    for (int i = 0; i < r->n_layers; i++) csv_row(out, r, "relative_error_max", i, r->layers[i].max);
  }
  csv_tasks(r, out);
  return out->failed;
}
