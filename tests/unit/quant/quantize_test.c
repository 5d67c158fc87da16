/* The quantizer on the golden checkpoints: folding is exact, every reader of a norm is compensated, no search ends worse than rounding to
 * nearest, and the result depends neither on threads nor on where a run was killed. */
#include "unit/quant/fast_dir.h"
#include "unit/model/golden_rig.h"
#include "unit/quant/unpack.h"

#include "base/text.h"
#include "quant/quantize.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEQS = 4, LEN = 40 };
static const char *const MODELS[] = {"moe-small", "dense-real", "dense-small", "moe-real-fused"};

/* All of them, but for builds with a sanitizer. */
static size_t n_models(void) { return rig_quick() ? 1 : sizeof MODELS / sizeof *MODELS; }

/* Calibration tokens: any ids do for what is tested here. */
static sh_samples samples(int vocab) {
  sh_samples s = {.n = SEQS, .ids = sh_calloc(SEQS, sizeof *s.ids), .len = sh_calloc(SEQS, sizeof *s.len)};
  uint32_t x = 7;
  for (int i = 0; i < SEQS; i++) {
    s.len[i] = LEN - 3 * i;
    s.ids[i] = sh_calloc(LEN, sizeof *s.ids[i]);
    for (int k = 0; k < s.len[i]; k++) s.ids[i][k] = (int32_t)((x = x * 1664525u + 1013904223u) >> 8) % vocab;
    s.tokens += s.len[i];
  }
  return s;
}

static int vocab_of(const char *path) {
  rig r;
  rig_open_path(&r, path, (rig_opts){0});
  int v = r.V;
  rig_close(&r);
  return v;
}

static sh_quantize_opts options(const char *out, sh_qmethod method, const sh_samples *s) {
  return (sh_quantize_opts){.out = out,
                            .method = method,
                            .format = SH_QF_CT,
                            .bits = 4,
                            .group = 32,
                            .zero_point = true,
                            .calib = s,
                            .seed = 1,
                            .threads = 2,
                            .damp = 0.01};
}

static void quantize(const char *model, const sh_quantize_opts *o) {
  sh_error e = {0};
  sh_quantize_result r;
  rig_ok(sh_quantize(model, o, &r, &e), &e);
  assert_true(r.n_modules > 0 && r.weights > 0);
}

/* Logits of a few fixed tokens. Caller frees with sh_free. */
static float *logits_of(const char *path, int *n) {
  enum { T = 24 };
  rig r;
  rig_open_path(&r, path, (rig_opts){.kv = SH_KV_F32, .max_tokens = 64, .max_context = 64});
  int32_t ids[T];
  for (int i = 0; i < T; i++) ids[i] = (i * 37 + 11) % r.V;
  rig_feed(&r, 0, ids, T, T);
  *n = T * r.V;
  float *out = sh_malloc((size_t)*n * sizeof *out);
  memcpy(out, r.seq[0].trace, (size_t)*n * sizeof *out);
  rig_close(&r);
  return out;
}

static float distance(const char *a, const char *b) {
  int n, m;
  float *x = logits_of(a, &n), *y = logits_of(b, &m);
  assert_int_equal(n, m);
  float d = max_error(x, y, (size_t)n);
  sh_free(x);
  sh_free(y);
  return d;
}

/* The same, of their norms: |b - a| / |a|. */
static float relative_distance(const char *a, const char *b) {
  int n, m;
  float *x = logits_of(a, &n), *y = logits_of(b, &m);
  double off = 0, all = 0;
  assert_int_equal(n, m);
  for (int i = 0; i < n; i++) {
    off += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
    all += (double)x[i] * (double)x[i];
  }
  sh_free(x);
  sh_free(y);
  return (float)sqrt(off / all);
}

/* A copy of folder `from` whose tensor `name` is that of `source`. */
static void with_original(const char *from, const char *source, const char *name, const char *to) {
  sh_error e = {0};
  sh_ckpt *a, *b;
  char path[640], cmd[2600];
  snprintf(cmd, sizeof cmd, "rm -rf %s && cp -r %s %s && rm %s/model*", to, from, to, to);
  assert_int_equal(system(cmd), 0);
  rig_ok(sh_ckpt_open(&a, from, 0, &e), &e);
  rig_ok(sh_ckpt_open(&b, source, 0, &e), &e);
  int n = sh_ckpt_count(a);
  sh_ftensor *t = sh_calloc((size_t)n, sizeof *t);
  bool found = false;
  for (int i = 0; i < n; i++) {
    t[i] = *sh_ckpt_at(a, i);
    if (strcmp(t[i].name, name) != 0) continue;
    t[i] = *sh_ckpt_find(b, name);
    found = true;
  }
  assert_true(found);
  snprintf(path, sizeof path, "%s/model.safetensors", to);
  rig_ok(sh_st_write(path, t, n, &e), &e);
  sh_free(t);
  sh_ckpt_close(a);
  sh_ckpt_close(b);
}

/* Names in the folded folder whose tensor differs from the source's. */
static int changed_names(const char *folded, const char *source, char names[][192], int max) {
  sh_error e = {0};
  sh_ckpt *a, *b;
  int n = 0;
  rig_ok(sh_ckpt_open(&a, folded, 0, &e), &e);
  rig_ok(sh_ckpt_open(&b, source, 0, &e), &e);
  for (int i = 0; i < sh_ckpt_count(a); i++) {
    const sh_ftensor *t = sh_ckpt_at(a, i), *s = sh_ckpt_find(b, t->name);
    assert_non_null(s);
    if (t->type == s->type) {
      assert_memory_equal(t->data, s->data, s->bytes);
      continue;
    }
    assert_true(n < max);
    snprintf(names[n++], sizeof names[0], "%s", t->name);
  }
  sh_ckpt_close(a);
  sh_ckpt_close(b);
  return n;
}

static void fold(const char *model, char *source, char *out, size_t size) {
  char name[64];
  snprintf(source, size, GOLDEN "models/%s", model);
  snprintf(name, sizeof name, "%s-folded", model);
  snprintf(out, size, "%s", in_temp(name));
  if (sh_dir_exists(out)) return;
  sh_samples s = samples(vocab_of(source));
  sh_quantize_opts o = options(out, SH_QM_FOLD, &s);
  quantize(source, &o);
  sh_samples_free(&s);
}

static void folding_changes_no_logit(void **state) {
  (void)state;
  for (size_t i = 0; i < n_models(); i++) {
    char source[512], out[512], names[400][192];
    fold(MODELS[i], source, out, sizeof out);
    int n = changed_names(out, source, names, 400);
    assert_true(n > 20); /* the norms and matrices of several layers were scaled */
    float d = distance(source, out);
    print_message("%s: %d tensors scaled, largest difference of a logit %.2g\n", MODELS[i], n, (double)d);
    assert_true(d <= 1e-4f);
  }
}

/* Puts back one scaled tensor at a time, of a linear and of an attention layer: each must be noticed. */
static void a_reader_that_is_not_compensated_is_noticed(void **state) {
  (void)state;
  for (size_t i = 0; i < n_models(); i++) {
    char source[512], out[512], to[600], names[400][192];
    fold(MODELS[i], source, out, sizeof out);
    snprintf(to, sizeof to, "%s-mutated", out);
    int n = changed_names(out, source, names, 400), tried = 0, readers = 0;
    float exact = distance(source, out);
    for (int k = 0; k < n; k++) {
      if (!strstr(names[k], "layers.0.") && (rig_quick() || !strstr(names[k], "layers.3."))) continue;
      if (strstr(names[k], "experts.") && !strstr(names[k], "experts.1.") && !strstr(names[k], "experts.gate_up") &&
          !strstr(names[k], "experts.down"))
        continue;
      with_original(out, source, names[k], to);
      float d = distance(source, to);
      if (!(d > 2e-4f && d > 5 * exact)) fail_msg("%s: with the original %s the logits differ by %g only", MODELS[i], names[k], (double)d);
      tried++;
      readers += strstr(names[k], "proj") != NULL || strstr(names[k], "gate") != NULL;
    }
    print_message("%s: %d tensors put back, one at a time\n", MODELS[i], tried);
    assert_true(readers >= (rig_quick() ? 6 : 12));
  }
}

/* --- Errors and bytes */

/* fn is told the errors of every module of quantize.csv, relative to the module's output. */
static void each_record(const char *dir, void (*fn)(const char *module, double nearest, double err)) {
  char path[600], *text;
  size_t len;
  sh_error e = {0};
  snprintf(path, sizeof path, "%s/quantize.csv", dir);
  rig_ok(sh_file_read(path, 1 << 24, &text, &len, &e), &e);
  int n = 0;
  for (char *at = strchr(text, '\n'); at && at[1]; at = strchr(at + 1, '\n')) {
    char module[192];
    double nearest, err;
    assert_int_equal(sscanf(at + 1, "%191[^,],%*[^,],%lf,%lf", module, &nearest, &err), 3);
    fn(module, nearest, err);
    n++;
  }
  assert_true(n >= 14);
  sh_free(text);
}

static void not_worse(const char *module, double nearest, double err) {
  if (!(err > 0 && err <= nearest * 1.0001)) fail_msg("%s: error %g, of rounding to nearest %g", module, err, nearest);
}

static void no_module_ends_worse_than_rounding_to_nearest(void **state) {
  (void)state;
  for (size_t i = 0; i < n_models(); i++) {
    for (int method = SH_QM_AWQ; method <= SH_QM_GPTQ; method++) {
      char source[512], name[64];
      snprintf(source, sizeof source, GOLDEN "models/%s", MODELS[i]);
      snprintf(name, sizeof name, "%s-%d", MODELS[i], method);
      sh_samples s = samples(vocab_of(source));
      sh_quantize_opts o = options(in_temp(name), (sh_qmethod)method, &s);
      char out[512];
      snprintf(out, sizeof out, "%s", o.out);
      o.out = out;
      quantize(source, &o);
      each_record(out, not_worse);
      sh_samples_free(&s);
    }
  }
}

static bool same_files(const char *a, const char *b) {
  char cmd[2600];
  snprintf(cmd, sizeof cmd, "diff -rq -x .sheng-job %s %s", a, b);
  return system(cmd) == 0;
}

static void threads_change_no_byte(void **state) {
  (void)state;
  for (size_t i = 0; i < (n_models() < 2 ? 1 : 2); i++) {
    char source[512], out[2][512], name[64];
    snprintf(source, sizeof source, GOLDEN "models/%s", MODELS[i]);
    sh_samples s = samples(vocab_of(source));
    for (int k = 0; k < 2; k++) {
      snprintf(name, sizeof name, "%s-threads-%d", MODELS[i], k);
      snprintf(out[k], sizeof out[k], "%s", in_temp(name));
      sh_quantize_opts o = options(out[k], SH_QM_AWQ, &s);
      o.threads = k ? 3 : 1;
      quantize(source, &o);
    }
    assert_true(same_files(out[0], out[1]));
    sh_samples_free(&s);
  }
}

/* A run in a process of its own; killed after `ms`, or let go on with 0. True when it ended by itself, rightly. */
static bool run_and_kill(const char *source, const sh_quantize_opts *o, int ms) {
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    sh_error e = {0};
    sh_quantize_result r;
    if (sh_quantize(source, o, &r, &e) == 0) _exit(0);
    fprintf(stderr, "%s\n", e.text);
    _exit(1);
  }
  if (ms) {
    usleep((useconds_t)ms * 1000);
    kill(pid, SIGKILL);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
  return WIFEXITED(status);
}

static void killed_at_twenty_points_it_goes_on_to_the_same_bytes(void **state) {
  (void)state;
  const char *source = GOLDEN "models/moe-small";
  char whole[512], killed[512];
  snprintf(whole, sizeof whole, "%s", in_temp("whole"));
  snprintf(killed, sizeof killed, "%s", in_temp("killed"));
  sh_samples s = samples(vocab_of(source));
  sh_quantize_opts o = options(whole, SH_QM_AWQ, &s);
  int64_t began = sh_now_ns();
  assert_true(run_and_kill(source, &o, 0));
  int64_t ms = (sh_now_ns() - began) / 1000000 + 1;
  uint64_t random = 88172645463325252u;
  o.out = killed;
  o.resume = true;
  for (int kills = 0; kills < (rig_quick() ? 4 : 20);) {
    bool done = run_and_kill(source, &o, 1 + (int)(next_random(&random) % (uint64_t)(ms / 3 + 2)));
    if (done || sh_dir_exists(killed)) { /* it was whole before the kill: start over */
      assert_true(same_files(whole, killed));
      char cmd[640];
      snprintf(cmd, sizeof cmd, "rm -r %s", killed);
      assert_int_equal(system(cmd), 0);
      continue;
    }
    kills++;
  }
  assert_true(run_and_kill(source, &o, 0));
  assert_true(same_files(whole, killed));
  sh_samples_free(&s);
}

/* --- What is taken and what stays */

static bool has(const sh_ckpt *c, const char *name) { return sh_ckpt_find(c, name) != NULL; }

static void patterns_say_what_stays_and_what_is_taken_too(void **state) {
  (void)state;
  const char *source = GOLDEN "models/moe-real-fused", *keep[] = {"mlp.experts.1.up_proj", "*layers.0.linear_attn.out_proj"},
             *also[] = {"lm_head"};
  char out[512];
  snprintf(out, sizeof out, "%s", in_temp("patterns"));
  sh_quantize_opts o = options(out, SH_QM_RTN, NULL);
  o.keep = keep;
  o.n_keep = 2;
  o.also = also;
  o.n_also = 1;
  quantize(source, &o);
  sh_error e = {0};
  sh_ckpt *a, *b;
  rig_ok(sh_ckpt_open(&a, out, 0, &e), &e);
  rig_ok(sh_ckpt_open(&b, source, 0, &e), &e);
  const char *p = "model.language_model.layers.0.";
  char name[2][192];
  snprintf(name[0], sizeof name[0], "%slinear_attn.out_proj.weight", p);
  const sh_ftensor *x = sh_ckpt_find(a, name[0]), *y = sh_ckpt_find(b, name[0]);
  assert_non_null(x);
  assert_memory_equal(x->data, y->data, y->bytes);
  /* one expert's half of a fused tensor: it becomes a tensor of its own */
  snprintf(name[0], sizeof name[0], "%smlp.experts.1.up_proj.weight", p);
  snprintf(name[1], sizeof name[1], "%smlp.experts.gate_up_proj", p);
  x = sh_ckpt_find(a, name[0]);
  y = sh_ckpt_find(b, name[1]);
  assert_non_null(x);
  assert_false(has(a, name[1]));
  size_t half = y->bytes / (size_t)y->dims[0] / 2;
  assert_memory_equal(x->data, y->data + 3 * half, half);
  snprintf(name[0], sizeof name[0], "%smlp.experts.0.up_proj.weight_packed", p);
  assert_true(has(a, name[0]));
  assert_true(has(a, "lm_head.weight_packed") && !has(a, "lm_head.weight"));
  sh_ckpt_close(a);
  sh_ckpt_close(b);
  int n;
  float *logits = logits_of(out, &n);
  for (int i = 0; i < n; i++) assert_true(isfinite(logits[i]));
  sh_free(logits);
}

/* --- Other shapes */

typedef struct tensor {
  const char *name;   /* "%d" is the layer */
  int64_t rows, cols; /* cols 0: a vector */
} tensor;

/* A model of the llama family with biases and heads of 40, which no golden checkpoint has: hidden 160, 4:2 heads, ffn 224, two layers. */
static void make_biased(const char *dir) {
  static const tensor T[] = {{"model.embed_tokens.weight", 320, 160},
                             {"model.norm.weight", 160, 0},
                             {"model.layers.%d.input_layernorm.weight", 160, 0},
                             {"model.layers.%d.post_attention_layernorm.weight", 160, 0},
                             {"model.layers.%d.self_attn.q_proj.weight", 160, 160},
                             {"model.layers.%d.self_attn.k_proj.weight", 80, 160},
                             {"model.layers.%d.self_attn.v_proj.weight", 80, 160},
                             {"model.layers.%d.self_attn.o_proj.weight", 160, 160},
                             {"model.layers.%d.self_attn.q_proj.bias", 160, 0},
                             {"model.layers.%d.self_attn.k_proj.bias", 80, 0},
                             {"model.layers.%d.self_attn.v_proj.bias", 80, 0},
                             {"model.layers.%d.self_attn.o_proj.bias", 160, 0},
                             {"model.layers.%d.mlp.gate_proj.weight", 224, 160},
                             {"model.layers.%d.mlp.up_proj.weight", 224, 160},
                             {"model.layers.%d.mlp.down_proj.weight", 160, 224}};
  enum { N = sizeof T / sizeof *T, LAYERS = 2 };
  static const char CONFIG[] =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 160, \"intermediate_size\": 224, "
      "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 40, \"vocab_size\": 320, "
      "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"max_position_embeddings\": 512, \"attention_bias\": true, "
      "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\", \"dtype\": \"bfloat16\"}";
  sh_ftensor t[N * LAYERS];
  char names[N * LAYERS][96], path[600];
  uint64_t random = 88172645463325252u;
  int n = 0;
  for (int layer = 0; layer < LAYERS; layer++)
    for (size_t i = 0; i < N; i++) {
      bool one = strstr(T[i].name, "norm.weight") != NULL, in_layer = strchr(T[i].name, '%') != NULL;
      if (!in_layer && layer) continue;
      if (in_layer) snprintf(names[n], sizeof names[n], "model.layers.%d.%s", layer, T[i].name + strlen("model.layers.%d."));
      else snprintf(names[n], sizeof names[n], "%s", T[i].name);
      size_t count = (size_t)(T[i].rows * (T[i].cols ? T[i].cols : 1));
      uint16_t *w = sh_malloc(count * sizeof *w);
      for (size_t k = 0; k < count; k++) {
        float x = (one ? 1 : 0) + ((float)(next_random(&random) >> 40) / (1 << 24) - 0.5f) * (k % 13 ? 0.3f : 0.9f);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        w[k] = (uint16_t)(bits >> 16);
      }
      t[n] = (sh_ftensor){.name = names[n],
                          .type = SH_BF16,
                          .type_name = "BF16",
                          .n_dims = T[i].cols ? 2 : 1,
                          .dims = {T[i].rows, T[i].cols},
                          .data = (const uint8_t *)w,
                          .bytes = count * sizeof *w};
      n++;
    }
  sh_error e = {0};
  assert_int_equal(mkdir(dir, 0755), 0);
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  rig_ok(sh_st_write(path, t, n, &e), &e);
  snprintf(path, sizeof path, "%s/config.json", dir);
  rig_ok(sh_file_write_atomic(path, CONFIG, strlen(CONFIG), &e), &e);
  for (int i = 0; i < n; i++) sh_free((void *)(uintptr_t)t[i].data);
}

/* Rounded to nearest: no weight of a row [cols] is further from the source's than half a step of its group's range, and what the grid's
 * ends are moved by: the scale is rounded by up to its type's share u, and with zero points the grid by up to half a step. */
static void expect_nearest(const char *base, const float *w, const float *now, int64_t cols, const sh_quantize_opts *o) {
  int64_t group = o->group > 0 ? o->group : cols;
  float top = (float)((1 << o->bits) - 1), half = (float)((1 << (o->bits - 1)) - 1), u = o->format == SH_QF_CT ? 0x1p-8f : 0x1p-11f;
  for (int64_t g = 0; g < cols; g += group) {
    float low = 0, high = 0;
    for (int64_t c = g; c < g + group; c++) {
      low = fminf(low, w[c]);
      high = fmaxf(high, w[c]);
    }
    float step = o->zero_point ? (high - low) / top : fmaxf(high, -low) / half;
    float most = step * (1 + u) * (o->zero_point ? 0.5f + top * u : fmaxf(0.5f, half * u)) * (1 + 1e-5f); /* float32's own rounding */
    for (int64_t c = g; c < g + group; c++)
      if (!(fabsf(w[c] - now[c]) <= most))
        fail_msg("%s: column %d is %g and was %g, a step is %g", base, (int)c, (double)now[c], (double)w[c], (double)step);
  }
}

/* The weights of module t of the source as the quantized folder holds them. Caller frees with sh_free. */
static float *module_now(const sh_ckpt *out, const sh_ftensor *t, const sh_quantize_opts *o) {
  char base[192];
  snprintf(base, sizeof base, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
  unpacked u = {out, base, o->format, o->bits, o->zero_point, t->dims[0], t->dims[1]};
  float *now = sh_malloc((size_t)(u.rows * u.cols) * sizeof *now), *row = sh_malloc((size_t)u.cols * sizeof *row);
  for (int64_t r = 0; r < u.rows; r++) {
    for (int64_t c = 0; c < u.cols; c++) now[r * u.cols + c] = weight_at(&u, r, c);
    sh_dequant(t->type, t->data + 2 * r * u.cols, u.cols, row);
    if (o->method == SH_QM_RTN || o->method == SH_QM_INT8) expect_nearest(base, row, now + r * u.cols, u.cols, o);
  }
  sh_free(row);
  return now;
}

/* At `to`: the source with the weights that the quantized folder holds, in float32, and with the norms that its scales were folded into.
 * All else, the biases above all, is the source's. */
static void write_expected(const char *source, const char *quantized, const sh_quantize_opts *o, const char *to) {
  char path[640], cmd[2600];
  sh_error e = {0};
  sh_ckpt *a, *b;
  rig_ok(sh_ckpt_open(&a, source, 0, &e), &e);
  rig_ok(sh_ckpt_open(&b, quantized, 0, &e), &e);
  int n = sh_ckpt_count(a), modules = 0, biases = 0;
  sh_ftensor *t = sh_calloc((size_t)n, sizeof *t);
  for (int i = 0; i < n; i++) {
    t[i] = *sh_ckpt_at(a, i);
    biases += sh_str_ends(t[i].name, ".bias");
    if (sh_str_ends(t[i].name, "layernorm.weight")) t[i] = *sh_ckpt_find(b, t[i].name);
    if (!sh_str_ends(t[i].name, "_proj.weight")) continue;
    t[i].data = (const uint8_t *)module_now(b, &t[i], o);
    t[i].type = SH_F32;
    t[i].type_name = "F32";
    t[i].bytes = (size_t)(t[i].dims[0] * t[i].dims[1]) * sizeof(float);
    modules++;
  }
  assert_true(modules == 14 && biases == 8);
  snprintf(cmd, sizeof cmd, "mkdir %s && cp %s/config.json %s", to, source, to);
  assert_int_equal(system(cmd), 0);
  snprintf(path, sizeof path, "%s/model.safetensors", to);
  rig_ok(sh_st_write(path, t, n, &e), &e);
  for (int i = 0; i < n; i++)
    if (sh_str_ends(t[i].name, "_proj.weight")) sh_free((void *)(uintptr_t)t[i].data);
  sh_free(t);
  sh_ckpt_close(a);
  sh_ckpt_close(b);
}

/* What is quantized computes what the source does with the weights of the codes in place of its own, to the bit: exact mode multiplies the
 * same float32 numbers in the same order from either. How near the codes are to the source's weights is another matter: half a step for
 * what is rounded to nearest, and by quantize.csv's own measure no worse than that for the others. That scales are folded rightly beside
 * biases and odd heads shows where nothing is rounded: the rest is float32's own rounding, some 1e-6. */
static void biases_and_heads_of_odd_sizes_are_no_matter(void **state) {
  (void)state;
  static const struct {
    sh_qmethod method;
    sh_qformat format;
    int bits, group;
    bool zeros;
  } HOW[] = {{SH_QM_FOLD, SH_QF_CT, 4, 32, true}, {SH_QM_AWQ, SH_QF_AWQ, 4, 32, true},    {SH_QM_AWQ, SH_QF_CT, 8, -1, true},
             {SH_QM_AWQ, SH_QF_CT, 4, 32, false}, {SH_QM_GPTQ, SH_QF_GPTQ, 4, 32, false}, {SH_QM_GPTQ, SH_QF_AWQ, 4, 32, true},
             {SH_QM_RTN, SH_QF_CT, 4, 16, true},  {SH_QM_RTN, SH_QF_GPTQ, 8, 32, true},   {SH_QM_INT8, SH_QF_CT, 8, -1, false}};
  char source[512], out[512], beside[600], name[32];
  snprintf(source, sizeof source, "%s", in_temp("biased"));
  make_biased(source);
  sh_samples s = samples(320);
  for (size_t i = 0; i < sizeof HOW / sizeof *HOW; i++) {
    snprintf(name, sizeof name, "biased-%zu", i);
    snprintf(out, sizeof out, "%s", in_temp(name));
    snprintf(beside, sizeof beside, "%s-expected", out);
    sh_quantize_opts o = options(out, HOW[i].method, &s);
    o.format = HOW[i].format;
    o.bits = HOW[i].bits;
    o.group = HOW[i].group;
    o.zero_point = HOW[i].zeros;
    o.int8_activations = HOW[i].method == SH_QM_INT8;
    quantize(source, &o);
    float d = relative_distance(source, out);
    print_message("%s: the logits are off by %.3g of their size\n", name, (double)d);
    if (HOW[i].method == SH_QM_FOLD) {
      assert_true(d <= 1e-5f);
      continue;
    }
    write_expected(source, out, &o, beside);
    assert_true(d > 0 && distance(out, beside) == 0);
    if (HOW[i].bits == 4 && HOW[i].method != SH_QM_RTN) each_record(out, not_worse);
  }
  sh_samples_free(&s);
}

/* "mtp" as a pattern takes the matrices of the MTP layer, and leaves its router and switch, as in the other layers. */
static void the_mtp_layer_is_taken_by_its_name(void **state) {
  (void)state;
  const char *source = GOLDEN "models/moe-small", *also[] = {"mtp", "mtp.layers.0.mlp.gate"};
  char out[512];
  sh_samples s = samples(640);
  for (int n_also = 1; n_also <= 2; n_also++) {
    snprintf(out, sizeof out, "%s", in_temp(n_also == 1 ? "mtp" : "mtp-gate"));
    sh_quantize_opts o = options(out, SH_QM_AWQ, &s);
    o.format = SH_QF_AWQ;
    o.also = also;
    o.n_also = n_also;
    quantize(source, &o);
    sh_error e = {0};
    sh_ckpt *ck;
    rig_ok(sh_ckpt_open(&ck, out, 0, &e), &e);
    assert_true(has(ck, "mtp.layers.0.mlp.shared_expert.up_proj.qweight") && has(ck, "mtp.layers.0.mlp.shared_expert_gate.weight"));
    assert_true(has(ck, "mtp.layers.0.mlp.gate.weight") == (n_also == 1) && has(ck, "mtp.layers.0.mlp.gate.qweight") == (n_also == 2));
    sh_ckpt_close(ck);
  }
  sh_samples_free(&s);
}

/* --- What is refused */

static void refused(const char *source, const sh_quantize_opts *o, int code, const char *says) {
  sh_error e = {0};
  sh_quantize_result r;
  assert_int_equal(sh_quantize(source, o, &r, &e), code);
  assert_says(e.text, says);
  assert_false(sh_dir_exists(o->out));
}

/* dense-small at `to` with two bytes 0xff, a bf16 NaN, in the tensor of that name; or 0, another weight. */
static void changed_copy(const char *to, const char *name, size_t at, int byte) {
  char cmd[2600], file[600], kept[600];
  snprintf(cmd, sizeof cmd, "rm -rf %s && cp -r " GOLDEN "models/dense-small %s && chmod -R u+w %s", to, to, to);
  assert_int_equal(system(cmd), 0);
  sh_error e = {0};
  sh_ckpt *ck;
  rig_ok(sh_ckpt_open(&ck, to, 0, &e), &e);
  int n = sh_ckpt_count(ck), found = 0;
  sh_ftensor *t = sh_calloc((size_t)n, sizeof *t);
  uint8_t *p = NULL;
  for (int i = 0; i < n; i++) {
    t[i] = *sh_ckpt_at(ck, i);
    if (strcmp(t[i].name, name)) continue;
    found++;
    p = sh_malloc(t[i].bytes);
    memcpy(p, t[i].data, t[i].bytes);
    memset(p + at, byte, 2);
    t[i].data = p;
  }
  assert_int_equal(found, 1);
  snprintf(file, sizeof file, "%s/model.safetensors", to);
  snprintf(kept, sizeof kept, "%s/new", to);
  rig_ok(sh_st_write(kept, t, n, &e), &e);
  sh_free(p);
  sh_free(t);
  sh_ckpt_close(ck);
  assert_int_equal(rename(kept, file), 0);
}

static void what_cannot_be_done_is_said(void **state) {
  (void)state;
  char out[512], bad[512];
  snprintf(out, sizeof out, "%s", in_temp("refused"));
  sh_samples s = samples(640);
  sh_quantize_opts o = options(out, SH_QM_AWQ, &s);
  refused(GOLDEN "models/dense-small-awq", &o, SH_ERR_UNSUPPORTED, "is quantized already (AWQ)");
  refused(GOLDEN "gguf/dense-small-bf16.gguf", &o, SH_ERR_UNSUPPORTED, "is a GGUF file");
  o.group = 96;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_ARG, "use --q-group-size 64");
  o.group = 32;
  const char *all = "*";
  o.keep = &all;
  o.n_keep = 1;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_ARG, "nothing is left to quantize");
  o.n_keep = 0;
  o.calib = NULL;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_ARG, "calibration tokens are missing");
  o.calib = &s;
  o.max_memory = 1 << 20;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_LIMIT, "--max-memory is 1.0 MiB");
  o.max_memory = 40 << 20;
  o.own_seqs = 1000;
  o.own_len = 512;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_LIMIT, "the model's own answers needs about");
  o.own_seqs = 0;
  o.report_seq_len = 512;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_LIMIT, "the report, for which both models are opened, needs about");
  o.report_seq_len = 0;
  o.max_memory = 0;
  s.ids[1][3] = 640;
  refused(GOLDEN "models/dense-small", &o, SH_ERR_ARG, "calibration sequence 1 has token 640; the model's vocabulary has 640");
  s.ids[1][3] = 0;
  snprintf(bad, sizeof bad, "%s", in_temp("nan"));
  changed_copy(bad, "model.layers.5.mlp.up_proj.weight", (size_t)(2 * 128 * 7 + 10), 0xff);
  refused(bad, &o, SH_ERR_FORMAT, "row 7 of model.layers.5.mlp.up_proj");
  sh_samples_free(&s);
}

/* Also where nothing is quantized: else the fault is found in the folder that was made, after hours. */
static void what_is_not_finite_is_refused_wherever_it_is(void **state) {
  (void)state;
  static const struct {
    const char *tensor, *says;
  } WHERE[] = {{"model.embed_tokens.weight", "tensor model.embed_tokens.weight: row 2 of it"},
               {"model.norm.weight", "tensor model.norm.weight: row 0 of it"},
               {"model.layers.0.linear_attn.A_log", "tensor model.layers.0.linear_attn.A_log: row 0 of it"},
               {"model.layers.0.input_layernorm.weight", "tensor model.layers.0.input_layernorm.weight: row 0 of it"}};
  char out[512], bad[512];
  snprintf(out, sizeof out, "%s", in_temp("not-finite"));
  snprintf(bad, sizeof bad, "%s", in_temp("nan"));
  sh_quantize_opts o = options(out, SH_QM_RTN, NULL);
  for (size_t i = 0; i < sizeof WHERE / sizeof WHERE[0]; i++) {
    changed_copy(bad, WHERE[i].tensor, i == 0 ? 2 * 128 * 2 : 0, 0xff);
    refused(bad, &o, SH_ERR_FORMAT, WHERE[i].says);
  }
}

static bool stop_now;

static void stop_after_a_part(void *ctx, int done, int total, const char *what) {
  (void)ctx, (void)done, (void)total, (void)what;
  stop_now = true;
}

static void another_model_of_the_same_shape_is_not_gone_on_with(void **state) {
  (void)state;
  char out[512], source[512];
  snprintf(out, sizeof out, "%s", in_temp("resumed"));
  snprintf(source, sizeof source, "%s", in_temp("tuned"));
  sh_quantize_opts o = options(out, SH_QM_RTN, NULL);
  sh_error e = {0};
  sh_quantize_result r;
  stop_now = false;
  o.stop = &stop_now;
  o.progress = stop_after_a_part;
  changed_copy(source, "model.layers.5.mlp.up_proj.weight", 0, 0);
  assert_int_equal(sh_quantize(source, &o, &r, &e), SH_ERR_CANCELLED);
  o.stop = NULL;
  o.resume = true;
  changed_copy(source, "model.norm.weight", 128, 0); /* its middle */
  refused(source, &o, SH_ERR_ARG, "another model: the checksum of the model's weights was ");
  changed_copy(source, "model.layers.5.mlp.up_proj.weight", 0, 0);
  rig_ok(sh_quantize(source, &o, &r, &e), &e);
}

static char in_the_way[600];

static void put_a_folder_in_the_way(void *ctx, int done, int total, const char *what) {
  (void)ctx, (void)total, (void)what;
  if (done == 1) assert_int_equal(mkdir(in_the_way, 0755), 0);
}

/* The layers' streams are no part of the folder, and a disk that cannot take them is the same to the user. */
static void what_cannot_be_spilled_keeps_what_is_done(void **state) {
  (void)state;
  const char *source = GOLDEN "models/dense-small";
  char out[512];
  snprintf(out, sizeof out, "%s", in_temp("spill"));
  snprintf(in_the_way, sizeof in_the_way, "%s.partial/spill-x-2", out);
  sh_samples s = samples(640);
  sh_quantize_opts o = options(out, SH_QM_AWQ, &s);
  o.progress = put_a_folder_in_the_way;
  sh_quantize_result r;
  sh_error e = {0};
  assert_int_equal(sh_quantize(source, &o, &r, &e), SH_ERR_IO);
  assert_says(e.text, "spill-x-2");
  assert_says(e.text, "what is done is kept in ");
  assert_says(e.text, "go on with --resume");
  assert_int_equal(rmdir(in_the_way), 0);
  o.progress = NULL;
  o.resume = true;
  rig_ok(sh_quantize(source, &o, &r, &e), &e);
  sh_samples_free(&s);
}

/* A report is made in OUT by the caller, who wants to know whether the rest is there. */
static void a_finished_folder_is_known_again(void **state) {
  (void)state;
  const char *source = GOLDEN "models/dense-small";
  char out[512];
  snprintf(out, sizeof out, "%s", in_temp("reported"));
  sh_quantize_opts o = options(out, SH_QM_RTN, NULL);
  sh_error e = {0};
  sh_quantizer *q;
  o.report_seq_len = 512;
  quantize(source, &o);
  assert_int_equal(sh_quantizer_open(&q, source, &o, &e), SH_ERR_ARG);
  assert_says(e.text, "is not empty");
  o.resume = true;
  o.group = 64;
  o.seed = 2; /* rounding to nearest draws nothing */
  assert_int_equal(sh_quantizer_open(&q, source, &o, &e), SH_ERR_ARG);
  assert_says(e.text, "another model: --q-group-size was 32 and is 64; give");
  o.group = 32;
  rig_ok(sh_quantizer_open(&q, source, &o, &e), &e);
  assert_true(sh_quantizer_whole(q));
  sh_quantizer_close(q);
}

/* Bytes of all tensors in a folder. */
static int64_t bytes_of(const char *dir) {
  sh_error e = {0};
  sh_ckpt *ck;
  int64_t sum = 0;
  rig_ok(sh_ckpt_open(&ck, dir, 0, &e), &e);
  for (int i = 0; i < sh_ckpt_count(ck); i++) sum += (int64_t)sh_ckpt_at(ck, i)->bytes;
  sh_ckpt_close(ck);
  return sum;
}

static void a_size_is_that_of_the_whole_result(void **state) {
  (void)state;
  const char *source = GOLDEN "models/dense-small";
  char out[512];
  snprintf(out, sizeof out, "%s", in_temp("sized"));
  sh_quantize_opts o = options(out, SH_QM_RTN, NULL);
  sh_quantize_result r;
  sh_error e = {0};
  stop_now = false;
  o.stop = &stop_now;
  o.progress = stop_after_a_part;
  assert_int_equal(sh_quantize(source, &o, &r, &e), SH_ERR_CANCELLED);
  o.stop = NULL;
  o.resume = true;
  rig_ok(sh_quantize(source, &o, &r, &e), &e);
  assert_int_equal(r.bytes, bytes_of(out));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(folding_changes_no_logit),
      cmocka_unit_test(a_reader_that_is_not_compensated_is_noticed),
      cmocka_unit_test(no_module_ends_worse_than_rounding_to_nearest),
      cmocka_unit_test(threads_change_no_byte),
      cmocka_unit_test(killed_at_twenty_points_it_goes_on_to_the_same_bytes),
      cmocka_unit_test(patterns_say_what_stays_and_what_is_taken_too),
      cmocka_unit_test(what_cannot_be_done_is_said),
      cmocka_unit_test(what_is_not_finite_is_refused_wherever_it_is),
      cmocka_unit_test(another_model_of_the_same_shape_is_not_gone_on_with),
      cmocka_unit_test(biases_and_heads_of_odd_sizes_are_no_matter),
      cmocka_unit_test(the_mtp_layer_is_taken_by_its_name),
      cmocka_unit_test(what_cannot_be_spilled_keeps_what_is_done),
      cmocka_unit_test(a_finished_folder_is_known_again),
      cmocka_unit_test(a_size_is_that_of_the_whole_result),
  };
  return cmocka_run_group_tests(tests, make_fast_dir, remove_temp_dir);
}
