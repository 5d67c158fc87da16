/* Log probabilities as the three JSON shapes of the API. Each function appends entries to comma-separated lists, without the brackets, so
 * that they can be written as the events come and put into a chunk or an answer later. */
#ifndef SH_SERVER_LOGPROBS_H
#define SH_SERVER_LOGPROBS_H

#include "base/mem.h"
#include "sheng.h"

typedef struct sh_lp {
  const sh_tok *tok;
  bool as_ids;
} sh_lp; /* as_ids: tokens are written token_id:N */

/* /v1/chat/completions: {"token","logprob","bytes","top_logprobs":[...]}; the `max_top` best ones. */
void sh_lp_chat(const sh_lp *lp, const sh_event *ev, int max_top, sh_buf *list);

/* /v1/completions: four parallel lists; offsets count characters from *offset on. ev NULL: the first prompt token `id`, which has no
 * probability. */
typedef struct sh_lp_lists {
  sh_buf tokens, token_logprobs, top_logprobs, text_offset;
} sh_lp_lists;
void sh_lp_lists_init(sh_lp_lists *l, size_t max_bytes);
void sh_lp_lists_free(sh_lp_lists *l);
void sh_lp_lists_reset(sh_lp_lists *l);
void sh_lp_completion(const sh_lp *lp, const sh_event *ev, int32_t id, int max_top, int64_t *offset, sh_lp_lists *l);

/* prompt_logprobs: {"<id>": {"logprob","rank","decoded_token"}, ...}. */
void sh_lp_prompt(const sh_lp *lp, const sh_event *ev, int max_top, sh_buf *list);

/* Characters (code points) of text. */
int64_t sh_lp_chars(const char *s, size_t n);

/* A key whose value is a list made by the functions above; the brackets are put. */
void sh_jw_list(sh_jw *w, const char *key, const sh_buf *list);
void sh_jw_ids(sh_jw *w, const char *key, const int32_t *ids, size_t n);

#endif
