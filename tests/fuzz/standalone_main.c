/* Runs a fuzz driver without libFuzzer: every file of a corpus folder, then seeded mutations of them.
 *
 *   fuzz_X CORPUS_DIR [ITERATIONS [SEED [FIRST]]]
 *
 * A driver is a file fuzz_X.c with LLVMFuzzerTestOneInput, so the same file also links against libFuzzer. The mutation of an iteration
 * depends on nothing but (SEED, iteration, corpus), so a failure is repeated by running one iteration: FIRST = its number, ITERATIONS = 1.
 * The input that was running when the program died is written to ./fuzz-crash.bin, also when a sanitizer ended it. An input that takes more
 * than 20 s counts as a hang. Corpus files are sorted by name, because the order of readdir differs between machines. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

enum { INPUT_BYTES = 1 << 16, FILE_BYTES = 4 << 20, FILE_COUNT = 4096, HANG_S = 20 };

typedef struct input {
  char *name;
  uint8_t *p;
  size_t n;
} input;

static input corpus[FILE_COUNT];
static int n_corpus;

/* What runs now, for the report of a crash. */
static const uint8_t *current;
static size_t current_n;
static char current_name[300];

/* --- Crashes -------------------------------------------------------------------------------------------------------------------------- */

static void say(const char *s) {
  if (write(STDERR_FILENO, s, strlen(s)) < 0) return;
}

/* Only calls that are safe in a signal handler. */
static void save_current(void) {
  if (!current) return;
  int fd = open("fuzz-crash.bin", O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd >= 0 && write(fd, current, current_n) == (ssize_t)current_n) say("the input is in fuzz-crash.bin\n");
  if (fd >= 0) close(fd);
  say("died in: ");
  say(current_name);
  say("\n");
  current = NULL;
}

static void on_signal(int sig) {
  if (sig == SIGALRM) say("hang: one input took more than 20 s\n");
  save_current();
  if (sig == SIGALRM) _exit(1);
  signal(sig, SIG_DFL);
  raise(sig);
}

/* The input is copied to a block of exactly its size, so that a sanitizer sees a read past its end. */
static void run_one(const uint8_t *p, size_t n) {
  uint8_t *exact = malloc(n ? n : 1);
  if (!exact) return;
  memcpy(exact, p, n);
  current = exact;
  current_n = n;
  alarm(HANG_S);
  LLVMFuzzerTestOneInput(exact, n);
  alarm(0);
  current = NULL;
  free(exact);
}

/* --- Corpus --------------------------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(((const input *)a)->name, ((const input *)b)->name); }

static void load_file(const char *dir, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "rb");
  if (!f) return;
  uint8_t *p = malloc(FILE_BYTES);
  size_t n = p ? fread(p, 1, FILE_BYTES, f) : 0;
  fclose(f);
  uint8_t *fit = p ? realloc(p, n ? n : 1) : NULL;
  char *copy = strdup(name);
  if (fit && copy) corpus[n_corpus++] = (input){copy, fit, n};
}

static int load_corpus(const char *dir) {
  DIR *d = opendir(dir);
  if (!d) {
    fprintf(stderr, "%s: no such corpus folder\n", dir);
    return -1;
  }
  for (struct dirent *e; (e = readdir(d)) && n_corpus < FILE_COUNT;)
    if (e->d_name[0] != '.' && e->d_type != DT_DIR) load_file(dir, e->d_name);
  closedir(d);
  qsort(corpus, (size_t)n_corpus, sizeof corpus[0], by_name);
  if (n_corpus == 0) fprintf(stderr, "%s: the corpus folder is empty\n", dir);
  return n_corpus ? 0 : -1;
}

/* --- Mutations ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t rng;

static uint64_t next(void) { /* splitmix64: any state is a good one */
  uint64_t z = rng += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return z ^ z >> 31;
}

static size_t below(size_t n) { return n ? (size_t)(next() % n) : 0; }

/* Replaces buf[at..at + cut) by p[0..n), as far as the buffer has room; returns the new length. */
static size_t replace(uint8_t *buf, size_t len, size_t at, size_t cut, const uint8_t *p, size_t n) {
  if (len - cut + n > INPUT_BYTES) n = INPUT_BYTES - (len - cut);
  memmove(buf + at + n, buf + at + cut, len - at - cut);
  memcpy(buf + at, p, n);
  return len - cut + n;
}

/* Bytes at which parsers turn: ends of ranges as integers, brackets, quotes, broken UTF-8. */
static size_t interesting(uint8_t *out) {
  static const char *const words[] = {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
                                      "\x7F\xFF\xFF\xFF",
                                      "\xFF\xFF\xFF\x7F",
                                      "-1",
                                      "18446744073709551616",
                                      "1e999",
                                      "\\u0000",
                                      "\\ud800",
                                      "\xC3",
                                      "\xF0\x9F",
                                      "\xED\xA0\x80",
                                      "[[[[[[[[",
                                      "{\"",
                                      "\"",
                                      "}",
                                      "]",
                                      "{{",
                                      "}}",
                                      "{%",
                                      "%}",
                                      "\n",
                                      "\r\n\r\n",
                                      "%n%s",
                                      "NaN"};
  size_t k = below(sizeof words / sizeof words[0] + 1);
  if (k == 0) {
    memset(out, 0, 8);
    return 8;
  }
  size_t n = strlen(words[k - 1]);
  memcpy(out, words[k - 1], n);
  return n;
}

static size_t mutate_once(uint8_t *buf, size_t len) {
  uint8_t piece[64];
  size_t at = below(len + 1), n;
  switch (below(8)) {
  case 0: return below(4) == 0 ? at : len; /* truncate, but not so often that nothing long is left */
  case 1:
    if (len) buf[at % len] ^= (uint8_t)(1u << below(8));
    return len;
  case 2:
    if (len) buf[at % len] = (uint8_t)next();
    return len;
  case 3: return replace(buf, len, at, 0, piece, interesting(piece));
  case 4: n = interesting(piece); return replace(buf, len, at, n < len - at ? n : len - at, piece, n);
  case 5: /* remove a piece */ n = below(len - at < 32 ? len - at + 1 : 32); return replace(buf, len, at, n, piece, 0);
  case 6: { /* repeat a piece of itself */
    n = below(len - at < sizeof piece ? len - at + 1 : sizeof piece);
    memcpy(piece, buf + at, n);
    for (size_t times = 1 + below(8); times > 0; times--) len = replace(buf, len, at, 0, piece, n);
    return len;
  }
  default: { /* splice with another file */
    const input *other = &corpus[below((size_t)n_corpus)];
    size_t from = below(other->n + 1), most = other->n - from;
    n = below((most < 4096 ? most : 4096) + 1);
    return replace(buf, len, at, below(2) ? len - at : 0, other->p + from, n);
  }
  }
}

static void run_mutation(uint64_t seed, uint64_t iteration) {
  static uint8_t buf[INPUT_BYTES];
  rng = seed * UINT64_C(0xD6E8FEB86659FD93) + iteration;
  next();
  const input *base = &corpus[below((size_t)n_corpus)];
  size_t len = base->n < INPUT_BYTES ? base->n : INPUT_BYTES;
  memcpy(buf, base->p, len);
  for (size_t k = 1 + below(6); k > 0; k--) len = mutate_once(buf, len);
  snprintf(current_name, sizeof current_name, "a mutation of %s: seed %" PRIu64 ", iteration %" PRIu64, base->name, seed, iteration);
  run_one(buf, len);
}

int main(int argc, char **argv) {
  if (argc < 2 || argc > 5) {
    fprintf(stderr, "usage: %s CORPUS_DIR [ITERATIONS [SEED [FIRST]]]\n", argv[0]);
    return 2;
  }
  uint64_t iterations = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  uint64_t first = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
  if (load_corpus(argv[1])) return 2;
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_current);
  signal(SIGABRT, on_signal);
  signal(SIGALRM, on_signal);
  if (!__sanitizer_set_death_callback) signal(SIGSEGV, on_signal);
  for (int i = 0; i < n_corpus; i++) {
    snprintf(current_name, sizeof current_name, "%.250s", corpus[i].name);
    run_one(corpus[i].p, corpus[i].n);
  }
  for (uint64_t i = 0; i < iterations; i++) run_mutation(seed, first + i);
  printf("%s: %d files and %" PRIu64 " mutations (seed %" PRIu64 "), no failure\n", argv[0], n_corpus, iterations, seed);
  for (int i = 0; i < n_corpus; i++) {
    free(corpus[i].name);
    free(corpus[i].p);
  }
  return 0;
}
