/* Pages of results: the parts that every HTML report shares. One file with its style and its plots (inline SVG) inside and no script, so
 * that it can be mailed and opened without a network. Every function appends to a buffer, whose errors are sticky. */
#ifndef SH_BASE_PAGE_H
#define SH_BASE_PAGE_H

#include "base/mem.h"

enum { SH_PLOT_W = 720, SH_PLOT_H = 260 }; /* units of a plot's viewBox */

/* Head and heading. The window's title is `prefix` and `name`, the heading is `name`; both are escaped here. */
void sh_page_begin(sh_buf *out, const char *prefix, const char *name);
void sh_page_end(sh_buf *out);
/* One large figure with its label (HTML, not escaped), inside a <div class="cards">. */
void sh_page_card(sh_buf *out, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- Plots. x and y are in [0, 1] of the inner field, y upwards; a plot ends with "</svg>\n". Labels and titles are HTML. */
double sh_plot_x(double x);
double sh_plot_y(double y);
void sh_plot_begin(sh_buf *out, const char *label, const char *x_title);
void sh_plot_y_tick(sh_buf *out, double y, double value);
void sh_plot_x_tick(sh_buf *out, double x, const char *text);
double sh_plot_round_up(double v); /* a round number at least v, for the end of an axis */

#endif
