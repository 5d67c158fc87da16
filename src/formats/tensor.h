/* Element and block types of stored tensors, and what a stored tensor is: a view into a mapped file. */
#ifndef SH_FORMATS_TENSOR_H
#define SH_FORMATS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"

typedef enum sh_dtype {
  SH_F32,
  SH_F16,
  SH_BF16,
  SH_Q8_0,   /* GGUF: 32 weights, f16 d, 32 x i8;            34 B: w = d q */
  SH_Q4_0,   /* GGUF: 32 weights, f16 d, 16 B of nibbles;    18 B: w = d (q - 8); low nibbles are weights 0..15 */
  SH_Q4_1,   /* GGUF: 32 weights, f16 d, f16 m, 16 B;        20 B: w = d q + m */
  SH_Q6_K,   /* GGUF: 256 weights, 210 B */
  SH_Q5_0,   /* GGUF: 32 weights, 22 B */
  SH_Q5_1,   /* GGUF: 32 weights, 24 B */
  SH_Q4_K,   /* GGUF: 256 weights, 144 B */
  SH_Q5_K,   /* GGUF: 256 weights, 176 B */
  SH_IQ4_NL, /* GGUF: 32 weights, 18 B: f16 d, nibbles index a table of sixteen values */
  SH_I4,     /* HF quantized layouts: nibbles along a row (even column low), scales and zero points beside them (sh_wview): w = s (q - z) */
  SH_F8_E4M3, /* a byte each, block scales beside them: w = s q */
  SH_I64,
  SH_I32,
  SH_I16,
  SH_I8, /* also weights: a signed byte each, scales beside them: w = s q */
  SH_U8, /* also weights: a byte each, scales and zero points beside them: w = s (q - z) */
  SH_P4, /* integers of 4, 6 or 8 bits in panels of eight rows, scales in the panel (formats/panel.h); never in a file */
  SH_P6,
  SH_P8,
  SH_BOOL,
  SH_F64,   /* recognised in files; not weights of a matrix */
  SH_OTHER, /* recognised by name only (type_name says which); using it is SH_ERR_UNSUPPORTED */
  SH_DTYPE_COUNT
} sh_dtype;

const char *sh_dtype_name(sh_dtype t);
int sh_dtype_block(sh_dtype t);       /* weights per block (1, 2, 32, 256); 0 for SH_OTHER and panels */
int sh_dtype_block_bytes(sh_dtype t); /* bytes per block; 0 for SH_OTHER and panels */
bool sh_dtype_has_groups(sh_dtype t); /* weights whose scales lie beside them: SH_I4, SH_I8, SH_U8, SH_F8_E4M3 */

enum { SH_MAX_DIMS = 6 };

/* A tensor in a file. Borrowed from the checkpoint that owns the map. dims are slowest first (C order), also for GGUF: a matrix is [out,
 * in]. */
typedef struct sh_ftensor {
  const char *name; /* as stored */
  sh_dtype type;
  const char *type_name; /* as stored: "BF16", "Q5_K", "F8_E4M3" */
  int n_dims;
  int64_t dims[SH_MAX_DIMS];
  const uint8_t *data; /* into the map; alignment of 1 byte is all that is promised */
  size_t bytes;
} sh_ftensor;

/* A matrix [rows = outputs, cols = inputs] of weights, a view into the map: what the backends bind. */
typedef struct sh_wview {
  sh_dtype type;
  int64_t rows, cols;
  const uint8_t *data; /* row r starts at data + r * row_bytes; any alignment */
  size_t row_bytes;
  const char *name; /* for messages; borrowed */
  /* Types with groups only; zero otherwise. The scale of weight (r, c) is element c / group of the scale row r / scale_rows. */
  int group;             /* columns per scale: divides cols, but for SH_F8_E4M3, whose last block may be short */
  int scale_rows;        /* rows that share a scale row: 1, but for SH_F8_E4M3: the block's height */
  sh_dtype scale_type;   /* SH_F32, SH_F16 or SH_BF16 */
  const uint8_t *scales; /* scale row i starts at scales + i * scale_row_bytes */
  size_t scale_row_bytes;
  const uint8_t *zeros; /* SH_I4: one byte 0..16 per group, row r at zeros + r * zero_row_bytes; NULL: 8 everywhere. SH_U8: 0..255; 128 */
  size_t zero_row_bytes;
  const int32_t *perm; /* [cols] or NULL: stored column c multiplies input perm[c] (GPTQ act-order) */
  /* SH_P4, SH_P6, SH_P8 only (formats/panel.h). data: panel p of rows [8 p, 8 p + 8) starts at data + p * 8 * row_bytes; scales, zeros are
   * NULL. */
  uint8_t panel_scales, panel_offset; /* sh_panel_scales, sh_panel_offset */
} sh_wview;

int64_t sh_ftensor_count(const sh_ftensor *t); /* elements */

/* Where a writer of files gets a tensor that is not in memory: appends its bytes to o, all of them, in order. t: the caller's own. */
typedef int (*sh_tensor_source)(void *ctx, const sh_ftensor *t, sh_file_out *o, sh_error *e);
/* Appends t's bytes: those at its data, or with a source what that gives, which must be as many (SH_ERR_INTERNAL). */
int sh_ftensor_write(const sh_ftensor *t, sh_tensor_source source, void *ctx, sh_file_out *o, sh_error *e);

#endif
