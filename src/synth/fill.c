/* Where random weights come from.
 *
 * One thread calls, the pool draws. A tensor is cut into pieces of about 256 KiB of whole blocks; a piece has a generator of its own,
 * seeded with the seed, the tensor's name and the piece's number, so it does not matter who draws it and when. As many pieces as the window
 * holds are drawn, then written.
 *
 * What is drawn is what is stored. Codes of a quantized type are random bits as they are, and only their few scales are computed, with some
 * variation, such that a weight has the deviation that is asked for. Floats come from a table of 4096 quantiles of the normal distribution,
 * one look-up per weight. Drawing floats and quantizing them would take a hundred times as long, and a speed measurement could not tell.
 *
 * The mean of a row must be zero: a common offset of a matrix, even a tenth of the deviation, adds up over the columns and grows from layer
 * to layer until all tokens look alike (and a router sends them to the same experts). Types with a minimum (Q4_1, Q4_K, Q5_K) get the
 * minimum that centres all codes exactly, for which scales are cut to a few bits; types without one have codes that lie off centre by half
 * a step (Q4_0, Q6_K) and scales of random sign; in words of codes the 0, which has no counterpart, becomes an 8. */
#include "synth/fill.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "formats/dequant.h"

enum { PIECE = 1 << 18 /* bytes, about */, WINDOW = 96 /* pieces */, QUANTILES = 4096 };

struct sh_filler {
  sh_pool *pool;
  uint64_t seed;
  float normal[QUANTILES];  /* quantiles of the normal distribution */
  uint8_t f8[QUANTILES];    /* the same times SH_FILL_F8_STD, as e4m3 */
  uint16_t half[QUANTILES]; /* for the tensor at hand: times its deviation, as F16 or BF16 */
  uint8_t *window;          /* [WINDOW * PIECE] */
  /* the job at hand */
  const sh_ftensor *t;
  const sh_fill *fill;
  uint64_t key;
  int64_t per_piece, first, end; /* blocks */
};

/* --- The generator: a counter through a mixing function (splitmix64), 8 bytes in about a nanosecond. */

typedef struct rng {
  uint64_t at;
} rng;

static uint64_t next(rng *r) {
  uint64_t z = r->at += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* In [0, 1), from 16 bits. */
static double part_of(uint64_t bits) { return (double)(bits & 0xffff) / 65536; }

/* --- Tables */

/* The quantile function of the normal distribution in Acklam's rational approximation, good to 1e-9. p in (0, 0.5]. */
static double low_quantile(double p) {
  static const double A[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                             1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00},
                      B[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                             -1.328068155288572e+01},
                      C[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                             -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00},
                      D[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  if (p < 0.02425) {
    double q = sqrt(-2 * log(p));
    return (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5]) / ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1);
  }
  double q = p - 0.5, r = q * q;
  return (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q /
         (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1);
}

/* The byte of the e4m3 number nearest to x >= 0; x at most 448. */
static uint8_t to_f8(double x) {
  int best = 0;
  for (int i = 1; i < 0x7f; i++) {
    if (fabs((double)sh_f8_e4m3_to_f32((uint8_t)i) - x) < fabs((double)sh_f8_e4m3_to_f32((uint8_t)best) - x)) best = i;
  }
  return (uint8_t)best;
}

static void make_tables(sh_filler *f) {
  for (int i = 0; i < QUANTILES / 2; i++) {
    double q = low_quantile((i + 0.5) / QUANTILES), x = -q * SH_FILL_F8_STD;
    f->normal[i] = (float)q;
    f->normal[QUANTILES - 1 - i] = (float)-q;
    f->f8[QUANTILES - 1 - i] = to_f8(x < 448 ? x : 448);
    f->f8[i] = f->f8[QUANTILES - 1 - i] | 0x80;
  }
}

/* --- Streams of words */

static void put_tail(uint8_t *out, size_t n, uint64_t word) {
  if (n) memcpy(out, &word, n);
}

static void fill_bits(rng *r, uint8_t *out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t w = next(r);
    memcpy(out + i, &w, 8);
  }
  put_tail(out + i, n - i, next(r));
}

/* A nibble of 0 becomes 8. */
static uint64_t centred_nibbles(uint64_t w) {
  uint64_t any = (w | w >> 1 | w >> 2 | w >> 3) & 0x1111111111111111u;
  return w | (any ^ 0x1111111111111111u) << 3;
}

/* A byte of -128 becomes 0. */
static uint64_t centred_bytes(uint64_t w) {
  const uint64_t low = 0x7f7f7f7f7f7f7f7fu;
  uint64_t other = ((w & low) + low) | ~w; /* top bit: the byte is not 0x80 */
  return w ^ (~other & ~low);
}

static void fill_nibbles(rng *r, uint8_t *out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t w = centred_nibbles(next(r));
    memcpy(out + i, &w, 8);
  }
  put_tail(out + i, n - i, centred_nibbles(next(r)));
}

static void fill_bytes(rng *r, uint8_t *out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t w = centred_bytes(next(r));
    memcpy(out + i, &w, 8);
  }
  put_tail(out + i, n - i, centred_bytes(next(r)));
}

static void fill_zero_points(rng *r, uint8_t *out, size_t n) {
  const uint64_t ones = 0x1111111111111111u;
  for (size_t i = 0; i < n; i += 8) {
    uint64_t bits = next(r), w = 7 * ones + (bits & ones) + (bits >> 1 & ones);
    memcpy(out + i, &w, n - i < 8 ? n - i : 8);
  }
}

static void fill_word(uint32_t word, uint8_t *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) memcpy(out + 4 * i, &word, 4);
}

static void fill_steps(int64_t first, int64_t step, uint8_t *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int32_t v = (int32_t)((first + i) / step);
    memcpy(out + 4 * i, &v, 4);
  }
}

/* --- Floats */

static void fill_half(rng *r, const uint16_t *table, uint8_t *out, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    uint64_t bits = next(r), w = 0;
    for (int k = 0; k < 4; k++) w |= (uint64_t)table[bits >> (16 * k) & (QUANTILES - 1)] << (16 * k);
    memcpy(out + 2 * i, &w, n - i < 4 ? (size_t)(n - i) * 2 : 8);
  }
}

static void fill_f8(rng *r, const uint8_t *table, uint8_t *out, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    uint64_t bits = next(r);
    uint32_t w = 0;
    for (int k = 0; k < 4; k++) w |= (uint32_t)table[bits >> (16 * k) & (QUANTILES - 1)] << (8 * k);
    memcpy(out + i, &w, n - i < 4 ? (size_t)(n - i) : 4);
  }
}

static void put_float(uint8_t *out, sh_dtype type, int64_t i, double v) {
  float x = (float)v;
  uint16_t h = type == SH_F16 ? sh_f32_to_f16(x) : sh_f32_to_bf16(x);
  if (type == SH_F32) memcpy(out + 4 * i, &x, 4);
  else memcpy(out + 2 * i, &h, 2);
}

static void fill_floats(const sh_filler *f, rng *r, uint8_t *out, int64_t n) {
  const sh_fill *d = f->fill;
  for (int64_t i = 0; i < n; i++) {
    uint64_t bits = next(r);
    double v = d->a + (d->b - d->a) * part_of(bits);
    if (d->kind == SH_FILL_WEIGHT) v = d->a * (double)f->normal[bits & (QUANTILES - 1)];
    if (d->kind == SH_FILL_NEG_EXP) v = -exp(v);
    put_float(out, f->t->type, i, v);
  }
}

/* --- GGUF blocks: random bits everywhere, then the scales over them */

/* x times 7/8 to 9/8, as F16. */
static uint16_t some_scale(double x, uint64_t bits) { return sh_f32_to_f16((float)(x * (0.875 + 0.25 * part_of(bits)))); }

/* The same with six significant bits at most, so that small multiples are exact. */
static uint16_t short_scale(double x, uint64_t bits) { return (uint16_t)((some_scale(x, bits) + 16) & 0xffe0); }

static uint16_t times(uint16_t half, float by) { return sh_f32_to_f16(by * sh_f16_to_f32(half)); }

static void put_half(uint8_t *at, uint16_t v) { memcpy(at, &v, 2); }

static void scales_q8_0(double std, rng *r, uint8_t *b) { put_half(b, some_scale(std / SH_FILL_I8_STD, next(r))); }

static void scales_q4_0(double std, rng *r, uint8_t *b) {
  uint64_t bits = next(r);
  put_half(b, some_scale(std / 4.61, bits) ^ (uint16_t)(bits >> 16 & 0x8000));
}

static void scales_q4_1(double std, rng *r, uint8_t *b) {
  uint16_t d = short_scale(std / 4.61, next(r));
  put_half(b, d);
  put_half(b + 2, times(d, -7.5f));
}

/* Eight 6-bit scales 40 .. 63 and the same numbers as minimums, packed as llama.cpp's K-quants have them. */
static void scales_k(double d, float middle, rng *r, uint8_t *b) {
  uint64_t bits = next(r);
  uint8_t s[8];
  uint16_t h = short_scale(d, next(r));
  put_half(b, h);
  put_half(b + 2, times(h, middle));
  for (int i = 0; i < 8; i++) s[i] = (uint8_t)(40 + (bits >> (8 * i) & 0xff) * 24 / 256);
  for (int i = 0; i < 4; i++) {
    b[4 + i] = b[8 + i] = (uint8_t)(s[i] | s[i + 4] >> 4 << 6);
    b[12 + i] = (uint8_t)((s[i + 4] & 15) | s[i + 4] << 4);
  }
}

static void scales_q4_k(double std, rng *r, uint8_t *b) { scales_k(std / (4.61 * 51.5), 7.5f, r, b); }
static void scales_q5_k(double std, rng *r, uint8_t *b) { scales_k(std / (9.233 * 51.5), 15.5f, r, b); }

static void scales_q6_k(double std, rng *r, uint8_t *b) {
  for (int i = 0; i < 16; i += 8) {
    uint64_t bits = next(r) | 0x4040404040404040u; /* magnitude 64 .. 127 */
    for (int k = 0; k < 8; k++) {
      uint8_t v = (uint8_t)(bits >> (8 * k));
      b[192 + i + k] = v & 0x80 ? (uint8_t) - (v & 0x7f) : v;
    }
  }
  put_half(b + 208, some_scale(std / (18.47 * 96), next(r)));
}

typedef void (*scales_fn)(double std, rng *r, uint8_t *block);

static scales_fn scales_of(sh_dtype type) {
  switch (type) {
  case SH_Q8_0: return scales_q8_0;
  case SH_Q4_0: return scales_q4_0;
  case SH_Q4_1: return scales_q4_1;
  case SH_Q4_K: return scales_q4_k;
  case SH_Q5_K: return scales_q5_k;
  case SH_Q6_K: return scales_q6_k;
  default: return NULL;
  }
}

static void fill_blocks(sh_dtype type, double std, rng *r, uint8_t *out, int64_t n) {
  int size = sh_dtype_block_bytes(type);
  scales_fn scales = scales_of(type);
  if (type == SH_Q8_0) fill_bytes(r, out, (size_t)n * (size_t)size);
  else fill_bits(r, out, (size_t)n * (size_t)size);
  for (int64_t i = 0; i < n; i++) scales(std, r, out + i * size);
}

/* --- Pieces */

static bool is_float(sh_dtype t) { return t == SH_F32 || t == SH_F16 || t == SH_BF16; }

static bool can_fill(const sh_ftensor *t, const sh_fill *f) {
  switch (f->kind) {
  case SH_FILL_WEIGHT: return is_float(t->type) || t->type == SH_I8 || t->type == SH_F8_E4M3 || scales_of(t->type);
  case SH_FILL_RANGE: return is_float(t->type);
  case SH_FILL_NEG_EXP: return t->type == SH_F32;
  case SH_FILL_STEPS: return t->type == SH_I32 && f->n > 0;
  case SH_FILL_SHAPE: return t->type == SH_I64 && t->bytes == 16;
  default: return t->type == SH_I32;
  }
}

static void fill_weights(const sh_filler *f, rng *r, uint8_t *out, int64_t n) {
  sh_dtype type = f->t->type;
  if (type == SH_F16 || type == SH_BF16) fill_half(r, f->half, out, n);
  else if (type == SH_F32) fill_floats(f, r, out, n);
  else if (type == SH_I8) fill_bytes(r, out, (size_t)n);
  else if (type == SH_F8_E4M3) fill_f8(r, f->f8, out, n);
  else fill_blocks(type, f->fill->a, r, out, n);
}

/* n blocks from `first` on. */
static void fill_piece(const sh_filler *f, int64_t piece, int64_t first, int64_t n, uint8_t *out) {
  rng r = {f->key + (uint64_t)piece * 0xD1342543DE82EF95u};
  const int64_t shape[2] = {(int64_t)f->fill->a, (int64_t)f->fill->b};
  r.at = next(&r); /* neighbours far apart */
  switch (f->fill->kind) {
  case SH_FILL_WEIGHT: fill_weights(f, &r, out, n); break;
  case SH_FILL_RANGE:
  case SH_FILL_NEG_EXP: fill_floats(f, &r, out, n); break;
  case SH_FILL_CODES: fill_nibbles(&r, out, (size_t)n * 4); break;
  case SH_FILL_ZEROS: fill_zero_points(&r, out, (size_t)n * 4); break;
  case SH_FILL_WORD: fill_word((uint32_t)f->fill->n, out, n); break;
  case SH_FILL_STEPS: fill_steps(first, f->fill->n, out, n); break;
  case SH_FILL_SHAPE: memcpy(out, shape, sizeof shape); break;
  }
}

static void run_piece(void *ctx, int item, int worker) {
  const sh_filler *f = ctx;
  (void)worker;
  int64_t at = f->first + item * f->per_piece, n = f->end - at < f->per_piece ? f->end - at : f->per_piece;
  fill_piece(f, at / f->per_piece, at, n, f->window + (size_t)(item * f->per_piece) * (size_t)sh_dtype_block_bytes(f->t->type));
}

/* --- Tensors */

int sh_filler_new(sh_filler **out, sh_pool *pool, uint64_t seed, sh_error *e) {
  sh_filler *f = sh_calloc(1, sizeof *f);
  if (f) f->window = sh_malloc((size_t)WINDOW * PIECE);
  *out = f;
  if (!f || !f->window) {
    sh_filler_free(f);
    *out = NULL;
    return sh_fail(e, SH_ERR_NOMEM, "out of memory for a buffer of %d MiB", WINDOW * PIECE >> 20);
  }
  f->pool = pool;
  f->seed = seed;
  make_tables(f);
  return 0;
}

void sh_filler_free(sh_filler *f) {
  if (!f) return;
  sh_free(f->window);
  sh_free(f);
}

static void begin(sh_filler *f, const sh_ftensor *t, const sh_fill *fill) {
  f->t = t;
  f->fill = fill;
  f->key = sh_hash(t->name, strlen(t->name), f->seed);
  f->per_piece = PIECE / sh_dtype_block_bytes(t->type) & ~(int64_t)7;
  if (fill->kind != SH_FILL_WEIGHT || (t->type != SH_F16 && t->type != SH_BF16)) return;
  for (int i = 0; i < QUANTILES; i++) {
    float x = (float)(fill->a * (double)f->normal[i]);
    f->half[i] = t->type == SH_F16 ? sh_f32_to_f16(x) : sh_f32_to_bf16(x);
  }
}

int sh_filler_write(sh_filler *f, const sh_ftensor *t, const sh_fill *fill, const volatile bool *stop, sh_file_out *o, sh_error *e) {
  if (!can_fill(t, fill))
    return sh_fail(e, SH_ERR_INTERNAL, "tensor %s: %s cannot be filled in way %d", t->name, sh_dtype_name(t->type), (int)fill->kind);
  begin(f, t, fill);
  int64_t size = sh_dtype_block_bytes(t->type), total = (int64_t)t->bytes / size, step = WINDOW * f->per_piece;
  int rc = 0;
  for (f->first = 0; f->first < total && !rc; f->first += step) {
    if (stop && *stop) return sh_fail(e, SH_ERR_CANCELLED, "stopped");
    f->end = total - f->first < step ? total : f->first + step;
    sh_pool_run(f->pool, run_piece, f, (int)((f->end - f->first + f->per_piece - 1) / f->per_piece));
    rc = sh_file_out_write(o, f->window, (size_t)((f->end - f->first) * size), e);
  }
  return rc;
}
