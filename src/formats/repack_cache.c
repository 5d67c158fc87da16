/* The repacked-weights cache: one file per checkpoint and mode, written by the first start and mapped by the later ones.
 *
 * Called at load, on one thread. The file is the image of repack_internal.h behind a head: a key, the image's size, a flag byte per module
 * and a checksum of these. The key covers the layout's version, the modules, and of each weight file its name, size, time of change and
 * header; so a checkpoint that was changed in any way gets a new cache, under the same name. The head says nothing about places: they
 * follow from the flags, which must be such that each module can have, and give the file's size to the byte. What a reader could still be
 * hurt by, an order of columns that points outside a row, is read and checked. The weights themselves are not, as those of a safetensors
 * file are not.
 *
 * Writers exclude one another by flock on a file beside it, which the system lets go of when its holder dies. The winner writes under a
 * temporary name, syncs and renames; the others wait, and map what it made. A crash therefore leaves a temporary file (truncated by the
 * next writer) and never half a cache. Anything that goes wrong, a full or read-only disk, a file-size limit, a lock that nobody gives
 * back, is one line in the log, and the weights are repacked into memory.
 *
 * Refused: one cache file per tensor (31,000 files for a MoE), a folder in the home directory by default (models live on the big disk). */
#include "formats/repack_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

enum {
  VERSION = 2,      /* of the image's layout; a change makes all caches old */
  HEAD = 48,        /* bytes before the flags: magic, version, modules, key, size of the image, checksum */
  CHECKED = 40,     /* of them before the checksum */
  WAIT_MS = 900000, /* for another writer */
  POLL_MS = 50,
};
static const char MAGIC[9] = "SHREPACK";

typedef struct cache {
  char dir[PATH_MAX], path[PATH_MAX], tmp[PATH_MAX], lock[PATH_MAX];
  uint64_t key[2];
} cache;

/* --- Name and key */

static void mix(uint64_t key[2], const void *p, size_t n) {
  key[0] = sh_hash(p, n, key[0]);
  key[1] = sh_hash(p, n, key[1] ^ UINT64_C(0x5bd1e9955bd1e995));
}

static bool joined(char out[PATH_MAX], const char *a, const char *b) {
  int n = snprintf(out, PATH_MAX, "%s%s", a, b);
  return n > 0 && n < PATH_MAX;
}

/* Where the cache of this checkpoint lies. A shared folder holds many, so the name carries the model's, and a hash of its path. A GGUF is
 * known by the name it was given in its folder, also when that is a link to elsewhere. */
static int name_cache(const sh_repack *r, cache *c, sh_error *e) {
  const char *dir = r->o.cache_dir, *folder = sh_ckpt_folder(r->ck);
  char real[PATH_MAX], model[PATH_MAX], name[160];
  sh_ckpt_file first = {.name = ""};
  if (!realpath(folder, real)) return sh_fail(e, SH_ERR_IO, "%s: %s", folder, strerror(errno));
  bool ok = joined(model, real, "");
  if (ok && sh_ckpt_is_gguf(r->ck) && sh_ckpt_file_at(r->ck, 0, &first)) {
    ok = strlen(real) + strlen(first.name) + 2 < sizeof model;
    if (ok) snprintf(model + strlen(real), sizeof model - strlen(real), "/%s", first.name);
  }
  snprintf(name, sizeof name, "/%.100s-%016llx.%s", sh_path_base(model), (unsigned long long)sh_hash(model, strlen(model), 0),
           r->o.panels ? "panels" : "repacked");
  ok = ok && (dir ? joined(c->dir, dir, "") : joined(c->dir, real, "/.sheng-cache"));
  ok = ok && joined(c->path, c->dir, name) && joined(c->tmp, c->path, ".tmp") && joined(c->lock, c->path, ".lock");
  return ok ? 0 : sh_fail(e, SH_ERR_LIMIT, "the path of the cache folder is too long");
}

static int key_of_files(const sh_repack *r, cache *c, sh_error *e) {
  sh_ckpt_file f;
  for (int i = 0; sh_ckpt_file_at(r->ck, i, &f); i++) {
    char *path = sh_path_join(sh_ckpt_folder(r->ck), f.name);
    struct stat st;
    int bad = path ? stat(path, &st) : -1;
    sh_free(path);
    if (bad) return sh_fail(e, SH_ERR_IO, "%s: cannot read the time of its last change", f.name);
    const uint64_t n[3] = {f.bytes, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
    mix(c->key, f.name, strlen(f.name));
    mix(c->key, n, sizeof n);
    mix(c->key, f.head, f.head_bytes);
  }
  return 0;
}

static int set_key(const sh_repack *r, cache *c, sh_error *e) {
  c->key[0] = VERSION;
  c->key[1] = (uint64_t)r->n_jobs;
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    const sh_qmodule *m = &j->m;
    const sh_wview *v = &j->rows;
    const uint64_t n[10] = {(uint64_t)j->panels | (uint64_t)j->head << 8,
                            m->layout | (uint64_t)m->bits << 8,
                            (uint64_t)v->type | (uint64_t)v->scale_type << 8,
                            (uint64_t)v->rows,
                            (uint64_t)v->cols,
                            (uint64_t)v->group,
                            (uint64_t)v->row_bytes,
                            (uint64_t)m->zero_offset,
                            m->zeros != NULL,
                            m->order != NULL};
    mix(c->key, v->name, strlen(v->name));
    mix(c->key, n, sizeof n);
  }
  return key_of_files(r, c, e);
}

/* --- The head */

size_t sh_rp_cache_head_bytes(const sh_repack *r) { return (HEAD + (size_t)r->n_jobs + SH_RP_ALIGN - 1) & ~(size_t)(SH_RP_ALIGN - 1); }

static uint64_t checksum(const uint8_t *head, size_t n_jobs) { return sh_hash(head + HEAD, n_jobs, sh_hash(head, CHECKED, VERSION)); }

/* head [sh_rp_cache_head_bytes], zeroed. */
static void make_head(const sh_repack *r, const cache *c, uint8_t *head) {
  const uint32_t words[2] = {VERSION, (uint32_t)r->n_jobs};
  uint64_t bytes = r->bytes;
  memcpy(head, MAGIC, 8);
  memcpy(head + 8, words, 8);
  memcpy(head + 16, c->key, 16);
  memcpy(head + 32, &bytes, 8);
  for (int i = 0; i < r->n_jobs; i++) head[HEAD + i] = r->jobs[i].flags;
  uint64_t sum = checksum(head, (size_t)r->n_jobs);
  memcpy(head + CHECKED, &sum, 8);
}

/* Every order names every column once. */
static bool orders_hold(const sh_repack *r, const uint8_t *image) {
  int64_t most = 0;
  for (int i = 0; i < r->n_jobs; i++) {
    if ((r->jobs[i].flags & SH_RP_ORDER) && r->jobs[i].m.cols > most) most = r->jobs[i].m.cols;
  }
  if (!most) return true;
  uint8_t *seen = sh_calloc((size_t)most, 1);
  bool ok = seen != NULL;
  for (int i = 0; i < r->n_jobs && ok; i++) {
    const sh_rp_job *j = &r->jobs[i];
    if (!(j->flags & SH_RP_ORDER)) continue;
    const int32_t *order = (const int32_t *)(const void *)(image + j->order_at);
    memset(seen, 0, (size_t)j->m.cols);
    for (int64_t k = 0; k < j->m.cols && ok; k++) {
      ok = order[k] >= 0 && order[k] < j->m.cols && !seen[order[k]];
      if (ok) seen[order[k]] = 1;
    }
  }
  sh_free(seen);
  return ok;
}

/* Why a mapped file is not the cache of these modules; NULL: it is, and flags and places are set. */
static const char *misfit(sh_repack *r, const cache *c, const sh_map *map) {
  uint32_t words[2];
  uint64_t bytes, sum;
  size_t head = sh_rp_cache_head_bytes(r);
  if (map->len < head || memcmp(map->p, MAGIC, 8)) return "is no cache of these modules";
  memcpy(words, map->p + 8, sizeof words);
  memcpy(&bytes, map->p + 32, sizeof bytes);
  memcpy(&sum, map->p + CHECKED, sizeof sum);
  if (words[0] != VERSION || words[1] != (uint32_t)r->n_jobs || memcmp(map->p + 16, c->key, 16)) return "is of another state of the model";
  if (sum != checksum(map->p, (size_t)r->n_jobs)) return "has a damaged head";
  for (int i = 0; i < r->n_jobs; i++) {
    r->jobs[i].flags = map->p[HEAD + i];
    if (!sh_rp_flags_fit(&r->jobs[i])) return "has a head that contradicts the model";
  }
  if (sh_rp_place(r, head, NULL) || bytes != r->bytes || map->len != r->bytes) return "has not the size that its head gives";
  return orders_hold(r, map->p) ? NULL : "has a damaged order of columns";
}

/* Maps the file if it is there and valid. */
static bool map_valid(sh_repack *r, const cache *c) {
  sh_error e = {0};
  if (sh_map_open(&r->map, c->path, &e)) {
    if (e.code != SH_ERR_NOT_FOUND) sh_log(SH_LOG_WARN, "%s", e.text);
    return false;
  }
  const char *why = misfit(r, c, &r->map);
  if (!why) return true;
  sh_log(SH_LOG_INFO, "%s %s; it is written again", c->path, why);
  sh_map_close(&r->map);
  r->examined = false; /* the flags may be those of the file */
  return false;
}

/* --- Locking */

static void pause_ms(int ms) {
  const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  (void)nanosleep(&t, NULL);
}

/* The descriptor that holds the lock, or a negative sh_err. */
static int take_lock(const cache *c, int wait_ms, sh_error *e) {
  int64_t until = sh_now_ns() + 1000000ll * (wait_ms ? wait_ms : WAIT_MS);
  if (mkdir(c->dir, 0777) && errno != EEXIST) return sh_fail(e, SH_ERR_IO, "%s: %s", c->dir, strerror(errno));
  int fd = open(c->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return sh_fail(e, SH_ERR_IO, "%s: %s", c->lock, strerror(errno));
  for (bool said = false; flock(fd, LOCK_EX | LOCK_NB); said = true) {
    int err = errno;
    if (err == EINTR) continue;
    if (err != EWOULDBLOCK || sh_now_ns() > until) {
      close(fd);
      return sh_fail(e, SH_ERR_IO, "%s: %s", c->lock, err == EWOULDBLOCK ? "another process holds it" : strerror(err));
    }
    if (!said) sh_log(SH_LOG_INFO, "waiting for another process that writes %s", c->path);
    pause_ms(POLL_MS);
  }
  return fd;
}

/* --- Writing */

/* Takes the room at once, so that a full disk is known before the work. A file system that cannot do that fails at a write. */
static int take_room(int fd, size_t bytes) {
  struct rlimit lim;
  if (!getrlimit(RLIMIT_FSIZE, &lim) && lim.rlim_cur != RLIM_INFINITY && bytes > lim.rlim_cur) return EFBIG; /* a write there is a signal */
  int rc;
  do rc = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
  while (rc == EINTR);
  return rc == EOPNOTSUPP || rc == ENOSYS ? 0 : rc;
}

static int write_head(const sh_repack *r, const cache *c, int fd) {
  size_t n = sh_rp_cache_head_bytes(r), at = 0;
  uint8_t *head = sh_calloc(1, n);
  if (!head) return ENOMEM;
  make_head(r, c, head);
  int err = 0;
  while (at < n && !err) {
    ssize_t w = pwrite(fd, head + at, n - at, (off_t)at);
    if (w > 0) at += (size_t)w;
    else if (w == 0) err = ENOSPC;
    else if (errno != EINTR) err = errno;
  }
  sh_free(head);
  return err;
}

static void sync_dir(const cache *c) {
  int fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

/* Holding the lock. */
static int write_cache(sh_repack *r, const cache *c, sh_pool *pool, sh_error *e) {
  char size[32];
  int64_t began = sh_now_ns();
  int fd = open(c->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return sh_fail(e, SH_ERR_IO, "%s: %s", c->tmp, strerror(errno));
  sh_log(SH_LOG_INFO, "repacking %d matrices (%s) into %s, once", r->n_jobs, sh_format_size((int64_t)r->bytes, size), c->path);
  int err = take_room(fd, r->bytes), rc = err ? sh_fail(e, SH_ERR_IO, "%s: %s", c->tmp, strerror(err)) : 0;
  if (!rc && (rc = sh_rp_fill(r, pool, NULL, fd, e))) sh_fail_in(e, rc, "%s", c->tmp);
  int64_t filled = sh_now_ns();
  if (!rc && (err = write_head(r, c, fd))) rc = sh_fail(e, SH_ERR_IO, "%s: %s", c->tmp, strerror(err));
  if (!rc && fsync(fd)) rc = sh_fail(e, SH_ERR_IO, "%s: %s", c->tmp, strerror(errno));
  if (close(fd) && !rc) rc = sh_fail(e, SH_ERR_IO, "%s: %s", c->tmp, strerror(errno));
  if (!rc && rename(c->tmp, c->path)) rc = sh_fail(e, SH_ERR_IO, "%s: %s", c->path, strerror(errno));
  if (rc) {
    unlink(c->tmp);
    return rc;
  }
  sync_dir(c);
  double s = 1e-9 * (double)(filled - began);
  sh_log(SH_LOG_INFO, "repacked in %.1f s (%.2f GB/s), synced in %.1f s", s, 1e-9 * (double)r->bytes / (s > 0 ? s : 1),
         1e-9 * (double)(sh_now_ns() - filled));
  return 0;
}

/* With the lock: what another process made meanwhile, or a new one. Errors of the disk are left in *disk. */
static int write_and_map(sh_repack *r, const cache *c, sh_pool **pool, bool *used, sh_error *disk, sh_error *e) {
  if ((*used = map_valid(r, c))) {
    r->where = SH_REPACK_MAPPED;
    return 0;
  }
  int rc = *pool ? 0 : sh_pool_new(pool, r->o.threads, e);
  if (!rc) rc = sh_rp_read_ahead(r, e);
  if (!rc) rc = sh_rp_examine(r, *pool, e);
  if (!rc) rc = sh_rp_place(r, sh_rp_cache_head_bytes(r), e);
  if (rc || write_cache(r, c, *pool, disk)) return rc;
  *used = map_valid(r, c);
  if (*used) r->where = SH_REPACK_WRITTEN;
  else sh_fail(disk, SH_ERR_IO, "%s cannot be read back", c->path);
  return 0;
}

int sh_rp_cache_use(sh_repack *r, sh_pool **pool, bool *used, sh_error *e) {
  sh_error disk = {0};
  int rc = 0;
  *used = false;
  cache *c = sh_calloc(1, sizeof *c);
  if (!c) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (name_cache(r, c, &disk) || set_key(r, c, &disk)) goto done;
  if ((*used = map_valid(r, c))) {
    r->where = SH_REPACK_MAPPED;
    goto done;
  }
  int lock = take_lock(c, r->o.lock_wait_ms, &disk);
  if (lock < 0) goto done;
  rc = write_and_map(r, c, pool, used, &disk, e);
  close(lock);
done:
  if (!rc && !*used)
    sh_log(SH_LOG_WARN, "repacked weights are kept in memory and made anew at every start (--cache-dir names another folder for them): %s",
           disk.text);
  sh_free(c);
  return rc;
}
