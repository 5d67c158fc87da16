/* The measures as pure functions. Any thread.
 *
 * KL is written as sum p (x - y) - lse(x) + lse(y), x and y the logits: one exp per id and model, where the plain form sum p (log p - log
 * q) takes another; and rows of equal bits give exactly 0 in both. What is lost by cancellation is some 1e-15 of the lse's size, far under
 * what float32 logits carry; a sum that falls below zero by it is 0. */
#include "quant/eval_math.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

int32_t sh_eval_argmax(const float *x, int n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (x[i] > x[best]) best = i;
  return best;
}

static double log_sum_exp(const float *x, int n, float max) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
  return (double)max + log(sum);
}

double sh_eval_log_prob(const float *x, int n, int32_t id) { return (double)x[id] - log_sum_exp(x, n, x[sh_eval_argmax(x, n)]); }

void sh_eval_score_row(const float *model, const float *ref, int n, int32_t target, sh_eval_row *out) {
  *out = (sh_eval_row){.top = sh_eval_argmax(model, n)};
  float max = model[out->top];
  double lse = log_sum_exp(model, n, max), lse_ref = lse;
  out->nll = out->nll_ref = lse - (double)model[target];
  out->top_ref = out->top;
  out->finite = isfinite(out->nll);
  if (!ref || !out->finite) return;
  out->top_ref = sh_eval_argmax(ref, n);
  float max_ref = ref[out->top_ref];
  double sum = 0, cross = 0;
  for (int i = 0; i < n; i++) {
    double w = exp((double)ref[i] - (double)max_ref);
    sum += w;
    cross += w * ((double)ref[i] - (double)model[i]);
  }
  lse_ref = (double)max_ref + log(sum);
  out->nll_ref = lse_ref - (double)ref[target];
  out->kl = cross / sum - (lse_ref - lse);
  out->finite = isfinite(out->nll_ref) && isfinite(out->kl);
  if (out->kl < 0) out->kl = 0;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void sh_eval_sort(double *v, int64_t n) { qsort(v, (size_t)n, sizeof *v, compare); }

double sh_eval_quantile(const double *v, int64_t n, double q) {
  double at = q * (double)(n - 1);
  int64_t i = (int64_t)floor(at);
  if (i >= n - 1) return v[n - 1];
  return v[i] + (v[i + 1] - v[i]) * (at - (double)i);
}

int sh_eval_common_prefix(const int32_t *a, int n_a, const int32_t *b, int n_b) {
  int i = 0;
  while (i < n_a && i < n_b && a[i] == b[i]) i++;
  return i;
}

double sh_eval_relative_error(const float *h, const float *ref, int n) {
  double diff = 0, norm = 0;
  for (int i = 0; i < n; i++) {
    double d = (double)h[i] - (double)ref[i];
    diff += d * d;
    norm += (double)ref[i] * (double)ref[i];
  }
  if (norm == 0) return diff == 0 ? 0 : 1;
  return sqrt(diff / norm);
}

enum { PER_DECADE = 4, LOWEST = -8 };

double sh_eval_bin_from(int bin) { return bin == 0 ? 0 : pow(10, LOWEST + (double)(bin - 1) / PER_DECADE); }

int sh_eval_bin(double kl) {
  int bin = SH_EVAL_BINS - 1;
  while (bin > 0 && kl < sh_eval_bin_from(bin)) bin--;
  return bin;
}
