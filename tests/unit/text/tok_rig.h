/* What the tests of the tokenizer share: opening the golden tokenizers, encoding and decoding that must work, small vocabularies. */
#ifndef SH_TESTS_UNIT_TEXT_TOK_RIG_H
#define SH_TESTS_UNIT_TEXT_TOK_RIG_H

#include <zlib.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "unit/formats/files.h"

#define GOLDEN "tests/golden/text/"
#define SMALL_MODEL "tests/golden/models/dense-small"

/* Unpacks a .gz; the caller frees with sh_free. */
static inline char *read_gzip(const char *path, size_t *n) {
  gzFile f = gzopen(path, "rb");
  if (!f) fail_msg("%s cannot be opened", path);
  sh_buf b;
  sh_buf_init(&b, (size_t)1 << 28);
  char part[65536];
  for (int got; (got = gzread(f, part, sizeof part)) > 0;) assert_int_equal(sh_buf_put(&b, part, (size_t)got), 0);
  gzclose(f);
  *n = b.len;
  return sh_buf_detach(&b);
}

static inline sh_tok *open_text(const char *json, size_t n, const sh_json *config) {
  sh_tok *t;
  sh_error e = {0};
  if (sh_tok_open_json(&t, json, n, config, &e)) fail_msg("%s", e.text);
  return t;
}

/* The real Qwen3.5 vocabulary. */
static inline sh_tok *open_qwen(void) {
  size_t n;
  char *json = read_gzip(GOLDEN "qwen3.5-tokenizer.json.gz", &n);
  sh_tok *t = open_text(json, n, NULL);
  sh_free(json);
  return t;
}

static inline sh_tok *open_model(const char *path) {
  sh_ckpt *c;
  sh_tok *t;
  sh_error e = {0};
  if (sh_ckpt_open(&c, path, SH_CKPT_TOKENIZER_ONLY, &e)) fail_msg("%s", e.text);
  if (sh_tok_open(&t, c, &e)) fail_msg("%s", e.text);
  sh_ckpt_close(c);
  return t;
}

static inline sh_ids encode(const sh_tok *t, const char *text, size_t n, unsigned flags) {
  sh_ids ids = {0};
  sh_error e = {0};
  if (sh_tok_encode(t, text, n, flags, &ids, &e)) fail_msg("%s", e.text);
  return ids;
}

static inline sh_buf decode(const sh_tok *t, const int32_t *ids, size_t n, bool skip_special) {
  sh_buf b;
  sh_error e = {0};
  sh_buf_init(&b, (size_t)1 << 28);
  if (sh_tok_decode(t, ids, n, skip_special, &b, &e)) fail_msg("%s", e.text);
  if (!b.p) assert_int_equal(sh_buf_puts(&b, ""), 0);
  return b;
}

static inline void assert_ids(const sh_ids *got, const int32_t *want, size_t n) {
  if (got->n != n) fail_msg("%zu ids, wanted %zu", got->n, n);
  for (size_t i = 0; i < n; i++)
    if (got->v[i] != want[i]) fail_msg("id %zu is %d, wanted %d", i, (int)got->v[i], (int)want[i]);
}

/* --- JSON lines: calls fn for every line with the parsed object. */
typedef void (*line_fn)(const sh_json *line, sh_arena *a, void *ctx);

static inline int each_line(const char *path, line_fn fn, void *ctx) {
  size_t n;
  char *text = slurp(path, &n);
  int lines = 0;
  for (char *p = text, *end; (end = memchr(p, '\n', n - (size_t)(p - text))); p = end + 1, lines++) {
    sh_arena *a = sh_arena_new((size_t)1 << 30);
    sh_json *v;
    sh_error e = {0};
    if (sh_json_parse(p, (size_t)(end - p), NULL, a, &v, &e)) fail_msg("%s", e.text);
    fn(v, a, ctx);
    sh_arena_free(a);
  }
  sh_free(text);
  return lines;
}

static inline sh_ids json_ids(const sh_json *a) {
  sh_ids ids = {0};
  assert_true(sh_json_is(a, SH_JSON_ARRAY));
  for (size_t i = 0; i < a->len; i++) {
    int64_t v;
    assert_int_equal(sh_json_int(&a->items[i], &v), 0);
    assert_int_equal(sh_ids_push(&ids, (int32_t)v), 0);
  }
  return ids;
}

/* Encoding gives the line's ids and decoding its texts. */
static inline void check_golden_line(const sh_json *line, sh_arena *a, void *ctx) {
  (void)a;
  const sh_tok *t = ctx;
  const sh_json *text = sh_json_get(line, "text");
  sh_ids want = json_ids(sh_json_get(line, "ids")), got = encode(t, text->s, text->len, 0);
  assert_ids(&got, want.v, want.n);
  static const char *const keys[] = {"decoded", "decoded_skip_special"};
  for (int skip = 0; skip < 2; skip++) {
    const sh_json *decoded = sh_json_get(line, keys[skip]);
    sh_buf b = decode(t, want.v, want.n, skip);
    assert_int_equal(b.len, decoded->len);
    assert_memory_equal(b.p, decoded->s, b.len);
    sh_buf_free(&b);
  }
  sh_ids_free(&want);
  sh_ids_free(&got);
}

#endif
