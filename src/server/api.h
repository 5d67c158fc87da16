/* The API layer: from an HTTP request to its handler and back. One sh_call per request.
 *
 * A call is born on the loop thread when its body is complete, goes to a text worker when its route has `work`, comes back, and is then
 * either answered at once (out, error) or generates (gen.h). Between loop and worker exactly one of them owns it: `working` says which.
 * When the client goes, http becomes NULL, and the call ends as soon as the loop has it. Everything parsed for it lives in its arena. */
#ifndef SH_SERVER_API_H
#define SH_SERVER_API_H

#include "base/json.h"
#include "server/http.h"
#include "server/loop.h"
#include "server/work.h"

typedef struct sh_server sh_server;
typedef struct sh_call sh_call;
typedef struct sh_gen sh_gen;

/* --- Limits of requests. Each is answered 400, naming the field. */
enum {
  SH_API_MAX_MEMBERS = 1000,     /* members of the request object */
  SH_API_MAX_NODES = 4 << 20,    /* JSON values of a body */
  SH_API_MAX_CHOICES = 4096,     /* prompts x n */
  SH_API_MAX_N = 128,            /* choices per prompt */
  SH_API_MAX_STOP = 1024,        /* stop strings; bad words */
  SH_API_MAX_STOP_BYTES = 16384, /* of one stop string or bad word */
};

/* --- Errors */
typedef struct sh_api_error {
  int status;     /* HTTP */
  char param[64]; /* the field; "" for none */
  char message[800];
} sh_api_error;

/* Fills the error and returns -1, so that a handler may write `return sh_api_fail(...)`. param may be NULL. */
int sh_api_fail(sh_api_error *e, int status, const char *param, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int sh_api_fail_from(sh_api_error *e, const char *param, const sh_error *err); /* the status that an sh_err means */
/* {"error":{"message","type","param","code"}}, without a newline. */
void sh_api_error_json(const sh_api_error *e, sh_buf *out);
void sh_api_error_body(void *ctx, int status, const char *message, sh_buf *out); /* for sh_http_handler */

/* --- Routes */
typedef struct sh_route {
  const char *path;    /* ends with '*': what follows is the call's `rest` */
  const char *methods; /* "POST", "GET,HEAD": as in Allow */
  unsigned flags;
  int (*now)(sh_call *c, sh_api_error *e);  /* loop thread; answers in c->out */
  int (*work)(sh_call *c, sh_api_error *e); /* text worker; answers in c->out or makes c->gen */
} sh_route;
enum {
  SH_ROUTE_OPEN = 1,  /* no API key */
  SH_ROUTE_MODEL = 2, /* needs the model to be loaded and warm: 503 before, and while draining unless it is answered at once */
  SH_ROUTE_QUIET = 4, /* asked by probes: not worth a log line */
};
extern const sh_route sh_routes[]; /* ends with path == NULL */

/* --- Calls */
struct sh_call {
  sh_server *srv;
  sh_hreq *http; /* NULL once the client has gone or the answer is complete */
  const sh_route *route;
  char rest[600]; /* of the path, decoded */
  char method[8];
  sh_buf body; /* taken from the request; body_bytes are accounted in http */
  size_t body_bytes;
  sh_arena *arena;     /* everything parsed */
  const sh_json *json; /* the body; NULL when the route takes none */
  sh_task done;        /* worker -> loop */
  sh_job job;
  bool working; /* a worker owns the call */
  bool failed;
  sh_api_error error;
  sh_buf out;       /* the answer */
  const char *type; /* of out */
  int status;       /* of the answer; 0 as long as there is none. A `now` handler may set another than 200 */
  sh_gen *gen;
  int64_t began_ns;
  sh_call *prev, *next;
};

/* http handler functions of the server */
void sh_api_head(void *ctx, sh_hreq *r);
void sh_api_request(void *ctx, sh_hreq *r);
void sh_api_gone(void *ctx, sh_hreq *r);
void sh_api_writable(void *ctx, sh_hreq *r);

/* Loop thread. Sends c->out or the error and ends the call. */
void sh_call_answer(sh_call *c, int status);
void sh_call_answer_error(sh_call *c, const sh_api_error *e);
void sh_call_free(sh_call *c); /* also takes it out of the server's list; the http request must be answered or gone */

#endif
