/* model.safetensors.index.json and the side files of a folder under damage: a refusal with a sentence, or a checkpoint whose tensors are
 * all there. */
#include "unit/hostile.h"

#include "formats/checkpoint.h"

static const char INDEX[] =
    "{\"metadata\": {\"total_size\": 64}, \"weight_map\": {\"model.embed_tokens.weight\": \"m-1-of-3.safetensors\",\n"
    "\"lm_head.weight\": \"m-2-of-3.safetensors\", \"model.norm.weight\": \"m-3-of-3.safetensors\",\n"
    "\"model.layers.0.a\": \"m-2-of-3.safetensors\"}}";

static void put_shard(const char *name, const char *header) {
  sh_buf b = st_bytes(header, 16);
  put_file(name, b.p, b.len);
  sh_buf_free(&b);
}

static int folder(void **state) {
  if (make_temp_dir(state)) return -1;
  put_text("config.json", "{\"model_type\": \"llama\"}");
  put_shard("m-1-of-3.safetensors", "{\"model.embed_tokens.weight\":{\"dtype\":\"U8\",\"shape\":[4,4],\"data_offsets\":[0,16]}}");
  put_shard("m-2-of-3.safetensors", "{\"lm_head.weight\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                                    "\"model.layers.0.a\":{\"dtype\":\"U8\",\"shape\":[12],\"data_offsets\":[4,16]}}");
  put_shard("m-3-of-3.safetensors", "{\"model.norm.weight\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}");
  put_text("model.safetensors.index.json", INDEX);
  return 0;
}

static unsigned sink;

/* ctx: the name of the file that p[0..n) stands for: a link into memory, since thousands of files written to a disk take their time. */
static int open_with(const char *p, size_t n, void *ctx, sh_error *e) {
  sh_ckpt *c = NULL;
  char target[64];
  const char *path = memory_file(p, n), *at = in_temp(ctx);
  if (readlink(at, target, sizeof target) < 0) {
    unlink(at);
    assert_int_equal(symlink(path, at), 0);
  }
  int rc = sh_ckpt_open(&c, temp_dir, 0, e);
  if (rc) {
    assert_null(c);
    return rc;
  }
  size_t bytes = 0, len = 0;
  for (int i = 0; i < sh_ckpt_count(c); i++) {
    const sh_ftensor *t = sh_ckpt_at(c, i);
    assert_ptr_equal(sh_ckpt_find(c, t->name), t);
    for (size_t k = 0; k < t->bytes; k++) sink += ((const uint8_t *)t->data)[k];
    bytes += t->bytes;
  }
  assert_int_equal(bytes, sh_ckpt_bytes(c));
  assert_true(sh_ckpt_count(c) > 0);
  const char *text = sh_ckpt_chat_template(c, &len);
  for (size_t k = 0; text && k < len; k++) sink += (uint8_t)text[k];
  sh_ckpt_close(c);
  return 0;
}

static void a_damaged_index_is_refused_or_names_what_is_there(void **state) {
  (void)state;
  hostile h = {.fn = open_with, .ctx = "model.safetensors.index.json"};
  every_truncation(&h, INDEX, sizeof INDEX - 1);
  assert_int_equal(h.accepted, 1);
  seeded_damage(&h, INDEX, sizeof INDEX - 1, 60, 3000);
  every_value_replaced(&h, INDEX, sizeof INDEX - 1);
  assert_both(&h, 30, 2000);
}

static void an_index_cannot_reach_out_of_its_folder(void **state) {
  (void)state;
  static const char *const NAMES[] = {"../m-1-of-3.safetensors", "/etc/passwd", ".", "..", "", "a/b", "a\\\\b", "m\\u0000", "/dev/zero"};
  for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
    char text[256];
    sh_error e = {0};
    snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", NAMES[i]);
    assert_int_equal(open_with(text, strlen(text), "model.safetensors.index.json", &e), SH_ERR_FORMAT);
    assert_says(e.text, "not a plain file name");
  }
}

static void damaged_side_files_are_refused_or_read(void **state) {
  (void)state;
  static const char TOKENIZER_CONFIG[] =
      "{\"bos_token\": {\"content\": \"<s>\"}, \"chat_template\": [{\"name\": \"default\", \"template\": \"{{ a }}\"}, "
      "{\"name\": \"tool_use\", \"template\": \"{{ b }}\"}], \"eos_token\": null}";
  static const char GENERATION_CONFIG[] = "{\"eos_token_id\": [1, 2], \"temperature\": 0.6, \"top_k\": 20}";
  hostile h = {.fn = open_with, .ctx = "tokenizer_config.json"};
  every_truncation(&h, TOKENIZER_CONFIG, sizeof TOKENIZER_CONFIG - 1);
  seeded_damage(&h, TOKENIZER_CONFIG, sizeof TOKENIZER_CONFIG - 1, 60, 1500);
  every_value_replaced(&h, TOKENIZER_CONFIG, sizeof TOKENIZER_CONFIG - 1);
  assert_int_equal(unlink(in_temp("tokenizer_config.json")), 0);
  h.ctx = "generation_config.json";
  every_truncation(&h, GENERATION_CONFIG, sizeof GENERATION_CONFIG - 1);
  seeded_damage(&h, GENERATION_CONFIG, sizeof GENERATION_CONFIG - 1, 30, 1000);
  assert_both(&h, 300, 1000);
}

static void every_allocation_of_a_sharded_open_may_fail(void **state) {
  (void)state;
  int rc = -1;
  long n = 0;
  for (; rc; n++) {
    sh_ckpt *c = NULL;
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = sh_ckpt_open(&c, temp_dir, 0, &e);
    sh_mem_fail_after(-1);
    if (rc) assert_true(rc == SH_ERR_NOMEM && e.code == rc && e.text[0] && !c);
    sh_ckpt_close(c);
    assert_true(n < 1000);
  }
  assert_true(n > 10);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder, remove_temp_dir)

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      IN_FOLDER(a_damaged_index_is_refused_or_names_what_is_there),
      IN_FOLDER(an_index_cannot_reach_out_of_its_folder),
      IN_FOLDER(damaged_side_files_are_refused_or_read),
      IN_FOLDER(every_allocation_of_a_sharded_open_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
