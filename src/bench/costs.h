/* What a step must do at the least: operations of the products with weights, bytes to and from memory. Counted from the bound matrices, so
 * a pass that did more or less would show. Pure functions. */
#ifndef SH_BENCH_COSTS_H
#define SH_BENCH_COSTS_H

#include "backend/backend.h"
#include "model/weights.h"

typedef struct sh_costs {
  double token_ops;     /* 2 rows cols over the matrices of the layers that a token passes; of the experts, top_k */
  double head_ops;      /* the same of a row of logits */
  double integer_share; /* of both together (a token with its logits): on weights stored as integers (not float types, not FP8) */
  double layer_bytes;   /* matrices of the layers, the routed experts apart */
  double expert_bytes;  /* one routed expert (the mean one), summed over the layers */
  double head_bytes, embed_row_bytes;
  int n_experts, top_k; /* 0 when dense */
  double state_bytes;   /* of a sequence */
  double kv_bytes;      /* of a token */
} sh_costs;

size_t sh_view_bytes(const sh_wview *v); /* weights, scales, zero points and order of columns */
void sh_costs_of(sh_costs *c, const sh_config *cfg, const sh_weights *w, size_t kv_bytes_per_token, size_t state_bytes);

double sh_costs_ops(const sh_costs *c, const sh_batch *b);
/* Every matrix once; of the routed experts as many as b->n_tokens tokens are expected to choose when each is as likely as the other; the
 * states read and written; the KV of all positions up to the last read, and the new ones written. */
double sh_costs_bytes(const sh_costs *c, const sh_batch *b);

#endif
