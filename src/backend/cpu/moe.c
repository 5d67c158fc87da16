/* Routed feed-forward of the CPU backend.
 *
 * Per chunk of tokens: router logits, the choice of experts, then two passes on the pool. The first takes (expert, block of its rows): gate
 * and up rows against the tokens that chose the expert, and h = silu(gate) up. The second takes blocks of output rows and walks the experts
 * in index order, adding weight * (down h) to each token that chose them. So every output element is the work of one item and its sum runs
 * in index order by itself, whatever the batch is; the results of single experts are never stored. The shared expert is one more expert,
 * last, chosen by every token. Where the experts are panels, x and h are rounded to int8 once, before the pass that reads them. */
#include "backend/cpu/cpu.h"

#include <string.h>

enum {
  ROWS = 2 * SH_GEMM_ROWS, /* weight rows of an item, a multiple of SH_QMM_ROWS */
  H_BYTES = 64 << 20,      /* bound on h: tokens of a chunk = H_BYTES / bytes of h per token, so that long prompts do not need gigabytes */
};

typedef struct moe_job {
  const sh_cpu *be;
  const sh_moe *p;
  const float *x; /* [n, x_stride] rows of the chunk */
  float *y;
  int64_t x_stride, y_stride;
  int n, hidden, ffn, shared_ffn;
  float *logits;      /* [n, n_experts] */
  float *gate_x;      /* [n] weights of the shared expert */
  int *index;         /* [n, top_k] experts of a token, ascending */
  float *weight;      /* [n, top_k] */
  int *start;         /* [n_experts + 1] first slot of an expert; slots are sorted by expert, then token */
  int *token;         /* [n * top_k] token of a slot */
  float *slot_weight; /* [n * top_k] */
  int *active;        /* [n_experts] experts that any token chose, ascending */
  int n_active;
  float *h, *shared_h; /* [n * top_k, ffn], [n, shared_ffn] */
  /* Rows packed once for all experts with panels of the same groups: of x, h, shared_h; the views that they were packed for, or NULL. */
  uint8_t *qx, *qh, *q_shared;
  const sh_wview *qx_for, *qh_for, *q_shared_for;
  uint8_t *mm;               /* scratch of the router's product */
  int blocks, shared_blocks; /* row blocks of an expert's, of the shared expert's gate and up */
} moe_job;

static int min_int(int a, int b) { return a < b ? a : b; }

static int div_up(int a, int b) { return (a + b - 1) / b; }

static size_t cut_shared(moe_job *j, uint8_t *base, int n, int n_experts, int top_k) {
  sh_cut c = {.p = base};
  size_t t = (size_t)n, slots = t * (size_t)top_k, experts = (size_t)n_experts;
  j->logits = sh_cut_take(&c, t * experts, sizeof(float));
  j->gate_x = sh_cut_take(&c, t, sizeof(float));
  j->index = sh_cut_take(&c, slots, sizeof(int));
  j->weight = sh_cut_take(&c, slots, sizeof(float));
  j->start = sh_cut_take(&c, experts + 1, sizeof(int));
  j->token = sh_cut_take(&c, slots, sizeof(int));
  j->slot_weight = sh_cut_take(&c, slots, sizeof(float));
  j->active = sh_cut_take(&c, experts, sizeof(int));
  j->h = sh_cut_take(&c, slots * (size_t)j->ffn, sizeof(float));
  j->shared_h = sh_cut_take(&c, t * (size_t)j->shared_ffn, sizeof(float));
  j->qx = sh_cut_take(&c, t, sh_qpack_most(j->hidden));
  j->qh = sh_cut_take(&c, slots, sh_qpack_most(j->ffn));
  j->q_shared = sh_cut_take(&c, j->shared_ffn ? t : 0, sh_qpack_most(j->shared_ffn));
  j->mm = sh_cut_take(&c, sh_cpu_matmul_bytes(j->be, n, j->hidden), 1);
  return c.used;
}

/* Worker memory of an item. */
typedef struct moe_mem {
  float *gate, *up; /* [SH_CPU_ITEM_TOKENS, ROWS] */
  uint8_t *mm;
} moe_mem;

static size_t cut_worker(const moe_job *j, moe_mem *m, uint8_t *base) {
  sh_cut c = {.p = base};
  int k = j->hidden > j->ffn ? j->hidden : j->ffn;
  if (j->shared_ffn > k) k = j->shared_ffn;
  m->gate = sh_cut_take(&c, SH_CPU_ITEM_TOKENS * ROWS, sizeof(float));
  m->up = sh_cut_take(&c, SH_CPU_ITEM_TOKENS * ROWS, sizeof(float));
  m->mm = sh_cut_take(&c, sh_cpu_item_bytes(j->be, k), 1);
  return c.used;
}

static int chunk_tokens(const moe_job *j, int n, int top_k) {
  int64_t per_token = ((int64_t)top_k * j->ffn + j->shared_ffn) * (int64_t)sizeof(float), fit = H_BYTES / (per_token ? per_token : 1);
  return fit < 1 ? 1 : fit < n ? (int)fit : n;
}

/* --- Choosing. Counting sort of (token, choice) by expert: slots of an expert are in token order. */

static void sort_slots(moe_job *j) {
  int n_experts = j->p->n_experts, k = j->p->top_k;
  memset(j->start, 0, ((size_t)n_experts + 1) * sizeof *j->start);
  for (int i = 0; i < j->n * k; i++) j->start[j->index[i] + 1]++;
  j->n_active = 0;
  for (int e = 0; e < n_experts; e++) {
    if (j->start[e + 1]) j->active[j->n_active++] = e;
    j->start[e + 1] += j->start[e];
  }
  for (int i = 0; i < j->n * k; i++) { /* start[e] walks through e's slots and ends at start[e + 1]; shifted back below */
    int slot = j->start[j->index[i]]++;
    j->token[slot] = i / k;
    j->slot_weight[slot] = j->weight[i];
  }
  for (int e = n_experts; e > 0; e--) j->start[e] = j->start[e - 1];
  j->start[0] = 0;
}

static void route_item(void *ctx, int item, int worker) {
  (void)worker;
  moe_job *j = ctx;
  const sh_moe *p = j->p;
  for (int t = item * 16; t < min_int(j->n, (item + 1) * 16); t++)
    j->be->k.route(j->logits + (size_t)t * (size_t)p->n_experts, p->n_experts, p->top_k, j->index + t * p->top_k, j->weight + t * p->top_k);
}

static void shared_weights(moe_job *j) {
  for (int t = 0; t < j->n; t++) {
    float one = 1.0f;
    if (j->p->shared_switch) j->be->k.sigmoid_mul(&j->gate_x[t], 1, &one);
    j->gate_x[t] = one;
  }
}

/* --- Pass 1: h. */

/* Rows of w from r0 on, into y. */
static void set_weight(sh_mm *mm, const sh_weight *w, int r0, float *const *y) {
  mm->w = &w->v;
  mm->r0 = r0;
  mm->y = y;
}

/* Packed rows of the tokens, if they serve w. */
static bool packed_rows(const sh_wview *w, const sh_wview *packed_for, const uint8_t *rows, const int *token, int s0, int n,
                        const uint8_t **q) {
  if (!packed_for || !sh_cpu_same_pack(w, packed_for)) return false;
  for (int i = 0; i < n; i++) q[i] = rows + (size_t)(token ? token[s0 + i] : s0 + i) * sh_qpack_bytes(w);
  return true;
}

/* Row block `block` of an expert's gate and up for the tokens of slots [0, n). token NULL: slot i is token i. */
static void expert_h(const moe_job *j, const sh_weight *gate, const sh_weight *up, int block, const int *token, int n, float *h, int ffn,
                     uint8_t *scratch) {
  moe_mem mem;
  cut_worker(j, &mem, scratch);
  const float *x[SH_CPU_ITEM_TOKENS];
  const uint8_t *q[SH_CPU_ITEM_TOKENS];
  float *yg[SH_CPU_ITEM_TOKENS], *yu[SH_CPU_ITEM_TOKENS];
  int r0 = block * ROWS, rows = min_int(ROWS, ffn - r0);
  for (int s0 = 0; s0 < n; s0 += SH_CPU_ITEM_TOKENS) {
    int m = min_int(SH_CPU_ITEM_TOKENS, n - s0);
    for (int i = 0; i < m; i++) {
      x[i] = j->x + (token ? token[s0 + i] : s0 + i) * j->x_stride;
      yg[i] = mem.gate + i * ROWS;
      yu[i] = mem.up + i * ROWS;
    }
    sh_mm mm[2] = {{.n_rows = rows, .n_tok = m, .x = x}};
    mm[1] = mm[0];
    set_weight(&mm[0], gate, r0, yg);
    set_weight(&mm[1], up, r0, yu);
    for (int i = 0; i < 2; i++) mm[i].q = packed_rows(mm[i].w, j->qx_for, j->qx, token, s0, m, q) ? q : NULL;
    sh_cpu_item_mm(j->be, mm, 2, mem.mm);
    for (int i = 0; i < m; i++) j->be->k.swiglu(yg[i], yu[i], rows, h + (size_t)(s0 + i) * (size_t)ffn + r0);
  }
}

static void h_item(void *ctx, int item, int worker) {
  moe_job *j = ctx;
  uint8_t *scratch = j->be->scratch.worker[worker];
  if (item < j->shared_blocks) { /* the longest items first: every token takes this expert */
    expert_h(j, j->p->shared_gate, j->p->shared_up, item, NULL, j->n, j->shared_h, j->shared_ffn, scratch);
    return;
  }
  int e = j->active[(item - j->shared_blocks) / j->blocks], s = j->start[e];
  expert_h(j, j->p->gate[e], j->p->up[e], (item - j->shared_blocks) % j->blocks, j->token + s, j->start[e + 1] - s,
           j->h + (size_t)s * (size_t)j->ffn, j->ffn, scratch);
}

/* --- Pass 2: y. */

/* h [n, ffn]; qh: the same packed for qh_for. */
static void expert_y(const moe_job *j, const sh_weight *down, int r0, int rows, const int *token, const float *weight, int n,
                     const float *h, int ffn, const sh_wview *qh_for, const uint8_t *qh, uint8_t *scratch) {
  const float *x[SH_CPU_ITEM_TOKENS];
  const uint8_t *q[SH_CPU_ITEM_TOKENS];
  float *y[SH_CPU_ITEM_TOKENS];
  for (int s0 = 0; s0 < n; s0 += SH_CPU_ITEM_TOKENS) {
    int m = min_int(SH_CPU_ITEM_TOKENS, n - s0);
    for (int i = 0; i < m; i++) {
      x[i] = h + (size_t)(s0 + i) * (size_t)ffn;
      y[i] = j->y + (token ? token[s0 + i] : s0 + i) * j->y_stride;
    }
    sh_mm mm = {.n_rows = rows, .n_tok = m, .x = x, .y0 = r0, .scale = weight + s0};
    set_weight(&mm, down, r0, y);
    mm.q = packed_rows(mm.w, qh_for, qh, NULL, s0, m, q) ? q : NULL;
    sh_cpu_item_mm(j->be, &mm, 1, scratch);
  }
}

static void y_item(void *ctx, int item, int worker) {
  moe_job *j = ctx;
  moe_mem mem;
  cut_worker(j, &mem, j->be->scratch.worker[worker]);
  int r0 = item * ROWS, rows = min_int(ROWS, j->hidden - r0);
  for (int i = 0; i < j->n_active; i++) {
    int e = j->active[i], s = j->start[e];
    const uint8_t *qh = j->qh_for ? j->qh + (size_t)s * sh_qpack_bytes(j->qh_for) : NULL;
    expert_y(j, j->p->down[e], r0, rows, j->token + s, j->slot_weight + s, j->start[e + 1] - s, j->h + (size_t)s * (size_t)j->ffn, j->ffn,
             j->qh_for, qh, mem.mm);
  }
  if (j->shared_ffn)
    expert_y(j, j->p->shared_down, r0, rows, NULL, j->gate_x, j->n, j->shared_h, j->shared_ffn, j->q_shared_for, j->q_shared, mem.mm);
}

/* --- The call. */

static int check_weight(const sh_weight *w, int64_t rows, int64_t cols, const char *what, sh_error *e) {
  if (w && w->v.rows == rows && w->v.cols == cols) return 0;
  return sh_fail(e, SH_ERR_INTERNAL, "moe: %s is not [%lld, %lld]", what, (long long)rows, (long long)cols);
}

static int check(const moe_job *j, sh_error *e) {
  const sh_moe *p = j->p;
  if (p->n_experts < 1 || p->top_k < 1 || p->top_k > p->n_experts)
    return sh_fail(e, SH_ERR_INTERNAL, "moe: top %d of %d experts", p->top_k, p->n_experts);
  int rc = check_weight(p->router, p->n_experts, j->hidden, "router", e);
  for (int i = 0; rc == 0 && i < p->n_experts; i++) {
    rc = check_weight(p->gate[i], j->ffn, j->hidden, "gate", e);
    if (rc == 0) rc = check_weight(p->up[i], j->ffn, j->hidden, "up", e);
    if (rc == 0) rc = check_weight(p->down[i], j->hidden, j->ffn, "down", e);
  }
  if (rc == 0 && j->shared_ffn) rc = check_weight(p->shared_gate, j->shared_ffn, j->hidden, "shared gate", e);
  if (rc == 0 && j->shared_ffn) rc = check_weight(p->shared_down, j->hidden, j->shared_ffn, "shared down", e);
  if (rc == 0 && j->shared_ffn && p->shared_switch) rc = check_weight(p->shared_switch, 1, j->hidden, "shared switch", e);
  return rc;
}

/* Packs n rows for w if it is panels; what they are packed for. */
static const sh_wview *pack(sh_cpu *be, const sh_weight *w, const float *x, int64_t x_stride, int n, uint8_t *q) {
  if (!sh_dtype_is_panel(w->v.type)) return NULL;
  sh_cpu_qpack(be, &w->v, x, x_stride, n, q);
  return &w->v;
}

static void run_chunk(sh_cpu *be, moe_job *j, bool add) {
  const sh_moe *p = j->p;
  sh_cpu_matmul(be, j->mm, &p->router->v, j->x, j->x_stride, j->n, NULL, false, j->logits, p->n_experts);
  sh_pool_run(be->pool, route_item, j, div_up(j->n, 16));
  sort_slots(j);
  if (j->shared_ffn && p->shared_switch) sh_cpu_matmul(be, j->mm, &p->shared_switch->v, j->x, j->x_stride, j->n, NULL, false, j->gate_x, 1);
  if (j->shared_ffn) shared_weights(j);
  for (int t = 0; !add && t < j->n; t++) memset(j->y + t * j->y_stride, 0, (size_t)j->hidden * sizeof(float));
  j->qx_for = pack(be, p->gate[j->active[0]], j->x, j->x_stride, j->n, j->qx);
  sh_pool_run(be->pool, h_item, j, j->shared_blocks + j->n_active * j->blocks);
  j->qh_for = pack(be, p->down[j->active[0]], j->h, j->ffn, j->n * p->top_k, j->qh);
  if (j->shared_ffn) j->q_shared_for = pack(be, p->shared_down, j->shared_h, j->shared_ffn, j->n, j->q_shared);
  sh_pool_run(be->pool, y_item, j, div_up(j->hidden, ROWS));
}

int sh_cpu_moe(sh_backend *backend, const sh_moe *p, const sh_tensor *x, int n, bool add, sh_tensor *y, sh_error *e) {
  sh_cpu *be = (sh_cpu *)backend;
  moe_job j = {
      .be = be, .p = p, .x_stride = x->cols, .y_stride = y->cols, .hidden = (int)p->router->v.cols, .ffn = (int)p->gate[0]->v.rows};
  j.shared_ffn = p->shared_up ? (int)p->shared_up->v.rows : 0;
  j.blocks = div_up(j.ffn, ROWS);
  j.shared_blocks = div_up(j.shared_ffn, ROWS);
  int rc = check(&j, e), chunk = chunk_tokens(&j, n, p->top_k);
  if (rc == 0) rc = sh_cpu_check(x, n, j.hidden, "moe: x", e);
  if (rc == 0) rc = sh_cpu_check(y, n, j.hidden, "moe: y", e);
  if (rc < 0 || n == 0) return rc;
  moe_mem mem;
  rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, chunk, p->n_experts, p->top_k), e);
  if (rc == 0) rc = sh_cpu_worker_need(be, cut_worker(&j, &mem, NULL), e);
  if (rc < 0) return rc;
  cut_shared(&j, be->scratch.shared, chunk, p->n_experts, p->top_k);
  for (int t0 = 0; t0 < n; t0 += chunk) {
    j.n = min_int(chunk, n - t0);
    j.x = x->p + t0 * x->cols;
    j.y = y->p + t0 * y->cols;
    run_chunk(be, &j, add);
  }
  return 0;
}

int sh_cpu_moe_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e) {
  if (r->n_experts == 0) return 0;
  moe_job j = {.be = be, .hidden = r->hidden, .ffn = r->moe_ffn, .shared_ffn = r->shared_ffn};
  moe_mem mem;
  int rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, chunk_tokens(&j, r->max_tokens, r->top_k), r->n_experts, r->top_k), e);
  return rc == 0 ? sh_cpu_worker_need(be, cut_worker(&j, &mem, NULL), e) : rc;
}
