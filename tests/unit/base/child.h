/* Tests of what ends a process: a function run in a child. */
#ifndef SH_TESTS_UNIT_BASE_CHILD_H
#define SH_TESTS_UNIT_BASE_CHILD_H

#include "unit/base/harness.h"

#include <sys/wait.h>
#include <unistd.h>

/* Runs fn in a child whose stderr is caught; gives the wait status and the text. */
static inline int in_child(void (*fn)(void), char *text, size_t cap) {
  int fds[2];
  assert_int_equal(pipe(fds), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    fn();
    _exit(0);
  }
  close(fds[1]);
  size_t n = 0;
  for (ssize_t got; n + 1 < cap && (got = read(fds[0], text + n, cap - 1 - n)) > 0;) n += (size_t)got;
  text[n] = '\0';
  close(fds[0]);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return status;
}

#endif
