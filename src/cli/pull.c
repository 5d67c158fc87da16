/* `sheng pull NAME`: options, then ops/pull. Main thread. */
#include "ops/pull.h"
#include "cli/cli.h"

int sh_cmd_pull(int argc, char **argv) {
  sh_pull_options o = sh_pull_option_defaults;
  const sh_cli_parse parse = {"pull", "sheng pull OWNER/NAME [options]", sh_pull_option_table, &o, &sh_pull_option_defaults, false};
  sh_error e = {0};
  char *path = NULL;
  bool done;
  int status = sh_cli_options(&parse, argc, argv, &o.name, &done);
  if (status == SH_EXIT_OK && !done && !o.name) {
    fprintf(stderr, "sheng pull: NAME is missing: the model's name at the hub, for example Qwen/Qwen3.5-4B\n");
    status = SH_EXIT_USAGE;
  } else if (status == SH_EXIT_OK && !done) {
    if (sh_pull_run(&o, &path, &e) != SH_OK) status = sh_cli_fail("pull", &e, false);
    else printf("%s\n", path);
  }
  sh_free(path);
  sh_free((void *)o.include.v);
  return status;
}
