/* The folder in the making: who may write it, what of it is there, its parts and shards.
 *
 * One thread. A quantization takes minutes to hours and is killed, or meets a full disk, at any point of them; so the state is the files
 * themselves. A part is one safetensors file, written under another name, synced and renamed: it is whole or not there. When the last part
 * of a shard is there the shard is made of them, in the same way, and only then do they go. Nothing else has to be remembered, but what
 * the parts are parts of: the job's file, written before anything else, without which a folder is not taken for one of ours. Which parts
 * make a shard is decided by estimates before anything is written, so it does not depend on the order or the runs in which they came, and
 * neither do the bytes.
 *
 * The lock is flock() on the folder itself: the system lets go of it when its holder dies, and no file has to be left for it. Whoever got
 * it looks whether the folder is still the one at that path, since its last holder may have renamed it to OUT.
 *
 * Refused: appending tensors to the shard itself (safetensors has its header in front), and a journal of finished parts (it would have to
 * agree with the files in the end). The price is that each weight is written twice. */
#include "quant/writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "quant/writer_internal.h"

enum { MAX_JOB = 1 << 20, MAX_PARTS = 99999 };
#define SHARD_BYTES 4000000000ll
#define SPARE (16ll << 20) /* bytes of side files, headers and the file system's own */

/* --- Names and small files */

static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory"); }

static const char *part_name(int part, char name[SH_QW_NAME]) {
  snprintf(name, SH_QW_NAME, "part-%05d.safetensors", part);
  return name;
}

const char *sh_qw_shard_name(const sh_qwriter *w, int shard, char name[SH_QW_NAME]) {
  if (w->n_shards == 1) snprintf(name, SH_QW_NAME, "model.safetensors");
  else snprintf(name, SH_QW_NAME, "model-%05d-of-%05d.safetensors", shard + 1, w->n_shards);
  return name;
}

bool sh_qw_is_temporary(const char *name) {
  const char *at = strstr(name, ".tmp.");
  return at && at[5] && at[5 + strspn(at + 5, "0123456789")] == '\0';
}

/* The first name in the folder for which `is` says no; "" when there is none or it cannot be listed. */
static void first_other(const char *dir, bool (*is)(const char *name), char name[NAME_MAX + 1]) {
  DIR *d = opendir(dir);
  name[0] = '\0';
  for (struct dirent *f = d ? readdir(d) : NULL; f && !name[0]; f = readdir(d)) {
    if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..") && !is(f->d_name)) snprintf(name, NAME_MAX + 1, "%s", f->d_name);
  }
  if (d) closedir(d);
}

static bool none(const char *name) {
  (void)name;
  return false;
}

static bool is_job(const char *name) { return strcmp(name, SH_QW_JOB) == 0; }

void sh_qw_remove(const sh_qwriter *w, bool (*is)(const char *name)) {
  DIR *d = opendir(w->dir);
  for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d)) {
    if (is(f->d_name)) (void)unlinkat(dirfd(d), f->d_name, 0);
  }
  if (d) closedir(d);
}

int sh_qwriter_kept(const sh_qwriter *w, int rc, sh_error *e) {
  if (rc != SH_ERR_IO || !e) return rc;
  sh_error first = *e;
  return sh_fail(e, rc, "%s; what is done is kept in %s: make room or mend that, and %s", first.text, w->dir, w->go_on);
}

/* --- The plan: which parts make a shard */

static int make_plan(sh_qwriter *w, const sh_qwriter_opts *o, sh_error *e) {
  int64_t most = o->shard_bytes > 0 ? o->shard_bytes : SHARD_BYTES, sum = 0;
  if (o->n_parts < 1 || o->n_parts > MAX_PARTS)
    return sh_fail(e, SH_ERR_LIMIT, "a folder of %d parts; 1 to %d can be written", o->n_parts, (int)MAX_PARTS);
  w->n_parts = o->n_parts;
  w->first = sh_calloc((size_t)o->n_parts + 1, sizeof *w->first);
  w->done = sh_calloc((size_t)o->n_parts, sizeof *w->done);
  w->written = sh_calloc((size_t)o->n_parts, sizeof *w->written);
  if (!w->first || !w->done || !w->written) return no_memory(e);
  for (int i = 0; i < o->n_parts; i++) {
    if (i > w->first[w->n_shards] && o->bytes[i] > most - sum) {
      w->first[++w->n_shards] = i;
      sum = 0;
    }
    sum += o->bytes[i];
  }
  w->first[++w->n_shards] = o->n_parts;
  w->plan = sh_hash(o->bytes, (size_t)o->n_parts * sizeof *o->bytes, (uint64_t)w->n_shards);
  return 0;
}

static int shard_of(const sh_qwriter *w, int part) {
  int s = 0;
  while (part >= w->first[s + 1]) s++;
  return s;
}

/* The job's text: its first fields, and when they are known, the others and the plan. */
static int make_job(sh_qwriter *w, const char *begin, const char *rest, sh_error *e) {
  sh_buf b;
  sh_buf_init(&b, MAX_JOB);
  size_t n = strcspn(begin, "\n");
  sh_buf_put(&b, begin, n);
  sh_buf_putc(&b, '\n');
  if (rest)
    sh_buf_printf(&b, "%s\nplan of version 1: %d parts in %d files, %016llx\n", rest, w->n_parts, w->n_shards, (unsigned long long)w->plan);
  if ((begin[n] && begin[n + 1]) || (rest && strchr(rest, '\n'))) b.failed = SH_ERR_INTERNAL;
  int rc = b.failed;
  size_t len = b.len;
  char *job = rc ? NULL : sh_buf_detach(&b);
  sh_buf_free(&b);
  if (!job) return sh_fail(e, rc ? rc : SH_ERR_NOMEM, "the description of the job is too long or not one line");
  sh_free(w->job);
  w->job = job;
  w->job_len = len;
  w->job_open = rest == NULL;
  return 0;
}

/* Whether the text of a job's file is of this one, as far as it is known. */
static bool same_job(const sh_qwriter *w, const char *text, size_t n) {
  return n >= w->job_len && memcmp(text, w->job, w->job_len) == 0 && (w->job_open || n == w->job_len);
}

/* --- OUT */

/* OUT is one of a run before, whole: its job's file is kept there, or was left by a kill after the rename. 1: of this job; 0: there is
 * none. */
static int is_finished(const sh_qwriter *w, sh_error *e) {
  char *path = sh_path_join(w->out, SH_QW_JOB), *text = NULL;
  size_t n = 0;
  int rc = path && !sh_file_read_regular(path, MAX_JOB, &text, &n, NULL);
  if (rc && !same_job(w, text, n)) rc = sh_qw_fail_other_job(w, w->out, text, e);
  if (rc == 1 && !w->keep_job) (void)unlink(path);
  sh_free(path);
  sh_free(text);
  return rc;
}

/* Something is at OUT: it must be an empty folder that a rename can replace. */
static int check_existing(sh_qwriter *w, bool resume, sh_error *e) {
  char name[NAME_MAX + 1];
  if (!sh_dir_exists(w->out)) return sh_fail(e, SH_ERR_ARG, "%s is there and is not a folder; name a folder that is not there yet", w->out);
  int finished = resume ? is_finished(w, e) : 0;
  if (finished < 0) return finished;
  w->whole = finished && w->keep_job;
  if (w->whole) return 0;
  if (finished) return sh_fail(e, SH_ERR_ARG, "%s is complete: the run before finished it, nothing is left to do", w->out);
  first_other(w->out, none, name);
  if (name[0])
    return sh_fail(e, SH_ERR_ARG, "%s is not empty (%.80s is in it); name a folder that is not there yet, or remove that one", w->out,
                   name);
  if (rmdir(w->out) == 0 && mkdir(w->out, 0777) == 0) return 0; /* what the end will do: a rename over it */
  if (errno == EBUSY) return sh_fail(e, SH_ERR_ARG, "%s is a mount point and cannot be replaced; name a new folder in it", w->out);
  return sh_fail(e, SH_ERR_IO, "%s cannot be replaced: %s; name a folder where you may write", w->out, strerror(errno));
}

static int set_out(sh_qwriter *w, const sh_qwriter_opts *o, sh_error *e) {
  char real[PATH_MAX];
  struct stat st;
  size_t n = strlen(o->path);
  while (n > 1 && o->path[n - 1] == '/') n--;
  if (!n) return sh_fail(e, SH_ERR_ARG, "the folder to write has an empty name");
  bool there = stat(o->path, &st) == 0;
  if (!there && lstat(o->path, &st) == 0)
    return sh_fail(e, SH_ERR_ARG, "%s is a link to nothing; name a folder that is not there yet, or remove the link", o->path);
  w->out = there && realpath(o->path, real) ? sh_strdup(real) : sh_strndup(o->path, n);
  sh_buf b;
  sh_buf_init(&b, PATH_MAX);
  if (w->out && sh_buf_printf(&b, "%s.partial", w->out) == 0) w->dir = sh_buf_detach(&b);
  sh_buf_free(&b);
  if (!w->out || !w->dir) return no_memory(e);
  int rc = sh_qw_refuse_overlap(w, e);
  return rc == 0 && there ? check_existing(w, o->resume, e) : rc;
}

/* --- OUT.partial */

static int fail_make(const sh_qwriter *w, sh_error *e) {
  if (errno == ENOENT)
    return sh_fail(e, SH_ERR_NOT_FOUND, "%s: the folder in which it would be is not there; make it, or name another place", w->out);
  if (errno == ENOTDIR) return sh_fail(e, SH_ERR_ARG, "%s: a part of this path is a file, not a folder; name another place", w->out);
  return sh_fail(e, SH_ERR_IO, "%s: cannot make the folder: %s; name one where you may write", w->dir, strerror(errno));
}

/* The folder, locked. */
static int take_folder(sh_qwriter *w, sh_error *e) {
  struct stat mine, at;
  w->fresh = mkdir(w->dir, 0777) == 0;
  if (!w->fresh && errno != EEXIST) return fail_make(w, e);
  w->fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (w->fd < 0) return sh_fail(e, SH_ERR_IO, "%s: cannot open the folder: %s; remove it, or name another one", w->dir, strerror(errno));
  if (flock(w->fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      w->fresh = false; /* the other's */
      return sh_fail(e, SH_ERR_BUSY, "another run is writing %s; wait for it, or name another folder", w->out);
    }
    sh_log(SH_LOG_WARN, "%s: cannot lock the folder (%s): see that no second run writes it", w->dir, strerror(errno));
  }
  if (fstat(w->fd, &mine) == 0 && stat(w->dir, &at) == 0 && mine.st_ino == at.st_ino && mine.st_dev == at.st_dev) return 0;
  w->fresh = false;
  return sh_fail(e, SH_ERR_BUSY, "another run has just finished %s", w->out);
}

static int check_job(sh_qwriter *w, bool resume, sh_error *e) {
  char *path = sh_path_join(w->dir, SH_QW_JOB), *text = NULL, name[NAME_MAX + 1];
  size_t n = 0;
  int rc = path ? 0 : no_memory(e);
  if (!rc && sh_file_exists(path)) {
    rc = sh_file_read_regular(path, MAX_JOB, &text, &n, e);
    bool same = !rc && same_job(w, text, n);
    if (!rc && !resume) rc = sh_fail(e, SH_ERR_ARG, "%s is there from a run before; go on with it by --resume, or remove it", w->dir);
    else if (!rc && !same) rc = sh_qw_fail_other_job(w, w->dir, text, e);
  } else if (!rc) {
    sh_qw_remove(w, sh_qw_is_temporary); /* of a run that was killed while it wrote this */
    first_other(w->dir, none, name);
    if (name[0]) rc = sh_fail(e, SH_ERR_ARG, "%s is there and is not of a run before (%.80s is in it); remove it", w->dir, name);
    else if (!w->job_open) rc = sh_file_write_atomic(path, w->job, w->job_len, e);
  }
  sh_free(text);
  sh_free(path);
  return rc;
}

/* Whether a file of tensors is there and whole; one that is broken goes (a power cut on a disk that lies about syncing). */
static int look_at(const sh_qwriter *w, const char *name, bool *there, sh_error *e) {
  char *path = sh_path_join(w->dir, name);
  sh_st *st = NULL;
  *there = false;
  if (!path) return no_memory(e);
  int rc = sh_file_exists(path) ? sh_st_open(&st, path, e) : SH_ERR_NOT_FOUND;
  *there = !rc;
  if (rc == SH_ERR_FORMAT) (void)unlink(path);
  if (rc == SH_ERR_FORMAT || rc == SH_ERR_NOT_FOUND) rc = 0;
  sh_st_close(st);
  sh_free(path);
  return rc;
}

static void remove_parts(const sh_qwriter *w, int shard) {
  char name[SH_QW_NAME];
  for (int i = w->first[shard]; i < w->first[shard + 1]; i++) (void)unlinkat(w->fd, part_name(i, name), 0);
}

static int find_done(sh_qwriter *w, sh_error *e) {
  char name[SH_QW_NAME];
  int rc = 0;
  sh_qw_remove(w, sh_qw_is_temporary);
  for (int s = 0; s < w->n_shards && !rc; s++) {
    rc = look_at(w, sh_qw_shard_name(w, s, name), &w->written[s], e);
    for (int i = w->first[s]; i < w->first[s + 1] && !rc; i++) {
      if (w->written[s]) w->done[i] = true;
      else rc = look_at(w, part_name(i, name), &w->done[i], e);
    }
    if (!rc && w->written[s]) remove_parts(w, s);
  }
  return rc;
}

/* --- Room */

/* Bytes of the caller's files that are there. */
static int64_t spilled(const sh_qwriter *w) {
  int64_t sum = 0;
  struct stat st;
  DIR *d = opendir(w->dir);
  for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d)) {
    if (sh_str_starts(f->d_name, "spill-") && fstatat(dirfd(d), f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) sum += st.st_size;
  }
  if (d) closedir(d);
  return sum;
}

int sh_qwriter_room(const sh_qwriter *w, int64_t spill, sh_error *e) {
  struct statvfs v;
  struct rlimit lim;
  char need_text[32], free_text[32];
  int64_t there = spilled(w), need = SPARE + (spill > there ? spill - there : 0), largest = 0;
  for (int s = 0; s < w->n_shards; s++) {
    int64_t shard = 0;
    for (int i = w->first[s]; i < w->first[s + 1]; i++) {
      shard += w->bytes[i];
      if (!w->done[i]) need += w->bytes[i];
    }
    if (!w->written[s] && w->first[s + 1] - w->first[s] > 1 && shard > largest) largest = shard;
  }
  need += largest; /* a shard and its parts are there together for a while */
  if (!getrlimit(RLIMIT_FSIZE, &lim) && lim.rlim_cur != RLIM_INFINITY && (int64_t)lim.rlim_cur < largest + (1 << 20))
    return sh_fail(e, SH_ERR_IO, "files may have %lld bytes here, and %lld are needed; raise the limit (ulimit -f)",
                   (long long)lim.rlim_cur, (long long)largest + (1 << 20));
  if (fstatvfs(w->fd, &v) != 0 || !v.f_blocks) return 0; /* a file system that does not say */
  int64_t room = (int64_t)((uint64_t)v.f_bavail > (uint64_t)INT64_MAX / v.f_frsize ? (uint64_t)INT64_MAX : v.f_bavail * v.f_frsize);
  if (room >= need) return 0;
  return sh_fail(e, SH_ERR_IO, "%s: %s are needed on its disk and %s are free; make room, or name a folder on another disk", w->out,
                 sh_format_size(need, need_text), sh_format_size(room, free_text));
}

/* --- Parts */

bool sh_qwriter_has(const sh_qwriter *w, int part) { return part >= 0 && part < w->n_parts && w->done[part]; }
const char *sh_qwriter_dir(const sh_qwriter *w) { return w->dir; }

typedef struct opened {
  sh_st **st; /* [n] */
  int n;
  sh_ftensor *t; /* [count] of all */
  int count;
} opened;

static void close_parts(opened *p) {
  for (int i = 0; i < p->n; i++) sh_st_close(p->st[i]);
  sh_free(p->st);
  sh_free(p->t);
}

static int open_parts(const sh_qwriter *w, int shard, opened *p, sh_error *e) {
  char name[SH_QW_NAME];
  int n = w->first[shard + 1] - w->first[shard], rc = 0;
  p->st = sh_calloc((size_t)n, sizeof(sh_st *));
  if (!p->st) return no_memory(e);
  for (int i = 0; i < n && !rc; i++) {
    char *path = sh_path_join(w->dir, part_name(w->first[shard] + i, name));
    rc = path ? sh_st_open(&p->st[i], path, e) : no_memory(e);
    if (!rc) p->n++, p->count += sh_st_count(p->st[i]);
    sh_free(path);
  }
  if (rc) return rc;
  p->t = sh_calloc((size_t)p->count + 1, sizeof *p->t);
  if (!p->t) return no_memory(e);
  int at = 0;
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < sh_st_count(p->st[i]); k++) p->t[at++] = *sh_st_at(p->st[i], k);
  }
  return 0;
}

/* A tensor's bytes, piece by piece; what lies in a map is given back behind it, or a copied shard would be resident twice. */
static int put_pieces(void *ctx, const sh_ftensor *t, sh_file_out *o, sh_error *e) {
  (void)ctx;
  char path[SH_MAP_PATH];
  const size_t piece = (size_t)32 << 20;
  bool mapped = t->bytes > 0 && sh_map_path_of(t->data, path);
  int rc = 0;
  for (size_t at = 0, n; rc == 0 && at < t->bytes; at += n) {
    n = t->bytes - at < piece ? t->bytes - at : piece;
    rc = sh_file_out_write(o, t->data + at, n, e);
    if (mapped) sh_map_drop(t->data + at, n);
  }
  return rc;
}

int sh_qw_write_shard(sh_qwriter *w, int shard, sh_error *e) {
  if (w->written[shard]) return 0;
  char name[SH_QW_NAME], part[SH_QW_NAME];
  opened p = {0};
  int rc;
  sh_qw_shard_name(w, shard, name);
  if (w->first[shard + 1] - w->first[shard] == 1) { /* the same tensors in the same order: the same bytes */
    part_name(w->first[shard], part);
    rc = renameat(w->fd, part, w->fd, name) == 0
             ? 0
             : sh_fail(e, SH_ERR_IO, "%s/%s: cannot be renamed to %s: %s", w->dir, part, name, strerror(errno));
  } else {
    char *path = sh_path_join(w->dir, name);
    rc = path ? open_parts(w, shard, &p, e) : no_memory(e);
    if (!rc) rc = sh_st_write_from(path, p.t, p.count, put_pieces, NULL, e);
    close_parts(&p);
    sh_free(path);
  }
  if (rc) return sh_qwriter_kept(w, rc, e);
  w->written[shard] = true;
  remove_parts(w, shard);
  return 0;
}

int sh_qwriter_put(sh_qwriter *w, int part, const sh_ftensor *t, int n, sh_error *e) {
  return sh_qwriter_put_from(w, part, t, n, NULL, NULL, e);
}

int sh_qwriter_put_from(sh_qwriter *w, int part, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e) {
  char name[SH_QW_NAME];
  if (part < 0 || part >= w->n_parts) return sh_fail(e, SH_ERR_INTERNAL, "part %d of %d", part, w->n_parts);
  if (w->done[part]) return 0;
  char *path = sh_path_join(w->dir, part_name(part, name));
  int rc = path ? sh_st_write_from(path, t, n, source ? source : put_pieces, ctx, e) : no_memory(e);
  sh_free(path);
  if (rc) return sh_qwriter_kept(w, rc, e);
  w->done[part] = true;
  int s = shard_of(w, part);
  for (int i = w->first[s]; i < w->first[s + 1]; i++) {
    if (!w->done[i]) return 0;
  }
  return sh_qw_write_shard(w, s, e);
}

/* --- Opening and closing */

int sh_qwriter_open(sh_qwriter **out, const sh_qwriter_opts *o, sh_error *e) {
  *out = NULL;
  sh_qwriter *w = sh_calloc(1, sizeof *w);
  if (!w) return no_memory(e);
  w->fd = -1;
  w->source = o->source;
  w->keep_job = o->keep_job;
  w->bytes = o->bytes;
  w->go_on = o->go_on ? o->go_on : "go on with --resume";
  int rc = !o->source || (sh_dir_exists(sh_ckpt_path(o->source)) && !sh_ckpt_is_gguf(o->source))
               ? 0
               : sh_fail(e, SH_ERR_UNSUPPORTED, "%s is a GGUF; a Hugging Face folder is wanted to make one of", sh_ckpt_path(o->source));
  if (!rc) rc = make_plan(w, o, e);
  if (!rc) rc = make_job(w, o->job, o->job_open ? NULL : "", e);
  if (!rc) rc = set_out(w, o, e);
  if (!rc && !w->whole) rc = take_folder(w, e);
  if (!rc && !w->whole) rc = check_job(w, o->resume, e);
  if (!rc && !w->whole) rc = find_done(w, e);
  if (!rc && !w->whole) rc = sh_qwriter_room(w, 0, e);
  if (rc) {
    sh_qwriter_close(w);
    return rc;
  }
  *out = w;
  return 0;
}

bool sh_qwriter_whole(const sh_qwriter *w) { return w->whole; }

int sh_qwriter_job(sh_qwriter *w, const char *rest, sh_error *e) {
  char *begin = sh_strdup(w->job);
  int rc = !begin ? no_memory(e) : w->job_open ? make_job(w, begin, rest, e) : sh_fail(e, SH_ERR_INTERNAL, "the job is known already");
  sh_free(begin);
  return rc ? rc : check_job(w, true, e);
}

/* A run that did nothing leaves nothing. */
static void remove_empty(const sh_qwriter *w) {
  char name[NAME_MAX + 1];
  for (int i = 0; i < w->n_parts; i++) {
    if (w->done[i]) return;
  }
  first_other(w->dir, is_job, name);
  if (name[0]) return;
  (void)unlinkat(w->fd, SH_QW_JOB, 0);
  (void)rmdir(w->dir);
}

void sh_qwriter_close(sh_qwriter *w) {
  if (!w) return;
  if (w->fd >= 0 && w->fresh && w->done) remove_empty(w);
  if (w->fd >= 0) close(w->fd);
  sh_free(w->out);
  sh_free(w->dir);
  sh_free(w->job);
  sh_free(w->first);
  sh_free(w->done);
  sh_free(w->written);
  sh_free(w);
}
