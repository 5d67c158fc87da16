/* Attention of a tile of queries against one segment of keys.
 *
 * Pure functions, any thread. Scores are dot products with the arithmetic of dot_avx2.c: eight lanes along head_dim, one tree. The weighted
 * sum of values has head_dim in the lanes and keys in order. Both run over keys and values that were expanded to float32 panels once per
 * tile, so bf16 costs one conversion per 64 queries. A query's numbers do not depend on the tile: what it may not see is cut off by its own
 * count of keys, not multiplied by zero, so that an infinity in a later token's value cannot reach it. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#include <math.h>

enum { TQ = 4, RK = 3, MAX_Q = 6 };

static int vectors(int d) { return (d + 7) / 8; }

/* --- Panels */

/* Queries in panels of four, [panel][vector][4][8], missing ones repeat the last. */
void sh_kern_attn_pack_avx2(const float *const *q, int n_q, int head_dim, float *out) { sh_kern_pack_avx2(q, n_q, head_dim, out); }

SH_INLINE v8 load_elements(bool bf16, const uint8_t *row, int i, int d) {
  int n = d - 8 * i;
  if (n >= 8) return bf16 ? v8_load_bf16(row + 16 * i) : v8_load_f32(row + 32 * i);
  uint8_t pad[32] = {0};
  memcpy(pad, row + (bf16 ? 16 : 32) * (size_t)i, (size_t)n * (bf16 ? 2 : 4));
  return bf16 ? v8_load_bf16(pad) : v8_load_f32(pad);
}

/* Keys in panels of three, [panel][vector][3][8]. */
SH_INLINE void pack_keys(const sh_attn_seg *a, const bool bf16, float *out) {
  int nv = vectors(a->head_dim), whole = a->head_dim / 8;
  for (int j = 0; j < (a->n_pos + RK - 1) / RK * RK; j++) {
    const uint8_t *row = a->k[j < a->n_pos ? j : a->n_pos - 1];
    float *p = out + j / RK * nv * 8 * RK + j % RK * 8;
    for (int i = 0; i < whole; i++) v8_store(p + 8 * RK * i, bf16 ? v8_load_bf16(row + 16 * i) : v8_load_f32(row + 32 * i));
    if (whole < nv) v8_store(p + 8 * RK * whole, load_elements(bf16, row, whole, a->head_dim));
  }
}

/* Values in panels of sixteen columns, [panel][n_pos][16]: a panel of 4 KB stays in L1 while all queries pass. */
SH_INLINE void pack_values(const sh_attn_seg *a, const bool bf16, float *out) {
  int nv = vectors(a->head_dim), whole = a->head_dim / 8;
  for (int j = 0; j < a->n_pos; j++) {
    const uint8_t *row = a->v[j];
    float *p = out + 16 * j;
    for (int i = 0; i < whole; i++)
      v8_store(p + i / 2 * 16 * a->n_pos + i % 2 * 8, bf16 ? v8_load_bf16(row + 16 * i) : v8_load_f32(row + 32 * i));
    if (whole < nv) v8_store(p + whole / 2 * 16 * a->n_pos + whole % 2 * 8, load_elements(bf16, row, whole, a->head_dim));
    if (nv % 2) v8_store(p + nv / 2 * 16 * a->n_pos + 8, v8_zero());
  }
}

/* --- Scores: s[q][j], four queries x three keys at a time. */

static void score_panel(const float *q, const float *k, int nv, float *s) {
#define FOR_ROW(t, OP) OP(t, 0) OP(t, 1) OP(t, 2)
#define FOR_ALL(OP) FOR_ROW(0, OP) FOR_ROW(1, OP) FOR_ROW(2, OP) FOR_ROW(3, OP)
#define ZERO(t, r) v8 a##t##r = v8_zero();
#define FMA(t, r) a##t##r = v8_fma(k##r, x, a##t##r);
  FOR_ALL(ZERO)
  for (int i = 0; i < nv; i++, q += 8 * TQ, k += 8 * RK) {
    v8 k0 = v8_load(k), k1 = v8_load(k + 8), k2 = v8_load(k + 16);
    v8 x = v8_load(q);
    FOR_ROW(0, FMA)
    x = v8_load(q + 8);
    FOR_ROW(1, FMA)
    x = v8_load(q + 16);
    FOR_ROW(2, FMA)
    x = v8_load(q + 24);
    FOR_ROW(3, FMA)
  }
  _mm_storeu_ps(s, v8_sum4(a00, a10, a20, a30));
  _mm_storeu_ps(s + 4, v8_sum4(a01, a11, a21, a31));
  _mm_storeu_ps(s + 8, v8_sum4(a02, a12, a22, a32));
}

/* Blocks of four query panels, so that they stay in L1 while the keys pass. */
static void scores(const sh_attn_seg *a, const float *k, float *s) {
  int n_q = a->n_tok * a->group, qp = (n_q + TQ - 1) / TQ, kp = (a->n_pos + RK - 1) / RK, nv = vectors(a->head_dim);
  for (int q0 = 0; q0 < qp; q0 += 4) {
    for (int p = 0; p < kp; p++) {
      for (int q = q0; q < qp && q < q0 + 4; q++) {
        float out[RK * TQ];
        score_panel(a->q + q * nv * 8 * TQ, k + p * nv * 8 * RK, nv, out);
        for (int r = 0; r < RK && p * RK + r < a->n_pos; r++) {
          for (int t = 0; t < TQ && q * TQ + t < n_q; t++) s[(q * TQ + t) * SH_SEG + p * RK + r] = out[r * TQ + t];
        }
      }
    }
  }
}

/* Scores of one query, the first n of the segment, become weights exp(s - m); returns the factor of what was summed before. Lanes past n
 * count as -inf. */
static float soften(float *s, int n, float scale, float *m, float *l) {
  v8 sc = v8_set(scale), top = v8_set(*m);
  for (int j = n; j < SH_SEG && j % 8; j++) s[j] = 0; /* defined, then replaced */
  for (int j = 0; j < n; j += 8) {
    v8 x = _mm256_mul_ps(v8_load(s + j), sc);
    x = _mm256_blendv_ps(v8_set(-INFINITY), x, _mm256_castsi256_ps(v8_mask(n - j)));
    v8_store(s + j, x);
    top = _mm256_max_ps(top, x);
  }
  float max = v8_max(top);
  if (max == -INFINITY) { /* no key counts yet: there is no maximum to subtract */
    memset(s, 0, (size_t)n * sizeof *s);
    return 1.0f;
  }
  v8 sum = v8_zero(), mx = v8_set(max);
  for (int j = 0; j < n; j += 8) {
    v8 x = v8_exp(_mm256_sub_ps(v8_load(s + j), mx));
    v8_store(s + j, x);
    sum = _mm256_add_ps(sum, x);
  }
  float alpha = _mm256_cvtss_f32(v8_exp(v8_set(*m - max)));
  *l = fmaf(*l, alpha, v8_sum(sum));
  *m = max;
  return alpha;
}

/* acc = acc * alpha + sum over j of w[j] v[j], for Q queries and sixteen columns. */
SH_INLINE void values_tile(const int Q, const float *w, const float *alpha, const float *v, int n, float *acc, int stride) {
  v8 a[MAX_Q], b[MAX_Q];
  _Pragma("GCC unroll 6") for (int q = 0; q < Q; q++) {
    a[q] = _mm256_mul_ps(v8_load(acc + q * stride), v8_set(alpha[q]));
    b[q] = _mm256_mul_ps(v8_load(acc + q * stride + 8), v8_set(alpha[q]));
  }
  for (int j = 0; j < n; j++) {
    v8 v0 = v8_load(v + 16 * j), v1 = v8_load(v + 16 * j + 8);
    _Pragma("GCC unroll 6") for (int q = 0; q < Q; q++) {
      v8 x = v8_set(w[q * SH_SEG + j]);
      a[q] = v8_fma(x, v0, a[q]);
      b[q] = v8_fma(x, v1, b[q]);
    }
  }
  _Pragma("GCC unroll 6") for (int q = 0; q < Q; q++) {
    v8_store(acc + q * stride, a[q]);
    v8_store(acc + q * stride + 8, b[q]);
  }
}

static void values_group(int n_q, const float *w, const float *alpha, const float *v, int n, float *acc, int stride) {
  switch (n_q) {
  case 1: values_tile(1, w, alpha, v, n, acc, stride); break;
  case 2: values_tile(2, w, alpha, v, n, acc, stride); break;
  case 3: values_tile(3, w, alpha, v, n, acc, stride); break;
  case 4: values_tile(4, w, alpha, v, n, acc, stride); break;
  case 5: values_tile(5, w, alpha, v, n, acc, stride); break;
  default: values_tile(6, w, alpha, v, n, acc, stride); break;
  }
}

/* Queries [q0, q1), which all see the first n keys. */
static void values(const sh_attn_seg *a, int q0, int q1, int n, const float *w, const float *alpha, const float *v) {
  int stride = sh_attn_stride(a->head_dim);
  for (int c = 0; c < stride; c += 16) {
    for (int q = q0; q < q1; q += MAX_Q)
      values_group(q1 - q < MAX_Q ? q1 - q : MAX_Q, w + q * SH_SEG, alpha + q, v + c * a->n_pos, n, a->acc + q * stride + c, stride);
  }
}

void sh_kern_attn_segment_avx2(const sh_attn_seg *a) {
  int stride = sh_attn_stride(a->head_dim);
  float *k = a->scratch, *v = k + (SH_SEG + 2) * stride, *s = v + SH_SEG * stride, alpha[SH_ATTN_QUERIES];
  if (a->bf16) {
    pack_keys(a, true, k);
    pack_values(a, true, v);
  } else {
    pack_keys(a, false, k);
    pack_values(a, false, v);
  }
  scores(a, k, s);
  for (int t = 0; t < a->n_tok; t++) {
    for (int q = t * a->group; q < (t + 1) * a->group; q++) alpha[q] = soften(s + q * SH_SEG, a->limit[t], a->scale, &a->m[q], &a->l[q]);
  }
  for (int t = 0; t < a->n_tok;) {
    int first = t, n = a->limit[t];
    while (t < a->n_tok && a->limit[t] == n) t++;
    if (n > 0) values(a, first * a->group, t * a->group, n, s, alpha, v);
  }
}

/* --- Between and after segments */

void sh_kern_attn_merge_avx2(int n_q, int head_dim, float *m, float *l, float *acc, const float *m2, const float *l2, const float *acc2) {
  int stride = sh_attn_stride(head_dim);
  for (int q = 0; q < n_q; q++, acc += stride, acc2 += stride) {
    if (m2[q] == -INFINITY) continue;
    float max = m[q] > m2[q] ? m[q] : m2[q];
    v8 f = v8_exp(v8_set(m[q] - max)), f2 = v8_exp(v8_set(m2[q] - max));
    for (int c = 0; c < stride; c += 8) v8_store(acc + c, v8_fma(v8_load(acc2 + c), f2, _mm256_mul_ps(v8_load(acc + c), f)));
    l[q] = fmaf(l2[q], _mm256_cvtss_f32(f2), l[q] * _mm256_cvtss_f32(f));
    m[q] = max;
  }
}

void sh_kern_attn_finish_avx2(int head_dim, float l, const float *acc, float *y) {
  v8 d = v8_set(l);
  for (int c = 0; c < head_dim; c += 8) v8_store_n(y + c, _mm256_div_ps(v8_load(acc + c), d), head_dim - c);
}
