/* The options of `sheng serve`: the struct the server runs on and the one table that parsing, --help, the environment and docs/options.md
 * come from. */
#ifndef SH_SERVER_OPTIONS_H
#define SH_SERVER_OPTIONS_H

#include "base/opt.h"
#include "sheng.h"

typedef struct sh_serve_options {
  const char *model; /* the positional argument; borrowed */
  /* HTTP */
  const char *host;
  int64_t port;
  sh_strlist api_keys, api_keys_vllm; /* the second one only from VLLM_API_KEY's row */
  int64_t max_body_size;              /* bytes */
  int64_t max_connections;            /* 0 = what the file limit allows */
  int64_t shutdown_timeout;           /* seconds */
  /* model */
  sh_strlist served_names;
  const char *dtype, *quantization, *cache_dir, *chat_template, *generation_config, *default_kwargs;
  const char *response_role;
  bool trust_request_chat_template;
  int64_t seed;
  int64_t max_logprobs;
  bool return_tokens_as_ids, force_include_usage;
  /* capacity */
  int64_t max_model_len, max_num_seqs, max_num_batched_tokens, block_size, max_num_queued;
  double memory_utilization;
  int64_t memory_limit; /* bytes; 0 = the machine's or cgroup's */
  int64_t step_ms;
  /* computing */
  const char *head, *kv_cache_dtype;
  bool exact;
  int64_t threads, tensor_parallel;
  const char *cpu;
  /* logging */
  const char *log_level;
  bool log_requests, no_log_requests;
} sh_serve_options;

extern const sh_opt sh_serve_option_table[];
extern const sh_serve_options sh_serve_option_defaults;

/* What a table cannot say: a parallel size other than 1, an empty name, a chat template or JSON that cannot be right. SH_ERR_ARG,
 * SH_ERR_UNSUPPORTED. */
int sh_serve_options_check(const sh_serve_options *o, sh_error *e);
/* The engine's view of the options; `chat_template` is the text, not the option. */
void sh_serve_engine_options(const sh_serve_options *o, const char *chat_template, sh_engine_options *out);

#endif
