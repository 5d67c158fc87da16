/* The engine: opens a model, owns the thread that computes, and stands between it and the front ends.
 *
 * The owning thread opens, starts and closes. The engine thread runs the scheduler: it takes new requests from a list under the engine's
 * mutex, steps, and publishes counters under the same mutex. It sleeps on a condition when a step found nothing to compute; submitting,
 * cancelling and a reader that made room wake it. No other lock is held while this one is taken, so there is no order to break.
 *
 * The weights are read by threads of the model (base/prefetch.c) while tokenizer and template are opened, and are there before the first
 * step. The first requests are our own: a prompt and one more token, which start the kernel pool and give the step budget its first
 * measurement. Refused: a thread per request, or letting callers step the scheduler: both would need locks inside the step. */
#include "sheng.h"

#include "base/log.h"
#include "base/pool.h"
#include "engine/genconf.h"
#include "engine/plan.h"
#include "engine/sched.h"
#include "model/model.h"

#include <limits.h>
#include <string.h>
#include <time.h>

enum {
  MAX_END_IDS = 64,
  MAX_QUEUED = 1024, /* requests waiting, unless told */
  STEP_MS = 100,
  PARK_GRACE_MS = 200,  /* a reader may pause this long before its memory can go to others */
  IDLE_RECHECK_MS = 50, /* while someone waits behind a parked request */
  WARM_UP_TOKENS = 4,   /* a row of 4 takes up to 1.7 times one of 64, which the first steps correct; 64 take ten times as long to start */
  WARM_UP_MS = 600 * 1000,
};

struct sh_engine {
  sh_engine_options opt;
  sh_ckpt *ckpt;
  sh_backend *backend;
  sh_model *model;
  sh_tok *tok;
  sh_chat *chat;
  sh_arena *arena; /* the generation config made from a GGUF, the description */
  const sh_json *gen;
  const char *description;
  sh_plan plan;
  int32_t end_ids[MAX_END_IDS];
  sh_request_env env;
  sh_sched sched; /* the engine thread's, once it runs */

  pthread_t thread;
  bool has_thread, has_sync;
  pthread_mutex_t mu;
  pthread_cond_t work;
  /* under mu */
  sh_request *incoming, *incoming_tail;
  int n_queued; /* requests that no slot was found for yet, the incoming included */
  sh_kv_type kv_type;
  bool wake, stop, draining, reset_stats;
  uint64_t next_number;
  sh_stats stats;
};

/* --- Opening
 * --------------------------------------------------------------------------------------------------------------------------------- */

static int iface_forward(void *m, const sh_batch *b, float *logits, sh_error *e) { return sh_model_forward(m, b, logits, e); }
static int iface_slot_zero(void *m, int slot, sh_error *e) { return sh_model_slot_zero(m, slot, e); }
static int iface_slot_copy(void *m, int dst, int src, sh_error *e) { return sh_model_slot_copy(m, dst, src, e); }
static int iface_page_copy(void *m, int dst, int src, sh_error *e) { return sh_model_page_copy(m, dst, src, e); }

static int64_t scratch_bytes(void *ctx, int max_tokens, int n_seqs) {
  const sh_engine *g = ctx;
  int rows = sh_plan_out_rows(n_seqs);
  return (int64_t)sh_model_scratch_bytes(g->model, max_tokens, rows) +
         sh_sched_bytes(max_tokens, n_seqs, rows, sh_model_config(g->model)->vocab_size);
}

static int make_plan(sh_engine *g, sh_error *e) {
  const sh_engine_options *o = &g->opt;
  sh_plan_in in = {
      .total_bytes = o->memory_limit > 0 ? o->memory_limit : sh_memory_limit(),
      .utilization = o->memory_utilization != 0 ? o->memory_utilization : 0.9,
      .weight_bytes = (int64_t)sh_model_weight_bytes(g->model),
      .kv_bytes_per_token = (int64_t)sh_model_kv_bytes_per_token(g->model, g->kv_type),
      .state_bytes_per_seq = (int64_t)sh_model_state_bytes(g->model),
      .model_max_len = sh_model_config(g->model)->max_position,
      .asked_max_model_len = o->max_model_len,
      .asked_max_num_seqs = o->max_num_seqs,
      .asked_max_num_batched_tokens = o->max_num_batched_tokens,
      .asked_block_size = o->block_size,
      .scratch = scratch_bytes,
      .ctx = g,
  };
  return sh_plan_make(&g->plan, &in, e);
}

/* A template that does not compile costs the chat API, not the start: completions still work. One the user gave is an error. */
static int open_chat(sh_engine *g, sh_error *e) {
  if (g->opt.chat_template) {
    int rc = sh_chat_open(&g->chat, g->opt.chat_template, strlen(g->opt.chat_template), e);
    return rc ? sh_fail_in(e, rc, "chat template") : 0;
  }
  size_t len;
  const char *text = sh_ckpt_chat_template(g->ckpt, &len);
  if (!text) return 0;
  sh_error err = {0};
  if (sh_chat_open(&g->chat, text, len, &err)) {
    sh_log(SH_LOG_WARN, "the model's chat template cannot be used (%s); chat requests will be refused, completions work", err.text);
    g->chat = NULL;
  }
  return 0;
}

static void fill_env(sh_engine *g) {
  sh_request_env *v = &g->env;
  int tok_vocab = sh_tok_vocab_size(g->tok), model_vocab = sh_model_config(g->model)->vocab_size;
  v->tok = g->tok;
  v->vocab = tok_vocab < model_vocab ? tok_vocab : model_vocab;
  v->max_model_len = (int)g->plan.max_model_len;
  v->seed = g->opt.seed;
  for (int32_t id = 0; id < v->vocab; id++) {
    size_t len;
    if (sh_tok_bytes(g->tok, id, &len) && len < INT_MAX / 8 && (int)len > v->max_piece) v->max_piece = (int)len;
  }
  v->end_ids = g->end_ids;
  v->n_end_ids = sh_genconf_end_ids(g->ckpt, sh_model_config(g->model), g->tok, g->gen, v->vocab, g->end_ids, MAX_END_IDS);
}

static int open_parts(sh_engine *g, sh_error *e) {
  const sh_engine_options *o = &g->opt;
  int rc;
  if ((rc = sh_genconf_check_dtype(o->dtype, e))) return rc;
  if (o->threads < 0 || o->threads > 4096)
    return sh_fail(e, SH_ERR_ARG, "threads must be between 0 and 4096, got %lld", (long long)o->threads);
  if (o->step_ms < 0 || o->max_num_queued < 0) return sh_fail(e, SH_ERR_ARG, "step-ms and max-num-queued must not be negative");
  g->arena = sh_arena_new(1 << 20);
  if (!g->arena) return sh_fail(e, SH_ERR_NOMEM, "no memory for the engine");
  if ((rc = sh_ckpt_open(&g->ckpt, o->model, 0, e))) return rc;
  if ((rc = sh_genconf_check_quantization(g->ckpt, o->quantization, e))) return rc;
  sh_backend_opts bo = {.threads = (int)o->threads, .cpu = o->cpu};
  if ((rc = sh_backend_cpu_new(&g->backend, &bo, e))) return rc;
  sh_repack_opts repack = {.panels = !o->exact, .dry = o->plan_only, .cache_dir = o->cache_dir, .threads = (int)o->threads};
  if ((rc = sh_head_parse(o->head, o->exact, &repack.head, e)) || (rc = sh_kv_parse(o->kv_cache_dtype, o->exact, &g->kv_type, e)))
    return rc;
  if ((rc = sh_model_open(&g->model, g->ckpt, g->backend, &repack, e))) return rc;
  if (!o->plan_only && (rc = sh_model_read_ahead(g->model, e))) return rc;
  if ((rc = sh_tok_open(&g->tok, g->ckpt, e))) return rc;
  if ((rc = open_chat(g, e))) return rc;
  if ((rc = sh_genconf_load(g->ckpt, g->arena, &g->gen, e))) return rc;
  if ((rc = make_plan(g, e))) return rc;
  fill_env(g);
  g->description = sh_arena_printf(g->arena, "%s on %s", sh_model_describe(g->model), g->backend->ops->describe(g->backend));
  return g->description ? 0 : sh_fail(e, SH_ERR_NOMEM, "no memory for the engine");
}

int sh_engine_open(sh_engine **out, const sh_engine_options *o, sh_error *e) {
  *out = NULL;
  sh_engine *g = sh_calloc(1, sizeof *g);
  if (!g) return sh_fail(e, SH_ERR_NOMEM, "no memory for the engine");
  g->opt = *o;
  int rc = open_parts(g, e);
  if (rc) {
    sh_engine_close(g);
    return rc;
  }
  g->opt.chat_template = NULL; /* was borrowed during open */
  *out = g;
  return 0;
}

/* --- The engine thread
 * ----------------------------------------------------------------------------------------------------------------------- */

static void wake(void *ctx) {
  sh_engine *g = ctx;
  pthread_mutex_lock(&g->mu);
  g->wake = true;
  pthread_cond_signal(&g->work);
  pthread_mutex_unlock(&g->mu);
}

/* Sleeps until there is a reason to look again. A parked request's grace time runs out without anybody telling, so then the sleep is short.
 */
static void sleep_locked(sh_engine *g) {
  bool held = g->sched.waiting.n > 0 || g->sched.running.n > 0;
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  int64_t ns = (int64_t)until.tv_nsec + (int64_t)IDLE_RECHECK_MS * 1000000;
  until.tv_sec += (time_t)(ns / 1000000000);
  until.tv_nsec = (long)(ns % 1000000000);
  int rc = 0;
  while (!g->wake && !g->stop && !g->incoming && rc == 0)
    rc = held ? pthread_cond_timedwait(&g->work, &g->mu, &until) : pthread_cond_wait(&g->work, &g->mu);
}

/* The warm-up is over: count from here. */
static void reset_stats_locked(sh_engine *g) {
  if (!g->reset_stats) return;
  g->sched.stats = (sh_stats){.pages_total = g->sched.stats.pages_total};
  g->reset_stats = false;
}

/* Hands the incoming requests to the scheduler; true: the engine shall stop. */
static bool take_work(sh_engine *g, bool idle) {
  pthread_mutex_lock(&g->mu);
  reset_stats_locked(g);
  g->stats = g->sched.stats;
  int n = 0;
  for (sh_request *r = g->incoming; r; r = r->next) n++;
  g->n_queued = g->sched.n_unadmitted + n;
  g->stats.waiting += n;
  if (idle) {
    sleep_locked(g);
    reset_stats_locked(g); /* asked for while it slept: the first step after the warm-up counts */
  }
  g->wake = false;
  sh_request *r = g->incoming;
  g->incoming = g->incoming_tail = NULL;
  bool stop = g->stop;
  pthread_mutex_unlock(&g->mu);
  while (r) {
    sh_request *next = r->next;
    sh_sched_add(&g->sched, r);
    r = next;
  }
  return stop;
}

static void *engine_main(void *ctx) {
  sh_engine *g = ctx;
  bool idle = false;
  while (!take_work(g, idle)) idle = !sh_sched_step(&g->sched);
  sh_sched_abort_all(&g->sched);
  return NULL;
}

/* --- Start and end
 * --------------------------------------------------------------------------------------------------------------------------- */

static int init_sync(sh_engine *g, sh_error *e) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  int rc = pthread_mutex_init(&g->mu, NULL);
  if (rc == 0) rc = pthread_cond_init(&g->work, &attr);
  pthread_condattr_destroy(&attr);
  g->has_sync = rc == 0;
  return rc ? sh_fail(e, SH_ERR_NOMEM, "no lock for the engine: %s", strerror(rc)) : 0;
}

static int reserve(sh_engine *g, sh_error *e) {
  const sh_plan *p = &g->plan;
  sh_model_sizes sizes = {
      .page_size = (int)p->page_size,
      .n_pages = (int)p->n_pages,
      .n_slots = (int)p->max_num_seqs,
      .kv_type = g->kv_type,
      .max_tokens = (int)p->max_num_batched_tokens,
      .max_seqs = (int)p->max_num_seqs,
      .max_out = sh_plan_out_rows(p->max_num_seqs),
      .max_context = (int)p->max_model_len,
  };
  int rc = sh_model_reserve(g->model, &sizes, e);
  if (rc) return rc;
  sh_sched_config cfg = {
      .page_size = sizes.page_size,
      .n_pages = sizes.n_pages,
      .n_slots = sizes.n_slots,
      .max_batched = sizes.max_tokens,
      .max_out = sizes.max_out,
      .max_model_len = sizes.max_context,
      .step_ns = (g->opt.step_ms ? g->opt.step_ms : STEP_MS) * 1000000,
      .park_grace_ns = (int64_t)PARK_GRACE_MS * 1000000,
  };
  sh_model_iface m = {g->model, sh_model_config(g->model)->vocab_size, iface_forward, iface_slot_zero, iface_slot_copy, iface_page_copy};
  return sh_sched_init(&g->sched, &cfg, &g->env, &m, e);
}

/* One prompt and one more token. Its failure is the start's failure: a model that cannot compute must not open a port. */
static int warm_up(sh_engine *g, sh_error *e) {
  int32_t ids[WARM_UP_TOKENS];
  int n = g->env.max_model_len - 2 < WARM_UP_TOKENS ? g->env.max_model_len - 2 : WARM_UP_TOKENS;
  if (n < 1) n = 1;
  for (int i = 0; i < n; i++) ids[i] = (i * 7) % g->env.vocab;
  sh_request_params p;
  sh_request_defaults(&p);
  p.ids = ids;
  p.n_ids = n;
  p.max_tokens = g->env.max_model_len - n < 2 ? g->env.max_model_len - n : 2;
  p.temperature = 0;
  p.ignore_eos = true;
  sh_request *r;
  int rc = sh_request_submit(g, &p, NULL, NULL, &r, e);
  if (rc) return rc;
  int64_t deadline = sh_now_ns() + (int64_t)WARM_UP_MS * 1000000;
  bool ended = false;
  while (!ended && sh_now_ns() < deadline) {
    sh_event ev;
    sh_request_wait(r, 1000);
    while (sh_request_next(r, &ev)) {
      if (ev.type == SH_EV_FINISH && ev.finish == SH_FINISH_ERROR) rc = sh_fail(e, ev.error_code, "the first step failed: %s", ev.error);
      ended |= ev.type == SH_EV_END;
    }
  }
  sh_request_free(r);
  if (!ended) return sh_fail(e, SH_ERR_INTERNAL, "the first step did not end within %d s", WARM_UP_MS / 1000);
  return rc;
}

int sh_engine_start(sh_engine *g, sh_error *e) {
  int rc;
  if (g->has_thread) return sh_fail(e, SH_ERR_INTERNAL, "the engine runs already");
  if ((rc = reserve(g, e)) || (rc = sh_model_read_wait(g->model, e)) || (rc = init_sync(g, e))) return rc;
  g->env.wake = wake;
  g->env.wake_ctx = g;
  rc = pthread_create(&g->thread, NULL, engine_main, g);
  if (rc) return sh_fail(e, SH_ERR_NOMEM, "cannot start the engine thread: %s", strerror(rc));
  g->has_thread = true;
  if ((rc = warm_up(g, e))) return rc;
  pthread_mutex_lock(&g->mu);
  g->reset_stats = true;
  g->stats = (sh_stats){.pages_total = g->plan.n_pages};
  pthread_mutex_unlock(&g->mu);
  return 0;
}

void sh_engine_drain(sh_engine *g) {
  if (!g->has_sync) return;
  pthread_mutex_lock(&g->mu);
  g->draining = true;
  pthread_mutex_unlock(&g->mu);
}

void sh_engine_close(sh_engine *g) {
  if (!g) return;
  if (g->has_thread) {
    pthread_mutex_lock(&g->mu);
    g->stop = g->draining = true;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->mu);
    pthread_join(g->thread, NULL);
  }
  if (g->has_sync) {
    pthread_cond_destroy(&g->work);
    pthread_mutex_destroy(&g->mu);
  }
  sh_sched_free(&g->sched);
  sh_model_free(g->model);
  if (g->backend) g->backend->ops->free(g->backend);
  sh_chat_free(g->chat);
  sh_tok_free(g->tok);
  sh_ckpt_close(g->ckpt);
  sh_arena_free(g->arena);
  sh_free(g);
}

/* --- Queries and requests
 * -------------------------------------------------------------------------------------------------------------------- */

const sh_plan *sh_engine_plan(const sh_engine *g) { return &g->plan; }
const char *sh_engine_describe(const sh_engine *g) { return g->description; }
const sh_tok *sh_engine_tokenizer(const sh_engine *g) { return g->tok; }
const sh_chat *sh_engine_chat(const sh_engine *g) { return g->chat; }
const sh_json *sh_engine_generation_config(const sh_engine *g) { return g->gen; }
int sh_engine_vocab_size(const sh_engine *g) { return g->env.vocab; }

void sh_engine_stats(sh_engine *g, sh_stats *out) {
  *out = (sh_stats){0};
  if (!g->has_sync) return;
  pthread_mutex_lock(&g->mu);
  *out = g->stats;
  pthread_mutex_unlock(&g->mu);
}

int sh_request_submit(sh_engine *g, const sh_request_params *p, sh_notify_fn notify, void *ctx, sh_request **out, sh_error *e) {
  *out = NULL;
  if (!g->has_thread) return sh_fail(e, SH_ERR_BUSY, "the engine has not started");
  int64_t most = g->opt.max_num_queued ? g->opt.max_num_queued : MAX_QUEUED;
  pthread_mutex_lock(&g->mu);
  bool busy = g->draining || g->n_queued >= most, draining = g->draining;
  uint64_t number = g->next_number++;
  if (!busy) g->n_queued++;
  pthread_mutex_unlock(&g->mu);
  if (draining) return sh_fail(e, SH_ERR_BUSY, "the server is shutting down");
  if (busy) return sh_fail(e, SH_ERR_BUSY, "%lld requests are waiting already; try again later", (long long)most);
  sh_request *r;
  int rc = sh_request_new(&g->env, p, number, notify, ctx, &r, e);
  pthread_mutex_lock(&g->mu);
  if (rc) {
    g->n_queued--;
  } else if (g->stop) { /* closed meanwhile: nobody would take it */
    rc = sh_fail(e, SH_ERR_BUSY, "the server is shutting down");
    g->n_queued--;
  } else {
    r->next = NULL;
    if (g->incoming_tail) g->incoming_tail->next = r;
    else g->incoming = r;
    g->incoming_tail = r;
    *out = r;
    pthread_cond_signal(&g->work);
  }
  pthread_mutex_unlock(&g->mu);
  if (rc && r) {
    sh_request_unref(r);
    sh_request_unref(r);
  }
  return rc;
}
