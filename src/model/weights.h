/* A checkpoint's tensors bound to named fields. Matrices are views into the map (zero copy), or, where the kernels read them in another
 * form, into memory or a cache file that they were repacked to (formats/repack.h); small vectors are owned float32 arrays in the form
 * the computation wants, whatever the file stored. Immutable after sh_weights_bind; shared by all threads. Letters of shapes:
 * model/config.h. */
#ifndef SH_MODEL_WEIGHTS_H
#define SH_MODEL_WEIGHTS_H

#include "base/prefetch.h"
#include "formats/repack.h"
#include "model/config.h"

typedef struct sh_w_expert {
  sh_wview gate, up, down;
} sh_w_expert; /* [I, H], [I, H], [H, I] */

typedef struct sh_w_moe {
  sh_wview router;      /* [E, H] */
  sh_w_expert *experts; /* [E]; views of fused and of per-expert tensors alike */
  int n_experts;
  sh_wview shared_gate, shared_up, shared_down; /* [Is, H], [Is, H], [H, Is] */
  sh_wview shared_expert_gate;                  /* [1, H] */
} sh_w_moe;

/* Norm gains are the final multiplier: (1 + w) is already taken where the file stores w. Every float array is 16-byte aligned. */
typedef struct sh_w_layer {
  bool is_linear;
  const float *input_norm, *post_norm; /* [H], [H]: before the mixer, before the FFN */

  /* full attention (is_linear false) */
  sh_wview q, k, v, o;          /* [q_rows, H], [Hkv D, H], [Hkv D, H], [H, Hq D] */
  const float *q_norm, *k_norm; /* [D], [D]; NULL when config.qk_norm is false */
  const float *q_bias, *k_bias, *v_bias,
      *o_bias; /* [q_rows], [Hkv D], [Hkv D], [H]; NULL: none (q, k, v exist exactly when config.attn_bias) */

  /* gated delta rule (is_linear true) */
  sh_wview in_qkv, in_z, in_a, in_b; /* [C, H], [Hv Dv, H], [Hv, H], [Hv, H] */
  sh_wview lin_out;                  /* [H, Hv Dv] */
  const float *conv;                 /* [C, K], oldest tap first */
  const float *neg_exp_a;            /* [Hv]: -exp(A_log) */
  const float *dt_bias;              /* [Hv] */
  const float *lin_norm;             /* [Dv] */

  /* dense FFN, or moe */
  sh_wview gate, up, down; /* [F, H], [F, H], [H, F]; zeroed when moe */
  sh_w_moe *moe;           /* NULL: dense */
} sh_w_layer;

typedef struct sh_w_mtp {
  sh_wview fc;                 /* [H, 2 H]: input is embedding, then hidden */
  const float *norm_embedding; /* [H] */
  const float *norm_hidden;    /* [H] */
  sh_w_layer layer;            /* full attention */
  const float *norm;           /* [H]: before the shared head */
} sh_w_mtp;

typedef struct sh_weights {
  sh_wview embed;          /* [V, H] */
  sh_wview head;           /* [V, H]; the same view as embed when tied, unless own_head */
  bool own_head;           /* tied, and the head is panels beside the embedding's rows */
  const float *final_norm; /* [H] */
  sh_w_layer *layers;      /* [n_layers] */
  int n_layers;
  sh_w_mtp *mtp;           /* NULL: the file has none */
  size_t bytes;            /* of all bound tensors as stored, MTP's included */
  size_t mtp_bytes;        /* MTP's part of it */
  size_t held_bytes;       /* that must stay in memory: what a pass reads, and all of what was repacked into memory */
  uint32_t dtypes;         /* bit 1u << sh_dtype for every type among the bound matrices, as stored */
  int n_visual;            /* tensors of the vision tower, left alone */
  int n_unused;            /* other tensors nobody asked for (named in the debug log) */
  size_t repacked_bytes;   /* of the parts that were rewritten, in memory or in a mapped cache file */
  bool repacked_in_memory; /* they are, and not in a file */
  sh_arena *private_arena;
  sh_repack *private_repack;
} sh_weights;

/* Binds and checks every tensor against the config, and repacks what is quantized and needs it (o: where to; NULL: the defaults). ck must
 * outlive w. Errors name the tensor, the wanted and the found shape or type. */
int sh_weights_bind(sh_weights *w, const sh_config *c, const sh_ckpt *ck, const sh_repack_opts *o, sh_error *e);

/* A dry binding for reports: goes on after what is missing or wrong, and tells what it finds. Pointers live for the call. */
typedef struct sh_w_found {
  const char *name;         /* that was asked for: "blk.3.attn_q.weight", "model.layers.0.mlp.up_proj.weight" */
  const sh_ftensor *tensor; /* as it is stored; of a quantized module: its weight */
  const sh_qmodule *module; /* NULL: plain */
  const sh_wview *view;     /* a matrix as it will be computed with (all experts of a fused tensor: the first); NULL: a vector */
  size_t bytes;             /* of everything stored for it; 0 when shared */
  bool mtp;
  bool looked_up; /* single rows of it are read, no product is computed with it */
  bool shared;    /* a tied head with a form of its own: the tensor was told as the embedding before */
} sh_w_found;
typedef struct sh_w_audit {
  void *ctx;
  void (*found)(void *ctx, const sh_w_found *f);
  void (*problem)(void *ctx, int code, const char *text); /* sh_weights_bind would have stopped here */
  void (*unused)(void *ctx, const sh_ftensor *t, bool visual);
} sh_w_audit;
/* Fills w as far as it can (only counts and flags are of use), repacks nothing; o: for which mode. Returns 0 also when there were problems;
 * SH_ERR_NOMEM. Free with sh_weights_free. */
int sh_weights_audit(sh_weights *w, const sh_config *c, const sh_ckpt *ck, const sh_repack_opts *o, const sh_w_audit *a, sh_error *e);
void sh_weights_free(sh_weights *w); /* accepts a zeroed or half-built struct */

/* Where the matrices that a pass reads lie in mapped files (what was repacked into memory is left out, and MTP's): *out [*n], caller frees
 * with sh_free. SH_ERR_NOMEM. */
int sh_weights_spans(const sh_weights *w, sh_span **out, size_t *n, sh_error *e);

/* "BF16, Q6_K": the types of w->dtypes. Returns buf. */
const char *sh_weights_dtypes(const sh_weights *w, char *buf, size_t size);

#endif
