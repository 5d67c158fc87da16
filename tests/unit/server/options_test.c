/* The option table of `sheng serve`. */
#include "server/options.h"
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void every_option_has_its_environment_variable_and_a_sentence(void **state) {
  (void)state;
  for (const sh_opt *o = sh_serve_option_table; o->name; o++) {
    char want[100] = "SHENG_";
    size_t n = strlen(want);
    for (const char *c = o->name; *c; c++) want[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    want[n] = 0;
    assert_string_equal(o->env, strcmp(o->name, "vllm-api-key") ? want : "VLLM_API_KEY");
    assert_true(o->help && o->help[strlen(o->help) - 1] == '.');
    for (const sh_opt *q = o + 1; q->name; q++) assert_true(strcmp(o->name, q->name) != 0 && o->offset != q->offset);
  }
}

static int parse(sh_serve_options *o, int argc, const char **argv, sh_error *e) {
  sh_strlist rest = {0};
  *o = sh_serve_option_defaults;
  int rc = sh_opt_parse(sh_serve_option_table, o, argc, (char **)argv, &rest, e);
  sh_free((void *)rest.v);
  return rc ? rc : sh_serve_options_check(o, e);
}

static void a_vllm_command_line_is_understood(void **state) {
  (void)state;
  sh_serve_options o;
  sh_error e;
  sh_engine_options eo;
  const char *argv[] = {"serve",   "m",    "--served-model-name", "a",  "b", "--max-model-len", "4096", "--gpu-memory-utilization=0.5",
                        "--dtype", "half", "--api-key",           "k1", "k2"};
  assert_int_equal(parse(&o, 13, argv, &e), 0);
  assert_int_equal(o.served_names.n, 2);
  assert_int_equal(o.api_keys.n, 2);
  sh_serve_engine_options(&o, NULL, &eo);
  assert_int_equal(eo.max_model_len, 4096);
  assert_true(eo.memory_utilization == 0.5);
  assert_string_equal(eo.dtype, "float16");
  sh_free((void *)o.served_names.v);
  sh_free((void *)o.api_keys.v);
}

static void what_cannot_be_is_refused_with_a_sentence(void **state) {
  (void)state;
  static const char *const cases[][3] = {
      {"--tensor-parallel-size", "2", "tensor-parallel-size"},
      {"--port", "70000", "port"},
      {"--default-chat-template-kwargs", "{1}", "default-chat-template-kwargs"},
      {"--default-chat-template-kwargs", "[1]", "JSON object"},
      {"--response-role", "", "response-role"},
      {"--max-modellen", "5", "max-model-len"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sh_serve_options o;
    sh_error e = {0};
    const char *argv[] = {"serve", "m", cases[i][0], cases[i][1]};
    assert_true(parse(&o, 4, argv, &e) < 0);
    assert_non_null(strstr(e.text, cases[i][2]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_option_has_its_environment_variable_and_a_sentence),
      cmocka_unit_test(a_vllm_command_line_is_understood),
      cmocka_unit_test(what_cannot_be_is_refused_with_a_sentence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
