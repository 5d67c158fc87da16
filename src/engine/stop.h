/* Stop strings: finds them as text arrives in pieces, and says how much of the end must be held back because it may become one. */
#ifndef SH_ENGINE_STOP_H
#define SH_ENGINE_STOP_H

#include "base/mem.h"
#include "sheng.h"

/* The patterns of a request; immutable, in the request's arena. */
typedef struct sh_stops {
  int n;
  const sh_str *str; /* [n], non-empty valid UTF-8 */
  int32_t **border;  /* [n][len]: border[i][k] = longest proper prefix of str[i] that ends str[i][0..k] */
  size_t longest;    /* bytes of the longest pattern; 0 when n == 0 */
} sh_stops;

/* Copies the patterns into `a`. SH_ERR_NOMEM. */
int sh_stops_compile(sh_stops *s, const sh_str *str, int n, sh_arena *a);

/* Advances the patterns by text[0..n). state: int32 [s->n], zeroed at first: the matched prefix of each pattern. Returns the pattern that
 * was completed first (among those that end at the same byte the first in the list), or -1; *end = bytes of `text` up to and with its last.
 * When `look` is false a completed pattern does not count (min_tokens). */
int sh_stops_feed(const sh_stops *s, int32_t *state, const char *text, size_t n, bool look, size_t *end);
/* Bytes at the end of what was fed that begin some pattern: they must not be shown yet. At most longest - 1. */
size_t sh_stops_held(const sh_stops *s, const int32_t *state);

#endif
