/* The scheduler's life cycle: requests come in, steps run, choices end, memory goes back.
 *
 * Engine thread only. A step is: end what was cancelled, build a batch (batch.c), one forward pass, logits to events (emit.c), notify.
 * Everything a step needs was allocated at start or at a choice's admission; the step counts its allocations and any is an error in debug
 * builds.
 *
 * Preemption throws a sequence's cache away and recomputes prompt and answer later; the tokens that were drawn stay, and because a row's
 * logits do not depend on chunking and a draw is keyed by (seed, position, choice), the text goes on as if nothing had happened. Refused:
 * swapping caches out to other memory, since on a CPU there is none that is larger.
 *
 * A forward error ends the sequences of that batch and no others: the backend promises that theirs are the only caches it may have half
 * advanced. */
#include "engine/sched.h"

#include "base/log.h"
#include "base/pool.h"
#include "base/text.h"

#include <assert.h>
#include <string.h>

/* --- Start and end
 * --------------------------------------------------------------------------------------------------------------------------- */

/* Ids without a token: beyond the tokenizer (matrices are padded), and holes in its numbering. */
static int find_masked(sh_sched *s, const sh_request_env *env) {
  size_t len;
  for (int pass = 0; pass < 2; pass++) {
    s->n_masked = 0;
    for (int32_t id = 0; id < s->model.vocab; id++) {
      if (id < env->vocab && sh_tok_bytes(env->tok, id, &len)) continue;
      if (pass) s->masked[s->n_masked] = id;
      s->n_masked++;
    }
    if (pass == 0 && !(s->masked = sh_calloc((size_t)s->n_masked + 1, sizeof *s->masked))) return SH_ERR_NOMEM;
  }
  return 0;
}

int sh_sched_init(sh_sched *s, const sh_sched_config *cfg, const sh_request_env *env, const sh_model_iface *m, sh_error *e) {
  memset(s, 0, sizeof *s);
  s->cfg = *cfg;
  s->env = env;
  s->model = *m;
  size_t slots = (size_t)cfg->n_slots, rows = (size_t)cfg->max_out, vocab = (size_t)m->vocab;
  int rc = 0;
  if ((rc = sh_pages_init(&s->pages, cfg->n_pages, e)) || (rc = sh_slots_init(&s->slots, cfg->n_slots, e)) ||
      (rc = sh_sampler_init(&s->sampler, m->vocab, e)) || (rc = sh_proc_scratch_init(&s->proc, m->vocab, e)))
    goto fail;
  s->seqs = sh_calloc(slots, sizeof *s->seqs);
  s->who = sh_calloc(slots, sizeof *s->who);
  s->prompts = sh_calloc(slots, sizeof *s->prompts);
  s->limit = sh_calloc(slots, sizeof *s->limit);
  s->share = sh_calloc(slots, sizeof *s->share);
  s->ids = sh_calloc((size_t)cfg->max_batched, sizeof *s->ids);
  s->out_rows = sh_calloc(rows, sizeof *s->out_rows);
  s->logits = sh_calloc(rows * vocab, sizeof *s->logits);
  s->raw = sh_calloc(vocab, sizeof *s->raw);
  s->top = sh_calloc(SH_MAX_LOGPROBS, sizeof *s->top);
  sh_buf_init(&s->text, 3 * ((size_t)env->max_piece + 4) + 64);
  if (!s->seqs || !s->who || !s->prompts || !s->limit || !s->share || !s->ids || !s->out_rows || !s->logits || !s->raw || !s->top ||
      sh_buf_reserve(&s->text, s->text.max) || find_masked(s, env)) {
    rc = sh_fail(e, SH_ERR_NOMEM, "no memory for the scheduler: %d sequences, %d rows of %d logits", cfg->n_slots, cfg->max_out, m->vocab);
    goto fail;
  }
  return 0;
fail:
  sh_sched_free(s);
  return rc;
}

void sh_sched_free(sh_sched *s) {
  sh_pages_free(&s->pages);
  sh_slots_free(&s->slots);
  sh_sampler_free(&s->sampler);
  sh_proc_scratch_free(&s->proc);
  void *owned[] = {s->seqs, s->who, s->prompts, s->limit, s->share, s->ids, s->out_rows, s->logits, s->raw, s->top, s->masked};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) sh_free(owned[i]);
  sh_buf_free(&s->text);
  memset(s, 0, sizeof *s);
}

int64_t sh_sched_bytes(int max_batched, int n_slots, int max_out, int vocab) {
  int64_t per_slot = (int64_t)(sizeof(sh_seq) + 2 * sizeof(void *) + 2 * sizeof(int));
  return (int64_t)max_out * vocab * 4 + (int64_t)max_out * 4 + (int64_t)max_batched * 4 + n_slots * per_slot + (int64_t)vocab * 4 +
         sh_sampler_bytes(vocab) + sh_proc_scratch_bytes(vocab);
}

/* --- Lists
 * ----------------------------------------------------------------------------------------------------------------------------------- */

static bool older(const sh_choice *a, const sh_choice *b) {
  return a->req->number != b->req->number ? a->req->number < b->req->number : a->index < b->index;
}

void sh_sched_list_add(sh_choice_list *l, sh_choice *c) {
  sh_choice *after = l->tail; /* new ones are young: the walk is short but for the preempted */
  while (after && older(c, after)) after = after->prev;
  c->prev = after;
  c->next = after ? after->next : l->head;
  if (c->prev) c->prev->next = c;
  else l->head = c;
  if (c->next) c->next->prev = c;
  else l->tail = c;
  l->n++;
}

void sh_sched_list_del(sh_choice_list *l, sh_choice *c) {
  if (c->prev) c->prev->next = c->next;
  else l->head = c->next;
  if (c->next) c->next->prev = c->prev;
  else l->tail = c->prev;
  c->prev = c->next = NULL;
  l->n--;
}

static void live_add(sh_sched *s, sh_request *r) {
  r->prev = NULL;
  r->next = s->live;
  if (s->live) s->live->prev = r;
  s->live = r;
}

static void live_del(sh_sched *s, sh_request *r) {
  if (r->prev) r->prev->next = r->next;
  else s->live = r->next;
  if (r->next) r->next->prev = r->prev;
}

/* --- Memory
 * ---------------------------------------------------------------------------------------------------------------------------------- */

int sh_sched_pages_for(const sh_sched *s, int tokens) { return (tokens + s->cfg.page_size - 1) / s->cfg.page_size; }

static bool is_lead(const sh_choice *c) { return c->index == c->req->params.n; }

/* Out of whatever list it is in, holding nothing; counters follow. The caller sets the new state. */
static void release(sh_sched *s, sh_choice *c) {
  sh_request *r = c->req;
  if (c->state == SH_CHOICE_RUNNING || c->state == SH_CHOICE_TEMPLATE) {
    sh_sched_list_del(&s->running, c);
    if (!is_lead(c)) r->n_running--;
  } else if (c->state == SH_CHOICE_WAITING) {
    sh_sched_list_del(&s->waiting, c);
  } else if (c->state == SH_CHOICE_PENDING) {
    r->n_pending--;
  }
  for (int i = 0; i < c->n_pages; i++) sh_pages_unref(&s->pages, c->pages[i]);
  if (c->slot >= 0) sh_slots_give(&s->slots, c->slot);
  c->n_pages = 0;
  c->slot = -1;
  c->n_computed = 0;
}

void sh_sched_preempt(sh_sched *s, sh_choice *c) {
  assert(!c->in_batch && (c->state == SH_CHOICE_RUNNING || c->state == SH_CHOICE_TEMPLATE));
  release(s, c);
  c->state = SH_CHOICE_WAITING;
  sh_sched_list_add(&s->waiting, c);
  s->stats.preemptions++;
}

/* --- Requests come and go
 * -------------------------------------------------------------------------------------------------------------------- */

void sh_sched_add(sh_sched *s, sh_request *r) {
  live_add(s, r);
  s->n_unadmitted++;
  sh_sched_list_add(&s->waiting, r->lead);
}

/* Every choice is done: END, and off the books. Notified and let go when the step is over, since that may free. */
static void end_request(sh_sched *s, sh_request *r, sh_finish why) {
  if (r->lead->state != SH_CHOICE_DONE) {
    release(s, r->lead);
    r->lead->state = SH_CHOICE_DONE;
  }
  if (!r->admitted) s->n_unadmitted--;
  r->admitted = true;
  sh_request_end(r);
  if (why == SH_FINISH_ABORT) s->stats.requests_cancelled++;
  else if (why == SH_FINISH_ERROR) s->stats.requests_failed++;
  else s->stats.requests_finished++;
  live_del(s, r);
  r->next = s->finished;
  s->finished = r;
}

/* The sentence cut to what a record has room for, whole characters. */
static const char *short_error(const sh_error *error, char buf[SH_MAX_ERROR_BYTES]) {
  if (!error) return NULL;
  size_t n = strnlen(error->text, SH_MAX_ERROR_BYTES - 1);
  n -= sh_utf8_incomplete_tail(error->text, n);
  memcpy(buf, error->text, n);
  buf[n] = '\0';
  return buf;
}

void sh_sched_finish(sh_sched *s, sh_choice *c, sh_finish why, int32_t stop_id, int stop_str, const sh_error *error) {
  sh_request *r = c->req;
  release(s, c);
  c->state = SH_CHOICE_DONE;
  if (is_lead(c)) return;
  r->n_done++;
  sh_buf_reset(&s->text);
  if (stop_str < 0) sh_detok_flush(&c->detok, &s->text);
  sh_rec rec = {.type = SH_EV_FINISH,
                .choice = c->index,
                .finish = why,
                .stop_id = stop_id,
                .stop_str = stop_str,
                .prompt_tokens = r->params.n_ids,
                .completion_tokens = c->n_out,
                .error_code = error ? error->code : 0};
  char buf[SH_MAX_ERROR_BYTES];
  sh_rec_body body = {.text = {c->held, s->text.p}, .text_len = {c->n_held, s->text.len}, .error = short_error(error, buf)};
  sh_request_push(r, &rec, &body);
  c->n_held = 0;
  if (r->n_done == r->params.n) end_request(s, r, why);
}

void sh_sched_fail(sh_sched *s, sh_choice *c, const sh_error *error) {
  sh_request *r = c->req;
  bool lead = is_lead(c);
  sh_sched_finish(s, c, SH_FINISH_ERROR, -1, -1, error);
  for (int i = 0; lead && i < r->params.n; i++)
    if (r->choices[i].state == SH_CHOICE_PENDING) sh_sched_finish(s, &r->choices[i], SH_FINISH_ERROR, -1, -1, error);
}

static void abort_request(sh_sched *s, sh_request *r) {
  for (int i = 0; i < r->params.n; i++)
    if (r->choices[i].state != SH_CHOICE_DONE) sh_sched_finish(s, &r->choices[i], SH_FINISH_ABORT, -1, -1, NULL);
}

static void drop_cancelled(sh_sched *s) {
  for (sh_request *r = s->live, *next; r; r = next) {
    next = r->next;
    if (atomic_load(&r->cancelled)) abort_request(s, r);
  }
}

/* Front ends hear of their events; requests that ended lose the engine's reference. Outside the guarded part: the callback is not ours. */
static void notify_all(sh_sched *s) {
  for (sh_request *r = s->live; r; r = r->next) sh_request_notify(r);
  while (s->finished) {
    sh_request *r = s->finished;
    s->finished = r->next;
    sh_request_notify(r);
    sh_request_unref(r);
  }
}

void sh_sched_abort_all(sh_sched *s) {
  while (s->live) abort_request(s, s->live);
  notify_all(s);
}

/* --- A step
 * ---------------------------------------------------------------------------------------------------------------------------------- */

/* The time of a row, as a moving average over steps with prompt tokens. Reading the weights is a fixed cost of a step, so the average falls
 * with the rows of a step; the budget step_ns / token_ns settles where a step takes step_ns. A row that took less than half is believed at
 * once: the first steps read the weights from the disk and would keep the budget small for a dozen more. */
static void measure(sh_sched *s, int64_t ns) {
  if (s->n_prompt_tokens == 0) return;
  double per_token = (double)ns / s->batch.n_tokens;
  bool first = s->token_ns == 0 || per_token < s->token_ns / 2;
  s->token_ns = first ? per_token : s->token_ns + 0.3 * (per_token - s->token_ns);
}

static void run_batch(sh_sched *s) {
  sh_error err = {0};
  sh_mem_guard_begin();
  int rc = s->model.forward(s->model.ctx, &s->batch, s->logits, &err);
  if (rc == 0) {
    sh_sched_consume(s);
  } else {
    sh_log(SH_LOG_ERROR, "a step of %d sequences failed: %s", s->batch.n_seqs, err.text);
    for (int i = 0; i < s->batch.n_seqs; i++) sh_sched_fail(s, s->who[i], &err);
  }
  long allocs = sh_mem_guard_end();
  s->step_allocs += allocs;
#ifdef SH_DEBUG
  if (allocs) sh_log(SH_LOG_ERROR, "%ld allocations inside a step", allocs);
#endif
  s->stats.steps++;
  s->stats.prompt_tokens += s->n_prompt_tokens;
}

static void gauge(sh_sched *s) {
  sh_stats *t = &s->stats;
  t->running = t->waiting = t->parked = 0;
  for (const sh_choice *c = s->running.head; c; c = c->next) {
    if (c->req->parked_since) t->parked++;
    else t->running++;
  }
  for (const sh_choice *c = s->waiting.head; c; c = c->next) t->waiting++;
  for (const sh_request *r = s->live; r; r = r->next) t->waiting += r->n_pending;
  t->pages_used = s->pages.n - s->pages.n_free;
  t->pages_total = s->pages.n;
}

bool sh_sched_step(sh_sched *s) {
  s->now_ns = sh_now_ns();
  drop_cancelled(s);
  sh_sched_build(s);
  bool computed = s->batch.n_seqs > 0;
  if (computed) {
    int64_t start = sh_now_ns();
    run_batch(s);
    measure(s, sh_now_ns() - start);
  }
  gauge(s);
  notify_all(s);
  assert(sh_sched_check(s));
  return computed;
}

/* --- Checking
 * -------------------------------------------------------------------------------------------------------------------------------- */

static bool check_request(const sh_request *r) {
  int pending = 0, running = 0, done = 0;
  for (int i = 0; i < r->params.n; i++) {
    pending += r->choices[i].state == SH_CHOICE_PENDING;
    running += r->choices[i].state == SH_CHOICE_RUNNING;
    done += r->choices[i].state == SH_CHOICE_DONE;
  }
  if (r->params.n > 1 && pending > 0 && r->lead->state == SH_CHOICE_DONE) return false; /* nobody would ever serve them */
  return pending == r->n_pending && running == r->n_running && done == r->n_done && done < r->params.n;
}

bool sh_sched_check(sh_sched *s) {
  int64_t held = 0, refs = 0;
  int slots = 0;
  for (const sh_choice *c = s->running.head; c; c = c->next) {
    if (c->next && !older(c, c->next)) return false;
    if (c->slot < 0 || !s->slots.taken[c->slot]) return false;
    if (c->n_pages > c->cap_pages || c->n_computed > c->n_pages * s->cfg.page_size) return false;
    for (int i = 0; i < c->n_pages; i++)
      if (s->pages.refs[c->pages[i]] < 1) return false;
    held += c->n_pages;
    slots++;
  }
  for (const sh_choice *c = s->waiting.head; c; c = c->next) {
    if (c->next && !older(c, c->next)) return false;
    if (c->slot >= 0 || c->n_pages || c->n_computed) return false;
  }
  for (int32_t p = 0; p < s->pages.n; p++) refs += s->pages.refs[p];
  for (const sh_request *r = s->live; r; r = r->next)
    if (!check_request(r)) return false;
  return held == refs && slots == s->slots.n - s->slots.n_free && sh_pages_check(&s->pages) && sh_slots_check(&s->slots);
}
