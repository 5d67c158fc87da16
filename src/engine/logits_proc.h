/* Logits processors: what a request's parameters do to a row of logits before sampling. */
#ifndef SH_ENGINE_LOGITS_PROC_H
#define SH_ENGINE_LOGITS_PROC_H

#include "sheng.h"

/* A request's processors, compiled at submit; immutable. Arrays are the request's. Every id is in [0, vocab). */
typedef struct sh_proc {
  const int32_t *allowed;
  int n_allowed; /* ascending, distinct; n_allowed 0 = all */
  const sh_id_list *bad_words;
  int n_bad_words;
  const int32_t *ends;
  int n_ends; /* masked while fewer than min_tokens were drawn: end tokens and stop ids */
  int min_tokens;
  const sh_token_bias *bias;
  int n_bias;
  float repetition, presence, frequency; /* 1, 0, 0 = off */
} sh_proc;

/* Scratch over the vocabulary, all zero between calls. Engine thread; sized once. */
typedef struct sh_proc_scratch {
  int vocab;
  int32_t *count; /* [vocab] */
  bool *seen;     /* [vocab] */
  float *saved;   /* [vocab] */
} sh_proc_scratch;

int sh_proc_scratch_init(sh_proc_scratch *s, int vocab, sh_error *e);
void sh_proc_scratch_free(sh_proc_scratch *s); /* accepts a zeroed struct */
int64_t sh_proc_scratch_bytes(int vocab);

/* Changes x [vocab] in place. prompt, out: the tokens so far. No allocation. */
void sh_proc_apply(const sh_proc *p, sh_proc_scratch *s, float *x, const int32_t *prompt, int n_prompt, const int32_t *out, int n_out);

#endif
