/* Matrix products of the CPU backend.
 *
 * The call cuts the weight's rows into blocks (and, when there are fewer blocks than workers can share, the activation rows too). Few
 * activation rows: each block is read from the map once and used in registers for all of them. Many: they are packed first, in parallel,
 * and each block is expanded to float32 in a worker's scratch and used for all of them. Nothing is repacked to keep: the map's pages are
 * the only copy of the weights. A packed copy would make small-batch products a little faster and cost a second checkpoint of memory.
 *
 * Weights in panels (formats/panel.h) are multiplied as integers: the activations are rounded to int8 first, few rows by the calling
 * thread, for which waking the others would take longer, and one kernel serves any number of rows. */
#include "backend/cpu/cpu.h"

enum {
  CHUNK = SH_GEMM_TOKENS,   /* activation rows packed at a time: bounds scratch, and the weights are expanded once per chunk */
  ITEM_BYTES = 256 * 1024,  /* weights of an item of few rows: 10 to 20 us, far over the cost of taking an item */
  FEW = 64,                 /* up to this many activation rows reading the weights counts, and an item is a run of memory */
  ITEMS_PER_WORKER = 4,     /* so that a late worker holds the others up for a quarter of its share at most */
  PANEL_ROWS = 128,         /* weight rows of an item of many activation rows with panels: weights, expanded by and by, stay in L2 */
  QPACK_ROWS = 8,           /* rows that an item packs to int8 */
  QPACK_INLINE = 16 * 1024, /* floats: up to so many (5 us) the calling thread packs itself */
};

typedef struct mm_job {
  const sh_cpu *be;
  const sh_wview *w;
  const float **x; /* [n] */
  float **y;       /* [n] */
  const float *bias;
  bool add, packed_rows; /* packed_rows: gemm on `packed` */
  float *packed;
  const uint8_t **q; /* [n] packed rows for panels, in the memory of `packed` */
  int n;             /* activation rows of this chunk */
  int rows, toks;    /* weight rows and activation rows of an item */
  int n_row_blocks;
} mm_job;

static int min_int(int a, int b) { return a < b ? a : b; }

/* --- Weights whose stored columns are in another order than the inputs (perm): the activations are brought into the stored order, once for
 * all weight rows of a call or item, and everything after that is as without. */

static void in_stored_order(const sh_wview *w, const float *x, float *out) {
  for (int64_t c = 0; c < w->cols; c++) out[c] = x[w->perm[c]];
}

/* Packs n rows of x for w. work: work_floats(cols) floats. */
static void pack_rows(const sh_kernels *k, const sh_wview *w, const float *const *x, int n, float *work, float *packed) {
  if (!w->perm) {
    k->pack(x, n, w->cols, packed);
    return;
  }
  for (int t0 = 0; t0 < n; t0 += SH_PACK_STEP) {
    int m = min_int(SH_PACK_STEP, n - t0);
    const float *row[SH_PACK_STEP];
    for (int t = 0; t < m; t++) {
      row[t] = work + t * w->cols;
      in_stored_order(w, x[t0 + t], work + t * w->cols);
    }
    k->pack(row, m, w->cols, packed + k->pack_floats(t0, w->cols));
  }
}

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* What a worker needs for an item: gemm's scratch, qmm's or pack_rows's. */
static size_t work_floats(const sh_cpu *be, int64_t k) {
  return max_size(max_size(be->k.gemm_floats(k), SH_QMM_FLOATS), SH_PACK_STEP * (size_t)k);
}

/* n packed rows of k floats, in either form. */
static size_t packed_bytes(const sh_cpu *be, int n, int64_t k) {
  return max_size(be->k.pack_floats(n, k) * sizeof(float), (size_t)n * sh_qpack_most(k));
}

/* --- Rows for panels. */

bool sh_cpu_same_pack(const sh_wview *a, const sh_wview *b) {
  return sh_dtype_is_panel(a->type) && sh_dtype_is_panel(b->type) && a->cols == b->cols && a->group == b->group && a->perm == b->perm;
}

typedef struct qpack_job {
  const sh_kernels *k;
  const sh_wview *w;
  const float *x;
  int64_t x_stride;
  int n;
  uint8_t *q;
} qpack_job;

static void qpack_item(void *ctx, int item, int worker) {
  (void)worker;
  const qpack_job *j = ctx;
  for (int t = item * QPACK_ROWS; t < min_int(j->n, (item + 1) * QPACK_ROWS); t++)
    j->k->qpack(j->w, j->x + t * j->x_stride, j->q + (size_t)t * sh_qpack_bytes(j->w));
}

void sh_cpu_qpack(sh_cpu *be, const sh_wview *w, const float *x, int64_t x_stride, int n, uint8_t *q) {
  qpack_job j = {.k = &be->k, .w = w, .x = x, .x_stride = x_stride, .n = n, .q = q};
  const int items = (n + QPACK_ROWS - 1) / QPACK_ROWS;
  if (n * w->cols > QPACK_INLINE) {
    sh_pool_run(be->pool, qpack_item, &j, items);
    return;
  }
  for (int i = 0; i < items; i++) qpack_item(&j, i, 0);
}

/* --- A product of a call: items on the pool. */

static void pack_item(void *ctx, int item, int worker) {
  mm_job *j = ctx;
  int t0 = item * 4 * SH_PACK_STEP, n = min_int(4 * SH_PACK_STEP, j->n - t0);
  pack_rows(&j->be->k, j->w, j->x + t0, n, (float *)(void *)j->be->scratch.worker[worker],
            j->packed + j->be->k.pack_floats(t0, j->w->cols));
}

/* Few rows are not packed; their copies in the stored order lie where packed rows would. */
static void gather_item(void *ctx, int item, int worker) {
  (void)worker;
  mm_job *j = ctx;
  float *row = j->packed + item * j->w->cols;
  in_stored_order(j->w, j->x[item], row);
  j->x[item] = row;
}

static void mm_item(void *ctx, int item, int worker) {
  mm_job *j = ctx;
  const sh_kernels *k = &j->be->k;
  int r0 = item % j->n_row_blocks * j->rows, t0 = item / j->n_row_blocks * j->toks;
  sh_mm mm = {
      .w = j->w,
      .r0 = r0,
      .n_rows = (int)(j->w->rows - r0 < j->rows ? j->w->rows - r0 : j->rows),
      .n_tok = min_int(j->toks, j->n - t0),
      .x = j->x + t0,
      .y = j->y + t0,
      .y0 = r0,
      .bias = j->bias ? j->bias + r0 : NULL,
      .add = j->add,
  };
  mm.scratch = (float *)(void *)j->be->scratch.worker[worker];
  if (sh_dtype_is_panel(j->w->type)) {
    mm.q = j->q + t0;
    k->qmm(&mm);
    return;
  }
  if (!j->packed_rows) {
    k->dot(&mm);
    return;
  }
  mm.packed = j->packed + k->pack_floats(t0, j->w->cols);
  k->gemm(&mm);
}

/* Items of whole row blocks while there are enough of them, then also of fewer activation rows. */
static int plan(mm_job *j) {
  const bool panels = sh_dtype_is_panel(j->w->type);
  int wanted = ITEMS_PER_WORKER * j->be->n_workers, step = panels ? SH_QMM_ROWS : SH_GEMM_ROWS;
  int64_t rows = step;
  j->toks = j->n;
  if (j->n <= FEW || panels) {
    int64_t most = j->n > FEW ? PANEL_ROWS : (int64_t)((size_t)ITEM_BYTES / (j->w->row_bytes ? j->w->row_bytes : 1));
    int64_t by_share = j->w->rows / wanted;
    rows = most < by_share || j->be->n_workers == 1 ? most : by_share;
    rows -= rows % step;
    if (rows < step) rows = step;
    if (panels && j->be->n_workers > 1) { /* as many items for each worker: a ninth of 30 us for two of them would cost a tenth */
      int64_t items = (j->w->rows + rows - 1) / rows, n = j->be->n_workers;
      items = (items + n - 1) / n * n;
      rows = (j->w->rows + items * step - 1) / (items * step) * step;
    }
  }
  j->rows = (int)rows;
  j->n_row_blocks = (int)((j->w->rows + rows - 1) / rows);
  if (j->n > FEW && j->be->n_workers > 1) {
    while (j->n_row_blocks * ((j->n + j->toks - 1) / j->toks) < wanted && j->toks > 64) j->toks = (j->toks / 2 + 15) & ~15;
  }
  return j->n_row_blocks * ((j->n + j->toks - 1) / j->toks);
}

/* The parts of a product's scratch: row pointers and packed rows. */
static size_t cut_scratch(const sh_cpu *be, mm_job *j, uint8_t *base, int n, int64_t cols) {
  sh_cut c = {.p = base};
  int rows = min_int(n, CHUNK);
  j->x = sh_cut_take(&c, (size_t)rows, sizeof *j->x);
  j->y = sh_cut_take(&c, (size_t)rows, sizeof *j->y);
  j->q = sh_cut_take(&c, (size_t)rows, sizeof *j->q);
  j->packed = sh_cut_take(&c, packed_bytes(be, rows, cols), 1);
  return c.used;
}

size_t sh_cpu_matmul_bytes(const sh_cpu *be, int n, int64_t cols) {
  mm_job j;
  return cut_scratch(be, &j, NULL, n, cols);
}

static void pack_for_panels(sh_cpu *be, mm_job *j, const float *x, int64_t x_stride) {
  uint8_t *q = (uint8_t *)j->packed;
  sh_cpu_qpack(be, j->w, x, x_stride, j->n, q);
  for (int t = 0; t < j->n; t++) j->q[t] = q + (size_t)t * sh_qpack_bytes(j->w);
}

void sh_cpu_matmul(sh_cpu *be, uint8_t *scratch, const sh_wview *w, const float *x, int64_t x_stride, int n, const float *bias, bool add,
                   float *y, int64_t y_stride) {
  mm_job j = {.be = be, .w = w, .bias = bias, .add = add};
  cut_scratch(be, &j, scratch, n, w->cols);
  for (int t0 = 0; t0 < n; t0 += CHUNK) {
    j.n = min_int(CHUNK, n - t0);
    for (int t = 0; t < j.n; t++) {
      j.x[t] = x + (t0 + t) * x_stride;
      j.y[t] = y + (t0 + t) * y_stride;
    }
    const bool panels = sh_dtype_is_panel(w->type);
    if (panels) pack_for_panels(be, &j, x + t0 * x_stride, x_stride);
    j.packed_rows = !panels && j.n > be->k.dot_tokens(w->type);
    if (j.packed_rows) sh_pool_run(be->pool, pack_item, &j, (j.n + 4 * SH_PACK_STEP - 1) / (4 * SH_PACK_STEP));
    else if (w->perm && !panels) sh_pool_run(be->pool, gather_item, &j, j.n);
    sh_pool_run(be->pool, mm_item, &j, plan(&j));
  }
}

int sh_cpu_linear_reserve(sh_cpu *be, int max_tokens, int64_t max_cols, sh_error *e) {
  int rc = sh_cpu_shared_need(be, sh_cpu_matmul_bytes(be, max_tokens, max_cols), e);
  return rc == 0 ? sh_cpu_worker_need(be, work_floats(be, max_cols) * sizeof(float), e) : rc;
}

int sh_cpu_linear(sh_backend *b, const sh_weight *w, const sh_tensor *x, int n, const sh_tensor *bias, bool add, sh_tensor *y,
                  sh_error *e) {
  sh_cpu *be = (sh_cpu *)b;
  int rc = sh_cpu_check(x, n, w->v.cols, "linear: x", e);
  if (rc == 0) rc = sh_cpu_check(y, n, w->v.rows, "linear: y", e);
  if (rc == 0 && bias) rc = sh_cpu_check(bias, 1, w->v.rows, "linear: bias", e);
  if (rc < 0 || n == 0) return rc;
  rc = sh_cpu_linear_reserve(be, n, w->v.cols, e);
  if (rc == 0) sh_cpu_matmul(be, be->scratch.shared, &w->v, x->p, x->cols, n, bias ? bias->p : NULL, add, y->p, y->cols);
  return rc;
}

/* --- Products inside an item. */

size_t sh_cpu_item_bytes(const sh_cpu *be, int64_t k) {
  sh_cut c = {0};
  sh_cut_take(&c, packed_bytes(be, SH_CPU_ITEM_TOKENS, k), 1);
  sh_cut_take(&c, work_floats(be, k), sizeof(float));
  return c.used;
}

/* dot on copies of the rows in the stored order; copies: [n_tok, k]. */
static void dot_gathered(const sh_kernels *k, const sh_mm *mm, float *copies) {
  const float *x[SH_CPU_ITEM_TOKENS];
  for (int t = 0; t < mm->n_tok; t++) {
    x[t] = copies + t * mm->w->cols;
    in_stored_order(mm->w, mm->x[t], copies + t * mm->w->cols);
  }
  sh_mm m = *mm;
  m.x = x;
  k->dot(&m);
}

/* Panels: with the caller's packed rows, or with those in `packed`, made here unless they are there. */
static void item_qmm(const sh_kernels *k, sh_mm *mm, bool there, uint8_t *packed) {
  const uint8_t *q[SH_CPU_ITEM_TOKENS];
  for (int t = 0; !mm->q && t < mm->n_tok; t++) {
    uint8_t *row = packed + (size_t)t * sh_qpack_bytes(mm->w);
    if (!there) k->qpack(mm->w, mm->x[t], row);
    q[t] = row;
  }
  sh_mm m = *mm;
  if (!m.q) m.q = q;
  k->qmm(&m);
}

void sh_cpu_item_mm(const sh_cpu *be, sh_mm *mm, int n, uint8_t *scratch) {
  const sh_kernels *k = &be->k;
  int64_t cols = mm->w->cols;
  sh_cut c = {.p = scratch};
  uint8_t *packed = sh_cut_take(&c, packed_bytes(be, SH_CPU_ITEM_TOKENS, cols), 1);
  float *floats = (float *)(void *)packed, *work = sh_cut_take(&c, work_floats(be, cols), sizeof(float));
  const sh_wview *packed_for = NULL; /* what `packed` holds */
  for (int i = 0; i < n; i++) {
    const sh_wview *w = mm[i].w;
    mm[i].scratch = work;
    if (sh_dtype_is_panel(w->type)) {
      item_qmm(k, &mm[i], packed_for && sh_cpu_same_pack(packed_for, w), packed);
      if (!mm[i].q) packed_for = w;
    } else if (mm[i].n_tok <= k->dot_tokens(w->type)) {
      if (!w->perm) k->dot(&mm[i]);
      else dot_gathered(k, &mm[i], floats), packed_for = NULL;
    } else {
      if (!packed_for || sh_dtype_is_panel(packed_for->type) || packed_for->perm != w->perm)
        pack_rows(k, w, mm[i].x, mm[i].n_tok, work, floats);
      packed_for = w;
      mm[i].packed = floats;
      k->gemm(&mm[i]);
    }
  }
}
