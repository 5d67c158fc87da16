/* Routing, keys, errors and the life of a call. Loop thread, but for work_job (text worker).
 *
 * Errors have one shape, {"error":{"message","type","param","code"}}, whatever found them; the exception is 401, whose body is vLLM's. A
 * handler never writes to a socket: it fills c->out or an error, or starts a generation.
 *
 * The worker parses the body too, not only the text in it: 10 MB of JSON takes longer than a scheduler step.
 *
 * Refused alternative: handlers as coroutines or with their own threads. A call is two steps (work, then events), and a struct says that
 * more plainly. */
#include "server/api.h"
#include "base/log.h"
#include "base/pool.h"
#include "server/gen.h"
#include "server/state.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const sh_route sh_routes[] = {
    {"/v1/chat/completions", "POST", SH_ROUTE_MODEL, NULL, sh_api_chat},
    {"/v1/completions", "POST", SH_ROUTE_MODEL, NULL, sh_api_completions},
    {"/v1/models", "GET,HEAD", SH_ROUTE_MODEL, sh_api_models, NULL},
    {"/v1/models/*", "GET,HEAD", SH_ROUTE_MODEL, sh_api_model, NULL},
    {"/tokenize", "POST", SH_ROUTE_MODEL, NULL, sh_api_tokenize},
    {"/detokenize", "POST", SH_ROUTE_MODEL, NULL, sh_api_detokenize},
    {"/health", "GET,HEAD", SH_ROUTE_OPEN | SH_ROUTE_QUIET, sh_api_health, NULL},
    {"/ping", "GET,HEAD,POST", SH_ROUTE_OPEN | SH_ROUTE_QUIET, sh_api_health, NULL},
    {"/version", "GET,HEAD", SH_ROUTE_OPEN, sh_api_version, NULL},
    {"/metrics", "GET,HEAD", SH_ROUTE_OPEN | SH_ROUTE_QUIET, sh_api_metrics, NULL},
    {0},
};

/* --- Errors --- */

int sh_api_fail(sh_api_error *e, int status, const char *param, const char *fmt, ...) {
  va_list ap;
  e->status = status;
  snprintf(e->param, sizeof e->param, "%s", param ? param : "");
  va_start(ap, fmt);
  vsnprintf(e->message, sizeof e->message, fmt, ap);
  va_end(ap);
  return -1;
}

int sh_api_fail_from(sh_api_error *e, const char *param, const sh_error *err) {
  int status = 500;
  switch ((sh_err)err->code) {
  case SH_ERR_ARG:
  case SH_ERR_LIMIT:
  case SH_ERR_FORMAT:
  case SH_ERR_UNSUPPORTED: status = 400; break;
  case SH_ERR_NOT_FOUND: status = 404; break;
  case SH_ERR_BUSY:
  case SH_ERR_NOMEM: status = 503; break;
  case SH_OK:
  case SH_ERR_IO:
  case SH_ERR_CANCELLED:
  case SH_ERR_INTERNAL: break;
  }
  return sh_api_fail(e, status, param, "%s", err->text);
}

static const char *error_type(int status) {
  static const struct {
    int status;
    const char *type;
  } table[] = {
      {400, "BadRequestError"},          {401, "AuthenticationError"},     {404, "NotFoundError"},
      {405, "MethodNotAllowedError"},    {408, "RequestTimeoutError"},     {413, "ContentTooLargeError"},
      {422, "UnprocessableEntityError"}, {431, "HeadersTooLargeError"},    {500, "InternalServerError"},
      {501, "NotImplementedError"},      {503, "ServiceUnavailableError"}, {505, "HTTPVersionNotSupportedError"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].status == status) return table[i].type;
  return status < 500 ? "BadRequestError" : "InternalServerError";
}

void sh_api_error_json(const sh_api_error *e, sh_buf *out) {
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_key(&w, "error");
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "message", e->message);
  sh_jw_kstr(&w, "type", error_type(e->status));
  sh_jw_kstr(&w, "param", e->param[0] ? e->param : NULL);
  sh_jw_kint(&w, "code", e->status);
  sh_jw_end_obj(&w);
  sh_jw_end_obj(&w);
}

void sh_api_error_body(void *ctx, int status, const char *message, sh_buf *out) {
  (void)ctx;
  sh_api_error e;
  sh_api_fail(&e, status, NULL, "%s", message);
  sh_api_error_json(&e, out);
}

static void reply_error(sh_hreq *r, const sh_api_error *e) {
  sh_buf b;
  sh_buf_init(&b, 64 << 10);
  sh_api_error_json(e, &b);
  if (e->status == 503) sh_http_set_header(r, "Retry-After", "1");
  sh_http_reply(r, e->status, "application/json", b.p ? b.p : "", b.len);
  sh_buf_free(&b);
}

/* --- Before the body: route, method, key --- */

static const sh_route *find_route(const char *path, const char **rest) {
  *rest = "";
  for (const sh_route *r = sh_routes; r->path; r++) {
    size_t n = strlen(r->path);
    if (r->path[n - 1] == '*' && !strncmp(path, r->path, n - 1) && path[n - 1]) {
      *rest = path + n - 1;
      return r;
    }
    if (!strcmp(path, r->path)) return r;
  }
  return NULL;
}

static bool method_allowed(const char *list, const char *method) {
  size_t n = strlen(method);
  for (const char *at = list; (at = strstr(at, method)); at += n)
    if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n])) return true;
  return false;
}

/* Takes as long for a wrong key as for a right one of the same length. */
static bool same_key(const char *a, const char *b) {
  size_t n = strlen(a);
  int diff = 0;
  if (n != strlen(b)) return false;
  for (size_t i = 0; i < n; i++) diff |= a[i] ^ b[i];
  return !diff;
}

static bool key_known(const sh_strlist *keys, const char *key) {
  bool known = false;
  for (int i = 0; i < keys->n; i++) known |= same_key(keys->v[i], key);
  return known;
}

static bool authorized(const sh_server *s, const sh_hreq *r) {
  const sh_serve_options *o = s->opt;
  if (!o->api_keys.n && !o->api_keys_vllm.n) return true;
  const char *bearer = sh_http_head_get(&r->head, "authorization"), *plain = sh_http_head_get(&r->head, "x-api-key");
  if (bearer && !strncasecmp(bearer, "Bearer ", 7)) {
    bearer += 7;
    while (*bearer == ' ') bearer++;
    if (key_known(&o->api_keys, bearer) || key_known(&o->api_keys_vllm, bearer)) return true;
  }
  return plain && (key_known(&o->api_keys, plain) || key_known(&o->api_keys_vllm, plain));
}

static int check_phase(const sh_server *s, const sh_route *route, sh_api_error *e) {
  if (!(route->flags & SH_ROUTE_MODEL)) return 0;
  switch (s->phase) {
  case SH_PHASE_READY: return 0;
  case SH_PHASE_LOADING: return sh_api_fail(e, 503, NULL, "The model is still loading. Please try again later.");
  case SH_PHASE_DRAINING: return route->now ? 0 : sh_api_fail(e, 503, NULL, "The server is shutting down.");
  case SH_PHASE_FAILED: break;
  }
  return sh_api_fail(e, 503, NULL, "The model could not be loaded.");
}

void sh_api_head(void *ctx, sh_hreq *r) {
  sh_server *s = ctx;
  sh_api_error e;
  const char *rest;
  const sh_route *route = find_route(r->head.path, &rest);
  if ((!route || !(route->flags & SH_ROUTE_OPEN)) && !authorized(s, r)) {
    sh_http_set_header(r, "WWW-Authenticate", "Bearer");
    sh_http_reply(r, 401, "application/json", "{\"error\":\"Unauthorized\"}", 24);
  } else if (!route) {
    sh_api_fail(&e, 404, NULL, "There is no %.300s here.", r->head.path);
    reply_error(r, &e);
  } else if (!method_allowed(route->methods, r->head.method)) {
    sh_http_set_header(r, "Allow", route->methods);
    sh_api_fail(&e, 405, NULL, "%s does not take the method %.32s; it takes %s.", route->path, r->head.method, route->methods);
    reply_error(r, &e);
  } else if (check_phase(s, route, &e)) {
    reply_error(r, &e);
  }
}

/* --- Calls --- */

static void log_call(const sh_call *c) {
  const sh_serve_options *o = c->srv->opt;
  bool wanted = o->log_requests && !o->no_log_requests && !(c->route->flags & SH_ROUTE_QUIET);
  int64_t ms = (sh_now_ns() - c->began_ns) / 1000000, prompt = 0, completion = 0;
  for (int i = 0; c->gen && i < c->gen->n_runs; i++) prompt += c->gen->runs[i].n_ids;
  for (int i = 0; c->gen && i < c->gen->n_choices; i++) completion += c->gen->choices[i].tokens;
  if (!c->status)
    sh_log(wanted ? SH_LOG_INFO : SH_LOG_DEBUG, "%s %s: the client went after %lld ms, %lld prompt and %lld new tokens", c->method,
           c->route->path, (long long)ms, (long long)prompt, (long long)completion);
  else
    sh_log(wanted ? SH_LOG_INFO : SH_LOG_DEBUG, "%s %s %d in %lld ms, %lld prompt and %lld new tokens", c->method, c->route->path,
           c->status, (long long)ms, (long long)prompt, (long long)completion);
}

static sh_call *call_new(sh_server *s, sh_hreq *r, const sh_route *route, const char *rest) {
  sh_call *c = sh_calloc(1, sizeof *c);
  if (!c) return NULL;
  /* a body of n bytes holds up to n/2 values of some 50 bytes; results (ids, texts) come on top */
  c->arena = sh_arena_new(((size_t)64 << 20) + r->body.len * 32);
  if (!c->arena) {
    sh_free(c);
    return NULL;
  }
  c->srv = s;
  c->http = r;
  c->route = route;
  c->type = "application/json";
  c->began_ns = sh_now_ns();
  snprintf(c->rest, sizeof c->rest, "%s", rest);
  snprintf(c->method, sizeof c->method, "%s", r->head.method);
  sh_buf_init(&c->out, (size_t)1 << 31);
  sh_http_take_body(r, &c->body);
  c->body_bytes = c->body.len;
  r->owner = c;
  c->next = s->calls;
  if (s->calls) s->calls->prev = c;
  s->calls = c;
  s->n_calls++;
  return c;
}

void sh_call_free(sh_call *c) {
  sh_server *s = c->srv;
  log_call(c);
  sh_gen_free(c->gen);
  if (c->prev) c->prev->next = c->next;
  else s->calls = c->next;
  if (c->next) c->next->prev = c->prev;
  s->n_calls--;
  sh_loop_unpost(s->loop, &c->done);
  sh_http_release_body(s->http, c->body_bytes);
  sh_buf_free(&c->body);
  sh_buf_free(&c->out);
  sh_arena_free(c->arena);
  sh_free(c);
}

void sh_call_answer_error(sh_call *c, const sh_api_error *e) {
  if (c->http) reply_error(c->http, e);
  c->status = e->status;
  if (e->status >= 500 && e->status != 503) sh_log(SH_LOG_ERROR, "%s %s failed: %s", c->method, c->route->path, e->message);
  c->http = NULL;
  sh_call_free(c);
}

void sh_call_answer(sh_call *c, int status) {
  if (c->out.failed) {
    sh_api_error e;
    sh_api_fail(&e, c->out.failed == SH_ERR_NOMEM ? 503 : 500, NULL, "The answer does not fit in memory.");
    sh_call_answer_error(c, &e);
    return;
  }
  c->status = status;
  if (c->http) sh_http_reply(c->http, status, c->type, c->out.p ? c->out.p : "", c->out.len);
  c->http = NULL;
  sh_call_free(c);
}

/* Text worker. */
static void work_job(sh_job *j) {
  sh_call *c = (sh_call *)(void *)((char *)j - offsetof(sh_call, job));
  const sh_json_limits limits = {0, SH_API_MAX_NODES};
  sh_json *body = NULL;
  sh_error err;
  if (sh_json_parse(c->body.p ? c->body.p : "", c->body.len, &limits, c->arena, &body, &err) != SH_OK) {
    sh_api_fail(&c->error, err.code == SH_ERR_NOMEM ? 503 : 400, NULL, "The request body is not valid JSON: %s", err.text);
    c->failed = true;
  } else if (!sh_json_is(body, SH_JSON_OBJECT)) {
    sh_api_fail(&c->error, 400, NULL, "The request body must be a JSON object, found %s.", sh_json_type_name(body->type));
    c->failed = true;
  } else {
    c->json = body;
    c->failed = c->route->work(c, &c->error) != 0;
  }
  sh_loop_post(c->srv->loop, &c->done); /* the last act: the loop owns the call now */
}

/* Back from the worker. */
static void work_done(sh_task *t) {
  sh_call *c = (sh_call *)(void *)((char *)t - offsetof(sh_call, done));
  c->working = false;
  if (!c->http) sh_call_free(c);
  else if (c->failed) sh_call_answer_error(c, &c->error);
  else if (c->gen) sh_gen_start(c->gen);
  else sh_call_answer(c, 200);
}

void sh_api_request(void *ctx, sh_hreq *r) {
  sh_server *s = ctx;
  sh_api_error e;
  const char *rest;
  const sh_route *route = find_route(r->head.path, &rest);
  sh_call *c = call_new(s, r, route, rest);
  if (!c) {
    sh_api_fail(&e, 503, NULL, "Out of memory.");
    reply_error(r, &e);
    return;
  }
  if (check_phase(s, route, &e)) { /* it may have begun to drain while the body came in */
    sh_call_answer_error(c, &e);
  } else if (route->now) {
    c->status = 200;
    if (route->now(c, &c->error)) sh_call_answer_error(c, &c->error);
    else sh_call_answer(c, c->status);
  } else {
    c->done.fn = work_done;
    c->job.fn = work_job;
    c->working = true;
    if (sh_workers_offer(s->workers, &c->job)) return;
    c->working = false;
    s->counters.rejected++;
    sh_api_fail(&e, 503, NULL, "Too many requests are waiting. Please try again later.");
    sh_call_answer_error(c, &e);
  }
}

void sh_api_gone(void *ctx, sh_hreq *r) {
  (void)ctx;
  sh_call *c = r->owner;
  if (c->working) c->http = NULL; /* work_done ends it */
  else sh_call_free(c);
}

void sh_api_writable(void *ctx, sh_hreq *r) {
  (void)ctx;
  sh_call *c = r->owner;
  if (c->gen && !c->working) sh_gen_writable(c->gen);
}

/* --- Names --- */

bool sh_server_has_name(const sh_server *s, const char *name) {
  for (int i = 0; i < s->n_names; i++)
    if (!strcmp(s->names[i], name)) return true;
  return false;
}

int sh_server_model(const sh_server *s, const sh_json *body, const char **shown, sh_api_error *e) {
  const sh_json *v = sh_json_get(body, "model");
  *shown = s->names[0];
  if (!v || v->type == SH_JSON_NULL || (v->type == SH_JSON_STRING && !v->len)) return 0;
  if (v->type != SH_JSON_STRING) return sh_api_fail(e, 400, "model", "`model` must be a string, found %s.", sh_json_type_name(v->type));
  if (!sh_server_has_name(s, v->s)) return sh_api_fail(e, 404, "model", "The model `%.200s` does not exist.", v->s);
  return 0;
}
