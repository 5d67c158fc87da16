/* Generating calls.
 *
 * The engine tells with a notify that a request has events; the notify posts the run's task, and the loop thread drains a bounded number of
 * events per turn, so that one fast stream does not hold up the other sockets. Chunks of one turn leave in one write.
 *
 * Slow readers: when the connection's output is full the run is simply not drained. Its event ring fills, the engine parks the sequence,
 * and writable() goes on. Nothing is dropped and nothing is buffered without bound.
 *
 * The status line waits for the first event: a request that fails in the engine before its first token still gets an honest status (400
 * when its own parameters exclude every token, else 500), not a 200 with a broken stream.
 *
 * Refused alternative: one thread per request that blocks in sh_request_wait. A thousand waiting clients would be a thousand stacks. */
#include "server/gen.h"
#include "base/log.h"
#include "base/pool.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
  EVENTS_PER_TURN = 64,
  MAX_ANSWER = 1 << 30, /* bytes of one list or text of an answer */
};

/* --- Making --- */

static const char *make_id(sh_call *c, const sh_gen_format *f, const sh_params *p) {
  if (p->request_id && p->request_id[0] && strlen(p->request_id) <= 256)
    return sh_arena_printf(c->arena, "%s%s", f->id_prefix, p->request_id);
  uint64_t r[2] = {(uint64_t)sh_now_ns(), (uint64_t)(uintptr_t)c};
  if (getrandom(r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) sh_log(SH_LOG_DEBUG, "request id from the clock: no random bytes");
  return sh_arena_printf(c->arena, "%s%016llx%016llx", f->id_prefix, (unsigned long long)r[0], (unsigned long long)r[1]);
}

static void run_task(sh_task *t);

static void init_run(sh_gen *g, int i) {
  sh_run *r = &g->runs[i];
  r->gen = g;
  r->index = i;
  r->task.fn = run_task;
  sh_buf_init(&r->prompt_logprobs, MAX_ANSWER);
  sh_lp_lists_init(&r->echo, MAX_ANSWER);
}

static void init_choice(sh_gen *g, int i) {
  sh_choice *c = &g->choices[i];
  c->index = i;
  c->run = &g->runs[i / g->engine.n];
  c->stop_id = -1;
  sh_buf_init(&c->text, MAX_ANSWER);
  sh_buf_init(&c->chat_logprobs, MAX_ANSWER);
  sh_lp_lists_init(&c->lists, MAX_ANSWER);
}

sh_gen *sh_gen_new(sh_call *c, const sh_gen_format *format, const sh_params *p, int n_prompts, sh_api_error *e) {
  int n = p->n == SH_UNSET ? 1 : (int)p->n;
  if ((int64_t)n * n_prompts > SH_API_MAX_CHOICES) {
    sh_api_fail(e, 400, "n", "%d prompts with %d choices each are more than the %d choices one request may have.", n_prompts, n,
                SH_API_MAX_CHOICES);
    return NULL;
  }
  sh_gen *g = sh_arena_alloc(c->arena, sizeof *g);
  sh_run *runs = sh_arena_array(c->arena, (size_t)n_prompts, sizeof *runs);
  sh_choice *choices = sh_arena_array(c->arena, (size_t)n_prompts * (size_t)n, sizeof *choices);
  const char *id = g && runs && choices ? make_id(c, format, p) : NULL;
  if (!id) {
    sh_api_fail(e, 503, NULL, "Out of memory while preparing the request.");
    return NULL;
  }
  const sh_server *s = c->srv;
  g->call = c;
  g->format = format;
  g->params = p;
  sh_params_fill(p, &s->defaults, &g->engine);
  g->lp = (sh_lp){sh_engine_tokenizer(s->engine), p->return_tokens_as_ids || s->opt->return_tokens_as_ids};
  g->include_usage = p->include_usage || s->opt->force_include_usage;
  g->id = id;
  g->created = sh_unix_time();
  g->runs = runs;
  g->n_runs = n_prompts;
  g->choices = choices;
  g->n_choices = n_prompts * n;
  sh_buf_init(&g->sse, MAX_ANSWER);
  for (int i = 0; i < g->n_runs; i++) init_run(g, i);
  for (int i = 0; i < g->n_choices; i++) init_choice(g, i);
  return g;
}

void sh_gen_free(sh_gen *g) {
  if (!g) return;
  for (int i = 0; i < g->n_runs; i++) {
    sh_request_free(g->runs[i].req); /* no notify comes after this */
    sh_loop_unpost(g->call->srv->loop, &g->runs[i].task);
    sh_buf_free(&g->runs[i].prompt_logprobs);
    sh_lp_lists_free(&g->runs[i].echo);
  }
  for (int i = 0; i < g->n_choices; i++) {
    sh_buf_free(&g->choices[i].text);
    sh_buf_free(&g->choices[i].chat_logprobs);
    sh_lp_lists_free(&g->choices[i].lists);
    sh_ids_free(&g->choices[i].ids);
  }
  sh_buf_free(&g->sse);
}

/* --- Preparing (text worker) --- */

static int too_long(const sh_run *r, int64_t context, int64_t max_tokens, sh_api_error *e) {
  if (max_tokens <= 0)
    return sh_api_fail(e, 400, "input_tokens",
                       "This model's maximum context length is %lld tokens. However, your request has %d input tokens. Please reduce the "
                       "length of the input messages.",
                       (long long)context, r->n_ids);
  return sh_api_fail(e, 400, "max_tokens",
                     "This model's maximum context length is %lld tokens. However, you requested %lld output tokens and your prompt "
                     "contains %d input tokens, for a total of "
                     "%lld tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
                     (long long)context, (long long)max_tokens, r->n_ids, (long long)max_tokens + r->n_ids);
}

static int set_length(sh_gen *g, sh_run *r, int64_t max_tokens, int64_t default_max, sh_api_error *e) {
  int64_t context = sh_engine_plan(g->call->srv->engine)->max_model_len, left = context - r->n_ids;
  if (r->n_ids < 1) return sh_api_fail(e, 400, "prompt", "The prompt has no tokens.");
  if (left < 0 || (left == 0 && max_tokens != 0)) return too_long(r, context, max_tokens == SH_UNSET ? 0 : max_tokens, e);
  if (max_tokens == SH_UNSET) {
    max_tokens = default_max && default_max < left ? default_max : left;
    int64_t configured = g->call->srv->defaults.max_new_tokens;
    if (configured != SH_UNSET && !default_max && configured < max_tokens) max_tokens = configured;
  } else if (max_tokens > left) {
    return too_long(r, context, max_tokens, e);
  }
  if (g->engine.min_tokens > max_tokens)
    return sh_api_fail(e, 400, "min_tokens", "`min_tokens` must be at most `max_tokens` (%lld), got %d.", (long long)max_tokens,
                       g->engine.min_tokens);
  r->max_tokens = (int)max_tokens;
  return 0;
}

int sh_gen_prepare(sh_gen *g, int64_t max_tokens, int64_t default_max, sh_api_error *e) {
  g->n_logprobs = g->engine.logprobs;
  g->n_prompt_logprobs = g->engine.prompt_logprobs;
  /* an echoed prompt of /v1/completions has the log probabilities of the answer's tokens */
  if (g->params->echo && g->params->logprobs != SH_UNSET && g->n_logprobs > g->engine.prompt_logprobs)
    g->engine.prompt_logprobs = g->n_logprobs;
  for (int i = 0; i < g->n_runs; i++)
    if (set_length(g, &g->runs[i], max_tokens, default_max, e)) return -1;
  sh_error err;
  int rc = sh_params_bad_words(g->params, g->lp.tok, g->call->arena, &g->engine, &err);
  return rc ? sh_api_fail_from(e, "bad_words", &err) : 0;
}

/* --- Answering --- */

static void put_start(sh_gen *g, sh_jw *w, const char *object) {
  sh_jw_obj(w);
  sh_jw_kstr(w, "id", g->id);
  sh_jw_kstr(w, "object", object);
  sh_jw_kint(w, "created", g->created);
  sh_jw_kstr(w, "model", g->model);
}

void sh_gen_usage(sh_jw *w, int64_t prompt_tokens, int64_t completion_tokens) {
  sh_jw_key(w, "usage");
  sh_jw_obj(w);
  sh_jw_kint(w, "prompt_tokens", prompt_tokens);
  sh_jw_kint(w, "total_tokens", prompt_tokens + completion_tokens);
  sh_jw_kint(w, "completion_tokens", completion_tokens);
  sh_jw_knull(w, "prompt_tokens_details");
  sh_jw_end_obj(w);
}

void sh_gen_usage_all(sh_gen *g, sh_jw *w) {
  int64_t prompt = 0, completion = 0;
  for (int i = 0; i < g->n_runs; i++) prompt += g->runs[i].n_ids;
  for (int i = 0; i < g->n_choices; i++) completion += g->choices[i].tokens;
  sh_gen_usage(w, prompt, completion);
}

const char *sh_gen_finish_name(sh_finish f) {
  static const char *const names[] = {NULL, "stop", "length", "abort", "error"};
  return names[f];
}

void sh_gen_stop_reason(sh_jw *w, const sh_choice *c) {
  sh_jw_key(w, "stop_reason");
  if (c->stop_str) sh_jw_strn(w, c->stop_str, c->stop_str_len);
  else if (c->stop_id >= 0) sh_jw_int(w, c->stop_id);
  else sh_jw_null(w);
}

void sh_gen_prompt_logprobs(sh_jw *w, const sh_run *r, const sh_gen *g) {
  if (g->n_prompt_logprobs < 0) {
    sh_jw_knull(w, "prompt_logprobs");
  } else if (r->prompt_logprobs.len) {
    sh_jw_list(w, "prompt_logprobs", &r->prompt_logprobs);
  } else { /* a prompt of one token has no events */
    sh_jw_key(w, "prompt_logprobs");
    sh_jw_arr(w);
    sh_jw_null(w);
    sh_jw_end_arr(w);
  }
}

/* One server-sent event with one choice. */
static void put_chunk(sh_gen *g, sh_choice *c) {
  sh_jw w;
  sh_buf_puts(&g->sse, "data: ");
  sh_jw_init(&w, &g->sse);
  put_start(g, &w, g->format->chunk_object);
  sh_jw_key(&w, "choices");
  sh_jw_arr(&w);
  sh_jw_obj(&w);
  g->format->chunk(g, c, &w);
  sh_jw_end_obj(&w);
  sh_jw_end_arr(&w);
  if (g->params->return_token_ids && !c->opened && g->format->role_first)
    sh_jw_ids(&w, "prompt_token_ids", c->run->ids, (size_t)c->run->n_ids);
  if (g->include_usage && g->params->continuous_usage) sh_gen_usage(&w, c->run->n_ids, c->tokens);
  else if (g->include_usage) sh_jw_knull(&w, "usage");
  sh_jw_end_obj(&w);
  sh_buf_puts(&g->sse, "\n\n");
  c->opened = true;
  c->pending = false;
  sh_buf_reset(&c->text);
  sh_buf_reset(&c->chat_logprobs);
  sh_lp_lists_reset(&c->lists);
  c->ids.n = 0;
}

static void put_last_chunks(sh_gen *g) {
  sh_jw w;
  if (g->include_usage) {
    sh_buf_puts(&g->sse, "data: ");
    sh_jw_init(&w, &g->sse);
    put_start(g, &w, g->format->chunk_object);
    sh_jw_key(&w, "choices");
    sh_jw_arr(&w);
    sh_jw_end_arr(&w);
    sh_gen_usage_all(g, &w);
    sh_jw_end_obj(&w);
    sh_buf_puts(&g->sse, "\n\n");
  }
  sh_buf_puts(&g->sse, "data: [DONE]\n\n");
}

/* Sends the chunks written so far. */
static void flush(sh_gen *g) {
  if (!g->sse.len) return;
  if (!g->streaming) {
    sh_http_set_header(g->call->http, "Cache-Control", "no-cache");
    sh_http_set_header(g->call->http, "X-Accel-Buffering", "no"); /* nginx would collect the stream otherwise */
    sh_http_stream_begin(g->call->http, 200, "text/event-stream; charset=utf-8");
    g->streaming = true;
  }
  sh_http_stream_write(g->call->http, g->sse.p, g->sse.len);
  sh_buf_reset(&g->sse);
}

static void end_stream(sh_gen *g) {
  sh_call *c = g->call;
  flush(g);
  sh_http_stream_end(c->http);
  c->http = NULL;
  c->status = 200;
  sh_call_free(c);
}

/* The call cannot be completed. Frees it. */
static void fail(sh_gen *g, const sh_api_error *e) {
  if (!g->streaming) {
    sh_call_answer_error(g->call, e);
    return;
  }
  for (int i = 0; i < g->n_choices; i++)
    if (g->choices[i].pending) put_chunk(g, &g->choices[i]); /* what was drawn before */
  sh_buf_puts(&g->sse, "data: ");
  sh_api_error_json(e, &g->sse);
  sh_buf_puts(&g->sse, "\n\ndata: [DONE]\n\n");
  end_stream(g);
}

/* Every prompt has ended. Frees the call. */
static void complete(sh_gen *g) {
  sh_call *c = g->call;
  sh_jw w;
  if (g->params->stream) {
    put_last_chunks(g);
    end_stream(g);
    return;
  }
  sh_jw_init(&w, &c->out);
  put_start(g, &w, g->format->object);
  g->format->reply(g, &w);
  sh_jw_end_obj(&w);
  sh_call_answer(c, 200);
}

/* --- Events --- */

static bool has_news(const sh_gen *g, const sh_choice *c) {
  return c->text.len || c->chat_logprobs.len || c->lists.tokens.len || c->ids.n || (g->include_usage && g->params->continuous_usage);
}

static void on_prompt_event(sh_gen *g, sh_run *r, const sh_event *ev) {
  if (g->n_prompt_logprobs >= 0) {
    if (!r->prompt_logprobs.len) sh_buf_puts(&r->prompt_logprobs, "null"); /* the first token */
    sh_lp_prompt(&g->lp, ev, g->n_prompt_logprobs, &r->prompt_logprobs);
  }
  g->format->collect(g, r, NULL, ev);
}

static void on_token_event(sh_gen *g, sh_run *r, sh_choice *c, const sh_event *ev) {
  if (c->pending) put_chunk(g, c);
  c->tokens++;
  sh_buf_put(&c->text, ev->text, ev->text_len);
  if (g->n_logprobs >= 0) g->format->collect(g, r, c, ev);
  if (g->params->return_token_ids && sh_ids_push(&c->ids, ev->id) != SH_OK) c->text.failed = SH_ERR_NOMEM;
  c->pending = g->params->stream && has_news(g, c);
}

static void on_finish_event(sh_gen *g, sh_choice *c, const sh_event *ev) {
  c->done = true;
  c->finish = ev->finish;
  c->stop_id = ev->stop_id;
  c->tokens = ev->completion_tokens;
  if (ev->stop_str) {
    c->stop_str = sh_arena_strdup(g->call->arena, ev->stop_str, ev->stop_str_len);
    c->stop_str_len = c->stop_str ? ev->stop_str_len : 0;
  }
  if (ev->text_len) sh_buf_put(&c->text, ev->text, ev->text_len);
  g->call->srv->counters.finished[ev->finish]++;
  if (g->params->stream) put_chunk(g, c);
}

/* The first event of a streamed chat: the role of every choice. */
static void open_stream(sh_gen *g) {
  if (!g->params->stream || !g->format->role_first || g->choices[0].opened) return;
  for (int i = 0; i < g->n_choices; i++) put_chunk(g, &g->choices[i]);
}

/* The HTTP status of an answer that could not be kept: memory may be there later, a limit stays. 0: there was room. */
static int out_of_room(const sh_gen *g, const sh_run *r, const sh_choice *c) {
  const int failed[] = {g->sse.failed,          r->prompt_logprobs.failed,       r->echo.tokens.failed,
                        c ? c->text.failed : 0, c ? c->chat_logprobs.failed : 0, c ? c->lists.tokens.failed : 0};
  for (size_t i = 0; i < sizeof failed / sizeof *failed; i++)
    if (failed[i]) return failed[i] == SH_ERR_NOMEM ? 503 : 500;
  return 0;
}

/* Takes one event in. Returns -1 with the error when the call cannot go on. */
static int take_event(sh_gen *g, sh_run *r, const sh_event *ev, sh_api_error *e) {
  sh_choice *c = ev->type == SH_EV_TOKEN || ev->type == SH_EV_FINISH ? &g->choices[r->index * g->engine.n + ev->choice] : NULL;
  if (ev->type == SH_EV_FINISH && ev->finish == SH_FINISH_ERROR) {
    g->call->srv->counters.finished[SH_FINISH_ERROR]++;
    return sh_api_fail(e, ev->error_code == SH_ERR_ARG ? 400 : 500, NULL, "%s",
                       ev->error && ev->error[0] ? ev->error : "The engine failed on this request.");
  }
  switch (ev->type) {
  case SH_EV_PROMPT: on_prompt_event(g, r, ev); break;
  case SH_EV_TOKEN:
    open_stream(g);
    on_token_event(g, r, c, ev);
    break;
  case SH_EV_FINISH:
    open_stream(g);
    on_finish_event(g, c, ev);
    break;
  case SH_EV_END:
    r->ended = true;
    g->live--;
    break;
  }
  int status = out_of_room(g, r, c);
  return status ? sh_api_fail(e, status, NULL, "The answer does not fit in memory.") : 0;
}

/* The end of a turn: tokens whose chunk waited. */
static void put_pending(sh_gen *g, const sh_run *r) {
  for (int i = 0; i < g->engine.n; i++) {
    sh_choice *c = &g->choices[r->index * g->engine.n + i];
    if (c->pending) put_chunk(g, c);
  }
}

static void drain(sh_run *r) {
  sh_gen *g = r->gen;
  sh_event ev;
  sh_api_error e;
  int n = 0;
  if (g->streaming && sh_http_full(g->call->http)) {
    g->paused = true;
    return;
  }
  for (; n < EVENTS_PER_TURN && !r->ended && sh_request_next(r->req, &ev); n++) {
    if (take_event(g, r, &ev, &e)) {
      fail(g, &e);
      return;
    }
  }
  if (!g->live) {
    complete(g);
    return;
  }
  put_pending(g, r);
  flush(g);
  if (n == EVENTS_PER_TURN && !r->ended) sh_loop_post(g->call->srv->loop, &r->task);
}

static void run_task(sh_task *t) {
  sh_run *r = (sh_run *)(void *)((char *)t - offsetof(sh_run, task));
  drain(r);
}

/* Engine thread. */
static void on_notify(void *ctx) {
  sh_run *r = ctx;
  sh_loop_post(r->gen->call->srv->loop, &r->task);
}

/* --- Running --- */

static void submit_failed(sh_gen *g, const sh_error *err) {
  sh_api_error e;
  if (err->code == SH_ERR_BUSY) g->call->srv->counters.rejected++;
  sh_api_fail_from(&e, NULL, err);
  sh_call_answer_error(g->call, &e);
}

/* A prompt that is only echoed: nothing to compute. */
static void finish_without_engine(sh_gen *g, sh_run *r) {
  for (int i = 0; i < g->engine.n; i++) {
    sh_event ev = {.type = SH_EV_FINISH, .choice = i, .finish = SH_FINISH_LENGTH, .stop_id = -1, .text = "", .prompt_tokens = r->n_ids};
    open_stream(g);
    on_finish_event(g, &g->choices[r->index * g->engine.n + i], &ev);
  }
  r->ended = true;
  g->live--;
}

void sh_gen_start(sh_gen *g) {
  sh_error err;
  g->live = g->n_runs;
  for (int i = 0; i < g->n_runs; i++) {
    sh_run *r = &g->runs[i];
    sh_request_params p = g->engine;
    p.ids = r->ids;
    p.n_ids = r->n_ids;
    p.max_tokens = r->max_tokens;
    if (!p.max_tokens && p.prompt_logprobs < 0) {
      finish_without_engine(g, r);
    } else if (sh_request_submit(g->call->srv->engine, &p, on_notify, r, &r->req, &err) != SH_OK) {
      submit_failed(g, &err);
      return;
    }
  }
  if (!g->live) complete(g);
}

void sh_gen_writable(sh_gen *g) {
  if (!g->paused) return;
  g->paused = false;
  for (int i = 0; i < g->n_runs; i++)
    if (!g->runs[i].ended) sh_loop_post(g->call->srv->loop, &g->runs[i].task);
}

void sh_gen_cancel(sh_gen *g) {
  for (int i = 0; i < g->n_runs; i++)
    if (g->runs[i].req && !g->runs[i].ended) sh_request_cancel(g->runs[i].req);
}
