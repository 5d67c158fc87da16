/* One layer of Qwen3.5 (and 3.6), dense and MoE: a mixer, which is the gated delta rule in most layers and gated full attention in every
 * few, then a feed-forward, dense or routed; both on the normalised residual stream and added to it.
 *
 * Runs on the engine's thread inside a step; allocates nothing. The four input projections of a linear layer stay four calls: published
 * checkpoints quantize them apart (a and b are tiny and left alone), so one fused matrix would exist for some files only. */
#include "model/pass.h"

/* x += out_proj(gated delta rule of h) */
static int gated_delta(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  sh_backend *be = m->be;
  sh_scratch *s = &m->s;
  int n = b->n_tokens;
  int rc = op->linear(be, l->in_qkv, s->h, n, NULL, false, s->qkv, e);
  if (rc == 0) rc = op->linear(be, l->in_z, s->h, n, NULL, false, s->z, e);
  if (rc == 0) rc = op->linear(be, l->in_a, s->h, n, NULL, false, s->a, e);
  if (rc == 0) rc = op->linear(be, l->in_b, s->h, n, NULL, false, s->b, e);
  if (rc == 0) rc = op->gated_delta(be, m->cache, l->cache_index, &l->gdn, b, s->qkv, s->z, s->a, s->b, s->lin, e);
  if (rc == 0) rc = op->linear(be, l->lin_out, s->lin, n, NULL, true, s->x, e);
  return rc;
}

int sh_qwen35_layer(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  float eps = (float)m->cfg.rms_eps;
  int n = b->n_tokens;
  int rc = op->rmsnorm(m->be, m->s.x, l->input_norm, eps, n, m->s.h, e);
  if (rc == 0) rc = l->is_linear ? gated_delta(m, l, b, e) : sh_pass_attention(m, l, b, e);
  if (rc == 0) rc = op->rmsnorm(m->be, m->s.x, l->post_norm, eps, n, m->s.h, e);
  if (rc < 0) return rc;
  return l->moe.n_experts > 0 ? op->moe(m->be, &l->moe, m->s.h, n, true, m->s.x, e) : sh_pass_ffn(m, l, n, e);
}
