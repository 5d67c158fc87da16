/* Random checkpoints of released shapes, to measure speed without weights. */
#ifndef SH_SYNTH_SYNTH_H
#define SH_SYNTH_SYNTH_H

#include "base/err.h"
#include "synth/shapes.h"

typedef struct sh_synth_opts {
  const char *shape, *format; /* names in the tables of shapes.h */
  const char *out;            /* folder, or .gguf file; must not be there */
  const char *tokenizer;      /* folder whose tokenizer is taken; NULL: a made-up one */
  int layers;                 /* 0: the model's */
  int group;                  /* columns that share a scale: 32, 64 or 128 */
  uint64_t seed;
  int threads;                                              /* 0: every usable core */
  int64_t shard_bytes;                                      /* of a folder's weight files, about; 0: 4 GB */
  void (*progress)(void *ctx, int64_t done, int64_t total); /* bytes; NULL: none */
  void *ctx;
  const volatile bool *stop; /* NULL: never. True: SH_ERR_CANCELLED at the next piece */
} sh_synth_opts;

typedef struct sh_synth_result {
  int64_t bytes, weights; /* of all tensors; parameters */
  int n_tensors, n_files; /* n_files: of weights */
  int layers;
  double seconds;
} sh_synth_result;

/* The same options give the same bytes for any number of threads. Memory: some 200 MB, whatever the size. A folder appears when it is
 * whole, as does a file; what an interrupted run of a folder left in OUT.partial is gone on with. */
int sh_synth(const sh_synth_opts *o, sh_synth_result *r, sh_error *e);

#endif
