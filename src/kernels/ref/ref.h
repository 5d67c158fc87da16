/* The references: plain C with sums in double, one file per family of operations. Every variant is held against these; on a machine without
 * a known instruction set they are what runs. What each one computes is said at its type in kernels.h. */
#ifndef SH_KERNELS_REF_REF_H
#define SH_KERNELS_REF_REF_H

#include "kernels/kernels.h"

sh_k_dequant sh_kern_dequant_ref;
sh_k_dot sh_kern_dot_ref;
sh_k_dot_tokens sh_kern_dot_tokens_ref;
sh_k_gemm sh_kern_gemm_ref;
sh_k_pack sh_kern_pack_ref;
sh_k_pack_floats sh_kern_pack_floats_ref;
sh_k_gemm_floats sh_kern_gemm_floats_ref;
sh_k_qpack sh_kern_qpack_ref;
sh_k_qmm sh_kern_qmm_ref;
sh_k_exp sh_kern_exp_ref;
sh_k_rmsnorm sh_kern_rmsnorm_ref;
sh_k_swiglu sh_kern_swiglu_ref;
sh_k_sigmoid_mul sh_kern_sigmoid_mul_ref;
sh_k_rope sh_kern_rope_ref;
sh_k_to_bf16 sh_kern_to_bf16_ref;
sh_k_to_kv8 sh_kern_to_kv8_ref;
sh_k_attn_pack sh_kern_attn_pack_ref;
sh_k_attn_segment sh_kern_attn_segment_ref;
sh_k_attn_merge sh_kern_attn_merge_ref;
sh_k_attn_finish sh_kern_attn_finish_ref;
sh_k_conv sh_kern_conv_ref;
sh_k_l2norm sh_kern_l2norm_ref;
sh_k_gdn_gates sh_kern_gdn_gates_ref;
sh_k_gdn_scan sh_kern_gdn_scan_ref;
sh_k_gdn_out sh_kern_gdn_out_ref;
sh_k_route sh_kern_route_ref;
void sh_kern_put_ref(const sh_mm *a, int t, int r, float v); /* the last step of an output: bias, scale, add */

#endif
