/* Byte-level BPE tokenizers from tokenizer.json or GGUF metadata. Immutable after opening: any thread may use one at the same time.
 * A malformed vocabulary, merge list, regex or added-token table is an error at opening, with what was found. */
#ifndef SH_TEXT_TOKENIZER_H
#define SH_TEXT_TOKENIZER_H

#include "base/err.h"
#include "base/mem.h"
#include "formats/checkpoint.h"

typedef struct sh_tok sh_tok;

typedef struct sh_ids {
  int32_t *v;
  size_t n, cap, max;
} sh_ids; /* growing list of ids; max = limit, 0 = none */
void sh_ids_free(sh_ids *l);
int sh_ids_push(sh_ids *l, int32_t id); /* SH_ERR_LIMIT, SH_ERR_NOMEM */

int sh_tok_open(sh_tok **out, const sh_ckpt *c,
                sh_error *e); /* caller frees with sh_tok_free; borrows nothing after return except, for GGUF, the map of `c` */
int sh_tok_open_json(sh_tok **out, const char *tokenizer_json, size_t len, const sh_json *tokenizer_config,
                     sh_error *e); /* tokenizer_config may be NULL */
void sh_tok_free(sh_tok *t);

enum {
  SH_TOK_ADD_SPECIAL = 1, /* let the post-processor add BOS and the like, as HF add_special_tokens=True */
  SH_TOK_NO_ADDED = 2,    /* do not recognise added tokens in the text (user text that must stay text) */
};
/* Appends the ids of text[0..n) to `out`. Invalid UTF-8 is replaced by U+FFFD first. O(n log n) on any input. Thread-safe. */
int sh_tok_encode(const sh_tok *t, const char *text, size_t n, unsigned flags, sh_ids *out, sh_error *e);

int sh_tok_vocab_size(const sh_tok *t); /* largest id + 1 */
/* The bytes an id stands for in text (may be part of a UTF-8 sequence); NULL for an id without a token. */
const char *sh_tok_bytes(const sh_tok *t, int32_t id, size_t *len);
const char *sh_tok_piece(const sh_tok *t, int32_t id);   /* the vocabulary's own spelling, NUL-terminated; NULL if none */
int32_t sh_tok_find(const sh_tok *t, const char *piece); /* by the vocabulary's spelling or an added token's content; -1 if none */
bool sh_tok_is_added(const sh_tok *t, int32_t id);       /* matched as a whole, not made by merges */
bool sh_tok_is_special(const sh_tok *t, int32_t id);     /* skipped by skip_special_tokens */
int32_t sh_tok_bos(const sh_tok *t);                     /* -1 if none */
int32_t sh_tok_eos(const sh_tok *t);                     /* of tokenizer_config / GGUF; -1 if none */
/* Appends the text of ids, as HF decode (clean_up_tokenization_spaces off): incomplete or invalid UTF-8 becomes U+FFFD. Ids outside the
 * vocabulary: SH_ERR_ARG. */
int sh_tok_decode(const sh_tok *t, const int32_t *ids, size_t n, bool skip_special, sh_buf *out, sh_error *e);

/* --- Incremental decoding: emits only complete, valid UTF-8; what is pending is at most 3 bytes. Concatenated output equals sh_tok_decode.
 */
typedef struct sh_detok {
  const sh_tok *tok;
  bool skip_special;
  char private_pending[8];
  int private_n;
} sh_detok;
void sh_detok_init(sh_detok *d, const sh_tok *t, bool skip_special);
int sh_detok_push(sh_detok *d, int32_t id, sh_buf *out); /* an id without a token adds nothing */
int sh_detok_flush(sh_detok *d, sh_buf *out);            /* end of text: pending bytes become U+FFFD */

#endif
