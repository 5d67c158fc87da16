/* Matrix products with few activation rows: decode steps and small batches.
 *
 * A tile is R weight rows times T activation rows, all its accumulators in registers. Weights are read once, straight from the map,
 * converted in registers and used for all T rows. An output's arithmetic is eight lanes along k, one fma per eight weights in order, and
 * the tree of v8_sum4: it does not depend on R, T or on the neighbours, and gemm_avx2.c walks the same chain. More chains per output would
 * hide latency in a single row's product; eight rows at once hide it as well and keep the sum the same everywhere.
 *
 * The tile is one always-inlined function of constants (type, R, T); the table at the end instantiates it. */
#include "kernels/x86/weights_avx2.h"
#include "kernels/x86/x86.h"

#include <math.h>

enum { MAX_T = 4 };

/* Weight rows per tile for T activation rows: R * T accumulators of the 16 registers. */
#define ROWS_OF(T) ((T) <= 3 ? 4 : 3)

void sh_kern_put_avx2(const sh_mm *a, int t, int r, float v) {
  if (a->bias) v += a->bias[r];
  float *y = a->y[t] + a->y0 + r;
  *y = a->scale ? fmaf(a->scale[t], v, *y) : a->add ? *y + v : v;
}

typedef struct tile {
  const sh_wview *v;
  const uint8_t *w[8]; /* R rows; rows past the end repeat the last one and are not stored */
  int64_t row[8];      /* their numbers in v */
  const float *x[MAX_T];
  int64_t k;
  size_t ahead; /* bytes from a row to the one R rows on */
} tile;

/* acc += the vectors of weight row pointers p (at byte `off`) times x at k. */
#define STEP_VEC(LOAD)                                                                                                                     \
  do {                                                                                                                                     \
    v8 w_[8];                                                                                                                              \
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) w_[r] = (LOAD);                                                                    \
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {                                                                                  \
      v8 x_ = v8_load(a->x[t] + k);                                                                                                        \
      _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) acc[r * T + t] = v8_fma(w_[r], x_, acc[r * T + t]);                              \
    }                                                                                                                                      \
    k += 8;                                                                                                                                \
  } while (0)

/* Thirty-two weights of one row at a time: a block's scale stays in a register. */
SH_INLINE void step_row(const sh_dtype type, const tile *a, const int T, const uint8_t *p, w_block b, int64_t k, v8 *acc) {
  v8 w[4];
  w_vecs(type, p, b, w);
  _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) {
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) acc[t] = v8_fma(w[v], v8_load(a->x[t] + k + 8 * v), acc[t]);
  }
}

SH_INLINE void tile_q6_k(const tile *a, const int R, const int T, v8 *acc) {
  int64_t k = 0;
  w_block_q6_k b[8];
  for (size_t off = 0; k < a->k; off += 210) {
    for (int r = 0; r < R; r++) {
      w_open_q6_k(a->w[r] + off, &b[r]);
      for (size_t i = 0; i < 210; i += 64) _mm_prefetch((const char *)a->w[r] + off + a->ahead + i, _MM_HINT_T0);
    }
    for (int v = 0; v < 32; v++) STEP_VEC(w_vec_q6_k(&b[r], v));
  }
}

/* Two runs of 32 weights share their bytes: of each row both are taken before the next row. */
SH_INLINE void tile_k(const sh_dtype type, const tile *a, const int R, const int T, v8 *acc) {
  const size_t step = type == SH_Q4_K ? 144 : 176;
  const bool bytes = type == SH_Q5_K || T > 2; /* two runs of 32 integers in registers are too many beside 12 accumulators */
  w_block_k b[4];
  size_t off = 0;
  for (int64_t k = 0; k < a->k; off += step) {
    for (size_t i = 0; i < R * step; i += 64) _mm_prefetch((const char *)a->w[0] + a->ahead + off * R + i, _MM_HINT_T1);
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) w_open_k(a->w[r] + off, &b[r]);
    _Pragma("GCC unroll 4") for (int pair = 0; pair < 8; pair += 2, k += 64) {
      _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
          w_block run = w_run_k(type, a->w[r] + off, &b[r], pair + i, bytes);
          _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) {
            v8 w = w_vec_k(a->w[r] + off, pair + i, v, run, bytes);
            _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) acc[r * T + t] =
                v8_fma(w, v8_load(a->x[t] + k + 32 * i + 8 * v), acc[r * T + t]);
          }
        }
      }
    }
  }
}

/* The vectors left over by steps of 32, to column `end`; a part of a vector only at the end of the row. b: of each row. */
SH_INLINE void tile_tail(const sh_dtype type, const tile *a, const int R, const int T, int64_t k, int64_t end, const w_block *b, v8 *acc) {
  const size_t one = w_step(type) / 4; /* bytes of eight weights */
  size_t off = (size_t)k / 8 * one;
  for (; k + 8 <= end; off += one) STEP_VEC(w_vec(type, a->w[r] + off, 0, b[r]));
  int n = (int)(end - k);
  if (n == 0) return;
  _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {
    v8 w = w_tail(type, a->w[r] + off, n, b[r]);
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) acc[r * T + t] =
        v8_fma(w, _mm256_maskload_ps(a->x[t] + k, v8_mask(n)), acc[r * T + t]);
  }
}

/* Weights with scales beside them, one group of columns after the other. */
SH_INLINE void tile_groups(const sh_dtype type, const tile *a, const int R, const int T, v8 *acc) {
  const size_t step = w_step(type);
  const int64_t group = a->v->group, n = (a->k + group - 1) / group;
  w_groups g[4];
  int64_t k = 0;
  for (int r = 0; r < R; r++) w_groups_row(type, a->v, a->row[r], &g[r]);
  for (int64_t i = 0; k < a->k; i++) {
    const int j = (int)(i % W_GROUPS);
    int64_t end = a->k - k > group ? k + group : a->k;
    for (int r = 0; j == 0 && r < R; r++) w_groups_at(type, a->v, &g[r], i, n, n);
    w_block b[4];
    _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) b[r] = w_group_block(&g[r], j);
    size_t off = (size_t)k / 8 * (step / 4);
    for (; k + 32 <= end; off += step) {
      _Pragma("GCC unroll 8") for (size_t ahead = 0; ahead < R * step; ahead += 64)
          _mm_prefetch((const char *)a->w[0] + a->ahead + off * R + ahead, _MM_HINT_T1);
      if (T == 1 && type != SH_F8_E4M3) { /* rows side by side, for there is one chain in each */
        STEP_VEC(w_vec(type, a->w[r] + off, 0, b[r]));
        STEP_VEC(w_vec(type, a->w[r] + off, 1, b[r]));
        STEP_VEC(w_vec(type, a->w[r] + off, 2, b[r]));
        STEP_VEC(w_vec(type, a->w[r] + off, 3, b[r]));
        continue;
      }
      _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) step_row(type, a, T, a->w[r] + off, b[r], k, acc + r * T);
      k += 32;
    }
    if (k == end) continue;
    tile_tail(type, a, R, T, k, end, b, acc);
    k = end;
  }
}

SH_INLINE void tile_sum(const sh_dtype type, const tile *a, const int R, const int T, v8 *acc) {
  if (type == SH_Q6_K) return tile_q6_k(a, R, T, acc);
  if (w_is_k(type)) return tile_k(type, a, R, T, acc);
  if (w_has_groups(type)) return tile_groups(type, a, R, T, acc);
  const size_t step = w_step(type);
  const w_block none[8] = {{.d = v8_zero()}};
  int64_t k = 0;
  size_t off = 0;
  for (; k + 32 <= a->k; off += step) {
    _Pragma("GCC unroll 8") for (size_t i = 0; i < R * step; i += 64)
        _mm_prefetch((const char *)a->w[0] + a->ahead + off * R + i, _MM_HINT_T1);
    if (T > 1 && !w_has_blocks(type)) {
      STEP_VEC(w_vec(type, a->w[r] + off, 0, none[0]));
      STEP_VEC(w_vec(type, a->w[r] + off, 1, none[0]));
      STEP_VEC(w_vec(type, a->w[r] + off, 2, none[0]));
      STEP_VEC(w_vec(type, a->w[r] + off, 3, none[0]));
      continue;
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) step_row(type, a, T, a->w[r] + off, w_open(type, a->w[r] + off), k, acc + r * T);
    k += 32;
  }
  if (!w_has_blocks(type)) tile_tail(type, a, R, T, k, a->k, none, acc);
}

/* All weight rows of mm against activation rows [t0, t0 + T). */
SH_INLINE void run_rows(const sh_dtype type, const int T, const sh_mm *mm, int t0, int r0, int r1) {
  const int R = ROWS_OF(T);
  const sh_wview *v = mm->w;
  tile a = {.v = v, .k = v->cols, .ahead = (size_t)R * v->row_bytes};
  for (int t = 0; t < T; t++) a.x[t] = mm->x[t0 + t];
  for (int r = r0; r < r1; r += R) {
    for (int i = 0; i < R; i++) {
      a.row[i] = mm->r0 + (r + i < r1 ? r + i : r1 - 1);
      a.w[i] = v->data + (size_t)a.row[i] * v->row_bytes;
    }
    v8 acc[8 * MAX_T];
    _Pragma("GCC unroll 16") for (int i = 0; i < R * T; i++) acc[i] = v8_zero();
    tile_sum(type, &a, R, T, acc);
    for (int t = 0; t < T; t++) {
      float sum[8];
      v8 z = v8_zero();
      _mm_storeu_ps(sum, v8_sum4(acc[t], acc[T + t], R > 2 ? acc[2 * T + t] : z, R > 3 ? acc[3 * T + t] : z));
      if (R == 8) _mm_storeu_ps(sum + 4, v8_sum4(acc[4 * T + t], acc[5 * T + t], acc[6 * T + t], acc[7 * T + t]));
      for (int i = 0; i < R && r + i < r1; i++) sh_kern_put_avx2(mm, t0 + t, r + i, sum[i]);
    }
  }
}

typedef void rows_fn(const sh_mm *mm, int t0, int r0, int r1);

#define INSTANCE(NAME, TYPE, T)                                                                                                            \
  static void NAME##_##T(const sh_mm *mm, int t0, int r0, int r1) { run_rows(TYPE, T, mm, t0, r0, r1); }
#define INSTANCES(NAME, TYPE)                                                                                                              \
  INSTANCE(NAME, TYPE, 1)                                                                                                                  \
  INSTANCE(NAME, TYPE, 2)                                                                                                                  \
  INSTANCE(NAME, TYPE, 3)                                                                                                                  \
  INSTANCE(NAME, TYPE, 4)                                                                                                                  \
  static rows_fn *const NAME[MAX_T + 1] = {NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4};

INSTANCES(rows_f32, SH_F32)
INSTANCES(rows_f16, SH_F16)
INSTANCES(rows_bf16, SH_BF16)
INSTANCES(rows_q8_0, SH_Q8_0)
INSTANCES(rows_q4_0, SH_Q4_0)
INSTANCES(rows_q4_1, SH_Q4_1)
INSTANCES(rows_q6_k, SH_Q6_K)
INSTANCES(rows_q5_0, SH_Q5_0)
INSTANCES(rows_q5_1, SH_Q5_1)
INSTANCES(rows_q4_k, SH_Q4_K)
INSTANCES(rows_q5_k, SH_Q5_K)
INSTANCES(rows_iq4_nl, SH_IQ4_NL)
INSTANCES(rows_i4, SH_I4)
INSTANCES(rows_i4_f32, W_I4_F32)
INSTANCES(rows_i8, SH_I8)
INSTANCES(rows_u8, SH_U8)
INSTANCES(rows_u8_f32, W_U8_F32)
INSTANCES(rows_f8_e4m3, SH_F8_E4M3)

static rows_fn *const *instances_of(const sh_wview *w) {
  switch (w_type(w)) {
  case SH_F32: return rows_f32;
  case SH_F16: return rows_f16;
  case SH_BF16: return rows_bf16;
  case SH_Q8_0: return rows_q8_0;
  case SH_Q4_0: return rows_q4_0;
  case SH_Q4_1: return rows_q4_1;
  case SH_Q5_0: return rows_q5_0;
  case SH_Q5_1: return rows_q5_1;
  case SH_Q4_K: return rows_q4_k;
  case SH_Q5_K: return rows_q5_k;
  case SH_IQ4_NL: return rows_iq4_nl;
  case SH_I4: return rows_i4;
  case W_I4_F32: return rows_i4_f32;
  case SH_I8: return rows_i8;
  case SH_U8: return rows_u8;
  case W_U8_F32: return rows_u8_f32;
  case SH_F8_E4M3: return rows_f8_e4m3;
  default: return rows_q6_k;
  }
}

/* Activation rows are taken in groups of at most four; a block of weight rows stays in L1 or L2 between the groups. */
void sh_kern_dot_avx2(const sh_mm *a) {
  enum { BLOCK = 12 }; /* a multiple of every ROWS_OF, so that only the last block has repeated rows */
  rows_fn *const *fn = instances_of(a->w);
  for (int r = 0; r < a->n_rows; r += BLOCK) {
    int r1 = r + BLOCK < a->n_rows ? r + BLOCK : a->n_rows;
    for (int t = 0; t < a->n_tok;) {
      int left = a->n_tok - t, groups = (left + MAX_T - 1) / MAX_T, n = (left + groups - 1) / groups;
      fn[n](a, t, r, r1);
      t += n;
    }
  }
}

/* Measured: dot converts weights once per four activation rows, which costs most where the conversion does. */
int sh_kern_dot_tokens_avx2(sh_dtype type) {
  switch (type) {
  case SH_F32:
  case SH_F16:
  case SH_BF16: return 24;
  case SH_Q8_0:
  case SH_Q4_0:
  case SH_Q4_1:
  case SH_I8:
  case SH_U8: return 8;
  case SH_I4:
  case SH_F8_E4M3: return 7;
  case SH_Q6_K: return 3;
  default: return 6;
  }
}
