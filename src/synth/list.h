/* The tensors of a model in a format: names, types, shapes, and what fills them. */
#ifndef SH_SYNTH_LIST_H
#define SH_SYNTH_LIST_H

#include "synth/fill.h"
#include "synth/shapes.h"

typedef struct sh_synth_list {
  sh_ftensor *t; /* [n] data NULL */
  sh_fill *fill; /* [n] */
  int n;
  const char **left; /* [n_left] linear modules that stay bf16 in a quantized folder, without ".weight" */
  int n_left;
  int64_t bytes;   /* of all tensors */
  int64_t weights; /* parameters */
  sh_arena *private_arena;
  int private_cap, private_cap_left;
} sh_synth_list;

/* layers: of the model's. group: columns that share a scale (formats with groups). Frees with sh_synth_list_free. */
int sh_synth_list_make(sh_synth_list *l, const sh_synth_shape *s, const sh_synth_format *f, int layers, int group, sh_error *e);
void sh_synth_list_free(sh_synth_list *l); /* accepts a zeroed struct */

#endif
