/* `sheng synth SHAPE --format FORMAT OUT`: a checkpoint with the shape of a released model and random weights, to measure speed with.
 *
 * Main thread. Ctrl-C and SIGTERM end the run at the next piece: a GGUF file is not there then, a folder is gone on with by the same
 * command. --help lists shapes and formats from their tables. */
#include "cli/synth.h"

#include "base/log.h"
#include "base/pool.h"
#include "base/text.h"
#include "cli/cli.h"
#include "synth/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define USAGE "sheng synth SHAPE --format FORMAT OUT [options]"

typedef struct synth_opts {
  const char *format, *tokenizer;
  int64_t layers, group, seed, threads;
} synth_opts;

static const synth_opts DEFAULTS = {.group = 128, .seed = 1};

#define AT(field) offsetof(synth_opts, field)
static const sh_opt TABLE[] = {
    {"format", NULL, SH_OPT_STR, AT(format), 0, 0, NULL, NULL, "What to make", "FORMAT",
     "A folder: bf16, f16, awq, gptq, compressed-tensors, int8 or fp8. A file: gguf-bf16, gguf-q8_0, gguf-q4_0, gguf-q4_1, gguf-q4_k, "
     "gguf-q5_k or gguf-q6_k."},
    {"layers", NULL, SH_OPT_INT, AT(layers), 0, 512, NULL, NULL, "What to make", "N", "Layers; 0 is as many as the model has."},
    {"group", NULL, SH_OPT_INT, AT(group), 32, 128, NULL, NULL, "What to make", "N",
     "Columns that share a scale, in awq, gptq and compressed-tensors: 32, 64 or 128."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 1e15, NULL, NULL, "What to make", "N", "Of the weights: the same seed gives the same bytes."},
    {"tokenizer", NULL, SH_OPT_STR, AT(tokenizer), 0, 0, NULL, NULL, "What to make", "FOLDER",
     "Take the tokenizer and chat template of this model's folder; without it one is made up, with the real ids of the special tokens and "
     "a "
     "token per byte of text."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    {0},
};
#undef AT

static volatile bool stopped;

static void on_signal(int sig) {
  (void)sig;
  stopped = true;
}

/* A line on a terminal, four times a second. */
typedef struct progress {
  int64_t began, shown; /* ns */
} progress;

static void on_progress(void *ctx, int64_t done, int64_t total) {
  progress *p = ctx;
  char a[32], b[32];
  int64_t now = sh_now_ns();
  if (done < total && now - p->shown < 250000000) return;
  p->shown = now;
  double seconds = (double)(now - p->began) * 1e-9;
  fprintf(stderr, "\r%s of %s, %.2f GB/s \033[K%s", sh_format_size(done, a), sh_format_size(total, b),
          seconds > 0 ? (double)done * 1e-9 / seconds : 0, done == total ? "\n" : "");
}

static void list_tables(void) {
  printf("\nShapes (text model without vision tower and draft layer; hidden size, layers, and where the numbers come from):\n");
  for (const sh_synth_shape *s = sh_synth_shapes; s->name; s++) printf("  %-10s %5d %3d  %s\n", s->name, s->hidden, s->n_layers, s->source);
  printf("\nFormats:\n");
  for (const sh_synth_format *f = sh_synth_formats; f->name; f++) printf("  %-20s %s\n", f->name, f->is);
  printf("\nIn a quantized folder the linear layers are quantized but for in_proj_a, in_proj_b, the router and the shared expert's\n"
         "switch; experts are modules of their own. In a GGUF all matrices of the layers have the type named, without the mixes\n"
         "of Q4_K_M and the like; the head is Q6_K (Q8_0 and BF16 keep their own), and so is the embedding where it is the head,\n"
         "as llama-quantize leaves them.\n");
}

static int help(void) {
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  int rc = sh_opt_help(TABLE, &DEFAULTS, USAGE, &b);
  if (!rc) fwrite(b.p, 1, b.len, stdout);
  sh_buf_free(&b);
  if (!rc) list_tables();
  return rc ? SH_EXIT_FAILURE : SH_EXIT_OK;
}

static bool wants_help(int argc, char **argv) {
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
  }
  return false;
}

/* shape and out: borrowed from argv. */
static int read_options(int argc, char **argv, synth_opts *o, const char **shape, const char **out, sh_error *e) {
  sh_strlist rest = {0};
  int rc = sh_opt_parse(TABLE, o, argc, argv, &rest, e);
  if (rc) return rc;
  *shape = rest.n > 0 ? rest.v[0] : NULL;
  *out = rest.n > 1 ? rest.v[1] : NULL;
  if (rest.n > 2) rc = sh_fail(e, SH_ERR_ARG, "a SHAPE and an OUT are wanted, found also '%.100s' (usage: " USAGE ")", rest.v[2]);
  else if (rest.n < 2)
    rc = sh_fail(e, SH_ERR_ARG, "%s is missing (usage: " USAGE "; --help lists shapes and formats)",
                 rest.n ? "OUT, the folder or file to make," : "SHAPE");
  else if (!o->format) rc = sh_fail(e, SH_ERR_ARG, "--format is missing (usage: " USAGE "; --help lists shapes and formats)");
  sh_free((void *)rest.v);
  return rc;
}

void sh_cmd_synth_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

int sh_cmd_synth(int argc, char **argv) {
  sh_error e = {0};
  synth_opts o = DEFAULTS;
  const char *shape, *out;
  char bytes[32];
  if (wants_help(argc, argv)) return help();
  if (read_options(argc, argv, &o, &shape, &out, &e)) return sh_cli_fail("synth", &e, true);
  progress show = {.began = sh_now_ns()};
  sh_synth_opts s = {.shape = shape,
                     .format = o.format,
                     .out = out,
                     .tokenizer = o.tokenizer,
                     .layers = (int)o.layers,
                     .group = (int)o.group,
                     .seed = (uint64_t)o.seed,
                     .threads = (int)o.threads,
                     .progress = isatty(STDERR_FILENO) ? on_progress : NULL,
                     .ctx = &show,
                     .stop = &stopped};
  sh_synth_result r;
  stopped = false;
  signal(SIGINT, on_signal);
  signal(SIGTERM, on_signal);
  if (sh_synth(&s, &r, &e)) return sh_cli_fail("synth", &e, true);
  bool billions = r.weights >= 100000000;
  printf("%s: %d layers, %.*f %s weights in %d tensors, %s in %d file%s; %.1f s, %.2f GB/s\n", out, r.layers, billions ? 2 : 1,
         (double)r.weights * (billions ? 1e-9 : 1e-6), billions ? "billion" : "million", r.n_tensors, sh_format_size(r.bytes, bytes),
         r.n_files, r.n_files > 1 ? "s" : "", r.seconds, r.seconds > 0 ? (double)r.bytes * 1e-9 / r.seconds : 0);
  return SH_EXIT_OK;
}
