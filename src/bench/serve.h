/* Load on any server with OpenAI's API, and what it took: the measurements of `sheng bench serve`. */
#ifndef SH_BENCH_SERVE_H
#define SH_BENCH_SERVE_H

#include "bench/serve_dist.h"
#include "bench/serve_prompt.h"
#include "bench/serve_stats.h"
#include <stdbool.h>

enum { SH_BSERVE_MAX_ROWS = 64, SH_BSERVE_KINDS = 16 };

/* Requests that failed for one reason. */
typedef struct sh_bfail {
  char name[24]; /* "timeout", "http_503" */
  int64_t n;
  char first[256]; /* the first one's message */
} sh_bfail;

/* One measured load. Times in ms of the client's clock, from handing the request to the socket (a new connection is part of it). */
typedef struct sh_bserve_row {
  int64_t concurrency;                             /* requests at once at most; 0: no limit */
  double rate;                                     /* requests per second that arrive; 0: closed loop, INFINITY: all at once */
  double seconds;                                  /* from the first start to the last end */
  int64_t started, done, failed, unfinished, good; /* requests; unfinished: cut by Ctrl-C; good: within the limits of --goodput */
  sh_bfail kinds[SH_BSERVE_KINDS];                 /* the last one collects what has no room */
  int n_kinds;
  int64_t input_tokens, output_tokens, cached_tokens; /* of requests that are done; cached: -1: the server does not tell */
  int64_t estimated;                                  /* requests without the server's usage: output counted as events, input left out */
  int64_t events;                                     /* stream events that carried text */
  int64_t peak;                                       /* requests at once */
  int64_t connections, resent;       /* opened; requests sent again since their kept connection was closed before an answer */
  double cpu;                        /* of this process, as a share of one core */
  sh_bsummary ttft, tpot, itl, e2el; /* first text; (e2el - ttft) / (output tokens - 1); between events with text; the last event */
  sh_bsummary late;                  /* from the arrival in an open loop to the start */
} sh_bserve_row;

typedef struct sh_bserve_progress {
  int row, n_rows;                       /* row -1: preparing */
  int64_t started, ended, failed, total; /* requests; total 0: no number, a duration */
  double seconds, duration, output_tokens_per_s;
} sh_bserve_progress;

typedef struct sh_bserve_opts {
  const char *url, *model, *api_key; /* model, api_key: NULL for none */
  const char *const *headers;        /* "Name: value" [n_headers] */
  int n_headers;
  bool chat, ignore_eos;
  sh_blen input, output;
  int64_t shared, groups;
  double temperature;         /* negative: not sent */
  const int64_t *concurrency; /* [n_concurrency]; none: no limit, which needs rates */
  int n_concurrency;
  const double *rates; /* [n_rates]; none: closed loop */
  int n_rates;
  double burstiness, duration_s, timeout_s; /* duration 0: by number alone */
  int64_t prompts, warmup;                  /* requests of each row (0: no limit) and before the first */
  sh_bgoal goal;
  uint64_t seed;
  void (*row_done)(void *ctx, const sh_bserve_row *row);
  void (*progress)(void *ctx, const sh_bserve_progress *p); /* five times a second */
  void *ctx;
} sh_bserve_opts;

typedef struct sh_bserve {
  const sh_bserve_opts *o; /* borrowed */
  char url[800], model[512];
  double tokens_per_word, overhead; /* 0: no prompts were made */
  sh_bserve_row *rows;              /* [n_rows], owned */
  int n_rows;
  bool interrupted; /* by SIGINT or SIGTERM: the last row is not whole */
} sh_bserve;

/* Runs every row: each rate with each concurrency. Takes SIGINT and SIGTERM while it runs. A failure leaves the rows that are done. */
int sh_bserve_run(sh_bserve *r, const sh_bserve_opts *o, sh_error *e);
void sh_bserve_free(sh_bserve *r); /* accepts a zeroed struct */

/* Outputs. Each appends to a buffer whose errors are sticky. */
void sh_bserve_label(const sh_bserve_row *row, char out[64]); /* "4 at once", "2/s" */
void sh_bserve_write_row(const sh_bserve *r, const sh_bserve_row *row, sh_buf *out);
void sh_bserve_write_summary(const sh_bserve *r, sh_buf *out); /* a line for each row */
void sh_bserve_write_json(const sh_bserve *r, sh_buf *out);
void sh_bserve_write_csv(const sh_bserve *r, sh_buf *out);
void sh_bserve_write_html(const sh_bserve *r, sh_buf *out);

#endif
