/* Activation-aware scaling (AWQ, Lin et al. 2023, arXiv 2306.00978): input channels that carry much are scaled up before rounding and the
 * inputs down by the same, so that they are rounded more finely; then each group's range is narrowed where that costs less than it gains.
 *
 * Everything is judged by the output error of the matrices themselves: the sum over tokens and outputs of ((W' - W) x)^2. */
#ifndef SH_QUANT_AWQ_H
#define SH_QUANT_AWQ_H

#include "quant/fit.h"

/* A matrix whose input columns are scaled, and the inputs it was seen with. */
typedef struct sh_qreader {
  const sh_wview *w; /* [N, K], float types */
  const float *rows; /* [n_rows, K] inputs, sampled */
  int64_t n_rows;
  double weight; /* of its error in the sum: tokens that n_rows stand for, over n_rows */
} sh_qreader;

/* One scale per channel of a reader's input, [n_channels]; column c uses scale tie[c], or c when tie is NULL. */
typedef struct sh_qscaling {
  int64_t cols, n_channels;
  const int32_t *tie; /* [cols] or NULL */
} sh_qscaling;

enum { SH_QCANDS = 41 }; /* identity, then 20 exponents with the weights' own magnitudes taken into account and 20 without */

/* Candidate i of the scales, [n_channels], each normalised to sqrt(max * min) = 1 and kept in [1e-4, 1e4]. x [n_channels]: mean |input|; w
 * [n_channels]: mean of |weight| over its group's largest.
 *   i = 0: 1;   1 <= i <= 20: x^(i/20);   21 <= i <= 40: x^a / w^(1-a), a = (i-20)/20 (AutoAWQ's "duo scaling") */
void sh_qscale_candidate(int i, const float *x, const float *w, int64_t n_channels, float *s);

/* mean[n_channels]: the mean over all rows of all readers of |w| / (largest |w| of its row's group); group 0: of its row. */
int sh_qweight_means(sh_qwork *k, const sh_qreader *r, int n, const sh_qscaling *sc, int64_t group, float *mean, sh_error *e);

/* err[i]: the sum over the readers of weight * sum of ((round(W s) / s - W) x)^2 with candidate scales s = cand[i] [n_channels], rounding
 * to nearest. kept[c] (or NULL): channels where s is 1 whatever the candidate says. */
int sh_qscale_errors(sh_qwork *k, const sh_qreader *r, int n, const sh_qscaling *sc, const sh_qgrid *g, const float *cand, int n_cand,
                     double *err, sh_error *e);

/* Codes for every row, by rounding to nearest in each group's best range: candidates are judged by the group's own part of the output error
 * (its block of the site's gram, whose blocks are the groups). f->site NULL: full ranges. */
int sh_qawq_matrix(sh_qwork *k, sh_qfit *f, const sh_qgrid *g, sh_qcodes *codes, sh_error *e);

#endif
