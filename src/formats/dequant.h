/* Reference dequantization: any supported storage type to float32, plain C, exact (the products of a block's scale and its integers are
 * rounded once, as the format's definition in float32 says). For embeddings, small vectors and tests; fast variants live in kernels/. */
#ifndef SH_FORMATS_DEQUANT_H
#define SH_FORMATS_DEQUANT_H

#include "formats/tensor.h"

/* Types whose weights need nothing but their bytes: F32, F16, BF16 and the GGUF blocks. Those with groups need the scales of a view. */
bool sh_dequant_supported(sh_dtype t);
/* out[cols], in the order of the inputs (perm undone); panels too. The view was checked when it was bound: row in range, cols a multiple of
 * the block.
 */
void sh_dequant_row(const sh_wview *w, int64_t row, float *out);
/* Weights of stored columns [k0, k0 + n), perm not looked at; k0 a multiple of the block, n too or up to the end of the row. */
void sh_dequant_cols(const sh_wview *w, int64_t row, int64_t k0, int64_t n, float *out);
/* n weights of a supported type, n a multiple of its block; src of any alignment. */
void sh_dequant(sh_dtype t, const uint8_t *src, int64_t n, float *out);
/* Scale and minimum (6 bits) of the i-th 32 weights of a Q4_K or Q5_K block, from its 12 bytes s. */
void sh_k_scale(const uint8_t *s, int i, int *scale, int *min);
float sh_f8_e4m3_to_f32(uint8_t b); /* e4m3fn: no infinities, NaN 0x7f and 0xff */
float sh_f16_to_f32(uint16_t h);
uint16_t sh_f32_to_f16(float f); /* round to nearest even */
float sh_bf16_to_f32(uint16_t h);
uint16_t sh_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */

#endif
