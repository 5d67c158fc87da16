/* HTTP/1.1 message syntax as pure functions on bytes: the request head and the chunked coding. No sockets, no allocation, so that it can be
 * tested and fuzzed alone. */
#ifndef SH_SERVER_HTTP_PARSE_H
#define SH_SERVER_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SH_HTTP_MAX_HEADERS = 100 };

typedef struct sh_http_header {
  const char *name, *value;
} sh_http_header; /* NUL-terminated, in the head's own bytes; name in lower case */

typedef struct sh_http_head {
  const char *method;
  char *path;        /* decoded, without query; begins with '/' (or is "*") */
  const char *query; /* after '?', undecoded; "" */
  int minor;         /* HTTP/1.minor: 0 or 1 */
  sh_http_header headers[SH_HTTP_MAX_HEADERS];
  int n_headers;
  bool keep_alive;
  bool chunked;
  bool expect_continue;
  int64_t content_length; /* -1: none given */
} sh_http_head;

/* Length of the head at p[0..n) with its blank line, or 0 when that has not come yet. *from: where to go on looking, 0 at first. */
size_t sh_http_head_length(const char *p, size_t n, size_t *from);
/* Takes the head apart in place; p[n] must be writable. Returns 0, or the status to answer (400, 417, 431, 501, 505) with a reason in *why
 * (static). */
int sh_http_head_parse(char *p, size_t n, sh_http_head *out, const char **why);
const char *sh_http_head_get(const sh_http_head *h, const char *lower_name); /* the first one; NULL */

/* --- Chunked coding. Feed bytes; data comes back as ranges of the input. */
typedef struct sh_chunked {
  int private_state;
  uint64_t private_left;
  size_t private_line;
  size_t private_trailer;
  int private_digits;
} sh_chunked;
enum { SH_CHUNKED_MORE = 0, SH_CHUNKED_DATA = 1, SH_CHUNKED_END = 2, SH_CHUNKED_BAD = -1 };
void sh_chunked_init(sh_chunked *c);
/* Consumes *used bytes of p[0..n). DATA: *data and *len are in p; call again with the rest. MORE: everything was consumed. END: the message
 * is over, what follows is the next one's. */
int sh_chunked_feed(sh_chunked *c, const char *p, size_t n, size_t *used, const char **data, size_t *len);

const char *sh_http_reason(int status); /* "Not Found" */

#endif
