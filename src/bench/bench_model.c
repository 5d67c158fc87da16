/* The bench of a model: prompts, drawing at a depth, drawing together, both mixed, and a profile. Main thread; the backend has its pool and
 * so has the probe.
 *
 * The model is driven as the engine drives it, by sh_model_forward on ragged batches with pages and state slots, but without requests,
 * sampling and text: `sheng bench serve` measures those. Ids are random. A sequence at a depth is not made by reading that many tokens:
 * the pages before it are copies of one that was computed, so they lie in memory of their own (a page never written would be the system's
 * one page of zeros, in the caches) and hold usual values; how fast a step is does not depend on which.
 *
 * A row is `repeat` runs with a round of its limit's probe before, between and after them. Medians of both make the share: on a machine
 * that others use, a run and the limit measured in the same second move together, while figures from two minutes do not. */
#include "bench/bench_model.h"

#include "base/file.h"
#include "base/pool.h"
#include "base/text.h"
#include "bench/costs.h"
#include "bench/probe.h"
#include "bench/timed.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
  PAGE = 16,        /* tokens of a KV page, the server's default */
  TOGETHER = 256,   /* position of sequences that draw together */
  MIX_PROMPT = 512, /* tokens of the prompt that is read beside them, in chunks of at most MIX_CHUNK */
  MIX_CHUNK = 128,
  MAX_STEPS = 200, /* of a timed run */
  PROFILED = 512,  /* the profile's prompt: the longest measured one up to this */
};
static const double RUN_SECONDS = 0.15; /* a timed run of short steps has as many as take this */

typedef enum work_kind { PREFILL, DECODE, MIX } work_kind;

typedef struct work {
  work_kind kind;
  int seqs;   /* that draw */
  int depth;  /* their position */
  int prompt; /* tokens that are read */
} work;

/* What a run of a work did. */
typedef struct tally {
  double tokens, ops, bytes;
} tally;

typedef enum limit { READ, F32, U8S8, N_LIMITS } limit;
static const char *const LIMIT_NAMES[] = {"read", "fp32", "u8 x s8"}, *const LIMIT_UNITS[] = {"GB/s", "GFLOP/s", "GOP/s"};

typedef struct bench {
  const sh_bench_model_opts *o;
  sh_bench_out *out;
  sh_ckpt *ckpt;
  sh_backend *be; /* a timed one */
  sh_model *m;
  const sh_config *cfg;
  sh_costs costs;
  sh_probe probe;
  sh_bench_progress show;
  work works[4 * SH_BENCH_SIZES];
  int n_works;
  int max_seqs, max_tokens, max_context, n_pages, stride; /* stride: pages of one of several sequences */
  int chunk;
  int32_t *pages, *ids, *rows; /* [n_pages] 0, 1, ...; [max_tokens] random; [max_seqs + 1] */
  sh_seq *seqs;                /* [max_seqs + 1] */
  float *logits;               /* [max_seqs + 1, V] */
} bench;

static int min_int(int a, int b) { return a < b ? a : b; }
static int max_int(int a, int b) { return a > b ? a : b; }
static int pages_of(int tokens) { return (tokens + PAGE - 1) / PAGE; }

static void name_of(const work *w, char buf[64]) {
  if (w->kind == PREFILL) snprintf(buf, 64, "prefill %d", w->prompt);
  else if (w->kind == DECODE && w->seqs == 1) snprintf(buf, 64, "decode 1 at %d", w->depth);
  else if (w->kind == DECODE) snprintf(buf, 64, "decode %d at %d", w->seqs, w->depth);
  else snprintf(buf, 64, "mix %d at %d, prompt %d", w->seqs, w->depth, w->prompt);
}

/* ---- Which rows: what the model and the memory allow ---- */

static int context_of(const work *w) { return max_int(w->prompt, w->seqs ? w->depth + 1 : 0); }

static int64_t memory_of(const bench *b, const work *w) {
  int64_t page = (int64_t)sh_model_kv_bytes_per_token(b->m, b->o->kv_type) * PAGE, state = (int64_t)sh_model_state_bytes(b->m);
  int seqs = w->seqs + (w->prompt > 0);
  int64_t tokens = w->prompt ? min_int(b->chunk, w->prompt) : 0;
  return page * ((int64_t)w->seqs * pages_of(w->depth + 1) + pages_of(w->prompt)) + state * seqs +
         (int64_t)sh_model_scratch_bytes(b->m, (int)tokens + w->seqs, w->seqs + 1);
}

static int add_work(bench *b, work w, bool asked, const char *option, int64_t memory, sh_error *e) {
  char name[64], need[32], have[32];
  name_of(&w, name);
  int longest = b->cfg->max_position > 0 ? b->cfg->max_position : INT32_MAX;
  if (context_of(&w) > longest) {
    if (asked)
      return sh_fail(e, SH_ERR_ARG, "--%s: '%s' takes %d tokens; the model is made for at most %d", option, name, context_of(&w), longest);
    sh_bench_add_note(b->out, "%s left out: the model is made for at most %d tokens.", name, longest);
    return 0;
  }
  if (memory > 0 && memory_of(b, &w) > memory) {
    sh_format_size(memory_of(b, &w), need);
    sh_format_size(memory, have);
    if (asked) return sh_fail(e, SH_ERR_LIMIT, "--%s: '%s' takes %s of caches and scratch; %s are free for it", option, name, need, have);
    sh_bench_add_note(b->out, "%s left out: it takes %s of caches and scratch, %s are free for it.", name, need, have);
    return 0;
  }
  for (int i = 0; i < b->n_works; i++)
    if (memcmp(&b->works[i], &w, sizeof w) == 0) return 0; /* "decode 1" of --depth and of --seqs */
  b->works[b->n_works++] = w;
  return 0;
}

static int choose_works(bench *b, sh_error *e) {
  const sh_bench_model_opts *o = b->o;
  int64_t now = sh_memory_available(), weights = (int64_t)sh_model_weight_bytes(b->m);
  int64_t memory = now < 0 ? 0 : now > weights ? (now - weights) / 10 * 9 : 1;
  int longest = b->cfg->max_position > 0 ? b->cfg->max_position : INT32_MAX, rc = 0;
  int together = min_int(TOGETHER, (longest - 1) / 2), prompt = min_int(MIX_PROMPT, longest);
  for (int i = 0; rc == 0 && i < o->prefill.n; i++)
    rc = add_work(b, (work){.kind = PREFILL, .prompt = o->prefill.v[i]}, o->prefill.asked, "prefill", memory, e);
  for (int i = 0; rc == 0 && i < o->depth.n; i++)
    rc = add_work(b, (work){.kind = DECODE, .seqs = 1, .depth = o->depth.v[i]}, o->depth.asked, "depth", memory, e);
  for (int i = 0; rc == 0 && i < o->seqs.n; i++)
    rc = add_work(b, (work){.kind = DECODE, .seqs = o->seqs.v[i], .depth = together}, o->seqs.asked, "seqs", memory, e);
  for (int i = 0; rc == 0 && o->mixed && i < o->seqs.n; i++)
    rc = add_work(b, (work){.kind = MIX, .seqs = o->seqs.v[i], .depth = together, .prompt = prompt}, o->seqs.asked, "mixed", memory, e);
  if (rc == 0 && b->n_works == 0)
    rc = sh_fail(e, SH_ERR_LIMIT, "no row is left to measure; give smaller sizes%s%s", b->out->n_notes ? ": " : "",
                 b->out->n_notes ? b->out->notes[0] : "");
  return rc;
}

/* ---- Opening ---- */

static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory for a bench; use fewer --seqs"); }

static int step_tokens(const bench *b, const work *w) {
  return w->kind == DECODE ? w->seqs : w->seqs + min_int(w->prompt, w->kind == MIX ? min_int(b->chunk, MIX_CHUNK) : b->chunk);
}

static int reserve(bench *b, sh_error *e) {
  b->max_tokens = PAGE;
  for (int i = 0; i < b->n_works; i++) {
    const work *w = &b->works[i];
    b->max_seqs = max_int(b->max_seqs, w->seqs);
    b->max_tokens = max_int(b->max_tokens, step_tokens(b, w));
    b->max_context = max_int(b->max_context, max_int(context_of(w), min_int(PAGE, max_int(w->depth, 1))));
    if (w->seqs > 1 || w->kind == MIX) b->stride = max_int(b->stride, pages_of(w->depth + 1));
  }
  for (int i = 0; i < b->n_works; i++) {
    const work *w = &b->works[i];
    int first = w->seqs > 1 || w->kind == MIX ? w->seqs * b->stride : pages_of(w->depth + 1);
    b->n_pages = max_int(b->n_pages, first + pages_of(w->prompt) + 1);
  }
  size_t seqs = (size_t)b->max_seqs + 1;
  b->pages = sh_calloc((size_t)b->n_pages, sizeof *b->pages);
  b->ids = sh_calloc((size_t)b->max_tokens, sizeof *b->ids);
  b->rows = sh_calloc(seqs, sizeof *b->rows);
  b->seqs = sh_calloc(seqs, sizeof *b->seqs);
  b->logits = sh_calloc(seqs * (size_t)b->cfg->vocab_size, sizeof *b->logits);
  if (!b->pages || !b->ids || !b->rows || !b->seqs || !b->logits) return no_memory(e);
  for (int i = 0; i < b->n_pages; i++) b->pages[i] = i;
  for (int i = 0; i < b->max_tokens; i++) b->ids[i] = (int32_t)(sh_hash(&i, sizeof i, 1) % (uint64_t)b->cfg->vocab_size);
  const sh_model_sizes sizes = {.page_size = PAGE,
                                .n_pages = b->n_pages,
                                .n_slots = (int)seqs,
                                .kv_type = b->o->kv_type,
                                .max_tokens = b->max_tokens,
                                .max_seqs = (int)seqs,
                                .max_out = (int)seqs,
                                .max_context = b->max_context};
  int rc = sh_model_reserve(b->m, &sizes, e);
  if (rc == 0) rc = sh_model_read_wait(b->m, e);
  return rc;
}

static int open_model(bench *b, sh_error *e) {
  const sh_bench_model_opts *o = b->o;
  const sh_backend_opts bo = {.threads = o->threads, .cpu = o->cpu};
  const sh_repack_opts repack = {.panels = !o->exact, .cache_dir = o->cache_dir, .threads = o->threads};
  sh_backend *real;
  int rc = sh_ckpt_open(&b->ckpt, o->model, 0, e);
  if (rc == 0) rc = sh_backend_cpu_new(&real, &bo, e);
  if (rc == 0) rc = sh_timed_new(&b->be, real, e);
  if (rc == 0) rc = sh_model_open(&b->m, b->ckpt, b->be, &repack, e);
  if (rc == 0) rc = sh_model_read_ahead(b->m, e);
  if (rc < 0) return rc;
  b->cfg = sh_model_config(b->m);
  b->chunk = o->chunk;
  sh_costs_of(&b->costs, b->cfg, sh_model_weights(b->m), sh_model_kv_bytes_per_token(b->m, o->kv_type), sh_model_state_bytes(b->m));
  return 0;
}

static void close_model(bench *b) {
  sh_probe_free(&b->probe);
  sh_model_free(b->m);
  if (b->be) b->be->ops->free(b->be);
  sh_ckpt_close(b->ckpt);
  sh_free(b->pages);
  sh_free(b->ids);
  sh_free(b->rows);
  sh_free(b->seqs);
  sh_free(b->logits);
}

static void add_facts(bench *b) {
  char weights[32], state[32];
  const sh_costs *c = &b->costs;
  sh_format_size((int64_t)sh_model_weight_bytes(b->m), weights);
  sh_format_size((int64_t)c->state_bytes, state);
  sh_bench_add_fact(b->out, "model", "%s: %s, %s", sh_path_base(b->o->model), sh_model_describe(b->m), weights);
  sh_bench_add_fact(b->out, "computed", "%s, %s, KV in %s, steps of at most %d prompt tokens, timed by the %s clock",
                    b->be->ops->describe(b->be), b->o->exact ? "exact" : "default mode", sh_kv_name(b->o->kv_type), b->chunk,
                    b->probe.threads == 1 ? "processor's" : "wall");
  sh_bench_add_fact(b->out, "counted",
                    "%.4g GOP a token and %.4g a row of logits; %.4g MB of weights a step (%.4g with logits), state %s, "
                    "KV %.0f bytes a token",
                    c->token_ops * 1e-9, c->head_ops * 1e-9, (c->layer_bytes + c->expert_bytes * c->top_k) * 1e-6,
                    (c->layer_bytes + c->expert_bytes * c->top_k + c->head_bytes) * 1e-6, state, c->kv_bytes);
}

/* ---- Steps ---- */

/* Page table of sequence i of a work that has several. */
static const int32_t *table_of(const bench *b, int i) { return b->pages + (size_t)i * (size_t)b->stride; }

static int forward(bench *b, int n_seqs, int n_out, tally *t, sh_error *e) {
  int n_tokens = b->seqs[n_seqs - 1].row + b->seqs[n_seqs - 1].count;
  const sh_batch batch = {.n_seqs = n_seqs, .seqs = b->seqs, .n_tokens = n_tokens, .ids = b->ids, .n_out = n_out, .out_rows = b->rows};
  if (t) {
    t->tokens += n_tokens;
    t->ops += sh_costs_ops(&b->costs, &batch);
    t->bytes += sh_costs_bytes(&b->costs, &batch);
  }
  return sh_model_forward(b->m, &batch, b->logits, e);
}

/* w->seqs sequences at w->depth: the first is computed for a page, all others and all later pages are its copies. */
static int stand_at_depth(bench *b, const work *w, sh_error *e) {
  int count = min_int(PAGE, max_int(w->depth, 1)), n_pages = pages_of(w->depth + 1);
  b->seqs[0] = (sh_seq){.count = count, .slot = 0, .pages = b->pages};
  int rc = sh_model_slot_zero(b->m, 0, e);
  if (rc == 0) rc = forward(b, 1, 0, NULL, e);
  for (int i = 0; rc == 0 && i < w->seqs; i++) {
    if (i > 0) rc = sh_model_slot_copy(b->m, i, 0, e);
    for (int p = 0; rc == 0 && p < n_pages; p++)
      if (i > 0 || p > 0) rc = sh_model_page_copy(b->m, table_of(b, i)[p], 0, e);
  }
  return rc;
}

/* Rows of the sequences that draw. */
static void draw_rows(bench *b, const work *w) {
  for (int i = 0; i < w->seqs; i++) {
    b->seqs[i] = (sh_seq){.row = i, .count = 1, .pos = w->depth, .slot = i, .pages = table_of(b, i)};
    b->rows[i] = i;
  }
}

/* One run: a whole prompt, one step of drawing, or a whole prompt with the others drawing in each of its steps. A position is drawn at
 * again and again: the step is the same. */
static int run_once(bench *b, const work *w, tally *t, sh_error *e) {
  int chunk = step_tokens(b, w) - w->seqs, rc = 0;
  draw_rows(b, w);
  if (w->kind == DECODE) return forward(b, w->seqs, w->seqs, t, e);
  if ((rc = sh_model_slot_zero(b->m, w->seqs, e)) < 0) return rc;
  for (int pos = 0; rc == 0 && pos < w->prompt; pos += chunk) {
    int count = min_int(chunk, w->prompt - pos), last = pos + count == w->prompt;
    b->seqs[w->seqs] = (sh_seq){.row = w->seqs, .count = count, .pos = pos, .slot = w->seqs, .pages = table_of(b, w->seqs)};
    b->rows[w->seqs] = w->seqs + count - 1;
    rc = sh_bench_stopped(b->o->stop, e);
    if (rc == 0) rc = forward(b, w->seqs + 1, w->seqs + last, t, e);
  }
  return rc;
}

/* ---- Rows ---- */

static const sh_bench_col COLUMNS[] = {
    {"work", "work", SH_BENCH_TEXT},
    {"tokens_per_s", "tokens/s", 1},
    {"tokens_per_s_min", "min", 1},
    {"tokens_per_s_max", "max", 1},
    {"ms", "ms", 2},
    {"gops", "GOP/s", 1},
    {"gbs", "GB/s", 2},
    {"share_percent", "share %", 1},
    {"limit", "of", SH_BENCH_TEXT},
    {"limit_value", "limit", SH_BENCH_HIDDEN + 1},
    {"seqs", "sequences", SH_BENCH_HIDDEN},
    {"depth", "depth", SH_BENCH_HIDDEN},
    {"prompt", "prompt", SH_BENCH_HIDDEN},
    {"read_gbs", "read GB/s", SH_BENCH_HIDDEN + 1},
    {"fp32_gflops", "fp32 GFLOP/s", SH_BENCH_HIDDEN + 1},
    {"u8s8_gops", "u8 x s8 GOP/s", SH_BENCH_HIDDEN + 1},
    {"runs", "runs", SH_BENCH_HIDDEN},
};

static double probe(bench *b, limit l) {
  return l == READ ? sh_probe_read(&b->probe) : l == F32 ? sh_probe_f32(&b->probe) : sh_probe_u8s8(&b->probe);
}

/* The arithmetic that a prompt is held to: int8 products where weights are integers and the mode allows it. */
static limit compute_limit(const bench *b) { return !b->o->exact && b->costs.integer_share > 0.5 && b->probe.loops.u8s8 ? U8S8 : F32; }

/* Of a mix: whichever takes longer at its limit. */
static limit limit_of(const bench *b, const work *w, const tally *t, const double value[N_LIMITS]) {
  limit c = compute_limit(b);
  if (w->kind == PREFILL) return c;
  return w->kind == MIX && t->ops / value[c] > t->bytes / value[READ] ? c : READ;
}

typedef struct times {
  double run[SH_BENCH_MODEL_REPEAT], limit[SH_BENCH_MODEL_REPEAT + 1]; /* seconds of a run; probe rounds around them */
} times;

static int time_runs(bench *b, const work *w, limit l, int inner, times *t, sh_error *e) {
  for (int r = 0; r < b->o->repeat; r++) {
    t->limit[r] = probe(b, l);
    double from = sh_probe_seconds(&b->probe);
    for (int i = 0; i < inner; i++) {
      int rc = sh_bench_stopped(b->o->stop, e);
      if (rc == 0) rc = run_once(b, w, NULL, e);
      if (rc < 0) return rc;
    }
    t->run[r] = (sh_probe_seconds(&b->probe) - from) / inner;
  }
  t->limit[b->o->repeat] = probe(b, l);
  return 0;
}

static int measure(bench *b, const work *w, sh_bench_table *table, sh_error *e) {
  char name[64], of[64];
  tally t = {0};
  static times s; /* 16 kB; one run at a time */
  name_of(w, name);
  sh_bench_progress_row(&b->show, name);
  int rc = w->seqs ? stand_at_depth(b, w, e) : 0;
  if (rc == 0) rc = run_once(b, w, NULL, e); /* touches what the timed runs use */
  double value[N_LIMITS] = {probe(b, READ), probe(b, F32), probe(b, U8S8)};
  double from = sh_probe_seconds(&b->probe);
  if (rc == 0) rc = run_once(b, w, &t, e);
  double one = sh_probe_seconds(&b->probe) - from;
  int inner = w->kind == PREFILL || one >= RUN_SECONDS ? 1 : min_int(MAX_STEPS, (int)(RUN_SECONDS / (one + 1e-9)) + 1);
  limit l = limit_of(b, w, &t, value);
  if (rc == 0) rc = time_runs(b, w, l, inner, &s, e);
  if (rc < 0) return rc;
  sh_bench_stat run = sh_bench_stat_of(s.run, b->o->repeat);
  value[l] = sh_bench_stat_of(s.limit, b->o->repeat + 1).median;
  double share = (l == READ ? t.bytes : t.ops) / run.median / value[l];
  snprintf(of, sizeof of, "%s %.1f %s", LIMIT_NAMES[l], value[l] * 1e-9, LIMIT_UNITS[l]);
  sh_bench_add_row(table, (sh_bench_cell[]){{.text = name},
                                            {.v = t.tokens / run.median},
                                            {.v = t.tokens / run.max},
                                            {.v = t.tokens / run.min},
                                            {.v = run.median * 1e3},
                                            {.v = t.ops / run.median * 1e-9},
                                            {.v = t.bytes / run.median * 1e-9},
                                            {.v = 100 * share},
                                            {.text = of},
                                            {.v = value[l] * 1e-9},
                                            {.v = w->seqs},
                                            {.v = w->depth},
                                            {.v = w->prompt},
                                            {.v = value[READ] * 1e-9},
                                            {.v = value[F32] * 1e-9},
                                            {.v = value[U8S8] * 1e-9},
                                            {.v = b->o->repeat}});
  return 0;
}

/* ---- The profile ---- */

static const sh_bench_col PROFILE[] = {
    {"work", "share of the time, %", SH_BENCH_TEXT},
    {"ms", "ms", 2},
    {"linear", "linear", 1},
    {"attention", "attention", 1},
    {"gated_delta", "gated_delta", 1},
    {"moe", "moe", 1},
    {"norm", "norm", 1},
    {"embed", "embed", 1},
    {"swiglu", "swiglu", 1},
    {"head", "head", 1},
    {"other", "other", 1},
};
_Static_assert(sizeof PROFILE / sizeof *PROFILE == SH_TIMED_KINDS + 3, "a column for each kind of call, the work, its time and the rest");

static int profile(bench *b, const work *w, sh_bench_table *table, sh_error *e) {
  char name[64], label[80];
  int64_t ns[SH_TIMED_KINDS];
  sh_bench_cell cells[SH_TIMED_KINDS + 3];
  name_of(w, name);
  snprintf(label, sizeof label, "profile of %s", name);
  sh_bench_progress_row(&b->show, label);
  int rc = w->seqs ? stand_at_depth(b, w, e) : 0, runs = w->kind == DECODE ? 4 * b->o->repeat : min_int(b->o->repeat, 3);
  if (rc == 0) rc = run_once(b, w, NULL, e);
  sh_timed_switch(b->be, true);
  int64_t from = sh_now_ns();
  for (int i = 0; rc == 0 && i < runs; i++) {
    rc = sh_bench_stopped(b->o->stop, e);
    if (rc == 0) rc = run_once(b, w, NULL, e);
  }
  double all = (double)(sh_now_ns() - from), rest = all;
  sh_timed_read(b->be, ns);
  sh_timed_switch(b->be, false);
  if (rc < 0) return rc;
  cells[0] = (sh_bench_cell){.text = name};
  cells[1] = (sh_bench_cell){.v = all / runs * 1e-6};
  for (int k = 0; k < SH_TIMED_KINDS; k++) {
    cells[2 + k] = (sh_bench_cell){.v = 100 * (double)ns[k] / all};
    rest -= (double)ns[k];
  }
  cells[2 + SH_TIMED_KINDS] = (sh_bench_cell){.v = 100 * rest / all};
  sh_bench_add_row(table, cells);
  return 0;
}

/* The longest prompt up to PROFILED (or the shortest) and the first step of one sequence; NULL: no such row. */
static const work *profiled(const bench *b, work_kind kind) {
  const work *best = NULL;
  for (int i = 0; i < b->n_works; i++) {
    const work *w = &b->works[i];
    if (w->kind != kind || (kind == DECODE && (w->seqs != 1 || best))) continue;
    bool fits = w->prompt <= PROFILED;
    if (!best || (fits && (best->prompt > PROFILED || w->prompt > best->prompt)) || (!fits && best->prompt > w->prompt)) best = w;
  }
  return best;
}

static int all_rows(bench *b, sh_error *e) {
  sh_bench_table *rows = sh_bench_add_table(b->out, "rows", COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
  sh_bench_table *shares = sh_bench_add_table(b->out, "profile", PROFILE, sizeof PROFILE / sizeof *PROFILE);
  const work *p[] = {profiled(b, PREFILL), profiled(b, DECODE)};
  int rc = 0;
  rows->bar = "share_percent";
  rows->bar_note = "Share of the limit measured in the same row, %";
  sh_bench_progress_begin(&b->show, b->n_works + (p[0] != NULL) + (p[1] != NULL));
  for (int i = 0; rc == 0 && i < b->n_works; i++) rc = measure(b, &b->works[i], rows, e);
  for (int i = 0; rc == 0 && i < 2; i++)
    if (p[i]) rc = profile(b, p[i], shares, e);
  sh_bench_progress_end(&b->show);
  return rc;
}

/* A buffer far larger than the caches, no larger than it must be: it has to fit beside the model. */
static size_t probe_bytes(const sh_machine *m) {
  size_t most = sh_probe_bytes(), want = (size_t)m->last_cache * 8;
  if (want < (size_t)256 << 20) want = (size_t)256 << 20;
  return want < most ? want : most;
}

int sh_bench_model_run(sh_bench_out *out, const sh_bench_model_opts *o, sh_error *e) {
  bench b = {.o = o, .out = out};
  if (o->repeat < 1 || o->repeat > SH_BENCH_MODEL_REPEAT)
    return sh_fail(e, SH_ERR_ARG, "%d runs of a row: 1 to %d are possible", o->repeat, SH_BENCH_MODEL_REPEAT);
  int rc = open_model(&b, e);
  if (rc == 0) rc = choose_works(&b, e);
  if (rc == 0) rc = reserve(&b, e);
  if (rc == 0) rc = sh_probe_new(&b.probe, o->threads, probe_bytes(&out->machine), o->cpu, e);
  b.probe.own_clock = true;
  if (rc == 0) add_facts(&b);
  if (rc == 0) rc = all_rows(&b, e);
  close_model(&b);
  return rc;
}
