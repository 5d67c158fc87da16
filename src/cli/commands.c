/* The table of subcommands, and the two that speak of it: help and version. Main thread.
 *
 * docs/options.md is made from the tables (`sheng help --markdown`), so a row added anywhere shows up there; a unit test compares the
 * checked-in page. */
#include "cli/cli.h"
#include "cli/bench.h"
#include "cli/eval.h"
#include "cli/generate.h"
#include "cli/logits.h"
#include "cli/quantize.h"
#include "cli/run.h"
#include "cli/synth.h"
#include "ops/inspect.h"
#include "ops/pull.h"
#include "ops/small_model.h"
#include "server/options.h"
#include <string.h>

static void serve_options(const sh_opt **table, const void **defaults) {
  *table = sh_serve_option_table;
  *defaults = &sh_serve_option_defaults;
}

static void pull_options(const sh_opt **table, const void **defaults) {
  *table = sh_pull_option_table;
  *defaults = &sh_pull_option_defaults;
}

static void inspect_options(const sh_opt **table, const void **defaults) {
  *table = sh_inspect_option_table;
  *defaults = &sh_inspect_option_defaults;
}

const sh_cli_command sh_cli_commands[] = {
    {"serve", "[MODEL] [options]", sh_cmd_serve, "serve a model over HTTP, in OpenAI's API", serve_options},
    {"run", "[MODEL] [options]", sh_cmd_run, "chat with a model in the terminal", sh_cmd_run_options},
    {"pull", "OWNER/NAME [options]", sh_cmd_pull, "download a model from a hub", pull_options},
    {"inspect", "MODEL [options]", sh_cmd_inspect, "check a model before serving: what it is, what is wrong, what fits", inspect_options},
    {"quantize", "--model-path IN --output-path OUT [options]", sh_cmd_quantize, "make a 4- or 8-bit folder of a bf16 one",
     sh_cmd_quantize_options},
    {"tokenize", "MODEL", sh_cmd_tokenize, "JSON lines {\"text\"} to {\"ids\"}", NULL},
    {"detokenize", "MODEL", sh_cmd_detokenize, "JSON lines {\"ids\", \"skip_special\"?} to {\"text\"}", NULL},
    {"render", "MODEL | --template FILE", sh_cmd_render, "JSON lines {\"messages\", ...} to the chat template's {\"text\"}", NULL},
    {"generate", "MODEL [options]", sh_cmd_generate, "JSON lines {\"ids\" or \"prompt\", ...} to {\"ids\", \"text\", \"finish_reason\"}",
     sh_cmd_generate_options},
    {"logits", "MODEL --ids FILE --out FILE [options]", sh_cmd_logits, "logits of a list of token ids, as safetensors",
     sh_cmd_logits_options},
    {"eval", "MODEL [--against REF] [options]", sh_cmd_eval, "how good a model is, and how near to another", sh_cmd_eval_options},
    {"bench", "MODE [options]", sh_cmd_bench, "measure this machine, a model on it, or a server under load", NULL},
    {"synth", "SHAPE --format FORMAT OUT [options]", sh_cmd_synth, "make a random checkpoint of a released shape, to measure speed with",
     sh_cmd_synth_options},
    {"version", "", sh_cmd_version, "print the version", NULL},
    {"help", "[COMMAND | --markdown]", sh_cmd_help, "this text, a command's options, or the docs page", NULL},
    {0},
};

int sh_cmd_version(int argc, char **argv) {
  (void)argc;
  (void)argv;
  printf("sheng %s\n", SHENG_VERSION);
  return SH_EXIT_OK;
}

/* Rows of their own that a command has: a mode is documented as a command. */
static const sh_cli_command *modes_of(const sh_cli_command *c) { return c->run == sh_cmd_bench ? sh_bench_modes : NULL; }

static void markdown_row(sh_buf *out, const char *before, const sh_cli_command *c) {
  sh_buf_printf(out, "| `sheng %s%s%s", before, c->name, c->args[0] ? " " : "");
  for (const char *s = c->args; *s; s++) sh_buf_printf(out, *s == '|' ? "\\%c" : "%c", *s);
  sh_buf_printf(out, "` | %s |\n", c->line);
}

static void markdown_options(sh_buf *out, const char *before, const sh_cli_command *c) {
  const sh_opt *table;
  const void *defaults;
  if (!c->options) return;
  c->options(&table, &defaults);
  sh_buf_printf(out, "\n## sheng %s%s\n\n", before, c->name);
  sh_opt_markdown(table, defaults, out);
}

int sh_cli_markdown(sh_buf *out) {
  sh_buf_puts(out, "# Commands and options\n\nMade by `sheng help --markdown` from the program's own tables. An option on the command line "
                   "wins over its environment variable; `_` "
                   "in a name is read as `-`.\n\n| Command | What it does |\n|---|---|\n");
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++)
    if (!modes_of(c)) markdown_row(out, "", c);
    else
      for (const sh_cli_command *m = modes_of(c); m->name; m++) {
        char before[32];
        snprintf(before, sizeof before, "%s ", c->name);
        markdown_row(out, before, m);
      }
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++) {
    markdown_options(out, "", c);
    for (const sh_cli_command *m = modes_of(c); m && m->name; m++) {
      char before[32];
      snprintf(before, sizeof before, "%s ", c->name);
      markdown_options(out, before, m);
    }
  }
  return out->failed;
}

static int print_markdown(void) {
  sh_buf b;
  sh_buf_init(&b, 4 << 20);
  int rc = sh_cli_markdown(&b);
  if (rc == 0) fwrite(b.p, 1, b.len, stdout);
  sh_buf_free(&b);
  return rc == 0 ? SH_EXIT_OK : SH_EXIT_FAILURE;
}

static void list_commands(FILE *to) {
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++) fprintf(to, "  sheng %-10s %-38s %s\n", c->name, c->args, c->line);
}

int sh_cli_no_command(const char *name) {
  fprintf(stderr, "sheng: there is no command '%.100s'; these are:\n", name);
  list_commands(stderr);
  return SH_EXIT_USAGE;
}

int sh_cmd_help(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "help";
  const sh_cli_command *c = sh_cli_commands;
  if (!strcmp(name, "--markdown")) return print_markdown();
  while (c->name && strcmp(c->name, name)) c++;
  if (!c->name && name[0] != '-') return sh_cli_no_command(name);
  if (c->name && c->run != sh_cmd_help && c->run != sh_cmd_version) {
    char help[] = "--help", *args[] = {argv[1], help, NULL};
    return c->run(2, args);
  }
  printf("sheng %s: serves Qwen3.5 models\n\n", SHENG_VERSION);
  list_commands(stdout);
  printf("\nMODEL is " SH_CLI_MODEL_IS "; `serve` and `run` without one take models/" SH_SMALL_MODEL
         " beside the\nprogram. `sheng COMMAND --help` lists a command's options.\n");
  return SH_EXIT_OK;
}
