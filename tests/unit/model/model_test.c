/* The model's own promises: what it refuses, that a step allocates nothing, that its sizes add up, and that opening cleans up after itself
 * when memory runs out. */
#include "unit/model/golden_rig.h"

static const gold_case *DENSE = &GOLD_CASES[0], *MOE = &GOLD_CASES[1];

/* A valid batch of two sequences, to be broken in one place. */
typedef struct two {
  sh_seq seq[2];
  int32_t ids[5], out[2], pages[2][4];
  sh_batch b;
} two;

static void two_init(two *t) {
  *t = (two){.ids = {9, 10, 11, 12, 13}, .out = {2, 4}, .pages = {{0, 1, 2, 3}, {4, 5, 6, 7}}};
  t->seq[0] = (sh_seq){.row = 0, .count = 3, .pos = 0, .slot = 0, .pages = t->pages[0]};
  t->seq[1] = (sh_seq){.row = 3, .count = 2, .pos = 0, .slot = 1, .pages = t->pages[1]};
  t->b = (sh_batch){.n_seqs = 2, .seqs = t->seq, .n_tokens = 5, .ids = t->ids, .n_out = 2, .out_rows = t->out};
}

static void small_rig(rig *r, const gold_case *c) { rig_open(r, c, (rig_opts){.max_tokens = 8, .max_context = 64}); }

typedef struct breakage {
  const char *what;
  void (*apply)(two *t);
} breakage;
static void no_seqs(two *t) { t->b.n_seqs = 0; }
static void many_seqs(two *t) { t->b.n_seqs = RIG_SEQS + 1; }
static void no_tokens(two *t) { t->b.n_tokens = 0; }
static void many_tokens(two *t) { t->b.n_tokens = 9; }
static void many_out(two *t) { t->b.n_out = 9; }
static void negative_out(two *t) { t->b.n_out = -1; }
static void rows_overlap(two *t) { t->seq[1].row = 2; }
static void rows_missing(two *t) { t->seq[1].count = 1; }
static void rows_over(two *t) { t->seq[1].count = 3; }
static void no_count(two *t) { t->seq[0].count = 0; }
static void huge_count(two *t) { t->seq[0].count = INT32_MAX; }
static void negative_pos(two *t) { t->seq[0].pos = -1; }
static void far_pos(two *t) { t->seq[0].pos = 62; }
static void huge_pos(two *t) { t->seq[0].pos = INT32_MAX; }
static void slot_out(two *t) { t->seq[0].slot = RIG_SEQS + 1; }
static void negative_slot(two *t) { t->seq[0].slot = -1; }
static void slot_twice(two *t) { t->seq[1].slot = 0; }
static void no_pages(two *t) { t->seq[0].pages = NULL; }
static void page_out(two *t) { t->pages[1][0] = 1 << 20; }
static void negative_page(two *t) { t->pages[0][0] = -1; }
static void id_out(two *t) { t->ids[4] = 640; }
static void negative_id(two *t) { t->ids[0] = -1; }
static void out_row_out(two *t) { t->out[1] = 5; }
static void out_rows_descend(two *t) { t->out[0] = 4, t->out[1] = 2; }
static void out_row_twice(two *t) { t->out[0] = 4; }

static void a_broken_batch_is_refused_and_the_next_one_runs(void **state) {
  (void)state;
  static const breakage all[] = {
      {"no sequences", no_seqs},
      {"too many sequences", many_seqs},
      {"no tokens", no_tokens},
      {"too many tokens", many_tokens},
      {"too many rows out", many_out},
      {"negative rows out", negative_out},
      {"overlapping rows", rows_overlap},
      {"missing rows", rows_missing},
      {"too many rows", rows_over},
      {"empty sequence", no_count},
      {"huge count", huge_count},
      {"negative position", negative_pos},
      {"far position", far_pos},
      {"huge position", huge_pos},
      {"slot out of range", slot_out},
      {"negative slot", negative_slot},
      {"slot used twice", slot_twice},
      {"no page table", no_pages},
      {"page out of range", page_out},
      {"negative page", negative_page},
      {"id out of range", id_out},
      {"negative id", negative_id},
      {"out row out of range", out_row_out},
      {"descending out rows", out_rows_descend},
      {"out row twice", out_row_twice},
  };
  rig r;
  float logits[2 * 640];
  small_rig(&r, DENSE);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    two t;
    sh_error e = {0};
    two_init(&t);
    all[i].apply(&t);
    if (sh_model_forward(r.m, &t.b, logits, &e) != SH_ERR_INTERNAL) fail_msg("%s was not refused", all[i].what);
    assert_true(strlen(e.text) > 0);
    two_init(&t);
    for (int s = 0; s < 2; s++) rig_ok(sh_model_slot_zero(r.m, s, &e), &e);
    rig_ok(sh_model_forward(r.m, &t.b, logits, &e), &e);
  }
  rig_close(&r);
}

static void slots_and_pages_out_of_range_are_refused(void **state) {
  (void)state;
  rig r;
  sh_error e = {0};
  small_rig(&r, DENSE);
  int slots = RIG_SEQS + 1;
  assert_int_equal(sh_model_slot_zero(r.m, slots, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_model_slot_zero(r.m, -1, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_model_slot_copy(r.m, 0, slots, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_model_slot_copy(r.m, -1, 0, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_model_page_copy(r.m, r.n_pages, 0, &e), SH_ERR_INTERNAL);
  assert_int_equal(sh_model_page_copy(r.m, 0, -1, &e), SH_ERR_INTERNAL);
  sh_model_sizes again = {1, 1, 1, SH_KV_F32, 1, 1, 1, 1};
  assert_int_equal(sh_model_reserve(r.m, &again, &e), SH_ERR_INTERNAL);
  rig_close(&r);
}

static void a_step_allocates_nothing(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    rig r;
    two t;
    sh_error e = {0};
    float logits[2 * 640];
    small_rig(&r, i == 0 ? DENSE : MOE);
    two_init(&t);
    sh_mem_guard_begin();
    int rc = sh_model_forward(r.m, &t.b, logits, &e);
    long n = sh_mem_guard_end();
    rig_ok(rc, &e);
    assert_int_equal(n, 0);
    rig_close(&r);
  }
}

/* Wanted rows are computed in blocks: 150 rows of one sequence in one call, and a few of them alone, have the same bits. */
static void logits_of_some_rows_are_those_of_all_rows(void **state) {
  (void)state;
  rig r;
  int n;
  sh_error e = {0};
  sh_st *st = gold_open(DENSE);
  int32_t *ids = gold_ints(st, DENSE, "prompt", 6, &n);
  n = 150;
  rig_open(&r, DENSE, (rig_opts){.max_tokens = 150});
  rig_feed(&r, 0, ids, n, n);
  int32_t out[] = {0, 63, 64, 128, 149};
  float logits[5 * 640];
  sh_seq seq = {.row = 0, .count = n, .pos = 0, .slot = r.seq[1].slot, .pages = r.seq[1].pages};
  sh_batch b = {.n_seqs = 1, .seqs = &seq, .n_tokens = n, .ids = ids, .n_out = 5, .out_rows = out};
  rig_ok(sh_model_forward(r.m, &b, logits, &e), &e);
  for (int i = 0; i < 5; i++) assert_memory_equal(logits + i * 640, r.seq[0].trace + out[i] * 640, 640 * sizeof(float));
  sh_free(ids);
  sh_st_close(st);
  rig_close(&r);
}

static void sizes_follow_from_the_config(void **state) {
  (void)state;
  rig r;
  small_rig(&r, DENSE);
  /* dense-small: 6 linear layers of 4 x 32 x 32 and 3 x 256 conv inputs; 2 attention layers of 2 x 64 */
  assert_int_equal(sh_model_state_bytes(r.m), 6 * (4 * 32 * 32 + 3 * (2 * 2 * 32 + 4 * 32)) * 4);
  assert_int_equal(sh_model_kv_bytes_per_token(r.m, SH_KV_F32), 2 * 2 * 2 * 64 * 4);
  assert_int_equal(sh_model_kv_bytes_per_token(r.m, SH_KV_BF16), 2 * 2 * 2 * 64 * 2);
  assert_true(sh_model_scratch_bytes(r.m, 16, 4) > sh_model_scratch_bytes(r.m, 8, 4));
  assert_int_equal(sh_model_scratch_bytes(r.m, 8, 1000), sh_model_scratch_bytes(r.m, 8, 64)); /* the head runs in blocks */
  assert_non_null(strstr(sh_model_describe(r.m), "8 layers"));
  assert_true(sh_model_weight_bytes(r.m) > 1000000 && sh_model_weight_bytes(r.m) < 4000000);
  rig_close(&r);
}

static bool inside(const sh_span *s, size_t n, const uint8_t *p, size_t bytes) {
  for (size_t i = 0; i < n; i++)
    if (p >= s[i].p && p + bytes <= s[i].p + s[i].n) return true;
  return false;
}

static bool apart(const sh_span *s, size_t n, const uint8_t *p, size_t bytes) {
  for (size_t i = 0; i < n; i++)
    if (p < s[i].p + s[i].n && s[i].p < p + bytes) return false;
  return true;
}

/* Opened and not reserved; tells the stored matrices that a pass computes with from those that it leaves alone. */
static void what_is_read_ahead_is_what_a_pass_reads(void **state) {
  (void)state;
  static const char *const FOLDERS[] = {"dense-small",     "dense-real",     "moe-real-fused",      "moe-small",
                                        "dense-small-awq", "moe-small-gptq", "moe-small-fp8-block", "dense-small-ct-asym-g128"};
  for (size_t f = 0; f < sizeof FOLDERS / sizeof *FOLDERS; f++) {
    rig r;
    char path[256];
    sh_span *s;
    size_t n;
    sh_error e = {0};
    int read = 0, left = 0;
    snprintf(path, sizeof path, GOLDEN "models/%s", FOLDERS[f]);
    rig_open_path(&r, path, (rig_opts){.max_tokens = 8, .max_context = 64});
    rig_ok(sh_weights_spans(&r.m->w, &s, &n, &e), &e);
    for (int i = 0; i < sh_ckpt_count(r.ckpt); i++) {
      const sh_ftensor *t = sh_ckpt_at(r.ckpt, i);
      bool aside = strncmp(t->name, "mtp.", 4) == 0 || strncmp(t->name, "model.visual.", 13) == 0;
      bool repacked = strstr(t->name, ".qweight") || strstr(t->name, ".qzeros"); /* into memory */
      bool matrix = t->n_dims >= 2 && (strstr(t->name, "proj.weight") || strstr(t->name, "embed_tokens") || strstr(t->name, "experts."));
      if (aside || repacked) {
        if (!apart(s, n, t->data, t->bytes)) fail_msg("%s: %s is read", FOLDERS[f], t->name);
        left++;
      } else if (matrix && strcmp(t->type_name, "I64") != 0 && !strstr(t->name, "zero_point") && !strstr(t->name, ".scales")) {
        if (!inside(s, n, t->data, t->bytes) && t->n_dims == 2) fail_msg("%s: %s is not read", FOLDERS[f], t->name);
        if (t->n_dims == 3 && apart(s, n, t->data, t->bytes)) fail_msg("%s: %s is not read", FOLDERS[f], t->name);
        read++;
      }
    }
    assert_true(read > 0);
    bool plain = strcmp(FOLDERS[f], "dense-small") == 0 || strcmp(FOLDERS[f], "dense-small-ct-asym-g128") == 0;
    assert_true(plain || left > 2);
    sh_free(s);
    rig_ok(sh_model_read_ahead(r.m, &e), &e);
    rig_ok(sh_model_read_ahead(r.m, &e), &e); /* once */
    rig_ok(sh_model_read_wait(r.m, &e), &e);
    rig_close(&r);
  }
}

/* Opens and reserves with the n-th allocation failing, for every n: an error each time, no leak (the address sanitizer's build says), no
 * crash. */
static void running_out_of_memory_while_opening_is_an_error(void **state) {
  const gold_case *c = *state;
  char path[256];
  sh_error e = {0};
  sh_ckpt *ckpt;
  sh_backend *be;
  snprintf(path, sizeof path, GOLDEN "%s", c->model);
  sh_backend_opts bo = {.threads = 1};
  rig_ok(sh_ckpt_open(&ckpt, path, 0, &e), &e);
  int rc = -1;
  for (long n = 0; rc < 0; n++) {
    assert_true(n < 100000);
    rig_ok(sh_backend_cpu_new(&be, &bo, &e), &e);
    sh_model *m = NULL;
    sh_model_sizes s = {16, 8, 2, SH_KV_F32, 8, 2, 2, 64};
    sh_mem_fail_after(n);
    rc = sh_model_open(&m, ckpt, be, NULL, &e);
    if (rc == 0) rc = sh_model_read_ahead(m, &e);
    if (rc == 0) rc = sh_model_reserve(m, &s, &e);
    if (rc == 0) rc = sh_model_read_wait(m, &e);
    sh_mem_fail_after(-1);
    if (rc < 0) assert_int_equal(rc, SH_ERR_NOMEM);
    sh_model_free(m);
    be->ops->free(be);
  }
  sh_ckpt_close(ckpt);
}

int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_broken_batch_is_refused_and_the_next_one_runs),
      cmocka_unit_test(slots_and_pages_out_of_range_are_refused),
      cmocka_unit_test(a_step_allocates_nothing),
      cmocka_unit_test(logits_of_some_rows_are_those_of_all_rows),
      cmocka_unit_test(sizes_follow_from_the_config),
      cmocka_unit_test(what_is_read_ahead_is_what_a_pass_reads),
      cmocka_unit_test_prestate(running_out_of_memory_while_opening_is_an_error, (void *)(uintptr_t)&GOLD_CASES[0]),
      cmocka_unit_test_prestate(running_out_of_memory_while_opening_is_an_error, (void *)(uintptr_t)&GOLD_CASES[3]),
  };
  return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
