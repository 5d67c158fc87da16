/* Reading mapped files ahead of their use: several threads bring spans of maps into memory in large pieces, in the order of the file, and
 * enter them into the page tables, so that the first pass computes in place of waiting for one page fault after the other.
 *
 * Use: sh_prefetch_start, other work, sh_prefetch_wait, sh_prefetch_free. One thread owns it. */
#ifndef SH_BASE_PREFETCH_H
#define SH_BASE_PREFETCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sh_span {
  const uint8_t *p;
  size_t n;
} sh_span;

typedef struct sh_prefetch sh_prefetch;

typedef struct sh_prefetch_opts {
  const char *what;  /* for the log: "weights"; a literal */
  size_t spare;      /* bytes of memory that will be needed beside the spans */
  int64_t available; /* bytes of memory; 0: what sh_memory_available says */
  int threads;       /* 0: SH_PREFETCH_THREADS */
  bool by_touch;     /* tests: as on a kernel before 5.14, which has no MADV_POPULATE_READ */
} sh_prefetch_opts;

enum { SH_PREFETCH_THREADS = 4 };

/* Begins to read. The spans lie in maps that stay until sh_prefetch_free; the list is copied, in any order, and may overlap. More than the
 * available memory is not read at all, which would only drive out its own pages: that is one line in the log, and *out is NULL, as it is
 * for nothing to read. SH_ERR_NOMEM. Caller frees with sh_prefetch_free. */
int sh_prefetch_start(sh_prefetch **out, const sh_span *spans, size_t n, const sh_prefetch_opts *o, sh_error *e);
/* Until all is in memory; accepts NULL. What takes longer than a second is told in the log, with its rate. SH_ERR_IO names the file that
 * shrank or cannot be read. */
int sh_prefetch_wait(sh_prefetch *p, sh_error *e);
void sh_prefetch_free(sh_prefetch *p);          /* accepts NULL; stops the threads */
size_t sh_prefetch_bytes(const sh_prefetch *p); /* in memory by now; 0 for NULL */

#endif
