/* Checkpoints: which files of a folder make a model, shards against their index, side files, and what is said when something is missing. */
#include "formats/checkpoint.h"

#include "unit/formats/files.h"

#define U8_TENSOR(name, n) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[0," #n "]}}"

static void put_st(const char *file, const char *header, size_t data) {
  sh_buf b = st_bytes(header, data);
  put_file(file, b.p, b.len);
  sh_buf_free(&b);
}

static sh_ckpt *must_open(const char *path, unsigned flags) {
  sh_ckpt *c;
  sh_error e = {0};
  if (sh_ckpt_open(&c, path, flags, &e)) fail_msg("%s", e.text);
  return c;
}

static void refuse(const char *path, int code, const char *says) {
  sh_ckpt *c;
  sh_error e = {0};
  int rc = sh_ckpt_open(&c, path, 0, &e);
  if (rc != code) fail_msg("%d in place of %d: %s", rc, code, e.text);
  assert_null(c);
  assert_says(e.text, says);
}

static void a_folder_with_one_file_opens(void **state) {
  (void)state;
  sh_ckpt *c = must_open("tests/golden/models/dense-small", 0);
  assert_false(sh_ckpt_is_gguf(c));
  assert_null(sh_ckpt_gguf(c));
  assert_int_equal(sh_ckpt_count(c), 108);
  assert_int_equal(sh_ckpt_bytes(c), 3077344);
  assert_true(sh_json_eq_str(sh_json_get(sh_ckpt_config(c), "model_type"), "qwen3_5_text"));
  assert_non_null(sh_ckpt_generation_config(c));
  assert_non_null(sh_ckpt_tokenizer_config(c));
  size_t n;
  assert_non_null(sh_ckpt_tokenizer_json(c, &n));
  assert_true(n > 1000);
  assert_memory_equal(sh_ckpt_tokenizer_json(c, &n), "{", 1);
  assert_non_null(sh_ckpt_chat_template(c, &n));
  assert_true(n > 1000);
  for (int i = 0; i < sh_ckpt_count(c); i++) {
    assert_int_equal(sh_ckpt_index(c, sh_ckpt_at(c, i)->name), i);
    assert_ptr_equal(sh_ckpt_find(c, sh_ckpt_at(c, i)->name), sh_ckpt_at(c, i));
  }
  assert_null(sh_ckpt_find(c, "model.layers.0"));
  sh_ckpt_close(c);
}

static void shards_behind_an_index_are_one_set(void **state) {
  (void)state;
  sh_ckpt *c = must_open("tests/golden/models/moe-real-fused", 0);
  assert_non_null(sh_ckpt_find(c, "lm_head.weight"));
  assert_non_null(sh_ckpt_find(c, "model.language_model.embed_tokens.weight"));
  assert_non_null(sh_ckpt_find(c, "mtp.pre_fc_norm_embedding.weight"));
  assert_int_equal(sh_ckpt_bytes(c), 25661872); /* metadata.total_size of the index */
  sh_ckpt_close(c);
}

static void a_gguf_opens_by_its_name_and_by_its_folder(void **state) {
  (void)state;
  sh_ckpt *c = must_open("tests/golden/gguf/dense-small-bf16.gguf", 0);
  assert_true(sh_ckpt_is_gguf(c));
  assert_null(sh_ckpt_config(c));
  assert_int_equal(sh_ckpt_count(c), 108);
  size_t n;
  assert_null(sh_ckpt_tokenizer_json(c, &n));
  assert_non_null(sh_ckpt_chat_template(c, &n));
  assert_true(n > 1000);
  sh_ckpt_close(c);

  copy_in("tests/golden/gguf/dense-small-bf16.gguf", "only.gguf");
  put_text("mmproj-only.gguf", "left aside");
  c = must_open(temp_dir, 0);
  assert_true(sh_ckpt_is_gguf(c));
  sh_ckpt_close(c);
  copy_in("tests/golden/gguf/moe-small-Q4_0.gguf", "other.gguf");
  refuse(temp_dir, SH_ERR_ARG, "more than one model");
}

static void only_the_first_part_of_a_split_gguf_stands_for_a_folder(void **state) {
  (void)state;
  static const uint64_t FOUR[1] = {4};
  for (int no = 0; no < 2; no++) {
    gguf_writer w;
    gguf_begin(&w, 3);
    gguf_u(&w, "split.no", G_U16, (uint64_t)no, 2);
    gguf_u(&w, "split.count", G_U16, 2, 2);
    gguf_tensor(&w, no ? "b" : "a", 0, 1, FOUR, 16);
    gguf_done(&w);
    put_file(no ? "m-00002-of-00002.gguf" : "m-00001-of-00002.gguf", w.b.p, w.b.len);
    sh_buf_free(&w.b);
  }
  sh_ckpt *c = must_open(temp_dir, 0);
  assert_int_equal(sh_ckpt_count(c), 2);
  sh_ckpt_close(c);
}

static void what_is_no_model_is_named(void **state) {
  (void)state;
  refuse("/no/such/path", SH_ERR_NOT_FOUND, "/no/such/path does not exist");
  refuse(temp_dir, SH_ERR_NOT_FOUND, "neither a config.json nor a .gguf");
  put_text("readme.txt", "a text");
  refuse(in_temp("readme.txt"), SH_ERR_FORMAT, "not a GGUF file");
  refuse("tests/golden/models/dense-small/model.safetensors", SH_ERR_ARG, "name its folder");
  put_text("config.json", "{}");
  refuse(temp_dir, SH_ERR_NOT_FOUND, "no weights");
  put_text("pytorch_model.bin", "x");
  refuse(temp_dir, SH_ERR_UNSUPPORTED, "pytorch_model.bin");
}

static void a_broken_side_file_is_named(void **state) {
  (void)state;
  static const char *const NAMES[] = {"config.json", "generation_config.json", "tokenizer_config.json"};
  put_text("config.json", "{}");
  put_st("model.safetensors", U8_TENSOR("a", 4), 4);
  sh_ckpt_close(must_open(temp_dir, 0));
  for (int i = 0; i < 3; i++) {
    put_text(NAMES[i], "{\"a\":");
    refuse(temp_dir, SH_ERR_FORMAT, NAMES[i]);
    put_text(NAMES[i], "[]");
    refuse(temp_dir, SH_ERR_FORMAT, NAMES[i]);
    refuse(temp_dir, SH_ERR_FORMAT, "it holds an array");
    put_text(NAMES[i], "{}");
  }
  put_text("chat_template.json", "[]");
  refuse(temp_dir, SH_ERR_FORMAT, "chat_template.json");
  put_text("chat_template.jinja", "\xff\xff");
  refuse(temp_dir, SH_ERR_FORMAT, "chat_template.jinja");
}

static void a_pipe_in_the_place_of_a_file_is_refused_at_once(void **state) {
  (void)state;
  static const char *const NAMES[] = {"config.json",    "generation_config.json", "tokenizer_config.json",
                                      "tokenizer.json", "chat_template.jinja",    "model.safetensors"};
  put_text("config.json", "{}");
  put_st("model.safetensors", U8_TENSOR("a", 4), 4);
  alarm(60); /* an open would wait for a writer */
  for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
    char *good = NULL;
    size_t n = 0;
    if (sh_file_exists(in_temp(NAMES[i]))) good = slurp(in_temp(NAMES[i]), &n);
    unlink(in_temp(NAMES[i]));
    assert_int_equal(mkfifo(in_temp(NAMES[i]), 0600), 0);
    refuse(temp_dir, SH_ERR_IO, NAMES[i]);
    unlink(in_temp(NAMES[i]));
    if (good) put_file(NAMES[i], good, n);
    sh_free(good);
  }
  assert_int_equal(mkfifo(in_temp("x.gguf"), 0600), 0);
  refuse(in_temp("x.gguf"), SH_ERR_IO, "not a regular file");
  unlink(in_temp("x.gguf"));
  unlink(in_temp("model.safetensors"));
  assert_int_equal(mkfifo(in_temp("model.safetensors.index.json"), 0600), 0);
  refuse(temp_dir, SH_ERR_IO, "model.safetensors.index.json");
  alarm(0);
}

static void put_index(const char *weight_map) {
  char text[600];
  snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":%s}", weight_map);
  put_text("model.safetensors.index.json", text);
}

static void an_index_and_its_shards_must_agree(void **state) {
  (void)state;
  put_text("config.json", "{}");
  put_st("s1.safetensors", U8_TENSOR("a", 4), 4);
  put_st("s2.safetensors", U8_TENSOR("b", 4), 4);
  put_index("{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}");
  sh_ckpt *c = must_open(temp_dir, 0);
  assert_int_equal(sh_ckpt_count(c), 2);
  sh_ckpt_close(c);

  put_index("{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}");
  refuse(temp_dir, SH_ERR_NOT_FOUND, "s3.safetensors");
  put_index("{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}");
  refuse(temp_dir, SH_ERR_FORMAT, "tensor b is not in s1.safetensors");
  put_st("s2.safetensors",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4);
  put_index("{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}");
  refuse(temp_dir, SH_ERR_FORMAT, "tensor a is in two shards");
  put_index("{}");
  refuse(temp_dir, SH_ERR_FORMAT, "no weight_map");
  put_index("[]");
  refuse(temp_dir, SH_ERR_FORMAT, "no weight_map");
  put_text("model.safetensors.index.json", "{");
  refuse(temp_dir, SH_ERR_FORMAT, "model.safetensors.index.json");
}

static void an_index_cannot_reach_out_of_its_folder(void **state) {
  (void)state;
  static const char *const NAMES[] = {"../s1.safetensors",     "/etc/passwd", "sub/s1.safetensors", "..", ".", "",
                                      "s1\\u0000.safetensors", "..\\\\s1"};
  put_text("config.json", "{}");
  for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
    char map[200];
    snprintf(map, sizeof map, "{\"a\":\"%s\"}", NAMES[i]);
    put_index(map);
    refuse(temp_dir, SH_ERR_FORMAT, "plain file name");
  }
  put_index("{\"a\":7}");
  refuse(temp_dir, SH_ERR_FORMAT, "plain file name");
}

static void a_tokenizer_alone_is_enough_where_that_is_asked(void **state) {
  (void)state;
  put_text("tokenizer.json", "{\"model\":{}}");
  refuse(temp_dir, SH_ERR_NOT_FOUND, "config.json");
  sh_ckpt *c = must_open(temp_dir, SH_CKPT_TOKENIZER_ONLY);
  size_t n;
  const char *s = sh_ckpt_tokenizer_json(c, &n);
  assert_int_equal(n, 12);
  assert_memory_equal(s, "{\"model\":{}}", 12);
  assert_null(sh_ckpt_config(c));
  assert_int_equal(sh_ckpt_count(c), 0);
  sh_ckpt_close(c);
  put_text("config.json", "{}");
  put_text("model.safetensors", "broken weights do not matter here");
  sh_ckpt_close(must_open(temp_dir, SH_CKPT_TOKENIZER_ONLY));
}

static void expect_template(const char *want) {
  sh_ckpt *c = must_open(temp_dir, SH_CKPT_TOKENIZER_ONLY);
  size_t n;
  const char *s = sh_ckpt_chat_template(c, &n);
  if (!want) assert_null(s);
  else {
    assert_int_equal(n, strlen(want));
    assert_memory_equal(s, want, n);
  }
  sh_ckpt_close(c);
}

static void expect_source(const char *want) {
  sh_ckpt *c = must_open(temp_dir, SH_CKPT_TOKENIZER_ONLY);
  const char *s = sh_ckpt_template_source(c);
  if (!want) assert_null(s);
  else assert_string_equal(s, want);
  sh_ckpt_close(c);
}

static void the_chat_template_is_the_jinja_file_before_the_json_files(void **state) {
  (void)state;
  put_text("tokenizer.json", "{}");
  expect_template(NULL);
  expect_source(NULL);
  put_text("tokenizer_config.json", "{\"chat_template\":\"one\"}");
  expect_template("one");
  put_text("tokenizer_config.json",
           "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}");
  expect_template("d");
  put_text("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"}]}");
  expect_template(NULL);
  put_text("tokenizer_config.json", "{\"chat_template\":null}");
  expect_template(NULL);
  put_text("chat_template.json", "{\"chat_template\":\"three\"}");
  expect_template("three");
  expect_source("chat_template.json");
  put_text("tokenizer_config.json", "{\"chat_template\":\"one\"}");
  expect_template("one");
  expect_source("tokenizer_config.json");
  put_text("chat_template.jinja", "file");
  expect_template("file");
  expect_source("chat_template.jinja");
}

static void an_open_survives_failing_allocations(void **state) {
  (void)state;
  put_text("config.json", "{}");
  put_text("tokenizer_config.json", "{\"chat_template\":\"one\"}");
  put_st("s1.safetensors", U8_TENSOR("a", 4), 4);
  put_index("{\"a\":\"s1.safetensors\"}");
  for (long n = 0;; n++) {
    assert_true(n < 1000);
    sh_ckpt *c;
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_ckpt_open(&c, temp_dir, 0, &e);
    sh_mem_fail_after(-1);
    if (rc == 0) {
      sh_ckpt_close(c);
      break;
    }
    if (rc != SH_ERR_NOMEM) fail_msg("%ld: %d %s", n, rc, e.text);
  }
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_folder_with_one_file_opens),
      cmocka_unit_test(shards_behind_an_index_are_one_set),
      cmocka_unit_test_setup_teardown(a_gguf_opens_by_its_name_and_by_its_folder, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(only_the_first_part_of_a_split_gguf_stands_for_a_folder, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(what_is_no_model_is_named, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_broken_side_file_is_named, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_pipe_in_the_place_of_a_file_is_refused_at_once, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(an_index_and_its_shards_must_agree, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(an_index_cannot_reach_out_of_its_folder, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_tokenizer_alone_is_enough_where_that_is_asked, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(the_chat_template_is_the_jinja_file_before_the_json_files, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(an_open_survives_failing_allocations, make_temp_dir, remove_temp_dir),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
