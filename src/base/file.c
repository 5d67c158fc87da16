/* Files: whole reads with a limit, read-only maps, atomic writes, paths.
 *
 * Any thread. Weights are mapped, so a file that another process truncates under us does not fail a read: the kernel sends SIGBUS at the
 * next touch of a missing page, in whatever thread computes. The handler here turns that into a sentence that names the file. It may only
 * use what is safe in a signal handler, so the maps are kept in a fixed table of slots whose fields are atomics and whose paths are copied
 * in; it formats nothing and writes with write(). A map that finds the table full works as well, only its fault is reported without a name.
 *
 * Refused: siglongjmp out of the handler to fail only the request (the fault may hit any kernel on any thread, with locks held), and
 * reading all weights with pread (memory that the system cannot take back). Only what the integer kernels read is copied, where there is
 * memory for it: on large pages they are up to a fifth faster. */
#include "base/file.h"

#include "base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

/* --- Reading -------------------------------------------------------------------------------------------------------------------------- */

/* An open failure as a sentence: a missing file is its own code. */
static int fail_open(sh_error *e, const char *path) {
  int err = errno;
  if (err == ENOENT || err == ENOTDIR) return sh_fail(e, SH_ERR_NOT_FOUND, "%s: no such file", path);
  return sh_fail(e, SH_ERR_IO, "%s: cannot open: %s", path, strerror(err));
}

/* Opens for reading and gives the file's status; a folder is refused, with `regular` everything that is no regular file (and the open does
 * not wait for the other end of a pipe). Returns the descriptor or a negative sh_err. */
static int open_read(const char *path, bool regular, struct stat *st, sh_error *e) {
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC | (regular ? O_NONBLOCK | O_NOCTTY : 0));
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return fail_open(e, path);
  int rc = 0;
  if (fstat(fd, st) != 0) rc = sh_fail(e, SH_ERR_IO, "%s: cannot read its status: %s", path, strerror(errno));
  else if (S_ISDIR(st->st_mode)) rc = sh_fail(e, SH_ERR_IO, "%s is a folder, a file was wanted", path);
  else if (regular && !S_ISREG(st->st_mode)) rc = sh_fail(e, SH_ERR_IO, "%s is not a regular file", path);
  if (rc) {
    close(fd);
    return rc;
  }
  return fd;
}

/* Reads up to `n` bytes; -1 with errno, 0 at the end of the file. */
static ssize_t read_some(int fd, void *p, size_t n) {
  ssize_t got;
  do got = read(fd, p, n);
  while (got < 0 && errno == EINTR);
  return got;
}

/* Reads to the end of the file in growing steps: also right for pipes and /proc, whose size reads as 0. At the limit, and where the known
 * size ends, one byte is read on its own: it tells the end from a longer file without growing the buffer. */
static int read_all(int fd, const char *path, size_t max, size_t hint, sh_buf *b, sh_error *e) {
  enum { STEP = 1 << 16 };
  for (;;) {
    size_t step = hint > b->len ? hint - b->len : b->len == hint ? 0 : STEP;
    if (step > max - b->len) step = max - b->len;
    char probe;
    if (step && sh_buf_reserve(b, step)) return sh_fail(e, SH_ERR_NOMEM, "%s: out of memory after %zu bytes", path, b->len);
    ssize_t got = read_some(fd, step ? b->p + b->len : &probe, step ? step : 1);
    if (got < 0) return sh_fail(e, SH_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (got == 0) return 0;
    if (step) {
      b->len += (size_t)got;
      b->p[b->len] = '\0';
      continue;
    }
    int rc = sh_buf_putc(b, probe);
    if (rc == SH_ERR_LIMIT) return sh_fail(e, rc, "%s: larger than the limit of %zu bytes", path, max);
    if (rc) return sh_fail(e, rc, "%s: out of memory after %zu bytes", path, b->len);
  }
}

static int read_file(const char *path, bool regular, size_t max, char **out, size_t *len, sh_error *e) {
  *out = NULL;
  *len = 0;
  struct stat st;
  int fd = open_read(path, regular, &st, e);
  if (fd < 0) return fd;
  sh_buf b;
  sh_buf_init(&b, max);
  int rc = 0;
  size_t hint = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 0;
  if (hint > max) rc = sh_fail(e, SH_ERR_LIMIT, "%s: %zu bytes, larger than the limit of %zu bytes", path, hint, max);
  if (!rc) rc = read_all(fd, path, max, hint, &b, e);
  close(fd);
  size_t n = b.len;
  if (!rc && !(*out = sh_buf_detach(&b))) rc = sh_fail(e, SH_ERR_NOMEM, "%s: out of memory", path);
  if (!rc) *len = n;
  sh_buf_free(&b);
  return rc;
}

int sh_file_read(const char *path, size_t max, char **out, size_t *len, sh_error *e) { return read_file(path, false, max, out, len, e); }

int sh_file_read_regular(const char *path, size_t max, char **out, size_t *len, sh_error *e) {
  return read_file(path, true, max, out, len, e);
}

/* --- Maps and the SIGBUS guard -------------------------------------------------------------------------------------------------------- */

enum { SLOTS = 256, EXIT_IO = 74 /* EX_IOERR of sysexits.h */ };

/* base is 0 while the slot is free, 1 while it is being filled, else the map's address. The path is written before base and read after it.
 */
typedef struct map_slot {
  atomic_uintptr_t base;
  atomic_size_t len;
  atomic_bool in_memory;
  char path[SH_MAP_PATH];
} map_slot;

static map_slot slots[SLOTS];

static void guard_add(const void *p, size_t len, const char *path, bool in_memory) {
  for (int i = 0; i < SLOTS; i++) {
    uintptr_t is_free = 0;
    if (!atomic_compare_exchange_strong(&slots[i].base, &is_free, 1)) continue;
    size_t n = strlen(path), skip = n >= SH_MAP_PATH ? n - (SH_MAP_PATH - 1) : 0;
    memcpy(slots[i].path, path + skip, n - skip + 1);
    atomic_store(&slots[i].in_memory, in_memory);
    atomic_store(&slots[i].len, len);
    atomic_store(&slots[i].base, (uintptr_t)p);
    return;
  }
}

static void guard_remove(const void *p) {
  for (int i = 0; i < SLOTS; i++) {
    uintptr_t want = (uintptr_t)p;
    if (atomic_compare_exchange_strong(&slots[i].base, &want, 0)) return;
  }
}

/* The slot of the map that holds an address, or NULL. Safe in a signal handler. */
static const map_slot *slot_of(uintptr_t at) {
  for (int i = 0; i < SLOTS; i++) {
    uintptr_t base = atomic_load(&slots[i].base);
    if (base > 1 && at >= base && at - base < atomic_load(&slots[i].len)) return &slots[i];
  }
  return NULL;
}

bool sh_map_path_of(const void *p, char path[SH_MAP_PATH]) {
  const map_slot *s = slot_of((uintptr_t)p);
  if (s) memcpy(path, s->path, SH_MAP_PATH);
  return s != NULL;
}

bool sh_map_same(const void *p, const void *q) {
  const map_slot *s = slot_of((uintptr_t)p);
  return s && s == slot_of((uintptr_t)q);
}

bool sh_map_in_memory(const void *p) {
  const map_slot *s = slot_of((uintptr_t)p);
  return s && atomic_load(&s->in_memory);
}

static void say(const char *s) {
  size_t n = strlen(s);
  while (n > 0) {
    ssize_t w = write(STDERR_FILENO, s, n);
    if (w <= 0) return;
    s += w;
    n -= (size_t)w;
  }
}

static void on_sigbus(int sig, siginfo_t *info, void *context) {
  (void)context;
  const map_slot *s = slot_of((uintptr_t)info->si_addr);
  if (s) {
    say("sheng: ");
    say(s->path);
    say(": " SH_MAP_LOST "\n");
    _exit(EXIT_IO);
  }
  signal(sig, SIG_DFL); /* not one of ours: the fault repeats and ends the program as it would have */
}

void sh_map_guard_install(void) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = on_sigbus;
  sa.sa_flags = SA_SIGINFO;
  sigemptyset(&sa.sa_mask);
  sigaction(SIGBUS, &sa, NULL);
}

static bool on_tmpfs(int fd) {
  struct statfs fs;
  return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

int sh_map_open(sh_map *m, const char *path, sh_error *e) {
  *m = (sh_map){0};
  struct stat st;
  int fd = open_read(path, true, &st, e);
  if (fd < 0) return fd;
  int rc = 0;
  if (st.st_size == 0) {
    m->p = (const uint8_t *)"";
  } else {
    size_t len = (size_t)st.st_size;
    void *p = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      rc = sh_fail(e, errno == ENOMEM ? SH_ERR_NOMEM : SH_ERR_IO, "%s: cannot map %zu bytes: %s", path, len, strerror(errno));
    } else {
      *m = (sh_map){.p = p, .len = len, .private_base = p};
      guard_add(p, len, path, on_tmpfs(fd));
    }
  }
  close(fd);
  return rc;
}

/* --- A map's copy on large pages. */

enum { COPY_BYTES = 8 << 20 }; /* of an item */

/* Whether the system gives large pages to memory that asks for them. */
static bool large_pages(void) {
  char *text;
  size_t n;
  if (sh_file_read("/sys/kernel/mm/transparent_hugepage/enabled", 64 << 10, &text, &n, NULL)) return false;
  bool never = strstr(text, "[never]") != NULL;
  sh_free(text);
  return !never;
}

/* `bytes` (a multiple of a large page) of new memory that begins on one; NULL: there is none, or no large pages for it. */
static uint8_t *large_new(size_t bytes) {
  if (bytes > SIZE_MAX - SH_MEM_LARGE) return NULL;
  uint8_t *p = mmap(NULL, bytes + SH_MEM_LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  size_t before = (SH_MEM_LARGE - (uintptr_t)p % SH_MEM_LARGE) % SH_MEM_LARGE;
  if (before) munmap(p, before);
  munmap(p + before + bytes, SH_MEM_LARGE - before);
  if (sh_mem_large(p + before, bytes)) return p + before;
  munmap(p + before, bytes);
  return NULL;
}

typedef struct copy_job {
  const uint8_t *from;
  uint8_t *to;
  size_t len;
} copy_job;

static void copy_item(void *ctx, int item, int worker) {
  (void)worker;
  const copy_job *j = ctx;
  const size_t at = (size_t)item * COPY_BYTES, n = j->len - at < COPY_BYTES ? j->len - at : COPY_BYTES;
  sh_map_ask(j->from + at, n);
  memcpy(j->to + at, j->from + at, n);
}

bool sh_map_into_memory(sh_map *m, sh_pool *pool, int64_t spare) {
  if (!m->private_base || m->len > SIZE_MAX / 2 || m->len / COPY_BYTES >= INT_MAX || !large_pages()) return false;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (m->len + page - 1) / page * page,
               bytes = (m->len + SH_MEM_LARGE - 1) / SH_MEM_LARGE * SH_MEM_LARGE;
  const int64_t available = sh_memory_available();
  if (available < spare || (uint64_t)(available - spare) < bytes) return false;
  copy_job j = {.from = m->p, .to = large_new(bytes), .len = m->len};
  if (!j.to) return false;
  sh_pool_run(pool, copy_item, &j, (int)((m->len + COPY_BYTES - 1) / COPY_BYTES));
  if (bytes > used) munmap(j.to + used, bytes - used);
  mprotect(j.to, used, PROT_READ); /* only to catch a stray write */
  guard_remove(m->private_base);
  munmap(m->private_base, m->len);
  m->p = m->private_base = j.to;
  return true;
}

void sh_map_close(sh_map *m) {
  if (m->private_base) {
    guard_remove(m->private_base);
    munmap(m->private_base, m->len);
  }
  *m = (sh_map){0};
}

/* Only advice: what the system does not take changes nothing. */
static void advise(const void *p, size_t n, int advice) {
  size_t before = (uintptr_t)p & ((size_t)sysconf(_SC_PAGESIZE) - 1);
  if (n) (void)madvise((void *)((uintptr_t)p - before), n + before, advice);
}

void sh_map_ask(const void *p, size_t n) { advise(p, n, MADV_WILLNEED); }

void sh_map_drop(const void *p, size_t n) { advise(p, n, MADV_DONTNEED); }

void sh_map_sparse(const void *p, size_t n, bool on) { advise(p, n, on ? MADV_RANDOM : MADV_NORMAL); }

/* --- Paths ---------------------------------------------------------------------------------------------------------------------------- */

int64_t sh_file_room(const char *path) {
  struct statvfs v;
  char *at = sh_strdup(path);
  int64_t room = -1;
  while (at) {
    if (statvfs(at, &v) == 0) {
      room = (int64_t)v.f_bavail * (int64_t)v.f_frsize;
      break;
    }
    char *slash = strrchr(at, '/');
    if (errno != ENOENT || (slash && slash == at && !at[1]) || strcmp(at, ".") == 0) break;
    if (!slash) memcpy(at, ".", 2);
    else slash[slash == at] = 0;
  }
  sh_free(at);
  return room;
}

bool sh_file_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool sh_dir_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *sh_path_join(const char *dir, const char *name) {
  if (name[0] == '/' || dir[0] == '\0') return sh_strdup(name);
  size_t d = strlen(dir), n = strlen(name);
  while (d > 1 && dir[d - 1] == '/') d--;
  bool slash = dir[d - 1] != '/'; /* the root keeps the one it is */
  char *p = sh_malloc(d + slash + n + 1);
  if (!p) return NULL;
  memcpy(p, dir, d);
  if (slash) p[d] = '/';
  memcpy(p + d + slash, name, n + 1);
  return p;
}

const char *sh_path_base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* --- Writing -------------------------------------------------------------------------------------------------------------------------- */

enum { MAX_WRITE = 1 << 30 }; /* bytes of one call */

static int write_all(int fd, const char *p, size_t n) {
  while (n > 0) {
    ssize_t w = write(fd, p, n < MAX_WRITE ? n : MAX_WRITE);
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return -1;
    p += w;
    n -= (size_t)w;
  }
  return 0;
}

/* Makes a rename in the folder of `path` durable. Best effort: some file systems refuse to sync a folder, and the file itself is already
 * safe. */
static void sync_dir(const char *path) {
  size_t n = (size_t)(sh_path_base(path) - path);
  char *dir = n ? sh_strndup(path, n) : sh_strdup(".");
  if (!dir) return;
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  sh_free(dir);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

/* The file that `path` leads to. Links are followed, or the rename would replace the link: /dev/stdout is one. A link to nothing is taken
 * as the place itself. Caller frees. */
static char *final_path(const char *path) {
  struct stat st;
  if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) return sh_strdup(path);
  char real[PATH_MAX];
  return sh_strdup(realpath(path, real) ? real : path);
}

/* How the target is written: *direct for what a rename would destroy. */
static int choose_way(const char *path, bool *direct, sh_error *e) {
  struct stat st;
  *direct = false;
  if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return 0; /* why it cannot be reached, the open will say */
  *direct = S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode);
  if (*direct) return 0;
  return sh_fail(e, SH_ERR_IO, "%s is %s; a file, a pipe or a character device can be written", path,
                 S_ISDIR(st.st_mode)   ? "a folder"
                 : S_ISBLK(st.st_mode) ? "a block device"
                                       : "a socket");
}

/* Beside the target, so that the rename stays in one file system. Caller frees. */
static char *temporary_name(const char *path) {
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  char *name = sh_buf_printf(&b, "%s.tmp.%ld", path, (long)getpid()) ? NULL : sh_buf_detach(&b);
  sh_buf_free(&b);
  return name;
}

int sh_file_out_open(sh_file_out *o, const char *path, sh_error *e) {
  bool direct;
  *o = (sh_file_out){.private_fd = -1};
  int rc = choose_way(path, &direct, e);
  if (rc) return rc;
  o->private_path = direct ? sh_strdup(path) : final_path(path);
  char *tmp = direct || !o->private_path ? NULL : temporary_name(o->private_path);
  if (!o->private_path || (!direct && !tmp)) {
    rc = sh_fail(e, SH_ERR_NOMEM, "%s: no memory for its name", path);
    goto fail;
  }
  const char *name = direct ? path : tmp;
  int flags = direct ? O_WRONLY | O_NOCTTY | O_CLOEXEC : O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  do o->private_fd = open(name, flags, 0666);
  while (o->private_fd < 0 && errno == EINTR);
  o->private_open = o->private_fd >= 0;
  if (!o->private_open) {
    rc = sh_fail(e, SH_ERR_IO, "%s: cannot %s: %s%s", path, direct ? "open" : "create", strerror(errno),
                 errno == ENOENT ? " (is its folder there?)" : "");
    goto fail;
  }
  o->private_tmp = tmp;
  return 0;
fail:
  sh_free(tmp);
  sh_file_out_abandon(o);
  return rc;
}

int sh_file_out_write(sh_file_out *o, const void *p, size_t n, sh_error *e) {
  if (write_all(o->private_fd, p, n) == 0) {
    o->private_bytes += n;
    return 0;
  }
  return sh_fail(e, SH_ERR_IO, "%s: cannot write %zu bytes: %s", o->private_path, n, strerror(errno));
}

uint64_t sh_file_out_bytes(const sh_file_out *o) { return o->private_bytes; }

int sh_file_out_commit(sh_file_out *o, sh_error *e) {
  int err = o->private_tmp && fsync(o->private_fd) != 0 ? errno : 0;
  if (close(o->private_fd) != 0 && !err) err = errno;
  o->private_open = false;
  if (!err && o->private_tmp && rename(o->private_tmp, o->private_path) != 0) err = errno;
  if (err) return sh_fail(e, SH_ERR_IO, "%s: cannot write: %s", o->private_path, strerror(err));
  if (o->private_tmp) sync_dir(o->private_path);
  sh_free(o->private_tmp);
  o->private_tmp = NULL;
  sh_file_out_abandon(o);
  return 0;
}

void sh_file_out_abandon(sh_file_out *o) {
  if (o->private_open) close(o->private_fd);
  if (o->private_tmp) unlink(o->private_tmp);
  sh_free(o->private_tmp);
  sh_free(o->private_path);
  *o = (sh_file_out){0};
}

int sh_file_write_atomic(const char *path, const void *p, size_t n, sh_error *e) {
  sh_file_out o;
  int rc = sh_file_out_open(&o, path, e);
  if (!rc) rc = sh_file_out_write(&o, p, n, e);
  if (!rc) rc = sh_file_out_commit(&o, e);
  sh_file_out_abandon(&o);
  return rc;
}
