/* Log lines: form, levels, escapes, and that lines of threads do not mix. */
#include "base/log.h"
#include "base/err.h"
#include "base/text.h"
#include "unit/base/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static char text[1 << 20];
static char file_name[] = "/tmp/sheng_log_test.XXXXXX";
static int saved, file;

static void catch_begin(void) {
  memcpy(file_name + sizeof file_name - 7, "XXXXXX", 6);
  file = mkstemp(file_name);
  assert_true(file >= 0);
  saved = dup(STDERR_FILENO);
  dup2(file, STDERR_FILENO);
}

static const char *catch_end(void) {
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t n = pread(file, text, sizeof text - 1, 0);
  close(file);
  unlink(file_name);
  text[n < 0 ? 0 : n] = '\0';
  return text;
}

static void a_line_has_time_level_and_text(void **state) {
  (void)state;
  catch_begin();
  sh_log(SH_LOG_WARN, "loaded %d tensors\n", 5);
  const char *s = catch_end();
  int y, mo, d, h, mi, sec, ms, used = 0;
  assert_int_equal(sscanf(s, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &y, &mo, &d, &h, &mi, &sec, &ms, &used), 7);
  assert_int_equal(used, 25);
  assert_string_equal(s + used, "WARN loaded 5 tensors\n");
}

static void lines_above_the_level_are_left_out(void **state) {
  (void)state;
  catch_begin();
  sh_log(SH_LOG_DEBUG, "one");
  sh_log_set_level(SH_LOG_DEBUG);
  sh_log(SH_LOG_DEBUG, "two");
  sh_log_set_level(SH_LOG_ERROR);
  sh_log(SH_LOG_WARN, "three");
  sh_log(SH_LOG_ERROR, "four");
  sh_log_set_level(SH_LOG_INFO);
  const char *s = catch_end();
  assert_null(strstr(s, "one"));
  assert_contains(s, "DEBUG two\n");
  assert_null(strstr(s, "three"));
  assert_contains(s, "ERROR four\n");
}

static void a_request_cannot_forge_a_line_or_reach_the_terminal(void **state) {
  (void)state;
  catch_begin();
  sh_log(SH_LOG_INFO, "name=%s", "x\r\n2026-01-01T00:00:00.000Z INFO fake\t\x1b[2J\x7f\xC2\x9B\xFF\xE2\x82 \xC3\xA9\xE2\x82\xAC");
  const char *s = catch_end();
  assert_contains(s, "name=x\\r\\n2026-01-01T00:00:00.000Z INFO fake\\t\\x1b[2J\\x7f\\x9b\\xff\\xe2\\x82 \xC3\xA9\xE2\x82\xAC\n");
  assert_ptr_equal(strchr(s, '\n'), s + strlen(s) - 1);
}

static void a_plain_sentence_has_no_time_and_no_escape_sequence(void **state) {
  (void)state;
  catch_begin();
  sh_log_set_level(SH_LOG_ERROR);
  sh_log_plain("sheng logits: the shard %s is missing", "a\x1b[31m\nsheng: all is well");
  sh_log_set_level(SH_LOG_INFO);
  assert_string_equal(catch_end(), "sheng logits: the shard a\\x1b[31m\\nsheng: all is well is missing\n");
}

static void a_long_text_is_cut_and_marked(void **state) {
  (void)state;
  static char many[20000];
  memset(many, 1, sizeof many - 1); /* each byte becomes four */
  catch_begin();
  sh_log(SH_LOG_INFO, "%s", many);
  const char *s = catch_end();
  assert_true(strlen(s) < 8100);
  assert_true(sh_str_ends(s, "...\n"));
}

static void errno_survives_a_log_line(void **state) {
  (void)state;
  catch_begin();
  errno = ENOSPC;
  sh_log(SH_LOG_INFO, "x");
  int after = errno;
  catch_end();
  assert_int_equal(after, ENOSPC);
}

static void level_names_are_read_in_any_case(void **state) {
  (void)state;
  sh_log_level l;
  assert_int_equal(sh_log_level_parse("WARNING", &l), 0);
  assert_int_equal(l, SH_LOG_WARN);
  assert_int_equal(sh_log_level_parse("debug", &l), 0);
  assert_int_equal(l, SH_LOG_DEBUG);
  assert_int_equal(sh_log_level_parse("loud", &l), SH_ERR_ARG);
}

static void *log_many(void *arg) {
  for (int i = 0; i < 200; i++) sh_log(SH_LOG_INFO, "thread %c %0100d end", *(char *)arg, 0);
  return NULL;
}

static void lines_of_threads_do_not_mix(void **state) {
  (void)state;
  catch_begin();
  int flags = fcntl(STDERR_FILENO, F_GETFL);
  fcntl(STDERR_FILENO, F_SETFL, flags | O_APPEND);
  pthread_t t[4];
  char names[] = "abcd";
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, log_many, &names[i]);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  const char *s = catch_end();
  int lines = 0;
  for (const char *line = s; *line; line = strchr(line, '\n') + 1, lines++) {
    size_t n = strcspn(line, "\n");
    assert_int_equal(n, 25 + strlen("INFO thread a ") + 100 + strlen(" end"));
    assert_memory_equal(line + n - 4, " end", 4);
  }
  assert_int_equal(lines, 800);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_line_has_time_level_and_text),
      cmocka_unit_test(lines_above_the_level_are_left_out),
      cmocka_unit_test(a_request_cannot_forge_a_line_or_reach_the_terminal),
      cmocka_unit_test(a_plain_sentence_has_no_time_and_no_escape_sequence),
      cmocka_unit_test(a_long_text_is_cut_and_marked),
      cmocka_unit_test(errno_survives_a_log_line),
      cmocka_unit_test(level_names_are_read_in_any_case),
      cmocka_unit_test(lines_of_threads_do_not_mix),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
