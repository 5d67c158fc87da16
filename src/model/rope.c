/* Rotary frequencies.
 *
 * Pure functions on numbers, any thread. Computed in float32 steps, because the reference does: at position 3000 the last bit of the first
 * frequency is an angle of 1e-4, which is visible in logits held to 5e-5. The power itself is taken in double and rounded once. Formulas:
 * linear divides every frequency; llama3 divides wavelengths beyond original_max / low_freq, keeps those under original_max / high_freq and
 * blends between; YaRN ("Efficient context window extension", section 3) blends by the number of rotations a pair makes over the trained
 * context. Scalings that depend on the length of the running text (dynamic NTK, longrope) are refused by the config: they would change a
 * cached key after it was written. */
#include "model/rope.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

double sh_rope_yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1; }

/* theta ^ (2 i / dim) */
static float wavelength_base(const sh_rope *r, int i) {
  float exponent = (float)(2 * i) / (float)r->dim;
  return (float)pow((double)(float)r->theta, (double)exponent);
}

static float scale_llama3(const sh_rope *r, float inv) {
  float factor = (float)r->factor, low = (float)r->low_freq, high = (float)r->high_freq;
  float wavelength = (float)(2 * PI) / inv;
  if ((double)wavelength > r->original_max / r->low_freq) return inv / factor;
  if ((double)wavelength < r->original_max / r->high_freq) return inv;
  float smooth = ((float)r->original_max / wavelength - low) / (high - low);
  return (1 - smooth) * inv / factor + smooth * inv;
}

/* The dim (not rounded) whose pair makes `rotations` turns over original_max. */
static double correction_dim(const sh_rope *r, double rotations) {
  return r->dim * log(r->original_max / (rotations * 2 * PI)) / (2 * log(r->theta));
}

static float scale_yarn(const sh_rope *r, int i, float base) {
  double low = correction_dim(r, r->beta_fast), high = correction_dim(r, r->beta_slow);
  if (r->truncate) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0);
  high = fmin(high, r->dim - 1);
  if (low == high) high += 0.001; /* the reference's guard against dividing by zero */
  float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
  float keep = 1 - ramp; /* share of the unscaled frequency */
  float interpolated = 1 / ((float)r->factor * base), extrapolated = 1 / base;
  return interpolated * (1 - keep) + extrapolated * keep;
}

static int check(const sh_rope *r, sh_error *e) {
  if (!(r->theta > 0 && r->theta <= 1e15)) return sh_fail(e, SH_ERR_FORMAT, "rope_theta is %g; a number above 0 is wanted", r->theta);
  if (r->kind == SH_ROPE_NONE) return 0;
  if (!(r->factor >= 1e-3 && r->factor <= 1e6))
    return sh_fail(e, SH_ERR_FORMAT, "the factor of rope scaling %s is %g; 0.001 to 1000000 is wanted", sh_rope_kind_name(r->kind),
                   r->factor);
  if (r->kind == SH_ROPE_LINEAR) return 0;
  if (!(r->original_max >= 1 && r->original_max <= 1e10))
    return sh_fail(e, SH_ERR_FORMAT, "original_max_position_embeddings is %g", r->original_max);
  if (r->kind == SH_ROPE_LLAMA3 && !(r->low_freq > 0 && r->high_freq > r->low_freq)) {
    return sh_fail(e, SH_ERR_FORMAT, "rope scaling llama3 wants 0 < low_freq_factor < high_freq_factor, but has %g and %g", r->low_freq,
                   r->high_freq);
  }
  if (r->kind == SH_ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast >= r->beta_slow && r->theta > 1)) {
    return sh_fail(e, SH_ERR_FORMAT, "rope scaling yarn wants 0 < beta_slow <= beta_fast and rope_theta > 1, but has %g, %g and %g",
                   r->beta_slow, r->beta_fast, r->theta);
  }
  return 0;
}

int sh_rope_frequencies(const sh_rope *r, double *inv_freq, double *mscale, sh_error *e) {
  int rc = check(r, e);
  if (rc) return rc;
  *mscale = 1;
  for (int i = 0; i < r->dim / 2; i++) {
    float base = wavelength_base(r, i), inv = 1 / base;
    switch (r->kind) {
    case SH_ROPE_NONE: break;
    case SH_ROPE_LINEAR: inv /= (float)r->factor; break;
    case SH_ROPE_LLAMA3: inv = scale_llama3(r, inv); break;
    case SH_ROPE_YARN: inv = scale_yarn(r, i, base); break;
    }
    if (!(isfinite(inv) && inv > 0))
      return sh_fail(e, SH_ERR_FORMAT, "rotary frequency %d is not a positive number (rope_theta %g, factor %g)", i, r->theta, r->factor);
    inv_freq[i] = (double)inv;
  }
  if (r->kind == SH_ROPE_YARN) *mscale = r->attention_factor > 0 ? r->attention_factor : sh_rope_yarn_mscale(r->factor, 1);
  return isfinite(*mscale) && *mscale > 0 && *mscale < 1e3
             ? 0
             : sh_fail(e, SH_ERR_FORMAT, "the attention factor of rope scaling is %g", *mscale);
}
