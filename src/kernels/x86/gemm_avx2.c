/* Matrix products with many activation rows: prompts and larger batches.
 *
 * Weight rows are taken 24 at a time and expanded to float32 into a scratch, in panels of three rows; the activations come packed in panels
 * of four. The inner kernel is 4 x 3 outputs, twelve accumulators, over 512 values of k: seven loads for twelve fmas, both panels read in
 * sequence. Between blocks of k the accumulators (vectors, not sums) go through memory, so an output is one chain of eight lanes along k,
 * the one of dot_avx2.c. With many activation rows whole weight rows are expanded and 16 activation rows at a time pass over them,
 * accumulators in L1. With few, expanding would be a large share, so only 512 values of k are expanded, stay near and are used by all
 * activation rows before the next. Either way the weights that come next are prefetched between the inner kernels, which hides memory
 * behind the products. The usual kernel with outputs in the lanes would need weights transposed, and a sum that a product with one row
 * could not repeat at speed. */
#include "kernels/x86/put_avx2.h"
#include "kernels/x86/weights_avx2.h"
#include "kernels/x86/x86.h"

enum {
  T = SH_PACK_STEP,      /* activation rows of a panel */
  R = 3,                 /* weight rows of a panel */
  KB = 64,               /* vectors of k of a block: 512 values, whole blocks of every type */
  TB = 4,                /* activation panels that pass together over whole rows */
  FEW = 64,              /* up to this many activation rows weights are expanded by blocks of k */
  NP = SH_GEMM_ROWS / R, /* weight panels of a block */
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
  w_block none = {.d = v8_zero()};
  for (; (i + 1) * 8 <= k; i++, p += w_step(type) / 4) v8_store(out + 8 * stride * i, w_vec(type, p, 0, none));
  if (i * 8 < k) v8_store(out + 8 * stride * i, w_tail(type, p, (int)(k - i * 8), none));
}

SH_INLINE void expand_k(const sh_dtype type, const uint8_t *p, int64_t k, float *out, const int64_t stride) {
  for (int64_t i = 0; i * 8 < k; p += type == SH_Q4_K ? 144 : 176) {
    w_block_k b;
    w_open_k(p, &b);
    _Pragma("GCC unroll 8") for (int r = 0; r < 8; r++, i += 4) {
      w_block run = w_run_k(type, p, &b, r, type == SH_Q5_K);
      _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) v8_store(out + 8 * stride * (i + v), w_vec_k(p, r, v, run, type == SH_Q5_K));
    }
  }
}

/* Columns [k0, k0 + k) of a row of groups; k0 a multiple of 8. */
SH_INLINE void expand_groups(const sh_dtype type, const sh_wview *w, int64_t row, int64_t k0, int64_t k, float *out, const int64_t stride) {
  const size_t one = w_step(type) / 4; /* bytes of eight weights */
  const uint8_t *p = w->data + (size_t)row * w->row_bytes + (size_t)k0 / 8 * one;
  const int64_t last = k0 + k, n = (w->cols + w->group - 1) / w->group, stop = (last + w->group - 1) / w->group;
  w_groups groups;
  w_groups_row(type, w, row, &groups);
  for (int64_t g = k0 / w->group, g0 = g; k0 < last; g++) {
    int64_t end = (g + 1) * w->group < last ? (g + 1) * w->group : last;
    if ((g - g0) % W_GROUPS == 0) w_groups_at(type, w, &groups, g, stop, n);
    w_block b = w_group_block(&groups, (int)((g - g0) % W_GROUPS));
    for (; k0 + 32 <= end; k0 += 32, p += 4 * one, out += 32 * stride) {
      v8 v[4];
      w_vecs(type, p, b, v);
      for (int i = 0; i < 4; i++) v8_store(out + 8 * stride * i, v[i]);
    }
    for (; k0 + 8 <= end; k0 += 8, p += one, out += 8 * stride) v8_store(out, w_vec(type, p, 0, b));
    if (k0 == end) continue;
    v8_store(out, w_tail(type, p, (int)(end - k0), b));
    k0 = end;
  }
}

static void expand_q6_k(const uint8_t *p, int64_t k, float *out, int64_t stride) {
  for (int64_t i = 0; i * 8 < k; i += 32, p += 210) {
    w_block_q6_k b;
    w_open_q6_k(p, &b);
    for (int v = 0; v < 32; v++) v8_store(out + 8 * stride * (i + v), w_vec_q6_k(&b, v));
  }
}

/* Bytes of the first k weights of a row. */
static size_t offset_of(sh_dtype type, int64_t k) {
  return (size_t)((k + sh_dtype_block(type) - 1) / sh_dtype_block(type)) * (size_t)sh_dtype_block_bytes(type);
}

/* Columns [k0, k0 + k) of a row. Whole vectors are written: a row's last one is padded with zeros. */
static void expand(const sh_wview *w, int64_t row, int64_t k0, int64_t k, float *out, int64_t stride) {
  const uint8_t *p = w->data + (size_t)row * w->row_bytes + offset_of(w->type, k0);
  switch (w_type(w)) {
  case SH_F32: expand_type(SH_F32, p, k, out, stride); break;
  case SH_F16: expand_type(SH_F16, p, k, out, stride); break;
  case SH_BF16: expand_type(SH_BF16, p, k, out, stride); break;
  case SH_Q8_0: expand_type(SH_Q8_0, p, k, out, stride); break;
  case SH_Q4_0: expand_type(SH_Q4_0, p, k, out, stride); break;
  case SH_Q4_1: expand_type(SH_Q4_1, p, k, out, stride); break;
  case SH_Q5_0: expand_type(SH_Q5_0, p, k, out, stride); break;
  case SH_Q5_1: expand_type(SH_Q5_1, p, k, out, stride); break;
  case SH_IQ4_NL: expand_type(SH_IQ4_NL, p, k, out, stride); break;
  case SH_Q4_K: expand_k(SH_Q4_K, p, k, out, stride); break;
  case SH_Q5_K: expand_k(SH_Q5_K, p, k, out, stride); break;
  case SH_I4: expand_groups(SH_I4, w, row, k0, k, out, stride); break;
  case W_I4_F32: expand_groups(W_I4_F32, w, row, k0, k, out, stride); break;
  case SH_I8: expand_groups(SH_I8, w, row, k0, k, out, stride); break;
  case SH_U8: expand_groups(SH_U8, w, row, k0, k, out, stride); break;
  case W_U8_F32: expand_groups(W_U8_F32, w, row, k0, k, out, stride); break;
  case SH_F8_E4M3: expand_groups(SH_F8_E4M3, w, row, k0, k, out, stride); break;
  default: expand_q6_k(p, k, out, stride); break;
  }
}

void sh_kern_dequant_avx2(const sh_wview *w, int64_t row, int64_t k0, int64_t n, float *y) {
  int64_t whole = n & ~(int64_t)7;
  float last[8];
  expand(w, row, k0, whole, y, 1);
  if (whole == n) return;
  expand(w, row, k0 + whole, n - whole, last, 1);
  memcpy(y + whole, last, (size_t)(n - whole) * sizeof *y);
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

/* Values [k0, k0 + n) of weight rows [r0, r0 + rows) as panels [panel][vector][3][8] of nv vectors; rows past the end repeat the last one.
 */
static void expand_panels(const sh_mm *a, int r0, int rows, int64_t k0, int64_t n, int64_t nv, float *out) {
  for (int r = 0; r < rows; r++)
    expand(a->w, a->r0 + (r0 + r < a->n_rows ? r0 + r : a->n_rows - 1), k0, n, out + (r / R * nv * R + r % R) * 8, R);
}

/* Bytes of the weight rows that come next, asked for a few lines at a time and in the order of memory: all at once they would fill the
 * queues and hold up the products, and in the order of use (pieces of rows) memory delivers half as fast. */
typedef struct ahead {
  const uint8_t *p, *end;
  size_t per_step; /* bytes */
} ahead;

static ahead ahead_of(const sh_mm *a, int r0, int rows, int64_t steps) {
  if (r0 >= a->n_rows) return (ahead){0};
  if (rows > a->n_rows - r0) rows = a->n_rows - r0;
  const uint8_t *p = a->w->data + (size_t)(a->r0 + r0) * a->w->row_bytes;
  size_t len = (size_t)(rows - 1) * a->w->row_bytes + offset_of(a->w->type, a->w->cols);
  return (ahead){.p = p, .end = p + len, .per_step = (len / 64 / (size_t)steps + 1) * 64};
}

SH_INLINE void ahead_step(ahead *h) {
  const uint8_t *stop = h->per_step < (size_t)(h->end - h->p) ? h->p + h->per_step : h->end;
  for (; h->p < stop; h->p += 64) _mm_prefetch((const char *)h->p, _MM_HINT_T1);
  h->p = stop;
}

/* The weights at hand: np panels of values [k0, k0 + 8 n) of rows r0.., as expand_panels left them. */
typedef struct chunk {
  const float *w;
  int r0, np;
  int64_t v0, n; /* vectors */
} chunk;

/* Activation panels [t0, t1) over the chunk; acc [t1 - t0][NP][12][8]. */
static void run_panels(const sh_mm *a, const chunk *c, int t0, int t1, float *acc, ahead *next) {
  int64_t nv = vectors(a->w->cols);
  for (int64_t v = 0; v < c->n; v += KB) {
    int64_t n = c->n - v < KB ? c->n - v : KB;
    for (int t = t0; t < t1; t++) {
      for (int p = 0; p < c->np; p++) {
        panel_step(a->packed + (t * nv + c->v0 + v) * 8 * T, c->w + (p * c->n + v) * 8 * R, n, c->v0 + v == 0,
                   acc + ((t - t0) * NP + p) * T * R * 8);
        ahead_step(next);
      }
    }
  }
}

/* The accumulators' sums into the outputs that exist. */
static void put_panels(const sh_mm *a, const chunk *c, int t0, int t1, const float *acc) {
  for (int t = t0 * T; t < t1 * T && t < a->n_tok; t++) {
    const float *p = acc + ((t / T - t0) * NP * T + t % T) * R * 8;
    for (int r = 0; r < c->np * R && c->r0 + r < a->n_rows; r += 8) {
      v8 v[8];
      for (int i = 0; i < 8; i++) v[i] = v8_load(p + ((r + i) / R * T * R + (r + i) % R) * 8);
      put8(a, t, c->r0 + r, v8_sum8(v));
    }
  }
}

enum { ACC_FLOATS = FEW / T * NP * T * R * 8 };

/* Scratch: accumulators, then the expanded weights. */
size_t sh_kern_gemm_floats_avx2(int64_t k) { return ACC_FLOATS + (size_t)SH_GEMM_ROWS * (size_t)vectors(k) * 8; }

/* Weight rows of a block: fewer when 24 of them would leave L2 no room for the next. */
static int block_rows(const sh_mm *a, bool few) {
  int rows = SH_GEMM_ROWS;
  while (few && rows > 6 && (size_t)rows * a->w->row_bytes > 256 * 1024) rows /= 2;
  return rows;
}

void sh_kern_gemm_avx2(const sh_mm *a) {
  bool few = a->n_tok <= FEW;
  float *acc = a->scratch, *w = acc + ACC_FLOATS;
  int64_t nv = vectors(a->w->cols), step = few && nv > KB ? KB : nv;
  int tp = (a->n_tok + T - 1) / T, block = block_rows(a, few);
  for (int r0 = 0; r0 < a->n_rows; r0 += block) {
    int rows = a->n_rows - r0 < block ? a->n_rows - r0 : block;
    chunk c = {.w = w, .r0 = r0, .np = (rows + R - 1) / R};
    ahead next = ahead_of(a, r0 + block, block, (int64_t)tp * c.np * ((nv + KB - 1) / KB));
    for (c.v0 = 0; c.v0 < nv; c.v0 += step) {
      c.n = nv - c.v0 < step ? nv - c.v0 : step;
      int64_t n = a->w->cols - c.v0 * 8 < c.n * 8 ? a->w->cols - c.v0 * 8 : c.n * 8;
      expand_panels(a, r0, c.np * R, c.v0 * 8, n, c.n, w);
      if (few) run_panels(a, &c, 0, tp, acc, &next);
      for (int t = 0; !few && t < tp; t += TB) {
        int t1 = t + TB < tp ? t + TB : tp;
        run_panels(a, &c, t, t1, acc, &next);
        put_panels(a, &c, t, t1, acc);
      }
    }
    if (few) put_panels(a, &c, 0, tp, acc);
  }
}
