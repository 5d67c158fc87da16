/* The store's layout, manifests, the lock, and sh_pull_find. Any thread (there is no state); locks are between processes.
 *
 * A model's folder is complete when it has no working folder with a `resume` file in it: a pull writes that file before it touches anything
 * and removes it last, so a cut at any point is seen. The lock is flock() on a file in the working folder: the kernel drops it when a
 * process dies, so there is no stale lock to clean up. As the folder goes away at the end, whoever got the lock looks whether its file is
 * still the one on disk. Refused: a store keyed by hashes with links into it (a folder that people can look into, copy and serve from
 * elsewhere is worth more than sharing files between revisions), and a pid file as a lock. */
#include "ops/pull_store.h"

#include "base/file.h"
#include "base/json.h"
#include "base/opt.h"
#include "base/pool.h"
#include "ops/hub.h"
#include "ops/pull.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MANIFEST = 64 << 20, MAX_COMMAND = 8192 };

/* --- Paths ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct places {
  const char *store, *cache, *home;
} places;

static const sh_opt place_table[] = {
    {"store", NULL, SH_OPT_STR, offsetof(places, store), 0, 0, NULL, "SHENG_HOME", "", "", ""},
    {"cache", NULL, SH_OPT_STR, offsetof(places, cache), 0, 0, NULL, "XDG_CACHE_HOME", "", "", ""},
    {"home", NULL, SH_OPT_STR, offsetof(places, home), 0, 0, NULL, "HOME", "", "", ""},
    {0},
};

int sh_pull_store_dir(const char *home, const char *name, char **dir, sh_error *e) {
  places p = {0};
  sh_strlist rest;
  *dir = NULL;
  int rc = sh_opt_parse(place_table, &p, 0, NULL, &rest, e);
  if (rc != SH_OK) return rc;
  sh_buf b;
  sh_buf_init(&b, SH_PULL_WORK_PATH);
  if (home && *home) sh_buf_puts(&b, home);
  else if (p.store) sh_buf_puts(&b, p.store);
  else if (p.cache && p.cache[0] == '/') sh_buf_printf(&b, "%s/sheng", p.cache); /* a relative one is to be ignored, by its rules */
  else if (p.home) sh_buf_printf(&b, "%s/.cache/sheng", p.home);
  else rc = sh_fail(e, SH_ERR_ARG, "no place for models: set SHENG_HOME (or HOME), or name a folder with --local-dir");
  if (rc == SH_OK) {
    sh_buf_printf(&b, "/models/%s", name);
    if (b.failed || !(*dir = sh_buf_detach(&b))) rc = sh_fail(e, SH_ERR_NOMEM, "the store's path is too long");
  }
  sh_buf_free(&b);
  return rc;
}

static char *inside(const char *dir, const char *name) { return sh_path_join(dir, name); }

static int fail_path(sh_error *e, const char *path, const char *what, int err) {
  if (err == ENOSPC || err == EDQUOT) return sh_fail(e, SH_ERR_IO, "%s: cannot %s: the disk (or a quota) is full", path, what);
  return sh_fail(e, SH_ERR_IO, "%s: cannot %s: %s; name another folder with --local-dir, or another store with SHENG_HOME", path, what,
                 strerror(err));
}

int sh_pull_make_dirs(const char *dir, sh_error *e) {
  char *path = sh_strdup(dir);
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = SH_OK;
  for (char *s = path + 1; rc == SH_OK && *s; s++) {
    bool last = s[1] == 0;
    if (*s != '/' && !last) continue;
    if (*s == '/') *s = 0;
    if (mkdir(path, 0777) != 0 && errno != EEXIST && !sh_dir_exists(path)) rc = fail_path(e, path, "create this folder", errno);
    if (!last) *s = '/';
  }
  if (rc == SH_OK && !sh_dir_exists(dir)) rc = fail_path(e, dir, "create this folder", ENOTDIR);
  sh_free(path);
  return rc;
}

/* --- Manifests ------------------------------------------------------------------------------------------------------------------------ */

void sh_pull_manifest_free(sh_pull_manifest *m) {
  sh_free(m->v);
  sh_arena_free(m->arena);
  *m = (sh_pull_manifest){0};
}

static const char *text_of(const sh_json *obj, const char *key) {
  const sh_json *v = sh_json_get(obj, key);
  return sh_json_is(v, SH_JSON_STRING) ? v->s : "";
}

static int take_manifest(const char *text, size_t n, sh_pull_manifest *m) {
  sh_json *root;
  if (!(m->arena = sh_arena_new((64u << 20) + n * 64))) return SH_ERR_NOMEM;
  if (sh_json_parse(text, n, NULL, m->arena, &root, NULL) != SH_OK) return SH_ERR_FORMAT;
  const sh_json *files = sh_json_get(root, "files");
  if (!sh_json_is(files, SH_JSON_ARRAY)) return SH_ERR_FORMAT;
  m->name = text_of(root, "name");
  m->hub = text_of(root, "hub");
  m->endpoint = text_of(root, "endpoint");
  m->revision = text_of(root, "revision");
  m->commit = text_of(root, "commit");
  if (!(m->v = sh_calloc(files->len + 1, sizeof *m->v))) return SH_ERR_NOMEM;
  for (size_t i = 0; i < files->len; i++) {
    const sh_json *f = &files->items[i], *path = sh_json_get(f, "path");
    sh_pull_entry *to = &m->v[m->n];
    if (!sh_json_is(path, SH_JSON_STRING) || sh_hub_path_check(path->s, path->len)) continue;
    if (sh_json_int(sh_json_get(f, "size"), &to->size) != SH_OK || sh_json_int(sh_json_get(f, "mtime_ns"), &to->mtime_ns) != SH_OK)
      continue;
    snprintf(to->hash, sizeof to->hash, "%s", text_of(f, "hash"));
    to->path = path->s;
    m->n++;
  }
  return SH_OK;
}

int sh_pull_manifest_read(const char *dir, sh_pull_manifest *m, sh_error *e) {
  *m = (sh_pull_manifest){0};
  char *path = inside(dir, ".sheng-pull.json"), *text = NULL;
  size_t n;
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* told before the download: writing a pipe would wait for its reader */
    int bad = sh_fail(e, SH_ERR_IO, "%s is in the way: it is no regular file; move it, or pull into another folder", path);
    sh_free(path);
    return bad;
  }
  int rc = sh_file_read_regular(path, MAX_MANIFEST, &text, &n, NULL);
  sh_free(path);
  if (rc == SH_OK) rc = take_manifest(text, n, m);
  sh_free(text);
  if (rc != SH_OK) sh_pull_manifest_free(m);
  return rc == SH_ERR_NOMEM ? sh_fail(e, rc, "out of memory for the manifest in %s", dir) : SH_OK;
}

int sh_pull_manifest_write(const char *dir, const sh_pull_manifest *m, sh_error *e) {
  sh_buf b;
  sh_jw w;
  sh_buf_init(&b, MAX_MANIFEST);
  sh_jw_init(&w, &b);
  sh_jw_obj(&w);
  sh_jw_kint(&w, "format", 1);
  sh_jw_kstr(&w, "name", m->name);
  sh_jw_kstr(&w, "hub", m->hub);
  sh_jw_kstr(&w, "endpoint", m->endpoint);
  sh_jw_kstr(&w, "revision", m->revision);
  sh_jw_kstr(&w, "commit", m->commit);
  sh_jw_kint(&w, "pulled", sh_unix_time());
  sh_jw_key(&w, "files");
  sh_jw_arr(&w);
  for (int i = 0; i < m->n; i++) {
    sh_jw_obj(&w);
    sh_jw_kstr(&w, "path", m->v[i].path);
    sh_jw_kint(&w, "size", m->v[i].size);
    sh_jw_kint(&w, "mtime_ns", m->v[i].mtime_ns);
    sh_jw_kstr(&w, "hash", m->v[i].hash);
    sh_jw_end_obj(&w);
  }
  sh_jw_end_arr(&w);
  sh_jw_end_obj(&w);
  sh_buf_putc(&b, '\n');
  char *path = inside(dir, ".sheng-pull.json");
  int rc = !path || b.failed ? sh_fail(e, SH_ERR_NOMEM, "out of memory for the manifest") : sh_file_write_atomic(path, b.p, b.len, e);
  sh_free(path);
  sh_buf_free(&b);
  return rc;
}

const sh_pull_entry *sh_pull_manifest_find(const sh_pull_manifest *m, const char *path) {
  for (int i = 0; i < m->n; i++)
    if (strcmp(m->v[i].path, path) == 0) return &m->v[i];
  return NULL;
}

/* --- The working folder --------------------------------------------------------------------------------------------------------------- */

/* The pid in a lock file, 0 when it is not there. */
static long holder(int fd) {
  char text[32] = "";
  long pid = 0;
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  if (n > 0) sscanf(text, "%ld", &pid);
  return pid;
}

static bool same_file(int fd, const char *path) {
  struct stat a, b;
  return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* What lies in the working folder is deleted at the end, so it must be this folder's own and not a link to somebody's files. */
static int check_own(const char *work, sh_error *e) {
  struct stat st;
  if (lstat(work, &st) != 0 || !S_ISLNK(st.st_mode)) return SH_OK;
  return sh_fail(e, SH_ERR_IO, "%s is a symbolic link, and a pull deletes what is in it when it is done; remove the link", work);
}

/* One attempt. 0 and *fd: locked. SH_ERR_BUSY: another process has it, *pid says which. */
static int try_lock(const char *work, const char *path, int *fd, long *pid, sh_error *e) {
  int rc = sh_pull_make_dirs(work, e);
  if (rc == SH_OK) rc = check_own(work, e);
  if (rc != SH_OK) return rc;
  int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (f < 0 && errno == ENOENT) return SH_ERR_BUSY; /* the other one just cleaned up */
  if (f < 0) return fail_path(e, path, "create this file", errno);
  if (flock(f, LOCK_EX | LOCK_NB) != 0) {
    int err = errno;
    *pid = holder(f);
    close(f);
    if (err == EWOULDBLOCK || err == EINTR) return SH_ERR_BUSY;
    return fail_path(e, path, "lock this file", err);
  }
  if (!same_file(f, path)) {
    close(f);
    return SH_ERR_BUSY;
  }
  char text[32];
  int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(f, 0) != 0 || pwrite(f, text, (size_t)n, 0) != n) {
    rc = fail_path(e, path, "write this file", errno);
    close(f);
    return rc;
  }
  *fd = f;
  return SH_OK;
}

int sh_pull_lock(const char *dir, const volatile sig_atomic_t *stop, int *fd, sh_error *e) {
  *fd = -1;
  char *work = inside(dir, ".sheng-pull"), *path = work ? inside(work, "lock") : NULL;
  int rc = path ? SH_ERR_BUSY : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  bool said = false;
  while (rc == SH_ERR_BUSY) {
    long pid = 0;
    rc = try_lock(work, path, fd, &pid, e);
    if (rc != SH_ERR_BUSY) break;
    if (*stop) rc = sh_fail(e, SH_ERR_CANCELLED, "interrupted while waiting for process %ld, which works on %s", pid, dir);
    else if (pid && !said) said = fprintf(stderr, "process %ld is pulling into %s; waiting for it\n", pid, dir) > 0;
    nanosleep(&(struct timespec){0, 100000000}, NULL);
  }
  sh_free(work);
  sh_free(path);
  return rc;
}

/* Removes what a finished pull leaves: `resume` last but the lock, so that a cut in between leaves a folder that counts as incomplete. */
static void clear_work(const char *work) {
  int fd = open(work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
  if (!d) {
    if (fd >= 0) close(fd);
    return;
  }
  for (struct dirent *entry; (entry = readdir(d));)
    if (entry->d_name[0] != '.' && strcmp(entry->d_name, "resume") != 0 && strcmp(entry->d_name, "lock") != 0)
      unlinkat(dirfd(d), entry->d_name, 0);
  unlinkat(dirfd(d), "resume", 0);
  closedir(d);
}

void sh_pull_unlock(const char *dir, int fd, bool done) {
  if (fd < 0) return;
  char *work = inside(dir, ".sheng-pull"), *resume = work ? inside(work, "resume") : NULL, *lock = work ? inside(work, "lock") : NULL;
  if (resume && lock) {
    if (done) clear_work(work);
    if (!sh_file_exists(resume)) {
      unlink(lock);
      rmdir(work); /* these two: when they are empty */
      rmdir(dir);
    }
  }
  close(fd);
  sh_free(work);
  sh_free(resume);
  sh_free(lock);
}

int sh_pull_mark(const char *dir, const char *command, sh_error *e) {
  char *path = inside(dir, ".sheng-pull/resume");
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = sh_file_write_atomic(path, command, strlen(command), e);
  sh_free(path);
  return rc;
}

/* --- Finding -------------------------------------------------------------------------------------------------------------------------- */

/* SH_OK: nothing is under way in this folder. */
static int check_complete(const char *dir, sh_error *e) {
  char *resume = inside(dir, ".sheng-pull/resume"), *lock = inside(dir, ".sheng-pull/lock"), *command = NULL;
  size_t n;
  int rc = SH_OK, fd = -1;
  if (!resume || !lock) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  else if (sh_file_read_regular(resume, MAX_COMMAND, &command, &n, NULL) == SH_OK) {
    fd = open(lock, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      rc = sh_fail(e, SH_ERR_BUSY, "%s is not complete: process %ld is pulling it right now; wait until it is done", dir, holder(fd));
    else rc = sh_fail(e, SH_ERR_BUSY, "%s is not complete: its pull was cut; finish it with `%s`", dir, command);
  }
  if (fd >= 0) close(fd);
  sh_free(resume);
  sh_free(lock);
  sh_free(command);
  return rc;
}

/* A folder of the store counts when there is a manifest, or when somebody put files there by hand. */
static bool holds_files(const char *dir) {
  DIR *d = opendir(dir);
  bool found = false;
  if (!d) return false;
  for (struct dirent *entry; !found && (entry = readdir(d));) {
    struct stat st;
    found = (entry->d_name[0] != '.' || strcmp(entry->d_name, ".sheng-pull.json") == 0) && fstatat(dirfd(d), entry->d_name, &st, 0) == 0 &&
            S_ISREG(st.st_mode);
  }
  closedir(d);
  return found;
}

int sh_pull_find(const char *name, char **path, sh_error *e) {
  *path = NULL;
  char *dir = NULL;
  int rc = SH_OK;
  if (sh_file_exists(name) || sh_dir_exists(name)) {
    if (!(dir = sh_strdup(name))) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  } else if (!sh_hub_name_ok(name)) {
    return sh_fail(e, SH_ERR_NOT_FOUND, "%s: there is no such file or folder", name);
  } else if ((rc = sh_pull_store_dir(NULL, name, &dir, e)) != SH_OK) {
    return rc;
  }
  if (sh_dir_exists(dir)) rc = check_complete(dir, e);
  if (rc == SH_OK && !sh_file_exists(dir) && !holds_files(dir) && strcmp(dir, name) != 0)
    rc = sh_fail(e, SH_ERR_NOT_FOUND, "%s is no file or folder here, and not in the store (%s); get it with `sheng pull %s`", name, dir,
                 name);
  if (rc == SH_OK) *path = dir;
  else sh_free(dir);
  return rc;
}
