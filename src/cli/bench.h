/* `sheng bench MODE`: see cli/cli.h. A mode is a row of sh_bench_modes in cli/bench.c. */
#ifndef SH_CLI_BENCH_H
#define SH_CLI_BENCH_H

#include "cli/cli.h"

int sh_cmd_bench(int argc, char **argv);
extern const sh_cli_command sh_bench_modes[]; /* ends with name == NULL */

/* Ctrl-C and SIGTERM set the flag from now on, for measurements that look at it and end cleanly. */
const volatile bool *sh_cli_bench_stop(void);

#endif
