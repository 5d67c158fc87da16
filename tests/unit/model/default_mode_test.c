/* Default mode on quantized checkpoints: products of integers with activations rounded to int8. That each product is the defined one is
 * checkkern's to show; here the model that is made of them: the same bits however tokens are cut and batched and on any number of threads,
 * and logits as far from exact mode as rounding explains.
 *
 * How far that is: the 32 values of a block are rounded to steps of d = max / 127, an error of d / sqrt(12) each when all fractions are as
 * likely. Of 32 normal values the largest is about 2.1 to 2.5 deviations, so the error is 0.5 to 0.6% of the values' own size, and of a
 * product with them as well. A layer passes four such products to the residual stream or through a nonlinearity, and independent errors
 * add as squares: with L layers and the head, 0.6% sqrt(4 L + 1) of the logits' size. Keys and values in int8 have the same blocks of 32
 * and add two of the kind in each layer with attention. A sharp softmax or a changed choice of expert may multiply it; the test allows four
 * times, where logits that have nothing to do with the right ones are off by 140%. dense-small has tied, sharp weights: what float32
 * rounding does to its residual stream is 3.5 to 10 times what it does to the others' (GOLD_CASES), so it is allowed 3.5 times as much here
 * too. */
#include "unit/model/golden_rig.h"

#define CASE(model)                                                                                                                        \
  { "models/" model, "models/" model "/golden.safetensors", "", 0, 0, 0, false }
#define GGUF_CASE(name)                                                                                                                    \
  { "gguf/" name ".gguf", "gguf/golden.safetensors", name ".", 0, 0, 0, false }
static const gold_case CASES[] = {
    CASE("dense-small-awq"),
    CASE("dense-small-gptq"),
    CASE("dense-small-gptq-actorder-asym"),
    CASE("dense-small-ct-sym-g32"),
    CASE("dense-small-ct-asym-g128"),
    CASE("moe-small-awq"),
    CASE("moe-small-gptq-actorder-asym"),
    CASE("moe-small-ct-asym-g128"),
    GGUF_CASE("moe-small-Q4_0"),
    GGUF_CASE("moe-small-Q8_0"),
    GGUF_CASE("dense-real-Q4_0"),
    GGUF_CASE("dense-real-Q5_0"),
    GGUF_CASE("dense-real-Q5_1"),
    GGUF_CASE("dense-real-Q4_K_M"),
    GGUF_CASE("dense-real-Q5_K_M"),
};
enum { N_CASES = sizeof CASES / sizeof *CASES, PROMPT = 5 };

/* The prompt's logits [n, V] from a rig of its own, `chunk` tokens at a time (sh_free). */
static float *logits_of(const gold_case *c, rig_opts o, int chunk, int *n, int *vocab, int *layers) {
  rig r;
  sh_st *st = gold_open(c);
  int32_t *ids = gold_ints(st, c, "prompt", PROMPT, n);
  assert_non_null(ids);
  rig_open(&r, c, o);
  rig_feed(&r, 0, ids, *n, chunk);
  size_t bytes = (size_t)*n * (size_t)r.V * sizeof(float);
  float *out = sh_malloc(bytes);
  assert_non_null(out);
  memcpy(out, r.seq[0].trace, bytes);
  *vocab = r.V;
  *layers = sh_model_config(r.m)->n_layers;
  rig_close(&r);
  sh_st_close(st);
  sh_free(ids);
  return out;
}

/* The prompt's logits (sh_free), which are the same for all of the first n_ways ways. */
static float *same_in_all_ways(const gold_case *c, sh_kv_type kv, size_t n_ways, int *n, int *V) {
  static const struct { int threads, chunk; } ways[] = {{1, 1}, {2, 7}, {3, 1 << 20}, {1, 13}};
  int L;
  float *want = logits_of(c, (rig_opts){.panels = true, .threads = 2, .kv = kv}, 1 << 20, n, V, &L);
  for (size_t i = 0; i < n_ways; i++) {
    float *got = logits_of(c, (rig_opts){.panels = true, .threads = ways[i].threads, .kv = kv}, ways[i].chunk, n, V, &L);
    if (memcmp(got, want, (size_t)*n * (size_t)*V * sizeof *got))
      fail_msg("keys and values in %s, %d threads, chunks of %d: other bits", sh_kv_name(kv), ways[i].threads, ways[i].chunk);
    sh_free(got);
  }
  return want;
}

static void bits_do_not_depend_on_chunks_batches_or_threads(void **state) {
  const gold_case *c = *state;
  int n, V;
  sh_free(same_in_all_ways(c, SH_KV_I8, 2, &n, &V));
  float *want = same_in_all_ways(c, SH_KV_F32, rig_quick() ? 2 : 4, &n, &V);
  rig r; /* two sequences in one batch, one of them the prompt */
  sh_st *st = gold_open(c);
  int m, k;
  int32_t *ids = gold_ints(st, c, "prompt", PROMPT, &m), *other = gold_ints(st, c, "prompt", 2, &k);
  rig_open(&r, c, (rig_opts){.panels = true});
  rig_step(&r, (rig_part[]){{1, other, k}, {0, ids, m}}, 2);
  assert_memory_equal(r.seq[0].trace, want, (size_t)n * (size_t)V * sizeof *want);
  rig_close(&r);
  sh_st_close(st);
  sh_free(ids), sh_free(other), sh_free(want);
}

/* KL(softmax(exact) || softmax(got)) in nats. */
static double divergence(const float *exact, const float *got, int n) {
  double top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, kl = 0;
  const float *x[2] = {exact, got};
  for (int s = 0; s < 2; s++) {
    for (int i = 0; i < n; i++) top[s] = fmax(top[s], (double)x[s][i]);
    for (int i = 0; i < n; i++) sum[s] += exp((double)x[s][i] - top[s]);
  }
  for (int i = 0; i < n; i++) {
    double p = (double)exact[i] - top[0] - log(sum[0]), q = (double)got[i] - top[1] - log(sum[1]);
    kl += exp(p) * (p - q);
  }
  return kl;
}

static void far_as_explained(const gold_case *c, sh_kv_type kv) {
  int n, V, L;
  float *exact = logits_of(c, (rig_opts){.kv = SH_KV_F32}, 1 << 20, &n, &V, &L);
  float *got = logits_of(c, (rig_opts){.kv = kv, .panels = true}, 1 << 20, &n, &V, &L);
  double off = 0, size = 0, kl = 0;
  for (int t = 0; t < n; t++) {
    double mean = 0;
    kl += divergence(exact + t * V, got + t * V, V) / n;
    for (int i = 0; i < V; i++) mean += (double)exact[t * V + i] / V;
    for (int i = 0; i < V; i++) {
      double d = (double)got[t * V + i] - (double)exact[t * V + i], s = (double)exact[t * V + i] - mean;
      assert_true(isfinite(d));
      off += d * d, size += s * s;
    }
  }
  double share = sqrt(off / size), expected = 0.006 * sqrt((kv == SH_KV_I8 ? 6.0 : 4.0) * L + 1);
  printf("%s, KV in %s: logits off by %.2f%% of their size, by the estimate %.2f%%; KL %.5f\n", c->model, sh_kv_name(kv), 100 * share,
         100 * expected, kl);
  if (!strstr(c->model, "dense-small")) assert_true(kl <= 0.005);
  assert_true(share > 0.1 * expected); /* the mode is really another one */
  assert_true(share < 4 * expected * (strstr(c->model, "dense-small") ? 3.5 : 1));
  sh_free(exact), sh_free(got);
}

static void logits_are_as_far_from_exact_as_rounding_explains(void **state) {
  far_as_explained(*state, SH_KV_F32);
  far_as_explained(*state, SH_KV_I8);
}

static struct CMUnitTest tests[2 * N_CASES];
static char names[2 * N_CASES][128];

int main(int argc, char **argv) {
  int n = 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (int i = 0; i < N_CASES; i++) {
    for (int far = 0; far < 2; far++, n++) {
      snprintf(names[n], sizeof names[0], "%s: %s", CASES[i].model,
               far ? "logits_are_as_far_from_exact_as_rounding_explains" : "bits_do_not_depend_on_chunks_batches_or_threads");
      tests[n] = (struct CMUnitTest){.name = names[n],
                                     .test_func = far ? logits_are_as_far_from_exact_as_rounding_explains
                                                      : bits_do_not_depend_on_chunks_batches_or_threads,
                                     .initial_state = (void *)(uintptr_t)&CASES[i]};
    }
  }
  return _cmocka_run_group_tests("default_mode", tests, (size_t)n, NULL, NULL);
}
