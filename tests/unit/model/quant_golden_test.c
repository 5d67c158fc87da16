/* The published quantized layouts against reference logits: those of the dequantized weights, computed by transformers in float32. Every
 * layout of a dense and of a MoE checkpoint, prompts 2 and 5, in exact mode, on both kernel tables. The bounds are those of the unquantized
 * checkpoints (tests/golden/README.md); a zero point or a column order that is off by one misses them by orders of magnitude. */
#include "unit/model/golden_rig.h"

#define CASE(model, bound)                                                                                                                 \
  { "models/" model, "models/" model "/golden.safetensors", "", bound, 0, 0, false }
static const gold_case CASES[] = {
    CASE("dense-small-awq", 1e-3f),        CASE("dense-small-gptq", 1e-3f),         CASE("dense-small-gptq-actorder-asym", 1e-3f),
    CASE("dense-small-ct-sym-g32", 1e-3f), CASE("dense-small-ct-asym-g128", 1e-3f), CASE("dense-small-fp8-block", 1e-3f),
    CASE("moe-small-awq", 5e-5f),          CASE("moe-small-gptq", 5e-5f),           CASE("moe-small-gptq-actorder-asym", 5e-5f),
    CASE("moe-small-ct-sym-g32", 5e-5f),   CASE("moe-small-ct-asym-g128", 5e-5f),   CASE("moe-small-fp8-block", 5e-5f),
};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static void agree(const gold_case *c, const char *cpu) {
  static const int PROMPTS[] = {2, 5};
  rig r;
  rig_open(&r, c, (rig_opts){.kv = SH_KV_F32, .cpu = cpu});
  sh_st *st = gold_open(c);
  for (int i = 0; i < 2; i++) {
    int n, rows;
    int32_t *ids = gold_ints(st, c, "prompt", PROMPTS[i], &n);
    float *want = gold_floats(st, c, "logits", PROMPTS[i], &rows);
    assert_non_null(ids);
    assert_int_equal(rows, n);
    rig_restart(&r, 0);
    rig_feed(&r, 0, ids, n, r.o.max_tokens);
    float err = max_error(r.seq[0].trace, want, (size_t)n * (size_t)r.V);
    printf("%s, %s, prompt %d: within %.2g (bound %.2g)\n", c->model, cpu ? cpu : "native", PROMPTS[i], (double)err, (double)c->bound);
    assert_true(err <= c->bound);
    sh_free(ids);
    sh_free(want);
  }
  sh_st_close(st);
  rig_close(&r);
}

static void logits_are_those_of_the_dequantized_weights(void **state) { agree(*state, NULL); }
static void the_plain_c_kernels_agree_too(void **state) { agree(*state, "baseline"); }

static struct CMUnitTest tests[2 * N_CASES];
static char names[2 * N_CASES][128];

int main(int argc, char **argv) {
  int n = 0;
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (int i = 0; i < N_CASES; i++) {
    for (int plain = 0; plain < 2; plain++, n++) {
      const char *what = plain ? "the_plain_c_kernels_agree_too" : "logits_are_those_of_the_dequantized_weights";
      snprintf(names[n], sizeof names[0], "%s: %s", CASES[i].model, what);
      tests[n] = (struct CMUnitTest){.name = names[n],
                                     .test_func = plain ? the_plain_c_kernels_agree_too : logits_are_those_of_the_dequantized_weights,
                                     .initial_state = (void *)(uintptr_t)&CASES[i]};
    }
  }
  return _cmocka_run_group_tests("quant_golden", tests, (size_t)n, NULL, NULL);
}
