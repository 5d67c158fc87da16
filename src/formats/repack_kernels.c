/* The rewriting itself: integers, scales, zero points and orders of columns of one block of rows.
 *
 * Pure functions, any thread. The files keep what a GPU's kernels like: AWQ eight columns of eight outputs in a word, GPTQ eight inputs of
 * one output in a word, lines of all outputs after one another. Here a row of outputs becomes one run of nibbles. The work is a transpose
 * of 4-bit elements: 8 words of 8 nibbles at a time by three rounds of exchanging halves (16, 8, then 4 bits), sixteen columns of words
 * side by side so that the compiler uses vectors, in tiles of 128 x 128 nibbles that stay in the first-level cache; without the tiles the
 * power of two between lines would put every line into the same few cache sets.
 *
 * With act-order the columns are sorted by group on the way: words are first brought into AWQ's arrangement (a line per column), whose
 * lines can then be taken in any order. */
#include "formats/repack_internal.h"

#include <string.h>

#include "base/mem.h"

enum { WORDS = SH_RP_ROWS / 8, TILE = 128, TILE_WORDS = TILE * WORDS }; /* words of a line; columns of a tile */

static uint32_t load32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Nibble i of a word holds output SPREAD[i] of its eight in AWQ's arrangement. */
static const uint8_t SPREAD[8] = {0, 2, 4, 6, 1, 3, 5, 7}, IN_ORDER[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static const uint8_t NIBBLE_OF[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* the inverse of SPREAD */

/* a[8][WORDS]: nibble j of a[i][c] becomes nibble i of a[j][c]. */
static void exchange(uint32_t *a, uint32_t *b, int bits, uint32_t mask) {
  for (int c = 0; c < WORDS; c++) {
    uint32_t t = (a[c] >> bits ^ b[c]) & mask;
    b[c] ^= t;
    a[c] ^= t << bits;
  }
}

static void transpose8(uint32_t *a) {
  for (int i = 0; i < 4; i++) exchange(a + i * WORDS, a + (i + 4) * WORDS, 16, 0x0000ffff);
  for (int i = 0; i < 4; i++) exchange(a + (i / 2 * 4 + i % 2) * WORDS, a + (i / 2 * 4 + i % 2 + 2) * WORDS, 8, 0x00ff00ff);
  for (int i = 0; i < 4; i++) exchange(a + 2 * i * WORDS, a + (2 * i + 1) * WORDS, 4, 0x0f0f0f0f);
}

/* Lines [n_cols][WORDS] of a tile, changed in place, to n rows: dst + row * row_bytes. n_cols a multiple of 8. */
static void put_tile(uint32_t *tile, int n_cols, int64_t n, const uint8_t *spread, uint8_t *dst, size_t row_bytes) {
  for (int k = 0; k < n_cols; k += 8) transpose8(tile + k * WORDS);
  for (int64_t r = 0; r < n; r++) {
    int64_t row = r - r % 8 + spread[r % 8];
    if (row >= n) continue; /* a last word that is not full */
    uint8_t *out = dst + (size_t)row * row_bytes;
    const uint32_t *in = tile + r % 8 * WORDS + r / 8;
    for (int k = 0; k < n_cols / 8; k++) memcpy(out + 4 * k, in + k * 8 * WORDS, 4);
  }
}

/* Lines of AWQ's arrangement, line k at lines + k * stride, taken in order. */
static void data_of_lines(const uint8_t *lines, size_t stride, const int32_t *order, int64_t cols, int64_t n, const uint8_t *spread,
                          uint8_t *dst, uint32_t *tile) {
  size_t row_bytes = (size_t)cols / 2, used = (size_t)((n + 7) / 8) * 4;
  for (int64_t k0 = 0; k0 < cols; k0 += TILE) {
    int n_cols = (int)(cols - k0 < TILE ? cols - k0 : TILE);
    for (int k = 0; k < n_cols; k++) {
      const uint8_t *line = lines + (size_t)(order ? order[k0 + k] : k0 + k) * stride;
      if (used == WORDS * 4) memcpy(tile + k * WORDS, line, WORDS * 4); /* a size that the compiler knows */
      else memcpy(tile + k * WORDS, line, used);
    }
    put_tile(tile, n_cols, n, spread, dst + k0 / 2, row_bytes);
  }
}

/* Eight columns of n rows of GPTQ's or the row layout, as lines: out [8][WORDS]. */
static void lines_of_words(const sh_qmodule *m, int64_t word, int64_t row, int64_t n, uint32_t *out) {
  for (int64_t r = 0; r < n; r++) {
    int64_t at = m->layout == SH_QL_GPTQ ? word * m->rows + row + r : (row + r) * (m->cols / 8) + word;
    out[r % 8 * WORDS + r / 8] = load32(m->weight->data + 4 * at);
  }
  transpose8(out);
}

/* GPTQ's words are what a row needs already; they only stand in columns. */
static void data_of_words(const sh_qmodule *m, int64_t row, int64_t n, uint8_t *dst) {
  enum { STEP = 16 };
  int64_t words = m->cols * m->bits / 32;
  size_t row_bytes = sh_rp_row_bytes(m);
  for (int64_t w0 = 0; w0 < words; w0 += STEP) {
    int64_t end = words - w0 < STEP ? words : w0 + STEP;
    for (int64_t r = 0; r < n; r++) {
      const uint8_t *in = m->weight->data + 4 * (w0 * m->rows + row + r);
      uint8_t *out = dst + (size_t)r * row_bytes + 4 * w0;
      for (int64_t w = w0; w < end; w++, in += 4 * m->rows, out += 4) memcpy(out, in, 4);
    }
  }
}

/* Bytes need no transposing, only picking. The rows of a cache line of GPTQ's words are taken together. */
static void data_of_bytes(const sh_qmodule *m, const int32_t *order, int64_t row, int64_t n, uint8_t *dst) {
  enum { STEP = 16 };
  for (int64_t r0 = 0; r0 < n; r0 += STEP) {
    int64_t r1 = n - r0 < STEP ? n : r0 + STEP;
    for (int64_t c = 0; c < m->cols; c++) {
      int64_t k = order[c], word = m->layout == SH_QL_GPTQ ? k / 4 * m->rows + row : row * (m->cols / 4) + k / 4;
      const uint8_t *in = m->weight->data + 4 * word + k % 4;
      int64_t stride = m->layout == SH_QL_GPTQ ? 4 : m->cols;
      for (int64_t r = r0; r < r1; r++) dst[r * m->cols + c] = in[r * stride];
    }
  }
}

size_t sh_rp_scratch_bytes(const sh_qmodule *m, bool order) {
  size_t lines = order && m->layout != SH_QL_AWQ && m->bits == 4 ? (size_t)m->cols * WORDS : 0;
  return (TILE_WORDS + lines) * sizeof(uint32_t);
}

void sh_rp_data(const sh_qmodule *m, const int32_t *order, int64_t row, int64_t n, uint8_t *dst, uint32_t *scratch) {
  if (m->layout == SH_QL_AWQ) {
    data_of_lines(m->weight->data + row / 2, (size_t)m->rows / 2, order, m->cols, n, SPREAD, dst, scratch);
    return;
  }
  if (!order) {
    data_of_words(m, row, n, dst);
    return;
  }
  if (m->bits == 8) {
    data_of_bytes(m, order, row, n, dst);
    return;
  }
  uint32_t *lines = scratch + TILE_WORDS;
  for (int64_t w = 0; w < m->cols / 8; w++) lines_of_words(m, w, row, n, lines + w * 8 * WORDS);
  data_of_lines((const uint8_t *)lines, WORDS * sizeof *lines, order, m->cols, n, IN_ORDER, dst, scratch);
}

void sh_rp_scales(const sh_qmodule *m, int64_t row, int64_t n, uint8_t *dst) {
  int64_t groups = m->cols / m->group, size = sh_dtype_block_bytes(m->scales->type);
  for (int64_t g = 0; g < groups; g++) {
    const uint8_t *in = m->scales->data + (g * m->rows + row) * size;
    for (int64_t r = 0; r < n; r++) {
      if (size == 2) memcpy(dst + (r * groups + g) * 2, in + r * 2, 2);
      else memcpy(dst + (r * groups + g) * 4, in + r * 4, 4);
    }
  }
}

/* Stored zero point of a row and group. */
static int zero_at(const sh_qmodule *m, int64_t row, int64_t g) {
  int64_t groups = m->cols / m->group, per = 32 / m->bits;
  int64_t word = m->layout == SH_QL_ROWS ? row / per * groups + g : g * (m->rows / per) + row / per;
  int place = m->layout == SH_QL_AWQ ? NIBBLE_OF[row % 8] : (int)(row % per);
  return (int)(load32(m->zeros->data + 4 * word) >> (m->bits * place) & ((1u << m->bits) - 1)) + m->zero_offset;
}

void sh_rp_zeros(const sh_qmodule *m, int64_t row, int64_t n, uint8_t *dst) {
  int64_t groups = m->cols / m->group;
  for (int64_t g = 0; g < groups; g++) {
    for (int64_t r = 0; r < n; r++) dst[r * groups + g] = (uint8_t)zero_at(m, row + r, g);
  }
}

bool sh_rp_zeros_are_middle(const sh_qmodule *m) {
  int middle = 1 << (m->bits - 1);
  uint32_t all = (m->bits == 4 ? 0x11111111u : 0x01010101u) * (uint32_t)(middle - m->zero_offset);
  int64_t groups = m->cols / m->group, full = m->rows / (32 / m->bits);
  for (int64_t i = 0; i < full * groups; i++) {
    if (load32(m->zeros->data + 4 * i) != all) return false;
  }
  for (int64_t r = full * (32 / m->bits); r < m->rows; r++) { /* a last word that is not full */
    for (int64_t g = 0; g < groups; g++) {
      if (zero_at(m, r, g) != middle) return false;
    }
  }
  return true;
}

int sh_rp_check_zeros(const sh_qmodule *m, sh_error *e) {
  if (m->bits != 8 || !m->zero_offset) return 0; /* GPTQ, whose words are all full */
  for (size_t i = 0; i < m->zeros->bytes; i++) {
    if (m->zeros->data[i] == 255)
      return sh_fail(e, SH_ERR_UNSUPPORTED,
                     "tensor %s: a stored zero point of 255 is 256 to some programs and 0 to others; use a folder with checkpoint_format "
                     "gptq_v2, or a symmetric one",
                     m->zeros->name);
  }
  return 0;
}

int sh_rp_order(const sh_qmodule *m, int32_t *out, int64_t *seen, bool *trivial, sh_error *e) {
  int64_t groups = m->cols / m->group, unset = 0;
  bool sorted = true;
  memset(seen, 0, (size_t)groups * sizeof *seen);
  for (int64_t k = 0; k < m->cols; k++) {
    int32_t g = (int32_t)load32(m->order->data + 4 * k);
    if (m->layout == SH_QL_ROWS && g == -1) {
      unset++;
      continue;
    }
    if (g < 0 || g >= groups)
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s: column %lld is of group %d, there are %lld groups", m->order->name, (long long)k, (int)g,
                     (long long)groups);
    seen[g]++;
    sorted = sorted && g == k / m->group;
  }
  *trivial = unset == m->cols || sorted; /* compressed-tensors fills the tensor with -1 where it has no order */
  if (unset == m->cols) return 0;
  for (int64_t g = 0, start = 0; g < groups; g++) {
    if (seen[g] != m->group)
      return sh_fail(e, SH_ERR_FORMAT, "tensor %s: group %lld has %lld columns, %lld are wanted", m->order->name, (long long)g,
                     (long long)seen[g], (long long)m->group);
    seen[g] = start;
    start += m->group;
  }
  for (int64_t k = 0; !*trivial && out && k < m->cols; k++) {
    uint32_t g = load32(m->order->data + 4 * k);
    if (g >= (uint64_t)groups || seen[g] == m->cols) /* cannot be, unless somebody writes to the file */
      return sh_fail(e, SH_ERR_IO, "tensor %s changed while it was read", m->order->name);
    out[seen[g]++] = (int32_t)k;
  }
  return 0;
}
