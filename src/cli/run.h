/* `sheng run`: chat in the terminal. The command itself is declared in cli.h. */
#ifndef SH_CLI_RUN_H
#define SH_CLI_RUN_H

#include "base/opt.h"

/* Its options, for the docs page (sh_cli_command.options). Borrowed, static. */
void sh_cmd_run_options(const sh_opt **table, const void **defaults);

#endif
