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
  const sh_samples *calib; /* sh_quantize only: tokens to calibrate with; NULL for RTN and INT8 */
  int64_t max_memory;      /* bytes; 0: no bound */
  const char
      *calib_choice;     /* by which options those tokens are chosen, as fields of a job (quant/writer.h): known before they are; or NULL */
  int own_seqs, own_len; /* sequences that the model will write for the calibration, tokens of one at most: the bound holds for it too */
  int report_seq_len;    /* the caller will make a report in OUT, with windows of so many tokens: the bound holds for it too; 0: none */
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
  int64_t bytes;          /* of all tensors in the folder, whichever run wrote them */
  double bits_per_weight; /* of the quantized modules, scales and zero points included */
  double seconds;
  double search_gflops; /* GFLOP/s of the scale searches, rounding included; 0: none */
  int64_t peak_bytes;   /* the process's largest resident set until the end, mapped pages included */
} sh_quantize_result;

/* path: a Hugging Face folder with bf16, f16 or f32 weights. */
int sh_quantize(const char *path, const sh_quantize_opts *o, sh_quantize_result *r, sh_error *e);

/* The same in steps, for a caller to whom the calibration tokens cost minutes: what can be refused without them is refused before.
 * open checks the source, the options, the bound on memory as far as it is known, OUT and its disk, and locks OUT.partial; o and what it
 * points to are borrowed until the close, which leaves OUT.partial for --resume. */
typedef struct sh_quantizer sh_quantizer;
int sh_quantizer_open(sh_quantizer **q, const char *path, const sh_quantize_opts *o, sh_error *e);
void sh_quantizer_close(sh_quantizer *q); /* accepts NULL */
/* With resume: a run before made all of OUT; only its report may be left to do. */
bool sh_quantizer_whole(const sh_quantizer *q);
/* Whether memory (SH_ERR_LIMIT) and disk (SH_ERR_IO) have room for so many calibration tokens. */
int sh_quantizer_room(sh_quantizer *q, int n_seqs, int64_t tokens, sh_error *e);
/* calib: NULL for RTN and INT8; says: for the card, where it comes from. */
int sh_quantizer_run(sh_quantizer *q, const sh_samples *calib, const char *says, sh_quantize_result *r, sh_error *e);
#endif
