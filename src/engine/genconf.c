/* Generation settings of a checkpoint. Runs once, at open.
 *
 * End tokens are the union of every place that names one. Files disagree in practice: Qwen3.5's config.json names <|endoftext|>, its
 * tokenizer
 * <|im_end|>, generation_config.json both, and some repositories ship without the last. Taking one place, as the reference does, lets
 * answers run on into the next turn. */
#include "engine/genconf.h"

#include <string.h>

static int add_number(sh_arena *a, sh_json *obj, const char *key, double v) {
  char *text = sh_arena_printf(a, "%.9g", v);
  if (!text) return SH_ERR_NOMEM;
  sh_json n = {.type = SH_JSON_NUMBER, .s = text, .len = strlen(text)};
  return sh_json_set(a, obj, key, &n);
}

int sh_genconf_load(const sh_ckpt *ck, sh_arena *a, const sh_json **out, sh_error *e) {
  *out = sh_ckpt_generation_config(ck);
  const sh_gguf *g = sh_ckpt_gguf(ck);
  if (*out || !g) return 0;
  static const char *const keys[][2] = {
      {"general.sampling.temp", "temperature"},
      {"general.sampling.top_k", "top_k"},
      {"general.sampling.top_p", "top_p"},
      {"general.sampling.min_p", "min_p"},
      {"general.sampling.penalty_repeat", "repetition_penalty"},
  };
  sh_json *obj = sh_json_new_object(a);
  int rc = obj ? 0 : SH_ERR_NOMEM;
  for (size_t i = 0; !rc && i < sizeof keys / sizeof *keys; i++) {
    double v;
    if (sh_gguf_float(g, keys[i][0], &v) == 0) rc = add_number(a, obj, keys[i][1], v);
  }
  if (rc) return sh_fail(e, SH_ERR_NOMEM, "no memory for the sampling defaults");
  if (obj->len) *out = obj;
  return 0;
}

typedef struct id_set {
  int32_t *v;
  int n, cap, vocab;
} id_set;

static void set_add(id_set *s, int64_t id) {
  if (id < 0 || id >= s->vocab || s->n == s->cap) return;
  for (int i = 0; i < s->n; i++)
    if (s->v[i] == id) return;
  s->v[s->n++] = (int32_t)id;
}

int sh_genconf_end_ids(const sh_ckpt *ck, const sh_config *c, const sh_tok *t, const sh_json *gen, int vocab, int32_t *out, int cap) {
  id_set s = {.v = out, .cap = cap, .vocab = vocab};
  for (int i = 0; i < c->n_eos; i++) set_add(&s, c->eos_ids[i]);
  const sh_json *eos = sh_json_get(gen, "eos_token_id");
  int64_t id;
  if (sh_json_is(eos, SH_JSON_ARRAY)) {
    for (size_t i = 0; i < eos->len; i++)
      if (sh_json_int(&eos->items[i], &id) == 0) set_add(&s, id);
  } else if (sh_json_int(eos, &id) == 0) {
    set_add(&s, id);
  }
  set_add(&s, sh_tok_eos(t));
  const sh_gguf *g = sh_ckpt_gguf(ck);
  if (g && sh_gguf_int(g, "tokenizer.ggml.eos_token_id", &id) == 0) set_add(&s, id);
  if (g && sh_gguf_int(g, "tokenizer.ggml.eot_token_id", &id) == 0) set_add(&s, id);
  if (c->arch == SH_ARCH_QWEN35 || c->arch == SH_ARCH_QWEN35_MOE) {
    set_add(&s, sh_tok_find(t, "<|im_end|>"));
    set_add(&s, sh_tok_find(t, "<|endoftext|>"));
  }
  return s.n;
}

int sh_genconf_check_dtype(const char *dtype, sh_error *e) {
  static const char *const known[] = {"auto", "bfloat16", "float16", "half", "float32", "float"};
  if (!dtype) return 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(dtype, known[i])) return 0;
  return sh_fail(e, SH_ERR_ARG, "dtype \"%s\" is not one of auto, bfloat16, float16, half, float32, float", dtype);
}

int sh_genconf_check_quantization(const sh_ckpt *ck, const char *method, sh_error *e) {
  if (!method || !*method) return 0;
  const char *found = NULL;
  if (sh_ckpt_is_gguf(ck)) {
    found = "gguf";
  } else {
    const sh_json *m = sh_json_path(sh_ckpt_config(ck), "quantization_config.quant_method");
    if (sh_json_is(m, SH_JSON_STRING)) found = m->s;
  }
  if (!found)
    return sh_fail(e, SH_ERR_ARG, "quantization %s was asked, but the checkpoint %s is not quantized; leave the option out", method,
                   sh_ckpt_path(ck));
  if (strcmp(found, method) != 0)
    return sh_fail(e, SH_ERR_ARG, "quantization %s was asked, but the checkpoint %s has %s; leave the option out to use that", method,
                   sh_ckpt_path(ck), found);
  return 0;
}
