/* The table of commands and the docs page that is made from it. */
#include "base/file.h"
#include "cli/cli.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <fcntl.h>
#include <unistd.h>

static void the_checked_in_options_page_is_current(void **state) {
  (void)state;
  sh_buf now;
  char *page = NULL;
  size_t n = 0;
  sh_error e = {0};
  sh_buf_init(&now, 4 << 20);
  assert_int_equal(sh_cli_markdown(&now), 0);
  assert_int_equal(sh_file_read("docs/options.md", 4 << 20, &page, &n, &e), 0);
  if (n != now.len || memcmp(page, now.p, n) != 0) fail_msg("docs/options.md is old; renew it: ./sheng help --markdown > docs/options.md");
  sh_free(page);
  sh_buf_free(&now);
}

static void every_command_says_what_it_does(void **state) {
  (void)state;
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++) {
    assert_non_null(c->run);
    assert_true(c->line && strlen(c->line) > 8 && c->args);
  }
}

/* Runs help with that argument, its output thrown away; the exit status. */
static int help(const char *argument) {
  char name[] = "help", word[64], *args[] = {name, word, NULL};
  snprintf(word, sizeof word, "%s", argument);
  fflush(NULL);
  int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  int status = sh_cmd_help(2, args);
  fflush(NULL);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  close(out), close(err), close(null);
  return status;
}

static void help_knows_every_command_and_no_other(void **state) {
  (void)state;
  for (const sh_cli_command *c = sh_cli_commands; c->name; c++) {
    if (!c->options && strcmp(c->name, "help") && strcmp(c->name, "version")) continue; /* its options are those of JSON lines */
    assert_int_equal(help(c->name), SH_EXIT_OK);
  }
  assert_int_equal(help("--markdown"), SH_EXIT_OK);
  assert_int_equal(help("--help"), SH_EXIT_OK);
  assert_int_equal(help("foo"), SH_EXIT_USAGE);
  assert_int_equal(help(""), SH_EXIT_USAGE);
}

static int repeat(void *ctx, const sh_json *line, sh_arena *a, sh_buf *out, sh_error *e) {
  (void)ctx;
  (void)a;
  const sh_json *x = sh_json_get(line, "x");
  return x ? sh_buf_printf(out, "{\"x\":%s}", x->s) : sh_fail(e, SH_ERR_ARG, "x is missing");
}

static void a_bad_line_is_answered_and_the_next_one_goes_on(void **state) {
  (void)state;
  char in[] = "{\"x\":1}\n\nnonsense\r\n[]\n{}\n{\"x\":2}", *got = NULL;
  size_t n = 0;
  FILE *from = fmemopen(in, strlen(in), "r"), *to = open_memstream(&got, &n);
  assert_int_equal(sh_cli_lines("test", from, to, repeat, NULL), 0);
  fclose(from);
  fclose(to);
  char *lines[6] = {got};
  int count = 0;
  for (char *p = got; *p && count < 6; count++) {
    lines[count] = p;
    p = strchr(p, '\n');
    assert_non_null(p);
    *p++ = 0;
  }
  assert_int_equal(count, 5);
  assert_string_equal(lines[0], "{\"x\":1}");
  assert_int_equal(strncmp(lines[1], "{\"error\":\"", 10), 0);
  assert_non_null(strstr(lines[2], "found array"));
  assert_string_equal(lines[3], "{\"error\":\"x is missing\"}");
  assert_string_equal(lines[4], "{\"x\":2}");
  free(got);
}

static void a_template_is_text_or_a_file(void **state) {
  (void)state;
  char *text;
  size_t n;
  sh_error e = {0};
  assert_int_equal(sh_cli_template("{{ messages }}", &text, &n, &e), 0);
  assert_string_equal(text, "{{ messages }}");
  sh_free(text);
  assert_int_equal(sh_cli_template("tests/golden/models/dense-small/chat_template.jinja", &text, &n, &e), 0);
  assert_true(n > 1000);
  sh_free(text);
  assert_int_equal(sh_cli_template("/no/such/file", &text, &n, &e), SH_ERR_NOT_FOUND);
  assert_non_null(strstr(e.text, "/no/such/file"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_checked_in_options_page_is_current), cmocka_unit_test(every_command_says_what_it_does),
      cmocka_unit_test(help_knows_every_command_and_no_other),  cmocka_unit_test(a_bad_line_is_answered_and_the_next_one_goes_on),
      cmocka_unit_test(a_template_is_text_or_a_file),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
