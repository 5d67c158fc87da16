/* Chooses the kernels: the references first, then what the machine has and the option allows.
 *
 * Runs once per backend, on the thread that makes it; nothing is kept here. One binary serves every x86-64: the files of an instruction set
 * are compiled with their own flags and reached only through the table. A machine counts as able only if the system saves the wide
 * registers too (XGETBV), which a hypervisor or an old kernel may not do. AVX-512 is left out: the machines this is for have it rarely, and
 * a second set of bits would have to be kept equal. */
#include "kernels/kernels.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

unsigned sh_kernels_detect(void) {
#ifdef __x86_64__
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) return 0;
  unsigned lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  if ((lo & 6) != 6) return 0; /* xmm and ymm state */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  const unsigned avx2 = 1u << 5, bmi2 = 1u << 8;
  return (b & (avx2 | bmi2)) == (avx2 | bmi2) ? SH_CPU_AVX2 : 0;
#else
  return 0;
#endif
}

int sh_kernels_init(sh_kernels *k, const char *cpu, sh_error *e) {
  sh_kernels_init_ref(k);
  unsigned flags = sh_kernels_detect();
  if (cpu && !strcmp(cpu, "baseline")) return 0;
  if (cpu && !strcmp(cpu, "avx2") && !(flags & SH_CPU_AVX2))
    return sh_fail(e, SH_ERR_UNSUPPORTED,
                   "this machine has no AVX2 with FMA, F16C and BMI2; use the CPU option \"native\" or \"baseline\"");
  if (cpu && strcmp(cpu, "avx2") && strcmp(cpu, "native"))
    return sh_fail(e, SH_ERR_ARG, "unknown instruction set \"%s\": wanted native, avx2 or baseline", cpu);
#ifdef __x86_64__
  sh_kernels_init_x86(k, flags);
#endif
  return 0;
}

size_t sh_qpack_bytes(const sh_wview *w) {
  sh_panel_shape s = sh_panel_shape_of(w);
  return ((size_t)s.blocks * SH_QPACK_BLOCK + (size_t)s.groups * sizeof(float) + 63) & ~(size_t)63;
}

/* Groups are multiples of 16 columns, or one of all; the most padding has a group of 48: two blocks and a sum, 76 bytes. */
size_t sh_qpack_most(int64_t cols) { return (size_t)cols * 2 + 128; }

int sh_attn_stride(int head_dim) { return (head_dim + 15) & ~15; }

size_t sh_attn_pack_floats(int head_dim) { return (size_t)SH_ATTN_QUERIES * (size_t)sh_attn_stride(head_dim); }

/* Keys of a segment in panels of three (66 rows), its values, the scores. */
size_t sh_attn_scratch_floats(int head_dim) {
  size_t d = (size_t)sh_attn_stride(head_dim);
  return (SH_SEG + 2) * d + SH_SEG * d + (size_t)SH_ATTN_QUERIES * SH_SEG;
}
