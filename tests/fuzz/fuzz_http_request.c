/* Fuzz driver of what a stranger can send: the first byte chooses between a request head, a chunked body, and a JSON body through the table
 * of request fields. Beyond "no crash": an error has a 4xx or 503 status and a sentence, and what is accepted is within the ranges that the
 * engine relies on. */
#include "base/log.h"
#include "server/http_parse.h"
#include "server/params.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static void fuzz_head(const uint8_t *data, size_t n) {
  static sh_http_head head;
  const char *why = NULL;
  size_t from = 0, length = sh_http_head_length((const char *)data, n, &from);
  must(length <= n, "a head is within its bytes");
  char *copy = sh_malloc(n + 1);
  if (!copy) return;
  if (n) memcpy(copy, data, n);
  int status = sh_http_head_parse(copy, length ? length : n, &head, &why);
  must(status == 0 || (status >= 400 && status <= 505 && why), "a refusal has a status and a reason");
  if (!status) {
    must(head.path[0] == '/' || head.path[0] == '*', "a path begins with a slash");
    must(!(head.chunked && head.content_length >= 0), "one framing");
    must(head.n_headers <= SH_HTTP_MAX_HEADERS, "headers are bounded");
  }
  sh_free(copy);
}

static void fuzz_chunks(const uint8_t *data, size_t n) {
  sh_chunked c;
  size_t at = 0, total = 0;
  sh_chunked_init(&c);
  while (at < n) {
    size_t used = 0, len = 0, step = n - at < 7 ? n - at : 7;
    const char *out = NULL;
    int what = sh_chunked_feed(&c, (const char *)data + at, step, &used, &out, &len);
    must(used <= step, "no more than given is consumed");
    if (what == SH_CHUNKED_DATA) {
      must(len && out >= (const char *)data + at && out + len <= (const char *)data + at + step, "data is a range of the input");
      total += len;
    }
    if (what == SH_CHUNKED_BAD || what == SH_CHUNKED_END) break;
    at += used;
  }
  must(total <= n, "data is not more than the input");
}

static void fuzz_params(const uint8_t *data, size_t n) {
  static const sh_api_kind kinds[] = {SH_API_CHAT, SH_API_COMPLETION, SH_API_TOKENIZE};
  const sh_params_limits limits = {640, 20};
  sh_gen_defaults d;
  sh_log_set_level(SH_LOG_ERROR);
  for (size_t i = 0; i < 3; i++) {
    sh_arena *a = sh_arena_new(1 << 22);
    sh_json *v = NULL;
    sh_params p;
    sh_request_params r;
    sh_api_error e = {0};
    if (a && sh_json_parse((const char *)data, n, NULL, a, &v, NULL) == 0) {
      sh_gen_defaults_read(v, &d);
      if (sh_params_parse(v, kinds[i], &limits, a, &p, &e)) {
        must((e.status == 400 || e.status == 503) && e.message[0], "a refusal has a status and a sentence");
      } else {
        sh_params_fill(&p, &d, &r);
        must(r.n >= 1 && r.n <= SH_API_MAX_N && r.min_tokens >= 0 && r.top_k >= 0, "counts are in range");
        must(isfinite(r.temperature) && r.temperature >= 0 && r.top_p > 0 && r.top_p <= 1 && r.min_p >= 0 && r.min_p <= 1,
             "numbers are in range");
        must(r.repetition_penalty > 0 && fabsf(r.presence_penalty) <= 2 && fabsf(r.frequency_penalty) <= 2, "penalties are in range");
        must(r.logprobs <= 20 && r.prompt_logprobs <= 20, "log probabilities are in range");
        for (int k = 0; k < r.n_bias; k++) must(r.bias[k].id < 640 && fabsf(r.bias[k].bias) <= 100, "biases are in range");
      }
    }
    sh_arena_free(a);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (!n) return 0;
  switch (data[0]) {
  case 'H': fuzz_head(data + 1, n - 1); break;
  case 'C': fuzz_chunks(data + 1, n - 1); break;
  default: fuzz_params(data, n); break;
  }
  return 0;
}
