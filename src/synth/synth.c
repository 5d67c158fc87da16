/* A run of `sheng synth`: options to tables, tensors and tokenizer, then one of the two writers.
 *
 * The caller's thread; the pool draws values (fill.c). All that can be wrong with the options is said before anything is made on the disk.
 */
#include "synth/synth.h"

#include <string.h>

#include "synth/run.h"

enum { MAX_LAYERS = 512 /* as model/config.h */ };

static int check(sh_synth_run *u, sh_error *e) {
  const sh_synth_opts *o = u->o;
  int rc = sh_synth_find_shape(o->shape, &u->s, e);
  if (!rc) rc = sh_synth_find_format(o->format, &u->f, e);
  if (rc) return rc;
  u->layers = o->layers ? o->layers : u->s->n_layers;
  if (u->layers < 1 || u->layers > MAX_LAYERS)
    return sh_fail(e, SH_ERR_ARG, "%d layers; 1 to %d can be made (%s has %d)", u->layers, (int)MAX_LAYERS, u->s->name, u->s->n_layers);
  if (u->f->grouped && o->group != 32 && o->group != 64 && o->group != 128)
    return sh_fail(e, SH_ERR_ARG, "groups of %d columns; 32, 64 and 128 can be made", o->group);
  if (!o->out || !o->out[0]) return sh_fail(e, SH_ERR_ARG, "the name of what to make is empty");
  return 0;
}

int sh_synth_source(void *run, const sh_ftensor *t, sh_file_out *o, sh_error *e) {
  sh_synth_run *u = run;
  size_t i = 0; /* the writers reorder pointers to the list's tensors, and copy none */
  if (t >= u->list.t && t < u->list.t + u->list.n) i = (size_t)(t - u->list.t);
  else return sh_fail(e, SH_ERR_INTERNAL, "tensor %s is not of this run", t->name);
  int rc = sh_filler_write(u->filler, t, &u->list.fill[i], u->o->stop, o, e);
  u->done += (int64_t)t->bytes;
  if (!rc && u->o->progress) u->o->progress(u->o->ctx, u->done, u->list.bytes);
  return rc;
}

int sh_synth(const sh_synth_opts *o, sh_synth_result *r, sh_error *e) {
  sh_synth_run u = {.o = o, .r = r};
  int64_t began = sh_now_ns();
  *r = (sh_synth_result){0};
  int rc = check(&u, e);
  if (!rc) rc = sh_synth_tok_make(&u.tok, u.s, o->tokenizer, e);
  if (!rc) rc = sh_synth_list_make(&u.list, u.s, u.f, u.layers, o->group, e);
  if (!rc) rc = sh_pool_new(&u.pool, o->threads, e);
  if (!rc) rc = sh_filler_new(&u.filler, u.pool, o->seed, e);
  if (!rc) rc = u.f->layout == SH_SL_GGUF ? sh_synth_write_gguf(&u, e) : sh_synth_write_folder(&u, e);
  r->bytes = u.list.bytes;
  r->weights = u.list.weights;
  r->n_tensors = u.list.n;
  r->layers = u.layers;
  r->seconds = (double)(sh_now_ns() - began) * 1e-9;
  sh_filler_free(u.filler);
  sh_pool_free(u.pool);
  sh_synth_list_free(&u.list);
  sh_synth_tok_free(&u.tok);
  return rc;
}
