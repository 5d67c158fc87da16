/* What can be made: the shapes of released models, and the formats. */
#ifndef SH_SYNTH_SHAPES_H
#define SH_SYNTH_SHAPES_H

#include "base/err.h"
#include "base/mem.h"
#include "formats/tensor.h"

enum {
  SH_SYNTH_HEAD_DIM = 256, /* of full attention, in every model of the family */
  SH_SYNTH_ROTARY = 64,    /* of them that are rotated */
  SH_SYNTH_LIN_DIM = 128,  /* of a key or value head of a linear layer */
  SH_SYNTH_CONV = 4,       /* width of the convolution */
  SH_SYNTH_INTERVAL = 4,   /* every so many layers one has full attention */
  SH_SYNTH_SPECIALS = 33,  /* added tokens behind the vocabulary's own */
};

typedef struct sh_synth_shape {
  const char *name;
  int hidden, n_layers, n_heads, n_kv_heads, lin_k_heads, lin_v_heads;
  int ffn;                                   /* dense; 0: MoE */
  int n_experts, top_k, moe_ffn, shared_ffn; /* 0: dense */
  bool tied;                                 /* the head is the embedding */
  int n_tokens;                              /* of the vocabulary without the added tokens: the first of those has this id */
  int vocab;                                 /* padded: rows of the embedding */
  const char *source;                        /* where the numbers come from */
} sh_synth_shape;

typedef enum sh_synth_layout { SH_SL_PLAIN, SH_SL_AWQ, SH_SL_GPTQ, SH_SL_CT, SH_SL_INT8, SH_SL_FP8, SH_SL_GGUF } sh_synth_layout;

typedef struct sh_synth_format {
  const char *name;
  sh_synth_layout layout;
  sh_dtype type;  /* of the layers' matrices (PLAIN, GGUF) */
  bool grouped;   /* --group means something */
  int file_type;  /* general.file_type of a GGUF */
  const char *is; /* in words */
} sh_synth_format;

extern const sh_synth_shape sh_synth_shapes[];   /* ends with name == NULL */
extern const sh_synth_format sh_synth_formats[]; /* ends with name == NULL */

/* By name, case not looked at. SH_ERR_ARG with what there is. */
int sh_synth_find_shape(const char *name, const sh_synth_shape **out, sh_error *e);
int sh_synth_find_format(const char *name, const sh_synth_format **out, sh_error *e);

#endif
