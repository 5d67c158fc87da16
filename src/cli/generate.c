/* `sheng generate MODEL`: JSON lines of prompts in, JSON lines of answers out, in order, many computed at once.
 *
 * Main thread; the engine has its own and wakes this one through an eventfd. A window of lines is in flight: each holds its request and
 * what came of it so far, and the oldest is printed when it is complete. Input is read only while the window has room, and with poll, so
 * that a program which sends one line and waits for its answer gets it, as well as one that sends a million. A wrong line is answered
 * {"error"} in its place.
 *
 * Fields and their checks are those of /v1/completions (server/params.h); "ids" stands beside "prompt".
 *
 * Refused: one request at a time. Bulk checks are what this is for, and a batch of 16 costs little more than one. */
#include "cli/generate.h"
#include "base/log.h"
#include "cli/cli.h"
#include "server/params.h"
#include "formats/kv.h"
#include "formats/panel.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WINDOW = 256, MAX_LINE = 1 << 30, MAX_ANSWER = 1 << 30, READ_BYTES = 64 << 10 };

typedef struct options {
  const char *dtype, *quantization, *cache_dir, *cpu, *generation_config, *log_level, *head, *kv_cache_dtype;
  int64_t max_model_len, max_num_seqs, max_num_batched_tokens, block_size, threads, memory_limit, seed, step_ms;
  double memory_utilization;
  bool exact;
} options;

#define AT(f) offsetof(options, f)
static const sh_opt TABLE[] = {
    {"generation-config", NULL, SH_OPT_ENUM, AT(generation_config), 0, 0, "auto|vllm", "SHENG_GENERATION_CONFIG", "Sampling", NULL,
     "Sampling defaults: the model's generation_config.json (auto) or none (vllm)."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 9007199254740992.0, NULL, "SHENG_SEED", "Sampling", "N", "Seed of lines that bring none."},
    {"max-model-len", NULL, SH_OPT_INT, AT(max_model_len), 0, 16777216, NULL, "SHENG_MAX_MODEL_LEN", "Capacity", "TOKENS",
     "Prompt and answer together; 0 takes the model's, shortened to what fits in memory."},
    {"max-num-seqs", NULL, SH_OPT_INT, AT(max_num_seqs), 0, 4096, NULL, "SHENG_MAX_NUM_SEQS", "Capacity", "N",
     "Lines computed at once; 0 chooses from the memory, at most 64."},
    {"max-num-batched-tokens", NULL, SH_OPT_INT, AT(max_num_batched_tokens), 0, 65536, NULL, "SHENG_MAX_NUM_BATCHED_TOKENS", "Capacity",
     "TOKENS", "Most tokens of one step; 0 is 2048."},
    {"block-size", NULL, SH_OPT_INT, AT(block_size), 0, 1024, NULL, "SHENG_BLOCK_SIZE", "Capacity", "TOKENS",
     "Tokens of a page of the KV cache; 0 is 16."},
    {"step-ms", NULL, SH_OPT_INT, AT(step_ms), 0, 10000, NULL, "SHENG_STEP_MS", "Capacity", "MS",
     "Target time of a step that reads prompts; 0 is 100."},
    {"memory-utilization", "gpu-memory-utilization", SH_OPT_FLOAT, AT(memory_utilization), 0.01, 1, NULL, "SHENG_MEMORY_UTILIZATION",
     "Capacity", "SHARE", "Share of the memory that may be used, weights included."},
    {"memory-limit", NULL, SH_OPT_SIZE, AT(memory_limit), 0, 0, NULL, "SHENG_MEMORY_LIMIT", "Capacity", "SIZE",
     "Count this much as the machine's memory; 0 asks the system."},
    {"dtype", NULL, SH_OPT_ENUM, AT(dtype), 0, 0, "auto|bfloat16|float16|float32|half|float", "SHENG_DTYPE", "Compute", NULL,
     "What the weights are expected to be; they are used as stored, whatever this says."},
    {"quantization", "q", SH_OPT_STR, AT(quantization), 0, 0, NULL, "SHENG_QUANTIZATION", "Compute", "METHOD",
     "Refuse a checkpoint that is not quantized by this method."},
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", "Compute", "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, "SHENG_HEAD", "Compute", "TYPE", SH_HEAD_HELP},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, "SHENG_KV_CACHE_DTYPE", "Compute", "TYPE", SH_KV_HELP},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, "SHENG_EXACT", "Compute", NULL, "float32 everywhere: the reference numbers."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, "SHENG_THREADS", "Compute", "N",
     "Threads that compute; 0 is one per usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", "SHENG_CPU", "Compute", NULL, "Instructions to use at most."},
    {"log-level", NULL, SH_OPT_ENUM, AT(log_level), 0, 0, "error|warning|warn|info|debug", "SHENG_LOG_LEVEL", "Logging", NULL,
     "What is written to stderr."},
    {0},
};
static const options DEFAULTS = {.dtype = "auto",
                                 .cpu = "native",
                                 .head = "auto",
                                 .kv_cache_dtype = "auto",
                                 .generation_config = "auto",
                                 .log_level = "warning",
                                 .memory_utilization = 0.9};

void sh_cmd_generate_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

/* One line in flight. */
typedef struct item {
  sh_request *r; /* NULL: refused; `answer` holds the error */
  bool done;
  sh_ids ids;                    /* drawn */
  sh_buf text, logprobs, prompt; /* text; JSON arrays, begun when asked for */
  sh_jw logprobs_w, prompt_w;
  bool wants_logprobs, wants_prompt;
  sh_buf answer; /* the whole line, once done */
} item;

typedef struct run {
  sh_engine *engine;
  sh_gen_defaults defaults;
  int event; /* eventfd: some request has events */
  item items[WINDOW];
  int first, n; /* a circle */
  sh_buf in;    /* what was read and is not a line yet */
  size_t used;  /* bytes of `in` that were taken as lines */
  bool eof;
} run;

static void on_events(void *ctx) {
  uint64_t one = 1;
  ssize_t n = write(((run *)ctx)->event, &one, sizeof one); /* fails only when the counter is full: then it is readable anyway */
  (void)n;
}

/* --- A line becomes a request
 * ---------------------------------------------------------------------------------------------------------------- */

/* The object without "ids", which the field table does not know. Shares the members. */
static sh_json *without_ids(const sh_json *line, sh_arena *a) {
  sh_json *o = sh_json_new_object(a);
  if (!o) return NULL;
  o->members = sh_arena_array(a, line->len + 1, sizeof *o->members);
  if (!o->members) return NULL;
  for (size_t i = 0; i < line->len; i++)
    if (strcmp(line->members[i].key, "ids") != 0) o->members[o->len++] = line->members[i];
  return o;
}

static int read_ids(const sh_json *list, const char *field, sh_ids *out, sh_error *e) {
  for (size_t i = 0; i < list->len; i++) {
    int64_t id;
    if (sh_json_int(&list->items[i], &id) != SH_OK || id < INT32_MIN || id > INT32_MAX)
      return sh_fail(e, SH_ERR_ARG, "%s[%zu] is not a token id", field, i);
    int rc = sh_ids_push(out, (int32_t)id);
    if (rc) return sh_fail(e, rc, "%s has too many tokens", field);
  }
  return 0;
}

static int read_prompt(const run *g, const sh_json *line, const sh_params *p, sh_ids *ids, sh_error *e) {
  const sh_json *list = sh_json_get(line, "ids"), *prompt = sh_json_get(line, "prompt");
  if ((list != NULL) == (prompt != NULL)) return sh_fail(e, SH_ERR_ARG, "one of \"ids\" and \"prompt\" is wanted");
  if (list && !sh_json_is(list, SH_JSON_ARRAY))
    return sh_fail(e, SH_ERR_ARG, "ids: a list of token ids is wanted, found %s", sh_json_type_name(list->type));
  if (list) return read_ids(list, "ids", ids, e);
  if (sh_json_is(prompt, SH_JSON_ARRAY)) return read_ids(prompt, "prompt", ids, e);
  if (!sh_json_is(prompt, SH_JSON_STRING))
    return sh_fail(e, SH_ERR_ARG, "prompt: a string or a list of token ids is wanted, found %s", sh_json_type_name(prompt->type));
  return sh_tok_encode(sh_engine_tokenizer(g->engine), prompt->s, prompt->len, p->add_special_tokens ? SH_TOK_ADD_SPECIAL : 0, ids, e);
}

static int submit(run *g, item *it, const sh_json *line, sh_arena *a, sh_ids *ids, sh_error *e) {
  const sh_params_limits limits = {sh_engine_vocab_size(g->engine), INT32_MAX};
  sh_params p;
  sh_api_error ae;
  sh_request_params q;
  sh_json *fields = without_ids(line, a);
  if (!fields) return sh_fail(e, SH_ERR_NOMEM, "no memory for a line");
  if (sh_params_parse(fields, SH_API_COMPLETION, &limits, a, &p, &ae)) return sh_fail(e, SH_ERR_ARG, "%s", ae.message);
  if (p.n != SH_UNSET && p.n != 1) return sh_fail(e, SH_ERR_ARG, "n must be 1: one answer for a line");
  int rc = read_prompt(g, line, &p, ids, e);
  if (rc) return rc;
  sh_params_fill(&p, &g->defaults, &q);
  q.n = 1;
  q.ids = ids->v;
  q.n_ids = (int)ids->n;
  if (p.max_tokens != SH_UNSET) q.max_tokens = (int)p.max_tokens;
  else q.max_tokens = g->defaults.max_new_tokens != SH_UNSET ? (int)g->defaults.max_new_tokens : 16;
  q.logprobs = p.logprobs == SH_UNSET ? -1 : (int)p.logprobs;
  q.prompt_logprobs = p.prompt_logprobs == SH_UNSET ? -1 : (int)p.prompt_logprobs;
  if ((rc = sh_params_bad_words(&p, sh_engine_tokenizer(g->engine), a, &q, e))) return rc;
  it->wants_logprobs = q.logprobs >= 0;
  it->wants_prompt = q.prompt_logprobs >= 0;
  return sh_request_submit(g->engine, &q, on_events, g, &it->r, e);
}

static void answer_error(item *it, const char *text) {
  sh_jw w;
  sh_buf_reset(&it->answer);
  sh_jw_init(&w, &it->answer);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "error", text);
  sh_jw_end_obj(&w);
  it->done = true;
}

static void take_line(run *g, const char *text, size_t n) {
  if (n && text[n - 1] == '\r') n--;
  if (n == 0) return;
  item *it = &g->items[(g->first + g->n++) % WINDOW];
  *it = (item){0};
  sh_buf_init(&it->text, MAX_ANSWER);
  sh_buf_init(&it->logprobs, MAX_ANSWER);
  sh_buf_init(&it->prompt, MAX_ANSWER);
  sh_buf_init(&it->answer, MAX_ANSWER);
  sh_error e = {0};
  sh_json *line = NULL;
  sh_ids ids = {0};
  sh_arena *a = sh_arena_new((64u << 20) + n * 64);
  int rc = a ? sh_json_parse(text, n, NULL, a, &line, &e) : sh_fail(&e, SH_ERR_NOMEM, "no memory for a line");
  if (rc == SH_OK && !sh_json_is(line, SH_JSON_OBJECT))
    rc = sh_fail(&e, SH_ERR_ARG, "a JSON object is wanted, found %s", sh_json_type_name(line->type));
  if (rc == SH_OK) rc = submit(g, it, line, a, &ids, &e);
  if (rc != SH_OK) answer_error(it, e.text);
  sh_ids_free(&ids);
  sh_arena_free(a);
  if (it->wants_logprobs) {
    sh_jw_init(&it->logprobs_w, &it->logprobs);
    sh_jw_arr(&it->logprobs_w);
  }
  if (it->wants_prompt) {
    sh_jw_init(&it->prompt_w, &it->prompt);
    sh_jw_arr(&it->prompt_w);
    sh_jw_null(&it->prompt_w); /* nothing comes before the first token */
  }
}

/* --- Events become an answer
 * ----------------------------------------------------------------------------------------------------------------- */

static void write_logprob(sh_jw *w, const sh_event *ev) {
  sh_jw_obj(w);
  sh_jw_kint(w, "id", ev->chosen.id);
  sh_jw_kdouble(w, "logprob", (double)ev->chosen.logprob);
  sh_jw_kint(w, "rank", ev->chosen.rank);
  sh_jw_key(w, "top");
  sh_jw_arr(w);
  for (int i = 0; i < ev->n_top; i++) {
    sh_jw_obj(w);
    sh_jw_kint(w, "id", ev->top[i].id);
    sh_jw_kdouble(w, "logprob", (double)ev->top[i].logprob);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

/* An array that was written apart, spliced in as it is. */
static void write_array(sh_jw *w, const char *key, sh_jw *array, sh_buf *b, sh_arena *a) {
  sh_json *v = NULL;
  sh_jw_end_arr(array);
  sh_jw_key(w, key);
  if (b->failed || sh_json_parse(b->p, b->len, NULL, a, &v, NULL)) sh_jw_null(w);
  else sh_jw_value(w, v);
}

static void answer(item *it, const sh_event *ev) {
  static const char *const names[] = {"none", "stop", "length", "abort", "error"};
  if (ev->finish == SH_FINISH_ERROR) {
    answer_error(it, ev->error ? ev->error : "the engine failed");
    return;
  }
  sh_jw w;
  sh_arena *a = sh_arena_new(MAX_ANSWER);
  sh_jw_init(&w, &it->answer);
  sh_jw_obj(&w);
  sh_jw_key(&w, "ids");
  sh_jw_arr(&w);
  for (size_t i = 0; i < it->ids.n; i++) sh_jw_int(&w, it->ids.v[i]);
  sh_jw_end_arr(&w);
  sh_jw_key(&w, "text");
  sh_jw_strn(&w, it->text.p ? it->text.p : "", it->text.len);
  sh_jw_kstr(&w, "finish_reason", names[ev->finish]);
  if (ev->stop_id >= 0) sh_jw_kint(&w, "stop_reason", ev->stop_id);
  if (ev->stop_str) {
    sh_jw_key(&w, "stop_reason");
    sh_jw_strn(&w, ev->stop_str, ev->stop_str_len);
  }
  if (it->wants_logprobs && a) write_array(&w, "logprobs", &it->logprobs_w, &it->logprobs, a);
  if (it->wants_prompt && a) write_array(&w, "prompt_logprobs", &it->prompt_w, &it->prompt, a);
  sh_jw_end_obj(&w);
  sh_arena_free(a);
  if (it->text.failed || it->answer.failed || !a) answer_error(it, "the answer does not fit in memory");
}

static void drain(item *it) {
  sh_event ev;
  while (it->r && !it->done && sh_request_next(it->r, &ev)) {
    sh_buf_put(&it->text, ev.text, ev.text_len);
    switch (ev.type) {
    case SH_EV_PROMPT: write_logprob(&it->prompt_w, &ev); break;
    case SH_EV_TOKEN:
      if (sh_ids_push(&it->ids, ev.id)) it->text.failed = SH_ERR_NOMEM;
      if (it->wants_logprobs) write_logprob(&it->logprobs_w, &ev);
      break;
    case SH_EV_FINISH: answer(it, &ev); break;
    case SH_EV_END: it->done = true; break;
    }
  }
}

static void free_item(item *it) {
  sh_request_free(it->r);
  sh_ids_free(&it->ids);
  sh_buf_free(&it->text);
  sh_buf_free(&it->logprobs);
  sh_buf_free(&it->prompt);
  sh_buf_free(&it->answer);
  *it = (item){0};
}

/* --- The loop
 * -------------------------------------------------------------------------------------------------------------------------------- */

/* Takes whole lines from what was read, as long as the window has room. */
static void take_lines(run *g) {
  while (g->n < WINDOW && g->used < g->in.len) {
    const char *from = g->in.p + g->used, *nl = memchr(from, '\n', g->in.len - g->used);
    if (!nl && !g->eof) break;
    size_t n = nl ? (size_t)(nl - from) : g->in.len - g->used;
    take_line(g, from, n);
    g->used += n + (nl ? 1 : 0);
  }
  if (g->used == 0) return;
  memmove(g->in.p, g->in.p + g->used, g->in.len - g->used);
  g->in.len -= g->used;
  g->used = 0;
}

static int read_more(run *g, sh_error *e) {
  static char buf[READ_BYTES];
  ssize_t n = read(STDIN_FILENO, buf, sizeof buf);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 0;
  if (n < 0) return sh_fail(e, SH_ERR_IO, "cannot read the input: %s", strerror(errno));
  g->eof = n == 0;
  int rc = sh_buf_put(&g->in, buf, (size_t)n);
  return rc ? sh_fail(e, rc, "a line of the input has more than %d bytes", MAX_LINE) : 0;
}

static int print_ready(run *g, sh_error *e) {
  bool any = false;
  while (g->n && g->items[g->first].done) {
    item *it = &g->items[g->first];
    sh_buf_putc(&it->answer, '\n');
    bool ok = !it->answer.failed && fwrite(it->answer.p, 1, it->answer.len, stdout) == it->answer.len;
    free_item(it);
    g->first = (g->first + 1) % WINDOW;
    g->n--;
    any = true;
    if (!ok) return sh_fail(e, SH_ERR_IO, "cannot write the output: %s", strerror(errno));
  }
  if (any && fflush(stdout) != 0) return sh_fail(e, SH_ERR_IO, "cannot write the output: %s", strerror(errno));
  return 0;
}

static int loop(run *g, sh_error *e) {
  int rc = 0;
  while (rc == 0) {
    take_lines(g);
    for (int i = 0; i < g->n; i++) drain(&g->items[(g->first + i) % WINDOW]);
    if ((rc = print_ready(g, e))) break;
    bool full = g->n == WINDOW, more = g->in.len > 0 && (g->eof || memchr(g->in.p, '\n', g->in.len));
    if (!full && more) continue;
    if (g->eof && g->n == 0) break;
    struct pollfd fds[2] = {{.fd = g->event, .events = POLLIN}, {.fd = full || g->eof ? -1 : STDIN_FILENO, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) rc = sh_fail(e, SH_ERR_IO, "poll: %s", strerror(errno));
    uint64_t count;
    if (fds[0].revents & POLLIN && read(g->event, &count, sizeof count) < 0 && errno != EAGAIN)
      rc = sh_fail(e, SH_ERR_IO, "eventfd: %s", strerror(errno));
    if (rc == 0 && fds[1].revents) rc = read_more(g, e);
  }
  return rc;
}

static int generate(const char *model, const options *o, sh_error *e) {
  sh_engine_options eo = {
      .model = model,
      .max_model_len = o->max_model_len,
      .max_num_seqs = o->max_num_seqs,
      .max_num_batched_tokens = o->max_num_batched_tokens,
      .block_size = o->block_size,
      .memory_utilization = o->memory_utilization,
      .memory_limit = o->memory_limit,
      .dtype = o->dtype,
      .quantization = o->quantization,
      .cache_dir = o->cache_dir,
      .exact = o->exact,
      .head = o->head,
      .kv_cache_dtype = o->kv_cache_dtype,
      .threads = o->threads,
      .cpu = o->cpu,
      .step_ms = o->step_ms,
      .seed = (uint64_t)o->seed,
  };
  run *g = sh_calloc(1, sizeof *g);
  if (!g) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  sh_buf_init(&g->in, MAX_LINE);
  g->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int rc = g->event < 0 ? sh_fail(e, SH_ERR_IO, "eventfd: %s", strerror(errno)) : 0;
  if (rc == 0) rc = sh_engine_open(&g->engine, &eo, e);
  if (rc == 0) {
    bool model_defaults = strcmp(o->generation_config, "auto") == 0;
    sh_gen_defaults_read(model_defaults ? sh_engine_generation_config(g->engine) : NULL, &g->defaults);
    rc = sh_engine_start(g->engine, e);
  }
  if (rc == 0) rc = loop(g, e);
  for (int i = 0; i < g->n; i++) free_item(&g->items[(g->first + i) % WINDOW]);
  sh_engine_close(g->engine);
  if (g->event >= 0) close(g->event);
  sh_buf_free(&g->in);
  sh_free(g);
  return rc;
}

int sh_cmd_generate(int argc, char **argv) {
  sh_error e = {0};
  options o = DEFAULTS;
  const char *model = NULL;
  char *path = NULL;
  bool done = false;
  sh_cli_parse p = {.name = "generate",
                    .usage = "sheng generate MODEL [options] < prompts.jsonl",
                    .table = TABLE,
                    .opts = &o,
                    .defaults = &DEFAULTS,
                    .need_model = true};
  int status = sh_cli_options(&p, argc, argv, &model, &done);
  if (status != 0 || done || (status = sh_cli_find_model("generate", model, &path)) != 0) return status;
  sh_log_level level;
  if (sh_log_level_parse(o.log_level, &level) == 0) sh_log_set_level(level);
  status = generate(path, &o, &e) < 0 ? sh_cli_fail("generate", &e, false) : SH_EXIT_OK;
  sh_free(path);
  return status;
}
