/* The thread pool: n - 1 workers and the calling thread take the items of one job at a time.
 *
 * A job is one atomic word, `ticket`: generation in the high half, items still to hand out in the low half. Taking an item is a
 * compare-and-swap that counts the word down, so a worker that slept through a job cannot take an item of the next one with the old
 * function: the generation differs and the swap fails. A swap that succeeds also proves that fn, ctx and n_items, read before it, belong to
 * this job, because the caller changes them only after every item of the last job was counted in `pending`. So nobody waits for a worker
 * that the machine keeps off its core unless it holds an item.
 *
 * Idle workers spin for about 50 us (the gap between two operations of a decode step is shorter; a futex wake-up is not) and then sleep on
 * a condition variable; the caller waits for the last items in the same way. Spinning is left out where threads outnumber cores: there it
 * steals the time of the thread it waits for. Refused: a barrier per job (a preempted worker would stall all), and OpenMP (its pool cannot
 * be shared with the engine's rules on signals and spinning). */
#include "base/pool.h"

#include "base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_THREADS = 1024, SPIN_NS = 50 * 1000 };

typedef struct worker {
  sh_pool *pool;
  pthread_t thread;
  int index; /* 1 .. size - 1; 0 is the caller */
} worker;

struct sh_pool {
  int size;    /* threads, the caller included */
  int started; /* workers that run and must be joined */
  bool spin;
  worker *workers; /* [size - 1] */

  /* The job. Each hot word has a cache line of its own: workers hammer ticket while finished items count pending down. */
  _Alignas(64) atomic_uint_fast64_t ticket; /* generation << 32 | items not yet taken */
  _Atomic(sh_pool_fn) fn;
  _Atomic(void *) ctx;
  atomic_int n_items;
  _Alignas(64) atomic_int pending;  /* items not yet finished */
  _Alignas(64) atomic_int sleepers; /* workers in or about to enter pthread_cond_wait(wake) */
  atomic_bool caller_sleeps;
  atomic_bool stop;

  pthread_mutex_t mutex; /* guards nothing but the two waits */
  pthread_cond_t wake, done;
};

static uint32_t items_left(uint_fast64_t ticket) { return (uint32_t)ticket; }

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Takes one item of the current job; false when none is left. */
static bool take(sh_pool *p, sh_pool_fn *fn, void **ctx, int *item) {
  uint_fast64_t t = atomic_load(&p->ticket);
  while (items_left(t) > 0) {
    *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
    *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
    int n = atomic_load_explicit(&p->n_items, memory_order_relaxed);
    if (!atomic_compare_exchange_weak(&p->ticket, &t, t - 1)) continue;
    *item = n - (int)items_left(t);
    return true;
  }
  return false;
}

/* Works on the current job until its items are handed out. */
static void drain(sh_pool *p, int index) {
  sh_pool_fn fn;
  void *ctx;
  int item;
  while (take(p, &fn, &ctx, &item)) {
    fn(ctx, item, index);
    if (atomic_fetch_sub(&p->pending, 1) != 1 || index == 0) continue;
    if (!atomic_load(&p->caller_sleeps)) continue;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mutex);
  }
}

/* --- Waiting -------------------------------------------------------------------------------------------------------------------------- */

static bool work_or_stop(sh_pool *p) { return items_left(atomic_load(&p->ticket)) > 0 || atomic_load(&p->stop); }

static bool all_done(sh_pool *p) { return atomic_load(&p->pending) == 0; }

/* Spins for a short time; true as soon as cond holds. */
static bool spin_until(sh_pool *p, bool (*cond)(sh_pool *)) {
  if (cond(p)) return true;
  if (!p->spin) return false;
  int64_t end = sh_now_ns() + SPIN_NS;
  do {
    for (int i = 0; i < 32; i++) {
      pause_core();
      if (cond(p)) return true;
    }
  } while (sh_now_ns() < end);
  return false;
}

/* A worker's wait. It counts itself among the sleepers before it looks at the ticket a last time, and the caller sets the ticket before it
 * looks at the sleepers (both sequentially consistent), so one of the two sees the other. */
static void wait_for_work(sh_pool *p) {
  if (spin_until(p, work_or_stop)) return;
  pthread_mutex_lock(&p->mutex);
  atomic_fetch_add(&p->sleepers, 1);
  while (!work_or_stop(p)) pthread_cond_wait(&p->wake, &p->mutex);
  atomic_fetch_sub(&p->sleepers, 1);
  pthread_mutex_unlock(&p->mutex);
}

/* The caller's wait, by the same rule: caller_sleeps before pending here, pending before caller_sleeps in drain(). */
static void wait_for_end(sh_pool *p) {
  if (spin_until(p, all_done)) return;
  pthread_mutex_lock(&p->mutex);
  atomic_store(&p->caller_sleeps, true);
  while (!all_done(p)) pthread_cond_wait(&p->done, &p->mutex);
  atomic_store(&p->caller_sleeps, false);
  pthread_mutex_unlock(&p->mutex);
}

/* Wakes as many workers as there are items beyond the caller's own. */
static void wake_workers(sh_pool *p, int n) {
  int asleep = atomic_load(&p->sleepers);
  if (asleep == 0) return;
  pthread_mutex_lock(&p->mutex);
  if (n >= asleep) pthread_cond_broadcast(&p->wake);
  else
    for (int i = 0; i < n; i++) pthread_cond_signal(&p->wake);
  pthread_mutex_unlock(&p->mutex);
}

/* --- Running -------------------------------------------------------------------------------------------------------------------------- */

void sh_pool_run(sh_pool *p, sh_pool_fn fn, void *ctx, int n_items) {
  if (n_items <= 0) return;
  if (n_items == 1 || p->size == 1) {
    for (int i = 0; i < n_items; i++) fn(ctx, i, 0);
    return;
  }
  atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
  atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
  atomic_store_explicit(&p->n_items, n_items, memory_order_relaxed);
  atomic_store_explicit(&p->pending, n_items, memory_order_relaxed);
  uint_fast64_t generation = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
  atomic_store(&p->ticket, generation << 32 | (uint_fast64_t)n_items); /* publishes the four above */
  wake_workers(p, n_items - 1);
  drain(p, 0);
  wait_for_end(p);
}

static void *worker_main(void *arg) {
  worker *w = arg;
  sh_pool *p = w->pool;
  while (!atomic_load(&p->stop)) {
    drain(p, w->index);
    wait_for_work(p);
  }
  return NULL;
}

/* Starts the workers with every signal blocked but the faults, which must reach the thread that made them: SIGINT and SIGTERM belong to the
 * main thread. */
static int start_workers(sh_pool *p, sh_error *e) {
  sigset_t block, old;
  sigfillset(&block);
  static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&block, faults[i]);
  pthread_sigmask(SIG_SETMASK, &block, &old);
  int err = 0;
  for (int i = 0; i < p->size - 1 && !err; i++) {
    worker *w = &p->workers[i];
    *w = (worker){.pool = p, .index = i + 1};
    err = pthread_create(&w->thread, NULL, worker_main, w);
    if (err) break;
    p->started++;
    char name[24];
    snprintf(name, sizeof name, "sheng-%d", i + 1);
    pthread_setname_np(w->thread, name);
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (err) return sh_fail(e, SH_ERR_IO, "cannot start thread %d of %d: %s; ask for fewer threads", p->started + 2, p->size, strerror(err));
  return 0;
}

int sh_pool_new(sh_pool **out, int n_threads, sh_error *e) {
  *out = NULL;
  if (n_threads < 0 || n_threads > MAX_THREADS)
    return sh_fail(e, SH_ERR_ARG, "%d threads asked for, wanted 1 to %d, or 0 for one per usable core", n_threads, MAX_THREADS);
  int cores = sh_cpu_count();
  if (n_threads == 0) n_threads = cores < MAX_THREADS ? cores : MAX_THREADS;
  sh_pool *p = sh_aligned(64, sizeof *p);
  if (!p) return sh_fail(e, SH_ERR_NOMEM, "out of memory for a thread pool");
  memset(p, 0, sizeof *p);
  p->size = n_threads;
  p->spin = n_threads <= cores;
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->done, NULL);
  int rc = 0;
  p->workers = sh_calloc((size_t)n_threads, sizeof *p->workers);
  if (!p->workers) {
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for a pool of %d threads", n_threads);
    goto fail;
  }
  rc = start_workers(p, e);
  if (rc) goto fail;
  *out = p;
  return 0;
fail:
  sh_pool_free(p);
  return rc;
}

void sh_pool_free(sh_pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->mutex);
  atomic_store(&p->stop, true);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->mutex);
  for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
  pthread_cond_destroy(&p->done);
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->mutex);
  sh_free(p->workers);
  sh_free(p);
}

int sh_pool_size(const sh_pool *p) { return p->size; }
