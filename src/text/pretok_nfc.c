/* NFC, as the "NFC" normalizer of tokenizer.json does it, on utf8proc's data.
 *
 * Any thread; the table is read-only. Most text is in form C already, so a bitmap (one bit per character below U+30000, made when a model
 * is opened) says which characters can take part in a change: those with a combining class, those that NFC rewrites, and those that can
 * join the character before them. Everything else is copied. Around a marked character the stretch from the unmarked character before it up
 * to the next unmarked one is decomposed, ordered and composed; an unmarked character never changes with what follows a boundary before it,
 * so the stretches are independent. Refused: utf8proc_map on the whole text: it orders marks by swapping neighbours, so a megabyte of
 * alternating accents would take hours; here runs are ordered by counting. */
#include "text/pretok_nfc.h"

#include "base/text.h"

#include <string.h>
#include <utf8proc.h>

enum { TABLE_CHARS = 0x30000 }; /* above: unassigned, private or rare; treated as marked */
enum { OPTIONS = UTF8PROC_STABLE | UTF8PROC_COMPOSE };
enum { MAX_EXPANSION = 18 };          /* code points that one character decomposes to, with room */
#define MAX_STRETCH ((size_t)1 << 28) /* bytes */

struct sh_nfc {
  uint8_t marked[TABLE_CHARS / 8];
};

/* --- The table ------------------------------------------------------------------------------------------------------------------------ */

static void mark(sh_nfc *t, uint32_t cp) {
  if (cp < TABLE_CHARS) t->marked[cp >> 3] |= (uint8_t)(1u << (cp & 7));
}

static bool is_marked(const sh_nfc *t, uint32_t cp) { return cp >= TABLE_CHARS || (t->marked[cp >> 3] >> (cp & 7) & 1); }

/* Code points of the full canonical decomposition of cp. */
static int decompose(uint32_t cp, utf8proc_int32_t out[MAX_EXPANSION]) {
  int last_class = 0;
  utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, MAX_EXPANSION, (utf8proc_option_t)OPTIONS, &last_class);
  if (n >= 1 && n <= MAX_EXPANSION) return (int)n;
  out[0] = (utf8proc_int32_t)cp;
  return 1;
}

sh_nfc *sh_nfc_new(void) {
  sh_nfc *t = sh_calloc(1, sizeof *t);
  if (!t) return NULL;
  for (uint32_t cp = 0xC0; cp < TABLE_CHARS; cp++) {
    if ((cp >= 0x3400 && cp < 0xA000) || (cp >= 0xAC00 && cp < 0xE000)) continue; /* ideographs, Hangul syllables, surrogates: nothing */
    if (utf8proc_get_property((utf8proc_int32_t)cp)->combining_class != 0) mark(t, cp);
    utf8proc_int32_t parts[MAX_EXPANSION];
    int n = decompose(cp, parts);
    if (n == 1 && parts[0] == (utf8proc_int32_t)cp) continue;
    for (int i = 1; i < n; i++) mark(t, (uint32_t)parts[i]); /* may join what stands before it */
    if (utf8proc_normalize_utf32(parts, n, (utf8proc_option_t)OPTIONS) != 1 || parts[0] != (utf8proc_int32_t)cp) mark(t, cp);
  }
  for (uint32_t cp = 0x1161; cp <= 0x1175; cp++) mark(t, cp); /* Hangul vowels and finals join by arithmetic */
  for (uint32_t cp = 0x11A8; cp <= 0x11C2; cp++) mark(t, cp);
  return t;
}

void sh_nfc_free(sh_nfc *t) { sh_free(t); }

/* --- Finding the stretches ------------------------------------------------------------------------------------------------------------ */

/* Characters below U+00C0 (lead byte C2 and less) are never marked. */
static bool is_easy(char c) { return (unsigned char)c < 0xC3; }

/* The character at s[i]: its length. */
static size_t read_char(const char *s, size_t n, size_t i, uint32_t *cp) {
  int used = sh_utf8_decode(s + i, n - i, cp);
  return (size_t)(used < 0 ? -used : used);
}

/* The first marked character at or after `from`, n when there is none; *before = the start of the character before it (or `from`). */
static size_t find_marked(const sh_nfc *t, const char *s, size_t n, size_t from, size_t *before) {
  size_t last = from;
  for (size_t i = from; i < n;) {
    size_t used = 1;
    if (!is_easy(s[i])) {
      uint32_t cp;
      used = read_char(s, n, i, &cp);
      if (is_marked(t, cp)) {
        *before = last;
        return i;
      }
    } else if ((unsigned char)s[i] >= 0xC0) {
      used = 2;
    }
    last = i;
    i += used;
  }
  return n;
}

static size_t find_unmarked(const sh_nfc *t, const char *s, size_t n, size_t i) {
  while (i < n) {
    uint32_t cp;
    size_t used = read_char(s, n, i, &cp);
    if (!is_marked(t, cp)) break;
    i += used;
  }
  return i;
}

bool sh_nfc_is_normal(const sh_nfc *t, const char *s, size_t n) {
  size_t before;
  return find_marked(t, s, n, 0, &before) == n;
}

/* --- Normalizing a stretch ------------------------------------------------------------------------------------------------------------ */

static int class_of(utf8proc_int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

/* Puts a run of marks (all classes above 0) into the order of their classes; equal ones keep theirs. tmp has room for n. */
static void order_run(utf8proc_int32_t *v, size_t n, utf8proc_int32_t *tmp) {
  size_t start[257] = {0};
  bool sorted = true;
  for (size_t i = 1; i < n && sorted; i++) sorted = class_of(v[i - 1]) <= class_of(v[i]);
  if (sorted) return;
  for (size_t i = 0; i < n; i++) start[class_of(v[i]) + 1]++;
  for (int c = 1; c < 257; c++) start[c] += start[c - 1];
  for (size_t i = 0; i < n; i++) tmp[start[class_of(v[i])]++] = v[i];
  memcpy(v, tmp, n * sizeof *v);
}

static void order_marks(utf8proc_int32_t *v, size_t n, utf8proc_int32_t *tmp) {
  for (size_t i = 0; i < n;) {
    size_t end = i;
    while (end < n && class_of(v[end]) != 0) end++;
    if (end > i + 1) order_run(v + i, end - i, tmp);
    i = end + 1;
  }
}

static int normalize(const char *s, size_t n, sh_buf *out) {
  if (n > MAX_STRETCH) return SH_ERR_LIMIT;
  size_t count = 0;
  utf8proc_int32_t parts[MAX_EXPANSION];
  uint32_t cp;
  for (size_t i = 0; i < n; i += read_char(s, n, i, &cp)) {
    read_char(s, n, i, &cp);
    count += (size_t)decompose(cp, parts);
  }
  utf8proc_int32_t *v = sh_malloc(2 * count * sizeof *v);
  if (!v) return SH_ERR_NOMEM;
  size_t k = 0;
  for (size_t i = 0; i < n;) {
    i += read_char(s, n, i, &cp);
    int m = decompose(cp, parts);
    memcpy(v + k, parts, (size_t)m * sizeof *v);
    k += (size_t)m;
  }
  order_marks(v, count, v + count);
  utf8proc_ssize_t left = utf8proc_normalize_utf32(v, (utf8proc_ssize_t)count, (utf8proc_option_t)OPTIONS);
  int rc = left < 0 ? SH_ERR_INTERNAL : 0;
  for (utf8proc_ssize_t i = 0; i < left && !rc; i++) {
    char utf8[4];
    rc = sh_buf_put(out, utf8, (size_t)sh_utf8_encode((uint32_t)v[i], utf8));
  }
  sh_free(v);
  return rc;
}

int sh_nfc_append(const sh_nfc *t, const char *s, size_t n, sh_buf *out) {
  for (size_t i = 0; i < n;) {
    size_t before = i, at = find_marked(t, s, n, i, &before);
    if (at == n) return sh_buf_put(out, s + i, n - i);
    size_t end = find_unmarked(t, s, n, at);
    int rc = sh_buf_put(out, s + i, before - i);
    if (!rc) rc = normalize(s + before, end - before, out);
    if (rc) return rc;
    i = end;
  }
  return 0;
}
