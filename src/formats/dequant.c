/* Reference dequantization of every supported storage type.
 *
 * Pure functions, no state, any thread, any alignment of the source. Blocks are read byte by byte (little endian on every host). Results
 * are what the format defines in float32: one rounding per product, integers exact. Written to be read beside the layout comments of
 * tensor.h; speed is the kernels' business, so there is no vector code here. */
#include "formats/dequant.h"

#include <string.h>

#include "formats/panel.h"

static uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t load32(const uint8_t *p) { return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16; }

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

/* 22 bytes: f16 d, 32 fifth bits (bit i for weight i), 16 bytes of nibbles as in Q4_0. */
static void block_q5_0(const uint8_t *b, float *out) {
  float d = load_f16(b);
  uint32_t high = load32(b + 2);
  for (int i = 0; i < 16; i++) {
    out[i] = d * (float)((int)((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
    out[16 + i] = d * (float)((int)(b[6 + i] >> 4 | (high >> (16 + i) & 1) << 4) - 16);
  }
}

/* 24 bytes: f16 d, f16 m, then as Q5_0. */
static void block_q5_1(const uint8_t *b, float *out) {
  float d = load_f16(b), m = load_f16(b + 2);
  uint32_t high = load32(b + 4);
  for (int i = 0; i < 16; i++) {
    out[i] = d * (float)((b[8 + i] & 15) | (high >> i & 1) << 4) + m;
    out[16 + i] = d * (float)(b[8 + i] >> 4 | (high >> (16 + i) & 1) << 4) + m;
  }
}

/* 18 bytes: f16 d, 16 bytes of nibbles as in Q4_0, which index the values that the format names. */
static void block_iq4_nl(const uint8_t *b, float *out) {
  static const int8_t VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  float d = load_f16(b);
  for (int i = 0; i < 16; i++) {
    out[i] = d * (float)VALUES[b[2 + i] & 15];
    out[16 + i] = d * (float)VALUES[b[2 + i] >> 4];
  }
}

/* Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit minimums, one per 32 weights, in 12 bytes: bytes 0..3 hold scales 0..3 and
 * bytes 4..7 minimums 0..3 in their low six bits; bytes 8..11 hold the low four bits of scales (low nibble) and minimums (high
 * nibble) 4..7, whose upper two bits are the top bits of bytes 0..3 and 4..7. */
void sh_k_scale(const uint8_t *s, int i, int *scale, int *min) {
  *scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
  *min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
}

/* Eight runs of 32 weights; runs 2i and 2i + 1 are the low and high nibbles of bytes 32 i.. of q. high: 32 bytes, bit r of byte i is the
 * fifth bit of weight i of run r; NULL when there is none. */
static void runs_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *out) {
  float d = load_f16(b), dmin = load_f16(b + 2);
  for (int run = 0; run < 8; run++) {
    int scale, min;
    sh_k_scale(b + 4, run, &scale, &min);
    float s = d * (float)scale, m = dmin * (float)min;
    for (int i = 0; i < 32; i++) {
      int byte = q[32 * (run / 2) + i], v = run & 1 ? byte >> 4 : byte & 15;
      if (high) v |= (high[i] >> run & 1) << 4;
      out[32 * run + i] = s * (float)v - m;
    }
  }
}

/* 144 bytes: f16 d, f16 dmin, 12 B of scales and minimums, 128 B of nibbles. */
static void block_q4_k(const uint8_t *b, float *out) { runs_k(b, NULL, b + 16, out); }

/* 176 bytes: as Q4_K with 32 B of fifth bits before the nibbles. */
static void block_q5_k(const uint8_t *b, float *out) { runs_k(b, b + 16, b + 48, out); }

typedef void block_fn(const uint8_t *b, float *out);

static block_fn *block_of(sh_dtype t) {
  switch (t) {
  case SH_Q8_0: return block_q8_0;
  case SH_Q4_0: return block_q4_0;
  case SH_Q4_1: return block_q4_1;
  case SH_Q6_K: return block_q6_k;
  case SH_Q5_0: return block_q5_0;
  case SH_Q5_1: return block_q5_1;
  case SH_Q4_K: return block_q4_k;
  case SH_Q5_K: return block_q5_k;
  case SH_IQ4_NL: return block_iq4_nl;
  default: return NULL;
  }
}

bool sh_dequant_supported(sh_dtype t) { return t == SH_F32 || t == SH_F16 || t == SH_BF16 || block_of(t); }

void sh_dequant(sh_dtype t, const uint8_t *src, int64_t n, float *out) {
  switch (t) {
  case SH_F32:
    for (int64_t i = 0; i < n; i++) out[i] = float_of_bits(load32(src + 4 * i));
    return;
  case SH_F16:
    for (int64_t i = 0; i < n; i++) out[i] = load_f16(src + 2 * i);
    return;
  case SH_BF16:
    for (int64_t i = 0; i < n; i++) out[i] = sh_bf16_to_f32(load16(src + 2 * i));
    return;
  default: break;
  }
  block_fn *block = block_of(t);
  int per = sh_dtype_block(t), bytes = sh_dtype_block_bytes(t);
  if (!block) return; /* binding refused it; see sh_dequant_supported */
  for (int64_t i = 0; i < n / per; i++) block(src + i * bytes, out + i * per);
}

/* --- Types with scales beside them */

float sh_f8_e4m3_to_f32(uint8_t b) {
  int exp = b >> 3 & 15, man = b & 7;
  if (exp == 15 && man == 7) return float_of_bits(b & 0x80 ? 0xffc00000 : 0x7fc00000);
  float f = exp ? float_of_bits((uint32_t)(exp + 120) << 23 | (uint32_t)man << 20) : (float)man * 0x1p-9f;
  return b & 0x80 ? -f : f;
}

static float scale_of(const sh_wview *w, int64_t row, int64_t group) {
  const uint8_t *p = w->scales + (size_t)(row / w->scale_rows) * w->scale_row_bytes;
  float s;
  sh_dequant(w->scale_type, p + group * sh_dtype_block_bytes(w->scale_type), 1, &s);
  return s;
}

/* Stored columns [k0, k0 + n) of one group. */
static void group_cols(const sh_wview *w, int64_t row, int64_t group, int64_t k0, int64_t n, float *out) {
  const uint8_t *p = w->data + (size_t)row * w->row_bytes;
  float s = scale_of(w, row, group);
  if (w->type == SH_F8_E4M3) {
    for (int64_t i = 0; i < n; i++) out[i] = sh_f8_e4m3_to_f32(p[k0 + i]) * s;
    return;
  }
  if (w->type == SH_I8) {
    for (int64_t i = 0; i < n; i++) out[i] = (float)(int8_t)p[k0 + i] * s;
    return;
  }
  int zero = w->zeros ? w->zeros[(size_t)row * w->zero_row_bytes + (size_t)group] : w->type == SH_U8 ? 128 : 8;
  if (w->type == SH_U8) {
    for (int64_t i = 0; i < n; i++) out[i] = (float)(p[k0 + i] - zero) * s;
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    int byte = p[(k0 + i) / 2], q = (k0 + i) & 1 ? byte >> 4 : byte & 15;
    out[i] = (float)(q - zero) * s;
  }
}

void sh_dequant_cols(const sh_wview *w, int64_t row, int64_t k0, int64_t n, float *out) {
  if (!sh_dtype_has_groups(w->type)) {
    sh_dequant(w->type, w->data + (size_t)row * w->row_bytes + k0 / sh_dtype_block(w->type) * sh_dtype_block_bytes(w->type), n, out);
    return;
  }
  for (int64_t k = k0, end = k0 + n; k < end;) {
    int64_t group = k / w->group, stop = (group + 1) * w->group < end ? (group + 1) * w->group : end;
    group_cols(w, row, group, k, stop - k, out + (k - k0));
    k = stop;
  }
}

void sh_dequant_row(const sh_wview *w, int64_t row, float *out) {
  if (sh_dtype_is_panel(w->type)) {
    sh_panel_row(w, row, out);
    return;
  }
  if (!w->perm) {
    sh_dequant_cols(w, row, 0, w->cols, out);
    return;
  }
  enum { PIECE = 256 }; /* whole blocks of every type */
  float v[PIECE];
  for (int64_t k = 0; k < w->cols; k += PIECE) {
    int64_t n = w->cols - k < PIECE ? w->cols - k : PIECE;
    sh_dequant_cols(w, row, k, n, v);
    for (int64_t i = 0; i < n; i++) out[w->perm[k + i]] = v[i];
  }
}
