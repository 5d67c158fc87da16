/* Quantizing a checkpoint: `sheng quantize` as a function. */
#ifndef SH_QUANT_QUANTIZE_H
#define SH_QUANT_QUANTIZE_H

#include "base/err.h"
#include "quant/codes.h"
#include "quant/samples.h"

typedef enum sh_qmethod {
  SH_QM_AWQ,  /* scales and ranges searched, then rounded to nearest */
  SH_QM_GPTQ, /* rounded with error compensation */
  SH_QM_RTN,  /* rounded to nearest: no calibration */
  SH_QM_INT8, /* 8 bits, symmetric, one scale a row, rounded to nearest */
  SH_QM_FOLD, /* AWQ's scales folded and nothing rounded, in float32: computes the same as the source (for tests) */
} sh_qmethod;

typedef struct sh_quantize_opts {
  const char *out; /* folder to make */
  sh_qmethod method;
  sh_qformat format;
  int bits;      /* 4 or 8 */
  int64_t group; /* columns per scale; -1: a row */
  bool zero_point, pow2;
  bool int8_activations;   /* the config asks for int8 activations (INT8) */
  const char *const *keep; /* [n_keep] patterns of modules that stay as they are */
  int n_keep;
  const char *const *also; /* [n_also] patterns of modules to quantize that usually stay: lm_head, mtp, in_proj_a, gate, ... */
  int n_also;
  const sh_samples *calib; /* tokens to calibrate with; NULL for RTN and INT8 */
  const char *calib_says;  /* for the card: where they come from */
  int64_t max_memory;      /* bytes; 0: no bound */
  uint64_t seed;
  bool resume;
  bool act_order; /* GPTQ */
  double damp;    /* GPTQ; 0: 0.01 */
  int threads;
  const char *cpu;
  void (*progress)(void *ctx, int done, int total, const char *what); /* after each part; NULL: none */
  void *ctx;
  const volatile bool *stop; /* set from a signal: the run ends at the next point (SH_ERR_CANCELLED); NULL: never */
} sh_quantize_opts;

typedef struct sh_quantize_result {
  int n_modules;          /* quantized */
  int64_t weights;        /* in them */
  int64_t bytes;          /* of all tensors written */
  double bits_per_weight; /* of the quantized modules, scales and zero points included */
  double seconds;
  double search_gflops; /* GFLOP/s of the scale searches, rounding included; 0: none */
  int64_t peak_bytes;   /* resident set, the largest seen after a layer */
} sh_quantize_result;

/* path: a Hugging Face folder with bf16, f16 or f32 weights. */
int sh_quantize(const char *path, const sh_quantize_opts *o, sh_quantize_result *r, sh_error *e);

#endif
