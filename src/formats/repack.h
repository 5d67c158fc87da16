/* Weights as the kernels want them: what lies in the file so is used there; the rest is rewritten once, into memory or into the
 * repacked-weights cache, a file that later starts only map (formats/repack_cache.c).
 *
 * Two modes. Rows: kernels read float32 weights out of rows of integers, and only the layouts of GPUs have to be rewritten. Panels:
 * whatever is quantized is brought into panels (formats/panel.h), which the integer kernels read.
 *
 * Use: sh_repack_new, then sh_repack_add for every module and sh_repack_add_matrix for every other matrix, sh_repack_run, then the views
 * are valid until sh_repack_free. One thread. */
#ifndef SH_FORMATS_REPACK_H
#define SH_FORMATS_REPACK_H

#include "formats/panel.h"
#include "formats/quant.h"

typedef struct sh_repack sh_repack;

typedef struct sh_repack_opts {
  bool panels;           /* false: rows */
  sh_head head;          /* what becomes of a head of floats; with panels only */
  bool dry;              /* nothing is rewritten: the run is sh_repack_check, and what would be rewritten has views without data */
  const char *cache_dir; /* NULL: .sheng-cache in the model's folder; "": no cache, memory */
  int64_t cache_min;     /* bytes; less than that is rewritten into memory at every start. 0: 64 MiB */
  int threads;           /* 0: every usable core */
  int lock_wait_ms;      /* how long to wait for a process that writes the same cache; 0: 15 minutes */
} sh_repack_opts;

/* ck is borrowed and must outlive the views, o->cache_dir until the run. o may be NULL: the defaults. Caller frees with sh_repack_free. */
int sh_repack_new(sh_repack **out, const sh_ckpt *ck, const sh_repack_opts *o, sh_error *e);
void sh_repack_free(sh_repack *r); /* accepts NULL; the views die */

enum {
  SH_REPACK_ASIDE = 1,  /* no pass will read it (sh_repack_count) */
  SH_REPACK_ROWS = 2,   /* rows in any mode: single rows of it are looked up */
  SH_REPACK_SHARED = 4, /* the source stays in use beside the panels */
};

/* A module of integers (not SH_QL_F8). Keeps `view` until sh_repack_run fills it; type, shape and groups are right at once. how: flags. */
int sh_repack_add(sh_repack *r, const sh_qmodule *m, sh_wview *view, unsigned how, sh_error *e);

/* A matrix that lies in rows of a mapped file (its pages are given back), as src says (copied). *view becomes src, or with panels, where
 * sh_panel_plan has a form for it, panels, as above. head: for floats. */
int sh_repack_add_matrix(sh_repack *r, const sh_wview *src, sh_head head, sh_wview *view, unsigned how, sh_error *e);

/* Once. Errors: SH_ERR_FORMAT when an order of columns is broken, SH_ERR_UNSUPPORTED for a zero point that no byte holds, SH_ERR_NOMEM. A
 * cache that cannot be written is a log line and memory, not an error. */
int sh_repack_run(sh_repack *r, sh_error *e);

/* In place of the run: everything that may be wrong with the modules is looked at, sh_repack_bytes becomes known, nothing is written. */
int sh_repack_check(sh_repack *r, sh_error *e);

typedef enum sh_repack_where { SH_REPACK_NOTHING, SH_REPACK_MEMORY, SH_REPACK_WRITTEN, SH_REPACK_MAPPED } sh_repack_where;
sh_repack_where sh_repack_result(const sh_repack *r); /* where the rewritten parts are: this run wrote the cache, or only mapped it */
size_t sh_repack_bytes(const sh_repack *r);           /* of the rewritten parts */
/* Bytes that a pass reads of the rewritten parts (the modules set aside are left out), and of the stored parts that they replace. After the
 * run or the check. */
void sh_repack_count(const sh_repack *r, size_t *rewritten, size_t *replaced);
bool sh_repack_in_memory(const sh_repack *r, const void *p); /* whether p points into parts that were rewritten into memory */

#endif
