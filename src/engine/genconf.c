/* Generation settings of a checkpoint. Runs once, at open.
 *
 * End tokens are the union of every place that names one. Files disagree in practice: Qwen3.5's config.json names <|endoftext|>, its
 * tokenizer
 * <|im_end|>, generation_config.json both, and some repositories ship without the last. Taking one place, as the reference does, lets
 * answers run on into the next turn. */
#include "engine/genconf.h"

#include "base/log.h"
#include "formats/quant.h"

#include <math.h>
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
    int found = sh_gguf_float(g, keys[i][0], &v);
    if (found == 0 && isfinite(v)) rc = add_number(a, obj, keys[i][1], v);
    else if (found != SH_ERR_NOT_FOUND) sh_log(SH_LOG_WARN, "%s is not a finite number and left out", keys[i][0]);
  }
  if (rc) return sh_fail(e, SH_ERR_NOMEM, "no memory for the sampling defaults");
  if (obj->len) *out = obj;
  return 0;
}

typedef struct id_set {
  int32_t *v;
  int n, cap, vocab;
} id_set;

/* `where` names the place for the log; NULL: an id outside is nothing to speak of. */
static void set_add(id_set *s, int64_t id, const char *where) {
  if (id < 0 || id >= s->vocab) {
    if (where) sh_log(SH_LOG_WARN, "%s: end token %lld is outside the vocabulary of %d and ignored", where, (long long)id, s->vocab);
    return;
  }
  for (int i = 0; i < s->n; i++)
    if (s->v[i] == id) return;
  if (s->n < s->cap) s->v[s->n++] = (int32_t)id;
  else sh_log(SH_LOG_WARN, "end token %lld is one more than the %d that are kept, and ignored", (long long)id, s->cap);
}

/* eos_token_id of a generation config: an id or a list of them. */
static void add_json(id_set *s, const sh_json *v) {
  static const char where[] = "generation config: eos_token_id";
  bool list = sh_json_is(v, SH_JSON_ARRAY);
  for (size_t i = 0; i < (list ? v->len : 1); i++) {
    const sh_json *item = list ? &v->items[i] : v;
    int64_t id;
    if (sh_json_int(item, &id) == 0) set_add(s, id, where);
    else if (sh_json_is(item, SH_JSON_NUMBER)) sh_log(SH_LOG_WARN, "%s: %.40s is no token id and ignored", where, item->s);
    else sh_log(SH_LOG_WARN, "%s: %s is no token id and ignored", where, sh_json_type_phrase(item->type));
  }
}

int sh_genconf_end_ids(const sh_ckpt *ck, const sh_config *c, const sh_tok *t, const sh_json *gen, int vocab, int32_t *out, int cap) {
  id_set s = {.v = out, .cap = cap, .vocab = vocab};
  int64_t id;
  for (int i = 0; i < c->n_eos; i++) set_add(&s, c->eos_ids[i], "eos_token_id of the config");
  const sh_json *eos = sh_json_get(gen, "eos_token_id");
  if (eos && eos->type != SH_JSON_NULL) add_json(&s, eos);
  set_add(&s, sh_tok_eos(t), NULL);
  const sh_gguf *g = sh_ckpt_gguf(ck); /* its ids went through the config, which speaks of those outside */
  if (g && sh_gguf_int(g, "tokenizer.ggml.eos_token_id", &id) == 0) set_add(&s, id, NULL);
  if (g && sh_gguf_int(g, "tokenizer.ggml.eot_token_id", &id) == 0) set_add(&s, id, NULL);
  if (c->arch == SH_ARCH_QWEN35 || c->arch == SH_ARCH_QWEN35_MOE) {
    set_add(&s, sh_tok_find(t, "<|im_end|>"), NULL);
    set_add(&s, sh_tok_find(t, "<|endoftext|>"), NULL);
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
    const sh_json *m = sh_json_get(sh_quant_config(sh_ckpt_config(ck)), "quant_method");
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
