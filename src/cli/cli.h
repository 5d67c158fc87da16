/* The subcommands of sheng. main() owns the table; each command owns its options and returns an exit status: 0, 1 (it failed), 2 (it was
 * called wrongly). */
#ifndef SH_CLI_CLI_H
#define SH_CLI_CLI_H

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/opt.h"
#include "formats/checkpoint.h"
#include "sheng.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include <stdio.h>

#define SH_CLI_MODEL_IS "a Hugging Face folder, a .gguf file or the name of a pulled model"

enum { SH_EXIT_OK = 0, SH_EXIT_FAILURE = 1, SH_EXIT_USAGE = 2 };

/* argv[0] is the subcommand's own name. */
int sh_cmd_serve(int argc, char **argv);
int sh_cmd_run(int argc, char **argv);
int sh_cmd_pull(int argc, char **argv);
int sh_cmd_inspect(int argc, char **argv);
int sh_cmd_tokenize(int argc, char **argv);
int sh_cmd_detokenize(int argc, char **argv);
int sh_cmd_render(int argc, char **argv);
int sh_cmd_generate(int argc, char **argv);
int sh_cmd_logits(int argc, char **argv);
int sh_cmd_quantize(int argc, char **argv);
int sh_cmd_version(int argc, char **argv);
int sh_cmd_help(int argc, char **argv);

typedef struct sh_cli_command {
  const char *name, *args; /* "serve", "MODEL [options]" */
  int (*run)(int argc, char **argv);
  const char *line;                                             /* what it does, one line */
  void (*options)(const sh_opt **table, const void **defaults); /* for the docs page; NULL when it has none */
} sh_cli_command;

extern const sh_cli_command sh_cli_commands[]; /* ends with name == NULL */

/* --- What commands share (common.c) --- */

/* Prints "sheng NAME: sentence" to stderr and returns SH_EXIT_FAILURE, or SH_EXIT_USAGE for SH_ERR_ARG at parsing when `usage` is set. */
int sh_cli_fail(const char *name, const sh_error *e, bool usage);

/* Parses a command's options. "--help" prints the help text and sets *done. *model is the only positional (NULL when `need_model` is false
 * and none was given). Returns 0, or an exit status after an error was printed. */
typedef struct sh_cli_parse {
  const char *name, *usage;
  const sh_opt *table;
  void *opts;
  const void *defaults;
  bool need_model;
} sh_cli_parse;
int sh_cli_options(const sh_cli_parse *p, int argc, char **argv, const char **model, bool *done);

/* The path of the model a user named: a file or folder of that name, else what `sheng pull` stored under it. NULL: the model beside the
 * program (ops/small_model.h); a line on stderr says so. *path: allocated (sh_free). Returns an exit status, after an error was printed. */
int sh_cli_find_model(const char *command, const char *model, char **path);

/* The docs page docs/options.md: every command and every option, from the tables. */
int sh_cli_no_command(const char *name); /* says so and lists the commands, on stderr; the exit status */
int sh_cli_markdown(sh_buf *out);

/* The next line, without its end, NUL-terminated. SH_ERR_NOT_FOUND: the input is over; SH_ERR_CANCELLED: a signal came; SH_ERR_IO;
 * SH_ERR_LIMIT or SH_ERR_NOMEM: line is full. */
int sh_cli_read_line(FILE *in, sh_buf *line);

/* JSON lines: calls `fn` for every line of `in`; it appends one line's answer (without the newline) to `out`. A line that is not JSON, or
 * for which fn fails, is answered {"error": sentence}; the run goes on. Returns an exit status: SH_EXIT_FAILURE only when reading or
 * writing fails. */
typedef int (*sh_cli_line_fn)(void *ctx, const sh_json *line, sh_arena *a, sh_buf *out, sh_error *e);
int sh_cli_lines(const char *name, FILE *in, FILE *out, sh_cli_line_fn fn, void *ctx);

/* Appends {"text": ...}, the answer line of detokenize and render. */
void sh_cli_put_text(sh_buf *out, const sh_buf *text);

/* The text of --chat-template: `value` itself when it holds "{{" or "{%", else the file it names. Allocated (sh_free). */
int sh_cli_template(const char *value, char **text, size_t *len, sh_error *e);

#endif
