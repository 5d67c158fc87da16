/* Samples and their percentiles. Any thread.
 *
 * Refused alternative: histograms (HDR and the like). A run has some millions of gaps between tokens at most, and an exact 99th percentile
 * is worth their 8 bytes each. */
#include "bench/serve_stats.h"

#include "base/mem.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int reserve(sh_bsamples *s, size_t more) {
  if (s->private_cap - s->n >= more) return 0;
  size_t cap = s->private_cap ? s->private_cap : 64;
  while (cap - s->n < more) {
    if (cap > SIZE_MAX / 2 / sizeof *s->v) return SH_ERR_NOMEM;
    cap *= 2;
  }
  double *v = sh_realloc(s->v, cap * sizeof *v);
  if (!v) return SH_ERR_NOMEM;
  s->v = v;
  s->private_cap = cap;
  return 0;
}

int sh_bsamples_add(sh_bsamples *s, double v) {
  if (reserve(s, 1) < 0) return SH_ERR_NOMEM;
  s->v[s->n++] = v;
  return 0;
}

int sh_bsamples_add_all(sh_bsamples *s, const sh_bsamples *more) {
  if (more->n == 0) return 0;
  if (reserve(s, more->n) < 0) return SH_ERR_NOMEM;
  memcpy(s->v + s->n, more->v, more->n * sizeof *s->v);
  s->n += more->n;
  return 0;
}

void sh_bsamples_free(sh_bsamples *s) {
  sh_free(s->v);
  *s = (sh_bsamples){0};
}

double sh_bpercentile(const double *v, size_t n, double percent) {
  if (n == 0) return 0;
  double at = percent / 100 * (double)(n - 1), below = floor(at);
  size_t i = (size_t)below;
  if (i + 1 >= n) return v[n - 1];
  return v[i] + (v[i + 1] - v[i]) * (at - below);
}

static int upwards(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void sh_bsummary_of(sh_bsummary *out, sh_bsamples *s) {
  double sum = 0, square = 0;
  *out = (sh_bsummary){.n = s->n};
  if (s->n == 0) return;
  qsort(s->v, s->n, sizeof *s->v, upwards);
  for (size_t i = 0; i < s->n; i++) sum += s->v[i];
  out->mean = sum / (double)s->n;
  for (size_t i = 0; i < s->n; i++) square += (s->v[i] - out->mean) * (s->v[i] - out->mean);
  out->sd = sqrt(square / (double)s->n);
  for (int p = 0; p <= 100; p++) out->q[p] = sh_bpercentile(s->v, s->n, p);
}
