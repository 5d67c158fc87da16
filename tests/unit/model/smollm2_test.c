/* A real language model: SmolLM2-135M-Instruct, GGUF Q4_1, whose path SHENG_SMOLLM2 names (tools/fetch_smollm2.py gets it). In exact mode
 * the perplexity of two licence texts and greedy chats must be those of the reference. Without the file, or without the texts, the tests
 * say why they are skipped. */
#include "unit/model/golden_rig.h"

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

#define REFERENCE GOLDEN "text/smollm2_golden.json"

static sh_arena *arena;
static const sh_json *reference;

static int load_reference(void **state) {
  (void)state;
  char *text;
  size_t n;
  sh_error e = {0};
  sh_json *root;
  rig_ok(sh_file_read(REFERENCE, 1 << 20, &text, &n, &e), &e);
  arena = sh_arena_new(16 << 20);
  rig_ok(sh_json_parse(text, n, NULL, arena, &root, &e), &e);
  sh_free(text);
  reference = root;
  return 0;
}

static int free_reference(void **state) {
  (void)state;
  sh_arena_free(arena);
  return 0;
}

static const char *model_path(void) {
  const char *p = getenv("SHENG_SMOLLM2");
  if (!p || !*p) printf("skipped: SHENG_SMOLLM2 does not name the GGUF of SmolLM2-135M-Instruct\n");
  else if (!sh_file_exists(p)) printf("skipped: SHENG_SMOLLM2=%s is not there\n", p);
  else return p;
  skip();
  return NULL;
}

static int64_t ref_int(const sh_json *v, const char *key) {
  int64_t n = 0;
  assert_int_equal(sh_json_int(sh_json_get(v, key), &n), 0);
  return n;
}

/* -log softmax(row)[id] */
static double nll(const float *row, int V, int32_t id) {
  double sum = 0, top = row[argmax(row, V)];
  for (int i = 0; i < V; i++) sum += exp((double)row[i] - top);
  return log(sum) + top - (double)row[id];
}

static void perplexity(const char *name) {
  const char *path = model_path();
  const sh_json *ref = sh_json_get(reference, name), *first = sh_json_get(ref, "first_ids"), *nll8 = sh_json_get(ref, "nll_first8");
  char file[128];
  char *text;
  size_t len;
  double want = 0, sum = 0;
  sh_error e = {0};
  sh_tok *tok;
  sh_ids ids = {0};
  rig r;
  snprintf(file, sizeof file, "/usr/share/common-licenses/%s", name);
  if (!sh_file_exists(file)) {
    printf("skipped: %s is not on this machine\n", file);
    skip();
  }
  rig_ok(sh_file_read(file, 1 << 20, &text, &len, &e), &e);
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_F32, .max_tokens = 256, .max_context = 2048});
  rig_ok(sh_tok_open(&tok, r.ckpt, &e), &e);
  rig_ok(sh_tok_encode(tok, text, len, 0, &ids, &e), &e);
  assert_int_equal(ids.n, ref_int(ref, "total_tokens"));
  for (size_t i = 0; i < first->len; i++) {
    int64_t id;
    assert_int_equal(sh_json_int(&first->items[i], &id), 0);
    assert_int_equal(ids.v[i], id);
  }
  int n = rig_quick() ? 16 : (int)ref_int(ref, "tokens");
  rig_feed(&r, 0, ids.v, n, r.o.max_tokens);
  for (int i = 0; i + 1 < n; i++) {
    double v = nll(r.seq[0].trace + (size_t)i * (size_t)r.V, r.V, ids.v[i + 1]);
    sum += v;
    if (i >= (int)nll8->len) continue;
    assert_int_equal(sh_json_double(&nll8->items[i], &want), 0);
    if (fabs(v - want) > 1e-3) fail_msg("%s: token %d costs %g, in the reference %g", name, i + 1, v, want);
  }
  if (!rig_quick()) {
    double got = exp(sum / (n - 1));
    assert_int_equal(sh_json_double(sh_json_get(ref, "perplexity"), &want), 0);
    printf("%s: perplexity %.5f, reference %.5f (%.2g%%)\n", name, got, want, 100 * fabs(got / want - 1));
    assert_true(fabs(got / want - 1) < 1e-3);
  }
  sh_ids_free(&ids);
  sh_tok_free(tok);
  sh_free(text);
  rig_close(&r);
}

static void perplexity_of_gpl_3_is_that_of_the_reference(void **state) {
  (void)state;
  perplexity("GPL-3");
}

static void perplexity_of_apache_2_is_that_of_the_reference(void **state) {
  (void)state;
  perplexity("Apache-2.0");
}

/* All chats decode side by side, each until its answer in the reference ends. */
static void greedy_chats_are_those_of_the_reference(void **state) {
  (void)state;
  const char *path = model_path();
  const sh_json *chats = sh_json_get(reference, "chat");
  rig r;
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_F32, .max_tokens = 128, .max_context = 256});
  int n_chats = (int)chats->len, compared = 0;
  assert_true(n_chats > 0 && n_chats <= RIG_SEQS);
  for (int i = 0; i < n_chats; i++) {
    const sh_json *prompt = sh_json_get(&chats->items[i], "prompt_ids");
    int32_t ids[128];
    assert_true(prompt->len <= 128);
    for (size_t j = 0; j < prompt->len; j++) {
      int64_t id;
      assert_int_equal(sh_json_int(&prompt->items[j], &id), 0);
      ids[j] = (int32_t)id;
    }
    rig_feed(&r, i, ids, (int)prompt->len, r.o.max_tokens);
  }
  for (size_t s = 0;; s++) {
    rig_part part[RIG_SEQS];
    int32_t id[RIG_SEQS];
    int n = 0;
    for (int i = 0; i < n_chats; i++) {
      const sh_json *want = sh_json_get(&chats->items[i], "greedy");
      int64_t ref;
      if (s >= want->len || (rig_quick() && s >= 4)) continue;
      assert_int_equal(sh_json_int(&want->items[s], &ref), 0);
      id[n] = rig_greedy(&r, i);
      if (id[n] != ref) fail_msg("chat %d, step %zu: token %d, reference %d", i, s, id[n], (int)ref);
      part[n] = (rig_part){i, &id[n], 1};
      n++;
    }
    if (n == 0) break;
    compared += n;
    rig_step(&r, part, n);
  }
  printf("%d chats, %d greedy tokens equal\n", n_chats, compared);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(perplexity_of_gpl_3_is_that_of_the_reference),
      cmocka_unit_test(perplexity_of_apache_2_is_that_of_the_reference),
      cmocka_unit_test(greedy_chats_are_those_of_the_reference),
  };
  return cmocka_run_group_tests_name("smollm2", tests, load_reference, free_reference);
}
