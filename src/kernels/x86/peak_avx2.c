/* What AVX2 code can reach on this machine: fp32 multiply-adds, products of u8 and s8, reading. Nothing else in the loops;
 * bench/roofline.md quotes them. Compiled with AVX2 and FMA, reached through sh_peak_init. */
#include "kernels/peak.h"

#ifdef __x86_64__
#include <immintrin.h>

/* Twelve independent chains of fma: more than latency times units on any core. Ten steps of each a round, eight lanes a step. */
float sh_peak_f32_avx2(int64_t n) {
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f), sum = _mm256_setzero_ps();
  /* twelve different starts: equal chains would be merged into one by the compiler */
#define START(i) a##i = _mm256_set1_ps((float)(i + 1))
  __m256 START(0), START(1), START(2), START(3), START(4), START(5), START(6), START(7), START(8), START(9), START(10), START(11);
#define STEP(a) a = _mm256_fmadd_ps(a, x, y);
#define ROUND STEP(a0) STEP(a1) STEP(a2) STEP(a3) STEP(a4) STEP(a5) STEP(a6) STEP(a7) STEP(a8) STEP(a9) STEP(a10) STEP(a11)
  for (int64_t i = 0; i < n; i++) { ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND }
#define ADD(a) sum = _mm256_add_ps(sum, a);
  ADD(a0) ADD(a1) ADD(a2) ADD(a3) ADD(a4) ADD(a5) ADD(a6) ADD(a7) ADD(a8) ADD(a9) ADD(a10) ADD(a11) return _mm256_cvtss_f32(sum);
}
#undef STEP
#undef ROUND

/* Eight accumulators of sixteen 16-bit lanes. A step is vpmaddubsw (32 products of u8 and s8, added in pairs) and vpaddw, which wraps: what
 * an int8 product does at the least. Eight steps of each accumulator a round. The empty asm makes the compiler believe that the operand
 * changes and that the sum is needed at once; else it takes the product out of the loop, or keeps products in memory for later. */
int sh_peak_u8s8_avx2(int64_t n) {
  __m256i u = _mm256_set1_epi8(3), s = _mm256_set1_epi8(-2);
  __m256i c0 = u, c1 = s, c2 = u, c3 = s, c4 = u, c5 = s, c6 = u, c7 = s;
#define MADD(c)                                                                                                                            \
  c = _mm256_add_epi16(c, _mm256_maddubs_epi16(u, s));                                                                                     \
  __asm__ volatile("" : "+x"(u), "+x"(c));
#define EIGHT MADD(c0) MADD(c1) MADD(c2) MADD(c3) MADD(c4) MADD(c5) MADD(c6) MADD(c7)
  for (int64_t i = 0; i < n; i++) { EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT }
  __m256i sum = _mm256_add_epi16(_mm256_add_epi16(_mm256_add_epi16(c0, c1), _mm256_add_epi16(c2, c3)),
                                 _mm256_add_epi16(_mm256_add_epi16(c4, c5), _mm256_add_epi16(c6, c7)));
  return _mm256_extract_epi16(sum, 0);
}

/* Four sums of 32 bytes, 128 bytes a step, lines asked for 16 KiB ahead. */
uint64_t sh_peak_read_avx2(const uint8_t *p, size_t n) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  size_t i = 0;
  for (; i + 128 <= n; i += 128) {
    _mm_prefetch((const char *)p + i + 16384, _MM_HINT_T1);
    _mm_prefetch((const char *)p + i + 16384 + 64, _MM_HINT_T1);
    a = _mm256_add_epi64(a, _mm256_load_si256((const __m256i *)(const void *)(p + i)));
    b = _mm256_add_epi64(b, _mm256_load_si256((const __m256i *)(const void *)(p + i + 32)));
    c = _mm256_add_epi64(c, _mm256_load_si256((const __m256i *)(const void *)(p + i + 64)));
    d = _mm256_add_epi64(d, _mm256_load_si256((const __m256i *)(const void *)(p + i + 96)));
  }
  if (i < n) a = _mm256_add_epi64(a, _mm256_load_si256((const __m256i *)(const void *)(p + i))); /* n = 64 (mod 128) */
  if (i < n) b = _mm256_add_epi64(b, _mm256_load_si256((const __m256i *)(const void *)(p + i + 32)));
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  return (uint64_t)_mm256_extract_epi64(a, 0) + (uint64_t)_mm256_extract_epi64(a, 1) + (uint64_t)_mm256_extract_epi64(a, 2) +
         (uint64_t)_mm256_extract_epi64(a, 3);
}
#endif
