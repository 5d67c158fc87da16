/* The event ring.
 *
 * Bytes, not an array of events: a token's text is 1 to 5 bytes as a rule and 500 in the worst case, so slots for the worst case would
 * waste a megabyte per request. Records wrap around the end of the buffer and are copied out on reading, so the room is exact and the
 * reader's event stays valid while the writer goes on. Nothing is ever dropped: the scheduler computes the room a step may need before it
 * takes a sequence into the batch. */
#include "engine/ring.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

int sh_ring_init(sh_ring *r, size_t cap, sh_error *e) {
  *r = (sh_ring){.cap = cap, .p = sh_malloc(cap)};
  return r->p ? 0 : sh_fail(e, SH_ERR_NOMEM, "no memory for a request's event queue of %zu bytes", cap);
}

void sh_ring_free(sh_ring *r) {
  sh_free(r->p);
  *r = (sh_ring){0};
}

size_t sh_ring_room(const sh_ring *r) { return r->cap - r->used; }

size_t sh_rec_bytes(size_t n_top, size_t text_len, size_t error_len) {
  return sizeof(sh_rec) + n_top * sizeof(sh_logprob) + text_len + error_len;
}

static void put(sh_ring *r, const void *p, size_t n) {
  if (n == 0) return;
  size_t at = (r->head + r->used) % r->cap, first = n < r->cap - at ? n : r->cap - at;
  memcpy(r->p + at, p, first);
  memcpy(r->p, (const unsigned char *)p + first, n - first);
  r->used += n;
}

static void get(sh_ring *r, void *p, size_t n) {
  if (n == 0) return;
  size_t first = n < r->cap - r->head ? n : r->cap - r->head;
  memcpy(p, r->p + r->head, first);
  memcpy((unsigned char *)p + first, r->p, n - first);
  r->head = (r->head + n) % r->cap;
  r->used -= n;
}

void sh_ring_push(sh_ring *r, const sh_rec *rec, const sh_rec_body *body) {
  static const sh_rec_body nothing;
  if (!body) body = &nothing;
  sh_rec h = *rec;
  h.n_top = (uint32_t)body->n_top;
  h.text_len = (uint32_t)(body->text_len[0] + body->text_len[1]);
  h.error_len = body->error ? (uint32_t)strlen(body->error) : 0;
  assert(sh_rec_bytes(h.n_top, h.text_len, h.error_len) <= sh_ring_room(r));
  put(r, &h, sizeof h);
  put(r, body->top, h.n_top * sizeof *body->top);
  put(r, body->text[0], body->text_len[0]);
  put(r, body->text[1], body->text_len[1]);
  put(r, body->error, h.error_len);
}

bool sh_ring_pop(sh_ring *r, unsigned char *out) {
  if (r->used == 0) return false;
  sh_rec h;
  get(r, &h, sizeof h);
  memcpy(out, &h, sizeof h);
  out += sizeof h;
  get(r, out, h.n_top * sizeof(sh_logprob));
  out += h.n_top * sizeof(sh_logprob);
  get(r, out, h.text_len);
  out[h.text_len] = '\0';
  out += h.text_len + 1;
  get(r, out, h.error_len);
  out[h.error_len] = '\0';
  return true;
}
