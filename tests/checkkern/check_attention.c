/* Attention of a tile against segments: results against the references, and a query alone against the same query in a tile, to the bit. */
#include "check.h"
#include "formats/dequant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct tile {
  int n_tok, group, d, n_seg, last; /* segments; keys in the last one */
  sh_kv_type kv;
  float *q;       /* [n_tok * group, d] */
  uint8_t *k, *v; /* [n_seg * SH_SEG, d] elements */
  int *seen;      /* [n_tok] keys that a token may see over all segments */
} tile;

static size_t row_bytes(const tile *t) { return sh_kv_row_bytes(t->kv, t->d); }

static int n_keys(const tile *t) { return (t->n_seg - 1) * SH_SEG + t->last; }

static uint8_t *elements(ck *c, const tile *t, float scale) {
  size_t n = (size_t)n_keys(t) * (size_t)t->d;
  float *f = malloc(n * sizeof *f);
  ck_fill(c, f, n, scale);
  uint8_t *p = ck_alloc((size_t)n_keys(t) * row_bytes(t));
  for (int j = 0; j < n_keys(t); j++) {
    const float *x = f + (size_t)j * (size_t)t->d;
    uint8_t *row = p + (size_t)j * row_bytes(t);
    if (t->kv == SH_KV_BF16) c->ref.to_bf16(x, t->d, row);
    else if (t->kv == SH_KV_I8) c->ref.to_kv8(x, t->d, row);
    else memcpy(row, x, (size_t)t->d * sizeof *x);
  }
  free(f);
  return p;
}

static tile tile_new(ck *c) {
  static const int dims[] = {8, 16, 20, 64, 72, 128, 256};
  tile t = {.group = ck_range(c, 1, 9),
            .d = dims[ck_range(c, 0, 6)],
            .n_seg = ck_range(c, 1, 4),
            .last = ck_range(c, 1, SH_SEG),
            .kv = (sh_kv_type)ck_range(c, SH_KV_F32, SH_KV_I8)};
  t.n_tok = ck_range(c, 1, SH_ATTN_QUERIES / t.group);
  t.q = ck_floats((size_t)(t.n_tok * t.group) * (size_t)t.d);
  ck_fill(c, t.q, (size_t)(t.n_tok * t.group) * (size_t)t.d, 1);
  t.k = elements(c, &t, 1);
  t.v = elements(c, &t, 1);
  t.seen = malloc((size_t)t.n_tok * sizeof *t.seen);
  int seen = ck_range(c, 0, n_keys(&t)); /* the first tokens may see nothing of it */
  for (int i = 0; i < t.n_tok; i++) {
    t.seen[i] = seen < n_keys(&t) ? seen : n_keys(&t);
    seen += ck_range(c, 0, 2);
  }
  return t;
}

static void tile_free(tile *t) {
  ck_free(t->q), ck_free(t->k), ck_free(t->v);
  free(t->seen);
}

static const char *const kv_name[] = {"f32", "bf16", "int8"};

/* Tokens [t0, t0 + n) of the tile through all segments; state m, l, acc and the finished rows. */
typedef struct result {
  float *m, *l, *acc, *y;
} result;

static result result_new(const tile *t, int n_tok) {
  size_t n = (size_t)(n_tok * t->group), stride = (size_t)sh_attn_stride(t->d);
  result r = {.m = ck_floats(n), .l = ck_floats(n), .acc = ck_floats(n * stride), .y = ck_floats(n * (size_t)t->d)};
  for (size_t i = 0; i < n; i++) r.m[i] = -INFINITY, r.l[i] = 0;
  memset(r.acc, 0, n * stride * sizeof *r.acc);
  return r;
}

static void result_free(result *r) { ck_free(r->m), ck_free(r->l), ck_free(r->acc), ck_free(r->y); }

static result attend(const sh_kernels *k, const tile *t, int t0, int n_tok, int n_seen_max) {
  int n_q = n_tok * t->group, stride = sh_attn_stride(t->d);
  result r = result_new(t, n_tok);
  const float *q[SH_ATTN_QUERIES];
  for (int i = 0; i < n_q; i++) q[i] = t->q + (size_t)(t0 * t->group + i) * (size_t)t->d;
  float *packed = ck_alloc(sh_attn_pack_floats(t->d) * sizeof *packed), *scratch = ck_alloc(sh_attn_scratch_floats(t->d) * sizeof *scratch);
  k->attn_pack(q, n_q, t->d, packed);
  for (int p0 = 0; p0 < n_seen_max; p0 += SH_SEG) {
    const uint8_t *kr[SH_SEG], *vr[SH_SEG];
    int limit[SH_ATTN_QUERIES], n = n_seen_max - p0 < SH_SEG ? n_seen_max - p0 : SH_SEG;
    for (int j = 0; j < n; j++) kr[j] = t->k + (size_t)(p0 + j) * row_bytes(t), vr[j] = t->v + (size_t)(p0 + j) * row_bytes(t);
    for (int i = 0; i < n_tok; i++) {
      int s = t->seen[t0 + i] - p0;
      limit[i] = s < 0 ? 0 : s < n ? s : n;
    }
    k->attn_segment(&(sh_attn_seg){.n_tok = n_tok,
                                   .group = t->group,
                                   .head_dim = t->d,
                                   .scale = 1.0f / sqrtf((float)t->d),
                                   .q = packed,
                                   .kv = t->kv,
                                   .n_pos = n,
                                   .k = kr,
                                   .v = vr,
                                   .limit = limit,
                                   .m = r.m,
                                   .l = r.l,
                                   .acc = r.acc,
                                   .scratch = scratch});
  }
  for (int i = 0; i < n_q; i++) k->attn_finish(t->d, r.l[i], r.acc + i * stride, r.y + i * t->d);
  ck_free(packed), ck_free(scratch);
  return r;
}

static void check_tile(ck *c, const tile *t) {
  const ck_tol tol = {
      .why = "weights to 2 ulp around scores that carry a float32 dot product; outputs average values up to 1", .abs = 5e-6, .rel = 0};
  result got = attend(&c->k, t, 0, t->n_tok, n_keys(t)), want = attend(&c->ref, t, 0, t->n_tok, n_keys(t));
  size_t n = (size_t)(t->n_tok * t->group);
  bool ok = ck_guard_ok(got.m) && ck_guard_ok(got.l) && ck_guard_ok(got.acc) && ck_guard_ok(got.y);
  ok = ok && ck_compare(got.m, want.m, n, (ck_tol){.abs = 5e-6}) < 0 && ck_compare(got.l, want.l, n, (ck_tol){.rel = 5e-6}) < 0;
  for (size_t i = 0; i < n; i++) {
    if (want.l[i] > 0) ok = ok && ck_compare(got.y + i * (size_t)t->d, want.y + i * (size_t)t->d, (size_t)t->d, tol) < 0;
  }
  ck_case(c, ok, "attention of %d tokens x %d heads of %d over %d keys, %s", t->n_tok, t->group, t->d, n_keys(t), kv_name[t->kv]);
  for (int i = 0; i < t->n_tok; i += 1 + t->n_tok / 4) { /* the token alone, and no key in reach that it may not see */
    if (t->seen[i] == 0) continue;
    result one = attend(&c->k, t, i, 1, t->seen[i]);
    size_t at = (size_t)(i * t->group);
    bool same = ck_same_bits(one.y, got.y + at * (size_t)t->d, (size_t)t->group * (size_t)t->d) &&
                ck_same_bits(one.m, got.m + at, (size_t)t->group) && ck_same_bits(one.l, got.l + at, (size_t)t->group);
    ck_case(c, same, "token %d alone has other bits than in a tile of %d x %d, d %d", i, t->n_tok, t->group, t->d);
    result_free(&one);
  }
  result_free(&got), result_free(&want);
}

/* A value that a token may not see is infinite: it must not come through as 0 * inf. */
static void check_hidden_infinity(ck *c) {
  tile t = tile_new(c);
  if (t.kv == SH_KV_F32 && t.seen[0] > 0 && t.seen[0] < n_keys(&t)) {
    float inf = INFINITY;
    memcpy(t.v + (size_t)t.seen[0] * row_bytes(&t), &inf, 4);
    result r = attend(&c->k, &t, 0, t.n_tok, n_keys(&t));
    bool finite = true;
    for (int i = 0; i < t.group * t.d; i++) finite = finite && isfinite(r.y[i]);
    ck_case(c, finite, "an infinite value after the last seen key reached the output");
    result_free(&r);
  }
  tile_free(&t);
}

/* Scores that overflow to -inf count for nothing; a query all of whose scores do stays empty. */
static void check_minus_infinity(ck *c) {
  tile t = {.n_tok = 1, .group = 1, .d = 16, .n_seg = 1, .last = 11, .seen = (int[]){11}};
  t.q = ck_floats(16);
  for (int i = 0; i < 16; i++) t.q[i] = 1e30f;
  t.k = elements(c, &t, 0), t.v = elements(c, &t, 1);
  float *k = (float *)(void *)t.k;
  for (int i = 0; i < 16 * 11; i++) k[i] = i / 16 == 5 ? 0 : -1e30f; /* key 5 scores 0 */
  result r = attend(&c->k, &t, 0, 1, 11);
  ck_case(c, r.m[0] == 0 && r.l[0] == 1 && ck_same_bits(r.y, (float *)(void *)t.v + 16 * 5, 16), "keys at -inf must have weight 0");
  for (int i = 0; i < 16; i++) k[16 * 5 + i] = -1e30f;
  result none = attend(&c->k, &t, 0, 1, 11);
  ck_case(c, none.m[0] == -INFINITY && none.l[0] == 0 && none.acc[0] == 0, "a segment with nothing but -inf must leave the state empty");
  result_free(&r), result_free(&none);
  ck_free(t.q), ck_free(t.k), ck_free(t.v);
}

static void check_merge(ck *c) {
  for (int i = 0; i < 10; i++) {
    int d = 8 * ck_range(c, 1, 40), stride = sh_attn_stride(d), n = 3;
    float m[2][3], l[2][3], m2[3], l2[3], *acc[2], *acc2 = ck_floats((size_t)(n * stride));
    ck_fill(c, acc2, (size_t)(n * stride), 3);
    for (int v = 0; v < 2; v++) acc[v] = ck_floats((size_t)(n * stride));
    ck_fill(c, acc[0], (size_t)(n * stride), 3);
    memcpy(acc[1], acc[0], (size_t)(n * stride) * sizeof(float));
    for (int q = 0; q < n; q++) {
      m[0][q] = m[1][q] = q == 1 ? -INFINITY : ck_uniform(c, -20, 20);
      l[0][q] = l[1][q] = q == 1 ? 0 : ck_uniform(c, 1, 9);
      m2[q] = q == 2 ? -INFINITY : ck_uniform(c, -20, 20);
      l2[q] = q == 2 ? 0 : ck_uniform(c, 1, 9);
    }
    c->k.attn_merge(n, d, m[0], l[0], acc[0], m2, l2, acc2);
    c->ref.attn_merge(n, d, m[1], l[1], acc[1], m2, l2, acc2);
    ck_tol tol = {.why = "two factors to 2 ulp", .abs = 4e-6, .rel = 1e-6};
    bool ok = ck_compare(m[0], m[1], 3, tol) < 0 && ck_compare(l[0], l[1], 3, tol) < 0;
    for (int q = 0; q < n; q++) ok = ok && ck_compare(acc[0] + q * stride, acc[1] + q * stride, (size_t)d, tol) < 0;
    ck_case(c, ok, "merge of spans, head_dim %d", d);
    ck_free(acc[0]), ck_free(acc[1]), ck_free(acc2);
  }
}

void ck_attention(ck *c) {
  for (int i = 0; i < 60; i++) {
    tile t = tile_new(c);
    check_tile(c, &t);
    tile_free(&t);
  }
  for (int i = 0; i < 20; i++) check_hidden_infinity(c);
  check_minus_infinity(c);
  check_merge(c);
}
