/* What a tokenizer is made of: for tokenizer*.c and detok.c, which build and use it. */
#ifndef SH_TEXT_TOKENIZER_PARTS_H
#define SH_TEXT_TOKENIZER_PARTS_H

#include "text/bpe.h"
#include "text/pretok.h"
#include "text/pretok_nfc.h"
#include "text/tokenizer_added.h"

enum { SH_TOK_MAX_EXTRA = 16 }; /* ids that a post-processor may put on either side */

struct sh_tok { /* owns all of it; immutable once open */
  sh_bpe *bpe;
  sh_pretok *pretok;
  sh_nfc *nfc;                                               /* NULL: text is not normalized */
  sh_added raw, normalized;                                  /* added tokens that match the text as it comes, and after normalization */
  int32_t before[SH_TOK_MAX_EXTRA], after[SH_TOK_MAX_EXTRA]; /* put around the text by SH_TOK_ADD_SPECIAL */
  int n_before, n_after;
  int32_t bos, eos; /* -1 = none */
};

/* A zeroed tokenizer without ids; NULL: out of memory. Caller frees with sh_tok_free. */
sh_tok *sh_tok_new_empty(void);
/* Splits the patterns of GGUF files by their name (tokenizer.ggml.pre). SH_ERR_UNSUPPORTED for an unknown one. */
int sh_tok_open_gguf(sh_tok **out, const sh_gguf *g, sh_error *e);

#endif
