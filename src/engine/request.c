/* Requests: copied from the front end's parameters, shared by two threads, freed by whichever lets go last.
 *
 * The submitting thread builds; the engine thread schedules, draws and pushes events; one thread of the front end reads. What they share is
 * the ring, under the request's mutex, and two atomics. The engine never waits for a reader: before it takes a sequence into a step it
 * claims room for the events the step can make. Room for every choice's FINISH and for END is never given away, so an end can always be
 * told.
 *
 * notify runs under a mutex of its own: sh_request_free can wait until a call that is under way has returned, while the reader, which takes
 * the other mutex, may hold the lock that notify wants. */
#include "engine/request.h"

#include "base/mem.h"
#include "base/pool.h"
#include "engine/params.h"

#include <limits.h>
#include <string.h>
#include <time.h>

/* --- Building
 * -------------------------------------------------------------------------------------------------------------------------------- */

static void *copy(sh_arena *a, const void *p, int n, size_t size, int *rc) {
  if (n == 0) return NULL;
  void *q = sh_arena_array(a, (size_t)n, size);
  if (q) memcpy(q, p, (size_t)n * size);
  else *rc = SH_ERR_NOMEM;
  return q;
}

/* Ascending without repetition; heap sort, since the list may name the whole vocabulary and libc's qsort may allocate or go quadratic. */
static int sort_distinct(int32_t *v, int n) {
  for (int end = n, start = n / 2; end > 1;) {
    if (start > 0) start--;
    else {
      end--;
      int32_t t = v[end];
      v[end] = v[0];
      v[0] = t;
    }
    for (int i = start, c; (c = 2 * i + 1) < end; i = c) {
      if (c + 1 < end && v[c + 1] > v[c]) c++;
      if (v[i] >= v[c]) break;
      int32_t t = v[i];
      v[i] = v[c];
      v[c] = t;
    }
  }
  int m = 0;
  for (int i = 0; i < n; i++)
    if (i == 0 || v[i] != v[m - 1]) v[m++] = v[i];
  return m;
}

static int copy_params(sh_request *r, const sh_request_params *p) {
  int rc = 0;
  sh_arena *a = r->arena;
  sh_request_params *q = &r->params;
  *q = *p;
  q->ids = copy(a, p->ids, p->n_ids, sizeof *p->ids, &rc);
  q->stop_ids = copy(a, p->stop_ids, p->n_stop_ids, sizeof *p->stop_ids, &rc);
  q->bias = copy(a, p->bias, p->n_bias, sizeof *p->bias, &rc);
  int32_t *allowed = copy(a, p->allowed, p->n_allowed, sizeof *allowed, &rc);
  q->allowed = allowed;
  if (allowed) q->n_allowed = sort_distinct(allowed, p->n_allowed);
  sh_id_list *words = copy(a, p->bad_words, p->n_bad_words, sizeof *words, &rc);
  for (int i = 0; words && i < p->n_bad_words; i++) words[i].v = copy(a, p->bad_words[i].v, p->bad_words[i].n, sizeof(int32_t), &rc);
  q->bad_words = words;
  if (!rc) rc = sh_stops_compile(&r->stops, p->stop, p->n_stop, a);
  q->stop = r->stops.str;
  return rc;
}

static int compile(sh_request *r) {
  const sh_request_params *p = &r->params;
  r->draw = (sh_draw){p->temperature, p->top_p, p->min_p, p->top_k};
  int n_ends = r->env->n_end_ids + p->n_stop_ids;
  int32_t *ends = n_ends ? sh_arena_array(r->arena, (size_t)n_ends, sizeof *ends) : NULL;
  if (n_ends && !ends) return SH_ERR_NOMEM;
  for (int i = 0; i < n_ends; i++) ends[i] = i < r->env->n_end_ids ? r->env->end_ids[i] : p->stop_ids[i - r->env->n_end_ids];
  r->proc = (sh_proc){
      .allowed = p->allowed,
      .n_allowed = p->n_allowed,
      .bad_words = p->bad_words,
      .n_bad_words = p->n_bad_words,
      .ends = ends,
      .n_ends = n_ends,
      .min_tokens = p->min_tokens,
      .bias = p->bias,
      .n_bias = p->n_bias,
      .repetition = p->repetition_penalty,
      .presence = p->presence_penalty,
      .frequency = p->frequency_penalty,
  };
  return 0;
}

/* Choices start waiting (n == 1) or pending behind the lead. */
static int make_choices(sh_request *r) {
  int n = r->params.n, total = n + (n > 1);
  r->choices = sh_arena_array(r->arena, (size_t)total, sizeof *r->choices);
  if (!r->choices) return SH_ERR_NOMEM;
  r->lead = &r->choices[total - 1];
  for (int i = 0; i < total; i++) {
    sh_choice *c = &r->choices[i];
    c->req = r;
    c->index = i;
    c->slot = -1;
    c->state = c == r->lead ? SH_CHOICE_WAITING : SH_CHOICE_PENDING;
    if (i == n) break; /* the lead draws nothing */
    sh_detok_init(&c->detok, r->env->tok, r->params.skip_special_tokens);
    if (r->stops.n == 0) continue;
    c->stop_state = sh_arena_array(r->arena, (size_t)r->stops.n, sizeof *c->stop_state);
    c->held = sh_arena_alloc(r->arena, r->stops.longest);
    if (!c->stop_state || !c->held) return SH_ERR_NOMEM;
  }
  r->n_pending = n > 1 ? n : 0;
  return 0;
}

/* Sizes of the largest records, and a ring in which one step of all choices and all the ends fit. */
static int make_ring(sh_request *r, sh_error *e) {
  const sh_request_params *p = &r->params;
  size_t n = (size_t)p->n, top = p->logprobs > 0 ? (size_t)p->logprobs : 0,
         prompt_top = p->prompt_logprobs > 0 ? (size_t)p->prompt_logprobs : 0;
  size_t text = 3 * ((size_t)r->env->max_piece + 4) + r->stops.longest; /* an invalid byte becomes 3 bytes of U+FFFD */
  r->token_bytes = sh_rec_bytes(top, text, 0);
  r->prompt_bytes = sh_rec_bytes(prompt_top, 0, 0);
  r->finish_bytes = sh_rec_bytes(0, text, SH_MAX_ERROR_BYTES);
  size_t step = n * r->token_bytes;
  if (p->prompt_logprobs >= 0 && r->prompt_bytes > step) step = r->prompt_bytes;
  if (p->prompt_logprobs >= 0) step += n * r->token_bytes; /* the last rows of a prompt and the first tokens come in one step */
  size_t cap = step + n * r->finish_bytes + sh_rec_bytes(0, 0, 0);
  if (cap < SH_RING_BYTES) cap = SH_RING_BYTES;
  size_t largest = r->token_bytes > r->finish_bytes ? r->token_bytes : r->finish_bytes;
  if (r->prompt_bytes > largest) largest = r->prompt_bytes;
  r->cur = sh_malloc(largest + 2); /* two NULs */
  if (!r->cur) return sh_fail(e, SH_ERR_NOMEM, "no memory for a request's events");
  return sh_ring_init(&r->ring, cap, e);
}

static void destroy(sh_request *r) {
  for (int i = 0; r->choices && i < r->params.n + (r->params.n > 1); i++) {
    sh_free(r->choices[i].pages);
    sh_free(r->choices[i].out);
  }
  sh_ring_free(&r->ring);
  sh_free(r->cur);
  sh_arena_free(r->arena);
  pthread_cond_destroy(&r->cond);
  pthread_mutex_destroy(&r->notify_mu);
  pthread_mutex_destroy(&r->mu);
  sh_free(r);
}

static uint64_t own_seed(const sh_request_env *env, const sh_request_params *p, uint64_t number) {
  if (p->has_seed) return p->seed;
  return env->seed ^ ((number + 1) * 0x9E3779B97F4A7C15u); /* sh_sample_uniform mixes */
}

int sh_request_new(const sh_request_env *env, const sh_request_params *p, uint64_t number, sh_notify_fn notify, void *ctx, sh_request **out,
                   sh_error *e) {
  *out = NULL;
  int rc = sh_params_check(env, p, e);
  if (rc) return rc;
  sh_request *r = sh_calloc(1, sizeof *r);
  if (!r) return sh_fail(e, SH_ERR_NOMEM, "no memory for a request");
  r->env = env;
  r->number = number;
  r->seed = own_seed(env, p, number);
  r->notify = notify;
  r->notify_ctx = ctx;
  atomic_init(&r->cancelled, false);
  atomic_init(&r->ended, false);
  atomic_init(&r->refs, 2);
  pthread_mutex_init(&r->mu, NULL);
  pthread_mutex_init(&r->notify_mu, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&r->cond, &attr);
  pthread_condattr_destroy(&attr);
  r->arena = sh_arena_new(SIZE_MAX / 2);
  if (!r->arena || copy_params(r, p) || compile(r) || make_choices(r)) {
    rc = sh_fail(e, SH_ERR_NOMEM, "no memory for a request of %d prompt tokens", p->n_ids);
    goto fail;
  }
  if ((rc = make_ring(r, e))) goto fail;
  *out = r;
  return 0;
fail:
  destroy(r);
  return rc;
}

void sh_request_unref(sh_request *r) {
  if (atomic_fetch_sub(&r->refs, 1) == 1) destroy(r);
}

/* --- The engine's side
 * ----------------------------------------------------------------------------------------------------------------------- */

/* Bytes that are spoken for: the last events of all choices, and END. */
static size_t reserved(const sh_request *r) { return (size_t)(r->params.n - r->n_done) * r->finish_bytes + sh_rec_bytes(0, 0, 0); }

static size_t room_locked(const sh_request *r) {
  size_t kept = reserved(r) + r->claimed, room = sh_ring_room(&r->ring);
  return room > kept ? room - kept : 0;
}

size_t sh_request_room(sh_request *r) {
  pthread_mutex_lock(&r->mu);
  size_t room = room_locked(r);
  pthread_mutex_unlock(&r->mu);
  return room;
}

bool sh_request_has_room(sh_request *r, size_t bytes, int64_t now_ns) {
  pthread_mutex_lock(&r->mu);
  bool ok = room_locked(r) >= bytes;
  r->parked = !ok;
  r->room_wanted = reserved(r) + bytes; /* without the claims: they become events, whose reading wakes us */
  pthread_mutex_unlock(&r->mu);
  if (ok) r->parked_since = 0;
  else if (r->parked_since == 0) r->parked_since = now_ns;
  return ok;
}

void sh_request_claim(sh_request *r, size_t bytes) { r->claimed += bytes; }

void sh_request_push(sh_request *r, const sh_rec *rec, const sh_rec_body *body) {
  pthread_mutex_lock(&r->mu);
  sh_ring_push(&r->ring, rec, body);
  pthread_cond_signal(&r->cond);
  pthread_mutex_unlock(&r->mu);
  r->dirty = true;
}

void sh_request_end(sh_request *r) {
  pthread_mutex_lock(&r->mu);
  sh_ring_push(&r->ring, &(sh_rec){.type = SH_EV_END, .stop_id = -1, .stop_str = -1}, NULL);
  r->parked = false;
  atomic_store(&r->ended, true);
  pthread_cond_signal(&r->cond);
  pthread_mutex_unlock(&r->mu);
  r->dirty = true;
}

void sh_request_notify(sh_request *r) {
  if (!r->dirty) return;
  r->dirty = false;
  pthread_mutex_lock(&r->notify_mu);
  if (r->notify) r->notify(r->notify_ctx);
  pthread_mutex_unlock(&r->notify_mu);
}

int sh_choice_reserve(sh_choice *c, int cap_pages) {
  const sh_request_params *p = &c->req->params;
  if (!c->pages) {
    c->pages = sh_malloc((size_t)cap_pages * sizeof *c->pages);
    c->cap_pages = cap_pages;
  }
  if (!c->pages) return SH_ERR_NOMEM;
  if (c->out || c->index == p->n || p->max_tokens == 0) return 0;
  c->out = sh_malloc((size_t)p->max_tokens * sizeof *c->out); /* untouched memory of a long limit costs nothing */
  if (!c->out) return SH_ERR_NOMEM;
  if (c->n_out == 1) c->out[0] = c->first;
  return 0;
}

int sh_choice_len(const sh_choice *c) { return c->req->params.n_ids + c->n_out; }

int32_t sh_choice_token(const sh_choice *c, int i) {
  const sh_request_params *p = &c->req->params;
  return i < p->n_ids ? p->ids[i] : c->out[i - p->n_ids];
}

/* --- The front end's side
 * -------------------------------------------------------------------------------------------------------------------- */

static void wake_engine(const sh_request *r) {
  if (r->env->wake) r->env->wake(r->env->wake_ctx);
}

/* The popped record as an event. */
static void unpack(sh_request *r) {
  const sh_rec *h = (const sh_rec *)(const void *)r->cur;
  const unsigned char *p = r->cur + sizeof *h;
  const sh_logprob *top = (const sh_logprob *)(const void *)p;
  const char *text = (const char *)(p + h->n_top * sizeof *top);
  const sh_str *stop = h->stop_str >= 0 ? &r->stops.str[h->stop_str] : NULL;
  r->ev = (sh_event){
      .type = h->type,
      .choice = h->choice,
      .position = h->position,
      .id = h->id,
      .text = text,
      .text_len = h->text_len,
      .chosen = h->chosen,
      .top = h->n_top ? top : NULL,
      .n_top = (int)h->n_top,
      .finish = h->finish,
      .stop_id = h->stop_id,
      .stop_str = stop ? stop->p : NULL,
      .stop_str_len = stop ? stop->n : 0,
      .error = h->error_len ? text + h->text_len + 1 : NULL,
      .error_code = h->error_code,
      .prompt_tokens = h->prompt_tokens,
      .completion_tokens = h->completion_tokens,
  };
}

bool sh_request_next(sh_request *r, sh_event *ev) {
  pthread_mutex_lock(&r->mu);
  bool got = sh_ring_pop(&r->ring, r->cur);
  bool wake = r->parked && sh_ring_room(&r->ring) >= r->room_wanted;
  if (wake) r->parked = false;
  pthread_mutex_unlock(&r->mu);
  if (wake) wake_engine(r);
  if (!got) return false;
  unpack(r);
  *ev = r->ev;
  return true;
}

bool sh_request_wait(sh_request *r, int timeout_ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  int64_t ns = (int64_t)until.tv_nsec + (int64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000;
  until.tv_sec += (time_t)(ns / 1000000000);
  until.tv_nsec = (long)(ns % 1000000000);
  pthread_mutex_lock(&r->mu);
  int rc = 0;
  while (r->ring.used == 0 && rc == 0) rc = pthread_cond_timedwait(&r->cond, &r->mu, &until);
  bool got = r->ring.used > 0;
  pthread_mutex_unlock(&r->mu);
  return got;
}

void sh_request_cancel(sh_request *r) {
  if (!atomic_exchange(&r->cancelled, true) && !atomic_load(&r->ended)) wake_engine(r);
}

void sh_request_free(sh_request *r) {
  if (!r) return;
  pthread_mutex_lock(&r->notify_mu);
  r->notify = NULL;
  pthread_mutex_unlock(&r->notify_mu);
  sh_request_cancel(r);
  sh_request_unref(r);
}
