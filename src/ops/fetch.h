/* HTTP transfers for `sheng pull`: many at a time over libcurl, in one thread. A transfer follows redirects itself, so that a token goes to
 * the hub and to nobody else, and ends in one of four ways, which is all a caller has to tell apart. */
#ifndef SH_OPS_FETCH_H
#define SH_OPS_FETCH_H

#include "base/mem.h"
#include "ops/curl_api.h"
#include <signal.h>

typedef struct sh_fetch_config {
  const char *endpoint; /* base URL of the hub: only its scheme, host and port are shown the token */
  const char *token;    /* NULL: none */
  const char *libcurl;  /* file to open, NULL: the system's */
  const char *ca_file;  /* certificates to trust, NULL: libcurl's own */
  bool session_cookie;  /* the token goes as the cookie m_session_id too (ModelScope) */
  int stall_s;          /* seconds without noticeable progress after which a connection is given up */
  int retries;          /* tries after the first, of sh_fetch_text */
  void (*note)(const char *why, double wait_s, int attempt, int retries); /* sh_fetch_text is about to try again; NULL: nobody asks */
  const volatile sig_atomic_t *stop;                                      /* set by a signal handler; NULL: never */
} sh_fetch_config;                                                        /* strings borrowed for the life of the sh_fetch */

typedef struct sh_fetch sh_fetch;
int sh_fetch_open(sh_fetch **out, const sh_fetch_config *c, sh_error *e);
void sh_fetch_close(sh_fetch *f); /* accepts NULL; every started transfer must have been stopped or have ended */

typedef enum sh_xfer_end {
  SH_XFER_OK,      /* 200 or 206, and the body came whole as far as HTTP can tell */
  SH_XFER_RETRY,   /* it may go better later: connection, time-out, 408 425 429 5xx. See retry_after_s */
  SH_XFER_REFUSED, /* a status that another try will not change; `status` says which */
  SH_XFER_FAILED,  /* no way on: a wrong URL, a certificate, a redirect that must not be followed */
  SH_XFER_ABORTED, /* a callback returned nonzero */
} sh_xfer_end;

typedef struct sh_xfer sh_xfer;
struct sh_xfer {
  /* Set by the caller before the start; the rest zeroed. */
  int64_t from, to;        /* bytes wanted, `to` exclusive; to == 0: everything, without a Range header */
  int (*head)(sh_xfer *x); /* the answer is 200 or 206 and its headers are here; before the first byte. NULL: none */
  int (*data)(sh_xfer *x, const char *p, size_t n);
  void *ctx;
  /* The answer, valid in the callbacks and after the end. Strings are cut to fit. */
  long status;           /* HTTP; 0: none came */
  int64_t length;        /* Content-Length, -1: not said */
  int64_t range_from;    /* Content-Range, -1: not said */
  int64_t range_total;   /* size of the whole file by Content-Range, -1: not said */
  int64_t retry_after_s; /* seconds the server asks to wait, -1: not said */
  char etag[128];        /* without quotes and W/ */
  char error_code[64];   /* X-Error-Code */
  char message[256];     /* the server's own words about an error */
  char *next_url;        /* Link: rel="next"; owned */
  char *url;             /* where the answer came from, after redirects; owned */
  bool redirected;
  sh_xfer_end end;
  sh_error error; /* a sentence unless end is OK; an aborting callback writes its own */
  /* private */
  sh_fetch *private_fetch;
  void *private_easy, *private_headers;
  sh_buf private_body; /* of an answer that is an error */
  int private_hops;
  bool private_headed, private_aborted;
  char private_note[SH_CURL_ERROR_SIZE];
};

/* Starts x, which must not move until it ended or was stopped. url is copied. On failure nothing was started. */
int sh_fetch_start(sh_fetch *f, sh_xfer *x, const char *url, sh_error *e);
/* Moves all transfers on, waiting up to `ms` milliseconds for something to happen. One that ended, or NULL. */
sh_xfer *sh_fetch_poll(sh_fetch *f, int ms);
void sh_xfer_stop(sh_xfer *x); /* also of one that ended: frees what it holds and zeroes it */

/* GETs a text into `body` (whose max is the limit), with retries and waits between them. On failure the reply's status (0: no answer), code
 * and message tell what a caller needs to explain. SH_ERR_CANCELLED: stop. */
typedef struct sh_fetch_reply {
  long status;
  bool unreachable; /* every try ended before anything was answered */
  char error_code[64], message[256];
  char *next_url; /* Link: rel="next", or NULL; caller frees */
} sh_fetch_reply;
int sh_fetch_text(sh_fetch *f, const char *url, sh_buf *body, sh_fetch_reply *reply, sh_error *e);

/* Milliseconds to wait before try number `attempt` (1 = the first retry): 0.5 s doubled each time up to 30 s, plus up to a quarter by
 * chance so that clients do not return together; at least retry_after_s when that is >= 0. */
int64_t sh_fetch_backoff_ms(int attempt, int64_t retry_after_s);
enum { SH_FETCH_MAX_WAIT_S = 600 }; /* a server that asks for a longer wait is an error */

/* Have both URLs the same scheme, host and port? False for anything that is not plain http(s)://host[:port][/...]: no user names, no
 * characters on which two parsers might disagree. */
bool sh_url_same_origin(const char *a, const char *b);
int sh_url_escape(sh_buf *out, const char *s, const char *keep); /* percent-encodes all but A-Za-z0-9-._~ and `keep` */

#endif
