/* Calibration tokens.
 *
 * The driving thread. The model's own answers matter because a chat model spends its life reading its own words (and thoughts), which no
 * text from elsewhere looks like; they are drawn at temperature 1 from the engine with a fixed seed, so the same model and seed give the
 * same tokens. The questions are the dialogues of the text in the program. */
#include "quant/calib.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "model/config.h"
#include "quant/texts.h"
#include "sheng.h"

#include <stdio.h>
#include <string.h>

typedef struct source {
  sh_ckpt *ck;
  sh_tok *tok;
  sh_chat *chat; /* NULL: no template */
} source;

static void close_source(source *s) {
  sh_chat_free(s->chat);
  sh_tok_free(s->tok);
  sh_ckpt_close(s->ck);
}

static int open_source(source *s, const char *model, sh_error *e) {
  size_t len = 0;
  int rc = sh_ckpt_open(&s->ck, model, 0, e);
  if (rc == 0) rc = sh_tok_open(&s->tok, s->ck, e);
  const char *text = rc == 0 ? sh_ckpt_chat_template(s->ck, &len) : NULL;
  if (text) rc = sh_chat_open(&s->chat, text, len, e);
  return rc;
}

/* --- The model's own words */

typedef struct own_text {
  int32_t *ids; /* [seq_len] prompt and answer */
  int n;
  sh_request *r;
} own_text;

/* Takes what the request wrote; its end token belongs to it. */
static int drain(own_text *w, int seq_len, const volatile bool *stop, sh_error *e) {
  sh_event ev;
  for (;;) {
    while (sh_request_next(w->r, &ev)) {
      if (ev.type == SH_EV_TOKEN && w->n < seq_len) w->ids[w->n++] = ev.id;
      if (ev.type == SH_EV_FINISH && ev.finish == SH_FINISH_ERROR) return sh_fail(e, SH_ERR_INTERNAL, "the model's own text: %s", ev.error);
      if (ev.type == SH_EV_END) return 0;
    }
    if (stop && *stop) return sh_fail(e, SH_ERR_CANCELLED, "stopped while the model wrote its own text; nothing is kept");
    sh_request_wait(w->r, 1000);
  }
}

/* Cuts a dialogue behind its first question; the tree is the caller's own. */
static void keep_question(sh_json *messages) {
  for (size_t i = 0; i < messages->len; i++) {
    const sh_json *role = sh_json_get(&messages->items[i], "role");
    if (!sh_json_is(role, SH_JSON_STRING) || strcmp(role->s, "user") != 0) continue;
    messages->len = i + 1;
    return;
  }
}

/* The prompts of the dialogues in the program's text, in order. Without a template: the first words of its texts. */
static int prompts(const source *s, int count, int seq_len, own_text *w, int *n, sh_error *e) {
  size_t len;
  const char *p = sh_text_calibration(&len), *end = p + len;
  *n = 0;
  int rc = 0;
  for (int pass = 0; rc == 0 && pass < 2 && *n < count; pass++) {
    for (const char *at = p, *stop; rc == 0 && at < end && *n < count; at = stop + 1) {
      sh_arena *a = sh_arena_new(64u << 20);
      sh_json *line = NULL;
      sh_ids ids = {0};
      stop = memchr(at, '\n', (size_t)(end - at));
      if (!stop) stop = end;
      rc = a ? sh_json_parse(at, (size_t)(stop - at), NULL, a, &line, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
      const sh_json *messages = rc == 0 ? sh_json_get(line, "messages") : NULL;
      if (rc == 0 && (messages != NULL) == (s->chat != NULL && pass == 0)) {
        if (messages) keep_question((sh_json *)(uintptr_t)messages);
        rc = sh_samples_encode(line, messages != NULL, s->tok, s->chat, a, &ids, e);
        int take = messages ? (int)ids.n : ids.n < 16 ? (int)ids.n : 16;
        if (rc == 0 && take > 0 && take < seq_len / 2) {
          own_text *o = &w[(*n)++];
          o->n = take;
          memcpy(o->ids, ids.v, (size_t)take * sizeof *o->ids);
        }
      }
      sh_ids_free(&ids);
      sh_arena_free(a);
    }
  }
  return rc;
}

static int write_own(sh_samples *out, const source *s, const char *model, const sh_calib_opts *o, sh_error *e) {
  sh_engine *g = NULL;
  own_text *w = sh_calloc((size_t)o->own, sizeof *w);
  sh_engine_options eo = {.model = model,
                          .threads = o->threads,
                          .cpu = o->cpu,
                          .seed = o->seed,
                          .exact = true,
                          .cache_dir = "",
                          .max_model_len = o->seq_len,
                          .max_num_seqs = o->own < 64 ? o->own : 64};
  int n = 0;
  int rc = w ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (int i = 0; rc == 0 && i < o->own; i++) {
    w[i].ids = sh_malloc((size_t)o->seq_len * sizeof *w[i].ids);
    if (!w[i].ids) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  if (rc == 0) rc = prompts(s, o->own, o->seq_len, w, &n, e);
  if (rc == 0) rc = sh_engine_open(&g, &eo, e);
  if (rc == 0) rc = sh_engine_start(g, e);
  int vocab = rc == 0 ? sh_engine_vocab_size(g) : 0;
  for (int i = 0; rc == 0 && i < n; i++) {
    sh_request_params p;
    sh_request_defaults(&p);
    bool ok = true;
    for (int k = 0; k < w[i].n; k++) ok = ok && w[i].ids[k] < vocab;
    if (!ok) continue;
    p.ids = w[i].ids;
    p.n_ids = w[i].n;
    p.max_tokens = o->seq_len - w[i].n;
    if (p.max_tokens > 256) p.max_tokens = 256;
    p.has_seed = true;
    p.seed = o->seed + (uint64_t)i;
    rc = sh_request_submit(g, &p, NULL, NULL, &w[i].r, e);
  }
  for (int i = 0; i < n; i++) {
    if (rc == 0 && w[i].r) rc = drain(&w[i], o->seq_len, o->stop, e);
    if (rc == 0 && w[i].r) rc = sh_samples_add(out, w[i].ids, (size_t)w[i].n, 0, e);
    sh_request_free(w[i].r);
  }
  sh_engine_close(g);
  for (int i = 0; w && i < o->own; i++) sh_free(w[i].ids);
  sh_free(w);
  return rc;
}

int sh_calib_own(const sh_calib_opts *o) { return o->file ? 0 : o->own < o->samples ? o->own : o->samples - 1; }

int sh_calib_texts(sh_samples *out, const char *model, const sh_calib_opts *o, sh_error *e) {
  source s = {0};
  sh_config c;
  *out = (sh_samples){0};
  int rc = open_source(&s, model, e);
  if (rc == 0) rc = sh_config_load(&c, s.ck, e);
  if (rc == 0 && c.max_position > 0 && o->seq_len > c.max_position)
    rc = sh_fail(e, SH_ERR_ARG, "--seq-len %d: the model is made for %d tokens; lower it", o->seq_len, c.max_position);
  size_t len = 0;
  const char *text = o->file ? NULL : sh_text_calibration(&len);
  if (rc == 0)
    rc = sh_samples_load(out, o->file, text, len, s.tok, s.chat, o->samples - sh_calib_own(o), o->seq_len,
                         o->file ? SH_SAMPLES_WINDOWS : SH_SAMPLES_PACK, o->seed + 1, e);
  close_source(&s);
  return rc;
}

static int write_answers(sh_samples *out, const char *model, const sh_calib_opts *o, sh_error *e) {
  source s = {0};
  sh_calib_opts q = *o;
  q.own = sh_calib_own(o);
  int rc = open_source(&s, model, e);
  if (rc == 0) rc = write_own(out, &s, model, &q, e);
  close_source(&s);
  return rc;
}

int sh_calib_answers(sh_samples *out, char **says, const char *model, const sh_calib_opts *o, sh_error *e) {
  int texts = out->n, rc = sh_calib_own(o) > 0 ? write_answers(out, model, o, e) : 0;
  sh_buf b;
  *says = NULL;
  if (rc < 0) return rc;
  if (out->tokens < SH_CALIB_LEAST)
    return sh_fail(e, SH_ERR_ARG, "%s gives %lld tokens to calibrate with, at least %d are wanted (tens of thousands are usual)",
                   o->file ? o->file : "the text", (long long)out->tokens, SH_CALIB_LEAST);
  sh_buf_init(&b, 4096);
  if (o->file) sh_buf_printf(&b, "%s", sh_path_base(o->file));
  else sh_buf_printf(&b, "%d sequences of the text in the program and %d that the model wrote itself", texts, out->n - texts);
  *says = sh_buf_detach(&b);
  sh_buf_free(&b);
  return *says ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
}
