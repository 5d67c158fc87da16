/* The forward pass against reference logits: every prompt and position of every golden checkpoint, HF and GGUF, in exact mode (float32 KV).
 * Also that the bounds are worth something: faults of the size of a real mistake must fail them. */
#include "unit/model/golden_rig.h"

static const rig_opts EXACT = {.kv = SH_KV_F32};

/* Largest error over all prompts of the file that are at most max_len long. */
static float worst_logits(rig *r, const gold_case *c, int max_len, int *n_prompts) {
  sh_st *st = gold_open(c);
  float worst = 0;
  *n_prompts = 0;
  for (int i = 0; i < GOLD_PROMPTS; i++) {
    int n, rows;
    int32_t *ids = gold_ints(st, c, "prompt", i, &n);
    if (!ids) continue;
    if (n <= max_len) {
      float *want = gold_floats(st, c, "logits", i, &rows);
      assert_int_equal(rows, n);
      rig_restart(r, 0);
      rig_feed(r, 0, ids, n, r->o.max_tokens);
      worst = fmaxf(worst, max_error(r->seq[0].trace, want, (size_t)n * (size_t)r->V));
      sh_free(want);
      ++*n_prompts;
    }
    sh_free(ids);
  }
  sh_st_close(st);
  return worst;
}

static int longest(void) { return rig_quick() ? 65 : 300; }

static void logits_of_every_prompt_and_position_agree(void **state) {
  const gold_case *c = *state;
  rig r;
  int n;
  rig_open(&r, c, EXACT);
  float err = worst_logits(&r, c, longest(), &n);
  printf("%s: logits of %d prompts within %.2g (bound %.2g)\n", c->model, n, (double)err, (double)c->bound);
  assert_true(n > 0);
  assert_true(err <= c->bound);
  rig_close(&r);
}

static void the_residual_stream_agrees_after_every_layer(void **state) {
  const gold_case *c = *state;
  rig r;
  int n, rows;
  float *got[SH_MAX_LAYERS + 1] = {0};
  sh_error e = {0};
  rig_open(&r, c, EXACT);
  sh_st *st = gold_open(c);
  int32_t *ids = gold_ints(st, c, "prompt", 2, &n);
  int L = sh_model_config(r.m)->n_layers;
  for (int i = 0; i <= L; i++) got[i] = sh_calloc((size_t)n * (size_t)r.H, sizeof(float));
  sh_seq seq = {.row = 0, .count = n, .pos = 0, .slot = r.seq[0].slot, .pages = r.seq[0].pages};
  sh_batch b = {.n_seqs = 1, .seqs = &seq, .n_tokens = n, .ids = ids};
  rig_ok(sh_model_forward_hidden(r.m, &b, NULL, got, &e), &e);
  float worst = 0;
  for (int i = 0; i <= L; i++) {
    float *want = gold_floats(st, c, "hidden.2", i, &rows);
    assert_non_null(want);
    assert_int_equal(rows, n);
    float err = max_error(got[i], want, (size_t)n * (size_t)r.H);
    if (i == 0) assert_true(err == 0); /* a row of the embedding is copied, not computed */
    if (err > c->hidden_bound) fail_msg("after layer %d: %g", i, (double)err);
    worst = fmaxf(worst, err);
    sh_free(want);
    sh_free(got[i]);
  }
  printf("%s: residual stream within %.2g (bound %.2g)\n", c->model, (double)worst, (double)c->hidden_bound);
  sh_free(ids);
  sh_st_close(st);
  rig_close(&r);
}

static void far_positions_of_a_long_prompt_agree(void **state) {
  const gold_case *c = *state;
  rig r;
  int n, n_at, rows;
  float worst = 0;
  rig_open(&r, c, (rig_opts){.kv = SH_KV_F32, .max_context = 3072});
  sh_st *st = gold_open(c);
  int32_t *ids = gold_ints(st, c, "long.prompt", -1, &n), *at = gold_ints(st, c, "long.positions", -1, &n_at);
  float *want = gold_floats(st, c, "long.logits", -1, &rows);
  assert_int_equal(rows, n_at);
  rig_feed(&r, 0, ids, n, r.o.max_tokens);
  for (int i = 0; i < n_at; i++)
    worst = fmaxf(worst, max_error(r.seq[0].trace + (size_t)at[i] * (size_t)r.V, want + (size_t)i * (size_t)r.V, (size_t)r.V));
  printf("%s: %d positions of %d tokens within %.2g (bound %.2g)\n", c->model, n_at, n, (double)worst, (double)c->bound);
  assert_true(worst <= c->bound);
  sh_free(ids);
  sh_free(at);
  sh_free(want);
  sh_st_close(st);
  rig_close(&r);
}

/* All prompts decode side by side. Where the reference's own margin is under c->tie another token is a tie; from there on that prompt has
 * another text. */
static void greedy_tokens_are_those_of_the_reference(void **state) {
  const gold_case *c = *state;
  rig r;
  sh_st *st = gold_open(c);
  int32_t *greedy[GOLD_PROMPTS];
  float *margin[GOLD_PROMPTS];
  bool off[GOLD_PROMPTS] = {false};
  int compared = 0, ties = 0, n_steps = 0;
  rig_open(&r, c, EXACT);
  for (int i = 0; i < GOLD_PROMPTS; i++) {
    int n;
    int32_t *ids = gold_ints(st, c, "prompt", i, &n);
    rig_feed(&r, i, ids, n, r.o.max_tokens);
    sh_free(ids);
    greedy[i] = gold_ints(st, c, "greedy", i, &n_steps);
    margin[i] = gold_floats(st, c, "margin", i, NULL);
  }
  for (int s = 0; s < n_steps && !(rig_quick() && s > 8); s++) {
    int32_t id[GOLD_PROMPTS];
    rig_part part[GOLD_PROMPTS];
    for (int i = 0; i < GOLD_PROMPTS; i++) {
      id[i] = rig_greedy(&r, i);
      part[i] = (rig_part){i, &id[i], 1};
      if (off[i]) continue;
      compared++;
      if (id[i] == greedy[i][s]) continue;
      if (margin[i][s] >= c->tie)
        fail_msg("prompt %d, step %d: token %d, reference %d with margin %g", i, s, id[i], greedy[i][s], (double)margin[i][s]);
      off[i] = true;
      ties++;
    }
    rig_step(&r, part, GOLD_PROMPTS);
  }
  printf("%s: %d greedy tokens compared, %d ties\n", c->model, compared, ties);
  for (int i = 0; i < GOLD_PROMPTS; i++) {
    sh_free(greedy[i]);
    sh_free(margin[i]);
  }
  sh_st_close(st);
  rig_close(&r);
}

/* The kernels of a machine without AVX2 keep the same bounds. */
static void the_plain_c_kernels_agree_too(void **state) {
  const gold_case *c = *state;
  rig r;
  int n;
  rig_open(&r, c, (rig_opts){.kv = SH_KV_F32, .cpu = "baseline"});
  float err = worst_logits(&r, c, 65, &n);
  printf("%s: plain C kernels: logits of %d prompts within %.2g (bound %.2g)\n", c->model, n, (double)err, (double)c->bound);
  assert_true(err <= c->bound);
  rig_close(&r);
}

/* bfloat16 keys and values are the default of serving: near the reference, and not equal to it. */
static void bfloat16_keys_and_values_stay_near(void **state) {
  const gold_case *c = *state;
  rig r;
  int n;
  rig_open(&r, c, (rig_opts){.kv = SH_KV_BF16});
  float err = worst_logits(&r, c, longest(), &n);
  printf("%s: bfloat16 KV within %.2g\n", c->model, (double)err);
  assert_true(err > c->bound); /* the exact mode is really another one */
  assert_true(err < 0.1f);
  rig_close(&r);
}

/* ---- Faults ---- */

static void theta_one_percent_off(sh_model *m) {
  for (int i = 0; i < m->cfg.rotary_dim / 2; i++) m->cfg.inv_freq[i] *= pow(1.01, -2.0 * i / m->cfg.rotary_dim);
}
static void value_heads_in_the_other_order(sh_model *m) {
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].gdn.v_tiled = !m->layers[i].gdn.v_tiled;
}
static void rotation_by_pairs(sh_model *m) {
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].attn.rope_interleaved = true;
}
static void scale_one_percent_off(sh_model *m) {
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].attn.scale *= 1.01f;
}
static void epsilon_ten_times(sh_model *m) {
  m->cfg.rms_eps *= 10;
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].attn.eps *= 10, m->layers[i].gdn.eps *= 10;
}
static void one_expert_fewer(sh_model *m) {
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].moe.top_k--;
}
static void no_shared_expert(sh_model *m) {
  for (int i = 0; i < m->cfg.n_layers; i++) m->layers[i].moe.shared_gate = m->layers[i].moe.shared_up = m->layers[i].moe.shared_down = NULL;
}

/* Each fault of the size of a real mistake must break the bound that the honest pass keeps. */
static void the_bounds_catch_small_faults(void **state) {
  const gold_case *c = *state;
  static const struct {
    const char *name;
    void (*apply)(sh_model *m);
    bool moe;
  } fault[] = {
      {"rope theta 1% off", theta_one_percent_off, false},
      {"value heads in the other order", value_heads_in_the_other_order, false},
      {"rotation of neighbouring pairs", rotation_by_pairs, false},
      {"attention scale 1% off", scale_one_percent_off, false},
      {"norm epsilon ten times", epsilon_ten_times, false},
      {"one expert fewer", one_expert_fewer, true},
      {"no shared expert", no_shared_expert, true},
  };
  for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
    rig r;
    int n;
    rig_open(&r, c, EXACT);
    if (!fault[i].moe || r.m->cfg.n_experts > 0) {
      fault[i].apply(r.m);
      float err = worst_logits(&r, c, longest(), &n);
      printf("%s: %s: %.2g, %.1f times the bound\n", c->model, fault[i].name, (double)err, (double)(err / c->bound));
      assert_true(err > c->bound);
    }
    rig_close(&r);
  }
}

/* ---- The list: one test per checkpoint and question ---- */

static struct CMUnitTest tests[8 * N_GOLD_CASES];
static char names[8 * N_GOLD_CASES][128];
static int n_tests;

static void add(CMUnitTestFunction fn, const char *name, const gold_case *c) {
  snprintf(names[n_tests], sizeof names[0], "%s: %s", c->model, name);
  tests[n_tests] = (struct CMUnitTest){.name = names[n_tests], .test_func = fn, .initial_state = (void *)(uintptr_t)c};
  n_tests++;
}
#define ADD(fn, c) add(fn, #fn, c)

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (int i = 0; i < N_GOLD_CASES; i++) {
    const gold_case *c = &GOLD_CASES[i];
    ADD(logits_of_every_prompt_and_position_agree, c);
    if (!rig_quick() || i == 0 || i == 3) ADD(the_plain_c_kernels_agree_too, c);
    if (c->hidden_bound > 0) {
      ADD(the_residual_stream_agrees_after_every_layer, c);
      ADD(greedy_tokens_are_those_of_the_reference, c);
    }
    if (c->has_long && !rig_quick()) ADD(far_positions_of_a_long_prompt_agree, c);
    if (c->has_long) ADD(bfloat16_keys_and_values_stay_near, c);
    if (rig_quick() ? i == 1 : i < 4) ADD(the_bounds_catch_small_faults, c);
  }
  return _cmocka_run_group_tests("golden", tests, (size_t)n_tests, NULL, NULL);
}
