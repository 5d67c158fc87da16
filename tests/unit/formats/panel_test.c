/* Panels against their definition (formats/panel.h, read here byte by byte in the order of the text) and against the rows they were made
 * of: every source type, sizes that fill no panel, block or group, and what is next to them in memory. */
#include "formats/panel.h"

#include <float.h>
#include <math.h>

#include "formats/dequant.h"
#include "unit/formats/files.h"

enum { GUARD = 64 };

/* --- The definition */

static float stored(sh_dtype t, const uint8_t *p, int64_t i) {
  float f;
  sh_dequant(t, p + i * sh_dtype_block_bytes(t), 1, &f);
  return f;
}

/* Integers of a panel to q [8][blocks * 32], as the comment of the header lists them. */
static void read_ints(const uint8_t *p, int bits, int64_t blocks, int *q) {
  int64_t wide = blocks * 32;
  for (int64_t b = 0; b < blocks; b++, p += bits * 32) {
    for (int r = 0; r < 8; r++) {
      int *row = q + r * wide + b * 32;
      for (int i = 0; i < (bits == 8 ? 8 : 4); i++) {
        for (int c = 0; c < 4; c++) {
          int byte = p[32 * i + 4 * r + c];
          if (bits == 8) {
            row[4 * i + c] = (int8_t)byte;
          } else {
            row[4 * i + c] = byte & 15;
            row[16 + 4 * i + c] = byte >> 4;
          }
        }
      }
      for (int i = 0; bits == 6 && i < 2; i++) {
        for (int c = 0; c < 4; c++) {
          int byte = p[128 + 32 * i + 4 * r + c];
          for (int j = 0; j < 4; j++) row[4 * (i + 2 * j) + c] |= (byte >> 2 * j & 3) << 4;
        }
      }
    }
  }
}

typedef struct sm {
  float s, m;
} sm;

static sm read_scale(const sh_wview *v, const sh_panel_shape *sh, const uint8_t *panel, int64_t g, int r) {
  const uint8_t *s = panel + sh->scales_at, *o = panel + sh->offsets_at;
  int64_t i = g * 8 + r, super = g * v->group / 256 * 8 + r, after = sh->supers * 16;
  sm x;
  if (v->panel_scales == SH_PANEL_PLAIN) x.s = stored(v->scale_type, s, i);
  else if (v->panel_scales == SH_PANEL_SUPER_U8) x.s = stored(SH_F16, s, super) * (float)s[after + i];
  else x.s = stored(SH_F16, s, super) * (float)(int8_t)s[after + i];
  if (v->panel_offset == SH_PANEL_ZERO) x.m = -(x.s * (v->type == SH_P8 ? (float)(int8_t)o[i] : (float)o[i]));
  else if (v->panel_offset == SH_PANEL_MIN)
    x.m = v->panel_scales == SH_PANEL_PLAIN ? stored(v->scale_type, o, i) : -(stored(SH_F16, o, super) * (float)o[after + i]);
  else x.m = v->type == SH_P4 ? -8 * x.s : v->type == SH_P6 ? -32 * x.s : 0;
  return x;
}

/* Weights [rows, cols]; and (steps not NULL) the scale of each. Padded integers are zeros. */
static void by_definition(const sh_wview *v, float *w, float *steps) {
  sh_panel_shape sh = sh_panel_shape_of(v);
  int *q = malloc((size_t)sh.blocks * 32 * 8 * sizeof *q);
  assert_int_equal(sh.bytes, 8 * v->row_bytes);
  assert_int_equal(sh.bytes % SH_PANEL_ALIGN, 0);
  for (int64_t p = 0; p < sh_panel_count(v->rows); p++) {
    const uint8_t *panel = v->data + (size_t)p * 8 * v->row_bytes;
    read_ints(panel, sh.bits, sh.blocks, q);
    for (int64_t r = 0; r < 8; r++) {
      int *row = q + r * sh.blocks * 32;
      if (8 * p + r >= v->rows) {
        for (int64_t k = 0; k < sh.blocks * 32; k++) assert_int_equal(row[k], 0);
        for (int64_t g = 0; g < sh.groups; g++) assert_true(read_scale(v, &sh, panel, g, (int)r).s == 0);
        continue;
      }
      int64_t in_group = v->group == 16 ? 16 : (v->group + 31) / 32 * 32;
      for (int64_t at = 0; at < sh.blocks * 32; at++) {
        int64_t g = at / in_group, k = at % in_group, col = g * v->group + k;
        if (g >= sh.groups || k >= v->group) {
          assert_int_equal(row[at], 0);
          continue;
        }
        sm x = read_scale(v, &sh, panel, g, (int)r);
        w[(8 * p + r) * v->cols + col] = (float)((double)x.s * row[at] + (double)x.m);
        if (steps) steps[(8 * p + r) * v->cols + col] = x.s;
      }
    }
  }
  free(q);
}

/* --- Sources */

typedef struct matrix {
  sh_wview v; /* data, scales, zeros owned */
  sh_wview panels;
  uint8_t *memory; /* GUARD, panels, GUARD */
  size_t bytes;
} matrix;

static uint8_t *random_bytes(size_t n, uint64_t *seed) {
  uint8_t *p = malloc(n + 1);
  for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(next_random(seed) >> 24);
  return p;
}

/* A scale: of either sign, over the whole range of exponents that a float16 has without infinities, now and then 0. */
static float random_scale(uint64_t *seed) {
  uint64_t u = next_random(seed);
  if (u % 29 == 0) return 0;
  return ldexpf((u >> 20 & 1 ? 1.0f : -1.0f) * (1 + (float)(u >> 24 & 0xffff) / 65536), (int)(u >> 44) % 20 - 12);
}

static void put_f16(uint8_t *p, uint64_t *seed) {
  uint16_t h = sh_f32_to_f16(random_scale(seed));
  memcpy(p, &h, 2);
}

static matrix grouped(sh_dtype t, int64_t rows, int64_t cols, int64_t group, sh_dtype scale_type, bool zeros, uint64_t *seed) {
  int64_t groups = cols / group;
  size_t one = (size_t)sh_dtype_block_bytes(scale_type), row_bytes = (size_t)(t == SH_I4 ? cols / 2 : cols);
  matrix m = {.v = {.type = t,
                    .rows = rows,
                    .cols = cols,
                    .row_bytes = row_bytes,
                    .name = "m",
                    .group = (int)group,
                    .scale_rows = 1,
                    .scale_type = scale_type,
                    .scale_row_bytes = one * (size_t)groups}};
  uint8_t *s = malloc((size_t)(rows * groups) * one), *z = zeros ? random_bytes((size_t)(rows * groups), seed) : NULL;
  for (int64_t i = 0; i < rows * groups; i++) {
    float f = random_scale(seed);
    uint16_t h = scale_type == SH_F16 ? sh_f32_to_f16(f) : sh_f32_to_bf16(f);
    memcpy(s + (size_t)i * one, one == 4 ? (void *)&f : (void *)&h, one);
    if (z && t == SH_I4) z[i] %= 17;
  }
  m.v.data = random_bytes((size_t)rows * row_bytes, seed);
  m.v.scales = s;
  m.v.zeros = z;
  m.v.zero_row_bytes = zeros ? (size_t)groups : 0;
  return m;
}

/* GGUF blocks of random bits with scales that are numbers. */
static matrix blocks_of(sh_dtype t, int64_t rows, int64_t cols, uint64_t *seed) {
  size_t bytes = (size_t)sh_dtype_block_bytes(t), row_bytes = (size_t)(cols / sh_dtype_block(t)) * bytes;
  uint8_t *d = random_bytes((size_t)rows * row_bytes, seed);
  for (size_t at = 0; at < (size_t)rows * row_bytes; at += bytes) {
    put_f16(d + at + (t == SH_Q6_K ? 208 : 0), seed);
    if (t == SH_Q4_1 || t == SH_Q5_1 || t == SH_Q4_K || t == SH_Q5_K) put_f16(d + at + 2, seed);
  }
  return (matrix){.v = {.type = t, .rows = rows, .cols = cols, .data = d, .row_bytes = row_bytes, .name = "m"}};
}

static matrix floats(sh_dtype t, int64_t rows, int64_t cols, float (*make)(int64_t i, uint64_t *seed), uint64_t *seed) {
  size_t one = (size_t)sh_dtype_block_bytes(t);
  uint8_t *d = malloc((size_t)(rows * cols) * one);
  for (int64_t i = 0; i < rows * cols; i++) {
    float f = make(i, seed);
    uint16_t h = t == SH_F16 ? sh_f32_to_f16(f) : sh_f32_to_bf16(f);
    memcpy(d + (size_t)i * one, one == 4 ? (void *)&f : (void *)&h, one);
  }
  return (matrix){.v = {.type = t, .rows = rows, .cols = cols, .data = d, .row_bytes = (size_t)cols * one, .name = "m"}};
}

static void make_panels(matrix *m, sh_head head) {
  assert_true(sh_panel_plan(&m->v, head, &m->panels));
  int64_t n = sh_panel_count(m->v.rows), half = n / 2;
  m->bytes = (size_t)n * 8 * m->panels.row_bytes;
  m->memory = malloc(m->bytes + 2 * GUARD);
  memset(m->memory, 0xa5, m->bytes + 2 * GUARD);
  uint8_t *at = m->memory + GUARD;
  sh_panel_make(&m->v, &m->panels, half, n - half, at + (size_t)half * 8 * m->panels.row_bytes); /* in any order, in any pieces */
  sh_panel_make(&m->v, &m->panels, 0, half, at);
  for (int i = 0; i < GUARD; i++) assert_true(m->memory[i] == 0xa5 && m->memory[GUARD + m->bytes + (size_t)i] == 0xa5);
  m->panels.data = at;
}

static void free_matrix(matrix *m) {
  free((void *)(uintptr_t)m->v.data);
  free((void *)(uintptr_t)m->v.scales);
  free((void *)(uintptr_t)m->v.zeros);
  free(m->memory);
}

static uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

/* Every weight of the panels is the source's. m = -(s z) is rounded when s is a float32 (all other products are exact in float32), so there
 * the two differ by that and by the last rounding. */
static void expect_same(const matrix *m) {
  int64_t n = m->v.rows * m->v.cols;
  float *w = malloc((size_t)n * sizeof *w), *s = malloc((size_t)n * sizeof *s), *row = malloc((size_t)m->v.cols * sizeof *row);
  by_definition(&m->panels, w, s);
  bool rounded = m->panels.panel_offset == SH_PANEL_ZERO && m->v.scale_type == SH_F32;
  for (int64_t r = 0; r < m->v.rows; r++) {
    sh_dequant_row(&m->v, r, row);
    for (int64_t c = 0; c < m->v.cols; c++) {
      int64_t i = r * m->v.cols + c;
      double bound = rounded ? 0x1p-23 * (fabs((double)row[c]) + 255 * fabs((double)s[i])) : 0;
      if (fabs((double)w[i] - (double)row[c]) <= bound) continue;
      fail_msg("%s %lldx%lld group %d: [%lld, %lld] is %.9g in place of %.9g", sh_dtype_name(m->v.type), (long long)m->v.rows,
               (long long)m->v.cols, m->panels.group, (long long)r, (long long)c, (double)w[i], (double)row[c]);
    }
    sh_dequant_row(&m->panels, r, row);
    for (int64_t c = 0; c < m->v.cols; c++) assert_int_equal(bits_of(row[c]), bits_of(w[r * m->v.cols + c]));
  }
  free(w);
  free(s);
  free(row);
}

static const int64_t HEIGHTS[] = {1, 7, 8, 9, 130};

static void rows_of_integers_become_panels_of_the_same_weights(void **state) {
  (void)state;
  static const struct {
    sh_dtype type;
    bool zeros;
  } TYPES[] = {{SH_I4, false}, {SH_I4, true}, {SH_I8, false}, {SH_U8, false}, {SH_U8, true}};
  static const int64_t WIDTHS[] = {16, 48, 576, 1024}, GROUPS[] = {16, 32, 48, 64, 128, 0 /* the row */};
  static const sh_dtype SCALES[] = {SH_F16, SH_BF16, SH_F32};
  uint64_t seed = 99;
  int done = 0;
  for (int t = 0; t < 5; t++) {
    for (int h = 0; h < 5; h++) {
      for (int w = 0; w < 4; w++) {
        for (int g = 0; g < 6; g++) {
          int64_t group = GROUPS[g] ? GROUPS[g] : WIDTHS[w];
          if (WIDTHS[w] % group) continue;
          matrix m = grouped(TYPES[t].type, HEIGHTS[h], WIDTHS[w], group, SCALES[(h + w + g) % 3], TYPES[t].zeros, &seed);
          make_panels(&m, SH_HEAD_AUTO);
          assert_int_equal(m.panels.type, TYPES[t].type == SH_I4 ? SH_P4 : SH_P8);
          assert_int_equal(m.panels.panel_offset, TYPES[t].zeros ? SH_PANEL_ZERO : SH_PANEL_MIDDLE);
          expect_same(&m);
          free_matrix(&m);
          done++;
        }
      }
    }
  }
  assert_int_equal(done, 5 * 5 * 15);
}

static void every_zero_point_of_a_byte_is_kept(void **state) {
  (void)state;
  uint64_t seed = 3;
  matrix m = grouped(SH_U8, 8, 4096, 16, SH_BF16, true, &seed);
  for (int i = 0; i < 8 * 256; i++) ((uint8_t *)(uintptr_t)m.v.zeros)[i] = (uint8_t)i;
  make_panels(&m, SH_HEAD_AUTO);
  expect_same(&m);
  free_matrix(&m);
}

static void blocks_of_gguf_become_panels_of_the_same_weights(void **state) {
  (void)state;
  static const sh_dtype TYPES[] = {SH_Q8_0, SH_Q4_0, SH_Q4_1, SH_Q5_0, SH_Q5_1, SH_Q4_K, SH_Q5_K, SH_Q6_K};
  static const int64_t WIDTHS[] = {32, 576, 1024, 1280};
  uint64_t seed = 5;
  int done = 0;
  for (int t = 0; t < 8; t++) {
    for (int h = 0; h < 5; h++) {
      for (int w = 0; w < 4; w++) {
        if (WIDTHS[w] % sh_dtype_block(TYPES[t])) continue;
        matrix m = blocks_of(TYPES[t], HEIGHTS[h], WIDTHS[w], &seed);
        make_panels(&m, SH_HEAD_AUTO);
        expect_same(&m);
        free_matrix(&m);
        done++;
      }
    }
  }
  assert_int_equal(done, 5 * 5 * 4 + 3 * 5 * 2);
}

/* --- Heads */

static float like_weights(int64_t i, uint64_t *seed) {
  (void)i;
  double a = 0;
  for (int k = 0; k < 12; k++) a += (double)(next_random(seed) >> 40) / (1 << 24);
  return (float)((a - 6) * 0.02);
}

/* By groups of 32: zeros, one outlier, one value, values of one sign far from zero, the least numbers there are, one sign and a zero. */
static float hard(int64_t i, uint64_t *seed) {
  float x = (float)(next_random(seed) >> 40) / (1 << 24);
  switch (i / 32 % 7) {
  case 0: return 0;
  case 1: return i % 32 == 5 ? -3.5f : 0.001f * x;
  case 2: return 0.3f;
  case 3: return 100 + x;
  case 4: return ldexpf(x - 0.5f, -126);
  case 5: return i % 32 ? -x : 0;
  default: return i % 2 ? x : -x;
  }
}

static void a_rounded_head_is_off_by_half_a_step_at_most(void **state) {
  (void)state;
  static const sh_head HEADS[] = {SH_HEAD_INT4, SH_HEAD_INT6, SH_HEAD_INT8};
  static const sh_dtype TYPES[] = {SH_BF16, SH_F16, SH_F32};
  static const double STEPS[] = {15, 63, 255}; /* over the range of a group */
  uint64_t seed = 11;
  for (int i = 0; i < 3 * 3 * 5 * 2; i++) {
    int kind = i % 3, rows = (int)HEIGHTS[i / 9 % 5];
    matrix m = floats(TYPES[i / 3 % 3], rows, 576, i < 45 ? like_weights : hard, &seed);
    make_panels(&m, HEADS[kind]);
    assert_int_equal(m.panels.type, kind == 0 ? SH_P4 : kind == 1 ? SH_P6 : SH_P8);
    float *w = malloc((size_t)rows * 576 * sizeof *w), *s = malloc((size_t)rows * 576 * sizeof *s), row[576];
    by_definition(&m.panels, w, s);
    for (int r = 0; r < rows; r++) {
      sh_dequant_row(&m.v, r, row);
      for (int c = 0; c < 576; c++) {
        double off = fabs((double)w[r * 576 + c] - (double)row[c]), step = (double)s[r * 576 + c];
        /* the quotient is rounded at 24 bits before it is rounded to an integer, and s q + m at the end */
        if (!(off <= step * 0.5 * (1 + 0x1p-16) + 0x1p-24 * fabs((double)row[c])))
          fail_msg("head %d [%d, %d]: %.9g in place of %.9g, the step is %.9g", kind, r, c, (double)w[r * 576 + c], (double)row[c], step);
        float low = row[c - c % 32], high = low;
        for (int k = c - c % 32; k < c - c % 32 + 32; k++) {
          low = row[k] < low ? row[k] : low;
          high = row[k] > high ? row[k] : high;
        }
        /* and steps are not longer than they have to be, but for bfloat16's rounding of them and of the minimum */
        double range = kind ? 2 * fmax(fabs((double)low), fabs((double)high)) : (double)high - (double)low + 0x1p-7 * fabs((double)low);
        assert_true(step <= range / STEPS[kind] * (1 + 0x1p-7) + 0x1p-133);
      }
    }
    free(w);
    free(s);
    free_matrix(&m);
  }
}

static float broken(int64_t i, uint64_t *seed) {
  static const float BAD[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX};
  float x = like_weights(i, seed);
  return i / 32 % 6 < 5 && i % 32 == 7 ? BAD[i / 32 % 6] : x;
}

/* What is not finite, or not after it was rounded outwards, makes its group none; other groups are as they are. */
static void values_that_are_not_finite_stay_visible(void **state) {
  (void)state;
  static const sh_head HEADS[] = {SH_HEAD_INT4, SH_HEAD_INT6, SH_HEAD_INT8};
  uint64_t seed = 13;
  for (int h = 0; h < 3; h++) {
    matrix m = floats(SH_F32, 9, 192, broken, &seed);
    make_panels(&m, HEADS[h]);
    float row[192], is[192];
    for (int r = 0; r < 9; r++) {
      sh_dequant_row(&m.v, r, row);
      sh_dequant_row(&m.panels, r, is);
      for (int c = 0; c < 192; c++) {
        if (c / 32 < 3) assert_true(isnan(is[c]));
        if (c / 32 == 5) assert_true(fabsf(is[c] - row[c]) < 0.01f);
        if (c / 32 == 3 && c % 32 == 7 && HEADS[h] == SH_HEAD_INT8) assert_true(is[c] > 0.99f * FLT_MAX);
      }
    }
    free_matrix(&m);
  }
}

/* --- What has no panels, and names */

static void what_is_no_step_times_an_integer_has_no_panels(void **state) {
  (void)state;
  sh_wview out = {.name = "untouched"};
  static const sh_dtype NONE[] = {SH_IQ4_NL, SH_F8_E4M3, SH_BF16, SH_F16, SH_F32, SH_I32, SH_P4};
  for (size_t i = 0; i < sizeof NONE / sizeof NONE[0]; i++) {
    sh_wview v = {.type = NONE[i], .rows = 8, .cols = 256, .group = 32, .scale_rows = 1};
    assert_false(sh_panel_plan(&v, SH_HEAD_AUTO, &out));
    assert_false(sh_panel_plan(&v, SH_HEAD_BF16, &out));
  }
  sh_wview v = {.type = SH_BF16, .rows = 8, .cols = 48};
  assert_false(sh_panel_plan(&v, SH_HEAD_INT8, &out)); /* groups of 32 do not divide 48 columns */
  v = (sh_wview){.type = SH_I4, .rows = 8, .cols = 48, .group = 24, .scale_type = SH_F16};
  assert_false(sh_panel_plan(&v, SH_HEAD_AUTO, &out));
  v.group = 32;
  assert_false(sh_panel_plan(&v, SH_HEAD_AUTO, &out));
  assert_string_equal(out.name, "untouched");
}

static void an_order_of_columns_is_undone(void **state) {
  (void)state;
  uint64_t seed = 17;
  matrix m = grouped(SH_I4, 9, 96, 32, SH_F16, true, &seed);
  int32_t perm[96];
  for (int i = 0; i < 96; i++) perm[i] = (i * 35 + 11) % 96;
  m.v.perm = perm;
  make_panels(&m, SH_HEAD_AUTO);
  assert_ptr_equal(m.panels.perm, perm);
  float a[96], b[96];
  for (int r = 0; r < 9; r++) {
    sh_dequant_row(&m.v, r, a);
    sh_panel_row(&m.panels, r, b);
    for (int c = 0; c < 96; c++) assert_true(a[c] == b[c]);
  }
  free_matrix(&m);
}

static void heads_have_names(void **state) {
  (void)state;
  static const char *const NAMES[] = {"auto", "int4", "int6", "int8", "bf16"};
  sh_head h;
  sh_error e = {0};
  for (int i = 0; i < 5; i++) {
    assert_int_equal(sh_head_parse(NAMES[i], false, &h, &e), 0);
    assert_int_equal(h, i);
  }
  assert_int_equal(sh_head_parse(NULL, true, &h, &e), 0);
  assert_int_equal(h, SH_HEAD_AUTO);
  assert_int_equal(sh_head_parse("bf16", true, &h, &e), 0);
  assert_int_equal(sh_head_parse("int8", true, &h, &e), SH_ERR_ARG);
  assert_says(e.text, "contradicts exact");
  assert_int_equal(sh_head_parse("fp4", false, &h, &e), SH_ERR_ARG);
  assert_says(e.text, "head is fp4; one of auto|int4|int6|int8|bf16 is wanted");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_of_integers_become_panels_of_the_same_weights),
      cmocka_unit_test(every_zero_point_of_a_byte_is_kept),
      cmocka_unit_test(blocks_of_gguf_become_panels_of_the_same_weights),
      cmocka_unit_test(a_rounded_head_is_off_by_half_a_step_at_most),
      cmocka_unit_test(values_that_are_not_finite_stay_visible),
      cmocka_unit_test(what_is_no_step_times_an_integer_has_no_panels),
      cmocka_unit_test(an_order_of_columns_is_undone),
      cmocka_unit_test(heads_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
