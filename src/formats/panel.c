/* Panels: from rows of integers, GGUF blocks or floats to the order of formats/panel.h, and back for tests and reports.
 *
 * Pure functions, any thread. A panel is made block by block (32 columns of eight rows): the integers of a row's block are brought into 32
 * bytes, held as four 64-bit words whatever they come from, and these are packed and laid down as quads, 4 bytes every 32. The words are
 * all the vector code there is: masks and shifts of eight bytes at a time run at the speed of memory on any machine, so that no instruction
 * set enters this folder. Integers are moved, never computed anew: scales, zero points and minimums go along as they are stored, and
 * s q + m is the number that the source's definition gives.
 *
 * Q5_0's integers 0..31 with 16 in the middle become 16..47 with 32 in the middle, so that no zero point has to be stored.
 *
 * Refused: panels straight from AWQ's and GPTQ's words, without rows in between. The rows of a slab stay in the second-level cache, and the
 * two transposes together are faster than new memory can be had from the system. */
#include "formats/panel.h"

#include <math.h>
#include <string.h>

#include "formats/dequant.h"

enum { ROWS = SH_PANEL_ROWS, COLS = SH_PANEL_BLOCK, VECTOR = 32 /* bytes: a quad of eight rows */ };

#define EACH(byte) ((uint64_t)(byte)*UINT64_C(0x0101010101010101))

static uint16_t load16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static uint32_t load32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static uint64_t load64(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* --- The names of --head */

int sh_head_parse(const char *name, bool exact, sh_head *out, sh_error *e) {
  static const char *const NAMES[] = {"auto", "int4", "int6", "int8", "bf16"}; /* in the enum's order */
  *out = SH_HEAD_AUTO;
  if (!name) return 0;
  size_t i = 0;
  while (i < sizeof NAMES / sizeof NAMES[0] && strcmp(name, NAMES[i])) i++;
  if (i == sizeof NAMES / sizeof NAMES[0]) return sh_fail(e, SH_ERR_ARG, "head is %.40s; one of " SH_HEAD_NAMES " is wanted", name);
  if (exact && i != SH_HEAD_AUTO && i != SH_HEAD_BF16)
    return sh_fail(e, SH_ERR_ARG, "head %s contradicts exact, which computes with the weights as they are stored; leave one of them out",
                   name);
  *out = (sh_head)i;
  return 0;
}

/* --- The form */

static bool is_float(sh_dtype t) { return t == SH_F32 || t == SH_F16 || t == SH_BF16; }

static bool plan_floats(sh_head head, sh_wview *v) {
  if (head != SH_HEAD_INT4 && head != SH_HEAD_INT6 && head != SH_HEAD_INT8) return false;
  v->type = head == SH_HEAD_INT4 ? SH_P4 : head == SH_HEAD_INT6 ? SH_P6 : SH_P8;
  v->panel_offset = head == SH_HEAD_INT4 ? SH_PANEL_MIN : SH_PANEL_MIDDLE;
  v->group = COLS;
  v->scale_type = SH_BF16;
  return true;
}

static bool plan_blocks(sh_dtype t, sh_wview *v) {
  static const struct {
    sh_dtype from, to;
    uint8_t scales, offset;
    int group;
  } FORMS[] = {
      {SH_Q8_0, SH_P8, SH_PANEL_PLAIN, SH_PANEL_MIDDLE, 32}, {SH_Q4_0, SH_P4, SH_PANEL_PLAIN, SH_PANEL_MIDDLE, 32},
      {SH_Q4_1, SH_P4, SH_PANEL_PLAIN, SH_PANEL_MIN, 32},    {SH_Q5_0, SH_P6, SH_PANEL_PLAIN, SH_PANEL_MIDDLE, 32},
      {SH_Q5_1, SH_P6, SH_PANEL_PLAIN, SH_PANEL_MIN, 32},    {SH_Q4_K, SH_P4, SH_PANEL_SUPER_U8, SH_PANEL_MIN, 32},
      {SH_Q5_K, SH_P6, SH_PANEL_SUPER_U8, SH_PANEL_MIN, 32}, {SH_Q6_K, SH_P6, SH_PANEL_SUPER_I8, SH_PANEL_MIDDLE, 16},
  };
  for (size_t i = 0; i < sizeof FORMS / sizeof FORMS[0]; i++) {
    if (FORMS[i].from != t) continue;
    v->type = FORMS[i].to;
    v->panel_scales = FORMS[i].scales;
    v->panel_offset = FORMS[i].offset;
    v->group = FORMS[i].group;
    v->scale_type = SH_F16;
    return true;
  }
  return false;
}

bool sh_panel_plan(const sh_wview *src, sh_head head, sh_wview *out) {
  sh_wview v = {.rows = src->rows, .cols = src->cols, .name = src->name, .perm = src->perm, .scale_rows = 1};
  if (is_float(src->type)) {
    if (!plan_floats(head, &v)) return false;
  } else if (src->type == SH_I4 || src->type == SH_I8 || src->type == SH_U8) {
    v.type = src->type == SH_I4 ? SH_P4 : SH_P8;
    v.panel_offset = src->zeros ? SH_PANEL_ZERO : SH_PANEL_MIDDLE;
    v.group = src->group;
    v.scale_type = src->scale_type;
  } else if (!plan_blocks(src->type, &v)) {
    return false;
  }
  if (v.cols < 1 || v.group < 1 || v.cols % v.group || (v.group % 16 && v.group != v.cols)) return false;
  v.row_bytes = sh_panel_shape_of(&v).bytes / ROWS;
  *out = v;
  return true;
}

/* --- Integers of a block of one row: 32 bytes */

/* Eight nibbles to eight bytes, the lowest first. */
static uint64_t spread(uint32_t nibbles) {
  uint64_t x = nibbles;
  x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
  x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
  return (x | x << 4) & EACH(15);
}

/* Eight bits to eight bytes of 0 or 16. */
static uint64_t fifth_bits(uint32_t bits) {
  uint64_t x = EACH(bits & 255) & UINT64_C(0x8040201008040201);
  return ((x + EACH(127)) >> 7 & EACH(1)) << 4;
}

/* 16 bytes whose low nibbles are columns 0..15 and whose high ones 16..31. */
static void halves(const uint8_t *p, uint64_t q[4]) {
  uint64_t a = load64(p), b = load64(p + 8);
  q[0] = a & EACH(15);
  q[1] = b & EACH(15);
  q[2] = a >> 4 & EACH(15);
  q[3] = b >> 4 & EACH(15);
}

static void add_fifth(uint32_t high, uint64_t add, uint64_t q[4]) {
  for (int i = 0; i < 4; i++) q[i] = (q[i] | fifth_bits(high >> 8 * i)) + add;
}

/* A run of Q4_K, or of Q5_K with its 32 bytes of fifth bits. */
static void run_k(const uint8_t *nibbles, const uint8_t *high, int run, uint64_t q[4]) {
  for (int i = 0; i < 4; i++) {
    q[i] = load64(nibbles + 32 * (run / 2) + 8 * i) >> 4 * (run & 1) & EACH(15);
    if (high) q[i] |= (load64(high + 8 * i) >> run & EACH(1)) << 4;
  }
}

/* Q6_K: run 0..7 of 32 weights (dequant.c has the layout). */
static void run_q6_k(const uint8_t *b, int run, uint64_t q[4]) {
  const uint8_t *lo = b + 64 * (run / 4) + 32 * (run & 1), *hi = b + 128 + 32 * (run / 4);
  for (int i = 0; i < 4; i++)
    q[i] = (load64(lo + 8 * i) >> (run & 2 ? 4 : 0) & EACH(15)) | (load64(hi + 8 * i) >> 2 * (run & 3) & EACH(3)) << 4;
}

/* The end of a group that is no multiple of 32: n columns, then zeros. */
static void short_block(sh_dtype t, const uint8_t *row, int64_t k, int n, uint64_t q[4]) {
  uint8_t b[COLS] = {0};
  for (int i = 0; i < n; i++) {
    int64_t c = k + i;
    if (t == SH_I4) b[i] = c & 1 ? row[c / 2] >> 4 : row[c / 2] & 15;
    else b[i] = t == SH_U8 ? row[c] ^ 128 : row[c];
  }
  memcpy(q, b, sizeof b);
}

/* Columns [k, k + n) of a row. Only types with groups have blocks of less than 32. */
static inline void ints_of(sh_dtype t, const uint8_t *row, int64_t k, int n, uint64_t q[4]) {
  const uint8_t *b;
  if (n < COLS) {
    short_block(t, row, k, n, q);
    return;
  }
  switch (t) {
  case SH_I4:
    b = row + k / 2;
    for (int i = 0; i < 4; i++) q[i] = spread(load32(b + 4 * i));
    return;
  case SH_I8: memcpy(q, row + k, COLS); return;
  case SH_U8:
    for (int i = 0; i < 4; i++) q[i] = load64(row + k + 8 * i) ^ EACH(128);
    return;
  case SH_Q8_0: memcpy(q, row + k / 32 * 34 + 2, COLS); return;
  case SH_Q4_0: halves(row + k / 32 * 18 + 2, q); return;
  case SH_Q4_1: halves(row + k / 32 * 20 + 4, q); return;
  case SH_Q5_0:
    b = row + k / 32 * 22;
    halves(b + 6, q);
    add_fifth(load32(b + 2), EACH(16), q);
    return;
  case SH_Q5_1:
    b = row + k / 32 * 24;
    halves(b + 8, q);
    add_fifth(load32(b + 4), 0, q);
    return;
  case SH_Q4_K:
    b = row + k / 256 * 144;
    run_k(b + 16, NULL, (int)(k % 256 / 32), q);
    return;
  case SH_Q5_K:
    b = row + k / 256 * 176;
    run_k(b + 48, b + 16, (int)(k % 256 / 32), q);
    return;
  default: run_q6_k(row + k / 256 * 210, (int)(k % 256 / 32), q); return;
  }
}

/* --- Laying down: dst is the block, from byte 4 r on */

static void put_quads(uint8_t *dst, uint64_t two) {
  uint32_t lo = (uint32_t)two, hi = (uint32_t)(two >> 32);
  memcpy(dst, &lo, sizeof lo);
  memcpy(dst + VECTOR, &hi, sizeof hi);
}

static void put_ints(int bits, uint8_t *dst, const uint64_t q[4]) {
  if (bits == 8) {
    for (int i = 0; i < 4; i++) put_quads(dst + 2 * VECTOR * i, q[i]);
    return;
  }
  put_quads(dst, (q[0] & EACH(15)) | (q[2] & EACH(15)) << 4);
  put_quads(dst + 2 * VECTOR, (q[1] & EACH(15)) | (q[3] & EACH(15)) << 4);
  if (bits == 4) return;
  put_quads(dst + 4 * VECTOR, (q[0] >> 4 & EACH(3)) | (q[1] >> 4 & EACH(3)) << 2 | (q[2] >> 4 & EACH(3)) << 4 | (q[3] >> 4 & EACH(3)) << 6);
}

/* Columns that blocks run through without padding: a group, or for groups of half a block the row. */
static int64_t run_of(const sh_wview *v) { return v->group == COLS / 2 ? v->cols : v->group; }

/* All blocks of a panel of n rows. Inlined with a constant type, so that the choice is made once and not per block. */
static inline __attribute__((always_inline)) void put_blocks(sh_dtype t, const uint8_t *rows, size_t row_bytes, int n, const sh_wview *v,
                                                             int bits, uint8_t *dst) {
  int64_t run = run_of(v);
  for (int64_t start = 0; start < v->cols; start += run) {
    for (int64_t k = start, end = start + run; k < end; k += COLS, dst += bits * VECTOR) {
      int cols = end - k < COLS ? (int)(end - k) : COLS;
      for (int r = 0; r < n; r++) {
        uint64_t q[4];
        ints_of(t, rows + (size_t)r * row_bytes, k, cols, q);
        put_ints(bits, dst + 4 * r, q);
      }
    }
  }
}

static void put_panel(const sh_wview *s, const uint8_t *rows, int n, const sh_wview *v, uint8_t *dst) {
  switch (s->type) {
#define CASE(type, bits)                                                                                                                   \
  case type: put_blocks(type, rows, s->row_bytes, n, v, bits, dst); return
    CASE(SH_I4, 4);
    CASE(SH_I8, 8);
    CASE(SH_U8, 8);
    CASE(SH_Q8_0, 8);
    CASE(SH_Q4_0, 4);
    CASE(SH_Q4_1, 4);
    CASE(SH_Q5_0, 6);
    CASE(SH_Q5_1, 6);
    CASE(SH_Q4_K, 4);
    CASE(SH_Q5_K, 6);
    CASE(SH_Q6_K, 6);
#undef CASE
  default: return; /* sh_panel_plan refused it */
  }
}

/* --- Scales, zero points, minimums of row r of a panel: scales and offsets are the panel's parts */

static void put_grouped(const sh_wview *s, int64_t row, int r, int64_t groups, uint8_t *scales, uint8_t *offsets) {
  const uint8_t *in = s->scales + (size_t)row * s->scale_row_bytes, *zeros = NULL;
  if (s->zeros) zeros = s->zeros + (size_t)row * s->zero_row_bytes;
  for (int64_t g = 0; g < groups; g++) {
    if (s->scale_type == SH_F32) memcpy(scales + 4 * (g * ROWS + r), in + 4 * g, 4);
    else memcpy(scales + 2 * (g * ROWS + r), in + 2 * g, 2);
    if (zeros) offsets[g * ROWS + r] = s->type == SH_U8 ? zeros[g] ^ 128 : zeros[g];
  }
}

/* Blocks of 32 that begin with f16 d, and with f16 m behind it where there is a minimum. */
static void put_plain(const sh_wview *s, const uint8_t *row, int r, int64_t groups, bool min, uint8_t *scales, uint8_t *offsets) {
  int bytes = sh_dtype_block_bytes(s->type);
  for (int64_t g = 0; g < groups; g++, row += bytes) {
    memcpy(scales + 2 * (g * ROWS + r), row, 2);
    if (min) memcpy(offsets + 2 * (g * ROWS + r), row + 2, 2);
  }
}

static void put_super(const sh_wview *s, const uint8_t *row, int r, int64_t supers, uint8_t *scales, uint8_t *offsets) {
  uint8_t *k = scales + supers * ROWS * 2, *k_min = offsets + supers * ROWS * 2;
  int bytes = sh_dtype_block_bytes(s->type);
  for (int64_t i = 0; i < supers; i++, row += bytes) {
    if (s->type == SH_Q6_K) {
      memcpy(scales + 2 * (i * ROWS + r), row + 208, 2);
      for (int j = 0; j < 16; j++) k[(16 * i + j) * ROWS + r] = row[192 + j];
      continue;
    }
    memcpy(scales + 2 * (i * ROWS + r), row, 2);
    memcpy(offsets + 2 * (i * ROWS + r), row + 2, 2);
    for (int j = 0; j < 8; j++) {
      int scale, min;
      sh_k_scale(row + 4, j, &scale, &min);
      k[(8 * i + j) * ROWS + r] = (uint8_t)scale;
      k_min[(8 * i + j) * ROWS + r] = (uint8_t)min;
    }
  }
}

/* --- Floats: a head that is rounded */

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* The bfloat16 next to f away from zero. */
static uint16_t bf16_outwards(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return (uint16_t)((u + 0xffff) >> 16);
}

static uint16_t bf16_downwards(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return f < 0 ? bf16_outwards(f) : (uint16_t)(u >> 16);
}

/* Columns [k, k + 32) of a row. */
static void load_floats(sh_dtype t, const uint8_t *row, int64_t k, float x[COLS]) {
  if (t == SH_F32) {
    memcpy(x, row + 4 * k, COLS * sizeof *x);
  } else if (t == SH_F16) {
    sh_dequant(t, row + 2 * k, COLS, x);
  } else {
    uint16_t h[COLS];
    memcpy(h, row + 2 * k, sizeof h);
    for (int i = 0; i < COLS; i++) x[i] = float_of((uint32_t)h[i] << 16);
  }
}

/* The largest |x|, by its bits; not less than infinity's when a value is not finite. Eight running maxima let the compiler use vectors. */
static float largest(const float x[COLS]) {
  int32_t most[8] = {0}, all = 0;
  for (int i = 0; i < COLS; i += 8) {
    for (int j = 0; j < 8; j++) {
      int32_t u;
      memcpy(&u, &x[i + j], sizeof u);
      u &= 0x7fffffff;
      most[j] = u > most[j] ? u : most[j];
    }
  }
  for (int j = 0; j < 8; j++) all = most[j] > all ? most[j] : all;
  return float_of((uint32_t)all);
}

static float least(const float x[COLS], float sign) {
  float low[8], all = INFINITY;
  for (int j = 0; j < 8; j++) low[j] = sign * x[j];
  for (int i = 8; i < COLS; i += 8) {
    for (int j = 0; j < 8; j++) low[j] = sign * x[i + j] < low[j] ? sign * x[i + j] : low[j];
  }
  for (int j = 0; j < 8; j++) all = low[j] < all ? low[j] : all;
  return sign * all;
}

/* q = round to nearest even of (x - m) / s + middle, in [middle - below, middle + above]. */
static void round_ints(const float x[COLS], float s, float m, int below, int above, int middle, uint64_t q[4]) {
  const float magic = 0x1.8p23f; /* adding it leaves the rounded integer in the low bits */
  int32_t zero;
  uint8_t b[COLS];
  memcpy(&zero, &magic, sizeof zero);
  for (int i = 0; i < COLS; i++) {
    float t = (x[i] - m) / s + magic;
    int32_t v;
    memcpy(&v, &t, sizeof v);
    v -= zero;
    v = v < -below ? -below : v;
    v = v > above ? above : v;
    b[i] = (uint8_t)(v + middle);
  }
  memcpy(q, b, sizeof b);
}

/* A block of a row: its integers, scale and minimum. Scales are rounded up to bfloat16, and minimums down, so that the steps cover the
 * block's range: nothing is off by more than half of one. A block with a value that is not finite gets a scale that is none. */
static void round_block(const sh_wview *v, const float x[COLS], uint64_t q[4], uint16_t *scale, uint16_t *min) {
  float a = largest(x), low = 0, s;
  if (v->type == SH_P4) {
    *min = bf16_downwards(least(x, 1));
    low = sh_bf16_to_f32(*min);
    *scale = bf16_outwards((least(x, -1) - low) / 15);
  } else {
    *scale = bf16_outwards(a / (v->type == SH_P6 ? 31.5f : 127.5f));
  }
  s = sh_bf16_to_f32(*scale);
  memset(q, 0, COLS);
  if (!isfinite(a) || !isfinite(s) || !isfinite(low)) *scale = 0x7fc0, *min = 0;
  else if (s > 0 && v->type == SH_P4) round_ints(x, s, low, 0, 15, 0, q);
  else if (s > 0 && v->type == SH_P6) round_ints(x, s, 0, 32, 31, 32, q);
  else if (s > 0) round_ints(x, s, 0, 128, 127, 0, q);
}

static void round_panel(const sh_wview *s, const uint8_t *rows, int n, const sh_wview *v, const sh_panel_shape *shape, uint8_t *dst) {
  for (int64_t g = 0; g < shape->groups; g++) {
    for (int r = 0; r < n; r++) {
      float x[COLS];
      uint64_t q[4];
      uint16_t scale, min = 0;
      load_floats(s->type, rows + (size_t)r * s->row_bytes, g * COLS, x);
      round_block(v, x, q, &scale, &min);
      put_ints(shape->bits, dst + g * shape->bits * VECTOR + 4 * r, q);
      memcpy(dst + shape->scales_at + 2 * (g * ROWS + r), &scale, 2);
      if (v->panel_offset == SH_PANEL_MIN) memcpy(dst + shape->offsets_at + 2 * (g * ROWS + r), &min, 2);
    }
  }
}

/* --- The whole */

void sh_panel_make(const sh_wview *src, const sh_wview *plan, int64_t first, int64_t n, uint8_t *dst) {
  sh_panel_shape shape = sh_panel_shape_of(plan);
  for (int64_t p = first; p < first + n; p++, dst += shape.bytes) {
    int64_t row = p * ROWS;
    int rows = plan->rows - row < ROWS ? (int)(plan->rows - row) : ROWS;
    const uint8_t *in = src->data + (size_t)row * src->row_bytes;
    uint8_t *scales = dst + shape.scales_at, *offsets = dst + shape.offsets_at;
    size_t kept = rows < ROWS ? 0 : shape.scales_at;
    memset(dst + kept, 0, shape.bytes - kept);
    if (is_float(src->type)) {
      round_panel(src, in, rows, plan, &shape, dst);
      continue;
    }
    put_panel(src, in, rows, plan, dst);
    for (int r = 0; r < rows; r++, in += src->row_bytes) {
      if (sh_dtype_has_groups(src->type)) put_grouped(src, row + r, r, shape.groups, scales, offsets);
      else if (shape.supers) put_super(src, in, r, shape.supers, scales, offsets);
      else put_plain(src, in, r, shape.groups, plan->panel_offset == SH_PANEL_MIN, scales, offsets);
    }
  }
}

/* --- Back */

static int int_of(int bits, const uint8_t *block, int r, int c) {
  if (bits == 8) return (int8_t)block[c / 4 * VECTOR + 4 * r + c % 4];
  int byte = block[c % 16 / 4 * VECTOR + 4 * r + c % 4], q = c < 16 ? byte & 15 : byte >> 4;
  if (bits == 4) return q;
  return q | (block[4 * VECTOR + c % 8 / 4 * VECTOR + 4 * r + c % 4] >> 2 * (c / 8) & 3) << 4;
}

static float number(sh_dtype t, const uint8_t *p, int64_t i) {
  if (t == SH_F32) return float_of(load32(p + 4 * i));
  return t == SH_F16 ? sh_f16_to_f32(load16(p + 2 * i)) : sh_bf16_to_f32(load16(p + 2 * i));
}

/* d * k of group g: a part of f16 d [supers][8] and bytes [groups][8]. */
static float product(const sh_wview *v, const sh_panel_shape *s, const uint8_t *part, int64_t g, int r) {
  const uint8_t *k = part + s->supers * ROWS * 2 + g * ROWS + r;
  float d = number(SH_F16, part, g * v->group / SH_PANEL_SUPER * ROWS + r);
  return d * (v->panel_scales == SH_PANEL_SUPER_I8 ? (float)(int8_t)*k : (float)*k);
}

static void scale_of(const sh_wview *v, const sh_panel_shape *shape, const uint8_t *panel, int64_t g, int r, float *s, float *m) {
  const uint8_t *scales = panel + shape->scales_at, *offsets = panel + shape->offsets_at;
  int64_t i = g * ROWS + r;
  *s = shape->supers ? product(v, shape, scales, g, r) : number(v->scale_type, scales, i);
  if (v->panel_offset == SH_PANEL_MIDDLE) *m = shape->bits == 4 ? *s * -8 : shape->bits == 6 ? *s * -32 : 0;
  else if (v->panel_offset == SH_PANEL_ZERO) *m = -(*s * (shape->bits == 8 ? (float)(int8_t)offsets[i] : (float)offsets[i]));
  else *m = shape->supers ? -product(v, shape, offsets, g, r) : number(v->scale_type, offsets, i);
}

void sh_panel_row(const sh_wview *v, int64_t row, float *out) {
  sh_panel_shape shape = sh_panel_shape_of(v);
  const uint8_t *panel = v->data + (size_t)(row / ROWS) * ROWS * v->row_bytes;
  int r = (int)(row % ROWS);
  int64_t run = run_of(v), blocks = (run + COLS - 1) / COLS;
  for (int64_t k = 0; k < v->cols; k++) {
    float s, m;
    int64_t block = k / run * blocks + k % run / COLS;
    scale_of(v, &shape, panel, k / v->group, r, &s, &m);
    int q = int_of(shape.bits, panel + block * shape.bits * VECTOR, r, (int)(k % run % COLS));
    out[v->perm ? v->perm[k] : k] = (float)((double)s * q + (double)m);
  }
}
