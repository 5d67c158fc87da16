/* From the texts of a request to token ids, on a text worker. */
#ifndef SH_SERVER_PROMPT_H
#define SH_SERVER_PROMPT_H

#include "server/params.h"
#include "server/state.h"

/* Tokenizes; the ids live in the arena. `field` is named in errors. */
int sh_prompt_encode(const sh_call *c, const char *text, size_t n, bool add_special, const char *field, int32_t **ids, int *n_ids,
                     sh_api_error *e);
/* An ARRAY of ids, checked against the vocabulary. */
int sh_prompt_ids(const sh_call *c, const sh_json *list, const char *field, int32_t **ids, int *n_ids, sh_api_error *e);
/* truncate_prompt_tokens: keeps the last ones. Returns true when something was cut. */
bool sh_prompt_truncate(const sh_call *c, const sh_params *p, int64_t max_tokens, int32_t **ids, int *n_ids);
/* Renders the request's messages; template and variables from server, defaults and request. The text is in *out (caller frees). */
int sh_prompt_chat(const sh_call *c, const sh_params *p, sh_buf *out, sh_api_error *e);
/* The text of ids, special tokens included, in the arena. */
int sh_prompt_decode(const sh_call *c, const int32_t *ids, int n_ids, const char **text, size_t *n, sh_api_error *e);

#endif
