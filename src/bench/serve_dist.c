/* Lengths, arrivals and the lists that options hold. Any thread.
 *
 * The generator is splitmix64: a step is an addition and a hash, so a stream of its own for every request costs nothing, and request i of a
 * load has the same lengths however many run at once. Refused alternative: the C library's rand, whose numbers differ between systems. */
#include "bench/serve_dist.h"

#include "base/text.h"
#include <math.h>
#include <string.h>

/* ---- Numbers ---- */

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

sh_brng sh_brng_at(uint64_t seed, uint64_t stream, uint64_t index) {
  return (sh_brng){mix(mix(mix(seed + 0x9e3779b97f4a7c15u) ^ (stream + 0x632be59bd9b4e019u)) ^ (index + 0x8cb92ba72f3d8dd7u))};
}

uint64_t sh_brng_next(sh_brng *r) { return mix(r->private_s += 0x9e3779b97f4a7c15u); }

double sh_brng_unit(sh_brng *r) { return ((double)(sh_brng_next(r) >> 11) + 0.5) * 0x1p-53; }

uint64_t sh_brng_below(sh_brng *r, uint64_t n) { return (uint64_t)(((unsigned __int128)sh_brng_next(r) * n) >> 64); }

double sh_brng_normal(sh_brng *r) {
  double u = sh_brng_unit(r), v = sh_brng_unit(r);
  return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); below a shape of 1 by their boost. */
double sh_brng_gamma(sh_brng *r, double shape) {
  if (shape == 1) return -log(sh_brng_unit(r));
  if (shape < 1) return sh_brng_gamma(r, shape + 1) * pow(sh_brng_unit(r), 1 / shape);
  double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
  for (;;) {
    double x = sh_brng_normal(r), v = 1 + c * x;
    if (v <= 0) continue;
    v = v * v * v;
    if (log(sh_brng_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
  }
}

double sh_barrival_gap(sh_brng *r, double rate, double burstiness) {
  return isinf(rate) ? 0 : sh_brng_gamma(r, burstiness) / (rate * burstiness);
}

/* ---- Lengths ---- */

/* The whole of text[0..n) as a number of tokens. */
static int count_of(const char *text, size_t n, int64_t *out) {
  char copy[24];
  if (n == 0 || n >= sizeof copy) return SH_ERR_ARG;
  memcpy(copy, text, n);
  copy[n] = '\0';
  return sh_parse_i64(copy, out);
}

static int parse_normal(sh_blen *out, const char *text) {
  char copy[64];
  const char *comma = strchr(text, ',');
  size_t n = comma ? (size_t)(comma - text) : 0;
  if (!comma || n >= sizeof copy) return SH_ERR_ARG;
  memcpy(copy, text, n);
  copy[n] = '\0';
  if (sh_parse_f64(copy, &out->mean) < 0 || sh_parse_f64(comma + 1, &out->sd) < 0) return SH_ERR_ARG;
  return out->mean >= 1 && out->mean <= SH_BLEN_MAX && out->sd >= 0 && out->sd <= SH_BLEN_MAX ? 0 : SH_ERR_ARG;
}

static int parse_range(sh_blen *out, const char *text) {
  const char *dash = strchr(text, '-');
  size_t n = dash ? (size_t)(dash - text) : strlen(text);
  if (count_of(text, n, &out->low) < 0) return SH_ERR_ARG;
  out->high = out->low;
  if (dash && count_of(dash + 1, strlen(dash + 1), &out->high) < 0) return SH_ERR_ARG;
  out->kind = dash ? SH_BLEN_UNIFORM : SH_BLEN_FIXED;
  return out->low >= 1 && out->high >= out->low && out->high <= SH_BLEN_MAX ? 0 : SH_ERR_ARG;
}

int sh_blen_parse(sh_blen *out, const char *option, const char *text, sh_error *e) {
  int rc;
  *out = (sh_blen){0};
  if (sh_str_starts(text, "file:")) {
    out->kind = SH_BLEN_FILE;
    out->path = text + 5;
    rc = *out->path ? 0 : SH_ERR_ARG;
  } else if (sh_str_starts(text, "normal:")) {
    out->kind = SH_BLEN_NORMAL;
    rc = parse_normal(out, text + 7);
  } else {
    rc = parse_range(out, text);
  }
  if (rc == 0) return 0;
  return sh_fail(e, SH_ERR_ARG, "%s is \"%.80s\", wanted tokens from 1 to %d: N, LOW-HIGH, normal:MEAN,SD or file:FILE.jsonl", option, text,
                 SH_BLEN_MAX);
}

int64_t sh_blen_draw(const sh_blen *l, sh_brng *r) {
  if (l->kind == SH_BLEN_UNIFORM) return l->low + (int64_t)sh_brng_below(r, (uint64_t)(l->high - l->low + 1));
  if (l->kind == SH_BLEN_FIXED) return l->low;
  double v = round(l->mean + l->sd * sh_brng_normal(r));
  return v < 1 ? 1 : v > SH_BLEN_MAX ? SH_BLEN_MAX : (int64_t)v;
}

/* ---- Lists ---- */

/* Copies the next item of a list that commas or blanks divide; false at its end. SH_ERR_ARG in *rc: an item that does not fit. */
static bool next_item(const char **at, char item[48], int *rc) {
  const char *s = *at + strspn(*at, ", ");
  size_t n = strcspn(s, ", ");
  *at = s + n;
  if (n >= 48) *rc = SH_ERR_ARG;
  if (n == 0 || n >= 48) return false;
  memcpy(item, s, n);
  item[n] = '\0';
  return true;
}

static int list_fail(sh_error *e, const char *option, const char *text, const char *wanted, int max) {
  return sh_fail(e, SH_ERR_ARG, "%s is \"%.80s\", wanted %s, at most %d of them, with commas between", option, text, wanted, max);
}

int sh_blist_counts(int64_t *out, int max, int *n, const char *option, const char *text, sh_error *e) {
  char item[48];
  int rc = 0;
  *n = 0;
  for (const char *at = text; next_item(&at, item, &rc);) {
    if (*n == max || sh_parse_i64(item, &out[*n]) < 0 || out[*n] < 1 || out[*n] > 65536) rc = SH_ERR_ARG;
    if (rc < 0) break;
    ++*n;
  }
  return rc < 0 || *n == 0 ? list_fail(e, option, text, "numbers from 1 to 65536", max) : 0;
}

int sh_blist_rates(double *out, int max, int *n, const char *option, const char *text, sh_error *e) {
  char item[48];
  int rc = 0;
  *n = 0;
  for (const char *at = text; next_item(&at, item, &rc);) {
    if (*n == max) rc = SH_ERR_ARG;
    else if (strcmp(item, "inf") == 0) out[*n] = INFINITY;
    else if (sh_parse_f64(item, &out[*n]) < 0 || out[*n] < 1e-6 || out[*n] > 1e6) rc = SH_ERR_ARG;
    if (rc < 0) break;
    ++*n;
  }
  return rc < 0 || *n == 0 ? list_fail(e, option, text, "requests per second (0.000001 to 1000000, or inf)", max) : 0;
}

int sh_bgoal_parse(sh_bgoal *out, const char *text, sh_error *e) {
  char item[48];
  int rc = 0;
  *out = (sh_bgoal){.ttft_ms = INFINITY, .tpot_ms = INFINITY, .e2el_ms = INFINITY};
  for (const char *at = text; rc == 0 && next_item(&at, item, &rc);) {
    double *where = sh_str_starts(item, "ttft:")   ? &out->ttft_ms
                    : sh_str_starts(item, "tpot:") ? &out->tpot_ms
                    : sh_str_starts(item, "e2el:") ? &out->e2el_ms
                                                   : NULL;
    if (!where || sh_parse_f64(item + 5, where) < 0 || *where <= 0) rc = SH_ERR_ARG;
    else out->given = true;
  }
  if (rc == 0 && out->given) return 0;
  return sh_fail(e, SH_ERR_ARG, "--goodput is \"%.80s\", wanted limits in ms such as ttft:200,tpot:50,e2el:2000", text);
}
