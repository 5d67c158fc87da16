/* The downloading of a pull: many files and parts over a few connections, with retries, until everything is there and right. */
#ifndef SH_OPS_PULL_LOAD_H
#define SH_OPS_PULL_LOAD_H

#include "ops/fetch.h"
#include "ops/hub.h"
#include "ops/pull_file.h"
#include "ops/pull_show.h"

typedef enum sh_pranges { SH_PRANGES_UNKNOWN, SH_PRANGES_YES, SH_PRANGES_NO } sh_pranges; /* does the server honour Range? */

typedef struct sh_pjob {
  sh_pfile f; /* state NEW (to download), VERIFY or HAVE at the start; HAVE or DONE at the end */
  /* private */
  sh_pranges ranges;
  char *storage_url; /* where the hub's address redirected to, used for the next parts; owned, NULL: unknown */
  int active;        /* transfers under way */
  int attempts;      /* failures since bytes came */
  int spoiled;       /* times that what came was wrong */
  int64_t fail_ns, not_before_ns;
} sh_pjob;

typedef struct sh_pload {
  const sh_hub *hub;
  sh_fetch *fetch;
  const char *name, *revision; /* of the addresses */
  sh_pjob *jobs;               /* [n] */
  int n, connections, retries;
  sh_pshow *show;
  const volatile sig_atomic_t *stop;
} sh_pload; /* all borrowed */

/* Runs until all jobs are HAVE or DONE. On any failure every part file is journalled as far as it is. SH_ERR_CANCELLED: *stop. */
int sh_pload_run(const sh_pload *l, sh_error *e);
void sh_pjob_free(sh_pjob *j);

#endif
