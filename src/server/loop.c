/* The event loop and its mailbox.
 *
 * libevent is touched by the loop thread only, so its locking stays off. Other threads (text workers, the engine) hand over tasks: a list
 * under a mutex, and an eventfd that wakes the loop when the list was empty. A task is a member of the object it concerns, so posting
 * allocates nothing and cannot fail, and an object that dies takes its task out first (unpost).
 *
 * Tasks are taken one at a time, not as a batch: one of them may end the object of a later one. At most MAX_PER_WAKE run before the sockets
 * get their turn.
 *
 * Refused alternative: event_active() from other threads. It needs libevent's locks on every call, and a hand-over without a list would
 * have to search for what happened. */
#include "server/loop.h"
#include "base/mem.h"
#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_PER_WAKE = 256 };

struct sh_loop {
  struct event_base *base;
  struct event *wake;
  int fd; /* eventfd; -1 before it exists */
  bool has_mutex;
  pthread_mutex_t mutex;
  sh_task *first, *last; /* under mutex */
};

struct event_base *sh_loop_base(sh_loop *l) {
  return l->base;
}

static void ring(sh_loop *l) {
  uint64_t one = 1;
  ssize_t n = write(l->fd, &one, sizeof one);
  (void)n; /* EAGAIN: the counter is full, so the loop is awake anyway */
}

static void unlink_locked(sh_loop *l, sh_task *t) {
  if (t->private_prev) t->private_prev->private_next = t->private_next;
  else l->first = t->private_next;
  if (t->private_next) t->private_next->private_prev = t->private_prev;
  else l->last = t->private_prev;
  t->private_prev = t->private_next = NULL;
  t->private_queued = false;
}

static sh_task *take(sh_loop *l) {
  pthread_mutex_lock(&l->mutex);
  sh_task *t = l->first;
  if (t) unlink_locked(l, t);
  pthread_mutex_unlock(&l->mutex);
  return t;
}

static void on_wake(evutil_socket_t fd, short what, void *ctx) {
  (void)what;
  sh_loop *l = ctx;
  uint64_t count;
  ssize_t n = read(fd, &count, sizeof count);
  (void)n;
  for (int i = 0; i < MAX_PER_WAKE; i++) {
    sh_task *t = take(l);
    if (!t) return;
    t->fn(t);
  }
  ring(l);
}

int sh_loop_new(sh_loop **out, sh_error *e) {
  *out = NULL;
  int rc;
  sh_loop *l = sh_calloc(1, sizeof *l);
  if (!l) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  l->fd = -1;
  errno = 0;
  if (pthread_mutex_init(&l->mutex, NULL) != 0) goto fail;
  l->has_mutex = true;
  if ((l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) goto fail;
  struct event_config *cfg = event_config_new();
  if (!cfg) goto fail;
  event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
  l->base = event_base_new_with_config(cfg);
  event_config_free(cfg);
  if (!l->base) goto fail;
  l->wake = event_new(l->base, l->fd, EV_READ | EV_PERSIST, on_wake, l);
  if (!l->wake || event_add(l->wake, NULL) != 0) goto fail;
  *out = l;
  return SH_OK;
fail:
  if (!errno) errno = ENOMEM; /* an allocation of libevent's may fail without a word */
  rc = sh_fail(e, errno == ENOMEM ? SH_ERR_NOMEM : SH_ERR_IO, "the event loop could not be set up: %s", strerror(errno));
  sh_loop_free(l);
  return rc;
}

void sh_loop_free(sh_loop *l) {
  if (!l) return;
  if (l->wake) event_free(l->wake);
  if (l->base) event_base_free(l->base);
  if (l->fd >= 0) close(l->fd);
  if (l->has_mutex) pthread_mutex_destroy(&l->mutex);
  sh_free(l);
}

int sh_loop_run(sh_loop *l, sh_error *e) {
  if (event_base_dispatch(l->base) < 0) return sh_fail(e, SH_ERR_IO, "the event loop failed: %s", strerror(errno));
  return SH_OK;
}

void sh_loop_stop(sh_loop *l) { event_base_loopbreak(l->base); }

void sh_loop_post(sh_loop *l, sh_task *t) {
  pthread_mutex_lock(&l->mutex);
  bool empty = !l->first;
  if (!t->private_queued) {
    t->private_queued = true;
    t->private_prev = l->last;
    t->private_next = NULL;
    if (l->last) l->last->private_next = t;
    else l->first = t;
    l->last = t;
  }
  pthread_mutex_unlock(&l->mutex);
  if (empty) ring(l);
}

void sh_loop_unpost(sh_loop *l, sh_task *t) {
  pthread_mutex_lock(&l->mutex);
  if (t->private_queued) unlink_locked(l, t);
  pthread_mutex_unlock(&l->mutex);
}
