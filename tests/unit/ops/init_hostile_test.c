/* The constructors of `sheng pull`'s transfers: what is no libcurl is refused with a sentence and leaves nothing behind, and memory that
 * runs out is an error. Where the host has no libcurl the second half is skipped. */
#include "unit/base/harness.h"

#include "base/mem.h"
#include "ops/fetch.h"

static const sh_curl_api *curl;

static void what_is_no_libcurl_is_refused_and_nothing_is_loaded(void **state) {
  (void)state;
  static const struct {
    const char *path, *word;
  } cases[] = {{"/no/such/libcurl.so", "needs libcurl"}, {"/dev/null", "needs libcurl"}, {"libm.so.6", "has no curl_global_init"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sh_error e = {0};
    const sh_curl_api *api = (const sh_curl_api *)(uintptr_t)1;
    assert_int_equal(sh_curl_load(cases[i].path, &api, &e), SH_ERR_UNSUPPORTED);
    assert_null(api);
    assert_contains(e.text, cases[i].word);
    sh_fetch *f = (sh_fetch *)(uintptr_t)1;
    assert_int_equal(sh_fetch_open(&f, &(sh_fetch_config){.endpoint = "http://127.0.0.1", .libcurl = cases[i].path}, &e),
                     SH_ERR_UNSUPPORTED);
    assert_null(f);
  }
}

static bool have_libcurl(void) {
  sh_error e = {0};
  if (sh_curl_load(NULL, &curl, &e) == 0) return true;
  print_message("           skipped: %s\n", e.text);
  return false;
}

static void a_set_of_transfers_and_a_transfer_survive_failing_memory(void **state) {
  (void)state;
  if (!have_libcurl()) skip();
  static const char *const WHAT[] = {"open", "start"};
  int failed[2] = {0};
  for (long n = 0;; n++) {
    sh_fetch *f = NULL;
    sh_error e = {0};
    sh_xfer x = {0};
    const sh_fetch_config c = {.endpoint = "http://127.0.0.1:9", .token = "secret", .session_cookie = true, .stall_s = 5};
    assert_true(n < 200);
    sh_mem_fail_after(n);
    int rc = sh_fetch_open(&f, &c, &e), at = 0;
    if (rc) assert_null(f);
    if (!rc) {
      at = 1;
      rc = sh_fetch_start(f, &x, "http://127.0.0.1:9/file", &e);
    }
    sh_mem_fail_after(-1);
    if (rc && (rc != SH_ERR_NOMEM || e.code != rc || !e.text[0])) fail_msg("%s, allocation %ld: %d %s", WHAT[at], n, rc, e.text);
    failed[at] += rc != 0;
    sh_xfer_stop(&x);
    sh_fetch_close(f);
    if (!rc) break;
  }
  assert_true(failed[0] >= 1 && failed[1] >= 3);
}

static void a_second_load_gives_the_first(void **state) {
  (void)state;
  if (!have_libcurl()) skip();
  const sh_curl_api *again;
  assert_int_equal(sh_curl_load("/no/such/libcurl.so", &again, NULL), 0);
  assert_ptr_equal(again, curl);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_no_libcurl_is_refused_and_nothing_is_loaded),
      cmocka_unit_test(a_set_of_transfers_and_a_transfer_survive_failing_memory),
      cmocka_unit_test(a_second_load_gives_the_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
