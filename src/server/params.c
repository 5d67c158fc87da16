/* Fields of a generating request.
 *
 * One table gives for every known field of the three request bodies its type, range and place. What is not in the table is unknown and
 * ignored with a log line; what is known and not offered is in the table as refused, with the harmless values (null, an empty object, the
 * default) that clients send along. A field is never accepted and then without effect where the answer would differ. Runs on text workers;
 * pure but for the log.
 *
 * Ranges are vLLM's, so that a request refused there is refused here. null means "not given" everywhere.
 *
 * Refused alternative: lenient conversions ("5" for 5, 1 for true), as pydantic does. They hide mistakes of the client, and OpenAI's own
 * server refuses them. */
#include "server/params.h"
#include "base/log.h"
#include "base/text.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum field_type {
  F_BOOL,
  F_INT,
  F_FLOAT,
  F_STR,
  F_STRINGS, /* a string or a list of at most max strings -> sh_str *, int */
  F_IDS,     /* list of token ids -> int32_t *, int */
  F_BIAS,    /* {"id": bias} -> sh_token_bias *, int */
  F_OBJECT,  /* kept as JSON */
  F_ARRAY,   /* kept as JSON */
  F_STREAM_OPTIONS,
  F_ELSEWHERE, /* read by the endpoint's own file */
  F_NO_EFFECT, /* known, and the answer is the same with and without it */
  F_REFUSED,   /* known, not offered: only null and what `harmless` says pass */
} field_type;

enum { ABOVE_MIN = 1 }; /* min itself is out of range */
enum { C = SH_API_CHAT, T = SH_API_COMPLETION, K = SH_API_TOKENIZE, CT = C | T, CTK = C | T | K };

typedef struct field {
  const char *name;
  int kinds;
  field_type type;
  size_t at, at_n; /* offsets of the value and, of lists, the count */
  double min, max;
  int flags;
  bool (*harmless)(const sh_json *v);
  const char *hint; /* appended to a refusal */
} field;

static bool never(const sh_json *v) {
  (void)v;
  return false;
}
static bool is_false(const sh_json *v) { return v->type == SH_JSON_BOOL && !v->b; }
static bool is_empty(const sh_json *v) {
  return (v->type == SH_JSON_STRING || v->type == SH_JSON_OBJECT || v->type == SH_JSON_ARRAY) && v->len == 0;
}
static bool is_empty_object(const sh_json *v) { return v->type == SH_JSON_OBJECT && v->len == 0; }
static bool is_zero(const sh_json *v) {
  int64_t i;
  return sh_json_int(v, &i) == SH_OK && i == 0;
}
static bool is_one(const sh_json *v) {
  double d;
  return sh_json_double(v, &d) == SH_OK && d == 1;
}
static bool is_text_format(const sh_json *v) { return v->type == SH_JSON_OBJECT && sh_json_eq_str(sh_json_get(v, "type"), "text"); }
static bool is_no_choice(const sh_json *v) { return sh_json_eq_str(v, "none") || sh_json_eq_str(v, "auto"); }
static bool is_text_only(const sh_json *v) { return v->type == SH_JSON_ARRAY && v->len == 1 && sh_json_eq_str(&v->items[0], "text"); }

#define AT(f) offsetof(sh_params, f)
#define LIST(f) offsetof(sh_params, f), offsetof(sh_params, n_##f)
#define REFUSED(name, kinds, harmless, hint)                                                                                               \
  { name, kinds, F_REFUSED, 0, 0, 0, 0, 0, harmless, hint }
#define I32 2147483647.0

static const field fields[] = {
    {"model", CTK, F_STR, AT(model), 0, 0, 0, 0, NULL, NULL},
    {"messages", C | K, F_ELSEWHERE, 0, 0, 0, 0, 0, NULL, NULL},
    {"prompt", T | K, F_ELSEWHERE, 0, 0, 0, 0, 0, NULL, NULL},
    {"stream", CT, F_BOOL, AT(stream), 0, 0, 0, 0, NULL, NULL},
    {"stream_options", CT, F_STREAM_OPTIONS, 0, 0, 0, 0, 0, NULL, NULL},
    {"n", CT, F_INT, AT(n), 0, 1, SH_API_MAX_N, 0, NULL, NULL},
    {"best_of", CT, F_INT, AT(best_of), 0, 1, SH_API_MAX_N, 0, NULL, NULL},
    {"max_tokens", CT, F_INT, AT(max_tokens), 0, 0, I32, 0, NULL, NULL},
    {"max_completion_tokens", C, F_INT, AT(max_completion_tokens), 0, 0, I32, 0, NULL, NULL},
    {"min_tokens", CT, F_INT, AT(min_tokens), 0, 0, I32, 0, NULL, NULL},
    {"temperature", CT, F_FLOAT, AT(temperature), 0, 0, 1e6, 0, NULL, NULL},
    {"top_p", CT, F_FLOAT, AT(top_p), 0, 0, 1, ABOVE_MIN, NULL, NULL},
    {"top_k", CT, F_INT, AT(top_k), 0, -1, I32, 0, NULL, NULL},
    {"min_p", CT, F_FLOAT, AT(min_p), 0, 0, 1, 0, NULL, NULL},
    {"repetition_penalty", CT, F_FLOAT, AT(repetition_penalty), 0, 0, 1e6, ABOVE_MIN, NULL, NULL},
    {"presence_penalty", CT, F_FLOAT, AT(presence_penalty), 0, -2, 2, 0, NULL, NULL},
    {"frequency_penalty", CT, F_FLOAT, AT(frequency_penalty), 0, -2, 2, 0, NULL, NULL},
    {"seed", CT, F_INT, AT(seed), 0, 0, 0, 0, NULL, NULL},
    {"stop", CT, F_STRINGS, LIST(stop), 0, SH_API_MAX_STOP, 0, NULL, NULL},
    {"include_stop_str_in_output", CT, F_BOOL, AT(include_stop_str_in_output), 0, 0, 0, 0, NULL, NULL},
    {"stop_token_ids", CT, F_IDS, LIST(stop_ids), 0, 0, 0, NULL, NULL},
    {"ignore_eos", CT, F_BOOL, AT(ignore_eos), 0, 0, 0, 0, NULL, NULL},
    {"logit_bias", CT, F_BIAS, LIST(bias), 0, 0, 0, NULL, NULL},
    {"bad_words", CT, F_STRINGS, LIST(bad_words), 0, SH_API_MAX_BAD_WORDS, 0, NULL, NULL},
    {"allowed_token_ids", CT, F_IDS, LIST(allowed), 0, 0, 0, NULL, NULL},
    {"logprobs", T, F_INT, AT(logprobs), 0, 0, I32, 0, NULL, NULL},
    {"logprobs", C, F_BOOL, AT(chat_logprobs), 0, 0, 0, 0, NULL, NULL},
    {"top_logprobs", C, F_INT, AT(top_logprobs), 0, 0, I32, 0, NULL, NULL},
    {"prompt_logprobs", CT, F_INT, AT(prompt_logprobs), 0, 0, I32, 0, NULL, NULL},
    {"echo", CT, F_BOOL, AT(echo), 0, 0, 0, 0, NULL, NULL},
    {"skip_special_tokens", CT, F_BOOL, AT(skip_special_tokens), 0, 0, 0, 0, NULL, NULL},
    {"spaces_between_special_tokens", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"truncate_prompt_tokens", CT, F_INT, AT(truncate_prompt_tokens), 0, -1, I32, 0, NULL, NULL},
    {"return_token_ids", CT, F_BOOL, AT(return_token_ids), 0, 0, 0, 0, NULL, NULL},
    {"return_tokens_as_token_ids", CT, F_BOOL, AT(return_tokens_as_ids), 0, 0, 0, 0, NULL, NULL},
    {"return_token_strs", K, F_BOOL, AT(return_token_strs), 0, 0, 0, 0, NULL, NULL},
    {"add_special_tokens", CTK, F_BOOL, AT(add_special_tokens), 0, 0, 0, 0, NULL, NULL},
    {"add_generation_prompt", C | K, F_BOOL, AT(add_generation_prompt), 0, 0, 0, 0, NULL, NULL},
    {"continue_final_message", C | K, F_BOOL, AT(continue_final_message), 0, 0, 0, 0, NULL, NULL},
    {"chat_template", C | K, F_STR, AT(chat_template), 0, 0, 0, 0, NULL, NULL},
    {"chat_template_kwargs", C | K, F_OBJECT, AT(chat_template_kwargs), 0, 0, 0, 0, NULL, NULL},
    {"documents", C, F_ARRAY, AT(documents), 0, 0, 0, 0, NULL, NULL},
    {"reasoning_effort", C, F_STR, AT(reasoning_effort), 0, 0, 0, 0, NULL, NULL},
    {"request_id", CT, F_STR, AT(request_id), 0, 0, 0, 0, NULL, NULL},

    /* they say something about the caller, about billing or about caches: the answer is the same */
    {"user", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"safety_identifier", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"session_id", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"metadata", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"store", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"service_tier", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"prompt_cache_key", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"cache_salt", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"parallel_tool_calls", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"include_reasoning", C, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},
    {"length_penalty", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL}, /* of beam search, which is refused */
    {"early_stopping", CT, F_NO_EFFECT, 0, 0, 0, 0, 0, NULL, NULL},

    REFUSED("tools", C | K, never, NULL),
    REFUSED("tool_choice", C, is_no_choice, "without tools only \"none\" and \"auto\" make sense"),
    REFUSED("functions", C, is_empty, NULL),
    REFUSED("function_call", C, is_no_choice, NULL),
    REFUSED("response_format", CT, is_text_format, "only {\"type\": \"text\"} is available"),
    REFUSED("structured_outputs", CT, is_empty_object, NULL),
    REFUSED("guided_json", CT, never, NULL),
    REFUSED("guided_regex", CT, never, NULL),
    REFUSED("guided_choice", CT, never, NULL),
    REFUSED("guided_grammar", CT, never, NULL),
    REFUSED("guided_json_object", CT, is_false, NULL),
    REFUSED("guided_decoding_backend", CT, never, NULL),
    REFUSED("guided_whitespace_pattern", CT, never, NULL),
    REFUSED("structural_tag", CT, never, NULL),
    REFUSED("use_beam_search", CT, is_false, NULL),
    REFUSED("suffix", T, is_empty, NULL),
    REFUSED("audio", C, never, NULL),
    REFUSED("modalities", C, is_text_only, "only [\"text\"] is available"),
    REFUSED("prediction", C, never, NULL),
    REFUSED("web_search_options", C, never, NULL),
    REFUSED("mm_processor_kwargs", C | K, is_empty_object, NULL),
    REFUSED("logits_processors", CT, is_empty, NULL),
    REFUSED("logprob_token_ids", CT, is_empty, NULL),
    REFUSED("prompt_embeds", T, is_empty, NULL),
    REFUSED("thinking_token_budget", C, never, NULL),
    REFUSED("repetition_detection", CT, never, NULL),
    REFUSED("kv_transfer_params", CT, is_empty_object, NULL),
    REFUSED("vllm_xargs", CT, is_empty_object, NULL),
    REFUSED("priority", CT, is_zero, "requests are served in the order they come"),
    REFUSED("stream_interval", CT, is_one, NULL),
};

/* --- One field --- */

static int fail_type(sh_api_error *e, const char *name, const char *wanted, const sh_json *v) {
  if (v->type == SH_JSON_NUMBER) return sh_api_fail(e, 400, name, "`%s` must be %s, found %.40s.", name, wanted, v->s);
  return sh_api_fail(e, 400, name, "`%s` must be %s, found %s.", name, wanted, sh_json_type_name(v->type));
}

static int fail_range(sh_api_error *e, const field *f, const sh_json *v) {
  const char *from = f->flags & ABOVE_MIN ? "above" : "at least";
  if (f->max == I32 || f->max == 1e6) return sh_api_fail(e, 400, f->name, "`%s` must be %s %.15g, got %.40s.", f->name, from, f->min, v->s);
  return sh_api_fail(e, 400, f->name, "`%s` must be %s %.15g and at most %.15g, got %.40s.", f->name, from, f->min, f->max, v->s);
}

static int take_int(const field *f, const sh_json *v, int64_t *out, sh_api_error *e) {
  double d;
  if (v->type != SH_JSON_NUMBER) return fail_type(e, f->name, "an integer", v);
  if (sh_json_int(v, out) != SH_OK) {
    bool huge = sh_json_double(v, &d) != SH_OK || fabs(d) >= 9.2e18;
    return huge && f->max > f->min ? fail_range(e, f, v) : fail_type(e, f->name, "a 64-bit integer", v);
  }
  if (f->max > f->min && ((double)*out < f->min || (double)*out > f->max)) return fail_range(e, f, v);
  return 0;
}

static int take_float(const field *f, const sh_json *v, double *out, sh_api_error *e) {
  if (v->type != SH_JSON_NUMBER) return fail_type(e, f->name, "a number", v);
  if (sh_json_double(v, out) != SH_OK) return fail_type(e, f->name, "a finite number", v);
  if (*out < f->min || *out > f->max || ((f->flags & ABOVE_MIN) && *out <= f->min)) return fail_range(e, f, v);
  return 0;
}

static int take_one_string(const field *f, const sh_json *v, sh_str *out, sh_api_error *e) {
  if (v->type != SH_JSON_STRING) return fail_type(e, f->name, "a string or a list of strings", v);
  if (!v->len) return sh_api_fail(e, 400, f->name, "`%s` cannot contain an empty string.", f->name);
  if (v->len > SH_API_MAX_STOP_BYTES)
    return sh_api_fail(e, 400, f->name, "A string of `%s` has %zu bytes; the limit is %d.", f->name, v->len, SH_API_MAX_STOP_BYTES);
  *out = (sh_str){v->s, v->len};
  return 0;
}

static int out_of_memory(sh_api_error *e) { return sh_api_fail(e, 503, NULL, "Out of memory while reading the request."); }

static int take_strings(const field *f, const sh_json *v, sh_arena *a, sh_str **out, int *n, sh_api_error *e) {
  bool list = v->type == SH_JSON_ARRAY;
  size_t count = list ? v->len : 1;
  if ((double)count > f->max) return sh_api_fail(e, 400, f->name, "`%s` has %zu entries; the limit is %.0f.", f->name, count, f->max);
  *out = sh_arena_array(a, count + 1, sizeof **out);
  if (!*out) return out_of_memory(e);
  for (size_t i = 0; i < count; i++)
    if (take_one_string(f, list ? &v->items[i] : v, &(*out)[i], e)) return -1;
  *n = (int)count;
  return 0;
}

static int fail_id(sh_api_error *e, const char *name, const char *text, int vocab) {
  return sh_api_fail(e, 400, name, "`%s` has the token id %.40s, which is not in the vocabulary (0 to %d).", name, text, vocab - 1);
}

static int take_ids(const field *f, const sh_json *v, int vocab, sh_arena *a, int32_t **out, int *n, sh_api_error *e) {
  if (v->type != SH_JSON_ARRAY) return fail_type(e, f->name, "a list of token ids", v);
  if (v->len > (size_t)vocab)
    return sh_api_fail(e, 400, f->name, "`%s` has %zu entries, more than the vocabulary (%d).", f->name, v->len, vocab);
  *out = sh_arena_array(a, v->len + 1, sizeof **out);
  if (!*out) return out_of_memory(e);
  for (size_t i = 0; i < v->len; i++) {
    const sh_json *item = &v->items[i];
    int64_t id;
    if (item->type != SH_JSON_NUMBER) return fail_type(e, f->name, "a list of token ids", item);
    if (sh_json_int(item, &id) != SH_OK || id < 0 || id >= vocab) return fail_id(e, f->name, item->s, vocab);
    (*out)[i] = (int32_t)id;
  }
  *n = (int)v->len;
  return 0;
}

static int take_bias(const field *f, const sh_json *v, int vocab, sh_arena *a, sh_params *p, sh_api_error *e) {
  if (v->type != SH_JSON_OBJECT) return fail_type(e, f->name, "an object of token id to bias", v);
  if (v->len > (size_t)vocab)
    return sh_api_fail(e, 400, f->name, "`%s` has %zu entries, more than the vocabulary (%d).", f->name, v->len, vocab);
  p->bias = sh_arena_array(a, v->len + 1, sizeof *p->bias);
  if (!p->bias) return out_of_memory(e);
  p->n_bias = 0;
  for (size_t i = 0; i < v->len; i++) {
    int64_t id;
    double bias;
    const sh_json_member *m = &v->members[i];
    if (sh_parse_i64(m->key, &id) != SH_OK || strlen(m->key) != m->key_len || id < 0 || id >= vocab)
      return fail_id(e, f->name, m->key, vocab);
    if (m->value.type != SH_JSON_NUMBER || sh_json_double(&m->value, &bias) != SH_OK)
      return fail_type(e, f->name, "an object of finite numbers", &m->value);
    bias = bias < -100 ? -100 : bias > 100 ? 100 : bias;
    p->bias[p->n_bias++] = (sh_token_bias){(int32_t)id, (float)bias};
  }
  return 0;
}

static int take_stream_options(const sh_json *v, sh_params *p, sh_api_error *e) {
  static const struct {
    const char *name;
    size_t at;
  } rows[] = {{"include_usage", AT(include_usage)}, {"continuous_usage_stats", AT(continuous_usage)}};
  if (v->type != SH_JSON_OBJECT) return fail_type(e, "stream_options", "an object", v);
  for (size_t i = 0; i < 2; i++) {
    const sh_json *x = sh_json_get(v, rows[i].name);
    if (!x || x->type == SH_JSON_NULL) continue;
    if (x->type != SH_JSON_BOOL)
      return sh_api_fail(e, 400, "stream_options", "`stream_options.%s` must be true or false, found %s.", rows[i].name,
                         sh_json_type_name(x->type));
    *(bool *)(void *)((char *)p + rows[i].at) = x->b;
  }
  p->has_stream_options = true;
  return 0;
}

static int refuse(const field *f, const sh_json *v, sh_api_error *e) {
  if (f->harmless(v)) return 0;
  if (f->hint) return sh_api_fail(e, 400, f->name, "`%s` is not supported: %s.", f->name, f->hint);
  return sh_api_fail(e, 400, f->name, "`%s` is not supported by this server.", f->name);
}

static int take_field(const field *f, const sh_json *v, const sh_params_limits *lim, sh_arena *a, sh_params *p, sh_api_error *e) {
  char *at = (char *)p + f->at;
  switch (f->type) {
  case F_BOOL:
    if (v->type != SH_JSON_BOOL) return fail_type(e, f->name, "true or false", v);
    *(bool *)(void *)at = v->b;
    return 0;
  case F_INT: return take_int(f, v, (int64_t *)(void *)at, e);
  case F_FLOAT: return take_float(f, v, (double *)(void *)at, e);
  case F_STR:
    if (v->type != SH_JSON_STRING) return fail_type(e, f->name, "a string", v);
    if (strlen(v->s) != v->len) return sh_api_fail(e, 400, f->name, "`%s` holds a NUL character.", f->name);
    *(const char **)(void *)at = v->s;
    return 0;
  case F_STRINGS: return take_strings(f, v, a, (sh_str **)(void *)at, (int *)(void *)((char *)p + f->at_n), e);
  case F_IDS: return take_ids(f, v, lim->vocab, a, (int32_t **)(void *)at, (int *)(void *)((char *)p + f->at_n), e);
  case F_BIAS: return take_bias(f, v, lim->vocab, a, p, e);
  case F_OBJECT:
  case F_ARRAY:
    if (v->type != (f->type == F_OBJECT ? SH_JSON_OBJECT : SH_JSON_ARRAY))
      return fail_type(e, f->name, f->type == F_OBJECT ? "an object" : "a list", v);
    *(const sh_json **)(void *)at = v;
    return 0;
  case F_STREAM_OPTIONS: return take_stream_options(v, p, e);
  case F_ELSEWHERE:
  case F_NO_EFFECT: return 0;
  case F_REFUSED: return refuse(f, v, e);
  }
  return 0;
}

/* --- All fields --- */

static void set_unset(sh_params *p, sh_api_kind kind) {
  memset(p, 0, sizeof *p);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    char *at = (char *)p + fields[i].at;
    if (fields[i].type == F_INT) *(int64_t *)(void *)at = SH_UNSET;
    if (fields[i].type == F_FLOAT) *(double *)(void *)at = NAN;
  }
  p->skip_special_tokens = true;
  p->add_generation_prompt = true;
  p->add_special_tokens = kind != SH_API_CHAT; /* a chat template writes them itself */
}

static const field *find_field(const sh_json_member *m, sh_api_kind kind) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if ((fields[i].kinds & kind) && m->key_len == strlen(fields[i].name) && !memcmp(m->key, fields[i].name, m->key_len)) return &fields[i];
  return NULL;
}

static void log_unknown(const sh_json_member **unknown, int n) {
  char names[400] = "";
  size_t at = 0;
  for (int i = 0; i < n && i < 6 && at < sizeof names - 80; i++)
    at += (size_t)snprintf(names + at, sizeof names - at, "%s%.48s", i ? ", " : "", unknown[i]->key);
  sh_log(SH_LOG_INFO, "unknown request fields ignored: %s%s", names, n > 6 ? ", ..." : "");
}

/* Rules between fields. */
static int check_together(const sh_params *p, sh_api_kind kind, const sh_params_limits *lim, sh_api_error *e) {
  if (p->has_stream_options && !p->stream)
    return sh_api_fail(e, 400, "stream_options", "Stream options can only be defined when `stream=True`.");
  if (p->best_of != SH_UNSET && p->best_of != (p->n == SH_UNSET ? 1 : p->n))
    return sh_api_fail(e, 400, "best_of", "`best_of` must be equal to `n`: choosing among more candidates is not supported.");
  if (p->top_logprobs != SH_UNSET && p->top_logprobs > 0 && !p->chat_logprobs)
    return sh_api_fail(e, 400, "top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
  const struct {
    const char *name;
    int64_t v;
  } counts[] = {{"top_logprobs", p->top_logprobs}, {"logprobs", p->logprobs}, {"prompt_logprobs", p->prompt_logprobs}};
  for (size_t i = 0; i < 3; i++)
    if (counts[i].v != SH_UNSET && counts[i].v > lim->max_logprobs)
      return sh_api_fail(e, 400, counts[i].name, "`%s` is %lld, more than the %lld this server allows (--max-logprobs).", counts[i].name,
                         (long long)counts[i].v, (long long)lim->max_logprobs);
  if (p->prompt_logprobs != SH_UNSET && p->stream)
    return sh_api_fail(e, 400, "prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
  size_t stop_bytes = 0;
  for (int i = 0; i < p->n_stop; i++) stop_bytes += p->stop[i].n;
  if (stop_bytes > SH_API_MAX_STOP_TOTAL)
    return sh_api_fail(e, 400, "stop", "The strings of `stop` have %zu bytes together; the limit is %d.", stop_bytes,
                       SH_API_MAX_STOP_TOTAL);
  if (p->truncate_prompt_tokens == 0)
    return sh_api_fail(e, 400, "truncate_prompt_tokens", "`truncate_prompt_tokens` must be -1 or at least 1, got 0.");
  if (p->allowed && !p->n_allowed) return sh_api_fail(e, 400, "allowed_token_ids", "`allowed_token_ids` is not null and empty.");
  if ((kind & (C | K)) && p->continue_final_message && p->add_generation_prompt)
    return sh_api_fail(e, 400, "continue_final_message", "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
  static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  bool known = !p->reasoning_effort;
  for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) known = known || !strcmp(p->reasoning_effort, efforts[i]);
  if (!known)
    return sh_api_fail(e, 400, "reasoning_effort", "`reasoning_effort` must be one of none, minimal, low, medium, high, xhigh, max.");
  return 0;
}

int sh_params_parse(const sh_json *body, sh_api_kind kind, const sh_params_limits *lim, sh_arena *a, sh_params *out, sh_api_error *e) {
  const sh_json_member *unknown[SH_API_MAX_MEMBERS];
  int n_unknown = 0;
  set_unset(out, kind);
  if (!sh_json_is(body, SH_JSON_OBJECT)) return sh_api_fail(e, 400, NULL, "The request body must be a JSON object.");
  if (body->len > SH_API_MAX_MEMBERS)
    return sh_api_fail(e, 400, NULL, "The request object has %zu members; the limit is %d.", body->len, SH_API_MAX_MEMBERS);
  for (size_t i = 0; i < body->len; i++) {
    const field *f = find_field(&body->members[i], kind);
    if (f && sh_json_get(body, f->name) != &body->members[i].value) continue; /* given again further on: the last one counts */
    if (!f) unknown[n_unknown++] = &body->members[i];
    else if (body->members[i].value.type != SH_JSON_NULL && take_field(f, &body->members[i].value, lim, a, out, e)) return -1;
  }
  if (n_unknown) log_unknown(unknown, n_unknown);
  return check_together(out, kind, lim, e);
}

/* --- Defaults --- */

static void warn_left_out(const char *name, const sh_json *v) {
  if (v->type == SH_JSON_NUMBER) sh_log(SH_LOG_WARN, "generation config: %s %.40s is out of range and left out", name, v->s);
  else sh_log(SH_LOG_WARN, "generation config: %s is %s and no number, and left out", name, sh_json_type_phrase(v->type));
}

void sh_gen_defaults_read(const sh_json *config, sh_gen_defaults *out) {
  static const struct {
    const char *name;
    size_t at;
    bool integer;
    double min, max;
    bool above;
  } rows[] = {
      {"temperature", offsetof(sh_gen_defaults, temperature), false, 0, 1e6, false},
      {"top_p", offsetof(sh_gen_defaults, top_p), false, 0, 1, true},
      {"min_p", offsetof(sh_gen_defaults, min_p), false, 0, 1, false},
      {"repetition_penalty", offsetof(sh_gen_defaults, repetition_penalty), false, 0, 1e6, true},
      {"top_k", offsetof(sh_gen_defaults, top_k), true, -1, I32, false},
      {"max_new_tokens", offsetof(sh_gen_defaults, max_new_tokens), true, 1, I32, false},
  };
  *out = (sh_gen_defaults){NAN, NAN, NAN, NAN, SH_UNSET, SH_UNSET};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const sh_json *v = sh_json_get(config, rows[i].name);
    double d;
    if (!v || v->type == SH_JSON_NULL) continue;
    int64_t n = 0;
    bool good = v->type == SH_JSON_NUMBER && sh_json_double(v, &d) == SH_OK && d >= rows[i].min && d <= rows[i].max &&
                !(rows[i].above && d <= rows[i].min);
    if (good && rows[i].integer) good = sh_json_int(v, &n) == SH_OK;
    if (!good) warn_left_out(rows[i].name, v);
    else if (rows[i].integer) *(int64_t *)(void *)((char *)out + rows[i].at) = n;
    else *(double *)(void *)((char *)out + rows[i].at) = d;
  }
}

/* What is above 0 stays above 0 where a float cannot tell: 0 means something else. */
static float pick(double request, double config, double openai) {
  double d = !isnan(request) ? request : !isnan(config) ? config : openai;
  float f = (float)d;
  return d > 0 && f == 0 ? FLT_TRUE_MIN : f;
}

void sh_params_fill(const sh_params *p, const sh_gen_defaults *d, sh_request_params *out) {
  sh_request_defaults(out);
  out->n = p->n == SH_UNSET ? 1 : (int)p->n;
  out->min_tokens = p->min_tokens == SH_UNSET ? 0 : (int)p->min_tokens;
  out->temperature = pick(p->temperature, d->temperature, 1);
  out->top_p = pick(p->top_p, d->top_p, 1);
  out->min_p = pick(p->min_p, d->min_p, 0);
  int64_t top_k = p->top_k != SH_UNSET ? p->top_k : d->top_k != SH_UNSET ? d->top_k : 0;
  out->top_k = top_k < 0 ? 0 : (int)top_k;
  out->repetition_penalty = pick(p->repetition_penalty, d->repetition_penalty, 1);
  out->presence_penalty = pick(p->presence_penalty, NAN, 0);
  out->frequency_penalty = pick(p->frequency_penalty, NAN, 0);
  out->has_seed = p->seed != SH_UNSET && p->seed != -1; /* vLLM: -1 means none */
  out->seed = out->has_seed ? (uint64_t)p->seed : 0;
  out->stop = p->stop;
  out->n_stop = p->n_stop;
  out->include_stop_str_in_output = p->include_stop_str_in_output;
  out->stop_ids = p->stop_ids;
  out->n_stop_ids = p->n_stop_ids;
  out->ignore_eos = p->ignore_eos;
  out->bias = p->bias;
  out->n_bias = p->n_bias;
  out->allowed = p->allowed;
  out->n_allowed = p->n_allowed;
  out->skip_special_tokens = p->skip_special_tokens;
  out->logprobs = -1;
  if (p->chat_logprobs) out->logprobs = p->top_logprobs == SH_UNSET ? 0 : (int)p->top_logprobs;
  if (p->logprobs != SH_UNSET) out->logprobs = (int)p->logprobs;
  out->prompt_logprobs = p->prompt_logprobs == SH_UNSET ? -1 : (int)p->prompt_logprobs;
}

static int bad_word_ids(const sh_tok *tok, const sh_str *word, bool space, sh_arena *a, sh_id_list *out, sh_error *e) {
  const char *p = word->p;
  size_t n = word->n;
  for (; n && strchr(" \t\n\r", *p) && *p; p++) n--;
  char *text = sh_arena_alloc(a, n + 2);
  if (!text) return sh_fail(e, SH_ERR_NOMEM, "out of memory for bad_words");
  size_t len = 0;
  if (space) text[len++] = ' ';
  if (n) memcpy(text + len, p, n);
  sh_ids ids = {0};
  int rc = sh_tok_encode(tok, text, len + n, 0, &ids, e);
  int32_t *v = rc ? NULL : sh_arena_array(a, ids.n + 1, sizeof *v);
  if (v && ids.n) memcpy(v, ids.v, ids.n * sizeof *v);
  *out = (sh_id_list){v, v ? (int)ids.n : 0};
  sh_ids_free(&ids);
  if (rc) return rc;
  return v ? 0 : sh_fail(e, SH_ERR_NOMEM, "out of memory for bad_words");
}

int sh_params_bad_words(const sh_params *p, const sh_tok *tok, sh_arena *a, sh_request_params *out, sh_error *e) {
  if (!p->n_bad_words) return 0;
  sh_id_list *lists = sh_arena_array(a, (size_t)p->n_bad_words * 2, sizeof *lists);
  if (!lists) return sh_fail(e, SH_ERR_NOMEM, "out of memory for bad_words");
  int n = 0, rc;
  for (int i = 0; i < p->n_bad_words; i++) {
    sh_id_list plain, spaced;
    if ((rc = bad_word_ids(tok, &p->bad_words[i], false, a, &plain, e)) || (rc = bad_word_ids(tok, &p->bad_words[i], true, a, &spaced, e)))
      return rc;
    if (!plain.n) return sh_fail(e, SH_ERR_ARG, "`bad_words` has an entry without any token.");
    lists[n++] = plain;
    if (spaced.n == plain.n && spaced.v[0] != plain.v[0]) lists[n++] = spaced;
  }
  out->bad_words = lists;
  out->n_bad_words = n;
  return 0;
}
