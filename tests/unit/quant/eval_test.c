/* Whole evaluations of golden checkpoints, held against what an own rig computes of the same windows: whole windows in one step, KL and
 * perplexity in their plain forms, the residual streams of both models at once. */
#include "unit/model/golden_rig.h"

#include "base/file.h"
#include "quant/eval.h"
#include "quant/eval_model.h"
#include "quant/samples.h"
#include "quant/texts.h"

#include <unistd.h>

#define DENSE GOLDEN "models/dense-small"
#define AWQ GOLDEN "models/dense-small-awq"

static char dir[] = "/tmp/sheng_eval_XXXXXX", tasks_file[64], text_file[64];

static int make_dir(void **state) {
  (void)state;
  if (!mkdtemp(dir)) return -1;
  snprintf(tasks_file, sizeof tasks_file, "%s/tasks.jsonl", dir);
  snprintf(text_file, sizeof text_file, "%s/text.jsonl", dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  unlink(tasks_file);
  unlink(text_file);
  return rmdir(dir);
}

static void write_file(const char *path, const char *text) {
  sh_error e = {0};
  rig_ok(sh_file_write_atomic(path, text, strlen(text), &e), &e);
}

static sh_eval_opts opts(const char *model, const char *against, int samples) {
  return (sh_eval_opts){.model = model, .against = against, .samples = samples, .exact = true, .threads = 2, .cache_dir = ""};
}

static void run(sh_eval *r, const sh_eval_opts *o) {
  sh_error e = {0};
  rig_ok(sh_eval_run(r, o, &e), &e);
}

static void near(double got, double want, double relative) {
  if (!(fabs(got - want) <= relative * fabs(want))) fail_msg("%.17g, wanted %.17g", got, want);
}

/* ---- A second way to the same numbers ---- */

/* log(sum(exp(x))), without the maximum taken out: these logits are small. */
static double log_sum(const float *x, int n) {
  long double sum = 0;
  for (int i = 0; i < n; i++) sum += expl((long double)x[i]);
  return (double)logl(sum);
}

static double log_softmax(const float *x, int n, int id) { return (double)x[id] - log_sum(x, n); }

static double plain_kl(const float *p, const float *q, int n) {
  double kl = 0, sum_p = log_sum(p, n), sum_q = log_sum(q, n);
  for (int i = 0; i < n; i++) {
    double lp = (double)p[i] - sum_p, lq = (double)q[i] - sum_q;
    kl += exp(lp) * (lp - lq);
  }
  return kl;
}

/* The residual streams of a window of one model: [n_layers + 1][n, hidden]. */
static float *streams(rig *r, const int32_t *ids, int n) {
  int L = sh_model_config(r->m)->n_layers + 1;
  float *all = sh_calloc((size_t)L * (size_t)n * (size_t)r->H, sizeof *all), *rows[64];
  sh_error e = {0};
  assert_true(L <= 64);
  for (int l = 0; l < L; l++) rows[l] = all + (size_t)l * (size_t)n * (size_t)r->H;
  rig_restart(r, 0);
  sh_seq one = {.row = 0, .count = n, .pos = 0, .slot = r->seq[0].slot, .pages = r->seq[0].pages};
  sh_batch b = {.n_seqs = 1, .seqs = &one, .n_tokens = n, .ids = ids, .n_out = 0};
  rig_ok(sh_model_forward_hidden(r->m, &b, NULL, rows, &e), &e);
  return all;
}

static double distance(const float *a, const float *b, int n) {
  double d = 0, norm = 0;
  for (int i = 0; i < n; i++) {
    d += pow((double)a[i] - (double)b[i], 2);
    norm += pow((double)b[i], 2);
  }
  return sqrt(d) / sqrt(norm);
}

static void the_measures_are_those_of_another_computation(void **state) {
  (void)state;
  enum { WINDOWS = 2, LEN = 300, V = 640 };
  sh_eval r;
  sh_eval_opts o = opts(AWQ, DENSE, WINDOWS);
  o.seq_len = LEN; /* more than a chunk of steps */
  run(&r, &o);

  rig a, b;
  rig_open_path(&a, AWQ, (rig_opts){0});
  rig_open_path(&b, DENSE, (rig_opts){0});
  sh_error e = {0};
  sh_tok *tok;
  sh_chat *chat;
  sh_samples text;
  size_t n;
  rig_ok(sh_tok_open(&tok, b.ckpt, &e), &e);
  const char *template = sh_ckpt_chat_template(b.ckpt, &n);
  rig_ok(sh_chat_open(&chat, template, n, &e), &e);
  const char *whole = sh_text_evaluation(&n);
  rig_ok(sh_samples_load(&text, NULL, whole, n, tok, chat, WINDOWS, LEN, SH_SAMPLES_WINDOWS, 0, &e), &e);

  double nll = 0, nll_ref = 0, kl = 0, worst = -1, layers[64] = {0}, kls[WINDOWS * LEN];
  int scored = 0, agree = 0, tokens = 0, where = 0, where_window = 0, L = sh_model_config(a.m)->n_layers + 1;
  for (int w = 0; w < text.n; w++) {
    int len = text.len[w];
    const int32_t *ids = text.ids[w];
    rig_restart(&a, 0);
    rig_restart(&b, 0);
    rig_feed(&a, 0, ids, len, len);
    rig_feed(&b, 0, ids, len, len);
    for (int i = 0; i + 1 < len; i++, scored++) {
      const float *q = a.seq[0].trace + i * V, *p = b.seq[0].trace + i * V;
      nll -= log_softmax(q, V, ids[i + 1]);
      nll_ref -= log_softmax(p, V, ids[i + 1]);
      agree += argmax(q, V) == argmax(p, V);
      double x = kls[scored] = plain_kl(p, q, V);
      kl += x;
      if (x > worst) worst = x, where = i + 1, where_window = w;
    }
    float *h = streams(&a, ids, len), *g = streams(&b, ids, len);
    for (int l = 0; l < L; l++)
      for (int i = 0; i < len; i++) layers[l] += distance(h + (l * len + i) * a.H, g + (l * len + i) * a.H, a.H);
    tokens += len;
    sh_free(h);
    sh_free(g);
  }
  assert_int_equal(r.windows, text.n);
  assert_int_equal(r.scored, scored);
  assert_int_equal(r.tokens, tokens);
  near(r.model.ppl, exp(nll / scored), 1e-10);
  near(r.ref.ppl, exp(nll_ref / scored), 1e-10);
  near(r.kl_mean, kl / scored, 1e-9);
  near(r.kl_max, worst, 1e-9);
  assert_int_equal(r.worst_position, where);
  assert_int_equal(r.worst_window, where_window);
  near(r.top1, (double)agree / scored, 1e-15);
  sh_eval_sort(kls, scored);
  near(r.kl_median, sh_eval_quantile(kls, scored, 0.5), 1e-9);
  near(r.kl_p99, sh_eval_quantile(kls, scored, 0.99), 1e-9);
  assert_int_equal(r.n_layers, L);
  for (int l = 1; l < L; l++) near(r.layers[l].mean, layers[l] / tokens, 1e-9);
  assert_true(r.layers[0].mean == 0); /* the embedding is not quantized */
  int64_t binned = 0;
  for (int i = 0; i < SH_EVAL_BINS; i++) binned += r.bins[i];
  assert_int_equal(binned, scored);
  assert_true(r.kl_mean > 0.01 && r.top1 < 1); /* there is something to measure */

  sh_samples_free(&text);
  sh_chat_free(chat);
  sh_tok_free(tok);
  rig_close(&a);
  rig_close(&b);
  sh_eval_free(&r);
}

static void a_model_equals_itself(void **state) {
  (void)state;
  sh_eval r;
  sh_eval_opts o = opts(DENSE, DENSE, 6);
  o.prompts = 3;
  run(&r, &o);
  assert_true(r.kl_mean == 0 && r.kl_max == 0 && r.kl_p99 == 0 && r.top1 == 1);
  assert_true(r.model.ppl == r.ref.ppl && r.model.ppl > 1);
  assert_int_equal(r.prefix_prompts, 3);
  assert_int_equal(r.prefix_min, SH_EVAL_PREFIX);
  assert_true(r.prefix_mean == SH_EVAL_PREFIX);
  for (int l = 0; l < r.n_layers; l++) assert_true(r.layers[l].mean == 0 && r.layers[l].max == 0);
  sh_eval_free(&r);
}

static void the_number_of_threads_changes_no_bit(void **state) {
  (void)state;
  sh_eval one, three;
  sh_eval_opts o = opts(AWQ, DENSE, 2);
  o.threads = 1;
  run(&one, &o);
  o.threads = 3;
  run(&three, &o);
  assert_true(one.kl_mean == three.kl_mean && one.model.nll == three.model.nll && one.kl_p99 == three.kl_p99);
  for (int l = 0; l < one.n_layers; l++) assert_true(one.layers[l].mean == three.layers[l].mean);
  sh_eval_free(&one);
  sh_eval_free(&three);
}

static void without_a_reference_there_is_perplexity_alone(void **state) {
  (void)state;
  sh_eval r;
  sh_eval_opts o = opts(DENSE, NULL, 2);
  o.prompts = 5;
  run(&r, &o);
  assert_null(r.ref.path);
  assert_int_equal(r.prefix_prompts, 0);
  assert_int_equal(r.n_layers, 0);
  assert_true(r.model.ppl > 1 && r.kl_mean == 0);
  sh_eval_free(&r);
}

/* ---- Prefixes and tasks ---- */

static void greedy_continuations_are_those_of_a_lone_sequence(void **state) {
  (void)state;
  enum { N = 19, NEW = 20 };
  sh_eval_side s = {0};
  sh_error e = {0};
  sh_eval_opts o = opts(DENSE, NULL, 0);
  rig_ok(sh_eval_side_open(&s, DENSE, &o, o.exact, &e), &e);
  rig_ok(sh_eval_side_reserve(&s, 128, 32, false, &e), &e);
  sh_eval_gen gen[N] = {0};
  int32_t prompts[N][60], out[N][NEW];
  for (int i = 0; i < N; i++) {
    for (int k = 0; k < 60; k++) prompts[i][k] = (i * 31 + k * 7 + 5) % 600;
    gen[i] = (sh_eval_gen){.prompt = prompts[i], .n_prompt = 1 + i * 3, .max_new = NEW - i % 3, .out = out[i]};
  }
  rig_ok(sh_eval_generate(&s, gen, N, 640, NULL, 0, &e), &e);
  rig r;
  rig_open_path(&r, DENSE, (rig_opts){0});
  for (int i = 0; i < N; i++) {
    assert_int_equal(gen[i].n_out, NEW - i % 3);
    assert_false(gen[i].ended);
    rig_restart(&r, 0);
    rig_feed(&r, 0, prompts[i], gen[i].n_prompt, 60);
    for (int k = 0; k < gen[i].n_out; k++) {
      assert_int_equal(out[i][k], rig_greedy(&r, 0));
      rig_feed(&r, 0, &out[i][k], 1, 1);
    }
  }
  /* an end token ends it and is not part of it */
  int32_t first[NEW], end = out[3][4];
  memcpy(first, out[3], sizeof first);
  rig_ok(sh_eval_generate(&s, &gen[3], 1, 640, &end, 1, &e), &e);
  assert_true(gen[3].ended && gen[3].n_out <= 4);
  assert_memory_equal(out[3], first, (size_t)gen[3].n_out * sizeof *first);
  rig_close(&r);
  sh_eval_side_close(&s);
}

static void choices_are_scored_as_whole_sequences_would_be(void **state) {
  (void)state;
  enum { V = 640 };
  sh_eval_side s = {0};
  sh_error e = {0};
  sh_eval_opts o = opts(DENSE, NULL, 0);
  rig_ok(sh_eval_side_open(&s, DENSE, &o, o.exact, &e), &e);
  rig_ok(sh_eval_side_reserve(&s, 160, 16, false, &e), &e);
  int32_t all[100];
  for (int k = 0; k < 100; k++) all[k] = (k * 13 + 7) % 600;
  int32_t *ids[] = {all + 50, all + 10, all + 20, all + 30};
  const int n_ids[] = {1, 3, 40, 2}, n_prompts[] = {1, 16, 37, 48}; /* begun and full pages */
  rig r;
  rig_open_path(&r, DENSE, (rig_opts){0});
  for (int p = 0; p < 4; p++) {
    double sum[4];
    rig_ok(sh_eval_choices(&s, all, n_prompts[p], ids, n_ids, 4, V, sum, &e), &e);
    for (int c = 0; c < 4; c++) {
      double want = 0;
      rig_restart(&r, 0);
      rig_feed(&r, 0, all, n_prompts[p], 100);
      rig_feed(&r, 0, ids[c], n_ids[c], 100);
      for (int k = 0; k < n_ids[c]; k++) want += log_softmax(r.seq[0].trace + (n_prompts[p] - 1 + k) * V, V, ids[c][k]);
      near(sum[c], want, 1e-10);
    }
  }
  rig_close(&r);
  sh_eval_side_close(&s);
}

/* What the random model answers is nonsense, but the same nonsense each time: its own answers are the right ones. */
static void tasks_are_counted_by_group(void **state) {
  (void)state;
  sh_eval_side s = {0};
  sh_error e = {0};
  sh_eval_opts o = opts(DENSE, NULL, 1);
  rig_ok(sh_eval_side_open(&s, DENSE, &o, o.exact, &e), &e);
  rig_ok(sh_eval_side_reserve(&s, 64, 32, false, &e), &e);
  sh_ids prompt = {0};
  rig_ok(sh_tok_encode(s.tok, "Hello", 5, SH_TOK_ADD_SPECIAL, &prompt, &e), &e);
  int32_t out[4];
  sh_eval_gen gen = {.prompt = prompt.v, .n_prompt = (int)prompt.n, .max_new = 4, .out = out};
  rig_ok(sh_eval_generate(&s, &gen, 1, 640, NULL, 0, &e), &e);
  sh_buf answer, file;
  sh_buf_init(&answer, 1 << 16);
  sh_buf_init(&file, 1 << 16);
  rig_ok(sh_tok_decode(s.tok, out, (size_t)gen.n_out, true, &answer, &e), &e);
  sh_jw w;
  for (int i = 0; i < 3; i++) { /* right, right with blanks around it, wrong */
    sh_jw_init(&w, &file);
    sh_jw_obj(&w);
    sh_jw_kstr(&w, "prompt", "Hello");
    sh_jw_kint(&w, "max_tokens", 4);
    sh_jw_kstr(&w, "task", "say <it>");
    sh_jw_key(&w, "answer");
    sh_buf x;
    sh_buf_init(&x, 1 << 16);
    sh_buf_printf(&x, "%s%s%s", i == 1 ? " \n" : "", answer.p, i == 2 ? "x" : i == 1 ? "\t" : "");
    sh_jw_str(&w, x.p);
    sh_buf_free(&x);
    sh_jw_end_obj(&w);
    sh_buf_putc(&file, '\n');
  }
  sh_buf_puts(&file, "\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"choices\": [\"b\", \"c\"], \"answer\": 0}\n"
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"choices\": [\"b\", \"c\"], \"answer\": 1}\n");
  write_file(tasks_file, file.p);
  sh_eval r;
  sh_eval_opts with = opts(DENSE, DENSE, 1);
  with.tasks = tasks_file;
  with.prompts = 2;
  run(&r, &with);
  assert_int_equal(r.n_tasks, 2);
  assert_string_equal(r.tasks[0].name, "say <it>");
  assert_int_equal(r.tasks[0].n_answers, 3);
  assert_int_equal(r.tasks[0].right[0], 2);
  assert_int_equal(r.tasks[0].right[1], 2);
  assert_int_equal(r.tasks[0].n_choices, 0);
  assert_int_equal(r.tasks[1].n_choices, 2);
  assert_int_equal(r.tasks[1].best[0], 1); /* the one or the other */
  assert_int_equal(r.tasks[1].best_norm[0], 1);
  assert_int_equal(r.prefix_prompts, 2); /* of the tasks */
  assert_int_equal(r.prefix_min, SH_EVAL_PREFIX);
  sh_eval_free(&r);
  sh_buf_free(&answer);
  sh_buf_free(&file);
  sh_ids_free(&prompt);
  sh_eval_side_close(&s);
}

/* ---- What is refused ---- */

static void refused(const sh_eval_opts *o, const char *part) {
  sh_eval r;
  sh_error e = {0};
  int rc = sh_eval_run(&r, o, &e);
  sh_eval_free(&r);
  if (rc == 0) fail_msg("taken; wanted an error with '%s'", part);
  if (!strstr(e.text, part)) fail_msg("'%s' does not say '%s'", e.text, part);
}

static void wrong_tasks_are_refused_with_their_line(void **state) {
  (void)state;
  static const struct {
    const char *line, *part;
  } CASES[] = {
      {"{\"prompt\": \"a\", \"answer\": ", "line 2: "},
      {"[]", "line 2: it is an array"},
      {"{\"answer\": \"x\"}", "neither \"prompt\" nor \"messages\""},
      {"{\"prompt\": \"\", \"answer\": \"x\"}", "its prompt is empty"},
      {"{\"prompt\": \"a\"}", "\"answer\" is missing, wanted the text"},
      {"{\"prompt\": \"a\", \"answer\": 1}", "\"answer\" is a number, wanted the text"},
      {"{\"prompt\": \"a\", \"answer\": \"x\", \"json\": 1}", "\"json\" is a number"},
      {"{\"prompt\": \"a\", \"answer\": \"x\", \"json\": true}", "\"answer\" is no JSON"},
      {"{\"prompt\": \"a\", \"answer\": \"x\", \"task\": 1}", "\"task\" is a number"},
      {"{\"prompt\": \"a\", \"answer\": \"x\", \"max_tokens\": 0}", "\"max_tokens\" is wrong"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\"], \"answer\": 0}", "\"choices\" is an array of one text, wanted a list of 2"},
      {"{\"prompt\": \"a\", \"choices\": [], \"answer\": 0}", "of no text"},
      {"{\"prompt\": \"a\", \"choices\": \"b\", \"answer\": 0}", "\"choices\" is a string"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", 1], \"answer\": 0}", "\"choices\"[1] is a number"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}", "\"choices\"[1] is empty"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}",
       "\"answer\" is 2, wanted the index of one of the 2 choices, 0 to 1"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": -1}", "\"answer\" is -1"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"]}", "\"answer\" is missing"},
      {"{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"b\"}", "\"answer\" is a string, wanted the index"},
  };
  sh_eval_opts o = opts(DENSE, NULL, 1);
  o.tasks = tasks_file;
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    char text[512];
    snprintf(text, sizeof text, "{\"prompt\": \"a\", \"answer\": \"x\"}\n%s\n", CASES[i].line);
    write_file(tasks_file, text);
    refused(&o, CASES[i].part);
  }
  write_file(tasks_file, "\n \n");
  refused(&o, "holds no task");
  o.tasks = "/nonexistent/tasks.jsonl";
  refused(&o, "/nonexistent/tasks.jsonl");
}

static void wrong_models_and_texts_are_refused(void **state) {
  (void)state;
  sh_eval_opts o = opts("/nonexistent", NULL, 1);
  refused(&o, "/nonexistent");
  o = opts(AWQ, NULL, 1); /* this one has no tokenizer of its own */
  refused(&o, "has no tokenizer");
  o = opts(DENSE, NULL, 1);
  o.text = text_file;
  write_file(text_file, "{\"text\": \"a\"}\n");
  refused(&o, "two tokens");
  write_file(text_file, "\n");
  refused(&o, "holds no text");
  write_file(text_file, "{\"text\": \"a b c\"}\n{\"text\": }\n");
  o.samples = 0;
  refused(&o, "line 2");
  o = opts(DENSE, NULL, 1);
  o.seq_len = 5000; /* made for 4096 */
  refused(&o, "at most 4096");
}

static void a_failed_allocation_is_an_error(void **state) {
  (void)state;
  int failed = 0;
  write_file(text_file, "{\"text\": \"one two three\"}\n");
  write_file(
      tasks_file,
      "{\"prompt\": \"a\", \"answer\": \"x\", \"max_tokens\": 2}\n{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1}\n");
  sh_eval_opts o = opts(DENSE, DENSE, 1);
  o.text = text_file;
  o.tasks = tasks_file;
  o.prompts = 1;
  o.threads = 1;
  long step = rig_quick() ? 41 : 7; /* after the first twenty, spread over the hundreds that follow */
  for (long i = 0;; i += failed < 20 ? 1 : step) {
    sh_eval r;
    sh_error e = {0};
    sh_mem_fail_after(i);
    int rc = sh_eval_run(&r, &o, &e);
    sh_mem_fail_after(-1);
    sh_eval_free(&r);
    if (rc == 0) break;
    failed++;
    assert_true(e.text[0]);
  }
  assert_true(failed > 25);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_measures_are_those_of_another_computation),
      cmocka_unit_test(a_model_equals_itself),
      cmocka_unit_test(the_number_of_threads_changes_no_bit),
      cmocka_unit_test(without_a_reference_there_is_perplexity_alone),
      cmocka_unit_test(greedy_continuations_are_those_of_a_lone_sequence),
      cmocka_unit_test(choices_are_scored_as_whole_sequences_would_be),
      cmocka_unit_test(tasks_are_counted_by_group),
      cmocka_unit_test(wrong_tasks_are_refused_with_their_line),
      cmocka_unit_test(wrong_models_and_texts_are_refused),
      cmocka_unit_test(a_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("eval", tests, make_dir, remove_dir);
}
