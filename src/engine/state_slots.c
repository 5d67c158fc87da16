/* State slots: which are free.
 *
 * Owned by the scheduler, engine thread only. The number of slots is the number of sequences that may run at once, so this list is also the
 * engine's limit on concurrency. A slot is never zeroed here: a new sequence zeroes it, a forked choice copies its parent's, and the one
 * that does neither is a bug that the fake model of the unit tests shows as a wrong token. */
#include "engine/state_slots.h"

#include "base/mem.h"

#include <assert.h>

int sh_slots_init(sh_slots *s, int32_t n, sh_error *e) {
  *s = (sh_slots){.n = n, .n_free = n};
  s->free = sh_calloc((size_t)n, sizeof *s->free);
  s->taken = sh_calloc((size_t)n, sizeof *s->taken);
  if (!s->free || !s->taken) {
    sh_slots_free(s);
    return sh_fail(e, SH_ERR_NOMEM, "no memory for the table of %d state slots", (int)n);
  }
  for (int32_t i = 0; i < n; i++) s->free[i] = n - 1 - i;
  return 0;
}

void sh_slots_free(sh_slots *s) {
  sh_free(s->free);
  sh_free(s->taken);
  *s = (sh_slots){0};
}

int32_t sh_slots_take(sh_slots *s) {
  if (s->n_free == 0) return -1;
  int32_t slot = s->free[--s->n_free];
  assert(!s->taken[slot]);
  s->taken[slot] = true;
  return slot;
}

void sh_slots_give(sh_slots *s, int32_t slot) {
  assert(slot >= 0 && slot < s->n && s->taken[slot]);
  s->taken[slot] = false;
  s->free[s->n_free++] = slot;
}

bool sh_slots_check(const sh_slots *s) {
  if (s->n_free < 0 || s->n_free > s->n) return false;
  int32_t unused = 0;
  for (int32_t i = 0; i < s->n; i++) unused += !s->taken[i];
  if (unused != s->n_free) return false;
  for (int32_t i = 0; i < s->n_free; i++) {
    if (s->free[i] < 0 || s->free[i] >= s->n || s->taken[s->free[i]]) return false;
    for (int32_t j = 0; j < i; j++)
      if (s->free[j] == s->free[i]) return false;
  }
  return true;
}
