/* Shared by repack*.c only: the jobs, their place in the image, and the parts of a rewrite.
 *
 * The image is what is rewritten, in one piece of memory or one file: a head (the cache's own), then the orders of columns of all modules
 * (read whole at every start, so they lie together), then each module's integers, scales and zero points, or each matrix's panels, which
 * hold all three. Every place follows from the modules and from five flags each, so a cache file has to carry nothing but the flags. */
#ifndef SH_FORMATS_REPACK_INTERNAL_H
#define SH_FORMATS_REPACK_INTERNAL_H

#include "formats/repack.h"

#include "base/file.h"
#include "base/pool.h"
#include "base/prefetch.h"

enum {
  SH_RP_DATA = 1,    /* integers are rewritten */
  SH_RP_SCALES = 2,  /* so are scales, to rows of their own */
  SH_RP_ZEROS = 4,   /* there are zero points other than 8 or 128 */
  SH_RP_ORDER = 8,   /* columns are sorted by group */
  SH_RP_PANELS = 16, /* into panels */
  SH_RP_ROWS = 128,  /* rows of a work item: 16 words of AWQ's, one cache line; 16 panels */
  SH_RP_ALIGN = 64,
};

typedef struct sh_rp_job {
  sh_qmodule m;   /* weight NULL: a matrix that lies in rows already */
  sh_wview rows;  /* that matrix; of a module the form of its rows: data, scales as far as they lie in the file as rows */
  sh_wview panel; /* the form of its panels; without zero points until sh_rp_place has the flags */
  sh_head head;   /* for rows of floats */
  bool panels;
  sh_wview *view;
  uint8_t flags;
  unsigned how;                                  /* SH_REPACK_* */
  size_t order_at, data_at, scales_at, zeros_at; /* in the image; valid by flag */
  int64_t first_item;                            /* of the work items of all jobs */
} sh_rp_job;

struct sh_repack {
  const sh_ckpt *ck;
  sh_repack_opts o;
  sh_rp_job *jobs; /* [n_jobs] */
  int n_jobs, cap_jobs;
  size_t head_bytes, orders_end, bytes; /* of the image */
  int64_t n_items;
  bool examined;
  uint8_t *memory; /* the image, owned; or */
  sh_map map;      /* the image, mapped */
  bool copied;     /* the map is a copy in memory */
  sh_repack_where where;
  sh_prefetch *ahead; /* during the run: the sources; NULL: not read ahead */
};

/* --- repack_kernels.c: pure functions */

/* Rows [row, row + n) of a job, as n rows of row_bytes each. dst rows are contiguous. order [cols] or NULL: stored column c is column
 * order[c] of the file. scratch: sh_rp_scratch_bytes. */
void sh_rp_data(const sh_qmodule *m, const int32_t *order, int64_t row, int64_t n, uint8_t *dst, uint32_t *scratch);
size_t sh_rp_scratch_bytes(const sh_qmodule *m, bool order);
void sh_rp_scales(const sh_qmodule *m, int64_t row, int64_t n, uint8_t *dst); /* [n, groups] of the stored type */
void sh_rp_zeros(const sh_qmodule *m, int64_t row, int64_t n, uint8_t *dst);  /* [n, groups] bytes */
/* Whether every zero point is the middle: 8, or 128 of 8 bits. */
bool sh_rp_zeros_are_middle(const sh_qmodule *m);
/* SH_ERR_UNSUPPORTED: a zero point of 256, which GPTQ's version 1 stores as 255. */
int sh_rp_check_zeros(const sh_qmodule *m, sh_error *e);
/* Bytes of a row of integers, as sh_rp_data writes it. */
static inline size_t sh_rp_row_bytes(const sh_qmodule *m) { return (size_t)m->cols * (size_t)m->bits / 8; }
/* Columns by group, stable: out [cols], or *trivial when they lie by group already (out untouched then, and may be NULL to ask only that).
 * seen: [groups] counters. SH_ERR_FORMAT: a group out of range, or one that has not `group` columns. */
int sh_rp_order(const sh_qmodule *m, int32_t *out, int64_t *seen, bool *trivial, sh_error *e);

/* --- repack.c */

bool sh_rp_flags_fit(const sh_rp_job *j); /* whether this module can have its flags */
/* Gives every part its place, from the flags, after a head of that many bytes. SH_ERR_LIMIT: more than can be addressed. */
int sh_rp_place(sh_repack *r, size_t head_bytes, sh_error *e);
/* Begins to read the sources, unless that has begun (r->ahead); the end of it, at any time. */
int sh_rp_read_ahead(sh_repack *r, sh_error *e);
void sh_rp_read_end(sh_repack *r);
/* Sets the flags from the tensors' values. */
int sh_rp_examine(sh_repack *r, sh_pool *pool, sh_error *e);
/* Does the work: into memory [r->bytes], or (memory NULL) to the places in a file. SH_ERR_IO says why a file took no more. */
int sh_rp_fill(sh_repack *r, sh_pool *pool, uint8_t *memory, int fd, sh_error *e);

/* --- repack_cache.c */

size_t sh_rp_cache_head_bytes(const sh_repack *r);
/* Maps a valid cache, or writes one and maps it: r->map, r->where, the flags and places. Returns an error only when the modules are broken
 * (sh_rp_examine); when there is no cache to be had that is said in the log, and *used is false. *pool is made when it is needed. */
int sh_rp_cache_use(sh_repack *r, sh_pool **pool, bool *used, sh_error *e);

#endif
