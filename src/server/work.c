/* The text workers' queue.
 *
 * A bounded first-in first-out list of jobs under one mutex; two threads take from it. Two, not one, so that a 10 MB prompt does not hold
 * up everybody's ten words; not more, because the cores belong to the engine. A job is a member of the call it works for and must stay
 * alive until its fn has handed the call back to the loop (sh_loop_post as its last act).
 *
 * Refused alternative: a job per libevent thread pool or the engine's kernel pool. The first does not exist, the second would let a
 * prompt's parsing delay a step. */
#include "server/work.h"
#include "base/mem.h"
#include <pthread.h>

struct sh_workers {
  pthread_mutex_t mutex;
  pthread_cond_t some;
  sh_job *first, *last; /* under mutex, like what follows */
  int queued, max_queued;
  bool stop;
  int n_threads; /* started; the owner's */
  pthread_t threads[];
};

static void *worker_main(void *arg) {
  sh_workers *w = arg;
  pthread_mutex_lock(&w->mutex);
  for (;;) {
    while (!w->first && !w->stop) pthread_cond_wait(&w->some, &w->mutex);
    sh_job *j = w->first;
    if (!j) break;
    w->first = j->private_next;
    if (!w->first) w->last = NULL;
    w->queued--;
    pthread_mutex_unlock(&w->mutex);
    j->fn(j);
    pthread_mutex_lock(&w->mutex);
  }
  pthread_mutex_unlock(&w->mutex);
  return NULL;
}

int sh_workers_new(sh_workers **out, int n_threads, int max_queued, sh_error *e) {
  *out = NULL;
  sh_workers *w = sh_calloc(1, sizeof *w + (size_t)n_threads * sizeof w->threads[0]);
  if (!w) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  w->max_queued = max_queued;
  if (pthread_mutex_init(&w->mutex, NULL) != 0) {
    sh_free(w);
    return sh_fail(e, SH_ERR_IO, "a mutex could not be made");
  }
  if (pthread_cond_init(&w->some, NULL) != 0) {
    pthread_mutex_destroy(&w->mutex);
    sh_free(w);
    return sh_fail(e, SH_ERR_IO, "a condition variable could not be made");
  }
  while (w->n_threads < n_threads && pthread_create(&w->threads[w->n_threads], NULL, worker_main, w) == 0) w->n_threads++;
  if (w->n_threads < n_threads) {
    sh_workers_free(w);
    return sh_fail(e, SH_ERR_IO, "a text worker thread could not be started");
  }
  *out = w;
  return SH_OK;
}

void sh_workers_free(sh_workers *w) {
  if (!w) return;
  pthread_mutex_lock(&w->mutex);
  w->stop = true;
  pthread_cond_broadcast(&w->some);
  pthread_mutex_unlock(&w->mutex);
  for (int i = 0; i < w->n_threads; i++) pthread_join(w->threads[i], NULL);
  pthread_cond_destroy(&w->some);
  pthread_mutex_destroy(&w->mutex);
  sh_free(w);
}

bool sh_workers_offer(sh_workers *w, sh_job *j) {
  pthread_mutex_lock(&w->mutex);
  bool room = w->queued < w->max_queued && !w->stop;
  if (room) {
    j->private_next = NULL;
    if (w->last) w->last->private_next = j;
    else w->first = j;
    w->last = j;
    w->queued++;
    pthread_cond_signal(&w->some);
  }
  pthread_mutex_unlock(&w->mutex);
  return room;
}
