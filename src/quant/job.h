/* Private to the quantizer's driver: the job, and what is done to one layer.
 *
 *   quantize.c  the run over all layers      search.c  scales and codes of a layer      experts.c  the routed part of an MoE layer */
#ifndef SH_QUANT_JOB_H
#define SH_QUANT_JOB_H

#include "base/file.h"
#include "model/model.h"
#include "quant/awq.h"
#include "quant/gptq.h"
#include "quant/layer.h"
#include "quant/quantize.h"
#include "quant/stream.h"

enum {
  SH_QJOB_ROWS = 512,           /* sampled tokens that candidate scales are judged on */
  SH_QJOB_EXPERT_ROWS = 256,    /* the same for one expert */
  SH_QJOB_EXPERT_TOKENS = 4096, /* most of the tokens routed to an expert that are looked at */
  SH_QJOB_EXPERT_MIN = 64,      /* an expert that saw fewer is given others too, spread over all */
};

/* What became of one module, for the record. */
typedef struct sh_qrecord {
  char name[192], scale[16]; /* scale: the candidate that its input channels were scaled with: "-", "x^0.55", "x^a/w^(1-a), a=0.40" */
  double err_nearest,
      err; /* output error relative to the output: rounding to nearest without any scaling, and what was written; -1: not measured */
  int64_t tokens;
} sh_qrecord;

typedef struct sh_qjob {
  const sh_quantize_opts *o;
  const sh_ckpt *ck;
  sh_model *m;
  sh_qwork work;
  sh_qgrid grid;
  sh_qselect select;
  sh_qstream *stream;  /* NULL: the method looks at no inputs */
  int64_t rows;        /* sampled tokens of a layer's inputs: SH_QJOB_ROWS, fewer when memory is bounded */
  const char *dir;     /* for spill files */
  sh_qrecord *records; /* [n_records] of the layer at hand */
  int n_records, cap_records;
} sh_qjob;

static inline int64_t sh_qjob_block(const sh_qjob *j, int64_t cols) {
  return j->o->method == SH_QM_GPTQ ? cols : j->grid.group > 0 ? j->grid.group : cols;
}

/* SH_ERR_CANCELLED when the run was asked to end. */
static inline int sh_qjob_stopped(const sh_qjob *j, sh_error *e) {
  return j->o->stop && *j->o->stop ? sh_fail(e, SH_ERR_CANCELLED, "stopped; go on with --resume") : 0;
}

int sh_qjob_record(sh_qjob *j, const sh_qmod *m, const char *scale, double nearest, double err, int64_t tokens, sh_error *e);

/* search.c: fills the codes of every quantized module of the layer (the streams' inputs are collected by running the layer). */
int sh_qsearch_layer(sh_qjob *j, sh_qlayer *l, sh_error *e);
/* Errors of n candidate scales [n][n_channels]. */
typedef int (*sh_qerrors_fn)(void *ctx, const float *cand, int n, double *err, sh_error *e);
/* s [n_channels] := the best candidate for inputs of mean |x| and weights of mean w (per channel); *best its number (0: identity). Every
 * second exponent is tried and then the best one's neighbours: a third fewer products than all of them, and the curve is smooth. */
int sh_qsearch_best(const float *x, const float *w, int64_t n_channels, sh_qerrors_fn fn, void *ctx, float *s, int *best, sh_error *e);
void sh_qsearch_name(int cand, char name[16]);
/* Codes of module m, whose unscaled inputs are site's (NULL: rounding to nearest). factor: sh_qsearch_factor's for the site, or NULL. */
int sh_qsearch_fit(sh_qjob *j, sh_qmod *m, const sh_qsite *site, const sh_qfactor *factor, const char *scale, sh_error *e);
/* What GPTQ needs for a site; zeroed with other methods. Free with sh_qfactor_free. */
int sh_qsearch_factor(sh_qjob *j, const sh_qsite *site, sh_qfactor *factor, sh_error *e);
/* s [n_channels] := the best scale for readers with inputs of mean |x| (per channel). */
int sh_qsearch_scale(sh_qjob *j, const sh_qreader *r, int n, const sh_qscaling *sc, const float *x, float *s, int *best, sh_error *e);
/* x [n_channels]: mean |input| per channel. */
void sh_qsearch_means(const sh_qsite *site, const sh_qscaling *sc, float *x);

/* experts.c: the routed part, from the file of what the router read ([tokens, H] float32). site: of the same rows. */
int sh_qexperts(sh_qjob *j, sh_qlayer *l, const sh_qsite *site, const float *h, int64_t tokens, sh_error *e);

#endif
