/* The files of a pull on disk. Main thread.
 *
 * A file is downloaded into DIR/.sheng-pull/ID.part (ID: the start of its path's SHA-256, so that any path makes a flat, short name) and
 * renamed when it is whole, right and synced: a file under its final name is never half of anything. Beside it, ID.journal says which bytes
 * of the part file are there:
 *
 *     sheng-pull 1 HASH SIZE PART_SIZE      HASH "-" when the hub gives none
 *     etag ETAG                             then the server's, which must be the same when the download goes on
 *     INDEX BYTES                           bytes present from the start of part INDEX on; the last line of an index counts
 *
 * Another hash or size means that the remote file changed: the download starts again. The journal is not synced with every part; after a
 * power cut it may promise bytes that the disk never got, which the checksum finds, and then this one file starts again. Hashing goes along
 * with the download, behind the first missing byte, so that it is done soon after the last byte came. Refused: one file per part (twice the
 * disk at the end, when they are put together), and trusting the part file's length (parts are filled in any order). */
#include "ops/pull_file.h"

#include "base/file.h"
#include "base/text.h"
#include "ops/pull_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_JOURNAL = 16 << 20, HASH_STEP = 1 << 20, MAX_PARTS = 1 << 20, MIN_PART = 1 << 12 };

static int fail_io(sh_error *e, const char *path, const char *what, int err) {
  if (err == ENOSPC || err == EDQUOT || err == EFBIG)
    return sh_fail(e, SH_ERR_IO, "%s: cannot %s: %s; what was downloaded is kept: make room and run the same command again", path, what,
                   strerror(err));
  return sh_fail(e, SH_ERR_IO, "%s: cannot %s: %s", path, what, strerror(err));
}

static int set_parts(sh_pfile *f, int64_t part_size, sh_error *e) {
  int64_t n = f->remote->size ? (f->remote->size - 1) / part_size + 1 : 0;
  if (n > MAX_PARTS)
    return sh_fail(e, SH_ERR_LIMIT, "%s: %lld parts are too many; take a larger --part-size", f->remote->path, (long long)n);
  sh_free(f->got);
  if (!(f->got = sh_calloc((size_t)n + 1, sizeof *f->got))) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  f->part_size = part_size;
  f->n_parts = (int)n;
  f->private_front = 0;
  return SH_OK;
}

static char *work_path(const char *dir, const char *id, const char *suffix) {
  sh_buf b;
  sh_buf_init(&b, SH_PULL_WORK_PATH);
  sh_buf_printf(&b, "%s/.sheng-pull/%.32s%s", dir, id, suffix);
  char *path = sh_buf_detach(&b);
  sh_buf_free(&b);
  return path;
}

int sh_pfile_init(sh_pfile *f, const char *dir, const sh_hub_file *remote, int64_t part_size, sh_error *e) {
  char id[SH_SHA_HEX];
  sh_sha s;
  *f = (sh_pfile){.remote = remote, .fd = -1, .journal_fd = -1};
  sh_sha_init(&s, SH_SHA256);
  sh_sha_update(&s, remote->path, strlen(remote->path));
  sh_sha_hex(&s, id);
  f->final_path = sh_path_join(dir, remote->path);
  f->part_path = work_path(dir, id, ".part");
  f->journal_path = work_path(dir, id, ".journal");
  int rc = f->final_path && f->part_path && f->journal_path ? SH_OK : sh_fail(e, SH_ERR_NOMEM, "%s: the path is too long", remote->path);
  if (rc == SH_OK) rc = set_parts(f, part_size, e);
  if (rc != SH_OK) sh_pfile_free(f);
  return rc;
}

void sh_pfile_close(sh_pfile *f) {
  if (f->fd >= 0) close(f->fd);
  if (f->journal_fd >= 0) close(f->journal_fd);
  f->fd = f->journal_fd = -1;
  sh_sha_free(&f->private_sha);
  f->private_hashing = false;
  f->hashed = 0;
}

void sh_pfile_free(sh_pfile *f) {
  if (!f->final_path && !f->part_path && !f->got) return; /* zeroed: fd 0 is not ours */
  sh_pfile_close(f);
  sh_free(f->final_path);
  sh_free(f->part_path);
  sh_free(f->journal_path);
  sh_free(f->got);
  *f = (sh_pfile){.fd = -1, .journal_fd = -1};
}

int64_t sh_pfile_on_disk(const sh_pfile *f) {
  struct stat st;
  return stat(f->part_path, &st) == 0 ? (int64_t)st.st_blocks * 512 : 0;
}

int64_t sh_pfile_part_len(const sh_pfile *f, int part) {
  int64_t left = f->remote->size - part * f->part_size;
  return left < f->part_size ? left : f->part_size;
}

int64_t sh_pfile_got(const sh_pfile *f) {
  int64_t sum = 0;
  for (int i = 0; i < f->n_parts; i++) sum += f->got[i];
  return sum;
}

/* The first byte that is missing. */
static int64_t frontier(sh_pfile *f) {
  while (f->private_front < f->n_parts && f->got[f->private_front] == sh_pfile_part_len(f, f->private_front)) f->private_front++;
  return f->private_front == f->n_parts ? f->remote->size : f->private_front * f->part_size + f->got[f->private_front];
}

int sh_pfile_missing(const sh_pfile *f, int from) {
  int i = from > f->private_front ? from : f->private_front;
  while (i < f->n_parts && f->got[i] == sh_pfile_part_len(f, i)) i++;
  return i;
}

bool sh_pfile_whole(const sh_pfile *f) { return sh_pfile_missing(f, 0) == f->n_parts; }

/* --- The journal ---------------------------------------------------------------------------------------------------------------------- */

static const char *hash_or_dash(const sh_pfile *f) { return f->remote->hash_kind ? f->remote->hash : "-"; }

static int append(sh_pfile *f, const char *line, sh_error *e) {
  size_t n = strlen(line);
  if (write(f->journal_fd, line, n) == (ssize_t)n) return SH_OK;
  return fail_io(e, f->journal_path, "write", errno ? errno : ENOSPC);
}

static int new_journal(sh_pfile *f, sh_error *e) {
  char line[160];
  if (ftruncate(f->journal_fd, 0) != 0) return fail_io(e, f->journal_path, "empty this file", errno);
  snprintf(line, sizeof line, "sheng-pull 1 %s %lld %lld\n", hash_or_dash(f), (long long)f->remote->size, (long long)f->part_size);
  return append(f, line, e);
}

/* One line after the first. False: it is not one of ours. */
static bool take_line(sh_pfile *f, const char *line) {
  if (strncmp(line, "etag ", 5) == 0 && strlen(line + 5) < sizeof f->etag) {
    memcpy(f->etag, line + 5, strlen(line + 5) + 1);
    return true;
  }
  char *end;
  long index = strtol(line, &end, 10);
  if (end == line || *end != ' ' || index < 0 || index >= f->n_parts) return false;
  char *number = end + 1;
  long long bytes = strtoll(number, &end, 10);
  if (end == number || *end || bytes < 0 || bytes > sh_pfile_part_len(f, (int)index)) return false;
  f->got[index] = bytes;
  return true;
}

/* Reads the journal into got and etag. False: there is none that fits these bytes, and got is as after set_parts. */
static bool read_journal(sh_pfile *f) {
  char *text = NULL, hash[SH_SHA_HEX];
  long long size, part_size;
  size_t n;
  int used = 0;
  if (sh_file_read(f->journal_path, MAX_JOURNAL, &text, &n, NULL) != SH_OK) return false;
  bool fits = sscanf(text, "sheng-pull 1 %64s %lld %lld%n", hash, &size, &part_size, &used) == 3 && text[used] == '\n' &&
              strcmp(hash, hash_or_dash(f)) == 0 && size == f->remote->size && part_size >= MIN_PART && strlen(text) == n &&
              set_parts(f, part_size, NULL) == SH_OK;
  char *line = text + used + 1;
  for (char *end; fits && (end = strchr(line, '\n')); line = end + 1) {
    *end = 0;
    fits = take_line(f, line);
  }
  /* a last line without its end was cut in the middle of a write; nothing may be appended to it */
  if (fits && *line && ftruncate(f->journal_fd, line - text) != 0) fits = false;
  struct stat st;
  int64_t reach = 0;
  for (int i = 0; fits && i < f->n_parts; i++)
    if (f->got[i]) reach = i * f->part_size + f->got[i];
  if (fits && (fstat(f->fd, &st) != 0 || st.st_size < reach)) fits = false;
  if (fits && !f->remote->hash_kind && !f->etag[0]) fits = false; /* nothing says that these are the same bytes */
  sh_free(text);
  return fits;
}

int sh_pfile_load(sh_pfile *f, sh_error *e) {
  int64_t part_size = f->part_size;
  sh_pfile_close(f);
  f->fd = open(f->part_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (f->fd < 0) return fail_io(e, f->part_path, "create this file", errno);
  f->journal_fd = open(f->journal_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (f->journal_fd < 0) return fail_io(e, f->journal_path, "create this file", errno);
  f->state = SH_PFILE_LOAD;
  f->etag[0] = 0;
  if (read_journal(f)) return SH_OK;
  int rc = set_parts(f, part_size, e);
  return rc == SH_OK ? sh_pfile_restart(f, e) : rc;
}

int sh_pfile_restart(sh_pfile *f, sh_error *e) {
  memset(f->got, 0, (size_t)f->n_parts * sizeof *f->got);
  f->private_front = 0;
  f->hashed = 0;
  f->etag[0] = 0;
  sh_sha_free(&f->private_sha);
  f->private_hashing = false;
  if (ftruncate(f->fd, 0) != 0) return fail_io(e, f->part_path, "empty this file", errno);
  return new_journal(f, e);
}

int sh_pfile_set_etag(sh_pfile *f, const char *etag, sh_error *e) {
  char line[160];
  snprintf(f->etag, sizeof f->etag, "%s", etag);
  snprintf(line, sizeof line, "etag %s\n", f->etag);
  return append(f, line, e);
}

int sh_pfile_note(sh_pfile *f, int part, sh_error *e) {
  char line[64];
  snprintf(line, sizeof line, "%d %lld\n", part, (long long)f->got[part]);
  return append(f, line, e);
}

/* --- Bytes ---------------------------------------------------------------------------------------------------------------------------- */

int sh_pfile_write(sh_pfile *f, int64_t at, const char *p, size_t n, sh_error *e) {
  for (size_t done = 0; done < n;) {
    ssize_t w = pwrite(f->fd, p + done, n - done, (off_t)(at + (int64_t)done));
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) return fail_io(e, f->part_path, "write", w < 0 ? errno : ENOSPC);
    done += (size_t)w;
  }
  for (int64_t pos = at, end = at + (int64_t)n; pos < end;) {
    int part = (int)(pos / f->part_size);
    int64_t stop = part * f->part_size + sh_pfile_part_len(f, part);
    if (stop > end) stop = end;
    f->got[part] = stop - part * f->part_size;
    /* starts the write-back, so that the sync before the rename finds little left to do */
    if (f->got[part] == sh_pfile_part_len(f, part)) (void)sync_file_range(f->fd, part * f->part_size, f->got[part], SYNC_FILE_RANGE_WRITE);
    pos = stop;
  }
  return SH_OK;
}

int sh_pfile_verify(sh_pfile *f, sh_error *e) {
  sh_pfile_close(f);
  f->fd = open(f->final_path, O_RDONLY | O_CLOEXEC);
  if (f->fd < 0) return fail_io(e, f->final_path, "read this file", errno);
  f->state = SH_PFILE_VERIFY;
  return SH_OK;
}

static void start_hash(sh_pfile *f) {
  sh_sha_init(&f->private_sha, f->remote->hash_kind);
  f->private_hashing = true;
  if (f->remote->hash_kind != SH_SHA1) return;
  char head[32]; /* git hashes a blob with this before it */
  int n = snprintf(head, sizeof head, "blob %lld", (long long)f->remote->size);
  sh_sha_update(&f->private_sha, head, (size_t)n + 1);
}

int sh_pfile_hash(sh_pfile *f, int64_t budget, bool *more, sh_error *e) {
  int64_t end = f->state == SH_PFILE_VERIFY ? f->remote->size : frontier(f);
  *more = f->remote->hash_kind && f->hashed < end;
  if (!*more) return SH_OK;
  if (end - f->hashed > budget) end = f->hashed + budget;
  if (!f->private_hashing) start_hash(f);
  char *buf = sh_malloc(HASH_STEP);
  if (!buf) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = SH_OK;
  while (rc == SH_OK && f->hashed < end) {
    size_t want = end - f->hashed < HASH_STEP ? (size_t)(end - f->hashed) : HASH_STEP;
    ssize_t got = pread(f->fd, buf, want, (off_t)f->hashed);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) rc = fail_io(e, f->state == SH_PFILE_VERIFY ? f->final_path : f->part_path, "read it back", errno);
    else if (got == 0)
      rc = sh_fail(e, SH_ERR_IO, "%s became shorter while it was checked; is something else writing there?", f->remote->path);
    else {
      sh_sha_update(&f->private_sha, buf, (size_t)got);
      f->hashed += got;
    }
  }
  sh_free(buf);
  return rc;
}

bool sh_pfile_right(sh_pfile *f) {
  char hex[SH_SHA_HEX];
  if (!f->remote->hash_kind) return true;
  if (!f->private_hashing) start_hash(f); /* an empty file */
  sh_sha_hex(&f->private_sha, hex);
  f->private_hashing = false;
  f->hashed = 0;
  return strcmp(hex, f->remote->hash) == 0;
}

/* --- The end -------------------------------------------------------------------------------------------------------------------------- */

static char *folder_of(const char *path) {
  const char *base = sh_path_base(path);
  return base - path > 1 ? sh_strndup(path, (size_t)(base - path - 1)) : sh_strdup("/");
}

int sh_pfile_finish(sh_pfile *f, sh_error *e) {
  char *dir = folder_of(f->final_path);
  int rc = dir ? sh_pull_make_dirs(dir, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == SH_OK && fsync(f->fd) != 0) rc = fail_io(e, f->part_path, "write it to the disk", errno);
  if (rc == SH_OK && rename(f->part_path, f->final_path) != 0) rc = fail_io(e, f->final_path, "give the file this name", errno);
  if (rc == SH_OK) {
    int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d >= 0) {
      (void)fsync(d); /* some file systems refuse; the bytes are safe */
      close(d);
    }
    unlink(f->journal_path);
    f->state = SH_PFILE_DONE;
    sh_pfile_close(f);
  }
  sh_free(dir);
  return rc;
}

int sh_pfile_mtime(const sh_pfile *f, int64_t *mtime_ns, sh_error *e) {
  struct stat st;
  if (stat(f->final_path, &st) != 0) return fail_io(e, f->final_path, "find this file again", errno);
  *mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
  return SH_OK;
}
