/* One layer of the llama architecture (SmolLM2 and its like): plain attention without head norms or gate, then the dense gated
 * feed-forward.
 *
 * Runs on the engine's thread inside a step; allocates nothing. It is the same list of calls as a dense Qwen3.5 attention layer, kept as
 * its own function so that a difference of either architecture has a place that cannot change the other. */
#include "model/pass.h"

int sh_llama_layer(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e) {
  const sh_backend_ops *op = m->be->ops;
  float eps = (float)m->cfg.rms_eps;
  int n = b->n_tokens;
  int rc = op->rmsnorm(m->be, m->s.x, l->input_norm, eps, n, m->s.h, e);
  if (rc == 0) rc = sh_pass_attention(m, l, b, e);
  if (rc == 0) rc = op->rmsnorm(m->be, m->s.x, l->post_norm, eps, n, m->s.h, e);
  if (rc == 0) rc = sh_pass_ffn(m, l, n, e);
  return rc;
}
