/* Operations and bytes of a step. Any thread.
 *
 * Left out, because they are far below a percent of any model's: gains, biases, convolution weights, activations (which stay in the
 * caches), and the arithmetic of attention and the delta rule (GOP/s is that of the products with weights, over the whole time; the profile
 * says what the rest takes). */
#include "bench/costs.h"

#include <math.h>

#include "formats/panel.h"

size_t sh_view_bytes(const sh_wview *v) {
  if (v->rows < 1) return 0; /* a matrix that the layer lacks */
  size_t rows = (size_t)v->rows, cols = (size_t)v->cols;
  size_t order = v->perm ? cols * sizeof *v->perm : 0;
  if (sh_dtype_is_panel(v->type)) return (size_t)sh_panel_count(v->rows) * SH_PANEL_ROWS * v->row_bytes + order;
  size_t n = rows * (cols / (size_t)sh_dtype_block(v->type)) * (size_t)sh_dtype_block_bytes(v->type);
  if (v->scales) {
    size_t groups = (cols + (size_t)v->group - 1) / (size_t)v->group, high = (size_t)v->scale_rows;
    n += (rows + high - 1) / high * groups * (size_t)sh_dtype_block_bytes(v->scale_type);
    if (v->zeros) n += rows * groups;
  }
  return n + order;
}

static bool is_integer(sh_dtype t) { return t != SH_F32 && t != SH_F16 && t != SH_BF16 && t != SH_F64 && t != SH_F8_E4M3; }

typedef struct sum {
  double ops, integer_ops, bytes;
} sum;

/* `share` of a matrix: 1, or what a token passes of it on average. */
static void add(sum *s, const sh_wview *v, double share) {
  double ops = 2.0 * (double)v->rows * (double)v->cols * share;
  s->ops += ops;
  if (is_integer(v->type)) s->integer_ops += ops;
  s->bytes += (double)sh_view_bytes(v);
}

static void add_experts(sum *layers, sum *experts, const sh_w_moe *m, int top_k) {
  const sh_wview *shared[] = {&m->router, &m->shared_gate, &m->shared_up, &m->shared_down, &m->shared_expert_gate};
  for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) add(layers, shared[i], 1);
  for (int i = 0; i < m->n_experts; i++) {
    const sh_w_expert *x = &m->experts[i];
    const sh_wview *v[] = {&x->gate, &x->up, &x->down};
    for (int j = 0; j < 3; j++) add(experts, v[j], (double)top_k / m->n_experts);
  }
}

void sh_costs_of(sh_costs *c, const sh_config *cfg, const sh_weights *w, size_t kv_bytes_per_token, size_t state_bytes) {
  sum layers = {0}, experts = {0}, head = {0};
  for (int i = 0; i < w->n_layers; i++) {
    const sh_w_layer *l = &w->layers[i];
    const sh_wview *v[] = {&l->q, &l->k, &l->v, &l->o, &l->in_qkv, &l->in_z, &l->in_a, &l->in_b, &l->lin_out, &l->gate, &l->up, &l->down};
    for (size_t j = 0; j < sizeof v / sizeof *v; j++) add(&layers, v[j], 1); /* the views a layer lacks are zeroed */
    if (l->moe) add_experts(&layers, &experts, l->moe, cfg->experts_per_tok);
  }
  add(&head, &w->head, 1);
  double ops = layers.ops + experts.ops + head.ops;
  *c = (sh_costs){
      .token_ops = layers.ops + experts.ops,
      .head_ops = head.ops,
      .integer_share = ops > 0 ? (layers.integer_ops + experts.integer_ops + head.integer_ops) / ops : 0,
      .layer_bytes = layers.bytes,
      .expert_bytes = cfg->n_experts ? experts.bytes / cfg->n_experts : 0,
      .head_bytes = head.bytes,
      .embed_row_bytes = w->embed.rows > 0 ? (double)sh_view_bytes(&w->embed) / (double)w->embed.rows : 0,
      .n_experts = cfg->n_experts,
      .top_k = cfg->experts_per_tok,
      .state_bytes = (double)state_bytes,
      .kv_bytes = (double)kv_bytes_per_token,
  };
}

double sh_costs_ops(const sh_costs *c, const sh_batch *b) { return c->token_ops * b->n_tokens + c->head_ops * b->n_out; }

double sh_costs_bytes(const sh_costs *c, const sh_batch *b) {
  double chosen = c->n_experts ? c->n_experts * (1 - pow(1 - (double)c->top_k / c->n_experts, b->n_tokens)) : 0;
  double n = c->layer_bytes + c->expert_bytes * chosen + (b->n_out > 0 ? c->head_bytes : 0) + c->embed_row_bytes * b->n_tokens;
  for (int i = 0; i < b->n_seqs; i++) {
    const sh_seq *s = &b->seqs[i];
    n += 2 * c->state_bytes + c->kv_bytes * (s->pos + 2.0 * s->count); /* all up to the last read, the new ones written */
  }
  return n;
}
