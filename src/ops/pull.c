/* `sheng pull`: the order of things. Main thread.
 *
 *   hub and token -> list of files -> lock on the folder -> choice -> what is there already -> room on the disk -> mark as incomplete ->
 *   download (ops/pull_load) -> files that are gone at the hub -> manifest -> working folder away
 *
 * Nothing is written before the hub has answered with a list, so a misspelt name leaves no folder. Signals only set a flag; the loop ends,
 * journals are written, and the next run goes on. The handlers reset themselves, so that a second Ctrl-C ends the process whatever it waits
 * for. */
#include "ops/pull.h"

#include "base/file.h"
#include "base/pool.h"
#include "base/text.h"
#include "ops/pull_load.h"
#include "ops/pull_select.h"
#include "ops/pull_show.h"
#include "ops/pull_store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SPARE_BYTES = 64 << 20, MAX_COMMAND = 8192 };

static volatile sig_atomic_t stop;

typedef struct pull {
  const sh_pull_options *o;
  sh_hub hub;
  sh_fetch *fetch;
  sh_hub_list list;
  const char *revision; /* that was asked for, or the hub's main one */
  char *dir;
  int lock_fd;
  sh_pull_manifest old;
  sh_pjob *jobs; /* [n] */
  int n;
  int64_t total, missing; /* bytes of all files; of those that have to be downloaded */
  int n_missing, n_verify;
  sh_pshow show;
} pull;

/* --- The hub -------------------------------------------------------------------------------------------------------------------------- */

static bool is_url(const char *s) { return sh_str_starts(s, "http://") || sh_str_starts(s, "https://"); }

static int choose_hub(const sh_pull_options *o, sh_hub *h, sh_error *e) {
  const char *from = o->from, *endpoint;
  if (strcmp(from, "huggingface") == 0 || strcmp(from, "hf") == 0) {
    *h = (sh_hub){SH_HUB_HF, "Hugging Face", "huggingface", NULL, o->hf_token, "HF_TOKEN", "main"};
    endpoint = o->hf_endpoint;
  } else if (strcmp(from, "modelscope") == 0) {
    *h = (sh_hub){SH_HUB_MODELSCOPE, "ModelScope", "modelscope", NULL, o->modelscope_token, "MODELSCOPE_API_TOKEN", "master"};
    endpoint = o->modelscope_endpoint;
  } else if (strcmp(from, "modelers") == 0) {
    *h = (sh_hub){SH_HUB_MODELERS, "Modelers", "modelers", NULL, o->modelers_token, "MODELERS_TOKEN", "main"};
    endpoint = o->modelers_endpoint;
  } else if (is_url(from)) {
    *h = (sh_hub){SH_HUB_HF, "the hub", from, NULL, o->hub_token, "SHENG_HUB_TOKEN", "main"};
    endpoint = from;
  } else {
    return sh_fail(e, SH_ERR_ARG, "--from: found '%s', wanted huggingface, modelscope, modelers or the address of a hub (https://...)",
                   from);
  }
  size_t n = strlen(endpoint);
  while (n && endpoint[n - 1] == '/') n--;
  if (!(h->endpoint = sh_strndup(endpoint, n))) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (!sh_url_same_origin(h->endpoint, h->endpoint) || strpbrk(h->endpoint, "?#"))
    return sh_fail(e, SH_ERR_ARG, "'%s' is no address of a hub; it is written https://host or http://host:port (tokens go into %s)",
                   endpoint, h->token_var);
  for (const char *s = h->token ? h->token : ""; *s; s++)
    if (*s <= ' ' || *s == 0x7f) return sh_fail(e, SH_ERR_ARG, "the token in %s holds a blank or a line break", h->token_var);
  return SH_OK;
}

static void note_retry(const char *why, double wait_s, int attempt, int retries) {
  fprintf(stderr, "the list of files: %s; trying again in %.1f s (%d of %d)\n", why, wait_s, attempt, retries);
}

static int open_hub(pull *p, sh_error *e) {
  int rc = choose_hub(p->o, &p->hub, e);
  if (rc != SH_OK) return rc;
  p->revision = p->o->revision ? p->o->revision : p->hub.main_revision;
  sh_fetch_config c = {
      .endpoint = p->hub.endpoint,
      .token = p->hub.token,
      .libcurl = p->o->libcurl,
      .ca_file = p->o->ca_file,
      .session_cookie = p->hub.kind == SH_HUB_MODELSCOPE,
      .stall_s = (int)p->o->stall_timeout,
      .retries = (int)p->o->retries,
      .note = note_retry,
      .stop = &stop,
  };
  return sh_fetch_open(&p->fetch, &c, e);
}

/* --- What to do ----------------------------------------------------------------------------------------------------------------------- */

static int open_dir(pull *p, sh_error *e) {
  if (!p->o->local_dir) return sh_pull_store_dir(p->o->home, p->o->name, &p->dir, e);
  size_t n = strlen(p->o->local_dir);
  while (n > 1 && p->o->local_dir[n - 1] == '/') n--;
  if (n == 0) return sh_fail(e, SH_ERR_ARG, "--local-dir is empty");
  return (p->dir = sh_strndup(p->o->local_dir, n)) ? SH_OK : sh_fail(e, SH_ERR_NOMEM, "out of memory");
}

/* Small files first: config and tokenizer are there early, and mistakes (a token, a full disk) show before hours have passed. */
static int by_size(const void *a, const void *b) {
  const sh_pjob *x = a, *y = b;
  int64_t m = x->f.remote->size, n = y->f.remote->size;
  return m < n ? -1 : m > n ? 1 : strcmp(x->f.remote->path, y->f.remote->path);
}

static int make_jobs(pull *p, sh_error *e) {
  bool *chosen = sh_calloc((size_t)p->list.n + 1, sizeof *chosen);
  p->jobs = sh_calloc((size_t)p->list.n + 1, sizeof *p->jobs);
  int rc = chosen && p->jobs ? SH_OK : sh_fail(e, SH_ERR_NOMEM, "out of memory");
  if (rc == SH_OK) rc = sh_pull_select(&p->list, p->o->include.v, p->o->include.n, &p->old, chosen, stderr, e);
  for (int i = 0; rc == SH_OK && i < p->list.n; i++) {
    if (!chosen[i]) continue;
    rc = sh_pfile_init(&p->jobs[p->n].f, p->dir, &p->list.v[i], p->o->part_size, e);
    if (rc == SH_OK) p->n++;
  }
  sh_free(chosen);
  if (rc == SH_OK) qsort(p->jobs, (size_t)p->n, sizeof *p->jobs, by_size);
  return rc;
}

/* Looks at what has the final name: right (by the manifest), to be hashed, or to be downloaded. */
static int look(pull *p, sh_pjob *j, sh_error *e) {
  const sh_hub_file *r = j->f.remote;
  const sh_pull_entry *was = sh_pull_manifest_find(&p->old, r->path);
  struct stat st;
  p->total += r->size;
  if (stat(j->f.final_path, &st) == 0) {
    if (!S_ISREG(st.st_mode))
      return sh_fail(e, SH_ERR_IO, "%s is in the way: it is no regular file; move it, or pull into another folder", j->f.final_path);
    int64_t mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    bool same = r->hash_kind ? was && strcmp(was->hash, r->hash) == 0 : p->list.commit[0] && strcmp(p->old.commit, p->list.commit) == 0;
    bool known = was && was->size == r->size && was->mtime_ns == mtime_ns && same;
    if (st.st_size == r->size && known && !(p->o->verify && r->hash_kind)) j->f.state = SH_PFILE_HAVE;
    else if (st.st_size == r->size && r->hash_kind) j->f.state = SH_PFILE_VERIFY;
  }
  if (j->f.state == SH_PFILE_VERIFY) p->n_verify++;
  if (j->f.state != SH_PFILE_NEW) return SH_OK;
  int64_t on_disk = sh_pfile_on_disk(&j->f);
  p->missing += r->size > on_disk ? r->size - on_disk : 0;
  p->n_missing++;
  return SH_OK;
}

static int print_plan(pull *p, sh_error *e) {
  static const char *const states[] = {"", "  (is there, will be checked)", "", "  (is there)", ""};
  char size[32], missing[32], room_text[32];
  int64_t room = sh_file_room(p->dir);
  fprintf(stderr, "%s %s%s%.12s from %s\n", p->o->name, p->revision, p->list.commit[0] ? " = " : "", p->list.commit, p->hub.endpoint);
  for (int i = 0; i < p->n; i++)
    fprintf(stderr, "  %10s  %s%s\n", sh_format_size(p->jobs[i].f.remote->size, size), p->jobs[i].f.remote->path,
            states[p->jobs[i].f.state]);
  fprintf(stderr, "%d files, %s; to download: %d, %s", p->n, sh_format_size(p->total, size), p->n_missing,
          sh_format_size(p->missing, missing));
  if (room >= 0) fprintf(stderr, "; free: %s", sh_format_size(room, room_text));
  fprintf(stderr, "\ninto %s\n", p->dir);
  if (room < 0 || p->missing == 0 || room >= p->missing + SPARE_BYTES) return SH_OK;
  return sh_fail(e, SH_ERR_LIMIT,
                 "%s has %s free and %s are needed (and 64 MiB to spare); make room, or pull elsewhere with --local-dir or "
                 "SHENG_HOME",
                 p->dir, room_text, missing);
}

/* --- The command that goes on --------------------------------------------------------------------------------------------------------- */

static void put_word(sh_buf *b, const char *option, const char *s) {
  sh_buf_printf(b, " %s%s'", option, option[0] ? " " : "");
  for (; *s; s++)
    if (*s == '\'') sh_buf_puts(b, "'\\''");
    else sh_buf_putc(b, *s);
  sh_buf_putc(b, '\'');
}

static int mark(pull *p, sh_error *e) {
  sh_buf b;
  sh_buf_init(&b, MAX_COMMAND);
  sh_buf_printf(&b, "sheng pull %s", p->o->name);
  if (strcmp(p->hub.id, sh_pull_option_defaults.from) != 0) put_word(&b, "--from", p->hub.id);
  if (p->o->revision) put_word(&b, "--revision", p->o->revision);
  for (int i = 0; i < p->o->include.n; i++) put_word(&b, "--include", p->o->include.v[i]);
  if (p->o->local_dir) put_word(&b, "--local-dir", p->o->local_dir);
  if (b.failed) { /* patterns beyond reason */
    sh_buf_reset(&b);
    sh_buf_printf(&b, "sheng pull %s ...", p->o->name);
  }
  int rc = b.failed ? sh_fail(e, SH_ERR_NOMEM, "out of memory") : sh_pull_mark(p->dir, b.p, e);
  sh_buf_free(&b);
  return rc;
}

/* --- The end -------------------------------------------------------------------------------------------------------------------------- */

/* Files of an earlier pull that the repository no longer has: a shard of another revision beside a new index would be served wrong. One
 * that was changed here since is somebody's own and stays. */
static void remove_gone(pull *p) {
  for (int i = 0; i < p->old.n; i++) {
    const sh_pull_entry *was = &p->old.v[i];
    struct stat st;
    if (sh_hub_list_find(&p->list, was->path)) continue;
    char *path = sh_path_join(p->dir, was->path);
    if (path && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == was->size &&
        (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec == was->mtime_ns && unlink(path) == 0)
      sh_pshow_note(&p->show, "  %s  removed: the repository no longer has it", was->path);
    sh_free(path);
  }
}

static int write_manifest(pull *p, sh_error *e) {
  sh_pull_manifest m = {
      .name = p->o->name, .hub = p->hub.id, .endpoint = p->hub.endpoint, .revision = p->revision, .commit = p->list.commit};
  if (!(m.v = sh_calloc((size_t)p->n + 1, sizeof *m.v))) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  int rc = SH_OK;
  for (int i = 0; rc == SH_OK && i < p->n; i++) {
    const sh_pfile *f = &p->jobs[i].f;
    sh_pull_entry *to = &m.v[m.n++];
    *to = (sh_pull_entry){.path = f->remote->path, .size = f->remote->size};
    memcpy(to->hash, f->remote->hash, sizeof to->hash);
    rc = sh_pfile_mtime(f, &to->mtime_ns, e);
  }
  if (rc == SH_OK) rc = sh_pull_manifest_write(p->dir, &m, e);
  sh_free(m.v);
  return rc;
}

/* --- The whole ------------------------------------------------------------------------------------------------------------------------ */

static int plan(pull *p, sh_error *e) {
  int rc = sh_pull_manifest_read(p->dir, &p->old, e);
  if (rc == SH_OK) rc = make_jobs(p, e);
  for (int i = 0; rc == SH_OK && i < p->n; i++) rc = look(p, &p->jobs[i], e);
  return rc == SH_OK ? print_plan(p, e) : rc;
}

static int download(pull *p, sh_error *e) {
  const char *at = p->hub.kind == SH_HUB_HF && p->list.commit[0] ? p->list.commit : p->revision;
  sh_pload l = {
      .hub = &p->hub,
      .fetch = p->fetch,
      .name = p->o->name,
      .revision = at,
      .jobs = p->jobs,
      .n = p->n,
      .connections = (int)p->o->jobs,
      .retries = (int)p->o->retries,
      .show = &p->show,
      .stop = &stop,
  };
  int64_t start = sh_now_ns();
  int rc = p->n_missing || p->n_verify ? mark(p, e) : SH_OK;
  sh_pshow_init(&p->show);
  if (rc == SH_OK) rc = sh_pload_run(&l, e);
  if (rc == SH_OK) remove_gone(p);
  if (rc == SH_OK) fprintf(stderr, "done in %.1f s\n", (double)(sh_now_ns() - start) / 1e9);
  return rc == SH_OK ? write_manifest(p, e) : rc;
}

static int run(pull *p, sh_error *e) {
  int rc = open_dir(p, e);
  if (rc == SH_OK) rc = open_hub(p, e);
  if (rc == SH_OK) rc = sh_hub_list_files(&p->hub, p->fetch, p->o->name, p->revision, &p->list, e);
  if (rc == SH_OK && !p->o->dry_run) rc = sh_pull_lock(p->dir, &stop, &p->lock_fd, e);
  if (rc == SH_OK) rc = plan(p, e);
  if (rc == SH_OK && !p->o->dry_run) rc = download(p, e);
  return rc;
}

static void on_signal(int sig) { stop = sig; }

/* Catches what asks the program to end, unless it is ignored (nohup). */
static void catch_signals(struct sigaction was[3], bool on) {
  static const int sigs[3] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < 3; i++) {
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&sa.sa_mask);
    if (!on) sigaction(sigs[i], &was[i], NULL);
    else if (sigaction(sigs[i], NULL, &was[i]) == 0 && was[i].sa_handler != SIG_IGN) sigaction(sigs[i], &sa, NULL);
  }
}

int sh_pull_run(const sh_pull_options *o, char **path, sh_error *e) {
  struct sigaction was[3];
  pull p = {.o = o, .lock_fd = -1};
  *path = NULL;
  if (!sh_hub_name_ok(o->name))
    return sh_fail(e, SH_ERR_ARG, "'%s' is no name of a model; it is written OWNER/NAME, as on the hub's page (another hub: --from)",
                   o->name);
  stop = 0;
  catch_signals(was, true);
  int rc = run(&p, e);
  for (int i = 0; i < p.n; i++) sh_pjob_free(&p.jobs[i]);
  sh_pull_unlock(p.dir, p.lock_fd, rc == SH_OK);
  catch_signals(was, false);
  if (rc == SH_OK) {
    *path = p.dir;
    p.dir = NULL;
  }
  sh_free(p.jobs);
  sh_free(p.dir);
  sh_free(p.hub.endpoint);
  sh_hub_list_free(&p.list);
  sh_pull_manifest_free(&p.old);
  sh_fetch_close(p.fetch);
  return rc;
}
