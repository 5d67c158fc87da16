/* The CPU backend: construction, tensors, weights, the table of operations, and the operations that treat rows one by one.
 *
 * Used by one thread at a time (the engine's); a call has finished its work when it returns, so sync does nothing. Activations are plain
 * float32 arrays. A weight is the view into the mapped file and nothing else: the kernels read every supported format as it is stored. */
#include "backend/cpu/cpu.h"
#include "formats/dequant.h"

#include <stdio.h>
#include <string.h>

static const sh_backend_ops cpu_ops;

static void cpu_free(sh_backend *b) {
  if (!b) return;
  sh_cpu *be = (sh_cpu *)b;
  sh_cpu_scratch_free(be);
  sh_pool_free(be->pool);
  sh_free(be);
}

int sh_backend_cpu_new(sh_backend **out, const sh_backend_opts *o, sh_error *e) {
  *out = NULL;
  sh_cpu *be = sh_calloc(1, sizeof *be);
  if (!be) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  be->base.ops = &cpu_ops;
  int rc = sh_kernels_init(&be->k, o->cpu, e);
  if (rc < 0) goto fail;
  rc = sh_pool_new(&be->pool, o->threads, e);
  if (rc < 0) goto fail;
  be->n_workers = sh_pool_size(be->pool);
  snprintf(be->describe, sizeof be->describe, "%d thread%s, %s", be->n_workers, be->n_workers == 1 ? "" : "s", be->k.name);
  *out = &be->base;
  return 0;
fail:
  cpu_free(&be->base);
  return rc;
}

static const char *cpu_describe(sh_backend *b) { return ((sh_cpu *)b)->describe; }

static int cpu_reserve(sh_backend *b, const sh_reserve *r, sh_error *e) {
  sh_cpu *be = (sh_cpu *)b;
  int rc = sh_cpu_linear_reserve(be, r->max_tokens > r->max_out ? r->max_tokens : r->max_out, r->max_cols, e);
  if (rc == 0) rc = sh_cpu_attention_reserve(be, r, e);
  if (rc == 0) rc = sh_cpu_gdn_reserve(be, r, e);
  if (rc == 0) rc = sh_cpu_moe_reserve(be, r, e);
  return rc;
}

/* --- Tensors and weights */

static int cpu_tensor_new(sh_backend *b, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e) {
  (void)b;
  *out = NULL;
  size_t n, bytes;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow((size_t)rows, (size_t)cols, &n) || __builtin_mul_overflow(n, sizeof(float), &bytes) ||
      bytes > PTRDIFF_MAX)
    return sh_fail(e, SH_ERR_NOMEM, "a tensor of %lld x %lld does not fit the address space", (long long)rows, (long long)cols);
  sh_tensor *t = sh_calloc(1, sizeof *t);
  if (!t) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  t->rows = rows;
  t->cols = cols;
  /* From calloc, aligned by hand: large memory comes zeroed from the system, page by page as it is used. Clearing it here costs 0.1 s of a
   * start for 350 MB of scratch, most of which short prompts never touch. */
  t->memory = sh_calloc(1, bytes + 64);
  if (!t->memory) {
    sh_free(t);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory: a tensor of %lld x %lld takes %zu bytes", (long long)rows, (long long)cols, bytes);
  }
  t->p = (float *)(void *)(((uintptr_t)t->memory + 63) & ~(uintptr_t)63);
  *out = t;
  return 0;
}

static void cpu_tensor_free(sh_backend *b, sh_tensor *t) {
  (void)b;
  if (!t) return;
  sh_free(t->memory);
  sh_free(t);
}

int sh_cpu_check(const sh_tensor *t, int64_t rows, int64_t cols, const char *what, sh_error *e) {
  if (t && rows >= 0 && rows <= t->rows && cols <= t->cols) return 0;
  return sh_fail(e, SH_ERR_INTERNAL, "%s: found a tensor of %lld x %lld, wanted at least %lld x %lld", what, t ? (long long)t->rows : -1LL,
                 t ? (long long)t->cols : -1LL, (long long)rows, (long long)cols);
}

static int check_rows(const sh_tensor *t, int64_t row, int64_t n, const char *what, sh_error *e) {
  if (row >= 0 && n >= 0 && row <= t->rows && n <= t->rows - row) return 0;
  return sh_fail(e, SH_ERR_INTERNAL, "%s: rows %lld to %lld of a tensor of %lld", what, (long long)row, (long long)row + (long long)n,
                 (long long)t->rows);
}

static int cpu_tensor_write(sh_backend *b, sh_tensor *t, int64_t row, int64_t n, const float *src, sh_error *e) {
  (void)b;
  int rc = check_rows(t, row, n, "tensor_write", e);
  if (rc == 0 && n > 0) memcpy(t->p + row * t->cols, src, (size_t)(n * t->cols) * sizeof *src);
  return rc;
}

static int cpu_tensor_read(sh_backend *b, const sh_tensor *t, int64_t row, int64_t n, float *dst, sh_error *e) {
  (void)b;
  int rc = check_rows(t, row, n, "tensor_read", e);
  if (rc == 0 && n > 0) memcpy(dst, t->p + row * t->cols, (size_t)(n * t->cols) * sizeof *dst);
  return rc;
}

/* Every value of [0, cols) once. */
static int check_perm(const sh_wview *v, sh_error *e) {
  uint8_t *seen = sh_calloc((size_t)v->cols, 1);
  if (!seen) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = 0;
  for (int64_t i = 0; i < v->cols && rc == 0; i++) {
    int32_t p = v->perm[i];
    if (p < 0 || p >= v->cols || seen[p])
      rc = sh_fail(e, SH_ERR_FORMAT, "%s: the order of its %lld columns names column %d %s", v->name, (long long)v->cols, (int)p,
                   p < 0 || p >= v->cols ? "" : "twice");
    else seen[p] = 1;
  }
  sh_free(seen);
  return rc;
}

/* Scales and zero points of types with groups. */
static int check_groups(const sh_wview *v, sh_error *e) {
  bool even = v->type != SH_F8_E4M3, zeros = v->type == SH_I4 || v->type == SH_U8; /* whole groups of single rows; may have zero points */
  if (v->group < 1 || (v->group % 16 && v->group < v->cols) || (even && v->cols % v->group))
    return sh_fail(e, SH_ERR_FORMAT, "%s: groups of %d columns in rows of %lld %s weights; wanted a multiple of 16%s, or all columns",
                   v->name, v->group, (long long)v->cols, sh_dtype_name(v->type), even ? " that divides them" : "");
  if (v->scale_type != SH_F32 && v->scale_type != SH_F16 && v->scale_type != SH_BF16)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: scales of type %s; wanted F32, F16 or BF16", v->name, sh_dtype_name(v->scale_type));
  size_t groups = (size_t)((v->cols + v->group - 1) / v->group);
  if (!v->scales || v->scale_rows < 1 || (even && v->scale_rows != 1) ||
      v->scale_row_bytes < groups * (size_t)sh_dtype_block_bytes(v->scale_type))
    return sh_fail(e, SH_ERR_FORMAT, "%s: rows of %zu bytes of scales, each for %d rows; wanted %zu scales of type %s", v->name,
                   v->scale_row_bytes, v->scale_rows, groups, sh_dtype_name(v->scale_type));
  if (v->zeros && (!zeros || v->zero_row_bytes < groups))
    return sh_fail(e, SH_ERR_FORMAT, "%s: rows of %zu bytes of zero points for %s weights; wanted %zu", v->name, v->zero_row_bytes,
                   sh_dtype_name(v->type), zeros ? groups : (size_t)0);
  return v->perm ? check_perm(v, e) : 0;
}

/* Panels: made at load, so that anything wrong with them is a fault of the program. */
static int check_panels(const sh_wview *v, sh_error *e) {
  bool super = v->panel_scales != SH_PANEL_PLAIN;
  if (v->rows < 1 || v->cols < 1 || v->cols > INT32_MAX || v->group < 1 || v->cols % v->group || (v->group % 16 && v->group != v->cols))
    return sh_fail(e, SH_ERR_INTERNAL,
                   "%s: panels of %lld x %lld weights in groups of %d; wanted a multiple of 16 that divides the columns", v->name,
                   (long long)v->rows, (long long)v->cols, v->group);
  if (v->panel_scales > SH_PANEL_SUPER_I8 || v->panel_offset > SH_PANEL_MIN || (super && SH_PANEL_SUPER % v->group) ||
      (!super && v->scale_type != SH_F32 && v->scale_type != SH_F16 && v->scale_type != SH_BF16))
    return sh_fail(e, SH_ERR_INTERNAL, "%s: panels with scales of kind %d, type %s, groups of %d and offsets of kind %d", v->name,
                   (int)v->panel_scales, sh_dtype_name(v->scale_type), v->group, (int)v->panel_offset);
  size_t bytes = sh_panel_shape_of(v).bytes;
  if (v->row_bytes * SH_PANEL_ROWS != bytes || (uintptr_t)v->data % SH_PANEL_ALIGN || v->scales || v->zeros)
    return sh_fail(e, SH_ERR_INTERNAL, "%s: panels of %zu bytes, %zu past a multiple of %d; wanted %zu and 0, and nothing beside them",
                   v->name, v->row_bytes * SH_PANEL_ROWS, (size_t)((uintptr_t)v->data % SH_PANEL_ALIGN), SH_PANEL_ALIGN, bytes);
  return v->perm ? check_perm(v, e) : 0;
}

static int check_view(const sh_wview *v, sh_error *e) {
  if (sh_dtype_is_panel(v->type)) return check_panels(v, e);
  bool grouped = sh_dtype_has_groups(v->type);
  if (!grouped && !sh_dequant_supported(v->type))
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s: weights of type %s cannot be computed with", v->name, sh_dtype_name(v->type));
  int block = sh_dtype_block(v->type);
  if (v->rows < 1 || v->cols < 1 || v->cols > INT32_MAX || v->cols % block ||
      v->row_bytes < (size_t)(v->cols / block) * (size_t)sh_dtype_block_bytes(v->type))
    return sh_fail(e, SH_ERR_FORMAT, "%s: %lld x %lld weights in rows of %zu bytes; wanted whole %s blocks of %d weights", v->name,
                   (long long)v->rows, (long long)v->cols, v->row_bytes, sh_dtype_name(v->type), block);
  if (grouped) return check_groups(v, e);
  if (v->group || v->scales || v->zeros || v->perm)
    return sh_fail(e, SH_ERR_INTERNAL, "%s: weights of type %s have no groups, scales or order of columns beside them", v->name,
                   sh_dtype_name(v->type));
  return 0;
}

static int cpu_weight_bind(sh_backend *b, const sh_wview *v, sh_weight **out, sh_error *e) {
  (void)b;
  *out = NULL;
  int rc = check_view(v, e);
  if (rc < 0) return rc;
  sh_weight *w = sh_calloc(1, sizeof *w);
  if (!w) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  w->v = *v;
  *out = w;
  return 0;
}

static void cpu_weight_free(sh_backend *b, sh_weight *w) {
  (void)b;
  sh_free(w);
}

static bool cpu_takes(sh_backend *b, sh_dtype type) {
  (void)b;
  return sh_dtype_is_panel(type) || sh_dtype_has_groups(type) || sh_dequant_supported(type);
}

static const char *cpu_weight_kernel(sh_backend *b, const sh_wview *v, char *buf, size_t size) {
  const sh_cpu *be = (const sh_cpu *)b;
  if (sh_dtype_is_panel(v->type)) {
    snprintf(buf, size, "%s: int%d x int8 panels", be->k.name, sh_panel_shape_of(v).bits);
    return buf;
  }
  int few = be->k.dot_tokens(v->type);
  snprintf(buf, size, "%s: dot to %d row%s, then gemm", be->k.name, few, few == 1 ? "" : "s");
  return buf;
}

/* --- Operations on rows. Items are blocks of rows; a few rows are one item, which the pool runs inline. */

enum { ITEM_FLOATS = 16 * 1024 };

typedef struct rows_job {
  const sh_cpu *be;
  const sh_weight *w;
  const int32_t *ids;
  const sh_tensor *x, *gain; /* x: input; swiglu: gate */
  const sh_tensor *up;
  sh_tensor *y;
  float eps;
  int n, cols, per_item;
} rows_job;

static int min_int(int a, int b) { return a < b ? a : b; }

static void run_rows(sh_pool_fn fn, rows_job *j) {
  j->per_item = ITEM_FLOATS / (j->cols + 1) + 1;
  if (j->n > 0) sh_pool_run(j->be->pool, fn, j, (j->n + j->per_item - 1) / j->per_item);
}

static void embed_item(void *ctx, int item, int worker) {
  rows_job *j = ctx;
  const sh_wview *w = &j->w->v;
  float *stored = (float *)(void *)(w->perm ? j->be->scratch.worker[worker] : NULL);
  for (int i = item * j->per_item; i < min_int(j->n, (item + 1) * j->per_item); i++) {
    float *y = j->y->p + i * j->y->cols;
    j->be->k.dequant(w, j->ids[i], 0, w->cols, w->perm ? stored : y);
    for (int64_t c = 0; w->perm && c < w->cols; c++) y[w->perm[c]] = stored[c];
  }
}

static int cpu_embed(sh_backend *b, const sh_weight *w, const int32_t *ids, int n, sh_tensor *y, sh_error *e) {
  int rc = sh_cpu_check(y, n, w->v.cols, "embed: y", e);
  if (rc == 0 && sh_dtype_is_panel(w->v.type)) rc = sh_fail(e, SH_ERR_INTERNAL, "%s: an embedding in panels; wanted rows", w->v.name);
  if (rc < 0) return rc;
  for (int i = 0; i < n; i++) {
    if (ids[i] < 0 || ids[i] >= w->v.rows)
      return sh_fail(e, SH_ERR_INTERNAL, "embed: token id %d is not in [0, %lld)", ids[i], (long long)w->v.rows);
  }
  if (w->v.perm) rc = sh_cpu_worker_need((sh_cpu *)b, (size_t)w->v.cols * sizeof(float), e);
  if (rc < 0) return rc;
  rows_job j = {.be = (sh_cpu *)b, .w = w, .ids = ids, .y = y, .n = n, .cols = (int)w->v.cols};
  run_rows(embed_item, &j);
  return 0;
}

static int cpu_gather(sh_backend *b, const sh_tensor *x, const int32_t *rows, int n, sh_tensor *y, sh_error *e) {
  (void)b;
  int rc = sh_cpu_check(y, n, x->cols, "gather: y", e);
  for (int i = 0; rc == 0 && i < n; i++) {
    rc = check_rows(x, rows[i], 1, "gather: x", e);
    if (rc == 0) memmove(y->p + i * y->cols, x->p + rows[i] * x->cols, (size_t)x->cols * sizeof *y->p);
  }
  return rc;
}

static void rmsnorm_item(void *ctx, int item, int worker) {
  (void)worker;
  rows_job *j = ctx;
  for (int i = item * j->per_item; i < min_int(j->n, (item + 1) * j->per_item); i++)
    j->be->k.rmsnorm(j->x->p + i * j->x->cols, j->gain->p, j->eps, j->cols, j->y->p + i * j->y->cols);
}

static int cpu_rmsnorm(sh_backend *b, const sh_tensor *x, const sh_tensor *gain, float eps, int n, sh_tensor *y, sh_error *e) {
  int rc = sh_cpu_check(x, n, gain->cols, "rmsnorm: x", e);
  if (rc == 0) rc = sh_cpu_check(y, n, gain->cols, "rmsnorm: y", e);
  if (rc < 0) return rc;
  rows_job j = {.be = (sh_cpu *)b, .x = x, .gain = gain, .y = y, .eps = eps, .n = n, .cols = (int)gain->cols};
  run_rows(rmsnorm_item, &j);
  return 0;
}

static void swiglu_item(void *ctx, int item, int worker) {
  (void)worker;
  rows_job *j = ctx;
  for (int i = item * j->per_item; i < min_int(j->n, (item + 1) * j->per_item); i++)
    j->be->k.swiglu(j->x->p + i * j->x->cols, j->up->p + i * j->up->cols, j->cols, j->y->p + i * j->y->cols);
}

static int cpu_swiglu(sh_backend *b, const sh_tensor *gate, const sh_tensor *up, int n, int cols, sh_tensor *y, sh_error *e) {
  int rc = sh_cpu_check(gate, n, cols, "swiglu: gate", e);
  if (rc == 0) rc = sh_cpu_check(up, n, cols, "swiglu: up", e);
  if (rc == 0) rc = sh_cpu_check(y, n, cols, "swiglu: y", e);
  if (rc < 0) return rc;
  rows_job j = {.be = (sh_cpu *)b, .x = gate, .up = up, .y = y, .n = n, .cols = cols};
  run_rows(swiglu_item, &j);
  return 0;
}

static int cpu_sync(sh_backend *b, sh_error *e) {
  (void)b;
  (void)e;
  return 0;
}

static const sh_backend_ops cpu_ops = {
    .name = "cpu",
    .free = cpu_free,
    .describe = cpu_describe,
    .reserve = cpu_reserve,
    .tensor_new = cpu_tensor_new,
    .tensor_free = cpu_tensor_free,
    .tensor_write = cpu_tensor_write,
    .tensor_read = cpu_tensor_read,
    .weight_bind = cpu_weight_bind,
    .weight_free = cpu_weight_free,
    .takes = cpu_takes,
    .weight_kernel = cpu_weight_kernel,
    .cache_new = sh_cpu_cache_new,
    .cache_free = sh_cpu_cache_free,
    .slot_zero = sh_cpu_slot_zero,
    .slot_copy = sh_cpu_slot_copy,
    .page_copy = sh_cpu_page_copy,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .rmsnorm = cpu_rmsnorm,
    .linear = sh_cpu_linear,
    .swiglu = cpu_swiglu,
    .attention = sh_cpu_attention,
    .gated_delta = sh_cpu_gated_delta,
    .moe = sh_cpu_moe,
    .sync = cpu_sync,
};
