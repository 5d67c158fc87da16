/* From weights to codes, a block of rows at a time: what rounding to nearest, AWQ's ranges and GPTQ have in common. */
#ifndef SH_QUANT_FIT_H
#define SH_QUANT_FIT_H

#include "quant/round.h"
#include "quant/work.h"

/* A matrix, how it is scaled, and what is known of its inputs. in [cols] or NULL: its columns are multiplied by it before rounding (inputs
 * are divided); out [rows] or NULL: its rows are divided. */
typedef struct sh_qfit {
  const sh_wview *w;
  const float *in, *out;
  const sh_qsite *site; /* of the unscaled inputs; NULL: rounding to nearest only */
  /* Results, sums of squares over the site's rows: output error of rounding to nearest with the same scales, and of what was chosen; the
   * output. */
  double err_nearest, err, output;
} sh_qfit;

/* A block of at most SH_QROWS rows in a worker's scratch. */
typedef struct sh_qblock {
  const sh_qwork *k;
  const sh_qfit *f;
  const sh_qgrid *g;
  sh_qcodes *codes;
  int64_t r0, cols, group, groups;
  int rows;
  float *w;           /* [rows, cols] scaled weights */
  float *inverse;     /* [cols] 1 / in */
  sh_qparam *nearest; /* [rows, groups] full ranges */
  float *error;       /* [rows, cols] work of sh_qblock_keep */
  float *out;         /* [rows, site's rows] the same */
  double *sums;       /* [3] of the block: err_nearest, err, output */
  void *product;      /* of sh_qwork_product */
  void *own;          /* what the method asked for beside, aligned for sh_cut */
} sh_qblock;

/* What a method does to a block; ends with sh_qblock_keep. */
typedef void (*sh_qblock_fn)(void *ctx, sh_qblock *b);

/* Codes for every row of f->w: fn runs for each block on the pool, with `own` bytes of scratch. The same for any number of threads. */
int sh_qfit_run(sh_qwork *k, sh_qfit *f, const sh_qgrid *g, size_t own, sh_qblock_fn fn, void *ctx, sh_qcodes *codes, sh_error *e);

/* Writes the block's codes. The method's choice is parameters p [rows, groups] and, unless each weight is just rounded with them, the
 * weights it made on that grid, rounded [rows, cols]. A row keeps it if its output error over the site's sampled rows is smaller than that
 * of rounding to nearest, and is rounded to nearest otherwise, or without a site. */
void sh_qblock_keep(sh_qblock *b, const sh_qparam *p, const float *rounded);

#endif
