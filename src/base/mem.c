/* Memory: the one place that calls malloc; growing buffers; arenas.
 *
 * Any thread; buffers and arenas belong to one thread at a time. The wrapper costs two thread-local reads per allocation and buys two tests
 * that matter: every constructor can be failed at its n-th allocation, and a decode step can prove that it allocates nothing. Both are per
 * thread, so that a test in one thread does not disturb the others.
 *
 * A buffer has its maximum from the start and an error that sticks, so a writer of a hundred pieces checks once. An arena hands out zeroed,
 * aligned memory from chunks that double up to 1 MiB; a large piece gets a chunk of its own, so the unused tail of a chunk stays under a
 * quarter of it. Refused: freeing single pieces of an arena, and a pool of recycled arenas (malloc does that well enough at one arena per
 * request). */
#include "base/mem.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- Allocation ----------------------------------------------------------------------------------------------------------------------- */

/* No user address space is larger; above it some allocators (and the address sanitizer) do worse than return NULL. */
#define MAX_ALLOC ((size_t)1 << 47)

static _Thread_local long fail_after = -1; /* allocations that still succeed; -1: all */
static _Thread_local long guard_count;     /* allocations since sh_mem_guard_begin */

/* Counts one allocation; false when it must be refused. */
static bool admit(size_t bytes) {
  guard_count++;
  if (bytes > MAX_ALLOC) return false;
  if (fail_after < 0) return true;
  if (fail_after == 0) return false;
  fail_after--;
  return true;
}

void *sh_malloc(size_t bytes) { return admit(bytes) ? malloc(bytes ? bytes : 1) : NULL; }

void *sh_calloc(size_t n, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
  return admit(bytes) ? calloc(1, bytes ? bytes : 1) : NULL;
}

void *sh_realloc(void *p, size_t bytes) { return admit(bytes) ? realloc(p, bytes ? bytes : 1) : NULL; }

void *sh_aligned(size_t align, size_t bytes) {
  if (align == 0 || (align & (align - 1)) != 0 || !admit(bytes)) return NULL;
  if (align < sizeof(void *)) align = sizeof(void *);
  void *p = NULL;
  return posix_memalign(&p, align, bytes ? bytes : 1) == 0 ? p : NULL;
}

bool sh_mem_large(void *p, size_t n) {
  const uintptr_t begin = ((uintptr_t)p + SH_MEM_LARGE - 1) / SH_MEM_LARGE * SH_MEM_LARGE,
                  end = ((uintptr_t)p + n) / SH_MEM_LARGE * SH_MEM_LARGE;
  return begin < end && madvise((void *)begin, end - begin, MADV_HUGEPAGE) == 0;
}

char *sh_strndup(const char *s, size_t n) {
  if (n >= MAX_ALLOC) return NULL;
  char *p = sh_malloc(n + 1);
  if (!p) return NULL;
  if (n) memcpy(p, s, n);
  p[n] = '\0';
  return p;
}

char *sh_strdup(const char *s) { return sh_strndup(s, strlen(s)); }

void sh_free(void *p) { free(p); }

void sh_mem_fail_after(long n) { fail_after = n < 0 ? -1 : n; }

void sh_mem_guard_begin(void) { guard_count = 0; }

long sh_mem_guard_end(void) { return guard_count; }

/* --- Cuts ----------------------------------------------------------------------------------------------------------------------------- */

void *sh_cut_take(sh_cut *c, size_t n, size_t size) {
  size_t bytes, end;
  if (c->used == SIZE_MAX || __builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(bytes, (size_t)(SH_CUT_ALIGN - 1), &bytes) ||
      __builtin_add_overflow(c->used, bytes &= ~(size_t)(SH_CUT_ALIGN - 1), &end)) {
    c->used = SIZE_MAX;
    return NULL;
  }
  uint8_t *p = c->p ? (uint8_t *)c->p + c->used : NULL;
  c->used = end;
  return p;
}

/* --- Buffers -------------------------------------------------------------------------------------------------------------------------- */

void sh_buf_init(sh_buf *b, size_t max) { *b = (sh_buf){.max = max}; }

void sh_buf_free(sh_buf *b) {
  sh_free(b->p);
  sh_buf_init(b, b->max);
}

void sh_buf_reset(sh_buf *b) {
  b->len = 0;
  b->failed = 0;
  if (b->p) b->p[0] = '\0';
}

int sh_buf_reserve(sh_buf *b, size_t more) {
  if (b->failed) return b->failed;
  if (b->len > b->max || more > b->max - b->len) return b->failed = SH_ERR_LIMIT;
  size_t need = b->len + more;
  if (b->p && need < b->cap) return 0;
  size_t cap = b->cap < 64 ? 64 : b->cap;
  if (need >= MAX_ALLOC) return b->failed = SH_ERR_NOMEM;
  while (cap <= need) cap *= 2;
  if (cap - 1 > b->max) cap = b->max + 1; /* the byte over max holds the NUL; need <= max, so it still fits */
  char *p = sh_realloc(b->p, cap);
  if (!p) return b->failed = SH_ERR_NOMEM;
  b->p = p;
  b->cap = cap;
  b->p[b->len] = '\0';
  return 0;
}

int sh_buf_put(sh_buf *b, const void *p, size_t n) {
  int rc = sh_buf_reserve(b, n);
  if (rc) return rc;
  if (n) memcpy(b->p + b->len, p, n);
  b->len += n;
  b->p[b->len] = '\0';
  return 0;
}

int sh_buf_puts(sh_buf *b, const char *s) { return sh_buf_put(b, s, strlen(s)); }

int sh_buf_putc(sh_buf *b, char c) { return sh_buf_put(b, &c, 1); }

int sh_buf_printf(sh_buf *b, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (b->failed) return b->failed;
  if (n < 0) return b->failed = SH_ERR_NOMEM;
  int rc = sh_buf_reserve(b, (size_t)n);
  if (rc) return rc;
  va_start(ap, fmt);
  vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
  va_end(ap);
  b->len += (size_t)n;
  return 0;
}

char *sh_buf_detach(sh_buf *b) {
  if (b->failed) return NULL;
  if (!b->p) return sh_strndup("", 0);
  char *p = b->p;
  sh_buf_init(b, b->max);
  return p;
}

/* --- Arenas --------------------------------------------------------------------------------------------------------------------------- */

enum { ARENA_ALIGN = 16, ARENA_FIRST = 4096, ARENA_CHUNK_MAX = 1 << 20 };

typedef struct chunk chunk;
struct chunk {
  chunk *next;
  size_t size, used; /* bytes of data[] */
  _Alignas(ARENA_ALIGN) unsigned char data[];
};

struct sh_arena {
  chunk *head;      /* the chunk that small pieces come from; full ones and chunks of one large piece follow it */
  size_t max, used; /* bytes that may be and were handed out, each piece rounded up to ARENA_ALIGN */
  size_t next_size; /* bytes of the next shared chunk */
};

sh_arena *sh_arena_new(size_t max_bytes) {
  sh_arena *a = sh_calloc(1, sizeof *a);
  if (!a) return NULL;
  a->max = max_bytes;
  a->next_size = ARENA_FIRST;
  return a;
}

void sh_arena_free(sh_arena *a) {
  if (!a) return;
  for (chunk *c = a->head, *next; c; c = next) {
    next = c->next;
    sh_free(c);
  }
  sh_free(a);
}

/* A piece that does not fit in the head chunk. need: bytes, rounded. */
static void *arena_slow(sh_arena *a, size_t need) {
  bool own = need > a->next_size / 4;
  size_t size = own ? need : a->next_size;
  chunk *c = sh_calloc(1, sizeof *c + size);
  if (!c) return NULL;
  c->size = size;
  c->used = need;
  if (own && a->head) { /* behind the head, whose free tail stays in use */
    c->next = a->head->next;
    a->head->next = c;
  } else {
    c->next = a->head;
    a->head = c;
    if (!own && a->next_size < ARENA_CHUNK_MAX) a->next_size *= 2;
  }
  a->used += need;
  return c->data;
}

void *sh_arena_alloc(sh_arena *a, size_t bytes) {
  if (bytes > a->max - a->used || bytes > MAX_ALLOC) return NULL;
  size_t need = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
  if (need == 0) need = ARENA_ALIGN;
  if (need > a->max - a->used) return NULL;
  chunk *c = a->head;
  if (!c || need > c->size - c->used) return arena_slow(a, need);
  void *p = c->data + c->used;
  c->used += need;
  a->used += need;
  return p;
}

void *sh_arena_array(sh_arena *a, size_t n, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
  return sh_arena_alloc(a, bytes);
}

char *sh_arena_strdup(sh_arena *a, const char *s, size_t n) {
  if (n >= MAX_ALLOC) return NULL;
  char *p = sh_arena_alloc(a, n + 1);
  if (p && n) memcpy(p, s, n);
  return p;
}

char *sh_arena_printf(sh_arena *a, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0) return NULL;
  char *p = sh_arena_alloc(a, (size_t)n + 1);
  if (!p) return NULL;
  va_start(ap, fmt);
  vsnprintf(p, (size_t)n + 1, fmt, ap);
  va_end(ap);
  return p;
}

size_t sh_arena_used(const sh_arena *a) { return a->used; }

size_t sh_arena_left(const sh_arena *a) { return a->max - a->used; }
