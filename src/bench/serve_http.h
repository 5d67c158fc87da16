/* What a server sends, as push parsers on bytes in any pieces: an HTTP/1.1 response, and the server-sent events in its body. No sockets. */
#ifndef SH_BENCH_SERVE_HTTP_H
#define SH_BENCH_SERVE_HTTP_H

#include "base/err.h"
#include "base/mem.h"
#include "server/http_parse.h"

/* --- A response --- */

typedef struct sh_bhttp {
  int status;      /* 0 until the head is complete */
  bool over;       /* the whole response has come */
  bool keep_alive; /* the connection may take another request when it is over */
  bool private_chunked, private_to_end;
  int64_t private_left; /* bytes of a body with a length */
  size_t private_from;
  sh_buf private_head;
  sh_chunked private_chunks;
} sh_bhttp;

/* Bytes of the body; a negative return stops and is returned. */
typedef int (*sh_bhttp_body)(void *ctx, const char *p, size_t n, sh_error *e);

void sh_bhttp_init(sh_bhttp *h); /* for a zeroed struct, or after one response for the next */
void sh_bhttp_free(sh_bhttp *h); /* accepts a zeroed struct */
/* SH_ERR_FORMAT: this is not HTTP/1; SH_ERR_LIMIT: a head too large. Bytes after the end are not looked at: the connection cannot be kept.
 */
int sh_bhttp_feed(sh_bhttp *h, const char *p, size_t n, sh_bhttp_body body, void *ctx, sh_error *e);
/* The connection was closed by the server. 0: that was the body's end, or the response was over. SH_ERR_IO: it stopped in the middle. */
int sh_bhttp_eof(sh_bhttp *h, sh_error *e);

/* --- Server-sent events --- */

typedef struct sh_bsse {
  bool private_after_cr, private_has_data;
  sh_buf private_line, private_data;
} sh_bsse;

/* The data of one event, its lines joined by \n. A negative return stops and is returned. */
typedef int (*sh_bsse_fn)(void *ctx, const char *data, size_t n, sh_error *e);

void sh_bsse_init(sh_bsse *s); /* for a zeroed struct, or to begin anew */
void sh_bsse_free(sh_bsse *s);
/* SH_ERR_FORMAT: a line that is no field of an event stream (a page or a JSON body in its place); SH_ERR_LIMIT: an event over 16 MiB. */
int sh_bsse_feed(sh_bsse *s, const char *p, size_t n, sh_bsse_fn fn, void *ctx, sh_error *e);

/* What one event of a completion says. */
typedef struct sh_bevent {
  bool done;                                               /* [DONE] */
  bool text;                                               /* a part of the answer: content, reasoning, text or a tool call */
  bool finish;                                             /* a finish_reason */
  bool failed;                                             /* the server's error object; its message is in *e */
  int64_t prompt_tokens, completion_tokens, cached_tokens; /* of its usage; -1: none */
} sh_bevent;
/* SH_ERR_FORMAT: no JSON object. */
int sh_bevent_read(sh_bevent *out, const char *data, size_t n, sh_error *e);

/* s[0..n) as one line of at most 160 bytes for a message: control characters as blanks, valid UTF-8. */
void sh_bquote(char out[200], const char *s, size_t n);

#endif
