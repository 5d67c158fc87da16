/* One safetensors file: 8 bytes of header length, a JSON object of tensors, the data.
 *
 * The file is mapped and stays mapped; a sh_st is immutable after the open, so any thread may read. The header is parsed into an arena that
 * dies before the open returns; names are copied out. Checked here, so that nobody after this has to: header inside the file, shapes
 * against offsets and type, bounds, and that the tensors cover the data exactly once (as the format's reference demands: a hole may hide
 * bytes, an overlap aliases weights). Mapping the header's JSON lazily, tensor by tensor, was refused: the checks need all of it. */
#include "formats/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "formats/nameindex.h"

#define MAX_HEADER ((size_t)100 << 20) /* bytes; the reference's limit */
#define MAX_TREE ((size_t)1 << 30)     /* bytes of the parsed header */
#define MAX_NODES ((size_t)8 << 20)    /* JSON values; nine per tensor */
#define MAX_NAMES ((size_t)256 << 20)  /* bytes of copied names */
#define MAX_TYPE_NAME 31

struct sh_st {
  sh_map map;
  sh_arena *names;     /* names and unusual type names */
  sh_ftensor *tensors; /* [count], file order of the header */
  int count;
  sh_nameindex index;
  size_t header_end; /* where the data begins */
};

/* Element types with a size in bits; 0 ends. Those without a sh_dtype are known by name and size only. */
static const struct {
  const char *name;
  int bits;
  sh_dtype type;
} TYPES[] = {
    {"F32", 32, SH_F32},
    {"F16", 16, SH_F16},
    {"BF16", 16, SH_BF16},
    {"I64", 64, SH_I64},
    {"I32", 32, SH_I32},
    {"I16", 16, SH_I16},
    {"I8", 8, SH_I8},
    {"U8", 8, SH_U8},
    {"BOOL", 8, SH_BOOL},
    {"F64", 64, SH_F64},
    {"F8_E4M3", 8, SH_F8_E4M3},
    {"F8_E5M2", 8, SH_OTHER},
    {"F8_E8M0", 8, SH_OTHER},
    {"F8_E4M3FNUZ", 8, SH_OTHER},
    {"F8_E5M2FNUZ", 8, SH_OTHER},
    {"F4", 4, SH_OTHER},
    {"F6_E2M3", 6, SH_OTHER},
    {"F6_E3M2", 6, SH_OTHER},
    {"U16", 16, SH_OTHER},
    {"U32", 32, SH_OTHER},
    {"U64", 64, SH_OTHER},
    {"C64", 64, SH_OTHER},
    {NULL, 0, SH_OTHER},
};

static int set_type(sh_st *s, sh_ftensor *t, const sh_json *v, int *bits, sh_error *e) {
  if (!sh_json_is(v, SH_JSON_STRING)) return sh_fail(e, SH_ERR_FORMAT, "tensor %s has no dtype string", t->name);
  for (int i = 0; TYPES[i].name; i++) {
    if (!sh_json_eq_str(v, TYPES[i].name)) continue;
    t->type = TYPES[i].type;
    t->type_name = TYPES[i].name;
    *bits = TYPES[i].bits;
    return 0;
  }
  bool fine = v->len >= 1 && v->len <= MAX_TYPE_NAME;
  for (size_t i = 0; fine && i < v->len; i++) fine = v->s[i] > ' ' && v->s[i] < 127;
  if (!fine) return sh_fail(e, SH_ERR_FORMAT, "tensor %s has a dtype that is no type name", t->name);
  t->type = SH_OTHER;
  t->type_name = sh_arena_strdup(s->names, v->s, v->len);
  if (!t->type_name) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tensor names");
  *bits = 0;
  return 0;
}

/* Shape, and its number of elements. */
static int set_shape(sh_ftensor *t, const sh_json *v, int64_t *count, sh_error *e) {
  if (!sh_json_is(v, SH_JSON_ARRAY)) return sh_fail(e, SH_ERR_FORMAT, "tensor %s has no shape array", t->name);
  if (v->len > SH_MAX_DIMS)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "tensor %s has %zu dimensions; at most %d are read", t->name, v->len, SH_MAX_DIMS);
  t->n_dims = (int)v->len;
  *count = 1;
  bool empty = false;
  for (int i = 0; i < t->n_dims; i++) {
    int64_t d;
    if (sh_json_int(&v->items[i], &d) || d < 0)
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s: dimension %d of its shape is not a size", t->name, i);
    t->dims[i] = d;
    empty |= d == 0;
    /* a zero later on does not excuse a product that overflows before it: callers multiply in any order */
    if (d && __builtin_mul_overflow(*count, d, count))
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s: the product of its shape overflows", t->name);
  }
  if (empty) *count = 0;
  return 0;
}

static int set_data(const sh_st *s, sh_ftensor *t, const sh_json *v, size_t header_end, int bits, int64_t count, sh_error *e) {
  int64_t begin, end;
  if (!sh_json_is(v, SH_JSON_ARRAY) || v->len != 2 || sh_json_int(&v->items[0], &begin) || sh_json_int(&v->items[1], &end)) {
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s has no data_offsets pair", t->name);
  }
  size_t room = s->map.len - header_end;
  if (begin < 0 || end < begin || (uint64_t)end > room) {
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s claims bytes %lld to %lld, but the file holds %zu bytes of data (is it truncated?)",
                   t->name, (long long)begin, (long long)end, room);
  }
  t->data = s->map.p + header_end + begin;
  t->bytes = (size_t)(end - begin);
  if (!bits) return 0; /* a type known by name only: its size is its user's business */
  int64_t total;
  if (__builtin_mul_overflow(count, (int64_t)bits, &total) || total % 8 || (uint64_t)(total / 8) != t->bytes) {
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s: %lld elements of %s do not fill its %zu bytes", t->name, (long long)count, t->type_name,
                   t->bytes);
  }
  return 0;
}

static int add_tensor(sh_st *s, const sh_json_member *m, size_t header_end, sh_error *e) {
  sh_ftensor *t = &s->tensors[s->count];
  if (memchr(m->key, 0, m->key_len) || m->key_len == 0) return sh_fail(e, SH_ERR_FORMAT, "a tensor's name is empty or holds a NUL");
  t->name = sh_arena_strdup(s->names, m->key, m->key_len);
  if (!t->name) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tensor names");
  if (!sh_json_is(&m->value, SH_JSON_OBJECT)) return sh_fail(e, SH_ERR_FORMAT, "tensor %s is not described by an object", t->name);
  int bits = 0;
  int64_t count = 0;
  int rc = set_type(s, t, sh_json_get(&m->value, "dtype"), &bits, e);
  if (!rc) rc = set_shape(t, sh_json_get(&m->value, "shape"), &count, e);
  if (!rc) rc = set_data(s, t, sh_json_get(&m->value, "data_offsets"), header_end, bits, count, e);
  if (rc) return rc;
  if (sh_nameindex_add(&s->index, t->name, m->key_len, s->count)) return sh_fail(e, SH_ERR_FORMAT, "tensor %s is described twice", t->name);
  s->count++;
  return 0;
}

static int by_data(const void *a, const void *b) {
  const sh_ftensor *x = *(const sh_ftensor *const *)a, *y = *(const sh_ftensor *const *)b;
  if (x->data != y->data) return x->data < y->data ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors must follow one another without overlap or hole from the end of the header to the end of the file. */
static int check_cover(const sh_st *s, size_t header_end, sh_error *e) {
  const sh_ftensor **order = sh_calloc((size_t)s->count + 1, sizeof *order);
  if (!order) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", s->count);
  for (int i = 0; i < s->count; i++) order[i] = &s->tensors[i];
  qsort(order, (size_t)s->count, sizeof *order, by_data);
  const uint8_t *at = s->map.p + header_end;
  int rc = 0;
  for (int i = 0; i < s->count && !rc; i++) {
    if (order[i]->data < at) rc = sh_fail(e, SH_ERR_FORMAT, "tensors %s and %s overlap", order[i - 1]->name, order[i]->name);
    else if (order[i]->data > at)
      rc = sh_fail(e, SH_ERR_FORMAT, "%zu bytes before tensor %s belong to no tensor", (size_t)(order[i]->data - at), order[i]->name);
    else at += order[i]->bytes;
  }
  size_t rest = (size_t)(s->map.p + s->map.len - at);
  if (!rc && rest) rc = sh_fail(e, SH_ERR_FORMAT, "%zu bytes at the end of the file belong to no tensor", rest);
  sh_free(order);
  return rc;
}

static uint64_t load64(const uint8_t *p) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

/* tree lives in `scratch`. */
static int read_header(sh_st *s, sh_arena *scratch, sh_error *e) {
  if (s->map.len < 8)
    return sh_fail(e, SH_ERR_FORMAT, "%zu bytes are no safetensors file (8 bytes of header length are missing)", s->map.len);
  uint64_t n = load64(s->map.p);
  if (n > MAX_HEADER)
    return sh_fail(e, SH_ERR_FORMAT, "the header claims %llu bytes, more than the format's limit of %zu (not a safetensors file?)",
                   (unsigned long long)n, MAX_HEADER);
  if (n > s->map.len - 8)
    return sh_fail(e, SH_ERR_FORMAT, "the header claims %llu bytes, but the file ends after %zu (is it truncated?)", (unsigned long long)n,
                   s->map.len);
  if (n == 0 || s->map.p[8] != '{') return sh_fail(e, SH_ERR_FORMAT, "the header is not a JSON object");
  sh_map_ask(s->map.p, 8 + (size_t)n);
  sh_json *root;
  const sh_json_limits lim = {8, MAX_NODES};
  int rc = sh_json_parse((const char *)s->map.p + 8, (size_t)n, &lim, scratch, &root, e);
  if (rc) return sh_fail_in(e, rc, "header");
  if (root->len > INT32_MAX - 1) return sh_fail(e, SH_ERR_LIMIT, "the header lists %zu tensors", root->len);
  s->tensors = sh_calloc(root->len + 1, sizeof *s->tensors);
  if (!s->tensors || sh_nameindex_init(&s->index, root->len)) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %zu tensors", root->len);
  for (size_t i = 0; i < root->len; i++) {
    const sh_json_member *m = &root->members[i];
    if (strcmp(m->key, "__metadata__") == 0) {
      if (!sh_json_is(&m->value, SH_JSON_OBJECT)) return sh_fail(e, SH_ERR_FORMAT, "__metadata__ is not an object");
      continue;
    }
    rc = add_tensor(s, m, 8 + (size_t)n, e);
    if (rc) return rc;
  }
  s->header_end = 8 + (size_t)n;
  return check_cover(s, s->header_end, e);
}

int sh_st_open(sh_st **out, const char *path, sh_error *e) {
  *out = NULL;
  sh_arena *scratch = NULL;
  int rc = SH_ERR_NOMEM;
  sh_st *s = sh_calloc(1, sizeof *s);
  if (s) s->names = sh_arena_new(MAX_NAMES);
  scratch = sh_arena_new(MAX_TREE);
  if (!s || !s->names || !scratch) {
    sh_fail(e, rc, "out of memory");
    goto fail;
  }
  rc = sh_map_open(&s->map, path, e); /* names the path itself */
  if (rc) goto fail;
  sh_map_sparse(s->map.p, s->map.len, true);
  rc = read_header(s, scratch, e);
  if (rc) {
    sh_fail_in(e, rc, "%s", path);
    goto fail;
  }
  sh_arena_free(scratch);
  *out = s;
  return 0;
fail:
  sh_arena_free(scratch);
  sh_st_close(s);
  return rc;
}

void sh_st_close(sh_st *s) {
  if (!s) return;
  sh_nameindex_free(&s->index);
  sh_free(s->tensors);
  sh_arena_free(s->names);
  sh_map_close(&s->map);
  sh_free(s);
}

int sh_st_count(const sh_st *s) { return s->count; }

const uint8_t *sh_st_header(const sh_st *s, size_t *len) {
  *len = s->header_end;
  return s->map.p;
}

size_t sh_st_bytes(const sh_st *s) { return s->map.len; }

const sh_ftensor *sh_st_at(const sh_st *s, int i) { return i >= 0 && i < s->count ? &s->tensors[i] : NULL; }

const sh_ftensor *sh_st_find(const sh_st *s, const char *name) {
  int32_t i = sh_nameindex_find(&s->index, name, strlen(name));
  return i < 0 ? NULL : &s->tensors[i];
}

/* --- Writer. Streams, because logits of a long prompt are larger than what one wants to hold twice. Tensors are laid out by falling
 * element size, which keeps each one aligned to its own size without holes; the header is padded with blanks to a multiple of 8. */

static int check_writable(const sh_ftensor *t, int n, sh_error *e) {
  sh_nameindex seen;
  if (n < 0 || sh_nameindex_init(&seen, (size_t)n)) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", n);
  int rc = 0;
  for (int i = 0; i < n && !rc; i++) {
    int64_t count = 1;
    bool fits = t[i].n_dims >= 0 && t[i].n_dims <= SH_MAX_DIMS;
    for (int d = 0; fits && d < t[i].n_dims; d++) fits = t[i].dims[d] >= 0 && !__builtin_mul_overflow(count, t[i].dims[d], &count);
    if (!t[i].name || !t[i].name[0] || strcmp(t[i].name, "__metadata__") == 0)
      rc = sh_fail(e, SH_ERR_ARG, "tensor %d has no usable name", i);
    else if (sh_dtype_block(t[i].type) != 1)
      rc = sh_fail(e, SH_ERR_UNSUPPORTED, "tensor %s: safetensors cannot hold %s", t[i].name, sh_dtype_name(t[i].type));
    else if (!fits || (uint64_t)count > SIZE_MAX / 8 || (size_t)count * (size_t)sh_dtype_block_bytes(t[i].type) != t[i].bytes) {
      rc = sh_fail(e, SH_ERR_ARG, "tensor %s: its shape does not give its %zu bytes", t[i].name, t[i].bytes);
    } else if (sh_nameindex_add(&seen, t[i].name, strlen(t[i].name), i)) rc = sh_fail(e, SH_ERR_ARG, "tensor %s is given twice", t[i].name);
  }
  sh_nameindex_free(&seen);
  return rc;
}

static int by_size(const void *a, const void *b) {
  const sh_ftensor *x = *(const sh_ftensor *const *)a, *y = *(const sh_ftensor *const *)b;
  int bx = sh_dtype_block_bytes(x->type), by = sh_dtype_block_bytes(y->type);
  return bx != by ? by - bx : (x > y) - (x < y);
}

static int write_header(sh_buf *b, const sh_ftensor *const *order, int n) {
  sh_jw w;
  sh_jw_init(&w, b);
  sh_buf_put(b, "\0\0\0\0\0\0\0\0", 8);
  sh_jw_obj(&w);
  sh_jw_key(&w, "__metadata__");
  sh_jw_obj(&w);
  sh_jw_kstr(&w, "format", "pt"); /* transformers refuses a file that does not say it */
  sh_jw_end_obj(&w);
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    const sh_ftensor *t = order[i];
    sh_jw_key(&w, t->name);
    sh_jw_obj(&w);
    sh_jw_kstr(&w, "dtype", sh_dtype_name(t->type));
    sh_jw_key(&w, "shape");
    sh_jw_arr(&w);
    for (int d = 0; d < t->n_dims; d++) sh_jw_int(&w, t->dims[d]);
    sh_jw_end_arr(&w);
    sh_jw_key(&w, "data_offsets");
    sh_jw_arr(&w);
    sh_jw_int(&w, at);
    at += (int64_t)t->bytes;
    sh_jw_int(&w, at);
    sh_jw_end_arr(&w);
    sh_jw_end_obj(&w);
  }
  sh_jw_end_obj(&w);
  while (!b->failed && b->len % 8) sh_buf_putc(b, ' ');
  if (b->failed) return b->failed;
  for (int i = 0; i < 8; i++) b->p[i] = (char)((uint64_t)(b->len - 8) >> (8 * i));
  return 0;
}

typedef struct supply {
  sh_tensor_source source; /* NULL: the tensors' own data */
  void *ctx;
} supply;

static int write_file(const char *path, const sh_buf *head, const sh_ftensor *const *order, int n, const supply *s, sh_error *e) {
  sh_file_out o;
  int rc = sh_file_out_open(&o, path, e);
  if (!rc) rc = sh_file_out_write(&o, head->p, head->len, e);
  for (int i = 0; i < n && !rc; i++) rc = sh_ftensor_write(order[i], s->source, s->ctx, &o, e);
  if (!rc) rc = sh_file_out_commit(&o, e);
  sh_file_out_abandon(&o);
  return rc;
}

int sh_st_write_from(const char *path, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e) {
  const supply s = {source, ctx};
  int rc = check_writable(t, n, e);
  if (rc) return rc;
  sh_buf head;
  sh_buf_init(&head, MAX_HEADER);
  const sh_ftensor **order = sh_calloc((size_t)n + 1, sizeof *order);
  if (!order) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", n);
  if (!rc) {
    for (int i = 0; i < n; i++) order[i] = &t[i];
    qsort(order, (size_t)n, sizeof *order, by_size);
    rc = write_header(&head, order, n);
    rc = rc ? sh_fail(e, rc, "%s: the header of %d tensors is too large", path, n) : write_file(path, &head, order, n, &s, e);
  }
  sh_free(order);
  sh_buf_free(&head);
  return rc;
}

int sh_st_write(const char *path, const sh_ftensor *t, int n, sh_error *e) { return sh_st_write_from(path, t, n, NULL, NULL, e); }
