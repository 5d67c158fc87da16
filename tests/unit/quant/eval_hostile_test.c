/* Files of texts, tasks and earlier results, cut off anywhere and with bytes changed: each is read or refused with a sentence. */
#include "unit/text/tok_rig.h"

#include "quant/eval_parts.h"
#include "base/text.h"
#include "quant/report.h"
#include <unistd.h>

static sh_tok *tok;
static sh_chat *chat;
static char dir[] = "/tmp/sheng_evalh_XXXXXX", file[64];

static int open_all(void **state) {
  (void)state;
  sh_ckpt *c;
  sh_error e;
  size_t n;
  tok = open_model(SMALL_MODEL);
  if (sh_ckpt_open(&c, SMALL_MODEL, SH_CKPT_TOKENIZER_ONLY, &e) < 0) return -1;
  const char *template = sh_ckpt_chat_template(c, &n);
  int rc = sh_chat_open(&chat, template, n, &e);
  sh_ckpt_close(c);
  if (rc < 0 || !mkdtemp(dir)) return -1;
  snprintf(file, sizeof file, "%s/x.jsonl", dir);
  return 0;
}

static int close_all(void **state) {
  (void)state;
  sh_chat_free(chat);
  sh_tok_free(tok);
  unlink(file);
  return rmdir(dir);
}

typedef int (*read_fn)(const char *path, sh_error *e);

static int read_text(const char *path, sh_error *e) {
  sh_samples s;
  int rc = sh_samples_load(&s, path, NULL, 0, tok, chat, 0, 32, SH_SAMPLES_WINDOWS, 0, e);
  assert_true(rc < 0 || s.n > 0);
  sh_samples_free(&s);
  return rc;
}

static int read_tasks(const char *path, sh_error *e) {
  sh_eval r = {.private_arena = sh_arena_new(64 << 20)};
  sh_eval_opts o = {.tasks = path};
  sh_eval_job j = {.o = &o, .r = &r, .tok = tok, .chat = chat, .vocab = 640};
  int rc = sh_eval_tasks_load(&j, e);
  assert_true(rc < 0 || j.tasks.n > 0);
  sh_eval_tasks_free(&j.tasks);
  sh_eval_free(&r);
  return rc;
}

static int read_result(const char *path, sh_error *e) {
  sh_report_point p;
  sh_arena *a = sh_arena_new(64 << 20);
  int rc = sh_report_read(&p, path, a, e);
  assert_true(rc < 0 || p.name);
  sh_arena_free(a);
  return rc;
}

static void try_one(read_fn fn, const char *text, size_t n, int *taken, int *refused) {
  sh_error e = {0};
  assert_int_equal(sh_file_write_atomic(file, text, n, &e), 0);
  bool ok = fn(file, &e) == 0;
  ++*(ok ? taken : refused);
  assert_true(ok || e.text[0]);
  assert_true(sh_utf8_valid(e.text, strlen(e.text)));
}

static void hostile(read_fn fn, const char *text) {
  size_t n = strlen(text);
  int taken = 0, refused = 0;
  uint32_t r = 11;
  for (size_t i = 0; i <= n; i++) try_one(fn, text, i, &taken, &refused);
  char *copy = sh_strdup(text);
  for (int i = 0; i < 400; i++) {
    size_t at = (r = r * 1664525u + 1013904223u) % n;
    char old = copy[at];
    copy[at] = (char)(i % 3 == 0 ? r >> 24 : (uint32_t) "{}[]\":,0-e\n\\"[(r >> 20) % 12]);
    try_one(fn, copy, n, &taken, &refused);
    if (i % 4) copy[at] = old; /* some changes stay and add up */
  }
  sh_free(copy);
  assert_true(taken > 0 && refused > 100);
}

static void texts_are_read_or_refused(void **state) {
  (void)state;
  hostile(read_text,
          "{\"text\": \"one\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
          "\"tools\": [], \"enable_thinking\": false}\n");
}

static void tasks_are_read_or_refused(void **state) {
  (void)state;
  hostile(read_tasks, "{\"prompt\": \"a\", \"answer\": \"{\\\"a\\\": 1}\", \"json\": true, \"max_tokens\": 5, \"task\": \"t\"}\n"
                      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"choices\": [\"x\", \"yy\"], \"answer\": 1}\n");
}

static void results_are_read_or_refused(void **state) {
  (void)state;
  hostile(read_result, "{\"model\": {\"name\": \"m\", \"bytes\": 123, \"perplexity\": 2.5}, \"reference\": {\"name\": \"r\"}, "
                       "\"kl\": {\"mean\": 0.5}, \"top1_agreement\": 0.75}\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_are_read_or_refused),
      cmocka_unit_test(tasks_are_read_or_refused),
      cmocka_unit_test(results_are_read_or_refused),
  };
  return cmocka_run_group_tests_name("eval_hostile", tests, open_all, close_all);
}
