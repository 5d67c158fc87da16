/* Random numbers, guarded buffers, comparison and the count of the kernel checker. */
#include "check.h"
#include "bench/fill.h"
#include "formats/dequant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void ck_case(ck *c, bool ok, const char *fmt, ...) {
  if (ok) {
    c->passed++;
    return;
  }
  c->failed++;
  va_list ap;
  va_start(ap, fmt);
  printf("FAILED (%s): ", c->k.name);
  vprintf(fmt, ap);
  printf("\n  run again: checkkern --seed %llu --cpu %s\n", (unsigned long long)c->seed, c->cpu);
  va_end(ap);
}

uint32_t ck_u32(ck *c) { return sh_fill_u32(&c->rng); }

int ck_range(ck *c, int lo, int hi) { return lo + (int)(ck_u32(c) % (uint32_t)(hi - lo + 1)); }

float ck_uniform(ck *c, float lo, float hi) { return sh_fill_uniform(&c->rng, lo, hi); }

void ck_fill(ck *c, float *p, size_t n, float scale) { sh_fill_floats(&c->rng, p, n, scale); }

enum { PAGE = 4096, FRONT = 64 };

/* The map holds: its own length and the start of the buffer, a pattern of at least FRONT bytes, the buffer, a page without access. */
typedef struct head {
  size_t bytes;
  uint8_t *start;
} head;

static uint8_t *map_of(const void *p) { return (uint8_t *)((uintptr_t)p & ~(uintptr_t)(PAGE - 1)); }

void *ck_alloc(size_t bytes) {
  size_t used = (sizeof(head) + FRONT + bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
  uint8_t *m = mmap(NULL, used + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED || mprotect(m + PAGE + used, PAGE, PROT_NONE)) {
    fprintf(stderr, "checkkern: no memory for %zu bytes\n", bytes);
    exit(2);
  }
  uint8_t *p = m + PAGE + used - bytes;
  /* the head lives at the start of the page before the one the buffer starts in, which always belongs to the map */
  head *h = (head *)(void *)(map_of(p) - PAGE);
  *h = (head){.bytes = used + 2 * PAGE, .start = m};
  memset(p - FRONT, 0xA5, FRONT);
  return p;
}

bool ck_guard_ok(const void *p) {
  for (int i = 1; i <= FRONT; i++) {
    if (((const uint8_t *)p)[-i] != 0xA5) return false;
  }
  return true;
}

void ck_free(void *p) {
  head h = *(head *)(void *)(map_of(p) - PAGE);
  munmap(h.start, h.bytes);
}

float *ck_floats(size_t n) {
  float *p = ck_alloc(n * sizeof *p);
  for (size_t i = 0; i < n; i++) p[i] = -7.7e33f;
  return p;
}

long ck_compare(const float *got, const float *want, size_t n, ck_tol tol) {
  for (size_t i = 0; i < n; i++) {
    double g = got[i], w = want[i];
    if (isnan(w) ? isnan(g) : isinf(w) ? g == w : fabs(g - w) <= tol.abs + tol.rel * fabs(w)) continue;
    return (long)i;
  }
  return -1;
}

bool ck_same_bits(const float *a, const float *b, size_t n) { return memcmp(a, b, n * sizeof *a) == 0; }

const char *ck_type_name(sh_dtype t) { return sh_dtype_name(t); }

size_t ck_row_bytes(sh_dtype t, int64_t k) { return sh_fill_row_bytes(t, k); }

void ck_fill_weights(ck *c, sh_dtype t, uint8_t *p, size_t rows, size_t row_bytes, int64_t k) {
  sh_fill_weights(&c->rng, t, p, rows, row_bytes, k);
}

static void put16(uint8_t *p, uint16_t h) { memcpy(p, &h, 2); }

/* --- Matrices in every format */

const ck_format ck_formats[] = {
    {.type = SH_F32},
    {.type = SH_F16},
    {.type = SH_BF16},
    {.type = SH_Q8_0},
    {.type = SH_Q4_0},
    {.type = SH_Q4_1},
    {.type = SH_Q6_K},
    {.type = SH_Q5_0},
    {.type = SH_Q5_1},
    {.type = SH_Q4_K},
    {.type = SH_Q5_K},
    {.type = SH_IQ4_NL},
    {.type = SH_I4, .group = 16, .scale_rows = 1, .scale_type = SH_F16, .zeros = true},
    {.type = SH_I4, .group = 32, .scale_rows = 1, .scale_type = SH_BF16},
    {.type = SH_I4, .group = 48, .scale_rows = 1, .scale_type = SH_F32, .zeros = true},
    {.type = SH_I4, .group = 64, .scale_rows = 1, .scale_type = SH_F16, .zeros = true},
    {.type = SH_I4, .group = 96, .scale_rows = 1, .scale_type = SH_BF16, .zeros = true},
    {.type = SH_I4, .group = 128, .scale_rows = 1, .scale_type = SH_F16},
    {.type = SH_I4, .group = 0, .scale_rows = 1, .scale_type = SH_F32, .zeros = true},
    {.type = SH_I4, .group = 0, .scale_rows = 1, .scale_type = SH_F16, .zeros = true},
    {.type = SH_I8, .group = 0, .scale_rows = 1, .scale_type = SH_BF16},
    {.type = SH_I8, .group = 0, .scale_rows = 1, .scale_type = SH_F32},
    {.type = SH_I8, .group = 48, .scale_rows = 1, .scale_type = SH_F16},
    {.type = SH_U8, .group = 16, .scale_rows = 1, .scale_type = SH_F16, .zeros = true},
    {.type = SH_U8, .group = 32, .scale_rows = 1, .scale_type = SH_BF16},
    {.type = SH_U8, .group = 48, .scale_rows = 1, .scale_type = SH_F32, .zeros = true},
    {.type = SH_U8, .group = 128, .scale_rows = 1, .scale_type = SH_F16},
    {.type = SH_U8, .group = 0, .scale_rows = 1, .scale_type = SH_BF16, .zeros = true},
    {.type = SH_U8, .group = 0, .scale_rows = 1, .scale_type = SH_F32},
    {.type = SH_F8_E4M3, .group = 128, .scale_rows = 128, .scale_type = SH_BF16},
    {.type = SH_F8_E4M3, .group = 48, .scale_rows = 3, .scale_type = SH_F32},
    {.type = SH_F8_E4M3, .group = 0, .scale_rows = 1, .scale_type = SH_F16},
    {.type = SH_F8_E4M3, .group = 0, .scale_rows = 0, .scale_type = SH_F32},
};
const int ck_n_formats = sizeof ck_formats / sizeof *ck_formats;

static bool has_groups(const ck_format *f) { return sh_dtype_has_groups(f->type); }

const char *ck_format_name(const ck_format *f, char buf[64]) {
  static const char *const offsets[] = {"middle", "zeros", "minima"}, *const scales[] = {"", "super u8 ", "super i8 "};
  if (sh_dtype_is_panel(f->type))
    snprintf(buf, 64, "%s group %d %s %s%s", sh_dtype_name(f->type), f->group, sh_dtype_name(f->scale_type), scales[f->scales],
             offsets[f->offset]);
  else if (!has_groups(f)) snprintf(buf, 64, "%s", sh_dtype_name(f->type));
  else
    snprintf(buf, 64, "%s %dx%d %s%s", sh_dtype_name(f->type), f->scale_rows, f->group, sh_dtype_name(f->scale_type),
             f->zeros ? " zeros" : "");
  return buf;
}

int64_t ck_format_unit(const ck_format *f) {
  if (sh_dtype_is_panel(f->type)) return f->group ? f->group : 1;
  return has_groups(f) && f->type != SH_F8_E4M3 && f->group ? f->group : sh_dtype_block(f->type);
}

static void fill_scales(ck *c, const ck_format *f, uint8_t *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float s = ck_uniform(c, -1, 1) / (f->type == SH_I4 ? 8 : 128);
    if (f->scale_type == SH_F32) memcpy(p + 4 * i, &s, 4);
    else put16(p + 2 * i, f->scale_type == SH_F16 ? sh_f32_to_f16(s) : sh_f32_to_bf16(s));
  }
}

static void permute(ck *c, ck_matrix *m, int64_t k) {
  int32_t *perm = ck_alloc((size_t)k * sizeof *perm);
  m->parts[3] = (uint8_t *)perm;
  m->v.perm = perm;
  for (int i = 0; i < k; i++) {
    int j = ck_range(c, 0, i);
    perm[i] = perm[j];
    perm[j] = i;
  }
}

static ck_matrix panels_new(ck *c, const ck_format *f, int64_t rows, int64_t k, bool permuted) {
  ck_matrix m = {.v = {.type = f->type,
                       .rows = rows,
                       .cols = k,
                       .name = "w",
                       .group = f->group ? f->group : (int)k,
                       .scale_type = f->scale_type,
                       .panel_scales = (uint8_t)f->scales,
                       .panel_offset = (uint8_t)f->offset}};
  sh_panel_shape s = sh_panel_shape_of(&m.v);
  m.v.row_bytes = s.bytes / SH_PANEL_ROWS;
  m.v.data = m.parts[0] = ck_alloc((size_t)(rows + SH_PANEL_ROWS - 1) / SH_PANEL_ROWS * s.bytes);
  ck_fill_panels(c, &m.v, m.parts[0]);
  if (permuted) permute(c, &m, k);
  return m;
}

ck_matrix ck_matrix_new(ck *c, const ck_format *f, int64_t rows, int64_t k, bool permuted) {
  if (sh_dtype_is_panel(f->type)) return panels_new(c, f, rows, k, permuted);
  ck_matrix m = {.v = {.type = f->type, .rows = rows, .cols = k, .row_bytes = ck_row_bytes(f->type, k), .name = "w"}};
  sh_wview *v = &m.v;
  v->data = m.parts[0] = ck_alloc((size_t)rows * v->row_bytes);
  ck_fill_weights(c, f->type, m.parts[0], (size_t)rows, v->row_bytes, k);
  if (!has_groups(f)) return m;
  v->group = f->group ? f->group : (int)k;
  v->scale_rows = f->scale_rows ? f->scale_rows : (int)rows;
  v->scale_type = f->scale_type;
  size_t groups = (size_t)((k + v->group - 1) / v->group), scale_rows = (size_t)((rows + v->scale_rows - 1) / v->scale_rows);
  v->scale_row_bytes = groups * (size_t)sh_dtype_block_bytes(f->scale_type);
  v->scales = m.parts[1] = ck_alloc(scale_rows * v->scale_row_bytes);
  fill_scales(c, f, m.parts[1], scale_rows * groups);
  if (f->zeros) {
    v->zero_row_bytes = groups;
    v->zeros = m.parts[2] = ck_alloc((size_t)rows * groups);
    for (size_t i = 0; i < (size_t)rows * groups; i++) m.parts[2][i] = (uint8_t)ck_range(c, 0, f->type == SH_I4 ? 16 : 255);
  }
  if (permuted) permute(c, &m, k);
  return m;
}

void ck_matrix_any_bits(ck *c, ck_matrix *m) {
  const sh_wview *v = &m->v;
  for (size_t i = 0; i < (size_t)v->rows * v->row_bytes; i++) m->parts[0][i] = (uint8_t)ck_u32(c);
  if (!sh_dtype_has_groups(v->type) || v->type == SH_F8_E4M3) return;
  for (size_t i = 0; i < (size_t)v->rows * v->scale_row_bytes; i++) {
    m->parts[1][i] = (uint8_t)ck_u32(c);
    if (v->scale_type != SH_F32 && i % 2) m->parts[1][i] &= 0xbf; /* halves under 2: infinite ones give NaN for any integer */
  }
  for (size_t i = 0; v->zeros && i < (size_t)v->rows * v->zero_row_bytes; i++) m->parts[2][i] = (uint8_t)ck_u32(c);
}

void ck_matrix_free(ck_matrix *m) {
  for (int i = 0; i < 4; i++) {
    if (m->parts[i]) ck_free(m->parts[i]);
  }
}
