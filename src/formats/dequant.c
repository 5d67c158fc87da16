/* Reference dequantization of every supported storage type.
 *
 * Pure functions, no state, any thread, any alignment of the source. Blocks are read byte by byte (little endian on every host). Results
 * are what the format defines in float32: one rounding per product, integers exact. Written to be read beside the layout comments of
 * tensor.h; speed is the kernels' business, so there is no vector code here. */
#include "formats/dequant.h"

#include <string.h>

static uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static float float_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static uint32_t bits_of_float(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

float sh_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 1023;
  if (exp == 31) return float_of_bits(sign | 0x7f800000 | man << 13);
  if (exp) return float_of_bits(sign | (exp + 112) << 23 | man << 13);
  float f = (float)man * 0x1p-24f; /* zero and subnormals: exact */
  return sign ? -f : f;
}

uint16_t sh_f32_to_f16(float f) {
  uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff)); /* NaN, made quiet */
  if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                    /* rounds to 65536 or more */
  if (a < 0x38800000) { /* below 2^-14 the result is a multiple of 2^-24, which is the last bit of 0.5: the float adder does the rounding */
    float r = float_of_bits(a) + 0.5f;
    return (uint16_t)(sign | (bits_of_float(r) - 0x3f000000));
  }
  uint32_t odd = a >> 13 & 1;
  return (uint16_t)(sign | (a - 0x38000000 + 0xfff + odd) >> 13);
}

float sh_bf16_to_f32(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

uint16_t sh_f32_to_bf16(float f) {
  uint32_t u = bits_of_float(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64);
  return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float load_f16(const uint8_t *p) { return sh_f16_to_f32(load16(p)); }

/* 34 bytes: f16 d, 32 x i8. */
static void block_q8_0(const uint8_t *b, float *out) {
  float d = load_f16(b);
  for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* 18 bytes: f16 d, 16 bytes; low nibbles are weights 0..15, high ones 16..31. */
static void block_q4_0(const uint8_t *b, float *out) {
  float d = load_f16(b);
  for (int i = 0; i < 16; i++) {
    out[i] = d * (float)((b[2 + i] & 15) - 8);
    out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
  }
}

/* 20 bytes: f16 d, f16 m, 16 bytes of nibbles as in Q4_0. */
static void block_q4_1(const uint8_t *b, float *out) {
  float d = load_f16(b), m = load_f16(b + 2);
  for (int i = 0; i < 16; i++) {
    out[i] = d * (float)(b[4 + i] & 15) + m;
    out[16 + i] = d * (float)(b[4 + i] >> 4) + m;
  }
}

/* 210 bytes: 128 B of low 4 bits, 64 B of high 2 bits, 16 i8 scales (one per 16 weights), f16 d. Each half of 128 weights is four runs of
 * 32: run r takes the low (r < 2) or high nibbles of 32 bytes (r odd: the second 32) and bits 2r, 2r + 1 of the half's 32 high-bit bytes.
 */
static void block_q6_k(const uint8_t *b, float *out) {
  float d = load_f16(b + 208);
  for (int half = 0; half < 2; half++) {
    const uint8_t *lo = b + 64 * half, *hi = b + 128 + 32 * half, *sc = b + 192 + 8 * half;
    for (int run = 0; run < 4; run++) {
      for (int i = 0; i < 32; i++) {
        int byte = lo[32 * (run & 1) + i];
        int q = (run < 2 ? byte & 15 : byte >> 4) | (hi[i] >> (2 * run) & 3) << 4;
        out[128 * half + 32 * run + i] = d * (float)(int8_t)sc[2 * run + i / 16] * (float)(q - 32);
      }
    }
  }
}

bool sh_dequant_supported(sh_dtype t) {
  return t == SH_F32 || t == SH_F16 || t == SH_BF16 || t == SH_Q8_0 || t == SH_Q4_0 || t == SH_Q4_1 || t == SH_Q6_K;
}

void sh_dequant(sh_dtype t, const uint8_t *src, int64_t n, float *out) {
  void (*block)(const uint8_t *, float *) = NULL;
  switch (t) {
  case SH_F32:
    for (int64_t i = 0; i < n; i++) {
      const uint8_t *p = src + 4 * i;
      out[i] = float_of_bits((uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16);
    }
    return;
  case SH_F16:
    for (int64_t i = 0; i < n; i++) out[i] = load_f16(src + 2 * i);
    return;
  case SH_BF16:
    for (int64_t i = 0; i < n; i++) out[i] = sh_bf16_to_f32(load16(src + 2 * i));
    return;
  case SH_Q8_0: block = block_q8_0; break;
  case SH_Q4_0: block = block_q4_0; break;
  case SH_Q4_1: block = block_q4_1; break;
  case SH_Q6_K: block = block_q6_k; break;
  default: return; /* binding refused it; see sh_dequant_supported */
  }
  int per = sh_dtype_block(t), bytes = sh_dtype_block_bytes(t);
  for (int64_t i = 0; i < n / per; i++) block(src + i * bytes, out + i * per);
}

void sh_dequant_row(const sh_wview *w, int64_t row, float *out) { sh_dequant(w->type, w->data + (size_t)row * w->row_bytes, w->cols, out); }
