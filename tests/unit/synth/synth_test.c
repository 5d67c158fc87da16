/* Random checkpoints end to end: every format of both small shapes is whole to `sheng inspect`, computes finite logits, and has the same
 * bytes whatever the threads; what is there already, wrong names and interruptions are told and leave nothing wrong behind. */
#include "synth/synth.h"

#include <dirent.h>
#include <math.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/synth.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "ops/inspect.h"
#include "text/tokenizer.h"
#include "unit/quant/fast_dir.h"

enum { BASE = 960, VOCAB = 1024 }; /* of the small shapes: the first added token's id, and rows of the embedding */

static bool is_gguf(const char *format) { return strncmp(format, "gguf-", 5) == 0; }

/* A path in the temporary folder that suits the format; borrowed for eight calls. */
static const char *out_for(const char *name, const char *format) {
  char file[64];
  snprintf(file, sizeof file, "%s%s", name, is_gguf(format) ? ".gguf" : "");
  return in_temp(file);
}

static void remove_out(const char *path) {
  char cmd[600];
  snprintf(cmd, sizeof cmd, "rm -rf '%s'", path);
  assert_int_equal(system(cmd), 0);
}

static sh_synth_opts options(const char *shape, const char *format, const char *out) {
  return (sh_synth_opts){.shape = shape, .format = format, .out = out, .group = 128, .seed = 1, .threads = 2};
}

static void make(const sh_synth_opts *o, sh_synth_result *r) {
  sh_error e = {0};
  if (sh_synth(o, r, &e)) fail_msg("%s %s: %s", o->shape, o->format, e.text);
}

static void refused(const sh_synth_opts *o, const char *says) {
  sh_synth_result r;
  sh_error e = {0};
  if (!sh_synth(o, &r, &e)) fail_msg("%s %s was made, though %s", o->shape, o->format, says);
  assert_says(e.text, says);
}

/* --- Whole */

static void check_inspection(const char *path) {
  sh_inspect_options o = sh_inspect_option_defaults;
  sh_buf b;
  sh_error e = {0};
  bool will_start = false;
  o.model = path;
  o.memory = (int64_t)8 << 30;
  sh_buf_init(&b, 16 << 20);
  if (sh_inspect_run(&o, &b, &will_start, &e)) fail_msg("%s", e.text);
  if (!will_start || strstr(b.p, "not used") || strstr(b.p, "left over")) fail_msg("%s", b.p);
  sh_buf_free(&b);
}

/* Through `sheng logits`, all positions of four ids. */
static void check_logits(const char *path) {
  const char *ids = in_temp("ids.json"), *out = in_temp("logits.safetensors");
  char *argv[] = {"logits",  (char *)(uintptr_t)path, "--ids", (char *)(uintptr_t)ids, "--out", (char *)(uintptr_t)out, "--all",
                  "--exact", "--cache-dir=",          NULL};
  sh_error e = {0};
  sh_st *st;
  put_text("ids.json", "[65, 961, 300, 7]");
  assert_int_equal(sh_cmd_logits(9, argv), SH_EXIT_OK);
  if (sh_st_open(&st, out, &e)) fail_msg("%s", e.text);
  const sh_ftensor *t = sh_st_find(st, "logits");
  assert_int_equal(t->dims[0], 4);
  assert_int_equal(t->dims[1], VOCAB);
  float x[2 * VOCAB];
  double squares = 0, apart = 0;
  memcpy(x, t->data + 2 * VOCAB * sizeof *x, sizeof x); /* the last two positions */
  for (int i = 0; i < VOCAB; i++) {
    assert_true(isfinite(x[i]) && isfinite(x[i + VOCAB]));
    squares += (double)x[i] * (double)x[i];
    apart += fabs((double)x[i] - (double)x[i + VOCAB]);
  }
  double size = sqrt(squares / VOCAB); /* a tied head has rows of 0.05, others of 0.7 / sqrt(H): 0.8 and 0.7 */
  if (size < 0.4 || size > 1.2 || apart / VOCAB < 0.3 * size) fail_msg("%s: logits of size %g, %g apart", path, size, apart / VOCAB);
  sh_st_close(st);
}

static void every_format_loads_and_computes(void **state) {
  (void)state;
  static const char *const SHAPES[] = {"test", "test-moe"};
  for (int s = 0; s < 2; s++) {
    for (const sh_synth_format *f = sh_synth_formats; f->name; f++) {
      const char *path = out_for("model", f->name);
      sh_synth_opts o = options(SHAPES[s], f->name, path);
      sh_synth_result r;
      make(&o, &r);
      assert_int_equal(r.layers, 4);
      check_inspection(path);
      check_logits(path);
      remove_out(path);
    }
  }
}

static void groups_and_layers_are_free(void **state) {
  (void)state;
  static const char *const GROUPED[] = {"awq", "gptq", "compressed-tensors"};
  for (int k = 0; k < 6; k++) {
    const char *format = GROUPED[k % 3], *path = in_temp("model");
    sh_synth_opts o = options("TEST", format, path); /* the case does not matter */
    sh_synth_result r;
    o.group = k < 3 ? 32 : 64;
    o.layers = k + 1;
    make(&o, &r);
    assert_int_equal(r.layers, k + 1);
    check_inspection(path);
    check_logits(path);
    remove_out(path);
  }
}

/* --- The same bytes */

static void same_file(const char *a, const char *b) {
  size_t n, m;
  char *x = slurp(a, &n), *y = slurp(b, &m);
  if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
  sh_free(x);
  sh_free(y);
}

/* Files of folder a, each equal in b; their number. */
static int same_folder(const char *a, const char *b) {
  int n = 0;
  char x[600], y[600];
  DIR *d = opendir(a);
  assert_non_null(d);
  for (struct dirent *f = readdir(d); f; f = readdir(d)) {
    if (f->d_name[0] == '.') continue;
    snprintf(x, sizeof x, "%s/%s", a, f->d_name);
    snprintf(y, sizeof y, "%s/%s", b, f->d_name);
    same_file(x, y);
    n++;
  }
  closedir(d);
  return n;
}

static void the_same_seed_gives_the_same_bytes_for_any_number_of_threads(void **state) {
  (void)state;
  for (const sh_synth_format *f = sh_synth_formats; f->name; f++) {
    const char *one = out_for("one", f->name), *two = out_for("two", f->name);
    sh_synth_opts o = options("test-moe", f->name, one);
    sh_synth_result r;
    o.threads = 1;
    make(&o, &r);
    o.threads = 2;
    o.out = two;
    make(&o, &r);
    if (is_gguf(f->name)) same_file(one, two);
    else assert_in_range(same_folder(one, two), 7, 7); /* weights, config, generation_config, tokenizer, its config, template, card */
    remove_out(two);
    o.seed = 2;
    make(&o, &r);
    size_t n, m;
    char name[600];
    snprintf(name, sizeof name, "%s%s", one, is_gguf(f->name) ? "" : "/model.safetensors");
    char *x = slurp(name, &n);
    snprintf(name, sizeof name, "%s%s", two, is_gguf(f->name) ? "" : "/model.safetensors");
    char *y = slurp(name, &m);
    assert_int_equal(n, m);
    assert_memory_not_equal(x, y, n);
    sh_free(x);
    sh_free(y);
    remove_out(one);
    remove_out(two);
  }
}

/* --- What is in it */

static void folders_have_the_released_names(void **state) {
  (void)state;
#define L "model.language_model.layers."
  static const struct {
    const char *shape, *format, *name, *type;
    int64_t rows, cols;
  } WANT[] = {
      {"test", "bf16", L "0.linear_attn.in_proj_qkv.weight", "BF16", 1024, 256},
      {"test", "bf16", L "3.self_attn.q_proj.weight", "BF16", 1024, 256},
      {"test", "f16", "model.language_model.embed_tokens.weight", "F16", VOCAB, 256},
      {"test", "awq", L "0.mlp.down_proj.qweight", "I32", 512, 32},
      {"test", "awq", L "0.linear_attn.in_proj_a.weight", "BF16", 4, 256},
      {"test", "gptq", L "3.self_attn.o_proj.qweight", "I32", 64, 256},
      {"test", "compressed-tensors", L "3.self_attn.k_proj.weight_packed", "I32", 256, 32},
      {"test", "int8", L "1.mlp.up_proj.weight", "I8", 512, 256},
      {"test", "fp8", L "1.mlp.up_proj.weight_scale_inv", "BF16", 4, 2},
      {"test-moe", "awq", L "2.mlp.experts.5.gate_proj.qweight", "I32", 256, 32},
      {"test-moe", "fp8", L "2.mlp.experts.0.down_proj.weight", "F8_E4M3", 256, 256},
      {"test-moe", "bf16", L "2.mlp.shared_expert_gate.weight", "BF16", 1, 256},
      {"test-moe", "int8", L "2.mlp.gate.weight", "BF16", 6, 256},
      {"test-moe", "gptq", "lm_head.weight", "BF16", VOCAB, 256},
      {"test-moe", "gguf-q4_0", "output.weight", "Q6_K", VOCAB, 256},
      {"test-moe", "gguf-q4_k", "token_embd.weight", "Q4_K", VOCAB, 256},
      {"test-moe", "gguf-q4_1", "blk.0.ffn_gate_inp.weight", "F32", 6, 256},
      {"test-moe", "gguf-q8_0", "output.weight", "Q8_0", VOCAB, 256},
      {"test", "gguf-q5_k", "token_embd.weight", "Q6_K", VOCAB, 256},
      {"test", "gguf-q6_k", "blk.3.attn_q.weight", "Q6_K", 1024, 256},
      {"test", "gguf-bf16", "blk.0.ssm_conv1d.weight", "F32", 1024, 4},
  };
#undef L
  for (size_t i = 0; i < sizeof WANT / sizeof *WANT; i++) {
    const char *path = out_for("model", WANT[i].format);
    sh_synth_opts o = options(WANT[i].shape, WANT[i].format, path);
    sh_synth_result r;
    sh_ckpt *c;
    sh_error e = {0};
    make(&o, &r);
    if (sh_ckpt_open(&c, path, 0, &e)) fail_msg("%s", e.text);
    assert_int_equal(sh_ckpt_count(c), r.n_tensors);
    assert_int_equal(sh_ckpt_bytes(c), r.bytes);
    const sh_ftensor *t = sh_ckpt_find(c, WANT[i].name);
    if (!t) fail_msg("%s: no %s", WANT[i].format, WANT[i].name);
    assert_string_equal(t->type_name, WANT[i].type);
    assert_int_equal(t->dims[0], WANT[i].rows);
    assert_int_equal(t->dims[t->n_dims - 1], WANT[i].cols);
    sh_ckpt_close(c);
    remove_out(path);
  }
}

static void check_text(const sh_tok *t, const char *text, const int32_t *want, size_t n) {
  sh_ids ids = {0};
  sh_buf b;
  sh_error e = {0};
  sh_buf_init(&b, 1 << 16);
  if (sh_tok_encode(t, text, strlen(text), 0, &ids, &e)) fail_msg("%s", e.text);
  if (want) {
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.v, want, n * sizeof *want);
  }
  if (sh_tok_decode(t, ids.v, ids.n, false, &b, &e)) fail_msg("%s", e.text);
  assert_string_equal(b.p, text);
  sh_buf_free(&b);
  sh_ids_free(&ids);
}

/* The tokenizer of what was made, opened (sh_tok_free); *c stays open for it. */
static sh_tok *tokenizer_of(const char *path, sh_ckpt **c) {
  sh_tok *t;
  sh_error e = {0};
  if (sh_ckpt_open(c, path, 0, &e) || sh_tok_open(&t, *c, &e)) fail_msg("%s", e.text);
  return t;
}

static void the_made_up_tokenizer_takes_any_text(void **state) {
  (void)state;
  static const char *const FORMATS[] = {"bf16", "gguf-q8_0"};
  for (int k = 0; k < 2; k++) {
    const char *path = out_for("model", FORMATS[k]);
    sh_synth_opts o = options("test", FORMATS[k], path);
    sh_synth_result r;
    sh_ckpt *c;
    size_t n;
    make(&o, &r);
    sh_tok *t = tokenizer_of(path, &c);
    /* ids of printable ASCII begin at '!'; a line feed is the 198th of the order that GPT-2 gave bytes */
    const int32_t hi[] = {BASE + 1, 'h' - '!', 'i' - '!', 198, BASE + 2, BASE + 24};
    check_text(t, "<|im_start|>hi\n<|im_end|><think>", hi, 6);
    check_text(t, "h\xc3\xa9llo, \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82 w300\t\x01", NULL, 0);
    assert_int_equal(sh_tok_find(t, "<|endoftext|>"), BASE);
    assert_true(sh_tok_is_special(t, BASE + 2));
    assert_false(sh_tok_is_special(t, BASE + 24));
    assert_memory_equal(sh_tok_bytes(t, 300, &n), " w300", 5);
    assert_int_equal(n, 5);
    assert_int_equal(sh_tok_eos(t), BASE + 2);
    const char *template = sh_ckpt_chat_template(c, &n);
    assert_non_null(template);
    assert_true(n > 100);
    sh_tok_free(t);
    sh_ckpt_close(c);
    remove_out(path);
  }
}

static void a_given_tokenizer_is_taken_whole(void **state) {
  (void)state;
  static const char *const FORMATS[] = {"awq", "gguf-q4_0"};
  static const char DIR_OF[] = "tests/golden/models/dense-real", TEXT[] = "The cat sat there.\n<|im_end|> \xe4\xb8\xad 12";
  sh_error e = {0};
  sh_ckpt *c, *real_ckpt;
  sh_ids want = {0};
  sh_tok *real = tokenizer_of(DIR_OF, &real_ckpt);
  assert_int_equal(sh_tok_encode(real, TEXT, strlen(TEXT), 0, &want, &e), 0);
  for (int k = 0; k < 2; k++) {
    const char *path = out_for("model", FORMATS[k]);
    sh_synth_opts o = options("test", FORMATS[k], path);
    sh_synth_result r;
    size_t n, m;
    o.tokenizer = DIR_OF;
    make(&o, &r);
    check_inspection(path);
    sh_tok *t = tokenizer_of(path, &c);
    check_text(t, TEXT, want.v, want.n);
    const char *a = sh_ckpt_chat_template(c, &n), *b = sh_ckpt_chat_template(real_ckpt, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    sh_tok_free(t);
    sh_ckpt_close(c);
    remove_out(path);
  }
  sh_ids_free(&want);
  sh_tok_free(real);
  sh_ckpt_close(real_ckpt);
}

/* --- Refused */

static void wrong_names_list_what_there_is(void **state) {
  (void)state;
  const char *out = in_temp("model");
  sh_synth_opts o = options("5B", "bf16", out);
  refused(&o, "there is no shape '5B'; there are 0.8B, 2B, 4B, 9B, 27B, 35B-A3B, 122B-A10B, test, test-moe");
  o = options("test", "q4", out);
  refused(&o, "there is no format 'q4'; there are bf16, f16, awq, gptq, compressed-tensors, int8, fp8, gguf-bf16");
  o = options("test", "bf16", out);
  o.layers = 513;
  refused(&o, "513 layers; 1 to 512 can be made (test has 4)");
  o.layers = -1;
  refused(&o, "1 to 512");
  o = options("test", "awq", out);
  o.group = 48;
  refused(&o, "groups of 48 columns; 32, 64 and 128 can be made");
  o = options("test", "gguf-q4_0", out);
  refused(&o, "has to end in .gguf");
  o = options("test", "bf16", "");
  refused(&o, "is empty");
  o = options("test", "bf16", out);
  o.tokenizer = "tests/golden";
  refused(&o, "tokenizer.json");
  assert_false(sh_dir_exists(out));
}

static void what_is_there_is_not_touched(void **state) {
  (void)state;
  put_text("model.gguf", "mine");
  assert_int_equal(mkdir(in_temp("model"), 0755), 0);
  put_text("model/mine", "mine");
  sh_synth_opts o = options("test", "gguf-q4_0", in_temp("model.gguf"));
  refused(&o, "is there already");
  o = options("test", "bf16", in_temp("model"));
  refused(&o, "is not empty (mine is in it)");
  o = options("test", "bf16", in_temp("model.gguf"));
  refused(&o, "is not a folder");
  o = options("test", "gguf-q4_0", in_temp("nowhere/model.gguf"));
  refused(&o, "is its folder there?");
  size_t n;
  char *p = slurp(in_temp("model.gguf"), &n);
  assert_int_equal(n, 4);
  sh_free(p);
  remove_out(in_temp("model.gguf"));
  remove_out(in_temp("model"));
}

/* What no disk of today has. */
static void a_disk_without_room_is_said_before_anything_is_written(void **state) {
  (void)state;
  static const char *const FORMATS[] = {"bf16", "gguf-bf16"};
  for (int k = 0; k < 2; k++) {
    const char *path = out_for("model", FORMATS[k]);
    sh_synth_opts o = options("122B-A10B", FORMATS[k], path);
    o.layers = 512; /* 2.4 TB */
    int64_t room = sh_file_room(temp_dir);
    if (room < 0 || room > (int64_t)2 << 40) skip();
    refused(&o, "are free; make room");
    assert_false(sh_file_exists(path));
    assert_false(sh_dir_exists(path));
  }
  assert_false(sh_dir_exists(in_temp("model.partial")));
}

/* --- Interrupted */

typedef struct interruption {
  bool stop;
  int64_t at; /* bytes */
} interruption;

static void on_progress(void *ctx, int64_t done, int64_t total) {
  interruption *i = ctx;
  assert_true(done <= total);
  if (done >= i->at) i->stop = true;
}

static void an_interrupted_folder_is_gone_on_with(void **state) {
  (void)state;
  const char *whole = in_temp("whole"), *path = in_temp("model");
  interruption stop = {false, 1 << 20};
  sh_synth_result r;
  sh_error e = {0};
  sh_synth_opts o = options("test", "bf16", whole);
  o.shard_bytes = 400000;
  make(&o, &r);
  assert_true(r.n_files > 5);
  o.out = path;
  o.progress = on_progress;
  o.ctx = &stop;
  o.stop = &stop.stop;
  assert_int_equal(sh_synth(&o, &r, &e), SH_ERR_CANCELLED);
  assert_false(sh_dir_exists(path));
  assert_true(sh_dir_exists(in_temp("model.partial")));
  stop = (interruption){false, INT64_MAX};
  o.seed = 2;
  assert_int_equal(sh_synth(&o, &r, &e), SH_ERR_ARG);
  assert_says(e.text, "another model: --seed was 1 and is 2; give");
  o.seed = 1;
  make(&o, &r);
  assert_int_equal(same_folder(whole, path), r.n_files + 7); /* and the index */
  check_inspection(path);
  remove_out(whole);
  remove_out(path);
}

static void an_interrupted_file_leaves_nothing(void **state) {
  (void)state;
  interruption stop = {false, 1 << 20};
  sh_synth_result r;
  sh_error e = {0};
  sh_synth_opts o = options("test", "gguf-bf16", in_temp("model.gguf"));
  o.progress = on_progress;
  o.ctx = &stop;
  o.stop = &stop.stop;
  assert_int_equal(sh_synth(&o, &r, &e), SH_ERR_CANCELLED);
  int n = 0;
  DIR *d = opendir(temp_dir);
  for (struct dirent *f = readdir(d); f; f = readdir(d)) n += strncmp(f->d_name, "model", 5) == 0;
  closedir(d);
  assert_int_equal(n, 0);
}

static void memory_that_runs_out_is_an_error(void **state) {
  (void)state;
  static const char *const FORMATS[] = {"gptq", "fp8", "gguf-q4_k"};
  for (int k = 0; k < 3; k++) {
    const char *path = out_for("model", FORMATS[k]);
    int rc = -1;
    long at = 0;
    for (; rc && at < 1000000; at += 1 + at / 16) {
      sh_synth_opts o = options("test", FORMATS[k], path);
      sh_synth_result r;
      sh_error e = {0};
      o.threads = 1;
      o.layers = 1;
      sh_mem_fail_after(at);
      rc = sh_synth(&o, &r, &e);
      sh_mem_fail_after(-1);
      if (rc && rc != SH_ERR_NOMEM) fail_msg("%s, allocation %ld: %s", FORMATS[k], at, e.text);
    }
    if (rc) fail_msg("%s never ends", FORMATS[k]);
    check_inspection(path);
    remove_out(path);
  }
}

static void the_command_checks_its_words(void **state) {
  (void)state;
  char *bad[][5] = {{"synth"},
                    {"synth", "test", "--format=bf16"},
                    {"synth", "test", "out"},
                    {"synth", "test", "out", "more", "--format=bf16"},
                    {"synth", "test", "out", "--format=bf16", "--group=16"}};
  int n[] = {1, 3, 3, 5, 5};
  for (int i = 0; i < 5; i++) assert_int_equal(sh_cmd_synth(n[i], bad[i]), SH_EXIT_USAGE);
  char *help[] = {"synth", "--help"};
  assert_int_equal(sh_cmd_synth(2, help), SH_EXIT_OK);
  char *good[] = {"synth", "test", (char *)(uintptr_t)in_temp("model"), "--format", "AWQ"};
  assert_int_equal(sh_cmd_synth(5, good), SH_EXIT_OK);
  check_inspection(in_temp("model"));
  remove_out(in_temp("model"));
}

/* One test's leftovers are not the next one's failure. */
static int empty_dir(void **state) {
  char cmd[128];
  (void)state;
  snprintf(cmd, sizeof cmd, "rm -rf '%s'/*", temp_dir);
  return system(cmd);
}

int main(void) {
  sh_log_set_level(SH_LOG_WARN);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(every_format_loads_and_computes, empty_dir),
      cmocka_unit_test_teardown(groups_and_layers_are_free, empty_dir),
      cmocka_unit_test_teardown(the_same_seed_gives_the_same_bytes_for_any_number_of_threads, empty_dir),
      cmocka_unit_test_teardown(folders_have_the_released_names, empty_dir),
      cmocka_unit_test_teardown(the_made_up_tokenizer_takes_any_text, empty_dir),
      cmocka_unit_test_teardown(a_given_tokenizer_is_taken_whole, empty_dir),
      cmocka_unit_test_teardown(wrong_names_list_what_there_is, empty_dir),
      cmocka_unit_test_teardown(what_is_there_is_not_touched, empty_dir),
      cmocka_unit_test_teardown(a_disk_without_room_is_said_before_anything_is_written, empty_dir),
      cmocka_unit_test_teardown(an_interrupted_folder_is_gone_on_with, empty_dir),
      cmocka_unit_test_teardown(an_interrupted_file_leaves_nothing, empty_dir),
      cmocka_unit_test_teardown(memory_that_runs_out_is_an_error, empty_dir),
      cmocka_unit_test_teardown(the_command_checks_its_words, empty_dir),
  };
  return cmocka_run_group_tests(tests, make_fast_dir, remove_temp_dir);
}
