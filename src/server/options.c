/* Options of `sheng serve`.
 *
 * One row of the table below gives an option its parsing, its range, its environment variable, its line in --help and in docs/options.md;
 * adding an option is adding a row and a field. Names are vLLM's where the meaning is the same, so that a command line moves over
 * unchanged. Everything here runs on the main thread before the server exists.
 *
 * Refused alternative: accepting vLLM's options that mean nothing here (--enforce-eager and the like) in silence. An option that has no
 * effect misleads; the parser names the closest one that exists. */
#include "server/options.h"
#include "formats/kv.h"
#include "formats/panel.h"
#include <string.h>

#define AT(field) offsetof(sh_serve_options, field)
#define HTTP "HTTP"
#define MODEL "Model and answers"
#define CAPACITY "Memory and batching"
#define COMPUTE "Computing"
#define LOGGING "Logging"

const sh_opt sh_serve_option_table[] = {
    {"host", NULL, SH_OPT_STR, AT(host), 0, 0, NULL, "SHENG_HOST", HTTP, "ADDRESS",
     "Address to listen on; 0.0.0.0 or :: for every interface."},
    {"port", NULL, SH_OPT_INT, AT(port), 0, 65535, NULL, "SHENG_PORT", HTTP, "N", "Port to listen on; 0 takes a free one and prints it."},
    {"api-key", NULL, SH_OPT_LIST, AT(api_keys), 0, 0, NULL, "SHENG_API_KEY", HTTP, "KEY",
     "Key that clients of /v1, /tokenize and /detokenize must send (Authorization: Bearer, or x-api-key); repeatable."},
    {"vllm-api-key", NULL, SH_OPT_LIST, AT(api_keys_vllm), 0, 0, NULL, "VLLM_API_KEY", HTTP, "KEY",
     "More keys: this row exists for the environment variable."},
    {"max-body-size", NULL, SH_OPT_SIZE, AT(max_body_size), 1024, 1073741824, NULL, "SHENG_MAX_BODY_SIZE", HTTP, "SIZE",
     "Largest request body; a larger one is answered 413."},
    {"max-connections", NULL, SH_OPT_INT, AT(max_connections), 0, 1000000, NULL, "SHENG_MAX_CONNECTIONS", HTTP, "N",
     "Open connections at most; 0 takes what the limit of open files allows."},
    {"shutdown-timeout", NULL, SH_OPT_INT, AT(shutdown_timeout), 0, 86400, NULL, "SHENG_SHUTDOWN_TIMEOUT", HTTP, "SECONDS",
     "How long SIGTERM or SIGINT waits for running requests; a second signal ends at once."},

    {"served-model-name", NULL, SH_OPT_LIST, AT(served_names), 0, 0, NULL, "SHENG_SERVED_MODEL_NAME", MODEL, "NAME",
     "Names that requests may use for the model, the first one is shown in answers; default: MODEL as given."},
    {"dtype", NULL, SH_OPT_ENUM, AT(dtype), 0, 0, "auto|bfloat16|float16|float32|half|float", "SHENG_DTYPE", MODEL, NULL,
     "What the weights are expected to be; they are used as stored, whatever this says."},
    {"quantization", "q", SH_OPT_STR, AT(quantization), 0, 0, NULL, "SHENG_QUANTIZATION", MODEL, "METHOD",
     "Refuse a checkpoint that is not quantized by this method; found by itself when not given."},
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", MODEL, "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    {"chat-template", NULL, SH_OPT_STR, AT(chat_template), 0, 0, NULL, "SHENG_CHAT_TEMPLATE", MODEL, "FILE|TEXT",
     "Chat template in place of the model's: a file, or the template itself when it holds {{ or {%."},
    {"default-chat-template-kwargs", NULL, SH_OPT_STR, AT(default_kwargs), 0, 0, NULL, "SHENG_DEFAULT_CHAT_TEMPLATE_KWARGS", MODEL, "JSON",
     "Template variables of every chat, e.g. {\"enable_thinking\": false}; a request's chat_template_kwargs come on top."},
    {"trust-request-chat-template", NULL, SH_OPT_FLAG, AT(trust_request_chat_template), 0, 0, NULL, "SHENG_TRUST_REQUEST_CHAT_TEMPLATE",
     MODEL, NULL, "Let a request bring its own chat_template."},
    {"response-role", NULL, SH_OPT_STR, AT(response_role), 0, 0, NULL, "SHENG_RESPONSE_ROLE", MODEL, "ROLE",
     "Role of the answer when a generation prompt is added."},
    {"generation-config", NULL, SH_OPT_STR, AT(generation_config), 0, 0, NULL, "SHENG_GENERATION_CONFIG", MODEL, "auto|vllm|FOLDER",
     "Sampling defaults: the model's generation_config.json (auto), none (vllm), or that of a folder."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 9007199254740992.0, NULL, "SHENG_SEED", MODEL, "N", "Seed of requests that bring none."},
    {"max-logprobs", NULL, SH_OPT_INT, AT(max_logprobs), 0, 1000, NULL, "SHENG_MAX_LOGPROBS", MODEL, "N",
     "Most log probabilities per token that a request may ask for."},
    {"return-tokens-as-token-ids", NULL, SH_OPT_FLAG, AT(return_tokens_as_ids), 0, 0, NULL, "SHENG_RETURN_TOKENS_AS_TOKEN_IDS", MODEL, NULL,
     "Write tokens in log probabilities as token_id:N."},
    {"enable-force-include-usage", NULL, SH_OPT_FLAG, AT(force_include_usage), 0, 0, NULL, "SHENG_ENABLE_FORCE_INCLUDE_USAGE", MODEL, NULL,
     "Send the usage chunk at the end of every stream, asked for or not."},

    {"max-model-len", NULL, SH_OPT_INT, AT(max_model_len), 0, 16777216, NULL, "SHENG_MAX_MODEL_LEN", CAPACITY, "TOKENS",
     "Prompt and answer together; 0 takes the model's, shortened to what fits in memory."},
    {"max-num-seqs", NULL, SH_OPT_INT, AT(max_num_seqs), 0, 65536, NULL, "SHENG_MAX_NUM_SEQS", CAPACITY, "N",
     "Sequences running at once; 0 chooses from the memory, at most 64."},
    {"max-num-batched-tokens", NULL, SH_OPT_INT, AT(max_num_batched_tokens), 0, 1048576, NULL, "SHENG_MAX_NUM_BATCHED_TOKENS", CAPACITY,
     "TOKENS", "Most tokens of one step; 0 is 2048."},
    {"max-num-queued-reqs", NULL, SH_OPT_INT, AT(max_num_queued), 0, 1048576, NULL, "SHENG_MAX_NUM_QUEUED_REQS", CAPACITY, "N",
     "Requests that may wait; further ones are answered 503. 0 is 1024."},
    {"block-size", NULL, SH_OPT_INT, AT(block_size), 0, 1024, NULL, "SHENG_BLOCK_SIZE", CAPACITY, "TOKENS",
     "Tokens of a page of the KV cache; 0 is 16."},
    {"memory-utilization", "gpu-memory-utilization", SH_OPT_FLOAT, AT(memory_utilization), 0.01, 1, NULL, "SHENG_MEMORY_UTILIZATION",
     CAPACITY, "SHARE", "Share of the cgroup's or the machine's memory that may be used, weights included."},
    {"memory-limit", NULL, SH_OPT_SIZE, AT(memory_limit), 0, 0, NULL, "SHENG_MEMORY_LIMIT", CAPACITY, "SIZE",
     "Count this much as the machine's memory; 0 asks the system."},
    {"step-ms", NULL, SH_OPT_INT, AT(step_ms), 0, 10000, NULL, "SHENG_STEP_MS", CAPACITY, "MS",
     "Target time of a step that reads prompts: shorter answers a hang-up sooner, longer reads prompts faster. 0 is 100."},

    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, "SHENG_HEAD", COMPUTE, "TYPE", SH_HEAD_HELP},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, "SHENG_KV_CACHE_DTYPE", COMPUTE, "TYPE", SH_KV_HELP},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, "SHENG_EXACT", COMPUTE, NULL,
     "float32 everywhere, the KV cache too: the reference numbers."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, "SHENG_THREADS", COMPUTE, "N",
     "Threads that compute; 0 is one per usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", "SHENG_CPU", COMPUTE, NULL, "Instructions to use at most."},
    {"tensor-parallel-size", "tp", SH_OPT_INT, AT(tensor_parallel), 1, 1024, NULL, "SHENG_TENSOR_PARALLEL_SIZE", COMPUTE, "N",
     "Devices that share one model; only 1 is possible."},

    {"log-level", NULL, SH_OPT_ENUM, AT(log_level), 0, 0, "error|warning|warn|info|debug", "SHENG_LOG_LEVEL", LOGGING, NULL,
     "What is written to stderr."},
    {"enable-log-requests", NULL, SH_OPT_FLAG, AT(log_requests), 0, 0, NULL, "SHENG_ENABLE_LOG_REQUESTS", LOGGING, NULL,
     "One line for every request answered."},
    {"disable-log-requests", NULL, SH_OPT_FLAG, AT(no_log_requests), 0, 0, NULL, "SHENG_DISABLE_LOG_REQUESTS", LOGGING, NULL,
     "Wins over --enable-log-requests."},
    {0},
};

const sh_serve_options sh_serve_option_defaults = {
    .host = "127.0.0.1",
    .port = 8000,
    .max_body_size = 32 << 20,
    .shutdown_timeout = 30,
    .dtype = "auto",
    .generation_config = "auto",
    .response_role = "assistant",
    .max_logprobs = 20,
    .memory_utilization = 0.9,
    .tensor_parallel = 1,
    .head = "auto",
    .kv_cache_dtype = "auto",
    .cpu = "native",
    .log_level = "info",
};

static int check_kwargs(const char *text, sh_error *e) {
  sh_arena *a = sh_arena_new(16 << 20);
  if (!a) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  sh_json *v = NULL;
  int rc = sh_json_parse(text, strlen(text), NULL, a, &v, e);
  if (rc == SH_OK && !sh_json_is(v, SH_JSON_OBJECT))
    rc = sh_fail(e, SH_ERR_ARG, "a JSON object is wanted, found %s", sh_json_type_name(v->type));
  if (rc != SH_OK) sh_fail_in(e, rc, "--default-chat-template-kwargs");
  sh_arena_free(a);
  return rc;
}

static int check_list(const char *option, const sh_strlist *l, sh_error *e) {
  for (int i = 0; i < l->n; i++) {
    if (!l->v[i][0]) return sh_fail(e, SH_ERR_ARG, "--%s: an empty value was given", option);
    if (strlen(l->v[i]) > 1024) return sh_fail(e, SH_ERR_ARG, "--%s: a value is longer than 1024 bytes", option);
  }
  return SH_OK;
}

int sh_serve_options_check(const sh_serve_options *o, sh_error *e) {
  int rc;
  if (o->tensor_parallel != 1)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "--tensor-parallel-size %lld: a model runs on one device; leave the option out or give 1",
                   (long long)o->tensor_parallel);
  if ((rc = check_list("api-key", &o->api_keys, e)) || (rc = check_list("api-key", &o->api_keys_vllm, e)) ||
      (rc = check_list("served-model-name", &o->served_names, e)))
    return rc;
  if (!o->response_role[0]) return sh_fail(e, SH_ERR_ARG, "--response-role: an empty value was given");
  return o->default_kwargs && o->default_kwargs[0] ? check_kwargs(o->default_kwargs, e) : SH_OK;
}

void sh_serve_engine_options(const sh_serve_options *o, const char *chat_template, sh_engine_options *out) {
  const char *dtype = o->dtype; /* vLLM's second names of two types */
  if (!strcmp(dtype, "half")) dtype = "float16";
  if (!strcmp(dtype, "float")) dtype = "float32";
  *out = (sh_engine_options){
      .model = o->model,
      .max_model_len = o->max_model_len,
      .max_num_seqs = o->max_num_seqs,
      .max_num_batched_tokens = o->max_num_batched_tokens,
      .block_size = o->block_size,
      .max_num_queued = o->max_num_queued,
      .memory_utilization = o->memory_utilization,
      .memory_limit = o->memory_limit,
      .dtype = dtype,
      .quantization = o->quantization,
      .cache_dir = o->cache_dir,
      .exact = o->exact,
      .head = o->head,
      .kv_cache_dtype = o->kv_cache_dtype,
      .threads = o->threads,
      .cpu = o->cpu,
      .step_ms = o->step_ms,
      .seed = (uint64_t)o->seed,
      .chat_template = chat_template,
  };
}
