/* The folder in the making: what comes out, what stays behind, and that no kill, full disk, second run or wrong name leaves anything at OUT
 * that is not the whole result. */
#include "quant/writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "unit/quant/fast_dir.h"

enum { PARTS = 7, PART_BYTES = 3000 };

static sh_ckpt *source;
static const int64_t BYTES[PARTS] = {PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES, PART_BYTES};
static const char CONFIG[] = "{\"model_type\": \"x\"}\n", CARD[] = "# card\n";
static const sh_qfile EXTRA[] = {{"report.json", "{}", 2}};

/* --- A source, and parts that follow from their number */

static void put_in_source(const char *name, const char *text) {
  char path[100];
  snprintf(path, sizeof path, "src/%s", name);
  put_text(path, text);
}

static int make_source(void **state) {
  if (make_fast_dir(state)) return -1;
  sh_error e = {0};
  assert_int_equal(mkdir(in_temp("src"), 0755), 0);
  assert_int_equal(mkdir(in_temp("src/folder"), 0755), 0);
  put_in_source("config.json", "{}");
  put_in_source("README.md", "the source's");
  put_in_source("tokenizer.json", "{\"a\": 1}\n");
  put_in_source("preprocessor_config.json", "");
  put_in_source("vocab.txt", "words");
  put_in_source("quantize_config.json", "{\"bits\": 2}");
  put_in_source(".hidden", "no");
  put_in_source("pytorch_model.bin.index.json", "{}");
  put_in_source("consolidated.00.pth", "weights");
  put_in_source("linked.real", "behind a link");
  assert_int_equal(symlink("linked.real", in_temp("src/merges.txt")), 0);
  assert_int_equal(symlink("nothing", in_temp("src/dangling.json")), 0);
  const sh_ftensor t = {.name = "w", .type = SH_U8, .n_dims = 1, .dims = {4}, .data = (const uint8_t *)"abcd", .bytes = 4};
  if (sh_st_write(in_temp("src/model.safetensors"), &t, 1, &e) || sh_ckpt_open(&source, in_temp("src"), 0, &e)) fail_msg("%s", e.text);
  return 0;
}

static int remove_source(void **state) {
  sh_ckpt_close(source);
  return remove_temp_dir(state);
}

static int put_part(sh_qwriter *w, int part, sh_error *e) {
  char names[3][40];
  uint8_t data[PART_BYTES];
  uint64_t seed = 99 + (uint64_t)part;
  for (int i = 0; i < PART_BYTES; i++) data[i] = (uint8_t)next_random(&seed);
  sh_ftensor t[3] = {{.type = SH_U8, .n_dims = 1, .dims = {101}, .bytes = 101},
                     {.type = SH_F32, .n_dims = 2, .dims = {5, 20}, .bytes = 400},
                     {.type = SH_BF16, .n_dims = 2, .dims = {2, 600}, .bytes = 2400}};
  for (int i = 0; i < 3; i++) {
    snprintf(names[i], sizeof names[i], "layers.%d.%s", part, i == 0 ? "b" : i == 1 ? "a" : "c");
    t[i].name = names[i];
    t[i].data = data + 10 * i;
  }
  return sh_qwriter_put(w, part, t, 3, e);
}

static sh_qwriter_opts options(const char *path, bool resume) {
  return (sh_qwriter_opts){.path = path,
                           .source = source,
                           .n_parts = PARTS,
                           .bytes = BYTES,
                           .shard_bytes = 2 * PART_BYTES + 10,
                           .job = "test 1\tbits: 4\tgroup: 128\tseed: 7",
                           .resume = resume};
}

/* The whole of it. pause: microseconds between parts. */
static int run(const char *path, bool resume, useconds_t pause, sh_error *e) {
  sh_qwriter_opts o = options(path, resume);
  sh_qwriter *w;
  int rc = sh_qwriter_open(&w, &o, e);
  for (int i = 0; i < PARTS && !rc; i++) {
    if (sh_qwriter_has(w, i)) continue;
    rc = put_part(w, i, e);
    if (pause) usleep(pause);
  }
  if (!rc) rc = sh_qwriter_finish(w, CONFIG, CARD, EXTRA, 1, e);
  sh_qwriter_close(w);
  return rc;
}

static void run_well(const char *path, bool resume) {
  sh_error e = {0};
  if (run(path, resume, 0, &e)) fail_msg("%s", e.text);
}

/* --- Looking */

/* The names in a folder, sorted, each followed by a blank. */
static const char *names_in(const char *dir) {
  static char text[2000];
  struct dirent **v;
  int n = scandir(dir, &v, NULL, alphasort);
  text[0] = 0;
  if (n < 0) return "(none)";
  for (int i = 0; i < n; i++) {
    if (strcmp(v[i]->d_name, ".") && strcmp(v[i]->d_name, ".."))
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", v[i]->d_name);
    free(v[i]);
  }
  free(v);
  return text;
}

static void expect_same_folders(const char *a, const char *b) {
  char cmd[400];
  snprintf(cmd, sizeof cmd, "diff -r '%s' '%s'", a, b);
  assert_int_equal(system(cmd), 0);
}

static bool is_there(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0;
}

static void expect_open_fails(const sh_qwriter_opts *o, int code, const char *says) {
  sh_error e = {0};
  sh_qwriter *w;
  assert_int_equal(sh_qwriter_open(&w, o, &e), code);
  assert_null(w);
  assert_says(e.text, says);
}

/* --- What comes out */

static void a_folder_holds_the_parts_and_the_sources_side_files(void **state) {
  (void)state;
  run_well(in_temp("out/"), false);
  assert_string_equal(names_in(in_temp("out")),
                      "README.md config.json linked.real merges.txt model-00001-of-00004.safetensors model-00002-of-00004.safetensors "
                      "model-00003-of-00004.safetensors model-00004-of-00004.safetensors model.safetensors.index.json "
                      "preprocessor_config.json report.json tokenizer.json vocab.txt ");
  assert_false(is_there(in_temp("out.partial")));
  sh_ckpt *ck;
  sh_error e = {0};
  if (sh_ckpt_open(&ck, in_temp("out"), 0, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_ckpt_count(ck), 3 * PARTS);
  const sh_ftensor *t = sh_ckpt_find(ck, "layers.5.c");
  uint64_t seed = 99 + 5;
  for (int i = 0; i < 20; i++) next_random(&seed);
  assert_int_equal(t->data[0], (uint8_t)next_random(&seed));
  sh_ckpt_close(ck);
  size_t n;
  char *text = slurp(in_temp("out/merges.txt"), &n);
  assert_string_equal(text, "behind a link");
  sh_free(text);
  struct stat st;
  assert_int_equal(lstat(in_temp("out/merges.txt"), &st), 0);
  assert_true(S_ISREG(st.st_mode));
  text = slurp(in_temp("out/model.safetensors.index.json"), &n);
  assert_says(text,
              "{\n  \"metadata\": {\n    \"total_size\": 20307\n  },\n  \"weight_map\": {\n    \"layers.0.a\": \"model-00001-of-00004.saf");
  sh_free(text);
  text = slurp(in_temp("out/README.md"), &n);
  assert_string_equal(text, CARD);
  sh_free(text);
}

static void one_shard_needs_no_index_and_the_order_of_parts_does_not_matter(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  for (int way = 0; way < 2; way++) {
    char path[100];
    snprintf(path, sizeof path, "%s", in_temp(way ? "b" : "a"));
    sh_qwriter_opts o = options(path, false);
    o.shard_bytes = 0;
    if (way) assert_int_equal(mkdir(path, 0755), 0); /* an empty folder is as good as none */
    if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < PARTS; i++) {
      if (put_part(w, way ? (i * 3 + 1) % PARTS : i, &e)) fail_msg("%s", e.text);
    }
    if (sh_qwriter_finish(w, CONFIG, CARD, NULL, 0, &e)) fail_msg("%s", e.text);
    sh_qwriter_close(w);
  }
  assert_true(is_there(in_temp("a/model.safetensors")));
  assert_false(is_there(in_temp("a/model.safetensors.index.json")));
  expect_same_folders(in_temp("a"), in_temp("b"));
}

static void a_finish_wants_all_parts_and_each_tensor_once(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  sh_qwriter_opts o = options(in_temp("out"), false);
  o.n_parts = 2;
  o.shard_bytes = 1;
  if (sh_qwriter_open(&w, &o, &e) || put_part(w, 0, &e)) fail_msg("%s", e.text);
  assert_true(sh_qwriter_has(w, 0));
  assert_false(sh_qwriter_has(w, 1));
  assert_false(sh_qwriter_has(w, 2));
  assert_int_equal(sh_qwriter_finish(w, CONFIG, CARD, NULL, 0, &e), SH_ERR_INTERNAL);
  assert_says(e.text, "part 1 of 2 was not written");
  assert_int_equal(put_part(w, 2, &e), SH_ERR_INTERNAL);
  const sh_ftensor t = {.name = "layers.0.a", .type = SH_U8, .n_dims = 1, .dims = {1}, .data = (const uint8_t *)"a", .bytes = 1};
  if (sh_qwriter_put(w, 1, &t, 1, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_qwriter_finish(w, CONFIG, CARD, NULL, 0, &e), SH_ERR_INTERNAL);
  assert_says(e.text, "tensor layers.0.a is in two parts");
  assert_int_equal(sh_qwriter_finish(w, CONFIG, CARD, &(sh_qfile){"../up", "", 0}, 1, &e), SH_ERR_INTERNAL);
  sh_qwriter_close(w);
  assert_false(is_there(in_temp("out")));
}

/* --- Going on */

static void a_killed_run_leaves_nothing_at_out_and_is_gone_on_with(void **state) {
  (void)state;
  run_well(in_temp("whole"), false);
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  assert_int_equal(run(in_temp("timed"), false, 200, NULL), 0);
  clock_gettime(CLOCK_MONOTONIC, &b);
  long us = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
  uint64_t seed = 20260131;
  char out[100];
  int kills = 0, left = 0;
  snprintf(out, sizeof out, "%s", in_temp("out"));
  for (int round = 0; round < 60; round++) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(run(out, true, 200, NULL) ? 1 : 0);
    usleep((useconds_t)(next_random(&seed) % (uint64_t)(us + 2000)) * (round % 3 ? 1 : 2) / 2);
    kill(pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    kills += WIFSIGNALED(status);
    if (!is_there(out)) {
      left += is_there(in_temp("out.partial"));
      if (round % 2) continue; /* killed twice and more before it goes on */
      run_well(out, true);
    } else {
      sh_error e = {0};
      int rc = run(out, true, 0, &e);
      assert_int_equal(rc, SH_ERR_ARG);
    }
    expect_same_folders(in_temp("whole"), out);
    assert_false(is_there(in_temp("out.partial")));
    char cmd[200];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", out);
    assert_int_equal(system(cmd), 0);
  }
  print_message("%d killed, %d with something half done\n", kills, left);
  assert_true(left > 0);
}

static void another_job_is_not_gone_on_with(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  char out[100];
  snprintf(out, sizeof out, "%s", in_temp("out"));
  sh_qwriter_opts o = options(out, false);
  if (sh_qwriter_open(&w, &o, &e) || put_part(w, 3, &e)) fail_msg("%s", e.text);
  sh_qwriter_close(w);
  expect_open_fails(&o, SH_ERR_ARG, "out.partial is there from a run before; go on with it by --resume, or remove it");
  o.resume = true;
  o.job = "test 1\tbits: 4\tgroup: 64\tkeep: a b";
  expect_open_fails(&o, SH_ERR_ARG,
                    "out.partial is of a run with other options or of another model: group was 128 and is 64, seed was 7 and is none, keep "
                    "was none and is a b; give what it was made with to go on with it, or remove it to begin anew");
  char many[2000] = "test 1";
  for (int i = 0; i < 40; i++) snprintf(many + strlen(many), sizeof many - strlen(many), "\tan option of number %d: %d", i, i);
  o.job = many;
  expect_open_fails(&o, SH_ERR_ARG, "an option of number 0 was none and is 0, ");
  expect_open_fails(&o, SH_ERR_ARG, " ...; give what it was made with"); /* what does not fit does not take the remedy's place */
  o = options(out, true);
  o.shard_bytes = 1; /* another plan */
  expect_open_fails(&o, SH_ERR_ARG, "is of a run of another version of sheng, or its file .sheng-job is damaged; remove it");
  o = options(out, true);
  o.job = "test 2\tbits: 4\tgroup: 128\tseed: 7";
  expect_open_fails(&o, SH_ERR_ARG, "is of a run of another version of sheng");
  run_well(out, true);
}

/* A job of which a part is known only later: what is known is held against the same part of the other's. */
static void fields_that_come_later_are_compared_when_they_are_there(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  char out[100];
  snprintf(out, sizeof out, "%s", in_temp("out"));
  sh_qwriter_opts o = options(out, true);
  o.job_open = true;
  if (sh_qwriter_open(&w, &o, &e) || sh_qwriter_job(w, "tokens: abc", &e) || put_part(w, 0, &e)) fail_msg("%s", e.text);
  sh_qwriter_close(w);
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_qwriter_job(w, "tokens: abd", &e), SH_ERR_ARG);
  assert_says(e.text, "another model: tokens was abc and is abd; give");
  sh_qwriter_close(w);
  o.job = "test 1\tbits: 8\tgroup: 128\tseed: 7";
  expect_open_fails(&o, SH_ERR_ARG, "another model: bits was 4 and is 8; give");
  o.job = "test 1\tbits: 4\tgroup: 128\tseed: 7";
  if (sh_qwriter_open(&w, &o, &e) || sh_qwriter_job(w, "tokens: abc", &e)) fail_msg("%s", e.text);
  assert_true(sh_qwriter_has(w, 0));
  sh_qwriter_close(w);
}

static void a_finished_folder_that_keeps_its_job_is_known_again(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  char out[100];
  snprintf(out, sizeof out, "%s", in_temp("out"));
  sh_qwriter_opts o = options(out, false);
  o.keep_job = true;
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  for (int i = 0; i < PARTS - 2; i++)
    if (put_part(w, i, &e)) fail_msg("%s", e.text);
  sh_qwriter_close(w);
  o.resume = true;
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  assert_false(sh_qwriter_whole(w));
  for (int i = PARTS - 2; i < PARTS; i++)
    if (put_part(w, i, &e)) fail_msg("%s", e.text);
  if (sh_qwriter_finish(w, CONFIG, CARD, NULL, 0, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_qwriter_bytes(w), PARTS * (101 + 400 + 2400)); /* of both runs */
  sh_qwriter_close(w);
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  assert_true(sh_qwriter_whole(w));
  sh_qwriter_close(w);
  assert_true(is_there(in_temp("out/.sheng-job")) && !is_there(in_temp("out.partial")));
  o.job = "test 1\tbits: 8\tgroup: 128\tseed: 7";
  expect_open_fails(&o, SH_ERR_ARG, "/out is of a run with other options or of another model: bits was 4 and is 8; give");
  o.resume = false;
  expect_open_fails(&o, SH_ERR_ARG, "/out is not empty");
}

static void a_part_that_is_broken_is_written_again(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  char out[100];
  snprintf(out, sizeof out, "%s", in_temp("out"));
  sh_qwriter_opts o = options(out, true);
  if (sh_qwriter_open(&w, &o, &e) || put_part(w, 0, &e) || put_part(w, 2, &e) || put_part(w, 3, &e)) fail_msg("%s", e.text);
  sh_qwriter_close(w);
  assert_string_equal(names_in(in_temp("out.partial")), ".sheng-job model-00002-of-00004.safetensors part-00000.safetensors ");
  assert_int_equal(truncate(in_temp("out.partial/part-00000.safetensors"), 1000), 0);
  put_text("out.partial/part-00003.safetensors", "left by a kill between shard and parts");
  put_text("out.partial/model-00003-of-00004.safetensors.tmp.12", "half");
  put_text("out.partial/spill-hidden", "the caller's");
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  assert_false(sh_qwriter_has(w, 0));
  assert_true(sh_qwriter_has(w, 2) && sh_qwriter_has(w, 3));
  sh_qwriter_close(w);
  assert_string_equal(names_in(in_temp("out.partial")), ".sheng-job model-00002-of-00004.safetensors spill-hidden ");
  run_well(out, true);
  run_well(in_temp("whole"), false);
  expect_same_folders(in_temp("whole"), out);
}

static void a_run_that_did_nothing_leaves_nothing(void **state) {
  (void)state;
  sh_error e = {0};
  sh_qwriter *w;
  sh_qwriter_opts o = options(in_temp("out"), false);
  if (sh_qwriter_open(&w, &o, &e)) fail_msg("%s", e.text);
  assert_says(sh_qwriter_dir(w), "/out.partial");
  assert_string_equal(names_in(in_temp("out.partial")), ".sheng-job ");
  sh_qwriter_close(w);
  assert_string_equal(names_in(temp_dir), "src ");
}

/* --- Wrong places */

static void wrong_places_are_refused_by_name(void **state) {
  (void)state;
  char path[200] = "";
  sh_qwriter_opts o = options(path, false);
  snprintf(path, sizeof path, "%s", in_temp("src"));
  expect_open_fails(&o, SH_ERR_ARG, "/src is the model itself; name another folder");
  put_text("file", "x");
  snprintf(path, sizeof path, "%s", in_temp("file"));
  expect_open_fails(&o, SH_ERR_ARG, "/file is there and is not a folder");
  assert_int_equal(mkdir(in_temp("full"), 0755), 0);
  put_text("full/thing", "x");
  snprintf(path, sizeof path, "%s", in_temp("full"));
  expect_open_fails(&o, SH_ERR_ARG, "/full is not empty (thing is in it)");
  o.resume = true;
  expect_open_fails(&o, SH_ERR_ARG, "/full is not empty");
  assert_int_equal(symlink("nowhere", in_temp("link")), 0);
  snprintf(path, sizeof path, "%s", in_temp("link"));
  expect_open_fails(&o, SH_ERR_ARG, "/link is a link to nothing");
  snprintf(path, sizeof path, "%s", in_temp("no/such/out"));
  expect_open_fails(&o, SH_ERR_NOT_FOUND, "the folder in which it would be is not there; make it");
  assert_int_equal(mkdir(in_temp("mine.partial"), 0755), 0);
  put_text("mine.partial/photo", "x");
  snprintf(path, sizeof path, "%s", in_temp("mine"));
  expect_open_fails(&o, SH_ERR_ARG, "is not of a run before (photo is in it); remove it");
  assert_true(is_there(in_temp("mine.partial/photo")));
  put_text("other.partial", "a file");
  snprintf(path, sizeof path, "%s", in_temp("other"));
  expect_open_fails(&o, SH_ERR_IO, "other.partial: cannot open the folder");
  path[0] = 0;
  expect_open_fails(&o, SH_ERR_ARG, "empty name");
  snprintf(path, sizeof path, "%s", in_temp("out"));
  o.job = "two\nlines";
  expect_open_fails(&o, SH_ERR_INTERNAL, "one line");
  o.n_parts = 0;
  expect_open_fails(&o, SH_ERR_LIMIT, "0 parts");
  assert_false(is_there(in_temp("out.partial")));
}

/* By whatever path: a result in the model's folder would be taken for a part of the model, and a model in OUT would be in its place. */
static void a_result_in_the_models_folder_and_a_model_in_the_results_are_refused(void **state) {
  (void)state;
  char path[300] = "", cwd[300];
  sh_qwriter_opts o = options(path, true);
  assert_int_equal(symlink("src", in_temp("to-src")), 0);
  assert_int_equal(symlink("src/folder", in_temp("to-folder")), 0);
  static const char *const INSIDE[] = {"src/new",       "src/new/",          "src/folder/new", "to-src/new",
                                       "to-folder/new", "src/folder/../new", "src/folder"};
  for (size_t i = 0; i < sizeof INSIDE / sizeof INSIDE[0]; i++) {
    snprintf(path, sizeof path, "%s", in_temp(INSIDE[i]));
    expect_open_fails(&o, SH_ERR_ARG, "lies in the model's own folder, ");
  }
  static const char *const SAME[] = {"src", "src/", "to-src", "src/folder/..", "to-folder/.."};
  for (size_t i = 0; i < sizeof SAME / sizeof SAME[0]; i++) {
    snprintf(path, sizeof path, "%s", in_temp(SAME[i]));
    expect_open_fails(&o, SH_ERR_ARG, "is the model itself");
  }
  snprintf(path, sizeof path, "%s", temp_dir);
  expect_open_fails(&o, SH_ERR_ARG, "where the result shall be; name another folder");
  assert_int_equal(rename(in_temp("src"), in_temp("m.partial")), 0);
  assert_int_equal(symlink("m.partial", in_temp("src")), 0);
  put_text("m.partial/x.tmp.1", "what a killed run would have left");
  snprintf(path, sizeof path, "%s", in_temp("m"));
  expect_open_fails(&o, SH_ERR_ARG, "where the result is put together; name another folder than ");
  assert_true(is_there(in_temp("m.partial/x.tmp.1")));
  /* beside it, with a name that begins like the model's, and from inside by a relative path */
  assert_int_equal(unlink(in_temp("src")) + unlink(in_temp("m.partial/x.tmp.1")) + rename(in_temp("m.partial"), in_temp("src")), 0);
  run_well(in_temp("src2"), false);
  assert_non_null(getcwd(cwd, sizeof cwd));
  assert_int_equal(chdir(in_temp("src/folder")), 0);
  snprintf(path, sizeof path, "new");
  expect_open_fails(&o, SH_ERR_ARG, "new lies in the model's own folder, ");
  snprintf(path, sizeof path, "../../src3");
  run_well(path, false);
  assert_int_equal(chdir(cwd), 0);
  expect_same_folders(in_temp("src2"), in_temp("src3"));
}

static int child_status(int (*fn)(const char *), const char *path) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) _exit(fn(path));
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* 0 when the run fails with that code and words. */
static int fails_with(const char *path, int code, const char *says) {
  sh_error e = {0};
  int rc = run(path, true, 0, &e);
  if (rc == code && strstr(e.text, says)) return 0;
  print_message("%d: %s\n", rc, e.text);
  return 1;
}

static int as_nobody(const char *path) {
  if (geteuid() == 0 && setuid(65534)) return 2;
  return fails_with(path, SH_ERR_IO, "cannot make the folder: Permission denied; name one where you may write");
}

static void a_read_only_target_is_refused(void **state) {
  (void)state;
  assert_int_equal(chmod(temp_dir, 0555), 0);
  int rc = child_status(as_nobody, in_temp("out"));
  assert_int_equal(chmod(temp_dir, 0755), 0);
  assert_int_equal(rc, 0);
  assert_false(is_there(in_temp("out.partial")));
}

static int with_small_files(const char *path) {
  const struct rlimit lim = {20000, 20000};
  return setrlimit(RLIMIT_FSIZE, &lim) ? 2 : fails_with(path, SH_ERR_IO, "raise the limit (ulimit -f)");
}

static void a_disk_that_is_too_small_is_said_before_any_work(void **state) {
  (void)state;
  assert_int_equal(child_status(with_small_files, in_temp("out")), 0);
  static const int64_t HUGE_PARTS[2] = {1ll << 60, 1000};
  sh_qwriter_opts o = options(in_temp("out"), false);
  o.n_parts = 2;
  o.bytes = HUGE_PARTS;
  expect_open_fails(&o, SH_ERR_IO, "are needed on its disk and ");
  assert_string_equal(names_in(temp_dir), "src ");
}

/* The estimate was too low, or somebody else filled the disk. */
static int into_a_full_disk(const char *path) {
  const struct rlimit lim = {(1 << 20) + 3 * PART_BYTES, (1 << 20) + 3 * PART_BYTES};
  static uint8_t big[2 << 20];
  const sh_ftensor t = {.name = "big", .type = SH_U8, .n_dims = 1, .dims = {sizeof big}, .data = big, .bytes = sizeof big};
  sh_qwriter_opts o = options(path, true);
  sh_qwriter *w;
  sh_error e = {0};
  signal(SIGXFSZ, SIG_IGN);
  if (setrlimit(RLIMIT_FSIZE, &lim) || sh_qwriter_open(&w, &o, &e) || put_part(w, 0, &e)) return 2;
  int rc = sh_qwriter_put(w, 1, &t, 1, &e);
  sh_qwriter_close(w);
  return rc == SH_ERR_IO && strstr(e.text, "what is done is kept in") && strstr(e.text, "go on with --resume") ? 0 : 1;
}

static void a_disk_that_fills_up_keeps_what_is_done(void **state) {
  (void)state;
  assert_int_equal(child_status(into_a_full_disk, in_temp("out")), 0);
  assert_string_equal(names_in(in_temp("out.partial")), ".sheng-job part-00000.safetensors ");
  assert_false(is_there(in_temp("out")));
  run_well(in_temp("out"), true);
  run_well(in_temp("whole"), false);
  expect_same_folders(in_temp("whole"), in_temp("out"));
}

static void a_mount_point_is_refused_before_any_work(void **state) {
  (void)state;
  char cmd[300], dir[100];
  snprintf(dir, sizeof dir, "%s", in_temp("mnt"));
  snprintf(cmd, sizeof cmd, "mkdir '%s' && mount -t tmpfs -o size=256k none '%s' 2>/dev/null", dir, dir);
  if (system(cmd) != 0) {
    print_message("skipped: no right to mount a small tmpfs\n");
    skip();
  }
  sh_error e = {0}, small = {0};
  sh_qwriter *w;
  sh_qwriter_opts o = options(dir, false), in = options(in_temp("mnt/out"), false);
  int rc = sh_qwriter_open(&w, &o, &e), rc2 = sh_qwriter_open(&w, &in, &small);
  snprintf(cmd, sizeof cmd, "umount '%s'", dir);
  assert_int_equal(system(cmd), 0);
  assert_int_equal(rc, SH_ERR_ARG);
  assert_says(e.text, "is a mount point and cannot be replaced; name a new folder in it");
  assert_int_equal(rc2, SH_ERR_IO);
  assert_says(small.text, "16.0 MiB are needed on its disk and 25");
}

static int race(const char *path) {
  sh_error e = {0};
  int rc = run(path, false, 3000, &e);
  if (!rc) return 10;
  return rc == SH_ERR_BUSY ? 11 : rc == SH_ERR_ARG ? 12 : 13;
}

static void two_runs_at_once_make_one_folder(void **state) {
  (void)state;
  run_well(in_temp("whole"), false);
  for (int round = 0; round < 6; round++) {
    pid_t pid[3];
    int won = 0;
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
      pid[i] = fork();
      assert_true(pid[i] >= 0);
      if (pid[i] == 0) _exit(race(in_temp("out")));
    }
    for (int i = 0; i < 3; i++) {
      int status;
      assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
      assert_true(WIFEXITED(status));
      assert_in_range(WEXITSTATUS(status), 10, 12);
      won += WEXITSTATUS(status) == 10;
    }
    assert_int_equal(won, 1);
    expect_same_folders(in_temp("whole"), in_temp("out"));
    char cmd[200];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", in_temp("out"));
    assert_int_equal(system(cmd), 0);
  }
}

static void a_run_survives_failing_allocations(void **state) {
  (void)state;
  run_well(in_temp("whole"), false);
  int failed = 0;
  for (long n = 0;; n += 5) {
    sh_error e = {0};
    assert_true(n < 5000);
    sh_mem_fail_after(n);
    int rc = run(in_temp("out"), true, 0, &e);
    sh_mem_fail_after(-1);
    if (!rc) break;
    if (rc != SH_ERR_NOMEM) fail_msg("allocation %ld: %s", n, e.text);
    assert_false(is_there(in_temp("out")));
    failed++;
  }
  assert_true(failed > 5);
  expect_same_folders(in_temp("whole"), in_temp("out"));
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR);
#define IN_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, make_source, remove_source)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(a_folder_holds_the_parts_and_the_sources_side_files),
      IN_FOLDER(one_shard_needs_no_index_and_the_order_of_parts_does_not_matter),
      IN_FOLDER(a_finish_wants_all_parts_and_each_tensor_once),
      IN_FOLDER(a_killed_run_leaves_nothing_at_out_and_is_gone_on_with),
      IN_FOLDER(another_job_is_not_gone_on_with),
      IN_FOLDER(fields_that_come_later_are_compared_when_they_are_there),
      IN_FOLDER(a_finished_folder_that_keeps_its_job_is_known_again),
      IN_FOLDER(a_part_that_is_broken_is_written_again),
      IN_FOLDER(a_run_that_did_nothing_leaves_nothing),
      IN_FOLDER(wrong_places_are_refused_by_name),
      IN_FOLDER(a_result_in_the_models_folder_and_a_model_in_the_results_are_refused),
      IN_FOLDER(a_read_only_target_is_refused),
      IN_FOLDER(a_disk_that_is_too_small_is_said_before_any_work),
      IN_FOLDER(a_disk_that_fills_up_keeps_what_is_done),
      IN_FOLDER(a_mount_point_is_refused_before_any_work),
      IN_FOLDER(two_runs_at_once_make_one_folder),
      IN_FOLDER(a_run_survives_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
