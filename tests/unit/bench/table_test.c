/* The forms of a result, statistics, lists, the machine's description, and the loops that measure the machine. */
#include "bench/probe.h"
#include "bench/run.h"
#include "bench/table.h"

#include "base/file.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const sh_bench_col COLS[] = {
    {"name", "work", SH_BENCH_TEXT}, {"rate", "tokens/s", 1}, {"hidden", "hidden", SH_BENCH_HIDDEN + 2}, {"of", "of", SH_BENCH_TEXT}};

static void fill(sh_bench_out *o) {
  *o = (sh_bench_out){0};
  sh_bench_out_init(o, "bench test");
  o->machine = (sh_machine){.cpu = "Some <CPU>",
                            .arch = "x86_64",
                            .isa = "avx2 fma",
                            .caches = "L2 1 MiB",
                            .kernel = "Linux 6",
                            .cores = 2,
                            .memory = 1 << 30,
                            .load = 0.5};
  sh_bench_add_fact(o, "model", "a \"model\" of %d", 7);
  sh_bench_table *t = sh_bench_add_table(o, "rows", COLS, 4);
  t->bar = "rate";
  sh_bench_add_row(t, (sh_bench_cell[]){{.text = "prefill, 5"}, {.v = 12.345678}, {.v = 3}, {.text = "read"}});
  sh_bench_add_row(t, (sh_bench_cell[]){{.text = "\xc3\xbc"}, {.v = 123456.0}, {.v = NAN}, {.text = NULL}});
  sh_bench_add_note(o, "one\nnote");
}

static void text_is_aligned_and_leaves_hidden_columns_out(void **state) {
  (void)state;
  sh_bench_out o;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  fill(&o);
  assert_int_equal(sh_bench_write_text(&o, &b), 0);
  assert_string_equal(b.p, "Some <CPU> (x86_64), 2 cores, 1.0 GiB memory, Linux 6\n"
                           "caches: L2 1 MiB; instructions: avx2 fma\n"
                           "load when it began: 0.50\n"
                           "model: a \"model\" of 7\n"
                           "\n"
                           "work        tokens/s  of\n"
                           "prefill, 5      12.3  read\n"
                           "\xc3\xbc           123456.0  -\n"
                           "\n"
                           "one\nnote\n");
  sh_buf_reset(&b);
  o.complete = false;
  assert_int_equal(sh_bench_write_text(&o, &b), 0);
  assert_non_null(strstr(b.p, "stopped: rows are missing"));
  sh_buf_free(&b);
  sh_bench_out_free(&o);
}

static void csv_has_comments_then_quoted_rows(void **state) {
  (void)state;
  sh_bench_out o;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  fill(&o);
  assert_int_equal(sh_bench_write_csv(&o, &b), 0);
  assert_string_equal(b.p, "# sheng bench test\n"
                           "# Some <CPU> (x86_64), 2 cores, 1.0 GiB memory, Linux 6\n"
                           "# caches: L2 1 MiB; instructions: avx2 fma\n"
                           "# load when it began: 0.50\n"
                           "# model: a \"model\" of 7\n"
                           "# note: one note\n"
                           "name,rate,hidden,of\n"
                           "\"prefill, 5\",12.3457,3,read\n"
                           "\xc3\xbc,123456,,\n");
  sh_buf_free(&b);
  sh_bench_out_free(&o);
}

static void json_is_one_object_with_the_machine(void **state) {
  (void)state;
  sh_bench_out o;
  sh_buf b;
  sh_json *root;
  sh_error e = {0};
  double v;
  sh_buf_init(&b, 1 << 20);
  fill(&o);
  assert_int_equal(sh_bench_write_json(&o, &b), 0);
  sh_arena *a = sh_arena_new(1 << 20);
  assert_int_equal(sh_json_parse(b.p, b.len, NULL, a, &root, &e), 0);
  assert_true(sh_json_eq_str(sh_json_get(root, "command"), "bench test"));
  assert_true(sh_json_eq_str(sh_json_path(root, "machine.cpu"), "Some <CPU>"));
  const sh_json *rows = sh_json_get(root, "rows");
  assert_true(sh_json_is(rows, SH_JSON_ARRAY) && rows->len == 2);
  assert_int_equal(sh_json_double(sh_json_get(&rows->items[0], "rate"), &v), 0);
  assert_true(v == 12.3457);
  assert_true(sh_json_is(sh_json_get(&rows->items[1], "hidden"), SH_JSON_NULL));
  assert_true(sh_json_is(sh_json_get(&rows->items[1], "of"), SH_JSON_NULL));
  assert_true(sh_json_get(root, "complete")->b);
  sh_arena_free(a);
  sh_buf_free(&b);
  sh_bench_out_free(&o);
}

static void the_page_escapes_and_draws(void **state) {
  (void)state;
  sh_bench_out o;
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  fill(&o);
  assert_int_equal(sh_bench_write_html(&o, &b), 0);
  assert_non_null(strstr(b.p, "Some &lt;CPU&gt;"));
  assert_null(strstr(b.p, "<CPU>"));
  assert_non_null(strstr(b.p, "<svg"));
  assert_non_null(strstr(b.p, "</html>"));
  sh_buf_free(&b);
  sh_bench_out_free(&o);
}

static void a_result_without_room_is_an_error(void **state) {
  (void)state;
  sh_bench_out o;
  sh_buf b;
  fill(&o);
  sh_buf_init(&b, 64);
  assert_int_equal(sh_bench_write_text(&o, &b), SH_ERR_LIMIT);
  sh_buf_reset(&b);
  assert_int_equal(sh_bench_write_json(&o, &b), SH_ERR_LIMIT);
  sh_mem_fail_after(0);
  for (int i = 0; i < 40; i++) sh_bench_add_row(&o.tables[0], (sh_bench_cell[]){{.text = "x"}, {.v = 1}, {.v = 1}, {.text = "y"}});
  sh_mem_fail_after(-1);
  sh_buf_free(&b);
  sh_buf_init(&b, 1 << 20);
  assert_int_equal(sh_bench_write_csv(&o, &b), SH_ERR_NOMEM);
  sh_buf_free(&b);
  sh_bench_out_free(&o);
}

static void median_min_and_max(void **state) {
  (void)state;
  double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
  sh_bench_stat a = sh_bench_stat_of(odd, 3), b = sh_bench_stat_of(even, 4), none = sh_bench_stat_of(NULL, 0);
  assert_true(a.median == 2 && a.min == 1 && a.max == 3);
  assert_true(b.median == 2.5 && b.min == 1 && b.max == 4);
  assert_true(isnan(none.median) && isnan(none.min) && isnan(none.max));
}

static void lists_are_read_and_wrong_ones_named(void **state) {
  (void)state;
  int v[4];
  sh_error e = {0};
  assert_int_equal(sh_bench_list("1,4,16", "seqs", 1, 64, v, 4, &e), 3);
  assert_true(v[0] == 1 && v[1] == 4 && v[2] == 16);
  static const char *const bad[] = {"", "x", "1,,2", "0", "65", "1,2,3,4,5", "1.5", "99999999999999999999999999", "-1", ",1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (sh_bench_list(bad[i], "seqs", 1, 64, v, 4, &e) != SH_ERR_ARG) fail_msg("'%s' was taken", bad[i]);
    assert_non_null(strstr(e.text, "--seqs"));
  }
}

static void put(const char *root, const char *path, const char *text) {
  char full[256];
  sh_error e = {0};
  snprintf(full, sizeof full, "%s%s", root, path);
  for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')); s++) {
    *s = '\0';
    mkdir(full, 0700);
    *s = '/';
  }
  assert_int_equal(sh_file_write_atomic(full, text, strlen(text), &e), 0);
}

static void the_machine_is_read_from_proc_and_sys(void **state) {
  (void)state;
  char root[] = "/tmp/sheng_machine_XXXXXX", command[64];
  sh_machine m;
  assert_non_null(mkdtemp(root));
  sh_machine_read(&m, root); /* nothing there */
  assert_string_equal(m.cpu, "unknown");
  assert_string_equal(m.caches, "unknown");
  assert_true(m.load < 0 && m.cores >= 1 && m.memory > 0);
  put(root, "/proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: fpu avx2x avx2 fma avx512_vnni\n");
  put(root, "/proc/loadavg", "1.25 0.5 0.1 1/2 3\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index1/level", "3\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index1/type", "Unified\n");
  put(root, "/sys/devices/system/cpu/cpu0/cache/index1/size", "2048K\n");
  sh_machine_read(&m, root);
  assert_string_equal(m.cpu, "Test CPU");
  assert_string_equal(m.isa, "avx2 fma avx512_vnni");
  assert_string_equal(m.caches, "L1d 32.0 KiB, L3 2.0 MiB");
  assert_true(m.load == 1.25 && m.last_cache == 2 << 20);
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

static void every_limit_is_positive_on_every_level(void **state) {
  (void)state;
  static const char *const levels[] = {"native", "baseline"};
  sh_error e = {0};
  for (int i = 0; i < 2; i++) {
    sh_probe p;
    assert_int_equal(sh_probe_new(&p, 2, 8 << 20, levels[i], &e), 0);
    assert_int_equal(p.threads, 2);
    double read = sh_probe_read(&p), f32 = sh_probe_f32(&p), u8s8 = sh_probe_u8s8(&p);
    assert_true(read > 0 && isfinite(read) && f32 > 0 && isfinite(f32));
    if (p.loops.u8s8) assert_true(u8s8 > 0 && isfinite(u8s8));
    else assert_true(isnan(u8s8));
    if (i == 1) assert_null(p.loops.u8s8);
    sh_probe_free(&p);
  }
  sh_probe p;
  assert_int_equal(sh_probe_new(&p, 1, 8 << 20, "mmx", &e), SH_ERR_ARG);
}

/* The reading loops read all there is: the sums of plain C and of AVX2 are those of the numbers. */
static void the_reading_loops_read_every_byte(void **state) {
  (void)state;
  enum { BYTES = 4096 + 64 };
  sh_error e = {0};
  sh_peak best, plain;
  assert_int_equal(sh_peak_init(&best, NULL, &e), 0);
  assert_int_equal(sh_peak_init(&plain, "baseline", &e), 0);
  uint64_t *p = sh_aligned(64, BYTES), sum = 0;
  for (size_t i = 0; i < BYTES / 8; i++) sum += p[i] = i * UINT64_C(0x9E3779B97F4A7C15);
  assert_true(best.read((const uint8_t *)p, BYTES) == sum);
  assert_true(plain.read((const uint8_t *)p, BYTES) == sum);
  sh_free(p);
}

/* Every line of C in bench/roofline.md stands in the sources of the loops. */
static void the_published_loops_are_those_that_run(void **state) {
  (void)state;
  static const char *const sources[] = {"src/kernels/x86/peak_avx2.c", "src/kernels/peak.c"};
  char *page, *code[2];
  size_t n;
  int lines = 0;
  bool inside = false;
  sh_error e = {0};
  assert_int_equal(sh_file_read("bench/roofline.md", 1 << 20, &page, &n, &e), 0);
  for (int i = 0; i < 2; i++) assert_int_equal(sh_file_read(sources[i], 1 << 20, &code[i], &n, &e), 0);
  for (char *line = page, *next; line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = '\0';
    if (strncmp(line, "```", 3) == 0) {
      inside = !inside && strcmp(line, "```c") == 0;
      continue;
    }
    if (!inside || !line[strspn(line, " ")]) continue;
    lines++;
    if (!strstr(code[0], line + strspn(line, " ")) && !strstr(code[1], line + strspn(line, " ")))
      fail_msg("bench/roofline.md quotes a line that no loop has: %s", line);
  }
  assert_true(lines > 20);
  sh_free(page), sh_free(code[0]), sh_free(code[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_is_aligned_and_leaves_hidden_columns_out),
      cmocka_unit_test(csv_has_comments_then_quoted_rows),
      cmocka_unit_test(json_is_one_object_with_the_machine),
      cmocka_unit_test(the_page_escapes_and_draws),
      cmocka_unit_test(a_result_without_room_is_an_error),
      cmocka_unit_test(median_min_and_max),
      cmocka_unit_test(lists_are_read_and_wrong_ones_named),
      cmocka_unit_test(the_machine_is_read_from_proc_and_sys),
      cmocka_unit_test(every_limit_is_positive_on_every_level),
      cmocka_unit_test(the_reading_loops_read_every_byte),
      cmocka_unit_test(the_published_loops_are_those_that_run),
  };
  return cmocka_run_group_tests_name("bench table", tests, NULL, NULL);
}
