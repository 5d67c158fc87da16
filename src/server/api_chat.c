/* POST /v1/chat/completions: messages through the template, an assistant's message back, streamed or not.
 *
 * The model's text is the message's content as it is. The parse half runs on a text worker, the format half on the loop thread. A stream
 * opens with one chunk per choice that carries the role, as every client of this API expects.
 *
 * Refused alternative: chat as a rewrite to /v1/completions. The shapes share little more than the events, and those are shared in gen.c.
 */
#include "server/gen.h"
#include "server/prompt.h"
#include <string.h>

/* --- The format --- */

static void collect(sh_gen *g, sh_run *r, sh_choice *c, const sh_event *ev) {
  (void)r;
  if (c) sh_lp_chat(&g->lp, ev, g->n_logprobs, &c->chat_logprobs);
}

static void put_logprobs(sh_gen *g, const sh_choice *c, sh_jw *w) {
  sh_jw_key(w, "logprobs");
  if (g->n_logprobs < 0 || (g->params->stream && !c->chat_logprobs.len)) {
    sh_jw_null(w);
    return;
  }
  sh_jw_obj(w);
  sh_jw_list(w, "content", &c->chat_logprobs);
  sh_jw_end_obj(w);
}

static void put_content(sh_gen *g, const sh_choice *c, bool with_prefix, sh_jw *w) {
  sh_buf both;
  const sh_buf *text = &c->text;
  sh_buf_init(&both, g->call->out.max);
  if (with_prefix && g->prefix) {
    sh_buf_puts(&both, g->prefix);
    if (c->text.len) sh_buf_put(&both, c->text.p, c->text.len);
    if (both.failed && !w->buf->failed) w->buf->failed = both.failed;
    text = &both;
  }
  sh_jw_key(w, "content");
  sh_jw_strn(w, text->p ? text->p : "", text->len);
  sh_buf_free(&both);
}

static void chunk(sh_gen *g, sh_choice *c, sh_jw *w) {
  sh_jw_kint(w, "index", c->index);
  sh_jw_key(w, "delta");
  sh_jw_obj(w);
  if (!c->opened) sh_jw_kstr(w, "role", g->role);
  if (!c->opened || c->text.len) put_content(g, c, !c->opened, w);
  sh_jw_end_obj(w);
  put_logprobs(g, c, w);
  sh_jw_kstr(w, "finish_reason", sh_gen_finish_name(c->finish));
  if (c->done) sh_gen_stop_reason(w, c);
  if (g->params->return_token_ids && c->opened) sh_jw_ids(w, "token_ids", c->ids.v, c->ids.n);
}

static void put_message(sh_gen *g, const sh_choice *c, sh_jw *w) {
  sh_jw_key(w, "message");
  sh_jw_obj(w);
  sh_jw_kstr(w, "role", g->role);
  put_content(g, c, true, w);
  sh_jw_knull(w, "refusal");
  sh_jw_knull(w, "annotations");
  sh_jw_knull(w, "audio");
  sh_jw_knull(w, "function_call");
  sh_jw_key(w, "tool_calls");
  sh_jw_arr(w);
  sh_jw_end_arr(w);
  sh_jw_knull(w, "reasoning");
  sh_jw_end_obj(w);
}

static void reply(sh_gen *g, sh_jw *w) {
  sh_jw_key(w, "choices");
  sh_jw_arr(w);
  for (int i = 0; i < g->n_choices; i++) {
    const sh_choice *c = &g->choices[i];
    sh_jw_obj(w);
    sh_jw_kint(w, "index", c->index);
    put_message(g, c, w);
    put_logprobs(g, c, w);
    sh_jw_kstr(w, "finish_reason", sh_gen_finish_name(c->finish));
    sh_gen_stop_reason(w, c);
    if (g->params->return_token_ids) sh_jw_ids(w, "token_ids", c->ids.v, c->ids.n);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
  sh_jw_knull(w, "service_tier");
  sh_jw_kstr(w, "system_fingerprint", g->call->srv->fingerprint);
  sh_gen_usage_all(g, w);
  sh_gen_prompt_logprobs(w, &g->runs[0], g);
  if (g->params->return_token_ids) sh_jw_ids(w, "prompt_token_ids", g->runs[0].ids, (size_t)g->runs[0].n_ids);
}

static const sh_gen_format format = {"chatcmpl-", collect, chunk, reply, "chat.completion", "chat.completion.chunk", true};

/* --- The request --- */

/* The role of the answer, and with echo the last message's text when it has the same role. */
static int set_role(sh_gen *g, sh_api_error *e) {
  sh_call *c = g->call;
  const sh_json *messages = sh_json_get(c->json, "messages"), *last = &messages->items[messages->len - 1];
  const sh_json *role = sh_json_get(last, "role"), *content = sh_json_get(last, "content");
  g->role = c->srv->opt->response_role;
  if (!g->params->add_generation_prompt && sh_json_is(role, SH_JSON_STRING)) g->role = role->s;
  if (!g->params->echo || !sh_json_eq_str(role, g->role)) return 0;
  if (sh_json_is(content, SH_JSON_STRING)) {
    g->prefix = content->s;
  } else if (sh_json_is(content, SH_JSON_ARRAY)) {
    sh_buf b;
    sh_buf_init(&b, c->body_bytes + 1);
    for (size_t i = 0; i < content->len; i++) {
      const sh_json *text = sh_json_get(&content->items[i], "text");
      if (sh_json_is(text, SH_JSON_STRING)) sh_buf_put(&b, text->s, text->len);
    }
    g->prefix = sh_arena_strdup(c->arena, b.p ? b.p : "", b.len);
    sh_buf_free(&b);
    if (!g->prefix) return sh_api_fail(e, 503, NULL, "Out of memory while preparing the request.");
  }
  return 0;
}

static int set_prompt(sh_gen *g, int64_t max_tokens, sh_api_error *e) {
  sh_buf text;
  int32_t *ids;
  int n;
  const sh_params *p = g->params;
  if (sh_prompt_chat(g->call, p, &text, e)) return -1;
  int rc = sh_prompt_encode(g->call, text.p ? text.p : "", text.len, p->add_special_tokens, "messages", &ids, &n, e);
  sh_buf_free(&text);
  if (rc) return rc;
  sh_prompt_truncate(g->call, p, max_tokens, &ids, &n);
  g->runs[0].ids = ids;
  g->runs[0].n_ids = n;
  return 0;
}

int sh_api_chat(sh_call *c, sh_api_error *e) {
  const sh_server *s = c->srv;
  const sh_params_limits limits = {sh_engine_vocab_size(s->engine), s->opt->max_logprobs};
  const char *model;
  sh_params *p = sh_arena_alloc(c->arena, sizeof *p);
  if (!p) return sh_api_fail(e, 503, NULL, "Out of memory while preparing the request.");
  if (sh_server_model(s, c->json, &model, e) || sh_params_parse(c->json, SH_API_CHAT, &limits, c->arena, p, e)) return -1;
  bool newer = p->max_completion_tokens != SH_UNSET; /* max_tokens is the deprecated name */
  int64_t max_tokens = newer ? p->max_completion_tokens : p->max_tokens;
  if (max_tokens == 0 && p->prompt_logprobs == SH_UNSET) {
    const char *name = newer ? "max_completion_tokens" : "max_tokens";
    return sh_api_fail(e, 400, name, "`%s` must be at least 1, got 0.", name);
  }
  sh_gen *g = sh_gen_new(c, &format, p, 1, e);
  if (!g) return -1;
  c->gen = g;
  g->model = model;
  if (set_prompt(g, max_tokens == SH_UNSET ? 0 : max_tokens, e) || set_role(g, e)) return -1;
  return sh_gen_prepare(g, max_tokens, 0, e);
}
