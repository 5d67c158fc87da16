/* Private to src/model (and to tests that break a parameter on purpose): what an open model is, and the pieces of a forward pass that the
 * architectures share.
 *
 *   bind.c   weights and parameters on the backend      pass.c    attention and dense feed-forward, as backend calls
 *   model.c  open, sizes, checks, the step              qwen35.c, llama.c   one layer of their architecture
 *
 * Letters of shapes: model/config.h; n = rows of the batch. */
#ifndef SH_MODEL_PASS_H
#define SH_MODEL_PASS_H

#include "model/model.h"
#include "model/weights.h"

/* One layer as the backend sees it. Everything it points to is owned by the model's lists below. */
typedef struct sh_layer {
  bool is_linear;
  int cache_index;                   /* its number among the layers of its kind */
  sh_tensor *input_norm, *post_norm; /* [1, H] */

  sh_weight *q, *k, *v, *o;                     /* full attention: [q_rows, H], [Hkv D, H], [Hkv D, H], [H, Hq D] */
  sh_tensor *q_bias, *k_bias, *v_bias, *o_bias; /* [1, rows]; NULL: none */
  sh_attn attn;

  sh_weight *in_qkv, *in_z, *in_a, *in_b; /* gated delta rule: [C, H], [Hv Dv, H], [Hv, H], [Hv, H] */
  sh_weight *lin_out;                     /* [H, Hv Dv] */
  sh_gdn gdn;

  sh_weight *gate, *up, *down; /* dense: [F, H], [F, H], [H, F] */
  sh_moe moe;                  /* n_experts 0: dense */
  sh_weight **experts;         /* [3 E], owned: gates, ups, downs; moe points into it */
} sh_layer;

/* Activations of a step, taken once by sh_model_reserve; the rows of a batch are rows 0..n-1. The mixers' own tensors exist only where such
 * a layer does. */
typedef struct sh_scratch {
  sh_tensor *x, *h;           /* [max_tokens, H]: residual stream; normalised input of a block */
  sh_tensor *q, *k, *v, *att; /* [max_tokens, q_rows], [.., Hkv D], [.., Hkv D], [.., Hq D] */
  sh_tensor *qkv, *z, *lin;   /* [max_tokens, C], [.., Hv Dv], [.., Hv Dv] */
  sh_tensor *a, *b;           /* [max_tokens, Hv] */
  sh_tensor *gate, *up;       /* [max_tokens, F] */
  sh_tensor *out_x, *out_h;   /* [head_rows, H]: rows whose logits are wanted */
  sh_tensor *logits;          /* [head_rows, V] */
} sh_scratch;

struct sh_model {
  sh_config cfg; /* sh_attn.inv_freq points into it */
  sh_weights w;
  sh_backend *be;                                                               /* borrowed */
  int (*layer)(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e); /* x += mixer(norm(x)); x += ffn(norm(x)) */
  char describe[256];
  sh_prefetch *ahead; /* NULL: nothing is being read */

  sh_weight *embed, *head; /* the same when tied */
  sh_tensor *final_norm;   /* [1, H] */
  sh_layer *layers;        /* [n_layers] */
  sh_weight **bound;       /* [n_bound] everything to give back with weight_free */
  sh_tensor **tensors;     /* [n_tensors] parameters and scratch, for tensor_free */
  int n_bound, cap_bound, n_tensors, cap_tensors;

  bool reserved;
  sh_model_sizes sizes;
  int head_rows; /* logit rows computed at a time */
  sh_cache *cache;
  sh_scratch s;
  int64_t *slot_seen; /* [n_slots]: the step that used the slot last; finds two sequences on one slot */
  int64_t step;
};

/* bind.c */
int sh_model_bind(sh_model *m, sh_error *e); /* all weights and parameters of the main path */
int sh_model_tensor(sh_model *m, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e); /* a zeroed tensor that the model owns */
void sh_model_extent(const sh_model *m, sh_reserve *r); /* max_rows and max_cols over the bound matrices */

/* pass.c: y += ..., on the residual stream m->s.x, from the normalised input m->s.h. */
int sh_pass_attention(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e);
int sh_pass_ffn(sh_model *m, const sh_layer *l, int n, sh_error *e);

/* qwen35.c, llama.c */
int sh_qwen35_layer(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e);
int sh_llama_layer(sh_model *m, const sh_layer *l, const sh_batch *b, sh_error *e);

#endif
