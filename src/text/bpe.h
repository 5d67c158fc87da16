/* Byte-level BPE: the vocabulary (id <-> spelling <-> bytes), the merge table, and the merging of one word. Built once, then immutable. */
#ifndef SH_TEXT_BPE_H
#define SH_TEXT_BPE_H

#include "text/tokenizer.h"

enum { SH_BPE_MAX_IDS = 1 << 22 };        /* ids from a file lie below this: bounds the tables a hostile file can ask for */
enum { SH_BPE_MAX_TEXT = 1 << 30 };       /* bytes of all spellings together; offsets are 32-bit */
enum { SH_BPE_MAX_WORD = (1 << 28) - 1 }; /* bytes of one word; positions are 32-bit and 16 bytes of work memory stand behind each */

enum {                     /* flags of an id */
       SH_BPE_MODEL = 1,   /* in the BPE vocabulary: merges may name it */
       SH_BPE_ADDED = 2,   /* an added token */
       SH_BPE_SPECIAL = 4, /* skipped by skip_special_tokens */
       SH_BPE_RAW = 8,     /* its spelling is plain text, not the printable byte alphabet */
};

typedef struct sh_bpe_token {
  uint32_t piece_off, piece_len, bytes_off, bytes_len;
} sh_bpe_token; /* into `text`; piece_off 0 = no token */
typedef struct sh_bpe_pair {
  uint32_t left, right, rank, result;
} sh_bpe_pair; /* left UINT32_MAX = free */

typedef struct sh_bpe {         /* fields are private to bpe*.c but for the ones marked */
  sh_bpe_token *tokens;         /* [cap_ids], n_ids in use */
  uint8_t *flags;               /* [cap_ids] */
  int32_t n_ids, cap_ids;       /* read by others: n_ids = largest id + 1 */
  uint32_t n_tokens, max_piece; /* tokens present; bytes of the longest spelling in the vocabulary */
  sh_buf text;                  /* spellings, each NUL-terminated, and bytes; offset 0 is unused */
  sh_buf scratch;               /* building: a spelling under work */
  int32_t *index;               /* [index_size] spelling -> id, open addressing, -1 = free */
  uint32_t index_size;          /* a power of two, at least twice n_tokens */
  sh_bpe_pair *pairs;           /* [pairs_size] (left, right) -> rank, result, open addressing */
  uint32_t pairs_size, n_pairs;
  int32_t byte_id[256];         /* id of each single byte, -1 when the vocabulary lacks it */
  int32_t unk;                  /* set by others: id for bytes without a token, -1 = they are dropped */
  bool fuse_unk, ignore_merges; /* set by others: runs of unknown bytes are one token; a word in the vocabulary is one token */
} sh_bpe;

/* For at most n_tokens tokens and n_merges merges. Caller frees with sh_bpe_free. */
int sh_bpe_new(sh_bpe **out, size_t n_tokens, size_t n_merges, sh_error *e);
void sh_bpe_free(sh_bpe *b); /* accepts NULL and half-built objects */

/* Adds a token. An id or a spelling that is taken by another is SH_ERR_FORMAT; the same id and spelling again joins the flags. */
int sh_bpe_add_token(sh_bpe *b, int64_t id, const char *piece, size_t len, unsigned flags, sh_error *e);
/* Adds the merge of two spellings. A part or a result that is not in the vocabulary is SH_ERR_FORMAT; a pair given twice keeps the later
 * rank. */
int sh_bpe_add_merge(sh_bpe *b, uint32_t rank, const char *l, size_t nl, const char *r, size_t nr, sh_error *e);
void sh_bpe_finish_vocab(sh_bpe *b); /* finds the ids of the single bytes; after the last token of the model, before added ones */
int32_t sh_bpe_find(const sh_bpe *b, const char *piece, size_t len); /* -1 when absent */
/* The token an id stands for, NULL when there is none. */
static inline const sh_bpe_token *sh_bpe_at(const sh_bpe *b, int32_t id) {
  return id >= 0 && id < b->n_ids && b->tokens[id].piece_off != 0 ? &b->tokens[id] : NULL;
}
/* Writes the printable spelling of p[0..n) to out[0..2n) and returns its length. */
size_t sh_bpe_spell(const char *p, size_t n, char *out);

static inline uint32_t sh_bpe_pair_hash(uint32_t left, uint32_t right) {
  return (uint32_t)((((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

/* --- Merging. One work object serves one encode call in one thread. */
typedef struct sh_bpe_word sh_bpe_word;
typedef struct sh_bpe_work {
  const sh_bpe *b;    /* borrowed */
  sh_bpe_word *cache; /* words seen in this call, or NULL */
  uint32_t *mem;      /* scratch of long words; owned */
  size_t mem_cap;     /* words of 4 bytes */
} sh_bpe_work;

void sh_bpe_work_init(sh_bpe_work *w, const sh_bpe *b, size_t text_len); /* a cache is made when the text is long enough to pay for it */
void sh_bpe_work_free(sh_bpe_work *w);
/* Appends the ids of one word of raw bytes. O(n log n). SH_ERR_LIMIT, SH_ERR_NOMEM. */
int sh_bpe_encode(sh_bpe_work *w, const char *p, size_t n, sh_ids *out);

#endif
