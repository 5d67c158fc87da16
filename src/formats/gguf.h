/* GGUF v2/v3 files, little endian. The whole file is mapped; metadata values are read on demand from the map, so a vocabulary of 250k
 * strings costs an index only. Source of the layout: shared facts on GGUF (header, value types, alignment). */
#ifndef SH_FORMATS_GGUF_H
#define SH_FORMATS_GGUF_H

#include "base/err.h"
#include "formats/tensor.h"

typedef struct sh_gguf sh_gguf;

/* The number under which a file names a type of weights; -1: it cannot hold it. */
int sh_gguf_type_of(sh_dtype t);

/* Opens one file; for a split file (split.count > 1) also its siblings. Caller frees with sh_gguf_close. */
int sh_gguf_open(sh_gguf **out, const char *path, sh_error *e);
void sh_gguf_close(sh_gguf *g);

int sh_gguf_count(const sh_gguf *g);
const sh_ftensor *sh_gguf_at(const sh_gguf *g, int i);              /* NULL out of range */
const sh_ftensor *sh_gguf_find(const sh_gguf *g, const char *name); /* O(1); NULL when absent */

/* Path of its i-th file, and what stands in it before the tensors' data; NULL: there is none (g NULL: none at all). Borrowed. */
const char *sh_gguf_file(const sh_gguf *g, int i, const uint8_t **head, size_t *head_bytes, size_t *bytes);

/* Scalars: 0, SH_ERR_NOT_FOUND (key absent), SH_ERR_FORMAT (another type, out of range, not finite). Any integer type (and bool) is read by
 * _int, any number by _float. */
int sh_gguf_int(const sh_gguf *g, const char *key, int64_t *out);
int sh_gguf_float(const sh_gguf *g, const char *key, double *out);
int sh_gguf_str(const sh_gguf *g, const char *key, const char **s, size_t *len); /* borrowed from the map, not NUL-terminated */
/* Arrays. _array_len: items, or SH_ERR_*. Elements by index, O(1): the index of a string array is built by the open,
 * so that an open file never changes. An index out of range is SH_ERR_ARG. */
int64_t sh_gguf_array_len(const sh_gguf *g, const char *key);
int sh_gguf_array_str(const sh_gguf *g, const char *key, int64_t i, const char **s, size_t *len);
int sh_gguf_array_int(const sh_gguf *g, const char *key, int64_t i, int64_t *out);
int sh_gguf_array_float(const sh_gguf *g, const char *key, int64_t i, double *out);

#endif
