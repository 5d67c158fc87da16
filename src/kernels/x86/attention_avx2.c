/* Attention of a tile of queries against one segment of keys.
 *
 * Pure functions, any thread. Scores are dot products with the arithmetic of dot_avx2.c: eight lanes along head_dim, one tree. The weighted
 * sum of values has head_dim in the lanes and keys in order. Both run over keys and values that were expanded to float32 panels once per
 * tile, so bf16 costs one conversion per 64 queries; the few queries of a decode step read the rows themselves and convert in registers,
 * with the same sums. A query's numbers do not depend on the tile: what it may not see is cut off by its own
 * count of keys, not multiplied by zero, so that an infinity in a later token's value cannot reach it. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

#include <math.h>

enum { TQ = 4, RK = 3, MAX_Q = 6, FEW = 8 /* up to this many queries the rows are read as they lie */ };

static int vectors(int d) { return (d + 7) / 8; }

/* --- Panels */

/* Queries in panels of four, [panel][vector][4][8], missing ones repeat the last. */
void sh_kern_attn_pack_avx2(const float *const *q, int n_q, int head_dim, float *out) { sh_kern_pack_avx2(q, n_q, head_dim, out); }

/* The scale of int8 elements 8 i to 8 i + 7. */
SH_INLINE v8 kv_scale(const uint8_t *row, int i, int d) {
  uint16_t h;
  memcpy(&h, row + d + 8 * i / SH_KV_BLOCK * 2, 2);
  return _mm256_castsi256_ps(_mm256_set1_epi32((int)((uint32_t)h << 16)));
}

SH_INLINE v8 of_int8(const uint8_t *p, v8 scale) {
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p))), scale);
}

/* Elements 8 i to 8 i + 7 of a row, all of them within it; scale: theirs when they are int8. */
SH_INLINE v8 kv_scaled(const sh_kv_type type, const uint8_t *row, int i, v8 scale) {
  if (type == SH_KV_F32) return v8_load_f32(row + 32 * i);
  return type == SH_KV_BF16 ? v8_load_bf16(row + 16 * i) : of_int8(row + 8 * i, scale);
}

SH_INLINE v8 kv_load(const sh_kv_type type, const uint8_t *row, int i, int d) {
  return kv_scaled(type, row, i, type == SH_KV_I8 ? kv_scale(row, i, d) : v8_zero());
}

/* The same where the row may end before; then zeros follow. */
SH_INLINE v8 kv_load_end(const sh_kv_type type, const uint8_t *row, int i, int d) {
  int n = d - 8 * i, size = type == SH_KV_F32 ? 4 : type == SH_KV_BF16 ? 2 : 1;
  if (n >= 8) return kv_load(type, row, i, d);
  uint8_t pad[32] = {0};
  memcpy(pad, row + 8 * size * i, (size_t)(n * size));
  if (type == SH_KV_F32) return v8_load_f32(pad);
  return type == SH_KV_BF16 ? v8_load_bf16(pad)
                            : _mm256_blendv_ps(v8_zero(), of_int8(pad, kv_scale(row, i, d)), _mm256_castsi256_ps(v8_mask(n)));
}

/* Keys in panels of three, [panel][vector][3][8]. */
SH_INLINE void pack_keys(const sh_attn_seg *a, const sh_kv_type type, float *out) {
  int nv = vectors(a->head_dim), whole = a->head_dim / 8;
  for (int j = 0; j < (a->n_pos + RK - 1) / RK * RK; j++) {
    const uint8_t *row = a->k[j < a->n_pos ? j : a->n_pos - 1];
    float *p = out + j / RK * nv * 8 * RK + j % RK * 8;
    for (int i = 0; i < whole; i++) v8_store(p + 8 * RK * i, kv_load(type, row, i, a->head_dim));
    if (whole < nv) v8_store(p + 8 * RK * whole, kv_load_end(type, row, whole, a->head_dim));
  }
}

/* Values in panels of sixteen columns, [panel][n_pos][16]: a panel of 4 KB stays in L1 while all queries pass. */
SH_INLINE void pack_values(const sh_attn_seg *a, const sh_kv_type type, float *out) {
  int nv = vectors(a->head_dim), whole = a->head_dim / 8;
  for (int j = 0; j < a->n_pos; j++) {
    const uint8_t *row = a->v[j];
    float *p = out + 16 * j;
    for (int i = 0; i < whole; i++) v8_store(p + i / 2 * 16 * a->n_pos + i % 2 * 8, kv_load(type, row, i, a->head_dim));
    if (whole < nv) v8_store(p + whole / 2 * 16 * a->n_pos + whole % 2 * 8, kv_load_end(type, row, whole, a->head_dim));
    if (nv % 2) v8_store(p + nv / 2 * 16 * a->n_pos + 8, v8_zero());
  }
}

/* --- Scores: s[q][j], four queries x three keys at a time. */

/* Where three keys are read from: a panel, or rows of the cache. */
typedef struct key_source {
  const float *panel;
  const uint8_t *row[RK];
  v8 scale[RK]; /* int8: of the block at hand */
} key_source;

enum { PANELS = -1 }; /* in place of a type: expanded to float32 */

SH_INLINE v8 key_vector(const int type, const key_source *k, int r, int i) {
  return type == PANELS ? v8_load(k->panel + 8 * (RK * i + r)) : kv_scaled((sh_kv_type)type, k->row[r], i, k->scale[r]);
}

/* s [RK][TQ] */
SH_INLINE void score_tile(const int type, const float *q, key_source *k, int d, float *s) {
#define FOR_ROW(t, OP) OP(t, 0) OP(t, 1) OP(t, 2)
#define FOR_ALL(OP) FOR_ROW(0, OP) FOR_ROW(1, OP) FOR_ROW(2, OP) FOR_ROW(3, OP)
#define ZERO(t, r) v8 a##t##r = v8_zero();
#define FMA(t, r) a##t##r = v8_fma(k##r, x, a##t##r);
  int nv = vectors(d);
  FOR_ALL(ZERO)
  for (int i = 0; i < nv; i++, q += 8 * TQ) {
    if (type == SH_KV_I8 && i % (SH_KV_BLOCK / 8) == 0) {
      for (int r = 0; r < RK; r++) k->scale[r] = kv_scale(k->row[r], i, d);
    }
    v8 k0 = key_vector(type, k, 0, i), k1 = key_vector(type, k, 1, i), k2 = key_vector(type, k, 2, i);
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

static void score_panel(const float *q, const float *k, int d, float *s) { score_tile(PANELS, q, &(key_source){.panel = k}, d, s); }

/* out [RK][TQ] of query panel q and key panel p to where they belong. */
static void put_scores(const sh_attn_seg *a, const float *out, int q, int p, float *s) {
  int n_q = a->n_tok * a->group;
  for (int r = 0; r < RK && p * RK + r < a->n_pos; r++) {
    for (int t = 0; t < TQ && q * TQ + t < n_q; t++) s[(q * TQ + t) * SH_SEG + p * RK + r] = out[r * TQ + t];
  }
}

/* Blocks of four query panels, so that they stay in L1 while the keys pass. */
static void scores(const sh_attn_seg *a, const float *k, float *s) {
  int n_q = a->n_tok * a->group, qp = (n_q + TQ - 1) / TQ, kp = (a->n_pos + RK - 1) / RK, nv = vectors(a->head_dim);
  for (int q0 = 0; q0 < qp; q0 += 4) {
    for (int p = 0; p < kp; p++) {
      for (int q = q0; q < qp && q < q0 + 4; q++) {
        float out[RK * TQ];
        score_panel(a->q + q * nv * 8 * TQ, k + p * nv * 8 * RK, a->head_dim, out);
        put_scores(a, out, q, p, s);
      }
    }
  }
}

SH_INLINE void ask_for(const uint8_t *row, int bytes) {
  for (int c = 0; c < bytes; c += 64) _mm_prefetch((const char *)(row + c), _MM_HINT_T1);
}

/* The same from the rows as they lie in the cache, for a few query panels. Meanwhile the rows that come after them are asked for: the
 * values, whose columns of sixteen are no pattern that the hardware follows, and the next segment's keys. */
SH_INLINE void scores_few(const sh_attn_seg *a, const sh_kv_type type, float *s) {
  int qp = (a->n_tok * a->group + TQ - 1) / TQ, nv = vectors(a->head_dim), bytes = (int)sh_kv_row_bytes(type, a->head_dim);
  for (int p = 0; p * RK < a->n_pos; p++) {
    key_source k;
    for (int r = 0; r < RK; r++) {
      int j = p * RK + r < a->n_pos ? p * RK + r : a->n_pos - 1;
      k.row[r] = a->k[j];
      ask_for(a->v[j], bytes);
      if (j < a->n_next) ask_for(a->next[j], bytes);
    }
    for (int q = 0; q < qp; q++) {
      float out[RK * TQ];
      score_tile((int)type, a->q + q * nv * 8 * TQ, &k, a->head_dim, out);
      put_scores(a, out, q, p, s);
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

/* Where values of sixteen columns are read from: a panel, or rows of the cache from column 8 i on. */
typedef struct value_source {
  const float *panel;
  const uint8_t *const *row;
  int i, d;
} value_source;

/* acc = acc * alpha + sum over j of w[j] v[j], for Q queries and sixteen columns. */
SH_INLINE void values_tile(const int Q, const int type, const float *w, const float *alpha, const value_source *v, int n, float *acc,
                           int stride) {
  v8 a[MAX_Q], b[MAX_Q];
  _Pragma("GCC unroll 6") for (int q = 0; q < Q; q++) {
    a[q] = _mm256_mul_ps(v8_load(acc + q * stride), v8_set(alpha[q]));
    b[q] = _mm256_mul_ps(v8_load(acc + q * stride + 8), v8_set(alpha[q]));
  }
  for (int j = 0; j < n; j++) {
    v8 scale = type == SH_KV_I8 ? kv_scale(v->row[j], v->i, v->d) : v8_zero(); /* of both: i is even */
    v8 v0 = type == PANELS ? v8_load(v->panel + 16 * j) : kv_scaled((sh_kv_type)type, v->row[j], v->i, scale);
    v8 v1 = type == PANELS ? v8_load(v->panel + 16 * j + 8) : kv_scaled((sh_kv_type)type, v->row[j], v->i + 1, scale);
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

SH_INLINE void values_group(int n_q, const int type, const float *w, const float *alpha, const value_source *v, int n, float *acc,
                            int stride) {
  switch (n_q) {
  case 1: values_tile(1, type, w, alpha, v, n, acc, stride); break;
  case 2: values_tile(2, type, w, alpha, v, n, acc, stride); break;
  case 3: values_tile(3, type, w, alpha, v, n, acc, stride); break;
  case 4: values_tile(4, type, w, alpha, v, n, acc, stride); break;
  case 5: values_tile(5, type, w, alpha, v, n, acc, stride); break;
  default: values_tile(6, type, w, alpha, v, n, acc, stride); break;
  }
}

/* Queries [q0, q1), which all see the first n keys. v: panels, not looked at for another type. */
SH_INLINE void values(const sh_attn_seg *a, const int type, int q0, int q1, int n, const float *w, const float *alpha, const float *v) {
  int stride = sh_attn_stride(a->head_dim);
  for (int c = 0; c < stride; c += 16) {
    value_source from = {.panel = v + c * a->n_pos, .row = a->v, .i = c / 8, .d = a->head_dim};
    for (int q = q0; q < q1; q += MAX_Q)
      values_group(q1 - q < MAX_Q ? q1 - q : MAX_Q, type, w + q * SH_SEG, alpha + q, &from, n, a->acc + q * stride + c, stride);
  }
}

/* What follows the scores s. */
SH_INLINE void weigh(const sh_attn_seg *a, const int type, float *s, const float *v) {
  float alpha[SH_ATTN_QUERIES];
  for (int t = 0; t < a->n_tok; t++) {
    for (int q = t * a->group; q < (t + 1) * a->group; q++) alpha[q] = soften(s + q * SH_SEG, a->limit[t], a->scale, &a->m[q], &a->l[q]);
  }
  for (int t = 0; t < a->n_tok;) {
    int first = t, n = a->limit[t];
    while (t < a->n_tok && a->limit[t] == n) t++;
    if (n > 0) values(a, type, first * a->group, t * a->group, n, s, alpha, v);
  }
}

static void expand(const sh_attn_seg *a, float *k, float *v) {
  switch (a->kv) {
  case SH_KV_F32: pack_keys(a, SH_KV_F32, k), pack_values(a, SH_KV_F32, v); return;
  case SH_KV_BF16: pack_keys(a, SH_KV_BF16, k), pack_values(a, SH_KV_BF16, v); return;
  case SH_KV_I8: pack_keys(a, SH_KV_I8, k), pack_values(a, SH_KV_I8, v); return;
  }
}

static void segment_few(const sh_attn_seg *a, float *s) {
  switch (a->kv) {
  case SH_KV_F32: scores_few(a, SH_KV_F32, s), weigh(a, SH_KV_F32, s, a->scratch); return;
  case SH_KV_BF16: scores_few(a, SH_KV_BF16, s), weigh(a, SH_KV_BF16, s, a->scratch); return;
  case SH_KV_I8: scores_few(a, SH_KV_I8, s), weigh(a, SH_KV_I8, s, a->scratch); return;
  }
}

void sh_kern_attn_segment_avx2(const sh_attn_seg *a) {
  int stride = sh_attn_stride(a->head_dim);
  float *k = a->scratch, *v = k + (SH_SEG + 2) * stride, *s = v + SH_SEG * stride;
  if (a->n_tok * a->group <= FEW && a->head_dim % 16 == 0) {
    segment_few(a, s);
    return;
  }
  expand(a, k, v);
  scores(a, k, s);
  weigh(a, PANELS, s, v);
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
