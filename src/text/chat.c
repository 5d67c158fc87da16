/* Chat requests to prompt text: checks the messages of a request, brings them into the shape its template reads, and runs the template.
 *
 * A sh_chat never changes after sh_chat_open; renders on any thread. What a request's messages turn into lives in the caller's arena.
 *
 * Templates differ in what they take as content: some only a string, some a list of parts, some both, and often not the same for every
 * role. vLLM finds out by looking for a loop over message.content in the syntax tree, which a macro already hides. Here the template is
 * asked: at open it renders small chats with a marked text as a string and as two parts, per role, and what comes out decides. The same is
 * done for content: null beside tool calls, which some templates need and others print as "None". A template that fails on all of them gets
 * strings.
 *
 * continue_final_message appends the tag transformers uses to the last text, and cuts the rendered text there: with the tag a template may
 * trim or move the text, and the cut is still found. */
#include "text/chat.h"

#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

typedef enum content_mode { TAKES_STRING, TAKES_BOTH, TAKES_PARTS } content_mode;
enum { ROLE_USER, ROLE_SYSTEM, ROLE_ASSISTANT, ROLE_TOOL, N_ROLES };
struct sh_chat {
  sh_jinja *t;
  content_mode mode[N_ROLES];
  bool null_content; /* an assistant's null content beside tool calls may stay null */
  bool no_memory;    /* while opening: a probe did not fail because of the template */
};

static const char TAG[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* --- Asking the template ------------------------------------------------------------------------------------------------------------ */
#define PROBE_A "Zq7first"
#define PROBE_B "Zq8second"
#define CALLS "\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"Zq9name\",\"arguments\":{}}}]"
#define RESULT "{\"role\":\"tool\",\"name\":\"Zq9name\",\"tool_call_id\":\"call00001\",\"content\":"
static const char *const CONTENT_STRING = "\"" PROBE_A "\"";
static const char *const CONTENT_PARTS = "[{\"type\":\"text\",\"text\":\"" PROBE_A "\"},{\"type\":\"text\",\"text\":\"" PROBE_B "\"}]";

/* Renders {"messages": [before content after]} to out; false when the template fails. */
static bool probe(sh_chat *c, const char *before, const char *content, const char *after, sh_buf *out) {
  static const sh_jinja_limits limits = {.max_output = 1 << 20, .max_steps = 200000, .max_memory = 8 << 20};
  static const char tail[] = "],\"tools\":null,\"documents\":null,\"add_generation_prompt\":true,\"bos_token\":\"\",\"eos_token\":\"\"}";
  sh_arena *a = sh_arena_new(1 << 20);
  sh_json *vars = NULL;
  sh_buf_reset(out);
  char *text = a ? sh_arena_printf(a, "{\"messages\":[%s%s%s%s", before, content, after, tail) : NULL;
  int rc = text ? sh_json_parse(text, strlen(text), NULL, a, &vars, NULL) : SH_ERR_NOMEM;
  if (!rc) rc = sh_jinja_render(c->t, vars, &limits, out, NULL);
  if (rc == SH_ERR_NOMEM) c->no_memory = true;
  sh_arena_free(a);
  return rc == 0;
}

static bool has(const sh_buf *b, const char *s) { return b->len && memmem(b->p, b->len, s, strlen(s)); }

static content_mode ask_content(sh_chat *c, const char *before, const char *after, sh_buf *out) {
  bool string = probe(c, before, CONTENT_STRING, after, out) && has(out, PROBE_A);
  bool parts = probe(c, before, CONTENT_PARTS, after, out) && has(out, PROBE_A) && has(out, PROBE_B) && !has(out, "'type'") &&
               !has(out, "\"type\"") && !has(out, "\\\"type\\\"");
  return !parts ? TAKES_STRING : string ? TAKES_BOTH : TAKES_PARTS;
}

static size_t count(const sh_buf *b, const char *s) {
  size_t n = 0, len = strlen(s);
  if (!b->len) return 0; /* then b->p may be NULL */
  for (const char *p = b->p, *end = p + b->len; (p = memmem(p, (size_t)(end - p), s, len)); p += len) n++;
  return n;
}

static bool ask_null(sh_chat *c, sh_buf *out) {
  static const char before[] = "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\"," CALLS ",\"content\":";
  static const char after[] = "}," RESULT "\"b\"}";
  if (!probe(c, before, "\"\"", after, out)) return probe(c, before, "null", after, out);
  size_t nones = count(out, "None"), calls = count(out, "Zq9name");
  return probe(c, before, "null", after, out) && count(out, "None") == nones && count(out, "Zq9name") >= calls;
}

int sh_chat_open(sh_chat **out, const char *template_text, size_t len, sh_error *e) {
  sh_buf text;
  *out = NULL;
  sh_chat *c = sh_calloc(1, sizeof *c);
  if (!c) return sh_fail(e, SH_ERR_NOMEM, "chat template: out of memory");
  int rc = sh_jinja_compile(&c->t, template_text, len, e);
  if (rc) {
    sh_chat_free(c);
    return sh_fail_in(e, rc, "chat template");
  }
  sh_buf_init(&text, 1 << 20);
  c->mode[ROLE_USER] = ask_content(c, "{\"role\":\"user\",\"content\":", "}", &text);
  c->mode[ROLE_SYSTEM] = ask_content(c, "{\"role\":\"system\",\"content\":", "},{\"role\":\"user\",\"content\":\"a\"}", &text);
  c->mode[ROLE_ASSISTANT] = ask_content(
      c, "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":", "},{\"role\":\"user\",\"content\":\"a\"}", &text);
  c->mode[ROLE_TOOL] =
      ask_content(c, "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\"," CALLS "}," RESULT, "}", &text);
  c->null_content = ask_null(c, &text);
  sh_buf_free(&text);
  if (c->no_memory) {
    sh_chat_free(c);
    return sh_fail(e, SH_ERR_NOMEM, "chat template: out of memory");
  }
  *out = c;
  return 0;
}

void sh_chat_free(sh_chat *c) {
  if (!c) return;
  sh_jinja_free(c->t);
  sh_free(c);
}

bool sh_chat_takes_parts(const sh_chat *c) { return c->mode[ROLE_USER] != TAKES_STRING; }

int sh_chat_render_raw(const sh_chat *c, const sh_json *vars, sh_buf *out, sh_error *e) {
  return sh_jinja_render(c->t, vars, NULL, out, e);
}

/* --- Preparing messages ------------------------------------------------------------------------------------------------------------- */
typedef struct prep {
  const sh_chat *c;
  sh_arena *a;
  sh_error *e;
  size_t i;          /* number of the message */
  content_mode mode; /* of its role */
  bool last_open;    /* its text gets the tag */
  bool tagged;
} prep;

static int nomem(prep *p) {
  if (sh_arena_left(p->a) < 4096) return sh_fail(p->e, SH_ERR_LIMIT, "messages: the request is too large");
  return sh_fail(p->e, SH_ERR_NOMEM, "messages: out of memory");
}

/* A copy of an object that may be changed; what its members point to is shared. */
static int copy_object(prep *p, const sh_json *from, sh_json **out) {
  sh_json *o = sh_json_new_object(p->a);
  sh_json_member *m = sh_arena_array(p->a, from->len, sizeof *m);
  if (!o || !m) return nomem(p);
  if (from->len) memcpy(m, from->members, from->len * sizeof *m);
  o->members = m;
  o->len = from->len;
  *out = o;
  return 0;
}

static int set(prep *p, sh_json *obj, const char *key, const sh_json *v) { return v && sh_json_set(p->a, obj, key, v) == 0 ? 0 : nomem(p); }

static int bad_type(prep *p, const char *field, const char *wanted, const sh_json *got) {
  return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].%s: wanted %s, got %s", p->i, field, wanted,
                 got ? sh_json_type_name(got->type) : "nothing");
}

/* The text of one part of a content list. */
static int part_text(prep *p, size_t k, const sh_json *part, const sh_json **text) {
  static const char *const texts[] = {"text", "input_text", "output_text"};
  static const char *const media[] = {"image", "image_url", "input_image", "video", "video_url", "input_video",
                                      "audio", "audio_url", "input_audio", "file",  "input_file"};
  const sh_json *type = sh_json_get(part, "type");
  *text = part;
  if (part->type == SH_JSON_STRING) return 0;
  if (part->type != SH_JSON_OBJECT)
    return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].content[%zu]: wanted an object, got %s", p->i, k, sh_json_type_name(part->type));
  if (!sh_json_is(type, SH_JSON_STRING))
    return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].content[%zu].type: wanted a string, got %s", p->i, k,
                   type ? sh_json_type_name(type->type) : "nothing");
  for (size_t i = 0; i < sizeof media / sizeof *media; i++)
    if (sh_json_eq_str(type, media[i]))
      return sh_fail(p->e, SH_ERR_UNSUPPORTED, "messages[%zu].content[%zu]: %s parts are not supported; send text", p->i, k, media[i]);
  const char *key = sh_json_eq_str(type, "refusal") ? "refusal" : NULL;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (sh_json_eq_str(type, texts[i])) key = "text";
  if (!key) return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].content[%zu].type: '%.60s' is not a known type of part", p->i, k, type->s);
  *text = sh_json_get(part, key);
  if (sh_json_is(*text, SH_JSON_STRING)) return 0;
  return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].content[%zu].%s: wanted a string, got %s", p->i, k, key,
                 *text ? sh_json_type_name((*text)->type) : "nothing");
}

/* s, with the tag behind it when it is the text to be continued. */
static sh_json *text_value(prep *p, const char *s, size_t n, bool tag) {
  if (!tag) return sh_json_new_string(p->a, s, n);
  char *w = sh_arena_alloc(p->a, n + sizeof TAG);
  if (!w) return NULL;
  if (n) memcpy(w, s, n);
  memcpy(w + n, TAG, sizeof TAG - 1);
  p->tagged = true;
  return sh_json_new_string(p->a, w, n + sizeof TAG - 1);
}

static int push_part(prep *p, sh_json *list, const char *s, size_t n, bool tag) {
  sh_json *part = sh_json_new_object(p->a);
  if (!part) return nomem(p);
  JJ_TRY(set(p, part, "type", sh_json_new_string(p->a, "text", 4)));
  JJ_TRY(set(p, part, "text", text_value(p, s, n, tag)));
  return sh_json_push(p->a, list, part) ? nomem(p) : 0;
}

/* A list of text parts: as it is, in its plain form, or joined with newlines (as vLLM joins them) for a template that wants a string. */
static int part_list(prep *p, const sh_json *content, sh_json **out) {
  const sh_json *text;
  size_t n = 0, w = 0;
  sh_json *list = sh_json_new_array(p->a);
  if (!list) return nomem(p);
  for (size_t k = 0; k < content->len; k++) {
    JJ_TRY(part_text(p, k, &content->items[k], &text));
    n += text->len + 1;
    if (p->mode != TAKES_STRING) JJ_TRY(push_part(p, list, text->s, text->len, p->last_open && k + 1 == content->len));
  }
  *out = list;
  if (p->mode != TAKES_STRING) return 0;
  char *s = sh_arena_alloc(p->a, n + 1);
  if (!s) return nomem(p);
  for (size_t k = 0; k < content->len; k++) {
    JJ_TRY(part_text(p, k, &content->items[k], &text));
    if (k) s[w++] = '\n';
    if (text->len) memcpy(s + w, text->s, text->len);
    w += text->len;
  }
  *out = text_value(p, s, w, p->last_open && content->len);
  return *out ? 0 : nomem(p);
}

static int prepare_content(prep *p, sh_json *msg, bool assistant) {
  const sh_json *content = sh_json_get(msg, "content");
  sh_json *v = NULL;
  if (!content || content->type == SH_JSON_NULL) {
    if (!assistant) return bad_type(p, "content", "a string or a list of parts", content);
    const sh_json *calls = sh_json_get(msg, "tool_calls");
    if (p->c->null_content && sh_json_is(calls, SH_JSON_ARRAY) && calls->len) v = sh_json_new_null(p->a);
    else v = p->mode == TAKES_PARTS ? sh_json_new_array(p->a) : sh_json_new_string(p->a, "", 0);
  } else if (content->type == SH_JSON_STRING) {
    if (p->mode == TAKES_PARTS) {
      if (!(v = sh_json_new_array(p->a))) return nomem(p);
      JJ_TRY(push_part(p, v, content->s, content->len, p->last_open));
    } else {
      v = text_value(p, content->s, content->len, p->last_open);
    }
  } else if (content->type == SH_JSON_ARRAY) {
    JJ_TRY(part_list(p, content, &v));
  } else {
    return bad_type(p, "content", "a string or a list of parts", content);
  }
  return set(p, msg, "content", v);
}

/* {"function": {"arguments": "{...}"}}: the string becomes the object it spells, which is what templates iterate over. */
static int prepare_call(prep *p, size_t k, const sh_json *call, sh_json **out) {
  const sh_json *fn = sh_json_get(call, "function"), *args = sh_json_get(fn, "arguments"), *name = sh_json_get(fn, "name");
  sh_json *f, *parsed;
  sh_error why = {0};
  char field[64];
  snprintf(field, sizeof field, "tool_calls[%zu]", k);
  if (!sh_json_is(call, SH_JSON_OBJECT)) return bad_type(p, field, "an object", call);
  snprintf(field, sizeof field, "tool_calls[%zu].function", k);
  if (!sh_json_is(fn, SH_JSON_OBJECT)) return bad_type(p, field, "an object", fn);
  snprintf(field, sizeof field, "tool_calls[%zu].function.name", k);
  if (!sh_json_is(name, SH_JSON_STRING)) return bad_type(p, field, "a string", name);
  snprintf(field, sizeof field, "tool_calls[%zu].function.arguments", k);
  JJ_TRY(copy_object(p, call, out));
  if (sh_json_is(args, SH_JSON_OBJECT)) return 0;
  if (!args || args->type == SH_JSON_NULL || (args->type == SH_JSON_STRING && args->len == 0)) {
    if (!(parsed = sh_json_new_object(p->a))) return nomem(p);
  } else if (args->type != SH_JSON_STRING) {
    return bad_type(p, field, "a string of JSON or an object", args);
  } else {
    int rc = sh_json_parse(args->s, args->len, NULL, p->a, &parsed, &why);
    if (rc == SH_ERR_NOMEM) return nomem(p);
    if (rc)
      return sh_fail(p->e, rc == SH_ERR_LIMIT ? SH_ERR_LIMIT : SH_ERR_ARG, "messages[%zu].%s: not valid JSON: %s", p->i, field, why.text);
    if (parsed->type != SH_JSON_OBJECT)
      return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].%s: wanted a JSON object, got %s", p->i, field, sh_json_type_name(parsed->type));
  }
  JJ_TRY(copy_object(p, fn, &f));
  JJ_TRY(set(p, f, "arguments", parsed));
  return set(p, *out, "function", f);
}

static int prepare_calls(prep *p, sh_json *msg) {
  const sh_json *calls = sh_json_get(msg, "tool_calls");
  sh_json *list, *call;
  if (!calls || calls->type == SH_JSON_NULL) return 0;
  if (calls->type != SH_JSON_ARRAY) return bad_type(p, "tool_calls", "a list", calls);
  if (!(list = sh_json_new_array(p->a))) return nomem(p);
  for (size_t k = 0; k < calls->len; k++) {
    JJ_TRY(prepare_call(p, k, &calls->items[k], &call));
    if (sh_json_push(p->a, list, call)) return nomem(p);
  }
  return set(p, msg, "tool_calls", list);
}

/* `reasoning` (vLLM's name) and `reasoning_content` (what templates read) stand for each other. */
static int prepare_reasoning(prep *p, sh_json *msg) {
  static const char *const names[] = {"reasoning_content", "reasoning"};
  for (int i = 0; i < 2; i++) {
    const sh_json *v = sh_json_get(msg, names[i]), *other = sh_json_get(msg, names[1 - i]);
    if (!v || v->type == SH_JSON_NULL) continue;
    if (v->type != SH_JSON_STRING) return bad_type(p, names[i], "a string", v);
    if (!other || other->type == SH_JSON_NULL) JJ_TRY(set(p, msg, names[1 - i], v));
  }
  return 0;
}

static int role_of(const sh_json *role) {
  if (sh_json_eq_str(role, "system") || sh_json_eq_str(role, "developer")) return ROLE_SYSTEM;
  if (sh_json_eq_str(role, "assistant")) return ROLE_ASSISTANT;
  return sh_json_eq_str(role, "tool") || sh_json_eq_str(role, "function") ? ROLE_TOOL : ROLE_USER;
}

/* One message of the request as the template will see it. A role this file does not know is the template's to judge. */
static int prepare_message(prep *p, const sh_json *in, sh_json **msg) {
  if (in->type != SH_JSON_OBJECT)
    return sh_fail(p->e, SH_ERR_ARG, "messages[%zu]: wanted an object, got %s", p->i, sh_json_type_name(in->type));
  const sh_json *role = sh_json_get(in, "role");
  if (!sh_json_is(role, SH_JSON_STRING)) return bad_type(p, "role", "a string", role);
  if (!role->len) return sh_fail(p->e, SH_ERR_ARG, "messages[%zu].role: it is empty", p->i);
  int kind = role_of(role);
  p->mode = p->c->mode[kind];
  JJ_TRY(copy_object(p, in, msg));
  if (sh_json_eq_str(role, "developer")) JJ_TRY(set(p, *msg, "role", sh_json_new_string(p->a, "system", 6)));
  JJ_TRY(prepare_calls(p, *msg));
  JJ_TRY(prepare_content(p, *msg, kind == ROLE_ASSISTANT));
  return prepare_reasoning(p, *msg);
}

static int prepare_messages(prep *p, const sh_chat_input *in, sh_json **out) {
  if (!in->messages || in->messages->type != SH_JSON_ARRAY)
    return sh_fail(p->e, SH_ERR_ARG, "messages: wanted a list, got %s", in->messages ? sh_json_type_name(in->messages->type) : "nothing");
  if (!in->messages->len) return sh_fail(p->e, SH_ERR_ARG, "messages: it is empty; send at least one message");
  if (!(*out = sh_json_new_array(p->a))) return nomem(p);
  for (p->i = 0; p->i < in->messages->len; p->i++) {
    sh_json *msg;
    p->last_open = in->continue_final_message && p->i + 1 == in->messages->len;
    JJ_TRY(prepare_message(p, &in->messages->items[p->i], &msg));
    if (sh_json_push(p->a, *out, msg)) return nomem(p);
  }
  if (in->continue_final_message && !p->tagged)
    return sh_fail(p->e, SH_ERR_ARG, "continue_final_message: messages[%zu] has no text to continue", in->messages->len - 1);
  return 0;
}

/* The template's variables: the request's own ones, then what every template may rely on. */
static int variables(prep *p, const sh_chat_input *in, sh_json **out) {
  static const char *const taken[] = {"messages", "tools", "add_generation_prompt", "continue_final_message"};
  sh_json *vars = NULL, *messages = NULL, *null = sh_json_new_null(p->a);
  if (in->kwargs && in->kwargs->type != SH_JSON_OBJECT)
    return sh_fail(p->e, SH_ERR_ARG, "chat_template_kwargs: wanted an object, got %s", sh_json_type_name(in->kwargs->type));
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
    if (sh_json_get(in->kwargs, taken[i]))
      return sh_fail(p->e, SH_ERR_ARG, "chat_template_kwargs.%s: a request has a field of its own for this", taken[i]);
  if (in->tools && in->tools->type != SH_JSON_ARRAY && in->tools->type != SH_JSON_NULL)
    return sh_fail(p->e, SH_ERR_ARG, "tools: wanted a list, got %s", sh_json_type_name(in->tools->type));
  JJ_TRY(prepare_messages(p, in, &messages));
  if (in->kwargs) JJ_TRY(copy_object(p, in->kwargs, &vars));
  else if (!(vars = sh_json_new_object(p->a))) return nomem(p);
  JJ_TRY(set(p, vars, "messages", messages));
  JJ_TRY(set(p, vars, "tools", in->tools ? in->tools : null));
  JJ_TRY(set(p, vars, "add_generation_prompt", sh_json_new_bool(p->a, in->add_generation_prompt)));
  if (!sh_json_get(vars, "documents")) JJ_TRY(set(p, vars, "documents", null));
  const char *bos = in->bos_token ? in->bos_token : "", *eos = in->eos_token ? in->eos_token : "";
  if (!sh_json_get(vars, "bos_token")) JJ_TRY(set(p, vars, "bos_token", sh_json_new_string(p->a, bos, strlen(bos))));
  if (!sh_json_get(vars, "eos_token")) JJ_TRY(set(p, vars, "eos_token", sh_json_new_string(p->a, eos, strlen(eos))));
  *out = vars;
  return 0;
}

/* --- Rendering ---------------------------------------------------------------------------------------------------------------------- */
/* Cuts the text at the last tag. Without the space that follows the tag the template has trimmed the text, and so would have trimmed its
 * end. */
static int cut_at_tag(prep *p, sh_buf *text) {
  size_t tag = sizeof TAG - 2, at = text->len;
  while (at > 0 && !(at >= tag && memcmp(text->p + at - tag, TAG, tag) == 0)) at--;
  if (!at) {
    return sh_fail(p->e, SH_ERR_ARG,
                   "continue_final_message: the template does not show the text of messages[%zu], so it cannot be continued", p->i - 1);
  }
  bool trimmed = !(at < text->len && text->p[at] == ' ');
  jj_str head = {text->p, at - tag, SIZE_MAX, NULL};
  const char *s;
  size_t n = head.len;
  if (trimmed) sh_jj_strip(&head, NULL, false, true, &s, &n);
  text->len = n;
  return 0;
}

int sh_chat_render(const sh_chat *c, const sh_chat_input *in, sh_arena *a, sh_buf *out, sh_error *e) {
  prep p = {.c = c, .a = a, .e = e};
  sh_json *vars = NULL;
  sh_buf text;
  if (in->continue_final_message && in->add_generation_prompt)
    return sh_fail(e, SH_ERR_ARG, "continue_final_message: cannot be used together with add_generation_prompt");
  JJ_TRY(variables(&p, in, &vars));
  if (!in->continue_final_message) return sh_jinja_render(c->t, vars, NULL, out, e);
  sh_buf_init(&text, 64u << 20);
  int rc = sh_jinja_render(c->t, vars, NULL, &text, e);
  if (!rc) rc = cut_at_tag(&p, &text);
  if (!rc && text.len && (rc = sh_buf_put(out, text.p, text.len)))
    sh_fail(e, rc, "the rendered prompt of %zu bytes does not fit", text.len);
  sh_buf_free(&text);
  return rc;
}
