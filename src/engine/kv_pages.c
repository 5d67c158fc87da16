/* KV pages: which are free, and how many sequences share each.
 *
 * Owned by the scheduler, engine thread only, so there is no lock. A page is the unit of memory for the attention layers of page_size
 * tokens; a sequence's page table is a plain array of page numbers, and choices that share a prompt name the same pages. Pressure is not
 * handled here: taking a page from an empty list answers -1, and the scheduler decides whom to preempt, because only it knows who is
 * youngest and who is parked.
 *
 * Refused: a bitmap (finding a free page would be a scan), and handing out runs of neighbouring pages (the attention kernels gain nothing
 * from it and fragmentation would come back). */
#include "engine/kv_pages.h"

#include "base/mem.h"

#include <assert.h>

int sh_pages_init(sh_pages *p, int32_t n, sh_error *e) {
  *p = (sh_pages){.n = n, .n_free = n};
  p->free = sh_calloc((size_t)n, sizeof *p->free);
  p->refs = sh_calloc((size_t)n, sizeof *p->refs);
  p->mark = sh_calloc((size_t)n, sizeof *p->mark);
  if (!p->free || !p->refs || !p->mark) {
    sh_pages_free(p);
    return sh_fail(e, SH_ERR_NOMEM, "no memory for the table of %d KV pages", (int)n);
  }
  for (int32_t i = 0; i < n; i++) p->free[i] = n - 1 - i; /* page 0 is taken first: low pages are the ones whose memory gets touched */
  return 0;
}

void sh_pages_free(sh_pages *p) {
  sh_free(p->free);
  sh_free(p->refs);
  sh_free(p->mark);
  *p = (sh_pages){0};
}

int32_t sh_pages_take(sh_pages *p) {
  if (p->n_free == 0) return -1;
  int32_t page = p->free[--p->n_free];
  assert(p->refs[page] == 0);
  p->refs[page] = 1;
  return page;
}

void sh_pages_ref(sh_pages *p, int32_t page) {
  assert(page >= 0 && page < p->n && p->refs[page] > 0);
  p->refs[page]++;
}

void sh_pages_unref(sh_pages *p, int32_t page) {
  assert(page >= 0 && page < p->n && p->refs[page] > 0);
  if (--p->refs[page] == 0) p->free[p->n_free++] = page;
}

bool sh_pages_check(sh_pages *p) {
  if (p->n_free < 0 || p->n_free > p->n) return false;
  int32_t unused = 0;
  for (int32_t i = 0; i < p->n; i++) {
    if (p->refs[i] < 0) return false;
    unused += p->refs[i] == 0;
    p->mark[i] = false;
  }
  if (unused != p->n_free) return false;
  for (int32_t i = 0; i < p->n_free; i++) {
    int32_t page = p->free[i];
    if (page < 0 || page >= p->n || p->refs[page] != 0 || p->mark[page]) return false;
    p->mark[page] = true;
  }
  return true;
}
