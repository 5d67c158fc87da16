/* An evaluation from its options to its result: opens both models, checks that they speak of the same ids, and runs the parts. One thread,
 * beside the models' own pools.
 *
 * Both models are open at the same time, their weights mapped, and the text goes through them side by side in chunks of rows, so that no
 * logits are kept: a whole text's would be [T, 248320], a gigabyte for each thousand tokens. Refused: to write the reference's logits to a
 * file and compare later, as others do; it takes the disk for what the memory lacks, and the reference is mapped anyway. */
#include "quant/eval_parts.h"

#include "base/file.h"
#include "base/pool.h"
#include "quant/texts.h"
#include <string.h>

enum { DEFAULT_SEQ_LEN = 512, RESULT_BYTES = 64 << 20 };

/* ---- The same ids ---- */

static int compare_tokens(const sh_eval_job *j, sh_error *e) {
  const sh_tok *a = j->side[0].tok, *b = j->side[1].tok;
  const char *path_a = sh_ckpt_path(j->side[0].ckpt), *path_b = sh_ckpt_path(j->side[1].ckpt);
  if (sh_tok_vocab_size(a) != sh_tok_vocab_size(b))
    return sh_fail(e, SH_ERR_ARG, "%s has %d tokens and %s has %d; only models of the same vocabulary can be compared", path_a,
                   sh_tok_vocab_size(a), path_b, sh_tok_vocab_size(b));
  for (int32_t id = 0; id < sh_tok_vocab_size(a); id++) {
    size_t n_a = 0, n_b = 0;
    const char *s = sh_tok_bytes(a, id, &n_a), *t = sh_tok_bytes(b, id, &n_b);
    if (!s != !t || n_a != n_b || (s && memcmp(s, t, n_a) != 0))
      return sh_fail(e, SH_ERR_ARG, "token %d is \"%.40s\" in %s and \"%.40s\" in %s; only models of the same vocabulary can be compared",
                     (int)id, s ? s : "", path_a, t ? t : "", path_b);
  }
  return 0;
}

static int agree_on_ids(sh_eval_job *j, sh_error *e) {
  const sh_eval_side *m = &j->side[0], *ref = &j->side[1];
  if (!m->tok && !ref->tok)
    return sh_fail(e, SH_ERR_NOT_FOUND, "%s has no tokenizer (tokenizer.json is missing)%s", sh_ckpt_path(m->ckpt),
                   j->n_sides == 2 ? ", and neither has the reference" : "");
  if (m->tok && ref->tok) {
    int rc = compare_tokens(j, e);
    if (rc < 0) return rc;
  }
  j->tok = m->tok ? m->tok : ref->tok;
  j->chat = m->chat ? m->chat : ref->chat;
  j->vocab = sh_tok_vocab_size(j->tok);
  for (int i = 0; i < j->n_sides; i++) {
    int v = j->side[i].cfg->vocab_size;
    if (!j->side[i].tok && v < j->vocab)
      return sh_fail(e, SH_ERR_ARG,
                     "%s has a vocabulary of %d and the tokenizer of %s has %d tokens; only models of the same vocabulary "
                     "can be compared",
                     sh_ckpt_path(j->side[i].ckpt), v, sh_ckpt_path(j->side[1 - i].ckpt), j->vocab);
    if (v < j->vocab) j->vocab = v; /* tokens without a row of the embedding are found where a text has one */
  }
  return 0;
}

static int check_ids(const sh_eval_job *j, const char *what, int line, const int32_t *ids, size_t n, sh_error *e) {
  for (size_t i = 0; i < n; i++)
    if (ids[i] >= j->vocab)
      return sh_fail(e, SH_ERR_ARG, "%s line %d has token %d, and the model's vocabulary ends at %d", what, line, (int)ids[i],
                     j->vocab - 1);
  return 0;
}

/* ---- The text and the tasks ---- */

static int load_text(sh_eval_job *j, sh_error *e) {
  size_t len = 0;
  const char *name = j->o->text ? j->o->text : "the text in the program", *text = j->o->text ? NULL : sh_text_evaluation(&len);
  int rc = sh_samples_load(&j->text, j->o->text, text, len, j->tok, j->chat, j->o->samples, j->r->seq_len, SH_SAMPLES_WINDOWS, 0, e);
  int longest = 0;
  for (int i = 0; rc == 0 && i < j->text.n; i++) {
    if (j->text.len[i] > longest) longest = j->text.len[i];
    rc = check_ids(j, name, j->text.line[i], j->text.ids[i], (size_t)j->text.len[i], e);
  }
  if (rc == 0 && longest < 2)
    rc = sh_fail(e, SH_ERR_ARG,
                 "%s has no piece of two tokens or more, and the first of a piece cannot be predicted; a longer text is wanted", name);
  return rc;
}

/* An answer may be as long as the shorter of the two contexts has room for; a question or a choice has to fit whole. */
static int limit_tasks(sh_eval_job *j, sh_error *e) {
  for (int side = 0; side < j->n_sides; side++)
    for (int i = 0; i < j->tasks.n && j->side[side].cfg->max_position > 0; i++) {
      sh_eval_item *t = &j->tasks.v[i];
      int most = j->side[side].cfg->max_position, longest = 1;
      for (int k = 0; k < t->n_choices; k++)
        if (t->n_ids[k] > longest) longest = t->n_ids[k];
      if (t->prompt.n > (size_t)most || (int)t->prompt.n > most - longest)
        return sh_fail(e, SH_ERR_LIMIT, "%s line %d has %zu tokens%s, and %s is made for at most %d", j->o->tasks, t->line,
                       t->prompt.n + (size_t)longest - (t->n_choices ? 0 : 1), t->n_choices ? " with its longest choice" : "",
                       sh_ckpt_path(j->side[side].ckpt), most);
      if (t->max_new > most - (int)t->prompt.n) t->max_new = most - (int)t->prompt.n;
    }
  return 0;
}

static int load_all(sh_eval_job *j, sh_error *e) {
  int rc = load_text(j, e);
  if (rc == 0 && j->o->tasks) rc = sh_eval_tasks_load(j, e);
  for (int i = 0; rc == 0 && i < j->tasks.n; i++) {
    const sh_eval_item *t = &j->tasks.v[i];
    rc = check_ids(j, j->o->tasks, t->line, t->prompt.v, t->prompt.n, e);
    for (int k = 0; rc == 0 && k < t->n_choices; k++) rc = check_ids(j, j->o->tasks, t->line, t->choices[k], (size_t)t->n_ids[k], e);
  }
  if (rc == 0) rc = limit_tasks(j, e);
  if (rc < 0) return rc;
  sh_eval *r = j->r;
  int most = j->tasks.n > 0 ? j->tasks.n : j->text.n;
  r->prefix_prompts = j->n_sides < 2 ? 0 : j->o->prompts < most ? j->o->prompts : most;
  r->windows = j->text.n;
  r->skipped = j->text.skipped;
  r->tokens = j->text.tokens;
  for (int i = 0; i < j->text.n; i++) r->scored += j->text.len[i] - 1;
  return 0;
}

/* Tokens of the longest sequence, and the sum of what will be computed. */
static int plan(sh_eval_job *j) {
  int context = j->r->seq_len;
  const int32_t *ids;
  j->total = j->text.tokens;
  for (int i = 0; i < j->r->prefix_prompts; i++) {
    int n = sh_eval_prefix_prompt(j, i, &ids) + SH_EVAL_PREFIX;
    if (n > context) context = n;
    j->total += n;
  }
  for (int i = 0; i < j->tasks.n; i++) {
    const sh_eval_item *t = &j->tasks.v[i];
    int n = (int)t->prompt.n + t->max_new, extra = 0;
    for (int k = 0; k < t->n_choices; k++) {
      if (t->n_ids[k] > extra) extra = t->n_ids[k];
      j->total += t->n_ids[k] - 1;
    }
    if (n + extra > context) context = n + extra;
    j->total += n;
  }
  j->total *= j->n_sides;
  return context;
}

/* ---- The run ---- */

static void on_fed(void *ctx, int tokens) {
  sh_eval_job *j = ctx;
  j->done += tokens;
  if (j->o->progress) j->o->progress(j->o->ctx, j->done < j->total ? (double)j->done / (double)j->total : 1);
}

const char *sh_eval_text_of(sh_eval_job *j, const int32_t *ids, int n) {
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  const char *s = NULL;
  if (sh_tok_decode(j->tok, ids, (size_t)n, false, &b, NULL) == 0) s = sh_arena_strdup(j->r->private_arena, b.p ? b.p : "", b.len);
  sh_buf_free(&b);
  return s;
}

static int describe(sh_eval_job *j, int i, sh_eval_model *m, sh_error *e) {
  sh_arena *a = j->r->private_arena;
  const char *path = sh_ckpt_path(j->side[i].ckpt), *what = sh_model_describe(j->side[i].m);
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  char *own = sh_arena_strdup(a, path, n);
  m->path = own;
  m->name = own ? sh_path_base(own) : NULL;
  m->describe = sh_arena_strdup(a, what, strlen(what));
  m->bytes = (int64_t)sh_ckpt_bytes(j->side[i].ckpt);
  return own && m->describe ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
}

static int end_ids(sh_eval_job *j, sh_error *e) {
  const sh_json *gen = NULL;
  int i = j->side[0].tok ? 0 : 1;
  sh_arena *a = j->r->private_arena;
  int rc = sh_genconf_load(j->side[i].ckpt, a, &gen, e);
  if (rc == 0) j->n_ends = sh_genconf_end_ids(j->side[i].ckpt, j->side[i].cfg, j->tok, gen, j->vocab, j->ends, SH_EVAL_ENDS);
  return rc;
}

static int open_all(sh_eval_job *j, sh_error *e) {
  int rc = sh_eval_side_open(&j->side[0], j->o->model, j->o, j->o->exact, e);
  if (rc == 0 && j->n_sides == 2) rc = sh_eval_side_open(&j->side[1], j->o->against, j->o, j->o->exact || j->o->against_exact, e);
  if (rc == 0) rc = agree_on_ids(j, e);
  if (rc == 0) rc = end_ids(j, e);
  if (rc == 0) rc = describe(j, 0, &j->r->model, e);
  if (rc == 0 && j->n_sides == 2) rc = describe(j, 1, &j->r->ref, e);
  return rc;
}

/* Layers are compared when there are as many of the same width. */
static bool same_shape(const sh_eval_job *j) {
  const sh_config *a = j->side[0].cfg, *b = j->side[1].cfg;
  return j->n_sides == 2 && a->n_layers == b->n_layers && a->hidden == b->hidden;
}

static int reserve_all(sh_eval_job *j, sh_error *e) {
  int context = plan(j), widest = 1;
  for (int i = 0; i < j->n_sides; i++)
    if (j->side[i].cfg->vocab_size > widest) widest = j->side[i].cfg->vocab_size;
  int chunk = sh_eval_chunk(widest);
  for (int i = 0; i < j->n_sides; i++) {
    j->side[i].fed = on_fed;
    j->side[i].ctx = j;
    j->side[i].stop = j->o->stop;
    int rc = sh_eval_side_reserve(&j->side[i], context, chunk, same_shape(j), e);
    if (rc < 0) return rc;
  }
  return 0;
}

int sh_eval_run(sh_eval *out, const sh_eval_opts *o, sh_error *e) {
  sh_eval_job j = {.o = o, .r = out, .n_sides = o->against ? 2 : 1};
  int64_t start = sh_now_ns();
  *out = (sh_eval){.seq_len = o->seq_len ? o->seq_len : DEFAULT_SEQ_LEN, .exact = o->exact, .ref_exact = o->exact || o->against_exact};
  out->private_arena = sh_arena_new(RESULT_BYTES);
  int rc = out->private_arena ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0 && o->text && !(out->text = sh_arena_strdup(out->private_arena, o->text, strlen(o->text))))
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0) rc = open_all(&j, e);
  if (rc == 0) rc = load_all(&j, e);
  if (rc == 0) rc = reserve_all(&j, e);
  if (rc == 0) rc = sh_eval_over_text(&j, e);
  if (rc == 0 && out->prefix_prompts > 0) rc = sh_eval_prefixes(&j, e);
  if (rc == 0 && j.tasks.n > 0) rc = sh_eval_tasks_run(&j, e);
  out->seconds = (double)(sh_now_ns() - start) / 1e9;
  sh_eval_tasks_free(&j.tasks);
  sh_samples_free(&j.text);
  for (int i = 0; i < 2; i++) sh_eval_side_close(&j.side[i]);
  return rc;
}

void sh_eval_free(sh_eval *r) {
  sh_arena_free(r->private_arena);
  *r = (sh_eval){0};
}
