/* Decoding, in one piece and as a stream: whatever the ids, a stream concatenates to the whole, and every part of it is valid UTF-8. */
#include "unit/text/tok_rig.h"

#include "base/text.h"

static sh_tok *tok;

static int setup(void **state) {
  (void)state;
  tok = open_model(SMALL_MODEL);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  sh_tok_free(tok);
  return 0;
}

/* Streams ids, checking every part, and returns the text. */
static sh_buf stream(const int32_t *ids, size_t n, bool skip_special) {
  sh_buf all;
  sh_detok d;
  sh_buf_init(&all, 1 << 20);
  sh_detok_init(&d, tok, skip_special);
  for (size_t i = 0; i <= n; i++) {
    size_t before = all.len;
    assert_int_equal(i < n ? sh_detok_push(&d, ids[i], &all) : sh_detok_flush(&d, &all), 0);
    assert_true(all.len == before || sh_utf8_valid(all.p + before, all.len - before));
    assert_in_range(d.private_n, 0, 3);
  }
  assert_int_equal(d.private_n, 0);
  return all;
}

static void assert_text(sh_buf b, const char *want) {
  assert_int_equal(b.len, strlen(want));
  if (b.len) assert_memory_equal(b.p, want, b.len);
  sh_buf_free(&b);
}

/* The id of one byte in the byte alphabet of the vocabulary. */
static int32_t byte_id(unsigned byte) {
  for (int32_t id = 0; id < sh_tok_vocab_size(tok); id++) {
    size_t n;
    const char *p = sh_tok_bytes(tok, id, &n);
    if (n == 1 && (unsigned char)p[0] == byte) return id;
  }
  fail_msg("byte %02x has no id", byte);
  return -1;
}

static sh_buf stream_bytes(const char *bytes) {
  int32_t ids[64];
  size_t n = strlen(bytes);
  assert_in_range(n, 0, 64);
  for (size_t i = 0; i < n; i++) ids[i] = byte_id((unsigned char)bytes[i]);
  return stream(ids, n, false);
}

static void a_stream_concatenates_to_the_whole_for_random_ids(void **state) {
  (void)state;
  uint64_t seed = 88172645463325252ull;
  for (int round = 0; round < 4000; round++) {
    int32_t ids[24];
    size_t n = next_random(&seed) % 24;
    bool skip = round & 1;
    /* half the rounds draw from the single bytes only, which make broken text of every kind */
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(next_random(&seed) % (round & 2 ? 256 : 640));
    sh_buf parts = stream(ids, n, skip), whole = decode(tok, ids, n, skip);
    assert_int_equal(parts.len, whole.len);
    if (parts.len) assert_memory_equal(parts.p, whole.p, parts.len);
    sh_buf_free(&parts);
    sh_buf_free(&whole);
  }
}

static void a_character_comes_out_when_its_last_byte_is_there(void **state) {
  (void)state;
  static const char face[] = "\xF0\x9F\x98\x80";
  sh_buf out;
  sh_detok d;
  sh_buf_init(&out, 100);
  sh_detok_init(&d, tok, false);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(out.len, 0);
    assert_int_equal(sh_detok_push(&d, byte_id((unsigned char)face[i]), &out), 0);
  }
  assert_int_equal(out.len, 4);
  assert_memory_equal(out.p, face, 4);
  sh_buf_free(&out);
}

static void broken_text_becomes_one_replacement_per_maximal_subpart(void **state) {
  (void)state;
  assert_text(stream_bytes("\xFF"), "\uFFFD");
  assert_text(stream_bytes("a\x80\x80z"), "a\uFFFD\uFFFDz");
  assert_text(stream_bytes("\xF0\x9F\x98z"), "\uFFFDz");
  assert_text(stream_bytes("\xF0\x9F\xF0\x9F\x98\x80"), "\uFFFD\U0001F600");
  assert_text(stream_bytes("\xE4\xBD"), "\uFFFD");
  assert_text(stream_bytes("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  assert_text(stream_bytes("\xC0\xAF"), "\uFFFD\uFFFD");
  assert_text(stream_bytes("\xE4\xC3\xA9"), "\uFFFD\u00E9");
}

static void special_tokens_can_be_left_out(void **state) {
  (void)state;
  int32_t end = sh_tok_find(tok, "<|im_end|>"), think = sh_tok_find(tok, "<think>"), a = byte_id('a');
  int32_t ids[] = {a, end, think, a};
  assert_text(stream(ids, 4, false), "a<|im_end|><think>a");
  assert_text(stream(ids, 4, true), "a<think>a");
}

static void a_skipped_token_does_not_break_a_character(void **state) {
  (void)state;
  int32_t ids[] = {byte_id(0xC3), sh_tok_find(tok, "<|im_end|>"), byte_id(0xA9)};
  assert_text(stream(ids, 3, true), "\u00E9");
  assert_text(stream(ids, 3, false), "\uFFFD<|im_end|>\uFFFD");
}

static void an_id_outside_the_vocabulary_is_refused_when_decoding(void **state) {
  (void)state;
  sh_buf b;
  sh_buf_init(&b, 100);
  static const int32_t bad[] = {-1, 640, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 4; i++) {
    sh_error e = {0};
    int32_t ids[] = {1, bad[i]};
    assert_int_equal(sh_tok_decode(tok, ids, 2, false, &b, &e), SH_ERR_ARG);
    assert_says(e.text, "item 1");
    assert_says(e.text, "639");
    assert_int_equal(b.len, 0);
  }
}

static void a_stream_takes_an_unknown_id_as_nothing(void **state) {
  (void)state;
  int32_t ids[] = {byte_id(0xC3), -1, 640, INT32_MAX, byte_id(0xA9)};
  assert_text(stream(ids, 5, false), "\u00E9");
}

static void a_full_buffer_is_reported(void **state) {
  (void)state;
  sh_buf b;
  sh_error e = {0};
  int32_t ids[] = {byte_id('a'), byte_id('b'), byte_id('c')};
  sh_buf_init(&b, 2);
  assert_int_equal(sh_tok_decode(tok, ids, 3, false, &b, &e), SH_ERR_LIMIT);
  sh_buf_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_stream_concatenates_to_the_whole_for_random_ids),
      cmocka_unit_test(a_character_comes_out_when_its_last_byte_is_there),
      cmocka_unit_test(broken_text_becomes_one_replacement_per_maximal_subpart),
      cmocka_unit_test(special_tokens_can_be_left_out),
      cmocka_unit_test(a_skipped_token_does_not_break_a_character),
      cmocka_unit_test(an_id_outside_the_vocabulary_is_refused_when_decoding),
      cmocka_unit_test(a_stream_takes_an_unknown_id_as_nothing),
      cmocka_unit_test(a_full_buffer_is_reported),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
