/* An inspection as text for a terminal of 100 columns: a section per subject, its label on the left, then issues and the verdict. */
#include "ops/inspect_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { WIDTH = 100, INDENT = 16, FILES_SHOWN = 10, ISSUES_SHOWN = 40 };

/* A list that wraps: where the line is. */
typedef struct pen {
  sh_buf *b;
  size_t col;
  bool first;
} pen;

static void label(sh_buf *b, const char *name) { sh_buf_printf(b, "%-*s", INDENT, name); }

static void line(sh_buf *b, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void line(sh_buf *b, const char *name, const char *fmt, ...) {
  char text[1200];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  label(b, name);
  sh_buf_printf(b, "%s\n", text);
}

static pen list(sh_buf *b, const char *name) {
  label(b, name);
  return (pen){b, INDENT, true};
}

static void item(pen *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void item(pen *p, const char *fmt, ...) {
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  size_t n = strlen(text);
  if (!p->first) {
    sh_buf_puts(p->b, ",");
    p->col++;
    if (p->col + n + 2 > WIDTH) {
      sh_buf_printf(p->b, "\n%*s", INDENT, "");
      p->col = INDENT;
    } else {
      sh_buf_puts(p->b, " ");
      p->col++;
    }
  }
  sh_buf_puts(p->b, text);
  p->col += n;
  p->first = false;
}

static void end(pen *p) { sh_buf_puts(p->b, p->first ? "-\n" : "\n"); }

/* Words, each after a blank; where one does not fit, a new line begins, indented by `indent` and that blank. */
static void words(sh_buf *b, size_t *col, size_t indent, const char *text) {
  for (const char *s = text; *s;) {
    size_t space = strspn(s, " "), n = strcspn(s + space, " ");
    if (*col + 1 + n > WIDTH && *col > indent + 1) {
      sh_buf_printf(b, "\n%*s", (int)indent, "");
      *col = indent;
    }
    if (n) sh_buf_printf(b, " %.*s", (int)n, s + space);
    *col += n + 1;
    s += space + n;
  }
}

static const char *size(int64_t n, char buf[32]) { return sh_format_size(n, buf); }

/* --- Sections */

static void show_files(const sh_insp *p, sh_buf *b) {
  char s[32];
  line(b, "Model", "%s", p->o->model);
  line(b, "", "%s, %lld file%s, %s", p->is_gguf ? "GGUF" : "Hugging Face folder", (long long)p->n_files_all, p->n_files_all == 1 ? "" : "s",
       size(p->file_bytes, s));
  pen l = list(b, "");
  for (int i = 0; i < p->n_files && i < FILES_SHOWN; i++) item(&l, "%s %s", p->files[i].name, size(p->files[i].bytes, s));
  if (p->n_files_all > FILES_SHOWN) item(&l, "and %lld more", (long long)p->n_files_all - FILES_SHOWN);
  end(&l);
}

static void show_config(const sh_insp *p, sh_buf *b) {
  const sh_config *c = &p->cfg;
  char s[32];
  pen l = list(b, "Architecture");
  item(&l, "%s", sh_arch_name(c->arch));
  item(&l, "%d layers", c->n_layers);
  if (c->n_linear) item(&l, "%d of them linear attention", c->n_linear);
  item(&l, "hidden %d", c->hidden);
  item(&l, "vocabulary %d", c->vocab_size);
  item(&l, c->tied ? "head tied to the embedding" : "own head");
  item(&l, "made for %d tokens", c->max_position);
  end(&l);
  l = list(b, "  attention");
  item(&l, "%d heads of %d", c->n_heads, c->head_dim);
  item(&l, "%d for keys and values", c->n_kv_heads);
  if (c->attn_output_gate) item(&l, "output gate");
  if (c->qk_norm) item(&l, "q and k norms");
  if (c->attn_bias) item(&l, "biases");
  end(&l);
  if (c->n_linear)
    line(b, "  linear", "%d key heads of %d, %d value heads of %d, convolution over %d", c->lin_k_heads, c->lin_k_dim, c->lin_v_heads,
         c->lin_v_dim, c->conv_kernel);
  if (c->n_experts)
    line(b, "  feed-forward", "%d experts of %d, %d per token, shared expert of %d", c->n_experts, c->moe_ffn, c->experts_per_tok,
         c->shared_ffn);
  else line(b, "  feed-forward", "%d", c->ffn);
  l = list(b, "  rope");
  item(&l, "theta %g", c->rope_theta);
  item(&l, "%d of %d dims", c->rotary_dim, c->head_dim);
  item(&l, c->rope_kind == SH_ROPE_NONE ? "no scaling" : "%s scaling by %g", sh_rope_kind_name(c->rope_kind), c->rope_factor);
  if (c->rope_interleaved) item(&l, "interleaved pairs");
  end(&l);
  if (!p->has_weights) return;
  line(b, "  MTP", "%s", p->w.mtp ? "there, mapped and left alone" : "none");
  if (p->n_visual) line(b, "  vision", "tower of %lld tensors, %s, left alone", (long long)p->n_visual, size(p->visual_bytes, s));
}

static void show_weights(const sh_insp *p, sh_buf *b) {
  char s[32], r[32];
  int64_t tensors = 0;
  for (int i = 0; i < p->n_rows; i++) tensors += p->rows[i].tensors;
  sh_buf_puts(b, "\n");
  pen l = list(b, "Weights");
  item(&l, "%lld tensors and modules in use", (long long)tensors);
  item(&l, "%s", size((int64_t)p->w.bytes, s));
  if (p->quant.method) item(&l, "quantized by %s", sh_quant_name(p->quant.method));
  if (p->w.repacked_bytes)
    item(&l, p->w.repacked_bytes >= (size_t)64 << 20 ? "repacked at the first start into a cache of %s" : "repacked at every start, %s",
         size((int64_t)p->w.repacked_bytes, r));
  end(&l);
  sh_buf_printf(b, "  %-18s %-22s %8s %10s  %s\n", "group", "stored as", "tensors", "size", "computed by");
  for (int i = 0; i < p->n_rows; i++) {
    const sh_insp_row *w = &p->rows[i];
    bool again = i && p->rows[i - 1].group == w->group;
    sh_buf_printf(b, "  %-18s %-22s %8lld %10s  %s\n", again ? "" : sh_insp_group_name(w->group), w->format, (long long)w->tensors,
                  size(w->bytes, s), w->kernel);
  }
  if (p->n_visual)
    sh_buf_printf(b, "  %-18s %-22s %8lld %10s  %s\n", "visual", "", (long long)p->n_visual, size(p->visual_bytes, s), "left alone");
  if (p->n_unused)
    sh_buf_printf(b, "  %-18s %-22s %8lld %10s  %s\n", "not used", "", (long long)p->n_unused, size(p->unused_bytes, s), "-");
}

static const char *token(const sh_insp *p, int32_t id) {
  const char *s = id >= 0 ? sh_tok_piece(p->tok, id) : NULL;
  for (const char *c = s; c && *c; c++)
    if ((unsigned char)*c < 32 || *c == 127) return "?";
  return s ? s : "?";
}

static void show_tokenizer(const sh_insp *p, sh_buf *b) {
  const sh_insp_tokenizer *t = &p->tk;
  sh_buf_puts(b, "\n");
  pen l = list(b, "Tokenizer");
  item(&l, "%s from %s", t->model, t->source);
  item(&l, "%d ids", t->vocab);
  item(&l, "%d added", t->n_added);
  item(&l, "%d special", t->n_special);
  item(&l, "normalizer %s", t->normalizer);
  item(&l, "pre-tokenizer %s", t->pretokenizer);
  item(&l, "probe text comes back: %s", t->round_trip ? "yes" : "no");
  end(&l);
  l = list(b, "  special ids");
  if (t->bos >= 0) item(&l, "bos %d %s", t->bos, token(p, t->bos));
  if (t->eos >= 0) item(&l, "eos %d %s", t->eos, token(p, t->eos));
  int shown = 0;
  for (int32_t id = 0; id < t->vocab && shown < 8; id++) {
    if (!sh_tok_is_special(p->tok, id) || id == t->bos || id == t->eos) continue;
    item(&l, "%d %.60s", id, token(p, id));
    shown++;
  }
  int rest = t->n_special - shown - (t->bos >= 0 && sh_tok_is_special(p->tok, t->bos)) -
             (t->eos >= 0 && t->eos != t->bos && sh_tok_is_special(p->tok, t->eos));
  if (rest > 0) item(&l, "and %d more", rest);
  end(&l);
  line(b, "", "put around text unasked: %s", t->adds_special ? "yes" : "no");
}

static void show_template(const sh_insp *p, sh_buf *b) {
  const sh_insp_template *t = &p->tp;
  char s[32];
  pen l = list(b, "Template");
  if (!t->source) {
    item(&l, "none");
  } else {
    item(&l, "from %s", t->source);
    item(&l, "%s", size((int64_t)t->bytes, s));
    if (!t->compiles) item(&l, "does not compile");
    else {
      item(&l, "content as %s", t->takes_parts ? "a list of parts" : "a string");
      item(&l, "probe conversation %s", t->renders_error ? "fails" : "renders");
      item(&l, t->thinks ? "thinks by default" : "does not think by default");
      item(&l, t->has_switch ? "enable_thinking switches it" : "no enable_thinking");
    }
  }
  end(&l);
}

static void show_generation(const sh_insp *p, sh_buf *b) {
  pen l = list(b, "Generation");
  for (size_t i = 0; p->gen && p->gen->type == SH_JSON_OBJECT && i < p->gen->len; i++) {
    const sh_json_member *m = &p->gen->members[i];
    double v;
    if (!sh_json_double(&m->value, &v) && !sh_str_ends(m->key, "_token_id")) item(&l, "%.60s %g", m->key, v);
  }
  if (l.first) item(&l, "no defaults given");
  end(&l);
  l = list(b, "  stops at");
  for (int i = 0; i < p->n_stops; i++) item(&l, "%d %.60s", p->stops[i], token(p, p->stops[i]));
  end(&l);
}

static void show_memory(const sh_insp *p, sh_buf *b) {
  char total[32], budget[32], weights[32], kv[32], state[32];
  const sh_plan *m = &p->serve.plan;
  sh_buf_puts(b, "\n");
  line(b, "Memory", "%s, of which %s may be used; weights %s%s", size(p->total_bytes, total), size(m->budget_bytes, budget),
       size(p->weight_bytes, weights), p->has_weights ? "" : " (by the size of the files)");
  line(b, "", "KV %s per token (%s), state %s per sequence", size(m->kv_bytes_per_token, kv), sh_kv_name(p->kv_type),
       size(m->state_bytes_per_seq, state));
  sh_buf_printf(b, "  %10s %10s %14s %12s %12s %12s\n", "context", "sequences", "of that length", "KV tokens", "KV+states", "scratch");
  for (int i = 0; i < p->n_plans; i++) {
    const sh_insp_plan *x = &p->plans[i];
    if (x->rc) {
      size_t col = INDENT + 11;
      sh_buf_printf(b, "  %10lld  does not fit:", (long long)x->context);
      words(b, &col, INDENT - 1, x->error);
      sh_buf_puts(b, "\n");
      continue;
    }
    int64_t tokens = x->plan.n_pages * x->plan.page_size;
    sh_buf_printf(b, "  %10lld %10lld %14lld %12lld %12s %12s", (long long)x->context, (long long)x->plan.max_num_seqs,
                  (long long)sh_insp_whole(x), (long long)tokens,
                  size(tokens * x->plan.kv_bytes_per_token + x->plan.max_num_seqs * x->plan.state_bytes_per_seq, kv),
                  size(x->plan.scratch_bytes, state));
    if (x->plan.shortened) sh_buf_printf(b, "  cut to %lld", (long long)x->plan.max_model_len);
    sh_buf_puts(b, "\n");
  }
}

/* --- Issues: those that differ in numbers only are one line */

static bool alike(const char *a, const char *b) {
  for (;;) {
    size_t n = strspn(a, "0123456789"), m = strspn(b, "0123456789");
    if ((n == 0) != (m == 0)) return false;
    a += n;
    b += m;
    if (*a != *b) return false;
    if (!*a) return true;
    a++;
    b++;
  }
}

static bool earlier(const sh_insp *p, int i) {
  for (int k = 0; k < i; k++)
    if (p->issues[k].fatal == p->issues[i].fatal && alike(p->issues[k].text, p->issues[i].text)) return true;
  return false;
}

/* "  where: text", words wrapped. */
static void wrapped(sh_buf *b, const char *where, const char *text, int same) {
  char more[48] = "";
  if (same) snprintf(more, sizeof more, " (and %d more like it)", same);
  sh_buf_printf(b, "  %s:", where);
  size_t col = strlen(where) + 3;
  words(b, &col, 3, text);
  words(b, &col, 3, more);
  sh_buf_puts(b, "\n");
}

static void show_issues(const sh_insp *p, bool fatal, const char *title, sh_buf *b) {
  int shown = 0;
  int64_t told = 0, all = fatal ? p->n_fatal : p->n_warnings;
  if (!all) return;
  sh_buf_printf(b, "\n%s\n", title);
  for (int i = 0; i < p->n_issues && shown < ISSUES_SHOWN; i++) {
    const sh_insp_issue *x = &p->issues[i];
    if (x->fatal != fatal || earlier(p, i)) continue;
    int same = 0;
    for (int k = i + 1; k < p->n_issues; k++) same += p->issues[k].fatal == fatal && alike(x->text, p->issues[k].text);
    wrapped(b, x->where, x->text, same);
    told += 1 + same;
    shown++;
  }
  if (told < all) sh_buf_printf(b, "  and %lld more; --json lists up to %d\n", (long long)(all - told), SH_INSP_NAMES);
}

void sh_insp_show(const sh_insp *p, sh_buf *b) {
  show_files(p, b);
  if (p->has_config) {
    sh_buf_puts(b, "\n");
    show_config(p, b);
  }
  if (p->has_weights) show_weights(p, b);
  if (p->has_tok) show_tokenizer(p, b);
  if (p->ck) show_template(p, b);
  if (p->has_tok && p->has_config) show_generation(p, b);
  if (p->has_config) show_memory(p, b);
  show_issues(p, false, "Worth knowing", b);
  show_issues(p, true, "Problems", b);
  if (p->n_fatal)
    sh_buf_printf(b, "\nsheng serve %s will not start: %lld problem%s\n", p->o->model, (long long)p->n_fatal, p->n_fatal == 1 ? "" : "s");
  else sh_buf_printf(b, "\nsheng serve %s will start\n", p->o->model);
}
