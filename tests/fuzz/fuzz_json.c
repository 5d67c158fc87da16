/* Fuzz driver of the JSON reader and writer. Beyond "no crash": what is accepted is written and read again as the same text; what is
 * refused has a sentence of valid UTF-8; memory stays within the arena's limit; numbers convert without undefined behaviour. */
#include "base/json.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

/* Visits values down to the writer's depth. */
static void visit(const sh_json *v, int depth) {
  int64_t i;
  double d;
  if (v->type == SH_JSON_NUMBER) {
    if (sh_json_int(v, &i) == 0) must(sh_json_double(v, &d) == 0 && (double)i == d, "an integer and its double are the same number");
    else (void)sh_json_double(v, &d);
  }
  if (v->type == SH_JSON_STRING) must(v->s[v->len] == '\0' && sh_utf8_valid(v->s, v->len), "strings are valid UTF-8 and terminated");
  if (depth == 0) return;
  for (size_t k = 0; v->type == SH_JSON_ARRAY && k < v->len; k++) visit(&v->items[k], depth - 1);
  for (size_t k = 0; v->type == SH_JSON_OBJECT && k < v->len; k++) {
    const sh_json_member *m = &v->members[k];
    if (strlen(m->key) == m->key_len) must(sh_json_get(v, m->key) != NULL, "a key that is there is found");
    visit(&m->value, depth - 1);
  }
}

static void write_and_read_again(const sh_json *v) {
  sh_buf one, two;
  sh_jw w;
  sh_buf_init(&one, 1 << 22);
  sh_buf_init(&two, 1 << 22);
  sh_jw_init(&w, &one);
  sh_jw_value(&w, v);
  sh_arena *a = sh_arena_new(1 << 24);
  if (!one.failed && a) {
    sh_json *again;
    sh_error e;
    must(sh_json_parse(one.p, one.len, NULL, a, &again, &e) == 0, "what was written is read");
    sh_jw_init(&w, &two);
    sh_jw_value(&w, again);
    must(!two.failed && one.len == two.len && memcmp(one.p, two.p, one.len) == 0, "what was read again is the same");
  }
  sh_arena_free(a);
  sh_buf_free(&one);
  sh_buf_free(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static const size_t memory[] = {1 << 24, 4096, 100};
  for (int i = 0; i < 3; i++) {
    sh_arena *a = sh_arena_new(memory[i]);
    if (!a) return 0;
    sh_json *v = NULL;
    sh_error e = {0};
    int rc = sh_json_parse((const char *)data, n, NULL, a, &v, &e);
    must(sh_arena_used(a) <= memory[i], "the arena keeps its limit");
    if (rc == 0) {
      visit(v, 64);
      if (i == 0) write_and_read_again(v);
    } else {
      must(v == NULL && e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    }
    sh_arena_free(a);
  }
  return 0;
}
