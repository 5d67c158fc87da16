/* `sheng bench MODE`: options of the measurements in src/bench, and which of them runs. Main thread.
 *
 * Each mode is a row of sh_bench_modes with its own table of options. Ctrl-C ends a run after the row that is being measured; the rows
 * there are then written, and the exit status is 1. */
#include "cli/bench.h"

#include "bench/roofline.h"
#include "bench/run.h"
#include "cli/bench_serve.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile bool stopped;

static void on_signal(int sig) {
  (void)sig;
  stopped = true;
}

const volatile bool *sh_cli_bench_stop(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
  sigaction(SIGTERM, &a, NULL);
  return &stopped;
}

#define CPU_ROW(o)                                                                                                                         \
  { "cpu", NULL, SH_OPT_ENUM, offsetof(o, cpu), 0, 0, "native|avx2|baseline", NULL, "Computation", "LEVEL", "Instruction sets to use." }
#define OUTPUT_ROWS(o)                                                                                                                     \
  {"json", NULL, SH_OPT_FLAG, offsetof(o, json), 0, 0, NULL, NULL, "Output", NULL, "Print one JSON object in place of the tables."},       \
      {"csv",                                                                                                                              \
       NULL,                                                                                                                               \
       SH_OPT_STR,                                                                                                                         \
       offsetof(o, csv),                                                                                                                   \
       0,                                                                                                                                  \
       0,                                                                                                                                  \
       NULL,                                                                                                                               \
       NULL,                                                                                                                               \
       "Output",                                                                                                                           \
       "FILE",                                                                                                                             \
       "Write the rows as CSV, the machine in comment lines."},                                                                            \
  {                                                                                                                                        \
    "html", NULL, SH_OPT_STR, offsetof(o, html), 0, 0, NULL, NULL, "Output", "FILE", "Write a page with tables and bars."                  \
  }

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
  if (rest) {
    fprintf(stderr, "sheng bench roofline: takes no MODEL, found '%s' (`sheng bench model MODEL` measures one)\n", rest);
    return SH_EXIT_USAGE;
  }
  return measured("roofline", o.json, o.csv, o.html, run_roofline, &o);
}

/* --- The modes */

const sh_cli_command sh_bench_modes[] = {
    {"roofline", "[options]", cmd_roofline, "how fast this machine reads and computes at most", roofline_options},
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
