/* `sheng bench MODE`: the table of modes, and which of them runs. Main thread. Each mode has its own table of options. */
#include "cli/bench.h"

#include "cli/bench_serve.h"
#include <stdio.h>
#include <string.h>

const sh_cli_command sh_bench_modes[] = {
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
