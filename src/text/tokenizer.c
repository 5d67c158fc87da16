/* Encoding text, and the questions about ids.
 *
 * Any thread, any number at once: a tokenizer does not change after it is opened (tokenizer_json.c, tokenizer_gguf.c), and all that an
 * encode call needs is in a struct on its stack. The order of work is that of HF tokenizers, because the ids must be theirs: text ->
 * invalid UTF-8 replaced -> cut at added tokens that match as written -> each part normalized (NFC) -> cut at added tokens that match
 * normalized text -> each part split into words (pretok.c) -> each word merged (bpe_merge.c) -> ids. Everything streams: parts and words
 * are handed on one by one, so besides the ids a call holds at most one normalized copy of the text. Refused: a cache of words shared by
 * all calls, as others have it; it needs a lock and lets requests time each other's words. */
#include "text/tokenizer_parts.h"

#include "base/text.h"

#include <string.h>

enum { MAX_TEXT = 1 << 28 }; /* bytes of one text */

/* --- Lists of ids --------------------------------------------------------------------------------------------------------------------- */

void sh_ids_free(sh_ids *l) {
  sh_free(l->v);
  *l = (sh_ids){.max = l->max};
}

int sh_ids_push(sh_ids *l, int32_t id) {
  if (l->n == l->cap) {
    if (l->max && l->n >= l->max) return SH_ERR_LIMIT;
    size_t cap = l->cap ? l->cap + l->cap / 2 : 64;
    if (l->max && cap > l->max) cap = l->max;
    size_t bytes;
    if (__builtin_mul_overflow(cap, sizeof *l->v, &bytes)) return SH_ERR_NOMEM;
    int32_t *v = sh_realloc(l->v, bytes);
    if (!v) return SH_ERR_NOMEM;
    l->v = v;
    l->cap = cap;
  }
  l->v[l->n++] = id;
  return 0;
}

/* --- Life ----------------------------------------------------------------------------------------------------------------------------- */

sh_tok *sh_tok_new_empty(void) {
  sh_tok *t = sh_calloc(1, sizeof *t);
  if (t) t->bos = t->eos = -1;
  return t;
}

void sh_tok_free(sh_tok *t) {
  if (!t) return;
  sh_bpe_free(t->bpe);
  sh_pretok_free(t->pretok);
  sh_nfc_free(t->nfc);
  sh_added_free(&t->raw);
  sh_added_free(&t->normalized);
  sh_free(t);
}

int sh_tok_open(sh_tok **out, const sh_ckpt *c, sh_error *e) {
  *out = NULL;
  const sh_gguf *g = sh_ckpt_gguf(c);
  if (g) return sh_tok_open_gguf(out, g, e);
  size_t len = 0;
  const char *json = sh_ckpt_tokenizer_json(c, &len);
  if (!json)
    return sh_fail(
        e, SH_ERR_NOT_FOUND,
        "%s has no tokenizer.json (the slow formats vocab.json + merges.txt and tokenizer.model are not read; save the tokenizer with "
        "transformers to get one)",
        sh_ckpt_path(c));
  return sh_tok_open_json(out, json, len, sh_ckpt_tokenizer_config(c), e);
}

/* --- Encoding ------------------------------------------------------------------------------------------------------------------------- */

typedef struct encoder { /* one call */
  const sh_tok *t;
  bool match_added;
  sh_ids *out;
  sh_error *e;
  sh_bpe_work work;
  sh_pretok_run *run;
  sh_buf clean;  /* the text with invalid UTF-8 replaced */
  sh_buf normal; /* the part in work, normalized */
} encoder;

static int report(encoder *w, int rc) {
  if (rc == SH_ERR_LIMIT && w->out->max && w->out->n >= w->out->max)
    return sh_fail(w->e, rc, "the text has more than %zu tokens", w->out->max);
  if (rc == SH_ERR_LIMIT) return sh_fail(w->e, rc, "the text is too long to tokenize");
  return sh_fail(w->e, rc, rc == SH_ERR_NOMEM ? "out of memory while tokenizing" : "tokenizing failed");
}

static int put_id(encoder *w, int32_t id) {
  int rc = sh_ids_push(w->out, id);
  return rc ? report(w, rc) : 0;
}

static int on_word(void *ctx, const char *word, size_t n) {
  encoder *w = ctx;
  int rc = sh_bpe_encode(&w->work, word, n, w->out);
  return rc ? report(w, rc) : 0;
}

typedef int (*part_fn)(encoder *w, const char *s, size_t n);

/* Cuts s[0..n) at the tokens of `a`: their ids go out, the text between goes to `part`. */
static int cut(encoder *w, const sh_added *a, const char *s, size_t n, part_fn part) {
  sh_added_cursor c = {0};
  size_t done = 0, start, end;
  int32_t id;
  while (w->match_added && (id = sh_added_next(a, s, n, &c, &start, &end)) >= 0) {
    int rc = done < start ? part(w, s + done, start - done) : 0;
    if (!rc) rc = put_id(w, id);
    if (rc) return rc;
    done = end;
  }
  return done < n ? part(w, s + done, n - done) : 0;
}

static int plain_part(encoder *w, const char *s, size_t n) { return sh_pretok_run_text(w->run, s, n, w->e); }

static int raw_part(encoder *w, const char *s, size_t n) {
  const sh_tok *t = w->t;
  if (t->nfc && !sh_nfc_is_normal(t->nfc, s, n)) {
    sh_buf_reset(&w->normal);
    int rc = sh_nfc_append(t->nfc, s, n, &w->normal);
    if (rc) return report(w, rc);
    s = w->normal.p;
    n = w->normal.len;
  }
  return cut(w, &t->normalized, s, n, plain_part);
}

static int put_all(encoder *w, const int32_t *ids, int n) {
  int rc = 0;
  for (int i = 0; i < n && !rc; i++) rc = put_id(w, ids[i]);
  return rc;
}

int sh_tok_encode(const sh_tok *t, const char *text, size_t n, unsigned flags, sh_ids *out, sh_error *e) {
  if (n > MAX_TEXT) return sh_fail(e, SH_ERR_LIMIT, "a text of %zu bytes is longer than the %d that are tokenized at once", n, MAX_TEXT);
  encoder w = {.t = t, .match_added = !(flags & SH_TOK_NO_ADDED), .out = out, .e = e};
  size_t n_before = out->n;
  int rc = 0;
  sh_bpe_work_init(&w.work, t->bpe, n);
  sh_buf_init(&w.clean, 4 * (size_t)MAX_TEXT);
  sh_buf_init(&w.normal, 16 * (size_t)MAX_TEXT);
  w.run = sh_pretok_run_new(t->pretok, on_word, &w);
  if (!w.run) rc = report(&w, SH_ERR_NOMEM);
  if (!rc && n > 0 && !sh_utf8_valid(text, n)) {
    rc = sh_utf8_sanitize(text, n, &w.clean);
    if (rc) rc = report(&w, rc);
    text = w.clean.p;
    n = w.clean.len;
  }
  if (!rc && (flags & SH_TOK_ADD_SPECIAL)) rc = put_all(&w, t->before, t->n_before);
  if (!rc && n > 0) rc = cut(&w, &t->raw, text, n, raw_part);
  if (!rc && (flags & SH_TOK_ADD_SPECIAL)) rc = put_all(&w, t->after, t->n_after);
  if (rc) out->n = n_before;
  sh_pretok_run_free(w.run);
  sh_bpe_work_free(&w.work);
  sh_buf_free(&w.clean);
  sh_buf_free(&w.normal);
  return rc;
}

/* --- Questions ------------------------------------------------------------------------------------------------------------------------ */

int sh_tok_vocab_size(const sh_tok *t) { return t->bpe->n_ids; }

const char *sh_tok_bytes(const sh_tok *t, int32_t id, size_t *len) {
  const sh_bpe_token *k = sh_bpe_at(t->bpe, id);
  *len = k ? k->bytes_len : 0;
  return k ? t->bpe->text.p + k->bytes_off : NULL;
}

const char *sh_tok_piece(const sh_tok *t, int32_t id) {
  const sh_bpe_token *k = sh_bpe_at(t->bpe, id);
  return k ? t->bpe->text.p + k->piece_off : NULL;
}

int32_t sh_tok_find(const sh_tok *t, const char *piece) { return sh_bpe_find(t->bpe, piece, strlen(piece)); }

bool sh_tok_is_added(const sh_tok *t, int32_t id) { return sh_bpe_at(t->bpe, id) && (t->bpe->flags[id] & SH_BPE_ADDED); }

bool sh_tok_is_special(const sh_tok *t, int32_t id) { return sh_bpe_at(t->bpe, id) && (t->bpe->flags[id] & SH_BPE_SPECIAL); }

int32_t sh_tok_bos(const sh_tok *t) { return t->bos; }

int32_t sh_tok_eos(const sh_tok *t) { return t->eos; }
