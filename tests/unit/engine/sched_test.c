/* The scheduler over a fake model: whatever is batched, chunked, forked, preempted, parked or cancelled, each choice's tokens are those
 * computed alone. */
#include "unit/engine/fake_model.h"

#include "engine/logprob.h"
#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define TOKENIZER "tests/golden/models/dense-small"

enum { VOCAB = 640, MODEL_VOCAB = 648, MAX_LEN = 96 };

typedef struct world {
  sh_ckpt *ckpt;
  sh_tok *tok;
} world;

static int open_world(void **state) {
  static world w;
  sh_error e;
  if (sh_ckpt_open(&w.ckpt, TOKENIZER, SH_CKPT_TOKENIZER_ONLY, &e) || sh_tok_open(&w.tok, w.ckpt, &e)) {
    print_error("%s\n", e.text);
    return -1;
  }
  *state = &w;
  return 0;
}

static int close_world(void **state) {
  world *w = *state;
  sh_tok_free(w->tok);
  sh_ckpt_close(w->ckpt);
  return 0;
}

static uint64_t rnd_state = 88172645463325252u;
static int rnd(int n) { /* [0, n) */
  rnd_state ^= rnd_state << 13;
  rnd_state ^= rnd_state >> 7;
  rnd_state ^= rnd_state << 17;
  return (int)((rnd_state >> 33) % (uint64_t)n);
}

static const int32_t END_IDS[] = {5, 9};

typedef struct rig {
  fake_model model;
  sh_request_env env;
  sh_sched sched;
  uint64_t number;
} rig;

static void rig_open(rig *g, world *w, int page_size, int n_pages, int n_slots, int max_batched, int extra_rows) {
  sh_error e = {0};
  memset(g, 0, sizeof *g);
  g->env = (sh_request_env){
      .tok = w->tok, .vocab = VOCAB, .max_model_len = MAX_LEN, .max_piece = 32, .end_ids = END_IDS, .n_end_ids = 2, .seed = 7};
  sh_model_iface m = fake_open(&g->model, MODEL_VOCAB, page_size, n_pages, n_slots);
  sh_sched_config c = {.page_size = page_size,
                       .n_pages = n_pages,
                       .n_slots = n_slots,
                       .max_batched = max_batched,
                       .max_out = n_slots + extra_rows,
                       .max_model_len = MAX_LEN,
                       .step_ns = 1000000000};
  assert_int_equal(sh_sched_init(&g->sched, &c, &g->env, &m, &e), 0);
}

static void rig_close(rig *g) {
  assert_true(sh_sched_check(&g->sched));
  assert_int_equal(g->sched.pages.n_free, g->sched.pages.n);
  assert_int_equal(g->sched.slots.n_free, g->sched.slots.n);
  assert_int_equal(g->sched.step_allocs, 0);
  sh_sched_free(&g->sched);
  fake_close(&g->model);
}

/* A request with what came of it. */
typedef struct job {
  sh_request_params p;
  int32_t ids[MAX_LEN], stop_id, allowed[20];
  sh_request *r;
  int32_t out[8][MAX_LEN];
  int n_out[8], prompt_rows;
  sh_finish finish[8];
  float logprob[8][MAX_LEN], prompt_logprob[MAX_LEN];
  bool cancelled, ended;
  int laziness; /* 0: read after every step; k: about every k-th */
} job;

static void job_params(job *j, int n_ids, int max_tokens) {
  memset(j, 0, sizeof *j);
  sh_request_defaults(&j->p);
  for (int i = 0; i < n_ids; i++) j->ids[i] = rnd(VOCAB);
  j->p.ids = j->ids;
  j->p.n_ids = n_ids;
  j->p.max_tokens = max_tokens;
  j->p.has_seed = true;
  j->p.seed = (uint64_t)rnd(1000);
}

static void job_submit(job *j, rig *g) {
  sh_error e = {0};
  int rc = sh_request_new(&g->env, &j->p, g->number++, NULL, NULL, &j->r, &e);
  if (rc) print_error("%s\n", e.text);
  assert_int_equal(rc, 0);
  sh_sched_add(&g->sched, j->r);
}

static void job_take(job *j, const sh_event *ev) {
  int c = ev->choice;
  assert_false(j->ended);
  switch (ev->type) {
  case SH_EV_PROMPT:
    assert_int_equal(ev->position, j->prompt_rows + 1);
    assert_int_equal(ev->id, j->ids[ev->position]);
    assert_int_equal(j->n_out[0], 0);
    assert_int_equal(ev->n_top, j->p.prompt_logprobs);
    j->prompt_logprob[++j->prompt_rows] = ev->chosen.logprob;
    break;
  case SH_EV_TOKEN:
    assert_int_equal(ev->position, j->n_out[c]);
    assert_int_equal(j->finish[c], SH_FINISH_NONE);
    if (j->p.logprobs >= 0) assert_int_equal(ev->n_top, j->p.logprobs);
    j->logprob[c][j->n_out[c]] = ev->chosen.logprob;
    j->out[c][j->n_out[c]++] = ev->id;
    break;
  case SH_EV_FINISH:
    assert_int_equal(j->finish[c], SH_FINISH_NONE);
    assert_int_equal(ev->completion_tokens, j->n_out[c]);
    j->finish[c] = ev->finish;
    break;
  case SH_EV_END: j->ended = true; break;
  }
}

/* Reads at most `most` events. */
static int job_read(job *j, int most) {
  sh_event ev;
  int n = 0;
  while (n < most && j->r && sh_request_next(j->r, &ev)) {
    job_take(j, &ev);
    n++;
  }
  return n;
}

static bool is_end(int32_t id) { return id == END_IDS[0] || id == END_IDS[1]; }

/* The same choice computed from the plain history, with the processors and the sampler that have their own tests. */
static int alone(const job *j, int choice, sh_sampler *s, sh_proc_scratch *scratch, int32_t *out, float *logprob, sh_finish *why) {
  int32_t hist[MAX_LEN + 1];
  float x[MODEL_VOCAB], raw[MODEL_VOCAB];
  const sh_request *r = j->r;
  memcpy(hist, j->ids, sizeof j->ids);
  int n = j->p.n_ids, k = 0;
  for (*why = SH_FINISH_NONE; *why == SH_FINISH_NONE; k++) {
    fake_logits(hist, n + k, MODEL_VOCAB, x);
    memcpy(raw, x, sizeof raw);
    for (int i = VOCAB; i < MODEL_VOCAB; i++) x[i] = -INFINITY;
    sh_proc_apply(&r->proc, scratch, x, j->ids, n, out, k);
    assert_int_equal(sh_sample_prepare(s, x, &r->draw, NULL), 0);
    int32_t id = sh_sample_draw(s, sh_sample_uniform(r->seed, (uint64_t)k, (uint64_t)choice));
    logprob[k] = (float)((double)raw[id] - sh_logprob_norm(raw, MODEL_VOCAB));
    out[k] = hist[n + k] = id;
    if (!j->p.ignore_eos && is_end(id)) *why = SH_FINISH_STOP;
    else if (j->p.n_stop_ids && id == j->stop_id) *why = SH_FINISH_STOP;
    else if (k + 1 == j->p.max_tokens) *why = SH_FINISH_LENGTH;
  }
  return k;
}

static void job_check(const job *j) {
  sh_sampler s;
  sh_proc_scratch scratch;
  assert_int_equal(sh_sampler_init(&s, MODEL_VOCAB, NULL), 0);
  assert_int_equal(sh_proc_scratch_init(&scratch, MODEL_VOCAB, NULL), 0);
  assert_true(j->ended);
  for (int c = 0; c < j->p.n; c++) {
    int32_t out[MAX_LEN + 1];
    float logprob[MAX_LEN + 1];
    sh_finish why;
    int n = alone(j, c, &s, &scratch, out, logprob, &why);
    if (j->cancelled && j->finish[c] == SH_FINISH_ABORT) {
      assert_true(j->n_out[c] <= n);
    } else {
      assert_int_equal(j->n_out[c], n);
      assert_int_equal(j->finish[c], why);
    }
    assert_memory_equal(j->out[c], out, (size_t)j->n_out[c] * sizeof *out);
    if (j->p.logprobs >= 0) assert_memory_equal(j->logprob[c], logprob, (size_t)j->n_out[c] * sizeof *logprob);
  }
  if (j->p.prompt_logprobs >= 0 && !j->cancelled) assert_int_equal(j->prompt_rows, j->p.n_ids - 1);
  for (int i = 1; i <= j->prompt_rows; i++) {
    float x[MODEL_VOCAB];
    fake_logits(j->ids, i, MODEL_VOCAB, x);
    assert_true(j->prompt_logprob[i] == (float)((double)x[j->ids[i]] - sh_logprob_norm(x, MODEL_VOCAB)));
  }
  sh_sampler_free(&s);
  sh_proc_scratch_free(&scratch);
}

/* Steps until all jobs ended. A step that computes nothing although every ring is empty is a deadlock. */
static void run_jobs(rig *g, job *jobs, int n, int cancel_one_in) {
  int left = n, stuck = 0;
  for (long step = 0; left > 0; step++) {
    assert_true(step < 200000);
    bool computed = sh_sched_step(&g->sched);
    assert_true(sh_sched_check(&g->sched));
    int read = 0, pending = 0;
    for (int i = 0; i < n; i++) {
      job *j = &jobs[i];
      if (!j->r || j->ended) continue;
      pending++;
      if (cancel_one_in && rnd(cancel_one_in) == 0) {
        sh_request_cancel(j->r);
        j->cancelled = true;
      }
      if (!computed || j->laziness == 0 || rnd(j->laziness) == 0) read += job_read(j, computed && j->laziness ? 1 + rnd(8) : 1000);
      if (j->ended) left--;
    }
    if (pending == 0) break;
    stuck = computed || read ? 0 : stuck + 1;
    assert_true(stuck < 3);
  }
}

static void free_jobs(job *jobs, int n) {
  for (int i = 0; i < n; i++) sh_request_free(jobs[i].r);
}

static void one_prompt_gives_the_tokens_of_its_history(void **state) {
  rig g;
  rig_open(&g, *state, 4, 24, 2, 16, 4);
  job j;
  job_params(&j, 11, 20);
  job_submit(&j, &g);
  run_jobs(&g, &j, 1, 0);
  job_check(&j);
  free_jobs(&j, 1);
  rig_close(&g);
}

static void random_job(job *j) {
  int n_ids = 1 + rnd(rnd(3) ? 12 : 60);
  int most = MAX_LEN - n_ids < 40 ? MAX_LEN - n_ids : 40;
  job_params(j, n_ids, 1 + rnd(most));
  if (rnd(4) == 0) j->p.max_tokens = MAX_LEN - n_ids;
  j->p.n = rnd(3) ? 1 : 1 + rnd(6);
  j->p.temperature = rnd(3) ? 1.0f : 0.0f;
  j->p.top_k = rnd(2) ? 0 : 1 + rnd(40);
  j->p.top_p = rnd(2) ? 1.0f : 0.5f;
  j->p.ignore_eos = rnd(2);
  j->p.repetition_penalty = rnd(2) ? 1.0f : 1.3f;
  j->p.presence_penalty = rnd(2) ? 0.0f : 0.7f;
  j->p.logprobs = rnd(3) ? -1 : rnd(30);
  j->p.prompt_logprobs = rnd(4) ? -1 : rnd(20);
  j->p.min_tokens = rnd(4) ? 0 : rnd(j->p.max_tokens);
  if (rnd(3) == 0) {
    j->stop_id = rnd(VOCAB);
    j->p.stop_ids = &j->stop_id;
    j->p.n_stop_ids = 1;
  }
  if (rnd(5) == 0) {
    for (int i = 0; i < 20; i++) j->allowed[i] = 20 + rnd(600);
    j->p.allowed = j->allowed;
    j->p.n_allowed = 20;
  }
  j->laziness = rnd(3) ? 0 : rnd(30);
}

static void random_workloads(void **state, int rounds, int cancel_one_in) {
  enum { JOBS = 24 };
  job *jobs = sh_calloc(JOBS, sizeof *jobs);
  for (int round = 0; round < rounds; round++) {
    rig g;
    int page = 1 + rnd(8), slots = 1 + rnd(6), least = (MAX_LEN + page - 1) / page;
    rig_open(&g, *state, page, least + rnd(3) * rnd(least + 1), slots, slots > 16 ? slots : 16 + rnd(64), rnd(9));
    g.sched.token_ns = 1e6; /* a budget of some tokens per step, as a slow machine has */
    g.sched.cfg.step_ns = 1000000 * (int64_t)(1 + rnd(60));
    for (int i = 0; i < JOBS; i++) random_job(&jobs[i]);
    for (int i = 0; i < JOBS / 2; i++) job_submit(&jobs[i], &g);
    for (int i = 0; i < 5; i++) sh_sched_step(&g.sched);
    for (int i = JOBS / 2; i < JOBS; i++) job_submit(&jobs[i], &g);
    run_jobs(&g, jobs, JOBS, cancel_one_in);
    for (int i = 0; i < JOBS; i++) job_check(&jobs[i]);
    free_jobs(jobs, JOBS);
    rig_close(&g);
  }
  sh_free(jobs);
}

static void in_tiny_pools_every_choice_gets_the_tokens_it_gets_alone(void **state) { random_workloads(state, 40, 0); }

static void with_cancels_the_others_are_not_disturbed(void **state) { random_workloads(state, 20, 400); }

/* Memory for little more than one sequence, many that grow: without preemption this cannot end. */
static void preempted_sequences_go_on_with_the_same_tokens(void **state) {
  enum { JOBS = 6 };
  rig g;
  rig_open(&g, *state, 4, 26, 6, 32, 2);
  job jobs[JOBS];
  for (int i = 0; i < JOBS; i++) {
    job_params(&jobs[i], 8, 80);
    jobs[i].p.ignore_eos = true;
    job_submit(&jobs[i], &g);
  }
  run_jobs(&g, jobs, JOBS, 0);
  assert_true(g.sched.stats.preemptions > 0);
  for (int i = 0; i < JOBS; i++) job_check(&jobs[i]);
  free_jobs(jobs, JOBS);
  rig_close(&g);
}

static void choices_share_one_prefill(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 8, 64, 0);
  job j;
  job_params(&j, 41, 10);
  j.p.n = 6;
  j.p.ignore_eos = true;
  job_submit(&j, &g);
  run_jobs(&g, &j, 1, 0);
  job_check(&j);
  assert_int_equal(g.model.rows, 41 + 6 * 9); /* the prompt once; each choice's last token is not fed */
  free_jobs(&j, 1);
  rig_close(&g);
}

static void more_choices_than_slots_run_in_turn(void **state) {
  for (int slots = 1; slots <= 3; slots++) {
    rig g;
    rig_open(&g, *state, 4, 24, slots, 32, 0);
    job jobs[2];
    for (int i = 0; i < 2; i++) {
      job_params(&jobs[i], 30, 20);
      jobs[i].p.n = 8;
      jobs[i].p.ignore_eos = true;
      job_submit(&jobs[i], &g);
    }
    run_jobs(&g, jobs, 2, 0);
    for (int i = 0; i < 2; i++) job_check(&jobs[i]);
    free_jobs(jobs, 2);
    rig_close(&g);
  }
}

/* A reader that never reads parks its request; the others get its memory and end; when it reads at last it misses nothing. */
static void a_sleeping_reader_keeps_nobody_out_and_loses_nothing(void **state) {
  enum { JOBS = 4 };
  rig g;
  rig_open(&g, *state, 4, 24, 1, 32, 2);
  job jobs[JOBS];
  for (int i = 0; i < JOBS; i++) {
    job_params(&jobs[i], 10, 80);
    jobs[i].p.logprobs = i == 0 ? 25 : -1; /* 300 bytes a token: 16 KiB are full after 50 */
    jobs[i].p.ignore_eos = true;
    job_submit(&jobs[i], &g);
  }
  for (int step = 0; step < 2000; step++) {
    sh_sched_step(&g.sched);
    for (int i = 1; i < JOBS; i++) job_read(&jobs[i], 1000);
  }
  assert_false(jobs[0].ended);
  assert_true(jobs[0].r->parked);
  for (int i = 1; i < JOBS; i++) assert_true(jobs[i].ended);
  run_jobs(&g, jobs, 1, 0);
  for (int i = 0; i < JOBS; i++) job_check(&jobs[i]);
  free_jobs(jobs, JOBS);
  rig_close(&g);
}

/* The younger one that grows takes its pages from the parked older one rather than giving up its own. */
static void a_growing_sequence_takes_from_the_parked_first(void **state) {
  rig g;
  rig_open(&g, *state, 4, 24, 2, 32, 2);
  g.sched.cfg.park_grace_ns = INT64_MAX;
  job jobs[2];
  for (int i = 0; i < 2; i++) {
    job_params(&jobs[i], 10, 80);
    jobs[i].p.logprobs = i == 0 ? 25 : -1;
    jobs[i].p.ignore_eos = true;
  }
  job_submit(&jobs[0], &g);
  while (sh_sched_step(&g.sched)) {}
  assert_true(jobs[0].r->parked);
  job_submit(&jobs[1], &g);
  while (!jobs[1].ended) {
    assert_true(sh_sched_step(&g.sched));
    job_read(&jobs[1], 1000);
  }
  assert_int_equal(g.sched.stats.preemptions, 1);
  assert_int_equal(jobs[0].r->choices[0].state, SH_CHOICE_WAITING);
  run_jobs(&g, jobs, 1, 0);
  for (int i = 0; i < 2; i++) job_check(&jobs[i]);
  free_jobs(jobs, 2);
  rig_close(&g);
}

static void a_parked_request_can_be_cancelled_and_still_hears_its_end(void **state) {
  rig g;
  rig_open(&g, *state, 4, 24, 1, 32, 2);
  job j;
  job_params(&j, 10, 80);
  j.p.logprobs = 25;
  j.p.ignore_eos = true;
  job_submit(&j, &g);
  while (sh_sched_step(&g.sched)) {}
  assert_int_equal(g.sched.stats.parked, 1);
  sh_request_cancel(j.r);
  j.cancelled = true;
  sh_sched_step(&g.sched);
  job_read(&j, 1000);
  assert_true(j.ended);
  assert_int_equal(j.finish[0], SH_FINISH_ABORT);
  assert_int_equal(g.sched.slots.n_free, 1);
  job_check(&j);
  free_jobs(&j, 1);
  rig_close(&g);
}

static void a_request_freed_while_it_runs_leaves_the_batch(void **state) {
  rig g;
  rig_open(&g, *state, 4, 48, 4, 32, 2);
  job jobs[2];
  for (int i = 0; i < 2; i++) {
    job_params(&jobs[i], 10, 40);
    jobs[i].p.n = 1 + i;
    jobs[i].p.ignore_eos = true;
    job_submit(&jobs[i], &g);
  }
  for (int i = 0; i < 4; i++) sh_sched_step(&g.sched);
  sh_request_free(jobs[0].r);
  jobs[0].r = NULL;
  sh_sched_step(&g.sched);
  assert_int_equal(g.sched.stats.requests_cancelled, 1);
  run_jobs(&g, &jobs[1], 1, 0);
  job_check(&jobs[1]);
  free_jobs(&jobs[1], 1);
  rig_close(&g);
}

/* The short prompt waits behind a long one that needs many steps: it must not wait for its end. */
static void a_long_prompt_does_not_starve_a_short_one(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 16, 2);
  job jobs[2];
  job_params(&jobs[0], 90, 2);
  job_params(&jobs[1], 5, 1);
  for (int i = 0; i < 2; i++) {
    jobs[i].p.ignore_eos = true;
    job_submit(&jobs[i], &g);
  }
  sh_sched_step(&g.sched);
  job_read(&jobs[1], 100);
  assert_true(jobs[1].ended);
  assert_int_equal(job_read(&jobs[0], 100), 0);
  run_jobs(&g, jobs, 1, 0);
  for (int i = 0; i < 2; i++) job_check(&jobs[i]);
  free_jobs(jobs, 2);
  rig_close(&g);
}

static void decoding_goes_on_beside_a_long_prompt(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 16, 2);
  job jobs[2];
  job_params(&jobs[0], 3, 30);
  job_params(&jobs[1], 90, 1);
  jobs[0].p.ignore_eos = true;
  job_submit(&jobs[0], &g);
  sh_sched_step(&g.sched);
  job_submit(&jobs[1], &g);
  for (int step = 0; step < 5; step++) {
    sh_sched_step(&g.sched);
    assert_int_equal(job_read(&jobs[0], 100), step == 0 ? 2 : 1);
    assert_int_equal(g.sched.batch.n_seqs, 2);
  }
  run_jobs(&g, jobs, 2, 0);
  free_jobs(jobs, 2);
  rig_close(&g);
}

static void a_failed_step_ends_its_sequences_and_no_others(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 2);
  job jobs[3];
  for (int i = 0; i < 3; i++) {
    job_params(&jobs[i], 8, 20);
    for (int k = 0; k < 8; k++) jobs[i].ids[k] = 100 + k + 10 * i;
    jobs[i].p.ignore_eos = true;
    jobs[i].allowed[0] = 200;
    jobs[i].allowed[1] = 201;
    jobs[i].p.allowed = jobs[i].allowed;
    jobs[i].p.n_allowed = 2;
  }
  jobs[0].ids[7] = 55;
  jobs[0].p.n = 3;
  g.model.fail_id = 55;
  job_submit(&jobs[0], &g);
  sh_sched_step(&g.sched);
  job_read(&jobs[0], 1000);
  assert_true(jobs[0].ended);
  for (int c = 0; c < 3; c++) assert_int_equal(jobs[0].finish[c], SH_FINISH_ERROR);
  for (int i = 1; i < 3; i++) job_submit(&jobs[i], &g);
  run_jobs(&g, jobs + 1, 2, 0);
  for (int i = 1; i < 3; i++) job_check(&jobs[i]);
  assert_int_equal(g.sched.stats.requests_failed, 1);
  assert_int_equal(g.sched.stats.requests_finished, 2);
  free_jobs(jobs, 3);
  rig_close(&g);
}

static void logits_that_are_not_numbers_end_their_sequence_only(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 8);
  job jobs[4];
  for (int i = 0; i < 4; i++) {
    job_params(&jobs[i], 8, 20);
    for (int k = 0; k < 8; k++) jobs[i].ids[k] = 100 + k + 10 * i;
    jobs[i].p.ignore_eos = true;
    jobs[i].allowed[0] = 200;
    jobs[i].p.allowed = jobs[i].allowed;
    jobs[i].p.n_allowed = 1;
  }
  jobs[0].ids[7] = 55;
  jobs[1].ids[3] = 55; /* seen by the prompt's log probabilities */
  jobs[1].p.prompt_logprobs = 2;
  jobs[2].ids[7] = 55;
  jobs[2].p.logprobs = 1;
  g.model.nan_id = 55;
  for (int i = 0; i < 4; i++) job_submit(&jobs[i], &g);
  run_jobs(&g, jobs, 4, 0);
  for (int i = 0; i < 3; i++) assert_int_equal(jobs[i].finish[0], SH_FINISH_ERROR);
  job_check(&jobs[3]);
  free_jobs(jobs, 4);
  rig_close(&g);
}

static void masking_every_token_is_an_error_of_that_request(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 8);
  job j;
  job_params(&j, 3, 4);
  j.allowed[0] = END_IDS[0];
  j.p.allowed = j.allowed;
  j.p.n_allowed = 1;
  j.p.min_tokens = 2;
  job_submit(&j, &g);
  sh_event ev;
  sh_sched_step(&g.sched);
  assert_true(sh_request_next(j.r, &ev));
  assert_int_equal(ev.type, SH_EV_FINISH);
  assert_int_equal(ev.finish, SH_FINISH_ERROR);
  assert_string_equal(ev.error, "every token is excluded by the request's parameters");
  assert_int_equal(ev.error_code, SH_ERR_ARG);
  job_read(&j, 9);
  free_jobs(&j, 1);
  rig_close(&g);
}

static void zero_new_tokens_give_only_the_prompt_log_probabilities(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 0);
  job jobs[2];
  for (int i = 0; i < 2; i++) {
    job_params(&jobs[i], 30, 0);
    jobs[i].p.n = 1 + 2 * i;
    jobs[i].p.prompt_logprobs = 3;
    job_submit(&jobs[i], &g);
  }
  run_jobs(&g, jobs, 2, 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(jobs[i].prompt_rows, 29);
    for (int c = 0; c < jobs[i].p.n; c++) {
      assert_int_equal(jobs[i].finish[c], SH_FINISH_LENGTH);
      assert_int_equal(jobs[i].n_out[c], 0);
    }
  }
  free_jobs(jobs, 2);
  rig_close(&g);
}

static void an_allocation_inside_a_step_is_counted(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 0);
  job j;
  job_params(&j, 3, 1);
  job_submit(&j, &g);
  g.model.allocates = true;
  run_jobs(&g, &j, 1, 0);
  assert_true(g.sched.step_allocs > 0);
  g.sched.step_allocs = 0;
  free_jobs(&j, 1);
  rig_close(&g);
}

static void the_step_budget_follows_the_measured_speed(void **state) {
  rig g;
  rig_open(&g, *state, 4, 200, 4, 64, 0);
  job j;
  job_params(&j, 90, 1);
  job_submit(&j, &g);
  g.sched.token_ns = 1000;
  g.sched.cfg.step_ns = 40000; /* 40 tokens */
  sh_sched_step(&g.sched);
  assert_int_equal(g.sched.batch.n_tokens, 40);
  g.sched.token_ns = 1e9; /* far too slow for any: the least */
  sh_sched_step(&g.sched);
  assert_int_equal(g.sched.batch.n_tokens, SH_MIN_PROMPT_TOKENS);
  assert_true(g.sched.token_ns < 1e8); /* the fake model took microseconds */
  g.sched.token_ns = 1;
  sh_sched_step(&g.sched);
  assert_int_equal(g.sched.batch.n_tokens, 90 - 40 - SH_MIN_PROMPT_TOKENS);
  run_jobs(&g, &j, 1, 0);
  free_jobs(&j, 1);
  rig_close(&g);
}

static void every_allocation_of_a_start_may_fail(void **state) {
  world *w = *state;
  sh_request_env env = {.tok = w->tok, .vocab = VOCAB, .max_model_len = MAX_LEN, .max_piece = 32};
  fake_model model;
  sh_model_iface m = fake_open(&model, MODEL_VOCAB, 4, 24, 2);
  sh_sched_config c = {.page_size = 4, .n_pages = 24, .n_slots = 2, .max_batched = 16, .max_out = 4, .max_model_len = MAX_LEN};
  int rc = -1;
  for (long n = 0; rc != 0; n++) {
    sh_sched s;
    sh_mem_fail_after(n);
    rc = sh_sched_init(&s, &c, &env, &m, NULL);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || rc == SH_ERR_NOMEM);
    sh_sched_free(&s);
    assert_true(n < 100);
  }
  fake_close(&model);
}

/* Admission and forks allocate: whatever fails there ends a choice with an error and nothing else. */
static void every_allocation_of_an_admission_may_fail(void **state) {
  for (long n = 0; n < 12; n++) {
    rig g;
    rig_open(&g, *state, 4, 200, 4, 64, 0);
    job jobs[2];
    for (int i = 0; i < 2; i++) {
      job_params(&jobs[i], 7, 3);
      jobs[i].p.n = 1 + i * 2;
      jobs[i].p.ignore_eos = true;
      job_submit(&jobs[i], &g);
    }
    sh_mem_fail_after(n);
    for (int i = 0; i < 8; i++) sh_sched_step(&g.sched);
    sh_mem_fail_after(-1);
    run_jobs(&g, jobs, 2, 0);
    for (int i = 0; i < 2; i++) {
      assert_true(jobs[i].ended);
      for (int k = 0; k < jobs[i].p.n; k++) assert_true(jobs[i].finish[k] == SH_FINISH_LENGTH || jobs[i].finish[k] == SH_FINISH_ERROR);
    }
    if (n == 0) assert_int_equal(jobs[0].finish[0], SH_FINISH_ERROR);
    if (n == 11) job_check(&jobs[1]);
    free_jobs(jobs, 2);
    rig_close(&g);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_prompt_gives_the_tokens_of_its_history),
      cmocka_unit_test(in_tiny_pools_every_choice_gets_the_tokens_it_gets_alone),
      cmocka_unit_test(with_cancels_the_others_are_not_disturbed),
      cmocka_unit_test(preempted_sequences_go_on_with_the_same_tokens),
      cmocka_unit_test(choices_share_one_prefill),
      cmocka_unit_test(more_choices_than_slots_run_in_turn),
      cmocka_unit_test(a_sleeping_reader_keeps_nobody_out_and_loses_nothing),
      cmocka_unit_test(a_growing_sequence_takes_from_the_parked_first),
      cmocka_unit_test(a_parked_request_can_be_cancelled_and_still_hears_its_end),
      cmocka_unit_test(a_request_freed_while_it_runs_leaves_the_batch),
      cmocka_unit_test(a_long_prompt_does_not_starve_a_short_one),
      cmocka_unit_test(decoding_goes_on_beside_a_long_prompt),
      cmocka_unit_test(a_failed_step_ends_its_sequences_and_no_others),
      cmocka_unit_test(logits_that_are_not_numbers_end_their_sequence_only),
      cmocka_unit_test(masking_every_token_is_an_error_of_that_request),
      cmocka_unit_test(zero_new_tokens_give_only_the_prompt_log_probabilities),
      cmocka_unit_test(an_allocation_inside_a_step_is_counted),
      cmocka_unit_test(the_step_budget_follows_the_measured_speed),
      cmocka_unit_test(every_allocation_of_a_start_may_fail),
      cmocka_unit_test(every_allocation_of_an_admission_may_fail),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
