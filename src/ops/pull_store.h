/* The local store of `sheng pull`: where a model's folder is, the manifest of a complete one, and the working folder of a pull. */
#ifndef SH_OPS_PULL_STORE_H
#define SH_OPS_PULL_STORE_H

#include "base/err.h"
#include "base/mem.h"
#include "base/sha.h"
#include <signal.h>

enum { SH_PULL_WORK_PATH = 4096 };

typedef struct sh_pull_entry {
  const char *path;      /* in the manifest's arena */
  int64_t size;          /* bytes */
  int64_t mtime_ns;      /* of the file when it was found right */
  char hash[SH_SHA_HEX]; /* "" when the hub gave none */
} sh_pull_entry;

typedef struct sh_pull_manifest {
  const char *name, *hub, *endpoint, *revision, *commit; /* borrowed when written, in the arena when read */
  sh_pull_entry *v;                                      /* [n]; owned */
  int n;
  sh_arena *arena; /* NULL for one that is being written */
} sh_pull_manifest;

/* STORE/models/NAME. home: an option that wins over the environment, or NULL. Allocated. */
int sh_pull_store_dir(const char *home, const char *name, char **dir, sh_error *e);

/* A folder without a manifest, or with one that cannot be read: m is empty, which is no error. Caller frees with sh_pull_manifest_free. */
int sh_pull_manifest_read(const char *dir, sh_pull_manifest *m, sh_error *e);
int sh_pull_manifest_write(const char *dir, const sh_pull_manifest *m, sh_error *e);
void sh_pull_manifest_free(sh_pull_manifest *m);
const sh_pull_entry *sh_pull_manifest_find(const sh_pull_manifest *m, const char *path);

/* Makes the folder and those above it. */
int sh_pull_make_dirs(const char *dir, sh_error *e);

/* Makes DIR and its working folder and takes the lock in it; waits, with a line on stderr, while another process has it. *fd: close it with
 * sh_pull_unlock. SH_ERR_CANCELLED when *stop was set meanwhile. */
int sh_pull_lock(const char *dir, const volatile sig_atomic_t *stop, int *fd, sh_error *e);
/* done: everything is there, so the working folder goes. Else it stays for the next try, if it is marked; an empty one goes too. */
void sh_pull_unlock(const char *dir, int fd, bool done);
/* Leaves the command that goes on in the working folder: from then on the folder counts as incomplete. */
int sh_pull_mark(const char *dir, const char *command, sh_error *e);

#endif
