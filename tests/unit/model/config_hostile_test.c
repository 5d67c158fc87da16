/* config.json under damage: a refusal with a sentence, or a config that keeps every promise of config.h. */
#include "unit/hostile.h"

#include <math.h>

#include "base/log.h"
#include "model/config.h"

static int read_config(const char *p, size_t n, void *ctx, sh_error *e) {
  (void)ctx;
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *root;
  sh_config c;
  char line[400];
  assert_non_null(a);
  int rc = sh_json_parse(p, n, NULL, a, &root, e);
  if (!rc) rc = sh_config_from_json(&c, root, e);
  sh_arena_free(a);
  if (rc) return rc;
  assert_true(c.vocab_size > 0 && c.hidden > 0 && c.n_layers > 0 && c.n_layers <= SH_MAX_LAYERS);
  assert_true(c.n_heads > 0 && c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads == 0);
  assert_true(c.head_dim >= 2 && c.head_dim <= SH_MAX_HEAD_DIM);
  assert_true(c.rotary_dim >= 0 && c.rotary_dim <= c.head_dim && c.rotary_dim % 2 == 0);
  assert_true(c.n_linear + c.n_full == c.n_layers);
  if (c.n_linear) assert_true(c.lin_k_heads > 0 && c.lin_v_heads % c.lin_k_heads == 0 && c.conv_kernel >= 2);
  assert_true(c.experts_per_tok <= c.n_experts && (c.ffn > 0) == (c.n_experts == 0));
  assert_true(c.rms_eps > 0 && c.max_position > 0 && c.rope_mscale > 0 && isfinite(c.rope_mscale));
  for (int i = 0; i < c.rotary_dim / 2; i++) assert_true(c.inv_freq[i] > 0 && isfinite(c.inv_freq[i]));
  assert_true(c.n_eos >= 0 && c.n_eos <= SH_MAX_EOS && c.bos_id >= -1 && c.bos_id < c.vocab_size);
  for (int i = 0; i < c.n_eos; i++) assert_true(c.eos_ids[i] >= 0 && c.eos_ids[i] < c.vocab_size);
  assert_true(sh_config_q_rows(&c) > 0 && sh_config_conv_channels(&c) >= 0);
  assert_true(strlen(sh_config_describe(&c, line, sizeof line)) > 20);
  return 0;
}

static void hostile_config(const char *path) {
  size_t n;
  char *text = slurp(path, &n);
  hostile h = {.fn = read_config};
  every_truncation(&h, text, n);
  seeded_damage(&h, text, n, n / 3, 2500);
  every_value_replaced(&h, text, n);
  assert_both(&h, 100, 1000);
  sh_free(text);
}

static void a_dense_config(void **state) {
  (void)state;
  hostile_config("tests/golden/models/dense-small/config.json");
}

static void a_config_with_experts(void **state) {
  (void)state;
  hostile_config("tests/golden/models/moe-small/config.json");
}

static void a_config_of_llama3(void **state) {
  (void)state;
  hostile_config("tests/fuzz/corpus/config/llama3.json");
}

static void a_config_of_yarn(void **state) {
  (void)state;
  hostile_config("tests/fuzz/corpus/config/yarn.json");
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR); /* ignored end tokens are warned about */
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_dense_config),
      cmocka_unit_test(a_config_with_experts),
      cmocka_unit_test(a_config_of_llama3),
      cmocka_unit_test(a_config_of_yarn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
