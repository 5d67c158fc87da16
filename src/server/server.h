/* The server as main sees it. */
#ifndef SH_SERVER_SERVER_H
#define SH_SERVER_SERVER_H

#include "server/options.h"

/* Serves until a signal ends it. `chat_template`: the text in place of the model's, or NULL. Blocks; returns 0 after an orderly end. */
int sh_server_run(const sh_serve_options *o, const char *chat_template, sh_error *e);

#endif
