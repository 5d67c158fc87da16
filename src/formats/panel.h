/* Weights in the order in which the integer kernels read them: panels of eight rows, from first column to last.
 *
 * What is quantized in a file is brought into this form once, at load (formats/repack.h), unless the mode is exact. One form serves one
 * activation row and many: a vector of 32 bytes holds four consecutive columns (a quad) of eight rows, so a product of it with four
 * activations, repeated eight times, leaves the sums of eight rows in the lanes, and a matrix-vector product reads memory from front to
 * back.
 *
 * A weight is s q + m: s and m of its row and group, q an integer of 4 (0..15), 6 (0..63) or 8 bits (-128..127).
 *
 * Columns are taken in blocks of 32. A group of 16 columns is half a block (quads 0..3, 4..7). Any other group is padded to whole blocks:
 * padded columns have the integer 0 and meet activations of 0. The blocks of a group are consecutive; n_blocks = groups * ceil(group / 32),
 * or ceil(cols / 32) for groups of 16.
 *
 * A panel is, one after the other:
 *   blocks  [n_blocks][bits * 32]: SH_P4: [4][32] bytes, byte 4 r + c of vector i: row r, column 4 i + c in the low and column 16 + 4 i + c
 * in the high nibble. SH_P6: the same with the low four bits, then [2][32]: byte 4 r + c of vector i has the upper two bits of columns 4 i
 * + c, 4 (i + 2) + c, 4 (i + 4) + c and 4 (i + 6) + c, from the lowest bits up. SH_P8: [8][32]: byte 4 r + c of vector i is column 4 i + c
 *   scales  by panel_scales
 *   offsets by panel_offset
 * and is filled up to a multiple of 64 bytes. Rows past the last are zeros, scales too. Numbers are little-endian. Panels are 64-byte
 * aligned.
 *
 * The product that all kernels compute, for an activation row x, each step in float32 as written, is
 *   per block b: a_b = max |x|; d_b = a_b / 127; e_b[c] = round to nearest even of x[c] * (127 / a_b); d_b and e_b 0 when a_b is less than
 * 2^-119, where 127 / a_b or d_b would leave the range of float; d_b NaN and e_b 0 when x is not finite. Of a group, over its blocks in
 * order: f_b = float(sum of q e_b[c], exact); t = f_0 d_0, then fma(f_b, d_b, t); likewise u = n_0 d_0, fma(n_b, d_b, u) with n_b =
 * float(sum of e_b[c]); both of half a block for groups of 16. y = 0, and group by group: y = fma(s, t, y), and where m is not always 0 y =
 * fma(m, u, y). So a result does not depend on how many rows are computed together.
 */
#ifndef SH_FORMATS_PANEL_H
#define SH_FORMATS_PANEL_H

#include "base/err.h"
#include "formats/tensor.h"

enum { SH_PANEL_ROWS = 8, SH_PANEL_BLOCK = 32, SH_PANEL_SUPER = 256, SH_PANEL_ALIGN = 64 };

typedef enum sh_panel_scales {
  SH_PANEL_PLAIN,    /* [groups][8] of scale_type: s */
  SH_PANEL_SUPER_U8, /* GGUF's K types: f16 d [supers][8] of 256 columns each, then u8 k [groups][8]: s = d * k, rounded to float32 */
  SH_PANEL_SUPER_I8, /* the same with i8 k */
} sh_panel_scales;

typedef enum sh_panel_offset {
  SH_PANEL_MIDDLE, /* nothing stored: m = -8 s (4 bits), -32 s (6 bits), 0 (8 bits) */
  SH_PANEL_ZERO,   /* u8 z [groups][8]: m = -(s * z); 8 bits: i8 z */
  SH_PANEL_MIN,    /* plain: [groups][8] of scale_type: m. Super: f16 dmin [supers][8], then u8 k [groups][8]: m = -(dmin * k) */
} sh_panel_offset;

typedef struct sh_panel_shape {
  int bits;
  int64_t blocks, groups, supers;      /* per panel; supers 0 when scales are plain */
  size_t scales_at, offsets_at, bytes; /* of a panel */
} sh_panel_shape;

static inline bool sh_dtype_is_panel(sh_dtype t) { return t == SH_P4 || t == SH_P6 || t == SH_P8; }

/* From type, cols, group, scale_type, panel_scales, panel_offset of a view. */
static inline sh_panel_shape sh_panel_shape_of(const sh_wview *v) {
  sh_panel_shape s = {.bits = v->type == SH_P4 ? 4 : v->type == SH_P6 ? 6 : 8, .groups = v->cols / v->group};
  size_t one = v->scale_type == SH_F32 ? 4 : 2, rows = SH_PANEL_ROWS, groups = (size_t)s.groups;
  bool super = v->panel_scales != SH_PANEL_PLAIN;
  s.blocks = v->group == SH_PANEL_BLOCK / 2 ? (v->cols + SH_PANEL_BLOCK - 1) / SH_PANEL_BLOCK
                                            : s.groups * ((v->group + SH_PANEL_BLOCK - 1) / SH_PANEL_BLOCK);
  s.supers = super ? (v->cols + SH_PANEL_SUPER - 1) / SH_PANEL_SUPER : 0;
  s.scales_at = (size_t)s.blocks * (size_t)s.bits * SH_PANEL_BLOCK;
  s.offsets_at = s.scales_at + (super ? (size_t)s.supers * rows * 2 + groups * rows : groups * rows * one);
  size_t offsets = v->panel_offset == SH_PANEL_MIDDLE ? 0
                   : v->panel_offset == SH_PANEL_ZERO ? groups * rows
                   : super                            ? (size_t)s.supers * rows * 2 + groups * rows
                                                      : groups * rows * one;
  s.bytes = (s.offsets_at + offsets + SH_PANEL_ALIGN - 1) / SH_PANEL_ALIGN * SH_PANEL_ALIGN;
  return s;
}

static inline int64_t sh_panel_count(int64_t rows) { return rows / SH_PANEL_ROWS + (rows % SH_PANEL_ROWS != 0); }

/* --- Making them (panel.c): pure functions, any thread */

/* What becomes of a head that is stored as floats (--head). */
typedef enum sh_head {
  SH_HEAD_AUTO, /* SH_HEAD_DEFAULT where the model's other weights are quantized, else as stored */
  SH_HEAD_INT4,
  SH_HEAD_INT6,
  SH_HEAD_INT8,
  SH_HEAD_BF16, /* as stored */
} sh_head;
enum { SH_HEAD_DEFAULT = SH_HEAD_INT8 };
#define SH_HEAD_NAMES "auto|int4|int6|int8|bf16"
#define SH_HEAD_HELP /* of the option, in every command that computes */                                                                   \
  "What a head stored in floats is rounded to: int4, int6, int8 (scales per 32 columns), or bf16, as stored; auto: int8 where the other "  \
  "weights are quantized, else bf16."
/* One of the names (NULL: auto). SH_ERR_ARG: another name; exact, which computes with weights as stored, beside integers. */
int sh_head_parse(const char *name, bool exact, sh_head *out, sh_error *e);

/* The form that the panels of rows have: *out without data. src: a type with groups whose rows are s (q - z), a GGUF block type, or floats,
 * which are rounded to what head says (SH_HEAD_INT*, in groups of 32). False: there is no such form (FP8 and IQ4_NL, whose weights are no
 * s q + m; floats that stay; groups that are not a multiple of 16), *out untouched. src->data may be NULL, src->zeros only says whether
 * there are zero points. */
bool sh_panel_plan(const sh_wview *src, sh_head head, sh_wview *out);

/* Panels [first, first + n) of the plan that sh_panel_plan made for src, to dst [n][8 * plan->row_bytes]. The weights are those of the
 * source to the last bit of s, q and m; floats are off by at most half a step of their scale. */
void sh_panel_make(const sh_wview *src, const sh_wview *plan, int64_t first, int64_t n, uint8_t *dst);

/* A row as float32: s q + m, rounded once. out [cols] in the order of the inputs (perm undone). */
void sh_panel_row(const sh_wview *v, int64_t row, float *out);

#endif
