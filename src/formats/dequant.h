/* Reference dequantization: any supported storage type to float32, plain C, exact (the products of a block's scale and its integers are
 * rounded once, as the format's definition in float32 says). For embeddings, small vectors and tests; fast variants live in kernels/. */
#ifndef SH_FORMATS_DEQUANT_H
#define SH_FORMATS_DEQUANT_H

#include "formats/tensor.h"

bool sh_dequant_supported(sh_dtype t); /* F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q6_K */
/* out[cols]. The view was checked when it was bound: row in range, cols a multiple of the block. */
void sh_dequant_row(const sh_wview *w, int64_t row, float *out);
/* n weights, n a multiple of the type's block; src of any alignment. */
void sh_dequant(sh_dtype t, const uint8_t *src, int64_t n, float *out);
float sh_f16_to_f32(uint16_t h);
uint16_t sh_f32_to_f16(float f); /* round to nearest even */
float sh_bf16_to_f32(uint16_t h);
uint16_t sh_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */

#endif
