/* Random weights and activations for measurements and for the kernel checker. */
#ifndef SH_BENCH_FILL_H
#define SH_BENCH_FILL_H

#include "formats/tensor.h"

uint32_t sh_fill_u32(uint64_t *rng);                                 /* splitmix64 */
float sh_fill_uniform(uint64_t *rng, float lo, float hi);            /* [lo, hi) */
void sh_fill_floats(uint64_t *rng, float *p, size_t n, float scale); /* uniform in +-scale, a few zeros among them */
size_t sh_fill_row_bytes(sh_dtype t, int64_t k);
/* Rows of weights of about +-1 in every type; quantized blocks have any bits but for their scales. */
void sh_fill_weights(uint64_t *rng, sh_dtype t, uint8_t *p, size_t rows, size_t row_bytes, int64_t k);

#endif
