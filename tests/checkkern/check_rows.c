/* Functions of one row: exp, norms, activations, rotation, conversion, gates, routing. */
#include "check.h"
#include "formats/dequant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- exp and what stands on it */

static void check_exp(ck *c) {
  const ck_tol tol = {
      .why = "two units in the last place; below the normal range the last bit of a denormal", .abs = 0x1p-149, .rel = 2.5 * 0x1p-23};
  for (int i = 0; i < 40; i++) {
    size_t n = (size_t)ck_range(c, 1, 70);
    float *x = ck_floats(n), *got = ck_floats(n), *want = ck_floats(n);
    float span = i < 20 ? 1.0f : 120.0f;
    for (size_t j = 0; j < n; j++) x[j] = ck_uniform(c, -span, span);
    c->k.exp(x, (int)n, got);
    c->ref.exp(x, (int)n, want);
    long bad = ck_compare(got, want, n, tol);
    ck_case(c, bad < 0 && ck_guard_ok(got), "exp n %zu: x %a gives %a, wanted %a", n, bad < 0 ? 0 : (double)x[bad],
            bad < 0 ? 0 : (double)got[bad], bad < 0 ? 0 : (double)want[bad]);
    ck_free(x), ck_free(got), ck_free(want);
  }
  const float hard[] = {0, -0.0f, -INFINITY, INFINITY, NAN, 88.7f, 88.73f, 89.5f, 1e38f, -1e38f, -87.4f, -103.9f, -104.1f, 1e-40f, -1e-40f};
  enum { N = sizeof hard / sizeof *hard };
  float got[N], want[N];
  c->k.exp(hard, N, got);
  c->ref.exp(hard, N, want);
  long bad = ck_compare(got, want, N, tol);
  ck_case(c, bad < 0, "exp(%a) is %a, wanted %a", bad < 0 ? 0 : (double)hard[bad], bad < 0 ? 0 : (double)got[bad],
          bad < 0 ? 0 : (double)want[bad]);
  ck_case(c, got[0] == 1 && got[1] == 1 && got[2] == 0, "exp(0) = 1 and exp(-inf) = 0 exactly");
  for (int i = 0; i < 20; i++) { /* the same value gives the same bits in every lane and in every tail */
    float x[23], y[23];
    int n = ck_range(c, 1, 23);
    float v = ck_uniform(c, -100, 80);
    for (int j = 0; j < n; j++) x[j] = v;
    c->k.exp(x, n, y);
    bool same = true;
    for (int j = 1; j < n; j++) same = same && y[j] == y[0];
    ck_case(c, same, "exp differs between lanes: x %a n %d", (double)v, n);
  }
}

/* --- Row functions with the shape (inputs, n, output), run on the variant and on the reference */

typedef struct row_in {
  const float *a, *b, *cs, *d;
  int n;
  float f;
} row_in;

typedef void row_fn(const sh_kernels *k, const row_in *in, float *y);

static void do_rmsnorm(const sh_kernels *k, const row_in *in, float *y) { k->rmsnorm(in->a, in->b, in->f, in->n, y); }
static void do_rmsnorm_plain(const sh_kernels *k, const row_in *in, float *y) { k->rmsnorm(in->a, NULL, in->f, in->n, y); }
static void do_l2norm(const sh_kernels *k, const row_in *in, float *y) {
  memcpy(y, in->a, (size_t)in->n * sizeof *y);
  k->l2norm(y, in->n, in->f);
}
static void do_swiglu(const sh_kernels *k, const row_in *in, float *y) { k->swiglu(in->a, in->b, in->n, y); }
static void do_sigmoid_mul(const sh_kernels *k, const row_in *in, float *y) {
  memcpy(y, in->b, (size_t)in->n * sizeof *y);
  k->sigmoid_mul(in->a, in->n, y);
}
static void do_gdn_out(const sh_kernels *k, const row_in *in, float *y) {
  memcpy(y, in->cs, (size_t)in->n * sizeof *y);
  k->gdn_out(in->a, in->b, in->f, in->n, y);
}
static void do_decay(const sh_kernels *k, const row_in *in, float *y) {
  float *beta = malloc((size_t)in->n * sizeof *beta), *neg = malloc((size_t)in->n * sizeof *neg);
  for (int i = 0; i < in->n; i++) neg[i] = -fabsf(in->b[i]);
  k->gdn_gates(in->a, in->cs, neg, in->d, in->n, y, beta);
  free(beta), free(neg);
}
static void do_beta(const sh_kernels *k, const row_in *in, float *y) {
  float *decay = malloc((size_t)in->n * sizeof *decay);
  k->gdn_gates(in->a, in->cs, in->b, in->d, in->n, decay, y);
  free(decay);
}
static void do_rope_half(const sh_kernels *k, const row_in *in, float *y) {
  memcpy(y, in->a, (size_t)in->n * sizeof *y);
  k->rope(y, in->n / 2, false, in->b, in->cs);
}
static void do_rope_pairs(const sh_kernels *k, const row_in *in, float *y) {
  memcpy(y, in->a, (size_t)in->n * sizeof *y);
  k->rope(y, in->n / 2, true, in->b, in->cs);
}

static void check_row(ck *c, const char *name, row_fn *fn, ck_tol tol) {
  static const float scales[] = {1, 30, 1e-3f, 1e-30f, 0};
  for (int i = 0; i < 30; i++) {
    size_t n = (size_t)(i < 20 ? i + 1 : ck_range(c, 21, 300));
    float scale = scales[i % 5];
    float *in[4], *got = ck_floats(n), *want = ck_floats(n);
    for (int j = 0; j < 4; j++) {
      in[j] = ck_floats(n);
      ck_fill(c, in[j], n, scale);
    }
    row_in r = {.a = in[0], .b = in[1], .cs = in[2], .d = in[3], .n = (int)n, .f = 1e-6f};
    if (fn == do_l2norm) r.f = 0.125f;
    if (n % 2 == 0 || (fn != do_rope_half && fn != do_rope_pairs)) {
      fn(&c->k, &r, got);
      fn(&c->ref, &r, want);
      long bad = ck_compare(got, want, n, tol);
      ck_case(c, bad < 0 && ck_guard_ok(got), "%s n %zu scale %g: [%ld] is %g, wanted %g (%s)", name, n, (double)scale, bad,
              bad < 0 ? 0 : (double)got[bad], bad < 0 ? 0 : (double)want[bad], tol.why);
    }
    for (int j = 0; j < 4; j++) ck_free(in[j]);
    ck_free(got), ck_free(want);
  }
}

static void check_bf16(ck *c) {
  for (int i = 0; i < 30; i++) {
    size_t n = (size_t)ck_range(c, 1, 40);
    float *x = ck_floats(n);
    uint8_t *got = ck_alloc(2 * n), *want = ck_alloc(2 * n);
    for (size_t j = 0; j < n; j++) { /* any bits, and many ties */
      uint32_t u = ck_u32(c);
      if (j % 2) u = (u & 0xffff0000u) | 0x8000u;
      memcpy(&x[j], &u, 4);
    }
    c->k.to_bf16(x, (int)n, got);
    c->ref.to_bf16(x, (int)n, want);
    ck_case(c, !memcmp(got, want, 2 * n) && ck_guard_ok(got), "to_bf16 n %zu differs (exact)", n);
    ck_free(x), ck_free(got), ck_free(want);
  }
}

/* Both write the same bytes, no element is off by more than half a step (and what rounding the step to bf16 adds), and what is not finite
 * is read as NaN. */
static void check_kv8(ck *c) {
  for (int i = 0; i < 60; i++) {
    int n = ck_range(c, 1, 140), kind = i % 6;
    size_t bytes = sh_kv_row_bytes(SH_KV_I8, n);
    float *x = ck_floats((size_t)n);
    uint8_t *got = ck_alloc(bytes), *want = ck_alloc(bytes);
    ck_fill(c, x, (size_t)n, kind == 1 ? 1e-39f : kind == 2 ? 1e38f : kind == 3 ? 3e-37f : 1);
    if (kind == 4) x[ck_range(c, 0, n - 1)] = ck_u32(c) & 1 ? NAN : -INFINITY;
    if (kind == 5) memset(x, 0, (size_t)(n < 32 ? n : 32) * sizeof *x);
    c->k.to_kv8(x, n, got);
    c->ref.to_kv8(x, n, want);
    bool ok = !memcmp(got, want, bytes) && ck_guard_ok(got);
    for (int j = 0; j < n; j++) {
      int b = j / SH_KV_BLOCK * SH_KV_BLOCK, end = b + SH_KV_BLOCK < n ? b + SH_KV_BLOCK : n;
      double top = 0;
      bool finite = true;
      for (int m = b; m < end; m++) finite = finite && isfinite(x[m]), top = fmax(top, fabs((double)x[m]));
      uint16_t h;
      memcpy(&h, got + n + j / SH_KV_BLOCK * 2, 2);
      double y = (double)(int8_t)got[j] * (double)sh_bf16_to_f32(h);
      if (!finite) ok = ok && isnan(y);
      else ok = ok && fabs(y - (double)x[j]) <= top / 127 * (0.5 + 127 * 0x1p-8) + 127 * 1.2e-38;
    }
    ck_case(c, ok, "to_kv8 n %d, values of kind %d", n, kind);
    ck_free(x), ck_free(got), ck_free(want);
  }
}

static void check_route(ck *c) {
  for (int i = 0; i < 40; i++) {
    int n = ck_range(c, 1, 300), k = ck_range(c, 1, n < 12 ? n : 12), index[12];
    float *x = ck_floats((size_t)n), weight[12];
    for (int j = 0; j < n; j++) x[j] = (float)ck_range(c, -5, 5) * (i % 4 ? 1.0f : 0.37f); /* many ties */
    if (i % 5 == 0 && n > 1) x[n / 2] = NAN;
    c->k.route(x, n, k, index, weight);
    bool ok = true;
    double sum = 0;
    for (int j = 0; j < k; j++) {
      int better = 0; /* experts that come before this one in (logit descending, index ascending) */
      for (int e = 0; e < n; e++)
        better += !isnan(x[e]) && (x[e] > x[index[j]] || isnan(x[index[j]]) || (x[e] == x[index[j]] && e < index[j]));
      ok = ok && better < k && (j == 0 || index[j] > index[j - 1]) && index[j] >= 0 && index[j] < n;
      sum += (double)weight[j];
    }
    ck_case(c, ok && fabs(sum - 1) < 1e-5, "route %d of %d", k, n);
    ck_free(x);
  }
}

void ck_rows(ck *c) {
  const ck_tol norm = {.why = "a float32 sum of squares, a root, a division and two products", .abs = 1e-37, .rel = 3e-6};
  const ck_tol act = {
      .why = "exp to 2 ulp, a sum, a division, two products; tiny results may lose to overflow of e^-x", .abs = 1e-36, .rel = 1e-6};
  const ck_tol gate = {.why = "exp of a product of up to 900: its rounding is multiplied by that", .abs = 1e-36, .rel = 5e-4};
  const ck_tol rot = {.why = "two products and a sum that may cancel", .abs = 900 * 0x1p-23, .rel = 1e-6};
  check_exp(c);
  check_row(c, "rmsnorm", do_rmsnorm, norm);
  check_row(c, "rmsnorm without gain", do_rmsnorm_plain, norm);
  check_row(c, "l2norm", do_l2norm, norm);
  check_row(c, "swiglu", do_swiglu, act);
  check_row(c, "sigmoid_mul", do_sigmoid_mul, act);
  check_row(c, "gdn_out", do_gdn_out, (ck_tol){.why = "norm and silu together", .abs = 1e-36, .rel = 4e-6});
  check_row(c, "gdn_gates decay", do_decay, gate);
  check_row(c, "gdn_gates beta", do_beta, act);
  check_row(c, "rope halves", do_rope_half, rot);
  check_row(c, "rope pairs", do_rope_pairs, rot);
  check_bf16(c);
  check_kv8(c);
  check_route(c);
}
