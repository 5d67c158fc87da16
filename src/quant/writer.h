/* A Hugging Face folder that is written part by part and appears as a whole.
 *
 * OUT.partial/ beside OUT holds what is done: one file of tensors per part, written under a temporary name and renamed, so a killed run
 * finds whole parts or none. Consecutive parts become a shard as soon as all of them are there, then the parts go. The last step writes the
 * index, the config, the model's side files and the card, syncs, and renames the folder to OUT. Until then nothing that loads is at OUT.
 * The same parts give the same bytes, interrupted or not. One thread. */
#ifndef SH_QUANT_WRITER_H
#define SH_QUANT_WRITER_H

#include "base/err.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/tensor.h"
#include "quant/codes.h"

typedef struct sh_qwriter sh_qwriter;

typedef struct sh_qwriter_opts {
  const char *path;      /* OUT: must not exist, or be an empty folder */
  const sh_ckpt *source; /* a folder; its side files are copied (tokenizer, template, generation_config, vocab, merges, preprocessor, ...).
                            NULL: there is none, the side files are given to the finish */
  int n_parts;           /* what sh_qwriter_put will be called for, 0 .. n_parts - 1 */
  const int64_t *
      bytes; /* [n_parts] estimated, borrowed until the close: decides which parts share a shard (at most shard_bytes, at least one part) */
  int64_t shard_bytes; /* 0: 4 GB */
  const char *job;     /* one line: what is made of what. Fields between tabs, each a "name: value" in words that a user knows, for messages
                          say which of them differ ("--w-bit: 4\tthe size of x.safetensors: 12"); no name twice */
  bool job_open;       /* there are fields that are not known yet: sh_qwriter_job brings them, before anything is put */
  bool keep_job;       /* the job's file stays in OUT: a later run with resume knows its own work by it (sh_qwriter_whole) */
  bool resume;         /* go on with OUT.partial, or find OUT whole, if its job is the same (SH_ERR_ARG with what differs if not); false:
                          one that is there is SH_ERR_ARG, saying --resume or what to remove */
  const char *go_on;   /* how one goes on after a failure, as messages say it; NULL: "go on with --resume" */
} sh_qwriter_opts;

/* Checks that the target can be written and that the disk has room for the sum of bytes (SH_ERR_IO, both numbers), locks OUT.partial
 * against a second run. Caller frees with sh_qwriter_close, which leaves OUT.partial for a later --resume. */
int sh_qwriter_open(sh_qwriter **out, const sh_qwriter_opts *o, sh_error *e);
void sh_qwriter_close(sh_qwriter *w);            /* accepts NULL */
const char *sh_qwriter_dir(const sh_qwriter *w); /* OUT.partial: for the caller's own spill files, which the finish removes ("spill-*") */
/* A run before made all of OUT (only with keep_job and resume): nothing is locked and nothing may be put. */
bool sh_qwriter_whole(const sh_qwriter *w);
/* Whether the disk has room for the rest of the folder and `spill` bytes of the caller's own files (those that are there count as such). */
int sh_qwriter_room(const sh_qwriter *w, int64_t spill, sh_error *e);
/* Puts "what is done is kept" behind the sentence of a write that failed (SH_ERR_IO); returns rc. For the caller's own files. */
int sh_qwriter_kept(const sh_qwriter *w, int rc, sh_error *e);
/* The rest of the job's fields. SH_ERR_ARG when OUT.partial holds another job. */
int sh_qwriter_job(sh_qwriter *w, const char *rest, sh_error *e);
bool sh_qwriter_has(const sh_qwriter *w, int part); /* done already, in this run or one before */
/* Writes a part: names, types, dims, data and bytes filled in; data may lie in a map. */
int sh_qwriter_put(sh_qwriter *w, int part, const sh_ftensor *t, int n, sh_error *e);
/* The same with bytes from a source, as sh_st_write_from. */
int sh_qwriter_put_from(sh_qwriter *w, int part, const sh_ftensor *t, int n, sh_tensor_source source, void *ctx, sh_error *e);
/* config: text of the new config.json; card: of README.md. extra: further files [n_extra] (name, text), such as the evaluation's report. */
typedef struct sh_qfile {
  const char *name, *text;
  size_t len;
} sh_qfile;
int sh_qwriter_finish(sh_qwriter *w, const char *config, const char *card, const sh_qfile *extra, int n_extra, sh_error *e);
int64_t sh_qwriter_bytes(const sh_qwriter *w); /* of all tensors of the finished folder, whichever run wrote them */

/* The source's config.json with "quantization_config" set for the layout. An existing one is replaced. */
int sh_qconfig_text(const sh_json *config, const sh_qscheme *s, sh_buf *out, sh_error *e);

#endif
