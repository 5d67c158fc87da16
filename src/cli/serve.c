/* `sheng serve MODEL`: options, then the server. Main thread. */
#include "server/server.h"
#include "cli/cli.h"
#include <string.h>

int sh_cmd_serve(int argc, char **argv) {
  sh_serve_options o = sh_serve_option_defaults;
  const sh_cli_parse parse = {"serve", "sheng serve MODEL [options]", sh_serve_option_table, &o, &sh_serve_option_defaults, true};
  sh_error e = {0};
  char *template = NULL;
  size_t n = 0;
  bool done;
  int status = sh_cli_options(&parse, argc, argv, &o.model, &done);
  if (status == SH_EXIT_OK && !done) {
    if (sh_serve_options_check(&o, &e) != SH_OK) status = sh_cli_fail("serve", &e, true);
    else if (o.chat_template && sh_cli_template(o.chat_template, &template, &n, &e) != SH_OK) status = sh_cli_fail("serve", &e, false);
    else if (sh_server_run(&o, template, &e) != SH_OK) status = sh_cli_fail("serve", &e, false);
  }
  sh_free(template);
  sh_free((void *)o.served_names.v);
  sh_free((void *)o.api_keys.v);
  sh_free((void *)o.api_keys_vllm.v);
  return status;
}
