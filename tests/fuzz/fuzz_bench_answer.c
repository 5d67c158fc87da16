/* Fuzz driver of what a server can send to the load generator: a response in pieces, its body read as an event stream, its events as those
 * of a completion. Beyond "no crash": an error has a sentence without control characters in valid UTF-8, the pieces do not matter, and
 * counts are within the ranges that are added up. */
#include "base/text.h"
#include "bench/serve_http.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

typedef struct reader {
  sh_bsse sse;
  size_t body; /* bytes */
  size_t events;
  uint64_t sum; /* of the events' bytes, to compare two ways of reading */
} reader;

static int on_event(void *ctx, const char *p, size_t n, sh_error *e) {
  reader *r = ctx;
  sh_bevent v;
  r->events++;
  r->sum = sh_hash(p, n, r->sum);
  int rc = sh_bevent_read(&v, p, n, e);
  if (rc < 0) return rc;
  must(v.prompt_tokens >= -1 && v.prompt_tokens < INT64_C(1) << 40 && v.completion_tokens >= -1, "counts are in range");
  must(!v.failed || e->text[0], "an error of the server has a sentence");
  return 0;
}

static int on_body(void *ctx, const char *p, size_t n, sh_error *e) {
  reader *r = ctx;
  r->body += n;
  return sh_bsse_feed(&r->sse, p, n, on_event, r, e);
}

static int read_all(reader *r, const uint8_t *data, size_t n, size_t step, int *status) {
  sh_bhttp h = {0};
  sh_error e = {0};
  int rc = 0;
  *r = (reader){.events = 0};
  sh_bsse_init(&r->sse);
  sh_bhttp_init(&h);
  for (size_t at = 0; rc == 0 && at < n; at += step) {
    size_t take = n - at < step ? n - at : step;
    char *copy = sh_malloc(take);
    must(copy != NULL, "memory");
    memcpy(copy, data + at, take);
    rc = sh_bhttp_feed(&h, copy, take, on_body, r, &e);
    sh_free(copy);
  }
  if (rc == 0) rc = sh_bhttp_eof(&h, &e);
  must(r->body <= n && r->events <= n, "no more comes out than went in");
  if (rc < 0) {
    must(e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    for (const char *s = e.text; *s; s++) must((unsigned char)*s >= 32 && *s != 127, "a sentence holds no control character");
  }
  *status = h.status;
  sh_bhttp_free(&h);
  sh_bsse_free(&r->sse);
  return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  reader whole, pieces;
  int status[2];
  int a = read_all(&whole, data, n, n ? n : 1, &status[0]), b = read_all(&pieces, data, n, 3, &status[1]);
  must((a < 0) == (b < 0) && status[0] == status[1], "the pieces do not matter");
  must(a < 0 || (whole.events == pieces.events && whole.sum == pieces.sum && whole.body == pieces.body), "the same events");
  return 0;
}
