/* Codes in the layouts of Hugging Face folders. Sources of the layouts: formats/quant.h. */
#ifndef SH_QUANT_PACK_H
#define SH_QUANT_PACK_H

#include "base/err.h"
#include "base/mem.h"
#include "quant/codes.h"

enum { SH_QPACK_MAX = 5 }; /* tensors of one module */

/* Whether the scheme's layout can hold a matrix: bits, symmetry, order, groups, and shapes that it packs by words (AWQ: 8 rows; GPTQ: 8
 * rows and columns, 4 with 8 bits; compressed-tensors pack-quantized: 8 columns, 4 with 8 bits). base: the module's name, for the sentence.
 * SH_ERR_UNSUPPORTED with what to use in its place. */
int sh_qpack_check(const sh_qscheme *s, const char *base, int64_t rows, int64_t cols, sh_error *e);

/* The tensors of module `base` ("model.language_model.layers.0.mlp.up_proj"), with names, into t[*n]; data and names lie in the arena. The
 * codes have the scheme's bits and group (the columns for -1); a scheme without zero points or order wants codes without.
 *   AWQ   .qweight .qzeros .scales             (4 bits; codes without zero points get 8s)
 *   GPTQ  .qweight .qzeros .scales .g_idx      (4 or 8 bits; zero points stored less one, so that a 0 is refused)
 *   CT    .weight_packed .weight_scale .weight_shape (.weight_zero_point) (.weight_g_idx): pack-quantized; with int8_activations .weight I8
 *         [N, K] and .weight_scale [N, 1]: int-quantized. (vLLM computes 8-bit weights without int8 activations from packed ones only.) */
int sh_qpack(const sh_qcodes *c, const sh_qscheme *s, const char *base, sh_arena *a, sh_ftensor t[SH_QPACK_MAX], int *n, sh_error *e);
bool sh_qscheme_int_quantized(const sh_qscheme *s); /* which of compressed-tensors' two it is */

#endif
