/* What the files of the evaluation share. Not for others. */
#ifndef SH_QUANT_EVAL_PARTS_H
#define SH_QUANT_EVAL_PARTS_H

#include "quant/eval_model.h"
#include "quant/samples.h"

/* A task as read (eval_tasks.c). */
typedef struct sh_eval_item {
  int line, group;
  sh_ids prompt;
  const char *answer; /* [n_answer] the wanted text, or NULL: a choice */
  size_t n_answer;
  const sh_json *json; /* the wanted value when it compares as JSON, else NULL */
  int max_new;
  int32_t **choices; /* [n_choices] of [n_ids[i]] */
  int *n_ids, n_choices, index;
} sh_eval_item;

typedef struct sh_eval_items {
  sh_eval_item *v;
  int n, cap;
} sh_eval_items;

/* One evaluation on its way. */
typedef struct sh_eval_job {
  const sh_eval_opts *o;
  sh_eval *r;
  sh_eval_side side[2]; /* the model, the reference */
  int n_sides;
  const sh_tok *tok; /* the model's, else the reference's */
  const sh_chat *chat;
  int vocab; /* ids that both know */
  int32_t ends[SH_EVAL_ENDS];
  int n_ends;
  sh_samples text;
  sh_eval_items tasks;
  int64_t done, total; /* tokens to compute, for the progress */
} sh_eval_job;

/* Over the text: perplexity, and what compares rows. */
int sh_eval_over_text(sh_eval_job *j, sh_error *e);
/* Common greedy prefixes over the tasks' prompts, else over the beginnings of windows. */
int sh_eval_prefixes(sh_eval_job *j, sh_error *e);
int sh_eval_prefix_prompt(const sh_eval_job *j, int i, const int32_t **ids); /* length of prompt i of r->prefix_prompts */

int sh_eval_tasks_load(sh_eval_job *j, sh_error *e);
int sh_eval_tasks_run(sh_eval_job *j, sh_error *e);
void sh_eval_tasks_free(sh_eval_items *t);

/* The text of ids, as a string of the result's arena; NULL: no memory. */
const char *sh_eval_text_of(sh_eval_job *j, const int32_t *ids, int n);

#endif
