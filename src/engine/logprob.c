/* Log probabilities of a row of logits, as the model gave them (vLLM's default, "raw"): before masks, penalties and temperature.
 *
 * Engine thread; pure functions, no memory of their own. The normaliser adds floats in double: float sums over 250k ids lose four digits.
 * The k most likely come from a heap of k entries in one pass, since k is 20 and the row is 250k. */
#include "engine/logprob.h"

#include "engine/weight_exp.h"

#include <math.h>

double sh_logprob_norm(const float *x, int n) {
  float max = -INFINITY;
  for (int i = 0; i < n; i++) {
    if (x[i] != x[i]) return NAN;
    if (x[i] > max) max = x[i];
  }
  if (!isfinite(max)) return (double)max;
  double sum = 0;
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    float w[16];
    for (int j = 0; j < 16; j++) w[j] = sh_weight_exp(x[i + j] - max);
    for (int j = 0; j < 16; j++) sum += (double)w[j];
  }
  for (; i < n; i++) sum += (double)sh_weight_exp(x[i] - max);
  return (double)max + log(sum);
}

sh_logprob sh_logprob_of(const float *x, int n, double lse, int32_t id) {
  int32_t above = 0;
  for (int i = 0; i < n; i++) above += x[i] > x[id];
  return (sh_logprob){id, (float)((double)x[id] - lse), above + 1};
}

/* While the heap is built, .logprob holds the raw logit. "a before b": less likely, so the root is the entry to beat. */
static bool before(const sh_logprob *a, const sh_logprob *b) { return a->logprob != b->logprob ? a->logprob < b->logprob : a->id > b->id; }

static void sift_down(sh_logprob *h, int n, int i) {
  for (;;) {
    int least = i, l = 2 * i + 1, r = l + 1;
    if (l < n && before(&h[l], &h[least])) least = l;
    if (r < n && before(&h[r], &h[least])) least = r;
    if (least == i) return;
    sh_logprob t = h[i];
    h[i] = h[least];
    h[least] = t;
    i = least;
  }
}

int sh_logprob_top(const float *x, int n, double lse, int k, sh_logprob *out) {
  if (k > n) k = n;
  if (k <= 0) return 0;
  for (int i = 0; i < k; i++) out[i] = (sh_logprob){i, x[i], 0};
  for (int i = k / 2 - 1; i >= 0; i--) sift_down(out, k, i);
  for (int i = k; i < n; i++) {
    if (!(x[i] > out[0].logprob)) continue; /* an equal logit has the larger id: it stays out */
    out[0] = (sh_logprob){i, x[i], 0};
    sift_down(out, k, 0);
  }
  for (int m = k - 1; m > 0; m--) { /* the least likely goes to the end: what remains is most likely first */
    sh_logprob t = out[0];
    out[0] = out[m];
    out[m] = t;
    sift_down(out, m, 0);
  }
  for (int i = 0; i < k; i++) {
    out[i].logprob = (float)((double)out[i].logprob - lse);
    out[i].rank = i + 1;
  }
  return k;
}
