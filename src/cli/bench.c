/* `sheng bench MODE`: a table of modes, each with its own options. Main thread. */
#include "cli/bench.h"

#include "cli/bench_serve.h"
#include "cli/cli.h"
#include <string.h>

int sh_cmd_bench(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "serve") == 0) return sh_cmd_bench_serve(argc - 1, argv + 1);
  bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
  fprintf(help ? stdout : stderr, "Usage: sheng bench serve [URL] [options]\n\n  serve   load on any server with OpenAI's API\n");
  return help ? SH_EXIT_OK : SH_EXIT_USAGE;
}
