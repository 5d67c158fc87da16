/* Samples and what is reported of them. Every sample is kept, so percentiles are exact. */
#ifndef SH_BENCH_SERVE_STATS_H
#define SH_BENCH_SERVE_STATS_H

#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct sh_bsamples {
  double *v; /* owned */
  size_t n;
  size_t private_cap;
} sh_bsamples;

int sh_bsamples_add(sh_bsamples *s, double v); /* SH_ERR_NOMEM */
int sh_bsamples_add_all(sh_bsamples *s, const sh_bsamples *more);
void sh_bsamples_free(sh_bsamples *s); /* accepts a zeroed struct, leaves one */

/* Percentile 0..100 of v[0..n), sorted upwards: linear between the two nearest samples, as numpy does. 0 without samples. */
double sh_bpercentile(const double *v, size_t n, double percent);

typedef struct sh_bsummary {
  size_t n; /* samples; 0: all else is 0 */
  double mean, sd;
  double q[101]; /* the percentiles 0, 1, ... 100 */
} sh_bsummary;
void sh_bsummary_of(sh_bsummary *out, sh_bsamples *s); /* sorts s */

#endif
