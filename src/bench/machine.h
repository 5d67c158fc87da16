/* What a measurement was made on, for the head of every result. */
#ifndef SH_BENCH_MACHINE_H
#define SH_BENCH_MACHINE_H

#include "base/json.h"
#include "base/mem.h"

typedef struct sh_machine {
  char cpu[128];      /* "AMD EPYC 9R14"; "unknown" where the system does not say */
  char arch[32];      /* "x86_64" */
  char isa[256];      /* of the extensions that matter here, those there are: "avx2 fma f16c bmi2 avx512f ..." */
  char caches[128];   /* of the first core: "L1d 32 KiB, L1i 32 KiB, L2 1 MiB, L3 32 MiB" */
  char kernel[128];   /* "Linux 6.1.0" */
  int cores;          /* that this process may use */
  int64_t memory;     /* bytes that this process may use */
  double load;        /* of the last minute when the run began; negative: unknown */
  int64_t last_cache; /* bytes of the largest cache; 0: unknown */
} sh_machine;

/* root: "" for this machine; a folder with a proc/ and a sys/ in tests. Never fails: what cannot be read is said to be unknown. */
void sh_machine_read(sh_machine *m, const char *root);

/* "AMD EPYC, 2 cores, ..." as one paragraph; with `prefix` before each of its lines. */
void sh_machine_text(const sh_machine *m, const char *prefix, sh_buf *out);
void sh_machine_json(const sh_machine *m, sh_jw *w); /* an object, as the value of the key written before */

#endif
