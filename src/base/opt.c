/* Options: parsing of environment variables and the command line by a table.
 *
 * Main thread, at start-up. The one getenv of the program is here, so an option row is all there is to know about a variable. Values are
 * checked as they are read, and a message says which option or variable, what was found and what is wanted. The rules are argparse's,
 * because users bring vLLM command lines: a value may follow after a blank or "=", "_" in a name is read as "-", a list takes all values up
 * to the next option, which is why the positional MODEL comes first. Refused: argparse's abbreviations (a new option would break scripts
 * that used one) and getopt_long (no types, ranges or environment, and its own messages). The texts made from the table are in opt_text.c.
 */
#include "base/opt.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- Values --------------------------------------------------------------------------------------------------------------------------- */

static int list_add(sh_strlist *l, const char *s) {
  if (l->n >= l->private_cap) {
    int cap = l->private_cap ? l->private_cap * 2 : 8;
    /* without private_cap the values are defaults that the table's owner keeps */
    const char **v = sh_realloc(l->private_cap ? (void *)l->v : NULL, (size_t)cap * sizeof *v);
    if (!v) return SH_ERR_NOMEM;
    l->v = v;
    l->private_cap = cap;
  }
  l->v[l->n++] = s;
  return 0;
}

/* Is `s` one of the words of "a|b|c"? */
static bool is_choice(const char *choices, const char *s) {
  size_t n = strlen(s);
  for (const char *c = choices; c; c = strchr(c, '|')) {
    if (*c == '|') c++;
    size_t len = strcspn(c, "|");
    if (len == n && memcmp(c, s, n) == 0) return true;
  }
  return false;
}

static int parse_bool(const char *s, bool *out) {
  static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no", "off"};
  for (int i = 0; i < 4; i++) {
    bool is_yes = strcasecmp(s, yes[i]) == 0;
    if (!is_yes && strcasecmp(s, no[i]) != 0) continue;
    *out = is_yes;
    return 0;
  }
  return SH_ERR_ARG;
}

static bool in_range(const sh_opt *o, double v) { return o->min == o->max || (v >= o->min && v <= o->max); }

static int fail_range(const sh_opt *o, const char *from, const char *s, sh_error *e) {
  if (o->type != SH_OPT_SIZE) return sh_fail(e, SH_ERR_ARG, "%s: found %s, wanted a value from %.15g to %.15g", from, s, o->min, o->max);
  char lo[32], hi[32];
  return sh_fail(e, SH_ERR_ARG, "%s: found %s, wanted a size from %s to %s", from, s, sh_format_size((int64_t)o->min, lo),
                 sh_format_size((int64_t)o->max, hi));
}

/* Reads the text `s` into the option's field. from: how the user wrote the option ("--port", "SHENG_PORT"), for messages. */
static int set_value(const sh_opt *o, void *opts, const char *s, const char *from, sh_error *e) {
  char *field = (char *)opts + o->offset;
  int64_t i;
  double d;
  switch (o->type) {
  case SH_OPT_FLAG:
    if (parse_bool(s, (bool *)(void *)field)) return sh_fail(e, SH_ERR_ARG, "%s: found '%s', wanted true or false", from, s);
    return 0;
  case SH_OPT_INT:
    if (sh_parse_i64(s, &i)) return sh_fail(e, SH_ERR_ARG, "%s: found '%s', wanted a whole number", from, s);
    if (!in_range(o, (double)i)) return fail_range(o, from, s, e);
    memcpy(field, &i, sizeof i);
    return 0;
  case SH_OPT_FLOAT:
    if (sh_parse_f64(s, &d)) return sh_fail(e, SH_ERR_ARG, "%s: found '%s', wanted a number", from, s);
    if (!in_range(o, d)) return fail_range(o, from, s, e);
    memcpy(field, &d, sizeof d);
    return 0;
  case SH_OPT_SIZE:
    if (sh_parse_size(s, &i)) return sh_fail(e, SH_ERR_ARG, "%s: found '%s', wanted a size such as 512MiB or 8GiB", from, s);
    if (!in_range(o, (double)i)) return fail_range(o, from, s, e);
    memcpy(field, &i, sizeof i);
    return 0;
  case SH_OPT_ENUM:
    if (!is_choice(o->choices, s)) return sh_fail(e, SH_ERR_ARG, "%s: found '%s', wanted one of %s", from, s, o->choices);
    memcpy(field, &s, sizeof s);
    return 0;
  case SH_OPT_STR: memcpy(field, &s, sizeof s); return 0;
  case SH_OPT_LIST:
    if (list_add((sh_strlist *)(void *)field, s)) return sh_fail(e, SH_ERR_NOMEM, "%s: out of memory", from);
    return 0;
  }
  return sh_fail(e, SH_ERR_INTERNAL, "%s: option of an unknown type", from);
}

/* A list starts again: what a weaker source (defaults, the environment) put there is dropped. */
static void list_restart(const sh_opt *o, void *opts) {
  sh_strlist *l = (sh_strlist *)(void *)((char *)opts + o->offset);
  if (l->private_cap == 0) l->v = NULL;
  l->n = 0;
}

/* --- Names ---------------------------------------------------------------------------------------------------------------------------- */

enum { NAME_MAX_BYTES = 64 }; /* longer than any option; a longer word is not a name */

/* name[0..n) with "_" as "-"; false when it is no possible name. */
static bool normal_name(const char *name, size_t n, char out[NAME_MAX_BYTES]) {
  if (n == 0 || n >= NAME_MAX_BYTES) return false;
  for (size_t i = 0; i < n; i++) out[i] = name[i] == '_' ? '-' : name[i];
  out[n] = '\0';
  return true;
}

static const sh_opt *find_name(const sh_opt *table, const char *name) {
  for (const sh_opt *o = table; o->name; o++)
    if (strcmp(o->name, name) == 0 || (o->alias && strcmp(o->alias, name) == 0)) return o;
  return NULL;
}

/* Edit distance (insert, delete, replace) of two names. */
static int distance(const char *a, const char *b) {
  int row[NAME_MAX_BYTES + 1];
  int n = (int)strlen(b);
  if (n > NAME_MAX_BYTES) return NAME_MAX_BYTES;
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 1; *a; i++, a++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= n; j++) {
      int best = diagonal + (*a != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      row[j] = best;
    }
  }
  return row[n];
}

/* The closest name of the table; one that begins with what was typed counts as close. */
static const char *closest(const sh_opt *table, const char *typed) {
  const char *best = NULL;
  int best_distance = NAME_MAX_BYTES;
  for (const sh_opt *o = table; o->name; o++) {
    const char *names[2] = {o->name, o->alias};
    for (int i = 0; i < 2; i++) {
      if (!names[i] || strlen(names[i]) < 2) continue;
      int d = sh_str_starts(names[i], typed) ? 1 : distance(typed, names[i]);
      if (d >= best_distance) continue;
      best_distance = d;
      best = names[i];
    }
  }
  return best;
}

static int fail_unknown(const sh_opt *table, const char *arg, const char *name, sh_error *e) {
  const char *near = closest(table, name);
  int shown = (int)strcspn(arg, "=");
  if (!near) return sh_fail(e, SH_ERR_ARG, "unknown option %.*s", shown, arg);
  return sh_fail(e, SH_ERR_ARG, "unknown option %.*s; the closest one is --%s (--help lists all)", shown, arg, near);
}

/* --- The command line ----------------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
  const sh_opt *table;
  void *opts;
  int argc, at; /* at: the argument being read */
  char **argv;
  bool *seen; /* [rows of the table] set on this command line */
  sh_error *e;
} cursor;

/* What an argument is by its form: "--x" and "-x" with a letter are options; "-", "-5" and all else are values. */
static bool looks_like_option(const char *s) {
  if (s[0] != '-' || s[1] == '\0') return false;
  return s[1] == '-' || (s[1] >= 'A' && s[1] <= 'Z') || (s[1] >= 'a' && s[1] <= 'z');
}

/* Does this argument end a list's values? Any "--..." does, and a short name of the table. */
static bool ends_list(const cursor *c, const char *s) {
  if (!looks_like_option(s)) return false;
  return s[1] == '-' || (s[2] == '\0' && find_name(c->table, s + 1));
}

static int take_list(cursor *c, const sh_opt *o, const char *inline_value, const char *from) {
  if (!c->seen[o - c->table]) list_restart(o, c->opts);
  if (inline_value) return set_value(o, c->opts, inline_value, from, c->e);
  int first = c->at + 1;
  while (c->at + 1 < c->argc && !ends_list(c, c->argv[c->at + 1])) {
    int rc = set_value(o, c->opts, c->argv[++c->at], from, c->e);
    if (rc) return rc;
  }
  return c->at + 1 > first ? 0 : sh_fail(c->e, SH_ERR_ARG, "%s wants one or more values", from);
}

/* The option at argv[at], and its values. */
static int take_option(cursor *c) {
  const char *arg = c->argv[c->at], *word = arg + (arg[1] == '-' ? 2 : 1), *equals = strchr(word, '=');
  size_t n = equals ? (size_t)(equals - word) : strlen(word);
  const char *value = equals ? equals + 1 : NULL;
  char name[NAME_MAX_BYTES], from[NAME_MAX_BYTES + 4];
  if (!normal_name(word, n, name)) return sh_fail(c->e, SH_ERR_ARG, "unknown option %.*s", (int)(n < 80 ? n : 80) + 2, arg);
  bool is_long = arg[1] == '-', negated = false;
  const sh_opt *o = is_long == (n > 1) ? find_name(c->table, name) : NULL;
  if (!o && is_long && sh_str_starts(name, "no-")) {
    o = find_name(c->table, name + 3);
    if (o && o->type != SH_OPT_FLAG) o = NULL;
    negated = o != NULL;
  }
  if (!o) return fail_unknown(c->table, arg, name, c->e);
  snprintf(from, sizeof from, "%s%s", is_long ? "--" : "-", name);
  int rc;
  if (o->type == SH_OPT_FLAG) {
    if (negated && value) return sh_fail(c->e, SH_ERR_ARG, "%s takes no value", from);
    rc = set_value(o, c->opts, value ? value : negated ? "false" : "true", from, c->e);
  } else if (o->type == SH_OPT_LIST) {
    rc = take_list(c, o, value, from);
  } else {
    if (!value) {
      if (c->at + 1 >= c->argc || sh_str_starts(c->argv[c->at + 1], "--"))
        return sh_fail(c->e, SH_ERR_ARG, "%s wants a value (one that begins with -- is written %s=VALUE)", from, from);
      value = c->argv[++c->at];
    }
    rc = set_value(o, c->opts, value, from, c->e);
  }
  c->seen[o - c->table] = true;
  return rc;
}

static int read_args(cursor *c, sh_strlist *rest) {
  bool only_values = false;
  for (c->at = 1; c->at < c->argc; c->at++) {
    const char *arg = c->argv[c->at];
    int rc = 0;
    if (!only_values && strcmp(arg, "--") == 0) only_values = true;
    else if (!only_values && looks_like_option(arg)) rc = take_option(c);
    else if (list_add(rest, arg)) rc = sh_fail(c->e, SH_ERR_NOMEM, "out of memory");
    if (rc) return rc;
  }
  return 0;
}

/* An empty variable is one that is not set: that is what `VAR= command` and container files mean by it. */
static int read_env(const sh_opt *table, void *opts, sh_error *e) {
  for (const sh_opt *o = table; o->name; o++) {
    const char *value = o->env ? getenv(o->env) : NULL;
    if (!value || !*value) continue;
    if (o->type == SH_OPT_LIST) list_restart(o, opts);
    int rc = set_value(o, opts, value, o->env, e);
    if (rc) return rc;
  }
  return 0;
}

int sh_opt_parse(const sh_opt *table, void *opts, int argc, char **argv, sh_strlist *rest, sh_error *e) {
  *rest = (sh_strlist){0};
  size_t rows = 0;
  while (table[rows].name) rows++;
  cursor c = {.table = table, .opts = opts, .argc = argc, .argv = argv, .e = e};
  c.seen = sh_calloc(rows + 1, sizeof *c.seen);
  if (!c.seen) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = read_env(table, opts, e);
  if (!rc) rc = read_args(&c, rest);
  sh_free(c.seen);
  if (rc) {
    sh_free((void *)rest->v);
    *rest = (sh_strlist){0};
  }
  return rc;
}
