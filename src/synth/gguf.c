/* A random model as one GGUF file, as llama.cpp's converter and quantizer write it.
 *
 * One thread. Keys are those of a converted release, in its order (architectures qwen35 and qwen35moe). The file is written under a
 * temporary name and renamed (base/file.c); an interrupted run leaves nothing. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/text.h"
#include "synth/run.h"

#define SPARE (16ll << 20) /* bytes of the file system's own */

/* --- Keys */

static void put_arch_u32(sh_gguf_out *g, const sh_synth_shape *s, const char *key, int v) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", s->n_experts ? "qwen35moe" : "qwen35", key);
  sh_gguf_put_u32(g, full, (uint32_t)v);
}

static void put_arch_f32(sh_gguf_out *g, const sh_synth_shape *s, const char *key, double v) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", s->n_experts ? "qwen35moe" : "qwen35", key);
  sh_gguf_put_f32(g, full, (float)v);
}

static void put_text(sh_gguf_out *g, const char *key, const char *v) { sh_gguf_put_str(g, key, v, strlen(v)); }

static void put_sections(sh_gguf_out *g, const sh_synth_shape *s) {
  static const int32_t SECTIONS[4] = {11, 11, 10, 0};
  sh_gguf_put_i32s(g, s->n_experts ? "qwen35moe.rope.dimension_sections" : "qwen35.rope.dimension_sections", 4);
  for (int i = 0; i < 4; i++) sh_gguf_item_i32(g, SECTIONS[i]);
}

static void put_shape(sh_gguf_out *g, const sh_synth_run *u) {
  const sh_synth_shape *s = u->s;
  put_arch_u32(g, s, "block_count", u->layers);
  put_arch_u32(g, s, "context_length", 262144);
  put_arch_u32(g, s, "embedding_length", s->hidden);
  if (s->ffn) put_arch_u32(g, s, "feed_forward_length", s->ffn);
  put_arch_u32(g, s, "attention.head_count", s->n_heads);
  put_arch_u32(g, s, "attention.head_count_kv", s->n_kv_heads);
  put_sections(g, s);
  put_arch_f32(g, s, "rope.freq_base", 1e7);
  put_arch_f32(g, s, "attention.layer_norm_rms_epsilon", 1e-6);
  if (s->n_experts) {
    put_arch_u32(g, s, "expert_count", s->n_experts);
    put_arch_u32(g, s, "expert_used_count", s->top_k);
    put_arch_u32(g, s, "expert_feed_forward_length", s->moe_ffn);
    put_arch_u32(g, s, "expert_shared_feed_forward_length", s->shared_ffn);
  }
  put_arch_u32(g, s, "attention.key_length", SH_SYNTH_HEAD_DIM);
  put_arch_u32(g, s, "attention.value_length", SH_SYNTH_HEAD_DIM);
  put_arch_u32(g, s, "ssm.conv_kernel", SH_SYNTH_CONV);
  put_arch_u32(g, s, "ssm.state_size", SH_SYNTH_LIN_DIM);
  put_arch_u32(g, s, "ssm.group_count", s->lin_k_heads);
  put_arch_u32(g, s, "ssm.time_step_rank", s->lin_v_heads);
  put_arch_u32(g, s, "ssm.inner_size", s->lin_v_heads * SH_SYNTH_LIN_DIM);
  put_arch_u32(g, s, "full_attention_interval", SH_SYNTH_INTERVAL);
  put_arch_u32(g, s, "rope.dimension_count", SH_SYNTH_ROTARY);
}

static int put_keys(sh_gguf_out *g, const sh_synth_run *u, sh_error *e) {
  char name[96];
  snprintf(name, sizeof name, "Qwen3.5-%s, random weights", u->s->name);
  put_text(g, "general.architecture", u->s->n_experts ? "qwen35moe" : "qwen35");
  put_text(g, "general.type", "model");
  sh_gguf_put_i32(g, "general.sampling.top_k", 20);
  sh_gguf_put_f32(g, "general.sampling.top_p", 0.95f);
  sh_gguf_put_f32(g, "general.sampling.temp", 1);
  put_text(g, "general.name", name);
  put_text(g, "general.size_label", u->s->name);
  put_shape(g, u);
  int rc = sh_synth_tok_put(&u->tok, u->s, g, e);
  sh_gguf_put_u32(g, "general.quantization_version", 2);
  sh_gguf_put_u32(g, "general.file_type", (uint32_t)u->f->file_type);
  return rc;
}

/* --- The file */

static int check_name(const char *path, sh_error *e) {
  struct stat st;
  size_t n = strlen(path);
  if (n < 6 || strcasecmp(path + n - 5, ".gguf") != 0)
    return sh_fail(e, SH_ERR_ARG, "%s: the format is one file, whose name has to end in .gguf", path);
  if (lstat(path, &st) == 0) return sh_fail(e, SH_ERR_ARG, "%s is there already; name a file that is not, or remove it", path);
  if (errno != ENOENT) return sh_fail(e, SH_ERR_IO, "%s: %s; name a file where you may write", path, strerror(errno));
  return 0;
}

static int check_room(const char *path, uint64_t bytes, sh_error *e) {
  char need[32], have[32];
  int64_t room = sh_file_room(path), wanted = (int64_t)bytes + SPARE;
  if (room < 0 || room >= wanted) return 0;
  return sh_fail(e, SH_ERR_IO, "%s: %s are needed on its disk and %s are free; make room, or name a file on another disk", path,
                 sh_format_size(wanted, need), sh_format_size(room, have));
}

int sh_synth_write_gguf(sh_synth_run *u, sh_error *e) {
  sh_gguf_out g;
  int rc = check_name(u->o->out, e);
  if (rc) return rc;
  sh_gguf_out_init(&g);
  rc = put_keys(&g, u, e);
  if (!rc) rc = check_room(u->o->out, sh_gguf_out_bytes(&g, u->list.t, u->list.n), e);
  if (!rc) rc = sh_gguf_out_write(&g, u->o->out, u->list.t, u->list.n, sh_synth_source, u, e);
  sh_gguf_out_free(&g);
  u->r->n_files = 1;
  return rc;
}
