/* What the commands share: option parsing with its messages, JSON lines, chat template arguments. Main thread.
 *
 * A JSON line may have MAX_LINE bytes; it has its own arena and dies with its answer. Output is flushed per line: the tools are used in
 * pipes by programs that wait for the answer. */
#include "cli/cli.h"
#include "base/file.h"
#include "base/log.h"
#include "ops/pull.h"
#include "ops/small_model.h"
#include <errno.h>
#include <string.h>

enum { MAX_LINE = 1 << 30, MAX_TEMPLATE = 16 << 20 }; /* bytes */

/* The sentence may quote a file, a hub's answer or a template: nothing of it may reach the terminal as an escape sequence. */
int sh_cli_fail(const char *name, const sh_error *e, bool usage) {
  sh_log_plain("sheng %s: %s", name, e->text);
  return usage && e->code == SH_ERR_ARG ? SH_EXIT_USAGE : SH_EXIT_FAILURE;
}

static int print_help(const sh_cli_parse *p) {
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  int rc = sh_opt_help(p->table, p->defaults, p->usage, &b);
  if (rc == 0) fwrite(b.p, 1, b.len, stdout);
  sh_buf_free(&b);
  return rc == 0 ? SH_EXIT_OK : SH_EXIT_FAILURE;
}

int sh_cli_options(const sh_cli_parse *p, int argc, char **argv, const char **model, bool *done) {
  sh_strlist rest = {0};
  sh_error e;
  *model = NULL;
  *done = false;
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
    *done = true;
    return print_help(p);
  }
  if (sh_opt_parse(p->table, p->opts, argc, argv, &rest, &e) != SH_OK) return sh_cli_fail(p->name, &e, true);
  int status = SH_EXIT_OK;
  if (rest.n > 1) {
    fprintf(stderr, "sheng %s: '%s' is one argument too many (usage: %s)\n", p->name, rest.v[1], p->usage);
    status = SH_EXIT_USAGE;
  } else if (rest.n == 1) {
    *model = rest.v[0];
  } else if (p->need_model) {
    fprintf(stderr, "sheng %s: MODEL is missing: " SH_CLI_MODEL_IS " (usage: %s)\n", p->name, p->usage);
    status = SH_EXIT_USAGE;
  }
  sh_free((void *)rest.v);
  return status;
}

int sh_cli_find_model(const char *command, const char *model, char **path) {
  sh_error e = {0};
  if (model) return sh_pull_find(model, path, &e) == SH_OK ? SH_EXIT_OK : sh_cli_fail(command, &e, false);
  if (sh_small_model_find(path, &e) != SH_OK) {
    fprintf(stderr, "sheng %s: MODEL is missing: " SH_CLI_MODEL_IS "; %s\n", command, e.text);
    return SH_EXIT_USAGE;
  }
  fprintf(stderr, "sheng %s: no MODEL given, taking models/" SH_SMALL_MODEL " beside the program\n", command);
  return SH_EXIT_OK;
}

int sh_cli_template(const char *value, char **text, size_t *len, sh_error *e) {
  *text = NULL;
  if (!strstr(value, "{{") && !strstr(value, "{%")) {
    int rc = sh_file_read(value, MAX_TEMPLATE, text, len, e);
    return rc == SH_OK ? SH_OK : sh_fail_in(e, rc, "chat template");
  }
  *text = sh_strdup(value);
  *len = strlen(value);
  return *text ? SH_OK : sh_fail(e, SH_ERR_NOMEM, "out of memory");
}

/* --- JSON lines --- */

static int one_line(const char *line, size_t n, sh_cli_line_fn fn, void *ctx, sh_buf *out) {
  sh_error e = {0};
  sh_json *v = NULL;
  sh_arena *a = sh_arena_new((64u << 20) + n * 64);
  if (!a) return SH_ERR_NOMEM;
  int rc = sh_json_parse(line, n, NULL, a, &v, &e);
  if (rc == SH_OK && !sh_json_is(v, SH_JSON_OBJECT))
    rc = sh_fail(&e, SH_ERR_ARG, "a JSON object is wanted, found %s", sh_json_type_name(v->type));
  if (rc == SH_OK) rc = fn(ctx, v, a, out, &e);
  if (rc == SH_OK && out->failed) rc = sh_fail(&e, out->failed, "the answer does not fit in memory");
  if (rc != SH_OK) {
    sh_jw w;
    sh_buf_reset(out);
    sh_jw_init(&w, out);
    sh_jw_obj(&w);
    sh_jw_kstr(&w, "error", e.text);
    sh_jw_end_obj(&w);
  }
  sh_arena_free(a);
  return out->failed;
}

int sh_cli_read_line(FILE *in, sh_buf *line) {
  int c;
  sh_buf_reset(line);
  errno = 0;
  while ((c = getc_unlocked(in)) != EOF && c != '\n') sh_buf_putc(line, (char)c);
  if (c == EOF && ferror(in)) {
    int err = errno;
    clearerr(in);
    errno = err;
    return err == EINTR ? SH_ERR_CANCELLED : SH_ERR_IO;
  }
  if (c == EOF && !line->len) return SH_ERR_NOT_FOUND;
  if (line->failed) return line->failed;
  if (line->len && line->p[line->len - 1] == '\r') line->p[--line->len] = 0;
  return SH_OK;
}

static int write_line(FILE *out, sh_buf *answer) {
  sh_buf_putc(answer, '\n');
  return !answer->failed && fwrite(answer->p, 1, answer->len, out) == answer->len && fflush(out) == 0 ? SH_OK : SH_ERR_IO;
}

int sh_cli_lines(const char *name, FILE *in, FILE *out, sh_cli_line_fn fn, void *ctx) {
  sh_buf line, answer;
  int rc;
  sh_buf_init(&line, MAX_LINE);
  sh_buf_init(&answer, MAX_LINE);
  while ((rc = sh_cli_read_line(in, &line)) == SH_OK) {
    if (!line.len) continue;
    sh_buf_reset(&answer);
    if ((rc = one_line(line.p, line.len, fn, ctx, &answer)) != SH_OK || (rc = write_line(out, &answer)) != SH_OK) break;
  }
  if (rc == SH_ERR_IO) fprintf(stderr, "sheng %s: reading or writing failed: %s\n", name, strerror(errno));
  else if (rc != SH_ERR_NOT_FOUND) fprintf(stderr, "sheng %s: a line or its answer is too large (%s)\n", name, sh_err_name(rc));
  sh_buf_free(&line);
  sh_buf_free(&answer);
  return rc == SH_ERR_NOT_FOUND ? SH_EXIT_OK : SH_EXIT_FAILURE;
}

void sh_cli_put_text(sh_buf *out, const sh_buf *text) {
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  sh_jw_key(&w, "text");
  sh_jw_strn(&w, text->p ? text->p : "", text->len);
  sh_jw_end_obj(&w);
}
