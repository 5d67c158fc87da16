/* What a machine can do at most, as loops that do nothing else: the limits that measurements are compared with (bench/roofline.md explains
 * and quotes them). Pure functions, any thread. One multiply-add counts as two operations. */
#ifndef SH_KERNELS_PEAK_H
#define SH_KERNELS_PEAK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Runs `n` rounds; the returned value depends on all of them, so that none can be left out. */
typedef float sh_peak_f32_fn(int64_t n);
typedef int sh_peak_u8s8_fn(int64_t n);
/* Reads p[0..n) once, front to back; n a multiple of 64, p aligned to 64. */
typedef uint64_t sh_peak_read_fn(const uint8_t *p, size_t n);

typedef struct sh_peak {
  const char *name; /* "AVX2+FMA", "plain C" */
  sh_peak_f32_fn *f32;
  sh_peak_u8s8_fn *u8s8; /* NULL: no such instructions */
  sh_peak_read_fn *read;
  double f32_ops, u8s8_ops; /* operations of a round */
} sh_peak;

/* cpu: as for sh_kernels_init. */
int sh_peak_init(sh_peak *p, const char *cpu, sh_error *e);

sh_peak_f32_fn sh_peak_f32_plain, sh_peak_f32_avx2;
sh_peak_u8s8_fn sh_peak_u8s8_avx2;
sh_peak_read_fn sh_peak_read_plain, sh_peak_read_avx2;

enum { /* operations of a round */
       SH_PEAK_F32_PLAIN_OPS = 10 * 12 * 4 * 2,
       SH_PEAK_F32_AVX2_OPS = 10 * 12 * 8 * 2,
       SH_PEAK_U8S8_AVX2_OPS = 8 * 8 * 32 * 2,
};

#endif
