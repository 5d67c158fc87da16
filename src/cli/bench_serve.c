/* `sheng bench serve URL`: reads the options, shows how far the load is, prints and writes what was measured. Main thread.
 *
 * Option names are those of `vllm bench serve` where the meaning is the same. The files to write are opened before the first request: a
 * folder that does not exist is said at once and not after an hour. */
#include "cli/bench_serve.h"

#include "base/file.h"
#include "base/pool.h"
#include "bench/serve.h"
#include "cli/cli.h"
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_OUT = 256 << 20, N_FILES = 2, MAX_LIST = SH_BSERVE_MAX_ROWS, BAR = 24, DEFAULT_PROMPTS = 100 };

typedef struct options {
  const char *model, *endpoint, *input_len, *output_len, *concurrency, *request_rate, *goodput, *api_key, *csv, *html;
  sh_strlist headers;
  int64_t num_prompts, shared_prefix, prefix_groups, warmup, seed;
  double burstiness, duration, temperature, timeout;
  bool ignore_eos, json;
} options;

static const options DEFAULTS = {
    .endpoint = "chat", .input_len = "256", .output_len = "128", .prefix_groups = 1, .warmup = 1, .burstiness = 1, .timeout = 600};

#define AT(f) offsetof(options, f)
#define WHAT "What to ask"
#define LOAD "How much at a time"
#define SERVER "The server"
#define OUTPUT "Output"
static const sh_opt TABLE[] = {
    {"model", NULL, SH_OPT_STR, AT(model), 0, 0, NULL, NULL, SERVER, "NAME", "The model to name; without it the first of /v1/models."},
    {"endpoint", NULL, SH_OPT_ENUM, AT(endpoint), 0, 0, "chat|completions", NULL, SERVER, NULL, "/v1/chat/completions or /v1/completions."},
    {"api-key", NULL, SH_OPT_STR, AT(api_key), 0, 0, NULL, "OPENAI_API_KEY", SERVER, "KEY", "Sent as Authorization: Bearer KEY."},
    {"header", NULL, SH_OPT_LIST, AT(headers), 0, 0, NULL, NULL, SERVER, "\"NAME: VALUE\"", "A header for every request; repeatable."},
    {"timeout", NULL, SH_OPT_FLOAT, AT(timeout), 0.001, 86400, NULL, NULL, SERVER, "SECONDS",
     "A request that takes longer, from its start to its end, has failed."},

    {"input-len", NULL, SH_OPT_STR, AT(input_len), 0, 0, NULL, NULL, WHAT, "TOKENS",
     "Length of prompts: N, LOW-HIGH (uniform), normal:MEAN,SD, or file:FILE.jsonl with lines of {\"messages\"} or {\"prompt\"} and an "
     "optional max_tokens."},
    {"output-len", NULL, SH_OPT_STR, AT(output_len), 0, 0, NULL, NULL, WHAT, "TOKENS",
     "max_tokens of answers, in the same forms; a max_tokens of the prompts' file wins over numbers."},
    {"shared-prefix", NULL, SH_OPT_INT, AT(shared_prefix), 0, SH_BLEN_MAX, NULL, NULL, WHAT, "TOKENS",
     "Tokens before every prompt that the prompts of a group share: a system message, or the beginning of a completion."},
    {"prefix-groups", NULL, SH_OPT_INT, AT(prefix_groups), 1, 1e6, NULL, NULL, WHAT, "N", "Different shared prefixes, taken in turn."},
    {"ignore-eos", NULL, SH_OPT_FLAG, AT(ignore_eos), 0, 0, NULL, NULL, WHAT, NULL,
     "Ask the server to go on to max_tokens (sheng, vLLM, llama.cpp)."},
    {"temperature", NULL, SH_OPT_FLOAT, AT(temperature), -1, 1e6, NULL, NULL, WHAT, "X", "Sent with every request; -1 sends none."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 9007199254740992.0, NULL, NULL, WHAT, "N",
     "The same seed sends the same prompts, lengths and arrivals."},

    {"concurrency", "max-concurrency", SH_OPT_STR, AT(concurrency), 0, 0, NULL, NULL, LOAD, "N,N,...",
     "Closed loop: so many requests at once, one measurement for each number; with --request-rate a limit. 1 when neither is given."},
    {"request-rate", NULL, SH_OPT_STR, AT(request_rate), 0, 0, NULL, NULL, LOAD, "X,X,...",
     "Open loop: so many requests arrive per second whatever the server does, one measurement for each; inf is all at once."},
    {"burstiness", NULL, SH_OPT_FLOAT, AT(burstiness), 0.01, 1000, NULL, NULL, LOAD, "X",
     "Shape of the gaps between arrivals: 1 is a Poisson process, less comes in bursts, more is even."},
    {"num-prompts", NULL, SH_OPT_INT, AT(num_prompts), 0, 1e9, NULL, NULL, LOAD, "N",
     "Requests of a measurement; 0 is 100, or no limit with --duration."},
    {"duration", NULL, SH_OPT_FLOAT, AT(duration), 0, 1e7, NULL, NULL, LOAD, "SECONDS",
     "Requests start for so long; those under way are waited for. 0: by number alone."},
    {"warmup", "num-warmups", SH_OPT_INT, AT(warmup), 0, 1e6, NULL, NULL, LOAD, "N", "Requests before the first measurement, not counted."},

    {"goodput", NULL, SH_OPT_STR, AT(goodput), 0, 0, NULL, NULL, OUTPUT, "LIMITS",
     "Count requests within limits in ms, such as ttft:200,tpot:50,e2el:2000."},
    {"json", NULL, SH_OPT_FLAG, AT(json), 0, 0, NULL, NULL, OUTPUT, NULL, "Print one JSON object in place of the tables."},
    {"csv", NULL, SH_OPT_STR, AT(csv), 0, 0, NULL, NULL, OUTPUT, "FILE", "Write a line for each measurement."},
    {"html", NULL, SH_OPT_STR, AT(html), 0, 0, NULL, NULL, OUTPUT, "FILE", "Write one HTML page with plots."},
    {0},
};
#undef AT

void sh_cmd_bench_serve_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

/* ---- What is shown ---- */

typedef struct show {
  sh_bserve *r;
  bool json, tty, drawn;
} show;

static void clear(show *s) {
  if (s->drawn) fputs("\r\033[K", stderr);
  s->drawn = false;
}

static void on_progress(void *ctx, const sh_bserve_progress *p) {
  show *s = ctx;
  char bar[BAR + 1], line[256], of[32] = "";
  struct winsize w;
  if (!s->tty) return;
  double by_number = p->total > 0 ? (double)p->ended / (double)p->total : 0, by_time = p->duration > 0 ? p->seconds / p->duration : 0;
  double part = by_number > by_time ? by_number : by_time;
  if (part > 1) part = 1;
  for (int i = 0; i < BAR; i++) bar[i] = i < (int)(part * BAR) ? '#' : '.';
  bar[BAR] = 0;
  if (p->total > 0) snprintf(of, sizeof of, "/%lld", (long long)p->total);
  char what[48] = "warm-up";
  if (p->row >= 0) snprintf(what, sizeof what, "%d of %d", p->row + 1, p->n_rows);
  snprintf(line, sizeof line, "%s [%s] %lld%s done, %lld running, %lld failed, %.1f tok/s, %.0f s", what, bar, (long long)p->ended, of,
           (long long)(p->started - p->ended), (long long)p->failed, p->output_tokens_per_s, p->seconds);
  int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
  fprintf(stderr, "\r\033[K%.*s", columns - 1, line); /* a line that wraps cannot be rewritten */
  fflush(stderr);
  s->drawn = true;
}

static int print(show *s, const sh_buf *b) {
  clear(s);
  if (b->failed || (b->len > 0 && fwrite(b->p, 1, b->len, stdout) != b->len) || fflush(stdout) != 0) return SH_ERR_IO;
  return 0;
}

static void on_row(void *ctx, const sh_bserve_row *row) {
  show *s = ctx;
  sh_buf b;
  if (s->json) return;
  sh_buf_init(&b, 1 << 20);
  sh_bserve_write_row(s->r, row, &b);
  print(s, &b); /* a standard output that is gone is said at the end */
  sh_buf_free(&b);
}

/* ---- Files ---- */

static int write_all(const sh_bserve *r, const options *o, sh_file_out files[N_FILES], show *s, sh_error *e) {
  const char *paths[N_FILES] = {o->csv, o->html};
  static void (*const writers[N_FILES])(const sh_bserve *, sh_buf *) = {sh_bserve_write_csv, sh_bserve_write_html};
  int rc = 0;
  sh_buf b;
  sh_buf_init(&b, MAX_OUT);
  if (o->json) sh_bserve_write_json(r, &b);
  else if (r->n_rows > 1) sh_bserve_write_summary(r, &b);
  if (b.failed) rc = sh_fail(e, b.failed, "the result does not fit in memory");
  else if (print(s, &b) < 0) rc = sh_fail(e, SH_ERR_IO, "the result cannot be written to the standard output");
  for (int i = 0; rc == 0 && i < N_FILES; i++) {
    if (!paths[i]) continue;
    sh_buf_reset(&b);
    writers[i](r, &b);
    rc = b.failed ? sh_fail(e, b.failed, "the result does not fit in memory") : sh_file_out_write(&files[i], b.p, b.len, e);
    if (rc == 0) rc = sh_file_out_commit(&files[i], e);
  }
  sh_buf_free(&b);
  return rc;
}

/* ---- The command ---- */

/* Lists and distributions out of their texts. */
typedef struct lists {
  int64_t concurrency[MAX_LIST];
  double rates[MAX_LIST];
} lists;

static int settle(const options *o, lists *l, sh_bserve_opts *out, sh_error *e) {
  *out = (sh_bserve_opts){.model = o->model,
                          .api_key = o->api_key,
                          .headers = o->headers.v,
                          .n_headers = o->headers.n,
                          .chat = strcmp(o->endpoint, "chat") == 0,
                          .ignore_eos = o->ignore_eos,
                          .shared = o->shared_prefix,
                          .groups = o->prefix_groups,
                          .temperature = o->temperature,
                          .concurrency = l->concurrency,
                          .rates = l->rates,
                          .burstiness = o->burstiness,
                          .duration_s = o->duration,
                          .timeout_s = o->timeout,
                          .prompts = o->num_prompts,
                          .warmup = o->warmup,
                          .seed = (uint64_t)o->seed};
  if (out->prompts == 0 && o->duration == 0) out->prompts = DEFAULT_PROMPTS;
  int rc = sh_blen_parse(&out->input, "--input-len", o->input_len, e);
  if (rc == 0) rc = sh_blen_parse(&out->output, "--output-len", o->output_len, e);
  if (rc == 0 && o->goodput) rc = sh_bgoal_parse(&out->goal, o->goodput, e);
  const char *concurrency = o->concurrency ? o->concurrency : o->request_rate ? NULL : "1";
  if (rc == 0 && concurrency) rc = sh_blist_counts(l->concurrency, MAX_LIST, &out->n_concurrency, "--concurrency", concurrency, e);
  if (rc == 0 && o->request_rate) rc = sh_blist_rates(l->rates, MAX_LIST, &out->n_rates, "--request-rate", o->request_rate, e);
  return rc;
}

/* Measures and writes. The exit status: a failure too when not one request was answered. */
static int measure(const options *o, sh_bserve_opts *so, sh_error *e) {
  const char *paths[N_FILES] = {o->csv, o->html};
  sh_file_out files[N_FILES] = {{0}};
  sh_bserve r = {0};
  show s = {.r = &r, .json = o->json, .tty = isatty(STDERR_FILENO) == 1};
  int rc = 0, status = SH_EXIT_OK;
  int64_t done = 0;
  so->row_done = on_row;
  so->progress = on_progress;
  so->ctx = &s;
  for (int i = 0; rc == 0 && i < N_FILES; i++)
    if (paths[i]) rc = sh_file_out_open(&files[i], paths[i], e);
  if (rc == 0) rc = sh_bserve_run(&r, so, e);
  clear(&s);
  for (int i = 0; i < r.n_rows; i++) done += r.rows[i].done;
  if (rc == 0) rc = write_all(&r, o, files, &s, e);
  for (int i = 0; i < N_FILES; i++) sh_file_out_abandon(&files[i]);
  if (rc == 0 && r.interrupted) rc = sh_fail(e, SH_ERR_CANCELLED, "interrupted; what was measured so far is shown");
  else if (rc == 0 && done == 0) rc = sh_fail(e, SH_ERR_IO, "not one request was answered");
  if (rc < 0) status = sh_cli_fail("bench serve", e, true);
  sh_bserve_free(&r);
  return status;
}

int sh_cmd_bench_serve(int argc, char **argv) {
  sh_error e = {0};
  options o = DEFAULTS;
  lists l;
  sh_bserve_opts so;
  const char *url = NULL;
  bool done = false;
  const sh_cli_parse p = {.name = "bench serve",
                          .usage = "sheng bench serve [URL] [options]   (URL: http://127.0.0.1:8000 when none is given)",
                          .table = TABLE,
                          .opts = &o,
                          .defaults = &DEFAULTS};
  int status = sh_cli_options(&p, argc, argv, &url, &done);
  if (status == SH_EXIT_OK && !done) {
    if (settle(&o, &l, &so, &e) < 0) {
      status = sh_cli_fail("bench serve", &e, true);
    } else {
      so.url = url ? url : "http://127.0.0.1:8000";
      status = measure(&o, &so, &e);
    }
  }
  if (o.headers.private_cap > 0) sh_free((void *)o.headers.v);
  return status;
}
