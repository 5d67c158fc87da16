/* The last step of a folder: what stands beside the weights, and the rename.
 *
 * One thread. Everything is written in OUT.partial first, config.json last of all, because without one nothing takes a folder for a model.
 * Each file is synced before it gets its name; then the folder is, then it is renamed, and only in its new place does the job's file go
 * (unless it shall stay): whenever it ends, what is there is either OUT.partial with its job, from which a next run can go on,
 * or OUT and complete. Doing the step again does the same again.
 *
 * Side files are not chosen by a list of known names, which would be out of date with the next model: all that lies in the source's folder
 * goes along, but weights, what is written anew, and what describes a quantization that the source may have had. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/nameindex.h"
#include "formats/safetensors.h"
#include "quant/writer_internal.h"

#define MAX_SIDE (256ll << 20)        /* bytes of a side file: the largest tokenizers have 40 MB */
#define MAX_INDEX ((size_t)256 << 20) /* bytes of the index's text */

/* --- Side files */

static bool ends_like(const char *name, const char *end) {
  size_t n = strlen(name), k = strlen(end);
  return n > k && strcasecmp(name + n - k, end) == 0;
}

static bool stays_behind(const char *name) {
  static const char *const ENDS[] = {".safetensors", ".index.json", ".bin",       ".pt", ".pth", ".ckpt", ".gguf",  ".h5",
                                     ".msgpack",     ".onnx",       ".onnx_data", ".ot", ".npz", ".npy",  ".tflite"};
  static const char *const NAMES[] = {"config.json", "README.md", "quantize_config.json", "quant_config.json", "recipe.yaml"};
  for (size_t i = 0; i < sizeof ENDS / sizeof ENDS[0]; i++) {
    if (ends_like(name, ENDS[i])) return true;
  }
  for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
    if (strcmp(name, NAMES[i]) == 0) return true;
  }
  return name[0] == '.';
}

static int copy_side(const sh_qwriter *w, const char *from, const char *name, sh_error *e) {
  char *to = sh_path_join(w->dir, name);
  sh_map m = {0};
  int rc = to ? sh_map_open(&m, from, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!rc) rc = sh_file_write_atomic(to, m.p, m.len, e);
  sh_map_close(&m);
  sh_free(to);
  return rc;
}

/* One entry of the source's folder. */
static int side_file(const sh_qwriter *w, const char *name, sh_error *e) {
  struct stat st;
  if (stays_behind(name)) return 0;
  char *from = sh_path_join(sh_ckpt_path(w->source), name);
  if (!from) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = 0;
  if (stat(from, &st) != 0) sh_log(SH_LOG_WARN, "%s is not copied: %s", from, strerror(errno));
  else if (S_ISREG(st.st_mode) && st.st_size > MAX_SIDE)
    sh_log(SH_LOG_WARN, "%s is not copied: %lld bytes are more than a side file has", from, (long long)st.st_size);
  else if (S_ISREG(st.st_mode)) rc = copy_side(w, from, name, e);
  sh_free(from);
  return rc;
}

static int copy_side_files(const sh_qwriter *w, sh_error *e) {
  if (!w->source) return 0;
  const char *path = sh_ckpt_path(w->source);
  DIR *d = opendir(path);
  if (!d) return sh_fail(e, SH_ERR_IO, "%s: cannot list the folder: %s", path, strerror(errno));
  int rc = 0;
  for (struct dirent *f = readdir(d); f && !rc; f = readdir(d)) rc = side_file(w, f->d_name, e);
  closedir(d);
  return rc;
}

/* --- The index */

typedef struct entry {
  const char *name;
  int shard;
} entry;

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

static void put_index(sh_buf *out, const sh_qwriter *w, const entry *v, int n, int64_t total) {
  char name[SH_QW_NAME];
  sh_buf text;
  sh_jw j;
  sh_buf_init(&text, MAX_INDEX);
  sh_jw_init(&j, &text);
  sh_jw_obj(&j);
  sh_jw_key(&j, "metadata");
  sh_jw_obj(&j);
  sh_jw_kint(&j, "total_size", total);
  sh_jw_end_obj(&j);
  sh_jw_key(&j, "weight_map");
  sh_jw_obj(&j);
  for (int i = 0; i < n; i++) sh_jw_kstr(&j, v[i].name, sh_qw_shard_name(w, v[i].shard, name));
  sh_jw_end_obj(&j);
  sh_jw_end_obj(&j);
  if (!text.failed) sh_json_indent(out, text.p, text.len);
  else out->failed = text.failed;
  sh_buf_free(&text);
}

static int write_text(const sh_qwriter *w, const char *name, const char *text, size_t len, sh_error *e) {
  char *path = sh_path_join(w->dir, name);
  int rc = path ? sh_file_write_atomic(path, text, len, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  sh_free(path);
  return rc;
}

/* The tensors of all shards by name; a name in two of them is a fault of the caller, and would make a folder that nobody reads. */
static int write_index(sh_qwriter *w, sh_st *const *st, sh_error *e) {
  int n = 0, rc = 0;
  int64_t total = 0;
  for (int s = 0; s < w->n_shards; s++) n += sh_st_count(st[s]);
  entry *v = sh_calloc((size_t)n + 1, sizeof *v);
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the index of %d tensors", n);
  for (int s = 0, at = 0; s < w->n_shards; s++) {
    for (int i = 0; i < sh_st_count(st[s]); i++) {
      const sh_ftensor *t = sh_st_at(st[s], i);
      v[at++] = (entry){t->name, s};
      total += (int64_t)t->bytes;
    }
  }
  qsort(v, (size_t)n, sizeof *v, by_name);
  for (int i = 1; i < n && !rc; i++) {
    if (strcmp(v[i].name, v[i - 1].name) == 0) rc = sh_fail(e, SH_ERR_INTERNAL, "tensor %s is in two parts", v[i].name);
  }
  sh_buf text;
  sh_buf_init(&text, MAX_INDEX);
  if (!rc && w->n_shards > 1) {
    put_index(&text, w, v, n, total);
    rc = text.failed ? sh_fail(e, text.failed, "the index of %d tensors does not fit into memory", n)
                     : write_text(w, "model.safetensors.index.json", text.p, text.len, e);
  }
  sh_buf_free(&text);
  sh_free(v);
  w->total = total;
  return rc;
}

static int index_shards(sh_qwriter *w, sh_error *e) {
  char name[SH_QW_NAME];
  sh_st **st = sh_calloc((size_t)w->n_shards, sizeof(sh_st *));
  int rc = st ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (int s = 0; s < w->n_shards && !rc; s++) {
    char *path = sh_path_join(w->dir, sh_qw_shard_name(w, s, name));
    rc = path ? sh_st_open(&st[s], path, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
    sh_free(path);
  }
  if (!rc) rc = write_index(w, st, e);
  for (int s = 0; st && s < w->n_shards; s++) sh_st_close(st[s]);
  sh_free(st);
  return rc;
}

/* --- The end */

static bool is_spill(const char *name) { return sh_str_starts(name, "spill-") || sh_qw_is_temporary(name); }

static void sync_folder(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd); /* some file systems refuse that for a folder; the files are safe */
  close(fd);
}

static void sync_parent(const char *path) {
  size_t n = (size_t)(sh_path_base(path) - path);
  char *dir = n ? sh_strndup(path, n) : sh_strdup(".");
  if (dir) sync_folder(dir);
  sh_free(dir);
}

static int move_to_out(sh_qwriter *w, sh_error *e) {
  (void)fsync(w->fd);
  if (rename(w->dir, w->out) != 0)
    return sh_fail(e, SH_ERR_IO, "%s is complete but cannot be renamed to %s: %s; rename it, and remove %s from it", w->dir, w->out,
                   strerror(errno), SH_QW_JOB);
  sync_parent(w->out);
  if (!w->keep_job) (void)unlinkat(w->fd, SH_QW_JOB, 0);
  (void)fsync(w->fd);
  close(w->fd);
  w->fd = -1;
  return 0;
}

static int write_texts(const sh_qwriter *w, const char *config, const char *card, const sh_qfile *extra, int n_extra, sh_error *e) {
  int rc = 0;
  for (int i = 0; i < n_extra && !rc; i++) {
    const char *name = extra[i].name;
    bool plain = name[0] && name[0] != '.' && !strchr(name, '/') && strcmp(name, "config.json") && !ends_like(name, ".safetensors");
    rc = plain ? write_text(w, name, extra[i].text, extra[i].len, e) : sh_fail(e, SH_ERR_INTERNAL, "'%s' is no name for a side file", name);
  }
  if (!rc) rc = write_text(w, "README.md", card, strlen(card), e);
  if (!rc) rc = write_text(w, "config.json", config, strlen(config), e);
  return rc;
}

int sh_qwriter_finish(sh_qwriter *w, const char *config, const char *card, const sh_qfile *extra, int n_extra, sh_error *e) {
  int rc = 0;
  for (int i = 0; i < w->n_parts; i++) {
    if (!w->done[i]) return sh_fail(e, SH_ERR_INTERNAL, "part %d of %d was not written", i, w->n_parts);
  }
  for (int s = 0; s < w->n_shards && !rc; s++) rc = sh_qw_write_shard(w, s, e);
  if (rc) return rc;
  rc = index_shards(w, e);
  if (!rc) rc = copy_side_files(w, e);
  if (!rc) rc = write_texts(w, config, card, extra, n_extra, e);
  if (rc) return sh_qwriter_kept(w, rc, e);
  sh_qw_remove(w, is_spill); /* after the texts that the caller made of them: a run killed in between makes them again */
  return move_to_out(w, e);
}

int64_t sh_qwriter_bytes(const sh_qwriter *w) { return w->total; }
