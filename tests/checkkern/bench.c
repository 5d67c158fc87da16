/* Speeds of the CPU backend's operations, each as a share of what the machine can do, measured next to it in the same run: the fp32 peak of
 * AVX2 code (chains of fma on all threads) or the bandwidth of reading (all threads over a buffer far larger than the caches). Machines are
 * shared and their clocks move, so a share is worth more than a number; each is the best of several rounds. */
#include "backend/backend.h"
#include "base/pool.h"
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const size_t buffer_bytes = (size_t)1 << 30, side_bytes = (size_t)64 << 20; /* side: 2 bytes per 128 weights of 4 bits */

typedef struct bench {
  sh_backend *be;
  sh_pool *pool; /* of as many threads as the backend's */
  int threads;
  const char *only;
  uint8_t *buf;           /* buffer_bytes of weights */
  uint8_t *side;          /* side_bytes of scales and zero points, for types with groups */
  sh_dtype filled;        /* type of the weights in it; SH_OTHER: none */
  double peak, bandwidth; /* the best so far: flop/s, bytes/s */
  float sink[64];
} bench;

/* On one thread the clock is the time on a processor, which other programs on the machine disturb less; on several it is the time that
 * passes. */
static double seconds(const bench *b) {
  struct timespec t;
  if (b->threads > 1) return (double)sh_now_ns() * 1e-9;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- What the machine can do */

static void peak_item(void *ctx, int item, int worker) {
  bench *b = ctx;
  (void)item;
  b->sink[worker % 64] += ck_peak_avx2(200 * 1000);
}

static void measure_peak(bench *b) {
  for (int i = 0; i < 5; i++) {
    double t = seconds(b);
    sh_pool_run(b->pool, peak_item, b, b->threads);
    double rate = 200e3 * 1920 * b->threads / (seconds(b) - t);
    if (rate > b->peak) b->peak = rate;
  }
}

/* Eight sums, so that adding is never what limits, and lines asked for well ahead, as the kernels do. */
static void read_item(void *ctx, int item, int worker) {
  bench *b = ctx;
  size_t part = (size_t)4 << 20;
  const uint64_t *p = (const uint64_t *)(const void *)(b->buf + (size_t)item * part);
  uint64_t s[8] = {0};
  for (size_t i = 0; i < part / 8; i += 8) {
    __builtin_prefetch(p + i + 2048, 0, 2);
    for (int j = 0; j < 8; j++) s[j] += p[i + (size_t)j];
  }
  b->sink[worker % 64] += (float)(s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]);
}

static void measure_bandwidth(bench *b) {
  for (int i = 0; i < 3; i++) {
    double t = seconds(b);
    sh_pool_run(b->pool, read_item, b, (int)(buffer_bytes >> 22));
    double rate = (double)buffer_bytes / (seconds(b) - t);
    if (rate > b->bandwidth) b->bandwidth = rate;
  }
}

/* --- Pieces */

#define CALL(x)                                                                                                                            \
  do {                                                                                                                                     \
    sh_error e_;                                                                                                                           \
    sh_error *e = &e_;                                                                                                                     \
    if ((x) < 0) {                                                                                                                         \
      fprintf(stderr, "bench: %s\n", e_.text);                                                                                             \
      exit(2);                                                                                                                             \
    }                                                                                                                                      \
  } while (0)

static bool wanted(const bench *b, const char *name) { return !b->only || strstr(name, b->only); }

/* Fills the buffer with rows of a type: 4 MB of random ones, repeated. */
static void fill(bench *b, sh_dtype t, int64_t k) {
  size_t rb = ck_row_bytes(t, k), rows = ((size_t)4 << 20) / rb + 1;
  ck c = {.rng = 1};
  ck_fill_weights(&c, t, b->buf, rows, rb, k);
  for (size_t at = rows * rb; at < buffer_bytes; at += rows * rb)
    memcpy(b->buf + at, b->buf, buffer_bytes - at < rows * rb ? buffer_bytes - at : rows * rb);
  b->filled = t;
}

static sh_tensor *tensor(bench *b, int64_t rows, int64_t cols, float scale) {
  sh_tensor *t;
  CALL(b->be->ops->tensor_new(b->be, rows, cols, &t, e));
  ck c = {.rng = 7};
  float *p = malloc((size_t)(rows * cols) * sizeof *p);
  ck_fill(&c, p, (size_t)(rows * cols), scale);
  CALL(b->be->ops->tensor_write(b->be, t, 0, rows, p, e));
  free(p);
  return t;
}

static void drop(bench *b, sh_tensor *t) { b->be->ops->tensor_free(b->be, t); }

typedef void once_fn(bench *b, void *ctx);

/* Best seconds of a call, after one to warm up: at least five, and as many as fit in half a second. */
static double best(bench *b, once_fn *fn, void *ctx) {
  double top = INFINITY, spent = 0;
  fn(b, ctx);
  for (int i = 0; i < 5 || spent < 0.5; i++) {
    double t = seconds(b);
    fn(b, ctx);
    t = seconds(b) - t;
    spent += t;
    if (t < top) top = t;
  }
  return top;
}

static void report_flops(bench *b, const char *name, double flops, double sec) {
  printf("%-52s %9.3f ms %8.1f GFLOP/s %5.1f%% of the fp32 peak (%.0f)\n", name, sec * 1e3, flops / sec * 1e-9, 100 * flops / sec / b->peak,
         b->peak * 1e-9);
  fflush(stdout);
}

static void report_bytes(bench *b, const char *name, double bytes, double sec) {
  printf("%-52s %9.3f ms %8.1f GB/s    %5.1f%% of read bandwidth (%.1f)\n", name, sec * 1e3, bytes / sec * 1e-9,
         100 * bytes / sec / b->bandwidth, b->bandwidth * 1e-9);
  fflush(stdout);
}

/* --- Matrix products */

typedef struct linear_case {
  sh_weight *w;
  sh_weight *many[256]; /* decode: as many matrices as fill the buffer */
  int n_many, toks;
  sh_tensor *x, *y;
} linear_case;

static void run_linear(bench *b, void *ctx) {
  linear_case *l = ctx;
  CALL(b->be->ops->linear(b->be, l->w, l->x, l->toks, NULL, false, l->y, e));
}

static void run_many(bench *b, void *ctx) {
  linear_case *l = ctx;
  for (int i = 0; i < l->n_many; i++) CALL(b->be->ops->linear(b->be, l->many[i], l->x, l->toks, NULL, false, l->y, e));
}

/* Rows at buf + at. SH_I4, SH_U8: groups of 128 with f16 scales and zero points; SH_I8: the same without; SH_F8_E4M3: blocks of 128 x 128
 * with bf16 scales. */
static sh_weight *bind(bench *b, sh_dtype t, int64_t rows, int64_t k, size_t at) {
  sh_weight *w;
  sh_wview v = {.type = t, .rows = rows, .cols = k, .data = b->buf + at, .row_bytes = ck_row_bytes(t, k), .name = "w"};
  if (sh_dtype_has_groups(t)) {
    size_t first = at / (t == SH_I4 ? 64 : 128) & ~(size_t)63, groups = (size_t)k / 128; /* of the scales that belong to those bytes */
    v.group = 128;
    v.scale_rows = t == SH_F8_E4M3 ? 128 : 1;
    v.scale_type = t == SH_F8_E4M3 ? SH_BF16 : SH_F16;
    v.scales = b->side + 2 * first;
    v.scale_row_bytes = 2 * groups;
    if (t == SH_I4 || t == SH_U8) v.zeros = b->side + side_bytes + first, v.zero_row_bytes = groups;
  }
  CALL(b->be->ops->weight_bind(b->be, &v, &w, e));
  return w;
}

static void bench_prefill(bench *b, sh_dtype t, int64_t rows, int64_t k, int toks) {
  char name[80];
  snprintf(name, sizeof name, "prefill %s %lldx%lld, %d tokens", ck_type_name(t), (long long)rows, (long long)k, toks);
  if (!wanted(b, name)) return;
  if (b->filled != t) fill(b, t, k);
  linear_case l = {.w = bind(b, t, rows, k, 0), .toks = toks, .x = tensor(b, toks, k, 1), .y = tensor(b, toks, rows, 0)};
  measure_peak(b);
  double sec = best(b, run_linear, &l);
  report_flops(b, name, 2.0 * (double)rows * (double)k * toks, sec);
  b->be->ops->weight_free(b->be, l.w);
  drop(b, l.x), drop(b, l.y);
}

/* Returns the seconds of one matrix. */
static double bench_decode(bench *b, sh_dtype t, int64_t rows, int64_t k, int toks) {
  char name[80];
  snprintf(name, sizeof name, "decode %s %lldx%lld, %d token%s", ck_type_name(t), (long long)rows, (long long)k, toks, toks > 1 ? "s" : "");
  if (!wanted(b, name)) return 0;
  if (b->filled != t) fill(b, t, k);
  size_t bytes = (size_t)rows * ck_row_bytes(t, k);
  linear_case l = {.toks = toks, .x = tensor(b, toks, k, 1), .y = tensor(b, toks, rows, 0)};
  for (size_t at = 0; l.n_many < 256 && at + bytes <= buffer_bytes; at += bytes) l.many[l.n_many++] = bind(b, t, rows, k, at);
  measure_bandwidth(b);
  double sec = best(b, run_many, &l);
  report_bytes(b, name, (double)bytes * l.n_many, sec);
  for (int i = 0; i < l.n_many; i++) b->be->ops->weight_free(b->be, l.many[i]);
  drop(b, l.x), drop(b, l.y);
  return sec / l.n_many;
}

static void bench_batches(bench *b, sh_dtype t, int64_t rows, int64_t k) {
  static const int toks[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  double one = 0;
  for (size_t i = 0; i < sizeof toks / sizeof *toks; i++) {
    double sec = bench_decode(b, t, rows, k, toks[i]);
    if (i == 0) one = sec;
    if (sec > 0 && one > 0 && i > 0) printf("%-52s %.2f times the tokens/s of one\n", "", toks[i] * one / sec);
  }
}

/* --- Attention */

typedef struct attn_case {
  sh_cache *cache;
  sh_attn p;
  sh_batch batch;
  sh_tensor *q, *k, *v, *out;
} attn_case;

static void run_attention(bench *b, void *ctx) {
  attn_case *a = ctx;
  CALL(b->be->ops->attention(b->be, a->cache, 0, &a->p, &a->batch, a->q, a->k, a->v, a->out, e));
}

static void bench_attention(bench *b, int heads, int kv_heads, int d, int pos, int toks, sh_kv_type kv) {
  char name[80];
  snprintf(name, sizeof name, "attention %s %d:%d heads of %d, %d tokens at %d", kv == SH_KV_F32 ? "f32" : "bf16", heads, kv_heads, d, toks,
           pos);
  if (!wanted(b, name)) return;
  int n_pages = (pos + toks + 15) / 16;
  double inv_freq[128];
  for (int i = 0; i < d / 2; i++) inv_freq[i] = pow(1e7, -2.0 * i / d);
  attn_case a = {.p = {.n_heads = heads,
                       .n_kv_heads = kv_heads,
                       .head_dim = d,
                       .rotary_dim = d / 4,
                       .gated = true,
                       .scale = 1.0f / sqrtf((float)d),
                       .eps = 1e-6f,
                       .rope_scale = 1,
                       .inv_freq = inv_freq}};
  CALL(b->be->ops->cache_new(
      b->be,
      &(sh_cache_spec){.n_attn_layers = 1, .n_kv_heads = kv_heads, .head_dim = d, .page_size = 16, .n_pages = n_pages, .kv_type = kv},
      &a.cache, e));
  int32_t *pages = malloc((size_t)n_pages * sizeof *pages);
  for (int i = 0; i < n_pages; i++) pages[i] = i;
  a.q = tensor(b, toks, 2 * heads * d, 1), a.k = tensor(b, toks, kv_heads * d, 1), a.v = tensor(b, toks, kv_heads * d, 1),
  a.out = tensor(b, toks, heads * d, 0);
  sh_seq seq = {.count = toks, .pos = pos, .pages = pages};
  a.batch = (sh_batch){.n_seqs = 1, .seqs = &seq, .n_tokens = toks};
  CALL(b->be->ops->reserve(b->be,
                           &(sh_reserve){.max_tokens = 2048,
                                         .max_seqs = 1,
                                         .max_out = 1,
                                         .max_context = pos + toks,
                                         .max_cols = 64,
                                         .max_rows = 64,
                                         .n_heads = heads,
                                         .head_dim = d},
                           e));
  double pairs = (double)toks * (pos + (toks + 1) / 2.0); /* query tokens x keys seen */
  measure_peak(b);
  measure_bandwidth(b);
  double sec = best(b, run_attention, &a);
  report_flops(b, name, 4.0 * pairs * heads * d, sec);
  if (toks == 1) report_bytes(b, name, 2.0 * (pos + 1) * kv_heads * d * (kv == SH_KV_F32 ? 4 : 2), sec);
  drop(b, a.q), drop(b, a.k), drop(b, a.v), drop(b, a.out);
  b->be->ops->cache_free(b->be, a.cache);
  free(pages);
}

/* --- Gated delta rule */

typedef struct gdn_case {
  sh_cache *cache;
  sh_gdn p;
  sh_batch batch;
  sh_tensor *qkv, *z, *a, *b, *out;
} gdn_case;

static void run_gdn(bench *b, void *ctx) {
  gdn_case *g = ctx;
  CALL(b->be->ops->gated_delta(b->be, g->cache, 0, &g->p, &g->batch, g->qkv, g->z, g->a, g->b, g->out, e));
}

static void bench_gdn(bench *b, int k_heads, int v_heads, int toks) {
  char name[80];
  snprintf(name, sizeof name, "gated_delta %d:%d heads of 128, %d token%s", v_heads, k_heads, toks, toks > 1 ? "s" : "");
  if (!wanted(b, name)) return;
  enum { D = 128 };
  int channels = (2 * k_heads + v_heads) * D;
  gdn_case g = {.p = {.k_heads = k_heads, .v_heads = v_heads, .k_dim = D, .v_dim = D, .conv_kernel = 4, .eps = 1e-6f}};
  sh_tensor *w = tensor(b, channels, 4, 1), *neg = tensor(b, 1, v_heads, 0), *dt = tensor(b, 1, v_heads, 1), *gain = tensor(b, 1, D, 1);
  g.p.conv_w = w, g.p.neg_exp_a = neg, g.p.dt_bias = dt, g.p.gain = gain;
  CALL(b->be->ops->cache_new(b->be,
                             &(sh_cache_spec){.n_linear_layers = 1,
                                              .lin_v_heads = v_heads,
                                              .lin_k_dim = D,
                                              .lin_v_dim = D,
                                              .conv_channels = channels,
                                              .conv_kernel = 4,
                                              .n_slots = 1},
                             &g.cache, e));
  g.qkv = tensor(b, toks, channels, 1), g.z = tensor(b, toks, v_heads * D, 1), g.a = tensor(b, toks, v_heads, 1),
  g.b = tensor(b, toks, v_heads, 1);
  g.out = tensor(b, toks, v_heads * D, 0);
  sh_seq seq = {.count = toks};
  g.batch = (sh_batch){.n_seqs = 1, .seqs = &seq, .n_tokens = toks};
  measure_peak(b);
  double sec = best(b, run_gdn, &g), per = sec / toks / v_heads * b->threads;
  report_flops(b, name, 7.0 * D * D * toks * v_heads, sec); /* S^T k: 2, decay: 1, update: 2, S^T q: 2 */
  printf("%-52s %9.2f us per head and token on a thread\n", "", per * 1e6);
  drop(b, w), drop(b, neg), drop(b, dt), drop(b, gain), drop(b, g.qkv), drop(b, g.z), drop(b, g.a), drop(b, g.b), drop(b, g.out);
  b->be->ops->cache_free(b->be, g.cache);
}

/* --- Experts */

typedef struct moe_case {
  sh_moe p;
  sh_tensor *x, *y;
  int toks;
} moe_case;

static void run_moe(bench *b, void *ctx) {
  moe_case *m = ctx;
  CALL(b->be->ops->moe(b->be, &m->p, m->x, m->toks, false, m->y, e));
}

static void bench_moe(bench *b, sh_dtype t, int toks) {
  enum { E = 128, HID = 2048, FFN = 512, TOPK = 8 };
  char name[80];
  snprintf(name, sizeof name, "experts %s %d of %d, %dx%d, %d token%s", ck_type_name(t), TOPK, E, FFN, HID, toks, toks > 1 ? "s" : "");
  if (!wanted(b, name)) return;
  if (b->filled != t) fill(b, t, HID);
  size_t one = (size_t)FFN * ck_row_bytes(t, HID);
  static sh_weight *m[3][E];
  for (int i = 0; i < 3 * E; i++) m[i % 3][i / 3] = bind(b, t, i % 3 == 2 ? HID : FFN, i % 3 == 2 ? FFN : HID, (size_t)i * one);
  sh_weight *router = bind(b, t, E, HID, 3 * E * one);
  moe_case c = {.p = {.n_experts = E,
                      .top_k = TOPK,
                      .router = router,
                      .gate = (const sh_weight *const *)m[0],
                      .up = (const sh_weight *const *)m[1],
                      .down = (const sh_weight *const *)m[2]},
                .x = tensor(b, toks, HID, 1),
                .y = tensor(b, toks, HID, 0),
                .toks = toks};
  measure_peak(b);
  measure_bandwidth(b);
  double sec = best(b, run_moe, &c);
  report_flops(b, name, 6.0 * HID * FFN * TOPK * toks, sec);
  if (toks == 1) report_bytes(b, name, 3.0 * TOPK * (double)one, sec);
  for (int i = 0; i < 3 * E; i++) b->be->ops->weight_free(b->be, m[i % 3][i / 3]);
  b->be->ops->weight_free(b->be, router);
  drop(b, c.x), drop(b, c.y);
}

static void bench_all(bench *b) {
  static const sh_dtype types[] = {SH_BF16, SH_F32,  SH_Q8_0, SH_Q4_0,   SH_Q4_1, SH_Q5_0,    SH_Q5_1, SH_Q4_K,
                                   SH_Q5_K, SH_Q6_K, SH_I4,   SH_IQ4_NL, SH_F16,  SH_F8_E4M3, SH_I8,   SH_U8};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    bench_prefill(b, types[i], 1024, 1024, 256);
    bench_prefill(b, types[i], 4096, 4096, 512);
    bench_decode(b, types[i], 2048, 2048, 1);
    if (types[i] == SH_BF16) bench_prefill(b, types[i], 3584, 1024, 512);
    if (types[i] == SH_BF16) bench_decode(b, types[i], 3584, 1024, 1);
    if (types[i] == SH_BF16 || types[i] == SH_Q4_0 || types[i] == SH_I4 || types[i] == SH_Q4_K) bench_batches(b, types[i], 4096, 4096);
    if (types[i] == SH_BF16) bench_moe(b, types[i], 1), bench_moe(b, types[i], 512);
  }
  bench_attention(b, 8, 2, 256, 0, 2048, SH_KV_BF16);
  bench_attention(b, 8, 2, 256, 0, 2048, SH_KV_F32);
  bench_attention(b, 8, 2, 256, 16384, 1, SH_KV_BF16);
  bench_attention(b, 8, 2, 256, 16384, 1, SH_KV_F32);
  bench_attention(b, 9, 3, 64, 0, 512, SH_KV_BF16);
  bench_gdn(b, 16, 16, 512);
  bench_gdn(b, 16, 32, 1);
}

int ck_bench(int threads, const char *only) {
  bench b = {.only = only, .filled = SH_OTHER};
  sh_error e;
  if (!(sh_kernels_detect() & SH_CPU_AVX2)) {
    printf("no speeds: the peak is that of AVX2, which this machine lacks\n");
    return 0;
  }
  int rc = sh_backend_cpu_new(&b.be, &(sh_backend_opts){.threads = threads}, &e);
  if (rc == 0) rc = sh_pool_new(&b.pool, threads, &e);
  if (rc < 0) {
    printf("bench: %s\n", e.text);
    return rc;
  }
  b.threads = sh_pool_size(b.pool);
  b.buf = malloc(buffer_bytes);
  memset(b.buf, 1, buffer_bytes);
  b.side = malloc(2 * side_bytes);
  memset(b.side, 0x2d, side_bytes); /* a small number in f16 and bf16 */
  memset(b.side + side_bytes, 7, side_bytes);
  printf("%s\n", b.be->ops->describe(b.be));
  bench_all(&b);
  free(b.buf);
  free(b.side);
  sh_pool_free(b.pool);
  b.be->ops->free(b.be);
  return 0;
}
