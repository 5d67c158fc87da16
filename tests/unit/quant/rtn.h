/* Folders quantized by rounding to nearest: a golden checkpoint in any layout, through the program's packing and writer, and the same
 * weights as float32 beside it. The quality is not the point; that every reader finds the same numbers is. */
#ifndef SH_TESTS_UNIT_QUANT_RTN_H
#define SH_TESTS_UNIT_QUANT_RTN_H

#include <math.h>

#include "base/text.h"
#include "unit/quant/codes.h"

typedef struct rtn_case {
  const char *name;
  sh_qscheme s;
} rtn_case;

static const rtn_case RTN_CASES[] = {
    {"awq-g64", {.format = SH_QF_AWQ, .bits = 4, .group = 64}},
    {"awq-sym-g32", {.format = SH_QF_AWQ, .bits = 4, .group = 32, .symmetric = true}},
    {"gptq-sym-g64", {.format = SH_QF_GPTQ, .bits = 4, .group = 64, .symmetric = true}},
    {"gptq-order-g32", {.format = SH_QF_GPTQ, .bits = 4, .group = 32, .order = true}},
    {"gptq8-sym-g32", {.format = SH_QF_GPTQ, .bits = 8, .group = 32, .symmetric = true}},
    {"gptq8-order-g64", {.format = SH_QF_GPTQ, .bits = 8, .group = 64, .order = true}},
    {"gptq8-row", {.format = SH_QF_GPTQ, .bits = 8, .group = -1}},
    {"ct-sym-g32", {.format = SH_QF_CT, .bits = 4, .group = 32, .symmetric = true}},
    {"ct-g64", {.format = SH_QF_CT, .bits = 4, .group = 64}},
    {"ct-order-g32", {.format = SH_QF_CT, .bits = 4, .group = 32, .symmetric = true, .order = true}},
    {"ct8-sym-g128", {.format = SH_QF_CT, .bits = 8, .group = 128, .symmetric = true}},
    {"ct8-g32", {.format = SH_QF_CT, .bits = 8, .group = 32}},
    {"ct8-row", {.format = SH_QF_CT, .bits = 8, .group = -1, .symmetric = true}},
    {"ct8-order-g64", {.format = SH_QF_CT, .bits = 8, .group = 64, .symmetric = true, .order = true}},
    {"ct-w8a8", {.format = SH_QF_CT, .bits = 8, .group = -1, .symmetric = true, .int8_activations = true}},
};
enum { RTN_N = sizeof RTN_CASES / sizeof RTN_CASES[0], RTN_PARTS = 5 };

static inline bool rtn_is_linear(const sh_ftensor *t) {
  return t->n_dims == 2 && sh_str_ends(t->name, ".weight") && !strstr(t->name, "norm") && !strstr(t->name, "embed") &&
         !strstr(t->name, "conv1d");
}

/* What quantizers leave alone. */
static inline bool rtn_is_quantized(const sh_ftensor *t) {
  static const char *const LEFT[] = {"in_proj_a", "in_proj_b", ".gate.weight", "shared_expert_gate", "lm_head", "visual", "mtp"};
  for (size_t i = 0; i < sizeof LEFT / sizeof LEFT[0]; i++) {
    if (strstr(t->name, LEFT[i])) return false;
  }
  return rtn_is_linear(t);
}

static inline float rtn_rounded(sh_dtype type, float s) {
  return type == SH_F16 ? sh_f16_to_f32(sh_f32_to_f16(s)) : sh_bf16_to_f32(sh_f32_to_bf16(s));
}

/* One row: scales and zero points by the range of each group, then the integers. */
static inline void rtn_row(sh_qcodes *c, int64_t r, const float *w) {
  int64_t groups = c->cols / c->group;
  int top = (1 << c->bits) - 1, half = 1 << (c->bits - 1);
  for (int64_t g = 0; g < groups; g++) {
    float low = 0, high = 0;
    for (int64_t k = 0; k < c->cols; k++) {
      if ((c->order ? c->order[k] : k / c->group) != g) continue;
      low = fminf(low, w[k]);
      high = fmaxf(high, w[k]);
    }
    float s = c->zeros ? (high - low) / (float)top : fmaxf(high, -low) / (float)(half - 1);
    s = rtn_rounded(c->scale_type, s > 0 ? s : 1);
    c->scales[r * groups + g] = s;
    if (c->zeros) c->zeros[r * groups + g] = (uint8_t)fminf(fmaxf(rintf(-low / s), 1), (float)top);
  }
  for (int64_t k = 0; k < c->cols; k++) {
    int64_t at = r * groups + (c->order ? c->order[k] : k / c->group);
    float q = rintf(w[k] / c->scales[at]) + (float)(c->zeros ? c->zeros[at] : half);
    c->q[r * c->cols + k] = (uint8_t)fminf(fmaxf(q, 0), (float)top);
  }
}

static inline sh_qcodes rtn_codes(const sh_qscheme *s, const sh_ftensor *t) {
  sh_qcodes c = draw_codes(s, t->dims[0], t->dims[1], s->format == SH_QF_CT ? SH_BF16 : SH_F16, 7 + (uint64_t)t->dims[0]);
  float *w = malloc((size_t)c.cols * sizeof *w);
  size_t row = (size_t)c.cols * (size_t)sh_dtype_block_bytes(t->type);
  for (int64_t r = 0; r < c.rows; r++) {
    sh_dequant(t->type, t->data + (size_t)r * row, c.cols, w);
    rtn_row(&c, r, w);
  }
  free(w);
  return c;
}

/* A copy of the checkpoint with float32 in place of each quantized module. */
static inline void rtn_write_plain(const sh_ckpt *ck, const char *path, const sh_ftensor *t, int n) {
  char name[600];
  sh_error e = {0};
  size_t len;
  assert_int_equal(mkdir(path, 0755), 0);
  snprintf(name, sizeof name, "%s/model.safetensors", path);
  if (sh_st_write(name, t, n, &e)) fail_msg("%s", e.text);
  snprintf(name, sizeof name, "%s/config.json", sh_ckpt_path(ck));
  char *text = slurp(name, &len);
  snprintf(name, sizeof name, "%s/config.json", path);
  if (sh_file_write_atomic(name, text, len, &e)) fail_msg("%s", e.text);
  sh_free(text);
}

/* path: the folder; PATH.f32: the weights. */
static inline void rtn_write(const sh_ckpt *ck, const rtn_case *x, const char *path) {
  int n = sh_ckpt_count(ck), n_ignored = 0;
  const char **ignored = calloc((size_t)n, sizeof *ignored);
  sh_ftensor *plain = calloc((size_t)n, sizeof *plain);
  sh_arena *a = sh_arena_new((size_t)1 << 26);
  int64_t bytes[RTN_PARTS];
  sh_error e = {0};
  for (int i = 0; i < RTN_PARTS; i++) bytes[i] = (int64_t)sh_ckpt_bytes(ck) / RTN_PARTS;
  sh_qwriter *w;
  sh_qwriter_opts o = {
      .path = path, .source = ck, .n_parts = RTN_PARTS, .bytes = bytes, .shard_bytes = 2 * bytes[0] + 5, .job = "round to nearest"};
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  for (int p = 0, i = 0; p < RTN_PARTS; p++) {
    sh_ftensor *part = calloc((size_t)n * SH_QPACK_MAX, sizeof *part);
    int count = 0;
    for (; i < (p + 1) * n / RTN_PARTS; i++) {
      const sh_ftensor *t = sh_ckpt_at(ck, i);
      char *base = sh_arena_strdup(a, t->name, strlen(t->name) - (rtn_is_linear(t) ? 7 : 0));
      plain[i] = *t;
      if (!rtn_is_quantized(t)) {
        if (rtn_is_linear(t)) ignored[n_ignored++] = base;
        part[count++] = *t;
        continue;
      }
      sh_qcodes c = rtn_codes(&x->s, t);
      int k;
      if (sh_qpack(&c, &x->s, base, a, part + count, &k, &e)) fail_msg("%s", e.text);
      count += k;
      plain[i].type = SH_F32;
      plain[i].bytes = (size_t)(c.rows * c.cols) * sizeof(float);
      plain[i].data = (const uint8_t *)weights_of_codes(&c);
      free_codes(&c);
    }
    if (sh_qwriter_put(w, p, part, count, &e)) fail_msg("%s", e.text);
    free(part);
  }
  sh_qscheme s = x->s;
  s.ignored = ignored;
  s.n_ignored = n_ignored;
  sh_buf config;
  sh_buf_init(&config, 1 << 24);
  if (sh_qconfig_text(sh_ckpt_config(ck), &s, &config, &e) || sh_qwriter_finish(w, config.p, "# rounded to nearest\n", NULL, 0, &e))
    fail_msg("%s", e.text);
  sh_qwriter_close(w);
  char beside[512];
  snprintf(beside, sizeof beside, "%s.f32", path);
  rtn_write_plain(ck, beside, plain, n);
  for (int i = 0; i < n; i++) {
    if (plain[i].data != sh_ckpt_at(ck, i)->data) free((void *)(uintptr_t)plain[i].data);
  }
  sh_buf_free(&config);
  sh_arena_free(a);
  free(plain);
  free(ignored);
}

#endif
