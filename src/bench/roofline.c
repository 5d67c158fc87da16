/* The machine's limits per number of threads. Main thread; the probes bring their pools.
 *
 * Rounds of the three measures alternate, so that a neighbour's burst falls on all of them and not on one. One thread is timed by the
 * processor's clock, several by the wall's (bench/roofline.md says how to read that). */
#include "bench/roofline.h"

#include "base/text.h"
#include "bench/probe.h"

#include <math.h>
#include <stdio.h>

enum { MAX_REPEAT = 1000 };

static const sh_bench_col COLUMNS[] = {
    {"threads", "threads", 0}, {"measure", "measure", SH_BENCH_TEXT}, {"median", "median", 1}, {"min", "min", 1},
    {"max", "max", 1},         {"unit", "unit", SH_BENCH_TEXT},       {"rounds", "rounds", 0}, {"clock", "clock", SH_BENCH_TEXT},
};

typedef struct measure {
  const char *name, *unit;
  double (*round)(sh_probe *p);
} measure;
static const measure MEASURES[] = {{"read", "GB/s", sh_probe_read}, {"fp32", "GFLOP/s", sh_probe_f32}, {"u8 x s8", "GOP/s", sh_probe_u8s8}};
enum { N_MEASURES = sizeof MEASURES / sizeof *MEASURES };

static int one_count(sh_bench_table *t, sh_probe *p, const sh_roofline_opts *o, sh_error *e) {
  double v[N_MEASURES][MAX_REPEAT];
  for (int m = 0; m < N_MEASURES; m++) MEASURES[m].round(p); /* clocks and page tables warm */
  for (int r = 0; r < o->repeat; r++)
    for (int m = 0; m < N_MEASURES; m++) {
      int rc = sh_bench_stopped(o->stop, e);
      if (rc < 0) return rc;
      v[m][r] = MEASURES[m].round(p) * 1e-9;
    }
  for (int m = 0; m < N_MEASURES; m++) {
    if (!isfinite(v[m][0])) continue; /* no such instructions */
    sh_bench_stat s = sh_bench_stat_of(v[m], o->repeat);
    sh_bench_add_row(t, (sh_bench_cell[]){{.v = p->threads},
                                          {.text = MEASURES[m].name},
                                          {.v = s.median},
                                          {.v = s.min},
                                          {.v = s.max},
                                          {.text = MEASURES[m].unit},
                                          {.v = o->repeat},
                                          {.text = p->threads == 1 ? "processor" : "wall"}});
  }
  return 0;
}

/* 1, 2, 4, ... and all. */
static int default_counts(int out[SH_ROOFLINE_THREADS]) {
  int n = 0, all = sh_cpu_count();
  for (int t = 1; t < all && n < SH_ROOFLINE_THREADS - 1; t *= 2) out[n++] = t;
  out[n++] = all;
  return n;
}

int sh_roofline_run(sh_bench_out *out, const sh_roofline_opts *o, sh_error *e) {
  int counts[SH_ROOFLINE_THREADS], n = default_counts(counts), rc = 0;
  char bytes[32];
  sh_bench_progress show;
  if (o->repeat < 1 || o->repeat > MAX_REPEAT) return sh_fail(e, SH_ERR_ARG, "%d rounds: 1 to %d are possible", o->repeat, MAX_REPEAT);
  for (int i = 0; i < o->n_threads; i++) counts[i] = o->threads[i];
  if (o->n_threads) n = o->n_threads;
  size_t size = o->bytes ? o->bytes : sh_probe_bytes();
  sh_bench_add_fact(out, "buffer", "%s", sh_format_size((int64_t)size, bytes));
  sh_bench_table *t = sh_bench_add_table(out, "rows", COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
  t->bar = NULL; /* three units in one column */
  sh_bench_progress_begin(&show, n);
  for (int i = 0; rc == 0 && i < n; i++) {
    char name[32];
    sh_probe p;
    snprintf(name, sizeof name, "%d thread%s", counts[i], counts[i] == 1 ? "" : "s");
    sh_bench_progress_row(&show, name);
    rc = sh_probe_new(&p, counts[i], size, o->cpu, e);
    p.own_clock = true;
    if (rc == 0 && i == 0) {
      sh_bench_add_fact(out, "loops", "%s", p.loops.name);
      if (!p.loops.u8s8) sh_bench_add_note(out, "No AVX2 (or --cpu baseline): fp32 is that of plain code, and u8 x s8 was not measured.");
    }
    if (rc == 0) rc = one_count(t, &p, o, e);
    sh_probe_free(&p);
  }
  sh_bench_progress_end(&show);
  if (counts[n - 1] > sh_cpu_count()) sh_bench_add_note(out, "More threads than the %d usable cores: they take turns.", sh_cpu_count());
  return rc;
}
