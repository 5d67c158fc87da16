/* Fields of a generating request: from JSON to checked values. The one table of names, types and ranges is in params.c. */
#ifndef SH_SERVER_PARAMS_H
#define SH_SERVER_PARAMS_H

#include "base/json.h"
#include "server/api.h"
#include "sheng.h"

typedef enum sh_api_kind { SH_API_CHAT = 1, SH_API_COMPLETION = 2, SH_API_TOKENIZE = 4 } sh_api_kind;

#define SH_UNSET INT64_MIN /* an integer field that was not given; NAN for numbers */

typedef struct sh_params {
  const char *model, *request_id, *chat_template, *reasoning_effort; /* NULL when not given; in the arena */
  int64_t n, best_of, max_tokens, max_completion_tokens, min_tokens, top_k, seed, truncate_prompt_tokens;
  int64_t logprobs;     /* completions: how many; chat has chat_logprobs */
  int64_t top_logprobs; /* chat */
  int64_t prompt_logprobs;
  double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  bool stream, include_usage, continuous_usage, echo;
  bool ignore_eos, include_stop_str_in_output, skip_special_tokens;
  bool add_special_tokens, add_generation_prompt, continue_final_message;
  bool return_token_ids, return_tokens_as_ids, return_token_strs, chat_logprobs;
  bool has_stream_options;
  sh_str *stop;
  int n_stop;
  sh_str *bad_words;
  int n_bad_words;
  int32_t *stop_ids;
  int n_stop_ids;
  int32_t *allowed;
  int n_allowed;
  sh_token_bias *bias;
  int n_bias;
  const sh_json *chat_template_kwargs, *documents;
} sh_params;

typedef struct sh_params_limits {
  int vocab; /* ids must be in [0, vocab) */
  int64_t max_logprobs;
} sh_params_limits;

/* Defaults of a generation_config.json: NAN and SH_UNSET where it says nothing. */
typedef struct sh_gen_defaults {
  double temperature, top_p, min_p, repetition_penalty;
  int64_t top_k, max_new_tokens;
} sh_gen_defaults;
void sh_gen_defaults_read(const sh_json *config,
                          sh_gen_defaults *out); /* config may be NULL; a value out of range is logged and left out */

/* Reads and checks every known field of `body` (an OBJECT). Unknown ones are logged. Work memory and results in `a`. */
int sh_params_parse(const sh_json *body, sh_api_kind kind, const sh_params_limits *lim, sh_arena *a, sh_params *out, sh_api_error *e);

/* The engine's parameters: request over generation_config over OpenAI's defaults. ids and max_tokens are left to the caller, bad words to
 * the next. */
void sh_params_fill(const sh_params *p, const sh_gen_defaults *d, sh_request_params *out);
/* The bad words as token sequences in `a`, into out->bad_words. vLLM's rule: every word as it stands and with a space before it, the second
 * only when the space changes the first token and not the length. SH_ERR_ARG: a word without any token. */
int sh_params_bad_words(const sh_params *p, const sh_tok *tok, sh_arena *a, sh_request_params *out, sh_error *e);

#endif
