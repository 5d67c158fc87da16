/* JSON: an arena-based tree and a writer. Own code because the packaged C libraries lose number text, \u0000, or limits.
 *
 * Reader: RFC 8259, one value, UTF-8 checked. Strings are decoded, carry their length (they may hold NUL) and are also
 * NUL-terminated. Numbers keep their text. A lone surrogate escape becomes U+FFFD. Duplicate keys are kept; lookup finds the last,
 * as Python does. NaN, Infinity, comments, trailing commas and a BOM are refused. */
#ifndef SH_BASE_JSON_H
#define SH_BASE_JSON_H

#include "base/err.h"
#include "base/mem.h"

typedef enum sh_json_type { SH_JSON_NULL, SH_JSON_BOOL, SH_JSON_NUMBER, SH_JSON_STRING, SH_JSON_ARRAY, SH_JSON_OBJECT } sh_json_type;

typedef struct sh_json sh_json;
typedef struct sh_json_member sh_json_member;
struct sh_json {
  sh_json_type type;
  bool b;                   /* BOOL */
  uint8_t private_cap_log2; /* builders: items/members have room for 2^this; 0 = exactly len */
  const char *s;            /* STRING: decoded bytes; NUMBER: its text. Both NUL-terminated, len without the NUL */
  size_t len;               /* STRING, NUMBER: bytes; ARRAY: items; OBJECT: members */
  sh_json *items;           /* ARRAY [len] */
  sh_json_member *members;  /* OBJECT [len], in file order */
};
struct sh_json_member {
  const char *key;
  size_t key_len;
  sh_json value;
};

typedef struct sh_json_limits {
  int max_depth;
  size_t max_nodes;
} sh_json_limits; /* 0 = the defaults: 128 levels, 16 million values */

/* Parses text[0..n) into `a` (borrowed: the tree lives as long as the arena). Errors: SH_ERR_FORMAT with line and column, SH_ERR_LIMIT,
 * SH_ERR_NOMEM. */
int sh_json_parse(const char *text, size_t n, const sh_json_limits *lim, sh_arena *a, sh_json **out, sh_error *e);

const char *sh_json_type_name(sh_json_type t);                       /* "null", "boolean", "number", "string", "array", "object" */
const char *sh_json_type_phrase(sh_json_type t);                     /* with its article: "an array"; "null" has none */
const sh_json *sh_json_get(const sh_json *obj, const char *key);     /* NULL: not an object, or no such key. O(members) or better */
const sh_json *sh_json_path(const sh_json *obj, const char *dotted); /* "text_config.rope_parameters.rope_theta" */
bool sh_json_is(const sh_json *v, sh_json_type t);                   /* false for NULL */
bool sh_json_eq_str(const sh_json *v, const char *s);                /* a STRING equal to s */
/* Conversions: SH_ERR_ARG when v is NULL, of another type, not integral (1.0 and 1e3 are integral) or out of range. */
int sh_json_int(const sh_json *v, int64_t *out);
int sh_json_double(const sh_json *v, double *out); /* finite; overflow is SH_ERR_ARG */
/* Builders for trees made in code (template variables). NULL on allocation failure. Keys and strings are copied into `a`. */
sh_json *sh_json_new_object(sh_arena *a);
sh_json *sh_json_new_array(sh_arena *a);
sh_json *sh_json_new_string(sh_arena *a, const char *s, size_t n);
sh_json *sh_json_new_int(sh_arena *a, int64_t v);
sh_json *sh_json_new_bool(sh_arena *a, bool b);
sh_json *sh_json_new_null(sh_arena *a);
/* Replaces or appends a member; copies the node, shares what it points to. */
int sh_json_set(sh_arena *a, sh_json *obj, const char *key, const sh_json *value);
/* Appends a member without looking for another of that name: amortised O(1), where n sets cost O(n^2). A look-up then finds the last. */
int sh_json_add(sh_arena *a, sh_json *obj, const char *key, size_t key_len, const sh_json *value);
int sh_json_push(sh_arena *a, sh_json *arr, const sh_json *value); /* the same for an item; amortised O(1) */

/* --- Writer: appends compact JSON to a buffer and puts the commas. Invalid UTF-8 in strings becomes U+FFFD; U+0085, U+2028 and U+2029 are
 * escaped. Errors are sticky in the buffer (buf->failed). Depth at most 64. */
typedef struct sh_jw {
  sh_buf *buf;
  uint64_t private_first;
  uint64_t private_obj;
  int private_depth;
  bool private_key;
} sh_jw;
void sh_jw_init(sh_jw *w, sh_buf *buf);
void sh_jw_obj(sh_jw *w);
void sh_jw_end_obj(sh_jw *w);
void sh_jw_arr(sh_jw *w);
void sh_jw_end_arr(sh_jw *w);
void sh_jw_key(sh_jw *w, const char *key);
void sh_jw_str(sh_jw *w, const char *s); /* NULL writes null */
void sh_jw_strn(sh_jw *w, const char *s, size_t n);
void sh_jw_int(sh_jw *w, int64_t v);
void sh_jw_double(sh_jw *w, double v); /* shortest text that reads back equal; non-finite writes null */
void sh_jw_bool(sh_jw *w, bool b);
void sh_jw_null(sh_jw *w);
void sh_jw_value(sh_jw *w, const sh_json *v); /* a tree, number text untouched */
/* key + value in one call */
void sh_jw_kstr(sh_jw *w, const char *key, const char *s);
void sh_jw_kint(sh_jw *w, const char *key, int64_t v);
void sh_jw_kdouble(sh_jw *w, const char *key, double v);
void sh_jw_kbool(sh_jw *w, const char *key, bool b);
void sh_jw_knull(sh_jw *w, const char *key);
/* Appends compact JSON with line breaks and indents of two, for files that people read and edit. s[0..n) comes from a writer. */
int sh_json_indent(sh_buf *out, const char *s, size_t n);

#endif
