/* HTTP calls on libevent's bufferevents. Loop thread.
 *
 * A connection carries one call at a time and waits in a list for the next one when the server keeps it open. A server may close a waiting
 * connection in the very moment a request goes out; a call that fails on a used connection before a byte of the answer is sent again on a
 * new one, once, and its clock goes on.
 *
 * A call's end is always told from the loop, never from inside sh_bclient_start, so that a caller may start the next call from there
 * without going deeper with every one.
 *
 * Refused alternative: libevent's evhttp client. Its timeout begins anew with every byte, it tells a refused connection, a reset and a
 * broken chunk apart only in part, and the server's side (server/http.c) stands on bufferevents already. */
#include "bench/serve_conn.h"

#include "base/pool.h"
#include "base/text.h"
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_REQUEST = 256 << 20, MAX_REFUSAL = 4096, MAX_HEADERS_BYTES = 32 << 10, CONNECT_MS = 5000, READ_BYTES = 64 << 10 };

typedef struct conn conn;
struct conn {
  sh_bclient *client;
  conn *prev, *next; /* all connections of the client */
  conn *next_idle;
  struct bufferevent *bev; /* NULL: not open */
  struct event *timer;     /* the call's timeout; at once when the call could not be started */
  sh_bhttp http;
  sh_bcall *call; /* borrowed until its end; NULL: idle */
  bool used;      /* has carried a call before this one */
  bool answered;  /* a byte of this call's answer has come */
  bool connected, idle, body_failed;
};

struct sh_bclient {
  struct event_base *base;
  struct sockaddr_storage addr;
  socklen_t addr_len;
  sh_burl url;
  sh_buf headers;
  double timeout_s;
  const struct timeval *timeout; /* libevent's common timeout of that length */
  conn *all, *idle;
  int64_t opened, resent;
};

const char *sh_bend_name(sh_bend end) {
  static const char *const names[] = {"ok",       "connect",    "timeout",     "closed_early", "http",
                                      "bad_http", "bad_stream", "error_event", "interrupted",  "out_of_memory"};
  return names[end];
}

/* ---- Addresses ---- */

static int url_fail(sh_error *e, const char *text) {
  return sh_fail(e, SH_ERR_ARG, "\"%.200s\" is no address of a server, wanted http://HOST:PORT", text);
}

/* host[:port] of s[0..n) */
static int read_authority(sh_burl *out, const char *s, size_t n, const char *text, sh_error *e) {
  const char *end = s + n, *host = s, *host_end, *port = "80";
  size_t port_len = 2;
  if (n > 0 && *s == '[') {
    host++;
    host_end = memchr(s, ']', n);
    if (!host_end || (host_end + 1 < end && host_end[1] != ':')) return url_fail(e, text);
    if (host_end + 1 < end) port = host_end + 2;
  } else {
    host_end = memchr(s, ':', n);
    if (host_end) port = host_end + 1;
    else host_end = end;
  }
  if (port > s && port <= end) port_len = (size_t)(end - port);
  size_t host_len = (size_t)(host_end - host);
  if (host_len == 0 || host_len >= sizeof out->host || port_len == 0 || port_len > 5) return url_fail(e, text);
  memcpy(out->host, host, host_len);
  memcpy(out->port, port, port_len);
  int64_t number;
  if (strcspn(out->host, "@\" \r\n\t") != host_len || sh_parse_i64(out->port, &number) < 0 || number < 1 || number > 65535)
    return url_fail(e, text);
  return 0;
}

int sh_burl_parse(sh_burl *out, const char *text, sh_error *e) {
  memset(out, 0, sizeof *out);
  const char *s = text;
  if (strncasecmp(s, "https://", 8) == 0)
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "%.200s: TLS is not spoken here; measure the server behind the proxy that adds TLS, at its own http:// address", text);
  if (strncasecmp(s, "http://", 7) == 0) s += 7;
  else if (strstr(s, "://")) return url_fail(e, text);
  size_t n = strcspn(s, "/?#");
  int rc = read_authority(out, s, n, text, e);
  if (rc < 0) return rc;
  const char *path = s + n;
  size_t len = strlen(path);
  while (len > 0 && path[len - 1] == '/') len--;
  if (len >= 3 && memcmp(path + len - 3, "/v1", 3) == 0) len -= 3;
  while (len > 0 && path[len - 1] == '/') len--;
  if (len >= sizeof out->base || strcspn(path, "?# \"\r\n\t") < len) return url_fail(e, text);
  memcpy(out->base, path, len);
  bool six = strchr(out->host, ':') != NULL;
  snprintf(out->shown, sizeof out->shown, "http://%s%s%s:%s%s", six ? "[" : "", out->host, six ? "]" : "", out->port, out->base);
  return 0;
}

/* Connects, waiting at most CONNECT_MS; 0 or an errno. */
static int try_connect(const struct addrinfo *a) {
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), err = 0;
  if (fd < 0) return errno;
  if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
    err = errno;
    if (err == EINPROGRESS) {
      struct pollfd p = {.fd = fd, .events = POLLOUT};
      int ready;
      socklen_t len = sizeof err;
      do ready = poll(&p, 1, CONNECT_MS);
      while (ready < 0 && errno == EINTR);
      if (ready == 0) err = ETIMEDOUT;
      else if (ready < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0) err = errno;
    }
  }
  close(fd);
  return err;
}

static int find_server(sh_bclient *c, sh_error *e) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *all = NULL;
  int rc = getaddrinfo(c->url.host, c->url.port, &hints, &all), err = 0;
  if (rc) return sh_fail(e, SH_ERR_IO, "%s: %s", c->url.shown, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
  for (const struct addrinfo *a = all; a && !c->addr_len; a = a->ai_next) {
    err = try_connect(a);
    if (err || a->ai_addrlen > sizeof c->addr) continue;
    memcpy(&c->addr, a->ai_addr, a->ai_addrlen);
    c->addr_len = a->ai_addrlen;
  }
  freeaddrinfo(all);
  if (c->addr_len) return 0;
  return sh_fail(e, SH_ERR_IO, "nothing can be reached at %s: %s; is the server started, and is the port right?", c->url.shown,
                 strerror(err));
}

/* ---- The client ---- */

int sh_bclient_new(sh_bclient **out, struct event_base *base, const sh_burl *url, double timeout_s, sh_error *e) {
  *out = NULL;
  sh_bclient *c = sh_calloc(1, sizeof *c);
  if (!c) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  c->base = base;
  c->url = *url;
  c->timeout_s = timeout_s;
  sh_buf_init(&c->headers, MAX_HEADERS_BYTES);
  struct timeval tv = {.tv_sec = (time_t)timeout_s, .tv_usec = (suseconds_t)((timeout_s - (double)(time_t)timeout_s) * 1e6)};
  c->timeout = event_base_init_common_timeout(base, &tv);
  int rc = c->timeout ? find_server(c, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0) *out = c;
  else sh_bclient_free(c);
  return rc;
}

static void conn_free(conn *k) {
  sh_bclient *c = k->client;
  if (k->prev) k->prev->next = k->next;
  else c->all = k->next;
  if (k->next) k->next->prev = k->prev;
  if (k->idle) {
    conn **at = &c->idle;
    while (*at != k) at = &(*at)->next_idle;
    *at = k->next_idle;
  }
  if (k->bev) bufferevent_free(k->bev);
  if (k->timer) event_free(k->timer);
  sh_bhttp_free(&k->http);
  sh_free(k);
}

void sh_bclient_free(sh_bclient *c) {
  if (!c) return;
  while (c->all) conn_free(c->all);
  sh_buf_free(&c->headers);
  sh_free(c);
}

int sh_bclient_header(sh_bclient *c, const char *line, sh_error *e) {
  const char *colon = strchr(line, ':');
  bool ok = colon && colon > line;
  for (const char *s = line; ok && *s; s++) ok = (unsigned char)*s >= 32 && *s != 127 && (s >= colon || *s != ' ');
  if (!ok) return sh_fail(e, SH_ERR_ARG, "a header is \"%.80s\", wanted \"Name: value\"", line);
  if (strncasecmp(line, "http://", 7) == 0 || strncasecmp(line, "https://", 8) == 0) /* --header takes every value that follows it */
    return sh_fail(e, SH_ERR_ARG, "a header is \"%.80s\"; put the server's address before the options", line);
  sh_buf_puts(&c->headers, line);
  sh_buf_puts(&c->headers, "\r\n");
  return c->headers.failed ? sh_fail(e, SH_ERR_LIMIT, "the headers are longer than %d bytes", MAX_HEADERS_BYTES) : 0;
}

int64_t sh_bclient_connections(const sh_bclient *c) { return c->opened; }

int64_t sh_bclient_resent(const sh_bclient *c) { return c->resent; }

void sh_bcall_free(sh_bcall *c) {
  sh_buf_free(&c->private_request);
  sh_buf_free(&c->private_refusal);
}

/* ---- The end of a call ---- */

/* Takes the call off its connection, which is kept or freed, and tells its owner. The connection must not be touched afterwards. */
static void finish(conn *k, sh_bend how, bool keep) {
  sh_bcall *call = k->call;
  sh_bclient *c = k->client;
  call->how = how;
  call->status = k->http.status;
  call->end_ns = sh_now_ns();
  call->private_conn = NULL;
  k->call = NULL;
  if (keep) {
    event_del(k->timer);
    sh_bhttp_init(&k->http);
    k->used = k->idle = true;
    k->next_idle = c->idle;
    c->idle = k;
  } else {
    conn_free(k);
  }
  call->end(call);
}

/* The whole response is there. */
static void complete(conn *k) {
  sh_bcall *call = k->call;
  char quote[200];
  bool keep = k->http.keep_alive;
  if (k->http.status >= 200 && k->http.status < 300) {
    finish(k, SH_BEND_OK, keep);
    return;
  }
  sh_bquote(quote, call->private_refusal.p ? call->private_refusal.p : "", call->private_refusal.len);
  sh_fail(&call->why, SH_ERR_IO, "HTTP %d%s%s", k->http.status, quote[0] ? ": " : "", quote);
  finish(k, SH_BEND_STATUS, keep);
}

static int on_body(void *ctx, const char *p, size_t n, sh_error *e) {
  conn *k = ctx;
  sh_bcall *call = k->call;
  if (k->http.status >= 200 && k->http.status < 300) {
    int rc = call->body(call, p, n, sh_now_ns(), e);
    k->body_failed = rc < 0;
    return rc;
  }
  size_t room = MAX_REFUSAL - call->private_refusal.len, take = n < room ? n : room;
  sh_buf_put(&call->private_refusal, p, take); /* only a message: what does not fit is left out */
  return 0;
}

static bool open_conn(conn *k);
static bool send_request(conn *k);

/* A used connection died before the answer: once more, on a new one. */
static bool retried(conn *k) {
  if (!k->used || k->answered) return false;
  k->client->resent++;
  bufferevent_free(k->bev);
  k->bev = NULL;
  k->used = k->connected = false;
  if (!open_conn(k)) return false;
  return send_request(k);
}

static void on_read(struct bufferevent *bev, void *ctx) {
  conn *k = ctx;
  struct evbuffer *in = bufferevent_get_input(bev);
  size_t n = evbuffer_get_length(in);
  if (!k->call) { /* bytes nobody asked for */
    conn_free(k);
    return;
  }
  sh_bcall *call = k->call;
  k->answered = true;
  const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
  int rc = p || !n ? 0 : sh_fail(&call->why, SH_ERR_NOMEM, "out of memory");
  if (rc == 0 && n) rc = sh_bhttp_feed(&k->http, p, n, on_body, k, &call->why);
  if (p) evbuffer_drain(in, n);
  if (rc == SH_ERR_NOMEM) finish(k, SH_BEND_MEMORY, false);
  else if (rc < 0) finish(k, k->body_failed ? call->stream_end : SH_BEND_PROTOCOL, false);
  else if (k->http.over) complete(k);
}

static void on_event(struct bufferevent *bev, short what, void *ctx) {
  conn *k = ctx;
  (void)bev;
  int err = EVUTIL_SOCKET_ERROR();
  if (what & BEV_EVENT_CONNECTED) {
    int one = 1;
    k->connected = true;
    setsockopt(bufferevent_getfd(k->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return;
  }
  if (!k->call) {
    conn_free(k);
    return;
  }
  sh_bcall *call = k->call;
  if (retried(k)) return;
  if (!k->bev) {
    finish(k, call->why.code == SH_ERR_NOMEM ? SH_BEND_MEMORY : SH_BEND_CONNECT, false);
  } else if (!k->connected) {
    sh_fail(&call->why, SH_ERR_IO, "no connection: %s", evutil_socket_error_to_string(err));
    finish(k, SH_BEND_CONNECT, false);
  } else if (what & BEV_EVENT_EOF) {
    if (sh_bhttp_eof(&k->http, &call->why) == 0 || k->http.status >= 300) complete(k);
    else finish(k, SH_BEND_CLOSED, false);
  } else {
    sh_fail(&call->why, SH_ERR_IO, "the connection broke: %s", evutil_socket_error_to_string(err));
    finish(k, SH_BEND_CLOSED, false);
  }
}

static void on_timer(evutil_socket_t fd, short what, void *ctx) {
  conn *k = ctx;
  (void)fd;
  (void)what;
  if (!k->call) return;
  if (!k->bev) { /* it could not be started; the reason is known already */
    finish(k, k->call->why.code == SH_ERR_NOMEM ? SH_BEND_MEMORY : SH_BEND_CONNECT, false);
    return;
  }
  sh_fail(&k->call->why, SH_ERR_IO, "no %s within %g s", k->answered ? "end of the answer" : "answer", k->client->timeout_s);
  finish(k, SH_BEND_TIMEOUT, false);
}

/* ---- The start of a call ---- */

/* false: the reason is in the call. */
static bool open_conn(conn *k) {
  sh_bclient *c = k->client;
  k->client->opened++;
  k->bev = bufferevent_socket_new(c->base, -1, BEV_OPT_CLOSE_ON_FREE);
  if (!k->bev) {
    sh_fail(&k->call->why, SH_ERR_NOMEM, "out of memory");
    return false;
  }
  bufferevent_setcb(k->bev, on_read, NULL, on_event, k);
  bufferevent_set_max_single_read(k->bev, READ_BYTES);
  int fd = socket(c->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int err = fd < 0 ? errno : 0;
  if (fd >= 0 && bufferevent_setfd(k->bev, fd) < 0) {
    close(fd);
    err = ENOMEM;
  }
  if (!err && connect(fd, (struct sockaddr *)&c->addr, c->addr_len) < 0 && errno != EINPROGRESS) err = errno;
  if (!err && bufferevent_socket_connect(k->bev, NULL, 0) < 0) err = errno ? errno : EIO;
  if (!err && bufferevent_enable(k->bev, EV_READ | EV_WRITE) == 0) return true;
  sh_fail(&k->call->why, SH_ERR_IO, "no connection: %s", strerror(err ? err : EIO));
  bufferevent_free(k->bev);
  k->bev = NULL;
  return false;
}

static bool send_request(conn *k) {
  const sh_buf *r = &k->call->private_request;
  k->answered = k->body_failed = false;
  k->call->stream_end = SH_BEND_STREAM;
  sh_bhttp_init(&k->http);
  if (r->failed == 0 && bufferevent_write(k->bev, r->p, r->len) == 0) return true;
  sh_fail(&k->call->why, SH_ERR_NOMEM, "the request does not fit in memory");
  bufferevent_free(k->bev);
  k->bev = NULL;
  return false;
}

static conn *take_conn(sh_bclient *c) {
  conn *k = c->idle;
  if (k) {
    c->idle = k->next_idle;
    k->idle = false;
    return k;
  }
  k = sh_calloc(1, sizeof *k);
  if (!k) return NULL;
  k->client = c;
  sh_bhttp_init(&k->http);
  k->timer = evtimer_new(c->base, on_timer, k);
  k->next = c->all;
  if (c->all) c->all->prev = k;
  c->all = k;
  return k;
}

static void write_head(sh_bclient *c, sh_buf *r, const char *path, const sh_buf *body) {
  bool six = strchr(c->url.host, ':') != NULL;
  sh_buf_printf(r, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: sheng-bench\r\n", body ? "POST" : "GET", c->url.base, path,
                six ? "[" : "", c->url.host, six ? "]" : "", c->url.port);
  if (c->headers.len) sh_buf_put(r, c->headers.p, c->headers.len);
  if (body)
    sh_buf_printf(r, "Accept: text/event-stream, application/json\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", body->len);
  sh_buf_puts(r, "\r\n");
  if (body) sh_buf_put(r, body->p, body->len);
  if (body && body->failed && !r->failed) r->failed = body->failed;
}

void sh_bclient_start(sh_bclient *c, sh_bcall *call, const char *path, const sh_buf *body) {
  sh_buf *r = &call->private_request, *refusal = &call->private_refusal;
  if (r->max == 0) sh_buf_init(r, MAX_REQUEST);
  if (refusal->max == 0) sh_buf_init(refusal, MAX_REFUSAL);
  sh_buf_reset(r);
  sh_buf_reset(refusal);
  write_head(c, r, path, body);
  call->how = SH_BEND_OK;
  call->status = 0;
  call->why = (sh_error){0};
  conn *k = take_conn(c);
  call->private_conn = k;
  call->start_ns = sh_now_ns();
  if (!k || !k->timer) { /* nothing that the loop could call */
    if (k) conn_free(k);
    call->private_conn = NULL;
    call->how = SH_BEND_MEMORY;
    call->end_ns = call->start_ns;
    sh_fail(&call->why, SH_ERR_NOMEM, "out of memory");
    call->end(call);
    return;
  }
  k->call = call;
  bool ok = k->bev || open_conn(k);
  ok = ok && send_request(k);
  static const struct timeval at_once = {0, 0};
  event_add(k->timer, ok ? c->timeout : &at_once);
}

void sh_bclient_cut(sh_bcall *call) {
  conn *k = call->private_conn;
  if (!k) return;
  sh_fail(&call->why, SH_ERR_CANCELLED, "interrupted");
  finish(k, SH_BEND_CUT, false);
}
