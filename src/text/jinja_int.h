/* Inside of the Jinja interpreter: values, syntax tree, the state of one render. Only src/text/jinja*.c and chat.c include it.
 *
 * Ownership. A template has one arena (tokens, tree, constants); it never changes after compilation, so any number of threads may render
 * it. A render has another arena for all its values, freed at the end; values borrow from both and from the caller's sh_json tree.
 * Conventions: every function that can fail returns 0 or a negative sh_err with the sentence already written; bodies return JJ_BREAK or
 * JJ_CONTINUE. */
#ifndef SH_TEXT_JINJA_INT_H
#define SH_TEXT_JINJA_INT_H

#include "base/mem.h"
#include "text/jinja.h"

#define JJ_TRY(x)                                                                                                                          \
  do {                                                                                                                                     \
    int jj_rc_ = (x);                                                                                                                      \
    if (jj_rc_) return jj_rc_;                                                                                                             \
  } while (0)

enum { JJ_CALLER, JJ_VARARGS, JJ_KWARGS, JJ_LOOP_NAME, JJ_SPECIAL }; /* sh_jinja.special */
enum { JJ_BREAK = 1, JJ_CONTINUE = 2 };
enum { JJ_PARSE_DEPTH = 200 }; /* nesting a template may have; CPython's own parser stops near it */

/* --- Values ------------------------------------------------------------------------------------------------------------------------- */
typedef enum jj_kind {
  JJ_MISSING, /* an argument that was not given; never visible to a template */
  JJ_UNDEF,
  JJ_NONE,
  JJ_BOOL,
  JJ_INT,
  JJ_BIG, /* an integer beyond int64: kept as text, can be printed and compared, not computed with */
  JJ_FLOAT,
  JJ_STR,
  JJ_LIST,
  JJ_TUPLE,
  JJ_DICT,
  JJ_VIEW, /* dict.keys(), .values(), .items() */
  JJ_RANGE,
  JJ_GEN, /* an iterator that is used up once, as map and select return it */
  JJ_NS,
  JJ_LOOP,
  JJ_MACRO,
  JJ_FUNC,
  JJ_METHOD,
  JJ_CYCLER,
  JJ_JOINER,
} jj_kind;

typedef struct jj_ctx jj_ctx;
typedef struct jj_val jj_val;
typedef struct jj_node jj_node;
typedef struct jj_scope jj_scope;

/* Strings and lists never change, so a longer one may share the memory of its beginning: `tail` tells whether this value ends where the
 * memory in use ends. That makes s = s + piece in a loop linear, as in CPython. */
typedef struct jj_tail {
  size_t used, cap;
} jj_tail;
typedef struct jj_str {
  const char *p; /* UTF-8, may hold NUL, not terminated */
  size_t len;    /* bytes */
  size_t ncp;    /* code points; SIZE_MAX = not counted yet (never in a template's constants: those are shared by threads) */
  jj_tail *tail;
} jj_str;
typedef struct jj_list {
  jj_val *v;
  size_t n, cap;
  jj_tail *tail;
} jj_list;
typedef struct jj_dict jj_dict;
typedef struct jj_undef jj_undef;
typedef struct jj_range {
  int64_t start, stop, step, n;
} jj_range;
typedef struct jj_view {
  jj_dict *d;
  int what; /* 0 keys, 1 values, 2 items */
} jj_view;
typedef struct jj_gen {
  jj_list *l;
  size_t pos;
} jj_gen;
typedef struct jj_macro {
  const jj_node *node;
  jj_scope *scope; /* where it was defined */
} jj_macro;
typedef struct jj_loop jj_loop;
typedef struct jj_builtin jj_builtin;
typedef struct jj_bound jj_bound;
typedef struct jj_cycler {
  jj_list *l;
  size_t pos;
} jj_cycler;

enum { JJ_MARKUP = 1, JJ_GROUP = 2 }; /* flag: a string made safe; a tuple made by groupby */
struct jj_val {
  uint8_t kind, flag;
  union {
    bool b;
    int64_t i;
    double f;
    jj_str *s; /* STR, BIG */
    jj_list *l;
    jj_dict *d; /* DICT, NS */
    jj_undef *u;
    jj_range *r;
    jj_view *view;
    jj_gen *g;
    jj_macro *m;
    jj_loop *loop;
    const jj_builtin *fn;
    jj_bound *bound;
    jj_cycler *cyc; /* CYCLER, JOINER */
  };
};
typedef struct jj_entry {
  jj_val k, v;
  uint64_t hash;
} jj_entry;
struct jj_dict {
  jj_entry *e; /* in order of insertion; nothing is ever removed */
  size_t n, cap;
  uint32_t *index; /* open addressing, entry number + 1; NULL while small */
  size_t n_index;
};
struct jj_undef {
  const char *hint; /* the whole sentence, or NULL: made from obj and name */
  jj_val obj, name;
};

/* Arguments of a call. For a builtin with named parameters v[] is bound to them (absent ones JJ_MISSING) and kw is empty. */
typedef struct jj_kw {
  jj_str *name;
  jj_val v;
} jj_kw;
typedef struct jj_args {
  jj_val *v;
  int n;
  jj_kw *kw;
  int nkw;
} jj_args;
typedef int (*jj_fn)(jj_ctx *c, jj_val self, jj_args *a, jj_val *out);
struct jj_builtin {
  const char *name;
  jj_fn fn;
  const char *params; /* "a|b|c"; NULL: takes the arguments as they come */
  int need;           /* parameters that must be given */
  uint8_t kind;       /* methods: the kind they belong to */
};
struct jj_bound {
  jj_val self;
  const jj_builtin *m;
};

/* --- Syntax tree -------------------------------------------------------------------------------------------------------------------- */
typedef enum jj_type {
  E_CONST,
  E_NAME,
  E_TUPLE,
  E_LIST,
  E_DICT, /* list: key, value, key, value */
  E_OR,
  E_AND,
  E_NOT,
  E_COMPARE, /* list[0] op[0] list[1] op[1] ... */
  E_ARITH,   /* the same, left to right */
  E_CONCAT,
  E_NEG,
  E_POS,
  E_COND, /* a = test, b = then, c = else or NULL */
  E_ATTR,
  E_ITEM,
  E_SLICE, /* list[3], entries may be NULL */
  E_CALL,
  E_FILTER, /* a = input, NULL at the head of a filter block */
  E_TEST,
  E_NSREF, /* target only: name.attr */
  S_OUTPUT,
  S_DATA,
  S_FOR, /* a = target, b = iterable, c = test */
  S_IF,  /* list = tests, bodies = one more when there is an else */
  S_SET,
  S_SETBLOCK, /* a = target, b = filter chain or NULL */
  S_MACRO,
  S_CALLBLOCK, /* a = call, macro fields = the caller */
  S_FILTERBLOCK,
  S_WITH,  /* list = targets, list2 = values */
  S_SCOPE, /* generation, block */
  S_BREAK,
  S_CONTINUE,
} jj_type;
typedef enum jj_op {
  OP_ADD,
  OP_SUB,
  OP_MUL,
  OP_DIV,
  OP_FLOORDIV,
  OP_MOD,
  OP_POW,
  OP_EQ,
  OP_NE,
  OP_LT,
  OP_LE,
  OP_GT,
  OP_GE,
  OP_IN,
  OP_NOTIN,
} jj_op;

typedef struct jj_body {
  jj_node **v;
  int n;
} jj_body;
typedef struct jj_call {
  jj_node **pos;
  int n;
  jj_str **names;
  jj_node **vals;
  int nkw;
  jj_node *star, *star2; /* *args, **kwargs, or NULL */
} jj_call;
typedef struct jj_sig { /* a macro's parameters */
  jj_str **names;
  jj_node **defaults; /* aligned to the end */
  int n, n_defaults;
  jj_body body;
  bool caller, explicit_caller, varargs, kwargs;
} jj_sig;
struct jj_node {
  uint8_t type; /* jj_type */
  bool flag;    /* E_TEST: negated; S_FOR: recursive; S_SCOPE: sees only the module */
  int line;
  int n, n2;
  jj_node *a, *b, *c;
  jj_node **list, **list2;
  uint8_t *ops;
  jj_val val;           /* E_CONST; E_ATTR, E_NSREF: the attribute */
  jj_str *name;         /* interned: one pointer per spelling in a template */
  const jj_builtin *fn; /* E_FILTER, E_TEST; NULL: unknown, an error when reached */
  jj_call *call;
  jj_sig *sig;
  jj_body *body, *body2; /* S_FOR: body, else; S_IF: n2 bodies in body[] */
};

typedef enum jj_tok {
  T_EOF,
  T_DATA,
  T_VAR_BEGIN,
  T_VAR_END,
  T_BLOCK_BEGIN,
  T_BLOCK_END,
  T_NAME,
  T_STRING,
  T_INT,
  T_FLOAT,
  T_ADD,
  T_SUB,
  T_MUL,
  T_DIV,
  T_FLOORDIV,
  T_MOD,
  T_POW,
  T_TILDE,
  T_LPAREN,
  T_RPAREN,
  T_LBRACKET,
  T_RBRACKET,
  T_LBRACE,
  T_RBRACE,
  T_EQ,
  T_NE,
  T_GT,
  T_GE,
  T_LT,
  T_LE,
  T_ASSIGN,
  T_DOT,
  T_COLON,
  T_PIPE,
  T_COMMA,
  T_SEMICOLON,
} jj_tok;
typedef struct jj_token {
  jj_tok type;
  int line;
  const char *p; /* DATA, NAME: text; STRING: after escapes; INT, FLOAT: digits without "_" */
  size_t len;
} jj_token;

struct sh_jinja {
  sh_arena *arena;
  jj_body root;
  jj_str *special[JJ_SPECIAL]; /* interned "caller", "varargs", "kwargs", "loop" */
};

/* --- One render --------------------------------------------------------------------------------------------------------------------- */
typedef struct jj_var {
  const jj_str *name;
  jj_val v;
} jj_var;
struct jj_scope {
  jj_scope *parent;
  bool captured; /* a macro closes over it: it must not be emptied and used again */
  int n, cap;
  jj_var *vars;
};
struct jj_ctx {
  const sh_jinja *t;
  sh_arena *arena;
  sh_buf out;    /* finished output, and at its end whatever string is being built: sh_jj_cut takes that part off again */
  sh_error *err; /* NULL while a text is made for an error message */
  size_t big;    /* bytes of the allocation that failed last: tells the memory limit from a machine without memory */
  jj_dict *globals;
  jj_scope *module, *scope;
  long steps, max_steps;
  int line;
  int nest, max_nest;   /* C recursion of the evaluator */
  int calls, max_calls; /* macros and recursive loops */
  int vdepth;           /* nesting of a value being printed, compared, hashed */
};

/* jinja_lex.c */
int sh_jj_lex(sh_arena *a, const char *src, size_t len, jj_token **out, size_t *n, sh_error *e);
/* jinja_parse.c */
int sh_jj_parse(sh_jinja *t, const jj_token *toks, size_t n, sh_error *e);

/* jinja.c: statements, scopes, calls */
int sh_jj_fail(jj_ctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int sh_jj_limit(jj_ctx *c, const char *what);
int sh_jj_nomem(jj_ctx *c);
int sh_jj_step(jj_ctx *c, size_t n); /* counts n units of work against the limit */
void *sh_jj_alloc(jj_ctx *c, size_t n, size_t size);
int sh_jj_call(jj_ctx *c, jj_val fn, jj_args *a, jj_val *out);
int sh_jj_bind(jj_ctx *c, const jj_builtin *b, jj_args *in, jj_args *out);
int sh_jj_apply(jj_ctx *c, const jj_builtin *b, jj_val self, jj_args *a, jj_val *out); /* bind, then call */
bool sh_jj_lookup(jj_ctx *c, const jj_str *name, jj_val *out);
/* jinja_loop.c: for loops and the loop variable */
int sh_jj_for(jj_ctx *c, const jj_node *n);
int sh_jj_loop_call(jj_ctx *c, jj_loop *l, jj_args *a, jj_val *out);
int sh_jj_loop_attr(jj_ctx *c, jj_loop *l, const jj_str *name, bool *found, jj_val *out);
int sh_jj_loop_len(jj_ctx *c, jj_loop *l, size_t *n);
int64_t sh_jj_loop_index(const jj_loop *l);
const jj_builtin *sh_jj_loop_method(const jj_str *name);
int sh_jj_body(jj_ctx *c, const jj_body *b);
int sh_jj_assign(jj_ctx *c, const jj_node *target, jj_val v);
jj_scope *sh_jj_scope_new(jj_ctx *c, jj_scope *parent);
int sh_jj_set_var(jj_ctx *c, const jj_str *name, jj_val v);
/* jinja_eval.c */
int sh_jj_eval(jj_ctx *c, const jj_node *n, jj_val *out);
int sh_jj_eval_args(jj_ctx *c, const jj_call *call, jj_args *a);
int sh_jj_eval_filter(jj_ctx *c, const jj_node *n, const jj_val *input, jj_val *out); /* input: of a filter block */
int sh_jj_getattr(jj_ctx *c, jj_val obj, jj_str *name, jj_val *out);
int sh_jj_getitem(jj_ctx *c, jj_val obj, jj_val key, jj_val *out);
int sh_jj_slice(jj_ctx *c, jj_val obj, jj_val lo, jj_val hi, jj_val step, jj_val *out);
/* jinja_ops.c */
int sh_jj_arith(jj_ctx *c, jj_op op, jj_val a, jj_val b, jj_val *out);
int sh_jj_negate(jj_ctx *c, jj_val a, bool neg, jj_val *out);
int sh_jj_compare(jj_ctx *c, jj_op op, jj_val a, jj_val b, bool *out); /* all of OP_EQ..OP_NOTIN */
int sh_jj_eq(jj_ctx *c, jj_val a, jj_val b, bool *out);
int sh_jj_sort(jj_ctx *c, jj_val *v, jj_val *keys, size_t n, bool reverse); /* stable */

/* jinja_value.c */
extern const jj_val sh_jj_none;
jj_val sh_jj_bool(bool b);
jj_val sh_jj_int(int64_t i);
jj_val sh_jj_float(double f);
int sh_jj_str(jj_ctx *c, const char *p, size_t n, jj_val *out);     /* copies */
int sh_jj_str_ref(jj_ctx *c, const char *p, size_t n, jj_val *out); /* borrows p for the render */
int sh_jj_cut(jj_ctx *c, size_t mark, jj_val *out);                 /* everything after mark in c->out becomes a string */
int sh_jj_put(jj_ctx *c, const char *p, size_t n);                  /* appends to c->out */
int sh_jj_concat(jj_ctx *c, const jj_str *a, const jj_str *b, jj_val *out);
size_t sh_jj_cps(jj_str *s);
size_t sh_jj_offset(const jj_str *s, size_t cp); /* byte offset of code point number cp */
bool sh_jj_str_is(const jj_str *s, const char *lit);
int sh_jj_undef(jj_ctx *c, const char *hint, jj_val *out);
int sh_jj_undef_of(jj_ctx *c, jj_val obj, jj_val name, jj_val *out); /* obj JJ_MISSING: a variable */
int sh_jj_fail_undef(jj_ctx *c, jj_val u);
jj_list *sh_jj_list(jj_ctx *c, size_t cap);
int sh_jj_push(jj_ctx *c, jj_list *l, jj_val v);
jj_val sh_jj_list_val(jj_list *l);
int sh_jj_gen(jj_ctx *c, jj_list *l, jj_val *out);
int sh_jj_pair(jj_ctx *c, jj_val a, jj_val b, jj_val *out); /* a tuple of two */
jj_dict *sh_jj_dict(jj_ctx *c);
int sh_jj_dict_set(jj_ctx *c, jj_dict *d, jj_val k, jj_val v);
int sh_jj_dict_get(jj_ctx *c, const jj_dict *d, jj_val k, bool *found, jj_val *out); /* fails for an unhashable key */
bool sh_jj_dict_str(const jj_dict *d, const jj_str *key, jj_val *out);
bool sh_jj_hashable(jj_val v);
const char *sh_jj_type_name(jj_val v);
bool sh_jj_truth(jj_ctx *c, jj_val v);
bool sh_jj_callable(jj_val v);
int64_t sh_jj_range_at(const jj_range *r, int64_t i);     /* i < r->n */
bool sh_jj_as_int(jj_val v, int64_t *i);                  /* INT and BOOL */
bool sh_jj_as_num(jj_val v, double *f);                   /* INT, BOOL, BIG, FLOAT */
int sh_jj_len(jj_ctx *c, jj_val v, bool *ok, int64_t *n); /* ok false: has no len() */
int sh_jj_write(jj_ctx *c, jj_val v);                     /* str(v) to c->out */
int sh_jj_write_repr(jj_ctx *c, jj_val v);                /* repr(v) to c->out */
int sh_jj_to_str(jj_ctx *c, jj_val v, jj_val *out);       /* str(v); a string as it is */
int sh_jj_from_json(jj_ctx *c, const sh_json *j, jj_val *out);
int sh_jj_enter_value(jj_ctx *c); /* before descending into a container; then c->vdepth-- */

/* Iteration. The source stays valid for the render. */
typedef struct jj_iter {
  jj_val src;
  size_t pos;
} jj_iter;
bool sh_jj_iterable(jj_val v);
int sh_jj_iter(jj_ctx *c, jj_val v, jj_iter *it); /* fails for what is not iterable */
int sh_jj_next(jj_ctx *c, jj_iter *it, bool *more, jj_val *out);
int sh_jj_to_list(jj_ctx *c, jj_val v, jj_list **out); /* a list's or tuple's own items are shared, not copied */

/* jinja_unicode.c */
bool sh_jj_is_space(uint32_t cp);
bool sh_jj_is_printable(uint32_t cp);
bool sh_jj_is_alpha(uint32_t cp);
bool sh_jj_is_decimal(uint32_t cp);
bool sh_jj_is_digit(uint32_t cp);
bool sh_jj_is_numeric(uint32_t cp);
bool sh_jj_is_upper(uint32_t cp);
bool sh_jj_is_lower(uint32_t cp);
bool sh_jj_is_title(uint32_t cp);
bool sh_jj_is_word(uint32_t cp); /* \w */
typedef enum jj_case { JJ_UPPER, JJ_LOWER, JJ_TITLE, JJ_CAPITALIZE, JJ_SWAPCASE, JJ_CASEFOLD, JJ_TITLE_FILTER } jj_case;
int sh_jj_change_case(jj_ctx *c, const jj_str *s, jj_case how, jj_val *out);
uint32_t sh_jj_cp(const char *p, size_t n, size_t *len); /* decodes one; an invalid byte counts as one code point U+FFFD */
void sh_jj_strip(const jj_str *s, const jj_str *chars, bool left, bool right, const char **p, size_t *n); /* chars NULL: whitespace */

/* jinja_format.c */
size_t sh_jj_float_repr(double f, char buf[40]);
int sh_jj_percent(jj_ctx *c, const jj_str *fmt, jj_val args, bool markup, jj_val *out);
int sh_jj_str_format(jj_ctx *c, jj_val self, jj_args *a, jj_val *out);
int sh_jj_escape(jj_ctx *c, const jj_str *s);        /* HTML, to c->out */
int sh_jj_escaped(jj_ctx *c, jj_val v, jj_val *out); /* markupsafe.escape */
/* jinja_json.c: the tojson filter, strftime_now */
int sh_jj_tojson(jj_ctx *c, jj_val self, jj_args *a, jj_val *out);
int sh_jj_strftime_now(jj_ctx *c, jj_val self, jj_args *a, jj_val *out);

/* jinja_wrap.c */
int sh_jj_wordwrap(jj_ctx *c, jj_val self, jj_args *a, jj_val *out);

/* jinja_filters.c, jinja_seq.c, jinja_tests.c, jinja_methods.c, jinja_funcs.c: tables */
const jj_builtin *sh_jj_find_filter(const char *name, size_t n);
const jj_builtin *sh_jj_find_seq_filter(const char *name, size_t n);
const jj_builtin *sh_jj_find_test(const char *name, size_t n);
const jj_builtin *sh_jj_find_method(jj_val self, const jj_str *name);
const jj_builtin *sh_jj_find_global(const jj_str *name);
bool sh_jj_is_dict_type(jj_val v); /* the global `dict` itself */
bool sh_jj_dict_type_attr(jj_val obj, const jj_str *name, jj_val *out);
const jj_builtin *sh_jj_table_find(const jj_builtin *t, size_t n, const char *name, size_t len);
bool sh_jj_mutates(jj_kind k, const jj_str *name); /* a method the immutable sandbox refuses */
int sh_jj_replace(jj_ctx *c, const jj_str *s, const jj_str *old, const jj_str *new_, int64_t count, jj_val *out);
int sh_jj_join(jj_ctx *c, const jj_str *sep, jj_list *l, bool strict, jj_val *out); /* strict: items must be strings */
int sh_jj_splitlines(jj_ctx *c, const jj_str *s, bool keep, jj_list **out);
int sh_jj_parse_int(jj_ctx *c, const jj_str *s, int base, bool *ok, jj_val *out);
int sh_jj_parse_float(jj_ctx *c, const jj_str *s, bool *ok, double *out);

static inline bool jj_given(jj_val v) { return v.kind != JJ_MISSING; }
static inline jj_val jj_str_val(jj_str *s) { return (jj_val){.kind = JJ_STR, .s = s}; }

#endif
