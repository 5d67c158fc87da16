/* The load generator. One thread: an event loop that sends, reads and keeps the clock.
 *
 * A closed loop has `concurrency` requests under way: when one ends the next begins. An open loop lets requests arrive by a clock of its
 * own, whatever the server does; with a limit on top they wait here, and the wait is reported apart (it is not part of the latencies, as
 * with vLLM's --max-concurrency). Both are one mechanism: arrivals raise `due`, and pump() starts what is due while there is room.
 *
 * Requests are made when they start, from (seed, row, index), so a run of any length needs no memory for prompts, and the same seed sends
 * the same requests at the same times. A row ends when all its requests have ended; a duration stops the starts only.
 *
 * Refused alternative: threads with blocking sockets. Their switches would be on the machine whose server is measured; one thread spends
 * some 25 us on a request (bench/serve.md), and every row says how much that was (cpu). */
#include "bench/serve.h"

#include "base/pool.h"
#include "bench/serve_conn.h"
#include "bench/serve_req.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum {
  PROGRESS_US = 200000,
  PAUSE_US = 100000,    /* before the next request after a connection that failed: a dead server is not hammered */
  MAX_BODY = 256 << 20, /* bytes of a request */
  MAX_TEXT = 8 << 20,   /* bytes of an answer that is not streamed */
  STREAM_ARRIVAL = 16,
  WARMUP_ROW = 1 << 20, /* a row number of its own for the texts of the warm-up */
};

static const int64_t PROBE_WORDS[2] = {32, 160};

typedef struct run {
  const sh_bserve_opts *o;
  sh_bserve *r;
  struct event_base *base;
  struct event *sigint, *sigterm, *arrive, *deadline, *tick, *resume;
  sh_bclient *client;
  sh_bprompts prompts;
  sh_breq *free_reqs, *active_reqs;
  sh_buf body;
  const char *path;
  int row_number, n_rows;
  /* The row under way. */
  sh_bserve_row *row;
  sh_bsamples ttft, tpot, itl, e2el, late;
  sh_brng arrivals, starts; /* the same gaps twice: of those that arrive and of those that start */
  double next_arrival_s, next_start_s;
  int64_t begin_ns, last_ns, total, due, active, output_seen;
  bool stopping, failed_alloc;
} run;

static double seconds_since(const run *v, int64_t ns) { return (double)(ns - v->begin_ns) / 1e9; }

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void add_timer(struct event *ev, double seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds > 1e9) seconds = 1e9;
  struct timeval tv = {.tv_sec = (time_t)seconds};
  tv.tv_usec = (suseconds_t)((seconds - (double)tv.tv_sec) * 1e6);
  event_add(ev, &tv);
}

/* ---- What a row counts ---- */

static void count_failure(sh_bserve_row *row, const sh_bcall *c) {
  char name[24];
  int i = 0;
  if (c->how == SH_BEND_STATUS) snprintf(name, sizeof name, "http_%d", c->status);
  else snprintf(name, sizeof name, "%s", sh_bend_name(c->how));
  while (i < row->n_kinds && strcmp(row->kinds[i].name, name) != 0) i++;
  if (i == SH_BSERVE_KINDS) i--;
  if (i == row->n_kinds) {
    row->n_kinds++;
    snprintf(row->kinds[i].name, sizeof row->kinds[i].name, "%s", i == SH_BSERVE_KINDS - 1 ? "other" : name);
    snprintf(row->kinds[i].first, sizeof row->kinds[i].first, "%.255s", c->why.text);
  }
  row->kinds[i].n++;
  row->failed++;
}

static void count_tokens(run *v, const sh_breq *q) {
  sh_bserve_row *row = v->row;
  if (q->completion_tokens < 0 || q->prompt_tokens < 0) row->estimated++;
  row->input_tokens += q->prompt_tokens >= 0 ? q->prompt_tokens : 0;
  row->output_tokens += q->completion_tokens >= 0 ? q->completion_tokens : q->events;
  if (q->cached_tokens >= 0) row->cached_tokens = (row->cached_tokens < 0 ? 0 : row->cached_tokens) + q->cached_tokens;
}

static void count_success(run *v, const sh_breq *q) {
  sh_bserve_row *row = v->row;
  int64_t out = q->completion_tokens >= 0 ? q->completion_tokens : q->events;
  double tpot = out > 1 ? (q->e2el_ms - q->ttft_ms) / (double)(out - 1) : 0;
  const sh_bgoal *goal = &v->o->goal;
  row->done++;
  row->events += q->events;
  count_tokens(v, q);
  row->good += q->ttft_ms <= goal->ttft_ms && tpot <= goal->tpot_ms && q->e2el_ms <= goal->e2el_ms;
  int rc = sh_bsamples_add(&v->ttft, q->ttft_ms) | sh_bsamples_add(&v->e2el, q->e2el_ms) | sh_bsamples_add_all(&v->itl, &q->gaps);
  if (out > 1) rc |= sh_bsamples_add(&v->tpot, tpot);
  if (rc) v->failed_alloc = true;
}

/* ---- Starting and ending requests ---- */

static void pump(run *v);

static void unlink_active(run *v, sh_breq *q) {
  if (q->prev) q->prev->next = q->next;
  else v->active_reqs = q->next;
  if (q->next) q->next->prev = q->prev;
  q->prev = q->next = NULL;
}

static void on_req_end(sh_breq *q) {
  run *v = q->ctx;
  v->active--;
  v->last_ns = q->call.end_ns;
  unlink_active(v, q);
  q->next = v->free_reqs;
  v->free_reqs = q;
  if (q->call.how == SH_BEND_MEMORY) v->failed_alloc = v->stopping = true; /* the next one would fail in the same way, deeper and deeper */
  if (q->call.how == SH_BEND_OK) count_success(v, q);
  else if (q->call.how == SH_BEND_CUT) v->row->unfinished++;
  else count_failure(v->row, &q->call);
  if (q->call.how == SH_BEND_CONNECT && v->row->rate == 0) {
    if (!evtimer_pending(v->resume, NULL)) add_timer(v->resume, PAUSE_US / 1e6);
  } else {
    pump(v);
  }
}

static sh_breq *take_req(run *v) {
  sh_breq *q = v->free_reqs;
  if (q) v->free_reqs = q->next;
  else q = sh_calloc(1, sizeof *q);
  if (!q) return NULL;
  q->end = on_req_end;
  q->ctx = v;
  q->prev = NULL;
  q->next = v->active_reqs;
  if (q->next) q->next->prev = q;
  v->active_reqs = q;
  return q;
}

static bool start_one(run *v) {
  sh_bserve_row *row = v->row;
  int64_t most;
  sh_breq *q = take_req(v);
  sh_buf_reset(&v->body);
  if (!q || sh_bprompt_body(&v->prompts, (uint64_t)v->row_number, (uint64_t)row->started, &v->body, &most) < 0) {
    if (q) {
      unlink_active(v, q);
      q->next = v->free_reqs;
      v->free_reqs = q;
    }
    v->failed_alloc = v->stopping = true;
    return false;
  }
  if (row->rate > 0) {
    double late = seconds_since(v, sh_now_ns()) - v->next_start_s;
    if (sh_bsamples_add(&v->late, late > 0 ? late * 1e3 : 0) < 0) v->failed_alloc = true;
    v->next_start_s += sh_barrival_gap(&v->starts, row->rate, v->o->burstiness);
  }
  row->started++;
  v->active++;
  if (v->active > row->peak) row->peak = v->active;
  sh_breq_start(q, v->client, v->path, &v->body);
  return true;
}

/* Starts what is due while there is room; ends the loop when nothing is left. */
static void pump(run *v) {
  const sh_bserve_row *row = v->row;
  while (!v->stopping && row->started < v->due && (row->concurrency == 0 || v->active < row->concurrency))
    if (!start_one(v)) break;
  if (v->active == 0 && (v->stopping || (v->total > 0 && row->started >= v->total))) event_base_loopbreak(v->base);
}

static void on_resume(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  pump(ctx);
}

static void on_arrive(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  run *v = ctx;
  double now = seconds_since(v, sh_now_ns());
  while ((v->total == 0 || v->due < v->total) && v->next_arrival_s <= now) {
    v->due++;
    v->next_arrival_s += sh_barrival_gap(&v->arrivals, v->row->rate, v->o->burstiness);
  }
  if (!v->stopping && (v->total == 0 || v->due < v->total)) add_timer(v->arrive, v->next_arrival_s - now);
  pump(v);
}

static void on_deadline(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  run *v = ctx;
  v->stopping = true;
  pump(v);
}

static void on_signal(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  run *v = ctx;
  v->r->interrupted = v->stopping = true;
  v->last_ns = sh_now_ns();
  while (v->active_reqs) sh_bclient_cut(&v->active_reqs->call);
  event_base_loopbreak(v->base);
}

static void on_tick(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  run *v = ctx;
  const sh_bserve_row *row = v->row;
  if (!v->o->progress || !row) return;
  double s = seconds_since(v, sh_now_ns());
  const sh_bserve_progress p = {.row = v->row_number == WARMUP_ROW ? -1 : v->row_number,
                                .n_rows = v->n_rows,
                                .started = row->started,
                                .ended = row->done + row->failed,
                                .failed = row->failed,
                                .total = v->total,
                                .seconds = s,
                                .duration = v->o->duration_s,
                                .output_tokens_per_s = s > 0 ? (double)row->output_tokens / s : 0};
  v->o->progress(v->o->ctx, &p);
}

/* ---- A row ---- */

/* Runs `total` requests (0: until the duration is over). */
static int run_row(run *v, sh_bserve_row *row, int number, int64_t total, double duration_s, sh_error *e) {
  int64_t opened = sh_bclient_connections(v->client), resent = sh_bclient_resent(v->client);
  double cpu = cpu_seconds();
  v->row = row;
  v->row_number = number;
  v->total = total;
  v->due = row->rate > 0 ? 0 : total > 0 ? total : INT64_MAX;
  v->active = 0;
  v->stopping = false;
  v->ttft.n = v->tpot.n = v->itl.n = v->e2el.n = v->late.n = 0;
  v->arrivals = v->starts = sh_brng_at(v->o->seed, STREAM_ARRIVAL, 0);
  v->next_arrival_s = v->next_start_s = 0;
  row->cached_tokens = -1;
  v->begin_ns = v->last_ns = sh_now_ns();
  if (duration_s > 0) add_timer(v->deadline, duration_s);
  /* the first step is taken by the loop itself */
  add_timer(row->rate > 0 ? v->arrive : v->resume, 0);
  if (event_base_dispatch(v->base) < 0) return sh_fail(e, SH_ERR_IO, "the event loop failed");
  event_del(v->arrive);
  event_del(v->deadline);
  event_del(v->resume);
  row->seconds = seconds_since(v, v->last_ns);
  row->connections = sh_bclient_connections(v->client) - opened;
  row->resent = sh_bclient_resent(v->client) - resent;
  row->cpu = row->seconds > 0 ? (cpu_seconds() - cpu) / row->seconds : 0;
  sh_bsummary_of(&row->ttft, &v->ttft);
  sh_bsummary_of(&row->tpot, &v->tpot);
  sh_bsummary_of(&row->itl, &v->itl);
  sh_bsummary_of(&row->e2el, &v->e2el);
  sh_bsummary_of(&row->late, &v->late);
  v->row = NULL;
  return v->failed_alloc ? sh_fail(e, SH_ERR_NOMEM, "a request or its measurements do not fit in memory") : 0;
}

/* ---- Before the rows: single calls that are not streamed ---- */

typedef struct plain {
  sh_bcall call;
  sh_buf text;
  struct event_base *base;
  bool over;
} plain;

static int plain_body(sh_bcall *c, const char *p, size_t n, int64_t now_ns, sh_error *e) {
  plain *q = c->ctx;
  (void)now_ns;
  if (sh_buf_put(&q->text, p, n) == 0) return 0;
  return sh_fail(e, q->text.failed, "the answer is longer than %d bytes", MAX_TEXT);
}

static void plain_end(sh_bcall *c) {
  plain *q = c->ctx;
  q->over = true;
  event_base_loopbreak(q->base);
}

/* The answer's body into *text. */
static int fetch(run *v, const char *path, const sh_buf *body, sh_buf *text, sh_error *e) {
  plain q = {.call = {.body = plain_body, .end = plain_end}, .base = v->base};
  q.call.ctx = &q;
  sh_buf_init(&q.text, MAX_TEXT);
  sh_bclient_start(v->client, &q.call, path, body);
  while (!q.over && !v->r->interrupted)
    if (event_base_dispatch(v->base) < 0) break;
  if (!q.over) sh_bclient_cut(&q.call);
  int rc = q.call.how == SH_BEND_OK ? 0 : sh_fail(e, v->r->interrupted ? SH_ERR_CANCELLED : SH_ERR_IO, "%s", q.call.why.text);
  *text = q.text;
  sh_bcall_free(&q.call);
  return rc;
}

/* The first model that the server lists. */
static int find_model(run *v, sh_error *e) {
  sh_buf text;
  sh_json *list = NULL;
  int rc = fetch(v, "/v1/models", NULL, &text, e);
  if (rc == 0) {
    sh_arena *a = sh_arena_new(64 << 20);
    rc = a ? sh_json_parse(text.p ? text.p : "", text.len, NULL, a, &list, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
    const sh_json *data = rc == 0 ? sh_json_get(list, "data") : NULL;
    const sh_json *id = sh_json_is(data, SH_JSON_ARRAY) && data->len ? sh_json_get(&data->items[0], "id") : NULL;
    if (rc == 0 && !(sh_json_is(id, SH_JSON_STRING) && id->len > 0 && id->len < sizeof v->r->model))
      rc = sh_fail(e, SH_ERR_FORMAT, "the answer lists no model");
    if (rc == 0) snprintf(v->r->model, sizeof v->r->model, "%s", id->s);
    sh_arena_free(a);
  }
  sh_buf_free(&text);
  return rc < 0 ? sh_fail_in(e, rc, "%s/v1/models (name the model with --model)", v->r->url) : 0;
}

static int probe(run *v, int64_t words, int64_t *tokens, sh_error *e) {
  sh_buf text;
  sh_bevent usage;
  sh_buf_reset(&v->body);
  sh_bprompt_probe(&v->prompts, words, &v->body);
  int rc = fetch(v, v->path, &v->body, &text, e);
  if (rc == 0) rc = sh_bevent_read(&usage, text.p ? text.p : "", text.len, e);
  if (rc == 0 && usage.failed) rc = SH_ERR_IO;
  if (rc == 0 && usage.prompt_tokens < 1)
    rc = sh_fail(e, SH_ERR_FORMAT, "the answer has no usage.prompt_tokens; give prompts with --input-len file:FILE.jsonl");
  if (rc == 0) *tokens = usage.prompt_tokens;
  sh_buf_free(&text);
  return rc < 0 ? sh_fail_in(e, rc, "a request of %lld words, to learn how many tokens a word has", (long long)words) : 0;
}

static int calibrate(run *v, sh_error *e) {
  int64_t tokens[2];
  int rc = probe(v, PROBE_WORDS[0], &tokens[0], e);
  if (rc == 0) rc = probe(v, PROBE_WORDS[1], &tokens[1], e);
  if (rc == 0) rc = sh_bprompt_calibrate(&v->prompts, PROBE_WORDS, tokens, e);
  v->r->tokens_per_word = v->prompts.tokens_per_word;
  v->r->overhead = v->prompts.overhead;
  return rc;
}

static int warm_up(run *v, sh_error *e) {
  const sh_bserve_opts *o = v->o;
  int64_t at_once = o->n_concurrency ? o->concurrency[0] : o->warmup;
  if (o->warmup == 0) return 0;
  sh_bserve_row *row = sh_calloc(1, sizeof *row);
  if (!row) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  row->concurrency = at_once < o->warmup ? at_once : o->warmup;
  int rc = run_row(v, row, WARMUP_ROW, o->warmup, 0, e);
  if (rc == 0 && v->r->interrupted) rc = sh_fail(e, SH_ERR_CANCELLED, "interrupted before anything was measured");
  else if (rc == 0 && row->done == 0)
    rc = sh_fail(e, SH_ERR_IO, "all %lld requests of the warm-up failed, the first with: %s (--warmup 0 measures nevertheless)",
                 (long long)row->failed, row->kinds[0].first);
  sh_free(row);
  return rc;
}

/* ---- The run ---- */

static int open_loop(run *v, const sh_burl *url, sh_error *e) {
  struct event_config *cfg = event_config_new();
  if (!cfg) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER); /* arrivals to the microsecond, not to the ms */
  v->base = event_base_new_with_config(cfg);
  event_config_free(cfg);
  if (!v->base) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  v->sigint = evsignal_new(v->base, SIGINT, on_signal, v);
  v->sigterm = evsignal_new(v->base, SIGTERM, on_signal, v);
  v->arrive = evtimer_new(v->base, on_arrive, v);
  v->deadline = evtimer_new(v->base, on_deadline, v);
  v->resume = evtimer_new(v->base, on_resume, v);
  v->tick = event_new(v->base, -1, EV_PERSIST, on_tick, v);
  const struct timeval every = {.tv_usec = PROGRESS_US};
  if (!v->sigint || !v->sigterm || !v->arrive || !v->deadline || !v->resume || !v->tick || event_add(v->sigint, NULL) < 0 ||
      event_add(v->sigterm, NULL) < 0 || event_add(v->tick, &every) < 0)
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  return sh_bclient_new(&v->client, v->base, url, v->o->timeout_s, e);
}

static int add_headers(run *v, sh_error *e) {
  int rc = 0;
  if (v->o->api_key && v->o->api_key[0]) {
    sh_buf line;
    sh_buf_init(&line, 8192);
    sh_buf_printf(&line, "Authorization: Bearer %s", v->o->api_key);
    rc = line.failed ? sh_fail(e, SH_ERR_ARG, "the API key is longer than 8 KiB") : sh_bclient_header(v->client, line.p, NULL);
    if (rc < 0) sh_fail(e, SH_ERR_ARG, "the API key holds a control character or is too long");
    sh_buf_free(&line);
  }
  for (int i = 0; rc == 0 && i < v->o->n_headers; i++) rc = sh_bclient_header(v->client, v->o->headers[i], e);
  return rc;
}

/* Checks what no single option can, and fills the prompts. */
static int prepare(run *v, sh_error *e) {
  const sh_bserve_opts *o = v->o;
  bool file = o->input.kind == SH_BLEN_FILE;
  if (file && o->shared > 0)
    return sh_fail(e, SH_ERR_ARG, "--shared-prefix is put before prompts that are made, not before those of a file");
  if (o->prompts == 0 && o->duration_s <= 0) return sh_fail(e, SH_ERR_ARG, "neither --num-prompts nor --duration says when to stop");
  for (int i = 0; i < o->n_rates; i++)
    if (isinf(o->rates[i]) && o->prompts == 0)
      return sh_fail(e, SH_ERR_ARG, "--request-rate inf sends all requests at once; say how many with --num-prompts");
  v->n_rows = (o->n_rates ? o->n_rates : 1) * (o->n_concurrency ? o->n_concurrency : 1);
  if (v->n_rows > SH_BSERVE_MAX_ROWS)
    return sh_fail(e, SH_ERR_ARG, "--request-rate and --concurrency make %d measurements, at most %d are possible", v->n_rows,
                   SH_BSERVE_MAX_ROWS);
  v->prompts = (sh_bprompts){.chat = o->chat,
                             .input = o->input,
                             .output = o->output,
                             .shared = o->shared,
                             .groups = o->groups > 0 ? o->groups : 1,
                             .ignore_eos = o->ignore_eos,
                             .temperature = o->temperature,
                             .seed = o->seed};
  v->path = o->chat ? "/v1/chat/completions" : "/v1/completions";
  int rc = file ? sh_bfile_load(&v->prompts.inputs, o->input.path, true, false, o->chat, e) : 0;
  if (rc == 0 && o->output.kind == SH_BLEN_FILE) rc = sh_bfile_load(&v->prompts.outputs, o->output.path, false, true, true, e);
  v->r->rows = rc == 0 ? sh_calloc((size_t)v->n_rows, sizeof *v->r->rows) : NULL;
  return rc == 0 && !v->r->rows ? sh_fail(e, SH_ERR_NOMEM, "out of memory") : rc;
}

/* Every connection is a file: as many as the system lets us. */
static void allow_files(void) {
  struct rlimit l;
  if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur >= l.rlim_max) return;
  l.rlim_cur = l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l); /* failing that, connections fail with a message */
}

static int run_rows(run *v, sh_error *e) {
  const sh_bserve_opts *o = v->o;
  int n_rates = o->n_rates ? o->n_rates : 1, n_caps = o->n_concurrency ? o->n_concurrency : 1, rc = 0;
  for (int i = 0; rc == 0 && i < n_rates; i++)
    for (int k = 0; rc == 0 && k < n_caps && !v->r->interrupted; k++) {
      sh_bserve_row *row = &v->r->rows[v->r->n_rows++];
      row->rate = o->n_rates ? o->rates[i] : 0;
      row->concurrency = o->n_concurrency ? o->concurrency[k] : 0;
      rc = run_row(v, row, v->r->n_rows - 1, o->prompts, o->duration_s, e);
      if (rc == 0 && o->row_done) o->row_done(o->ctx, row);
    }
  return rc;
}

static void close_all(run *v) {
  struct event **events[] = {&v->sigint, &v->sigterm, &v->arrive, &v->deadline, &v->resume, &v->tick};
  while (v->free_reqs) {
    sh_breq *q = v->free_reqs;
    v->free_reqs = q->next;
    sh_breq_free(q);
    sh_free(q);
  }
  sh_bclient_free(v->client);
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    if (*events[i]) event_free(*events[i]);
  if (v->base) event_base_free(v->base);
  sh_bfile_free(&v->prompts.inputs);
  sh_bfile_free(&v->prompts.outputs);
  sh_bsamples_free(&v->ttft);
  sh_bsamples_free(&v->tpot);
  sh_bsamples_free(&v->itl);
  sh_bsamples_free(&v->e2el);
  sh_bsamples_free(&v->late);
  sh_buf_free(&v->body);
}

int sh_bserve_run(sh_bserve *r, const sh_bserve_opts *o, sh_error *e) {
  run v = {.o = o, .r = r};
  sh_burl url;
  *r = (sh_bserve){.o = o};
  sh_buf_init(&v.body, MAX_BODY);
  allow_files();
  int rc = sh_burl_parse(&url, o->url, e);
  if (rc == 0) snprintf(r->url, sizeof r->url, "%s", url.shown);
  if (rc == 0) rc = prepare(&v, e);
  if (rc == 0) rc = open_loop(&v, &url, e);
  if (rc == 0) rc = add_headers(&v, e);
  if (rc == 0 && o->model) snprintf(r->model, sizeof r->model, "%s", o->model);
  else if (rc == 0) rc = find_model(&v, e);
  v.prompts.model = r->model;
  if (rc == 0 && o->input.kind != SH_BLEN_FILE) rc = calibrate(&v, e);
  if (rc == 0) rc = warm_up(&v, e);
  if (rc == 0) rc = run_rows(&v, e);
  while (v.active_reqs) sh_bclient_cut(&v.active_reqs->call); /* after a failure in the middle of a row */
  close_all(&v);
  return rc;
}

void sh_bserve_free(sh_bserve *r) {
  sh_free(r->rows);
  *r = (sh_bserve){0};
}
