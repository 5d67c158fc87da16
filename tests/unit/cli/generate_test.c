/* `sheng generate` behind pipes, as a program uses it. */
#include "cli/cli.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL "tests/golden/models/dense-small"

typedef struct child {
  pid_t pid;
  FILE *to, *from;
} child;

static void start(child *c) {
  int in[2], out[2];
  assert_int_equal(pipe(in), 0);
  assert_int_equal(pipe(out), 0);
  fflush(NULL);
  c->pid = fork();
  if (c->pid == 0) {
    char *argv[] = {"generate", MODEL, "--exact", "--threads=1", "--max-model-len=500", "--generation-config=vllm", NULL};
    dup2(in[0], 0);
    dup2(out[1], 1);
    close(in[1]);
    close(out[0]);
    alarm(240);
    int rc = sh_cmd_generate(6, argv);
    fflush(NULL);
    _exit(rc);
  }
  close(in[0]);
  close(out[1]);
  c->to = fdopen(in[1], "w");
  c->from = fdopen(out[0], "r");
  assert_non_null(c->to);
  assert_non_null(c->from);
}

static int finish(child *c) {
  int status;
  if (c->to) fclose(c->to);
  char line[64];
  assert_null(fgets(line, sizeof line, c->from)); /* nothing more comes */
  fclose(c->from);
  assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void say(child *c, const char *line) {
  fprintf(c->to, "%s\n", line);
  fflush(c->to);
}

static void expect(child *c, const char *part) {
  static char line[1 << 16];
  char *got = fgets(line, sizeof line, c->from);
  assert_non_null(got);
  if (!strstr(line, part)) print_error("wanted %s in %s", part, line);
  assert_non_null(strstr(line, part));
}

static void a_caller_that_waits_for_each_answer_gets_it(void **state) {
  (void)state;
  child c;
  start(&c);
  say(&c, "{\"ids\": [5, 6], \"max_tokens\": 3, \"allowed_token_ids\": [8]}");
  expect(&c, "{\"ids\":[8,8,8],\"text\":\")))\",\"finish_reason\":\"length\"}");
  say(&c, "{\"prompt\": \"abc\", \"max_tokens\": 5, \"allowed_token_ids\": [8], \"stop\": \"))\"}");
  expect(&c, "{\"ids\":[8,8],\"text\":\"\",\"finish_reason\":\"stop\",\"stop_reason\":\"))\"}");
  say(&c, "{\"ids\": [5], \"allowed_token_ids\": [594]}");
  expect(&c, "{\"ids\":[594],\"text\":\"\",\"finish_reason\":\"stop\"}");
  say(&c, "{\"ids\": [5], \"max_tokens\": 1, \"allowed_token_ids\": [8], \"logprobs\": 0, \"prompt_logprobs\": 0}");
  expect(&c, "\"prompt_logprobs\":[null]");
  assert_int_equal(finish(&c), SH_EXIT_OK);
}

static void a_wrong_line_is_answered_in_its_place(void **state) {
  (void)state;
  child c;
  start(&c);
  say(&c, "{\"ids\": [5], \"max_tokens\": 60, \"allowed_token_ids\": [8]}\n"
          "not json\n"
          "[1]\n"
          "\n"
          "{\"ids\": [5], \"temperature\": \"hot\"}\n"
          "{\"ids\": [640]}\n"
          "{\"ids\": [5], \"prompt\": \"x\"}\n"
          "{\"max_tokens\": 4}\n"
          "{\"ids\": [5], \"n\": 2}\n"
          "{\"ids\": [5], \"max_tokens\": 500}\n"
          "{\"ids\": [5], \"max_tokens\": 1, \"allowed_token_ids\": [8], \"bad_words\": [\")\"]}\n"
          "{\"ids\": [5], \"max_tokens\": 1, \"allowed_token_ids\": [8]}");
  expect(&c, "\"finish_reason\":\"length\"");
  expect(&c, "{\"error\":\"");
  expect(&c, "{\"error\":\"a JSON object is wanted");
  expect(&c, "temperature");
  expect(&c, "640");
  expect(&c, "one of \\\"ids\\\" and \\\"prompt\\\"");
  expect(&c, "one of \\\"ids\\\" and \\\"prompt\\\"");
  expect(&c, "n must be 1");
  expect(&c, "501");
  expect(&c, "every token is excluded");
  expect(&c, "{\"ids\":[8]");
  assert_int_equal(finish(&c), SH_EXIT_OK);
}

/* More lines than the window, the last one without a newline: answers come in the order of the lines. */
static void many_lines_keep_their_order(void **state) {
  (void)state;
  enum { LINES = 700 };
  child c;
  start(&c);
  pid_t writer = fork(); /* or both pipes could fill up */
  if (writer == 0) {
    for (int i = 0; i < LINES; i++) {
      fprintf(c.to, "{\"ids\": [5, %d], \"max_tokens\": %d, \"allowed_token_ids\": [%d]}%s", i % 600, 1 + i % 3, 10 + i % 500,
              i + 1 < LINES ? "\n" : "");
    }
    fclose(c.to);
    _exit(0);
  }
  fclose(c.to);
  c.to = NULL;
  for (int i = 0; i < LINES; i++) {
    char want[32];
    snprintf(want, sizeof want, "{\"ids\":[%d%s", 10 + i % 500, i % 3 ? "," : "]");
    expect(&c, want);
  }
  assert_int_equal(finish(&c), SH_EXIT_OK);
  waitpid(writer, NULL, 0);
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_caller_that_waits_for_each_answer_gets_it),
      cmocka_unit_test(a_wrong_line_is_answered_in_its_place),
      cmocka_unit_test(many_lines_keep_their_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
