/* Quantized weights as views: which parts are rewritten, where they go, and who does it.
 *
 * Called at load by one thread, which hands the work to a thread pool in items of 128 rows of one matrix. A module is examined first (are
 * its zero points all in the middle, are its columns in order): only then is the size of everything known, and a symmetric GPTQ checkpoint
 * gets the faster kernels without zero points. An item of panels whose source does not lie in rows passes through rows in its worker's
 * memory. In memory an item writes to its final place; for the cache file it fills a buffer of its
 * worker and writes that at the place in the file. Writing through a shared map was refused: a disk that fills up would be a SIGBUS, and
 * the faults cost more than the copy.
 *
 * The sources are read by base/prefetch.c while the workers run, where memory has room for them and for what is made of them. Where it has
 * not, pages are asked for a little ahead of the workers. They are given back at the end, so that a checkpoint of the size of memory does
 * not have to be resident twice. */
#include "formats/repack_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#define AHEAD ((size_t)128 << 20) /* bytes of source asked for ahead of the workers */
#define SAY_EVERY 5000000000ll    /* ns between progress lines */

int sh_repack_new(sh_repack **out, const sh_ckpt *ck, const sh_repack_opts *o, sh_error *e) {
  *out = sh_calloc(1, sizeof **out);
  if (!*out) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  (*out)->ck = ck;
  if (o) (*out)->o = *o;
  return 0;
}

void sh_repack_free(sh_repack *r) {
  if (!r) return;
  sh_rp_read_end(r);
  sh_map_close(&r->map);
  sh_free(r->memory);
  sh_free(r->jobs);
  sh_free(r);
}

sh_repack_where sh_repack_result(const sh_repack *r) { return r->where; }
size_t sh_repack_bytes(const sh_repack *r) { return r->bytes; }

bool sh_repack_in_memory(const sh_repack *r, const void *p) {
  const uint8_t *image = !r ? NULL : r->memory ? r->memory : r->copied ? r->map.p : NULL;
  return image && (uintptr_t)p - (uintptr_t)image < r->bytes;
}

static const int64_t SPARE = (int64_t)1 << 30; /* bytes of memory that a copy of the cache leaves to others */

/* --- Jobs */

/* The rows of a module; the part that lies in the file as rows, the run adds the rest. */
static sh_wview rows_of(const sh_qmodule *m) {
  size_t groups = (size_t)(m->cols / m->group);
  return (sh_wview){.type = m->layout == SH_QL_I8 ? SH_I8
                            : m->bits == 8        ? SH_U8
                                                  : SH_I4,
                    .rows = m->rows,
                    .cols = m->cols,
                    .data = m->weight->data,
                    .row_bytes = sh_rp_row_bytes(m),
                    .name = m->weight->name,
                    .group = (int)m->group,
                    .scale_rows = 1,
                    .scale_type = m->scales->type,
                    .scales = m->scales->data,
                    .scale_row_bytes = groups * (size_t)sh_dtype_block_bytes(m->scales->type)};
}

static bool is_module(const sh_rp_job *j) { return j->m.weight != NULL; }

static int add_job(sh_repack *r, const sh_rp_job *j, sh_error *e) {
  if (r->n_jobs == r->cap_jobs) {
    int cap = r->cap_jobs ? 2 * r->cap_jobs : 256;
    sh_rp_job *p = sh_realloc(r->jobs, (size_t)cap * sizeof *p);
    if (!p) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d matrices to repack", cap);
    r->jobs = p;
    r->cap_jobs = cap;
  }
  r->jobs[r->n_jobs++] = *j;
  return 0;
}

int sh_repack_add(sh_repack *r, const sh_qmodule *m, sh_wview *view, unsigned how, sh_error *e) {
  sh_rp_job j = {.m = *m, .rows = rows_of(m), .view = view, .how = how};
  if (m->layout == SH_QL_I8 || (m->layout == SH_QL_ROWS && !m->zeros && !m->order))
    return sh_repack_add_matrix(r, &j.rows, SH_HEAD_AUTO, view, how, e);
  j.panels = r->o.panels && !(how & SH_REPACK_ROWS) && sh_panel_plan(&j.rows, SH_HEAD_AUTO, &j.panel);
  *view = j.panels ? j.panel : j.rows;
  return add_job(r, &j, e);
}

int sh_repack_add_matrix(sh_repack *r, const sh_wview *src, sh_head head, sh_wview *view, unsigned how, sh_error *e) {
  sh_rp_job j = {.rows = *src, .head = head, .panels = true, .view = view, .how = how};
  *view = *src;
  if (!r->o.panels || (how & SH_REPACK_ROWS) || !sh_panel_plan(&j.rows, head, &j.panel)) return 0;
  *view = j.panel;
  return add_job(r, &j, e);
}

bool sh_rp_flags_fit(const sh_rp_job *j) {
  const sh_qmodule *m = &j->m;
  bool order = j->flags & SH_RP_ORDER, data = j->flags & SH_RP_DATA, scales = j->flags & SH_RP_SCALES, zeros = j->flags & SH_RP_ZEROS;
  if (j->flags & ~(SH_RP_DATA | SH_RP_SCALES | SH_RP_ZEROS | SH_RP_ORDER | SH_RP_PANELS)) return false;
  if ((order && !m->order) || (zeros && !m->zeros)) return false;
  if (j->panels != !!(j->flags & SH_RP_PANELS)) return false;
  if (j->panels) return data && !scales;
  return m->layout == SH_QL_ROWS ? !scales && data == order : data && scales;
}

/* --- Places */

static size_t groups_of(const sh_rp_job *j) { return is_module(j) ? (size_t)(j->m.cols / j->m.group) : 1; }
static size_t data_row(const sh_rp_job *j) { return j->rows.row_bytes; }
static size_t scales_row(const sh_rp_job *j) { return j->rows.scale_row_bytes; }
static size_t panel_bytes(const sh_wview *v) { return v->row_bytes * SH_PANEL_ROWS; }

/* The form of a job's panels with or without zero points that are stored. */
static sh_wview panels_of(const sh_rp_job *j, bool zeros) {
  sh_wview form = j->panel, rows = j->rows;
  if (!is_module(j)) return form;
  rows.zeros = zeros ? j->m.zeros->data : NULL;    /* whether, not where */
  (void)sh_panel_plan(&rows, SH_HEAD_AUTO, &form); /* as when it was added: zero points refuse nothing */
  return form;
}

/* Takes `rows` rows of row_bytes at the next aligned place. What a part holds was found in the file in about as many bytes (zero points in
 * half; a panel of one row in an eighth), so only the sum of very many could overflow. */
static size_t take(size_t *at, int64_t rows, size_t row_bytes, bool *over) {
  size_t bytes, start = 0;
  if (__builtin_add_overflow(*at, SH_RP_ALIGN - 1, &start)) *over = true;
  start &= ~(size_t)(SH_RP_ALIGN - 1);
  if (__builtin_mul_overflow((size_t)rows, row_bytes, &bytes) || __builtin_add_overflow(start, bytes, at)) *over = true;
  return start;
}

int sh_rp_place(sh_repack *r, size_t head_bytes, sh_error *e) {
  size_t at = head_bytes;
  bool over = false;
  int64_t items = 0;
  r->head_bytes = head_bytes;
  for (int i = 0; i < r->n_jobs; i++) {
    sh_rp_job *j = &r->jobs[i];
    if (j->flags & SH_RP_ORDER) j->order_at = take(&at, 1, (size_t)j->m.cols * sizeof(int32_t), &over);
  }
  r->orders_end = at;
  for (int i = 0; i < r->n_jobs; i++) {
    sh_rp_job *j = &r->jobs[i];
    j->first_item = items;
    if (j->flags) items += (j->rows.rows + SH_RP_ROWS - 1) / SH_RP_ROWS;
    if (j->flags & SH_RP_PANELS) {
      j->panel = panels_of(j, j->flags & SH_RP_ZEROS);
      j->data_at = take(&at, sh_panel_count(j->panel.rows), panel_bytes(&j->panel), &over);
      continue;
    }
    if (j->flags & SH_RP_DATA) j->data_at = take(&at, j->m.rows, data_row(j), &over);
    if (j->flags & SH_RP_SCALES) j->scales_at = take(&at, j->m.rows, scales_row(j), &over);
    if (j->flags & SH_RP_ZEROS) j->zeros_at = take(&at, j->m.rows, groups_of(j), &over);
  }
  r->bytes = at;
  r->n_items = items;
  if (over || at > PTRDIFF_MAX || items > INT_MAX)
    return sh_fail(e, SH_ERR_LIMIT, "%d matrices to repack are too large to address", r->n_jobs);
  return 0;
}

/* The stored parts that a job reads, as far as it replaces them: data, scales, zero points, order. Before it was examined (known false):
 * at most. Returns how many. */
static int sources_of(const sh_rp_job *j, bool known, sh_span v[4]) {
  const sh_qmodule *m = &j->m;
  int n = 0;
  if (!is_module(j)) {
    v[n++] = (sh_span){j->rows.data, (size_t)j->rows.rows * j->rows.row_bytes};
    if (j->rows.scales) v[n++] = (sh_span){j->rows.scales, (size_t)j->rows.rows * j->rows.scale_row_bytes};
    return n;
  }
  bool moved = m->layout != SH_QL_ROWS || m->order;
  bool data = j->panels || (known ? j->flags & SH_RP_DATA : moved), scales = j->panels || (known ? j->flags & SH_RP_SCALES : moved);
  const sh_ftensor *const parts[] = {data ? m->weight : NULL, scales ? m->scales : NULL, m->zeros, m->order};
  for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
    if (parts[k]) v[n++] = (sh_span){parts[k]->data, parts[k]->bytes};
  return n;
}

void sh_repack_count(const sh_repack *r, size_t *rewritten, size_t *replaced) {
  *rewritten = *replaced = 0;
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    size_t rows = (size_t)j->rows.rows;
    sh_span v[4];
    if (j->how & SH_REPACK_ASIDE) continue;
    if (j->flags & SH_RP_ORDER) *rewritten += (size_t)j->m.cols * sizeof(int32_t);
    if (j->flags & SH_RP_PANELS) {
      *rewritten += (size_t)sh_panel_count(j->panel.rows) * panel_bytes(&j->panel);
    } else {
      if (j->flags & SH_RP_DATA) *rewritten += rows * data_row(j);
      if (j->flags & SH_RP_SCALES) *rewritten += rows * scales_row(j);
      if (j->flags & SH_RP_ZEROS) *rewritten += rows * groups_of(j); /* or they are in the middle, and the kernels know */
    }
    int n = j->how & SH_REPACK_SHARED ? 0 : sources_of(j, true, v);
    while (n > 0) *replaced += v[--n].n;
  }
}

/* image NULL: a dry run. */
static void finish_views(sh_repack *r, const uint8_t *image) {
  for (int i = 0; i < r->n_jobs; i++) {
    sh_rp_job *j = &r->jobs[i];
    sh_wview *v = j->view;
    bool panels = j->flags & SH_RP_PANELS;
    if (panels) *v = j->panel;
    if (!image) continue;
    if (j->flags & SH_RP_DATA) v->data = image + j->data_at;
    if (j->flags & SH_RP_SCALES) v->scales = image + j->scales_at;
    if (j->flags & SH_RP_ZEROS && !panels) {
      v->zeros = image + j->zeros_at;
      v->zero_row_bytes = groups_of(j);
    }
    if (j->flags & SH_RP_ORDER) v->perm = (const int32_t *)(const void *)(image + j->order_at);
  }
}

/* --- Examining: what the values say */

typedef struct examine_job {
  sh_repack *r;
  int64_t **seen;  /* [workers][most groups] */
  sh_error *error; /* [workers] */
  int *bad;        /* [workers] the lowest job that failed, or n_jobs */
} examine_job;

static void examine_item(void *ctx, int item, int worker) {
  examine_job *x = ctx;
  sh_rp_job *j = &x->r->jobs[item];
  const sh_qmodule *m = &j->m;
  bool trivial = true;
  if (j->panels) j->flags = SH_RP_DATA | SH_RP_PANELS;
  else j->flags = m->layout == SH_QL_ROWS ? 0 : SH_RP_DATA | SH_RP_SCALES;
  if (!is_module(j)) return;
  sh_error e = {0};
  int rc = m->order ? sh_rp_order(m, NULL, x->seen[worker], &trivial, &e) : 0;
  if (!rc && m->zeros) rc = sh_rp_check_zeros(m, &e);
  if (rc && item < x->bad[worker]) {
    x->bad[worker] = item;
    x->error[worker] = e;
  }
  if (!trivial) j->flags |= SH_RP_ORDER | SH_RP_DATA;
  if (m->zeros && !sh_rp_zeros_are_middle(m)) j->flags |= SH_RP_ZEROS;
}

static int64_t most_groups(const sh_repack *r) {
  int64_t most = 1;
  for (int i = 0; i < r->n_jobs; i++) {
    int64_t n = (int64_t)groups_of(&r->jobs[i]);
    if (n > most) most = n;
  }
  return most;
}

int sh_rp_examine(sh_repack *r, sh_pool *pool, sh_error *e) {
  int n = sh_pool_size(pool), rc = 0, first = r->n_jobs, who = 0;
  size_t most = (size_t)most_groups(r);
  if (r->examined) return 0;
  examine_job x = {.r = r,
                   .seen = sh_calloc((size_t)n, sizeof *x.seen),
                   .error = sh_calloc((size_t)n, sizeof *x.error),
                   .bad = sh_calloc((size_t)n, sizeof *x.bad)};
  int64_t *counters = sh_calloc((size_t)n * most, sizeof *counters);
  if (!x.seen || !x.error || !x.bad || !counters) {
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for %d matrices to repack", r->n_jobs);
    goto done;
  }
  for (int i = 0; i < n; i++) {
    x.seen[i] = counters + (size_t)i * most;
    x.bad[i] = r->n_jobs;
  }
  sh_pool_run(pool, examine_item, &x, r->n_jobs);
  for (int i = 0; i < n; i++) { /* the first in order of the model, whichever thread met it */
    if (x.bad[i] >= first) continue;
    first = x.bad[i];
    who = i;
  }
  if (first < r->n_jobs) rc = sh_fail(e, x.error[who].code, "%s: %s", sh_ckpt_path(r->ck), x.error[who].text);
  r->examined = !rc;
done:
  sh_free(counters);
  sh_free(x.seen);
  sh_free(x.error);
  sh_free(x.bad);
  return rc;
}

/* --- Filling */

typedef struct fill_job {
  sh_repack *r;
  uint8_t *memory; /* the image; NULL: the file */
  int fd;
  const uint8_t *orders; /* bytes [head, orders_end) of the image */
  uint32_t **scratch;    /* [workers] */
  uint8_t **rows;        /* [workers]; an item's rows on their way to panels: data, then scales, then zero points */
  uint8_t **buffer;      /* [workers]; the file's parts of an item */
  atomic_int error;      /* errno of the first failed write */
  atomic_int asked;      /* jobs whose source was asked for */
  atomic_llong done;     /* bytes */
  int64_t said;          /* worker 0's: when it last spoke */
} fill_job;

/* Bytes [at, at + n) of the image. */
static void put(fill_job *f, size_t at, const uint8_t *p, size_t n) {
  while (n && !atomic_load(&f->error)) {
    ssize_t w = pwrite(f->fd, p, n, (off_t)at);
    if (w < 0 && errno == EINTR) continue;
    if (w <= 0) {
      int none = 0;
      atomic_compare_exchange_strong(&f->error, &none, w < 0 ? errno : ENOSPC);
      return;
    }
    p += w;
    at += (size_t)w;
    n -= (size_t)w;
  }
}

/* Tells the system about pages of a part: whole ones only, and only advice. */
static void advise(sh_span part, int advice) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)part.p, from = (at + page - 1) & ~(page - 1),
            to = (at + part.n) & ~(page - 1);
  if (to > from) (void)madvise((void *)from, to - from, advice);
}

/* The job of an item: the last one that begins at or before it. */
static int job_of(const sh_repack *r, int64_t item) {
  int lo = 0, hi = r->n_jobs - 1;
  while (lo < hi) {
    int mid = lo + (hi - lo + 1) / 2;
    if (r->jobs[mid].first_item <= item) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

static void ask_ahead(fill_job *f, const sh_rp_job *now) {
  for (int i = atomic_load(&f->asked); i < f->r->n_jobs; i = atomic_load(&f->asked)) {
    const sh_rp_job *j = &f->r->jobs[i];
    if (j->data_at > now->data_at && j->data_at - now->data_at > AHEAD) return;
    if (!atomic_compare_exchange_strong(&f->asked, &i, i + 1)) continue;
    sh_span v[4];
    if ((j->flags & SH_RP_DATA) && sources_of(j, true, v)) advise(v[0], MADV_WILLNEED);
  }
}

static void say_progress(fill_job *f, int worker) {
  if (worker != 0) return;
  int64_t now = sh_now_ns();
  if (!f->said) f->said = now;
  if (now - f->said < SAY_EVERY) return;
  f->said = now;
  sh_log(SH_LOG_INFO, "repacking weights: %d%%", (int)(100 * (double)atomic_load(&f->done) / (double)f->r->bytes));
}

/* Bytes [at, at + bytes) of the image are made in place or in the worker's buffer, and written. */
static uint8_t *begin_part(fill_job *f, size_t at, int worker) { return f->memory ? f->memory + at : f->buffer[worker]; }

static void end_part(fill_job *f, size_t at, size_t bytes, const uint8_t *p) {
  if (!f->memory) put(f, at, p, bytes);
  atomic_fetch_add(&f->done, (long long)bytes);
}

/* Rows [row, row + n) of a job. */
static void fill_rows(fill_job *f, const sh_rp_job *j, const int32_t *order, int64_t row, int64_t n, int worker) {
  const sh_qmodule *m = &j->m;
  const struct {
    int flag;
    size_t at, row_bytes;
  } part[3] = {
      {SH_RP_DATA, j->data_at, data_row(j)}, {SH_RP_SCALES, j->scales_at, scales_row(j)}, {SH_RP_ZEROS, j->zeros_at, groups_of(j)}};
  for (int i = 0; i < 3; i++) {
    if (!(j->flags & part[i].flag)) continue;
    size_t at = part[i].at + (size_t)row * part[i].row_bytes, bytes = (size_t)n * part[i].row_bytes;
    uint8_t *dst = begin_part(f, at, worker);
    if (i == 0) sh_rp_data(m, order, row, n, dst, f->scratch[worker]);
    else if (i == 1) sh_rp_scales(m, row, n, dst);
    else sh_rp_zeros(m, row, n, dst);
    end_part(f, at, bytes, dst);
  }
}

/* A view of rows [row, row + n), row a multiple of 8: where they lie, or brought into rows in the worker's memory. */
static sh_wview slab_of(fill_job *f, const sh_rp_job *j, const int32_t *order, int64_t row, int64_t n, int worker) {
  const sh_qmodule *m = &j->m;
  sh_wview v = j->rows;
  uint8_t *data = f->rows[worker], *scales = data + SH_RP_ROWS * data_row(j), *zeros = scales + SH_RP_ROWS * scales_row(j);
  v.rows = n;
  v.data += (size_t)row * v.row_bytes;
  if (v.scales) v.scales += (size_t)row * v.scale_row_bytes;
  if (!is_module(j)) return v;
  if (m->layout != SH_QL_ROWS) {
    sh_rp_scales(m, row, n, scales);
    v.scales = scales;
  }
  if (m->layout != SH_QL_ROWS || order) {
    sh_rp_data(m, order, row, n, data, f->scratch[worker]);
    v.data = data;
  }
  if (j->flags & SH_RP_ZEROS) {
    sh_rp_zeros(m, row, n, zeros);
    v.zeros = zeros;
    v.zero_row_bytes = groups_of(j);
  }
  return v;
}

static void fill_panels(fill_job *f, const sh_rp_job *j, const int32_t *order, int64_t row, int64_t n, int worker) {
  size_t one = panel_bytes(&j->panel), at = j->data_at + (size_t)(row / SH_PANEL_ROWS) * one;
  sh_wview slab = slab_of(f, j, order, row, n, worker), form = j->panel;
  uint8_t *dst = begin_part(f, at, worker);
  form.rows = n;
  sh_panel_make(&slab, &form, 0, sh_panel_count(n), dst);
  end_part(f, at, (size_t)sh_panel_count(n) * one, dst);
}

static void fill_item(void *ctx, int item, int worker) {
  fill_job *f = ctx;
  if (atomic_load(&f->error)) return;
  const sh_rp_job *j = &f->r->jobs[job_of(f->r, item)];
  int64_t row = (item - j->first_item) * SH_RP_ROWS, n = j->rows.rows - row < SH_RP_ROWS ? j->rows.rows - row : SH_RP_ROWS;
  const int32_t *order = NULL;
  if (j->flags & SH_RP_ORDER) order = (const int32_t *)(const void *)(f->orders + (j->order_at - f->r->head_bytes));
  if (row == 0) ask_ahead(f, j);
  if (j->flags & SH_RP_PANELS) fill_panels(f, j, order, row, n, worker);
  else fill_rows(f, j, order, row, n, worker);
  say_progress(f, worker);
}

/* All orders of columns, into memory. */
static int fill_orders(const sh_repack *r, uint8_t *orders, sh_error *e) {
  int64_t *seen = sh_calloc((size_t)most_groups(r), sizeof *seen);
  int rc = seen ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for the orders of columns");
  for (int i = 0; i < r->n_jobs && !rc; i++) {
    const sh_rp_job *j = &r->jobs[i];
    bool trivial = false;
    if (j->flags & SH_RP_ORDER) rc = sh_rp_order(&j->m, (int32_t *)(void *)(orders + (j->order_at - r->head_bytes)), seen, &trivial, e);
    if (!rc && trivial) rc = sh_fail(e, SH_ERR_IO, "%s changed while it was read", sh_ckpt_path(r->ck));
  }
  sh_free(seen);
  return rc;
}

static void widen(size_t *most, size_t n) { *most = n > *most ? n : *most; }

/* Memory of the workers, for the largest item. The pieces are zeroed: a last word that is not full leaves lines unset. */
static int take_workers(fill_job *f, int n, sh_error *e) {
  size_t scratch = 1, buffer = 1, rows = 1;
  for (int i = 0; i < f->r->n_jobs; i++) {
    const sh_rp_job *j = &f->r->jobs[i];
    size_t most = (size_t)(j->rows.rows < SH_RP_ROWS ? j->rows.rows : SH_RP_ROWS);
    if (is_module(j)) widen(&scratch, sh_rp_scratch_bytes(&j->m, j->flags & SH_RP_ORDER));
    if (!(j->flags & SH_RP_PANELS)) {
      widen(&buffer, most * (data_row(j) > scales_row(j) ? data_row(j) : scales_row(j)));
      continue;
    }
    widen(&buffer, (size_t)sh_panel_count((int64_t)most) * panel_bytes(&j->panel));
    if (is_module(j)) widen(&rows, SH_RP_ROWS * (data_row(j) + scales_row(j) + groups_of(j)));
  }
  f->scratch = sh_calloc((size_t)n, sizeof *f->scratch);
  f->rows = sh_calloc((size_t)n, sizeof *f->rows);
  f->buffer = sh_calloc((size_t)n, sizeof *f->buffer);
  bool ok = f->scratch && f->rows && f->buffer;
  for (int i = 0; i < n && ok; i++) {
    f->scratch[i] = sh_calloc(1, scratch);
    f->rows[i] = sh_calloc(1, rows);
    f->buffer[i] = f->memory ? NULL : sh_malloc(buffer);
    ok = f->scratch[i] && f->rows[i] && (f->memory || f->buffer[i]);
  }
  return ok ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for repacking weights (%zu bytes per thread)", scratch + rows + buffer);
}

static void give_workers(fill_job *f, int n) {
  for (int i = 0; i < n; i++) {
    if (f->scratch) sh_free(f->scratch[i]);
    if (f->rows) sh_free(f->rows[i]);
    if (f->buffer) sh_free(f->buffer[i]);
  }
  sh_free(f->scratch);
  sh_free(f->rows);
  sh_free(f->buffer);
}

/* The rewritten sources need not stay resident. */
static void give_sources(const sh_repack *r) {
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    sh_span v[4];
    int n = j->how & SH_REPACK_SHARED ? 0 : sources_of(j, true, v);
    while (n > 0) advise(v[--n], MADV_DONTNEED);
  }
}

int sh_rp_fill(sh_repack *r, sh_pool *pool, uint8_t *memory, int fd, sh_error *e) {
  fill_job f = {.r = r, .memory = memory, .fd = fd};
  int n = sh_pool_size(pool);
  size_t order_bytes = r->orders_end - r->head_bytes;
  uint8_t *orders = NULL;
  int rc = take_workers(&f, n, e);
  if (!rc && order_bytes) {
    uint8_t *at = memory ? memory + r->head_bytes : (orders = sh_calloc(1, order_bytes));
    rc = at ? fill_orders(r, at, e) : sh_fail(e, SH_ERR_NOMEM, "out of memory for the orders of columns");
    f.orders = at;
  }
  if (!rc && orders) put(&f, r->head_bytes, orders, order_bytes);
  if (!rc) sh_pool_run(pool, fill_item, &f, (int)r->n_items);
  int err = atomic_load(&f.error);
  if (!rc && err) rc = sh_fail(e, SH_ERR_IO, "%s", strerror(err));
  give_sources(r);
  give_workers(&f, n);
  sh_free(orders);
  return rc;
}

/* --- The run */

/* Begins to read what examining and filling will look at. */
int sh_rp_read_ahead(sh_repack *r, sh_error *e) {
  size_t n = 0, most = 0;
  if (r->ahead) return 0; /* the cache could not be written: they are under way */
  sh_span *v = sh_calloc((size_t)r->n_jobs * 4 + 1, sizeof *v);
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d matrices to repack", r->n_jobs);
  for (int i = 0; i < r->n_jobs; i++) n += (size_t)sources_of(&r->jobs[i], false, v + n);
  for (size_t i = 0; i < n; i++) most += v[i].n;
  int rc = sh_prefetch_start(&r->ahead, v, n, &(sh_prefetch_opts){.what = "weights to repack", .spare = most}, e);
  sh_free(v);
  return rc;
}

void sh_rp_read_end(sh_repack *r) {
  sh_prefetch_free(r->ahead);
  r->ahead = NULL;
}

/* Before anything is known of the values: an upper bound of what will be rewritten. */
static int64_t at_most(const sh_repack *r) {
  size_t bytes = 0;
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    sh_span v[4];
    if (j->panels) {
      sh_wview form = panels_of(j, j->m.zeros != NULL);
      bytes += (size_t)sh_panel_count(form.rows) * panel_bytes(&form);
      continue;
    }
    for (int n = sources_of(j, false, v); n > 0;) bytes += v[--n].n;
  }
  return bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
}

static int into_memory(sh_repack *r, sh_pool *pool, sh_error *e) {
  char size[32];
  int rc = sh_rp_read_ahead(r, e);
  if (!rc) rc = sh_rp_examine(r, pool, e);
  if (!rc) rc = sh_rp_place(r, 0, e);
  if (rc || !r->bytes) return rc;
  r->memory = sh_aligned(SH_RP_ALIGN, r->bytes);
  if (!r->memory)
    return sh_fail(
        e, SH_ERR_NOMEM,
        "%s: out of memory for %s of repacked weights; name a folder with that much disk by --cache-dir, and they are only mapped",
        sh_ckpt_path(r->ck), sh_format_size((int64_t)r->bytes, size));
  sh_mem_large(r->memory, r->bytes);
  rc = sh_rp_fill(r, pool, r->memory, -1, e);
  if (rc) return rc;
  r->where = SH_REPACK_MEMORY;
  finish_views(r, r->memory);
  return 0;
}

int sh_repack_check(sh_repack *r, sh_error *e) {
  sh_pool *pool = NULL;
  if (!r->n_jobs) return 0;
  int rc = sh_pool_new(&pool, 0, e);
  if (!rc) rc = sh_rp_examine(r, pool, e);
  if (!rc) rc = sh_rp_place(r, 0, e);
  sh_pool_free(pool);
  return rc;
}

int sh_repack_run(sh_repack *r, sh_error *e) {
  const sh_repack_opts *o = &r->o;
  sh_pool *pool = NULL;
  bool used = false;
  int rc = 0;
  if (!r->n_jobs) return 0;
  if (o->dry) {
    rc = sh_repack_check(r, e);
    if (!rc) finish_views(r, NULL);
    return rc;
  }
  bool wanted = !(o->cache_dir && !*o->cache_dir) && at_most(r) >= (o->cache_min ? o->cache_min : (int64_t)64 << 20);
  if (wanted) rc = sh_rp_cache_use(r, &pool, &used, e);
  if (!rc && !pool && (!used || o->panels)) rc = sh_pool_new(&pool, o->threads, e);
  if (!rc && used) {
    if (o->panels && sh_map_into_memory(&r->map, pool, SPARE)) r->copied = true;
    finish_views(r, r->map.p);
  } else if (!rc) {
    rc = into_memory(r, pool, e);
  }
  sh_rp_read_end(r);
  sh_pool_free(pool);
  return rc;
}
