/* The weights' part of an inspection: the dry binding of model/weights.h, gathered into a table of groups. Main thread.
 *
 * A row is what a reader asks about: which part of the model, how it is stored, what computes with it. The group comes from the name that
 * the binding asked for, so a tensor is counted where it is used, and what nobody asks for cannot hide in a group. Each matrix is also
 * handed to the backend once, which checks what the binding cannot know. */
#include "ops/inspect_parts.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"

enum { G_EMBED, G_HEAD, G_Q, G_K, G_V, G_O, G_QKV, G_Z, G_AB, G_OUT, G_MLP, G_ROUTER, G_EXPERTS, G_SHARED, G_VECTORS, G_MTP, N_GROUPS };

static const char *const NAMES[N_GROUPS] = {"embedding",
                                            "head",
                                            "attention q",
                                            "attention k",
                                            "attention v",
                                            "attention o",
                                            "linear in_proj_qkv",
                                            "linear in_proj_z",
                                            "linear in_proj_a/b",
                                            "linear out_proj",
                                            "mlp",
                                            "router",
                                            "experts",
                                            "shared expert",
                                            "norms, vectors",
                                            "mtp"};

const char *sh_insp_group_name(int group) { return group >= 0 && group < N_GROUPS ? NAMES[group] : "?"; }

/* The first part of a name that fits decides; Hugging Face and GGUF spellings. */
static int group_of(const sh_w_found *f) {
  static const struct {
    const char *part;
    int group;
  } PARTS[] = {
      {"embed_tokens.weight", G_EMBED},
      {"token_embd.weight", G_EMBED},
      {"lm_head.weight", G_HEAD},
      {"q_proj.weight", G_Q},
      {"attn_q.weight", G_Q},
      {"k_proj.weight", G_K},
      {"attn_k.weight", G_K},
      {"v_proj.weight", G_V},
      {"attn_v.weight", G_V},
      {"o_proj.weight", G_O},
      {"attn_output.weight", G_O},
      {"in_proj_qkv.weight", G_QKV},
      {"attn_qkv.weight", G_QKV},
      {"in_proj_z.weight", G_Z},
      {"attn_gate.weight", G_Z},
      {"in_proj_a.weight", G_AB},
      {"in_proj_b.weight", G_AB},
      {"ssm_alpha.weight", G_AB},
      {"ssm_beta.weight", G_AB},
      {"out_proj.weight", G_OUT},
      {"ssm_out.weight", G_OUT},
      {"shared_expert", G_SHARED},
      {"shexp", G_SHARED},
      {"mlp.experts.", G_EXPERTS},
      {"_exps.weight", G_EXPERTS},
      {"mlp.gate.weight", G_ROUTER},
      {"ffn_gate_inp.weight", G_ROUTER},
      {"output.weight", G_HEAD},
  };
  if (f->mtp) return G_MTP;
  if (!f->view) return G_VECTORS;
  for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++)
    if (strstr(f->name, PARTS[i].part)) return PARTS[i].group;
  return G_MLP;
}

static void format_of(const sh_w_found *f, char *buf, size_t size) {
  const sh_qmodule *m = f->module;
  if (f->shared) {
    snprintf(buf, size, "the embedding's");
    return;
  }
  if (!m) {
    snprintf(buf, size, "%s", f->tensor->type_name);
    return;
  }
  static const char *const LAYOUTS[] = {[SH_QL_AWQ] = "AWQ", [SH_QL_GPTQ] = "GPTQ", [SH_QL_ROWS] = "packed", [SH_QL_I8] = "bytes"};
  char group[24] = "by row";
  if (m->group < m->cols) snprintf(group, sizeof group, "g%lld", (long long)m->group);
  if (m->layout != SH_QL_F8)
    snprintf(buf, size, "%s int%d %s%s%s", LAYOUTS[m->layout], m->bits, group, m->zeros ? "" : " sym", m->order ? " g_idx" : "");
  else if (m->scale_rows >= m->rows) snprintf(buf, size, "FP8 E4M3, one scale");
  else if (m->group >= m->cols) snprintf(buf, size, "FP8 E4M3 by row");
  else snprintf(buf, size, "FP8 E4M3 %lldx%lld", (long long)m->scale_rows, (long long)m->group);
}

/* Asks the backend for its opinion and its kernel. */
static void kernel_of(sh_insp *p, const sh_w_found *f, char *buf, size_t size) {
  sh_weight *w = NULL;
  sh_error e = {0};
  buf[0] = 0;
  if (f->mtp) snprintf(buf, size, "not computed");
  else if (!f->view) snprintf(buf, size, "float32 vectors");
  else if (!p->be) snprintf(buf, size, "-");
  else if (p->be->ops->weight_bind(p->be, f->view, &w, &e)) {
    sh_insp_issue_add(p, true, "weights", "%s", e.text);
    snprintf(buf, size, "none");
  } else {
    p->be->ops->weight_free(p->be, w);
    p->be->ops->weight_kernel(p->be, f->view, buf, size);
    if (f->looked_up) snprintf(buf, size, "rows are looked up");
  }
}

static sh_insp_row *row_of(sh_insp *p, int group, const char *format, const char *kernel) {
  for (int i = 0; i < p->n_rows; i++) {
    sh_insp_row *r = &p->rows[i];
    if (r->group == group && !strcmp(r->format, format) && !strcmp(r->kernel, kernel)) return r;
  }
  if (p->n_rows == SH_INSP_ROWS) return &p->rows[SH_INSP_ROWS - 1];
  const char *f = sh_insp_clean(p, format), *k = sh_insp_clean(p, kernel);
  int at = p->n_rows++; /* kept by group */
  while (at > 0 && p->rows[at - 1].group > group) {
    p->rows[at] = p->rows[at - 1];
    at--;
  }
  p->rows[at] = (sh_insp_row){.group = group, .format = f, .kernel = k};
  return &p->rows[at];
}

static void on_found(void *ctx, const sh_w_found *f) {
  sh_insp *p = ctx;
  char format[96], kernel[96];
  int group = group_of(f);
  format_of(f, format, sizeof format);
  kernel_of(p, f, kernel, sizeof kernel);
  sh_insp_row *r = row_of(p, group, format, kernel);
  r->tensors += !f->shared;
  r->bytes += (int64_t)f->bytes;
  p->n_mtp += f->mtp;
}

static void on_problem(void *ctx, int code, const char *text) {
  (void)code;
  sh_insp_issue_add(ctx, true, "weights", "%s", text);
}

static void on_unused(void *ctx, const sh_ftensor *t, bool visual) {
  sh_insp *p = ctx;
  if (visual) {
    p->n_visual++;
    p->visual_bytes += (int64_t)t->bytes;
    return;
  }
  if (p->n_unused < SH_INSP_NAMES) p->unused[p->n_unused] = sh_insp_clean(p, t->name);
  p->n_unused++;
  p->unused_bytes += (int64_t)t->bytes;
}

int sh_insp_weights(sh_insp *p) {
  sh_error e = {0};
  p->rows = sh_arena_array(p->a, SH_INSP_ROWS, sizeof *p->rows);
  p->unused = sh_arena_array(p->a, SH_INSP_NAMES, sizeof *p->unused);
  if (!p->rows || !p->unused) return sh_fail(p->e, SH_ERR_NOMEM, "out of memory");
  const sh_w_audit audit = {p, on_found, on_problem, on_unused};
  if (sh_model_config_check(&p->cfg, &e)) sh_insp_issue_add(p, true, "config", "%s", e.text);
  if (sh_quant_parse(&p->quant, sh_ckpt_config(p->ck), &e)) p->quant.method = SH_QUANT_NONE;
  const sh_repack_opts o = {.panels = !p->o->exact && sh_backend_takes_panels(p->be), .head = p->head};
  int rc = sh_weights_audit(&p->w, &p->cfg, p->ck, &o, &audit, p->e);
  if (rc) return rc;
  p->has_weights = true;
  if (p->n_unused)
    sh_insp_issue_add(p, false, "weights", "%lld tensor%s not used: %s%s", (long long)p->n_unused, p->n_unused == 1 ? " is" : "s are",
                      p->unused[0], p->n_unused > 1 ? " and others (--json lists them)" : "");
  if (p->cfg.mtp_layers && !p->w.mtp) sh_insp_issue_add(p, false, "weights", "the config has MTP layers, the weights have none");
  return 0;
}
