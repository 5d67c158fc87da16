/* Errors: one convention for the whole program.
 *
 * A function that can fail returns int: 0 is success, a negative sh_err is failure. The sentence for a human goes to
 * the caller's sh_error (which may be NULL): what was found, what was wanted, what to do. */
#ifndef SH_BASE_ERR_H
#define SH_BASE_ERR_H

#include <stdarg.h>

typedef enum sh_err {
  SH_OK = 0,
  SH_ERR_NOMEM = -1,       /* memory (or a pool sized at start) ran out */
  SH_ERR_IO = -2,          /* the operating system refused a read, a write, a map, a socket call */
  SH_ERR_FORMAT = -3,      /* a file or message is malformed or contradicts itself */
  SH_ERR_ARG = -4,         /* a value from outside (option, request field) is wrong */
  SH_ERR_UNSUPPORTED = -5, /* well-formed, known, and not done by this program */
  SH_ERR_LIMIT = -6,       /* a named limit (depth, size, steps, context) was exceeded */
  SH_ERR_NOT_FOUND = -7,   /* a file, model, tensor or key that was named is not there */
  SH_ERR_BUSY = -8,        /* a queue is full or the server is draining; try again later */
  SH_ERR_CANCELLED = -9,   /* the caller went away or asked to stop */
  SH_ERR_INTERNAL = -10,   /* a fault of this program */
} sh_err;

typedef struct sh_error {
  int code;       /* the sh_err that was returned */
  char text[760]; /* one sentence, NUL-terminated, valid UTF-8, no newline at the end */
} sh_error;

/* Writes the sentence (truncated at a UTF-8 boundary to fit) and returns `code`. `e` may be NULL. */
int sh_fail(sh_error *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the sentence already in `e` (used by a caller that knows the file or field); returns `code`. */
int sh_fail_in(sh_error *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A short name of an error code ("format", "limit"...), for logs. */
const char *sh_err_name(int code);

#endif
