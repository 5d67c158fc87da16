/* Matrix products with many activation rows: prompts.
 *
 * A block of 24 weight rows is expanded to float32 once, in panels of three rows; the activations come packed in panels of four. The inner kernel is
 * 4 x 3 outputs, twelve accumulators, over 256 values of k: seven loads for twelve fmas, both panels read in sequence. For k over 256 the twelve
 * accumulators (vectors, not sums) go through memory between blocks of k, so an output is still one chain of eight lanes along k, the one of dot_avx2.c.
 * The usual kernel with outputs in the lanes would need weights transposed, and a sum that a product with one row could not repeat at speed. */
#include "kernels/x86/weights_avx2.h"
#include "kernels/x86/x86.h"

enum {
  T = SH_PACK_STEP,       /* activation rows of a panel */
  R = 3,                  /* weight rows of a panel */
  KB = 32,                /* vectors of k of a block: 256 values; a panel pair is 4 + 3 KB, a block's panels fit L1 and L2 */
  TB = 16,                /* activation rows of a block */
  NP = SH_GEMM_ROWS / R,  /* weight panels of a block */
};

static int64_t vectors(int64_t k) { return (k + 7) / 8; }

/* --- Expanding weights. Vector i goes to out + 8 * stride * i. */

SH_INLINE void expand_type(const sh_dtype type, const uint8_t *p, int64_t k, float *out, const int64_t stride) {
  int64_t i = 0;
  for (; (i + 4) * 8 <= k; i += 4, p += w_step(type)) {
    w_block b = w_open(type, p);
    v8_store(out + 8 * stride * i, w_vec(type, p, 0, b));
    v8_store(out + 8 * stride * (i + 1), w_vec(type, p, 1, b));
    v8_store(out + 8 * stride * (i + 2), w_vec(type, p, 2, b));
    v8_store(out + 8 * stride * (i + 3), w_vec(type, p, 3, b));
  }
  if (w_has_blocks(type)) return;
  w_block none = {.d = v8_zero(), .m = v8_zero()};
  for (; (i + 1) * 8 <= k; i++, p += type == SH_F32 ? 32 : 16) v8_store(out + 8 * stride * i, w_vec(type, p, 0, none));
  if (i * 8 < k) v8_store(out + 8 * stride * i, w_tail(type, p, (int)(k - i * 8)));
}

static void expand_q6_k(const uint8_t *p, int64_t k, float *out, int64_t stride) {
  for (int64_t i = 0; i * 8 < k; i += 32, p += 210) {
    float d = w_scale_q6_k(p);
    for (int v = 0; v < 32; v++) v8_store(out + 8 * stride * (i + v), w_vec_q6_k(p, v, d));
  }
}

/* Whole vectors are written: a row's last one is padded with zeros. */
static void expand(sh_dtype type, const uint8_t *p, int64_t k, float *out, int64_t stride) {
  switch (type) {
  case SH_F32: expand_type(SH_F32, p, k, out, stride); break;
  case SH_F16: expand_type(SH_F16, p, k, out, stride); break;
  case SH_BF16: expand_type(SH_BF16, p, k, out, stride); break;
  case SH_Q8_0: expand_type(SH_Q8_0, p, k, out, stride); break;
  case SH_Q4_0: expand_type(SH_Q4_0, p, k, out, stride); break;
  case SH_Q4_1: expand_type(SH_Q4_1, p, k, out, stride); break;
  default: expand_q6_k(p, k, out, stride); break;
  }
}

void sh_kern_dequant_avx2(sh_dtype type, const uint8_t *row, int64_t k0, int64_t n, float *y) {
  size_t off = type == SH_Q6_K ? (size_t)k0 / 256 * 210 : w_has_blocks(type) ? (size_t)k0 / 32 * w_step(type) : (size_t)k0 * (type == SH_F32 ? 4 : 2);
  int64_t whole = n & ~(int64_t)7;
  expand(type, row + off, whole, y, 1);
  if (whole == n) return;
  v8 last = w_tail(type, row + off + (size_t)whole * (type == SH_F32 ? 4 : 2), (int)(n - whole));
  v8_store_n(y + whole, last, (int)(n - whole));
}

/* --- Packing activations: panel p holds rows 4p .. 4p + 3 as [vector][row][8]; missing rows repeat the last one. */

size_t sh_kern_pack_floats_avx2(int64_t n_tok, int64_t k) { return (size_t)((n_tok + T - 1) / T * T) * (size_t)vectors(k) * 8; }

void sh_kern_pack_avx2(const float *const *x, int n_tok, int64_t k, float *out) {
  int64_t nv = vectors(k), whole = k / 8;
  for (int t0 = 0; t0 < n_tok; t0 += T, out += nv * 8 * T) {
    const float *p[T];
    for (int t = 0; t < T; t++) p[t] = x[t0 + t < n_tok ? t0 + t : n_tok - 1];
    for (int64_t i = 0; i < whole; i++) {
      for (int t = 0; t < T; t++) v8_store(out + (i * T + t) * 8, v8_load(p[t] + 8 * i));
    }
    for (int t = 0; t < T && whole < nv; t++) v8_store(out + (whole * T + t) * 8, v8_load_n(p[t] + 8 * whole, (int)(k - 8 * whole)));
  }
}

/* --- The product. */

/* acc[12] (4 x 3 vectors) += n vectors of a panel pair; first: starts at zero. */
static void panel_step(const float *x, const float *w, int64_t n, bool first, float *acc) {
#define ACC(t, r) a##t##r
#define FOR_ROW(t, OP) OP(t, 0) OP(t, 1) OP(t, 2)
#define FOR_ALL(OP) FOR_ROW(0, OP) FOR_ROW(1, OP) FOR_ROW(2, OP) FOR_ROW(3, OP)
#define LOAD(t, r) v8 ACC(t, r) = first ? v8_zero() : v8_load(acc + 8 * (t * R + r));
#define STORE(t, r) v8_store(acc + 8 * (t * R + r), ACC(t, r));
#define FMA(t, r) ACC(t, r) = v8_fma(w##r, xt, ACC(t, r));
  FOR_ALL(LOAD)
  for (int64_t i = 0; i < n; i++, x += 8 * T, w += 8 * R) {
    v8 w0 = v8_load(w), w1 = v8_load(w + 8), w2 = v8_load(w + 16);
    v8 xt = v8_load(x);
    FOR_ROW(0, FMA)
    xt = v8_load(x + 8);
    FOR_ROW(1, FMA)
    xt = v8_load(x + 16);
    FOR_ROW(2, FMA)
    xt = v8_load(x + 24);
    FOR_ROW(3, FMA)
  }
  FOR_ALL(STORE)
}

/* Sums of a panel pair's accumulators into the outputs that exist. */
static void panel_put(const sh_mm *a, const float *acc, int t0, int r0) {
  for (int t = 0; t < T && t0 + t < a->n_tok; t++) {
    const float *p = acc + 8 * R * t;
    float sum[4];
    _mm_storeu_ps(sum, v8_sum4(v8_load(p), v8_load(p + 8), v8_load(p + 16), v8_zero()));
    for (int r = 0; r < R && r0 + r < a->n_rows; r++) sh_kern_put_avx2(a, t0 + t, r0 + r, sum[r]);
  }
}

/* Weight rows [r0, r0 + n) as panels [panel][vector][3][8]. */
static void expand_panels(const sh_mm *a, int r0, int n, float *out) {
  int64_t nv = vectors(a->k);
  for (int r = 0; r < n; r++) {
    const uint8_t *row = a->w + (size_t)(r0 + r < a->n_rows ? r0 + r : a->n_rows - 1) * a->row_bytes;
    expand(a->type, row, a->k, out + r / R * nv * 8 * R + r % R * 8, R);
  }
}

size_t sh_kern_gemm_floats_avx2(int64_t k) { return (size_t)SH_GEMM_ROWS * (size_t)vectors(k) * 8; }

void sh_kern_gemm_avx2(const sh_mm *a) {
  int64_t nv = vectors(a->k);
  float acc[NP * (TB / T) * T * R * 8] __attribute__((aligned(64)));
  for (int r0 = 0; r0 < a->n_rows; r0 += SH_GEMM_ROWS) {
    int rows = a->n_rows - r0 < SH_GEMM_ROWS ? a->n_rows - r0 : SH_GEMM_ROWS, np = (rows + R - 1) / R;
    expand_panels(a, r0, np * R, a->scratch);
    for (int t0 = 0; t0 < a->n_tok; t0 += TB) {
      int tp = ((a->n_tok - t0 < TB ? a->n_tok - t0 : TB) + T - 1) / T;
      for (int64_t v = 0; v < nv; v += KB) {
        int64_t n = nv - v < KB ? nv - v : KB;
        for (int p = 0; p < np; p++) {
          for (int t = 0; t < tp; t++)
            panel_step(a->packed + (t0 / T + t) * nv * 8 * T + v * 8 * T, a->scratch + p * nv * 8 * R + v * 8 * R, n, v == 0, acc + (p * TB / T + t) * T * R * 8);
        }
      }
      for (int p = 0; p < np; p++) {
        for (int t = 0; t < tp; t++) panel_put(a, acc + (p * TB / T + t) * T * R * 8, t0 + t * T, r0 + p * R);
      }
    }
  }
}
