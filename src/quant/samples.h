/* A text as sequences of token ids: what a quantization is calibrated on and what it is measured on. */
#ifndef SH_QUANT_SAMPLES_H
#define SH_QUANT_SAMPLES_H

#include "base/err.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct sh_samples {
  int n;
  int32_t **ids;  /* [n] of [len[i]]; owned */
  int *len;       /* [n], tokens, each at least 1 and at most seq_len */
  int *line;      /* [n], the line the sample begins in, from 1 */
  int64_t tokens; /* sum of len */
  int skipped;    /* dialogues of a text of the program that were left out: there is no template that takes them */
  int private_cap;
} sh_samples;

/* How lines become samples. A plain text is one line, cut to windows in each case. */
typedef enum sh_samples_how {
  SH_SAMPLES_LINES = 0,   /* a line is a sample, cut off at seq_len */
  SH_SAMPLES_PACK = 1,    /* lines are joined and cut to full windows of seq_len; what is left over is dropped if there is any window */
  SH_SAMPLES_WINDOWS = 2, /* a line is as many samples of seq_len as it needs, the last one shorter */
} sh_samples_how;

enum { SH_SAMPLES_MAX_FILE = 256 << 20, SH_SAMPLES_MAX_PROMPT = 64 << 20 }; /* bytes */

/* Reads the file `path` (JSONL when its name ends in .jsonl, .ndjson or .json or its first line is a JSON object, else plain text) or, with
 * path NULL, the JSONL text[0..len). Lines of JSONL: {"text": string}, or {"messages": [...], "tools"?: [...], "enable_thinking"?:
 * boolean}, which the chat template renders as a whole (chat NULL, or it raises: an error in a file; left out and counted in a text of the
 * program). A wrong line is SH_ERR_FORMAT with its number, what was found and what was wanted. max_samples 0: all. seed: the order of the
 * lines, 0 as they stand. At least one sample comes out (SH_ERR_ARG otherwise). Caller frees with sh_samples_free, after a failure too. */
int sh_samples_load(sh_samples *out, const char *path, const char *text, size_t len, const sh_tok *tok, const sh_chat *chat,
                    int max_samples, int seq_len, sh_samples_how how, uint64_t seed, sh_error *e);
/* Adds a copy of ids [n], n >= 1. SH_ERR_NOMEM. */
int sh_samples_add(sh_samples *s, const int32_t *ids, size_t n, int line, sh_error *e);
void sh_samples_free(sh_samples *s); /* accepts a zeroed struct */

/* The prompt or dialogue of one JSON object of such a line, or of a task: "text" or "prompt" as it stands, "messages" through the template
 * (generation prompt added when asked for). Appends its ids. */
int sh_samples_encode(const sh_json *line, bool generation_prompt, const sh_tok *tok, const sh_chat *chat, sh_arena *a, sh_ids *ids,
                      sh_error *e);

#endif
