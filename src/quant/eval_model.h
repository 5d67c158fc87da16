/* One side of an evaluation: a model with its caches, driven without the engine. */
#ifndef SH_QUANT_EVAL_MODEL_H
#define SH_QUANT_EVAL_MODEL_H

#include "engine/genconf.h"
#include "model/model.h"
#include "quant/eval.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum { SH_EVAL_GROUP = 16, SH_EVAL_PAGE = 16, SH_EVAL_ENDS = 64 }; /* sequences generated at once; tokens of a page */

typedef struct sh_eval_side {
  sh_ckpt *ckpt;
  sh_backend *be;
  sh_model *m;
  const sh_config *cfg;
  sh_tok *tok;   /* NULL: the checkpoint has none */
  sh_chat *chat; /* NULL: none */
  sh_kv_type kv_type;
  int chunk; /* tokens of a step at most */
  int context, pages_per_seq;
  int32_t *pages; /* [SH_EVAL_GROUP][pages_per_seq]: the table of each sequence */
  int32_t *rows;  /* [chunk]: 0, 1, 2 .. */
  float *logits;  /* [chunk, cfg->vocab_size] */
  float **hidden; /* [cfg->n_layers + 1] of [chunk, cfg->hidden], or NULL: not asked for */
  float *private_hidden;
  void (*fed)(void *ctx, int tokens); /* told of every token computed; may be NULL */
  void *ctx;
  const volatile bool *stop; /* sh_eval_opts */
} sh_eval_side;

/* Rows of a step, so that its logits stay small. */
int sh_eval_chunk(int vocab_size);
/* Bytes that a program takes beside weights, caches and scratch when it has a model of this shape open: its own, and the tokenizer's. */
int64_t sh_eval_base_bytes(const sh_model *m);
/* Bytes that comparing two models of m's shape in float32 takes beside their weights, with windows of seq_len tokens and four prompts. */
int64_t sh_eval_pair_bytes(const sh_model *m, int seq_len);

/* Opens; takes caches and buffers for sequences of `context` tokens. Free with close, after a failure too. */
int sh_eval_side_open(sh_eval_side *s, const char *path, const sh_eval_opts *o, bool exact, sh_error *e);
int sh_eval_side_reserve(sh_eval_side *s, int context, int chunk, bool hidden, sh_error *e);
void sh_eval_side_close(sh_eval_side *s); /* accepts a zeroed struct */

/* Feeds count tokens (at most chunk) of sequence seq at position pos; the slot is zeroed at position 0. n_out 0, 1 (the last row) or count:
 * logits[0..n_out). hidden is filled when it was reserved. */
int sh_eval_feed(sh_eval_side *s, int seq, int pos, const int32_t *ids, int count, int n_out, sh_error *e);

/* A greedy continuation. */
typedef struct sh_eval_gen {
  const int32_t *prompt;
  int n_prompt, max_new;
  int32_t *out; /* [max_new]; an end token is not among them */
  int n_out;
  bool ended; /* by an end token */
} sh_eval_gen;
/* Computes all of jobs[0..n), SH_EVAL_GROUP at once, over the ids [0, vocab). */
int sh_eval_generate(sh_eval_side *s, sh_eval_gen *jobs, int n, int vocab, const int32_t *ends, int n_ends, sh_error *e);

/* Log-probabilities of choices after a prompt: sum[i] of the n_ids[i] tokens ids[i]. */
int sh_eval_choices(sh_eval_side *s, const int32_t *prompt, int n_prompt, int32_t *const *ids, const int *n_ids, int n, int vocab,
                    double *sum, sh_error *e);

#endif
