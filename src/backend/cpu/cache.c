/* The CPU backend's caches: KV pages and state slots, in two private maps.
 *
 * Engine thread only, but for the address functions, which the workers call. The maps are MAP_NORESERVE: memory is committed when a page is
 * first written, so a server that was told to allow a long context pays for the tokens it holds. A page holds all attention layers
 * ([layer][keys, values][head][position] [head_dim]), which makes copying one a single memcpy. A slot holds all linear layers, the state of
 * a head in column tiles of SH_GDN_TILE: a tile's rows are then contiguous, while a tile cut out of [k_dim, v_dim] rows would fall on a
 * sixteenth of the L1 sets. */
#include "backend/cpu/cpu.h"

#include <string.h>
#include <sys/mman.h>

static size_t round64(size_t n) { return n > SIZE_MAX - 63 ? SIZE_MAX : (n + 63) & ~(size_t)63; }

static int map_new(uint8_t **out, size_t *len, size_t stride, int n, const char *what, sh_error *e) {
  if (stride == 0 || n == 0) return 0;
  if (__builtin_mul_overflow(stride, (size_t)n, len))
    return sh_fail(e, SH_ERR_NOMEM, "%d %s of %zu bytes do not fit the address space; lower the context or the number of sequences", n,
                   what, stride);
  void *p = mmap(NULL, *len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    size_t want = *len;
    *len = 0;
    return sh_fail(e, SH_ERR_NOMEM, "the system refused %zu bytes for %d %s; lower the context or the number of sequences", want, n, what);
  }
  sh_mem_large(p, *len);
  *out = p;
  return 0;
}

static int check_spec(const sh_cache_spec *s, sh_error *e) {
  bool ok = s->n_attn_layers >= 0 && s->n_linear_layers >= 0 && s->n_pages >= 0 && s->n_slots >= 0;
  if (ok && s->n_attn_layers > 0) ok = s->n_kv_heads > 0 && s->head_dim > 0 && s->page_size > 0;
  if (ok && s->n_linear_layers > 0)
    ok = s->lin_v_heads > 0 && s->lin_k_dim > 0 && s->lin_v_dim > 0 && s->conv_channels > 0 && s->conv_kernel > 0;
  if (!ok) return sh_fail(e, SH_ERR_INTERNAL, "cache: a dimension is missing or negative");
  if (s->n_linear_layers > 0 && s->conv_kernel > SH_CONV_MAX)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "convolution kernels of up to %d taps are supported, the model has %d", SH_CONV_MAX,
                   s->conv_kernel);
  return 0;
}

int sh_cpu_cache_new(sh_backend *b, const sh_cache_spec *spec, sh_cache **out, sh_error *e) {
  *out = NULL;
  int rc = check_spec(spec, e);
  if (rc < 0) return rc;
  sh_cache *c = sh_calloc(1, sizeof *c);
  if (!c) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  c->spec = *spec;
  c->page_stride = round64(sh_cache_page_bytes(spec));
  c->slot_stride = round64(sh_cache_slot_bytes(spec));
  c->head_bytes = (size_t)spec->page_size * sh_kv_row_bytes(spec->kv_type, spec->head_dim);
  if (spec->n_linear_layers > 0) c->layer_floats = sh_cache_slot_bytes(spec) / (size_t)spec->n_linear_layers / sizeof(float);
  rc = map_new(&c->pages, &c->pages_len, c->page_stride, spec->n_pages, "KV pages", e);
  if (rc == 0) rc = map_new(&c->slots, &c->slots_len, c->slot_stride, spec->n_slots, "state slots", e);
  if (rc < 0) {
    sh_cpu_cache_free(b, c);
    return rc;
  }
  *out = c;
  return 0;
}

void sh_cpu_cache_free(sh_backend *b, sh_cache *c) {
  (void)b;
  if (!c) return;
  if (c->pages) munmap(c->pages, c->pages_len);
  if (c->slots) munmap(c->slots, c->slots_len);
  sh_free(c);
}

static int check_index(int i, int n, const char *what, sh_error *e) {
  return i >= 0 && i < n ? 0 : sh_fail(e, SH_ERR_INTERNAL, "%s %d is not in [0, %d)", what, i, n);
}

int sh_cpu_slot_zero(sh_backend *b, sh_cache *c, int slot, sh_error *e) {
  (void)b;
  int rc = check_index(slot, c->spec.n_slots, "state slot", e);
  if (rc == 0 && c->slots) memset(c->slots + (size_t)slot * c->slot_stride, 0, c->slot_stride);
  return rc;
}

int sh_cpu_slot_copy(sh_backend *b, sh_cache *c, int dst, int src, sh_error *e) {
  (void)b;
  int rc = check_index(dst, c->spec.n_slots, "state slot", e);
  if (rc == 0) rc = check_index(src, c->spec.n_slots, "state slot", e);
  if (rc == 0 && c->slots && dst != src)
    memcpy(c->slots + (size_t)dst * c->slot_stride, c->slots + (size_t)src * c->slot_stride, c->slot_stride);
  return rc;
}

int sh_cpu_page_copy(sh_backend *b, sh_cache *c, int dst, int src, sh_error *e) {
  (void)b;
  int rc = check_index(dst, c->spec.n_pages, "KV page", e);
  if (rc == 0) rc = check_index(src, c->spec.n_pages, "KV page", e);
  if (rc == 0 && c->pages && dst != src)
    memcpy(c->pages + (size_t)dst * c->page_stride, c->pages + (size_t)src * c->page_stride, c->page_stride);
  return rc;
}

uint8_t *sh_cpu_kv_row(const sh_cache *c, const int32_t *pages, int layer, int head, int pos, bool is_v) {
  const sh_cache_spec *s = &c->spec;
  int page = pages[pos / s->page_size], at = pos % s->page_size;
  size_t block = ((size_t)layer * 2 + is_v) * (size_t)s->n_kv_heads + (size_t)head;
  return c->pages + (size_t)page * c->page_stride + block * c->head_bytes + (size_t)at * (c->head_bytes / (size_t)s->page_size);
}

float *sh_cpu_state(const sh_cache *c, int slot, int layer) {
  return (float *)(void *)(c->slots + (size_t)slot * c->slot_stride) + (size_t)layer * c->layer_floats;
}

float *sh_cpu_conv(const sh_cache *c, int slot, int layer) {
  const sh_cache_spec *s = &c->spec;
  return sh_cpu_state(c, slot, layer) + (size_t)s->lin_v_heads * (size_t)s->lin_k_dim * (size_t)s->lin_v_dim;
}

int sh_cpu_check_batch(const sh_cache *c, const sh_batch *b, bool want_slots, bool want_pages, sh_error *e) {
  const sh_cache_spec *s = &c->spec;
  int row = 0;
  for (int i = 0; i < b->n_seqs; i++) {
    const sh_seq *q = &b->seqs[i];
    if (q->row != row || q->count < 1 || q->count > b->n_tokens - row || q->pos < 0 || q->pos > INT32_MAX - q->count)
      return sh_fail(e, SH_ERR_INTERNAL, "batch: sequence %d (row %d, %d tokens at %d) does not follow row %d of %d", i, q->row, q->count,
                     q->pos, row, b->n_tokens);
    row += q->count;
    int rc = want_slots ? check_index(q->slot, s->n_slots, "state slot", e) : 0;
    for (int p = 0; want_pages && rc == 0 && p <= (q->pos + q->count - 1) / s->page_size; p++)
      rc = check_index(q->pages[p], s->n_pages, "KV page", e);
    if (rc < 0) return rc;
  }
  return row == b->n_tokens ? 0 : sh_fail(e, SH_ERR_INTERNAL, "batch: sequences cover %d of %d rows", row, b->n_tokens);
}
