/* Puts the x86-64 variants into the table, from weak to strong, returning at the first set that the machine lacks. Compiled for plain
 * x86-64. */
#include "kernels/x86/x86.h"

void sh_kernels_init_x86(sh_kernels *k, unsigned flags) {
  if (!(flags & SH_CPU_AVX2)) return;
  k->name = "AVX2+FMA";
  k->dequant = sh_kern_dequant_avx2;
  k->dot = sh_kern_dot_avx2;
  k->dot_tokens = sh_kern_dot_tokens_avx2;
  k->gemm = sh_kern_gemm_avx2;
  k->pack = sh_kern_pack_avx2;
  k->pack_floats = sh_kern_pack_floats_avx2;
  k->gemm_floats = sh_kern_gemm_floats_avx2;
  k->qpack = sh_kern_qpack_avx2;
  k->qmm = sh_kern_qmm_avx2;
  k->exp = sh_kern_exp_avx2;
  k->rmsnorm = sh_kern_rmsnorm_avx2;
  k->swiglu = sh_kern_swiglu_avx2;
  k->sigmoid_mul = sh_kern_sigmoid_mul_avx2;
  k->rope = sh_kern_rope_avx2;
  k->to_bf16 = sh_kern_to_bf16_avx2;
  k->to_kv8 = sh_kern_to_kv8_avx2;
  k->attn_pack = sh_kern_attn_pack_avx2;
  k->attn_segment = sh_kern_attn_segment_avx2;
  k->attn_merge = sh_kern_attn_merge_avx2;
  k->attn_finish = sh_kern_attn_finish_avx2;
  k->conv = sh_kern_conv_avx2;
  k->l2norm = sh_kern_l2norm_avx2;
  k->gdn_gates = sh_kern_gdn_gates_avx2;
  k->gdn_scan = sh_kern_gdn_scan_avx2;
  k->gdn_out = sh_kern_gdn_out_avx2;
}
