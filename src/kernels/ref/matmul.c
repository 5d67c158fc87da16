/* Reference matrix products: y = x W^T for weights in any stored type.
 *
 * Pure functions, any thread. A dot product is eight double chains along k, added in order at the end: still plain C, but the compiler can
 * keep a few of the chains busy at once, which matters because this is also what a machine without AVX2 runs. dot expands a block of
 * weights at a time into a small array; gemm expands a whole row into its scratch and takes it over all activation rows. Both feed the same
 * chains in the same order, so they agree to the bit. */
#include "kernels/ref/ref.h"
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

enum { STEP = 256 }; /* weights expanded at a time: a multiple of every block size */

void sh_kern_dequant_ref(const sh_wview *w, int64_t row, int64_t k0, int64_t n, float *y) { sh_dequant_cols(w, row, k0, n, y); }

/* Adds n products to the chains; n is a multiple of 8 in all calls but a row's last. */
static void dot_step(const float *w, const float *x, int64_t n, double *sum) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; j++) sum[j] += (double)w[i + j] * (double)x[i + j];
  }
  for (int j = 0; i < n; i++, j++) sum[j] += (double)w[i] * (double)x[i];
}

static double chains_sum(const double *s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

void sh_kern_put_ref(const sh_mm *a, int t, int r, float v) {
  if (a->bias) v += a->bias[r];
  float *y = a->y[t] + a->y0 + r;
  *y = a->scale ? fmaf(a->scale[t], v, *y) : a->add ? *y + v : v;
}

void sh_kern_dot_ref(const sh_mm *a) {
  float w[STEP];
  int64_t k = a->w->cols;
  for (int r = 0; r < a->n_rows; r++) {
    for (int t = 0; t < a->n_tok; t++) {
      double sum[8] = {0};
      for (int64_t i = 0; i < k; i += STEP) {
        int64_t n = k - i < STEP ? k - i : STEP;
        sh_dequant_cols(a->w, a->r0 + r, i, n, w);
        dot_step(w, a->x[t] + i, n, sum);
      }
      sh_kern_put_ref(a, t, r, (float)chains_sum(sum));
    }
  }
}

int sh_kern_dot_tokens_ref(sh_dtype type) {
  (void)type;
  return 1;
}

void sh_kern_gemm_ref(const sh_mm *a) {
  int64_t k = a->w->cols;
  for (int r = 0; r < a->n_rows; r++) {
    sh_dequant_cols(a->w, a->r0 + r, 0, k, a->scratch);
    for (int t = 0; t < a->n_tok; t++) {
      double sum[8] = {0};
      dot_step(a->scratch, a->packed + t * k, k, sum);
      sh_kern_put_ref(a, t, r, (float)chains_sum(sum));
    }
  }
}

void sh_kern_pack_ref(const float *const *x, int n_tok, int64_t k, float *out) {
  for (int t = 0; t < n_tok; t++) memcpy(out + t * k, x[t], (size_t)k * sizeof *out);
}

size_t sh_kern_pack_floats_ref(int64_t n_tok, int64_t k) { return (size_t)n_tok * (size_t)k; }

size_t sh_kern_gemm_floats_ref(int64_t k) { return (size_t)k; }
