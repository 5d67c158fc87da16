/* From a chat request's messages to the prompt text: prepares messages for the template as transformers and vLLM do, then runs it. */
#ifndef SH_TEXT_CHAT_H
#define SH_TEXT_CHAT_H

#include "base/json.h"
#include "text/jinja.h"

typedef struct sh_chat sh_chat;
/* Compiles the template and finds out whether it reads content as a list of parts or as a string. Caller frees with sh_chat_free;
 * immutable, thread-safe. */
int sh_chat_open(sh_chat **out, const char *template_text, size_t len, sh_error *e);
void sh_chat_free(sh_chat *c);
bool sh_chat_takes_parts(const sh_chat *c); /* false: lists of text parts are flattened to one string before rendering */

typedef struct sh_chat_input {
  const sh_json *messages; /* ARRAY of OBJECT, as in the request */
  const sh_json *tools;    /* ARRAY or NULL */
  const sh_json *kwargs;   /* OBJECT of extra template variables (chat_template_kwargs), or NULL */
  bool add_generation_prompt;
  bool continue_final_message;       /* the last message stays open; excludes add_generation_prompt */
  const char *bos_token, *eos_token; /* "" when none */
} sh_chat_input;

/* The template sees exactly the given variables: nothing is prepared (batch tool `sheng render`). vars: OBJECT. */
int sh_chat_render_raw(const sh_chat *c, const sh_json *vars, sh_buf *out, sh_error *e);
/* A request: checks roles and content types (SH_ERR_ARG names messages[i].field), parses string tool-call arguments to objects, passes
 * `reasoning` as reasoning_content, flattens text parts where the template wants strings, refuses image/audio/video parts
 * (SH_ERR_UNSUPPORTED), maps role "developer" to "system". Work memory in `a`. */
int sh_chat_render(const sh_chat *c, const sh_chat_input *in, sh_arena *a, sh_buf *out, sh_error *e);

#endif
