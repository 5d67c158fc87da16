/* Text workers: threads that parse bodies, run templates and tokenize, so that the event loop never computes. */
#ifndef SH_SERVER_WORK_H
#define SH_SERVER_WORK_H

#include "base/err.h"
#include <stdbool.h>

typedef struct sh_workers sh_workers;
typedef struct sh_job sh_job;
struct sh_job {
  void (*fn)(sh_job *j); /* on a worker; the job may be gone when it returns */
  sh_job *private_next;
};

/* `max_queued` jobs may wait. Caller frees with sh_workers_free. */
int sh_workers_new(sh_workers **out, int n_threads, int max_queued, sh_error *e);
void sh_workers_free(sh_workers *w);             /* accepts NULL; runs what is queued, then joins */
bool sh_workers_offer(sh_workers *w, sh_job *j); /* false: the queue is full */

#endif
