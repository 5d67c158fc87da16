/* The tables of shapes and formats. Constants; any thread.
 *
 * A shape is what config.json of a release says (of 2B only hidden size, layers and tying were seen; the rest is 0.8B's, and a feed-forward
 * part with which the whole has 1.9 billion weights). Numbers that are the same in all of the family (sizes of a head, the convolution, the
 * layer pattern) are constants of the header. "test" and "test-moe" are no releases: the same architecture in a few MB, for tests. */
#include "synth/shapes.h"

#include <string.h>
#include <strings.h>

#define VOCAB .n_tokens = 248044, .vocab = 248320
#define CARD(name) "as published for Qwen/Qwen3.5-" name

const sh_synth_shape sh_synth_shapes[] = {
    {.name = "0.8B",
     .hidden = 1024,
     .n_layers = 24,
     .n_heads = 8,
     .n_kv_heads = 2,
     .lin_k_heads = 16,
     .lin_v_heads = 16,
     .ffn = 3584,
     .tied = true,
     VOCAB,
     .source = CARD("0.8B")},
    {.name = "2B",
     .hidden = 2048,
     .n_layers = 24,
     .n_heads = 8,
     .n_kv_heads = 2,
     .lin_k_heads = 16,
     .lin_v_heads = 16,
     .ffn = 6144,
     .tied = true,
     VOCAB,
     .source = CARD("2B") ", but feed-forward and heads, which are a guess"},
    {.name = "4B",
     .hidden = 2560,
     .n_layers = 32,
     .n_heads = 16,
     .n_kv_heads = 4,
     .lin_k_heads = 16,
     .lin_v_heads = 32,
     .ffn = 9216,
     .tied = true,
     VOCAB,
     .source = CARD("4B")},
    {.name = "9B",
     .hidden = 4096,
     .n_layers = 32,
     .n_heads = 16,
     .n_kv_heads = 4,
     .lin_k_heads = 16,
     .lin_v_heads = 32,
     .ffn = 12288,
     VOCAB,
     .source = CARD("9B")},
    {.name = "27B",
     .hidden = 5120,
     .n_layers = 64,
     .n_heads = 24,
     .n_kv_heads = 4,
     .lin_k_heads = 16,
     .lin_v_heads = 48,
     .ffn = 17408,
     VOCAB,
     .source = CARD("27B")},
    {.name = "35B-A3B",
     .hidden = 2048,
     .n_layers = 40,
     .n_heads = 16,
     .n_kv_heads = 2,
     .lin_k_heads = 16,
     .lin_v_heads = 32,
     .n_experts = 256,
     .top_k = 8,
     .moe_ffn = 512,
     .shared_ffn = 512,
     VOCAB,
     .source = CARD("35B-A3B")},
    {.name = "122B-A10B",
     .hidden = 3072,
     .n_layers = 48,
     .n_heads = 32,
     .n_kv_heads = 2,
     .lin_k_heads = 16,
     .lin_v_heads = 64,
     .n_experts = 256,
     .top_k = 8,
     .moe_ffn = 1024,
     .shared_ffn = 1024,
     VOCAB,
     .source = CARD("122B-A10B")},
    {.name = "test",
     .hidden = 256,
     .n_layers = 4,
     .n_heads = 2,
     .n_kv_heads = 1,
     .lin_k_heads = 2,
     .lin_v_heads = 4,
     .ffn = 512,
     .tied = true,
     .n_tokens = 960,
     .vocab = 1024,
     .source = "made up: the architecture in a few MB"},
    {.name = "test-moe",
     .hidden = 256,
     .n_layers = 4,
     .n_heads = 2,
     .n_kv_heads = 1,
     .lin_k_heads = 2,
     .lin_v_heads = 2,
     .n_experts = 6,
     .top_k = 2,
     .moe_ffn = 256,
     .shared_ffn = 256,
     .n_tokens = 960,
     .vocab = 1024,
     .source = "made up: the same with experts"},
    {0},
};
#undef VOCAB
#undef CARD

/* Numbers of general.file_type: llama.cpp's (for types with mixes those of the S mix, which comes nearest to one type everywhere). */
const sh_synth_format sh_synth_formats[] = {
    {"bf16", SH_SL_PLAIN, SH_BF16, false, 0, "folder, bfloat16"},
    {"f16", SH_SL_PLAIN, SH_F16, false, 0, "folder, float16"},
    {"awq", SH_SL_AWQ, SH_BF16, true, 0, "folder, AutoAWQ gemm, 4 bits with zero points"},
    {"gptq", SH_SL_GPTQ, SH_BF16, true, 0, "folder, GPTQ, 4 bits, symmetric, columns in their own order"},
    {"compressed-tensors", SH_SL_CT, SH_BF16, true, 0, "folder, pack-quantized (w4a16), symmetric"},
    {"int8", SH_SL_INT8, SH_BF16, false, 0, "folder, compressed-tensors int-quantized (w8a8), one scale a row"},
    {"fp8", SH_SL_FP8, SH_BF16, false, 0, "folder, e4m3 with a scale for each block of 128 by 128"},
    {"gguf-bf16", SH_SL_GGUF, SH_BF16, false, 32, "file"},
    {"gguf-q8_0", SH_SL_GGUF, SH_Q8_0, false, 7, "file"},
    {"gguf-q4_0", SH_SL_GGUF, SH_Q4_0, false, 2, "file"},
    {"gguf-q4_1", SH_SL_GGUF, SH_Q4_1, false, 3, "file"},
    {"gguf-q4_k", SH_SL_GGUF, SH_Q4_K, false, 14, "file"},
    {"gguf-q5_k", SH_SL_GGUF, SH_Q5_K, false, 16, "file"},
    {"gguf-q6_k", SH_SL_GGUF, SH_Q6_K, false, 18, "file"},
    {0},
};

/* Both tables begin a row with the name. */
static const void *find(const void *rows, size_t size, const char *name, const char *what, sh_error *e) {
  sh_buf b;
  sh_buf_init(&b, 4096);
  for (const char *row = rows; *(const char *const *)(const void *)row; row += size) {
    const char *its = *(const char *const *)(const void *)row;
    if (strcasecmp(its, name) == 0) {
      sh_buf_free(&b);
      return row;
    }
    sh_buf_printf(&b, "%s%s", b.len ? ", " : "", its);
  }
  sh_fail(e, SH_ERR_ARG, "there is no %s '%.60s'; there are %s", what, name, b.failed ? "others" : b.p);
  sh_buf_free(&b);
  return NULL;
}

int sh_synth_find_shape(const char *name, const sh_synth_shape **out, sh_error *e) {
  *out = find(sh_synth_shapes, sizeof *sh_synth_shapes, name, "shape", e);
  return *out ? 0 : SH_ERR_ARG;
}

int sh_synth_find_format(const char *name, const sh_synth_format **out, sh_error *e) {
  *out = find(sh_synth_formats, sizeof *sh_synth_formats, name, "format", e);
  return *out ? 0 : SH_ERR_ARG;
}
