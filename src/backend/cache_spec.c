/* How many bytes a cache of a given shape takes: the memory plan asks before there is a cache, the backends ask when they make one.
 *
 * Pure functions, any thread. A size that does not fit in size_t comes out as SIZE_MAX, which no allocation and no plan can satisfy; a spec
 * is built from a model's config and from options, so it can be anything. */
#include "backend/backend.h"

#include <stdint.h>

static size_t mul(size_t a, int b) {
  size_t r;
  return b < 0 || __builtin_mul_overflow(a, (size_t)b, &r) ? SIZE_MAX : r;
}

static size_t add(size_t a, size_t b) {
  size_t r;
  return __builtin_add_overflow(a, b, &r) ? SIZE_MAX : r;
}

size_t sh_cache_page_bytes(const sh_cache_spec *s) {
  if (s->head_dim < 0) return SIZE_MAX;
  size_t position = mul(sh_kv_row_bytes(s->kv_type, s->head_dim), s->n_kv_heads); /* keys of one layer */
  return mul(mul(mul(position, s->page_size), 2), s->n_attn_layers);
}

size_t sh_cache_slot_bytes(const sh_cache_spec *s) {
  if (s->n_linear_layers == 0) return 0;
  size_t state = mul(mul(mul(sizeof(float), s->lin_v_heads), s->lin_k_dim), s->lin_v_dim);
  size_t conv = mul(mul(sizeof(float), s->conv_kernel - 1), s->conv_channels);
  return mul(add(state, conv), s->n_linear_layers);
}
