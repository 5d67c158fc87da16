/* Tables of storage types, and sizes of stored tensors.
 *
 * Owns nothing and has no state; any thread. One row per type keeps name, block and block bytes together, so that a new type is one line
 * here and its dequantization in dequant.c. Types that only appear in files (SH_OTHER) have no row of sizes: their bytes come from the file
 * format that stores them, because a name alone ("Q3_K", "F8_E5M2") means different layouts in different formats. Nor have panels, whose
 * size follows from a whole view (formats/panel.h). */
#include "formats/tensor.h"

typedef struct dtype_row {
  const char *name;
  int block, block_bytes;
} dtype_row;

static const dtype_row ROWS[SH_DTYPE_COUNT] = {
    [SH_F32] = {"F32", 1, 4},     [SH_F16] = {"F16", 1, 2},         [SH_BF16] = {"BF16", 1, 2},     [SH_Q8_0] = {"Q8_0", 32, 34},
    [SH_Q4_0] = {"Q4_0", 32, 18}, [SH_Q4_1] = {"Q4_1", 32, 20},     [SH_Q6_K] = {"Q6_K", 256, 210}, [SH_Q5_0] = {"Q5_0", 32, 22},
    [SH_Q5_1] = {"Q5_1", 32, 24}, [SH_Q4_K] = {"Q4_K", 256, 144},   [SH_Q5_K] = {"Q5_K", 256, 176}, [SH_IQ4_NL] = {"IQ4_NL", 32, 18},
    [SH_I4] = {"I4", 2, 1},       [SH_F8_E4M3] = {"F8_E4M3", 1, 1}, [SH_I64] = {"I64", 1, 8},       [SH_I32] = {"I32", 1, 4},
    [SH_I16] = {"I16", 1, 2},     [SH_I8] = {"I8", 1, 1},           [SH_U8] = {"U8", 1, 1},         [SH_BOOL] = {"BOOL", 1, 1},
    [SH_F64] = {"F64", 1, 8},     [SH_OTHER] = {"other", 0, 0},     [SH_P4] = {"P4", 0, 0},         [SH_P6] = {"P6", 0, 0},
    [SH_P8] = {"P8", 0, 0},
};

static const dtype_row *row_of(sh_dtype t) { return (unsigned)t < SH_DTYPE_COUNT ? &ROWS[t] : &ROWS[SH_OTHER]; }

const char *sh_dtype_name(sh_dtype t) { return row_of(t)->name; }

int sh_dtype_block(sh_dtype t) { return row_of(t)->block; }

int sh_dtype_block_bytes(sh_dtype t) { return row_of(t)->block_bytes; }

bool sh_dtype_has_groups(sh_dtype t) { return t == SH_I4 || t == SH_I8 || t == SH_U8 || t == SH_F8_E4M3; }

/* The readers have checked that the product fits. */
int64_t sh_ftensor_count(const sh_ftensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
  return n;
}

int sh_ftensor_write(const sh_ftensor *t, sh_tensor_source source, void *ctx, sh_file_out *o, sh_error *e) {
  if (!source) return sh_file_out_write(o, t->data, t->bytes, e);
  uint64_t before = sh_file_out_bytes(o);
  int rc = source(ctx, t, o, e);
  uint64_t got = sh_file_out_bytes(o) - before;
  if (!rc && got != t->bytes)
    rc = sh_fail(e, SH_ERR_INTERNAL, "tensor %s has %zu bytes, and %llu were written", t->name, t->bytes, (unsigned long long)got);
  return rc;
}
