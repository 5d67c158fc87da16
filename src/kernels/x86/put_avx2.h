/* The last step of eight outputs of one activation row, shared by the AVX2 matrix products. */
#ifndef SH_KERNELS_X86_PUT_AVX2_H
#define SH_KERNELS_X86_PUT_AVX2_H

#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"
#ifdef __AVX2__

/* Outputs r to r + 7, those that exist: what sh_kern_put_avx2 does to one. */
SH_INLINE void put8(const sh_mm *a, int t, int r, v8 v) {
  if (a->n_rows - r < 8) {
    float sum[8];
    v8_store(sum, v);
    for (int i = 0; i < a->n_rows - r; i++) sh_kern_put_avx2(a, t, r + i, sum[i]);
    return;
  }
  float *y = a->y[t] + a->y0 + r;
  if (a->bias) v = _mm256_add_ps(v, v8_load(a->bias + r));
  if (a->scale) v = v8_fma(v8_set(a->scale[t]), v, v8_load(y));
  else if (a->add) v = _mm256_add_ps(v8_load(y), v);
  v8_store(y, v);
}

#endif
#endif
