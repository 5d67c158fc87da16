/* Memory that the CPU backend's calls work in: one area shared by a call's items and one per worker, plus the rotation table.
 *
 * Engine thread only. A call measures its parts with a sh_cut without memory, asks for that much, and cuts again with memory: one list of
 * parts serves both. The areas only grow and keep nothing between calls, so growing is free and malloc; after reserve() they are large
 * enough. The alternative, buffers per operation, would hold the sum of what the operations need in place of the largest. */
#include "backend/cpu/cpu.h"

#include <string.h>

static int no_memory(size_t bytes, sh_error *e) {
  return sh_fail(e, SH_ERR_NOMEM, "out of memory: %zu bytes of working memory; lower the tokens per step or the context", bytes);
}

static int grow(uint8_t **p, size_t bytes, sh_error *e) {
  sh_free(*p);
  *p = bytes == SIZE_MAX ? NULL : sh_aligned(SH_CUT_ALIGN, bytes);
  return *p ? 0 : no_memory(bytes, e);
}

int sh_cpu_shared_need(sh_cpu *be, size_t bytes, sh_error *e) {
  sh_cpu_scratch *s = &be->scratch;
  if (bytes <= s->shared_bytes) return 0;
  s->shared_bytes = 0;
  int rc = grow(&s->shared, bytes, e);
  if (rc == 0) s->shared_bytes = bytes;
  return rc;
}

int sh_cpu_worker_need(sh_cpu *be, size_t bytes, sh_error *e) {
  sh_cpu_scratch *s = &be->scratch;
  if (bytes <= s->worker_bytes) return 0;
  if (!s->worker && !(s->worker = sh_calloc((size_t)be->n_workers, sizeof *s->worker))) return no_memory(bytes, e);
  s->worker_bytes = 0;
  for (int w = 0; w < be->n_workers; w++) {
    int rc = grow(&s->worker[w], bytes, e);
    if (rc < 0) return rc;
  }
  s->worker_bytes = bytes;
  return 0;
}

void sh_cpu_scratch_free(sh_cpu *be) {
  sh_cpu_scratch *s = &be->scratch;
  sh_free(s->shared);
  if (s->worker) {
    for (int w = 0; w < be->n_workers; w++) sh_free(s->worker[w]);
  }
  sh_free(s->worker);
  sh_free(be->rope.inv_freq);
  sh_free(be->rope.pos);
  sh_free(be->rope.cs);
  sh_free(be->rope.sn);
}

int sh_cpu_rope_need(sh_cpu *be, int rows, int half, sh_error *e) {
  sh_cpu_rope *r = &be->rope;
  if (rows <= r->cap_rows && half <= r->cap_half) return 0;
  if (rows < r->cap_rows) rows = r->cap_rows;
  if (half < r->cap_half) half = r->cap_half;
  sh_free(r->inv_freq);
  sh_free(r->pos);
  sh_free(r->cs);
  sh_free(r->sn);
  size_t n = (size_t)rows * (size_t)half; /* both are ints */
  *r = (sh_cpu_rope){0};
  r->inv_freq = sh_calloc((size_t)half, sizeof *r->inv_freq);
  r->pos = sh_calloc((size_t)rows, sizeof *r->pos);
  r->cs = sh_calloc(n, sizeof *r->cs);
  r->sn = sh_calloc(n, sizeof *r->sn);
  if (!r->inv_freq || !r->pos || !r->cs || !r->sn) return no_memory(n * 2 * sizeof(float), e);
  r->cap_rows = rows;
  r->cap_half = half;
  return 0;
}
