/* Names to numbers: open addressing with linear probing in a table at most half full.
 *
 * Filled by the thread that opens a file and immutable afterwards, so that every thread may look up without a lock. A sorted array with
 * bisection was refused: duplicates must be noticed while filling, and an index of 200,000 expert tensors is looked up once per tensor at
 * load. */
#include "formats/nameindex.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

int sh_nameindex_init(sh_nameindex *x, size_t n) {
  memset(x, 0, sizeof *x);
  if (n > SIZE_MAX / 8 / sizeof(sh_nameslot)) return SH_ERR_NOMEM;
  size_t cap = 16;
  while (cap < 2 * n) cap *= 2;
  x->private_slots = sh_calloc(cap, sizeof *x->private_slots);
  if (!x->private_slots) return SH_ERR_NOMEM;
  x->private_cap = cap;
  return 0;
}

void sh_nameindex_free(sh_nameindex *x) {
  sh_free(x->private_slots);
  memset(x, 0, sizeof *x);
}

/* The slot of the name, or the empty one where it belongs. */
static sh_nameslot *probe(const sh_nameindex *x, const char *name, size_t len) {
  size_t i = (size_t)sh_hash(name, len, 0) & (x->private_cap - 1);
  for (;; i = (i + 1) & (x->private_cap - 1)) {
    sh_nameslot *s = &x->private_slots[i];
    if (!s->name || (s->len == len && memcmp(s->name, name, len) == 0)) return s;
  }
}

int sh_nameindex_add(sh_nameindex *x, const char *name, size_t len, int32_t value) {
  if (len > UINT32_MAX || 2 * (x->private_used + 1) > x->private_cap) return SH_ERR_INTERNAL;
  sh_nameslot *s = probe(x, name, len);
  if (s->name) return SH_ERR_FORMAT;
  *s = (sh_nameslot){name, (uint32_t)len, value};
  x->private_used++;
  return 0;
}

int32_t sh_nameindex_find(const sh_nameindex *x, const char *name, size_t len) {
  if (!x->private_cap) return -1;
  const sh_nameslot *s = probe(x, name, len);
  return s->name ? s->value : -1;
}
