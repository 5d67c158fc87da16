/* Log probabilities of raw logits: normaliser, ranks, the k most likely. Pure functions on one row. */
#ifndef SH_ENGINE_LOGPROB_H
#define SH_ENGINE_LOGPROB_H

#include "sheng.h"

/* log(sum(exp(x[i]))) over x[0..n), accumulated in double. NaN when any x is NaN, +inf when any is +inf; callers treat a non-finite result
 * as broken logits. */
double sh_logprob_norm(const float *x, int n);
/* The entry of one id: log probability and rank, 1 + ids of [0, n) with a larger logit (equal logits share a rank). lse: sh_logprob_norm of
 * the row. */
sh_logprob sh_logprob_of(const float *x, int n, double lse, int32_t id);
/* The k most likely ids of [0, n), most likely first, equal logits by id. Ranks count on (1, 2, ...). Returns how many were written, min(k,
 * n). */
int sh_logprob_top(const float *x, int n, double lse, int k, sh_logprob *out);

#endif
