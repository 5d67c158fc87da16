/* `sheng inspect`: the order of an inspection, its files and its plans. Main thread.
 *
 * A broken model is the normal case here, so a step that fails leaves an issue and the next one takes what there is: without weights the
 * config, the tokenizer and the template are still read, without a config the files are still listed. When no step found anything wrong,
 * the engine is opened as serve would open it (maps and small vectors, nothing repacked, no computing): the verdict is then what the engine
 * says and not what this file believes.
 *
 * Refused: a warm-up step, which reads all weights, minutes on a cold disk; and a repair mode. */
#include "ops/inspect_parts.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/text.h"
#include "engine/sched.h"
#include "model/model.h"
#include "formats/kv.h"
#include "formats/panel.h"

enum { MAX_TEXT = 800, MAX_INDEX = 1 << 20 }; /* bytes of a name or sentence; tensors of an index that are looked at */

#define AT(field) offsetof(sh_inspect_options, field)
#define REPORT "Report"
#define PLAN "Memory plan"
const sh_opt sh_inspect_option_table[] = {
    {"json", NULL, SH_OPT_FLAG, AT(json), 0, 0, NULL, NULL, REPORT, NULL, "One JSON object in place of the text."},
    {"cpu", NULL, SH_OPT_ENUM, AT(cpu), 0, 0, "native|avx2|baseline", "SHENG_CPU", REPORT, "LEVEL", "Instruction sets to plan with."},
    {"head", NULL, SH_OPT_ENUM, AT(head), 0, 0, SH_HEAD_NAMES, "SHENG_HEAD", PLAN, "TYPE",
     "Plan for a head rounded to this, as serve --head."},
    {"context", NULL, SH_OPT_LIST, AT(context), 0, 0, NULL, NULL, PLAN, "TOKENS",
     "Contexts to plan for; by default 4096, 32768 and what the model is made for."},
    {"memory", "memory-limit", SH_OPT_SIZE, AT(memory), 0, 0, NULL, "SHENG_MEMORY_LIMIT", PLAN, "SIZE",
     "Count this much as the machine's memory; 0 asks the system."},
    {"memory-utilization", "gpu-memory-utilization", SH_OPT_FLOAT, AT(memory_utilization), 0.01, 1, NULL, "SHENG_MEMORY_UTILIZATION", PLAN,
     "SHARE", "Share of the memory that may be used, weights included."},
    {"kv-cache-dtype", NULL, SH_OPT_ENUM, AT(kv_cache_dtype), 0, 0, SH_KV_NAMES, "SHENG_KV_CACHE_DTYPE", PLAN, "TYPE",
     "Plan for keys and values of this type, as serve --kv-cache-dtype."},
    {"exact", NULL, SH_OPT_FLAG, AT(exact), 0, 0, NULL, "SHENG_EXACT", PLAN, NULL,
     "Plan for float32 on the stored weights and float32 keys and values, as serve --exact."},
    {0},
};
#undef AT
const sh_inspect_options sh_inspect_option_defaults = {
    .memory_utilization = 0.9, .cpu = "native", .head = "auto", .kv_cache_dtype = "auto"};

/* --- Issues */

const char *sh_insp_clean(sh_insp *p, const char *s) {
  size_t n = s ? strlen(s) : 0;
  if (n > MAX_TEXT) n = MAX_TEXT - sh_utf8_incomplete_tail(s, MAX_TEXT);
  char *t = sh_arena_strdup(p->a, s ? s : "", n);
  if (!t) {
    p->no_memory = true;
    return "";
  }
  for (char *c = t; *c; c++)
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  return t;
}

void sh_insp_issue_add(sh_insp *p, bool fatal, const char *where, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  const char *s = text;
  size_t n = strlen(p->o->model);
  if (!strncmp(s, p->o->model, n) && !strncmp(s + n, ": ", 2)) s += n + 2;
  if (fatal) p->n_fatal++;
  else p->n_warnings++;
  if (p->n_issues < SH_INSP_NAMES) p->issues[p->n_issues++] = (sh_insp_issue){fatal, where, sh_insp_clean(p, s)};
}

/* --- Files */

static bool is_model_file(const char *name) {
  static const char *const ENDS[] = {".safetensors", ".gguf", ".json", ".jinja", ".bin", ".model", ".txt"};
  for (size_t i = 0; i < sizeof ENDS / sizeof ENDS[0]; i++)
    if (sh_str_ends(name, ENDS[i])) return name[0] != '.';
  return false;
}

static void add_file(sh_insp *p, const char *path, const char *name) {
  struct stat st;
  if (stat(path, &st) || !S_ISREG(st.st_mode)) return;
  p->n_files_all++;
  p->file_bytes += st.st_size;
  if (sh_str_ends(name, ".safetensors") || sh_str_ends(name, ".gguf")) p->weight_file_bytes += st.st_size;
  if (p->n_files < SH_INSP_FILES) p->files[p->n_files++] = (sh_insp_file){sh_insp_clean(p, name), st.st_size};
}

static int by_name(const void *a, const void *b) { return strcmp(((const sh_insp_file *)a)->name, ((const sh_insp_file *)b)->name); }

/* prefix: of the names wanted, NULL: all that models have. */
static void list_folder(sh_insp *p, const char *dir, const char *prefix, size_t n) {
  DIR *d = opendir(dir);
  if (!d) return;
  for (struct dirent *f = readdir(d); f; f = readdir(d)) {
    if (prefix ? strncmp(f->d_name, prefix, n) || !sh_str_ends(f->d_name, ".gguf") : !is_model_file(f->d_name)) continue;
    char *path = sh_path_join(dir, f->d_name);
    if (path) add_file(p, path, f->d_name);
    sh_free(path);
  }
  closedir(d);
  qsort(p->files, (size_t)p->n_files, sizeof *p->files, by_name);
}

static void list_files(sh_insp *p) {
  const char *path = p->o->model, *base = sh_path_base(path), *of = strstr(base, "-00001-of-");
  if (sh_dir_exists(path)) {
    list_folder(p, path, NULL, 0);
  } else if (of) {
    char *dir = base == path ? sh_strdup(".") : sh_strndup(path, (size_t)(base - path));
    if (dir) list_folder(p, dir, base, (size_t)(of - base) + 1);
    sh_free(dir);
  } else {
    add_file(p, path, base);
  }
}

/* Every shard that the index names and the folder lacks; their number. */
static int note_missing(sh_insp *p, const sh_json *map) {
  int missing = 0;
  const char *last = "";
  for (size_t i = 0; sh_json_is(map, SH_JSON_OBJECT) && i < map->len && i < MAX_INDEX && missing < SH_INSP_NAMES; i++) {
    const sh_json *v = &map->members[i].value;
    if (!sh_json_is(v, SH_JSON_STRING) || !strcmp(v->s, last)) continue;
    last = v->s; /* indexes list tensors shard by shard, or nearly so */
    const sh_insp_file key = {.name = v->s};
    bool known = bsearch(&key, p->files, (size_t)p->n_files, sizeof key, by_name) != NULL;
    char text[300];
    snprintf(text, sizeof text, "shard %.200s, named by model.safetensors.index.json, is not there", v->s);
    for (int k = 0; k < p->n_issues && !known; k++) known = !strcmp(p->issues[k].text, text);
    if (known) continue;
    sh_insp_issue_add(p, true, "files", "%s", text);
    missing++;
  }
  return missing;
}

static int missing_shards(sh_insp *p) {
  char *path = sh_path_join(p->o->model, "model.safetensors.index.json"), *text = NULL;
  sh_arena *a = sh_arena_new((size_t)512 << 20);
  sh_json *root = NULL;
  size_t len;
  int missing = 0;
  bool there = path && a && sh_file_exists(path);
  if (there && !sh_file_read(path, (size_t)256 << 20, &text, &len, NULL) && !sh_json_parse(text, len, NULL, a, &root, NULL))
    missing = note_missing(p, sh_json_get(root, "weight_map"));
  sh_arena_free(a);
  sh_free(text);
  sh_free(path);
  return missing;
}

static void open_checkpoint(sh_insp *p) {
  sh_error e = {0};
  if (!sh_ckpt_open(&p->ck, p->o->model, 0, &e)) {
    p->is_gguf = sh_ckpt_is_gguf(p->ck);
    return;
  }
  p->is_gguf = sh_str_ends(p->o->model, ".gguf");
  if (!missing_shards(p)) sh_insp_issue_add(p, true, "files", "%s", e.text);
  if (p->is_gguf || sh_ckpt_open(&p->ck, p->o->model, SH_CKPT_TOKENIZER_ONLY, NULL)) p->ck = NULL;
  p->text_only = p->ck != NULL;
}

/* --- Config */

static void read_config(sh_insp *p) {
  sh_error e = {0};
  int rc;
  if (!p->text_only) rc = sh_config_load(&p->cfg, p->ck, &e);
  else if (sh_ckpt_config(p->ck)) rc = sh_config_from_json(&p->cfg, sh_ckpt_config(p->ck), &e);
  else return;
  p->has_config = !rc;
  if (rc) sh_insp_issue_add(p, true, "config", "%s", e.text);
}

/* --- Memory */

static int64_t scratch_bytes(void *ctx, int max_tokens, int n_seqs) {
  const sh_insp *p = ctx;
  int rows = sh_plan_out_rows(n_seqs);
  return (int64_t)sh_model_config_scratch_bytes(&p->cfg, max_tokens, rows) + sh_sched_bytes(max_tokens, n_seqs, rows, p->cfg.vocab_size);
}

/* context 0: what serve does unasked. */
static void make_plan(sh_insp *p, int64_t context, sh_insp_plan *out) {
  sh_error e = {0};
  sh_plan_in in = {
      .total_bytes = p->total_bytes,
      .utilization = p->o->memory_utilization,
      .weight_bytes = p->weight_bytes,
      .kv_bytes_per_token = (int64_t)sh_model_config_kv_bytes_per_token(&p->cfg, p->kv_type),
      .state_bytes_per_seq = (int64_t)sh_model_config_state_bytes(&p->cfg),
      .model_max_len = p->cfg.max_position,
      .asked_max_model_len = context,
      .scratch = scratch_bytes,
      .ctx = p,
  };
  *out = (sh_insp_plan){.context = context};
  out->rc = sh_plan_make(&out->plan, &in, &e);
  if (out->rc) out->error = sh_insp_clean(p, e.text);
}

int64_t sh_insp_whole(const sh_insp_plan *p) {
  const sh_plan *m = &p->plan;
  int64_t want = p->context ? p->context : m->max_model_len, per_seq = m->page_size ? (want + m->page_size - 1) / m->page_size : 0;
  if (p->rc || !per_seq) return 0;
  int64_t n = m->n_pages / per_seq;
  return n < m->max_num_seqs ? n : m->max_num_seqs;
}

static void add_context(sh_insp *p, int64_t context) {
  for (int i = 0; i < p->n_plans; i++)
    if (p->plans[i].context == context) return;
  if (p->n_plans < SH_INSP_PLANS) make_plan(p, context, &p->plans[p->n_plans++]);
}

static void plan_memory(sh_insp *p) {
  p->total_bytes = p->o->memory > 0 ? p->o->memory : sh_memory_limit();
  p->weight_bytes = p->has_weights ? (int64_t)p->w.held_bytes : p->weight_file_bytes;
  make_plan(p, 0, &p->serve);
  if (p->serve.rc) sh_insp_issue_add(p, true, "memory", "%s", p->serve.error);
  static const int64_t DEFAULTS[] = {4096, 32768};
  for (int i = 0; i < p->o->context.n; i++) {
    int64_t n = 0;
    (void)sh_parse_i64(p->o->context.v[i], &n); /* checked at the start */
    add_context(p, n);
  }
  if (p->o->context.n) return;
  for (size_t i = 0; i < sizeof DEFAULTS / sizeof DEFAULTS[0]; i++)
    if (DEFAULTS[i] < p->cfg.max_position) add_context(p, DEFAULTS[i]);
  add_context(p, p->cfg.max_position);
}

/* --- The whole */

/* The engine's own opinion, asked when nothing else is wrong. */
static void ask_engine(sh_insp *p) {
  sh_error e = {0};
  sh_engine *g = NULL;
  const sh_engine_options o = {.model = p->o->model,
                               .memory_utilization = p->o->memory_utilization,
                               .memory_limit = p->o->memory,
                               .exact = p->o->exact,
                               .head = p->o->head,
                               .kv_cache_dtype = p->o->kv_cache_dtype,
                               .plan_only = true,
                               .cpu = p->o->cpu};
  if (sh_engine_open(&g, &o, &e)) sh_insp_issue_add(p, true, "engine", "%s", e.text);
  sh_engine_close(g);
}

static int inspect(sh_insp *p) {
  const sh_backend_opts bo = {.threads = 1, .cpu = p->o->cpu};
  int rc = sh_backend_cpu_new(&p->be, &bo, p->e);
  if (rc) return rc;
  list_files(p);
  open_checkpoint(p);
  if (!p->ck) return 0;
  read_config(p);
  if (p->has_config && !p->text_only && (rc = sh_insp_weights(p))) return rc;
  sh_insp_tokenizer_read(p);
  sh_insp_template_read(p);
  sh_insp_generation_read(p);
  if (p->has_config) plan_memory(p);
  if (!p->n_fatal) ask_engine(p);
  return p->no_memory ? sh_fail(p->e, SH_ERR_NOMEM, "out of memory for the report") : 0;
}

static int check_options(const sh_inspect_options *o, sh_head *head, sh_kv_type *kv_type, sh_error *e) {
  for (int i = 0; i < o->context.n; i++) {
    int64_t n;
    if (sh_parse_i64(o->context.v[i], &n) || n < 2 || n > INT32_MAX)
      return sh_fail(e, SH_ERR_ARG, "context is %.40s; a number of tokens from 2 on is wanted", o->context.v[i]);
  }
  if (o->context.n > SH_INSP_PLANS) return sh_fail(e, SH_ERR_ARG, "at most %d contexts can be planned at once", SH_INSP_PLANS);
  int rc = sh_head_parse(o->head, o->exact, head, e);
  if (rc == 0) rc = sh_kv_parse(o->kv_cache_dtype, o->exact, kv_type, e);
  if (rc) return rc;
  return o->memory < 0 ? sh_fail(e, SH_ERR_ARG, "memory must not be negative") : 0;
}

int sh_inspect_run(const sh_inspect_options *o, sh_buf *out, bool *will_start, sh_error *e) {
  sh_error local = {0};
  *will_start = false;
  if (!e) e = &local;
  sh_head head;
  sh_kv_type kv_type;
  int rc = check_options(o, &head, &kv_type, e);
  if (rc) return rc;
  sh_insp *p = sh_calloc(1, sizeof *p);
  if (!p) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  p->o = o;
  p->head = head;
  p->kv_type = kv_type;
  p->e = e;
  p->a = sh_arena_new((size_t)64 << 20);
  if (p->a) {
    p->files = sh_arena_array(p->a, SH_INSP_FILES, sizeof *p->files);
    p->issues = sh_arena_array(p->a, SH_INSP_NAMES, sizeof *p->issues);
  }
  rc = p->files && p->issues ? inspect(p) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!rc) {
    *will_start = p->n_fatal == 0;
    if (o->json) sh_insp_json(p, out);
    else sh_insp_show(p, out);
    if (out->failed) {
      *will_start = false;
      rc = sh_fail(e, out->failed, "the report does not fit in memory");
    }
  }
  sh_chat_free(p->chat);
  sh_tok_free(p->tok);
  sh_weights_free(&p->w);
  if (p->be) p->be->ops->free(p->be);
  sh_ckpt_close(p->ck);
  sh_arena_free(p->a);
  sh_free(p);
  return rc;
}
