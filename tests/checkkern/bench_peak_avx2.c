/* The machine's fp32 peak as AVX2 code can reach it: twelve independent chains of fma, more than latency times units on any core, nothing
 * else in the loop. */
#include "check.h"

#include <immintrin.h>

float ck_peak_avx2(int64_t n) {
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
