/* The event ring: records come out as they went in, however they wrap. */
#include "engine/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint32_t r = 8;
static int rnd(int n) { return (int)((r = r * 1664525u + 1013904223u) >> 16) % n; }

static void push_numbered(sh_ring *ring, int i, int n_top, size_t n_text, bool error) {
  char text[64];
  sh_logprob top[8];
  memset(text, 'a' + i % 26, sizeof text);
  for (int k = 0; k < n_top; k++) top[k] = (sh_logprob){i + k, (float)i, k};
  size_t first = n_text / 3;
  sh_rec rec = {.type = SH_EV_TOKEN, .position = i, .stop_id = -1, .stop_str = -1};
  sh_rec_body body = {
      .top = top, .n_top = n_top, .text = {text, text + first}, .text_len = {first, n_text - first}, .error = error ? "broken" : NULL};
  sh_ring_push(ring, &rec, &body);
}

static void check_numbered(const unsigned char *p, int i) {
  sh_rec h;
  memcpy(&h, p, sizeof h);
  assert_int_equal(h.position, i);
  p += sizeof h;
  for (uint32_t k = 0; k < h.n_top; k++) {
    sh_logprob l;
    memcpy(&l, p + k * sizeof l, sizeof l);
    assert_int_equal(l.id, i + (int)k);
  }
  p += h.n_top * sizeof(sh_logprob);
  for (uint32_t k = 0; k < h.text_len; k++) assert_int_equal(p[k], 'a' + i % 26);
  assert_int_equal(p[h.text_len], 0);
  if (h.error_len) assert_string_equal((const char *)p + h.text_len + 1, "broken");
}

static void records_survive_every_wrap(void **state) {
  (void)state;
  sh_ring ring;
  assert_int_equal(sh_ring_init(&ring, 1009, NULL), 0); /* a prime: records wrap at every byte in time */
  _Alignas(16) unsigned char out[512];
  int in = 0, taken = 0;
  for (int step = 0; step < 50000; step++) {
    int n_top = rnd(8);
    size_t n_text = (size_t)rnd(60);
    bool error = rnd(5) == 0;
    if (rnd(2) && sh_rec_bytes((size_t)n_top, n_text, error ? 6 : 0) <= sh_ring_room(&ring))
      push_numbered(&ring, in++, n_top, n_text, error);
    else if (sh_ring_pop(&ring, out)) check_numbered(out, taken++);
    else assert_int_equal(in, taken);
  }
  while (sh_ring_pop(&ring, out)) check_numbered(out, taken++);
  assert_int_equal(in, taken);
  assert_true(in > 10000);
  assert_int_equal(sh_ring_room(&ring), 1009);
  sh_ring_free(&ring);
}

static void a_record_may_fill_the_ring_to_the_last_byte(void **state) {
  (void)state;
  sh_ring ring;
  _Alignas(16) unsigned char out[512];
  assert_int_equal(sh_ring_init(&ring, sh_rec_bytes(2, 10, 0), NULL), 0);
  for (int i = 0; i < 3; i++) {
    push_numbered(&ring, i, 2, 10, false);
    assert_int_equal(sh_ring_room(&ring), 0);
    assert_true(sh_ring_pop(&ring, out));
    check_numbered(out, i);
    assert_false(sh_ring_pop(&ring, out));
  }
  sh_ring_free(&ring);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(records_survive_every_wrap),
      cmocka_unit_test(a_record_may_fill_the_ring_to_the_last_byte),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
