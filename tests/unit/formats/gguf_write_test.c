/* GGUF files written here come back through the reader as they went in; what no reader would take is refused before a file is begun. */
#include "formats/gguf_write.h"

#include "formats/gguf.h"
#include "unit/formats/files.h"

static uint8_t data[4096];

static sh_ftensor tensor(const char *name, sh_dtype type, int n_dims, const int64_t *dims) {
  sh_ftensor t = {.name = name, .type = type, .n_dims = n_dims, .data = data + 3};
  int64_t n = 1;
  for (int i = 0; i < n_dims; i++) n *= t.dims[i] = dims[i];
  t.bytes = (size_t)(n / sh_dtype_block(type)) * (size_t)sh_dtype_block_bytes(type);
  return t;
}

static int make_data(void **state) {
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 31 + i / 256);
  return make_temp_dir(state);
}

static void put_keys(sh_gguf_out *g) {
  sh_gguf_out_init(g);
  sh_gguf_put_str(g, "general.architecture", "test", 4);
  sh_gguf_put_str(g, "empty", "", 0);
  sh_gguf_put_u32(g, "u", 4000000000u);
  sh_gguf_put_i32(g, "i", -7);
  sh_gguf_put_f32(g, "f", -0.25f);
  sh_gguf_put_bool(g, "b", true);
  sh_gguf_put_strs(g, "words", 3);
  sh_gguf_item_str(g, "one", 3);
  sh_gguf_item_str(g, "", 0);
  sh_gguf_item_str(g, "t\0ree", 5);
  sh_gguf_put_i32s(g, "numbers", 2);
  sh_gguf_item_i32(g, INT32_MIN);
  sh_gguf_item_i32(g, 5);
  sh_gguf_put_strs(g, "none", 0);
}

static void check_keys(const sh_gguf *g) {
  int64_t v;
  double d;
  const char *s;
  size_t n;
  assert_int_equal(sh_gguf_str(g, "general.architecture", &s, &n), 0);
  assert_int_equal(n, 4);
  assert_memory_equal(s, "test", 4);
  assert_int_equal(sh_gguf_str(g, "empty", &s, &n), 0);
  assert_int_equal(n, 0);
  assert_int_equal(sh_gguf_int(g, "u", &v), 0);
  assert_int_equal(v, 4000000000);
  assert_int_equal(sh_gguf_int(g, "i", &v), 0);
  assert_int_equal(v, -7);
  assert_int_equal(sh_gguf_float(g, "f", &d), 0);
  assert_true(d == -0.25);
  assert_int_equal(sh_gguf_int(g, "b", &v), 0);
  assert_int_equal(v, 1);
  assert_int_equal(sh_gguf_array_len(g, "words"), 3);
  assert_int_equal(sh_gguf_array_str(g, "words", 2, &s, &n), 0);
  assert_int_equal(n, 5);
  assert_memory_equal(s, "t\0ree", 5);
  assert_int_equal(sh_gguf_array_int(g, "numbers", 0, &v), 0);
  assert_int_equal(v, INT32_MIN);
  assert_int_equal(sh_gguf_array_len(g, "none"), 0);
}

static const int64_t DIMS[] = {2, 3, 256};

static int sample(sh_ftensor t[6]) {
  t[0] = tensor("vector", SH_F32, 1, (const int64_t[]){5});
  t[1] = tensor("odd", SH_Q4_0, 2, (const int64_t[]){3, 32});
  t[2] = tensor("experts", SH_Q6_K, 3, DIMS);
  t[3] = tensor("half", SH_BF16, 2, (const int64_t[]){2, 7});
  t[4] = tensor("k", SH_Q4_K, 2, (const int64_t[]){2, 512});
  t[5] = tensor("last", SH_Q8_0, 1, (const int64_t[]){32});
  return 6;
}

static void what_is_written_is_read_again(void **state) {
  (void)state;
  sh_gguf_out out;
  sh_ftensor t[6];
  sh_gguf *g;
  sh_error e = {0};
  struct stat st;
  int n = sample(t);
  const char *path = in_temp("a.gguf");
  put_keys(&out);
  if (sh_gguf_out_write(&out, path, t, n, NULL, NULL, &e) || sh_gguf_open(&g, path, &e)) fail_msg("%s", e.text);
  check_keys(g);
  assert_int_equal(sh_gguf_count(g), n);
  for (int i = 0; i < n; i++) {
    const sh_ftensor *r = sh_gguf_at(g, i);
    assert_string_equal(r->name, t[i].name);
    assert_int_equal(r->type, t[i].type);
    assert_int_equal(r->n_dims, t[i].n_dims);
    assert_memory_equal(r->dims, t[i].dims, sizeof(int64_t) * (size_t)t[i].n_dims);
    assert_int_equal(r->bytes, t[i].bytes);
    assert_memory_equal(r->data, t[i].data, t[i].bytes);
    assert_int_equal((uintptr_t)r->data % 32, 0); /* the map begins at a page */
  }
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_size, sh_gguf_out_bytes(&out, t, n));
  assert_int_equal(st.st_size % 32, 0);
  sh_gguf_close(g);
  sh_gguf_out_free(&out);
}

/* --- Sources */

static int in_two(void *ctx, const sh_ftensor *t, sh_file_out *o, sh_error *e) {
  size_t most = t->bytes - *(const size_t *)ctx;
  int rc = sh_file_out_write(o, t->data, most / 2, e);
  return rc ? rc : sh_file_out_write(o, t->data + most / 2, most - most / 2, e);
}

static void a_source_gives_the_same_file_and_must_give_all(void **state) {
  (void)state;
  sh_gguf_out out;
  sh_ftensor t[6];
  sh_error e = {0};
  int n = sample(t);
  size_t lacking = 0, a, b;
  put_keys(&out);
  if (sh_gguf_out_write(&out, in_temp("a.gguf"), t, n, NULL, NULL, &e)) fail_msg("%s", e.text);
  if (sh_gguf_out_write(&out, in_temp("b.gguf"), t, n, in_two, &lacking, &e)) fail_msg("%s", e.text);
  char *x = slurp(in_temp("a.gguf"), &a), *y = slurp(in_temp("b.gguf"), &b);
  assert_int_equal(a, b);
  assert_memory_equal(x, y, a);
  lacking = 1;
  assert_int_equal(sh_gguf_out_write(&out, in_temp("c.gguf"), t, n, in_two, &lacking, &e), SH_ERR_INTERNAL);
  assert_says(e.text, "vector");
  assert_false(sh_file_exists(in_temp("c.gguf")));
  sh_free(x);
  sh_free(y);
  sh_gguf_out_free(&out);
}

/* --- Refused */

static void refused(const sh_ftensor *t, int n, const char *says) {
  sh_gguf_out out;
  sh_error e = {0};
  put_keys(&out);
  if (!sh_gguf_out_write(&out, in_temp("r.gguf"), t, n, NULL, NULL, &e)) fail_msg("taken, though %s", says);
  assert_says(e.text, says);
  assert_false(sh_file_exists(in_temp("r.gguf")));
  sh_gguf_out_free(&out);
}

static void what_no_reader_takes_is_refused(void **state) {
  (void)state;
  const int64_t five[] = {1, 1, 1, 1, 32}, none[] = {0}, ok[] = {32}, thirty[] = {8, 30};
  sh_ftensor t[2] = {tensor("a", SH_F32, 1, ok), tensor("a", SH_F32, 1, ok)};
  refused(t, 2, "tensor a is given twice");
  t[0].name = "blk.0.a_name_that_is_longer_than_the_sixty_three_bytes_ggml_has_for_it.weight";
  refused(t, 1, "1 to 63 bytes");
  t[0].name = "";
  refused(t, 1, "1 to 63 bytes");
  t[0] = tensor("a", SH_Q4_0, 2, thirty);
  refused(t, 1, "rows of 30 weights are no whole number of blocks of 32");
  t[0] = tensor("a", SH_F32, 5, five);
  refused(t, 1, "5 dimensions");
  t[0] = tensor("a", SH_F32, 1, none);
  refused(t, 1, "no sensible shape");
  t[0] = tensor("a", SH_F8_E4M3, 1, ok);
  refused(t, 1, "a GGUF cannot hold F8_E4M3");
  t[0] = tensor("a", SH_F32, 1, ok);
  t[0].bytes++;
  refused(t, 1, "its shape does not give its 129 bytes");
}

static void an_array_has_the_items_it_was_begun_with(void **state) {
  (void)state;
  sh_gguf_out out;
  sh_error e = {0};
  for (int items = 0; items <= 3; items++) {
    sh_gguf_out_init(&out);
    sh_gguf_put_i32s(&out, "numbers", 2);
    for (int i = 0; i < items; i++) sh_gguf_item_i32(&out, i);
    int last = sh_gguf_out_write(&out, in_temp("n.gguf"), NULL, 0, NULL, NULL, &e);
    assert_int_equal(last, items == 2 ? 0 : SH_ERR_INTERNAL);
    sh_gguf_put_bool(&out, "b", true);
    assert_int_equal(sh_gguf_out_write(&out, in_temp("n.gguf"), NULL, 0, NULL, NULL, &e), last);
    sh_gguf_out_free(&out);
  }
}

static void no_memory_is_an_error_and_leaves_nothing(void **state) {
  (void)state;
  sh_ftensor t[6];
  int n = sample(t), rc = -1;
  for (long at = 0; rc && at < 100; at++) {
    sh_gguf_out out;
    sh_error e = {0};
    sh_mem_fail_after(at);
    put_keys(&out);
    rc = sh_gguf_out_write(&out, in_temp("m.gguf"), t, n, NULL, NULL, &e);
    sh_mem_fail_after(-1);
    sh_gguf_out_free(&out);
    if (rc) assert_int_equal(rc, SH_ERR_NOMEM);
    assert_int_equal(sh_file_exists(in_temp("m.gguf")), rc == 0);
  }
  assert_int_equal(rc, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_is_read_again),
      cmocka_unit_test(a_source_gives_the_same_file_and_must_give_all),
      cmocka_unit_test(what_no_reader_takes_is_refused),
      cmocka_unit_test(an_array_has_the_items_it_was_begun_with),
      cmocka_unit_test(no_memory_is_an_error_and_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, make_data, remove_temp_dir);
}
