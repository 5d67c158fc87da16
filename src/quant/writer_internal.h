/* Shared by writer*.c only: the state of a folder that is being written. */
#ifndef SH_QUANT_WRITER_INTERNAL_H
#define SH_QUANT_WRITER_INTERNAL_H

#include "quant/writer.h"

#define SH_QW_JOB ".sheng-job" /* in OUT.partial: what is made; with keep_job in OUT too, else it goes last, after the rename */

struct sh_qwriter {
  char *out, *dir;       /* OUT and OUT.partial; owned */
  const sh_ckpt *source; /* or NULL */
  const char *go_on;
  char *job; /* text of the job's file: two lines of fields and the plan's; the first line while job_open; owned */
  size_t job_len;
  uint64_t plan;        /* which parts make a shard */
  const int64_t *bytes; /* [n_parts] estimated; borrowed */
  bool job_open, whole, keep_job;
  int64_t total; /* bytes of all tensors, known at the finish */
  int fd;        /* of the folder, which is locked by it; -1: none */
  int n_parts, n_shards;
  int *first;    /* [n_shards + 1] first part of a shard */
  bool *done;    /* [n_parts] */
  bool *written; /* [n_shards] */
  bool fresh;    /* the folder was made by this run */
};

enum { SH_QW_NAME = 64 };
const char *sh_qw_shard_name(const sh_qwriter *w, int shard, char name[SH_QW_NAME]);
/* Makes a shard of its parts, unless it is there. */
int sh_qw_write_shard(sh_qwriter *w, int shard, sh_error *e);
/* SH_ERR_ARG for an OUT in the model's folder, or a model in OUT or OUT.partial. */
int sh_qw_refuse_overlap(const sh_qwriter *w, sh_error *e);
/* SH_ERR_ARG: `theirs` is another job's text. At OUT.partial, or at OUT. */
int sh_qw_fail_other_job(const sh_qwriter *w, const char *where, const char *theirs, sh_error *e);
/* Removes what of a folder's files `is` says yes to. */
void sh_qw_remove(const sh_qwriter *w, bool (*is)(const char *name));
bool sh_qw_is_temporary(const char *name); /* left by a killed run */

#endif
