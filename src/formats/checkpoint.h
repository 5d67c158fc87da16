/* A checkpoint: a Hugging Face folder (model.safetensors, or shards behind model.safetensors.index.json) or a GGUF file (split files too),
 * opened as one set of named tensors over read-only maps, plus its metadata. Nothing is converted here; names are those of the file. Errors
 * say the file, what was found and what was wanted; truncated, overlapping, oversized and contradicting entries are refused before use. */
#ifndef SH_FORMATS_CHECKPOINT_H
#define SH_FORMATS_CHECKPOINT_H

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

typedef struct sh_ckpt sh_ckpt;

enum { SH_CKPT_TOKENIZER_ONLY = 1 }; /* flags: do not demand config.json or weights (tokenize, detokenize, render) */

/* path: a folder, a .gguf file, or a folder that holds exactly one (unsplit or split) .gguf and no config.json. Caller frees with
 * sh_ckpt_close. */
int sh_ckpt_open(sh_ckpt **out, const char *path, unsigned flags, sh_error *e);
void sh_ckpt_close(sh_ckpt *c); /* accepts NULL; every borrowed view dies */

const char *sh_ckpt_path(const sh_ckpt *c);   /* as it was given to the open */
const char *sh_ckpt_folder(const sh_ckpt *c); /* in which its files lie: the path itself, or that of the .gguf's folder ("." for none) */
bool sh_ckpt_is_gguf(const sh_ckpt *c);
const sh_gguf *sh_ckpt_gguf(const sh_ckpt *c); /* NULL for a folder */
/* Parsed side files of a folder, NULL when absent (GGUF: all NULL). Borrowed. A present but broken file fails the open, naming it. */
const sh_json *sh_ckpt_config(const sh_ckpt *c);            /* config.json */
const sh_json *sh_ckpt_generation_config(const sh_ckpt *c); /* generation_config.json */
const sh_json *sh_ckpt_tokenizer_config(const sh_ckpt *c);  /* tokenizer_config.json */
/* Text of "tokenizer.json" (NULL when absent), borrowed from a map: not NUL-terminated; and of the chat template: chat_template.jinja, else
 * tokenizer_config.json's chat_template (a string, or the list form's "default"), else chat_template.json's, else GGUF
 * tokenizer.chat_template; NULL when there is none. */
const char *sh_ckpt_tokenizer_json(const sh_ckpt *c, size_t *len);
const char *sh_ckpt_chat_template(const sh_ckpt *c, size_t *len);
const char *sh_ckpt_template_source(const sh_ckpt *c); /* which of them, in words; NULL when there is none */

int sh_ckpt_count(const sh_ckpt *c);
const sh_ftensor *sh_ckpt_at(const sh_ckpt *c, int i);              /* in a stable order */
const sh_ftensor *sh_ckpt_find(const sh_ckpt *c, const char *name); /* O(1); NULL when absent */
int sh_ckpt_index(const sh_ckpt *c, const char *name);              /* its number for sh_ckpt_at; -1 when absent */
size_t sh_ckpt_bytes(const sh_ckpt *c);                             /* bytes of all tensors */
/* Refuses a tensor (SH_ERR_FORMAT): "PATH: tensor NAME: shape [..] is wanted, [..] is found". */
int sh_ckpt_fail_shape(const sh_ckpt *c, const sh_ftensor *t, const int64_t *want, int n, sh_error *e);

/* Single tensors of a folder will be read, not all of it: the system shall not read ahead on its own. A folder is opened so; false ends it,
 * before the weights are used. */
void sh_ckpt_sparse(const sh_ckpt *c, bool on);

/* The files of the weights, in a stable order. */
typedef struct sh_ckpt_file {
  const char *name;    /* in sh_ckpt_folder; borrowed */
  const uint8_t *head; /* what stands before the data; borrowed from the map */
  size_t head_bytes;
  size_t bytes; /* of the file when it was mapped */
} sh_ckpt_file;
bool sh_ckpt_file_at(const sh_ckpt *c, int i, sh_ckpt_file *out); /* false: there is no file i */

#endif
