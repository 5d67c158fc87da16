/* Parser: tokens to the syntax tree. Recursive descent with jinja2's grammar and precedence, which is not Python's in three places: "~"
 * binds tighter than "+", "**" groups to the left, and filters and tests bind tighter than every operator but unary minus.
 *
 * Runs once per template on the thread that loads it; the tree lives in the template's arena. Chains of one precedence (a + b + c, a ~ b, x
 * or y) become one node with many children, so that a prompt glued together from a thousand pieces does not nest. Everything else that
 * nests is counted against JJ_PARSE_DEPTH, so hostile input cannot exhaust the C stack here, nor in the evaluator, which recurses over the
 * same tree. Functions return NULL after a failure, whose sentence is in p->e. Refused: compiling to a byte code. Templates run a few
 * thousand nodes per request; the tree is fast enough and keeps line numbers for free. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct macro_ctx macro_ctx;
struct macro_ctx { /* special names used in the macro being parsed, and in those around it */
  macro_ctx *outer;
  bool caller, varargs, kwargs;
};
typedef struct parser {
  sh_arena *a;
  const jj_token *t; /* current token; the last one is T_EOF */
  sh_error *e;
  int rc;
  int depth;
  int loops; /* for loops around this point within the same macro: break needs one */
  macro_ctx *macro;
  const jj_node *unknown; /* the first unknown filter or test outside of if: an error when the frame around it ends */
  jj_str **names;         /* open addressing, n_names a power of two */
  size_t n_names, used_names;
  jj_str **blocks;
  int n_blocks, cap_blocks;
} parser;

static jj_node *expression(parser *p);
static jj_node *condexpr(parser *p);
static jj_node *unary(parser *p, bool with_filter);
static jj_body *subparse(parser *p, const char *const *ends, int line);

static void *fail(parser *p, int line, const char *what, const char *arg, size_t n) {
  if (!p->rc) p->rc = sh_fail(p->e, SH_ERR_FORMAT, "line %d: %s%.*s%s", line, what, (int)(n > 200 ? 200 : n), arg, n ? "'" : "");
  return NULL;
}

static void *nomem(parser *p) {
  bool limit = sh_arena_left(p->a) < 1 << 20;
  if (!p->rc)
    p->rc = sh_fail(p->e, limit ? SH_ERR_LIMIT : SH_ERR_NOMEM, limit ? "template: too large to compile" : "template: out of memory");
  return NULL;
}

static bool enter(parser *p) {
  if (++p->depth <= JJ_PARSE_DEPTH) return true;
  if (!p->rc) p->rc = sh_fail(p->e, SH_ERR_LIMIT, "line %d: nested deeper than %d levels", p->t->line, JJ_PARSE_DEPTH);
  return false;
}

static void *alloc(parser *p, size_t n, size_t size) {
  void *m = sh_arena_array(p->a, n, size);
  return m ? m : nomem(p);
}

/* Doubles an array of pointers in the arena when n reaches cap. */
static bool grow(parser *p, void *array, int n, int *cap) {
  void **old, **v;
  if (n < *cap) return true;
  memcpy(&old, array, sizeof old);
  int want = *cap ? *cap * 2 : 4;
  v = alloc(p, (size_t)want, sizeof *v);
  if (!v) return false;
  if (n) memcpy(v, old, (size_t)n * sizeof *v);
  memcpy(array, &v, sizeof v);
  *cap = want;
  return true;
}

static jj_node *node(parser *p, jj_type type, int line) {
  jj_node *n = alloc(p, 1, sizeof *n);
  if (!n) return NULL;
  n->type = (uint8_t)type;
  n->line = line;
  return n;
}

static jj_str *new_str(parser *p, const char *s, size_t len) {
  jj_str *r = alloc(p, 1, sizeof *r);
  if (!r) return NULL;
  *r = (jj_str){s, len, SIZE_MAX, NULL};
  r->ncp = sh_jj_cps(r); /* now, because threads will share it */
  return r;
}

static jj_str *intern(parser *p, const char *s, size_t len) {
  if (p->used_names * 2 >= p->n_names) {
    size_t n = p->n_names ? p->n_names * 2 : 128;
    jj_str **v = alloc(p, n, sizeof *v);
    if (!v) return NULL;
    for (size_t i = 0; i < p->n_names; i++) {
      if (!p->names[i]) continue;
      size_t h = sh_hash(p->names[i]->p, p->names[i]->len, 0) & (n - 1);
      while (v[h]) h = (h + 1) & (n - 1);
      v[h] = p->names[i];
    }
    p->names = v;
    p->n_names = n;
  }
  size_t h = sh_hash(s, len, 0) & (p->n_names - 1);
  for (; p->names[h]; h = (h + 1) & (p->n_names - 1))
    if (p->names[h]->len == len && memcmp(p->names[h]->p, s, len) == 0) return p->names[h];
  p->used_names++;
  return p->names[h] = new_str(p, s, len);
}

/* --- Tokens ------------------------------------------------------------------------------------------------------------------------- */
static bool tok_is(const jj_token *t, const char *name) {
  return t->type == T_NAME && t->len == strlen(name) && memcmp(t->p, name, t->len) == 0;
}
static bool is_name(const parser *p, const char *name) { return tok_is(p->t, name); }
static bool skip(parser *p, jj_tok type) {
  if (p->t->type != type) return false;
  if (type != T_EOF) p->t++;
  return true;
}
static bool skip_name(parser *p, const char *name) {
  if (!is_name(p, name)) return false;
  p->t++;
  return true;
}

static void *unexpected(parser *p, const char *wanted) {
  char what[120];
  if (p->t->type == T_EOF) {
    snprintf(what, sizeof what, "the template ends where %s should follow", wanted);
    return fail(p, p->t->line, what, "", 0);
  }
  if (p->t->type == T_BLOCK_END || p->t->type == T_VAR_END) {
    snprintf(what, sizeof what, "the tag ends where %s should follow", wanted);
    return fail(p, p->t->line, what, "", 0);
  }
  snprintf(what, sizeof what, "expected %s, got '", wanted);
  return fail(p, p->t->line, what, p->t->p, p->t->len);
}

static bool expect(parser *p, jj_tok type, const char *wanted) {
  if (skip(p, type)) return true;
  unexpected(p, wanted);
  return false;
}

static jj_str *expect_name(parser *p) {
  if (p->t->type != T_NAME) return unexpected(p, "a name");
  jj_str *s = intern(p, p->t->p, p->t->len);
  p->t++;
  return s;
}

/* --- Expressions -------------------------------------------------------------------------------------------------------------------- */
/* A list node that takes its children one by one. */
typedef struct chain {
  jj_node *n;
  int cap, cap_ops;
} chain;

static bool chain_add(parser *p, chain *c, jj_node *child) {
  if (!child || !grow(p, &c->n->list, c->n->n, &c->cap)) return false;
  c->n->list[c->n->n++] = child;
  return true;
}

static bool chain_op(parser *p, chain *c, jj_op op) { /* op before the child that follows: ops[n - 1] */
  int at = c->n->n - 1;
  if (at >= c->cap_ops) {
    int cap = c->cap_ops ? c->cap_ops * 2 : 8;
    uint8_t *v = alloc(p, (size_t)cap, 1);
    if (!v) return false;
    if (at) memcpy(v, c->n->ops, (size_t)at);
    c->n->ops = v;
    c->cap_ops = cap;
  }
  c->n->ops[at] = (uint8_t)op;
  return true;
}

static bool chain_start(parser *p, chain *c, jj_type type, int line, jj_node *first) {
  *c = (chain){node(p, type, line), 0, 0};
  return c->n && chain_add(p, c, first);
}

static jj_node *constant(parser *p, int line, jj_val v) {
  jj_node *n = node(p, E_CONST, line);
  if (n) n->val = v;
  return n;
}

/* Digits of a decimal, hex, octal or binary literal. */
static jj_node *integer(parser *p, const jj_token *t) {
  char k = t->len > 1 ? t->p[1] | 32 : 0;
  int base = k == 'x' ? 16 : k == 'o' ? 8 : k == 'b' ? 2 : 10;
  const char *s = t->p + (base == 10 ? 0 : 2), *end = t->p + t->len;
  int64_t v = 0;
  for (; s < end; s++) {
    int d = *s <= '9' ? *s - '0' : (*s | 32) - 'a' + 10;
    if (!__builtin_mul_overflow(v, base, &v) && !__builtin_add_overflow(v, d, &v)) continue;
    if (base != 10) return fail(p, t->line, "an integer literal beyond 64 bits: '", t->p, t->len);
    jj_str *text = new_str(p, t->p, t->len);
    return text ? constant(p, t->line, (jj_val){.kind = JJ_BIG, .s = text}) : NULL;
  }
  return constant(p, t->line, (jj_val){.kind = JJ_INT, .i = v});
}

static jj_node *string(parser *p) {
  int line = p->t->line;
  size_t len = 0;
  const jj_token *first = p->t;
  for (; p->t->type == T_STRING; p->t++) len += p->t->len;
  const char *s = first->p;
  if (p->t - first > 1) {
    char *w = sh_arena_alloc(p->a, len + 1);
    if (!w) return nomem(p);
    s = w;
    for (const jj_token *t = first; t < p->t; t++) {
      memcpy(w, t->p, t->len);
      w += t->len;
    }
  }
  jj_str *str = new_str(p, s, len);
  return str ? constant(p, line, jj_str_val(str)) : NULL;
}

static void note_special(parser *p, const jj_token *t) {
  bool caller = tok_is(t, "caller"), varargs = tok_is(t, "varargs"), kwargs = tok_is(t, "kwargs");
  if (!caller && !varargs && !kwargs) return;
  for (macro_ctx *m = p->macro; m; m = m->outer) {
    m->caller |= caller;
    m->varargs |= varargs;
    m->kwargs |= kwargs;
  }
}

static jj_node *name(parser *p, bool with_namespace) {
  const jj_token *t = p->t++;
  jj_val v = {.kind = JJ_MISSING};
  if (tok_is(t, "true") || tok_is(t, "True")) v = (jj_val){.kind = JJ_BOOL, .b = true};
  else if (tok_is(t, "false") || tok_is(t, "False")) v = (jj_val){.kind = JJ_BOOL, .b = false};
  else if (tok_is(t, "none") || tok_is(t, "None")) v = (jj_val){.kind = JJ_NONE};
  if (jj_given(v)) return constant(p, t->line, v);
  jj_node *n = node(p, E_NAME, t->line);
  if (!n || !(n->name = intern(p, t->p, t->len))) return NULL;
  if (with_namespace && skip(p, T_DOT)) {
    n->type = E_NSREF;
    jj_str *attr = expect_name(p);
    if (!attr) return NULL;
    n->val = jj_str_val(attr);
    return n;
  }
  note_special(p, t);
  return n;
}

/* What may end a tuple without brackets. */
static bool tuple_end(const parser *p, const char *extra) {
  return p->t->type == T_VAR_END || p->t->type == T_BLOCK_END || p->t->type == T_RPAREN || (extra && is_name(p, extra));
}

typedef enum tuple_mode { TUPLE_FULL, TUPLE_NO_COND, TUPLE_PARENS, TUPLE_TARGET, TUPLE_NS_TARGET } tuple_mode;
static jj_node *primary(parser *p, bool with_namespace);
static jj_node *or_expr(parser *p);

static jj_node *tuple_item(parser *p, tuple_mode mode) {
  if (mode == TUPLE_TARGET || mode == TUPLE_NS_TARGET) return primary(p, mode == TUPLE_NS_TARGET);
  return mode == TUPLE_NO_COND ? or_expr(p) : condexpr(p);
}

/* One expression, or several with commas between them, which make a tuple. */
static jj_node *tuple(parser *p, tuple_mode mode, const char *extra_end) {
  chain c = {node(p, E_TUPLE, p->t->line), 0, 0};
  bool is_tuple = false;
  if (!c.n) return NULL;
  for (;;) {
    if (c.n->n && !expect(p, T_COMMA, "','")) return NULL;
    if (tuple_end(p, extra_end)) break;
    if (!chain_add(p, &c, tuple_item(p, mode))) return NULL;
    if (p->t->type != T_COMMA) break;
    is_tuple = true;
  }
  if (is_tuple) return c.n;
  if (c.n->n) return c.n->list[0];
  return mode == TUPLE_PARENS ? c.n : unexpected(p, "an expression");
}

static jj_node *list_literal(parser *p) {
  chain c = {node(p, E_LIST, p->t->line), 0, 0};
  p->t++;
  if (!c.n) return NULL;
  while (p->t->type != T_RBRACKET) {
    if (c.n->n && !expect(p, T_COMMA, "',' or ']'")) return NULL;
    if (p->t->type == T_RBRACKET) break;
    if (!chain_add(p, &c, expression(p))) return NULL;
  }
  p->t++;
  return c.n;
}

static jj_node *dict_literal(parser *p) {
  chain c = {node(p, E_DICT, p->t->line), 0, 0};
  p->t++;
  if (!c.n) return NULL;
  while (p->t->type != T_RBRACE) {
    if (c.n->n && !expect(p, T_COMMA, "',' or '}'")) return NULL;
    if (p->t->type == T_RBRACE) break;
    if (!chain_add(p, &c, expression(p)) || !expect(p, T_COLON, "':'") || !chain_add(p, &c, expression(p))) return NULL;
  }
  p->t++;
  return c.n;
}

static jj_node *primary(parser *p, bool with_namespace) {
  const jj_token *t = p->t;
  jj_node *n;
  switch (t->type) {
  case T_NAME: return name(p, with_namespace);
  case T_STRING: return string(p);
  case T_INT: p->t++; return integer(p, t);
  case T_FLOAT: {
    char buf[400];
    p->t++;
    if (t->len >= sizeof buf) return fail(p, t->line, "a number with too many digits", "", 0);
    memcpy(buf, t->p, t->len);
    buf[t->len] = 0;
    return constant(p, t->line, (jj_val){.kind = JJ_FLOAT, .f = strtod(buf, NULL)});
  }
  case T_LPAREN:
    p->t++;
    if (!enter(p) || !(n = tuple(p, TUPLE_PARENS, NULL)) || !expect(p, T_RPAREN, "')'")) return NULL;
    break;
  case T_LBRACKET:
    if (!enter(p) || !(n = list_literal(p))) return NULL;
    break;
  case T_LBRACE:
    if (!enter(p) || !(n = dict_literal(p))) return NULL;
    break;
  default: return unexpected(p, "an expression");
  }
  p->depth--;
  return n;
}

/* --- Calls, filters, tests ---------------------------------------------------------------------------------------------------------- */
static bool call_arg(parser *p, jj_call *c, int *cap, int *cap_kw, int line) {
  bool ok = true;
  if (skip(p, T_MUL)) {
    ok = !c->star && !c->star2;
    c->star = expression(p);
    if (!c->star) return false;
  } else if (skip(p, T_POW)) {
    ok = !c->star2;
    c->star2 = expression(p);
    if (!c->star2) return false;
  } else if (p->t->type == T_NAME && p->t[1].type == T_ASSIGN) {
    ok = !c->star2;
    jj_str *key = intern(p, p->t->p, p->t->len);
    p->t += 2;
    jj_node *v = key ? expression(p) : NULL;
    int cap2 = *cap_kw;
    if (!v || !grow(p, &c->names, c->nkw, &cap2) || !grow(p, &c->vals, c->nkw, cap_kw)) return false;
    c->names[c->nkw] = key;
    c->vals[c->nkw++] = v;
  } else {
    ok = !c->star && !c->star2 && !c->nkw;
    jj_node *v = expression(p);
    if (!v || !grow(p, &c->pos, c->n, cap)) return false;
    c->pos[c->n++] = v;
  }
  if (!ok) fail(p, line, "invalid syntax for function call expression", "", 0);
  return ok;
}

static jj_call *call_args(parser *p) {
  int line = p->t->line, cap = 0, cap_kw = 0;
  jj_call *c = alloc(p, 1, sizeof *c);
  if (!c || !expect(p, T_LPAREN, "'('") || !enter(p)) return NULL;
  bool comma = false;
  while (p->t->type != T_RPAREN) {
    if (comma && !expect(p, T_COMMA, "',' or ')'")) return NULL;
    if (comma && p->t->type == T_RPAREN) break;
    if (!call_arg(p, c, &cap, &cap_kw, line)) return NULL;
    comma = true;
  }
  p->t++;
  p->depth--;
  return c;
}

static jj_node *call(parser *p, jj_node *callee) {
  jj_node *n = node(p, E_CALL, p->t->line);
  if (!n || !(n->call = call_args(p))) return NULL;
  n->a = callee;
  return n;
}

/* name or name.name */
static jj_str *dotted(parser *p) {
  jj_str *s = expect_name(p);
  while (s && skip(p, T_DOT)) {
    jj_str *more = expect_name(p);
    char *w = more ? sh_arena_printf(p->a, "%.*s.%.*s", (int)s->len, s->p, (int)more->len, more->p) : NULL;
    if (!more) return NULL;
    if (!w) return nomem(p);
    s = intern(p, w, strlen(w));
  }
  return s;
}

static jj_node *filter(parser *p, jj_node *input) {
  jj_node *n = node(p, E_FILTER, p->t->line);
  if (!n || !(n->name = dotted(p))) return NULL;
  n->a = input;
  if (p->t->type == T_LPAREN && !(n->call = call_args(p))) return NULL;
  n->fn = sh_jj_find_filter(n->name->p, n->name->len);
  if (!n->fn && !p->unknown) p->unknown = n;
  return n;
}

static jj_node *postfix(parser *p, jj_node *n);

static bool test_takes_bare_argument(const parser *p) {
  switch (p->t->type) {
  case T_NAME: return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and");
  case T_STRING:
  case T_INT:
  case T_FLOAT:
  case T_LBRACKET:
  case T_LBRACE: return true;
  default: return false;
  }
}

static jj_node *test(parser *p, jj_node *value) {
  jj_node *n = node(p, E_TEST, p->t->line), *arg;
  p->t++;
  if (!n) return NULL;
  n->a = value;
  n->flag = skip_name(p, "not");
  if (!(n->name = dotted(p))) return NULL;
  if (p->t->type == T_LPAREN) {
    if (!(n->call = call_args(p))) return NULL;
  } else if (test_takes_bare_argument(p)) {
    if (is_name(p, "is")) return fail(p, p->t->line, "You cannot chain multiple tests with is", "", 0);
    if (!(arg = primary(p, false)) || !(arg = postfix(p, arg))) return NULL;
    if (!(n->call = alloc(p, 1, sizeof *n->call)) || !(n->call->pos = alloc(p, 1, sizeof *n->call->pos))) return NULL;
    n->call->pos[0] = arg;
    n->call->n = 1;
  }
  n->fn = sh_jj_find_test(n->name->p, n->name->len);
  if (!n->fn && !p->unknown) p->unknown = n;
  return n;
}

static jj_node *subscribed(parser *p) {
  jj_node *first = NULL;
  int line = p->t->line;
  if (p->t->type != T_COLON) {
    first = expression(p);
    if (!first || p->t->type != T_COLON) return first;
  }
  p->t++;
  jj_node *n = node(p, E_SLICE, line);
  if (!n || !(n->list = alloc(p, 3, sizeof *n->list))) return NULL;
  n->n = 3;
  n->list[0] = first;
  if (p->t->type != T_COLON && p->t->type != T_RBRACKET && p->t->type != T_COMMA && !(n->list[1] = expression(p))) return NULL;
  if (skip(p, T_COLON) && p->t->type != T_RBRACKET && p->t->type != T_COMMA && !(n->list[2] = expression(p))) return NULL;
  return n;
}

static jj_node *subscript(parser *p, jj_node *obj) {
  int line = p->t->line;
  if (p->t++->type == T_DOT) {
    const jj_token *t = p->t;
    jj_node *n = node(p, t->type == T_NAME ? E_ATTR : E_ITEM, line);
    if (!n) return NULL;
    n->a = obj;
    if (t->type == T_NAME) {
      jj_str *s = expect_name(p);
      if (!s) return NULL;
      n->val = jj_str_val(s);
      return n;
    }
    if (t->type != T_INT) return unexpected(p, "a name or number");
    p->t++;
    return (n->b = integer(p, t)) ? n : NULL;
  }
  chain c = {node(p, E_TUPLE, line), 0, 0};
  if (!c.n || !enter(p)) return NULL;
  while (p->t->type != T_RBRACKET) {
    if (c.n->n && !expect(p, T_COMMA, "',' or ']'")) return NULL;
    if (!chain_add(p, &c, subscribed(p))) return NULL;
  }
  p->t++;
  p->depth--;
  jj_node *n = node(p, E_ITEM, line);
  if (!n) return NULL;
  n->a = obj;
  n->b = c.n->n == 1 ? c.n->list[0] : c.n;
  return n;
}

/* The evaluator recurses over a chain of postfixes, so each link counts; the count is given back by the caller. */
static jj_node *postfix(parser *p, jj_node *n) {
  int depth = p->depth;
  while (n && (p->t->type == T_DOT || p->t->type == T_LBRACKET || p->t->type == T_LPAREN)) {
    if (!enter(p)) return NULL;
    n = p->t->type == T_LPAREN ? call(p, n) : subscript(p, n);
  }
  p->depth = depth;
  return n;
}

static jj_node *filter_expr(parser *p, jj_node *n) {
  int depth = p->depth;
  while (n) {
    if (p->t->type != T_PIPE && p->t->type != T_LPAREN && !is_name(p, "is")) break;
    if (!enter(p)) return NULL;
    if (skip(p, T_PIPE)) n = filter(p, n);
    else n = p->t->type == T_LPAREN ? call(p, n) : test(p, n);
  }
  p->depth = depth;
  return n;
}

/* --- Operators, loosest last -------------------------------------------------------------------------------------------------------- */
static jj_node *unary(parser *p, bool with_filter) {
  jj_node *n;
  if (p->t->type == T_SUB || p->t->type == T_ADD) {
    n = node(p, p->t->type == T_SUB ? E_NEG : E_POS, p->t->line);
    p->t++;
    if (!n || !enter(p) || !(n->a = unary(p, false))) return NULL;
    p->depth--;
  } else {
    n = primary(p, false);
  }
  n = n ? postfix(p, n) : NULL;
  return n && with_filter ? filter_expr(p, n) : n;
}

static int arith_op(jj_tok t, int level) {
  switch (t) {
  case T_POW: return level == 0 ? OP_POW : -1;
  case T_MUL: return level == 1 ? OP_MUL : -1;
  case T_DIV: return level == 1 ? OP_DIV : -1;
  case T_FLOORDIV: return level == 1 ? OP_FLOORDIV : -1;
  case T_MOD: return level == 1 ? OP_MOD : -1;
  case T_ADD: return level == 3 ? OP_ADD : -1;
  case T_SUB: return level == 3 ? OP_SUB : -1;
  default: return -1;
  }
}

/* level 0: **, 1: * / // %, 2: ~, 3: + - */
static jj_node *arith(parser *p, int level) {
  int line = p->t->line, op;
  jj_node *n = level ? arith(p, level - 1) : unary(p, true);
  if (!n) return NULL;
  chain c = {NULL, 0, 0};
  while ((op = level == 2 && p->t->type == T_TILDE ? 0 : arith_op(p->t->type, level)) >= 0) {
    if (!c.n && !chain_start(p, &c, level == 2 ? E_CONCAT : E_ARITH, line, n)) return NULL;
    p->t++;
    if (!chain_op(p, &c, (jj_op)op) || !chain_add(p, &c, level ? arith(p, level - 1) : unary(p, true))) return NULL;
  }
  return c.n ? c.n : n;
}

static int compare_op(parser *p) {
  switch (p->t->type) {
  case T_EQ: return OP_EQ;
  case T_NE: return OP_NE;
  case T_LT: return OP_LT;
  case T_LE: return OP_LE;
  case T_GT: return OP_GT;
  case T_GE: return OP_GE;
  default: break;
  }
  if (is_name(p, "in")) return OP_IN;
  return is_name(p, "not") && tok_is(p->t + 1, "in") ? OP_NOTIN : -1;
}

static jj_node *compare(parser *p) {
  int line = p->t->line, op;
  jj_node *n = arith(p, 3);
  chain c = {NULL, 0, 0};
  while (n && (op = compare_op(p)) >= 0) {
    if (!c.n && !chain_start(p, &c, E_COMPARE, line, n)) return NULL;
    p->t += op == OP_NOTIN ? 2 : 1;
    if (!chain_op(p, &c, (jj_op)op) || !chain_add(p, &c, arith(p, 3))) return NULL;
  }
  return c.n ? c.n : n;
}

static jj_node *not_expr(parser *p) {
  if (!is_name(p, "not")) return compare(p);
  jj_node *n = node(p, E_NOT, p->t->line);
  p->t++;
  if (!n || !enter(p) || !(n->a = not_expr(p))) return NULL;
  p->depth--;
  return n;
}

static jj_node *and_expr(parser *p) {
  int line = p->t->line;
  jj_node *n = not_expr(p);
  chain c = {NULL, 0, 0};
  while (n && skip_name(p, "and")) {
    if (!c.n && !chain_start(p, &c, E_AND, line, n)) return NULL;
    if (!chain_add(p, &c, not_expr(p))) return NULL;
  }
  return c.n ? c.n : n;
}

static jj_node *or_expr(parser *p) {
  int line = p->t->line;
  jj_node *n = and_expr(p);
  chain c = {NULL, 0, 0};
  while (n && skip_name(p, "or")) {
    if (!c.n && !chain_start(p, &c, E_OR, line, n)) return NULL;
    if (!chain_add(p, &c, and_expr(p))) return NULL;
  }
  return c.n ? c.n : n;
}

static jj_node *condexpr(parser *p) {
  const jj_node *unknown = p->unknown;
  int line = p->t->line, depth = p->depth;
  jj_node *n = or_expr(p);
  while (n && skip_name(p, "if")) {
    jj_node *cond = node(p, E_COND, line);
    if (!cond || !enter(p) || !(cond->a = or_expr(p))) return NULL;
    cond->b = n;
    if (skip_name(p, "else") && !(cond->c = condexpr(p))) return NULL;
    n = cond;
    line = p->t->line;
    p->unknown = unknown; /* jinja2 reports unknown filters of a conditional expression only when they run */
  }
  p->depth = depth;
  return n;
}

static jj_node *expression(parser *p) { return condexpr(p); }

/* --- Statements --------------------------------------------------------------------------------------------------------------------- */
static bool can_assign(parser *p, const jj_node *n) {
  if (n->type == E_NAME || n->type == E_NSREF) return true;
  if (n->type == E_TUPLE || n->type == E_LIST) {
    for (int i = 0; i < n->n; i++)
      if (!can_assign(p, n->list[i])) return false;
    return true;
  }
  fail(p, n->line, "cannot assign to this expression", "", 0);
  return false;
}

static jj_node *target(parser *p, bool with_namespace, const char *extra_end) {
  jj_node *n = tuple(p, with_namespace ? TUPLE_NS_TARGET : TUPLE_TARGET, extra_end);
  return n && can_assign(p, n) ? n : NULL;
}

/* The rest of the opening tag, then everything up to one of the end names, which stays the current token. */
static jj_body *statements(parser *p, const char *const *ends) {
  int line = p->t->line;
  skip(p, T_COLON);
  if (!expect(p, T_BLOCK_END, "the end of the tag")) return NULL;
  return subparse(p, ends, line);
}

/* A body that is a scope of its own: unknown filters in it are errors now. */
static jj_body *scoped(parser *p, const char *const *ends) {
  const jj_node *before = p->unknown;
  p->unknown = NULL;
  jj_body *b = statements(p, ends);
  if (b && p->unknown) {
    const jj_node *u = p->unknown;
    return fail(p, u->line, u->type == E_FILTER ? "no filter named '" : "no test named '", u->name->p, u->name->len);
  }
  p->unknown = before;
  return b;
}

static jj_body *scoped_until(parser *p, const char *end) {
  const char *const ends[] = {end, NULL};
  jj_body *b = scoped(p, ends);
  if (b) p->t++;
  return b;
}

static bool assigns_loop(const jj_node *n) {
  if (n->type == E_NAME) return sh_jj_str_is(n->name, "loop");
  if (n->type == E_TUPLE || n->type == E_LIST)
    for (int i = 0; i < n->n; i++)
      if (assigns_loop(n->list[i])) return true;
  return false;
}

static jj_node *parse_for(parser *p, jj_node *n) {
  static const char *const ends[] = {"endfor", "else", NULL};
  if (!(n->a = target(p, false, "in"))) return NULL;
  if (assigns_loop(n->a)) return fail(p, n->line, "Can't assign to special loop variable in for-loop", "", 0);
  if (!skip_name(p, "in")) return unexpected(p, "'in'");
  if (!(n->b = tuple(p, TUPLE_NO_COND, "recursive"))) return NULL;
  if (skip_name(p, "if") && !(n->c = expression(p))) return NULL;
  n->flag = skip_name(p, "recursive");
  p->loops++;
  n->body = scoped(p, ends);
  p->loops--;
  if (!n->body) return NULL;
  bool has_else = is_name(p, "else");
  p->t++;
  return !has_else || (n->body2 = scoped_until(p, "endfor")) ? n : NULL;
}

static jj_node *parse_if(parser *p, jj_node *n) {
  static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
  const jj_node *unknown = p->unknown;
  int cap = 0, cap_bodies = 0;
  jj_body **bodies = NULL, *b;
  for (;;) {
    jj_node *cond = tuple(p, TUPLE_NO_COND, NULL);
    if (!cond || !grow(p, &n->list, n->n, &cap) || !grow(p, &bodies, n->n2, &cap_bodies) || !(b = statements(p, ends))) return NULL;
    n->list[n->n++] = cond;
    bodies[n->n2++] = b;
    const jj_token *t = p->t++;
    if (tok_is(t, "elif")) continue;
    if (tok_is(t, "else")) {
      if (!grow(p, &bodies, n->n2, &cap_bodies) || !(b = statements(p, last))) return NULL;
      p->t++;
      bodies[n->n2++] = b;
    }
    break;
  }
  p->unknown = unknown;
  if (!(n->body = alloc(p, (size_t)n->n2, sizeof *n->body))) return NULL;
  for (int i = 0; i < n->n2; i++) n->body[i] = *bodies[i];
  return n;
}

/* |filter|filter of a block, whose input is the block's text. */
static bool filter_chain(parser *p, jj_node *n) {
  int depth = p->depth;
  while (skip(p, T_PIPE))
    if (!enter(p) || !(n->b = filter(p, n->b))) return false;
  p->depth = depth;
  return true;
}

static jj_node *parse_set(parser *p, jj_node *n) {
  if (!(n->a = target(p, true, NULL))) return NULL;
  if (skip(p, T_ASSIGN)) {
    n->type = S_SET;
    return (n->b = tuple(p, TUPLE_FULL, NULL)) ? n : NULL;
  }
  n->type = S_SETBLOCK;
  if (!filter_chain(p, n)) return NULL;
  return (n->body = scoped_until(p, "endset")) ? n : NULL;
}

static bool signature(parser *p, jj_sig *s) {
  int cap = 0, cap_d = 0;
  if (!expect(p, T_LPAREN, "'('")) return false;
  while (p->t->type != T_RPAREN) {
    if (s->n && !expect(p, T_COMMA, "',' or ')'")) return false;
    jj_str *arg = expect_name(p);
    if (!arg || !grow(p, &s->names, s->n, &cap)) return false;
    if (skip(p, T_ASSIGN)) {
      jj_node *d = expression(p);
      if (!d || !grow(p, &s->defaults, s->n_defaults, &cap_d)) return false;
      s->defaults[s->n_defaults++] = d;
    } else if (s->n_defaults) {
      fail(p, p->t->line, "non-default argument follows default argument", "", 0);
      return false;
    }
    s->names[s->n++] = arg;
    s->explicit_caller |= sh_jj_str_is(arg, "caller");
  }
  p->t++;
  return true;
}

/* Body of a macro or of a call block, with what it uses of the special names. */
static bool macro_body(parser *p, jj_node *n, const char *end) {
  macro_ctx m = {p->macro, false, false, false};
  int loops = p->loops;
  p->macro = &m;
  p->loops = 0;
  jj_body *b = scoped_until(p, end);
  p->macro = m.outer;
  p->loops = loops;
  if (!b) return false;
  jj_sig *s = n->sig;
  s->body = *b;
  s->caller = m.caller && !s->explicit_caller;
  s->varargs = m.varargs;
  s->kwargs = m.kwargs;
  for (int i = 0; i < s->n; i++) {
    if (sh_jj_str_is(s->names[i], "varargs")) s->varargs = false;
    if (sh_jj_str_is(s->names[i], "kwargs")) s->kwargs = false;
    if (m.caller && sh_jj_str_is(s->names[i], "caller") && i < s->n - s->n_defaults) {
      fail(p, n->line, "the special \"caller\" argument must be omitted or be given a default", "", 0);
      return false;
    }
  }
  return true;
}

static jj_node *parse_macro(parser *p, jj_node *n) {
  if (!(n->sig = alloc(p, 1, sizeof *n->sig)) || !(n->name = expect_name(p)) || !signature(p, n->sig)) return NULL;
  return macro_body(p, n, "endmacro") ? n : NULL;
}

static jj_node *parse_call_block(parser *p, jj_node *n) {
  if (!(n->sig = alloc(p, 1, sizeof *n->sig)) || !(n->name = intern(p, "caller", 6))) return NULL;
  if (p->t->type == T_LPAREN && !signature(p, n->sig)) return NULL;
  if (!(n->a = expression(p))) return NULL;
  if (n->a->type != E_CALL) return fail(p, n->line, "expected call", "", 0);
  return macro_body(p, n, "endcall") ? n : NULL;
}

static jj_node *parse_filter_block(parser *p, jj_node *n) {
  if (!(n->b = filter(p, NULL)) || !filter_chain(p, n)) return NULL;
  return (n->body = scoped_until(p, "endfilter")) ? n : NULL;
}

static jj_node *parse_with(parser *p, jj_node *n) {
  int cap = 0, cap2 = 0;
  while (p->t->type != T_BLOCK_END) {
    if (n->n && !expect(p, T_COMMA, "',' or the end of the tag")) return NULL;
    jj_node *t = target(p, false, NULL), *v;
    if (!t || !expect(p, T_ASSIGN, "'='") || !(v = expression(p))) return NULL;
    if (!grow(p, &n->list, n->n, &cap) || !grow(p, &n->list2, n->n, &cap2)) return NULL;
    n->list[n->n] = t;
    n->list2[n->n++] = v;
  }
  return (n->body = scoped_until(p, "endwith")) ? n : NULL;
}

static jj_node *parse_print(parser *p, jj_node *n) {
  chain c = {n, 0, 0};
  while (p->t->type != T_BLOCK_END) {
    if (n->n && !expect(p, T_COMMA, "','")) return NULL;
    if (!chain_add(p, &c, expression(p))) return NULL;
  }
  return n;
}

/* Nothing inherits from a chat template, so a block is just its body, in a scope that sees the template's top level. */
static jj_node *parse_block(parser *p, jj_node *n) {
  jj_str *s = expect_name(p);
  if (!s) return NULL;
  bool is_scoped = skip_name(p, "scoped");
  skip_name(p, "required");
  for (int i = 0; i < p->n_blocks; i++)
    if (p->blocks[i] == s) return fail(p, n->line, "block defined twice: '", s->p, s->len);
  if (!grow(p, &p->blocks, p->n_blocks, &p->cap_blocks)) return NULL;
  p->blocks[p->n_blocks++] = s;
  n->flag = !is_scoped;
  int loops = p->loops;
  p->loops = 0;
  n->body = scoped_until(p, "endblock");
  p->loops = loops;
  if (n->body && p->t->type == T_NAME && intern(p, p->t->p, p->t->len) == s) p->t++;
  return n->body ? n : NULL;
}

static jj_node *parse_generation(parser *p, jj_node *n) {
  int loops = p->loops;
  p->loops = 0; /* transformers makes a call block of it: no break out of one */
  n->body = scoped_until(p, "endgeneration");
  p->loops = loops;
  return n->body ? n : NULL;
}

static jj_node *parse_break(parser *p, jj_node *n) {
  return p->loops ? n : fail(p, n->line, "break and continue only work inside a for loop", "", 0);
}

static jj_node *statement(parser *p) {
  static const struct {
    const char *name;
    jj_type type;
    jj_node *(*parse)(parser *, jj_node *);
  } table[] = {{"for", S_FOR, parse_for},
               {"if", S_IF, parse_if},
               {"set", S_SET, parse_set},
               {"macro", S_MACRO, parse_macro},
               {"call", S_CALLBLOCK, parse_call_block},
               {"filter", S_FILTERBLOCK, parse_filter_block},
               {"with", S_WITH, parse_with},
               {"print", S_OUTPUT, parse_print},
               {"block", S_SCOPE, parse_block},
               {"generation", S_SCOPE, parse_generation},
               {"break", S_BREAK, parse_break},
               {"continue", S_CONTINUE, parse_break}};
  static const char *const loaders[] = {"extends", "include", "import", "from", "autoescape"};
  if (p->t->type != T_NAME) return unexpected(p, "the name of a statement");
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (!is_name(p, table[i].name)) continue;
    jj_node *n = node(p, table[i].type, p->t->line);
    if (!n || !enter(p)) return NULL;
    p->t++;
    n = table[i].parse(p, n);
    p->depth--;
    return n;
  }
  for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++)
    if (is_name(p, loaders[i])) return fail(p, p->t->line, "a chat template stands alone; it cannot use '", p->t->p, p->t->len);
  return fail(p, p->t->line, "Encountered unknown tag '", p->t->p, p->t->len);
}

static bool is_end(const parser *p, const char *const *ends) {
  for (; ends && *ends; ends++)
    if (is_name(p, *ends)) return true;
  return false;
}

static jj_node *body_item(parser *p) {
  jj_node *n;
  if (p->t->type == T_DATA) {
    n = node(p, S_DATA, p->t->line);
    jj_str *s = n ? new_str(p, p->t->p, p->t->len) : NULL;
    if (!s) return NULL;
    n->val = jj_str_val(s);
    p->t++;
    return n;
  }
  if (skip(p, T_BLOCK_BEGIN)) return (n = statement(p)) && expect(p, T_BLOCK_END, "the end of the tag") ? n : NULL;
  chain c = {node(p, S_OUTPUT, p->t->line), 0, 0};
  p->t++;
  return c.n && chain_add(p, &c, tuple(p, TUPLE_FULL, NULL)) && expect(p, T_VAR_END, "the end of the {{ tag") ? c.n : NULL;
}

static jj_body *subparse(parser *p, const char *const *ends, int line) {
  int cap = 0;
  jj_body *b = alloc(p, 1, sizeof *b);
  while (b) {
    if (p->t->type == T_EOF) {
      if (!ends) return b;
      char what[100];
      snprintf(what, sizeof what, "the template ends, but the tag of line %d waits for {%% %s %%}", line, ends[0]);
      return fail(p, p->t->line, what, "", 0);
    }
    if (p->t->type == T_BLOCK_BEGIN && p->t[1].type == T_NAME) {
      p->t++;
      if (is_end(p, ends)) return b;
      p->t--;
    }
    jj_node *n = body_item(p);
    if (!n || !grow(p, &b->v, b->n, &cap)) return NULL;
    b->v[b->n++] = n;
  }
  return NULL;
}

int sh_jj_parse(sh_jinja *t, const jj_token *toks, size_t n, sh_error *e) {
  (void)n; /* the array ends with T_EOF */
  static const char *const special[JJ_SPECIAL] = {"caller", "varargs", "kwargs", "loop"};
  parser p = {.a = t->arena, .t = toks, .e = e};
  for (int i = 0; i < JJ_SPECIAL; i++)
    if (!(t->special[i] = intern(&p, special[i], strlen(special[i])))) return p.rc;
  jj_body *b = subparse(&p, NULL, 1);
  if (b && p.unknown) {
    fail(&p, p.unknown->line, p.unknown->type == E_FILTER ? "no filter named '" : "no test named '", p.unknown->name->p,
         p.unknown->name->len);
  }
  if (p.rc) return p.rc;
  if (!b) return sh_fail(e, SH_ERR_NOMEM, "template: out of memory");
  t->root = *b;
  return 0;
}
