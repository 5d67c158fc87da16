/* State slots under random operations. */
#include "engine/state_slots.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SLOTS = 13 };

static void random_takes_and_returns_keep_the_invariants(void **state) {
  (void)state;
  sh_slots s;
  assert_int_equal(sh_slots_init(&s, SLOTS, NULL), 0);
  bool mine[SLOTS] = {false};
  uint32_t r = 99;
  int held = 0;
  for (int step = 0; step < 20000; step++) {
    r = r * 1664525u + 1013904223u;
    int k = (int)(r >> 16) % SLOTS;
    if (r >> 31) {
      int32_t slot = sh_slots_take(&s);
      if (held == SLOTS) assert_int_equal(slot, -1);
      else {
        assert_in_range(slot, 0, SLOTS - 1);
        assert_false(mine[slot]);
        mine[slot] = true;
        held++;
      }
    } else if (mine[k]) {
      sh_slots_give(&s, k);
      mine[k] = false;
      held--;
    }
    assert_true(sh_slots_check(&s));
    assert_int_equal(s.n_free, SLOTS - held);
  }
  sh_slots_free(&s);
}

static void the_check_finds_a_slot_with_two_holders(void **state) {
  (void)state;
  sh_slots s;
  assert_int_equal(sh_slots_init(&s, 4, NULL), 0);
  s.free[0] = s.free[3];
  assert_false(sh_slots_check(&s));
  sh_slots_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_takes_and_returns_keep_the_invariants),
      cmocka_unit_test(the_check_finds_a_slot_with_two_holders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
