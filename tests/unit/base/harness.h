/* cmocka with the headers it wants before it, in the order it wants them. */
#ifndef SH_TESTS_UNIT_BASE_HARNESS_H
#define SH_TESTS_UNIT_BASE_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails with the sentence when the text does not hold the part. */
#define assert_contains(text, part)                                                                                                        \
  do {                                                                                                                                     \
    const char *contains_text = (text), *contains_part = (part);                                                                           \
    if (!strstr(contains_text, contains_part)) fail_msg("'%s' is not in '%s'", contains_part, contains_text);                              \
  } while (0)

#endif
