/* One side of an evaluation. One thread.
 *
 * The model is driven as `sheng logits` does it, without the engine: what is measured is the forward pass, with no masks and no cache of
 * prefixes in between. A sequence's pages are fixed, [seq * pages_per_seq, (seq + 1) * pages_per_seq), and its slot is its number; the
 * caches are maps that cost what is written to them. Greedy continuations of several prompts are one batch, because a step over 16
 * sequences costs little more than over one, and a row's bits do not depend on the others. */
#include "quant/eval_model.h"

#include "base/log.h"
#include <string.h>

enum { MIN_CHUNK = SH_EVAL_GROUP, MAX_CHUNK = 256, CHUNK_FLOATS = 1 << 24 };

/* ---- What it takes ---- */

int sh_eval_chunk(int vocab_size) {
  int chunk = CHUNK_FLOATS / vocab_size;
  return chunk < MIN_CHUNK ? MIN_CHUNK : chunk > MAX_CHUNK ? MAX_CHUNK : chunk;
}

int64_t sh_eval_base_bytes(const sh_model *m) {
  enum { PROGRAM = 16 << 20, TOKEN = 400 }; /* measured */
  return PROGRAM + (int64_t)sh_model_config(m)->vocab_size * TOKEN;
}

int64_t sh_eval_pair_bytes(const sh_model *m, int seq_len) {
  enum { PROMPTS = 4, PROMPT = 128 }; /* tokens, with the answer */
  const sh_config *c = sh_model_config(m);
  int chunk = sh_eval_chunk(c->vocab_size);
  int64_t row = c->vocab_size + (int64_t)c->hidden * (c->n_layers + 1);
  int64_t side = (int64_t)sh_model_scratch_bytes(m, chunk, chunk) + chunk * row * 4 + PROMPTS * (int64_t)sh_model_state_bytes(m) +
                 (seq_len + (PROMPTS - 1) * PROMPT) * (int64_t)sh_model_kv_bytes_per_token(m, SH_KV_F32);
  return 2 * (side + sh_eval_base_bytes(m));
}

static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory for an evaluation; use a shorter --seq-len"); }

int sh_eval_side_open(sh_eval_side *s, const char *path, const sh_eval_opts *o, bool exact, sh_error *e) {
  const sh_backend_opts bo = {.threads = o->threads, .cpu = o->cpu};
  sh_repack_opts repack = {.panels = !exact, .cache_dir = o->cache_dir, .threads = o->threads};
  size_t n;
  bool as_asked = exact == o->exact; /* else the options of the form are of the other side, which computes in default mode */
  int rc = sh_head_parse(as_asked ? o->head : NULL, exact, &repack.head, e);
  if (rc == 0) rc = sh_kv_parse(as_asked ? o->kv_cache_dtype : NULL, exact, &s->kv_type, e);
  if (rc == 0) rc = sh_ckpt_open(&s->ckpt, path, 0, e);
  if (rc == 0) rc = sh_backend_cpu_new(&s->be, &bo, e);
  if (rc == 0) rc = sh_model_open(&s->m, s->ckpt, s->be, &repack, e);
  if (rc < 0) return rc;
  s->cfg = sh_model_config(s->m);
  if (sh_ckpt_is_gguf(s->ckpt) || sh_ckpt_tokenizer_json(s->ckpt, &n)) rc = sh_tok_open(&s->tok, s->ckpt, e);
  const char *template = rc == 0 ? sh_ckpt_chat_template(s->ckpt, &n) : NULL;
  if (template) rc = sh_chat_open(&s->chat, template, n, e);
  return rc;
}

static int reserve_hidden(sh_eval_side *s, sh_error *e) {
  size_t each = (size_t)s->chunk * (size_t)s->cfg->hidden, n = (size_t)s->cfg->n_layers + 1;
  s->hidden = sh_calloc(n, sizeof *s->hidden);
  s->private_hidden = sh_calloc(n * each, sizeof(float));
  if (!s->hidden || !s->private_hidden) return no_memory(e);
  for (size_t i = 0; i < n; i++) s->hidden[i] = s->private_hidden + i * each;
  return 0;
}

int sh_eval_side_reserve(sh_eval_side *s, int context, int chunk, bool hidden, sh_error *e) {
  if (s->cfg->max_position > 0 && context > s->cfg->max_position)
    return sh_fail(e, SH_ERR_LIMIT, "%s is made for at most %d tokens, %d are wanted; use a shorter --seq-len or shorter tasks",
                   sh_ckpt_path(s->ckpt), s->cfg->max_position, context);
  s->context = context;
  s->chunk = chunk;
  s->pages_per_seq = (context - 1) / SH_EVAL_PAGE + 1;
  int n_pages = SH_EVAL_GROUP * s->pages_per_seq;
  const sh_model_sizes sizes = {.page_size = SH_EVAL_PAGE,
                                .n_pages = n_pages,
                                .n_slots = SH_EVAL_GROUP,
                                .kv_type = s->kv_type,
                                .max_tokens = chunk,
                                .max_seqs = SH_EVAL_GROUP,
                                .max_out = chunk,
                                .max_context = context};
  s->pages = sh_calloc((size_t)n_pages, sizeof *s->pages);
  s->rows = sh_calloc((size_t)chunk, sizeof *s->rows);
  s->logits = sh_calloc((size_t)chunk * (size_t)s->cfg->vocab_size, sizeof *s->logits);
  if (!s->pages || !s->rows || !s->logits) return no_memory(e);
  for (int i = 0; i < n_pages; i++) s->pages[i] = i;
  for (int i = 0; i < chunk; i++) s->rows[i] = i;
  int rc = hidden ? reserve_hidden(s, e) : 0;
  if (rc == 0) rc = sh_model_reserve(s->m, &sizes, e);
  if (rc == 0) rc = sh_model_read_ahead(s->m, e);
  return rc == 0 ? sh_model_read_wait(s->m, e) : rc;
}

void sh_eval_side_close(sh_eval_side *s) {
  sh_model_free(s->m);
  if (s->be) s->be->ops->free(s->be);
  sh_chat_free(s->chat);
  sh_tok_free(s->tok);
  sh_ckpt_close(s->ckpt);
  sh_free(s->pages);
  sh_free(s->rows);
  sh_free(s->logits);
  sh_free(s->hidden);
  sh_free(s->private_hidden);
  *s = (sh_eval_side){0};
}

/* ---- Steps ---- */

static int32_t *table_of(sh_eval_side *s, int seq) { return s->pages + (size_t)seq * (size_t)s->pages_per_seq; }

static int forward(sh_eval_side *s, const sh_batch *b, sh_error *e) {
  if (s->stop && *s->stop) return sh_fail(e, SH_ERR_CANCELLED, "stopped");
  int rc = sh_model_forward_hidden(s->m, b, s->logits, s->hidden, e);
  if (rc == 0 && s->fed) s->fed(s->ctx, b->n_tokens);
  return rc;
}

int sh_eval_feed(sh_eval_side *s, int seq, int pos, const int32_t *ids, int count, int n_out, sh_error *e) {
  const sh_seq one = {.row = 0, .count = count, .pos = pos, .slot = seq, .pages = table_of(s, seq)};
  const sh_batch b = {
      .n_seqs = 1, .seqs = &one, .n_tokens = count, .ids = ids, .n_out = n_out, .out_rows = n_out == 1 ? s->rows + count - 1 : s->rows};
  int rc = pos == 0 ? sh_model_slot_zero(s->m, seq, e) : 0;
  return rc == 0 ? forward(s, &b, e) : rc;
}

/* A prompt in chunks; logits[0] is the last row's. */
static int feed_prompt(sh_eval_side *s, int seq, const int32_t *ids, int n, sh_error *e) {
  for (int pos = 0, rc; pos < n; pos += s->chunk) {
    int count = n - pos < s->chunk ? n - pos : s->chunk;
    if ((rc = sh_eval_feed(s, seq, pos, ids + pos, count, pos + count == n ? 1 : 0, e)) < 0) return rc;
  }
  return 0;
}

/* ---- Greedy continuations ---- */

static bool take(sh_eval_gen *g, int32_t id, const int32_t *ends, int n_ends) {
  for (int i = 0; i < n_ends; i++)
    if (ends[i] == id) g->ended = true;
  if (!g->ended) g->out[g->n_out++] = id;
  return !g->ended && g->n_out < g->max_new;
}

static int generate_group(sh_eval_side *s, sh_eval_gen *jobs, int n, int vocab, const int32_t *ends, int n_ends, sh_error *e) {
  int active[SH_EVAL_GROUP], n_active = 0, rc;
  sh_seq seqs[SH_EVAL_GROUP];
  int32_t ids[SH_EVAL_GROUP];
  size_t V = (size_t)s->cfg->vocab_size;
  for (int i = 0; i < n; i++) {
    jobs[i].n_out = 0;
    jobs[i].ended = false;
    if (jobs[i].max_new < 1) continue;
    if ((rc = feed_prompt(s, i, jobs[i].prompt, jobs[i].n_prompt, e)) < 0) return rc;
    if (take(&jobs[i], sh_eval_argmax(s->logits, vocab), ends, n_ends)) active[n_active++] = i;
  }
  while (n_active > 0) {
    for (int k = 0; k < n_active; k++) {
      const sh_eval_gen *g = &jobs[active[k]];
      ids[k] = g->out[g->n_out - 1];
      seqs[k] = (sh_seq){.row = k, .count = 1, .pos = g->n_prompt + g->n_out - 1, .slot = active[k], .pages = table_of(s, active[k])};
    }
    const sh_batch b = {.n_seqs = n_active, .seqs = seqs, .n_tokens = n_active, .ids = ids, .n_out = n_active, .out_rows = s->rows};
    if ((rc = forward(s, &b, e)) < 0) return rc;
    int left = 0;
    for (int k = 0; k < n_active; k++)
      if (take(&jobs[active[k]], sh_eval_argmax(s->logits + (size_t)k * V, vocab), ends, n_ends)) active[left++] = active[k];
    n_active = left;
  }
  return 0;
}

int sh_eval_generate(sh_eval_side *s, sh_eval_gen *jobs, int n, int vocab, const int32_t *ends, int n_ends, sh_error *e) {
  int group = s->chunk < SH_EVAL_GROUP ? s->chunk : SH_EVAL_GROUP;
  for (int i = 0; i < n; i += group) {
    int rc = generate_group(s, jobs + i, n - i < group ? n - i : group, vocab, ends, n_ends, e);
    if (rc < 0) return rc;
  }
  return 0;
}

/* ---- Choices ---- */

/* Continues sequence 0, which stands at n_prompt, as sequence 1: full pages are shared, a page that is begun is copied. */
static int fork_prompt(sh_eval_side *s, int n_prompt, sh_error *e) {
  int32_t *from = table_of(s, 0), *to = table_of(s, 1);
  int full = n_prompt / SH_EVAL_PAGE;
  for (int i = 0; i < full; i++) to[i] = from[i];
  int rc = sh_model_slot_copy(s->m, 1, 0, e);
  return rc == 0 && n_prompt % SH_EVAL_PAGE ? sh_model_page_copy(s->m, to[full], from[full], e) : rc;
}

static void unfork(sh_eval_side *s) {
  for (int i = 0; i < s->pages_per_seq; i++) table_of(s, 1)[i] = s->pages_per_seq + i;
}

static int score_choice(sh_eval_side *s, int n_prompt, const int32_t *ids, int n, int vocab, double *sum, sh_error *e) {
  size_t V = (size_t)s->cfg->vocab_size;
  int rc = n > 1 ? fork_prompt(s, n_prompt, e) : 0;
  for (int at = 0; rc == 0 && at < n - 1;) { /* the last token is predicted, not fed */
    int count = n - 1 - at < s->chunk ? n - 1 - at : s->chunk;
    rc = sh_eval_feed(s, 1, n_prompt + at, ids + at, count, count, e);
    for (int i = 0; rc == 0 && i < count; i++) *sum += sh_eval_log_prob(s->logits + (size_t)i * V, vocab, ids[at + i + 1]);
    at += count;
  }
  unfork(s);
  return rc;
}

int sh_eval_choices(sh_eval_side *s, const int32_t *prompt, int n_prompt, int32_t *const *ids, const int *n_ids, int n, int vocab,
                    double *sum, sh_error *e) {
  int rc = feed_prompt(s, 0, prompt, n_prompt, e);
  for (int i = 0; rc == 0 && i < n; i++) sum[i] = sh_eval_log_prob(s->logits, vocab, ids[i][0]); /* before the logits are overwritten */
  for (int i = 0; rc == 0 && i < n; i++) rc = score_choice(s, n_prompt, ids[i], n_ids[i], vocab, &sum[i], e);
  return rc;
}
