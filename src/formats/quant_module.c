/* One module of a quantized folder: which tensors are there, and whether they fit together.
 *
 * Called at load, once per matrix (31,000 times for a MoE of 256 experts), on one thread: a handful of name look-ups and comparisons, no
 * value is read. Bits and group size come from the shapes, because the model's config fixes rows and columns; what quantization_config says
 * is held against them. A module that breaks a rule is refused with the tensor's name and both numbers; guessing would load something that
 * speaks, badly. */
#include "formats/quant.h"

#include <stdio.h>
#include <string.h>

#define USE_OTHER "use a 4-bit, 8-bit or FP8 folder of the model, or a GGUF"

typedef struct finder {
  const sh_quant *q;
  const sh_ckpt *ck;
  const char *base;
  sh_qmodule *m;
  sh_error *e;
  int rc; /* first error */
} finder;

/* --- Finding and checking tensors */

static const sh_ftensor *part(const finder *f, const char *suffix) {
  char name[256];
  int n = snprintf(name, sizeof name, "%s%s", f->base, suffix);
  return n > 0 && n < (int)sizeof name ? sh_ckpt_find(f->ck, name) : NULL;
}

static const sh_ftensor *needed(finder *f, const char *suffix) {
  const sh_ftensor *t = part(f, suffix);
  if (!t && !f->rc)
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s%s is missing, and %s is quantized", sh_ckpt_path(f->ck), f->base, suffix,
                    f->m->weight->name);
  return t;
}

/* Shapes are compared without 1s at their ends: [N], [N, 1] and [], [1], [1, 1] are written for the same thing. */
static bool has_shape(const sh_ftensor *t, const int64_t *want, int n) {
  int have = t->n_dims;
  while (have > 0 && t->dims[have - 1] == 1) have--;
  while (n > 0 && want[n - 1] == 1) n--;
  return have == n && (n == 0 || memcmp(t->dims, want, (size_t)n * sizeof *want) == 0);
}

static void check_shape(finder *f, const sh_ftensor *t, int64_t a, int64_t b) {
  const int64_t want[2] = {a, b};
  if (!f->rc && !has_shape(t, want, 2)) f->rc = sh_ckpt_fail_shape(f->ck, t, want, 2, f->e);
}

static void check_type(finder *f, const sh_ftensor *t, sh_dtype type, const char *name) {
  if (!f->rc && t->type != type)
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s is stored as %s; %s is wanted", sh_ckpt_path(f->ck), t->name, t->type_name, name);
}

static void check_scale_type(finder *f, const sh_ftensor *t) {
  if (!f->rc && t->type != SH_F16 && t->type != SH_BF16 && t->type != SH_F32)
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s is stored as %s; F16, BF16 or F32 is wanted", sh_ckpt_path(f->ck), t->name,
                    t->type_name);
}

/* --- Integers */

/* A packed tensor that would be right for another width of weights is well-formed, so it is told apart from a broken one: `found` words
 * hold the n weights of a line. */
static int width_of(int64_t found, int64_t n) {
  static const int WIDTHS[] = {4, 8, 2, 3};
  for (int i = 0; i < 4; i++) {
    if (found == (n * WIDTHS[i] + 31) / 32) return WIDTHS[i];
  }
  return 0;
}

static void check_declared_bits(finder *f, const sh_ftensor *t) {
  if (f->m->bits == 4 ? f->q->int4 : f->q->int8) return;
  f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s holds %d-bit weights by its shape, but quantization_config says %d bits",
                  sh_ckpt_path(f->ck), t->name, f->m->bits, f->m->bits == 4 ? 8 : 4);
}

/* The packed tensor of `lines` lines of n weights each, by words along the dimension `packed`, sets the bits: 4, or 8 when most is. */
static void check_packed(finder *f, const sh_ftensor *t, int64_t lines, int packed, int64_t n, int most) {
  int64_t want[2] = {lines, lines};
  want[packed] = n / 8;
  check_type(f, t, SH_I32, "I32");
  if (f->rc) return;
  int bits = t->n_dims == 2 && t->dims[!packed] == lines ? width_of(t->dims[packed], n) : 0;
  f->m->bits = bits;
  if (n % (bits == 8 && most == 8 ? 4 : 8)) {
    f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED, "%s: tensor %s: %lld %s are no multiple of 8", sh_ckpt_path(f->ck), t->name, (long long)n,
                    f->q->method == SH_QUANT_AWQ ? "rows" : "columns");
    return;
  }
  if (bits == 4 || (bits == 8 && most == 8)) {
    check_declared_bits(f, t);
    return;
  }
  f->rc = sh_ckpt_fail_shape(f->ck, t, want, 2, f->e);
  if (bits)
    f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED, "%s, which is right for %d-bit weights; only 4-bit ones%s are supported (" USE_OTHER ")",
                    f->e ? f->e->text : "", bits, most == 8 ? " and 8-bit ones" : " in this layout");
}

/* Whether groups of g columns are what the config declares. */
static bool declared(const sh_quant *q, int64_t g, int64_t cols) {
  for (int i = 0; i < q->n_groups; i++) {
    if (q->groups[i] == g || ((q->groups[i] < 0 || q->groups[i] > cols) && g == cols)) return true;
  }
  return q->n_groups == 0;
}

/* Sets the group from the number of groups that the scales have. */
static void set_group(finder *f, int64_t n_groups) {
  const char *path = sh_ckpt_path(f->ck), *name = f->m->scales->name;
  const sh_quant *q = f->q;
  int64_t cols = f->m->cols;
  if (f->rc) return;
  if (n_groups < 1) {
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s has scales of no group", path, name);
    return;
  }
  int64_t g = cols / n_groups;
  bool even = n_groups <= cols && cols % n_groups == 0 && (g % 16 == 0 || g == cols);
  if (even && declared(q, g, cols)) {
    f->m->group = g;
    f->m->scale_rows = 1;
    return;
  }
  for (int i = 0; i < q->n_groups; i++) { /* the usual mistake first: a last group that is short */
    int64_t size = q->groups[i];
    if (size > 0 && size < cols && cols % size && (cols + size - 1) / size == n_groups) {
      f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED, "%s: tensor %s: %lld columns are no multiple of the group size %lld", path, name,
                      (long long)cols, (long long)size);
      return;
    }
  }
  if (!even) {
    f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED, "%s: tensor %s: %lld columns in %lld groups; groups of a multiple of 16 columns are wanted",
                    path, name, (long long)cols, (long long)n_groups);
  } else {
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s has a scale for every %lld columns, but quantization_config says %lld", path, name,
                    (long long)g, (long long)q->groups[0]);
  }
}

static void check_multiple(finder *f, int64_t n, int of, const char *what) {
  if (!f->rc && n % of)
    f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED, "%s: tensor %s: %lld %s are no multiple of %d", sh_ckpt_path(f->ck), f->m->weight->name,
                    (long long)n, what, of);
}

/* qweight, qzeros, scales, g_idx. */
static void find_columns(finder *f) {
  sh_qmodule *m = f->m;
  bool awq = f->q->method == SH_QUANT_AWQ;
  int64_t N = m->rows, K = m->cols;
  m->layout = awq ? SH_QL_AWQ : SH_QL_GPTQ;
  m->zero_offset = f->q->zero_offset;
  check_multiple(f, N, awq ? 8 : 4, "rows");
  check_multiple(f, K, awq ? 8 : 4, "columns");
  if (f->rc) return;
  if (awq) check_packed(f, m->weight, K, 1, N, 4);
  else check_packed(f, m->weight, N, 0, K, 8);
  int64_t per = f->rc ? 8 : 32 / m->bits;
  check_multiple(f, N, (int)per, "rows");
  check_multiple(f, K, (int)per, "columns");
  if (f->rc) return;
  m->scales = needed(f, ".scales");
  m->zeros = needed(f, ".qzeros");
  m->order = awq ? NULL : part(f, ".g_idx");
  if (f->rc) return;
  check_scale_type(f, m->scales);
  set_group(f, m->scales->n_dims == 2 ? m->scales->dims[0] : 0);
  if (f->rc) return;
  check_shape(f, m->scales, K / m->group, N);
  check_type(f, m->zeros, SH_I32, "I32");
  check_shape(f, m->zeros, K / m->group, N / per);
  if (!m->order) return;
  check_type(f, m->order, SH_I32, "I32");
  check_shape(f, m->order, K, 1);
}

static int64_t load_whole(const sh_ftensor *t, int i) {
  int64_t v = 0;
  int32_t w = 0;
  if (t->type == SH_I64) memcpy(&v, t->data + 8 * i, sizeof v);
  else memcpy(&w, t->data + 4 * i, sizeof w);
  return t->type == SH_I64 ? v : w;
}

static void check_weight_shape(finder *f) {
  const sh_ftensor *t = f->m->shape = part(f, ".weight_shape");
  if (!t || f->rc) return;
  if (t->type != SH_I32) check_type(f, t, SH_I64, "I64");
  check_shape(f, t, 2, 1);
  if (f->rc) return;
  int64_t rows = load_whole(t, 0), cols = load_whole(t, 1);
  if (rows != f->m->rows || cols != f->m->cols)
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s says [%lld, %lld], [%lld, %lld] is wanted", sh_ckpt_path(f->ck), t->name,
                    (long long)rows, (long long)cols, (long long)f->m->rows, (long long)f->m->cols);
}

/* weight_packed, weight_scale, weight_zero_point, weight_g_idx, weight_shape. */
static void find_rows(finder *f) {
  sh_qmodule *m = f->m;
  int64_t N = m->rows, K = m->cols;
  m->layout = SH_QL_ROWS;
  check_packed(f, m->weight, N, 1, K, 8);
  if (f->rc) return;
  check_weight_shape(f);
  m->scales = needed(f, ".weight_scale");
  m->zeros = part(f, ".weight_zero_point");
  m->order = part(f, ".weight_g_idx");
  if (f->rc) return;
  check_scale_type(f, m->scales);
  set_group(f, m->scales->n_dims == 2 ? m->scales->dims[1] : m->scales->n_dims == 1 ? 1 : 0);
  if (f->rc) return;
  check_shape(f, m->scales, N, K / m->group);
  if (!m->zeros && f->q->asymmetric && !f->q->symmetric) needed(f, ".weight_zero_point");
  if (m->zeros) {
    check_type(f, m->zeros, SH_I32, "I32");
    check_shape(f, m->zeros, (N + 32 / m->bits - 1) / (32 / m->bits), K / m->group);
  }
  if (m->order) {
    check_type(f, m->order, SH_I32, "I32");
    check_shape(f, m->order, K, 1);
  }
}

/* Zero points beside signed bytes: some writers store them though they are all 0. */
static void check_no_zeros(finder *f) {
  const sh_ftensor *t = f->m->shape = part(f, ".weight_zero_point");
  for (size_t i = 0; t && !f->rc && i < t->bytes; i++) {
    if (t->data[i])
      f->rc = sh_fail(f->e, SH_ERR_UNSUPPORTED,
                      "%s: tensor %s is not all 0: int-quantized weights with zero points are not supported; use a symmetric or a "
                      "pack-quantized folder of the model",
                      sh_ckpt_path(f->ck), t->name);
  }
}

/* weight, weight_scale. */
static void find_bytes(finder *f) {
  sh_qmodule *m = f->m;
  m->layout = SH_QL_I8;
  m->bits = 8;
  check_shape(f, m->weight, m->rows, m->cols);
  if (!f->rc) check_declared_bits(f, m->weight);
  if (f->rc) return;
  m->scales = needed(f, ".weight_scale");
  if (f->rc) return;
  check_scale_type(f, m->scales);
  set_group(f, m->scales->n_dims == 2 ? m->scales->dims[1] : m->scales->n_dims == 1 ? 1 : 0);
  if (f->rc) return;
  check_shape(f, m->scales, m->rows, m->cols / m->group);
  check_no_zeros(f);
}

/* --- FP8 */

static int64_t blocks(int64_t n, int64_t of) { return n / of + (n % of != 0); }

/* Scales of [n, blocks of rows, blocks of columns]; true when that is what is there. */
static bool scaled_by(sh_qmodule *m, int64_t n, int64_t scale_rows, int64_t group) {
  const int64_t want[3] = {n, blocks(m->rows, scale_rows), blocks(m->cols, group)};
  m->scale_rows = scale_rows;
  m->group = group;
  return n == 1 ? has_shape(m->scales, want + 1, 2) : has_shape(m->scales, want, 3);
}

static void find_f8(finder *f, int64_t n, const char *inverse, const char *plain) {
  sh_qmodule *m = f->m;
  const sh_quant *q = f->q;
  m->layout = SH_QL_F8;
  m->bits = 8;
  if (!q->fp8) {
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s is stored as F8_E4M3, but quantization_config (%s) declares no FP8",
                    sh_ckpt_path(f->ck), m->weight->name, sh_quant_name(q->method));
    return;
  }
  const int64_t want[3] = {n, m->rows, m->cols};
  if (n == 1 ? !has_shape(m->weight, want + 1, 2) : !has_shape(m->weight, want, 3)) {
    f->rc = sh_ckpt_fail_shape(f->ck, m->weight, n == 1 ? want + 1 : want, n == 1 ? 2 : 3, f->e);
    return;
  }
  m->scales = part(f, inverse);
  if (!m->scales) m->scales = part(f, plain);
  if (!m->scales) needed(f, inverse);
  if (f->rc) return;
  check_scale_type(f, m->scales);
  if (f->rc || (q->block_rows && scaled_by(m, n, q->block_rows, q->block_cols))) return;
  if (!q->block_rows || q->method == SH_QUANT_CT) {
    if (scaled_by(m, n, 1, m->cols) || scaled_by(m, n, m->rows, m->cols)) return;
  }
  const int64_t scales[3] = {n, blocks(m->rows, q->block_rows ? q->block_rows : m->rows),
                             blocks(m->cols, q->block_cols ? q->block_cols : m->cols)};
  f->rc = sh_ckpt_fail_shape(f->ck, m->scales, n == 1 ? scales + 1 : scales, n == 1 ? 2 : 3, f->e);
}

sh_wview sh_qmodule_f8_view(const sh_qmodule *m, int64_t i, int64_t first, int64_t rows) {
  size_t per_row = (size_t)blocks(m->cols, m->group) * (size_t)sh_dtype_block_bytes(m->scales->type);
  return (sh_wview){.type = SH_F8_E4M3,
                    .rows = rows,
                    .cols = m->cols,
                    .data = m->weight->data + (size_t)(i * m->rows + first) * (size_t)m->cols,
                    .row_bytes = (size_t)m->cols,
                    .name = m->weight->name,
                    .group = (int)m->group,
                    .scale_rows = (int)m->scale_rows,
                    .scale_type = m->scales->type,
                    .scales = m->scales->data + (size_t)(i * blocks(m->rows, m->scale_rows) + first / m->scale_rows) * per_row,
                    .scale_row_bytes = per_row};
}

/* --- Which of them */

/* A packed tensor that the method of the config does not write. */
static void check_method(finder *f, const sh_ftensor *t, bool fits) {
  if (fits) return;
  if (f->q->method == SH_QUANT_NONE)
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s is quantized, but config.json has no quantization_config that says how",
                    sh_ckpt_path(f->ck), t->name);
  else
    f->rc = sh_fail(f->e, SH_ERR_FORMAT, "%s: tensor %s does not belong to the method of quantization_config, %s", sh_ckpt_path(f->ck),
                    t->name, sh_quant_name(f->q->method));
}

int sh_quant_find(const sh_quant *q, const sh_ckpt *ck, const char *base, int64_t rows, int64_t cols, sh_qmodule *m, bool *found,
                  sh_error *e) {
  finder f = {.q = q, .ck = ck, .base = base, .m = m, .e = e};
  memset(m, 0, sizeof *m);
  m->rows = rows;
  m->cols = cols;
  *found = true;
  if ((m->weight = part(&f, ".qweight"))) {
    check_method(&f, m->weight, q->method == SH_QUANT_AWQ || q->method == SH_QUANT_GPTQ);
    if (!f.rc) find_columns(&f);
  } else if ((m->weight = part(&f, ".weight_packed"))) {
    check_method(&f, m->weight, q->method == SH_QUANT_CT && (q->int4 || q->int8));
    if (!f.rc) find_rows(&f);
  } else if ((m->weight = part(&f, ".weight")) && m->weight->type == SH_F8_E4M3) {
    find_f8(&f, 1, ".weight_scale_inv", ".weight_scale");
  } else if (m->weight && m->weight->type == SH_I8) {
    check_method(&f, m->weight, q->method == SH_QUANT_CT && (q->int4 || q->int8));
    if (!f.rc) find_bytes(&f);
  } else {
    *found = false;
  }
  return f.rc;
}

int sh_quant_find_fused(const sh_quant *q, const sh_ckpt *ck, const char *name, int64_t n, int64_t rows, int64_t cols, sh_qmodule *m,
                        bool *found, sh_error *e) {
  finder f = {.q = q, .ck = ck, .base = name, .m = m, .e = e};
  memset(m, 0, sizeof *m);
  m->rows = rows;
  m->cols = cols;
  m->weight = part(&f, "");
  *found = m->weight && m->weight->type == SH_F8_E4M3;
  if (*found) find_f8(&f, n, "_scale_inv", "_scale");
  return f.rc;
}
