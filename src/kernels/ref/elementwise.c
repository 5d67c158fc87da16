/* Reference norms, activations, rotation and number conversion: functions of one row.
 *
 * Pure functions, any thread. Arithmetic in double, one rounding to float32 at the end. */
#include "kernels/ref/ref.h"
#include "formats/dequant.h"

#include <float.h>
#include <math.h>
#include <string.h>

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

void sh_kern_exp_ref(const float *x, int n, float *y) {
  for (int i = 0; i < n; i++) y[i] = (float)exp((double)x[i]);
}

static double sum_squares(const float *x, int n) {
  double s = 0;
  for (int i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
  return s;
}

void sh_kern_rmsnorm_ref(const float *x, const float *gain, float eps, int n, float *y) {
  double r = 1.0 / sqrt(sum_squares(x, n) / n + (double)eps);
  for (int i = 0; i < n; i++) y[i] = (float)((double)x[i] * r * (gain ? (double)gain[i] : 1.0));
}

void sh_kern_l2norm_ref(float *x, int n, float scale) {
  double r = (double)scale / sqrt(sum_squares(x, n) + 1e-6);
  for (int i = 0; i < n; i++) x[i] = (float)((double)x[i] * r);
}

void sh_kern_swiglu_ref(const float *gate, const float *up, int n, float *y) {
  for (int i = 0; i < n; i++) y[i] = (float)((double)gate[i] * sigmoid(gate[i]) * (double)up[i]);
}

void sh_kern_sigmoid_mul_ref(const float *gate, int n, float *y) {
  for (int i = 0; i < n; i++) y[i] = (float)((double)y[i] * sigmoid(gate[i]));
}

void sh_kern_rope_ref(float *x, int half, bool interleaved, const float *cs, const float *sn) {
  for (int i = 0; i < half; i++) {
    float *a = x + (interleaved ? 2 * i : i), *b = x + (interleaved ? 2 * i + 1 : i + half);
    double p = *a, q = *b, c = cs[i], s = sn[i];
    *a = (float)(p * c - q * s);
    *b = (float)(q * c + p * s);
  }
}

void sh_kern_to_bf16_ref(const float *x, int n, uint8_t *y) {
  for (int i = 0; i < n; i++) {
    uint16_t h = sh_f32_to_bf16(x[i]);
    memcpy(y + 2 * i, &h, 2);
  }
}

void sh_kern_to_kv8_ref(const float *x, int n, uint8_t *y) {
  memset(y, 0, sh_kv_row_bytes(SH_KV_I8, n));
  for (int b = 0; b < n; b += SH_KV_BLOCK) {
    const int end = b + SH_KV_BLOCK < n ? b + SH_KV_BLOCK : n;
    float a = 0;
    for (int i = b; i < end; i++) a = isnan(a) || fabsf(x[i]) <= a ? a : fabsf(x[i]); /* a NaN is taken and stays */
    const uint16_t h = sh_f32_to_bf16(a / 127.0f);
    const float d = sh_bf16_to_f32(h);
    if (d < FLT_MIN) continue;
    memcpy(y + n + b / SH_KV_BLOCK * 2, &h, 2);
    if (!isfinite(d)) continue; /* 0 d is NaN */
    const float inv = 1.0f / d;
    for (int i = b; i < end; i++) {
      const float e = rintf(x[i] * inv);
      y[i] = (uint8_t)(int8_t)(e > 127 ? 127 : e < -127 ? -127 : e);
    }
  }
}
