/* Rotary frequencies: the plain ones and the scalings that are computed (linear, llama3, YaRN). */
#ifndef SH_MODEL_ROPE_H
#define SH_MODEL_ROPE_H

#include "base/err.h"
#include "model/config.h"

typedef struct sh_rope {
  sh_rope_kind kind;
  int dim; /* rotary dims, even */
  double theta;
  double factor;               /* of the scaling; ignored for SH_ROPE_NONE */
  double original_max;         /* llama3, YaRN: tokens the frequencies were trained for */
  double low_freq, high_freq;  /* llama3: low_freq_factor, high_freq_factor */
  double beta_fast, beta_slow; /* YaRN: rotations over original_max where interpolation ends and begins (32, 1) */
  double attention_factor;     /* YaRN: multiplier of cos and sin; 0 = the default 0.1 ln(factor) + 1 */
  bool truncate;               /* YaRN: correction range rounded to whole dims (true) */
} sh_rope;

/* Fills inv_freq[dim / 2] and *mscale (multiplier of cos and sin). SH_ERR_FORMAT for parameters that give no finite positive frequency. */
int sh_rope_frequencies(const sh_rope *r, double *inv_freq, double *mscale, sh_error *e);
/* m(s) = 0.1 mscale ln(s) + 1 above a scale of 1, else 1. */
double sh_rope_yarn_mscale(double scale, double mscale);

#endif
