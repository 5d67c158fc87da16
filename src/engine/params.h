/* Checking a request's parameters. */
#ifndef SH_ENGINE_PARAMS_H
#define SH_ENGINE_PARAMS_H

#include "engine/request.h"

/* 0, SH_ERR_ARG or SH_ERR_LIMIT as sh_request_submit says. */
int sh_params_check(const sh_request_env *env, const sh_request_params *p, sh_error *e);

#endif
