/* Files of a pull on disk: parts in any order, cuts at any point, journals that were damaged, checksums. */
#include "ops/pull_file.h"
#include "base/file.h"
#include "ops/pull_store.h"
#include "unit/base/harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PART = 4096, SIZE = PART * 5 + 123, N_PARTS = 6 };

static char dir[64];
static char bytes[SIZE];
static sh_hub_file remote;

static int set_up(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/sheng_pfile_test.XXXXXX");
  if (!mkdtemp(dir)) return -1;
  char work[96];
  snprintf(work, sizeof work, "%s/.sheng-pull", dir);
  if (mkdir(work, 0700) != 0) return -1;
  for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i * 31 + i / 997);
  sh_sha s;
  remote = (sh_hub_file){.path = "sub/w.safetensors", .size = SIZE, .hash_kind = SH_SHA256};
  sh_sha_init(&s, SH_SHA256);
  sh_sha_update(&s, bytes, SIZE);
  sh_sha_hex(&s, remote.hash);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", dir);
  return system(command);
}

static void open_file(sh_pfile *f) {
  sh_error e;
  assert_int_equal(sh_pfile_init(f, dir, &remote, PART, &e), 0);
  assert_int_equal(sh_pfile_load(f, &e), 0);
}

/* Bytes [at, at + n) come. */
static void put(sh_pfile *f, int64_t at, size_t n) { assert_int_equal(sh_pfile_write(f, at, bytes + at, n, NULL), 0); }

static void hash_all(sh_pfile *f) {
  bool more = true;
  for (int turns = 0; more; turns++) {
    assert_true(turns < 100);
    assert_int_equal(sh_pfile_hash(f, 5000, &more, NULL), 0);
  }
}

static void assert_final(const sh_pfile *f) {
  char *text;
  size_t n;
  assert_int_equal(sh_file_read(f->final_path, SIZE + 1, &text, &n, NULL), 0);
  assert_int_equal(n, f->remote->size);
  assert_memory_equal(text, bytes, n);
  sh_free(text);
  assert_false(sh_file_exists(f->part_path));
  assert_false(sh_file_exists(f->journal_path));
}

static void parts_may_come_in_any_order(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  assert_int_equal(f.n_parts, N_PARTS);
  assert_int_equal(sh_pfile_part_len(&f, N_PARTS - 1), 123);
  static const int order[] = {3, 0, 5, 1, 4, 2};
  for (int i = 0; i < N_PARTS; i++) {
    assert_false(sh_pfile_whole(&f));
    int64_t len = sh_pfile_part_len(&f, order[i]);
    put(&f, order[i] * PART, (size_t)len / 2);
    put(&f, order[i] * PART + len / 2, (size_t)(len - len / 2));
    hash_all(&f);
  }
  assert_int_equal(sh_pfile_missing(&f, 0), N_PARTS);
  assert_int_equal(f.hashed, SIZE);
  assert_true(sh_pfile_right(&f));
  assert_int_equal(sh_pfile_finish(&f, NULL), 0);
  assert_final(&f);
  sh_pfile_free(&f);
}

static void hashing_stays_behind_the_first_gap(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, 100);
  put(&f, PART, PART);
  hash_all(&f);
  assert_int_equal(f.hashed, 100);
  put(&f, 100, PART - 100);
  hash_all(&f);
  assert_int_equal(f.hashed, 2 * PART);
  sh_pfile_free(&f);
}

static void what_was_journalled_is_there_after_a_cut(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, PART);
  put(&f, 2 * PART, 1000);
  put(&f, 4 * PART, 500);
  assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
  assert_int_equal(sh_pfile_note(&f, 2, NULL), 0); /* part 4 was not */
  sh_pfile_free(&f);
  open_file(&f);
  assert_int_equal(f.got[0], PART);
  assert_int_equal(f.got[2], 1000);
  assert_int_equal(f.got[4], 0);
  assert_int_equal(sh_pfile_missing(&f, 0), 1);
  put(&f, PART, PART);
  put(&f, 2 * PART + 1000, SIZE - 2 * PART - 1000); /* runs on over the next parts */
  assert_true(sh_pfile_whole(&f));
  hash_all(&f);
  assert_true(sh_pfile_right(&f));
  sh_pfile_free(&f);
}

static void another_hash_or_size_starts_again(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    sh_pfile f;
    open_file(&f);
    put(&f, 0, PART);
    assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
    sh_pfile_free(&f);
    sh_hub_file was = remote;
    if (i) remote.size--;
    else remote.hash[0] = remote.hash[0] == 'a' ? 'b' : 'a';
    open_file(&f);
    assert_int_equal(sh_pfile_got(&f), 0);
    sh_pfile_free(&f);
    remote = was;
    open_file(&f);
    assert_int_equal(sh_pfile_got(&f), 0); /* the journal now speaks of the other bytes */
    sh_pfile_free(&f);
  }
}

static void a_download_that_goes_on_keeps_its_part_size(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, PART, PART);
  assert_int_equal(sh_pfile_note(&f, 1, NULL), 0);
  sh_pfile_free(&f);
  assert_int_equal(sh_pfile_init(&f, dir, &remote, 1 << 20, NULL), 0);
  assert_int_equal(sh_pfile_load(&f, NULL), 0);
  assert_int_equal(f.part_size, PART);
  assert_int_equal(f.got[1], PART);
  sh_pfile_free(&f);
}

static void without_a_hash_an_etag_is_needed_to_go_on(void **state) {
  (void)state;
  remote.hash_kind = 0;
  remote.hash[0] = 0;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, PART);
  assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
  sh_pfile_free(&f);
  open_file(&f);
  assert_int_equal(sh_pfile_got(&f), 0);
  assert_int_equal(sh_pfile_set_etag(&f, "v1 x", NULL), 0);
  put(&f, 0, PART);
  assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
  sh_pfile_free(&f);
  open_file(&f);
  assert_int_equal(sh_pfile_got(&f), PART);
  assert_string_equal(f.etag, "v1 x");
  bool more = true;
  assert_int_equal(sh_pfile_hash(&f, 1 << 20, &more, NULL), 0);
  assert_false(more);
  assert_true(sh_pfile_right(&f));
  sh_pfile_free(&f);
}

/* Every truncation of a journal, and seeded damage: the file is loaded with bytes that fit, or starts again; nothing else. */
static void no_damage_to_a_journal_is_believed_beyond_the_file(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, SIZE);
  for (int i = 0; i < N_PARTS; i++) assert_int_equal(sh_pfile_note(&f, i, NULL), 0);
  char *journal = sh_strdup(f.journal_path), *text;
  size_t n;
  sh_pfile_free(&f);
  assert_int_equal(sh_file_read(journal, 1 << 20, &text, &n, NULL), 0);
  unsigned seed = 7;
  int kept = 0;
  for (size_t round = 0; round < n + 3000; round++) {
    char *bad = sh_malloc(n + 1);
    size_t m = round < n ? round : n;
    memcpy(bad, text, n);
    if (round >= n)
      for (int k = 0; k < 1 + (int)(round % 3); k++) {
        seed = seed * 1664525u + 1013904223u;
        bad[(seed >> 8) % n] = (char)(seed >> 24);
      }
    assert_int_equal(sh_file_write_atomic(journal, bad, m, NULL), 0);
    open_file(&f);
    for (int i = 0; i < f.n_parts; i++) assert_in_range(f.got[i], 0, sh_pfile_part_len(&f, i));
    kept += sh_pfile_got(&f) > 0;
    /* and whatever was believed, it can be journalled and read again */
    if (f.n_parts > 1 && f.got[0]) {
      assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
      int64_t got = sh_pfile_got(&f);
      sh_pfile_free(&f);
      open_file(&f);
      assert_int_equal(sh_pfile_got(&f), got);
    }
    sh_pfile_free(&f);
    sh_free(bad);
    char part[256]; /* emptied by a restart: fill it again for the next round */
    snprintf(part, sizeof part, "%.*s.part", (int)(strlen(journal) - strlen(".journal")), journal);
    assert_int_equal(truncate(part, SIZE), 0);
  }
  assert_true(kept > 20); /* the last lines' truncations, and damage inside a number */
  sh_free(text);
  sh_free(journal);
}

static void an_empty_file_is_finished_and_gits_hash_of_it_is_known(void **state) {
  (void)state;
  remote = (sh_hub_file){.path = "empty", .size = 0, .hash_kind = SH_SHA1, .hash = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"};
  sh_pfile f;
  open_file(&f);
  assert_true(sh_pfile_whole(&f));
  assert_true(sh_pfile_right(&f));
  assert_int_equal(sh_pfile_finish(&f, NULL), 0);
  assert_final(&f);
  sh_pfile_free(&f);
}

static void a_file_that_is_there_is_compared(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, SIZE);
  hash_all(&f);
  assert_true(sh_pfile_right(&f));
  assert_int_equal(sh_pfile_finish(&f, NULL), 0);
  assert_int_equal(sh_pfile_verify(&f, NULL), 0);
  hash_all(&f);
  assert_true(sh_pfile_right(&f));
  int fd = open(f.final_path, O_WRONLY);
  assert_int_equal(pwrite(fd, "x", 1, 77), 1);
  close(fd);
  assert_int_equal(sh_pfile_verify(&f, NULL), 0);
  hash_all(&f);
  assert_false(sh_pfile_right(&f));
  sh_pfile_free(&f);
}

static void a_restart_forgets_everything(void **state) {
  (void)state;
  sh_pfile f;
  open_file(&f);
  put(&f, 0, 3 * PART);
  assert_int_equal(sh_pfile_note(&f, 0, NULL), 0);
  hash_all(&f);
  assert_int_equal(sh_pfile_restart(&f, NULL), 0);
  assert_int_equal(sh_pfile_got(&f), 0);
  assert_int_equal(f.hashed, 0);
  put(&f, 0, SIZE);
  hash_all(&f);
  assert_true(sh_pfile_right(&f));
  sh_pfile_free(&f);
}

static void constructors_survive_failing_memory(void **state) {
  (void)state;
  int rc = -1;
  long i = 0;
  for (; rc != 0; i++) {
    sh_pfile f;
    sh_error e = {0};
    sh_mem_fail_after(i);
    rc = sh_pfile_init(&f, dir, &remote, PART, &e);
    if (rc == 0) rc = sh_pfile_load(&f, &e);
    sh_mem_fail_after(-1);
    if (rc != 0 && (rc != SH_ERR_NOMEM || e.code != rc || !e.text[0])) fail_msg("allocation %ld: %d %s", i, rc, e.text);
    sh_pfile_free(&f);
    assert_true(i < 60);
  }
  assert_true(i > 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(parts_may_come_in_any_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(hashing_stays_behind_the_first_gap, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_was_journalled_is_there_after_a_cut, set_up, tear_down),
      cmocka_unit_test_setup_teardown(another_hash_or_size_starts_again, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_download_that_goes_on_keeps_its_part_size, set_up, tear_down),
      cmocka_unit_test_setup_teardown(without_a_hash_an_etag_is_needed_to_go_on, set_up, tear_down),
      cmocka_unit_test_setup_teardown(no_damage_to_a_journal_is_believed_beyond_the_file, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_empty_file_is_finished_and_gits_hash_of_it_is_known, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_that_is_there_is_compared, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_restart_forgets_everything, set_up, tear_down),
      cmocka_unit_test_setup_teardown(constructors_survive_failing_memory, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
