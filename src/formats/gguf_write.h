/* A GGUF file, version 3, written in one pass: metadata, the table of tensors, their data from the caller piece by piece. */
#ifndef SH_FORMATS_GGUF_WRITE_H
#define SH_FORMATS_GGUF_WRITE_H

#include "base/err.h"
#include "base/mem.h"
#include "formats/tensor.h"

/* The metadata in the making. Errors are sticky and told by sh_gguf_out_write. */
typedef struct sh_gguf_out {
  sh_buf private_keys;
  uint64_t private_n_keys, private_items; /* items: those that the last array still wants */
} sh_gguf_out;

void sh_gguf_out_init(sh_gguf_out *g);
void sh_gguf_out_free(sh_gguf_out *g);

/* Keys in the order of the file; a key must not be given twice. */
void sh_gguf_put_str(sh_gguf_out *g, const char *key, const char *s, size_t n);
void sh_gguf_put_u32(sh_gguf_out *g, const char *key, uint32_t v);
void sh_gguf_put_i32(sh_gguf_out *g, const char *key, int32_t v);
void sh_gguf_put_f32(sh_gguf_out *g, const char *key, float v);
void sh_gguf_put_bool(sh_gguf_out *g, const char *key, bool v);
/* An array: its items follow, exactly n of them, before the next key. */
void sh_gguf_put_strs(sh_gguf_out *g, const char *key, uint64_t n);
void sh_gguf_item_str(sh_gguf_out *g, const char *s, size_t len);
void sh_gguf_put_i32s(sh_gguf_out *g, const char *key, uint64_t n);
void sh_gguf_item_i32(sh_gguf_out *g, int32_t v);

/* Bytes of the file that these tensors (name, type, dims, bytes) and the metadata so far make. */
uint64_t sh_gguf_out_bytes(const sh_gguf_out *g, const sh_ftensor *t, int n);
/* Writes the file under a temporary name and renames it. dims are slowest first, as everywhere here; the file has them the other way round.
 * Data begins, and every tensor's, at a multiple of 32 bytes. source NULL: the tensors' own data. */
int sh_gguf_out_write(const sh_gguf_out *g, const char *path, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e);

#endif
