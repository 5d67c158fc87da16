/* Jinja: the public entry points, the state of a render, scopes, statements, macros. The other parts: jinja_lex (text to tokens),
 * jinja_parse (tokens to tree), jinja_eval (expressions), jinja_ops (operators), jinja_value, jinja_loop (for), jinja_filters, jinja_seq,
 * jinja_tests, jinja_methods, jinja_funcs (tables of builtins), jinja_format, jinja_json, jinja_unicode.
 *
 * A compiled template is immutable; a render keeps all its state in a jj_ctx on the caller's stack and one arena, so any threads may render
 * at once. Scopes are small arrays of (interned name, value) linked to their parent: jinja2 decides at compile time which Python variable a
 * name is, and for the rules it has (set in for, with, macro and blocks stays there, set in if does not, a macro sees its surroundings as
 * they are when it runs) that comes to the same as a walk up this chain. Names not found in it are looked up in the caller's variables,
 * then among the global functions. Limits: steps, output, memory, nesting of macro calls (max_depth), and of the evaluator as a whole (ten
 * times that; under 768 KiB of C stack). Refused: a cache of compiled templates (the caller owns its few), and threads or timers to stop a
 * render (steps do, and give the same answer always). */
#include "text/jinja_int.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SOURCE = 1 << 20, MAX_TREE = 256 << 20, DEFAULT_DEPTH = 200, NEST_PER_DEPTH = 10 };
enum { MIN_SLOTS = 4 }; /* of bound arguments, so that functions shared by several builtins may look at all they know */

/* --- Failing, counting, allocating -------------------------------------------------------------------------------------------------- */
int sh_jj_fail(jj_ctx *c, const char *fmt, ...) {
  char text[600];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return sh_fail(c->err, SH_ERR_ARG, "line %d: %s", c->line, text);
}

int sh_jj_limit(jj_ctx *c, const char *what) {
  return sh_fail(c->err, SH_ERR_LIMIT, "line %d: the template reached its %s limit", c->line, what);
}

int sh_jj_nomem(jj_ctx *c) {
  if (sh_arena_left(c->arena) < c->big) return sh_jj_limit(c, "memory");
  return sh_fail(c->err, SH_ERR_NOMEM, "line %d: out of memory", c->line);
}

int sh_jj_step(jj_ctx *c, size_t n) {
  if (n > (size_t)(c->max_steps - c->steps)) return sh_jj_limit(c, "step");
  c->steps += (long)n;
  return 0;
}

void *sh_jj_alloc(jj_ctx *c, size_t n, size_t size) {
  void *p = sh_arena_array(c->arena, n, size);
  if (!p) c->big = __builtin_mul_overflow(n, size, &c->big) || c->big > SIZE_MAX / 2 ? SIZE_MAX : c->big + 64;
  return p;
}

/* --- Scopes ------------------------------------------------------------------------------------------------------------------------- */
jj_scope *sh_jj_scope_new(jj_ctx *c, jj_scope *parent) {
  jj_scope *s = sh_jj_alloc(c, 1, sizeof *s);
  if (s) s->parent = parent;
  return s;
}

int sh_jj_set_var(jj_ctx *c, const jj_str *name, jj_val v) {
  jj_scope *s = c->scope;
  for (int i = 0; i < s->n; i++)
    if (s->vars[i].name == name) {
      s->vars[i].v = v;
      return 0;
    }
  if (s->n == s->cap) {
    int cap = s->cap ? s->cap * 2 : 4;
    jj_var *vars = sh_jj_alloc(c, (size_t)cap, sizeof *vars);
    if (!vars) return sh_jj_nomem(c);
    if (s->n) memcpy(vars, s->vars, (size_t)s->n * sizeof *vars);
    s->vars = vars;
    s->cap = cap;
  }
  s->vars[s->n++] = (jj_var){name, v};
  return 0;
}

bool sh_jj_lookup(jj_ctx *c, const jj_str *name, jj_val *out) {
  for (const jj_scope *s = c->scope; s; s = s->parent)
    for (int i = 0; i < s->n; i++)
      if (s->vars[i].name == name) {
        *out = s->vars[i].v;
        return true;
      }
  if (sh_jj_dict_str(c->globals, name, out)) return true;
  const jj_builtin *fn = sh_jj_find_global(name);
  if (fn) *out = (jj_val){.kind = JJ_FUNC, .fn = fn};
  return fn != NULL;
}

static int assign_ns(jj_ctx *c, const jj_node *t, jj_val v) {
  jj_val ns;
  if (!sh_jj_lookup(c, t->name, &ns) || ns.kind != JJ_NS) return sh_jj_fail(c, "cannot assign attribute on non-namespace object");
  return sh_jj_dict_set(c, ns.d, t->val, v);
}

int sh_jj_assign(jj_ctx *c, const jj_node *t, jj_val v) {
  jj_list *l;
  if (t->type == E_NAME) return sh_jj_set_var(c, t->name, v);
  if (t->type == E_NSREF) return assign_ns(c, t, v);
  if (v.kind != JJ_LIST && v.kind != JJ_TUPLE && !sh_jj_iterable(v))
    return sh_jj_fail(c, "cannot unpack non-iterable %s object", sh_jj_type_name(v));
  JJ_TRY(sh_jj_to_list(c, v, &l));
  if (l->n < (size_t)t->n) return sh_jj_fail(c, "not enough values to unpack (expected %d, got %zu)", t->n, l->n);
  if (l->n > (size_t)t->n) return sh_jj_fail(c, "too many values to unpack (expected %d)", t->n);
  for (int i = 0; i < t->n; i++) JJ_TRY(sh_jj_assign(c, t->list[i], l->v[i]));
  return 0;
}

/* --- Calls -------------------------------------------------------------------------------------------------------------------------- */
/* The number of the parameter called name in "a|b|c", or -1. */
static int param_index(const char *params, const jj_str *name) {
  for (int i = 0;; i++) {
    size_t n = strcspn(params, "|");
    if (n == name->len && memcmp(params, name->p, n) == 0) return i;
    if (!params[n]) return -1;
    params += n + 1;
  }
}

int sh_jj_bind(jj_ctx *c, const jj_builtin *b, jj_args *in, jj_args *out) {
  int n = b->params[0] ? 1 : 0;
  for (const char *p = b->params; *p; p++) n += *p == '|';
  if (in->n > n) return sh_jj_fail(c, "%s takes at most %d argument(s), %d given", b->name, n, in->n);
  *out = (jj_args){sh_jj_alloc(c, n > MIN_SLOTS ? (size_t)n : MIN_SLOTS, sizeof *out->v), n, NULL, 0};
  if (!out->v) return sh_jj_nomem(c);
  if (in->n) memcpy(out->v, in->v, (size_t)in->n * sizeof *in->v);
  for (int i = 0; i < in->nkw; i++) {
    int at = param_index(b->params, in->kw[i].name);
    if (at < 0) return sh_jj_fail(c, "%s got an unexpected keyword argument '%.*s'", b->name, (int)in->kw[i].name->len, in->kw[i].name->p);
    if (jj_given(out->v[at]))
      return sh_jj_fail(c, "%s got multiple values for argument '%.*s'", b->name, (int)in->kw[i].name->len, in->kw[i].name->p);
    out->v[at] = in->kw[i].v;
  }
  for (int i = 0; i < b->need; i++)
    if (!jj_given(out->v[i])) return sh_jj_fail(c, "%s misses argument number %d", b->name, i + 1);
  return 0;
}

int sh_jj_apply(jj_ctx *c, const jj_builtin *b, jj_val self, jj_args *a, jj_val *out) {
  jj_args bound;
  if (!b->params) return b->fn(c, self, a, out);
  JJ_TRY(sh_jj_bind(c, b, a, &bound));
  return b->fn(c, self, &bound, out);
}

/* Takes the keyword argument out of a and returns it; JJ_MISSING if it is not there. */
static jj_val take_kw(jj_args *a, const jj_str *name) {
  for (int i = 0; i < a->nkw; i++) {
    if (a->kw[i].name->len != name->len || memcmp(a->kw[i].name->p, name->p, name->len) != 0) continue;
    jj_val v = a->kw[i].v;
    memmove(a->kw + i, a->kw + i + 1, (size_t)(a->nkw - i - 1) * sizeof *a->kw);
    a->nkw--;
    return v;
  }
  return (jj_val){.kind = JJ_MISSING};
}

static int macro_params(jj_ctx *c, const jj_macro *m, jj_args *a) {
  const jj_sig *s = m->node->sig;
  jj_val caller = {.kind = JJ_MISSING};
  for (int i = 0; i < s->n; i++) {
    JJ_TRY(sh_jj_step(c, (size_t)a->nkw / 4));
    jj_val v = i < a->n ? a->v[i] : take_kw(a, s->names[i]);
    int d = i - (s->n - s->n_defaults);
    if (!jj_given(v) && d >= 0) {
      JJ_TRY(sh_jj_eval(c, s->defaults[d], &v));
    } else if (!jj_given(v)) {
      char *hint = sh_arena_printf(c->arena, "parameter '%.*s' was not provided", (int)s->names[i]->len, s->names[i]->p);
      if (!hint) return sh_jj_nomem(c);
      JJ_TRY(sh_jj_undef(c, hint, &v));
    }
    JJ_TRY(sh_jj_set_var(c, s->names[i], v));
  }
  if (s->caller) {
    caller = take_kw(a, c->t->special[JJ_CALLER]);
    if (!jj_given(caller) || caller.kind == JJ_NONE) JJ_TRY(sh_jj_undef(c, "No caller defined", &caller));
    JJ_TRY(sh_jj_set_var(c, c->t->special[JJ_CALLER], caller));
  }
  return 0;
}

static int macro_rest(jj_ctx *c, const jj_macro *m, jj_args *a) {
  const jj_sig *s = m->node->sig;
  const jj_str *name = m->node->name;
  if (s->kwargs) {
    jj_dict *d = sh_jj_dict(c);
    if (!d) return sh_jj_nomem(c);
    for (int i = 0; i < a->nkw; i++) JJ_TRY(sh_jj_dict_set(c, d, jj_str_val(a->kw[i].name), a->kw[i].v));
    JJ_TRY(sh_jj_set_var(c, c->t->special[JJ_KWARGS], (jj_val){.kind = JJ_DICT, .d = d}));
  } else if (a->nkw) {
    return sh_jj_fail(c, "macro '%.*s' takes no keyword argument '%.*s'", (int)name->len, name->p, (int)a->kw[0].name->len,
                      a->kw[0].name->p);
  }
  if (!s->varargs && a->n > s->n) return sh_jj_fail(c, "macro '%.*s' takes not more than %d argument(s)", (int)name->len, name->p, s->n);
  if (s->varargs) {
    size_t n = a->n > s->n ? (size_t)(a->n - s->n) : 0;
    jj_list *l = sh_jj_list(c, n);
    if (!l) return sh_jj_nomem(c);
    if (n) memcpy(l->v, a->v + s->n, n * sizeof *l->v);
    l->n = n;
    JJ_TRY(sh_jj_set_var(c, c->t->special[JJ_VARARGS], (jj_val){.kind = JJ_TUPLE, .l = l}));
  }
  return 0;
}

static int macro_body(jj_ctx *c, const jj_macro *m, jj_args *a, jj_val *out) {
  int line = c->line;
  size_t mark = c->out.len;
  c->scope = sh_jj_scope_new(c, m->scope);
  if (!c->scope) return sh_jj_nomem(c);
  JJ_TRY(macro_params(c, m, a));
  c->line = line;
  JJ_TRY(macro_rest(c, m, a));
  JJ_TRY(sh_jj_body(c, &m->node->sig->body));
  return sh_jj_cut(c, mark, out);
}

static int call_macro(jj_ctx *c, const jj_macro *m, jj_args *a, jj_val *out) {
  jj_scope *outer = c->scope;
  if (++c->calls > c->max_calls) return sh_jj_limit(c, "depth");
  int rc = macro_body(c, m, a, out);
  c->calls--;
  c->scope = outer;
  return rc;
}

int sh_jj_call(jj_ctx *c, jj_val fn, jj_args *a, jj_val *out) {
  switch (fn.kind) {
  case JJ_FUNC: return sh_jj_apply(c, fn.fn, sh_jj_none, a, out);
  case JJ_METHOD: return sh_jj_apply(c, fn.bound->m, fn.bound->self, a, out);
  case JJ_MACRO: return call_macro(c, fn.m, a, out);
  case JJ_LOOP: return sh_jj_loop_call(c, fn.loop, a, out);
  case JJ_JOINER: /* nothing the first time, the separator from then on */
    if (a->n || a->nkw) return sh_jj_fail(c, "a joiner takes no arguments");
    if (fn.cyc->pos++) *out = fn.cyc->l->v[0];
    else JJ_TRY(sh_jj_str_ref(c, "", 0, out));
    return 0;
  case JJ_UNDEF: return sh_jj_fail_undef(c, fn);
  default: return sh_jj_fail(c, "'%s' object is not callable", sh_jj_type_name(fn));
  }
}

/* --- Statements --------------------------------------------------------------------------------------------------------------------- */
static int new_macro(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_macro *m = sh_jj_alloc(c, 1, sizeof *m);
  if (!m) return sh_jj_nomem(c);
  *m = (jj_macro){n, c->scope};
  for (jj_scope *s = c->scope; s && !s->captured; s = s->parent) s->captured = true;
  *out = (jj_val){.kind = JJ_MACRO, .m = m};
  return 0;
}

/* A body in a scope of its own, a child of parent. */
static int scoped_body(jj_ctx *c, const jj_body *b, jj_scope *parent) {
  jj_scope *outer = c->scope;
  c->scope = sh_jj_scope_new(c, parent);
  int rc = c->scope ? sh_jj_body(c, b) : sh_jj_nomem(c);
  c->scope = outer;
  return rc;
}

/* The text of a body, sent through filters if there are any. */
static int captured_body(jj_ctx *c, const jj_node *n, jj_val *out) {
  size_t mark = c->out.len;
  int rc = scoped_body(c, n->body, c->scope);
  if (rc) {
    c->out.len = mark; /* break out of a captured block: its text is lost, as in jinja2 */
    return rc;
  }
  JJ_TRY(sh_jj_cut(c, mark, out));
  c->line = n->line;
  return n->b ? sh_jj_eval_filter(c, n->b, out, out) : 0;
}

static int exec_if(jj_ctx *c, const jj_node *n) {
  jj_val v;
  for (int i = 0; i < n->n; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], &v));
    if (sh_jj_truth(c, v)) return sh_jj_body(c, &n->body[i]);
  }
  return n->n2 > n->n ? sh_jj_body(c, &n->body[n->n]) : 0;
}

static int exec_output(jj_ctx *c, const jj_node *n) {
  jj_val v;
  for (int i = 0; i < n->n; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], &v));
    c->line = n->line;
    JJ_TRY(sh_jj_write(c, v));
  }
  return 0;
}

static int exec_with(jj_ctx *c, const jj_node *n) {
  jj_scope *outer = c->scope, *inner = sh_jj_scope_new(c, outer);
  if (!inner) return sh_jj_nomem(c);
  for (int i = 0; i < n->n; i++) {
    jj_val v;
    JJ_TRY(sh_jj_eval(c, n->list2[i], &v)); /* values do not see the new names */
    c->scope = inner;
    int rc = sh_jj_assign(c, n->list[i], v);
    c->scope = outer;
    JJ_TRY(rc);
  }
  c->scope = inner;
  int rc = sh_jj_body(c, n->body);
  c->scope = outer;
  return rc;
}

static int exec_call_block(jj_ctx *c, const jj_node *n) {
  jj_val fn, caller, v;
  jj_args a;
  JJ_TRY(sh_jj_eval(c, n->a->a, &fn));
  JJ_TRY(sh_jj_eval_args(c, n->a->call, &a));
  JJ_TRY(new_macro(c, n, &caller));
  jj_kw *kw = sh_jj_alloc(c, (size_t)a.nkw + 1, sizeof *kw);
  if (!kw) return sh_jj_nomem(c);
  if (a.nkw) memcpy(kw, a.kw, (size_t)a.nkw * sizeof *kw);
  kw[a.nkw] = (jj_kw){c->t->special[JJ_CALLER], caller};
  a.kw = kw;
  a.nkw++;
  c->line = n->line;
  JJ_TRY(sh_jj_call(c, fn, &a, &v));
  return sh_jj_write(c, v);
}

static int exec(jj_ctx *c, const jj_node *n) {
  jj_val v;
  switch (n->type) {
  case S_DATA: return sh_jj_put(c, n->val.s->p, n->val.s->len);
  case S_OUTPUT: return exec_output(c, n);
  case S_FOR: return sh_jj_for(c, n);
  case S_IF: return exec_if(c, n);
  case S_SET: JJ_TRY(sh_jj_eval(c, n->b, &v)); return sh_jj_assign(c, n->a, v);
  case S_SETBLOCK: JJ_TRY(captured_body(c, n, &v)); return sh_jj_assign(c, n->a, v);
  case S_MACRO: JJ_TRY(new_macro(c, n, &v)); return sh_jj_set_var(c, n->name, v);
  case S_CALLBLOCK: return exec_call_block(c, n);
  case S_FILTERBLOCK: JJ_TRY(captured_body(c, n, &v)); return sh_jj_write(c, v);
  case S_WITH: return exec_with(c, n);
  case S_SCOPE: return scoped_body(c, n->body, n->flag ? c->module : c->scope);
  case S_BREAK: return JJ_BREAK;
  default: return JJ_CONTINUE;
  }
}

int sh_jj_body(jj_ctx *c, const jj_body *b) {
  if (++c->nest > c->max_nest) return sh_jj_limit(c, "nesting");
  int rc = 0;
  for (int i = 0; i < b->n && !rc; i++) {
    c->line = b->v[i]->line;
    rc = sh_jj_step(c, 1);
    if (!rc) rc = exec(c, b->v[i]);
  }
  c->nest--;
  return rc;
}

/* --- Entry points ------------------------------------------------------------------------------------------------------------------- */
int sh_jinja_compile(sh_jinja **out, const char *src, size_t len, sh_error *e) {
  jj_token *toks;
  size_t n;
  *out = NULL;
  if (len > MAX_SOURCE) return sh_fail(e, SH_ERR_LIMIT, "template: %zu bytes, at most %d are read", len, MAX_SOURCE);
  if (!sh_utf8_valid(src, len)) return sh_fail(e, SH_ERR_FORMAT, "template: not valid UTF-8");
  sh_jinja *t = sh_calloc(1, sizeof *t);
  if (!t) return sh_fail(e, SH_ERR_NOMEM, "template: out of memory");
  t->arena = sh_arena_new(MAX_TREE);
  int rc = t->arena ? 0 : sh_fail(e, SH_ERR_NOMEM, "template: out of memory");
  if (!rc) rc = sh_jj_lex(t->arena, src, len, &toks, &n, e);
  if (!rc) rc = sh_jj_parse(t, toks, n, e);
  if (rc) sh_jinja_free(t);
  else *out = t;
  return rc;
}

void sh_jinja_free(sh_jinja *t) {
  if (!t) return;
  sh_arena_free(t->arena);
  sh_free(t);
}

static int render(jj_ctx *c, const sh_json *vars) {
  jj_val v;
  c->line = 1;
  if (vars && vars->type != SH_JSON_OBJECT)
    return sh_fail(c->err, SH_ERR_ARG, "template variables: wanted an object, got %s", sh_json_type_name(vars->type));
  if (vars) {
    JJ_TRY(sh_jj_from_json(c, vars, &v));
    c->globals = v.d;
  } else if (!(c->globals = sh_jj_dict(c))) {
    return sh_jj_nomem(c);
  }
  c->module = c->scope = sh_jj_scope_new(c, NULL);
  if (!c->module) return sh_jj_nomem(c);
  return sh_jj_body(c, &c->t->root);
}

int sh_jinja_render(const sh_jinja *t, const sh_json *vars, const sh_jinja_limits *lim, sh_buf *out, sh_error *e) {
  static const sh_jinja_limits none;
  if (!lim) lim = &none;
  jj_ctx c = {.t = t, .err = e};
  c.max_steps = lim->max_steps > 0 ? lim->max_steps : 20 * 1000 * 1000;
  c.max_calls = lim->max_depth > 0 ? lim->max_depth : DEFAULT_DEPTH;
  c.max_nest = c.max_calls < 1 << 20 ? c.max_calls * NEST_PER_DEPTH : c.max_calls;
  c.arena = sh_arena_new(lim->max_memory ? lim->max_memory : 256u << 20);
  if (!c.arena) return sh_fail(e, SH_ERR_NOMEM, "template: out of memory");
  sh_buf_init(&c.out, lim->max_output ? lim->max_output : 16u << 20);
  int rc = render(&c, vars);
  if (!rc && c.out.len && (rc = sh_buf_put(out, c.out.p, c.out.len)))
    sh_fail(e, rc, "the rendered prompt of %zu bytes does not fit", c.out.len);
  sh_buf_free(&c.out);
  sh_arena_free(c.arena);
  return rc;
}
