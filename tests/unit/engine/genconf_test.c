/* Generation settings: which end tokens count, and that what is left out is said. */
#include "engine/genconf.h"
#include "unit/base/harness.h"

#include <unistd.h>

#define MODEL "tests/golden/models/dense-small"

enum { VOCAB = 640, CAP = 8 };

static sh_ckpt *ckpt;
static sh_tok *tok;
static sh_arena *arena;
static char text[1 << 16];
static int32_t ids[CAP];

static int open_world(void **state) {
  (void)state;
  sh_error e = {0};
  arena = sh_arena_new(1 << 20);
  if (!arena || sh_ckpt_open(&ckpt, MODEL, SH_CKPT_TOKENIZER_ONLY, &e) || sh_tok_open(&tok, ckpt, &e)) {
    print_error("%s\n", e.text);
    return -1;
  }
  return 0;
}

static int close_world(void **state) {
  (void)state;
  sh_tok_free(tok);
  sh_ckpt_close(ckpt);
  sh_arena_free(arena);
  return 0;
}

/* The end tokens with that generation config; the log goes to `text`. */
static int end_ids(const char *json, sh_config *c) {
  sh_json *gen = NULL;
  if (json) assert_int_equal(sh_json_parse(json, strlen(json), NULL, arena, &gen, NULL), 0);
  FILE *log = tmpfile();
  assert_non_null(log);
  int saved = dup(STDERR_FILENO);
  dup2(fileno(log), STDERR_FILENO);
  int n = sh_genconf_end_ids(ckpt, c, tok, gen, VOCAB, ids, CAP);
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t len = pread(fileno(log), text, sizeof text - 1, 0);
  text[len < 0 ? 0 : len] = '\0';
  fclose(log);
  return n;
}

static bool has(int n, int32_t id) {
  for (int i = 0; i < n; i++)
    if (ids[i] == id) return true;
  return false;
}

static void good_end_tokens_are_taken_without_a_word(void **state) {
  (void)state;
  static const char *const cases[] = {"{\"eos_token_id\":7}", "{\"eos_token_id\":[7,7]}", "{\"eos_token_id\":7.0}"};
  sh_config c = {.arch = SH_ARCH_LLAMA, .n_eos = 1, .eos_ids = {3}};
  for (int i = 0; i < 3; i++) {
    int n = end_ids(cases[i], &c);
    assert_true(has(n, 3) && has(n, 7));
    assert_string_equal(text, "");
  }
  assert_true(has(end_ids("{\"eos_token_id\":null}", &c), 3));
  assert_true(has(end_ids(NULL, &c), 3));
  assert_string_equal(text, "");
}

static void an_end_token_that_is_left_out_is_named_in_the_log(void **state) {
  (void)state;
  static const struct {
    const char *json, *says;
  } cases[] = {
      {"{\"eos_token_id\":640}", "640 is outside the vocabulary of 640"},
      {"{\"eos_token_id\":[7,-1]}", "-1 is outside"},
      {"{\"eos_token_id\":[99999999999,7]}", "99999999999 is outside"},
      {"{\"eos_token_id\":\"</s>\"}", "a string is no token id"},
      {"{\"eos_token_id\":[7,\"</s>\"]}", "a string is no token id"},
      {"{\"eos_token_id\":1.5}", "1.5 is no token id"},
      {"{\"eos_token_id\":{}}", "an object is no token id"},
      {"{\"eos_token_id\":[true]}", "a boolean is no token id"},
  };
  sh_config c = {.arch = SH_ARCH_LLAMA, .n_eos = 1, .eos_ids = {3}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int n = end_ids(cases[i].json, &c);
    assert_contains(text, "WARN generation config: eos_token_id: ");
    assert_contains(text, cases[i].says);
    assert_true(has(n, 3));
    if (strstr(cases[i].json, "7,") || strstr(cases[i].json, ",7")) assert_true(has(n, 7));
  }
  c.eos_ids[0] = VOCAB; /* of a matrix larger than the tokenizer */
  end_ids(NULL, &c);
  assert_contains(text, "eos_token_id of the config: end token 640");
}

static void more_end_tokens_than_are_kept_are_told(void **state) {
  (void)state;
  sh_config c = {.arch = SH_ARCH_LLAMA};
  assert_int_equal(end_ids("{\"eos_token_id\":[10,11,12,13,14,15,16,17,18]}", &c), CAP);
  assert_contains(text, "end token 18 is one more than the 8");
}

/* The answer to --quantization METHOD for a folder with that config.json. */
static int asked(const char *config, const char *method, sh_error *e) {
  char dir[] = "/tmp/sheng_genconf_test.XXXXXX", path[64];
  sh_ckpt *ck;
  assert_non_null(mkdtemp(dir));
  snprintf(path, sizeof path, "%s/config.json", dir);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(config, f);
  fclose(f);
  int rc = sh_ckpt_open(&ck, dir, SH_CKPT_TOKENIZER_ONLY, e);
  if (rc) fail_msg("%s", e->text);
  rc = sh_genconf_check_quantization(ck, method, e);
  sh_ckpt_close(ck);
  unlink(path);
  rmdir(dir);
  return rc;
}

static void the_method_is_found_wherever_the_loader_finds_it(void **state) {
  (void)state;
  static const char *const CONFIGS[] = {
      "{\"quantization_config\":{\"quant_method\":\"awq\"}}",
      "{\"compression_config\":{\"quant_method\":\"awq\"}}",
      "{\"text_config\":{\"quantization_config\":{\"quant_method\":\"awq\"}}}",
      "{\"quantization_config\":null,\"text_config\":{\"compression_config\":{\"quant_method\":\"awq\"}}}",
  };
  for (size_t i = 0; i < sizeof CONFIGS / sizeof *CONFIGS; i++) {
    sh_error e = {0};
    assert_int_equal(asked(CONFIGS[i], "awq", &e), 0);
    assert_int_equal(asked(CONFIGS[i], NULL, &e), 0);
    assert_int_equal(asked(CONFIGS[i], "gptq", &e), SH_ERR_ARG);
    assert_contains(e.text, "has awq");
  }
  sh_error e = {0};
  assert_int_equal(asked("{\"vision_config\":{\"quantization_config\":{\"quant_method\":\"awq\"}}}", "awq", &e), SH_ERR_ARG);
  assert_contains(e.text, "is not quantized");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_end_tokens_are_taken_without_a_word),
      cmocka_unit_test(an_end_token_that_is_left_out_is_named_in_the_log),
      cmocka_unit_test(more_end_tokens_than_are_kept_are_told),
      cmocka_unit_test(the_method_is_found_wherever_the_loader_finds_it),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
