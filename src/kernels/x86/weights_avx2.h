/* Stored weights to float32 lanes, eight at a time: what dot does in registers and gemm once per tile. The values are those of
 * formats/dequant.h to the bit (each product of a scale and an integer is exact or rounded once in both), so the two paths feed the same
 * numbers to the same sums. */
#ifndef SH_KERNELS_X86_WEIGHTS_AVX2_H
#define SH_KERNELS_X86_WEIGHTS_AVX2_H

#include "formats/tensor.h"
#include "kernels/x86/vec.h"
#ifdef __AVX2__

/* Bytes of 32 weights; not for SH_Q6_K. */
SH_INLINE size_t w_step(sh_dtype type) {
  return type == SH_F32 ? 128 : type == SH_Q8_0 ? 34 : type == SH_Q4_0 ? 18 : type == SH_Q4_1 ? 20 : 64;
}

SH_INLINE bool w_has_blocks(sh_dtype type) { return type == SH_Q8_0 || type == SH_Q4_0 || type == SH_Q4_1; }

SH_INLINE v8 w_scale(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* What the four vectors of a block share. */
typedef struct w_block {
  v8 d, m; /* w = d q + m */
} w_block;

SH_INLINE w_block w_open(sh_dtype type, const uint8_t *p) {
  w_block b = {.d = v8_zero(), .m = v8_zero()};
  if (w_has_blocks(type)) b.d = w_scale(p);
  if (type == SH_Q4_0) b.m = _mm256_mul_ps(b.d, v8_set(-8.0f)); /* d q - 8 d = d (q - 8): all three exact */
  if (type == SH_Q4_1) b.m = w_scale(p + 2);
  return b;
}

SH_INLINE __m128i w_bytes8(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)(const void *)p); }

/* Vector v (0..3) of the 32 weights at p. */
SH_INLINE v8 w_vec(sh_dtype type, const uint8_t *p, int v, w_block b) {
  switch (type) {
  case SH_F32: return v8_load_f32(p + 32 * v);
  case SH_F16: return v8_load_f16(p + 16 * v);
  case SH_BF16: return v8_load_bf16(p + 16 * v);
  case SH_Q8_0: return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(w_bytes8(p + 2 + 8 * v))), b.d);
  default: break;
  }
  __m256i q = _mm256_cvtepu8_epi32(w_bytes8(p + (type == SH_Q4_0 ? 2 : 4) + 8 * (v & 1)));
  q = v < 2 ? _mm256_and_si256(q, _mm256_set1_epi32(15)) : _mm256_srli_epi32(q, 4);
  return v8_fma(_mm256_cvtepi32_ps(q), b.d, b.m);
}

/* The first n < 8 weights at p, zeros after them: float types only, a block type's rows have whole blocks. */
SH_INLINE v8 w_tail(sh_dtype type, const uint8_t *p, int n) {
  uint8_t pad[32] = {0};
  memcpy(pad, p, (size_t)n * (type == SH_F32 ? 4 : 2));
  return w_vec(type, pad, 0, (w_block){.d = v8_zero(), .m = v8_zero()});
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
    const __m256i *at = (const __m256i *)(const void *)(p + 64 * half);
    __m256i a = _mm256_loadu_si256(at), c = _mm256_loadu_si256(at + 1),
            h = _mm256_loadu_si256((const __m256i *)(const void *)(p + 128 + 32 * half));
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
