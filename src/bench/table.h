/* Results of a measurement: facts about it and tables of rows, written as aligned text, CSV, JSON or an HTML page. One thread.
 *
 *   sh_bench_out o;
 *   sh_bench_out_init(&o, "bench roofline");
 *   sh_bench_add_fact(&o, "model", "dense-small");
 *   sh_bench_table *t = sh_bench_add_table(&o, "rows", COLUMNS, N_COLUMNS);
 *   sh_bench_add_row(t, (sh_bench_cell[]){{.text = "read"}, {.v = 33.1}});
 *   sh_bench_write_text(&o, &buf);
 *   sh_bench_out_free(&o);
 *
 * Running out of memory is remembered; the writers return it. */
#ifndef SH_BENCH_TABLE_H
#define SH_BENCH_TABLE_H

#include "bench/machine.h"

enum { SH_BENCH_TEXT = -1, SH_BENCH_HIDDEN = 100 }; /* kinds of a column beside 0..9 decimals */

/* A column. `digits`: SH_BENCH_TEXT, or decimals in the aligned table (JSON and CSV have six significant ones); + SH_BENCH_HIDDEN: of a
 * number that is left out of the aligned table and the page. All strings are borrowed for the table's life. */
typedef struct sh_bench_col {
  const char *key;   /* in JSON and CSV: "tokens_per_s" */
  const char *title; /* in the aligned table: "tokens/s" */
  int digits;
} sh_bench_col;

/* The value of one column: text (copied; NULL: not measured) or number (NAN: not measured). */
typedef struct sh_bench_cell {
  const char *text;
  double v;
} sh_bench_cell;

typedef struct sh_bench_table {
  const char *key; /* in JSON: "rows" */
  const sh_bench_col *cols;
  int n_cols, n_rows;
  sh_bench_cell *cells;       /* [n_rows, n_cols] */
  const char *bar, *bar_note; /* key of the column that the HTML page draws as bars, and what it is a part of; NULL: none */
  int private_cap;
  struct sh_bench_out *private_out;
} sh_bench_table;

enum { SH_BENCH_TABLES = 4, SH_BENCH_FACTS = 16, SH_BENCH_NOTES = 32 };

typedef struct sh_bench_fact {
  const char *key, *value;
} sh_bench_fact;

typedef struct sh_bench_out {
  const char *command; /* borrowed */
  sh_machine machine;
  bool complete; /* set false when a run was stopped: every writer then says so */
  sh_bench_fact facts[SH_BENCH_FACTS];
  const char *notes[SH_BENCH_NOTES];
  sh_bench_table tables[SH_BENCH_TABLES];
  int n_facts, n_notes, n_tables;
  sh_arena *private_arena;
  int private_failed;
} sh_bench_out;

void sh_bench_out_init(sh_bench_out *o, const char *command); /* reads the machine's description */
void sh_bench_out_free(sh_bench_out *o);                      /* accepts a zeroed struct */
/* key is borrowed, the text is copied. A note is a sentence under the tables (what was left out, and why). */
void sh_bench_add_fact(sh_bench_out *o, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sh_bench_add_note(sh_bench_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
sh_bench_table *sh_bench_add_table(sh_bench_out *o, const char *key, const sh_bench_col *cols, int n_cols);
void sh_bench_add_row(sh_bench_table *t, const sh_bench_cell *cells); /* [n_cols] */

int sh_bench_write_text(const sh_bench_out *o, sh_buf *out); /* 0, or what made out or an addition fail */
int sh_bench_write_csv(const sh_bench_out *o, sh_buf *out);
int sh_bench_write_json(const sh_bench_out *o, sh_buf *out);
int sh_bench_write_html(const sh_bench_out *o, sh_buf *out); /* page.c */

/* Of n values (reordered): NAN when there are none. */
typedef struct sh_bench_stat {
  double median, min, max;
} sh_bench_stat;
sh_bench_stat sh_bench_stat_of(double *v, int n);

/* Number text of a cell as the aligned table has it; "-" when not measured. Returns buf. */
const char *sh_bench_number(const sh_bench_col *c, double v, char buf[48]);

#endif
