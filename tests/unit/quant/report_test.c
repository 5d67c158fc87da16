/* The outputs of an evaluation, from results made by hand: hostile names, empty parts, results of earlier runs. */
#include "quant/report.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/sheng_report_XXXXXX", file[64];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(file, sizeof file, "%s/r.json", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(file);
  return rmdir(dir);
}

static const sh_eval_layer LAYERS[] = {{0, 0}, {0.25, 0.5}, {0.125, 2}};
static const sh_eval_task TASKS[] = {{.name = "a \"<b>\" & 'c'", .n_answers = 4, .right = {3, 4}},
                                     {.name = "choose", .n_choices = 8, .best = {2, 4}, .best_norm = {6, 8}}};

/* What a hostile folder and text may bring: markup, quotes, an escape sequence of a terminal, a control character of Latin-1. */
static sh_eval hostile(void) {
  sh_eval r = {.model = {.path = "/m/<script>alert(1)</script>",
                         .name = "<script>alert(1)</script>",
                         .describe = "a & b",
                         .bytes = 1500000,
                         .nll = 2,
                         .ppl = exp(2)},
               .ref = {.path = "/m/ref\"'", .name = "ref\"'", .describe = "c", .bytes = 3000000, .nll = 1, .ppl = exp(1)},
               .text = "te<x>t\x1b[31m.txt",
               .seq_len = 512,
               .windows = 3,
               .tokens = 100,
               .scored = 97,
               .kl_mean = 0.5,
               .kl_median = 0.25,
               .kl_p99 = 1.5,
               .kl_max = 2.5,
               .worst_window = 1,
               .worst_line = 7,
               .worst_position = 9,
               .worst_token = "\x1b]0;x\x07",
               .worst_context = "a\n<&>\xc2\x9b"
                                "31m",
               .top1 = 0.875,
               .prefix_prompts = 4,
               .prefix_min = 3,
               .prefix_mean = 12.5,
               .n_layers = 3,
               .layers = LAYERS,
               .n_tasks = 2,
               .tasks = TASKS};
  r.bins[sh_eval_bin(0.5)] = 96;
  r.bins[0] = 1;
  return r;
}

static bool has(const sh_buf *b, const char *s) { return strstr(b->p, s) != NULL; }

static void a_page_has_no_markup_of_others_and_nothing_from_outside(void **state) {
  (void)state;
  sh_eval r = hostile();
  const sh_report_point others[] = {{.name = "<i>old</i>", .reference = "\"r\"", .bytes = 2000000, .ppl = 9, .kl = 0.1, .top1 = 0.5}};
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_report_html(&r, others, 1, &b), 0);
  assert_true(has(&b, "&lt;script&gt;alert(1)&lt;/script&gt;"));
  assert_false(has(&b, "<script"));
  assert_false(has(&b, "<i>"));
  assert_true(has(&b, "&lt;i&gt;old&lt;/i&gt;"));
  assert_true(has(&b, "a &quot;&lt;b&gt;&quot; &amp; &#39;c&#39;"));
  assert_true(has(&b, "te&lt;x&gt;t\xef\xbf\xbd[31m.txt"));
  assert_false(has(&b, "\x1b"));
  assert_false(has(&b, "http"));
  assert_false(has(&b, "url("));
  assert_true(has(&b, "<td>0.5</td><td>87.50 %</td>"));
  assert_true(has(&b, "<td>0.1</td><td>50.00 %</td>"));
  assert_true(has(&b, "Size against mean KL divergence"));
  assert_false(has(&b, "nan") || has(&b, "inf\""));
  sh_buf_free(&b);
}

static void results_without_a_reference_are_drawn_by_perplexity(void **state) {
  (void)state;
  sh_eval r = {
      .model = {.path = "/m", .name = "m", .describe = "d", .bytes = 0, .nll = 2, .ppl = 7.5}, .tokens = 3, .scored = 2, .windows = 1};
  const sh_report_point others[] = {{.name = "same", .bytes = 0, .ppl = 7.5}};
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_report_html(&r, others, 1, &b), 0);
  assert_true(has(&b, "Size against perplexity"));
  assert_false(has(&b, "KL divergence</h2>"));
  assert_false(has(&b, "nan"));
  sh_buf_reset(&b);
  assert_int_equal(sh_report_html(&r, NULL, 0, &b), 0);
  assert_false(has(&b, "Size against"));
  sh_buf_free(&b);
}

static void a_table_sends_nothing_to_the_terminal(void **state) {
  (void)state;
  sh_eval r = hostile();
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  r.text = NULL;
  assert_int_equal(sh_eval_write_table(&r, &b), 0);
  for (size_t i = 0; i < b.len; i++) assert_true((unsigned char)b.p[i] >= 32 || b.p[i] == '\n');
  assert_false(has(&b, "\xc2\x9b"));
  assert_true(has(&b, "\" ]0;x \" after \"a\\n<&> 31m\""));
  assert_true(has(&b, "perplexity               7.3891\n  of the reference       2.7183  (+171.83 %)"));
  assert_true(has(&b, "mean 0.5, median 0.25, 99% 1.5, worst 2.5"));
  assert_true(has(&b, "same most likely token   87.50 %"));
  assert_true(has(&b, "mean 12.5, least 3 of 64 tokens (4 prompts)"));
  assert_true(has(&b, "  layer 1           0.25       0.5\n"));
  assert_true(has(&b, "75.0 %   100.0 %"));
  assert_true(has(&b, "choose, choice by length      8    75.0 %   100.0 %"));
  sh_buf_free(&b);
}

static void the_csv_has_a_row_for_each_measure_and_layer(void **state) {
  (void)state;
  sh_eval r = hostile();
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_eval_write_csv(&r, &b), 0);
  assert_int_equal(strncmp(b.p, "model,reference,measure,layer,value\n", 36), 0);
  assert_true(has(&b, "\"<script>alert(1)</script>\",\"ref\"\"'\",\"kl_mean\",,0.5\n"));
  assert_true(has(&b, "\"relative_error_mean\",1,0.25\n"));
  assert_true(has(&b, "\"relative_error_max\",2,2\n"));
  assert_true(has(&b, "\"exact: a \"\"<b>\"\" & 'c' (reference)\",,1\n"));
  assert_true(has(&b, "\"choice_by_length: choose\",,0.75\n"));
  int rows = 0;
  for (const char *s = b.p; *s; s++) rows += *s == '\n';
  assert_int_equal(rows, 1 + 2 + 9 + 2 * 3 + 2 + 4);
  sh_buf_free(&b);
}

static void written_results_are_read_back(void **state) {
  (void)state;
  sh_eval r = hostile();
  sh_buf b;
  sh_error e = {0};
  sh_report_point p;
  sh_buf_init(&b, 1 << 20);
  sh_arena *a = sh_arena_new(64 << 20);
  assert_int_equal(sh_eval_write_json(&r, &b), 0);
  assert_int_equal(sh_file_write_atomic(file, b.p, b.len, &e), 0);
  if (sh_report_read(&p, file, a, &e) < 0) fail_msg("%s", e.text);
  assert_string_equal(p.name, r.model.name);
  assert_string_equal(p.reference, r.ref.name);
  assert_int_equal(p.bytes, r.model.bytes);
  assert_true(p.ppl == r.model.ppl && p.kl == r.kl_mean && p.top1 == r.top1);
  sh_json *root;
  assert_int_equal(sh_json_parse(b.p, b.len, NULL, a, &root, &e), 0);
  double v;
  assert_int_equal(sh_json_double(sh_json_path(root, "kl.worst.position"), &v), 0);
  assert_true(v == 9);
  assert_int_equal(sh_json_get(root, "layers")->len, 3);
  assert_int_equal(sh_json_path(root, "kl.histogram")->len, SH_EVAL_BINS);
  assert_true(sh_json_eq_str(sh_json_path(root, "kl.worst.context"), r.worst_context));
  r.ref.path = r.ref.name = NULL;
  sh_buf_reset(&b);
  assert_int_equal(sh_eval_write_json(&r, &b), 0);
  assert_int_equal(sh_file_write_atomic(file, b.p, b.len, &e), 0);
  assert_int_equal(sh_report_read(&p, file, a, &e), 0);
  assert_null(p.reference);
  assert_false(has(&b, "\"kl\""));
  sh_arena_free(a);
  sh_buf_free(&b);
}

static void files_that_are_no_results_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } CASES[] = {
      {"", "line 1"},
      {"[]", "\"model.name\" is missing"},
      {"{\"model\": {\"name\": 7}}", "\"model.name\" is a number"},
      {"{\"model\": {\"name\": \"m\"}}", "\"model.bytes\" is missing"},
      {"{\"model\": {\"name\": \"m\", \"bytes\": -1, \"perplexity\": 2}}", "no size"},
      {"{\"model\": {\"name\": \"m\", \"bytes\": 1, \"perplexity\": null}}", "\"model.perplexity\" is null"},
      {"{\"model\": {\"name\": \"m\", \"bytes\": 1, \"perplexity\": 2}, \"reference\": {\"name\": \"r\"}}", "\"kl.mean\" is missing"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    sh_error e = {0};
    sh_report_point p;
    sh_arena *a = sh_arena_new(64 << 20);
    assert_int_equal(sh_file_write_atomic(file, CASES[i].text, strlen(CASES[i].text), &e), 0);
    assert_true(sh_report_read(&p, file, a, &e) < 0);
    if (!strstr(e.text, CASES[i].part) || !strstr(e.text, file)) fail_msg("'%s' does not say '%s' and the file", e.text, CASES[i].part);
    sh_arena_free(a);
  }
}

static void a_full_buffer_is_an_error(void **state) {
  (void)state;
  sh_eval r = hostile();
  sh_buf b;
  sh_buf_init(&b, 100);
  assert_true(sh_report_html(&r, NULL, 0, &b) < 0);
  sh_buf_reset(&b);
  assert_true(sh_eval_write_json(&r, &b) < 0);
  sh_buf_reset(&b);
  assert_true(sh_eval_write_csv(&r, &b) < 0);
  sh_buf_reset(&b);
  assert_true(sh_eval_write_table(&r, &b) < 0);
  sh_buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_page_has_no_markup_of_others_and_nothing_from_outside),
      cmocka_unit_test(results_without_a_reference_are_drawn_by_perplexity),
      cmocka_unit_test(a_table_sends_nothing_to_the_terminal),
      cmocka_unit_test(the_csv_has_a_row_for_each_measure_and_layer),
      cmocka_unit_test(written_results_are_read_back),
      cmocka_unit_test(files_that_are_no_results_are_refused),
      cmocka_unit_test(a_full_buffer_is_an_error),
  };
  return cmocka_run_group_tests_name("report", tests, make_dir, remove_dir);
}
