/* Prompts: template, tokenizer and their inverses for the API files. Text workers only; everything it makes lives in the call's arena.
 *
 * A template fails because of what the request said, so its error is the client's (400), with the template's own words. The variables a
 * template sees are, from weak to strong: --default-chat-template-kwargs, documents and reasoning_effort of the request, its
 * chat_template_kwargs.
 *
 * Refused alternative: letting a request's own chat_template run unasked. It costs a compile per request and gives strangers a program to
 * run here; the operator has to say --trust-request-chat-template. */
#include "server/prompt.h"
#include <limits.h>
#include <string.h>

enum { MAX_PROMPT_BYTES = 256 << 20 };

static int no_memory(sh_api_error *e) { return sh_api_fail(e, 503, NULL, "Out of memory while preparing the request."); }

int sh_prompt_encode(const sh_call *c, const char *text, size_t n, bool add_special, const char *field, int32_t **ids, int *n_ids,
                     sh_api_error *e) {
  sh_ids l = {.max = INT_MAX};
  sh_error err;
  int rc = sh_tok_encode(sh_engine_tokenizer(c->srv->engine), text, n, add_special ? SH_TOK_ADD_SPECIAL : 0, &l, &err);
  *ids = rc == SH_OK ? sh_arena_array(c->arena, l.n + 1, sizeof **ids) : NULL;
  if (*ids && l.n) memcpy(*ids, l.v, l.n * sizeof **ids);
  *n_ids = *ids ? (int)l.n : 0;
  sh_ids_free(&l);
  if (rc != SH_OK) return sh_api_fail_from(e, field, &err);
  return *ids ? 0 : no_memory(e);
}

int sh_prompt_ids(const sh_call *c, const sh_json *list, const char *field, int32_t **ids, int *n_ids, sh_api_error *e) {
  int vocab = sh_engine_vocab_size(c->srv->engine);
  *ids = sh_arena_array(c->arena, list->len + 1, sizeof **ids);
  if (!*ids) return no_memory(e);
  for (size_t i = 0; i < list->len; i++) {
    const sh_json *v = &list->items[i];
    int64_t id;
    if (v->type != SH_JSON_NUMBER)
      return sh_api_fail(e, 400, field, "`%s` must be a list of token ids, found %s in it.", field, sh_json_type_name(v->type));
    if (sh_json_int(v, &id) != SH_OK || id < 0 || id >= vocab)
      return sh_api_fail(e, 400, field, "Token id %.40s is out of vocabulary (0 to %d).", v->s, vocab - 1);
    (*ids)[i] = (int32_t)id;
  }
  *n_ids = (int)list->len;
  return 0;
}

bool sh_prompt_truncate(const sh_call *c, const sh_params *p, int64_t max_tokens, int32_t **ids, int *n_ids) {
  int64_t keep = p->truncate_prompt_tokens;
  if (keep == SH_UNSET) return false;
  if (keep < 0) { /* as many as the context takes beside the answer */
    keep = sh_engine_plan(c->srv->engine)->max_model_len - (max_tokens > 0 ? max_tokens : 1);
    if (keep < 1) keep = 1;
  }
  if (keep >= *n_ids) return false;
  *ids += *n_ids - keep;
  *n_ids = (int)keep;
  return true;
}

int sh_prompt_decode(const sh_call *c, const int32_t *ids, int n_ids, const char **text, size_t *n, sh_api_error *e) {
  sh_buf b;
  sh_error err;
  sh_buf_init(&b, MAX_PROMPT_BYTES);
  int rc = sh_tok_decode(sh_engine_tokenizer(c->srv->engine), ids, (size_t)n_ids, false, &b, &err);
  *text = rc == SH_OK ? sh_arena_strdup(c->arena, b.p ? b.p : "", b.len) : NULL;
  *n = b.len;
  sh_buf_free(&b);
  if (rc != SH_OK) return sh_api_fail_from(e, "tokens", &err);
  return *text ? 0 : no_memory(e);
}

/* --- Chat --- */

/* Appends: a client's object may have a hundred thousand members, and of equal names the last counts. */
static int add_members(sh_arena *a, sh_json *to, const sh_json *from) {
  for (size_t i = 0; from && i < from->len; i++)
    if (sh_json_add(a, to, from->members[i].key, from->members[i].key_len, &from->members[i].value) != SH_OK) return -1;
  return 0;
}

static int template_variables(const sh_call *c, const sh_params *p, const sh_json **out, sh_api_error *e) {
  sh_arena *a = c->arena;
  sh_json *vars = sh_json_new_object(a);
  if (!vars || add_members(a, vars, c->srv->default_kwargs)) return no_memory(e);
  if (p->documents && sh_json_set(a, vars, "documents", p->documents) != SH_OK) return no_memory(e);
  if (p->reasoning_effort) {
    const sh_json *effort = sh_json_new_string(a, p->reasoning_effort, strlen(p->reasoning_effort));
    if (!effort || sh_json_set(a, vars, "reasoning_effort", effort) != SH_OK) return no_memory(e);
    const sh_json *off = !strcmp(p->reasoning_effort, "none") ? sh_json_new_bool(a, false) : NULL;
    if (off && sh_json_set(a, vars, "enable_thinking", off) != SH_OK) return no_memory(e);
  }
  if (add_members(a, vars, p->chat_template_kwargs)) return no_memory(e);
  *out = vars;
  return 0;
}

/* The request's own template, or the server's. *own is for the caller to free. */
static int choose_template(const sh_call *c, const sh_params *p, const sh_chat **chat, sh_chat **own, sh_api_error *e) {
  sh_error err;
  *own = NULL;
  *chat = sh_engine_chat(c->srv->engine);
  if (p->chat_template) {
    if (!c->srv->opt->trust_request_chat_template)
      return sh_api_fail(e, 400, "chat_template",
                         "`chat_template` is not taken from requests here (--trust-request-chat-template allows it).");
    if (sh_chat_open(own, p->chat_template, strlen(p->chat_template), &err) != SH_OK) return sh_api_fail_from(e, "chat_template", &err);
    *chat = *own;
  }
  if (!*chat)
    return sh_api_fail(e, 400, "messages",
                       "This model has no chat template; start the server with --chat-template, or use /v1/completions.");
  return 0;
}

int sh_prompt_chat(const sh_call *c, const sh_params *p, sh_buf *out, sh_api_error *e) {
  const sh_json *messages = sh_json_get(c->json, "messages"), *vars = NULL;
  const sh_chat *chat;
  sh_chat *own;
  sh_error err;
  if (!messages) return sh_api_fail(e, 400, "messages", "`messages` is missing.");
  if (!sh_json_is(messages, SH_JSON_ARRAY))
    return sh_api_fail(e, 400, "messages", "`messages` must be a list, found %s.", sh_json_type_name(messages->type));
  if (!messages->len) return sh_api_fail(e, 400, "messages", "`messages` must have at least one message.");
  if (template_variables(c, p, &vars, e) || choose_template(c, p, &chat, &own, e)) return -1;
  sh_chat_input in = {
      .messages = messages,
      .kwargs = vars,
      .add_generation_prompt = p->add_generation_prompt,
      .continue_final_message = p->continue_final_message,
      .bos_token = c->srv->bos,
      .eos_token = c->srv->eos,
  };
  sh_buf_init(out, MAX_PROMPT_BYTES);
  int rc = sh_chat_render(chat, &in, c->arena, out, &err);
  sh_chat_free(own);
  if (rc == SH_OK) return 0;
  sh_buf_free(out);
  return sh_api_fail_from(e, "messages", &err);
}
