/* Fuzz driver of the GGUF reader and of what stands on it: the config from metadata and the binding of weights. Beyond "no crash": all that
 * a file offers can be read, and what was bound can be dequantized to its last row. */
#include "formats/gguf.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/dequant.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static unsigned sink;

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static const char *as_file(const uint8_t *data, size_t n) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  must(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n, "the test's own file");
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

static void touch(const void *p, size_t n) {
  for (size_t i = 0; i < n; i++) sink += ((const uint8_t *)p)[i];
}

static void read_arrays(const sh_gguf *g, const char *key) {
  int64_t n = sh_gguf_array_len(g, key), v;
  for (int64_t i = 0; i < n; i++) {
    const char *s;
    size_t len;
    double d;
    if (sh_gguf_array_str(g, key, i, &s, &len) == 0) touch(s, len);
    if (sh_gguf_array_int(g, key, i, &v) == 0) sink += (unsigned)v;
    if (sh_gguf_array_float(g, key, i, &d) == 0) sink += d > 0;
  }
  must(n < 0 || sh_gguf_array_int(g, key, n, &v) < 0, "an index past the end is refused");
}

static void read_all(const sh_gguf *g) {
  static const char *const KEYS[] = {
      "general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores", "a", "b", "k"};
  for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++) {
    const char *s;
    size_t len;
    int64_t v;
    double d;
    if (sh_gguf_str(g, KEYS[i], &s, &len) == 0) touch(s, len);
    if (sh_gguf_int(g, KEYS[i], &v) == 0) sink += (unsigned)v;
    if (sh_gguf_float(g, KEYS[i], &d) == 0) sink += d > 0;
    read_arrays(g, KEYS[i]);
  }
  for (int i = 0; i < sh_gguf_count(g); i++) {
    const sh_ftensor *t = sh_gguf_at(g, i);
    must(sh_gguf_find(g, t->name) == t, "a tensor is found by its name");
    touch(t->data, t->bytes);
  }
}

static void read_last_row(const sh_wview *v) {
  if (!v->data) return;
  float *row = sh_malloc((size_t)v->cols * sizeof *row);
  if (!row) return;
  sh_dequant_row(v, v->rows - 1, row);
  sink += row[v->cols - 1] > 0;
  sh_free(row);
}

static void bind(const sh_ckpt *ck, bool panels) {
  const sh_repack_opts o = {.panels = panels, .cache_dir = "", .threads = 1};
  sh_config c;
  sh_weights w = {0};
  sh_error e = {0};
  int rc = sh_config_load(&c, ck, &e);
  if (!rc) rc = sh_weights_bind(&w, &c, ck, &o, &e);
  if (rc) must(e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal of the model has a sentence");
  for (int i = 0; !rc && i < w.n_layers; i++) {
    const sh_w_layer *l = &w.layers[i];
    const sh_wview *v[] = {&l->q, &l->k, &l->v, &l->o, &l->in_qkv, &l->in_z, &l->in_a, &l->in_b, &l->lin_out, &l->gate, &l->up, &l->down};
    for (size_t k = 0; k < sizeof v / sizeof v[0]; k++) read_last_row(v[k]);
    if (l->moe) read_last_row(&l->moe->experts[c.n_experts - 1].up);
  }
  if (!rc) read_last_row(&w.head);
  sh_weights_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  sh_log_set_level(SH_LOG_ERROR);
  const char *path = as_file(data, n);
  sh_ckpt *ck;
  sh_error e = {0};
  int rc = sh_ckpt_open(&ck, path, 0, &e);
  if (rc) {
    must(!ck && e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    return 0;
  }
  read_all(sh_ckpt_gguf(ck));
  bind(ck, false);
  bind(ck, true);
  sh_ckpt_close(ck);
  return 0;
}
