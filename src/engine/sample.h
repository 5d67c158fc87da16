/* From processed logits to a token: temperature, min_p, top_k, top_p, draw. */
#ifndef SH_ENGINE_SAMPLE_H
#define SH_ENGINE_SAMPLE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* How to draw. Ranges were checked at submit. */
typedef struct sh_draw {
  float temperature; /* below 1e-5: the most likely id, ties to the lowest */
  float top_p;       /* (0, 1]; 1 = off */
  float min_p;       /* [0, 1]; 0 = off */
  int top_k;         /* <= 0 or >= vocab = off */
} sh_draw;

enum { SH_SAMPLE_BUCKETS = 2048 };

/* Scratch for one row, and the prepared distribution. Engine thread; sized once. */
typedef struct sh_sampler {
  int vocab;
  int32_t *ids;  /* [vocab]: kept ids, ascending */
  float *w;      /* [vocab]: their weights, exp(x - max) */
  int32_t *cand; /* [vocab]: ids of the bucket in which a cut lies */
  float *cand_w; /* [vocab] */
  double mass[SH_SAMPLE_BUCKETS];
  int m;          /* kept ids */
  double total;   /* sum of w[0..m), added in order */
  int32_t greedy; /* the id when nothing is drawn, else -1 */
} sh_sampler;

int sh_sampler_init(sh_sampler *s, int vocab, sh_error *e);
void sh_sampler_free(sh_sampler *s); /* accepts a zeroed struct */
int64_t sh_sampler_bytes(int vocab);

/* Filters one row x [vocab] (masked ids are -inf; scaled in place). SH_ERR_INTERNAL: a logit is NaN or +inf; SH_ERR_ARG: every id is
 * masked. No allocation. */
int sh_sample_prepare(sh_sampler *s, float *x, const sh_draw *p, sh_error *e);
/* The id for a uniform u in [0, 1). May be called many times on one prepared row. */
int32_t sh_sample_draw(const sh_sampler *s, double u);

/* The uniform in [0, 1) of a token: a pure function of its key, so a token's draw does not depend on what was drawn before it or elsewhere.
 */
double sh_sample_uniform(uint64_t seed, uint64_t position, uint64_t choice);

#endif
