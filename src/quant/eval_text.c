/* The measures over a text: perplexity, KL divergence, agreement, relative error by layer; and common greedy prefixes. One thread gives the
 * steps; the rows of a chunk are scored on a pool, each into its own place, and added up in order afterwards, so the result does not depend
 * on the number of threads. */
#include "quant/eval_parts.h"

#include "base/pool.h"
#include <math.h>
#include <string.h>

enum { CONTEXT_TOKENS = 24, PROMPT_TOKENS = 64 };

typedef struct scorer {
  sh_eval_job *j;
  sh_pool *pool;
  int window, pos;     /* of the chunk's first row */
  int count, rows;     /* of the chunk: tokens; those that predict the next one (all but a window's last) */
  int L;               /* entries of layers; 0: not compared */
  sh_eval_row *scores; /* [chunk] */
  double *errors;      /* [chunk, L] */
  double *kl;          /* [scored] */
  int64_t n_kl, agree;
  double nll, nll_ref;
  double *sum;        /* [L], of relative errors */
  sh_eval_layer *out; /* [L] */
} scorer;

static void score_item(void *ctx, int i, int worker) {
  (void)worker;
  scorer *s = ctx;
  sh_eval_job *j = s->j;
  const sh_eval_side *m = &j->side[0], *ref = &j->side[1];
  const int32_t *ids = j->text.ids[s->window] + s->pos;
  if (i < s->rows)
    sh_eval_score_row(m->logits + (size_t)i * (size_t)m->cfg->vocab_size,
                      j->n_sides == 2 ? ref->logits + (size_t)i * (size_t)ref->cfg->vocab_size : NULL, j->vocab, ids[i + 1], &s->scores[i]);
  for (int l = 0; l < s->L; l++) {
    size_t at = (size_t)i * (size_t)m->cfg->hidden;
    s->errors[i * s->L + l] = sh_eval_relative_error(m->hidden[l] + at, ref->hidden[l] + at, m->cfg->hidden);
  }
}

static int not_finite(const scorer *s, int row, sh_error *e) {
  const sh_eval *r = s->j->r;
  bool two = s->j->n_sides == 2;
  return sh_fail(
      e, SH_ERR_FORMAT,
      "the logits at position %d of line %d of the text are not finite: the weights of %s%s%s are broken; `sheng inspect` checks them",
      s->pos + row, s->j->text.line[s->window], r->model.path, two ? " or of " : "", two ? r->ref.path : "");
}

static int add_chunk(scorer *s, sh_error *e) {
  sh_eval_job *j = s->j;
  sh_eval *r = j->r;
  for (int i = 0; i < s->rows; i++) {
    const sh_eval_row *x = &s->scores[i];
    if (!x->finite) return not_finite(s, i, e);
    s->nll += x->nll;
    s->nll_ref += x->nll_ref;
    if (j->n_sides < 2) continue;
    s->agree += x->top == x->top_ref;
    if (s->n_kl == 0 || x->kl > r->kl_max) {
      r->kl_max = x->kl;
      r->worst_window = s->window;
      r->worst_position = s->pos + i + 1;
    }
    s->kl[s->n_kl++] = x->kl;
    r->bins[sh_eval_bin(x->kl)]++;
  }
  for (int i = 0; i < s->count; i++)
    for (int l = 0; l < s->L; l++) {
      double v = s->errors[i * s->L + l];
      s->sum[l] += v;
      if (v > s->out[l].max) s->out[l].max = v;
    }
  return 0;
}

static int score_window(scorer *s, sh_error *e) {
  sh_eval_job *j = s->j;
  int len = j->text.len[s->window], chunk = j->side[0].chunk, rc;
  for (s->pos = 0; s->pos < len; s->pos += chunk) {
    s->count = len - s->pos < chunk ? len - s->pos : chunk;
    s->rows = s->pos + s->count == len ? s->count - 1 : s->count;
    for (int i = 0; i < j->n_sides; i++)
      if ((rc = sh_eval_feed(&j->side[i], 0, s->pos, j->text.ids[s->window] + s->pos, s->count, s->count, e)) < 0) return rc;
    sh_pool_run(s->pool, score_item, s, s->count);
    if ((rc = add_chunk(s, e)) < 0) return rc;
  }
  return 0;
}

static int finish(scorer *s, sh_error *e) {
  sh_eval_job *j = s->j;
  sh_eval *r = j->r;
  r->model.nll = s->nll / (double)r->scored;
  r->model.ppl = exp(r->model.nll);
  if (j->n_sides < 2) return 0;
  r->ref.nll = s->nll_ref / (double)r->scored;
  r->ref.ppl = exp(r->ref.nll);
  r->top1 = (double)s->agree / (double)s->n_kl;
  for (int64_t i = 0; i < s->n_kl; i++) r->kl_mean += s->kl[i];
  r->kl_mean /= (double)s->n_kl;
  sh_eval_sort(s->kl, s->n_kl);
  r->kl_median = sh_eval_quantile(s->kl, s->n_kl, 0.5);
  r->kl_p99 = sh_eval_quantile(s->kl, s->n_kl, 0.99);
  for (int l = 0; l < s->L; l++) s->out[l].mean = s->sum[l] / (double)r->tokens;
  r->n_layers = s->L;
  r->layers = s->out;
  const int32_t *ids = j->text.ids[r->worst_window];
  int at = r->worst_position, from = at > CONTEXT_TOKENS ? at - CONTEXT_TOKENS : 0;
  r->worst_line = j->text.line[r->worst_window];
  r->worst_token = sh_eval_text_of(j, ids + at, 1);
  r->worst_context = sh_eval_text_of(j, ids + from, at - from);
  return r->worst_token && r->worst_context ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for the result of an evaluation");
}

int sh_eval_over_text(sh_eval_job *j, sh_error *e) {
  scorer s = {.j = j, .L = j->side[0].hidden ? j->side[0].cfg->n_layers + 1 : 0};
  size_t chunk = (size_t)j->side[0].chunk, L = (size_t)s.L;
  int rc = sh_pool_new(&s.pool, j->o->threads, e);
  if (rc < 0) return rc;
  s.scores = sh_calloc(chunk, sizeof *s.scores);
  s.errors = sh_calloc(chunk * (L + 1), sizeof *s.errors);
  s.sum = sh_calloc(L + 1, sizeof *s.sum);
  s.out = sh_arena_array(j->r->private_arena, L + 1, sizeof *s.out);
  s.kl = sh_calloc(j->n_sides == 2 ? (size_t)j->r->scored : 1, sizeof *s.kl);
  if (!s.scores || !s.errors || !s.sum || !s.out || !s.kl) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for the scores of a text");
  for (s.window = 0; rc == 0 && s.window < j->text.n; s.window++) rc = score_window(&s, e);
  if (rc == 0) rc = finish(&s, e);
  sh_free(s.scores);
  sh_free(s.errors);
  sh_free(s.sum);
  sh_free(s.kl);
  sh_pool_free(s.pool);
  return rc;
}

/* ---- Common greedy prefixes ---- */

int sh_eval_prefix_prompt(const sh_eval_job *j, int i, const int32_t **ids) {
  int n = j->tasks.n > 0 ? j->tasks.n : j->text.n, at = (int)((int64_t)i * n / j->r->prefix_prompts); /* spread over all of them */
  if (j->tasks.n > 0) {
    *ids = j->tasks.v[at].prompt.v;
    return (int)j->tasks.v[at].prompt.n;
  }
  *ids = j->text.ids[at];
  int len = (j->text.len[at] + 1) / 2;
  return len < PROMPT_TOKENS ? len : PROMPT_TOKENS;
}

int sh_eval_prefixes(sh_eval_job *j, sh_error *e) {
  sh_eval *r = j->r;
  size_t n = (size_t)r->prefix_prompts;
  sh_eval_gen *gen = sh_calloc(2 * n, sizeof *gen);
  int32_t *out = sh_calloc(2 * n * SH_EVAL_PREFIX, sizeof *out);
  int rc = gen && out ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for greedy continuations");
  for (size_t i = 0; rc == 0 && i < 2 * n; i++) {
    gen[i].n_prompt = sh_eval_prefix_prompt(j, (int)(i % n), &gen[i].prompt);
    gen[i].max_new = SH_EVAL_PREFIX;
    gen[i].out = out + i * SH_EVAL_PREFIX;
  }
  for (int i = 0; rc == 0 && i < 2; i++) rc = sh_eval_generate(&j->side[i], gen + (size_t)i * n, (int)n, j->vocab, j->ends, j->n_ends, e);
  double sum = 0;
  r->prefix_min = SH_EVAL_PREFIX;
  for (size_t i = 0; rc == 0 && i < n; i++) {
    const sh_eval_gen *a = &gen[i], *b = &gen[n + i];
    int common = sh_eval_common_prefix(a->out, a->n_out, b->out, b->n_out);
    if (a->ended && b->ended && common == a->n_out && common == b->n_out) common = SH_EVAL_PREFIX; /* the same whole answer */
    sum += common;
    if (common < r->prefix_min) r->prefix_min = common;
  }
  r->prefix_mean = sum / (double)n;
  sh_free(gen);
  sh_free(out);
  return rc;
}
