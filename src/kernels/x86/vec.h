/* Eight float lanes: the pieces that the AVX2 files share. Every sum over lanes uses one tree, and every function of a lane depends on that
 * lane only, so that a row's tail, padded with harmless lanes, gets the same bits as the same values inside a full vector. */
#ifndef SH_KERNELS_X86_VEC_H
#define SH_KERNELS_X86_VEC_H
#ifdef __AVX2__

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define SH_INLINE static inline __attribute__((always_inline))

typedef __m256 v8;

SH_INLINE v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
SH_INLINE void v8_store(float *p, v8 v) { _mm256_storeu_ps(p, v); }
SH_INLINE v8 v8_set(float x) { return _mm256_set1_ps(x); }
SH_INLINE v8 v8_zero(void) { return _mm256_setzero_ps(); }
SH_INLINE v8 v8_fma(v8 a, v8 b, v8 c) { return _mm256_fmadd_ps(a, b, c); }

/* Lanes [0, n) of memory, the others 0; n in 0..8. */
SH_INLINE __m256i v8_mask(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
SH_INLINE v8 v8_load_n(const float *p, int n) { return n >= 8 ? v8_load(p) : _mm256_maskload_ps(p, v8_mask(n)); }
SH_INLINE void v8_store_n(float *p, v8 v, int n) {
  if (n >= 8) v8_store(p, v);
  else _mm256_maskstore_ps(p, v8_mask(n), v);
}

/* Sums of the lanes of four vectors: ((0+1) + (2+3)) + ((4+5) + (6+7)) of each. */
SH_INLINE __m128 v8_sum4(v8 a, v8 b, v8 c, v8 d) {
  v8 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
/* The same of eight vectors. */
SH_INLINE v8 v8_sum8(const v8 *p) {
  v8 s = _mm256_hadd_ps(_mm256_hadd_ps(p[0], p[1]), _mm256_hadd_ps(p[2], p[3]));
  v8 t = _mm256_hadd_ps(_mm256_hadd_ps(p[4], p[5]), _mm256_hadd_ps(p[6], p[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(s, t, 0x20), _mm256_permute2f128_ps(s, t, 0x31));
}
SH_INLINE float v8_sum(v8 a) { return _mm_cvtss_f32(v8_sum4(a, a, a, a)); }

SH_INLINE float v8_max(v8 a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* e^x = 2^n p: x = n ln2 + r with |r| <= ln2 / 2, p the Taylor series of e^r to r^7 (next term 5e-9). */
SH_INLINE v8 v8_exp_parts(v8 x, v8 *n_out) {
  v8 n = _mm256_round_ps(_mm256_mul_ps(x, v8_set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  v8 r = v8_fma(n, v8_set(-0.693359375f), x); /* ln2 in two parts: the first has 9 bits, its product with n is exact */
  r = v8_fma(n, v8_set(2.12194440e-4f), r);
  v8 p = v8_set(1.0f / 5040);
  p = v8_fma(p, r, v8_set(1.0f / 720));
  p = v8_fma(p, r, v8_set(1.0f / 120));
  p = v8_fma(p, r, v8_set(1.0f / 24));
  p = v8_fma(p, r, v8_set(1.0f / 6));
  p = v8_fma(p, r, v8_set(0.5f));
  p = v8_fma(p, r, v8_set(1.0f));
  *n_out = n;
  return v8_fma(p, r, v8_set(1.0f));
}

/* e^x within 2 units in the last place. 2^n in two factors, so that results below the normal range come out rounded and e^-inf = 0, e^0 = 1
 * exactly. A NaN stays one: min and max give their second operand for it. */
SH_INLINE v8 v8_exp(v8 x) {
  v8 n, p = v8_exp_parts(_mm256_max_ps(v8_set(-104.0f), _mm256_min_ps(v8_set(89.0f), x)), &n);
  __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
  v8 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  v8 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, f1), f2);
}

SH_INLINE v8 v8_neg(v8 x) { return _mm256_xor_ps(x, v8_set(-0.0f)); }

/* 1 / (1 + e^-x). e^-x in one factor: below e^-87 it counts for nothing beside 1, and from 2^127.5 on, where the factor is infinity, the
 * result is 0 in place of less than 6e-39. */
SH_INLINE v8 v8_sigmoid(v8 x) {
  v8 n, p = v8_exp_parts(_mm256_max_ps(v8_set(-87.0f), _mm256_min_ps(v8_set(89.0f), v8_neg(x))), &n);
  v8 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  return _mm256_div_ps(v8_set(1.0f), v8_fma(p, f, v8_set(1.0f)));
}

SH_INLINE v8 v8_silu(v8 x) { return _mm256_mul_ps(x, v8_sigmoid(x)); }

/* log(1 + e) for e in [0, 1]: 2 atanh(s), s = e / (2 + e) <= 1/3, as its series to s^17 (next term 2e-10 of the first). */
SH_INLINE v8 v8_log1p01(v8 e) {
  v8 s = _mm256_div_ps(e, _mm256_add_ps(v8_set(2.0f), e)), q = _mm256_mul_ps(s, s);
  v8 p = v8_set(2.0f / 17);
  p = v8_fma(p, q, v8_set(2.0f / 15));
  p = v8_fma(p, q, v8_set(2.0f / 13));
  p = v8_fma(p, q, v8_set(2.0f / 11));
  p = v8_fma(p, q, v8_set(2.0f / 9));
  p = v8_fma(p, q, v8_set(2.0f / 7));
  p = v8_fma(p, q, v8_set(2.0f / 5));
  p = v8_fma(p, q, v8_set(2.0f / 3));
  p = v8_fma(p, q, v8_set(2.0f));
  return _mm256_mul_ps(p, s);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). */
SH_INLINE v8 v8_softplus(v8 x) {
  v8 e = v8_exp(_mm256_or_ps(x, v8_set(-0.0f)));
  return _mm256_add_ps(_mm256_max_ps(v8_zero(), x), v8_log1p01(e));
}

/* Eight bf16 or f16 as float32, exact. */
SH_INLINE v8 v8_of_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
SH_INLINE v8 v8_load_bf16(const uint8_t *p) { return v8_of_bf16(_mm_loadu_si128((const __m128i *)(const void *)p)); }
SH_INLINE v8 v8_load_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
/* float32 in memory of any alignment. */
SH_INLINE v8 v8_load_f32(const uint8_t *p) { return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }

/* float32 to bf16, to nearest even; NaN made quiet. */
SH_INLINE __m128i v8_to_bf16(v8 x) {
  __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(64));
  r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

#endif
#endif
