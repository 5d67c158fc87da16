/* `sheng serve [MODEL]`: options, then the server. Main thread. A model from the store is served under the name it was pulled by. */
#include "server/server.h"
#include "cli/cli.h"
#include "ops/small_model.h"
#include <string.h>

/* Puts the model's path in place of its name, which becomes the served name unless others are given. */
static int find_model(sh_serve_options *o, char **path) {
  const char *name = o->model ? o->model : SH_SMALL_MODEL;
  int status = sh_cli_find_model("serve", o->model, path);
  if (status != SH_EXIT_OK) return status;
  o->model = *path;
  if (o->served_names.n) return SH_EXIT_OK;
  const char **v = sh_malloc(sizeof *v);
  if (!v) return SH_EXIT_FAILURE;
  *v = name;
  o->served_names.v = v;
  o->served_names.n = 1;
  return SH_EXIT_OK;
}

int sh_cmd_serve(int argc, char **argv) {
  sh_serve_options o = sh_serve_option_defaults;
  const sh_cli_parse parse = {"serve", "sheng serve [MODEL] [options]", sh_serve_option_table, &o, &sh_serve_option_defaults, false};
  sh_error e = {0};
  char *template = NULL, *path = NULL;
  size_t n = 0;
  bool done;
  int status = sh_cli_options(&parse, argc, argv, &o.model, &done);
  if (status == SH_EXIT_OK && !done) {
    if (sh_serve_options_check(&o, &e) != SH_OK) status = sh_cli_fail("serve", &e, true);
    else if ((status = find_model(&o, &path)) != SH_EXIT_OK) { /* said */
    } else if (o.chat_template && sh_cli_template(o.chat_template, &template, &n, &e) != SH_OK) status = sh_cli_fail("serve", &e, false);
    else if (sh_server_run(&o, template, &e) != SH_OK) status = sh_cli_fail("serve", &e, false);
  }
  sh_free(template);
  sh_free(path);
  sh_free((void *)o.served_names.v);
  sh_free((void *)o.api_keys.v);
  sh_free((void *)o.api_keys_vllm.v);
  return status;
}
