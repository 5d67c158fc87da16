/* The tokenizer.ggml.* keys of a GGUF file -> sh_tok.
 *
 * Runs in the thread that opens a model. A GGUF file has the vocabulary and the merges but only the name of the split (tokenizer.ggml.pre),
 * so the splits that are known by name are a table here; an unknown name is refused, because a wrong split gives plausible text with wrong
 * ids. Control and user-defined tokens are plain text and match before anything else; no normalization is applied (llama.cpp, which defines
 * these files, applies none). All strings are copied out of the map. Refused: the name "default" and a missing name, which mean that the
 * converter did not recognise the tokenizer. */
#include "text/tokenizer_parts.h"

#include <string.h>

#define KEY(name) "tokenizer.ggml." name

enum {
  TYPE_NORMAL = 1,
  TYPE_CONTROL = 3,
  TYPE_USER_DEFINED = 4
}; /* token_type; others (unknown, unused, byte) are never matched in text */

/* The words of Qwen2 and its kin: contractions, letters with one leading character, digits, the rest; they differ in what a letter and a
 * run of digits is. */
#define QWEN_SPLIT(letter, not_letter, digits)                                                                                             \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letter "+|" digits "| ?[^\\s" not_letter                                           \
  "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct split {
  const char *name, *pattern;
  bool single_digits, gpt2, ignore_merges, add_bos;
} split;

static const split splits[] = {
    {.name = "qwen35", .pattern = QWEN_SPLIT("[\\p{L}\\p{M}]", "\\p{L}\\p{M}", "\\p{N}")},
    {.name = "qwen2", .pattern = QWEN_SPLIT("\\p{L}", "\\p{L}", "\\p{N}")},
    {.name = "llama-bpe", .pattern = QWEN_SPLIT("\\p{L}", "\\p{L}", "\\p{N}{1,3}"), .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .pattern = QWEN_SPLIT("\\p{L}", "\\p{L}", "\\p{N}{1,3}"), .ignore_merges = true, .add_bos = true},
    {.name = "smollm", .single_digits = true, .gpt2 = true},
    {.name = "gpt-2", .gpt2 = true},
};
enum { N_SPLITS = sizeof splits / sizeof *splits };

static bool equals(const char *s, size_t n, const char *name) { return strlen(name) == n && memcmp(s, name, n) == 0; }

/* --- The split ------------------------------------------------------------------------------------------------------------------------ */

static int find_split(const sh_gguf *g, const split **out, sh_error *e) {
  const char *name;
  size_t n;
  if (sh_gguf_str(g, KEY("pre"), &name, &n))
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "the file does not name its pre-tokenizer (" KEY("pre") "); convert the model again with a current converter");
  for (int i = 0; i < N_SPLITS; i++)
    if (equals(name, n, splits[i].name)) {
      *out = &splits[i];
      return 0;
    }
  return sh_fail(e, SH_ERR_UNSUPPORTED,
                 "the pre-tokenizer \"%.*s\" (" KEY("pre") ") is not known; qwen35, qwen2, llama-bpe, smollm and gpt-2 are",
                 n > 80 ? 80 : (int)n, name);
}

static int build_split(sh_tok *t, const split *s, sh_error *e) {
  t->pretok = sh_pretok_new();
  if (!t->pretok) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the pre-tokenizer");
  int rc = s->single_digits ? sh_pretok_add_digits(t->pretok, true, e) : 0;
  if (!rc && s->pattern) rc = sh_pretok_add_split(t->pretok, s->pattern, strlen(s->pattern), false, SH_PRETOK_ISOLATED, false, e);
  return rc ? rc : sh_pretok_add_byte_level(t->pretok, false, s->gpt2, e);
}

/* --- Tokens and merges ---------------------------------------------------------------------------------------------------------------- */

static int load_token(sh_tok *t, const sh_gguf *g, int64_t i, bool typed, sh_error *e) {
  const char *s;
  size_t n;
  int64_t type = TYPE_NORMAL;
  if (sh_gguf_array_str(g, KEY("tokens"), i, &s, &n)) return sh_fail(e, SH_ERR_FORMAT, KEY("tokens") " is not an array of strings");
  if (typed && sh_gguf_array_int(g, KEY("token_type"), i, &type))
    return sh_fail(e, SH_ERR_FORMAT, KEY("token_type") " is not an array of integers");
  bool control = type == TYPE_CONTROL, added = control || type == TYPE_USER_DEFINED;
  unsigned flags = SH_BPE_MODEL | (added ? SH_BPE_RAW | SH_BPE_ADDED : 0) | (control ? SH_BPE_SPECIAL : 0);
  int rc = sh_bpe_add_token(t->bpe, i, s, n, flags, e);
  if (rc || !added || n == 0) return rc;
  return sh_added_add(&t->raw, (int32_t)i, s, n, 0, e);
}

static int load_merge(sh_tok *t, const sh_gguf *g, int64_t i, sh_error *e) {
  const char *s;
  size_t n;
  if (sh_gguf_array_str(g, KEY("merges"), i, &s, &n)) return sh_fail(e, SH_ERR_FORMAT, KEY("merges") " is not an array of strings");
  const char *space = memchr(s, ' ', n);
  size_t left = space ? (size_t)(space - s) : 0;
  if (!space || memchr(space + 1, ' ', n - left - 1))
    return sh_fail(e, SH_ERR_FORMAT, "merge %lld, \"%.*s\", is not two tokens with one space between", (long long)i, n > 64 ? 64 : (int)n,
                   s);
  return sh_bpe_add_merge(t->bpe, (uint32_t)i, s, left, space + 1, n - left - 1, e);
}

static int load_tables(sh_tok *t, const sh_gguf *g, sh_error *e) {
  int64_t n_tokens = sh_gguf_array_len(g, KEY("tokens")), n_merges = sh_gguf_array_len(g, KEY("merges")),
          n_types = sh_gguf_array_len(g, KEY("token_type"));
  if (n_tokens <= 0) return sh_fail(e, SH_ERR_FORMAT, "the file has no vocabulary (" KEY("tokens") ")");
  if (n_merges < 0) return sh_fail(e, SH_ERR_FORMAT, "the file has no merges (" KEY("merges") ")");
  if (n_types >= 0 && n_types != n_tokens)
    return sh_fail(e, SH_ERR_FORMAT, KEY("token_type") " has %lld items for %lld tokens", (long long)n_types, (long long)n_tokens);
  int rc = sh_bpe_new(&t->bpe, (size_t)n_tokens, (size_t)n_merges, e);
  for (int64_t i = 0; !rc && i < n_tokens; i++) rc = load_token(t, g, i, n_types >= 0, e);
  if (rc) return rc;
  sh_bpe_finish_vocab(t->bpe);
  sh_added_finish(&t->raw);
  sh_added_finish(&t->normalized);
  for (int64_t i = 0; !rc && i < n_merges; i++) rc = load_merge(t, g, i, e);
  return rc;
}

/* --- Begin and end -------------------------------------------------------------------------------------------------------------------- */

static int load_id(const sh_tok *t, const sh_gguf *g, const char *key, int32_t *out, sh_error *e) {
  int64_t id;
  int rc = sh_gguf_int(g, key, &id);
  *out = -1;
  if (rc == SH_ERR_NOT_FOUND) return 0;
  if (rc || id < 0 || id >= sh_tok_vocab_size(t))
    return sh_fail(e, SH_ERR_FORMAT, "%s is not an id of the vocabulary of %d tokens", key, sh_tok_vocab_size(t));
  *out = (int32_t)id;
  return 0;
}

static bool flag(const sh_gguf *g, const char *key, bool fallback) {
  int64_t v;
  return sh_gguf_int(g, key, &v) ? fallback : v != 0;
}

static int load_ends(sh_tok *t, const sh_gguf *g, const split *s, sh_error *e) {
  int rc = load_id(t, g, KEY("bos_token_id"), &t->bos, e);
  if (!rc) rc = load_id(t, g, KEY("eos_token_id"), &t->eos, e);
  if (rc) return rc;
  if (t->bos >= 0 && flag(g, KEY("add_bos_token"), s->add_bos)) t->before[t->n_before++] = t->bos;
  if (t->eos >= 0 && flag(g, KEY("add_eos_token"), false)) t->after[t->n_after++] = t->eos;
  return 0;
}

int sh_tok_open_gguf(sh_tok **out, const sh_gguf *g, sh_error *e) {
  *out = NULL;
  const char *model;
  size_t n;
  if (sh_gguf_str(g, KEY("model"), &model, &n)) return sh_fail(e, SH_ERR_NOT_FOUND, "the file has no tokenizer (" KEY("model") ")");
  if (!equals(model, n, "gpt2"))
    return sh_fail(e, SH_ERR_UNSUPPORTED, "the tokenizer model \"%.*s\" is not supported; gpt2 (byte-level BPE) is", n > 80 ? 80 : (int)n,
                   model);
  if (flag(g, KEY("add_space_prefix"), false))
    return sh_fail(e, SH_ERR_UNSUPPORTED, KEY("add_space_prefix") " is not supported with byte-level BPE");
  const split *s = NULL;
  int rc = find_split(g, &s, e);
  if (rc) return rc;
  sh_tok *t = sh_tok_new_empty();
  if (!t) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tokenizer");
  rc = build_split(t, s, e);
  if (!rc) rc = load_tables(t, g, e);
  if (!rc) rc = load_ends(t, g, s, e);
  if (rc) {
    sh_tok_free(t);
    return rc;
  }
  t->bpe->ignore_merges = s->ignore_merges;
  *out = t;
  return 0;
}
