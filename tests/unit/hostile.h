/* What every test of a parser against hostile input shares: each truncation of a text, seeded damage (half of it in the head of the text),
 * and each value of a JSON tree replaced by hard ones. A case must end in time as an acceptance or as a refusal with a sentence; running
 * out of memory counts as a fault, since files.h puts a ceiling on what may be asked for. Every case is given in an allocation of its exact
 * size, so that a read past its end is seen. SHENG_TEST_SEED=N runs other damage; the seed in use is printed. */
#ifndef SH_TESTS_UNIT_HOSTILE_H
#define SH_TESTS_UNIT_HOSTILE_H

#include <time.h>

#include "base/json.h"
#include "base/text.h"
#include "unit/formats/files.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASE_SECONDS 5.0
#else
#define CASE_SECONDS 0.5
#endif

enum { HOSTILE_ROOM = 4096 }; /* bytes that damage may add */

/* Takes p[0..n): 0 for accepted, else a negative sh_err with its sentence in *e. Checks what it accepts. */
typedef int (*hostile_fn)(const char *p, size_t n, void *ctx, sh_error *e);

typedef struct hostile {
  hostile_fn fn;
  void *ctx;
  int accepted, refused;
} hostile;

static inline double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void hostile_case(hostile *h, const char *text, size_t n, const char *kind, size_t number) {
  char *p = malloc(n ? n : 1);
  assert_non_null(p);
  if (n) memcpy(p, text, n);
  sh_error e = {0};
  double before = cpu_seconds();
  int rc = h->fn(p, n, h->ctx, &e);
  double seconds = cpu_seconds() - before;
  const char *fault = NULL;
  if (rc > 0) fault = "an error is negative";
  else if (rc == SH_ERR_NOMEM) fault = "memory ran out";
  else if (rc == SH_ERR_INTERNAL) fault = "a fault of the program";
  else if (rc && e.code != rc) fault = "the sentence is of another error";
  else if (rc && (!e.text[0] || !sh_utf8_valid(e.text, strlen(e.text)))) fault = "no sentence in valid UTF-8";
  else if (seconds > CASE_SECONDS) fault = "it took too long";
  if (fault) fail_msg("%s %zu: %s (%d, %.2f s, \"%s\")\n%.*s", kind, number, fault, rc, seconds, e.text, n > 4000 ? 4000 : (int)n, p);
  free(p);
  if (rc) h->refused++;
  else h->accepted++;
}

/* The whole must be accepted; a shorter one may be. */
static inline void every_truncation(hostile *h, const char *text, size_t n) {
  for (size_t i = 0; i < n; i++) hostile_case(h, text, i, "truncation", i);
  int accepted = h->accepted;
  hostile_case(h, text, n, "the whole of", n);
  if (h->accepted != accepted + 1) fail_msg("the undamaged text is refused");
}

static const char *const HARD_NUMBERS[] = {"0",
                                           "-1",
                                           "1",
                                           "-0.0",
                                           "1e999",
                                           "-1e999",
                                           "1e-999",
                                           "0.1",
                                           "2147483647",
                                           "2147483648",
                                           "-2147483649",
                                           "4294967296",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "-9223372036854775809",
                                           "18446744073709551616",
                                           "1e18",
                                           "65536",
                                           "340282366920938463463374607431768211456"};
enum { N_HARD_NUMBERS = sizeof HARD_NUMBERS / sizeof HARD_NUMBERS[0] };

static inline void put_at(char *p, size_t *n, size_t at, size_t gone, const char *piece, size_t len) {
  memmove(p + at + len, p + at + gone, *n - at - gone);
  memcpy(p + at, piece, len);
  *n += len - gone;
}

/* The digits at or after `at` become another number; false when there are none. */
static inline bool edit_number(char *p, size_t *n, size_t at, uint64_t r) {
  while (at < *n && !(p[at] >= '0' && p[at] <= '9')) at++;
  size_t end = at;
  while (end < *n && p[end] && strchr("0123456789.eE", p[end])) end++;
  const char *with = HARD_NUMBERS[r % N_HARD_NUMBERS];
  if (at < *n) put_at(p, n, at, end - at, with, strlen(with));
  return at < *n;
}

/* One edit at a place of p[0..*n), n > 0; p has HOSTILE_ROOM more than the undamaged text, and an edit adds at most 64 bytes. */
static inline void edit_once(char *p, size_t *n, size_t at, uint64_t *seed) {
  static const char MARKS[] = "{}[]\":,\\%#-+.09 \r\n\t\0\x7f\x80\xff\xc3\xed;=|'()";
  uint64_t r = next_random(seed);
  size_t from = (size_t)(next_random(seed) % *n), len = 1 + (size_t)(r >> 16) % 48;
  char piece[48];
  switch (r % 7) {
  case 0: p[at] ^= (char)(1 << (r >> 8) % 8); break;
  case 1: p[at] = MARKS[(r >> 8) % (sizeof MARKS - 1)]; break;
  case 2: put_at(p, n, at, 0, &MARKS[(r >> 8) % (sizeof MARKS - 1)], 1); break;
  case 3: put_at(p, n, at, len < *n - at ? len : *n - at, "", 0); break;
  case 4: /* a piece of the text once more, here */
  case 5: /* and in the place of what is here */
    if (len > *n - from) len = *n - from;
    memcpy(piece, p + from, len);
    put_at(p, n, at, r % 7 == 4 ? 0 : len < *n - at ? len : *n - at, piece, len);
    break;
  default:
    if (!edit_number(p, n, at, r >> 8)) p[at] = (char)(r >> 8);
  }
}

/* `times` texts with 1 to 4 edits each; every other one has them all in the first `head` bytes. */
static inline void seeded_damage(hostile *h, const char *text, size_t n, size_t head, int times) {
  const char *given = getenv("SHENG_TEST_SEED");
  uint64_t seed = given ? strtoull(given, NULL, 0) | 1 : 0x5eed1e55;
  print_message("           damage seed %llu, %d texts\n", (unsigned long long)seed, times);
  char *p = malloc(n + HOSTILE_ROOM);
  assert_non_null(p);
  if (head > n) head = n;
  for (int i = 0; i < times; i++) {
    size_t len = n;
    memcpy(p, text, n);
    for (int edits = 1 + (int)(next_random(&seed) % 4); edits > 0 && len > 0; edits--) {
      size_t within = i % 2 && head < len ? head : len;
      edit_once(p, &len, (size_t)(next_random(&seed) % within), &seed);
    }
    hostile_case(h, p, len, "damage", (size_t)i);
  }
  free(p);
}

/* --- Trees */

static inline void tree_case(hostile *h, const sh_json *root, size_t number) {
  sh_buf b;
  sh_jw w;
  sh_buf_init(&b, 1 << 22);
  sh_jw_init(&w, &b);
  sh_jw_value(&w, root);
  assert_int_equal(b.failed, 0);
  hostile_case(h, b.p, b.len, "tree", number);
  sh_buf_free(&b);
}

static inline void each_value(hostile *h, const sh_json *root, sh_json *v, size_t *number) {
  static const char LONG[] =
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
  static sh_json inner[2] = {{.type = SH_JSON_STRING, .s = "a\0b", .len = 3}, {.type = SH_JSON_NUMBER, .s = "-1", .len = 2}};
  static sh_json_member member[1] = {{"a", 1, {.type = SH_JSON_NULL}}};
  const sh_json others[] = {{.type = SH_JSON_NULL},
                            {.type = SH_JSON_BOOL, .b = true},
                            {.type = SH_JSON_BOOL},
                            {.type = SH_JSON_STRING, .s = ""},
                            {.type = SH_JSON_STRING, .s = LONG, .len = sizeof LONG - 1},
                            {.type = SH_JSON_ARRAY},
                            {.type = SH_JSON_ARRAY, .items = inner, .len = 2},
                            {.type = SH_JSON_OBJECT},
                            {.type = SH_JSON_OBJECT, .members = member, .len = 1}};
  sh_json was = *v;
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    *v = others[i];
    tree_case(h, root, (*number)++);
  }
  for (int i = 0; i < N_HARD_NUMBERS; i++) {
    *v = (sh_json){.type = SH_JSON_NUMBER, .s = HARD_NUMBERS[i], .len = strlen(HARD_NUMBERS[i])};
    tree_case(h, root, (*number)++);
  }
  *v = was;
  for (size_t i = 0; v->type == SH_JSON_ARRAY && i < v->len; i++) each_value(h, root, &v->items[i], number);
  for (size_t i = 0; v->type == SH_JSON_OBJECT && i < v->len; i++) {
    sh_json_member kept = v->members[i];
    v->members[i].key = "gone"; /* as if it were missing */
    v->members[i].key_len = 4;
    tree_case(h, root, (*number)++);
    v->members[i] = kept;
    each_value(h, root, &v->members[i].value, number);
  }
}

/* Each value of the tree by each hard one, and each member missing. */
static inline void every_value_replaced(hostile *h, const char *text, size_t n) {
  sh_arena *a = sh_arena_new(1 << 24);
  sh_json *root;
  size_t number = 0;
  assert_non_null(a);
  assert_int_equal(sh_json_parse(text, n, NULL, a, &root, NULL), 0);
  each_value(h, root, root, &number);
  print_message("           %zu trees\n", number);
  sh_arena_free(a);
}

/* Both happened: neither "refuses all" nor "takes all" passes for a parser. */
static inline void assert_both(const hostile *h, int accepted, int refused) {
  print_message("           %d accepted, %d refused\n", h->accepted, h->refused);
  assert_true(h->accepted >= accepted);
  assert_true(h->refused >= refused);
}

#endif
