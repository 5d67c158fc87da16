/* Binding into panels: which matrices become some, that they are the same weights as the rows, what becomes of heads, what is counted and
 * read ahead, the cache beside a GGUF, and that a model only gets panels from a backend that computes with them. */
#include "model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <time.h>

#include "base/log.h"
#include "formats/dequant.h"
#include "model/model.h"
#include "model/pass.h"
#include "unit/formats/files.h"

#define GOLDEN "tests/golden/"

typedef struct model {
  sh_ckpt *ck;
  sh_config c;
  sh_weights w;
} model;

static void load(model *m, const char *path, sh_repack_opts o) {
  sh_error e = {0};
  memset(m, 0, sizeof *m);
  o.threads = 1;
  if (!o.cache_dir && !o.cache_min) o.cache_dir = "";
  int rc = sh_ckpt_open(&m->ck, path, 0, &e);
  if (!rc) rc = sh_config_load(&m->c, m->ck, &e);
  if (!rc) rc = sh_weights_bind(&m->w, &m->c, m->ck, &o, &e);
  if (rc) fail_msg("%s", e.text);
}

static void unload(model *m) {
  sh_weights_free(&m->w);
  sh_ckpt_close(m->ck);
}

/* --- The same weights */

static bool whole(sh_dtype t) { return t == SH_F32 || t == SH_F16 || t == SH_BF16 || t == SH_F8_E4M3 || t == SH_IQ4_NL; }

static int n_panels, n_rows; /* matrices that were seen as such */

static void same(const sh_wview *p, const sh_wview *r, bool stays) {
  float a[1024], b[1024];
  assert_int_equal(!p->data, !r->data);
  if (!r->data) return;
  assert_int_equal(p->rows, r->rows);
  assert_int_equal(p->cols, r->cols);
  assert_true(r->cols <= 1024);
  assert_int_equal(sh_dtype_is_panel(p->type), !stays && !whole(r->type));
  if (!sh_dtype_is_panel(p->type)) {
    if (whole(r->type)) assert_int_equal(p->type, r->type);
    n_rows++;
  } else {
    n_panels++;
    assert_int_equal((uintptr_t)p->data % SH_PANEL_ALIGN, 0);
    assert_null(p->scales);
    assert_null(p->zeros);
  }
  for (int64_t i = 0; i < r->rows; i++) {
    sh_dequant_row(p, i, a);
    sh_dequant_row(r, i, b);
    for (int64_t c = 0; c < r->cols; c++) /* scales are 16 bits wide: no product is rounded */
      if (a[c] != b[c]) fail_msg("%s [%lld, %lld]: %a in place of %a", p->name, (long long)i, (long long)c, (double)a[c], (double)b[c]);
  }
}

static void same_layer(const sh_w_layer *p, const sh_w_layer *r) {
#define SAME(field) same(&p->field, &r->field, false)
  SAME(q), SAME(k), SAME(v), SAME(o), SAME(in_qkv), SAME(in_z), SAME(in_a), SAME(in_b), SAME(lin_out), SAME(gate), SAME(up), SAME(down);
  if (!r->moe) return;
  same(&p->moe->router, &r->moe->router, true);
  same(&p->moe->shared_expert_gate, &r->moe->shared_expert_gate, true);
  SAME(moe->shared_gate), SAME(moe->shared_up), SAME(moe->shared_down);
  for (int i = 0; i < r->moe->n_experts; i++) SAME(moe->experts[i].gate), SAME(moe->experts[i].up), SAME(moe->experts[i].down);
#undef SAME
}

static const char *const MODELS[] = {"models/dense-small-awq",
                                     "models/dense-small-gptq-actorder-asym",
                                     "models/dense-small-ct-sym-g32",
                                     "models/dense-small-fp8-block",
                                     "models/moe-small-awq",
                                     "models/moe-small-gptq",
                                     "models/moe-small-gptq-actorder-asym",
                                     "models/moe-small-ct-asym-g128",
                                     "gguf/dense-real-Q4_0.gguf",
                                     "gguf/dense-real-Q4_K_M.gguf",
                                     "gguf/dense-real-Q5_0.gguf",
                                     "gguf/dense-real-Q5_1.gguf",
                                     "gguf/dense-real-Q5_K_M.gguf",
                                     "gguf/moe-small-Q4_0.gguf",
                                     "gguf/moe-small-Q8_0.gguf",
                                     "gguf/moe-small-bf16.gguf"};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

static void panels_of_a_model_are_its_weights(void **state) {
  (void)state;
  char path[256];
  int n_mtp = 0;
  for (int i = 0; i < N_MODELS; i++) {
    model p, r;
    snprintf(path, sizeof path, GOLDEN "%s", MODELS[i]);
    load(&p, path, (sh_repack_opts){.panels = true, .head = SH_HEAD_BF16});
    load(&r, path, (sh_repack_opts){0});
    n_panels = n_rows = 0;
    for (int l = 0; l < r.w.n_layers; l++) same_layer(&p.w.layers[l], &r.w.layers[l]);
    bool floats = strstr(MODELS[i], "fp8") || strstr(MODELS[i], "bf16");
    assert_int_equal(n_panels == 0, floats);
    same(&p.w.head, &r.w.head, false);
    same(&p.w.embed, &r.w.embed, true);
    if (!whole(r.w.embed.type)) assert_ptr_equal(p.w.embed.row_bytes, r.w.embed.row_bytes);
    assert_int_equal(!p.w.mtp, !r.w.mtp);
    if (r.w.mtp) { /* no pass reads it: rows */
      same(&p.w.mtp->fc, &r.w.mtp->fc, true);
      same(&p.w.mtp->layer.q, &r.w.mtp->layer.q, true);
      n_mtp++;
    }
    assert_int_equal(p.w.bytes, r.w.bytes);
    assert_int_equal(p.w.dtypes, r.w.dtypes);
    unload(&p);
    unload(&r);
  }
  assert_true(n_mtp > 0);
}

/* --- Heads */

static double worst(const sh_wview *p, const sh_wview *r) {
  float a[1024], b[1024];
  double most = 0;
  for (int64_t i = 0; i < r->rows; i++) {
    sh_dequant_row(p, i, a);
    sh_dequant_row(r, i, b);
    for (int64_t c = 0; c < r->cols; c++) most = fmax(most, fabs((double)a[c] - (double)b[c]));
  }
  return most;
}

static void a_head_of_floats_is_rounded_where_the_body_is_or_when_asked(void **state) {
  (void)state;
  static const struct {
    const char *path;
    sh_head head;
    sh_dtype want;
    bool tied;
  } CASES[] = {
      {"models/dense-small-awq", SH_HEAD_AUTO, SH_P8, true},       {"models/dense-small-awq", SH_HEAD_INT4, SH_P4, true},
      {"models/dense-small-awq", SH_HEAD_BF16, SH_BF16, true},     {"models/dense-small", SH_HEAD_AUTO, SH_BF16, true},
      {"models/dense-small", SH_HEAD_INT6, SH_P6, true},           {"models/dense-real", SH_HEAD_AUTO, SH_BF16, false},
      {"models/dense-real", SH_HEAD_INT8, SH_P8, false},           {"models/dense-small-fp8-block", SH_HEAD_AUTO, SH_P8, true},
      {"gguf/dense-small-bf16.gguf", SH_HEAD_AUTO, SH_BF16, true}, {"gguf/dense-small-bf16.gguf", SH_HEAD_INT4, SH_P4, true},
  };
  char path[256];
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    model m;
    snprintf(path, sizeof path, GOLDEN "%s", CASES[i].path);
    load(&m, path, (sh_repack_opts){.panels = true, .head = CASES[i].head});
    bool own = CASES[i].want != SH_BF16;
    if (m.w.head.type != CASES[i].want) fail_msg("%s: head %s", path, sh_dtype_name(m.w.head.type));
    assert_int_equal(m.w.own_head, own && CASES[i].tied);
    assert_int_equal(m.w.head.data == m.w.embed.data, CASES[i].tied && !own);
    assert_int_equal(m.w.embed.type, SH_BF16);
    if (CASES[i].tied) {
      double off = worst(&m.w.head, &m.w.embed), steps = CASES[i].want == SH_P4 ? 15 : CASES[i].want == SH_P6 ? 63 : 255;
      assert_true(own ? off > 0 && off < 0.6 / steps : off == 0); /* the golden models' weights are within 0.3 */
    }
    unload(&m);
    load(&m, path, (sh_repack_opts){.head = SH_HEAD_INT8}); /* rows: as it is stored */
    assert_int_equal(m.w.head.type, SH_BF16);
    assert_false(m.w.own_head);
    unload(&m);
  }
}

/* Made of a GGUF with a head of its own, by a config that says tied. */
static void a_tied_embedding_of_blocks_is_looked_up_in_rows_and_multiplied_in_panels(void **state) {
  (void)state;
  model m;
  sh_weights w;
  sh_error e = {0};
  load(&m, GOLDEN "gguf/dense-real-Q4_K_M.gguf", (sh_repack_opts){0});
  m.c.tied = true;
  for (int head = SH_HEAD_AUTO; head <= SH_HEAD_BF16; head++) { /* it is in integers already */
    const sh_repack_opts o = {.panels = true, .head = (sh_head)head, .cache_dir = "", .threads = 1};
    assert_int_equal(sh_weights_bind(&w, &m.c, m.ck, &o, &e), 0);
    assert_true(w.own_head);
    assert_int_equal(w.embed.type, SH_Q4_K);
    assert_ptr_equal(w.embed.data, m.w.embed.data);
    assert_int_equal(w.head.type, SH_P4);
    same(&w.head, &w.embed, false);
    sh_weights_free(&w);
  }
  unload(&m);
}

/* --- Counting */

static bool apart(const sh_span *s, size_t n, const uint8_t *p, size_t bytes) {
  for (size_t i = 0; i < n; i++)
    if (p < s[i].p + s[i].n && s[i].p < p + bytes) return false;
  return true;
}

static void what_panels_replace_is_neither_read_nor_counted(void **state) {
  (void)state;
  char path[256];
  for (int i = 0; i < N_MODELS; i++) {
    model m;
    sh_span *s;
    size_t n, file = 0;
    snprintf(path, sizeof path, GOLDEN "%s", MODELS[i]);
    load(&m, path, (sh_repack_opts){.panels = true, .head = SH_HEAD_INT8});
    assert_true(m.w.repacked_in_memory);
    assert_int_equal(sh_weights_spans(&m.w, &s, &n, NULL), 0);
    for (size_t k = 0; k < n; k++) file += s[k].n;
    assert_true(m.w.held_bytes >= file + m.w.repacked_bytes);
    assert_in_range(m.w.held_bytes - file - m.w.repacked_bytes, 1, 100000); /* small vectors, as stored */
    for (int k = 0; k < sh_ckpt_count(m.ck); k++) {
      const sh_ftensor *t = sh_ckpt_at(m.ck, k);
      bool embed = strstr(t->name, "embed_tokens") || strstr(t->name, "token_embd"), switches = strstr(t->name, "inp");
      bool quantized = strstr(t->name, "qweight") || strstr(t->name, "weight_packed") || sh_dtype_block(t->type) >= 32;
      if (quantized && !embed && !switches && !apart(s, n, t->data, t->bytes)) fail_msg("%s: %s is read", path, t->name);
      if (embed) assert_false(apart(s, n, t->data, t->bytes));
    }
    sh_free(s);
    size_t repacked = m.w.repacked_bytes, held = m.w.held_bytes;
    unload(&m);
    load(&m, path, (sh_repack_opts){.panels = true, .head = SH_HEAD_INT8, .dry = true});
    assert_int_equal(m.w.repacked_bytes, repacked);
    assert_int_equal(m.w.repacked_in_memory, false);
    assert_in_range(held - m.w.held_bytes, 0, repacked / 10); /* gaps between parts are no page that is read */
    assert_true(!sh_dtype_is_panel(m.w.head.type) || !m.w.head.data);
    unload(&m);
  }
}

typedef struct tally {
  int found, shared, looked_up, problems;
  int64_t panels;
} tally;

static void on_found(void *ctx, const sh_w_found *f) {
  tally *t = ctx;
  t->found++;
  t->shared += f->shared;
  t->looked_up += f->looked_up;
  t->panels += f->view && sh_dtype_is_panel(f->view->type);
}
static void on_problem(void *ctx, int code, const char *text) {
  (void)code;
  (void)text;
  ((tally *)ctx)->problems++;
}
static void on_unused(void *ctx, const sh_ftensor *t, bool visual) {
  (void)ctx;
  (void)t;
  (void)visual;
}

static void an_audit_tells_what_will_be_panels(void **state) {
  (void)state;
  static const struct {
    const char *path;
    int shared, looked_up;
  } CASES[] = {{"models/dense-small-awq", 1, 1}, {"gguf/moe-small-Q8_0.gguf", 0, 1}, {"gguf/dense-real-Q4_K_M.gguf", 0, 1}};
  char path[256];
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    model m;
    sh_weights w;
    sh_error e = {0};
    tally t = {0};
    const sh_w_audit audit = {&t, on_found, on_problem, on_unused};
    snprintf(path, sizeof path, GOLDEN "%s", CASES[i].path);
    load(&m, path, (sh_repack_opts){.panels = true});
    assert_int_equal(sh_weights_audit(&w, &m.c, m.ck, &(sh_repack_opts){.panels = true}, &audit, &e), 0);
    assert_int_equal(t.problems, 0);
    assert_int_equal(t.shared, CASES[i].shared);
    assert_int_equal(t.looked_up, CASES[i].looked_up);
    assert_true(t.panels > 20);
    assert_int_equal(w.repacked_bytes, m.w.repacked_bytes);
    sh_weights_free(&w);
    unload(&m);
  }
}

/* --- The cache of a GGUF */

static sh_repack_where start(const char *path, sh_repack_opts o, char *name, size_t size) {
  model m, r;
  o.panels = true;
  o.cache_min = 1;
  load(&m, path, o);
  load(&r, path, (sh_repack_opts){0});
  for (int l = 0; l < r.w.n_layers; l++) same_layer(&m.w.layers[l], &r.w.layers[l]);
  sh_repack_where where = sh_repack_result(m.w.private_repack);
  unload(&r);
  unload(&m);
  char cmd[256];
  snprintf(cmd, sizeof cmd, "ls -1 '%s'/.sheng-cache/*.panels 2>/dev/null", temp_dir);
  FILE *p = popen(cmd, "r");
  assert_non_null(p);
  name[0] = 0;
  if (fgets(name, (int)size, p)) name[strcspn(name, "\n")] = 0;
  assert_null(fgets(cmd, sizeof cmd, p)); /* one */
  pclose(p);
  return where;
}

static void a_gguf_has_its_cache_beside_it(void **state) {
  (void)state;
  char name[512], again[512], here[512];
  copy_in(GOLDEN "gguf/dense-real-Q4_K_M.gguf", "m.gguf");
  char path[128];
  snprintf(path, sizeof path, "%s", in_temp("m.gguf"));
  assert_int_equal(start(path, (sh_repack_opts){0}, name, sizeof name), SH_REPACK_WRITTEN);
  assert_non_null(strstr(name, "/m.gguf-"));
  assert_int_equal(start(path, (sh_repack_opts){0}, again, sizeof again), SH_REPACK_MAPPED);
  assert_string_equal(name, again);
  assert_int_equal(start(temp_dir, (sh_repack_opts){0}, again, sizeof again), SH_REPACK_MAPPED); /* the folder's only one */
  assert_non_null(getcwd(here, sizeof here));
  assert_int_equal(chdir(temp_dir), 0);
  model m;
  load(&m, "m.gguf", (sh_repack_opts){.panels = true, .cache_min = 1});
  assert_int_equal(sh_repack_result(m.w.private_repack), SH_REPACK_MAPPED);
  unload(&m);
  assert_int_equal(chdir(here), 0);

  const struct timespec later[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = time(NULL) + 10}};
  assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
  assert_int_equal(start(path, (sh_repack_opts){0}, again, sizeof again), SH_REPACK_WRITTEN);
  assert_int_equal(start(path, (sh_repack_opts){0}, again, sizeof again), SH_REPACK_MAPPED);
}

static void another_head_is_another_cache(void **state) {
  (void)state;
  char name[512];
  copy_in(GOLDEN "gguf/dense-small-bf16.gguf", "m.gguf");
  const char *path = in_temp("m.gguf");
  static const sh_head HEADS[] = {SH_HEAD_INT8, SH_HEAD_INT4, SH_HEAD_INT6};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(start(path, (sh_repack_opts){.head = HEADS[i]}, name, sizeof name), SH_REPACK_WRITTEN);
    assert_int_equal(start(path, (sh_repack_opts){.head = HEADS[i]}, name, sizeof name), SH_REPACK_MAPPED);
  }
  assert_int_equal(start(path, (sh_repack_opts){0}, name, sizeof name), SH_REPACK_NOTHING); /* no integers, and none asked for */
}

/* --- The model asks its backend */

static bool yes(sh_backend *be, sh_dtype t) {
  (void)be;
  (void)t;
  return true;
}

static bool no_p6(sh_backend *be, sh_dtype t) {
  (void)be;
  return t != SH_P6;
}

static int binds(sh_backend *be, const sh_wview *v, sh_weight **out, sh_error *e) {
  (void)be;
  (void)v;
  (void)e;
  *out = NULL;
  return 0;
}

static void a_model_gets_panels_from_a_backend_that_takes_them(void **state) {
  (void)state;
  sh_ckpt *ck;
  sh_error e = {0};
  assert_int_equal(sh_ckpt_open(&ck, GOLDEN "models/dense-small-awq", 0, &e), 0);
  for (int kind = 0; kind < 3; kind++) {
    sh_backend *be;
    sh_model *m = NULL;
    assert_int_equal(sh_backend_cpu_new(&be, &(sh_backend_opts){.threads = 1}, &e), 0);
    const sh_backend_ops *own = be->ops;
    sh_backend_ops ops = *own;
    ops.takes = kind == 0 ? NULL : kind == 1 ? no_p6 : yes;
    ops.weight_bind = binds;
    be->ops = &ops;
    sh_repack_opts o = {.panels = true, .cache_dir = "", .threads = 1};
    assert_int_equal(sh_model_open(&m, ck, be, &o, &e), 0);
    assert_int_equal(sh_dtype_is_panel(m->w.layers[0].up.type), kind == 2);
    assert_int_equal(m->w.own_head, kind == 2);
    sh_model_free(m);
    o.panels = false; /* exact */
    assert_int_equal(sh_model_open(&m, ck, be, &o, &e), 0);
    assert_int_equal(m->w.layers[0].up.type, SH_I4);
    sh_model_free(m);
    o.panels = true;
    o.head = SH_HEAD_INT4;
    int rc = sh_model_open(&m, ck, be, &o, &e);
    assert_int_equal(rc, kind == 2 ? 0 : SH_ERR_UNSUPPORTED);
    if (rc) assert_says(e.text, "a head of integers is not computed by the cpu backend; leave --head out");
    else assert_int_equal(m->w.head.type, SH_P4);
    sh_model_free(m);
    be->ops = own;
    own->free(be);
  }
  sh_ckpt_close(ck);
}

static void a_bind_survives_failing_allocations(void **state) {
  (void)state;
  static const char *const PATHS[] = {GOLDEN "models/moe-small-gptq-actorder-asym", GOLDEN "gguf/moe-small-Q4_0.gguf"};
  for (int i = 0; i < 2; i++) {
    sh_ckpt *ck;
    sh_config c;
    sh_weights w;
    sh_error e = {0};
    int rc = sh_ckpt_open(&ck, PATHS[i], 0, &e);
    if (!rc) rc = sh_config_load(&c, ck, &e);
    assert_int_equal(rc, 0);
    for (long n = 0; n == 0 || rc; n++) {
      assert_true(n < 3000);
      sh_mem_fail_after(n);
      rc = sh_weights_bind(&w, &c, ck, &(sh_repack_opts){.panels = true, .cache_dir = "", .threads = 1}, &e);
      sh_mem_fail_after(-1);
      if (rc) assert_int_equal(rc, SH_ERR_NOMEM);
      if (rc) assert_null(w.private_repack);
    }
    sh_weights_free(&w);
    sh_ckpt_close(ck);
  }
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR);
#define IN_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, make_temp_dir, remove_temp_dir)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(panels_of_a_model_are_its_weights),
      cmocka_unit_test(a_head_of_floats_is_rounded_where_the_body_is_or_when_asked),
      cmocka_unit_test(a_tied_embedding_of_blocks_is_looked_up_in_rows_and_multiplied_in_panels),
      cmocka_unit_test(what_panels_replace_is_neither_read_nor_counted),
      cmocka_unit_test(an_audit_tells_what_will_be_panels),
      IN_FOLDER(a_gguf_has_its_cache_beside_it),
      IN_FOLDER(another_head_is_another_cache),
      cmocka_unit_test(a_model_gets_panels_from_a_backend_that_takes_them),
      cmocka_unit_test(a_bind_survives_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
