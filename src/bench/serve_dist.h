/* What is random in a load: lengths of prompts and answers, and when requests arrive. Pure functions of a seed, so that the same seed makes
 * the same load. */
#ifndef SH_BENCH_SERVE_DIST_H
#define SH_BENCH_SERVE_DIST_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct sh_brng {
  uint64_t private_s;
} sh_brng;

/* `stream` and `index` set apart what is drawn for different things from one seed. */
sh_brng sh_brng_at(uint64_t seed, uint64_t stream, uint64_t index);
uint64_t sh_brng_next(sh_brng *r);
double sh_brng_unit(sh_brng *r);                /* uniform in (0, 1) */
uint64_t sh_brng_below(sh_brng *r, uint64_t n); /* uniform in [0, n), n > 0 */
double sh_brng_normal(sh_brng *r);              /* mean 0, deviation 1 */
double sh_brng_gamma(sh_brng *r, double shape); /* mean `shape`, scale 1; shape > 0 */

/* A number of tokens: "128", "64-256" (uniform, both ends included), "normal:MEAN,SD" (rounded, at least 1), "file:PATH". */
typedef enum sh_blen_kind { SH_BLEN_FIXED, SH_BLEN_UNIFORM, SH_BLEN_NORMAL, SH_BLEN_FILE } sh_blen_kind;
typedef struct sh_blen {
  sh_blen_kind kind;
  int64_t low, high; /* tokens */
  double mean, sd;
  const char *path; /* FILE: in the text that was parsed */
} sh_blen;
enum { SH_BLEN_MAX = 16 << 20 }; /* tokens */

int sh_blen_parse(sh_blen *out, const char *option, const char *text, sh_error *e);
int64_t sh_blen_draw(const sh_blen *l, sh_brng *r); /* not of FILE */

/* Seconds to the next arrival: gamma distributed with mean 1/rate. Burstiness 1 is a Poisson process, less comes in bursts, more is more
 * even. An infinite rate gives 0. */
double sh_barrival_gap(sh_brng *r, double rate, double burstiness);

/* Lists of options: "1,4,16" and "0.5,2,inf". SH_ERR_ARG, also when there are more than `max`. *n: how many. */
int sh_blist_counts(int64_t *out, int max, int *n, const char *option, const char *text, sh_error *e);
int sh_blist_rates(double *out, int max, int *n, const char *option, const char *text, sh_error *e);

/* "ttft:200,tpot:50,e2el:2000": limits in ms, INFINITY where none was given. */
typedef struct sh_bgoal {
  bool given;
  double ttft_ms, tpot_ms, e2el_ms;
} sh_bgoal;
int sh_bgoal_parse(sh_bgoal *out, const char *text, sh_error *e);

#endif
