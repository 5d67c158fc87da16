/* Ids back to text, in one piece or as they come.
 *
 * Any thread; a sh_detok belongs to one stream. A token is a string of bytes that may begin or end inside a character, so what cannot be
 * finished yet (at most 3 bytes) waits in the sh_detok; text that can no longer become valid is replaced by U+FFFD, one per maximal
 * subpart, as Python and WHATWG do. Decoding in one piece is the same code, so a stream concatenates to exactly the whole. Refused:
 * decoding a window of the last tokens twice and sending the difference, the usual way around a library that only decodes whole lists; it
 * costs more and differs when a replaced character is later completed. */
#include "text/tokenizer_parts.h"

#include "base/text.h"

#include <string.h>

void sh_detok_init(sh_detok *d, const sh_tok *t, bool skip_special) {
  memset(d, 0, sizeof *d);
  d->tok = t;
  d->skip_special = skip_special;
}

/* Appends what is settled of the pending bytes and keeps the rest. */
static int settle(sh_detok *d, sh_buf *out) {
  size_t n = (size_t)d->private_n, tail = sh_utf8_incomplete_tail(d->private_pending, n);
  int rc = n > tail ? sh_utf8_sanitize(d->private_pending, n - tail, out) : 0;
  memmove(d->private_pending, d->private_pending + n - tail, tail);
  d->private_n = (int)tail;
  return rc;
}

int sh_detok_push(sh_detok *d, int32_t id, sh_buf *out) {
  size_t n;
  const char *p = sh_tok_bytes(d->tok, id, &n);
  if (!p || (d->skip_special && sh_tok_is_special(d->tok, id))) return 0;
  size_t i = 0;
  while (d->private_n > 0 && i < n) { /* byte by byte until the character begun before is complete or refused: at most 3 turns */
    d->private_pending[d->private_n++] = p[i++];
    int rc = settle(d, out);
    if (rc) return rc;
  }
  if (i == n) return 0;
  size_t tail = sh_utf8_incomplete_tail(p + i, n - i);
  int rc = n - i > tail ? sh_utf8_sanitize(p + i, n - i - tail, out) : 0;
  memcpy(d->private_pending, p + n - tail, tail);
  d->private_n = (int)tail;
  return rc;
}

int sh_detok_flush(sh_detok *d, sh_buf *out) {
  int rc = d->private_n > 0 ? sh_utf8_sanitize(d->private_pending, (size_t)d->private_n, out) : 0;
  d->private_n = 0;
  return rc;
}

int sh_tok_decode(const sh_tok *t, const int32_t *ids, size_t n, bool skip_special, sh_buf *out, sh_error *e) {
  int size = sh_tok_vocab_size(t);
  for (size_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= size)
      return sh_fail(e, SH_ERR_ARG, "id %d (item %zu) is not in the vocabulary, whose ids are 0 to %d", (int)ids[i], i, size - 1);
  sh_detok d;
  sh_detok_init(&d, t, skip_special);
  int rc = 0;
  for (size_t i = 0; i < n && !rc; i++) rc = sh_detok_push(&d, ids[i], out);
  if (!rc) rc = sh_detok_flush(&d, out);
  if (rc == SH_ERR_LIMIT) return sh_fail(e, rc, "the decoded text is longer than %zu bytes", out->max);
  return rc ? sh_fail(e, rc, "out of memory while decoding") : 0;
}
