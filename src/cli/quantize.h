/* `sheng quantize`: a 4- or 8-bit folder of a checkpoint. The command itself is declared in cli.h. */
#ifndef SH_CLI_QUANTIZE_H
#define SH_CLI_QUANTIZE_H

#include "base/opt.h"

/* Its options, for the docs page (sh_cli_command.options). Borrowed, static. */
void sh_cmd_quantize_options(const sh_opt **table, const void **defaults);

#endif
