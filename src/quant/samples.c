/* Texts to token ids. One thread.
 *
 * The lines are found first (their places, not their contents), put in order by the seed, and then read one after the other until there
 * are samples enough, so that a large file costs what is used of it. A line has an arena of its own. Refused: guessing what a line means
 * that has neither "text" nor "messages"; data sets spell it in twenty ways, and a wrong guess measures noise without a word. */
#include "quant/samples.h"

#include "base/file.h"
#include "base/text.h"
#include <string.h>

typedef struct place {
  const char *s;
  size_t n;
  int line; /* from 1 */
} place;

typedef struct loader {
  sh_samples *out;
  const char *path; /* NULL: a text of the program */
  const sh_tok *tok;
  const sh_chat *chat;
  int max_samples, seq_len;
  sh_samples_how how;
  place *places; /* [n_places] */
  size_t n_places, cap_places;
  sh_ids rest; /* SH_SAMPLES_PACK: joined, not a window yet */
  int rest_line;
  sh_error *e;
} loader;

static const char *name_of(const loader *l) { return l->path ? l->path : "the text in the program"; }
static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory while a text is read"); }

/* ---- Samples ---- */

int sh_samples_add(sh_samples *s, const int32_t *ids, size_t n, int line, sh_error *e) {
  if (s->n == s->private_cap) {
    int cap = s->private_cap ? s->private_cap * 2 : 64;
    int32_t **v = sh_realloc(s->ids, (size_t)cap * sizeof *v);
    if (v) s->ids = v;
    int *len = sh_realloc(s->len, (size_t)cap * sizeof *len);
    if (len) s->len = len;
    int *lines = sh_realloc(s->line, (size_t)cap * sizeof *lines);
    if (lines) s->line = lines;
    if (!v || !len || !lines) return no_memory(e);
    s->private_cap = cap;
  }
  int32_t *copy = sh_malloc(n * sizeof *copy);
  if (!copy) return no_memory(e);
  memcpy(copy, ids, n * sizeof *copy);
  s->ids[s->n] = copy;
  s->len[s->n] = (int)n;
  s->line[s->n++] = line;
  s->tokens += (int64_t)n;
  return 0;
}

static bool enough(const loader *l) { return l->max_samples > 0 && l->out->n >= l->max_samples; }

static int add_windows(loader *l, const sh_ids *ids, int line) {
  for (size_t at = 0; at < ids->n && !enough(l);) {
    size_t n = ids->n - at < (size_t)l->seq_len ? ids->n - at : (size_t)l->seq_len;
    int rc = sh_samples_add(l->out, ids->v + at, n, line, l->e);
    if (rc < 0) return rc;
    at += n;
  }
  return 0;
}

static int add_packed(loader *l, const sh_ids *ids, int line) {
  for (size_t i = 0; i < ids->n && !enough(l); i++) {
    if (l->rest.n == 0) l->rest_line = line;
    if (sh_ids_push(&l->rest, ids->v[i]) < 0) return no_memory(l->e);
    if (l->rest.n < (size_t)l->seq_len) continue;
    int rc = sh_samples_add(l->out, l->rest.v, l->rest.n, l->rest_line, l->e);
    if (rc < 0) return rc;
    l->rest.n = 0;
  }
  return 0;
}

static int add_ids(loader *l, const sh_ids *ids, int line, bool whole_text) {
  if (l->how == SH_SAMPLES_PACK) return add_packed(l, ids, line);
  if (l->how == SH_SAMPLES_WINDOWS || whole_text) return add_windows(l, ids, line);
  size_t n = ids->n < (size_t)l->seq_len ? ids->n : (size_t)l->seq_len;
  return n ? sh_samples_add(l->out, ids->v, n, line, l->e) : 0;
}

/* ---- One line ---- */

static const char *special_piece(const sh_tok *t, int32_t id) {
  const char *piece = id >= 0 ? sh_tok_piece(t, id) : NULL;
  return piece ? piece : "";
}

static int render(const sh_json *line, const sh_json *messages, bool generation_prompt, const sh_tok *tok, const sh_chat *chat, sh_arena *a,
                  sh_buf *text, sh_error *e) {
  const sh_json *tools = sh_json_get(line, "tools"), *thinking = sh_json_get(line, "enable_thinking");
  if (!sh_json_is(messages, SH_JSON_ARRAY) || messages->len == 0)
    return sh_fail(e, SH_ERR_FORMAT, "\"messages\" is %s, wanted a list of at least one message",
                   sh_json_is(messages, SH_JSON_ARRAY) ? "an empty list" : sh_json_type_phrase(messages->type));
  if (sh_json_is(tools, SH_JSON_NULL)) tools = NULL;
  if (tools && !sh_json_is(tools, SH_JSON_ARRAY))
    return sh_fail(e, SH_ERR_FORMAT, "\"tools\" is %s, wanted a list of tools", sh_json_type_phrase(tools->type));
  if (thinking && !sh_json_is(thinking, SH_JSON_BOOL))
    return sh_fail(e, SH_ERR_FORMAT, "\"enable_thinking\" is %s, wanted true or false", sh_json_type_phrase(thinking->type));
  if (!chat) return sh_fail(e, SH_ERR_UNSUPPORTED, "it has \"messages\", and the model has no chat template; use lines of {\"text\"}");
  sh_json *vars = sh_json_new_object(a);
  if (!vars || (thinking && sh_json_set(a, vars, "enable_thinking", thinking) < 0)) return no_memory(e);
  const sh_chat_input in = {.messages = messages,
                            .tools = tools,
                            .kwargs = vars,
                            .add_generation_prompt = generation_prompt,
                            .bos_token = special_piece(tok, sh_tok_bos(tok)),
                            .eos_token = special_piece(tok, sh_tok_eos(tok))};
  return sh_chat_render(chat, &in, a, text, e);
}

int sh_samples_encode(const sh_json *line, bool generation_prompt, const sh_tok *tok, const sh_chat *chat, sh_arena *a, sh_ids *ids,
                      sh_error *e) {
  if (!sh_json_is(line, SH_JSON_OBJECT))
    return sh_fail(e, SH_ERR_FORMAT, "it is %s, wanted an object with \"text\" or \"messages\"", sh_json_type_phrase(line->type));
  const char *key = generation_prompt ? "prompt" : "text";
  const sh_json *text = sh_json_get(line, key), *messages = sh_json_get(line, "messages");
  if (!text == !messages)
    return sh_fail(e, SH_ERR_FORMAT, "it has %s \"%s\" %s \"messages\", wanted one of them%s%.60s%s", text ? "both" : "neither", key,
                   text ? "and" : "nor", !text && line->len ? "; its first key is \"" : "", !text && line->len ? line->members[0].key : "",
                   !text && line->len ? "\"" : "");
  if (text && !sh_json_is(text, SH_JSON_STRING))
    return sh_fail(e, SH_ERR_FORMAT, "\"%s\" is %s, wanted a string", key, sh_json_type_phrase(text->type));
  if (text) return sh_tok_encode(tok, text->s, text->len, SH_TOK_ADD_SPECIAL, ids, e);
  sh_buf rendered;
  sh_buf_init(&rendered, SH_SAMPLES_MAX_PROMPT);
  int rc = render(line, messages, generation_prompt, tok, chat, a, &rendered, e);
  if (rc == 0) rc = sh_tok_encode(tok, rendered.p ? rendered.p : "", rendered.len, 0, ids, e); /* the template writes BOS itself */
  sh_buf_free(&rendered);
  return rc;
}

static int read_line(loader *l, const place *p) {
  sh_json *v;
  sh_ids ids = {0};
  sh_arena *a = sh_arena_new((64u << 20) + p->n * 64);
  if (!a) return no_memory(l->e);
  int rc = sh_json_parse(p->s, p->n, NULL, a, &v, l->e);
  bool may_skip = rc == 0 && !l->path && sh_json_get(v, "messages"); /* the user did not choose it, and some templates raise on tools */
  if (rc == 0) rc = sh_samples_encode(v, false, l->tok, l->chat, a, &ids, l->e);
  if (rc < 0 && rc != SH_ERR_NOMEM && may_skip) {
    l->out->skipped++;
    rc = 0;
    goto done;
  }
  if (rc < 0) sh_fail_in(l->e, rc, "%s line %d", name_of(l), p->line);
  else rc = add_ids(l, &ids, p->line, false);
done:
  sh_ids_free(&ids);
  sh_arena_free(a);
  return rc;
}

/* ---- The text ---- */

static bool blank(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r' && s[i] != '\n') return false;
  return true;
}

static int find_lines(loader *l, const char *s, size_t n) {
  int line = 0;
  for (const char *end = s + n; s < end;) {
    const char *stop = memchr(s, '\n', (size_t)(end - s));
    if (!stop) stop = end;
    line++;
    if (!blank(s, (size_t)(stop - s))) {
      if (l->n_places == l->cap_places) {
        size_t cap = l->cap_places ? l->cap_places * 2 : 256;
        place *v = sh_realloc(l->places, cap * sizeof *v);
        if (!v) return no_memory(l->e);
        l->places = v;
        l->cap_places = cap;
      }
      l->places[l->n_places++] = (place){s, (size_t)(stop - s), line};
    }
    s = stop < end ? stop + 1 : end;
  }
  return 0;
}

/* splitmix64: the same order on every machine. */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static void shuffle(place *v, size_t n, uint64_t seed) {
  for (size_t i = n; i > 1; i--) {
    size_t k = (size_t)(next_random(&seed) % i);
    place t = v[i - 1];
    v[i - 1] = v[k];
    v[k] = t;
  }
}

static bool is_jsonl(const char *path, const char *s, size_t n) {
  if (!path || sh_str_ends(path, ".jsonl") || sh_str_ends(path, ".ndjson") || sh_str_ends(path, ".json")) return true;
  while (n && blank(s, 1)) s++, n--;
  if (!n || *s != '{') return false;
  const char *stop = memchr(s, '\n', n);
  sh_json *v;
  size_t len = stop ? (size_t)(stop - s) : n;
  sh_arena *a = sh_arena_new((64u << 20) + len * 64);
  bool yes = a && sh_json_parse(s, len, NULL, a, &v, NULL) == 0 && sh_json_is(v, SH_JSON_OBJECT);
  sh_arena_free(a);
  return yes;
}

static int read_lines(loader *l, const char *s, size_t n, uint64_t seed) {
  int rc = find_lines(l, s, n);
  if (rc == 0 && seed) shuffle(l->places, l->n_places, seed);
  for (size_t i = 0; rc == 0 && i < l->n_places && !enough(l); i++) rc = read_line(l, &l->places[i]);
  return rc;
}

static int read_plain(loader *l, const char *s, size_t n) {
  sh_ids ids = {0};
  if (!sh_utf8_valid(s, n)) return sh_fail(l->e, SH_ERR_FORMAT, "%s is not text in UTF-8", name_of(l));
  int rc = blank(s, n) ? 0 : sh_tok_encode(l->tok, s, n, SH_TOK_ADD_SPECIAL, &ids, l->e);
  if (rc == 0) rc = add_ids(l, &ids, 1, true);
  sh_ids_free(&ids);
  return rc;
}

int sh_samples_load(sh_samples *out, const char *path, const char *text, size_t len, const sh_tok *tok, const sh_chat *chat,
                    int max_samples, int seq_len, sh_samples_how how, uint64_t seed, sh_error *e) {
  loader l = {.out = out, .path = path, .tok = tok, .chat = chat, .max_samples = max_samples, .seq_len = seq_len, .how = how, .e = e};
  char *own = NULL;
  *out = (sh_samples){0};
  int rc = path ? sh_file_read(path, SH_SAMPLES_MAX_FILE, &own, &len, e) : 0;
  if (rc < 0) return rc;
  if (path) text = own;
  if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3, len -= 3;
  rc = is_jsonl(path, text, len) ? read_lines(&l, text, len, seed) : read_plain(&l, text, len);
  if (rc == 0 && out->n == 0 && l.rest.n) rc = sh_samples_add(out, l.rest.v, l.rest.n, l.rest_line, e);
  if (rc == 0 && out->n == 0)
    rc = sh_fail(e, SH_ERR_ARG, "%s holds no text%s", name_of(&l),
                 out->skipped ? " but dialogues, and the model has no chat template that takes them; give a text of your own" : "");
  sh_ids_free(&l.rest);
  sh_free(l.places);
  sh_free(own);
  return rc;
}

void sh_samples_free(sh_samples *s) {
  for (int i = 0; i < s->n; i++) sh_free(s->ids[i]);
  sh_free(s->ids);
  sh_free(s->len);
  sh_free(s->line);
  *s = (sh_samples){0};
}
