/* A matrix of integers and scales: what a quantization method makes of a weight, before a layout packs it. */
#ifndef SH_QUANT_CODES_H
#define SH_QUANT_CODES_H

#include "formats/tensor.h"

/* Weight (r, c) = scales[r][g] (q[r][c] - z[r][g]), g = order ? order[c] : c / group; z = 2^(bits - 1) everywhere when zeros is NULL. */
typedef struct sh_qcodes {
  int64_t rows, cols;  /* outputs N, inputs K */
  int bits;            /* 4 or 8 */
  int64_t group;       /* columns per scale; divides cols; cols: one scale a row */
  sh_dtype scale_type; /* SH_F16 or SH_BF16: scales are exact in it */
  uint8_t *q;          /* [rows, cols], 0 .. 2^bits - 1 */
  float *scales;       /* [rows, cols / group] */
  uint8_t *zeros;      /* [rows, cols / group], 0 .. 2^bits - 1, or NULL: symmetric */
  int32_t *order;      /* [cols] or NULL: the group of each column (GPTQ act-order) */
} sh_qcodes;

typedef enum sh_qformat { SH_QF_AWQ, SH_QF_GPTQ, SH_QF_CT } sh_qformat;
const char *sh_qformat_name(sh_qformat f); /* "awq", "gptq", "compressed-tensors": as in --format and quant_method */

/* What a folder's quantized modules are quantized with: one for all of them. */
typedef struct sh_qscheme {
  sh_qformat format;
  int bits;                   /* 4 or 8 */
  int64_t group;              /* columns per scale; -1: one scale a row, whatever the columns */
  bool symmetric, order;      /* no zero points; columns in an order of their own (GPTQ act-order) */
  bool int8_activations;      /* W8A8 (dynamic, per token): compressed-tensors with 8 bits, symmetric, one scale a row */
  bool mtp;                   /* modules of mtp. are quantized too; else the rules for GPTQ's readers leave all of it alone */
  const char *const *ignored; /* [n_ignored] names of linear modules left as they are (as stored, without ".weight") */
  int n_ignored;
} sh_qscheme;

#endif
