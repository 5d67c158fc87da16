/* `sheng eval`: how good a model is, and how near to another. */
#ifndef SH_CLI_EVAL_H
#define SH_CLI_EVAL_H

#include "base/opt.h"

int sh_cmd_eval(int argc, char **argv);
void sh_cmd_eval_options(const sh_opt **table, const void **defaults); /* for the docs page */

#endif
