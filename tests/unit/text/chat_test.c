/* Chat requests to prompts: the golden renders of transformers, and what is done to messages before a template sees them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

#define GOLDEN "tests/golden/text/"

/* Templates of the kinds that exist: content glued to a string; a loop over parts only; both, without a macro; null wanted. */
static const char STRINGS[] =
    "{% for m in messages %}<{{ m['role'] }}>{{ '' + m['content'] }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
static const char PARTS[] =
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.type }}:{{ p.text }}]{% endfor %}</>{% endfor %}";
static const char BOTH[] = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in "
                           "m.content %}{% if p['type'] == 'text' %}"
                           "{{ p['text'] }}{% endif %}{% endfor %}{% endif %}</>{% endfor %}";
static const char NULLS[] = "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}call {{ c.function.name }}({{ "
                            "c.function.arguments|tojson }})"
                            "{% endfor %}{% else %}{{ m.role ~ ':' ~ m.content }};{% endif %}{% endfor %}";

typedef struct rig {
  sh_arena *a;
  sh_chat *c;
  sh_buf out;
  sh_error e;
  int rc;
} rig;

static sh_json *parse(rig *r, const char *text) {
  sh_json *j = NULL;
  if (text && sh_json_parse(text, strlen(text), NULL, r->a, &j, &r->e)) fail_msg("%s: %s", text, r->e.text);
  return j;
}

static rig open_chat(const char *template_text) {
  rig r = {.a = sh_arena_new(64 << 20)};
  sh_buf_init(&r.out, 16 << 20);
  if (sh_chat_open(&r.c, template_text, strlen(template_text), &r.e)) fail_msg("%s", r.e.text);
  return r;
}

static void done(rig *r) {
  sh_chat_free(r->c);
  sh_buf_free(&r->out);
  sh_arena_free(r->a);
}

static void run(rig *r, const char *messages, const char *kwargs, bool generate, bool go_on) {
  sh_chat_input in = {
      .messages = parse(r, messages), .kwargs = parse(r, kwargs), .add_generation_prompt = generate, .continue_final_message = go_on};
  sh_buf_reset(&r->out);
  r->e.text[0] = 0;
  r->rc = sh_chat_render(r->c, &in, r->a, &r->out, &r->e);
}

static void assert_prompt(rig *r, const char *messages, const char *want) {
  run(r, messages, NULL, false, false);
  if (r->rc) fail_msg("%s: %s", messages, r->e.text);
  assert_string_equal(r->out.p ? r->out.p : "", want);
}

static void assert_refused(rig *r, const char *messages, int code, const char *text) {
  run(r, messages, NULL, false, false);
  assert_int_equal(r->rc, code);
  if (strncmp(r->e.text, text, strlen(text)) != 0) fail_msg("'%s' does not begin with '%s'", r->e.text, text);
  assert_int_equal(r->out.len, 0);
}

static char *read_text(const char *path) {
  char *text;
  size_t n;
  sh_error e;
  if (sh_file_read(path, 16 << 20, &text, &n, &e)) fail_msg("%s", e.text);
  return text;
}

/* One line of chat_template_cases.jsonl: its fields are the template's variables, with the defaults that make_template_cases.py used. */
static void check_case(rig *r, sh_json *j) {
  const sh_json *want = sh_json_get(j, "expect"), *error = sh_json_get(j, "error"), *yes = sh_json_new_bool(r->a, true),
                *null = sh_json_new_null(r->a);
  const char *const defaults[] = {"tools", "documents", "add_generation_prompt"};
  for (int i = 0; i < 3; i++)
    if (!sh_json_get(j, defaults[i])) assert_int_equal(sh_json_set(r->a, j, defaults[i], i == 2 ? yes : null), 0);
  assert_int_equal(sh_json_set(r->a, j, "bos_token", sh_json_new_string(r->a, "<s>", 3)), 0);
  assert_int_equal(sh_json_set(r->a, j, "eos_token", sh_json_new_string(r->a, "</s>", 4)), 0);
  sh_buf_reset(&r->out);
  r->rc = sh_chat_render_raw(r->c, j, &r->out, &r->e);
  if (want) {
    if (r->rc) fail_msg("%s", r->e.text);
    assert_string_equal(r->out.p ? r->out.p : "", want->s);
  } else {
    static const char raised[] = "TemplateError: ";
    assert_int_equal(strncmp(error->s, raised, sizeof raised - 1), 0);
    assert_int_equal(r->rc, SH_ERR_ARG);
    assert_string_equal(r->e.text, error->s + sizeof raised - 1);
  }
}

static void qwen_template_renders_as_transformers_does(void **state) {
  (void)state;
  char *template_text = read_text(GOLDEN "chat_template.jinja"), *cases = read_text(GOLDEN "chat_template_cases.jsonl");
  rig r = open_chat(template_text);
  int n = 0;
  for (char *p = cases, *end; *p; p = end + 1, n++) {
    end = strchr(p, '\n');
    assert_non_null(end);
    *end = 0;
    check_case(&r, parse(&r, p));
  }
  assert_int_equal(n, 34);
  assert_true(sh_chat_takes_parts(r.c));
  done(&r);
  sh_free(cases);
  sh_free(template_text);
}

/* The same requests through sh_chat_render: what was prepared must not change what a good template says. */
static void preparing_messages_does_not_change_golden_renders(void **state) {
  (void)state;
  char *template_text = read_text(GOLDEN "chat_template.jinja"), *cases = read_text(GOLDEN "chat_template_cases.jsonl");
  rig r = open_chat(template_text);
  int n = 0;
  for (char *p = cases, *end; *p; p = end + 1) {
    end = strchr(p, '\n');
    *end = 0;
    sh_json *j = parse(&r, p);
    const sh_json *want = sh_json_get(j, "expect"), *prompt = sh_json_get(j, "add_generation_prompt"),
                  *think = sh_json_get(j, "enable_thinking");
    if (!want || strstr(p, "\"image") || strstr(p, "[{\"role\": \"user\", \"content\": null}]")) continue;
    sh_json *kwargs = sh_json_new_object(r.a);
    if (think) assert_int_equal(sh_json_set(r.a, kwargs, "enable_thinking", think), 0);
    sh_chat_input in = {.messages = sh_json_get(j, "messages"),
                        .tools = sh_json_get(j, "tools"),
                        .kwargs = kwargs,
                        .add_generation_prompt = !prompt || prompt->b};
    sh_buf_reset(&r.out);
    r.rc = sh_chat_render(r.c, &in, r.a, &r.out, &r.e);
    if (r.rc) fail_msg("%s: %s", p, r.e.text);
    assert_string_equal(r.out.p, want->s);
    n++;
  }
  assert_true(n >= 20);
  done(&r);
  sh_free(cases);
  sh_free(template_text);
}

static void smollm2_template_renders_as_transformers_does(void **state) {
  (void)state;
  char *text = read_text(GOLDEN "smollm2_golden.json");
  sh_arena *a = sh_arena_new(16 << 20);
  sh_json *golden;
  assert_int_equal(sh_json_parse(text, strlen(text), NULL, a, &golden, NULL), 0);
  rig r = open_chat(sh_json_get(golden, "chat_template")->s);
  const sh_json *chats = sh_json_get(golden, "chat");
  assert_true(chats->len >= 3);
  for (size_t i = 0; i < chats->len; i++) {
    sh_json *message = sh_json_new_object(r.a), *messages = sh_json_new_array(r.a);
    sh_json_set(r.a, message, "role", sh_json_new_string(r.a, "user", 4));
    sh_json_set(r.a, message, "content", sh_json_get(&chats->items[i], "question"));
    sh_json_push(r.a, messages, message);
    sh_chat_input in = {.messages = messages, .add_generation_prompt = true};
    sh_buf_reset(&r.out);
    assert_int_equal(sh_chat_render(r.c, &in, r.a, &r.out, &r.e), 0);
    assert_string_equal(r.out.p, sh_json_get(&chats->items[i], "rendered")->s);
  }
  assert_false(sh_chat_takes_parts(r.c));
  assert_prompt(&r,
                "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                "{\"type\": \"text\", \"text\": \"b\"}]}]",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n");
  done(&r);
  sh_arena_free(a);
  sh_free(text);
}

static void content_takes_the_shape_the_template_reads(void **state) {
  (void)state;
  static const char parts[] =
      "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"input_text\", \"text\": \"b\"}]}]";
  static const char string[] = "[{\"role\": \"user\", \"content\": \"hé\"}]";
  rig r = open_chat(STRINGS);
  assert_false(sh_chat_takes_parts(r.c));
  assert_prompt(&r, parts, "<user>a\nb</>");
  assert_prompt(&r, string, "<user>hé</>");
  assert_prompt(&r, "[{\"role\": \"user\", \"content\": []}]", "<user></>");
  assert_prompt(&r, "[{\"role\": \"user\", \"content\": [\"x\", {\"type\": \"text\", \"text\": \"\"}]}]", "<user>x\n</>");
  done(&r);
  r = open_chat(PARTS);
  assert_true(sh_chat_takes_parts(r.c));
  assert_prompt(&r, parts, "<user>[text:a][text:b]</>");
  assert_prompt(&r, string, "<user>[text:hé]</>");
  assert_prompt(&r, "[{\"role\": \"assistant\", \"content\": null}]", "<assistant></>");
  done(&r);
  r = open_chat(BOTH);
  assert_true(sh_chat_takes_parts(r.c));
  assert_prompt(&r, parts, "<user>ab</>");
  assert_prompt(&r, string, "<user>hé</>");
  done(&r);
}

static void roles_and_reasoning_are_mapped(void **state) {
  (void)state;
  rig r = open_chat("{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content }}:{{ m.reasoning }};{% endfor %}{{ tools "
                    "}}{{ documents }}"
                    "[{{ bos_token }}{{ eos_token }}]{{ x }}{{ add_generation_prompt }}");
  assert_prompt(&r,
                "[{\"role\": \"developer\", \"content\": \"d\"}, {\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"r\"}, "
                "{\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"q\", \"reasoning\": null}, {\"role\": \"custom\", "
                "\"content\": \"c\"}]",
                "system:d::;assistant:a:r:r;assistant:b:q:q;custom:c::;NoneNone[]False");
  run(&r, "[{\"role\": \"user\", \"content\": \"u\"}]", "{\"x\": [1], \"documents\": [], \"bos_token\": \"B\"}", true, false);
  assert_int_equal(r.rc, 0);
  assert_string_equal(r.out.p, "user:u::;None[][B][1]True");
  run(&r, "[{\"role\": \"user\", \"content\": \"u\"}]", "{\"messages\": []}", true, false);
  assert_int_equal(r.rc, SH_ERR_ARG);
  assert_string_equal(r.e.text, "chat_template_kwargs.messages: a request has a field of its own for this");
  done(&r);
}

static void tool_call_arguments_become_objects(void **state) {
  (void)state;
#define CALL(args)                                                                                                                         \
  "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"i\", \"function\": {\"name\": \"f\"" args "}}]}]"
  rig r = open_chat(NULLS);
  assert_prompt(&r, CALL(", \"arguments\": \"{\\\"a\\\": [1, null]}\""), "call f({\"a\": [1, null]})");
  assert_prompt(&r, CALL(", \"arguments\": {\"b\": 2}"), "call f({\"b\": 2})");
  assert_prompt(&r, CALL(", \"arguments\": \"\""), "call f({})");
  assert_prompt(&r, CALL(""), "call f({})");
  assert_refused(&r, CALL(", \"arguments\": \"{\\\"a\\\": \""), SH_ERR_ARG,
                 "messages[0].tool_calls[0].function.arguments: not valid JSON: ");
  assert_refused(&r, CALL(", \"arguments\": \"[1]\""), SH_ERR_ARG,
                 "messages[0].tool_calls[0].function.arguments: wanted a JSON object, got array");
  assert_refused(&r, CALL(", \"arguments\": 1"), SH_ERR_ARG, "messages[0].tool_calls[0].function.arguments: wanted");
  assert_refused(&r, "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}]", SH_ERR_ARG,
                 "messages[0].tool_calls[0].function: wanted an object, got nothing");
  assert_refused(&r, "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": {}}]", SH_ERR_ARG,
                 "messages[0].tool_calls: wanted a list, got object");
  done(&r);
  r = open_chat(STRINGS); /* glues content to a string: null would fail, so it becomes "" */
  assert_prompt(&r, CALL(", \"arguments\": \"{}\""), "<assistant></>");
  done(&r);
}

static void bad_messages_are_refused_by_name(void **state) {
  (void)state;
  rig r = open_chat(BOTH);
  assert_refused(&r, "{}", SH_ERR_ARG, "messages: wanted a list, got object");
  assert_refused(&r, "[]", SH_ERR_ARG, "messages: it is empty");
  assert_refused(&r, "[1]", SH_ERR_ARG, "messages[0]: wanted an object, got number");
  assert_refused(&r, "[{\"content\": \"a\"}]", SH_ERR_ARG, "messages[0].role: wanted a string, got nothing");
  assert_refused(&r, "[{\"role\": 1, \"content\": \"a\"}]", SH_ERR_ARG, "messages[0].role: wanted a string, got number");
  assert_refused(&r, "[{\"role\": \"\", \"content\": \"a\"}]", SH_ERR_ARG, "messages[0].role: it is empty");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\"}]", SH_ERR_ARG,
                 "messages[1].content: wanted a string or a list of parts, got nothing");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": null}]", SH_ERR_ARG,
                 "messages[0].content: wanted a string or a list of parts, got null");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": 7}]", SH_ERR_ARG,
                 "messages[0].content: wanted a string or a list of parts, got number");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": [1]}]", SH_ERR_ARG, "messages[0].content[0]: wanted an object, got number");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": [{}]}]", SH_ERR_ARG, "messages[0].content[0].type: wanted a string, got nothing");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", SH_ERR_ARG,
                 "messages[0].content[0].text: wanted a string, got nothing");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": [{\"type\": \"smell\"}]}]", SH_ERR_ARG,
                 "messages[0].content[0].type: 'smell' is not");
  assert_refused(&r,
                 "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"image_url\", \"image_url\": "
                 "{\"url\": \"x\"}}]}]",
                 SH_ERR_UNSUPPORTED, "messages[0].content[1]: image_url parts are not supported");
  assert_refused(&r, "[{\"role\": \"assistant\", \"content\": \"\", \"reasoning\": 1}]", SH_ERR_ARG,
                 "messages[0].reasoning: wanted a string, got number");
  done(&r);
}

static void a_final_message_can_be_continued(void **state) {
  (void)state;
  static const char messages[] = "[{\"role\": \"user\", \"content\": \"count\"}, {\"role\": \"assistant\", \"content\": \" one, two, \"}]";
  rig r = open_chat(STRINGS);
  run(&r, messages, NULL, false, true);
  assert_int_equal(r.rc, 0);
  assert_string_equal(r.out.p, "<user>count</><assistant> one, two, ");
  run(&r, messages, NULL, true, true);
  assert_int_equal(r.rc, SH_ERR_ARG);
  run(&r, "[{\"role\": \"assistant\", \"content\": null}]", NULL, false, true);
  assert_int_equal(r.rc, SH_ERR_ARG);
  assert_string_equal(r.e.text, "continue_final_message: messages[0] has no text to continue");
  done(&r);
  r = open_chat("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</>{% endfor %}");
  run(&r, messages, NULL, false, true);
  assert_int_equal(r.rc, 0);
  assert_int_equal(r.out.len, strlen("<user>count</><assistant>one, two,"));
  assert_memory_equal(r.out.p, "<user>count</><assistant>one, two,", r.out.len);
  done(&r);
  r = open_chat(PARTS);
  run(&r, messages, NULL, false, true);
  assert_int_equal(r.rc, 0);
  assert_memory_equal(r.out.p, "<user>[text:count]</><assistant>[text: one, two, ", r.out.len);
  done(&r);
  r = open_chat("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}");
  run(&r, messages, NULL, false, true);
  assert_int_equal(r.rc, SH_ERR_ARG);
  assert_non_null(strstr(r.e.text, "does not show the text of messages[1]"));
  assert_int_equal(r.out.len, 0);
  done(&r);
}

static void a_broken_template_is_refused_at_open(void **state) {
  (void)state;
  sh_chat *c;
  sh_error e;
  assert_int_equal(sh_chat_open(&c, "{% if %}", 8, &e), SH_ERR_FORMAT);
  assert_null(c);
  assert_int_equal(strncmp(e.text, "chat template: line 1: ", 23), 0);
}

static void a_template_that_fails_or_loops_on_everything_still_opens(void **state) {
  (void)state;
  rig r = open_chat("{{ raise_exception('never') }}");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": \"u\"}]", SH_ERR_ARG, "never");
  done(&r);
  r = open_chat("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  assert_refused(&r, "[{\"role\": \"user\", \"content\": \"u\"}]", SH_ERR_LIMIT, "line 1: the template reached its step limit");
  done(&r);
}

/* Found by fuzz_jinja: the questions asked of the template at open counted words in a buffer that had never held anything. */
static void a_template_that_writes_nothing_opens_and_writes_nothing(void **state) {
  (void)state;
  static const char *const silent[] = {"", "{# nothing #}", "{% set x = 1 %}"};
  for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
    rig r = open_chat(silent[i]);
    assert_prompt(&r, "[{\"role\": \"user\", \"content\": \"a\"}]", "");
    done(&r);
  }
}

static void every_failed_allocation_is_reported(void **state) {
  (void)state;
  for (long n = 0;; n++) {
    rig r = {.a = sh_arena_new(1 << 20)};
    sh_json *messages = parse(&r, "[{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}, {\"role\": "
                                  "\"assistant\", \"content\": \"b\", \"reasoning\": \"r\","
                                  "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}]");
    sh_chat_input in = {.messages = messages, .continue_final_message = true};
    sh_buf_init(&r.out, 1 << 20);
    sh_mem_fail_after(n);
    int rc = sh_chat_open(&r.c, STRINGS, sizeof STRINGS - 1, &r.e);
    if (!rc) rc = sh_chat_render(r.c, &in, r.a, &r.out, &r.e);
    sh_mem_fail_after(-1);
    if (rc) assert_int_equal(rc, SH_ERR_NOMEM);
    done(&r);
    if (!rc) break;
    assert_true(n < 2000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(qwen_template_renders_as_transformers_does),
      cmocka_unit_test(preparing_messages_does_not_change_golden_renders),
      cmocka_unit_test(smollm2_template_renders_as_transformers_does),
      cmocka_unit_test(content_takes_the_shape_the_template_reads),
      cmocka_unit_test(roles_and_reasoning_are_mapped),
      cmocka_unit_test(tool_call_arguments_become_objects),
      cmocka_unit_test(bad_messages_are_refused_by_name),
      cmocka_unit_test(a_final_message_can_be_continued),
      cmocka_unit_test(a_broken_template_is_refused_at_open),
      cmocka_unit_test(a_template_that_fails_or_loops_on_everything_still_opens),
      cmocka_unit_test(a_template_that_writes_nothing_opens_and_writes_nothing),
      cmocka_unit_test(every_failed_allocation_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
