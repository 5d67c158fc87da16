/* Memory: checked allocation, growing buffers with a maximum, arenas. Nothing here exits; every caller sees NULL or an error.
 * One wrapper stands before malloc so that the allocation-failure tests and the no-allocation guard of a decode step work. */
#ifndef SH_BASE_MEM_H
#define SH_BASE_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* malloc family; zeroed memory from sh_calloc. n*size is checked for overflow. NULL on failure. Free with sh_free. */
void *sh_malloc(size_t bytes);
void *sh_calloc(size_t n, size_t size);
void *sh_realloc(void *p, size_t bytes);
enum { SH_MEM_LARGE = 2 << 20 }; /* bytes of a large page */
/* Asks for large pages in p[0..n), memory not yet written to: where much is read through, looking up each 4 KB costs more than reading
 * it. Only advice; false: there are none. */
bool sh_mem_large(void *p, size_t n);
void *sh_aligned(size_t align, size_t bytes); /* contents undefined; align a power of two; free with sh_free */
char *sh_strdup(const char *s);
char *sh_strndup(const char *s, size_t n);
void sh_free(void *p);

/* Tests: after sh_mem_fail_after(n), the n-th allocation from now (0 = the next) of this thread returns NULL, and every one
 * after it; -1 switches off. */
void sh_mem_fail_after(long n);
/* Guard: between begin and end any allocation on this thread is counted; end returns the count since begin. */
void sh_mem_guard_begin(void);
long sh_mem_guard_end(void);

/* --- A piece of memory cut into parts, each beginning at a multiple of 64 bytes (as the memory itself does). Without memory it only
 * measures: one list of parts serves both. */
enum { SH_CUT_ALIGN = 64 };
typedef struct sh_cut {
  void *p; /* NULL: only measures */
  size_t used;
} sh_cut;
void *sh_cut_take(sh_cut *c, size_t n, size_t size); /* n * size bytes of c->p (NULL while measuring); used = SIZE_MAX on overflow */

/* --- A growing byte buffer. After a failed append `failed` stays set, later appends do nothing and return the same error, so a
 * writer may check once at the end. p is always NUL-terminated after the first successful append (NUL not counted in len). */
typedef struct sh_buf {
  char *p;    /* owned; NULL while empty */
  size_t len; /* bytes in use */
  size_t cap; /* private */
  size_t max; /* bytes it may grow to; over it an append fails with SH_ERR_LIMIT */
  int failed; /* 0, SH_ERR_LIMIT or SH_ERR_NOMEM; SH_ERR_INTERNAL from a JSON writer that was misused */
} sh_buf;

void sh_buf_init(sh_buf *b, size_t max);
void sh_buf_free(sh_buf *b);  /* frees and re-initialises with the same max */
void sh_buf_reset(sh_buf *b); /* len = 0, keeps the memory, clears failed */
int sh_buf_reserve(sh_buf *b, size_t more);
int sh_buf_put(sh_buf *b, const void *p, size_t n);
int sh_buf_puts(sh_buf *b, const char *s);
int sh_buf_putc(sh_buf *b, char c);
int sh_buf_printf(sh_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *sh_buf_detach(sh_buf *b); /* caller frees with sh_free; "" (allocated) when empty; NULL if it had failed */

/* --- An arena: everything parsed for one request lives in one and dies with it. Not thread-safe. */
typedef struct sh_arena sh_arena;
sh_arena *sh_arena_new(size_t max_bytes);                    /* NULL: out of memory */
void sh_arena_free(sh_arena *a);                             /* accepts NULL */
void *sh_arena_alloc(sh_arena *a, size_t bytes);             /* zeroed, 16-byte aligned; NULL: over max or out of memory */
void *sh_arena_array(sh_arena *a, size_t n, size_t size);    /* as above, n*size checked */
char *sh_arena_strdup(sh_arena *a, const char *s, size_t n); /* NUL-terminated copy of n bytes */
char *sh_arena_printf(sh_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
size_t sh_arena_used(const sh_arena *a); /* bytes handed out */
size_t sh_arena_left(const sh_arena *a); /* bytes that may still be handed out: tells "over max" from "out of memory" */

#endif
