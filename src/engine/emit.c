/* From a step's logits to events: prompt log probabilities, drawn tokens, their text, and why a choice ends.
 *
 * Engine thread only, inside the part of a step that may not allocate. A row's processors and filters run in place on the logits, so the
 * raw row is copied first when log probabilities were asked. The choices of one request draw their first token from the same prepared row:
 * before anything was drawn their processors cannot differ.
 *
 * Broken logits (NaN, or every id masked) end the sequence with an error; the others of the batch go on. */
#include "engine/sched.h"

#include "engine/logprob.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* --- Text
 * ------------------------------------------------------------------------------------------------------------------------------------ */

/* Shows the first `show` bytes of (held + new text) with the TOKEN event and keeps the rest back. */
static void push_token(sh_sched *s, sh_choice *c, int32_t id, const sh_logprob *chosen, int n_top, size_t show) {
  size_t old = show < c->n_held ? show : c->n_held, fresh = show - old;
  sh_rec rec = {
      .type = SH_EV_TOKEN, .choice = c->index, .position = c->n_out - 1, .id = id, .chosen = *chosen, .stop_id = -1, .stop_str = -1};
  sh_rec_body body = {.top = s->top, .n_top = n_top, .text = {c->held, s->text.p}, .text_len = {old, fresh}};
  sh_request_push(c->req, &rec, &body);
}

/* After showing `show` bytes, what is left of (held + new text) is held back. At most longest - 1 bytes. */
static void keep_back(sh_sched *s, sh_choice *c, size_t show) {
  size_t old = show < c->n_held ? show : c->n_held, fresh = show - old;
  size_t stay = c->n_held - old;
  if (stay) memmove(c->held, c->held + old, stay);
  if (s->text.len > fresh) memcpy(c->held + stay, s->text.p + fresh, s->text.len - fresh);
  c->n_held = stay + s->text.len - fresh;
}

static bool contains(const int32_t *v, int n, int32_t id) {
  for (int i = 0; i < n; i++)
    if (v[i] == id) return true;
  return false;
}

/* A token was drawn: its event, and the choice's end if it brought one. */
static void take_token(sh_sched *s, sh_choice *c, int32_t id, const sh_logprob *chosen, int n_top) {
  sh_request *r = c->req;
  const sh_request_params *p = &r->params;
  if (c->out) c->out[c->n_out] = id;
  else c->first = id;
  c->n_out++;
  s->stats.generation_tokens++;
  sh_finish why = SH_FINISH_NONE;
  int32_t stop_id = -1;
  if (!p->ignore_eos && contains(s->env->end_ids, s->env->n_end_ids, id)) {
    why = SH_FINISH_STOP;
  } else if (contains(p->stop_ids, p->n_stop_ids, id)) {
    why = SH_FINISH_STOP;
    stop_id = id;
  }
  sh_buf_reset(&s->text);
  if (why == SH_FINISH_NONE || p->include_stop_str_in_output) sh_detok_push(&c->detok, id, &s->text);
  size_t end = 0, show = c->n_held + s->text.len;
  int hit = -1;
  if (r->stops.n) {
    bool look = why == SH_FINISH_NONE && c->n_out > p->min_tokens;
    hit = sh_stops_feed(&r->stops, c->stop_state, s->text.p, s->text.len, look, &end);
    if (hit < 0) show -= sh_stops_held(&r->stops, c->stop_state);
    else show = c->n_held + end - (p->include_stop_str_in_output ? 0 : r->stops.str[hit].n);
  }
  push_token(s, c, id, chosen, n_top, show);
  if (hit >= 0) {
    c->n_held = 0;
    sh_sched_finish(s, c, SH_FINISH_STOP, -1, hit, NULL);
    return;
  }
  keep_back(s, c, show);
  if (why == SH_FINISH_NONE && (c->n_out >= p->max_tokens || sh_choice_len(c) >= s->cfg.max_model_len)) why = SH_FINISH_LENGTH;
  if (why != SH_FINISH_NONE) sh_sched_finish(s, c, why, stop_id, -1, NULL);
}

/* --- Rows
 * ------------------------------------------------------------------------------------------------------------------------------------ */

/* One row of a prompt's log probabilities: row `pos` tells of position pos + 1. */
static int report_prompt_row(sh_sched *s, sh_choice *c, int pos, const float *x, sh_error *e) {
  sh_request *r = c->req;
  double lse = sh_logprob_norm(x, s->model.vocab);
  if (!isfinite(lse)) return sh_fail(e, SH_ERR_INTERNAL, "the model gave logits that are not numbers");
  sh_rec rec = {.type = SH_EV_PROMPT, .position = pos + 1, .id = r->params.ids[pos + 1], .stop_id = -1, .stop_str = -1};
  rec.chosen = sh_logprob_of(x, s->env->vocab, lse, rec.id);
  int n = sh_logprob_top(x, s->env->vocab, lse, r->params.prompt_logprobs, s->top);
  sh_request_push(r, &rec, &(sh_rec_body){.top = s->top, .n_top = n});
  r->n_prompt_rows = pos + 1;
  return 0;
}

/* NaN or +inf anywhere: the model's state is broken, even if the request's masks would hide it. */
static bool is_broken(const float *x, int n) {
  int bad = 0, i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) bad |= !(x[i + j] < INFINITY);
  for (; i < n; i++) bad |= !(x[i] < INFINITY);
  return bad != 0;
}

/* The row as a distribution: raw copy and its normaliser if log probabilities are wanted, masks, processors, filters. */
static int prepare_row(sh_sched *s, const sh_choice *c, float *x, double *lse, sh_error *e) {
  const sh_request *r = c->req;
  *lse = 0;
  if (is_broken(x, s->model.vocab)) return sh_fail(e, SH_ERR_INTERNAL, "the model gave logits that are not numbers");
  if (r->params.logprobs >= 0) {
    *lse = sh_logprob_norm(x, s->model.vocab);
    memcpy(s->raw, x, (size_t)s->model.vocab * sizeof *x);
  }
  for (int i = 0; i < s->n_masked; i++) x[s->masked[i]] = -INFINITY;
  sh_proc_apply(&r->proc, &s->proc, x, r->params.ids, r->params.n_ids, c->out, c->n_out);
  return sh_sample_prepare(&s->sampler, x, &r->draw, e);
}

static void draw_for(sh_sched *s, sh_choice *c, double lse, int n_top) {
  const sh_request *r = c->req;
  int32_t id = sh_sample_draw(&s->sampler, sh_sample_uniform(r->seed, (uint64_t)c->n_out, (uint64_t)c->index));
  sh_logprob chosen = {.id = id};
  if (r->params.logprobs >= 0) chosen = sh_logprob_of(s->raw, s->env->vocab, lse, id);
  take_token(s, c, id, &chosen, n_top);
}

/* The last row of what c had to compute: tokens. A lead becomes the template of its choices, which draw their first token at once, whether
 * or not there is room for them to go on. */
static void draw_row(sh_sched *s, sh_choice *c, float *x) {
  sh_request *r = c->req;
  bool lead = c->index == r->params.n;
  if (lead) c->state = SH_CHOICE_TEMPLATE;
  if (lead && r->first_drawn) return; /* computed again after a preemption */
  r->first_drawn = true;
  if (r->params.max_tokens == 0) { /* only the prompt's log probabilities were asked */
    for (int i = 0, n = r->params.n; i < n; i++) sh_sched_finish(s, &r->choices[i], SH_FINISH_LENGTH, -1, -1, NULL);
    return;
  }
  sh_error err = {0};
  double lse;
  if (prepare_row(s, c, x, &lse, &err)) {
    sh_sched_fail(s, c, &err);
    return;
  }
  int n_top = r->params.logprobs > 0 ? sh_logprob_top(s->raw, s->env->vocab, lse, r->params.logprobs, s->top) : 0;
  if (!lead) {
    draw_for(s, c, lse, n_top);
    return;
  }
  for (int i = 0, n = r->params.n; i < n; i++) draw_for(s, &r->choices[i], lse, n_top);
}

void sh_sched_consume(sh_sched *s) {
  const sh_batch *b = &s->batch;
  int out = 0;
  for (int i = 0; i < b->n_seqs; i++) {
    sh_choice *c = s->who[i];
    const sh_seq *q = &s->seqs[i];
    int last = sh_choice_len(c) - 1;
    bool broken = false;
    sh_error err = {0};
    c->n_computed += q->count;
    for (int k = 0; k < q->count; k++) {
      int pos = q->pos + k;
      if (pos != last && !sh_sched_row_reported(c, pos)) continue;
      float *x = s->logits + (size_t)out++ * (size_t)s->model.vocab;
      if (broken) continue;
      if (pos == last) draw_row(s, c, x);
      else broken = report_prompt_row(s, c, pos, x, &err) != 0;
    }
    if (broken) sh_sched_fail(s, c, &err);
  }
  assert(out == b->n_out);
}
