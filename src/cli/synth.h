/* `sheng synth`: random checkpoints of released shapes. */
#ifndef SH_CLI_SYNTH_H
#define SH_CLI_SYNTH_H

#include "base/opt.h"

int sh_cmd_synth(int argc, char **argv);
/* Its options, for the docs page (sh_cli_command.options). Borrowed, static. */
void sh_cmd_synth_options(const sh_opt **table, const void **defaults);

#endif
