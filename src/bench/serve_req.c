/* A streamed completion: what its events mean and when they came. Loop thread.
 *
 * Times are those at which the loop read the bytes. Events of one read share a time, as they do in every client; an event may carry more
 * than one token (speculation, or a server that sends in intervals), so gaps are between events and tokens are counted by the server.
 *
 * An answer is whole when it said so: a finish_reason or [DONE], and the end of the response. A server that says [DONE] and then lets the
 * connection hang or drops it has still answered. */
#include "bench/serve_req.h"

#include <string.h>

static double ms(int64_t ns) { return (double)ns / 1e6; }

static int on_event(void *ctx, const char *data, size_t n, sh_error *e) {
  sh_breq *q = ctx;
  sh_bevent v;
  int rc = sh_bevent_read(&v, data, n, e);
  if (rc < 0) return rc;
  if (v.failed) {
    q->call.stream_end = SH_BEND_SERVER;
    return SH_ERR_IO;
  }
  int64_t now = q->private_now_ns;
  q->private_last_ns = now;
  q->private_done |= v.done;
  q->private_finish |= v.finish;
  if (v.prompt_tokens >= 0) q->prompt_tokens = v.prompt_tokens;
  if (v.completion_tokens >= 0) q->completion_tokens = v.completion_tokens;
  if (v.cached_tokens >= 0) q->cached_tokens = v.cached_tokens;
  if (!v.text) return 0;
  q->events++;
  if (!q->private_first_ns) q->private_first_ns = now;
  else if (sh_bsamples_add(&q->gaps, ms(now - q->private_text_ns)) < 0) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  q->private_text_ns = now;
  return 0;
}

static int on_body(sh_bcall *c, const char *p, size_t n, int64_t now_ns, sh_error *e) {
  sh_breq *q = c->ctx;
  q->private_now_ns = now_ns;
  return sh_bsse_feed(&q->private_sse, p, n, on_event, q, e);
}

static void on_end(sh_bcall *c) {
  sh_breq *q = c->ctx;
  bool whole = q->private_done || q->private_finish;
  if ((c->how == SH_BEND_TIMEOUT || c->how == SH_BEND_CLOSED) && q->private_done) c->how = SH_BEND_OK;
  if (c->how == SH_BEND_OK && !q->private_last_ns) {
    c->how = SH_BEND_STREAM;
    sh_fail(&c->why, SH_ERR_FORMAT, "the answer holds no event");
  } else if (c->how == SH_BEND_OK && !whole) {
    c->how = SH_BEND_CLOSED;
    sh_fail(&c->why, SH_ERR_FORMAT, "the stream ended without a finish_reason or [DONE]");
  }
  if (c->how == SH_BEND_OK) {
    q->e2el_ms = ms(q->private_last_ns - c->start_ns);
    /* an answer whose tokens make no text (a stop token at once) has its first sign of life at its end */
    q->ttft_ms = ms((q->private_first_ns ? q->private_first_ns : q->private_last_ns) - c->start_ns);
  }
  q->end(q);
}

void sh_breq_start(sh_breq *q, sh_bclient *c, const char *path, const sh_buf *body) {
  q->call.body = on_body;
  q->call.end = on_end;
  q->call.ctx = q;
  q->prompt_tokens = q->completion_tokens = q->cached_tokens = -1;
  q->events = 0;
  q->ttft_ms = q->e2el_ms = 0;
  q->gaps.n = 0;
  sh_bsse_init(&q->private_sse);
  q->private_first_ns = q->private_text_ns = q->private_last_ns = 0;
  q->private_done = q->private_finish = false;
  sh_bclient_start(c, &q->call, path, body);
}

void sh_breq_free(sh_breq *q) {
  sh_bcall_free(&q->call);
  sh_bsamples_free(&q->gaps);
  sh_bsse_free(&q->private_sse);
}
