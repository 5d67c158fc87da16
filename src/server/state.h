/* The server's state, shared by the files of src/server. Fields belong to the loop thread but where noted; what is set before `phase`
 * becomes PHASE_READY is constant afterwards and may be read by text workers. */
#ifndef SH_SERVER_STATE_H
#define SH_SERVER_STATE_H

#include "server/api.h"
#include "server/options.h"
#include "server/params.h"
#include "sheng.h"

typedef enum sh_phase { SH_PHASE_LOADING, SH_PHASE_READY, SH_PHASE_DRAINING, SH_PHASE_FAILED } sh_phase;

typedef struct sh_counters { /* since start; loop thread */
  int64_t finished[5];       /* choices by sh_finish */
  int64_t rejected;          /* requests answered 503 because a queue was full */
} sh_counters;

struct sh_server {
  const sh_serve_options *opt;
  sh_loop *loop;
  sh_http *http;
  sh_workers *workers;
  sh_engine *engine; /* constant from PHASE_READY on */
  sh_phase phase;
  sh_arena *arena;    /* names, defaults */
  const char **names; /* [n_names], the first one is shown */
  int n_names;
  const sh_json *default_kwargs; /* OBJECT or NULL */
  sh_gen_defaults defaults;
  const char *fingerprint;
  const char *bos, *eos; /* the tokenizer's spelling; "" when none */
  sh_counters counters;
  sh_call *calls;
  int n_calls;
  int64_t started; /* Unix seconds */
};

/* true when `name` is one of the served names. Any thread. */
bool sh_server_has_name(const sh_server *s, const char *name);
/* The served model a request names: absent or null is the first one; 404 for a stranger. *shown: what answers say. */
int sh_server_model(const sh_server *s, const sh_json *body, const char **shown, sh_api_error *e);

/* handlers (api_chat.c, api_completions.c, api_misc.c, metrics.c) */
int sh_api_chat(sh_call *c, sh_api_error *e);
int sh_api_completions(sh_call *c, sh_api_error *e);
int sh_api_tokenize(sh_call *c, sh_api_error *e);
int sh_api_detokenize(sh_call *c, sh_api_error *e);
int sh_api_models(sh_call *c, sh_api_error *e);
int sh_api_model(sh_call *c, sh_api_error *e);
int sh_api_health(sh_call *c, sh_api_error *e);
int sh_api_version(sh_call *c, sh_api_error *e);
int sh_api_metrics(sh_call *c, sh_api_error *e);

#endif
