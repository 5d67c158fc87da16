/* The table of libcurl's functions. Main thread, before any transfer.
 *
 * One row per function, all needed: everything here is in libcurl since 7.28 (2012), so a library that lacks one is not a libcurl. Refused:
 * linking to libcurl (every server would need it and what it needs), and running the curl program (no ranges in parallel without parsing
 * its output). */
#include "ops/curl_api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define ROW(name)                                                                                                                          \
  { "curl_" #name, offsetof(sh_curl_api, name) }

static const struct {
  const char *name;
  size_t offset;
} rows[] = {
    ROW(global_init),         ROW(easy_init),     ROW(easy_cleanup),   ROW(easy_reset),      ROW(easy_setopt),   ROW(easy_getinfo),
    ROW(easy_strerror),       ROW(slist_append),  ROW(slist_free_all), ROW(multi_init),      ROW(multi_cleanup), ROW(multi_add_handle),
    ROW(multi_remove_handle), ROW(multi_perform), ROW(multi_wait),     ROW(multi_info_read),
};

static void *open_any(const char *path) {
  static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
  if (path) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *lib = NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && !lib; i++) lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  return lib;
}

int sh_curl_load(const char *path, const sh_curl_api **out, sh_error *e) {
  static sh_curl_api api;
  static bool loaded;
  *out = loaded ? &api : NULL;
  if (loaded) return SH_OK;
  void *lib = open_any(path);
  if (!lib)
    return sh_fail(
        e, SH_ERR_UNSUPPORTED,
        "downloading needs libcurl, and it cannot be opened (%s); install it with `apt-get install libcurl4` (Debian, Ubuntu) or "
        "`dnf install libcurl` (openEuler, Kylin, Fedora)",
        dlerror());
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    void *p = dlsym(lib, rows[i].name);
    if (!p) {
      dlclose(lib);
      return sh_fail(e, SH_ERR_UNSUPPORTED, "%s has no %s: not libcurl 7.28 or newer", path ? path : "libcurl.so.4", rows[i].name);
    }
    memcpy((char *)&api + rows[i].offset, &p, sizeof p); /* ISO C has no cast from an object to a function pointer */
  }
  if (api.global_init(SH_CURL_GLOBAL_ALL) != SH_CURL_OK) {
    dlclose(lib);
    return sh_fail(e, SH_ERR_UNSUPPORTED, "libcurl cannot be initialised");
  }
  loaded = true;
  *out = &api;
  return SH_OK;
}
