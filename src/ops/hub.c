/* The APIs of the hubs. Main thread; the calls go through ops/fetch.
 *
 *   Hugging Face  /api/models/NAME/revision/REV gives the commit ("sha"), /api/models/NAME/tree/REV?recursive=true the files: {type, path,
 *                 size, oid, lfs: {oid, size}}, with the next page in the Link header; bytes at /NAME/resolve/REV/PATH. oid is git's blob
 *                 id, lfs.oid the SHA-256.
 *   ModelScope    /api/v1/models/NAME/repo/files?Revision=&Recursive=true: {Code, Message, Data: {Files: [{Path, Type, Size, Sha256}]}}.
 *                 An answer stops at 3000 entries without saying so; then the folders are listed one by one with Root=. Bytes at
 *                 /api/v1/models/NAME/repo?Revision=&FilePath=. Errors may come with status 200 and a Code. The token goes as a bearer
 *                 token and as the cookie m_session_id, as its own client does.
 *   Modelers      /api/v1/file/NAME?ref=&path=: {data: {tree: [{type: "file"|"dir", path, size, etag, is_lfs}], last_commit: {commit:
 *                 {commit_sha}}}}, one folder per call; etag is the SHA-256 of an LFS file and else git's blob id. Bytes at
 *                 /api/v1/file/NAME/REV/media/PATH. Taken from the hub's own client, openmind_hub 1.3.0 on PyPI.
 *
 * What a hub says is outside input: file names are checked before anything is done with them, sizes and hashes must be of the right form.
 * Refused: asking for every file's headers (HEAD) for its size and hash, which is a request per file where the listings have it all. */
#include "ops/hub.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWER = 64 << 20, MAX_REQUESTS = 2000, MAX_FILES = 200000, MODELSCOPE_LIMIT = 3000, MAX_PATH = 1024, MAX_PART = 255 };

/* --- Names ---------------------------------------------------------------------------------------------------------------------------- */

static bool name_char(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool sh_hub_name_ok(const char *name) {
  int parts = 1;
  size_t in_part = 0;
  if (strlen(name) > MAX_PART) return false;
  for (const char *s = name; *s; s++) {
    if (*s == '/') {
      if (in_part == 0 || ++parts > 3) return false;
      in_part = 0;
    } else {
      if (!name_char(*s) || (in_part == 0 && *s == '.')) return false;
      in_part++;
    }
  }
  return in_part > 0;
}

static bool part_is(const char *p, size_t n, const char *word) { return n == strlen(word) && memcmp(p, word, n) == 0; }

const char *sh_hub_path_check(const char *path, size_t n) {
  if (n == 0) return "is empty";
  if (n > MAX_PATH) return "is longer than 1024 bytes";
  if (!sh_utf8_valid(path, n)) return "is not UTF-8";
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)path[i] < ' ' || path[i] == 0x7f) return "holds a control character";
  if (path[0] == '/') return "is absolute";
  for (size_t at = 0; at <= n;) {
    const char *slash = memchr(path + at, '/', n - at);
    size_t len = slash ? (size_t)(slash - path) - at : n - at;
    if (len == 0) return "has an empty part";
    if (len > MAX_PART) return "has a part longer than 255 bytes";
    if (part_is(path + at, len, ".") || part_is(path + at, len, "..")) return "leaves its folder";
    if (part_is(path + at, len, ".git")) return "is inside .git";
    if (at == 0 && (part_is(path, len, ".sheng-pull") || part_is(path, len, ".sheng-pull.json"))) return "is a name of sheng's own";
    at += len + 1;
  }
  return NULL;
}

/* --- The list ------------------------------------------------------------------------------------------------------------------------- */

void sh_hub_list_free(sh_hub_list *list) {
  sh_free(list->v);
  sh_arena_free(list->arena);
  *list = (sh_hub_list){0};
}

static int by_path(const void *a, const void *b) { return strcmp(((const sh_hub_file *)a)->path, ((const sh_hub_file *)b)->path); }

const sh_hub_file *sh_hub_list_find(const sh_hub_list *list, const char *path) {
  const sh_hub_file key = {.path = path};
  return list->n ? bsearch(&key, list->v, (size_t)list->n, sizeof *list->v, by_path) : NULL;
}

static bool is_hex(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f') || (s[i] >= 'A' && s[i] <= 'F'))) return false;
  return true;
}

/* A hash as hex in a JSON string, with or without "sha256:" before it. Not there, or of another form: none. */
static void set_hash(sh_hub_file *file, const sh_json *v, size_t bytes) {
  if (!sh_json_is(v, SH_JSON_STRING)) return;
  const char *s = v->s;
  size_t n = v->len;
  if (n == 71 && memcmp(s, "sha256:", 7) == 0) s += 7, n -= 7;
  if (n != 2 * bytes || !is_hex(s, n)) return;
  for (size_t i = 0; i < n; i++) file->hash[i] = (char)(s[i] >= 'A' && s[i] <= 'F' ? s[i] + 32 : s[i]);
  file->hash[n] = 0;
  file->hash_kind = bytes == 20 ? SH_SHA1 : SH_SHA256;
}

static int add_file(sh_hub_list *list, const sh_hub_file *file, const sh_json *path, sh_error *e) {
  if (list->n >= MAX_FILES) return sh_fail(e, SH_ERR_LIMIT, "the repository has more than %d files", MAX_FILES);
  if (list->n == list->private_cap) {
    int cap = list->private_cap ? 2 * list->private_cap : 64;
    sh_hub_file *v = sh_realloc(list->v, (size_t)cap * sizeof *v);
    if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the list of files");
    list->v = v;
    list->private_cap = cap;
  }
  sh_hub_file *to = &list->v[list->n];
  *to = *file;
  if (!(to->path = sh_arena_strdup(list->arena, path->s, path->len)))
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for the list of files");
  list->n++;
  return SH_OK;
}

static int add_dir(sh_hub_list *list, sh_hub_dirs *dirs, const char *path, size_t n, sh_error *e) {
  for (int i = 0; i < dirs->n; i++)
    if (strlen(dirs->v[i]) == n && memcmp(dirs->v[i], path, n) == 0) return SH_OK;
  if (dirs->n >= MAX_REQUESTS) return sh_fail(e, SH_ERR_LIMIT, "the repository has more than %d folders", MAX_REQUESTS);
  if (dirs->n == dirs->cap) {
    int cap = dirs->cap ? 2 * dirs->cap : 16;
    const char **v = sh_realloc((void *)dirs->v, (size_t)cap * sizeof *v);
    if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the list of folders");
    dirs->v = v;
    dirs->cap = cap;
  }
  if (!(dirs->v[dirs->n] = sh_arena_strdup(list->arena, path, n))) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the list of folders");
  dirs->n++;
  return SH_OK;
}

/* One entry of a listing: a file with its size and hash, a folder, or something that is passed over. */
static int read_entry(const sh_hub *h, const sh_json *v, sh_hub_list *list, sh_hub_dirs *dirs, sh_error *e) {
  bool scope = h->kind == SH_HUB_MODELSCOPE;
  const sh_json *type = sh_json_get(v, scope ? "Type" : "type"), *path = sh_json_get(v, scope ? "Path" : "path");
  const sh_json *size = sh_json_get(v, scope ? "Size" : "size"), *lfs = sh_json_get(v, "lfs");
  bool is_dir = sh_json_eq_str(type, "directory") || sh_json_eq_str(type, "tree") || sh_json_eq_str(type, "dir");
  if (!sh_json_is(path, SH_JSON_STRING)) return sh_fail(e, SH_ERR_FORMAT, "an entry of the list of files has no path");
  const char *wrong = sh_hub_path_check(path->s, path->len);
  if (wrong) {
    sh_buf shown;
    sh_buf_init(&shown, 256);
    sh_utf8_sanitize(path->s, path->len < 200 ? path->len : 200, &shown);
    for (size_t i = 0; i < shown.len; i++)
      if ((unsigned char)shown.p[i] < ' ' || shown.p[i] == 0x7f) shown.p[i] = '?';
    int rc = sh_fail(e, SH_ERR_FORMAT, "the hub names a file '%s', which %s; nothing of this repository is downloaded",
                     shown.p ? shown.p : "", wrong);
    sh_buf_free(&shown);
    return rc;
  }
  if (is_dir) return dirs ? add_dir(list, dirs, path->s, path->len, e) : SH_OK;
  sh_hub_file file = {0};
  if (sh_json_is(sh_json_get(lfs, "size"), SH_JSON_NUMBER)) size = sh_json_get(lfs, "size");
  if (sh_json_int(size, &file.size) != SH_OK || file.size < 0 || file.size > INT64_MAX / 4)
    return sh_fail(e, SH_ERR_FORMAT, "the hub gives no usable size for %s", path->s);
  if (h->kind == SH_HUB_HF) {
    if (lfs) set_hash(&file, sh_json_get(lfs, "oid"), 32);
    else set_hash(&file, sh_json_get(v, "oid"), 20);
  } else if (scope) {
    set_hash(&file, sh_json_get(v, "Sha256"), 32);
  } else {
    const sh_json *is_lfs = sh_json_get(v, "is_lfs");
    set_hash(&file, sh_json_get(v, "etag"), is_lfs && is_lfs->b ? 32 : 20);
  }
  return add_file(list, &file, path, e);
}

static int fail_shape(const sh_hub *h, sh_error *e) {
  return sh_fail(e, SH_ERR_FORMAT, "the answer of %s is not the list of files its API describes; is %s really such a hub?", h->label,
                 h->endpoint);
}

static const sh_json *find_entries(const sh_hub *h, const sh_json *root, sh_hub_list *list) {
  if (h->kind == SH_HUB_HF) return root;
  if (h->kind == SH_HUB_MODELSCOPE) return sh_json_path(root, "Data.Files");
  const sh_json *commit = sh_json_path(root, "data.last_commit.commit.commit_sha");
  if (sh_json_is(commit, SH_JSON_STRING) && commit->len == 40 && is_hex(commit->s, 40) && !list->commit[0])
    memcpy(list->commit, commit->s, 41);
  return sh_json_path(root, "data.tree");
}

static sh_arena *json_arena(size_t n) { return sh_arena_new((64u << 20) + n * 64); }

int sh_hub_read_page(const sh_hub *h, const char *text, size_t n, sh_hub_list *list, sh_hub_dirs *dirs, int *entries, sh_error *e) {
  sh_json *root;
  sh_arena *a = json_arena(n);
  if (!list->arena) list->arena = sh_arena_new(1u << 30);
  if (!a || !list->arena) {
    sh_arena_free(a);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for the list of files");
  }
  int rc = sh_json_parse(text, n, NULL, a, &root, e);
  if (rc == SH_ERR_FORMAT) rc = fail_shape(h, e);
  if (rc == SH_OK) {
    const sh_json *code = sh_json_get(root, "Code"), *message = sh_json_get(root, "Message");
    const sh_json *v = find_entries(h, root, list);
    int64_t number;
    if (h->kind == SH_HUB_MODELSCOPE && sh_json_int(code, &number) == SH_OK && number != 200)
      rc = sh_fail(e, SH_ERR_IO, "%s answered code %lld: %s", h->label, (long long)number,
                   sh_json_is(message, SH_JSON_STRING) ? message->s : "no reason given");
    else if (!sh_json_is(v, SH_JSON_ARRAY)) rc = fail_shape(h, e);
    *entries = rc == SH_OK ? (int)v->len : 0;
    for (size_t i = 0; rc == SH_OK && i < v->len; i++) rc = read_entry(h, &v->items[i], list, dirs, e);
  }
  sh_arena_free(a);
  return rc;
}

/* Sorts, drops what was named twice, refuses what contradicts itself. */
static int settle(sh_hub_list *list, sh_error *e) {
  if (list->n) qsort(list->v, (size_t)list->n, sizeof *list->v, by_path);
  int to = 0;
  for (int i = 0; i < list->n; i++) {
    const sh_hub_file *f = &list->v[i], *last = to ? &list->v[to - 1] : NULL;
    if (last && strcmp(last->path, f->path) == 0) {
      if (last->size != f->size || strcmp(last->hash, f->hash) != 0)
        return sh_fail(e, SH_ERR_FORMAT, "the hub lists %s twice, with different sizes or hashes", f->path);
      continue;
    }
    list->v[to++] = *f;
  }
  list->n = to;
  return SH_OK;
}

/* --- The calls ------------------------------------------------------------------------------------------------------------------------ */

static void put_url(sh_buf *b, const sh_hub *h, const char *before, const char *name, const char *after) {
  sh_buf_printf(b, "%s%s", h->endpoint, before);
  sh_url_escape(b, name, "/");
  sh_buf_puts(b, after);
}

/* A call that ended without an answer worth explaining: whose, and where nothing came at all, what to look at. */
static int no_answer(const sh_hub *h, const sh_fetch_reply *reply, int rc, sh_error *e) {
  if (!e || !reply->unreachable) return sh_fail_in(e, rc, "%s", h->endpoint);
  char why[sizeof e->text];
  memcpy(why, e->text, sizeof why);
  return sh_fail(e, rc, "%s: %s; check the network (behind a proxy: https_proxy), or name another hub or a mirror with --from", h->endpoint,
                 why);
}

/* One call: its text to `body`. A refusal is explained. */
static int call(const sh_hub *h, sh_fetch *f, const char *url, const char *name, const char *revision, sh_buf *body, char **next,
                sh_error *e) {
  sh_fetch_reply reply;
  int rc = sh_fetch_text(f, url, body, &reply, e);
  if (next) *next = reply.next_url;
  else sh_free(reply.next_url);
  if (rc == SH_OK || rc == SH_ERR_CANCELLED) return rc;
  if (reply.status >= 400) return sh_hub_explain(h, name, revision, NULL, reply.status, reply.error_code, reply.message, e);
  return no_answer(h, &reply, rc, e);
}

/* The commit a revision stands for, so that all files are of one state even if someone pushes during the pull. A hub without this call
 * (404 that does not speak of a revision or a repository) is used without. */
static int hf_commit(const sh_hub *h, sh_fetch *f, const char *name, const char *revision, sh_hub_list *list, sh_error *e) {
  sh_buf url, body;
  sh_buf_init(&url, 1 << 16);
  sh_buf_init(&body, MAX_ANSWER);
  put_url(&url, h, "/api/models/", name, "/revision/");
  sh_url_escape(&url, revision, "");
  sh_fetch_reply reply = {0};
  int rc = url.failed ? sh_fail(e, SH_ERR_NOMEM, "out of memory") : sh_fetch_text(f, url.p, &body, &reply, e);
  sh_free(reply.next_url);
  if (rc == SH_OK) {
    sh_json *root;
    sh_arena *a = json_arena(body.len);
    if (a && sh_json_parse(body.p ? body.p : "", body.len, NULL, a, &root, NULL) == SH_OK) {
      const sh_json *sha = sh_json_get(root, "sha");
      if (sh_json_is(sha, SH_JSON_STRING) && sha->len == 40 && is_hex(sha->s, 40)) memcpy(list->commit, sha->s, 41);
    }
    sh_arena_free(a);
  } else if (rc != SH_ERR_CANCELLED && reply.status >= 400) {
    bool no_such_call = reply.status == 404 && !reply.error_code[0];
    rc = no_such_call ? SH_OK : sh_hub_explain(h, name, revision, NULL, reply.status, reply.error_code, reply.message, e);
  } else if (rc != SH_ERR_CANCELLED) {
    no_answer(h, &reply, rc, e);
  }
  sh_buf_free(&url);
  sh_buf_free(&body);
  return rc;
}

/* The next page's address, at this hub whatever host the link names: a mirror passes on the links of the hub behind it. */
static void rebase(const sh_hub *h, const char *link, sh_buf *url) {
  const char *path = strstr(link, "/api/");
  sh_buf_reset(url);
  if (sh_url_same_origin(link, h->endpoint) || !path) sh_buf_puts(url, link);
  else sh_buf_printf(url, "%s%s", h->endpoint, path);
}

static int list_hf(const sh_hub *h, sh_fetch *f, const char *name, const char *revision, sh_hub_list *list, sh_error *e) {
  int rc = hf_commit(h, f, name, revision, list, e), entries;
  if (rc != SH_OK) return rc;
  sh_buf url, body;
  sh_buf_init(&url, 1 << 16);
  sh_buf_init(&body, MAX_ANSWER);
  put_url(&url, h, "/api/models/", name, "/tree/");
  sh_url_escape(&url, list->commit[0] ? list->commit : revision, "");
  sh_buf_puts(&url, "?recursive=true");
  for (int page = 0; rc == SH_OK; page++) {
    char *next = NULL;
    if (url.failed) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    else if (page >= MAX_REQUESTS) rc = sh_fail(e, SH_ERR_LIMIT, "the list of files has more than %d pages", MAX_REQUESTS);
    else rc = call(h, f, url.p, name, revision, &body, &next, e);
    if (rc == SH_OK) rc = sh_hub_read_page(h, body.p ? body.p : "", body.len, list, NULL, &entries, e);
    if (rc == SH_OK && next) rebase(h, next, &url);
    bool more = next != NULL;
    sh_free(next);
    if (!more) break;
  }
  sh_buf_free(&url);
  sh_buf_free(&body);
  return rc;
}

static void dir_url(const sh_hub *h, const char *name, const char *revision, const char *dir, bool recursive, sh_buf *url) {
  sh_buf_reset(url);
  if (h->kind == SH_HUB_MODELSCOPE) {
    put_url(url, h, "/api/v1/models/", name, "/repo/files?Revision=");
    sh_url_escape(url, revision, "");
    sh_buf_printf(url, "&Recursive=%s", recursive ? "true" : "false");
    if (dir[0]) sh_buf_puts(url, "&Root=");
  } else {
    put_url(url, h, "/api/v1/file/", name, "?ref=");
    sh_url_escape(url, revision, "");
    sh_buf_puts(url, "&path=");
  }
  sh_url_escape(url, dir, "");
}

/* ModelScope and Modelers: the root, then every folder an answer named. */
static int walk(const sh_hub *h, sh_fetch *f, const char *name, const char *revision, bool recursive, sh_hub_list *list, int *entries,
                sh_error *e) {
  sh_hub_dirs dirs = {0};
  sh_buf url, body;
  sh_buf_init(&url, 1 << 16);
  sh_buf_init(&body, MAX_ANSWER);
  int rc = SH_OK;
  for (int i = -1; rc == SH_OK && i < dirs.n; i++) {
    dir_url(h, name, revision, i < 0 ? "" : dirs.v[i], recursive, &url);
    rc = url.failed ? sh_fail(e, SH_ERR_NOMEM, "out of memory") : call(h, f, url.p, name, revision, &body, NULL, e);
    if (rc == SH_OK) rc = sh_hub_read_page(h, body.p ? body.p : "", body.len, list, recursive ? NULL : &dirs, entries, e);
    if (rc == SH_OK && !recursive && h->kind == SH_HUB_MODELSCOPE && *entries >= MODELSCOPE_LIMIT)
      rc =
          sh_fail(e, SH_ERR_LIMIT, "a folder of %s has %d entries or more, and ModelScope lists no more than that", name, MODELSCOPE_LIMIT);
  }
  sh_free((void *)dirs.v);
  sh_buf_free(&url);
  sh_buf_free(&body);
  return rc;
}

int sh_hub_list_files(const sh_hub *h, sh_fetch *f, const char *name, const char *revision, sh_hub_list *list, sh_error *e) {
  int rc, entries = 0;
  if (h->kind == SH_HUB_HF) {
    rc = list_hf(h, f, name, revision, list, e);
  } else {
    bool at_once = h->kind == SH_HUB_MODELSCOPE;
    rc = walk(h, f, name, revision, at_once, list, &entries, e);
    if (rc == SH_OK && at_once && entries >= MODELSCOPE_LIMIT) {
      list->n = 0;
      rc = walk(h, f, name, revision, false, list, &entries, e);
    }
  }
  return rc == SH_OK ? settle(list, e) : rc;
}

char *sh_hub_file_url(const sh_hub *h, const char *name, const char *revision, const char *path) {
  sh_buf b;
  sh_buf_init(&b, 1 << 16);
  switch (h->kind) {
  case SH_HUB_HF:
    put_url(&b, h, "/", name, "/resolve/");
    sh_url_escape(&b, revision, "");
    sh_buf_putc(&b, '/');
    sh_url_escape(&b, path, "/");
    break;
  case SH_HUB_MODELSCOPE:
    put_url(&b, h, "/api/v1/models/", name, "/repo?Revision=");
    sh_url_escape(&b, revision, "");
    sh_buf_puts(&b, "&FilePath=");
    sh_url_escape(&b, path, "");
    break;
  case SH_HUB_MODELERS:
    put_url(&b, h, "/api/v1/file/", name, "/");
    sh_url_escape(&b, revision, "");
    sh_buf_puts(&b, "/media/");
    sh_url_escape(&b, path, "/");
    break;
  }
  char *url = sh_buf_detach(&b);
  sh_buf_free(&b);
  return url;
}

/* --- Refusals ------------------------------------------------------------------------------------------------------------------------- */

/* The page a person opens for this repository. */
static void page_of(const sh_hub *h, const char *name, char *out, size_t n) {
  snprintf(out, n, "%s%s/%s", h->endpoint, h->kind == SH_HUB_HF ? "" : "/models", name);
}

int sh_hub_explain(const sh_hub *h, const char *name, const char *revision, const char *what, long status, const char *error_code,
                   const char *message, sh_error *e) {
  char page[400], said[300] = "";
  page_of(h, name, page, sizeof page);
  if (message[0]) snprintf(said, sizeof said, " (it says: %s)", message);
  bool gated = strcmp(error_code, "GatedRepo") == 0;
  if (gated || status == 403) {
    if (h->token)
      return sh_fail(e, SH_ERR_ARG,
                     "%s does not let this token read %s%s; open %s and accept the terms there (or ask its owner for access) "
                     "with the account of %s, then run the same command again",
                     h->label, name, said, page, h->token_var);
    return sh_fail(e, SH_ERR_ARG,
                   "%s gives %s only to accounts that have access%s; open %s, accept the terms, and put a token of that "
                   "account into %s",
                   h->label, name, said, page, h->token_var);
  }
  if (status == 401 && h->token)
    return sh_fail(e, SH_ERR_ARG,
                   "%s does not accept the token in %s, or %s does not exist%s; check the name at %s and make a new token with "
                   "read access",
                   h->label, h->token_var, name, said, page);
  if (status == 401)
    return sh_fail(e, SH_ERR_ARG,
                   "%s says that %s does not exist or is private%s; check the spelling at %s, or put a token that may read it "
                   "into %s",
                   h->label, name, said, page, h->token_var);
  if (status == 404 && strcmp(error_code, "RevisionNotFound") == 0)
    return sh_fail(e, SH_ERR_NOT_FOUND, "%s has no revision '%s'%s; --revision takes a branch, a tag or a commit (usual is %s)", page,
                   revision, said, h->main_revision);
  if (status == 404 && what)
    return sh_fail(e, SH_ERR_NOT_FOUND,
                   "%s lists %s but does not have it%s; the repository changed during the pull: run the same command again", page, what,
                   said);
  if (status == 404)
    return sh_fail(e, SH_ERR_NOT_FOUND,
                   "%s has no model %s, or not the revision '%s'%s; check the name at %s (private models need a token in "
                   "%s)",
                   h->label, name, revision, said, page, h->token_var);
  return sh_fail(e, SH_ERR_IO, "%s answered %ld%s for %s%s%s", h->label, status, said, name, what ? "/" : "", what ? what : "");
}
