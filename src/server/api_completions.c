/* POST /v1/completions: prompts as text or token ids, one or many, streamed or not.
 *
 * Several prompts are several requests of the engine, answered in one list, prompt-major. The answer of an echoed prompt begins with the
 * prompt's text, and its log probabilities with the prompt's tokens, the first of them without any. The parse half runs on a text worker,
 * the format half on the loop thread.
 *
 * Refused alternative: joining the prompts to one engine request. They may have different lengths and end at different times; the engine
 * batches them anyway. */
#include "server/gen.h"
#include "server/prompt.h"
#include <string.h>

/* --- The format --- */

/* The first token of an echoed prompt has no probability, and so no event. */
static void begin_echo(sh_gen *g, sh_run *r) {
  if (g->params->echo && !r->echo.tokens.len) sh_lp_completion(&g->lp, NULL, r->ids[0], 0, &r->echo_chars, &r->echo);
}

static void collect(sh_gen *g, sh_run *r, sh_choice *c, const sh_event *ev) {
  if (g->n_logprobs < 0) return;
  begin_echo(g, r);
  if (c) {
    if (c->tokens == 1) c->offset = r->echo_chars; /* offsets go on behind an echoed prompt */
    sh_lp_completion(&g->lp, ev, ev->id, g->n_logprobs, &c->offset, &c->lists);
  } else if (g->params->echo) {
    sh_lp_completion(&g->lp, ev, ev->id, g->n_logprobs, &r->echo_chars, &r->echo);
  }
}

static void put_list(sh_jw *w, const char *key, const sh_buf *echoed, const sh_buf *drawn) {
  sh_buf both;
  if (!echoed || !echoed->len) {
    sh_jw_list(w, key, drawn);
    return;
  }
  sh_buf_init(&both, echoed->max);
  sh_buf_put(&both, echoed->p, echoed->len);
  if (drawn->len) {
    sh_buf_putc(&both, ',');
    sh_buf_put(&both, drawn->p, drawn->len);
  }
  sh_jw_list(w, key, &both);
  sh_buf_free(&both);
}

static void put_logprobs(sh_gen *g, const sh_choice *c, bool with_echo, sh_jw *w) {
  sh_jw_key(w, "logprobs");
  if (g->n_logprobs < 0) {
    sh_jw_null(w);
    return;
  }
  sh_lp_lists *echo = &c->run->echo;
  if (with_echo) begin_echo(g, c->run);
  sh_jw_obj(w);
  put_list(w, "text_offset", with_echo ? &echo->text_offset : NULL, &c->lists.text_offset);
  put_list(w, "token_logprobs", with_echo ? &echo->token_logprobs : NULL, &c->lists.token_logprobs);
  put_list(w, "tokens", with_echo ? &echo->tokens : NULL, &c->lists.tokens);
  put_list(w, "top_logprobs", with_echo ? &echo->top_logprobs : NULL, &c->lists.top_logprobs);
  sh_jw_end_obj(w);
}

/* The text of a choice since its last chunk, or all of it; with the prompt before it where that is to be echoed. */
static void put_text(sh_gen *g, const sh_choice *c, bool with_echo, sh_jw *w) {
  sh_buf both;
  sh_jw_key(w, "text");
  if (!with_echo) {
    sh_jw_strn(w, c->text.p ? c->text.p : "", c->text.len);
    return;
  }
  sh_buf_init(&both, g->call->out.max);
  sh_buf_put(&both, c->run->text, c->run->text_len);
  if (c->text.len) sh_buf_put(&both, c->text.p, c->text.len);
  sh_jw_strn(w, both.p ? both.p : "", both.len);
  if (both.failed && !w->buf->failed) w->buf->failed = both.failed;
  sh_buf_free(&both);
}

static void put_choice(sh_gen *g, sh_choice *c, bool with_echo, sh_jw *w) {
  sh_jw_kint(w, "index", c->index);
  put_text(g, c, with_echo, w);
  put_logprobs(g, c, with_echo, w);
  sh_jw_kstr(w, "finish_reason", sh_gen_finish_name(c->finish));
  sh_gen_stop_reason(w, c);
  if (g->params->return_token_ids) sh_jw_ids(w, "token_ids", c->ids.v, c->ids.n);
}

static void chunk(sh_gen *g, sh_choice *c, sh_jw *w) {
  put_choice(g, c, g->params->echo && !c->opened, w);
  if (g->params->return_token_ids && !c->opened) sh_jw_ids(w, "prompt_token_ids", c->run->ids, (size_t)c->run->n_ids);
}

static void reply(sh_gen *g, sh_jw *w) {
  sh_jw_key(w, "choices");
  sh_jw_arr(w);
  for (int i = 0; i < g->n_choices; i++) {
    sh_choice *c = &g->choices[i];
    sh_jw_obj(w);
    put_choice(g, c, g->params->echo, w);
    sh_gen_prompt_logprobs(w, c->run, g);
    if (g->params->return_token_ids) sh_jw_ids(w, "prompt_token_ids", c->run->ids, (size_t)c->run->n_ids);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
  sh_jw_kstr(w, "system_fingerprint", g->call->srv->fingerprint);
  sh_gen_usage_all(g, w);
}

static const sh_gen_format format = {"cmpl-", collect, chunk, reply, "text_completion", "text_completion", false};

/* --- The request --- */

static int one_prompt(sh_call *c, const sh_params *p, const sh_json *v, int64_t max_tokens, sh_run *r, sh_api_error *e) {
  int32_t *ids = NULL;
  int n = 0;
  if (v->type == SH_JSON_STRING) {
    if (sh_prompt_encode(c, v->s, v->len, p->add_special_tokens, "prompt", &ids, &n, e)) return -1;
  } else if (v->type == SH_JSON_ARRAY) {
    if (sh_prompt_ids(c, v, "prompt", &ids, &n, e)) return -1;
  } else {
    return sh_api_fail(e, 400, "prompt", "A prompt must be a string or a list of token ids, found %s.", sh_json_type_name(v->type));
  }
  bool cut = sh_prompt_truncate(c, p, max_tokens, &ids, &n);
  r->ids = ids;
  r->n_ids = n;
  if (!p->echo) return 0;
  if (v->type == SH_JSON_STRING && !cut) {
    r->text = v->s;
    r->text_len = v->len;
    return 0;
  }
  return sh_prompt_decode(c, ids, n, &r->text, &r->text_len, e);
}

/* "a", ["a", "b"], [1, 2], [[1, 2], [3]]: how many prompts, and is the list one prompt by itself? */
static int count_prompts(const sh_json *v, bool *single, sh_api_error *e) {
  *single = true;
  if (!v || v->type == SH_JSON_NULL) return sh_api_fail(e, 400, "prompt", "`prompt` is missing.");
  if (v->type == SH_JSON_STRING) return 1;
  if (v->type != SH_JSON_ARRAY)
    return sh_api_fail(e, 400, "prompt",
                       "`prompt` must be a string, a list of strings, a list of token ids or a list of such lists, found %s.",
                       sh_json_type_name(v->type));
  if (!v->len) return sh_api_fail(e, 400, "prompt", "Please provide at least one prompt.");
  if (v->items[0].type == SH_JSON_NUMBER) return 1;
  *single = false;
  if (v->len > SH_API_MAX_CHOICES)
    return sh_api_fail(e, 400, "prompt", "`prompt` has %zu entries; the limit is %d.", v->len, SH_API_MAX_CHOICES);
  return (int)v->len;
}

int sh_api_completions(sh_call *c, sh_api_error *e) {
  const sh_server *s = c->srv;
  const sh_params_limits limits = {sh_engine_vocab_size(s->engine), s->opt->max_logprobs};
  const sh_json *prompt = sh_json_get(c->json, "prompt");
  const char *model;
  bool single;
  sh_params *p = sh_arena_alloc(c->arena, sizeof *p);
  if (!p) return sh_api_fail(e, 503, NULL, "Out of memory while preparing the request.");
  if (sh_server_model(s, c->json, &model, e) || sh_params_parse(c->json, SH_API_COMPLETION, &limits, c->arena, p, e)) return -1;
  int n = count_prompts(prompt, &single, e);
  if (n < 0) return -1;
  if (p->max_tokens == 0 && !p->echo && p->prompt_logprobs == SH_UNSET)
    return sh_api_fail(e, 400, "max_tokens", "`max_tokens` must be at least 1, got 0.");
  sh_gen *g = sh_gen_new(c, &format, p, n, e);
  if (!g) return -1;
  c->gen = g;
  g->model = model;
  int64_t max_tokens = p->max_tokens;
  for (int i = 0; i < n; i++)
    if (one_prompt(c, p, single ? prompt : &prompt->items[i], max_tokens == SH_UNSET ? 16 : max_tokens, &g->runs[i], e)) return -1;
  return sh_gen_prepare(g, max_tokens, 16, e);
}
