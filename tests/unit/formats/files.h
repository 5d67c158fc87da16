/* Files for the tests of formats and model: temporary folders, files in memory, a writer of GGUF bytes, mutations, and a ceiling on single
 * allocations. Everything is static inline, because each test is a program of its own. */
#ifndef SH_TESTS_UNIT_FORMATS_FILES_H
#define SH_TESTS_UNIT_FORMATS_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"

/* No file of a few KB may make a reader ask for more at once than this: the allocation fails then, and the test sees SH_ERR_NOMEM. */
#define ALLOCATION_CEILING_MB 512
#if defined(__SANITIZE_ADDRESS__)
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "max_allocation_size_mb=512:allocator_may_return_null=1"; }
static inline void cap_memory(void) {}
#elif defined(__SANITIZE_THREAD__)
static inline void cap_memory(void) {}
#else
static inline void cap_memory(void) {
  struct rlimit r = {(rlim_t)ALLOCATION_CEILING_MB << 20, (rlim_t)ALLOCATION_CEILING_MB << 20};
  assert_int_equal(setrlimit(RLIMIT_AS, &r), 0);
}
#endif

#define assert_says(text, part)                                                                                                            \
  do {                                                                                                                                     \
    if (!strstr((text), (part))) fail_msg("'%s' is not in '%s'", (part), (text));                                                          \
  } while (0)

static inline uint64_t next_random(uint64_t *s) {
  *s ^= *s << 13;
  *s ^= *s >> 7;
  *s ^= *s << 17;
  return *s;
}

/* --- A file in memory: a path that can be opened until the next call. */
static inline const char *memory_file(const void *p, size_t n) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) fd = memfd_create("test", MFD_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, 0), 0);
  assert_int_equal(pwrite(fd, p, n, 0), (ssize_t)n);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

/* --- Temporary folder, one per test. */
static char temp_dir[64];

static inline int make_temp_dir(void **state) {
  (void)state;
  snprintf(temp_dir, sizeof temp_dir, "/tmp/sheng-test-XXXXXX");
  return mkdtemp(temp_dir) ? 0 : -1;
}

static inline int remove_temp_dir(void **state) {
  (void)state;
  char cmd[128];
  snprintf(cmd, sizeof cmd, "rm -rf '%s'", temp_dir);
  return system(cmd);
}

static inline const char *in_temp(const char *name) {
  static char path[8][512];
  static int turn;
  char *p = path[turn = (turn + 1) % 8];
  snprintf(p, sizeof path[0], "%s/%s", temp_dir, name);
  return p;
}

static inline void put_file(const char *name, const void *p, size_t n) {
  FILE *f = fopen(in_temp(name), "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(p, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *name, const char *text) { put_file(name, text, strlen(text)); }

static inline char *slurp(const char *path, size_t *n) {
  char *p;
  sh_error e = {0};
  if (sh_file_read(path, (size_t)1 << 28, &p, n, &e)) fail_msg("%s", e.text);
  return p;
}

static inline void copy_in(const char *from, const char *name) {
  size_t n;
  char *p = slurp(from, &n);
  put_file(name, p, n);
  sh_free(p);
}

/* --- safetensors bytes: the header text and that much data. */
static inline sh_buf st_bytes(const char *header, size_t data) {
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  uint64_t n = strlen(header);
  for (int i = 0; i < 8; i++) sh_buf_putc(&b, (char)(n >> (8 * i)));
  sh_buf_puts(&b, header);
  for (size_t i = 0; i < data; i++) sh_buf_putc(&b, (char)i);
  assert_int_equal(b.failed, 0);
  return b;
}

/* --- GGUF bytes. Keys and tensors are appended in order; counts are patched by gguf_done. */
typedef struct gguf_writer {
  sh_buf b, data;
  uint64_t n_keys, n_tensors;
  size_t align;
  bool in_tensors;
} gguf_writer;

enum { G_U8, G_I8, G_U16, G_I16, G_U32, G_I32, G_F32, G_BOOL, G_STR, G_ARRAY, G_U64, G_I64, G_F64 };

static inline void put_le(sh_buf *b, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) sh_buf_putc(b, (char)(v >> (8 * i)));
}

static inline void put_gstr(sh_buf *b, const char *s) {
  put_le(b, strlen(s), 8);
  sh_buf_puts(b, s);
}

static inline void gguf_begin(gguf_writer *w, uint32_t version) {
  memset(w, 0, sizeof *w);
  sh_buf_init(&w->b, 1 << 22);
  sh_buf_init(&w->data, 1 << 22);
  w->align = 32;
  sh_buf_puts(&w->b, "GGUF");
  put_le(&w->b, version, 4);
  put_le(&w->b, 0, 8);
  put_le(&w->b, 0, 8);
}

static inline void gguf_key(gguf_writer *w, const char *key, uint32_t type) {
  put_gstr(&w->b, key);
  put_le(&w->b, type, 4);
  w->n_keys++;
}

static inline void gguf_u(gguf_writer *w, const char *key, uint32_t type, uint64_t v, int bytes) {
  gguf_key(w, key, type);
  put_le(&w->b, v, bytes);
}

static inline void gguf_u32(gguf_writer *w, const char *key, uint32_t v) { gguf_u(w, key, G_U32, v, 4); }

static inline void gguf_f32(gguf_writer *w, const char *key, float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  gguf_u(w, key, G_F32, u, 4);
}

static inline void gguf_s(gguf_writer *w, const char *key, const char *v) {
  gguf_key(w, key, G_STR);
  put_gstr(&w->b, v);
}

static inline void gguf_array(gguf_writer *w, const char *key, uint32_t item_type, uint64_t n) {
  gguf_key(w, key, G_ARRAY);
  put_le(&w->b, item_type, 4);
  put_le(&w->b, n, 8);
}

/* dims fastest first, as in the file; bytes of data (a counting pattern) are appended at the next aligned place. */
static inline void gguf_tensor(gguf_writer *w, const char *name, uint32_t type, int n_dims, const uint64_t *dims, size_t bytes) {
  while (w->data.len % w->align) sh_buf_putc(&w->data, 0);
  put_gstr(&w->b, name);
  put_le(&w->b, (uint64_t)n_dims, 4);
  for (int i = 0; i < n_dims; i++) put_le(&w->b, dims[i], 8);
  put_le(&w->b, type, 4);
  put_le(&w->b, w->data.len, 8);
  for (size_t i = 0; i < bytes; i++) sh_buf_putc(&w->data, (char)(i * 7));
  w->n_tensors++;
}

/* The finished file in w->b; frees the rest. */
static inline void gguf_done(gguf_writer *w) {
  for (int i = 0; i < 8; i++) {
    w->b.p[8 + i] = (char)(w->n_tensors >> (8 * i));
    w->b.p[16 + i] = (char)(w->n_keys >> (8 * i));
  }
  while (w->b.len % w->align) sh_buf_putc(&w->b, 0);
  if (w->data.len) sh_buf_put(&w->b, w->data.p, w->data.len);
  sh_buf_free(&w->data);
  assert_int_equal(w->b.failed, 0);
}

/* Changes 1 to 4 bytes of p[0..n): flips, small and extreme values, mostly where lengths live. */
static inline void mutate(uint8_t *p, size_t n, uint64_t *seed) {
  static const uint8_t HARD[] = {0, 1, 0x7f, 0x80, 0xff, '{', '}', '"', '[', '9', '-'};
  int times = 1 + (int)(next_random(seed) % 4);
  for (int i = 0; i < times; i++) {
    size_t at = (size_t)(next_random(seed) % n);
    uint64_t r = next_random(seed);
    if (r % 3 == 0) p[at] ^= (uint8_t)(1u << (r >> 8) % 8);
    else if (r % 3 == 1) p[at] = HARD[(r >> 8) % sizeof HARD];
    else p[at] = (uint8_t)(r >> 8);
  }
}

#endif
