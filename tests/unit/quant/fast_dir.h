/* Temporary folders of tests that write and sync much. */
#ifndef SH_TESTS_UNIT_QUANT_FAST_DIR_H
#define SH_TESTS_UNIT_QUANT_FAST_DIR_H

#include <sys/statvfs.h>

#include "unit/formats/files.h"

/* A temporary folder in memory where there is some: a disk's syncs would take most of the time. */
static inline int make_fast_dir(void **state) {
  struct statvfs v;
  snprintf(temp_dir, sizeof temp_dir, "/dev/shm/sheng-test-XXXXXX");
  if (statvfs("/dev/shm", &v) == 0 && v.f_bavail * v.f_frsize > (64u << 20) && mkdtemp(temp_dir)) return 0;
  return make_temp_dir(state);
}

#endif
