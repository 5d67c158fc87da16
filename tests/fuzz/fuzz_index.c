/* Fuzz driver of a folder's side files and of model.safetensors.index.json. An input is a JSON text; it stands in turn for the index, for
 * tokenizer_config.json and for generation_config.json of a folder with two good shards. Beyond "no crash": an accepted index names tensors
 * that are there, inside their files; a refusal has a sentence. */
#include "base/text.h"
#include "formats/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char folder[64], input_path[64];
static int input_fd = -1;
static unsigned sink;

static const char *const SIDES[] = {"model.safetensors.index.json", "tokenizer_config.json", "generation_config.json"};
static const char GOOD_INDEX[] = "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}";

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static char *in_folder(const char *name) {
  static char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void put(const char *name, const void *p, size_t n) {
  FILE *f = fopen(in_folder(name), "wb");
  must(f && fwrite(p, 1, n, f) == n && fclose(f) == 0, "the driver's own file");
}

static void put_shard(const char *name, char tensor) {
  char header[128], file[256] = {0};
  int len = snprintf(header, sizeof header, "{\"%c\":{\"dtype\":\"U8\",\"shape\":[2,4],\"data_offsets\":[0,8]}}", tensor);
  file[0] = (char)len;
  memcpy(file + 8, header, (size_t)len);
  put(name, file, (size_t)len + 16);
}

static void clean_up(void) {
  static const char *const FILES[] = {"config.json",           "m-1.safetensors",       "m-2.safetensors", "model.safetensors.index.json",
                                      "tokenizer_config.json", "generation_config.json"};
  for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) unlink(in_folder(FILES[i]));
  rmdir(folder);
}

static void make_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/sheng-fuzz-XXXXXX");
  must(mkdtemp(folder) != NULL, "the driver's own folder");
  atexit(clean_up);
  put("config.json", "{}", 2);
  put_shard("m-1.safetensors", 'a');
  put_shard("m-2.safetensors", 'b');
  input_fd = memfd_create("fuzz", MFD_CLOEXEC);
  must(input_fd >= 0, "the driver's own file");
  snprintf(input_path, sizeof input_path, "/proc/self/fd/%d", input_fd);
}

/* The input stands for SIDES[which]; the index is a good one unless it is meant. */
static void arrange(int which) {
  for (int i = 0; i < 3; i++) {
    char *path = in_folder(SIDES[i]);
    unlink(path);
    if (i == which) must(symlink(input_path, path) == 0, "the driver's own link");
    else if (i == 0) put(SIDES[0], GOOD_INDEX, sizeof GOOD_INDEX - 1);
  }
}

static void open_folder(bool is_index) {
  sh_ckpt *c = NULL;
  sh_error e = {0};
  int rc = sh_ckpt_open(&c, folder, 0, &e);
  if (rc) {
    must(!c && e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    return;
  }
  size_t bytes = 0, len = 0;
  for (int i = 0; i < sh_ckpt_count(c); i++) {
    const sh_ftensor *t = sh_ckpt_at(c, i);
    must(sh_ckpt_find(c, t->name) == t, "a tensor is found by its name");
    for (size_t k = 0; k < t->bytes; k++) sink += t->data[k];
    bytes += t->bytes;
  }
  must(bytes == sh_ckpt_bytes(c) && bytes % 8 == 0 && bytes <= 16 && bytes > 0, "the bytes are those of the shards");
  must(is_index || bytes == 16, "side files do not change the weights");
  const char *text = sh_ckpt_chat_template(c, &len);
  must(!text || sh_utf8_valid(text, len), "a template is UTF-8");
  sh_ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  if (input_fd < 0) make_folder();
  must(ftruncate(input_fd, 0) == 0 && pwrite(input_fd, data, n, 0) == (ssize_t)n, "the driver's own file");
  for (int which = 0; which < 3; which++) {
    arrange(which);
    open_folder(which == 0);
  }
  return 0;
}
