/* Binding: hands every matrix of the main path to the backend and writes the small vectors into parameter tensors.
 *
 * Runs once, on the thread that opens the model. The order of the calls is the order of use in a pass, so a backend that repacks while
 * binding reads the file from front to back. Everything bound is kept in two lists of the model, and only those lists are freed: a layer's
 * pointers are plain references, so a half-bound model is freed by the same lines as a whole one. The other design, a free function that
 * walks the layers field by field, was refused: it has to know again which fields share a weight (a tied head) and which belong to someone
 * else.
 *
 * The MTP head stays in sh_weights, mapped and unbound: no pass computes it. */
#include "model/pass.h"

static int add_matrix(sh_model *m, const sh_wview *v, sh_weight **out, sh_error *e) {
  if (m->n_bound == m->cap_bound) {
    int cap = m->cap_bound ? 2 * m->cap_bound : 64;
    sh_weight **p = sh_realloc(m->bound, (size_t)cap * sizeof *p);
    if (!p) return sh_fail(e, SH_ERR_NOMEM, "no memory for a table of %d weights", cap);
    m->bound = p;
    m->cap_bound = cap;
  }
  int rc = m->be->ops->weight_bind(m->be, v, out, e);
  if (rc < 0) return rc;
  m->bound[m->n_bound++] = *out;
  return 0;
}

int sh_model_tensor(sh_model *m, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e) {
  if (m->n_tensors == m->cap_tensors) {
    int cap = m->cap_tensors ? 2 * m->cap_tensors : 64;
    sh_tensor **p = sh_realloc(m->tensors, (size_t)cap * sizeof *p);
    if (!p) return sh_fail(e, SH_ERR_NOMEM, "no memory for a table of %d tensors", cap);
    m->tensors = p;
    m->cap_tensors = cap;
  }
  int rc = m->be->ops->tensor_new(m->be, rows, cols, out, e);
  if (rc < 0) return rc;
  m->tensors[m->n_tensors++] = *out;
  return 0;
}

/* A parameter [rows, cols] from host floats. NULL stays NULL: an absent bias or gain. */
static int add_param(sh_model *m, const float *src, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e) {
  *out = NULL;
  if (!src) return 0;
  int rc = sh_model_tensor(m, rows, cols, out, e);
  if (rc < 0) return rc;
  return m->be->ops->tensor_write(m->be, *out, 0, rows, src, e);
}

static int bind_attention(sh_model *m, const sh_w_layer *w, sh_layer *l, sh_error *e) {
  const sh_config *c = &m->cfg;
  int64_t q_rows = sh_config_q_rows(c), kv_rows = (int64_t)c->n_kv_heads * c->head_dim;
  sh_tensor *q_gain = NULL, *k_gain = NULL;
  int rc = add_matrix(m, &w->q, &l->q, e);
  if (rc == 0) rc = add_matrix(m, &w->k, &l->k, e);
  if (rc == 0) rc = add_matrix(m, &w->v, &l->v, e);
  if (rc == 0) rc = add_matrix(m, &w->o, &l->o, e);
  if (rc == 0) rc = add_param(m, w->q_bias, 1, q_rows, &l->q_bias, e);
  if (rc == 0) rc = add_param(m, w->k_bias, 1, kv_rows, &l->k_bias, e);
  if (rc == 0) rc = add_param(m, w->v_bias, 1, kv_rows, &l->v_bias, e);
  if (rc == 0) rc = add_param(m, w->o_bias, 1, c->hidden, &l->o_bias, e);
  if (rc == 0) rc = add_param(m, w->q_norm, 1, c->head_dim, &q_gain, e);
  if (rc == 0) rc = add_param(m, w->k_norm, 1, c->head_dim, &k_gain, e);
  if (rc < 0) return rc;
  l->attn = (sh_attn){
      .n_heads = c->n_heads,
      .n_kv_heads = c->n_kv_heads,
      .head_dim = c->head_dim,
      .rotary_dim = c->rotary_dim,
      .rope_interleaved = c->rope_interleaved,
      .gated = c->attn_output_gate,
      .scale = (float)(1.0 / __builtin_sqrt((double)c->head_dim)),
      .eps = (float)c->rms_eps,
      .rope_scale = (float)c->rope_mscale,
      .inv_freq = c->inv_freq,
      .q_gain = q_gain,
      .k_gain = k_gain,
  };
  return 0;
}

static int bind_linear(sh_model *m, const sh_w_layer *w, sh_layer *l, sh_error *e) {
  const sh_config *c = &m->cfg;
  sh_tensor *conv = NULL, *neg_exp_a = NULL, *dt_bias = NULL, *gain = NULL;
  int rc = add_matrix(m, &w->in_qkv, &l->in_qkv, e);
  if (rc == 0) rc = add_matrix(m, &w->in_z, &l->in_z, e);
  if (rc == 0) rc = add_matrix(m, &w->in_a, &l->in_a, e);
  if (rc == 0) rc = add_matrix(m, &w->in_b, &l->in_b, e);
  if (rc == 0) rc = add_matrix(m, &w->lin_out, &l->lin_out, e);
  if (rc == 0) rc = add_param(m, w->conv, sh_config_conv_channels(c), c->conv_kernel, &conv, e);
  if (rc == 0) rc = add_param(m, w->neg_exp_a, 1, c->lin_v_heads, &neg_exp_a, e);
  if (rc == 0) rc = add_param(m, w->dt_bias, 1, c->lin_v_heads, &dt_bias, e);
  if (rc == 0) rc = add_param(m, w->lin_norm, 1, c->lin_v_dim, &gain, e);
  if (rc < 0) return rc;
  l->gdn = (sh_gdn){
      .k_heads = c->lin_k_heads,
      .v_heads = c->lin_v_heads,
      .k_dim = c->lin_k_dim,
      .v_dim = c->lin_v_dim,
      .conv_kernel = c->conv_kernel,
      .v_tiled = c->lin_v_tiled,
      .eps = (float)c->rms_eps,
      .conv_w = conv,
      .neg_exp_a = neg_exp_a,
      .dt_bias = dt_bias,
      .gain = gain,
  };
  return 0;
}

static int bind_moe(sh_model *m, const sh_w_moe *w, sh_layer *l, sh_error *e) {
  const sh_config *c = &m->cfg;
  int n = c->n_experts;
  l->experts = sh_calloc((size_t)n * 3, sizeof *l->experts);
  if (!l->experts) return sh_fail(e, SH_ERR_NOMEM, "no memory for a table of %d experts", n);
  sh_weight *router = NULL, *gate = NULL, *up = NULL, *down = NULL, *sw = NULL;
  int rc = add_matrix(m, &w->router, &router, e);
  for (int i = 0; rc == 0 && i < n; i++) {
    rc = add_matrix(m, &w->experts[i].gate, &l->experts[i], e);
    if (rc == 0) rc = add_matrix(m, &w->experts[i].up, &l->experts[n + i], e);
    if (rc == 0) rc = add_matrix(m, &w->experts[i].down, &l->experts[2 * n + i], e);
  }
  if (rc == 0 && c->shared_ffn > 0) {
    rc = add_matrix(m, &w->shared_gate, &gate, e);
    if (rc == 0) rc = add_matrix(m, &w->shared_up, &up, e);
    if (rc == 0) rc = add_matrix(m, &w->shared_down, &down, e);
    if (rc == 0) rc = add_matrix(m, &w->shared_expert_gate, &sw, e);
  }
  if (rc < 0) return rc;
  l->moe = (sh_moe){
      .n_experts = n,
      .top_k = c->experts_per_tok,
      .router = router,
      .gate = (const sh_weight *const *)l->experts,
      .up = (const sh_weight *const *)(l->experts + n),
      .down = (const sh_weight *const *)(l->experts + 2 * n),
      .shared_gate = gate,
      .shared_up = up,
      .shared_down = down,
      .shared_switch = sw,
  };
  return 0;
}

static int bind_layer(sh_model *m, const sh_w_layer *w, sh_layer *l, sh_error *e) {
  int H = m->cfg.hidden;
  l->is_linear = w->is_linear;
  int rc = add_param(m, w->input_norm, 1, H, &l->input_norm, e);
  if (rc == 0) rc = w->is_linear ? bind_linear(m, w, l, e) : bind_attention(m, w, l, e);
  if (rc == 0) rc = add_param(m, w->post_norm, 1, H, &l->post_norm, e);
  if (rc < 0) return rc;
  if (w->moe) return bind_moe(m, w->moe, l, e);
  rc = add_matrix(m, &w->gate, &l->gate, e);
  if (rc == 0) rc = add_matrix(m, &w->up, &l->up, e);
  if (rc == 0) rc = add_matrix(m, &w->down, &l->down, e);
  return rc;
}

int sh_model_config_check(const sh_config *c, sh_error *e) {
  if (!c->n_experts || c->norm_topk_prob) return 0;
  return sh_fail(e, SH_ERR_UNSUPPORTED, "norm_topk_prob is false: experts whose weights are not renormalised are not done by this program");
}

int sh_model_bind(sh_model *m, sh_error *e) {
  const sh_weights *w = &m->w;
  int rc = sh_model_config_check(&m->cfg, e);
  if (rc < 0) return rc;
  m->layers = sh_calloc((size_t)m->cfg.n_layers, sizeof *m->layers);
  if (!m->layers) return sh_fail(e, SH_ERR_NOMEM, "no memory for a table of %d layers", m->cfg.n_layers);
  rc = add_matrix(m, &w->embed, &m->embed, e);
  int n_linear = 0, n_full = 0;
  for (int i = 0; rc == 0 && i < m->cfg.n_layers; i++) {
    sh_layer *l = &m->layers[i];
    rc = bind_layer(m, &w->layers[i], l, e);
    if (rc < 0) return sh_fail_in(e, rc, "layer %d", i);
    l->cache_index = l->is_linear ? n_linear++ : n_full++;
  }
  if (rc == 0) rc = add_param(m, w->final_norm, 1, m->cfg.hidden, &m->final_norm, e);
  if (rc < 0) return rc;
  if (w->head.data == w->embed.data) {
    m->head = m->embed;
    return 0;
  }
  return add_matrix(m, &w->head, &m->head, e);
}

static void widen(sh_reserve *r, const sh_wview *v) {
  if (v->rows > r->max_rows) r->max_rows = (int)v->rows;
  if (v->cols > r->max_cols) r->max_cols = (int)v->cols;
}

void sh_model_extent(const sh_model *m, sh_reserve *r) {
  r->max_rows = r->max_cols = 0;
  widen(r, &m->w.embed);
  widen(r, &m->w.head);
  for (int i = 0; i < m->cfg.n_layers; i++) {
    const sh_w_layer *l = &m->w.layers[i];
    const sh_wview *v[] = {&l->q, &l->k, &l->v, &l->o, &l->in_qkv, &l->in_z, &l->in_a, &l->in_b, &l->lin_out, &l->gate, &l->up, &l->down};
    for (size_t j = 0; j < sizeof v / sizeof *v; j++) widen(r, v[j]); /* the views a layer lacks are zeroed */
    if (!l->moe) continue;
    const sh_wview *x[] = {&l->moe->router, &l->moe->shared_gate, &l->moe->shared_up, &l->moe->shared_down};
    for (size_t j = 0; j < sizeof x / sizeof *x; j++) widen(r, x[j]);
    for (int j = 0; j < m->cfg.n_experts; j++) {
      widen(r, &l->moe->experts[j].gate);
      widen(r, &l->moe->experts[j].down);
    }
  }
}
