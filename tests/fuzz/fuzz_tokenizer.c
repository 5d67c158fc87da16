/* Fuzz driver of tokenizers. An input is a tokenizer.json, a NUL byte and a text. Beyond "no crash": a refusal has a sentence of valid
 * UTF-8; ids lie in the vocabulary; decoding takes them back; a stream of parts is valid UTF-8 and concatenates to the whole; a list's
 * limit holds. */
#include "base/text.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_TEXT = 512 }; /* bytes; a pattern may backtrack to its limit at every one of them */

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static void must_explain(int rc, const sh_error *e) {
  must(rc < 0 && e->code == rc && e->text[0] && sh_utf8_valid(e->text, strlen(e->text)), "a refusal has a sentence");
}

static void check_decoding(const sh_tok *t, const sh_ids *ids, bool skip_special) {
  sh_buf whole, parts;
  sh_error e = {0};
  sh_detok d;
  sh_buf_init(&whole, 1 << 24);
  sh_buf_init(&parts, 1 << 24);
  must(sh_tok_decode(t, ids->v, ids->n, skip_special, &whole, &e) == 0, "ids that encoding gave are decoded");
  sh_detok_init(&d, t, skip_special);
  for (size_t i = 0; i <= ids->n; i++) {
    size_t before = parts.len;
    must((i < ids->n ? sh_detok_push(&d, ids->v[i], &parts) : sh_detok_flush(&d, &parts)) == 0, "a stream is decoded");
    must(parts.len == before || sh_utf8_valid(parts.p + before, parts.len - before), "every part is valid UTF-8");
  }
  must(parts.len == whole.len && (whole.len == 0 || memcmp(parts.p, whole.p, whole.len) == 0), "a stream is the whole");
  sh_buf_free(&whole);
  sh_buf_free(&parts);
}

static void check_encoding(const sh_tok *t, const char *text, size_t n, unsigned flags) {
  sh_ids ids = {.max = 4096};
  sh_error e = {0};
  int rc = sh_tok_encode(t, text, n, flags, &ids, &e);
  if (rc) {
    must_explain(rc, &e);
    must(ids.n == 0, "a failed call leaves the list as it was");
  }
  for (size_t i = 0; i < ids.n; i++) {
    must(ids.v[i] >= 0 && ids.v[i] < sh_tok_vocab_size(t), "ids lie in the vocabulary");
    must(sh_tok_piece(t, ids.v[i]) != NULL, "ids have a token");
  }
  check_decoding(t, &ids, flags & SH_TOK_NO_ADDED);
  sh_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const uint8_t *end = n ? memchr(data, 0, n) : NULL;
  size_t json_len = end ? (size_t)(end - data) : n, text_len = end ? n - json_len - 1 : 0;
  static const char fallback[] = "The caf\xC3\xA9  costs 12.50 \xFF<|im_end|>\n\n";
  const char *text = text_len ? (const char *)end + 1 : fallback;
  if (text_len == 0) text_len = sizeof fallback - 1;
  if (text_len > MAX_TEXT) text_len = MAX_TEXT;
  sh_tok *t = NULL;
  sh_error e = {0};
  int rc = sh_tok_open_json(&t, (const char *)data, json_len, NULL, &e);
  if (rc) {
    must_explain(rc, &e);
    must(t == NULL, "a failed open gives nothing");
    return 0;
  }
  for (unsigned flags = 0; flags < 4; flags++) check_encoding(t, text, text_len, flags);
  sh_tok_free(t);
  return 0;
}
