/* An inspection as one JSON object, for scripts: the same facts as the text, nothing cut but what the limits of inspect_parts.h cut. What
 * could not be found out is null. Sizes are bytes. */
#include "ops/inspect_parts.h"

#include <string.h>

static void write_files(const sh_insp *p, sh_jw *w) {
  sh_jw_kstr(w, "model", p->o->model);
  sh_jw_kstr(w, "kind", p->is_gguf ? "gguf" : "folder");
  sh_jw_kint(w, "bytes", p->file_bytes);
  sh_jw_key(w, "files");
  sh_jw_arr(w);
  for (int i = 0; i < p->n_files; i++) {
    sh_jw_obj(w);
    sh_jw_kstr(w, "name", p->files[i].name);
    sh_jw_kint(w, "bytes", p->files[i].bytes);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
}

static void write_config(const sh_insp *p, sh_jw *w) {
  const sh_config *c = &p->cfg;
  sh_jw_key(w, "config");
  if (!p->has_config) {
    sh_jw_null(w);
    return;
  }
  const struct {
    const char *key;
    int value;
  } INTS[] = {{"layers", c->n_layers},
              {"linear_layers", c->n_linear},
              {"attention_layers", c->n_full},
              {"hidden", c->hidden},
              {"vocab_size", c->vocab_size},
              {"ffn", c->ffn},
              {"heads", c->n_heads},
              {"kv_heads", c->n_kv_heads},
              {"head_dim", c->head_dim},
              {"linear_key_heads", c->lin_k_heads},
              {"linear_value_heads", c->lin_v_heads},
              {"linear_key_dim", c->lin_k_dim},
              {"linear_value_dim", c->lin_v_dim},
              {"conv_kernel", c->conv_kernel},
              {"experts", c->n_experts},
              {"experts_per_token", c->experts_per_tok},
              {"expert_ffn", c->moe_ffn},
              {"shared_expert_ffn", c->shared_ffn},
              {"mtp_layers", c->mtp_layers},
              {"max_position", c->max_position}};
  sh_jw_obj(w);
  sh_jw_kstr(w, "architecture", sh_arch_name(c->arch));
  for (size_t i = 0; i < sizeof INTS / sizeof INTS[0]; i++) sh_jw_kint(w, INTS[i].key, INTS[i].value);
  sh_jw_kbool(w, "tied", c->tied);
  sh_jw_kbool(w, "attention_output_gate", c->attn_output_gate);
  sh_jw_kbool(w, "qk_norm", c->qk_norm);
  sh_jw_kbool(w, "attention_bias", c->attn_bias);
  sh_jw_key(w, "rope");
  sh_jw_obj(w);
  sh_jw_kdouble(w, "theta", c->rope_theta);
  sh_jw_kint(w, "dims", c->rotary_dim);
  sh_jw_kstr(w, "scaling", sh_rope_kind_name(c->rope_kind));
  sh_jw_kdouble(w, "factor", c->rope_factor);
  sh_jw_kbool(w, "interleaved", c->rope_interleaved);
  sh_jw_end_obj(w);
  sh_jw_end_obj(w);
}

static void write_weights(const sh_insp *p, sh_jw *w) {
  sh_jw_key(w, "weights");
  if (!p->has_weights) {
    sh_jw_null(w);
    return;
  }
  sh_jw_obj(w);
  sh_jw_kint(w, "bytes", (int64_t)p->w.bytes);
  sh_jw_kstr(w, "quantization", sh_quant_name(p->quant.method));
  sh_jw_kint(w, "repacked_bytes", (int64_t)p->w.repacked_bytes);
  sh_jw_kbool(w, "mtp", p->w.mtp != NULL);
  sh_jw_key(w, "groups");
  sh_jw_arr(w);
  for (int i = 0; i < p->n_rows; i++) {
    sh_jw_obj(w);
    sh_jw_kstr(w, "group", sh_insp_group_name(p->rows[i].group));
    sh_jw_kstr(w, "format", p->rows[i].format);
    sh_jw_kint(w, "tensors", p->rows[i].tensors);
    sh_jw_kint(w, "bytes", p->rows[i].bytes);
    sh_jw_kstr(w, "kernel", p->rows[i].kernel);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
  sh_jw_key(w, "visual");
  sh_jw_obj(w);
  sh_jw_kint(w, "tensors", p->n_visual);
  sh_jw_kint(w, "bytes", p->visual_bytes);
  sh_jw_end_obj(w);
  sh_jw_key(w, "unused");
  sh_jw_obj(w);
  sh_jw_kint(w, "tensors", p->n_unused);
  sh_jw_kint(w, "bytes", p->unused_bytes);
  sh_jw_key(w, "names");
  sh_jw_arr(w);
  for (int i = 0; i < p->n_unused && i < SH_INSP_NAMES; i++) sh_jw_str(w, p->unused[i]);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
  sh_jw_end_obj(w);
}

static void write_token(const sh_insp *p, sh_jw *w, int32_t id) {
  sh_jw_obj(w);
  sh_jw_kint(w, "id", id);
  sh_jw_kstr(w, "token", sh_tok_piece(p->tok, id));
  sh_jw_end_obj(w);
}

static void write_id(const sh_insp *p, sh_jw *w, const char *key, int32_t id) {
  sh_jw_key(w, key);
  if (id < 0) sh_jw_null(w);
  else write_token(p, w, id);
}

static void write_tokenizer(const sh_insp *p, sh_jw *w) {
  const sh_insp_tokenizer *t = &p->tk;
  int n = 0;
  sh_jw_key(w, "tokenizer");
  if (!p->has_tok) {
    sh_jw_null(w);
    return;
  }
  sh_jw_obj(w);
  sh_jw_kstr(w, "source", t->source);
  sh_jw_kstr(w, "model", t->model);
  sh_jw_kstr(w, "normalizer", t->normalizer);
  sh_jw_kstr(w, "pre_tokenizer", t->pretokenizer);
  sh_jw_kint(w, "vocab_size", t->vocab);
  sh_jw_kint(w, "added_tokens", t->n_added);
  write_id(p, w, "bos", t->bos);
  write_id(p, w, "eos", t->eos);
  sh_jw_kbool(w, "adds_special_tokens", t->adds_special);
  sh_jw_kbool(w, "probe_text_comes_back", t->round_trip);
  sh_jw_kint(w, "special_tokens", t->n_special);
  sh_jw_key(w, "special");
  sh_jw_arr(w);
  for (int32_t id = 0; id < t->vocab && n < SH_INSP_NAMES; id++) {
    if (!sh_tok_is_special(p->tok, id)) continue;
    write_token(p, w, id);
    n++;
  }
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

static void write_template(const sh_insp *p, sh_jw *w) {
  const sh_insp_template *t = &p->tp;
  sh_jw_key(w, "template");
  if (!t->source) {
    sh_jw_null(w);
    return;
  }
  sh_jw_obj(w);
  sh_jw_kstr(w, "source", t->source);
  sh_jw_kint(w, "bytes", (int64_t)t->bytes);
  sh_jw_kbool(w, "compiles", t->compiles);
  sh_jw_kbool(w, "takes_parts", t->takes_parts);
  sh_jw_kbool(w, "renders", t->compiles && !t->renders_error);
  sh_jw_kstr(w, "error", t->renders_error);
  sh_jw_kbool(w, "thinks_by_default", t->thinks);
  sh_jw_kbool(w, "enable_thinking", t->has_switch);
  sh_jw_end_obj(w);
}

static void write_generation(const sh_insp *p, sh_jw *w) {
  sh_jw_key(w, "generation_config");
  if (p->gen) sh_jw_value(w, p->gen);
  else sh_jw_null(w);
  sh_jw_key(w, "stop_tokens");
  sh_jw_arr(w);
  for (int i = 0; i < p->n_stops; i++) write_token(p, w, p->stops[i]);
  sh_jw_end_arr(w);
}

static void write_plan(const sh_insp_plan *x, sh_jw *w) {
  const sh_plan *m = &x->plan;
  sh_jw_obj(w);
  sh_jw_kint(w, "context", x->context ? x->context : m->max_model_len);
  sh_jw_kbool(w, "fits", !x->rc && !m->shortened);
  sh_jw_kstr(w, "error", x->error);
  if (!x->rc) {
    sh_jw_kint(w, "max_model_len", m->max_model_len);
    sh_jw_kint(w, "sequences", m->max_num_seqs);
    sh_jw_kint(w, "sequences_of_that_length", sh_insp_whole(x));
    sh_jw_kint(w, "kv_tokens", m->n_pages * m->page_size);
    sh_jw_kint(w, "kv_bytes", m->n_pages * m->page_size * m->kv_bytes_per_token);
    sh_jw_kint(w, "state_bytes", m->max_num_seqs * m->state_bytes_per_seq);
    sh_jw_kint(w, "scratch_bytes", m->scratch_bytes);
    sh_jw_kint(w, "max_num_batched_tokens", m->max_num_batched_tokens);
  }
  sh_jw_end_obj(w);
}

static void write_memory(const sh_insp *p, sh_jw *w) {
  const sh_plan *m = &p->serve.plan;
  sh_jw_key(w, "memory");
  if (!p->has_config) {
    sh_jw_null(w);
    return;
  }
  sh_jw_obj(w);
  sh_jw_kint(w, "total_bytes", p->total_bytes);
  sh_jw_kint(w, "budget_bytes", m->budget_bytes);
  sh_jw_kint(w, "weight_bytes", p->weight_bytes);
  sh_jw_kstr(w, "kv_type", sh_kv_name(p->kv_type));
  sh_jw_kint(w, "kv_bytes_per_token", m->kv_bytes_per_token);
  sh_jw_kint(w, "state_bytes_per_sequence", m->state_bytes_per_seq);
  sh_jw_key(w, "serve");
  write_plan(&p->serve, w);
  sh_jw_key(w, "plans");
  sh_jw_arr(w);
  for (int i = 0; i < p->n_plans; i++) write_plan(&p->plans[i], w);
  sh_jw_end_arr(w);
  sh_jw_end_obj(w);
}

static void write_issues(const sh_insp *p, bool fatal, const char *key, sh_jw *w) {
  sh_jw_key(w, key);
  sh_jw_arr(w);
  for (int i = 0; i < p->n_issues; i++) {
    if (p->issues[i].fatal != fatal) continue;
    sh_jw_obj(w);
    sh_jw_kstr(w, "where", p->issues[i].where);
    sh_jw_kstr(w, "text", p->issues[i].text);
    sh_jw_end_obj(w);
  }
  sh_jw_end_arr(w);
}

void sh_insp_json(const sh_insp *p, sh_buf *out) {
  sh_jw w;
  sh_jw_init(&w, out);
  sh_jw_obj(&w);
  write_files(p, &w);
  write_config(p, &w);
  write_weights(p, &w);
  write_tokenizer(p, &w);
  write_template(p, &w);
  write_generation(p, &w);
  write_memory(p, &w);
  write_issues(p, false, "warnings", &w);
  write_issues(p, true, "problems", &w);
  sh_jw_kint(&w, "n_problems", p->n_fatal);
  sh_jw_kbool(&w, "will_start", p->n_fatal == 0);
  sh_jw_end_obj(&w);
  sh_buf_putc(out, '\n');
}
