/* Rounding with error compensation (GPTQ, Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after the other, and what each
 * lost is made up for by those that follow, by the inverse of the inputs' second moments. */
#ifndef SH_QUANT_GPTQ_H
#define SH_QUANT_GPTQ_H

#include "quant/fit.h"

typedef struct sh_qgptq {
  bool act_order; /* columns in the order of falling second moment; groups stay where they are, so a reader sees nothing of it */
  double damp;    /* added to the diagonal, times its mean */
} sh_qgptq;

/* The factor of compensation for one kind of inputs: U with inverse(H) = U^T U, U upper triangular, for H = gram + damp. */
typedef struct sh_qfactor {
  int64_t n;
  int32_t *order; /* [n]: column order[i] is rounded as the i-th */
  float *u, *ut;  /* [n, n]: U in that order, and its transpose */
} sh_qfactor;

/* site: gram of all columns (block = cols). Free with sh_qfactor_free, which accepts a zeroed struct. */
int sh_qfactor_new(sh_qwork *k, const sh_qsite *site, const sh_qgptq *o, sh_qfactor *f, sh_error *e);
void sh_qfactor_free(sh_qfactor *f);

/* Codes for every row, with compensation. Each group's range is that of the weights as given. A row that came out worse than rounding to
 * nearest over the site's sampled rows is rounded to nearest. f->in and f->out NULL: the factor is that of unscaled inputs. */
int sh_qgptq_matrix(sh_qwork *k, sh_qfit *f, const sh_qfactor *u, const sh_qgrid *g, sh_qcodes *codes, sh_error *e);

#endif
