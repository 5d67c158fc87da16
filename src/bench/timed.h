/* A backend that passes every call on to another and, when asked, adds up the time by kind of call. It stands between a model and its
 * backend in a profile, so that nothing in the model or the backend has to know of one. */
#ifndef SH_BENCH_TIMED_H
#define SH_BENCH_TIMED_H

#include "backend/backend.h"

typedef enum sh_timed_kind {
  SH_TIMED_LINEAR,
  SH_TIMED_ATTENTION,
  SH_TIMED_GATED_DELTA,
  SH_TIMED_MOE,
  SH_TIMED_NORM,
  SH_TIMED_EMBED,
  SH_TIMED_SWIGLU,
  SH_TIMED_HEAD, /* from the gathering of the rows whose logits are wanted to the reading of the logits: norm and product included */
  SH_TIMED_KINDS
} sh_timed_kind;
extern const char *const sh_timed_names[SH_TIMED_KINDS];

/* Takes `real`, also when it fails; *out is freed with its ops->free, which frees `real`. */
int sh_timed_new(sh_backend **out, sh_backend *real, sh_error *e);
/* Starts anew (on) or stops (off) the adding up. */
void sh_timed_switch(sh_backend *timed, bool on);
void sh_timed_read(const sh_backend *timed, int64_t ns[SH_TIMED_KINDS]);

#endif
