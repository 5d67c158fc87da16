/* The timing backend. The thread that uses the model; no other.
 *
 * Every call of sh_backend_ops is written out: a table copied from the real one would hand this struct to functions that expect theirs. The
 * assertion below makes the author of a new call come here. */
#include "bench/timed.h"

#include "base/pool.h"

#include <string.h>

const char *const sh_timed_names[SH_TIMED_KINDS] = {"linear", "attention", "gated_delta", "moe", "norm", "embed", "swiglu", "head"};

typedef struct timed {
  sh_backend base;
  sh_backend *real; /* owned */
  bool on, in_head;
  int64_t ns[SH_TIMED_KINDS];
} timed;

_Static_assert(sizeof(sh_backend_ops) == 26 * sizeof(void *), "a call was added to or taken from sh_backend_ops: do the same here");

/* The real backend's call, its time added to a kind; inside the head everything is the head's. */
#define PASS(kind, call)                                                                                                                   \
  do {                                                                                                                                     \
    timed *t = (timed *)be;                                                                                                                \
    sh_backend *real = t->real;                                                                                                            \
    int64_t from = t->on ? sh_now_ns() : 0;                                                                                                \
    int rc = real->ops->call;                                                                                                              \
    if (t->on) t->ns[t->in_head ? SH_TIMED_HEAD : (kind)] += sh_now_ns() - from;                                                           \
    return rc;                                                                                                                             \
  } while (0)

/* The same without a kind: what the profile calls other. */
#define REAL(be) (((timed *)(be))->real)

static void timed_free(sh_backend *be) {
  if (!be) return;
  REAL(be)->ops->free(REAL(be));
  sh_free(be);
}

static const char *timed_describe(sh_backend *be) { return REAL(be)->ops->describe(REAL(be)); }

static int timed_reserve(sh_backend *be, const sh_reserve *r, sh_error *e) { return REAL(be)->ops->reserve(REAL(be), r, e); }

static int timed_tensor_new(sh_backend *be, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e) {
  return REAL(be)->ops->tensor_new(REAL(be), rows, cols, out, e);
}

static void timed_tensor_free(sh_backend *be, sh_tensor *t) { REAL(be)->ops->tensor_free(REAL(be), t); }

static int timed_tensor_write(sh_backend *be, sh_tensor *t, int64_t row, int64_t n, const float *src, sh_error *e) {
  return REAL(be)->ops->tensor_write(REAL(be), t, row, n, src, e);
}

static int tensor_read(sh_backend *be, const sh_tensor *x, int64_t row, int64_t n, float *dst, sh_error *e) {
  PASS(SH_TIMED_HEAD, tensor_read(real, x, row, n, dst, e));
}

/* Ends the head: the next call belongs to another part. */
static int timed_tensor_read(sh_backend *be, const sh_tensor *x, int64_t row, int64_t n, float *dst, sh_error *e) {
  int rc = tensor_read(be, x, row, n, dst, e);
  ((timed *)be)->in_head = false;
  return rc;
}

static int timed_weight_bind(sh_backend *be, const sh_wview *v, sh_weight **out, sh_error *e) {
  return REAL(be)->ops->weight_bind(REAL(be), v, out, e);
}

static void timed_weight_free(sh_backend *be, sh_weight *w) { REAL(be)->ops->weight_free(REAL(be), w); }

static bool timed_takes(sh_backend *be, sh_dtype type) { return REAL(be)->ops->takes && REAL(be)->ops->takes(REAL(be), type); }

static const char *timed_weight_kernel(sh_backend *be, const sh_wview *v, char *buf, size_t size) {
  return REAL(be)->ops->weight_kernel(REAL(be), v, buf, size);
}

static int timed_cache_new(sh_backend *be, const sh_cache_spec *spec, sh_cache **out, sh_error *e) {
  return REAL(be)->ops->cache_new(REAL(be), spec, out, e);
}

static void timed_cache_free(sh_backend *be, sh_cache *c) { REAL(be)->ops->cache_free(REAL(be), c); }

static int timed_slot_zero(sh_backend *be, sh_cache *c, int slot, sh_error *e) { return REAL(be)->ops->slot_zero(REAL(be), c, slot, e); }

static int timed_slot_copy(sh_backend *be, sh_cache *c, int dst, int src, sh_error *e) {
  return REAL(be)->ops->slot_copy(REAL(be), c, dst, src, e);
}

static int timed_page_copy(sh_backend *be, sh_cache *c, int dst, int src, sh_error *e) {
  return REAL(be)->ops->page_copy(REAL(be), c, dst, src, e);
}

static int timed_embed(sh_backend *be, const sh_weight *w, const int32_t *ids, int n, sh_tensor *y, sh_error *e) {
  PASS(SH_TIMED_EMBED, embed(real, w, ids, n, y, e));
}

static int timed_gather(sh_backend *be, const sh_tensor *x, const int32_t *rows, int n, sh_tensor *y, sh_error *e) {
  ((timed *)be)->in_head = true;
  PASS(SH_TIMED_HEAD, gather(real, x, rows, n, y, e));
}

static int timed_rmsnorm(sh_backend *be, const sh_tensor *x, const sh_tensor *gain, float eps, int n, sh_tensor *y, sh_error *e) {
  PASS(SH_TIMED_NORM, rmsnorm(real, x, gain, eps, n, y, e));
}

static int timed_linear(sh_backend *be, const sh_weight *w, const sh_tensor *x, int n, const sh_tensor *bias, bool add, sh_tensor *y,
                        sh_error *e) {
  PASS(SH_TIMED_LINEAR, linear(real, w, x, n, bias, add, y, e));
}

static int timed_swiglu(sh_backend *be, const sh_tensor *gate, const sh_tensor *up, int n, int cols, sh_tensor *y, sh_error *e) {
  PASS(SH_TIMED_SWIGLU, swiglu(real, gate, up, n, cols, y, e));
}

static int timed_attention(sh_backend *be, sh_cache *c, int layer, const sh_attn *p, const sh_batch *b, sh_tensor *q, sh_tensor *k,
                           const sh_tensor *v, sh_tensor *out, sh_error *e) {
  PASS(SH_TIMED_ATTENTION, attention(real, c, layer, p, b, q, k, v, out, e));
}

static int timed_gated_delta(sh_backend *be, sh_cache *c, int layer, const sh_gdn *p, const sh_batch *b, sh_tensor *qkv, const sh_tensor *z,
                             const sh_tensor *a, const sh_tensor *bb, sh_tensor *out, sh_error *e) {
  PASS(SH_TIMED_GATED_DELTA, gated_delta(real, c, layer, p, b, qkv, z, a, bb, out, e));
}

static int timed_moe(sh_backend *be, const sh_moe *p, const sh_tensor *x, int n, bool add, sh_tensor *y, sh_error *e) {
  PASS(SH_TIMED_MOE, moe(real, p, x, n, add, y, e));
}

static int timed_sync(sh_backend *be, sh_error *e) { return REAL(be)->ops->sync(REAL(be), e); }

static const sh_backend_ops OPS = {
    .name = "timed",
    .free = timed_free,
    .describe = timed_describe,
    .reserve = timed_reserve,
    .tensor_new = timed_tensor_new,
    .tensor_free = timed_tensor_free,
    .tensor_write = timed_tensor_write,
    .tensor_read = timed_tensor_read,
    .weight_bind = timed_weight_bind,
    .weight_free = timed_weight_free,
    .takes = timed_takes,
    .weight_kernel = timed_weight_kernel,
    .cache_new = timed_cache_new,
    .cache_free = timed_cache_free,
    .slot_zero = timed_slot_zero,
    .slot_copy = timed_slot_copy,
    .page_copy = timed_page_copy,
    .embed = timed_embed,
    .gather = timed_gather,
    .rmsnorm = timed_rmsnorm,
    .linear = timed_linear,
    .swiglu = timed_swiglu,
    .attention = timed_attention,
    .gated_delta = timed_gated_delta,
    .moe = timed_moe,
    .sync = timed_sync,
};

int sh_timed_new(sh_backend **out, sh_backend *real, sh_error *e) {
  timed *t = sh_calloc(1, sizeof *t);
  *out = NULL;
  if (!t) {
    real->ops->free(real);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  t->base.ops = &OPS;
  t->real = real;
  *out = &t->base;
  return 0;
}

void sh_timed_switch(sh_backend *be, bool on) {
  timed *t = (timed *)be;
  if (on) memset(t->ns, 0, sizeof t->ns);
  t->in_head = false;
  t->on = on;
}

void sh_timed_read(const sh_backend *be, int64_t ns[SH_TIMED_KINDS]) { memcpy(ns, ((const timed *)be)->ns, SH_TIMED_KINDS * sizeof *ns); }
