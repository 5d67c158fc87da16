/* A request inside the engine: what was asked, its choices, its event ring, and the references that keep it alive. */
#ifndef SH_ENGINE_REQUEST_H
#define SH_ENGINE_REQUEST_H

#include "engine/logits_proc.h"
#include "engine/ring.h"
#include "engine/sample.h"
#include "engine/stop.h"

#include <pthread.h>
#include <stdatomic.h>

/* Limits on what one request may ask, beyond those that sheng.h states. */
enum {
  SH_MAX_CHOICES = 128,
  SH_MAX_LOGPROBS = 1024,
  SH_MAX_STOPS = 256,            /* stop strings */
  SH_MAX_STOP_BYTES = 64 * 1024, /* of all stop strings together */
  SH_MAX_ERROR_BYTES = 256,      /* of the sentence in a FINISH event */
  SH_RING_BYTES = 16 * 1024,     /* a request's event ring, unless its largest events need more */
};

/* What a request is checked against. Constant after start; borrowed. */
typedef struct sh_request_env {
  const sh_tok *tok;
  int vocab;              /* ids a request may name: [0, vocab) */
  int max_model_len;      /* tokens */
  int max_piece;          /* bytes of the longest token */
  const int32_t *end_ids; /* the model's end tokens */
  int n_end_ids;
  uint64_t seed;           /* of requests without one */
  void (*wake)(void *ctx); /* tells the engine thread that a request was cancelled or can go on; NULL in tests without a thread */
  void *wake_ctx;
} sh_request_env;

typedef enum sh_choice_state {
  SH_CHOICE_PENDING,  /* waits for its request's template; holds nothing, is in no list */
  SH_CHOICE_WAITING,  /* in the waiting list; holds nothing */
  SH_CHOICE_RUNNING,  /* in the running list; holds a slot and pages */
  SH_CHOICE_TEMPLATE, /* a lead whose prompt is computed: in the running list, holds a slot and pages, only copied from */
  SH_CHOICE_DONE,     /* holds nothing, is in no list */
} sh_choice_state;

/* One sequence. Engine thread only, but for what sh_request_new sets. A request with n == 1 has one choice; with n > 1 it has a lead
 * besides (index n), which computes the prompt once and is then the template that the choices are forked from. */
typedef struct sh_choice sh_choice;
struct sh_choice {
  sh_request *req;
  int index; /* 0..n-1; n: the lead */
  sh_choice_state state;
  sh_choice *prev, *next; /* in the waiting or running list */

  int32_t slot;   /* -1: none */
  int32_t *pages; /* [cap_pages]: page table, owned, sized at first admission; n_pages are held */
  int n_pages, cap_pages;
  int n_computed;           /* tokens in the cache */
  bool in_batch, held_back; /* of the step being built: has a share; may have none since its reader is slow */

  int32_t *out;  /* [max_tokens]: drawn tokens, owned, sized at first admission */
  int32_t first; /* the first drawn token of a choice that was not admitted yet */
  int n_out;

  sh_detok detok;
  int32_t *stop_state; /* [stops.n], arena */
  char *held;          /* [stops.longest]: text held back because it may become a stop string, arena */
  size_t n_held;
};

/* Lifetime: two references, the front end's and the engine's; whoever drops the last one frees. */
struct sh_request {
  /* Set by sh_request_new, then constant. */
  const sh_request_env *env;
  sh_arena *arena;
  sh_request_params params; /* pointers lead into the arena */
  uint64_t number, seed;    /* age: smaller is older */
  sh_draw draw;
  sh_proc proc;
  sh_stops stops;
  size_t token_bytes, prompt_bytes, finish_bytes; /* largest record of each kind in the ring */
  sh_choice *choices;                             /* [n + (n > 1)] */
  sh_choice *lead;                                /* the choice that computes the prompt */

  /* Shared by both threads, under mu. */
  pthread_mutex_t mu;
  pthread_cond_t cond; /* an event came */
  sh_ring ring;
  bool parked;        /* the engine found the ring too full; the reader wakes it */
  size_t room_wanted; /* bytes that end the parking */

  pthread_mutex_t notify_mu; /* held while notify runs, so that free can wait for it; never together with mu */
  sh_notify_fn notify;
  void *notify_ctx;

  atomic_bool cancelled;
  atomic_bool ended; /* END was pushed: the engine is not interested any more */
  atomic_int refs;

  /* The reader's. */
  unsigned char *cur; /* the record last popped */
  sh_event ev;

  /* The engine thread's. */
  sh_request *prev, *next;          /* in the scheduler's list of live requests */
  int n_done, n_pending, n_running; /* choices (without the lead) */
  int n_prompt_rows;                /* prompt rows reported: row i holds the probabilities of position i + 1 */
  bool admitted;                    /* has left the queue at least once */
  bool first_drawn;                 /* n > 1: the choices' first tokens exist */
  bool dirty;                       /* events were pushed since the last notify */
  size_t claimed;                   /* ring bytes promised to the step being built */
  int64_t parked_since;             /* ns; 0: not parked */
};

/* Checks and copies. Errors and meaning: sh_request_submit. The result has two references. */
int sh_request_new(const sh_request_env *env, const sh_request_params *p, uint64_t number, sh_notify_fn notify, void *ctx, sh_request **out,
                   sh_error *e);
void sh_request_unref(sh_request *r);

/* Engine side. */
/* Whether the ring has `bytes` beyond what is promised, the last events of all choices included; if not the request is parked: its reader
 * will wake the engine. */
bool sh_request_has_room(sh_request *r, size_t bytes, int64_t now_ns);
void sh_request_claim(sh_request *r,
                      size_t bytes);   /* promises room that _has_room has seen, for the step being built; every claim ends in an event */
size_t sh_request_room(sh_request *r); /* bytes that can still be claimed */
void sh_request_push(sh_request *r, const sh_rec *rec, const sh_rec_body *body);
void sh_request_end(sh_request *r);    /* END: nothing follows, and the request needs no engine any more */
void sh_request_notify(sh_request *r); /* tells the front end if anything was pushed */
/* Buffers of a choice that is admitted: page table and drawn tokens. 0 or SH_ERR_NOMEM. */
int sh_choice_reserve(sh_choice *c, int cap_pages);
/* Tokens of prompt and answer so far, and the i-th of them. */
int sh_choice_len(const sh_choice *c);
int32_t sh_choice_token(const sh_choice *c, int i);

#endif
