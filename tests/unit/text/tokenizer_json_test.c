/* tokenizer.json: every component that is read does what the reference does; everything else, and everything malformed, is refused with a
 * reason. */
#include "unit/text/tok_rig.h"

#include "base/text.h"

/* --- Components, against the reference ------------------------------------------------------------------------------------------------ */

static sh_tok *open_tree(const sh_json *root, const sh_json *config) {
  sh_buf b;
  sh_jw w;
  sh_buf_init(&b, 1 << 24);
  sh_jw_init(&w, &b);
  sh_jw_value(&w, root);
  assert_int_equal(b.failed, 0);
  sh_tok *t = open_text(b.p, b.len, config);
  sh_buf_free(&b);
  return t;
}

/* obj with the members of `over` put in. */
static sh_json *replaced(sh_arena *a, const sh_json *obj, const sh_json *over) {
  sh_json *copy = sh_json_new_object(a);
  for (size_t i = 0; i < obj->len; i++) assert_int_equal(sh_json_set(a, copy, obj->members[i].key, &obj->members[i].value), 0);
  for (size_t i = 0; i < over->len; i++) assert_int_equal(sh_json_set(a, copy, over->members[i].key, &over->members[i].value), 0);
  return copy;
}

static int n_checked;

static void check_configuration(const sh_json *line, sh_arena *a, void *ctx) {
  const sh_json *base = ctx, *cases = sh_json_get(line, "cases");
  sh_json *root = replaced(a, base, sh_json_get(line, "set"));
  sh_json *model = replaced(a, sh_json_get(base, "model"), sh_json_get(line, "model"));
  assert_int_equal(sh_json_set(a, root, "model", model), 0);
  sh_tok *t = open_tree(root, NULL);
  for (size_t i = 0; i < cases->len; i++, n_checked++) {
    const sh_json *c = &cases->items[i], *text = sh_json_get(c, "text");
    sh_ids want = json_ids(sh_json_get(c, "ids"));
    sh_ids got = encode(t, text->s, text->len, sh_json_get(c, "special")->b ? SH_TOK_ADD_SPECIAL : 0);
    assert_ids(&got, want.v, want.n);
    sh_ids_free(&want);
    sh_ids_free(&got);
  }
  sh_tok_free(t);
}

static void every_component_does_what_the_reference_does(void **state) {
  (void)state; /* made by tests/golden/make/make_tokenizer_features.py */
  size_t n;
  char *text = slurp(SMALL_MODEL "/tokenizer.json", &n);
  sh_arena *a = sh_arena_new((size_t)1 << 28);
  sh_json *base;
  sh_error e = {0};
  assert_int_equal(sh_json_parse(text, n, NULL, a, &base, &e), 0);
  each_line(GOLDEN "tokenizer_features.jsonl", check_configuration, base);
  assert_in_range(n_checked, 800, 100000);
  sh_arena_free(a);
  sh_free(text);
}

/* --- A small file with one thing changed ---------------------------------------------------------------------------------------------- */

typedef struct parts {
  const char *vocab, *merges, *model, *added, *normalizer, *pre, *post, *decoder;
} parts;

#define VOCAB "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"\u0120\":4"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(pattern) "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":" pattern "}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "," BYTE_LEVEL "]}"

/* The file made of the parts, defaults for those that are NULL. The caller frees with sh_free. */
static char *file_of(parts p) {
  sh_buf b;
  sh_buf_init(&b, 1 << 20);
  sh_buf_printf(&b, "{\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":%s%s},", p.vocab ? p.vocab : VOCAB,
                p.merges ? p.merges : "[\"a b\"]", p.model ? p.model : "");
  sh_buf_printf(&b, "\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,", p.added ? p.added : "[]",
                p.normalizer ? p.normalizer : "null", p.pre ? p.pre : BYTE_LEVEL);
  sh_buf_printf(&b, "\"post_processor\":%s,\"decoder\":%s}", p.post ? p.post : "null", p.decoder ? p.decoder : "{\"type\":\"ByteLevel\"}");
  assert_int_equal(b.failed, 0);
  return sh_buf_detach(&b);
}

static sh_tok *open_parts(parts p) {
  char *json = file_of(p);
  sh_tok *t = open_text(json, strlen(json), NULL);
  sh_free(json);
  return t;
}

static void refused_text(const char *json, size_t n, int code, const char *part) {
  sh_tok *t = (sh_tok *)&n;
  sh_error e = {0};
  int rc = sh_tok_open_json(&t, json, n, NULL, &e);
  if (rc != code) fail_msg("%d (%s), wanted %d for: %.300s", rc, e.text, code, json);
  assert_null(t);
  assert_int_equal(e.code, code);
  assert_says(e.text, "tokenizer.json");
  assert_says(e.text, part);
}

static void refused(parts p, int code, const char *part) {
  char *json = file_of(p);
  refused_text(json, strlen(json), code, part);
  sh_free(json);
}

static void encode_must_be(sh_tok *t, const char *text, unsigned flags, const int32_t *want, size_t n) {
  sh_ids got = encode(t, text, strlen(text), flags);
  assert_ids(&got, want, n);
  sh_ids_free(&got);
}

static void the_small_file_of_these_tests_is_accepted(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){0});
  encode_must_be(t, "ab c", 0, (int32_t[]){3, 4, 2}, 3);
  assert_int_equal(sh_tok_vocab_size(t), 5);
  sh_tok_free(t);
}

/* --- Malformed ------------------------------------------------------------------------------------------------------------------------ */

static void a_file_that_is_no_tokenizer_is_refused(void **state) {
  (void)state;
  static const char *const broken[][2] = {{"", ""},
                                          {"{", ""},
                                          {"[]", "array"},
                                          {"null", "null"},
                                          {"{}", "model"},
                                          {"{\"model\":3}", "model"},
                                          {"{\"model\":{}}", "vocab"},
                                          {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "vocab"},
                                          {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
                                          {"{\"model\":{\"vocab\":{\"a\":0}}}", "merges"},
                                          {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", "merges"},
                                          {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":{}}", "added_tokens"}};
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) refused_text(broken[i][0], strlen(broken[i][0]), SH_ERR_FORMAT, broken[i][1]);
}

static void a_wrong_id_is_refused(void **state) {
  (void)state;
  refused((parts){.vocab = "\"a\":2147483648"}, SH_ERR_FORMAT, "2147483648");
  refused((parts){.vocab = "\"a\":2147483647"}, SH_ERR_FORMAT, "2147483647");
  refused((parts){.vocab = "\"a\":4194304"}, SH_ERR_FORMAT, "4194304");
  refused((parts){.vocab = "\"a\":9223372036854775807"}, SH_ERR_FORMAT, "\"a\"");
  refused((parts){.vocab = "\"a\":1e300"}, SH_ERR_FORMAT, "\"a\"");
  refused((parts){.vocab = "\"a\":-1"}, SH_ERR_FORMAT, "-1");
  refused((parts){.vocab = "\"a\":0.5"}, SH_ERR_FORMAT, "\"a\"");
  refused((parts){.vocab = "\"a\":\"0\""}, SH_ERR_FORMAT, "\"a\"");
  refused((parts){.vocab = "\"a\":null"}, SH_ERR_FORMAT, "\"a\"");
}

static void an_id_with_two_tokens_and_a_token_with_two_ids_are_refused(void **state) {
  (void)state;
  refused((parts){.vocab = "\"a\":0,\"b\":1,\"ab\":1"}, SH_ERR_FORMAT, "two tokens");
  refused((parts){.vocab = "\"a\":0,\"b\":1,\"ab\":2,\"a\":3"}, SH_ERR_FORMAT, "two ids");
  refused((parts){.added = "[{\"id\":0,\"content\":\"<x>\"}]"}, SH_ERR_FORMAT, "two tokens");
  refused((parts){.added = "[{\"id\":9,\"content\":\"ab\"}]"}, SH_ERR_FORMAT, "two ids");
  refused((parts){.added = "[{\"id\":9,\"content\":\"<x>\"},{\"id\":10,\"content\":\"<x>\"}]"}, SH_ERR_FORMAT, "two ids");
}

static void bad_merges_are_refused(void **state) {
  (void)state;
  refused((parts){.merges = "[\"a z\"]"}, SH_ERR_FORMAT, "\"z\"");
  refused((parts){.merges = "[\"a c\"]"}, SH_ERR_FORMAT, "\"ac\"");
  refused((parts){.merges = "[\"ab\"]"}, SH_ERR_FORMAT, "not two tokens");
  refused((parts){.merges = "[\"a b c\"]"}, SH_ERR_FORMAT, "not two tokens");
  refused((parts){.merges = "[\"\"]"}, SH_ERR_FORMAT, "not two tokens");
  refused((parts){.merges = "[\" b\"]"}, SH_ERR_FORMAT, "merge 0");
  refused((parts){.merges = "[[\"a\"]]"}, SH_ERR_FORMAT, "merge 0");
  refused((parts){.merges = "[[\"a\",\"b\",\"c\"]]"}, SH_ERR_FORMAT, "merge 0");
  refused((parts){.merges = "[[\"a\",1]]"}, SH_ERR_FORMAT, "merge 0");
  refused((parts){.merges = "[\"a b\",7]"}, SH_ERR_FORMAT, "merge 1");
  refused((parts){.merges = "[null]"}, SH_ERR_FORMAT, "merge 0");
}

static void a_merge_cannot_use_what_is_only_an_added_token(void **state) {
  (void)state;
  refused((parts){.merges = "[\"a x\"]", .added = "[{\"id\":9,\"content\":\"x\"},{\"id\":10,\"content\":\"ax\"}]"}, SH_ERR_FORMAT, "\"x\"");
}

static void bad_added_tokens_are_refused_by_their_place(void **state) {
  (void)state;
  refused((parts){.added = "[7]"}, SH_ERR_FORMAT, "added_tokens[0]");
  refused((parts){.added = "[{\"id\":9,\"content\":\"<x>\"},{\"id\":10}]"}, SH_ERR_FORMAT, "added_tokens[1]");
  refused((parts){.added = "[{\"content\":\"<x>\"}]"}, SH_ERR_FORMAT, "id");
  refused((parts){.added = "[{\"id\":2147483648,\"content\":\"<x>\"}]"}, SH_ERR_FORMAT, "2147483648");
  refused((parts){.added = "[{\"id\":9,\"content\":\"<x>\",\"special\":1}]"}, SH_ERR_FORMAT, "special");
}

static void a_bad_pattern_is_refused(void **state) {
  (void)state;
  refused((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"(\"}"))}, SH_ERR_FORMAT, "does not compile");
  refused((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"*\"}"))}, SH_ERR_FORMAT, "does not compile");
  refused((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"[a\"}"))}, SH_ERR_UNSUPPORTED, "unterminated class");
  refused((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"\\\\p{Nonsense}\"}"))}, SH_ERR_FORMAT, "does not compile");
  refused((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"(?<=a+)b\"}"))}, SH_ERR_FORMAT, "does not compile");
  refused((parts){.pre = SEQUENCE(SPLIT("{}"))}, SH_ERR_FORMAT, "pattern");
  refused((parts){.pre = SEQUENCE(SPLIT("\"a\""))}, SH_ERR_FORMAT, "pattern");
  refused((parts){.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}")}, SH_ERR_UNSUPPORTED,
          "Sideways");
}

static void a_pattern_that_backtracks_without_end_is_an_error_and_no_hang(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"(?:a+)+[bc]\"}"))});
  char text[5000];
  memset(text, 'a', sizeof text);
  sh_ids ids = {0};
  sh_error e = {0};
  assert_int_equal(sh_tok_encode(t, text, sizeof text, 0, &ids, &e), SH_ERR_LIMIT);
  assert_says(e.text, "pattern");
  assert_int_equal(ids.n, 0);
  sh_ids_free(&ids);
  sh_tok_free(t);
}

static void a_pattern_that_repeats_groups_may_use_a_long_text(void **state) {
  (void)state; /* needs more than the default matching stack */
  sh_tok *t = open_parts((parts){.pre = SEQUENCE(SPLIT("{\"Regex\":\"(?:a|b)+\"}"))});
  char *text = sh_malloc(200000);
  assert_non_null(text);
  for (int i = 0; i < 200000; i++) text[i] = i % 2 ? 'b' : 'a';
  sh_ids ids = encode(t, text, 200000, 0);
  assert_int_equal(ids.n, 100000);
  sh_ids_free(&ids);
  sh_free(text);
  sh_tok_free(t);
}

/* --- Refused by name ------------------------------------------------------------------------------------------------------------------ */

static void what_is_not_byte_level_bpe_is_refused_by_its_name(void **state) {
  (void)state;
  refused_text("{\"model\":{\"type\":\"Unigram\"}}", 28, SH_ERR_UNSUPPORTED, "Unigram");
  refused((parts){.model = ",\"byte_fallback\":true"}, SH_ERR_UNSUPPORTED, "byte_fallback");
  refused((parts){.model = ",\"continuing_subword_prefix\":\"##\""}, SH_ERR_UNSUPPORTED, "continuing_subword_prefix");
  refused((parts){.model = ",\"end_of_word_suffix\":\"</w>\""}, SH_ERR_UNSUPPORTED, "end_of_word_suffix");
  refused((parts){.model = ",\"dropout\":0.1"}, SH_ERR_UNSUPPORTED, "dropout");
  refused((parts){.normalizer = "{\"type\":\"Lowercase\"}"}, SH_ERR_UNSUPPORTED, "Lowercase");
  refused((parts){.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\"}]}"}, SH_ERR_UNSUPPORTED,
          "Prepend");
  refused((parts){.pre = "{\"type\":\"Metaspace\"}"}, SH_ERR_UNSUPPORTED, "Metaspace");
  refused((parts){.pre = "null"}, SH_ERR_UNSUPPORTED, "ByteLevel");
  refused((parts){.pre = SPLIT("{\"String\":\"a\"}")}, SH_ERR_UNSUPPORTED, "without ByteLevel");
  refused((parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]}"}, SH_ERR_UNSUPPORTED, "Digits");
  refused((parts){.post = "{\"type\":\"BertProcessing\"}"}, SH_ERR_UNSUPPORTED, "BertProcessing");
  refused((parts){.decoder = "{\"type\":\"WordPiece\"}"}, SH_ERR_UNSUPPORTED, "WordPiece");
  refused((parts){.decoder = "null"}, SH_ERR_UNSUPPORTED, "ByteLevel");
}

static void nested_sequences_have_a_limit(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  for (int i = 0; i < 50; i++) sh_buf_puts(&b, "{\"type\":\"Sequence\",\"normalizers\":[");
  sh_buf_puts(&b, "{\"type\":\"NFC\"}");
  for (int i = 0; i < 50; i++) sh_buf_puts(&b, "]}");
  refused((parts){.normalizer = b.p}, SH_ERR_LIMIT, "nests");
  sh_buf_free(&b);
}

static void many_steps_have_a_limit(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  sh_buf_puts(&b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
  for (int i = 0; i < 50; i++) sh_buf_puts(&b, SPLIT("{\"String\":\"a\"}") ",");
  sh_buf_puts(&b, BYTE_LEVEL "]}");
  refused((parts){.pre = b.p}, SH_ERR_LIMIT, "steps");
  sh_buf_free(&b);
}

/* --- Begin and end -------------------------------------------------------------------------------------------------------------------- */

#define TEMPLATE(single, ids)                                                                                                              \
  "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":" ids "}}}"
#define TOKEN_B "{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}}"
#define TEXT_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"

static void a_template_adds_its_tokens_when_asked(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){.post = TEMPLATE(TOKEN_B "," TEXT_A "," TOKEN_B, "[2,1]")});
  encode_must_be(t, "ab", SH_TOK_ADD_SPECIAL, (int32_t[]){2, 1, 3, 2, 1}, 5);
  encode_must_be(t, "ab", 0, (int32_t[]){3}, 1);
  encode_must_be(t, "", SH_TOK_ADD_SPECIAL, (int32_t[]){2, 1, 2, 1}, 4);
  sh_tok_free(t);
}

static void a_bad_template_is_refused(void **state) {
  (void)state;
  refused((parts){.post = TEMPLATE(TOKEN_B, "[2]")}, SH_ERR_FORMAT, "sequence A");
  refused((parts){.post = TEMPLATE(TEXT_A "," TEXT_A, "[2]")}, SH_ERR_FORMAT, "item 1");
  refused((parts){.post = TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", "[2]")}, SH_ERR_FORMAT, "item 0");
  refused((parts){.post = TEMPLATE(TOKEN_B "," TEXT_A, "[99]")}, SH_ERR_FORMAT, "no token");
  refused((parts){.post = TEMPLATE(TOKEN_B "," TEXT_A, "[2147483648]")}, SH_ERR_FORMAT, "no token");
  refused((parts){.post = TEMPLATE(TOKEN_B "," TEXT_A, "2")}, SH_ERR_FORMAT, "ids");
  refused((parts){.post = TEMPLATE("{\"SpecialToken\":{\"id\":\"Z\"}}," TEXT_A, "[2]")}, SH_ERR_FORMAT, "\"Z\"");
  refused((parts){.post = TEMPLATE(TOKEN_B "," TEXT_A, "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]")}, SH_ERR_LIMIT, "more than 16");
  refused((parts){.post = "{\"type\":\"TemplateProcessing\"}"}, SH_ERR_FORMAT, "single");
}

static void begin_and_end_may_be_text_or_objects(void **state) {
  (void)state;
  static const struct {
    const char *config;
    int bos, eos;
  } known[] = {{"{\"bos_token\":\"a\",\"eos_token\":{\"content\":\"b\"}}", 0, 1},
               {"{\"bos_token\":null}", -1, -1},
               {"{\"bos_token\":\"zz\",\"eos_token\":7}", -1, -1},
               {"[]", -1, -1}};
  char *json = file_of((parts){0});
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    sh_arena *a = sh_arena_new(1 << 20);
    sh_json *config;
    assert_int_equal(sh_json_parse(known[i].config, strlen(known[i].config), NULL, a, &config, NULL), 0);
    sh_tok *t = open_text(json, strlen(json), config);
    assert_int_equal(sh_tok_bos(t), known[i].bos);
    assert_int_equal(sh_tok_eos(t), known[i].eos);
    sh_tok_free(t);
    sh_arena_free(a);
  }
  sh_free(json);
}

/* --- Corners -------------------------------------------------------------------------------------------------------------------------- */

static void ids_may_have_gaps(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){.vocab = "\"a\":0,\"b\":7,\"ab\":3"});
  size_t n;
  assert_int_equal(sh_tok_vocab_size(t), 8);
  assert_null(sh_tok_piece(t, 1));
  assert_null(sh_tok_bytes(t, 5, &n));
  sh_buf b = decode(t, (int32_t[]){0, 1, 7, 5}, 4, false);
  assert_string_equal(b.p, "ab");
  sh_buf_free(&b);
  sh_tok_free(t);
}

static void bytes_without_a_token_are_dropped_or_become_the_unknown_token(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){0});
  encode_must_be(t, "azzb", 0, (int32_t[]){3}, 1);
  sh_tok_free(t);
  t = open_parts((parts){.model = ",\"unk_token\":\"c\""});
  encode_must_be(t, "azzb", 0, (int32_t[]){0, 2, 2, 1}, 4);
  sh_tok_free(t);
  t = open_parts((parts){.model = ",\"unk_token\":\"c\",\"fuse_unk\":true"});
  encode_must_be(t, "azzb", 0, (int32_t[]){0, 2, 1}, 3);
  sh_tok_free(t);
  refused((parts){.model = ",\"unk_token\":\"zz\""}, SH_ERR_FORMAT, "unk_token");
}

static void an_added_token_that_is_not_of_the_byte_alphabet_is_plain_text(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){.added = "[{\"id\":9,\"content\":\"a b\"},{\"id\":10,\"content\":\"\u6587\"}]"});
  sh_buf b = decode(t, (int32_t[]){9, 10}, 2, false);
  assert_string_equal(b.p, "a b\u6587");
  sh_buf_free(&b);
  encode_must_be(t, "ba b\u6587", 0, (int32_t[]){1, 9, 10}, 3);
  sh_tok_free(t);
}

static void an_empty_added_token_never_matches(void **state) {
  (void)state;
  sh_tok *t = open_parts((parts){.added = "[{\"id\":9,\"content\":\"\"}]"});
  encode_must_be(t, "ab", 0, (int32_t[]){3}, 1);
  sh_tok_free(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_component_does_what_the_reference_does),
      cmocka_unit_test(the_small_file_of_these_tests_is_accepted),
      cmocka_unit_test(a_file_that_is_no_tokenizer_is_refused),
      cmocka_unit_test(a_wrong_id_is_refused),
      cmocka_unit_test(an_id_with_two_tokens_and_a_token_with_two_ids_are_refused),
      cmocka_unit_test(bad_merges_are_refused),
      cmocka_unit_test(a_merge_cannot_use_what_is_only_an_added_token),
      cmocka_unit_test(bad_added_tokens_are_refused_by_their_place),
      cmocka_unit_test(a_bad_pattern_is_refused),
      cmocka_unit_test(a_pattern_that_backtracks_without_end_is_an_error_and_no_hang),
      cmocka_unit_test(a_pattern_that_repeats_groups_may_use_a_long_text),
      cmocka_unit_test(what_is_not_byte_level_bpe_is_refused_by_its_name),
      cmocka_unit_test(nested_sequences_have_a_limit),
      cmocka_unit_test(many_steps_have_a_limit),
      cmocka_unit_test(a_template_adds_its_tokens_when_asked),
      cmocka_unit_test(a_bad_template_is_refused),
      cmocka_unit_test(begin_and_end_may_be_text_or_objects),
      cmocka_unit_test(ids_may_have_gaps),
      cmocka_unit_test(bytes_without_a_token_are_dropped_or_become_the_unknown_token),
      cmocka_unit_test(an_added_token_that_is_not_of_the_byte_alphabet_is_plain_text),
      cmocka_unit_test(an_empty_added_token_never_matches),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
