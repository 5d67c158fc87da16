/* `sheng logits MODEL --ids FILE --out F.safetensors`: runs one list of token ids through a model and writes float32 `logits` [T or 1,
 * vocab].
 *
 * Runs on the main thread; it drives the model itself, without the engine, so that what it writes is the forward pass and nothing else (no
 * sampling, no masks, no cache of prefixes). The prompt goes through in chunks of --chunk tokens; a chunk's size changes no bit of the
 * result on the CPU, which the option makes easy to check.
 *
 * Memory: with --all the result is one buffer of T * vocab * 4 bytes, because the file is written in one piece, atomically. The size is
 * known before anything is computed and compared with the memory of the machine or its cgroup; what does not fit is refused with both
 * numbers. Everything else is bounded by the chunk. */
#include "cli/logits.h"

#include "cli/cli.h"
#include "base/file.h"
#include "base/pool.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "formats/kv.h"
#include "formats/panel.h"

enum { MAX_CHUNK = 65536, PAGE_SIZE = 16 };
static const size_t MAX_IDS_FILE = 64u << 20; /* bytes: some five million ids */

typedef struct logits_opts {
  const char *ids, *out, *cpu, *cache_dir, *head, *kv_cache_dtype;
  bool all, exact;
  int64_t chunk, threads;
} logits_opts;

static const logits_opts DEFAULTS = {.cpu = "native", .head = "auto", .kv_cache_dtype = "auto", .chunk = 256};

#define AT(field) offsetof(logits_opts, field)
static const sh_opt TABLE[] = {
    {"ids", NULL, SH_OPT_STR, AT(ids), 0, 0, NULL, NULL, "Input and output", "FILE", "File with a JSON array of token ids."},
    {"out", "o", SH_OPT_STR, AT(out), 0, 0, NULL, NULL, "Input and output", "FILE",
     "safetensors file to write: float32 logits [T or 1, vocab]."},
    {"all", NULL, SH_OPT_FLAG, AT(all), 0, 0, NULL, NULL, "Input and output", NULL,
     "Write the logits of every position, not only of the last."},
    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, NULL, "Computation", "TYPE", SH_HEAD_HELP},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, NULL, "Computation", "TYPE", SH_KV_HELP},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, NULL, "Computation", NULL, "float32 everywhere: the reference numbers."},
    {"chunk", NULL, SH_OPT_INT, AT(chunk), 1, MAX_CHUNK, NULL, NULL, "Computation", "N", "Tokens of one step."},
    {"threads", NULL, SH_OPT_INT, AT(threads), 0, 1024, NULL, NULL, "Computation", "N", "Threads; 0 is every usable core."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", NULL, "Computation", "LEVEL", "Instruction sets to use."},
    {"cache-dir", NULL, SH_OPT_STR, AT(cache_dir), 0, 0, NULL, "SHENG_CACHE_DIR", "Computation", "FOLDER",
     "Where repacked weights are kept for the next start; default: .sheng-cache in the model's folder. Empty: in memory."},
    {0},
};
#undef AT

/* ---- The ids ---- */

/* Reads FILE into *ids (caller frees with sh_free). */
static int ids_from_json(const sh_json *root, const char *path, int32_t **ids, int *n_ids, sh_error *e) {
  if (!sh_json_is(root, SH_JSON_ARRAY))
    return sh_fail(e, SH_ERR_ARG, "%s holds a JSON %s, wanted an array of token ids", path, sh_json_type_name(root->type));
  if (root->len == 0) return sh_fail(e, SH_ERR_ARG, "%s holds an empty array, wanted at least one token id", path);
  if (root->len > INT32_MAX) return sh_fail(e, SH_ERR_LIMIT, "%s holds %zu ids, at most %d can be used", path, root->len, INT32_MAX);
  *ids = sh_calloc(root->len, sizeof **ids);
  if (!*ids) return sh_fail(e, SH_ERR_NOMEM, "no memory for %zu ids", root->len);
  for (size_t i = 0; i < root->len; i++) {
    const sh_json *v = &root->items[i];
    int64_t id;
    if (sh_json_int(v, &id) < 0 || id < 0 || id > INT32_MAX)
      return sh_fail(e, SH_ERR_ARG, "%s: item %zu is %s%s%.40s, wanted a token id", path, i, sh_json_type_name(v->type),
                     v->type == SH_JSON_NUMBER ? " " : "", v->type == SH_JSON_NUMBER ? v->s : "");
    (*ids)[i] = (int32_t)id;
  }
  *n_ids = (int)root->len;
  return 0;
}

static int read_ids(const char *path, int32_t **ids, int *n_ids, sh_error *e) {
  char *text = NULL;
  size_t len;
  sh_json *root;
  sh_arena *a = NULL;
  int rc = sh_file_read(path, MAX_IDS_FILE, &text, &len, e);
  if (rc < 0) return rc;
  a = sh_arena_new((size_t)1 << 30);
  rc = a ? sh_json_parse(text, len, NULL, a, &root, e) : sh_fail(e, SH_ERR_NOMEM, "no memory to read %s", path);
  if (rc < 0) sh_fail_in(e, rc, "%s", path);
  else rc = ids_from_json(root, path, ids, n_ids, e);
  sh_arena_free(a);
  sh_free(text);
  return rc;
}

static int check_ids(const sh_config *c, const char *path, const int32_t *ids, int n, sh_error *e) {
  if (c->max_position > 0 && n > c->max_position)
    return sh_fail(e, SH_ERR_LIMIT, "%s holds %d ids; the model is made for at most %d", path, n, c->max_position);
  for (int i = 0; i < n; i++)
    if (ids[i] >= c->vocab_size)
      return sh_fail(e, SH_ERR_ARG, "%s: item %d is id %d; the model's vocabulary has %d (0 to %d)", path, i, ids[i], c->vocab_size,
                     c->vocab_size - 1);
  return 0;
}

/* ---- The run ---- */

static int check_memory(const sh_model *m, const logits_opts *o, sh_kv_type kv, int n, int n_rows, sh_error *e) {
  size_t result = (size_t)n_rows * (size_t)sh_model_config(m)->vocab_size * sizeof(float);
  size_t other =
      (size_t)n * sh_model_kv_bytes_per_token(m, kv) + sh_model_state_bytes(m) + sh_model_scratch_bytes(m, (int)o->chunk, (int)o->chunk);
  int64_t limit = sh_memory_limit();
  if (limit <= 0 || result + other < (size_t)limit) return 0;
  char need[32], rows[32], have[32];
  return sh_fail(e, SH_ERR_LIMIT, "%d tokens need %s (%s of it the logits of %d rows of %d), the memory is %s; %s", n,
                 sh_format_size((int64_t)(result + other), need), sh_format_size((int64_t)result, rows), n_rows,
                 sh_model_config(m)->vocab_size, sh_format_size(limit, have),
                 o->all ? "use fewer ids or leave out --all" : "use fewer ids or a smaller --chunk");
}

/* Feeds the ids in chunks into logits[n_rows, V] (n_rows is n with --all, else 1). */
static int feed(sh_model *m, const logits_opts *o, const int32_t *ids, int n, int32_t *pages, int32_t *rows, float *logits, sh_error *e) {
  size_t V = (size_t)sh_model_config(m)->vocab_size;
  int chunk = (int)o->chunk;
  for (int pos = 0; pos < n; pos += chunk) {
    int count = n - pos < chunk ? n - pos : chunk;
    bool last = pos + count == n;
    int n_out = o->all ? count : last ? 1 : 0;
    for (int i = 0; i < n_out; i++) rows[i] = o->all ? i : count - 1;
    sh_seq seq = {.row = 0, .count = count, .pos = pos, .slot = 0, .pages = pages};
    sh_batch b = {.n_seqs = 1, .seqs = &seq, .n_tokens = count, .ids = ids + pos, .n_out = n_out, .out_rows = rows};
    int rc = sh_model_forward(m, &b, o->all ? logits + (size_t)pos * V : logits, e);
    if (rc < 0) return rc;
  }
  return 0;
}

static int run(sh_model *m, logits_opts *o, sh_kv_type kv, const int32_t *ids, int n, sh_error *e) {
  int n_rows = o->all ? n : 1, n_pages = (n - 1) / PAGE_SIZE + 1;
  int V = sh_model_config(m)->vocab_size;
  if (o->chunk > n) o->chunk = n;
  int32_t *pages = NULL, *rows = NULL;
  float *logits = NULL;
  sh_model_sizes sizes = {.page_size = PAGE_SIZE,
                          .n_pages = n_pages,
                          .n_slots = 1,
                          .kv_type = kv,
                          .max_tokens = (int)o->chunk,
                          .max_seqs = 1,
                          .max_out = (int)o->chunk,
                          .max_context = n};
  int rc = check_memory(m, o, kv, n, n_rows, e);
  if (rc < 0) return rc;
  pages = sh_calloc((size_t)n_pages, sizeof *pages);
  rows = sh_calloc((size_t)o->chunk, sizeof *rows);
  logits = sh_malloc((size_t)n_rows * (size_t)V * sizeof *logits);
  if (!pages || !rows || !logits) {
    rc = sh_fail(e, SH_ERR_NOMEM, "no memory for the logits of %d rows of %d", n_rows, V);
    goto done;
  }
  for (int i = 0; i < n_pages; i++) pages[i] = i;
  rc = sh_model_reserve(m, &sizes, e);
  if (rc == 0) rc = sh_model_slot_zero(m, 0, e);
  if (rc == 0) rc = sh_model_read_wait(m, e);
  if (rc == 0) rc = feed(m, o, ids, n, pages, rows, logits, e);
  if (rc < 0) goto done;
  sh_ftensor t = {.name = "logits",
                  .type = SH_F32,
                  .type_name = "F32",
                  .n_dims = 2,
                  .dims = {n_rows, V},
                  .data = (const uint8_t *)logits,
                  .bytes = (size_t)n_rows * (size_t)V * sizeof *logits};
  rc = sh_st_write(o->out, &t, 1, e);
done:
  sh_free(logits);
  sh_free(rows);
  sh_free(pages);
  return rc;
}

/* Opens what is needed, cheapest first, so that a wrong file of ids is said before a large model is opened. */
static int logits(const char *path, logits_opts *o, sh_error *e) {
  int32_t *ids = NULL;
  int n = 0;
  sh_ckpt *ckpt = NULL;
  sh_backend *be = NULL;
  sh_model *m = NULL;
  sh_backend_opts bo = {.threads = (int)o->threads, .cpu = o->cpu};
  int rc = read_ids(o->ids, &ids, &n, e);
  if (rc == 0) rc = sh_ckpt_open(&ckpt, path, 0, e);
  if (rc == 0) rc = sh_backend_cpu_new(&be, &bo, e);
  sh_repack_opts repack = {.panels = !o->exact, .cache_dir = o->cache_dir, .threads = (int)o->threads};
  sh_kv_type kv = SH_KV_BF16;
  if (rc == 0) rc = sh_head_parse(o->head, o->exact, &repack.head, e);
  if (rc == 0) rc = sh_kv_parse(o->kv_cache_dtype, o->exact, &kv, e);
  if (rc == 0) rc = sh_model_open(&m, ckpt, be, &repack, e);
  if (rc == 0) rc = check_ids(sh_model_config(m), o->ids, ids, n, e);
  if (rc == 0) rc = sh_model_read_ahead(m, e);
  if (rc == 0) rc = run(m, o, kv, ids, n, e);
  sh_model_free(m);
  if (be) be->ops->free(be);
  sh_ckpt_close(ckpt);
  sh_free(ids);
  return rc;
}

void sh_cmd_logits_options(const sh_opt **table, const void **defaults) {
  *table = TABLE;
  *defaults = &DEFAULTS;
}

int sh_cmd_logits(int argc, char **argv) {
  sh_error e = {0};
  logits_opts o = DEFAULTS;
  const char *model = NULL;
  char *path = NULL;
  bool done = false;
  sh_cli_parse p = {.name = "logits",
                    .usage = "sheng logits MODEL --ids FILE --out FILE",
                    .table = TABLE,
                    .opts = &o,
                    .defaults = &DEFAULTS,
                    .need_model = true};
  int status = sh_cli_options(&p, argc, argv, &model, &done);
  if (status != 0 || done) return status;
  if (!o.ids || !o.out) {
    sh_fail(&e, SH_ERR_ARG, "%s FILE is missing: %s", o.ids ? "--out" : "--ids",
            o.ids ? "the safetensors file to write" : "a JSON array of token ids");
    return sh_cli_fail("logits", &e, true);
  }
  if ((status = sh_cli_find_model("logits", model, &path)) != SH_EXIT_OK) return status;
  status = logits(path, &o, &e) < 0 ? sh_cli_fail("logits", &e, false) : SH_EXIT_OK;
  sh_free(path);
  return status;
}
