/* x86-64 variants. Files named *_avx2.c are compiled with AVX2, FMA, F16C and BMI2 and are reached only through the table of kernels.h. */
#ifndef SH_KERNELS_X86_X86_H
#define SH_KERNELS_X86_X86_H

#include "kernels/kernels.h"

sh_k_dequant sh_kern_dequant_avx2;
sh_k_dot sh_kern_dot_avx2;
sh_k_dot_tokens sh_kern_dot_tokens_avx2;
sh_k_gemm sh_kern_gemm_avx2;
sh_k_pack sh_kern_pack_avx2;
sh_k_pack_floats sh_kern_pack_floats_avx2;
sh_k_gemm_floats sh_kern_gemm_floats_avx2;
sh_k_qpack sh_kern_qpack_avx2;
sh_k_qmm sh_kern_qmm_avx2;
sh_k_exp sh_kern_exp_avx2;
sh_k_rmsnorm sh_kern_rmsnorm_avx2;
sh_k_swiglu sh_kern_swiglu_avx2;
sh_k_sigmoid_mul sh_kern_sigmoid_mul_avx2;
sh_k_rope sh_kern_rope_avx2;
sh_k_to_bf16 sh_kern_to_bf16_avx2;
sh_k_to_kv8 sh_kern_to_kv8_avx2;
sh_k_attn_pack sh_kern_attn_pack_avx2;
sh_k_attn_segment sh_kern_attn_segment_avx2;
sh_k_attn_merge sh_kern_attn_merge_avx2;
sh_k_attn_finish sh_kern_attn_finish_avx2;
sh_k_conv sh_kern_conv_avx2;
sh_k_l2norm sh_kern_l2norm_avx2;
sh_k_gdn_gates sh_kern_gdn_gates_avx2;
sh_k_gdn_scan sh_kern_gdn_scan_avx2;
sh_k_gdn_out sh_kern_gdn_out_avx2;
void sh_kern_put_avx2(const sh_mm *a, int t, int r, float v); /* the last step of an output: bias, scale, add; shared by dot and gemm */

#endif
