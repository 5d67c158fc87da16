/* The small endpoints: models, health, version (loop thread) and tokenize, detokenize (text worker).
 *
 * /health is 200 with an empty body exactly when a request would be taken: not while the model loads or warms up, not while draining. Load
 * balancers and start scripts rely on that.
 *
 * Refused alternative: a JSON status in /health. vLLM's is empty, and probes compare the status only. */
#include "server/gen.h"
#include "server/prompt.h"
#include <string.h>

/* --- Models --- */

static void put_model(const sh_server *s, const char *name, sh_jw *w) {
  sh_jw_obj(w);
  sh_jw_kstr(w, "id", name);
  sh_jw_kstr(w, "object", "model");
  sh_jw_kint(w, "created", s->started);
  sh_jw_kstr(w, "owned_by", "sheng");
  sh_jw_kstr(w, "root", s->opt->model);
  sh_jw_knull(w, "parent");
  sh_jw_kint(w, "max_model_len", sh_engine_plan(s->engine)->max_model_len);
  sh_jw_key(w, "permission");
  sh_jw_arr(w);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

int sh_api_models(sh_call *c, sh_api_error *e) {
  (void)e;
  sh_jw w;
  sh_jw_init(&w, &c->out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "object", "list");
  sh_jw_key(&w, "data");
  sh_jw_arr(&w);
  for (int i = 0; i < c->srv->n_names; i++) put_model(c->srv, c->srv->names[i], &w);
  sh_jw_end_arr(&w);
  sh_jw_end_obj(&w);
  return 0;
}

int sh_api_model(sh_call *c, sh_api_error *e) {
  if (!sh_server_has_name(c->srv, c->rest)) return sh_api_fail(e, 404, "model", "The model `%.200s` does not exist.", c->rest);
  sh_jw w;
  sh_jw_init(&w, &c->out);
  put_model(c->srv, c->rest, &w);
  return 0;
}

/* --- Health and version --- */

int sh_api_health(sh_call *c, sh_api_error *e) {
  (void)e;
  c->status = c->srv->phase == SH_PHASE_READY ? 200 : 503;
  return 0;
}

int sh_api_version(sh_call *c, sh_api_error *e) {
  (void)e;
  sh_jw w;
  sh_jw_init(&w, &c->out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "version", SHENG_VERSION);
  sh_jw_end_obj(&w);
  return 0;
}

/* --- Tokenize --- */

static int token_ids(sh_call *c, const sh_params *p, int32_t **ids, int *n, sh_api_error *e) {
  const sh_json *prompt = sh_json_get(c->json, "prompt"), *messages = sh_json_get(c->json, "messages");
  const sh_json *special = sh_json_get(c->json, "add_special_tokens");
  if (prompt && prompt->type != SH_JSON_NULL) {
    if (prompt->type != SH_JSON_STRING)
      return sh_api_fail(e, 400, "prompt", "`prompt` must be a string, found %s.", sh_json_type_name(prompt->type));
    return sh_prompt_encode(c, prompt->s, prompt->len, p->add_special_tokens, "prompt", ids, n, e);
  }
  if (!messages || messages->type == SH_JSON_NULL) return sh_api_fail(e, 400, "prompt", "`prompt` or `messages` is wanted.");
  sh_buf text;
  if (sh_prompt_chat(c, p, &text, e)) return -1;
  bool add = sh_json_is(special, SH_JSON_BOOL) && special->b; /* a template writes them itself, so not by default */
  int rc = sh_prompt_encode(c, text.p ? text.p : "", text.len, add, "messages", ids, n, e);
  sh_buf_free(&text);
  return rc;
}

int sh_api_tokenize(sh_call *c, sh_api_error *e) {
  const sh_server *s = c->srv;
  const sh_params_limits limits = {sh_engine_vocab_size(s->engine), s->opt->max_logprobs};
  const sh_tok *tok = sh_engine_tokenizer(s->engine);
  const char *model;
  sh_params p;
  int32_t *ids = NULL;
  int n = 0;
  if (sh_server_model(s, c->json, &model, e) || sh_params_parse(c->json, SH_API_TOKENIZE, &limits, c->arena, &p, e) ||
      token_ids(c, &p, &ids, &n, e))
    return -1;
  sh_jw w;
  sh_jw_init(&w, &c->out);
  sh_jw_obj(&w);
  sh_jw_kint(&w, "count", n);
  sh_jw_kint(&w, "max_model_len", sh_engine_plan(s->engine)->max_model_len);
  sh_jw_ids(&w, "tokens", ids, (size_t)n);
  sh_jw_key(&w, "token_strs");
  if (p.return_token_strs) {
    sh_jw_arr(&w);
    for (int i = 0; i < n; i++) sh_jw_str(&w, sh_tok_piece(tok, ids[i]));
    sh_jw_end_arr(&w);
  } else {
    sh_jw_null(&w);
  }
  sh_jw_end_obj(&w);
  return 0;
}

int sh_api_detokenize(sh_call *c, sh_api_error *e) {
  const sh_json *tokens = sh_json_get(c->json, "tokens");
  const char *model, *text;
  int32_t *ids;
  size_t len;
  int n;
  if (sh_server_model(c->srv, c->json, &model, e)) return -1;
  if (!sh_json_is(tokens, SH_JSON_ARRAY)) return sh_api_fail(e, 400, "tokens", "`tokens` must be a list of token ids.");
  if (sh_prompt_ids(c, tokens, "tokens", &ids, &n, e) || sh_prompt_decode(c, ids, n, &text, &len, e)) return -1;
  sh_jw w;
  sh_jw_init(&w, &c->out);
  sh_jw_obj(&w);
  sh_jw_key(&w, "prompt");
  sh_jw_strn(&w, text, len);
  sh_jw_end_obj(&w);
  return 0;
}
