/* The bodies of requests: what they hold, that a seed fixes them, and what they share. */
#include "unit/base/harness.h"

#include "bench/serve_prompt.h"
#include <unistd.h>

static sh_bprompts shape(void) {
  sh_bprompts p = {.chat = true, .model = "m\"x", .groups = 1, .temperature = 0, .seed = 3, .tokens_per_word = 1.25, .overhead = 10};
  assert_int_equal(sh_blen_parse(&p.input, "--input-len", "50-90", NULL), 0);
  assert_int_equal(sh_blen_parse(&p.output, "--output-len", "4-8", NULL), 0);
  return p;
}

/* A body, parsed; its text is in *text. */
static const sh_json *body(const sh_bprompts *p, uint64_t row, uint64_t index, sh_arena *a, sh_buf *text) {
  int64_t out = 0;
  sh_json *v = NULL;
  sh_buf_init(text, 1 << 20);
  assert_int_equal(sh_bprompt_body(p, row, index, text, &out), 0);
  assert_int_equal(sh_json_parse(text->p, text->len, NULL, a, &v, NULL), 0);
  int64_t max;
  assert_int_equal(sh_json_int(sh_json_get(v, "max_tokens"), &max), 0);
  assert_int_equal(max, out);
  return v;
}

static int words(const sh_json *text) {
  int n = 1;
  assert_true(sh_json_is(text, SH_JSON_STRING));
  for (const char *s = text->s; *s; s++) n += *s == ' ';
  return n;
}

static const sh_json *message(const sh_json *v, size_t i) {
  const sh_json *m = sh_json_get(v, "messages");
  assert_true(sh_json_is(m, SH_JSON_ARRAY) && i < m->len);
  return sh_json_get(&m->items[i], "content");
}

static void a_request_has_the_wanted_lengths_and_fields(void **state) {
  (void)state;
  sh_arena *a = sh_arena_new(64 << 20);
  sh_bprompts p = shape();
  sh_buf text;
  for (uint64_t i = 0; i < 200; i++) {
    const sh_json *v = body(&p, 0, i, a, &text);
    int64_t max;
    int n = words(message(v, 0));
    assert_true(n >= 32 && n <= 64); /* (50 - 10) / 1.25 to (90 - 10) / 1.25 */
    sh_json_int(sh_json_get(v, "max_tokens"), &max);
    assert_true(max >= 4 && max <= 8);
    assert_true(sh_json_eq_str(sh_json_get(v, "model"), "m\"x"));
    assert_true(sh_json_get(v, "stream")->b && sh_json_path(v, "stream_options.include_usage")->b);
    assert_null(sh_json_get(v, "ignore_eos"));
    assert_non_null(sh_json_get(v, "temperature"));
    sh_buf_free(&text);
  }
  p.temperature = -1;
  p.ignore_eos = true;
  p.chat = false;
  const sh_json *v = body(&p, 0, 1, a, &text);
  assert_null(sh_json_get(v, "temperature"));
  assert_null(sh_json_get(v, "messages"));
  assert_true(sh_json_get(v, "ignore_eos")->b);
  assert_true(words(sh_json_get(v, "prompt")) >= 32);
  sh_buf_free(&text);
  sh_arena_free(a);
}

static void a_seed_fixes_every_request_and_rows_differ_in_text_only(void **state) {
  (void)state;
  sh_bprompts p = shape(), other = shape();
  sh_buf one, two, three, four;
  sh_arena *a = sh_arena_new(64 << 20);
  other.seed = 4;
  for (uint64_t i = 0; i < 20; i++) {
    const sh_json *v = body(&p, 0, i, a, &one), *w;
    body(&p, 0, i, a, &two);
    w = body(&p, 1, i, a, &three);
    body(&other, 0, i, a, &four);
    assert_string_equal(one.p, two.p);
    assert_string_not_equal(one.p, three.p);
    assert_string_not_equal(one.p, four.p);
    assert_int_equal(words(message(v, 0)), words(message(w, 0)));
    sh_buf_free(&one), sh_buf_free(&two), sh_buf_free(&three), sh_buf_free(&four);
  }
  sh_arena_free(a);
}

static void groups_share_their_beginning_and_nothing_else(void **state) {
  (void)state;
  sh_bprompts p = shape();
  sh_buf text[6];
  const sh_json *v[6];
  sh_arena *a = sh_arena_new(64 << 20);
  p.shared = 125;
  p.groups = 3;
  for (uint64_t i = 0; i < 6; i++) v[i] = body(&p, 0, i, a, &text[i]);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(words(message(v[i], 0)), 100);
    for (int k = 0; k < i; k++) {
      assert_int_equal(strcmp(message(v[i], 0)->s, message(v[k], 0)->s) == 0, i % 3 == k % 3);
      assert_string_not_equal(message(v[i], 1)->s, message(v[k], 1)->s);
    }
  }
  for (int i = 0; i < 6; i++) sh_buf_free(&text[i]);
  p.chat = false;
  v[0] = body(&p, 0, 0, a, &text[0]);
  v[3] = body(&p, 0, 3, a, &text[3]);
  const char *x = sh_json_get(v[0], "prompt")->s, *y = sh_json_get(v[3], "prompt")->s;
  int same = 0, blanks = 0;
  for (; x[same] == y[same]; same++) blanks += x[same] == ' ';
  assert_true(blanks >= 100 && blanks < 106);
  sh_buf_free(&text[0]);
  sh_buf_free(&text[3]);
  sh_arena_free(a);
}

static void calibration_takes_the_template_and_the_words_apart(void **state) {
  (void)state;
  static const int64_t counts[] = {32, 160};
  sh_bprompts p = shape();
  sh_error e = {0};
  assert_int_equal(sh_bprompt_calibrate(&p, counts, (const int64_t[]){32 * 2 + 9, 160 * 2 + 9}, &e), 0);
  assert_true(p.tokens_per_word == 2 && p.overhead == 9);
  assert_int_equal(sh_bprompt_calibrate(&p, counts, (const int64_t[]){5, 5}, &e), SH_ERR_FORMAT);
  assert_contains(e.text, "--input-len file:");
}

static void a_file_is_read_or_refused_and_memory_that_ends_is_an_error(void **state) {
  (void)state;
  static const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":3}\n\n {\"prompt\":\"b\"}";
  char path[] = "/tmp/sheng_prompts_XXXXXX";
  int fd = mkstemp(path), rc = SH_ERR_NOMEM;
  sh_bfile f;
  sh_error e = {0};
  assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
  close(fd);
  for (long n = 0; rc == SH_ERR_NOMEM; n++) {
    sh_mem_fail_after(n);
    rc = sh_bfile_load(&f, path, true, false, true, &e);
    sh_mem_fail_after(-1);
    assert_true(n < 1000);
  }
  assert_int_equal(rc, 0);
  assert_int_equal(f.n, 2);
  sh_bprompts p = shape();
  p.input.kind = SH_BLEN_FILE;
  p.inputs = f;
  sh_arena *a = sh_arena_new(64 << 20);
  sh_buf b;
  int64_t max;
  const sh_json *v = body(&p, 0, 2, a, &b); /* the first line again */
  assert_true(sh_json_eq_str(message(v, 0), "a") && sh_json_int(sh_json_get(v, "max_tokens"), &max) == 0 && max == 3);
  sh_buf_free(&b);
  v = body(&p, 0, 1, a, &b);
  assert_true(sh_json_eq_str(message(v, 0), "b"));
  sh_buf_free(&b);
  sh_bfile_free(&f);
  sh_arena_free(a);
  assert_int_equal(sh_bfile_load(&f, path, true, false, false, &e), SH_ERR_FORMAT);
  assert_contains(e.text, "line 1");
  assert_int_equal(sh_bfile_load(&f, path, false, true, true, &e), SH_ERR_FORMAT);
  assert_contains(e.text, "line 3");
  unlink(path);
}

static void a_body_that_has_no_memory_is_an_error(void **state) {
  (void)state;
  sh_bprompts p = shape();
  int failures = 0;
  p.shared = 40;
  for (long n = 0; n < 40; n++) {
    sh_buf b;
    int64_t max;
    sh_buf_init(&b, 1 << 20);
    sh_mem_fail_after(n);
    int rc = sh_bprompt_body(&p, 0, 0, &b, &max);
    sh_mem_fail_after(-1);
    assert_true(rc == 0 || rc == SH_ERR_NOMEM);
    failures += rc != 0;
    sh_buf_free(&b);
  }
  assert_true(failures > 2 && failures < 40);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_request_has_the_wanted_lengths_and_fields),
      cmocka_unit_test(a_seed_fixes_every_request_and_rows_differ_in_text_only),
      cmocka_unit_test(groups_share_their_beginning_and_nothing_else),
      cmocka_unit_test(calibration_takes_the_template_and_the_words_apart),
      cmocka_unit_test(a_file_is_read_or_refused_and_memory_that_ends_is_an_error),
      cmocka_unit_test(a_body_that_has_no_memory_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
