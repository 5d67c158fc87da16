/* sheng: the program's entry. Looks the subcommand up in the table (cli/commands.c) and runs it.
 *
 * Exit statuses: 0 it worked, 1 it failed (a sentence is on stderr), 2 it was called wrongly; 74 when a mapped file shrank under the
 * program.
 *
 * SIGPIPE is ignored here, once: a client or a pipe that goes away is an error of one write, not the end of the program. */
#include "base/file.h"
#include "cli/cli.h"
#include <signal.h>
#include <string.h>

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  sh_map_guard_install();
  const char *name = argc > 1 ? argv[1] : "help";
  if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
  if (!strcmp(name, "--version") || !strcmp(name, "-V")) name = "version";
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++)
    if (!strcmp(c->name, name)) return argc > 1 ? c->run(argc - 1, argv + 1) : c->run(0, NULL) | SH_EXIT_USAGE;
  return sh_cli_no_command(name);
}
