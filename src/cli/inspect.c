/* `sheng inspect MODEL`: options, then ops/inspect. Main thread. The report goes to stdout; the exit status is 0 when serve will start. */
#include "cli/cli.h"
#include "base/log.h"
#include "ops/inspect.h"

enum { MAX_REPORT = 256 << 20 }; /* bytes */

int sh_cmd_inspect(int argc, char **argv) {
  sh_inspect_options o = sh_inspect_option_defaults;
  const sh_cli_parse parse = {
      "inspect", "sheng inspect MODEL [--json] [--context TOKENS ...]", sh_inspect_option_table, &o, &sh_inspect_option_defaults, true};
  sh_error e = {0};
  sh_buf out;
  const char *model;
  char *path = NULL;
  bool done, will_start = false;
  int status = sh_cli_options(&parse, argc, argv, &model, &done);
  sh_buf_init(&out, MAX_REPORT);
  if (status == SH_EXIT_OK && !done && (status = sh_cli_find_model("inspect", model, &path)) == SH_EXIT_OK) {
    o.model = path;
    sh_log_set_level(SH_LOG_ERROR); /* what the parts would log is in the report */
    if (sh_inspect_run(&o, &out, &will_start, &e) != SH_OK) status = sh_cli_fail("inspect", &e, true);
    else if (fwrite(out.p, 1, out.len, stdout) != out.len || fflush(stdout)) status = SH_EXIT_FAILURE;
    else status = will_start ? SH_EXIT_OK : SH_EXIT_FAILURE;
  }
  sh_buf_free(&out);
  sh_free(path);
  sh_free((void *)o.context.v);
  return status;
}
