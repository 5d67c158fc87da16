/* Integer products of panels with int8 activations.
 *
 * Every step is defined (formats/panel.h), so packed activations and products are compared with the references to the bit, for every form
 * of panel, and again for every way to cut rows and activation rows into calls. That the definition is the right one is held by a sum in
 * double over weights decoded here, with the error that rounding to int8 may make as the bound. */
#include "check.h"
#include "formats/dequant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN(TYPE, GROUP, SCALE, OFFSET)                                                                                                  \
  { .type = TYPE, .group = GROUP, .scale_type = SCALE, .offset = OFFSET }
#define SUPER(TYPE, GROUP, SCALES, OFFSET)                                                                                                 \
  { .type = TYPE, .group = GROUP, .scale_type = SH_F16, .scales = SCALES, .offset = OFFSET }
#define EACH_GROUP(TYPE)                                                                                                                   \
  PLAIN(TYPE, 16, SH_F16, SH_PANEL_MIN), PLAIN(TYPE, 32, SH_F16, SH_PANEL_MIN), PLAIN(TYPE, 32, SH_F16, SH_PANEL_MIDDLE),                  \
      PLAIN(TYPE, 48, SH_F32, SH_PANEL_ZERO), PLAIN(TYPE, 64, SH_BF16, SH_PANEL_ZERO), PLAIN(TYPE, 128, SH_F16, SH_PANEL_ZERO),            \
      PLAIN(TYPE, 128, SH_F32, SH_PANEL_MIDDLE), PLAIN(TYPE, 96, SH_F32, SH_PANEL_MIN), PLAIN(TYPE, 0, SH_BF16, SH_PANEL_MIDDLE),          \
      PLAIN(TYPE, 0, SH_F32, SH_PANEL_ZERO), SUPER(TYPE, 16, SH_PANEL_SUPER_I8, SH_PANEL_MIDDLE),                                          \
      SUPER(TYPE, 32, SH_PANEL_SUPER_U8, SH_PANEL_MIN)

const ck_format ck_panel_formats[] = {EACH_GROUP(SH_P4), EACH_GROUP(SH_P6), EACH_GROUP(SH_P8)};
const int ck_n_panel_formats = sizeof ck_panel_formats / sizeof *ck_panel_formats;

enum { R = SH_PANEL_ROWS, B = SH_PANEL_BLOCK };

/* --- Panels: made, and read again */

static void put_number(sh_dtype type, uint8_t *p, float f) {
  uint16_t h = type == SH_F16 ? sh_f32_to_f16(f) : sh_f32_to_bf16(f);
  if (type == SH_F32) memcpy(p, &f, 4);
  else memcpy(p, &h, 2);
}

void ck_fill_panels(ck *c, const sh_wview *v, uint8_t *p) {
  const sh_panel_shape s = sh_panel_shape_of(v);
  const size_t one = v->scale_type == SH_F32 ? 4 : 2, n = (size_t)s.groups * R;
  const float top = 2.0f / (float)(1 << s.bits);
  for (int64_t i = 0; i < (v->rows + R - 1) / R; i++, p += s.bytes) {
    for (size_t j = 0; j < s.bytes; j++) p[j] = (uint8_t)ck_u32(c);
    if (v->panel_scales == SH_PANEL_PLAIN) {
      for (size_t j = 0; j < n; j++) put_number(v->scale_type, p + s.scales_at + j * one, ck_uniform(c, -top, top));
      for (size_t j = 0; v->panel_offset == SH_PANEL_MIN && j < n; j++)
        put_number(v->scale_type, p + s.offsets_at + j * one, ck_uniform(c, -1, 1));
    } else {
      for (size_t j = 0; j < (size_t)s.supers * R; j++) {
        put_number(SH_F16, p + s.scales_at + 2 * j, ck_uniform(c, -top / 128, top / 128));
        if (v->panel_offset == SH_PANEL_MIN) put_number(SH_F16, p + s.offsets_at + 2 * j, ck_uniform(c, 0, 1.0f / 128));
      }
    }
  }
}

static double number(sh_dtype type, const uint8_t *p) {
  float f;
  uint16_t h;
  memcpy(&h, p, 2);
  if (type != SH_F32) return (double)(type == SH_F16 ? sh_f16_to_f32(h) : sh_bf16_to_f32(h));
  memcpy(&f, p, 4);
  return (double)f;
}

/* Block and column in it where column col is. */
static int64_t block_of(const sh_wview *v, int64_t col, int *in) {
  int64_t per_group = (v->group + B - 1) / B, c = col % v->group;
  *in = (int)(v->group == B / 2 ? col % B : c % B);
  return v->group == B / 2 ? col / B : col / v->group * per_group + c / B;
}

ck_weight ck_panel_weight(const sh_wview *v, int64_t r, int64_t col) {
  const sh_panel_shape s = sh_panel_shape_of(v);
  int at;
  const int64_t block = block_of(v, col, &at), g = col / v->group, lane = r % R;
  const uint8_t *panel = v->data + (size_t)(r / R) * s.bytes, *p = panel + (size_t)block * (size_t)(s.bits * B), *z = panel + s.offsets_at;
  ck_weight w;
  int byte = p[32 * (at % 16 / 4) + 4 * lane + at % 4], high = p[128 + 32 * (at / 4 % 2) + 4 * lane + at % 4] >> (at / 8 * 2) & 3;
  w.q = at < 16 ? byte & 15 : byte >> 4;
  if (s.bits == 6) w.q += 16 * high;
  if (s.bits == 8) w.q = (int8_t)p[32 * (at / 4) + 4 * lane + at % 4];
  const size_t one = v->scale_type == SH_F32 ? 4 : 2, i = (size_t)(g * R + lane), super = (size_t)(col / 256 * R + lane) * 2,
               k = (size_t)s.supers * R * 2 + i;
  const uint8_t *q = panel + s.scales_at;
  if (v->panel_scales == SH_PANEL_PLAIN) w.s = number(v->scale_type, q + i * one);
  else w.s = number(SH_F16, q + super) * (v->panel_scales == SH_PANEL_SUPER_I8 ? (int8_t)q[k] : q[k]);
  if (v->panel_offset == SH_PANEL_MIDDLE) w.m = s.bits == 4 ? -8 * w.s : s.bits == 6 ? -32 * w.s : 0;
  else if (v->panel_offset == SH_PANEL_ZERO) w.m = -w.s * (s.bits == 8 ? (int8_t)z[i] : z[i]);
  else if (v->panel_scales == SH_PANEL_PLAIN) w.m = number(v->scale_type, z + i * one);
  else w.m = -number(SH_F16, z + super) * z[k];
  return w;
}

/* --- Activations */

static uint8_t *pack(const sh_kernels *k, const sh_wview *v, const float *x, int toks) {
  size_t n = sh_qpack_bytes(v);
  uint8_t *q = ck_alloc(n * (size_t)toks);
  memset(q, 0x5a, n * (size_t)toks);
  for (int t = 0; t < toks; t++) k->qpack(v, x + t * v->cols, q + (size_t)t * n);
  return q;
}

/* Values that try the rounding: ordinary, halves, one outlier, tiny, around the least that counts, huge, zeros. */
static void hard_row(ck *c, int kind, float *x, int64_t n) {
  static const float scale[] = {1, 1, 1, 1e-40f, 0x1p-119f, 1e34f, 0, 1e-20f};
  ck_fill(c, x, (size_t)n, scale[kind % 8]);
  for (int64_t i = 0; kind == 1 && i < n; i++) x[i] = (float)ck_range(c, -254, 254) / 2;
  for (int64_t i = 0; kind == 1 && i < n; i += 32) x[i] = 127;
  if (kind == 2) x[ck_range(c, 0, (int)n - 1)] = 1e6f;
}

/* How far e may be from x / d over half, in float32: three roundings (127 / a, the product, d) of a number up to 127 come to 3 * 127 *
 * 2^-24 of a step, under 2^-15 + 2^-16 of one. */
static const double ROUNDED = 1 + 0x1p-14;

/* d is a / 127, no value is more than half a d away from d e, the sums are those of the integers. */
static bool packed_right(const sh_wview *v, const float *x, const uint8_t *q) {
  const sh_panel_shape s = sh_panel_shape_of(v);
  bool ok = true;
  double *sum = calloc((size_t)s.groups, sizeof *sum), *size = calloc((size_t)s.groups, sizeof *size), *top = calloc((size_t)s.blocks, 8);
  for (int64_t col = 0; col < v->cols; col++) {
    int at;
    int64_t b = block_of(v, col, &at);
    double value = (double)x[v->perm ? v->perm[col] : col], d = number(SH_F32, q + b * SH_QPACK_BLOCK + B),
           e = (int8_t)q[b * SH_QPACK_BLOCK + at];
    top[b] = fmax(top[b], fabs(value));
    ok = ok && (fabs(value - d * e) <= d / 2 * ROUNDED || fabs(value) < 0x1p-119) && fabs(e) <= 127;
    sum[col / v->group] += d * e;
    size[col / v->group] += d * fabs(e);
  }
  for (int64_t b = 0; b < s.blocks; b++) {
    double d = number(SH_F32, q + b * SH_QPACK_BLOCK + B);
    ok = ok && (top[b] < 0x1p-119 ? d == 0 : fabs(d - top[b] / 127) <= 0x1p-24 * d);
  }
  for (int64_t g = 0; g < s.groups; g++) { /* each step of a chain rounds once */
    double u = number(SH_F32, q + s.blocks * SH_QPACK_BLOCK + 4 * g);
    ok = ok && fabs(u - sum[g]) <= (double)(s.blocks / s.groups + 1) * 0x1p-23 * size[g] + 1e-44;
  }
  free(sum), free(size), free(top);
  return ok;
}

static void check_qpack(ck *c, const ck_format *f) {
  for (int i = 0; i < 16; i++) {
    char name[64];
    int64_t unit = ck_format_unit(f), k = unit * ck_range(c, 1, (int)(700 / unit));
    ck_matrix m = ck_matrix_new(c, f, 1, k, i % 3 == 1);
    float *x = ck_floats((size_t)k);
    hard_row(c, i, x, k);
    uint8_t *got = pack(&c->k, &m.v, x, 1), *want = pack(&c->ref, &m.v, x, 1);
    ck_format_name(f, name);
    ck_case(c, !memcmp(got, want, sh_qpack_bytes(&m.v)) && ck_guard_ok(got), "qpack %s k %lld, inputs %d: other bytes", name, (long long)k,
            i);
    ck_case(c, packed_right(&m.v, x, got), "qpack %s k %lld, inputs %d: not what is defined", name, (long long)k, i);
    ck_free(got), ck_free(want), ck_free(x), ck_matrix_free(&m);
  }
}

/* --- Products */

typedef struct shape {
  const ck_format *f;
  int rows, toks;
  int64_t k;
  bool bias, scale, add;
} shape;

typedef struct operands {
  ck_matrix m;
  float *x, *bias, *scale, *y0; /* [toks, k], [rows], [toks], [toks, rows] */
  const uint8_t **q;            /* [toks], into: */
  uint8_t *packed;
} operands;

enum { PAD = 3 }; /* columns of y beside the output that must stay as they were */

/* y [toks, rows], computed in calls of `rows` rows (a multiple of 8) and `toks` activation rows. Returns whether the guards are whole. */
static bool product(const sh_kernels *k, const shape *s, const operands *o, int rows, int toks, float *y) {
  size_t stride = (size_t)s->rows + 2 * PAD;
  float *wide = ck_floats((size_t)s->toks * stride), **row = malloc((size_t)s->toks * sizeof *row),
        *scratch = ck_alloc(SH_QMM_FLOATS * sizeof(float));
  for (int t = 0; t < s->toks; t++) {
    row[t] = wide + (size_t)t * stride;
    memcpy(row[t] + PAD, o->y0 + (size_t)t * (size_t)s->rows, (size_t)s->rows * sizeof *y);
  }
  for (int t = 0; t < s->toks; t += toks) {
    for (int r = 0; r < s->rows; r += rows) {
      sh_mm mm = {.w = &o->m.v,
                  .r0 = r,
                  .y0 = PAD + r,
                  .n_rows = s->rows - r < rows ? s->rows - r : rows,
                  .n_tok = s->toks - t < toks ? s->toks - t : toks,
                  .q = o->q + t,
                  .y = row + t,
                  .bias = s->bias ? o->bias + r : NULL,
                  .scale = s->scale ? o->scale + t : NULL,
                  .add = s->add,
                  .scratch = scratch};
      k->qmm(&mm);
    }
  }
  bool ok = ck_guard_ok(wide) && ck_guard_ok(scratch);
  for (int t = 0; t < s->toks; t++) {
    memcpy(y + (size_t)t * (size_t)s->rows, row[t] + PAD, (size_t)s->rows * sizeof *y);
    for (int i = 0; i < PAD; i++) ok = ok && row[t][i] == -7.7e33f && row[t][PAD + s->rows + i] == -7.7e33f;
  }
  ck_free(wide), ck_free(scratch);
  free(row);
  return ok;
}

static operands operands_new(ck *c, const shape *s) {
  size_t rows = (size_t)s->rows, toks = (size_t)s->toks, k = (size_t)s->k;
  operands o = {.m = ck_matrix_new(c, s->f, s->rows, s->k, false),
                .x = ck_floats(toks * k),
                .bias = ck_floats(rows),
                .scale = ck_floats(toks),
                .y0 = ck_floats(toks * rows),
                .q = malloc(toks * sizeof *o.q)};
  for (int t = 0; t < s->toks; t++) hard_row(c, t, o.x + (size_t)t * k, s->k);
  ck_fill(c, o.bias, rows, 1);
  ck_fill(c, o.scale, toks, 1);
  ck_fill(c, o.y0, toks * rows, 1);
  o.packed = pack(&c->ref, &o.m.v, o.x, s->toks);
  for (size_t t = 0; t < toks; t++) o.q[t] = o.packed + t * sh_qpack_bytes(&o.m.v);
  return o;
}

static void operands_free(operands *o) {
  ck_matrix_free(&o->m), ck_free(o->x), ck_free(o->bias), ck_free(o->scale), ck_free(o->y0), ck_free(o->packed);
  free(o->q);
}

/* Against the sum in double of the weights and the activations as they were before rounding: a value is off by half a d at most, a tiny one
 * by itself, and each float32 step by 2^-24 of what the sums may have reached. Products without bias, scale and y0 only. */
static bool near_exact(const shape *s, const operands *o, const float *y) {
  const sh_panel_shape p = sh_panel_shape_of(&o->m.v);
  const double steps = 3.0 * (double)p.blocks + 3.0 * (double)p.groups + 4;
  for (int r = 0; r < s->rows; r++) {
    for (int t = 0; t < s->toks; t++) {
      double sum = 0, bound = 0, size = 0;
      for (int64_t col = 0; col < s->k; col++) {
        ck_weight w = ck_panel_weight(&o->m.v, r, col);
        int at;
        double x = (double)o->x[t * s->k + col], d = number(SH_F32, o->q[t] + block_of(&o->m.v, col, &at) * SH_QPACK_BLOCK + B);
        sum += (w.s * w.q + w.m) * x;
        bound += fabs(w.s * w.q + w.m) * fmax(d / 2 * ROUNDED, d == 0 ? fabs(x) : 0);
        size += (fabs(w.s * w.q) + fabs(w.m)) * (fabs(x) + d);
      }
      if (!(fabs((double)y[t * s->rows + r] - sum) <= bound + steps * 0x1p-24 * size + 1e-40)) return false;
    }
  }
  return true;
}

static void check_shape(ck *c, const shape *s) {
  operands o = operands_new(c, s);
  size_t n = (size_t)s->toks * (size_t)s->rows;
  float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
  char name[200], format[64];
  snprintf(name, sizeof name, "%s rows %d tokens %d k %lld%s%s%s", ck_format_name(s->f, format), s->rows, s->toks, (long long)s->k,
           s->bias ? " bias" : "", s->scale ? " scale" : "", s->add ? " add" : "");
  product(&c->ref, s, &o, s->rows + 7, s->toks, want);
  const int cuts[][2] = {{1 << 20, 1 << 20}, {8, 1 << 20}, {1 << 20, 1}, {24, 5}, {16, 13}};
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    bool guards = product(&c->k, s, &o, cuts[i][0], cuts[i][1], got);
    ck_case(c, guards && ck_same_bits(got, want, n), "qmm %s, %d rows and %d tokens at a time: %s", name, cuts[i][0], cuts[i][1],
            guards ? "other bits than the reference" : "wrote outside");
  }
  if (!s->bias && !s->scale && !s->add && n * (size_t)s->k < 2000000)
    ck_case(c, near_exact(s, &o, got), "qmm %s is further from the exact product than rounding to int8 allows", name);
  free(want), free(got);
  operands_free(&o);
}

/* A row that is not finite gives NaN, and the rows beside it what they give without it. */
static void check_not_finite(ck *c, const ck_format *f) {
  const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int toks = 1; toks <= 20; toks += 6) {
    shape s = {.f = f, .rows = 11, .toks = toks, .k = 2 * (f->group ? f->group : 40)};
    operands o = operands_new(c, &s);
    size_t n = (size_t)toks * (size_t)s.rows;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    int hit = ck_range(c, 0, toks - 1);
    char name[64];
    product(&c->k, &s, &o, 16, toks, want);
    o.x[hit * s.k + ck_range(c, 0, (int)s.k - 1)] = bad[toks / 6 % 3];
    c->k.qpack(&o.m.v, o.x + hit * s.k, o.packed + (size_t)hit * sh_qpack_bytes(&o.m.v));
    product(&c->k, &s, &o, 16, toks, got);
    bool ok = true;
    for (int t = 0; t < toks; t++) {
      for (int r = 0; r < s.rows; r++)
        ok = ok && (t == hit ? isnan(got[t * s.rows + r]) : ck_same_bits(&got[t * s.rows + r], &want[t * s.rows + r], 1));
    }
    ck_case(c, ok, "qmm %s: row %d of %d is not finite", ck_format_name(f, name), hit, toks);
    free(want), free(got);
    operands_free(&o);
  }
}

void ck_panels(ck *c) {
  static const int cols[] = {16, 32, 48, 96, 576, 1024, 3584};
  for (int i = 0; i < ck_n_panel_formats; i++) {
    const ck_format *f = &ck_panel_formats[i];
    int64_t unit = ck_format_unit(f);
    check_qpack(c, f);
    check_not_finite(c, f);
    for (int toks = 1; toks <= 14; toks++) /* every tile */
      check_shape(c, &(shape){.f = f, .rows = ck_range(c, 1, 33), .toks = toks, .k = unit * ck_range(c, 1, (int)(300 / unit))});
    for (size_t j = 0; j < sizeof cols / sizeof *cols; j++) {
      if (cols[j] % unit || (c->quick && cols[j] > 1024)) continue;
      int toks = 1 + (int)j * ck_range(c, 0, 20);
      check_shape(c, &(shape){.f = f, .rows = ck_range(c, 1, 33), .toks = toks, .k = cols[j]});
      check_shape(c,
                  &(shape){.f = f, .rows = 17, .toks = ck_range(c, 1, 30), .k = cols[j], .bias = j % 2, .scale = j % 3 == 1, .add = true});
    }
    check_shape(c, &(shape){.f = f, .rows = 16, .toks = 103 + i, .k = unit * 3}); /* more than a block of tokens */
    for (int left = 1; left <= 3; left++) /* long rows, blocks of 24 tokens: the last one has as few as there are tiles for */
      check_shape(c, &(shape){.f = f, .rows = 3, .toks = 72 + left, .k = 12288});
  }
}
