/* The memory plan: how many sequences of what length fit. */
#ifndef SH_ENGINE_PLAN_H
#define SH_ENGINE_PLAN_H

#include "sheng.h"

/* What the plan is made from. Zero in an asked_ field: not given. */
typedef struct sh_plan_in {
  int64_t total_bytes; /* of the cgroup or machine */
  double utilization;  /* share of it, (0, 1] */
  int64_t weight_bytes;
  int64_t kv_bytes_per_token, state_bytes_per_seq;
  int64_t model_max_len; /* tokens */
  int64_t asked_max_model_len, asked_max_num_seqs, asked_max_num_batched_tokens, asked_block_size;
  int64_t (*scratch)(void *ctx, int max_tokens, int n_seqs); /* bytes of everything a step of this shape needs */
  void *ctx;
} sh_plan_in;

enum { SH_PLAN_SEQS = 64, SH_PLAN_BATCHED = 2048, SH_PLAN_PAGE = 16, SH_PLAN_MIN_LEN = 256, SH_PLAN_MIN_BATCHED = 256 };

/* Logit rows of a step: one per sequence, and some for prompt log probabilities. */
int sh_plan_out_rows(int64_t n_seqs);

/* SH_ERR_ARG: an option contradicts the model or another; SH_ERR_LIMIT: it does not fit, with the numbers. */
int sh_plan_make(sh_plan *p, const sh_plan_in *in, sh_error *e);

#endif
