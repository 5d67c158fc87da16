/* Requests made of common words, or taken from a file. Any thread.
 *
 * The client has no tokenizer: the server may be any, and its model too. Two probes of different lengths tell how many tokens a word of
 * this list costs and how many the template adds; single prompts are then off by some percent, and what is reported are the counts that the
 * server sends with every answer. Words are drawn anew for every request, so that only what is meant to be shared can be found in a prefix
 * cache. */
#include "bench/serve_prompt.h"

#include "base/file.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 512 << 20, STREAM_LENGTH = 1, STREAM_TEXT = 2, STREAM_SHARED = 3, STREAM_PROBE = 4, DEFAULT_MAX_TOKENS = 128 };

static const char *const WORDS[] = {
    "time",     "year",     "people", "way",     "day",     "man",    "thing",   "woman", "life",   "child",    "world",   "school",
    "state",    "family",   "group",  "country", "hand",    "part",   "place",   "case",  "week",   "company",  "system",  "program",
    "question", "work",     "number", "night",   "point",   "home",   "water",   "room",  "mother", "area",     "money",   "story",
    "fact",     "month",    "lot",    "right",   "study",   "book",   "eye",     "job",   "word",   "business", "issue",   "side",
    "kind",     "head",     "house",  "service", "friend",  "father", "power",   "hour",  "game",   "line",     "end",     "member",
    "law",      "car",      "city",   "name",    "team",    "minute", "idea",    "body",  "back",   "parent",   "face",    "level",
    "office",   "door",     "health", "person",  "art",     "war",    "history", "party", "result", "change",   "morning", "reason",
    "research", "girl",     "moment", "air",     "teacher", "force",  "order",   "paper", "space",  "ground",   "form",    "event",
    "matter",   "center",   "couple", "site",    "project", "base",   "star",    "table", "court",  "type",     "field",   "step",
    "map",      "plan",     "street", "picture", "good",    "new",    "first",   "last",  "long",   "great",    "little",  "own",
    "other",    "old",      "big",    "high",    "small",   "large",  "next",    "early", "young",  "few",      "public",  "same",
    "able",     "open",     "white",  "free",    "full",    "clear",  "simple",  "whole", "red",    "blue",     "green",   "black",
    "strong",   "short",    "low",    "late",    "hard",    "major",  "better",  "local", "real",   "best",     "make",    "know",
    "take",     "see",      "come",   "think",   "look",    "want",   "give",    "use",   "find",   "tell",     "ask",     "seem",
    "feel",     "try",      "leave",  "call",    "need",    "keep",   "let",     "begin", "help",   "show",     "hear",    "play",
    "run",      "move",     "live",   "bring",   "happen",  "write",  "sit",     "stand", "lose",   "pay",      "meet",    "learn",
    "lead",     "watch",    "follow", "stop",    "speak",   "read",   "spend",   "grow",  "walk",   "win",      "teach",   "offer",
    "remember", "consider", "appear", "buy",     "serve",   "send"};
enum { N_WORDS = sizeof WORDS / sizeof *WORDS };

/* ---- Files ---- */

static int line_fail(sh_error *e, const char *path, size_t line, const char *what) {
  return sh_fail(e, SH_ERR_FORMAT, "%s, line %zu: %s", path, line, what);
}

static int check_line(const sh_json *v, const char *path, size_t line, bool prompts, bool lengths, bool chat, sh_error *e) {
  int64_t n;
  if (!sh_json_is(v, SH_JSON_OBJECT)) return line_fail(e, path, line, "a JSON object is wanted");
  const sh_json *messages = sh_json_get(v, "messages"), *prompt = sh_json_get(v, "prompt"), *max = sh_json_get(v, "max_tokens");
  if (prompts && messages && !chat) return line_fail(e, path, line, "\"messages\" go to --endpoint chat, not to completions");
  if (prompts && messages && (!sh_json_is(messages, SH_JSON_ARRAY) || messages->len == 0))
    return line_fail(e, path, line, "\"messages\" is no list of messages");
  if (prompts && !messages && !(sh_json_is(prompt, SH_JSON_STRING) && prompt->len > 0))
    return line_fail(e, path, line, "neither \"messages\" nor a \"prompt\" that is a string");
  if (max && (sh_json_int(max, &n) < 0 || n < 1 || n > SH_BLEN_MAX))
    return line_fail(e, path, line, "\"max_tokens\" is no number of tokens");
  if (lengths && !max) return line_fail(e, path, line, "no \"max_tokens\", which --output-len file: takes the lengths of answers from");
  return 0;
}

int sh_bfile_load(sh_bfile *f, const char *path, bool want_prompts, bool want_lengths, bool chat, sh_error *e) {
  char *text = NULL;
  size_t n = 0, line = 0;
  *f = (sh_bfile){0};
  int rc = sh_file_read(path, MAX_FILE, &text, &n, e);
  if (rc < 0) return rc;
  f->private_arena = sh_arena_new((size_t)4 << 30);
  sh_json *all = f->private_arena ? sh_json_new_array(f->private_arena) : NULL;
  if (!all) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (const char *s = text, *end = text + n; rc == 0 && s < end;) {
    const char *nl = memchr(s, '\n', (size_t)(end - s)), *stop = nl ? nl : end;
    sh_json *v = NULL;
    line++;
    if (strspn(s, " \t\r") < (size_t)(stop - s)) {
      rc = sh_json_parse(s, (size_t)(stop - s), NULL, f->private_arena, &v, e);
      if (rc < 0) sh_fail_in(e, rc, "%s, line %zu", path, line);
      if (rc == 0) rc = check_line(v, path, line, want_prompts, want_lengths, chat, e);
      if (rc == 0 && sh_json_push(f->private_arena, all, v) < 0) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    }
    s = stop + 1;
  }
  if (rc == 0 && all->len == 0) rc = sh_fail(e, SH_ERR_FORMAT, "%s has no lines", path);
  sh_free(text);
  if (rc < 0) {
    sh_bfile_free(f);
    return rc;
  }
  f->v = all->items;
  f->n = all->len;
  return 0;
}

void sh_bfile_free(sh_bfile *f) {
  sh_arena_free(f->private_arena);
  *f = (sh_bfile){0};
}

/* ---- Words ---- */

void sh_bprompt_words(sh_buf *out, sh_brng *r, int64_t n) {
  for (int64_t i = 0; i < n && !out->failed; i++) {
    if (i) sh_buf_putc(out, ' ');
    sh_buf_puts(out, WORDS[sh_brng_below(r, N_WORDS)]);
  }
}

static int64_t words_for(const sh_bprompts *p, double tokens) {
  double n = round(tokens / (p->tokens_per_word > 0 ? p->tokens_per_word : 1));
  return n < 1 ? 1 : (int64_t)n;
}

int sh_bprompt_calibrate(sh_bprompts *p, const int64_t words[2], const int64_t tokens[2], sh_error *e) {
  double slope = (double)(tokens[1] - tokens[0]) / (double)(words[1] - words[0]), overhead = (double)tokens[0] - slope * (double)words[0];
  if (!(slope > 0.01 && slope < 1000))
    return sh_fail(
        e, SH_ERR_FORMAT,
        "the server counts %lld and %lld prompt tokens for %lld and %lld words, which gives no length of a word; give prompts with "
        "--input-len file:FILE.jsonl",
        (long long)tokens[0], (long long)tokens[1], (long long)words[0], (long long)words[1]);
  p->tokens_per_word = slope;
  p->overhead = overhead > 0 ? overhead : 0;
  return 0;
}

/* ---- Bodies ---- */

static void put_message(sh_jw *w, const char *role, const sh_buf *text) {
  sh_jw_obj(w);
  sh_jw_kstr(w, "role", role);
  sh_jw_key(w, "content");
  sh_jw_strn(w, text->p ? text->p : "", text->len);
  sh_jw_end_obj(w);
}

/* The prompt or the messages of a text with an optional shared beginning. */
static void put_text(sh_jw *w, bool chat, sh_buf *shared, const sh_buf *text) {
  if (chat) {
    sh_jw_key(w, "messages");
    sh_jw_arr(w);
    if (shared->len) put_message(w, "system", shared);
    put_message(w, "user", text);
    sh_jw_end_arr(w);
    return;
  }
  if (shared->len) sh_buf_putc(shared, ' ');
  sh_buf_put(shared, text->p ? text->p : "", text->len);
  sh_jw_key(w, "prompt");
  sh_jw_strn(w, shared->p ? shared->p : "", shared->len);
}

/* One of a file's lines. A plain prompt becomes a user's message for a chat. */
static void put_line(sh_jw *w, bool chat, const sh_json *line) {
  const sh_json *messages = sh_json_get(line, "messages"), *prompt = sh_json_get(line, "prompt");
  if (messages) {
    sh_jw_key(w, "messages");
    sh_jw_value(w, messages);
    return;
  }
  sh_jw_key(w, chat ? "messages" : "prompt");
  if (chat) {
    sh_jw_arr(w);
    sh_jw_obj(w);
    sh_jw_kstr(w, "role", "user");
    sh_jw_key(w, "content");
  }
  sh_jw_strn(w, prompt->s, prompt->len);
  if (chat) {
    sh_jw_end_obj(w);
    sh_jw_end_arr(w);
  }
}

void sh_bprompt_probe(const sh_bprompts *p, int64_t words, sh_buf *out) {
  sh_brng r = sh_brng_at(p->seed, STREAM_PROBE, (uint64_t)words);
  sh_buf text, none;
  sh_jw w;
  sh_buf_init(&text, MAX_FILE);
  sh_buf_init(&none, MAX_FILE);
  sh_bprompt_words(&text, &r, words);
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "model", p->model);
  put_text(&w, p->chat, &none, &text);
  sh_jw_kint(&w, "max_tokens", 1);
  sh_jw_end_obj(&w);
  if (!out->failed) out->failed = text.failed ? text.failed : none.failed;
  sh_buf_free(&text);
  sh_buf_free(&none);
}

/* Words of the request's length, behind those of its group. */
static int put_words(const sh_bprompts *p, uint64_t row, uint64_t index, int64_t tokens, sh_jw *w) {
  sh_buf text, shared;
  sh_buf_init(&text, MAX_FILE);
  sh_buf_init(&shared, MAX_FILE);
  sh_brng r = sh_brng_at(p->seed, STREAM_TEXT + (row << 8), index);
  sh_bprompt_words(&text, &r, words_for(p, (double)tokens - p->overhead));
  if (p->shared > 0) {
    r = sh_brng_at(p->seed, STREAM_SHARED + (row << 8), index % (uint64_t)p->groups);
    sh_bprompt_words(&shared, &r, words_for(p, (double)p->shared));
  }
  put_text(w, p->chat, &shared, &text);
  int rc = text.failed ? text.failed : shared.failed;
  sh_buf_free(&text);
  sh_buf_free(&shared);
  return rc;
}

int sh_bprompt_body(const sh_bprompts *p, uint64_t row, uint64_t index, sh_buf *out, int64_t *output_tokens) {
  sh_brng r = sh_brng_at(p->seed, STREAM_LENGTH, index);
  const sh_json *line = p->inputs.n ? &p->inputs.v[index % p->inputs.n] : NULL;
  int64_t in = line ? 0 : sh_blen_draw(&p->input, &r), most = DEFAULT_MAX_TOKENS;
  if (p->outputs.n) sh_json_int(sh_json_get(&p->outputs.v[index % p->outputs.n], "max_tokens"), &most);
  else if (!line || sh_json_int(sh_json_get(line, "max_tokens"), &most) < 0) most = sh_blen_draw(&p->output, &r);
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "model", p->model);
  int rc = 0;
  if (line) put_line(&w, p->chat, line);
  else rc = put_words(p, row, index, in, &w);
  sh_jw_kint(&w, "max_tokens", most);
  if (p->temperature >= 0) sh_jw_kdouble(&w, "temperature", p->temperature);
  if (p->ignore_eos) sh_jw_kbool(&w, "ignore_eos", true);
  sh_jw_kbool(&w, "stream", true);
  sh_jw_key(&w, "stream_options");
  sh_jw_obj(&w);
  sh_jw_kbool(&w, "include_usage", true);
  sh_jw_end_obj(&w);
  sh_jw_end_obj(&w);
  *output_tokens = most;
  if (rc < 0 && !out->failed) out->failed = rc;
  return out->failed;
}
