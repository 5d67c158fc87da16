/* Repacking against the layouts' definitions, and the cache: what it survives (crashes, races, full and read-only disks, changed and
 * damaged files), and that its second start only maps. */
#include "formats/repack.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "base/text.h"
#include "unit/formats/quant_files.h"

enum { MAX_MODULES = 64 };

static bool panels; /* the mode that a test runs in; most run in both */

/* --- What comes out */

static float *weights_of(const qspec *s) { return malloc((size_t)s->rows * (size_t)s->cols * sizeof(float)); }

static void repacked_weights_are_those_of_the_layout(void **state) {
  (void)state;
  static const struct {
    int rows, cols, group;
  } SIZES[] = {{8, 16, 16},     {16, 64, 32}, {128, 128, 128},   {136, 256, 64},
               {264, 384, 128}, {24, 48, 16}, {120, 1152, 1152}, {512, 272, 16}};
  static const sh_dtype TYPES[] = {SH_F16, SH_BF16, SH_F32};
  for (int i = 0; i < 8; i++) {
    for (int variant = 0; variant < 18; variant++) {
      static const struct {
        sh_qlayout layout;
        bool sym, order;
        int offset, bits;
      } V[18] = {{SH_QL_AWQ, false, false, 0, 4},  {SH_QL_AWQ, true, false, 0, 4},   {SH_QL_GPTQ, true, false, 1, 4},
                 {SH_QL_GPTQ, false, false, 1, 4}, {SH_QL_GPTQ, false, true, 1, 4},  {SH_QL_GPTQ, true, true, 0, 4},
                 {SH_QL_ROWS, true, false, 0, 4},  {SH_QL_ROWS, false, false, 0, 4}, {SH_QL_ROWS, false, true, 0, 4},
                 {SH_QL_ROWS, true, true, 0, 4},   {SH_QL_GPTQ, true, false, 1, 8},  {SH_QL_GPTQ, false, false, 1, 8},
                 {SH_QL_GPTQ, false, true, 0, 8},  {SH_QL_ROWS, true, false, 0, 8},  {SH_QL_ROWS, false, false, 0, 8},
                 {SH_QL_ROWS, false, true, 0, 8},  {SH_QL_ROWS, true, true, 0, 8},   {SH_QL_I8, true, false, 0, 8}};
      qspec s = {.base = "m",
                 .layout = V[variant].layout,
                 .bits = V[variant].bits,
                 .rows = SIZES[i].rows,
                 .cols = SIZES[i].cols,
                 .group = SIZES[i].group,
                 .sym = V[variant].sym,
                 .act_order = V[variant].order,
                 .zero_offset = V[variant].offset,
                 .scale_type = TYPES[(i + variant) % 3],
                 .seed = 1000 + (uint64_t)i};
      if (s.layout == SH_QL_ROWS || s.layout == SH_QL_I8) s.rows -= 3; /* rows of any number there */
      qfile *f = calloc(1, sizeof *f);
      float *want = weights_of(&s);
      qf_module(f, &s, want);
      qf_write(f, qf_config(&s));
      qopen o;
      sh_wview v;
      sh_error e = {0};
      int rc = qo_open_as(&o, &(sh_repack_opts){.panels = panels, .threads = 1 + i % 3}, &e);
      if (!rc) rc = qo_add(&o, "m", s.rows, s.cols, &v, &e);
      if (!rc) rc = sh_repack_run(o.r, &e);
      if (rc) fail_msg("%s", e.text);
      expect_weights(&v, want);
      assert_true(!s.sym || !v.zeros);
      assert_true(!v.perm == !(s.act_order && s.group < s.cols));
      assert_int_equal(sh_dtype_is_panel(v.type), panels);
      if (panels) {
        assert_int_equal(v.type, s.bits == 4 ? SH_P4 : SH_P8);
        assert_int_equal(v.panel_offset, s.sym ? SH_PANEL_MIDDLE : SH_PANEL_ZERO);
      } else {
        if (s.layout == SH_QL_ROWS && !v.perm) assert_ptr_equal(v.data, sh_ckpt_find(o.ck, "m.weight_packed")->data); /* no copy */
        if (s.layout == SH_QL_I8) assert_ptr_equal(v.data, sh_ckpt_find(o.ck, "m.weight")->data);
      }
      assert_int_equal((uintptr_t)v.perm % 4, 0);
      qo_close(&o);
      qf_free(f);
      free(f);
      free(want);
    }
  }
}

static void sorted_columns_keep_their_order_inside_a_group(void **state) {
  (void)state;
  qspec s = {
      .base = "m", .layout = SH_QL_GPTQ, .rows = 8, .cols = 96, .group = 32, .act_order = true, .zero_offset = 1, .scale_type = SH_F16};
  qfile *f = calloc(1, sizeof *f);
  qf_module(f, &s, NULL);
  qf_write(f, qf_config(&s));
  qopen o;
  sh_wview v;
  sh_error e = {0};
  if (qo_open(&o, &e) || qo_add(&o, "m", 8, 96, &v, &e) || sh_repack_run(o.r, &e)) fail_msg("%s", e.text);
  const int32_t *of = (const int32_t *)(const void *)qf_data(f, "m.g_idx");
  for (int c = 0; c < 96; c++) {
    assert_int_equal(of[v.perm[c]], c / 32);
    if (c % 32) assert_true(v.perm[c] > v.perm[c - 1]);
  }
  qo_close(&o);
  qf_free(f);
  free(f);
}

static void an_order_of_minus_ones_is_none(void **state) {
  (void)state;
  qspec s = {.base = "m", .layout = SH_QL_ROWS, .rows = 8, .cols = 64, .group = 32, .sym = true, .scale_type = SH_BF16};
  qfile *f = calloc(1, sizeof *f);
  float *want = weights_of(&s);
  qf_module(f, &s, want);
  memset(qf_add(f, "m", ".weight_g_idx", SH_I32, 64, 0), 0xff, 256);
  qf_write(f, qf_config(&s));
  qopen o;
  sh_wview v;
  sh_error e = {0};
  if (qo_open(&o, &e) || qo_add(&o, "m", 8, 64, &v, &e) || sh_repack_run(o.r, &e)) fail_msg("%s", e.text);
  assert_null(v.perm);
  expect_weights(&v, want);
  memset(qf_data(f, "m.weight_g_idx"), 0, 4); /* one column has a group, the others none */
  qf_write(f, qf_config(&s));
  qo_close(&o);
  if (qo_open(&o, &e) || qo_add(&o, "m", 8, 64, &v, &e)) fail_msg("%s", e.text);
  assert_int_equal(sh_repack_run(o.r, &e), SH_ERR_FORMAT);
  assert_says(e.text, "group 0 has 1 columns, 32 are wanted");
  qo_close(&o);
  qf_free(f);
  free(f);
  free(want);
}

/* --- The cache. A model of several modules of every layout that one file can hold (GPTQ: in order, sorted, symmetric). */

typedef struct model {
  qfile f;
  int n;
  qspec spec[MAX_MODULES];
  char names[MAX_MODULES][16];
  float *want[MAX_MODULES];
} model;

static model *make_model(int n, int rows, uint64_t seed) {
  model *m = calloc(1, sizeof *m);
  assert_true(n <= MAX_MODULES);
  for (m->n = 0; m->n < n; m->n++) {
    int i = m->n;
    snprintf(m->names[i], sizeof m->names[i], "m%d", i);
    m->spec[i] = (qspec){.base = m->names[i],
                         .layout = SH_QL_GPTQ,
                         .rows = rows,
                         .cols = 256,
                         .group = 32,
                         .sym = i % 3 == 0,
                         .act_order = i % 2 == 1,
                         .zero_offset = 1,
                         .scale_type = SH_F16,
                         .seed = seed + (uint64_t)i};
    m->want[i] = weights_of(&m->spec[i]);
    qf_module(&m->f, &m->spec[i], m->want[i]);
  }
  qf_write(&m->f, qf_config(&m->spec[0]));
  return m;
}

static void free_model(model *m) {
  for (int i = 0; i < m->n; i++) free(m->want[i]);
  qf_free(&m->f);
  free(m);
}

/* Opens, repacks with the options, compares every weight. Returns where it went. */
static sh_repack_where start(const model *m, sh_repack_opts o) {
  qopen q;
  sh_wview v[MAX_MODULES];
  sh_error e = {0};
  if (!o.cache_min) o.cache_min = 1;
  o.panels = panels;
  int rc = qo_open_as(&q, &o, &e);
  for (int i = 0; i < m->n && !rc; i++) rc = qo_add(&q, m->names[i], m->spec[i].rows, m->spec[i].cols, &v[i], &e);
  if (!rc) rc = sh_repack_run(q.r, &e);
  if (rc) fail_msg("%s", e.text);
  for (int i = 0; i < m->n; i++) {
    assert_int_equal(sh_dtype_is_panel(v[i].type), panels);
    expect_weights(&v[i], m->want[i]);
  }
  sh_repack_where where = sh_repack_result(q.r);
  qo_close(&q);
  return where;
}

/* The only file in the folder that ends so, or NULL. */
static const char *file_in(const char *dir, const char *end) {
  static char path[512];
  char cmd[600], *got;
  snprintf(cmd, sizeof cmd, "ls -1 '%s'/*%s 2>/dev/null | head -1", dir, end);
  FILE *p = popen(cmd, "r");
  assert_non_null(p);
  got = fgets(path, sizeof path, p);
  pclose(p);
  if (!got) return NULL;
  path[strcspn(path, "\n")] = 0;
  return path;
}

static const char *cache_end(void) { return panels ? ".panels" : ".repacked"; }

static const char *cache_dir(void) { return in_temp(".sheng-cache"); }

/* Runs fn in a child; its exit status, or -signal. */
static int in_child(int (*fn)(const model *m), const model *m) {
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) _exit(fn(m));
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void the_second_start_maps_what_the_first_wrote(void **state) {
  (void)state;
  model *m = make_model(7, 136, 5);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  assert_non_null(file_in(cache_dir(), cache_end()));
  assert_null(file_in(cache_dir(), ".tmp"));
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_MAPPED);
  assert_int_equal(start(m, (sh_repack_opts){.threads = 3}), SH_REPACK_MAPPED);
  assert_int_equal(start(m, (sh_repack_opts){.cache_dir = ""}), SH_REPACK_MEMORY);
  assert_int_equal(start(m, (sh_repack_opts){.cache_min = 1 << 30}), SH_REPACK_MEMORY);
  free_model(m);
}

static void the_caches_of_both_modes_stand_side_by_side(void **state) {
  (void)state;
  model *m = make_model(4, 136, 5);
  for (int round = 0; round < 2; round++) {
    for (int mode = 0; mode < 2; mode++) {
      panels = mode == 1;
      assert_int_equal(start(m, (sh_repack_opts){0}), round ? SH_REPACK_MAPPED : SH_REPACK_WRITTEN);
    }
  }
  panels = false;
  free_model(m);
}

/* The other tests have modules only. */
static void matrices_in_rows_are_repacked_beside_modules(void **state) {
  (void)state;
  model *m = make_model(2, 136, 5);
  uint64_t seed = 7;
  enum { ROWS = 300, COLS = 128 };
  uint8_t *data = calloc(ROWS, COLS / 32 * 34);
  sh_map map; /* what was repacked is given back to the system, so it lies in a file */
  for (int i = 0; i < ROWS * COLS / 32 * 34; i++) data[i] = (uint8_t)(i % 34 == 0 ? 0 : i % 34 == 1 ? 0x2c : next_random(&seed) >> 30);
  put_file("rows", data, ROWS * COLS / 32 * 34);
  assert_int_equal(sh_map_open(&map, in_temp("rows"), NULL), 0);
  const sh_wview src = {.type = SH_Q8_0, .rows = ROWS, .cols = COLS, .data = map.p, .row_bytes = COLS / 32 * 34, .name = "rows"};
  const sh_wview none = {.type = SH_BF16, .rows = 2, .cols = COLS, .data = map.p, .row_bytes = COLS * 2, .name = "floats"};
  float *want = malloc((size_t)ROWS * COLS * sizeof *want);
  for (int r = 0; r < ROWS; r++) sh_dequant_row(&src, r, want + r * COLS);
  for (int round = 0; round < 3; round++) {
    qopen q;
    sh_wview v[5];
    sh_error e = {0};
    sh_repack_opts o = {.panels = true, .cache_min = 1, .cache_dir = round == 2 ? "" : NULL, .threads = 2};
    size_t rewritten, replaced;
    int rc = qo_open_as(&q, &o, &e);
    if (!rc) rc = qo_add(&q, m->names[0], m->spec[0].rows, m->spec[0].cols, &v[0], &e);
    if (!rc) rc = sh_repack_add_matrix(q.r, &src, SH_HEAD_BF16, &v[1], 0, &e);
    if (!rc) rc = sh_repack_add_matrix(q.r, &none, SH_HEAD_BF16, &v[2], 0, &e);
    if (!rc) rc = sh_repack_add_matrix(q.r, &src, SH_HEAD_BF16, &v[3], SH_REPACK_ROWS, &e);
    if (!rc) rc = sh_repack_add_matrix(q.r, &src, SH_HEAD_BF16, &v[4], SH_REPACK_ASIDE, &e);
    if (!rc) rc = sh_repack_run(q.r, &e);
    if (rc) fail_msg("%s", e.text);
    assert_int_equal(sh_repack_result(q.r), round == 0 ? SH_REPACK_WRITTEN : round == 1 ? SH_REPACK_MAPPED : SH_REPACK_MEMORY);
    expect_weights(&v[0], m->want[0]);
    expect_weights(&v[1], want);
    expect_weights(&v[4], want);
    assert_int_equal(v[1].type, SH_P8);
    assert_ptr_equal(v[2].data, map.p);
    assert_ptr_equal(v[3].data, map.p);
    assert_int_equal(v[3].type, SH_Q8_0);
    sh_repack_count(q.r, &rewritten, &replaced);
    size_t module = 136 / 8 * 8 * (size_t)v[0].row_bytes, file = 0;
    static const char *const PARTS[] = {"m0.qweight", "m0.qzeros", "m0.scales", "m0.g_idx"};
    for (int i = 0; i < 4; i++) file += qf_find(&m->f, PARTS[i])->bytes;
    assert_int_equal(rewritten, module + 304 * (size_t)v[1].row_bytes);
    assert_int_equal(replaced, file + ROWS * src.row_bytes);
    qo_close(&q);
  }
  sh_map_close(&map);
  free(data);
  free(want);
  free_model(m);
}

static void one_folder_holds_the_caches_of_many_models(void **state) {
  (void)state;
  char outer[64], shared[128];
  model *a, *b;
  snprintf(outer, sizeof outer, "%s", temp_dir);
  snprintf(shared, sizeof shared, "%s/shared", outer);
  snprintf(temp_dir, sizeof temp_dir, "%.40s/a", outer);
  assert_int_equal(mkdir(temp_dir, 0755), 0);
  a = make_model(3, 16, 9);
  assert_int_equal(start(a, (sh_repack_opts){.cache_dir = shared}), SH_REPACK_WRITTEN);
  snprintf(temp_dir, sizeof temp_dir, "%.40s/b", outer);
  assert_int_equal(mkdir(temp_dir, 0755), 0);
  b = make_model(3, 16, 10);
  assert_int_equal(start(b, (sh_repack_opts){.cache_dir = shared}), SH_REPACK_WRITTEN);
  assert_int_equal(start(b, (sh_repack_opts){.cache_dir = shared}), SH_REPACK_MAPPED);
  snprintf(temp_dir, sizeof temp_dir, "%.40s/a", outer);
  assert_int_equal(start(a, (sh_repack_opts){.cache_dir = shared}), SH_REPACK_MAPPED);
  snprintf(temp_dir, sizeof temp_dir, "%s", outer);
  free_model(a);
  free_model(b);
}

static void a_changed_file_gets_a_new_cache(void **state) {
  (void)state;
  model *m = make_model(4, 16, 5);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  free_model(m);
  m = make_model(4, 16, 77); /* the same header, other weights; the file system's clock may be coarse */
  const struct timespec later[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = time(NULL) + 10}};
  assert_int_equal(utimensat(AT_FDCWD, in_temp("model.safetensors"), later, 0), 0);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_MAPPED);
  /* what the stored numbers mean is part of the key as well: version 2 has other zero points */
  for (int i = 0; i < m->n; i++) {
    m->spec[i].zero_offset = 0;
    free(m->want[i]);
    m->want[i] = weights_of(&m->spec[i]);
  }
  qf_free(&m->f);
  for (int i = 0; i < m->n; i++) qf_module(&m->f, &m->spec[i], m->want[i]);
  put_text("config.json", qf_config(&m->spec[0]));
  sh_error e = {0};
  if (sh_st_write(in_temp("model.safetensors"), m->f.t, m->f.n, &e)) fail_msg("%s", e.text);
  assert_int_equal(utimensat(AT_FDCWD, in_temp("model.safetensors"), later, 0), 0);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  free_model(m);
}

static uint64_t checksum(const char *p, size_t n_jobs) { return sh_hash(p + 48, n_jobs, sh_hash(p, 40, 2)); }

/* Every byte of the head, and what a forger who can count would write. */
static void a_damaged_cache_is_written_again(void **state) {
  (void)state;
  model *m = make_model(4, 16, 5);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  char path[512];
  size_t n;
  snprintf(path, sizeof path, "%s", file_in(cache_dir(), cache_end()));
  char *good = slurp(path, &n), *bad = malloc(n + 64);
  for (size_t i = 0; i < 48 + 4; i++) {
    memcpy(bad, good, n);
    bad[i] = (char)(bad[i] ^ (1 << i % 8));
    put_file(path + strlen(temp_dir) + 1, bad, n);
    assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  }
  for (int kind = 0; kind < 13; kind++) {
    size_t len = n;
    memcpy(bad, good, n);
    memset(bad + n, 0, 64);
    if (kind == 0) len = 0;
    if (kind == 1) len = 47;
    if (kind == 2) len = n - 1;
    if (kind == 3) len = n + 64;
    if (kind == 4) memset(bad + 48, 0xff, 4);                    /* flags of no module */
    if (kind == 5) memset(bad + 48, 0, 4);                       /* nothing rewritten */
    if (kind == 6) bad[48] |= 8;                                 /* an order where there is none: right for the module */
    if (kind == 7) bad[49] &= ~8;                                /* no order where there is one */
    if (kind == 8) memcpy(bad + 32, &(uint64_t){UINT64_MAX}, 8); /* size */
    if (kind == 9) memcpy(bad + 64 + 4, &(int32_t){256}, 4);     /* order out of range */
    if (kind == 10) memcpy(bad + 64 + 4, &(int32_t){-1}, 4);
    if (kind == 11) memcpy(bad + 64 + 4, bad + 64, 4); /* a column twice */
    if (kind == 12) bad[50] ^= 16;                     /* a module in the other mode */
    memcpy(bad + 40, &(uint64_t){checksum(bad, 4)}, 8);
    put_file(path + strlen(temp_dir) + 1, bad, len);
    assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  }
  memcpy(bad, good, n); /* the forger's control: the same bytes with the right sum are taken */
  memcpy(bad + 40, &(uint64_t){checksum(bad, 4)}, 8);
  put_file(path + strlen(temp_dir) + 1, bad, n);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_MAPPED);
  free(bad);
  sh_free(good);
  free_model(m);
}

/* --- Other processes */

static int start_quietly(const model *m) {
  switch (start(m, (sh_repack_opts){.threads = 1})) {
  case SH_REPACK_WRITTEN: return 10;
  case SH_REPACK_MAPPED: return 11;
  case SH_REPACK_MEMORY: return 12;
  default: return 13;
  }
}

static void two_processes_write_one_cache(void **state) {
  (void)state;
  model *m = make_model(24, 512, 5);
  for (int round = 0; round < 8; round++) {
    enum { RACERS = 4 };
    pid_t pid[RACERS];
    int wrote = 0;
    fflush(NULL);
    for (int i = 0; i < RACERS; i++) {
      pid[i] = fork();
      assert_true(pid[i] >= 0);
      if (pid[i] == 0) _exit(start_quietly(m));
    }
    for (int i = 0; i < RACERS; i++) {
      int status;
      assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
      assert_true(WIFEXITED(status));
      assert_in_range(WEXITSTATUS(status), 10, 11);
      wrote += WEXITSTATUS(status) == 10;
    }
    assert_int_equal(wrote, 1);
    assert_null(file_in(cache_dir(), ".tmp"));
    assert_int_equal(unlink(file_in(cache_dir(), cache_end())), 0);
  }
  free_model(m);
}

/* Killed at many moments: what is there afterwards is nothing or all of it, and the next start is right either way. */
static void a_writer_that_is_killed_leaves_nothing_that_loads(void **state) {
  (void)state;
  model *m = make_model(32, 512, 5);
  int halfway = 0, finished = 0;
  for (int round = 0; round < 25; round++) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(start_quietly(m));
    for (int i = 0; i < 4000 && !file_in(cache_dir(), ".tmp") && waitpid(pid, NULL, WNOHANG) == 0; i++) usleep(100);
    usleep((useconds_t)round * 400);
    kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    bool there = file_in(cache_dir(), cache_end()) != NULL;
    halfway += file_in(cache_dir(), ".tmp") != NULL;
    finished += there;
    assert_int_equal(start(m, (sh_repack_opts){0}), there ? SH_REPACK_MAPPED : SH_REPACK_WRITTEN);
    assert_null(file_in(cache_dir(), ".tmp"));
    assert_int_equal(unlink(file_in(cache_dir(), cache_end())), 0);
  }
  print_message("killed %d times while writing, %d times after\n", halfway, finished);
  assert_true(halfway > 0);
  free_model(m);
}

static void a_lock_that_nobody_gives_back_is_waited_for_and_then_left(void **state) {
  (void)state;
  model *m = make_model(3, 16, 5);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  int fd = open(file_in(cache_dir(), ".lock"), O_RDWR);
  assert_true(fd >= 0);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_MAPPED); /* a valid cache needs no lock */
  assert_int_equal(unlink(file_in(cache_dir(), cache_end())), 0);
  assert_int_equal(start(m, (sh_repack_opts){.lock_wait_ms = 150}), SH_REPACK_MEMORY);
  close(fd);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  free_model(m);
}

/* --- Disks */

static int with_small_files(const model *m) {
  const struct rlimit lim = {20000, 20000};
  if (setrlimit(RLIMIT_FSIZE, &lim)) return 1;
  return start_quietly(m);
}

static void a_file_size_limit_is_a_line_in_the_log(void **state) {
  (void)state;
  model *m = make_model(4, 136, 5);
  assert_int_equal(in_child(with_small_files, m), 12);
  assert_null(file_in(cache_dir(), ".tmp"));
  assert_null(file_in(cache_dir(), cache_end()));
  free_model(m);
}

static void a_full_disk_is_a_line_in_the_log(void **state) {
  (void)state;
  char cmd[400], dir[128];
  model *m = make_model(8, 264, 5);
  snprintf(dir, sizeof dir, "%s", in_temp("small"));
  snprintf(cmd, sizeof cmd, "mkdir '%s' && mount -t tmpfs -o size=64k none '%s' 2>/dev/null", dir, dir);
  if (system(cmd) != 0) {
    print_message("skipped: no right to mount a small tmpfs\n");
    free_model(m);
    skip();
  }
  sh_repack_where where = start(m, (sh_repack_opts){.cache_dir = dir});
  const char *left = file_in(dir, ".tmp");
  snprintf(cmd, sizeof cmd, "umount '%s'", dir);
  assert_int_equal(system(cmd), 0);
  assert_int_equal(where, SH_REPACK_MEMORY);
  assert_null(left);
  free_model(m);
}

static void a_cache_folder_that_cannot_be_is_a_line_in_the_log(void **state) {
  (void)state;
  model *m = make_model(3, 16, 5);
  put_text("file", "no folder");
  assert_int_equal(start(m, (sh_repack_opts){.cache_dir = in_temp("file")}), SH_REPACK_MEMORY);
  assert_int_equal(start(m, (sh_repack_opts){.cache_dir = in_temp("no/such/parent")}), SH_REPACK_MEMORY);
  char longest[5000];
  memset(longest, 'x', sizeof longest - 1);
  longest[sizeof longest - 1] = 0;
  assert_int_equal(start(m, (sh_repack_opts){.cache_dir = longest}), SH_REPACK_MEMORY);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  char name[512];
  snprintf(name, sizeof name, "%s", file_in(cache_dir(), cache_end()));
  assert_int_equal(unlink(name), 0);
  assert_int_equal(mkdir(name, 0755), 0); /* a folder where the file should be */
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_MEMORY);
  free_model(m);
}

static int as_nobody(const model *m) {
  if (geteuid() == 0 && setuid(65534)) return 1;
  return start_quietly(m);
}

static void a_read_only_folder_serves_the_cache_it_has_or_none(void **state) {
  (void)state;
  model *m = make_model(3, 16, 5);
  assert_int_equal(chmod(temp_dir, 0555), 0);
  assert_int_equal(in_child(as_nobody, m), 12);
  assert_int_equal(chmod(temp_dir, 0755), 0);
  assert_int_equal(start(m, (sh_repack_opts){0}), SH_REPACK_WRITTEN);
  assert_int_equal(chmod(cache_dir(), 0555), 0);
  assert_int_equal(chmod(temp_dir, 0555), 0);
  assert_int_equal(in_child(as_nobody, m), 11);
  assert_int_equal(chmod(temp_dir, 0755), 0);
  assert_int_equal(chmod(cache_dir(), 0755), 0);
  free_model(m);
}

static void a_start_survives_failing_allocations(void **state) {
  (void)state;
  model *m = make_model(3, 16, 5);
  int memory = 0;
  for (int cached = 0; cached < 2; cached++) {
    for (long n = 0;; n++) {
      assert_true(n < 500);
      qopen q;
      sh_wview v[3];
      sh_error e = {0};
      if (cached && file_in(cache_dir(), cache_end())) unlink(file_in(cache_dir(), cache_end()));
      int rc = qo_open_as(&q, &(sh_repack_opts){.panels = panels, .cache_dir = cached ? NULL : "", .cache_min = 1, .threads = 1}, &e);
      assert_int_equal(rc, 0);
      sh_mem_fail_after(n);
      for (int i = 0; i < 3 && !rc; i++) rc = qo_add(&q, m->names[i], 16, 256, &v[i], &e);
      if (!rc) rc = sh_repack_run(q.r, &e);
      sh_mem_fail_after(-1);
      if (rc) assert_int_equal(rc, SH_ERR_NOMEM);
      for (int i = 0; i < 3 && !rc; i++) expect_weights(&v[i], m->want[i]);
      bool written = !rc && sh_repack_result(q.r) == (cached ? SH_REPACK_WRITTEN : SH_REPACK_MEMORY);
      memory += !rc && !written;
      qo_close(&q);
      if (written) break;
    }
  }
  print_message("%d starts went on in memory\n", memory);
  free_model(m);
}

static int in_rows(void **state) {
  panels = false;
  return make_temp_dir(state);
}

static int in_panels(void **state) {
  panels = true;
  return make_temp_dir(state);
}

static int leave(void **state) {
  panels = false;
  return remove_temp_dir(state);
}

int main(void) {
  sh_log_set_level(SH_LOG_ERROR);
#define IN_FOLDER(fn) cmocka_unit_test_setup_teardown(fn, in_rows, leave)
#define IN_BOTH(fn)                                                                                                                        \
  {#fn, fn, in_rows, leave, NULL}, { #fn " (panels)", fn, in_panels, leave, NULL }
  const struct CMUnitTest tests[] = {
      IN_BOTH(repacked_weights_are_those_of_the_layout),
      IN_FOLDER(sorted_columns_keep_their_order_inside_a_group),
      IN_FOLDER(an_order_of_minus_ones_is_none),
      IN_BOTH(the_second_start_maps_what_the_first_wrote),
      IN_FOLDER(the_caches_of_both_modes_stand_side_by_side),
      IN_FOLDER(matrices_in_rows_are_repacked_beside_modules),
      IN_BOTH(one_folder_holds_the_caches_of_many_models),
      IN_BOTH(a_changed_file_gets_a_new_cache),
      IN_BOTH(a_damaged_cache_is_written_again),
      IN_BOTH(two_processes_write_one_cache),
      IN_BOTH(a_writer_that_is_killed_leaves_nothing_that_loads),
      IN_FOLDER(a_lock_that_nobody_gives_back_is_waited_for_and_then_left),
      IN_BOTH(a_file_size_limit_is_a_line_in_the_log),
      IN_BOTH(a_full_disk_is_a_line_in_the_log),
      IN_FOLDER(a_cache_folder_that_cannot_be_is_a_line_in_the_log),
      IN_BOTH(a_read_only_folder_serves_the_cache_it_has_or_none),
      IN_BOTH(a_start_survives_failing_allocations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
