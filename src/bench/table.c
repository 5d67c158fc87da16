/* Results in the forms that people and programs read. One thread.
 *
 * A run adds facts, rows and notes as it goes and is written once at the end, in one or several forms; so a stopped run can still be
 * written as far as it came. Refused: printing rows as they are measured. The width of a column is known only when all rows are there, and
 * progress goes to stderr anyway. */
#include "bench/table.h"

#include "base/err.h"
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 };

void sh_bench_out_init(sh_bench_out *o, const char *command) {
  *o = (sh_bench_out){.command = command, .complete = true};
  sh_machine_read(&o->machine, "");
  o->private_arena = sh_arena_new(MAX_BYTES);
  if (!o->private_arena) o->private_failed = SH_ERR_NOMEM;
}

void sh_bench_out_free(sh_bench_out *o) {
  for (int i = 0; i < o->n_tables; i++) sh_free(o->tables[i].cells);
  sh_arena_free(o->private_arena);
  *o = (sh_bench_out){0};
}

/* A copy in the arena; "" and the failure remembered when there is no room. */
static const char *keep(sh_bench_out *o, const char *text) {
  char *copy = o->private_arena ? sh_arena_strdup(o->private_arena, text, strlen(text)) : NULL;
  if (!copy) o->private_failed = SH_ERR_NOMEM;
  return copy ? copy : "";
}

void sh_bench_add_fact(sh_bench_out *o, const char *key, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (o->n_facts == SH_BENCH_FACTS) o->private_failed = SH_ERR_INTERNAL;
  else o->facts[o->n_facts++] = (sh_bench_fact){key, keep(o, text)};
}

void sh_bench_add_note(sh_bench_out *o, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (o->n_notes < SH_BENCH_NOTES) o->notes[o->n_notes++] = keep(o, text); /* a thirty-third reason tells nobody more */
}

sh_bench_table *sh_bench_add_table(sh_bench_out *o, const char *key, const sh_bench_col *cols, int n_cols) {
  sh_bench_table *t = &o->tables[o->n_tables < SH_BENCH_TABLES ? o->n_tables++ : SH_BENCH_TABLES - 1];
  *t = (sh_bench_table){.key = key, .cols = cols, .n_cols = n_cols, .private_out = o};
  return t;
}

void sh_bench_add_row(sh_bench_table *t, const sh_bench_cell *cells) {
  if (t->n_rows == t->private_cap) {
    int cap = t->private_cap ? 2 * t->private_cap : 16;
    sh_bench_cell *p = sh_realloc(t->cells, (size_t)cap * (size_t)t->n_cols * sizeof *p);
    if (!p) {
      t->private_out->private_failed = SH_ERR_NOMEM;
      return;
    }
    t->cells = p;
    t->private_cap = cap;
  }
  sh_bench_cell *row = t->cells + (size_t)t->n_rows++ * (size_t)t->n_cols;
  for (int i = 0; i < t->n_cols; i++) {
    bool text = t->cols[i].digits == SH_BENCH_TEXT;
    row[i] = (sh_bench_cell){.text = text && cells[i].text ? keep(t->private_out, cells[i].text) : NULL, .v = text ? NAN : cells[i].v};
  }
}

/* --- Numbers */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

sh_bench_stat sh_bench_stat_of(double *v, int n) {
  if (n < 1) return (sh_bench_stat){NAN, NAN, NAN};
  qsort(v, (size_t)n, sizeof *v, ascending);
  return (sh_bench_stat){n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[0], v[n - 1]};
}

const char *sh_bench_number(const sh_bench_col *c, double v, char buf[48]) {
  int digits = c->digits >= SH_BENCH_HIDDEN ? c->digits - SH_BENCH_HIDDEN : c->digits;
  if (isfinite(v)) snprintf(buf, 48, "%.*f", digits, v);
  else snprintf(buf, 48, "-");
  return buf;
}

/* Six significant digits: more than any measurement has, and short to read. */
static double rounded(double v) {
  char text[48];
  snprintf(text, sizeof text, "%.6g", v);
  return strtod(text, NULL);
}

static const sh_bench_cell *cell_at(const sh_bench_table *t, int row, int col) { return t->cells + (size_t)row * (size_t)t->n_cols + col; }

static int result(const sh_bench_out *o, const sh_buf *out) { return o->private_failed ? o->private_failed : out->failed; }

/* --- Aligned text */

/* Columns of a terminal that UTF-8 text takes: its code points, which is exact for what is written here. */
static int width_of(const char *s) {
  int n = 0;
  for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
  return n;
}

static const char *cell_text(const sh_bench_table *t, int row, int col, char buf[48]) {
  const sh_bench_cell *c = cell_at(t, row, col);
  if (t->cols[col].digits == SH_BENCH_TEXT) return c->text ? c->text : "-";
  return sh_bench_number(&t->cols[col], c->v, buf);
}

static void put_cell(sh_buf *out, const char *text, int width, bool left, bool last) {
  int pad = width - width_of(text);
  for (int i = 0; !left && i < pad; i++) sh_buf_putc(out, ' ');
  sh_buf_puts(out, text);
  for (int i = 0; left && !last && i < pad; i++) sh_buf_putc(out, ' ');
  if (!last) sh_buf_puts(out, "  ");
  while (last && !out->failed && out->len > 0 && out->p[out->len - 1] == ' ') out->len--; /* an empty last cell */
  if (last) sh_buf_putc(out, '\n');
}

/* Left out of the aligned table: numbers that are marked, texts that are empty in every row. */
static bool hidden(const sh_bench_table *t, int col) {
  if (t->cols[col].digits != SH_BENCH_TEXT) return t->cols[col].digits >= SH_BENCH_HIDDEN;
  for (int r = 0; r < t->n_rows; r++)
    if (!cell_at(t, r, col)->text || cell_at(t, r, col)->text[0]) return false;
  return true;
}

static void put_table(const sh_bench_table *t, sh_buf *out) {
  char buf[48];
  int last = t->n_cols - 1;
  while (last > 0 && hidden(t, last)) last--;
  for (int row = -1; row < t->n_rows; row++)
    for (int c = 0; c <= last; c++) {
      if (hidden(t, c)) continue;
      int width = width_of(t->cols[c].title);
      for (int r = 0; r < t->n_rows; r++) {
        int w = width_of(cell_text(t, r, c, buf));
        if (w > width) width = w;
      }
      put_cell(out, row < 0 ? t->cols[c].title : cell_text(t, row, c, buf), width, t->cols[c].digits == SH_BENCH_TEXT, c == last);
    }
}

int sh_bench_write_text(const sh_bench_out *o, sh_buf *out) {
  sh_machine_text(&o->machine, "", out);
  for (int i = 0; i < o->n_facts; i++) sh_buf_printf(out, "%s: %s\n", o->facts[i].key, o->facts[i].value);
  for (int i = 0; i < o->n_tables; i++) {
    if (o->tables[i].n_rows == 0) continue;
    sh_buf_putc(out, '\n');
    put_table(&o->tables[i], out);
  }
  if (o->n_notes) sh_buf_putc(out, '\n');
  for (int i = 0; i < o->n_notes; i++) sh_buf_printf(out, "%s\n", o->notes[i]);
  if (!o->complete) sh_buf_puts(out, "\nstopped: rows are missing\n");
  return result(o, out);
}

/* --- CSV: comment lines, then one table after the other, an empty line between them */

static void csv_text(sh_buf *out, const char *s) {
  if (strpbrk(s, ",\"\r\n")) sh_csv_text(out, s);
  else sh_buf_puts(out, s);
}

static void csv_comment(sh_buf *out, const char *key, const char *value) {
  sh_buf_printf(out, "# %s: ", key);
  for (; *value; value++) sh_buf_putc(out, *value == '\n' || *value == '\r' ? ' ' : *value);
  sh_buf_putc(out, '\n');
}

int sh_bench_write_csv(const sh_bench_out *o, sh_buf *out) {
  sh_buf_printf(out, "# sheng %s\n", o->command);
  sh_machine_text(&o->machine, "# ", out);
  for (int i = 0; i < o->n_facts; i++) csv_comment(out, o->facts[i].key, o->facts[i].value);
  for (int i = 0; i < o->n_notes; i++) csv_comment(out, "note", o->notes[i]);
  if (!o->complete) sh_buf_puts(out, "# stopped: rows are missing\n");
  for (int i = 0, first = 1; i < o->n_tables; i++) {
    const sh_bench_table *t = &o->tables[i];
    if (t->n_rows == 0) continue;
    if (!first) sh_buf_putc(out, '\n');
    first = 0;
    for (int c = 0; c < t->n_cols; c++) sh_buf_printf(out, "%s%s", t->cols[c].key, c == t->n_cols - 1 ? "\n" : ",");
    for (int r = 0; r < t->n_rows; r++)
      for (int c = 0; c < t->n_cols; c++) {
        const sh_bench_cell *x = cell_at(t, r, c);
        if (t->cols[c].digits == SH_BENCH_TEXT) csv_text(out, x->text ? x->text : "");
        else if (isfinite(x->v)) sh_buf_printf(out, "%.6g", x->v);
        sh_buf_putc(out, c == t->n_cols - 1 ? '\n' : ',');
      }
  }
  return result(o, out);
}

/* --- JSON */

int sh_bench_write_json(const sh_bench_out *o, sh_buf *out) {
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "command", o->command);
  sh_jw_kbool(&w, "complete", o->complete);
  sh_jw_key(&w, "machine");
  sh_machine_json(&o->machine, &w);
  for (int i = 0; i < o->n_facts; i++) sh_jw_kstr(&w, o->facts[i].key, o->facts[i].value);
  for (int i = 0; i < o->n_tables; i++) {
    const sh_bench_table *t = &o->tables[i];
    sh_jw_key(&w, t->key);
    sh_jw_arr(&w);
    for (int r = 0; r < t->n_rows; r++) {
      sh_jw_obj(&w);
      for (int c = 0; c < t->n_cols; c++) {
        const sh_bench_cell *x = cell_at(t, r, c);
        if (t->cols[c].digits == SH_BENCH_TEXT) sh_jw_kstr(&w, t->cols[c].key, x->text);
        else if (isfinite(x->v)) sh_jw_kdouble(&w, t->cols[c].key, rounded(x->v));
        else sh_jw_knull(&w, t->cols[c].key);
      }
      sh_jw_end_obj(&w);
    }
    sh_jw_end_arr(&w);
  }
  sh_jw_key(&w, "notes");
  sh_jw_arr(&w);
  for (int i = 0; i < o->n_notes; i++) sh_jw_str(&w, o->notes[i]);
  sh_jw_end_arr(&w);
  sh_jw_end_obj(&w);
  sh_buf_putc(out, '\n');
  return result(o, out);
}
