/* Inspections: facts of golden models, every problem of a broken one, and no crash or leak when memory runs out anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/log.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "model/weights.h"
#include "ops/inspect.h"

#define DENSE "tests/golden/models/dense-small"

typedef struct report {
  sh_buf text;
  bool will_start;
  sh_error e;
  int rc;
  sh_arena *a;
  sh_json *root;
} report;

static void run(report *r, const char *model, bool json) {
  memset(r, 0, sizeof *r);
  sh_inspect_options o = sh_inspect_option_defaults;
  o.model = model;
  o.json = json;
  o.memory = (int64_t)8 << 30;
  sh_buf_init(&r->text, 16 << 20);
  r->rc = sh_inspect_run(&o, &r->text, &r->will_start, &r->e);
  if (r->rc || !json) return;
  r->a = sh_arena_new(64 << 20);
  assert_int_equal(sh_json_parse(r->text.p, r->text.len, NULL, r->a, &r->root, &r->e), 0);
}

static void end(report *r) {
  sh_arena_free(r->a);
  sh_buf_free(&r->text);
}

static void a_whole_model_will_start(void **state) {
  (void)state;
  static const char *const MODELS[] = {DENSE, "tests/golden/models/moe-real-fused", "tests/golden/gguf/moe-small-Q4_0.gguf"};
  for (size_t i = 0; i < sizeof MODELS / sizeof MODELS[0]; i++) {
    report r;
    run(&r, MODELS[i], true);
    assert_int_equal(r.rc, 0);
    assert_true(r.will_start);
    assert_true(sh_json_get(r.root, "will_start")->b);
    assert_int_equal(sh_json_get(r.root, "problems")->len, 0);
    assert_true(sh_json_path(r.root, "weights.groups")->len > 8);
    end(&r);
    run(&r, MODELS[i], false);
    assert_non_null(strstr(r.text.p, "will start\n"));
    end(&r);
  }
}

static void a_file_that_is_no_model_is_a_report_and_not_an_error(void **state) {
  (void)state;
  report r;
  run(&r, "README.md", true);
  assert_int_equal(r.rc, 0);
  assert_false(r.will_start);
  assert_int_equal(sh_json_get(r.root, "problems")->len, 1);
  end(&r);
}

static void a_context_that_is_no_number_is_an_error(void **state) {
  (void)state;
  const char *words[] = {"4096", "4k"};
  sh_inspect_options o = sh_inspect_option_defaults;
  sh_error e = {0};
  sh_buf out;
  bool will_start;
  sh_buf_init(&out, 1 << 20);
  o.model = DENSE;
  o.context = (sh_strlist){.v = words, .n = 2};
  assert_int_equal(sh_inspect_run(&o, &out, &will_start, &e), SH_ERR_ARG);
  assert_non_null(strstr(e.text, "4k"));
  sh_buf_free(&out);
}

/* --- The dry binding behind it */

typedef struct tally {
  int found, problems, unused;
} tally;

static void count_found(void *ctx, const sh_w_found *f) {
  assert_non_null(f->tensor);
  ((tally *)ctx)->found++;
}

static void count_problem(void *ctx, int code, const char *text) {
  assert_true(code < 0 && *text);
  ((tally *)ctx)->problems++;
}

static void count_unused(void *ctx, const sh_ftensor *t, bool visual) {
  (void)visual;
  assert_non_null(t->name);
  ((tally *)ctx)->unused++;
}

static void a_dry_binding_counts_what_the_real_one_binds_and_goes_on_after_errors(void **state) {
  (void)state;
  sh_ckpt *ck = NULL;
  sh_config c;
  sh_weights wet, dry;
  sh_error e = {0};
  tally t = {0};
  const sh_w_audit audit = {&t, count_found, count_problem, count_unused};
  assert_int_equal(sh_ckpt_open(&ck, "tests/golden/models/moe-real-fused", 0, &e), 0);
  assert_int_equal(sh_config_load(&c, ck, &e), 0);
  assert_int_equal(sh_weights_bind(&wet, &c, ck, NULL, &e), 0);
  assert_int_equal(sh_weights_audit(&dry, &c, ck, NULL, &audit, &e), 0);
  assert_int_equal(dry.bytes, wet.bytes);
  assert_int_equal(t.found + t.unused, sh_ckpt_count(ck));
  assert_int_equal(t.unused, wet.n_visual);
  assert_int_equal(t.problems, 0);
  sh_weights_free(&wet);
  sh_weights_free(&dry);

  c.hidden += 64; /* nearly every tensor is of an odd shape now */
  t = (tally){0};
  assert_int_equal(sh_weights_audit(&dry, &c, ck, NULL, &audit, &e), 0);
  assert_true(t.problems > 40);
  sh_weights_free(&dry);
  c.hidden -= 64;
  c.n_experts = 1 << 20; /* no router of that size: its experts are not asked for */
  t = (tally){0};
  assert_int_equal(sh_weights_audit(&dry, &c, ck, NULL, &audit, &e), 0);
  assert_int_equal(t.problems, c.n_layers + 1);
  sh_weights_free(&dry);
  assert_int_equal(sh_config_load(&c, ck, &e), 0);
  c.n_layers--; /* the file has one more: a problem among the others, not the end of the report */
  t = (tally){0};
  assert_int_equal(sh_weights_audit(&dry, &c, ck, NULL, &audit, &e), 0);
  assert_int_equal(t.problems, 1);
  assert_int_equal(t.found + t.unused, sh_ckpt_count(ck));
  assert_true(t.unused > dry.n_visual);
  sh_weights_free(&dry);
  sh_ckpt_close(ck);
}

static void running_out_of_memory_anywhere_is_an_error_or_a_report(void **state) {
  (void)state;
  sh_log_set_level(SH_LOG_ERROR);
  bool quick = getenv("SHENG_TEST_QUICK") && *getenv("SHENG_TEST_QUICK") == '1';
  int failed = 0;
  for (long n = 0; n < 4000; n += n < 200 ? 1 : quick ? 97 : 13) {
    sh_inspect_options o = sh_inspect_option_defaults;
    sh_buf out;
    bool will_start = true;
    sh_error e = {0};
    o.model = DENSE;
    o.memory = (int64_t)8 << 30;
    sh_buf_init(&out, 16 << 20);
    sh_mem_fail_after(n);
    int rc = sh_inspect_run(&o, &out, &will_start, &e);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || rc == SH_ERR_NOMEM);
    if (rc) assert_false(will_start);
    failed += rc != 0;
    sh_buf_free(&out);
  }
  assert_true(failed > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_whole_model_will_start),
      cmocka_unit_test(a_file_that_is_no_model_is_a_report_and_not_an_error),
      cmocka_unit_test(a_context_that_is_no_number_is_an_error),
      cmocka_unit_test(a_dry_binding_counts_what_the_real_one_binds_and_goes_on_after_errors),
      cmocka_unit_test(running_out_of_memory_anywhere_is_an_error_or_a_report),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
