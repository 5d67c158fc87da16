/* Constructors of the tokenizer's parts, and the tokenizer of a GGUF: wherever memory runs out there is SH_ERR_NOMEM or NULL, and nothing
 * leaks. PCRE2 allocates by itself, and is not failed here. */
#include "unit/hostile.h"

#include "text/bpe.h"
#include "text/pretok.h"
#include "text/pretok_nfc.h"
#include "text/tokenizer.h"

static int word(void *ctx, const char *p, size_t n) {
  (void)p;
  *(size_t *)ctx += n;
  return 0;
}

static int pipeline(sh_error *e) {
  static const char TEXT[] = "Don't  stop 123 now";
  size_t seen = 0;
  sh_pretok *p = sh_pretok_new();
  sh_pretok_run *r = NULL;
  int rc = p ? 0 : sh_fail(e, SH_ERR_NOMEM, "no memory");
  if (!rc) rc = sh_pretok_add_split(p, "\\p{N}{1,3}|\\s+(?!\\S)", 20, false, SH_PRETOK_ISOLATED, false, e);
  if (!rc) rc = sh_pretok_add_split(p, "o", 1, true, SH_PRETOK_MERGED_WITH_NEXT, false, e);
  if (!rc) rc = sh_pretok_add_digits(p, true, e);
  if (!rc) rc = sh_pretok_add_byte_level(p, true, true, e);
  if (!rc && !(r = sh_pretok_run_new(p, word, &seen))) rc = sh_fail(e, SH_ERR_NOMEM, "no memory");
  if (!rc) rc = sh_pretok_run_text(r, TEXT, sizeof TEXT - 1, e);
  if (!rc) assert_true(seen >= sizeof TEXT - 1);
  sh_pretok_run_free(r);
  sh_pretok_free(p);
  return rc;
}

static int normalizer(sh_error *e) {
  static const char TEXT[] = "e\xCC\x81 a\xCC\xA7\xCC\x81";
  sh_buf out;
  sh_buf_init(&out, 1 << 12);
  sh_nfc *t = sh_nfc_new();
  int rc = t ? sh_nfc_append(t, TEXT, sizeof TEXT - 1, &out) : SH_ERR_NOMEM;
  if (rc) sh_fail(e, rc, "no memory"); /* it has no sentence of its own */
  sh_buf_free(&out);
  sh_nfc_free(t);
  return rc;
}

static int vocabulary(sh_error *e) {
  static const char *const TOKENS[] = {"a",
                                       "b",
                                       "ab",
                                       "\xC4\xA0",
                                       "\xC4\xA0"
                                       "ab",
                                       "<s>"}; /* U+0120 spells a space */
  enum { N = sizeof TOKENS / sizeof *TOKENS };
  sh_bpe *b;
  sh_ids ids = {.max = 100};
  sh_bpe_work w = {0};
  int rc = sh_bpe_new(&b, N, 2, e);
  if (rc) assert_null(b);
  for (int i = 0; i < N && !rc; i++) /* far apart: the tables grow */
    rc = sh_bpe_add_token(b, i * 700, TOKENS[i], strlen(TOKENS[i]), i == N - 1 ? SH_BPE_ADDED | SH_BPE_RAW : SH_BPE_MODEL, e);
  if (!rc) {
    sh_bpe_finish_vocab(b);
    rc = sh_bpe_add_merge(b, 0, "a", 1, "b", 1, e);
  }
  if (!rc) rc = sh_bpe_add_merge(b, 1, "\xC4\xA0", 2, "ab", 2, e);
  if (!rc) {
    sh_bpe_work_init(&w, b, 1 << 20); /* with a cache, where memory allows one */
    rc = sh_bpe_encode(&w, " abab", 5, &ids);
    if (rc) sh_fail(e, rc, "no memory for the ids"); /* it has no sentence of its own */
  }
  if (!rc) assert_true(ids.n == 2 && ids.v[0] == 4 * 700 && ids.v[1] == 2 * 700);
  sh_bpe_work_free(&w);
  sh_ids_free(&ids);
  sh_bpe_free(b);
  return rc;
}

static sh_ckpt *ckpt;

static int tokenizer_of_gguf(sh_error *e) {
  sh_tok *t = NULL;
  int rc = sh_tok_open(&t, ckpt, e);
  if (rc) assert_null(t);
  sh_tok_free(t);
  return rc;
}

/* The first 100 allocations one by one, then every 17th. */
static void fails_cleanly_everywhere(int (*make)(sh_error *e), int at_least) {
  int rc = -1, failed = 0;
  for (long n = 0; rc; n += n < 100 ? 1 : 17) {
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = make(&e);
    sh_mem_fail_after(-1);
    if (rc && (rc != SH_ERR_NOMEM || e.code != rc || !e.text[0])) fail_msg("allocation %ld: %d %s", n, rc, e.text);
    failed += rc != 0;
    assert_true(n < 100000);
  }
  assert_true(failed >= at_least);
}

static void a_pipeline_and_its_run(void **state) {
  (void)state;
  fails_cleanly_everywhere(pipeline, 4);
}

static void a_normalizer(void **state) {
  (void)state;
  fails_cleanly_everywhere(normalizer, 2);
}

static void a_vocabulary_and_its_merges(void **state) {
  (void)state;
  fails_cleanly_everywhere(vocabulary, 6);
}

static void a_tokenizer_of_a_gguf(void **state) {
  (void)state;
  sh_error e = {0};
  if (sh_ckpt_open(&ckpt, "tests/golden/gguf/dense-small-bf16.gguf", SH_CKPT_TOKENIZER_ONLY, &e)) fail_msg("%s", e.text);
  fails_cleanly_everywhere(tokenizer_of_gguf, 20);
  sh_ckpt_close(ckpt);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_pipeline_and_its_run),
      cmocka_unit_test(a_normalizer),
      cmocka_unit_test(a_vocabulary_and_its_merges),
      cmocka_unit_test(a_tokenizer_of_a_gguf),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
