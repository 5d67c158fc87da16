/* `sheng generate`: answers to JSON lines. The command itself is declared in cli.h. */
#ifndef SH_CLI_GENERATE_H
#define SH_CLI_GENERATE_H

#include "base/opt.h"

/* Its options, for the docs page (sh_cli_command.options). Borrowed, static. */
void sh_cmd_generate_options(const sh_opt **table, const void **defaults);

#endif
