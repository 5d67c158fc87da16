/* The download loop. Main thread; one loop moves transfers, hashing and the progress bar.
 *
 * A connection ("slot") takes the next missing part of the first file that can use one. Of a file with several parts one part is asked for
 * first: its answer tells whether the server honours Range (206). If it does, other slots join. If it does not (200), that same transfer
 * becomes the whole file, from its first byte on, and the file keeps to one connection. A part goes on where it stopped after a failure.
 *
 * Failures are counted per file and between bytes: transfers that fail together (the network went away) count once, and the count starts
 * anew when something came. A wait that the server asks for holds all slots, as limits are per client and not per file. Bytes that are not
 * what the hub lists (wrong length, wrong checksum) restart the file once; the second time they end the pull.
 *
 * Hashing has its turn in the loop, a few MB at a time, so that no transfer starves. Refused: threads (see ops/fetch), and splitting a file
 * evenly over the connections (the slowest one would decide; small parts even out, and a cut loses little). */
#include "ops/pull_load.h"

#include "base/pool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HASH_BUDGET = 4 << 20, PROGRESS_BYTES = 65536, POLL_MS = 100, MAX_SPOILED = 1 };

typedef enum verdict { NONE, PASSING, SPOILED, BROKEN } verdict; /* BROKEN: this machine, for example a full disk */

typedef struct slot {
  sh_xfer x;
  sh_pjob *job; /* NULL: idle */
  int part;
  int64_t pos, end; /* next byte to come, and the one after the last that is wanted */
  int64_t came;     /* bytes */
  int64_t start_ns;
  bool stream;       /* the whole file over this connection, from a server without ranges */
  bool from_storage; /* the request went to the job's storage_url */
  verdict verdict;   /* why a callback aborted */
  struct loop *loop;
} slot;

typedef struct loop {
  const sh_pload *l;
  slot *slots; /* [l->connections] */
  int64_t received, total, hold_until_ns;
  sh_error *e;
} loop;

void sh_pjob_free(sh_pjob *j) {
  sh_pfile_free(&j->f);
  sh_free(j->storage_url);
  j->storage_url = NULL;
}

/* --- What an answer says ------------------------------------------------------------------------------------------------------------- */

static int give_up(slot *s, verdict v, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int give_up(slot *s, verdict v, const char *fmt, ...) {
  char text[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  s->verdict = v;
  return sh_fail(&s->x.error, SH_ERR_FORMAT, "%s", text);
}

static int wrong_length(slot *s, int64_t found) {
  return give_up(s, SPOILED, "the server's file has %lld bytes, the hub lists %lld", (long long)found, (long long)s->job->f.remote->size);
}

/* Without a hash the ETag is what tells that all parts are of the same bytes. */
static int check_etag(slot *s) {
  sh_pfile *f = &s->job->f;
  if (f->remote->hash_kind || !s->x.etag[0] || strcmp(f->etag, s->x.etag) == 0) return 0;
  if (f->etag[0]) return give_up(s, SPOILED, "the file changed at the hub during the pull");
  if (sh_pfile_set_etag(f, s->x.etag, &s->x.error) == SH_OK) return 0;
  s->verdict = BROKEN;
  return -1;
}

/* 200 to a request for a part: this transfer becomes the whole file. Where that throws bytes away it is not done at the first such answer:
 * of several servers behind one name, one may be odd. */
static int become_stream(slot *s) {
  sh_pjob *j = s->job;
  bool loses = sh_pfile_got(&j->f) > 0, patient = j->attempts < 2 && j->attempts < s->loop->l->retries;
  if (j->active > 1 || (loses && patient)) return give_up(s, PASSING, "the server answered a request for a part with the whole file");
  j->ranges = SH_PRANGES_NO;
  if (loses && sh_pfile_restart(&j->f, &s->x.error) != SH_OK) {
    s->verdict = BROKEN;
    return -1;
  }
  s->stream = true;
  s->part = 0;
  s->pos = 0;
  s->end = j->f.remote->size;
  return 0;
}

static int on_head(sh_xfer *x) {
  slot *s = x->ctx;
  sh_pjob *j = s->job;
  int64_t size = j->f.remote->size;
  if (x->status == 206) {
    if (x->to == 0 || x->range_from != s->pos) return give_up(s, PASSING, "the server sent another part than the one asked for");
    if (x->range_total >= 0 && x->range_total != size) return wrong_length(s, x->range_total);
    j->ranges = SH_PRANGES_YES;
  } else {
    if (x->length >= 0 && x->length != size) return wrong_length(s, x->length);
    if (x->to > 0 && become_stream(s) != 0) return -1;
  }
  if (x->redirected && !j->storage_url) j->storage_url = sh_strdup(x->url); /* without memory for it: the hub is asked each time */
  return check_etag(s);
}

static int on_data(sh_xfer *x, const char *p, size_t n) {
  slot *s = x->ctx;
  size_t fits = (int64_t)n > s->end - s->pos ? (size_t)(s->end - s->pos) : n;
  if (sh_pfile_write(&s->job->f, s->pos, p, fits, &x->error) != SH_OK) {
    s->verdict = BROKEN;
    return -1;
  }
  s->pos += (int64_t)fits;
  s->came += (int64_t)fits;
  s->loop->received += (int64_t)fits;
  if (s->came >= PROGRESS_BYTES && !s->stream) s->job->attempts = 0; /* a stream that is cut starts again: that is no progress */
  if (fits == n) return 0;
  /* the part is whole and the server goes on; without ranges that is another file than the one listed */
  return x->status == 206 ? give_up(s, PASSING, "more bytes than asked for") : wrong_length(s, s->pos + (int64_t)(n - fits));
}

/* --- Starting transfers --------------------------------------------------------------------------------------------------------------- */

static bool in_flight(const loop *p, const sh_pjob *j, int part) {
  for (int i = 0; i < p->l->connections; i++)
    if (p->slots[i].job == j && p->slots[i].part == part) return true;
  return false;
}

/* The part of this job that a free slot should take; -1: none now. A job whose part file is not open yet is opened. */
static int next_part(loop *p, sh_pjob *j, int64_t now, sh_error *e, int *rc) {
  if (j->f.state == SH_PFILE_NEW && (*rc = sh_pfile_load(&j->f, e)) != SH_OK) return -1;
  if (j->f.state != SH_PFILE_LOAD || now < j->not_before_ns || (j->active && j->ranges != SH_PRANGES_YES)) return -1;
  int part = sh_pfile_missing(&j->f, 0);
  while (part < j->f.n_parts && in_flight(p, j, part)) part = sh_pfile_missing(&j->f, part + 1);
  return part < j->f.n_parts ? part : -1;
}

static int start(loop *p, slot *s, sh_pjob *j, int part) {
  const sh_pfile *f = &j->f;
  *s = (slot){.job = j, .part = part, .loop = p, .start_ns = sh_now_ns()};
  s->pos = part * f->part_size + f->got[part];
  s->end = part * f->part_size + sh_pfile_part_len(f, part);
  s->stream = j->ranges == SH_PRANGES_NO;
  if (s->stream) s->end = f->remote->size;
  bool everything = s->pos == 0 && s->end == f->remote->size;
  s->x = (sh_xfer){.from = s->pos, .to = everything ? 0 : s->end, .head = on_head, .data = on_data, .ctx = s};
  s->from_storage = j->storage_url != NULL;
  char *url = s->from_storage ? NULL : sh_hub_file_url(p->l->hub, p->l->name, p->l->revision, f->remote->path);
  int rc = s->from_storage || url ? sh_fetch_start(p->l->fetch, &s->x, s->from_storage ? j->storage_url : url, p->e)
                                  : sh_fail(p->e, SH_ERR_NOMEM, "out of memory");
  sh_free(url);
  if (rc == SH_OK) j->active++;
  else s->job = NULL;
  return rc;
}

static int fill_slots(loop *p) {
  int64_t now = sh_now_ns();
  if (now < p->hold_until_ns) return SH_OK;
  int j = 0, rc = SH_OK;
  for (int i = 0; i < p->l->connections; i++) {
    if (p->slots[i].job) continue;
    int part = -1;
    for (; j < p->l->n && part < 0 && rc == SH_OK; j++)
      if ((part = next_part(p, &p->l->jobs[j], now, p->e, &rc)) >= 0) break;
    if (rc != SH_OK || part < 0) return rc;
    if ((rc = start(p, &p->slots[i], &p->l->jobs[j], part)) != SH_OK) return rc;
  }
  return SH_OK;
}

/* --- Ending transfers ----------------------------------------------------------------------------------------------------------------- */

/* The slot is free again; how far its part came is journalled, so that a cut at any later time does not lose it. */
static int release(slot *s, sh_error *e) {
  sh_pjob *j = s->job;
  int rc = SH_OK;
  if (!j) return SH_OK;
  if (s->came && !s->stream && s->verdict != SPOILED && j->f.journal_fd >= 0) rc = sh_pfile_note(&j->f, s->part, e);
  sh_xfer_stop(&s->x);
  j->active--;
  s->job = NULL;
  return rc;
}

static void drop_storage_url(sh_pjob *j) {
  sh_free(j->storage_url);
  j->storage_url = NULL;
}

/* A failure that may pass. */
static int retry_later(loop *p, sh_pjob *j, const slot *s, const sh_error *why, int64_t retry_after_s) {
  int64_t now = sh_now_ns();
  const char *path = j->f.remote->path;
  if (s->start_ns >= j->fail_ns) { /* else it failed together with one that is counted */
    j->attempts++;
    if (j->attempts > p->l->retries)
      return sh_fail(p->e, why->code,
                     "%s: %s; given up after %d tries without progress, what was downloaded is kept: run the same command "
                     "again to go on",
                     path, why->text, j->attempts);
    int64_t wait = sh_fetch_backoff_ms(j->attempts, retry_after_s);
    j->fail_ns = now;
    j->not_before_ns = now + wait * 1000000;
    sh_pshow_note(p->l->show, "%s: %s; trying again in %.1f s (%d of %d)", path, why->text, (double)wait / 1000, j->attempts,
                  p->l->retries);
  }
  if (retry_after_s > 0 && now + retry_after_s * 1000000000 > p->hold_until_ns) p->hold_until_ns = now + retry_after_s * 1000000000;
  if (j->ranges == SH_PRANGES_NO) return sh_pfile_restart(&j->f, p->e); /* nothing can go on in the middle */
  return SH_OK;
}

/* What came is not what the hub lists. */
static int spoiled(loop *p, sh_pjob *j, const char *why) {
  const char *path = j->f.remote->path;
  int rc = SH_OK;
  for (int i = 0; i < p->l->connections && rc == SH_OK; i++)
    if (p->slots[i].job == j) {
      p->slots[i].verdict = SPOILED;
      rc = release(&p->slots[i], p->e);
    }
  if (rc == SH_OK) rc = sh_pfile_restart(&j->f, p->e);
  if (rc != SH_OK) return rc;
  drop_storage_url(j);
  if (j->ranges == SH_PRANGES_NO) j->ranges = SH_PRANGES_UNKNOWN;
  if (++j->spoiled <= MAX_SPOILED) {
    sh_pshow_note(p->l->show, "%s: %s; downloading it again", path, why);
    return SH_OK;
  }
  unlink(j->f.part_path);
  unlink(j->f.journal_path);
  return sh_fail(p->e, SH_ERR_FORMAT,
                 "%s: %s, and so a second time; what came was deleted. The hub, or a mirror or proxy on the way, serves "
                 "wrong bytes: try later, without the proxy, or --from another hub",
                 path, why);
}

/* The server refused. An address at a storage host is signed for a while and may just be too old; the hub's own word is final. */
static int refused(loop *p, slot *s) {
  sh_pjob *j = s->job;
  sh_xfer *x = &s->x;
  const sh_hub *h = p->l->hub;
  if (x->status == 416) {
    sh_error why;
    sh_fail(&why, SH_ERR_FORMAT, "the server says that the file is shorter than the hub lists");
    return spoiled(p, j, why.text);
  }
  if (!s->from_storage && !x->redirected)
    return sh_hub_explain(h, p->l->name, p->l->revision, j->f.remote->path, x->status, x->error_code, x->message, p->e);
  drop_storage_url(j);
  int rc = retry_later(p, j, s, &x->error, -1);
  if (s->from_storage) j->not_before_ns = 0;
  return rc;
}

static int ended(loop *p, slot *s) {
  sh_pjob *j = s->job;
  sh_xfer *x = &s->x;
  bool whole = s->pos == s->end;
  if (x->end == SH_XFER_OK && !whole) {
    x->end = SH_XFER_RETRY;
    sh_fail(&x->error, SH_ERR_IO, "the server ended %lld bytes early", (long long)(s->end - s->pos));
  }
  if (x->end == SH_XFER_ABORTED && s->verdict == PASSING) x->end = whole && s->came ? SH_XFER_OK : SH_XFER_RETRY;
  if (x->end == SH_XFER_RETRY && s->from_storage) drop_storage_url(j);
  switch (x->end) {
  case SH_XFER_OK: return SH_OK;
  case SH_XFER_RETRY: return retry_later(p, j, s, &x->error, x->retry_after_s);
  case SH_XFER_REFUSED: return refused(p, s);
  case SH_XFER_ABORTED:
    if (s->verdict == SPOILED) {
      sh_error why = x->error; /* spoiled() ends this transfer too */
      return spoiled(p, j, why.text);
    }
    break;
  case SH_XFER_FAILED: break;
  }
  *p->e = x->error;
  return sh_fail_in(p->e, x->error.code, "%s", j->f.remote->path);
}

static int take_ended(loop *p, int poll_ms) {
  int rc = SH_OK;
  sh_xfer *x;
  while (rc == SH_OK && (x = sh_fetch_poll(p->l->fetch, poll_ms))) {
    slot *s = x->ctx;
    rc = ended(p, s);
    int noted = release(s, p->e);
    if (rc == SH_OK) rc = noted;
    poll_ms = 0;
  }
  return rc;
}

/* --- Checking and finishing files ----------------------------------------------------------------------------------------------------- */

static int finish_verify(loop *p, sh_pjob *j) {
  if (sh_pfile_right(&j->f)) {
    j->f.state = SH_PFILE_HAVE;
    sh_pfile_close(&j->f);
    return SH_OK;
  }
  sh_pshow_note(p->l->show, "%s: the file that is there has another checksum than the hub lists; downloading it", j->f.remote->path);
  return sh_pfile_load(&j->f, p->e);
}

static int finish_load(loop *p, sh_pjob *j) {
  if (!sh_pfile_right(&j->f)) return spoiled(p, j, "the checksum is not the one the hub lists");
  int rc = sh_pfile_finish(&j->f, p->e);
  if (rc == SH_OK && j->f.remote->size >= 1 << 20) sh_pshow_note(p->l->show, "  %s  done", j->f.remote->path);
  return rc;
}

/* A turn of hashing for the first file that has something to hash; files that are whole and hashed are finished. *busy: there is more. */
static int hash_turn(loop *p, bool *busy) {
  *busy = false;
  for (int i = 0; i < p->l->n && !*busy; i++) {
    sh_pjob *j = &p->l->jobs[i];
    sh_pfile *f = &j->f;
    int rc = SH_OK;
    if (f->state != SH_PFILE_VERIFY && f->state != SH_PFILE_LOAD) continue;
    if (f->state == SH_PFILE_VERIFY && f->fd < 0) rc = sh_pfile_verify(f, p->e);
    if (rc == SH_OK) rc = sh_pfile_hash(f, HASH_BUDGET, busy, p->e);
    if (rc == SH_OK && !*busy && f->state == SH_PFILE_VERIFY) rc = finish_verify(p, j);
    else if (rc == SH_OK && !*busy && j->active == 0 && sh_pfile_whole(f)) rc = finish_load(p, j);
    if (rc != SH_OK) return rc;
  }
  return SH_OK;
}

/* --- The loop ------------------------------------------------------------------------------------------------------------------------- */

static bool all_done(const loop *p) {
  for (int i = 0; i < p->l->n; i++)
    if (p->l->jobs[i].f.state != SH_PFILE_HAVE && p->l->jobs[i].f.state != SH_PFILE_DONE) return false;
  return true;
}

static void show(loop *p) {
  if (!sh_pshow_due(p->l->show)) return;
  int64_t done = 0;
  const char *what = "";
  for (int i = 0; i < p->l->n; i++) {
    const sh_pfile *f = &p->l->jobs[i].f;
    switch (f->state) {
    case SH_PFILE_NEW: break;
    case SH_PFILE_VERIFY: done += f->hashed; break;
    case SH_PFILE_LOAD: done += sh_pfile_got(f); break;
    case SH_PFILE_HAVE:
    case SH_PFILE_DONE: done += f->remote->size; break;
    }
    if (!what[0] && (f->state == SH_PFILE_LOAD || f->state == SH_PFILE_VERIFY)) what = f->remote->path;
  }
  sh_pshow_progress(p->l->show, what, done, p->total, p->received);
}

int sh_pload_run(const sh_pload *l, sh_error *e) {
  loop p = {.l = l, .e = e};
  int rc = SH_OK;
  sh_error late;
  if (!(p.slots = sh_calloc((size_t)l->connections, sizeof *p.slots))) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (int i = 0; i < l->n; i++) p.total += l->jobs[i].f.remote->size;
  while (rc == SH_OK && !all_done(&p)) {
    bool hashing = false;
    if (*l->stop) rc = sh_fail(e, SH_ERR_CANCELLED, "interrupted; what was downloaded is kept: run the same command again to go on");
    if (rc == SH_OK) rc = fill_slots(&p);
    if (rc == SH_OK) rc = hash_turn(&p, &hashing);
    if (rc == SH_OK) rc = take_ended(&p, hashing ? 0 : POLL_MS);
    if (rc == SH_OK) show(&p);
  }
  for (int i = 0; i < l->connections; i++) release(&p.slots[i], &late);
  sh_free(p.slots);
  sh_pshow_end(l->show);
  return rc;
}
