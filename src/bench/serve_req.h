/* One streamed request and its times. Private to the load generator; loop thread. */
#ifndef SH_BENCH_SERVE_REQ_H
#define SH_BENCH_SERVE_REQ_H

#include "bench/serve_conn.h"
#include "bench/serve_stats.h"

typedef struct sh_breq sh_breq;
struct sh_breq {
  sh_bcall call;
  sh_breq *prev, *next;    /* for the owner's lists */
  void (*end)(sh_breq *q); /* once for every start; may start it again */
  void *ctx;
  /* The result, when `end` is called and call.how is SH_BEND_OK. */
  int64_t prompt_tokens, completion_tokens, cached_tokens; /* of the server's usage; -1: none */
  int64_t events;                                          /* that carried text */
  double ttft_ms, e2el_ms;
  sh_bsamples gaps; /* ms between events with text */
  /* Private. */
  sh_bsse private_sse;
  int64_t private_first_ns, private_text_ns, private_last_ns; /* first and last text, last event; 0: none */
  int64_t private_now_ns;
  bool private_done, private_finish;
};

void sh_breq_start(sh_breq *q, sh_bclient *c, const char *path, const sh_buf *body); /* q: zeroed, or ended */
void sh_breq_free(sh_breq *q);                                                       /* what it has allocated; it is not under way */

#endif
