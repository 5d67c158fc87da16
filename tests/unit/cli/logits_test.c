/* `sheng logits`: what it writes is what the model computes, whatever the chunk; wrong ids and files are refused with a status. */
#include "unit/model/golden_rig.h"

#include "base/file.h"
#include "cli/cli.h"

#include <unistd.h>

static char dir[] = "/tmp/sheng_logits_XXXXXX";
static char ids_path[64], out_path[64];
static const gold_case *DENSE = &GOLD_CASES[0];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(ids_path, sizeof ids_path, "%s/ids.json", dir);
  snprintf(out_path, sizeof out_path, "%s/out.safetensors", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(ids_path);
  unlink(out_path);
  return rmdir(dir);
}

static void write_ids(const char *text) {
  sh_error e = {0};
  rig_ok(sh_file_write_atomic(ids_path, text, strlen(text), &e), &e);
}

/* Runs `sheng logits` on dense-small with up to three more arguments; what it says on stderr goes to the test's log. */
static int logits(const char *a, const char *b, const char *c) {
  char *argv[] = {"logits",
                  GOLDEN "models/dense-small",
                  "--ids",
                  ids_path,
                  "--out",
                  out_path,
                  (char *)(uintptr_t)a,
                  (char *)(uintptr_t)b,
                  (char *)(uintptr_t)c,
                  NULL};
  int argc = 6 + (a != NULL) + (b != NULL) + (c != NULL);
  unlink(out_path);
  return sh_cmd_logits(argc, argv);
}

static void write_prompt(const int32_t *ids, int n) {
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  for (int i = 0; i < n; i++) sh_buf_printf(&b, "%s%d", i == 0 ? "[" : ", ", ids[i]);
  sh_buf_puts(&b, "]\n");
  write_ids(b.p);
  sh_buf_free(&b);
}

/* Reads the written file and compares it with `want` [rows, 640]. */
static void check_file(const float *want, int rows, float bound) {
  sh_error e = {0};
  sh_st *st;
  rig_ok(sh_st_open(&st, out_path, &e), &e);
  const sh_ftensor *t = sh_st_find(st, "logits");
  assert_non_null(t);
  assert_int_equal(sh_st_count(st), 1);
  assert_int_equal(t->type, SH_F32);
  assert_int_equal(t->n_dims, 2);
  assert_int_equal(t->dims[0], rows);
  assert_int_equal(t->dims[1], 640);
  float *got = gold_copy(t);
  float err = max_error(got, want, (size_t)rows * 640);
  if (!(err <= bound)) fail_msg("the file's logits differ by %g", (double)err);
  sh_free(got);
  sh_st_close(st);
}

static void the_file_holds_the_logits_whatever_the_chunk(void **state) {
  (void)state;
  int n, rows;
  sh_error e = {0};
  sh_st *st = gold_open(DENSE);
  int32_t *ids = gold_ints(st, DENSE, "prompt", 4, &n);
  float *want = gold_floats(st, DENSE, "logits", 4, &rows);
  char *whole, *cut;
  size_t n_whole, n_cut;
  write_prompt(ids, n);
  assert_int_equal(logits("--all", "--exact", NULL), SH_EXIT_OK);
  check_file(want, n, DENSE->bound);
  rig_ok(sh_file_read(out_path, 1 << 20, &whole, &n_whole, &e), &e);
  assert_int_equal(logits("--all", "--exact", "--chunk=7"), SH_EXIT_OK);
  rig_ok(sh_file_read(out_path, 1 << 20, &cut, &n_cut, &e), &e);
  assert_int_equal(n_cut, n_whole);
  assert_memory_equal(cut, whole, n_whole);
  assert_int_equal(logits("--exact", "--threads=1", NULL), SH_EXIT_OK);
  check_file(want + (size_t)(n - 1) * 640, 1, DENSE->bound);
  assert_int_equal(logits("--chunk=1", NULL, NULL), SH_EXIT_OK); /* bfloat16 keys and values */
  check_file(want + (size_t)(n - 1) * 640, 1, 0.1f);
  sh_free(whole);
  sh_free(cut);
  sh_free(ids);
  sh_free(want);
  sh_st_close(st);
}

static void wrong_ids_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"",     "[]",    "{\"ids\": [1]}", "[1, 2",  "[1, \"2\"]", "[1, 2.5]",
                                    "[-1]", "[640]", "[1e30]",         "[null]", "[[1]]",      "7"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_ids(bad[i]);
    if (logits("--exact", NULL, NULL) == SH_EXIT_OK) fail_msg("ids %s were taken", bad[i]);
    assert_false(sh_file_exists(out_path));
  }
}

static void more_ids_than_the_context_are_refused(void **state) {
  (void)state;
  int32_t ids[4097];
  for (int i = 0; i < 4097; i++) ids[i] = 9;
  write_prompt(ids, 4097); /* dense-small is made for 4096 */
  assert_int_equal(logits(NULL, NULL, NULL), SH_EXIT_FAILURE);
  assert_false(sh_file_exists(out_path));
}

static void a_call_without_its_files_is_a_wrong_call(void **state) {
  (void)state;
  write_ids("[9]");
  char *no_out[] = {"logits", GOLDEN "models/dense-small", "--ids", ids_path, NULL};
  char *no_ids[] = {"logits", GOLDEN "models/dense-small", "--out", out_path, NULL};
  char *no_model[] = {"logits", "--ids", ids_path, "--out", out_path, NULL};
  char *no_such_model[] = {"logits", "/nonexistent", "--ids", ids_path, "--out", out_path, NULL};
  assert_int_equal(sh_cmd_logits(4, no_out), SH_EXIT_USAGE);
  assert_int_equal(sh_cmd_logits(4, no_ids), SH_EXIT_USAGE);
  assert_int_equal(sh_cmd_logits(5, no_model), SH_EXIT_USAGE);
  assert_int_equal(sh_cmd_logits(6, no_such_model), SH_EXIT_FAILURE);
  assert_int_equal(logits("--chunk=0", NULL, NULL), SH_EXIT_USAGE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_file_holds_the_logits_whatever_the_chunk),
      cmocka_unit_test(wrong_ids_are_refused),
      cmocka_unit_test(more_ids_than_the_context_are_refused),
      cmocka_unit_test(a_call_without_its_files_is_a_wrong_call),
  };
  return cmocka_run_group_tests_name("logits", tests, make_dir, remove_dir);
}
