/* Filters on sequences and mappings.
 *
 * What jinja2 makes a generator (map, select, unique, items, batch, slice, reverse) is computed at once here and returned as an iterator
 * that can be read once: the same text comes out, and a filter that would fail fails at this line. An attribute argument is a path,
 * "a.b.0", looked up item first. */
#include "text/jinja_int.h"

#include <string.h>

/* --- Attribute paths ---------------------------------------------------------------------------------------------------------------- */
typedef struct path {
  jj_val *part;
  size_t n;
  jj_val dflt; /* JJ_MISSING: none */
  bool lower;  /* fold strings, for comparison without case */
} path;

static int path_part(jj_ctx *c, const char *p, size_t n, jj_val *out) {
  bool digits = n > 0 && n < 10;
  int64_t i = 0;
  for (size_t k = 0; k < n && digits; k++) {
    digits = p[k] >= '0' && p[k] <= '9';
    i = i * 10 + (p[k] - '0');
  }
  if (!digits) return sh_jj_str_ref(c, p, n, out);
  *out = sh_jj_int(i);
  return 0;
}

static int parse_path_text(jj_ctx *c, const char *s, size_t len, path *p) {
  size_t n = 1;
  for (size_t i = 0; i < len; i++) n += s[i] == '.';
  if (!(p->part = sh_jj_alloc(c, n, sizeof *p->part))) return sh_jj_nomem(c);
  for (size_t i = 0; p->n < n; p->n++) {
    const char *dot = memchr(s + i, '.', len - i);
    size_t k = dot ? (size_t)(dot - s) - i : len - i;
    JJ_TRY(path_part(c, s + i, k, &p->part[p->n]));
    i += k + 1;
  }
  return 0;
}

static int parse_path(jj_ctx *c, jj_val attr, bool lower, path *p) {
  *p = (path){.lower = lower, .dflt = {.kind = JJ_MISSING}};
  if (!jj_given(attr) || attr.kind == JJ_NONE) return 0;
  if (attr.kind == JJ_STR) return parse_path_text(c, attr.s->p, attr.s->len, p);
  if (!(p->part = sh_jj_alloc(c, 1, sizeof *p->part))) return sh_jj_nomem(c);
  p->part[p->n++] = attr;
  return 0;
}

static int get_path(jj_ctx *c, const path *p, jj_val v, jj_val *out) {
  for (size_t i = 0; i < p->n; i++) {
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(sh_jj_getitem(c, v, p->part[i], &v));
    if (v.kind == JJ_UNDEF && jj_given(p->dflt)) v = p->dflt;
  }
  *out = v;
  return p->lower && v.kind == JJ_STR ? sh_jj_change_case(c, v.s, JJ_LOWER, out) : 0;
}

/* --- Small helpers ------------------------------------------------------------------------------------------------------------------ */
static bool truthy(jj_ctx *c, jj_val v) { return jj_given(v) && sh_jj_truth(c, v); }

static int need_int(jj_ctx *c, jj_val v, const char *what, int64_t *out) {
  if (v.kind == JJ_UNDEF) return sh_jj_fail_undef(c, v);
  return sh_jj_as_int(v, out) ? 0 : sh_jj_fail(c, "%s must be an integer, not %s", what, sh_jj_type_name(v));
}

/* The items of v in memory of their own, for sorting. */
static int copy_items(jj_ctx *c, jj_val v, jj_val **items, size_t *n) {
  jj_list *l;
  JJ_TRY(sh_jj_to_list(c, v, &l));
  *n = l->n;
  if (!(*items = sh_jj_alloc(c, l->n, sizeof **items))) return sh_jj_nomem(c);
  if (l->n) memcpy(*items, l->v, l->n * sizeof **items);
  return sh_jj_step(c, l->n / 4);
}

static int list_of(jj_ctx *c, jj_val *v, size_t n, jj_val *out) {
  jj_list *l = sh_jj_list(c, 0);
  if (!l) return sh_jj_nomem(c);
  *l = (jj_list){v, n, n, NULL};
  *out = sh_jj_list_val(l);
  return 0;
}

/* --- Whole sequences ---------------------------------------------------------------------------------------------------------------- */
static int f_length(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  int64_t n;
  bool ok;
  (void)a;
  JJ_TRY(sh_jj_len(c, self, &ok, &n));
  if (!ok) return sh_jj_fail(c, "object of type '%s' has no len()", sh_jj_type_name(self));
  *out = sh_jj_int(n);
  return 0;
}

static int f_list(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l;
  (void)a;
  JJ_TRY(sh_jj_to_list(c, self, &l));
  *out = sh_jj_list_val(l);
  return 0;
}

static int f_first(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_iter it;
  bool more;
  (void)a;
  JJ_TRY(sh_jj_iter(c, self, &it));
  JJ_TRY(sh_jj_next(c, &it, &more, out));
  return more ? 0 : sh_jj_undef(c, "No first item, sequence was empty.", out);
}

static int f_last(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l;
  (void)a;
  if (self.kind == JJ_GEN) return sh_jj_fail(c, "'generator' object is not reversible");
  if (self.kind == JJ_STR) {
    if (!self.s->len) return sh_jj_undef(c, "No last item, sequence was empty.", out);
    JJ_TRY(sh_jj_getitem(c, self, sh_jj_int(-1), out));
    out->flag = 0;
    return 0;
  }
  JJ_TRY(sh_jj_to_list(c, self, &l));
  if (!l->n) return sh_jj_undef(c, "No last item, sequence was empty.", out);
  *out = l->v[l->n - 1];
  return 0;
}

static int f_reverse(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *r;
  (void)a;
  if (self.kind == JJ_STR) return sh_jj_slice(c, self, sh_jj_none, sh_jj_none, sh_jj_int(-1), out);
  JJ_TRY(sh_jj_to_list(c, self, &l));
  if (!(r = sh_jj_list(c, l->n))) return sh_jj_nomem(c);
  for (; r->n < l->n; r->n++) r->v[r->n] = l->v[l->n - 1 - r->n];
  JJ_TRY(sh_jj_step(c, l->n / 4));
  if (self.kind != JJ_GEN) return sh_jj_gen(c, r, out);
  *out = sh_jj_list_val(r);
  return 0;
}

static int f_join(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *items;
  path p;
  jj_val sep = a->v[0];
  if (jj_given(sep)) JJ_TRY(sh_jj_to_str(c, sep, &sep));
  else JJ_TRY(sh_jj_str_ref(c, "", 0, &sep));
  JJ_TRY(parse_path(c, a->v[1], false, &p));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  if (!p.n) return sh_jj_join(c, sep.s, l, false, out);
  if (!(items = sh_jj_list(c, l->n))) return sh_jj_nomem(c);
  for (; items->n < l->n; items->n++) JJ_TRY(get_path(c, &p, l->v[items->n], &items->v[items->n]));
  return sh_jj_join(c, sep.s, items, false, out);
}

static int f_sum(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l;
  path p;
  jj_val acc = jj_given(a->v[1]) ? a->v[1] : sh_jj_int(0), v;
  JJ_TRY(parse_path(c, a->v[0], false, &p));
  if (acc.kind == JJ_STR) return sh_jj_fail(c, "sum() can't sum strings [use ''.join(seq) instead]");
  JJ_TRY(sh_jj_to_list(c, self, &l));
  for (size_t i = 0; i < l->n; i++) {
    JJ_TRY(get_path(c, &p, l->v[i], &v));
    JJ_TRY(sh_jj_arith(c, OP_ADD, acc, v, &acc));
  }
  *out = acc;
  return 0;
}

static int extreme(jj_ctx *c, jj_val self, jj_args *a, jj_op op, jj_val *out) {
  jj_list *l;
  path p;
  jj_val best, key;
  bool better;
  JJ_TRY(parse_path(c, a->v[1], !truthy(c, a->v[0]), &p));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  if (!l->n) return sh_jj_undef(c, "No aggregated item, sequence was empty.", out);
  *out = l->v[0];
  JJ_TRY(get_path(c, &p, l->v[0], &best));
  for (size_t i = 1; i < l->n; i++) {
    JJ_TRY(get_path(c, &p, l->v[i], &key));
    JJ_TRY(sh_jj_compare(c, op, key, best, &better));
    if (better) best = key, *out = l->v[i];
  }
  return 0;
}
static int f_min(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return extreme(c, self, a, OP_LT, out); }
static int f_max(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return extreme(c, self, a, OP_GT, out); }

/* --- Sorting and grouping ----------------------------------------------------------------------------------------------------------- */
/* attribute "a,b" sorts by several, so a key is a list, also for one: lists ask for equality first, and two None are equal but have no
 * order. */
static int sort_key(jj_ctx *c, const path *paths, size_t n, jj_val v, jj_val *out) {
  jj_list *l = sh_jj_list(c, n);
  if (!l) return sh_jj_nomem(c);
  for (; l->n < n; l->n++) JJ_TRY(get_path(c, &paths[l->n], v, &l->v[l->n]));
  *out = sh_jj_list_val(l);
  return 0;
}

static int parse_paths(jj_ctx *c, jj_val attr, bool lower, path **paths, size_t *n) {
  *n = 1;
  if (attr.kind == JJ_STR)
    for (size_t i = 0; i < attr.s->len; i++) *n += attr.s->p[i] == ',';
  if (!(*paths = sh_jj_alloc(c, *n, sizeof **paths))) return sh_jj_nomem(c);
  if (attr.kind != JJ_STR) return parse_path(c, attr, lower, &(*paths)[0]);
  const char *s = attr.s->p, *end = s + attr.s->len;
  for (size_t i = 0; i < *n; i++) {
    const char *comma = memchr(s, ',', (size_t)(end - s));
    (*paths)[i] = (path){.lower = lower, .dflt = {.kind = JJ_MISSING}};
    JJ_TRY(parse_path_text(c, s, (size_t)((comma ? comma : end) - s), &(*paths)[i]));
    if (comma) s = comma + 1;
  }
  return 0;
}

static int f_sort(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_val *v, *keys;
  size_t n, n_paths;
  path *paths;
  JJ_TRY(parse_paths(c, a->v[2], !truthy(c, a->v[1]), &paths, &n_paths));
  JJ_TRY(copy_items(c, self, &v, &n));
  if (!(keys = sh_jj_alloc(c, n, sizeof *keys))) return sh_jj_nomem(c);
  for (size_t i = 0; i < n; i++) JJ_TRY(sort_key(c, paths, n_paths, v[i], &keys[i]));
  JJ_TRY(sh_jj_sort(c, v, keys, n, truthy(c, a->v[0])));
  return list_of(c, v, n, out);
}

static int f_dictsort(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  bool by_value = false;
  path p = {.lower = !truthy(c, a->v[0]), .dflt = {.kind = JJ_MISSING}};
  if (jj_given(a->v[1])) {
    by_value = a->v[1].kind == JJ_STR && sh_jj_str_is(a->v[1].s, "value");
    if (!by_value && !(a->v[1].kind == JJ_STR && sh_jj_str_is(a->v[1].s, "key")))
      return sh_jj_fail(c, "You can only sort by either \"key\" or \"value\"");
  }
  if (self.kind == JJ_UNDEF) return sh_jj_fail_undef(c, self);
  if (self.kind != JJ_DICT) return sh_jj_fail(c, "dictsort wants a mapping, not %s", sh_jj_type_name(self));
  size_t n = self.d->n;
  jj_val *v = sh_jj_alloc(c, n, sizeof *v), *keys = sh_jj_alloc(c, n, sizeof *keys);
  if (!v || !keys) return sh_jj_nomem(c);
  for (size_t i = 0; i < n; i++) {
    const jj_entry *e = &self.d->e[i];
    JJ_TRY(sh_jj_pair(c, e->k, e->v, &v[i]));
    JJ_TRY(get_path(c, &p, by_value ? e->v : e->k, &keys[i]));
  }
  JJ_TRY(sh_jj_sort(c, v, keys, n, truthy(c, a->v[2])));
  return list_of(c, v, n, out);
}

static int f_groupby(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_val *v, *keys;
  size_t n;
  path p, plain;
  jj_list *groups = sh_jj_list(c, 0);
  bool same;
  JJ_TRY(parse_path(c, a->v[0], !truthy(c, a->v[2]), &p));
  if (jj_given(a->v[1]) && a->v[1].kind != JJ_NONE) p.dflt = a->v[1];
  plain = p;
  plain.lower = false;
  JJ_TRY(copy_items(c, self, &v, &n));
  if (!groups || !(keys = sh_jj_alloc(c, n, sizeof *keys))) return sh_jj_nomem(c);
  for (size_t i = 0; i < n; i++) JJ_TRY(get_path(c, &p, v[i], &keys[i]));
  JJ_TRY(sh_jj_sort(c, v, keys, n, false));
  for (size_t i = 0, j; i < n; i = j) {
    jj_val items, name, pair;
    for (j = i + 1, same = true; j < n; j++) {
      JJ_TRY(sh_jj_eq(c, keys[i], keys[j], &same));
      if (!same) break;
    }
    JJ_TRY(list_of(c, v + i, j - i, &items));
    JJ_TRY(get_path(c, &plain, v[i], &name));
    JJ_TRY(sh_jj_pair(c, name, items, &pair));
    pair.flag = JJ_GROUP;
    JJ_TRY(sh_jj_push(c, groups, pair));
  }
  *out = sh_jj_list_val(groups);
  return 0;
}

static int f_unique(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *kept = sh_jj_list(c, 0);
  jj_dict *seen = sh_jj_dict(c);
  path p;
  jj_val key;
  bool found;
  if (!kept || !seen) return sh_jj_nomem(c);
  JJ_TRY(parse_path(c, a->v[1], !truthy(c, a->v[0]), &p));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  for (size_t i = 0; i < l->n; i++) {
    JJ_TRY(get_path(c, &p, l->v[i], &key));
    JJ_TRY(sh_jj_dict_get(c, seen, key, &found, NULL));
    if (found) continue;
    JJ_TRY(sh_jj_dict_set(c, seen, key, sh_jj_none));
    JJ_TRY(sh_jj_push(c, kept, l->v[i]));
  }
  return sh_jj_gen(c, kept, out);
}

/* --- Splitting ---------------------------------------------------------------------------------------------------------------------- */
static int f_batch(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *rows = sh_jj_list(c, 0), *row = NULL;
  int64_t n;
  bool fill = jj_given(a->v[1]) && a->v[1].kind != JJ_NONE;
  if (!rows) return sh_jj_nomem(c);
  JJ_TRY(need_int(c, a->v[0], "linecount", &n));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  for (size_t i = 0; i < l->n; i++) {
    if (!row || (int64_t)row->n == n) {
      if (!(row = sh_jj_list(c, 0))) return sh_jj_nomem(c);
      JJ_TRY(sh_jj_push(c, rows, sh_jj_list_val(row)));
    }
    JJ_TRY(sh_jj_push(c, row, l->v[i]));
  }
  while (row && fill && (int64_t)row->n < n) {
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(sh_jj_push(c, row, a->v[1]));
  }
  return sh_jj_gen(c, rows, out);
}

static int f_slice(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *rows = sh_jj_list(c, 0);
  int64_t n;
  bool fill = jj_given(a->v[1]) && a->v[1].kind != JJ_NONE;
  if (!rows) return sh_jj_nomem(c);
  JJ_TRY(need_int(c, a->v[0], "slices", &n));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  if (n == 0) return sh_jj_fail(c, "integer division or modulo by zero");
  if (n < 0) n = 0;
  size_t each = n ? l->n / (size_t)n : 0, extra = n ? l->n % (size_t)n : 0, at = 0;
  for (size_t i = 0; i < (size_t)n; i++) {
    size_t len = each + (i < extra);
    jj_list *row = sh_jj_list(c, len + 1);
    if (!row) return sh_jj_nomem(c);
    JJ_TRY(sh_jj_step(c, 1));
    if (len) memcpy(row->v, l->v + at, len * sizeof *row->v);
    row->n = len;
    at += len;
    if (fill && i >= extra) JJ_TRY(sh_jj_push(c, row, a->v[1]));
    JJ_TRY(sh_jj_push(c, rows, sh_jj_list_val(row)));
  }
  return sh_jj_gen(c, rows, out);
}

static int f_items(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l;
  (void)a;
  if (self.kind == JJ_UNDEF) return (l = sh_jj_list(c, 0)) ? sh_jj_gen(c, l, out) : sh_jj_nomem(c);
  if (self.kind != JJ_DICT) return sh_jj_fail(c, "Can only get item pairs from a mapping.");
  jj_view v = {self.d, 2};
  JJ_TRY(sh_jj_to_list(c, (jj_val){.kind = JJ_VIEW, .view = &v}, &l));
  return sh_jj_gen(c, l, out);
}

/* --- map, select and their like ----------------------------------------------------------------------------------------------------- */
static const jj_kw *kw_named(const jj_args *a, const char *name) {
  for (int i = 0; i < a->nkw; i++)
    if (sh_jj_str_is(a->kw[i].name, name)) return &a->kw[i];
  return NULL;
}

/* A filter or test given by name as argument number at; the arguments after it are its own. */
static int named(jj_ctx *c, jj_args *a, int at, bool filter, const jj_builtin **b, jj_args *rest) {
  jj_val name = a->v[at];
  const char *what = filter ? "filter" : "test";
  if (name.kind != JJ_STR) return sh_jj_fail(c, "the name of a %s must be a string, not %s", what, sh_jj_type_name(name));
  *b = filter ? sh_jj_find_filter(name.s->p, name.s->len) : sh_jj_find_test(name.s->p, name.s->len);
  if (!*b) return sh_jj_fail(c, "no %s named '%.*s'", what, (int)name.s->len, name.s->p);
  *rest = (jj_args){a->v + at + 1, a->n - at - 1, a->kw, a->nkw};
  return 0;
}

static int f_map(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_list *l, *r = sh_jj_list(c, 0);
  const jj_builtin *b = NULL;
  jj_args rest = {0};
  path p;
  if (!r) return sh_jj_nomem(c);
  if (!sh_jj_truth(c, self)) return sh_jj_gen(c, r, out);
  const jj_kw *attr = a->n == 0 ? kw_named(a, "attribute") : NULL, *dflt = kw_named(a, "default");
  if (attr) {
    if (a->nkw > 1 + (dflt != NULL)) return sh_jj_fail(c, "map got an unexpected keyword argument");
    JJ_TRY(parse_path(c, attr->v, false, &p));
    if (dflt && dflt->v.kind != JJ_NONE) p.dflt = dflt->v;
  } else {
    if (a->n == 0) return sh_jj_fail(c, "map requires a filter argument");
    JJ_TRY(named(c, a, 0, true, &b, &rest));
  }
  JJ_TRY(sh_jj_to_list(c, self, &l));
  for (size_t i = 0; i < l->n; i++) {
    jj_val v;
    JJ_TRY(sh_jj_step(c, 1));
    if (b) JJ_TRY(sh_jj_apply(c, b, l->v[i], &rest, &v));
    else JJ_TRY(get_path(c, &p, l->v[i], &v));
    JJ_TRY(sh_jj_push(c, r, v));
  }
  return sh_jj_gen(c, r, out);
}

static int choose(jj_ctx *c, jj_val self, jj_args *a, bool attr, bool keep, jj_val *out) {
  jj_list *l, *r = sh_jj_list(c, 0);
  const jj_builtin *b = NULL;
  jj_args rest = {0};
  path p = {.dflt = {.kind = JJ_MISSING}};
  if (!r) return sh_jj_nomem(c);
  if (!sh_jj_truth(c, self)) return sh_jj_gen(c, r, out);
  if (attr && a->n == 0) return sh_jj_fail(c, "Missing parameter for attribute name");
  if (attr) JJ_TRY(parse_path(c, a->v[0], false, &p));
  if (a->n > attr) JJ_TRY(named(c, a, attr, false, &b, &rest));
  JJ_TRY(sh_jj_to_list(c, self, &l));
  for (size_t i = 0; i < l->n; i++) {
    jj_val v;
    JJ_TRY(sh_jj_step(c, 1));
    JJ_TRY(get_path(c, &p, l->v[i], &v));
    if (b) JJ_TRY(sh_jj_apply(c, b, v, &rest, &v));
    if (sh_jj_truth(c, v) == keep) JJ_TRY(sh_jj_push(c, r, l->v[i]));
  }
  return sh_jj_gen(c, r, out);
}
static int f_select(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return choose(c, self, a, false, true, out); }
static int f_reject(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return choose(c, self, a, false, false, out); }
static int f_selectattr(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return choose(c, self, a, true, true, out); }
static int f_rejectattr(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) { return choose(c, self, a, true, false, out); }

static const jj_builtin filters[] = {
    {"batch", f_batch, "linecount|fill_with", 1, 0},
    {"count", f_length, "", 0, 0},
    {"dictsort", f_dictsort, "case_sensitive|by|reverse", 0, 0},
    {"first", f_first, "", 0, 0},
    {"groupby", f_groupby, "attribute|default|case_sensitive", 1, 0},
    {"items", f_items, "", 0, 0},
    {"join", f_join, "d|attribute", 0, 0},
    {"last", f_last, "", 0, 0},
    {"length", f_length, "", 0, 0},
    {"list", f_list, "", 0, 0},
    {"map", f_map, NULL, 0, 0},
    {"max", f_max, "case_sensitive|attribute", 0, 0},
    {"min", f_min, "case_sensitive|attribute", 0, 0},
    {"reject", f_reject, NULL, 0, 0},
    {"rejectattr", f_rejectattr, NULL, 0, 0},
    {"reverse", f_reverse, "", 0, 0},
    {"select", f_select, NULL, 0, 0},
    {"selectattr", f_selectattr, NULL, 0, 0},
    {"slice", f_slice, "slices|fill_with", 1, 0},
    {"sort", f_sort, "reverse|case_sensitive|attribute", 0, 0},
    {"sum", f_sum, "attribute|start", 0, 0},
    {"unique", f_unique, "case_sensitive|attribute", 0, 0},
};

const jj_builtin *sh_jj_find_seq_filter(const char *name, size_t n) {
  return sh_jj_table_find(filters, sizeof filters / sizeof *filters, name, n);
}
