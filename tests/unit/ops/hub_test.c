/* Hubs: what is a name, what may be a path, the three forms of listings, addresses, and what errors say. No network. */
#include "ops/hub.h"
#include "unit/base/harness.h"

static sh_hub hub_of(sh_hub_kind kind) {
  static char endpoint[] = "https://hub.test";
  return (sh_hub){kind, "the hub", "hub", endpoint, NULL, "HUB_TOKEN", "main"};
}

static int read_text(sh_hub_kind kind, const char *text, sh_hub_list *list, sh_hub_dirs *dirs, sh_error *e) {
  sh_hub h = hub_of(kind);
  int entries;
  return sh_hub_read_page(&h, text, strlen(text), list, dirs, &entries, e);
}

static void names_are_owner_and_name(void **state) {
  (void)state;
  static const char *const good[] = {"gpt2", "Qwen/Qwen3.5-4B", "a_b/c.d-e", "mirrors/Qwen/Qwen3.5-4B"};
  static const char *const bad[] = {"",        "/a",  "a/",   "a//b",  "../a", "a/..", ".a/b", "a/.b",
                                    "a/b/c/d", "a b", "a\\b", "a/b?c", "a\nb", "ü/b",  "a%2fb"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(sh_hub_name_ok(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(sh_hub_name_ok(bad[i]));
  char longest[300];
  memset(longest, 'a', sizeof longest);
  longest[299] = 0;
  assert_false(sh_hub_name_ok(longest));
}

static void paths_that_leave_the_folder_or_are_no_text_are_refused(void **state) {
  (void)state;
  static const char *const good[] = {"a",   "a.json",        "a/b/c",  "..a",      "a..", "...", ".gitattributes",
                                     "a b", "x/.sheng-pull", "模型/a", ".github/x"};
  static const char *const bad[] = {"",
                                    ".",
                                    "..",
                                    "/",
                                    "/a",
                                    "a/",
                                    "a//b",
                                    "./a",
                                    "a/./b",
                                    "a/.",
                                    "../a",
                                    "a/..",
                                    "a/../b",
                                    "a\tb",
                                    ".git/config",
                                    "x/.git",
                                    "a\x7f",
                                    "\xff",
                                    "a/\xc3",
                                    ".sheng-pull",
                                    ".sheng-pull/x",
                                    ".sheng-pull.json",
                                    "\xed\xa0\x80"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_null(sh_hub_path_check(good[i], strlen(good[i])));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_non_null(sh_hub_path_check(bad[i], strlen(bad[i])));
  assert_non_null(sh_hub_path_check("a\0b", 3));
  char part[300];
  memset(part, 'a', sizeof part);
  assert_null(sh_hub_path_check(part, 255));
  assert_non_null(sh_hub_path_check(part, 256));
}

static void a_list_of_hugging_face_is_read(void **state) {
  (void)state;
  sh_hub_list l = {0};
  sh_error e;
  assert_int_equal(
      read_text(SH_HUB_HF,
                "[{\"type\":\"directory\",\"path\":\"d\",\"oid\":\"x\",\"size\":0},"
                "{\"type\":\"file\",\"path\":\"d/a.json\",\"size\":5,\"oid\":\"AABBccddeeff00112233445566778899aabbccdd\"},"
                "{\"type\":\"file\",\"path\":\"w.safetensors\",\"size\":130,\"oid\":\"aabbccddeeff00112233445566778899aabbccdd\","
                "\"lfs\":{\"oid\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\",\"size\":6000000000}}]",
                &l, NULL, &e),
      0);
  assert_int_equal(l.n, 2);
  assert_string_equal(l.v[0].path, "d/a.json");
  assert_int_equal(l.v[0].hash_kind, SH_SHA1);
  assert_string_equal(l.v[0].hash, "aabbccddeeff00112233445566778899aabbccdd");
  assert_int_equal(l.v[1].size, 6000000000); /* of the file, not of its pointer */
  assert_int_equal(l.v[1].hash_kind, SH_SHA256);
  sh_hub_list_free(&l);
}

static void a_hash_of_another_form_is_no_hash(void **state) {
  (void)state;
  sh_hub_list l = {0};
  assert_int_equal(
      read_text(SH_HUB_HF,
                "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"abc\"},{\"type\":\"file\",\"path\":\"b\",\"size\":1,\"oid\":7},"
                "{\"type\":\"file\",\"path\":\"c\",\"size\":1,\"oid\":\"zzbbccddeeff00112233445566778899aabbccdd\"}]",
                &l, NULL, NULL),
      0);
  for (int i = 0; i < 3; i++) assert_int_equal(l.v[i].hash_kind, 0);
  sh_hub_list_free(&l);
}

static void a_list_of_modelscope_is_read(void **state) {
  (void)state;
  sh_hub_list l = {0};
  sh_hub_dirs d = {0};
  sh_error e;
  assert_int_equal(read_text(SH_HUB_MODELSCOPE,
                             "{\"Code\":200,\"Data\":{\"Files\":[{\"Path\":\"d\",\"Type\":\"tree\",\"Size\":0,\"Sha256\":\"\"},{\"Path\":"
                             "\"w.bin\",\"Type\":\"blob\","
                             "\"Size\":3,\"Sha256\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}]}}",
                             &l, &d, &e),
                   0);
  assert_int_equal(l.n, 1);
  assert_int_equal(l.v[0].hash_kind, SH_SHA256);
  assert_int_equal(d.n, 1);
  assert_string_equal(d.v[0], "d");
  assert_int_equal(read_text(SH_HUB_MODELSCOPE, "{\"Code\":10010205001,\"Message\":\"record not found\",\"Success\":false}", &l, NULL, &e),
                   SH_ERR_IO);
  assert_contains(e.text, "record not found");
  sh_free((void *)d.v);
  sh_hub_list_free(&l);
}

static void a_list_of_modelers_is_read(void **state) {
  (void)state;
  sh_hub_list l = {0};
  sh_hub_dirs d = {0};
  sh_error e;
  assert_int_equal(
      read_text(SH_HUB_MODELERS,
                "{\"data\":{\"tree\":[{\"type\":\"dir\",\"path\":\"d\"},{\"type\":\"file\",\"path\":\"a\",\"size\":2,\"is_lfs\":false,"
                "\"etag\":\"aabbccddeeff00112233445566778899aabbccdd\"},{\"type\":\"file\",\"path\":\"b\",\"size\":3,\"is_lfs\":true,"
                "\"etag\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}],"
                "\"last_commit\":{\"commit\":{\"commit_sha\":\"1111111111111111111111111111111111111111\"}}}}",
                &l, &d, &e),
      0);
  assert_int_equal(l.n, 2);
  assert_int_equal(l.v[0].hash_kind, SH_SHA1);
  assert_int_equal(l.v[1].hash_kind, SH_SHA256);
  assert_string_equal(l.commit, "1111111111111111111111111111111111111111");
  assert_int_equal(d.n, 1);
  sh_free((void *)d.v);
  sh_hub_list_free(&l);
}

static void what_is_no_list_is_refused_with_a_sentence(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "{}",
                                      "null",
                                      "[[]]",
                                      "<html>",
                                      "[{\"path\":\"a\"}]",
                                      "[{\"path\":\"a\",\"size\":-1}]",
                                      "[{\"path\":\"a\",\"size\":1.5}]",
                                      "[{\"path\":\"a\",\"size\":\"9\"}]",
                                      "[{\"path\":7,\"size\":1}]",
                                      "[{\"path\":\"../a\",\"size\":1}]",
                                      "[{\"path\":\"a\\u0000b\",\"size\":1}]",
                                      "[{\"path\":\"a\",\"size\":9e18}]"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (int kind = SH_HUB_HF; kind <= SH_HUB_MODELERS; kind++) {
      sh_hub_list l = {0};
      sh_error e = {0};
      assert_int_not_equal(read_text((sh_hub_kind)kind, texts[i], &l, NULL, &e), 0);
      assert_true(e.text[0] != 0);
      assert_int_equal(l.n, 0);
      sh_hub_list_free(&l);
    }
}

static void addresses_are_escaped(void **state) {
  (void)state;
  static const char *const want[] = {"https://hub.test/o/n/resolve/refs%2Fpr%2F1/d/a%20b%23.json",
                                     "https://hub.test/api/v1/models/o/n/repo?Revision=refs%2Fpr%2F1&FilePath=d%2Fa%20b%23.json",
                                     "https://hub.test/api/v1/file/o/n/refs%2Fpr%2F1/media/d/a%20b%23.json"};
  for (int kind = SH_HUB_HF; kind <= SH_HUB_MODELERS; kind++) {
    sh_hub h = hub_of((sh_hub_kind)kind);
    char *url = sh_hub_file_url(&h, "o/n", "refs/pr/1", "d/a b#.json");
    assert_non_null(url);
    assert_string_equal(url, want[kind]);
    sh_free(url);
  }
}

static void an_origin_is_scheme_host_and_port(void **state) {
  (void)state;
  assert_true(sh_url_same_origin("https://a.b/x", "https://A.B:443"));
  assert_true(sh_url_same_origin("http://a:80/?q", "http://a/y"));
  assert_true(sh_url_same_origin("http://[::1]:8/x", "http://[::1]:8"));
  static const char *const others[] = {"http://a.b",
                                       "https://a.b:444",
                                       "https://a.bc",
                                       "https://a",
                                       "https://a.b@evil",
                                       "https://evil/a.b",
                                       "https://a.b:443x/",
                                       "https://a.b:",
                                       "https://a.b\\@evil/",
                                       "https://a.b%2f",
                                       "ftp://a.b",
                                       "",
                                       "//a.b",
                                       "https://",
                                       "https://a.b .evil/",
                                       "https://a.b:70000",
                                       "https://a.b:+443",
                                       "https://x.a.b"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(sh_url_same_origin("https://a.b", others[i]));
}

static void refusals_say_what_to_do(void **state) {
  (void)state;
  sh_hub h = hub_of(SH_HUB_HF);
  sh_error e;
  sh_hub_explain(&h, "o/n", "main", NULL, 401, "", "", &e);
  assert_contains(e.text, "HUB_TOKEN");
  sh_hub_explain(&h, "o/n", "main", NULL, 403, "GatedRepo", "restricted", &e);
  assert_contains(e.text, "https://hub.test/o/n");
  assert_contains(e.text, "restricted");
  h.token = "secret";
  sh_hub_explain(&h, "o/n", "main", NULL, 401, "", "", &e);
  assert_contains(e.text, "does not accept the token");
  assert_null(strstr(e.text, "secret"));
  assert_int_equal(sh_hub_explain(&h, "o/n", "v9", NULL, 404, "RevisionNotFound", "", &e), SH_ERR_NOT_FOUND);
  assert_contains(e.text, "'v9'");
  h.kind = SH_HUB_MODELERS;
  sh_hub_explain(&h, "o/n", "main", NULL, 404, "", "", &e);
  assert_contains(e.text, "https://hub.test/models/o/n");
}

static void waits_grow_and_honour_the_server(void **state) {
  (void)state;
  for (int i = 1; i < 40; i++) {
    int64_t ms = sh_fetch_backoff_ms(i, -1), base = i < 7 ? 500 << (i - 1) : 30000;
    assert_true(ms >= base && ms <= base + base / 4);
  }
  assert_true(sh_fetch_backoff_ms(1, 60) >= 60000);
  assert_true(sh_fetch_backoff_ms(1, 60) <= 75000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_are_owner_and_name),
      cmocka_unit_test(paths_that_leave_the_folder_or_are_no_text_are_refused),
      cmocka_unit_test(a_list_of_hugging_face_is_read),
      cmocka_unit_test(a_hash_of_another_form_is_no_hash),
      cmocka_unit_test(a_list_of_modelscope_is_read),
      cmocka_unit_test(a_list_of_modelers_is_read),
      cmocka_unit_test(what_is_no_list_is_refused_with_a_sentence),
      cmocka_unit_test(addresses_are_escaped),
      cmocka_unit_test(an_origin_is_scheme_host_and_port),
      cmocka_unit_test(refusals_say_what_to_do),
      cmocka_unit_test(waits_grow_and_honour_the_server),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
