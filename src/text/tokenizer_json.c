/* tokenizer.json (the format of HF tokenizers) -> sh_tok.
 *
 * Runs in the thread that opens a model. What byte-level BPE models use is built: model BPE, normalizer NFC, pre-tokenizers Split, Digits
 * and ByteLevel, added tokens with all their flags, post-processors TemplateProcessing and ByteLevel, decoders ByteLevel and Fuse, each
 * also inside Sequence. Anything else would change ids silently, so it is refused by its name. "truncation" and "padding" are settings of a
 * caller, not of the vocabulary, and are not read. One step per field; every step checks the types it touches, because the file may come
 * from anywhere. Refused: taking an added token's id from its place in the list, as HF tokenizers does when they disagree; here a
 * contradiction is an error. */
#include "text/tokenizer_parts.h"

#include "base/json.h"

#include <string.h>

enum { MAX_FILE = 1 << 28 }; /* bytes of tokenizer.json */
enum { MAX_NESTING = 4 };    /* Sequence inside Sequence */

typedef struct loader {
  sh_tok *t;
  sh_error *e;
  bool byte_level, template_seen;
} loader;

/* --- Reading fields ------------------------------------------------------------------------------------------------------------------- */

static bool absent(const sh_json *v) { return !v || v->type == SH_JSON_NULL; }

static const char *type_name(const sh_json *v) { return v ? sh_json_type_phrase(v->type) : "nothing"; }

/* *out = obj[key], or `fallback` when it is absent or null. */
static int read_bool(loader *l, const sh_json *obj, const char *key, bool fallback, bool *out) {
  const sh_json *v = sh_json_get(obj, key);
  *out = fallback;
  if (absent(v)) return 0;
  if (v->type != SH_JSON_BOOL) return sh_fail(l->e, SH_ERR_FORMAT, "\"%s\" is %s, wanted true or false", key, type_name(v));
  *out = v->b;
  return 0;
}

static int read_string(loader *l, const sh_json *obj, const char *key, const sh_json **out) {
  *out = sh_json_get(obj, key);
  if (sh_json_is(*out, SH_JSON_STRING)) return 0;
  return sh_fail(l->e, SH_ERR_FORMAT, "\"%s\" is %s, wanted a string", key, type_name(*out));
}

static int read_array(loader *l, const sh_json *obj, const char *key, const sh_json **out) {
  *out = sh_json_get(obj, key);
  if (sh_json_is(*out, SH_JSON_ARRAY)) return 0;
  return sh_fail(l->e, SH_ERR_FORMAT, "\"%s\" is %s, wanted an array", key, type_name(*out));
}

/* The "type" of a component. */
static int read_type(loader *l, const sh_json *obj, const char *what, const char **out) {
  const sh_json *v = sh_json_get(obj, "type");
  if (!sh_json_is(v, SH_JSON_STRING)) return sh_fail(l->e, SH_ERR_FORMAT, "the %s has no \"type\"", what);
  *out = v->s;
  return 0;
}

static int unsupported(loader *l, const char *what, const char *name) {
  return sh_fail(l->e, SH_ERR_UNSUPPORTED, "the %s \"%.80s\" is not supported (byte-level BPE tokenizers are)", what, name);
}

/* Calls `each` for every member of a Sequence's list, or for the component itself. */
typedef int (*component_fn)(loader *l, const sh_json *v, const char *type);

static int walk(loader *l, const sh_json *v, const char *what, const char *list, int depth, component_fn each) {
  const char *type = NULL;
  int rc = read_type(l, v, what, &type);
  if (rc) return rc;
  if (strcmp(type, "Sequence") != 0) return each(l, v, type);
  if (depth == MAX_NESTING) return sh_fail(l->e, SH_ERR_LIMIT, "the %s nests more than %d sequences", what, MAX_NESTING);
  const sh_json *a;
  rc = read_array(l, v, list, &a);
  for (size_t i = 0; !rc && i < a->len; i++) rc = walk(l, &a->items[i], what, list, depth + 1, each);
  return rc;
}

/* --- Model ---------------------------------------------------------------------------------------------------------------------------- */

static int refuse_model_options(loader *l, const sh_json *m) {
  bool fallback;
  int rc = read_bool(l, m, "byte_fallback", false, &fallback);
  if (rc) return rc;
  if (fallback) return unsupported(l, "model option", "byte_fallback");
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++) {
    const sh_json *v = sh_json_get(m, affixes[i]);
    if (!absent(v) && !sh_json_eq_str(v, "")) return unsupported(l, "model option", affixes[i]);
  }
  const sh_json *dropout = sh_json_get(m, "dropout");
  double p = 0;
  if (!absent(dropout) && (sh_json_double(dropout, &p) || p != 0)) return unsupported(l, "model option", "dropout");
  return 0;
}

static int load_vocab(loader *l, const sh_json *vocab) {
  int rc = 0;
  for (size_t i = 0; i < vocab->len && !rc; i++) {
    const sh_json_member *m = &vocab->members[i];
    int64_t id;
    if (sh_json_int(&m->value, &id)) rc = sh_fail(l->e, SH_ERR_FORMAT, "the id of token \"%.64s\" is not an integer", m->key);
    else rc = sh_bpe_add_token(l->t->bpe, id, m->key, m->key_len, SH_BPE_MODEL, l->e);
  }
  if (!rc) sh_bpe_finish_vocab(l->t->bpe);
  return rc;
}

/* A merge is "left right" or ["left", "right"]. */
static int load_merge(loader *l, const sh_json *v, uint32_t rank) {
  if (v->type == SH_JSON_ARRAY && v->len == 2 && v->items[0].type == SH_JSON_STRING && v->items[1].type == SH_JSON_STRING)
    return sh_bpe_add_merge(l->t->bpe, rank, v->items[0].s, v->items[0].len, v->items[1].s, v->items[1].len, l->e);
  if (v->type != SH_JSON_STRING)
    return sh_fail(l->e, SH_ERR_FORMAT, "merge %u is %s, wanted \"left right\" or [\"left\", \"right\"]", (unsigned)rank, type_name(v));
  const char *space = memchr(v->s, ' ', v->len);
  size_t left = space ? (size_t)(space - v->s) : 0;
  if (!space || memchr(space + 1, ' ', v->len - left - 1))
    return sh_fail(l->e, SH_ERR_FORMAT, "merge %u, \"%.64s\", is not two tokens with one space between", (unsigned)rank, v->s);
  return sh_bpe_add_merge(l->t->bpe, rank, v->s, left, space + 1, v->len - left - 1, l->e);
}

static int load_unk(loader *l, const sh_json *m) {
  const sh_json *unk = sh_json_get(m, "unk_token");
  if (absent(unk)) return 0;
  l->t->bpe->unk = sh_json_is(unk, SH_JSON_STRING) ? sh_bpe_find(l->t->bpe, unk->s, unk->len) : -1;
  if (l->t->bpe->unk < 0) return sh_fail(l->e, SH_ERR_FORMAT, "\"unk_token\" is not a token of the vocabulary");
  return read_bool(l, m, "fuse_unk", false, &l->t->bpe->fuse_unk);
}

static int load_model(loader *l, const sh_json *root, size_t n_added) {
  const sh_json *m = sh_json_get(root, "model"), *merges;
  if (!sh_json_is(m, SH_JSON_OBJECT)) return sh_fail(l->e, SH_ERR_FORMAT, "there is no \"model\" object");
  const sh_json *type = sh_json_get(m, "type"), *vocab = sh_json_get(m, "vocab");
  if (!absent(type) && !sh_json_eq_str(type, "BPE"))
    return unsupported(l, "model", sh_json_is(type, SH_JSON_STRING) ? type->s : type_name(type));
  int rc = refuse_model_options(l, m);
  if (rc) return rc;
  if (!sh_json_is(vocab, SH_JSON_OBJECT))
    return sh_fail(l->e, SH_ERR_FORMAT, "model.vocab is %s, wanted an object of token to id", type_name(vocab));
  if (vocab->len == 0) return sh_fail(l->e, SH_ERR_FORMAT, "model.vocab is empty");
  rc = read_array(l, m, "merges", &merges);
  if (!rc) rc = sh_bpe_new(&l->t->bpe, vocab->len + n_added, merges->len, l->e);
  if (!rc) rc = load_vocab(l, vocab);
  for (size_t i = 0; !rc && i < merges->len; i++) rc = load_merge(l, &merges->items[i], (uint32_t)i);
  if (!rc) rc = load_unk(l, m);
  if (!rc) rc = read_bool(l, m, "ignore_merges", false, &l->t->bpe->ignore_merges);
  return rc;
}

/* --- Normalizer ----------------------------------------------------------------------------------------------------------------------- */

static int on_normalizer(loader *l, const sh_json *v, const char *type) {
  (void)v;
  if (strcmp(type, "NFC") != 0) return unsupported(l, "normalizer", type);
  if (!l->t->nfc) l->t->nfc = sh_nfc_new();
  return l->t->nfc ? 0 : sh_fail(l->e, SH_ERR_NOMEM, "out of memory for the normalizer");
}

/* --- Pre-tokenizer -------------------------------------------------------------------------------------------------------------------- */

static int read_behavior(loader *l, const sh_json *v, sh_pretok_behavior *out) {
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const sh_json *b;
  int rc = read_string(l, v, "behavior", &b);
  if (rc) return rc;
  for (int i = 0; i < 5; i++)
    if (strcmp(b->s, names[i]) == 0) {
      *out = (sh_pretok_behavior)i;
      return 0;
    }
  return unsupported(l, "split behavior", b->s);
}

static int on_split(loader *l, const sh_json *v) {
  sh_pretok_behavior behavior = SH_PRETOK_ISOLATED;
  bool invert = false;
  int rc = read_behavior(l, v, &behavior);
  if (!rc) rc = read_bool(l, v, "invert", false, &invert);
  if (rc) return rc;
  const sh_json *pattern = sh_json_get(v, "pattern"), *regex = sh_json_get(pattern, "Regex"), *text = sh_json_get(pattern, "String");
  const sh_json *p = regex ? regex : text;
  if (!sh_json_is(p, SH_JSON_STRING))
    return sh_fail(l->e, SH_ERR_FORMAT, "a Split has no pattern: wanted {\"Regex\": ...} or {\"String\": ...}");
  return sh_pretok_add_split(l->t->pretok, p->s, p->len, p == text, behavior, invert, l->e);
}

static int on_pretokenizer(loader *l, const sh_json *v, const char *type) {
  if (l->byte_level) return unsupported(l, "pre-tokenizer after ByteLevel", type);
  if (strcmp(type, "Split") == 0) return on_split(l, v);
  bool a, b;
  if (strcmp(type, "Digits") == 0) {
    int rc = read_bool(l, v, "individual_digits", false, &a);
    return rc ? rc : sh_pretok_add_digits(l->t->pretok, a, l->e);
  }
  if (strcmp(type, "ByteLevel") != 0) return unsupported(l, "pre-tokenizer", type);
  l->byte_level = true;
  int rc = read_bool(l, v, "add_prefix_space", true, &a);
  if (!rc) rc = read_bool(l, v, "use_regex", true, &b);
  return rc ? rc : sh_pretok_add_byte_level(l->t->pretok, a, b, l->e);
}

static int load_pretokenizer(loader *l, const sh_json *root) {
  const sh_json *v = sh_json_get(root, "pre_tokenizer");
  l->t->pretok = sh_pretok_new();
  if (!l->t->pretok) return sh_fail(l->e, SH_ERR_NOMEM, "out of memory for the pre-tokenizer");
  int rc = absent(v) ? 0 : walk(l, v, "pre_tokenizer", "pretokenizers", 0, on_pretokenizer);
  return rc || l->byte_level ? rc : unsupported(l, "pre-tokenizer", "without ByteLevel");
}

/* --- Decoder -------------------------------------------------------------------------------------------------------------------------- */

static int on_decoder(loader *l, const sh_json *v, const char *type) {
  (void)v;
  if (strcmp(type, "ByteLevel") == 0) l->byte_level = true;
  else if (strcmp(type, "Fuse") != 0) return unsupported(l, "decoder", type); /* Fuse joins what ByteLevel has joined already */
  return 0;
}

static int check_decoder(loader *l, const sh_json *root) {
  const sh_json *v = sh_json_get(root, "decoder");
  l->byte_level = false;
  int rc = absent(v) ? 0 : walk(l, v, "decoder", "decoders", 0, on_decoder);
  return rc || l->byte_level ? rc : unsupported(l, "decoder", "without ByteLevel");
}

/* --- Added tokens --------------------------------------------------------------------------------------------------------------------- */

static int add_matcher(loader *l, const sh_json *content, int32_t id, bool normalized, unsigned flags) {
  sh_tok *t = l->t;
  if (content->len == 0) return 0; /* cannot match */
  if (!normalized) return sh_added_add(&t->raw, id, content->s, content->len, flags, l->e);
  if (!t->nfc) return sh_added_add(&t->normalized, id, content->s, content->len, flags, l->e);
  sh_buf nfc;
  sh_buf_init(&nfc, 1 << 28);
  int rc = sh_nfc_append(t->nfc, content->s, content->len, &nfc);
  rc = rc ? sh_fail(l->e, rc, "an added token could not be normalized") : sh_added_add(&t->normalized, id, nfc.p, nfc.len, flags, l->e);
  sh_buf_free(&nfc);
  return rc;
}

static int load_added_token(loader *l, const sh_json *v) {
  const sh_json *content;
  int64_t id;
  bool single_word, lstrip, rstrip, normalized, special;
  int rc = read_string(l, v, "content", &content);
  if (rc) return rc;
  if (sh_json_int(sh_json_get(v, "id"), &id)) return sh_fail(l->e, SH_ERR_FORMAT, "\"%.64s\" has no integer \"id\"", content->s);
  rc = read_bool(l, v, "single_word", false, &single_word);
  if (!rc) rc = read_bool(l, v, "lstrip", false, &lstrip);
  if (!rc) rc = read_bool(l, v, "rstrip", false, &rstrip);
  if (!rc) rc = read_bool(l, v, "special", false, &special);
  if (!rc) rc = read_bool(l, v, "normalized", !special, &normalized);
  if (rc) return rc;
  sh_bpe *b = l->t->bpe;
  int32_t known = sh_bpe_find(b, content->s, content->len);
  bool again = known >= 0 && known == id && (b->flags[known] & SH_BPE_ADDED);
  rc = sh_bpe_add_token(b, id, content->s, content->len, SH_BPE_ADDED | (special ? SH_BPE_SPECIAL : 0), l->e);
  if (rc || again) return rc;
  unsigned flags = (single_word ? SH_ADDED_SINGLE_WORD : 0) | (lstrip ? SH_ADDED_LSTRIP : 0) | (rstrip ? SH_ADDED_RSTRIP : 0);
  return add_matcher(l, content, (int32_t)id, normalized, flags);
}

static int load_added(loader *l, const sh_json *added) {
  int rc = 0;
  for (size_t i = 0; added && i < added->len && !rc; i++) {
    rc = load_added_token(l, &added->items[i]);
    if (rc) sh_fail_in(l->e, rc, "added_tokens[%zu]", i);
  }
  sh_added_finish(&l->t->raw);
  sh_added_finish(&l->t->normalized);
  return rc;
}

/* --- Post-processor ------------------------------------------------------------------------------------------------------------------- */

/* Appends the ids of the template's special token `name`. */
static int template_ids(loader *l, const sh_json *v, const char *name, int32_t *side, int *n) {
  const sh_json *entry = sh_json_get(sh_json_get(v, "special_tokens"), name), *ids;
  if (!entry) return sh_fail(l->e, SH_ERR_FORMAT, "the template names \"%.64s\", which is not in its special_tokens", name);
  int rc = read_array(l, entry, "ids", &ids);
  for (size_t i = 0; !rc && i < ids->len; i++) {
    int64_t id;
    if (sh_json_int(&ids->items[i], &id) || id < 0 || id > INT32_MAX || !sh_bpe_at(l->t->bpe, (int32_t)id))
      return sh_fail(l->e, SH_ERR_FORMAT, "the template's \"%.64s\" stands for an id that is no token", name);
    if (*n == SH_TOK_MAX_EXTRA) return sh_fail(l->e, SH_ERR_LIMIT, "the template adds more than %d tokens", SH_TOK_MAX_EXTRA);
    side[(*n)++] = (int32_t)id;
  }
  return rc;
}

/* "single" is a list of {"SpecialToken": {"id": name}} and one {"Sequence": {"id": "A"}}. */
static int load_template(loader *l, const sh_json *v) {
  sh_tok *t = l->t;
  const sh_json *single;
  int rc = read_array(l, v, "single", &single);
  bool seen = false;
  for (size_t i = 0; !rc && i < single->len; i++) {
    const sh_json *token = sh_json_path(&single->items[i], "SpecialToken.id"), *seq = sh_json_path(&single->items[i], "Sequence.id");
    if (sh_json_is(token, SH_JSON_STRING))
      rc = seen ? template_ids(l, v, token->s, t->after, &t->n_after) : template_ids(l, v, token->s, t->before, &t->n_before);
    else if (sh_json_eq_str(seq, "A") && !seen) seen = true;
    else rc = sh_fail(l->e, SH_ERR_FORMAT, "item %zu of the template is neither a special token nor the one sequence A", i);
  }
  return rc || seen ? rc : sh_fail(l->e, SH_ERR_FORMAT, "the template has no sequence A");
}

static int on_post_processor(loader *l, const sh_json *v, const char *type) {
  if (strcmp(type, "ByteLevel") == 0) return 0; /* moves offsets, not ids */
  if (strcmp(type, "TemplateProcessing") != 0) return unsupported(l, "post-processor", type);
  if (l->template_seen)
    return unsupported(l, "second post-processor", type); /* HF tokenizers reads the first one's output as a pair of texts */
  l->template_seen = true;
  return load_template(l, v);
}

/* --- The file ------------------------------------------------------------------------------------------------------------------------- */

/* A token named in tokenizer_config.json: a string or an added token's object; -1 when absent or not in the vocabulary. */
static int32_t config_token(const sh_tok *t, const sh_json *config, const char *key) {
  const sh_json *v = sh_json_get(config, key);
  if (sh_json_is(v, SH_JSON_OBJECT)) v = sh_json_get(v, "content");
  return sh_json_is(v, SH_JSON_STRING) ? sh_bpe_find(t->bpe, v->s, v->len) : -1;
}

static int load(loader *l, const sh_json *root) {
  if (root->type != SH_JSON_OBJECT) return sh_fail(l->e, SH_ERR_FORMAT, "the file holds %s, wanted an object", type_name(root));
  const sh_json *added = sh_json_get(root, "added_tokens"), *normalizer = sh_json_get(root, "normalizer"),
                *post = sh_json_get(root, "post_processor");
  if (absent(added)) added = NULL;
  else if (added->type != SH_JSON_ARRAY) return sh_fail(l->e, SH_ERR_FORMAT, "\"added_tokens\" is %s, wanted an array", type_name(added));
  int rc = load_model(l, root, added ? added->len : 0);
  if (!rc && !absent(normalizer)) rc = walk(l, normalizer, "normalizer", "normalizers", 0, on_normalizer);
  if (!rc) rc = load_pretokenizer(l, root);
  if (!rc) rc = load_added(l, added);
  if (!rc && !absent(post)) rc = walk(l, post, "post_processor", "processors", 0, on_post_processor);
  if (!rc) rc = check_decoder(l, root);
  return rc;
}

int sh_tok_open_json(sh_tok **out, const char *tokenizer_json, size_t len, const sh_json *tokenizer_config, sh_error *e) {
  *out = NULL;
  if (len > MAX_FILE) return sh_fail(e, SH_ERR_LIMIT, "tokenizer.json has %zu bytes; at most %d are read", len, MAX_FILE);
  sh_json *root = NULL;
  sh_arena *a = sh_arena_new((size_t)1 << 32);
  sh_tok *t = sh_tok_new_empty();
  int rc = a && t ? sh_json_parse(tokenizer_json, len, NULL, a, &root, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  loader l = {.t = t, .e = e};
  if (!rc) rc = load(&l, root);
  sh_arena_free(a);
  if (rc) {
    sh_tok_free(t);
    return sh_fail_in(e, rc, "tokenizer.json");
  }
  t->bos = config_token(t, tokenizer_config, "bos_token");
  t->eos = config_token(t, tokenizer_config, "eos_token");
  *out = t;
  return 0;
}
