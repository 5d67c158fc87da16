/* Who holds which KV page: a free list and reference counts. The pages' memory is the model's. */
#ifndef SH_ENGINE_KV_PAGES_H
#define SH_ENGINE_KV_PAGES_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Invariants (sh_pages_check):
 *   free[0..n_free) holds every page with refs == 0 exactly once, and no other;
 *   refs[p] is the number of page tables that name p, so the sum over all tables equals the sum of refs, and n_free + pages with refs > 0
 * == n. A page with refs > 1 is full and never written again; only a page with refs == 1 may be appended to. */
typedef struct sh_pages {
  int32_t n, n_free;
  int32_t *free; /* [n]: a stack; the page freed last is the next taken (its memory is still warm) */
  int32_t *refs; /* [n] */
  bool *mark;    /* [n]: scratch of _check */
} sh_pages;

int sh_pages_init(sh_pages *p, int32_t n, sh_error *e);
void sh_pages_free(sh_pages *p);                /* accepts a zeroed struct */
int32_t sh_pages_take(sh_pages *p);             /* a page with one reference; -1: none is free */
void sh_pages_ref(sh_pages *p, int32_t page);   /* one more table names it */
void sh_pages_unref(sh_pages *p, int32_t page); /* at zero it is free again */
bool sh_pages_check(sh_pages *p);               /* O(n); no allocation */

#endif
