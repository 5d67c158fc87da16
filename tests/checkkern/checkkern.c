/* checkkern: holds every variant of every kernel against the plain C references, and measures them.
 *
 *   checkkern [--seed N] [--cpu baseline|avx2]      all checks; the last line counts them
 *   checkkern --bench [--threads N] [--only TEXT]   the same, then speeds: only numbers of kernels that are right are worth reading
 *
 * What is checked: results against the references within a named tolerance, at odd sizes and tails, on hard inputs; that nothing outside
 * the outputs is written and nothing past the inputs is read; and, to the bit, that a result does not depend on tiles, chunks, pages or
 * threads. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check_variant(ck *c, const char *cpu) {
  sh_error e;
  if (sh_kernels_init(&c->k, cpu, &e) < 0) {
    printf("skipped %s: %s\n", cpu, e.text);
    return;
  }
  c->cpu = cpu;
  c->rng = c->seed;
  ck_matmul(c);
  ck_panels(c);
  ck_rows(c);
  ck_attention(c);
  ck_gdn(c);
  ck_backend(c);
}

static int usage(void) {
  fprintf(stderr, "usage: checkkern [--seed N] [--cpu baseline|avx2] [--bench [--threads N] [--only TEXT]]\n");
  return 2;
}

int main(int argc, char **argv) {
  ck c = {.seed = (uint64_t)time(NULL), .quick = getenv("SHENG_TEST_QUICK") && *getenv("SHENG_TEST_QUICK")};
  const char *cpu = NULL, *only = NULL;
  bool bench = false;
  int threads = 0;
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(argv[i], "--bench")) {
      bench = true;
      continue;
    }
    if (!value) return usage();
    if (!strcmp(argv[i], "--seed")) c.seed = strtoull(value, NULL, 10);
    else if (!strcmp(argv[i], "--cpu")) cpu = value;
    else if (!strcmp(argv[i], "--threads")) threads = (int)strtol(value, NULL, 10);
    else if (!strcmp(argv[i], "--only")) only = value;
    else return usage();
    i++;
  }
  printf("seed %llu\n", (unsigned long long)c.seed);
  sh_kernels_init_ref(&c.ref);
  if (!cpu || !strcmp(cpu, "baseline")) check_variant(&c, "baseline");
  if (!cpu || !strcmp(cpu, "avx2")) check_variant(&c, "avx2");
  if (bench && c.failed == 0 && ck_bench(threads, only) < 0) c.failed++;
  printf("%d passed, %d failed\n", c.passed, c.failed);
  return c.failed || c.passed == 0;
}
