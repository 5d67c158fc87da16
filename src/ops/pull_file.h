/* One file of a pull on disk: what is there already, the part file that is being filled, its journal, its checksum, its final name. */
#ifndef SH_OPS_PULL_FILE_H
#define SH_OPS_PULL_FILE_H

#include "ops/hub.h"

typedef enum sh_pfile_state {
  SH_PFILE_NEW,    /* nothing decided yet */
  SH_PFILE_VERIFY, /* a file of the right size has the final name; its hash is being computed */
  SH_PFILE_LOAD,   /* bytes are missing in the part file, or still have to be hashed */
  SH_PFILE_HAVE,   /* was there and is right */
  SH_PFILE_DONE,   /* was downloaded and has its final name */
} sh_pfile_state;

/* Invariants while LOAD: got[i] is the number of bytes present from the start of part i on, at most its length; hashed <= the first byte
 * that is missing. */
typedef struct sh_pfile {
  const sh_hub_file *remote; /* borrowed */
  sh_pfile_state state;
  char *final_path, *part_path, *journal_path; /* owned */
  int fd, journal_fd;                          /* -1: closed */
  int64_t part_size;                           /* bytes of a part, the last may be shorter */
  int n_parts;
  int64_t *got;      /* [n_parts] bytes; owned */
  char etag[128];    /* of the remote's bytes, when the hub gives no hash; "" unknown */
  int64_t hashed;    /* bytes */
  int private_front; /* the first part that is not whole */
  bool private_hashing;
  sh_sha private_sha;
} sh_pfile;

/* dir: the model's folder. part_size: for a new download; one that goes on keeps its own. Nothing is opened yet. */
int sh_pfile_init(sh_pfile *f, const char *dir, const sh_hub_file *remote, int64_t part_size, sh_error *e);
void sh_pfile_free(sh_pfile *f); /* closes; accepts a zeroed struct. Part file and journal stay */

void sh_pfile_close(sh_pfile *f); /* its descriptors only */

/* Bytes of the part file that take up disk now: what a pull need not find free again. 0 when there is none. */
int64_t sh_pfile_on_disk(const sh_pfile *f);

/* Begins hashing the file under the final name: state VERIFY. */
int sh_pfile_verify(sh_pfile *f, sh_error *e);
/* Opens the part file, with what its journal says is in it when that belongs to the same bytes: state LOAD. */
int sh_pfile_load(sh_pfile *f, sh_error *e);
/* Forgets everything that was downloaded of it; it stays open. */
int sh_pfile_restart(sh_pfile *f, sh_error *e);

int64_t sh_pfile_part_len(const sh_pfile *f, int part);
int64_t sh_pfile_got(const sh_pfile *f);           /* bytes present */
int sh_pfile_missing(const sh_pfile *f, int from); /* the first part >= from that is not whole; n_parts: none */
bool sh_pfile_whole(const sh_pfile *f);            /* every byte is present */
/* Writes bytes at `at` = the end of what is present of their part; they may run on into the next parts. */
int sh_pfile_write(sh_pfile *f, int64_t at, const char *p, size_t n, sh_error *e);
int sh_pfile_set_etag(sh_pfile *f, const char *etag, sh_error *e);
/* Journals how far a part is. */
int sh_pfile_note(sh_pfile *f, int part, sh_error *e);

/* Hashes up to `budget` bytes of what is present. *more: there were any. In LOAD and VERIFY. */
int sh_pfile_hash(sh_pfile *f, int64_t budget, bool *more, sh_error *e);
/* When all is hashed: are these the bytes the hub lists? True without a hash to compare with. */
bool sh_pfile_right(sh_pfile *f);
/* Gives the part file its final name; state DONE. *mtime_ns for the manifest. */
int sh_pfile_finish(sh_pfile *f, sh_error *e);
int sh_pfile_mtime(const sh_pfile *f, int64_t *mtime_ns, sh_error *e);

#endif
