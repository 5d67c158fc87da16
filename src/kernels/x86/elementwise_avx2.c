/* Norms, activations, rotation and number conversion, eight lanes at a time.
 *
 * Pure functions of one row, any thread. Tails run the same lane functions on a masked vector: a switch to libm for the last elements would
 * give them other bits than the same values in the middle of a row. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#include <float.h>
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

/* One block, n of 32 elements. Maxima are of the bits without the sign: there a NaN is larger than everything. */
static void kv8_block(const float *x, int n, uint8_t *e, uint8_t *scale) {
  const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
  v8 v[SH_KV_BLOCK / 8];
  __m256i top = _mm256_setzero_si256();
  _Pragma("GCC unroll 4") for (int i = 0; i < SH_KV_BLOCK / 8; i++) {
    v[i] = n > 8 * i ? v8_load_n(x + 8 * i, n - 8 * i) : v8_zero();
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), no_sign));
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  const __m128i h = v8_to_bf16(_mm256_div_ps(_mm256_castsi256_ps(_mm256_broadcastd_epi32(m)), v8_set(127.0f)));
  const v8 d = v8_of_bf16(h);
  uint8_t out[SH_KV_BLOCK] = {0};
  const float d0 = _mm256_cvtss_f32(d);
  const bool counts = !(d0 < FLT_MIN);
  if (counts) memcpy(scale, &h, 2);
  else memset(scale, 0, 2);
  if (counts && d0 <= FLT_MAX) {
    const v8 inv = _mm256_div_ps(v8_set(1.0f), d);
    __m256i q[SH_KV_BLOCK / 8];
    _Pragma("GCC unroll 4") for (int i = 0; i < SH_KV_BLOCK / 8; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv));
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    p = _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_max_epi8(p, _mm256_set1_epi8(-127)));
  }
  memcpy(e, out, (size_t)(n < SH_KV_BLOCK ? n : SH_KV_BLOCK));
}

void sh_kern_to_kv8_avx2(const float *x, int n, uint8_t *y) {
  const int blocks = (n + SH_KV_BLOCK - 1) / SH_KV_BLOCK, used = n + 2 * blocks;
  for (int b = 0; b < blocks; b++) kv8_block(x + b * SH_KV_BLOCK, n - b * SH_KV_BLOCK, y + b * SH_KV_BLOCK, y + n + 2 * b);
  memset(y + used, 0, sh_kv_row_bytes(SH_KV_I8, n) - (size_t)used);
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
