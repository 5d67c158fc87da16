/* Random values of tensors, of every stored type, at the speed of memory: bits are drawn as codes and scales; nothing is rounded. */
#ifndef SH_SYNTH_FILL_H
#define SH_SYNTH_FILL_H

#include "base/pool.h"
#include "formats/tensor.h"

typedef enum sh_fill_kind {
  SH_FILL_WEIGHT,  /* weights of mean 0 and deviation a. For I8 and F8_E4M3: codes, whose scales are SH_FILL_RANGE around a / the deviation
                      of codes below */
  SH_FILL_RANGE,   /* F32, F16, BF16: evenly between a and b */
  SH_FILL_NEG_EXP, /* F32: -exp of that */
  SH_FILL_CODES,   /* I32: words of 4-bit codes 1..15, the same chances on both sides of 8 */
  SH_FILL_ZEROS,   /* I32: words of 4-bit zero points 7, 8 and 9, mean 8 */
  SH_FILL_WORD,    /* I32: the word n everywhere */
  SH_FILL_STEPS,   /* I32: element i is i / n */
  SH_FILL_SHAPE,   /* I64 [2]: a and b */
} sh_fill_kind;

typedef struct sh_fill {
  sh_fill_kind kind;
  double a, b;
  int64_t n;
} sh_fill;

/* Deviation of codes around their zero point: what a scale is multiplied with to be the deviation of a weight. */
#define SH_FILL_CODES_STD 4.1833 /* codes 0 .. 15 of which 0 became 8 */
#define SH_FILL_I8_STD 73.6      /* -127 .. 127, 0 twice as likely */
#define SH_FILL_F8_STD 100.0     /* a normal distribution, clamped at 448 */

typedef struct sh_filler sh_filler;
/* Borrows the pool. Caller frees with sh_filler_free. */
int sh_filler_new(sh_filler **out, sh_pool *pool, uint64_t seed, sh_error *e);
void sh_filler_free(sh_filler *f); /* accepts NULL */
/* Draws a tensor piece by piece into a buffer of the filler's and appends it to o. The bytes follow from seed, name, type, shape and fill,
 * not from the number of threads or the tensors before. *stop (may be NULL) ends it with SH_ERR_CANCELLED. Refuses (SH_ERR_INTERNAL) a type
 * that the kind does not have. */
int sh_filler_write(sh_filler *f, const sh_ftensor *t, const sh_fill *fill, const volatile bool *stop, sh_file_out *o, sh_error *e);

#endif
