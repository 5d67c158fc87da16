/* Whole models in mixed states: what is stored decides, matrix by matrix. The files are put together from the golden checkpoints, so every
 * view can be held against the one of the checkpoint it came from. */
#include "model/weights.h"

#include "base/log.h"
#include "unit/formats/quant_files.h"

#define GOLDEN "tests/golden/models/"

typedef struct model {
  sh_ckpt *ck;
  sh_config c;
  sh_weights w;
} model;

static int try_load(model *m, const char *path, sh_error *e) {
  memset(m, 0, sizeof *m);
  const sh_repack_opts o = {.cache_dir = "", .threads = 1};
  int rc = sh_ckpt_open(&m->ck, path, 0, e);
  if (!rc) rc = sh_config_load(&m->c, m->ck, e);
  if (!rc) rc = sh_weights_bind(&m->w, &m->c, m->ck, &o, e);
  return rc;
}

static void load(model *m, const char *path) {
  sh_error e = {0};
  if (try_load(m, path, &e)) fail_msg("%s", e.text);
}

static void unload(model *m) {
  sh_weights_free(&m->w);
  sh_ckpt_close(m->ck);
}

/* --- Views of two models side by side */

static void same_rows(const sh_wview *a, const sh_wview *b) {
  float x[1024], y[1024];
  assert_int_equal(a->rows, b->rows);
  assert_int_equal(a->cols, b->cols);
  assert_true(a->cols <= 1024);
  for (int64_t r = 0; r < a->rows; r++) {
    sh_dequant_row(a, r, x);
    sh_dequant_row(b, r, y);
    if (memcmp(x, y, (size_t)a->cols * sizeof *x)) fail_msg("%s: row %lld differs from that of %s", a->name, (long long)r, b->name);
  }
}

/* The view must be that of `packed` when it is packed and that of `plain` when it is not; counts which. */
static void same_as_source(const sh_wview *v, const sh_wview *plain, const sh_wview *packed, int count[2]) {
  if (!v->data) return;
  bool q = v->type == SH_I4 || v->type == SH_F8_E4M3;
  count[q]++;
  same_rows(v, q ? packed : plain);
}

static void same_layer(const sh_w_layer *v, const sh_w_layer *plain, const sh_w_layer *packed, int n_experts, int count[2]) {
#define SAME(field) same_as_source(&v->field, &plain->field, &packed->field, count)
  SAME(q), SAME(k), SAME(v), SAME(o), SAME(in_qkv), SAME(in_z), SAME(in_a), SAME(in_b), SAME(lin_out), SAME(gate), SAME(up), SAME(down);
  if (!v->moe) return;
  SAME(moe->router), SAME(moe->shared_gate), SAME(moe->shared_up), SAME(moe->shared_down), SAME(moe->shared_expert_gate);
  for (int e = 0; e < n_experts; e++) SAME(moe->experts[e].gate), SAME(moe->experts[e].up), SAME(moe->experts[e].down);
#undef SAME
}

/* --- Putting files together */

/* A copy of a tensor under another name. */
static void copy_as(qfile *f, const sh_ftensor *t, const char *name) {
  uint8_t *p = qf_add(f, name, "", t->type, 0, 0);
  sh_ftensor *x = &f->t[f->n - 1];
  free(p);
  const char *own = x->name;
  *x = *t;
  x->name = own;
  x->data = malloc(t->bytes + 1);
  memcpy((void *)(uintptr_t)x->data, t->data, t->bytes);
}

/* Whether the tensor is a part of module `base`. */
static bool part_of(const char *name, const char *base) {
  size_t n = strlen(base);
  return strncmp(name, base, n) == 0 && name[n] == '.' && !strchr(name + n + 1, '.');
}

/* All tensors of `from`, without those of modules for which leave() says so. */
static void copy_all(qfile *f, const sh_ckpt *from, bool (*leave)(const char *name)) {
  for (int i = 0; i < sh_ckpt_count(from); i++) {
    const sh_ftensor *t = sh_ckpt_at(from, i);
    if (!leave || !leave(t->name)) copy_as(f, t, t->name);
  }
}

static void copy_missing(qfile *f, const sh_ckpt *from, const char *base) {
  for (int i = 0; i < sh_ckpt_count(from); i++) {
    if (part_of(sh_ckpt_at(from, i)->name, base)) copy_as(f, sh_ckpt_at(from, i), sh_ckpt_at(from, i)->name);
  }
}

static void write_with(qfile *f, const char *config_of) {
  sh_error e = {0};
  char path[128];
  snprintf(path, sizeof path, GOLDEN "%s/config.json", config_of);
  if (sh_st_write(in_temp("model.safetensors"), f->t, f->n, &e)) fail_msg("%s", e.text);
  copy_in(path, "config.json");
}

static const char *const UNPACKED[] = {
    "model.layers.0.linear_attn.in_proj_qkv",   "model.layers.0.linear_attn.in_proj_z",   "model.layers.0.linear_attn.out_proj",
    "model.layers.1.linear_attn.in_proj_z", /* its other half stays packed */
    "model.layers.3.self_attn.k_proj",          "model.layers.1.mlp.experts.3.gate_proj", "model.layers.1.mlp.experts.5.down_proj",
    "model.layers.2.mlp.shared_expert.up_proj", "model.layers.0.mlp.experts.0.gate_proj",
};
enum { N_UNPACKED = sizeof UNPACKED / sizeof UNPACKED[0] };

static bool is_unpacked(const char *name) {
  for (int i = 0; i < N_UNPACKED; i++) {
    if (part_of(name, UNPACKED[i])) return true;
  }
  return false;
}

static void every_matrix_has_a_state_of_its_own(void **state) {
  (void)state;
  static const char *const KINDS[] = {"moe-small-awq", "moe-small-gptq-actorder-asym", "moe-small-ct-asym-g128", "moe-small-fp8-block"};
  model plain, packed, mixed;
  load(&plain, GOLDEN "moe-small");
  for (int i = 0; i < 4; i++) {
    char path[128];
    int count[2] = {0, 0}, full[2] = {0, 0};
    snprintf(path, sizeof path, GOLDEN "%s", KINDS[i]);
    load(&packed, path);
    qfile *f = calloc(1, sizeof *f);
    copy_all(f, packed.ck, is_unpacked);
    for (int k = 0; k < N_UNPACKED; k++) copy_missing(f, plain.ck, UNPACKED[k]);
    write_with(f, KINDS[i]);
    load(&mixed, temp_dir);
    for (int l = 0; l < mixed.w.n_layers; l++) {
      same_layer(&mixed.w.layers[l], &plain.w.layers[l], &packed.w.layers[l], 8, count);
      same_layer(&packed.w.layers[l], &plain.w.layers[l], &packed.w.layers[l], 8, full);
    }
    assert_int_equal(count[1], full[1] - N_UNPACKED);
    assert_int_equal(count[0], full[0] + N_UNPACKED);
    assert_int_equal(mixed.w.n_unused, 0);
    assert_int_equal(packed.w.n_unused, 0);
    unload(&mixed);
    unload(&packed);
    qf_free(f);
    free(f);
  }
  unload(&plain);
}

/* The prediction head, the output head and even the router: nothing has to stay plain. */
static void heads_may_be_packed_too(void **state) {
  (void)state;
  model plain, packed, mixed;
  load(&plain, GOLDEN "moe-small");
  load(&packed, GOLDEN "moe-small-awq");
  assert_false(plain.c.tied);
  qfile *f = calloc(1, sizeof *f);
  static const char OLD[] = "mtp.layers.0.", FROM[] = "model.layers.3.";
  for (int i = 0; i < sh_ckpt_count(packed.ck); i++) {
    const sh_ftensor *t = sh_ckpt_at(packed.ck, i);
    char name[200];
    if (strncmp(t->name, OLD, sizeof OLD - 1) == 0 || part_of(t->name, "lm_head") || part_of(t->name, "model.layers.1.mlp.gate") ||
        part_of(t->name, "mtp.fc"))
      continue;
    copy_as(f, t, t->name);
    if (strncmp(t->name, FROM, sizeof FROM - 1)) continue;
    snprintf(name, sizeof name, "mtp.layers.0.%s", t->name + sizeof FROM - 1);
    copy_as(f, t, name);
  }
  const qspec head = {.base = "lm_head", .layout = SH_QL_AWQ, .rows = 640, .cols = 128, .group = 128, .scale_type = SH_F16},
              router =
                  {.base = "model.layers.1.mlp.gate", .layout = SH_QL_AWQ, .rows = 8, .cols = 128, .group = 128, .scale_type = SH_BF16},
              fc = {.base = "mtp.fc", .layout = SH_QL_AWQ, .rows = 128, .cols = 256, .group = 128, .scale_type = SH_F16, .seed = 4};
  float *want = malloc(640 * 128 * sizeof *want);
  qf_module(f, &head, want);
  float *want_fc = malloc(128 * 256 * sizeof *want), want_router[8 * 128];
  qf_module(f, &router, want_router);
  qf_module(f, &fc, want_fc);
  write_with(f, "moe-small-awq");
  load(&mixed, temp_dir);
  expect_weights(&mixed.w.head, want);
  expect_weights(&mixed.w.layers[1].moe->router, want_router);
  assert_non_null(mixed.w.mtp);
  expect_weights(&mixed.w.mtp->fc, want_fc);
  int count[2] = {0, 0};
  same_layer(&mixed.w.mtp->layer, &plain.w.layers[3], &packed.w.layers[3], 8, count);
  assert_int_equal(count[1], 4 + 3 + 24);
  assert_int_equal(mixed.w.n_unused, 0);
  free(want);
  free(want_fc);
  unload(&mixed);
  unload(&packed);
  unload(&plain);
  qf_free(f);
  free(f);
}

/* --- Fused experts */

static bool is_expert(const char *name) { return strstr(name, ".mlp.experts.") && strncmp(name, "mtp.", 4); }
static bool is_expert_input(const char *name) { return is_expert(name) && !strstr(name, "down_proj"); }

/* One tensor [E, rows, cols] of each expert's matrices one after the other. */
static void fuse(qfile *f, const sh_ckpt *from, int layer, const char *const parts[], int n_parts, const char *end, const char *name,
                 int64_t rows, int64_t cols) {
  char full[160], one[160];
  snprintf(full, sizeof full, "model.layers.%d.mlp.experts.%s", layer, name);
  snprintf(one, sizeof one, "model.layers.%d.mlp.experts.0.%s%s", layer, parts[0], end);
  sh_dtype type = sh_ckpt_find(from, one)->type;
  uint8_t *p = qf_add(f, full, "", type, 8 * rows, cols);
  sh_ftensor *t = &f->t[f->n - 1];
  t->n_dims = 3;
  t->dims[0] = 8, t->dims[1] = rows, t->dims[2] = cols;
  for (int e = 0; e < 8; e++) {
    for (int k = 0; k < n_parts; k++) {
      snprintf(one, sizeof one, "model.layers.%d.mlp.experts.%d.%s%s", layer, e, parts[k], end);
      const sh_ftensor *s = sh_ckpt_find(from, one);
      assert_non_null(s);
      memcpy(p, s->data, s->bytes);
      p += s->bytes;
    }
  }
  assert_ptr_equal(p, t->data + t->bytes);
}

static const char *const INPUTS[] = {"gate_proj", "up_proj"}, *const OUTPUTS[] = {"down_proj"};

static void fused_fp8_experts_have_the_scales_of_their_blocks(void **state) {
  (void)state;
  model fp8, mixed;
  load(&fp8, GOLDEN "moe-small-fp8-block");
  qfile *f = calloc(1, sizeof *f);
  copy_all(f, fp8.ck, is_expert);
  for (int l = 0; l < fp8.w.n_layers; l++) {
    fuse(f, fp8.ck, l, INPUTS, 2, ".weight", "gate_up_proj", 256, 128);
    fuse(f, fp8.ck, l, INPUTS, 2, ".weight_scale_inv", "gate_up_proj_scale_inv", 2, 1);
    fuse(f, fp8.ck, l, OUTPUTS, 1, ".weight", "down_proj", 128, 128);
    fuse(f, fp8.ck, l, OUTPUTS, 1, ".weight_scale_inv", "down_proj_scale_inv", 1, 1);
  }
  write_with(f, "moe-small-fp8-block");
  load(&mixed, temp_dir);
  int count[2] = {0, 0};
  for (int l = 0; l < mixed.w.n_layers; l++) same_layer(&mixed.w.layers[l], &fp8.w.layers[l], &fp8.w.layers[l], 8, count);
  assert_true(count[1] >= 24 * mixed.w.n_layers);
  assert_int_equal(mixed.w.n_unused, 0);
  unload(&mixed);

  sh_error e = {0};
  sh_ftensor *scales = qf_find(f, "model.layers.0.mlp.experts.gate_up_proj_scale_inv");
  scales->dims[1] = 1, scales->dims[2] = 2;
  write_with(f, "moe-small-fp8-block");
  assert_int_equal(try_load(&mixed, temp_dir, &e), SH_ERR_FORMAT);
  assert_says(e.text, "shape [8, 2, 1] is wanted, [8, 1, 2] is found");
  unload(&mixed);

  unload(&fp8);
  qf_free(f);
  free(f);
}

/* 192 rows per scale: gate's last rows and up's first share one. */
static void blocks_that_straddle_gate_and_up_are_refused(void **state) {
  (void)state;
  model plain, fp8, mixed;
  sh_error e = {0};
  load(&plain, GOLDEN "moe-small");
  load(&fp8, GOLDEN "moe-small-fp8-block");
  qfile *f = calloc(1, sizeof *f);
  copy_all(f, plain.ck, is_expert);
  for (int l = 0; l < fp8.w.n_layers; l++) {
    fuse(f, fp8.ck, l, INPUTS, 2, ".weight", "gate_up_proj", 256, 128);
    fuse(f, fp8.ck, l, INPUTS, 2, ".weight_scale_inv", "gate_up_proj_scale_inv", 2, 1);
    fuse(f, plain.ck, l, OUTPUTS, 1, ".weight", "down_proj", 128, 128);
  }
  write_with(f, "moe-small-fp8-block");
  size_t n;
  char *config = slurp(in_temp("config.json"), &n);
  char *at = memmem(config, n, "\"weight_block_size\"", 19);
  assert_non_null(at);
  for (size_t left = n - (size_t)(at - config); left > 3; at++, left--) {
    if (memcmp(at, "128", 3)) continue;
    memcpy(at, "192", 3);
    break;
  }
  put_file("config.json", config, n);
  assert_int_equal(try_load(&mixed, temp_dir, &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "blocks of 192 rows straddle its halves of 128");
  sh_free(config);
  unload(&mixed);
  unload(&fp8);
  unload(&plain);
  qf_free(f);
  free(f);
}

static void fused_inputs_may_stand_beside_single_packed_outputs(void **state) {
  (void)state;
  model plain, packed, mixed;
  load(&plain, GOLDEN "moe-small");
  load(&packed, GOLDEN "moe-small-gptq");
  qfile *f = calloc(1, sizeof *f);
  copy_all(f, packed.ck, is_expert_input);
  for (int l = 0; l < plain.w.n_layers; l++) fuse(f, plain.ck, l, INPUTS, 2, ".weight", "gate_up_proj", 256, 128);
  write_with(f, "moe-small-gptq");
  load(&mixed, temp_dir);
  for (int l = 0; l < mixed.w.n_layers; l++) {
    int count[2] = {0, 0};
    const sh_w_moe *m = mixed.w.layers[l].moe;
    same_layer(&mixed.w.layers[l], &plain.w.layers[l], &packed.w.layers[l], 8, count);
    assert_int_equal(m->experts[7].up.type, SH_BF16);
    assert_int_equal(m->experts[7].down.type, SH_I4);
  }
  assert_int_equal(mixed.w.n_unused, 0);
  unload(&mixed);
  unload(&packed);
  unload(&plain);
  qf_free(f);
  free(f);
}

/* --- What a bind tells */

/* What is computed with is counted as it lies in memory: the nibbles and scales where the stored ones were, and a byte for each zero point.
 */
static void what_was_rewritten_is_counted_as_it_is(void **state) {
  (void)state;
  static const char *const FOLDERS[] = {GOLDEN "dense-small-awq", GOLDEN "moe-small-gptq-actorder-asym", GOLDEN "moe-small-ct-asym-g128"};
  for (size_t f = 0; f < sizeof FOLDERS / sizeof *FOLDERS; f++) {
    model m;
    sh_span *s;
    size_t n, file = 0;
    load(&m, FOLDERS[f]);
    assert_true(m.w.repacked_in_memory);
    assert_int_equal(sh_weights_spans(&m.w, &s, &n, NULL), 0);
    for (size_t i = 0; i < n; i++) file += s[i].n;
    sh_free(s);
    /* beside the matrices in the file and the image: the small vectors, as stored */
    assert_true(m.w.held_bytes >= file + m.w.repacked_bytes);
    assert_in_range(m.w.held_bytes - file - m.w.repacked_bytes, 1, 100000);
    unload(&m);
  }
}

static void a_bind_says_what_was_rewritten(void **state) {
  (void)state;
  model m;
  char types[64];
  load(&m, GOLDEN "dense-small-ct-sym-g32");
  assert_int_equal(m.w.repacked_bytes, 0); /* used where it lies */
  assert_string_equal(sh_weights_dtypes(&m.w, types, sizeof types), "BF16, I4");
  unload(&m);
  load(&m, GOLDEN "dense-small-awq");
  assert_true(m.w.repacked_bytes > 700000 && m.w.repacked_bytes < 800000);
  assert_true(m.w.repacked_in_memory);
  assert_true(m.w.bytes > m.w.repacked_bytes);
  unload(&m);
  load(&m, GOLDEN "dense-small");
  assert_int_equal(m.w.held_bytes, m.w.bytes - m.w.mtp_bytes); /* nothing is rewritten */
  unload(&m);
  load(&m, GOLDEN "dense-small-fp8-block");
  assert_int_equal(m.w.repacked_bytes, 0);
  assert_string_equal(sh_weights_dtypes(&m.w, types, sizeof types), "BF16, F8_E4M3");
  unload(&m);
}

static void a_plain_weight_beside_a_packed_one_is_left_aside(void **state) {
  (void)state;
  model plain, packed, mixed;
  load(&plain, GOLDEN "dense-small");
  load(&packed, GOLDEN "dense-small-awq");
  qfile *f = calloc(1, sizeof *f);
  copy_all(f, packed.ck, NULL);
  copy_missing(f, plain.ck, "model.layers.0.mlp.up_proj");
  write_with(f, "dense-small-awq");
  load(&mixed, temp_dir);
  assert_int_equal(mixed.w.layers[0].up.type, SH_I4);
  assert_int_equal(mixed.w.n_unused, 1);
  unload(&mixed);
  unload(&packed);
  unload(&plain);
  qf_free(f);
  free(f);
}

static void a_bind_survives_failing_allocations(void **state) {
  (void)state;
  model m;
  const sh_repack_opts o = {.cache_dir = "", .threads = 1};
  load(&m, GOLDEN "moe-small-gptq-actorder-asym");
  sh_weights_free(&m.w);
  long n = 0;
  for (;; n++) {
    assert_true(n < 3000);
    sh_error e = {0};
    sh_mem_fail_after(n);
    int rc = sh_weights_bind(&m.w, &m.c, m.ck, &o, &e);
    sh_mem_fail_after(-1);
    if (rc == 0) break;
    assert_int_equal(rc, SH_ERR_NOMEM);
    assert_null(m.w.private_arena);
    assert_null(m.w.private_repack);
  }
  assert_true(n >= 10);
  unload(&m);
}

static void read_layer(const sh_w_layer *l, float *row) {
  const sh_wview *v[] = {&l->q, &l->k, &l->v, &l->o, &l->in_qkv, &l->in_z, &l->lin_out, &l->gate, &l->up, &l->down};
  for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
    if (!v[i]->data) continue;
    sh_dequant_row(v[i], 0, row);
    sh_dequant_row(v[i], v[i]->rows - 1, row);
  }
}

/* Damage, half of it in the header: an error, or a model whose rows can all be read. */
static void mutated_models_are_refused_or_can_be_read(void **state) {
  (void)state;
  static const char *const KINDS[] = {"dense-small-gptq-actorder-asym", "dense-small-awq", "dense-small-ct-asym-g128",
                                      "dense-small-fp8-block"};
  float *row = malloc(1 << 20);
  uint64_t seed = 0xfeed;
  int loaded = 0, refused = 0;
  for (int k = 0; k < 4; k++) {
    char path[128];
    size_t n;
    snprintf(path, sizeof path, GOLDEN "%s/config.json", KINDS[k]);
    copy_in(path, "config.json");
    snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", KINDS[k]);
    char *good = slurp(path, &n);
    uint8_t *bad = malloc(n);
    size_t head = 8 + (size_t)(uint8_t)good[0] + ((size_t)(uint8_t)good[1] << 8) + ((size_t)(uint8_t)good[2] << 16);
    memcpy(bad, good, n);
    for (int i = 0; i < 400; i++) {
      size_t from = i % 2 ? head : 0, len = i % 2 ? n - head : head;
      for (int t = 0; t < (i % 2 ? 200 : 1); t++) mutate(bad + from, len, &seed);
      put_file("model.safetensors", bad, n);
      model m;
      sh_error e = {0};
      int rc = try_load(&m, temp_dir, &e);
      assert_int_not_equal(rc, SH_ERR_NOMEM);
      assert_int_not_equal(rc, SH_ERR_INTERNAL);
      for (int l = 0; !rc && l < m.w.n_layers; l++) read_layer(&m.w.layers[l], row);
      if (rc) assert_true(strlen(e.text) > 10);
      loaded += !rc;
      refused += rc != 0;
      unload(&m);
      memcpy(bad + from, good + from, len);
    }
    free(bad);
    sh_free(good);
  }
  assert_true(loaded > 100 && refused > 100);
  free(row);
}

int main(void) {
  cap_memory();
  sh_log_set_level(SH_LOG_ERROR);
#define IN_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, make_temp_dir, remove_temp_dir)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(every_matrix_has_a_state_of_its_own),
      IN_FOLDER(heads_may_be_packed_too),
      IN_FOLDER(fused_fp8_experts_have_the_scales_of_their_blocks),
      IN_FOLDER(blocks_that_straddle_gate_and_up_are_refused),
      IN_FOLDER(fused_inputs_may_stand_beside_single_packed_outputs),
      cmocka_unit_test(a_bind_says_what_was_rewritten),
      cmocka_unit_test(what_was_rewritten_is_counted_as_it_is),
      IN_FOLDER(a_plain_weight_beside_a_packed_one_is_left_aside),
      cmocka_unit_test(a_bind_survives_failing_allocations),
      IN_FOLDER(mutated_models_are_refused_or_can_be_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
