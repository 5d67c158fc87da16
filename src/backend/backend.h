/* What a forward pass needs of a device: one struct of coarse calls on opaque tensors. cpu/ runs a call at once on its thread pool; a
 * device backend may enqueue it on a stream, in order, until sync() or a read. The engine and the model never name a backend.
 *
 * Every call describes a ragged batch: any mix of prompt chunks and single decode steps. A row's result does not depend on what else is in
 * the batch, on how a prompt was cut into chunks, or on the number of threads: on the CPU to the bit (docs/numerics.md). All activations
 * are float32 [rows, cols], row-major. Calls return 0 or a negative sh_err and leave the text in the caller's sh_error; a failed step must
 * not have touched any other sequence. One thread (the engine's) uses a backend at a time. After reserve() no call allocates. */
#ifndef SH_BACKEND_BACKEND_H
#define SH_BACKEND_BACKEND_H

#include "base/err.h"
#include "base/mem.h"
#include "formats/kv.h"
#include "formats/tensor.h"

typedef struct sh_backend sh_backend; /* { const sh_backend_ops *ops; ... private } */
typedef struct sh_tensor sh_tensor;   /* device activations or float32 parameters [rows, cols] */
typedef struct sh_weight sh_weight;   /* a bound matrix [rows = outputs, cols = inputs] in any supported format */
typedef struct sh_cache sh_cache;     /* KV pages of the attention layers and state slots of the linear layers */

/* One sequence's share of a step. Borrowed for the call. */
typedef struct sh_seq {
  int32_t row;          /* its first row in the batch */
  int32_t count;        /* tokens in this step, >= 1 */
  int32_t pos;          /* position of its first token = tokens already in the cache */
  int32_t slot;         /* state slot, [0, n_slots) */
  const int32_t *pages; /* page table: pages[p] holds positions [p * page_size, (p + 1) * page_size); covers pos + count */
} sh_seq;

typedef struct sh_batch {
  int n_seqs;
  const sh_seq *seqs; /* [n_seqs]; rows are consecutive and cover [0, n_tokens) */
  int n_tokens;
  const int32_t *ids;      /* [n_tokens], each in [0, vocab) */
  int n_out;               /* rows whose logits are wanted */
  const int32_t *out_rows; /* [n_out], ascending */
} sh_batch;

/* Shape of a cache. */
typedef struct sh_cache_spec {
  int n_attn_layers, n_kv_heads, head_dim; /* full-attention layers, in order */
  int page_size, n_pages;                  /* tokens; pages (each holds all attention layers) */
  sh_kv_type kv_type;
  int n_linear_layers;                   /* gated delta-rule layers, in order; 0 for llama */
  int lin_v_heads, lin_k_dim, lin_v_dim; /* state per layer: float32 [lin_v_heads, lin_k_dim, lin_v_dim] */
  int conv_channels, conv_kernel;        /* conv state per layer: float32 [conv_kernel - 1, conv_channels] */
  int n_slots;
} sh_cache_spec;
size_t sh_cache_page_bytes(const sh_cache_spec *s); /* one page, all layers; 0 when there is no attention layer */
size_t sh_cache_slot_bytes(const sh_cache_spec *s); /* one state slot, all layers */

/* Parameters of an attention layer. Gains may be NULL (llama has no q/k norm). */
typedef struct sh_attn {
  int n_heads, n_kv_heads, head_dim;
  int rotary_dim;                   /* first dims of a head that rotate; even */
  bool rope_interleaved;            /* pairs (2i, 2i+1) in place of (i, i + rotary_dim/2) */
  bool gated;                       /* q rows are [n_heads, 2, head_dim]: query then gate; out *= sigmoid(gate) */
  float scale;                      /* of q.k, head_dim^-0.5 */
  float eps;                        /* of the q/k norms */
  float rope_scale;                 /* multiplies cos and sin (yarn); 1 otherwise */
  const double *inv_freq;           /* host [rotary_dim / 2]; borrowed for the backend's life */
  const sh_tensor *q_gain, *k_gain; /* [1, head_dim] final multipliers or NULL */
} sh_attn;

/* Parameters of a gated delta-rule layer (facts: q, k, v = SiLU(causal conv); l2norm of q and k, eps 1e-6; q *= k_dim^-0.5; g = neg_exp_a *
 * softplus(a + dt_bias); beta = sigmoid(b); S = e^g S; S += beta k (v - S^T k)^T; o = S^T q; out = rmsnorm(o) * gain * silu(z)). */
typedef struct sh_gdn {
  int k_heads, v_heads, k_dim, v_dim, conv_kernel;
  bool v_tiled;               /* value head j uses key head j % k_heads (GGUF order) in place of j / (v_heads / k_heads) */
  float eps;                  /* of the output norm */
  const sh_tensor *conv_w;    /* [2 * k_heads * k_dim + v_heads * v_dim, conv_kernel] */
  const sh_tensor *neg_exp_a; /* [1, v_heads] */
  const sh_tensor *dt_bias;   /* [1, v_heads] */
  const sh_tensor *gain;      /* [1, v_dim] */
} sh_gdn;

/* Parameters of a routed feed-forward: softmax over all experts, top k (ties to the lower index), weights renormalised to sum 1, experts
 * summed in index order, plus sigmoid(shared_gate . x) * shared expert when there is one. */
typedef struct sh_moe {
  int n_experts, top_k;
  const sh_weight *router;                                /* [n_experts, hidden] */
  const sh_weight *const *gate, *const *up;               /* [n_experts] of [moe_ffn, hidden] */
  const sh_weight *const *down;                           /* [n_experts] of [hidden, moe_ffn] */
  const sh_weight *shared_gate, *shared_up, *shared_down; /* NULL when there is no shared expert */
  const sh_weight *shared_switch;                         /* [1, hidden]: sigmoid gate of the shared expert, or NULL */
} sh_moe;

/* Largest sizes any later call will use; lets a backend take its scratch once. */
typedef struct sh_reserve {
  int max_tokens, max_seqs, max_out; /* rows, sequences, logit rows of a step */
  int max_context;                   /* tokens of a sequence */
  int max_cols, max_rows;            /* over all bound matrices, head included */
  int n_heads, head_dim;             /* attention */
  int lin_v_heads, lin_k_dim, lin_v_dim, conv_channels;
  int n_experts, top_k, moe_ffn, shared_ffn, hidden;
} sh_reserve;

typedef struct sh_backend_ops {
  const char *name; /* "cpu" */
  void (*free)(sh_backend *be);
  const char *(*describe)(sh_backend *be); /* "2 threads, AVX2+FMA" for the start line; borrowed */
  int (*reserve)(sh_backend *be, const sh_reserve *r, sh_error *e);

  int (*tensor_new)(sh_backend *be, int64_t rows, int64_t cols, sh_tensor **out, sh_error *e); /* zeroed; free with tensor_free */
  void (*tensor_free)(sh_backend *be, sh_tensor *t);
  int (*tensor_write)(sh_backend *be, sh_tensor *t, int64_t row, int64_t n_rows, const float *src, sh_error *e); /* host to device */
  int (*tensor_read)(sh_backend *be, const sh_tensor *t, int64_t row, int64_t n_rows, float *dst, sh_error *e);  /* waits, device to host */
  /* Borrows v->data (and v->name) until weight_free. Unsupported format: SH_ERR_UNSUPPORTED naming it. */
  int (*weight_bind)(sh_backend *be, const sh_wview *v, sh_weight **out, sh_error *e);
  void (*weight_free)(sh_backend *be, sh_weight *w);
  /* Whether weights of a type can be bound; for types of formats/panel.h, that products with them are what default mode computes. NULL: no
   * panels. */
  bool (*takes)(sh_backend *be, sh_dtype type);
  /* For reports: the kernels that will multiply with v, "AVX2+FMA: dot to 7 rows, then gemm". Returns buf. */
  const char *(*weight_kernel)(sh_backend *be, const sh_wview *v, char *buf, size_t size);

  int (*cache_new)(sh_backend *be, const sh_cache_spec *spec, sh_cache **out,
                   sh_error *e); /* memory is committed lazily where the system can */
  void (*cache_free)(sh_backend *be, sh_cache *c);
  int (*slot_zero)(sh_backend *be, sh_cache *c, int slot, sh_error *e); /* state of a sequence at position 0 */
  int (*slot_copy)(sh_backend *be, sh_cache *c, int dst, int src, sh_error *e);
  int (*page_copy)(sh_backend *be, sh_cache *c, int dst, int src, sh_error *e);

  int (*embed)(sh_backend *be, const sh_weight *w, const int32_t *ids, int n, sh_tensor *y, sh_error *e);   /* y [n, hidden] */
  int (*gather)(sh_backend *be, const sh_tensor *x, const int32_t *rows, int n, sh_tensor *y, sh_error *e); /* y[i] = x[rows[i]] */
  int (*rmsnorm)(sh_backend *be, const sh_tensor *x, const sh_tensor *gain, float eps, int n, sh_tensor *y,
                 sh_error *e); /* y = x / rms(x) * gain */
  /* y[n, w.rows] = x[n, w.cols] W^T (+ y when add). bias [1, w.rows] or NULL. x and y may have more columns than used: row strides are
   * their cols. */
  int (*linear)(sh_backend *be, const sh_weight *w, const sh_tensor *x, int n, const sh_tensor *bias, bool add, sh_tensor *y, sh_error *e);
  int (*swiglu)(sh_backend *be, const sh_tensor *gate, const sh_tensor *up, int n, int cols, sh_tensor *y,
                sh_error *e); /* y = silu(gate) * up */
  /* Norms and rotates q and k, stores k and v of the batch in the pages of attention layer `layer`, attends causally, gates.
   * q [n, n_heads * head_dim * (gated ? 2 : 1)], k, v [n, n_kv_heads * head_dim]; out [n, n_heads * head_dim]. q and k may be overwritten.
   */
  int (*attention)(sh_backend *be, sh_cache *c, int layer, const sh_attn *p, const sh_batch *b, sh_tensor *q, sh_tensor *k,
                   const sh_tensor *v, sh_tensor *out, sh_error *e);
  /* Convolution, gated delta rule and output norm of linear layer `layer`; reads and advances the slots' states.
   * qkv [n, 2 * k_heads * k_dim + v_heads * v_dim], z and out [n, v_heads * v_dim], a and bb [n, v_heads]. qkv may be overwritten. */
  int (*gated_delta)(sh_backend *be, sh_cache *c, int layer, const sh_gdn *p, const sh_batch *b, sh_tensor *qkv, const sh_tensor *z,
                     const sh_tensor *a, const sh_tensor *bb, sh_tensor *out, sh_error *e);
  int (*moe)(sh_backend *be, const sh_moe *p, const sh_tensor *x, int n, bool add, sh_tensor *y, sh_error *e); /* y [n, hidden] */
  int (*sync)(sh_backend *be, sh_error *e);
} sh_backend_ops;

struct sh_backend {
  const sh_backend_ops *ops;
};

/* Whether quantized weights shall be brought into panels for it. */
static inline bool sh_backend_takes_panels(sh_backend *be) {
  bool (*takes)(sh_backend *, sh_dtype) = be->ops->takes;
  return takes && takes(be, SH_P4) && takes(be, SH_P6) && takes(be, SH_P8);
}

typedef struct sh_backend_opts {
  int threads;     /* 0 = every usable core */
  const char *cpu; /* instruction sets to allow: NULL or "native", "avx2", "baseline" (plain C) */
} sh_backend_opts;
/* The CPU backend. Caller frees with (*out)->ops->free. */
int sh_backend_cpu_new(sh_backend **out, const sh_backend_opts *o, sh_error *e);

#endif
