/* The tables of a byte-level BPE vocabulary.
 *
 * Runs in the thread that opens a model; afterwards everything is read-only and any thread may look. A vocabulary has some 250,000
 * spellings and as many merges, and every start pays for building it, so the tables are flat: one text blob with 32-bit offsets, one
 * open-addressing index from spelling to id, one open-addressing table of 16-byte pairs (a lookup is one cache line). Spellings are kept as
 * the file has them (the printable alphabet that stands for bytes) beside the bytes they mean; where both are equal they share the text.
 * Refused: merging on strings, as the file gives merges (ids make a pair one 64-bit key), and a perfect hash (slower to build than it
 * saves). */
#include "text/bpe.h"

#include "base/text.h"

#include <string.h>

/* --- The printable alphabet ------------------------------------------------------------------------------------------------------------
 * Byte-level vocabularies spell bytes as characters: the printable ones of Latin-1 stand for themselves, the others, in order, for U+0100
 * and up. */

static bool is_plain(unsigned c) { return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF); }

static uint32_t char_of_byte(unsigned byte) {
  if (is_plain(byte)) return byte;
  if (byte <= 0x20) return 0x100 + byte;               /* 00..20 */
  if (byte <= 0xA0) return 0x100 + 33 + (byte - 0x7F); /* 7F..A0 */
  return 0x100 + 33 + 34;                              /* AD */
}

/* -1 when the character is not of the alphabet. */
static int byte_of_char(uint32_t cp) {
  if (cp < 0x100) return is_plain(cp) ? (int)cp : -1;
  cp -= 0x100;
  if (cp < 33) return (int)cp;
  if (cp < 67) return (int)(cp - 33 + 0x7F);
  return cp == 67 ? 0xAD : -1;
}

size_t sh_bpe_spell(const char *p, size_t n, char *out) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++) k += (size_t)sh_utf8_encode(char_of_byte((unsigned char)p[i]), out + k);
  return k;
}

/* Writes the bytes a spelling means to out[0..n) and returns how many; -1 when a character is not of the alphabet (then the spelling is
 * plain text). */
static ptrdiff_t unspell(const char *s, size_t n, char *out) {
  size_t k = 0;
  for (size_t i = 0; i < n;) {
    uint32_t cp = (unsigned char)s[i];
    int used = cp < 0x80 ? 1 : sh_utf8_decode(s + i, n - i, &cp);
    int byte = used > 0 ? byte_of_char(cp) : -1;
    if (byte < 0) return -1;
    out[k++] = (char)byte;
    i += (size_t)used;
  }
  return (ptrdiff_t)k;
}

/* --- Construction --------------------------------------------------------------------------------------------------------------------- */

static uint32_t table_size(size_t n) {
  uint32_t size = 64;
  while (size < 2 * n + 2) size *= 2;
  return size;
}

static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tables of the vocabulary"); }

int sh_bpe_new(sh_bpe **out, size_t n_tokens, size_t n_merges, sh_error *e) {
  *out = NULL;
  if (n_tokens > SH_BPE_MAX_IDS || n_merges > 4 * (size_t)SH_BPE_MAX_IDS)
    return sh_fail(e, SH_ERR_LIMIT, "the vocabulary has %zu tokens and %zu merges; at most %d and %d are accepted", n_tokens, n_merges,
                   SH_BPE_MAX_IDS, 4 * SH_BPE_MAX_IDS);
  sh_bpe *b = sh_calloc(1, sizeof *b);
  if (!b) return no_memory(e);
  sh_buf_init(&b->text, SH_BPE_MAX_TEXT);
  sh_buf_init(&b->scratch, SH_BPE_MAX_TEXT);
  b->unk = -1;
  for (int i = 0; i < 256; i++) b->byte_id[i] = -1;
  b->index_size = table_size(n_tokens);
  b->index = sh_malloc(b->index_size * sizeof *b->index);
  b->pairs_size = table_size(n_merges);
  b->pairs = sh_malloc(b->pairs_size * sizeof *b->pairs);
  if (!b->index || !b->pairs || sh_buf_putc(&b->text, '\0')) goto fail;
  memset(b->index, 0xFF, b->index_size * sizeof *b->index);
  memset(b->pairs, 0xFF, b->pairs_size * sizeof *b->pairs);
  *out = b;
  return 0;
fail:
  sh_bpe_free(b);
  return no_memory(e);
}

void sh_bpe_free(sh_bpe *b) {
  if (!b) return;
  sh_free(b->tokens);
  sh_free(b->flags);
  sh_free(b->index);
  sh_free(b->pairs);
  sh_buf_free(&b->text);
  sh_buf_free(&b->scratch);
  sh_free(b);
}

/* The place of a spelling in the index: where it is, or the free place where it would go. */
static uint32_t index_slot(const sh_bpe *b, const char *s, size_t n) {
  uint32_t mask = b->index_size - 1, i = (uint32_t)sh_hash(s, n, 0) & mask;
  for (;; i = (i + 1) & mask) {
    int32_t id = b->index[i];
    if (id < 0) return i;
    const sh_bpe_token *t = &b->tokens[id];
    if (t->piece_len == n && memcmp(b->text.p + t->piece_off, s, n) == 0) return i;
  }
}

int32_t sh_bpe_find(const sh_bpe *b, const char *piece, size_t len) { return b->index[index_slot(b, piece, len)]; }

static int grow_ids(sh_bpe *b, int32_t id) {
  if (id >= b->cap_ids) {
    int32_t cap = b->cap_ids ? b->cap_ids : 1024;
    while (cap <= id) cap *= 2;
    sh_bpe_token *t = sh_realloc(b->tokens, (size_t)cap * sizeof *t);
    if (!t) return SH_ERR_NOMEM;
    b->tokens = t;
    uint8_t *f = sh_realloc(b->flags, (size_t)cap);
    if (!f) return SH_ERR_NOMEM;
    b->flags = f;
    memset(b->tokens + b->cap_ids, 0, (size_t)(cap - b->cap_ids) * sizeof *t);
    memset(b->flags + b->cap_ids, 0, (size_t)(cap - b->cap_ids));
    b->cap_ids = cap;
  }
  if (id >= b->n_ids) b->n_ids = id + 1;
  return 0;
}

/* Appends the spelling and, where they differ, the bytes it means. */
static int store_text(sh_bpe *b, sh_bpe_token *t, const char *piece, size_t len, unsigned flags) {
  t->piece_off = (uint32_t)b->text.len;
  t->piece_len = (uint32_t)len;
  t->bytes_off = t->piece_off;
  t->bytes_len = t->piece_len;
  int rc = sh_buf_put(&b->text, piece, len);
  if (!rc) rc = sh_buf_putc(&b->text, '\0');
  if (rc || (flags & SH_BPE_RAW)) return rc;
  sh_buf_reset(&b->scratch);
  rc = sh_buf_reserve(&b->scratch, len + 1);
  if (rc) return rc;
  ptrdiff_t n = unspell(piece, len, b->scratch.p);
  if (n < 0 || ((size_t)n == len && memcmp(b->scratch.p, piece, len) == 0)) return 0;
  t->bytes_off = (uint32_t)b->text.len;
  t->bytes_len = (uint32_t)n;
  return sh_buf_put(&b->text, b->scratch.p, (size_t)n);
}

/* For messages: a spelling is quoted up to 64 bytes. */
static int quoted(size_t len) { return len > 64 ? 64 : (int)len; }

int sh_bpe_add_token(sh_bpe *b, int64_t id, const char *piece, size_t len, unsigned flags, sh_error *e) {
  if (id < 0 || id >= SH_BPE_MAX_IDS)
    return sh_fail(e, SH_ERR_FORMAT, "token \"%.*s\" has id %lld; ids from 0 to %d are accepted", quoted(len), piece, (long long)id,
                   SH_BPE_MAX_IDS - 1);
  if (len > SH_BPE_MAX_TEXT / 4) return sh_fail(e, SH_ERR_LIMIT, "token %lld is %zu bytes long", (long long)id, len);
  if (2 * b->n_tokens >= b->index_size) return sh_fail(e, SH_ERR_INTERNAL, "more tokens than were announced");
  if (grow_ids(b, (int32_t)id)) return no_memory(e);
  uint32_t slot = index_slot(b, piece, len);
  sh_bpe_token *t = &b->tokens[id];
  if (b->index[slot] == id) {
    b->flags[id] |= (uint8_t)flags;
    return 0;
  }
  if (b->index[slot] >= 0)
    return sh_fail(e, SH_ERR_FORMAT, "token \"%.*s\" has two ids, %d and %lld", quoted(len), piece, (int)b->index[slot], (long long)id);
  if (t->piece_off != 0)
    return sh_fail(e, SH_ERR_FORMAT, "id %lld stands for two tokens, \"%.64s\" and \"%.*s\"", (long long)id, b->text.p + t->piece_off,
                   quoted(len), piece);
  int rc = store_text(b, t, piece, len, flags);
  if (rc == SH_ERR_LIMIT) return sh_fail(e, rc, "the spellings of the vocabulary are longer than %d bytes together", SH_BPE_MAX_TEXT);
  if (rc) return no_memory(e);
  b->index[slot] = (int32_t)id;
  b->flags[id] = (uint8_t)flags;
  b->n_tokens++;
  if ((flags & SH_BPE_MODEL) && len > b->max_piece) b->max_piece = (uint32_t)len;
  return 0;
}

void sh_bpe_finish_vocab(sh_bpe *b) {
  for (int i = 0; i < 256; i++) {
    char byte = (char)i, s[4];
    b->byte_id[i] = sh_bpe_find(b, s, sh_bpe_spell(&byte, 1, s));
  }
}

/* Looks up a part of merge `rank`. */
static int merge_part(const sh_bpe *b, uint32_t rank, const char *s, size_t n, int32_t *id, sh_error *e) {
  *id = sh_bpe_find(b, s, n);
  if (*id >= 0 && (b->flags[*id] & SH_BPE_MODEL)) return 0;
  return sh_fail(e, SH_ERR_FORMAT, "merge %u needs the token \"%.*s\", which is not in the vocabulary", (unsigned)rank, quoted(n), s);
}

static void put_pair(sh_bpe *b, sh_bpe_pair pair) {
  uint32_t mask = b->pairs_size - 1, i = sh_bpe_pair_hash(pair.left, pair.right) & mask;
  while (b->pairs[i].left != UINT32_MAX && (b->pairs[i].left != pair.left || b->pairs[i].right != pair.right)) i = (i + 1) & mask;
  if (b->pairs[i].left == UINT32_MAX) b->n_pairs++;
  b->pairs[i] = pair;
}

int sh_bpe_add_merge(sh_bpe *b, uint32_t rank, const char *l, size_t nl, const char *r, size_t nr, sh_error *e) {
  int32_t left, right, result;
  int rc = merge_part(b, rank, l, nl, &left, e);
  if (!rc) rc = merge_part(b, rank, r, nr, &right, e);
  if (rc) return rc;
  sh_buf_reset(&b->scratch);
  if (sh_buf_put(&b->scratch, l, nl) || sh_buf_put(&b->scratch, r, nr)) return no_memory(e);
  rc = merge_part(b, rank, b->scratch.p, nl + nr, &result, e);
  if (rc) return rc;
  if (2 * b->n_pairs >= b->pairs_size) return sh_fail(e, SH_ERR_INTERNAL, "more merges than were announced");
  put_pair(b, (sh_bpe_pair){(uint32_t)left, (uint32_t)right, rank, (uint32_t)result});
  return 0;
}
