/* Texts to samples: the texts of the program, the ways to cut, and what is said of wrong lines. */
#include "unit/text/tok_rig.h"

#include "quant/samples.h"
#include "quant/texts.h"
#include <unistd.h>

static sh_tok *tok;
static sh_chat *chat;
static char dir[] = "/tmp/sheng_samples_XXXXXX", file[64];

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
  return rc < 0 || !mkdtemp(dir) ? -1 : 0;
}

static int close_all(void **state) {
  (void)state;
  sh_chat_free(chat);
  sh_tok_free(tok);
  return rmdir(dir);
}

static const char *write_text(const char *name, const char *text) {
  sh_error e = {0};
  snprintf(file, sizeof file, "%s/%s", dir, name);
  if (sh_file_write_atomic(file, text, strlen(text), &e) < 0) fail_msg("%s", e.text);
  return file;
}

static sh_samples load(const char *path, const char *text, int max, int seq_len, sh_samples_how how, uint64_t seed) {
  sh_samples s;
  sh_error e = {0};
  if (sh_samples_load(&s, path, text, text ? strlen(text) : 0, tok, chat, max, seq_len, how, seed, &e) < 0) fail_msg("%s", e.text);
  int64_t tokens = 0;
  for (int i = 0; i < s.n; i++) {
    assert_in_range(s.len[i], 1, seq_len);
    assert_true(s.line[i] >= 1);
    tokens += s.len[i];
  }
  assert_int_equal(tokens, s.tokens);
  return s;
}

static void expect_sample(const sh_samples *s, int i, const char *text, int line) {
  sh_ids want = encode(tok, text, strlen(text), 0);
  assert_true(i < s->n);
  assert_int_equal(s->len[i], want.n);
  assert_memory_equal(s->ids[i], want.v, want.n * sizeof *want.v);
  assert_int_equal(s->line[i], line);
  sh_ids_free(&want);
}

static void the_texts_of_the_program_are_read_whole_and_share_no_line(void **state) {
  (void)state;
  size_t n_cal, n_eval;
  const char *cal = sh_text_calibration(&n_cal), *eval = sh_text_evaluation(&n_eval);
  assert_in_range(n_cal, 180000, 240000);
  assert_in_range(n_eval, 50000, 80000);
  assert_int_equal(cal[n_cal - 1], '\n');
  assert_int_equal(cal[n_cal], 0);
  assert_int_equal(eval[n_eval - 1], '\n');
  assert_int_equal(eval[n_eval], 0);
  sh_samples s = load(NULL, cal, 0, 1 << 20, SH_SAMPLES_LINES, 0);
  assert_true(s.n > 100);
  assert_int_equal(s.skipped, 0);
  sh_samples_free(&s);
  int lines = 0;
  for (const char *p = eval, *stop; *p; p = stop + 1, lines++) {
    stop = strchr(p, '\n');
    char *line = sh_strndup(p, (size_t)(stop - p));
    if (strstr(cal, line)) fail_msg("in both texts: %s", line);
    sh_free(line);
  }
  s = load(NULL, eval, 0, 1 << 20, SH_SAMPLES_LINES, 0);
  assert_int_equal(s.n, lines);
  sh_samples_free(&s);
}

static void lines_are_cut_packed_or_windowed(void **state) {
  (void)state;
  const char *text = "{\"text\": \"one two three four five six\"}\n\n{\"text\": \"seven\"}\r\n";
  sh_ids a = encode(tok, "one two three four five six", 27, 0), b = encode(tok, "seven", 5, 0);
  int n = (int)a.n, total = (int)(a.n + b.n);
  assert_true(n > 4);
  sh_samples s = load(NULL, text, 0, 4, SH_SAMPLES_LINES, 0);
  assert_int_equal(s.n, 2);
  assert_int_equal(s.len[0], 4);
  assert_memory_equal(s.ids[0], a.v, 4 * sizeof *a.v);
  assert_int_equal(s.line[1], 3); /* blank lines count */
  sh_samples_free(&s);
  s = load(NULL, text, 0, 4, SH_SAMPLES_WINDOWS, 0);
  assert_int_equal(s.n, (n + 3) / 4 + ((int)b.n + 3) / 4);
  assert_memory_equal(s.ids[1], a.v + 4, (size_t)s.len[1] * sizeof *a.v);
  assert_int_equal(s.tokens, total);
  sh_samples_free(&s);
  s = load(NULL, text, 0, 4, SH_SAMPLES_PACK, 0);
  assert_int_equal(s.n, total / 4);
  assert_int_equal(s.tokens, total / 4 * 4);
  sh_samples_free(&s);
  s = load(NULL, text, 1, 4, SH_SAMPLES_PACK, 0);
  assert_int_equal(s.n, 1);
  sh_samples_free(&s);
  s = load(NULL, text, 0, 4096, SH_SAMPLES_PACK, 0); /* less than one window: what there is */
  assert_int_equal(s.n, 1);
  assert_int_equal(s.len[0], total);
  assert_memory_equal(s.ids[0] + n, b.v, b.n * sizeof *b.v);
  sh_samples_free(&s);
  sh_ids_free(&a);
  sh_ids_free(&b);
}

static void a_seed_changes_the_order_and_nothing_else(void **state) {
  (void)state;
  char text[2048] = "";
  for (int i = 0; i < 30; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "{\"text\": \"number %d\"}\n", i);
  sh_samples plain = load(NULL, text, 0, 64, SH_SAMPLES_LINES, 0), one = load(NULL, text, 0, 64, SH_SAMPLES_LINES, 1),
             again = load(NULL, text, 0, 64, SH_SAMPLES_LINES, 1), two = load(NULL, text, 0, 64, SH_SAMPLES_LINES, 2);
  int seen[31] = {0}, moved = 0, other = 0;
  for (int i = 0; i < 30; i++) {
    char want[32];
    assert_int_equal(plain.line[i], i + 1);
    assert_int_equal(one.line[i], again.line[i]);
    snprintf(want, sizeof want, "number %d", one.line[i] - 1);
    expect_sample(&one, i, want, one.line[i]);
    seen[one.line[i]]++;
    moved += one.line[i] != i + 1;
    other += one.line[i] != two.line[i];
  }
  for (int i = 1; i <= 30; i++) assert_int_equal(seen[i], 1);
  assert_true(moved > 20 && other > 20);
  sh_samples_free(&plain);
  sh_samples_free(&one);
  sh_samples_free(&again);
  sh_samples_free(&two);
}

static void a_dialogue_is_rendered_whole(void **state) {
  (void)state;
  sh_samples s =
      load(NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello!\"}]}", 0, 512,
           SH_SAMPLES_LINES, 0);
  sh_buf text;
  sh_error e = {0};
  sh_buf_init(&text, 1 << 16);
  assert_int_equal(sh_tok_decode(tok, s.ids[0], (size_t)s.len[0], false, &text, &e), 0);
  assert_string_equal(text.p, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHello!<|im_end|>\n");
  sh_buf_free(&text);
  sh_samples_free(&s);
}

static void files_are_taken_for_what_they_are(void **state) {
  (void)state;
  sh_samples s = load(write_text("a.jsonl", "\xef\xbb\xbf{\"text\": \"abc\"}"), NULL, 0, 64, SH_SAMPLES_LINES, 0);
  expect_sample(&s, 0, "abc", 1);
  sh_samples_free(&s);
  unlink(file);
  s = load(write_text("a.txt", "{\"text\": \"abc\", \"more\": 1}\n{\"text\": \"def\"}\n"), NULL, 0, 64, SH_SAMPLES_LINES, 0);
  expect_sample(&s, 1, "def", 2);
  sh_samples_free(&s);
  s = load(write_text("a.txt", "{ int x; }\nof C"), NULL, 0, 4096, SH_SAMPLES_LINES, 0);
  expect_sample(&s, 0, "{ int x; }\nof C", 1);
  sh_samples_free(&s);
  s = load(write_text("a.txt", "a plain text is cut to windows whatever is asked"), NULL, 0, 4, SH_SAMPLES_LINES, 0);
  assert_true(s.n > 3);
  sh_samples_free(&s);
  unlink(file);
}

static void refused(const char *name, const char *text, const sh_chat *with, const char *part) {
  sh_samples s;
  sh_error e = {0};
  write_text(name, text);
  int rc = sh_samples_load(&s, file, NULL, 0, tok, with, 0, 64, SH_SAMPLES_LINES, 0, &e);
  if (rc == 0) fail_msg("taken: %s", text);
  if (!strstr(e.text, part) || !strstr(e.text, file)) fail_msg("'%s' does not say '%s' and the file's name", e.text, part);
  sh_samples_free(&s);
  unlink(file);
}

static void wrong_files_are_refused_with_their_line(void **state) {
  (void)state;
  refused("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \n", chat, "line 2: ");
  refused("a.jsonl", "{\"text\": \"a\"}\n\n[1]\n", chat, "line 3: it is an array, wanted an object");
  refused("a.jsonl", "{\"text\": 7}\n", chat, "line 1: \"text\" is a number, wanted a string");
  refused("a.jsonl", "{\"content\": \"x\"}\n", chat, "neither \"text\" nor \"messages\", wanted one of them; its first key is \"content\"");
  refused("a.jsonl", "{}\n", chat, "neither");
  refused("a.jsonl", "{\"text\": \"x\", \"messages\": []}\n", chat, "both");
  refused("a.jsonl", "{\"messages\": []}\n", chat, "an empty list");
  refused("a.jsonl", "{\"messages\": 1}\n", chat, "\"messages\" is a number");
  refused("a.jsonl", "{\"messages\": [{\"role\": \"user\"}], \"tools\": 1}\n", chat, "\"tools\" is a number");
  refused("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"enable_thinking\": 1}\n", chat, "\"enable_thinking\"");
  refused("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": 7}]}\n", chat, "messages[0]");
  refused("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n", NULL, "no chat template");
  refused("a.jsonl", "", chat, "holds no text");
  refused("a.txt", " \n \n", chat, "holds no text");
  refused("a.txt", "abc\xff", chat, "not text in UTF-8");
  refused("a.jsonl", "{\"text\": \"\"}\n", chat, "holds no text");
  sh_samples s;
  sh_error e = {0};
  assert_int_equal(sh_samples_load(&s, "/nonexistent", NULL, 0, tok, chat, 0, 64, SH_SAMPLES_LINES, 0, &e), SH_ERR_NOT_FOUND);
  sh_samples_free(&s);
}

static void without_a_template_the_program_s_text_is_its_plain_lines(void **state) {
  (void)state;
  size_t n;
  const char *text = sh_text_evaluation(&n);
  sh_samples s;
  sh_error e = {0};
  assert_int_equal(sh_samples_load(&s, NULL, text, n, tok, NULL, 0, 64, SH_SAMPLES_LINES, 0, &e), 0);
  assert_true(s.n > 0 && s.skipped > 0);
  sh_samples_free(&s);
  text = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n";
  assert_int_equal(sh_samples_load(&s, NULL, text, strlen(text), tok, NULL, 0, 64, SH_SAMPLES_LINES, 0, &e), SH_ERR_ARG);
  assert_non_null(strstr(e.text, "no chat template"));
  sh_samples_free(&s);
}

static void a_template_that_refuses_dialogues_leaves_those_of_the_program_out(void **state) {
  (void)state;
  static const char raising[] =
      "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
  size_t n;
  const char *text = sh_text_evaluation(&n);
  sh_chat *strict;
  sh_samples s;
  sh_error e = {0};
  assert_int_equal(sh_chat_open(&strict, raising, sizeof raising - 1, &e), 0);
  assert_int_equal(sh_samples_load(&s, NULL, text, n, tok, strict, 0, 64, SH_SAMPLES_LINES, 0, &e), 0);
  assert_true(s.n > s.skipped && s.skipped > 0);
  sh_samples_free(&s);
  refused("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": \"function\"}]}\n", strict,
          "no tools here");
  sh_chat_free(strict);
}

static void a_failed_allocation_is_an_error(void **state) {
  (void)state;
  const char *text = "{\"text\": \"one\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n";
  int failed = 0;
  for (long i = 0;; i++) {
    sh_samples s;
    sh_error e = {0};
    sh_mem_fail_after(i);
    int rc = sh_samples_load(&s, NULL, text, strlen(text), tok, chat, 0, 64, SH_SAMPLES_WINDOWS, 3, &e);
    sh_mem_fail_after(-1);
    sh_samples_free(&s);
    if (rc == 0) break;
    failed++;
    assert_true(e.text[0]);
  }
  assert_true(failed > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_texts_of_the_program_are_read_whole_and_share_no_line),
      cmocka_unit_test(lines_are_cut_packed_or_windowed),
      cmocka_unit_test(a_seed_changes_the_order_and_nothing_else),
      cmocka_unit_test(a_dialogue_is_rendered_whole),
      cmocka_unit_test(files_are_taken_for_what_they_are),
      cmocka_unit_test(wrong_files_are_refused_with_their_line),
      cmocka_unit_test(without_a_template_the_program_s_text_is_its_plain_lines),
      cmocka_unit_test(a_template_that_refuses_dialogues_leaves_those_of_the_program_out),
      cmocka_unit_test(a_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("samples", tests, open_all, close_all);
}
