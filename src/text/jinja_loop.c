/* The for statement and its loop variable.
 *
 * Items are pulled one by one, also through the loop's own `if`, as jinja2's generators do: a condition may read a namespace that the body
 * changes. What loop.last, loop.nextitem need is one item of look-ahead, and loop.length of a source without a length reads the rest into a
 * list. Every iteration has fresh variables; the scope's memory is used again unless a macro defined in the body closed over it. */
#include "text/jinja_int.h"

#include <string.h>

struct jj_loop {
  const jj_node *node;
  jj_scope *outer, *test; /* where the loop stands; scope of its condition */
  jj_iter it;
  bool filtered; /* items still pass the condition */
  bool has_after, has_len;
  int64_t index0;
  int depth0;
  size_t len;
  jj_val current, before, after;
  jj_list *changed; /* arguments of the last loop.changed() */
};

/* The next item of the source that passes the condition. */
static int pull(jj_ctx *c, jj_loop *l, bool *more, jj_val *out) {
  for (;;) {
    jj_val v;
    JJ_TRY(sh_jj_next(c, &l->it, more, out));
    if (!*more || !l->filtered) return 0;
    jj_scope *scope = c->scope;
    l->test->n = 0;
    c->scope = l->test;
    int rc = sh_jj_assign(c, l->node->a, *out);
    if (!rc) rc = sh_jj_eval(c, l->node->c, &v);
    c->scope = scope;
    JJ_TRY(rc);
    if (sh_jj_truth(c, v)) return 0;
  }
}

static int peek(jj_ctx *c, jj_loop *l, bool *there) {
  if (!l->has_after) JJ_TRY(pull(c, l, &l->has_after, &l->after));
  *there = l->has_after;
  return 0;
}

static int advance(jj_ctx *c, jj_loop *l, bool *more) {
  jj_val v = l->after;
  *more = l->has_after;
  if (!l->has_after) JJ_TRY(pull(c, l, more, &v));
  l->has_after = false;
  if (!*more) return 0;
  l->index0++;
  l->before = l->current;
  l->current = v;
  return 0;
}

int64_t sh_jj_loop_index(const jj_loop *l) { return l->index0 + 1; }

int sh_jj_loop_len(jj_ctx *c, jj_loop *l, size_t *n) {
  bool ok = false, more = true;
  int64_t len = 0;
  jj_val v;
  if (!l->has_len) {
    if (!l->filtered) JJ_TRY(sh_jj_len(c, l->it.src, &ok, &len));
    if (!ok) {
      jj_list *rest = sh_jj_list(c, 0);
      if (!rest) return sh_jj_nomem(c);
      for (;;) {
        JJ_TRY(pull(c, l, &more, &v));
        if (!more) break;
        JJ_TRY(sh_jj_push(c, rest, v));
      }
      len = (int64_t)rest->n + l->index0 + 1 + l->has_after;
      l->it = (jj_iter){sh_jj_list_val(rest), 0};
      l->filtered = false;
    }
    l->len = (size_t)len;
    l->has_len = true;
  }
  *n = l->len;
  return 0;
}

static int neighbour(jj_ctx *c, jj_loop *l, bool next, jj_val *out) {
  bool there = l->index0 > 0;
  if (next) JJ_TRY(peek(c, l, &there));
  if (!there) return sh_jj_undef(c, next ? "there is no next item" : "there is no previous item", out);
  *out = next ? l->after : l->before;
  return 0;
}

int sh_jj_loop_attr(jj_ctx *c, jj_loop *l, const jj_str *name, bool *found, jj_val *out) {
  static const char *const names[] = {"index",     "index0", "first",  "last",     "length",  "revindex",
                                      "revindex0", "depth",  "depth0", "previtem", "nextitem"};
  size_t i = 0, n = sizeof names / sizeof *names, len = 0;
  bool there = false;
  while (i < n && !sh_jj_str_is(name, names[i])) i++;
  *found = i < n;
  if (i >= 4 && i <= 6) JJ_TRY(sh_jj_loop_len(c, l, &len));
  switch (i) {
  case 0: *out = sh_jj_int(l->index0 + 1); break;
  case 1: *out = sh_jj_int(l->index0); break;
  case 2: *out = sh_jj_bool(l->index0 == 0); break;
  case 3:
    JJ_TRY(peek(c, l, &there));
    *out = sh_jj_bool(!there);
    break;
  case 4: *out = sh_jj_int((int64_t)len); break;
  case 5: *out = sh_jj_int((int64_t)len - l->index0); break;
  case 6: *out = sh_jj_int((int64_t)len - l->index0 - 1); break;
  case 7: *out = sh_jj_int(l->depth0 + 1); break;
  case 8: *out = sh_jj_int(l->depth0); break;
  case 9:
  case 10: return neighbour(c, l, i == 10, out);
  default: break;
  }
  return 0;
}

static int cycle(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  if (a->nkw) return sh_jj_fail(c, "loop.cycle takes no keyword arguments");
  if (!a->n) return sh_jj_fail(c, "no items for cycling given");
  *out = a->v[self.loop->index0 % a->n];
  return 0;
}

static int changed(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_loop *l = self.loop;
  bool same = false;
  if (a->nkw) return sh_jj_fail(c, "loop.changed takes no keyword arguments");
  jj_list *now = sh_jj_list(c, (size_t)a->n);
  if (!now) return sh_jj_nomem(c);
  if (a->n) memcpy(now->v, a->v, (size_t)a->n * sizeof *now->v);
  now->n = (size_t)a->n;
  if (l->changed) JJ_TRY(sh_jj_eq(c, (jj_val){.kind = JJ_TUPLE, .l = l->changed}, (jj_val){.kind = JJ_TUPLE, .l = now}, &same));
  if (!same) l->changed = now;
  *out = sh_jj_bool(!same);
  return 0;
}

const jj_builtin *sh_jj_loop_method(const jj_str *name) {
  static const jj_builtin t[] = {{"cycle", cycle, NULL, 0, JJ_LOOP}, {"changed", changed, NULL, 0, JJ_LOOP}};
  return sh_jj_table_find(t, 2, name->p, name->len);
}

/* One iteration in its own scope. */
static int iteration(jj_ctx *c, jj_loop *l, jj_scope **scope) {
  if (!*scope || (*scope)->captured) {
    if (!(*scope = sh_jj_scope_new(c, l->outer))) return sh_jj_nomem(c);
  }
  (*scope)->n = 0;
  c->scope = *scope;
  JJ_TRY(sh_jj_set_var(c, c->t->special[JJ_LOOP_NAME], (jj_val){.kind = JJ_LOOP, .loop = l}));
  JJ_TRY(sh_jj_assign(c, l->node->a, l->current));
  return sh_jj_body(c, l->node->body);
}

static int run(jj_ctx *c, const jj_node *n, jj_scope *outer, jj_val source, int depth0) {
  jj_loop *l = sh_jj_alloc(c, 1, sizeof *l);
  jj_scope *scope = NULL, *before = c->scope;
  bool more = true, whole = false; /* whole: one iteration ran to its end; jinja2's else asks that, not whether there were items */
  if (!l) return sh_jj_nomem(c);
  *l = (jj_loop){.node = n, .outer = outer, .filtered = n->c != NULL, .index0 = -1, .depth0 = depth0};
  if (n->c && !(l->test = sh_jj_scope_new(c, outer))) return sh_jj_nomem(c);
  JJ_TRY(sh_jj_iter(c, source, &l->it));
  for (;;) {
    JJ_TRY(advance(c, l, &more));
    if (!more) break;
    int rc = iteration(c, l, &scope);
    c->scope = before;
    if (rc == JJ_BREAK) break;
    if (rc && rc != JJ_CONTINUE) return rc;
    whole |= rc == 0;
  }
  if (whole || !n->body2) return 0;
  if (!(c->scope = sh_jj_scope_new(c, outer))) return sh_jj_nomem(c);
  int rc = sh_jj_body(c, n->body2);
  c->scope = before;
  return rc;
}

int sh_jj_for(jj_ctx *c, const jj_node *n) {
  jj_val source;
  JJ_TRY(sh_jj_eval(c, n->b, &source));
  return run(c, n, c->scope, source, 0);
}

int sh_jj_loop_call(jj_ctx *c, jj_loop *l, jj_args *a, jj_val *out) {
  size_t mark = c->out.len;
  if (!l->node->flag) return sh_jj_fail(c, "The loop must have the 'recursive' marker to be called recursively.");
  if (a->n != 1 || a->nkw) return sh_jj_fail(c, "a recursive loop takes one argument");
  if (++c->calls > c->max_calls) return sh_jj_limit(c, "depth");
  JJ_TRY(run(c, l->node, l->outer, a->v[0], l->depth0 + 1));
  c->calls--;
  return sh_jj_cut(c, mark, out);
}
