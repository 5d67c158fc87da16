/* Files: whole reads with a limit, read-only maps, atomic writes, paths.
 *
 * Any thread. Weights are mapped, so a file that another process truncates under us does not fail a read: the kernel sends SIGBUS at the
 * next touch of a missing page, in whatever thread computes. The handler here turns that into a sentence that names the file. It may only
 * use what is safe in a signal handler, so the maps are kept in a fixed table of slots whose fields are atomics and whose paths are copied
 * in; it formats nothing and writes with write(). A map that finds the table full works as well, only its fault is reported without a name.
 *
 * Refused: siglongjmp out of the handler to fail only the request (the fault may hit any kernel on any thread, with locks held), and
 * reading weights with pread (doubles the memory). */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- Reading -------------------------------------------------------------------------------------------------------------------------- */

/* An open failure as a sentence: a missing file is its own code. */
static int fail_open(sh_error *e, const char *path) {
  int err = errno;
  if (err == ENOENT || err == ENOTDIR) return sh_fail(e, SH_ERR_NOT_FOUND, "%s: no such file", path);
  return sh_fail(e, SH_ERR_IO, "%s: cannot open: %s", path, strerror(err));
}

/* Opens for reading and gives the file's status; a folder is refused. Returns the descriptor or a negative sh_err. */
static int open_read(const char *path, struct stat *st, sh_error *e) {
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return fail_open(e, path);
  int rc = 0;
  if (fstat(fd, st) != 0) rc = sh_fail(e, SH_ERR_IO, "%s: cannot read its status: %s", path, strerror(errno));
  else if (S_ISDIR(st->st_mode)) rc = sh_fail(e, SH_ERR_IO, "%s is a folder, a file was wanted", path);
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

int sh_file_read(const char *path, size_t max, char **out, size_t *len, sh_error *e) {
  *out = NULL;
  *len = 0;
  struct stat st;
  int fd = open_read(path, &st, e);
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

/* --- Maps and the SIGBUS guard -------------------------------------------------------------------------------------------------------- */

enum { SLOTS = 256, SLOT_PATH = 240, EXIT_IO = 74 /* EX_IOERR of sysexits.h */ };

/* base is 0 while the slot is free, 1 while it is being filled, else the map's address. The path is written before base and read after it.
 */
typedef struct map_slot {
  atomic_uintptr_t base;
  atomic_size_t len;
  char path[SLOT_PATH]; /* the end of the path when it is longer */
} map_slot;

static map_slot slots[SLOTS];

static void guard_add(const void *p, size_t len, const char *path) {
  for (int i = 0; i < SLOTS; i++) {
    uintptr_t is_free = 0;
    if (!atomic_compare_exchange_strong(&slots[i].base, &is_free, 1)) continue;
    size_t n = strlen(path), skip = n >= SLOT_PATH ? n - (SLOT_PATH - 1) : 0;
    memcpy(slots[i].path, path + skip, n - skip + 1);
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
  uintptr_t at = (uintptr_t)info->si_addr;
  for (int i = 0; i < SLOTS; i++) {
    uintptr_t base = atomic_load(&slots[i].base);
    if (base <= 1 || at < base || at - base >= atomic_load(&slots[i].len)) continue;
    say("sheng: ");
    say(slots[i].path);
    say(": the mapped file shrank or cannot be read any more; restore it and start again (model files must not be replaced in place)\n");
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

int sh_map_open(sh_map *m, const char *path, sh_error *e) {
  *m = (sh_map){0};
  struct stat st;
  int fd = open_read(path, &st, e);
  if (fd < 0) return fd;
  int rc = 0;
  if (!S_ISREG(st.st_mode)) {
    rc = sh_fail(e, SH_ERR_IO, "%s is not a regular file and cannot be mapped", path);
  } else if (st.st_size == 0) {
    m->p = (const uint8_t *)"";
  } else {
    size_t len = (size_t)st.st_size;
    void *p = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      rc = sh_fail(e, errno == ENOMEM ? SH_ERR_NOMEM : SH_ERR_IO, "%s: cannot map %zu bytes: %s", path, len, strerror(errno));
    } else {
      *m = (sh_map){.p = p, .len = len, .private_base = p};
      guard_add(p, len, path);
    }
  }
  close(fd);
  return rc;
}

void sh_map_close(sh_map *m) {
  if (m->private_base) {
    guard_remove(m->private_base);
    munmap(m->private_base, m->len);
  }
  *m = (sh_map){0};
}

/* --- Paths ---------------------------------------------------------------------------------------------------------------------------- */

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

static int write_all(int fd, const char *p, size_t n) {
  while (n > 0) {
    ssize_t w = write(fd, p, n);
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

int sh_file_write_atomic(const char *path, const void *p, size_t n, sh_error *e) {
  sh_buf tmp;
  sh_buf_init(&tmp, 1 << 16);
  int rc = sh_buf_printf(&tmp, "%s.tmp.%ld", path, (long)getpid());
  if (rc) return sh_fail(e, rc, "%s: no memory for a temporary name", path);
  int fd = open(tmp.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    rc = sh_fail(e, SH_ERR_IO, "%s: cannot create: %s", tmp.p, strerror(errno));
    goto done;
  }
  bool bad = write_all(fd, p, n) != 0 || fsync(fd) != 0;
  int err = errno;
  if (close(fd) != 0 && !bad) {
    bad = true;
    err = errno;
  }
  if (!bad && rename(tmp.p, path) != 0) {
    bad = true;
    err = errno;
  }
  if (bad) {
    unlink(tmp.p);
    rc = sh_fail(e, SH_ERR_IO, "%s: cannot write %zu bytes: %s", path, n, strerror(err));
    goto done;
  }
  sync_dir(path);
done:
  sh_buf_free(&tmp);
  return rc;
}
