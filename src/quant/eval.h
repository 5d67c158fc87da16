/* How good a model is, and how near to another: perplexity, KL divergence, agreement, common greedy prefixes, relative error by layer,
 * tasks. `sheng eval` prints it; the quantizer calls it at its end for the folder it wrote. */
#ifndef SH_QUANT_EVAL_H
#define SH_QUANT_EVAL_H

#include "base/err.h"
#include "base/mem.h"
#include "quant/eval_math.h"

typedef struct sh_eval_opts {
  const char *model;          /* path of a folder or a GGUF file */
  const char *against;        /* the reference, or NULL: no comparison */
  const char *text;           /* file, or NULL: the evaluation text in the program (texts.h) */
  const char *tasks;          /* JSONL file, or NULL */
  int seq_len;                /* tokens of a window; 0: 512 */
  int samples;                /* windows at most; 0: all */
  int prompts;                /* for the common greedy prefix; 0: none. Needs `against` */
  bool exact;                 /* float32 on the stored weights; keys and values in float32 */
  bool against_exact;         /* the reference so, whatever the model */
  const char *head;           /* what a head of floats is rounded to, of both models; NULL: auto (SH_HEAD_NAMES) */
  const char *kv_cache_dtype; /* how both models keep keys and values; NULL: auto (SH_KV_NAMES) */
  int threads;                /* 0: every usable core */
  const char *cpu;            /* NULL: native */
  const char *cache_dir;
  void (*progress)(void *ctx, double share); /* may be NULL; called now and then, share in [0, 1] */
  void *ctx;
  const volatile bool *stop; /* set from a signal: ends with SH_ERR_CANCELLED after the step; NULL: never */
} sh_eval_opts;

enum { SH_EVAL_PREFIX = 64, SH_EVAL_MAX_GROUPS = 256 }; /* tokens of a greedy continuation; groups of tasks */

typedef struct sh_eval_model {
  const char *path, *name, *describe;
  int64_t bytes; /* of all tensors, as stored */
  double nll;    /* mean over the scored tokens, nats */
  double ppl;    /* exp(nll) */
} sh_eval_model;

/* A group of tasks. [0]: the model, [1]: the reference. */
typedef struct sh_eval_task {
  const char *name;
  int n_answers, right[2];              /* greedy answers that equal the wanted one */
  int n_choices, best[2], best_norm[2]; /* choices by the sum of log-probabilities; by the sum divided by the number of tokens */
} sh_eval_task;

typedef struct sh_eval_layer {
  double mean, max; /* relative error, over the tokens */
} sh_eval_layer;

typedef struct sh_eval {
  sh_eval_model model, ref; /* ref.path NULL: no comparison */
  const char *text;         /* file, or NULL: the text in the program */
  int seq_len, windows, skipped;
  int64_t tokens, scored;
  bool exact, ref_exact;
  double seconds;
  /* With a reference: */
  double kl_mean, kl_median, kl_p99, kl_max;
  int worst_window, worst_line, worst_position; /* of kl_max: window from 0, line of the text from 1, position of the token in the window */
  const char *worst_token, *worst_context;      /* the token that was to be predicted, and the text before it */
  int64_t bins[SH_EVAL_BINS];
  double top1; /* share of scored tokens with the same most likely id */
  int prefix_prompts, prefix_min;
  double prefix_mean;          /* tokens, of SH_EVAL_PREFIX */
  int n_layers;                /* entries of layers: 0 when the models' shapes differ */
  const sh_eval_layer *layers; /* [n_layers]: after the embedding, after layer 1, ..; the last after the final norm */
  int n_tasks;
  const sh_eval_task *tasks; /* [n_tasks] */
  sh_arena *private_arena;
} sh_eval;

/* Runs everything that was asked for. SH_ERR_ARG: the models' vocabularies differ, a text of less than two tokens, a wrong task. Caller
 * frees with sh_eval_free, after a failure too. One thread; the models have their own pools. */
int sh_eval_run(sh_eval *out, const sh_eval_opts *o, sh_error *e);
void sh_eval_free(sh_eval *r); /* accepts a zeroed struct */

/* The result as text (eval_out.c). 0 or the buffer's error. */
int sh_eval_write_table(const sh_eval *r, sh_buf *out);
int sh_eval_write_json(const sh_eval *r, sh_buf *out);
int sh_eval_write_csv(const sh_eval *r, sh_buf *out);

#endif
