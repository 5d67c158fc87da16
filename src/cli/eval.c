/* `sheng eval MODEL`: measures a model over a text, alone or against another, and tasks. Main thread; the models have their own pools.
 *
 * The files to write are opened before anything is computed: a folder that does not exist is said at once and not after an hour. */
#include "cli/eval.h"

#include "base/file.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "quant/eval.h"
#include "quant/report.h"
#include "formats/kv.h"
#include "formats/panel.h"
#include <string.h>
#include <unistd.h>

enum { MAX_OUT = 256 << 20, MAX_COMPARE = 64 };

typedef struct options {
  const char *against, *text, *tasks, *json, *csv, *report, *cpu, *cache_dir, *head, *kv_cache_dtype;
  sh_strlist compare;
  int64_t seq_len, samples, prompts, threads;
  bool exact, against_exact;
} options;

static const options DEFAULTS = {.cpu = "native", .head = "auto", .kv_cache_dtype = "auto", .seq_len = 512, .prompts = 16};

#define AT(f) offsetof(options, f)
static const sh_opt TABLE[] = {
    {"against", NULL, SH_OPT_STR, AT(against), 0, 0, NULL, NULL, "What to measure", "REF",
     "Compare with this model, of the same vocabulary: a folder, a .gguf file or the name of a pulled model."},
    {"text", NULL, SH_OPT_STR, AT(text), 0, 0, NULL, NULL, "What to measure", "FILE",
     "Text to measure over: plain, or JSON lines of {\"text\"} or {\"messages\"}; without it a text in the program."},
    {"tasks", NULL, SH_OPT_STR, AT(tasks), 0, 0, NULL, NULL, "What to measure", "FILE",
     "JSON lines of questions: {\"prompt\" or \"messages\", \"answer\"} or {..., \"choices\", \"answer\": index}."},
    {"seq-len", NULL, SH_OPT_INT, AT(seq_len), 2, 1 << 20, NULL, NULL, "What to measure", "TOKENS", "Tokens of a window of the text."},
    {"samples", NULL, SH_OPT_INT, AT(samples), 0, 1 << 24, NULL, NULL, "What to measure", "N", "Windows at most; 0 is the whole text."},
    {"prompts", NULL, SH_OPT_INT, AT(prompts), 0, 1 << 16, NULL, NULL, "What to measure", "N",
     "Prompts whose greedy continuations are compared with those of --against; 0 is none."},
    {"json", NULL, SH_OPT_STR, AT(json), 0, 0, NULL, NULL, "Output", "FILE", "Write the whole result as JSON."},
    {"csv", NULL, SH_OPT_STR, AT(csv), 0, 0, NULL, NULL, "Output", "FILE", "Write a row for each measure and each layer."},
    {"report", NULL, SH_OPT_STR, AT(report), 0, 0, NULL, NULL, "Output", "FILE.html", "Write one HTML page with plots."},
    {"compare", NULL, SH_OPT_LIST, AT(compare), 0, 0, NULL, NULL, "Output", "FILE.json",
     "Show results of earlier --json runs beside this one in --report; repeatable, or separated by commas."},
    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, NULL, "Computation", "TYPE", SH_HEAD_HELP},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, NULL, "Computation", "TYPE", SH_KV_HELP},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, NULL, "Computation", NULL, "float32 everywhere: the reference numbers."},
    {"against-exact", NULL, SH_OPT_FLAG, AT(against_exact), 0, 0, NULL, NULL, "Computation", NULL,
     "Compute the reference with --exact; without --against it is MODEL itself: what the default mode changes."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", NULL, "Computation", "LEVEL", "Instruction sets to use."},
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", "Computation", "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    {0},
};
#undef AT

void sh_cmd_eval_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

/* ---- Progress: one line on a terminal, twice a second ---- */

typedef struct show {
  bool tty;
  int64_t start_ns, last_ns;
} show;

static void on_progress(void *ctx, double share) {
  show *s = ctx;
  int64_t now = sh_now_ns();
  if (!s->tty || now - s->last_ns < 500000000) return;
  s->last_ns = now;
  int64_t left = share > 0 ? (int64_t)((double)(now - s->start_ns) / 1e9 * (1 - share) / share) : 0;
  fprintf(stderr, "\r%5.1f %%, about %lld:%02lld left \033[K", share * 100, (long long)left / 60, (long long)left % 60);
}

static void clear(const show *s) {
  if (s->last_ns) fputs("\r\033[K", stderr);
}

/* ---- Output ---- */

/* The other results that --compare names. */
typedef struct others {
  sh_report_point points[MAX_COMPARE];
  int n;
  sh_arena *arena;
} others;

static int read_others(const sh_strlist *list, others *o, sh_error *e) {
  o->arena = sh_arena_new((size_t)1 << 30);
  if (!o->arena) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (int i = 0; i < list->n; i++)
    for (const char *s = list->v[i], *stop; *s; s = *stop ? stop + 1 : stop) {
      stop = strchr(s, ',');
      if (!stop) stop = s + strlen(s);
      if (stop == s) continue;
      if (o->n == MAX_COMPARE) return sh_fail(e, SH_ERR_LIMIT, "--compare names more than %d files", MAX_COMPARE);
      char *path = sh_arena_strdup(o->arena, s, (size_t)(stop - s));
      if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
      int rc = sh_report_read(&o->points[o->n++], path, o->arena, e);
      if (rc < 0) return rc;
    }
  return 0;
}

enum { N_FILES = 3 };

static int write_file(sh_file_out *f, const sh_buf *b, sh_error *e) {
  if (b->failed) return sh_fail(e, b->failed, "the result does not fit in memory");
  int rc = sh_file_out_write(f, b->p, b->len, e);
  return rc == 0 ? sh_file_out_commit(f, e) : rc;
}

static int write_all(const sh_eval *r, const options *o, const others *other, sh_file_out files[N_FILES], sh_error *e) {
  const char *paths[N_FILES] = {o->json, o->csv, o->report};
  int rc = 0;
  sh_buf b;
  sh_buf_init(&b, MAX_OUT);
  for (int i = 0; rc == 0 && i < N_FILES; i++) {
    if (!paths[i]) continue;
    sh_buf_reset(&b);
    if (i == 0) sh_eval_write_json(r, &b);
    else if (i == 1) sh_eval_write_csv(r, &b);
    else sh_report_html(r, other->points, other->n, &b);
    rc = write_file(&files[i], &b, e);
  }
  sh_buf_reset(&b);
  if (rc == 0 && sh_eval_write_table(r, &b) < 0) rc = sh_fail(e, b.failed, "the result does not fit in memory");
  if (rc == 0 && (fwrite(b.p, 1, b.len, stdout) != b.len || fflush(stdout) != 0))
    rc = sh_fail(e, SH_ERR_IO, "the result cannot be written to the standard output");
  sh_buf_free(&b);
  return rc;
}

/* ---- The command ---- */

static int eval(const char *model, const char *against, const options *o, sh_error *e) {
  const char *paths[N_FILES] = {o->json, o->csv, o->report};
  sh_file_out files[N_FILES] = {{0}};
  others other = {.n = 0};
  sh_eval r = {0};
  show s = {.tty = isatty(STDERR_FILENO) == 1, .start_ns = sh_now_ns()};
  const sh_eval_opts eo = {.model = model,
                           .against = against,
                           .text = o->text,
                           .tasks = o->tasks,
                           .seq_len = (int)o->seq_len,
                           .samples = (int)o->samples,
                           .prompts = against ? (int)o->prompts : 0,
                           .exact = o->exact,
                           .against_exact = o->against_exact,
                           .head = o->head,
                           .kv_cache_dtype = o->kv_cache_dtype,
                           .threads = (int)o->threads,
                           .cpu = o->cpu,
                           .cache_dir = o->cache_dir,
                           .progress = on_progress,
                           .ctx = &s};
  int rc = read_others(&o->compare, &other, e);
  for (int i = 0; rc == 0 && i < N_FILES; i++)
    if (paths[i]) rc = sh_file_out_open(&files[i], paths[i], e);
  if (rc == 0) rc = sh_eval_run(&r, &eo, e);
  clear(&s);
  if (rc == 0) rc = write_all(&r, o, &other, files, e);
  for (int i = 0; i < N_FILES; i++) sh_file_out_abandon(&files[i]);
  sh_eval_free(&r);
  sh_arena_free(other.arena);
  return rc;
}

int sh_cmd_eval(int argc, char **argv) {
  sh_error e = {0};
  options o = DEFAULTS;
  const char *model = NULL;
  char *path = NULL, *against = NULL;
  bool done = false;
  const sh_cli_parse p = {.name = "eval",
                          .usage = "sheng eval MODEL [--against REF] [options]",
                          .table = TABLE,
                          .opts = &o,
                          .defaults = &DEFAULTS,
                          .need_model = true};
  int status = sh_cli_options(&p, argc, argv, &model, &done);
  if (status == 0 && !done && o.compare.n && !o.report)
    status = sh_cli_fail("eval", (sh_fail(&e, SH_ERR_ARG, "--compare is shown in --report FILE.html, which is missing"), &e), true);
  if (status == 0 && !done) status = sh_cli_find_model("eval", model, &path);
  if (status == 0 && !done && (o.against || o.against_exact)) status = sh_cli_find_model("eval", o.against ? o.against : model, &against);
  if (status == 0 && !done && eval(path, against, &o, &e) < 0) status = sh_cli_fail("eval", &e, false);
  if (o.compare.private_cap > 0) sh_free((void *)o.compare.v);
  sh_free(path);
  sh_free(against);
  return status;
}
