/* Codes drawn by tests, packed into a folder, and what the weights must then be. */
#ifndef SH_TESTS_UNIT_QUANT_CODES_H
#define SH_TESTS_UNIT_QUANT_CODES_H

#include "quant/pack.h"
#include "quant/writer.h"
#include "unit/formats/quant_files.h"

static inline int64_t group_of_scheme(const sh_qscheme *s, int64_t cols) { return s->group < 0 ? cols : s->group; }

static inline void free_codes(sh_qcodes *c) {
  free(c->q);
  free(c->scales);
  free(c->zeros);
  free(c->order);
  memset(c, 0, sizeof *c);
}

/* Random codes of a scheme. Scales are powers of two with a sign, exact in both types; 1 is the least zero point that all layouts have. */
static inline sh_qcodes draw_codes(const sh_qscheme *s, int64_t rows, int64_t cols, sh_dtype scale_type, uint64_t seed) {
  int64_t group = group_of_scheme(s, cols), groups = cols / group;
  sh_qcodes c = {.rows = rows, .cols = cols, .bits = s->bits, .group = group, .scale_type = scale_type};
  c.q = malloc((size_t)(rows * cols));
  c.scales = malloc((size_t)(rows * groups) * sizeof *c.scales);
  if (!s->symmetric) c.zeros = malloc((size_t)(rows * groups));
  if (s->order) c.order = malloc((size_t)cols * sizeof *c.order);
  for (int64_t i = 0; i < rows * cols; i++) c.q[i] = (uint8_t)(next_random(&seed) >> 20 & ((1u << s->bits) - 1));
  for (int64_t i = 0; i < rows * groups; i++) {
    c.scales[i] = (next_random(&seed) & 1 ? 1.0f : -1.0f) / (float)(1 << next_random(&seed) % 8);
    if (c.zeros) c.zeros[i] = (uint8_t)(1 + next_random(&seed) % ((1u << s->bits) - 1));
  }
  for (int64_t k = 0; c.order && k < cols; k++) c.order[k] = (int32_t)(k / group);
  for (int64_t k = cols - 1; c.order && k > 0; k--) {
    int64_t j = (int64_t)(next_random(&seed) % (uint64_t)(k + 1));
    int32_t t = c.order[k];
    c.order[k] = c.order[j], c.order[j] = t;
  }
  return c;
}

/* s (q - z). Caller frees. */
static inline float *weights_of_codes(const sh_qcodes *c) {
  int64_t groups = c->cols / c->group;
  float *w = malloc((size_t)(c->rows * c->cols) * sizeof *w);
  for (int64_t r = 0; r < c->rows; r++) {
    for (int64_t k = 0; k < c->cols; k++) {
      int64_t at = r * groups + (c->order ? c->order[k] : k / c->group);
      int zero = c->zeros ? c->zeros[at] : 1 << (c->bits - 1);
      w[r * c->cols + k] = (float)(c->q[r * c->cols + k] - zero) * c->scales[at];
    }
  }
  return w;
}

/* A config.json of nothing but the scheme. */
static inline void put_scheme_config(const sh_qscheme *s) {
  sh_json config = {.type = SH_JSON_OBJECT};
  sh_buf text;
  sh_error e = {0};
  sh_buf_init(&text, 1 << 20);
  if (sh_qconfig_text(&config, s, &text, &e)) fail_msg("%s", e.text);
  put_file("config.json", text.p, text.len);
  sh_buf_free(&text);
}

#endif
