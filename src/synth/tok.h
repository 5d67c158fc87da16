/* The tokenizer of a random model: made up, with the real vocabulary's size and special tokens, or a real one's files. */
#ifndef SH_SYNTH_TOK_H
#define SH_SYNTH_TOK_H

#include "formats/checkpoint.h"
#include "formats/gguf_write.h"
#include "quant/writer.h"
#include "synth/shapes.h"
#include "text/tokenizer.h"

enum { SH_SYNTH_FILES = 16 };

typedef struct sh_synth_tok {
  sh_qfile files[SH_SYNTH_FILES]; /* [n_files] what a folder gets: tokenizer.json and its like */
  int n_files;
  int32_t endoftext, im_end; /* ids of <|endoftext|> and <|im_end|> */
  const char *chat_template; /* [template_len]; NULL: none */
  size_t template_len;
  sh_tok *private_tok;
  sh_ckpt *private_dir;                                     /* the folder whose tokenizer it is, or NULL */
  char *private_json, *private_config, *private_generation; /* owned */
  char *private_text[SH_SYNTH_FILES];                       /* of files that were read, owned */
} sh_synth_tok;

/* dir: a folder with tokenizer.json whose tokenizer is taken; NULL: one is made up. generation_config.json is among the files in any case.
 * Caller frees with sh_synth_tok_free. */
int sh_synth_tok_make(sh_synth_tok *t, const sh_synth_shape *s, const char *dir, sh_error *e);
void sh_synth_tok_free(sh_synth_tok *t); /* accepts a zeroed struct */
/* The tokenizer.* keys of a GGUF, padded to the rows of the embedding. SH_ERR_UNSUPPORTED: text is split otherwise than the names of GGUF
 * say. */
int sh_synth_tok_put(const sh_synth_tok *t, const sh_synth_shape *s, sh_gguf_out *g, sh_error *e);

#endif
