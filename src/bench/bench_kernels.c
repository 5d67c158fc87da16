/* Speeds of the CPU backend's operations, plain C beside the best kernels, each as a share of what the machine can do, measured next to it
 * in the same run: the fp32 peak or the bandwidth of reading (bench/roofline.md). Main thread; backends and probe have their pools.
 *
 * Machines are shared and their clocks move, so a share is worth more than a number. Every figure, the limits too, is the best of several
 * rounds: a kernel is asked what it can, not what it usually gets. With one thread the clock is the processor's. Plain C, a hundred times
 * slower with its sums in double, is measured on a small piece of the same shape. */
#include "bench/bench_kernels.h"

#include "base/text.h"
#include "bench/fill.h"
#include "bench/kernel_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN_ROWS = 64, PLAIN_TOKENS = 4, MANY = 256 };
static const size_t BUFFER = (size_t)1 << 30;

/* --- Rows */

static const sh_bench_col COLUMNS[] = {
    {"name", "kernel", SH_BENCH_TEXT},   {"plain", "plain C", 2},        {"best", "best", 2},
    {"unit", "unit", SH_BENCH_TEXT},     {"times", "times", 1},          {"ms", "ms", 4},
    {"share_percent", "share %", 1},     {"limit", "of", SH_BENCH_TEXT}, {"limit_value", "limit", SH_BENCH_HIDDEN + 1},
    {"remark", "remark", SH_BENCH_TEXT},
};

bool sh_kb_wanted(sh_kb *b, const char *name) {
  if (b->rc < 0 || (b->o->only && !strstr(name, b->o->only))) return false;
  if (b->counting) {
    b->show.total++;
    return false;
  }
  if ((b->rc = sh_bench_stopped(b->o->stop, b->e)) < 0) return false;
  sh_bench_progress_row(&b->show, name);
  return true;
}

void sh_kb_row(sh_kb *b, const char *name, sh_kb_unit unit, const double rate[SH_KB_VARIANTS], double ms, const char *remark) {
  static const char *const UNITS[] = {"GFLOP/s", "GB/s", "G elements/s", "GFLOP/s"};
  if (b->rc < 0) return;
  bool best = rate[SH_KB_BEST] > 0;
  double v = rate[best ? SH_KB_BEST : SH_KB_PLAIN], limit = unit == SH_KB_BYTES ? b->bandwidth : b->peak;
  char of[64] = "";
  if (unit == SH_KB_FLOPS_ONE) limit /= b->probe.threads;
  if (unit != SH_KB_ELEMENTS) snprintf(of, sizeof of, "%s %.1f %s", unit == SH_KB_BYTES ? "read" : "fp32", limit * 1e-9, UNITS[unit]);
  bool has_limit = of[0] != '\0';
  sh_bench_add_row(b->table, (sh_bench_cell[]){{.text = name},
                                               {.v = rate[SH_KB_PLAIN] * 1e-9},
                                               {.v = best ? v * 1e-9 : (double)NAN},
                                               {.text = UNITS[unit]},
                                               {.v = best ? v / rate[SH_KB_PLAIN] : (double)NAN},
                                               {.v = best ? ms : (double)NAN},
                                               {.v = has_limit ? 100 * v / limit : (double)NAN},
                                               {.text = has_limit ? of : NULL},
                                               {.v = has_limit ? limit * 1e-9 : (double)NAN},
                                               {.text = remark ? remark : ""}});
}

/* --- Pieces */

static void measure_peak(sh_kb *b) {
  for (int i = 0; i < 3; i++) b->peak = fmax(b->peak, sh_probe_f32(&b->probe));
}

static void measure_bandwidth(sh_kb *b) {
  for (int i = 0; i < 3; i++) b->bandwidth = fmax(b->bandwidth, sh_probe_read(&b->probe));
}

/* Fills the buffer with rows of a type: 4 MB of random ones, repeated. */
static void fill(sh_kb *b, sh_dtype t, int64_t k) {
  if (b->filled == t) return;
  size_t rb = sh_fill_row_bytes(t, k), rows = ((size_t)4 << 20) / rb + 1, bytes = b->probe.bytes;
  uint64_t rng = 1;
  sh_fill_weights(&rng, t, b->probe.buffer, rows, rb, k);
  for (size_t at = rows * rb; at < bytes; at += rows * rb)
    memcpy(b->probe.buffer + at, b->probe.buffer, bytes - at < rows * rb ? bytes - at : rows * rb);
  b->filled = t;
}

/* A backend's tensor of random values; NULL after a failure. */
static sh_tensor *tensor(sh_kb *b, int64_t rows, int64_t cols, float scale) {
  sh_backend *be = b->be[SH_KB_PLAIN]; /* tensors of both are the same */
  sh_tensor *t = NULL;
  if (b->rc < 0) return NULL;
  float *p = sh_malloc((size_t)(rows * cols) * sizeof *p);
  if (!p) b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory");
  if (b->rc == 0) b->rc = be->ops->tensor_new(be, rows, cols, &t, b->e);
  if (b->rc == 0) {
    uint64_t rng = 7;
    sh_fill_floats(&rng, p, (size_t)(rows * cols), scale);
    b->rc = be->ops->tensor_write(be, t, 0, rows, p, b->e);
  }
  sh_free(p);
  return t;
}

static void drop(sh_kb *b, sh_tensor *t) { b->be[SH_KB_PLAIN]->ops->tensor_free(b->be[SH_KB_PLAIN], t); }

typedef int once_fn(sh_kb *b, sh_backend *be, void *ctx);

/* Best seconds of a call, after one to warm up: at least five, and as many as fit in half a second. Plain C: what fits in a tenth. */
static double best(sh_kb *b, int variant, once_fn *fn, void *ctx) {
  double top = INFINITY, spent = 0, most = variant == SH_KB_PLAIN ? 0.1 : 0.5;
  sh_backend *be = b->be[variant];
  if (b->rc == 0) b->rc = fn(b, be, ctx);
  for (int i = 0; b->rc == 0 && (i < (variant == SH_KB_PLAIN ? 2 : 5) || spent < most); i++) {
    double t = sh_probe_seconds(&b->probe);
    b->rc = fn(b, be, ctx);
    t = sh_probe_seconds(&b->probe) - t;
    spent += t;
    if (t < top) top = t;
    if (b->rc == 0) b->rc = sh_bench_stopped(b->o->stop, b->e);
  }
  return top;
}

/* --- Matrix products */

typedef struct linear_case {
  sh_weight *w[MANY]; /* decode: as many matrices as fill the buffer */
  int n, toks;
  sh_tensor *x, *y;
} linear_case;

static int run_linear(sh_kb *b, sh_backend *be, void *ctx) {
  linear_case *l = ctx;
  int rc = 0;
  for (int i = 0; rc == 0 && i < l->n; i++) rc = be->ops->linear(be, l->w[i], l->x, l->toks, NULL, false, l->y, b->e);
  return rc;
}

/* Rows at buffer + at. SH_I4, SH_U8: groups of 128 with f16 scales and zero points; SH_I8: the same without; SH_F8_E4M3: blocks of 128 x
 * 128 with bf16 scales. */
static sh_weight *bind(sh_kb *b, sh_dtype t, int64_t rows, int64_t k, size_t at) {
  sh_weight *w = NULL;
  sh_backend *be = b->be[SH_KB_PLAIN]; /* weights of both are the same */
  sh_wview v = {.type = t, .rows = rows, .cols = k, .data = b->probe.buffer + at, .row_bytes = sh_fill_row_bytes(t, k), .name = "w"};
  if (sh_dtype_has_groups(t)) {
    size_t first = at / (t == SH_I4 ? 64 : 128) & ~(size_t)63, groups = (size_t)k / 128; /* of the scales that belong to those bytes */
    v.group = 128;
    v.scale_rows = t == SH_F8_E4M3 ? 128 : 1;
    v.scale_type = t == SH_F8_E4M3 ? SH_BF16 : SH_F16;
    v.scales = b->side + 2 * first;
    v.scale_row_bytes = 2 * groups;
    if (t == SH_I4 || t == SH_U8) v.zeros = b->side + SH_KB_SIDE + first, v.zero_row_bytes = groups;
  }
  if (b->rc == 0) b->rc = be->ops->weight_bind(be, &v, &w, b->e);
  return w;
}

/* Seconds of products with `many` matrices, one after the other in the buffer. *n: how many there were. */
static double time_linear(sh_kb *b, int variant, sh_dtype t, int64_t rows, int64_t k, int toks, int many, int *n) {
  size_t bytes = (size_t)rows * sh_fill_row_bytes(t, k);
  linear_case l = {.toks = toks, .x = tensor(b, toks, k, 1), .y = tensor(b, toks, rows, 0)};
  for (size_t at = 0; l.n < many && at + bytes <= b->probe.bytes; at += bytes) l.w[l.n++] = bind(b, t, rows, k, at);
  if (l.n == 0 && b->rc == 0) b->rc = sh_fail(b->e, SH_ERR_LIMIT, "a matrix of %zu MiB does not fit the buffer of weights", bytes >> 20);
  double sec = best(b, variant, run_linear, &l);
  for (int i = 0; i < l.n; i++)
    if (l.w[i]) b->be[SH_KB_PLAIN]->ops->weight_free(b->be[SH_KB_PLAIN], l.w[i]);
  drop(b, l.x), drop(b, l.y);
  *n = l.n;
  return sec;
}

static void prefill(sh_kb *b, sh_dtype t, int64_t rows, int64_t k, int toks) {
  char name[80];
  int n;
  snprintf(name, sizeof name, "prefill %s %lldx%lld, %d tokens", sh_dtype_name(t), (long long)rows, (long long)k, toks);
  if (!sh_kb_wanted(b, name)) return;
  fill(b, t, k);
  measure_peak(b);
  double rate[SH_KB_VARIANTS] = {0}, sec = 0;
  rate[SH_KB_PLAIN] = 2.0 * PLAIN_ROWS * (double)k * PLAIN_TOKENS / time_linear(b, SH_KB_PLAIN, t, PLAIN_ROWS, k, PLAIN_TOKENS, 1, &n);
  if (b->be[SH_KB_BEST]) {
    sec = time_linear(b, SH_KB_BEST, t, rows, k, toks, 1, &n);
    rate[SH_KB_BEST] = 2.0 * (double)rows * (double)k * toks / sec;
  }
  sh_kb_row(b, name, SH_KB_FLOPS, rate, sec * 1e3, NULL);
}

/* *one: seconds of a matrix with one token, set by the call with one and read by those with more; 0: unknown. */
static void decode(sh_kb *b, sh_dtype t, int64_t rows, int64_t k, int toks, double *one) {
  char name[80], remark[64] = "";
  int n;
  snprintf(name, sizeof name, "decode %s %lldx%lld, %d token%s", sh_dtype_name(t), (long long)rows, (long long)k, toks,
           toks > 1 ? "s" : "");
  if (!sh_kb_wanted(b, name)) return;
  fill(b, t, k);
  measure_bandwidth(b);
  double row = (double)sh_fill_row_bytes(t, k), rate[SH_KB_VARIANTS] = {0}, sec = 0;
  rate[SH_KB_PLAIN] = row * PLAIN_ROWS / time_linear(b, SH_KB_PLAIN, t, PLAIN_ROWS, k, toks, 1, &n);
  if (b->be[SH_KB_BEST]) {
    sec = time_linear(b, SH_KB_BEST, t, rows, k, toks, MANY, &n);
    rate[SH_KB_BEST] = row * (double)rows * n / sec;
    sec /= n;
    if (toks == 1 && one) *one = sec;
    if (toks > 1 && one && *one > 0) snprintf(remark, sizeof remark, "%.2f times the tokens/s of one", toks * *one / sec);
  }
  sh_kb_row(b, name, SH_KB_BYTES, rate, sec * 1e3, remark);
}

static void batches(sh_kb *b, sh_dtype t, int64_t rows, int64_t k) {
  static const int toks[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  double one = 0;
  for (size_t i = 0; i < sizeof toks / sizeof *toks; i++) decode(b, t, rows, k, toks[i], &one);
}

/* --- Attention */

typedef struct attn_case {
  sh_cache *cache;
  sh_attn p;
  sh_batch batch;
  sh_seq seq;
  sh_tensor *q, *k, *v, *out;
} attn_case;

static int run_attention(sh_kb *b, sh_backend *be, void *ctx) {
  attn_case *a = ctx;
  return be->ops->attention(be, a->cache, 0, &a->p, &a->batch, a->q, a->k, a->v, a->out, b->e);
}

static double time_attention(sh_kb *b, int variant, const sh_attn *p, int pos, int toks, sh_kv_type kv) {
  sh_backend *be = b->be[variant];
  int n_pages = (pos + toks + 15) / 16, d = p->head_dim;
  attn_case a = {.p = *p, .seq = {.count = toks, .pos = pos}};
  const sh_cache_spec spec = {
      .n_attn_layers = 1, .n_kv_heads = p->n_kv_heads, .head_dim = d, .page_size = 16, .n_pages = n_pages, .kv_type = kv};
  const sh_reserve r = {.max_tokens = 2048,
                        .max_seqs = 1,
                        .max_out = 1,
                        .max_context = pos + toks,
                        .max_cols = 64,
                        .max_rows = 64,
                        .n_heads = p->n_heads,
                        .head_dim = d};
  int32_t *pages = sh_calloc((size_t)n_pages, sizeof *pages);
  if (!pages && b->rc == 0) b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory");
  if (b->rc == 0) b->rc = be->ops->cache_new(be, &spec, &a.cache, b->e);
  for (int i = 0; b->rc == 0 && i < n_pages; i++) { /* a page of its own for each: one never written is the system's page of zeros */
    pages[i] = i;
    if (i > 0) b->rc = be->ops->page_copy(be, a.cache, i, 0, b->e);
  }
  a.q = tensor(b, toks, 2 * p->n_heads * d, 1), a.k = tensor(b, toks, p->n_kv_heads * d, 1), a.v = tensor(b, toks, p->n_kv_heads * d, 1);
  a.out = tensor(b, toks, p->n_heads * d, 0);
  a.seq.pages = pages;
  a.batch = (sh_batch){.n_seqs = 1, .seqs = &a.seq, .n_tokens = toks};
  if (b->rc == 0) b->rc = be->ops->reserve(be, &r, b->e);
  double sec = best(b, variant, run_attention, &a);
  drop(b, a.q), drop(b, a.k), drop(b, a.v), drop(b, a.out);
  if (a.cache) be->ops->cache_free(be, a.cache);
  sh_free(pages);
  return sec;
}

static void attention(sh_kb *b, int heads, int kv_heads, int d, int pos, int toks, sh_kv_type kv) {
  char name[96];
  static const char *const names[] = {"f32", "bf16", "int8"};
  const char *type = names[kv];
  snprintf(name, sizeof name, "attention %s %d:%d heads of %d, %d token%s at %d", type, heads, kv_heads, d, toks, toks > 1 ? "s" : "", pos);
  if (!sh_kb_wanted(b, name)) return;
  double inv_freq[128];
  for (int i = 0; i < d / 2; i++) inv_freq[i] = pow(1e7, -2.0 * i / d);
  const sh_attn p = {.n_heads = heads,
                     .n_kv_heads = kv_heads,
                     .head_dim = d,
                     .rotary_dim = d / 4,
                     .gated = true,
                     .scale = 1.0f / sqrtf((float)d),
                     .eps = 1e-6f,
                     .rope_scale = 1,
                     .inv_freq = inv_freq};
  measure_peak(b);
  measure_bandwidth(b);
  int few = toks < 64 ? toks : 64, near = pos < 512 ? pos : 512;                                          /* plain C: a smaller piece */
  double pairs = (double)toks * (pos + (toks + 1) / 2.0), plain = (double)few * (near + (few + 1) / 2.0); /* query tokens x keys seen */
  double ops = 4.0 * heads * d, bytes = 2.0 * kv_heads * (double)sh_kv_row_bytes(kv, d);
  double t0 = time_attention(b, SH_KB_PLAIN, &p, near, few, kv),
         t1 = b->be[SH_KB_BEST] ? time_attention(b, SH_KB_BEST, &p, pos, toks, kv) : 0;
  double flops[SH_KB_VARIANTS] = {ops * plain / t0, t1 > 0 ? ops * pairs / t1 : 0};
  double read[SH_KB_VARIANTS] = {bytes * (near + 1) / t0, t1 > 0 ? bytes * (pos + 1) / t1 : 0};
  sh_kb_row(b, name, SH_KB_FLOPS, flops, t1 * 1e3, NULL);
  if (toks == 1) sh_kb_row(b, name, SH_KB_BYTES, read, t1 * 1e3, NULL);
}

/* --- Gated delta rule */

typedef struct gdn_case {
  sh_cache *cache;
  sh_gdn p;
  sh_batch batch;
  sh_tensor *qkv, *z, *a, *b, *out;
} gdn_case;

static int run_gdn(sh_kb *b, sh_backend *be, void *ctx) {
  gdn_case *g = ctx;
  return be->ops->gated_delta(be, g->cache, 0, &g->p, &g->batch, g->qkv, g->z, g->a, g->b, g->out, b->e);
}

enum { GDN_DIM = 128 };

static double time_gdn(sh_kb *b, int variant, int k_heads, int v_heads, int toks) {
  sh_backend *be = b->be[variant];
  int channels = (2 * k_heads + v_heads) * GDN_DIM;
  sh_tensor *w = tensor(b, channels, 4, 1), *neg = tensor(b, 1, v_heads, 0), *dt = tensor(b, 1, v_heads, 1),
            *gain = tensor(b, 1, GDN_DIM, 1);
  gdn_case g = {.p = {.k_heads = k_heads,
                      .v_heads = v_heads,
                      .k_dim = GDN_DIM,
                      .v_dim = GDN_DIM,
                      .conv_kernel = 4,
                      .eps = 1e-6f,
                      .conv_w = w,
                      .neg_exp_a = neg,
                      .dt_bias = dt,
                      .gain = gain}};
  const sh_cache_spec spec = {.n_linear_layers = 1,
                              .lin_v_heads = v_heads,
                              .lin_k_dim = GDN_DIM,
                              .lin_v_dim = GDN_DIM,
                              .conv_channels = channels,
                              .conv_kernel = 4,
                              .n_slots = 1};
  if (b->rc == 0) b->rc = be->ops->cache_new(be, &spec, &g.cache, b->e);
  g.qkv = tensor(b, toks, channels, 1), g.z = tensor(b, toks, v_heads * GDN_DIM, 1), g.a = tensor(b, toks, v_heads, 1);
  g.b = tensor(b, toks, v_heads, 1), g.out = tensor(b, toks, v_heads * GDN_DIM, 0);
  sh_seq seq = {.count = toks};
  g.batch = (sh_batch){.n_seqs = 1, .seqs = &seq, .n_tokens = toks};
  double sec = best(b, variant, run_gdn, &g);
  drop(b, w), drop(b, neg), drop(b, dt), drop(b, gain), drop(b, g.qkv), drop(b, g.z), drop(b, g.a), drop(b, g.b), drop(b, g.out);
  if (g.cache) be->ops->cache_free(be, g.cache);
  return sec;
}

static void gdn(sh_kb *b, int k_heads, int v_heads, int toks) {
  char name[80], remark[64] = "";
  snprintf(name, sizeof name, "gated_delta %d:%d heads of %d, %d token%s", v_heads, k_heads, GDN_DIM, toks, toks > 1 ? "s" : "");
  if (!sh_kb_wanted(b, name)) return;
  measure_peak(b);
  int few = toks < 8 ? toks : 8;
  double ops = 7.0 * GDN_DIM * GDN_DIM * v_heads; /* a token: S^T k 2, decay 1, update 2, S^T q 2 */
  double t0 = time_gdn(b, SH_KB_PLAIN, k_heads, v_heads, few), t1 = b->be[SH_KB_BEST] ? time_gdn(b, SH_KB_BEST, k_heads, v_heads, toks) : 0;
  double rate[SH_KB_VARIANTS] = {ops * few / t0, t1 > 0 ? ops * toks / t1 : 0};
  if (t1 > 0) snprintf(remark, sizeof remark, "%.2f us per head and token on a thread", t1 / toks / v_heads * b->probe.threads * 1e6);
  sh_kb_row(b, name, SH_KB_FLOPS, rate, t1 * 1e3, remark);
}

/* --- Experts */

enum { E = 128, HID = 2048, FFN = 512, TOPK = 8 };

typedef struct moe_case {
  sh_moe p;
  sh_tensor *x, *y;
  int toks;
} moe_case;

static int run_moe(sh_kb *b, sh_backend *be, void *ctx) {
  moe_case *m = ctx;
  return be->ops->moe(be, &m->p, m->x, m->toks, false, m->y, b->e);
}

static void moe(sh_kb *b, sh_dtype t, int toks) {
  char name[80];
  snprintf(name, sizeof name, "experts %s %d of %d, %dx%d, %d token%s", sh_dtype_name(t), TOPK, E, FFN, HID, toks, toks > 1 ? "s" : "");
  size_t one = (size_t)FFN * sh_fill_row_bytes(t, HID);
  if (!sh_kb_wanted(b, name) || (3 * E + 1) * one > b->probe.bytes) return;
  fill(b, t, HID);
  sh_weight **m = sh_calloc(3 * E, sizeof(sh_weight *)), *router = bind(b, t, E, HID, 3 * E * one);
  if (!m && b->rc == 0) b->rc = sh_fail(b->e, SH_ERR_NOMEM, "out of memory");
  for (int i = 0; b->rc == 0 && i < 3 * E; i++) /* an expert's three lie together: rows of [gates, ups, downs] */
    m[i % 3 * E + i / 3] = bind(b, t, i % 3 == 2 ? HID : FFN, i % 3 == 2 ? FFN : HID, (size_t)i * one);
  moe_case c = {.p = {.n_experts = E,
                      .top_k = TOPK,
                      .router = router,
                      .gate = (const sh_weight *const *)m,
                      .up = (const sh_weight *const *)(m + E),
                      .down = (const sh_weight *const *)(m + 2 * E)},
                .x = tensor(b, toks, HID, 1),
                .y = tensor(b, toks, HID, 0),
                .toks = 1};
  measure_peak(b);
  measure_bandwidth(b);
  double t0 = best(b, SH_KB_PLAIN, run_moe, &c), t1 = 0, ops = 6.0 * HID * FFN * TOPK;
  c.toks = toks;
  if (b->be[SH_KB_BEST]) t1 = best(b, SH_KB_BEST, run_moe, &c);
  double flops[SH_KB_VARIANTS] = {ops / t0, t1 > 0 ? ops * toks / t1 : 0};
  double read[SH_KB_VARIANTS] = {3.0 * TOPK * (double)one / t0, t1 > 0 ? 3.0 * TOPK * (double)one / t1 : 0};
  sh_kb_row(b, name, SH_KB_FLOPS, flops, t1 * 1e3, NULL);
  if (toks == 1) sh_kb_row(b, name, SH_KB_BYTES, read, t1 * 1e3, NULL);
  for (int i = 0; m && i < 3 * E; i++)
    if (m[i]) b->be[SH_KB_PLAIN]->ops->weight_free(b->be[SH_KB_PLAIN], m[i]);
  if (router) b->be[SH_KB_PLAIN]->ops->weight_free(b->be[SH_KB_PLAIN], router);
  sh_free(m);
  drop(b, c.x), drop(b, c.y);
}

/* --- All */

static void all(sh_kb *b) {
  static const sh_dtype types[] = {SH_BF16, SH_F32,  SH_Q8_0, SH_Q4_0,   SH_Q4_1, SH_Q5_0,    SH_Q5_1, SH_Q4_K,
                                   SH_Q5_K, SH_Q6_K, SH_I4,   SH_IQ4_NL, SH_F16,  SH_F8_E4M3, SH_I8,   SH_U8};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    sh_dtype t = types[i];
    prefill(b, t, 1024, 1024, 256);
    prefill(b, t, 4096, 4096, 512);
    decode(b, t, 2048, 2048, 1, NULL);
    if (t == SH_BF16) prefill(b, t, 3584, 1024, 512);
    if (t == SH_BF16) decode(b, t, 3584, 1024, 1, NULL);
    if (t == SH_BF16 || t == SH_Q4_0 || t == SH_I4 || t == SH_Q4_K) batches(b, t, 4096, 4096);
    if (t == SH_BF16) moe(b, t, 1), moe(b, t, 512);
  }
  attention(b, 8, 2, 256, 0, 2048, SH_KV_BF16);
  attention(b, 8, 2, 256, 0, 2048, SH_KV_F32);
  attention(b, 8, 2, 256, 16384, 1, SH_KV_BF16);
  attention(b, 8, 2, 256, 16384, 1, SH_KV_I8);
  attention(b, 8, 2, 256, 16384, 1, SH_KV_F32);
  attention(b, 16, 2, 256, 16384, 1, SH_KV_BF16);
  attention(b, 9, 3, 64, 0, 512, SH_KV_BF16);
  gdn(b, 16, 16, 512);
  gdn(b, 16, 32, 1);
  sh_kb_single_rows(b);
}

static int open_variants(sh_kb *b, sh_bench_out *out, sh_error *e) {
  int threads = b->o->threads;
  int rc = sh_kernels_init(&b->k[SH_KB_PLAIN], "baseline", e);
  if (rc == 0) rc = sh_kernels_init(&b->k[SH_KB_BEST], b->o->cpu, e);
  if (rc == 0) rc = sh_backend_cpu_new(&b->be[SH_KB_PLAIN], &(sh_backend_opts){.threads = threads, .cpu = "baseline"}, e);
  if (rc < 0) return rc;
  bool plain = b->k[SH_KB_BEST].dot == b->k[SH_KB_PLAIN].dot;
  if (!plain) rc = sh_backend_cpu_new(&b->be[SH_KB_BEST], &(sh_backend_opts){.threads = threads, .cpu = b->o->cpu}, e);
  else
    sh_bench_add_note(out,
                      "No AVX2 (with FMA, F16C and BMI2), or --cpu baseline: plain C is all there is, and its shares are of plain loops.");
  sh_bench_add_fact(out, "best", "%s", b->k[SH_KB_BEST].name);
  return rc;
}

int sh_bench_kernels_run(sh_bench_out *out, const sh_bench_kernels_opts *o, sh_error *e) {
  sh_kb b = {.o = o, .filled = SH_OTHER, .e = e, .counting = true};
  size_t most = sh_probe_bytes(), bytes = o->bytes ? o->bytes : most < BUFFER ? most : BUFFER;
  b.table = sh_bench_add_table(out, "rows", COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
  b.table->bar = "share_percent";
  b.table->bar_note = "Share of the limit measured in the same run, %";
  all(&b);
  if (b.show.total == 0) return sh_fail(e, SH_ERR_ARG, "--only '%.60s': no row has this in its name", o->only ? o->only : "");
  sh_bench_progress_begin(&b.show, b.show.total);
  b.counting = false;
  b.rc = open_variants(&b, out, e);
  if (b.rc == 0) b.rc = sh_probe_new(&b.probe, o->threads, bytes, o->cpu, e);
  b.side = sh_aligned(64, 2 * (size_t)SH_KB_SIDE);
  if (!b.side && b.rc == 0) b.rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (b.rc == 0) {
    b.probe.own_clock = true;
    memset(b.side, 0x2d, SH_KB_SIDE); /* a small number in f16 and bf16 */
    memset(b.side + SH_KB_SIDE, 7, SH_KB_SIDE);
    sh_bench_add_fact(out, "threads", "%d, timed by the %s clock", b.probe.threads, b.probe.threads == 1 ? "processor's" : "wall");
    measure_peak(&b);
    measure_bandwidth(&b);
    all(&b);
  }
  sh_bench_progress_end(&b.show);
  sh_free(b.side);
  sh_probe_free(&b.probe);
  for (int i = 0; i < SH_KB_VARIANTS; i++)
    if (b.be[i]) b.be[i]->ops->free(b.be[i]);
  return b.rc;
}
