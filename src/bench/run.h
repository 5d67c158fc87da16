/* What every measurement needs around it: progress, a way to stop, and the files that results go to. Main thread. */
#ifndef SH_BENCH_RUN_H
#define SH_BENCH_RUN_H

#include "base/file.h"
#include "bench/table.h"

/* Progress on stderr: a bar on a terminal, else a line for each row. */
typedef struct sh_bench_progress {
  int done, total; /* rows */
  bool terminal;
  int64_t private_began;
} sh_bench_progress;
void sh_bench_progress_begin(sh_bench_progress *p, int total);
void sh_bench_progress_row(sh_bench_progress *p, const char *name); /* the next row begins */
void sh_bench_progress_end(sh_bench_progress *p);                   /* clears the bar */

/* SH_ERR_CANCELLED when *stop is set. */
int sh_bench_stopped(const volatile bool *stop, sh_error *e);

/* Where the results go. Files are opened before anything is measured, so that a folder that does not exist is said at once. */
typedef struct sh_bench_sink {
  bool json; /* one JSON object on stdout in place of the tables */
  bool private_csv, private_html;
  sh_file_out private_files[2];
} sh_bench_sink;
int sh_bench_sink_open(sh_bench_sink *s, bool json, const char *csv, const char *html, sh_error *e); /* NULL paths: none */
/* Writes `o` to stdout and the files. `rc` is what the run returned: after SH_ERR_CANCELLED the rows there are still written, with a word
 * that some are missing; after another failure nothing is. Returns rc, or the failure to write. */
int sh_bench_sink_write(sh_bench_sink *s, sh_bench_out *o, int rc, sh_error *e);
void sh_bench_sink_close(sh_bench_sink *s); /* accepts a zeroed or written one */

/* A list of whole numbers "1,4,16", each in [min, max], into out[0..cap): their count, or SH_ERR_ARG. `name` is the option, for messages.
 */
int sh_bench_list(const char *text, const char *name, int64_t min, int64_t max, int *out, int cap, sh_error *e);

#endif
