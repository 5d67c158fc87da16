/* `sheng run [MODEL]`: a chat in the terminal.
 *
 * Main thread; the engine has its own. A turn renders the whole conversation, submits it and prints text as it becomes certain. SIGINT sets
 * a flag: while an answer is printed it cancels that answer, at the prompt it only starts a new line; the program ends by /exit or the end
 * of the input. Sampling settings are a JSON object checked by the server's own field table, so /set takes the names of the API and nothing
 * is said twice.
 *
 * Lines are edited by the terminal itself. With an input that is no terminal nothing is decorated: every line is a message, every answer
 * ends with a newline.
 *
 * Refused alternative: readline. Its licence and its size are more than a prompt needs. */
#include "cli/run.h"
#include "base/log.h"
#include "cli/cli.h"
#include "ops/small_model.h"
#include "server/params.h"
#include "formats/kv.h"
#include "formats/panel.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MAX_MESSAGE = 64 << 20, TURN_ARENA = 512 << 20, WAIT_MS = 50 };

typedef struct run_options {
  const char *system, *chat_template, *kwargs, *dtype, *cpu, *generation_config, *cache_dir, *head, *kv_cache_dtype;
  int64_t max_tokens, max_model_len, threads, memory_limit, seed;
  double temperature, top_p, memory_utilization;
  bool exact;
} run_options;

#define AT(f) offsetof(run_options, f)
static const sh_opt table[] = {
    {"system", NULL, SH_OPT_STR, AT(system), 0, 0, NULL, "SHENG_SYSTEM", "Chat", "TEXT", "System message of the conversation."},
    {"temperature", "t", SH_OPT_FLOAT, AT(temperature), -1, 1e6, NULL, "SHENG_TEMPERATURE", "Chat", "X",
     "0 is greedy; -1 takes the model's."},
    {"top-p", NULL, SH_OPT_FLOAT, AT(top_p), -1, 1, NULL, "SHENG_TOP_P", "Chat", "X", "-1 takes the model's."},
    {"seed", NULL, SH_OPT_INT, AT(seed), -1, 9007199254740992.0, NULL, "SHENG_SEED", "Chat", "N",
     "The same seed gives the same answers; -1 for none."},
    {"max-tokens", NULL, SH_OPT_INT, AT(max_tokens), 0, 16777216, NULL, "SHENG_MAX_TOKENS", "Chat", "TOKENS",
     "Longest answer; 0 is what the context leaves."},
    {"chat-template", NULL, SH_OPT_STR, AT(chat_template), 0, 0, NULL, "SHENG_CHAT_TEMPLATE", "Chat", "FILE|TEXT",
     "Chat template in place of the model's: a file, or the template itself when it holds {{ or {%."},
    {"chat-template-kwargs", NULL, SH_OPT_STR, AT(kwargs), 0, 0, NULL, "SHENG_CHAT_TEMPLATE_KWARGS", "Chat", "JSON",
     "Template variables, e.g. {\"enable_thinking\": false}."},
    {"max-model-len", NULL, SH_OPT_INT, AT(max_model_len), 0, 16777216, NULL, "SHENG_MAX_MODEL_LEN", "Model", "TOKENS",
     "Conversation and answer together; 0 takes the model's, shortened to what fits in memory."},
    {"memory-utilization", "gpu-memory-utilization", SH_OPT_FLOAT, AT(memory_utilization), 0.01, 1, NULL, "SHENG_MEMORY_UTILIZATION",
     "Model", "SHARE", "Share of the memory that may be used, weights included."},
    {"memory-limit", NULL, SH_OPT_SIZE, AT(memory_limit), 0, 0, NULL, "SHENG_MEMORY_LIMIT", "Model", "SIZE",
     "Count this much as the machine's memory; 0 asks the system."},
    {"dtype", NULL, SH_OPT_ENUM, AT(dtype), 0, 0, "auto|bfloat16|float16|float32", "SHENG_DTYPE", "Model", NULL,
     "What the weights are expected to be."},
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", "Model", "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, "SHENG_HEAD", "Model", "TYPE", SH_HEAD_HELP},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, "SHENG_KV_CACHE_DTYPE", "Model", "TYPE", SH_KV_HELP},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, "SHENG_EXACT", "Model", NULL, "float32 everywhere: the reference numbers."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, "SHENG_THREADS", "Model", "N",
     "Threads that compute; 0 is one per usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", "SHENG_CPU", "Model", NULL, "Instructions to use at most."},
    {0},
};
static const run_options defaults = {.temperature = -1,
                                     .top_p = -1,
                                     .seed = -1,
                                     .memory_utilization = 0.9,
                                     .dtype = "auto",
                                     .cpu = "native",
                                     .head = "auto",
                                     .kv_cache_dtype = "auto"};

void sh_cmd_run_options(const sh_opt **out_table, const void **out_defaults) {
  *out_table = table;
  *out_defaults = &defaults;
}

typedef struct message {
  const char *role;
  char *text;
  size_t len;
} message;

typedef struct session {
  sh_engine *engine;
  sh_arena *arena;       /* settings and template variables */
  sh_json *settings;     /* OBJECT of request fields */
  const sh_json *kwargs; /* OBJECT or NULL */
  sh_gen_defaults defaults;
  message *messages;
  int n, cap;
  bool tty; /* the input is a terminal: prompts */
  bool out_tty;
  sh_buf line; /* of the input */
} session;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) {
  (void)sig;
  interrupted = 1;
}

/* --- The conversation --- */

static int add_message(session *s, const char *role, const char *text, size_t n) {
  if (s->n == s->cap) {
    int cap = s->cap ? s->cap * 2 : 16;
    message *m = sh_realloc(s->messages, (size_t)cap * sizeof *m);
    if (!m) return SH_ERR_NOMEM;
    s->messages = m;
    s->cap = cap;
  }
  char *copy = sh_strndup(text, n);
  if (!copy) return SH_ERR_NOMEM;
  s->messages[s->n++] = (message){role, copy, n};
  return SH_OK;
}

static void drop_messages(session *s, int keep) {
  while (s->n > keep) sh_free(s->messages[--s->n].text);
}

static bool has_system(const session *s) { return s->n && !strcmp(s->messages[0].role, "system"); }

static int set_system(session *s, const char *text) {
  drop_messages(s, 0);
  return *text ? add_message(s, "system", text, strlen(text)) : SH_OK;
}

static sh_json *build_messages(const session *s, sh_arena *a) {
  sh_json *list = sh_json_new_array(a);
  for (int i = 0; list && i < s->n; i++) {
    const message *m = &s->messages[i];
    sh_json *o = sh_json_new_object(a), *role = sh_json_new_string(a, m->role, strlen(m->role)),
            *text = sh_json_new_string(a, m->text, m->len);
    if (!o || !role || !text || sh_json_set(a, o, "role", role) || sh_json_set(a, o, "content", text) || sh_json_push(a, list, o))
      return NULL;
  }
  return list;
}

static const char *piece(const sh_tok *t, int32_t id) {
  const char *p = id >= 0 ? sh_tok_piece(t, id) : NULL;
  return p ? p : "";
}

static int encode_conversation(const session *s, sh_arena *a, sh_ids *ids, sh_error *e) {
  const sh_tok *tok = sh_engine_tokenizer(s->engine);
  const sh_json *list = build_messages(s, a);
  sh_buf text;
  if (!list) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  const sh_chat_input in = {
      .messages = list,
      .kwargs = s->kwargs,
      .add_generation_prompt = true,
      .bos_token = piece(tok, sh_tok_bos(tok)),
      .eos_token = piece(tok, sh_tok_eos(tok)),
  };
  sh_buf_init(&text, MAX_MESSAGE);
  int rc = sh_chat_render(sh_engine_chat(s->engine), &in, a, &text, e);
  if (rc == SH_OK) rc = sh_tok_encode(tok, text.p ? text.p : "", text.len, 0, ids, e);
  sh_buf_free(&text);
  return rc;
}

/* --- One answer --- */

/* Model text for a terminal: control characters could move the cursor or worse. */
static void print_text(const session *s, const char *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)p[i];
    bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    if (!control || !s->out_tty) putchar(c);
  }
  fflush(stdout);
}

/* Everything of the request: sh_params_fill begins with the defaults, so what is not a setting comes after it. */
static int fill_params(const session *s, sh_arena *a, const sh_ids *ids, sh_request_params *out, sh_error *e) {
  const sh_params_limits limits = {sh_engine_vocab_size(s->engine), 0};
  sh_params p;
  sh_api_error ae;
  if (sh_params_parse(s->settings, SH_API_CHAT, &limits, a, &p, &ae)) return sh_fail(e, SH_ERR_ARG, "%s", ae.message);
  sh_params_fill(&p, &s->defaults, out);
  out->n = 1;
  out->logprobs = out->prompt_logprobs = -1;
  out->ids = ids->v;
  out->n_ids = (int)ids->n;
  int64_t left = sh_engine_plan(s->engine)->max_model_len - out->n_ids;
  out->max_tokens = p.max_tokens == SH_UNSET || p.max_tokens > left || p.max_tokens < 1 ? (int)left : (int)p.max_tokens;
  return SH_OK;
}

/* Prints the request's text until it ends or Ctrl-C; the text is also kept for the conversation. */
static int stream_answer(session *s, sh_request *r, sh_buf *answer, sh_error *e) {
  sh_event ev;
  for (;;) {
    if (interrupted) {
      interrupted = 0;
      sh_request_cancel(r);
    }
    if (!sh_request_next(r, &ev)) {
      sh_request_wait(r, WAIT_MS);
      continue;
    }
    if (ev.type == SH_EV_FINISH && ev.finish == SH_FINISH_ERROR)
      return sh_fail(e, ev.error_code, "%s", ev.error ? ev.error : "the engine failed");
    if (ev.type == SH_EV_END) return answer->failed;
    if (ev.type == SH_EV_PROMPT || !ev.text_len) continue;
    print_text(s, ev.text, ev.text_len);
    sh_buf_put(answer, ev.text, ev.text_len);
  }
}

static int answer_turn(session *s, sh_arena *a, sh_buf *answer, sh_error *e) {
  sh_ids ids = {.max = INT32_MAX};
  sh_request_params p;
  sh_request *r = NULL;
  int rc = encode_conversation(s, a, &ids, e);
  int64_t context = sh_engine_plan(s->engine)->max_model_len;
  if (rc == SH_OK && (int64_t)ids.n >= context)
    rc = sh_fail(e, SH_ERR_LIMIT, "the conversation has %zu tokens and the context %lld; /clear starts a new one", ids.n,
                 (long long)context);
  if (rc == SH_OK) rc = fill_params(s, a, &ids, &p, e);
  if (rc == SH_OK) rc = sh_request_submit(s->engine, &p, NULL, NULL, &r, e);
  if (rc == SH_OK) rc = stream_answer(s, r, answer, e);
  sh_request_free(r);
  sh_ids_free(&ids);
  return rc;
}

static void user_turn(session *s, const char *text, size_t n) {
  sh_error e = {0};
  sh_buf answer;
  int before = s->n;
  sh_arena *a = sh_arena_new(TURN_ARENA);
  sh_buf_init(&answer, MAX_MESSAGE);
  interrupted = 0;
  int rc = a ? add_message(s, "user", text, n) : SH_ERR_NOMEM;
  if (rc != SH_OK) sh_fail(&e, rc, "out of memory");
  if (rc == SH_OK) rc = answer_turn(s, a, &answer, &e);
  printf("\n");
  fflush(stdout);
  if (rc == SH_OK) rc = add_message(s, "assistant", answer.p ? answer.p : "", answer.len);
  if (rc != SH_OK) {
    drop_messages(s, before);
    sh_log_plain("sheng run: %s", e.text[0] ? e.text : "out of memory");
  }
  sh_buf_free(&answer);
  sh_arena_free(a);
}

/* --- Commands --- */

static void show_help(void) {
  printf("  /help                 this\n"
         "  /clear                forget the conversation, keep the system message\n"
         "  /system TEXT          set the system message and begin anew; without TEXT: none\n"
         "  /set NAME VALUE       a field of the API: temperature, top_p, top_k, min_p, repetition_penalty, seed, max_tokens, stop ...\n"
         "  /set                  what is set\n"
         "  /exit                 leave (also Ctrl-D)\n"
         "Ctrl-C stops an answer. A line that ends with \\ goes on; \"\"\" begins and ends a message of several lines.\n");
}

/* The value as JSON when it is JSON, else as a string. */
static sh_json *parse_value(session *s, const char *text) {
  sh_json *v = NULL;
  if (sh_json_parse(text, strlen(text), NULL, s->arena, &v, NULL) == SH_OK) return v;
  return sh_json_new_string(s->arena, text, strlen(text));
}

static void set_field(session *s, char *args) {
  char *value = strchr(args, ' ');
  sh_buf b;
  sh_jw w;
  if (!*args) {
    sh_buf_init(&b, 1 << 20);
    sh_jw_init(&w, &b);
    sh_jw_value(&w, s->settings);
    printf("%s\n", b.p ? b.p : "{}");
    sh_buf_free(&b);
    return;
  }
  if (!value) {
    printf("/set NAME VALUE, e.g. /set temperature 0.7\n");
    return;
  }
  *value++ = 0;
  while (*value == ' ') value++;
  const sh_params_limits limits = {sh_engine_vocab_size(s->engine), 0};
  sh_json trial = *s->settings, *v = parse_value(s, value);
  sh_params p;
  sh_api_error e;
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *alone = a ? sh_json_new_object(a) : NULL;
  if (!v || !alone || sh_json_set(a, alone, args, v)) printf("out of memory\n");
  else if (sh_params_parse(alone, SH_API_CHAT, &limits, a, &p, &e)) printf("%s\n", e.message);
  else if (sh_json_set(s->arena, &trial, args, v) == SH_OK) *s->settings = trial;
  sh_arena_free(a);
}

/* A line that begins with '/'. Returns false to leave. */
static bool command(session *s, char *line) {
  char *args = line + strcspn(line, " ");
  if (*args) *args++ = 0;
  while (*args == ' ') args++;
  if (!strcmp(line, "/exit") || !strcmp(line, "/quit") || !strcmp(line, "/bye")) return false;
  if (!strcmp(line, "/clear")) drop_messages(s, has_system(s) ? 1 : 0);
  else if (!strcmp(line, "/set")) set_field(s, args);
  else if (!strcmp(line, "/help")) show_help();
  else if (strcmp(line, "/system") != 0) printf("no such command: %s (/help lists them)\n", line);
  else if (set_system(s, args) != SH_OK) printf("out of memory\n");
  fflush(stdout);
  return true;
}

/* --- Input --- */

typedef enum input { IN_LINE, IN_INTERRUPT, IN_END } input;

static input read_line(session *s, const char *prompt) {
  if (s->tty) {
    printf("%s", prompt);
    fflush(stdout);
  }
  int rc = sh_cli_read_line(stdin, &s->line);
  if (rc == SH_OK) return IN_LINE;
  if (s->tty) printf("\n");
  interrupted = 0;
  return rc == SH_ERR_CANCELLED ? IN_INTERRUPT : IN_END;
}

static bool starts_quote(const char *p, size_t n) { return n >= 3 && !strncmp(p, "\"\"\"", 3); }

/* Goes on reading while the message is open: between two """, or after a trailing backslash. */
static input read_message(session *s, sh_buf *out) {
  bool quoted = false, first = true;
  sh_buf_reset(out);
  for (;;) {
    input in = read_line(s, first ? ">>> " : "... ");
    if (in != IN_LINE) return in == IN_END && !first ? IN_LINE : in;
    const char *p = s->line.p ? s->line.p : "";
    size_t n = s->line.len;
    if (!first) sh_buf_putc(out, '\n');
    if (first && starts_quote(p, n)) {
      quoted = true;
      p += 3;
      n -= 3;
    }
    first = false;
    bool closes = quoted && n >= 3 && starts_quote(p + n - 3, 3);
    bool goes_on = !quoted && n && p[n - 1] == '\\';
    sh_buf_put(out, p, closes ? n - 3 : goes_on ? n - 1 : n);
    if (closes || (!quoted && !goes_on)) return IN_LINE;
  }
}

static void chat_loop(session *s) {
  sh_buf text;
  sh_buf_init(&text, MAX_MESSAGE);
  for (;;) {
    input in = read_message(s, &text);
    if (in == IN_END) break;
    if (in == IN_INTERRUPT || !text.len) continue;
    if (text.failed) {
      fprintf(stderr, "sheng run: a message is longer than %d bytes\n", MAX_MESSAGE);
    } else if (text.p[0] == '/' && !strchr(text.p, '\n')) {
      if (!command(s, text.p)) break;
    } else {
      user_turn(s, text.p, text.len);
    }
  }
  sh_buf_free(&text);
}

/* --- Start and end --- */

static int set_number(session *s, const char *name, double v) {
  sh_buf b;
  sh_jw w;
  sh_json *n = NULL;
  sh_buf_init(&b, 64);
  sh_jw_init(&w, &b);
  sh_jw_double(&w, v);
  int rc = b.failed ? b.failed : sh_json_parse(b.p, b.len, NULL, s->arena, &n, NULL);
  if (rc == SH_OK) rc = sh_json_set(s->arena, s->settings, name, n);
  sh_buf_free(&b);
  return rc;
}

static int session_settings(session *s, const run_options *o, sh_error *e) {
  s->arena = sh_arena_new(64 << 20);
  s->settings = s->arena ? sh_json_new_object(s->arena) : NULL;
  if (!s->settings) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (o->kwargs) {
    sh_json *v = NULL;
    int rc = sh_json_parse(o->kwargs, strlen(o->kwargs), NULL, s->arena, &v, e);
    if (rc == SH_OK && !sh_json_is(v, SH_JSON_OBJECT)) rc = sh_fail(e, SH_ERR_ARG, "a JSON object is wanted");
    if (rc != SH_OK) return sh_fail_in(e, rc, "--chat-template-kwargs");
    s->kwargs = v;
  }
  if ((o->temperature >= 0 && set_number(s, "temperature", o->temperature)) || (o->top_p > 0 && set_number(s, "top_p", o->top_p)) ||
      (o->seed >= 0 && set_number(s, "seed", (double)o->seed)) ||
      (o->max_tokens > 0 && set_number(s, "max_tokens", (double)o->max_tokens)) || (o->system && set_system(s, o->system)))
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  return SH_OK;
}

static int session_open(session *s, const run_options *o, const char *model, const char *template, sh_error *e) {
  const sh_engine_options eo = {
      .model = model,
      .max_model_len = o->max_model_len,
      .max_num_seqs = 1,
      .memory_utilization = o->memory_utilization,
      .memory_limit = o->memory_limit,
      .dtype = o->dtype,
      .exact = o->exact,
      .head = o->head,
      .kv_cache_dtype = o->kv_cache_dtype,
      .threads = o->threads,
      .cpu = o->cpu,
      .cache_dir = o->cache_dir,
      .chat_template = template,
  };
  sh_buf_init(&s->line, MAX_MESSAGE);
  s->tty = isatty(STDIN_FILENO);
  s->out_tty = isatty(STDOUT_FILENO);
  int rc = session_settings(s, o, e);
  if (rc != SH_OK || (rc = sh_engine_open(&s->engine, &eo, e)) != SH_OK) return rc;
  if (!sh_engine_chat(s->engine)) return sh_fail(e, SH_ERR_NOT_FOUND, "%s has no chat template; give one with --chat-template", model);
  sh_gen_defaults_read(sh_engine_generation_config(s->engine), &s->defaults);
  return sh_engine_start(s->engine, e);
}

static void session_close(session *s) {
  sh_engine_close(s->engine);
  drop_messages(s, 0);
  sh_free(s->messages);
  sh_arena_free(s->arena);
  sh_buf_free(&s->line);
}

int sh_cmd_run(int argc, char **argv) {
  run_options o = defaults;
  session s = {0};
  sh_error e = {0};
  const char *model;
  char *template = NULL, *path = NULL;
  size_t n;
  bool done;
  const sh_cli_parse parse = {"run", "sheng run [MODEL] [options]", table, &o, &defaults, false};
  int status = sh_cli_options(&parse, argc, argv, &model, &done);
  if (status != SH_EXIT_OK || done || (status = sh_cli_find_model("run", model, &path)) != SH_EXIT_OK) return status;
  sh_log_set_level(isatty(STDERR_FILENO) ? SH_LOG_INFO : SH_LOG_WARN); /* who waits at a terminal sees what takes long */
  int rc = o.chat_template ? sh_cli_template(o.chat_template, &template, &n, &e) : SH_OK;
  if (rc == SH_OK) rc = session_open(&s, &o, path, template, &e);
  sh_log_set_level(SH_LOG_WARN);
  if (rc == SH_OK) {
    struct sigaction sa = {.sa_handler = on_interrupt}; /* without SA_RESTART: a read at the prompt returns */
    sigaction(SIGINT, &sa, NULL);
    if (s.tty)
      printf("%s, %lld tokens of context. /help tells more.\n", model ? model : SH_SMALL_MODEL,
             (long long)sh_engine_plan(s.engine)->max_model_len);
    chat_loop(&s);
    signal(SIGINT, SIG_DFL);
  } else {
    status = sh_cli_fail("run", &e, false);
  }
  session_close(&s);
  sh_free(template);
  sh_free(path);
  return status;
}
