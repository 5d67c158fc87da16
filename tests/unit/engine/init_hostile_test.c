/* Constructors of the engine's parts: wherever memory runs out there is SH_ERR_NOMEM with a sentence, nothing leaks (the sanitizers look),
 * and what is half built may be freed. The scheduler's, the request's and the engine's own are in their tests. */
#include "unit/hostile.h"

#include "engine/genconf.h"
#include "engine/logits_proc.h"
#include "engine/ring.h"
#include "engine/sample.h"
#include "engine/state_slots.h"
#include "engine/stop.h"

static int slots(sh_error *e) {
  sh_slots s;
  int rc = sh_slots_init(&s, 7, e);
  if (!rc) assert_true(sh_slots_check(&s));
  sh_slots_free(&s);
  return rc;
}

static int ring(sh_error *e) {
  sh_ring r;
  int rc = sh_ring_init(&r, 4096, e);
  if (!rc) assert_int_equal(sh_ring_room(&r), 4096);
  sh_ring_free(&r);
  return rc;
}

static int sampler(sh_error *e) {
  sh_sampler s;
  int rc = sh_sampler_init(&s, 640, e);
  sh_sampler_free(&s);
  return rc;
}

static int scratch(sh_error *e) {
  sh_proc_scratch s;
  int rc = sh_proc_scratch_init(&s, 640, e);
  sh_proc_scratch_free(&s);
  return rc;
}

static int stops(sh_error *e) {
  const sh_str str[] = {{"stop", 4}, {"aab", 3}, {"\n\n", 2}};
  sh_stops s;
  sh_arena *a = sh_arena_new(1 << 16);
  int rc = a ? sh_stops_compile(&s, str, 3, a) : SH_ERR_NOMEM;
  if (!rc) assert_int_equal(s.longest, 4);
  else sh_fail(e, rc, "no memory for the stop strings"); /* it has no sentence of its own */
  sh_arena_free(a);
  return rc;
}

static sh_ckpt *gguf_ckpt;

static int sampling_defaults(sh_error *e) {
  const sh_json *out;
  sh_arena *a = sh_arena_new(1 << 16);
  int rc = a ? sh_genconf_load(gguf_ckpt, a, &out, e) : sh_fail(e, SH_ERR_NOMEM, "no memory for the arena");
  if (!rc) assert_non_null(sh_json_get(out, "temperature"));
  sh_arena_free(a);
  return rc;
}

static void fails_cleanly_everywhere(int (*make)(sh_error *e), int at_least) {
  int rc = -1;
  long n = 0;
  for (; rc; n++) {
    sh_error e = {0};
    sh_mem_fail_after(n);
    rc = make(&e);
    sh_mem_fail_after(-1);
    if (rc) assert_true(rc == SH_ERR_NOMEM && e.code == rc && e.text[0]);
    assert_true(n < 10000);
  }
  assert_true(n > at_least); /* so many allocations did fail */
}

static void the_parts_of_a_scheduler(void **state) {
  (void)state;
  fails_cleanly_everywhere(slots, 2);
  fails_cleanly_everywhere(ring, 1);
  fails_cleanly_everywhere(sampler, 3);
  fails_cleanly_everywhere(scratch, 3);
  fails_cleanly_everywhere(stops, 1);
}

static void sampling_defaults_of_a_gguf(void **state) {
  (void)state;
  gguf_writer w;
  sh_error e = {0};
  uint64_t dim = 4;
  gguf_begin(&w, 3);
  gguf_s(&w, "general.architecture", "llama");
  gguf_f32(&w, "general.sampling.temp", 0.5f);
  gguf_u32(&w, "general.sampling.top_k", 20);
  gguf_tensor(&w, "t", 0, 1, &dim, 16);
  gguf_done(&w);
  put_file("m.gguf", w.b.p, w.b.len);
  sh_buf_free(&w.b);
  if (sh_ckpt_open(&gguf_ckpt, in_temp("m.gguf"), SH_CKPT_TOKENIZER_ONLY, &e)) fail_msg("%s", e.text);
  fails_cleanly_everywhere(sampling_defaults, 2);
  sh_ckpt_close(gguf_ckpt);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_parts_of_a_scheduler),
      cmocka_unit_test_setup_teardown(sampling_defaults_of_a_gguf, make_temp_dir, remove_temp_dir),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
