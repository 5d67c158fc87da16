/* Random numbers and stored weights. Pure functions of the state of a generator. */
#include "bench/fill.h"

#include "formats/dequant.h"

#include <string.h>

uint32_t sh_fill_u32(uint64_t *rng) {
  uint64_t z = *rng += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)((z ^ z >> 31) >> 32);
}

float sh_fill_uniform(uint64_t *rng, float lo, float hi) { return lo + (hi - lo) * ((float)(sh_fill_u32(rng) >> 8) * 0x1p-24f); }

void sh_fill_floats(uint64_t *rng, float *p, size_t n, float scale) {
  for (size_t i = 0; i < n; i++) p[i] = sh_fill_u32(rng) % 32 == 0 ? 0 : sh_fill_uniform(rng, -scale, scale);
}

size_t sh_fill_row_bytes(sh_dtype t, int64_t k) { return (size_t)(k / sh_dtype_block(t)) * (size_t)sh_dtype_block_bytes(t); }

static void put16(uint8_t *p, uint16_t h) { memcpy(p, &h, 2); }

static void fill_row(uint64_t *rng, sh_dtype t, uint8_t *p, int64_t k) {
  int block = sh_dtype_block(t), bytes = sh_dtype_block_bytes(t);
  for (int64_t i = 0; i < k / block; i++, p += bytes) {
    float f = sh_fill_uniform(rng, -1, 1);
    if (t == SH_F32) memcpy(p, &f, 4);
    if (t == SH_F16) put16(p, sh_f32_to_f16(f));
    if (t == SH_BF16) put16(p, sh_f32_to_bf16(f));
    if (t == SH_F32 || t == SH_F16 || t == SH_BF16) continue;
    for (int j = 0; j < bytes; j++) p[j] = (uint8_t)sh_fill_u32(rng);
    if (t == SH_F8_E4M3 && (p[0] & 0x7f) == 0x7f) p[0] ^= 1; /* no NaN */
    if (t == SH_Q8_0 || t == SH_IQ4_NL) put16(p, sh_f32_to_f16(f / 128));
    if (t == SH_Q4_0) put16(p, sh_f32_to_f16(f / 8));
    if (t == SH_Q4_1) put16(p, sh_f32_to_f16(f / 8)), put16(p + 2, sh_f32_to_f16(-f / 2));
    if (t == SH_Q5_0) put16(p, sh_f32_to_f16(f / 16));
    if (t == SH_Q5_1) put16(p, sh_f32_to_f16(f / 16)), put16(p + 2, sh_f32_to_f16(-f / 2));
    if (t == SH_Q4_K) put16(p, sh_f32_to_f16(f / 512)), put16(p + 2, sh_f32_to_f16(f / 64));
    if (t == SH_Q5_K) put16(p, sh_f32_to_f16(f / 1024)), put16(p + 2, sh_f32_to_f16(f / 64));
    if (t == SH_Q6_K) put16(p + 208, sh_f32_to_f16(f / 4096));
  }
}

void sh_fill_weights(uint64_t *rng, sh_dtype t, uint8_t *p, size_t rows, size_t row_bytes, int64_t k) {
  for (size_t r = 0; r < rows; r++) fill_row(rng, t, p + r * row_bytes, k);
}
