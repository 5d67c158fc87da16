/* Tests: what may stand after `is`, and as a name in select and reject. Pure questions about values; the comparisons reuse the operators.
 */
#include "text/jinja_int.h"

#include <string.h>

static int yes(bool b, jj_val *out) {
  *out = sh_jj_bool(b);
  return 0;
}

static int t_defined(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind != JJ_UNDEF, out); }
static int t_undefined(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_UNDEF, out); }
static int t_none(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_NONE, out); }
static int t_boolean(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_BOOL, out); }
static int t_true(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_BOOL && v.b, out); }
static int t_false(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_BOOL && !v.b, out); }
static int t_integer(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  return (void)c, (void)a, yes(v.kind == JJ_INT || v.kind == JJ_BIG, out);
}
static int t_float(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_FLOAT, out); }
static int t_number(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  double f;
  return (void)c, (void)a, yes(sh_jj_as_num(v, &f), out);
}
static int t_string(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_STR, out); }
static int t_mapping(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(v.kind == JJ_DICT, out); }
static int t_iterable(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  return (void)c, (void)a, yes(sh_jj_iterable(v) || v.kind == JJ_LOOP, out);
}
static int t_callable(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)c, (void)a, yes(sh_jj_callable(v), out); }
static int t_escaped(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  return (void)c, (void)a, yes(v.kind == JJ_STR && v.flag & JJ_MARKUP, out);
}

/* Has a length and an operator []. */
static int t_sequence(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  (void)c, (void)a;
  return yes(v.kind == JJ_UNDEF || v.kind == JJ_STR || v.kind == JJ_LIST || v.kind == JJ_TUPLE || v.kind == JJ_DICT || v.kind == JJ_RANGE,
             out);
}

static int has_case(jj_ctx *c, jj_val v, bool upper, jj_val *out) {
  bool any = false;
  size_t k;
  JJ_TRY(sh_jj_to_str(c, v, &v));
  for (size_t i = 0; i < v.s->len; i += k) {
    uint32_t cp = sh_jj_cp(v.s->p + i, v.s->len - i, &k);
    bool is_upper = sh_jj_is_upper(cp), is_lower = sh_jj_is_lower(cp);
    if (sh_jj_is_title(cp) || (upper ? is_lower : is_upper)) return yes(false, out);
    any |= is_upper || is_lower;
  }
  return yes(any, out);
}
static int t_lower(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)a, has_case(c, v, false, out); }
static int t_upper(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)a, has_case(c, v, true, out); }

static int remainder_is(jj_ctx *c, jj_val v, jj_val num, int64_t want, jj_val *out) {
  jj_val r;
  bool eq;
  JJ_TRY(sh_jj_arith(c, OP_MOD, v, num, &r));
  JJ_TRY(sh_jj_eq(c, r, sh_jj_int(want), &eq));
  return yes(eq, out);
}
static int t_odd(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)a, remainder_is(c, v, sh_jj_int(2), 1, out); }
static int t_even(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return (void)a, remainder_is(c, v, sh_jj_int(2), 0, out); }
static int t_divisibleby(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return remainder_is(c, v, a->v[0], 0, out); }

static int compare(jj_ctx *c, jj_op op, jj_val v, jj_args *a, jj_val *out) {
  bool b;
  JJ_TRY(sh_jj_compare(c, op, v, a->v[0], &b));
  return yes(b, out);
}
static int t_eq(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_EQ, v, a, out); }
static int t_ne(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_NE, v, a, out); }
static int t_lt(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_LT, v, a, out); }
static int t_le(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_LE, v, a, out); }
static int t_gt(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_GT, v, a, out); }
static int t_ge(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_GE, v, a, out); }
static int t_in(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) { return compare(c, OP_IN, v, a, out); }

/* One object: singletons and small integers by value, as CPython has them, all others by address. */
static int t_sameas(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  jj_val w = a->v[0];
  (void)c;
  if (v.kind != w.kind) return yes(false, out);
  switch (v.kind) {
  case JJ_NONE: return yes(true, out);
  case JJ_BOOL: return yes(v.b == w.b, out);
  case JJ_INT: return yes(v.i == w.i, out);
  case JJ_FLOAT: return yes(v.f == w.f, out);
  case JJ_STR: return yes(v.s == w.s || (v.s->len == w.s->len && memcmp(v.s->p, w.s->p, v.s->len) == 0), out);
  default: return yes(v.l == w.l, out);
  }
}

static int t_filter(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  (void)a;
  if (!sh_jj_hashable(v)) return sh_jj_fail(c, "unhashable type: '%s'", sh_jj_type_name(v));
  return yes(v.kind == JJ_STR && sh_jj_find_filter(v.s->p, v.s->len), out);
}
static int t_test(jj_ctx *c, jj_val v, jj_args *a, jj_val *out) {
  (void)a;
  if (!sh_jj_hashable(v)) return sh_jj_fail(c, "unhashable type: '%s'", sh_jj_type_name(v));
  return yes(v.kind == JJ_STR && sh_jj_find_test(v.s->p, v.s->len), out);
}

static const jj_builtin tests[] = {
    {"!=", t_ne, "value", 1, 0},
    {"<", t_lt, "value", 1, 0},
    {"<=", t_le, "value", 1, 0},
    {"==", t_eq, "value", 1, 0},
    {">", t_gt, "value", 1, 0},
    {">=", t_ge, "value", 1, 0},
    {"boolean", t_boolean, "", 0, 0},
    {"callable", t_callable, "", 0, 0},
    {"defined", t_defined, "", 0, 0},
    {"divisibleby", t_divisibleby, "num", 1, 0},
    {"eq", t_eq, "value", 1, 0},
    {"equalto", t_eq, "value", 1, 0},
    {"escaped", t_escaped, "", 0, 0},
    {"even", t_even, "", 0, 0},
    {"false", t_false, "", 0, 0},
    {"filter", t_filter, "", 0, 0},
    {"float", t_float, "", 0, 0},
    {"ge", t_ge, "value", 1, 0},
    {"greaterthan", t_gt, "value", 1, 0},
    {"gt", t_gt, "value", 1, 0},
    {"in", t_in, "seq", 1, 0},
    {"integer", t_integer, "", 0, 0},
    {"iterable", t_iterable, "", 0, 0},
    {"le", t_le, "value", 1, 0},
    {"lessthan", t_lt, "value", 1, 0},
    {"lower", t_lower, "", 0, 0},
    {"lt", t_lt, "value", 1, 0},
    {"mapping", t_mapping, "", 0, 0},
    {"ne", t_ne, "value", 1, 0},
    {"none", t_none, "", 0, 0},
    {"number", t_number, "", 0, 0},
    {"odd", t_odd, "", 0, 0},
    {"sameas", t_sameas, "other", 1, 0},
    {"sequence", t_sequence, "", 0, 0},
    {"string", t_string, "", 0, 0},
    {"test", t_test, "", 0, 0},
    {"true", t_true, "", 0, 0},
    {"undefined", t_undefined, "", 0, 0},
    {"upper", t_upper, "", 0, 0},
};

const jj_builtin *sh_jj_find_test(const char *name, size_t n) { return sh_jj_table_find(tests, sizeof tests / sizeof *tests, name, n); }
