/* The server's start, its run and its end. Main thread, which becomes the event loop; one short-lived thread opens and warms the engine.
 *
 * Order of the start: the port is bound first (an occupied one is known before gigabytes are read), then the loop runs and answers /health
 * with 503 while the starter thread opens the model, prints the memory plan and warms up; its last act is a task on the loop that makes
 * everything visible and turns the phase to READY.
 *
 * Order of the end: the first SIGTERM or SIGINT drains: no new requests, answers go on until --shutdown-timeout, then they are cancelled,
 * and what can be flushed is flushed. That first signal also gives both signals their default action back, so a second one ends the process
 * at once, whatever it is doing.
 *
 * Refused alternative: opening the model before listening. A supervisor could not tell a slow start from a dead process. */
#include "server/server.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/text.h"
#include "server/gen.h"
#include "server/state.h"
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
  TEXT_WORKERS = 2,
  MAX_HEAD = 64 << 10,    /* bytes of request line and headers: 431 */
  MAX_QUEUED_TEXT = 4096, /* requests waiting for a text worker: 503 */
  IDLE_S = 600,           /* a quiet keep-alive connection */
  STALL_S = 600,          /* an answer nobody takes, a request that stops coming */
  LOG_EVERY_S = 10,
  DRAIN_CHECK_MS = 20,
  FLUSH_MS = 2000, /* for the last bytes after a cancel */
};

/* What the starter thread makes; handed to the loop with `done`. */
typedef struct starter {
  sh_server *srv;
  sh_engine_options engine_options;
  sh_engine *engine;
  int rc;
  sh_error error;
  pthread_t thread;
  bool running;
  sh_task done;
} starter;

typedef struct server {
  sh_server s; /* first */
  starter starter;
  struct event *sigint, *sigterm, *every, *drain;
  sh_stats last; /* of the log line */
  int64_t last_ns, drain_until_ns;
  bool cancelled;
  int rc;
  sh_error *error;
  const sh_json *generation_config; /* of --generation-config FOLDER */
} server;

/* --- The start --- */

static void log_plan(const sh_engine *g) {
  const sh_plan *p = sh_engine_plan(g);
  char a[32], b[32], c[32], d[32];
  int64_t tokens = p->n_pages * p->page_size;
  sh_log(SH_LOG_INFO, "%s", sh_engine_describe(g));
  sh_log(SH_LOG_INFO, "memory: %s of %s may be used; weights %s, scratch %s", sh_format_size(p->budget_bytes, a),
         sh_format_size(p->total_bytes, b), sh_format_size(p->weight_bytes, c), sh_format_size(p->scratch_bytes, d));
  sh_log(SH_LOG_INFO, "memory: %s of KV cache per token, %s of state per sequence; room for %lld tokens in pages of %lld",
         sh_format_size(p->kv_bytes_per_token, a), sh_format_size(p->state_bytes_per_seq, b), (long long)tokens, (long long)p->page_size);
  int64_t each = tokens / p->max_num_seqs, full = tokens / p->max_model_len;
  if (each >= p->max_model_len)
    sh_log(SH_LOG_INFO, "memory: up to %lld sequences at once, each of up to %lld tokens", (long long)p->max_num_seqs,
           (long long)p->max_model_len);
  else
    sh_log(SH_LOG_INFO, "memory: up to %lld sequences at once: %lld of %lld tokens, or all %lld of %lld tokens", (long long)p->max_num_seqs,
           (long long)full, (long long)p->max_model_len, (long long)p->max_num_seqs, (long long)each);
  if (p->shortened)
    sh_log(SH_LOG_WARN, "the context is shortened to the %lld tokens that fit in memory (the model allows %lld)",
           (long long)p->max_model_len, (long long)p->model_max_len);
}

static void *starter_main(void *arg) {
  starter *st = arg;
  st->rc = sh_engine_open(&st->engine, &st->engine_options, &st->error);
  if (st->rc == SH_OK) {
    log_plan(st->engine);
    st->rc = sh_engine_start(st->engine, &st->error);
  }
  sh_loop_post(st->srv->loop, &st->done);
  return NULL;
}

static const char *special_piece(const sh_tok *t, int32_t id) {
  const char *piece = id >= 0 ? sh_tok_piece(t, id) : NULL;
  return piece ? piece : "";
}

/* On the loop: the engine is warm, or did not come up. */
static void on_started(sh_task *t) {
  starter *st = (starter *)(void *)((char *)t - offsetof(starter, done));
  server *v = (server *)st->srv;
  sh_server *s = &v->s;
  s->engine = st->engine;
  if (st->rc != SH_OK) {
    s->phase = SH_PHASE_FAILED;
    v->rc = sh_fail(v->error, st->rc, "%s", st->error.text);
    sh_loop_stop(s->loop);
    return;
  }
  const sh_tok *tok = sh_engine_tokenizer(s->engine);
  s->bos = special_piece(tok, sh_tok_bos(tok));
  s->eos = special_piece(tok, sh_tok_eos(tok));
  const sh_json *config = v->generation_config;
  if (!strcmp(s->opt->generation_config, "auto")) config = sh_engine_generation_config(s->engine);
  sh_gen_defaults_read(config, &s->defaults);
  if (!sh_engine_chat(s->engine)) sh_log(SH_LOG_WARN, "the model has no chat template: /v1/chat/completions needs --chat-template");
  v->last_ns = sh_now_ns();
  s->phase = SH_PHASE_READY;
  const char *everywhere = sh_http_everywhere(s->http) ? " and on all interfaces" : "";
  sh_log(SH_LOG_INFO, "ready as %s on %s%s", s->names[0], sh_http_url(s->http), everywhere);
  /* For scripts, whatever the log level; and for somebody who has just started it, a line to try. */
  bool chat = sh_engine_chat(s->engine) != NULL, key = s->opt->api_keys.n || s->opt->api_keys_vllm.n;
  printf("sheng is ready on %s%s\n", sh_http_url(s->http), everywhere);
  printf("  curl %s/v1/%s -H 'Content-Type: application/json'%s -d '{%s,\"temperature\":0}'\n", sh_http_url(s->http),
         chat ? "chat/completions" : "completions", key ? " -H \"Authorization: Bearer $KEY\"" : "",
         chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]"
              : "\"prompt\":\"The capital of France is\"");
  fflush(stdout);
}

/* --- The run: a line every ten seconds under load --- */

static void on_every(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  server *v = ctx;
  sh_stats now;
  if (v->s.phase != SH_PHASE_READY && v->s.phase != SH_PHASE_DRAINING) return;
  sh_engine_stats(v->s.engine, &now);
  int64_t ns = sh_now_ns();
  double seconds = (double)(ns - v->last_ns) / 1e9;
  bool worked =
      now.running || now.waiting || now.prompt_tokens != v->last.prompt_tokens || now.generation_tokens != v->last.generation_tokens;
  if (worked && seconds > 0)
    sh_log(SH_LOG_INFO, "running %lld, waiting %lld, prompt %.1f tokens/s, generation %.1f tokens/s, KV cache %.1f%%",
           (long long)now.running, (long long)now.waiting, (double)(now.prompt_tokens - v->last.prompt_tokens) / seconds,
           (double)(now.generation_tokens - v->last.generation_tokens) / seconds,
           now.pages_total ? 100.0 * (double)now.pages_used / (double)now.pages_total : 0.0);
  v->last = now;
  v->last_ns = ns;
}

/* --- The end --- */

static void on_drain(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  server *v = ctx;
  if (!v->s.n_calls && sh_http_quiet(v->s.http)) {
    sh_loop_stop(v->s.loop);
    return;
  }
  if (sh_now_ns() < v->drain_until_ns) return;
  if (v->cancelled) {
    sh_loop_stop(v->s.loop);
    return;
  }
  sh_log(SH_LOG_WARN, "%d requests did not end in %lld s and are cancelled", v->s.n_calls, (long long)v->s.opt->shutdown_timeout);
  v->cancelled = true;
  v->drain_until_ns = sh_now_ns() + (int64_t)FLUSH_MS * 1000000;
  for (sh_call *c = v->s.calls; c; c = c->next)
    if (c->gen && !c->working) sh_gen_cancel(c->gen);
}

static void on_signal(evutil_socket_t sig, short what, void *ctx) {
  (void)what;
  server *v = ctx;
  event_del(v->sigint); /* from now on their default action */
  event_del(v->sigterm);
  sh_log(SH_LOG_INFO, "%s: %d requests are being answered; a second signal ends at once", strsignal((int)sig), v->s.n_calls);
  if (v->s.phase != SH_PHASE_READY) {
    sh_loop_stop(v->s.loop);
    return;
  }
  struct timeval tv = {0, DRAIN_CHECK_MS * 1000};
  v->s.phase = SH_PHASE_DRAINING;
  v->drain_until_ns = sh_now_ns() + v->s.opt->shutdown_timeout * 1000000000;
  sh_engine_drain(v->s.engine);
  sh_http_close_idle(v->s.http);
  event_add(v->drain, &tv);
}

/* --- Setting up and taking down --- */

/* As many open files as the system allows; returns the connections that leaves. */
static int raise_file_limit(int64_t wanted) {
  struct rlimit r;
  const int64_t reserve = 64; /* weights, logs, the loop's own */
  if (getrlimit(RLIMIT_NOFILE, &r) != 0) return 256;
  if (r.rlim_cur < r.rlim_max) {
    rlim_t soft = r.rlim_cur;
    r.rlim_cur = r.rlim_max < 1048576 ? r.rlim_max : 1048576;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0) r.rlim_cur = soft;
  }
  int64_t room = (int64_t)(r.rlim_cur < 1048576 ? r.rlim_cur : 1048576) - reserve;
  if (room < 16) room = 16;
  return (int)(wanted && wanted < room ? wanted : room);
}

static int set_names(sh_server *s) {
  const sh_strlist *l = &s->opt->served_names;
  s->n_names = l->n ? l->n : 1;
  s->names = sh_arena_array(s->arena, (size_t)s->n_names, sizeof *s->names);
  if (!s->names) return SH_ERR_NOMEM;
  for (int i = 0; i < s->n_names; i++) s->names[i] = l->n ? l->v[i] : s->opt->model;
  s->fingerprint = sh_arena_printf(s->arena, "sheng-%s-%08x", SHENG_VERSION, (unsigned)sh_hash(s->opt->model, strlen(s->opt->model), 0));
  return s->fingerprint ? SH_OK : SH_ERR_NOMEM;
}

/* --generation-config FOLDER: its generation_config.json, which must be there. */
static int read_generation_config(server *v, sh_error *e) {
  const char *where = v->s.opt->generation_config;
  sh_json *config = NULL;
  char *text = NULL;
  size_t n = 0;
  if (!strcmp(where, "auto") || !strcmp(where, "vllm")) return SH_OK;
  bool folder = sh_dir_exists(where);
  char *path = folder ? sh_path_join(where, "generation_config.json") : sh_strdup(where);
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = folder ? sh_file_read_regular(path, 1 << 20, &text, &n, e) : sh_file_read(path, 1 << 20, &text, &n, e);
  if (rc == SH_OK && (rc = sh_json_parse(text, n, NULL, v->s.arena, &config, e)) != SH_OK) sh_fail_in(e, rc, "%s", path);
  if (rc == SH_OK && !sh_json_is(config, SH_JSON_OBJECT)) rc = sh_fail(e, SH_ERR_FORMAT, "%s: a JSON object is wanted", path);
  if (rc != SH_OK) sh_fail_in(e, rc, "--generation-config");
  v->generation_config = config;
  sh_free(text);
  sh_free(path);
  return rc;
}

static int read_kwargs(sh_server *s, sh_error *e) {
  const char *text = s->opt->default_kwargs;
  sh_json *v = NULL;
  if (!text || !*text) return SH_OK;
  int rc = sh_json_parse(text, strlen(text), NULL, s->arena, &v, e);
  s->default_kwargs = v;
  return rc;
}

static int open_http(server *v, sh_error *e) {
  const sh_serve_options *o = v->s.opt;
  const sh_http_limits limits = {
      .max_head = MAX_HEAD,
      .max_body = (size_t)o->max_body_size,
      .max_bodies = (size_t)o->max_body_size * 8,
      .idle_s = IDLE_S,
      .stall_s = STALL_S,
      .max_connections = raise_file_limit(o->max_connections),
  };
  const sh_http_handler handler = {&v->s, sh_api_head, sh_api_request, sh_api_gone, sh_api_writable, sh_api_error_body};
  int rc = sh_http_new(&v->s.http, sh_loop_base(v->s.loop), o->host, (int)o->port, &limits, &handler, e);
  if (rc == SH_OK)
    sh_log(SH_LOG_INFO, "listening on %s%s, at most %d connections", sh_http_url(v->s.http),
           sh_http_everywhere(v->s.http) ? " and on all interfaces" : "", limits.max_connections);
  return rc;
}

static int open_events(server *v, sh_error *e) {
  struct event_base *base = sh_loop_base(v->s.loop);
  struct timeval every = {LOG_EVERY_S, 0};
  v->sigint = evsignal_new(base, SIGINT, on_signal, v);
  v->sigterm = evsignal_new(base, SIGTERM, on_signal, v);
  v->every = event_new(base, -1, EV_PERSIST, on_every, v);
  v->drain = event_new(base, -1, EV_PERSIST, on_drain, v);
  if (!v->sigint || !v->sigterm || !v->every || !v->drain || event_add(v->sigint, NULL) || event_add(v->sigterm, NULL) ||
      event_add(v->every, &every))
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  return SH_OK;
}

static int start_engine(server *v, const char *chat_template, sh_error *e) {
  starter *st = &v->starter;
  st->srv = &v->s;
  st->done.fn = on_started;
  sh_serve_engine_options(v->s.opt, chat_template, &st->engine_options);
  if (pthread_create(&st->thread, NULL, starter_main, st) != 0) return sh_fail(e, SH_ERR_IO, "a thread could not be started");
  st->running = true;
  return SH_OK;
}

static void log_configuration(const sh_serve_options *o) {
  sh_buf b;
  sh_buf_init(&b, 64 << 10);
  sh_opt_effective(sh_serve_option_table, o, &sh_serve_option_defaults, &b);
  sh_log(SH_LOG_INFO, "sheng %s serves %s", SHENG_VERSION, o->model);
  sh_log(SH_LOG_INFO, "options: %s", b.len ? b.p : "all at their defaults");
  sh_buf_free(&b);
}

/* Accepts a half-built server. Threads end before what they use. */
static void server_free(server *v) {
  sh_server *s = &v->s;
  if (v->starter.running) pthread_join(v->starter.thread, NULL);
  if (!s->engine) s->engine = v->starter.engine; /* it came up too late to be taken over */
  sh_workers_free(s->workers);
  for (sh_call *c = s->calls, *next; c; c = next) {
    next = c->next;
    c->working = false;
    if (!c->http) sh_call_free(c);
  }
  sh_http_free(s->http); /* frees the other calls, by gone() */
  sh_engine_close(s->engine);
  struct event *events[] = {v->sigint, v->sigterm, v->every, v->drain};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    if (events[i]) event_free(events[i]);
  sh_loop_free(s->loop);
  sh_arena_free(s->arena);
  sh_free(v);
}

int sh_server_run(const sh_serve_options *o, const char *chat_template, sh_error *e) {
  server *v = sh_calloc(1, sizeof *v);
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  sh_server *s = &v->s;
  sh_log_level level = SH_LOG_INFO;
  int rc;
  s->opt = o;
  s->started = sh_unix_time();
  s->bos = s->eos = "";
  v->error = e;
  if (sh_log_level_parse(o->log_level, &level) == SH_OK) sh_log_set_level(level);
  log_configuration(o);
  sh_gen_defaults_read(NULL, &s->defaults);
  s->arena = sh_arena_new(64 << 20);
  if (!s->arena || set_names(s) != SH_OK) {
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    goto out;
  }
  if ((rc = read_kwargs(s, e)) != SH_OK || (rc = read_generation_config(v, e)) != SH_OK) goto out;
  if ((rc = sh_loop_new(&s->loop, e)) != SH_OK || (rc = open_http(v, e)) != SH_OK || (rc = open_events(v, e)) != SH_OK) goto out;
  if ((rc = sh_workers_new(&s->workers, TEXT_WORKERS, MAX_QUEUED_TEXT, e)) != SH_OK || (rc = start_engine(v, chat_template, e)) != SH_OK)
    goto out;
  rc = sh_loop_run(s->loop, e);
  if (rc == SH_OK) rc = v->rc;
  if (rc == SH_OK) sh_log(SH_LOG_INFO, "stopped");
out:
  server_free(v);
  return rc;
}
