/* The thread pool and the clock. One pool per engine: its workers and the calling thread take items from an atomic counter, so a busy core
 * does not hold the others up. Workers spin briefly after a job and then sleep. */
#ifndef SH_BASE_POOL_H
#define SH_BASE_POOL_H

#include "base/err.h"
#include <stdint.h>

typedef struct sh_pool sh_pool;
/* `item` in [0, n_items); `worker` in [0, sh_pool_size) is stable inside one call, for per-thread scratch. */
typedef void (*sh_pool_fn)(void *ctx, int item, int worker);

/* n_threads counts the caller; 0 = one per usable core (affinity mask and cgroup quota respected). Caller frees with sh_pool_free. */
int sh_pool_new(sh_pool **out, int n_threads, sh_error *e);
void sh_pool_free(sh_pool *p); /* accepts NULL; joins the workers */
int sh_pool_size(const sh_pool *p);
/* Runs fn for every item and returns when all are done. One caller at a time. No allocation. n_items == 1 runs inline. */
void sh_pool_run(sh_pool *p, sh_pool_fn fn, void *ctx, int n_items);

int sh_cpu_count(void);            /* usable cores: affinity mask and cgroup v1/v2 quota (rounded up), at least 1 */
int64_t sh_memory_limit(void);     /* bytes: the smaller of machine memory and the cgroup v1/v2 limit of this process */
int64_t sh_memory_available(void); /* bytes that can be taken without driving others out: of the machine and of the cgroup, page cache
                                      counted as free; -1: unknown */
int64_t sh_now_ns(void);           /* monotonic */
int64_t sh_unix_time(void);        /* seconds */
int64_t sh_rss_bytes(void);        /* resident set of this process */
int64_t sh_rss_peak_bytes(void);   /* the largest it has been, pages of mapped files included */

#endif
