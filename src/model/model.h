/* A model bound to a backend, and its forward pass as a sequence of backend calls. The pass is written once per architecture (qwen35.c for
 * dense and MoE, llama.c) and knows no device. The model owns weights, parameters and scratch; the caches belong to it too, pages and slots
 * are handed out by the engine. */
#ifndef SH_MODEL_MODEL_H
#define SH_MODEL_MODEL_H

#include "backend/backend.h"
#include "formats/checkpoint.h"
#include "formats/repack.h"
#include "model/config.h"

typedef struct sh_model sh_model;

/* Reads the config and binds the weights (no copy, but of what is repacked: `o` says where to, NULL: the defaults; o->panels is
 * followed where the backend computes with panels). `ckpt` and `be` are borrowed and must outlive the model. Caller frees with
 * sh_model_free. */
int sh_model_open(sh_model **out, const sh_ckpt *ckpt, sh_backend *be, const sh_repack_opts *o, sh_error *e);
void sh_model_free(sh_model *m);
/* Begins to read the bound weights into memory (base/prefetch.h), once; the wait for it, before the first forward. Without the two a pass
 * reads what it needs as it goes, one page fault after the other. */
int sh_model_read_ahead(sh_model *m, sh_error *e);
int sh_model_read_wait(sh_model *m, sh_error *e);

const sh_config *sh_model_config(const sh_model *m);
const struct sh_weights *sh_model_weights(const sh_model *m); /* model/weights.h; for reports: what a pass reads */
size_t sh_model_weight_bytes(const sh_model *m);  /* that must stay in memory: of the main path, as stored or repacked */
const char *sh_model_describe(const sh_model *m); /* "qwen3_5, 24 layers (18 linear + 6 attention), bf16" */
/* Cost of the caches for a KV type: bytes of KV per token, bytes of state per sequence, bytes of scratch for a step. */
size_t sh_model_kv_bytes_per_token(const sh_model *m, sh_kv_type t);
size_t sh_model_state_bytes(const sh_model *m);
size_t sh_model_scratch_bytes(const sh_model *m, int max_tokens, int max_out);

/* The same from a config alone, and what a config may say that no pass computes (SH_ERR_UNSUPPORTED). */
size_t sh_model_config_kv_bytes_per_token(const sh_config *c, sh_kv_type t);
size_t sh_model_config_state_bytes(const sh_config *c);
size_t sh_model_config_scratch_bytes(const sh_config *c, int max_tokens, int max_out);
int sh_model_config_check(const sh_config *c, sh_error *e);

/* Takes the caches and the scratch, once, before the first forward. */
typedef struct sh_model_sizes {
  int page_size, n_pages, n_slots;
  sh_kv_type kv_type;
  int max_tokens, max_seqs, max_out; /* of one step: rows, sequences, logit rows */
  int max_context;                   /* tokens of a sequence */
} sh_model_sizes;
int sh_model_reserve(sh_model *m, const sh_model_sizes *s, sh_error *e);

/* One step. logits: host float32 [b->n_out, vocab_size], filled for out_rows in order. A batch that breaks the reserved sizes, ids or pages
 * out of range are SH_ERR_INTERNAL. No allocation. After an error the sequences of the batch must be dropped (their caches may be
 * half-advanced); others are untouched. */
int sh_model_forward(sh_model *m, const sh_batch *b, float *logits, sh_error *e);

/* Test and report tool: as forward, and copies the residual stream after layer L (0 = embedding, n_layers = after the final norm) to
 * hidden[L] (host [n_tokens, hidden]), for each non-NULL hidden[L], L in [0, n_layers]. */
int sh_model_forward_hidden(sh_model *m, const sh_batch *b, float *logits, float **hidden, sh_error *e);

int sh_model_slot_zero(sh_model *m, int slot, sh_error *e);
int sh_model_slot_copy(sh_model *m, int dst, int src, sh_error *e);
int sh_model_page_copy(sh_model *m, int dst, int src, sh_error *e);

#endif
