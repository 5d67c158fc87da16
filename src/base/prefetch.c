/* Reading mapped files ahead of their use.
 *
 * Threads of its own, which take the pieces of the spans from a counter: adjacent pieces are under way at the same time, so the disk sees a
 * few long sequential reads. A piece is asked for as a whole (MADV_WILLNEED: the fault's own read-ahead is 128 KB on most systems) and then
 * populated (MADV_POPULATE_READ, Linux 5.14), which waits for it, maps its pages and reports a page that cannot be had as an error. An
 * older kernel gets one touch per page, at the same rate for more processor time; there such a page is a SIGBUS, and the guard of
 * base/file.c says the sentence.
 *
 * Measured on 1.5 GB in 25 files, cold, 2 cores (MB/s; dd 650 to 720): populate 1120 to 1350 with 1 to 8 threads, touching after WILLNEED
 * 1040 to 1390 at two to three times the processor time, pread into a buffer 610 to 710 with one thread and 1110 to 1240 with four, and 1.2
 * s of processor time. Refused: pread, for that and for the page faults that stay for later; mincore, to skip what is cached (for another
 * user's file it claims that everything is, and populating what is there runs at 4 to 6 GB/s). */
#include "base/prefetch.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum { MAX_THREADS = 16 };
static const size_t PIECE = 8u << 20;           /* bytes */
static const size_t GAP = 256u << 10;           /* bytes between two spans that are read rather than skipped */
static const int64_t SAY_EVERY_NS = 2000000000; /* between progress lines */
static const int64_t SAY_FIRST_NS = 1000000000; /* what is done by then is not spoken of */

struct sh_prefetch {
  sh_span *spans; /* [n_spans], whole pages, by address, apart */
  size_t *first;  /* [n_spans]: number of the span's first piece */
  size_t n_spans, n_pieces, bytes;
  const char *what;
  int64_t began;      /* ns */
  atomic_llong ended; /* ns; 0: not yet */
  bool told;
  atomic_size_t next, done; /* pieces taken; bytes */
  atomic_llong said;        /* ns */
  atomic_bool stop, by_touch;
  atomic_int error; /* 0, or the errno of the first piece that failed, whose address is: */
  _Atomic(const uint8_t *) bad;
  pthread_t threads[MAX_THREADS];
  int n_threads;
};

/* --- The spans */

static int by_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t)((const sh_span *)a)->p, y = (uintptr_t)((const sh_span *)b)->p;
  return x < y ? -1 : x > y;
}

/* Whole pages; sorted; what nearly touches in one file is one. */
static void merge(sh_prefetch *p) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
  qsort(p->spans, p->n_spans, sizeof *p->spans, by_address);
  for (size_t i = 0; i < p->n_spans; i++) {
    sh_span s = p->spans[i];
    size_t before = (uintptr_t)s.p & (page - 1);
    s.p -= before;
    s.n = (s.n + before + page - 1) & ~(page - 1);
    sh_span *last = n ? &p->spans[n - 1] : NULL;
    size_t apart = last ? (uintptr_t)s.p - (uintptr_t)last->p : 0;
    if (last && (apart < last->n || (apart - last->n <= GAP && sh_map_same(last->p, s.p)))) {
      if (apart + s.n > last->n) last->n = apart + s.n;
    } else {
      p->spans[n++] = s;
    }
  }
  p->n_spans = n;
}

static void cut(sh_prefetch *p) {
  for (size_t i = 0; i < p->n_spans; i++) {
    p->first[i] = p->n_pieces;
    p->n_pieces += (p->spans[i].n + PIECE - 1) / PIECE;
    p->bytes += p->spans[i].n;
  }
}

static sh_span piece_at(const sh_prefetch *p, size_t piece) {
  size_t lo = 0, hi = p->n_spans - 1;
  while (lo < hi) {
    size_t mid = lo + (hi - lo + 1) / 2;
    if (p->first[mid] <= piece) lo = mid;
    else hi = mid - 1;
  }
  size_t at = (piece - p->first[lo]) * PIECE, left = p->spans[lo].n - at;
  return (sh_span){p->spans[lo].p + at, left < PIECE ? left : PIECE};
}

/* --- The threads */

static void touch(sh_span s) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t i = 0; i < s.n; i += page) (void)*(const volatile uint8_t *)(s.p + i);
}

/* 0 or an errno. */
static int read_piece(sh_prefetch *p, sh_span s) {
  (void)madvise((void *)(uintptr_t)s.p, s.n, MADV_WILLNEED); /* only advice */
  if (!atomic_load(&p->by_touch)) {
    int rc;
    do rc = madvise((void *)(uintptr_t)s.p, s.n, MADV_POPULATE_READ);
    while (rc && (errno == EINTR || errno == EAGAIN));
    if (!rc) return 0;
    if (errno == EFAULT || errno == EHWPOISON || errno == ENOMEM) return errno;
    atomic_store(&p->by_touch, true); /* EINVAL: this kernel does not know it */
  }
  touch(s);
  return 0;
}

/* Whichever thread sees that it is time speaks. */
static void say_progress(sh_prefetch *p) {
  long long now = sh_now_ns(), said = atomic_load(&p->said);
  size_t done = atomic_load(&p->done);
  if (now < said || done >= p->bytes || !atomic_compare_exchange_strong(&p->said, &said, now + SAY_EVERY_NS)) return;
  char a[32], b[32];
  sh_log(SH_LOG_INFO, "reading %s: %s of %s, %.0f MB/s", p->what, sh_format_size((int64_t)done, a), sh_format_size((int64_t)p->bytes, b),
         1e3 * (double)done / (double)(now - p->began));
}

static void *read_pieces(void *arg) {
  sh_prefetch *p = arg;
  while (!atomic_load(&p->stop)) {
    size_t i = atomic_fetch_add(&p->next, 1);
    if (i >= p->n_pieces) break;
    sh_span s = piece_at(p, i);
    int err = read_piece(p, s), none = 0;
    if (err) {
      if (atomic_compare_exchange_strong(&p->error, &none, err)) atomic_store(&p->bad, s.p);
      atomic_store(&p->stop, true);
      break;
    }
    if (atomic_fetch_add(&p->done, s.n) + s.n == p->bytes) atomic_store(&p->ended, sh_now_ns());
    say_progress(p);
  }
  return NULL;
}

/* As many as can be had, and none for a few pages: without any, sh_prefetch_wait reads by itself. Signals go to the other threads, but for
 * faults. */
static void start_threads(sh_prefetch *p, int n) {
  sigset_t block, old;
  if (p->bytes <= PIECE) return;
  sigfillset(&block);
  sigdelset(&block, SIGBUS);
  sigdelset(&block, SIGSEGV);
  pthread_sigmask(SIG_SETMASK, &block, &old);
  if ((size_t)n > p->n_pieces) n = (int)p->n_pieces;
  while (p->n_threads < n && pthread_create(&p->threads[p->n_threads], NULL, read_pieces, p) == 0) p->n_threads++;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void join_threads(sh_prefetch *p) {
  while (p->n_threads > 0) pthread_join(p->threads[--p->n_threads], NULL);
}

/* --- The whole */

/* Whether it all finds room. Files of a tmpfs have it already. */
static bool fits(const sh_prefetch *p, const sh_prefetch_opts *o) {
  int64_t have = o->available ? o->available : sh_memory_available();
  size_t need = o->spare;
  char a[32], b[32];
  for (size_t i = 0; i < p->n_spans; i++) need += sh_map_in_memory(p->spans[i].p) ? 0 : p->spans[i].n;
  if (have < 0 || need <= (size_t)have) return true;
  sh_log(SH_LOG_WARN, "%s (%s) are not read ahead: only %s of memory are free; pages are read as they are used, which is slow", p->what,
         sh_format_size((int64_t)p->bytes, a), sh_format_size(have, b));
  return false;
}

int sh_prefetch_start(sh_prefetch **out, const sh_span *spans, size_t n, const sh_prefetch_opts *o, sh_error *e) {
  *out = NULL;
  if (n == 0) return 0;
  int threads = o->threads ? o->threads : SH_PREFETCH_THREADS;
  sh_prefetch *p = sh_calloc(1, sizeof *p);
  if (p) p->spans = sh_calloc(n, sizeof *p->spans);
  if (p) p->first = sh_calloc(n, sizeof *p->first);
  if (!p || !p->spans || !p->first) {
    sh_prefetch_free(p);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for a list of %zu spans", n);
  }
  for (size_t i = 0; i < n; i++) {
    if (spans[i].n) p->spans[p->n_spans++] = spans[i];
  }
  p->what = o->what;
  merge(p);
  cut(p);
  if (!p->n_pieces || !fits(p, o)) {
    sh_prefetch_free(p);
    return 0;
  }
  atomic_store(&p->by_touch, o->by_touch);
  p->began = sh_now_ns();
  atomic_store(&p->said, p->began + SAY_FIRST_NS);
  start_threads(p, threads < MAX_THREADS ? threads : MAX_THREADS);
  *out = p;
  return 0;
}

static int fail(const sh_prefetch *p, int err, sh_error *e) {
  char path[SH_MAP_PATH];
  if (err == ENOMEM) {
    sh_log(SH_LOG_WARN, "%s are not read ahead any further: the system has no memory for them", p->what);
    return 0;
  }
  return sh_fail(e, SH_ERR_IO, "%s: " SH_MAP_LOST, sh_map_path_of(atomic_load(&p->bad), path) ? path : p->what);
}

int sh_prefetch_wait(sh_prefetch *p, sh_error *e) {
  if (!p) return 0;
  if (!p->n_threads && !p->told) read_pieces(p);
  join_threads(p);
  int err = atomic_load(&p->error);
  if (err) return fail(p, err, e);
  if (p->told) return 0;
  p->told = true;
  char size[32];
  int64_t ns = atomic_load(&p->ended) - p->began;
  sh_log(ns >= SAY_FIRST_NS ? SH_LOG_INFO : SH_LOG_DEBUG, "%s: %s read in %.1f s (%.0f MB/s)", p->what,
         sh_format_size((int64_t)p->bytes, size), 1e-9 * (double)ns, 1e3 * (double)p->bytes / (double)(ns > 0 ? ns : 1));
  return 0;
}

void sh_prefetch_free(sh_prefetch *p) {
  if (!p) return;
  atomic_store(&p->stop, true);
  join_threads(p);
  sh_free(p->spans);
  sh_free(p->first);
  sh_free(p);
}

size_t sh_prefetch_bytes(const sh_prefetch *p) { return p ? atomic_load(&p->done) : 0; }
