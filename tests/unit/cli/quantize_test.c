/* `sheng quantize` as a user calls it: what can be refused is refused before calibration begins, and a run that was killed while it made
 * its report makes it when it goes on. */
#include "unit/quant/fast_dir.h"

#include "base/text.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>

#define MODELS "tests/golden/models/"
enum { MAX_ARGS = 40 };

/* Starts the command in a process of its own; what it prints goes to the file `said` of the test's folder. The arguments are one text, cut
 * at blanks. */
static pid_t start(const char *args) {
  char words[2048], *v[MAX_ARGS], *rest = words, name[] = "quantize";
  int n = 1;
  v[0] = name;
  snprintf(words, sizeof words, "%s", args);
  for (; n < MAX_ARGS - 1 && *(rest += strspn(rest, " ")); n++) {
    v[n] = rest;
    rest += strcspn(rest, " ");
    if (*rest) *rest++ = 0;
  }
  assert_false(*rest);
  v[n] = NULL;
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid) return pid;
  int fd = open(in_temp("said"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  int status = sh_cmd_quantize(n, v);
  fflush(NULL);
  _exit(status);
}

static int ends(pid_t pid) {
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* What the last command printed, until the next call. */
static const char *said(void) {
  static char text[1 << 16];
  char *p = NULL;
  size_t n = 0;
  sh_error e = {0};
  if (sh_file_read(in_temp("said"), sizeof text - 1, &p, &n, &e)) fail_msg("%s", e.text);
  memcpy(text, p, n + 1);
  sh_free(p);
  return text;
}

static void quantizes(const char *args) {
  int status = ends(start(args));
  if (status) fail_msg("quantize %s: status %d: %s", args, status, said());
}

static void refuses(const char *args, const char *says) {
  int status = ends(start(args));
  if (status != SH_EXIT_FAILURE || !strstr(said(), says))
    fail_msg("quantize %s: status %d, '%s' is not in '%s'", args, status, says, said());
}

static const char *line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *line(const char *fmt, ...) {
  static char text[2][2048];
  static int turn;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text[turn ^= 1], sizeof text[0], fmt, ap);
  va_end(ap);
  return text[turn];
}

#define SMALL " --samples 4 --seq-len 64 --own-samples 2 --threads 2 --q-group-size 32 --eval-samples 2 "

/* The calibration file is not there, so a run that had begun to calibrate would say that instead. */
static void faults_are_said_before_calibration_begins(void **state) {
  (void)state;
  static const struct {
    const char *args, *says;
  } FAULTS[] = {
      {MODELS "dense-small -o %s/full", "/full is not empty"},
      {MODELS "dense-small -o %s/file", "/file is there and is not a folder"},
      {MODELS "dense-small -o %s/file/x", "/file/x: a part of this path is a file, not a folder; name another place"},
      {"README.md -o %s/out", "README.md is a file; quantize wants the model's Hugging Face folder"},
      {MODELS "dense-small -o %s/no/such", "the folder in which it would be is not there"},
      {MODELS "dense-small -o %s/other", "/other.partial is there from a run before"},
      {MODELS "dense-small -o %s/other --resume", "/other.partial is of a run of another version of sheng"},
      {MODELS "dense-small -o %s/begun --resume",
       "/begun.partial is of a run with other options or of another model: --w-bit was 8 and is 4, --q-group-size was 64 and is 32, "},
      {MODELS "dense-small -o %s/busy", "another run is writing"},
      {MODELS "dense-small -o " MODELS "dense-small", "is the model itself"},
      {MODELS "dense-small -o " MODELS "dense-small/new", "lies in the model's own folder"},
      {MODELS "dense-small -o " MODELS, "where the result shall be; name another folder"},
      {MODELS "dense-small -o /proc/self/x", "/proc/self/x"},
      {MODELS "dense-small-awq -o %s/out", "is quantized already"},
      {"tests/golden/gguf/dense-small-bf16.gguf -o %s/out", "is a GGUF file"},
      {MODELS "dense-small -o %s/out --q-group-size 96", "groups of 96 do not divide"},
      {MODELS "dense-small -o %s/out --w-bit 8 --format awq", "AWQ holds 4-bit weights"},
      {MODELS "dense-small -o %s/out --keep *", "nothing is left to quantize"},
      {MODELS "moe-small -o %s/out --also shared_expert_gate", "use --format compressed-tensors, or --keep 'shared_expert_gate'"},
      {MODELS "dense-small -o %s/out --max-memory 1MiB", "a layer needs about"},
      {MODELS "dense-small -o %s/out --max-memory 30MiB", "the report, for which both models are opened, needs about"},
      {MODELS "dense-small -o %s/out --eval-text %s/none", "/none: no such file"},
      {MODELS "dense-small -o %s/out --eval-text /dev/null", "is not a regular file"},
  };
  char cmd[1024];
  snprintf(cmd, sizeof cmd,
           "cd %s && mkdir full busy.partial other.partial begun.partial && touch full/x file && echo 'quantize 2: method 7' > "
           "other.partial/.sheng-job && printf 'sheng quantize 3\t--method: awq\t--format: awq\t--w-bit: 8\t--q-group-size: 64\n' > "
           "begun.partial/.sheng-job",
           temp_dir);
  assert_int_equal(system(cmd), 0);
  int lock = open(in_temp("busy.partial"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_true(lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0);
  for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
    char args[1024];
    snprintf(args, sizeof args, FAULTS[i].args, temp_dir, temp_dir);
    refuses(line(SMALL "--calib-data %s/missing %s", temp_dir, args), FAULTS[i].says);
    assert_null(strstr(said(), "calibration"));
  }
  close(lock);
  assert_false(sh_file_exists(in_temp("out.partial")));
}

/* What can only be known with the tokens is said before the model writes its own. */
static void tokens_that_do_not_fit_are_said_before_the_model_writes(void **state) {
  (void)state;
  const char *args = "--samples 128 --seq-len 512 --threads 1 --q-group-size 32 --eval-samples 0 " MODELS "moe-small";
  refuses(line("%s -o %s/big --max-memory 60MiB", args, temp_dir), "a layer needs about");
  assert_null(strstr(said(), "writes"));
  refuses(line("%s -o %s/big --own-samples 128 --max-memory 44MiB", args, temp_dir),
          "calibrating with the model's own answers needs about");
  assert_false(sh_file_exists(in_temp("big.partial")));
}

/* --- The report */

static bool is_there(const char *name) { return sh_file_exists(in_temp(name)); }

static void killed_while_it_makes_its_report_it_makes_it_later(void **state) {
  (void)state;
  const char *job =
      line("--threads 2 --q-group-size 32 --seq-len 64 --eval-samples 100 --calib-data %s/text " MODELS "dense-small -o %s/made", temp_dir,
           temp_dir);
  char args[1024];
  snprintf(args, sizeof args, "%s", job);
  char text[4001];
  for (size_t i = 0; i < sizeof text - 1; i++) text[i] = i % 7 ? (char)('a' + i * i % 26) : ' ';
  text[sizeof text - 1] = 0;
  put_text("text", text);
  pid_t pid = start(args);
  for (int i = 0; i < 60000 && !sh_dir_exists(in_temp("made")); i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  kill(pid, SIGKILL);
  assert_int_equal(ends(pid), 128 + SIGKILL);
  assert_true(is_there("made/config.json") && is_there("made/model.safetensors") && !is_there("made/report.html"));
  assert_false(is_there("made.partial"));
  assert_int_equal(unlink(in_temp("text")), 0); /* it needs no tokens to go on */
  refuses(args, "made is not empty");
  refuses(line("%s --resume --w-bit 8", args), "made is of a run with other options or of another model: --format was awq and is");
  refuses(line("%s --resume --samples 2", args), "another model: --samples was 128 and is 2; give what it was made with");
  quantizes(line("%s --resume --eval-samples 2", args));
  assert_non_null(strstr(said(), "is complete but for its report"));
  assert_non_null(strstr(said(), "perplexity"));
  assert_true(is_there("made/report.html") && is_there("made/eval.json"));
  quantizes(line("%s --resume", args));
  assert_non_null(strstr(said(), "made is complete: nothing is left to do"));
  assert_null(strstr(said(), "perplexity"));
}

static void what_is_complete_is_said_to_be_and_may_get_its_report_later(void **state) {
  (void)state;
  const char *job = "--threads 2 --q-group-size 32 --method rtn --resume";
  quantizes(line("%s --eval-samples 0 " MODELS "dense-small -o %s/plain", job, temp_dir));
  assert_true(is_there("plain/config.json") && !is_there("plain/report.html"));
  quantizes(line("%s --eval-samples 0 " MODELS "dense-small -o %s/plain", job, temp_dir));
  assert_non_null(strstr(said(), "plain is complete: nothing is left to do\n"));
  quantizes(line("%s --eval-samples 2 " MODELS "dense-small -o %s/plain", job, temp_dir));
  assert_true(is_there("plain/report.html"));
}

/* --- Options */

static void misuses(const char *args, const char *says) {
  int status = ends(start(args));
  if (status != SH_EXIT_USAGE || !strstr(said(), says)) fail_msg("quantize %s: status %d, '%s' is not in '%s'", args, status, says, said());
}

static void options_that_make_no_sense_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *args, *says;
  } WRONG[] = {
      {"--w-bit 3", "--w-bit: found 3, wanted 4 or 8\n"},
      {"--w_bit 5", "--w-bit: found 5, wanted 4 or 8\n"},
      {"--w-bit 16", "--w-bit: found 16, wanted 4 or 8\n"},
      {"--q-group-size 0", "--q-group-size: found 0, wanted a multiple of 16"},
      {"--q-group-size 100", "--q-group-size: found 100, wanted a multiple of 16"},
      {"--method int8 --q-group-size 64", "--method int8 has one scale a row, --q-group-size 64 asks for groups"},
      {"--method int8 --zero-point true", "--method int8 is symmetric"},
      {"--method int8 --format awq", "--method int8 is written as --format compressed-tensors"},
      {"--model-path " MODELS "moe-small", "the model is named twice"},
  };
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
    misuses(line(MODELS "dense-small -o %s/wrong %s", temp_dir, WRONG[i].args), WRONG[i].says);
  misuses(MODELS "dense-small", "--output-path OUT is missing");
}

/* The layout and the zero points that a method has when none are asked for: those that its readers take. */
static void a_method_chooses_its_layout(void **state) {
  (void)state;
  static const struct {
    const char *args, *quant_method, *with;
  } HOW[] = {
      {"--method gptq", "awq", "\"zero_point\": true"},
      {"--method gptq --q-group-size -1", "compressed-tensors", "\"symmetric\": false"},
      {"--method gptq --zero-point false", "gptq", "\"sym\": true"},
      {"--method gptq --format gptq", "gptq", "\"sym\": true"},
      {"--method gptq --w-bit 8", "gptq", "\"sym\": true"},
      {"--method gptq --pow2-scales", "gptq", "\"sym\": true"},
      {"--method gptq --format gptq --zero-point true", "gptq", "\"sym\": false"},
      {"--method rtn", "awq", "\"zero_point\": true"},
      {"--method rtn --q-group-size -1", "compressed-tensors", "\"strategy\": \"channel\""},
      {"--method rtn --w-bit 8", "compressed-tensors", "\"num_bits\": 8"},
      {"--method int8", "compressed-tensors", "\"symmetric\": true"},
  };
  for (size_t i = 0; i < sizeof HOW / sizeof *HOW; i++) {
    char name[40], path[64], *text, method[64];
    size_t len;
    sh_error e = {0};
    snprintf(name, sizeof name, "layout-%zu", i);
    snprintf(path, sizeof path, "%s/config.json", name);
    quantizes(line("--q-group-size 64 --samples 2 --seq-len 32 --own-samples 0 --threads 2 --eval-samples 0 " MODELS
                   "dense-small -o %s/%s %s%s",
                   temp_dir, name, HOW[i].args, strstr(HOW[i].args, "int8") ? " --q-group-size -1" : ""));
    if (sh_file_read(in_temp(path), 1 << 20, &text, &len, &e)) fail_msg("%s", e.text);
    snprintf(method, sizeof method, "\"quant_method\": \"%s\"", HOW[i].quant_method);
    if (!strstr(text, method) || !strstr(text, HOW[i].with)) fail_msg("%s: %s", HOW[i].args, strstr(text, "quantization_config"));
    assert_non_null(strstr(said(), HOW[i].quant_method)); /* "... awq layout" */
    assert_true(!strstr(said(), "WARN") == !strstr(HOW[i].args, "--format gptq --zero-point true"));
    sh_free(text);
  }
}

static void what_an_option_does_not_do_is_said(void **state) {
  (void)state;
  quantizes(
      line("--method rtn --calib-data %s/none --eval-samples 0 --q-group-size 32 " MODELS "dense-small -o %s/unread", temp_dir, temp_dir));
  assert_non_null(strstr(said(), "--calib-data is not read: --method rtn needs no calibration"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(faults_are_said_before_calibration_begins),
                                     cmocka_unit_test(tokens_that_do_not_fit_are_said_before_the_model_writes),
                                     cmocka_unit_test(killed_while_it_makes_its_report_it_makes_it_later),
                                     cmocka_unit_test(what_is_complete_is_said_to_be_and_may_get_its_report_later),
                                     cmocka_unit_test(options_that_make_no_sense_are_refused),
                                     cmocka_unit_test(a_method_chooses_its_layout),
                                     cmocka_unit_test(what_an_option_does_not_do_is_said)};
  return cmocka_run_group_tests(tests, make_fast_dir, remove_temp_dir);
}
