/* Global functions: range, dict, namespace, cycler, joiner, and transformers' raise_exception and strftime_now. A template's variables of
 * these names win. */
#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANGE = 100000 }; /* the sandbox's own limit */

static int range_len(int64_t start, int64_t stop, int64_t step, int64_t *n) {
  uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
  uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
  *n = 0;
  if (step > 0 ? start >= stop : start <= stop) return 0;
  uint64_t len = (span - 1) / by + 1;
  if (len > MAX_RANGE) return -1;
  *n = (int64_t)len;
  return 0;
}

static int g_range(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t v[3] = {0, 0, 1};
  (void)self;
  if (a->nkw) return sh_jj_fail(c, "range() takes no keyword arguments");
  if (a->n < 1 || a->n > 3) return sh_jj_fail(c, "range expected 1 to 3 arguments, got %d", a->n);
  for (int i = 0; i < a->n; i++) {
    if (a->v[i].kind == JJ_UNDEF) return sh_jj_fail_undef(c, a->v[i]);
    if (!sh_jj_as_int(a->v[i], &v[i])) return sh_jj_fail(c, "'%s' object cannot be interpreted as an integer", sh_jj_type_name(a->v[i]));
  }
  if (a->n == 1) v[1] = v[0], v[0] = 0;
  if (v[2] == 0) return sh_jj_fail(c, "range() arg 3 must not be zero");
  jj_range *r = sh_jj_alloc(c, 1, sizeof *r);
  if (!r) return sh_jj_nomem(c);
  *r = (jj_range){v[0], v[1], v[2], 0};
  if (range_len(v[0], v[1], v[2], &r->n))
    return sh_jj_fail(c, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
  *out = (jj_val){.kind = JJ_RANGE, .r = r};
  return 0;
}

/* dict() and namespace(): another mapping or pairs, then keyword arguments. */
static int make_dict(jj_ctx *c, jj_args *a, const char *what, jj_dict **out) {
  jj_dict *d = *out = sh_jj_dict(c);
  jj_list *l, *pair;
  if (!d) return sh_jj_nomem(c);
  if (a->n > 1) return sh_jj_fail(c, "%s expected at most 1 argument, got %d", what, a->n);
  if (a->n && (a->v[0].kind == JJ_DICT || a->v[0].kind == JJ_NS)) {
    for (size_t i = 0; i < a->v[0].d->n; i++) JJ_TRY(sh_jj_dict_set(c, d, a->v[0].d->e[i].k, a->v[0].d->e[i].v));
  } else if (a->n) {
    JJ_TRY(sh_jj_to_list(c, a->v[0], &l));
    for (size_t i = 0; i < l->n; i++) {
      JJ_TRY(sh_jj_step(c, 1));
      JJ_TRY(sh_jj_to_list(c, l->v[i], &pair));
      if (pair->n != 2) return sh_jj_fail(c, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair->n);
      JJ_TRY(sh_jj_dict_set(c, d, pair->v[0], pair->v[1]));
    }
  }
  for (int i = 0; i < a->nkw; i++) JJ_TRY(sh_jj_dict_set(c, d, jj_str_val(a->kw[i].name), a->kw[i].v));
  return 0;
}

static int g_dict(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_dict *d;
  (void)self;
  JJ_TRY(make_dict(c, a, "dict", &d));
  *out = (jj_val){.kind = JJ_DICT, .d = d};
  return 0;
}

static int dict_fromkeys(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_dict *d = sh_jj_dict(c);
  jj_list *keys;
  (void)self;
  if (!d) return sh_jj_nomem(c);
  if (a->nkw) return sh_jj_fail(c, "fromkeys() takes no keyword arguments");
  if (a->n < 1 || a->n > 2) return sh_jj_fail(c, "fromkeys expected 1 or 2 arguments, got %d", a->n);
  JJ_TRY(sh_jj_to_list(c, a->v[0], &keys));
  for (size_t i = 0; i < keys->n; i++) {
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(sh_jj_dict_set(c, d, keys->v[i], a->n > 1 ? a->v[1] : sh_jj_none));
  }
  *out = (jj_val){.kind = JJ_DICT, .d = d};
  return 0;
}

bool sh_jj_is_dict_type(jj_val v) { return v.kind == JJ_FUNC && v.fn->fn == g_dict; }

/* A name that Python's class has no attribute for is looked up as dict[name], a type annotation there, and calling that is calling dict:
 * published templates say dict.from_keys(pairs), and it works. */
bool sh_jj_dict_type_attr(jj_val obj, const jj_str *name, jj_val *out) {
  static const jj_builtin fromkeys = {"fromkeys", dict_fromkeys, NULL, 0, 0};
  jj_dict none = {0};
  if (sh_jj_find_method((jj_val){.kind = JJ_DICT, .d = &none}, name)) return false; /* a method without its dict */
  *out = sh_jj_str_is(name, "fromkeys") ? (jj_val){.kind = JJ_FUNC, .fn = &fromkeys} : obj;
  return true;
}

static int g_namespace(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_dict *d;
  (void)self;
  JJ_TRY(make_dict(c, a, "namespace", &d));
  *out = (jj_val){.kind = JJ_NS, .d = d};
  return 0;
}

static int g_cycler(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)self;
  if (a->nkw) return sh_jj_fail(c, "cycler takes no keyword arguments");
  if (!a->n) return sh_jj_fail(c, "at least one item has to be provided");
  jj_cycler *y = sh_jj_alloc(c, 1, sizeof *y);
  if (!y || !(y->l = sh_jj_list(c, (size_t)a->n))) return sh_jj_nomem(c);
  memcpy(y->l->v, a->v, (size_t)a->n * sizeof *a->v);
  y->l->n = (size_t)a->n;
  *out = (jj_val){.kind = JJ_CYCLER, .cyc = y};
  return 0;
}

static int g_joiner(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_val sep = a->v[0];
  (void)self;
  if (!jj_given(sep)) JJ_TRY(sh_jj_str_ref(c, ", ", 2, &sep));
  jj_cycler *y = sh_jj_alloc(c, 1, sizeof *y);
  if (!y || !(y->l = sh_jj_list(c, 1))) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_push(c, y->l, sep));
  *out = (jj_val){.kind = JJ_JOINER, .cyc = y};
  return 0;
}

/* The message goes to the client as it is: the template's author wrote it for them. */
static int g_raise(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  (void)self;
  JJ_TRY(sh_jj_to_str(c, a->v[0], out));
  return sh_fail(c->err, SH_ERR_ARG, "%.*s", (int)(out->s->len < 4096 ? out->s->len : 4096), out->s->p);
}

static const jj_builtin globals[] = {
    {"raise_exception", g_raise, "message", 1, 0},
    {"namespace", g_namespace, NULL, 0, 0},
    {"range", g_range, NULL, 0, 0},
    {"strftime_now", sh_jj_strftime_now, "format", 1, 0},
    {"dict", g_dict, NULL, 0, 0},
    {"cycler", g_cycler, NULL, 0, 0},
    {"joiner", g_joiner, "sep", 0, 0},
};

const jj_builtin *sh_jj_find_global(const jj_str *name) {
  return sh_jj_table_find(globals, sizeof globals / sizeof *globals, name->p, name->len);
}
