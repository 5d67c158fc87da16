/* The chat templates of other model families: every case that jinja2 itself rendered, text for text, or an error where it raised one.
 * Data: tests/golden/templates (make_family_cases.py there says how it was made). An argument names another folder of the same layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

static const char *root = "tests/golden/templates";

static char *read_gzip(const char *path) {
  gzFile f = gzopen(path, "rb");
  if (!f) fail_msg("%s cannot be opened", path);
  sh_buf b;
  sh_buf_init(&b, (size_t)1 << 30);
  char part[65536];
  for (int got; (got = gzread(f, part, sizeof part)) > 0;) assert_int_equal(sh_buf_put(&b, part, (size_t)got), 0);
  gzclose(f);
  return sh_buf_detach(&b);
}

/* Puts the text that strftime makes of each format between U+0001 and U+0002. */
static void put_dates(sh_buf *out, const char *s, size_t n) {
  char fmt[64], date[256];
  struct tm tm;
  time_t now = time(NULL);
  assert_non_null(localtime_r(&now, &tm));
  sh_buf_reset(out);
  for (const char *end = s + n, *mark, *stop; s < end; s = stop + 1) {
    mark = memchr(s, 1, (size_t)(end - s));
    if (!mark) mark = end;
    assert_int_equal(sh_buf_put(out, s, (size_t)(mark - s)), 0);
    if (mark == end) return;
    stop = memchr(mark, 2, (size_t)(end - mark));
    assert_non_null(stop);
    assert_true((size_t)(stop - mark) <= sizeof fmt);
    memcpy(fmt, mark + 1, (size_t)(stop - mark - 1));
    fmt[stop - mark - 1] = 0;
    assert_int_equal(sh_buf_put(out, date, strftime(date, sizeof date, fmt, &tm)), 0);
  }
}

/* --- The cases ------------------------------------------------------------------------------------------------------------------------ */
enum { MAX_CONVERSATIONS = 200 };
static struct {
  char *text;                                     /* all lines */
  sh_arena *arena;                                /* the conversations */
  const sh_json *conversation[MAX_CONVERSATIONS]; /* {"conversation", "vars"} */
  int n_conversations, templates, cases, errors, wrong;
  char file[200]; /* the template that is compiled, "" for none */
  sh_jinja *compiled;
  sh_error why_not;
} all;

static const sh_json *vars_of(const sh_json *name) {
  for (int i = 0; i < all.n_conversations; i++)
    if (sh_json_eq_str(sh_json_get(all.conversation[i], "conversation"), name->s)) return sh_json_get(all.conversation[i], "vars");
  fail_msg("no conversation '%s'", name->s);
  return NULL;
}

static void compile(const char *file) {
  size_t len;
  sh_error e;
  if (!strcmp(all.file, file)) return;
  sh_jinja_free(all.compiled);
  all.compiled = NULL;
  assert_true(strlen(file) < sizeof all.file);
  snprintf(all.file, sizeof all.file, "%s", file);
  char *path = sh_path_join(root, file), *src;
  if (sh_file_read(path, 1 << 20, &src, &len, &e)) fail_msg("%s", e.text);
  sh_jinja_compile(&all.compiled, src, len, &all.why_not);
  all.templates++;
  sh_free(src);
  sh_free(path);
}

/* The place where two texts part, with a little of both. */
static void show(const char *want, size_t n_want, const char *got, size_t n_got) {
  size_t at = 0;
  while (at < n_want && at < n_got && want[at] == got[at]) at++;
  size_t from = at < 40 ? 0 : at - 40;
  printf("  byte %zu of %zu, %zu\n  want ...%.*s\n  got  ...%.*s\n", at, n_want, n_got, (int)(n_want - from < 100 ? n_want - from : 100),
         want + from, (int)(n_got - from < 100 ? n_got - from : 100), got + from);
}

static void check_case(const sh_json *j) {
  const sh_json *want = sh_json_get(j, "expect"), *conversation = sh_json_get(j, "conversation");
  bool endless = sh_json_eq_str(sh_json_get(j, "error"), "RecursionError");
  sh_buf out, dated;
  sh_error e = {0};
  int rc;
  bool equal = false;
  compile(sh_json_get(j, "template")->s);
  sh_buf_init(&out, 1 << 20);
  sh_buf_init(&dated, 1 << 20);
  for (int attempt = 0; attempt < 2 && !equal; attempt++) { /* the second is for a date that changes in between */
    sh_buf_reset(&out);
    if (all.compiled) rc = sh_jinja_render(all.compiled, vars_of(conversation), NULL, &out, &e);
    else rc = (e = all.why_not).code;
    if (!want) equal = endless ? rc == SH_ERR_LIMIT : rc == SH_ERR_ARG || rc == SH_ERR_FORMAT;
    if (!want || rc) continue;
    put_dates(&dated, want->s, want->len);
    equal = out.len == dated.len && (!out.len || !memcmp(out.p, dated.p, out.len));
  }
  all.cases++;
  all.errors += !want;
  if (!equal) {
    all.wrong++;
    printf("%s, '%s': %s\n", all.file, conversation->s, !want ? "wants an error" : rc ? e.text : "differs");
    if (want && !rc) show(dated.p ? dated.p : "", dated.len, out.p ? out.p : "", out.len);
  }
  sh_buf_free(&out);
  sh_buf_free(&dated);
}

static void every_template_renders_every_conversation_as_jinja2_renders_it(void **state) {
  (void)state;
  sh_error e;
  char *path = sh_path_join(root, "cases.jsonl.gz");
  all.text = read_gzip(path);
  all.arena = sh_arena_new(64 << 20);
  assert_non_null(all.arena);
  for (char *p = all.text, *end; *p; p = end + 1) {
    sh_json *j;
    sh_arena *a = sh_arena_new(32 << 20);
    end = strchr(p, '\n');
    assert_non_null(end);
    bool conversation = !strncmp(p, "{\"conversation\"", 15);
    if (sh_json_parse(p, (size_t)(end - p), NULL, conversation ? all.arena : a, &j, &e)) fail_msg("%s", e.text);
    if (conversation) {
      assert_true(all.n_conversations < MAX_CONVERSATIONS);
      all.conversation[all.n_conversations++] = j;
    } else {
      check_case(j);
    }
    sh_arena_free(a);
  }
  sh_jinja_free(all.compiled);
  sh_arena_free(all.arena);
  sh_free(all.text);
  sh_free(path);
  printf("%d templates, %d cases, %d of them errors, %d wrong\n", all.templates, all.cases, all.errors, all.wrong);
  assert_true(all.templates >= 60 && all.n_conversations >= 60);
  assert_int_equal(all.cases, all.templates * all.n_conversations);
  assert_int_equal(all.wrong, 0);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_template_renders_every_conversation_as_jinja2_renders_it),
  };
  if (argc > 1) root = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
