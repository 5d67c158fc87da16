/* Codes in the layouts of Hugging Face folders. Sources of the layouts: formats/quant.h. */
#ifndef SH_QUANT_PACK_H
#define SH_QUANT_PACK_H

#include "base/err.h"
#include "base/mem.h"
#include "quant/codes.h"

enum { SH_QPACK_MAX = 5 }; /* tensors of one module */

/* Whether a layout can hold such codes: bits, symmetry, order, and shapes that it packs by eights (AWQ: rows % 8; GPTQ: cols % 8 and rows %
 * 8; compressed-tensors: any). SH_ERR_UNSUPPORTED with what to use in its place. base: the module's name, for the sentence. */
int sh_qpack_check(sh_qformat f, const char *base, int64_t rows, int64_t cols, int bits, int64_t group, bool symmetric, bool order,
                   sh_error *e);

/* The tensors of module `base` ("model.language_model.layers.0.mlp.up_proj"), with names, into t[*n]; data and names lie in the arena.
 *   AWQ   .qweight .qzeros .scales             (4 bits; symmetric codes get zero points of 8)
 *   GPTQ  .qweight .qzeros .scales .g_idx      (4 or 8 bits; zero points stored less one)
 *   CT    .weight_packed .weight_scale .weight_shape (.weight_zero_point) (.weight_g_idx); 8 bits with one scale a row: int-quantized,
 * which is .weight I8 [N, K] and .weight_scale [N, 1] */
int sh_qpack(const sh_qcodes *c, sh_qformat f, const char *base, sh_arena *a, sh_ftensor t[SH_QPACK_MAX], int *n, sh_error *e);

#endif
