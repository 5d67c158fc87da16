/* The arithmetic of the CPU backend: pure functions on arrays. No allocation, no globals, any thread; scratch comes from the caller.
 *
 * sh_kernels is a table of functions, filled with the plain C references first and then overwritten by what the machine allows. Inside one
 * table a row's result does not depend on how many rows a call has, on the split into calls or on alignment (docs/numerics.md): each output
 * of a matrix product has one chain of sums along k, and dot (few rows) and gemm (many) walk the same one; attention goes over keys in
 * segments of SH_SEG positions; columns of the delta rule are independent. Two tables (plain C, AVX2) may differ in the last bits.
 *
 * The function types below are declared once and name the references and the variants: sh_k_dot sh_kern_dot_ref, sh_kern_dot_avx2. */
#ifndef SH_KERNELS_KERNELS_H
#define SH_KERNELS_KERNELS_H

#include "base/err.h"
#include "formats/kv.h"
#include "formats/panel.h"

enum {
  SH_SEG = 64,          /* positions of an attention segment; segment s holds positions [64 s, 64 s + 64) */
  SH_SPAN = 1024,       /* positions whose segments are merged one after the other; the spans of a context are merged in order */
  SH_ATTN_QUERIES = 64, /* most queries of one attention tile */
  SH_GDN_TILE = 32,     /* columns of a state tile: [k_dim, 32] float32 stays in L1 */
  SH_CONV_MAX = 16,     /* widest convolution */
  SH_PACK_STEP = 4,     /* packing may be cut at multiples of this many rows */
  SH_GEMM_ROWS = 24,    /* weight rows that gemm takes through its scratch at a time */
  SH_GEMM_TOKENS = 512, /* most activation rows of a gemm call */
  SH_QPACK_BLOCK = SH_PANEL_BLOCK + 4, /* bytes of a block of a packed row */
  SH_QMM_ROWS = 2 * SH_PANEL_ROWS,     /* qmm takes weight rows in these steps */
  SH_QMM_FLOATS = 12 * 1024,           /* scratch of qmm */
};

/* y[t][r] for weight rows r in [0, n_rows) and activation rows t in [0, n_tok):
 *   v = sum over k of w[r][k] x[t][k], plus bias[r] if there is one;
 *   y[t][r] = scale ? fma(scale[t], v, y[t][r]) : add ? y[t][r] + v : v. */
typedef struct sh_mm {
  const sh_wview *w; /* as weight_bind checked it; k = w->cols. Its perm is not looked at: x comes in the order of the stored columns */
  int64_t r0;        /* weight row 0 is row r0 of w */
  int n_rows;
  int n_tok;
  const float *const *x;   /* dot: [n_tok] rows of k floats */
  const float *packed;     /* gemm: what pack made of the n_tok rows */
  const uint8_t *const *q; /* qmm: [n_tok] rows as qpack left them */
  float *const *y;         /* [n_tok] rows */
  int64_t y0;              /* column of y that weight row 0 goes to */
  const float *bias;       /* [n_rows] or NULL */
  const float *scale;      /* [n_tok] or NULL */
  bool add;
  float *scratch; /* gemm: gemm_floats(k) floats, 64-byte aligned; qmm: SH_QMM_FLOATS */
} sh_mm;

/* One tile of queries against one segment of keys. A tile holds n_tok consecutive tokens of `group` heads that share a key head; query i =
 * token * group + head. */
typedef struct sh_attn_seg {
  int n_tok, group; /* n_tok * group <= SH_ATTN_QUERIES */
  int head_dim;
  float scale;                        /* of q.k */
  const float *q;                     /* queries as attn_pack left them */
  sh_kv_type kv;                      /* of keys and values */
  int n_pos;                          /* keys in the segment, 1..SH_SEG */
  const uint8_t *const *k, *const *v; /* [n_pos] rows as formats/kv.h has them */
  const uint8_t *const *next;         /* [n_next] keys of the segment after this one: their memory may be asked for early */
  int n_next;                         /* 0..n_pos */
  const int *limit;                   /* [n_tok] keys that a token may see, 0..n_pos, ascending */
  float *m, *l;                       /* [n_tok * group] running maximum and sum */
  float *acc;                         /* [n_tok * group, sh_attn_stride(head_dim)] running weighted values */
  float *scratch;                     /* sh_attn_scratch_floats(head_dim), 64-byte aligned */
} sh_attn_seg;

/* One column tile of one head's state over the tokens of a chunk. For each token t:
 *   u = beta[t] (v[t] - decay[t] S^T k[t]);  S = decay[t] S + k[t] u^T;  o[t] = S^T q[t]. */
typedef struct sh_gdn_scan {
  float *s;          /* [k_dim, n_cols], contiguous */
  int k_dim, n_cols; /* n_cols <= SH_GDN_TILE */
  int n_tok;
  const float *q, *k; /* row t at + t * qkv_stride, k_dim floats */
  const float *v;     /* row t at + t * qkv_stride, n_cols floats */
  int64_t qkv_stride;
  const float *decay, *beta; /* element t at + t * g_stride */
  int64_t g_stride;
  float *o; /* row t at + t * o_stride, n_cols floats */
  int64_t o_stride;
} sh_gdn_scan;

/* Weights of stored columns [k0, k0 + n) of a row as float32; k0 a multiple of the block (types with groups: of 8), n too or up to the end
 * of the row. The values that every product uses. */
typedef void sh_k_dequant(const sh_wview *w, int64_t row, int64_t k0, int64_t n, float *y);
typedef void sh_k_dot(const sh_mm *a);
typedef int sh_k_dot_tokens(sh_dtype type); /* up to this many rows dot is the faster one */
typedef void sh_k_gemm(const sh_mm *a);
/* Rows x[0..n_tok) of k floats in gemm's order. Rows from a multiple of SH_PACK_STEP on start at out + pack_floats(row, k). */
typedef void sh_k_pack(const float *const *x, int n_tok, int64_t k, float *out);
typedef size_t sh_k_pack_floats(int64_t n_tok, int64_t k);
typedef size_t sh_k_gemm_floats(int64_t k);

/* The integer product with panels, as formats/panel.h defines it. qpack turns a row of w->cols floats, in the order of the inputs (perm is
 * applied here), into sh_qpack_bytes(w) bytes at any address that 4 divides: of each block 32 x int8 and float d; then float u of each
 * group. The result serves every view with the same cols, group and perm. qmm: dot's contract on rows of panels; r0 a multiple of
 * SH_PANEL_ROWS, of `x` and `packed` it looks at neither. */
typedef void sh_k_qpack(const sh_wview *w, const float *x, uint8_t *out);
typedef void sh_k_qmm(const sh_mm *a);

typedef void sh_k_exp(const float *x, int n, float *y);                                   /* y may be x */
typedef void sh_k_rmsnorm(const float *x, const float *gain, float eps, int n, float *y); /* one row; gain NULL = 1; y may be x */
typedef void sh_k_swiglu(const float *gate, const float *up, int n, float *y);            /* y = silu(gate) up; y may be either */
typedef void sh_k_sigmoid_mul(const float *gate, int n, float *y);                        /* y *= sigmoid(gate) */
/* Rotates the first 2 * half dims of a head, pairs (i, i + half) or (2i, 2i + 1); cs, sn [half]. */
typedef void sh_k_rope(float *x, int half, bool interleaved, const float *cs, const float *sn);
typedef void sh_k_to_bf16(const float *x, int n, uint8_t *y); /* round to nearest even */
typedef void sh_k_to_kv8(const float *x, int n, uint8_t *y);  /* a row of int8 keys or values, sh_kv_row_bytes(SH_KV_I8, n) */

/* Query rows (pointers to head_dim floats) in attn_segment's order: at most sh_attn_pack_floats. */
typedef void sh_k_attn_pack(const float *const *q, int n_q, int head_dim, float *out);
typedef void sh_k_attn_segment(const sh_attn_seg *a);
/* Merges a later span (m2, l2, acc2) into (m, l, acc), n_q queries. A query that saw nothing has m = -inf, l = 0, acc = 0. */
typedef void sh_k_attn_merge(int n_q, int head_dim, float *m, float *l, float *acc, const float *m2, const float *l2, const float *acc2);
typedef void sh_k_attn_finish(int head_dim, float l, const float *acc, float *y); /* y = acc / l, one query */

/* Causal depthwise convolution and SiLU of n channels over n_tok rows. x [width - 1 + n_tok]: the inputs, those before the first row first.
 * taps [width, n], oldest first. Row t goes to y + t * y_stride. */
typedef void sh_k_conv(const float *const *x, int n_tok, int n, int width, const float *taps, float *y, int64_t y_stride);
typedef void sh_k_l2norm(float *x, int n, float scale); /* x *= scale / sqrt(sum x^2 + 1e-6), one head */
typedef void sh_k_gdn_gates(const float *a, const float *b, const float *neg_exp_a, const float *dt_bias, int n, float *decay, float *beta);
typedef void sh_k_gdn_scan(const sh_gdn_scan *a);
typedef void sh_k_gdn_out(const float *z, const float *gain, float eps, int n, float *o); /* o = rmsnorm(o) gain silu(z), one head */

/* The top_k largest of logits [n_experts] (ties to the lower index), by ascending index, with the softmax over all experts renormalised to
 * sum 1 over them. */
typedef void sh_k_route(const float *logits, int n_experts, int top_k, int *index, float *weight);

typedef struct sh_kernels {
  const char *name; /* "plain C", "AVX2+FMA" */
  sh_k_dequant *dequant;
  sh_k_dot *dot;
  sh_k_dot_tokens *dot_tokens;
  sh_k_gemm *gemm;
  sh_k_pack *pack;
  sh_k_pack_floats *pack_floats;
  sh_k_gemm_floats *gemm_floats;
  sh_k_qpack *qpack;
  sh_k_qmm *qmm;
  sh_k_exp *exp;
  sh_k_rmsnorm *rmsnorm;
  sh_k_swiglu *swiglu;
  sh_k_sigmoid_mul *sigmoid_mul;
  sh_k_rope *rope;
  sh_k_to_bf16 *to_bf16;
  sh_k_to_kv8 *to_kv8;
  sh_k_attn_pack *attn_pack;
  sh_k_attn_segment *attn_segment;
  sh_k_attn_merge *attn_merge;
  sh_k_attn_finish *attn_finish;
  sh_k_conv *conv;
  sh_k_l2norm *l2norm;
  sh_k_gdn_gates *gdn_gates;
  sh_k_gdn_scan *gdn_scan;
  sh_k_gdn_out *gdn_out;
  sh_k_route *route;
} sh_kernels;

/* Instruction sets of this machine that the system also saves and restores. */
enum { SH_CPU_AVX2 = 1 }; /* AVX2, FMA, F16C and BMI2 together */
unsigned sh_kernels_detect(void);

void sh_kernels_init_ref(sh_kernels *k);
void sh_kernels_init_x86(sh_kernels *k, unsigned flags); /* overwrites what the flags allow */
/* cpu: NULL or "native" (the best there is), "avx2" (that, or an error), "baseline" (plain C). */
int sh_kernels_init(sh_kernels *k, const char *cpu, sh_error *e);

size_t sh_qpack_bytes(const sh_wview *w); /* of a packed row, a multiple of 64 */
size_t sh_qpack_most(int64_t cols);       /* at most, for any panels of that many columns */
int sh_attn_stride(int head_dim);         /* floats of a query's accumulator: head_dim rounded up to 16 */
size_t sh_attn_pack_floats(int head_dim); /* for SH_ATTN_QUERIES queries */
size_t sh_attn_scratch_floats(int head_dim);

#endif
