/* quantization_config with every value replaced, every member missing, and every truncation. Seeded damage is in quant_test.c too; here it
 * has numbers that overflow. */
#include "unit/hostile.h"

#include "formats/quant.h"

static int read_quant(const char *p, size_t n, void *ctx, sh_error *e) {
  (void)ctx;
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *root;
  sh_quant q;
  assert_non_null(a);
  int rc = sh_json_parse(p, n, NULL, a, &root, e);
  if (!rc) rc = sh_quant_parse(&q, root, e);
  if (!rc) {
    assert_true(q.n_groups >= 0 && q.n_groups <= SH_QUANT_GROUPS);
    for (int i = 0; i < q.n_groups; i++) assert_true(q.groups[i] == -1 || q.groups[i] > 0);
    assert_true(q.block_rows >= 0 && q.block_cols >= 0);
    assert_true(q.zero_offset == 0 || q.zero_offset == 1);
    assert_true(strlen(sh_quant_name(q.method)) > 0);
  }
  sh_arena_free(a);
  return rc;
}

/* The object under quantization_config with a brace around it: the rest of a config.json does not matter to sh_quant_parse. */
static sh_buf only_quant(const char *folder) {
  char path[128];
  size_t n;
  snprintf(path, sizeof path, "tests/golden/models/%s/config.json", folder);
  char *text = slurp(path, &n);
  sh_arena *a = sh_arena_new(1 << 22);
  sh_json *root;
  sh_buf b;
  sh_jw w;
  sh_buf_init(&b, 1 << 20);
  sh_jw_init(&w, &b);
  assert_int_equal(sh_json_parse(text, n, NULL, a, &root, NULL), 0);
  sh_jw_obj(&w);
  sh_jw_key(&w, "quantization_config");
  sh_jw_value(&w, sh_json_get(root, "quantization_config"));
  sh_jw_end_obj(&w);
  assert_int_equal(b.failed, 0);
  sh_arena_free(a);
  sh_free(text);
  return b;
}

static void hostile_configs_are_refused_or_read(void **state) {
  (void)state;
  static const char *const FOLDERS[] = {"dense-small-awq", "dense-small-gptq-actorder-asym", "moe-small-ct-asym-g128",
                                        "moe-small-fp8-block"};
  for (int f = 0; f < 4; f++) {
    hostile h = {.fn = read_quant};
    sh_buf b = only_quant(FOLDERS[f]);
    every_truncation(&h, b.p, b.len);
    seeded_damage(&h, b.p, b.len, b.len / 4, 1000);
    every_value_replaced(&h, b.p, b.len);
    assert_both(&h, 50, 500);
    sh_buf_free(&b);
  }
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_configs_are_refused_or_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
