/* Merging one word: start from its bytes and apply, again and again, the pair of lowest rank (the leftmost of equals) until no pair is
 * left.
 *
 * Runs in whatever thread encodes; all state is in the caller's sh_bpe_work. Three sizes of words, one result:
 * - a word seen before in this call comes from a small direct-mapped cache (texts repeat their words; the cache dies with the call, so
 * requests neither share a lock nor learn about each other's words);
 * - a word of up to SMALL symbols lives in an array on the stack, scanned for its minimum and closed up after each merge;
 * - a longer one keeps the rank of every live pair in a tree of minima with 16 children per node, so a merge costs a few cache lines
 * whatever the length, and 10 MB of one letter are no attack. Refused: the usual heap of candidate pairs. Its stale entries make the memory
 * unbounded in n and its sift-down misses the cache on long words; the tree has one entry per position, never a stale one, and finds the
 * leftmost of equal ranks by construction. Also refused: cutting long words into chunks, which changes the result at the seams. */
#include "text/bpe.h"

#include <string.h>

#define NONE UINT32_MAX
enum { SMALL = 48 }; /* symbols; around there the tree draws level (measured on Chinese text, whose words are long) */
enum { FAN = 16, MAX_LEVELS = 8 };

/* --- Pair lookup ---------------------------------------------------------------------------------------------------------------------- */

static const sh_bpe_pair *find_pair(const sh_bpe *b, int32_t left, int32_t right) {
  uint32_t mask = b->pairs_size - 1, l = (uint32_t)left, r = (uint32_t)right;
  for (uint32_t i = sh_bpe_pair_hash(l, r) & mask;; i = (i + 1) & mask) {
    const sh_bpe_pair *p = &b->pairs[i];
    if (p->left == l && p->right == r) return p;
    if (p->left == NONE) return NULL;
  }
}

static uint32_t pair_rank(const sh_bpe *b, int32_t left, int32_t right) {
  const sh_bpe_pair *p = find_pair(b, left, right);
  return p ? p->rank : NONE;
}

/* --- Short words ---------------------------------------------------------------------------------------------------------------------- */

/* Merges ids[0..m), m <= SMALL, in place; returns how many are left. */
static size_t merge_small(const sh_bpe *b, int32_t *ids, size_t m) {
  uint32_t rank[SMALL], to[SMALL];
  for (size_t i = 0; i + 1 < m; i++) {
    const sh_bpe_pair *p = find_pair(b, ids[i], ids[i + 1]);
    rank[i] = p ? p->rank : NONE;
    to[i] = p ? p->result : 0;
  }
  while (m > 1) {
    size_t k = 0;
    for (size_t i = 1; i + 1 < m; i++)
      if (rank[i] < rank[k]) k = i;
    if (rank[k] == NONE) break;
    ids[k] = (int32_t)to[k];
    m--;
    for (size_t i = k + 1; i < m; i++) {
      ids[i] = ids[i + 1];
      rank[i - 1] = rank[i];
      to[i - 1] = to[i];
    }
    for (size_t i = k > 0 ? k - 1 : 0; i <= k && i + 1 < m; i++) {
      const sh_bpe_pair *p = find_pair(b, ids[i], ids[i + 1]);
      rank[i] = p ? p->rank : NONE;
      to[i] = p ? p->result : 0;
    }
  }
  return m;
}

/* --- Long words ----------------------------------------------------------------------------------------------------------------------- */

/* level[0][i] is the rank of the pair that starts at symbol i, NONE for a dead symbol or no pair; level[k+1][i] the minimum of FAN items of
 * level k. */
typedef struct mintree {
  uint32_t *level[MAX_LEVELS];
  size_t len[MAX_LEVELS];
  int n_levels;
} mintree;

static size_t round_up(size_t n) { return (n + FAN - 1) / FAN * FAN; }

static size_t tree_words(size_t n) {
  size_t total = 0;
  do {
    total += round_up(n);
    n = round_up(n) / FAN;
  } while (n > 1);
  return total + FAN;
}

static uint32_t min_of_group(const uint32_t *v) {
  uint32_t m = v[0];
  for (int i = 1; i < FAN; i++) m = v[i] < m ? v[i] : m;
  return m;
}

/* mem: tree_words(n). The leaves [0, n) are filled by the caller afterwards, then tree_build. */
static void tree_layout(mintree *t, uint32_t *mem, size_t n) {
  t->n_levels = 0;
  do {
    t->level[t->n_levels] = mem;
    t->len[t->n_levels++] = round_up(n);
    mem += round_up(n);
    n = round_up(n) / FAN;
  } while (n > 1);
}

static void tree_build(mintree *t, size_t n) {
  for (size_t i = n; i < t->len[0]; i++) t->level[0][i] = NONE;
  for (int k = 0; k + 1 < t->n_levels; k++) {
    size_t groups = t->len[k] / FAN;
    for (size_t i = 0; i < groups; i++) t->level[k + 1][i] = min_of_group(t->level[k] + i * FAN);
    for (size_t i = groups; i < t->len[k + 1]; i++) t->level[k + 1][i] = NONE;
  }
}

static void tree_set(mintree *t, size_t i, uint32_t rank) {
  t->level[0][i] = rank;
  for (int k = 0; k + 1 < t->n_levels; k++) {
    i /= FAN;
    uint32_t m = min_of_group(t->level[k] + i * FAN);
    if (t->level[k + 1][i] == m) return;
    t->level[k + 1][i] = m;
  }
}

/* The leftmost position of the lowest rank, or SIZE_MAX when no pair is left. The top level is one group. */
static size_t tree_first_min(const mintree *t) {
  size_t i = 0;
  for (int k = t->n_levels - 1; k >= 0; k--) {
    const uint32_t *v = t->level[k] + i * FAN;
    uint32_t m = min_of_group(v);
    if (m == NONE) return SIZE_MAX;
    size_t j = 0;
    while (v[j] != m) j++;
    i = i * FAN + j;
  }
  return i;
}

/* Merges ids[0..m) in place with `mem` of long_words(m); returns how many are left. */
static size_t long_words(size_t m) { return 2 * m + tree_words(m); }

static size_t merge_long(const sh_bpe *b, int32_t *ids, size_t m, uint32_t *mem) {
  uint32_t *next = mem, *prev = mem + m; /* neighbours of live symbols; m and NONE at the ends */
  mintree t;
  tree_layout(&t, mem + 2 * m, m);
  for (size_t i = 0; i < m; i++) {
    next[i] = (uint32_t)i + 1;
    prev[i] = (uint32_t)i - 1;
    t.level[0][i] = i + 1 < m ? pair_rank(b, ids[i], ids[i + 1]) : NONE;
  }
  tree_build(&t, m);
  for (size_t i; (i = tree_first_min(&t)) != SIZE_MAX;) {
    uint32_t j = next[i], k = next[j], h = prev[i];
    ids[i] = (int32_t)find_pair(b, ids[i], ids[j])->result;
    ids[j] = -1;
    next[i] = k;
    if (k < m) prev[k] = (uint32_t)i;
    tree_set(&t, j, NONE);
    tree_set(&t, i, k < m ? pair_rank(b, ids[i], ids[k]) : NONE);
    if (h != NONE) tree_set(&t, h, pair_rank(b, ids[h], ids[i]));
  }
  size_t left = 0;
  for (size_t i = 0; i < m; i = next[i]) ids[left++] = ids[i];
  return left;
}

/* --- The words of one call ------------------------------------------------------------------------------------------------------------ */

enum { CACHE_WORDS = 1 << 13, WORD_BYTES = 26, WORD_IDS = 8 };
enum { CACHE_FROM = 4096 }; /* bytes of text from which clearing the cache pays for itself */
struct sh_bpe_word {        /* 64 bytes, a cache line */
  uint32_t hash;
  uint8_t len, n_ids; /* len 0 = free */
  char bytes[WORD_BYTES];
  int32_t ids[WORD_IDS];
};
_Static_assert(sizeof(sh_bpe_word) == 64, "a cached word is one cache line");

void sh_bpe_work_init(sh_bpe_work *w, const sh_bpe *b, size_t text_len) {
  memset(w, 0, sizeof *w);
  w->b = b;
  if (text_len >= CACHE_FROM) w->cache = sh_calloc(CACHE_WORDS, sizeof *w->cache); /* none is slower, not wrong */
}

void sh_bpe_work_free(sh_bpe_work *w) {
  sh_free(w->cache);
  sh_free(w->mem);
  memset(w, 0, sizeof *w);
}

static uint32_t hash_word(const char *p, size_t n) {
  uint64_t h = n;
  while (n >= 8) {
    uint64_t x;
    memcpy(&x, p, 8);
    h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 29;
    p += 8;
    n -= 8;
  }
  uint64_t x = 0;
  memcpy(&x, p, n);
  h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
  return (uint32_t)(h >> 32);
}

static int put_ids(sh_ids *out, const int32_t *ids, size_t n) {
  for (size_t i = 0; i < n; i++) {
    int rc = sh_ids_push(out, ids[i]);
    if (rc) return rc;
  }
  return 0;
}

/* The symbols a word starts as: one id per byte; bytes without a token become `unk` or nothing. ids has room for n. Returns their number.
 */
static size_t first_symbols(const sh_bpe *b, const char *p, size_t n, int32_t *ids) {
  size_t m = 0;
  bool last_unknown = false;
  for (size_t i = 0; i < n; i++) {
    int32_t id = b->byte_id[(unsigned char)p[i]];
    bool unknown = id < 0;
    if (unknown && (b->unk < 0 || (b->fuse_unk && last_unknown))) {
      last_unknown = true;
      continue;
    }
    ids[m++] = unknown ? b->unk : id;
    last_unknown = unknown;
  }
  return m;
}

/* *id = the id of a whole word when the vocabulary asks for such words to stay whole, else -1. */
static int whole_word(const sh_bpe *b, const char *p, size_t n, int32_t *id) {
  char stack[512], *spelled = stack;
  *id = -1;
  if (!b->ignore_merges || n > b->max_piece) return 0;
  if (2 * n > sizeof stack && !(spelled = sh_malloc(2 * n))) return SH_ERR_NOMEM;
  *id = sh_bpe_find(b, spelled, sh_bpe_spell(p, n, spelled));
  if (*id >= 0 && !(b->flags[*id] & SH_BPE_MODEL)) *id = -1;
  if (spelled != stack) sh_free(spelled);
  return 0;
}

static int encode_long(sh_bpe_work *w, const char *p, size_t n, sh_ids *out) {
  if (n > SH_BPE_MAX_WORD) return SH_ERR_LIMIT;
  size_t need = n + long_words(n);
  if (need > w->mem_cap) {
    size_t cap = n < 4096 ? 4096 + long_words(4096) : need;
    sh_free(w->mem);
    w->mem_cap = 0;
    w->mem = sh_malloc(cap * sizeof *w->mem);
    if (!w->mem) return SH_ERR_NOMEM;
    w->mem_cap = cap;
  }
  int32_t *ids = (int32_t *)w->mem;
  size_t m = first_symbols(w->b, p, n, ids);
  if (m > 0) m = merge_long(w->b, ids, m, w->mem + n);
  return put_ids(out, ids, m);
}

int sh_bpe_encode(sh_bpe_work *w, const char *p, size_t n, sh_ids *out) {
  const sh_bpe *b = w->b;
  sh_bpe_word *slot = NULL;
  uint32_t hash = 0;
  if (w->cache && n > 1 && n <= WORD_BYTES) {
    hash = hash_word(p, n);
    slot = &w->cache[hash % CACHE_WORDS];
    if (slot->hash == hash && slot->len == n && memcmp(slot->bytes, p, n) == 0) return put_ids(out, slot->ids, slot->n_ids);
  }
  int32_t ids[SMALL];
  size_t m;
  int rc = whole_word(b, p, n, &ids[0]);
  if (rc) return rc;
  if (ids[0] >= 0) {
    m = 1;
  } else if (n <= SMALL) {
    m = merge_small(b, ids, first_symbols(b, p, n, ids));
  } else {
    return encode_long(w, p, n, out);
  }
  if (slot && m <= WORD_IDS) {
    slot->hash = hash;
    slot->len = (uint8_t)n;
    slot->n_ids = (uint8_t)m;
    memcpy(slot->bytes, p, n);
    memcpy(slot->ids, ids, m * sizeof *ids);
  }
  return put_ids(out, ids, m);
}
