/* Fuzz driver of the config reader. Beyond "no crash": an accepted config keeps every promise of config.h, so that nobody after it has to
 * check again. */
#include "model/config.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static void check(const sh_config *c) {
  char buf[400];
  must(c->vocab_size > 0 && c->hidden > 0 && c->n_layers > 0 && c->n_layers <= SH_MAX_LAYERS, "sizes are positive");
  must(c->n_heads > 0 && c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0, "heads share keys evenly");
  must(c->head_dim >= 2 && c->head_dim <= SH_MAX_HEAD_DIM && c->rotary_dim <= c->head_dim && c->rotary_dim % 2 == 0, "rotary dims fit");
  must(c->n_linear + c->n_full == c->n_layers, "layers are counted");
  must(c->n_linear == 0 || (c->lin_k_heads > 0 && c->lin_v_heads % c->lin_k_heads == 0 && c->conv_kernel >= 2), "linear layers have sizes");
  must((c->n_experts > 0) == (c->arch == SH_ARCH_QWEN35_MOE) && (c->ffn > 0) == (c->n_experts == 0), "dense or routed");
  must(c->experts_per_tok <= c->n_experts, "no more experts per token than there are");
  must(c->rms_eps > 0 && c->max_position > 0 && c->rope_mscale > 0 && isfinite(c->rope_mscale), "numbers are positive");
  for (int i = 0; i < c->rotary_dim / 2; i++) must(c->inv_freq[i] > 0 && isfinite(c->inv_freq[i]), "frequencies are positive");
  for (int i = 0; i < c->n_eos; i++) must(c->eos_ids[i] >= 0 && c->eos_ids[i] < c->vocab_size, "end tokens are in the vocabulary");
  must(c->bos_id >= -1 && c->bos_id < c->vocab_size, "so is the first token");
  must(strlen(sh_config_describe(c, buf, sizeof buf)) > 20, "it can be described");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  sh_log_set_level(SH_LOG_ERROR);
  sh_arena *a = sh_arena_new(1 << 24);
  sh_json *root;
  sh_error e = {0};
  sh_config c;
  if (a && sh_json_parse((const char *)data, n, NULL, a, &root, &e) == 0) {
    memset(&e, 0, sizeof e);
    int rc = sh_config_from_json(&c, root, &e);
    if (rc) must(e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refusal has a sentence");
    else check(&c);
  }
  sh_arena_free(a);
  return 0;
}
