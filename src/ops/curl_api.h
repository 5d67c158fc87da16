/* libcurl, opened at run time: only `sheng pull` needs it, and a server must start on hosts that lack it. The numbers are libcurl's stable
 * ABI (soname 4), so no header of it is needed to build. */
#ifndef SH_OPS_CURL_API_H
#define SH_OPS_CURL_API_H

#include "base/err.h"

enum { /* options: 0+ a long, 10000+ a pointer, 20000+ a function */
       SH_CURL_OPT_LOW_SPEED_LIMIT = 19,
       SH_CURL_OPT_LOW_SPEED_TIME = 20,
       SH_CURL_OPT_FOLLOWLOCATION = 52,
       SH_CURL_OPT_CONNECTTIMEOUT = 78,
       SH_CURL_OPT_HTTP_VERSION = 84,
       SH_CURL_OPT_NOSIGNAL = 99,
       SH_CURL_OPT_PROTOCOLS = 181,
       SH_CURL_OPT_SUPPRESS_CONNECT_HEADERS = 265,
       SH_CURL_OPT_WRITEDATA = 10001,
       SH_CURL_OPT_URL = 10002,
       SH_CURL_OPT_RANGE = 10007,
       SH_CURL_OPT_ERRORBUFFER = 10010,
       SH_CURL_OPT_USERAGENT = 10018,
       SH_CURL_OPT_HTTPHEADER = 10023,
       SH_CURL_OPT_HEADERDATA = 10029,
       SH_CURL_OPT_CAINFO = 10065,
       SH_CURL_OPT_PRIVATE = 10103,
       SH_CURL_OPT_WRITEFUNCTION = 20011,
       SH_CURL_OPT_HEADERFUNCTION = 20079,
};
enum { SH_CURL_INFO_REDIRECT_URL = 0x100000 + 31, SH_CURL_INFO_PRIVATE = 0x100000 + 21, SH_CURL_INFO_RESPONSE_CODE = 0x200000 + 2 };
enum { SH_CURL_PROTO_HTTP_HTTPS = 3, SH_CURL_HTTP_1_1 = 2, SH_CURL_GLOBAL_ALL = 3, SH_CURL_ERROR_SIZE = 256, SH_CURL_MSG_DONE = 1 };
enum { /* results of a transfer */
       SH_CURL_OK = 0,
       SH_CURL_UNSUPPORTED_PROTOCOL = 1,
       SH_CURL_URL_MALFORMAT = 3,
       SH_CURL_RESOLVE_HOST = 6,
       SH_CURL_CONNECT = 7,
       SH_CURL_WRITE_ERROR = 23,
       SH_CURL_NO_MEMORY = 27,
       SH_CURL_TIMEDOUT = 28,
       SH_CURL_SSL_CERTPROBLEM = 58,
       SH_CURL_SSL_CIPHER = 59,
       SH_CURL_PEER_VERIFICATION = 60,
       SH_CURL_CACERT_BADFILE = 77,
       SH_CURL_SSL_ISSUER = 83,
};

typedef struct sh_curl_msg {
  int msg;
  void *easy;
  union {
    void *whatever;
    int result;
  } data;
} sh_curl_msg;

typedef struct sh_curl_api {
  int (*global_init)(long flags);
  void *(*easy_init)(void);
  void (*easy_cleanup)(void *easy);
  void (*easy_reset)(void *easy);
  int (*easy_setopt)(void *easy, int option, ...);
  int (*easy_getinfo)(void *easy, int info, ...);
  const char *(*easy_strerror)(int code);
  void *(*slist_append)(void *list, const char *s);
  void (*slist_free_all)(void *list);
  void *(*multi_init)(void);
  int (*multi_cleanup)(void *multi);
  int (*multi_add_handle)(void *multi, void *easy);
  int (*multi_remove_handle)(void *multi, void *easy);
  int (*multi_perform)(void *multi, int *running);
  int (*multi_wait)(void *multi, void *extra_fds, unsigned n_extra, int timeout_ms, int *n_ready);
  sh_curl_msg *(*multi_info_read)(void *multi, int *in_queue);
} sh_curl_api;

/* path: a libcurl to open, or NULL for the system's. Once per process: later calls give the first one. SH_ERR_UNSUPPORTED with what to
 * install when there is none. The library stays open. Main thread. */
int sh_curl_load(const char *path, const sh_curl_api **out, sh_error *e);

#endif
