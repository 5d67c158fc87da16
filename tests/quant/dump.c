/* Runs the searches of src/quant on one made-up layer and writes inputs and results as safetensors, for tests/quant/test_reference.py.
 *
 *   dump OUT.safetensors N K TOKENS GROUP BITS SYMMETRIC(0|1) SEED */
#include "formats/safetensors.h"
#include "quant/awq.h"
#include "quant/gptq.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OUT = 32 };
static sh_ftensor out[MAX_OUT];
static int n_out;

static void put(const char *name, sh_dtype t, const void *p, int64_t rows, int64_t cols) {
  sh_ftensor *f = &out[n_out++];
  *f = (sh_ftensor){.name = name, .type = t, .type_name = sh_dtype_name(t), .n_dims = 2, .dims = {rows, cols}, .data = p};
  f->bytes = (size_t)(rows * cols) * (size_t)sh_dtype_block_bytes(t);
}

static double uniform(uint64_t *s) {
  *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
  return (double)(*s >> 11) / 9007199254740992.0;
}

static float normal(uint64_t *s) { return (float)(sqrt(-2 * log(uniform(s) + 1e-300)) * cos(6.283185307179586 * uniform(s))); }

static int fail(const sh_error *e) {
  fprintf(stderr, "dump: %s\n", e->text);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 9) {
    fprintf(stderr, "usage: dump OUT.safetensors N K TOKENS GROUP BITS SYMMETRIC SEED\n");
    return 2;
  }
  int64_t N = strtol(argv[2], NULL, 10), K = strtol(argv[3], NULL, 10), T = strtol(argv[4], NULL, 10), G = strtol(argv[5], NULL, 10);
  sh_qgrid g = {.bits = (int)strtol(argv[6], NULL, 10), .group = G, .symmetric = strtol(argv[7], NULL, 10) != 0, .scale_type = SH_F16};
  uint64_t seed = strtoull(argv[8], NULL, 10) * 2654435761u + 88172645463325252u;
  sh_error e = {0};
  float *w = malloc((size_t)(N * K) * 4), *x = malloc((size_t)(T * K) * 4), *mean = malloc((size_t)K * 4), *wmean = malloc((size_t)K * 4);
  float *cand = malloc((size_t)(SH_QCANDS * K) * 4);
  double err[SH_QCANDS];
  if (!w || !x || !mean || !wmean || !cand) return 1;
  for (int64_t i = 0; i < N * K; i++) w[i] = 0.05f * normal(&seed);
  for (int64_t c = 0; c < K; c++) { /* a few channels carry much, and neighbours move together */
    float size = c % 17 == 3 ? 8.0f : 0.3f + (float)uniform(&seed);
    for (int64_t t = 0; t < T; t++) x[t * K + c] = size * (normal(&seed) + (c ? 0.5f * x[t * K + c - 1] / 8.0f : 0));
  }
  sh_qwork k;
  sh_qsite site, whole;
  if (sh_qwork_init(&k, 2, NULL, &e) < 0 || sh_qsite_new(&site, K, T, T, G, &e) < 0 || sh_qsite_new(&whole, K, T, T, K, &e) < 0)
    return fail(&e);
  if (sh_qsite_add(&k, &site, x, K, (int)T, &e) < 0 || sh_qsite_add(&k, &whole, x, K, (int)T, &e) < 0) return fail(&e);
  sh_qsite_end(&site);
  sh_qsite_end(&whole);
  sh_wview v = {.type = SH_F32, .rows = N, .cols = K, .data = (const uint8_t *)w, .row_bytes = (size_t)K * 4, .name = "w"};
  sh_qreader r = {.w = &v, .rows = site.rows, .n_rows = site.n_rows, .weight = 1};
  sh_qscaling sc = {.cols = K, .n_channels = K};
  for (int64_t c = 0; c < K; c++) mean[c] = (float)(site.abs[c] / (double)T);
  if (sh_qweight_means(&k, &r, 1, &sc, G, wmean, &e) < 0) return fail(&e);
  for (int i = 0; i < SH_QCANDS; i++) sh_qscale_candidate(i, mean, wmean, K, cand + i * K);
  if (sh_qscale_errors(&k, &r, 1, &sc, &g, cand, SH_QCANDS, err, &e) < 0) return fail(&e);
  int best = 0;
  for (int i = 1; i < SH_QCANDS; i++)
    if (err[i] < err[best]) best = i;
  sh_qcodes awq, gptq;
  sh_qfit fit = {.w = &v, .in = cand + best * K, .site = &site}, comp = {.w = &v, .site = &whole};
  sh_qfactor factor;
  sh_qgptq go = {.act_order = true, .damp = 0.01};
  if (sh_qawq_matrix(&k, &fit, &g, &awq, &e) < 0 || sh_qfactor_new(&k, &whole, &go, &factor, &e) < 0) return fail(&e);
  if (sh_qgptq_matrix(&k, &comp, &factor, &g, &gptq, &e) < 0) return fail(&e);
  double errors[4] = {fit.err_nearest, fit.err, comp.err_nearest, comp.err};
  put("w", SH_F32, w, N, K);
  put("x", SH_F32, x, T, K);
  put("mean", SH_F32, mean, 1, K);
  put("wmean", SH_F32, wmean, 1, K);
  put("cand", SH_F32, cand, SH_QCANDS, K);
  put("err", SH_F64, err, 1, SH_QCANDS);
  put("errors", SH_F64, errors, 1, 4);
  put("awq.q", SH_U8, awq.q, N, K);
  put("awq.scales", SH_F32, awq.scales, N, K / G);
  put("gptq.q", SH_U8, gptq.q, N, K);
  put("gptq.scales", SH_F32, gptq.scales, N, K / G);
  put("gptq.order", SH_I32, factor.order, 1, K);
  if (awq.zeros) put("awq.zeros", SH_U8, awq.zeros, N, K / G);
  if (gptq.zeros) put("gptq.zeros", SH_U8, gptq.zeros, N, K / G);
  if (sh_st_write(argv[1], out, n_out, &e) < 0) return fail(&e);
  sh_qcodes_free(&awq);
  sh_qcodes_free(&gptq);
  sh_qfactor_free(&factor);
  sh_qsite_free(&site);
  sh_qsite_free(&whole);
  sh_qwork_free(&k);
  free(w), free(x), free(mean), free(wmean), free(cand);
  return 0;
}
