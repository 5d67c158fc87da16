/* What the scheduler needs of a model: five functions. The real one is bound in engine.c; unit tests drive the scheduler with a fake whose
 * logits are a hash of what stands in its pages and slots, which finds a wrong page table, slot or missing copy at once. */
#ifndef SH_ENGINE_IFACE_H
#define SH_ENGINE_IFACE_H

#include "backend/backend.h"

/* Borrowed by the scheduler for its life; called from the engine thread only. Errors and their consequences: model/model.h. */
typedef struct sh_model_iface {
  void *ctx;
  int vocab;                                                                /* columns of a logits row */
  int (*forward)(void *ctx, const sh_batch *b, float *logits, sh_error *e); /* logits [n_out, vocab] */
  int (*slot_zero)(void *ctx, int slot, sh_error *e);
  int (*slot_copy)(void *ctx, int dst, int src, sh_error *e);
  int (*page_copy)(void *ctx, int dst, int src, sh_error *e);
} sh_model_iface;

#endif
