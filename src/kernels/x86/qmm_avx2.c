/* Integer products of weights in panels with int8 activations.
 *
 * The instruction at the heart multiplies 32 unsigned with 32 signed bytes and adds pairs into 16 bits. Of integers of 4 bits a whole block
 * of 32 columns fits the 16 bits (8 * 2 * 15 * 127 = 30480), of 6 bits a pair of products (2 * 2 * 63 * 127 = 32004); those of 8 bits are
 * taken as magnitudes, with their signs moved to the activations, and each product (2 * 128 * 127 = 32512) is widened at once. A vector
 * holds a quad of columns of eight rows, so that sums stay in their rows' lanes and nothing is ever added across.
 *
 * Few activation rows read the panels from front to back and unpack in registers: one row is bound by memory, and the panel after the one
 * at hand is asked for in the order of memory. Many take two panels at a time and a run of blocks of them, expanded to bytes once, which
 * stay in L1 while all activation rows of a block (which stays in L2) pass over them; accumulators in L1. The steps of an output are those
 * of formats/panel.h in both, so the bits are the same. */
#include "kernels/x86/put_avx2.h"
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

typedef __m256i vi;

enum {
  R = SH_PANEL_ROWS,
  B = SH_PANEL_BLOCK,
  PANELS = SH_QMM_ROWS / R, /* that many activation rows use together */
  RUN = 16,                 /* blocks of a run: 8 KB of bytes of two panels */
  GROUPS = 2 * RUN,         /* most groups of a run */
  TOKENS = 96,              /* most activation rows of a block */
  BLOCK_BYTES = 256 * 1024, /* of them, packed: they stay in L2 */
  MAX_T = 6,                /* activation rows of a tile */
};

/* How groups and blocks lie: two groups to a block, a group to a block, or several blocks to a group. */
typedef enum mode { HALF, ONE, SEVERAL, MODES } mode;

/* The compiler would regroup sums of integers into trees and spill all they need. */
#define KEEP(v) __asm__("" : "+x"(v))
#define IN_PLACE __asm__("" : : : "memory") /* sums in memory are not moved to the stack and back around a loop */
#define IN_MEMORY(v) __asm__("" : "+m"(v))

/* --- A tile: P panels times T activation rows over a run of blocks. */

typedef struct run {
  const uint8_t *w[PANELS]; /* the first block of each panel; as bytes: w[0], [block][quad][P][32] */
  const float *sm;          /* [groups][P][2][8]: s and m */
  int groups, blocks;       /* blocks of each group; groups 1 if it is a part of one. Half blocks: not used */
  bool first, last;         /* SEVERAL: the run begins, ends with its groups' beginning, end; both unless it is part of a group */
  bool offsets;             /* m is not always 0 */
  size_t at, u_at;          /* of the first block and of the first group's u in a packed row */
  const uint8_t *ahead;     /* few rows: what to ask memory for, as much as the run has */
} run;

/* x: [T] packed rows; y, t: [T][P][8]: the outputs so far, the sum of a group that goes on in the next run. */
typedef void tile_fn(const run *c, const uint8_t *const *x, float *y, float *t);

SH_INLINE vi load(const uint8_t *p) { return _mm256_loadu_si256((const vi *)(const void *)p); }

SH_INLINE int32_t int32_at(const uint8_t *p) {
  int32_t i;
  memcpy(&i, p, sizeof i);
  return i;
}

/* Quad j of a block in a panel. */
SH_INLINE vi quad_of(const int bits, const uint8_t *p, const int j) {
  if (bits == 8) return load(p + 32 * j);
  const vi nibble = _mm256_set1_epi8(15);
  vi v = load(p + 32 * (j % 4)), low = _mm256_and_si256(j < 4 ? v : _mm256_srli_epi16(v, 4), nibble);
  if (bits == 4) return low;
  vi h = load(p + 128 + 32 * (j % 2));
  h = j / 2 == 0 ? _mm256_slli_epi16(h, 4) : j / 2 == 1 ? _mm256_slli_epi16(h, 2) : j / 2 == 2 ? h : _mm256_srli_epi16(h, 2);
  return _mm256_or_si256(low, _mm256_and_si256(h, _mm256_set1_epi8(0x30)));
}

/* Sums over quads [j0, j0 + n) of a block, n 4 or 8, as float32: f[t * P + p]. */
SH_INLINE void block_sums(const int bits, const bool bytes, const int P, const int T, const int j0, const int n, const uint8_t *const *w,
                          const uint8_t *const *x, size_t at, v8 *f) {
  const int step = bits == 6 ? 2 : 1; /* quads at a time */
  const vi one = _mm256_set1_epi16(1);
  vi a[PANELS * MAX_T];
  _Pragma("GCC unroll 8") for (int i = 0; i < n; i += step) {
    vi q[2 * PANELS], sign[PANELS];
    int j[2];
    _Pragma("GCC unroll 2") for (int k = 0; k < step; k++) {
      j[k] = n == 4 ? j0 + i + k : (i + k) % 2 * 4 + (i + k) / 2; /* low and high nibbles of a vector one after the other */
      _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) {
        vi v = bytes ? load(w[0] + 32 * (j[k] * P + p)) : quad_of(bits, w[p], j[k]);
        if (bits == 8) sign[p] = v, v = _mm256_abs_epi8(v);
        q[k * P + p] = v;
        KEEP(q[k * P + p]);
      }
    }
    _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {
      vi x0 = _mm256_set1_epi32(int32_at(x[t] + at + 4 * j[0])), x1;
      if (bits == 6) x1 = _mm256_set1_epi32(int32_at(x[t] + at + 4 * j[1]));
      _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) {
        vi *s = &a[t * P + p], v = _mm256_maddubs_epi16(q[p], bits == 8 ? _mm256_sign_epi8(x0, sign[p]) : x0);
        if (bits == 6) v = _mm256_add_epi16(v, _mm256_maddubs_epi16(q[P + p], x1));
        if (bits != 4) v = _mm256_madd_epi16(v, one);
        *s = i == 0 ? v : bits == 4 ? _mm256_add_epi16(*s, v) : _mm256_add_epi32(*s, v);
        KEEP(*s);
      }
    }
  }
  vi ones = one;
  IN_MEMORY(ones); /* a register for it would cost a sum its own in the loop above */
  _Pragma("GCC unroll 16") for (int i = 0; i < P * T; i++) f[i] = _mm256_cvtepi32_ps(bits == 4 ? _mm256_madd_epi16(a[i], ones) : a[i]);
}

/* The end of a group: y = fma(s, t, y), y = fma(m, u, y). */
SH_INLINE void add_group(const int P, const int T, const run *c, const float *sm, const uint8_t *const *x, size_t u_at, const v8 *sum,
                         float *y) {
  _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {
    v8 u = _mm256_broadcast_ss((const float *)(const void *)(x[t] + u_at));
    _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) {
      v8 v = v8_fma(v8_load(sm + 16 * p), sum[t * P + p], v8_load(y + 8 * (t * P + p)));
      if (c->offsets) v = v8_fma(v8_load(sm + 16 * p + 8), u, v);
      v8_store(y + 8 * (t * P + p), v);
    }
  }
}

/* f d, and f d plus what there was. */
SH_INLINE void times_d(const int P, const int T, const uint8_t *const *x, size_t at, v8 *f) {
  _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {
    v8 d = _mm256_broadcast_ss((const float *)(const void *)(x[t] + at + B));
    _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) f[t * P + p] = _mm256_mul_ps(f[t * P + p], d);
  }
}

SH_INLINE void plus_times_d(const int P, const int T, const uint8_t *const *x, size_t at, const float *kept, v8 *f) {
  _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) {
    v8 d = _mm256_broadcast_ss((const float *)(const void *)(x[t] + at + B));
    _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) f[t * P + p] = v8_fma(f[t * P + p], d, v8_load(kept + 8 * (t * P + p)));
  }
}

SH_INLINE void tile(const int bits, const bool bytes, const mode m, const int P, const int T, const run *c, const uint8_t *const *rows,
                    float *y, float *kept) {
  const uint8_t *x[MAX_T], *w[PANELS], *ahead = c->ahead;
  const size_t step = bytes ? (size_t)P * 256 : (size_t)bits * 32;
  const float *sm = c->sm;
  size_t at = c->at, u_at = c->u_at;
  _Pragma("GCC unroll 8") for (int t = 0; t < T; t++) x[t] = rows[t];
  _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) w[p] = c->w[p];
  v8 sum[PANELS * MAX_T];
#define NEXT_BLOCK                                                                                                                         \
  do {                                                                                                                                     \
    if (P == 1) {                                                                                                                          \
      _Pragma("GCC unroll 4") for (size_t i = 0; i < step; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);                    \
      ahead += step;                                                                                                                       \
    }                                                                                                                                      \
    _Pragma("GCC unroll 2") for (int p = 0; p < P; p++) w[p] += step;                                                                      \
    at += SH_QPACK_BLOCK;                                                                                                                  \
  } while (0)
#define NEXT_GROUP (sm += 16 * P, u_at += sizeof(float))
  for (int g = 0; g < c->groups; NEXT_GROUP, g++) {
    if (m == HALF) {
      block_sums(bits, bytes, P, T, 0, 4, w, x, at, sum);
      times_d(P, T, x, at, sum);
      add_group(P, T, c, sm, x, u_at, sum, y);
      if (++g < c->groups) {
        NEXT_GROUP;
        block_sums(bits, bytes, P, T, 4, 4, w, x, at, sum);
        times_d(P, T, x, at, sum);
        add_group(P, T, c, sm, x, u_at, sum, y);
      }
      NEXT_BLOCK;
      continue;
    }
    if (m == ONE) {
      block_sums(bits, bytes, P, T, 0, 8, w, x, at, sum);
      times_d(P, T, x, at, sum);
      add_group(P, T, c, sm, x, u_at, sum, y);
      NEXT_BLOCK;
      continue;
    }
    for (int b = 0; b < c->blocks; b++) {
      block_sums(bits, bytes, P, T, 0, 8, w, x, at, sum);
      if (b == 0 && c->first) times_d(P, T, x, at, sum);
      else plus_times_d(P, T, x, at, kept, sum);
      if (b == c->blocks - 1 && c->last) add_group(P, T, c, sm, x, u_at, sum, y);
      else { _Pragma("GCC unroll 16") for (int i = 0; i < P * T; i++) v8_store(kept + 8 * i, sum[i]); }
      IN_PLACE;
      NEXT_BLOCK;
    }
  }
}

#define TILE(BITS, BYTES, MODE, P, T)                                                                                                      \
  static void tile_##BITS##_##MODE##_##P##_##T(const run *c, const uint8_t *const *x, float *y, float *t) {                                \
    tile(BITS, BYTES, MODE, P, T, c, x, y, t);                                                                                             \
  }
#define TILES4(MODE)                                                                                                                       \
  TILE(4, false, MODE, 1, 1)                                                                                                               \
  TILE(4, false, MODE, 1, 2)                                                                                                               \
  TILE(4, false, MODE, 1, 3)                                                                                                               \
  TILE(4, false, MODE, 1, 4)                                                                                                               \
  TILE(4, false, MODE, 1, 5)                                                                                                               \
  TILE(4, false, MODE, 1, 6)                                                                                                               \
  TILE(4, true, MODE, 2, 1)                                                                                                                \
  TILE(4, true, MODE, 2, 2)                                                                                                                \
  TILE(4, true, MODE, 2, 3)                                                                                                                \
  TILE(4, true, MODE, 2, 4)                                                                                                                \
  TILE(4, true, MODE, 2, 5)                                                                                                                \
  TILE(4, true, MODE, 2, 6)
#define TILES(BITS, BYTES, MODE)                                                                                                           \
  TILE(BITS, false, MODE, 1, 1)                                                                                                            \
  TILE(BITS, false, MODE, 1, 2)                                                                                                            \
  TILE(BITS, false, MODE, 1, 3)                                                                                                            \
  TILE(BITS, BYTES, MODE, 2, 1)                                                                                                            \
  TILE(BITS, BYTES, MODE, 2, 2)                                                                                                            \
  TILE(BITS, BYTES, MODE, 2, 3)
TILES4(HALF)
TILES4(ONE)
TILES4(SEVERAL)
TILES(6, true, HALF)
TILES(6, true, ONE)
TILES(6, true, SEVERAL)
TILES(8, false, HALF)
TILES(8, false, ONE)
TILES(8, false, SEVERAL)

/* What the type's tiles are; [mode][T]. */
typedef struct kind {
  int bits;
  bool bytes; /* many rows: expanded first */
  int few;    /* up to this many rows are few */
  int many_t; /* rows of a tile of many */
  tile_fn *few_tile[MODES][MAX_T + 1], *many_tile[MODES][MAX_T + 1];
} kind;

#define FEW3(BITS, MODE)                                                                                                                   \
  { NULL, tile_##BITS##_##MODE##_1_1, tile_##BITS##_##MODE##_1_2, tile_##BITS##_##MODE##_1_3 }
#define MANY3(BITS, MODE)                                                                                                                  \
  { NULL, tile_##BITS##_##MODE##_2_1, tile_##BITS##_##MODE##_2_2, tile_##BITS##_##MODE##_2_3 }
#define FEW6(MODE)                                                                                                                         \
  { NULL, tile_4_##MODE##_1_1, tile_4_##MODE##_1_2, tile_4_##MODE##_1_3, tile_4_##MODE##_1_4, tile_4_##MODE##_1_5, tile_4_##MODE##_1_6 }
/* the last block of many rows may have one or two */
#define MANY6(MODE)                                                                                                                        \
  { NULL, tile_4_##MODE##_2_1, tile_4_##MODE##_2_2, tile_4_##MODE##_2_3, tile_4_##MODE##_2_4, tile_4_##MODE##_2_5, tile_4_##MODE##_2_6 }

static const kind kinds[3] = {
    {4, true, 6, 6, {FEW6(HALF), FEW6(ONE), FEW6(SEVERAL)}, {MANY6(HALF), MANY6(ONE), MANY6(SEVERAL)}},
    {6, true, 3, 3, {FEW3(6, HALF), FEW3(6, ONE), FEW3(6, SEVERAL)}, {MANY3(6, HALF), MANY3(6, ONE), MANY3(6, SEVERAL)}},
    {8, false, 3, 3, {FEW3(8, HALF), FEW3(8, ONE), FEW3(8, SEVERAL)}, {MANY3(8, HALF), MANY3(8, ONE), MANY3(8, SEVERAL)}},
};

/* --- Scales: s and m of groups [g0, g0 + n) of a panel, those of group g at sm + stride * g and 8 further on. */

SH_INLINE v8 numbers(const sh_dtype type, const uint8_t *p) {
  return type == SH_F16 ? v8_load_f16(p) : type == SH_BF16 ? v8_load_bf16(p) : v8_load_f32(p);
}

SH_INLINE v8 of_bytes(const uint8_t *p, const bool sign) {
  __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
  return _mm256_cvtepi32_ps(sign ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

typedef struct panel_kind {
  const sh_wview *v;
  sh_panel_shape s;
  const kind *k;
  mode m;
  int64_t per_group; /* blocks of a group; HALF: 1 */
  bool offsets;
} panel_kind;

SH_INLINE void scales_plain(const sh_dtype type, const panel_kind *k, const uint8_t *panel, int64_t g0, int n, float *sm, int stride) {
  const size_t one = type == SH_F32 ? 4 : 2;
  const uint8_t *s = panel + k->s.scales_at + (size_t)g0 * R * one, *m = panel + k->s.offsets_at;
  const v8 middle = v8_set(k->s.bits == 4 ? -8.0f : k->s.bits == 6 ? -32.0f : 0);
  const bool sign = k->s.bits == 8;
  switch ((sh_panel_offset)k->v->panel_offset) {
  case SH_PANEL_MIDDLE:
    for (int g = 0; g < n; g++, s += R * one, sm += stride) {
      v8 v = numbers(type, s);
      v8_store(sm, v);
      v8_store(sm + 8, _mm256_mul_ps(v, middle));
    }
    return;
  case SH_PANEL_ZERO:
    for (m += g0 * R; n > 0; n--, s += R * one, m += R, sm += stride) {
      v8 v = numbers(type, s);
      v8_store(sm, v);
      v8_store(sm + 8, v8_neg(_mm256_mul_ps(v, of_bytes(m, sign))));
    }
    return;
  default:
    for (m += (size_t)g0 * R * one; n > 0; n--, s += R * one, m += R * one, sm += stride) {
      v8_store(sm, numbers(type, s));
      v8_store(sm + 8, numbers(type, m));
    }
  }
}

static void scales_super(const panel_kind *k, const uint8_t *panel, int64_t g0, int n, float *sm, int stride) {
  const uint8_t *s = panel + k->s.scales_at, *m = panel + k->s.offsets_at;
  const size_t bytes = (size_t)k->s.supers * R * 2; /* where the groups' bytes begin */
  const bool sign = k->v->panel_scales == SH_PANEL_SUPER_I8;
  const v8 middle = v8_set(k->s.bits == 4 ? -8.0f : k->s.bits == 6 ? -32.0f : 0);
  for (int64_t g = g0; g < g0 + n; g++, sm += stride) {
    const size_t super = (size_t)(g * k->v->group / SH_PANEL_SUPER) * R * 2, at = bytes + (size_t)g * R;
    v8 v = _mm256_mul_ps(v8_load_f16(s + super), of_bytes(s + at, sign));
    v8_store(sm, v);
    if (k->v->panel_offset == SH_PANEL_MIDDLE) v = _mm256_mul_ps(v, middle);
    else if (k->v->panel_offset == SH_PANEL_MIN) v = v8_neg(_mm256_mul_ps(v8_load_f16(m + super), of_bytes(m + at, false)));
    else v = v8_neg(_mm256_mul_ps(v, of_bytes(m + (size_t)g * R, k->s.bits == 8)));
    v8_store(sm + 8, v);
  }
}

static void scales(const panel_kind *k, const uint8_t *panel, int64_t g0, int n, float *sm, int stride) {
  if (k->v->panel_scales != SH_PANEL_PLAIN) scales_super(k, panel, g0, n, sm, stride);
  else if (k->v->scale_type == SH_F16) scales_plain(SH_F16, k, panel, g0, n, sm, stride);
  else if (k->v->scale_type == SH_BF16) scales_plain(SH_BF16, k, panel, g0, n, sm, stride);
  else scales_plain(SH_F32, k, panel, g0, n, sm, stride);
}

/* --- Runs. A run has whole groups, as many as RUN blocks hold, or a part of one that has more blocks. */

static panel_kind kind_of(const sh_wview *v) {
  panel_kind k = {.v = v, .s = sh_panel_shape_of(v)};
  k.k = &kinds[v->type == SH_P4 ? 0 : v->type == SH_P6 ? 1 : 2];
  k.per_group = v->group == B / 2 ? 1 : k.s.blocks / k.s.groups;
  k.m = v->group == B / 2 ? HALF : k.per_group == 1 ? ONE : SEVERAL;
  k.offsets = k.s.bits != 8 || v->panel_offset != SH_PANEL_MIDDLE;
  return k;
}

/* The run that begins at block b, without its weights; returns its blocks. */
static int64_t run_at(const panel_kind *k, int64_t b, run *c, int64_t *group) {
  const int64_t left = k->s.blocks - b, g = k->m == HALF ? 2 * b : b / k->per_group;
  int64_t n = left < RUN ? left : RUN, done = b - g * k->per_group; /* done: blocks of the group before b */
  *group = g;
  c->first = c->last = true;
  if (k->m == HALF) {
    c->groups = (int)(k->s.groups - g < 2 * n ? k->s.groups - g : 2 * n);
  } else if (k->per_group <= RUN) {
    c->groups = (int)(n / k->per_group);
    n = c->groups * k->per_group;
    c->blocks = (int)k->per_group;
  } else {
    if (n > k->per_group - done) n = k->per_group - done;
    c->groups = 1;
    c->blocks = (int)n;
    c->first = done == 0;
    c->last = done + n == k->per_group;
  }
  c->at = (size_t)b * SH_QPACK_BLOCK;
  c->u_at = (size_t)k->s.blocks * SH_QPACK_BLOCK + (size_t)g * sizeof(float);
  return n;
}

static void zero(float *p, int n) {
  for (int i = 0; i < n; i += 8) v8_store(p + i, v8_zero());
}

/* --- Few activation rows. */

/* While a panel is read the next one is asked for, blocks as they come and then scales in the same proportion. The first panel's scales are
 * asked for at the start; its blocks the machine foresees by itself. */
static void few_rows(const sh_mm *a, const panel_kind *k) {
  float sm[GROUPS * 16], y[MAX_T * 8], t[MAX_T * 8];
  const uint8_t *panel = a->w->data + (size_t)a->r0 / R * k->s.bytes;
  const size_t block = (size_t)k->s.bits * B;
  tile_fn *fn = k->k->few_tile[k->m][a->n_tok];
  for (size_t i = k->s.scales_at; i < k->s.bytes; i += 64) _mm_prefetch((const char *)panel + i, _MM_HINT_T1);
  for (int r0 = 0; r0 < a->n_rows; r0 += R, panel += k->s.bytes) {
    const bool more = r0 + R < a->n_rows;
    const uint8_t *ahead = more ? panel + k->s.bytes : panel, *tail = ahead + k->s.scales_at;
    zero(y, a->n_tok * 8);
    for (int64_t b = 0, n, g; b < k->s.blocks; b += n) {
      run c = {.sm = sm, .offsets = k->offsets, .w = {panel + (size_t)b * block}, .ahead = more ? ahead + (size_t)b * block : panel};
      n = run_at(k, b, &c, &g);
      scales(k, panel, g, c.groups, sm, 16);
      fn(&c, a->q, y, t);
      const uint8_t *stop = ahead + k->s.scales_at + (k->s.bytes - k->s.scales_at) * (size_t)(b + n) / (size_t)k->s.blocks;
      for (; more && tail < stop; tail += 64) _mm_prefetch((const char *)tail, _MM_HINT_T1);
    }
    for (int i = 0; i < a->n_tok; i++) put8(a, i, r0, v8_load(y + 8 * i));
  }
}

/* --- Many activation rows. */

typedef struct work {
  float y[TOKENS * PANELS * 8], t[TOKENS * PANELS * 8];
  float sm[GROUPS * PANELS * 16];
  uint8_t bytes[RUN * PANELS * 256];
} work;
_Static_assert(sizeof(work) <= SH_QMM_FLOATS * sizeof(float), "scratch of qmm");

SH_INLINE void expand(const int bits, const uint8_t *panel, int64_t blocks, uint8_t *out) {
  for (int64_t b = 0; b < blocks; b++, panel += bits * B, out += PANELS * 256) {
    _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) _mm256_store_si256((vi *)(void *)(out + PANELS * 32 * j), quad_of(bits, panel, j));
  }
}

/* What comes next, asked for a little after every tile. */
typedef struct ahead {
  const uint8_t *p, *end;
  size_t per_step;
} ahead;

static ahead ahead_of(const uint8_t *p, const uint8_t *end, int64_t steps) {
  return (ahead){.p = p, .end = end > p ? end : p, .per_step = end > p ? ((size_t)(end - p) / 64 / (size_t)steps + 1) * 64 : 0};
}

SH_INLINE void ahead_step(ahead *h) {
  const uint8_t *stop = h->per_step < (size_t)(h->end - h->p) ? h->p + h->per_step : h->end;
  for (; h->p < stop; h->p += 64) _mm_prefetch((const char *)h->p, _MM_HINT_T1);
}

/* Two panels (or one, twice) over activation rows [t0, t0 + n). */
static void panels_product(const sh_mm *a, const panel_kind *k, const uint8_t *const *panel, int t0, int n, ahead *next, work *w) {
  const size_t block = (size_t)k->s.bits * B;
  const int tiles = (n + k->k->many_t - 1) / k->k->many_t;
  zero(w->y, n * PANELS * 8);
  for (int64_t b = 0, m, g; b < k->s.blocks; b += m) {
    run c = {.sm = w->sm, .offsets = k->offsets};
    m = run_at(k, b, &c, &g);
    for (int p = 0; p < PANELS; p++) {
      c.w[p] = panel[p] + (size_t)b * block;
      scales(k, panel[p], g, c.groups, w->sm + 16 * p, 16 * PANELS);
      if (k->s.bits == 4) expand(4, c.w[p], m, w->bytes + 32 * p);
      if (k->s.bits == 6) expand(6, c.w[p], m, w->bytes + 32 * p);
    }
    if (k->k->bytes) c.w[0] = w->bytes;
    for (int t = 0, i = 0; i < tiles; i++) {
      int T = (n - t + tiles - i - 1) / (tiles - i);
      k->k->many_tile[k->m][T](&c, a->q + t0 + t, w->y + t * PANELS * 8, c.first && c.last ? w->t : w->t + t * PANELS * 8);
      ahead_step(next);
      t += T;
    }
  }
}

/* Activation rows of a block: even shares of at most TOKENS and BLOCK_BYTES, at least a tile. */
static int block_tokens(const sh_mm *a, const panel_kind *k) {
  int64_t fit = BLOCK_BYTES / (k->s.blocks * SH_QPACK_BLOCK);
  int most = fit > TOKENS ? TOKENS : fit < 4 * MAX_T ? 4 * MAX_T : (int)fit, blocks = (a->n_tok + most - 1) / most;
  int even = (a->n_tok + blocks - 1) / blocks;
  return (even + MAX_T - 1) / MAX_T * MAX_T;
}

static void many_rows(const sh_mm *a, const panel_kind *k) {
  work *w = (work *)(void *)a->scratch;
  const int step = block_tokens(a, k);
  const uint8_t *first = a->w->data + (size_t)a->r0 / R * k->s.bytes, *end = first + (size_t)((a->n_rows + R - 1) / R) * k->s.bytes;
  for (int t0 = 0; t0 < a->n_tok; t0 += step) {
    const int n = a->n_tok - t0 < step ? a->n_tok - t0 : step;
    const int64_t steps = (int64_t)((n + k->k->many_t - 1) / k->k->many_t) * ((k->s.blocks + RUN - 1) / RUN);
    for (int r0 = 0; r0 < a->n_rows; r0 += SH_QMM_ROWS) {
      const uint8_t *p = first + (size_t)r0 / R * k->s.bytes, *panel[PANELS] = {p, r0 + R < a->n_rows ? p + k->s.bytes : p};
      const uint8_t *after = p + PANELS * k->s.bytes, *stop = after + PANELS * k->s.bytes;
      ahead next = t0 == 0 ? ahead_of(after, stop < end ? stop : end, steps) : (ahead){0};
      panels_product(a, k, panel, t0, n, &next, w);
      for (int t = 0; t < n; t++) {
        for (int i = 0; i < PANELS && r0 + i * R < a->n_rows; i++) put8(a, t0 + t, r0 + i * R, v8_load(w->y + (t * PANELS + i) * 8));
      }
    }
  }
}

void sh_kern_qmm_avx2(const sh_mm *a) {
  const panel_kind k = kind_of(a->w);
  if (a->n_tok < 1) return;
  if (a->n_tok <= k.k->few) few_rows(a, &k);
  else many_rows(a, &k);
}
