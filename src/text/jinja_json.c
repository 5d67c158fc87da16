/* The two functions transformers adds with a life of their own: the tojson filter (json.dumps with ensure_ascii off) and strftime_now.
 *
 * json.dumps and not base/json's writer: a template's output is part of what a model was trained on, so separators, indentation, number
 * text and escapes must be Python's to the byte. */
#include "text/jinja_int.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

typedef struct dumper {
  jj_ctx *c;
  bool ascii, pretty, sort;
  const jj_str *indent;     /* one level */
  const jj_str *item, *key; /* separators */
  int level;
} dumper;

static int lit(dumper *d, const char *s) { return sh_jj_put(d->c, s, strlen(s)); }

static int escape_char(dumper *d, uint32_t cp) {
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  char buf[16];
  const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
  if (hit) snprintf(buf, sizeof buf, "\\%c", to[hit - from]);
  else if (cp < 0x10000) snprintf(buf, sizeof buf, "\\u%04x", cp);
  else snprintf(buf, sizeof buf, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + (cp & 0x3ff));
  return lit(d, buf);
}

static int dump_str(dumper *d, const jj_str *s) {
  size_t start = 0, k;
  JJ_TRY(lit(d, "\""));
  for (size_t i = 0; i < s->len; i += k) {
    unsigned char ch = (unsigned char)s->p[i];
    uint32_t cp = ch;
    k = 1;
    if (ch >= 0x80) {
      if (!d->ascii) continue;
      cp = sh_jj_cp(s->p + i, s->len - i, &k);
    } else if (ch >= 0x20 && ch != '"' && ch != '\\') {
      continue;
    }
    JJ_TRY(sh_jj_put(d->c, s->p + start, i - start));
    JJ_TRY(escape_char(d, cp));
    start = i + k;
  }
  JJ_TRY(sh_jj_put(d->c, s->p + start, s->len - start));
  return lit(d, "\"");
}

static int dump_float(dumper *d, double f) {
  char buf[40];
  if (isnan(f)) return lit(d, "NaN");
  if (isinf(f)) return lit(d, f < 0 ? "-Infinity" : "Infinity");
  return sh_jj_put(d->c, buf, sh_jj_float_repr(f, buf));
}

static int newline(dumper *d) {
  if (!d->pretty) return 0;
  JJ_TRY(lit(d, "\n"));
  for (int i = 0; i < d->level; i++) JJ_TRY(sh_jj_put(d->c, d->indent->p, d->indent->len));
  return 0;
}

static int dump(dumper *d, jj_val v);

static int dump_list(dumper *d, const jj_list *l) {
  if (!l->n) return lit(d, "[]");
  JJ_TRY(sh_jj_enter_value(d->c));
  JJ_TRY(lit(d, "["));
  d->level++;
  for (size_t i = 0; i < l->n; i++) {
    if (i) JJ_TRY(sh_jj_put(d->c, d->item->p, d->item->len));
    JJ_TRY(newline(d));
    JJ_TRY(dump(d, l->v[i]));
  }
  d->level--;
  d->c->vdepth--;
  JJ_TRY(newline(d));
  return lit(d, "]");
}

static int dump_key(dumper *d, jj_val k) {
  switch (k.kind) {
  case JJ_STR: return dump_str(d, k.s);
  case JJ_BOOL:
  case JJ_NONE:
  case JJ_INT:
  case JJ_BIG:
  case JJ_FLOAT:
    JJ_TRY(lit(d, "\""));
    JJ_TRY(dump(d, k));
    return lit(d, "\"");
  default: return sh_jj_fail(d->c, "keys must be str, int, float, bool or None, not %s", sh_jj_type_name(k));
  }
}

/* The entries in the order they are written. */
static int sorted_entries(dumper *d, const jj_dict *m, jj_val *order) {
  jj_val *keys = sh_jj_alloc(d->c, m->n, sizeof *keys);
  if (!keys) return sh_jj_nomem(d->c);
  for (size_t i = 0; i < m->n; i++) {
    order[i] = sh_jj_int((int64_t)i);
    keys[i] = m->e[i].k;
  }
  return d->sort ? sh_jj_sort(d->c, order, keys, m->n, false) : 0;
}

static int dump_dict(dumper *d, const jj_dict *m) {
  if (!m->n) return lit(d, "{}");
  jj_val *order = d->sort ? sh_jj_alloc(d->c, m->n, sizeof *order) : NULL;
  if (d->sort && !order) return sh_jj_nomem(d->c);
  if (d->sort) JJ_TRY(sorted_entries(d, m, order));
  JJ_TRY(sh_jj_enter_value(d->c));
  JJ_TRY(lit(d, "{"));
  d->level++;
  for (size_t i = 0; i < m->n; i++) {
    const jj_entry *e = &m->e[order ? (size_t)order[i].i : i];
    if (i) JJ_TRY(sh_jj_put(d->c, d->item->p, d->item->len));
    JJ_TRY(newline(d));
    JJ_TRY(dump_key(d, e->k));
    JJ_TRY(sh_jj_put(d->c, d->key->p, d->key->len));
    JJ_TRY(dump(d, e->v));
  }
  d->level--;
  d->c->vdepth--;
  JJ_TRY(newline(d));
  return lit(d, "}");
}

static int dump(dumper *d, jj_val v) {
  JJ_TRY(sh_jj_step(d->c, 1));
  switch (v.kind) {
  case JJ_NONE: return lit(d, "null");
  case JJ_BOOL: return lit(d, v.b ? "true" : "false");
  case JJ_INT:
  case JJ_BIG: return sh_jj_write_repr(d->c, v);
  case JJ_FLOAT: return dump_float(d, v.f);
  case JJ_STR: return dump_str(d, v.s);
  case JJ_LIST:
  case JJ_TUPLE: return dump_list(d, v.l);
  case JJ_DICT: return dump_dict(d, v.d);
  default: return sh_jj_fail(d->c, "Object of type %s is not JSON serializable", sh_jj_type_name(v));
  }
}

/* indent: a number of spaces or the text itself. */
static int set_indent(dumper *d, jj_val v, jj_val *text) {
  int64_t n;
  if (!jj_given(v) || v.kind == JJ_NONE) return 0;
  d->pretty = true;
  if (v.kind == JJ_STR) {
    *text = v;
    return 0;
  }
  if (!sh_jj_as_int(v, &n)) return sh_jj_fail(d->c, "tojson: indent must be a number or a string, not %s", sh_jj_type_name(v));
  if (n > 100) return sh_jj_fail(d->c, "tojson: indent of %lld", (long long)n);
  static const char spaces[] = "                                                                                                    ";
  return sh_jj_str_ref(d->c, spaces, n > 0 ? (size_t)n : 0, text);
}

int sh_jj_tojson(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  jj_val indent = {.kind = JJ_NONE}, item, key;
  dumper d = {.c = c};
  size_t mark = c->out.len;
  d.ascii = jj_given(a->v[0]) && sh_jj_truth(c, a->v[0]);
  JJ_TRY(sh_jj_str_ref(c, "", 0, &indent));
  JJ_TRY(set_indent(&d, a->v[1], &indent));
  JJ_TRY(sh_jj_str_ref(c, ", ", d.pretty ? 1 : 2, &item));
  JJ_TRY(sh_jj_str_ref(c, ": ", 2, &key));
  if (jj_given(a->v[2]) && a->v[2].kind != JJ_NONE) {
    jj_list *l;
    JJ_TRY(sh_jj_to_list(c, a->v[2], &l));
    if (l->n != 2 || l->v[0].kind != JJ_STR || l->v[1].kind != JJ_STR) return sh_jj_fail(c, "tojson: separators must be two strings");
    item = l->v[0];
    key = l->v[1];
  }
  d.sort = jj_given(a->v[3]) && sh_jj_truth(c, a->v[3]);
  d.indent = indent.s;
  d.item = item.s;
  d.key = key.s;
  JJ_TRY(dump(&d, self));
  return sh_jj_cut(c, mark, out);
}

/* datetime.now().strftime(format): local time; %f is Python's own (microseconds). */
int sh_jj_strftime_now(jj_ctx *c, jj_val self, jj_args *a, jj_val *out) {
  struct timeval tv;
  struct tm tm;
  char fmt[512], text[2048];
  size_t n = 0;
  (void)self;
  if (a->v[0].kind != JJ_STR) return sh_jj_fail(c, "strftime_now wants a format string, not %s", sh_jj_type_name(a->v[0]));
  const jj_str *s = a->v[0].s;
  if (gettimeofday(&tv, NULL) || !localtime_r(&tv.tv_sec, &tm)) return sh_jj_fail(c, "the clock cannot be read");
  for (size_t i = 0; i < s->len; i++) {
    if (n + 8 >= sizeof fmt || !s->p[i]) return sh_jj_fail(c, "strftime_now: the format is too long");
    if (s->p[i] == '%' && i + 1 < s->len && s->p[i + 1] == 'f') {
      n += (size_t)snprintf(fmt + n, sizeof fmt - n, "%06ld", (long)tv.tv_usec);
      i++;
      continue;
    }
    if (s->p[i] == '%' && i + 1 < s->len && (s->p[i + 1] == 'z' || s->p[i + 1] == 'Z')) { /* now() has no time zone */
      i++;
      continue;
    }
    fmt[n++] = s->p[i];
    if (s->p[i] == '%' && i + 1 < s->len) fmt[n++] = s->p[++i];
  }
  fmt[n++] = '.'; /* so that an empty result is told from an error */
  fmt[n] = 0;
  n = strftime(text, sizeof text, fmt, &tm);
  if (!n) return sh_jj_fail(c, "strftime_now: the result is too long");
  return sh_jj_str(c, text, n - 1, out);
}
