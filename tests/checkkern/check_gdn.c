/* Convolution and recurrence of the gated delta rule: against the references, and cut into chunks and column tiles to the bit. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *copy_of(const float *p, size_t n) {
  float *q = ck_floats(n);
  memcpy(q, p, n * sizeof *q);
  return q;
}

static void check_conv(ck *c) {
  int n = ck_range(c, 1, 150), width = ck_range(c, 1, 6), toks = ck_range(c, 1, 20), cut = ck_range(c, 0, toks), rows = toks + width - 1;
  size_t stride = (size_t)n + 5, total = (size_t)toks * stride - 5;
  float *w = ck_floats((size_t)(n * width)), *y = ck_floats(total), *want = ck_floats(total), *parts = ck_floats(total), *x[32];
  ck_fill(c, w, (size_t)(n * width), 1);
  for (int i = 0; i < rows; i++) {
    x[i] = ck_floats((size_t)n);
    ck_fill(c, x[i], (size_t)n, 2);
  }
  memset(y, 0, total * sizeof *y), memset(want, 0, total * sizeof *y), memset(parts, 0, total * sizeof *y);
  const float *const *in = (const float *const *)x;
  c->ref.conv(in, toks, n, width, w, want, (int64_t)stride);
  c->k.conv(in, toks, n, width, w, y, (int64_t)stride);
  ck_tol tol = {.why = "a sum of up to 6 products that may cancel, and SiLU", .abs = 4e-6, .rel = 2e-6};
  ck_case(c, ck_compare(y, want, total, tol) < 0 && ck_guard_ok(y), "conv of %d tokens, %d channels, width %d", toks, n, width);
  c->k.conv(in, cut, n, width, w, parts, (int64_t)stride);
  c->k.conv(in + cut, toks - cut, n, width, w, parts + (size_t)cut * stride, (int64_t)stride);
  ck_case(c, ck_same_bits(y, parts, total), "conv of %d tokens cut at %d, width %d", toks, cut, width);
  ck_free(w), ck_free(y), ck_free(want), ck_free(parts);
  for (int i = 0; i < rows; i++) ck_free(x[i]);
}

typedef struct scan_case {
  int k_dim, n_cols, toks;
  float *qkv, *gates, *s0; /* [toks, 2 k_dim + n_cols], [toks, 2], [k_dim, n_cols] */
} scan_case;

static int64_t row_of(const scan_case *t) { return 2 * t->k_dim + t->n_cols; }

/* Tokens [t0, t1) of columns [c0, c0 + n) on the state s [k_dim, n], into o [toks, n_cols]. */
static void scan(const sh_kernels *k, const scan_case *t, int t0, int t1, int c0, int n, float *s, float *o) {
  const float *x = t->qkv + t0 * row_of(t);
  k->gdn_scan(&(sh_gdn_scan){.s = s,
                             .k_dim = t->k_dim,
                             .n_cols = n,
                             .n_tok = t1 - t0,
                             .q = x,
                             .k = x + t->k_dim,
                             .v = x + 2 * t->k_dim + c0,
                             .qkv_stride = row_of(t),
                             .decay = t->gates + 2 * t0,
                             .beta = t->gates + 2 * t0 + 1,
                             .g_stride = 2,
                             .o = o + t0 * t->n_cols + c0,
                             .o_stride = t->n_cols});
}

static void check_scan(ck *c) {
  static const int dims[] = {1, 5, 16, 32, 128};
  scan_case t = {.k_dim = dims[ck_range(c, 0, 4)],
                 .n_cols = ck_range(c, 0, 3) ? ck_range(c, 1, SH_GDN_TILE) : SH_GDN_TILE,
                 .toks = ck_range(c, 1, 40)};
  size_t sn = (size_t)(t.k_dim * t.n_cols), on = (size_t)(t.toks * t.n_cols);
  t.qkv = ck_floats((size_t)t.toks * (size_t)row_of(&t));
  ck_fill(c, t.qkv, (size_t)t.toks * (size_t)row_of(&t), 1);
  for (int i = 0; i < t.toks; i++) { /* unit q and k, as the layer makes them: other lengths let the state grow without bound */
    c->ref.l2norm(t.qkv + i * row_of(&t), t.k_dim, 1);
    c->ref.l2norm(t.qkv + i * row_of(&t) + t.k_dim, t.k_dim, 1);
  }
  t.gates = ck_floats((size_t)(2 * t.toks));
  for (int i = 0; i < 2 * t.toks; i++) t.gates[i] = ck_uniform(c, 0, 1);
  t.s0 = ck_floats(sn);
  ck_fill(c, t.s0, sn, 1);
  float *s = copy_of(t.s0, sn), *sr = copy_of(t.s0, sn), *s2 = copy_of(t.s0, sn), *o = ck_floats(on), *orf = ck_floats(on),
        *o2 = ck_floats(on);
  scan(&c->k, &t, 0, t.toks, 0, t.n_cols, s, o);
  scan(&c->ref, &t, 0, t.toks, 0, t.n_cols, sr, orf);
  ck_tol tol = {.why = "sums over 128 rows of a state near 1, errors of earlier tokens decay", .abs = 2e-5, .rel = 0};
  ck_case(c, ck_compare(o, orf, on, tol) < 0 && ck_compare(s, sr, sn, tol) < 0 && ck_guard_ok(s) && ck_guard_ok(o),
          "gdn_scan of %d tokens, state %d x %d", t.toks, t.k_dim, t.n_cols);
  int cut = ck_range(c, 0, t.toks);
  if (cut > 0) scan(&c->k, &t, 0, cut, 0, t.n_cols, s2, o2);
  if (cut < t.toks) scan(&c->k, &t, cut, t.toks, 0, t.n_cols, s2, o2);
  ck_case(c, ck_same_bits(o, o2, on) && ck_same_bits(s, s2, sn), "gdn_scan of %d tokens cut at %d, state %d x %d", t.toks, cut, t.k_dim,
          t.n_cols);
  int part = ck_range(c, 1, t.n_cols); /* the first columns as a narrower tile */
  float *sp = ck_floats((size_t)(t.k_dim * part));
  for (int i = 0; i < t.k_dim; i++) memcpy(sp + i * part, t.s0 + i * t.n_cols, (size_t)part * sizeof *sp);
  scan(&c->k, &t, 0, t.toks, 0, part, sp, o2);
  ck_case(c, ck_same_bits(o, o2, on), "gdn_scan of %d of %d columns has other bits", part, t.n_cols);
  ck_free(t.qkv), ck_free(t.gates), ck_free(t.s0), ck_free(s), ck_free(sr), ck_free(s2), ck_free(o), ck_free(orf), ck_free(o2), ck_free(sp);
}

void ck_gdn(ck *c) {
  for (int i = 0; i < 60; i++) {
    check_conv(c);
    check_scan(c);
  }
}
