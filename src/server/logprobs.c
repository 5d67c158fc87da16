/* Log probabilities as JSON.
 *
 * Runs on the loop thread as events are drained: entries are appended token by token, so no long answer is formatted at once. Values below
 * -9999 (and minus infinity, of masked ids) are written as -9999, as vLLM does, because JSON has no infinity. A token's `bytes` are its own
 * bytes, also when they are half a character, so that a client can join them; its text has U+FFFD there.
 *
 * Refused alternative: keeping the values and writing them when the answer is complete. It takes more memory than the text and formats
 * megabytes in one go on the thread that serves all sockets. */
#include "server/logprobs.h"
#include "base/text.h"
#include <stdio.h>
#include <string.h>

enum { MAX_TOP = 1000 }; /* the range of --max-logprobs */

static double shown(float logprob) { return logprob >= -9999.0f ? (double)logprob : -9999.0; }

static void comma(sh_buf *list) {
  if (list->len) sh_buf_putc(list, ',');
}

/* The text of a token as JSON shows it; `out` is scratch. */
static void token_text(const sh_lp *lp, int32_t id, sh_buf *out) {
  size_t n = 0;
  const char *bytes = sh_tok_bytes(lp->tok, id, &n);
  sh_buf_reset(out);
  if (lp->as_ids) sh_buf_printf(out, "token_id:%d", (int)id);
  else if (bytes) sh_utf8_sanitize(bytes, n, out);
}

static void put_text(sh_jw *w, const sh_buf *text) { sh_jw_strn(w, text->p ? text->p : "", text->len); }

static void chat_members(const sh_lp *lp, sh_jw *w, const sh_logprob *x, sh_buf *text) {
  size_t n = 0;
  token_text(lp, x->id, text);
  const char *bytes = sh_tok_bytes(lp->tok, x->id, &n);
  sh_jw_key(w, "token");
  put_text(w, text);
  sh_jw_kdouble(w, "logprob", shown(x->logprob));
  sh_jw_key(w, "bytes");
  sh_jw_arr(w);
  for (size_t i = 0; bytes && i < n; i++) sh_jw_int(w, (unsigned char)bytes[i]);
  sh_jw_end_arr(w);
}

void sh_lp_chat(const sh_lp *lp, const sh_event *ev, int max_top, sh_buf *list) {
  sh_buf text;
  sh_jw w;
  sh_buf_init(&text, 1 << 20);
  comma(list);
  sh_jw_init(&w, list);
  sh_jw_obj(&w);
  chat_members(lp, &w, &ev->chosen, &text);
  sh_jw_key(&w, "top_logprobs");
  sh_jw_arr(&w);
  for (int i = 0; i < ev->n_top && i < max_top; i++) {
    sh_jw_obj(&w);
    chat_members(lp, &w, &ev->top[i], &text);
    sh_jw_end_obj(&w);
  }
  sh_jw_end_arr(&w);
  sh_jw_end_obj(&w);
  sh_buf_free(&text);
}

/* --- /v1/completions --- */

void sh_lp_lists_init(sh_lp_lists *l, size_t max_bytes) {
  sh_buf_init(&l->tokens, max_bytes);
  sh_buf_init(&l->token_logprobs, max_bytes);
  sh_buf_init(&l->top_logprobs, max_bytes);
  sh_buf_init(&l->text_offset, max_bytes);
}

void sh_lp_lists_free(sh_lp_lists *l) {
  sh_buf_free(&l->tokens);
  sh_buf_free(&l->token_logprobs);
  sh_buf_free(&l->top_logprobs);
  sh_buf_free(&l->text_offset);
}

void sh_lp_lists_reset(sh_lp_lists *l) {
  sh_buf_reset(&l->tokens);
  sh_buf_reset(&l->token_logprobs);
  sh_buf_reset(&l->top_logprobs);
  sh_buf_reset(&l->text_offset);
}

int64_t sh_lp_chars(const char *s, size_t n) {
  int64_t chars = 0;
  for (size_t i = 0; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
  return chars;
}

/* {"text": logprob}: the chosen one, then the best ones. Tokens that are different halves of characters have the same text here (U+FFFD);
 * the first one is written, because a reader would keep the last. */
static void completion_top(const sh_lp *lp, const sh_event *ev, int max_top, sh_buf *list, sh_buf *text) {
  uint64_t seen[MAX_TOP + 1];
  int n_seen = 0, n = ev->n_top < max_top ? ev->n_top : max_top;
  sh_jw w;
  sh_jw_init(&w, list);
  sh_jw_obj(&w);
  for (int i = -1; i < n && n_seen <= MAX_TOP; i++) {
    const sh_logprob *x = i < 0 ? &ev->chosen : &ev->top[i];
    token_text(lp, x->id, text);
    uint64_t h = sh_hash(text->p, text->len, 0);
    bool again = false;
    for (int k = 0; k < n_seen && !again; k++) again = seen[k] == h;
    if (again) continue;
    seen[n_seen++] = h;
    sh_jw_key(&w, text->p ? text->p : "");
    sh_jw_double(&w, shown(x->logprob));
  }
  sh_jw_end_obj(&w);
}

void sh_lp_completion(const sh_lp *lp, const sh_event *ev, int32_t id, int max_top, int64_t *offset, sh_lp_lists *l) {
  sh_buf text;
  sh_jw w;
  sh_buf_init(&text, 1 << 20);
  comma(&l->tokens);
  comma(&l->token_logprobs);
  comma(&l->top_logprobs);
  comma(&l->text_offset);
  if (ev) {
    sh_jw_init(&w, &l->token_logprobs);
    sh_jw_double(&w, shown(ev->chosen.logprob));
    completion_top(lp, ev, max_top, &l->top_logprobs, &text);
  } else {
    sh_buf_puts(&l->token_logprobs, "null");
    sh_buf_puts(&l->top_logprobs, "null");
  }
  token_text(lp, ev ? ev->chosen.id : id, &text);
  sh_jw_init(&w, &l->tokens);
  put_text(&w, &text);
  sh_buf_printf(&l->text_offset, "%lld", (long long)*offset);
  *offset += sh_lp_chars(text.p, text.len);
  sh_buf_free(&text);
}

/* --- prompt_logprobs --- */

static void prompt_member(const sh_lp *lp, sh_jw *w, const sh_logprob *x, sh_buf *text) {
  char key[16];
  snprintf(key, sizeof key, "%d", (int)x->id);
  token_text(lp, x->id, text);
  sh_jw_key(w, key);
  sh_jw_obj(w);
  sh_jw_kdouble(w, "logprob", shown(x->logprob));
  sh_jw_kint(w, "rank", x->rank);
  sh_jw_key(w, "decoded_token");
  put_text(w, text);
  sh_jw_end_obj(w);
}

void sh_lp_prompt(const sh_lp *lp, const sh_event *ev, int max_top, sh_buf *list) {
  sh_buf text;
  sh_jw w;
  sh_buf_init(&text, 1 << 20);
  comma(list);
  sh_jw_init(&w, list);
  sh_jw_obj(&w);
  prompt_member(lp, &w, &ev->chosen, &text);
  for (int i = 0; i < ev->n_top && i < max_top; i++)
    if (ev->top[i].id != ev->chosen.id) prompt_member(lp, &w, &ev->top[i], &text);
  sh_jw_end_obj(&w);
  sh_buf_free(&text);
}

/* --- Writing what is JSON already --- */

void sh_jw_list(sh_jw *w, const char *key, const sh_buf *list) {
  /* a number's text goes out untouched: the writer's way in for ready JSON */
  const sh_json open = {.type = SH_JSON_NUMBER, .s = "[", .len = 1};
  sh_jw_key(w, key);
  sh_jw_value(w, &open);
  if (list->len) sh_buf_put(w->buf, list->p, list->len);
  sh_buf_putc(w->buf, ']');
  if (list->failed && !w->buf->failed) w->buf->failed = list->failed;
}

void sh_jw_ids(sh_jw *w, const char *key, const int32_t *ids, size_t n) {
  sh_jw_key(w, key);
  sh_jw_arr(w);
  for (size_t i = 0; i < n; i++) sh_jw_int(w, ids[i]);
  sh_jw_end_arr(w);
}
