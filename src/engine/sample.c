/* Sampling: which ids stay, with what weight, and which one a uniform number picks.
 *
 * Engine thread. Order and meaning are vLLM's: temperature, min_p, top_k (ids equal to the k-th stay), top_p over what is left (an id stays
 * while the mass of more likely ids is below top_p; equal logits count by id). The draw walks the kept ids in ascending order and stops
 * where the running sum passes u times the total, all in double: one defined order, so the same logits and u give the same id everywhere.
 *
 * Nothing sorts the vocabulary. A cut (the k-th largest, or where the mass reaches top_p) is found by a histogram over the distance from
 * the maximum, then exactly inside the one bucket that holds it, by three radix passes over the floats' ordered bits. The cost is a few
 * passes over 250k floats whatever the distribution; a heap or quickselect is faster for tiny k and falls apart for top_p = 0.99 over flat
 * logits.
 *
 * Refused: Gumbel noise per id as in vLLM. It needs a random number for each of 250k ids where the inverse of the distribution function
 * needs one. */
#include "engine/sample.h"

#include "base/mem.h"
#include "engine/weight_exp.h"

#include <math.h>
#include <string.h>

static const float GREEDY_BELOW = 1e-5f; /* vLLM's _SAMPLING_EPS */

int sh_sampler_init(sh_sampler *s, int vocab, sh_error *e) {
  memset(s, 0, sizeof *s);
  s->vocab = vocab;
  s->ids = sh_calloc((size_t)vocab, sizeof *s->ids);
  s->w = sh_calloc((size_t)vocab, sizeof *s->w);
  s->cand = sh_calloc((size_t)vocab, sizeof *s->cand);
  s->cand_w = sh_calloc((size_t)vocab, sizeof *s->cand_w);
  if (s->ids && s->w && s->cand && s->cand_w) return 0;
  sh_sampler_free(s);
  return sh_fail(e, SH_ERR_NOMEM, "no memory for the sampler's scratch over %d ids", vocab);
}

void sh_sampler_free(sh_sampler *s) {
  sh_free(s->ids);
  sh_free(s->w);
  sh_free(s->cand);
  sh_free(s->cand_w);
  s->ids = s->cand = NULL;
  s->w = s->cand_w = NULL;
}

int64_t sh_sampler_bytes(int vocab) { return (int64_t)vocab * 16; }

/* --- Finding a cut
 * --------------------------------------------------------------------------------------------------------------------------- */

/* Bits of a float in the order of its value (no NaN; + 0 makes one of the two zeros). */
static uint32_t ordered(float x) {
  uint32_t b;
  x += 0.0f;
  memcpy(&b, &x, sizeof b);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* 1/32 nat per bucket, the last holds everything further than 64 away; falls as x grows, so bucket 0 has the most likely. */
static int linear_bucket(float max, float x) {
  float d = (max - x) * 32.0f;
  return d < (float)(SH_SAMPLE_BUCKETS - 1) ? (int)d : SH_SAMPLE_BUCKETS - 1;
}

/* The first bucket at which the mass above plus its own reaches the target, or the last non-empty one when rounding keeps the sum below it.
 * *above grows by the mass of the buckets before it. step: +1 or -1, the direction of falling likelihood. */
static int crossing(const double *mass, int n, int step, double target, double *above) {
  int last = -1;
  double before_last = *above, acc = *above;
  for (int k = 0, b = step > 0 ? 0 : n - 1; k < n; k++, b += step) {
    if (mass[b] == 0) continue;
    last = b;
    before_last = acc;
    acc += mass[b];
    if (acc >= target) break;
  }
  *above = before_last;
  return last;
}

/* Walking the kept ids from the most likely down, the logit at which the summed weight reaches `target`: an id stays when its logit is
 * above the result. For ids equal to it, *above (the weight strictly above) tells how many stay. weigh: by s->w, else each counts 1 and the
 * k-th largest is found. */
static float find_cut(sh_sampler *s, const float *x, float max, bool weigh, double target, double *above) {
  memset(s->mass, 0, sizeof s->mass);
  for (int i = 0; i < s->m; i++) s->mass[linear_bucket(max, x[s->ids[i]])] += weigh ? (double)s->w[i] : 1.0;
  *above = 0;
  int b = crossing(s->mass, SH_SAMPLE_BUCKETS, 1, target, above);
  int n = 0;
  for (int i = 0; i < s->m; i++) {
    if (linear_bucket(max, x[s->ids[i]]) != b) continue;
    s->cand[n] = s->ids[i];
    s->cand_w[n++] = weigh ? s->w[i] : 1.0f;
  }
  static const struct { int shift, bits; } level[3] = {{21, 11}, {10, 11}, {0, 10}};
  for (int l = 0; l < 3; l++) {
    int size = 1 << level[l].bits;
    memset(s->mass, 0, sizeof s->mass);
    for (int i = 0; i < n; i++) s->mass[(ordered(x[s->cand[i]]) >> level[l].shift) & (uint32_t)(size - 1)] += (double)s->cand_w[i];
    uint32_t hit = (uint32_t)crossing(s->mass, size, -1, target, above);
    int kept = 0;
    for (int i = 0; i < n; i++) {
      if (((ordered(x[s->cand[i]]) >> level[l].shift) & (uint32_t)(size - 1)) != hit) continue;
      s->cand[kept] = s->cand[i];
      s->cand_w[kept++] = s->cand_w[i];
    }
    n = kept;
  }
  return x[s->cand[0]];
}

/* --- Filters
 * --------------------------------------------------------------------------------------------------------------------------------- */

enum { SMALL_K = 256, LANES = 16 }; /* loops over 16 at a time are what the compiler makes vectors of */

/* The k-th largest of x, by a heap of k floats whose root is the least: one pass, nearly always one comparison an id. k <= SMALL_K <=
 * vocab. */
static float kth_of_all(sh_sampler *s, const float *x, int k) {
  float *h = s->cand_w;
  for (int i = 0; i < k; i++) h[i] = -INFINITY;
  for (int i = 0; i < s->vocab; i++) {
    if (!(x[i] > h[0])) continue;
    int at = 0;
    for (int c; (c = 2 * at + 1) < k; at = c) {
      if (c + 1 < k && h[c + 1] < h[c]) c++;
      if (h[c] >= x[i]) break;
      h[at] = h[c];
    }
    h[at] = x[i];
  }
  return h[0];
}

static bool block_has(const float *x, float floor) {
  int any = 0;
  for (int j = 0; j < LANES; j++) any |= x[j] >= floor;
  return any != 0;
}

static void keep_at_least(sh_sampler *s, const float *x, float floor) {
  int m = 0;
  for (int i = 0; i < s->vocab; i += LANES) {
    int end = s->vocab - i < LANES ? s->vocab : i + LANES;
    if (end - i == LANES && !block_has(x + i, floor)) continue;
    for (int j = i; j < end; j++) {
      s->ids[m] = j;
      m += x[j] >= floor && x[j] > -INFINITY;
    }
  }
  s->m = m;
}

static void keep_top_k(sh_sampler *s, const float *x, float max, int k) {
  double above;
  float cut = find_cut(s, x, max, false, k, &above);
  int m = 0;
  for (int i = 0; i < s->m; i++) {
    int32_t id = s->ids[i];
    s->ids[m] = id;
    m += x[id] >= cut;
  }
  s->m = m;
}

static void weigh(sh_sampler *s, const float *x, float max) {
  for (int i = 0; i < s->m; i++) s->w[i] = x[s->ids[i]] - max;
  int i = 0;
  for (; i + 16 <= s->m; i += 16)
    for (int j = 0; j < 16; j++) s->w[i + j] = sh_weight_exp(s->w[i + j]);
  for (; i < s->m; i++) s->w[i] = sh_weight_exp(s->w[i]);
}

static double total(const sh_sampler *s) {
  double sum = 0;
  for (int i = 0; i < s->m; i++) sum += (double)s->w[i];
  return sum;
}

static void keep_top_p(sh_sampler *s, const float *x, float max, double p) {
  double above, target = p * total(s);
  float cut = find_cut(s, x, max, true, target, &above);
  int m = 0;
  bool first = true; /* the first of the equal ones always stays: the mass above it is below the target */
  for (int i = 0; i < s->m; i++) {
    int32_t id = s->ids[i];
    bool keep = x[id] > cut;
    if (x[id] == cut && (first || above < target)) {
      keep = true;
      first = false;
      above += (double)s->w[i];
    }
    if (!keep) continue;
    s->ids[m] = id;
    s->w[m++] = s->w[i];
  }
  s->m = m;
}

/* The largest logit; *broken: some are NaN or +inf. */
static float largest(const float *x, int n, bool *broken) {
  float m[LANES], max = -INFINITY;
  int bad = 0, i = 0;
  for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) {
      bad |= !(x[i + j] < INFINITY);
      m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    }
  for (; i < n; i++) {
    bad |= !(x[i] < INFINITY);
    m[0] = x[i] > m[0] ? x[i] : m[0];
  }
  for (int j = 0; j < LANES; j++) max = m[j] > max ? m[j] : max;
  *broken = bad != 0;
  return max;
}

/* All minus one: an order-preserving step for logits whose quotients would leave the floats. Those far below become -inf: no weight. */
static void subtract(float *x, int n, float what) {
  for (int i = 0; i < n; i++) x[i] -= what;
}

static void divide(float *x, int n, float by) {
  int i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) x[i + j] /= by;
  for (; i < n; i++) x[i] /= by;
}

int sh_sample_prepare(sh_sampler *s, float *x, const sh_draw *p, sh_error *e) {
  bool broken;
  float max = largest(x, s->vocab, &broken);
  if (broken) return sh_fail(e, SH_ERR_INTERNAL, "the model gave logits that are not numbers");
  if (max == -INFINITY) return sh_fail(e, SH_ERR_ARG, "every token is excluded by the request's parameters");
  s->greedy = 0;
  while (x[s->greedy] != max) s->greedy++;
  if (p->temperature < GREEDY_BELOW) return 0;
  int32_t best = s->greedy;
  s->greedy = -1;
  if (!isfinite(max / p->temperature)) subtract(x, s->vocab, max);
  if (p->temperature != 1) divide(x, s->vocab, p->temperature);
  max = x[best];
  float floor = p->min_p > 0 ? max + logf(p->min_p) : -INFINITY;
  int k = p->top_k > 0 && p->top_k < s->vocab ? p->top_k : s->vocab;
  if (k <= SMALL_K && k < s->vocab) {
    float kth = kth_of_all(s, x, k);
    if (kth > floor) floor = kth;
  }
  keep_at_least(s, x, floor);
  if (k > SMALL_K && k < s->m) keep_top_k(s, x, max, k);
  weigh(s, x, max);
  if (p->top_p < 1) keep_top_p(s, x, max, (double)p->top_p);
  s->total = total(s);
  return 0;
}

int32_t sh_sample_draw(const sh_sampler *s, double u) {
  if (s->greedy >= 0) return s->greedy;
  double target = u * s->total, acc = 0;
  int last = 0;
  for (int i = 0; i < s->m; i++) {
    if (s->w[i] == 0) continue; /* underflowed: cannot be drawn, also not by u = 0 */
    acc += (double)s->w[i];
    last = i;
    if (acc > target) break;
  }
  return s->ids[last];
}

/* --- The generator
 * --------------------------------------------------------------------------------------------------------------------------- */

/* The finaliser of splitmix64: a bijection in which every input bit moves every output bit. */
static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double sh_sample_uniform(uint64_t seed, uint64_t position, uint64_t choice) {
  uint64_t z = mix(seed + 0x9E3779B97F4A7C15u);
  z = mix(z ^ (position * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du)); /* odd multipliers: distinct counters stay distinct */
  z = mix(z ^ (choice * 0xA0761D6478BD642Fu + 0xE7037ED1A0B428DBu));
  return (double)(z >> 11) * 0x1p-53;
}
