/* The results as one HTML page (base/page.h): tables, and a bar for every row of a table that names a column for it. Any thread. */
#include "bench/table.h"

#include "base/page.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { W = 720, LABEL = 270, VALUE = 70, BAR = 16, GAP = 6 };

/* Beside the shared style: tables as wide as they are, text to the left, bars. */
static const char STYLE[] = "<style>body{max-width:64rem}table{width:auto}th,td{white-space:nowrap}th.t,td.t{text-align:left}"
                            "svg.bars{max-width:48rem;font-size:12px}svg.bars text{fill:var(--ink)}svg.bars rect{fill:var(--a)}</style>\n";

static int column(const sh_bench_table *t, const char *key) {
  for (int i = 0; i < t->n_cols; i++)
    if (strcmp(t->cols[i].key, key) == 0) return i;
  return -1;
}

static const sh_bench_cell *at(const sh_bench_table *t, int row, int col) { return t->cells + (size_t)row * (size_t)t->n_cols + col; }

static bool is_text(const sh_bench_col *c) { return c->digits == SH_BENCH_TEXT; }

/* Names of rows are their first column. */
static void bars(const sh_bench_table *t, sh_buf *out) {
  int c = t->bar ? column(t, t->bar) : -1;
  double top = 0;
  for (int r = 0; c >= 0 && r < t->n_rows; r++)
    if (at(t, r, c)->v > top) top = at(t, r, c)->v;
  if (!(top > 0) || !isfinite(top)) return;
  sh_buf_puts(out, "<p class=\"soft\">");
  sh_html_text(out, t->bar_note ? t->bar_note : t->cols[c].title);
  sh_buf_printf(out, "</p>\n<svg class=\"bars\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", W, t->n_rows * (BAR + GAP));
  sh_html_text(out, t->cols[c].title);
  sh_buf_puts(out, "\">\n");
  for (int r = 0; r < t->n_rows; r++) {
    char text[48];
    double v = at(t, r, c)->v, width = v > 0 ? v / top * (W - LABEL - VALUE) : 0;
    int y = r * (BAR + GAP);
    sh_buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LABEL - 8, y + BAR - 4);
    sh_html_text(out, at(t, r, 0)->text ? at(t, r, 0)->text : "");
    sh_buf_printf(out, "</text><rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/><text x=\"%.1f\" y=\"%d\">%s</text>\n", LABEL, y,
                  width, BAR, LABEL + width + 6, y + BAR - 4, sh_bench_number(&t->cols[c], v, text));
  }
  sh_buf_puts(out, "</svg>\n");
}

static bool hidden(const sh_bench_col *c) { return c->digits >= SH_BENCH_HIDDEN; }

static void table(const sh_bench_table *t, sh_buf *out) {
  sh_buf_puts(out, "<div class=\"scroll\"><table><tr>");
  for (int c = 0; c < t->n_cols; c++) {
    if (hidden(&t->cols[c])) continue;
    sh_buf_puts(out, is_text(&t->cols[c]) ? "<th class=\"t\">" : "<th>");
    sh_html_text(out, t->cols[c].title);
    sh_buf_puts(out, "</th>");
  }
  sh_buf_puts(out, "</tr>\n");
  for (int r = 0; r < t->n_rows; r++) {
    sh_buf_puts(out, "<tr>");
    for (int c = 0; c < t->n_cols; c++) {
      char text[48];
      const sh_bench_cell *x = at(t, r, c);
      if (hidden(&t->cols[c])) continue;
      sh_buf_puts(out, is_text(&t->cols[c]) ? "<td class=\"t\">" : "<td>");
      sh_html_text(out, !is_text(&t->cols[c]) ? sh_bench_number(&t->cols[c], x->v, text) : x->text ? x->text : "-");
      sh_buf_puts(out, "</td>");
    }
    sh_buf_puts(out, "</tr>\n");
  }
  sh_buf_puts(out, "</table></div>\n");
}

int sh_bench_write_html(const sh_bench_out *o, sh_buf *out) {
  char title[64];
  snprintf(title, sizeof title, "sheng %s", o->command);
  sh_page_begin(out, "", title);
  sh_buf_puts(out, STYLE);
  sh_buf_puts(out, "<p class=\"soft\">");
  sh_buf machine;
  sh_buf_init(&machine, 1 << 16);
  sh_machine_text(&o->machine, "", &machine);
  sh_html_text(out, machine.p ? machine.p : "");
  sh_buf_puts(out, "</p>\n");
  sh_buf_free(&machine);
  for (int i = 0; i < o->n_facts; i++) {
    sh_buf_puts(out, "<p>");
    sh_html_text(out, o->facts[i].key);
    sh_buf_puts(out, ": ");
    sh_html_text(out, o->facts[i].value);
    sh_buf_puts(out, "</p>\n");
  }
  if (!o->complete) sh_buf_puts(out, "<p><b>Stopped: rows are missing.</b></p>\n");
  for (int i = 0; i < o->n_tables; i++) {
    if (o->tables[i].n_rows == 0) continue;
    sh_buf_puts(out, "<h2>");
    sh_html_text(out, o->tables[i].key);
    sh_buf_puts(out, "</h2>\n");
    bars(&o->tables[i], out);
    table(&o->tables[i], out);
  }
  for (int i = 0; i < o->n_notes; i++) {
    sh_buf_puts(out, "<p class=\"soft\">");
    sh_html_text(out, o->notes[i]);
    sh_buf_puts(out, "</p>\n");
  }
  sh_page_end(out);
  return o->private_failed ? o->private_failed : out->failed;
}
