/* Shared by config.c and config_gguf.c only: limits and the checks after either source is read. */
#ifndef SH_MODEL_CONFIG_INTERNAL_H
#define SH_MODEL_CONFIG_INTERNAL_H

#include "model/config.h"
#include "model/rope.h"

enum {
  SH_MAX_VOCAB = 1 << 24,
  SH_MAX_WIDTH = 1 << 20, /* hidden, FFN */
  SH_MAX_HEADS = 1024,
  SH_MAX_EXPERTS = 4096,
  SH_MAX_CONV = 16,
  SH_MAX_POSITION = 1 << 30, /* tokens */
};

int sh_config_set_rope(sh_config *c, const sh_rope *p, sh_error *e); /* frequencies; YaRN extends max_position */
int sh_config_check(sh_config *c, sh_error *e);                      /* counts layers, checks what fields owe each other */
void sh_config_add_eos(sh_config *c, int64_t id);                    /* once each, inside the vocabulary */

#endif
