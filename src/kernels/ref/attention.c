/* Reference attention over one segment of keys, with the running maximum and sum that let segments follow one another.
 *
 * Pure functions, any thread. Inside a segment sums are in double; the state between segments is float32, as in the variants, because it is
 * part of the contract. Queries are independent of each other here, so a tile's shape cannot matter. */
#include "kernels/ref/ref.h"
#include "formats/dequant.h"

#include <math.h>
#include <string.h>

void sh_kern_attn_pack_ref(const float *const *q, int n_q, int head_dim, float *out) {
  for (int i = 0; i < n_q; i++) memcpy(out + (size_t)i * (size_t)head_dim, q[i], (size_t)head_dim * sizeof *out);
}

/* Rows of keys or values as float32, [n_pos, head_dim]. */
static void expand(const sh_attn_seg *a, const uint8_t *const *rows, float *out) {
  for (int j = 0; j < a->n_pos; j++, out += a->head_dim) {
    if (a->kv != SH_KV_I8) {
      sh_dequant(a->kv == SH_KV_BF16 ? SH_BF16 : SH_F32, rows[j], a->head_dim, out);
      continue;
    }
    for (int i = 0; i < a->head_dim; i++) {
      uint16_t h;
      memcpy(&h, rows[j] + a->head_dim + i / SH_KV_BLOCK * 2, 2);
      out[i] = (float)(int8_t)rows[j][i] * sh_bf16_to_f32(h);
    }
  }
}

/* One query against the first n keys. */
static void segment_query(const sh_attn_seg *a, int i, int n, const float *k, const float *v) {
  size_t d = (size_t)a->head_dim;
  const float *q = a->q + (size_t)i * d;
  float *acc = a->acc + (size_t)i * (size_t)sh_attn_stride(a->head_dim);
  double s[SH_SEG], max = (double)a->m[i];
  for (int j = 0; j < n; j++) {
    double dot = 0;
    for (size_t c = 0; c < d; c++) dot += (double)q[c] * (double)k[(size_t)j * d + c];
    s[j] = (double)(float)(dot * (double)a->scale);
    if (s[j] > max) max = s[j];
  }
  if (max == -INFINITY) return; /* nothing seen yet that counts: exp(-inf - -inf) has no value */
  double alpha = exp((double)a->m[i] - max), sum = (double)a->l[i] * alpha;
  for (int j = 0; j < n; j++) sum += s[j] = exp(s[j] - max);
  for (size_t c = 0; c < d; c++) {
    double x = (double)acc[c] * alpha;
    for (int j = 0; j < n; j++) x += s[j] * (double)v[(size_t)j * d + c];
    acc[c] = (float)x;
  }
  a->m[i] = (float)max;
  a->l[i] = (float)sum;
}

void sh_kern_attn_segment_ref(const sh_attn_seg *a) {
  float *k = a->scratch, *v = k + (size_t)SH_SEG * (size_t)a->head_dim;
  expand(a, a->k, k);
  expand(a, a->v, v);
  for (int t = 0; t < a->n_tok; t++) {
    for (int h = 0; h < a->group; h++) segment_query(a, t * a->group + h, a->limit[t], k, v);
  }
}

void sh_kern_attn_merge_ref(int n_q, int head_dim, float *m, float *l, float *acc, const float *m2, const float *l2, const float *acc2) {
  size_t stride = (size_t)sh_attn_stride(head_dim);
  for (int i = 0; i < n_q; i++) {
    if (m2[i] == -INFINITY) continue;
    double max = fmax((double)m[i], (double)m2[i]), f = exp((double)m[i] - max), f2 = exp((double)m2[i] - max);
    for (int c = 0; c < head_dim; c++) acc[i * stride + c] = (float)((double)acc[i * stride + c] * f + (double)acc2[i * stride + c] * f2);
    l[i] = (float)((double)l[i] * f + (double)l2[i] * f2);
    m[i] = (float)max;
  }
}

void sh_kern_attn_finish_ref(int head_dim, float l, const float *acc, float *y) {
  for (int c = 0; c < head_dim; c++) y[c] = (float)((double)acc[c] / (double)l);
}
