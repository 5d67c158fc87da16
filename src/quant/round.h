/* Rounding a group of weights to integers with a scale and a zero point. Pure functions; any thread. */
#ifndef SH_QUANT_ROUND_H
#define SH_QUANT_ROUND_H

#include "base/err.h"
#include "quant/codes.h"

/* The integers a method may use. */
typedef struct sh_qgrid {
  int bits;            /* 4 or 8 */
  int64_t group;       /* columns per scale; 0: a whole row */
  bool symmetric;      /* w = s (q - 2^(bits - 1)); else w = s (q - z) */
  bool pow2;           /* scales are powers of two */
  int min_zero;        /* smallest zero point: 1 where the format stores it less one (GPTQ), else 0 */
  sh_dtype scale_type; /* SH_F16 or SH_BF16 */
} sh_qgrid;

/* One group's scale and zero point (min_zero <= zero < 2^bits). */
typedef struct sh_qparam {
  float scale, zero;
} sh_qparam;

/* The parameters that just hold [lo, hi] (widened to hold 0): s = (hi - lo) / (2^bits - 1), z = round(-lo / s); symmetric: s = max(-lo, hi)
 * / (2^(bits - 1) - 1); rounded to the scale type; with pow2, the power of two at or above s. Never a scale of 0. */
sh_qparam sh_qparam_of(const sh_qgrid *g, float lo, float hi);
/* x as type t stores it: SH_BF16, SH_F16; any other: x. */
float sh_qstored(sh_dtype t, float x);
/* A scale as the format stores it: rounded to the type or to the nearest power of two, and not 0. */
float sh_qscale(const sh_qgrid *g, float scale);
/* y[i] = what w[i] becomes: s (clamp(round(w / s) + z, 0, 2^bits - 1) - z), rounding half to even. y may be w. */
void sh_qround(const sh_qgrid *g, sh_qparam p, const float *w, int64_t n, float *y);
void sh_qround_codes(const sh_qgrid *g, sh_qparam p, const float *w, int64_t n, uint8_t *q);
void sh_qrange(const float *w, int64_t n, float *lo, float *hi); /* smallest and largest of w and 0 */

/* Codes of a [rows, cols] matrix, zeroed. Free with sh_qcodes_free, which accepts a zeroed struct. */
int sh_qcodes_new(sh_qcodes *c, const sh_qgrid *g, int64_t rows, int64_t cols, sh_error *e);
void sh_qcodes_free(sh_qcodes *c);
/* Row `row` of the codes from w[cols] and a parameter per group. */
void sh_qcodes_set_row(sh_qcodes *c, const sh_qgrid *g, int64_t row, const float *w, const sh_qparam *p);
/* out[cols] = the weights that row's codes stand for. */
void sh_qcodes_row(const sh_qcodes *c, int64_t row, float *out);

#endif
