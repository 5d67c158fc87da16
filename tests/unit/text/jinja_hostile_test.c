/* Templates under damage: a refusal with a sentence at compiling, or a render that ends within its limits with valid UTF-8 or with a
 * sentence. Also what a template may be asked to render with: every value of its variables replaced. */
#include "unit/hostile.h"

#include "text/jinja.h"

static const char TEMPLATE[] =
    "{%- macro part(c, n=2) -%}{%- if c is string -%}{{ c | trim }}{%- else -%}{%- for p in c -%}{{ p.text | default('?') }}{%- endfor -%}"
    "{%- endif -%}{%- endmacro -%}\n"
    "{#- a comment -#}{%- set ns = namespace(i=0, last=-1) -%}{%- set big = 2147483647 -%}\n"
    "{%- for m in messages -%}{%- if loop.first and m['role'] != 'system' -%}{{ raise_exception('no system') }}{%- endif -%}\n"
    "<|{{ m.role | upper }}|>{{ part(m.content, n=3) }}{%- set ns.i = ns.i + 1 -%}{{ '%05.2f' % 3.25 }}{{ m.role[1:-1:2] }}{{ loop.index0 "
    "}}\n"
    "{%- if m.tool_calls -%}{%- for t in m.tool_calls -%}{{ t.function | tojson(indent=2) }}{%- endfor -%}{%- endif -%}{%- endfor -%}\n"
    "{{ range(0, 20, 3) | list | join(', ') }}{{ 'a,b,c'.split(',') | reverse | list }}{{ 'x' * 40 ~ 7 // 2 ** 3 }}\n"
    "{%- filter upper -%}{{ messages | map(attribute='role') | unique | sort | join('-') }}{%- endfilter -%}\n"
    "{{ tools | selectattr('x', 'defined') | list | length if tools else 'none' }}{{ 'ab'.center(10) | replace('a', 'bb', 1) | indent(4) "
    "}}\n"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}";

static const char VARS[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"h\xC3\xA9\"}]}, {\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": [{\"function\": {\"name\": \"f\","
    "\"arguments\": {\"a\": [1, 2.5, null]}}}]}], \"tools\": [{\"x\": 1}], \"add_generation_prompt\": true}";

static const sh_jinja_limits LIMITS = {.max_output = 1 << 18, .max_steps = 100000, .max_depth = 60, .max_memory = 4 << 20};

static int rendered(const sh_jinja *t, const sh_json *vars, sh_error *e) {
  sh_buf out;
  sh_buf_init(&out, 1 << 20);
  int rc = sh_jinja_render(t, vars, &LIMITS, &out, e);
  if (rc) assert_int_equal(out.len, 0);
  else assert_true(out.len <= LIMITS.max_output && sh_utf8_valid(out.p ? out.p : "", out.len));
  sh_buf_free(&out);
  /* raise_exception's message is the template's: it may be empty */
  if (rc == SH_ERR_ARG && e->code == rc && !e->text[0]) snprintf(e->text, sizeof e->text, "(an empty message of the template)");
  return rc;
}

static int compile_and_render(const char *p, size_t n, void *ctx, sh_error *e) {
  sh_jinja *t = NULL;
  int rc = sh_jinja_compile(&t, p, n, e);
  if (rc) assert_null(t);
  else rc = rendered(t, ctx, e);
  sh_jinja_free(t);
  return rc;
}

static void damaged_templates_are_refused_or_render_within_limits(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *vars;
  assert_int_equal(sh_json_parse(VARS, sizeof VARS - 1, NULL, a, &vars, NULL), 0);
  hostile h = {.fn = compile_and_render, .ctx = vars};
  every_truncation(&h, TEMPLATE, sizeof TEMPLATE - 1);
  seeded_damage(&h, TEMPLATE, sizeof TEMPLATE - 1, 420, 6000);
  assert_both(&h, 200, 2000);
  sh_arena_free(a);
}

static int render_with(const char *p, size_t n, void *ctx, sh_error *e) {
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *vars;
  assert_non_null(a);
  int rc = sh_json_parse(p, n, NULL, a, &vars, e);
  if (!rc && !sh_json_is(vars, SH_JSON_OBJECT)) rc = sh_fail(e, SH_ERR_ARG, "variables are an object");
  if (!rc) rc = rendered(ctx, vars, e);
  sh_arena_free(a);
  return rc;
}

static void hostile_variables_are_refused_or_rendered(void **state) {
  (void)state;
  sh_jinja *t = NULL;
  assert_int_equal(sh_jinja_compile(&t, TEMPLATE, sizeof TEMPLATE - 1, NULL), 0);
  hostile h = {.fn = render_with, .ctx = t};
  every_value_replaced(&h, VARS, sizeof VARS - 1);
  seeded_damage(&h, VARS, sizeof VARS - 1, 60, 2000);
  assert_both(&h, 200, 500);
  sh_jinja_free(t);
}

/* What multiplies: each must end at a limit, quickly and with small memory. */
static void templates_that_multiply_end_at_a_limit(void **state) {
  (void)state;
  static const char *const BOMBS[] = {
      "{% for a in range(1000000000) %}{% endfor %}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [0] * 4611686018427387904 }}",
      "{{ range(9223372036854775807) | list }}",
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1, 2]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ '%.9999999999f' % 1.5 }}",
      "{{ 'a'.center(9999999999) }}",
      "{{ 'a' | indent(9999999999) }}",
      "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'.replace('', 'bbbbbbbbbbbbbbbbbbbbbbbbbb' * 100000) }}",
      "{{ 9 ** 9 ** 9 ** 9 }}",
      "{{ [1, 2] | batch(9223372036854775807, 'x') | list }}",
      "{{ [1, 2] | slice(9223372036854775807) | list }}",
      "{{ {'a': [1, [2]]} | tojson(indent=9999999999) }}",
      "{% set x = {} %}{% for i in range(9000) recursive %}{{ loop(range(9000)) }}{% endfor %}",
  };
  for (size_t i = 0; i < sizeof BOMBS / sizeof BOMBS[0]; i++) {
    sh_json object = {.type = SH_JSON_OBJECT};
    sh_jinja *t = NULL;
    sh_error e = {0};
    double before = cpu_seconds();
    int rc = sh_jinja_compile(&t, BOMBS[i], strlen(BOMBS[i]), &e);
    if (!rc) rc = rendered(t, &object, &e);
    sh_jinja_free(t);
    if (rc >= 0 || rc == SH_ERR_NOMEM || !e.text[0] || cpu_seconds() - before > CASE_SECONDS)
      fail_msg("%s: %d %s, %.2f s", BOMBS[i], rc, e.text, cpu_seconds() - before);
  }
}

/* Names of arguments are compared one by one, so a call of 60,000 would take minutes if the comparing were not counted. */
static void calls_with_many_keywords_end_at_a_limit(void **state) {
  (void)state;
  static const struct {
    const char *begin, *end;
  } KINDS[] = {{"{{ dict(", ") }}"},
               {"{{ namespace(", ") }}"},
               {"{{ undefined_name(", ") }}"},
               {"{{ '{a1}'.format(", ") }}"},
               {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(", ") }}"},
               {"{% macro m(k=0) %}{{ k }}{% endmacro %}{{ m(", ") }}"},
               {"{% set d = dict(", ") %}"}};
  for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
    sh_buf b;
    sh_json object = {.type = SH_JSON_OBJECT};
    sh_jinja *t = NULL;
    sh_error e = {0};
    double before = cpu_seconds();
    sh_buf_init(&b, 1 << 22);
    sh_buf_puts(&b, KINDS[k].begin);
    for (int i = 0; i < 60000; i++) sh_buf_printf(&b, "a%d=1,", i);
    sh_buf_puts(&b, KINDS[k].end);
    assert_int_equal(sh_jinja_compile(&t, b.p, b.len, &e), 0);
    assert_int_equal(rendered(t, &object, &e), SH_ERR_LIMIT);
    assert_non_null(strstr(e.text, "step limit"));
    if (cpu_seconds() - before > CASE_SECONDS) fail_msg("%s: %.2f s", KINDS[k].begin, cpu_seconds() - before);
    sh_jinja_free(t);
    sh_buf_free(&b);
  }
}

/* Nesting at compiling: it must end in a refusal or in a render, not in the stack's end. */
static void deep_templates_are_refused_or_render(void **state) {
  (void)state;
  static const struct {
    const char *open, *close;
  } KINDS[] = {{"(", ")"},           {"[", "]"},   {"-", ""},     {"not ", ""}, {"f(", ")"},  {"1 + ", ""},   {"1 ** ", ""},
               {"a if b else ", ""}, {"{1:", "}"}, {"a|f(", ")"}, {"a[", "]"},  {"1 < ", ""}, {"a and ", ""}, {"a ~ ", ""}};
  for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
    sh_buf b;
    sh_json object = {.type = SH_JSON_OBJECT};
    sh_jinja *t = NULL;
    sh_error e = {0};
    sh_buf_init(&b, 1 << 22);
    sh_buf_puts(&b, "{{ ");
    for (int i = 0; i < 50000; i++) sh_buf_puts(&b, KINDS[k].open);
    sh_buf_puts(&b, "1");
    for (int i = 0; i < 50000; i++) sh_buf_puts(&b, KINDS[k].close);
    sh_buf_puts(&b, " }}");
    int rc = sh_jinja_compile(&t, b.p, b.len, &e);
    if (!rc) rc = rendered(t, &object, &e);
    if (rc == SH_ERR_NOMEM || (rc && !e.text[0])) fail_msg("%s...: %d %s", KINDS[k].open, rc, e.text);
    sh_jinja_free(t);
    sh_buf_free(&b);
  }
  sh_buf b;
  sh_jinja *t = NULL;
  sh_error e = {0};
  sh_buf_init(&b, 1 << 22);
  for (int i = 0; i < 20000; i++) sh_buf_puts(&b, "{% if 1 %}");
  for (int i = 0; i < 20000; i++) sh_buf_puts(&b, "{% endif %}");
  assert_true(sh_jinja_compile(&t, b.p, b.len, &e) < 0 && e.text[0]);
  sh_buf_free(&b);
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(damaged_templates_are_refused_or_render_within_limits),
      cmocka_unit_test(hostile_variables_are_refused_or_rendered),
      cmocka_unit_test(templates_that_multiply_end_at_a_limit),
      cmocka_unit_test(calls_with_many_keywords_end_at_a_limit),
      cmocka_unit_test(deep_templates_are_refused_or_render),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
