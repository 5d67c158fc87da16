/* Which files of a repository a pull takes. */
#ifndef SH_OPS_PULL_SELECT_H
#define SH_OPS_PULL_SELECT_H

#include "ops/hub.h"
#include "ops/pull_store.h"
#include <stdio.h>

/* chosen [list->n]: set for what is to be in the folder.
 * include [n_include]: shell patterns in which a star also matches "/"; "dir/" means all below it. With patterns exactly what they match is
 * chosen; without, what is needed to serve a model: the files at the root that are config, tokenizer, template, licence and safetensors,
 * or, in a repository without safetensors, its one GGUF (all files of it when it is split). What `old` lists and the repository still has
 * is chosen too, so that a folder is always of one revision. SH_ERR_ARG when a pattern matches nothing or several GGUF files could be
 * meant; those are then listed on `say`. */
int sh_pull_select(const sh_hub_list *list, const char *const *include, int n_include, const sh_pull_manifest *old, bool *chosen, FILE *say,
                   sh_error *e);

#endif
