/* The weights of a quantized folder from the definitions of the layouts (docs/formats.md), without the program's own unpacking: one number
 * at a time, found from its row and column. */
#ifndef SH_TESTS_UNIT_QUANT_UNPACK_H
#define SH_TESTS_UNIT_QUANT_UNPACK_H

#include <stdio.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "formats/dequant.h"
#include "quant/codes.h"
#include "unit/formats/files.h"

typedef struct unpacked {
  const sh_ckpt *ck;
  const char *base; /* the module's name */
  sh_qformat format;
  int bits;
  bool zeros;         /* the grid has zero points */
  int64_t rows, cols; /* of the matrix */
} unpacked;

static inline const sh_ftensor *part_of(const unpacked *u, const char *suffix) {
  char name[256];
  snprintf(name, sizeof name, "%s.%s", u->base, suffix);
  return sh_ckpt_find(u->ck, name);
}

/* Integer i of the n-th 32-bit word of a tensor, counted from the lowest bits. */
static inline int code_at(const unpacked *u, const sh_ftensor *t, int64_t n, int64_t i) {
  uint32_t w;
  memcpy(&w, t->data + 4 * n, 4);
  return (int)(w >> (u->bits * i) & ((1u << u->bits) - 1));
}

static inline float scale_at(const sh_ftensor *t, int64_t i) {
  float s;
  sh_dequant(t->type, t->data + 2 * i, 1, &s);
  return s;
}

/* Where output k of eight stands in AWQ's words. */
static inline int64_t awq_place(int64_t k) { return k % 2 ? 4 + k / 2 : k / 2; }

static inline float weight_at(const unpacked *u, int64_t r, int64_t c) {
  int64_t per = 32 / u->bits;
  if (u->format == SH_QF_AWQ) {
    const sh_ftensor *q = part_of(u, "qweight"), *z = part_of(u, "qzeros"), *s = part_of(u, "scales");
    int64_t g = c / (u->cols / s->dims[0]), word = u->rows / 8;
    int code = code_at(u, q, c * word + r / 8, awq_place(r % 8)), zero = code_at(u, z, g * word + r / 8, awq_place(r % 8));
    return scale_at(s, g * u->rows + r) * (float)(code - zero);
  }
  if (u->format == SH_QF_GPTQ) {
    const sh_ftensor *q = part_of(u, "qweight"), *z = part_of(u, "qzeros"), *s = part_of(u, "scales"), *order = part_of(u, "g_idx");
    int32_t g;
    memcpy(&g, order->data + 4 * c, 4);
    int code = code_at(u, q, c / per * u->rows + r, c % per), zero = code_at(u, z, g * (u->rows / per) + r / per, r % per) + 1;
    return scale_at(s, g * u->rows + r) * (float)(code - zero);
  }
  const sh_ftensor *plain = part_of(u, "weight"), *q = part_of(u, "weight_packed"), *z = part_of(u, "weight_zero_point");
  const sh_ftensor *s = part_of(u, "weight_scale");
  int64_t groups = s->n_dims > 1 ? s->dims[1] : 1, g = c / (u->cols / groups);
  float scale = scale_at(s, r * groups + g);
  if (plain) return scale * (float)(int8_t)plain->data[r * u->cols + c];
  if (u->zeros && !z) fail_msg("%s has no zero points", u->base);
  int zero = u->zeros ? code_at(u, z, r / per * groups + g, r % per) : 1 << (u->bits - 1);
  return scale * (float)(code_at(u, q, r * (u->cols / per) + c / per, c % per) - zero);
}

#endif
