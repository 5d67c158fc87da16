/* Options: the command line, the environment, messages, and the texts made from a table. */
#include "base/opt.h"
#include "unit/base/harness.h"

typedef struct opts {
  bool stream, prefix_caching;
  int64_t port, seed, cache;
  double share;
  const char *host, *dtype, *api_key;
  sh_strlist names;
} opts;

static const opts DEFAULTS = {
    .prefix_caching = true, .port = 8000, .share = 0.9, .cache = INT64_C(4) << 30, .host = "127.0.0.1", .dtype = "auto"};

#define AT(f) offsetof(opts, f)
static const sh_opt TABLE[] = {
    {"help", "h", SH_OPT_FLAG, AT(stream), 0, 0, NULL, NULL, "General", NULL, "Show this text."},
    {"host", NULL, SH_OPT_STR, AT(host), 0, 0, NULL, "T_HOST", "Server", "NAME", "Address to listen on."},
    {"port", "p", SH_OPT_INT, AT(port), 1, 65535, NULL, "T_PORT", "Server", "N", "Port."},
    {"enable-prefix-caching", NULL, SH_OPT_FLAG, AT(prefix_caching), 0, 0, NULL, "T_CACHING", "Engine", NULL, "Reuse prefixes."},
    {"seed", NULL, SH_OPT_INT, AT(seed), 0, 0, NULL, NULL, "Engine", "N", "Seed."},
    {"memory-utilization", "gpu-memory-utilization", SH_OPT_FLOAT, AT(share), 0.01, 1, NULL, NULL, "Engine", "X", "Share of the memory."},
    {"dtype", NULL, SH_OPT_ENUM, AT(dtype), 0, 0, "auto|bfloat16|float32", NULL, "Engine", NULL, "Type of the cache."},
    {"cache-size", NULL, SH_OPT_SIZE, AT(cache), 1 << 20, 1e15, NULL, "T_CACHE", "Engine", NULL, "Bytes of the cache."},
    {"served-model-name", NULL, SH_OPT_LIST, AT(names), 0, 0, NULL, "T_NAMES", "Server", "NAME", "Names the model answers to."},
    {"api-key", NULL, SH_OPT_STR, AT(api_key), 0, 0, NULL, "T_API_KEY", "Server", "KEY", "Key that clients must send."},
    {0},
};

static opts o;
static sh_strlist rest;
static sh_error err;

static int reset(void **state) {
  (void)state;
  if (o.names.private_cap) sh_free((void *)o.names.v);
  sh_free((void *)rest.v);
  o = DEFAULTS;
  rest = (sh_strlist){0};
  static const char *const names[] = {"T_HOST", "T_PORT", "T_CACHING", "T_CACHE", "T_NAMES", "T_API_KEY"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  return 0;
}

/* Parses a command line that is split at blanks. */
static int parse(const char *line) {
  static char copy[1024];
  char *argv[64] = {"serve"};
  int argc = 1;
  snprintf(copy, sizeof copy, "%s", line);
  for (char *p = copy; *p;) {
    argv[argc++] = p;
    p += strcspn(p, " ");
    if (*p) *p++ = '\0';
  }
  reset(NULL);
  return sh_opt_parse(TABLE, &o, argc, argv, &rest, &err);
}

static void must(const char *line) {
  if (parse(line)) fail_msg("%s: %s", line, err.text);
}

static void must_fail(const char *line, const char *part) {
  if (parse(line) != SH_ERR_ARG) fail_msg("%s was accepted", line);
  assert_contains(err.text, part);
  assert_null(rest.v);
}

static void values_follow_after_a_blank_or_an_equals_sign(void **state) {
  (void)state;
  must("model --host 0.0.0.0 --port=9000 --memory-utilization 0.5 --dtype float32 --cache-size 2GiB");
  assert_string_equal(o.host, "0.0.0.0");
  assert_int_equal(o.port, 9000);
  assert_true(o.share == 0.5);
  assert_string_equal(o.dtype, "float32");
  assert_true(o.cache == INT64_C(2) << 30);
  assert_int_equal(rest.n, 1);
  assert_string_equal(rest.v[0], "model");
}

static void untouched_options_keep_their_defaults(void **state) {
  (void)state;
  must("");
  assert_memory_equal(&o, &DEFAULTS, sizeof o);
  assert_int_equal(rest.n, 0);
}

static void underscores_and_aliases_are_other_spellings(void **state) {
  (void)state;
  must("--gpu_memory_utilization 0.25 -p 81 --served_model_name=a_b");
  assert_true(o.share == 0.25);
  assert_int_equal(o.port, 81);
  assert_string_equal(o.names.v[0], "a_b"); /* only names are changed, not values */
}

static void flags_have_three_forms(void **state) {
  (void)state;
  must("--no-enable-prefix-caching -h");
  assert_false(o.prefix_caching);
  assert_true(o.stream);
  must("--enable_prefix_caching=FALSE");
  assert_false(o.prefix_caching);
  must("--no-enable-prefix-caching --enable-prefix-caching=true");
  assert_true(o.prefix_caching);
  must_fail("--no-enable-prefix-caching=true", "takes no value");
  must_fail("--enable-prefix-caching=maybe", "'maybe', wanted true or false");
  must_fail("--no-port", "unknown option --no-port");
}

static void a_list_takes_values_up_to_the_next_option(void **state) {
  (void)state;
  must("model --served-model-name a b -5 --port 81 x");
  assert_int_equal(o.names.n, 3);
  assert_string_equal(o.names.v[2], "-5");
  assert_int_equal(rest.n, 2);
  assert_string_equal(rest.v[1], "x");
  must("--served-model-name a -p 82");
  assert_int_equal(o.names.n, 1);
  assert_int_equal(o.port, 82);
  must("--served-model-name a --served-model-name b c --served-model-name=d m");
  assert_int_equal(o.names.n, 4);
  assert_string_equal(o.names.v[3], "d");
  assert_string_equal(rest.v[0], "m"); /* after "=value" a list takes no more */
  must("--served-model-name a -- m");
  assert_int_equal(o.names.n, 1);
  assert_string_equal(rest.v[0], "m");
  must_fail("--served-model-name --port 81", "one or more values");
  must_fail("--served-model-name", "one or more values");
}

static void two_dashes_end_the_options(void **state) {
  (void)state;
  must("--port 81 -- --port -");
  assert_int_equal(rest.n, 2);
  assert_string_equal(rest.v[0], "--port");
  must("-");
  assert_string_equal(rest.v[0], "-");
}

static void values_may_be_negative_but_do_not_look_like_options(void **state) {
  (void)state;
  must("--seed -1");
  assert_int_equal(o.seed, -1);
  must("--host=--strange");
  assert_string_equal(o.host, "--strange");
  must_fail("--host --port 81", "--host wants a value");
  must_fail("--host", "--host wants a value");
}

static void wrong_values_say_what_was_wanted(void **state) {
  (void)state;
  must_fail("--port 0", "--port: found 0, wanted a value from 1 to 65535");
  must_fail("--port 65536", "1 to 65535");
  must_fail("-p x", "-p: found 'x', wanted a whole number");
  must_fail("--port=", "found ''");
  must_fail("--port 99999999999999999999", "whole number");
  must_fail("--memory-utilization 1.5", "0.01 to 1");
  must_fail("--memory-utilization nan", "wanted a number");
  must_fail("--dtype int4", "auto|bfloat16|float32");
  must_fail("--dtype auto|bfloat16", "wanted one of");
  must_fail("--cache-size big", "8GiB");
  must_fail("--cache-size 1K", "1.0 MiB");
}

static void an_unknown_option_names_the_closest(void **state) {
  (void)state;
  must_fail("--prot 81", "unknown option --prot; the closest one is --port");
  must_fail("--served-model-nam=x", "unknown option --served-model-nam; the closest one is --served-model-name");
  must_fail("--gpu-memory-util 1", "--gpu-memory-utilization");
  must_fail("-x", "unknown option -x");
  must_fail("-port 1", "--port");
}

static void a_name_that_cannot_be_one_is_refused(void **state) {
  (void)state;
  must_fail("--=x", "unknown option");
  char line[400] = "--";
  memset(line + 2, 'x', 300);
  line[302] = '\0';
  must_fail(line, "unknown option --xxx");
}

static int parse_env(const char *name, const char *value, int argc, char **argv) {
  reset(NULL);
  setenv(name, value, 1);
  int rc = sh_opt_parse(TABLE, &o, argc, argv, &rest, &err);
  unsetenv(name);
  return rc;
}

static void the_environment_is_read_and_the_command_line_wins(void **state) {
  (void)state;
  char *none[] = {"serve"}, *port[] = {"serve", "--port", "5"}, *names[] = {"serve", "--served-model-name", "x", "y"};
  assert_int_equal(parse_env("T_PORT", "70", 1, none), 0);
  assert_int_equal(o.port, 70);
  assert_int_equal(parse_env("T_PORT", "70", 3, port), 0);
  assert_int_equal(o.port, 5);
  assert_int_equal(parse_env("T_PORT", "", 1, none), 0);
  assert_int_equal(o.port, 8000);
  assert_int_equal(parse_env("T_CACHING", "0", 1, none), 0);
  assert_false(o.prefix_caching);
  assert_int_equal(parse_env("T_NAMES", "a", 1, none), 0);
  assert_int_equal(o.names.n, 1);
  assert_int_equal(parse_env("T_NAMES", "a", 4, names), 0);
  assert_int_equal(o.names.n, 2);
  assert_string_equal(o.names.v[0], "x");
  assert_int_equal(parse_env("T_PORT", "http", 1, none), SH_ERR_ARG);
  assert_contains(err.text, "T_PORT: found 'http'");
}

static void parsing_without_memory_is_an_error(void **state) {
  (void)state;
  char *argv[] = {"serve", "model", "--served-model-name", "a"};
  for (long n = 0; n < 3; n++) {
    reset(NULL);
    sh_mem_fail_after(n);
    int rc = sh_opt_parse(TABLE, &o, 4, argv, &rest, &err);
    sh_mem_fail_after(-1);
    assert_int_equal(rc, SH_ERR_NOMEM);
    assert_null(rest.v);
  }
}

static void help_shows_groups_ranges_defaults_and_variables(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_opt_help(TABLE, &DEFAULTS, "sheng serve MODEL [options]", &b), 0);
  assert_true(strncmp(b.p, "Usage: sheng serve MODEL [options]\n\nGeneral:\n  -h, --[no-]help ", 62) == 0);
  assert_contains(b.p, "\nServer:\n  --host NAME");
  assert_contains(b.p, "Port. (1 to 65535; default: 8000; env: T_PORT)");
  assert_contains(b.p, "--memory-utilization, --gpu-memory-utilization X\n");
  assert_contains(b.p, "(auto|bfloat16|float32; default: auto)");
  assert_contains(b.p, "default: 4GiB");
  assert_contains(b.p, "--served-model-name NAME [NAME ...]");
  assert_null(strstr(strstr(b.p, "Server:") + 1, "Server:")); /* a group that is split in the table has one heading */
  for (const char *line = b.p; *line; line += strcspn(line, "\n") + 1) assert_true(strcspn(line, "\n") <= 110);
  sh_buf_free(&b);
  sh_buf_init(&b, 100);
  assert_int_equal(sh_opt_help(TABLE, &DEFAULTS, "x", &b), SH_ERR_LIMIT);
  sh_buf_free(&b);
}

static void the_docs_page_is_a_table(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_opt_markdown(TABLE, &DEFAULTS, &b), 0);
  assert_contains(b.p, "| `-p, --port` | N (1 to 65535) | `8000` | `T_PORT` | Port. |\n");
  assert_contains(b.p, "auto\\|bfloat16\\|float32");
  for (const char *line = b.p; *line; line += strcspn(line, "\n") + 1) assert_int_equal(*line, '|');
  sh_buf_free(&b);
}

static void the_effective_configuration_shows_changes_and_hides_keys(void **state) {
  (void)state;
  must("--port 8000 --api-key topsecret --served-model-name a b --no-enable-prefix-caching --cache-size 512MiB");
  o.host = "it's here";
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_opt_effective(TABLE, &o, &DEFAULTS, &b), 0);
  assert_string_equal(b.p, "host='it'\\''s here' enable-prefix-caching=false cache-size=512MiB served-model-name=a,b api-key=***");
  sh_buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_follow_after_a_blank_or_an_equals_sign),
      cmocka_unit_test(untouched_options_keep_their_defaults),
      cmocka_unit_test(underscores_and_aliases_are_other_spellings),
      cmocka_unit_test(flags_have_three_forms),
      cmocka_unit_test(a_list_takes_values_up_to_the_next_option),
      cmocka_unit_test(two_dashes_end_the_options),
      cmocka_unit_test(values_may_be_negative_but_do_not_look_like_options),
      cmocka_unit_test(wrong_values_say_what_was_wanted),
      cmocka_unit_test(an_unknown_option_names_the_closest),
      cmocka_unit_test(a_name_that_cannot_be_one_is_refused),
      cmocka_unit_test(the_environment_is_read_and_the_command_line_wins),
      cmocka_unit_test(parsing_without_memory_is_an_error),
      cmocka_unit_test(help_shows_groups_ranges_defaults_and_variables),
      cmocka_unit_test(the_docs_page_is_a_table),
      cmocka_unit_test(the_effective_configuration_shows_changes_and_hides_keys),
  };
  return cmocka_run_group_tests(tests, reset, reset);
}
