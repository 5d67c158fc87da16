/* A client of one HTTP server on libevent: calls over kept-open connections. Loop thread. */
#ifndef SH_BENCH_SERVE_CONN_H
#define SH_BENCH_SERVE_CONN_H

#include "bench/serve_http.h"
#include <event2/event.h>
#include <stdbool.h>

/* Where a server is. */
typedef struct sh_burl {
  char host[256], port[8]; /* host without brackets */
  char base[512];          /* path before "/v1", without a slash at its end; "" */
  char shown[800];         /* the whole, as it is told to people */
} sh_burl;
/* "http://host:8000", "host:8000/prefix", with or without "/v1" at the end. SH_ERR_ARG; SH_ERR_UNSUPPORTED for https. */
int sh_burl_parse(sh_burl *out, const char *text, sh_error *e);

/* How a call ended. The names (sh_bend_name) are those of the results. */
typedef enum sh_bend {
  SH_BEND_OK,
  SH_BEND_CONNECT,  /* no connection */
  SH_BEND_TIMEOUT,  /* not over within the timeout */
  SH_BEND_CLOSED,   /* closed or reset before the answer was over */
  SH_BEND_STATUS,   /* an HTTP status other than 2xx */
  SH_BEND_PROTOCOL, /* not HTTP */
  SH_BEND_STREAM,   /* not an event stream of a completion */
  SH_BEND_SERVER,   /* the stream holds the server's own error */
  SH_BEND_CUT,      /* given up by us: Ctrl-C */
  SH_BEND_MEMORY,   /* this program has not enough memory */
} sh_bend;
const char *sh_bend_name(sh_bend end);

typedef struct sh_bcall sh_bcall;
struct sh_bcall {
  /* Set by the caller, who owns the struct until `end` was called. */
  int (*body)(sh_bcall *c, const char *p, size_t n, int64_t now_ns, sh_error *e); /* of a 2xx response; negative: ends the call */
  void (*end)(sh_bcall *c); /* once, from the loop; may start the next call in the same struct */
  void *ctx;
  sh_bend stream_end; /* how the call ends when `body` returns a negative value; body may set it */
  /* The result, for `end`. */
  sh_bend how;
  int status;       /* HTTP; 0: none came */
  int64_t start_ns; /* when the request was handed to the socket */
  int64_t end_ns;
  sh_error why; /* of every end but SH_BEND_OK */
  /* Private. */
  sh_buf private_request, private_refusal;
  void *private_conn;
};
void sh_bcall_free(sh_bcall *c); /* what a call has allocated; it is not under way */

typedef struct sh_bclient sh_bclient;
/* Finds the server's address and connects once (waits for it), so that a wrong address is said before anything is measured. */
int sh_bclient_new(sh_bclient **out, struct event_base *base, const sh_burl *url, double timeout_s, sh_error *e);
void sh_bclient_free(sh_bclient *c); /* accepts NULL; no call may be under way */
/* A line of every request's head, "Name: value". SH_ERR_ARG: it is none. */
int sh_bclient_header(sh_bclient *c, const char *line, sh_error *e);
/* Starts a call: POST with a JSON body, GET when body is NULL. path begins with "/v1". `end` is called later in any case. */
void sh_bclient_start(sh_bclient *c, sh_bcall *call, const char *path, const sh_buf *body);
void sh_bclient_cut(sh_bcall *call); /* ends a call under way at once with SH_BEND_CUT; `end` is called before this returns */
int64_t sh_bclient_connections(const sh_bclient *c); /* opened so far */
int64_t sh_bclient_resent(const sh_bclient *c);      /* calls sent again so far: their kept connection was closed before an answer */

#endif
