/* The limits of a machine: which loops, and those for plain x86-64 (or any other machine), built with the baseline flags. */
#include "kernels/peak.h"

#include "kernels/kernels.h"

#include <string.h>

int sh_peak_init(sh_peak *p, const char *cpu, sh_error *e) {
  sh_kernels k;
  *p = (sh_peak){.name = "plain C", .f32 = sh_peak_f32_plain, .read = sh_peak_read_plain, .f32_ops = SH_PEAK_F32_PLAIN_OPS};
  int rc = sh_kernels_init(&k, cpu, e); /* refuses what the kernels refuse */
  if (rc < 0 || (cpu && strcmp(cpu, "baseline") == 0)) return rc;
#ifdef __x86_64__
  if (sh_kernels_detect() & SH_CPU_AVX2)
    *p = (sh_peak){.name = "AVX2+FMA",
                   .f32 = sh_peak_f32_avx2,
                   .u8s8 = sh_peak_u8s8_avx2,
                   .read = sh_peak_read_avx2,
                   .f32_ops = SH_PEAK_F32_AVX2_OPS,
                   .u8s8_ops = SH_PEAK_U8S8_AVX2_OPS};
#endif
  return 0;
}

/* Twelve independent chains of four lanes, a multiplication and an addition a step: there is no fused one in the baseline. */
typedef float f32x4 __attribute__((vector_size(16)));

float sh_peak_f32_plain(int64_t n) {
  const f32x4 x = {0.999f, 0.999f, 0.999f, 0.999f}, y = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
#define START(i) a##i = {(float)(i + 1), (float)(i + 1), (float)(i + 1), (float)(i + 1)}
  f32x4 START(0), START(1), START(2), START(3), START(4), START(5), START(6), START(7), START(8), START(9), START(10), START(11);
#define STEP(a) a = a * x + y;
#define ROUND STEP(a0) STEP(a1) STEP(a2) STEP(a3) STEP(a4) STEP(a5) STEP(a6) STEP(a7) STEP(a8) STEP(a9) STEP(a10) STEP(a11)
  for (int64_t i = 0; i < n; i++) { ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND }
  f32x4 sum = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
  return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Eight sums, so that adding is never what limits, and lines asked for well ahead, as the kernels do. */
uint64_t sh_peak_read_plain(const uint8_t *p, size_t n) {
  const uint64_t *q = (const uint64_t *)(const void *)p;
  uint64_t s[8] = {0};
  for (size_t i = 0; i < n / 8; i += 8) {
    __builtin_prefetch(q + i + 2048, 0, 2);
    for (int j = 0; j < 8; j++) s[j] += q[i + (size_t)j];
  }
  return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
