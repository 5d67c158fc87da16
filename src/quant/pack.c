/* Codes packed as the layouts of Hugging Face folders want them.
 *
 * Pure functions, any thread; what they make lies in the caller's arena. Every layout is the same few steps: some integers of one line
 * become a 32-bit word, lowest bits first, and the layouts differ in what a line is (AWQ: outputs, in an order of its own; GPTQ: inputs of
 * one output, words of all outputs after one another; compressed-tensors: inputs of one output, after one another) and in what is done to
 * zero points. So there is one function that makes a word, and a loop per tensor that says from where and to where.
 *
 * A shape that would leave a word half filled is refused, though compressed-tensors would pad it: the GPU kernels that people load such a
 * folder with do not take it, and neither does formats/quant_module.c. */
#include "quant/pack.h"

#include <string.h>

#include "formats/dequant.h"

typedef struct packer {
  const sh_qcodes *c;
  const char *base;
  sh_arena *a;
  sh_ftensor *t; /* [SH_QPACK_MAX] */
  int n;
  sh_error *e;
  int rc; /* first error */
} packer;

/* --- What a layout holds */

bool sh_qscheme_int_quantized(const sh_qscheme *s) { return s->format == SH_QF_CT && s->int8_activations; }

static int refuse(const char *base, sh_error *e, const char *what) { return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: %s", base, what); }

static int check_scheme(const sh_qscheme *s, const char *base, sh_error *e) {
  if (s->bits != 4 && s->bits != 8)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: %d-bit weights cannot be packed; 4 or 8 bits can", base, s->bits);
  if (s->format == SH_QF_AWQ && s->bits != 4) return refuse(base, e, "AWQ holds 4-bit weights; 8 bits want GPTQ or compressed-tensors");
  if (s->format == SH_QF_AWQ && s->order)
    return refuse(base, e, "AWQ cannot hold columns in an order of their own; that wants GPTQ or compressed-tensors");
  if (s->order && s->group < 0) return refuse(base, e, "an order of columns wants groups; with one scale a row there is nothing to order");
  if (!s->int8_activations) return 0;
  if (s->format != SH_QF_CT || s->bits != 8) return refuse(base, e, "int8 activations want compressed-tensors with 8-bit weights");
  if (s->group > 0 || !s->symmetric || s->order)
    return refuse(base, e, "int8 activations want symmetric weights with one scale a row and columns in their own order");
  return 0;
}

static const char *last_part(const char *name) {
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

int sh_qpack_check(const sh_qscheme *s, const char *base, int64_t rows, int64_t cols, sh_error *e) {
  int rc = check_scheme(s, base, e);
  if (rc) return rc;
  if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX)
    return sh_fail(e, SH_ERR_ARG, "%s: a matrix of [%lld, %lld] cannot be packed", base, (long long)rows, (long long)cols);
  if (s->group > 0 && s->group % 16)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: groups of %lld columns; a multiple of 16 is wanted", base, (long long)s->group);
  if (s->group == 0 || (s->group > 0 && cols % s->group))
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "%s: %lld columns are no multiple of the group size %lld; take one that divides them, or one scale a row (-1)", base,
                   (long long)cols, (long long)s->group);
  int64_t per = 32 / s->bits;
  bool by_rows = s->format != SH_QF_CT, by_cols = s->format == SH_QF_GPTQ || (s->format == SH_QF_CT && !sh_qscheme_int_quantized(s));
  if (by_rows && rows % per)
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "%s: %lld rows are no multiple of %d, which %s packs into a word; use --format compressed-tensors, or --keep '%s' to "
                   "leave it as it is",
                   base, (long long)rows, (int)per, sh_qformat_name(s->format), last_part(base));
  if (by_cols && cols % per)
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "%s: %lld columns are no multiple of %d, which %s packs into a word; use --keep '%s' to leave it as it is", base,
                   (long long)cols, (int)per, sh_qformat_name(s->format), last_part(base));
  return 0;
}

/* --- Tensors */

/* b < 0: one dimension. NULL after an error. */
static uint8_t *add(packer *p, const char *suffix, sh_dtype type, int64_t a, int64_t b) {
  if (p->rc) return NULL;
  size_t bytes = (size_t)a * (size_t)(b < 0 ? 1 : b) * (size_t)sh_dtype_block_bytes(type);
  char *name = sh_arena_printf(p->a, "%s%s", p->base, suffix);
  uint8_t *data = sh_arena_alloc(p->a, bytes);
  if (!name || !data) {
    p->rc = sh_fail(p->e, SH_ERR_NOMEM, "%s%s: out of memory for %zu bytes", p->base, suffix, bytes);
    return NULL;
  }
  p->t[p->n++] = (sh_ftensor){.name = name,
                              .type = type,
                              .type_name = sh_dtype_name(type),
                              .n_dims = b < 0 ? 1 : 2,
                              .dims = {a, b < 0 ? 0 : b},
                              .data = data,
                              .bytes = bytes};
  return data;
}

/* Integers v[0], v[stride].. up to n of them as a word; place: which of them stands i-th from the bottom (NULL: in order). */
static uint32_t word_of(const uint8_t *v, int64_t stride, int n, int bits, const uint8_t *place) {
  uint32_t w = 0;
  for (int i = 0; i < n; i++) w |= (uint32_t)v[(place ? place[i] : i) * stride] << (bits * i);
  return w;
}

static void put_word(uint8_t *data, int64_t i, uint32_t w) { memcpy(data + 4 * i, &w, 4); }

/* The zero point of a group, less `less`, as a layout stores it. */
static int zero_of(const sh_qcodes *c, int64_t r, int64_t g, int less) {
  return (c->zeros ? c->zeros[r * (c->cols / c->group) + g] : 1 << (c->bits - 1)) - less;
}

/* A word of zero points of group g of the rows from r on; rows that do not exist give nothing. */
static uint32_t zero_word(const sh_qcodes *c, int64_t r, int64_t g, int less, const uint8_t *place) {
  uint8_t v[8] = {0};
  int n = 32 / c->bits;
  for (int i = 0; i < n && r + i < c->rows; i++) v[i] = (uint8_t)zero_of(c, r + i, g, less);
  return word_of(v, 1, n, c->bits, place);
}

static void put_scale(packer *p, uint8_t *data, int64_t i, int64_t r, int64_t g) {
  const sh_qcodes *c = p->c;
  float s = c->scales[r * (c->cols / c->group) + g];
  uint16_t h = c->scale_type == SH_F16 ? sh_f32_to_f16(s) : sh_f32_to_bf16(s);
  float back = c->scale_type == SH_F16 ? sh_f16_to_f32(h) : sh_bf16_to_f32(h);
  if (back != s && !p->rc) /* NaN is refused with it */
    p->rc = sh_fail(p->e, SH_ERR_ARG, "%s: the scale %.9g of row %lld, group %lld is not one of %s", p->base, (double)s, (long long)r,
                    (long long)g, sh_dtype_name(c->scale_type));
  memcpy(data + 2 * i, &h, 2);
}

/* --- AWQ and GPTQ */

/* scales [groups, N], qzeros [groups, words of N]. */
static void add_group_lines(packer *p, int less, const uint8_t *place) {
  const sh_qcodes *c = p->c;
  int64_t N = c->rows, G = c->cols / c->group, per = 32 / c->bits;
  uint8_t *z = add(p, ".qzeros", SH_I32, G, N / per), *s = add(p, ".scales", c->scale_type, G, N);
  if (p->rc) return;
  for (int64_t g = 0; g < G; g++) {
    for (int64_t r = 0; r < N; r += per) put_word(z, (g * N + r) / per, zero_word(c, r, g, less, place));
    for (int64_t r = 0; r < N; r++) put_scale(p, s, g * N + r, r, g);
  }
}

static void pack_awq(packer *p) {
  static const uint8_t PLACE[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const sh_qcodes *c = p->c;
  int64_t N = c->rows, K = c->cols;
  uint8_t *w = add(p, ".qweight", SH_I32, K, N / 8);
  for (int64_t r = 0; w && r < N; r += 8) {
    for (int64_t k = 0; k < K; k++) put_word(w, (k * N + r) / 8, word_of(c->q + r * K + k, K, 8, 4, PLACE));
  }
  add_group_lines(p, 0, PLACE);
}

/* A stored zero point of -1 is 15 or 255, which some readers take for 16 or 256 and some for 0. */
static void refuse_zero_of_0(packer *p) {
  const sh_qcodes *c = p->c;
  int64_t n = c->zeros ? c->rows * (c->cols / c->group) : 0;
  for (int64_t i = 0; i < n && !p->rc; i++) {
    if (!c->zeros[i]) p->rc = refuse(p->base, p->e, "GPTQ stores zero points less one and cannot hold a 0; clamp them to 1, or take AWQ");
  }
}

static void pack_gptq(packer *p) {
  const sh_qcodes *c = p->c;
  int64_t N = c->rows, K = c->cols, per = 32 / c->bits;
  refuse_zero_of_0(p);
  uint8_t *w = add(p, ".qweight", SH_I32, K / per, N);
  for (int64_t r = 0; w && r < N; r++) {
    for (int64_t k = 0; k < K; k += per) put_word(w, k / per * N + r, word_of(c->q + r * K + k, 1, (int)per, c->bits, NULL));
  }
  add_group_lines(p, 1, NULL);
  uint8_t *idx = add(p, ".g_idx", SH_I32, K, -1);
  for (int64_t k = 0; idx && k < K; k++) put_word(idx, k, c->order ? (uint32_t)c->order[k] : (uint32_t)(k / c->group));
}

/* --- compressed-tensors */

static void add_row_scales(packer *p) {
  const sh_qcodes *c = p->c;
  int64_t G = c->cols / c->group;
  uint8_t *s = add(p, ".weight_scale", c->scale_type, c->rows, G);
  for (int64_t i = 0; s && i < c->rows * G; i++) put_scale(p, s, i, i / G, i % G);
}

static void pack_rows(packer *p, bool asymmetric) {
  const sh_qcodes *c = p->c;
  int64_t N = c->rows, K = c->cols, G = K / c->group, per = 32 / c->bits;
  const int64_t shape[2] = {N, K};
  uint8_t *w = add(p, ".weight_packed", SH_I32, N, K / per);
  for (int64_t i = 0; w && i < N * K / per; i++) put_word(w, i, word_of(c->q + i * per, 1, (int)per, c->bits, NULL));
  add_row_scales(p);
  uint8_t *s = add(p, ".weight_shape", SH_I64, 2, -1);
  if (s) memcpy(s, shape, sizeof shape);
  uint8_t *z = asymmetric ? add(p, ".weight_zero_point", SH_I32, (N + per - 1) / per, G) : NULL;
  for (int64_t r = 0; z && r < N; r += per) {
    for (int64_t g = 0; g < G; g++) put_word(z, r / per * G + g, zero_word(c, r, g, 0, NULL));
  }
  uint8_t *idx = c->order ? add(p, ".weight_g_idx", SH_I32, K, -1) : NULL;
  if (idx) memcpy(idx, c->order, (size_t)K * 4);
}

static void pack_int8(packer *p) {
  const sh_qcodes *c = p->c;
  uint8_t *w = add(p, ".weight", SH_I8, c->rows, c->cols);
  for (int64_t i = 0; w && i < c->rows * c->cols; i++) w[i] = (uint8_t)(c->q[i] - 128);
  add_row_scales(p);
}

/* --- */

/* The codes are made by this program: what contradicts the scheme is a fault of it, and would load and speak badly. */
static void check_codes(packer *p, const sh_qscheme *s) {
  const sh_qcodes *c = p->c;
  const char *bad = NULL;
  if (c->bits != s->bits || c->group != (s->group < 0 ? c->cols : s->group)) bad = "their bits or group are not the scheme's";
  else if (c->scale_type != SH_F16 && c->scale_type != SH_BF16) bad = "their scales are neither F16 nor BF16";
  else if ((s->symmetric && c->zeros) || (!s->order && c->order)) bad = "they have zero points or an order, and the scheme has none";
  uint8_t all = 0;
  for (int64_t i = 0; !bad && c->bits == 4 && i < c->rows * c->cols; i++) all |= c->q[i];
  for (int64_t i = 0; !bad && c->bits == 4 && c->zeros && i < c->rows * (c->cols / c->group); i++) all |= c->zeros[i];
  for (int64_t k = 0; !bad && c->order && k < c->cols; k++) {
    if (c->order[k] < 0 || c->order[k] >= c->cols / c->group) bad = "a column is of a group that is not there";
  }
  if (all > 15) bad = "an integer has more than 4 bits";
  if (bad) p->rc = sh_fail(p->e, SH_ERR_INTERNAL, "%s: the codes cannot be packed: %s", p->base, bad);
}

int sh_qpack(const sh_qcodes *c, const sh_qscheme *s, const char *base, sh_arena *a, sh_ftensor t[SH_QPACK_MAX], int *n, sh_error *e) {
  packer p = {.c = c, .base = base, .a = a, .t = t, .e = e};
  *n = 0;
  p.rc = sh_qpack_check(s, base, c->rows, c->cols, e);
  if (!p.rc) check_codes(&p, s);
  if (p.rc) return p.rc;
  if (s->format == SH_QF_AWQ) pack_awq(&p);
  else if (s->format == SH_QF_GPTQ) pack_gptq(&p);
  else if (sh_qscheme_int_quantized(s)) pack_int8(&p);
  else pack_rows(&p, !s->symmetric);
  if (!p.rc) *n = p.n;
  return p.rc;
}
