/* The quantized layouts of Hugging Face folders: what quantization_config promises, and what is stored for one module.
 *
 * A module is a linear layer by its name without ".weight" ("model.layers.0.mlp.up_proj"). What is stored decides whether it is quantized
 * and how; the config gives what the tensors cannot say (the method, how zero points count) and is held against the rest (bits, group
 * sizes). The name lists and rules of the config (modules_to_not_convert, ignore, dynamic, targets, extra_config) therefore only matter for
 * the group sizes they declare. Nothing is converted here: formats/repack.h makes views of it. */
#ifndef SH_FORMATS_QUANT_H
#define SH_FORMATS_QUANT_H

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/tensor.h"

typedef enum sh_quant_method { SH_QUANT_NONE, SH_QUANT_AWQ, SH_QUANT_GPTQ, SH_QUANT_CT, SH_QUANT_FP8 } sh_quant_method;

enum { SH_QUANT_GROUPS = 32 }; /* different group sizes one config may declare */

/* A plain value. */
typedef struct sh_quant {
  sh_quant_method method;
  int zero_offset;                 /* GPTQ: what is added to a stored zero point: 1, or 0 for gptq_v2 */
  int n_groups;                    /* 0: the config declares none, any is taken */
  int64_t groups[SH_QUANT_GROUPS]; /* columns per scale of modules of integers; -1: a whole row */
  bool int4, int8, fp8;            /* what a module may be; the shape says which of the first two it is */
  bool symmetric, asymmetric;      /* compressed-tensors: some modules of integers have none, some have zero points */
  int64_t block_rows, block_cols;  /* FP8: weights per scale; 0: one scale per row or per tensor */
} sh_quant;

/* Where config.json says it: quantization_config or compression_config, on top or in text_config. NULL: nowhere. */
const sh_json *sh_quant_config(const sh_json *root);
/* root: the whole of config.json; NULL is no quantization. What is known and not computed is SH_ERR_UNSUPPORTED with its name and with what
 * to use in its place. */
int sh_quant_parse(sh_quant *q, const sh_json *root, sh_error *e);
const char *sh_quant_name(sh_quant_method m); /* "AWQ", "GPTQ", "compressed-tensors", "FP8"; "none" */

/* P: integers in a word, 8 of 4 bits or 4 of 8. */
typedef enum sh_qlayout {
  SH_QL_AWQ,  /* weight I32 [K, N / 8], zeros I32 [groups, N / 8], nibbles of 8 columns in AWQ's order; scales [groups, N] */
  SH_QL_GPTQ, /* weight I32 [K / P, N], integers along K; zeros I32 [groups, N / P] in order; scales [groups, N]; order I32 [K] or NULL */
  SH_QL_ROWS, /* weight I32 [N, K / P], integers along K; zeros I32 [N / P, groups], along N, or NULL; scales [N, groups]; order */
  SH_QL_I8,   /* weight I8 [N, K]; scales [N, groups]; symmetric */
  SH_QL_F8,   /* weight F8_E4M3 [N, K]; scales [N / scale_rows, K / group], rounded up; scale_rows N: one for all */
} sh_qlayout;

/* Checked: types, shapes, and that group divides cols (integers). Values (zero points, order) are not read. Borrowed from the checkpoint.
 */
typedef struct sh_qmodule {
  sh_qlayout layout;
  int bits;           /* 4 or 8 */
  int64_t rows, cols; /* N, K of one matrix */
  int64_t group;      /* columns per scale */
  int64_t scale_rows; /* rows per scale: 1 for integers */
  int zero_offset;
  const sh_ftensor *weight, *scales;
  const sh_ftensor *zeros; /* NULL: 8 (8 bits: 128) everywhere, or FP8 */
  const sh_ftensor *order; /* the group of each column; NULL: column / group */
  const sh_ftensor *shape; /* weight_shape, or the zero points of SH_QL_I8, which are 0; NULL: not there; checked */
} sh_qmodule;

/* What is stored for `base` of [rows, cols]. *found false: nothing quantized; then a plain tensor may be there. */
int sh_quant_find(const sh_quant *q, const sh_ckpt *ck, const char *base, int64_t rows, int64_t cols, sh_qmodule *m, bool *found,
                  sh_error *e);
/* One tensor of `n` matrices in FP8, [n, rows, cols] under the name itself, NAME_scale_inv or NAME_scale beside it. */
int sh_quant_find_fused(const sh_quant *q, const sh_ckpt *ck, const char *name, int64_t n, int64_t rows, int64_t cols, sh_qmodule *m,
                        bool *found, sh_error *e);

/* Rows [first, first + rows) of matrix `i` (0 unless fused) of an SH_QL_F8 module. first must begin a block of scale rows. */
sh_wview sh_qmodule_f8_view(const sh_qmodule *m, int64_t i, int64_t first, int64_t rows);

#endif
