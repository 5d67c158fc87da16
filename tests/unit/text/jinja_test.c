/* The Jinja interpreter: every case that jinja2 itself rendered, limits, errors, memory. Cases: tests/golden/text/jinja_cases.jsonl. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/jinja.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Compiles and renders; the text (or nothing) in out. vars: JSON or NULL. */
static int render_with(const char *src, size_t len, const char *vars, const sh_jinja_limits *lim, sh_buf *out, sh_error *e) {
  sh_jinja *t = NULL;
  sh_json *v = NULL;
  sh_arena *a = sh_arena_new(64 << 20);
  assert_non_null(a);
  if (vars) assert_int_equal(sh_json_parse(vars, strlen(vars), NULL, a, &v, NULL), 0);
  sh_buf_init(out, 64 << 20);
  int rc = sh_jinja_compile(&t, src, len, e);
  if (!rc) rc = sh_jinja_render(t, v, lim, out, e);
  sh_jinja_free(t);
  sh_arena_free(a);
  return rc;
}

static void assert_renders(const char *src, const char *vars, const char *want) {
  sh_buf out;
  sh_error e = {0};
  int rc = render_with(src, strlen(src), vars, NULL, &out, &e);
  if (rc) fail_msg("%s: %s", src, e.text);
  assert_string_equal(out.p ? out.p : "", want);
  sh_buf_free(&out);
}

static void assert_fails(const char *src, const char *vars, const sh_jinja_limits *lim, int code, const char *text) {
  sh_buf out;
  sh_error e = {0};
  int rc = render_with(src, strlen(src), vars, lim, &out, &e);
  if (rc != code) fail_msg("%.100s: code %d in place of %d (%s)", src, rc, code, e.text);
  if (!strstr(e.text, text)) fail_msg("%.100s: '%s' does not say '%s'", src, e.text, text);
  assert_int_equal(out.len, 0);
  sh_buf_free(&out);
}

/* Calls fn for each line of a JSON-lines file; returns their number. */
static int each_line(const char *path, void (*fn)(const sh_json *)) {
  char *text;
  size_t len;
  sh_error e;
  int n = 0;
  if (sh_file_read(path, 16 << 20, &text, &len, &e)) fail_msg("%s", e.text);
  for (char *p = text, *end; *p; p = end + 1) {
    sh_json *j;
    sh_arena *a = sh_arena_new(32 << 20);
    end = strchr(p, '\n');
    assert_non_null(end);
    assert_int_equal(sh_json_parse(p, (size_t)(end - p), NULL, a, &j, &e), 0);
    fn(j);
    n++;
    sh_arena_free(a);
  }
  sh_free(text);
  return n;
}

static int wrong;

static void check_case(const sh_json *j) {
  const sh_json *src = sh_json_get(j, "template"), *want = sh_json_get(j, "expect");
  sh_jinja *t = NULL;
  sh_buf out;
  sh_error e = {0};
  sh_buf_init(&out, 1 << 20);
  int rc = sh_jinja_compile(&t, src->s, src->len, &e);
  if (!rc) rc = sh_jinja_render(t, sh_json_get(j, "vars"), NULL, &out, &e);
  if (want && (rc || out.len != want->len || (want->len && memcmp(out.p, want->s, want->len) != 0))) {
    printf("template: %s\n  want %s\n  got  %s\n", src->s, want->s, rc ? e.text : out.p ? out.p : "");
    wrong++;
  }
  if (!want && rc != SH_ERR_ARG && rc != SH_ERR_FORMAT) {
    printf("template: %s\n  want an error, got %d %s\n", src->s, rc, rc ? e.text : out.p ? out.p : "");
    wrong++;
  }
  if (rc && !e.text[0]) wrong++;
  sh_jinja_free(t);
  sh_buf_free(&out);
}

static void every_case_renders_as_jinja2_renders_it(void **state) {
  (void)state;
  wrong = 0;
  int n = each_line("tests/golden/text/jinja_cases.jsonl", check_case);
  assert_true(n >= 1500);
  assert_int_equal(wrong, 0);
}

static void a_raised_message_is_the_whole_error(void **state) {
  (void)state;
  static const char src[] = "a{{ raise_exception('No \"user\" ' ~ 1) }}";
  sh_buf out;
  sh_error e;
  assert_int_equal(render_with(src, sizeof src - 1, NULL, NULL, &out, &e), SH_ERR_ARG);
  assert_string_equal(e.text, "No \"user\" 1");
  assert_int_equal(e.code, SH_ERR_ARG);
  sh_buf_free(&out);
}

static void errors_name_their_line(void **state) {
  (void)state;
  assert_fails("a\n\n{{ x.y }}", "{}", NULL, SH_ERR_ARG, "line 3: 'x' is undefined");
  assert_fails("\n{% for i in [1] %}\n{{ {'a': 1}.b.c }}{% endfor %}", "{}", NULL, SH_ERR_ARG,
               "line 3: 'dict object' has no attribute 'b'");
  assert_fails("{{ 1 +\n\n'a' }}", "{}", NULL, SH_ERR_ARG, "line 1: unsupported operand");
  assert_fails("{# a\n\n #}{{ 1 }}\n{% if %}", NULL, NULL, SH_ERR_FORMAT, "line 4:");
  assert_fails("{% raw %}\n\n{% endraw %}\n{{ 'a\nb' | nofilter }}", NULL, NULL, SH_ERR_FORMAT, "line 5: no filter named 'nofilter'");
  assert_fails("{% macro m(a) %}\n{{ a + 1 }}{% endmacro %}\n\n{{ m('x') }}", NULL, NULL, SH_ERR_ARG, "line 2:");
  assert_fails("{% for x in y %}", NULL, NULL, SH_ERR_FORMAT, "endfor");
  assert_fails("{{ l.append(1) }}", "{\"l\": []}", NULL, SH_ERR_ARG, "access to attribute 'append' of 'list' object is unsafe");
  assert_fails("\xff{{ 1 }}", NULL, NULL, SH_ERR_FORMAT, "UTF-8");
  assert_fails("{% include 'a' %}", NULL, NULL, SH_ERR_FORMAT, "'include'");
}

static void limits_end_a_render_cleanly(void **state) {
  (void)state;
  const sh_jinja_limits small = {.max_output = 1000, .max_steps = 10000, .max_depth = 20, .max_memory = 1 << 20};
  static const char *const hungry[] = {
      "{{ 'x' * 10**9 }}",
      "{{ 'x' * 10**18 }}",
      "{{ [0] * 10**9 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format('') }}",
      "{{ 'a'.center(10**9) }}",
      "{{ 'a'|center(10**9) }}",
      "{{ 'a'.zfill(10**9) }}",
      "{{ 'a\\nb'|indent(10**9) }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% for a in range(99999) %}x{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for a in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=()) %}{% for a in range(9999) %}{% set ns.l = (ns.l,) %}{% endfor %}{{ ns.l == ns.l[0] }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call m() %}{% endcall %}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ range(99999)|list|batch(1, 0)|list|map('list')|list|length }}",
      "{{ 'ab'|replace('', 'x' * 900)|replace('x', 'y' * 900) }}",
      "{{ [1]|batch(10**9, 0)|list }}",
      "{{ [1]|slice(10**9)|list }}",
      "{{ dict(a=range(99999)|list)|tojson }}",
      "{{ 'x'.join(range(99999)|map('string')) }}",
  };
  for (size_t i = 0; i < sizeof hungry / sizeof *hungry; i++) assert_fails(hungry[i], NULL, &small, SH_ERR_LIMIT, "limit");
  assert_fails("{{ 'x' * 10**9 }}", NULL, NULL, SH_ERR_LIMIT, "memory limit");
  assert_fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, NULL, SH_ERR_LIMIT, "limit");
  assert_fails("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", NULL, NULL, SH_ERR_LIMIT, "output limit");
}

/* n times `open`, `middle`, n times `close`. */
static char *nested(int n, const char *before, const char *open, const char *middle, const char *close, const char *after) {
  sh_buf b;
  sh_buf_init(&b, 1 << 24);
  sh_buf_puts(&b, before);
  for (int i = 0; i < n; i++) sh_buf_puts(&b, open);
  sh_buf_puts(&b, middle);
  for (int i = 0; i < n; i++) sh_buf_puts(&b, close);
  sh_buf_puts(&b, after);
  char *s = sh_buf_detach(&b);
  assert_non_null(s);
  return s;
}

static void deep_nesting_is_refused_and_long_chains_are_not(void **state) {
  (void)state;
  static const struct {
    const char *before, *open, *middle, *close, *after;
  } deep[] = {{"{{ ", "(", "1", ")", " }}"},
              {"{{ ", "[", "1", "]", " }}"},
              {"{{ ", "{1:", "1", "}", " }}"},
              {"{{ ", "f(", "1", ")", " }}"},
              {"{{ ", "-", "1", "", " }}"},
              {"{{ ", "not ", "1", "", " }}"},
              {"{{ 1", "|e", "", "", " }}"},
              {"{{ a", ".b", "", "", " }}"},
              {"{{ a", "[0]", "", "", " }}"},
              {"{{ a", "()", "", "", " }}"},
              {"{{ ", "1 if ", "1", " else 1", " }}"},
              {"{{ 1 ", "if 1 else 1 ", "", "", " }}"},
              {"", "{% if 1 %}", "", "{% endif %}", ""},
              {"", "{% for i in a %}", "", "{% endfor %}", ""},
              {"{% filter e", "|e", "", "", " %}{% endfilter %}"},
              {"{% set x ", "|e", "", "", " %}{% endset %}"},
              {"{{ a", "[a", "", "]", " }}"},
              {"{% set ", "(", "a", ",)", " = 1 %}"}};
  for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
    char *s = nested(20000, deep[i].before, deep[i].open, deep[i].middle, deep[i].close, deep[i].after);
    assert_fails(s, NULL, NULL, SH_ERR_LIMIT, "");
    sh_free(s);
  }
  char *s = nested(5000, "{{ 0", "+1", "", "", " }}");
  assert_renders(s, NULL, "5000");
  sh_free(s);
  s = nested(5000, "{{ (0", " or 0", "", "", ") == 0 }}");
  assert_renders(s, NULL, "True");
  sh_free(s);
  s = nested(3000, "{{ (''", "~'a'", "", "", ")|length }}");
  assert_renders(s, NULL, "3000");
  sh_free(s);
  s = nested(3000, "{% if 0 %}", "{% elif 0 %}", "{% else %}x{% endif %}", "", "");
  assert_renders(s, NULL, "x");
  sh_free(s);
  s = nested(40, "{{ ", "(", "7", ")", " }}");
  assert_renders(s, NULL, "7");
  sh_free(s);
}

static void appending_in_a_loop_is_linear(void **state) {
  (void)state;
  assert_renders("{% set ns = namespace(s='', l=[]) %}{% for i in range(50000) %}{% set ns.s = ns.s + 'abcdefghij' %}{% set ns.l = ns.l + "
                 "[i] %}{% endfor %}"
                 "{{ ns.s|length }} {{ ns.l|length }} {{ ns.l|sum }}",
                 NULL, "500000 50000 1249975000");
}

static void strftime_now_gives_local_time(void **state) {
  (void)state;
  char want[100];
  time_t before = time(NULL), after = before + 1;
  for (int i = 0; i < 3 && before != after; i++) { /* again if a second boundary fell between */
    sh_buf out;
    struct tm tm;
    before = time(NULL);
    localtime_r(&before, &tm);
    strftime(want, sizeof want, "%Y-%m-%d %H:%M:%S %b %A|", &tm);
    static const char src[] = "{{ strftime_now('%Y-%m-%d %H:%M:%S %b %A|%Z') }}{{ strftime_now('%f')|length }}";
    assert_int_equal(render_with(src, sizeof src - 1, NULL, NULL, &out, NULL), 0);
    after = time(NULL);
    if (before == after) assert_true(strncmp(out.p, want, strlen(want)) == 0 && strcmp(out.p + strlen(want), "6") == 0);
    sh_buf_free(&out);
  }
  assert_fails("{{ strftime_now(1) }}", NULL, NULL, SH_ERR_ARG, "format string");
  assert_renders("{{ strftime_now('') }}", NULL, "");
}

static void big_integers_and_strings_with_nul_pass_through(void **state) {
  (void)state;
  assert_renders("{{ x }} {{ x|tojson }} {{ [x] }} {{ x is integer }} {{ x > 1 }}", "{\"x\": -12345678901234567890123}",
                 "-12345678901234567890123 -12345678901234567890123 [-12345678901234567890123] True False");
  assert_fails("{{ x + 1 }}", "{\"x\": 12345678901234567890123}", NULL, SH_ERR_ARG, "beyond 64 bits");
  assert_renders("{{ x|length }}{{ x|tojson }}", "{\"x\": \"a\\u0000b\"}", "3\"a\\u0000b\"");
  assert_renders("{{ x }}", "{\"x\": 1e400}", "inf");
  assert_renders("{{ x }} {{ x is integer }}", "{\"x\": 1e3}", "1000.0 False");
}

static void variables_win_over_global_functions(void **state) {
  (void)state;
  assert_renders("{{ range }}{{ namespace }}", "{\"range\": 1, \"namespace\": \"n\"}", "1n");
  assert_fails("{{ 1 }}", "[1]", NULL, SH_ERR_ARG, "wanted an object");
}

static sh_jinja *shared;

static void *render_many(void *arg) {
  long bad = 0;
  for (int i = 0; i < 200; i++) {
    sh_buf out;
    sh_buf_init(&out, 1 << 16);
    if (sh_jinja_render(shared, NULL, NULL, &out, NULL) || strcmp(out.p, "é日本0 é日本1 é日本2  3\n") != 0) bad++;
    sh_buf_free(&out);
  }
  *(long *)arg = bad;
  return NULL;
}

static void one_template_renders_on_many_threads(void **state) {
  (void)state;
  static const char src[] =
      "{% macro m(x) %}{{ 'é日本' ~ x }} {% endmacro %}{% for i in range(3) %}{{ m(i) }}{% endfor %} {{ 'é日本'|length }}{{ '\\n' }}";
  pthread_t t[4];
  long bad[4];
  assert_int_equal(sh_jinja_compile(&shared, src, sizeof src - 1, NULL), 0);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, render_many, &bad[i]), 0);
  for (int i = 0; i < 4; i++) {
    pthread_join(t[i], NULL);
    assert_int_equal(bad[i], 0);
  }
  sh_jinja_free(shared);
}

static void every_failed_allocation_is_reported(void **state) {
  (void)state;
  static const char src[] =
      "{% macro m(a, b=2) %}{{ a ~ b ~ varargs }}{% endmacro %}{% for x in l if x %}{{ m(x, 1, 2) }}{{ loop.last }}{% endfor %}"
      "{{ l|sort|map('string')|join(',') }}{{ d|tojson(indent=2) }}{{ '%5.2f' % 2.5 }}{{ 'a b'.split()|groupby(0)|list }}";
  for (long n = 0;; n++) {
    sh_arena *a = sh_arena_new(1 << 20);
    sh_json *v;
    sh_jinja *t = NULL;
    sh_buf out;
    sh_error e = {0};
    static const char vars[] = "{\"l\": [3, 0, 1], \"d\": {\"k\": [1, {\"z\": null}]}}";
    assert_int_equal(sh_json_parse(vars, sizeof vars - 1, NULL, a, &v, NULL), 0);
    sh_buf_init(&out, 1 << 16);
    sh_mem_fail_after(n);
    int rc = sh_jinja_compile(&t, src, sizeof src - 1, &e);
    if (!rc) rc = sh_jinja_render(t, v, NULL, &out, &e);
    sh_mem_fail_after(-1);
    if (rc) assert_int_equal(rc, SH_ERR_NOMEM);
    sh_jinja_free(t);
    sh_buf_free(&out);
    sh_arena_free(a);
    if (!rc) break;
    assert_true(n < 1000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_case_renders_as_jinja2_renders_it),
      cmocka_unit_test(a_raised_message_is_the_whole_error),
      cmocka_unit_test(errors_name_their_line),
      cmocka_unit_test(limits_end_a_render_cleanly),
      cmocka_unit_test(deep_nesting_is_refused_and_long_chains_are_not),
      cmocka_unit_test(appending_in_a_loop_is_linear),
      cmocka_unit_test(strftime_now_gives_local_time),
      cmocka_unit_test(big_integers_and_strings_with_nul_pass_through),
      cmocka_unit_test(variables_win_over_global_functions),
      cmocka_unit_test(one_template_renders_on_many_threads),
      cmocka_unit_test(every_failed_allocation_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
