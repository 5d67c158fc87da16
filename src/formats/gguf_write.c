/* GGUF files written: the counterpart of gguf.c.
 *
 * Any thread, one per sh_gguf_out. Metadata and the table of tensors are small and collected in memory (a vocabulary of 250,000 strings is
 * 6 MB); the data streams through the caller's source, so a file of any size takes no more memory than the source's own buffer. What a
 * reader would refuse is refused before the file is begun: a row that is no whole number of blocks, a name that is too long for ggml, sizes
 * that contradict the shape.
 *
 * Refused: split files (a reader that maps gains nothing by them), and keys for another alignment than 32. */
#include "formats/gguf_write.h"

#include <string.h>

#include "formats/gguf.h"
#include "formats/nameindex.h"

enum { ALIGN = 32, VERSION = 3, MAX_TENSOR_NAME = 63 /* bytes: ggml keeps 64 with the end */, MAX_GGUF_DIMS = 4 };
#define MAX_META ((size_t)1 << 30) /* bytes */

enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STR = 8, T_ARRAY = 9 };

static void put_le(sh_buf *b, uint64_t v, int bytes) {
  char s[8];
  for (int i = 0; i < bytes; i++) s[i] = (char)(v >> (8 * i));
  sh_buf_put(b, s, (size_t)bytes);
}

static void put_text(sh_buf *b, const char *s, size_t n) {
  put_le(b, n, 8);
  if (n) sh_buf_put(b, s, n);
}

/* --- Metadata */

void sh_gguf_out_init(sh_gguf_out *g) {
  *g = (sh_gguf_out){0};
  sh_buf_init(&g->private_keys, MAX_META);
}

void sh_gguf_out_free(sh_gguf_out *g) { sh_buf_free(&g->private_keys); }

static void put_key(sh_gguf_out *g, const char *key, uint32_t type) {
  if (g->private_items && !g->private_keys.failed) g->private_keys.failed = SH_ERR_INTERNAL; /* the array before lacks items */
  put_text(&g->private_keys, key, strlen(key));
  put_le(&g->private_keys, type, 4);
  g->private_n_keys++;
}

void sh_gguf_put_str(sh_gguf_out *g, const char *key, const char *s, size_t n) {
  put_key(g, key, T_STR);
  put_text(&g->private_keys, s, n);
}

void sh_gguf_put_u32(sh_gguf_out *g, const char *key, uint32_t v) {
  put_key(g, key, T_U32);
  put_le(&g->private_keys, v, 4);
}

void sh_gguf_put_i32(sh_gguf_out *g, const char *key, int32_t v) {
  put_key(g, key, T_I32);
  put_le(&g->private_keys, (uint32_t)v, 4);
}

void sh_gguf_put_f32(sh_gguf_out *g, const char *key, float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  put_key(g, key, T_F32);
  put_le(&g->private_keys, bits, 4);
}

void sh_gguf_put_bool(sh_gguf_out *g, const char *key, bool v) {
  put_key(g, key, T_BOOL);
  put_le(&g->private_keys, v, 1);
}

static void put_array(sh_gguf_out *g, const char *key, uint32_t item_type, uint64_t n) {
  put_key(g, key, T_ARRAY);
  put_le(&g->private_keys, item_type, 4);
  put_le(&g->private_keys, n, 8);
  g->private_items = n;
}

static void count_item(sh_gguf_out *g) {
  if (g->private_items) g->private_items--;
  else if (!g->private_keys.failed) g->private_keys.failed = SH_ERR_INTERNAL; /* more than were promised */
}

void sh_gguf_put_strs(sh_gguf_out *g, const char *key, uint64_t n) { put_array(g, key, T_STR, n); }
void sh_gguf_put_i32s(sh_gguf_out *g, const char *key, uint64_t n) { put_array(g, key, T_I32, n); }

void sh_gguf_item_str(sh_gguf_out *g, const char *s, size_t len) {
  count_item(g);
  put_text(&g->private_keys, s, len);
}

void sh_gguf_item_i32(sh_gguf_out *g, int32_t v) {
  count_item(g);
  put_le(&g->private_keys, (uint32_t)v, 4);
}

/* --- Tensors */

static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) & ~(uint64_t)(ALIGN - 1); }

static int check_tensor(const sh_ftensor *t, sh_error *e) {
  size_t name = t->name ? strlen(t->name) : 0;
  int64_t block = sh_dtype_block(t->type), count = 1;
  if (!name || name > MAX_TENSOR_NAME)
    return sh_fail(e, SH_ERR_ARG, "tensor %s: a name of 1 to %d bytes is wanted", name ? t->name : "without a name", MAX_TENSOR_NAME);
  if (sh_gguf_type_of(t->type) < 0)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "tensor %s: a GGUF cannot hold %s", t->name, sh_dtype_name(t->type));
  if (t->n_dims < 1 || t->n_dims > MAX_GGUF_DIMS)
    return sh_fail(e, SH_ERR_ARG, "tensor %s has %d dimensions; 1 to %d can be written", t->name, t->n_dims, MAX_GGUF_DIMS);
  for (int i = 0; i < t->n_dims; i++) {
    if (t->dims[i] < 1 || __builtin_mul_overflow(count, t->dims[i], &count))
      return sh_fail(e, SH_ERR_ARG, "tensor %s has no sensible shape", t->name);
  }
  if (t->dims[t->n_dims - 1] % block)
    return sh_fail(e, SH_ERR_ARG, "tensor %s: rows of %lld weights are no whole number of blocks of %lld (%s)", t->name,
                   (long long)t->dims[t->n_dims - 1], (long long)block, sh_dtype_name(t->type));
  if ((uint64_t)(count / block) * (uint64_t)sh_dtype_block_bytes(t->type) != t->bytes)
    return sh_fail(e, SH_ERR_ARG, "tensor %s: its shape does not give its %zu bytes", t->name, t->bytes);
  return 0;
}

static int check_tensors(const sh_ftensor *t, int n, sh_error *e) {
  sh_nameindex seen;
  if (n < 0 || sh_nameindex_init(&seen, (size_t)n)) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", n);
  int rc = 0;
  for (int i = 0; i < n && !rc; i++) {
    rc = check_tensor(&t[i], e);
    if (!rc && sh_nameindex_add(&seen, t[i].name, strlen(t[i].name), i)) rc = sh_fail(e, SH_ERR_ARG, "tensor %s is given twice", t[i].name);
  }
  sh_nameindex_free(&seen);
  return rc;
}

static void put_entry(sh_buf *b, const sh_ftensor *t, uint64_t offset) {
  put_text(b, t->name, strlen(t->name));
  put_le(b, (uint64_t)t->n_dims, 4);
  for (int i = t->n_dims - 1; i >= 0; i--) put_le(b, (uint64_t)t->dims[i], 8);
  put_le(b, (uint64_t)sh_gguf_type_of(t->type), 4);
  put_le(b, offset, 8);
}

/* Everything before the data, padded. */
static void put_head(sh_buf *b, const sh_gguf_out *g, const sh_ftensor *t, int n) {
  static const char zeros[ALIGN];
  uint64_t offset = 0;
  sh_buf_put(b, "GGUF", 4);
  put_le(b, VERSION, 4);
  put_le(b, (uint64_t)n, 8);
  put_le(b, g->private_n_keys, 8);
  if (g->private_keys.len) sh_buf_put(b, g->private_keys.p, g->private_keys.len);
  for (int i = 0; i < n; i++) {
    put_entry(b, &t[i], offset);
    offset += aligned(t[i].bytes);
  }
  sh_buf_put(b, zeros, (size_t)(aligned(b->len) - b->len));
}

uint64_t sh_gguf_out_bytes(const sh_gguf_out *g, const sh_ftensor *t, int n) {
  uint64_t head = 24 + g->private_keys.len, data = 0;
  for (int i = 0; i < n; i++) {
    head += 8 + strlen(t[i].name) + 4 + 8 * (uint64_t)t[i].n_dims + 4 + 8;
    data += aligned(t[i].bytes);
  }
  return aligned(head) + data;
}

static int write_data(sh_file_out *o, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e) {
  static const char zeros[ALIGN];
  int rc = 0;
  for (int i = 0; i < n && !rc; i++) {
    rc = sh_ftensor_write(&t[i], source, ctx, o, e);
    if (!rc) rc = sh_file_out_write(o, zeros, (size_t)(aligned(t[i].bytes) - t[i].bytes), e);
  }
  return rc;
}

int sh_gguf_out_write(const sh_gguf_out *g, const char *path, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e) {
  int failed = g->private_keys.failed;
  if (!failed && g->private_items) failed = SH_ERR_INTERNAL;
  if (failed) return sh_fail(e, failed, "%s: the metadata is too large, or an array has not the items it was begun with", path);
  int rc = check_tensors(t, n, e);
  if (rc) return rc;
  sh_buf head;
  sh_file_out o = {0};
  sh_buf_init(&head, 2 * MAX_META);
  put_head(&head, g, t, n);
  rc = head.failed ? sh_fail(e, head.failed, "%s: the header of %d tensors is too large", path, n) : sh_file_out_open(&o, path, e);
  if (!rc) rc = sh_file_out_write(&o, head.p, head.len, e);
  if (!rc) rc = write_data(&o, t, n, source, ctx, e);
  if (!rc) rc = sh_file_out_commit(&o, e);
  sh_file_out_abandon(&o);
  sh_buf_free(&head);
  return rc;
}
