/* The pieces of a layer that every architecture here has: full attention and the dense gated feed-forward.
 *
 * Runs on the engine's thread inside a step; allocates nothing. Each function is a straight list of backend calls on the model's scratch:
 * on a device backend the list is what gets enqueued, so nothing in here may look at a value. Differences between architectures (gate, head
 * norms, biases, rotation) are parameters in sh_attn or absent tensors, not branches. */
#include "model/pass.h"

/* x += o_proj(attention(q, k, v of h)) */
int sh_pass_attention(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  sh_backend *be = m->be;
  sh_scratch *s = &m->s;
  int n = b->n_tokens;
  int rc = op->linear(be, l->q, s->h, n, l->q_bias, false, s->q, e);
  if (rc == 0) rc = op->linear(be, l->k, s->h, n, l->k_bias, false, s->k, e);
  if (rc == 0) rc = op->linear(be, l->v, s->h, n, l->v_bias, false, s->v, e);
  if (rc == 0) rc = op->attention(be, m->cache, l->cache_index, &l->attn, b, s->q, s->k, s->v, s->att, e);
  if (rc == 0) rc = op->linear(be, l->o, s->att, n, l->o_bias, true, s->x, e);
  return rc;
}

/* x += down(silu(gate(h)) * up(h)) */
int sh_pass_ffn(sh_model *m, const sh_layer *l, int n, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  sh_backend *be = m->be;
  sh_scratch *s = &m->s;
  int rc = op->linear(be, l->gate, s->h, n, NULL, false, s->gate, e);
  if (rc == 0) rc = op->linear(be, l->up, s->h, n, NULL, false, s->up, e);
  if (rc == 0) rc = op->swiglu(be, s->gate, s->up, n, m->cfg.ffn, s->gate, e);
  if (rc == 0) rc = op->linear(be, l->down, s->gate, n, NULL, true, s->x, e);
  return rc;
}
