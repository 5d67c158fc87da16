/* `sheng bench MODE`: options of the measurements in src/bench, and which of them runs. Main thread.
 *
 * Each mode is a row of sh_bench_modes with its own table of options. Ctrl-C ends a run after the row that is being measured; the rows
 * there are then written, and the exit status is 1. */
#include "cli/bench.h"

#include "bench/bench_kernels.h"
#include "bench/bench_model.h"
#include "bench/roofline.h"
#include "bench/run.h"
#include "cli/bench_serve.h"
#include "formats/kv.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile bool stopped;

static void on_signal(int sig) {
  (void)sig;
  stopped = true;
}

const volatile bool *sh_cli_bench_stop(void) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND}; /* a second one ends at once */
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
  sigaction(SIGTERM, &a, NULL);
  return &stopped;
}

/* clang-format off */
#define CPU_ROW(o)                                                                                                                         \
  {"cpu", NULL, SH_OPT_ENUM, offsetof(o, cpu), 0, 0, "native|avx2|baseline", NULL, "Computation", "LEVEL", "Instruction sets to use."}
#define OUTPUT_ROWS(o)                                                                                                                     \
  {"json", NULL, SH_OPT_FLAG, offsetof(o, json), 0, 0, NULL, NULL, "Output", NULL, "Print one JSON object in place of the tables."},       \
  {"csv", NULL, SH_OPT_STR, offsetof(o, csv), 0, 0, NULL, NULL, "Output", "FILE", "Write the rows as CSV, the machine in comment lines."}, \
  {"html", NULL, SH_OPT_STR, offsetof(o, html), 0, 0, NULL, NULL, "Output", "FILE", "Write a page with tables and bars."}
/* clang-format on */

/* Runs a measurement between opening the files and writing them. */
typedef int run_fn(sh_bench_out *out, const void *opts, sh_error *e);

static int measured(const char *mode, bool json, const char *csv, const char *html, run_fn *run, const void *opts) {
  char name[32];
  sh_error e = {0};
  sh_bench_out out;
  sh_bench_sink sink;
  snprintf(name, sizeof name, "bench %s", mode);
  sh_bench_out_init(&out, name);
  int rc = sh_bench_sink_open(&sink, json, csv, html, &e);
  if (rc == 0) rc = sh_bench_sink_write(&sink, &out, run(&out, opts, &e), &e);
  int status = rc == 0 ? SH_EXIT_OK : sh_cli_fail(name, &e, true);
  sh_bench_sink_close(&sink);
  sh_bench_out_free(&out);
  return status;
}

static int no_model(const char *mode, const char *found) {
  fprintf(stderr, "sheng bench %s: takes no MODEL, found '%s' (`sheng bench model MODEL` measures one)\n", mode, found);
  return SH_EXIT_USAGE;
}

/* --- roofline */

typedef struct roofline_opts {
  const char *threads, *csv, *html, *cpu;
  int64_t repeat, buffer;
  bool json;
} roofline_opts;
static const roofline_opts ROOFLINE = {.cpu = "native", .repeat = 15};
#define AT(field) offsetof(roofline_opts, field)
static const sh_opt ROOFLINE_TABLE[] = {
    {"threads", NULL, SH_OPT_STR, AT(threads), 0, 0, NULL, NULL, "What to measure", "LIST",
     "Numbers of threads, separated by commas; without it 1, 2, 4, ... and every usable core."},
    {"repeat", NULL, SH_OPT_INT, AT(repeat), 1, 1000, NULL, NULL, "What to measure", "N", "Rounds of each measure."},
    {"buffer", NULL, SH_OPT_SIZE, AT(buffer), 4 << 20, 1ll << 40, NULL, NULL, "What to measure", "SIZE",
     "Bytes that are read; without it 2 GiB, less when that is more than half of the free memory."},
    CPU_ROW(roofline_opts),
    OUTPUT_ROWS(roofline_opts),
    {0},
};
#undef AT

static void roofline_options(const sh_opt **table, const void **defaults) {
  *table = ROOFLINE_TABLE;
  *defaults = &ROOFLINE;
}

static int run_roofline(sh_bench_out *out, const void *opts, sh_error *e) {
  const roofline_opts *o = opts;
  sh_roofline_opts r = {.repeat = (int)o->repeat, .bytes = (size_t)o->buffer, .cpu = o->cpu, .stop = sh_cli_bench_stop()};
  if (o->threads) {
    r.n_threads = sh_bench_list(o->threads, "threads", 1, 1024, r.threads, SH_ROOFLINE_THREADS, e);
    if (r.n_threads < 0) return r.n_threads;
  }
  return sh_roofline_run(out, &r, e);
}

static int cmd_roofline(int argc, char **argv) {
  roofline_opts o = ROOFLINE;
  const char *rest = NULL;
  bool done = false;
  const sh_cli_parse p = {
      .name = "bench roofline", .usage = "sheng bench roofline [options]", .table = ROOFLINE_TABLE, .opts = &o, .defaults = &ROOFLINE};
  int status = sh_cli_options(&p, argc, argv, &rest, &done);
  if (status != SH_EXIT_OK || done) return status;
  if (rest) return no_model("roofline", rest);
  return measured("roofline", o.json, o.csv, o.html, run_roofline, &o);
}

/* --- model */

typedef struct model_opts {
  const char *prefill, *depth, *seqs, *kv, *csv, *html, *cpu, *cache_dir, *path;
  int64_t chunk, repeat, threads;
  bool mixed, exact, json;
} model_opts;
static const model_opts MODEL = {
    .prefill = "128,512,2048", .depth = "0,1024,4096,16384", .seqs = "1,4,16,64", .kv = "auto", .cpu = "native", .chunk = 512, .repeat = 5};
#define AT(field) offsetof(model_opts, field)
static const sh_opt MODEL_TABLE[] = {
    {"prefill", NULL, SH_OPT_STR, AT(prefill), 0, 0, NULL, NULL, "What to measure", "LIST",
     "Tokens of prompts to read, separated by commas; none leaves them out."},
    {"depth", NULL, SH_OPT_STR, AT(depth), 0, 0, NULL, NULL, "What to measure", "LIST",
     "Positions at which one sequence draws; none leaves them out."},
    {"seqs", NULL, SH_OPT_STR, AT(seqs), 0, 0, NULL, NULL, "What to measure", "LIST",
     "Sequences that draw together; none leaves them out."},
    {"mixed", NULL, SH_OPT_FLAG, AT(mixed), 0, 0, NULL, NULL, "What to measure", NULL,
     "Also as many sequences drawing while a prompt of 512 tokens is read in chunks of 128."},
    {"repeat", NULL, SH_OPT_INT, AT(repeat), 1, SH_BENCH_MODEL_REPEAT, NULL, NULL, "What to measure", "N", "Timed runs of a row."},
    {"chunk", NULL, SH_OPT_INT, AT(chunk), 1, 8192, NULL, NULL, "What to measure", "TOKENS", "Most tokens of a prompt in one step."},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, NULL, "Computation", NULL, "float32 everywhere: the reference numbers."},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv), 0, 0, SH_KV_NAMES, NULL, "Computation", "TYPE",
     "How keys and values are kept; auto: bfloat16, float32 with --exact."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    CPU_ROW(model_opts),
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", "Computation", "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    OUTPUT_ROWS(model_opts),
    {0},
};
#undef AT

static void model_options(const sh_opt **table, const void **defaults) {
  *table = MODEL_TABLE;
  *defaults = &MODEL;
}

static int read_sizes(sh_bench_sizes *s, const char *text, const char *by_default, const char *name, int64_t min, int64_t max,
                      sh_error *e) {
  s->asked = text != by_default;
  if (strcmp(text, "none") == 0) return 0;
  s->n = sh_bench_list(text, name, min, max, s->v, SH_BENCH_SIZES, e);
  return s->n < 0 ? s->n : 0;
}

static int run_model(sh_bench_out *out, const void *opts, sh_error *e) {
  const model_opts *o = opts;
  sh_bench_model_opts m = {.model = o->path,
                           .mixed = o->mixed,
                           .chunk = (int)o->chunk,
                           .repeat = (int)o->repeat,
                           .threads = (int)o->threads,
                           .cpu = o->cpu,
                           .cache_dir = o->cache_dir,
                           .exact = o->exact,
                           .stop = sh_cli_bench_stop()};
  int rc = sh_kv_parse(o->kv, o->exact, &m.kv_type, e);
  if (rc == 0) rc = read_sizes(&m.prefill, o->prefill, MODEL.prefill, "prefill", 1, 1 << 20, e);
  if (rc == 0) rc = read_sizes(&m.depth, o->depth, MODEL.depth, "depth", 0, 1 << 20, e);
  if (rc == 0) rc = read_sizes(&m.seqs, o->seqs, MODEL.seqs, "seqs", 1, 4096, e);
  return rc == 0 ? sh_bench_model_run(out, &m, e) : rc;
}

static int cmd_model(int argc, char **argv) {
  model_opts o = MODEL;
  const char *model = NULL;
  char *path = NULL;
  bool done = false;
  const sh_cli_parse p = {.name = "bench model",
                          .usage = "sheng bench model MODEL [options]",
                          .table = MODEL_TABLE,
                          .opts = &o,
                          .defaults = &MODEL,
                          .need_model = true};
  int status = sh_cli_options(&p, argc, argv, &model, &done);
  if (status != SH_EXIT_OK || done) return status;
  if ((status = sh_cli_find_model("bench model", model, &path)) != SH_EXIT_OK) return status;
  o.path = path;
  status = measured("model", o.json, o.csv, o.html, run_model, &o);
  sh_free(path);
  return status;
}

/* --- kernels */

typedef struct kernels_opts {
  const char *only, *csv, *html, *cpu;
  int64_t threads;
  bool json;
} kernels_opts;
static const kernels_opts KERNELS = {.cpu = "native"};
#define AT(field) offsetof(kernels_opts, field)
static const sh_opt KERNELS_TABLE[] = {
    {"only", NULL, SH_OPT_STR, AT(only), 0, 0, NULL, NULL, "What to measure", "TEXT", "Only rows whose name contains this."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    CPU_ROW(kernels_opts),
    OUTPUT_ROWS(kernels_opts),
    {0},
};
#undef AT

static void kernels_options(const sh_opt **table, const void **defaults) {
  *table = KERNELS_TABLE;
  *defaults = &KERNELS;
}

static int run_kernels(sh_bench_out *out, const void *opts, sh_error *e) {
  const kernels_opts *o = opts;
  const sh_bench_kernels_opts k = {.only = o->only, .threads = (int)o->threads, .cpu = o->cpu, .stop = sh_cli_bench_stop()};
  return sh_bench_kernels_run(out, &k, e);
}

static int cmd_kernels(int argc, char **argv) {
  kernels_opts o = KERNELS;
  const char *rest = NULL;
  bool done = false;
  const sh_cli_parse p = {
      .name = "bench kernels", .usage = "sheng bench kernels [options]", .table = KERNELS_TABLE, .opts = &o, .defaults = &KERNELS};
  int status = sh_cli_options(&p, argc, argv, &rest, &done);
  if (status != SH_EXIT_OK || done) return status;
  if (rest) return no_model("kernels", rest);
  return measured("kernels", o.json, o.csv, o.html, run_kernels, &o);
}

/* --- The modes */

const sh_cli_command sh_bench_modes[] = {
    {"roofline", "[options]", cmd_roofline, "how fast this machine reads and computes at most", roofline_options},
    {"model", "MODEL [options]", cmd_model, "how fast a model reads prompts and draws tokens, as a share of the machine's limits",
     model_options},
    {"kernels", "[options]", cmd_kernels, "every kernel of this machine beside plain C", kernels_options},
    {"serve", "[URL] [options]", sh_cmd_bench_serve, "load on any server with OpenAI's API: throughput and latencies",
     sh_cmd_bench_serve_options},
    {0},
};

static void list_modes(FILE *to) {
  for (const sh_cli_command *m = sh_bench_modes; m->name; m++) fprintf(to, "  sheng bench %-9s %-22s %s\n", m->name, m->args, m->line);
}

int sh_cmd_bench(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : NULL;
  for (const sh_cli_command *m = sh_bench_modes; name && m->name; m++)
    if (strcmp(m->name, name) == 0) return m->run(argc - 1, argv + 1);
  if (name && (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)) {
    printf("usage: sheng bench MODE [options]\n\n");
    list_modes(stdout);
    printf("\n`sheng bench MODE --help` lists a mode's options.\n");
    return SH_EXIT_OK;
  }
  if (name) fprintf(stderr, "sheng bench: there is no mode '%.100s'; these are:\n", name);
  else fprintf(stderr, "sheng bench: MODE is missing: what to measure; these are:\n");
  list_modes(stderr);
  return SH_EXIT_USAGE;
}
