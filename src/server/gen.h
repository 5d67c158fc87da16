/* A generating call: its prompts at the engine, their events, and the answer that grows from them. Chat and completions differ only in a
 * sh_gen_format.
 *
 * Made on a text worker (sh_gen_new, prompts, sh_gen_prepare), run on the loop thread (sh_gen_start and everything after). */
#ifndef SH_SERVER_GEN_H
#define SH_SERVER_GEN_H

#include "server/logprobs.h"
#include "server/params.h"
#include "server/state.h"

typedef struct sh_run sh_run;
typedef struct sh_choice sh_choice;

/* One choice of one prompt. When streaming, text, ids and log probabilities are those since the last chunk. */
struct sh_choice {
  int index; /* in the answer: prompt-major */
  sh_run *run;
  sh_buf text;
  sh_ids ids;
  sh_buf chat_logprobs;
  sh_lp_lists lists;
  int64_t offset; /* characters, of lists */
  int tokens;     /* drawn so far */
  bool opened;    /* its first chunk has been written */
  bool pending;   /* streaming: a token waits for the end of the turn, so that the last one and the finish share a chunk */
  bool done;
  sh_finish finish;
  int32_t stop_id; /* -1 */
  const char *stop_str;
  size_t stop_str_len;
};

/* One prompt: one request of the engine. */
struct sh_run {
  sh_gen *gen;
  int index;
  const int32_t *ids; /* in the arena */
  int n_ids;
  const char *text; /* the prompt's text, for echo; NULL when not needed */
  size_t text_len;
  int max_tokens;
  sh_request *req; /* NULL before the start, and when there is nothing to compute */
  sh_task task;    /* the engine has events */
  bool ended;
  sh_buf prompt_logprobs; /* list of prompt_logprobs, without the first null */
  sh_lp_lists echo;       /* /v1/completions: log probabilities of an echoed prompt */
  int64_t echo_chars;
};

typedef struct sh_gen_format {
  const char *id_prefix;
  void (*collect)(sh_gen *g, sh_run *r, sh_choice *c, const sh_event *ev); /* log probabilities; c is NULL for prompt events */
  void (*chunk)(sh_gen *g, sh_choice *c, sh_jw *w);                        /* streaming: members of the one entry of "choices" */
  void (*reply)(sh_gen *g, sh_jw *w);                                      /* members of the whole answer after "model" */
  const char *object, *chunk_object;
  bool role_first; /* a stream opens with an empty chunk per choice (chat's role) */
} sh_gen_format;

struct sh_gen {
  sh_call *call;
  const sh_gen_format *format;
  const sh_params *params;
  sh_request_params engine; /* shared by all prompts; pointers into the arena */
  sh_lp lp;
  int n_logprobs;        /* -1 none: of drawn tokens, as the request asked */
  int n_prompt_logprobs; /* -1 none: of the field prompt_logprobs */
  bool include_usage;
  const char *id, *model;
  const char *role;   /* chat: of the answer */
  const char *prefix; /* chat, echo: text put before the answer; NULL */
  int64_t created;    /* Unix seconds */
  sh_run *runs;       /* [n_runs] */
  int n_runs;
  sh_choice *choices; /* [n_runs * engine.n] */
  int n_choices;
  int live;       /* runs not yet ended */
  bool streaming; /* the answer has begun */
  bool paused;    /* the client is slow */
  sh_buf sse;     /* chunks of one drain */
};

/* Text worker. NULL: out of memory. Lives in the call's arena; sh_gen_free releases what it holds beyond. `n_prompts` runs are made, to be
 * filled by the caller. */
sh_gen *sh_gen_new(sh_call *c, const sh_gen_format *format, const sh_params *p, int n_prompts, sh_api_error *e);
void sh_gen_free(sh_gen *g); /* accepts NULL */
/* Text worker: when all prompts are in: bad words, log probability counts, lengths against the context. `default_max`: new tokens when the
 * request names none; 0 = what is left. */
int sh_gen_prepare(sh_gen *g, int64_t max_tokens, int64_t default_max, sh_api_error *e);

/* Loop thread. */
void sh_gen_start(sh_gen *g); /* submits; the call is answered and freed when it fails */
void sh_gen_writable(sh_gen *g);
void sh_gen_cancel(sh_gen *g); /* its choices end with "abort" */

/* For formats. */
void sh_gen_usage(sh_jw *w, int64_t prompt_tokens, int64_t completion_tokens);
void sh_gen_usage_all(sh_gen *g, sh_jw *w);
const char *sh_gen_finish_name(sh_finish f); /* NULL for none */
void sh_gen_stop_reason(sh_jw *w, const sh_choice *c);
void sh_gen_prompt_logprobs(sh_jw *w, const sh_run *r, const sh_gen *g); /* the key and the list, or null */

#endif
