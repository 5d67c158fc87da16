/* Gated delta-rule layers of the CPU backend.
 *
 * The gates come first, by rows. Then an item is one sequence and key head with the value heads that read it: it takes the chunk's tokens
 * in blocks that fit the first caches, and for each block makes q, k and v from the inputs (convolution, norms), takes them through the
 * state tile by tile, one token after the other, and norms and gates the output. So the inputs are read from memory once, and nothing in
 * between is written to it. The same arithmetic serves a prompt, a decode step and any cut of a prompt into chunks. Where there are fewer
 * such items than workers, an item takes only a part of the columns; the convolution of q and k is then made once for each part, and what
 * needs all columns of a head or all readers of the inputs, the output norm and the convolution's state, waits for a second pass. The bits
 * are the same. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
  BLOCK = 32,          /* tokens: q, k, v of a block take 48 KB with heads of 128 */
  GATE_ROWS = 64,      /* rows of an item */
  GATES_INLINE = 1024, /* gates: up to so many (3 us) the calling thread makes itself */
  OUT_ROWS = 8,        /* rows of an item of the second pass */
};

typedef struct gdn_job {
  const sh_cpu *be;
  const sh_cache *c;
  int layer;
  const sh_gdn *p;
  const sh_batch *b;
  sh_tensor *qkv, *out;
  const sh_tensor *z, *a, *bb;
  int channels;        /* columns of qkv that are used */
  int group;           /* value heads of a key head */
  int tiles, parts;    /* of a value head's columns; items that share a key head's tiles */
  int row_items;       /* of the second pass */
  float *decay, *beta; /* [n_tokens, v_heads] */
} gdn_job;

static int min_int(int a, int b) { return a < b ? a : b; }

/* --- Gates */

static void gate_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  const sh_gdn *p = j->p;
  for (int row = item * GATE_ROWS; row < min_int(j->b->n_tokens, (item + 1) * GATE_ROWS); row++)
    j->be->k.gdn_gates(j->a->p + row * j->a->cols, j->bb->p + row * j->bb->cols, p->neg_exp_a->p, p->dt_bias->p, p->v_heads,
                       j->decay + row * p->v_heads, j->beta + row * p->v_heads);
}

static void gates(gdn_job *j) {
  const int items = (j->b->n_tokens + GATE_ROWS - 1) / GATE_ROWS;
  if (j->b->n_tokens * j->p->v_heads > GATES_INLINE) {
    sh_pool_run(j->be->pool, gate_item, j, items);
    return;
  }
  for (int i = 0; i < items; i++) gate_item(j, i, 0);
}

/* --- Inputs of the convolution: token t of a sequence's share, or, before it, what the state holds. */

static const float *input_row(const gdn_job *j, const sh_seq *s, int t) {
  if (t >= 0) return j->qkv->p + (s->row + t) * j->qkv->cols;
  return sh_cpu_conv(j->c, s->slot, j->layer) + (ptrdiff_t)(j->p->conv_kernel - 1 + t) * j->channels;
}

/* Channels [c0, c0 + n) of the last inputs become the state. An input that was in the state moves towards its start: in order, nothing is
 * overwritten that is still to be moved. */
static void advance(const gdn_job *j, const sh_seq *s, int c0, int n) {
  float *state = sh_cpu_conv(j->c, s->slot, j->layer) + c0;
  const int past = j->p->conv_kernel - 1;
  for (int i = 0; i < past; i++)
    memcpy(state + (size_t)i * (size_t)j->channels, input_row(j, s, s->count - past + i) + c0, (size_t)n * sizeof *state);
}

static int q_channel(const gdn_job *j, int kh) { return kh * j->p->k_dim; }
static int k_channel(const gdn_job *j, int kh) { return (j->p->k_heads + kh) * j->p->k_dim; }
static int v_channel(const gdn_job *j, int vh) { return 2 * j->p->k_heads * j->p->k_dim + vh * j->p->v_dim; }
/* The i-th value head of key head kh. */
static int v_head(const gdn_job *j, int kh, int i) { return j->p->v_tiled ? kh + i * j->p->k_heads : kh * j->group + i; }

/* --- Heads */

/* Worker memory of an item: taps by row (q, k, then each value head), and a block's q, k and v [BLOCK, 2 k_dim + v_dim]. */
typedef struct head_mem {
  float *taps, *x;
} head_mem;

static size_t cut_worker(head_mem *m, uint8_t *base, int group, int k_dim, int v_dim) {
  sh_cut c = {.p = base};
  m->taps = sh_cut_take(&c, SH_CONV_MAX * (2 * (size_t)k_dim + (size_t)group * (size_t)v_dim), sizeof(float));
  m->x = sh_cut_take(&c, BLOCK * (2 * (size_t)k_dim + (size_t)v_dim), sizeof(float));
  return c.used;
}

/* Taps of channels [c0, c0 + n) to out [width, n]. */
static void taps_by_row(const sh_gdn *p, int c0, int n, float *out) {
  const float *w = p->conv_w->p + (size_t)c0 * (size_t)p->conv_kernel;
  for (int i = 0; i < p->conv_kernel; i++) {
    for (int c = 0; c < n; c++) out[i * n + c] = w[c * p->conv_kernel + i];
  }
}

/* A block: tokens [t0, t0 + n) of a sequence. */
typedef struct block {
  const sh_seq *s;
  int t0, n;
  float *x; /* as in head_mem */
} block;

/* Convolution of channels [c0, c0 + n) into column `at` of the block. */
static void convolve(const gdn_job *j, const block *b, int c0, int n, const float *taps, int at) {
  const float *rows[SH_CONV_MAX - 1 + BLOCK];
  const int width = j->p->conv_kernel, stride = 2 * j->p->k_dim + j->p->v_dim;
  for (int i = 0; i < width - 1 + b->n; i++) rows[i] = input_row(j, b->s, b->t0 - (width - 1) + i) + c0;
  j->be->k.conv(rows, b->n, n, width, taps, b->x + at, stride);
}

static void keys(const gdn_job *j, const block *b, int kh, const float *taps) {
  const int d = j->p->k_dim, stride = 2 * d + j->p->v_dim;
  const float q_scale = 1.0f / sqrtf((float)d);
  convolve(j, b, q_channel(j, kh), d, taps, 0);
  convolve(j, b, k_channel(j, kh), d, taps + j->p->conv_kernel * d, d);
  for (int t = 0; t < b->n; t++) {
    j->be->k.l2norm(b->x + t * stride, d, q_scale);
    j->be->k.l2norm(b->x + t * stride + d, d, 1.0f);
  }
}

static void out_norm(const gdn_job *j, int row, int vh) {
  const int d = j->p->v_dim;
  j->be->k.gdn_out(j->z->p + row * j->z->cols + vh * d, j->p->gain->p, j->p->eps, d, j->out->p + row * j->out->cols + vh * d);
}

static void ask_for(const float *p, int n) {
  for (int i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 2);
}

/* While a block goes through the state, the memory of what comes after is asked for: rows lie too far apart for the hardware to see it. */
static void ask_ahead(const gdn_job *j, const block *b, int kh, int vh) {
  const int d = j->p->v_dim;
  for (int t = b->t0; t < b->t0 + b->n; t++) {
    const int64_t row = b->s->row + t;
    ask_for(j->z->p + row * j->z->cols + vh * d, d);
    ask_for(j->out->p + row * j->out->cols + vh * d, d);
    if (t + BLOCK >= b->s->count) continue;
    const float *next = input_row(j, b->s, t + BLOCK);
    ask_for(next + q_channel(j, kh), j->p->k_dim);
    ask_for(next + k_channel(j, kh), j->p->k_dim);
    ask_for(next + v_channel(j, vh), d);
  }
}

/* Tiles [first, last) of a value head whose values are in the block. */
static void scan_tiles(const gdn_job *j, const block *b, int vh, int first, int last) {
  const sh_gdn *p = j->p;
  const int64_t row = b->s->row + b->t0;
  for (int tile = first; tile < last; tile++) {
    const int c0 = tile * SH_GDN_TILE;
    j->be->k.gdn_scan(&(sh_gdn_scan){
        .s = sh_cpu_state(j->c, b->s->slot, j->layer) + (size_t)p->k_dim * ((size_t)vh * (size_t)p->v_dim + (size_t)c0),
        .k_dim = p->k_dim,
        .n_cols = min_int(SH_GDN_TILE, p->v_dim - c0),
        .n_tok = b->n,
        .q = b->x,
        .k = b->x + p->k_dim,
        .v = b->x + 2 * p->k_dim + c0,
        .qkv_stride = 2 * p->k_dim + p->v_dim,
        .decay = j->decay + row * p->v_heads + vh,
        .beta = j->beta + row * p->v_heads + vh,
        .g_stride = p->v_heads,
        .o = j->out->p + row * j->out->cols + vh * p->v_dim + c0,
        .o_stride = j->out->cols,
    });
  }
}

static void head_item(void *ctx, int item, int worker) {
  gdn_job *j = ctx;
  const sh_gdn *p = j->p;
  const int part = item % j->parts, kh = item / j->parts % p->k_heads, width = p->conv_kernel;
  const int first = j->tiles * part / j->parts, last = j->tiles * (part + 1) / j->parts;
  const int c0 = first * SH_GDN_TILE, cols = min_int(last * SH_GDN_TILE, p->v_dim) - c0; /* of each value head */
  block b = {.s = &j->b->seqs[item / j->parts / p->k_heads]};
  head_mem mem;
  cut_worker(&mem, j->be->scratch.worker[worker], j->group, p->k_dim, p->v_dim);
  b.x = mem.x;
  float *v_taps = mem.taps + 2 * width * p->k_dim;
  taps_by_row(p, q_channel(j, kh), p->k_dim, mem.taps);
  taps_by_row(p, k_channel(j, kh), p->k_dim, mem.taps + width * p->k_dim);
  for (int i = 0; i < j->group; i++) taps_by_row(p, v_channel(j, v_head(j, kh, i)) + c0, cols, v_taps + i * width * cols);
  for (; b.t0 < b.s->count; b.t0 += BLOCK) {
    b.n = min_int(BLOCK, b.s->count - b.t0);
    keys(j, &b, kh, mem.taps);
    for (int i = 0; i < j->group; i++) {
      const int vh = v_head(j, kh, i);
      convolve(j, &b, v_channel(j, vh) + c0, cols, v_taps + i * width * cols, 2 * p->k_dim + c0);
      ask_ahead(j, &b, kh, vh);
      scan_tiles(j, &b, vh, first, last);
      for (int t = 0; j->parts == 1 && t < b.n; t++) out_norm(j, b.s->row + b.t0 + t, vh);
    }
  }
  if (j->parts > 1) return;
  advance(j, b.s, q_channel(j, kh), p->k_dim);
  advance(j, b.s, k_channel(j, kh), p->k_dim);
  for (int i = 0; i < j->group; i++) advance(j, b.s, v_channel(j, v_head(j, kh, i)), p->v_dim);
}

/* The second pass: output norms by rows, then the convolution's states by sequences. */
static void rest_item(void *ctx, int item, int worker) {
  (void)worker;
  gdn_job *j = ctx;
  if (item >= j->row_items) {
    advance(j, &j->b->seqs[item - j->row_items], 0, j->channels);
    return;
  }
  for (int row = item * OUT_ROWS; row < min_int(j->b->n_tokens, (item + 1) * OUT_ROWS); row++) {
    for (int h = 0; h < j->p->v_heads; h++) out_norm(j, row, h);
  }
}

/* --- The call */

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
  head_mem mem;
  j.channels = 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim;
  int rc = check(&j, e);
  if (rc < 0 || b->n_tokens == 0) return rc;
  j.group = p->v_heads / p->k_heads;
  rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, b->n_tokens, p->v_heads), e);
  if (rc == 0) rc = sh_cpu_worker_need(be, cut_worker(&mem, NULL, j.group, p->k_dim, p->v_dim), e);
  if (rc < 0) return rc;
  cut_shared(&j, be->scratch.shared, b->n_tokens, p->v_heads);
  const int heads = b->n_seqs * p->k_heads;
  j.tiles = (p->v_dim + SH_GDN_TILE - 1) / SH_GDN_TILE;
  j.parts = heads >= be->n_workers ? 1 : min_int(j.tiles, (be->n_workers + heads - 1) / heads);
  j.row_items = (b->n_tokens + OUT_ROWS - 1) / OUT_ROWS;
  gates(&j);
  sh_pool_run(be->pool, head_item, &j, heads * j.parts);
  if (j.parts > 1) sh_pool_run(be->pool, rest_item, &j, j.row_items + b->n_seqs);
  return 0;
}

int sh_cpu_gdn_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e) {
  gdn_job j;
  head_mem mem;
  if (r->lin_v_heads == 0) return 0;
  const int64_t key_heads = (r->conv_channels - (int64_t)r->lin_v_heads * r->lin_v_dim) / (2 * (int64_t)r->lin_k_dim);
  const int group = key_heads > 0 ? (int)(r->lin_v_heads / key_heads) : r->lin_v_heads;
  int rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, r->max_tokens, r->lin_v_heads), e);
  return rc == 0 ? sh_cpu_worker_need(be, cut_worker(&mem, NULL, group, r->lin_k_dim, r->lin_v_dim), e) : rc;
}
