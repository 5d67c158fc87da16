/* The bounded queue of a request's events: records of bytes in a circular buffer, written by the engine thread and read by the front end's.
 * The caller locks. */
#ifndef SH_ENGINE_RING_H
#define SH_ENGINE_RING_H

#include "sheng.h"

/* One event as it travels. Followed in the ring by n_top sh_logprob, text_len bytes of text, error_len bytes of error. */
typedef struct sh_rec {
  sh_event_type type;
  int32_t choice, position, id;
  sh_logprob chosen;
  sh_finish finish;
  int32_t stop_id;  /* -1: none */
  int32_t stop_str; /* index of the request's stop string; -1: none */
  int32_t prompt_tokens, completion_tokens;
  int32_t error_code;                  /* sh_err; 0: none */
  uint32_t n_top, text_len, error_len; /* set by sh_ring_push */
} sh_rec;

typedef struct sh_ring {
  unsigned char *p;       /* [cap] */
  size_t cap, head, used; /* bytes; head is where the oldest record begins */
} sh_ring;

/* What a record carries; text is in two pieces, since what was held back and what is new lie apart. Borrowed for the call. */
typedef struct sh_rec_body {
  const sh_logprob *top;
  int n_top;
  const char *text[2];
  size_t text_len[2];
  const char *error;
} sh_rec_body;

int sh_ring_init(sh_ring *r, size_t cap, sh_error *e);
void sh_ring_free(sh_ring *r); /* accepts a zeroed struct */
size_t sh_ring_room(const sh_ring *r);
size_t sh_rec_bytes(size_t n_top, size_t text_len, size_t error_len);
/* The caller has made sure of the room. */
void sh_ring_push(sh_ring *r, const sh_rec *rec, const sh_rec_body *body);
/* Copies the oldest record to `out` (room for the largest; suitably aligned) and removes it: record, top, text, NUL, error, NUL. false:
 * empty. */
bool sh_ring_pop(sh_ring *r, unsigned char *out);

#endif
