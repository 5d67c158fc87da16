/* A model for the scheduler's tests. It keeps what it is given exactly as a real one would: tokens in pages, a running hash in state slots.
 * A row's logits are a hash of the whole history read back from both, so a wrong page table, a slot used twice, a missing copy, a page
 * shared and overwritten or a token fed twice gives other tokens than fake_logits, which computes them from the plain list of ids. */
#ifndef SH_TESTS_ENGINE_FAKE_MODEL_H
#define SH_TESTS_ENGINE_FAKE_MODEL_H

#include "base/mem.h"
#include "engine/iface.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct fake_model {
  int vocab, page_size, n_pages, n_slots;
  int32_t *page; /* [n_pages, page_size]: token ids */
  uint64_t *slot;
  int fail_id; /* a batch with this id fails; -1: none */
  int nan_id;  /* a row whose last token is this id has a NaN; -1: none */
  bool allocates;
  long forwards, rows;
} fake_model;

static inline uint64_t fake_mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xFF51AFD7ED558CCDu;
  return z ^ (z >> 32);
}

/* Logits of vocab ids in [-4, 4), in steps coarse enough that some are equal. */
static inline void fake_row(uint64_t h, int vocab, float *x) {
  for (int v = 0; v < vocab; v++) x[v] = (float)(int)(fake_mix(h, (uint64_t)v) >> 54) / 128.0f - 4.0f;
}

/* What the model must answer after the history ids[0..n). */
static inline void fake_logits(const int32_t *ids, int n, int vocab, float *x) {
  uint64_t pages = 1, state = 2;
  for (int i = 0; i < n; i++) {
    pages = fake_mix(pages, (uint64_t)ids[i]);
    state = fake_mix(state, (uint64_t)ids[i] * 31 + (uint64_t)i);
  }
  fake_row(fake_mix(pages, state), vocab, x);
}

static inline int fake_forward(void *ctx, const sh_batch *b, float *logits, sh_error *e) {
  fake_model *m = ctx;
  m->forwards++;
  m->rows += b->n_tokens;
  if (m->allocates) sh_free(sh_malloc(8));
  for (int i = 0; i < b->n_tokens; i++)
    if (b->ids[i] == m->fail_id) return sh_fail(e, SH_ERR_INTERNAL, "the fake model was told to fail");
  int out = 0;
  for (int i = 0; i < b->n_seqs; i++) {
    const sh_seq *q = &b->seqs[i];
    for (int k = 0; k < q->count; k++) {
      int pos = q->pos + k, row = q->row + k;
      int32_t id = b->ids[row];
      m->page[q->pages[pos / m->page_size] * m->page_size + pos % m->page_size] = id;
      m->slot[q->slot] = fake_mix(m->slot[q->slot], (uint64_t)id * 31 + (uint64_t)pos);
      if (out == b->n_out || b->out_rows[out] != row) continue;
      uint64_t h = 1;
      for (int p = 0; p <= pos; p++) h = fake_mix(h, (uint64_t)m->page[q->pages[p / m->page_size] * m->page_size + p % m->page_size]);
      float *x = logits + (size_t)out++ * (size_t)m->vocab;
      fake_row(fake_mix(h, m->slot[q->slot]), m->vocab, x);
      if (id == m->nan_id) x[3] = NAN;
    }
  }
  return out == b->n_out ? 0 : sh_fail(e, SH_ERR_INTERNAL, "rows were asked that are not in the batch");
}

static inline int fake_slot_zero(void *ctx, int slot, sh_error *e) {
  (void)e;
  ((fake_model *)ctx)->slot[slot] = 2;
  return 0;
}

static inline int fake_slot_copy(void *ctx, int dst, int src, sh_error *e) {
  (void)e;
  fake_model *m = ctx;
  m->slot[dst] = m->slot[src];
  return 0;
}

static inline int fake_page_copy(void *ctx, int dst, int src, sh_error *e) {
  (void)e;
  fake_model *m = ctx;
  memcpy(m->page + dst * m->page_size, m->page + src * m->page_size, (size_t)m->page_size * sizeof *m->page);
  return 0;
}

static inline sh_model_iface fake_open(fake_model *m, int vocab, int page_size, int n_pages, int n_slots) {
  *m = (fake_model){.vocab = vocab, .page_size = page_size, .n_pages = n_pages, .n_slots = n_slots, .fail_id = -1, .nan_id = -1};
  m->page = sh_calloc((size_t)n_pages * (size_t)page_size, sizeof *m->page);
  m->slot = sh_calloc((size_t)n_slots, sizeof *m->slot);
  return (sh_model_iface){m, vocab, fake_forward, fake_slot_zero, fake_slot_copy, fake_page_copy};
}

static inline void fake_close(fake_model *m) {
  sh_free(m->page);
  sh_free(m->slot);
}

#endif
