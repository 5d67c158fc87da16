/* The choice of files. Pure but for the list of GGUF files it prints.
 *
 * Only files at the root are taken by default: folders of a repository hold other formats of the same weights (onnx/, original/,
 * openvino/), each as large as what is wanted. A GGUF repository's config.json is left out, as a folder with one is read as a Hugging Face
 * folder. Refused: choosing among quantizations for the user (a wrong guess costs tens of GB). */
#include "ops/pull_select.h"

#include "base/text.h"

#include <fnmatch.h>
#include <string.h>

static const char *const side_patterns[] = {"*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"};
static const char *const about_patterns[] = {"LICENSE*", "README.md"};

static bool matches_any(const char *path, const char *const *patterns, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (fnmatch(patterns[i], path, 0) == 0) return true;
  return false;
}

static bool at_root(const char *path) { return strchr(path, '/') == NULL; }
static bool is_gguf(const char *path) { return sh_str_ends(path, ".gguf"); }
/* Weights of the language model, not of its vision projector and not an importance matrix. */
static bool is_model_gguf(const char *path) {
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
  return is_gguf(path) && strncmp(base, "mmproj", 6) != 0 && !strstr(base, "imatrix");
}

/* Length of the part of a GGUF's path that all files of one split model share: "x-00001-of-00003.gguf" gives that of "x". */
static size_t stem(const char *path) {
  size_t n = strlen(path), tail = strlen("-00001-of-00003.gguf");
  return n > tail && fnmatch("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", path + n - tail, 0) == 0 ? n - tail : n;
}

static bool same_model(const char *a, const char *b) {
  size_t n = stem(a);
  return n == stem(b) && memcmp(a, b, n) == 0;
}

static int fail_many(const sh_hub_list *list, int first, FILE *say, sh_error *e) {
  char size[32];
  int models = 0;
  for (int i = 0; i < list->n; i++) {
    if (!is_gguf(list->v[i].path)) continue;
    fprintf(say, "  %-60s %10s\n", list->v[i].path, sh_format_size(list->v[i].size, size));
    if (is_model_gguf(list->v[i].path) && (i == 0 || !same_model(list->v[i - 1].path, list->v[i].path))) models++;
  }
  return sh_fail(e, SH_ERR_ARG, "the repository has %d GGUF models (listed above); say which one, for example --include '%s'", models,
                 list->v[first].path);
}

static int choose_gguf(const sh_hub_list *list, bool *chosen, FILE *say, sh_error *e) {
  int first = -1;
  for (int i = 0; i < list->n; i++) {
    if (!is_model_gguf(list->v[i].path)) continue;
    if (first >= 0 && !same_model(list->v[first].path, list->v[i].path)) return fail_many(list, first, say, e);
    if (first < 0) first = i;
    chosen[i] = true;
  }
  if (first >= 0) return SH_OK;
  return sh_fail(e, SH_ERR_UNSUPPORTED,
                 "the repository has no *.safetensors at its root and no *.gguf, which is what sheng reads (--include "
                 "PATTERN downloads other files)");
}

/* Was a GGUF of this repository chosen before, by name? Then pulling again brings that one up to date. */
static bool has_gguf(const sh_hub_list *list, const sh_pull_manifest *old) {
  for (int i = 0; i < old->n; i++)
    if (is_model_gguf(old->v[i].path) && sh_hub_list_find(list, old->v[i].path)) return true;
  return false;
}

static int choose_default(const sh_hub_list *list, const sh_pull_manifest *old, bool *chosen, FILE *say, sh_error *e) {
  bool safetensors = false;
  for (int i = 0; i < list->n; i++) safetensors |= at_root(list->v[i].path) && sh_str_ends(list->v[i].path, ".safetensors");
  for (int i = 0; i < list->n; i++) {
    const char *path = list->v[i].path;
    if (!at_root(path)) continue;
    chosen[i] = matches_any(path, about_patterns, sizeof about_patterns / sizeof about_patterns[0]);
    if (safetensors)
      chosen[i] |= sh_str_ends(path, ".safetensors") || matches_any(path, side_patterns, sizeof side_patterns / sizeof side_patterns[0]);
  }
  return safetensors || has_gguf(list, old) ? SH_OK : choose_gguf(list, chosen, say, e);
}

static int choose_named(const sh_hub_list *list, const char *pattern, bool *chosen, sh_error *e) {
  bool found = false, folder = sh_str_ends(pattern, "/");
  for (int i = 0; i < list->n; i++) {
    const char *path = list->v[i].path;
    if (folder ? !sh_str_starts(path, pattern) : fnmatch(pattern, path, 0) != 0) continue;
    chosen[i] = found = true;
  }
  if (found) return SH_OK;
  return sh_fail(e, SH_ERR_ARG, "no file of the repository matches --include '%s' (quote patterns, so that the shell does not expand them)",
                 pattern);
}

int sh_pull_select(const sh_hub_list *list, const char *const *include, int n_include, const sh_pull_manifest *old, bool *chosen, FILE *say,
                   sh_error *e) {
  memset(chosen, 0, (size_t)list->n * sizeof *chosen);
  if (list->n == 0) return sh_fail(e, SH_ERR_NOT_FOUND, "the repository is empty");
  int rc = n_include ? SH_OK : choose_default(list, old, chosen, say, e);
  for (int i = 0; rc == SH_OK && i < n_include; i++) rc = choose_named(list, include[i], chosen, e);
  for (int i = 0; rc == SH_OK && i < old->n; i++) {
    const sh_hub_file *f = sh_hub_list_find(list, old->v[i].path);
    if (f) chosen[f - list->v] = true;
  }
  return rc;
}
