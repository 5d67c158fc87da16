/* Operators: arithmetic, comparison, membership, sorting, all with Python's meaning.
 *
 * Integers are int64; what leaves that range is an error that says so, not a wrong number (Python's are unbounded; no chat template comes
 * near). An integer from JSON beyond 64 bits (JJ_BIG) prints and compares and is refused by arithmetic. Integer and float compare exactly,
 * as in Python, through long double, whose mantissa holds an int64. Work on long operands is counted as steps, so "x" * 10**9 fails before
 * it is allocated. */
#include "text/jinja_int.h"

#include <math.h>
#include <string.h>

/* --- Arithmetic --------------------------------------------------------------------------------------------------------------------- */
static const char *op_text(jj_op op) {
  static const char *const t[] = {"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return t[op];
}

static int bad_operands(jj_ctx *c, jj_op op, jj_val a, jj_val b) {
  if (a.kind == JJ_UNDEF) return sh_jj_fail_undef(c, a);
  if (b.kind == JJ_UNDEF) return sh_jj_fail_undef(c, b);
  if (op == OP_ADD && a.kind == JJ_STR) return sh_jj_fail(c, "can only concatenate str (not \"%s\") to str", sh_jj_type_name(b));
  if (op >= OP_EQ)
    return sh_jj_fail(c, "'%s' not supported between instances of '%s' and '%s'", op_text(op), sh_jj_type_name(a), sh_jj_type_name(b));
  return sh_jj_fail(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op), sh_jj_type_name(a), sh_jj_type_name(b));
}

static int too_large(jj_ctx *c) { return sh_jj_fail(c, "the result is an integer beyond 64 bits"); }

static int int_pow(jj_ctx *c, int64_t x, int64_t n, jj_val *out) {
  int64_t r = 1;
  if (n < 0) {
    if (x == 0) return sh_jj_fail(c, "0.0 cannot be raised to a negative power");
    *out = sh_jj_float(pow((double)x, (double)n));
    return 0;
  }
  if (x == 0 || x == 1 || x == -1) { /* the only ones that stay small for any n */
    *out = sh_jj_int(n == 0 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : x);
    return 0;
  }
  if (n > 63) return too_large(c);
  for (; n > 0; n--)
    if (__builtin_mul_overflow(r, x, &r)) return too_large(c);
  *out = sh_jj_int(r);
  return 0;
}

static const int64_t EXACT = (int64_t)1 << 53; /* below it every integer is a double */

static int int_arith(jj_ctx *c, jj_op op, int64_t x, int64_t y, jj_val *out) {
  int64_t r = 0;
  bool over = false;
  if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0)
    return sh_jj_fail(c, op == OP_DIV ? "division by zero" : "integer division or modulo by zero");
  switch (op) {
  case OP_ADD: over = __builtin_add_overflow(x, y, &r); break;
  case OP_SUB: over = __builtin_sub_overflow(x, y, &r); break;
  case OP_MUL: over = __builtin_mul_overflow(x, y, &r); break;
  case OP_DIV: {
    bool small = x < EXACT && x > -EXACT && y < EXACT && y > -EXACT; /* else one rounding in long double instead of three */
    *out = sh_jj_float(small ? (double)x / (double)y : (double)((long double)x / (long double)y));
    return 0;
  }
  case OP_FLOORDIV:
    if (y == -1) over = __builtin_sub_overflow((int64_t)0, x, &r);
    else r = x / y - (x % y != 0 && (x < 0) != (y < 0));
    break;
  case OP_MOD:
    r = y == -1 ? 0 : x % y;
    if (r && (r < 0) != (y < 0)) r += y;
    break;
  default: return int_pow(c, x, y, out);
  }
  if (over) return too_large(c);
  *out = sh_jj_int(r);
  return 0;
}

static int float_arith(jj_ctx *c, jj_op op, double x, double y, jj_val *out) {
  double r;
  if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && y == 0) return sh_jj_fail(c, "float division by zero");
  switch (op) {
  case OP_ADD: r = x + y; break;
  case OP_SUB: r = x - y; break;
  case OP_MUL: r = x * y; break;
  case OP_DIV: r = x / y; break;
  case OP_MOD:
  case OP_FLOORDIV: { /* the remainder has the divisor's sign; the quotient is exact for it */
    double m = fmod(x, y), q = (x - m) / y;
    if (m != 0 && (m < 0) != (y < 0)) {
      m += y;
      q -= 1;
    }
    if (m == 0) m = copysign(0, y);
    double f = floor(q);
    if (q - f > 0.5) f += 1;
    if (q == 0) f = copysign(0, x / y);
    r = op == OP_MOD ? m : f;
    break;
  }
  default:
    if (x == 0 && y < 0) return sh_jj_fail(c, "0.0 cannot be raised to a negative power");
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y)) return sh_jj_fail(c, "a negative number has no real power with a fraction");
    r = pow(x, y);
    if (isinf(r) && isfinite(x) && isfinite(y)) return sh_jj_fail(c, "the result of ** is too large for a float");
    break;
  }
  *out = sh_jj_float(r);
  return 0;
}

static int repeat(jj_ctx *c, jj_val v, int64_t times, jj_val *out) {
  size_t n = times < 0 ? 0 : (size_t)times, len = v.kind == JJ_STR ? v.s->len : v.l->n, unit = v.kind == JJ_STR ? 1 : sizeof(jj_val), total;
  if (__builtin_mul_overflow(n, len, &total) || total > SIZE_MAX / 64) return sh_jj_limit(c, "memory");
  JJ_TRY(sh_jj_step(c, total * unit / 64));
  if (v.kind != JJ_STR) {
    jj_list *l = sh_jj_list(c, total);
    if (!l) return sh_jj_nomem(c);
    for (size_t i = 0; i < n && len; i++) memcpy(l->v + i * len, v.l->v, len * sizeof *l->v);
    l->n = total;
    *out = (jj_val){.kind = v.kind, .l = l};
    return 0;
  }
  char *p = sh_jj_alloc(c, total, 1);
  if (!p) return sh_jj_nomem(c);
  for (size_t i = 0; i < n && len; i++) memcpy(p + i * len, v.s->p, len);
  JJ_TRY(sh_jj_str_ref(c, p, total, out));
  out->flag = v.flag;
  return 0;
}

static int add_lists(jj_ctx *c, jj_val a, jj_val b, jj_val *out) {
  jj_list *x = a.l, *y = b.l, *l = sh_jj_list(c, 0);
  size_t n = x->n + y->n;
  if (!l) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_step(c, y->n / 4));
  if (x->tail && x->n == x->tail->used && n <= x->tail->cap) {
    *l = (jj_list){x->v, n, x->cap, x->tail};
  } else {
    JJ_TRY(sh_jj_step(c, x->n / 4));
    size_t cap = n * 2 + 4;
    l->v = sh_jj_alloc(c, cap, sizeof *l->v);
    l->tail = sh_jj_alloc(c, 1, sizeof *l->tail);
    if (!l->v || !l->tail) return sh_jj_nomem(c);
    if (x->n) memcpy(l->v, x->v, x->n * sizeof *l->v);
    l->tail->cap = l->cap = cap;
    l->n = n;
  }
  if (y->n) memcpy(l->v + x->n, y->v, y->n * sizeof *l->v);
  l->tail->used = n;
  *out = (jj_val){.kind = a.kind, .l = l};
  return 0;
}

/* Text added to a safe string is escaped, on either side. */
static int add_strings(jj_ctx *c, jj_val a, jj_val b, jj_val *out) {
  bool markup = (a.flag | b.flag) & JJ_MARKUP;
  if (markup) {
    JJ_TRY(sh_jj_escaped(c, a, &a));
    JJ_TRY(sh_jj_escaped(c, b, &b));
  }
  JJ_TRY(sh_jj_concat(c, a.s, b.s, out));
  out->flag = markup ? JJ_MARKUP : 0;
  return 0;
}

int sh_jj_arith(jj_ctx *c, jj_op op, jj_val a, jj_val b, jj_val *out) {
  int64_t x, y;
  double f, g;
  if (sh_jj_as_int(a, &x) && sh_jj_as_int(b, &y)) return int_arith(c, op, x, y, out);
  if (op == OP_MOD && a.kind == JJ_STR) return sh_jj_percent(c, a.s, b, a.flag & JJ_MARKUP, out);
  if (op == OP_ADD && a.kind == JJ_STR && b.kind == JJ_STR) return add_strings(c, a, b, out);
  if (op == OP_ADD && a.kind == b.kind && (a.kind == JJ_LIST || a.kind == JJ_TUPLE)) return add_lists(c, a, b, out);
  if (op == OP_MUL) {
    bool seq_a = a.kind == JJ_STR || a.kind == JJ_LIST || a.kind == JJ_TUPLE,
         seq_b = b.kind == JJ_STR || b.kind == JJ_LIST || b.kind == JJ_TUPLE;
    if (seq_a && sh_jj_as_int(b, &y)) return repeat(c, a, y, out);
    if (seq_b && sh_jj_as_int(a, &x)) return repeat(c, b, x, out);
  }
  if (sh_jj_as_num(a, &f) && sh_jj_as_num(b, &g)) {
    if (a.kind != JJ_FLOAT && b.kind != JJ_FLOAT) return sh_jj_fail(c, "an integer beyond 64 bits cannot be computed with");
    return float_arith(c, op, f, g, out);
  }
  return bad_operands(c, op, a, b);
}

int sh_jj_negate(jj_ctx *c, jj_val a, bool neg, jj_val *out) {
  int64_t i;
  if (sh_jj_as_int(a, &i)) {
    if (neg && i == INT64_MIN) return too_large(c);
    *out = sh_jj_int(neg ? -i : i);
    return 0;
  }
  if (a.kind == JJ_FLOAT) {
    *out = sh_jj_float(neg ? -a.f : a.f);
    return 0;
  }
  if (a.kind == JJ_UNDEF) return sh_jj_fail_undef(c, a);
  if (a.kind == JJ_BIG && !neg) {
    *out = a;
    return 0;
  }
  if (a.kind == JJ_BIG) return too_large(c);
  return sh_jj_fail(c, "bad operand type for unary %s: '%s'", neg ? "-" : "+", sh_jj_type_name(a));
}

/* --- Comparison --------------------------------------------------------------------------------------------------------------------- */
static bool is_num(jj_val v) { return v.kind == JJ_BOOL || v.kind == JJ_INT || v.kind == JJ_BIG || v.kind == JJ_FLOAT; }

/* -1, 0, 1; 2 when a NaN is in it */
static int cmp_num(jj_val a, jj_val b) {
  int64_t x, y;
  double f = 0, g = 0;
  if (sh_jj_as_int(a, &x) && sh_jj_as_int(b, &y)) return (x > y) - (x < y);
  if (a.kind == JJ_BIG && b.kind == JJ_BIG) {
    bool na = a.s->p[0] == '-', nb = b.s->p[0] == '-';
    if (na != nb) return na ? -1 : 1;
    int r = a.s->len != b.s->len ? (a.s->len > b.s->len ? 1 : -1) : memcmp(a.s->p, b.s->p, a.s->len);
    r = (r > 0) - (r < 0);
    return na ? -r : r;
  }
  sh_jj_as_num(a, &f);
  sh_jj_as_num(b, &g);
  long double l = sh_jj_as_int(a, &x) ? (long double)x : (long double)f, r = sh_jj_as_int(b, &y) ? (long double)y : (long double)g;
  if (isnan(l) || isnan(r)) return 2;
  return (l > r) - (l < r);
}

static int cmp_str(const jj_str *a, const jj_str *b) { /* UTF-8 sorts as code points do */
  int r = memcmp(a->p, b->p, a->len < b->len ? a->len : b->len);
  return r ? r : (a->len > b->len) - (a->len < b->len);
}

static int eq_lists(jj_ctx *c, const jj_list *a, const jj_list *b, bool *out) {
  *out = a->n == b->n;
  if (a == b || !*out) return 0;
  JJ_TRY(sh_jj_enter_value(c));
  for (size_t i = 0; i < a->n && *out; i++) JJ_TRY(sh_jj_eq(c, a->v[i], b->v[i], out));
  c->vdepth--;
  return 0;
}

static int eq_dicts(jj_ctx *c, const jj_dict *a, const jj_dict *b, bool *out) {
  *out = a->n == b->n;
  if (a == b || !*out) return 0;
  JJ_TRY(sh_jj_enter_value(c));
  for (size_t i = 0; i < a->n && *out; i++) {
    jj_val v;
    JJ_TRY(sh_jj_dict_get(c, b, a->e[i].k, out, &v));
    if (*out) JJ_TRY(sh_jj_eq(c, a->e[i].v, v, out));
  }
  c->vdepth--;
  return 0;
}

static bool eq_ranges(const jj_range *a, const jj_range *b) {
  return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

int sh_jj_eq(jj_ctx *c, jj_val a, jj_val b, bool *out) {
  if (is_num(a) && is_num(b)) {
    *out = cmp_num(a, b) == 0;
    return 0;
  }
  *out = false;
  if (a.kind != b.kind) return 0;
  switch (a.kind) {
  case JJ_UNDEF:
  case JJ_NONE: *out = true; return 0;
  case JJ_STR:
    if (a.s->len != b.s->len) return 0;
    JJ_TRY(sh_jj_step(c, a.s->len / 256));
    *out = memcmp(a.s->p, b.s->p, a.s->len) == 0;
    return 0;
  case JJ_LIST:
  case JJ_TUPLE: return eq_lists(c, a.l, b.l, out);
  case JJ_DICT: return eq_dicts(c, a.d, b.d, out);
  case JJ_RANGE: *out = eq_ranges(a.r, b.r); return 0;
  case JJ_METHOD: *out = a.bound->m == b.bound->m && a.bound->self.l == b.bound->self.l; return 0;
  case JJ_VIEW: *out = a.view->d == b.view->d && a.view->what == b.view->what; return 0;
  default: *out = a.l == b.l; return 0; /* objects are equal to themselves */
  }
}

static bool order_holds(jj_op op, int cmp) {
  switch (op) {
  case OP_LT: return cmp < 0;
  case OP_LE: return cmp <= 0;
  case OP_GT: return cmp > 0;
  default: return cmp >= 0;
  }
}

static int order(jj_ctx *c, jj_op op, jj_val a, jj_val b, bool *out) {
  if (is_num(a) && is_num(b)) {
    int r = cmp_num(a, b);
    *out = r != 2 && order_holds(op, r);
    return 0;
  }
  if (a.kind == JJ_STR && b.kind == JJ_STR) {
    JJ_TRY(sh_jj_step(c, (a.s->len < b.s->len ? a.s->len : b.s->len) / 256));
    *out = order_holds(op, cmp_str(a.s, b.s));
    return 0;
  }
  if (a.kind == b.kind && (a.kind == JJ_LIST || a.kind == JJ_TUPLE)) { /* the first difference decides */
    size_t n = a.l->n < b.l->n ? a.l->n : b.l->n, i = 0;
    bool eq = true;
    JJ_TRY(sh_jj_enter_value(c));
    for (; i < n; i++) {
      JJ_TRY(sh_jj_eq(c, a.l->v[i], b.l->v[i], &eq));
      if (!eq) break;
    }
    if (i < n) JJ_TRY(order(c, op, a.l->v[i], b.l->v[i], out));
    else *out = order_holds(op, (a.l->n > b.l->n) - (a.l->n < b.l->n));
    c->vdepth--;
    return 0;
  }
  return bad_operands(c, op, a, b);
}

static bool find_bytes(const jj_str *hay, const jj_str *needle) {
  return needle->len == 0 || (hay->len >= needle->len && memmem(hay->p, hay->len, needle->p, needle->len));
}

static int contains(jj_ctx *c, jj_val x, jj_val in, bool *out) {
  jj_iter it;
  jj_val v;
  bool more = true;
  *out = false;
  if (in.kind == JJ_STR) {
    if (x.kind != JJ_STR) return sh_jj_fail(c, "'in <string>' requires string as left operand, not %s", sh_jj_type_name(x));
    JJ_TRY(sh_jj_step(c, in.s->len / 64));
    *out = find_bytes(in.s, x.s);
    return 0;
  }
  if (in.kind == JJ_DICT || (in.kind == JJ_VIEW && in.view->what == 0))
    return sh_jj_dict_get(c, in.kind == JJ_DICT ? in.d : in.view->d, x, out, NULL);
  if (!sh_jj_iterable(in)) return sh_jj_fail(c, "argument of type '%s' is not iterable", sh_jj_type_name(in));
  JJ_TRY(sh_jj_iter(c, in, &it));
  while (!*out) {
    JJ_TRY(sh_jj_next(c, &it, &more, &v));
    if (!more) break;
    JJ_TRY(sh_jj_eq(c, x, v, out));
  }
  return 0;
}

int sh_jj_compare(jj_ctx *c, jj_op op, jj_val a, jj_val b, bool *out) {
  switch (op) {
  case OP_EQ:
  case OP_NE:
    JJ_TRY(sh_jj_eq(c, a, b, out));
    *out ^= op == OP_NE;
    return 0;
  case OP_IN:
  case OP_NOTIN:
    JJ_TRY(contains(c, a, b, out));
    *out ^= op == OP_NOTIN;
    return 0;
  default: return order(c, op, a, b, out);
  }
}

/* --- Sorting ------------------------------------------------------------------------------------------------------------------------ */
typedef struct sorter {
  jj_ctx *c;
  jj_val *v, *k, *tv, *tk; /* values, keys, room for both */
  bool reverse;
} sorter;

/* Bottom-up merge: the right item goes first only if it is strictly before the left one, which keeps equal items in their order either way.
 */
static int merge(sorter *s, size_t lo, size_t mid, size_t hi) {
  size_t i = lo, j = mid, w = lo;
  while (i < mid && j < hi) {
    bool right;
    JJ_TRY(sh_jj_step(s->c, 1));
    if (s->reverse) JJ_TRY(order(s->c, OP_LT, s->k[i], s->k[j], &right));
    else JJ_TRY(order(s->c, OP_LT, s->k[j], s->k[i], &right));
    size_t from = right ? j++ : i++;
    s->tv[w] = s->v[from];
    s->tk[w++] = s->k[from];
  }
  for (; i < mid; i++, w++) s->tv[w] = s->v[i], s->tk[w] = s->k[i];
  for (; j < hi; j++, w++) s->tv[w] = s->v[j], s->tk[w] = s->k[j];
  memcpy(s->v + lo, s->tv + lo, (hi - lo) * sizeof *s->v);
  memcpy(s->k + lo, s->tk + lo, (hi - lo) * sizeof *s->k);
  return 0;
}

int sh_jj_sort(jj_ctx *c, jj_val *v, jj_val *keys, size_t n, bool reverse) {
  sorter s = {c, v, keys, sh_jj_alloc(c, n, sizeof *v), sh_jj_alloc(c, n, sizeof *v), reverse};
  if (!s.tv || !s.tk) return sh_jj_nomem(c);
  for (size_t w = 1; w < n; w *= 2)
    for (size_t lo = 0; lo + w < n; lo += 2 * w) JJ_TRY(merge(&s, lo, lo + w, lo + 2 * w < n ? lo + 2 * w : n));
  return 0;
}
