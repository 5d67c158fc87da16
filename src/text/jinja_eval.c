/* Expressions: evaluates the tree, looks up attributes and items, slices, binds arguments.
 *
 * One thread per render. Plain recursion over the tree; every entry counts one step and one level of nesting, so neither time nor C stack
 * is unbounded. Attribute and item lookup follow jinja2's sandbox: obj.name tries Python's attribute first (here: the table of methods) and
 * then the item, obj['name'] the other way round; methods that would change a list or dict are found and refused; a missing one is
 * Undefined, which only fails when used. */
#include "text/jinja_int.h"

#include <string.h>

/* --- Attributes, items, slices ------------------------------------------------------------------------------------------------------ */
static int bound_method(jj_ctx *c, jj_val self, const jj_builtin *m, jj_val *out) {
  jj_bound *b = sh_jj_alloc(c, 1, sizeof *b);
  if (!b) return sh_jj_nomem(c);
  *b = (jj_bound){self, m};
  *out = (jj_val){.kind = JJ_METHOD, .bound = b};
  return 0;
}

static int macro_attr(jj_ctx *c, const jj_macro *m, const jj_str *name, bool *found, jj_val *out) {
  const jj_sig *s = m->node->sig;
  *found = true;
  if (sh_jj_str_is(name, "name")) *out = jj_str_val(m->node->name);
  else if (sh_jj_str_is(name, "catch_kwargs")) *out = sh_jj_bool(s->kwargs);
  else if (sh_jj_str_is(name, "catch_varargs")) *out = sh_jj_bool(s->varargs);
  else if (sh_jj_str_is(name, "caller")) *out = sh_jj_bool(s->caller);
  else if (sh_jj_str_is(name, "arguments")) {
    jj_list *l = sh_jj_list(c, (size_t)s->n);
    if (!l) return sh_jj_nomem(c);
    for (int i = 0; i < s->n; i++) JJ_TRY(sh_jj_push(c, l, jj_str_val(s->names[i])));
    *out = (jj_val){.kind = JJ_TUPLE, .l = l};
  } else {
    *found = false;
  }
  return 0;
}

/* What Python's getattr would find. */
static int attribute(jj_ctx *c, jj_val obj, jj_str *name, bool *found, jj_val *out) {
  const jj_builtin *m;
  *found = true;
  if (obj.kind == JJ_NS) {
    *found = sh_jj_dict_str(obj.d, name, out);
    return 0;
  }
  if (obj.kind == JJ_LOOP) {
    JJ_TRY(sh_jj_loop_attr(c, obj.loop, name, found, out));
    if (*found) return 0;
  }
  if (obj.kind == JJ_MACRO) return macro_attr(c, obj.m, name, found, out);
  if (obj.kind == JJ_TUPLE && obj.flag & JJ_GROUP) {
    bool grouper = sh_jj_str_is(name, "grouper");
    if (grouper || sh_jj_str_is(name, "list")) {
      *out = obj.l->v[grouper ? 0 : 1];
      return 0;
    }
  }
  if (sh_jj_is_dict_type(obj)) {
    *found = sh_jj_dict_type_attr(obj, name, out);
    return 0;
  }
  if (obj.kind == JJ_CYCLER && sh_jj_str_is(name, "current")) {
    *out = obj.cyc->l->v[obj.cyc->pos];
    return 0;
  }
  if (sh_jj_mutates((jj_kind)obj.kind, name)) {
    jj_undef *u = sh_jj_alloc(c, 1, sizeof *u);
    if (!u) return sh_jj_nomem(c);
    u->hint =
        sh_arena_printf(c->arena, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name->len, name->p, sh_jj_type_name(obj));
    if (!u->hint) return sh_jj_nomem(c);
    *out = (jj_val){.kind = JJ_UNDEF, .u = u};
    return 0;
  }
  m = sh_jj_find_method(obj, name);
  *found = m != NULL;
  return m ? bound_method(c, obj, m, out) : 0;
}

static bool dunder(const jj_str *s) { return s->len > 4 && memcmp(s->p, "__", 2) == 0 && memcmp(s->p + s->len - 2, "__", 2) == 0; }

int sh_jj_getattr(jj_ctx *c, jj_val obj, jj_str *name, jj_val *out) {
  bool found = false;
  if (obj.kind == JJ_UNDEF) return sh_jj_fail_undef(c, obj);
  if (!dunder(name)) JJ_TRY(attribute(c, obj, name, &found, out));
  if (!found && obj.kind == JJ_DICT) found = sh_jj_dict_str(obj.d, name, out);
  return found ? 0 : sh_jj_undef_of(c, obj, jj_str_val(name), out);
}

/* obj[i] of a sequence; found false when out of range. */
static int at_index(jj_ctx *c, jj_val obj, int64_t i, bool *found, jj_val *out) {
  int64_t n;
  bool ok;
  JJ_TRY(sh_jj_len(c, obj, &ok, &n));
  if (i < 0) i += n;
  *found = i >= 0 && i < n;
  if (!*found) return 0;
  if (obj.kind == JJ_RANGE) {
    *out = sh_jj_int(sh_jj_range_at(obj.r, i));
  } else if (obj.kind == JJ_STR) {
    if (obj.s->ncp != obj.s->len) JJ_TRY(sh_jj_step(c, (size_t)i / 64));
    size_t at = sh_jj_offset(obj.s, (size_t)i), k;
    sh_jj_cp(obj.s->p + at, obj.s->len - at, &k);
    JJ_TRY(sh_jj_str_ref(c, obj.s->p + at, k, out));
    out->flag = obj.flag;
  } else {
    *out = obj.l->v[i];
  }
  return 0;
}

static bool is_sequence(jj_val v) { return v.kind == JJ_LIST || v.kind == JJ_TUPLE || v.kind == JJ_STR || v.kind == JJ_RANGE; }

int sh_jj_getitem(jj_ctx *c, jj_val obj, jj_val key, jj_val *out) {
  bool found = false;
  int64_t i;
  if (obj.kind == JJ_UNDEF) return sh_jj_fail_undef(c, obj);
  if (sh_jj_is_dict_type(obj)) {
    *out = obj; /* an annotation, see sh_jj_dict_type_attr */
    return 0;
  }
  if (obj.kind == JJ_DICT && sh_jj_hashable(key)) JJ_TRY(sh_jj_dict_get(c, obj.d, key, &found, out));
  if (is_sequence(obj) && sh_jj_as_int(key, &i)) JJ_TRY(at_index(c, obj, i, &found, out));
  if (!found && key.kind == JJ_STR && !dunder(key.s)) JJ_TRY(attribute(c, obj, key.s, &found, out));
  return found ? 0 : sh_jj_undef_of(c, obj, key, out);
}

/* Python's slice.indices for a sequence of n. */
static int slice_bounds(jj_ctx *c, int64_t n, jj_val lo, jj_val hi, jj_val step, int64_t *start, int64_t *stop, int64_t *stride,
                        int64_t *count) {
  int64_t s = 1, a, b;
  const jj_val parts[3] = {lo, hi, step};
  for (int i = 0; i < 3; i++) {
    if (parts[i].kind == JJ_UNDEF) return sh_jj_fail_undef(c, parts[i]);
    if (parts[i].kind != JJ_NONE && parts[i].kind != JJ_INT && parts[i].kind != JJ_BOOL)
      return sh_jj_fail(c, "slice indices must be integers or None, not '%s'", sh_jj_type_name(parts[i]));
  }
  sh_jj_as_int(step, &s);
  if (s == 0) return sh_jj_fail(c, "slice step cannot be zero");
  if (s < -INT64_MAX) s = -INT64_MAX;
  int64_t low = s < 0 ? -1 : 0, high = s < 0 ? n - 1 : n;
  a = s < 0 ? high : low;
  b = s < 0 ? low : high;
  if (sh_jj_as_int(lo, &a)) {
    if (a < 0) a = a + n < low ? low : a + n;
    else if (a > high) a = high;
  }
  if (sh_jj_as_int(hi, &b)) {
    if (b < 0) b = b + n < low ? low : b + n;
    else if (b > high) b = high;
  }
  *start = a;
  *stop = b;
  *stride = s;
  *count = s > 0 ? (b > a ? (b - a - 1) / s + 1 : 0) : (a > b ? (a - b - 1) / -s + 1 : 0);
  return 0;
}

static int slice_str(jj_ctx *c, jj_val v, int64_t start, int64_t step, int64_t n, jj_val *out) {
  jj_str *s = v.s;
  size_t k;
  if (n == 0) {
    JJ_TRY(sh_jj_str_ref(c, "", 0, out));
  } else if (step == 1) {
    size_t from = sh_jj_offset(s, (size_t)start);
    jj_str rest = {s->p + from, s->len - from, s->ncp == s->len ? s->len - from : SIZE_MAX, NULL};
    JJ_TRY(sh_jj_str_ref(c, rest.p, sh_jj_offset(&rest, (size_t)n), out));
    out->s->ncp = (size_t)n;
  } else { /* one offset per code point, then pick */
    size_t ncp = sh_jj_cps(s), *at = sh_jj_alloc(c, ncp + 1, sizeof *at), mark = c->out.len;
    if (!at) return sh_jj_nomem(c);
    for (size_t i = 0, b = 0; i < ncp; i++, b += k) {
      at[i] = b;
      sh_jj_cp(s->p + b, s->len - b, &k);
    }
    at[ncp] = s->len;
    for (int64_t i = start; n > 0; n--, i += step) JJ_TRY(sh_jj_put(c, s->p + at[i], at[i + 1] - at[i]));
    JJ_TRY(sh_jj_cut(c, mark, out));
  }
  out->flag = v.flag;
  return 0;
}

int sh_jj_slice(jj_ctx *c, jj_val v, jj_val lo, jj_val hi, jj_val step, jj_val *out) {
  int64_t len, start = 0, stop = 0, stride = 1, n = 0;
  bool ok;
  if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
  if (!is_sequence(v)) return sh_jj_fail(c, "'%s' object cannot be sliced", sh_jj_type_name(v));
  JJ_TRY(sh_jj_len(c, v, &ok, &len));
  JJ_TRY(slice_bounds(c, len, lo, hi, step, &start, &stop, &stride, &n));
  JJ_TRY(sh_jj_step(c, v.kind == JJ_STR ? v.s->len / 64 : (size_t)n / 8));
  if (v.kind == JJ_STR) return slice_str(c, v, start, stride, n, out);
  if (v.kind == JJ_RANGE) {
    jj_range *r = sh_jj_alloc(c, 1, sizeof *r);
    if (!r) return sh_jj_nomem(c);
    int64_t s = (int64_t)((uint64_t)v.r->step * (uint64_t)stride);
    *r = (jj_range){sh_jj_range_at(v.r, start), sh_jj_range_at(v.r, stop), s, n};
    *out = (jj_val){.kind = JJ_RANGE, .r = r};
    return 0;
  }
  jj_list *l = sh_jj_list(c, stride == 1 ? 0 : (size_t)n);
  if (!l) return sh_jj_nomem(c);
  if (stride == 1) {
    l->v = v.l->v + start;
  } else {
    for (int64_t i = 0; i < n; i++) l->v[i] = v.l->v[start + i * stride];
  }
  l->n = l->cap = (size_t)n;
  *out = (jj_val){.kind = v.kind, .l = l};
  return 0;
}

/* --- Calls -------------------------------------------------------------------------------------------------------------------------- */
static int add_kw(jj_ctx *c, jj_args *a, int *cap, jj_str *name, jj_val v) {
  JJ_TRY(sh_jj_step(c, (size_t)a->nkw / 4)); /* names are compared one by one: quadratic in a call of 60,000 */
  for (int i = 0; i < a->nkw; i++)
    if (a->kw[i].name->len == name->len && memcmp(a->kw[i].name->p, name->p, name->len) == 0)
      return sh_jj_fail(c, "got multiple values for keyword argument '%.*s'", (int)name->len, name->p);
  if (a->nkw == *cap) {
    int want = *cap ? *cap * 2 : 4;
    jj_kw *kw = sh_jj_alloc(c, (size_t)want, sizeof *kw);
    if (!kw) return sh_jj_nomem(c);
    if (a->nkw) memcpy(kw, a->kw, (size_t)a->nkw * sizeof *kw);
    a->kw = kw;
    *cap = want;
  }
  a->kw[a->nkw++] = (jj_kw){name, v};
  return 0;
}

/* The arguments given as *list and **dict. */
static int star_args(jj_ctx *c, const jj_call *call, jj_args *a, int *cap_kw) {
  jj_val v;
  jj_list *l;
  if (call->star) {
    JJ_TRY(sh_jj_eval(c, call->star, &v));
    JJ_TRY(sh_jj_to_list(c, v, &l));
    if (l->n > 10000) return sh_jj_limit(c, "argument");
    jj_val *m = sh_jj_alloc(c, (size_t)a->n + l->n, sizeof *m);
    if (!m) return sh_jj_nomem(c);
    if (a->n) memcpy(m, a->v, (size_t)a->n * sizeof *m);
    if (l->n) memcpy(m + a->n, l->v, l->n * sizeof *m);
    a->v = m;
    a->n += (int)l->n;
  }
  if (call->star2) {
    JJ_TRY(sh_jj_eval(c, call->star2, &v));
    if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
    if (v.kind != JJ_DICT) return sh_jj_fail(c, "argument after ** must be a mapping, not %s", sh_jj_type_name(v));
    if (v.d->n > 10000) return sh_jj_limit(c, "argument");
    for (size_t i = 0; i < v.d->n; i++) {
      if (v.d->e[i].k.kind != JJ_STR) return sh_jj_fail(c, "keywords must be strings");
      JJ_TRY(add_kw(c, a, cap_kw, v.d->e[i].k.s, v.d->e[i].v));
    }
  }
  return 0;
}

int sh_jj_eval_args(jj_ctx *c, const jj_call *call, jj_args *a) {
  int cap = 0;
  *a = (jj_args){0};
  if (!call) return 0;
  if (call->n && !(a->v = sh_jj_alloc(c, (size_t)call->n, sizeof *a->v))) return sh_jj_nomem(c);
  for (; a->n < call->n; a->n++) JJ_TRY(sh_jj_eval(c, call->pos[a->n], &a->v[a->n]));
  for (int i = 0; i < call->nkw; i++) {
    jj_val v;
    JJ_TRY(sh_jj_eval(c, call->vals[i], &v));
    JJ_TRY(add_kw(c, a, &cap, call->names[i], v));
  }
  return star_args(c, call, a, &cap);
}

static int eval_call(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val fn;
  jj_args a;
  JJ_TRY(sh_jj_eval(c, n->a, &fn));
  JJ_TRY(sh_jj_eval_args(c, n->call, &a));
  c->line = n->line;
  return sh_jj_call(c, fn, &a, out);
}

int sh_jj_eval_filter(jj_ctx *c, const jj_node *n, const jj_val *input, jj_val *out) {
  jj_val v;
  jj_args a;
  if (!n->a) v = *input;
  else if (input) JJ_TRY(sh_jj_eval_filter(c, n->a, input, &v));
  else JJ_TRY(sh_jj_eval(c, n->a, &v));
  if (!n->fn) return sh_jj_fail(c, "no filter named '%.*s'", (int)n->name->len, n->name->p);
  JJ_TRY(sh_jj_eval_args(c, n->call, &a));
  c->line = n->line;
  return sh_jj_apply(c, n->fn, v, &a, out);
}

static int eval_test(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val v;
  jj_args a;
  JJ_TRY(sh_jj_eval(c, n->a, &v));
  if (!n->fn) return sh_jj_fail(c, "no test named '%.*s'", (int)n->name->len, n->name->p);
  JJ_TRY(sh_jj_eval_args(c, n->call, &a));
  c->line = n->line;
  JJ_TRY(sh_jj_apply(c, n->fn, v, &a, out));
  if (n->flag) *out = sh_jj_bool(!sh_jj_truth(c, *out));
  return 0;
}

/* --- Nodes -------------------------------------------------------------------------------------------------------------------------- */
static int eval_name(jj_ctx *c, const jj_node *n, jj_val *out) {
  if (sh_jj_lookup(c, n->name, out)) return 0;
  return sh_jj_undef_of(c, (jj_val){.kind = JJ_MISSING}, jj_str_val(n->name), out);
}

static int eval_items(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_list *l = sh_jj_list(c, (size_t)n->n);
  if (!l) return sh_jj_nomem(c);
  for (; l->n < (size_t)n->n; l->n++) JJ_TRY(sh_jj_eval(c, n->list[l->n], &l->v[l->n]));
  *out = (jj_val){.kind = n->type == E_TUPLE ? JJ_TUPLE : JJ_LIST, .l = l};
  return 0;
}

static int eval_dict(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_dict *d = sh_jj_dict(c);
  if (!d) return sh_jj_nomem(c);
  for (int i = 0; i + 1 < n->n; i += 2) {
    jj_val k, v;
    JJ_TRY(sh_jj_eval(c, n->list[i], &k));
    JJ_TRY(sh_jj_eval(c, n->list[i + 1], &v));
    JJ_TRY(sh_jj_dict_set(c, d, k, v));
  }
  *out = (jj_val){.kind = JJ_DICT, .d = d};
  return 0;
}

static int eval_logic(jj_ctx *c, const jj_node *n, jj_val *out) {
  for (int i = 0; i < n->n; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], out));
    if (sh_jj_truth(c, *out) == (n->type == E_OR)) break;
  }
  return 0;
}

static int eval_compare(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val left, right;
  bool yes = true;
  JJ_TRY(sh_jj_eval(c, n->list[0], &left));
  for (int i = 1; i < n->n && yes; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], &right));
    c->line = n->line;
    JJ_TRY(sh_jj_compare(c, (jj_op)n->ops[i - 1], left, right, &yes));
    left = right;
  }
  *out = sh_jj_bool(yes);
  return 0;
}

static int eval_arith(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val right;
  JJ_TRY(sh_jj_eval(c, n->list[0], out));
  for (int i = 1; i < n->n; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], &right));
    c->line = n->line;
    JJ_TRY(sh_jj_arith(c, (jj_op)n->ops[i - 1], *out, right, out));
  }
  return 0;
}

static int eval_concat(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val acc, v;
  JJ_TRY(sh_jj_eval(c, n->list[0], &v));
  JJ_TRY(sh_jj_to_str(c, v, &acc));
  for (int i = 1; i < n->n; i++) {
    JJ_TRY(sh_jj_eval(c, n->list[i], &v));
    JJ_TRY(sh_jj_to_str(c, v, &v));
    JJ_TRY(sh_jj_concat(c, acc.s, v.s, &acc));
  }
  *out = acc;
  out->flag = 0;
  return 0;
}

static int eval_cond(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val test;
  JJ_TRY(sh_jj_eval(c, n->a, &test));
  if (sh_jj_truth(c, test)) return sh_jj_eval(c, n->b, out);
  if (n->c) return sh_jj_eval(c, n->c, out);
  return sh_jj_undef(c, "the inline if-expression evaluated to false and no else section was defined.", out);
}

static int eval_item(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val obj, key, part[3] = {sh_jj_none, sh_jj_none, sh_jj_none};
  JJ_TRY(sh_jj_eval(c, n->a, &obj));
  if (n->b->type != E_SLICE) {
    JJ_TRY(sh_jj_eval(c, n->b, &key));
    c->line = n->line;
    return sh_jj_getitem(c, obj, key, out);
  }
  for (int i = 0; i < 3; i++)
    if (n->b->list[i]) JJ_TRY(sh_jj_eval(c, n->b->list[i], &part[i]));
  c->line = n->line;
  return sh_jj_slice(c, obj, part[0], part[1], part[2], out);
}

static int eval_attr(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val obj;
  JJ_TRY(sh_jj_eval(c, n->a, &obj));
  c->line = n->line;
  return sh_jj_getattr(c, obj, n->val.s, out);
}

static int eval_unary(jj_ctx *c, const jj_node *n, jj_val *out) {
  jj_val v;
  JJ_TRY(sh_jj_eval(c, n->a, &v));
  if (n->type == E_NOT) {
    *out = sh_jj_bool(!sh_jj_truth(c, v));
    return 0;
  }
  return sh_jj_negate(c, v, n->type == E_NEG, out);
}

static int eval_node(jj_ctx *c, const jj_node *n, jj_val *out) {
  switch (n->type) {
  case E_CONST: *out = n->val; return 0;
  case E_NAME: return eval_name(c, n, out);
  case E_TUPLE:
  case E_LIST: return eval_items(c, n, out);
  case E_DICT: return eval_dict(c, n, out);
  case E_OR:
  case E_AND: return eval_logic(c, n, out);
  case E_NOT:
  case E_NEG:
  case E_POS: return eval_unary(c, n, out);
  case E_COMPARE: return eval_compare(c, n, out);
  case E_ARITH: return eval_arith(c, n, out);
  case E_CONCAT: return eval_concat(c, n, out);
  case E_COND: return eval_cond(c, n, out);
  case E_ATTR: return eval_attr(c, n, out);
  case E_ITEM: return eval_item(c, n, out);
  case E_CALL: return eval_call(c, n, out);
  case E_FILTER: return sh_jj_eval_filter(c, n, NULL, out);
  case E_TEST: return eval_test(c, n, out);
  default: return sh_jj_fail(c, "a slice only works alone inside [ ]");
  }
}

int sh_jj_eval(jj_ctx *c, const jj_node *n, jj_val *out) {
  c->line = n->line;
  JJ_TRY(sh_jj_step(c, 1));
  if (++c->nest > c->max_nest) return sh_jj_limit(c, "nesting");
  int rc = eval_node(c, n, out);
  c->nest--;
  return rc;
}
