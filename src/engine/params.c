/* Checking a request's parameters: every value that comes from outside is judged here, in the words of the wire, before anything is
 * allocated.
 *
 * Any thread; pure. Ranges are vLLM's. What is refused here can never fail inside a step. */
#include "engine/params.h"

#include "base/text.h"

#include <math.h>

void sh_request_defaults(sh_request_params *p) {
  *p = (sh_request_params){
      .n = 1,
      .max_tokens = 16,
      .temperature = 1,
      .top_p = 1,
      .repetition_penalty = 1,
      .logprobs = -1,
      .prompt_logprobs = -1,
      .skip_special_tokens = true,
  };
}

static int check_ids(const char *name, const int32_t *ids, int n, int vocab, sh_error *e) {
  for (int i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return sh_fail(e, SH_ERR_ARG, "%s: token id %d is out of the vocabulary [0, %d)", name, (int)ids[i], vocab);
  return 0;
}

/* min and max inclusive; a NaN fails every comparison. */
static int check_range(const char *name, float v, float min, float max, sh_error *e) {
  if (v >= min && v <= max && isfinite(v)) return 0;
  if (max >= 1e30f) return sh_fail(e, SH_ERR_ARG, "%s must be a finite number of at least %g, got %g", name, (double)min, (double)v);
  return sh_fail(e, SH_ERR_ARG, "%s must be between %g and %g, got %g", name, (double)min, (double)max, (double)v);
}

static int check_numbers(const sh_request_params *p, sh_error *e) {
  int rc = 0;
  if ((rc = check_range("temperature", p->temperature, 0, 3e38f, e))) return rc;
  if ((rc = check_range("top_p", p->top_p, 0, 1, e))) return rc;
  if (p->top_p == 0) return sh_fail(e, SH_ERR_ARG, "top_p must be above 0");
  if ((rc = check_range("min_p", p->min_p, 0, 1, e))) return rc;
  if (p->top_k < -1) return sh_fail(e, SH_ERR_ARG, "top_k must be -1 or 0 (off) or positive, got %d", p->top_k);
  if ((rc = check_range("repetition_penalty", p->repetition_penalty, 0, 3e38f, e))) return rc;
  if (p->repetition_penalty == 0) return sh_fail(e, SH_ERR_ARG, "repetition_penalty must be above 0");
  if ((rc = check_range("presence_penalty", p->presence_penalty, -2, 2, e))) return rc;
  if ((rc = check_range("frequency_penalty", p->frequency_penalty, -2, 2, e))) return rc;
  if (p->n < 1 || p->n > SH_MAX_CHOICES) return sh_fail(e, SH_ERR_ARG, "n must be between 1 and %d, got %d", SH_MAX_CHOICES, p->n);
  if (p->logprobs < -1 || p->logprobs > SH_MAX_LOGPROBS)
    return sh_fail(e, SH_ERR_ARG, "logprobs must be between 0 and %d, got %d", SH_MAX_LOGPROBS, p->logprobs);
  if (p->prompt_logprobs < -1 || p->prompt_logprobs > SH_MAX_LOGPROBS)
    return sh_fail(e, SH_ERR_ARG, "prompt_logprobs must be between 0 and %d, got %d", SH_MAX_LOGPROBS, p->prompt_logprobs);
  return 0;
}

static int check_lengths(const sh_request_env *env, const sh_request_params *p, sh_error *e) {
  if (p->n_ids < 1) return sh_fail(e, SH_ERR_ARG, "the prompt holds no token; at least one is needed");
  if (p->max_tokens < 0) return sh_fail(e, SH_ERR_ARG, "max_tokens must not be negative, got %d", p->max_tokens);
  if (p->max_tokens == 0 && p->prompt_logprobs < 0)
    return sh_fail(e, SH_ERR_ARG, "max_tokens must be at least 1 (0 is allowed with prompt_logprobs only)");
  if (p->min_tokens < 0 || p->min_tokens > p->max_tokens)
    return sh_fail(e, SH_ERR_ARG, "min_tokens must be between 0 and max_tokens (%d), got %d", p->max_tokens, p->min_tokens);
  if ((int64_t)p->n_ids + p->max_tokens > env->max_model_len)
    return sh_fail(e, SH_ERR_LIMIT,
                   "this model's maximum context length is %d tokens; the prompt has %d and %d were asked for as max_tokens, %lld together",
                   env->max_model_len, p->n_ids, p->max_tokens, (long long)p->n_ids + p->max_tokens);
  return 0;
}

static int check_stops(const sh_request_params *p, sh_error *e) {
  if (p->n_stop < 0 || p->n_stop > SH_MAX_STOPS) return sh_fail(e, SH_ERR_ARG, "stop: at most %d strings, got %d", SH_MAX_STOPS, p->n_stop);
  size_t bytes = 0;
  for (int i = 0; i < p->n_stop; i++) {
    const sh_str *s = &p->stop[i];
    if (s->n == 0) return sh_fail(e, SH_ERR_ARG, "stop: a stop string must not be empty");
    if (s->n > SH_MAX_STOP_BYTES || (bytes += s->n) > SH_MAX_STOP_BYTES)
      return sh_fail(e, SH_ERR_ARG, "stop: the strings have more than %d bytes together", SH_MAX_STOP_BYTES);
    if (!sh_utf8_valid(s->p, s->n)) return sh_fail(e, SH_ERR_ARG, "stop: string %d is not valid UTF-8", i);
  }
  return 0;
}

int sh_params_check(const sh_request_env *env, const sh_request_params *p, sh_error *e) {
  int rc = 0;
  if ((rc = check_numbers(p, e))) return rc;
  if ((rc = check_lengths(env, p, e))) return rc;
  if ((rc = check_ids("prompt", p->ids, p->n_ids, env->vocab, e))) return rc;
  if ((rc = check_stops(p, e))) return rc;
  if (p->n_stop_ids < 0 || p->n_bias < 0 || p->n_allowed < 0 || p->n_bad_words < 0)
    return sh_fail(e, SH_ERR_ARG, "a list has a negative length");
  if ((rc = check_ids("stop_token_ids", p->stop_ids, p->n_stop_ids, env->vocab, e))) return rc;
  if ((rc = check_ids("allowed_token_ids", p->allowed, p->n_allowed, env->vocab, e))) return rc;
  for (int i = 0; i < p->n_bias; i++) {
    if ((rc = check_ids("logit_bias", &p->bias[i].id, 1, env->vocab, e))) return rc;
    if (!isfinite(p->bias[i].bias))
      return sh_fail(e, SH_ERR_ARG, "logit_bias: the bias of token id %d is not a number", (int)p->bias[i].id);
  }
  for (int i = 0; i < p->n_bad_words; i++) {
    if (p->bad_words[i].n < 1) return sh_fail(e, SH_ERR_ARG, "bad_words: an entry holds no token");
    if ((rc = check_ids("bad_words", p->bad_words[i].v, p->bad_words[i].n, env->vocab, e))) return rc;
  }
  return 0;
}
