/* config.json of a quantized folder: the source's, with quantization_config as the field writes it.
 *
 * Pure; any thread. What the readers out there need was taken from the checkpoints that are published and from what vLLM and transformers
 * look at: AutoAWQ's keys, GPTQModel's, and the groups of schemes of compressed-tensors. Each has its own way to say which modules were
 * left alone. AWQ and compressed-tensors list names as they are stored. GPTQ has regular expressions in `dynamic`, matched against the
 * names of whoever reads, who may have renamed the model's outer parts and fused neighbours (q, k, v to qkv); so these begin at the layers,
 * name the fused module too, and one expression stands for a module of many layers. */
#include <string.h>

#include "base/text.h"
#include "quant/pack.h"
#include "quant/writer.h"

#define MAX_CONFIG ((size_t)64 << 20) /* bytes of the text */

/* --- GPTQ's rules */

/* A module's name in pieces: "model.language_model." "layers." 3 ".mlp.gate"; without a number all of it is the tail. Of the parts that are
 * left alone as a whole, the vision tower and mostly the draft layers, there is only a tail: "mtp". */
typedef struct name_parts {
  const char *head; /* "layers" */
  size_t head_len;
  const char *number;
  size_t number_len;
  const char *tail;
  bool whole;
} name_parts;

static const char *skip_outer(const char *s) {
  static const char *const OUTER[] = {"model.", "language_model."};
  for (int i = 0; i < 2; i++) {
    if (sh_str_starts(s, OUTER[i])) s += strlen(OUTER[i]);
  }
  return s;
}

static name_parts take_apart(const sh_qscheme *s, const char *name) {
  name_parts p = {.head = skip_outer(name)};
  p.whole = sh_str_starts(p.head, "visual.") || (sh_str_starts(p.head, "mtp.") && !s->mtp);
  if (p.whole) {
    p.tail = sh_str_starts(p.head, "mtp.") ? "mtp" : "visual";
    return p;
  }
  for (const char *dot = p.head; (dot = strchr(dot, '.')); dot++) {
    size_t digits = strspn(dot + 1, "0123456789");
    if (!digits || dot[1 + digits] != '.') continue;
    p.head_len = (size_t)(dot - p.head);
    p.number = dot + 1;
    p.number_len = digits;
    p.tail = dot + 1 + digits + 1;
    return p;
  }
  p.tail = p.head;
  return p;
}

static bool same_rule(const name_parts *a, const name_parts *b) {
  return a->head_len == b->head_len && !a->number == !b->number && memcmp(a->head, b->head, a->head_len) == 0 &&
         strcmp(a->tail, b->tail) == 0;
}

static void put_escaped(sh_buf *b, const char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (strchr(".\\+*?()[]{}^$|", s[i])) sh_buf_putc(b, '\\');
    sh_buf_putc(b, s[i]);
  }
}

/* What a reader that fuses modules calls the one that this becomes a part of; NULL: it stays alone. */
static const char *fused_name(const char *leaf) {
  static const char *const FUSED[][2] = {{"q_proj", "qkv_proj"},        {"k_proj", "qkv_proj"},          {"v_proj", "qkv_proj"},
                                         {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"},     {"in_proj_a", "in_proj_ba"},
                                         {"in_proj_b", "in_proj_ba"},   {"in_proj_qkv", "in_proj_qkvz"}, {"in_proj_z", "in_proj_qkvz"}};
  for (size_t i = 0; i < sizeof FUSED / sizeof FUSED[0]; i++) {
    if (strcmp(leaf, FUSED[i][0]) == 0) return FUSED[i][1];
  }
  return NULL;
}

/* The expression of the modules that share a rule with names[at]. */
static void put_rule(sh_buf *b, const sh_qscheme *s, int at, const name_parts *p) {
  if (p->whole) {
    sh_buf_printf(b, "-:.*%s.*", p->tail);
    return;
  }
  const char *dot = strrchr(p->tail, '.'), *leaf = dot ? dot + 1 : p->tail, *fused = fused_name(leaf);
  bool layers = p->number && p->head_len == 6 && memcmp(p->head, "layers", 6) == 0;
  sh_buf_puts(b, layers ? "-:(?!.*mtp).*" : "-:.*"); /* mtp has layers of the same names */
  if (p->number) {
    put_escaped(b, p->head, p->head_len);
    sh_buf_puts(b, "\\.(");
    sh_buf_put(b, p->number, p->number_len);
    for (int i = at + 1; i < s->n_ignored; i++) {
      name_parts q = take_apart(s, s->ignored[i]);
      if (!same_rule(p, &q)) continue;
      sh_buf_putc(b, '|');
      sh_buf_put(b, q.number, q.number_len);
    }
    sh_buf_puts(b, ")\\.");
  }
  put_escaped(b, p->tail, (size_t)(leaf - p->tail));
  if (fused) sh_buf_putc(b, '(');
  put_escaped(b, leaf, strlen(leaf));
  if (fused) sh_buf_printf(b, "|%s)", fused);
  sh_buf_putc(b, '$');
}

static bool told_before(const sh_qscheme *s, int at, const name_parts *p) {
  for (int i = 0; i < at; i++) {
    name_parts q = take_apart(s, s->ignored[i]);
    if (same_rule(p, &q)) return true;
  }
  return false;
}

static void put_dynamic(sh_jw *w, const sh_qscheme *s) {
  sh_buf rule;
  sh_buf_init(&rule, 1 << 20);
  sh_jw_key(w, "dynamic");
  sh_jw_obj(w);
  for (int i = 0; i < s->n_ignored; i++) {
    name_parts p = take_apart(s, s->ignored[i]);
    if (told_before(s, i, &p)) continue;
    sh_buf_reset(&rule);
    put_rule(&rule, s, i, &p);
    if (rule.failed) w->buf->failed = rule.failed;
    else sh_jw_key(w, rule.p);
    sh_jw_obj(w);
    sh_jw_end_obj(w);
  }
  sh_jw_end_obj(w);
  sh_buf_free(&rule);
}

/* --- The three methods */

/* A head that is the embedding is not stored, and so in no list of the caller's, but readers make a linear module of it and would look for
 * its integers. */
static void put_names(sh_jw *w, const char *key, const sh_qscheme *s, bool tied) {
  sh_jw_key(w, key);
  sh_jw_arr(w);
  for (int i = 0; i < s->n_ignored; i++) sh_jw_str(w, s->ignored[i]);
  if (tied) sh_jw_str(w, "lm_head");
  sh_jw_end_arr(w);
}

static void put_awq(sh_jw *w, const sh_qscheme *s, bool tied) {
  sh_jw_kint(w, "bits", s->bits);
  sh_jw_kint(w, "group_size", s->group);
  sh_jw_kbool(w, "zero_point", true); /* the layout always has them */
  sh_jw_kstr(w, "version", "gemm");
  put_names(w, "modules_to_not_convert", s, tied);
}

static void put_gptq(sh_jw *w, const sh_qscheme *s, bool head) {
  sh_jw_kint(w, "bits", s->bits);
  sh_jw_kint(w, "group_size", s->group);
  sh_jw_kbool(w, "sym", s->symmetric);
  sh_jw_kbool(w, "desc_act", s->order);
  sh_jw_kbool(w, "static_groups", false);
  sh_jw_kbool(w, "lm_head", head);
  sh_jw_kstr(w, "checkpoint_format", "gptq");
  sh_jw_kstr(w, "pack_dtype", "int32");
  put_dynamic(w, s);
}

static void put_ct_weights(sh_jw *w, const sh_qscheme *s) {
  sh_jw_key(w, "weights");
  sh_jw_obj(w);
  if (s->order) sh_jw_kstr(w, "actorder", "group");
  else sh_jw_knull(w, "actorder");
  sh_jw_knull(w, "block_structure");
  sh_jw_kbool(w, "dynamic", false);
  if (s->group < 0) sh_jw_knull(w, "group_size");
  else sh_jw_kint(w, "group_size", s->group);
  sh_jw_kint(w, "num_bits", s->bits);
  sh_jw_kstr(w, "observer", "minmax");
  sh_jw_kstr(w, "strategy", s->group < 0 ? "channel" : "group");
  sh_jw_kbool(w, "symmetric", s->symmetric);
  sh_jw_kstr(w, "type", "int");
  sh_jw_end_obj(w);
}

static void put_ct_activations(sh_jw *w) {
  sh_jw_key(w, "input_activations");
  sh_jw_obj(w);
  sh_jw_knull(w, "actorder");
  sh_jw_knull(w, "block_structure");
  sh_jw_kbool(w, "dynamic", true);
  sh_jw_knull(w, "group_size");
  sh_jw_kint(w, "num_bits", 8);
  sh_jw_knull(w, "observer");
  sh_jw_kstr(w, "strategy", "token");
  sh_jw_kbool(w, "symmetric", true);
  sh_jw_kstr(w, "type", "int");
  sh_jw_end_obj(w);
}

static void put_ct(sh_jw *w, const sh_qscheme *s, bool tied) {
  const char *format = sh_qscheme_int_quantized(s) ? "int-quantized" : "pack-quantized";
  sh_jw_key(w, "config_groups");
  sh_jw_obj(w);
  sh_jw_key(w, "group_0");
  sh_jw_obj(w);
  sh_jw_kstr(w, "format", format);
  if (s->int8_activations) put_ct_activations(w);
  else sh_jw_knull(w, "input_activations");
  sh_jw_knull(w, "output_activations");
  sh_jw_key(w, "targets");
  sh_jw_arr(w);
  sh_jw_str(w, "Linear");
  sh_jw_end_arr(w);
  put_ct_weights(w, s);
  sh_jw_end_obj(w);
  sh_jw_end_obj(w);
  sh_jw_kstr(w, "format", format);
  put_names(w, "ignore", s, tied);
  sh_jw_knull(w, "kv_cache_scheme");
  sh_jw_kstr(w, "quantization_status", "compressed");
}

static void put_quantization(sh_jw *w, const sh_json *config, const sh_qscheme *s) {
  const sh_json *tie = sh_json_get(config, "tie_word_embeddings");
  if (!tie) tie = sh_json_path(config, "text_config.tie_word_embeddings");
  bool named = false; /* the output head, among those left alone */
  for (int i = 0; i < s->n_ignored; i++) named = named || sh_str_ends(s->ignored[i], "lm_head");
  bool tied = sh_json_is(tie, SH_JSON_BOOL) && tie->b && !named;
  sh_jw_obj(w);
  sh_jw_kstr(w, "quant_method", sh_qformat_name(s->format));
  if (s->format == SH_QF_AWQ) put_awq(w, s, tied);
  else if (s->format == SH_QF_GPTQ) put_gptq(w, s, !named && !tied);
  else put_ct(w, s, tied);
  sh_jw_end_obj(w);
}

/* --- The file */

static bool is_quantization(const char *key) { return strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0; }

static void put_config(sh_jw *w, const sh_json *config, const sh_qscheme *s) {
  sh_jw_obj(w);
  for (size_t i = 0; i < config->len; i++) {
    const sh_json_member *m = &config->members[i];
    if (is_quantization(m->key)) continue;
    sh_jw_key(w, m->key);
    if (strcmp(m->key, "text_config") || !sh_json_is(&m->value, SH_JSON_OBJECT)) {
      sh_jw_value(w, &m->value);
      continue;
    }
    sh_jw_obj(w);
    for (size_t k = 0; k < m->value.len; k++) {
      const sh_json_member *t = &m->value.members[k];
      if (is_quantization(t->key)) continue;
      sh_jw_key(w, t->key);
      sh_jw_value(w, &t->value);
    }
    sh_jw_end_obj(w);
  }
  sh_jw_key(w, "quantization_config");
  put_quantization(w, config, s);
  sh_jw_end_obj(w);
}

int sh_qconfig_text(const sh_json *config, const sh_qscheme *s, sh_buf *out, sh_error *e) {
  if (!sh_json_is(config, SH_JSON_OBJECT)) return sh_fail(e, SH_ERR_ARG, "the model has no config.json to write the quantization into");
  sh_buf text;
  sh_jw w;
  sh_buf_init(&text, MAX_CONFIG);
  sh_jw_init(&w, &text);
  put_config(&w, config, s);
  if (!text.failed) sh_json_indent(out, text.p, text.len);
  int rc = text.failed ? text.failed : out->failed;
  sh_buf_free(&text);
  return rc ? sh_fail(e, rc, "config.json does not fit into memory or is nested too deeply") : 0;
}
