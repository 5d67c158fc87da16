/* Building a step: who gets how many tokens, and who must give up memory for it.
 *
 * Engine thread only. In this order: choices are forked from finished prompts; every sequence that draws gets its one token (the tokens
 * clients are watching); then waiting sequences are admitted; then prompt chunks fill what the time budget leaves. Half of that goes to the
 * oldest prompt and half to the shortest remainders, so a long prompt neither starves the short ones behind it nor is starved by a stream
 * of them. Refused: strict first come, first served, where one prompt of 100k tokens stops all others for minutes; and equal shares, where
 * eight equal prompts all finish last.
 *
 * Admission needs a slot and pages for everything the sequence has to compute, plus a watermark, so that what was just admitted is not
 * preempted by the next tokens of those that run. Running out of pages later preempts: the parked first, then the youngest. */
#include "engine/sched.h"

#include <assert.h>
#include <string.h>

static int remaining(const sh_choice *c) { return sh_choice_len(c) - c->n_computed; }

static bool is_lead(const sh_choice *c) { return c->index == c->req->params.n; }

static int cap_pages(const sh_sched *s, const sh_request *r) {
  int tokens = r->params.n_ids + r->params.max_tokens;
  return sh_sched_pages_for(s, tokens < s->cfg.max_model_len ? tokens : s->cfg.max_model_len);
}

/* Ring bytes of the tokens that the last row of c's chunk gives. */
static size_t token_room(const sh_choice *c) {
  const sh_request *r = c->req;
  if (!is_lead(c)) return r->token_bytes;
  return r->first_drawn ? 0 : (size_t)r->params.n * r->token_bytes;
}

bool sh_sched_row_reported(const sh_choice *c, int pos) {
  const sh_request *r = c->req;
  return r->params.prompt_logprobs >= 0 && pos >= r->n_prompt_rows && pos < r->params.n_ids - 1;
}

static bool rows_missing(const sh_request *r) { return r->params.prompt_logprobs >= 0 && r->n_prompt_rows < r->params.n_ids - 1; }

/* Adds c's next `count` tokens to the batch. */
static void add(sh_sched *s, sh_choice *c, int count) {
  sh_batch *b = &s->batch;
  s->seqs[b->n_seqs] = (sh_seq){.row = b->n_tokens, .count = count, .pos = c->n_computed, .slot = c->slot, .pages = c->pages};
  s->who[b->n_seqs++] = c;
  int last = sh_choice_len(c) - 1;
  for (int i = 0; i < count; i++) {
    int pos = c->n_computed + i;
    s->ids[b->n_tokens] = sh_choice_token(c, pos);
    if (pos == last || sh_sched_row_reported(c, pos)) s->out_rows[b->n_out++] = b->n_tokens;
    b->n_tokens++;
  }
  assert(b->n_seqs <= s->cfg.n_slots && b->n_tokens <= s->cfg.max_batched && b->n_out <= s->cfg.max_out);
  c->in_batch = true;
}

/* --- Forks
 * ----------------------------------------------------------------------------------------------------------------------------------- */

/* The choice goes on with the template's own memory; the template has none then, and waits to be computed again if others still need it. */
static void fork_move(sh_sched *s, sh_choice *lead, sh_choice *c) {
  memcpy(c->pages, lead->pages, (size_t)lead->n_pages * sizeof *c->pages);
  c->n_pages = lead->n_pages;
  c->slot = lead->slot;
  lead->n_pages = 0;
  lead->slot = -1;
  lead->n_computed = 0;
  sh_sched_list_del(&s->running, lead);
  lead->state = c->req->n_pending > 1 ? SH_CHOICE_WAITING : SH_CHOICE_DONE;
  if (lead->state == SH_CHOICE_WAITING) sh_sched_list_add(&s->waiting, lead);
}

/* The choice shares the full pages, and gets its own copy of the last partial one and of the state. The caller has seen a free slot and
 * page. */
static int fork_copy(sh_sched *s, sh_choice *lead, sh_choice *c, sh_error *e) {
  int full = lead->n_computed / s->cfg.page_size;
  for (int i = 0; i < full; i++) {
    sh_pages_ref(&s->pages, lead->pages[i]);
    c->pages[c->n_pages++] = lead->pages[i];
  }
  c->slot = sh_slots_take(&s->slots);
  int rc = s->model.slot_copy(s->model.ctx, c->slot, lead->slot, e);
  if (rc || full == lead->n_pages) return rc;
  c->pages[full] = sh_pages_take(&s->pages);
  c->n_pages++;
  return s->model.page_copy(s->model.ctx, c->pages[full], lead->pages[full], e);
}

/* false: c must wait for a slot or a page. Some choice of the request runs then, or this one would have taken the template's memory. */
static bool fork_one(sh_sched *s, sh_choice *lead, sh_choice *c) {
  sh_request *r = c->req;
  sh_error err = {0};
  bool partial = lead->n_computed % s->cfg.page_size != 0;
  bool room = s->slots.n_free > 0 && (!partial || s->pages.n_free > 0);
  if (r->n_pending > 1 && !room && r->n_running > 0) return false;
  if (sh_choice_reserve(c, cap_pages(s, r))) {
    sh_fail(&err, SH_ERR_NOMEM, "no memory for a choice's tokens");
    sh_sched_fail(s, c, &err);
    return true;
  }
  int computed = lead->n_computed, rc = 0;
  if (r->n_pending == 1 || !room) fork_move(s, lead, c);
  else rc = fork_copy(s, lead, c, &err);
  c->n_computed = computed;
  r->n_pending--;
  r->n_running++;
  c->state = SH_CHOICE_RUNNING;
  sh_sched_list_add(&s->running, c);
  if (rc) sh_sched_fail(s, c, &err);
  return true;
}

static void build_forks(sh_sched *s) {
  for (sh_request *r = s->live, *next; r; r = next) {
    next = r->next; /* a failed fork may end the request */
    bool more = r->lead->state == SH_CHOICE_TEMPLATE;
    for (int i = 0; more && i < r->params.n; i++)
      if (r->choices[i].state == SH_CHOICE_PENDING) more = fork_one(s, r->lead, &r->choices[i]) && r->lead->state == SH_CHOICE_TEMPLATE;
    if (r->lead->state == SH_CHOICE_TEMPLATE && r->n_pending == 0) sh_sched_finish(s, r->lead, SH_FINISH_NONE, -1, -1, NULL);
  }
}

/* --- Decode
 * ---------------------------------------------------------------------------------------------------------------------------------- */

/* Who loses memory so that c gets a page: the youngest parked one, else the youngest of all, which may be c. Never one that is in the
 * batch: c is taken in the order of age, so the youngest is not there yet. */
static sh_choice *victim(sh_sched *s, const sh_choice *c) {
  for (sh_choice *v = s->running.tail; v; v = v->prev)
    if (v->req->parked_since && !v->in_batch && v != c) return v;
  return s->running.tail;
}

/* Pages for the first `tokens` positions of c; false: c itself was preempted. */
static bool hold_pages(sh_sched *s, sh_choice *c, int tokens) {
  int need = sh_sched_pages_for(s, tokens);
  assert(need <= c->cap_pages);
  while (c->n_pages < need) {
    int32_t page = sh_pages_take(&s->pages);
    if (page >= 0) {
      c->pages[c->n_pages++] = page;
      continue;
    }
    sh_choice *v = victim(s, c);
    sh_sched_preempt(s, v);
    if (v == c) return false;
  }
  return true;
}

static void build_decode(sh_sched *s) {
  for (sh_choice *c = s->running.head; c; c = c->next) {
    if (c->state != SH_CHOICE_RUNNING || remaining(c) != 1 || c->n_computed < c->req->params.n_ids) continue;
    if (!sh_request_has_room(c->req, token_room(c), s->now_ns)) {
      c->held_back = true;
      continue;
    }
    if (!hold_pages(s, c, c->n_computed + 1)) return; /* it was the youngest: nobody comes after it */
    sh_request_claim(c->req, token_room(c));
    add(s, c, 1);
  }
}

/* --- Admission
 * ------------------------------------------------------------------------------------------------------------------------------- */

static bool fits(const sh_sched *s, const sh_choice *c) {
  int need = sh_sched_pages_for(s, sh_choice_len(c));
  int watermark = s->running.head ? 1 + s->pages.n / 100 : 0;
  return s->slots.n_free > 0 && s->pages.n_free >= need + watermark;
}

/* Memory of a reader that sleeps, for those who wait. */
static bool evict_parked(sh_sched *s) {
  for (sh_choice *v = s->running.tail; v; v = v->prev) {
    int64_t since = v->req->parked_since;
    if (since == 0 || v->in_batch || s->now_ns - since < s->cfg.park_grace_ns) continue;
    sh_sched_preempt(s, v);
    return true;
  }
  return false;
}

static void start(sh_sched *s, sh_choice *c) {
  sh_request *r = c->req;
  sh_error err = {0};
  if (sh_choice_reserve(c, cap_pages(s, r))) {
    sh_fail(&err, SH_ERR_NOMEM, "no memory for a sequence's tokens");
    sh_sched_fail(s, c, &err);
    return;
  }
  sh_sched_list_del(&s->waiting, c);
  c->state = SH_CHOICE_RUNNING;
  sh_sched_list_add(&s->running, c);
  if (!is_lead(c)) r->n_running++;
  if (!r->admitted) s->n_unadmitted--;
  r->admitted = true;
  c->slot = sh_slots_take(&s->slots);
  int need = sh_sched_pages_for(s, sh_choice_len(c));
  while (c->n_pages < need) c->pages[c->n_pages++] = sh_pages_take(&s->pages);
  if (s->model.slot_zero(s->model.ctx, c->slot, &err)) sh_sched_fail(s, c, &err);
}

static void build_admit(sh_sched *s) {
  for (sh_choice *c = s->waiting.head, *next; c; c = next) {
    next = c->next;
    size_t room = token_room(c) + (rows_missing(c->req) ? c->req->prompt_bytes : 0);
    if (!sh_request_has_room(c->req, room, s->now_ns)) continue; /* its reader sleeps: others may pass */
    while (!fits(s, c))
      if (!evict_parked(s)) return;
    next = c->next; /* evicted ones may have come behind it */
    start(s, c);
  }
}

/* --- Prompt chunks
 * --------------------------------------------------------------------------------------------------------------------------- */

/* Most tokens of c's next chunk: what it has left, bounded by the logit rows and ring room that reported prompt rows and first tokens need.
 * 0: parked. *rows: logit rows not yet spoken for, beyond one per sequence. */
static int chunk_limit(sh_sched *s, sh_choice *c, int *rows) {
  sh_request *r = c->req;
  int most = remaining(c);
  size_t room = sh_request_room(r), last = token_room(c);
  if (rows_missing(r)) {
    int silent = r->n_prompt_rows > c->n_computed ? r->n_prompt_rows - c->n_computed : 0; /* reported before a preemption */
    int64_t by_ring = room > last ? (int64_t)((room - last) / r->prompt_bytes) : 0;
    int64_t reported = *rows + 1 < by_ring ? *rows + 1 : by_ring;
    if (reported == 0 && silent == 0) {
      if (!sh_request_has_room(r, last + r->prompt_bytes, s->now_ns)) return 0;
      reported = 1; /* the reader has read just now */
    }
    if (silent + reported < most) most = (int)(silent + reported);
    *rows -= reported > 1 ? (int)reported - 1 : 0;
  } else if (room < last && --most == 0) { /* all but the last row can be computed before the reader has read */
    return sh_request_has_room(r, last, s->now_ns) ? 1 : 0;
  }
  return most;
}

static int find_prompts(sh_sched *s) {
  int n = 0;
  for (sh_choice *c = s->running.head; c; c = c->next)
    if (c->state == SH_CHOICE_RUNNING && !c->in_batch && !c->held_back) s->prompts[n++] = c;
  int rows = s->cfg.max_out - s->batch.n_out - n;
  int m = 0;
  for (int i = 0; i < n; i++) {
    int limit = chunk_limit(s, s->prompts[i], &rows);
    if (limit <= 0) continue;
    s->prompts[m] = s->prompts[i];
    s->limit[m] = limit;
    s->share[m++] = 0;
  }
  return m;
}

static int give(sh_sched *s, int i, int tokens) {
  int more = s->limit[i] - s->share[i];
  if (more > tokens) more = tokens;
  s->share[i] += more;
  return more;
}

/* Half to the oldest, half to the shortest remainders, the rest in the order of age. s->prompts is in that order. */
static void share_out(sh_sched *s, int n, int budget) {
  int left = budget;
  left -= give(s, 0, (budget + 1) / 2);
  while (left > 0) {
    int best = -1;
    for (int i = 1; i < n; i++)
      if (s->share[i] == 0 && (best < 0 || remaining(s->prompts[i]) < remaining(s->prompts[best]))) best = i;
    if (best < 0) break;
    left -= give(s, best, left);
  }
  for (int i = 0; i < n && left > 0; i++) left -= give(s, i, left);
}

static int prompt_budget(const sh_sched *s) {
  double by_time = s->token_ns > 0 ? (double)s->cfg.step_ns / s->token_ns : 64; /* unmeasured: the warm-up's first step */
  int budget = by_time < s->cfg.max_batched ? (int)by_time : s->cfg.max_batched;
  budget -= s->batch.n_tokens;
  if (budget < SH_MIN_PROMPT_TOKENS) budget = SH_MIN_PROMPT_TOKENS;
  int rows = s->cfg.max_batched - s->batch.n_tokens;
  return budget < rows ? budget : rows;
}

static void build_prompts(sh_sched *s) {
  int n = find_prompts(s), budget = prompt_budget(s);
  if (n == 0 || budget == 0) return;
  share_out(s, n, budget);
  for (int i = 0; i < n; i++) {
    sh_choice *c = s->prompts[i];
    int count = s->share[i];
    size_t bytes = count == remaining(c) ? token_room(c) : 0;
    if (bytes && sh_request_room(c->req) < bytes) { /* another choice of the request has claimed it just now */
      count--;
      bytes = 0;
    }
    if (count == 0) continue;
    for (int k = 0; k < count; k++) bytes += sh_sched_row_reported(c, c->n_computed + k) ? c->req->prompt_bytes : 0;
    sh_request_claim(c->req, bytes);
    add(s, c, count);
    s->n_prompt_tokens += count;
  }
}

void sh_sched_build(sh_sched *s) {
  for (sh_choice *c = s->running.head; c; c = c->next) c->in_batch = c->held_back = false;
  for (sh_request *r = s->live; r; r = r->next) r->claimed = 0;
  s->batch = (sh_batch){.seqs = s->seqs, .ids = s->ids, .out_rows = s->out_rows};
  s->n_prompt_tokens = 0;
  build_forks(s);
  build_decode(s);
  build_admit(s);
  build_prompts(s);
}
