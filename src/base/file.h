/* Files: whole reads with a limit, read-only maps, paths. */
#ifndef SH_BASE_FILE_H
#define SH_BASE_FILE_H

#include "base/err.h"
#include "base/mem.h"

/* Reads a whole file. `max` bytes at most (SH_ERR_LIMIT). *out is NUL-terminated, owned by the caller (sh_free). "-" is not special. */
int sh_file_read(const char *path, size_t max, char **out, size_t *len, sh_error *e);
/* The same for a file nobody named himself, such as those of a model's folder: what is no regular file is refused without waiting for it
 * (a pipe would be waited for until somebody writes to it). */
int sh_file_read_regular(const char *path, size_t max, char **out, size_t *len, sh_error *e);

/* A read-only private map of a whole regular file. An empty file maps to p = "" and len 0. */
typedef struct sh_map {
  const uint8_t *p;
  size_t len;
  void *private_base;
} sh_map;
int sh_map_open(sh_map *m, const char *path, sh_error *e);
void sh_map_close(sh_map *m); /* accepts a zeroed struct */
/* Tells the system that p[0..n) of a map will be read soon; does not wait. */
void sh_map_ask(const void *p, size_t n);
/* p[0..n) of a map will not be read soon: its pages need not stay in memory. */
void sh_map_drop(const void *p, size_t n);
/* Single places of p[0..n), of a map, will be read, so a fault shall read its page and not some MB around it; false: as usual again. */
void sh_map_sparse(const void *p, size_t n, bool on);
/* Of the maps that are open now, as far as the table of the guard below has room for them (the first 256): */
enum { SH_MAP_PATH = 240 };                                 /* bytes; of a longer path the end is kept */
bool sh_map_path_of(const void *p, char path[SH_MAP_PATH]); /* the file that p points into; false: unknown */
bool sh_map_same(const void *p, const void *q);             /* whether both point into the same map */
bool sh_map_in_memory(const void *p);                       /* whether p's file is one of a tmpfs */
/* Puts a copy of the whole file, made by the pool's threads, in the map's place, on pages of 2 MB: for what is read through again and
 * again, where looking up each 4 KB costs more than it does for the kernel's own large pages. False: m is as it was (a system without such
 * pages, less than `spare` bytes of memory left beside the copy). A copy no longer shows what happens to the file. */
typedef struct sh_pool sh_pool;
bool sh_map_into_memory(sh_map *m, sh_pool *pool, int64_t spare);
#define SH_MAP_LOST                                                                                                                        \
  "the mapped file shrank or cannot be read any more; restore it and start again (model files must not be replaced in place)"
/* Installs a SIGBUS handler that says which mapped file shrank (or could not be read) under the program and exits with status 74, in place
 * of a bare crash. Call once at start. */
void sh_map_guard_install(void);

/* Bytes that may be written where `path` is or will be (the nearest folder of it that is there); -1: unknown. */
int64_t sh_file_room(const char *path);
bool sh_file_exists(const char *path);
bool sh_dir_exists(const char *path);
/* "dir/name", allocated (sh_free). name absolute: a copy of name. */
char *sh_path_join(const char *dir, const char *name);
const char *sh_path_base(const char *path); /* part after the last '/', borrowed */

/* A file that is written in pieces and appears as a whole: into path.tmp.PID, synced and renamed by the commit; a link is followed and its
 * target replaced. A pipe or a character device (/dev/stdout, /dev/null) is written to as it comes, since a rename would put a file in its
 * place. After an error, or when the caller gives up, sh_file_out_abandon leaves nothing behind but what a pipe has taken. */
typedef struct sh_file_out {
  char *private_path, *private_tmp; /* owned; tmp NULL: written to directly */
  int private_fd;
  bool private_open;
  uint64_t private_bytes;
} sh_file_out;
int sh_file_out_open(sh_file_out *o, const char *path, sh_error *e);
int sh_file_out_write(sh_file_out *o, const void *p, size_t n, sh_error *e);
uint64_t sh_file_out_bytes(const sh_file_out *o); /* written so far */
int sh_file_out_commit(sh_file_out *o, sh_error *e);
void sh_file_out_abandon(sh_file_out *o); /* accepts a zeroed or committed struct */
/* All of that for bytes in memory. */
int sh_file_write_atomic(const char *path, const void *p, size_t n, sh_error *e);

#endif
