/* A model: opened from a checkpoint, given its caches and scratch once, then stepped.
 *
 * One thread at a time: the one that opens it, later the engine's. A step is: check the batch, embed, the layers, then norm and head for
 * the wanted rows only. The batch is checked here, before the first backend call, because kernels trust it; the check walks sequences and
 * page tables, not weights, and costs microseconds. A broken batch is a fault of the engine, hence SH_ERR_INTERNAL.
 *
 * The head runs in blocks of HEAD_ROWS rows. With a vocabulary of 248,320 a row of logits is a megabyte: scratch for every row of a long
 * prompt (prompt_logprobs, the logits tool) would be larger than the model, and 64 rows already reuse each weight often enough that reading
 * the head again costs nothing that can be measured.
 *
 * Refused: a graph object built once and replayed. A pass is some dozens of coarse calls; there is nothing to save, and the code would say
 * what to build in place of what happens. */
#include "model/pass.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_ROWS = 64 };

/* ---- Opening ---- */

static void describe(sh_model *m) {
  char cfg[192], types[64];
  snprintf(m->describe, sizeof m->describe, "%s, %s", sh_config_describe(&m->cfg, cfg, sizeof cfg),
           sh_weights_dtypes(&m->w, types, sizeof types));
}

/* Panels only for a backend that computes with them. A head that was asked for and cannot be is an error. */
static int fit_options(sh_backend *be, sh_repack_opts *o, sh_error *e) {
  bool ints = o->head == SH_HEAD_INT4 || o->head == SH_HEAD_INT6 || o->head == SH_HEAD_INT8;
  if (!o->panels || sh_backend_takes_panels(be)) return 0;
  o->panels = false;
  return ints ? sh_fail(e, SH_ERR_UNSUPPORTED, "a head of integers is not computed by the %s backend; leave --head out", be->ops->name) : 0;
}

int sh_model_open(sh_model **out, const sh_ckpt *ckpt, sh_backend *be, const sh_repack_opts *o, sh_error *e) {
  sh_repack_opts fit = o ? *o : (sh_repack_opts){0};
  *out = NULL;
  sh_model *m = sh_calloc(1, sizeof *m);
  if (!m) return sh_fail(e, SH_ERR_NOMEM, "no memory to open a model");
  m->be = be;
  int rc = fit_options(be, &fit, e);
  if (rc == 0) rc = sh_config_load(&m->cfg, ckpt, e);
  if (rc < 0) goto fail;
  m->layer = m->cfg.arch == SH_ARCH_LLAMA ? sh_llama_layer : sh_qwen35_layer;
  rc = sh_weights_bind(&m->w, &m->cfg, ckpt, &fit, e);
  if (rc < 0) goto fail;
  rc = sh_model_bind(m, e);
  if (rc < 0) goto fail;
  describe(m);
  *out = m;
  return 0;
fail:
  sh_model_free(m);
  return rc;
}

int sh_model_read_ahead(sh_model *m, sh_error *e) {
  sh_span *spans;
  size_t n;
  if (m->ahead) return 0;
  int rc = sh_weights_spans(&m->w, &spans, &n, e);
  if (rc == 0) rc = sh_prefetch_start(&m->ahead, spans, n, &(sh_prefetch_opts){.what = "weights"}, e);
  sh_free(spans);
  return rc;
}

int sh_model_read_wait(sh_model *m, sh_error *e) { return sh_prefetch_wait(m->ahead, e); }

void sh_model_free(sh_model *m) {
  if (!m) return;
  sh_prefetch_free(m->ahead);
  const sh_backend_ops *op = m->be->ops;
  if (m->cache) op->cache_free(m->be, m->cache);
  for (int i = 0; i < m->n_tensors; i++) op->tensor_free(m->be, m->tensors[i]);
  for (int i = 0; i < m->n_bound; i++) op->weight_free(m->be, m->bound[i]);
  if (m->layers)
    for (int i = 0; i < m->cfg.n_layers; i++) sh_free(m->layers[i].experts);
  sh_free(m->layers);
  sh_free(m->tensors);
  sh_free(m->bound);
  sh_free(m->slot_seen);
  sh_weights_free(&m->w);
  sh_free(m);
}

const sh_config *sh_model_config(const sh_model *m) { return &m->cfg; }
const sh_weights *sh_model_weights(const sh_model *m) { return &m->w; }
size_t sh_model_weight_bytes(const sh_model *m) { return m->w.held_bytes; }
const char *sh_model_describe(const sh_model *m) { return m->describe; }

/* ---- Sizes ---- */

static sh_cache_spec cache_spec(const sh_config *c, int page_size, int n_pages, int n_slots, sh_kv_type t) {
  return (sh_cache_spec){
      .n_attn_layers = c->n_full,
      .n_kv_heads = c->n_kv_heads,
      .head_dim = c->head_dim,
      .page_size = page_size,
      .n_pages = n_pages,
      .kv_type = t,
      .n_linear_layers = c->n_linear,
      .lin_v_heads = c->lin_v_heads,
      .lin_k_dim = c->lin_k_dim,
      .lin_v_dim = c->lin_v_dim,
      .conv_channels = sh_config_conv_channels(c),
      .conv_kernel = c->conv_kernel,
      .n_slots = n_slots,
  };
}

size_t sh_model_config_kv_bytes_per_token(const sh_config *c, sh_kv_type t) {
  sh_cache_spec s = cache_spec(c, 1, 1, 1, t);
  return sh_cache_page_bytes(&s);
}

size_t sh_model_config_state_bytes(const sh_config *c) {
  sh_cache_spec s = cache_spec(c, 1, 1, 1, SH_KV_F32);
  return sh_cache_slot_bytes(&s);
}

size_t sh_model_kv_bytes_per_token(const sh_model *m, sh_kv_type t) { return sh_model_config_kv_bytes_per_token(&m->cfg, t); }
size_t sh_model_state_bytes(const sh_model *m) { return sh_model_config_state_bytes(&m->cfg); }

/* The scratch tensors as a table, so that taking them and adding up their size cannot disagree. */
typedef struct scratch_row {
  size_t offset;
  int64_t cols;
  bool head;
} scratch_row; /* offset in sh_scratch; head: rows of the head, not of the step */
enum { SCRATCH_ROWS = 16 };

static int scratch_table(const sh_config *c, scratch_row t[SCRATCH_ROWS]) {
  int n = 0;
#define ROW(field, n_cols, is_head) t[n++] = (scratch_row){offsetof(sh_scratch, field), (n_cols), (is_head)}
  ROW(x, c->hidden, false);
  ROW(h, c->hidden, false);
  if (c->n_full > 0) {
    ROW(q, sh_config_q_rows(c), false);
    ROW(k, (int64_t)c->n_kv_heads * c->head_dim, false);
    ROW(v, (int64_t)c->n_kv_heads * c->head_dim, false);
    ROW(att, (int64_t)c->n_heads * c->head_dim, false);
  }
  if (c->n_linear > 0) {
    ROW(qkv, sh_config_conv_channels(c), false);
    ROW(z, (int64_t)c->lin_v_heads * c->lin_v_dim, false);
    ROW(lin, (int64_t)c->lin_v_heads * c->lin_v_dim, false);
    ROW(a, c->lin_v_heads, false);
    ROW(b, c->lin_v_heads, false);
  }
  if (c->ffn > 0) {
    ROW(gate, c->ffn, false);
    ROW(up, c->ffn, false);
  }
  ROW(out_x, c->hidden, true);
  ROW(out_h, c->hidden, true);
  ROW(logits, c->vocab_size, true);
#undef ROW
  return n;
}

static int head_rows(int max_out) { return max_out < HEAD_ROWS ? max_out : HEAD_ROWS; }

size_t sh_model_config_scratch_bytes(const sh_config *c, int max_tokens, int max_out) {
  scratch_row t[SCRATCH_ROWS];
  int n = scratch_table(c, t);
  size_t bytes = 0;
  for (int i = 0; i < n; i++) bytes += (size_t)t[i].cols * (size_t)(t[i].head ? head_rows(max_out) : max_tokens) * sizeof(float);
  return bytes;
}

size_t sh_model_scratch_bytes(const sh_model *m, int max_tokens, int max_out) {
  return sh_model_config_scratch_bytes(&m->cfg, max_tokens, max_out);
}

static int take_scratch(sh_model *m, sh_error *e) {
  scratch_row t[SCRATCH_ROWS];
  int n = scratch_table(&m->cfg, t);
  for (int i = 0; i < n; i++) {
    sh_tensor **at = (sh_tensor **)(void *)((char *)&m->s + t[i].offset);
    int rc = sh_model_tensor(m, t[i].head ? m->head_rows : m->sizes.max_tokens, t[i].cols, at, e);
    if (rc < 0) return rc;
  }
  return 0;
}

int sh_model_reserve(sh_model *m, const sh_model_sizes *s, sh_error *e) {
  const sh_config *c = &m->cfg;
  if (m->slot_seen) return sh_fail(e, SH_ERR_INTERNAL, "the model's caches were taken before");
  if (s->page_size < 1 || s->n_pages < 1 || s->n_slots < 1 || s->max_tokens < 1 || s->max_seqs < 1 || s->max_out < 1 || s->max_context < 1)
    return sh_fail(
        e, SH_ERR_INTERNAL,
        "sizes of a step must be at least 1: page size %d, pages %d, slots %d, tokens %d, sequences %d, logit rows %d, context %d",
        s->page_size, s->n_pages, s->n_slots, s->max_tokens, s->max_seqs, s->max_out, s->max_context);
  m->sizes = *s;
  m->head_rows = head_rows(s->max_out);
  m->slot_seen = sh_calloc((size_t)s->n_slots, sizeof *m->slot_seen);
  if (!m->slot_seen) return sh_fail(e, SH_ERR_NOMEM, "no memory for a table of %d state slots", s->n_slots);
  sh_reserve r = {
      .max_tokens = s->max_tokens,
      .max_seqs = s->max_seqs,
      .max_out = m->head_rows,
      .max_context = s->max_context,
      .n_heads = c->n_heads,
      .head_dim = c->head_dim,
      .lin_v_heads = c->lin_v_heads,
      .lin_k_dim = c->lin_k_dim,
      .lin_v_dim = c->lin_v_dim,
      .conv_channels = c->n_linear > 0 ? sh_config_conv_channels(c) : 0,
      .n_experts = c->n_experts,
      .top_k = c->experts_per_tok,
      .moe_ffn = c->moe_ffn,
      .shared_ffn = c->shared_ffn,
      .hidden = c->hidden,
  };
  sh_model_extent(m, &r);
  int rc = m->be->ops->reserve(m->be, &r, e);
  if (rc < 0) return rc;
  sh_cache_spec spec = cache_spec(c, s->page_size, s->n_pages, s->n_slots, s->kv_type);
  rc = m->be->ops->cache_new(m->be, &spec, &m->cache, e);
  if (rc == 0) rc = take_scratch(m, e);
  if (rc < 0) return rc;
  m->reserved = true;
  return 0;
}

/* ---- The check of a batch ---- */

static int check_seq(sh_model *m, const sh_seq *q, int index, int row, int n_tokens, sh_error *e) {
  const sh_model_sizes *z = &m->sizes;
  if (q->row != row || q->count < 1 || q->count > n_tokens - row)
    return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d has rows %d+%d, expected to start at %d of %d", index, q->row, q->count, row,
                   n_tokens);
  if (q->pos < 0 || q->pos > z->max_context - q->count)
    return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d has positions %d+%d, the context is %d", index, q->pos, q->count,
                   z->max_context);
  if (q->slot < 0 || q->slot >= z->n_slots)
    return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d has state slot %d of %d", index, q->slot, z->n_slots);
  if (m->slot_seen[q->slot] == m->step) return sh_fail(e, SH_ERR_INTERNAL, "batch: state slot %d belongs to two sequences", q->slot);
  m->slot_seen[q->slot] = m->step;
  if (m->cfg.n_full == 0) return 0;
  if (!q->pages) return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d has no page table", index);
  int n_pages = (q->pos + q->count - 1) / z->page_size + 1;
  for (int p = 0; p < n_pages; p++)
    if (q->pages[p] < 0 || q->pages[p] >= z->n_pages)
      return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d has page %d of %d at place %d", index, q->pages[p], z->n_pages, p);
  return 0;
}

static int check_batch(sh_model *m, const sh_batch *b, sh_error *e) {
  const sh_model_sizes *z = &m->sizes;
  if (!m->reserved) return sh_fail(e, SH_ERR_INTERNAL, "the model's caches were not taken");
  if (b->n_seqs < 1 || b->n_seqs > z->max_seqs || b->n_tokens < 1 || b->n_tokens > z->max_tokens || b->n_out < 0 || b->n_out > z->max_out)
    return sh_fail(e, SH_ERR_INTERNAL, "batch: %d sequences, %d tokens, %d logit rows; reserved are %d, %d, %d", b->n_seqs, b->n_tokens,
                   b->n_out, z->max_seqs, z->max_tokens, z->max_out);
  m->step++;
  int row = 0;
  for (int i = 0; i < b->n_seqs; i++) {
    int rc = check_seq(m, &b->seqs[i], i, row, b->n_tokens, e);
    if (rc < 0) return rc;
    row += b->seqs[i].count;
  }
  if (row != b->n_tokens) return sh_fail(e, SH_ERR_INTERNAL, "batch: the sequences hold %d rows, the batch %d", row, b->n_tokens);
  for (int i = 0; i < b->n_tokens; i++)
    if (b->ids[i] < 0 || b->ids[i] >= m->cfg.vocab_size)
      return sh_fail(e, SH_ERR_INTERNAL, "batch: row %d has id %d, the vocabulary %d", i, b->ids[i], m->cfg.vocab_size);
  for (int i = 0, last = -1; i < b->n_out; last = b->out_rows[i++])
    if (b->out_rows[i] <= last || b->out_rows[i] >= b->n_tokens)
      return sh_fail(e, SH_ERR_INTERNAL, "batch: logit row %d is row %d of %d, after row %d", i, b->out_rows[i], b->n_tokens, last);
  return 0;
}

/* ---- The step ---- */

/* logits[n_out, V] of the wanted rows of x. */
static int head(sh_model *m, const sh_batch *b, float *logits, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  sh_scratch *s = &m->s;
  for (int i = 0; i < b->n_out; i += m->head_rows) {
    int n = b->n_out - i < m->head_rows ? b->n_out - i : m->head_rows;
    int rc = op->gather(m->be, s->x, b->out_rows + i, n, s->out_x, e);
    if (rc == 0) rc = op->rmsnorm(m->be, s->out_x, m->final_norm, (float)m->cfg.rms_eps, n, s->out_h, e);
    if (rc == 0) rc = op->linear(m->be, m->head, s->out_h, n, NULL, false, s->logits, e);
    if (rc == 0) rc = op->tensor_read(m->be, s->logits, 0, n, logits + (size_t)i * (size_t)m->cfg.vocab_size, e);
    if (rc < 0) return rc;
  }
  return 0;
}

/* Copies the residual stream, or what the final norm makes of it, for one entry of hidden[]. */
static int read_hidden(sh_model *m, int level, int n, float *dst, sh_error *e) {
  if (!dst) return 0;
  if (level < m->cfg.n_layers) return m->be->ops->tensor_read(m->be, m->s.x, 0, n, dst, e);
  int rc = m->be->ops->rmsnorm(m->be, m->s.x, m->final_norm, (float)m->cfg.rms_eps, n, m->s.h, e);
  return rc < 0 ? rc : m->be->ops->tensor_read(m->be, m->s.h, 0, n, dst, e);
}

int sh_model_forward_hidden(sh_model *m, const sh_batch *b, float *logits, float **hidden, sh_error *e) {
  int n = b->n_tokens;
  int rc = check_batch(m, b, e);
  if (rc == 0) rc = m->be->ops->embed(m->be, m->embed, b->ids, n, m->s.x, e);
  for (int i = 0; rc == 0 && i < m->cfg.n_layers; i++) {
    if (hidden) rc = read_hidden(m, i, n, hidden[i], e);
    if (rc == 0) rc = m->layer(m, &m->layers[i], b, e);
  }
  if (rc == 0 && hidden) rc = read_hidden(m, m->cfg.n_layers, n, hidden[m->cfg.n_layers], e);
  if (rc < 0) return rc;
  /* The batch is borrowed for this call only: a backend that enqueues must be done with it, and a failure belongs to this step. */
  return b->n_out > 0 ? head(m, b, logits, e) : m->be->ops->sync(m->be, e);
}

int sh_model_forward(sh_model *m, const sh_batch *b, float *logits, sh_error *e) { return sh_model_forward_hidden(m, b, logits, NULL, e); }

/* ---- States and pages ---- */

static int check_index(const sh_model *m, const char *what, int i, int n, sh_error *e) {
  if (!m->reserved) return sh_fail(e, SH_ERR_INTERNAL, "the model's caches were not taken");
  return i >= 0 && i < n ? 0 : sh_fail(e, SH_ERR_INTERNAL, "%s %d of %d", what, i, n);
}

int sh_model_slot_zero(sh_model *m, int slot, sh_error *e) {
  int rc = check_index(m, "state slot", slot, m->sizes.n_slots, e);
  return rc < 0 ? rc : m->be->ops->slot_zero(m->be, m->cache, slot, e);
}

int sh_model_slot_copy(sh_model *m, int dst, int src, sh_error *e) {
  int rc = check_index(m, "state slot", dst, m->sizes.n_slots, e);
  if (rc == 0) rc = check_index(m, "state slot", src, m->sizes.n_slots, e);
  return rc < 0 ? rc : m->be->ops->slot_copy(m->be, m->cache, dst, src, e);
}

int sh_model_page_copy(sh_model *m, int dst, int src, sh_error *e) {
  int rc = check_index(m, "page", dst, m->sizes.n_pages, e);
  if (rc == 0) rc = check_index(m, "page", src, m->sizes.n_pages, e);
  return rc < 0 ? rc : m->be->ops->page_copy(m->be, m->cache, dst, src, e);
}
