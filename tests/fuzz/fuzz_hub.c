/* Fuzz driver of the hubs' listings. Beyond "no crash": every path that is accepted may be written below a folder, and sizes and hashes are
 * of the form that the rest relies on. */
#include "base/text.h"
#include "ops/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  static char endpoint[] = "https://hub.test";
  for (int kind = SH_HUB_HF; kind <= SH_HUB_MODELERS; kind++) {
    const sh_hub h = {(sh_hub_kind)kind, "the hub", "hub", endpoint, NULL, "HUB_TOKEN", "main"};
    sh_hub_list l = {0};
    sh_hub_dirs dirs = {0};
    sh_error e = {0};
    int entries;
    int rc = sh_hub_read_page(&h, (const char *)data, n, &l, &dirs, &entries, &e);
    if (rc) must(e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    else must(l.n + dirs.n <= entries || kind == SH_HUB_HF, "there are no more files than entries");
    for (int i = 0; i < l.n; i++) {
      const sh_hub_file *f = &l.v[i];
      char at[2048];
      int len = snprintf(at, sizeof at, "/%s/", f->path);
      must(!strstr(at, "/../") && !strstr(at, "//") && !strstr(at, "/./") && len > 2 && len < (int)sizeof at,
           "a path stays below its folder");
      must(f->size >= 0, "a size is a size");
      must(strlen(f->hash) == (f->hash_kind == SH_SHA1 ? 40u : f->hash_kind == SH_SHA256 ? 64u : 0u), "a hash is whole or not there");
      char *url = sh_hub_file_url(&h, "o/n", "main", f->path);
      must(url && sh_url_same_origin(url, endpoint) && !strpbrk(url, " \"<>\\"), "an address is escaped and at the hub");
      sh_free(url);
    }
    sh_free((void *)dirs.v);
    sh_hub_list_free(&l);
  }
  return 0;
}
