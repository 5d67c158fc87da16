/* What a checkpoint says about generation: sampling defaults, end tokens, and whether it is what the user's options claim. */
#ifndef SH_ENGINE_GENCONF_H
#define SH_ENGINE_GENCONF_H

#include "model/config.h"
#include "text/tokenizer.h"

/* generation_config.json of a folder, or for a GGUF an object of temperature, top_k, top_p made from general.sampling.* in `a`; NULL: it
 * says nothing. */
int sh_genconf_load(const sh_ckpt *ck, sh_arena *a, const sh_json **out, sh_error *e);
/* The end tokens, distinct, each in [0, vocab): of config, generation config, tokenizer, GGUF, and Qwen3.5's two end marks. Returns their
 * number, at most cap. */
int sh_genconf_end_ids(const sh_ckpt *ck, const sh_config *c, const sh_tok *t, const sh_json *gen, int vocab, int32_t *out, int cap);
/* --dtype and --quantization. NULL passes. */
int sh_genconf_check_dtype(const char *dtype, sh_error *e);
int sh_genconf_check_quantization(const sh_ckpt *ck, const char *method, sh_error *e);

#endif
