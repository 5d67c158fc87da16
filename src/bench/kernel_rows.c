/* Speeds of single kernels on arrays that stay in the first caches, on the calling thread, timed by its own clock: what a call costs when
 * memory does not matter. Shares are of one thread's fp32 peak, and only for those that are all multiply-adds. */
#include "bench/fill.h"
#include "bench/kernel_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
  N = 4096,
  D = 256,
  GDN_TOK = 64,
  GDN_K = 128,
  CONV_TOK = 64,
  CONV_WIDTH = 4,
  CONV_N = 128,
  EXPERTS = 128,
  CHOSEN = 8,
  PACK_ROWS = 8
};

/* Everything that the kernels below work on. */
typedef struct arrays {
  float x[N], y[N], z[N], gain[N], big[N]; /* big: 100 everywhere, whose sigmoid is 1 */
  uint8_t halves[2 * N];
  float q[SH_ATTN_QUERIES * D], keys[SH_SEG * D], values[SH_SEG * D];
  float m[SH_ATTN_QUERIES], l[SH_ATTN_QUERIES], acc[SH_ATTN_QUERIES * D], acc2[SH_ATTN_QUERIES * D];
  float state[GDN_K * SH_GDN_TILE], qkv[GDN_TOK * 3 * GDN_K], gates[2 * GDN_TOK], out[GDN_TOK * SH_GDN_TILE];
  float conv_x[(CONV_WIDTH - 1 + CONV_TOK) * CONV_N], conv_y[CONV_TOK * CONV_N], conv_w[CONV_N * CONV_WIDTH];
  float pack_in[PACK_ROWS * N];
  const float *rows[SH_ATTN_QUERIES];
  const uint8_t *k_rows[SH_SEG], *v_rows[SH_SEG];
  int limit[SH_ATTN_QUERIES], index[CHOSEN];
  float *packed, *scratch, *pack_out; /* owned, as large as the kernels say */
  sh_wview w;                         /* dequant */
} arrays;

typedef void call_fn(const sh_kernels *k, arrays *a);

static void call_exp(const sh_kernels *k, arrays *a) { k->exp(a->x, N, a->y); }
static void call_rmsnorm(const sh_kernels *k, arrays *a) { k->rmsnorm(a->x, a->gain, 1e-6f, N, a->y); }
static void call_swiglu(const sh_kernels *k, arrays *a) { k->swiglu(a->x, a->z, N, a->y); }
static void call_sigmoid_mul(const sh_kernels *k, arrays *a) { k->sigmoid_mul(a->big, N, a->z); }
static void call_rope(const sh_kernels *k, arrays *a) { k->rope(a->y, N / 2, false, a->rows[0], a->rows[1]); }
static void call_to_bf16(const sh_kernels *k, arrays *a) { k->to_bf16(a->x, N, a->halves); }
static void call_to_kv8(const sh_kernels *k, arrays *a) { k->to_kv8(a->x, N, a->halves); }
static void call_l2norm(const sh_kernels *k, arrays *a) { k->l2norm(a->y, N, 1); }
static void call_gdn_gates(const sh_kernels *k, arrays *a) { k->gdn_gates(a->x, a->z, a->gain, a->gain, N, a->y, a->big); }
static void call_gdn_out(const sh_kernels *k, arrays *a) { k->gdn_out(a->x, a->gain, 1e-6f, N, a->y); }
static void call_route(const sh_kernels *k, arrays *a) { k->route(a->x, EXPERTS, CHOSEN, a->index, a->y); }
static void call_dequant(const sh_kernels *k, arrays *a) { k->dequant(&a->w, 0, 0, N, a->y); }
static void call_attn_pack(const sh_kernels *k, arrays *a) { k->attn_pack(a->rows, SH_ATTN_QUERIES, D, a->packed); }
static void call_attn_merge(const sh_kernels *k, arrays *a) {
  k->attn_merge(SH_ATTN_QUERIES, D, a->m, a->l, a->acc, a->m, a->gain, a->acc2);
}
static void call_attn_finish(const sh_kernels *k, arrays *a) { k->attn_finish(D, 2, a->acc2, a->y); }

static void call_pack(const sh_kernels *k, arrays *a) {
  const float *rows[PACK_ROWS];
  for (int i = 0; i < PACK_ROWS; i++) rows[i] = a->pack_in + i * N;
  k->pack(rows, PACK_ROWS, N, a->pack_out);
}

static void call_conv(const sh_kernels *k, arrays *a) {
  const float *x[CONV_WIDTH - 1 + CONV_TOK];
  for (int i = 0; i < CONV_WIDTH - 1 + CONV_TOK; i++) x[i] = a->conv_x + i * CONV_N;
  k->conv(x, CONV_TOK, CONV_N, CONV_WIDTH, a->conv_w, a->conv_y, CONV_N);
}

static void call_segment(const sh_kernels *k, arrays *a) {
  k->attn_segment(&(sh_attn_seg){.n_tok = SH_ATTN_QUERIES,
                                 .group = 1,
                                 .head_dim = D,
                                 .scale = 1.0f / sqrtf(D),
                                 .q = a->packed,
                                 .n_pos = SH_SEG,
                                 .k = a->k_rows,
                                 .v = a->v_rows,
                                 .limit = a->limit,
                                 .m = a->m,
                                 .l = a->l,
                                 .acc = a->acc,
                                 .scratch = a->scratch});
}

static void call_gdn_scan(const sh_kernels *k, arrays *a) {
  k->gdn_scan(&(sh_gdn_scan){.s = a->state,
                             .k_dim = GDN_K,
                             .n_cols = SH_GDN_TILE,
                             .n_tok = GDN_TOK,
                             .q = a->qkv,
                             .k = a->qkv + GDN_K,
                             .v = a->qkv + 2 * GDN_K,
                             .qkv_stride = 3 * GDN_K,
                             .decay = a->gates,
                             .beta = a->gates + GDN_TOK,
                             .g_stride = 1,
                             .o = a->out,
                             .o_stride = SH_GDN_TILE});
}

static double own_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Best seconds of a call, over seven rounds of some milliseconds. */
static double best(const sh_kernels *k, call_fn *fn, arrays *a) {
  double top = INFINITY, t = own_seconds();
  int n = 0;
  for (; n < 4 || (n < 4096 && own_seconds() - t < 2e-3); n++) fn(k, a);
  for (int r = 0; r < 7; r++) {
    t = own_seconds();
    for (int i = 0; i < n; i++) fn(k, a);
    top = fmin(top, (own_seconds() - t) / n);
  }
  return top;
}

/* Values at which a kernel neither overflows nor falls into denormals when it is called on its own output again and again. */
static void fill(arrays *a) {
  uint64_t rng = 3;
  sh_fill_floats(&rng, a->x, N, 1);
  sh_fill_floats(&rng, a->y, N, 1);
  sh_fill_floats(&rng, a->z, N, 1);
  sh_fill_floats(&rng, a->q, SH_ATTN_QUERIES * D, 1);
  sh_fill_floats(&rng, a->keys, SH_SEG * D, 1);
  sh_fill_floats(&rng, a->values, SH_SEG * D, 1);
  sh_fill_floats(&rng, a->acc2, SH_ATTN_QUERIES * D, 1);
  sh_fill_floats(&rng, a->qkv, GDN_TOK * 3 * GDN_K, 0.1f);
  sh_fill_floats(&rng, a->conv_w, CONV_N * CONV_WIDTH, 1);
  sh_fill_floats(&rng, a->conv_x, (CONV_WIDTH - 1 + CONV_TOK) * CONV_N, 1);
  sh_fill_floats(&rng, a->pack_in, PACK_ROWS * N, 1);
  for (int i = 0; i < N; i++) a->gain[i] = 1, a->big[i] = 100;
  for (int i = 0; i < GDN_TOK; i++) a->gates[i] = 0.9f, a->gates[GDN_TOK + i] = 0.5f;
  for (int i = 0; i < SH_ATTN_QUERIES; i++) a->rows[i] = a->q + i * D, a->limit[i] = SH_SEG, a->m[i] = 0;
  for (int i = 0; i < SH_SEG; i++) {
    a->k_rows[i] = (const uint8_t *)(a->keys + i * D);
    a->v_rows[i] = (const uint8_t *)(a->values + i * D);
  }
}

typedef struct single {
  const char *name;
  call_fn *fn;
  double work; /* of a call: elements, or operations */
  sh_kb_unit unit;
} single;

static const single SINGLES[] = {
    {"exp", call_exp, N, SH_KB_ELEMENTS},
    {"rmsnorm", call_rmsnorm, N, SH_KB_ELEMENTS},
    {"swiglu", call_swiglu, N, SH_KB_ELEMENTS},
    {"sigmoid_mul", call_sigmoid_mul, N, SH_KB_ELEMENTS},
    {"to_bf16", call_to_bf16, N, SH_KB_ELEMENTS},
    {"to_kv8", call_to_kv8, N, SH_KB_ELEMENTS},
    {"rope", call_rope, N, SH_KB_ELEMENTS},
    {"pack for gemm", call_pack, PACK_ROWS *N, SH_KB_ELEMENTS},
    {"attn_pack", call_attn_pack, SH_ATTN_QUERIES *D, SH_KB_ELEMENTS},
    {"attn_segment, 64 queries, 64 keys of 256", call_segment, 4.0 * SH_ATTN_QUERIES *SH_SEG *D, SH_KB_FLOPS_ONE},
    {"attn_merge", call_attn_merge, SH_ATTN_QUERIES *D, SH_KB_ELEMENTS},
    {"attn_finish", call_attn_finish, D, SH_KB_ELEMENTS},
    {"conv, 4 taps", call_conv, CONV_TOK *CONV_N, SH_KB_ELEMENTS},
    {"l2norm", call_l2norm, N, SH_KB_ELEMENTS},
    {"gdn_gates", call_gdn_gates, N, SH_KB_ELEMENTS},
    {"gdn_scan, 64 tokens, 128 x 32 of a state", call_gdn_scan, 7.0 * GDN_TOK *GDN_K *SH_GDN_TILE, SH_KB_FLOPS_ONE},
    {"gdn_out", call_gdn_out, N, SH_KB_ELEMENTS},
    {"route, 8 of 128", call_route, EXPERTS, SH_KB_ELEMENTS},
};

static void one(sh_kb *b, const char *name, const single *s, arrays *a) {
  double t[SH_KB_VARIANTS] = {0}, rate[SH_KB_VARIANTS] = {0};
  for (int v = 0; v < SH_KB_VARIANTS; v++) {
    if (!b->be[v]) continue;
    fill(a);
    call_attn_pack(&b->k[v], a);
    t[v] = best(&b->k[v], s->fn, a);
    rate[v] = s->work / t[v];
  }
  sh_kb_row(b, name, s->unit, rate, t[SH_KB_BEST] * 1e3, NULL);
}

/* Memory as large as the hungrier variant wants it, for all rows; freed by the caller, also after a failure. */
static int arrays_new(sh_kb *b, arrays **out) {
  size_t pack = 0;
  for (int v = 0; v < SH_KB_VARIANTS; v++)
    if (b->be[v] && b->k[v].pack_floats(PACK_ROWS, N) > pack) pack = b->k[v].pack_floats(PACK_ROWS, N);
  arrays *a = *out = sh_aligned(64, (sizeof *a + 63) & ~(size_t)63);
  if (a) {
    memset(a, 0, sizeof *a);
    a->packed = sh_aligned(64, sh_attn_pack_floats(D) * sizeof(float));
    a->scratch = sh_aligned(64, sh_attn_scratch_floats(D) * sizeof(float));
    a->pack_out = sh_aligned(64, (pack + 16) * sizeof(float));
  }
  return a && a->packed && a->scratch && a->pack_out ? 0 : sh_fail(b->e, SH_ERR_NOMEM, "out of memory");
}

static void dequant_rows(sh_kb *b, arrays *a) {
  static const sh_dtype types[] = {SH_BF16, SH_F16, SH_Q8_0, SH_Q4_0, SH_Q4_1, SH_Q5_0, SH_Q5_1, SH_Q4_K, SH_Q5_K, SH_Q6_K, SH_IQ4_NL};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char name[48];
    snprintf(name, sizeof name, "dequant %s", sh_dtype_name(types[i]));
    if (!sh_kb_wanted(b, name)) continue;
    uint64_t rng = 5;
    size_t bytes = sh_fill_row_bytes(types[i], N);
    sh_fill_weights(&rng, types[i], b->side, 1, bytes, N);
    a->w = (sh_wview){.type = types[i], .rows = 1, .cols = N, .data = b->side, .row_bytes = bytes, .name = "w"};
    one(b, name, &(single){name, call_dequant, N, SH_KB_ELEMENTS}, a);
    memset(b->side, 0x2d, bytes); /* as it was: scales of other rows */
  }
}

void sh_kb_single_rows(sh_kb *b) {
  arrays *a = NULL;
  if (b->rc == 0 && !b->counting) b->rc = arrays_new(b, &a);
  for (size_t i = 0; i < sizeof SINGLES / sizeof *SINGLES; i++)
    if (sh_kb_wanted(b, SINGLES[i].name)) one(b, SINGLES[i].name, &SINGLES[i], a);
  dequant_rows(b, a);
  if (a) {
    sh_free(a->packed);
    sh_free(a->scratch);
    sh_free(a->pack_out);
  }
  sh_free(a);
}
