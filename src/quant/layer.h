/* One layer of a checkpoint as the quantizer sees it: its linear modules with what they read, the gains that scales fold into, and the
 * tensors that come out. */
#ifndef SH_QUANT_LAYER_H
#define SH_QUANT_LAYER_H

#include "base/mem.h"
#include "formats/checkpoint.h"
#include "model/weights.h"
#include "quant/codes.h"

/* Inputs of a layer's modules. The experts' own intermediate values have no number: they are made expert by expert. */
typedef enum sh_qinput {
  SH_QIN_MIXER, /* normalised input: q k v, or in_proj_qkv z a b */
  SH_QIN_OUT,   /* what o_proj or the delta rule's out_proj reads */
  SH_QIN_FFN,   /* normalised input: gate up, or router, experts, shared expert and its switch */
  SH_QIN_DOWN,  /* dense: what down_proj reads; MoE: the shared expert's */
  SH_QIN_EXPERT,
  SH_QINPUTS = SH_QIN_EXPERT,
} sh_qinput;

typedef struct sh_qmod {
  char name[192]; /* as it is written, without ".weight" */
  const sh_wview *w;
  const sh_ftensor *t; /* the stored tensor; that of an expert may hold others as well */
  sh_qinput input;
  bool quantize;   /* else it stays as stored, but for the scales */
  float *in, *out; /* [cols], [rows] or NULL: its columns are multiplied, its rows divided */
  sh_qcodes codes; /* filled when quantized */
} sh_qmod;

/* A vector that scales fold into: stored as w of (1 + w), or as it is. */
typedef struct sh_qgain {
  const sh_ftensor *t;
  bool one_plus;
  float *s; /* [n] or NULL: the multiplier is divided by it */
} sh_qgain;

typedef struct sh_qlayer {
  int number;
  const sh_config *c;
  const sh_w_layer *w;
  const sh_ckpt *ck;
  char prefix[160]; /* "model.language_model.layers.3." */
  sh_arena *a;      /* mods, scales, packed tensors */
  sh_qmod *mods;    /* [n_mods]; the experts' last: gate, up, down of expert e at experts + 3 e */
  int n_mods, experts;
  int v, up, shared_up, o; /* indices, -1: none. o: o_proj or out_proj; up: dense; shared_up */
  sh_qgain input_norm, post_norm, lin_norm;
} sh_qlayer;

/* What is quantized of a layer: every linear module but routers, in_proj_a, in_proj_b, the shared expert's switch, and those whose name
 * matches a pattern of keep; of those, what matches one of `also` is quantized too. Patterns are shell patterns on the whole name, or parts
 * of it between dots. */
typedef struct sh_qselect {
  const char *const *keep;
  int n_keep;
  const char *const *also;
  int n_also;
} sh_qselect;
bool sh_qselect_matches(const char *pattern, const char *name);
bool sh_qselect_takes(const sh_qselect *s, const char *name, bool usually);

/* Free with sh_qlayer_free, which accepts a zeroed struct. */
int sh_qlayer_open(sh_qlayer *l, int number, const sh_config *c, const sh_w_layer *w, const sh_ckpt *ck, const sh_qselect *s, sh_error *e);
void sh_qlayer_free(sh_qlayer *l);

/* Takes scales s [H] for the modules of an input that a norm feeds (MIXER, FFN), folds them into the norm as it will be stored (type: of
 * the source, or SH_F32 with exact) and gives every reader what is then really divided: s is overwritten with it. A gain of 0 keeps 1. */
int sh_qlayer_fold_norm(sh_qlayer *l, sh_qinput input, float *s, bool exact, sh_error *e);
/* The same for what the delta rule's output norm feeds: s [Dv]. */
int sh_qlayer_fold_lin_norm(sh_qlayer *l, float *s, bool exact, sh_error *e);
/* The same between two matrices: rows of `from` are divided, columns of `to` multiplied. s [n]; column c of `to` takes s[tie[c]] (tie NULL:
 * c), row r of `from` s[r]. */
int sh_qlayer_fold_pair(sh_qlayer *l, int from, int to, const float *s, const int32_t *tie, sh_error *e);

/* Every tensor of the layer as it is written: packed codes, scaled vectors and matrices (type of the source, or SH_F32 with exact), the
 * rest as stored. *out [*n] and what it points to live in the layer's arena or in the map. */
int sh_qlayer_tensors(sh_qlayer *l, const sh_qscheme *f, bool exact, sh_ftensor **out, int *n, sh_error *e);

#endif
