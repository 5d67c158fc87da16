/* `sheng bench serve`: load on a server with OpenAI's API. */
#ifndef SH_CLI_BENCH_SERVE_H
#define SH_CLI_BENCH_SERVE_H

#include "base/opt.h"

int sh_cmd_bench_serve(int argc, char **argv);                                /* argv[0] is "serve" */
void sh_cmd_bench_serve_options(const sh_opt **table, const void **defaults); /* for the docs page */

#endif
