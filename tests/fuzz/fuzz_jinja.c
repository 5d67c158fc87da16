/* Fuzz driver of the Jinja interpreter and of the chat layer. Input: a template, then, after a line "---", its variables as JSON (else
 * fixed ones). Beyond "no crash, no hang": a failure has a sentence of valid UTF-8 and no output, a render gives the same text twice, and
 * limits hold. */
#include "base/json.h"
#include "base/text.h"
#include "text/chat.h"
#include "text/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char VARS[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\u00e9\"}]},{"
    "\"role\":\"assistant\",\"content\":null,"
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null,true]}}}]}],\"tools\":[{\"x\":{\"y\":1}}],\"l\":[3,1,2]"
    ",\"d\":{\"b\":1,\"a\":\"x\"},"
    "\"s\":\"a b\\nc\u65e5\",\"n\":7,\"f\":-2.5,\"t\":true,\"big\":123456789012345678901234567890,\"add_generation_prompt\":true}";

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static void render_twice(const sh_jinja *t, const sh_json *vars, bool clock) {
  static const sh_jinja_limits limits = {.max_output = 1 << 18, .max_steps = 30000, .max_depth = 60, .max_memory = 4 << 20};
  sh_buf out[2];
  sh_error e[2] = {{0}, {0}};
  int rc[2];
  for (int i = 0; i < 2; i++) {
    sh_buf_init(&out[i], 1 << 20);
    rc[i] = sh_jinja_render(t, vars, &limits, &out[i], &e[i]);
    if (rc[i])
      must(out[i].len == 0 && e[i].code == rc[i] && sh_utf8_valid(e[i].text, strlen(e[i].text)), "a failure has a sentence and no output");
    else
      must(out[i].len <= limits.max_output && sh_utf8_valid(out[i].p ? out[i].p : "", out[i].len),
           "output is valid UTF-8 within its limit");
  }
  if (!clock)
    must(rc[0] == rc[1] && out[0].len == out[1].len && (!out[0].len || memcmp(out[0].p, out[1].p, out[0].len) == 0), "a render repeats");
  sh_buf_free(&out[0]);
  sh_buf_free(&out[1]);
}

static void chat(const char *src, size_t len, const sh_json *vars, sh_arena *a) {
  sh_chat *c;
  sh_buf out;
  sh_error e = {0};
  if (sh_chat_open(&c, src, len, &e)) return;
  sh_buf_init(&out, 1 << 22);
  sh_chat_input in = {.messages = sh_json_get(vars, "messages"), .tools = sh_json_get(vars, "tools"), .continue_final_message = true};
  int rc = sh_chat_render(c, &in, a, &out, &e);
  must(rc == 0 || (e.code == rc && out.len == 0), "a refused chat has a sentence");
  sh_buf_free(&out);
  sh_chat_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  const char *src = (const char *)data, *split = n ? memmem(src, n, "\n---\n", 5) : NULL;
  size_t len = split ? (size_t)(split - src) : n;
  sh_jinja *t = NULL;
  sh_json *vars = NULL;
  sh_error e = {0};
  sh_arena *a = sh_arena_new(8 << 20);
  if (!a) return 0;
  if (!split || sh_json_parse(split + 5, n - len - 5, NULL, a, &vars, NULL) || vars->type != SH_JSON_OBJECT)
    must(sh_json_parse(VARS, sizeof VARS - 1, NULL, a, &vars, NULL) == 0, "the fixed variables parse");
  int rc = sh_jinja_compile(&t, src, len, &e);
  if (rc) {
    must(t == NULL && e.code == rc && e.text[0] && sh_utf8_valid(e.text, strlen(e.text)), "a refused template has a sentence");
  } else {
    render_twice(t, vars, len && memmem(src, len, "strftime", 8));
    if (data[0] % 8 == 0) chat(src, len, vars, a); /* nine renders more: not for every input */
  }
  sh_jinja_free(t);
  sh_arena_free(a);
  return 0;
}
