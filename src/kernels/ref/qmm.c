/* Reference integer products with panels: the definition in formats/panel.h, step by step.
 *
 * Pure functions, any thread. Sums of integers are exact and the float32 steps are the defined ones, so every variant gives these bits, not
 * merely values near them. A block of a panel is decoded once for a few activation rows at a time, which also keeps this usable on a
 * machine without AVX2. */
#include "formats/dequant.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

enum { R = SH_PANEL_ROWS, B = SH_PANEL_BLOCK, TOKENS = 8 }; /* TOKENS: activation rows at a time */

static const float small = 0x1p-119f; /* under it a block counts as zeros */

/* --- Activations */

/* Columns that block b has: from *first on, at most B, within its group. */
static int block_columns(const sh_wview *w, int64_t b, int64_t *first) {
  int64_t per_group = w->group == B / 2 ? 1 : (w->group + B - 1) / B, span = w->group == B / 2 ? B : w->group;
  int64_t end = (b / per_group + 1) * span < w->cols ? (b / per_group + 1) * span : w->cols;
  *first = b / per_group * span + b % per_group * B;
  return (int)(end - *first < B ? end - *first : B);
}

/* Quantizes a block of values, filled up with zeros; returns d. */
static float quantize(const float *v, int8_t *e) {
  float a = 0;
  bool finite = true;
  for (int i = 0; i < B; i++) {
    finite = finite && isfinite(v[i]);
    a = fabsf(v[i]) > a ? fabsf(v[i]) : a;
  }
  memset(e, 0, B);
  if (!finite) return NAN;
  if (a < small) return 0;
  float inverse = 127.0f / a;
  for (int i = 0; i < B; i++) e[i] = (int8_t)lrintf(v[i] * inverse);
  return a / 127.0f;
}

static float sum(const int8_t *e, int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += e[i];
  return (float)s;
}

void sh_kern_qpack_ref(const sh_wview *w, const float *x, uint8_t *out) {
  const sh_panel_shape s = sh_panel_shape_of(w);
  float *u = (float *)(void *)(out + s.blocks * SH_QPACK_BLOCK);
  const int64_t per_group = s.blocks / s.groups; /* 0: a group is half a block */
  for (int64_t b = 0; b < s.blocks; b++, out += SH_QPACK_BLOCK) {
    int64_t c;
    float v[B] = {0};
    int8_t e[B];
    int n = block_columns(w, b, &c);
    for (int i = 0; i < n; i++) v[i] = x[w->perm ? w->perm[c + i] : c + i];
    float d = quantize(v, e);
    memcpy(out, e, B);
    memcpy(out + B, &d, sizeof d);
    if (w->group == B / 2) {
      u[2 * b] = sum(e, B / 2) * d;
      if (2 * b + 1 < s.groups) u[2 * b + 1] = sum(e + B / 2, B / 2) * d;
    } else u[b / per_group] = b % per_group ? fmaf(sum(e, B), d, u[b / per_group]) : sum(e, B) * d;
  }
}

/* --- Weights */

/* The integers of block b of a panel: [row][column]. */
static void decode(const sh_panel_shape *s, const uint8_t *panel, int64_t b, int16_t q[R][B]) {
  const uint8_t *p = panel + b * s->bits * B;
  for (int c = 0; c < B; c++) {
    for (int r = 0; r < R; r++) {
      int quad = c / 4, at = 4 * r + c % 4;
      if (s->bits == 8) {
        q[r][c] = (int8_t)p[quad * B + at];
        continue;
      }
      int low = p[quad % 4 * B + at] >> (quad < 4 ? 0 : 4) & 15;
      int high = s->bits == 6 ? p[4 * B + quad % 2 * B + at] >> (quad / 2 * 2) & 3 : 0;
      q[r][c] = (int16_t)(low | high << 4);
    }
  }
}

static float number(sh_dtype type, const uint8_t *p) {
  float f;
  uint16_t h;
  memcpy(&h, p, 2);
  if (type == SH_F16) return sh_f16_to_f32(h);
  if (type == SH_BF16) return sh_bf16_to_f32(h);
  memcpy(&f, p, 4);
  return f;
}

/* Scale s and offset m of row r in group g. */
static void scale_of(const sh_wview *w, const sh_panel_shape *s, const uint8_t *panel, int64_t g, int r, float *scale, float *m) {
  const uint8_t *at = panel + s->scales_at, *off = panel + s->offsets_at;
  const int64_t one = w->scale_type == SH_F32 ? 4 : 2, i = g * R + r, super = g * w->group / SH_PANEL_SUPER * R + r,
                k = s->supers * R * 2 + i;
  if (w->panel_scales == SH_PANEL_PLAIN) *scale = number(w->scale_type, at + i * one);
  else *scale = number(SH_F16, at + 2 * super) * (float)(w->panel_scales == SH_PANEL_SUPER_I8 ? (int8_t)at[k] : at[k]);
  if (w->panel_offset == SH_PANEL_ZERO) *m = -(*scale * (float)(s->bits == 8 ? (int8_t)off[i] : off[i]));
  else if (w->panel_offset == SH_PANEL_MIDDLE) *m = s->bits == 4 ? -8 * *scale : s->bits == 6 ? -32 * *scale : 0;
  else if (w->panel_scales == SH_PANEL_PLAIN) *m = number(w->scale_type, off + i * one);
  else *m = -(number(SH_F16, off + 2 * super) * (float)off[k]);
}

/* --- The product */

typedef struct state {
  float y[TOKENS][R], t[TOKENS][R]; /* of the rows, of the group at hand */
} state;

static float dot(const int16_t *q, const int8_t *e, int n) {
  int s = 0;
  for (int i = 0; i < n; i++) s += q[i] * e[i];
  return (float)s;
}

/* y += s t + m u, the group's last steps. */
static void add_group(const sh_wview *w, const sh_panel_shape *s, const uint8_t *panel, int64_t g, int n_tok, const uint8_t *const *x,
                      state *a) {
  const bool offsets = s->bits != 8 || w->panel_offset != SH_PANEL_MIDDLE;
  for (int r = 0; r < R; r++) {
    float scale, m;
    scale_of(w, s, panel, g, r, &scale, &m);
    for (int i = 0; i < n_tok; i++) {
      float u;
      memcpy(&u, x[i] + s->blocks * SH_QPACK_BLOCK + 4 * g, sizeof u);
      a->y[i][r] = fmaf(scale, a->t[i][r], a->y[i][r]);
      if (offsets) a->y[i][r] = fmaf(m, u, a->y[i][r]);
    }
  }
}

/* Eight rows for a few activation rows. */
static void panel_product(const sh_wview *w, const sh_panel_shape *s, const uint8_t *panel, int n_tok, const uint8_t *const *x, state *a) {
  const bool half = w->group == B / 2;
  const int64_t per_group = half ? 1 : s->blocks / s->groups;
  memset(a, 0, sizeof *a);
  for (int64_t b = 0; b < s->blocks; b++) {
    int16_t q[R][B];
    decode(s, panel, b, q);
    for (int h = 0; h < (half ? 2 : 1) && (!half || 2 * b + h < s->groups); h++) {
      int n = half ? B / 2 : B;
      for (int i = 0; i < n_tok; i++) {
        float d;
        const int8_t *e = (const int8_t *)x[i] + b * SH_QPACK_BLOCK;
        memcpy(&d, e + B, sizeof d);
        for (int r = 0; r < R; r++) {
          float f = dot(q[r] + h * n, e + h * n, n);
          a->t[i][r] = b % per_group ? fmaf(f, d, a->t[i][r]) : f * d;
        }
      }
      if (half) add_group(w, s, panel, 2 * b + h, n_tok, x, a);
    }
    if (!half && b % per_group == per_group - 1) add_group(w, s, panel, b / per_group, n_tok, x, a);
  }
}

void sh_kern_qmm_ref(const sh_mm *a) {
  const sh_panel_shape s = sh_panel_shape_of(a->w);
  for (int r0 = 0; r0 < a->n_rows; r0 += R) {
    const uint8_t *panel = a->w->data + (size_t)(a->r0 + r0) / R * s.bytes;
    for (int t0 = 0; t0 < a->n_tok; t0 += TOKENS) {
      state st;
      int n = a->n_tok - t0 < TOKENS ? a->n_tok - t0 : TOKENS;
      panel_product(a->w, &s, panel, n, a->q + t0, &st);
      for (int t = 0; t < n; t++) {
        for (int r = 0; r < R && r0 + r < a->n_rows; r++) sh_kern_put_ref(a, t0 + t, r0 + r, st.y[t][r]);
      }
    }
  }
}
