/* Finding added tokens ("<|im_end|>") in text: leftmost first, of those the longest. */
#ifndef SH_TEXT_TOKENIZER_ADDED_H
#define SH_TEXT_TOKENIZER_ADDED_H

#include "base/err.h"
#include "base/mem.h"

enum {
  SH_ADDED_SINGLE_WORD = 1, /* not inside a word */
  SH_ADDED_LSTRIP = 2,      /* takes the white space before it */
  SH_ADDED_RSTRIP = 4,      /* takes the white space after it */
};

typedef struct sh_added_token {
  uint32_t off, len;
  int32_t id;
  uint8_t flags;
} sh_added_token;         /* off into text */
typedef struct sh_added { /* zeroed = empty; fields are private */
  sh_added_token *v;      /* [n], sorted by content after finish */
  uint32_t n, cap;
  sh_buf text;
  uint32_t first[257]; /* tokens whose first byte is c are v[first[c]] .. v[first[c + 1]) */
  int only_first;      /* the one byte that all tokens begin with, or -1 */
} sh_added;

int sh_added_add(sh_added *a, int32_t id, const char *content, size_t len, unsigned flags, sh_error *e); /* content not empty; copied */
void sh_added_finish(sh_added *a);                                                                       /* sorts; after the last add */
void sh_added_free(sh_added *a);                                                                         /* accepts a zeroed struct */

typedef struct sh_added_cursor {
  size_t at, done;
} sh_added_cursor; /* where the next search starts; where the last token's text ended */
/* The next token of s[0..n) (valid UTF-8) from the cursor (zeroed at first): its id, with [*start, *end) the text it takes; -1 when there
 * is none. *start may lie before the end of the token before it when that one took the white space this one begins with. */
int32_t sh_added_next(const sh_added *a, const char *s, size_t n, sh_added_cursor *c, size_t *start, size_t *end);

#endif
