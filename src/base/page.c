/* The parts that every HTML report shares. Any thread.
 *
 * Colours come from the page's own variables, so that one style serves light and dark screens. */
#include "base/page.h"

#include "base/text.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { LEFT = 64, RIGHT = 16, TOP = 14, BOTTOM = 40 }; /* margins of a plot */

static const char STYLE[] =
    ":root{--ink:#1c2430;--soft:#667085;--line:#d5dae1;--back:#fff;--card:#f6f8fa;--a:#2563c9;--b:#c2541b}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#98a2b3;--line:#38414d;--back:#14181d;--card:#1d232b;--a:#6ea3f5;--b:#"
    "ef935f}}\n"
    "body{margin:2rem auto;max-width:48rem;padding:0 1rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back)}\n"
    "h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}p{margin:.4rem 0}.soft{color:var(--soft)}\n"
    ".cards{display:flex;flex-wrap:wrap;gap:.7rem;margin:1.2rem 0}.card{background:var(--card);border-radius:8px;padding:.6rem 1rem;flex:1 "
    "0 9rem}\n"
    ".card b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:.25rem .7rem;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}\n"
    "svg{width:100%;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--soft)}svg .grid{stroke:var(--line)}\n"
    "code,q{font-family:ui-monospace,monospace;font-size:.9em;white-space:pre-wrap;overflow-wrap:anywhere}\n";

void sh_page_begin(sh_buf *out, const char *prefix, const char *name) {
  sh_buf_puts(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
  sh_html_text(out, prefix);
  sh_html_text(out, name);
  sh_buf_printf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", STYLE);
  sh_html_text(out, name);
  sh_buf_puts(out, "</h1>\n");
}

void sh_page_end(sh_buf *out) { sh_buf_puts(out, "</body>\n</html>\n"); }

void sh_page_card(sh_buf *out, const char *label, const char *fmt, ...) {
  sh_buf_puts(out, "<div class=\"card\"><b>");
  char text[64];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  sh_html_text(out, text);
  sh_buf_printf(out, "</b>%s</div>\n", label);
}

/* ---- Plots: x and y in [0, 1] of the inner field, y upwards ---- */

double sh_plot_x(double x) { return LEFT + x * (SH_PLOT_W - LEFT - RIGHT); }
double sh_plot_y(double y) { return SH_PLOT_H - BOTTOM - y * (SH_PLOT_H - TOP - BOTTOM); }

void sh_plot_begin(sh_buf *out, const char *label, const char *x_title) {
  sh_buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", SH_PLOT_W, SH_PLOT_H, label);
  sh_buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", sh_plot_x(0.5), SH_PLOT_H - 6, x_title);
}

void sh_plot_y_tick(sh_buf *out, double y, double value) {
  char text[32]; /* counts whole, small numbers short */
  snprintf(text, sizeof text, value == floor(value) && value < 1e7 ? "%.0f" : "%.3g", value);
  sh_buf_printf(
      out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
      LEFT, SH_PLOT_W - RIGHT, sh_plot_y(y), sh_plot_y(y), LEFT - 6, sh_plot_y(y) + 4, text);
}

void sh_plot_x_tick(sh_buf *out, double x, const char *text) {
  sh_buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", sh_plot_x(x), SH_PLOT_H - BOTTOM + 15, text);
}

/* A round number at least v, for the end of an axis. */
double sh_plot_round_up(double v) {
  double p = pow(10, floor(log10(v > 1e-300 ? v : 1e-300)));
  static const double steps[] = {1, 1.5, 2, 3, 4, 5, 6, 8, 10};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
    if (steps[i] * p >= v * (1 - 1e-12)) return steps[i] * p;
  return 10 * p;
}
