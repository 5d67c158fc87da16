/* `sheng bench`: rows are finite and their parts agree; wrong calls are refused with a status; a stopped run says so. */
#include "bench/bench_kernels.h"
#include "bench/bench_model.h"
#include "bench/roofline.h"
#include "cli/bench.h"

#include "base/file.h"
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "tests/golden/models/moe-small"

static char dir[] = "/tmp/sheng_bench_XXXXXX";
static char out_path[64], csv_path[64], html_path[64];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  snprintf(csv_path, sizeof csv_path, "%s/out.csv", dir);
  snprintf(html_path, sizeof html_path, "%s/out.html", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(out_path), unlink(csv_path), unlink(html_path);
  return rmdir(dir);
}

/* Runs `sheng bench` with the words of a line; stdout goes to out_path, what it says on stderr to the test's log. */
static int bench(const char *line) {
  char copy[512], *argv[32] = {copy}, *save = NULL;
  int argc = 0;
  snprintf(copy, sizeof copy, "bench %s", line);
  for (char *s = copy; argc < 31; argc++) {
    char *word = save = s + strspn(s, " ");
    if (!*word) break;
    s = word + strcspn(word, " ");
    if (*s) *s++ = '\0';
    argv[argc] = word;
  }
  fflush(NULL);
  int out = dup(STDOUT_FILENO), file = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(out >= 0 && file >= 0);
  dup2(file, STDOUT_FILENO);
  argv[argc] = NULL;
  int status = sh_cmd_bench(argc, argv);
  fflush(NULL);
  dup2(out, STDOUT_FILENO);
  close(out), close(file);
  return status;
}

static char *read_all(const char *path) {
  char *text = NULL;
  size_t n;
  sh_error e = {0};
  if (sh_file_read(path, 1 << 20, &text, &n, &e) < 0) fail_msg("%s", e.text);
  return text;
}

static sh_json *read_json(sh_arena *a) {
  char *text = read_all(out_path);
  sh_json *root = NULL;
  sh_error e = {0};
  if (sh_json_parse(text, strlen(text), NULL, a, &root, &e) < 0) fail_msg("%s", e.text);
  sh_free(text);
  return root;
}

static double number(const sh_json *row, const char *key) {
  double v = NAN;
  if (sh_json_double(sh_json_get(row, key), &v) < 0) fail_msg("%s is no number", key);
  return v;
}

static void roofline_rows_are_positive(void **state) {
  (void)state;
  char line[256];
  snprintf(line, sizeof line, "roofline --threads 1,2 --repeat 3 --buffer 8MiB --json --csv %s --html %s", csv_path, html_path);
  assert_int_equal(bench(line), SH_EXIT_OK);
  sh_arena *a = sh_arena_new(1 << 24);
  const sh_json *root = read_json(a), *rows = sh_json_get(root, "rows");
  assert_true(rows->len == 6 || rows->len == 4); /* without AVX2 there is no u8 x s8 */
  for (size_t i = 0; i < rows->len; i++) {
    const sh_json *r = &rows->items[i];
    assert_true(number(r, "min") > 0 && number(r, "min") <= number(r, "median") && number(r, "median") <= number(r, "max"));
    assert_true(number(r, "threads") == (i < rows->len / 2 ? 1 : 2));
  }
  assert_true(sh_json_path(root, "machine.cpu")->len > 0);
  sh_arena_free(a);
  char *csv = read_all(csv_path), *html = read_all(html_path);
  assert_non_null(strstr(csv, "\nthreads,measure,median,"));
  assert_non_null(strstr(html, "</html>"));
  sh_free(csv), sh_free(html);
  assert_int_equal(bench("roofline --threads 1 --repeat 1 --buffer 8MiB --cpu baseline"), SH_EXIT_OK);
  char *text = read_all(out_path);
  assert_non_null(strstr(text, "u8 x s8 was not measured"));
  sh_free(text);
}

static void model_rows_are_finite_and_agree(void **state) {
  (void)state;
  static const char *const NAMES[] = {"prefill 5",
                                      "prefill 40",
                                      "decode 1 at 0",
                                      "decode 1 at 33",
                                      "decode 1 at 256",
                                      "decode 3 at 256",
                                      "mix 1 at 256, prompt 512",
                                      "mix 3 at 256, prompt 512"};
  assert_int_equal(bench("model " MODEL " --prefill 5,40 --depth 0,33 --seqs 1,3 --mixed --repeat 2 --chunk 16 --threads 2 --json"),
                   SH_EXIT_OK);
  sh_arena *a = sh_arena_new(1 << 24);
  const sh_json *root = read_json(a), *rows = sh_json_get(root, "rows"), *shares = sh_json_get(root, "profile");
  assert_int_equal(rows->len, 8);
  for (size_t i = 0; i < rows->len; i++) {
    static const char *const POSITIVE[] = {"tokens_per_s", "ms", "gops", "gbs", "share_percent", "limit_value", "read_gbs", "fp32_gflops"};
    const sh_json *r = &rows->items[i];
    assert_true(sh_json_eq_str(sh_json_get(r, "work"), NAMES[i]));
    for (size_t k = 0; k < sizeof POSITIVE / sizeof *POSITIVE; k++) assert_true(number(r, POSITIVE[k]) > 0);
    assert_true(number(r, "tokens_per_s_min") <= number(r, "tokens_per_s") && number(r, "tokens_per_s") <= number(r, "tokens_per_s_max"));
    double tokens = number(r, "tokens_per_s") * number(r, "ms") * 1e-3;
    double want = i < 2 ? number(r, "prompt") : i < 6 ? number(r, "seqs") : 512 + number(r, "seqs") * 32; /* 32 chunks of 16 */
    assert_true(fabs(tokens - want) < 1e-3 * want);
  }
  assert_int_equal(shares->len, 2);
  for (size_t i = 0; i < 2; i++) {
    static const char *const PARTS[] = {"linear", "attention", "gated_delta", "moe", "norm", "embed", "swiglu", "head", "other"};
    double sum = 0;
    for (size_t k = 0; k < sizeof PARTS / sizeof *PARTS; k++) sum += number(&shares->items[i], PARTS[k]);
    assert_true(fabs(sum - 100) < 0.01);
  }
  sh_arena_free(a);
}

static void a_quantized_prompt_is_held_to_int8_products_unless_exact(void **state) {
  (void)state;
  static const char *const MODES[] = {"", " --exact"}, *const WANT[] = {"u8 x s8", "fp32"};
  for (int i = 0; i < 2; i++) {
    char line[256];
    snprintf(line, sizeof line, "model tests/golden/gguf/moe-small-Q8_0.gguf --prefill 8 --depth none --seqs none --repeat 1%s", MODES[i]);
    assert_int_equal(bench(line), SH_EXIT_OK);
    char *text = read_all(out_path);
    if (!strstr(text, " avx2 ") && i == 0) print_message("no AVX2: held to fp32\n");
    else assert_non_null(strstr(text, WANT[i]));
    assert_non_null(strstr(text, i == 0 ? "KV in bfloat16" : "KV in float32"));
    sh_free(text);
  }
}

static void what_a_model_cannot_do_is_left_out_or_refused(void **state) {
  (void)state;
  /* moe-small is made for 8192 tokens: of the default depths 16384 is left out and said, one that was asked for is an error */
  assert_int_equal(bench("model " MODEL " --prefill none --seqs none --repeat 1"), SH_EXIT_OK);
  char *text = read_all(out_path);
  assert_non_null(strstr(text, "decode 1 at 16384 left out: the model is made for at most 8192 tokens"));
  assert_non_null(strstr(text, "decode 1 at 4096"));
  sh_free(text);
  assert_int_equal(bench("model " MODEL " --depth 8192 --repeat 1"), SH_EXIT_USAGE);
  assert_int_equal(bench("model " MODEL " --prefill 8193 --repeat 1"), SH_EXIT_USAGE);
}

static void kernels_have_a_row_for_plain_c_and_the_best(void **state) {
  (void)state;
  sh_error e = {0};
  sh_bench_out out;
  static const char *const ONLY[] = {"route",          "prefill Q4_0 1024",  "decode I4 2048",
                                     "gated_delta 32", "attention bf16 9:3", "dequant Q6_K"};
  const char *quick = getenv("SHENG_TEST_QUICK"); /* the large ones take minutes under a sanitizer */
  for (size_t i = 0; i < (quick && *quick ? 3 : sizeof ONLY / sizeof *ONLY); i++) {
    sh_bench_out_init(&out, "bench kernels");
    const sh_bench_kernels_opts o = {.only = ONLY[i], .threads = 2, .bytes = 16 << 20};
    if (sh_bench_kernels_run(&out, &o, &e) < 0) fail_msg("%s: %s", ONLY[i], e.text);
    assert_int_equal(out.tables[0].n_rows, 1);
    assert_true(out.tables[0].cells[1].v > 0);
    sh_bench_out_free(&out);
  }
  sh_bench_out_init(&out, "bench kernels");
  const sh_bench_kernels_opts plain = {.only = "conv", .threads = 1, .bytes = 16 << 20, .cpu = "baseline"};
  if (sh_bench_kernels_run(&out, &plain, &e) < 0) fail_msg("%s", e.text);
  assert_true(out.tables[0].n_rows == 1 && out.tables[0].cells[1].v > 0 && isnan(out.tables[0].cells[2].v));
  assert_int_equal(out.n_notes, 1);
  sh_bench_out_free(&out);
  sh_bench_out_init(&out, "bench kernels");
  assert_int_equal(sh_bench_kernels_run(&out, &(sh_bench_kernels_opts){.only = "no such", .bytes = 16 << 20}, &e), SH_ERR_ARG);
  sh_bench_out_free(&out);
}

static void a_stopped_run_is_written_as_far_as_it_came(void **state) {
  (void)state;
  const volatile bool stop = true;
  sh_error e = {0};
  sh_bench_out out;
  sh_bench_sink sink;
  sh_bench_out_init(&out, "bench roofline");
  int rc = sh_roofline_run(&out, &(sh_roofline_opts){.repeat = 2, .bytes = 8 << 20, .stop = &stop}, &e);
  assert_int_equal(rc, SH_ERR_CANCELLED);
  assert_int_equal(sh_bench_sink_open(&sink, true, csv_path, NULL, &e), 0);
  assert_int_equal(sh_bench_sink_write(&sink, &out, rc, &e), SH_ERR_CANCELLED);
  sh_bench_sink_close(&sink);
  sh_bench_out_free(&out);
  char *csv = read_all(csv_path);
  assert_non_null(strstr(csv, "# stopped: rows are missing"));
  sh_free(csv);
  sh_bench_out_init(&out, "bench model");
  const sh_bench_model_opts m = {
      .model = MODEL, .prefill = {{4}, 1, true}, .chunk = 4, .repeat = 1, .threads = 1, .kv_type = SH_KV_BF16, .stop = &stop};
  assert_int_equal(sh_bench_model_run(&out, &m, &e), SH_ERR_CANCELLED);
  assert_int_equal(out.tables[0].n_rows, 0);
  sh_bench_out_free(&out);
}

static void wrong_calls_are_refused(void **state) {
  (void)state;
  static const char *const USAGE[] = {"",
                                      "speed",
                                      "roofline " MODEL,
                                      "roofline --threads 0",
                                      "roofline --threads 1,x",
                                      "roofline --repeat 0",
                                      "roofline --cpu sse",
                                      "kernels x",
                                      "kernels --only zzz",
                                      "model",
                                      "model " MODEL " --prefill 0",
                                      "model " MODEL " --depth -1",
                                      "model " MODEL " --seqs 1;2",
                                      "model " MODEL " --kv-cache-dtype fp4",
                                      "model " MODEL " --exact --kv-cache-dtype bfloat16 --repeat 1",
                                      "model " MODEL " --prefill none --depth none --seqs none --repeat 0"};
  static const char *const FAILURE[] = {"model /nonexistent", "model " MODEL " --prefill none --depth none --seqs none",
                                        "roofline --csv /nonexistent/x.csv", "model " MODEL " --html /nonexistent/x.html"};
  for (size_t i = 0; i < sizeof USAGE / sizeof *USAGE; i++) {
    int status = bench(USAGE[i]);
    if (status != SH_EXIT_USAGE) fail_msg("'%s': status %d", USAGE[i], status);
  }
  for (size_t i = 0; i < sizeof FAILURE / sizeof *FAILURE; i++) {
    int status = bench(FAILURE[i]);
    if (status != SH_EXIT_FAILURE) fail_msg("'%s': status %d", FAILURE[i], status);
  }
  assert_int_equal(bench("--help"), SH_EXIT_OK);
  for (const sh_cli_command *m = sh_bench_modes; m->name; m++) {
    char line[64];
    snprintf(line, sizeof line, "%s --help", m->name);
    assert_int_equal(bench(line), SH_EXIT_OK);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(roofline_rows_are_positive),
      cmocka_unit_test(model_rows_are_finite_and_agree),
      cmocka_unit_test(a_quantized_prompt_is_held_to_int8_products_unless_exact),
      cmocka_unit_test(what_a_model_cannot_do_is_left_out_or_refused),
      cmocka_unit_test(kernels_have_a_row_for_plain_c_and_the_best),
      cmocka_unit_test(a_stopped_run_is_written_as_far_as_it_came),
      cmocka_unit_test(wrong_calls_are_refused),
  };
  return cmocka_run_group_tests_name("bench", tests, make_dir, remove_dir);
}
