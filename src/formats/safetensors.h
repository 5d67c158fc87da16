/* safetensors: one file (reader over a map) and a small writer. */
#ifndef SH_FORMATS_SAFETENSORS_H
#define SH_FORMATS_SAFETENSORS_H

#include "base/err.h"
#include "base/file.h"
#include "formats/tensor.h"

typedef struct sh_st sh_st;
/* Only the header is read, and the map is left sparse (base/file.h). Checks the header (length, JSON, dtype, shape against offsets, bounds,
 * overlaps, holes). Caller frees with sh_st_close. */
int sh_st_open(sh_st **out, const char *path, sh_error *e);
void sh_st_close(sh_st *s);
int sh_st_count(const sh_st *s);
const sh_ftensor *sh_st_at(const sh_st *s, int i); /* in file order of the header */
const sh_ftensor *sh_st_find(const sh_st *s, const char *name);
const uint8_t *sh_st_header(const sh_st *s, size_t *len); /* the bytes before the data, borrowed from the map */
size_t sh_st_bytes(const sh_st *s);                       /* of the whole file */

/* Writes tensors (name, type, dims, data, bytes filled in) to a new file, atomically by rename; data 8-byte aligned. */
int sh_st_write(const char *path, const sh_ftensor *t, int n, sh_error *e);
/* The same with tensors whose bytes come from a source (data is not looked at), in the file's order: falling size of an element. */
int sh_st_write_from(const char *path, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e);

#endif
