/* Paged attention of the CPU backend.
 *
 * Three passes on the pool: norm, rotation and storing of k and v by rows; attention by tiles of queries; and, for long decodes, a merge. A
 * tile is up to SH_ATTN_QUERIES queries: consecutive tokens of a sequence and the heads that share one key head, so a segment of keys is
 * read and converted once for all of them. A query's path is fixed by its position alone: segments of 64 keys, merged one after the other
 * inside spans of 1024 positions, spans merged in order. Few long sequences would leave workers idle, so the spans of a tile may be
 * separate items whose partial results a last pass merges in the same order: split or not, the bits are the same. Splitting by the number
 * of threads would need less memory and change the bits with it. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { PREP_ROWS = 4, SPLIT_BYTES_MAX = 32 << 20 };

typedef struct attn_tile {
  int seq, first, n_tok; /* tokens [first, first + n_tok) of the step's share of sequence seq */
} attn_tile;

typedef struct attn_job {
  const sh_cpu *be;
  const sh_cache *c;
  int layer;
  const sh_attn *p;
  const sh_batch *b;
  sh_tensor *q, *k, *out;
  const sh_tensor *v;
  int *row_seq; /* [n_tokens] sequence of a row */
  attn_tile *tiles;
  int n_tiles;
  int heads;      /* of a tile: query heads of one key head, or a part of them when they are over SH_ATTN_QUERIES */
  int parts;      /* parts of a key head's query heads */
  int tile_toks;  /* most tokens of a tile */
  int n_spans;    /* most spans of any tile */
  float *partial; /* split: [item][span][state_floats] */
} attn_job;

/* Running state of a tile: maxima, sums, accumulators. */
typedef struct attn_state {
  float *m, *l, *acc; /* [SH_ATTN_QUERIES], [SH_ATTN_QUERIES], [SH_ATTN_QUERIES, stride] */
} attn_state;

static int min_int(int a, int b) { return a < b ? a : b; }

static size_t state_floats(int head_dim, int queries) { return (size_t)queries * (2 + (size_t)sh_attn_stride(head_dim)); }

static attn_state state_at(float *p, int queries) { return (attn_state){.m = p, .l = p + queries, .acc = p + 2 * queries}; }

static void state_clear(attn_state s, int queries, int head_dim) {
  for (int i = 0; i < queries; i++) s.m[i] = -INFINITY, s.l[i] = 0;
  memset(s.acc, 0, (size_t)queries * (size_t)sh_attn_stride(head_dim) * sizeof *s.acc);
}

/* --- Rotation table: sin and cos in double, so that a position of a million is as exact as position 1. */

static void rope_item(void *ctx, int item, int worker) {
  (void)worker;
  sh_cpu_rope *r = ctx;
  for (int t = item * 64; t < min_int(r->n, (item + 1) * 64); t++) {
    for (int i = 0; i < r->half; i++) {
      double angle = (double)r->pos[t] * r->inv_freq[i];
      r->cs[(size_t)t * (size_t)r->half + (size_t)i] = (float)(cos(angle) * (double)r->scale);
      r->sn[(size_t)t * (size_t)r->half + (size_t)i] = (float)(sin(angle) * (double)r->scale);
    }
  }
}

static int rope_fill(sh_cpu *be, const sh_attn *p, const sh_batch *b, sh_error *e) {
  int half = p->rotary_dim / 2, rc = half ? sh_cpu_rope_need(be, b->n_tokens, half, e) : 0;
  if (rc < 0 || half == 0) return rc;
  sh_cpu_rope *r = &be->rope;
  bool same = r->n == b->n_tokens && r->half == half && r->scale == p->rope_scale &&
              !memcmp(r->inv_freq, p->inv_freq, (size_t)half * sizeof(double));
  for (int s = 0; s < b->n_seqs; s++) {
    const sh_seq *q = &b->seqs[s];
    for (int i = 0; i < q->count; i++) {
      same = same && r->pos[q->row + i] == q->pos + i;
      r->pos[q->row + i] = q->pos + i;
    }
  }
  if (same) return 0;
  r->n = b->n_tokens;
  r->half = half;
  r->scale = p->rope_scale;
  memcpy(r->inv_freq, p->inv_freq, (size_t)half * sizeof(double));
  sh_pool_run(be->pool, rope_item, r, (r->n + 63) / 64);
  return 0;
}

/* --- Pass 1: norm and rotation of q and k, storing of k and v. */

static void head_prepare(const attn_job *j, float *x, const sh_tensor *gain, int row) {
  const sh_kernels *k = &j->be->k;
  const sh_cpu_rope *r = &j->be->rope;
  int half = j->p->rotary_dim / 2;
  if (gain) k->rmsnorm(x, gain->p, j->p->eps, j->p->head_dim, x);
  if (half) k->rope(x, half, j->p->rope_interleaved, r->cs + (size_t)row * (size_t)half, r->sn + (size_t)row * (size_t)half);
}

static void kv_store(const attn_job *j, const float *x, uint8_t *dst) {
  switch (j->c->spec.kv_type) {
  case SH_KV_F32: memcpy(dst, x, (size_t)j->p->head_dim * sizeof *x); return;
  case SH_KV_BF16: j->be->k.to_bf16(x, j->p->head_dim, dst); return;
  case SH_KV_I8: j->be->k.to_kv8(x, j->p->head_dim, dst); return;
  }
}

static void prepare_item(void *ctx, int item, int worker) {
  (void)worker;
  attn_job *j = ctx;
  const sh_attn *p = j->p;
  int d = p->head_dim, q_step = d * (p->gated ? 2 : 1);
  for (int row = item * PREP_ROWS; row < min_int(j->b->n_tokens, (item + 1) * PREP_ROWS); row++) {
    const sh_seq *s = &j->b->seqs[j->row_seq[row]];
    int pos = s->pos + row - s->row;
    for (int h = 0; h < p->n_heads; h++) head_prepare(j, j->q->p + row * j->q->cols + h * q_step, p->q_gain, row);
    for (int h = 0; h < p->n_kv_heads; h++) {
      float *k = j->k->p + row * j->k->cols + h * d;
      head_prepare(j, k, p->k_gain, row);
      kv_store(j, k, sh_cpu_kv_row(j->c, s->pages, j->layer, h, pos, false));
      kv_store(j, j->v->p + row * j->v->cols + h * d, sh_cpu_kv_row(j->c, s->pages, j->layer, h, pos, true));
    }
  }
}

/* --- Pass 2: tiles. An item is a tile of one key head, or one span of it. */

typedef struct tile_place {
  const attn_tile *t;
  const sh_seq *s;
  int kv_head, head, n_heads; /* key head; first query head and how many */
  int last;                   /* position of the tile's last token */
} tile_place;

/* Items run from the last tile on: later tiles see more keys, and the longest work should start first. */
static tile_place place_of(const attn_job *j, int item) {
  int per_tile = j->p->n_kv_heads * j->parts, group = j->p->n_heads / j->p->n_kv_heads;
  int part = item % j->parts, kv = item / j->parts % j->p->n_kv_heads;
  const attn_tile *t = &j->tiles[j->n_tiles - 1 - item / per_tile];
  const sh_seq *s = &j->b->seqs[t->seq];
  return (tile_place){.t = t,
                      .s = s,
                      .kv_head = kv,
                      .head = kv * group + part * j->heads,
                      .n_heads = min_int(j->heads, group - part * j->heads),
                      .last = s->pos + t->first + t->n_tok - 1};
}

/* Worker memory of an item. */
typedef struct tile_mem {
  float *q, *scratch, *span, *total;
} tile_mem;

static size_t cut_worker(tile_mem *m, uint8_t *base, int head_dim) {
  sh_cut c = {.p = base};
  m->q = sh_cut_take(&c, sh_attn_pack_floats(head_dim), sizeof(float));
  m->scratch = sh_cut_take(&c, sh_attn_scratch_floats(head_dim), sizeof(float));
  m->span = sh_cut_take(&c, state_floats(head_dim, SH_ATTN_QUERIES), sizeof(float));
  m->total = sh_cut_take(&c, state_floats(head_dim, SH_ATTN_QUERIES), sizeof(float));
  return c.used;
}

static void pack_queries(const attn_job *j, const tile_place *at, float *out) {
  const float *q[SH_ATTN_QUERIES];
  int n = 0, step = j->p->head_dim * (j->p->gated ? 2 : 1);
  for (int t = 0; t < at->t->n_tok; t++) {
    for (int h = 0; h < at->n_heads; h++) q[n++] = j->q->p + (at->s->row + at->t->first + t) * j->q->cols + (at->head + h) * step;
  }
  j->be->k.attn_pack(q, n, j->p->head_dim, out);
}

/* Rows of the keys or values from position p0 on, as many as the segment holds up to `last`. Returns how many. */
static int segment_rows(const attn_job *j, const tile_place *at, int p0, bool is_v, const uint8_t **rows) {
  int n = min_int(SH_SEG, at->last + 1 - p0);
  for (int i = 0; i < n; i++) rows[i] = sh_cpu_kv_row(j->c, at->s->pages, j->layer, at->kv_head, p0 + i, is_v);
  return n;
}

static void run_span(const attn_job *j, const tile_place *at, const tile_mem *mem, int span, attn_state st) {
  const uint8_t *keys[2][SH_SEG], *v[SH_SEG], **k = keys[0], **next = keys[1];
  int limit[SH_ATTN_QUERIES], first_pos = at->s->pos + at->t->first;
  state_clear(st, at->t->n_tok * at->n_heads, j->p->head_dim);
  int end = min_int((span + 1) * SH_SPAN, at->last + 1), n_next = 0;
  for (int p0 = span * SH_SPAN; p0 < end; p0 += SH_SEG) {
    int n = n_next ? n_next : segment_rows(j, at, p0, false, k);
    segment_rows(j, at, p0, true, v);
    n_next = p0 + SH_SEG < end ? segment_rows(j, at, p0 + SH_SEG, false, next) : 0;
    for (int t = 0; t < at->t->n_tok; t++) {
      int seen = first_pos + t + 1 - p0;
      limit[t] = seen < 0 ? 0 : min_int(seen, n);
    }
    j->be->k.attn_segment(&(sh_attn_seg){
        .n_tok = at->t->n_tok,
        .group = at->n_heads,
        .head_dim = j->p->head_dim,
        .scale = j->p->scale,
        .q = mem->q,
        .kv = j->c->spec.kv_type,
        .n_pos = n,
        .k = k,
        .v = v,
        .next = next,
        .n_next = n_next,
        .limit = limit,
        .m = st.m,
        .l = st.l,
        .acc = st.acc,
        .scratch = mem->scratch,
    });
    const uint8_t **done = k;
    k = next;
    next = done;
  }
}

static void finish_tile(const attn_job *j, const tile_place *at, attn_state st) {
  int d = j->p->head_dim, stride = sh_attn_stride(d), i = 0;
  for (int t = 0; t < at->t->n_tok; t++) {
    int64_t row = at->s->row + at->t->first + t;
    for (int h = at->head; h < at->head + at->n_heads; h++, i++) {
      float *y = j->out->p + row * j->out->cols + h * d;
      j->be->k.attn_finish(d, st.l[i], st.acc + i * stride, y);
      if (j->p->gated) j->be->k.sigmoid_mul(j->q->p + row * j->q->cols + (2 * h + 1) * d, d, y);
    }
  }
}

static void tile_item(void *ctx, int item, int worker) {
  attn_job *j = ctx;
  tile_place at = place_of(j, item);
  int d = j->p->head_dim, n_q = at.t->n_tok * at.n_heads;
  tile_mem mem;
  cut_worker(&mem, j->be->scratch.worker[worker], d);
  attn_state span = state_at(mem.span, n_q), total = state_at(mem.total, n_q);
  pack_queries(j, &at, mem.q);
  state_clear(total, n_q, d);
  for (int s = 0; s <= at.last / SH_SPAN; s++) {
    run_span(j, &at, &mem, s, span);
    j->be->k.attn_merge(n_q, d, total.m, total.l, total.acc, span.m, span.l, span.acc);
  }
  finish_tile(j, &at, total);
}

static attn_state partial_state(const attn_job *j, int item, int span, int n_q) {
  size_t floats = state_floats(j->p->head_dim, j->tile_toks * j->heads);
  return state_at(j->partial + ((size_t)item * (size_t)j->n_spans + (size_t)span) * floats, n_q);
}

static void span_item(void *ctx, int item, int worker) {
  attn_job *j = ctx;
  int tile = item / j->n_spans, span = item % j->n_spans;
  tile_place at = place_of(j, tile);
  if (span > at.last / SH_SPAN) return;
  tile_mem mem;
  cut_worker(&mem, j->be->scratch.worker[worker], j->p->head_dim);
  pack_queries(j, &at, mem.q);
  run_span(j, &at, &mem, span, partial_state(j, tile, span, at.t->n_tok * at.n_heads));
}

/* --- Pass 3, after a split. */

static void merge_item(void *ctx, int item, int worker) {
  attn_job *j = ctx;
  tile_place at = place_of(j, item);
  int d = j->p->head_dim, n_q = at.t->n_tok * at.n_heads;
  tile_mem mem;
  cut_worker(&mem, j->be->scratch.worker[worker], d);
  attn_state total = state_at(mem.total, n_q);
  state_clear(total, n_q, d);
  for (int s = 0; s <= at.last / SH_SPAN; s++) {
    attn_state st = partial_state(j, item, s, n_q);
    j->be->k.attn_merge(n_q, d, total.m, total.l, total.acc, st.m, st.l, st.acc);
  }
  finish_tile(j, &at, total);
}

/* --- The call. */

static int check(const sh_cache *c, int layer, const sh_attn *p, const sh_batch *b, const attn_job *j, sh_error *e) {
  const sh_cache_spec *s = &c->spec;
  if (layer < 0 || layer >= s->n_attn_layers || p->n_kv_heads != s->n_kv_heads || p->head_dim != s->head_dim ||
      p->n_heads % p->n_kv_heads || p->rotary_dim < 0 || p->rotary_dim > p->head_dim || p->rotary_dim % 2)
    return sh_fail(e, SH_ERR_INTERNAL, "attention: layer %d, %d:%d heads of %d (%d rotating) against a cache of %d layers, %d heads of %d",
                   layer, p->n_heads, p->n_kv_heads, p->head_dim, p->rotary_dim, s->n_attn_layers, s->n_kv_heads, s->head_dim);
  int64_t q_cols = (int64_t)p->n_heads * p->head_dim, kv_cols = (int64_t)p->n_kv_heads * p->head_dim;
  int rc = sh_cpu_check(j->q, b->n_tokens, q_cols * (p->gated ? 2 : 1), "attention: q", e);
  if (rc == 0) rc = sh_cpu_check(j->k, b->n_tokens, kv_cols, "attention: k", e);
  if (rc == 0) rc = sh_cpu_check(j->v, b->n_tokens, kv_cols, "attention: v", e);
  if (rc == 0) rc = sh_cpu_check(j->out, b->n_tokens, q_cols, "attention: out", e);
  return rc == 0 ? sh_cpu_check_batch(c, b, false, true, e) : rc;
}

static size_t cut_shared(attn_job *j, uint8_t *base, int n_tokens, size_t partial_floats) {
  sh_cut c = {.p = base};
  j->row_seq = sh_cut_take(&c, (size_t)n_tokens, sizeof *j->row_seq);
  j->tiles = sh_cut_take(&c, (size_t)n_tokens, sizeof *j->tiles); /* a tile has at least one token */
  j->partial = sh_cut_take(&c, partial_floats, sizeof *j->partial);
  return c.used;
}

static void make_tiles(attn_job *j) {
  j->n_tiles = 0;
  for (int s = 0; s < j->b->n_seqs; s++) {
    const sh_seq *q = &j->b->seqs[s];
    for (int i = 0; i < q->count; i++) j->row_seq[q->row + i] = s;
    for (int i = 0; i < q->count; i += j->tile_toks)
      j->tiles[j->n_tiles++] = (attn_tile){.seq = s, .first = i, .n_tok = min_int(j->tile_toks, q->count - i)};
  }
}

/* Shape of the tiles; returns the floats of partial results when the call should be split over spans, else 0. */
static size_t plan(attn_job *j) {
  int group = j->p->n_heads / j->p->n_kv_heads, longest = 1, last = 0, tiles = 0;
  j->heads = min_int(group, SH_ATTN_QUERIES);
  j->parts = (group + j->heads - 1) / j->heads;
  j->tile_toks = SH_ATTN_QUERIES / j->heads;
  for (int s = 0; s < j->b->n_seqs; s++) {
    const sh_seq *q = &j->b->seqs[s];
    if (q->count > longest) longest = q->count;
    if (q->pos + q->count - 1 > last) last = q->pos + q->count - 1;
  }
  j->tile_toks = min_int(j->tile_toks, longest);
  for (int s = 0; s < j->b->n_seqs; s++) tiles += (j->b->seqs[s].count + j->tile_toks - 1) / j->tile_toks;
  j->n_spans = last / SH_SPAN + 1;
  int64_t items = (int64_t)tiles * j->p->n_kv_heads * j->parts;
  if (j->be->n_workers == 1 || j->n_spans == 1 || items >= 4 * j->be->n_workers) return 0;
  size_t floats = (size_t)items * (size_t)j->n_spans * state_floats(j->p->head_dim, j->tile_toks * j->heads);
  return floats * sizeof(float) <= j->be->split_bytes ? floats : 0;
}

int sh_cpu_attention(sh_backend *backend, sh_cache *c, int layer, const sh_attn *p, const sh_batch *b, sh_tensor *q, sh_tensor *k,
                     const sh_tensor *v, sh_tensor *out, sh_error *e) {
  sh_cpu *be = (sh_cpu *)backend;
  attn_job j = {.be = be, .c = c, .layer = layer, .p = p, .b = b, .q = q, .k = k, .v = v, .out = out};
  int rc = check(c, layer, p, b, &j, e);
  if (rc < 0 || b->n_tokens == 0) return rc;
  size_t partial = plan(&j);
  tile_mem mem;
  rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, b->n_tokens, partial), e);
  if (rc == 0) rc = sh_cpu_worker_need(be, cut_worker(&mem, NULL, p->head_dim), e);
  if (rc == 0) rc = rope_fill(be, p, b, e);
  if (rc < 0) return rc;
  cut_shared(&j, be->scratch.shared, b->n_tokens, partial);
  make_tiles(&j);
  sh_pool_run(be->pool, prepare_item, &j, (b->n_tokens + PREP_ROWS - 1) / PREP_ROWS);
  int items = j.n_tiles * p->n_kv_heads * j.parts;
  if (partial) {
    sh_pool_run(be->pool, span_item, &j, items * j.n_spans);
    sh_pool_run(be->pool, merge_item, &j, items);
  } else {
    sh_pool_run(be->pool, tile_item, &j, items);
  }
  return 0;
}

int sh_cpu_attention_reserve(sh_cpu *be, const sh_reserve *r, sh_error *e) {
  if (r->n_heads == 0) return 0;
  /* room to split four sequences of the full context; beyond that there is work enough for the workers, or memory is dearer than the idle
   * ones */
  size_t spans = (size_t)(r->max_context / SH_SPAN + 1), one = spans * state_floats(r->head_dim, r->n_heads) * sizeof(float);
  be->split_bytes = be->n_workers == 1 ? 0 : one < SPLIT_BYTES_MAX / 4 ? 4 * one : SPLIT_BYTES_MAX;
  attn_job j;
  tile_mem mem;
  int rc = sh_cpu_shared_need(be, cut_shared(&j, NULL, r->max_tokens, be->split_bytes / sizeof(float)), e);
  if (rc == 0) rc = sh_cpu_worker_need(be, cut_worker(&mem, NULL, r->head_dim), e);
  return rc == 0 ? sh_cpu_rope_need(be, r->max_tokens, r->head_dim / 2, e) : rc;
}
