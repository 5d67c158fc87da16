/* The tokenizer's, the template's and the generation config's part of an inspection. Main thread.
 *
 * What can be asked of the product is asked of it (does a text come back, does a conversation render, is a thought left open), because a
 * file's own words about itself are often wrong. Only the names of the tokenizer's parts are read from the file. */
#include "ops/inspect_parts.h"

#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "engine/genconf.h"

/* --- Tokenizer */

/* "Split + ByteLevel" of a component, or of the list of a Sequence. */
static const char *component(sh_insp *p, const sh_json *v, const char *list) {
  const sh_json *type = sh_json_get(v, "type"), *items = sh_json_get(v, list);
  if (!sh_json_is(type, SH_JSON_STRING)) return "none";
  if (!sh_json_is(items, SH_JSON_ARRAY)) return sh_insp_clean(p, type->s);
  const char *out = "";
  for (size_t i = 0; i < items->len && i < 8; i++) {
    const sh_json *t = sh_json_get(&items->items[i], "type");
    const char *more = sh_arena_printf(p->a, "%s%s%.40s", out, i ? " + " : "", sh_json_is(t, SH_JSON_STRING) ? t->s : "?");
    if (more) out = more;
  }
  return sh_insp_clean(p, out);
}

static void name_parts_of_json(sh_insp *p) {
  size_t len;
  const char *text = sh_ckpt_tokenizer_json(p->ck, &len);
  sh_json *root = NULL;
  sh_arena *a = text ? sh_arena_new((size_t)1 << 30) : NULL; /* the tree is many times the file, and only these words stay */
  p->tk.source = "tokenizer.json";
  if (a && !sh_json_parse(text, len, NULL, a, &root, NULL)) {
    const sh_json *type = sh_json_path(root, "model.type");
    if (sh_json_is(type, SH_JSON_STRING)) p->tk.model = sh_insp_clean(p, type->s);
    p->tk.normalizer = component(p, sh_json_get(root, "normalizer"), "normalizers");
    p->tk.pretokenizer = component(p, sh_json_get(root, "pre_tokenizer"), "pretokenizers");
  }
  sh_arena_free(a);
}

static void name_parts_of_gguf(sh_insp *p) {
  const sh_gguf *g = sh_ckpt_gguf(p->ck);
  const char *s;
  size_t n;
  p->tk.source = "GGUF";
  p->tk.normalizer = "none";
  if (!sh_gguf_str(g, "tokenizer.ggml.pre", &s, &n)) p->tk.pretokenizer = sh_insp_clean(p, sh_arena_strdup(p->a, s, n < 80 ? n : 80));
}

/* Text to ids and back. */
static void probe_tokenizer(sh_insp *p) {
  static const char TEXT[] = "Hello, w\xc3\xb6rld!\n  two 123 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82";
  sh_ids ids = {.max = 1000}, empty = {.max = 1000};
  sh_buf back;
  sh_error e = {0};
  sh_buf_init(&back, 1 << 16);
  int rc = sh_tok_encode(p->tok, TEXT, sizeof TEXT - 1, 0, &ids, &e);
  if (!rc) rc = sh_tok_decode(p->tok, ids.v, ids.n, false, &back, &e);
  p->tk.round_trip = !rc && back.len == sizeof TEXT - 1 && !memcmp(back.p, TEXT, back.len);
  if (rc) sh_insp_issue_add(p, false, "tokenizer", "a probe text cannot be tokenized: %s", e.text);
  else if (!p->tk.round_trip) sh_insp_issue_add(p, false, "tokenizer", "a probe text does not come back as it was");
  p->tk.adds_special = !sh_tok_encode(p->tok, "", 0, SH_TOK_ADD_SPECIAL, &empty, NULL) && empty.n > 0;
  sh_ids_free(&ids);
  sh_ids_free(&empty);
  sh_buf_free(&back);
}

void sh_insp_tokenizer_read(sh_insp *p) {
  sh_error e = {0};
  sh_insp_tokenizer *t = &p->tk;
  t->model = "BPE";
  t->normalizer = t->pretokenizer = "unknown";
  if (sh_ckpt_is_gguf(p->ck)) name_parts_of_gguf(p);
  else name_parts_of_json(p);
  if (sh_tok_open(&p->tok, p->ck, &e)) {
    sh_insp_issue_add(p, true, "tokenizer", "%s", e.text);
    return;
  }
  p->has_tok = true;
  t->vocab = sh_tok_vocab_size(p->tok);
  t->bos = sh_tok_bos(p->tok);
  t->eos = sh_tok_eos(p->tok);
  for (int32_t id = 0; id < t->vocab; id++) {
    t->n_added += sh_tok_is_added(p->tok, id);
    t->n_special += sh_tok_is_special(p->tok, id);
  }
  probe_tokenizer(p);
  if (p->has_config && t->vocab > p->cfg.vocab_size)
    sh_insp_issue_add(p, false, "tokenizer", "it knows %d ids, the model %d: the last %d cannot be used", t->vocab, p->cfg.vocab_size,
                      t->vocab - p->cfg.vocab_size);
}

/* --- Template */

#define USER "{\"role\":\"user\",\"content\":\"Hello\"}"
#define CHAT "[{\"role\":\"system\",\"content\":\"Be brief.\"}," USER ",{\"role\":\"assistant\",\"content\":\"Hi.\"}," USER "]"

static const char *piece_or_empty(const sh_insp *p, int32_t id) {
  const char *s = p->has_tok && id >= 0 ? sh_tok_piece(p->tok, id) : NULL;
  return s ? s : "";
}

static int render(sh_insp *p, const char *messages, const char *kwargs, sh_buf *out, sh_error *e) {
  sh_arena *a = sh_arena_new(16 << 20);
  sh_json *m = NULL, *k = NULL;
  sh_buf_init(out, 4 << 20);
  int rc = a ? sh_json_parse(messages, strlen(messages), NULL, a, &m, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!rc) rc = sh_json_parse(kwargs, strlen(kwargs), NULL, a, &k, e);
  const sh_chat_input in = {.messages = m,
                            .kwargs = k,
                            .add_generation_prompt = true,
                            .bos_token = piece_or_empty(p, p->tk.bos),
                            .eos_token = piece_or_empty(p, p->tk.eos)};
  if (!rc) rc = sh_chat_render(p->chat, &in, a, out, e);
  sh_arena_free(a);
  return rc;
}

static bool same(const sh_buf *a, const sh_buf *b) { return a->len == b->len && (!a->len || !memcmp(a->p, b->p, a->len)); }

/* The text ends inside a thought. */
static bool open_thought(const sh_buf *b) {
  const char *last = NULL;
  for (const char *s = b->len ? strstr(b->p, "<think>") : NULL; s; s = strstr(s + 1, "<think>")) last = s;
  return last && !strstr(last, "</think>");
}

static void probe_thinking(sh_insp *p) {
  sh_buf plain, yes, no;
  sh_error e = {0};
  bool ok = !render(p, "[" USER "]", "{}", &plain, &e);
  bool on = !render(p, "[" USER "]", "{\"enable_thinking\":true}", &yes, &e);
  bool off = !render(p, "[" USER "]", "{\"enable_thinking\":false}", &no, &e);
  p->tp.has_switch = on && off && !same(&yes, &no);
  p->tp.thinks = ok && (open_thought(&plain) || (p->tp.has_switch && same(&plain, &yes)));
  sh_buf_free(&plain);
  sh_buf_free(&yes);
  sh_buf_free(&no);
}

void sh_insp_template_read(sh_insp *p) {
  sh_insp_template *t = &p->tp;
  sh_error e = {0};
  sh_buf out;
  const char *text = sh_ckpt_chat_template(p->ck, &t->bytes);
  if (!text) {
    sh_insp_issue_add(p, false, "template",
                      "there is none: chat requests will be refused, completions work (serve --chat-template FILE gives one)");
    return;
  }
  t->source = sh_ckpt_template_source(p->ck);
  if (sh_chat_open(&p->chat, text, t->bytes, &e)) {
    sh_insp_issue_add(p, false, "template", "%s; chat requests will be refused, completions work", e.text);
    return;
  }
  t->compiles = true;
  t->takes_parts = sh_chat_takes_parts(p->chat);
  if (render(p, CHAT, "{}", &out, &e)) {
    t->renders_error = sh_insp_clean(p, e.text);
    sh_insp_issue_add(p, false, "template", "a conversation of system, user, assistant, user does not render: %s", e.text);
  }
  sh_buf_free(&out);
  probe_thinking(p);
}

/* --- Generation config */

void sh_insp_generation_read(sh_insp *p) {
  sh_error e = {0};
  if (sh_genconf_load(p->ck, p->a, &p->gen, &e)) sh_insp_issue_add(p, true, "generation_config.json", "%s", e.text);
  if (!p->has_tok || !p->has_config) return;
  int vocab = p->tk.vocab < p->cfg.vocab_size ? p->tk.vocab : p->cfg.vocab_size;
  p->n_stops = sh_genconf_end_ids(p->ck, &p->cfg, p->tok, p->gen, vocab, p->stops, SH_INSP_STOPS);
  for (int i = 0; i < p->n_stops; i++)
    if (!sh_tok_is_added(p->tok, p->stops[i]))
      sh_insp_issue_add(p, false, "generation", "end token %d is ordinary text (%.40s): every answer stops where it stands", p->stops[i],
                        sh_tok_piece(p->tok, p->stops[i]) ? sh_tok_piece(p->tok, p->stops[i]) : "no token");
  if (!p->n_stops) sh_insp_issue_add(p, false, "generation", "no end token is known: answers end only at max_tokens");
}
