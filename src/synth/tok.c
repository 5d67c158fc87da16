/* A tokenizer without any file from outside, and a real one's taken over.
 *
 * One thread. The made-up vocabulary is 256 bytes, words that no merge makes (so text is one token per byte, and an answer of random ids
 * reads as words with numbers), and Qwen3.5's added tokens at their real ids. It is written as tokenizer.json and opened by the program's
 * own tokenizer like any other, so a folder and a GGUF have the same tokens, and what is wrong with a folder's tokenizer is said before
 * anything is written. Merges made up to shorten texts were refused: they would look like the real ones and count otherwise; whoever counts
 * tokens of texts gives a real tokenizer. */
#include "synth/tok.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

#define MAX_JSON ((size_t)256 << 20) /* bytes of a tokenizer.json */
#define MAX_TREE ((size_t)2 << 30)   /* bytes of one parsed */

/* Qwen3.5's pre-tokenizer, which GGUF calls qwen35. */
static const char SPLIT[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char TEMPLATE[] =
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/* The added tokens, from n_tokens on. */
static const struct {
  const char *content;
  bool special;
} ADDED[SH_SYNTH_SPECIALS] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},     {"<|im_end|>", true},       {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},    {"<|box_end|>", true},      {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true}, {"<|vision_end|>", true},   {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},    {"<tool_call>", false},     {"</tool_call>", false},
    {"<|fim_prefix|>", true},     {"<|fim_middle|>", true},   {"<|fim_suffix|>", true},   {"<|fim_pad|>", true},
    {"<|repo_name|>", true},      {"<|file_sep|>", true},     {"<tool_response>", false}, {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},        {"<|audio_start|>", true},  {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},   {"<tts_text_eod>", true},   {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

/* --- The made-up one */

/* Bytes as byte-level BPE spells them, in the order of GPT-2's and Qwen's first 256 tokens. */
static void byte_pieces(uint32_t cp[256]) {
  int n = 0;
  uint32_t extra = 256;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t b = 0; b < 256; b++) {
      bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      if (printable == (pass == 0)) cp[n++] = printable ? b : extra++;
    }
  }
}

static void put_vocab(sh_jw *w, const sh_synth_shape *s) {
  uint32_t cp[256];
  char piece[32];
  byte_pieces(cp);
  sh_jw_key(w, "vocab");
  sh_jw_obj(w);
  for (int i = 0; i < s->n_tokens; i++) {
    if (i < 256) piece[sh_utf8_encode(cp[i], piece)] = 0;
    else snprintf(piece, sizeof piece, "\xc4\xa0w%d", i); /* the spelling of a blank, so words stand apart */
    sh_jw_kint(w, piece, i);
  }
  sh_jw_end_obj(w);
}

static void put_flags(sh_jw *w, bool special) {
  static const char *const OFF[] = {"single_word", "lstrip", "rstrip", "normalized"};
  for (int i = 0; i < 4; i++) sh_jw_kbool(w, OFF[i], false);
  sh_jw_kbool(w, "special", special);
}

static void put_added(sh_jw *w, const sh_synth_shape *s) {
  sh_jw_key(w, "added_tokens");
  sh_jw_arr(w);
  for (int i = 0; i < SH_SYNTH_SPECIALS; i++) {
    sh_jw_obj(w);
    sh_jw_kint(w, "id", s->n_tokens + i);
    sh_jw_kstr(w, "content", ADDED[i].content);
    put_flags(w, ADDED[i].special);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
}

static void put_byte_level(sh_jw *w) {
  sh_jw_obj(w);
  sh_jw_kstr(w, "type", "ByteLevel");
  sh_jw_kbool(w, "add_prefix_space", false);
  sh_jw_kbool(w, "trim_offsets", false);
  sh_jw_kbool(w, "use_regex", false);
  sh_jw_end_obj(w);
}

static void put_pretokenizer(sh_jw *w) {
  sh_jw_key(w, "pre_tokenizer");
  sh_jw_obj(w);
  sh_jw_kstr(w, "type", "Sequence");
  sh_jw_key(w, "pretokenizers");
  sh_jw_arr(w);
  sh_jw_obj(w);
  sh_jw_kstr(w, "type", "Split");
  sh_jw_key(w, "pattern");
  sh_jw_obj(w);
  sh_jw_kstr(w, "Regex", SPLIT);
  sh_jw_end_obj(w);
  sh_jw_kstr(w, "behavior", "Isolated");
  sh_jw_kbool(w, "invert", false);
  sh_jw_end_obj(w);
  put_byte_level(w);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

static void put_tokenizer(sh_jw *w, const sh_synth_shape *s) {
  static const char *const NONE[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
  static const char *const OFF[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
  sh_jw_obj(w);
  sh_jw_kstr(w, "version", "1.0");
  sh_jw_knull(w, "truncation");
  sh_jw_knull(w, "padding");
  put_added(w, s);
  sh_jw_key(w, "normalizer");
  sh_jw_obj(w);
  sh_jw_kstr(w, "type", "NFC");
  sh_jw_end_obj(w);
  put_pretokenizer(w);
  sh_jw_knull(w, "post_processor");
  sh_jw_key(w, "decoder");
  put_byte_level(w);
  sh_jw_key(w, "model");
  sh_jw_obj(w);
  sh_jw_kstr(w, "type", "BPE");
  for (int i = 0; i < 4; i++) sh_jw_knull(w, NONE[i]);
  for (int i = 0; i < 3; i++) sh_jw_kbool(w, OFF[i], false);
  put_vocab(w, s);
  sh_jw_key(w, "merges");
  sh_jw_arr(w);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
  sh_jw_end_obj(w);
}

static void put_config(sh_jw *w, const sh_synth_shape *s) {
  char id[16];
  sh_jw_obj(w);
  sh_jw_kbool(w, "add_prefix_space", false);
  sh_jw_key(w, "added_tokens_decoder");
  sh_jw_obj(w);
  for (int i = 0; i < SH_SYNTH_SPECIALS; i++) {
    snprintf(id, sizeof id, "%d", s->n_tokens + i);
    sh_jw_key(w, id);
    sh_jw_obj(w);
    sh_jw_kstr(w, "content", ADDED[i].content);
    put_flags(w, ADDED[i].special);
    sh_jw_end_obj(w);
  }
  sh_jw_end_obj(w);
  sh_jw_knull(w, "bos_token");
  sh_jw_kbool(w, "clean_up_tokenization_spaces", false);
  sh_jw_kstr(w, "eos_token", "<|im_end|>");
  sh_jw_kint(w, "model_max_length", 262144);
  sh_jw_kstr(w, "pad_token", "<|endoftext|>");
  sh_jw_kstr(w, "tokenizer_class", "Qwen2Tokenizer");
  sh_jw_end_obj(w);
}

static void put_generation(sh_jw *w, const sh_synth_tok *t) {
  sh_jw_obj(w);
  sh_jw_kbool(w, "do_sample", true);
  sh_jw_key(w, "eos_token_id");
  sh_jw_arr(w);
  sh_jw_int(w, t->im_end);
  sh_jw_int(w, t->endoftext);
  sh_jw_end_arr(w);
  sh_jw_kint(w, "pad_token_id", t->endoftext);
  sh_jw_kdouble(w, "temperature", 1.0);
  sh_jw_kint(w, "top_k", 20);
  sh_jw_kdouble(w, "top_p", 0.95);
  sh_jw_end_obj(w);
}

/* --- Files */

static void give(sh_synth_tok *t, const char *name, const char *text, size_t len) {
  if (t->n_files < SH_SYNTH_FILES) t->files[t->n_files++] = (sh_qfile){name, text, len};
}

static bool has_file(const sh_synth_tok *t, const char *name) {
  for (int i = 0; i < t->n_files; i++) {
    if (strcmp(t->files[i].name, name) == 0) return true;
  }
  return false;
}

/* The text that a writer left in b, owned by the caller; b is freed. */
static int take(sh_buf *b, char **out, size_t *len, sh_error *e) {
  *len = b->len;
  *out = b->failed ? NULL : sh_buf_detach(b);
  sh_buf_free(b);
  return *out ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for the tokenizer");
}

static int make_up(sh_synth_tok *t, const sh_synth_shape *s, sh_error *e) {
  sh_buf b;
  sh_jw w;
  size_t json_len = 0, len = 0;
  sh_buf_init(&b, MAX_JSON);
  sh_jw_init(&w, &b);
  put_tokenizer(&w, s);
  int rc = take(&b, &t->private_json, &json_len, e);
  sh_jw_init(&w, &b);
  put_config(&w, s);
  if (!rc) rc = take(&b, &t->private_config, &len, e);
  else sh_buf_free(&b);
  if (rc) return rc;
  give(t, "tokenizer.json", t->private_json, json_len);
  give(t, "tokenizer_config.json", t->private_config, len);
  give(t, "chat_template.jinja", TEMPLATE, sizeof TEMPLATE - 1);
  t->chat_template = TEMPLATE;
  t->template_len = sizeof TEMPLATE - 1;
  return sh_tok_open_json(&t->private_tok, t->private_json, json_len, NULL, e);
}

/* Copies what a tokenizer may consist of. */
static int take_over(sh_synth_tok *t, const char *dir, sh_error *e) {
  static const char *const NAMES[] = {"tokenizer.json",          "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
                                      "special_tokens_map.json", "added_tokens.json",     "vocab.json",          "merges.txt",
                                      "generation_config.json"};
  int rc = sh_ckpt_open(&t->private_dir, dir, SH_CKPT_TOKENIZER_ONLY, e);
  if (!rc && sh_ckpt_is_gguf(t->private_dir))
    rc = sh_fail(e, SH_ERR_UNSUPPORTED, "%s is a GGUF; a folder with tokenizer.json is wanted", dir);
  if (!rc) rc = sh_tok_open(&t->private_tok, t->private_dir, e);
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !rc; i++) {
    char *path = sh_path_join(dir, NAMES[i]);
    size_t len = 0;
    int n = t->n_files;
    if (!path) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    else if (sh_file_exists(path)) {
      rc = sh_file_read_regular(path, MAX_JSON, &t->private_text[n], &len, e);
      if (!rc) give(t, NAMES[i], t->private_text[n], len);
    }
    sh_free(path);
  }
  if (!rc) t->chat_template = sh_ckpt_chat_template(t->private_dir, &t->template_len);
  return rc;
}

static int find_ends(sh_synth_tok *t, const sh_synth_shape *s, const char *dir, sh_error *e) {
  t->endoftext = sh_tok_find(t->private_tok, "<|endoftext|>");
  t->im_end = sh_tok_find(t->private_tok, "<|im_end|>");
  if (t->endoftext < 0 || t->im_end < 0)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "the tokenizer in %s has no %s; one of the Qwen family is wanted", dir ? dir : "the program",
                   t->im_end < 0 ? "<|im_end|>" : "<|endoftext|>");
  if (sh_tok_vocab_size(t->private_tok) > s->vocab)
    return sh_fail(e, SH_ERR_ARG, "the tokenizer in %s has %d ids, and the shape %s has %d", dir ? dir : "the program",
                   sh_tok_vocab_size(t->private_tok), s->name, s->vocab);
  return 0;
}

int sh_synth_tok_make(sh_synth_tok *t, const sh_synth_shape *s, const char *dir, sh_error *e) {
  sh_buf b;
  sh_jw w;
  size_t len = 0;
  *t = (sh_synth_tok){0};
  int rc = dir ? take_over(t, dir, e) : make_up(t, s, e);
  if (!rc) rc = find_ends(t, s, dir, e);
  if (!rc && !has_file(t, "generation_config.json")) {
    sh_buf_init(&b, 1 << 16);
    sh_jw_init(&w, &b);
    put_generation(&w, t);
    rc = take(&b, &t->private_generation, &len, e);
    if (!rc) give(t, "generation_config.json", t->private_generation, len);
  }
  if (rc) sh_synth_tok_free(t);
  return rc;
}

void sh_synth_tok_free(sh_synth_tok *t) {
  sh_tok_free(t->private_tok);
  sh_ckpt_close(t->private_dir);
  sh_free(t->private_json);
  sh_free(t->private_config);
  sh_free(t->private_generation);
  for (int i = 0; i < SH_SYNTH_FILES; i++) sh_free(t->private_text[i]);
  *t = (sh_synth_tok){0};
}

/* --- GGUF */

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 }; /* tokenizer.ggml.token_type */

static int type_of(const sh_tok *t, int32_t id) {
  if (!sh_tok_piece(t, id)) return UNUSED;
  if (!sh_tok_is_added(t, id)) return NORMAL;
  return sh_tok_is_special(t, id) ? CONTROL : USER_DEFINED;
}

static void put_tokens(const sh_tok *t, int n, sh_gguf_out *g) {
  char pad[32];
  sh_gguf_put_strs(g, "tokenizer.ggml.tokens", (uint64_t)n);
  for (int32_t id = 0; id < n; id++) {
    const char *piece = sh_tok_piece(t, id);
    snprintf(pad, sizeof pad, "[PAD%d]", id);
    if (!piece) piece = pad;
    sh_gguf_item_str(g, piece, strlen(piece));
  }
  sh_gguf_put_i32s(g, "tokenizer.ggml.token_type", (uint64_t)n);
  for (int32_t id = 0; id < n; id++) sh_gguf_item_i32(g, type_of(t, id));
}

/* An item of tokenizer.json's merges: "a b" or ["a", "b"]. */
static int put_merge(const sh_json *v, sh_gguf_out *g, sh_buf *b) {
  sh_buf_reset(b);
  if (sh_json_is(v, SH_JSON_STRING)) sh_buf_put(b, v->s, v->len);
  else if (sh_json_is(v, SH_JSON_ARRAY) && v->len == 2 && sh_json_is(&v->items[0], SH_JSON_STRING) &&
           sh_json_is(&v->items[1], SH_JSON_STRING))
    sh_buf_printf(b, "%s %s", v->items[0].s, v->items[1].s);
  else return SH_ERR_FORMAT;
  if (b->failed) return b->failed;
  sh_gguf_item_str(g, b->p, b->len);
  return 0;
}

static int put_merges(const sh_json *root, sh_gguf_out *g, sh_error *e) {
  const sh_json *merges = sh_json_path(root, "model.merges");
  sh_buf b;
  size_t n = sh_json_is(merges, SH_JSON_ARRAY) ? merges->len : 0;
  int rc = 0;
  sh_buf_init(&b, 1 << 20);
  sh_gguf_put_strs(g, "tokenizer.ggml.merges", n);
  for (size_t i = 0; i < n && !rc; i++) rc = put_merge(&merges->items[i], g, &b);
  sh_buf_free(&b);
  return rc ? sh_fail(e, rc, "a merge of tokenizer.json is not two tokens") : 0;
}

/* Whether the text is split as GGUF's qwen35 says: the only name that is written. */
static bool is_qwen35(const sh_json *root) {
  const sh_json *list = sh_json_path(root, "pre_tokenizer.pretokenizers");
  return sh_json_is(list, SH_JSON_ARRAY) && list->len == 2 && sh_json_eq_str(sh_json_path(&list->items[0], "pattern.Regex"), SPLIT);
}

int sh_synth_tok_put(const sh_synth_tok *t, const sh_synth_shape *s, sh_gguf_out *g, sh_error *e) {
  sh_json *root = NULL;
  sh_arena *a = sh_arena_new(MAX_TREE);
  int rc = a ? sh_json_parse(t->files[0].text, t->files[0].len, NULL, a, &root, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!rc && !is_qwen35(root))
    rc = sh_fail(e, SH_ERR_UNSUPPORTED,
                 "the tokenizer splits text otherwise than Qwen3.5's, and a GGUF would have to name how; take another format or tokenizer");
  if (!rc) {
    sh_gguf_put_str(g, "tokenizer.ggml.model", "gpt2", 4);
    sh_gguf_put_str(g, "tokenizer.ggml.pre", "qwen35", 6);
    put_tokens(t->private_tok, s->vocab, g);
    rc = put_merges(root, g, e);
  }
  sh_arena_free(a);
  if (rc) return rc;
  sh_gguf_put_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t)t->im_end);
  sh_gguf_put_u32(g, "tokenizer.ggml.padding_token_id", (uint32_t)t->endoftext);
  sh_gguf_put_bool(g, "tokenizer.ggml.add_bos_token", false);
  if (t->chat_template) sh_gguf_put_str(g, "tokenizer.chat_template", t->chat_template, t->template_len);
  return 0;
}
