/* The promise that a row's result does not depend on its surroundings, to the bit, through the backend: groups of rows, chunks of a prompt,
 * page sizes, numbers of threads, batches. The kernels keep it one by one (the other files); here the backend's cutting of calls into items
 * is added. */
#include "backend/backend.h"
#include "check.h"
#include "formats/dequant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL(x)                                                                                                                            \
  do {                                                                                                                                     \
    sh_error e_;                                                                                                                           \
    sh_error *e = &e_;                                                                                                                     \
    if ((x) < 0) {                                                                                                                         \
      fprintf(stderr, "checkkern: %s\n", e_.text);                                                                                         \
      exit(2);                                                                                                                             \
    }                                                                                                                                      \
  } while (0)

static sh_backend *backend(const ck *c, int threads) {
  sh_backend *be;
  CALL(sh_backend_cpu_new(&be, &(sh_backend_opts){.threads = threads, .cpu = c->cpu}, e));
  return be;
}

static sh_tensor *tensor(sh_backend *be, int64_t rows, int64_t cols, const float *src) {
  sh_tensor *t;
  CALL(be->ops->tensor_new(be, rows, cols, &t, e));
  if (src) CALL(be->ops->tensor_write(be, t, 0, rows, src, e));
  return t;
}

static void read_rows(sh_backend *be, const sh_tensor *t, int64_t row, int64_t n, float *dst) {
  CALL(be->ops->tensor_read(be, t, row, n, dst, e));
}

static float *random_floats(ck *c, size_t n, float scale) {
  float *p = malloc(n * sizeof *p);
  ck_fill(c, p, n, scale);
  return p;
}

/* --- Matrix products */

static void check_linear(ck *c, const ck_format *f, bool permuted) {
  enum { ROWS = 131, TOKS = 600 };
  char name[64];
  int64_t unit = ck_format_unit(f), K = (512 + unit - 1) / unit * unit;
  size_t all = (size_t)TOKS * ROWS;
  ck_matrix m = ck_matrix_new(c, f, ROWS, K, permuted);
  float *x = random_floats(c, (size_t)TOKS * (size_t)K, 1), *first = malloc(all * sizeof *first), *y = malloc(all * sizeof *y);
  ck_format_name(f, name);
  for (int threads = 1; threads <= 3; threads++) {
    sh_backend *be = backend(c, threads);
    sh_weight *wt;
    CALL(be->ops->weight_bind(be, &m.v, &wt, e));
    sh_tensor *xt = tensor(be, TOKS, K, x), *yt = tensor(be, TOKS, ROWS, NULL);
    for (int n = 1; n <= TOKS; n = n < 18 ? n + 1 : n + 291) {
      CALL(be->ops->linear(be, wt, xt, n, NULL, false, yt, e));
      read_rows(be, yt, 0, n, y);
      if (threads == 1 && n == 1) memcpy(first, y, sizeof *y * ROWS);
      ck_case(c, ck_same_bits(y, first, ROWS), "linear %s, %d threads: row 0 of %d has other bits than alone", name, threads, n);
      if (n == 600) {
        if (threads == 1) memcpy(first + ROWS, y + ROWS, (all - ROWS) * sizeof *y);
        ck_case(c, ck_same_bits(y, first, all), "linear %s: 600 rows on %d threads have other bits than on one", name, threads);
      }
    }
    be->ops->weight_free(be, wt);
    be->ops->tensor_free(be, xt), be->ops->tensor_free(be, yt);
    be->ops->free(be);
  }
  if (permuted) { /* the same bits as columns in that order without perm */
    sh_backend *be = backend(c, 2);
    sh_weight *wt;
    sh_wview plain = m.v;
    plain.perm = NULL;
    CALL(be->ops->weight_bind(be, &plain, &wt, e));
    float *moved = malloc((size_t)TOKS * (size_t)K * sizeof *moved);
    for (int64_t i = 0; i < TOKS * K; i++) moved[i] = x[i / K * K + m.v.perm[i % K]];
    sh_tensor *xt = tensor(be, TOKS, K, moved), *yt = tensor(be, TOKS, ROWS, NULL);
    CALL(be->ops->linear(be, wt, xt, TOKS, NULL, false, yt, e));
    read_rows(be, yt, 0, TOKS, y);
    ck_case(c, ck_same_bits(y, first, all), "linear %s: an order of columns is not undone", name);
    be->ops->weight_free(be, wt);
    be->ops->tensor_free(be, xt), be->ops->tensor_free(be, yt);
    be->ops->free(be);
    free(moved);
  }
  ck_matrix_free(&m), free(x), free(first), free(y);
}

/* A view that breaks one rule of tensor.h is refused with the weight's name; whole, it is taken. */
static void check_bind(ck *c) {
  int32_t perm[64], twice[64], outside[64];
  uint8_t bytes[64] = {0};
  for (int i = 0; i < 64; i++) perm[i] = twice[i] = outside[i] = 63 - i;
  twice[5] = 7, outside[9] = 64;
  sh_wview i4 = {.type = SH_I4,
                 .rows = 2,
                 .cols = 64,
                 .data = bytes,
                 .row_bytes = 32,
                 .name = "w.7",
                 .group = 32,
                 .scale_rows = 1,
                 .scale_type = SH_F16,
                 .scales = bytes,
                 .scale_row_bytes = 4,
                 .zeros = bytes,
                 .zero_row_bytes = 2,
                 .perm = perm};
  sh_wview f8 = {.type = SH_F8_E4M3,
                 .rows = 2,
                 .cols = 63,
                 .data = bytes,
                 .row_bytes = 63,
                 .name = "w.7",
                 .group = 48,
                 .scale_rows = 2,
                 .scale_type = SH_F32,
                 .scales = bytes,
                 .scale_row_bytes = 8};
  _Alignas(64) static const uint8_t panel[8 * 64 * 8];
  sh_wview p4 = {.type = SH_P4,
                 .rows = 9,
                 .cols = 64,
                 .data = panel,
                 .row_bytes = (256 + 2 * 16) / 8 + 4, /* 288 bytes, filled up to 320 */
                 .name = "w.7",
                 .group = 32,
                 .scale_type = SH_F16};
  struct {
    const char *what;
    sh_wview v;
    int want;
  } cases[48];
  int n = 0;
#define CASE(WANT, FROM, CHANGE)                                                                                                           \
  do {                                                                                                                                     \
    sh_wview v = FROM;                                                                                                                     \
    CHANGE;                                                                                                                                \
    cases[n].what = #FROM ": " #CHANGE, cases[n].v = v, cases[n++].want = WANT;                                                            \
  } while (0)
  CASE(0, i4, (void)v);
  CASE(0, f8, (void)v);
  CASE(0, i4, v.zeros = NULL);
  CASE(0, i4, v.group = 64);
  CASE(0, f8, v.group = 128);
  CASE(SH_ERR_FORMAT, i4, v.group = 0);
  CASE(SH_ERR_FORMAT, i4, v.group = 8);
  CASE(SH_ERR_FORMAT, i4, v.group = 48);
  CASE(SH_ERR_FORMAT, i4, v.group = 128);
  CASE(SH_ERR_FORMAT, i4, v.group = 16);
  CASE(SH_ERR_FORMAT, i4, v.cols = 63);
  CASE(SH_ERR_FORMAT, i4, v.row_bytes = 31);
  CASE(SH_ERR_FORMAT, i4, v.scale_rows = 2);
  CASE(SH_ERR_FORMAT, i4, v.scales = NULL);
  CASE(SH_ERR_FORMAT, i4, v.zero_row_bytes = 1);
  CASE(SH_ERR_FORMAT, i4, v.perm = twice);
  CASE(SH_ERR_FORMAT, i4, v.perm = outside);
  CASE(SH_ERR_UNSUPPORTED, i4, v.scale_type = SH_F64);
  CASE(SH_ERR_FORMAT, f8, v.group = 24);
  CASE(0, p4, (void)v);
  CASE(0, p4, v.perm = perm);
  CASE(SH_ERR_FORMAT, p4, v.perm = twice);
  CASE(SH_ERR_INTERNAL, p4, v.data = panel + 32);
  CASE(SH_ERR_INTERNAL, p4, v.row_bytes = 36);
  CASE(SH_ERR_INTERNAL, p4, v.group = 24);
  CASE(SH_ERR_INTERNAL, p4, v.cols = 80);
  CASE(SH_ERR_INTERNAL, p4, (v.panel_offset = SH_PANEL_MIN, v.scale_type = SH_F32));
  CASE(SH_ERR_INTERNAL, p4, v.panel_scales = 3);
  CASE(SH_ERR_INTERNAL, p4, v.scale_type = SH_F64);
  CASE(SH_ERR_INTERNAL, p4, v.scales = bytes);
  CASE(SH_ERR_FORMAT, f8, v.scale_row_bytes = 7);
  CASE(SH_ERR_FORMAT, f8, v.scale_rows = 0);
  CASE(SH_ERR_FORMAT, f8, v.zeros = bytes);
  CASE(SH_ERR_INTERNAL, i4, (v.type = SH_F16, v.row_bytes = 128));
  CASE(SH_ERR_UNSUPPORTED, i4, v.type = SH_I64);
  CASE(0, i4, (v.type = SH_U8, v.row_bytes = 64));
  CASE(0, i4, (v.type = SH_I8, v.row_bytes = 64, v.zeros = NULL));
  CASE(SH_ERR_FORMAT, i4, (v.type = SH_I8, v.row_bytes = 64));
  CASE(SH_ERR_FORMAT, i4, v.type = SH_U8);
  CASE(SH_ERR_FORMAT, i4, (v.type = SH_U8, v.row_bytes = 64, v.scale_rows = 2));
  sh_backend *be = backend(c, 1);
  for (int i = 0; i < n; i++) {
    sh_weight *w;
    sh_error e;
    int rc = be->ops->weight_bind(be, &cases[i].v, &w, &e);
    ck_case(c, rc == cases[i].want && (rc == 0 || (!w && strstr(e.text, "w.7"))), "weight_bind of %s gives %d, wanted %d", cases[i].what,
            rc, cases[i].want);
    if (rc == 0) be->ops->weight_free(be, w);
  }
  be->ops->free(be);
}

/* Rows of a matrix in every format, in the order of the inputs. */
static void check_embed(ck *c, const ck_format *f, bool permuted) {
  enum { ROWS = 37, N = 70 };
  char name[64];
  int64_t unit = ck_format_unit(f), K = unit <= 2 ? 250 : 3 * unit;
  ck_matrix m = ck_matrix_new(c, f, ROWS, K, permuted);
  sh_backend *be = backend(c, 2);
  sh_weight *wt;
  CALL(be->ops->weight_bind(be, &m.v, &wt, e));
  sh_tensor *yt = tensor(be, N, K, NULL);
  int32_t ids[N];
  float *y = malloc((size_t)(N * K) * sizeof *y), *want = malloc((size_t)K * sizeof *want);
  for (int i = 0; i < N; i++) ids[i] = ck_range(c, 0, ROWS - 1);
  CALL(be->ops->embed(be, wt, ids, N, yt, e));
  read_rows(be, yt, 0, N, y);
  bool ok = true;
  for (int i = 0; i < N; i++) {
    sh_dequant_row(&m.v, ids[i], want);
    ok = ok && ck_compare(y + i * K, want, (size_t)K, (ck_tol){.why = "conversion is exact"}) < 0;
  }
  ck_case(c, ok, "embed %s%s", ck_format_name(f, name), permuted ? " permuted" : "");
  be->ops->weight_free(be, wt), be->ops->tensor_free(be, yt), be->ops->free(be);
  ck_matrix_free(&m), free(y), free(want);
}

/* --- Attention: sequences of some lengths, fed in chunks, on caches of any page size. */

typedef struct attn_inputs {
  int n_seqs, len[3];
  int heads, kv_heads, d;
  bool gated;
  float *q, *k, *v; /* of sequence s from row 1000 s on */
} attn_inputs;

enum { SEQ_ROWS = 2600, MAX_SEQS = 3 };

/* Feeds all sequences, `chunk` tokens at a time (together in one batch when `together`), and returns the outputs [n_seqs * SEQ_ROWS, heads
 * * d]. */
static float *attend(const ck *c, const attn_inputs *in, int threads, int page, int chunk, bool together, sh_kv_type kv) {
  sh_backend *be = backend(c, threads);
  int qc = in->heads * in->d * (in->gated ? 2 : 1), kc = in->kv_heads * in->d, oc = in->heads * in->d,
      per_seq = (SEQ_ROWS + page - 1) / page;
  double inv_freq[16];
  for (int i = 0; i < 16; i++) inv_freq[i] = pow(1e4, -i / 16.0);
  sh_attn p = {.n_heads = in->heads,
               .n_kv_heads = in->kv_heads,
               .head_dim = in->d,
               .rotary_dim = in->d >= 32 ? 32 : 8,
               .gated = in->gated,
               .scale = 1.0f / sqrtf((float)in->d),
               .eps = 1e-6f,
               .rope_scale = 1,
               .inv_freq = inv_freq};
  sh_cache *cache;
  CALL(be->ops->reserve(be,
                        &(sh_reserve){.max_tokens = MAX_SEQS * SEQ_ROWS,
                                      .max_seqs = MAX_SEQS,
                                      .max_context = SEQ_ROWS,
                                      .max_cols = 8,
                                      .max_rows = 8,
                                      .n_heads = in->heads,
                                      .head_dim = in->d},
                        e));
  CALL(be->ops->cache_new(be,
                          &(sh_cache_spec){.n_attn_layers = 2,
                                           .n_kv_heads = in->kv_heads,
                                           .head_dim = in->d,
                                           .page_size = page,
                                           .n_pages = MAX_SEQS * per_seq,
                                           .kv_type = kv},
                          &cache, e));
  int32_t *pages = malloc((size_t)(MAX_SEQS * per_seq) * sizeof *pages);
  for (int i = 0; i < MAX_SEQS * per_seq; i++) pages[i] = MAX_SEQS * per_seq - 1 - i; /* not in memory order */
  sh_tensor *q = tensor(be, MAX_SEQS * SEQ_ROWS, qc, NULL), *k = tensor(be, MAX_SEQS * SEQ_ROWS, kc, NULL),
            *v = tensor(be, MAX_SEQS * SEQ_ROWS, kc, NULL), *o = tensor(be, MAX_SEQS * SEQ_ROWS, oc, NULL);
  float *out = calloc((size_t)(MAX_SEQS * SEQ_ROWS) * (size_t)oc, sizeof *out);
  int done[MAX_SEQS] = {0}, left = in->n_seqs, only = 0;
  while (left > 0) {
    sh_seq seqs[MAX_SEQS];
    int n = 0, rows = 0, who[MAX_SEQS];
    for (int s = 0; s < in->n_seqs; s++) {
      int m = in->len[s] - done[s] < chunk ? in->len[s] - done[s] : chunk;
      if (m == 0 || (!together && s != only)) continue;
      who[n] = s;
      seqs[n++] = (sh_seq){.row = rows, .count = m, .pos = done[s], .slot = 0, .pages = pages + s * per_seq};
      int at = s * SEQ_ROWS + done[s];
      CALL(be->ops->tensor_write(be, q, rows, m, in->q + (size_t)at * (size_t)qc, e));
      CALL(be->ops->tensor_write(be, k, rows, m, in->k + (size_t)at * (size_t)kc, e));
      CALL(be->ops->tensor_write(be, v, rows, m, in->v + (size_t)at * (size_t)kc, e));
      rows += m;
    }
    CALL(be->ops->attention(be, cache, 1, &p, &(sh_batch){.n_seqs = n, .seqs = seqs, .n_tokens = rows}, q, k, v, o, e));
    for (int i = 0; i < n; i++) {
      int s = who[i];
      read_rows(be, o, seqs[i].row, seqs[i].count, out + (size_t)(s * SEQ_ROWS + done[s]) * (size_t)oc);
      done[s] += seqs[i].count;
      if (done[s] == in->len[s]) left--, only++;
    }
  }
  be->ops->tensor_free(be, q), be->ops->tensor_free(be, k), be->ops->tensor_free(be, v), be->ops->tensor_free(be, o);
  be->ops->cache_free(be, cache);
  be->ops->free(be);
  free(pages);
  return out;
}

/* Few queries read rows of 16 dims as they lie, other rows and many queries are expanded first: the bits are the same. */
static void check_attention(ck *c, int kv_dim) {
  static const struct {
    int threads, page, chunk;
    bool together;
  } ways[] = {{1, 16, 64, true}, {2, 1, 7, true}, {3, 64, 300, false}, {2, 16, 1 << 20, false}, {3, 16, 1, true}, {2, 5, 129, true}};
  attn_inputs in = {.n_seqs = 3,
                    .len = {ck_range(c, 1100, 1300), ck_range(c, 1, 130), ck_range(c, 1, 70)},
                    .heads = 4,
                    .kv_heads = 2,
                    .d = kv_dim,
                    .gated = ck_u32(c) & 1};
  size_t rows = (size_t)MAX_SEQS * SEQ_ROWS, n = rows * (size_t)(in.heads * in.d);
  in.q = random_floats(c, n * (in.gated ? 2 : 1), 2);
  in.k = random_floats(c, rows * (size_t)(in.kv_heads * in.d), 2);
  in.v = random_floats(c, rows * (size_t)(in.kv_heads * in.d), 1);
  for (sh_kv_type kv = SH_KV_F32; kv <= SH_KV_I8; kv++) {
    float *whole = attend(c, &in, 1, 16, 1 << 20, true, kv);
    size_t n_ways = sizeof ways / sizeof *ways;
    for (size_t i = 0; i < (c->quick ? 2 : n_ways); i++) {
      float *out = attend(c, &in, ways[i].threads, ways[i].page, ways[i].chunk, ways[i].together, kv);
      ck_case(c, ck_same_bits(out, whole, n),
              "attention with %d threads, pages of %d, chunks of %d, %s has other bits (lengths %d %d %d, kv type %d)", ways[i].threads,
              ways[i].page, ways[i].chunk, ways[i].together ? "one batch" : "one by one", in.len[0], in.len[1], in.len[2], (int)kv);
      free(out);
    }
    free(whole);
  }
  free(in.q), free(in.k), free(in.v);
}

/* --- Gated delta rule */

typedef struct gdn_inputs {
  sh_gdn p;
  int toks, channels, v_cols;
  float *qkv, *z, *a, *b, *conv_w, *neg_exp_a, *dt_bias, *gain;
} gdn_inputs;

static float *delta(const ck *c, const gdn_inputs *in, int threads, int chunk) {
  sh_backend *be = backend(c, threads);
  sh_gdn p = in->p;
  sh_tensor *fixed[4] = {tensor(be, in->channels, p.conv_kernel, in->conv_w), tensor(be, 1, p.v_heads, in->neg_exp_a),
                         tensor(be, 1, p.v_heads, in->dt_bias), tensor(be, 1, p.v_dim, in->gain)};
  p.conv_w = fixed[0], p.neg_exp_a = fixed[1], p.dt_bias = fixed[2], p.gain = fixed[3];
  sh_cache *cache;
  CALL(be->ops->cache_new(be,
                          &(sh_cache_spec){.n_linear_layers = 2,
                                           .lin_v_heads = p.v_heads,
                                           .lin_k_dim = p.k_dim,
                                           .lin_v_dim = p.v_dim,
                                           .conv_channels = in->channels,
                                           .conv_kernel = p.conv_kernel,
                                           .n_slots = 3},
                          &cache, e));
  sh_tensor *t[5] = {tensor(be, in->toks, in->channels, NULL), tensor(be, in->toks, in->v_cols, NULL),
                     tensor(be, in->toks, p.v_heads, NULL), tensor(be, in->toks, p.v_heads, NULL), tensor(be, in->toks, in->v_cols, NULL)};
  float *out = malloc((size_t)in->toks * (size_t)in->v_cols * sizeof *out);
  int slot = 1;
  for (int at = 0; at < in->toks; at += chunk) {
    int m = in->toks - at < chunk ? in->toks - at : chunk;
    CALL(be->ops->tensor_write(be, t[0], 0, m, in->qkv + (size_t)at * (size_t)in->channels, e));
    CALL(be->ops->tensor_write(be, t[1], 0, m, in->z + (size_t)at * (size_t)in->v_cols, e));
    CALL(be->ops->tensor_write(be, t[2], 0, m, in->a + (size_t)at * (size_t)p.v_heads, e));
    CALL(be->ops->tensor_write(be, t[3], 0, m, in->b + (size_t)at * (size_t)p.v_heads, e));
    CALL(be->ops->gated_delta(be, cache, 1, &p,
                              &(sh_batch){.n_seqs = 1, .seqs = &(sh_seq){.count = m, .pos = at, .slot = slot}, .n_tokens = m}, t[0], t[1],
                              t[2], t[3], t[4], e));
    read_rows(be, t[4], 0, m, out + (size_t)at * (size_t)in->v_cols);
    CALL(be->ops->slot_copy(be, cache, 3 - slot, slot, e)); /* and go on from the copy */
    slot = 3 - slot;
  }
  for (int i = 0; i < 4; i++) be->ops->tensor_free(be, fixed[i]);
  for (int i = 0; i < 5; i++) be->ops->tensor_free(be, t[i]);
  be->ops->cache_free(be, cache);
  be->ops->free(be);
  return out;
}

static void check_delta(ck *c) {
  gdn_inputs in = {.p = {.k_heads = 2, .v_heads = 4, .k_dim = 24, .v_dim = 40, .conv_kernel = 4, .v_tiled = ck_u32(c) & 1, .eps = 1e-6f},
                   .toks = 70};
  in.channels = 2 * 2 * 24 + 4 * 40, in.v_cols = 4 * 40;
  size_t t = (size_t)in.toks;
  in.qkv = random_floats(c, t * (size_t)in.channels, 1), in.z = random_floats(c, t * (size_t)in.v_cols, 2);
  in.a = random_floats(c, t * 4, 2), in.b = random_floats(c, t * 4, 2);
  in.conv_w = random_floats(c, (size_t)in.channels * 4, 1), in.dt_bias = random_floats(c, 4, 1), in.gain = random_floats(c, 40, 1);
  in.neg_exp_a = random_floats(c, 4, 1);
  for (int i = 0; i < 4; i++) in.neg_exp_a[i] = -fabsf(in.neg_exp_a[i]);
  float *whole = delta(c, &in, 1, in.toks);
  for (int threads = 1; threads <= 3; threads++) {
    static const int chunks[] = {1, 3, 16, 70};
    for (int i = 0; i < 4; i++) {
      float *out = delta(c, &in, threads, chunks[i]);
      ck_case(c, ck_same_bits(out, whole, t * (size_t)in.v_cols), "gated_delta on %d threads in chunks of %d has other bits", threads,
              chunks[i]);
      free(out);
    }
  }
  free(whole), free(in.qkv), free(in.z), free(in.a), free(in.b), free(in.conv_w), free(in.dt_bias), free(in.gain), free(in.neg_exp_a);
}

/* --- Experts */

enum { E = 9, TOPK = 3, HID = 96, FFN = 64, TOKS = 150, N_MATRICES = 3 * (E + 1) + 2 };

/* Gate, up and down of the experts and the shared one (matrix 3 e + i), router, the shared expert's switch. */
static int64_t moe_rows(int i) { return i < 3 * (E + 1) ? (i % 3 == 2 ? HID : FFN) : i == 3 * (E + 1) ? E : 1; }
static int64_t moe_cols(int i) { return i < 3 * (E + 1) && i % 3 == 2 ? FFN : HID; }

/* y [TOKS, HID]; tokens in batches of `batch`. */
static void run_moe(const ck *c, const sh_wview *views, int threads, int batch, const float *x, float *y) {
  sh_backend *be = backend(c, threads);
  sh_weight *m[3][E + 2];
  for (int i = 0; i < N_MATRICES; i++) CALL(be->ops->weight_bind(be, &views[i], &m[i % 3][i / 3], e));
  sh_moe p = {.n_experts = E,
              .top_k = TOPK,
              .router = m[0][E + 1],
              .gate = (const sh_weight *const *)m[0],
              .up = (const sh_weight *const *)m[1],
              .down = (const sh_weight *const *)m[2],
              .shared_gate = m[0][E],
              .shared_up = m[1][E],
              .shared_down = m[2][E],
              .shared_switch = m[1][E + 1]};
  sh_tensor *xt = tensor(be, batch, HID, NULL), *yt = tensor(be, batch, HID, NULL);
  for (int t = 0; t + batch <= TOKS; t += batch) {
    CALL(be->ops->tensor_write(be, xt, 0, batch, x + t * HID, e));
    CALL(be->ops->moe(be, &p, xt, batch, false, yt, e));
    read_rows(be, yt, 0, batch, y + t * HID);
  }
  for (int i = 0; i < N_MATRICES; i++) be->ops->weight_free(be, m[i % 3][i / 3]);
  be->ops->tensor_free(be, xt), be->ops->tensor_free(be, yt);
  be->ops->free(be);
}

/* permuted: every other matrix has columns in an order of its own. */
static void check_moe(ck *c, const ck_format *f, bool permuted) {
  char name[64];
  ck_matrix m[N_MATRICES];
  sh_wview view[N_MATRICES], plain[N_MATRICES];
  for (int i = 0; i < N_MATRICES; i++) {
    m[i] = ck_matrix_new(c, f, moe_rows(i), moe_cols(i), permuted && i % 2);
    view[i] = m[i].v;
    float *w = malloc((size_t)(moe_rows(i) * moe_cols(i)) * sizeof *w);
    for (int64_t r = 0; r < moe_rows(i); r++) sh_dequant_row(&view[i], r, w + r * moe_cols(i));
    plain[i] = (sh_wview){
        .type = SH_F32, .rows = moe_rows(i), .cols = moe_cols(i), .data = (uint8_t *)w, .row_bytes = (size_t)moe_cols(i) * 4, .name = "f"};
  }
  float *x = random_floats(c, TOKS * HID, 1), *whole = malloc(sizeof(float) * TOKS * HID), *y = malloc(sizeof(float) * TOKS * HID);
  ck_format_name(f, name);
  run_moe(c, view, 1, TOKS, x, whole);
  for (int threads = 1; threads <= 3; threads++) {
    for (int batch = TOKS; batch > 0; batch = batch == TOKS ? 15 : batch == 15 ? 1 : 0) {
      run_moe(c, view, threads, batch, x, y);
      ck_case(c, ck_same_bits(y, whole, TOKS * HID), "moe %s: batches of %d on %d threads have other bits", name, batch, threads);
    }
  }
  run_moe(c, plain, 2, TOKS, x, y);
  double top = 0;
  for (int i = 0; i < TOKS * HID; i++) top = fmax(top, fabs((double)y[i]));
  ck_tol tol = {.why = "sums of up to 96 products of the same weights, and of three experts, in another order", .abs = 1e-5 * top};
  ck_case(c, ck_compare(whole, y, TOKS * HID, tol) < 0, "moe %s: float32 copies of the weights give another result", name);
  for (int i = 0; i < N_MATRICES; i++) ck_matrix_free(&m[i]), free((void *)(uintptr_t)plain[i].data);
  free(x), free(whole), free(y);
}

/* Experts in panels: the same bits in any batch, and those of the products, the activation and the sum in index order done one by one. */
static void check_moe_panels(ck *c, const ck_format *f, bool permuted) {
  char name[64];
  ck_matrix m[N_MATRICES];
  sh_wview view[N_MATRICES];
  for (int i = 0; i < N_MATRICES; i++) {
    m[i] = ck_matrix_new(c, i < 3 * (E + 1) ? f : &(ck_format){.type = SH_F32}, moe_rows(i), moe_cols(i), permuted && i % 2);
    view[i] = m[i].v;
  }
  float *x = random_floats(c, TOKS * HID, 1), *whole = malloc(sizeof(float) * TOKS * HID), *y = malloc(sizeof(float) * TOKS * HID);
  ck_format_name(f, name);
  run_moe(c, view, 1, TOKS, x, whole);
  for (int threads = 1; threads <= 3; threads++) {
    for (int batch = TOKS; batch > 0; batch = batch == TOKS ? 15 : batch == 15 ? 1 : 0) {
      run_moe(c, view, threads, batch, x, y);
      ck_case(c, ck_same_bits(y, whole, TOKS * HID), "moe %s: batches of %d on %d threads have other bits", name, batch, threads);
    }
  }
  sh_backend *be = backend(c, 2);
  sh_tensor *xt = tensor(be, TOKS, HID, x), *gate = tensor(be, TOKS, FFN, NULL), *up = tensor(be, TOKS, FFN, NULL),
            *yt = tensor(be, TOKS, HID, NULL), *of[3] = {gate, up, yt};
  float *v = malloc(sizeof(float) * (E + 1) * TOKS * HID), logits[TOKS * E], on[TOKS];
  for (int i = 0; i < N_MATRICES; i++) {
    sh_weight *w;
    bool last = i >= 3 * (E + 1);
    CALL(be->ops->weight_bind(be, &view[i], &w, e));
    if (i % 3 == 2 && !last) CALL(be->ops->swiglu(be, gate, up, TOKS, FFN, gate, e));
    sh_tensor *to = last ? tensor(be, TOKS, moe_rows(i), NULL) : of[i % 3];
    CALL(be->ops->linear(be, w, i % 3 == 2 && !last ? gate : xt, TOKS, NULL, false, to, e));
    if (last) read_rows(be, to, 0, TOKS, i == 3 * (E + 1) ? logits : on), be->ops->tensor_free(be, to);
    else if (i % 3 == 2) read_rows(be, yt, 0, TOKS, v + (size_t)(i / 3) * TOKS * HID);
    be->ops->weight_free(be, w);
  }
  for (int t = 0; t < TOKS; t++) {
    int index[TOPK];
    float weight[TOPK + 1];
    c->k.route(logits + t * E, E, TOPK, index, weight);
    weight[TOPK] = 1;
    c->k.sigmoid_mul(&on[t], 1, &weight[TOPK]);
    for (int i = 0; i < HID; i++) {
      y[t * HID + i] = 0;
      for (int j = 0; j <= TOPK; j++) y[t * HID + i] = fmaf(weight[j], v[((j < TOPK ? index[j] : E) * TOKS + t) * HID + i], y[t * HID + i]);
    }
  }
  ck_case(c, ck_same_bits(y, whole, TOKS * HID), "moe %s: other bits than its products one by one", name);
  be->ops->tensor_free(be, xt), be->ops->tensor_free(be, gate), be->ops->tensor_free(be, up), be->ops->tensor_free(be, yt);
  be->ops->free(be);
  for (int i = 0; i < N_MATRICES; i++) ck_matrix_free(&m[i]);
  free(x), free(whole), free(y), free(v);
}

/* What the backend says of panels, and that rows are not looked up in them. */
static void check_panel_words(ck *c) {
  sh_backend *be = backend(c, 1);
  sh_weight *w;
  char buf[96];
  ck_matrix m = ck_matrix_new(c, &(ck_format){.type = SH_P6, .group = 32, .scale_type = SH_F16}, 9, 64, false);
  ck_case(c, be->ops->takes(be, SH_P4) && be->ops->takes(be, SH_P8) && be->ops->takes(be, SH_I4) && !be->ops->takes(be, SH_I64),
          "takes: panels and groups, not I64");
  ck_case(c, strstr(be->ops->weight_kernel(be, &m.v, buf, sizeof buf), "int6 x int8 panels"), "weight_kernel says %s", buf);
  CALL(be->ops->weight_bind(be, &m.v, &w, e));
  sh_tensor *y = tensor(be, 1, 64, NULL);
  sh_error e = {0};
  ck_case(c, be->ops->embed(be, w, &(int32_t){1}, 1, y, &e) == SH_ERR_INTERNAL && strstr(e.text, "panels"), "embed of panels: %s", e.text);
  be->ops->tensor_free(be, y), be->ops->weight_free(be, w), be->ops->free(be);
  ck_matrix_free(&m);
}

void ck_backend(ck *c) {
  check_bind(c);
  for (int i = 0; i < ck_n_formats; i++) {
    const ck_format *f = &ck_formats[i];
    bool groups = sh_dtype_has_groups(f->type);
    bool every = f->type == SH_BF16 || f->type == SH_Q4_0 || f->type == SH_Q6_K || f->type == SH_Q4_K;
    if (every || groups) check_linear(c, f, groups && i % 2);
    check_embed(c, f, false);
    if (groups) check_embed(c, f, true);
  }
  check_panel_words(c);
  for (int i = 0; i < ck_n_panel_formats; i += 5) check_linear(c, &ck_panel_formats[i], i % 3 == 1);
  check_moe_panels(c, &(ck_format){.type = SH_P4, .group = 32, .scale_type = SH_F16, .offset = SH_PANEL_MIN}, false);
  check_moe_panels(c, &(ck_format){.type = SH_P8, .scale_type = SH_BF16}, true);
  check_moe_panels(c, &(ck_format){.type = SH_P6, .group = 16, .scale_type = SH_F16, .scales = SH_PANEL_SUPER_I8}, true);
  check_attention(c, 24);
  check_attention(c, 32);
  check_delta(c);
  check_moe(c, &(ck_format){.type = c->rng & 1 ? SH_BF16 : SH_Q8_0}, false);
  check_moe(c, &(ck_format){.type = SH_I4, .group = 16, .scale_rows = 1, .scale_type = SH_F16, .zeros = true}, true);
  check_moe(c, &(ck_format){.type = SH_U8, .group = 32, .scale_rows = 1, .scale_type = SH_BF16, .zeros = true}, true);
  check_moe(c, &(ck_format){.type = SH_F8_E4M3, .group = 128, .scale_rows = 48, .scale_type = SH_BF16}, true);
}
