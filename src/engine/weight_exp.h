/* exp for weights of a softmax: the same bits on every machine (libm's differ), and simple enough that the compiler makes vector code of
 * it. */
#ifndef SH_ENGINE_WEIGHT_EXP_H
#define SH_ENGINE_WEIGHT_EXP_H

#include <stdint.h>
#include <string.h>

/* e^x for x <= 0; 0 below -87 (the smallest normal float) and for -inf. Relative error under 2e-7: x = n ln2 + r with |r| <= ln2 / 2, e^r
 * by its Taylor series to the 7th power (the next term is below 2^-27). x must not be NaN. */
static inline float sh_weight_exp(float x) {
  float c = x < -87.0f ? -87.0f : x;
  float t = c * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum's low mantissa bits are the rounded integer */
  float n = t - 12582912.0f;
  float r = c - n * 0.693359375f; /* ln2 in two parts; the first has few bits, so the product is exact */
  r = r - n * -2.12194440e-4f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &t, sizeof bits);
  bits = (bits + 127u) << 23; /* 0x4B400000 + n: only the low bits survive the shift */
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return x < -87.0f ? 0.0f : p * scale;
}

#endif
