/* SHA-1 and SHA-256: published vectors, every length around a block, both implementations. */
#include "base/sha.h"
#include "unit/base/harness.h"

typedef void (*start_fn)(sh_sha *s, sh_sha_kind kind);
static const start_fn starts[] = {sh_sha_init, sh_sha_init_plain};

static void assert_digest(sh_sha_kind kind, const void *p, size_t n, size_t step, const char *want) {
  for (size_t i = 0; i < 2; i++) {
    sh_sha s;
    char hex[SH_SHA_HEX];
    starts[i](&s, kind);
    for (size_t at = 0; at < n; at += step) sh_sha_update(&s, (const char *)p + at, n - at < step ? n - at : step);
    sh_sha_hex(&s, hex);
    assert_string_equal(hex, want);
  }
}

static void the_vectors_of_the_standard_come_out(void **state) {
  (void)state;
  const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  assert_digest(SH_SHA256, "", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  assert_digest(SH_SHA256, "abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  assert_digest(SH_SHA256, two, strlen(two), 7, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  assert_digest(SH_SHA1, "", 0, 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  assert_digest(SH_SHA1, "abc", 3, 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
  assert_digest(SH_SHA1, two, strlen(two), 7, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
}

static void a_million_bytes_in_odd_pieces_come_out(void **state) {
  (void)state;
  char *p = malloc(1000000);
  assert_non_null(p);
  memset(p, 'a', 1000000);
  assert_digest(SH_SHA256, p, 1000000, 4099, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  assert_digest(SH_SHA1, p, 1000000, 61, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  free(p);
}

/* Padding has its edge at 55, 56 and 64 bytes; the two implementations are compared at every length. */
static void both_implementations_agree_at_every_length(void **state) {
  (void)state;
  unsigned char p[200];
  for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)(i * 37 + 11);
  for (int kind = SH_SHA1; kind <= SH_SHA256; kind++)
    for (size_t n = 0; n <= sizeof p; n++) {
      sh_sha a, b;
      char x[SH_SHA_HEX], y[SH_SHA_HEX];
      sh_sha_init(&a, (sh_sha_kind)kind);
      sh_sha_init_plain(&b, (sh_sha_kind)kind);
      sh_sha_update(&a, p, n);
      for (size_t i = 0; i < n; i++) sh_sha_update(&b, p + i, 1);
      sh_sha_hex(&a, x);
      sh_sha_hex(&b, y);
      assert_string_equal(x, y);
      assert_int_equal(strlen(x), kind == SH_SHA1 ? 40 : 64);
    }
}

static void an_abandoned_computation_is_freed(void **state) {
  (void)state;
  sh_sha s = {0};
  sh_sha_free(&s);
  sh_sha_init(&s, SH_SHA256);
  sh_sha_update(&s, "x", 1);
  sh_sha_free(&s);
  assert_null(s.private_evp);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_vectors_of_the_standard_come_out),
      cmocka_unit_test(a_million_bytes_in_odd_pieces_come_out),
      cmocka_unit_test(both_implementations_agree_at_every_length),
      cmocka_unit_test(an_abandoned_computation_is_freed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
