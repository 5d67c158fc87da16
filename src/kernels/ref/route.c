/* Router of a mixture of experts: the k largest logits and their weights.
 *
 * Pure function, any thread, one variant: it costs a compare per expert. A softmax over all experts that is renormalised over the chosen
 * ones is a softmax over the chosen ones, so the others' exponentials are never taken. The list of the best so far is kept sorted; a strict
 * comparison in ascending order gives ties to the lower index by itself. A logit that is no number ranks last, so k distinct experts always
 * come out. */
#include "kernels/ref/ref.h"

#include <math.h>

/* The k best, best first; weight holds their logits. */
static void select_best(const float *logits, int n_experts, int top_k, int *index, float *weight) {
  int n = 0;
  for (int e = 0; e < n_experts; e++) {
    float v = isnan(logits[e]) ? -INFINITY : logits[e];
    if (n == top_k && !(v > weight[n - 1])) continue;
    int j = n < top_k ? n++ : n - 1;
    for (; j > 0 && v > weight[j - 1]; j--) index[j] = index[j - 1], weight[j] = weight[j - 1];
    index[j] = e, weight[j] = v;
  }
}

void sh_kern_route_ref(const float *logits, int n_experts, int top_k, int *index, float *weight) {
  select_best(logits, n_experts, top_k, index, weight);
  double max = (double)weight[0], sum = 0;
  for (int k = 0; k < top_k; k++) {
    weight[k] = (float)exp((double)weight[k] - max);
    sum += (double)weight[k];
  }
  for (int k = 0; k < top_k; k++) weight[k] = (float)((double)weight[k] / sum);
  for (int k = 1; k < top_k; k++) { /* by index: the order in which the experts' results are summed */
    int i = index[k], j = k;
    float w = weight[k];
    for (; j > 0 && index[j - 1] > i; j--) index[j] = index[j - 1], weight[j] = weight[j - 1];
    index[j] = i, weight[j] = w;
  }
}
