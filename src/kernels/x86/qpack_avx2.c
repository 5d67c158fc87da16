/* Activations as int8 for the integer products, to the bit as the reference does it: a block is four vectors, its largest magnitude is
 * found among the bits as integers (where NaN stands above infinity, and infinity above every number), and a row whose blocks are whole is
 * read straight. A block that a group's end cuts short goes through a small array of zeros. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#include <math.h>

enum { B = SH_PANEL_BLOCK };

SH_INLINE int max_lane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

SH_INLINE int sum4(__m128i s) {
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* The block's integers and d into out; their sums over sixteen columns each into n. */
SH_INLINE float quantize(const v8 *v, uint8_t *out, __m128i *n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), one = _mm256_set1_epi16(1);
  __m256i a[4], i[4];
  _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) a[j] = _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude);
  int bits = max_lane(_mm256_max_epi32(_mm256_max_epi32(a[0], a[1]), _mm256_max_epi32(a[2], a[3])));
  float top, d = NAN;
  memcpy(&top, &bits, sizeof top);
  n[0] = n[1] = _mm_setzero_si128();
  if (bits >= 0x7f800000 || top < 0x1p-119f) {
    if (bits < 0x7f800000) d = 0;
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_setzero_si256());
    memcpy(out + B, &d, sizeof d);
    return d;
  }
  v8 inverse = v8_set(127.0f / top);
  d = top / 127.0f;
  _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) i[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
  __m256i e = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
  e = _mm256_permutevar8x32_epi32(e, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), e), one);
  n[0] = _mm256_castsi256_si128(sums);
  n[1] = _mm256_extracti128_si256(sums, 1);
  _mm256_storeu_si256((__m256i *)(void *)out, e);
  memcpy(out + B, &d, sizeof d);
  return d;
}

/* Columns [c, c + n) of the stored order, n <= 32. */
SH_INLINE void load_block(const sh_wview *w, const float *x, int64_t c, int n, v8 *v) {
  if (n == B && !w->perm) {
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) v[j] = v8_load(x + c + 8 * j);
  } else if (n == B) {
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) v[j] =
        _mm256_i32gather_ps(x, _mm256_loadu_si256((const __m256i *)(const void *)(w->perm + c + 8 * j)), 4);
  } else {
    float part[B] = {0};
    for (int i = 0; i < n; i++) part[i] = x[w->perm ? w->perm[c + i] : c + i];
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) v[j] = v8_load(part + 8 * j);
  }
}

void sh_kern_qpack_avx2(const sh_wview *w, const float *x, uint8_t *out) {
  const sh_panel_shape s = sh_panel_shape_of(w);
  float *u = (float *)(void *)(out + s.blocks * SH_QPACK_BLOCK);
  const bool half = w->group == B / 2;
  const int64_t span = half ? w->cols : w->group; /* blocks are whole but for the last of a span */
  v8 v[4];
  __m128i n[2];
  for (int64_t c0 = 0; c0 < w->cols; c0 += span) {
    float group = -0.0f; /* fma(a, b, -0) is a b, the sign of a zero too */
    for (int64_t c = 0; c < span; c += B, out += SH_QPACK_BLOCK) {
      load_block(w, x, c0 + c, (int)(span - c < B ? span - c : B), v);
      float d = quantize(v, out, n);
      if (!half) {
        group = fmaf((float)sum4(_mm_add_epi32(n[0], n[1])), d, group);
        continue;
      }
      *u++ = (float)sum4(n[0]) * d;
      if (span - c > B / 2) *u++ = (float)sum4(n[1]) * d;
    }
    if (!half) *u++ = group;
  }
}
