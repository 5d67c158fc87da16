/* Options: the texts made from a table: --help, the docs page, the effective configuration.
 *
 * Main thread, at start-up. Ranges, choices, defaults and environment names are printed from the same rows and the same struct of defaults
 * that the parser uses, so no page can disagree with the program. Refused: help texts that repeat a default by hand. */
#include "base/opt.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LEFT = 34, WIDTH = 110 }; /* columns: where descriptions begin, where they wrap */

/* --- Values as text ------------------------------------------------------------------------------------------------------------------- */

static const void *field(const sh_opt *o, const void *opts) { return (const char *)opts + o->offset; }

static const char *get_str(const sh_opt *o, const void *opts) {
  const char *s;
  memcpy(&s, field(o, opts), sizeof s);
  return s;
}

static bool is_secret(const sh_opt *o) { return strstr(o->name, "api-key") || strstr(o->name, "password") || strstr(o->name, "secret"); }

/* A size as it can be typed again: in the largest unit that divides it. */
static void put_size(int64_t v, sh_buf *out) {
  static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (u < 4 && v != 0 && v % 1024 == 0) {
    v /= 1024;
    u++;
  }
  sh_buf_printf(out, "%" PRId64 "%s", v, units[u]);
}

/* The value of an option; nothing for an unset string or an empty list. */
static void put_value(const sh_opt *o, const void *opts, sh_buf *out) {
  int64_t i;
  double d;
  switch (o->type) {
  case SH_OPT_FLAG: sh_buf_puts(out, *(const bool *)field(o, opts) ? "true" : "false"); break;
  case SH_OPT_INT:
    memcpy(&i, field(o, opts), sizeof i);
    sh_buf_printf(out, "%" PRId64, i);
    break;
  case SH_OPT_SIZE:
    memcpy(&i, field(o, opts), sizeof i);
    put_size(i, out);
    break;
  case SH_OPT_FLOAT:
    memcpy(&d, field(o, opts), sizeof d);
    sh_buf_printf(out, "%.15g", d);
    break;
  case SH_OPT_STR:
  case SH_OPT_ENUM:
    if (get_str(o, opts)) sh_buf_puts(out, get_str(o, opts));
    break;
  case SH_OPT_LIST: {
    const sh_strlist *l = field(o, opts);
    for (int k = 0; k < l->n; k++) sh_buf_printf(out, "%s%s", k ? "," : "", l->v[k]);
    break;
  }
  }
}

static bool same_value(const sh_opt *o, const void *a, const void *b) {
  switch (o->type) {
  case SH_OPT_FLAG: return *(const bool *)field(o, a) == *(const bool *)field(o, b);
  case SH_OPT_INT:
  case SH_OPT_SIZE: return memcmp(field(o, a), field(o, b), sizeof(int64_t)) == 0;
  case SH_OPT_FLOAT: return memcmp(field(o, a), field(o, b), sizeof(double)) == 0;
  case SH_OPT_STR:
  case SH_OPT_ENUM: {
    const char *x = get_str(o, a), *y = get_str(o, b);
    return x && y ? strcmp(x, y) == 0 : x == y;
  }
  case SH_OPT_LIST: {
    const sh_strlist *x = field(o, a), *y = field(o, b);
    if (x->n != y->n) return false;
    for (int k = 0; k < x->n; k++)
      if (strcmp(x->v[k], y->v[k]) != 0) return false;
    return true;
  }
  }
  return true;
}

/* "1 to 65535", "0 B to 8 GiB"; nothing without a range. */
static void put_range(const sh_opt *o, sh_buf *out) {
  if (o->min == o->max || (o->type != SH_OPT_INT && o->type != SH_OPT_FLOAT && o->type != SH_OPT_SIZE)) return;
  if (o->type == SH_OPT_SIZE) {
    put_size((int64_t)o->min, out);
    sh_buf_puts(out, " to ");
    put_size((int64_t)o->max, out);
    return;
  }
  if (o->type == SH_OPT_INT) sh_buf_printf(out, "%.0f to %.0f", o->min, o->max); /* never as 9e+15 */
  else sh_buf_printf(out, "%.15g to %.15g", o->min, o->max);
}

static const char *metavar(const sh_opt *o) {
  static const char *const names[] = {"", "N", "X", "TEXT", "NAME", "SIZE", "TEXT"};
  return o->arg ? o->arg : names[o->type];
}

/* --- Help ----------------------------------------------------------------------------------------------------------------------------- */

/* Appends `text` wrapped at words, the first line beginning at column `at`, the others at `indent`; ends the line. */
static void put_wrapped(const char *text, size_t at, size_t indent, sh_buf *out) {
  bool first = true;
  while (*text) {
    size_t n = strcspn(text, " ");
    if (!first && at + 1 + n > WIDTH) {
      sh_buf_printf(out, "\n%*s", (int)indent, "");
      at = indent;
      first = true;
    }
    if (!first) {
      sh_buf_putc(out, ' ');
      at++;
    }
    sh_buf_put(out, text, n);
    at += n;
    first = false;
    text += n;
    while (*text == ' ') text++;
  }
  sh_buf_putc(out, '\n');
}

static void put_names(const sh_opt *o, sh_buf *out) {
  bool is_short = o->alias && o->alias[1] == '\0';
  if (is_short) sh_buf_printf(out, "-%s, ", o->alias);
  sh_buf_printf(out, "%s%s", o->type == SH_OPT_FLAG ? "--[no-]" : "--", o->name);
  if (o->alias && !is_short) sh_buf_printf(out, ", --%s", o->alias);
}

/* The sentence of an option with its choices, range, default and variable. */
static int describe(const sh_opt *o, const void *defaults, sh_buf *out) {
  sh_buf_puts(out, o->help);
  sh_buf value;
  sh_buf_init(&value, 1 << 16);
  put_value(o, defaults, &value);
  sh_buf_puts(out, " (");
  size_t start = out->len;
  if (o->type == SH_OPT_ENUM) sh_buf_printf(out, "%s; ", o->choices);
  size_t before = out->len;
  put_range(o, out);
  if (out->len > before) sh_buf_puts(out, "; ");
  if (value.len > 0) sh_buf_printf(out, "default: %s; ", value.p);
  if (o->env) sh_buf_printf(out, "env: %s; ", o->env);
  sh_buf_free(&value);
  if (out->failed) return out->failed;
  out->len -= 2; /* the last "; ", or " (" when nothing was said */
  if (out->len < start) out->p[out->len] = '\0';
  else sh_buf_putc(out, ')');
  return out->failed;
}

static int help_row(const sh_opt *o, const void *defaults, sh_buf *out) {
  sh_buf left, right;
  sh_buf_init(&left, 1 << 12);
  sh_buf_init(&right, 1 << 16);
  sh_buf_puts(&left, "  ");
  put_names(o, &left);
  if (o->type == SH_OPT_LIST) sh_buf_printf(&left, " %s [%s ...]", metavar(o), metavar(o));
  else if (o->type != SH_OPT_FLAG) sh_buf_printf(&left, " %s", metavar(o));
  describe(o, defaults, &right);
  int rc = left.failed ? left.failed : right.failed;
  if (!rc) {
    sh_buf_puts(out, left.p);
    if (left.len + 2 > LEFT) sh_buf_printf(out, "\n%*s", LEFT, "");
    else sh_buf_printf(out, "%*s", (int)(LEFT - left.len), "");
    put_wrapped(right.p, LEFT, LEFT, out);
    rc = out->failed;
  }
  sh_buf_free(&left);
  sh_buf_free(&right);
  return rc;
}

static bool same_group(const sh_opt *a, const sh_opt *b) { return strcmp(a->group ? a->group : "", b->group ? b->group : "") == 0; }

/* Does this row open its group? Rows of one group need not lie together in the table. */
static bool opens_group(const sh_opt *table, const sh_opt *o) {
  for (const sh_opt *p = table; p < o; p++)
    if (same_group(p, o)) return false;
  return true;
}

int sh_opt_help(const sh_opt *table, const void *defaults, const char *usage, sh_buf *out) {
  sh_buf_printf(out, "Usage: %s\n", usage);
  for (const sh_opt *o = table; o->name; o++) {
    if (!opens_group(table, o)) continue;
    sh_buf_printf(out, "\n%s:\n", o->group ? o->group : "Options");
    for (const sh_opt *p = o; p->name; p++) {
      int rc = same_group(p, o) ? help_row(p, defaults, out) : 0;
      if (rc) return out->failed ? out->failed : (out->failed = rc);
    }
  }
  return out->failed;
}

/* --- Docs page ------------------------------------------------------------------------------------------------------------------------ */

/* Text in a cell of a Markdown table: "|" would end the cell. */
static void put_cell(const char *s, sh_buf *out) {
  for (; *s; s++) {
    if (*s == '|') sh_buf_putc(out, '\\');
    sh_buf_putc(out, *s == '\n' ? ' ' : *s);
  }
}

static void markdown_row(const sh_opt *o, const void *defaults, sh_buf *out) {
  sh_buf cell;
  sh_buf_init(&cell, 1 << 16);
  sh_buf_puts(out, "| `");
  put_names(o, &cell);
  if (cell.p) put_cell(cell.p, out);
  sh_buf_puts(out, "` | ");
  if (o->type == SH_OPT_ENUM) put_cell(o->choices, out);
  else put_cell(o->type == SH_OPT_FLAG ? "true, false" : metavar(o), out);
  sh_buf_reset(&cell);
  put_range(o, &cell);
  if (cell.len > 0) sh_buf_printf(out, " (%s)", cell.p);
  if (o->type == SH_OPT_LIST) sh_buf_puts(out, " ...");
  sh_buf_puts(out, " | ");
  sh_buf_reset(&cell);
  put_value(o, defaults, &cell);
  if (cell.len > 0) {
    sh_buf_putc(out, '`');
    put_cell(cell.p, out);
    sh_buf_putc(out, '`');
  }
  sh_buf_puts(out, " | ");
  if (o->env) sh_buf_printf(out, "`%s`", o->env);
  sh_buf_puts(out, " | ");
  put_cell(o->help, out);
  sh_buf_puts(out, " |\n");
  if (cell.failed && !out->failed) out->failed = cell.failed;
  sh_buf_free(&cell);
}

int sh_opt_markdown(const sh_opt *table, const void *defaults, sh_buf *out) {
  sh_buf_puts(out, "| Option | Value | Default | Environment | Meaning |\n|---|---|---|---|---|\n");
  for (const sh_opt *o = table; o->name; o++) {
    if (!opens_group(table, o)) continue;
    for (const sh_opt *p = o; p->name; p++)
      if (same_group(p, o)) markdown_row(p, defaults, out);
  }
  return out->failed;
}

/* --- Effective configuration ---------------------------------------------------------------------------------------------------------- */

int sh_opt_effective(const sh_opt *table, const void *opts, const void *defaults, sh_buf *out) {
  sh_buf value;
  sh_buf_init(&value, out->max);
  bool first = true;
  for (const sh_opt *o = table; o->name; o++) {
    if (same_value(o, opts, defaults)) continue;
    sh_buf_reset(&value);
    if (is_secret(o)) sh_buf_puts(&value, "***");
    else put_value(o, opts, &value);
    const char *text = value.p ? value.p : "";
    bool quote = *text == '\0' || strpbrk(text, " \t\n\"'") != NULL;
    sh_buf_printf(out, "%s%s=", first ? "" : " ", o->name);
    if (!quote) {
      sh_buf_puts(out, text);
    } else {
      sh_buf_putc(out, '\'');
      for (; *text; text++) {
        if (*text == '\'') sh_buf_puts(out, "'\\'"); /* as a shell would want it */
        sh_buf_putc(out, *text);
      }
      sh_buf_putc(out, '\'');
    }
    first = false;
  }
  if (value.failed && !out->failed) out->failed = value.failed;
  sh_buf_free(&value);
  return out->failed;
}
