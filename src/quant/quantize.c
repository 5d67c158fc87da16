/* The run over a checkpoint, layer by layer.
 *
 * The driving thread. The source is only mapped; one layer's matrices are looked at at a time and its pages given back afterwards. A
 * layer's tensors are one part of the output folder (quant/writer.h); everything outside the layers is the last part. What a killed run
 * left is: whole parts, the residual stream before the first layer that is missing, and the records of the layers that are done. Everything
 * is checked before there are calibration tokens, which the model may have to write: that takes minutes. The result depends on the source,
 * the options and the calibration tokens only, not on threads or on where a run was interrupted. */
#include "quant/quantize.h"

#include "base/log.h"
#include "base/sha.h"
#include "base/text.h"
#include "model/pass.h"
#include "quant/calib.h"
#include "quant/eval_model.h"
#include "quant/job.h"
#include "quant/pack.h"
#include "quant/writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEP_TOKENS = 2048 };
static const char TABLE[] = "quantize.csv";

typedef struct sh_quantizer {
  sh_qjob j;
  sh_quantize_opts opts; /* j.o */
  const char *path, *says;
  sh_backend *be;
  sh_ckpt *ck;
  sh_qwriter *out;
  sh_qscheme scheme;
  const char **ignored; /* names of what stays, owned */
  int n_ignored, cap_ignored;
  int64_t *part_bytes; /* [n_layers + 1] */
  bool *used;          /* [n_keep + n_also] the pattern matches a module */
  sh_quantize_result r;
  int64_t tokens; /* of the calibration, at least so far */
  int n_seqs;
  int64_t began; /* ns */
  double code_bits;
} run;

static bool looks_at_inputs(const run *u) { return u->j.o->method != SH_QM_RTN && u->j.o->method != SH_QM_INT8; }

/* --- Before anything is computed */

static int refuse_source(const run *u, const char *path, sh_error *e) {
  if (sh_ckpt_is_gguf(u->ck))
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s is a GGUF file; quantize wants the model's Hugging Face folder with bf16, f16 or f32 weights",
                   path);
  sh_quant q;
  int rc = sh_quant_parse(&q, sh_ckpt_config(u->ck), e);
  if (rc < 0) return rc;
  if (q.method != SH_QUANT_NONE)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s is quantized already (%s); quantize wants the original with bf16, f16 or f32 weights", path,
                   sh_quant_name(q.method));
  return 0;
}

static int ignore(run *u, const char *name, sh_error *e) {
  if (u->n_ignored == u->cap_ignored) {
    int cap = u->cap_ignored ? 2 * u->cap_ignored : 256;
    const char **v = sh_realloc((void *)u->ignored, (size_t)cap * sizeof *v);
    if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for the names of %d modules", cap);
    u->ignored = v;
    u->cap_ignored = cap;
  }
  u->ignored[u->n_ignored] = sh_strdup(name);
  return u->ignored[u->n_ignored] ? (u->n_ignored++, 0) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
}

/* Bits of a module as it will be stored. */
static double module_bits(const run *u, const sh_wview *w) {
  int64_t group = u->scheme.group > 0 ? u->scheme.group : w->cols;
  double groups = (double)w->rows * (double)(w->cols / group);
  return (double)w->rows * (double)w->cols * u->scheme.bits + groups * (16 + (u->scheme.symmetric ? 0 : u->scheme.bits));
}

static void note_patterns(run *u, const char *name) {
  const sh_quantize_opts *o = u->j.o;
  for (int i = 0; i < o->n_keep; i++) u->used[i] = u->used[i] || sh_qselect_matches(o->keep[i], name);
  for (int i = 0; i < o->n_also; i++) u->used[o->n_keep + i] = u->used[o->n_keep + i] || sh_qselect_matches(o->also[i], name);
}

/* A pattern with a slip of the pen would be seen only in what hours later is or is not quantized. */
static void warn_patterns(const run *u) {
  const sh_quantize_opts *o = u->j.o;
  for (int i = 0; i < o->n_keep + o->n_also; i++)
    if (!u->used[i])
      sh_log(SH_LOG_WARN, "--%s '%s' matches no module of the model", i < o->n_keep ? "keep" : "also",
             i < o->n_keep ? o->keep[i] : o->also[i - o->n_keep]);
}

static int check_module(run *u, const sh_qmod *m, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  int rc = 0;
  if (!m->t) return sh_fail(e, SH_ERR_INTERNAL, "module %s has no tensor %s", m->name, m->w->name);
  if (m->w->type != SH_F32 && m->w->type != SH_F16 && m->w->type != SH_BF16)
    return sh_fail(e, SH_ERR_UNSUPPORTED, "tensor %s is stored as %s; bf16, f16 or f32 is wanted", m->w->name, m->t->type_name);
  if (!m->quantize) return ignore(u, m->name, e);
  if (o->group > 0 && m->w->cols % o->group) {
    int64_t g = 1024;
    while (g > 16 && (g > o->group || m->w->cols % g)) g /= 2;
    if (m->w->cols % g) g = -1;
    return sh_fail(e, SH_ERR_ARG,
                   "groups of %lld do not divide the %lld columns of %s; use --q-group-size %lld, or --keep '%s' to leave it as it is",
                   (long long)o->group, (long long)m->w->cols, m->name, (long long)g, strrchr(m->name, '.') + 1);
  }
  if (o->method != SH_QM_FOLD) rc = sh_qpack_check(&u->scheme, m->name, m->w->rows, m->w->cols, e);
  u->r.n_modules++;
  u->r.weights += m->w->rows * m->w->cols;
  u->code_bits += module_bits(u, m->w);
  return rc;
}

/* The module name of a linear matrix outside the layers (the head, the MTP layer); false for all else. The embedding stays: it is looked
 * up, not multiplied. */
static bool rest_module(const sh_ftensor *t, char name[192]) {
  size_t n = strlen(t->name), end = strlen(".weight");
  if (t->n_dims != 2 || n <= end || n - end >= 192 || strcmp(t->name + n - end, ".weight") != 0) return false;
  if (!strstr(t->name, "lm_head") && strncmp(t->name, "mtp.", 4) != 0 && !strstr(t->name, "visual.")) return false;
  snprintf(name, 192, "%.*s", (int)(n - end), t->name);
  return true;
}

/* "mtp" takes of the MTP layer what is taken of the others; routers and switches (a row or a few, read by all that follows) want to be
 * named themselves. */
static bool rest_named(const run *u, const char *name) {
  static const char *const STAY[] = {"gate", "shared_expert_gate", "in_proj_a", "in_proj_b"};
  const sh_quantize_opts *o = u->j.o;
  const char *last = strrchr(name, '.');
  last = last ? last + 1 : name;
  bool stays = false, named = false;
  for (size_t i = 0; i < sizeof STAY / sizeof *STAY; i++) stays = stays || strcmp(last, STAY[i]) == 0;
  for (int i = 0; i < o->n_also; i++) named = named || sh_qselect_matches(o->also[i], last) || strcmp(o->also[i], name) == 0;
  return !stays || named;
}

static bool rest_taken(const run *u, const sh_ftensor *t, char name[192]) {
  return rest_module(t, name) && !strstr(name, "visual.") && sh_qselect_takes(&u->j.select, name, false) && rest_named(u, name);
}

static sh_wview view_of(const sh_ftensor *t) {
  size_t row = t->bytes / (size_t)(t->dims[0] ? t->dims[0] : 1);
  return (sh_wview){.type = t->type, .rows = t->dims[0], .cols = t->dims[1], .data = t->data, .row_bytes = row, .name = t->name};
}

/* Modules outside the layers: what was asked for is checked, the others are named as left alone. */
static int look_at_rest(run *u, sh_error *e) {
  int rc = 0;
  for (int i = 0; rc == 0 && i < sh_ckpt_count(u->ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(u->ck, i);
    sh_qmod m = {.t = t, .quantize = true};
    if (rest_module(t, m.name)) note_patterns(u, m.name);
    if (rest_taken(u, t, m.name)) {
      sh_wview v = view_of(t);
      if (strncmp(m.name, "mtp.", 4) == 0) u->scheme.mtp = true;
      m.w = &v;
      rc = check_module(u, &m, e);
    } else if (rest_module(t, m.name)) {
      rc = ignore(u, m.name, e);
    } else if (strstr(t->name, "embed_tokens.weight")) {
      snprintf(m.name, sizeof m.name, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
      rc = ignore(u, m.name, e);
    }
  }
  return rc;
}

static int look_at_layers(run *u, sh_error *e) {
  const sh_config *c = sh_model_config(u->j.m);
  int rc = 0;
  for (int i = 0; rc == 0 && i < c->n_layers; i++) {
    sh_qlayer l;
    rc = sh_qlayer_open(&l, i, c, &u->j.m->w.layers[i], u->ck, &u->j.select, e);
    if (rc < 0) return rc;
    double bits = 0;
    int64_t whole = 0;
    for (int k = 0; rc == 0 && k < l.n_mods; k++) {
      note_patterns(u, l.mods[k].name);
      rc = check_module(u, &l.mods[k], e);
      if (l.mods[k].quantize) bits += module_bits(u, l.mods[k].w);
      else whole += l.mods[k].w->rows * l.mods[k].w->cols * 2;
    }
    u->part_bytes[i] = (int64_t)(bits / 8) + whole + 65536;
    sh_qlayer_free(&l);
  }
  if (rc == 0) rc = look_at_rest(u, e);
  if (rc == 0 && u->r.n_modules == 0) rc = sh_fail(e, SH_ERR_ARG, "nothing is left to quantize: every module matches a pattern of --keep");
  return rc;
}

static bool in_layer(const run *u, const sh_ftensor *t) {
  const sh_w_layer *w = &u->j.m->w.layers[0];
  const char *known = w->is_linear ? w->in_qkv.name : w->q.name, *word = strstr(known, "layers.");
  size_t root = word ? (size_t)(word - known) + strlen("layers.") : 0;
  return root && strncmp(t->name, known, root) == 0;
}

/* Of some bytes of the weights: files of another model of the same shape have the same names and sizes. */
static void digest_source(const run *u, char digest[SH_SHA_HEX]) {
  enum { TENSORS = 4096, BYTES = 64 };
  sh_sha h = {0};
  int n = sh_ckpt_count(u->ck);
  sh_sha_init(&h, SH_SHA256);
  for (int i = 0; i < n; i += n / TENSORS + 1) {
    const sh_ftensor *t = sh_ckpt_at(u->ck, i);
    size_t take = t->bytes < BYTES ? t->bytes : BYTES;
    sh_sha_update(&h, t->data + (t->bytes - take) / 2, take);
  }
  sh_sha_hex(&h, digest);
}

static const char *method_name(sh_qmethod m) {
  static const char *const NAMES[] = {"awq", "gptq", "rtn", "int8", "fold"};
  return NAMES[m];
}

static void put_patterns(sh_buf *b, const char *option, const char *const *v, int n) {
  sh_buf_printf(b, "\t%s: %s", option, n ? "" : "none");
  for (int i = 0; i < n; i++) sh_buf_printf(b, "%s%s", i ? " " : "", v[i]);
}

/* What is known of the job before the calibration: the names are what a message calls them. */
static int describe_job(const run *u, sh_buf *b, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  char digest[SH_SHA_HEX];
  sh_buf_printf(b, "sheng quantize 3\t--method: %s\t--format: %s\t--w-bit: %d\t--q-group-size: %lld", method_name(o->method),
                sh_qformat_name(o->format), o->bits, (long long)o->group);
  sh_buf_printf(b, "\t--zero-point: %s\t--pow2-scales: %s", o->zero_point ? "true" : "false", o->pow2 ? "true" : "false");
  if (o->method == SH_QM_GPTQ) sh_buf_printf(b, "\t--act-order: %s\t--damp: %g", o->act_order ? "true" : "false", o->damp);
  if (looks_at_inputs(u)) sh_buf_printf(b, "\t--seed: %llu\t%s", (unsigned long long)o->seed, o->calib_choice ? o->calib_choice : "");
  put_patterns(b, "--keep", o->keep, o->n_keep);
  put_patterns(b, "--also", o->also, o->n_also);
  sh_ckpt_file f;
  for (int i = 0; sh_ckpt_file_at(u->ck, i, &f); i++) sh_buf_printf(b, "\tthe size of %s: %zu", f.name, f.bytes);
  digest_source(u, digest);
  sh_buf_printf(b, "\tthe checksum of the model's weights: %.16s", digest);
  return b->failed ? sh_fail(e, b->failed, "out of memory for the job's description") : 0;
}

/* The rest of it. */
static int settle_job(run *u, sh_error *e) {
  const sh_samples *s = u->j.o->calib;
  sh_sha h = {0};
  char digest[SH_SHA_HEX], rest[320];
  if (!s) return sh_qwriter_job(u->out, "", e);
  sh_sha_init(&h, SH_SHA256);
  for (int i = 0; i < s->n; i++) sh_sha_update(&h, s->ids[i], (size_t)s->len[i] * sizeof(int32_t));
  sh_sha_hex(&h, digest);
  snprintf(rest, sizeof rest,
           "the tokens that scales are judged on (as many as --max-memory has room for): %lld\tthe checksum of the calibration's tokens "
           "(of --calib-data, --samples, --seq-len, --own-samples and --seed): %.16s",
           (long long)u->j.rows, digest);
  return sh_qwriter_job(u->out, rest, e);
}

/* --- The records, one file per layer until the end */

static char *record_path(const run *u, int layer) {
  char name[32];
  snprintf(name, sizeof name, "spill-record-%d", layer);
  return sh_path_join(sh_qwriter_dir(u->out), name);
}

static int write_records(run *u, int layer, sh_error *e) {
  sh_buf b;
  sh_buf_init(&b, 64 << 20);
  for (int i = 0; i < u->j.n_records; i++) {
    const sh_qrecord *r = &u->j.records[i];
    sh_buf_printf(&b, "%s,%s,", r->name, r->scale);
    if (r->err_nearest >= 0) sh_buf_printf(&b, "%.6g,%.6g,%lld\n", r->err_nearest, r->err, (long long)r->tokens);
    else sh_buf_puts(&b, ",,\n");
  }
  char *path = record_path(u, layer);
  int rc = b.failed || !path ? sh_fail(e, SH_ERR_NOMEM, "out of memory for the record of layer %d", layer)
                             : sh_file_write_atomic(path, b.len ? b.p : "", b.len, e);
  sh_free(path);
  sh_buf_free(&b);
  return rc;
}

/* Appends a file and frees its path, which may be NULL: out of memory. */
static int append_file(sh_buf *out, char *path, sh_error *e) {
  char *text = NULL;
  size_t len = 0;
  int rc = path ? sh_file_read(path, 256 << 20, &text, &len, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0) sh_buf_put(out, text, len);
  if (rc == 0) sh_free(text);
  sh_free(path);
  return rc;
}

/* The table of all records. A run that was killed while it finished may have removed them, but not before the table was written. */
static int join_records(run *u, sh_buf *out, sh_error *e) {
  char *table = sh_path_join(sh_qwriter_dir(u->out), TABLE);
  int rc = 0;
  if (!table || sh_file_exists(table)) {
    rc = append_file(out, table, e);
  } else {
    sh_free(table);
    sh_buf_puts(out, "module,scale,error_rtn,error,tokens\n");
    for (int i = 0; rc == 0 && i < sh_model_config(u->j.m)->n_layers; i++) rc = append_file(out, record_path(u, i), e);
  }
  return rc == 0 && out->failed ? sh_fail(e, out->failed, "out of memory for the records") : rc;
}

/* --- A layer */

typedef struct finite_job {
  const sh_qwork *k;
  const sh_wview *w;
  int32_t *bad; /* [items] row + 1 of the first that is not finite */
} finite_job;

static void finite_item(void *ctx, int item, int worker) {
  finite_job *j = ctx;
  float *row = j->k->scratch[worker];
  int64_t r0 = (int64_t)item * SH_QROWS, r1 = r0 + SH_QROWS < j->w->rows ? r0 + SH_QROWS : j->w->rows;
  for (int64_t r = r0; r < r1 && !j->bad[item]; r++) {
    float sum = 0;
    j->k->k.dequant(j->w, r, 0, j->w->cols, row);
    for (int64_t c = 0; c < j->w->cols; c++) sum += row[c] * 0.0f; /* 0, or not a number */
    if (!(sum == 0)) j->bad[item] = (int32_t)(r + 1);
  }
}

static int refuse_not_finite(run *u, const sh_wview *w, const char *name, sh_error *e) {
  int items = (int)((w->rows + SH_QROWS - 1) / SH_QROWS);
  int rc = sh_qwork_need(&u->j.work, (size_t)w->cols * sizeof(float), e);
  finite_job j = {&u->j.work, w, sh_calloc((size_t)items + 1, sizeof(int32_t))};
  if (!j.bad && rc == 0) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == 0) sh_pool_run(u->j.work.pool, finite_item, &j, items);
  for (int k = 0; rc == 0 && k < items; k++)
    if (j.bad[k])
      rc = sh_fail(e, SH_ERR_FORMAT, "tensor %s: row %d of %s holds a value that is not finite; the file is damaged, get it again", w->name,
                   j.bad[k] - 1, name);
  sh_free(j.bad);
  return rc;
}

/* A tensor of any shape; numbers that are not floating point are finite. */
static int refuse_tensor(run *u, const sh_ftensor *t, sh_error *e) {
  if ((t->type != SH_F32 && t->type != SH_F16 && t->type != SH_BF16) || !t->bytes) return 0;
  sh_wview w = {.type = t->type, .rows = t->n_dims > 1 ? t->dims[0] : 1, .data = t->data, .name = t->name};
  w.cols = sh_ftensor_count(t) / w.rows;
  w.row_bytes = t->bytes / (size_t)w.rows;
  return refuse_not_finite(u, &w, "it", e);
}

/* Modules one by one, for the name of an expert says more than that of a fused tensor; then what is no module: norms, convolutions. */
static int refuse_layer(run *u, const sh_qlayer *l, sh_error *e) {
  int rc = 0;
  for (int i = 0; rc == 0 && i < l->n_mods; i++) rc = refuse_not_finite(u, l->mods[i].w, l->mods[i].name, e);
  for (int i = 0; rc == 0 && i < sh_ckpt_count(u->ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(u->ck, i);
    bool seen = strncmp(t->name, l->prefix, strlen(l->prefix)) != 0;
    for (int k = 0; !seen && k < l->n_mods; k++) seen = l->mods[k].t == t;
    if (!seen) rc = refuse_tensor(u, t, e);
  }
  return rc;
}

/* Before the first layer: an embedding that is not finite would spoil what every layer is calibrated on. */
static int refuse_rest(run *u, sh_error *e) {
  int rc = 0;
  for (int i = 0; rc == 0 && i < sh_ckpt_count(u->ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(u->ck, i);
    if (in_layer(u, t)) continue;
    rc = refuse_tensor(u, t, e);
    sh_map_drop(t->data, t->bytes);
  }
  return rc;
}

/* The layer's pages may be dropped: they are read again if they are needed. */
static void give_back_pages(const run *u, const sh_qlayer *l) {
  for (int i = 0; i < sh_ckpt_count(u->ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(u->ck, i);
    if (strncmp(t->name, l->prefix, strlen(l->prefix)) == 0) sh_map_drop(t->data, t->bytes);
  }
}

static int do_layer(run *u, int layer, sh_error *e) {
  sh_qlayer l;
  sh_ftensor *t;
  int n = 0;
  int rc = sh_qlayer_open(&l, layer, sh_model_config(u->j.m), &u->j.m->w.layers[layer], u->ck, &u->j.select, e);
  if (rc < 0) return rc;
  rc = refuse_layer(u, &l, e);
  if (rc == 0) rc = sh_qsearch_layer(&u->j, &l, e);
  if (rc == 0) rc = sh_qlayer_tensors(&l, &u->scheme, u->j.o->method == SH_QM_FOLD, &t, &n, e);
  if (rc == 0) rc = write_records(u, layer, e);
  rc = sh_qwriter_kept(u->out, rc, e);
  if (rc == 0) rc = sh_qwriter_put(u->out, layer, t, n, e);
  if (rc == 0 && u->j.stream) sh_qstream_drop(u->j.stream, layer);
  give_back_pages(u, &l);
  sh_qlayer_free(&l);
  return rc;
}

/* The stream before `layer`, from the nearest one that is there. */
static int catch_up(run *u, int layer, sh_error *e) {
  int from = layer, rc = 0;
  if (!u->j.stream) return 0;
  while (!sh_qstream_has(u->j.stream, from)) from--;
  for (; rc == 0 && from < layer; from++) {
    rc = sh_qstream_layer(u->j.stream, from, NULL, NULL, e);
    if (rc == 0) sh_qstream_drop(u->j.stream, from);
  }
  return sh_qwriter_kept(u->out, rc, e);
}

/* A matrix outside the layers, rounded to nearest: nothing is calibrated there. */
static int round_rest(run *u, const sh_ftensor *t, const char *name, sh_arena *a, sh_ftensor *out, int *n, sh_error *e) {
  sh_wview v = view_of(t);
  sh_qfit f = {.w = &v};
  sh_qcodes codes = {0};
  int made = 0;
  int rc = sh_qawq_matrix(&u->j.work, &f, &u->j.grid, &codes, e);
  if (rc == 0) rc = sh_qpack(&codes, &u->scheme, name, a, out + *n, &made, e);
  if (rc == 0) *n += made;
  sh_qcodes_free(&codes);
  return rc;
}

static int do_rest(run *u, sh_error *e) {
  int n = 0, total = sh_ckpt_count(u->ck), rc = 0;
  sh_ftensor *t = sh_calloc((size_t)total * SH_QPACK_MAX + 1, sizeof *t);
  sh_arena *a = sh_arena_new((size_t)1 << 40);
  if (!t || !a) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for a list of %d tensors", total);
  for (int i = 0; rc == 0 && i < total; i++) {
    const sh_ftensor *s = sh_ckpt_at(u->ck, i);
    char name[192];
    if (in_layer(u, s)) continue;
    if (u->j.o->method != SH_QM_FOLD && rest_taken(u, s, name)) rc = round_rest(u, s, name, a, t, &n, e);
    else t[n++] = *s;
  }
  if (rc == 0) rc = sh_qwriter_put(u->out, sh_model_config(u->j.m)->n_layers, t, n, e);
  sh_arena_free(a);
  sh_free(t);
  return rc;
}

static int do_parts(run *u, sh_error *e) {
  int layers = sh_model_config(u->j.m)->n_layers;
  int rc = sh_qwriter_has(u->out, layers) ? 0 : refuse_rest(u, e);
  for (int i = 0; rc == 0 && i <= layers; i++) {
    char what[32];
    if ((rc = sh_qjob_stopped(&u->j, e)) < 0) return rc;
    if (sh_qwriter_has(u->out, i)) continue;
    if (i < layers) rc = catch_up(u, i, e);
    if (rc == 0) rc = i < layers ? do_layer(u, i, e) : do_rest(u, e);
    snprintf(what, sizeof what, i < layers ? "layer %d" : "the rest", i);
    if (rc == 0 && u->j.o->progress) u->j.o->progress(u->j.o->ctx, i + 1, layers + 1, what);
  }
  return rc;
}

/* --- The run */

static const char *method_title(sh_qmethod m) {
  static const char *const TITLES[] = {"AWQ", "GPTQ", "round to nearest", "INT8", "scales folded, nothing rounded"};
  return TITLES[m];
}

static int write_card(const run *u, sh_buf *b, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  const char *path = u->path;
  sh_buf_printf(b, "# %s, quantized\n\nMade by `sheng quantize` from %s.\n\n", sh_path_base(path), sh_path_base(path));
  sh_buf_printf(b, "| | |\n|---|---|\n| method | %s |\n| layout | %s |\n", method_title(o->method), sh_qformat_name(o->format));
  if (o->method != SH_QM_FOLD) {
    sh_buf_printf(b, "| weights | %d bits, %s", o->bits, o->zero_point ? "with zero points" : "symmetric");
    if (o->group > 0) sh_buf_printf(b, ", groups of %lld", (long long)o->group);
    else sh_buf_puts(b, ", one scale per row");
    sh_buf_printf(b, "%s |\n| bits per quantized weight, scales included | %.3f |\n", o->pow2 ? ", scales are powers of two" : "",
                  u->r.bits_per_weight);
  }
  sh_buf_printf(b, "| quantized | %d modules, %.1f million weights |\n", u->r.n_modules, (double)u->r.weights / 1e6);
  if (o->calib)
    sh_buf_printf(b, "| calibration | %s: %lld tokens in %d sequences |\n", u->says ? u->says : "", (long long)o->calib->tokens,
                  o->calib->n);
  sh_buf_puts(b, "\nUntouched: embedding, head, norms and convolutions (but for folded scales), routers, in_proj_a, in_proj_b, MTP and "
                 "vision tensors.\n");
  if (o->n_keep) sh_buf_puts(b, "Left as they were on request:");
  for (int i = 0; i < o->n_keep; i++) sh_buf_printf(b, " `%s`", o->keep[i]);
  sh_buf_puts(b, o->n_keep ? "\n" : "");
  if (o->n_also) sh_buf_puts(b, "Quantized on request:");
  for (int i = 0; i < o->n_also; i++) sh_buf_printf(b, " `%s`", o->also[i]);
  sh_buf_puts(b, o->n_also ? "\n" : "");
  sh_buf_puts(b, "\nquantize.csv has, for every module, how its inputs were scaled and the output error relative to the output (of "
                 "rounding to nearest, and of what was written).\n");
  return b->failed ? sh_fail(e, b->failed, "out of memory for the model card") : 0;
}

static int finish(run *u, sh_error *e) {
  sh_buf config, card, records;
  sh_buf_init(&config, 16 << 20);
  sh_buf_init(&card, 1 << 20);
  sh_buf_init(&records, 256 << 20);
  int rc;
  u->scheme.ignored = u->ignored;
  u->scheme.n_ignored = u->n_ignored;
  if (u->j.o->method == SH_QM_FOLD) {
    sh_jw w;
    sh_jw_init(&w, &config);
    sh_jw_value(&w, sh_ckpt_config(u->ck));
    rc = config.failed ? sh_fail(e, config.failed, "out of memory for config.json") : 0;
  } else {
    rc = sh_qconfig_text(sh_ckpt_config(u->ck), &u->scheme, &config, e);
  }
  if (rc == 0) rc = write_card(u, &card, e);
  if (rc == 0) rc = join_records(u, &records, e);
  sh_qfile extra = {TABLE, records.p, records.len};
  if (rc == 0) rc = sh_qwriter_finish(u->out, config.p, card.p, &extra, 1, e);
  sh_buf_free(&config);
  sh_buf_free(&card);
  sh_buf_free(&records);
  return rc;
}

/* --- Memory */

/* Most bytes that a layer needs at once, with `rows` sampled tokens: its source pages, statistics, scratch, codes and packed tensors, the
 * calibration set's streams and a step of the model. */
static int64_t need_for(const run *u, const sh_qlayer *l, int64_t rows) {
  const sh_quantize_opts *o = u->j.o;
  bool seen[SH_QINPUTS + 1] = {false};
  int64_t source = 0, weights = 0, sites = 0, cols = 0, factor = 0, H = l->c->hidden;
  for (int i = 0; i < l->n_mods; i++) {
    const sh_qmod *m = &l->mods[i];
    source += (int64_t)m->w->row_bytes * m->w->rows;
    if (!m->quantize) continue;
    weights += m->w->rows * m->w->cols;
    cols = m->w->cols > cols ? m->w->cols : cols;
    if (seen[m->input]) continue;
    seen[m->input] = true;
    sites += (int64_t)sh_qsite_bytes(m->w->cols, rows, sh_qjob_block(&u->j, m->w->cols));
    int64_t squares = 3 * m->w->cols * m->w->cols * 4;
    factor = o->method == SH_QM_GPTQ && squares > factor ? squares : factor;
  }
  int64_t made = weights + weights * o->bits / 8 + weights / 8;
  int64_t scratch = (int64_t)u->j.work.n_workers * 4 * (SH_QROWS * (4 * cols + rows) + 32 * cols);
  if (!looks_at_inputs(u)) return source + made + scratch;
  int64_t tokens = u->tokens, step = STEP_TOKENS > tokens ? tokens : STEP_TOKENS;
  int64_t model = (int64_t)sh_model_scratch_bytes(u->j.m, (int)step, 1) + step * (int64_t)sh_model_kv_bytes_per_token(u->j.m, SH_KV_F32) +
                  u->n_seqs * (int64_t)sh_model_state_bytes(u->j.m);
  int64_t experts = l->w->moe ? SH_QJOB_EXPERT_TOKENS * (2 * H + 3 * (int64_t)l->c->moe_ffn) * 4 : 0;
  return source + made + scratch + sites + factor + model + experts + tokens * H * 4 * (l->w->moe ? 2 : 1) + (256 << 10) * 40;
}

/* Settles how many rows of the calibration tokens are sampled: as many as the bound on memory leaves room for. */
static int fit_memory(run *u, sh_error *e) {
  const sh_config *c = sh_model_config(u->j.m);
  int64_t limit = u->j.o->max_memory, most = 0;
  for (u->j.rows = SH_QJOB_ROWS; u->j.rows >= SH_QJOB_ROWS / 4; u->j.rows /= 2) {
    most = 0;
    for (int i = 0; i < c->n_layers; i++) {
      sh_qlayer l;
      int rc = sh_qlayer_open(&l, i, c, &u->j.m->w.layers[i], u->ck, &u->j.select, e);
      if (rc < 0) return rc;
      int64_t need = need_for(u, &l, u->j.rows);
      most = need > most ? need : most;
      sh_qlayer_free(&l);
    }
    if (limit <= 0 || most <= limit) return 0;
  }
  char need[32], have[32];
  return sh_fail(e, SH_ERR_LIMIT, "a layer needs about %s, --max-memory is %s; fewer --samples, fewer --threads%s",
                 sh_format_size(most, need), sh_format_size(limit, have),
                 u->j.o->method == SH_QM_GPTQ ? " or --method awq need less" : " or a larger bound are needed");
}

/* What runs the whole model takes its weights, although their pages are clean and may be dropped: --max-memory is there for machines where
 * reading them again and again would be the end of it. */
static int refuse_whole(const run *u, int64_t need, const char *what, const char *remedy, sh_error *e) {
  char need_text[32], have_text[32];
  if (u->j.o->max_memory <= 0 || need <= u->j.o->max_memory) return 0;
  return sh_fail(e, SH_ERR_LIMIT, "%s needs about %s, --max-memory is %s; %s, or a larger bound is needed", what,
                 sh_format_size(need, need_text), sh_format_size(u->j.o->max_memory, have_text), remedy);
}

static int fit_whole_model(const run *u, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  int64_t weights = (int64_t)sh_model_weight_bytes(u->j.m), made = 0;
  int rc = 0;
  if (o->own_seqs > 0) {
    int64_t step = (int64_t)o->own_seqs * o->own_len, chunk = step < STEP_TOKENS ? step : STEP_TOKENS;
    int64_t need = weights + step * (int64_t)sh_model_kv_bytes_per_token(u->j.m, SH_KV_F32) +
                   o->own_seqs * (int64_t)sh_model_state_bytes(u->j.m) + (int64_t)sh_model_scratch_bytes(u->j.m, (int)chunk, o->own_seqs) +
                   sh_eval_base_bytes(u->j.m);
    rc = refuse_whole(u, need, "calibrating with the model's own answers", "--own-samples 0 or --calib-data FILE does without them", e);
  }
  if (rc < 0 || o->report_seq_len <= 0) return rc;
  for (int i = 0; i <= sh_model_config(u->j.m)->n_layers; i++) made += u->part_bytes[i];
  made += (int64_t)(u->code_bits / 8); /* repacked, in memory beside the mapped file */
  return refuse_whole(u, weights + made + sh_eval_pair_bytes(u->j.m, o->report_seq_len), "the report, for which both models are opened,",
                      "--eval-samples 0 leaves it out", e);
}

static int open_stream(run *u, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  if (!looks_at_inputs(u)) return 0;
  int vocab = sh_model_config(u->j.m)->vocab_size;
  for (int i = 0; i < o->calib->n; i++)
    for (int k = 0; k < o->calib->len[i]; k++)
      if (o->calib->ids[i][k] < 0 || o->calib->ids[i][k] >= vocab)
        return sh_fail(e, SH_ERR_ARG,
                       "calibration sequence %d has token %d; the model's vocabulary has %d: its tokenizer is another model's", i,
                       o->calib->ids[i][k], vocab);
  sh_qstream_opts so = {.dir = u->j.dir, .ids = o->calib->ids, .lens = o->calib->len, .n_seqs = o->calib->n, .step_tokens = STEP_TOKENS};
  return sh_qstream_new(&u->j.stream, u->j.m, u->be, &so, e);
}

static void set_up(run *u, const char *path, const sh_quantize_opts *o) {
  u->path = path;
  u->opts = *o;
  u->opts.calib = NULL;
  u->tokens = SH_CALIB_LEAST;
  u->n_seqs = 1;
  u->j.o = &u->opts;
  u->j.select = (sh_qselect){o->keep, o->n_keep, o->also, o->n_also};
  u->scheme = (sh_qscheme){.format = o->format,
                           .bits = o->bits,
                           .group = o->group > 0 ? o->group : -1,
                           .symmetric = !o->zero_point,
                           .int8_activations = o->int8_activations};
  u->j.grid = (sh_qgrid){.bits = o->bits,
                         .group = o->group > 0 ? o->group : 0,
                         .symmetric = !o->zero_point,
                         .pow2 = o->pow2,
                         .scale_type = o->format == SH_QF_CT ? SH_BF16 : SH_F16,
                         .min_zero = o->format == SH_QF_GPTQ};
}

static int open_all(run *u, sh_error *e) {
  const sh_quantize_opts *o = u->j.o;
  const char *path = u->path;
  sh_backend_opts bo = {.threads = o->threads, .cpu = o->cpu};
  int rc = sh_ckpt_open(&u->ck, path, 0, e);
  if (rc == SH_ERR_FORMAT && !sh_dir_exists(path))
    return sh_fail(e, SH_ERR_UNSUPPORTED, "%s is a file; quantize wants the model's Hugging Face folder with bf16, f16 or f32 weights",
                   path);
  u->j.ck = u->ck;
  if (rc == 0) rc = refuse_source(u, path, e);
  if (rc == 0) rc = sh_backend_cpu_new(&u->be, &bo, e);
  if (rc == 0) rc = sh_model_open(&u->j.m, u->ck, u->be, NULL, e);
  if (rc == 0) rc = sh_qwork_init(&u->j.work, o->threads, o->cpu, e);
  if (rc < 0) return rc;
  if (o->format == SH_QF_CT && sh_model_config(u->j.m)->dtype == SH_F16) u->j.grid.scale_type = SH_F16;
  int layers = sh_model_config(u->j.m)->n_layers;
  u->part_bytes = sh_calloc((size_t)layers + 1, sizeof *u->part_bytes);
  u->used = sh_calloc((size_t)(o->n_keep + o->n_also) + 1, sizeof *u->used);
  if (!u->part_bytes || !u->used) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  rc = look_at_layers(u, e);
  if (rc == 0) warn_patterns(u);
  if (u->r.weights) u->r.bits_per_weight = u->code_bits / (double)u->r.weights;
  for (int i = 0; i < sh_ckpt_count(u->ck); i++)
    if (!in_layer(u, sh_ckpt_at(u->ck, i))) u->part_bytes[layers] += (int64_t)sh_ckpt_at(u->ck, i)->bytes;
  if (rc == 0) rc = fit_memory(u, e);
  return rc == 0 ? fit_whole_model(u, e) : rc;
}

void sh_quantizer_close(sh_quantizer *u) {
  if (!u) return;
  sh_qstream_free(u->j.stream);
  sh_qwriter_close(u->out);
  sh_free(u->j.records);
  sh_qwork_free(&u->j.work);
  sh_model_free(u->j.m);
  if (u->be) u->be->ops->free(u->be);
  sh_ckpt_close(u->ck);
  sh_free(u->part_bytes);
  sh_free(u->used);
  for (int i = 0; i < u->n_ignored; i++) sh_free((void *)(uintptr_t)u->ignored[i]);
  sh_free((void *)u->ignored);
  sh_free(u);
}

static int open_out(run *u, sh_error *e) {
  sh_buf job;
  sh_buf_init(&job, 1 << 20);
  int rc = describe_job(u, &job, e);
  if (rc == 0) {
    const sh_qwriter_opts w = {.path = u->opts.out,
                               .source = u->ck,
                               .n_parts = sh_model_config(u->j.m)->n_layers + 1,
                               .bytes = u->part_bytes,
                               .job = job.p,
                               .job_open = true,
                               .keep_job = true,
                               .resume = u->opts.resume};
    rc = sh_qwriter_open(&u->out, &w, e);
  }
  sh_buf_free(&job);
  return rc;
}

int sh_quantizer_open(sh_quantizer **q, const char *path, const sh_quantize_opts *o, sh_error *e) {
  *q = NULL;
  run *u = sh_calloc(1, sizeof *u);
  if (!u) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  set_up(u, path, o);
  int rc = open_all(u, e);
  if (rc == 0) rc = open_out(u, e);
  if (rc == 0) u->j.dir = sh_qwriter_dir(u->out);
  if (rc < 0) sh_quantizer_close(u);
  else *q = u;
  return rc;
}

bool sh_quantizer_whole(const sh_quantizer *u) { return sh_qwriter_whole(u->out); }

int sh_quantizer_room(sh_quantizer *u, int n_seqs, int64_t tokens, sh_error *e) {
  const sh_config *c = sh_model_config(u->j.m);
  u->n_seqs = n_seqs;
  u->tokens = tokens;
  int rc = fit_memory(u, e);
  return rc == 0 ? sh_qwriter_room(u->out, tokens * c->hidden * 4 * (c->n_experts ? 3 : 2), e) : rc;
}

int sh_quantizer_run(sh_quantizer *u, const sh_samples *calib, const char *says, sh_quantize_result *r, sh_error *e) {
  int rc = 0;
  u->began = sh_now_ns();
  u->says = says;
  if (looks_at_inputs(u)) {
    if (!calib) return sh_fail(e, SH_ERR_ARG, "calibration tokens are missing");
    u->opts.calib = calib;
    rc = sh_quantizer_room(u, calib->n, calib->tokens, e);
  }
  if (rc == 0) rc = settle_job(u, e);
  if (rc == 0) rc = open_stream(u, e);
  if (rc == 0) rc = do_parts(u, e);
  if (rc == 0) rc = finish(u, e);
  u->r.bytes = sh_qwriter_bytes(u->out);
  u->r.peak_bytes = sh_rss_peak_bytes();
  u->r.seconds = (double)(sh_now_ns() - u->began) * 1e-9;
  if (u->j.work.seconds > 0) u->r.search_gflops = u->j.work.flops / u->j.work.seconds * 1e-9;
  *r = u->r;
  return rc;
}

int sh_quantize(const char *path, const sh_quantize_opts *o, sh_quantize_result *r, sh_error *e) {
  sh_quantizer *q;
  *r = (sh_quantize_result){0};
  int rc = sh_quantizer_open(&q, path, o, e);
  if (rc == 0) rc = sh_quantizer_run(q, o->calib, NULL, r, e);
  sh_quantizer_close(q);
  return rc;
}
