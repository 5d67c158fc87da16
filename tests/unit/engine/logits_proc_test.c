/* Each logits processor against the plain definition, alone and all together in vLLM's order. */
#include "engine/logits_proc.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { V = 60 };

static uint32_t r = 17;
static int rnd(int n) { return (int)((r = r * 1664525u + 1013904223u) >> 16) % n; }

static void random_row(float *x) {
  for (int i = 0; i < V; i++) x[i] = (float)(rnd(2000) - 1000) / 100.0f;
}

static bool in(const int32_t *v, int n, int32_t id) {
  for (int i = 0; i < n; i++)
    if (v[i] == id) return true;
  return false;
}

/* One id at a time, from the definitions. */
static float plain(const sh_proc *p, float x, int32_t id, const int32_t *prompt, int n_prompt, const int32_t *out, int n_out) {
  if (p->n_allowed && !in(p->allowed, p->n_allowed, id)) x = -INFINITY;
  for (int i = 0; i < p->n_bad_words; i++) {
    const sh_id_list *w = &p->bad_words[i];
    bool completes = w->v[w->n - 1] == id && w->n - 1 <= n_out;
    for (int k = 0; completes && k < w->n - 1; k++) completes = out[n_out - (w->n - 1) + k] == w->v[k];
    if (completes) x = -INFINITY;
  }
  if (n_out < p->min_tokens && in(p->ends, p->n_ends, id)) x = -INFINITY;
  for (int i = 0; i < p->n_bias; i++)
    if (p->bias[i].id == id) x += p->bias[i].bias;
  if (in(prompt, n_prompt, id) || in(out, n_out, id)) x = x > 0 ? x / p->repetition : x * p->repetition;
  int count = 0;
  for (int i = 0; i < n_out; i++) count += out[i] == id;
  x -= p->frequency * (float)count;
  if (count) x -= p->presence;
  return x;
}

static void check(const sh_proc *p, const int32_t *prompt, int n_prompt, const int32_t *out, int n_out) {
  sh_proc_scratch s;
  float x[V], want[V];
  assert_int_equal(sh_proc_scratch_init(&s, V, NULL), 0);
  for (int round = 0; round < 2; round++) { /* twice: the scratch must be clean again */
    random_row(x);
    for (int i = 0; i < V; i++) want[i] = plain(p, x[i], i, prompt, n_prompt, out, n_out);
    sh_proc_apply(p, &s, x, prompt, n_prompt, out, n_out);
    assert_memory_equal(x, want, sizeof x);
  }
  sh_proc_scratch_free(&s);
}

static const int32_t PROMPT[] = {3, 4, 5, 3, 3, 20}, OUT[] = {7, 8, 7, 20, 7};
enum { N_PROMPT = 6, N_OUT = 5 };
static const sh_proc OFF = {.repetition = 1};

static void nothing_asked_changes_nothing(void **state) {
  (void)state;
  check(&OFF, PROMPT, N_PROMPT, OUT, N_OUT);
}

static void only_allowed_ids_are_left(void **state) {
  (void)state;
  static const int32_t allowed[] = {2, 7, 59};
  sh_proc p = OFF;
  p.allowed = allowed;
  p.n_allowed = 3;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
}

static void a_bad_word_is_masked_where_it_would_be_completed(void **state) {
  (void)state;
  static const int32_t one[] = {9}, two[] = {7, 30}, three[] = {20, 7, 31}, other[] = {8, 32}, longer[] = {1, 7, 8, 7, 20, 7, 33},
                       prompted[] = {20, 34};
  static const sh_id_list words[] = {{one, 1}, {two, 2}, {three, 3}, {other, 2}, {longer, 7}, {prompted, 2}};
  sh_proc p = OFF;
  p.bad_words = words;
  p.n_bad_words = 6;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
  check(&p, PROMPT, N_PROMPT, OUT, 0);
  float x[V] = {0};
  sh_proc_scratch s;
  assert_int_equal(sh_proc_scratch_init(&s, V, NULL), 0);
  sh_proc_apply(&p, &s, x, PROMPT, N_PROMPT, OUT, N_OUT);
  assert_true(x[9] == -INFINITY && x[30] == -INFINITY && x[31] == -INFINITY);
  assert_true(x[32] == 0 && x[33] == 0 && x[34] == 0); /* the prompt's end does not count */
  sh_proc_scratch_free(&s);
}

static void end_tokens_are_masked_until_min_tokens(void **state) {
  (void)state;
  static const int32_t ends[] = {0, 11};
  sh_proc p = OFF;
  p.ends = ends;
  p.n_ends = 2;
  p.min_tokens = N_OUT;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT - 1);
}

static void biases_are_added(void **state) {
  (void)state;
  static const sh_token_bias bias[] = {{1, 5}, {7, -100}, {1, 2}};
  sh_proc p = OFF;
  p.bias = bias;
  p.n_bias = 3;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
}

static void repetition_counts_prompt_and_answer_once_each_id(void **state) {
  (void)state;
  sh_proc p = OFF;
  p.repetition = 1.7f;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
  check(&p, PROMPT, N_PROMPT, OUT, 0);
}

static void frequency_and_presence_count_the_answer_only(void **state) {
  (void)state;
  sh_proc p = OFF;
  p.frequency = 0.3f;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
  p.frequency = 0;
  p.presence = 1.5f;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
  p.frequency = -0.25f;
  check(&p, PROMPT, N_PROMPT, OUT, N_OUT);
}

static void all_together_keep_the_order(void **state) {
  (void)state;
  for (int round = 0; round < 300; round++) {
    int32_t prompt[20], out[20], allowed[V], ends[3], word[3];
    sh_token_bias bias[4];
    int n_allowed = 0, n_prompt = 1 + rnd(20), n_out = rnd(20);
    for (int i = 0; i < 20; i++) {
      prompt[i] = rnd(V);
      out[i] = rnd(V);
    }
    for (int i = 0; i < V; i++)
      if (rnd(3)) allowed[n_allowed++] = i;
    for (int i = 0; i < 3; i++) ends[i] = rnd(V);
    for (int i = 0; i < 4; i++) bias[i] = (sh_token_bias){i * 7, (float)rnd(200) / 10 - 10};
    for (int i = 0; i < 3; i++) word[i] = n_out > 2 && i < 2 ? out[n_out - 2 + i] : rnd(V);
    sh_id_list words[] = {{word, 3}};
    sh_proc p = {.allowed = allowed,
                 .n_allowed = n_allowed,
                 .bad_words = words,
                 .n_bad_words = 1,
                 .ends = ends,
                 .n_ends = 3,
                 .min_tokens = rnd(20),
                 .bias = bias,
                 .n_bias = 4,
                 .repetition = 0.5f + (float)rnd(20) / 10,
                 .presence = (float)rnd(4) - 2,
                 .frequency = (float)rnd(4) - 2};
    check(&p, prompt, n_prompt, out, n_out);
  }
}

/* However far a request's numbers reach: finite logits stay finite, masked ones stay masked. */
static void extremes_never_leave_the_finite_floats(void **state) {
  (void)state;
  static const float repetitions[] = {1e-44f, FLT_TRUE_MIN, 3e38f, 1};
  static const int32_t ids[] = {0, 1, 2, 3, 4}, banned[] = {4};
  static const sh_id_list words[] = {{banned, 1}};
  for (int round = 0; round < 4; round++) {
    float x[V] = {10, -10, FLT_MAX, -FLT_MAX, 5};
    sh_token_bias bias[] = {{0, FLT_MAX}, {1, -FLT_MAX}, {2, FLT_MAX}, {3, -FLT_MAX}, {4, FLT_MAX}};
    sh_proc p = {.repetition = repetitions[round],
                 .frequency = round % 2 ? 2 : -2,
                 .presence = round % 2 ? 2 : -2,
                 .bias = bias,
                 .n_bias = 5,
                 .bad_words = words,
                 .n_bad_words = 1};
    sh_proc_scratch s;
    assert_int_equal(sh_proc_scratch_init(&s, V, NULL), 0);
    sh_proc_apply(&p, &s, x, ids, 5, ids, 5);
    for (int i = 0; i < V; i++)
      if (i != 4) assert_true(isfinite(x[i]));
    assert_true(x[4] == -INFINITY);
    sh_proc_scratch_free(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_asked_changes_nothing),
      cmocka_unit_test(only_allowed_ids_are_left),
      cmocka_unit_test(a_bad_word_is_masked_where_it_would_be_completed),
      cmocka_unit_test(end_tokens_are_masked_until_min_tokens),
      cmocka_unit_test(biases_are_added),
      cmocka_unit_test(repetition_counts_prompt_and_answer_once_each_id),
      cmocka_unit_test(frequency_and_presence_count_the_answer_only),
      cmocka_unit_test(all_together_keep_the_order),
      cmocka_unit_test(extremes_never_leave_the_finite_floats),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
