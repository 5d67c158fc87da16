/* The scheduler: continuous batching over paged KV and state slots. Engine thread only; it knows no threads, so tests step it by hand. */
#ifndef SH_ENGINE_SCHED_H
#define SH_ENGINE_SCHED_H

#include "engine/iface.h"
#include "engine/kv_pages.h"
#include "engine/request.h"
#include "engine/state_slots.h"

typedef struct sh_sched_config {
  int page_size, n_pages, n_slots; /* n_pages * page_size >= max_model_len: one sequence alone always fits */
  int max_batched;                 /* rows of a step, >= n_slots */
  int max_out;                     /* logit rows of a step, >= n_slots */
  int max_model_len;               /* tokens */
  int64_t step_ns;                 /* target time of a step that holds prompt tokens */
  int64_t park_grace_ns;           /* a parked request keeps its memory this long when others wait for it */
} sh_sched_config;

enum { SH_MIN_PROMPT_TOKENS = 16 }; /* per step, whatever the time budget says: prompts always get on */

/* Choices in the order of age (request number, then index), oldest first. */
typedef struct sh_choice_list {
  sh_choice *head, *tail;
  int n;
} sh_choice_list;

/* Invariants (sh_sched_check):
 *   a choice in `running` holds a slot and n_pages pages, one in `waiting` none; both lists are sorted by age; every slot and page
 * reference is held by exactly one of them; a request in `live` has choices that are not done, and n_pending, n_running, n_done count them.
 * No deadlock. (1) The oldest sequence that holds memory and may run always gets its next page: it takes from the parked first, then from
 * the youngest, and alone it fits. So it reaches its end. (2) A template holds memory without advancing; it is younger than all its
 * request's choices, so they can take from it, and while it waits for a slot some choice of its request runs, or else it gives its own
 * memory to one (batch.c). (3) Admission takes nothing from those that run, except from requests parked longer than the grace time, so a
 * reader that sleeps keeps nobody out. (4) A waiting one is admitted in the order of age, a big one is not overtaken, so when all older
 * have ended it has the whole pool. */
typedef struct sh_sched {
  sh_sched_config cfg;
  const sh_request_env *env; /* borrowed */
  sh_model_iface model;
  sh_pages pages;
  sh_slots slots;
  sh_choice_list waiting, running;
  sh_request *live, *finished; /* in the engine; ended in this step, to be notified and let go */
  int n_unadmitted;            /* requests of `live` that never left the queue */

  /* The step being built. */
  sh_seq *seqs;        /* [n_slots] */
  sh_choice **who;     /* [n_slots] */
  int32_t *ids;        /* [max_batched] */
  int32_t *out_rows;   /* [max_out] */
  sh_choice **prompts; /* [n_slots]: those with prompt tokens to compute */
  int *limit, *share;  /* [n_slots]: most tokens each may get, and gets */
  sh_batch batch;
  int n_prompt_tokens; /* of the batch: rows that are not single decode steps */

  /* Scratch. */
  float *logits; /* [max_out, model.vocab] */
  float *raw;    /* [model.vocab]: a row before the processors */
  int32_t *masked;
  int n_masked; /* ids that are never drawn: padding beyond the tokenizer, holes */
  sh_sampler sampler;
  sh_proc_scratch proc;
  sh_logprob *top; /* [SH_MAX_LOGPROBS] */
  sh_buf text;

  double token_ns;  /* measured time of a row in steps with prompt tokens; 0: not yet */
  int64_t now_ns;   /* at the start of the step */
  long step_allocs; /* allocations inside forward, sampling and events since start: 0, or there is a bug */
  sh_stats stats;
} sh_sched;

int sh_sched_init(sh_sched *s, const sh_sched_config *cfg, const sh_request_env *env, const sh_model_iface *m, sh_error *e);
void sh_sched_free(sh_sched *s);                                              /* accepts a zeroed struct; no request may be live */
int64_t sh_sched_bytes(int max_batched, int n_slots, int max_out, int vocab); /* scratch, the logits included */
void sh_sched_add(sh_sched *s, sh_request *r);                                /* takes the engine's reference */
bool sh_sched_step(sh_sched *s);      /* one step; false: nothing could be computed now (idle, or all parked) */
void sh_sched_abort_all(sh_sched *s); /* every live request ends with ABORT */
bool sh_sched_check(sh_sched *s);

/* --- Between the scheduler's files. sched.c: --- */
int sh_sched_pages_for(const sh_sched *s, int tokens);
void sh_sched_list_add(sh_choice_list *l, sh_choice *c);
void sh_sched_list_del(sh_choice_list *l, sh_choice *c);
void sh_sched_preempt(sh_sched *s, sh_choice *c); /* gives up its memory and waits again, in its place by age */
/* Ends a choice: FINISH (none for a lead), memory given back; after the last one END. stop_id, stop_str: -1 = none; error: NULL, or
 * the reason, whose code and sentence go with the event. */
void sh_sched_finish(sh_sched *s, sh_choice *c, sh_finish why, int32_t stop_id, int stop_str, const sh_error *error);
/* A choice, or a lead with all choices that wait for it, ends with SH_FINISH_ERROR. */
void sh_sched_fail(sh_sched *s, sh_choice *c, const sh_error *error);
/* batch.c: fills s->batch. */
void sh_sched_build(sh_sched *s);
bool sh_sched_row_reported(const sh_choice *c, int pos); /* whether the row at pos is wanted for prompt log probabilities */
/* emit.c: turns the logits of the batch into tokens and events. */
void sh_sched_consume(sh_sched *s);

#endif
