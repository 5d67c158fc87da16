/* Quantized modules as views: which parts are rewritten, where they go, and who does it.
 *
 * Called at load by one thread, which hands the work to a thread pool in items of 128 rows of one module. A module is examined first (are
 * its zero points all in the middle, are its columns in order): only then is the size of everything known, and a symmetric GPTQ checkpoint
 * gets the faster kernels without zero points. In memory an item writes to its final place; for the cache file it fills a buffer of its
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

int sh_repack_new(sh_repack **out, const sh_ckpt *ck, sh_error *e) {
  *out = sh_calloc(1, sizeof **out);
  if (!*out) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  (*out)->ck = ck;
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

bool sh_repack_in_memory(const sh_repack *r, const void *p) { return r && r->memory && (uintptr_t)p - (uintptr_t)r->memory < r->bytes; }

/* --- Jobs */

/* The part of a view that lies in the file as it is; the run adds the rest. */
static void begin_view(const sh_qmodule *m, sh_wview *v) {
  size_t groups = (size_t)(m->cols / m->group);
  *v = (sh_wview){.type = m->layout == SH_QL_I8 ? SH_I8
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

int sh_repack_add(sh_repack *r, const sh_qmodule *m, sh_wview *view, bool aside, sh_error *e) {
  begin_view(m, view);
  if (m->layout == SH_QL_I8 || (m->layout == SH_QL_ROWS && !m->zeros && !m->order)) return 0;
  if (r->n_jobs == r->cap_jobs) {
    int cap = r->cap_jobs ? 2 * r->cap_jobs : 256;
    sh_rp_job *p = sh_realloc(r->jobs, (size_t)cap * sizeof *p);
    if (!p) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d quantized modules", cap);
    r->jobs = p;
    r->cap_jobs = cap;
  }
  r->jobs[r->n_jobs++] = (sh_rp_job){.m = *m, .view = view, .aside = aside};
  return 0;
}

bool sh_rp_flags_fit(const sh_rp_job *j) {
  const sh_qmodule *m = &j->m;
  bool order = j->flags & SH_RP_ORDER, data = j->flags & SH_RP_DATA, scales = j->flags & SH_RP_SCALES, zeros = j->flags & SH_RP_ZEROS;
  if (j->flags & ~(SH_RP_DATA | SH_RP_SCALES | SH_RP_ZEROS | SH_RP_ORDER)) return false;
  if ((order && !m->order) || (zeros && !m->zeros)) return false;
  return m->layout == SH_QL_ROWS ? !scales && data == order : data && scales;
}

/* --- Places */

static size_t groups_of(const sh_rp_job *j) { return (size_t)(j->m.cols / j->m.group); }
static size_t data_row(const sh_rp_job *j) { return sh_rp_row_bytes(&j->m); }
static size_t scales_row(const sh_rp_job *j) { return groups_of(j) * (size_t)sh_dtype_block_bytes(j->m.scales->type); }

/* Takes `rows` rows of row_bytes at the next aligned place. What a part holds was found in the file in about as many bytes (zero points in
 * half), so only the sum of very many could overflow. */
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
    if (j->flags & SH_RP_DATA) j->data_at = take(&at, j->m.rows, data_row(j), &over);
    if (j->flags & SH_RP_SCALES) j->scales_at = take(&at, j->m.rows, scales_row(j), &over);
    if (j->flags & SH_RP_ZEROS) j->zeros_at = take(&at, j->m.rows, groups_of(j), &over);
    j->first_item = items;
    if (j->flags) items += (j->m.rows + SH_RP_ROWS - 1) / SH_RP_ROWS;
  }
  r->bytes = at;
  r->n_items = items;
  if (over || at > PTRDIFF_MAX || items > INT_MAX)
    return sh_fail(e, SH_ERR_LIMIT, "%d quantized modules are too large to address", r->n_jobs);
  return 0;
}

void sh_repack_count(const sh_repack *r, size_t *rewritten, size_t *replaced) {
  *rewritten = *replaced = 0;
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    size_t rows = (size_t)j->m.rows;
    if (j->aside) continue;
    if (j->flags & SH_RP_ORDER) *rewritten += (size_t)j->m.cols * sizeof(int32_t);
    if (j->flags & SH_RP_DATA) *rewritten += rows * data_row(j), *replaced += j->m.weight->bytes;
    if (j->flags & SH_RP_SCALES) *rewritten += rows * scales_row(j), *replaced += j->m.scales->bytes;
    if (j->flags & SH_RP_ZEROS) *rewritten += rows * groups_of(j);
    if (j->m.zeros) *replaced += j->m.zeros->bytes; /* or they are in the middle, and the kernels know */
    if (j->m.order) *replaced += j->m.order->bytes;
  }
}

static void finish_views(sh_repack *r, const uint8_t *image) {
  for (int i = 0; i < r->n_jobs; i++) {
    sh_rp_job *j = &r->jobs[i];
    sh_wview *v = j->view;
    if (j->flags & SH_RP_DATA) v->data = image + j->data_at;
    if (j->flags & SH_RP_SCALES) v->scales = image + j->scales_at;
    if (j->flags & SH_RP_ZEROS) {
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
  j->flags = m->layout == SH_QL_ROWS ? 0 : SH_RP_DATA | SH_RP_SCALES;
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
    rc = sh_fail(e, SH_ERR_NOMEM, "out of memory for %d quantized modules", r->n_jobs);
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

/* Tells the system about pages of a tensor: whole ones only, and only advice. */
static void advise(const sh_ftensor *t, int advice) {
  if (!t) return;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)t->data + page - 1) & ~(page - 1),
            to = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
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
    if (j->flags & SH_RP_DATA) advise(j->m.weight, MADV_WILLNEED);
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

static void fill_item(void *ctx, int item, int worker) {
  fill_job *f = ctx;
  if (atomic_load(&f->error)) return;
  const sh_rp_job *j = &f->r->jobs[job_of(f->r, item)];
  const sh_qmodule *m = &j->m;
  int64_t row = (item - j->first_item) * SH_RP_ROWS, n = m->rows - row < SH_RP_ROWS ? m->rows - row : SH_RP_ROWS;
  const int32_t *order = NULL;
  if (j->flags & SH_RP_ORDER) order = (const int32_t *)(const void *)(f->orders + (j->order_at - f->r->head_bytes));
  if (row == 0) ask_ahead(f, j);
  const struct {
    int flag;
    size_t at, row_bytes;
  } part[3] = {
      {SH_RP_DATA, j->data_at, data_row(j)}, {SH_RP_SCALES, j->scales_at, scales_row(j)}, {SH_RP_ZEROS, j->zeros_at, groups_of(j)}};
  for (int i = 0; i < 3; i++) {
    if (!(j->flags & part[i].flag)) continue;
    size_t at = part[i].at + (size_t)row * part[i].row_bytes, bytes = (size_t)n * part[i].row_bytes;
    uint8_t *dst = f->memory ? f->memory + at : f->buffer[worker];
    if (i == 0) sh_rp_data(m, order, row, n, dst, f->scratch[worker]);
    else if (i == 1) sh_rp_scales(m, row, n, dst);
    else sh_rp_zeros(m, row, n, dst);
    if (!f->memory) put(f, at, dst, bytes);
    atomic_fetch_add(&f->done, (long long)bytes);
  }
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

/* Memory of the workers, for the largest item. The pieces are zeroed: a last word that is not full leaves lines unset. */
static int take_workers(fill_job *f, int n, sh_error *e) {
  size_t scratch = 0, buffer = 0;
  for (int i = 0; i < f->r->n_jobs; i++) {
    const sh_rp_job *j = &f->r->jobs[i];
    size_t s = sh_rp_scratch_bytes(&j->m, j->flags & SH_RP_ORDER);
    size_t rows = (size_t)(j->m.rows < SH_RP_ROWS ? j->m.rows : SH_RP_ROWS);
    size_t wide = data_row(j) > scales_row(j) ? data_row(j) : scales_row(j);
    if (s > scratch) scratch = s;
    if (rows * wide > buffer) buffer = rows * wide;
  }
  f->scratch = sh_calloc((size_t)n, sizeof *f->scratch);
  f->buffer = sh_calloc((size_t)n, sizeof *f->buffer);
  bool ok = f->scratch && f->buffer;
  for (int i = 0; i < n && ok; i++) {
    f->scratch[i] = sh_calloc(1, scratch);
    f->buffer[i] = f->memory ? NULL : sh_malloc(buffer);
    ok = f->scratch[i] && (f->memory || f->buffer[i]);
  }
  return ok ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for repacking weights (%zu bytes per thread)", scratch + buffer);
}

static void give_workers(fill_job *f, int n) {
  for (int i = 0; i < n; i++) {
    if (f->scratch) sh_free(f->scratch[i]);
    if (f->buffer) sh_free(f->buffer[i]);
  }
  sh_free(f->scratch);
  sh_free(f->buffer);
}

/* The rewritten sources need not stay resident. */
static void give_sources(const sh_repack *r) {
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_rp_job *j = &r->jobs[i];
    if (j->flags & SH_RP_DATA) advise(j->m.weight, MADV_DONTNEED);
    if (j->flags & SH_RP_SCALES) advise(j->m.scales, MADV_DONTNEED);
    advise(j->m.zeros, MADV_DONTNEED);
    advise(j->m.order, MADV_DONTNEED);
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
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory for %d quantized modules", r->n_jobs);
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_qmodule *m = &r->jobs[i].m;
    bool stays = m->layout == SH_QL_ROWS && !m->order; /* the weight is used where it lies */
    const sh_ftensor *const parts[] = {stays ? NULL : m->weight, stays ? NULL : m->scales, m->zeros, m->order};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
      if (!parts[k]) continue;
      v[n++] = (sh_span){parts[k]->data, parts[k]->bytes};
      most += parts[k]->bytes;
    }
  }
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
  int64_t bytes = 0;
  for (int i = 0; i < r->n_jobs; i++) {
    const sh_qmodule *m = &r->jobs[i].m;
    bytes += (int64_t)((m->layout == SH_QL_ROWS && !m->order ? 0 : m->weight->bytes) + m->scales->bytes + (m->zeros ? m->zeros->bytes : 0));
  }
  return bytes;
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

int sh_repack_run(sh_repack *r, const sh_repack_opts *o, sh_error *e) {
  static const sh_repack_opts DEFAULTS;
  sh_pool *pool = NULL;
  bool used = false;
  int rc = 0;
  if (!o) o = &DEFAULTS;
  if (!r->n_jobs) return 0;
  bool wanted = !(o->cache_dir && !*o->cache_dir) && at_most(r) >= (o->cache_min ? o->cache_min : (int64_t)64 << 20);
  if (wanted) rc = sh_rp_cache_use(r, o, &pool, &used, e);
  if (!rc && !used && !pool) rc = sh_pool_new(&pool, o->threads, e);
  if (!rc && used) finish_views(r, r->map.p);
  else if (!rc) rc = into_memory(r, pool, e);
  sh_rp_read_end(r);
  sh_pool_free(pool);
  return rc;
}
