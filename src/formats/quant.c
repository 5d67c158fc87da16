/* quantization_config: which of the published layouts a folder claims to have.
 *
 * Called at load, on one thread; the result is a plain value. Every writer has its own spelling (AutoAWQ's two, GPTQModel's, AutoRound's,
 * compressed-tensors' groups of schemes), so there is one reader per method, and all fill the same few fields. What would change the
 * mathematics or is stored in a way nobody reads here is refused, by the name people know it under and with what to take instead, because
 * a checkpoint is 20 GB and its owner has to fetch another one.
 *
 * Refused as a design: matching every module's name against the config's lists and regular expressions. Writers get these lists wrong (a
 * fused name, a missing prefix), and the stored tensors say the same thing without doubt: a packed tensor exists or it does not, its shape
 * gives bits and group. The lists are read only for the group sizes they allow. */
#include "formats/quant.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct reader {
  sh_quant *q;
  const sh_json *c; /* quantization_config */
  sh_error *e;
  int rc; /* first error */
} reader;

#define USE_4BIT "use a 4-bit AWQ, GPTQ or compressed-tensors (W4A16) folder of the model, or a GGUF"
#define USE_8BIT "use the FP8 (weight_block_size) or BF16 folder of the model, or a Q8_0 GGUF"

/* --- Small readers */

static const sh_json *present(const sh_json *obj, const char *key) {
  const sh_json *v = sh_json_get(obj, key);
  return sh_json_is(v, SH_JSON_NULL) ? NULL : v;
}

/* Of two spellings of a key. */
static const sh_json *either(const sh_json *obj, const char *a, const char *b) {
  const sh_json *v = present(obj, a);
  return v ? v : present(obj, b);
}

static void refuse(reader *r, const char *what, const char *advice) {
  if (!r->rc) r->rc = sh_fail(r->e, SH_ERR_UNSUPPORTED, "quantization_config: %s is not supported; %s", what, advice);
}

static void wrong(reader *r, const char *key, const char *text) {
  if (!r->rc) r->rc = sh_fail(r->e, SH_ERR_FORMAT, "quantization_config: %s %s", key, text);
}

/* A string, or def when it is missing. */
static const char *text_of(reader *r, const sh_json *v, const char *key, const char *def) {
  if (!v) return def;
  if (sh_json_is(v, SH_JSON_STRING) && strlen(v->s) == v->len) return v->s;
  wrong(r, key, "is not a string");
  return def;
}

static int64_t whole_of(reader *r, const sh_json *v, const char *key, int64_t def, int64_t min, int64_t max) {
  int64_t n = def;
  if (!v || r->rc) return def;
  if (sh_json_int(v, &n)) {
    wrong(r, key, "is not a whole number");
  } else if (n < min || n > max) {
    r->rc = sh_fail(r->e, SH_ERR_FORMAT, "quantization_config: %s is %lld; %lld to %lld is wanted", key, (long long)n, (long long)min,
                    (long long)max);
  }
  return n;
}

static bool flag_of(reader *r, const sh_json *v, const char *key, bool def) {
  if (!v) return def;
  if (!sh_json_is(v, SH_JSON_BOOL)) wrong(r, key, "is not true or false");
  return v->b;
}

/* --- What all methods with integers share */

/* A group size that modules may have: -1 is a whole row. */
static void allow_size(reader *r, int64_t g) {
  for (int i = 0; i < r->q->n_groups; i++) {
    if (r->q->groups[i] == g) return;
  }
  if (r->rc) return;
  if (r->q->n_groups == SH_QUANT_GROUPS) {
    r->rc = sh_fail(r->e, SH_ERR_LIMIT, "quantization_config: more than %d different group sizes", SH_QUANT_GROUPS);
    return;
  }
  r->q->groups[r->q->n_groups++] = g;
}

/* The same from the file, where a whole row is -1 or 0. */
static void allow_group(reader *r, const sh_json *v, const char *key) {
  if (!v) return;
  int64_t g = whole_of(r, v, key, -1, -1, INT32_MAX);
  allow_size(r, g ? g : -1);
}

static void allow_bits(reader *r, int64_t bits) {
  if (bits == 4) r->q->int4 = true;
  if (bits == 8) r->q->int8 = true;
}

/* most: 4, or 8 where 8 bits are read as well. */
static void want_bits(reader *r, const sh_json *v, const char *method, int most) {
  if (!v) {
    wrong(r, "bits", "is missing");
    return;
  }
  int64_t bits = whole_of(r, v, "bits", 4, 1, 64);
  char what[64];
  snprintf(what, sizeof what, "%lld-bit %s", (long long)bits, method);
  if (bits != 4 && bits != most) refuse(r, what, bits > 4 ? USE_8BIT : USE_4BIT);
  allow_bits(r, bits);
}

/* Rules by module: an object of objects, in which "group_size" and "bits" may stand. */
static void allow_rules(reader *r, const char *key) {
  const sh_json *v = present(r->c, key);
  if (!v || r->rc) return;
  if (!sh_json_is(v, SH_JSON_OBJECT)) {
    wrong(r, key, "is not an object");
    return;
  }
  for (size_t i = 0; i < v->len && !r->rc; i++) {
    const sh_json *rule = &v->members[i].value;
    allow_group(r, present(rule, "group_size"), "group_size");
    if (r->q->method == SH_QUANT_GPTQ) allow_bits(r, whole_of(r, present(rule, "bits"), "bits", 0, 0, 64));
  }
}

/* --- AutoAWQ, also as GPTQModel writes it */

static void read_awq(reader *r) {
  r->q->method = SH_QUANT_AWQ;
  const sh_json *v = either(r->c, "version", "checkpoint_format");
  const char *version = text_of(r, v ? v : present(r->c, "format"), "version", "gemm");
  char what[96];
  snprintf(what, sizeof what, "AWQ in the layout %.60s", version);
  if (strcasecmp(version, "gemm")) refuse(r, what, "use a folder of version gemm");
  want_bits(r, either(r->c, "bits", "w_bit"), "AWQ", 4);
  allow_group(r, either(r->c, "group_size", "q_group_size"), "group_size");
}

/* --- GPTQ and AutoRound */

static void read_gptq(reader *r) {
  r->q->method = SH_QUANT_GPTQ;
  const char *format = text_of(r, either(r->c, "checkpoint_format", "format"), "checkpoint_format", "gptq");
  if (flag_of(r, present(r->c, "is_marlin_format"), "is_marlin_format", false)) format = "marlin";
  char what[96];
  snprintf(what, sizeof what, "GPTQ in the layout %.60s", format);
  if (strcmp(format, "gptq") == 0) r->q->zero_offset = 1; /* version 1 stores zero points less one */
  else if (strcmp(format, "gptq_v2")) refuse(r, what, "use a folder with checkpoint_format gptq or gptq_v2");
  const char *word = text_of(r, present(r->c, "pack_dtype"), "pack_dtype", "int32");
  snprintf(what, sizeof what, "GPTQ packed in %.60s", word);
  if (strcmp(word, "int32")) refuse(r, what, "use a folder with pack_dtype int32");
  want_bits(r, present(r->c, "bits"), "GPTQ", 8);
  allow_group(r, present(r->c, "group_size"), "group_size");
  allow_rules(r, "dynamic");
}

/* One quantizer, several packings: the part behind the colon names the layout. */
static void read_auto_round(reader *r) {
  const char *packing = text_of(r, present(r->c, "packing_format"), "packing_format", "auto_round:auto_gptq");
  const char *type = text_of(r, present(r->c, "data_type"), "data_type", "int");
  char what[128];
  snprintf(what, sizeof what, "AutoRound with data_type %.60s", type);
  if (strcmp(type, "int")) refuse(r, what, USE_4BIT);
  if (strcmp(packing, "auto_round:auto_gptq") == 0) {
    r->q->method = SH_QUANT_GPTQ;
    r->q->zero_offset = 1;
  } else if (strcmp(packing, "auto_round:auto_awq") == 0) {
    r->q->method = SH_QUANT_AWQ;
  } else {
    snprintf(what, sizeof what, "AutoRound's packing_format %.60s", packing);
    refuse(r, what, "use a folder with packing_format auto_round:auto_gptq or auto_round:auto_awq");
  }
  want_bits(r, present(r->c, "bits"), "AutoRound", r->q->method == SH_QUANT_GPTQ ? 8 : 4);
  allow_group(r, present(r->c, "group_size"), "group_size");
  allow_rules(r, "extra_config");
}

/* --- FP8 */

static void set_block(reader *r, const sh_json *v, const char *key) {
  if (!v) return;
  if (!sh_json_is(v, SH_JSON_ARRAY) || v->len != 2) {
    wrong(r, key, "is not a pair of numbers");
    return;
  }
  int64_t rows = whole_of(r, &v->items[0], key, 0, 1, INT32_MAX), cols = whole_of(r, &v->items[1], key, 0, 1, INT32_MAX);
  if (!r->rc && r->q->block_rows && (r->q->block_rows != rows || r->q->block_cols != cols))
    refuse(r, "FP8 with blocks of different sizes", "use a folder with one weight_block_size");
  r->q->block_rows = rows;
  r->q->block_cols = cols;
}

static void read_fp8(reader *r) {
  r->q->method = SH_QUANT_FP8;
  r->q->fp8 = true;
  const char *fmt = text_of(r, present(r->c, "fmt"), "fmt", "e4m3");
  char what[96];
  snprintf(what, sizeof what, "FP8 in the format %.60s", fmt);
  if (strcmp(fmt, "e4m3")) refuse(r, what, USE_8BIT);
  const char *scheme = text_of(r, present(r->c, "activation_scheme"), "activation_scheme", "dynamic");
  snprintf(what, sizeof what, "FP8 with activation_scheme %.60s", scheme);
  if (strcmp(scheme, "dynamic")) refuse(r, what, USE_8BIT);
  set_block(r, present(r->c, "weight_block_size"), "weight_block_size");
}

/* --- compressed-tensors */

/* Formats of the writer, as they stand for the whole file and for a group. */
static void check_format(reader *r, const sh_json *v) {
  static const struct {
    const char *name, *known_as, *advice; /* advice NULL: read */
  } FORMATS[] = {
      {"pack-quantized", "", NULL},
      {"float-quantized", "", NULL},
      {"int-quantized", "", NULL},
      {"mixed-precision", "", NULL}, /* the groups say it */
      {"naive-quantized", "", NULL},
      {"dense", "", NULL},
      {"nvfp4-pack-quantized", "NVFP4 (compressed-tensors nvfp4-pack-quantized)", USE_4BIT},
      {"mxfp4-pack-quantized", "MXFP4 (compressed-tensors mxfp4-pack-quantized)", USE_4BIT},
      {"mxfp8-quantized", "MXFP8 (compressed-tensors mxfp8-quantized)", USE_8BIT},
      {"marlin-24", "compressed-tensors marlin-24 (2:4 sparse)", USE_4BIT},
  };
  const char *name = text_of(r, v, "format", "dense");
  char what[112];
  for (size_t i = 0; i < sizeof FORMATS / sizeof FORMATS[0]; i++) {
    if (strcmp(name, FORMATS[i].name)) continue;
    if (FORMATS[i].advice) refuse(r, FORMATS[i].known_as, FORMATS[i].advice);
    return;
  }
  snprintf(what, sizeof what, "the compressed-tensors format %.60s", name);
  refuse(r, what, "use a folder with format pack-quantized, int-quantized or float-quantized");
}

/* Activations quantized on the fly only lose precision that sheng keeps; scales fixed beforehand are part of the model. */
static void check_activations(reader *r, const sh_json *group) {
  const sh_json *a = present(group, "input_activations"), *d = sh_json_get(a, "dynamic");
  if (!a || (sh_json_is(d, SH_JSON_BOOL) && d->b)) return;
  refuse(r, "compressed-tensors with static input_activations", "use a folder with dynamic or unquantized activations");
}

static void read_ct_ints(reader *r, const sh_json *w, int64_t bits, const char *strategy) {
  const sh_json *g = present(w, "group_size");
  char what[112];
  allow_bits(r, bits);
  if (flag_of(r, present(w, "symmetric"), "symmetric", true)) r->q->symmetric = true;
  else r->q->asymmetric = true;
  if (strcmp(strategy, "channel") == 0) {
    allow_size(r, -1);
  } else if (strcmp(strategy, "group") == 0) {
    if (!g) wrong(r, "group_size", "is missing in a scheme of the strategy group");
    allow_group(r, g, "group_size");
  } else {
    snprintf(what, sizeof what, "compressed-tensors int%d with the strategy %.60s", (int)bits, strategy);
    refuse(r, what, "use a folder with strategy group or channel");
  }
}

/* One scheme: {"targets", "weights": {num_bits, type, strategy, ...}, "input_activations", "format"}. */
static void read_ct_group(reader *r, const sh_json *group) {
  const sh_json *w = present(group, "weights");
  check_format(r, present(group, "format"));
  if (!w || r->rc) return; /* activations alone say nothing about what is stored */
  if (!sh_json_is(w, SH_JSON_OBJECT)) {
    wrong(r, "config_groups", "has weights that are not an object");
    return;
  }
  check_activations(r, group);
  const char *type = text_of(r, present(w, "type"), "type", "int");
  const sh_json *g = present(w, "group_size");
  const char *strategy = text_of(r, present(w, "strategy"), "strategy", g ? "group" : "tensor");
  int64_t bits = whole_of(r, present(w, "num_bits"), "num_bits", 8, 1, 64);
  bool is_int = strcmp(type, "int") == 0, is_float = strcmp(type, "float") == 0;
  char what[112];
  if (is_int && (bits == 4 || bits == 8)) {
    read_ct_ints(r, w, bits, strategy);
  } else if (is_float && bits == 8) {
    r->q->fp8 = true;
    if (strcmp(strategy, "block") == 0) set_block(r, present(w, "block_structure"), "block_structure");
    else if (strcmp(strategy, "channel") && strcmp(strategy, "tensor")) {
      snprintf(what, sizeof what, "compressed-tensors FP8 with the strategy %.60s", strategy);
      refuse(r, what, USE_8BIT);
    }
  } else if (is_float && bits == 4) {
    refuse(r, "compressed-tensors with 4-bit floats (NVFP4, MXFP4)", USE_4BIT);
  } else {
    snprintf(what, sizeof what, "compressed-tensors with %lld-bit weights of type %.40s", (long long)bits, type);
    refuse(r, what, bits > 4 ? USE_8BIT : USE_4BIT);
  }
}

static void read_ct(reader *r) {
  r->q->method = SH_QUANT_CT;
  check_format(r, present(r->c, "format"));
  const sh_json *sparse = present(r->c, "sparsity_config"), *rotated = present(r->c, "transform_config");
  const sh_json *kind = present(sparse, "format");
  if (kind && !sh_json_eq_str(kind, "dense")) refuse(r, "compressed-tensors with sparse weights", "use a dense folder");
  if (rotated && present(rotated, "config_groups") && present(rotated, "config_groups")->len)
    refuse(r, "compressed-tensors with a transform_config (rotated weights)", "use a folder without transforms");
  const sh_json *ignore = present(r->c, "ignore"), *groups = present(r->c, "config_groups");
  if (ignore && !sh_json_is(ignore, SH_JSON_ARRAY)) wrong(r, "ignore", "is not a list");
  if (!r->rc && (!sh_json_is(groups, SH_JSON_OBJECT) || groups->len == 0)) wrong(r, "config_groups", "is not an object of schemes");
  for (size_t i = 0; !r->rc && i < groups->len; i++) read_ct_group(r, &groups->members[i].value);
}

/* --- Which method */

/* Known by name, and not read. */
static void refuse_method(reader *r, const char *name) {
  static const struct {
    const char *name, *known_as, *advice;
  } KNOWN[] = {
      {"bitsandbytes", "bitsandbytes", USE_4BIT},
      {"mxfp4", "MXFP4", USE_4BIT},
      {"quark", "AMD Quark (MXFP4 and others)", USE_4BIT},
      {"modelopt_fp4", "NVFP4 (ModelOpt)", USE_4BIT},
      {"modelopt", "ModelOpt (FP8, NVFP4)", "use the official FP8 folder (weight_block_size), a 4-bit AWQ or GPTQ one, or a GGUF"},
      {"fbgemm_fp8", "FBGEMM FP8", USE_8BIT},
      {"ascend", "Ascend W8A8 (ModelSlim)", USE_8BIT},
      {"marlin", "the packed Marlin layout", USE_4BIT},
  };
  char what[112];
  for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
    if (strcmp(name, KNOWN[i].name) == 0) refuse(r, KNOWN[i].known_as, KNOWN[i].advice);
  }
  snprintf(what, sizeof what, "the quantization method %.60s", name);
  refuse(r, what,
         "AWQ (gemm), GPTQ, AutoRound, compressed-tensors (pack-quantized, int-quantized, FP8) and FP8 folders are read, and GGUF files");
}

static void read_method(reader *r) {
  static const struct {
    const char *name;
    void (*read)(reader *r);
  } METHODS[] = {
      {"awq", read_awq},
      {"gptq", read_gptq},
      {"auto-round", read_auto_round},
      {"auto_round", read_auto_round},
      {"intel/auto-round", read_auto_round},
      {"compressed-tensors", read_ct},
      {"compressed_tensors", read_ct},
      {"fp8", read_fp8},
  };
  const sh_json *v = present(r->c, "quant_method");
  const char *name = text_of(r, v, "quant_method", "");
  if (!v) wrong(r, "quant_method", "is missing");
  for (size_t i = 0; i < sizeof METHODS / sizeof METHODS[0] && !r->rc; i++) {
    if (strcmp(name, METHODS[i].name)) continue;
    METHODS[i].read(r);
    return;
  }
  if (!r->rc) refuse_method(r, name);
}

/* Where it stands: writers put it on top, or beside the language model's sizes; compressed-tensors had a name of its own before. */
const sh_json *sh_quant_config(const sh_json *root) {
  static const char *const KEYS[] = {"quantization_config", "compression_config"};
  const sh_json *at[] = {root, present(root, "text_config")};
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 2; k++) {
      const sh_json *v = present(at[i], KEYS[k]);
      if (v) return v;
    }
  }
  return NULL;
}

int sh_quant_parse(sh_quant *q, const sh_json *root, sh_error *e) {
  memset(q, 0, sizeof *q);
  reader r = {.q = q, .c = sh_quant_config(root), .e = e};
  if (!r.c) return 0;
  if (!sh_json_is(r.c, SH_JSON_OBJECT)) r.rc = sh_fail(e, SH_ERR_FORMAT, "quantization_config is not an object");
  else read_method(&r);
  if (r.rc) memset(q, 0, sizeof *q);
  return r.rc;
}

const char *sh_quant_name(sh_quant_method m) {
  static const char *const NAMES[] = {[SH_QUANT_NONE] = "none",
                                      [SH_QUANT_AWQ] = "AWQ",
                                      [SH_QUANT_GPTQ] = "GPTQ",
                                      [SH_QUANT_CT] = "compressed-tensors",
                                      [SH_QUANT_FP8] = "FP8"};
  return (unsigned)m < sizeof NAMES / sizeof NAMES[0] ? NAMES[m] : "?";
}
