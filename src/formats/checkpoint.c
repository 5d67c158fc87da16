/* A model on disk as one set of named tensors: a Hugging Face folder or a GGUF.
 *
 * Opened by one thread, immutable afterwards, read by all. The maps belong to the sh_st and sh_gguf objects held here; the flat list and
 * the name table point into them. Small side files are parsed at the open, so that a broken one is told at once and by name; tokenizer.json
 * (20 MB) is only mapped, because whoever needs it parses it into tables of his own and must not leave the text resident. Which file wins:
 * model.safetensors before an index (as transformers chooses), a folder's config.json before any .gguf in it. Shard names come from
 * outside: a name with a path in it is refused, so that an index cannot reach out of its folder. */
#include "formats/checkpoint.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "formats/nameindex.h"
#include "formats/safetensors.h"

#define MAX_SIDE_FILE ((size_t)64 << 20) /* bytes of config.json and its like, and of an index */
#define MAX_TEMPLATE ((size_t)4 << 20)
#define MAX_TREES ((size_t)1 << 30) /* bytes of all parsed side files */
#define MAX_SHARDS 10000

struct sh_ckpt {
  char *path;
  char *folder; /* of a GGUF; NULL: path is one */
  sh_gguf *gguf;
  sh_st **shards;     /* [n_shards] */
  char **shard_names; /* [n_shards] file names; owned */
  int n_shards;
  const sh_ftensor **tensors; /* [count] */
  int count;
  size_t bytes;
  sh_nameindex index;
  sh_arena *trees;
  const sh_json *config, *generation_config, *tokenizer_config;
  sh_map tokenizer_json;
  bool has_tokenizer_json;
  char *template_text; /* of chat_template.jinja; owned */
  const char *chat_template, *template_source;
  size_t chat_template_len;
};

/* --- Side files of a folder */

/* A JSON file that may be missing: *out stays NULL then. */
static int read_json(sh_ckpt *c, const char *name, const sh_json **out, sh_error *e) {
  char *path = sh_path_join(c->path, name), *text = NULL;
  size_t len = 0;
  int rc = path ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!rc && sh_file_exists(path)) {
    sh_json *root = NULL;
    rc = sh_file_read_regular(path, MAX_SIDE_FILE, &text, &len, e); /* names the path itself */
    if (!rc && (rc = sh_json_parse(text, len, NULL, c->trees, &root, e))) sh_fail_in(e, rc, "%s", path);
    if (!rc && !sh_json_is(root, SH_JSON_OBJECT))
      rc = sh_fail(e, SH_ERR_FORMAT, "%s: an object is wanted, but it holds %s", path, sh_json_type_phrase(root->type));
    if (!rc) *out = root;
  }
  sh_free(text);
  sh_free(path);
  return rc;
}

static int map_tokenizer(sh_ckpt *c, sh_error *e) {
  char *path = sh_path_join(c->path, "tokenizer.json");
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = 0;
  if (sh_file_exists(path)) {
    rc = sh_map_open(&c->tokenizer_json, path, e);
    c->has_tokenizer_json = !rc;
    if (!rc) sh_map_ask(c->tokenizer_json.p, c->tokenizer_json.len); /* before the weights are queued up for */
  }
  sh_free(path);
  return rc;
}

static void set_template(sh_ckpt *c, const sh_json *v) {
  if (!sh_json_is(v, SH_JSON_STRING)) return;
  c->chat_template = v->s;
  c->chat_template_len = v->len;
}

/* A string, or a list of {"name", "template"} with one named "default". */
static void choose_template(sh_ckpt *c, const sh_json *v) {
  set_template(c, v);
  for (size_t i = 0; sh_json_is(v, SH_JSON_ARRAY) && i < v->len; i++) {
    if (sh_json_eq_str(sh_json_get(&v->items[i], "name"), "default")) set_template(c, sh_json_get(&v->items[i], "template"));
  }
}

static int read_template_file(sh_ckpt *c, sh_error *e) {
  char *path = sh_path_join(c->path, "chat_template.jinja");
  if (!path) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = 0;
  if (sh_file_exists(path)) {
    rc = sh_file_read_regular(path, MAX_TEMPLATE, &c->template_text, &c->chat_template_len, e);
    if (!rc && !sh_utf8_valid(c->template_text, c->chat_template_len)) rc = sh_fail(e, SH_ERR_FORMAT, "%s is not UTF-8", path);
    if (!rc) c->chat_template = c->template_text;
  }
  sh_free(path);
  return rc;
}

/* chat_template.jinja, else tokenizer_config.json, else chat_template.json, where processors of older folders put it. */
static int read_template(sh_ckpt *c, sh_error *e) {
  static const char KEY[] = "chat_template";
  const sh_json *own = NULL;
  c->template_source = "chat_template.jinja";
  int rc = read_template_file(c, e);
  if (rc || c->chat_template) return rc;
  c->template_source = "tokenizer_config.json";
  choose_template(c, sh_json_get(c->tokenizer_config, KEY));
  if (c->chat_template) return 0;
  c->template_source = "chat_template.json";
  rc = read_json(c, c->template_source, &own, e);
  if (!rc) choose_template(c, sh_json_get(own, KEY));
  return rc;
}

static int read_side_files(sh_ckpt *c, sh_error *e) {
  c->trees = sh_arena_new(MAX_TREES);
  if (!c->trees) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = read_json(c, "config.json", &c->config, e);
  if (!rc) rc = read_json(c, "generation_config.json", &c->generation_config, e);
  if (!rc) rc = read_json(c, "tokenizer_config.json", &c->tokenizer_config, e);
  if (!rc) rc = map_tokenizer(c, e);
  if (!rc) rc = read_template(c, e);
  return rc;
}

/* --- Weights of a folder */

/* Takes name. */
static int open_shard(sh_ckpt *c, char *name, sh_error *e) {
  char *path = name ? sh_path_join(c->path, name) : NULL;
  if (!path) {
    sh_free(name);
    return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  }
  c->shard_names[c->n_shards] = name;
  c->shards[c->n_shards] = NULL;
  c->n_shards++;
  int rc;
  if (!sh_file_exists(path))
    rc = sh_fail(e, SH_ERR_NOT_FOUND, "the shard %s that model.safetensors.index.json names is missing (is the download complete?)", path);
  else rc = sh_st_open(&c->shards[c->n_shards - 1], path, e);
  sh_free(path);
  return rc;
}

static int reserve_shards(sh_ckpt *c, size_t n, sh_error *e) {
  c->shards = sh_calloc(n + 1, sizeof *c->shards);
  c->shard_names = sh_calloc(n + 1, sizeof *c->shard_names);
  return c->shards && c->shard_names ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for %zu shards", n);
}

static bool plain_file_name(const sh_json *v) {
  return sh_json_is(v, SH_JSON_STRING) && v->len >= 1 && v->len <= 255 && !memchr(v->s, 0, v->len) && !memchr(v->s, '/', v->len) &&
         !memchr(v->s, '\\', v->len) && strcmp(v->s, ".") && strcmp(v->s, "..");
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The different shard names of a weight_map, sorted: *names [*n], borrowed strings, caller frees the array with sh_free. */
static int list_shards(const sh_json *map, const char ***names, size_t *n, sh_error *e) {
  *names = NULL;
  *n = 0;
  const char **v = sh_calloc(map->len + 1, sizeof *v);
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %zu names", map->len);
  for (size_t i = 0; i < map->len; i++) {
    if (!plain_file_name(&map->members[i].value)) {
      sh_free(v);
      return sh_fail(e, SH_ERR_FORMAT, "model.safetensors.index.json: the shard of %.200s is not a plain file name in the folder",
                     map->members[i].key);
    }
    v[i] = map->members[i].value.s;
  }
  qsort(v, map->len, sizeof *v, by_text);
  for (size_t i = 0; i < map->len; i++) {
    if (*n == 0 || strcmp(v[*n - 1], v[i])) v[(*n)++] = v[i];
  }
  if (*n > MAX_SHARDS) {
    sh_free(v);
    return sh_fail(e, SH_ERR_LIMIT, "model.safetensors.index.json names %zu shards, more than %d", *n, MAX_SHARDS);
  }
  *names = v;
  return 0;
}

/* Every tensor of the index must be in the shard it is said to be in. */
static int check_weight_map(const sh_ckpt *c, const sh_json *map, sh_error *e) {
  sh_nameindex by_name;
  if (sh_nameindex_init(&by_name, (size_t)c->n_shards)) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d shards", c->n_shards);
  for (int i = 0; i < c->n_shards; i++) sh_nameindex_add(&by_name, c->shard_names[i], strlen(c->shard_names[i]), i);
  int rc = 0;
  for (size_t i = 0; i < map->len && !rc; i++) {
    const sh_json_member *m = &map->members[i];
    int32_t shard = sh_nameindex_find(&by_name, m->value.s, m->value.len);
    if (shard < 0 || !sh_st_find(c->shards[shard], m->key)) {
      rc = sh_fail(e, SH_ERR_FORMAT, "%s: tensor %.200s is not in %s, where model.safetensors.index.json puts it", c->path, m->key,
                   m->value.s);
    }
  }
  sh_nameindex_free(&by_name);
  return rc;
}

static int open_sharded(sh_ckpt *c, sh_error *e) {
  const sh_json *index = NULL, *map;
  const char **names = NULL;
  size_t n = 0;
  int rc = read_json(c, "model.safetensors.index.json", &index, e);
  if (rc) return rc;
  map = sh_json_get(index, "weight_map");
  if (!sh_json_is(map, SH_JSON_OBJECT) || map->len == 0)
    return sh_fail(e, SH_ERR_FORMAT, "%s/model.safetensors.index.json has no weight_map", c->path);
  rc = list_shards(map, &names, &n, e);
  if (!rc) rc = reserve_shards(c, n, e);
  for (size_t i = 0; i < n && !rc; i++) rc = open_shard(c, sh_strdup(names[i]), e);
  if (!rc) rc = check_weight_map(c, map, e);
  sh_free(names);
  return rc;
}

/* No allocation: running out of memory must not look like a missing file. */
static bool has_file(const sh_ckpt *c, const char *name) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/%s", c->path, name);
  return n > 0 && n < (int)sizeof path && sh_file_exists(path);
}

static int open_weights(sh_ckpt *c, sh_error *e) {
  if (has_file(c, "model.safetensors")) {
    int rc = reserve_shards(c, 1, e);
    return rc ? rc : open_shard(c, sh_strdup("model.safetensors"), e);
  }
  if (has_file(c, "model.safetensors.index.json")) return open_sharded(c, e);
  if (has_file(c, "pytorch_model.bin") || has_file(c, "pytorch_model.bin.index.json")) {
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s holds its weights as pytorch_model.bin; convert them to safetensors", c->path);
  }
  return sh_fail(
      e, SH_ERR_NOT_FOUND,
      "%s has a config.json but no weights: model.safetensors or model.safetensors.index.json is wanted (for a GGUF, name the .gguf file)",
      c->path);
}

/* --- GGUF inside a folder */

static bool is_gguf_name(const char *name) {
  size_t n = strlen(name);
  return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

/* Part k > 1 of a split set: "NAME-0000k-of-0000n.gguf". Only part 1 stands for the set. */
static bool is_later_part(const char *name) {
  const char *at = strstr(name, "-of-");
  return at && at - name >= 6 && at[-6] == '-' && strspn(at - 5, "0123456789") == 5 && strspn(at + 4, "0123456789") == 5 &&
         strcasecmp(at + 9, ".gguf") == 0 && strncmp(at - 5, "00001", 5) != 0;
}

/* The only .gguf of a folder (vision projectors, "mmproj", left aside); *out NULL when there is none. Caller frees. */
static int find_gguf(const char *dir, char **out, sh_error *e) {
  *out = NULL;
  DIR *d = opendir(dir);
  if (!d) return sh_fail(e, SH_ERR_IO, "cannot list the folder %s", dir);
  int rc = 0;
  for (struct dirent *f = readdir(d); f && !rc; f = readdir(d)) {
    if (!is_gguf_name(f->d_name) || is_later_part(f->d_name) || strncmp(f->d_name, "mmproj", 6) == 0) continue;
    if (*out) {
      rc = sh_fail(e, SH_ERR_ARG, "%s holds more than one model (%s and %s); name the .gguf file", dir, sh_path_base(*out), f->d_name);
    } else if (!(*out = sh_path_join(dir, f->d_name))) {
      rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    }
  }
  closedir(d);
  if (rc) {
    sh_free(*out);
    *out = NULL;
  }
  return rc;
}

static int open_gguf(sh_ckpt *c, const char *path, sh_error *e) {
  int rc = sh_gguf_open(&c->gguf, path, e);
  if (rc) return rc;
  const char *s = sh_path_base(path);
  c->folder = s == path ? sh_strdup(".") : s == path + 1 ? sh_strdup("/") : sh_strndup(path, (size_t)(s - path) - 1);
  if (!c->folder) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  size_t n;
  if (sh_gguf_str(c->gguf, "tokenizer.chat_template", &s, &n)) return 0;
  if (n > MAX_TEMPLATE || !sh_utf8_valid(s, n))
    return sh_fail(e, SH_ERR_FORMAT, "%s: tokenizer.chat_template is longer than %zu bytes or not UTF-8", path, MAX_TEMPLATE);
  c->chat_template = s;
  c->chat_template_len = n;
  c->template_source = "GGUF tokenizer.chat_template";
  return 0;
}

static int open_folder(sh_ckpt *c, unsigned flags, sh_error *e) {
  bool text_only = flags & SH_CKPT_TOKENIZER_ONLY;
  if (!has_file(c, "config.json") && !(text_only && has_file(c, "tokenizer.json"))) {
    char *path = NULL;
    int rc = find_gguf(c->path, &path, e);
    if (!rc && path) rc = open_gguf(c, path, e);
    else if (!rc && !text_only)
      rc = sh_fail(e, SH_ERR_NOT_FOUND, "%s has neither a config.json nor a .gguf file; a model folder or a .gguf file is wanted", c->path);
    else if (!rc) rc = read_side_files(c, e);
    sh_free(path);
    return rc;
  }
  int rc = read_side_files(c, e);
  return rc || text_only ? rc : open_weights(c, e);
}

/* --- One list of all tensors */

static int collect(sh_ckpt *c, sh_error *e) {
  int64_t n = c->gguf ? sh_gguf_count(c->gguf) : 0;
  for (int i = 0; i < c->n_shards; i++) n += sh_st_count(c->shards[i]);
  if (n > INT32_MAX - 1) return sh_fail(e, SH_ERR_LIMIT, "%s holds more than %d tensors", c->path, INT32_MAX - 1);
  c->tensors = sh_calloc((size_t)n + 1, sizeof *c->tensors);
  if (!c->tensors || sh_nameindex_init(&c->index, (size_t)n))
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for %lld tensors", (long long)n);
  for (int s = 0; s < (c->gguf ? 1 : c->n_shards); s++) {
    int count = c->gguf ? sh_gguf_count(c->gguf) : sh_st_count(c->shards[s]);
    for (int i = 0; i < count; i++) {
      const sh_ftensor *t = c->gguf ? sh_gguf_at(c->gguf, i) : sh_st_at(c->shards[s], i);
      if (sh_nameindex_add(&c->index, t->name, strlen(t->name), c->count)) {
        return sh_fail(e, SH_ERR_FORMAT, "%s: tensor %s is in two shards, the second is %s", c->path, t->name,
                       c->gguf ? "the same file" : c->shard_names[s]);
      }
      c->tensors[c->count++] = t;
      c->bytes += t->bytes; /* tensors of a file do not overlap: the sum is bounded by the maps */
    }
  }
  return 0;
}

int sh_ckpt_open(sh_ckpt **out, const char *path, unsigned flags, sh_error *e) {
  *out = NULL;
  int rc = SH_ERR_NOMEM;
  sh_ckpt *c = sh_calloc(1, sizeof *c);
  if (!c || !(c->path = sh_strdup(path))) {
    sh_fail(e, rc, "out of memory");
    goto fail;
  }
  if (sh_dir_exists(path)) rc = open_folder(c, flags, e);
  else if (!sh_file_exists(path)) rc = sh_fail(e, SH_ERR_NOT_FOUND, "%s does not exist; a model folder or a .gguf file is wanted", path);
  else if (sh_str_ends(path, ".safetensors")) rc = sh_fail(e, SH_ERR_ARG, "%s is one file of a model; name its folder", path);
  else rc = open_gguf(c, path, e);
  if (!rc) rc = collect(c, e);
  if (rc) goto fail;
  *out = c;
  return 0;
fail:
  sh_ckpt_close(c);
  return rc;
}

void sh_ckpt_close(sh_ckpt *c) {
  if (!c) return;
  sh_nameindex_free(&c->index);
  sh_free(c->tensors);
  for (int i = 0; i < c->n_shards; i++) {
    sh_st_close(c->shards[i]);
    sh_free(c->shard_names[i]);
  }
  sh_free(c->shards);
  sh_free(c->shard_names);
  sh_gguf_close(c->gguf);
  sh_free(c->template_text);
  sh_map_close(&c->tokenizer_json);
  sh_arena_free(c->trees);
  sh_free(c->folder);
  sh_free(c->path);
  sh_free(c);
}

const char *sh_ckpt_path(const sh_ckpt *c) { return c->path; }
const char *sh_ckpt_folder(const sh_ckpt *c) { return c->folder ? c->folder : c->path; }
bool sh_ckpt_is_gguf(const sh_ckpt *c) { return c->gguf != NULL; }
const sh_gguf *sh_ckpt_gguf(const sh_ckpt *c) { return c->gguf; }
const sh_json *sh_ckpt_config(const sh_ckpt *c) { return c->config; }
const sh_json *sh_ckpt_generation_config(const sh_ckpt *c) { return c->generation_config; }
const sh_json *sh_ckpt_tokenizer_config(const sh_ckpt *c) { return c->tokenizer_config; }

const char *sh_ckpt_tokenizer_json(const sh_ckpt *c, size_t *len) {
  *len = c->tokenizer_json.len;
  return c->has_tokenizer_json ? (const char *)c->tokenizer_json.p : NULL;
}

const char *sh_ckpt_chat_template(const sh_ckpt *c, size_t *len) {
  *len = c->chat_template_len;
  return c->chat_template;
}

const char *sh_ckpt_template_source(const sh_ckpt *c) { return c->chat_template ? c->template_source : NULL; }

int sh_ckpt_count(const sh_ckpt *c) { return c->count; }
const sh_ftensor *sh_ckpt_at(const sh_ckpt *c, int i) { return i >= 0 && i < c->count ? c->tensors[i] : NULL; }

int sh_ckpt_index(const sh_ckpt *c, const char *name) { return sh_nameindex_find(&c->index, name, strlen(name)); }

const sh_ftensor *sh_ckpt_find(const sh_ckpt *c, const char *name) { return sh_ckpt_at(c, sh_ckpt_index(c, name)); }

size_t sh_ckpt_bytes(const sh_ckpt *c) { return c->bytes; }

void sh_ckpt_sparse(const sh_ckpt *c, bool on) {
  for (int i = 0; i < c->n_shards; i++) {
    size_t head;
    const uint8_t *p = sh_st_header(c->shards[i], &head);
    sh_map_sparse(p, sh_st_bytes(c->shards[i]), on);
  }
}

bool sh_ckpt_file_at(const sh_ckpt *c, int i, sh_ckpt_file *out) {
  const char *path = sh_gguf_file(c->gguf, i, &out->head, &out->head_bytes, &out->bytes);
  if (path) out->name = sh_path_base(path);
  if (path || i < 0 || i >= c->n_shards) return path != NULL;
  out->name = c->shard_names[i];
  out->head = sh_st_header(c->shards[i], &out->head_bytes);
  out->bytes = sh_st_bytes(c->shards[i]);
  return true;
}

static const char *shape_text(const int64_t *dims, int n, char buf[160]) {
  int at = snprintf(buf, 160, "[");
  for (int i = 0; i < n; i++) at += snprintf(buf + at, (size_t)(160 - at), "%s%lld", i ? ", " : "", (long long)dims[i]);
  snprintf(buf + at, (size_t)(160 - at), "]");
  return buf;
}

int sh_ckpt_fail_shape(const sh_ckpt *c, const sh_ftensor *t, const int64_t *want, int n, sh_error *e) {
  char a[160], f[160];
  return sh_fail(e, SH_ERR_FORMAT, "%s: tensor %s: shape %s is wanted, %s is found", c->path, t->name, shape_text(want, n, a),
                 shape_text(t->dims, t->n_dims, f));
}
