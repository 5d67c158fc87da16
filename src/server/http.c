/* HTTP/1.1 connections on libevent's bufferevents. Runs on the loop thread.
 *
 * A connection is a small state machine (enum state). Reading goes on in every state, because that is how a hang-up is noticed while a
 * request waits for the engine: a FIN arrives behind the bytes before it, so bytes behind the current request have to be read too. They
 * stay in the input buffer and count as body bytes; a client that sends more than one largest request ahead is cut off. A client that
 * closes its sending side counts as gone: no client of such an API does that and then waits.
 *
 * Answers go into the output buffer, which libevent writes as the client takes it. Over OUT_HIGH bytes sh_http_full says so, and the writer
 * must wait for writable(); that wait reaches the engine through the request's event ring.
 *
 * Closing: the answer is flushed, our side is shut, and what still comes in is thrown away for a moment (LINGER), because closing on unread
 * bytes makes the kernel send a reset that destroys the answer on its way (a 413 for a large body would never be read).
 *
 * A connection is freed only from its own events, never from a call of the handler, so handlers may answer from anywhere.
 *
 * Refused alternative: evhttp; the reasons are in http_parse.c. */
#include "server/http.h"
#include "base/log.h"
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
  READ_AHEAD = 256 << 10, /* bytes taken from the socket before a head or body is dealt with */
  OUT_HIGH = 256 << 10,   /* bytes of unsent output at which a stream must pause */
  OUT_LOW = 64 << 10,     /* and at which it may go on */
  DISCARD_MAX = 1 << 20,  /* bytes of an unwanted body that are read to keep a connection; a longer one ends it */
  LINGER_MAX = 64 << 20,  /* bytes thrown away while closing */
  LINGER_MS = 2000,
  REQUESTS_PER_PASS = 16, /* pipelined requests answered before other connections get their turn */
};

enum state {
  HEAD,    /* reading a head */
  BODY,    /* reading a body */
  ANSWER,  /* the handler has the request */
  CLOSING, /* flushing the last answer */
  LINGER,  /* our side is shut */
};

typedef struct conn conn;
struct conn {
  sh_hreq req; /* first: a sh_hreq pointer is a conn pointer */
  sh_http *h;
  conn *prev, *next;
  struct bufferevent *bev;
  struct event *later; /* deferred progress, end of lingering */
  enum state state;
  size_t scanned;       /* bytes of the input already searched for a head's end */
  char *head_bytes;     /* owned; what req.head points into */
  size_t body_left;     /* of a body with a length */
  size_t body_counted;  /* bytes in h->bodies for req.body */
  size_t ahead_counted; /* and for what came in behind the request being answered */
  size_t thrown;        /* bytes discarded */
  sh_chunked chunked;
  sh_buf headers; /* of the answer */
  bool answered;  /* completely; a body still being read is discarded */
  bool close_after;
  bool full;   /* sh_http_full said so */
  bool eof;    /* the client will send no more */
  bool broken; /* memory ran out in the output: end it */
  bool advancing;
};

struct sh_http {
  struct event_base *base;
  struct evconnlistener *listener;
  struct event *accept_again; /* after running out of file descriptors */
  sh_http_limits limits;
  sh_http_handler handler;
  conn *first;
  int n_conns;
  size_t bodies; /* bytes */
  bool closing, everywhere;
  int port;
  char url[300];
};

/* --- Connections --- */

static void set_timeouts(conn *c, int read_s) {
  struct timeval rd = {read_s, 0}, wr = {c->h->limits.stall_s, 0};
  bufferevent_set_timeouts(c->bev, read_s ? &rd : NULL, &wr);
}

static void do_later(conn *c, int ms) {
  struct timeval tv = {ms / 1000, (ms % 1000) * 1000};
  if (evtimer_add(c->later, &tv) != 0) event_active(c->later, EV_TIMEOUT, 0); /* no memory to wait in: at once */
}

static void request_reset(conn *c) {
  c->h->bodies -= c->body_counted + c->ahead_counted;
  c->body_counted = c->ahead_counted = 0;
  sh_buf_free(&c->req.body);
  sh_buf_free(&c->headers);
  sh_free(c->head_bytes);
  memset(&c->req, 0, sizeof c->req);
  sh_buf_init(&c->req.body, c->h->limits.max_body);
  sh_buf_init(&c->headers, 4096);
  c->head_bytes = NULL;
  c->scanned = c->body_left = c->thrown = 0;
  c->answered = c->full = false;
}

static void conn_free(conn *c) {
  sh_http *h = c->h;
  if (c->state == ANSWER) h->handler.gone(h->handler.ctx, &c->req);
  request_reset(c);
  if (c->prev) c->prev->next = c->next;
  else h->first = c->next;
  if (c->next) c->next->prev = c->prev;
  if (h->n_conns-- == h->limits.max_connections && h->listener) evconnlistener_enable(h->listener);
  if (c->later) event_free(c->later);
  if (c->bev) bufferevent_free(c->bev);
  sh_free(c);
}

static size_t unsent(const conn *c) { return evbuffer_get_length(bufferevent_get_output(c->bev)); }

/* In CLOSING: go on to the end once the answer has left. Frees the connection when it is over. */
static void closing_step(conn *c) {
  if (unsent(c)) return;
  if (c->eof || shutdown(bufferevent_getfd(c->bev), SHUT_WR) != 0) {
    conn_free(c);
    return;
  }
  c->state = LINGER;
  set_timeouts(c, 0);
  do_later(c, LINGER_MS);
}

/* The answer is complete. */
static void conn_finish(conn *c) {
  c->answered = true;
  if (c->state == BODY && !c->close_after) return; /* the rest of the body is read and thrown away first */
  request_reset(c);
  bufferevent_setwatermark(c->bev, EV_READ, 0, READ_AHEAD);
  c->state = c->close_after ? CLOSING : HEAD;
  set_timeouts(c, c->close_after ? 0 : c->h->limits.idle_s);
  if (!c->advancing) do_later(c, 0);
}

/* Answers a fault of the message itself and ends the connection. */
static void conn_fail(conn *c, int status, const char *message) {
  sh_buf b;
  sh_buf_init(&b, 64 << 10);
  c->h->handler.error_body(c->h->handler.ctx, status, message, &b);
  c->close_after = true;
  sh_http_reply(&c->req, status, "application/json", b.p ? b.p : "", b.len);
  sh_buf_free(&b);
}

/* --- Reading --- */

static void body_complete(conn *c) {
  if (c->answered) { /* a body nobody wanted */
    c->state = ANSWER;
    conn_finish(c);
    return;
  }
  c->state = ANSWER;
  set_timeouts(c, 0);
  bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
  c->h->handler.request(c->h->handler.ctx, &c->req);
}

static bool body_fits(conn *c, size_t more) {
  sh_http *h = c->h;
  if (c->answered) {
    c->thrown += more;
    if (c->thrown <= DISCARD_MAX) return true;
    c->close_after = true;
    c->state = ANSWER;
    conn_finish(c);
    return false;
  }
  if (more > h->limits.max_body - c->req.body.len) {
    char text[160];
    snprintf(text, sizeof text, "The request body is larger than %zu bytes, the limit of this server (--max-body-size).",
             h->limits.max_body);
    conn_fail(c, 413, text);
    return false;
  }
  if (more > h->limits.max_bodies - h->bodies) {
    conn_fail(c, 503, "Too many large requests are being read at the same time. Please try again later.");
    return false;
  }
  return true;
}

static bool body_add(conn *c, const void *p, size_t n) {
  if (!body_fits(c, n)) return false;
  if (c->answered) return true;
  if (sh_buf_put(&c->req.body, p, n) != 0) {
    conn_fail(c, 503, "Out of memory while reading the request body.");
    return false;
  }
  c->h->bodies += n;
  c->body_counted += n;
  return true;
}

static void read_sized(conn *c, struct evbuffer *in) {
  while (c->body_left && c->state == BODY) {
    size_t n = evbuffer_get_contiguous_space(in);
    if (!n) return;
    if (n > c->body_left) n = c->body_left;
    if (!body_add(c, evbuffer_pullup(in, (ev_ssize_t)n), n)) return;
    evbuffer_drain(in, n);
    c->body_left -= n;
  }
  if (c->state == BODY) body_complete(c);
}

static void read_chunks(conn *c, struct evbuffer *in) {
  while (c->state == BODY) {
    size_t n = evbuffer_get_contiguous_space(in), used = 0, len = 0;
    if (!n) return;
    const char *data = NULL;
    int what = sh_chunked_feed(&c->chunked, (const char *)evbuffer_pullup(in, (ev_ssize_t)n), n, &used, &data, &len);
    if (what == SH_CHUNKED_DATA && !body_add(c, data, len)) return;
    evbuffer_drain(in, used);
    if (what == SH_CHUNKED_BAD) {
      if (c->answered) { /* the answer is on its way; nothing can follow it */
        c->close_after = true;
        c->state = ANSWER;
        conn_finish(c);
      } else {
        conn_fail(c, 400, "The chunked request body is malformed.");
      }
    }
    if (what == SH_CHUNKED_END) body_complete(c);
  }
}

/* The head is parsed: decide about the body. */
static void head_complete(conn *c) {
  const sh_http_head *head = &c->req.head;
  sh_http *h = c->h;
  if (!head->keep_alive || h->closing) c->close_after = true;
  bool has_body = head->chunked || head->content_length > 0;
  c->state = BODY;
  c->body_left = head->content_length > 0 ? (size_t)head->content_length : 0;
  if (has_body && !head->chunked && c->body_left > h->limits.max_body) {
    body_fits(c, c->body_left); /* 413 before a byte of it is read */
    return;
  }
  h->handler.head(h->handler.ctx, &c->req);
  if (c->state != BODY) return; /* answered, and the connection ends */
  if (!has_body) {
    body_complete(c);
    return;
  }
  sh_chunked_init(&c->chunked);
  set_timeouts(c, h->limits.stall_s);
  if (head->expect_continue && !c->answered) evbuffer_add(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* True when a head was taken off the input. */
static bool read_head(conn *c, struct evbuffer *in) {
  while (!c->scanned && evbuffer_get_length(in)) { /* blank lines between requests */
    char ch = *(const char *)evbuffer_pullup(in, 1);
    if (ch != '\r' && ch != '\n') break;
    evbuffer_drain(in, 1);
  }
  size_t have = evbuffer_get_length(in), max = c->h->limits.max_head;
  size_t look = have < max ? have : max;
  if (!look) return false;
  if (!c->scanned) set_timeouts(c, c->h->limits.stall_s);
  const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)look);
  size_t n = p ? sh_http_head_length(p, look, &c->scanned) : 0;
  if (!c->scanned) c->scanned = 1;
  if (!n) {
    if (have >= max) {
      char text[120];
      snprintf(text, sizeof text, "The request line and headers are larger than %zu bytes.", max);
      conn_fail(c, 431, text);
    }
    return false;
  }
  c->head_bytes = sh_malloc(n + 1);
  if (!c->head_bytes) {
    conn_fail(c, 503, "Out of memory.");
    return false;
  }
  evbuffer_remove(in, c->head_bytes, n);
  const char *why;
  int status = sh_http_head_parse(c->head_bytes, n, &c->req.head, &why);
  if (status) {
    char text[160];
    snprintf(text, sizeof text, "Malformed HTTP request: %s.", why);
    conn_fail(c, status, text);
    return false;
  }
  head_complete(c);
  return true;
}

/* Takes as much from the input as the state allows. */
static void advance(conn *c) {
  struct evbuffer *in = bufferevent_get_input(c->bev);
  c->advancing = true;
  int requests = 0;
  for (;;) {
    if (c->state == HEAD) {
      if (requests++ == REQUESTS_PER_PASS || !read_head(c, in)) break;
    }
    if (c->state == BODY) {
      if (c->req.head.chunked) read_chunks(c, in);
      else read_sized(c, in);
    }
    if (c->state != HEAD) break;
  }
  c->advancing = false;
  if (c->state == HEAD && requests > REQUESTS_PER_PASS) do_later(c, 0);
  if (c->state == CLOSING) do_later(c, 0);
}

static void on_later(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  conn *c = ctx;
  if (c->broken || c->state == LINGER) conn_free(c);
  else if (c->state == CLOSING) closing_step(c);
  else advance(c);
}

/* Bytes behind the request being answered; false: more than may be kept. */
static bool count_ahead(conn *c, size_t n) {
  sh_http *h = c->h;
  size_t more = n - c->ahead_counted;
  if (n > h->limits.max_head + h->limits.max_body || more > h->limits.max_bodies - h->bodies) return false;
  h->bodies += more;
  c->ahead_counted = n;
  return true;
}

static void on_read(struct bufferevent *bev, void *ctx) {
  conn *c = ctx;
  struct evbuffer *in = bufferevent_get_input(bev);
  if (c->state == CLOSING || c->state == LINGER) {
    c->thrown += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->thrown > LINGER_MAX) conn_free(c);
  } else if (c->state == ANSWER) {
    if (!count_ahead(c, evbuffer_get_length(in))) conn_free(c);
  } else {
    advance(c);
  }
}

static void on_write(struct bufferevent *bev, void *ctx) {
  (void)bev;
  conn *c = ctx;
  if (c->state == CLOSING) {
    closing_step(c);
  } else if (c->full && unsent(c) <= OUT_LOW) {
    c->full = false;
    c->h->handler.writable(c->h->handler.ctx, &c->req);
  }
}

static void on_timeout(conn *c, short what) {
  bool partial = (c->state == HEAD && c->scanned) || (c->state == BODY && !c->answered);
  if ((what & BEV_EVENT_READING) && partial) {
    bufferevent_enable(c->bev, EV_READ);
    conn_fail(c, 408, "The request did not arrive in time.");
  } else {
    conn_free(c);
  }
}

static void on_event(struct bufferevent *bev, short what, void *ctx) {
  (void)bev;
  conn *c = ctx;
  if (what & BEV_EVENT_TIMEOUT) {
    on_timeout(c, what);
  } else if ((what & BEV_EVENT_EOF) && unsent(c) && (c->state == CLOSING || c->state == HEAD)) {
    c->eof = true; /* it may still be reading */
    c->state = CLOSING;
  } else if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) {
    conn_free(c);
  }
}

/* --- Listening --- */

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int sa_len, void *ctx) {
  (void)l;
  (void)sa;
  (void)sa_len;
  sh_http *h = ctx;
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a token is a small write that must not wait for the next */
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  conn *c = sh_calloc(1, sizeof *c);
  struct bufferevent *bev = c ? bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
  if (!bev) {
    sh_free(c);
    close(fd);
    return;
  }
  c->h = h;
  c->bev = bev;
  c->next = h->first;
  if (h->first) h->first->prev = c;
  h->first = c;
  if (++h->n_conns == h->limits.max_connections) evconnlistener_disable(h->listener);
  request_reset(c);
  c->later = evtimer_new(h->base, on_later, c);
  bufferevent_setcb(bev, on_read, on_write, on_event, c);
  bufferevent_setwatermark(bev, EV_READ, 0, READ_AHEAD);
  bufferevent_setwatermark(bev, EV_WRITE, OUT_LOW, 0);
  set_timeouts(c, h->limits.idle_s);
  if (!c->later || bufferevent_enable(bev, EV_READ | EV_WRITE) != 0) conn_free(c);
}

static void on_accept_again(evutil_socket_t fd, short what, void *ctx) {
  (void)fd;
  (void)what;
  sh_http *h = ctx;
  if (h->n_conns < h->limits.max_connections) evconnlistener_enable(h->listener);
}

static void on_accept_error(struct evconnlistener *l, void *ctx) {
  sh_http *h = ctx;
  struct timeval tv = {0, 200000};
  sh_log(SH_LOG_WARN, "a connection could not be taken: %s", strerror(errno));
  evconnlistener_disable(l); /* out of file descriptors: asking again at once would spin */
  evtimer_add(h->accept_again, &tv);
}

static int bind_one(const struct addrinfo *a) {
  int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) return fd;
  int saved = errno;
  close(fd);
  errno = saved;
  return -1;
}

static int bind_error(const char *host, int port, sh_error *e) {
  int err = errno;
  if (err == EADDRINUSE)
    return sh_fail(e, SH_ERR_IO, "port %d of %s is in use by another program; choose one with --port, or let --port 0 find a free one",
                   port, host);
  if (err == EACCES)
    return sh_fail(e, SH_ERR_IO, "port %d of %s may not be used by this user; choose one above 1023 with --port", port, host);
  return sh_fail(e, SH_ERR_IO, "cannot listen on %s port %d: %s", host, port, strerror(err));
}

static int listen_on(const char *host, int port, int *out_fd, sh_error *e) {
  char service[16];
  snprintf(service, sizeof service, "%d", port);
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
  int rc = getaddrinfo(host, service, &hints, &list);
  if (rc != 0) return sh_fail(e, SH_ERR_ARG, "--host %s is not an address of this machine: %s", host, gai_strerror(rc));
  *out_fd = -1;
  for (const struct addrinfo *a = list; a && *out_fd < 0; a = a->ai_next) *out_fd = bind_one(a);
  if (*out_fd < 0) rc = bind_error(host, port, e);
  freeaddrinfo(list);
  return rc;
}

bool sh_http_name_address(const struct sockaddr *bound, const char *host, char url[300], int *port) {
  const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)bound;
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)bound;
  bool six = bound->sa_family == AF_INET6;
  bool everywhere = six ? IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) : v4->sin_addr.s_addr == htonl(INADDR_ANY);
  if (everywhere) host = six ? "::1" : "127.0.0.1";
  *port = ntohs(six ? v6->sin6_port : v4->sin_port);
  snprintf(url, 300, strchr(host, ':') ? "http://[%.255s]:%d" : "http://%.255s:%d", host, *port);
  return everywhere;
}

static int name_self(sh_http *h, const char *host, int fd, sh_error *e) {
  struct sockaddr_storage ss = {0};
  socklen_t n = sizeof ss;
  if (getsockname(fd, (struct sockaddr *)&ss, &n) != 0)
    return sh_fail(e, SH_ERR_IO, "the address that is listened on cannot be read: %s", strerror(errno));
  h->everywhere = sh_http_name_address((const struct sockaddr *)&ss, host, h->url, &h->port);
  return SH_OK;
}

int sh_http_new(sh_http **out, struct event_base *base, const char *host, int port, const sh_http_limits *limits,
                const sh_http_handler *handler, sh_error *e) {
  *out = NULL;
  int fd = -1, rc;
  if ((rc = listen_on(host, port, &fd, e)) != SH_OK) return rc;
  sh_http *h = sh_calloc(1, sizeof *h);
  if (!h) {
    close(fd);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  h->base = base;
  h->limits = *limits;
  h->handler = *handler;
  if ((rc = name_self(h, host, fd, e)) != SH_OK) {
    close(fd);
    sh_free(h);
    return rc;
  }
  h->accept_again = evtimer_new(base, on_accept_again, h);
  h->listener = evconnlistener_new(base, on_accept, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
  if (!h->listener) close(fd);
  if (!h->listener || !h->accept_again) {
    sh_http_free(h);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  evconnlistener_set_error_cb(h->listener, on_accept_error);
  *out = h;
  return SH_OK;
}

void sh_http_free(sh_http *h) {
  if (!h) return;
  if (h->listener) evconnlistener_free(h->listener);
  h->listener = NULL;
  while (h->first) conn_free(h->first);
  if (h->accept_again) event_free(h->accept_again);
  sh_free(h);
}

int sh_http_port(const sh_http *h) { return h->port; }
const char *sh_http_url(const sh_http *h) { return h->url; }
bool sh_http_everywhere(const sh_http *h) { return h->everywhere; }

void sh_http_close_idle(sh_http *h) {
  h->closing = true;
  for (conn *c = h->first; c; c = c->next) {
    c->close_after = true;
    if (c->state == HEAD && !c->scanned) {
      c->state = CLOSING;
      do_later(c, 0);
    }
  }
}

bool sh_http_quiet(const sh_http *h) {
  for (const conn *c = h->first; c; c = c->next)
    if (c->state == ANSWER || c->state == BODY || unsent(c)) return false;
  return true;
}

/* --- Answering --- */

static conn *conn_of(sh_hreq *r) { return (conn *)r; }

static void out_add(conn *c, const void *p, size_t n) {
  if (c->broken || !n || evbuffer_add(bufferevent_get_output(c->bev), p, n) == 0) return;
  c->broken = true;
  do_later(c, 0);
}

static void date_header(char *out, size_t n) {
  time_t now = time(NULL);
  struct tm tm;
  gmtime_r(&now, &tm);
  strftime(out, n, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

/* A body that nobody will read in full ends the connection; this must be known before the answer's headers are written. */
static bool must_close(const conn *c) {
  if (c->close_after || c->h->closing) return true;
  if (c->state != BODY) return false;
  return c->req.head.expect_continue || c->body_left > DISCARD_MAX;
}

static void put_head(conn *c, int status, const char *type, int64_t length) {
  sh_buf b;
  char date[64];
  sh_buf_init(&b, 16 << 10);
  date_header(date, sizeof date);
  c->req.status = status;
  bool http10 = c->head_bytes && c->req.head.minor == 0;
  if (length < 0 && http10) c->close_after = true;
  if (must_close(c)) c->close_after = true;
  sh_buf_printf(&b, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: sheng\r\n", status, sh_http_reason(status), date);
  if (type && *type) sh_buf_printf(&b, "Content-Type: %s\r\n", type);
  if (length >= 0) sh_buf_printf(&b, "Content-Length: %lld\r\n", (long long)length);
  else if (!http10) sh_buf_puts(&b, "Transfer-Encoding: chunked\r\n");
  if (c->close_after) sh_buf_puts(&b, "Connection: close\r\n");
  else if (http10) sh_buf_puts(&b, "Connection: keep-alive\r\n");
  if (c->headers.len) sh_buf_put(&b, c->headers.p, c->headers.len);
  sh_buf_puts(&b, "\r\n");
  out_add(c, b.p, b.failed ? 0 : b.len);
  if (b.failed) c->broken = true;
  sh_buf_free(&b);
}

void sh_http_set_header(sh_hreq *r, const char *name, const char *value) { sh_buf_printf(&conn_of(r)->headers, "%s: %s\r\n", name, value); }

void sh_http_reply(sh_hreq *r, int status, const char *content_type, const void *body, size_t n) {
  conn *c = conn_of(r);
  bool is_head = r->head.method && !strcmp(r->head.method, "HEAD");
  put_head(c, status, n ? content_type : NULL, (int64_t)n);
  if (!is_head) out_add(c, body, n);
  conn_finish(c);
}

void sh_http_stream_begin(sh_hreq *r, int status, const char *content_type) {
  conn *c = conn_of(r);
  put_head(c, status, content_type, -1);
}

void sh_http_stream_write(sh_hreq *r, const void *p, size_t n) {
  conn *c = conn_of(r);
  char size[24];
  if (!n) return; /* an empty chunk would end the body */
  if (r->head.minor == 0) {
    out_add(c, p, n);
    return;
  }
  out_add(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
  out_add(c, p, n);
  out_add(c, "\r\n", 2);
}

void sh_http_stream_end(sh_hreq *r) {
  conn *c = conn_of(r);
  if (r->head.minor) out_add(c, "0\r\n\r\n", 5);
  conn_finish(c);
}

bool sh_http_full(sh_hreq *r) {
  conn *c = conn_of(r);
  if (unsent(c) > OUT_HIGH) c->full = true;
  return c->full;
}

void sh_http_take_body(sh_hreq *r, sh_buf *out) {
  conn *c = conn_of(r);
  *out = r->body;
  sh_buf_init(&r->body, c->h->limits.max_body);
  c->body_counted = 0;
}

void sh_http_release_body(sh_http *h, size_t bytes) { h->bodies -= bytes; }
