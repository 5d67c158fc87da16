/* The CPU backend through backend.h: attention, the gated delta rule and experts against plain formulas in double (written from the model's
 * mathematics, no kernel used), what a call refuses, and that nothing is allocated after reserve. */
#include "backend/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng;

static float rnd(float scale) {
  rng = rng * 6364136223846793005u + 1442695040888963407u;
  return scale * ((float)(rng >> 40) * 0x1p-23f - 1.0f);
}

static float *random_floats(size_t n, float scale) {
  float *p = malloc(n * sizeof *p);
  assert_non_null(p);
  for (size_t i = 0; i < n; i++) p[i] = rnd(scale);
  return p;
}

static sh_backend *be;
static const sh_backend_ops *ops;
static sh_error err;

#define OK(call)                                                                                                                           \
  do {                                                                                                                                     \
    err.text[0] = 0;                                                                                                                       \
    if ((call) != 0) fail_msg("%s", err.text);                                                                                             \
  } while (0)

static int setup(void **state) {
  rng = 1;
  OK(sh_backend_cpu_new(&be, &(sh_backend_opts){.threads = 2, .cpu = *state}, &err));
  ops = be->ops;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  ops->free(be);
  return 0;
}

static sh_tensor *tensor(int64_t rows, int64_t cols, const float *src) {
  sh_tensor *t;
  OK(ops->tensor_new(be, rows, cols, &t, &err));
  if (src) OK(ops->tensor_write(be, t, 0, rows, src, &err));
  return t;
}

static void assert_near(const float *got, const double *want, size_t n, double tol, const char *what) {
  for (size_t i = 0; i < n; i++) {
    if (!(fabs((double)got[i] - want[i]) <= tol))
      fail_msg("%s[%zu]: got %.9g, wanted %.9g within %g", what, i, (double)got[i], want[i], tol);
  }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }

/* --- Attention: one sequence of T tokens, everything from the definition. */

enum { T = 150, HEADS = 4, KV = 2, D = 16, ROT = 8, QC = HEADS * D * 2, KC = KV * D };

typedef struct attn_data {
  float *q, *k, *v, *q_gain, *k_gain; /* [T, QC], [T, KC], [T, KC], [D], [D] */
  double inv_freq[ROT / 2];
  sh_attn p;
} attn_data;

static void rotated_head(const attn_data *a, const float *x, const float *gain, int pos, bool pairs, double *out) {
  double s = 0;
  for (int i = 0; i < D; i++) s += (double)x[i] * (double)x[i];
  for (int i = 0; i < D; i++) out[i] = (double)x[i] / sqrt(s / D + 1e-6) * (double)gain[i];
  for (int i = 0; i < ROT / 2; i++) {
    int p = pairs ? 2 * i : i, r = pairs ? 2 * i + 1 : i + ROT / 2;
    double c = cos(pos * a->inv_freq[i]), n = sin(pos * a->inv_freq[i]), x0 = out[p], x1 = out[r];
    out[p] = x0 * c - x1 * n;
    out[r] = x1 * c + x0 * n;
  }
}

static double *naive_attention(const attn_data *a) {
  double *out = calloc(T * HEADS * D, sizeof *out), *k = malloc(sizeof *k * T * KC);
  for (int t = 0; t < T * KV; t++) rotated_head(a, a->k + t * D, a->k_gain, t / KV, a->p.rope_interleaved, k + t * D);
  for (int t = 0; t < T; t++) {
    for (int h = 0; h < HEADS; h++) {
      double q[D], w[T], sum = 0;
      rotated_head(a, a->q + t * QC + h * 2 * D, a->q_gain, t, a->p.rope_interleaved, q);
      for (int j = 0; j <= t; j++) {
        w[j] = 0;
        for (int i = 0; i < D; i++) w[j] += q[i] * k[j * KC + h / (HEADS / KV) * D + i];
        sum += w[j] = exp(w[j] * (double)a->p.scale);
      }
      for (int i = 0; i < D; i++) {
        double y = 0;
        for (int j = 0; j <= t; j++) y += w[j] / sum * (double)a->v[j * KC + h / (HEADS / KV) * D + i];
        out[(t * HEADS + h) * D + i] = y * sigmoid(a->q[t * QC + h * 2 * D + D + i]);
      }
    }
  }
  free(k);
  return out;
}

static void attention_case(bool pairs, sh_kv_type kv, int chunk, double tol) {
  attn_data a = {.q = random_floats(T * QC, 2),
                 .k = random_floats(T * KC, 2),
                 .v = random_floats(T * KC, 1),
                 .q_gain = random_floats(D, 1.5f),
                 .k_gain = random_floats(D, 1.5f)};
  for (int i = 0; i < ROT / 2; i++) a.inv_freq[i] = pow(100, -i / 4.0);
  sh_tensor *qg = tensor(1, D, a.q_gain), *kg = tensor(1, D, a.k_gain);
  a.p = (sh_attn){.n_heads = HEADS,
                  .n_kv_heads = KV,
                  .head_dim = D,
                  .rotary_dim = ROT,
                  .rope_interleaved = pairs,
                  .gated = true,
                  .scale = 0.25f,
                  .eps = 1e-6f,
                  .rope_scale = 1,
                  .inv_freq = a.inv_freq,
                  .q_gain = qg,
                  .k_gain = kg};
  sh_cache *c;
  sh_cache_spec spec = {.n_attn_layers = 3, .n_kv_heads = KV, .head_dim = D, .page_size = 8, .n_pages = 40, .kv_type = kv};
  assert_int_equal(sh_cache_page_bytes(&spec), 3 * 2 * KV * 8 * D * (kv == SH_KV_F32 ? 4 : 2));
  OK(ops->cache_new(be, &spec, &c, &err));
  int32_t pages[(T + 7) / 8];
  for (int i = 0; i < (T + 7) / 8; i++) pages[i] = 39 - 2 * i;
  sh_tensor *q = tensor(T, QC, NULL), *k = tensor(T, KC, NULL), *v = tensor(T, KC, NULL), *o = tensor(T, HEADS * D, NULL);
  float *got = malloc(sizeof *got * T * HEADS * D);
  for (int at = 0; at < T; at += chunk) {
    int n = T - at < chunk ? T - at : chunk;
    OK(ops->tensor_write(be, q, 0, n, a.q + at * QC, &err));
    OK(ops->tensor_write(be, k, 0, n, a.k + at * KC, &err));
    OK(ops->tensor_write(be, v, 0, n, a.v + at * KC, &err));
    sh_seq s = {.count = n, .pos = at, .pages = pages};
    OK(ops->attention(be, c, 2, &a.p, &(sh_batch){.n_seqs = 1, .seqs = &s, .n_tokens = n}, q, k, v, o, &err));
    OK(ops->tensor_read(be, o, 0, n, got + at * HEADS * D, &err));
    if (at == 0) { /* go on with a copy of the first page */
      OK(ops->page_copy(be, c, 0, pages[0], &err));
      pages[0] = 0;
    }
  }
  double *want = naive_attention(&a);
  assert_near(got, want, T * HEADS * D, tol, "attention");
  free(want), free(got), free(a.q), free(a.k), free(a.v), free(a.q_gain), free(a.k_gain);
  ops->tensor_free(be, q), ops->tensor_free(be, k), ops->tensor_free(be, v), ops->tensor_free(be, o), ops->tensor_free(be, qg),
      ops->tensor_free(be, kg);
  ops->cache_free(be, c);
}

static void attention_is_softmax_of_rotated_keys_times_values(void **state) {
  (void)state;
  attention_case(false, SH_KV_F32, T, 2e-6);
  attention_case(true, SH_KV_F32, 37, 2e-6);
}

static void attention_on_bfloat16_pages_is_near(void **state) {
  (void)state;
  attention_case(false, SH_KV_BF16, 50, 0.02);
}

static void far_positions_rotate_exactly(void **state) {
  (void)state; /* a million tokens on, a float32 angle would be off by 0.06 */
  enum { POS = 1000000, PAGE = 1 << 20 };
  double freq[4] = {1, 0.3, 0.1, 0.01};
  sh_attn p = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .rotary_dim = 8, .scale = 1, .rope_scale = 1, .inv_freq = freq};
  sh_cache *c;
  OK(ops->cache_new(
      be, &(sh_cache_spec){.n_attn_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_size = PAGE, .n_pages = 1, .kv_type = SH_KV_F32}, &c,
      &err));
  float x[8] = {1, 1, 1, 1, 0, 0, 0, 0}, got[8];
  double want[8];
  sh_tensor *q = tensor(1, 8, x), *k = tensor(1, 8, x), *v = tensor(1, 8, x), *o = tensor(1, 8, NULL);
  sh_seq s = {.count = 1, .pos = POS, .pages = (int32_t[]){0}};
  OK(ops->attention(be, c, 0, &p, &(sh_batch){.n_seqs = 1, .seqs = &s, .n_tokens = 1}, q, k, v, o, &err));
  OK(ops->tensor_read(be, q, 0, 1, got, &err)); /* the call leaves the rotated query there */
  for (int i = 0; i < 4; i++) want[i] = cos(POS * freq[i]), want[4 + i] = sin(POS * freq[i]);
  assert_near(got, want, 8, 1e-7, "rotated query");
  ops->tensor_free(be, q), ops->tensor_free(be, k), ops->tensor_free(be, v), ops->tensor_free(be, o);
  ops->cache_free(be, c);
}

/* --- Gated delta rule, two sequences in one batch. */

enum { KH = 2, VH = 4, KD = 12, VD = 40, W = 4, CH = 2 * KH * KD + VH * VD, VC = VH * VD, LEN = 21 };

typedef struct gdn_data {
  float *qkv, *z, *a, *b, *conv, *neg, *dt, *gain; /* [LEN, CH], [LEN, VC], [LEN, VH], [LEN, VH], [CH, W], [VH], [VH], [VD] */
  bool tiled;
} gdn_data;

static void unit(double *x, double scale) {
  double s = 0;
  for (int i = 0; i < KD; i++) s += x[i] * x[i];
  for (int i = 0; i < KD; i++) x[i] *= scale / sqrt(s + 1e-6);
}

static double *naive_delta(const gdn_data *g) {
  double *out = calloc(LEN * VC, sizeof *out), *s = calloc(VH * KD * VD, sizeof *s), x[CH];
  for (int t = 0; t < LEN; t++) {
    for (int c = 0; c < CH; c++) {
      double y = 0;
      for (int j = 0; j < W; j++) y += t - W + 1 + j < 0 ? 0 : (double)g->qkv[(t - W + 1 + j) * CH + c] * (double)g->conv[c * W + j];
      x[c] = silu(y);
    }
    for (int h = 0; h < KH; h++) unit(x + h * KD, 1 / sqrt(KD)), unit(x + (KH + h) * KD, 1);
    for (int h = 0; h < VH; h++) {
      int kh = g->tiled ? h % KH : h / (VH / KH);
      double *q = x + kh * KD, *k = x + (KH + kh) * KD, *v = x + 2 * KH * KD + h * VD, *S = s + h * KD * VD, o[VD], ms = 0;
      double decay = exp((double)g->neg[h] * log1p(exp((double)g->a[t * VH + h] + (double)g->dt[h]))), beta = sigmoid(g->b[t * VH + h]);
      for (int c = 0; c < VD; c++) {
        double old = 0;
        o[c] = 0;
        for (int i = 0; i < KD; i++) old += k[i] * (S[i * VD + c] *= decay);
        for (int i = 0; i < KD; i++) o[c] += q[i] * (S[i * VD + c] += k[i] * beta * (v[c] - old));
        ms += o[c] * o[c] / VD;
      }
      for (int c = 0; c < VD; c++) out[t * VC + h * VD + c] = o[c] / sqrt(ms + 1e-6) * (double)g->gain[c] * silu(g->z[t * VC + h * VD + c]);
    }
  }
  free(s);
  return out;
}

static void gdn_case(bool tiled) {
  gdn_data g = {.tiled = tiled,
                .qkv = random_floats(LEN * CH, 1),
                .z = random_floats(LEN * VC, 2),
                .a = random_floats(LEN * VH, 3),
                .b = random_floats(LEN * VH, 3),
                .conv = random_floats(CH * W, 1),
                .neg = random_floats(VH, 1),
                .dt = random_floats(VH, 1),
                .gain = random_floats(VD, 1)};
  for (int i = 0; i < VH; i++) g.neg[i] = -fabsf(g.neg[i]);
  sh_tensor *f[4] = {tensor(CH, W, g.conv), tensor(1, VH, g.neg), tensor(1, VH, g.dt), tensor(1, VD, g.gain)};
  sh_gdn p = {.k_heads = KH,
              .v_heads = VH,
              .k_dim = KD,
              .v_dim = VD,
              .conv_kernel = W,
              .v_tiled = tiled,
              .eps = 1e-6f,
              .conv_w = f[0],
              .neg_exp_a = f[1],
              .dt_bias = f[2],
              .gain = f[3]};
  sh_cache *c;
  sh_cache_spec spec = {
      .n_linear_layers = 2, .lin_v_heads = VH, .lin_k_dim = KD, .lin_v_dim = VD, .conv_channels = CH, .conv_kernel = W, .n_slots = 4};
  assert_int_equal(sh_cache_slot_bytes(&spec), 2 * 4 * (VH * KD * VD + (W - 1) * CH));
  OK(ops->cache_new(be, &spec, &c, &err));
  double *want = naive_delta(&g);
  /* slot 3: the whole sequence; slot 1: the same up to token 8, then the rest, in the batches of slot 3 and alone */
  sh_tensor *x = tensor(2 * LEN, CH, NULL), *z = tensor(2 * LEN, VC, NULL), *a = tensor(2 * LEN, VH, NULL), *b = tensor(2 * LEN, VH, NULL),
            *o = tensor(2 * LEN, VC, NULL);
  float *got = malloc(sizeof *got * LEN * VC);
  struct {
    int slot, at, n;
  } parts[2][2] = {{{3, 0, LEN}, {1, 0, 8}}, {{1, 8, LEN - 8}, {0, 0, 0}}};
  OK(ops->slot_zero(be, c, 1, &err));
  for (int step = 0; step < 2; step++) {
    sh_seq s[2];
    int rows = 0, n_seqs = 0;
    for (int i = 0; i < 2 && parts[step][i].n; i++) {
      int at = parts[step][i].at, n = parts[step][i].n;
      OK(ops->tensor_write(be, x, rows, n, g.qkv + at * CH, &err));
      OK(ops->tensor_write(be, z, rows, n, g.z + at * VC, &err));
      OK(ops->tensor_write(be, a, rows, n, g.a + at * VH, &err));
      OK(ops->tensor_write(be, b, rows, n, g.b + at * VH, &err));
      s[n_seqs++] = (sh_seq){.row = rows, .count = n, .pos = at, .slot = parts[step][i].slot};
      rows += n;
    }
    OK(ops->gated_delta(be, c, 1, &p, &(sh_batch){.n_seqs = n_seqs, .seqs = s, .n_tokens = rows}, x, z, a, b, o, &err));
    for (int i = 0; i < n_seqs; i++) {
      OK(ops->tensor_read(be, o, s[i].row, s[i].count, got, &err));
      assert_near(got, want + s[i].pos * VC, (size_t)s[i].count * VC, 1e-5, "gated_delta");
    }
    if (step == 0) { /* the state moves to another slot and back */
      OK(ops->slot_copy(be, c, 2, 1, &err));
      OK(ops->slot_zero(be, c, 1, &err));
      OK(ops->slot_copy(be, c, 1, 2, &err));
    }
  }
  free(want), free(got), free(g.qkv), free(g.z), free(g.a), free(g.b), free(g.conv), free(g.neg), free(g.dt), free(g.gain);
  for (int i = 0; i < 4; i++) ops->tensor_free(be, f[i]);
  ops->tensor_free(be, x), ops->tensor_free(be, z), ops->tensor_free(be, a), ops->tensor_free(be, b), ops->tensor_free(be, o);
  ops->cache_free(be, c);
}

static void gated_delta_is_the_recurrence(void **state) {
  (void)state;
  gdn_case(false);
  gdn_case(true);
}

/* --- Experts */

enum { E = 7, TOPK = 3, HID = 24, FFN = 20, SFFN = 28, N = 40 };

static sh_weight *weight(const float *w, int64_t rows, int64_t cols) {
  sh_weight *out;
  OK(ops->weight_bind(
      be, &(sh_wview){.type = SH_F32, .rows = rows, .cols = cols, .data = (const uint8_t *)w, .row_bytes = (size_t)cols * 4, .name = "w"},
      &out, &err));
  return out;
}

static double dot(const float *w, const double *x, int n) {
  double s = 0;
  for (int i = 0; i < n; i++) s += (double)w[i] * x[i];
  return s;
}

static void naive_expert(const float *gate, const float *up, const float *down, int ffn, const double *x, double weight_of, double *y) {
  double h[SFFN];
  for (int i = 0; i < ffn; i++) h[i] = silu(dot(gate + i * HID, x, HID)) * dot(up + i * HID, x, HID);
  for (int i = 0; i < HID; i++) y[i] += weight_of * dot(down + i * ffn, h, ffn);
}

static void experts_are_weighted_by_the_routers_softmax(void **state) {
  (void)state;
  float *m[3][E + 1], *router = random_floats(E * HID, 1), *sw = random_floats(HID, 1), *x = random_floats(N * HID, 1),
                      *y0 = random_floats(N * HID, 1);
  const sh_weight *w[3][E + 1];
  for (int e = 0; e <= E; e++) {
    int ffn = e < E ? FFN : SFFN;
    for (int i = 0; i < 3; i++) {
      m[i][e] = random_floats((size_t)(ffn * HID), 1);
      w[i][e] = i == 2 ? weight(m[i][e], HID, ffn) : weight(m[i][e], ffn, HID);
    }
  }
  memcpy(router + HID, router, HID * sizeof *router); /* experts 0 and 1 always tie */
  const sh_weight *wr = weight(router, E, HID), *ws = weight(sw, 1, HID);
  sh_moe p = {.n_experts = E,
              .top_k = TOPK,
              .router = wr,
              .gate = w[0],
              .up = w[1],
              .down = w[2],
              .shared_gate = w[0][E],
              .shared_up = w[1][E],
              .shared_down = w[2][E],
              .shared_switch = ws};
  sh_tensor *xt = tensor(N, HID, x), *yt = tensor(N, HID, y0);
  OK(ops->moe(be, &p, xt, N, true, yt, &err));
  float got[N * HID];
  OK(ops->tensor_read(be, yt, 0, N, got, &err));
  for (int t = 0; t < N; t++) {
    double xd[HID], logit[E], y[HID], sum = 0;
    bool chosen[E] = {false};
    for (int i = 0; i < HID; i++) xd[i] = x[t * HID + i], y[i] = y0[t * HID + i];
    for (int e = 0; e < E; e++) logit[e] = dot(router + e * HID, xd, HID);
    for (int k = 0; k < TOPK; k++) {
      int best = -1;
      for (int e = 0; e < E; e++) best = !chosen[e] && (best < 0 || logit[e] > logit[best]) ? e : best;
      chosen[best] = true;
      sum += exp(logit[best]);
    }
    for (int e = 0; e < E; e++) {
      if (chosen[e]) naive_expert(m[0][e], m[1][e], m[2][e], FFN, xd, exp(logit[e]) / sum, y);
    }
    naive_expert(m[0][E], m[1][E], m[2][E], SFFN, xd, sigmoid(dot(sw, xd, HID)), y);
    assert_near(got + t * HID, y, HID, 3e-4, "moe");
  }
  for (int i = 0; i < 3 * (E + 1); i++) {
    free(m[i % 3][i / 3]);
    ops->weight_free(be, (sh_weight *)(uintptr_t)w[i % 3][i / 3]);
  }
  ops->weight_free(be, (sh_weight *)(uintptr_t)wr), ops->weight_free(be, (sh_weight *)(uintptr_t)ws);
  ops->tensor_free(be, xt), ops->tensor_free(be, yt);
  free(router), free(sw), free(x), free(y0);
}

/* --- Small operations */

static void embed_gather_norm_and_swiglu_work_on_rows(void **state) {
  (void)state;
  float w[4 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, gain[3] = {1, 2, -1}, got[6];
  sh_weight *wt = weight(w, 4, 3);
  sh_tensor *y = tensor(2, 3, NULL), *z = tensor(2, 3, NULL), *g = tensor(1, 3, gain);
  OK(ops->embed(be, wt, (int32_t[]){3, 1}, 2, y, &err));
  OK(ops->gather(be, y, (int32_t[]){1, 0}, 2, z, &err));
  OK(ops->tensor_read(be, z, 0, 2, got, &err));
  assert_memory_equal(got, ((float[]){4, 5, 6, 10, 11, 12}), sizeof got);
  OK(ops->rmsnorm(be, z, g, 0, 2, y, &err));
  OK(ops->tensor_read(be, y, 0, 2, got, &err));
  double r = sqrt((16 + 25 + 36) / 3.0);
  assert_near(got, (double[]){4 / r, 10 / r, -6 / r}, 3, 1e-6, "rmsnorm");
  OK(ops->swiglu(be, z, y, 2, 3, y, &err));
  OK(ops->tensor_read(be, y, 0, 2, got, &err));
  assert_near(got, (double[]){silu(4) * 4 / r, silu(5) * 10 / r, silu(6) * -6 / r}, 3, 1e-5, "swiglu");
  assert_int_equal(ops->embed(be, wt, (int32_t[]){4}, 1, y, &err), SH_ERR_INTERNAL);
  ops->weight_free(be, wt);
  ops->tensor_free(be, y), ops->tensor_free(be, z), ops->tensor_free(be, g);
}

/* --- Refusals */

static void unsupported_and_malformed_weights_are_refused_by_name(void **state) {
  (void)state;
  uint8_t data[64] = {0};
  sh_weight *w = (sh_weight *)data;
  sh_wview v = {.type = SH_OTHER, .rows = 1, .cols = 32, .data = data, .row_bytes = 64, .name = "blk.0.w"};
  assert_int_equal(ops->weight_bind(be, &v, &w, &err), SH_ERR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "blk.0.w"));
  assert_null(w);
  v = (sh_wview){.type = SH_Q8_0, .rows = 1, .cols = 33, .data = data, .row_bytes = 64, .name = "blk.0.w"};
  assert_int_equal(ops->weight_bind(be, &v, &w, &err), SH_ERR_FORMAT);
  v = (sh_wview){.type = SH_Q8_0, .rows = 1, .cols = 32, .data = data, .row_bytes = 33, .name = "blk.0.w"};
  assert_int_equal(ops->weight_bind(be, &v, &w, &err), SH_ERR_FORMAT);
}

static void sizes_that_overflow_are_refused(void **state) {
  (void)state;
  sh_tensor *t;
  assert_int_equal(ops->tensor_new(be, INT64_MAX / 2, 16, &t, &err), SH_ERR_NOMEM);
  sh_cache_spec s = {.n_attn_layers = INT32_MAX,
                     .n_kv_heads = INT32_MAX,
                     .head_dim = INT32_MAX,
                     .page_size = INT32_MAX,
                     .n_pages = INT32_MAX,
                     .kv_type = SH_KV_F32};
  assert_true(sh_cache_page_bytes(&s) == SIZE_MAX);
  sh_cache *c;
  assert_int_equal(ops->cache_new(be, &s, &c, &err), SH_ERR_NOMEM);
  assert_null(c);
}

static void a_batch_that_leaves_the_cache_is_refused(void **state) {
  (void)state;
  double freq[4] = {1, 1, 1, 1};
  sh_attn p = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .rotary_dim = 8, .scale = 1, .rope_scale = 1, .inv_freq = freq};
  sh_cache *c;
  OK(ops->cache_new(
      be,
      &(sh_cache_spec){
          .n_attn_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_size = 4, .n_pages = 2, .kv_type = SH_KV_F32, .n_slots = 1},
      &c, &err));
  sh_tensor *q = tensor(4, 8, NULL), *o = tensor(4, 8, NULL), *narrow = tensor(4, 7, NULL);
  int32_t pages[2] = {0, 2};
  sh_seq s = {.count = 4, .pos = 1, .pages = pages};
  sh_batch b = {.n_seqs = 1, .seqs = &s, .n_tokens = 4};
  assert_int_equal(ops->attention(be, c, 0, &p, &b, q, q, q, o, &err), SH_ERR_INTERNAL); /* page 2 of 2 */
  pages[1] = 1;
  assert_int_equal(ops->attention(be, c, 1, &p, &b, q, q, q, o, &err), SH_ERR_INTERNAL);
  assert_int_equal(ops->attention(be, c, 0, &p, &b, q, q, q, narrow, &err), SH_ERR_INTERNAL);
  OK(ops->attention(be, c, 0, &p, &b, q, q, q, o, &err));
  assert_int_equal(ops->slot_zero(be, c, 1, &err), SH_ERR_INTERNAL);
  assert_int_equal(ops->page_copy(be, c, 0, -1, &err), SH_ERR_INTERNAL);
  ops->tensor_free(be, q), ops->tensor_free(be, o), ops->tensor_free(be, narrow);
  ops->cache_free(be, c);
}

static void an_unknown_instruction_set_is_refused(void **state) {
  (void)state;
  sh_backend *b = be;
  assert_int_equal(sh_backend_cpu_new(&b, &(sh_backend_opts){.threads = 1, .cpu = "mmx"}, &err), SH_ERR_ARG);
  assert_null(b);
  assert_non_null(strstr(err.text, "mmx"));
}

/* --- Memory */

static void construction_survives_every_failed_allocation(void **state) {
  (void)state;
  sh_reserve r = {.max_tokens = 64,
                  .max_seqs = 2,
                  .max_out = 2,
                  .max_context = 5000,
                  .max_cols = 64,
                  .max_rows = 64,
                  .n_heads = 4,
                  .head_dim = 16,
                  .lin_v_heads = 4,
                  .lin_k_dim = 16,
                  .lin_v_dim = 16,
                  .conv_channels = 96,
                  .n_experts = 8,
                  .top_k = 2,
                  .moe_ffn = 32,
                  .shared_ffn = 32,
                  .hidden = 64};
  for (long n = 0;; n++) {
    sh_backend *b = NULL;
    sh_mem_fail_after(n);
    int rc = sh_backend_cpu_new(&b, &(sh_backend_opts){.threads = 2}, &err);
    if (rc == 0) rc = b->ops->reserve(b, &r, &err);
    sh_mem_fail_after(-1);
    if (b) b->ops->free(b);
    if (rc == 0) break;
    assert_int_equal(rc, SH_ERR_NOMEM);
    assert_true(n < 1000);
  }
}

static void caches_without_memory_are_an_error(void **state) {
  (void)state;
  sh_cache_spec s = {.n_attn_layers = 2,
                     .n_kv_heads = 2,
                     .head_dim = 16,
                     .page_size = 16,
                     .n_pages = 4,
                     .kv_type = SH_KV_BF16,
                     .n_linear_layers = 2,
                     .lin_v_heads = 4,
                     .lin_k_dim = 16,
                     .lin_v_dim = 16,
                     .conv_channels = 96,
                     .conv_kernel = 4,
                     .n_slots = 3};
  sh_cache *c;
  int rc = -1;
  for (long n = 0; rc; n++) {
    memset(&err, 0, sizeof err);
    sh_mem_fail_after(n);
    rc = ops->cache_new(be, &s, &c, &err);
    sh_mem_fail_after(-1);
    if (rc) assert_true(!c && rc == SH_ERR_NOMEM && err.code == rc && err.text[0]);
    assert_true(n < 10);
  }
  ops->cache_free(be, c);
  /* what no system has: the pages, and with the pages there, the slots */
  sh_cache_spec pages = s, slots = s;
  pages.page_size = 1 << 20;
  pages.n_pages = INT32_MAX;
  pages.head_dim = 1 << 10;
  slots.lin_v_heads = slots.lin_k_dim = 1 << 12;
  slots.n_slots = INT32_MAX;
  const sh_cache_spec *const too_large[] = {&pages, &slots};
  static const char *const words[] = {"KV pages", "state slots"};
  for (int i = 0; i < 2; i++) {
    memset(&err, 0, sizeof err);
    assert_int_equal(ops->cache_new(be, too_large[i], &c, &err), SH_ERR_NOMEM);
    assert_null(c);
    assert_non_null(strstr(err.text, words[i]));
  }
}

static void nothing_is_allocated_after_reserve(void **state) {
  (void)state;
  enum { TOK = 40, ROWS = 64, COLS = 96 };
  float *w = random_floats(ROWS * COLS, 1), *x = random_floats(TOK * COLS, 1);
  sh_weight *wt = weight(w, ROWS, COLS);
  sh_tensor *xt = tensor(TOK, COLS, x), *yt = tensor(TOK, ROWS, NULL);
  double freq[4] = {1, 1, 1, 1};
  sh_attn p = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .rotary_dim = 8, .scale = 1, .rope_scale = 1, .inv_freq = freq};
  sh_cache *c;
  OK(ops->cache_new(
      be, &(sh_cache_spec){.n_attn_layers = 1, .n_kv_heads = 2, .head_dim = 16, .page_size = 4096, .n_pages = 1, .kv_type = SH_KV_F32}, &c,
      &err));
  OK(ops->reserve(be,
                  &(sh_reserve){.max_tokens = TOK,
                                .max_seqs = 1,
                                .max_out = 1,
                                .max_context = 4096,
                                .max_cols = COLS,
                                .max_rows = ROWS,
                                .n_heads = 4,
                                .head_dim = 16},
                  &err));
  sh_mem_guard_begin();
  for (int n = 1; n <= TOK; n += 13) {
    OK(ops->linear(be, wt, xt, n, NULL, false, yt, &err));
    sh_seq s = {.count = n, .pos = 4000, .pages = (int32_t[]){0}};
    OK(ops->attention(be, c, 0, &p, &(sh_batch){.n_seqs = 1, .seqs = &s, .n_tokens = n}, xt, yt, yt, yt, &err));
  }
  assert_int_equal(sh_mem_guard_end(), 0);
  ops->weight_free(be, wt);
  ops->tensor_free(be, xt), ops->tensor_free(be, yt);
  ops->cache_free(be, c);
  free(w), free(x);
}

#define PER_CPU(f)                                                                                                                         \
  {.name = #f " (native)", .test_func = f, .setup_func = setup, .teardown_func = teardown, .initial_state = NULL}, {                       \
    .name = #f " (plain C)", .test_func = f, .setup_func = setup, .teardown_func = teardown, .initial_state = baseline                     \
  }

int main(void) {
  static char baseline[] = "baseline";
  const struct CMUnitTest tests[] = {
      PER_CPU(attention_is_softmax_of_rotated_keys_times_values),
      PER_CPU(attention_on_bfloat16_pages_is_near),
      PER_CPU(far_positions_rotate_exactly),
      PER_CPU(gated_delta_is_the_recurrence),
      PER_CPU(experts_are_weighted_by_the_routers_softmax),
      PER_CPU(embed_gather_norm_and_swiglu_work_on_rows),
      PER_CPU(unsupported_and_malformed_weights_are_refused_by_name),
      PER_CPU(sizes_that_overflow_are_refused),
      PER_CPU(a_batch_that_leaves_the_cache_is_refused),
      PER_CPU(an_unknown_instruction_set_is_refused),
      PER_CPU(construction_survives_every_failed_allocation),
      PER_CPU(caches_without_memory_are_an_error),
      PER_CPU(nothing_is_allocated_after_reserve),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
