/* Gated delta rule: convolution and recurrence.
 *
 * Pure functions, any thread. The recurrence keeps a [k_dim, 32] tile of the state in L1. Per token the plain form reads it twice: for S^T
 * k and for the update. Here the update of a token, its output and the next token's S^T k share one pass, so each element is loaded and
 * stored once per token; only a chunk's first token needs a pass of its own, with the same sums in the same order, so cutting a chunk
 * changes nothing. Columns are lanes: no sum crosses them, and a narrow last tile computes what a wide one does. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

/* --- Recurrence on `nv` vectors of columns; the last may be partial (only then is `last` below 8). */

typedef struct scan_step {
  const float *q, *k, *next_k; /* [k_dim]; next_k NULL for the last token */
  float decay;
} scan_step;

SH_INLINE v8 load_cols(const float *p, int v, int nv, int last) { return v + 1 == nv ? v8_load_n(p + 8 * v, last) : v8_load(p + 8 * v); }

SH_INLINE void store_cols(float *p, v8 x, int v, int nv, int last) {
  if (v + 1 == nv) v8_store_n(p + 8 * v, x, last);
  else v8_store(p + 8 * v, x);
}

/* sum over i of k[i] S[i]. */
SH_INLINE void scan_read(const sh_gdn_scan *a, const float *k, const int nv, const int last, v8 *sum) {
  for (int v = 0; v < nv; v++) sum[v] = v8_zero();
  const float *s = a->s;
  for (int i = 0; i < a->k_dim; i++, s += a->n_cols) {
    v8 ki = v8_set(k[i]);
    _Pragma("GCC unroll 4") for (int v = 0; v < nv; v++) sum[v] = v8_fma(ki, load_cols(s, v, nv, last), sum[v]);
  }
}

/* S = decay S + k u^T, out = S^T q, sum = S^T next_k. */
SH_INLINE void scan_update(const sh_gdn_scan *a, const scan_step *st, const v8 *u, const int nv, const int last, v8 *out, v8 *sum) {
  _Pragma("GCC unroll 4") for (int v = 0; v < nv; v++) out[v] = sum[v] = v8_zero();
  v8 g = v8_set(st->decay);
  float *s = a->s;
  for (int i = 0; i < a->k_dim; i++, s += a->n_cols) {
    v8 ki = v8_set(st->k[i]), qi = v8_set(st->q[i]), ni = v8_set(st->next_k[i]);
    _Pragma("GCC unroll 4") for (int v = 0; v < nv; v++) {
      v8 x = v8_fma(ki, u[v], _mm256_mul_ps(g, load_cols(s, v, nv, last)));
      store_cols(s, x, v, nv, last);
      out[v] = v8_fma(qi, x, out[v]);
      sum[v] = v8_fma(ni, x, sum[v]);
    }
  }
}

/* The rows of the token after next: in a batch they lie further apart than the hardware looks ahead. */
SH_INLINE void scan_ahead(const sh_gdn_scan *a, int t) {
  if (t >= a->n_tok) return;
  int64_t at = t * a->qkv_stride;
  for (int i = 0; i < a->k_dim; i += 16) {
    _mm_prefetch((const char *)(a->q + at + i), _MM_HINT_T0);
    _mm_prefetch((const char *)(a->k + at + i), _MM_HINT_T0);
  }
  for (int i = 0; i < a->n_cols; i += 16) _mm_prefetch((const char *)(a->v + at + i), _MM_HINT_T0);
}

SH_INLINE void scan(const sh_gdn_scan *a, const int nv, const int last) {
  v8 sum[4], u[4], out[4];
  scan_read(a, a->k, nv, last, sum);
  for (int t = 0; t < a->n_tok; t++) {
    int64_t at = t * a->qkv_stride, next = t + 1 < a->n_tok ? at + a->qkv_stride : at; /* the last token's sums are not used */
    scan_step st = {.q = a->q + at, .k = a->k + at, .next_k = a->k + next, .decay = a->decay[t * a->g_stride]};
    scan_ahead(a, t + 2);
    v8 beta = v8_set(a->beta[t * a->g_stride]), g = v8_set(st.decay);
    _Pragma("GCC unroll 4") for (int v = 0; v < nv; v++) u[v] =
        _mm256_mul_ps(beta, _mm256_fnmadd_ps(g, sum[v], load_cols(a->v + at, v, nv, last)));
    scan_update(a, &st, u, nv, last, out, sum);
    for (int v = 0; v < nv; v++) store_cols(a->o + t * a->o_stride, out[v], v, nv, last);
  }
}

void sh_kern_gdn_scan_avx2(const sh_gdn_scan *a) {
  switch (a->n_cols) {
  case 32: scan(a, 4, 8); return;
  case 16: scan(a, 2, 8); return;
  default: break;
  }
  int nv = (a->n_cols + 7) / 8, last = a->n_cols - 8 * (nv - 1);
  switch (nv) {
  case 1: scan(a, 1, last); break;
  case 2: scan(a, 2, last); break;
  case 3: scan(a, 3, last); break;
  default: scan(a, 4, last); break;
  }
}

/* --- Convolution. Tokens are the outer loop, as a row is contiguous; the next rows lie further apart than the hardware looks ahead. */

SH_INLINE void conv_row(const float *const *x, int n, const int width, const float *taps, float *y) {
  int c = 0;
  for (; c + 16 <= n; c += 16) {
    v8 a = v8_zero(), b = v8_zero();
    for (int j = 0; j < width; j++) {
      a = v8_fma(v8_load(x[j] + c), v8_load(taps + j * n + c), a);
      b = v8_fma(v8_load(x[j] + c + 8), v8_load(taps + j * n + c + 8), b);
    }
    v8_store(y + c, v8_silu(a));
    v8_store(y + c + 8, v8_silu(b));
  }
  for (; c < n; c += 8) {
    v8 a = v8_zero();
    for (int j = 0; j < width; j++) a = v8_fma(v8_load_n(x[j] + c, n - c), v8_load_n(taps + j * n + c, n - c), a);
    v8_store_n(y + c, v8_silu(a), n - c);
  }
}

void sh_kern_conv_avx2(const float *const *x, int n_tok, int n, int width, const float *taps, float *y, int64_t y_stride) {
  for (int t = 0; t < n_tok; t++, x++, y += y_stride) {
    for (int c = 0; t + 3 < n_tok && c < n; c += 16) _mm_prefetch((const char *)(x[width + 2] + c), _MM_HINT_T0);
    if (width == 4) conv_row(x, n, 4, taps, y);
    else conv_row(x, n, width, taps, y);
  }
}
