/* Quantized checkpoints made by tests: integers, zero points and scales are drawn, packed as a layout says (nibble by nibble, from the
 * layout's definition and not from the reader's code), and what the weights must then be is computed here. */
#ifndef SH_TESTS_UNIT_FORMATS_QUANT_FILES_H
#define SH_TESTS_UNIT_FORMATS_QUANT_FILES_H

#include "formats/dequant.h"
#include "formats/repack.h"
#include "formats/safetensors.h"
#include "unit/formats/files.h"

typedef struct qspec {
  const char *base; /* the module's name */
  sh_qlayout layout;
  int bits; /* 0: 4 */
  int rows, cols, group;
  bool sym, act_order;
  int zero_offset; /* GPTQ: stored zero points are less by it */
  sh_dtype scale_type;
  uint64_t seed;
} qspec;

enum { QF_TENSORS = 4096 };

/* Tensors of a file to be; their names and data are owned. */
typedef struct qfile {
  sh_ftensor t[QF_TENSORS];
  int n;
} qfile;

static inline uint8_t *qf_add(qfile *f, const char *base, const char *suffix, sh_dtype type, int64_t a, int64_t b) {
  sh_ftensor *t = &f->t[f->n++];
  assert_true(f->n < QF_TENSORS);
  size_t bytes = (size_t)(a * (b ? b : 1)) * (size_t)sh_dtype_block_bytes(type), len = strlen(base) + strlen(suffix) + 1;
  char *name = malloc(len);
  uint8_t *data = calloc(bytes + 1, 1);
  snprintf(name, len, "%s%s", base, suffix);
  *t = (sh_ftensor){.name = name, .type = type, .n_dims = b ? 2 : 1, .dims = {a, b}, .data = data, .bytes = bytes};
  return data;
}

static inline void qf_free(qfile *f) {
  for (int i = 0; i < f->n; i++) {
    free((void *)(uintptr_t)f->t[i].name);
    free((void *)(uintptr_t)f->t[i].data);
  }
  f->n = 0;
}

static inline sh_ftensor *qf_find(qfile *f, const char *name) {
  for (int i = 0; i < f->n; i++) {
    if (strcmp(f->t[i].name, name) == 0) return &f->t[i];
  }
  fail_msg("no tensor %s", name);
  return NULL;
}

static inline uint8_t *qf_data(qfile *f, const char *name) { return (uint8_t *)(uintptr_t)qf_find(f, name)->data; }

static inline void qf_write(qfile *f, const char *config) {
  sh_error e = {0};
  if (sh_st_write(in_temp("model.safetensors"), f->t, f->n, &e)) fail_msg("%s", e.text);
  put_text("config.json", config);
}

/* Sets 4 bits of a tensor of 32-bit words. */
static inline void set_nibble(uint8_t *words, int64_t word, int nibble, int value) {
  uint8_t *p = words + 4 * word + nibble / 2;
  *p = (uint8_t)(nibble % 2 ? (*p & 15) | value << 4 : (*p & 0xf0) | value);
}

static inline int qs_bits(const qspec *s) { return s->bits ? s->bits : 4; }

/* Sets integer i of a word of the spec's bits. */
static inline void set_int(const qspec *s, uint8_t *words, int64_t word, int i, int value) {
  if (qs_bits(s) == 8) words[4 * word + i] = (uint8_t)value;
  else set_nibble(words, word, i, value);
}

/* In which nibble of its word AWQ keeps output i of eight. */
static const int AWQ_NIBBLE[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static inline void put_weight(const qspec *s, uint8_t *w, int r, int c, int q) {
  int64_t N = s->rows, K = s->cols, per = 32 / qs_bits(s);
  if (s->layout == SH_QL_AWQ) set_nibble(w, c * (N / 8) + r / 8, AWQ_NIBBLE[r % 8], q);
  else if (s->layout == SH_QL_GPTQ) set_int(s, w, c / per * N + r, c % (int)per, q);
  else if (s->layout == SH_QL_I8) w[r * K + c] = (uint8_t)(q - 128);
  else set_int(s, w, r * (K / per) + c / per, c % (int)per, q);
}

static inline void put_zero(const qspec *s, uint8_t *z, int r, int g, int zero) {
  int64_t N = s->rows, groups = s->cols / s->group, per = 32 / qs_bits(s);
  int v = (zero - s->zero_offset) & ((1 << qs_bits(s)) - 1);
  if (s->layout == SH_QL_AWQ) set_nibble(z, g * (N / 8) + r / 8, AWQ_NIBBLE[r % 8], v);
  else if (s->layout == SH_QL_GPTQ) set_int(s, z, g * (N / per) + r / per, r % (int)per, v);
  else set_int(s, z, r / per * groups + g, r % (int)per, v);
}

static inline void put_scale(const qspec *s, uint8_t *p, int r, int g, float v) {
  int64_t i = s->layout == SH_QL_ROWS || s->layout == SH_QL_I8 ? r * (s->cols / s->group) + g : (int64_t)g * s->rows + r;
  uint16_t h = s->scale_type == SH_F16 ? sh_f32_to_f16(v) : sh_f32_to_bf16(v);
  if (s->scale_type == SH_F32) memcpy(p + 4 * i, &v, 4);
  else memcpy(p + 2 * i, &h, 2);
}

/* Adds the module's tensors. want [rows, cols] (NULL: not wanted) becomes the weights. Scales are powers of two, exact in every type. */
static inline void qf_module(qfile *f, const qspec *s, float *want) {
  int N = s->rows, K = s->cols, G = K / s->group, per = 32 / qs_bits(s), all = 1 << qs_bits(s);
  bool bytes = s->layout == SH_QL_I8, rows = s->layout == SH_QL_ROWS || bytes, awq = s->layout == SH_QL_AWQ;
  uint64_t seed = s->seed ? s->seed : 88172645463325252ull;
  int *of = malloc((size_t)K * sizeof *of);
  for (int k = 0; k < K; k++) of[k] = k / s->group;
  for (int k = K - 1; k > 0 && s->act_order; k--) {
    int j = (int)(next_random(&seed) % (uint64_t)(k + 1)), t = of[k];
    of[k] = of[j], of[j] = t;
  }
  uint8_t *w = bytes  ? qf_add(f, s->base, ".weight", SH_I8, N, K)
               : rows ? qf_add(f, s->base, ".weight_packed", SH_I32, N, K / per)
                      : qf_add(f, s->base, ".qweight", SH_I32, awq ? K : K / per, awq ? N / 8 : N);
  uint8_t *sc = qf_add(f, s->base, rows ? ".weight_scale" : ".scales", s->scale_type, rows ? N : G, rows ? G : N), *z = NULL;
  if (!rows) z = qf_add(f, s->base, ".qzeros", SH_I32, G, N / per);
  else if (!s->sym) z = qf_add(f, s->base, ".weight_zero_point", SH_I32, (N + per - 1) / per, G);
  if (!awq && (!rows || s->act_order)) {
    uint8_t *order = qf_add(f, s->base, rows ? ".weight_g_idx" : ".g_idx", SH_I32, K, 0);
    memcpy(order, of, (size_t)K * sizeof *of);
  }
  if (rows && !bytes) {
    const int64_t shape[2] = {N, K};
    memcpy(qf_add(f, s->base, ".weight_shape", SH_I64, 2, 0), shape, sizeof shape);
  }
  int *zero = malloc((size_t)G * sizeof *zero);
  float *scale = malloc((size_t)G * sizeof *scale);
  for (int r = 0; r < N; r++) {
    for (int g = 0; g < G; g++) {
      zero[g] = s->sym ? all / 2 : (int)(next_random(&seed) % (uint64_t)(all - (all == 256))) + s->zero_offset; /* 256 is refused */
      scale[g] = (next_random(&seed) & 1 ? 1.0f : -1.0f) / (float)(1 << next_random(&seed) % 8);
      if (z) put_zero(s, z, r, g, zero[g]);
      put_scale(s, sc, r, g, scale[g]);
    }
    for (int k = 0; k < K; k++) {
      int q = (int)(next_random(&seed) >> 20 & (uint64_t)(all - 1));
      put_weight(s, w, r, k, q);
      if (want) want[(size_t)r * (size_t)K + (size_t)k] = (float)(q - zero[of[k]]) * scale[of[k]];
    }
  }
  free(zero);
  free(scale);
  free(of);
}

/* A config.json for the layout. */
static inline const char *qf_config(const qspec *s) {
  static char text[512];
  if (s->layout == SH_QL_AWQ)
    snprintf(text, sizeof text, "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":%d,\"version\":\"gemm\"}}",
             s->group);
  else if (s->layout == SH_QL_GPTQ)
    snprintf(text, sizeof text,
             "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":%d,\"group_size\":%d,\"sym\":%s,\"checkpoint_format\":\"%s\"}}",
             qs_bits(s), s->group, s->sym ? "true" : "false", s->zero_offset ? "gptq" : "gptq_v2");
  else
    snprintf(
        text, sizeof text,
        "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{"
        "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":%d,\"type\":\"int\",\"symmetric\":%s,\"strategy\":\"group\",\"group_size\":"
        "%d}}}}}",
        qs_bits(s), s->sym ? "true" : "false", s->group);
  return text;
}

/* The temporary folder opened, its config read, and one or more modules repacked. */
typedef struct qopen {
  sh_ckpt *ck;
  sh_quant q;
  sh_repack *r;
} qopen;

static inline int qo_open_as(qopen *o, const sh_repack_opts *opts, sh_error *e) {
  memset(o, 0, sizeof *o);
  int rc = sh_ckpt_open(&o->ck, temp_dir, 0, e);
  if (!rc) rc = sh_quant_parse(&o->q, sh_ckpt_config(o->ck), e);
  if (!rc) rc = sh_repack_new(&o->r, o->ck, opts, e);
  return rc;
}

static inline int qo_open(qopen *o, sh_error *e) { return qo_open_as(o, NULL, e); }

static inline int qo_add(qopen *o, const char *base, int64_t rows, int64_t cols, sh_wview *v, sh_error *e) {
  sh_qmodule m;
  bool found = false;
  int rc = sh_quant_find(&o->q, o->ck, base, rows, cols, &m, &found, e);
  if (rc) return rc;
  if (!found) fail_msg("%s is not found", base);
  if (m.layout == SH_QL_F8) *v = sh_qmodule_f8_view(&m, 0, 0, rows);
  else rc = sh_repack_add(o->r, &m, v, 0, e);
  return rc;
}

static inline void qo_close(qopen *o) {
  sh_repack_free(o->r);
  sh_ckpt_close(o->ck);
}

/* The view's weights are `want`, to the bit. */
static inline void expect_weights(const sh_wview *v, const float *want) {
  float *row = malloc((size_t)v->cols * sizeof *row);
  for (int64_t r = 0; r < v->rows; r++) {
    sh_dequant_row(v, r, row);
    for (int64_t c = 0; c < v->cols; c++) {
      if (row[c] != want[r * v->cols + c])
        fail_msg("%s [%lld, %lld]: %g in place of %g", v->name, (long long)r, (long long)c, (double)row[c], (double)want[r * v->cols + c]);
    }
  }
  free(row);
}

#endif
