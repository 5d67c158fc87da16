/* safetensors: what the writer wrote is read back, and every way in which a header can be wrong is an error that says so. */
#include "formats/safetensors.h"

#include "unit/formats/files.h"

#include <fcntl.h>

static const char *TWO = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                         "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}";

static int open_bytes(sh_st **s, const sh_buf *b, sh_error *e) { return sh_st_open(s, memory_file(b->p, b->len), e); }

static void tensors_of_a_file_are_views_with_name_type_and_shape(void **state) {
  (void)state;
  sh_buf b = st_bytes(TWO, 32);
  sh_st *s;
  sh_error e = {0};
  if (open_bytes(&s, &b, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_st_count(s), 2);
  const sh_ftensor *a = sh_st_at(s, 0), *w = sh_st_find(s, "b.weight");
  assert_string_equal(a->name, "a");
  assert_int_equal(a->type, SH_F32);
  assert_int_equal(a->n_dims, 2);
  assert_int_equal(a->dims[0], 2);
  assert_int_equal(a->dims[1], 3);
  assert_int_equal(a->bytes, 24);
  assert_int_equal(a->data[1], 1);
  assert_ptr_equal(w, sh_st_at(s, 1));
  assert_string_equal(w->type_name, "BF16");
  assert_int_equal(w->data[0], 24);
  assert_null(sh_st_find(s, "c"));
  assert_null(sh_st_at(s, 2));
  assert_null(sh_st_at(s, -1));
  sh_st_close(s);
  sh_buf_free(&b);
}

static void wrong_headers_are_refused_with_the_reason(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t data;
    const char *says;
  } CASES[] = {
      {"", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"{\"a\":{}", 0, "header"},
      {"{\"__metadata__\":3}", 0, "__metadata__"},
      {"{\"a\":3}", 0, "tensor a"},
      {"{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "name"},
      {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "NUL"},
      {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype"},
      {"{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype"},
      {"{\"a\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]}}", 1, "dimension 0"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "7 dimensions"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows"},
      {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0, "do not fill"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "truncated"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "claims bytes"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "truncated"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9223372036854775807,9223372036854775807]}}", 1, "claims bytes"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "do not fill"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3,
       "overlap"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}", 4,
       "belong to no tensor"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, "belong to no tensor"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
       "twice"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    sh_buf b = st_bytes(CASES[i].header, CASES[i].data);
    sh_st *s;
    sh_error e = {0};
    if (open_bytes(&s, &b, &e) == 0) fail_msg("accepted: %s", CASES[i].header);
    assert_null(s);
    assert_says(e.text, CASES[i].says);
    assert_says(e.text, "/proc/self/fd/"); /* the file is named */
    sh_buf_free(&b);
  }
}

static void a_header_length_beyond_limit_or_file_is_refused(void **state) {
  (void)state;
  static const struct {
    uint64_t length;
    const char *says;
  } CASES[] = {{0, "JSON object"},
               {17, "ends after"},
               {(uint64_t)100 << 20, "ends after"},
               {((uint64_t)100 << 20) + 1, "limit"},
               {UINT64_MAX, "limit"}};
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    char bytes[24] = {0};
    memcpy(bytes, &CASES[i].length, 8);
    memset(bytes + 8, '{', 16);
    sh_st *s;
    sh_error e = {0};
    assert_int_equal(sh_st_open(&s, memory_file(bytes, sizeof bytes), &e), SH_ERR_FORMAT);
    assert_says(e.text, CASES[i].says);
  }
}

static void a_file_cut_anywhere_is_refused(void **state) {
  (void)state;
  sh_buf b = st_bytes(TWO, 32);
  for (size_t n = 0; n < b.len; n++) {
    sh_st *s;
    sh_error e = {0};
    int rc = sh_st_open(&s, memory_file(b.p, n), &e);
    assert_int_equal(rc, SH_ERR_FORMAT);
    assert_true(strlen(e.text) > 20);
  }
  sh_buf_free(&b);
}

static void mutated_files_are_refused_or_stay_inside_their_bytes(void **state) {
  (void)state;
  sh_buf b = st_bytes(TWO, 32);
  uint8_t *copy = malloc(b.len);
  uint64_t seed = 0x5eed;
  int opened = 0;
  for (int i = 0; i < 20000; i++) {
    memcpy(copy, b.p, b.len);
    mutate(copy, b.len - 32, &seed);
    sh_st *s;
    sh_error e = {0};
    int rc = sh_st_open(&s, memory_file(copy, b.len), &e);
    assert_int_not_equal(rc, SH_ERR_NOMEM);
    assert_int_not_equal(rc, SH_ERR_INTERNAL);
    if (rc) continue;
    unsigned sum = 0;
    for (int k = 0; k < sh_st_count(s); k++) {
      const sh_ftensor *t = sh_st_at(s, k);
      for (size_t j = 0; j < t->bytes; j++) sum += t->data[j];
      assert_ptr_equal(sh_st_find(s, t->name), t);
    }
    assert_true(sum <= 255 * 32);
    opened++;
    sh_st_close(s);
  }
  assert_in_range(opened, 1, 15000); /* names and harmless text may change; most damage must be noticed */
  free(copy);
  sh_buf_free(&b);
}

static void types_without_an_own_kind_keep_their_name(void **state) {
  (void)state;
  sh_buf b = st_bytes("{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"NEW_7\",\"shape\":[3],\"data_"
                      "offsets\":[3,5]}}",
                      5);
  sh_st *s;
  sh_error e = {0};
  if (open_bytes(&s, &b, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_st_at(s, 0)->type, SH_OTHER);
  assert_string_equal(sh_st_at(s, 0)->type_name, "F8_E5M2");
  assert_int_equal(sh_st_at(s, 1)->type, SH_OTHER);
  assert_string_equal(sh_st_at(s, 1)->type_name, "NEW_7");
  sh_st_close(s);
  sh_buf_free(&b);
}

static void written_tensors_are_read_back_aligned(void **state) {
  (void)state;
  uint8_t flags[3] = {1, 0, 1};
  uint16_t half[4] = {1, 2, 3, 4};
  float logits[6] = {1, -2, 3.5f, 0, 1e30f, -0.0f};
  int64_t big = -5;
  sh_ftensor t[] = {
      {.name = "flags", .type = SH_BOOL, .n_dims = 1, .dims = {3}, .data = flags, .bytes = 3},
      {.name = "half", .type = SH_F16, .n_dims = 2, .dims = {2, 2}, .data = (const uint8_t *)half, .bytes = 8},
      {.name = "logits", .type = SH_F32, .n_dims = 2, .dims = {2, 3}, .data = (const uint8_t *)logits, .bytes = 24},
      {.name = "scalar", .type = SH_I64, .n_dims = 0, .data = (const uint8_t *)&big, .bytes = 8},
      {.name = "none \"\\\n", .type = SH_F32, .n_dims = 2, .dims = {0, 5}, .data = flags, .bytes = 0},
  };
  sh_error e = {0};
  if (sh_st_write(in_temp("out.safetensors"), t, 5, &e)) fail_msg("%s", e.text);
  sh_st *s;
  if (sh_st_open(&s, in_temp("out.safetensors"), &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_st_count(s), 5);
  for (int i = 0; i < 5; i++) {
    const sh_ftensor *r = sh_st_find(s, t[i].name);
    assert_non_null(r);
    assert_int_equal(r->type, t[i].type);
    assert_int_equal(r->n_dims, t[i].n_dims);
    for (int d = 0; d < r->n_dims; d++) assert_int_equal(r->dims[d], t[i].dims[d]);
    assert_int_equal(r->bytes, t[i].bytes);
    assert_memory_equal(r->data, t[i].data, t[i].bytes);
    assert_int_equal((uintptr_t)r->data % (uintptr_t)sh_dtype_block_bytes(t[i].type), 0);
  }
  sh_st_close(s);
}

static void a_pipe_takes_the_same_bytes_and_stays_a_pipe(void **state) {
  (void)state;
  uint8_t data[4] = {1, 2, 3, 4};
  sh_ftensor t = {.name = "a", .type = SH_U8, .n_dims = 1, .dims = {4}, .data = data, .bytes = 4};
  sh_error e = {0};
  struct stat st;
  size_t n;
  char got[4096];
  if (sh_st_write(in_temp("file"), &t, 1, &e)) fail_msg("%s", e.text);
  assert_int_equal(mkfifo(in_temp("fifo"), 0600), 0);
  int fd = open(in_temp("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  alarm(20);
  if (sh_st_write(in_temp("fifo"), &t, 1, &e)) fail_msg("%s", e.text);
  alarm(0);
  char *want = slurp(in_temp("file"), &n);
  assert_int_equal(read(fd, got, sizeof got), n);
  assert_memory_equal(got, want, n);
  sh_free(want);
  close(fd);
  assert_int_equal(lstat(in_temp("fifo"), &st), 0);
  assert_true(S_ISFIFO(st.st_mode));
}

static void what_cannot_be_written_is_refused_and_leaves_no_file(void **state) {
  (void)state;
  uint8_t data[34] = {0};
  sh_ftensor good = {.name = "a", .type = SH_U8, .n_dims = 1, .dims = {4}, .data = data, .bytes = 4};
  sh_ftensor block = good, size = good, unnamed = good, pair[2] = {good, good};
  block.type = SH_Q8_0;
  size.bytes = 5;
  unnamed.name = "";
  sh_error e = {0};
  assert_int_equal(sh_st_write(in_temp("x"), &block, 1, &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "Q8_0");
  assert_int_equal(sh_st_write(in_temp("x"), &size, 1, &e), SH_ERR_ARG);
  assert_int_equal(sh_st_write(in_temp("x"), &unnamed, 1, &e), SH_ERR_ARG);
  assert_int_equal(sh_st_write(in_temp("x"), pair, 2, &e), SH_ERR_ARG);
  assert_says(e.text, "twice");
  assert_int_equal(sh_st_write(in_temp("no/such/folder"), &good, 1, &e), SH_ERR_IO);
  assert_false(sh_file_exists(in_temp("x")));
}

static void an_open_survives_failing_allocations(void **state) {
  (void)state;
  sh_buf b = st_bytes(TWO, 32);
  const char *path = memory_file(b.p, b.len);
  for (long n = 0;; n++) {
    assert_true(n < 1000);
    sh_st *s;
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_st_open(&s, path, &e);
    sh_mem_fail_after(-1);
    if (rc == 0) {
      sh_st_close(s);
      break;
    }
    assert_true(rc == SH_ERR_NOMEM || rc == SH_ERR_LIMIT);
    assert_null(s);
  }
  sh_buf_free(&b);
}

static void the_golden_file_opens(void **state) {
  (void)state;
  sh_st *s;
  sh_error e = {0};
  if (sh_st_open(&s, "tests/golden/models/dense-small/model.safetensors", &e)) fail_msg("%s", e.text);
  const sh_ftensor *t = sh_st_find(s, "model.layers.3.self_attn.q_proj.weight");
  assert_non_null(t);
  assert_int_equal(t->dims[0], 512);
  assert_int_equal(t->dims[1], 128);
  assert_int_equal(sh_ftensor_count(t), 512 * 128);
  sh_st_close(s);
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_of_a_file_are_views_with_name_type_and_shape),
      cmocka_unit_test(wrong_headers_are_refused_with_the_reason),
      cmocka_unit_test(a_header_length_beyond_limit_or_file_is_refused),
      cmocka_unit_test(a_file_cut_anywhere_is_refused),
      cmocka_unit_test(mutated_files_are_refused_or_stay_inside_their_bytes),
      cmocka_unit_test(types_without_an_own_kind_keep_their_name),
      cmocka_unit_test_setup_teardown(written_tensors_are_read_back_aligned, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_pipe_takes_the_same_bytes_and_stays_a_pipe, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(what_cannot_be_written_is_refused_and_leaves_no_file, make_temp_dir, remove_temp_dir),
      cmocka_unit_test(an_open_survives_failing_allocations),
      cmocka_unit_test(the_golden_file_opens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
