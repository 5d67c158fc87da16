/* Gated delta-rule layers of the CPU backend.
 *
 * Four passes on the pool, each over independent pieces: the convolution by (sequence, strip of channels), norms and gates by rows, the
 * recurrence by (sequence, head, tile of columns), the output norm by rows. The recurrence's item keeps one [k_dim, 32] tile of the state
 * in L1 and takes all of the chunk's tokens through it, one after the other: the same arithmetic for a prompt, a decode step and any cut of
 * a prompt into chunks. */
#include "backend/cpu/cpu.h"

#include <math.h>

enum { ITEM_ROWS = 8 };

typedef struct gdn_job {
  const sh_cpu *be;
  const sh_cache *c;
  int layer;
  const sh_gdn *p;
  const sh_batch *b;
  sh_tensor *qkv, *out;
  const sh_tensor *z, *a, *bb;
  int channels;        /* columns of qkv that are used */
  int strips, tiles;   /* of the channels; of a head's columns */
  float *decay, *beta; /* [n_tokens, v_heads] */
} gdn_job;

static int min_int(int a, int b) { return a < b ? a : b; }

static void conv_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  const sh_seq *s = &j->b->seqs[item / j->strips];
  int c0 = item % j->strips * SH_CONV_STRIP, width = j->p->conv_kernel;
  j->be->k.conv(j->qkv->p + s->row * j->qkv->cols + c0, j->qkv->cols, s->count, min_int(SH_CONV_STRIP, j->channels - c0), width,
                j->p->conv_w->p + (size_t)c0 * (size_t)width, sh_cpu_conv(j->c, s->slot, j->layer) + c0, j->channels);
}

static void norm_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  const sh_gdn *p = j->p;
  float q_scale = 1.0f / sqrtf((float)p->k_dim);
  for (int row = item * ITEM_ROWS; row < min_int(j->b->n_tokens, (item + 1) * ITEM_ROWS); row++) {
    float *x = j->qkv->p + row * j->qkv->cols;
    for (int h = 0; h < 2 * p->k_heads; h++) j->be->k.l2norm(x + h * p->k_dim, p->k_dim, h < p->k_heads ? q_scale : 1.0f);
    j->be->k.gdn_gates(j->a->p + row * j->a->cols, j->bb->p + row * j->bb->cols, p->neg_exp_a->p, p->dt_bias->p, p->v_heads,
                       j->decay + row * p->v_heads, j->beta + row * p->v_heads);
  }
}

static void scan_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  const sh_gdn *p = j->p;
  int tile = item % j->tiles, vh = item / j->tiles % p->v_heads;
  const sh_seq *s = &j->b->seqs[item / j->tiles / p->v_heads];
  int kh = p->v_tiled ? vh % p->k_heads : vh / (p->v_heads / p->k_heads), c0 = tile * SH_GDN_TILE;
  const float *x = j->qkv->p + s->row * j->qkv->cols;
  j->be->k.gdn_scan(&(sh_gdn_scan){
      .s = sh_cpu_state(j->c, s->slot, j->layer) + (size_t)p->k_dim * ((size_t)vh * (size_t)p->v_dim + (size_t)c0),
      .k_dim = p->k_dim,
      .n_cols = min_int(SH_GDN_TILE, p->v_dim - c0),
      .n_tok = s->count,
      .q = x + kh * p->k_dim,
      .k = x + (p->k_heads + kh) * p->k_dim,
      .v = x + 2 * p->k_heads * p->k_dim + vh * p->v_dim + c0,
      .qkv_stride = j->qkv->cols,
      .decay = j->decay + s->row * p->v_heads + vh,
      .beta = j->beta + s->row * p->v_heads + vh,
      .g_stride = p->v_heads,
      .o = j->out->p + s->row * j->out->cols + vh * p->v_dim + c0,
      .o_stride = j->out->cols,
  });
}

static void out_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  const sh_gdn *p = j->p;
  for (int row = item * ITEM_ROWS; row < min_int(j->b->n_tokens, (item + 1) * ITEM_ROWS); row++) {
    for (int h = 0; h < p->v_heads; h++)
      j->be->k.gdn_out(j->z->p + row * j->z->cols + h * p->v_dim, p->gain->p, p->eps, p->v_dim,
                       j->out->p + row * j->out->cols + h * p->v_dim);
  }
}

static int check(const gdn_job *j, sh_error *e) {
  const sh_gdn *p = j->p;
  const sh_cache_spec *s = &j->c->spec;
  if (j->layer < 0 || j->layer >= s->n_linear_layers || p->v_heads != s->lin_v_heads || p->k_dim != s->lin_k_dim ||
      p->v_dim != s->lin_v_dim || p->conv_kernel != s->conv_kernel || j->channels != s->conv_channels || p->k_heads < 1 ||
      p->v_heads % p->k_heads)
    return sh_fail(e, SH_ERR_INTERNAL, "gated_delta: layer %d, %d:%d heads of %d x %d do not match the cache", j->layer, p->v_heads,
                   p->k_heads, p->k_dim, p->v_dim);
  int64_t n = j->b->n_tokens, v_cols = (int64_t)p->v_heads * p->v_dim;
  int rc = sh_cpu_check(j->qkv, n, j->channels, "gated_delta: qkv", e);
  if (rc == 0) rc = sh_cpu_check(j->z, n, v_cols, "gated_delta: z", e);
  if (rc == 0) rc = sh_cpu_check(j->out, n, v_cols, "gated_delta: out", e);
  if (rc == 0) rc = sh_cpu_check(j->a, n, p->v_heads, "gated_delta: a", e);
  if (rc == 0) rc = sh_cpu_check(j->bb, n, p->v_heads, "gated_delta: b", e);
  if (rc == 0) rc = sh_cpu_check(p->neg_exp_a, 1, p->v_heads, "gated_delta: decay", e);
  if (rc == 0) rc = sh_cpu_check(p->dt_bias, 1, p->v_heads, "gated_delta: dt_bias", e);
  if (rc == 0) rc = sh_cpu_check(p->gain, 1, p->v_dim, "gated_delta: gain", e);
  if (rc == 0 && (p->conv_w->rows < j->channels || p->conv_w->cols != p->conv_kernel))
    rc = sh_fail(e, SH_ERR_INTERNAL, "gated_delta: conv_w is not [%d, %d]", j->channels, p->conv_kernel);
  return rc == 0 ? sh_cpu_check_batch(j->c, j->b, true, false, e) : rc;
}

static size_t cut_shared(gdn_job *j, uint8_t *base, int n_tokens, int v_heads) {
  sh_cut c = {.p = base};
  j->decay = sh_cut_take(&c, (size_t)n_tokens * (size_t)v_heads, sizeof(float));
  j->beta = sh_cut_take(&c, (size_t)n_tokens * (size_t)v_heads, sizeof(float));
  return c.used;
}

int sh_cpu_gated_delta(sh_backend *backend, sh_cache *c, int layer, const sh_gdn *p, const sh_batch *b, sh_tensor *qkv, const sh_tensor *z,
                       const sh_tensor *a, const sh_tensor *bb, sh_tensor *out, sh_error *e) {
  sh_cpu *be = (sh_cpu *)backend;
  gdn_job j = {.be = be, .c = c, .layer = layer, .p = p, .b = b, .qkv = qkv, .out = out, .z = z, .a = a, .bb = bb};
  j.channels = 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim;
  j.strips = (j.channels + SH_CONV_STRIP - 1) / SH_CONV_STRIP;
  j.tiles = (p->v_dim + SH_GDN_TILE - 1) / SH_GDN_TILE;
  int rc = check(&j, e);
  if (rc == 0) rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, b->n_tokens, p->v_heads), e);
  if (rc < 0) return rc;
  cut_shared(&j, be->scratch.shared, b->n_tokens, p->v_heads);
  int row_items = (b->n_tokens + ITEM_ROWS - 1) / ITEM_ROWS;
  if (b->n_tokens == 0) return 0;
  sh_pool_run(be->pool, conv_item, &j, b->n_seqs * j.strips);
  sh_pool_run(be->pool, norm_item, &j, row_items);
  sh_pool_run(be->pool, scan_item, &j, b->n_seqs * p->v_heads * j.tiles);
  sh_pool_run(be->pool, out_item, &j, row_items);
  return 0;
}

int sh_cpu_gdn_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e) {
  gdn_job j;
  return sh_cpu_shared_need(be, cut_shared(&j, NULL, r->max_tokens, r->lin_v_heads), e);
}
