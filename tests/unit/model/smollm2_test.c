/* A real language model: SmolLM2-135M-Instruct, GGUF Q4_1, whose path SHENG_SMOLLM2 names (tools/fetch_smollm2.py gets it). In exact mode
 * the perplexity of two licence texts and greedy chats must be those of the reference. Without the file, or without the texts, the tests
 * say why they are skipped. */
#include "unit/model/golden_rig.h"

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

static sh_arena *arena;
static const sh_json *reference, *ids_json;

static const sh_json *load(const char *path) {
  char *text;
  size_t n;
  sh_error e = {0};
  sh_json *root;
  rig_ok(sh_file_read(path, 1 << 20, &text, &n, &e), &e);
  rig_ok(sh_json_parse(text, n, NULL, arena, &root, &e), &e);
  sh_free(text);
  return root;
}

static int load_reference(void **state) {
  (void)state;
  arena = sh_arena_new(16 << 20);
  reference = load(GOLDEN "text/smollm2_golden.json");
  ids_json = load(GOLDEN "text/smollm2_ids.json");
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

static void read_ids(const sh_json *list, int32_t *ids) {
  for (size_t i = 0; i < list->len; i++) {
    int64_t id = 0;
    assert_int_equal(sh_json_int(&list->items[i], &id), 0);
    ids[i] = (int32_t)id;
  }
}

/* -log softmax(row)[id] */
static double nll(const float *row, int V, int32_t id) {
  double sum = 0, top = row[argmax(row, V)];
  for (int i = 0; i < V; i++) sum += exp((double)row[i] - top);
  return log(sum) + top - (double)row[id];
}

/* The ids are those the reference used: its tokenizer differs from the model's own at a few places (tests/golden/make/smol_ids.py says
 * how). */
static void perplexity(const char *name) {
  const char *path = model_path();
  const sh_json *ref = sh_json_get(reference, name), *nll8 = sh_json_get(ref, "nll_first8"), *list = sh_json_get(ids_json, name);
  int32_t ids[2048];
  double want = 0, sum = 0;
  rig r;
  int n = rig_quick() ? 16 : (int)ref_int(ref, "tokens");
  assert_true(list->len <= 2048 && n <= (int)list->len);
  read_ids(list, ids);
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_F32, .max_tokens = 256, .max_context = n});
  rig_feed(&r, 0, ids, n, r.o.max_tokens);
  for (int i = 0; i + 1 < n; i++) {
    double v = nll(r.seq[0].trace + (size_t)i * (size_t)r.V, r.V, ids[i + 1]);
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
    read_ids(prompt, ids);
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

/* The llama path and Q4_1 keep the promise of the bits as well: prompts together, then in pieces of 7, against each alone. */
static void a_batch_and_chunks_give_the_bits_of_each_chat_alone(void **state) {
  (void)state;
  const char *path = model_path();
  const sh_json *chats = sh_json_get(reference, "chat");
  rig r;
  rig_part part[3];
  int32_t ids[3][128];
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_BF16, .max_tokens = 256, .max_context = 128});
  for (int i = 0; i < 3; i++) {
    const sh_json *prompt = sh_json_get(&chats->items[i], "prompt_ids");
    assert_true(prompt->len <= 128);
    read_ids(prompt, ids[i]);
    part[i] = (rig_part){i, ids[i], rig_quick() && prompt->len > 9 ? 9 : (int)prompt->len};
    rig_feed(&r, 3 + i, ids[i], part[i].n, part[i].n);
    rig_feed(&r, 6 + i, ids[i], part[i].n, 7);
  }
  rig_step(&r, part, 3);
  for (int i = 0; i < 3; i++) {
    size_t bytes = (size_t)part[i].n * (size_t)r.V * sizeof(float);
    assert_memory_equal(r.seq[i].trace, r.seq[3 + i].trace, bytes);
    assert_memory_equal(r.seq[i].trace, r.seq[6 + i].trace, bytes);
  }
  rig_close(&r);
}

/* Counts of both texts as the tokenizers library (Python) gives them with the model's own split: single digits first, then GPT-2's. */
static void texts_and_rendered_chats_tokenize_as_in_the_reference(void **state) {
  (void)state;
  static const struct {
    const char *name;
    size_t n;
  } file[] = {{"GPL-3", 7639}, {"Apache-2.0", 2215}};
  sh_error e = {0};
  sh_ckpt *ckpt;
  sh_tok *tok;
  sh_ids ids = {0};
  rig_ok(sh_ckpt_open(&ckpt, model_path(), 0, &e), &e);
  rig_ok(sh_tok_open(&tok, ckpt, &e), &e);
  for (int i = 0; i < 2; i++) {
    char path[128], *text;
    size_t len;
    int32_t first[24];
    snprintf(path, sizeof path, "/usr/share/common-licenses/%s", file[i].name);
    if (!sh_file_exists(path)) continue;
    rig_ok(sh_file_read(path, 1 << 20, &text, &len, &e), &e);
    ids.n = 0;
    rig_ok(sh_tok_encode(tok, text, len, 0, &ids, &e), &e);
    read_ids(sh_json_path(sh_json_get(reference, file[i].name), "first_ids"), first);
    assert_int_equal(ids.n, file[i].n);
    assert_memory_equal(ids.v, first, sizeof first);
    sh_free(text);
  }
  const sh_json *chats = sh_json_get(reference, "chat");
  for (size_t i = 0; i < chats->len; i++) {
    const sh_json *rendered = sh_json_get(&chats->items[i], "rendered"), *want = sh_json_get(&chats->items[i], "prompt_ids");
    int32_t prompt[128];
    assert_true(want->len <= 128);
    read_ids(want, prompt);
    ids.n = 0;
    rig_ok(sh_tok_encode(tok, rendered->s, rendered->len, 0, &ids, &e), &e);
    assert_int_equal(ids.n, want->len);
    assert_memory_equal(ids.v, prompt, want->len * sizeof *prompt);
  }
  sh_ids_free(&ids);
  sh_tok_free(tok);
  sh_ckpt_close(ckpt);
}

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(perplexity_of_gpl_3_is_that_of_the_reference),
      cmocka_unit_test(perplexity_of_apache_2_is_that_of_the_reference),
      cmocka_unit_test(texts_and_rendered_chats_tokenize_as_in_the_reference),
      cmocka_unit_test(greedy_chats_are_those_of_the_reference),
      cmocka_unit_test(a_batch_and_chunks_give_the_bits_of_each_chat_alone),
  };
  return cmocka_run_group_tests_name("smollm2", tests, load_reference, free_reference);
}
