/* Pre-tokenizing: cutting text into the words that BPE merges inside of. A pipeline of steps (split by a pattern, split digits off, byte
 * level), built once, then immutable; a run holds the scratch of one call. */
#ifndef SH_TEXT_PRETOK_H
#define SH_TEXT_PRETOK_H

#include "base/err.h"
#include "base/mem.h"

typedef enum sh_pretok_behavior {                                 /* what becomes of a match ("delimiter"); names as in tokenizer.json */
                                  SH_PRETOK_ISOLATED,             /* a word of its own */
                                  SH_PRETOK_REMOVED,              /* dropped */
                                  SH_PRETOK_MERGED_WITH_PREVIOUS, /* the end of the word before it */
                                  SH_PRETOK_MERGED_WITH_NEXT,     /* the start of the word after it */
                                  SH_PRETOK_CONTIGUOUS,           /* neighbouring matches are one word */
} sh_pretok_behavior;

typedef struct sh_pretok sh_pretok;
sh_pretok *sh_pretok_new(void);    /* NULL: out of memory. Caller frees with sh_pretok_free */
void sh_pretok_free(sh_pretok *p); /* accepts NULL */

/* Steps run in the order they are added. A pattern is written for Oniguruma, as tokenizer.json has it (or is literal text): what PCRE2
 * reads differently is translated, or refused with SH_ERR_UNSUPPORTED; one that does not compile is SH_ERR_FORMAT. */
int sh_pretok_add_split(sh_pretok *p, const char *pattern, size_t n, bool literal, sh_pretok_behavior behavior, bool invert, sh_error *e);
int sh_pretok_add_digits(sh_pretok *p, bool individual, sh_error *e);
/* add_prefix_space: a word that does not begin with a space gets one. use_regex: GPT-2's split. */
int sh_pretok_add_byte_level(sh_pretok *p, bool add_prefix_space, bool use_regex, sh_error *e);

/* --- One call in one thread. */
typedef int (*sh_pretok_sink)(void *ctx, const char *word, size_t n); /* the word is borrowed for the call; a failure ends the run */
typedef struct sh_pretok_run sh_pretok_run;
sh_pretok_run *sh_pretok_run_new(const sh_pretok *p, sh_pretok_sink sink, void *ctx); /* NULL: out of memory */
void sh_pretok_run_free(sh_pretok_run *r);                                            /* accepts NULL */
/* Hands the words of text[0..n), valid UTF-8, to the sink in order. A pattern that needs too many steps is SH_ERR_LIMIT. */
int sh_pretok_run_text(sh_pretok_run *r, const char *text, size_t n, sh_error *e);

/* --- The pattern translator, in a file of its own: appends to `out` the pattern in PCRE2's language. */
int sh_pretok_translate(const char *pattern, size_t n, sh_buf *out, sh_error *e);

#endif
