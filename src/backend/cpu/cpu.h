/* Private to the CPU backend: its structs and the pieces that the files of this folder share.
 *
 *   cpu.c        construction, tensors, weights, the table of operations, row operations
 *   scratch.c    memory that calls work in        cache.c      KV pages and state slots
 *   linear.c     matrix products                  attention.c  paged attention
 *   gdn.c        gated delta rule                 moe.c        routed feed-forward
 *
 * A call runs at once: it cuts its work into items, and the pool's workers take them from a counter. Which worker runs an item never
 * changes a result. */
#ifndef SH_BACKEND_CPU_CPU_H
#define SH_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "base/pool.h"
#include "kernels/kernels.h"

struct sh_tensor {
  int64_t rows, cols;
  float *p;     /* [rows, cols], aligned, in: */
  void *memory; /* owned */
};

struct sh_weight {
  sh_wview v; /* borrows the map */
};

struct sh_cache {
  sh_cache_spec spec;
  uint8_t *pages, *slots;          /* private maps, committed when first written; NULL when there are none */
  size_t pages_len, slots_len;     /* bytes of the maps */
  size_t page_stride, slot_stride; /* bytes from one to the next, a multiple of 64 */
  size_t head_bytes;               /* keys (or values) of one head of one layer in a page: [page_size, head_dim] */
  size_t layer_floats;             /* of a linear layer in a slot: state tiles, then conv inputs */
};

/* Memory of a call. `shared` is cut up by the call that runs, `worker[w]` by the items that worker w runs; nothing in them outlives the
 * call. reserve() sizes both for the largest later call; a call that needs more (tests, tools) grows them. */
typedef struct sh_cpu_scratch {
  uint8_t *shared;
  size_t shared_bytes;
  uint8_t **worker; /* [n_workers] */
  size_t worker_bytes;
} sh_cpu_scratch;

/* cos and sin of the rows of the latest attention call; the layers of a step have the same positions, so all but the first find it filled.
 */
typedef struct sh_cpu_rope {
  int half, n; /* pairs, rows filled */
  float scale;
  double *inv_freq; /* [half] the frequencies it was filled with */
  int32_t *pos;     /* [n] */
  float *cs, *sn;   /* [n, half] */
  int cap_rows, cap_half;
} sh_cpu_rope;

typedef struct sh_cpu {
  sh_backend base;
  sh_pool *pool;
  int n_workers;
  sh_kernels k;
  char describe[96];
  sh_cpu_scratch scratch;
  sh_cpu_rope rope;
  size_t split_bytes; /* attention: most bytes of span partials; more makes a call go unsplit */
} sh_cpu;

/* --- scratch.c: sizes in bytes. */
int sh_cpu_shared_need(sh_cpu *be, size_t bytes, sh_error *e);
int sh_cpu_worker_need(sh_cpu *be, size_t bytes, sh_error *e);
void sh_cpu_scratch_free(sh_cpu *be);
int sh_cpu_rope_need(sh_cpu *be, int rows, int half, sh_error *e);

/* --- linear.c */
/* y[t] = x[t] W^T for rows at x + t * x_stride, y + t * y_stride; runs on the pool. scratch: sh_cpu_matmul_bytes(n, w->cols); the workers'
 * scratch must be what sh_cpu_linear_reserve asks for w->cols, or hold sh_cpu_item_bytes(w->cols). */
void sh_cpu_matmul(sh_cpu *be, uint8_t *scratch, const sh_wview *w, const float *x, int64_t x_stride, int n, const float *bias, bool add,
                   float *y, int64_t y_stride);
size_t sh_cpu_matmul_bytes(const sh_cpu *be, int n, int64_t cols);
int sh_cpu_linear(sh_backend *b, const sh_weight *w, const sh_tensor *x, int n, const sh_tensor *bias, bool add, sh_tensor *y, sh_error *e);
int sh_cpu_linear_reserve(sh_cpu *be, int max_tokens, int64_t max_cols, sh_error *e);
enum { SH_CPU_ITEM_TOKENS = 64 };                      /* most activation rows of a product inside an item */
size_t sh_cpu_item_bytes(const sh_cpu *be, int64_t k); /* worker scratch of sh_cpu_item_mm */
/* Whether rows that qpack made for one serve the other: both are panels with the same groups and order of columns. */
bool sh_cpu_same_pack(const sh_wview *a, const sh_wview *b);
/* Rows of x (x_stride floats apart) packed for w, sh_qpack_bytes(w) apart, on the pool where that is worth it. */
void sh_cpu_qpack(sh_cpu *be, const sh_wview *w, const float *x, int64_t x_stride, int n, uint8_t *q);
/* Inside an item: n products with the same activation rows (x, n_tok, k), on this worker. Fills their packed and scratch, and q of panels
 * where it is NULL. */
void sh_cpu_item_mm(const sh_cpu *be, sh_mm *mm, int n, uint8_t *scratch);

/* --- cache.c */
int sh_cpu_cache_new(sh_backend *b, const sh_cache_spec *spec, sh_cache **out, sh_error *e);
void sh_cpu_cache_free(sh_backend *b, sh_cache *c);
int sh_cpu_slot_zero(sh_backend *b, sh_cache *c, int slot, sh_error *e);
int sh_cpu_slot_copy(sh_backend *b, sh_cache *c, int dst, int src, sh_error *e);
int sh_cpu_page_copy(sh_backend *b, sh_cache *c, int dst, int src, sh_error *e);
/* Row of position pos (in the page table's sequence): keys, or values when is_v. */
uint8_t *sh_cpu_kv_row(const sh_cache *c, const int32_t *pages, int layer, int head, int pos, bool is_v);
float *sh_cpu_state(const sh_cache *c, int slot, int layer); /* state tiles [v_heads][tiles][k_dim][<= SH_GDN_TILE] */
float *sh_cpu_conv(const sh_cache *c, int slot, int layer);  /* [conv_kernel - 1, channels] */
/* The batch's rows, slots (when want_slots) and pages (when want_pages) against the cache. */
int sh_cpu_check_batch(const sh_cache *c, const sh_batch *b, bool want_slots, bool want_pages, sh_error *e);

/* --- attention.c, gdn.c, moe.c */
int sh_cpu_attention(sh_backend *b, sh_cache *c, int layer, const sh_attn *p, const sh_batch *batch, sh_tensor *q, sh_tensor *k,
                     const sh_tensor *v, sh_tensor *out, sh_error *e);
int sh_cpu_attention_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e);
int sh_cpu_gated_delta(sh_backend *b, sh_cache *c, int layer, const sh_gdn *p, const sh_batch *batch, sh_tensor *qkv, const sh_tensor *z,
                       const sh_tensor *a, const sh_tensor *bb, sh_tensor *out, sh_error *e);
int sh_cpu_gdn_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e);
int sh_cpu_moe(sh_backend *b, const sh_moe *p, const sh_tensor *x, int n, bool add, sh_tensor *y, sh_error *e);
int sh_cpu_moe_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e);

/* 0, or an SH_ERR_INTERNAL that names the operation and the argument: a tensor with fewer rows or columns than the call uses is a fault of
 * the caller. */
int sh_cpu_check(const sh_tensor *t, int64_t rows, int64_t cols, const char *what, sh_error *e);

#endif
