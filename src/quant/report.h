/* The result of an evaluation as one HTML page, with plots, that needs nothing from outside. */
#ifndef SH_QUANT_REPORT_H
#define SH_QUANT_REPORT_H

#include "quant/eval.h"

/* Another result to show beside this one. */
typedef struct sh_report_point {
  const char *name, *reference; /* reference: NULL when it was measured alone */
  int64_t bytes;
  double ppl, kl, top1; /* kl, top1: with a reference */
} sh_report_point;

/* From the file of an earlier run (sh_eval_write_json). Texts lie in the arena. */
int sh_report_read(sh_report_point *out, const char *path, sh_arena *a, sh_error *e);

/* others[0..n_others): the results to compare with. 0 or the buffer's error. */
int sh_report_html(const sh_eval *r, const sh_report_point *others, int n_others, sh_buf *out);

#endif
