/* A row's result does not depend on what else is in the batch, on how a prompt was cut, on pages, threads, forks or what a slot held
 * before: to the bit. Every test feeds the same tokens in two ways and compares whole traces (the logits of each position) with memcmp. */
#include "unit/model/golden_rig.h"

enum { N_PROMPTS = 8 };

/* Greedy steps after each prompt. */
static int n_decode(void) { return rig_quick() ? 4 : 16; }

/* Eight prompts of different lengths: the seven of the file and one made of two of them. In quick mode each is cut to 40 tokens at most,
 * still of different lengths. */
typedef struct prompts {
  int32_t *ids[N_PROMPTS];
  int n[N_PROMPTS];
} prompts;

static void prompts_load(prompts *p, const gold_case *c) {
  sh_st *st = gold_open(c);
  for (int i = 0; i < GOLD_PROMPTS; i++) p->ids[i] = gold_ints(st, c, "prompt", i, &p->n[i]);
  p->n[7] = p->n[5] + p->n[3];
  p->ids[7] = sh_calloc((size_t)p->n[7], sizeof(int32_t));
  memcpy(p->ids[7], p->ids[5], (size_t)p->n[5] * sizeof(int32_t));
  memcpy(p->ids[7] + p->n[5], p->ids[3], (size_t)p->n[3] * sizeof(int32_t));
  if (rig_quick())
    for (int i = 0; i < N_PROMPTS; i++) p->n[i] = p->n[i] < 33 + i ? p->n[i] : 33 + i;
  sh_st_close(st);
}

static void prompts_free(prompts *p) {
  for (int i = 0; i < N_PROMPTS; i++) sh_free(p->ids[i]);
}

static size_t trace_bytes(const rig *r, int n) { return (size_t)n * (size_t)r->V * sizeof(float); }

/* The first n positions of a trace (sh_free). */
static float *trace_copy(const rig *r, int seq, int n) {
  float *p = sh_malloc(trace_bytes(r, n));
  assert_non_null(p);
  memcpy(p, r->seq[seq].trace, trace_bytes(r, n));
  return p;
}

static void same_trace(const rig *r, const float *a, const float *b, int n, const char *what) {
  for (int i = 0; i < n; i++) {
    size_t at = (size_t)i * (size_t)r->V;
    if (memcmp(a + at, b + at, (size_t)r->V * sizeof(float)) != 0)
      fail_msg("%s: position %d of %d differs by %g", what, i, n, (double)max_error(a + at, b + at, (size_t)r->V));
  }
}

/* Each prompt alone in one piece, then greedy steps: the traces that everything else is held to. */
static void run_alone(rig *r, const prompts *p, float *trace[N_PROMPTS]) {
  for (int i = 0; i < N_PROMPTS; i++) {
    rig_restart(r, i);
    rig_feed(r, i, p->ids[i], p->n[i], r->o.max_tokens);
    rig_decode(r, i, n_decode());
    trace[i] = trace_copy(r, i, p->n[i] + n_decode());
  }
}

static void check_and_free(const rig *r, const prompts *p, float *trace[N_PROMPTS], const char *what) {
  for (int i = 0; i < N_PROMPTS; i++) {
    same_trace(r, r->seq[i].trace, trace[i], p->n[i] + n_decode(), what);
    sh_free(trace[i]);
  }
}

static void chunks_change_no_bit(const gold_case *c, sh_kv_type kv) {
  rig r;
  prompts p;
  prompts_load(&p, c);
  rig_open(&r, c, (rig_opts){.kv = kv});
  static const int sizes[] = {64, 7, 1};
  const int32_t *ids = p.ids[6];
  int n = p.n[6];
  rig_feed(&r, 0, ids, n, n);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    rig_restart(&r, 1);
    rig_feed(&r, 1, ids, n, sizes[i]);
    same_trace(&r, r.seq[1].trace, r.seq[0].trace, n, "chunks");
  }
  rig_close(&r);
  prompts_free(&p);
}

static void chunks_of_1_7_64_and_all_give_the_same_bits(void **state) { chunks_change_no_bit(*state, SH_KV_F32); }
static void chunks_give_the_same_bits_with_bfloat16_keys_and_values(void **state) { chunks_change_no_bit(*state, SH_KV_BF16); }

static void eight_prompts_in_one_batch_give_the_bits_of_each_alone(void **state) {
  rig r;
  prompts p;
  float *alone[N_PROMPTS];
  rig_part part[N_PROMPTS];
  int32_t id[N_PROMPTS];
  prompts_load(&p, *state);
  rig_open(&r, *state, (rig_opts){.kv = SH_KV_F32});
  run_alone(&r, &p, alone);
  for (int i = 0; i < N_PROMPTS; i++) {
    rig_restart(&r, i);
    part[i] = (rig_part){i, p.ids[i], p.n[i]};
  }
  rig_step(&r, part, N_PROMPTS);
  for (int s = 0; s < n_decode(); s++) {
    for (int i = 0; i < N_PROMPTS; i++) {
      id[i] = rig_greedy(&r, i);
      part[i] = (rig_part){i, &id[i], 1};
    }
    rig_step(&r, part, N_PROMPTS);
  }
  check_and_free(&r, &p, alone, "batch");
  rig_close(&r);
  prompts_free(&p);
}

/* As a server does it: sequences join one by one, in an order that is not that of their slots, prompts come in pieces of 23 while others
 * decode, and finished ones leave. */
static void sequences_that_join_and_leave_give_the_bits_of_each_alone(void **state) {
  rig r;
  prompts p;
  float *alone[N_PROMPTS];
  int32_t id[N_PROMPTS];
  prompts_load(&p, *state);
  rig_open(&r, *state, (rig_opts){.kv = SH_KV_F32});
  run_alone(&r, &p, alone);
  for (int i = 0; i < N_PROMPTS; i++) rig_restart(&r, i);
  for (int s = 0, running = 1; running > 0; s++) {
    rig_part part[N_PROMPTS];
    running = 0;
    for (int j = 0; j < N_PROMPTS && j <= s; j++) {
      int i = j * 5 % N_PROMPTS, pos = r.seq[i].pos;
      if (pos == p.n[i] + n_decode()) continue;
      if (pos < p.n[i]) {
        part[running++] = (rig_part){i, p.ids[i] + pos, p.n[i] - pos < 23 ? p.n[i] - pos : 23};
      } else {
        id[i] = rig_greedy(&r, i);
        part[running++] = (rig_part){i, &id[i], 1};
      }
    }
    if (running > 0) rig_step(&r, part, running);
  }
  check_and_free(&r, &p, alone, "joining and leaving");
  rig_close(&r);
  prompts_free(&p);
}

/* Traces of prompts 5 and 6 in one mixed batch under other options, against `want`. */
static void same_under(const gold_case *c, const prompts *p, rig_opts o, float **want, const char *what) {
  rig r;
  rig_open(&r, c, o);
  rig_feed(&r, 1, p->ids[6], p->n[6] / 2, r.o.max_tokens);
  rig_part part[2] = {{0, p->ids[5], p->n[5]}, {1, p->ids[6] + p->n[6] / 2, p->n[6] - p->n[6] / 2}};
  rig_step(&r, part, 2);
  for (int i = 0; i < 2; i++) {
    rig_decode(&r, i, 4);
    int n = r.seq[i].pos;
    if (want[i]) same_trace(&r, r.seq[i].trace, want[i], n, what);
    else want[i] = trace_copy(&r, i, n);
  }
  rig_close(&r);
}

static void page_sizes_of_1_16_and_64_give_the_same_bits(void **state) {
  prompts p;
  float *want[2] = {NULL, NULL};
  prompts_load(&p, *state);
  static const int sizes[] = {16, 1, 64};
  for (int i = 0; i < 3; i++) same_under(*state, &p, (rig_opts){.kv = SH_KV_F32, .page_size = sizes[i]}, want, "page size");
  sh_free(want[0]);
  sh_free(want[1]);
  prompts_free(&p);
}

static void one_two_and_three_threads_give_the_same_bits(void **state) {
  prompts p;
  float *want[2] = {NULL, NULL};
  prompts_load(&p, *state);
  for (int i = 1; i <= 3; i++) same_under(*state, &p, (rig_opts){.kv = SH_KV_F32, .threads = i}, want, "threads");
  sh_free(want[0]);
  sh_free(want[1]);
  prompts_free(&p);
}

/* A fork shares the full pages of its parent and takes copies of the last, partial page and of the state; both then go their own way. */
static void a_fork_gives_the_bits_of_computing_again(void **state) {
  rig r;
  prompts p;
  sh_error e = {0};
  prompts_load(&p, *state);
  rig_open(&r, *state, (rig_opts){.kv = SH_KV_F32});
  int prefix = p.n[6] < 200 ? 21 : 155, more = rig_quick() ? 12 : 60; /* not a multiple of the page: the last page is shared in part */
  const int32_t *stem = p.ids[6], *left = p.ids[5], *right = p.ids[5] + p.n[5] - more;
  assert_true(prefix % r.o.page_size != 0 && p.n[5] >= more);
  for (int i = 0; i < 2; i++) { /* the reference: everything computed */
    rig_feed(&r, i, stem, prefix, prefix);
    rig_feed(&r, i, i == 0 ? left : right, more, more);
  }
  rig_feed(&r, 2, stem, prefix, prefix);
  int full = prefix / r.o.page_size;
  rig_seq *parent = &r.seq[2], *child = &r.seq[3];
  for (int i = 0; i < full; i++) child->pages[i] = parent->pages[i];
  rig_ok(sh_model_page_copy(r.m, child->pages[full], parent->pages[full], &e), &e);
  rig_ok(sh_model_slot_copy(r.m, child->slot, parent->slot, &e), &e);
  child->pos = parent->pos;
  rig_part part[2] = {{2, left, more}, {3, right, more}};
  rig_step(&r, part, 2);
  size_t at = (size_t)prefix * (size_t)r.V;
  same_trace(&r, parent->trace + at, r.seq[0].trace + at, more, "parent");
  same_trace(&r, child->trace + at, r.seq[1].trace + at, more, "child");
  rig_close(&r);
  prompts_free(&p);
}

/* What the slot and the pages held before, and a step of another sequence that was refused, leave no mark. */
static void a_used_slot_and_used_pages_leave_no_mark(void **state) {
  rig r;
  prompts p;
  prompts_load(&p, *state);
  rig_open(&r, *state, (rig_opts){.kv = SH_KV_F32});
  rig_feed(&r, 0, p.ids[5], p.n[5], p.n[5]);
  rig_feed(&r, 1, p.ids[6], p.n[6], p.n[6]);
  rig_restart(&r, 1);
  rig_feed(&r, 1, p.ids[5], p.n[5], p.n[5]);
  same_trace(&r, r.seq[1].trace, r.seq[0].trace, p.n[5], "used slot");
  rig_close(&r);
  prompts_free(&p);
}

/* The weakest promise that could be kept by accident: a sequence does depend on its own state and pages. */
static void a_lost_state_or_a_swapped_page_is_seen(void **state) {
  rig r;
  prompts p;
  sh_error e = {0};
  prompts_load(&p, *state);
  rig_open(&r, *state, (rig_opts){.kv = SH_KV_F32});
  int n = p.n[6], half = n / 2;
  for (int i = 0; i < 3; i++) {
    rig_feed(&r, i, p.ids[6], half, half);
    if (i == 1) rig_ok(sh_model_slot_zero(r.m, r.seq[i].slot, &e), &e);
    if (i == 2) r.seq[i].pages[0] = r.seq[0].pages[(half - 1) / r.o.page_size];
    rig_feed(&r, i, p.ids[6] + half, n - half, n);
  }
  size_t at = (size_t)(n - 1) * (size_t)r.V;
  assert_true(max_error(r.seq[1].trace + at, r.seq[0].trace + at, (size_t)r.V) > 1e-3f);
  assert_true(max_error(r.seq[2].trace + at, r.seq[0].trace + at, (size_t)r.V) > 1e-3f);
  rig_close(&r);
  prompts_free(&p);
}

static struct CMUnitTest tests[64];
static char names[64][160];
static int n_tests;

static void add(CMUnitTestFunction fn, const char *name, const gold_case *c) {
  snprintf(names[n_tests], sizeof names[0], "%s: %s", c->model, name);
  tests[n_tests] = (struct CMUnitTest){.name = names[n_tests], .test_func = fn, .initial_state = (void *)(uintptr_t)c};
  n_tests++;
}
#define ADD(fn) add(fn, #fn, c)

/* The four published layouts, and quantized weights with the prompts of the same checkpoint. */
static const gold_case CASES[] = {
    {.model = "models/dense-small", .file = "models/dense-small/golden.safetensors", .prefix = ""},
    {.model = "models/moe-small", .file = "models/moe-small/golden.safetensors", .prefix = ""},
    {.model = "models/dense-real", .file = "models/dense-real/golden.safetensors", .prefix = ""},
    {.model = "models/moe-real-fused", .file = "models/moe-real-fused/golden.safetensors", .prefix = ""},
    {.model = "gguf/dense-real-Q4_0.gguf", .file = "models/dense-real/golden.safetensors", .prefix = ""},
    {.model = "gguf/moe-small-Q8_0.gguf", .file = "models/moe-small/golden.safetensors", .prefix = ""},
};

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    const gold_case *c = &CASES[i];
    if (rig_quick() && i != 0 && i != 3 && i != 4) continue; /* dense, fused MoE with the released head sizes, quantized */
    ADD(chunks_of_1_7_64_and_all_give_the_same_bits);
    ADD(chunks_give_the_same_bits_with_bfloat16_keys_and_values);
    ADD(eight_prompts_in_one_batch_give_the_bits_of_each_alone);
    ADD(sequences_that_join_and_leave_give_the_bits_of_each_alone);
    ADD(page_sizes_of_1_16_and_64_give_the_same_bits);
    ADD(one_two_and_three_threads_give_the_same_bits);
    ADD(a_fork_gives_the_bits_of_computing_again);
    ADD(a_used_slot_and_used_pages_leave_no_mark);
    ADD(a_lost_state_or_a_swapped_page_is_seen);
  }
  return _cmocka_run_group_tests("bitwise", tests, (size_t)n_tests, NULL, NULL);
}
