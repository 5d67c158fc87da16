/* What a quantization is calibrated on: a file of the user's, or the text in the program and answers of the model itself. */
#ifndef SH_QUANT_CALIB_H
#define SH_QUANT_CALIB_H

#include "quant/samples.h"

typedef struct sh_calib_opts {
  const char *file;     /* NULL: the text in the program, then the model's own answers */
  int samples, seq_len; /* sequences at most; tokens of one at most */
  int own;              /* of the samples, how many the model writes itself (0 with a file) */
  uint64_t seed;
  int threads;
  const char *cpu;
  const volatile bool *stop; /* as in sh_quantize_opts */
} sh_calib_opts;

enum { SH_CALIB_LEAST = 64 }; /* tokens in all */

/* How many of the samples the model will write. */
int sh_calib_own(const sh_calib_opts *o);
/* The texts: of the file, or of the program's. model: a folder. Caller frees with sh_samples_free, after a failure too. */
int sh_calib_texts(sh_samples *out, const char *model, const sh_calib_opts *o, sh_error *e);
/* Adds what the model writes (nothing with a file), which takes minutes, and says in a phrase for the model card what came together: *says
 * is allocated (sh_free). Too little text (under SH_CALIB_LEAST tokens) is SH_ERR_ARG. */
int sh_calib_answers(sh_samples *out, char **says, const char *model, const sh_calib_opts *o, sh_error *e);

#endif
