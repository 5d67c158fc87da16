/* The calibration set going through a model one layer at a time: the residual stream of all tokens lies in a file between layers. */
#ifndef SH_QUANT_STREAM_H
#define SH_QUANT_STREAM_H

#include "backend/backend.h"
#include "model/model.h"
#include "quant/layer.h"

typedef struct sh_qstream sh_qstream;

/* Called with the inputs of a layer's modules, n rows [n, cols] stride floats apart, in the order of the tokens. For an MoE layer
 * SH_QIN_FFN is what the router reads, and SH_QIN_DOWN does not come. */
typedef int (*sh_qstream_fn)(void *ctx, sh_qinput input, const float *x, int64_t stride, int n, sh_error *e);

typedef struct sh_qstream_opts {
  const char *dir;     /* where the files go: "spill-x-LAYER" */
  int32_t *const *ids; /* [n_seqs] borrowed */
  const int *lens;     /* [n_seqs] >= 1 */
  int n_seqs;
  int step_tokens; /* rows of a step; at least the longest sequence */
} sh_qstream_opts;

/* be and m (open on be, nothing reserved) are borrowed. Caller frees with sh_qstream_free. */
int sh_qstream_new(sh_qstream **out, sh_model *m, sh_backend *be, const sh_qstream_opts *o, sh_error *e);
void sh_qstream_free(sh_qstream *s); /* accepts NULL */
int64_t sh_qstream_tokens(const sh_qstream *s);
/* Reads the residual stream before `layer` (made from the tokens for layer 0), runs the layer, hands out what its modules read and writes
 * the stream after it, whole or not at all. fn NULL: only that. */
int sh_qstream_layer(sh_qstream *s, int layer, sh_qstream_fn fn, void *ctx, sh_error *e);
bool sh_qstream_has(const sh_qstream *s, int layer); /* the stream before that layer is there (or can be made: layer 0) */
void sh_qstream_drop(sh_qstream *s, int layer);      /* removes the stream before that layer */

#endif
