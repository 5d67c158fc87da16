/* Matrix products and the expansion of stored weights.
 *
 * dot and gemm against the references within the bound of a float32 sum of that length, and against each other to the bit: every row of
 * activations alone (dot with one row) gives the bits that any group of rows and gemm give. Weights lie at odd addresses and end where
 * memory ends. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_dequant(ck *c, const ck_format *f) {
  int64_t unit = ck_format_unit(f), step = unit % 32 ? 32 : unit;
  if (sh_dtype_block(f->type) == 1 && !sh_dtype_has_groups(f->type)) step = 1;
  for (int i = 0; i < 12; i++) {
    char name[64];
    int64_t k0 = step * ck_range(c, 0, 3), row = ck_range(c, 0, 4);
    int64_t cols = (k0 + unit * ck_range(c, 1, (int)(2000 / unit)) + unit - 1) / unit * unit, n = cols - k0;
    ck_matrix m = ck_matrix_new(c, f, 5, cols, false);
    if (i % 2) ck_matrix_any_bits(c, &m);
    float *got = ck_floats((size_t)n), *want = ck_floats((size_t)n);
    c->k.dequant(&m.v, row, k0, n, got);
    c->ref.dequant(&m.v, row, k0, n, want);
    ck_tol exact = {.why = "conversion is exact"};
    ck_case(c, ck_compare(got, want, (size_t)n, exact) < 0 && ck_guard_ok(got), "dequant %s row %d k0 %lld n %lld", ck_format_name(f, name),
            (int)row, (long long)k0, (long long)n);
    ck_matrix_free(&m), ck_free(got), ck_free(want);
  }
}

typedef struct shape {
  const ck_format *f;
  int rows, toks;
  int64_t k;
  bool bias, scale, add;
} shape;

typedef struct operands {
  ck_matrix m;             /* one row more than the product's, which begins at its second */
  float *x, *bias, *scale; /* [toks, k], [rows], [toks] */
  const float **x_row;
  float *y0;    /* [toks, rows] before the call */
  double *size; /* [toks, rows] sum |w| |x| + |bias| + |y0| */
} operands;

enum { PAD = 3 }; /* columns of y beside the output that must stay as they were */

/* One call; y [toks, rows] receives the output. groups: rows of activations per call, 0 = gemm with all. */
static bool run(const sh_kernels *k, const shape *s, const operands *o, int group, float *y) {
  size_t stride = (size_t)s->rows + 2 * PAD;
  float *wide = ck_floats((size_t)s->toks * stride), **row = malloc((size_t)s->toks * sizeof *row);
  for (int t = 0; t < s->toks; t++) {
    row[t] = wide + (size_t)t * stride;
    memcpy(row[t] + PAD, o->y0 + (size_t)t * (size_t)s->rows, (size_t)s->rows * sizeof *y);
  }
  sh_mm mm = {.w = &o->m.v, .r0 = 1, .n_rows = s->rows, .y0 = PAD, .add = s->add};
  if (s->bias) mm.bias = o->bias;
  float *packed = NULL, *scratch = NULL;
  if (group == 0) {
    packed = ck_alloc(k->pack_floats(s->toks, s->k) * sizeof *packed);
    scratch = ck_alloc((k->gemm_floats(s->k) + 15) / 16 * 64);
    for (int t = 0; t < s->toks; t += 2 * SH_PACK_STEP) /* packed in pieces, as the backend does */
      k->pack(o->x_row + t, s->toks - t < 2 * SH_PACK_STEP ? s->toks - t : 2 * SH_PACK_STEP, s->k, packed + k->pack_floats(t, s->k));
    mm.packed = packed, mm.scratch = scratch, mm.n_tok = s->toks, mm.y = row, mm.scale = s->scale ? o->scale : NULL;
    k->gemm(&mm);
  }
  for (int t = 0; group > 0 && t < s->toks; t += group) {
    mm.n_tok = s->toks - t < group ? s->toks - t : group;
    mm.x = o->x_row + t, mm.y = row + t, mm.scale = s->scale ? o->scale + t : NULL;
    k->dot(&mm);
  }
  bool ok = ck_guard_ok(wide) && (!packed || (ck_guard_ok(packed) && ck_guard_ok(scratch)));
  for (int t = 0; t < s->toks; t++) {
    memcpy(y + (size_t)t * (size_t)s->rows, row[t] + PAD, (size_t)s->rows * sizeof *y);
    for (int i = 0; i < PAD; i++) ok = ok && row[t][i] == -7.7e33f && row[t][PAD + s->rows + i] == -7.7e33f;
  }
  ck_free(wide);
  free(row);
  if (packed) ck_free(packed), ck_free(scratch);
  return ok;
}

static operands operands_new(ck *c, const shape *s, float x_scale) {
  size_t rows = (size_t)s->rows, toks = (size_t)s->toks, k = (size_t)s->k;
  operands o = {.m = ck_matrix_new(c, s->f, s->rows + 1, s->k, false),
                .x = ck_floats(toks * k),
                .bias = ck_floats(rows),
                .scale = ck_floats(toks),
                .y0 = ck_floats(toks * rows)};
  ck_fill(c, o.x, toks * k, x_scale);
  ck_fill(c, o.bias, rows, 1);
  ck_fill(c, o.scale, toks, 1);
  ck_fill(c, o.y0, toks * rows, 1);
  o.x_row = malloc(toks * sizeof *o.x_row);
  o.size = calloc(toks * rows, sizeof *o.size);
  float *w = malloc(k * sizeof *w);
  for (size_t t = 0; t < toks; t++) o.x_row[t] = o.x + t * k;
  for (size_t r = 0; r < rows; r++) {
    c->ref.dequant(&o.m.v, (int64_t)r + 1, 0, s->k, w);
    for (size_t t = 0; t < toks; t++) {
      double sum = fabs((double)o.bias[r]) + fabs((double)o.y0[t * rows + r]);
      for (size_t i = 0; i < k; i++) sum += fabs((double)w[i] * (double)o.x[t * k + i]);
      o.size[t * rows + r] = sum;
    }
  }
  free(w);
  return o;
}

static void operands_free(operands *o) {
  ck_matrix_free(&o->m), ck_free(o->x), ck_free(o->bias), ck_free(o->scale), ck_free(o->y0);
  free(o->x_row), free(o->size);
}

/* Each of a lane's k / 8 roundings is at most 2^-24 of the sum of magnitudes, then come the tree and the epilogue. */
static bool near(const shape *s, const operands *o, const float *got, const float *want) {
  double eps = ((double)s->k / 8 + 8) * 0x1p-24;
  for (size_t i = 0; i < (size_t)s->toks * (size_t)s->rows; i++) {
    if (!(fabs((double)got[i] - (double)want[i]) <= eps * o->size[i] + 1e-37)) return false;
  }
  return true;
}

static void check_shape(ck *c, const shape *s, float x_scale) {
  operands o = operands_new(c, s, x_scale);
  size_t n = (size_t)s->toks * (size_t)s->rows;
  float *want = malloc(n * sizeof *want), *one = malloc(n * sizeof *one), *got = malloc(n * sizeof *got);
  char name[160], format[64];
  snprintf(name, sizeof name, "%s rows %d tokens %d k %lld%s%s%s x %g", ck_format_name(s->f, format), s->rows, s->toks, (long long)s->k,
           s->bias ? " bias" : "", s->scale ? " scale" : "", s->add ? " add" : "", (double)x_scale);
  run(&c->ref, s, &o, 1, want);
  bool guards = run(&c->k, s, &o, 1, one);
  ck_case(c, guards, "dot wrote outside its rows: %s", name);
  ck_case(c, near(s, &o, one, want), "dot against reference: %s", name);
  int groups[] = {s->toks, 2, 3, 5, 7};
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
    guards = run(&c->k, s, &o, groups[g], got);
    ck_case(c, guards && ck_same_bits(got, one, n), "dot in groups of %d has other bits: %s", groups[g], name);
  }
  guards = run(&c->k, s, &o, 0, got);
  ck_case(c, guards && ck_same_bits(got, one, n), "gemm has other bits than dot: %s", name);
  free(want), free(one), free(got);
  operands_free(&o);
}

void ck_matmul(ck *c) {
  for (int i = 0; i < ck_n_formats; i++) {
    const ck_format *f = &ck_formats[i];
    int64_t unit = ck_format_unit(f);
    static const int odd[] = {1, 7, 8, 9, 31, 32, 33, 100, 257, 511};
    check_dequant(c, f);
    for (int toks = 1; toks <= 17; toks++) { /* every tile of dot and gemm */
      int k = (int)unit * (unit <= 2 ? odd[toks % 10] : 1 + toks % 5);
      check_shape(c, &(shape){.f = f, .rows = ck_range(c, 1, 30), .toks = toks, .k = k, .bias = toks % 2, .add = toks % 3 == 0}, 1);
    }
    for (int j = 0; j < 6; j++) {
      int64_t k = unit * ck_range(c, 1, (int)(1200 / unit));
      check_shape(c, &(shape){.f = f, .rows = ck_range(c, 1, 60), .toks = ck_range(c, 18, 70), .k = k, .bias = j % 2, .scale = j % 3 == 1},
                  1);
    }
    check_shape(c, &(shape){.f = f, .rows = 9, .toks = 19, .k = unit * 3}, 0);      /* zeros */
    check_shape(c, &(shape){.f = f, .rows = 9, .toks = 19, .k = unit * 3}, 1e-41f); /* denormals */
    check_shape(c, &(shape){.f = f, .rows = 9, .toks = 19, .k = unit * 3}, 1e30f);  /* huge */
  }
}
