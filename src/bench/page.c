/* The results as one HTML page: tables, and a bar for every row of a table that names a column for it. Any thread.
 *
 * Style and drawing (inline SVG) are in the file, no script: it is mailed and put beside a model, and must not need a network. */
#include "bench/table.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

enum { W = 720, LABEL = 270, VALUE = 70, BAR = 16, GAP = 6 };

static const char STYLE[] =
    ":root{--ink:#1c2430;--soft:#667085;--line:#d5dae1;--back:#fff;--a:#2563c9}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#98a2b3;--line:#38414d;--back:#14181d;--a:#6ea3f5}}\n"
    "body{margin:2rem auto;max-width:64rem;padding:0 1rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back)}\n"
    "h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}p{margin:.2rem 0}.soft{color:var(--soft)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:.2rem .7rem;border-bottom:1px solid var(--line);white-space:nowrap}.t{text-align:left}\n"
    "svg{width:100%;max-width:48rem;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--ink)}svg rect{fill:var(--a)}\n";

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
  sh_buf_printf(out, "</p>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", W, t->n_rows * (BAR + GAP));
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

static void table(const sh_bench_table *t, sh_buf *out) {
  sh_buf_puts(out, "<div class=\"scroll\"><table><tr>");
  for (int c = 0; c < t->n_cols; c++) {
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
      sh_buf_puts(out, is_text(&t->cols[c]) ? "<td class=\"t\">" : "<td>");
      sh_html_text(out, !is_text(&t->cols[c]) ? sh_bench_number(&t->cols[c], x->v, text) : x->text ? x->text : "-");
      sh_buf_puts(out, "</td>");
    }
    sh_buf_puts(out, "</tr>\n");
  }
  sh_buf_puts(out, "</table></div>\n");
}

int sh_bench_write_html(const sh_bench_out *o, sh_buf *out) {
  sh_buf_puts(out, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
                   "<title>sheng ");
  sh_html_text(out, o->command);
  sh_buf_printf(out, "</title><style>\n%s</style></head><body>\n<h1>sheng ", STYLE);
  sh_html_text(out, o->command);
  sh_buf_puts(out, "</h1>\n<p class=\"soft\">");
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
  sh_buf_puts(out, "</body></html>\n");
  return o->private_failed ? o->private_failed : out->failed;
}
