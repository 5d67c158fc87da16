/* Who holds which state slot (convolution and delta-rule state of one sequence). The slots' memory is the model's. */
#ifndef SH_ENGINE_STATE_SLOTS_H
#define SH_ENGINE_STATE_SLOTS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Invariants (sh_slots_check): free[0..n_free) holds every slot with taken == false exactly once, and no other. A slot has one holder: a
 * state is advanced by every token, so unlike a page it cannot be shared, only copied. */
typedef struct sh_slots {
  int32_t n, n_free;
  int32_t *free; /* [n]: a stack */
  bool *taken;   /* [n] */
} sh_slots;

int sh_slots_init(sh_slots *s, int32_t n, sh_error *e);
void sh_slots_free(sh_slots *s);    /* accepts a zeroed struct */
int32_t sh_slots_take(sh_slots *s); /* -1: none is free. The contents are those of the last holder: zero or copy before use */
void sh_slots_give(sh_slots *s, int32_t slot);
bool sh_slots_check(const sh_slots *s);

#endif
