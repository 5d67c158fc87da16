/* Norms, activations, rotation and number conversion, eight lanes at a time.
 *
 * Pure functions of one row, any thread. Tails run the same lane functions on a masked vector: a switch to libm for the last elements would
 * give them other bits than the same values in the middle of a row. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#include <math.h>

/* Runs BODY with `v` = lanes at x + i and `n` lanes alive. */
#define FOR_LANES(i, n, total) for (int i = 0, n = (total) < 8 ? (total) : 8; i < (total); i += 8, n = (total)-i < 8 ? (total)-i : 8)

void sh_kern_exp_avx2(const float *x, int n, float *y) { FOR_LANES(i, m, n) v8_store_n(y + i, v8_exp(v8_load_n(x + i, m)), m); }

/* Four chains for the latency of fma, added in order at the end. */
static float sum_squares(const float *x, int n) {
  v8 a = v8_zero(), b = v8_zero(), c = v8_zero(), d = v8_zero();
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    v8 p = v8_load(x + i), q = v8_load(x + i + 8), r = v8_load(x + i + 16), s = v8_load(x + i + 24);
    a = v8_fma(p, p, a);
    b = v8_fma(q, q, b);
    c = v8_fma(r, r, c);
    d = v8_fma(s, s, d);
  }
  for (; i < n; i += 8) {
    v8 p = v8_load_n(x + i, n - i);
    a = v8_fma(p, p, a);
  }
  return v8_sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
}

void sh_kern_rmsnorm_avx2(const float *x, const float *gain, float eps, int n, float *y) {
  v8 r = v8_set(1.0f / sqrtf(sum_squares(x, n) / (float)n + eps));
  FOR_LANES(i, m, n) {
    v8 v = _mm256_mul_ps(v8_load_n(x + i, m), r);
    if (gain) v = _mm256_mul_ps(v, v8_load_n(gain + i, m));
    v8_store_n(y + i, v, m);
  }
}

void sh_kern_l2norm_avx2(float *x, int n, float scale) {
  v8 r = v8_set(scale / sqrtf(sum_squares(x, n) + 1e-6f));
  FOR_LANES(i, m, n) v8_store_n(x + i, _mm256_mul_ps(v8_load_n(x + i, m), r), m);
}

void sh_kern_swiglu_avx2(const float *gate, const float *up, int n, float *y) {
  FOR_LANES(i, m, n) v8_store_n(y + i, _mm256_mul_ps(v8_silu(v8_load_n(gate + i, m)), v8_load_n(up + i, m)), m);
}

void sh_kern_sigmoid_mul_avx2(const float *gate, int n, float *y) {
  FOR_LANES(i, m, n) v8_store_n(y + i, _mm256_mul_ps(v8_load_n(y + i, m), v8_sigmoid(v8_load_n(gate + i, m))), m);
}

void sh_kern_rope_avx2(float *x, int half, bool interleaved, const float *cs, const float *sn) {
  if (interleaved) {
    for (int i = 0; i < half; i++) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = fmaf(a, cs[i], -(b * sn[i]));
      x[2 * i + 1] = fmaf(b, cs[i], a * sn[i]);
    }
    return;
  }
  FOR_LANES(i, m, half) {
    v8 a = v8_load_n(x + i, m), b = v8_load_n(x + half + i, m), c = v8_load_n(cs + i, m), s = v8_load_n(sn + i, m);
    v8_store_n(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)), m);
    v8_store_n(x + half + i, v8_fma(b, c, _mm256_mul_ps(a, s)), m);
  }
}

void sh_kern_to_bf16_avx2(const float *x, int n, uint8_t *y) {
  FOR_LANES(i, m, n) {
    __m128i h = v8_to_bf16(v8_load_n(x + i, m));
    if (m == 8) _mm_storeu_si128((__m128i *)(void *)(y + 2 * i), h);
    else memcpy(y + 2 * i, &h, 2 * (size_t)m);
  }
}

void sh_kern_gdn_out_avx2(const float *z, const float *gain, float eps, int n, float *o) {
  v8 r = v8_set(1.0f / sqrtf(sum_squares(o, n) / (float)n + eps));
  FOR_LANES(i, m, n) {
    v8 v = _mm256_mul_ps(_mm256_mul_ps(v8_load_n(o + i, m), r), v8_load_n(gain + i, m));
    v8_store_n(o + i, _mm256_mul_ps(v, v8_silu(v8_load_n(z + i, m))), m);
  }
}

void sh_kern_gdn_gates_avx2(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias, int n, float *decay,
                            float *beta) {
  FOR_LANES(i, m, n) {
    v8 dt = v8_softplus(_mm256_add_ps(v8_load_n(a + i, m), v8_load_n(dt_bias + i, m)));
    v8_store_n(decay + i, v8_exp(_mm256_mul_ps(v8_load_n(neg_exp_a + i, m), dt)), m);
    v8_store_n(beta + i, v8_sigmoid(v8_load_n(b + i, m)), m);
  }
}
