/* A Jinja interpreter for chat templates, with jinja2's semantics as transformers configures it (ImmutableSandboxedEnvironment,
 * trim_blocks, lstrip_blocks, loopcontrols; tojson without HTML escaping and with ensure_ascii off; raise_exception, strftime_now).
 * Compiled templates are immutable and thread-safe. */
#ifndef SH_TEXT_JINJA_H
#define SH_TEXT_JINJA_H

#include "base/json.h"

typedef struct sh_jinja sh_jinja;
typedef struct sh_jinja_limits {
  size_t max_output; /* bytes; 0 = 16 MiB */
  long max_steps;    /* evaluated nodes; 0 = 20 million */
  int max_depth;     /* nesting of calls and expressions; 0 = 200 */
  size_t max_memory; /* bytes of values; 0 = 256 MiB */
} sh_jinja_limits;

/* Errors: SH_ERR_FORMAT "line N: reason". Caller frees with sh_jinja_free. Copies the source. */
int sh_jinja_compile(sh_jinja **out, const char *src, size_t len, sh_error *e);
void sh_jinja_free(sh_jinja *t);
/* vars: an OBJECT of global variables (JSON true/null/numbers/... become Python values). Appends to `out`.
 * SH_ERR_ARG: the template called raise_exception (text is exactly its message) or an operation failed ("line N: reason"); SH_ERR_LIMIT: a
 * limit. */
int sh_jinja_render(const sh_jinja *t, const sh_json *vars, const sh_jinja_limits *lim, sh_buf *out, sh_error *e);

#endif
