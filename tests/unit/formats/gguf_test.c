/* GGUF: files made here byte by byte, whole and split, right and wrong; mutations; the golden files. */
#include "formats/gguf.h"

#include <math.h>

#include "unit/formats/files.h"

static const uint64_t DIMS_A[2] = {64, 3}, DIMS_B[3] = {4, 2, 5};

/* A file with every kind of value and two tensors. */
static sh_buf sample(uint32_t version) {
  gguf_writer w;
  gguf_begin(&w, version);
  gguf_s(&w, "general.architecture", "llama");
  gguf_u(&w, "k.u8", G_U8, 200, 1);
  gguf_u(&w, "k.i8", G_I8, 0xfe, 1);
  gguf_u(&w, "k.u16", G_U16, 65535, 2);
  gguf_u(&w, "k.i16", G_I16, 0xffff, 2);
  gguf_u(&w, "k.u32", G_U32, 4000000000u, 4);
  gguf_u(&w, "k.i32", G_I32, 0x80000000u, 4);
  gguf_u(&w, "k.u64", G_U64, UINT64_MAX, 8);
  gguf_u(&w, "k.i64", G_I64, UINT64_MAX - 1, 8);
  gguf_u(&w, "k.bool", G_BOOL, 1, 1);
  gguf_f32(&w, "k.f32", 1.5f);
  double d = -0.1;
  uint64_t u;
  memcpy(&u, &d, 8);
  gguf_u(&w, "k.f64", G_F64, u, 8);
  gguf_f32(&w, "k.nan", (float)NAN);
  gguf_array(&w, "a.str", G_STR, 3);
  put_gstr(&w.b, "one");
  put_gstr(&w.b, "");
  put_gstr(&w.b, "three");
  gguf_array(&w, "a.i32", G_I32, 2);
  put_le(&w.b, 7, 4);
  put_le(&w.b, 0xffffffff, 4);
  gguf_array(&w, "a.f32", G_F32, 1);
  put_le(&w.b, 0x40000000, 4);
  gguf_array(&w, "a.none", G_STR, 0);
  gguf_tensor(&w, "a", 8 /* Q8_0 */, 2, DIMS_A, 3 * 2 * 34);
  gguf_tensor(&w, "b", 0 /* F32 */, 3, DIMS_B, 40 * 4);
  gguf_done(&w);
  return w.b;
}

static int open_bytes(sh_gguf **g, const sh_buf *b, sh_error *e) { return sh_gguf_open(g, memory_file(b->p, b->len), e); }

static sh_gguf *must_open(const sh_buf *b) {
  sh_gguf *g;
  sh_error e = {0};
  if (open_bytes(&g, b, &e)) fail_msg("%s", e.text);
  return g;
}

static void scalars_are_read_from_any_number_type(void **state) {
  (void)state;
  static const struct {
    const char *key;
    int64_t want;
  } INTS[] = {{"k.u8", 200},         {"k.i8", -2},         {"k.u16", 65535}, {"k.i16", -1},
              {"k.u32", 4000000000}, {"k.i32", INT32_MIN}, {"k.i64", -2},    {"k.bool", 1}};
  sh_buf b = sample(3);
  sh_gguf *g = must_open(&b);
  int64_t v;
  double d;
  for (size_t i = 0; i < sizeof INTS / sizeof INTS[0]; i++) {
    assert_int_equal(sh_gguf_int(g, INTS[i].key, &v), 0);
    assert_int_equal(v, INTS[i].want);
  }
  assert_int_equal(sh_gguf_int(g, "k.u64", &v), SH_ERR_FORMAT); /* beyond int64 */
  assert_int_equal(sh_gguf_int(g, "k.f32", &v), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_int(g, "a.i32", &v), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_int(g, "k.none", &v), SH_ERR_NOT_FOUND);
  assert_int_equal(sh_gguf_float(g, "k.f32", &d), 0);
  assert_true(d == 1.5);
  assert_int_equal(sh_gguf_float(g, "k.f64", &d), 0);
  assert_true(d == -0.1);
  assert_int_equal(sh_gguf_float(g, "k.i16", &d), 0);
  assert_true(d == -1);
  assert_int_equal(sh_gguf_float(g, "k.nan", &d), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_float(g, "general.architecture", &d), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_float(g, "k.none", &d), SH_ERR_NOT_FOUND);
  sh_gguf_close(g);
  sh_buf_free(&b);
}

static void strings_and_arrays_are_views_by_index(void **state) {
  (void)state;
  sh_buf b = sample(2);
  sh_gguf *g = must_open(&b);
  const char *s;
  size_t n;
  int64_t v;
  double d;
  assert_int_equal(sh_gguf_str(g, "general.architecture", &s, &n), 0);
  assert_int_equal(n, 5);
  assert_memory_equal(s, "llama", 5);
  assert_int_equal(sh_gguf_str(g, "k.u8", &s, &n), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_str(g, "nope", &s, &n), SH_ERR_NOT_FOUND);
  assert_int_equal(sh_gguf_array_len(g, "a.str"), 3);
  assert_int_equal(sh_gguf_array_len(g, "a.none"), 0);
  assert_int_equal(sh_gguf_array_len(g, "k.u8"), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_array_len(g, "nope"), SH_ERR_NOT_FOUND);
  assert_int_equal(sh_gguf_array_str(g, "a.str", 2, &s, &n), 0);
  assert_int_equal(n, 5);
  assert_memory_equal(s, "three", 5);
  assert_int_equal(sh_gguf_array_str(g, "a.str", 1, &s, &n), 0);
  assert_int_equal(n, 0);
  assert_int_equal(sh_gguf_array_str(g, "a.str", 3, &s, &n), SH_ERR_ARG);
  assert_int_equal(sh_gguf_array_str(g, "a.str", -1, &s, &n), SH_ERR_ARG);
  assert_int_equal(sh_gguf_array_str(g, "a.i32", 0, &s, &n), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_array_int(g, "a.i32", 1, &v), 0);
  assert_int_equal(v, -1);
  assert_int_equal(sh_gguf_array_int(g, "a.i32", 2, &v), SH_ERR_ARG);
  assert_int_equal(sh_gguf_array_int(g, "a.str", 0, &v), SH_ERR_FORMAT);
  assert_int_equal(sh_gguf_array_float(g, "a.f32", 0, &d), 0);
  assert_true(d == 2);
  sh_gguf_close(g);
  sh_buf_free(&b);
}

static void tensors_have_their_slowest_dimension_first(void **state) {
  (void)state;
  sh_buf b = sample(3);
  sh_gguf *g = must_open(&b);
  assert_int_equal(sh_gguf_count(g), 2);
  const sh_ftensor *t = sh_gguf_find(g, "a");
  assert_ptr_equal(t, sh_gguf_at(g, 0));
  assert_int_equal(t->type, SH_Q8_0);
  assert_int_equal(t->dims[0], 3);
  assert_int_equal(t->dims[1], 64);
  assert_int_equal(t->bytes, 204);
  assert_int_equal(t->data[3], 21);
  t = sh_gguf_find(g, "b");
  assert_int_equal(t->n_dims, 3);
  assert_int_equal(t->dims[0], 5);
  assert_int_equal(t->dims[2], 4);
  assert_int_equal(t->data[2], 14);
  assert_null(sh_gguf_find(g, "c"));
  assert_null(sh_gguf_at(g, 2));
  sh_gguf_close(g);
  sh_buf_free(&b);
}

/* One tensor, or a change of the header, that must be refused. */
static void expect_refused(gguf_writer *w, const char *says) {
  gguf_done(w);
  sh_gguf *g;
  sh_error e = {0};
  if (open_bytes(&g, &w->b, &e) == 0) fail_msg("accepted, wanted: %s", says);
  assert_null(g);
  assert_says(e.text, says);
  assert_says(e.text, "/proc/self/fd/");
  sh_buf_free(&w->b);
}

static void wrong_tensor_entries_are_refused_with_the_reason(void **state) {
  (void)state;
  static const struct {
    uint32_t type;
    int n_dims;
    uint64_t dims[7];
    size_t bytes;
    const char *says;
  } CASES[] = {
      {99, 1, {4}, 16, "unknown type number 99"},
      {4, 1, {4}, 16, "unknown type number 4"}, /* a type that was removed */
      {0, 7, {1, 1, 1, 1, 1, 1, 1}, 4, "7 dimensions"},
      {0, 2, {4, 0}, 0, "0 or overflows"},
      {0, 2, {UINT64_MAX, 2}, 0, "0 or overflows"},
      {0, 3, {(uint64_t)1 << 31, (uint64_t)1 << 31, 4}, 0, "0 or overflows"},
      {0, 2, {(uint64_t)1 << 31, (uint64_t)1 << 31}, 0, "overflows"},
      {8, 2, {48, 2}, 102, "no multiple of Q8_0's block of 32"},
      {14, 2, {128, 2}, 210, "block of 256"},
      {0, 1, {5}, 16, "truncated"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    gguf_writer w;
    gguf_begin(&w, 3);
    gguf_tensor(&w, "t", CASES[i].type, CASES[i].n_dims, CASES[i].dims, CASES[i].bytes);
    expect_refused(&w, CASES[i].says);
  }
}

static void names_offsets_and_overlaps_are_checked(void **state) {
  (void)state;
  static const uint64_t FOUR[1] = {4};
  gguf_writer w;
  gguf_begin(&w, 3);
  gguf_tensor(&w, "same", 0, 1, FOUR, 16);
  gguf_tensor(&w, "same", 0, 1, FOUR, 16);
  expect_refused(&w, "tensor same is there twice");

  gguf_begin(&w, 3);
  gguf_tensor(&w, "", 0, 1, FOUR, 16);
  expect_refused(&w, "no usable name");

  gguf_begin(&w, 3);
  gguf_tensor(&w, "\xff\xfe", 0, 1, FOUR, 16);
  expect_refused(&w, "no usable name");

  gguf_begin(&w, 3);
  gguf_tensor(&w, "t", 0, 1, FOUR, 16);
  w.b.p[w.b.len - 8] = 4; /* its offset */
  expect_refused(&w, "not aligned to 32");

  gguf_begin(&w, 3);
  gguf_tensor(&w, "t", 0, 1, FOUR, 16);
  memset(w.b.p + w.b.len - 7, 0xff, 7);
  expect_refused(&w, "truncated");

  gguf_begin(&w, 3);
  uint64_t twenty[1] = {20};
  gguf_tensor(&w, "first", 0, 1, twenty, 80);
  gguf_tensor(&w, "second", 0, 1, FOUR, 16);
  w.b.p[w.b.len - 8] = 64; /* the first ends at 80, the second belongs at 96 */
  expect_refused(&w, "tensors first and second overlap");
}

static void wrong_headers_and_keys_are_refused_with_the_reason(void **state) {
  (void)state;
  gguf_writer w;
  gguf_begin(&w, 1);
  expect_refused(&w, "version 1");
  gguf_begin(&w, 4);
  expect_refused(&w, "version 4");
  gguf_begin(&w, 0x03000000);
  expect_refused(&w, "big-endian");
  gguf_begin(&w, 3);
  w.b.p[0] = 'g';
  expect_refused(&w, "not a GGUF file");
  gguf_begin(&w, 3);
  gguf_key(&w, "k", 13);
  expect_refused(&w, "unknown type 13");
  gguf_begin(&w, 3);
  gguf_u32(&w, "k", 1);
  gguf_u32(&w, "k", 2);
  expect_refused(&w, "key k is there twice");
  gguf_begin(&w, 3);
  gguf_u32(&w, "", 1);
  expect_refused(&w, "no name");
  gguf_begin(&w, 3);
  gguf_array(&w, "k", G_ARRAY, 0);
  expect_refused(&w, "array of arrays");
  gguf_begin(&w, 3);
  gguf_array(&w, "k", 77, 0);
  expect_refused(&w, "unknown type 77");
  gguf_begin(&w, 3);
  gguf_array(&w, "k", G_U64, UINT64_MAX / 8 + 2);
  expect_refused(&w, "items");
  gguf_begin(&w, 3);
  gguf_array(&w, "k", G_STR, (uint64_t)1 << 40);
  expect_refused(&w, "items");
  gguf_begin(&w, 3);
  gguf_key(&w, "k", G_STR);
  put_le(&w.b, UINT64_MAX - 3, 8);
  expect_refused(&w, "over the end");
  gguf_begin(&w, 3);
  w.n_keys = UINT64_MAX;
  expect_refused(&w, "keys");
  gguf_begin(&w, 3);
  w.n_tensors = (uint64_t)1 << 60;
  expect_refused(&w, "tensors");
  gguf_begin(&w, 3);
  gguf_u32(&w, "general.alignment", 48);
  expect_refused(&w, "power of two");
  gguf_begin(&w, 3);
  gguf_u32(&w, "general.alignment", 0);
  expect_refused(&w, "power of two");
  gguf_begin(&w, 3);
  gguf_s(&w, "split.count", "two");
  expect_refused(&w, "split.count");
  gguf_begin(&w, 3);
  gguf_u32(&w, "split.count", 3); /* the path is not named like a part */
  expect_refused(&w, "00001-of-00003");
}

static void data_starts_at_the_alignment_the_file_names(void **state) {
  (void)state;
  gguf_writer w;
  gguf_begin(&w, 3);
  w.align = 256;
  gguf_u32(&w, "general.alignment", 256);
  gguf_tensor(&w, "b", 0, 3, DIMS_B, 160);
  gguf_tensor(&w, "c", 0, 3, DIMS_B, 160);
  gguf_done(&w);
  sh_gguf *g = must_open(&w.b);
  assert_int_equal(sh_gguf_find(g, "b")->data[1], 7);
  assert_int_equal(sh_gguf_find(g, "c")->data[1], 7);
  assert_int_equal(sh_gguf_find(g, "c")->data - sh_gguf_find(g, "b")->data, 256);
  sh_gguf_close(g);
  sh_buf_free(&w.b);
}

static void types_that_are_not_computed_keep_their_name(void **state) {
  (void)state;
  static const uint64_t DIMS[2] = {256, 1};
  gguf_writer w;
  gguf_begin(&w, 3);
  gguf_tensor(&w, "three", 11, 2, DIMS, 110);
  gguf_tensor(&w, "four", 23, 2, DIMS, 136);
  gguf_done(&w);
  sh_gguf *g = must_open(&w.b);
  assert_int_equal(sh_gguf_find(g, "three")->type, SH_OTHER);
  assert_string_equal(sh_gguf_find(g, "three")->type_name, "Q3_K");
  assert_string_equal(sh_gguf_find(g, "four")->type_name, "IQ4_XS");
  sh_gguf_close(g);
  sh_buf_free(&w.b);
}

static void a_file_cut_anywhere_is_refused(void **state) {
  (void)state;
  sh_buf b = sample(3);
  for (size_t n = 0; n < b.len; n++) {
    sh_gguf *g;
    sh_error e = {0};
    if (sh_gguf_open(&g, memory_file(b.p, n), &e) != SH_ERR_FORMAT) fail_msg("%zu bytes: %s", n, e.text);
    assert_true(strlen(e.text) > 20);
  }
  sh_buf_free(&b);
}

static void mutated_files_are_refused_or_stay_inside_their_bytes(void **state) {
  (void)state;
  sh_buf b = sample(3);
  size_t head = b.len - 204 - 20 - 160;
  uint8_t *copy = malloc(b.len);
  uint64_t seed = 0x99f;
  int opened = 0;
  for (int i = 0; i < 20000; i++) {
    memcpy(copy, b.p, b.len);
    mutate(copy, head, &seed);
    sh_gguf *g;
    sh_error e = {0};
    int rc = sh_gguf_open(&g, memory_file(copy, b.len), &e);
    assert_int_not_equal(rc, SH_ERR_NOMEM);
    assert_int_not_equal(rc, SH_ERR_INTERNAL);
    if (rc) continue;
    unsigned sum = 0;
    for (int k = 0; k < sh_gguf_count(g); k++) {
      const sh_ftensor *t = sh_gguf_at(g, k);
      for (size_t j = 0; j < t->bytes; j++) sum += t->data[j];
    }
    for (int64_t k = 0; k < sh_gguf_array_len(g, "a.str"); k++) {
      const char *s;
      size_t n;
      if (sh_gguf_array_str(g, "a.str", k, &s, &n) == 0) {
        for (size_t j = 0; j < n; j++) sum += (uint8_t)s[j];
      }
    }
    assert_true(sum <= 255 * b.len);
    opened++;
    sh_gguf_close(g);
  }
  assert_in_range(opened, 1, 19000);
  free(copy);
  sh_buf_free(&b);
}

static void an_open_survives_failing_allocations(void **state) {
  (void)state;
  sh_buf b = sample(3);
  const char *path = memory_file(b.p, b.len);
  for (long n = 0;; n++) {
    assert_true(n < 1000);
    sh_gguf *g;
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_gguf_open(&g, path, &e);
    sh_mem_fail_after(-1);
    if (rc == 0) {
      sh_gguf_close(g);
      break;
    }
    assert_int_equal(rc, SH_ERR_NOMEM);
  }
  sh_buf_free(&b);
}

/* --- Split files */

static void put_part(const char *file, int no, int count, const char *tensor, int total) {
  static const uint64_t FOUR[1] = {4};
  gguf_writer w;
  gguf_begin(&w, 3);
  if (no == 0) gguf_s(&w, "general.architecture", "qwen35");
  gguf_u(&w, "split.no", G_U16, (uint64_t)no, 2);
  gguf_u(&w, "split.count", G_U16, (uint64_t)count, 2);
  gguf_u(&w, "split.tensors.count", G_I32, (uint64_t)total, 4);
  gguf_tensor(&w, tensor, 0, 1, FOUR, 16);
  gguf_done(&w);
  put_file(file, w.b.p, w.b.len);
  sh_buf_free(&w.b);
}

static void put_set(void) {
  put_part("m-00001-of-00003.gguf", 0, 3, "a", 3);
  put_part("m-00002-of-00003.gguf", 1, 3, "b", 3);
  put_part("m-00003-of-00003.gguf", 2, 3, "c", 3);
}

static void a_split_file_is_one_set_through_any_of_its_parts(void **state) {
  (void)state;
  put_set();
  for (int i = 1; i <= 3; i++) {
    char name[32];
    snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
    sh_gguf *g;
    sh_error e = {0};
    if (sh_gguf_open(&g, in_temp(name), &e)) fail_msg("%s", e.text);
    assert_int_equal(sh_gguf_count(g), 3);
    assert_string_equal(sh_gguf_at(g, 0)->name, "a");
    assert_string_equal(sh_gguf_at(g, 2)->name, "c");
    assert_int_equal(sh_gguf_find(g, "b")->data[1], 7);
    const char *s;
    size_t n;
    assert_int_equal(sh_gguf_str(g, "general.architecture", &s, &n), 0);
    sh_gguf_close(g);
  }
}

static void refuse_set(const char *says) {
  sh_gguf *g;
  sh_error e = {0};
  assert_true(sh_gguf_open(&g, in_temp("m-00001-of-00003.gguf"), &e) < 0);
  assert_says(e.text, says);
}

static void a_broken_set_names_the_part_that_is_wrong(void **state) {
  (void)state;
  put_set();
  unlink(in_temp("m-00003-of-00003.gguf"));
  refuse_set("m-00003-of-00003.gguf");
  put_part("m-00003-of-00003.gguf", 1, 3, "c", 3);
  refuse_set("part 3 of 3 was expected");
  put_part("m-00003-of-00003.gguf", 2, 4, "c", 3);
  refuse_set("of 4");
  put_part("m-00003-of-00003.gguf", 2, 3, "a", 3);
  refuse_set("tensor a is there twice");
  put_set();
  put_part("m-00001-of-00003.gguf", 0, 3, "a", 4);
  refuse_set("split.tensors.count is 4");
}

static void the_golden_files_open(void **state) {
  (void)state;
  static const struct {
    const char *path;
    int tensors;
  } FILES[] = {{"tests/golden/gguf/dense-real-Q4_0.gguf", 56},
               {"tests/golden/gguf/dense-small-bf16.gguf", 108},
               {"tests/golden/gguf/moe-small-Q8_0.gguf", -1}};
  for (int i = 0; i < 3; i++) {
    sh_gguf *g;
    sh_error e = {0};
    if (sh_gguf_open(&g, FILES[i].path, &e)) fail_msg("%s", e.text);
    if (FILES[i].tensors > 0) assert_int_equal(sh_gguf_count(g), FILES[i].tensors);
    const char *s;
    size_t n;
    assert_int_equal(sh_gguf_array_len(g, "tokenizer.ggml.tokens"), 640);
    assert_int_equal(sh_gguf_array_str(g, "tokenizer.ggml.tokens", 0, &s, &n), 0);
    assert_memory_equal(s, "!", 1);
    int64_t id;
    assert_int_equal(sh_gguf_int(g, "tokenizer.ggml.eos_token_id", &id), 0);
    assert_int_equal(id, 594);
    sh_gguf_close(g);
  }
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scalars_are_read_from_any_number_type),
      cmocka_unit_test(strings_and_arrays_are_views_by_index),
      cmocka_unit_test(tensors_have_their_slowest_dimension_first),
      cmocka_unit_test(wrong_tensor_entries_are_refused_with_the_reason),
      cmocka_unit_test(names_offsets_and_overlaps_are_checked),
      cmocka_unit_test(wrong_headers_and_keys_are_refused_with_the_reason),
      cmocka_unit_test(data_starts_at_the_alignment_the_file_names),
      cmocka_unit_test(types_that_are_not_computed_keep_their_name),
      cmocka_unit_test(a_file_cut_anywhere_is_refused),
      cmocka_unit_test(mutated_files_are_refused_or_stay_inside_their_bytes),
      cmocka_unit_test(an_open_survives_failing_allocations),
      cmocka_unit_test_setup_teardown(a_split_file_is_one_set_through_any_of_its_parts, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_broken_set_names_the_part_that_is_wrong, make_temp_dir, remove_temp_dir),
      cmocka_unit_test(the_golden_files_open),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
