/* `sheng logits`: the logits of a list of token ids, for comparing with another implementation. The command itself is declared in cli.h. */
#ifndef SH_CLI_LOGITS_H
#define SH_CLI_LOGITS_H

#include "base/opt.h"

/* Its options, for the docs page (sh_cli_command.options). Borrowed, static. */
void sh_cmd_logits_options(const sh_opt **table, const void **defaults);

#endif
