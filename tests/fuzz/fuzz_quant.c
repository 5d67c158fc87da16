/* Fuzz driver of quantized modules: from quantization_config and a safetensors file to weights.
 *
 * An input is a line, "ROWS COLS {config.json}", and then the bytes of model.safetensors, which holds the module "m". Beyond "no crash": a
 * view that was made can be read whole, its parts lie where they may, an order of columns names every column once; a refusal has a
 * sentence. */
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "formats/dequant.h"
#include "formats/repack.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 2048 }; /* rows, columns */

static char folder[64];

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static void remove_folder(void) {
  char path[128];
  snprintf(path, sizeof path, "%s/config.json", folder);
  unlink(path);
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  unlink(path);
  rmdir(folder);
}

static void put(const char *name, const void *p, size_t n) {
  char path[128];
  if (!folder[0]) {
    snprintf(folder, sizeof folder, "%s/sheng-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    must(mkdtemp(folder) != NULL, "the test's own folder");
    atexit(remove_folder);
  }
  snprintf(path, sizeof path, "%s/%s", folder, name);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  must(fd >= 0 && write(fd, p, n) == (ssize_t)n, "the test's own file");
  close(fd);
}

static void check_order(const sh_wview *v) {
  uint8_t seen[MOST] = {0};
  for (int64_t c = 0; c < v->cols; c++) {
    must(v->perm[c] >= 0 && v->perm[c] < v->cols && !seen[v->perm[c]], "an order names every column once");
    seen[v->perm[c]] = 1;
  }
}

static void check_view(const sh_wview *v, int64_t rows, int64_t cols) {
  static volatile unsigned sink;
  float row[MOST];
  bool panels = sh_dtype_is_panel(v->type);
  must(v->rows == rows && v->cols == cols && v->data && (v->scales || panels), "a view is complete");
  must(v->type == SH_F8_E4M3 || (v->group > 0 && cols % v->group == 0 && v->scale_rows == 1), "groups divide columns");
  if (v->perm) check_order(v);
  for (int64_t r = 0; r < rows; r++) {
    sh_dequant_row(v, r, row);
    for (int64_t g = 0; v->zeros && g < cols / v->group; g++)
      must(v->type == SH_U8 || v->zeros[(size_t)r * v->zero_row_bytes + (size_t)g] <= 16, "zero points are at most 16");
    sink += row[cols - 1] > 0;
  }
}

static int open_module(const sh_ckpt *ck, int64_t rows, int64_t cols, bool panels, sh_error *e) {
  const sh_repack_opts o = {.panels = panels, .cache_dir = "", .threads = 1};
  sh_quant q;
  sh_qmodule m;
  sh_wview v = {0};
  sh_repack *r = NULL;
  bool found = false;
  int rc = sh_quant_parse(&q, sh_ckpt_config(ck), e);
  if (!rc) rc = sh_quant_find(&q, ck, "m", rows, cols, &m, &found, e);
  if (rc || !found) return rc;
  if (m.layout == SH_QL_F8) {
    v = sh_qmodule_f8_view(&m, 0, 0, rows);
  } else {
    rc = sh_repack_new(&r, ck, &o, e);
    if (!rc) rc = sh_repack_add(r, &m, &v, 0, e);
    if (!rc) rc = sh_repack_run(r, e);
  }
  if (!rc) check_view(&v, rows, cols);
  sh_repack_free(r);
  return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  sh_log_set_level(SH_LOG_ERROR);
  const uint8_t *end = memchr(data, '\n', n);
  char line[4096];
  int rows, cols;
  if (!end || (size_t)(end - data) >= sizeof line) return 0;
  size_t len = (size_t)(end - data);
  memcpy(line, data, len);
  line[len] = 0;
  char *after;
  rows = (int)strtol(line, &after, 10);
  cols = (int)strtol(after, &after, 10);
  if (rows < 1 || cols < 1 || rows > MOST || cols > MOST) return 0;
  put("config.json", after, strlen(after));
  put("model.safetensors", end + 1, n - len - 1);
  sh_ckpt *ck;
  sh_error e = {0};
  int rc = sh_ckpt_open(&ck, folder, 0, &e);
  if (!rc) rc = open_module(ck, rows, cols, false, &e);
  if (!rc) must(open_module(ck, rows, cols, true, &e) == 0, "what can be read as rows can be read as panels");
  if (rc) must(e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
  sh_ckpt_close(ck);
  return 0;
}
