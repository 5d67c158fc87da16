/* Logits processors, in vLLM's order: allowed ids, bad words, min_tokens, bias, then repetition, frequency and presence penalties.
 *
 * Engine thread. Penalties need the set of prompt tokens and the counts of drawn ones. They are rebuilt for each token from the history, in
 * scratch shared by all sequences and cleaned by walking the history again: a pass over some thousand ids. Refused: a counter per id and
 * sequence, as engines on GPUs keep, which is a megabyte for each of 64 sequences and must be copied at a fork and rebuilt after a
 * preemption.
 *
 * What a request may ask reaches far (a repetition penalty of 1e-44, a bias on top of it), so every result is held inside the finite
 * floats: an id is masked by -inf and by nothing else, and an overflow is never mistaken for a broken model. */
#include "engine/logits_proc.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <string.h>

int sh_proc_scratch_init(sh_proc_scratch *s, int vocab, sh_error *e) {
  *s = (sh_proc_scratch){.vocab = vocab};
  s->count = sh_calloc((size_t)vocab, sizeof *s->count);
  s->seen = sh_calloc((size_t)vocab, sizeof *s->seen);
  s->saved = sh_calloc((size_t)vocab, sizeof *s->saved);
  if (s->count && s->seen && s->saved) return 0;
  sh_proc_scratch_free(s);
  return sh_fail(e, SH_ERR_NOMEM, "no memory for the logits processors' scratch over %d ids", vocab);
}

void sh_proc_scratch_free(sh_proc_scratch *s) {
  sh_free(s->count);
  sh_free(s->seen);
  sh_free(s->saved);
  *s = (sh_proc_scratch){0};
}

int64_t sh_proc_scratch_bytes(int vocab) { return (int64_t)vocab * 9; }

static void keep_allowed(const sh_proc *p, sh_proc_scratch *s, float *x) {
  for (int i = 0; i < p->n_allowed; i++) s->saved[i] = x[p->allowed[i]];
  for (int i = 0; i < s->vocab; i++) x[i] = -INFINITY;
  for (int i = 0; i < p->n_allowed; i++) x[p->allowed[i]] = s->saved[i];
}

/* A logit after a calculation on a finite one; only what was masked before stays -inf. */
static float held(float x, float before) {
  if (before == -INFINITY) return -INFINITY;
  return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

/* A word's last token is masked when the drawn tokens end with the others; a word of one token always. */
static void mask_bad_words(const sh_proc *p, float *x, const int32_t *out, int n_out) {
  for (int i = 0; i < p->n_bad_words; i++) {
    const sh_id_list *w = &p->bad_words[i];
    int head = w->n - 1;
    if (head > n_out) continue;
    if (head > 0 && memcmp(out + n_out - head, w->v, (size_t)head * sizeof *out) != 0) continue;
    x[w->v[head]] = -INFINITY;
  }
}

static void repeat_once(const sh_proc *p, sh_proc_scratch *s, float *x, const int32_t *ids, int n) {
  for (int i = 0; i < n; i++) {
    int32_t id = ids[i];
    if (s->seen[id]) continue;
    s->seen[id] = true;
    x[id] = held(x[id] > 0 ? x[id] / p->repetition : x[id] * p->repetition, x[id]);
  }
}

static void penalise(const sh_proc *p, sh_proc_scratch *s, float *x, const int32_t *prompt, int n_prompt, const int32_t *out, int n_out) {
  if (p->repetition != 1) {
    repeat_once(p, s, x, prompt, n_prompt);
    repeat_once(p, s, x, out, n_out);
    for (int i = 0; i < n_prompt; i++) s->seen[prompt[i]] = false;
    for (int i = 0; i < n_out; i++) s->seen[out[i]] = false;
  }
  if (p->frequency == 0 && p->presence == 0) return;
  for (int i = 0; i < n_out; i++) s->count[out[i]]++;
  for (int i = 0; i < n_out; i++) {
    int32_t id = out[i];
    if (s->count[id] == 0) continue;
    x[id] = held(x[id] - p->frequency * (float)s->count[id], x[id]);
    x[id] = held(x[id] - p->presence, x[id]);
    s->count[id] = 0;
  }
}

void sh_proc_apply(const sh_proc *p, sh_proc_scratch *s, float *x, const int32_t *prompt, int n_prompt, const int32_t *out, int n_out) {
  if (p->n_allowed) keep_allowed(p, s, x);
  if (p->n_bad_words) mask_bad_words(p, x, out, n_out);
  if (n_out < p->min_tokens)
    for (int i = 0; i < p->n_ends; i++) x[p->ends[i]] = -INFINITY;
  for (int i = 0; i < p->n_bias; i++) {
    float *logit = &x[p->bias[i].id];
    *logit = held(*logit + p->bias[i].bias, *logit);
  }
  penalise(p, s, x, prompt, n_prompt, out, n_out);
}
