/* quantization_config of every writer, and modules whose tensors contradict it or one another. */
#include "formats/quant.h"

#include "unit/formats/quant_files.h"

/* --- The config */

static int parse(sh_quant *q, const char *quantization, sh_error *e) {
  char text[2048];
  sh_json *root;
  sh_arena *a = sh_arena_new(1 << 20);
  snprintf(text, sizeof text, "{\"quantization_config\":%s}", quantization);
  if (!a || sh_json_parse(text, strlen(text), NULL, a, &root, e)) fail_msg("%s: %s", text, e->text);
  int rc = sh_quant_parse(q, root, e);
  sh_arena_free(a);
  return rc;
}

static sh_quant accept(const char *quantization) {
  sh_quant q;
  sh_error e = {0};
  if (parse(&q, quantization, &e)) fail_msg("%s: %s", quantization, e.text);
  return q;
}

static void awq_is_read_in_both_spellings(void **state) {
  (void)state;
  sh_quant q =
      accept("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true,\"version\":\"gemm\",\"modules_to_not_convert\":"
             "[\"visual\"]}");
  assert_int_equal(q.method, SH_QUANT_AWQ);
  assert_int_equal(q.groups[0], 128);
  assert_int_equal(q.zero_offset, 0);
  q = accept("{\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":64,\"zero_point\":true,\"version\":\"GEMM\"}");
  assert_int_equal(q.groups[0], 64);
  q = accept("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-1,\"checkpoint_format\":\"gemm\"}");
  assert_int_equal(q.groups[0], -1);
  assert_int_equal(q.n_groups, 1);
}

static void gptq_counts_zero_points_by_its_version(void **state) {
  (void)state;
  sh_quant q =
      accept("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"sym\":true,\"desc_act\":false,\"dynamic\":{\"lm_head\":{},"
             "\"-:.*attn.*\":{},\"-:.*mtp.*\":{},\"+:.*down.*\":{\"group_size\":32,\"bits\":4}}}");
  assert_int_equal(q.method, SH_QUANT_GPTQ);
  assert_int_equal(q.zero_offset, 1);
  assert_int_equal(q.n_groups, 2); /* rules may give another size */
  assert_int_equal(q.groups[1], 32);
  assert_int_equal(accept("{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"gptq\"}").zero_offset, 1);
  assert_int_equal(accept("{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"gptq_v2\"}").zero_offset, 0);
  assert_int_equal(accept("{\"quant_method\":\"gptq\",\"bits\":4,\"is_marlin_format\":false}").n_groups, 0);
}

static void auto_round_names_its_packing(void **state) {
  (void)state;
  sh_quant q =
      accept("{\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_gptq\",\"bits\":4,\"group_size\":128,\"sym\":true,"
             "\"data_type\":\"int\",\"extra_config\":{\"lm_head\":{\"bits\":16,\"data_type\":\"float\"},\"a\":{\"group_size\":64}}}");
  assert_int_equal(q.method, SH_QUANT_GPTQ);
  assert_int_equal(q.zero_offset, 1);
  assert_int_equal(q.n_groups, 2);
  q = accept("{\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_awq\",\"bits\":4,\"group_size\":128}");
  assert_int_equal(q.method, SH_QUANT_AWQ);
  assert_int_equal(q.zero_offset, 0);
}

#define CT(inner)                                                                                                                          \
  "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\",\"re:.*mtp.*\"]," inner "}"
#define SCHEME(weights) "{\"targets\":[\"Linear\"],\"input_activations\":null,\"weights\":" weights "}"
#define INT4(symmetric, group)                                                                                                             \
  "{\"num_bits\":4,\"type\":\"int\",\"symmetric\":" symmetric ",\"strategy\":\"group\",\"group_size\":" group "}"

static void compressed_tensors_may_have_several_schemes(void **state) {
  (void)state;
  sh_quant q = accept(CT("\"config_groups\":{\"group_0\":" SCHEME(INT4("true", "32")) ",\"group_1\":" SCHEME(INT4("false", "128")) "}"));
  assert_int_equal(q.method, SH_QUANT_CT);
  assert_int_equal(q.n_groups, 2);
  assert_true(q.int4 && !q.fp8 && q.symmetric && q.asymmetric);
  q = accept(CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\"}") ",\"b\":" SCHEME(
      "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[128,128]}") "}"));
  assert_true(q.int4 && q.fp8 && q.symmetric && !q.asymmetric);
  assert_int_equal(q.groups[0], -1);
  assert_int_equal(q.block_rows, 128);
  q = accept("{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":"
             "8,\"type\":"
             "\"float\",\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}}}}");
  assert_true(q.fp8 && !q.int4);
  assert_int_equal(q.block_rows, 0);
}

static void fp8_has_blocks_or_none(void **state) {
  (void)state;
  sh_quant q = accept("{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,64]}");
  assert_int_equal(q.method, SH_QUANT_FP8);
  assert_int_equal(q.block_rows, 128);
  assert_int_equal(q.block_cols, 64);
  assert_int_equal(accept("{\"quant_method\":\"fp8\",\"weight_block_size\":null}").block_rows, 0);
}

static void it_may_stand_in_the_text_config_or_under_its_old_name(void **state) {
  (void)state;
  static const char *const TEXTS[] = {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}}",
                                      "{\"compression_config\":{\"quant_method\":\"awq\",\"bits\":4}}", "{\"quantization_config\":null}",
                                      "{}"};
  for (int i = 0; i < 4; i++) {
    sh_json *root;
    sh_error e = {0};
    sh_quant q;
    sh_arena *a = sh_arena_new(1 << 20);
    assert_int_equal(sh_json_parse(TEXTS[i], strlen(TEXTS[i]), NULL, a, &root, &e), 0);
    assert_int_equal(sh_quant_parse(&q, root, &e), 0);
    assert_int_equal(q.method, i < 2 ? SH_QUANT_AWQ : SH_QUANT_NONE);
    sh_arena_free(a);
  }
  sh_quant q;
  assert_int_equal(sh_quant_parse(&q, NULL, NULL), 0); /* a GGUF has no config.json */
}

static void eight_bits_are_read_where_the_config_says_so(void **state) {
  (void)state;
  sh_quant q = accept("{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":128}");
  assert_true(q.int8 && !q.int4);
  q = accept("{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"dynamic\":{\"+:.*down.*\":{\"bits\":8,\"group_size\":32}}}");
  assert_true(q.int8 && q.int4);
  q = accept("{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,"
             "\"type\":\"int\",\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"dynamic\":true}}}}");
  assert_true(q.int8 && !q.int4 && !q.fp8 && q.symmetric);
  assert_int_equal(q.groups[0], -1);
  q = accept(CT("\"config_groups\":{\"a\":" SCHEME(
      "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":64}") "}"));
  assert_true(q.int8 && q.asymmetric && !q.symmetric);
}

/* Each with its name and with something to use in its place. */
static void what_is_not_read_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *text, *says, *advises;
    int code;
  } CASES[] = {
      {"7", "not an object", "", SH_ERR_FORMAT},
      {"{}", "quant_method is missing", "", SH_ERR_FORMAT},
      {"{\"quant_method\":4}", "quant_method is not a string", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}", "bitsandbytes", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"mxfp4\"}", "MXFP4", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"quark\"}", "Quark", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"modelopt\"}", "ModelOpt", "FP8", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"modelopt_fp4\"}", "NVFP4", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"fbgemm_fp8\"}", "FBGEMM", "FP8", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"hqq\"}", "the quantization method hqq", "GPTQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", "AWQ in the layout gemv", "gemm", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"marlin\"}", "AWQ in the layout marlin", "gemm", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"awq\",\"bits\":3}", "3-bit AWQ", "4-bit", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"awq\"}", "bits is missing", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"awq\",\"bits\":\"four\"}", "bits is not a whole number", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"awq\",\"bits\":4.5}", "bits is not a whole number", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-7}", "group_size is -7", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":[]}", "version is not a string", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"awq\",\"bits\":8}", "8-bit AWQ", "FP8", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":128}", "3-bit GPTQ", "4-bit", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":6,\"group_size\":128}", "6-bit GPTQ", "FP8", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_awq\",\"bits\":8}", "8-bit AutoRound", "FP8",
       SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", "layout marlin", "gptq_v2", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"is_marlin_format\":true}", "layout marlin", "gptq_v2", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"is_marlin_format\":1}", "is_marlin_format is not true or false", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"pack_dtype\":\"int16\"}", "packed in int16", "int32", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":[]}", "dynamic is not an object", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"auto-round\",\"bits\":4,\"packing_format\":\"auto_round:llm_compressor\"}", "auto_round:llm_compressor",
       "auto_round:auto_gptq", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"auto-round\",\"bits\":4,\"data_type\":\"mx_fp\"}", "data_type mx_fp", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}", "activation_scheme static", "BF16", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "format e5m2", "BF16", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "not a pair", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", "weight_block_size is 0", "", SH_ERR_FORMAT},
      {"{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp8-quantized\"}", "MXFP8", "FP8", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"}", "NVFP4", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\"}", "MXFP4", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}", "marlin-24", "AWQ", SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"compressed-tensors\",\"format\":\"new-one\"}", "format new-one", "pack-quantized", SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{}"), "config_groups", "", SH_ERR_FORMAT},
      {CT("\"config_groups\":[1]"), "config_groups", "", SH_ERR_FORMAT},
      {CT("\"config_groups\":{\"a\":{\"weights\":3}}"), "not an object", "", SH_ERR_FORMAT},
      {CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":8,\"type\":\"int\"}") "}"), "int8 with the strategy tensor", "channel",
       SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":6,\"type\":\"int\"}") "}"), "6-bit weights of type int", "FP8",
       SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,\"type\":\"int\"},\"input_activations\":{\"dynamic\":false}}}"),
       "static input_activations", "dynamic", SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8,\"type\":\"float\"},\"input_activations\":{\"dynamic\":false}}}"),
       "static input_activations", "dynamic", SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":4,\"type\":\"float\"}") "}"), "4-bit floats", "AWQ", SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"tensor\"}") "}"), "strategy tensor", "group",
       SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":" SCHEME("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\"}") "}"), "group_size is missing", "",
       SH_ERR_FORMAT},
      {CT("\"config_groups\":{\"a\":{}},\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), "sparse", "dense", SH_ERR_UNSUPPORTED},
      {CT("\"config_groups\":{\"a\":{}},\"transform_config\":{\"config_groups\":{\"R4\":{}}}"), "rotated", "without transforms",
       SH_ERR_UNSUPPORTED},
      {"{\"quant_method\":\"compressed-tensors\",\"ignore\":3,\"config_groups\":{\"a\":{}}}", "ignore is not a list", "", SH_ERR_FORMAT},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    sh_quant q;
    sh_error e = {0};
    int rc = parse(&q, CASES[i].text, &e);
    if (rc != CASES[i].code) fail_msg("%s: %d, %s", CASES[i].text, rc, e.text);
    assert_says(e.text, CASES[i].says);
    assert_says(e.text, CASES[i].advises);
    assert_int_equal(q.method, SH_QUANT_NONE);
  }
}

static void more_group_sizes_than_fit_are_refused(void **state) {
  (void)state;
  char text[2048];
  int n = snprintf(text, sizeof text, "{\"quant_method\":\"gptq\",\"bits\":4,\"dynamic\":{");
  for (int i = 0; i < 40; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s\"r%d\":{\"group_size\":%d}", i ? "," : "", i, 16 * (i + 1));
  snprintf(text + n, sizeof text - (size_t)n, "}}");
  sh_quant q;
  sh_error e = {0};
  assert_int_equal(parse(&q, text, &e), SH_ERR_LIMIT);
}

/* Damage in the text of real configs: an error with a sentence, or a value. */
static void damaged_configs_are_refused_or_read(void **state) {
  (void)state;
  static const char *const FOLDERS[] = {"dense-small-awq",        "moe-small-gptq",         "dense-small-gptq-actorder-asym",
                                        "moe-small-ct-asym-g128", "dense-small-ct-sym-g32", "moe-small-fp8-block"};
  uint64_t seed = 0x5eed;
  int read = 0, refused = 0;
  for (int f = 0; f < 6; f++) {
    char path[128];
    size_t n;
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", FOLDERS[f]);
    char *text = slurp(path, &n), *copy = malloc(n);
    char *at = memmem(text, n, "\"quantization_config\"", 21);
    size_t from = (size_t)(at - text), len = n - from < 700 ? n - from : 700;
    for (int i = 0; i < 1500; i++) {
      memcpy(copy, text, n);
      mutate((uint8_t *)copy + from, len, &seed);
      sh_arena *a = sh_arena_new(1 << 22);
      sh_json *root;
      sh_error e = {0};
      sh_quant q;
      if (sh_json_parse(copy, n, NULL, a, &root, &e) == 0) {
        e = (sh_error){0};
        if (sh_quant_parse(&q, root, &e)) {
          assert_true(strlen(e.text) > 10);
          refused++;
        } else {
          assert_true(q.n_groups >= 0 && q.n_groups <= SH_QUANT_GROUPS && q.block_rows >= 0);
          read++;
        }
      }
      sh_arena_free(a);
    }
    free(copy);
    sh_free(text);
  }
  assert_true(read > 100 && refused > 100);
}

/* --- Modules */

static const qspec AWQ = {.base = "m", .layout = SH_QL_AWQ, .rows = 16, .cols = 64, .group = 32, .scale_type = SH_F16};
static const qspec GPTQ = {.base = "m", .layout = SH_QL_GPTQ, .rows = 16, .cols = 64, .group = 32, .zero_offset = 1, .scale_type = SH_F16};
static const qspec ROWS = {.base = "m", .layout = SH_QL_ROWS, .rows = 16, .cols = 64, .group = 32, .scale_type = SH_BF16};

static const qspec GPTQ8 = {
    .base = "m", .layout = SH_QL_GPTQ, .bits = 8, .rows = 16, .cols = 64, .group = 32, .zero_offset = 1, .scale_type = SH_F16};
static const qspec ROWS8 = {.base = "m", .layout = SH_QL_ROWS, .bits = 8, .rows = 16, .cols = 64, .group = 32, .scale_type = SH_BF16};
static const qspec BYTES = {
    .base = "m", .layout = SH_QL_I8, .bits = 8, .rows = 16, .cols = 64, .group = 64, .sym = true, .scale_type = SH_BF16};

typedef struct fault {
  const qspec *spec;
  const char *tensor; /* after the base */
  const char *rename; /* NULL: keep; "": leave out */
  int64_t dims[2];    /* {0, 0}: keep; {n, 0}: one dimension */
  sh_dtype type;      /* SH_DTYPE_COUNT: keep */
  int64_t value;      /* stored in place of the first element when has_value */
  bool has_value;
  const char *config; /* NULL: the layout's */
  const char *says;
  int code;
} fault;

#define KEEP .type = SH_DTYPE_COUNT
static const fault FAULTS[] = {
    {&AWQ, ".scales", "", KEEP, .says = "m.scales is missing", .code = SH_ERR_FORMAT},
    {&AWQ, ".qzeros", "", KEEP, .says = "m.qzeros is missing", .code = SH_ERR_FORMAT},
    {&AWQ, ".qweight", NULL, {64, 4}, KEEP, .says = "8-bit weights", .code = SH_ERR_UNSUPPORTED},
    {&AWQ, ".qweight", NULL, {8, 16}, KEEP, .says = "shape [64, 2] is wanted, [8, 16] is found", .code = SH_ERR_FORMAT},
    {&AWQ, ".qweight", NULL, {64, 3}, KEEP, .says = "[64, 3] is found", .code = SH_ERR_FORMAT},
    {&AWQ, ".qweight", NULL, {128, 0}, KEEP, .says = "[128] is found", .code = SH_ERR_FORMAT},
    {&AWQ, ".qweight", NULL, {64, 2}, .type = SH_F32, .says = "m.qweight is stored as F32; I32 is wanted", .code = SH_ERR_FORMAT},
    {&AWQ, ".scales", NULL, {2, 16}, .type = SH_I16, .says = "m.scales is stored as I16", .code = SH_ERR_FORMAT},
    {&AWQ, ".scales", NULL, {0, 16}, KEEP, .says = "no group", .code = SH_ERR_FORMAT},
    {&AWQ, ".scales", NULL, {3, 16}, KEEP, .says = "64 columns in 3 groups", .code = SH_ERR_UNSUPPORTED},
    {&AWQ, ".scales", NULL, {1, 16}, KEEP, .says = "a scale for every 64 columns, but quantization_config says 32", .code = SH_ERR_FORMAT},
    {&AWQ, ".scales", NULL, {8, 16}, KEEP, .says = "64 columns in 8 groups", .code = SH_ERR_UNSUPPORTED},
    {&AWQ, ".scales", NULL, {2, 8}, KEEP, .says = "shape [2, 16] is wanted, [2, 8] is found", .code = SH_ERR_FORMAT},
    {&AWQ, ".qzeros", NULL, {1, 2}, KEEP, .says = "shape [2, 2] is wanted, [1, 2] is found", .code = SH_ERR_FORMAT},
    {&AWQ, ".qzeros", NULL, {2, 2}, .type = SH_F32, .says = "m.qzeros is stored as F32", .code = SH_ERR_FORMAT},
    {&AWQ, NULL, KEEP, .config = "{}", .says = "config.json has no quantization_config", .code = SH_ERR_FORMAT},
    {&AWQ, NULL, KEEP, .config = "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", .says = "does not belong to the method",
     .code = SH_ERR_FORMAT},
    {&AWQ, NULL, KEEP, .config = "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48}}",
     .says = "64 columns are no multiple of the group size 48", .code = SH_ERR_UNSUPPORTED},
    {&GPTQ,
     ".qweight",
     NULL,
     {16, 16},
     KEEP,
     .says = "holds 8-bit weights by its shape, but quantization_config says 4 bits",
     .code = SH_ERR_FORMAT},
    {&GPTQ, ".qweight", NULL, {4, 16}, KEEP, .says = "2-bit weights", .code = SH_ERR_UNSUPPORTED},
    {&GPTQ, ".qweight", NULL, {6, 16}, KEEP, .says = "3-bit weights", .code = SH_ERR_UNSUPPORTED},
    {&GPTQ, ".qweight", NULL, {64, 2}, KEEP, .says = "shape [8, 16] is wanted, [64, 2] is found", .code = SH_ERR_FORMAT},
    {&GPTQ, ".scales", "", KEEP, .says = "m.scales is missing", .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, {63, 0}, KEEP, .says = "[63] is found", .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, {64, 0}, .type = SH_F32, .says = "m.g_idx is stored as F32", .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, KEEP, .value = 2, .has_value = true, .says = "column 0 is of group 2, there are 2 groups",
     .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, KEEP, .value = -1, .has_value = true, .says = "column 0 is of group -1", .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, KEEP, .value = INT32_MIN, .has_value = true, .says = "column 0 is of group -2147483648", .code = SH_ERR_FORMAT},
    {&GPTQ, ".g_idx", NULL, KEEP, .value = 1, .has_value = true, .says = "group 0 has 31 columns, 32 are wanted", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_scale", "", KEEP, .says = "m.weight_scale is missing", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_zero_point", "", KEEP, .says = "m.weight_zero_point is missing", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_zero_point", NULL, {16, 2}, KEEP, .says = "shape [2, 2] is wanted, [16, 2] is found", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_zero_point", NULL, {2, 2}, .type = SH_I8, .says = "m.weight_zero_point is stored as I8", .code = SH_ERR_FORMAT},
    {&ROWS,
     ".weight_packed",
     NULL,
     {16, 16},
     KEEP,
     .says = "holds 8-bit weights by its shape, but quantization_config says 4 bits",
     .code = SH_ERR_FORMAT},
    {&ROWS8,
     ".weight_packed",
     NULL,
     {16, 8},
     KEEP,
     .says = "holds 4-bit weights by its shape, but quantization_config says 8 bits",
     .code = SH_ERR_FORMAT},
    {&ROWS8, ".weight_zero_point", NULL, {2, 2}, KEEP, .says = "shape [4, 2] is wanted, [2, 2] is found", .code = SH_ERR_FORMAT},
    {&GPTQ8, ".qzeros", NULL, {2, 2}, KEEP, .says = "shape [2, 4] is wanted, [2, 2] is found", .code = SH_ERR_FORMAT},
    {&GPTQ8, ".qzeros", NULL, KEEP, .value = 0x7f7fff7f, .has_value = true, .says = "m.qzeros: a stored zero point of 255 is 256 to some",
     .code = SH_ERR_UNSUPPORTED},
    {&BYTES, ".weight_scale", "", KEEP, .says = "m.weight_scale is missing", .code = SH_ERR_FORMAT},
    {&BYTES, ".weight_scale", NULL, {15, 1}, KEEP, .says = "shape [16, 1] is wanted, [15, 1] is found", .code = SH_ERR_FORMAT},
    {&BYTES, ".weight_scale", NULL, {16, 1}, .type = SH_I8, .says = "m.weight_scale is stored as I8", .code = SH_ERR_FORMAT},
    {&BYTES, ".weight", NULL, {16, 63}, KEEP, .says = "shape [16, 64] is wanted, [16, 63] is found", .code = SH_ERR_FORMAT},
    {&BYTES, NULL, KEEP, .config = "{}", .says = "config.json has no quantization_config", .code = SH_ERR_FORMAT},
    {&BYTES, NULL, KEEP, .config = "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":8}}",
     .says = "m.weight does not belong to the method", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_packed", NULL, {16, 8}, .type = SH_F32, .says = "m.weight_packed is stored as F32", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_packed", NULL, {15, 8}, KEEP, .says = "shape [16, 8] is wanted, [15, 8] is found", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_shape", NULL, KEEP, .value = 17, .has_value = true, .says = "says [17, 64], [16, 64] is wanted",
     .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_shape", NULL, {3, 0}, KEEP, .says = "[3] is found", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_scale", NULL, {16, 0}, KEEP, .says = "a scale for every 64 columns", .code = SH_ERR_FORMAT},
    {&ROWS, ".weight_scale", NULL, {16, 0}, .type = SH_F64, .says = "m.weight_scale is stored as F64", .code = SH_ERR_FORMAT},
    {&ROWS, NULL, KEEP, .config = "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}",
     .says = "does not belong to the method", .code = SH_ERR_FORMAT},
};

static void break_it(qfile *f, const fault *x) {
  char name[64];
  if (!x->tensor) return;
  snprintf(name, sizeof name, "m%s", x->tensor);
  sh_ftensor *t = qf_find(f, name);
  if (x->has_value) {
    if (t->type == SH_I64) memcpy((void *)(uintptr_t)t->data, &x->value, 8);
    else memcpy((void *)(uintptr_t)t->data, &(int32_t){(int32_t)x->value}, 4);
  }
  if (x->rename) {
    snprintf((char *)(uintptr_t)t->name, 2, "x"); /* a tensor that nobody asks for */
    return;
  }
  if (x->type != SH_DTYPE_COUNT) t->type = x->type;
  if (x->dims[0] || x->dims[1]) {
    t->n_dims = x->dims[1] ? 2 : 1;
    memcpy(t->dims, x->dims, sizeof x->dims);
  }
  t->bytes = (size_t)sh_ftensor_count(t) * (size_t)sh_dtype_block_bytes(t->type);
  t->data = realloc((void *)(uintptr_t)t->data, t->bytes + 1);
}

static void broken_modules_are_named_with_both_numbers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof FAULTS / sizeof FAULTS[0]; i++) {
    const fault *x = &FAULTS[i];
    qfile *f = calloc(1, sizeof *f);
    qf_module(f, x->spec, NULL);
    break_it(f, x);
    qf_write(f, x->config ? x->config : qf_config(x->spec));
    qopen o;
    sh_wview v;
    sh_error e = {0};
    if (qo_open(&o, &e)) fail_msg("%s", e.text);
    int rc = qo_add(&o, "m", x->spec->rows, x->spec->cols, &v, &e);
    if (!rc) rc = sh_repack_run(o.r, &e);
    if (rc != x->code) fail_msg("fault %zu (%s): %d %s", i, x->says, rc, e.text);
    assert_says(e.text, x->says);
    assert_says(e.text, temp_dir);
    qo_close(&o);
    qf_free(f);
    free(f);
  }
}

/* Symmetric int-quantized modules of some writers have zero points, all of them 0. */
static void zero_points_of_signed_bytes_must_be_0(void **state) {
  (void)state;
  qfile *f = calloc(1, sizeof *f);
  qf_module(f, &BYTES, NULL);
  qf_add(f, "m", ".weight_zero_point", SH_I8, 16, 1);
  for (int bad = 0; bad < 2; bad++) {
    qf_data(f, "m.weight_zero_point")[7] = (uint8_t)bad;
    qf_write(f, qf_config(&BYTES));
    qopen o;
    sh_wview v;
    sh_error e = {0};
    if (qo_open(&o, &e)) fail_msg("%s", e.text);
    assert_int_equal(qo_add(&o, "m", 16, 64, &v, &e), bad ? SH_ERR_UNSUPPORTED : 0);
    if (bad) assert_says(e.text, "m.weight_zero_point is not all 0");
    qo_close(&o);
  }
  qf_free(f);
  free(f);
}

/* Sizes that the config of the model gives, and that cannot be in this layout. */
static void sizes_that_do_not_pack_are_refused_with_numbers(void **state) {
  (void)state;
  qfile *f = calloc(1, sizeof *f);
  qf_module(f, &AWQ, NULL);
  qf_write(f, qf_config(&AWQ));
  qopen o;
  sh_wview v;
  sh_error e = {0};
  if (qo_open(&o, &e)) fail_msg("%s", e.text);
  assert_int_equal(qo_add(&o, "m", 12, 64, &v, &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "12 rows are no multiple of 8");
  assert_int_equal(qo_add(&o, "m", 16, 60, &v, &e), SH_ERR_UNSUPPORTED);
  assert_says(e.text, "60 columns are no multiple of 8");
  assert_int_equal(qo_add(&o, "m", 40, 64, &v, &e), SH_ERR_FORMAT);
  assert_says(e.text, "shape [64, 5] is wanted, [64, 2] is found");
  qo_close(&o);
  qf_free(f);
  free(f);
}

/* Two sizes are declared, 48 and 32, and 64 columns in two groups are what either would give if a last group could be short. */
static void a_declared_size_that_divides_wins_over_one_that_does_not(void **state) {
  (void)state;
  qfile *f = calloc(1, sizeof *f);
  qf_module(f, &GPTQ, NULL);
  qf_write(f,
           "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":48,\"dynamic\":{\"+:m\":{\"group_size\":32}}}}");
  qopen o;
  sh_wview v;
  sh_error e = {0};
  if (qo_open(&o, &e)) fail_msg("%s", e.text);
  if (qo_add(&o, "m", 16, 64, &v, &e) || sh_repack_run(o.r, &e)) fail_msg("%s", e.text);
  assert_int_equal(v.group, 32);
  qo_close(&o);
  qf_free(f);
  free(f);
}

/* --- FP8 */

/* rows x cols of bytes 0x38 + r + c (values about 1), scales 2^-(block number). */
static void put_f8(qfile *f, const char *name, const char *scale, sh_dtype type, int rows, int cols, int64_t a, int64_t b) {
  uint8_t *w = qf_add(f, name, "", SH_F8_E4M3, rows, cols), *s = qf_add(f, scale, "", type, a, b);
  for (int i = 0; i < rows * cols; i++) w[i] = (uint8_t)(i * 7 % 127);
  for (int64_t i = 0; i < a * (b ? b : 1); i++) {
    float v = 1.0f / (float)(1 << i % 20);
    uint32_t h = sh_f32_to_bf16(v);
    memcpy(s + i * sh_dtype_block_bytes(type), type == SH_F32 ? (void *)&v : (void *)&h, (size_t)sh_dtype_block_bytes(type));
  }
}

static void fp8_scales_are_of_blocks_rows_or_the_tensor(void **state) {
  (void)state;
  static const struct {
    const char *config, *scale;
    sh_dtype type;
    int64_t a, b, scale_rows, group;
    const char *says;
  } CASES[] = {
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.weight_scale_inv", SH_F32, 3, 2, 16, 32,
       NULL}, /* short last blocks */
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.weight_scale_inv", SH_BF16, 3, 2, 16, 32, NULL},
      {"{\"quant_method\":\"fp8\"}", "m.weight_scale", SH_F32, 40, 1, 1, 48, NULL},
      {"{\"quant_method\":\"fp8\"}", "m.weight_scale", SH_BF16, 40, 0, 1, 48, NULL},
      {"{\"quant_method\":\"fp8\"}", "m.weight_scale", SH_F32, 1, 0, 40, 48, NULL},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.weight_scale_inv", SH_F32, 2, 3, 0, 0,
       "shape [3, 2] is wanted, [2, 3] is found"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.weight_scale_inv", SH_F32, 1, 0, 0, 0,
       "shape [3, 2] is wanted, [1] is found"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.other", SH_F32, 3, 2, 0, 0, "m.weight_scale_inv is missing"},
      {"{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}", "m.weight_scale", SH_I32, 3, 2, 0, 0, "m.weight_scale is stored as I32"},
      {"{\"quant_method\":\"awq\",\"bits\":4}", "m.weight_scale", SH_F32, 1, 0, 0, 0, "declares no FP8"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    qfile *f = calloc(1, sizeof *f);
    char config[200];
    put_f8(f, "m.weight", CASES[i].scale, CASES[i].type, 40, 48, CASES[i].a, CASES[i].b);
    snprintf(config, sizeof config, "{\"quantization_config\":%s}", CASES[i].config);
    qf_write(f, config);
    qopen o;
    sh_wview v;
    sh_error e = {0};
    if (qo_open(&o, &e)) fail_msg("%s", e.text);
    int rc = qo_add(&o, "m", 40, 48, &v, &e);
    if (CASES[i].says) {
      assert_int_equal(rc, SH_ERR_FORMAT);
      assert_says(e.text, CASES[i].says);
    } else {
      if (rc) fail_msg("%s", e.text);
      assert_int_equal(v.scale_rows, CASES[i].scale_rows);
      assert_int_equal(v.group, CASES[i].group);
      int64_t per_row = (48 + v.group - 1) / v.group;
      for (int r = 0; r < 40; r++) {
        float row[48];
        sh_dequant_row(&v, r, row);
        for (int c = 0; c < 48; c++) {
          float s = 1.0f / (float)(1 << (r / v.scale_rows * per_row + c / v.group) % 20);
          assert_true(row[c] == sh_f8_e4m3_to_f32((uint8_t)((r * 48 + c) * 7 % 127)) * s);
        }
      }
    }
    qo_close(&o);
    qf_free(f);
    free(f);
  }
}

int main(void) {
  cap_memory();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(awq_is_read_in_both_spellings),
      cmocka_unit_test(gptq_counts_zero_points_by_its_version),
      cmocka_unit_test(auto_round_names_its_packing),
      cmocka_unit_test(compressed_tensors_may_have_several_schemes),
      cmocka_unit_test(fp8_has_blocks_or_none),
      cmocka_unit_test(it_may_stand_in_the_text_config_or_under_its_old_name),
      cmocka_unit_test(what_is_not_read_is_refused_by_name),
      cmocka_unit_test(eight_bits_are_read_where_the_config_says_so),
      cmocka_unit_test(more_group_sizes_than_fit_are_refused),
      cmocka_unit_test(damaged_configs_are_refused_or_read),
      cmocka_unit_test_setup_teardown(broken_modules_are_named_with_both_numbers, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(zero_points_of_signed_bytes_must_be_0, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(sizes_that_do_not_pack_are_refused_with_numbers, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(a_declared_size_that_divides_wins_over_one_that_does_not, make_temp_dir, remove_temp_dir),
      cmocka_unit_test_setup_teardown(fp8_scales_are_of_blocks_rows_or_the_tensor, make_temp_dir, remove_temp_dir),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
