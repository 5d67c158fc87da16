/* The memory plan. A pure function of numbers, made once before anything is loaded, so that a start that cannot work says so at once and in
 * bytes.
 *
 * budget = total * utilization. From it go the weights (mapped, but decode reads all of them each step, so they must stay in memory), the
 * scratch of the largest step, the states (one per sequence, allocated for all), and the rest is KV pages. The pages need not hold
 * max_num_seqs contexts of full length: when they run out the scheduler preempts. They must hold one, or the context is shortened and said.
 *
 * How many sequences, when not told: the most, up to 64, whose states take no more than half of what weights and scratch leave, and with
 * which a whole context still fits. Below 8 the context gives way instead: a server for one user at a time is worth less than one with a
 * shorter context. Refused: growing the pool later, because a page that cannot be had in the middle of an answer is the failure this plan
 * exists to prevent. */
#include "engine/plan.h"

#include "base/text.h"

#include <limits.h>

static const int FEW_SEQS = 8; /* down to here the context comes first */

int sh_plan_out_rows(int64_t n_seqs) { return (int)n_seqs + 16; }

static int check_options(const sh_plan_in *in, sh_error *e) {
  if (!(in->utilization > 0 && in->utilization <= 1))
    return sh_fail(e, SH_ERR_ARG, "memory-utilization must be above 0 and at most 1, got %g", in->utilization);
  if (in->asked_max_model_len < 0 || in->asked_max_num_seqs < 0 || in->asked_max_num_batched_tokens < 0 || in->asked_block_size < 0)
    return sh_fail(e, SH_ERR_ARG, "max-model-len, max-num-seqs, max-num-batched-tokens and block-size must not be negative");
  if (in->asked_block_size > 4096)
    return sh_fail(e, SH_ERR_ARG, "block-size must be at most 4096 tokens, got %lld", (long long)in->asked_block_size);
  if (in->asked_max_num_seqs > 4096)
    return sh_fail(e, SH_ERR_ARG, "max-num-seqs must be at most 4096, got %lld", (long long)in->asked_max_num_seqs);
  if (in->asked_max_num_batched_tokens > 65536)
    return sh_fail(e, SH_ERR_ARG, "max-num-batched-tokens must be at most 65536, got %lld", (long long)in->asked_max_num_batched_tokens);
  if (in->asked_max_model_len > in->model_max_len)
    return sh_fail(e, SH_ERR_ARG,
                   "max-model-len %lld is above the %lld tokens the model is made for; lower it, or set rope scaling in its config",
                   (long long)in->asked_max_model_len, (long long)in->model_max_len);
  if (in->asked_max_model_len == 1) return sh_fail(e, SH_ERR_ARG, "max-model-len must be at least 2: one token of prompt, one of answer");
  if (in->asked_max_num_batched_tokens && in->asked_max_num_batched_tokens < in->asked_max_num_seqs)
    return sh_fail(e, SH_ERR_ARG,
                   "max-num-batched-tokens (%lld) must be at least max-num-seqs (%lld): every running sequence draws in each step",
                   (long long)in->asked_max_num_batched_tokens, (long long)in->asked_max_num_seqs);
  return 0;
}

/* Bytes left for pages with this shape; negative: the shape does not fit. */
static int64_t left_for_pages(const sh_plan *p, const sh_plan_in *in, int64_t seqs) {
  return p->budget_bytes - p->weight_bytes - in->scratch(in->ctx, (int)p->max_num_batched_tokens, (int)seqs) -
         seqs * in->state_bytes_per_seq;
}

/* KV tokens that fit, whole pages. */
static int64_t tokens_that_fit(const sh_plan *p, const sh_plan_in *in, int64_t seqs) {
  int64_t left = left_for_pages(p, in, seqs), page = p->page_size * in->kv_bytes_per_token;
  if (left < 0) return 0;
  int64_t pages = page ? left / page : INT32_MAX;
  if (pages > INT32_MAX / p->page_size) pages = INT32_MAX / p->page_size;
  return pages * p->page_size;
}

static bool states_are_modest(const sh_plan *p, const sh_plan_in *in, int64_t seqs) {
  int64_t left = left_for_pages(p, in, seqs);
  return left >= seqs * in->state_bytes_per_seq;
}

static int64_t choose_seqs(const sh_plan *p, const sh_plan_in *in, int64_t want_len) {
  if (in->asked_max_num_seqs) return in->asked_max_num_seqs;
  int64_t most = SH_PLAN_SEQS < p->max_num_batched_tokens ? SH_PLAN_SEQS : p->max_num_batched_tokens;
  for (int64_t n = most; n > FEW_SEQS; n--)
    if (states_are_modest(p, in, n) && tokens_that_fit(p, in, n) >= want_len) return n;
  for (int64_t n = FEW_SEQS < most ? FEW_SEQS : most; n > 1; n--)
    if (states_are_modest(p, in, n)) return n;
  return 1;
}

static int does_not_fit(const sh_plan *p, const sh_plan_in *in, int64_t seqs, int64_t fits, int64_t least, sh_error *e) {
  char total[32], budget[32], weights[32], scratch[32], state[32], kv[32];
  return sh_fail(e, SH_ERR_LIMIT,
                 "the model does not fit: of %s memory %s may be used; weights take %s, scratch %s, the states of %lld sequence%s %s, "
                 "which leaves %lld "
                 "tokens of KV at %s each where at least %lld are needed. Use a smaller or more quantized model, more memory, a higher "
                 "memory-utilization, or a lower max-num-seqs or max-num-batched-tokens",
                 sh_format_size(p->total_bytes, total), sh_format_size(p->budget_bytes, budget), sh_format_size(p->weight_bytes, weights),
                 sh_format_size(in->scratch(in->ctx, (int)p->max_num_batched_tokens, (int)seqs), scratch), (long long)seqs,
                 seqs == 1 ? "" : "s", sh_format_size(seqs * in->state_bytes_per_seq, state), (long long)fits,
                 sh_format_size(in->kv_bytes_per_token, kv), (long long)least);
}

int sh_plan_make(sh_plan *p, const sh_plan_in *in, sh_error *e) {
  *p = (sh_plan){0};
  int rc = check_options(in, e);
  if (rc) return rc;
  p->total_bytes = in->total_bytes;
  p->budget_bytes = (int64_t)((double)in->total_bytes * in->utilization);
  p->weight_bytes = in->weight_bytes;
  p->state_bytes_per_seq = in->state_bytes_per_seq;
  p->kv_bytes_per_token = in->kv_bytes_per_token;
  p->model_max_len = in->model_max_len;
  p->page_size = in->asked_block_size ? in->asked_block_size : SH_PLAN_PAGE;
  p->max_num_batched_tokens = in->asked_max_num_batched_tokens ? in->asked_max_num_batched_tokens : SH_PLAN_BATCHED;
  if (p->max_num_batched_tokens < in->asked_max_num_seqs) p->max_num_batched_tokens = in->asked_max_num_seqs;

  int64_t want = in->asked_max_model_len ? in->asked_max_model_len : in->model_max_len,
          least = want < SH_PLAN_MIN_LEN ? want : SH_PLAN_MIN_LEN;
  int64_t seqs = choose_seqs(p, in, want), fits = tokens_that_fit(p, in, seqs);
  /* Shorter steps need less scratch: they come before a shorter context. A prompt feels it little down to SH_PLAN_MIN_BATCHED. */
  while (fits < want && !in->asked_max_num_batched_tokens && p->max_num_batched_tokens / 2 >= SH_PLAN_MIN_BATCHED &&
         p->max_num_batched_tokens / 2 >= in->asked_max_num_seqs) {
    p->max_num_batched_tokens /= 2;
    seqs = choose_seqs(p, in, want);
    fits = tokens_that_fit(p, in, seqs);
  }
  if (fits < least) return does_not_fit(p, in, seqs, fits, least, e);
  p->max_num_seqs = seqs;
  p->scratch_bytes = in->scratch(in->ctx, (int)p->max_num_batched_tokens, (int)seqs);
  p->shortened = fits < want;
  p->max_model_len = p->shortened ? fits : want;
  int64_t per_seq = (p->max_model_len + p->page_size - 1) / p->page_size, pages = fits / p->page_size;
  p->n_pages = pages < per_seq * seqs ? pages : per_seq * seqs; /* more could never be used */
  return 0;
}
