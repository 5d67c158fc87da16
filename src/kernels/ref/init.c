/* The table of references: every slot of sh_kernels has one, so a variant may replace any subset. Pure data; runs once per backend. */
#include "kernels/ref/ref.h"

void sh_kernels_init_ref(sh_kernels *k) {
  *k = (sh_kernels){
      .name = "plain C",
      .dequant = sh_kern_dequant_ref,
      .dot = sh_kern_dot_ref,
      .dot_tokens = sh_kern_dot_tokens_ref,
      .gemm = sh_kern_gemm_ref,
      .pack = sh_kern_pack_ref,
      .pack_floats = sh_kern_pack_floats_ref,
      .gemm_floats = sh_kern_gemm_floats_ref,
      .qpack = sh_kern_qpack_ref,
      .qmm = sh_kern_qmm_ref,
      .exp = sh_kern_exp_ref,
      .rmsnorm = sh_kern_rmsnorm_ref,
      .swiglu = sh_kern_swiglu_ref,
      .sigmoid_mul = sh_kern_sigmoid_mul_ref,
      .rope = sh_kern_rope_ref,
      .to_bf16 = sh_kern_to_bf16_ref,
      .to_kv8 = sh_kern_to_kv8_ref,
      .attn_pack = sh_kern_attn_pack_ref,
      .attn_segment = sh_kern_attn_segment_ref,
      .attn_merge = sh_kern_attn_merge_ref,
      .attn_finish = sh_kern_attn_finish_ref,
      .conv = sh_kern_conv_ref,
      .l2norm = sh_kern_l2norm_ref,
      .gdn_gates = sh_kern_gdn_gates_ref,
      .gdn_scan = sh_kern_gdn_scan_ref,
      .gdn_out = sh_kern_gdn_out_ref,
      .route = sh_kern_route_ref,
  };
}
