/* How keys and values lie in the cache: one row of head_dim elements per position and key head.
 *
 * float32 and bfloat16 are what they say. int8 has a scale for each SH_KV_BLOCK dims, since a few dims of a key are far larger than the
 * others: head_dim int8, then the scales as bfloat16, then zeros up to a multiple of 4 bytes. An element is e * d, which float32 holds
 * exactly. Made from x, per block: a = max |x|; d = a / 127 rounded to bfloat16; e = x * (1 / d) rounded to nearest even and cut to
 * [-127, 127], 1 / d in float32. A block with d under 2^-126 is zeros with d = 0; one with an element that is not finite has a d that is
 * not, and all its elements read as NaN. */
#ifndef SH_FORMATS_KV_H
#define SH_FORMATS_KV_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum sh_kv_type { SH_KV_F32, SH_KV_BF16, SH_KV_I8 } sh_kv_type;

enum { SH_KV_BLOCK = 32 };

static inline size_t sh_kv_row_bytes(sh_kv_type type, int head_dim) {
  const size_t d = (size_t)head_dim;
  if (type == SH_KV_F32) return 4 * d;
  return type == SH_KV_BF16 ? 2 * d : (d + 2 * ((d + SH_KV_BLOCK - 1) / SH_KV_BLOCK) + 3) / 4 * 4;
}

#define SH_KV_NAMES "auto|float32|bfloat16|int8"
#define SH_KV_HELP                                                                                                                         \
  "How keys and values are kept: bfloat16, int8 (half the memory, a scale per 32 dims) or float32; auto: bfloat16, float32 with --exact."
/* One of the names; NULL or auto: bfloat16, with exact float32. SH_ERR_ARG: another name, or another type than float32 beside exact. */
int sh_kv_parse(const char *name, bool exact, sh_kv_type *out, sh_error *e);
const char *sh_kv_name(sh_kv_type type);

#endif
