/* What a step must do, against counts by hand; and the backend that times calls, which changes nothing. */
#include "unit/model/golden_rig.h"

#include "bench/costs.h"
#include "bench/timed.h"

typedef struct opened {
  sh_ckpt *ckpt;
  sh_backend *be;
  sh_model *m;
} opened;

static void open_model(opened *o, const char *path, bool timed) {
  sh_error e = {0};
  *o = (opened){0};
  const sh_repack_opts repack = {.cache_dir = ""};
  rig_ok(sh_ckpt_open(&o->ckpt, path, 0, &e), &e);
  rig_ok(sh_backend_cpu_new(&o->be, &(sh_backend_opts){.threads = 2}, &e), &e);
  if (timed) rig_ok(sh_timed_new(&o->be, o->be, &e), &e);
  rig_ok(sh_model_open(&o->m, o->ckpt, o->be, &repack, &e), &e);
}

static void close_model(opened *o) {
  sh_model_free(o->m);
  o->be->ops->free(o->be);
  sh_ckpt_close(o->ckpt);
}

static sh_costs costs_of(const char *path) {
  opened o;
  sh_costs c;
  open_model(&o, path, false);
  sh_costs_of(&c, sh_model_config(o.m), sh_model_weights(o.m), sh_model_kv_bytes_per_token(o.m, SH_KV_BF16), sh_model_state_bytes(o.m));
  close_model(&o);
  return c;
}

/* moe-small, multiply-adds: a linear layer's mixer (256 + 128 + 4 + 4) x 128 + 128 x 128 = 66560, three of them; the attention layer's
 * (512 + 128 + 128) x 128 + 128 x 256 = 131072; in each of 4 layers router 8 x 128, shared expert 3 x 128 x 128, its switch 128 = 50304:
 * 531968 in all. An expert 3 x 128 x 128 = 49152, 3 of 8 per token. */
static void a_moe_model_is_counted_as_by_hand(void **state) {
  (void)state;
  sh_costs c = costs_of(GOLDEN "models/moe-small");
  assert_true(c.token_ops == 2.0 * (531968 + 4 * 3 * 49152));
  assert_true(c.head_ops == 2.0 * 640 * 128);
  assert_true(c.integer_share == 0);
  assert_true(c.layer_bytes == 2.0 * 531968); /* bf16 */
  assert_true(c.expert_bytes == 2.0 * 4 * 49152);
  assert_true(c.head_bytes == 2.0 * 640 * 128 && c.embed_row_bytes == 2.0 * 128);
  assert_true(c.state_bytes == 4.0 * 3 * (4 * 32 * 32 + 256 * 3));
  assert_true(c.kv_bytes == 2.0 * 2 * 2 * 64);
}

/* dense-small-awq: groups of 128 columns are 64 bytes of codes, 2 of a scale and 1 of a zero point. Groups: a linear layer's mixer 256 +
 * 128
 * + 128, six of them, with 8 x 128 bf16 weights beside; attention 512 + 128 + 128 + 2 x 128, two; feed-forward 256 + 256 + 2 x 128, eight.
 */
static void a_quantized_model_is_counted_with_scales_and_zero_points(void **state) {
  (void)state;
  sh_costs c = costs_of(GOLDEN "models/dense-small-awq");
  double groups = 6 * 512 + 2 * 1024 + 8 * 768;
  assert_true(c.token_ops == 2 * (groups * 128 + 6 * 8 * 128));
  assert_true(c.layer_bytes == groups * 67 + 6 * 8 * 128 * 2);
  assert_true(fabs(c.integer_share - groups * 128 / (groups * 128 + 6 * 8 * 128 + 640 * 128)) < 1e-12);
  assert_true(c.n_experts == 0 && c.expert_bytes == 0);
}

static void a_step_reads_weights_once_and_what_its_sequences_hold(void **state) {
  (void)state;
  sh_costs c = costs_of(GOLDEN "models/moe-small");
  const sh_seq one = {.count = 1, .pos = 10}, two[2] = {{.count = 1}, {.row = 1, .count = 1}};
  const sh_batch draw = {.n_seqs = 1, .seqs = &one, .n_tokens = 1, .n_out = 1};
  const sh_batch both = {.n_seqs = 2, .seqs = two, .n_tokens = 2, .n_out = 2};
  /* matrices, 3 experts, head, a row of the embedding; the state read and written; 11 keys and values read, one written */
  assert_true(fabs(sh_costs_bytes(&c, &draw) - (1063936 + 3 * 393216 + 163840 + 256 + 2 * 58368 + 512 * 12)) < 1);
  /* 8 (1 - (5/8)^2) = 4.875 experts are expected */
  assert_true(fabs(sh_costs_bytes(&c, &both) - (1063936 + 4.875 * 393216 + 163840 + 512 + 4 * 58368 + 2 * 512 * 2)) < 1);
  assert_true(sh_costs_ops(&c, &both) == 2 * (2243584 + 163840));
  assert_true(sh_costs_ops(&c, &(sh_batch){.n_tokens = 100, .n_out = 1}) == 100.0 * 2243584 + 163840);
}

static void step(opened *o, float *logits) {
  static const int32_t ids[4] = {5, 6, 7, 8}, pages[1] = {0}, rows[1] = {3};
  sh_error e = {0};
  const sh_model_sizes sizes = {
      .page_size = 16, .n_pages = 1, .n_slots = 1, .max_tokens = 4, .max_seqs = 1, .max_out = 1, .max_context = 16};
  const sh_seq seq = {.count = 4, .pages = pages};
  const sh_batch b = {.n_seqs = 1, .seqs = &seq, .n_tokens = 4, .ids = ids, .n_out = 1, .out_rows = rows};
  rig_ok(sh_model_reserve(o->m, &sizes, &e), &e);
  rig_ok(sh_model_slot_zero(o->m, 0, &e), &e);
  rig_ok(sh_model_forward(o->m, &b, logits, &e), &e);
}

static void timing_calls_changes_no_bit_and_finds_every_kind(void **state) {
  (void)state;
  static float plain[640], timed[640];
  int64_t ns[SH_TIMED_KINDS], sum = 0;
  opened o;
  open_model(&o, GOLDEN "models/moe-small", false);
  step(&o, plain);
  close_model(&o);
  open_model(&o, GOLDEN "models/moe-small", true);
  sh_timed_switch(o.be, true);
  int64_t from = sh_now_ns();
  step(&o, timed);
  int64_t all = sh_now_ns() - from;
  sh_timed_read(o.be, ns);
  assert_memory_equal(plain, timed, sizeof plain);
  for (int i = 0; i < SH_TIMED_KINDS; i++) {
    if (i == SH_TIMED_SWIGLU) assert_int_equal(ns[i], 0); /* inside moe */
    else assert_true(ns[i] > 0);
    sum += ns[i];
  }
  assert_true(sum <= all);
  sh_timed_switch(o.be, true); /* starts anew */
  sh_timed_switch(o.be, false);
  sh_timed_read(o.be, ns);
  for (int i = 0; i < SH_TIMED_KINDS; i++) assert_int_equal(ns[i], 0);
  close_model(&o);
}

/* Nine rows are two panels, whatever is in them. */
static void panels_are_counted_whole(void **state) {
  (void)state;
  int32_t perm[64] = {0};
  sh_wview v = {.type = SH_P4, .rows = 9, .cols = 64, .group = 32, .row_bytes = 48};
  assert_int_equal(sh_view_bytes(&v), 16 * 48);
  v.perm = perm;
  assert_int_equal(sh_view_bytes(&v), 16 * 48 + sizeof perm);
  assert_int_equal(sh_view_bytes(&(sh_wview){.type = SH_P4}), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(panels_are_counted_whole),
      cmocka_unit_test(a_moe_model_is_counted_as_by_hand),
      cmocka_unit_test(a_quantized_model_is_counted_with_scales_and_zero_points),
      cmocka_unit_test(a_step_reads_weights_once_and_what_its_sequences_hold),
      cmocka_unit_test(timing_calls_changes_no_bit_and_finds_every_kind),
  };
  return cmocka_run_group_tests_name("costs", tests, NULL, NULL);
}
