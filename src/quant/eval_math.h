/* The measures of `sheng eval` as pure functions on arrays (docs/evaluation.md has their formulas and sources). */
#ifndef SH_QUANT_EVAL_MATH_H
#define SH_QUANT_EVAL_MATH_H

#include <stdbool.h>
#include <stdint.h>

/* What two rows of logits say about one token. */
typedef struct sh_eval_row {
  bool finite;          /* false: a logit was NaN or infinite; the rest is not set */
  double nll, nll_ref;  /* -log p(target), nats */
  double kl;            /* KL(ref || model), nats, at least 0 */
  int32_t top, top_ref; /* most likely ids, ties to the lowest */
} sh_eval_row;

/* model, ref: logits [n]; ref NULL: kl 0 and top_ref, nll_ref as the model's. target in [0, n). Sums in float64, in order. Rows of equal
 * bits give kl exactly 0. */
void sh_eval_score_row(const float *model, const float *ref, int n, int32_t target, sh_eval_row *out);
/* log softmax(x)[id] over x[0..n). */
double sh_eval_log_prob(const float *x, int n, int32_t id);
int32_t sh_eval_argmax(const float *x, int n);

/* The q-quantile, q in [0, 1], of v[0..n) in ascending order, n > 0, between neighbours by linear interpolation (numpy's default). */
double sh_eval_quantile(const double *v, int64_t n, double q);
void sh_eval_sort(double *v, int64_t n);
int sh_eval_common_prefix(const int32_t *a, int n_a, const int32_t *b, int n_b);
/* ||h - ref|| / ||ref|| over [n]; 0 when both are zero, 1 when only ref is. */
double sh_eval_relative_error(const float *h, const float *ref, int n);

/* The bins of the KL histogram: bin 0 is below 1e-8, then four a decade, the last is 1e2 and more. */
enum { SH_EVAL_BINS = 42 };
int sh_eval_bin(double kl);
double sh_eval_bin_from(int bin); /* its lower end; 0 for bin 0 */

#endif
