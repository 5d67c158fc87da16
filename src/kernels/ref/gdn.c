/* Reference gated delta rule: convolution, gates, the recurrence over tokens, the gated output norm.
 *
 * Pure functions, any thread. The recurrence takes one token after the other, which is the definition; a chunked form has other roundings
 * and would make a prompt's result depend on how it was cut. The state is float32 between tokens. */
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

void sh_kern_conv_ref(const float *const *x, int n_tok, int n, int width, const float *taps, float *y, int64_t y_stride) {
  for (int t = 0; t < n_tok; t++) {
    for (int c = 0; c < n; c++) {
      double sum = 0;
      for (int j = 0; j < width; j++) sum += (double)x[t + j][c] * (double)taps[j * n + c];
      y[t * y_stride + c] = (float)(sum * sigmoid(sum));
    }
  }
}

void sh_kern_gdn_gates_ref(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias, int n, float *decay, float *beta) {
  for (int i = 0; i < n; i++) {
    double x = (double)a[i] + (double)dt_bias[i];
    double softplus = fmax(x, 0) + log1p(exp(-fabs(x)));
    decay[i] = (float)exp((double)neg_exp_a[i] * softplus);
    beta[i] = (float)sigmoid(b[i]);
  }
}

void sh_kern_gdn_scan_ref(const sh_gdn_scan *a) {
  for (int t = 0; t < a->n_tok; t++) {
    const float *q = a->q + t * a->qkv_stride, *k = a->k + t * a->qkv_stride, *v = a->v + t * a->qkv_stride;
    double decay = a->decay[t * a->g_stride], beta = a->beta[t * a->g_stride];
    for (int c = 0; c < a->n_cols; c++) {
      float *s = a->s + c;
      double old = 0, out = 0;
      for (int i = 0; i < a->k_dim; i++) old += (double)k[i] * (double)s[i * a->n_cols];
      double u = beta * ((double)v[c] - decay * old);
      for (int i = 0; i < a->k_dim; i++) {
        s[i * a->n_cols] = (float)(decay * (double)s[i * a->n_cols] + (double)k[i] * u);
        out += (double)q[i] * (double)s[i * a->n_cols];
      }
      a->o[t * a->o_stride + c] = (float)out;
    }
  }
}

void sh_kern_gdn_out_ref(const float *z, const float *gain, float eps, int n, float *o) {
  double s = 0;
  for (int i = 0; i < n; i++) s += (double)o[i] * (double)o[i];
  double r = 1.0 / sqrt(s / n + (double)eps);
  for (int i = 0; i < n; i++) o[i] = (float)((double)o[i] * r * (double)gain[i] * (double)z[i] * sigmoid(z[i]));
}
