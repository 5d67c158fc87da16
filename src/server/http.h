/* HTTP/1.1 connections: who may know what. This layer knows messages, limits, time-outs and hang-ups; it does not know what a request
 * means. The API layer sees sh_hreq, one request being answered, and never a socket. Everything runs on the loop thread.
 *
 * A request's life: head() when its head is there (may answer already, e.g. 401; the body is then thrown away), request() when the body is
 * complete. The answer is one sh_http_reply, or sh_http_stream_begin, _write..., _end, at once or any time later. After the reply or the
 * end, and after gone(), the sh_hreq is no longer valid. Requests that come in behind one being answered wait in the connection
 * (pipelining). */
#ifndef SH_SERVER_HTTP_H
#define SH_SERVER_HTTP_H

#include "base/err.h"
#include "base/mem.h"
#include "server/http_parse.h"

struct event_base;
typedef struct sh_http sh_http;
typedef struct sh_hreq sh_hreq;
struct sh_hreq {
  sh_http_head head;
  sh_buf body; /* complete at request(); take it with sh_http_take_body to keep it beyond */
  void *owner; /* the handler's */
  int status;  /* of the answer, once begun */
};

typedef struct sh_http_limits {
  size_t max_head;   /* bytes of request line and headers: 431 */
  size_t max_body;   /* bytes: 413 */
  size_t max_bodies; /* bytes of all bodies held at once: 503 */
  int idle_s;        /* a connection without a request is closed after this */
  int stall_s;       /* a request that comes in, or an answer that goes out, without a byte of progress: 408, or the end */
  int max_connections;
} sh_http_limits;

typedef struct sh_http_handler {
  void *ctx;
  void (*head)(void *ctx, sh_hreq *r);
  void (*request)(void *ctx, sh_hreq *r);
  void (*gone)(void *ctx, sh_hreq *r);     /* the client hung up on a request given to request() and not yet answered in full */
  void (*writable)(void *ctx, sh_hreq *r); /* the output of a stream that was full has drained */
  void (*error_body)(void *ctx, int status, const char *message, sh_buf *out); /* JSON for errors found at this layer */
} sh_http_handler;

/* Binds and listens; connections are taken once the loop runs. Copies `host`, limits and handler. Caller frees with sh_http_free, which
 * calls gone() for what is unanswered. */
int sh_http_new(sh_http **out, struct event_base *base, const char *host, int port, const sh_http_limits *limits,
                const sh_http_handler *handler, sh_error *e);
void sh_http_free(sh_http *h);             /* accepts NULL */
int sh_http_port(const sh_http *h);        /* the one in use, also when 0 was asked */
const char *sh_http_url(const sh_http *h); /* "http://127.0.0.1:8000": an address that can be opened on this machine */
bool sh_http_everywhere(const sh_http *h); /* it listens on all interfaces (0.0.0.0, ::) */
/* The URL of a bound address that was asked for as `host`, and its port. Returns whether it stands for all interfaces: nobody can open that
 * one, and the URL names the loopback address. */
struct sockaddr;
bool sh_http_name_address(const struct sockaddr *bound, const char *host, char url[300], int *port);
void sh_http_close_idle(sh_http *h);  /* draining: every connection ends with its answer, those without a request now */
bool sh_http_quiet(const sh_http *h); /* nothing is being answered and all answers have left */

/* "Name: value" of the answer, before it begins. */
void sh_http_set_header(sh_hreq *r, const char *name, const char *value);
void sh_http_reply(sh_hreq *r, int status, const char *content_type, const void *body, size_t n); /* copies body */
void sh_http_stream_begin(sh_hreq *r, int status, const char *content_type);
void sh_http_stream_write(sh_hreq *r, const void *p, size_t n);
void sh_http_stream_end(sh_hreq *r);
bool sh_http_full(sh_hreq *r); /* the client is slow: write no more until writable() */
/* Moves the body out. Its bytes count against max_bodies until sh_http_release_body(h, body.len at the time of taking). Caller frees the
 * buffer. */
void sh_http_take_body(sh_hreq *r, sh_buf *out);
void sh_http_release_body(sh_http *h, size_t bytes);

#endif
