/* Fuzz driver of the safetensors reader. Beyond "no crash": an accepted file's tensors lie inside it, are found by name and cover the data
 * exactly once; a refusal has a sentence. */
#include "formats/safetensors.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

/* A path that can be mapped, in memory. */
static const char *as_file(const uint8_t *data, size_t n) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  must(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n, "the test's own file");
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  sh_st *s;
  sh_error e = {0};
  int rc = sh_st_open(&s, as_file(data, n), &e);
  if (rc) {
    must(!s && e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    return 0;
  }
  size_t bytes = 0;
  unsigned sum = 0;
  for (int i = 0; i < sh_st_count(s); i++) {
    const sh_ftensor *t = sh_st_at(s, i);
    must(sh_st_find(s, t->name) == t, "a tensor is found by its name");
    must(t->type == SH_OTHER || (size_t)sh_ftensor_count(t) * (size_t)sh_dtype_block_bytes(t->type) == t->bytes, "shape and bytes agree");
    for (size_t k = 0; k < t->bytes; k++) sum += t->data[k];
    bytes += t->bytes;
  }
  uint64_t header = 0;
  memcpy(&header, data, 8);
  must(sum <= 255 * bytes && bytes + 8 + header == n, "the tensors cover the data");
  sh_st_close(s);
  return 0;
}
