/* Stored weights to float32 lanes, eight at a time: what dot does in registers and gemm once per tile. The values are those of
 * formats/dequant.h to the bit (each product of a scale and an integer is exact or rounded once in both), so the two paths feed the same
 * numbers to the same sums. */
#ifndef SH_KERNELS_X86_WEIGHTS_AVX2_H
#define SH_KERNELS_X86_WEIGHTS_AVX2_H

#include "formats/tensor.h"
#include "kernels/x86/vec.h"
#ifdef __AVX2__

/* SH_I4 with float32 scales, as a type of its own for the functions below: with the eleven or eight bits of an f16 or bf16 scale d, d q - d
 * z is d (q - z) rounded once (or NaN, where d is infinite or near it), and with 24 bits it is not. */
#define W_I4_F32 SH_DTYPE_COUNT
#define W_U8_F32 SH_OTHER /* the same of SH_U8; no weights have the type whose number it borrows */

SH_INLINE sh_dtype w_type(const sh_wview *w) {
  if (w->scale_type == SH_F32 && w->type == SH_I4) return W_I4_F32;
  return w->scale_type == SH_F32 && w->type == SH_U8 ? W_U8_F32 : w->type;
}

/* How a type's rows are walked: blocks of 32 weights that hold their scale, blocks of 256 that hold several, groups with scales beside the
 * weights, or plain numbers. */
SH_INLINE bool w_has_blocks(sh_dtype type) {
  return type == SH_Q8_0 || type == SH_Q4_0 || type == SH_Q4_1 || type == SH_Q5_0 || type == SH_Q5_1 || type == SH_IQ4_NL;
}
SH_INLINE bool w_is_k(sh_dtype type) { return type == SH_Q4_K || type == SH_Q5_K; }
SH_INLINE bool w_is_u8(sh_dtype type) { return type == SH_U8 || type == W_U8_F32; }
SH_INLINE bool w_has_groups(sh_dtype type) {
  return type == SH_I4 || type == W_I4_F32 || type == SH_I8 || w_is_u8(type) || type == SH_F8_E4M3;
}

/* Bytes of 32 weights; not for blocks of 256. */
SH_INLINE size_t w_step(sh_dtype type) {
  switch (type) {
  case SH_F32: return 128;
  case SH_Q8_0: return 34;
  case SH_Q4_0: return 18;
  case SH_Q4_1: return 20;
  case SH_Q5_0: return 22;
  case SH_Q5_1: return 24;
  case SH_IQ4_NL: return 18;
  case SH_I4:
  case W_I4_F32: return 16;
  case SH_I8:
  case SH_U8:
  case W_U8_F32:
  case SH_F8_E4M3: return 32;
  default: return 64;
  }
}

SH_INLINE v8 w_scale(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

SH_INLINE __m128i w_bytes8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }
SH_INLINE __m128i w_bytes16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
SH_INLINE __m256i w_bytes32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
SH_INLINE int32_t w_int32(const uint8_t *p) {
  int32_t i;
  memcpy(&i, p, 4);
  return i;
}

/* What the four vectors of 32 weights share. */
typedef struct w_block {
  v8 d, m;   /* w = d q + m; W_I4_F32, W_U8_F32: w = d (q - m) */
  __m256i q; /* Q5_0, Q5_1, Q5_K and IQ4_NL: the 32 integers, a byte each */
} w_block;

/* Sixteen bytes of nibbles as 32 bytes: low ones first. */
SH_INLINE __m256i w_nibbles(const uint8_t *p) {
  __m128i b = w_bytes16(p);
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(b, 4), b), _mm256_set1_epi8(15));
}

/* 0xff in byte i where bit i of the four bytes at p is set. */
SH_INLINE __m256i w_bits32(const uint8_t *p) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
  __m256i b = _mm256_shuffle_epi8(_mm256_set1_epi32(w_int32(p)), spread);
  return _mm256_cmpeq_epi8(_mm256_and_si256(b, bit), bit);
}

/* The block of 32 weights at p. */
SH_INLINE w_block w_open(sh_dtype type, const uint8_t *p) {
  w_block b = {.d = v8_zero(), .m = v8_zero(), .q = _mm256_setzero_si256()};
  if (w_has_blocks(type)) b.d = w_scale(p);
  switch (type) {
  case SH_Q4_0: b.m = _mm256_mul_ps(b.d, v8_set(-8.0f)); break; /* d q - 8 d = d (q - 8): all three exact */
  case SH_Q5_1: b.q = _mm256_or_si256(w_nibbles(p + 8), _mm256_and_si256(w_bits32(p + 4), _mm256_set1_epi8(16))); /* fall through */
  case SH_Q4_1: b.m = w_scale(p + 2); break;
  case SH_Q5_0: /* q - 16: without the fifth bit the upper half of the byte is -16's */
    b.q = _mm256_or_si256(w_nibbles(p + 6), _mm256_andnot_si256(w_bits32(p + 2), _mm256_set1_epi8(-16)));
    break;
  case SH_IQ4_NL: {
    const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    b.q = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), w_nibbles(p + 2));
    break;
  }
  default: break;
  }
  return b;
}

/* The eight nibbles of a word, in order. */
SH_INLINE __m256i w_word(const uint8_t *p) {
  __m256i q = _mm256_srlv_epi32(_mm256_set1_epi32(w_int32(p)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return _mm256_and_si256(q, _mm256_set1_epi32(15));
}

/* Bytes 8 v.. of q, sign or zero extended. */
SH_INLINE __m256i w_ints(__m256i q, int v, bool is_signed) {
  __m128i b = v < 2 ? _mm256_castsi256_si128(q) : _mm256_extracti128_si256(q, 1);
  if (v & 1) b = _mm_unpackhi_epi64(b, b);
  return is_signed ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b);
}

/* e4m3 bytes as value / 256 in f16, exact: sign, exponent and mantissa sit in f16's as they are, with a bias that is 8 less. A byte is a
 * NaN when it is 0x7f without its sign, and all ones makes one of f16. (float32 bits would take fewer steps and make denormals of the
 * smallest numbers, at which some machines stop for a hundred cycles.) */
SH_INLINE __m128i w_f8_halves8(const uint8_t *p) {
  __m128i h = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(w_bytes8(p)), 7), _mm_set1_epi16((short)0xbfff));
  return _mm_or_si128(h, _mm_cmpgt_epi16(_mm_slli_epi16(h, 1), _mm_set1_epi16(0x7e00)));
}
SH_INLINE __m256i w_f8_halves16(const uint8_t *p) {
  __m256i h = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(w_bytes16(p)), 7), _mm256_set1_epi16((short)0xbfff));
  return _mm256_or_si256(h, _mm256_cmpgt_epi16(_mm256_slli_epi16(h, 1), _mm256_set1_epi16(0x7e00)));
}

/* Vector v (0..3) of the 32 weights at p. */
SH_INLINE v8 w_vec(sh_dtype type, const uint8_t *p, int v, w_block b) {
  switch (type) {
  case SH_F32: return v8_load_f32(p + 32 * v);
  case SH_F16: return v8_load_f16(p + 16 * v);
  case SH_BF16: return v8_load_bf16(p + 16 * v);
  case SH_Q8_0: return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(w_bytes8(p + 2 + 8 * v))), b.d);
  case SH_Q5_0:
  case SH_IQ4_NL: return _mm256_mul_ps(_mm256_cvtepi32_ps(w_ints(b.q, v, true)), b.d);
  case SH_Q5_1: return v8_fma(_mm256_cvtepi32_ps(w_ints(b.q, v, false)), b.d, b.m);
  case SH_F8_E4M3: return _mm256_mul_ps(_mm256_cvtph_ps(w_f8_halves8(p + 8 * v)), b.d);
  case SH_I4: return v8_fma(_mm256_cvtepi32_ps(w_word(p + 4 * v)), b.d, b.m);
  case W_I4_F32: return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(w_word(p + 4 * v)), b.m), b.d);
  case SH_I8: return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(w_bytes8(p + 8 * v))), b.d);
  case SH_U8: return v8_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(w_bytes8(p + 8 * v))), b.d, b.m);
  case W_U8_F32: return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(w_bytes8(p + 8 * v))), b.m), b.d);
  default: break;
  }
  __m256i q = _mm256_cvtepu8_epi32(w_bytes8(p + (type == SH_Q4_0 ? 2 : 4) + 8 * (v & 1)));
  q = v < 2 ? _mm256_and_si256(q, _mm256_set1_epi32(15)) : _mm256_srli_epi32(q, 4);
  return v8_fma(_mm256_cvtepi32_ps(q), b.d, b.m);
}

/* All four. */
SH_INLINE void w_vecs(sh_dtype type, const uint8_t *p, w_block b, v8 *out) {
  if (type != SH_F8_E4M3) {
    _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) out[v] = w_vec(type, p, v, b);
    return;
  }
  _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
    __m256i h = w_f8_halves16(p + 16 * i);
    out[2 * i] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), b.d);
    out[2 * i + 1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), b.d);
  }
}

/* The first n < 8 weights at p, zeros after them: not for types with blocks, whose rows have whole ones. */
SH_INLINE v8 w_tail(sh_dtype type, const uint8_t *p, int n, w_block b) {
  uint8_t pad[32] = {0};
  memcpy(pad, p, (w_step(type) * (size_t)n + 31) / 32);
  return _mm256_and_ps(w_vec(type, pad, 0, b), _mm256_castsi256_ps(v8_mask(n))); /* SH_I4, SH_U8: integers of 0 are not zero */
}

/* --- Groups: the scales and zero points of a row of a type with groups, some of them at a time. */

enum { W_GROUPS = 32 };

typedef struct w_groups {
  const uint8_t *scales, *zeros; /* of the row; zeros NULL: 8, SH_U8 128 */
  float d[W_GROUPS], m[W_GROUPS];
} w_groups;

SH_INLINE void w_groups_row(sh_dtype type, const sh_wview *w, int64_t row, w_groups *g) {
  g->scales = w->scales + (size_t)(type == SH_F8_E4M3 ? row / w->scale_rows : row) * w->scale_row_bytes;
  g->zeros = w->zeros ? w->zeros + (size_t)row * w->zero_row_bytes : NULL;
}

SH_INLINE v8 w_scales8(sh_dtype scale_type, const uint8_t *p) {
  return scale_type == SH_F32 ? v8_load_f32(p) : scale_type == SH_F16 ? v8_load_f16(p) : v8_load_bf16(p);
}

/* Fills d and m with groups i.. and on, at least to `stop`; the row has n. */
SH_INLINE void w_groups_at(sh_dtype type, const sh_wview *w, w_groups *g, int64_t i, int64_t stop, int64_t n) {
  const size_t size = w->scale_type == SH_F32 ? 4 : 2;
  uint8_t pad[32];
  uint64_t z8 = w_is_u8(type) ? 0x8080808080808080 : 0x0808080808080808;
  for (int j = 0; j < W_GROUPS && i < stop; j += 8, i += 8) {
    const uint8_t *p = g->scales + (size_t)i * size;
    size_t left = n - i < 8 ? (size_t)(n - i) : 8;
    if (left < 8) p = memcpy(pad, p, left * size);
    v8 d = w_scales8(w->scale_type, p);
    if (type == SH_F8_E4M3) { /* 256: what w_f8_halves left out; exact, and so is the product's rounding, for scales under 2^119 */
      v8_store(g->d + j, _mm256_mul_ps(d, v8_set(256.0f)));
      continue;
    }
    if (type == SH_I8) {
      v8_store(g->d + j, d);
      continue;
    }
    if (g->zeros && left < 8) memcpy(&z8, g->zeros + i, left);
    else if (g->zeros) memcpy(&z8, g->zeros + i, 8);
    v8 z = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)z8)));
    v8_store(g->d + j, d);
    v8_store(g->m + j, type == SH_I4 || type == SH_U8 ? v8_neg(_mm256_mul_ps(d, z)) : z);
  }
}

SH_INLINE w_block w_group_block(const w_groups *g, int i) {
  return (w_block){.d = _mm256_broadcast_ss(&g->d[i]), .m = _mm256_broadcast_ss(&g->m[i]), .q = _mm256_setzero_si256()};
}

/* --- Blocks of 256. */

/* The eight scales and minimums of a Q4_K or Q5_K block, multiplied out; layout in formats/dequant.c. */
typedef struct w_block_k {
  float d[8], m[8]; /* w = d q + m */
} w_block_k;

SH_INLINE void w_open_k(const uint8_t *p, w_block_k *b) {
  uint32_t s0 = (uint32_t)w_int32(p + 4), s1 = (uint32_t)w_int32(p + 8), s2 = (uint32_t)w_int32(p + 12); /* four bytes each */
  uint64_t scale = (s0 & 0x3f3f3f3f) | (uint64_t)((s2 & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030)) << 32;
  uint64_t min = (s1 & 0x3f3f3f3f) | (uint64_t)((s2 >> 4 & 0x0f0f0f0f) | (s1 >> 2 & 0x30303030)) << 32;
  v8_store(b->d, _mm256_mul_ps(w_scale(p), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scale)))));
  v8_store(b->m, v8_neg(_mm256_mul_ps(w_scale(p + 2), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)min))))));
}

/* Run r (0..7) of 32 weights of the block at p. bytes: with the integers put together, as SH_Q5_K always has them. */
SH_INLINE w_block w_run_k(sh_dtype type, const uint8_t *p, const w_block_k *k, int r, bool bytes) {
  w_block b = {.d = _mm256_broadcast_ss(&k->d[r]), .m = _mm256_broadcast_ss(&k->m[r]), .q = _mm256_setzero_si256()};
  if (!bytes) return b;
  __m256i q = w_bytes32(p + (type == SH_Q4_K ? 16 : 48) + 32 * (r / 2));
  b.q = _mm256_and_si256(r & 1 ? _mm256_srli_epi16(q, 4) : q, _mm256_set1_epi8(15));
  if (type == SH_Q4_K) return b;
  __m256i h = w_bytes32(p + 16);
  h = r < 4 ? _mm256_slli_epi16(h, 4 - r) : _mm256_srli_epi16(h, r - 4); /* bit r of each byte to bit 4 */
  b.q = _mm256_or_si256(b.q, _mm256_and_si256(h, _mm256_set1_epi8(16)));
  return b;
}

/* Vector v (0..3) of run r. */
SH_INLINE v8 w_vec_k(const uint8_t *p, int r, int v, w_block b, bool bytes) {
  if (bytes) return v8_fma(_mm256_cvtepi32_ps(w_ints(b.q, v, false)), b.d, b.m);
  __m256i q = _mm256_cvtepu8_epi32(w_bytes8(p + 16 + 32 * (r / 2) + 8 * v));
  q = r & 1 ? _mm256_srli_epi32(q, 4) : _mm256_and_si256(q, _mm256_set1_epi32(15));
  return v8_fma(_mm256_cvtepi32_ps(q), b.d, b.m);
}

/* A block of 256 weights with its integers put together (q - 32, a byte each) and its sixteen scales multiplied out; layout in
 * formats/dequant.c. */
typedef struct w_block_q6_k {
  int8_t q[256];
  float scale[16]; /* of sixteen weights each */
} w_block_q6_k;

SH_INLINE void w_open_q6_k(const uint8_t *p, w_block_q6_k *b) {
  v8 d = w_scale(p + 208);
  for (int i = 0; i < 2; i++)
    v8_store(b->scale + 8 * i, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(w_bytes8(p + 192 + 8 * i)))));
  const __m256i low4 = _mm256_set1_epi8(15), bits45 = _mm256_set1_epi8(0x30), bias = _mm256_set1_epi8(32);
  for (int half = 0; half < 2; half++) {
    __m256i a = w_bytes32(p + 64 * half), c = w_bytes32(p + 64 * half + 32), h = w_bytes32(p + 128 + 32 * half);
    /* runs 0..3: a low, c low, a high, c high; their bits 4 and 5 are bits 0-1, 2-3, 4-5, 6-7 of h */
    __m256i q[4] = {
        _mm256_or_si256(_mm256_and_si256(a, low4), _mm256_and_si256(_mm256_slli_epi16(h, 4), bits45)),
        _mm256_or_si256(_mm256_and_si256(c, low4), _mm256_and_si256(_mm256_slli_epi16(h, 2), bits45)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low4), _mm256_and_si256(h, bits45)),
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), low4), _mm256_and_si256(_mm256_srli_epi16(h, 2), bits45)),
    };
    for (int run = 0; run < 4; run++) _mm256_storeu_si256((__m256i *)(void *)(b->q + 128 * half + 32 * run), _mm256_sub_epi8(q[run], bias));
  }
}

/* Vector v (0..31). */
SH_INLINE v8 w_vec_q6_k(const w_block_q6_k *b, int v) {
  __m256i q = _mm256_cvtepi8_epi32(w_bytes8((const uint8_t *)b->q + 8 * v));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_broadcast_ss(b->scale + v / 2));
}

#endif
#endif
