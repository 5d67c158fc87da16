/* Folders in every layout that can be written, loaded by the model: their logits are those of the same weights as float32.
 *
 * To the bit, in exact mode: a weight in registers is the float32 number that the other folder holds, and all types walk the same chain of
 * sums along k (docs/numerics.md). Where columns have an order the sums are taken in that order, and the bound is that of two float32
 * routes (tests/golden/README.md).
 *
 * layouts_test --write DIR writes the folders for tests/quant/test_layouts.py and tools/check_quant_elsewhere.py, which unpack them from
 * the layouts' definitions and by other programs. */
#include "unit/model/golden_rig.h"
#include "unit/quant/fast_dir.h"
#include "unit/quant/rtn.h"

static const char *const MODELS[] = {"dense-small", "moe-small"};
static const float BOUNDS[] = {1e-3f, 5e-5f};

static void open_golden(sh_ckpt **ck, int model) {
  char path[128];
  sh_error e = {0};
  snprintf(path, sizeof path, GOLDEN "models/%s", MODELS[model]);
  rig_ok(sh_ckpt_open(ck, path, 0, &e), &e);
}

/* The logits of a prompt in one step, then of the same one token by token: gemm and dot. */
static float *logits_of(const char *path, const int32_t *ids, int n, size_t *count) {
  rig r;
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_F32});
  rig_feed(&r, 0, ids, n, r.o.max_tokens);
  rig_feed(&r, 1, ids, n < 12 ? n : 12, 1);
  size_t one = (size_t)n * (size_t)r.V, two = (size_t)(n < 12 ? n : 12) * (size_t)r.V;
  float *out = malloc((one + two) * sizeof *out);
  memcpy(out, r.seq[0].trace, one * sizeof *out);
  memcpy(out + one, r.seq[1].trace, two * sizeof *out);
  *count = one + two;
  rig_close(&r);
  return out;
}

static void a_layout_gives_the_logits_of_its_weights(const rtn_case *x, int model) {
  char path[200], beside[220];
  sh_ckpt *ck;
  open_golden(&ck, model);
  snprintf(path, sizeof path, "%s", in_temp("out"));
  snprintf(beside, sizeof beside, "%s.f32", path);
  rtn_write(ck, x, path);
  sh_ckpt_close(ck);
  gold_case c = {.file = model ? "models/moe-small/golden.safetensors" : "models/dense-small/golden.safetensors", .prefix = ""};
  sh_st *st = gold_open(&c);
  int n;
  size_t a, b;
  int32_t *ids = gold_ints(st, &c, "prompt", 2, &n);
  float *got = logits_of(path, ids, n, &a), *want = logits_of(beside, ids, n, &b);
  assert_int_equal(a, b);
  float err = max_error(got, want, a);
  printf("%s %s: within %.2g\n", MODELS[model], x->name, (double)err);
  if (x->s.order) assert_true(err <= BOUNDS[model]);
  else assert_memory_equal(got, want, a * sizeof *got);
  free(got);
  free(want);
  sh_free(ids);
  sh_st_close(st);
}

static void dense(void **state) { a_layout_gives_the_logits_of_its_weights(*state, 0); }
static void moe(void **state) { a_layout_gives_the_logits_of_its_weights(*state, 1); }

static int write_all_to(const char *dir) {
  for (int m = 0; m < 2; m++) {
    sh_ckpt *ck;
    open_golden(&ck, m);
    for (int i = 0; i < RTN_N; i++) {
      char path[400];
      snprintf(path, sizeof path, "%s/%s-%s", dir, MODELS[m], RTN_CASES[i].name);
      rtn_write(ck, &RTN_CASES[i], path);
    }
    sh_ckpt_close(ck);
  }
  return 0;
}

static struct CMUnitTest tests[2 * RTN_N];
static char names[2 * RTN_N][96];

int main(int argc, char **argv) {
  int n = 0;
  if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_all_to(argv[2]);
  for (int i = 0; i < RTN_N; i++) {
    for (int m = 0; m < 2; m++) {
      if (rig_quick() && (i + m) % 3) continue;
      snprintf(names[n], sizeof names[0], "%s %s: a_layout_gives_the_logits_of_its_weights", MODELS[m], RTN_CASES[i].name);
      tests[n] = (struct CMUnitTest){.name = names[n],
                                     .test_func = m ? moe : dense,
                                     .setup_func = make_fast_dir,
                                     .teardown_func = remove_temp_dir,
                                     .initial_state = (void *)(uintptr_t)&RTN_CASES[i]};
      n++;
    }
  }
  return _cmocka_run_group_tests("layouts", tests, (size_t)n, NULL, NULL);
}
