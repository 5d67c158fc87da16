/* The dimensions of a model: one plain struct, filled from config.json or from GGUF metadata, checked once at load. Everything that
 * computes takes sizes from here. A field that would change the mathematics and is not done by this program is refused by name, never
 * ignored.
 *
 * Names of sizes used in shape comments of the model layer:
 *   V vocab_size   H hidden   F ffn   D head_dim   Hq n_heads   Hkv n_kv_heads   R rotary_dim
 *   Hk lin_k_heads   Hv lin_v_heads   Dk lin_k_dim   Dv lin_v_dim   C sh_config_conv_channels (2 Hk Dk + Hv Dv)   K conv_kernel
 *   E n_experts   I moe_ffn   Is shared_ffn */
#ifndef SH_MODEL_CONFIG_H
#define SH_MODEL_CONFIG_H

#include "base/err.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

typedef enum sh_arch { SH_ARCH_QWEN35, SH_ARCH_QWEN35_MOE, SH_ARCH_LLAMA } sh_arch;
typedef enum sh_rope_kind { SH_ROPE_NONE, SH_ROPE_LINEAR, SH_ROPE_LLAMA3, SH_ROPE_YARN } sh_rope_kind;

/* Limits on what a file may claim; the largest published model is below a tenth of each. */
enum { SH_MAX_LAYERS = 512, SH_MAX_HEAD_DIM = 1024, SH_MAX_EOS = 16 };

/* A plain value: owns nothing, may be copied. */
typedef struct sh_config {
  sh_arch arch;
  bool from_gguf;
  int vocab_size, hidden, n_layers;  /* n_layers: main layers, without MTP */
  int n_heads, n_kv_heads, head_dim; /* full attention; n_heads % n_kv_heads == 0 */
  int ffn;                           /* dense FFN width; 0 for MoE */
  double rms_eps;
  bool tied;                           /* the head is the embedding matrix */
  bool layer_is_linear[SH_MAX_LAYERS]; /* [n_layers]: gated delta rule, else full attention */
  int n_linear, n_full;                /* their counts */

  int rotary_dim; /* even, <= head_dim: the first dims of a head that are rotated */
  double rope_theta;
  sh_rope_kind rope_kind;
  double rope_factor; /* of the scaling; 1 when none */
  /* Angle of pair i at position p is p * inv_freq[i], scaling (and a GGUF's rope_freqs) included. Each value is a float32 (as the reference
   * computes it; it takes the angle as a float32 product too) kept in a double. */
  double inv_freq[SH_MAX_HEAD_DIM / 2]; /* [rotary_dim / 2] */
  double rope_mscale;                   /* cos and sin are multiplied by it (YaRN; 1 otherwise) */
  bool rope_interleaved; /* pairs are (2i, 2i+1) (llama GGUF: rows of q and k are permuted); false: rotate-half, pairs (i, i + rotary_dim/2)
                          */

  bool attn_output_gate; /* q_proj has, per head, D query rows and then D gate rows; the attention output is multiplied by sigmoid(gate) */
  bool qk_norm;          /* RMS norms of q and k heads before the rotation (Qwen3.5) */
  bool attn_bias;        /* q, k, v have biases (sh_w_layer.q_bias ...); o_bias may be there as well */

  int lin_k_heads, lin_v_heads, lin_k_dim, lin_v_dim, conv_kernel; /* all 0 for llama; lin_v_heads % lin_k_heads == 0 */
  bool lin_v_tiled; /* which key head serves value head j: true (GGUF) j % Hk, false (HF) j / (Hv / Hk) */

  int n_experts, experts_per_tok, moe_ffn, shared_ffn; /* all 0 when dense; shared_ffn > 0 for Qwen3.5 MoE */
  bool norm_topk_prob;                                 /* chosen experts' weights are divided by their sum (always for Qwen3.5 MoE) */

  int mtp_layers;                 /* as the file says; whether the tensors are there is sh_weights.mtp */
  int max_position;               /* tokens the model is meant for, YaRN included */
  int bos_id;                     /* -1: none */
  int eos_ids[SH_MAX_EOS], n_eos; /* of config.json or the GGUF only (generation_config.json is merged by the caller) */
  sh_dtype dtype; /* "dtype"/"torch_dtype" of config.json (SH_OTHER when not said); for a GGUF the type of token_embd.weight */
} sh_config;

/* From an open checkpoint, HF folder or GGUF. */
int sh_config_load(sh_config *c, const sh_ckpt *ck, sh_error *e);
/* The two halves of it, for tests and fuzzing. root: the whole of config.json. */
int sh_config_from_json(sh_config *c, const sh_json *root, sh_error *e);
int sh_config_from_gguf(sh_config *c, const sh_gguf *g, sh_error *e);

const char *sh_arch_name(sh_arch a);               /* "qwen3_5", "qwen3_5_moe", "llama" */
const char *sh_rope_kind_name(sh_rope_kind k);     /* "none", "linear", "llama3", "yarn" */
int sh_config_q_rows(const sh_config *c);          /* rows of q_proj: Hq D, twice that with the gate */
int sh_config_conv_channels(const sh_config *c);   /* 2 Hk Dk + Hv Dv: order q, k, v */
size_t sh_config_state_floats(const sh_config *c); /* delta-rule state of one linear layer and sequence: Hv Dk Dv */
size_t sh_config_conv_floats(const sh_config *c);  /* conv state of one linear layer and sequence: C (K - 1) */
/* One line for the start-up log: "qwen3_5_moe, 40 layers (30 linear, 10 full), hidden 2048, ...". Returns buf. */
const char *sh_config_describe(const sh_config *c, char *buf, size_t size);

#endif
