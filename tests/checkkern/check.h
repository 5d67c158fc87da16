/* What the files of the kernel checker share: random numbers, buffers with guards, comparison, the count.
 *
 * A case is one call of a kernel with one set of parameters; a case that fails prints the parameters. The seed is printed at the start and
 * accepted as an argument, so every failure can be had again. */
#ifndef SH_CHECKKERN_CHECK_H
#define SH_CHECKKERN_CHECK_H

#include "kernels/kernels.h"

#include <stdarg.h>

typedef struct ck {
  uint64_t seed, rng;
  int passed, failed;
  const char *cpu;   /* variant under test as the backend option: "baseline", "avx2" */
  bool quick;        /* fewer rounds of what takes long: under sanitizers */
  sh_kernels k, ref; /* the variant, the references */
} ck;

/* --- Cases */
void ck_case(ck *c, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- Random values, from c->rng */
uint32_t ck_u32(ck *c);
int ck_range(ck *c, int lo, int hi); /* both included */
float ck_uniform(ck *c, float lo, float hi);
void ck_fill(ck *c, float *p, size_t n, float scale); /* uniform in +-scale, a few zeros among them */

/* --- Buffers. The bytes before and after are guards: after them (up to alignment) comes a page that cannot be touched, before them a
 * pattern. The buffer ends exactly at that page, so a read past the end is a fault, and starts at whatever alignment follows. */
void *ck_alloc(size_t bytes);
bool ck_guard_ok(const void *p); /* the pattern before the buffer is whole */
void ck_free(void *p);
float *ck_floats(size_t n); /* n floats filled with a pattern that compares unequal to results */

/* --- Comparison: |got - want| <= abs + rel |want| (and NaN with NaN, infinities equal). Returns the first bad index or -1. */
typedef struct ck_tol {
  const char *why;
  double abs, rel;
} ck_tol;
long ck_compare(const float *got, const float *want, size_t n, ck_tol tol);
bool ck_same_bits(const float *a, const float *b, size_t n);

/* --- Stored weights */
/* A format of weights: a type and, for the types with scales beside them, how those lie. */
typedef struct ck_format {
  sh_dtype type;
  int group, scale_rows; /* 0: all columns, all rows */
  sh_dtype scale_type;
  bool zeros;
  sh_panel_scales scales; /* panels only */
  sh_panel_offset offset;
} ck_format;
extern const ck_format ck_formats[], ck_panel_formats[];
extern const int ck_n_formats, ck_n_panel_formats;
const char *ck_format_name(const ck_format *f, char buf[64]);
int64_t ck_format_unit(const ck_format *f); /* k must be a multiple of this many columns */

/* A random matrix in a format, weights of about +-1. Every part of it ends where memory ends. */
typedef struct ck_matrix {
  sh_wview v;
  uint8_t *parts[4]; /* weights, scales, zero points, perm; owned */
} ck_matrix;
ck_matrix ck_matrix_new(ck *c, const ck_format *f, int64_t rows, int64_t k, bool permuted);
void ck_matrix_any_bits(ck *c, ck_matrix *m); /* NaN, infinities, denormals; scales of SH_F8_E4M3 stay as they are */
void ck_matrix_free(ck_matrix *m);

/* --- Panels (check_panels.c) */
void ck_fill_panels(ck *c, const sh_wview *v, uint8_t *p); /* any integers, scales that make weights of about +-1 */
/* Weight (r, col) = s q + m, decoded from the words of formats/panel.h and nothing else. */
typedef struct ck_weight {
  double s, q, m;
} ck_weight;
ck_weight ck_panel_weight(const sh_wview *v, int64_t r, int64_t col);

const char *ck_type_name(sh_dtype t);
size_t ck_row_bytes(sh_dtype t, int64_t k);
void ck_fill_weights(ck *c, sh_dtype t, uint8_t *p, size_t rows, size_t row_bytes, int64_t k);

/* --- The checks, each for c's variant */
void ck_matmul(ck *c);
void ck_panels(ck *c);
void ck_rows(ck *c);
void ck_attention(ck *c);
void ck_gdn(ck *c);
void ck_backend(ck *c); /* through backend.h: chunks, pages, threads */

int ck_bench(int threads, const char *only); /* bench.c; 0, or negative when it could not measure */

#endif
