/* Private to synth/: a run, and the two ways to write it. */
#ifndef SH_SYNTH_RUN_H
#define SH_SYNTH_RUN_H

#include "synth/list.h"
#include "synth/synth.h"
#include "synth/tok.h"

typedef struct sh_synth_run {
  const sh_synth_opts *o;
  const sh_synth_shape *s;
  const sh_synth_format *f;
  int layers;
  sh_synth_list list;
  sh_synth_tok tok;
  sh_pool *pool;
  sh_filler *filler;
  int64_t done; /* bytes */
  sh_synth_result *r;
} sh_synth_run;

/* A sh_tensor_source; ctx: the run, t: one of its list. */
int sh_synth_source(void *run, const sh_ftensor *t, sh_file_out *o, sh_error *e);
int sh_synth_write_folder(sh_synth_run *u, sh_error *e);
int sh_synth_write_gguf(sh_synth_run *u, sh_error *e);

#endif
