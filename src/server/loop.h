/* The event loop: one thread, libevent underneath, and the way in for other threads. */
#ifndef SH_SERVER_LOOP_H
#define SH_SERVER_LOOP_H

#include "base/err.h"
#include <stdbool.h>

struct event_base;
typedef struct sh_loop sh_loop;

/* Work for the loop thread. Lives inside the object it is about; zeroed before use with fn set. */
typedef struct sh_task sh_task;
struct sh_task {
  void (*fn)(sh_task *t); /* on the loop thread */
  sh_task *private_prev, *private_next;
  bool private_queued;
};

int sh_loop_new(sh_loop **out, sh_error *e); /* caller frees with sh_loop_free */
void sh_loop_free(sh_loop *l);               /* accepts NULL and half-built ones; tasks still queued are forgotten */
struct event_base *sh_loop_base(sh_loop *l);
int sh_loop_run(sh_loop *l, sh_error *e); /* until sh_loop_stop */
void sh_loop_stop(sh_loop *l);            /* loop thread */

/* Any thread. A task that is queued already stays where it is; one whose fn is just running is queued again. */
void sh_loop_post(sh_loop *l, sh_task *t);
/* Loop thread: afterwards fn is not called for earlier posts. */
void sh_loop_unpost(sh_loop *l, sh_task *t);

#endif
