/* Stop strings by Knuth, Morris and Pratt: one automaton per pattern, fed byte by byte.
 *
 * The patterns are compiled by the thread that submits; the engine thread feeds. A pattern's state is the length of its longest prefix that
 * ends the text, which is exactly what must be held back, so a match across any token boundaries needs no rescan and the cost is linear in
 * the text. Because text and patterns are whole UTF-8 characters, a match begins and ends at character boundaries, and so does what is
 * shown.
 *
 * Refused: searching the end of the joined text after each token, as vLLM does. It needs the joined text, and where tokens are cut decides
 * which of two overlapping patterns is found; here the text alone decides. */
#include "engine/stop.h"

#include <string.h>

static int32_t *borders(const sh_str *p, sh_arena *a) {
  int32_t *b = sh_arena_array(a, p->n, sizeof *b);
  if (!b) return NULL;
  int32_t k = 0;
  for (size_t i = 1; i < p->n; i++) {
    while (k > 0 && p->p[k] != p->p[i]) k = b[k - 1];
    if (p->p[k] == p->p[i]) k++;
    b[i] = k;
  }
  return b;
}

int sh_stops_compile(sh_stops *s, const sh_str *str, int n, sh_arena *a) {
  *s = (sh_stops){0};
  if (n == 0) return 0;
  sh_str *copy = sh_arena_array(a, (size_t)n, sizeof *copy);
  s->border = sh_arena_array(a, (size_t)n, sizeof *s->border);
  if (!copy || !s->border) return SH_ERR_NOMEM;
  for (int i = 0; i < n; i++) {
    copy[i] = (sh_str){sh_arena_strdup(a, str[i].p, str[i].n), str[i].n};
    if (!copy[i].p) return SH_ERR_NOMEM;
    s->border[i] = borders(&copy[i], a);
    if (!s->border[i]) return SH_ERR_NOMEM;
    if (str[i].n > s->longest) s->longest = str[i].n;
  }
  s->str = copy;
  s->n = n;
  return 0;
}

int sh_stops_feed(const sh_stops *s, int32_t *state, const char *text, size_t n, bool look, size_t *end) {
  for (size_t i = 0; i < n; i++) {
    int hit = -1;
    for (int k = 0; k < s->n; k++) {
      const sh_str *p = &s->str[k];
      int32_t q = state[k];
      while (q > 0 && p->p[q] != text[i]) q = s->border[k][q - 1];
      if (p->p[q] == text[i]) q++;
      if ((size_t)q == p->n) {
        if (hit < 0) hit = k;
        q = s->border[k][q - 1];
      }
      state[k] = q;
    }
    if (hit >= 0 && look) {
      *end = i + 1;
      return hit;
    }
  }
  return -1;
}

size_t sh_stops_held(const sh_stops *s, const int32_t *state) {
  int32_t most = 0;
  for (int k = 0; k < s->n; k++)
    if (state[k] > most) most = state[k];
  return (size_t)most;
}
