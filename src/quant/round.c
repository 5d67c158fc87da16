/* Rounding to a grid, group by group: what every method ends with, and what the searches try many times over.
 *
 * Any thread; no state but the codes a caller owns. Scales are rounded to the type that the file will store before anything is rounded with
 * them, so the codes fit the scale a reader sees. Loops are written so that the compiler can use vectors of any width with the same result:
 * rounding to integers is done by adding and taking away 1.5 * 2^23, which is round-half-even for |x| < 2^22 and needs no library call. */
#include "quant/round.h"

#include "base/mem.h"
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

static const float ROUNDER = 12582912.0f; /* 1.5 * 2^23 */
static const float SMALLEST = 0x1p-24f;   /* the smallest scale: float16's last */

static float whole(float x) { return (x + ROUNDER) - ROUNDER; }

float sh_qstored(sh_dtype t, float x) {
  if (t == SH_BF16) return sh_bf16_to_f32(sh_f32_to_bf16(x));
  if (t == SH_F16) return sh_f16_to_f32(sh_f32_to_f16(x));
  return x;
}

float sh_qscale(const sh_qgrid *g, float scale) {
  if (g->pow2 && scale > 0) scale = exp2f(rintf(log2f(scale)));
  if (g->scale_type == SH_F16 && scale > 65504.0f) scale = g->pow2 ? 32768.0f : 65504.0f;
  scale = sh_qstored(g->scale_type, scale);
  return scale < SMALLEST ? SMALLEST : scale;
}

void sh_qrange(const float *w, int64_t n, float *lo, float *hi) {
  float a = 0, b = 0;
  for (int64_t i = 0; i < n; i++) {
    a = w[i] < a ? w[i] : a;
    b = w[i] > b ? w[i] : b;
  }
  *lo = a;
  *hi = b;
}

sh_qparam sh_qparam_of(const sh_qgrid *g, float lo, float hi) {
  float top = (float)((1 << g->bits) - 1), half = (float)(1 << (g->bits - 1));
  float s = g->symmetric ? fmaxf(-lo, hi) / (half - 1) : (hi - lo) / top;
  if (s <= 0) return (sh_qparam){.scale = 1.0f, .zero = g->symmetric ? half : (float)g->min_zero};
  if (g->pow2) s = exp2f(ceilf(log2f(s)));
  s = sh_qscale(g, s);
  if (g->symmetric) return (sh_qparam){s, half};
  float z = rintf(-lo / s);
  return (sh_qparam){s, z > top ? top : z < (float)g->min_zero ? (float)g->min_zero : z};
}

/* A weight in steps from the zero point, on the grid. */
typedef struct steps {
  float inverse, low, high;
} steps;

static steps steps_of(const sh_qgrid *g, sh_qparam p) { return (steps){1.0f / p.scale, -p.zero, (float)((1 << g->bits) - 1) - p.zero}; }

static inline float step(steps s, float w) {
  float v = w * s.inverse;
  v = v < s.low ? s.low : v;
  v = v > s.high ? s.high : v;
  return whole(v);
}

void sh_qround(const sh_qgrid *g, sh_qparam p, const float *w, int64_t n, float *y) {
  steps s = steps_of(g, p);
  for (int64_t i = 0; i < n; i++) y[i] = p.scale * step(s, w[i]);
}

void sh_qround_codes(const sh_qgrid *g, sh_qparam p, const float *w, int64_t n, uint8_t *q) {
  steps s = steps_of(g, p);
  for (int64_t i = 0; i < n; i++) q[i] = (uint8_t)(int)(step(s, w[i]) + p.zero);
}

int sh_qcodes_new(sh_qcodes *c, const sh_qgrid *g, int64_t rows, int64_t cols, sh_error *e) {
  memset(c, 0, sizeof *c);
  c->rows = rows;
  c->cols = cols;
  c->bits = g->bits;
  c->group = g->group > 0 ? g->group : cols;
  c->scale_type = g->scale_type;
  size_t n = (size_t)rows * (size_t)cols, m = (size_t)rows * (size_t)(cols / c->group);
  c->q = sh_calloc(n, 1);
  c->scales = sh_calloc(m, sizeof *c->scales);
  if (!g->symmetric) c->zeros = sh_calloc(m, 1);
  if (c->q && c->scales && (g->symmetric || c->zeros)) return 0;
  sh_qcodes_free(c);
  return sh_fail(e, SH_ERR_NOMEM, "out of memory for the codes of a %lld x %lld matrix", (long long)rows, (long long)cols);
}

void sh_qcodes_free(sh_qcodes *c) {
  sh_free(c->q);
  sh_free(c->scales);
  sh_free(c->zeros);
  sh_free(c->order);
  memset(c, 0, sizeof *c);
}

void sh_qcodes_set_row(sh_qcodes *c, const sh_qgrid *g, int64_t row, const float *w, const sh_qparam *p) {
  int64_t groups = c->cols / c->group;
  for (int64_t i = 0; i < groups; i++) {
    sh_qround_codes(g, p[i], w + i * c->group, c->group, c->q + row * c->cols + i * c->group);
    c->scales[row * groups + i] = p[i].scale;
    if (c->zeros) c->zeros[row * groups + i] = (uint8_t)(int)p[i].zero;
  }
}

void sh_qcodes_row(const sh_qcodes *c, int64_t row, float *out) {
  int64_t groups = c->cols / c->group;
  const uint8_t *q = c->q + row * c->cols, *z = c->zeros ? c->zeros + row * groups : NULL;
  const float *s = c->scales + row * groups;
  for (int64_t i = 0; i < c->cols; i++) {
    int64_t g = c->order ? c->order[i] : i / c->group;
    out[i] = s[g] * (float)((int)q[i] - (z ? (int)z[g] : 1 << (c->bits - 1)));
  }
}
