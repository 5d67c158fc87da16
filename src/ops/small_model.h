/* The model beside the program: what `serve` and `run` use when no MODEL is given. */
#ifndef SH_OPS_SMALL_MODEL_H
#define SH_OPS_SMALL_MODEL_H

#include "base/err.h"

#define SH_SMALL_MODEL "sheng-small" /* its folder's name, and the name it is served under */

/* The model's folder beside the running program. *path: allocated (sh_free). SH_ERR_NOT_FOUND names the places that were looked at. */
int sh_small_model_find(char **path, sh_error *e);

/* The same for a program in the folder `dir`: looks in dir/models, dir/../share/sheng/models (installed) and dir/../../models
 * (build/release/sheng in the source tree). */
int sh_small_model_find_from(const char *dir, char **path, sh_error *e);

#endif
