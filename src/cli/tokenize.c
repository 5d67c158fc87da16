/* `sheng tokenize MODEL` and `sheng detokenize MODEL`: bulk checks of the tokenizer, one JSON object per line. Main thread. MODEL may be a
 * folder with nothing but a tokenizer. */
#include "cli/cli.h"

typedef struct tokenizer {
  sh_ckpt *ckpt;
  sh_tok *tok;
} tokenizer;

static const sh_opt no_options[] = {{0}};

static void tokenizer_close(tokenizer *t) {
  sh_tok_free(t->tok);
  sh_ckpt_close(t->ckpt);
}

static int encode_line(void *ctx, const sh_json *line, sh_arena *a, sh_buf *out, sh_error *e) {
  (void)a;
  const tokenizer *t = ctx;
  const sh_json *text = sh_json_get(line, "text"), *special = sh_json_get(line, "add_special_tokens");
  sh_ids ids = {0};
  sh_jw w;
  if (!sh_json_is(text, SH_JSON_STRING)) return sh_fail(e, SH_ERR_ARG, "\"text\" must be a string");
  unsigned flags = sh_json_is(special, SH_JSON_BOOL) && special->b ? SH_TOK_ADD_SPECIAL : 0;
  int rc = sh_tok_encode(t->tok, text->s, text->len, flags, &ids, e);
  if (rc == SH_OK) {
    sh_jw_init(&w, out);
    sh_jw_obj(&w);
    sh_jw_key(&w, "ids");
    sh_jw_arr(&w);
    for (size_t i = 0; i < ids.n; i++) sh_jw_int(&w, ids.v[i]);
    sh_jw_end_arr(&w);
    sh_jw_end_obj(&w);
  }
  sh_ids_free(&ids);
  return rc;
}

static int decode_line(void *ctx, const sh_json *line, sh_arena *a, sh_buf *out, sh_error *e) {
  const tokenizer *t = ctx;
  const sh_json *ids = sh_json_get(line, "ids"), *skip = sh_json_get(line, "skip_special");
  sh_buf text;
  if (!sh_json_is(ids, SH_JSON_ARRAY)) return sh_fail(e, SH_ERR_ARG, "\"ids\" must be a list of token ids");
  int32_t *v = sh_arena_array(a, ids->len + 1, sizeof *v);
  if (!v) return sh_fail(e, SH_ERR_NOMEM, "out of memory");
  for (size_t i = 0; i < ids->len; i++) {
    int64_t id;
    if (sh_json_int(&ids->items[i], &id) != SH_OK || id < 0 || id > INT32_MAX)
      return sh_fail(e, SH_ERR_ARG, "\"ids\"[%zu] is not a token id", i);
    v[i] = (int32_t)id;
  }
  sh_buf_init(&text, out->max);
  int rc = sh_tok_decode(t->tok, v, ids->len, sh_json_is(skip, SH_JSON_BOOL) && skip->b, &text, e);
  if (rc == SH_OK) sh_cli_put_text(out, &text);
  sh_buf_free(&text);
  return rc;
}

static int run_lines(const char *name, const char *usage, sh_cli_line_fn fn, int argc, char **argv) {
  const char *model;
  char *path = NULL;
  char nothing;
  bool done;
  tokenizer t = {0};
  sh_error e = {0};
  const sh_cli_parse parse = {name, usage, no_options, &nothing, &nothing, true};
  int status = sh_cli_options(&parse, argc, argv, &model, &done);
  if (status != SH_EXIT_OK || done || (status = sh_cli_find_model(name, model, &path)) != SH_EXIT_OK) return status;
  if (sh_ckpt_open(&t.ckpt, path, SH_CKPT_TOKENIZER_ONLY, &e) != SH_OK || sh_tok_open(&t.tok, t.ckpt, &e) != SH_OK)
    status = sh_cli_fail(name, &e, false);
  else status = sh_cli_lines(name, stdin, stdout, fn, &t);
  tokenizer_close(&t);
  sh_free(path);
  return status;
}

int sh_cmd_tokenize(int argc, char **argv) {
  return run_lines("tokenize", "sheng tokenize MODEL < lines of {\"text\"}", encode_line, argc, argv);
}

int sh_cmd_detokenize(int argc, char **argv) {
  return run_lines("detokenize", "sheng detokenize MODEL < lines of {\"ids\", \"skip_special\"?}", decode_line, argc, argv);
}
