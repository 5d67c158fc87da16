/* `sheng render MODEL` or `sheng render --template FILE`: bulk checks of chat templates, one JSON object of template variables per line.
 * Main thread.
 *
 * The template sees the line's members and nothing else, but for three that are filled in when the line lacks them: add_generation_prompt
 * (true), and with a MODEL its bos_token and eos_token. Messages are not prepared as a request's are: the point is to see what the template
 * itself does. */
#include "base/file.h"
#include "cli/cli.h"
#include <string.h>

typedef struct render_options {
  const char *template;
} render_options;

static const sh_opt table[] = {
    {"template", NULL, SH_OPT_STR, offsetof(render_options, template), 0, 0, NULL, NULL, "Template", "FILE",
     "Run this template instead of a model's."},
    {0},
};
static const render_options defaults = {0};

typedef struct renderer {
  sh_ckpt *ckpt;
  sh_tok *tok;
  sh_chat *chat;
  char *text;            /* of --template */
  const char *bos, *eos; /* NULL without a model */
} renderer;

static void renderer_close(renderer *r) {
  sh_chat_free(r->chat);
  sh_tok_free(r->tok);
  sh_ckpt_close(r->ckpt);
  sh_free(r->text);
}

/* A special token of tokenizer_config.json: a string, or an object with its content. */
static const char *config_token(const sh_ckpt *c, const char *key) {
  const sh_json *v = sh_json_get(sh_ckpt_tokenizer_config(c), key);
  if (sh_json_is(v, SH_JSON_OBJECT)) v = sh_json_get(v, "content");
  return sh_json_is(v, SH_JSON_STRING) ? v->s : "";
}

static int renderer_open_model(renderer *r, const char *model, sh_error *e) {
  int rc = sh_ckpt_open(&r->ckpt, model, SH_CKPT_TOKENIZER_ONLY, e);
  if (rc != SH_OK) return rc;
  if (sh_ckpt_is_gguf(r->ckpt)) { /* the names of its special tokens are in the vocabulary */
    if ((rc = sh_tok_open(&r->tok, r->ckpt, e)) != SH_OK) return rc;
    int32_t bos = sh_tok_bos(r->tok), eos = sh_tok_eos(r->tok);
    r->bos = bos >= 0 ? sh_tok_piece(r->tok, bos) : "";
    r->eos = eos >= 0 ? sh_tok_piece(r->tok, eos) : "";
  } else {
    r->bos = config_token(r->ckpt, "bos_token");
    r->eos = config_token(r->ckpt, "eos_token");
  }
  size_t n;
  const char *text = sh_ckpt_chat_template(r->ckpt, &n);
  if (!text) return sh_fail(e, SH_ERR_NOT_FOUND, "%s has no chat template; give one with --template", model);
  return sh_chat_open(&r->chat, text, n, e);
}

static int renderer_open_file(renderer *r, const char *path, sh_error *e) {
  size_t n;
  int rc = sh_cli_template(path, &r->text, &n, e);
  return rc == SH_OK ? sh_chat_open(&r->chat, r->text, n, e) : rc;
}

static int fill_in(sh_arena *a, sh_json *vars, const char *key, const char *value) {
  if (!value || sh_json_get(vars, key)) return SH_OK;
  const sh_json *v = sh_json_new_string(a, value, strlen(value));
  return v ? sh_json_set(a, vars, key, v) : SH_ERR_NOMEM;
}

static int render_line(void *ctx, const sh_json *line, sh_arena *a, sh_buf *out, sh_error *e) {
  const renderer *r = ctx;
  sh_json vars = *line; /* members may be added; the array is then a new one */
  int rc = SH_OK;
  if (!sh_json_get(&vars, "add_generation_prompt")) {
    const sh_json *yes = sh_json_new_bool(a, true);
    rc = yes ? sh_json_set(a, &vars, "add_generation_prompt", yes) : SH_ERR_NOMEM;
  }
  if (rc == SH_OK) rc = fill_in(a, &vars, "bos_token", r->bos);
  if (rc == SH_OK) rc = fill_in(a, &vars, "eos_token", r->eos);
  if (rc != SH_OK) return sh_fail(e, rc, "out of memory");
  sh_buf text;
  sh_buf_init(&text, out->max);
  rc = sh_chat_render_raw(r->chat, &vars, &text, e);
  if (rc == SH_OK) sh_cli_put_text(out, &text);
  sh_buf_free(&text);
  return rc;
}

int sh_cmd_render(int argc, char **argv) {
  render_options o = defaults;
  renderer r = {0};
  sh_error e = {0};
  const char *model;
  char *path = NULL;
  bool done;
  const sh_cli_parse parse = {"render", "sheng render MODEL | --template FILE < lines of {\"messages\", ...}", table, &o, &defaults, false};
  int status = sh_cli_options(&parse, argc, argv, &model, &done);
  if (status != SH_EXIT_OK || done) return status;
  if (!model == !o.template) {
    fprintf(stderr, "sheng render: either MODEL or --template FILE is wanted\n");
    return SH_EXIT_USAGE;
  }
  if (model && (status = sh_cli_find_model("render", model, &path)) != SH_EXIT_OK) return status;
  int rc = model ? renderer_open_model(&r, path, &e) : renderer_open_file(&r, o.template, &e);
  status = rc == SH_OK ? sh_cli_lines("render", stdin, stdout, render_line, &r) : sh_cli_fail("render", &e, false);
  renderer_close(&r);
  sh_free(path);
  return status;
}
