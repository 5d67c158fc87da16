/* Values of one render: strings, lists, dictionaries, their str() and repr(), iteration, and the way in from JSON.
 *
 * One thread; everything lives in the render's arena and is never freed singly. Values are small structs passed by value; what they point
 * to never changes once a template can see it (the sandbox of transformers forbids append, update and so on), which allows three savings:
 * sub-lists and substrings share memory, appending may write behind the end of the left operand when nobody else has (jj_tail), and JSON
 * strings are borrowed. Dictionaries keep the order of insertion and get a hash index from nine entries on. Strings being built (a macro's
 * result, str() of a list, a join) are written at the end of c->out and cut off again: they nest like a stack, and one limit covers them
 * all. Refused: reference counting. A render lives for milliseconds and has a memory limit. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const jj_val sh_jj_none = {.kind = JJ_NONE};

jj_val sh_jj_bool(bool b) { return (jj_val){.kind = JJ_BOOL, .b = b}; }
jj_val sh_jj_int(int64_t i) { return (jj_val){.kind = JJ_INT, .i = i}; }
jj_val sh_jj_float(double f) { return (jj_val){.kind = JJ_FLOAT, .f = f}; }

/* --- Strings ------------------------------------------------------------------------------------------------------------------------ */
int sh_jj_str_ref(jj_ctx *c, const char *p, size_t n, jj_val *out) {
  jj_str *s = sh_jj_alloc(c, 1, sizeof *s);
  if (!s) return sh_jj_nomem(c);
  *s = (jj_str){n ? p : "", n, SIZE_MAX, NULL};
  *out = jj_str_val(s);
  return 0;
}

int sh_jj_str(jj_ctx *c, const char *p, size_t n, jj_val *out) {
  char *w = sh_jj_alloc(c, n, 1);
  if (!w) return sh_jj_nomem(c);
  if (n) memcpy(w, p, n);
  return sh_jj_str_ref(c, w, n, out);
}

int sh_jj_put(jj_ctx *c, const char *p, size_t n) {
  if (!n) return 0;
  JJ_TRY(sh_jj_step(c, n / 64));
  int rc = sh_buf_put(&c->out, p, n);
  if (rc == SH_ERR_LIMIT) return sh_jj_limit(c, "output");
  return rc ? sh_jj_nomem(c) : 0;
}

int sh_jj_cut(jj_ctx *c, size_t mark, jj_val *out) {
  int rc = sh_jj_str(c, c->out.p ? c->out.p + mark : "", c->out.len - mark, out);
  c->out.len = mark;
  return rc;
}

size_t sh_jj_cps(jj_str *s) {
  if (s->ncp != SIZE_MAX) return s->ncp;
  size_t n = 0, k;
  for (size_t i = 0; i < s->len; i += k, n++) {
    if ((unsigned char)s->p[i] < 0x80) k = 1;
    else sh_jj_cp(s->p + i, s->len - i, &k);
  }
  return s->ncp = n;
}

size_t sh_jj_offset(const jj_str *s, size_t cp) {
  if (s->ncp == s->len) return cp < s->len ? cp : s->len;
  size_t i = 0, k;
  for (; cp && i < s->len; cp--, i += k) sh_jj_cp(s->p + i, s->len - i, &k);
  return i;
}

bool sh_jj_str_is(const jj_str *s, const char *lit) { return s->len == strlen(lit) && memcmp(s->p, lit, s->len) == 0; }

/* Room for what may be appended is only made from this size on; shorter strings are mostly joined once. */
enum { TAIL_FROM = 256 };

int sh_jj_concat(jj_ctx *c, const jj_str *a, const jj_str *b, jj_val *out) {
  size_t n = a->len + b->len;
  jj_str *s = sh_jj_alloc(c, 1, sizeof *s);
  if (!s) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_step(c, b->len / 64));
  if (a->tail && a->len == a->tail->used && n <= a->tail->cap) {
    memcpy((char *)a->p + a->len, b->p, b->len); /* not const: tail is only set on memory of this render */
    a->tail->used = n;
    *s = (jj_str){a->p, n, SIZE_MAX, a->tail};
  } else {
    size_t cap = n >= TAIL_FROM ? n * 2 : n;
    JJ_TRY(sh_jj_step(c, a->len / 64));
    char *p = sh_jj_alloc(c, cap, 1);
    jj_tail *t = cap > n ? sh_jj_alloc(c, 1, sizeof *t) : NULL;
    if (!p || (cap > n && !t)) return sh_jj_nomem(c);
    if (a->len) memcpy(p, a->p, a->len);
    if (b->len) memcpy(p + a->len, b->p, b->len);
    if (t) *t = (jj_tail){n, cap};
    *s = (jj_str){p, n, SIZE_MAX, t};
  }
  if (a->ncp != SIZE_MAX && b->ncp != SIZE_MAX) s->ncp = a->ncp + b->ncp;
  *out = jj_str_val(s);
  return 0;
}

/* --- Undefined ---------------------------------------------------------------------------------------------------------------------- */
static int new_undef(jj_ctx *c, const char *hint, jj_val obj, jj_val name, jj_val *out) {
  jj_undef *u = sh_jj_alloc(c, 1, sizeof *u);
  if (!u) return sh_jj_nomem(c);
  *u = (jj_undef){hint, obj, name};
  *out = (jj_val){.kind = JJ_UNDEF, .u = u};
  return 0;
}
int sh_jj_undef(jj_ctx *c, const char *hint, jj_val *out) { return new_undef(c, hint, sh_jj_none, sh_jj_none, out); }
int sh_jj_undef_of(jj_ctx *c, jj_val obj, jj_val name, jj_val *out) { return new_undef(c, NULL, obj, name, out); }

/* The text of a value for an error message, short enough for sh_error. */
static void brief(jj_ctx *c, jj_val v, char buf[120]) {
  size_t mark = c->out.len;
  sh_error *e = c->err;
  int vdepth = c->vdepth;
  c->err = NULL;
  if (sh_jj_write_repr(c, v) || c->out.len - mark >= 119) {
    snprintf(buf, 120, "...");
  } else {
    memcpy(buf, c->out.p + mark, c->out.len - mark);
    buf[c->out.len - mark] = 0;
  }
  c->err = e;
  c->vdepth = vdepth;
  c->out.len = mark;
}

int sh_jj_fail_undef(jj_ctx *c, jj_val v) {
  char name[120];
  const jj_undef *u = v.u;
  if (u->hint) return sh_jj_fail(c, "%s", u->hint);
  brief(c, u->name, name);
  if (!jj_given(u->obj)) return sh_jj_fail(c, "%s is undefined", name);
  const char *type = sh_jj_type_name(u->obj), *object = u->obj.kind == JJ_NONE ? "" : " object";
  if (u->obj.kind == JJ_NONE) type = "None";
  if (u->name.kind != JJ_STR) return sh_jj_fail(c, "%s%s has no element %s", type, object, name);
  return sh_jj_fail(c, "'%s%s' has no attribute %s", type, object, name);
}

/* --- Lists -------------------------------------------------------------------------------------------------------------------------- */
jj_list *sh_jj_list(jj_ctx *c, size_t cap) {
  jj_list *l = sh_jj_alloc(c, 1, sizeof *l);
  if (!l) return NULL;
  l->cap = cap;
  l->v = cap ? sh_jj_alloc(c, cap, sizeof *l->v) : NULL;
  return cap && !l->v ? NULL : l;
}

int sh_jj_push(jj_ctx *c, jj_list *l, jj_val v) {
  if (l->n == l->cap) {
    size_t cap = l->cap ? l->cap * 2 : 8;
    jj_val *m = sh_jj_alloc(c, cap, sizeof *m);
    if (!m) return sh_jj_nomem(c);
    if (l->n) memcpy(m, l->v, l->n * sizeof *m);
    l->v = m;
    l->cap = cap;
  }
  l->v[l->n++] = v;
  return 0;
}

jj_val sh_jj_list_val(jj_list *l) { return (jj_val){.kind = JJ_LIST, .l = l}; }

int sh_jj_gen(jj_ctx *c, jj_list *l, jj_val *out) {
  jj_gen *g = sh_jj_alloc(c, 1, sizeof *g);
  if (!g) return sh_jj_nomem(c);
  g->l = l;
  *out = (jj_val){.kind = JJ_GEN, .g = g};
  return 0;
}

int sh_jj_pair(jj_ctx *c, jj_val a, jj_val b, jj_val *out) {
  jj_list *l = sh_jj_list(c, 2);
  if (!l) return sh_jj_nomem(c);
  l->v[0] = a;
  l->v[1] = b;
  l->n = 2;
  *out = (jj_val){.kind = JJ_TUPLE, .l = l};
  return 0;
}

/* --- Dictionaries ------------------------------------------------------------------------------------------------------------------- */
/* Tuples nested deeper than MAX_TUPLES count as unhashable: hash() recurses. */
enum { MAX_TUPLES = 100 };
static bool hashable(jj_val v, int depth) {
  if (v.kind == JJ_LIST || v.kind == JJ_DICT || v.kind == JJ_VIEW || depth > MAX_TUPLES) return false;
  if (v.kind == JJ_TUPLE)
    for (size_t i = 0; i < v.l->n; i++)
      if (!hashable(v.l->v[i], depth + 1)) return false;
  return true;
}
bool sh_jj_hashable(jj_val v) { return hashable(v, 0); }

/* Equal keys have equal hashes: 1, 1.0 and True are one key. Keys are a client's (template variables, a tool's arguments). */
static uint64_t hash(jj_val v) {
  const uint64_t seed = sh_hash_secret();
  double f;
  switch (v.kind) {
  case JJ_STR:
  case JJ_BIG: return sh_hash(v.s->p, v.s->len, seed ^ 1);
  case JJ_BOOL:
  case JJ_INT:
  case JJ_FLOAT:
    sh_jj_as_num(v, &f);
    if (f == 0) f = 0; /* -0.0 */
    return sh_hash(&f, sizeof f, seed ^ 2);
  case JJ_TUPLE: {
    uint64_t h = seed ^ 3;
    for (size_t i = 0; i < v.l->n; i++) {
      uint64_t k = hash(v.l->v[i]);
      h = sh_hash(&k, sizeof k, h);
    }
    return h;
  }
  case JJ_NONE: return 4;
  case JJ_UNDEF: return 5;
  default: return sh_hash(&v.l, sizeof v.l, seed ^ 6);
  }
}

jj_dict *sh_jj_dict(jj_ctx *c) { return sh_jj_alloc(c, 1, sizeof(jj_dict)); }

static bool same_key(jj_ctx *c, jj_val a, jj_val b) {
  bool eq = false;
  if (a.kind == JJ_STR && b.kind == JJ_STR) return a.s->len == b.s->len && memcmp(a.s->p, b.s->p, a.s->len) == 0;
  return sh_jj_eq(c, a, b, &eq) == 0 && eq;
}

enum { SMALL_DICT = 8 };

static size_t find(jj_ctx *c, const jj_dict *d, jj_val k, uint64_t h) {
  if (!d->index) {
    for (size_t i = 0; i < d->n; i++)
      if (d->e[i].hash == h && same_key(c, d->e[i].k, k)) return i;
    return SIZE_MAX;
  }
  for (size_t i = h & (d->n_index - 1); d->index[i]; i = (i + 1) & (d->n_index - 1)) {
    const jj_entry *e = &d->e[d->index[i] - 1];
    if (e->hash == h && same_key(c, e->k, k)) return d->index[i] - 1;
  }
  return SIZE_MAX;
}

static int reindex(jj_ctx *c, jj_dict *d) {
  size_t n = 32;
  while (n < d->cap * 2) n *= 2;
  d->index = sh_jj_alloc(c, n, sizeof *d->index);
  if (!d->index) return sh_jj_nomem(c);
  d->n_index = n;
  for (size_t e = 0; e < d->n; e++) {
    size_t i = d->e[e].hash & (n - 1);
    while (d->index[i]) i = (i + 1) & (n - 1);
    d->index[i] = (uint32_t)e + 1;
  }
  return 0;
}

int sh_jj_dict_set(jj_ctx *c, jj_dict *d, jj_val k, jj_val v) {
  if (!sh_jj_hashable(k)) return sh_jj_fail(c, "unhashable type: '%s'", sh_jj_type_name(k));
  uint64_t h = hash(k);
  size_t at = find(c, d, k, h);
  if (at != SIZE_MAX) {
    d->e[at].v = v;
    return 0;
  }
  if (d->n == d->cap) {
    size_t cap = d->cap ? d->cap * 2 : 4;
    jj_entry *e = sh_jj_alloc(c, cap, sizeof *e);
    if (!e || cap > UINT32_MAX / 4) return sh_jj_nomem(c);
    if (d->n) memcpy(e, d->e, d->n * sizeof *e);
    d->e = e;
    d->cap = cap;
    d->e[d->n++] = (jj_entry){k, v, h};
    return cap > SMALL_DICT ? reindex(c, d) : 0;
  }
  d->e[d->n++] = (jj_entry){k, v, h};
  if (d->index) {
    size_t i = h & (d->n_index - 1);
    while (d->index[i]) i = (i + 1) & (d->n_index - 1);
    d->index[i] = (uint32_t)d->n;
  }
  return 0;
}

int sh_jj_dict_get(jj_ctx *c, const jj_dict *d, jj_val k, bool *found, jj_val *out) {
  if (!sh_jj_hashable(k)) return sh_jj_fail(c, "unhashable type: '%s'", sh_jj_type_name(k));
  size_t at = find(c, d, k, hash(k));
  *found = at != SIZE_MAX;
  if (*found && out) *out = d->e[at].v;
  return 0;
}

bool sh_jj_dict_str(const jj_dict *d, const jj_str *key, jj_val *out) {
  jj_str s = *key;
  jj_val k = jj_str_val(&s);
  size_t at = find(NULL, d, k, hash(k)); /* strings only meet strings here: same_key needs no context */
  if (at != SIZE_MAX) *out = d->e[at].v;
  return at != SIZE_MAX;
}

/* --- Questions ---------------------------------------------------------------------------------------------------------------------- */
const char *sh_jj_type_name(jj_val v) {
  static const char *const names[] = {
      [JJ_MISSING] = "missing",  [JJ_UNDEF] = "Undefined", [JJ_NONE] = "NoneType", [JJ_BOOL] = "bool",     [JJ_INT] = "int",
      [JJ_BIG] = "int",          [JJ_FLOAT] = "float",     [JJ_STR] = "str",       [JJ_LIST] = "list",     [JJ_TUPLE] = "tuple",
      [JJ_DICT] = "dict",        [JJ_VIEW] = "dict_items", [JJ_RANGE] = "range",   [JJ_GEN] = "generator", [JJ_NS] = "Namespace",
      [JJ_LOOP] = "LoopContext", [JJ_MACRO] = "Macro",     [JJ_FUNC] = "function", [JJ_METHOD] = "method", [JJ_CYCLER] = "Cycler",
      [JJ_JOINER] = "Joiner"};
  if (v.kind == JJ_VIEW && v.view->what < 2) return v.view->what ? "dict_values" : "dict_keys";
  return names[v.kind];
}

bool sh_jj_truth(jj_ctx *c, jj_val v) {
  int64_t n = 0;
  bool ok;
  switch (v.kind) {
  case JJ_UNDEF:
  case JJ_NONE: return false;
  case JJ_BOOL: return v.b;
  case JJ_INT: return v.i != 0;
  case JJ_FLOAT: return v.f != 0;
  case JJ_STR: return v.s->len != 0;
  case JJ_LIST:
  case JJ_TUPLE: return v.l->n != 0;
  case JJ_DICT: return v.d->n != 0;
  case JJ_VIEW:
  case JJ_RANGE:
  case JJ_LOOP: return sh_jj_len(c, v, &ok, &n) == 0 && n != 0;
  default: return true;
  }
}

bool sh_jj_callable(jj_val v) {
  return v.kind == JJ_MACRO || v.kind == JJ_FUNC || v.kind == JJ_METHOD || v.kind == JJ_JOINER || v.kind == JJ_LOOP || v.kind == JJ_UNDEF;
}

bool sh_jj_as_int(jj_val v, int64_t *i) {
  if (v.kind != JJ_INT && v.kind != JJ_BOOL) return false;
  *i = v.kind == JJ_INT ? v.i : v.b;
  return true;
}

bool sh_jj_as_num(jj_val v, double *f) {
  switch (v.kind) {
  case JJ_BOOL: *f = v.b; return true;
  case JJ_INT: *f = (double)v.i; return true;
  case JJ_FLOAT: *f = v.f; return true;
  case JJ_BIG: {
    char buf[400];
    size_t n = v.s->len < sizeof buf ? v.s->len : sizeof buf - 1;
    memcpy(buf, v.s->p, n);
    buf[n] = 0;
    *f = v.s->len < sizeof buf ? strtod(buf, NULL) : buf[0] == '-' ? -HUGE_VAL : HUGE_VAL;
    return true;
  }
  default: return false;
  }
}

int sh_jj_len(jj_ctx *c, jj_val v, bool *ok, int64_t *n) {
  size_t len = 0;
  *ok = true;
  switch (v.kind) {
  case JJ_UNDEF: break;
  case JJ_STR:
    if (v.s->ncp == SIZE_MAX) JJ_TRY(sh_jj_step(c, v.s->len / 64));
    len = sh_jj_cps(v.s);
    break;
  case JJ_LIST:
  case JJ_TUPLE: len = v.l->n; break;
  case JJ_DICT: len = v.d->n; break;
  case JJ_VIEW: len = v.view->d->n; break;
  case JJ_RANGE: len = (size_t)v.r->n; break;
  case JJ_LOOP: JJ_TRY(sh_jj_loop_len(c, v.loop, &len)); break;
  default: *ok = false; break;
  }
  *n = (int64_t)len;
  return 0;
}

int sh_jj_enter_value(jj_ctx *c) { return ++c->vdepth > c->max_calls ? sh_jj_limit(c, "nesting") : sh_jj_step(c, 1); }

/* --- str() and repr() --------------------------------------------------------------------------------------------------------------- */
static int put_str(jj_ctx *c, const char *s) { return sh_jj_put(c, s, strlen(s)); }

static int write_repr_escape(jj_ctx *c, uint32_t cp) {
  char buf[16];
  if (cp == '\n' || cp == '\r' || cp == '\t') snprintf(buf, sizeof buf, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
  else if (cp < 0x100) snprintf(buf, sizeof buf, "\\x%02x", cp);
  else if (cp < 0x10000) snprintf(buf, sizeof buf, "\\u%04x", cp);
  else snprintf(buf, sizeof buf, "\\U%08x", cp);
  return put_str(c, buf);
}

static int write_str_repr(jj_ctx *c, const jj_str *s, bool markup) {
  char quote = memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len) ? '"' : '\'';
  if (markup) JJ_TRY(put_str(c, "Markup("));
  JJ_TRY(sh_jj_put(c, &quote, 1));
  size_t start = 0, k;
  for (size_t i = 0; i < s->len; i += k) {
    uint32_t cp = sh_jj_cp(s->p + i, s->len - i, &k);
    bool back = cp == '\\' || cp == (unsigned char)quote;
    if (!back && sh_jj_is_printable(cp)) continue;
    JJ_TRY(sh_jj_put(c, s->p + start, i - start));
    start = i + (back ? 0 : k);
    if (back) JJ_TRY(sh_jj_put(c, "\\", 1));
    else JJ_TRY(write_repr_escape(c, cp));
  }
  JJ_TRY(sh_jj_put(c, s->p + start, s->len - start));
  JJ_TRY(sh_jj_put(c, &quote, 1));
  return markup ? put_str(c, ")") : 0;
}

static int write_items(jj_ctx *c, const jj_list *l, const char *open, const char *close) {
  JJ_TRY(sh_jj_enter_value(c));
  JJ_TRY(put_str(c, open));
  for (size_t i = 0; i < l->n; i++) {
    if (i) JJ_TRY(put_str(c, ", "));
    JJ_TRY(sh_jj_write_repr(c, l->v[i]));
  }
  c->vdepth--;
  return put_str(c, close);
}

static int write_dict(jj_ctx *c, const jj_dict *d) {
  JJ_TRY(sh_jj_enter_value(c));
  JJ_TRY(put_str(c, "{"));
  for (size_t i = 0; i < d->n; i++) {
    if (i) JJ_TRY(put_str(c, ", "));
    JJ_TRY(sh_jj_write_repr(c, d->e[i].k));
    JJ_TRY(put_str(c, ": "));
    JJ_TRY(sh_jj_write_repr(c, d->e[i].v));
  }
  c->vdepth--;
  return put_str(c, "}");
}

static int write_view(jj_ctx *c, jj_val v) {
  jj_list *l;
  JJ_TRY(sh_jj_to_list(c, v, &l));
  JJ_TRY(put_str(c, sh_jj_type_name(v)));
  return write_items(c, l, "([", "])");
}

static int write_object(jj_ctx *c, jj_val v) {
  char buf[100];
  switch (v.kind) {
  case JJ_RANGE:
    if (v.r->step == 1) snprintf(buf, sizeof buf, "range(%lld, %lld)", (long long)v.r->start, (long long)v.r->stop);
    else snprintf(buf, sizeof buf, "range(%lld, %lld, %lld)", (long long)v.r->start, (long long)v.r->stop, (long long)v.r->step);
    return put_str(c, buf);
  case JJ_LOOP: {
    size_t n;
    JJ_TRY(sh_jj_loop_len(c, v.loop, &n));
    snprintf(buf, sizeof buf, "<LoopContext %lld/%zu>", (long long)sh_jj_loop_index(v.loop), n);
    return put_str(c, buf);
  }
  case JJ_MACRO:
    JJ_TRY(put_str(c, "<Macro "));
    JJ_TRY(write_str_repr(c, v.m->node->name, false));
    return put_str(c, ">");
  case JJ_NS:
    JJ_TRY(put_str(c, "<Namespace "));
    JJ_TRY(write_dict(c, v.d));
    return put_str(c, ">");
  case JJ_FUNC: snprintf(buf, sizeof buf, "<function %.60s>", v.fn->name); return put_str(c, buf);
  case JJ_METHOD: snprintf(buf, sizeof buf, "<built-in method %.60s>", v.bound->m->name); return put_str(c, buf);
  default: snprintf(buf, sizeof buf, "<%s object>", sh_jj_type_name(v)); return put_str(c, buf);
  }
}

int sh_jj_write_repr(jj_ctx *c, jj_val v) {
  char buf[40];
  switch (v.kind) {
  case JJ_STR: return write_str_repr(c, v.s, v.flag & JJ_MARKUP);
  case JJ_UNDEF: return put_str(c, "Undefined");
  case JJ_NONE: return put_str(c, "None");
  case JJ_BOOL: return put_str(c, v.b ? "True" : "False");
  case JJ_INT: snprintf(buf, sizeof buf, "%lld", (long long)v.i); return put_str(c, buf);
  case JJ_BIG: return sh_jj_put(c, v.s->p, v.s->len);
  case JJ_FLOAT: return sh_jj_put(c, buf, sh_jj_float_repr(v.f, buf));
  case JJ_LIST: return write_items(c, v.l, "[", "]");
  case JJ_TUPLE: return write_items(c, v.l, "(", v.l->n == 1 ? ",)" : ")");
  case JJ_DICT: return write_dict(c, v.d);
  case JJ_VIEW: return write_view(c, v);
  default: return write_object(c, v);
  }
}

int sh_jj_write(jj_ctx *c, jj_val v) {
  if (v.kind == JJ_STR) return sh_jj_put(c, v.s->p, v.s->len);
  return v.kind == JJ_UNDEF ? 0 : sh_jj_write_repr(c, v);
}

int sh_jj_to_str(jj_ctx *c, jj_val v, jj_val *out) {
  if (v.kind == JJ_STR) {
    *out = v;
    return 0;
  }
  size_t mark = c->out.len;
  JJ_TRY(sh_jj_write(c, v));
  return sh_jj_cut(c, mark, out);
}

int64_t sh_jj_range_at(const jj_range *r, int64_t i) { return (int64_t)((uint64_t)r->start + (uint64_t)i * (uint64_t)r->step); }

/* --- Iteration ---------------------------------------------------------------------------------------------------------------------- */
bool sh_jj_iterable(jj_val v) {
  switch (v.kind) {
  case JJ_UNDEF:
  case JJ_STR:
  case JJ_LIST:
  case JJ_TUPLE:
  case JJ_DICT:
  case JJ_VIEW:
  case JJ_RANGE:
  case JJ_GEN: return true;
  default: return false;
  }
}

int sh_jj_iter(jj_ctx *c, jj_val v, jj_iter *it) {
  if (!sh_jj_iterable(v)) return sh_jj_fail(c, "'%s' object is not iterable", sh_jj_type_name(v));
  *it = (jj_iter){v, 0};
  return 0;
}

static int view_item(jj_ctx *c, const jj_view *w, size_t i, jj_val *out) {
  const jj_entry *e = &w->d->e[i];
  if (w->what == 2) return sh_jj_pair(c, e->k, e->v, out);
  *out = w->what ? e->v : e->k;
  return 0;
}

int sh_jj_next(jj_ctx *c, jj_iter *it, bool *more, jj_val *out) {
  jj_val v = it->src;
  size_t k;
  JJ_TRY(sh_jj_step(c, 1));
  *more = true;
  switch (v.kind) {
  case JJ_LIST:
  case JJ_TUPLE:
    if (it->pos >= v.l->n) break;
    *out = v.l->v[it->pos++];
    return 0;
  case JJ_STR: /* pos counts bytes */
    if (it->pos >= v.s->len) break;
    sh_jj_cp(v.s->p + it->pos, v.s->len - it->pos, &k);
    JJ_TRY(sh_jj_str_ref(c, v.s->p + it->pos, k, out));
    out->s->ncp = 1;
    it->pos += k;
    return 0;
  case JJ_DICT:
    if (it->pos >= v.d->n) break;
    *out = v.d->e[it->pos++].k;
    return 0;
  case JJ_VIEW:
    if (it->pos >= v.view->d->n) break;
    return view_item(c, v.view, it->pos++, out);
  case JJ_RANGE:
    if (it->pos >= (size_t)v.r->n) break;
    *out = sh_jj_int(sh_jj_range_at(v.r, (int64_t)it->pos++));
    return 0;
  case JJ_GEN:
    if (v.g->pos >= v.g->l->n) break;
    *out = v.g->l->v[v.g->pos++];
    return 0;
  default: break;
  }
  *more = false;
  return 0;
}

int sh_jj_to_list(jj_ctx *c, jj_val v, jj_list **out) {
  jj_iter it;
  bool more = true;
  jj_val x;
  if (v.kind == JJ_LIST || v.kind == JJ_TUPLE) {
    *out = v.l;
    return 0;
  }
  JJ_TRY(sh_jj_iter(c, v, &it));
  if (!(*out = sh_jj_list(c, 0))) return sh_jj_nomem(c);
  for (;;) {
    JJ_TRY(sh_jj_next(c, &it, &more, &x));
    if (!more) return 0;
    JJ_TRY(sh_jj_push(c, *out, x));
  }
}

/* --- From JSON ---------------------------------------------------------------------------------------------------------------------- */
static int number(jj_ctx *c, const sh_json *j, jj_val *out) {
  int64_t i;
  if (strspn(j->s, "-0123456789") == j->len) {
    if (sh_parse_i64(j->s, &i) == 0) {
      *out = sh_jj_int(i);
      return 0;
    }
    JJ_TRY(sh_jj_str_ref(c, j->s, j->len, out));
    out->kind = JJ_BIG;
    return 0;
  }
  *out = sh_jj_float(strtod(j->s, NULL)); /* too large: inf, as Python reads it */
  return 0;
}

static int array(jj_ctx *c, const sh_json *j, jj_val *out) {
  jj_list *l = sh_jj_list(c, j->len);
  if (!l) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_enter_value(c));
  for (; l->n < j->len; l->n++) JJ_TRY(sh_jj_from_json(c, &j->items[l->n], &l->v[l->n]));
  c->vdepth--;
  *out = sh_jj_list_val(l);
  return 0;
}

int sh_jj_from_json(jj_ctx *c, const sh_json *j, jj_val *out) {
  jj_dict *d;
  JJ_TRY(sh_jj_step(c, 1));
  switch (j->type) {
  case SH_JSON_NULL: *out = sh_jj_none; return 0;
  case SH_JSON_BOOL: *out = sh_jj_bool(j->b); return 0;
  case SH_JSON_NUMBER: return number(c, j, out);
  case SH_JSON_STRING: return sh_jj_str_ref(c, j->s, j->len, out);
  case SH_JSON_ARRAY: return array(c, j, out);
  default: break;
  }
  if (!(d = sh_jj_dict(c))) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_enter_value(c));
  for (size_t i = 0; i < j->len; i++) {
    jj_val k, v;
    JJ_TRY(sh_jj_str_ref(c, j->members[i].key, j->members[i].key_len, &k));
    JJ_TRY(sh_jj_from_json(c, &j->members[i].value, &v));
    JJ_TRY(sh_jj_dict_set(c, d, k, v));
  }
  c->vdepth--;
  *out = (jj_val){.kind = JJ_DICT, .d = d};
  return 0;
}
