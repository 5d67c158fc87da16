/* GGUF files, version 2 and 3, little endian, whole or split.
 *
 * Every part is mapped and stays mapped; metadata comes from the first part. A sh_gguf is immutable once open, so any thread may read: even
 * the index of a string array (8 bytes per string) is built by the open, which has to walk the strings anyway to find the next key. All
 * reading goes through a cursor that knows the end of the map; every count is held against the bytes that are left before memory is taken
 * for it, so a hostile header costs no more than a small multiple of its file. Copying metadata into a tree of values was refused: a
 * vocabulary is 250,000 strings. */
#include "formats/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "formats/nameindex.h"

#define MAX_KEYS ((uint64_t)1 << 16)
#define MAX_TENSORS ((uint64_t)1 << 22)
#define MAX_PARTS 9999 /* five digits in the names, and nobody has more */
#define MAX_NAME 4096  /* bytes of a key or a tensor name */
#define MAX_ALIGNMENT (1 << 20)
#define MAX_NAMES ((size_t)512 << 20) /* bytes of copied tensor names */

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STR, T_ARRAY, T_U64, T_I64, T_F64, T_COUNT };
static const uint8_t SCALAR_BYTES[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Tensor types by number. Those without a sh_dtype keep their name, and sizes for the bounds checks. */
static const struct {
  const char *name;
  int16_t block, bytes;
  sh_dtype type;
} TYPES[] = {
    [0] = {"F32", 1, 4, SH_F32},
    [1] = {"F16", 1, 2, SH_F16},
    [2] = {"Q4_0", 32, 18, SH_Q4_0},
    [3] = {"Q4_1", 32, 20, SH_Q4_1},
    [6] = {"Q5_0", 32, 22, SH_Q5_0},
    [7] = {"Q5_1", 32, 24, SH_Q5_1},
    [8] = {"Q8_0", 32, 34, SH_Q8_0},
    [9] = {"Q8_1", 32, 40, SH_OTHER},
    [10] = {"Q2_K", 256, 84, SH_OTHER},
    [11] = {"Q3_K", 256, 110, SH_OTHER},
    [12] = {"Q4_K", 256, 144, SH_Q4_K},
    [13] = {"Q5_K", 256, 176, SH_Q5_K},
    [14] = {"Q6_K", 256, 210, SH_Q6_K},
    [15] = {"Q8_K", 256, 292, SH_OTHER},
    [16] = {"IQ2_XXS", 256, 66, SH_OTHER},
    [17] = {"IQ2_XS", 256, 74, SH_OTHER},
    [18] = {"IQ3_XXS", 256, 98, SH_OTHER},
    [19] = {"IQ1_S", 256, 50, SH_OTHER},
    [20] = {"IQ4_NL", 32, 18, SH_IQ4_NL},
    [21] = {"IQ3_S", 256, 110, SH_OTHER},
    [22] = {"IQ2_S", 256, 82, SH_OTHER},
    [23] = {"IQ4_XS", 256, 136, SH_OTHER},
    [24] = {"I8", 1, 1, SH_I8},
    [25] = {"I16", 1, 2, SH_I16},
    [26] = {"I32", 1, 4, SH_I32},
    [27] = {"I64", 1, 8, SH_I64},
    [28] = {"F64", 1, 8, SH_F64},
    [29] = {"IQ1_M", 256, 56, SH_OTHER},
    [30] = {"BF16", 1, 2, SH_BF16},
    [34] = {"TQ1_0", 256, 54, SH_OTHER},
    [35] = {"TQ2_0", 256, 66, SH_OTHER},
    [39] = {"MXFP4", 32, 17, SH_OTHER},
    [40] = {"NVFP4", 64, 36, SH_OTHER},
};
enum { N_TYPES = sizeof TYPES / sizeof TYPES[0] };

/* One metadata entry, a view into the map. */
typedef struct entry {
  uint32_t type;        /* T_* */
  uint32_t item_type;   /* of an array */
  uint64_t count;       /* items of an array */
  const uint8_t *value; /* scalar: its bytes; string: its length field; array: the first item */
  uint64_t *strings;    /* [count] offsets from value to each item's length field; owned; NULL unless an array of strings */
} entry;

typedef struct part {
  sh_map map;
  char *path;        /* owned */
  size_t head_bytes; /* before the tensors' data */
  uint64_t n_tensors, n_keys;
  entry *entries; /* [n_keys] */
  sh_nameindex keys;
} part;

struct sh_gguf {
  part *parts; /* [n_parts]; metadata of parts[0] counts */
  int n_parts;
  sh_arena *names;
  sh_ftensor *tensors; /* [count] */
  int count, room;
  sh_nameindex index;
};

/* --- Cursor over a map. `bad` is sticky: a read past the end yields zeros, and the caller checks once per step. */
typedef struct cursor {
  const uint8_t *base, *at, *end;
  bool bad;
} cursor;

static size_t left(const cursor *c) { return (size_t)(c->end - c->at); }

static const uint8_t *take(cursor *c, uint64_t n) {
  static const uint8_t zeros[8];
  if (c->bad || n > left(c)) {
    c->bad = true;
    return zeros;
  }
  const uint8_t *p = c->at;
  c->at += n;
  return p;
}

static uint64_t load(const uint8_t *p, int bytes) {
  uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

static uint64_t take_u(cursor *c, int bytes) { return load(take(c, (uint64_t)bytes), bytes); }

/* A string of any length inside the map; NULL when it runs over the end. */
static const char *take_str(cursor *c, uint64_t *len) {
  *len = take_u(c, 8);
  const uint8_t *p = take(c, *len);
  return c->bad ? NULL : (const char *)p;
}

static int truncated(const cursor *c, const char *what, sh_error *e) {
  return sh_fail(e, SH_ERR_FORMAT, "%s at byte %zu runs over the end of the file (%zu bytes; is it truncated?)", what,
                 (size_t)(c->at - c->base), (size_t)(c->end - c->base));
}

/* --- Metadata */

static int read_array(cursor *c, entry *v, sh_error *e) {
  v->item_type = (uint32_t)take_u(c, 4);
  v->count = take_u(c, 8);
  v->value = c->at;
  if (c->bad) return truncated(c, "an array", e);
  if (v->item_type >= T_COUNT) return sh_fail(e, SH_ERR_FORMAT, "an array has items of the unknown type %u", v->item_type);
  if (v->item_type == T_ARRAY) return sh_fail(e, SH_ERR_UNSUPPORTED, "an array of arrays is not read");
  int size = v->item_type == T_STR ? 8 : SCALAR_BYTES[v->item_type]; /* least bytes of an item */
  if (v->count > left(c) / (uint64_t)size)
    return sh_fail(e, SH_ERR_FORMAT, "an array claims %llu items, but only %zu bytes follow", (unsigned long long)v->count, left(c));
  if (v->item_type != T_STR) {
    take(c, v->count * (uint64_t)size);
    return 0;
  }
  v->strings = sh_calloc((size_t)v->count + 1, sizeof *v->strings);
  if (!v->strings) return sh_fail(e, SH_ERR_NOMEM, "out of memory for an array of %llu strings", (unsigned long long)v->count);
  for (uint64_t i = 0; i < v->count; i++) {
    uint64_t len;
    v->strings[i] = (uint64_t)(c->at - v->value);
    if (!take_str(c, &len)) return truncated(c, "a string of an array", e);
  }
  return 0;
}

static int read_value(cursor *c, entry *v, sh_error *e) {
  v->type = (uint32_t)take_u(c, 4);
  if (c->bad) return truncated(c, "a value", e);
  if (v->type >= T_COUNT) return sh_fail(e, SH_ERR_FORMAT, "the value has the unknown type %u", v->type);
  if (v->type == T_ARRAY) return read_array(c, v, e);
  v->value = c->at;
  uint64_t len;
  if (v->type == T_STR) take_str(c, &len);
  else take(c, SCALAR_BYTES[v->type]);
  return c->bad ? truncated(c, "a value", e) : 0;
}

/* A string of metadata in a message: only its printable ASCII, at most 60 bytes. */
static const char *shown(const char *s, uint64_t len, char buf[64]) {
  int n = 0;
  for (uint64_t i = 0; i < len && n < 60; i++) buf[n++] = s[i] >= ' ' && s[i] < 127 ? s[i] : '?';
  buf[n] = 0;
  return buf;
}

static int read_keys(part *p, cursor *c, sh_error *e) {
  if (p->n_keys > MAX_KEYS || p->n_keys > left(c) / 13) { /* 13: an empty key and one byte of value */
    return sh_fail(e, SH_ERR_FORMAT, "the header claims %llu keys in %zu bytes", (unsigned long long)p->n_keys, left(c));
  }
  p->entries = sh_calloc((size_t)p->n_keys + 1, sizeof *p->entries);
  if (!p->entries || sh_nameindex_init(&p->keys, (size_t)p->n_keys))
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for %llu keys", (unsigned long long)p->n_keys);
  for (uint64_t i = 0; i < p->n_keys; i++) {
    uint64_t len;
    char buf[64];
    const char *key = take_str(c, &len);
    if (!key) return truncated(c, "a key", e);
    if (len == 0 || len > MAX_NAME || memchr(key, 0, (size_t)len))
      return sh_fail(e, SH_ERR_FORMAT, "key %llu is no name", (unsigned long long)i);
    int rc = read_value(c, &p->entries[i], e);
    if (rc) return sh_fail_in(e, rc, "key %s", shown(key, len, buf));
    if (sh_nameindex_add(&p->keys, key, (size_t)len, (int32_t)i))
      return sh_fail(e, SH_ERR_FORMAT, "key %s is there twice", shown(key, len, buf));
  }
  return 0;
}

static const entry *lookup(const part *p, const char *key) {
  int32_t i = sh_nameindex_find(&p->keys, key, strlen(key));
  return i < 0 ? NULL : &p->entries[i];
}

static int scalar_int(uint32_t type, const uint8_t *p, int64_t *out) {
  switch (type) {
  case T_U8:
  case T_BOOL: *out = p[0]; return 0;
  case T_I8: *out = (int8_t)p[0]; return 0;
  case T_U16: *out = (int64_t)load(p, 2); return 0;
  case T_I16: *out = (int16_t)load(p, 2); return 0;
  case T_U32: *out = (int64_t)load(p, 4); return 0;
  case T_I32: *out = (int32_t)load(p, 4); return 0;
  case T_U64:
  case T_I64: *out = (int64_t)load(p, 8); return type == T_U64 && *out < 0 ? SH_ERR_FORMAT : 0;
  default: return SH_ERR_FORMAT;
  }
}

static int scalar_float(uint32_t type, const uint8_t *p, double *out) {
  if (type == T_F32) {
    uint32_t u = (uint32_t)load(p, 4);
    float f;
    memcpy(&f, &u, sizeof f);
    *out = (double)f;
  } else if (type == T_F64) {
    uint64_t u = load(p, 8);
    memcpy(out, &u, sizeof u);
  } else {
    int64_t i;
    if (type == T_BOOL || scalar_int(type, p, &i)) return SH_ERR_FORMAT;
    *out = (double)i;
  }
  return isfinite(*out) ? 0 : SH_ERR_FORMAT;
}

static int part_int(const part *p, const char *key, int64_t *out) {
  const entry *v = lookup(p, key);
  return v ? scalar_int(v->type, v->value, out) : SH_ERR_NOT_FOUND;
}

/* --- Tensors */

static int set_type(sh_ftensor *t, uint32_t type, int *block, int *bytes, sh_error *e) {
  if (type >= N_TYPES || !TYPES[type].name)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "tensor %s has the unknown type number %u", t->name, type);
  t->type = TYPES[type].type;
  t->type_name = TYPES[type].name;
  *block = TYPES[type].block;
  *bytes = TYPES[type].bytes;
  return 0;
}

/* One entry of the tensor list; `offset` from the start of the part's data, which is not known yet. */
static int read_tensor(sh_gguf *g, cursor *c, sh_ftensor *t, uint64_t *offset, sh_error *e) {
  uint64_t len, dims[SH_MAX_DIMS] = {0};
  char buf[64];
  const char *name = take_str(c, &len);
  if (!name) return truncated(c, "a tensor's name", e);
  if (len == 0 || len > MAX_NAME || memchr(name, 0, (size_t)len) || !sh_utf8_valid(name, (size_t)len)) {
    return sh_fail(e, SH_ERR_FORMAT, "a tensor has no usable name (%s)", shown(name, len, buf));
  }
  t->name = sh_arena_strdup(g->names, name, (size_t)len);
  if (!t->name) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tensor names");
  uint64_t n_dims = take_u(c, 4);
  if (!c->bad && n_dims > SH_MAX_DIMS)
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s has %llu dimensions; at most %d are read", t->name, (unsigned long long)n_dims,
                   SH_MAX_DIMS);
  for (uint64_t i = 0; i < n_dims && !c->bad; i++) dims[i] = take_u(c, 8);
  uint32_t type = (uint32_t)take_u(c, 4);
  *offset = take_u(c, 8);
  if (c->bad) return truncated(c, "a tensor's entry", e);

  int block = 1, block_bytes = 1;
  int rc = set_type(t, type, &block, &block_bytes, e);
  if (rc) return rc;
  t->n_dims = (int)n_dims;
  int64_t count = 1;
  for (int i = 0; i < t->n_dims; i++) {
    if (dims[i] == 0 || dims[i] > INT64_MAX || __builtin_mul_overflow(count, (int64_t)dims[i], &count)) {
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s: the product of its dimensions is 0 or overflows", t->name);
    }
    t->dims[t->n_dims - 1 - i] = (int64_t)dims[i]; /* fastest first in the file */
  }
  int64_t fastest = t->n_dims ? (int64_t)dims[0] : 1;
  if (fastest % block) {
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s: rows of %lld are no multiple of %s's block of %d", t->name, (long long)fastest,
                   t->type_name, block);
  }
  int64_t total;
  if (__builtin_mul_overflow(count / block, (int64_t)block_bytes, &total))
    return sh_fail(e, SH_ERR_FORMAT, "tensor %s: its size overflows", t->name);
  t->bytes = (size_t)total;
  return 0;
}

static int read_alignment(const part *p, size_t *align, sh_error *e) {
  int64_t v = 32;
  int rc = part_int(p, "general.alignment", &v);
  if ((rc && rc != SH_ERR_NOT_FOUND) || v < 1 || v > MAX_ALIGNMENT || (v & (v - 1))) {
    return sh_fail(e, SH_ERR_FORMAT, "general.alignment must be a power of two of at most %d", MAX_ALIGNMENT);
  }
  *align = (size_t)v;
  return 0;
}

static int by_data(const void *a, const void *b) {
  const sh_ftensor *x = *(const sh_ftensor *const *)a, *y = *(const sh_ftensor *const *)b;
  return (x->data > y->data) - (x->data < y->data);
}

/* Padding between tensors is the format's habit, so holes are fine here, unlike in safetensors. */
static int check_overlap(const sh_ftensor *t, int n, sh_error *e) {
  const sh_ftensor **order = sh_calloc((size_t)n + 1, sizeof *order);
  if (!order) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", n);
  for (int i = 0; i < n; i++) order[i] = &t[i];
  qsort(order, (size_t)n, sizeof *order, by_data);
  int rc = 0;
  for (int i = 1; i < n && !rc; i++) {
    if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
      rc = sh_fail(e, SH_ERR_FORMAT, "tensors %s and %s overlap", order[i - 1]->name, order[i]->name);
  }
  sh_free(order);
  return rc;
}

static int place_tensors(sh_gguf *g, part *p, const cursor *c, const uint64_t *offsets, int first, sh_error *e) {
  size_t align = 32;
  int rc = read_alignment(p, &align, e);
  if (rc) return rc;
  size_t head = (size_t)(c->at - c->base), start = (head + align - 1) & ~(align - 1);
  p->head_bytes = head;
  for (int i = first; i < g->count; i++) {
    sh_ftensor *t = &g->tensors[i];
    uint64_t at = offsets[i - first];
    if (at % align)
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s starts at %llu, which is not aligned to %zu", t->name, (unsigned long long)at, align);
    if (start > p->map.len || at > p->map.len - start || t->bytes > p->map.len - start - at) {
      return sh_fail(e, SH_ERR_FORMAT,
                     "tensor %s claims %zu bytes at %llu of the data, but the file holds %zu bytes of data (is it truncated?)", t->name,
                     t->bytes, (unsigned long long)at, start > p->map.len ? 0 : p->map.len - start);
    }
    t->data = p->map.p + start + at;
  }
  return check_overlap(&g->tensors[first], g->count - first, e);
}

static int grow_tensors(sh_gguf *g, uint64_t more, sh_error *e) {
  if (more > MAX_TENSORS || (uint64_t)g->count + more > MAX_TENSORS)
    return sh_fail(e, SH_ERR_LIMIT, "more than %llu tensors", (unsigned long long)MAX_TENSORS);
  size_t room = (size_t)g->count + (size_t)more + 1;
  sh_ftensor *t = sh_realloc(g->tensors, room * sizeof *t);
  if (!t) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %zu tensors", room);
  memset(t + g->count, 0, (room - (size_t)g->count) * sizeof *t);
  g->tensors = t;
  return 0;
}

static int read_tensors(sh_gguf *g, part *p, cursor *c, sh_error *e) {
  if (p->n_tensors > left(c) / 24) { /* 24: name length, dimension count, type, offset */
    return sh_fail(e, SH_ERR_FORMAT, "the header claims %llu tensors, but only %zu bytes follow", (unsigned long long)p->n_tensors,
                   left(c));
  }
  int rc = grow_tensors(g, p->n_tensors, e);
  if (rc) return rc;
  uint64_t *offsets = sh_calloc((size_t)p->n_tensors + 1, sizeof *offsets);
  if (!offsets) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %llu tensors", (unsigned long long)p->n_tensors);
  int first = g->count;
  for (uint64_t i = 0; i < p->n_tensors && !rc; i++) {
    rc = read_tensor(g, c, &g->tensors[g->count], &offsets[i], e);
    if (!rc) g->count++;
  }
  if (!rc) rc = place_tensors(g, p, c, offsets, first, e);
  sh_free(offsets);
  return rc;
}

/* --- Files */

static int read_magic(cursor *c, part *p, sh_error *e) {
  const uint8_t *m = take(c, 4);
  if (c->bad || memcmp(m, "GGUF", 4)) return sh_fail(e, SH_ERR_FORMAT, "not a GGUF file (it does not begin with \"GGUF\")");
  uint32_t version = (uint32_t)take_u(c, 4);
  p->n_tensors = take_u(c, 8);
  p->n_keys = take_u(c, 8);
  if (c->bad) return truncated(c, "the header", e);
  if (version == 0x02000000 || version == 0x03000000) return sh_fail(e, SH_ERR_UNSUPPORTED, "a big-endian GGUF file is not read");
  if (version != 2 && version != 3) return sh_fail(e, SH_ERR_UNSUPPORTED, "GGUF version %u is not read; versions 2 and 3 are", version);
  return 0;
}

/* Takes path. Appends the part's tensors to g. */
static int read_part(sh_gguf *g, part *p, char *path, sh_error *e) {
  p->path = path;
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = sh_map_open(&p->map, path, e); /* names the path itself */
  if (rc) return rc;
  cursor c = {p->map.p, p->map.p, p->map.p + p->map.len, false};
  rc = read_magic(&c, p, e);
  if (!rc) rc = read_keys(p, &c, e);
  if (!rc) rc = read_tensors(g, p, &c, e);
  return rc ? sh_fail_in(e, rc, "%s", path) : 0;
}

static void free_part(part *p) {
  for (uint64_t i = 0; p->entries && i < p->n_keys; i++) sh_free(p->entries[i].strings);
  sh_free(p->entries);
  sh_nameindex_free(&p->keys);
  sh_map_close(&p->map);
  sh_free(p->path);
  memset(p, 0, sizeof *p);
}

/* "dir/base-00002-of-00003.gguf" -> the same with another number. NULL: the name is not of that form (or no memory). */
static char *sibling(const char *path, int no, int count) {
  char tail[32];
  size_t n = strlen(path);
  snprintf(tail, sizeof tail, "-of-%05d.gguf", count);
  size_t t = strlen(tail);
  if (n < t + 6 || strcmp(path + n - t, tail) || path[n - t - 6] != '-') return NULL;
  for (size_t i = n - t - 5; i < n - t; i++) {
    if (path[i] < '0' || path[i] > '9') return NULL;
  }
  char *out = sh_strndup(path, n);
  if (out) {
    char digits[16];
    snprintf(digits, sizeof digits, "%05d", no + 1);
    memcpy(out + n - t - 5, digits, 5);
  }
  return out;
}

/* Value of a split.* key with its default; SH_ERR_FORMAT outside [min, max]. */
static int split_key(const part *p, const char *key, int64_t def, int64_t min, int64_t max, int64_t *out, sh_error *e) {
  int rc = part_int(p, key, out);
  if (rc == SH_ERR_NOT_FOUND) *out = def;
  else if (rc || *out < min || *out > max)
    return sh_fail(e, SH_ERR_FORMAT, "%s: %s is not a number from %lld to %lld", p->path, key, (long long)min, (long long)max);
  return 0;
}

static int check_split(const part *p, int no, int64_t count, sh_error *e) {
  int64_t its_no = -1, its_count = -1;
  int rc = split_key(p, "split.no", -1, 0, MAX_PARTS - 1, &its_no, e);
  if (!rc) rc = split_key(p, "split.count", -1, 0, MAX_PARTS, &its_count, e);
  if (rc) return rc;
  if (its_no == no && its_count == count) return 0;
  return sh_fail(e, SH_ERR_FORMAT, "%s says that it is part %lld of %lld; part %d of %lld was expected", p->path, (long long)its_no + 1,
                 (long long)its_count, no + 1, (long long)count);
}

/* parts[0] has been read from `path`, whichever part that is. Reads the set in order, the first one again if `path` was another. */
static int open_siblings(sh_gguf *g, const char *path, int64_t count, sh_error *e) {
  char *first = sibling(path, 0, (int)count);
  if (!first)
    return sh_fail(e, SH_ERR_FORMAT, "%s belongs to a set of %lld files, but is not named like NAME-00001-of-%05lld.gguf", path,
                   (long long)count, (long long)count);
  bool is_first = strcmp(first, path) == 0;
  sh_free(first);
  int begin = 1;
  if (!is_first) {
    free_part(&g->parts[0]);
    g->count = 0;
    g->n_parts = 0;
    begin = 0;
  }
  for (int i = begin; i < count; i++) {
    part *grown = sh_realloc(g->parts, sizeof *grown * (size_t)(i + 1));
    if (!grown) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d files", i + 1);
    g->parts = grown;
    memset(&g->parts[i], 0, sizeof *grown);
    g->n_parts = i + 1;
    int rc = read_part(g, &g->parts[i], sibling(path, i, (int)count), e);
    if (rc) return rc;
  }
  int64_t total = g->count;
  int rc = split_key(&g->parts[0], "split.tensors.count", total, 0, MAX_TENSORS, &total, e);
  for (int i = 0; i < count && !rc; i++) rc = check_split(&g->parts[i], i, count, e);
  if (!rc && total != g->count)
    rc = sh_fail(e, SH_ERR_FORMAT, "%s: split.tensors.count is %lld, but the %lld files hold %d", path, (long long)total, (long long)count,
                 g->count);
  return rc;
}

static int index_tensors(sh_gguf *g, const char *path, sh_error *e) {
  if (sh_nameindex_init(&g->index, (size_t)g->count)) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d tensors", g->count);
  for (int i = 0; i < g->count; i++) {
    const char *name = g->tensors[i].name;
    if (sh_nameindex_add(&g->index, name, strlen(name), i)) return sh_fail(e, SH_ERR_FORMAT, "%s: tensor %s is there twice", path, name);
  }
  return 0;
}

int sh_gguf_open(sh_gguf **out, const char *path, sh_error *e) {
  *out = NULL;
  int rc = SH_ERR_NOMEM;
  sh_gguf *g = sh_calloc(1, sizeof *g);
  if (g) g->names = sh_arena_new(MAX_NAMES);
  if (g) g->parts = sh_calloc(1, sizeof *g->parts);
  if (!g || !g->names || !g->parts) {
    sh_fail(e, rc, "out of memory");
    goto fail;
  }
  g->n_parts = 1;
  rc = read_part(g, &g->parts[0], sh_strdup(path), e);
  if (rc) goto fail;
  int64_t count = 0;
  rc = split_key(&g->parts[0], "split.count", 0, 0, MAX_PARTS, &count, e);
  if (!rc && count > 1) rc = open_siblings(g, path, count, e);
  if (!rc) rc = index_tensors(g, path, e);
  if (rc) goto fail;
  *out = g;
  return 0;
fail:
  sh_gguf_close(g);
  return rc;
}

void sh_gguf_close(sh_gguf *g) {
  if (!g) return;
  for (int i = 0; i < g->n_parts; i++) free_part(&g->parts[i]);
  sh_free(g->parts);
  sh_nameindex_free(&g->index);
  sh_free(g->tensors);
  sh_arena_free(g->names);
  sh_free(g);
}

/* --- Reading */

int sh_gguf_type_of(sh_dtype t) {
  for (int i = 0; i < (int)N_TYPES; i++) {
    if (TYPES[i].name && TYPES[i].type == t && t != SH_OTHER) return i;
  }
  return -1;
}

int sh_gguf_count(const sh_gguf *g) { return g->count; }

const sh_ftensor *sh_gguf_at(const sh_gguf *g, int i) { return i >= 0 && i < g->count ? &g->tensors[i] : NULL; }

const sh_ftensor *sh_gguf_find(const sh_gguf *g, const char *name) {
  int32_t i = sh_nameindex_find(&g->index, name, strlen(name));
  return i < 0 ? NULL : &g->tensors[i];
}

const char *sh_gguf_file(const sh_gguf *g, int i, const uint8_t **head, size_t *head_bytes, size_t *bytes) {
  if (!g || i < 0 || i >= g->n_parts) return NULL;
  *head = g->parts[i].map.p;
  *head_bytes = g->parts[i].head_bytes;
  *bytes = g->parts[i].map.len;
  return g->parts[i].path;
}

int sh_gguf_int(const sh_gguf *g, const char *key, int64_t *out) { return part_int(&g->parts[0], key, out); }

int sh_gguf_float(const sh_gguf *g, const char *key, double *out) {
  const entry *v = lookup(&g->parts[0], key);
  return v ? scalar_float(v->type, v->value, out) : SH_ERR_NOT_FOUND;
}

static void view_str(const uint8_t *at, const char **s, size_t *len) {
  *len = (size_t)load(at, 8);
  *s = (const char *)at + 8;
}

int sh_gguf_str(const sh_gguf *g, const char *key, const char **s, size_t *len) {
  const entry *v = lookup(&g->parts[0], key);
  if (!v) return SH_ERR_NOT_FOUND;
  if (v->type != T_STR) return SH_ERR_FORMAT;
  view_str(v->value, s, len);
  return 0;
}

/* The array under `key` if i is one of its items. */
static int item(const sh_gguf *g, const char *key, int64_t i, const entry **out) {
  const entry *v = lookup(&g->parts[0], key);
  if (!v) return SH_ERR_NOT_FOUND;
  if (v->type != T_ARRAY) return SH_ERR_FORMAT;
  *out = v;
  return i >= 0 && (uint64_t)i < v->count ? 0 : SH_ERR_ARG;
}

int64_t sh_gguf_array_len(const sh_gguf *g, const char *key) {
  const entry *v = lookup(&g->parts[0], key);
  if (!v) return SH_ERR_NOT_FOUND;
  return v->type == T_ARRAY ? (int64_t)v->count : SH_ERR_FORMAT;
}

int sh_gguf_array_str(const sh_gguf *g, const char *key, int64_t i, const char **s, size_t *len) {
  const entry *v;
  int rc = item(g, key, i, &v);
  if (rc) return rc;
  if (v->item_type != T_STR) return SH_ERR_FORMAT;
  view_str(v->value + v->strings[i], s, len);
  return 0;
}

int sh_gguf_array_int(const sh_gguf *g, const char *key, int64_t i, int64_t *out) {
  const entry *v;
  int rc = item(g, key, i, &v);
  return rc ? rc : scalar_int(v->item_type, v->value + (size_t)i * SCALAR_BYTES[v->item_type], out);
}

int sh_gguf_array_float(const sh_gguf *g, const char *key, int64_t i, double *out) {
  const entry *v;
  int rc = item(g, key, i, &v);
  return rc ? rc : scalar_float(v->item_type, v->value + (size_t)i * SCALAR_BYTES[v->item_type], out);
}
