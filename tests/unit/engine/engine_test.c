/* The engine on the small golden models: what it says is the reference's, and does not depend on what else runs. */
#include "sheng.h"

#include "base/log.h"
#include "base/pool.h"
#include "formats/safetensors.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const MODELS[] = {"tests/golden/models/dense-small", "tests/golden/models/moe-small"};
enum { N_MODELS = 2, N_PROMPTS = 7, MAX_OUT = 300, MAX_N = 4 };

/* --- Golden data --- */

typedef struct golden {
  sh_st *st;
  const int32_t *prompt[N_PROMPTS], *greedy[N_PROMPTS];
  const float *logits[N_PROMPTS], *margin[N_PROMPTS];
  int n[N_PROMPTS];
} golden;

static const void *tensor(const golden *g, const char *name, int i, int64_t *rows) {
  char key[32];
  snprintf(key, sizeof key, "%s.%d", name, i);
  const sh_ftensor *t = sh_st_find(g->st, key);
  assert_non_null(t);
  if (rows) *rows = t->dims[0];
  return t->data;
}

static void golden_open(golden *g, const char *model) {
  char path[256];
  sh_error e;
  snprintf(path, sizeof path, "%s/golden.safetensors", model);
  int rc = sh_st_open(&g->st, path, &e);
  if (rc) print_error("%s\n", e.text);
  assert_int_equal(rc, 0);
  for (int i = 0; i < N_PROMPTS; i++) {
    int64_t rows;
    g->prompt[i] = tensor(g, "prompt", i, &rows);
    g->n[i] = (int)rows;
    g->greedy[i] = tensor(g, "greedy", i, NULL);
    g->logits[i] = tensor(g, "logits", i, NULL);
    g->margin[i] = tensor(g, "margin", i, NULL);
  }
}

/* --- Engines and answers --- */

static sh_engine *open_engine(const char *model, sh_engine_options o) {
  sh_engine *g;
  sh_error e = {0};
  o.model = model;
  o.threads = 2;
  o.exact = true;
  int rc = sh_engine_open(&g, &o, &e);
  if (rc == 0) rc = sh_engine_start(g, &e);
  if (rc) print_error("%s\n", e.text);
  assert_int_equal(rc, 0);
  return g;
}

typedef struct answer {
  sh_request_params p;
  sh_request *r;
  int32_t ids[MAX_N][MAX_OUT];
  float logprob[MAX_N][MAX_OUT];
  int n[MAX_N];
  char text[MAX_N][4096];
  size_t text_len[MAX_N];
  sh_finish why[MAX_N];
  float prompt_logprob[512];
  int32_t prompt_top[512][2];
  int rows;
  bool ended;
} answer;

static sh_request_params greedy(const int32_t *ids, int n, int max_tokens) {
  sh_request_params p;
  sh_request_defaults(&p);
  p.ids = ids;
  p.n_ids = n;
  p.max_tokens = max_tokens;
  p.temperature = 0;
  p.ignore_eos = true;
  p.skip_special_tokens = false;
  return p;
}

static void submit(sh_engine *g, answer *a, sh_request_params p) {
  sh_error e = {0};
  memset(a, 0, sizeof *a);
  a->p = p;
  int rc = sh_request_submit(g, &p, NULL, NULL, &a->r, &e);
  if (rc) print_error("%s\n", e.text);
  assert_int_equal(rc, 0);
}

static void take(answer *a, const sh_event *ev) {
  int c = ev->choice;
  if (ev->type == SH_EV_PROMPT) {
    a->rows++;
    a->prompt_logprob[ev->position] = ev->chosen.logprob;
    for (int i = 0; i < ev->n_top && i < 2; i++) a->prompt_top[ev->position][i] = ev->top[i].id;
  }
  if (ev->type == SH_EV_TOKEN) {
    assert_true(a->n[c] < MAX_OUT);
    a->logprob[c][a->n[c]] = ev->chosen.logprob;
    a->ids[c][a->n[c]++] = ev->id;
  }
  assert_true(a->text_len[c] + ev->text_len < sizeof a->text[c]);
  memcpy(a->text[c] + a->text_len[c], ev->text, ev->text_len);
  a->text_len[c] += ev->text_len;
  if (ev->type == SH_EV_FINISH) a->why[c] = ev->finish;
  if (ev->type == SH_EV_FINISH && ev->error) print_error("%s\n", ev->error);
  if (ev->type == SH_EV_END) a->ended = true;
}

static void collect(answer *a) {
  sh_event ev;
  int64_t deadline = sh_now_ns() + (int64_t)120e9;
  while (!a->ended) {
    assert_true(sh_now_ns() < deadline);
    sh_request_wait(a->r, 1000);
    while (sh_request_next(a->r, &ev)) take(a, &ev);
  }
  sh_request_free(a->r);
  a->r = NULL;
}

static void same(const answer *a, const answer *b) {
  for (int c = 0; c < a->p.n; c++) {
    assert_int_equal(a->n[c], b->n[c]);
    assert_int_equal(a->why[c], b->why[c]);
    assert_memory_equal(a->ids[c], b->ids[c], (size_t)a->n[c] * sizeof(int32_t));
    assert_memory_equal(a->logprob[c], b->logprob[c], (size_t)a->n[c] * sizeof(float));
    assert_int_equal(a->text_len[c], b->text_len[c]);
    assert_memory_equal(a->text[c], b->text[c], a->text_len[c]);
  }
  assert_int_equal(a->rows, b->rows);
  assert_memory_equal(a->prompt_logprob, b->prompt_logprob, sizeof a->prompt_logprob);
}

/* --- Tests --- */

static void greedy_answers_are_the_references(void **state) {
  (void)state;
  for (int m = 0; m < N_MODELS; m++) {
    golden d;
    golden_open(&d, MODELS[m]);
    sh_engine *g = open_engine(MODELS[m], (sh_engine_options){.max_model_len = 400});
    answer *a = calloc(N_PROMPTS, sizeof *a);
    for (int i = 0; i < N_PROMPTS; i++) submit(g, &a[i], greedy(d.prompt[i], d.n[i], 48));
    int compared = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
      collect(&a[i]);
      assert_int_equal(a[i].n[0], 48);
      assert_int_equal(a[i].why[0], SH_FINISH_LENGTH);
      float tie = m == 0 ? 2e-3f : 1e-4f;
      for (int k = 0; k < 48 && d.margin[i][k] >= tie; k++, compared++) assert_int_equal(a[i].ids[0][k], d.greedy[i][k]);
    }
    assert_true(compared > 200);
    free(a);
    sh_engine_close(g);
    sh_st_close(d.st);
  }
}

static void prompt_log_probabilities_are_those_of_the_golden_logits(void **state) {
  (void)state;
  for (int m = 0; m < N_MODELS; m++) {
    golden d;
    golden_open(&d, MODELS[m]);
    sh_engine *g = open_engine(MODELS[m], (sh_engine_options){.max_model_len = 400, .max_num_seqs = 3});
    answer *a = calloc(N_PROMPTS, sizeof *a);
    for (int i = 0; i < N_PROMPTS; i++) {
      sh_request_params p = greedy(d.prompt[i], d.n[i], 1);
      p.prompt_logprobs = 2;
      p.logprobs = 1;
      submit(g, &a[i], p);
    }
    for (int i = 0; i < N_PROMPTS; i++) {
      collect(&a[i]);
      assert_int_equal(a[i].rows, d.n[i] - 1);
      for (int row = 0; row < d.n[i]; row++) {
        const float *x = d.logits[i] + row * 640;
        double sum = 0;
        int best = 0;
        for (int v = 0; v < 640; v++) {
          sum += exp((double)x[v]);
          if (x[v] > x[best]) best = v;
        }
        bool last = row == d.n[i] - 1;
        int32_t id = last ? a[i].ids[0][0] : d.prompt[i][row + 1];
        float got = last ? a[i].logprob[0][0] : a[i].prompt_logprob[row + 1];
        assert_true(fabs((double)got - ((double)x[id] - log(sum))) < (m == 0 ? 1e-3 : 5e-5));
        if (!last) assert_true(fabs((double)(x[a[i].prompt_top[row + 1][0]] - x[best])) < 1e-3);
      }
    }
    free(a);
    sh_engine_close(g);
    sh_st_close(d.st);
  }
}

/* Twelve requests of all kinds. */
static sh_request_params mixed(const golden *d, int i) {
  static const sh_token_bias bias[] = {{17, 3}, {200, -100}};
  sh_request_params p = greedy(d->prompt[i % N_PROMPTS], d->n[i % N_PROMPTS], 10 + 7 * (i % 5));
  p.temperature = i % 3 ? 0.9f : 0;
  p.has_seed = true;
  p.seed = (uint64_t)(100 + i);
  p.top_k = i % 4 == 1 ? 20 : 0;
  p.top_p = i % 4 == 2 ? 0.9f : 1;
  p.repetition_penalty = i % 5 == 3 ? 1.2f : 1;
  p.frequency_penalty = i % 5 == 4 ? 0.5f : 0;
  p.bias = bias;
  p.n_bias = i % 2 ? 2 : 0;
  p.n = i % 6 == 5 ? MAX_N : 1;
  p.logprobs = i % 2 ? 3 : -1;
  p.prompt_logprobs = i % 4 == 3 ? 2 : -1;
  p.ignore_eos = i % 2;
  return p;
}

static void twelve_at_once_say_what_each_says_alone(void **state) {
  (void)state;
  enum { JOBS = 12 };
  answer *alone = calloc(JOBS, sizeof *alone), *together = calloc(JOBS, sizeof *together);
  for (int m = 0; m < N_MODELS; m++) {
    golden d;
    golden_open(&d, MODELS[m]);
    sh_engine *g = open_engine(MODELS[m], (sh_engine_options){.max_model_len = 400});
    for (int i = 0; i < JOBS; i++) {
      submit(g, &alone[i], mixed(&d, i));
      collect(&alone[i]);
    }
    for (int i = 0; i < JOBS; i++) submit(g, &together[i], mixed(&d, i));
    for (int i = 0; i < JOBS; i++) {
      collect(&together[i]);
      same(&alone[i], &together[i]);
    }
    sh_engine_close(g);
    /* other chunks, pages, slots and threads */
    g = open_engine(MODELS[m], (sh_engine_options){.max_model_len = 400, .max_num_seqs = 3, .max_num_batched_tokens = 23, .block_size = 5});
    for (int i = 0; i < JOBS; i++) submit(g, &together[i], mixed(&d, i));
    for (int i = 0; i < JOBS; i++) {
      collect(&together[i]);
      same(&alone[i], &together[i]);
    }
    sh_engine_close(g);
    sh_st_close(d.st);
  }
  free(alone);
  free(together);
}

/* Memory for little more than one context: sequences must give way to each other. */
static void preempted_answers_are_the_same(void **state) {
  (void)state;
  enum { JOBS = 6 };
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine_options o = {.max_model_len = 360, .max_num_seqs = 6, .max_num_batched_tokens = 64, .memory_utilization = 1};
  sh_engine *g = open_engine(MODELS[0], o);
  answer *roomy = calloc(JOBS, sizeof *roomy), *tight = calloc(JOBS, sizeof *tight);
  for (int i = 0; i < JOBS; i++) {
    sh_request_params p = greedy(d.prompt[i % 5], d.n[i % 5], 250);
    p.temperature = 1;
    p.has_seed = true;
    p.seed = (uint64_t)i;
    submit(g, &roomy[i], p);
  }
  for (int i = 0; i < JOBS; i++) collect(&roomy[i]);
  const sh_plan *p = sh_engine_plan(g);
  sh_stats st;
  sh_engine_stats(g, &st);
  assert_int_equal(st.preemptions, 0);
  o.memory_limit =
      p->weight_bytes + p->scratch_bytes + p->max_num_seqs * p->state_bytes_per_seq + 26 * p->page_size * p->kv_bytes_per_token;
  sh_engine_close(g);
  g = open_engine(MODELS[0], o);
  assert_in_range(sh_engine_plan(g)->n_pages, 23, 27);
  for (int i = 0; i < JOBS; i++) submit(g, &tight[i], roomy[i].p);
  for (int i = 0; i < JOBS; i++) {
    collect(&tight[i]);
    same(&roomy[i], &tight[i]);
  }
  sh_engine_stats(g, &st);
  assert_true(st.preemptions > 0);
  sh_engine_close(g);
  free(roomy);
  free(tight);
  sh_st_close(d.st);
}

static void seeds_repeat_and_differ(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400});
  answer *a = calloc(4, sizeof *a);
  for (int i = 0; i < 4; i++) {
    sh_request_params p = greedy(d.prompt[2], d.n[2], 30);
    p.temperature = 1;
    p.has_seed = i < 3;
    p.seed = (uint64_t)(i / 2);
    submit(g, &a[i], p);
    collect(&a[i]);
  }
  same(&a[0], &a[1]);
  assert_memory_not_equal(a[0].ids[0], a[2].ids[0], 30 * sizeof(int32_t));
  assert_memory_not_equal(a[0].ids[0], a[3].ids[0], 30 * sizeof(int32_t));
  free(a);
  sh_engine_close(g);
  sh_st_close(d.st);
}

static void choices_of_one_request_differ_but_for_greedy(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400});
  answer *a = calloc(2, sizeof *a);
  for (int i = 0; i < 2; i++) {
    sh_request_params p = greedy(d.prompt[3], d.n[3], 20);
    p.temperature = (float)i;
    p.n = MAX_N;
    submit(g, &a[i], p);
    collect(&a[i]);
  }
  for (int c = 1; c < MAX_N; c++) {
    assert_memory_equal(a[0].ids[0], a[0].ids[c], 20 * sizeof(int32_t));
    assert_memory_not_equal(a[1].ids[0], a[1].ids[c], 20 * sizeof(int32_t));
  }
  free(a);
  sh_engine_close(g);
  sh_st_close(d.st);
}

/* A piece of the greedy text that begins and ends inside tokens. */
static void a_stop_string_cuts_the_text_anywhere(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400});
  answer *whole = calloc(1, sizeof *whole), *cut = calloc(1, sizeof *cut);
  sh_request_params p = greedy(d.prompt[4], d.n[4], 48);
  submit(g, whole, p);
  collect(whole);
  int tried = 0;
  for (size_t at = 8; at + 7 < whole->text_len[0] && tried < 12; at += 5) {
    const char *t = whole->text[0];
    sh_str stop = {t + at, 7};
    if ((t[at] & 0xC0) == 0x80 || (t[at + 7] & 0xC0) == 0x80) continue;
    const char *first = memmem(t, whole->text_len[0], stop.p, stop.n);
    p.stop = &stop;
    p.n_stop = 1;
    submit(g, cut, p);
    collect(cut);
    assert_int_equal(cut->why[0], SH_FINISH_STOP);
    assert_int_equal(cut->text_len[0], first - t);
    assert_memory_equal(cut->text[0], t, cut->text_len[0]);
    tried++;
  }
  assert_true(tried > 5);
  free(whole);
  free(cut);
  sh_engine_close(g);
  sh_st_close(d.st);
}

static void the_text_is_the_decoding_of_the_ids(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[1]);
  sh_engine *g = open_engine(MODELS[1], (sh_engine_options){.max_model_len = 400});
  answer *a = calloc(1, sizeof *a);
  submit(g, a, greedy(d.prompt[5], d.n[5], 200));
  collect(a);
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  assert_int_equal(sh_tok_decode(sh_engine_tokenizer(g), a->ids[0], 200, false, &b, NULL), 0);
  assert_int_equal(b.len, a->text_len[0]);
  assert_memory_equal(b.p, a->text[0], b.len);
  sh_buf_free(&b);
  free(a);
  sh_engine_close(g);
  sh_st_close(d.st);
}

static void the_end_tokens_of_every_source_are_known(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400});
  const int32_t ends[] = {1, 592, 594}; /* config.json; generation_config.json, <|endoftext|>; <|im_end|> */
  answer *a = calloc(1, sizeof *a);
  for (int i = 0; i < 3; i++) {
    sh_request_params p = greedy(d.prompt[1], d.n[1], 20);
    p.allowed = &ends[i];
    p.n_allowed = 1;
    p.ignore_eos = false;
    submit(g, a, p);
    collect(a);
    assert_int_equal(a->why[0], SH_FINISH_STOP);
    assert_int_equal(a->n[0], 1);
    assert_int_equal(a->text_len[0], 0);
  }
  free(a);
  sh_engine_close(g);
  sh_st_close(d.st);
}

static void the_queue_is_bounded_and_a_drain_refuses(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400, .max_num_seqs = 1, .max_num_queued = 3});
  sh_request *r[20] = {NULL};
  sh_request_params p = greedy(d.prompt[6], d.n[6], 90);
  int busy = 0;
  sh_error e;
  for (int i = 0; i < 20; i++) {
    int rc = sh_request_submit(g, &p, NULL, NULL, &r[i], &e);
    assert_true(rc == 0 || rc == SH_ERR_BUSY);
    busy += rc != 0;
  }
  assert_true(busy >= 10);
  sh_engine_drain(g);
  sh_request *late;
  assert_int_equal(sh_request_submit(g, &p, NULL, NULL, &late, &e), SH_ERR_BUSY);
  assert_null(late);
  for (int i = 1; i < 20; i++) sh_request_free(r[i]);
  answer *a = calloc(1, sizeof *a); /* the one that ran already goes on */
  a->r = r[0];
  a->p = p;
  collect(a);
  assert_int_equal(a->why[0], SH_FINISH_LENGTH);
  free(a);
  sh_engine_close(g);
  sh_st_close(d.st);
}

static void closing_ends_what_runs(void **state) {
  (void)state;
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400, .max_num_seqs = 2});
  sh_request *r[5];
  sh_request_params p = greedy(d.prompt[6], d.n[6], 90);
  for (int i = 0; i < 5; i++) assert_int_equal(sh_request_submit(g, &p, NULL, NULL, &r[i], NULL), 0);
  sh_engine_close(g);
  for (int i = 0; i < 5; i++) {
    sh_event ev;
    bool ended = false;
    while (sh_request_next(r[i], &ev)) ended = ev.type == SH_EV_END;
    assert_true(ended);
    sh_request_free(r[i]);
  }
  sh_st_close(d.st);
}

static void wrong_options_are_sentences(void **state) {
  (void)state;
  static const struct {
    sh_engine_options o;
    int code;
    const char *word;
  } cases[] = {
      {{.model = "tests/golden/no-such-model"}, SH_ERR_NOT_FOUND, "no-such-model"},
      {{.max_model_len = 5000}, SH_ERR_ARG, "4096"},
      {{.dtype = "int3"}, SH_ERR_ARG, "int3"},
      {{.quantization = "awq"}, SH_ERR_ARG, "not quantized"},
      {{.memory_limit = 1 << 20}, SH_ERR_LIMIT, "does not fit"},
      {{.chat_template = "{% if %}"}, SH_ERR_FORMAT, "chat template"},
      {{.threads = -1}, SH_ERR_ARG, "threads"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sh_engine *g;
    sh_error e = {0};
    sh_engine_options o = cases[i].o;
    if (!o.model) o.model = MODELS[0];
    int rc = sh_engine_open(&g, &o, &e);
    if (rc != cases[i].code || !strstr(e.text, cases[i].word)) print_error("case %zu: %d %s\n", i, rc, e.text);
    assert_int_equal(rc, cases[i].code);
    assert_non_null(strstr(e.text, cases[i].word));
    assert_null(g);
  }
}

static void a_start_may_run_out_of_memory_anywhere(void **state) {
  (void)state;
  sh_engine_options o = {.model = MODELS[0], .threads = 1, .max_model_len = 300, .max_num_seqs = 2, .max_num_batched_tokens = 32};
  long n = 0, step = 1;
  for (int rc = -1; rc != 0; n += step) {
    sh_engine *g;
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = sh_engine_open(&g, &o, &e);
    sh_mem_fail_after(-1);
    if (rc) assert_true(!g && rc == SH_ERR_NOMEM && e.code == rc && e.text[0]);
    else sh_engine_close(g);
    step = n < 60 ? 1 : 37; /* the tokenizer makes thousands */
    assert_true(n < 1000000);
  }
  assert_true(n > 20);
}

/* --- Many threads, all at once: submits, cancels, early frees, slow readers. For the thread sanitizer. --- */

typedef struct client {
  sh_engine *g;
  const golden *d;
  int seed;
  const answer *want;
} client;

static void *client_main(void *ctx) {
  client *c = ctx;
  uint32_t r = (uint32_t)c->seed;
  answer *a = calloc(1, sizeof *a);
  for (int i = 0; i < 10; i++) {
    r = r * 1664525u + 1013904223u;
    submit(c->g, a, c->want->p);
    sh_event ev;
    switch (r >> 30) {
    case 0: sh_request_free(a->r); break;
    case 1:
      sh_request_wait(a->r, 20);
      sh_request_cancel(a->r);
      collect(a);
      assert_true(a->why[0] == SH_FINISH_ABORT || a->why[0] == SH_FINISH_LENGTH);
      break;
    case 2:
      if (sh_request_next(a->r, &ev)) take(a, &ev);
      sh_request_wait(a->r, 5);
      if (sh_request_next(a->r, &ev)) take(a, &ev);
      collect(a);
      same(a, c->want);
      break;
    default: collect(a); same(a, c->want);
    }
  }
  free(a);
  return NULL;
}

static void clients_that_come_and_go_disturb_nobody(void **state) {
  (void)state;
  enum { CLIENTS = 6 };
  golden d;
  golden_open(&d, MODELS[0]);
  sh_engine *g = open_engine(MODELS[0], (sh_engine_options){.max_model_len = 400, .max_num_seqs = 4});
  client c[CLIENTS];
  pthread_t t[CLIENTS];
  answer *want = calloc(CLIENTS, sizeof *want);
  for (int i = 0; i < CLIENTS; i++) {
    sh_request_params p = greedy(d.prompt[i % 4], d.n[i % 4], 12);
    p.n = 1 + i % 3;
    p.temperature = 0.8f;
    p.has_seed = true;
    p.seed = (uint64_t)i;
    submit(g, &want[i], p);
    collect(&want[i]);
  }
  for (int i = 0; i < CLIENTS; i++) {
    c[i] = (client){g, &d, i + 1, &want[i]};
    assert_int_equal(pthread_create(&t[i], NULL, client_main, &c[i]), 0);
  }
  sh_stats st;
  for (int i = 0; i < 50; i++) sh_engine_stats(g, &st);
  for (int i = 0; i < CLIENTS; i++) pthread_join(t[i], NULL);
  int64_t deadline = sh_now_ns() + (int64_t)20e9;
  do { sh_engine_stats(g, &st); } while ((st.pages_used || st.running || st.waiting) && sh_now_ns() < deadline);
  assert_int_equal(st.pages_used, 0);
  assert_int_equal(st.requests_finished + st.requests_cancelled, CLIENTS * 11);
  assert_int_equal(st.requests_failed, 0);
  free(want);
  sh_engine_close(g);
  sh_st_close(d.st);
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(greedy_answers_are_the_references),
      cmocka_unit_test(prompt_log_probabilities_are_those_of_the_golden_logits),
      cmocka_unit_test(twelve_at_once_say_what_each_says_alone),
      cmocka_unit_test(preempted_answers_are_the_same),
      cmocka_unit_test(seeds_repeat_and_differ),
      cmocka_unit_test(choices_of_one_request_differ_but_for_greedy),
      cmocka_unit_test(a_stop_string_cuts_the_text_anywhere),
      cmocka_unit_test(the_text_is_the_decoding_of_the_ids),
      cmocka_unit_test(the_end_tokens_of_every_source_are_known),
      cmocka_unit_test(the_queue_is_bounded_and_a_drain_refuses),
      cmocka_unit_test(closing_ends_what_runs),
      cmocka_unit_test(wrong_options_are_sentences),
      cmocka_unit_test(a_start_may_run_out_of_memory_anywhere),
      cmocka_unit_test(clients_that_come_and_go_disturb_nobody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
