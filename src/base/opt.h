/* Options: one table per subcommand gives parsing, ranges, environment variables, --help and the docs page. getenv is called only here. */
#ifndef SH_BASE_OPT_H
#define SH_BASE_OPT_H

#include "base/err.h"
#include "base/mem.h"

typedef enum sh_opt_type {
  SH_OPT_FLAG,  /* bool *; --name, --no-name, --name=true|false */
  SH_OPT_INT,   /* int64_t *; min..max */
  SH_OPT_FLOAT, /* double *; min..max */
  SH_OPT_STR,   /* const char ** (borrowed from argv or the environment) */
  SH_OPT_ENUM,  /* const char **; one of `choices` ("a|b|c") */
  SH_OPT_SIZE,  /* int64_t * bytes, "8GiB" */
  SH_OPT_LIST,  /* sh_strlist *; repeatable, and several values after one name (argparse nargs="+") up to the next option */
} sh_opt_type;

typedef struct sh_strlist {
  const char **v;
  int n;
  int private_cap;
} sh_strlist;

typedef struct sh_opt {
  const char *name;  /* "max-model-len", without dashes; "_" in user input is read as "-" */
  const char *alias; /* second long name or one-letter short name ("h"), or NULL */
  sh_opt_type type;
  size_t offset;       /* offsetof in the subcommand's options struct, which holds the defaults before parsing */
  double min, max;     /* INT, FLOAT, SIZE; min == max means no check */
  const char *choices; /* ENUM */
  const char *env;     /* environment variable, or NULL; the command line wins */
  const char *group;   /* heading in --help */
  const char *arg;     /* metavar: "N", "PATH" */
  const char *help;    /* one sentence; the default is appended from the struct */
} sh_opt;              /* a table ends with name == NULL */

/* Parses env, then argv[1..argc). "--" ends options; "--name value" and "--name=value"; an unknown option names the closest known one.
 * Positionals (MODEL) are collected in *rest (caller frees ->v with sh_free; on failure it is freed already). The ->v of LIST fields is the
 * caller's to free when private_cap > 0, also after a failure. An option given as JSON-looking string is just a string. */
int sh_opt_parse(const sh_opt *table, void *opts, int argc, char **argv, sh_strlist *rest, sh_error *e);
/* --help text: usage line, groups, ranges, defaults (taken from `defaults`), env names. */
int sh_opt_help(const sh_opt *table, const void *defaults, const char *usage, sh_buf *out);
/* The docs page of the same table as a Markdown table. */
int sh_opt_markdown(const sh_opt *table, const void *defaults, sh_buf *out);
/* "name=value name=value ..." of every option that is not at its default, API keys hidden. */
int sh_opt_effective(const sh_opt *table, const void *opts, const void *defaults, sh_buf *out);

#endif
