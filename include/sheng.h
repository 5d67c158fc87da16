/* sheng.h: what the server, the operator's tools and main() see of the engine.
 *
 * Who may know what. The engine owns the model, the caches and one thread; it takes token ids and gives back tokens with their text. It
 * knows nothing of HTTP, JSON or chat. A front end (server, terminal chat, batch tool) turns what a user said into a sh_request_params,
 * submits it, and drains the events. Everything between the two goes through the functions below; all types are opaque but the plain
 * structs of parameters and events.
 *
 * Threads. sh_engine_open/_start/_stop/_close belong to one owning thread. sh_request_submit, _next, _cancel, _free and the queries may be
 * called from any thread, but one request by one thread at a time. The engine calls `notify` from its own thread when a request has events
 * to read: it must only wake somebody up (write to an eventfd, signal a condition) and return. sh_request_free waits for a call that is
 * under way, so it must not be called with a lock held that notify takes; all other functions may.
 *
 * Back pressure. Each request has a bounded ring of events. While it is full the request's sequences are left out of the batch (parked);
 * nothing is dropped. A request that is freed or cancelled leaves the batch before the next step.
 *
 * Trust. The tokens of a request do not depend on what else runs: not on the batch, chunking, preemption or thread count. The same
 * parameters and seed give the same text. */
#ifndef SHENG_H
#define SHENG_H

#include "base/err.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#define SHENG_VERSION "0.1.0"

typedef struct sh_engine sh_engine;
typedef struct sh_request sh_request;

/* --- Starting --- */
typedef struct sh_engine_options {
  const char *model;              /* folder or .gguf; borrowed until sh_engine_close */
  int64_t max_model_len;          /* tokens of prompt + answer; 0 = what the model allows, shortened to what fits in memory */
  int64_t max_num_seqs;           /* sequences running at once; 0 = chosen from memory, at most 64 */
  int64_t max_num_batched_tokens; /* most tokens of a step; the time budget below may give less; 0 = 2048 */
  int64_t block_size;             /* tokens of a KV page; 0 = 16 */
  int64_t max_num_queued;         /* requests waiting before submit answers SH_ERR_BUSY; 0 = 1024 */
  double memory_utilization;      /* share of the cgroup's or machine's memory, weights included; 0 = 0.9 */
  int64_t memory_limit;           /* bytes; 0 = that of the cgroup or machine. For tests and tools */
  const char *dtype; /* "auto", "bfloat16", "float16", "float32": what the user asked; the CPU computes in float32 on the stored weights */
  const char *quantization; /* NULL or the method the checkpoint must have */
  bool exact;               /* float32 on the stored weights, float32 KV; the reference numbers */
  const char *head;         /* what a head of floats is rounded to: NULL or "auto", "int4", "int6", "int8", "bf16"; not with exact */
  const char
      *kv_cache_dtype;       /* NULL or "auto" (bfloat16, float32 with exact), "float32", "bfloat16", "int8"; not the last two with exact */
  int64_t threads;           /* 0 = every usable core */
  const char *cpu;           /* NULL, "native", "avx2", "baseline" */
  int64_t step_ms;           /* target time of a step with prompt tokens; 0 = 100 */
  uint64_t seed;             /* of requests without one: mixed with their number */
  const char *cache_dir;     /* of repacked weights; NULL = .sheng-cache in the model's folder, "" = memory. Borrowed during open */
  bool plan_only;            /* for a look at the plan: the weights are not read, and the engine is not started */
  const char *chat_template; /* text that replaces the model's; NULL = the model's. Borrowed during open */
} sh_engine_options;

typedef struct sh_plan { /* the memory plan, filled by sh_engine_open */
  int64_t total_bytes, budget_bytes;
  int64_t weight_bytes; /* mapped from files (page cache that the system may drop and read again), or repacked into memory */
  int64_t scratch_bytes, state_bytes_per_seq, kv_bytes_per_token;
  int64_t model_max_len, max_model_len; /* what the model allows; what is served */
  int64_t max_num_seqs, n_pages, page_size;
  int64_t max_num_batched_tokens;
  bool shortened; /* max_model_len was cut to fit */
} sh_plan;

/* Opens the checkpoint, makes the plan, binds the weights; nothing runs yet. Caller frees with sh_engine_close. */
int sh_engine_open(sh_engine **out, const sh_engine_options *o, sh_error *e);
int sh_engine_start(sh_engine *g, sh_error *e); /* starts the thread and warms up (one prompt and one decode step); returns when warm */
void sh_engine_drain(sh_engine *g);             /* new requests get SH_ERR_BUSY; running ones go on */
void sh_engine_close(sh_engine *g); /* accepts NULL; cancels what runs, joins the thread; requests still held must be freed first */

const sh_plan *sh_engine_plan(const sh_engine *g);
const char *sh_engine_describe(const sh_engine *g); /* model, weights, device: for the start line */
const sh_tok *sh_engine_tokenizer(const sh_engine *g);
const sh_chat *sh_engine_chat(const sh_engine *g);              /* NULL: the model has no chat template */
const sh_json *sh_engine_generation_config(const sh_engine *g); /* OBJECT or NULL (GGUF: made from general.sampling.*) */
int sh_engine_vocab_size(const sh_engine *g);                   /* ids a request may name: [0, vocab) of the tokenizer */

typedef struct sh_stats {           /* counters since start and gauges now; all under one lock, consistent */
  int64_t running, waiting, parked; /* sequences */
  int64_t pages_used, pages_total;
  int64_t prompt_tokens, generation_tokens; /* computed, sampled */
  int64_t requests_finished, requests_cancelled, requests_failed, preemptions, steps;
} sh_stats;
void sh_engine_stats(sh_engine *g, sh_stats *out);

/* --- Requests --- */
typedef struct sh_token_bias {
  int32_t id;
  float bias;
} sh_token_bias;
typedef struct sh_str {
  const char *p;
  size_t n;
} sh_str;
typedef struct sh_id_list {
  const int32_t *v;
  int n;
} sh_id_list;

/* Zero-initialise with sh_request_defaults. Everything pointed to is copied by submit. */
typedef struct sh_request_params {
  const int32_t *ids;
  int n_ids;          /* the prompt, >= 1 token */
  int n;              /* choices, 1..128; they share one prefill */
  int max_tokens;     /* new tokens per choice, >= 0 (0 only with prompt logprobs); prompt + max_tokens <= max_model_len */
  int min_tokens;     /* end tokens and stop ids cannot be drawn before; stop strings are not looked for */
  float temperature;  /* 0 = greedy; vLLM: below 1e-5 is greedy */
  float top_p, min_p; /* 1, 0 = off */
  int top_k;          /* 0 or -1 = off */
  float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0 = off */
  bool has_seed;
  uint64_t seed;
  const sh_str *stop;
  int n_stop; /* stop strings */
  bool include_stop_str_in_output;
  const int32_t *stop_ids;
  int n_stop_ids; /* in addition to the model's end tokens */
  bool ignore_eos;
  const sh_token_bias *bias;
  int n_bias; /* clamped to +-100 by the caller */
  const sh_id_list *bad_words;
  int n_bad_words; /* token sequences that must not be completed */
  const int32_t *allowed;
  int n_allowed;            /* only these ids; n_allowed 0 = all */
  int logprobs;             /* -1 none; 0 the chosen token's; k also the k most likely */
  int prompt_logprobs;      /* likewise, for prompt positions 1.. */
  bool skip_special_tokens; /* in the text */
} sh_request_params;
void sh_request_defaults(sh_request_params *p); /* vLLM's: n 1, max_tokens 16, temperature 1, everything else off */

typedef enum sh_finish {
  SH_FINISH_NONE = 0,
  SH_FINISH_STOP,   /* an end token, a stop id or a stop string */
  SH_FINISH_LENGTH, /* max_tokens or the context */
  SH_FINISH_ABORT,  /* cancelled, or the engine closed */
  SH_FINISH_ERROR,  /* the event's text says why */
} sh_finish;

typedef struct sh_logprob {
  int32_t id;
  float logprob;
  int32_t rank;
} sh_logprob; /* rank 1 = most likely */

typedef enum sh_event_type {
  SH_EV_PROMPT, /* log probabilities of one prompt position (1..n_ids-1), in order, before any token: chosen, top */
  SH_EV_TOKEN,  /* one token of one choice: its id, chosen/top if asked, and the text that became certain with it (may be empty: held back
                   for UTF-8 or a stop string) */
  SH_EV_FINISH, /* a choice ended: reason, what stopped it, and the last held-back text */
  SH_EV_END,    /* after every choice's FINISH: nothing follows */
} sh_event_type;

/* Valid until the next sh_request_next or sh_request_free on the same request. */
typedef struct sh_event {
  sh_event_type type;
  int choice;   /* 0..n-1 */
  int position; /* PROMPT: prompt position; TOKEN: number of the new token, from 0 */
  int32_t id;   /* PROMPT: the prompt's id. TOKEN: drawn id; an end token or stop id is reported as a TOKEN before its FINISH, with
                   empty text unless include_stop_str_in_output was asked (skip_special_tokens still leaves special ones out) */
  const char *text;
  size_t text_len;   /* valid UTF-8 */
  sh_logprob chosen; /* PROMPT, TOKEN when logprobs were asked: raw log-softmax of the model's logits (vLLM's default) */
  const sh_logprob *top;
  int n_top;        /* most likely first */
  sh_finish finish; /* FINISH */
  int32_t stop_id;  /* FINISH by a stop id given in the request: that id, else -1 */
  const char *stop_str;
  size_t stop_str_len; /* FINISH by a stop string: it, else NULL */
  const char *error;   /* FINISH with SH_FINISH_ERROR */
  int error_code; /* an sh_err beside it. SH_ERR_ARG: the request's own parameters led there, else it is not the request's fault; 0: none */
  int prompt_tokens, completion_tokens; /* FINISH: of this choice */
} sh_event;

typedef void (*sh_notify_fn)(void *ctx);

/* Checks and queues a request. SH_ERR_ARG: a parameter is wrong (the sentence names it in wire terms); SH_ERR_LIMIT: prompt + max_tokens
 * over the context (both numbers); SH_ERR_BUSY: queue full or draining. notify may be NULL (poll, or sh_request_wait). Caller frees with
 * sh_request_free. */
int sh_request_submit(sh_engine *g, const sh_request_params *p, sh_notify_fn notify, void *ctx, sh_request **out, sh_error *e);
bool sh_request_next(sh_request *r, sh_event *ev);   /* takes the next event; false: none now */
bool sh_request_wait(sh_request *r, int timeout_ms); /* until an event is there; false on timeout */
void sh_request_cancel(sh_request *r);               /* its choices end with ABORT within one step */
void sh_request_free(sh_request *r);                 /* accepts NULL; cancels if it still runs; notify is never called after it returns */

#endif
