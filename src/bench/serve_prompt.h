/* The requests of a load: prompts of a wanted length without a tokenizer, or those of a file. Any thread; fixed by the seed. */
#ifndef SH_BENCH_SERVE_PROMPT_H
#define SH_BENCH_SERVE_PROMPT_H

#include "base/json.h"
#include "bench/serve_dist.h"

/* A file of {"messages": [...]} or {"prompt": "..."} lines, each with an optional "max_tokens". */
typedef struct sh_bfile {
  const sh_json *v; /* [n] objects, checked; in the arena */
  size_t n;
  sh_arena *private_arena;
} sh_bfile;
/* want_prompts: every line must have messages or a prompt; want_lengths: a max_tokens. chat: false refuses messages. */
int sh_bfile_load(sh_bfile *f, const char *path, bool want_prompts, bool want_lengths, bool chat, sh_error *e);
void sh_bfile_free(sh_bfile *f); /* accepts a zeroed struct */

typedef struct sh_bprompts {
  bool chat; /* /v1/chat/completions, else /v1/completions */
  const char *model;
  sh_blen input, output;    /* tokens */
  sh_bfile inputs, outputs; /* of input and output, where those are files */
  int64_t shared, groups;   /* tokens of a beginning that a group's prompts share; how many groups */
  bool ignore_eos;
  double temperature; /* negative: not sent */
  uint64_t seed;
  double tokens_per_word, overhead; /* found by calibration: tokens = overhead + words * tokens_per_word */
} sh_bprompts;

/* n words drawn by r, with blanks between. */
void sh_bprompt_words(sh_buf *out, sh_brng *r, int64_t n);
/* A request of so many words, not streamed, one token of answer: what calibration sends. */
void sh_bprompt_probe(const sh_bprompts *p, int64_t words, sh_buf *out);
/* From the prompt tokens of two probes of words[0] and words[1]. SH_ERR_FORMAT: they make no sense. */
int sh_bprompt_calibrate(sh_bprompts *p, const int64_t words[2], const int64_t tokens[2], sh_error *e);
/* The body of request `index`. `row` sets the texts of one part of a run apart from those of another, so that no part finds the other's
 * prefixes cached; lengths are the same in all. *output_tokens: the answer's limit. 0, or the buffer's error. */
int sh_bprompt_body(const sh_bprompts *p, uint64_t row, uint64_t index, sh_buf *out, int64_t *output_tokens);

#endif
