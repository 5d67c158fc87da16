/* Tasks: questions with one right answer, read from JSONL, answered by each model on its own. One thread.
 *
 * A wrong line stops the run with its number: a share over the lines that happened to be right would be a number about something else. What
 * stands before the last </think> of an answer, given or wanted, is a thought and not compared; a model whose template opens the thought in
 * the prompt writes only its end. */
#include "quant/eval_parts.h"

#include "base/file.h"
#include <string.h>

enum { MAX_NEW = 512, MAX_NEW_LIMIT = 65536, MAX_CHOICES = 1000 };

static int no_memory(sh_error *e) { return sh_fail(e, SH_ERR_NOMEM, "out of memory for the tasks"); }

/* ---- Reading ---- */

static int group_of(sh_eval_job *j, const char *name, sh_eval_task *groups, int *out, sh_error *e) {
  sh_eval *r = j->r;
  for (*out = 0; *out < r->n_tasks; (*out)++)
    if (!strcmp(groups[*out].name, name)) return 0;
  if (r->n_tasks == SH_EVAL_MAX_GROUPS)
    return sh_fail(e, SH_ERR_LIMIT, "it begins group %d of tasks, at most %d can be told apart", r->n_tasks + 1, SH_EVAL_MAX_GROUPS);
  groups[r->n_tasks].name = sh_arena_strdup(r->private_arena, name, strlen(name));
  return groups[r->n_tasks++].name ? 0 : no_memory(e);
}

static int read_choices(sh_eval_job *j, sh_eval_item *t, const sh_json *line, sh_error *e) {
  const sh_json *list = sh_json_get(line, "choices"), *answer = sh_json_get(line, "answer");
  int64_t index;
  if (!sh_json_is(list, SH_JSON_ARRAY) || list->len < 2 || list->len > MAX_CHOICES)
    return sh_fail(e, SH_ERR_FORMAT, "\"choices\" is %s%s, wanted a list of 2 to %d texts", sh_json_type_phrase(list->type),
                   !sh_json_is(list, SH_JSON_ARRAY) ? ""
                   : list->len == 0                 ? " of no text"
                   : list->len == 1                 ? " of one text"
                                                    : " of too many",
                   MAX_CHOICES);
  if (sh_json_int(answer, &index) < 0)
    return sh_fail(e, SH_ERR_FORMAT, "\"answer\" is %s, wanted the index of the right choice, 0 to %zu",
                   answer ? sh_json_type_phrase(answer->type) : "missing", list->len - 1);
  if (index < 0 || index >= (int64_t)list->len)
    return sh_fail(e, SH_ERR_FORMAT, "\"answer\" is %lld, wanted the index of one of the %zu choices, 0 to %zu", (long long)index,
                   list->len, list->len - 1);
  t->index = (int)index;
  t->choices = sh_calloc(list->len, sizeof *t->choices);
  t->n_ids = sh_calloc(list->len, sizeof *t->n_ids);
  if (!t->choices || !t->n_ids) return no_memory(e);
  t->n_choices = (int)list->len;
  for (size_t i = 0; i < list->len; i++) {
    const sh_json *c = &list->items[i];
    sh_ids ids = {0};
    if (!sh_json_is(c, SH_JSON_STRING) || c->len == 0)
      return sh_fail(e, SH_ERR_FORMAT, "\"choices\"[%zu] is %s, wanted a text", i,
                     c->type == SH_JSON_STRING ? "empty" : sh_json_type_phrase(c->type));
    int rc = sh_tok_encode(j->tok, c->s, c->len, 0, &ids, e);
    t->choices[i] = ids.v;
    t->n_ids[i] = (int)ids.n;
    if (rc < 0) return rc;
  }
  return 0;
}

static int read_answer(sh_eval_job *j, sh_eval_item *t, const sh_json *line, sh_error *e) {
  const sh_json *answer = sh_json_get(line, "answer"), *json = sh_json_get(line, "json"), *max = sh_json_get(line, "max_tokens");
  sh_arena *a = j->r->private_arena;
  int64_t n = MAX_NEW;
  if (!sh_json_is(answer, SH_JSON_STRING))
    return sh_fail(e, SH_ERR_FORMAT, "\"answer\" is %s, wanted the text of the right answer",
                   answer ? sh_json_type_phrase(answer->type) : "missing");
  if (json && !sh_json_is(json, SH_JSON_BOOL))
    return sh_fail(e, SH_ERR_FORMAT, "\"json\" is %s, wanted true or false", sh_json_type_phrase(json->type));
  if (max && (sh_json_int(max, &n) < 0 || n < 1 || n > MAX_NEW_LIMIT))
    return sh_fail(e, SH_ERR_FORMAT, "\"max_tokens\" is wrong, wanted a number of 1 to %d", MAX_NEW_LIMIT);
  t->max_new = (int)n;
  t->answer = sh_arena_strdup(a, answer->s, answer->len);
  if (!t->answer) return no_memory(e);
  t->n_answer = answer->len;
  if (!json || !json->b) return 0;
  sh_json *value;
  int rc = sh_json_parse(t->answer, answer->len, NULL, a, &value, e);
  if (rc < 0) return sh_fail_in(e, rc, "\"json\" is true, and \"answer\" is no JSON");
  t->json = value;
  return 0;
}

static int read_item(sh_eval_job *j, sh_eval_item *t, const sh_json *line, sh_eval_task *groups, sh_arena *a, sh_error *e) {
  int rc = sh_samples_encode(line, true, j->tok, j->chat, a, &t->prompt, e);
  if (rc < 0) return rc;
  if (t->prompt.n == 0) return sh_fail(e, SH_ERR_FORMAT, "its prompt is empty");
  const sh_json *name = sh_json_get(line, "task"), *choices = sh_json_get(line, "choices");
  if (name && !sh_json_is(name, SH_JSON_STRING))
    return sh_fail(e, SH_ERR_FORMAT, "\"task\" is %s, wanted the name of a group", sh_json_type_phrase(name->type));
  rc = group_of(j, name ? name->s : "tasks", groups, &t->group, e);
  if (rc < 0) return rc;
  rc = choices ? read_choices(j, t, line, e) : read_answer(j, t, line, e);
  if (rc == 0) *(choices ? &groups[t->group].n_choices : &groups[t->group].n_answers) += 1;
  return rc;
}

static int read_task(sh_eval_job *j, const char *s, size_t n, int number, sh_eval_task *groups, sh_error *e) {
  sh_eval_items *v = &j->tasks;
  if (v->n == v->cap) {
    int cap = v->cap ? v->cap * 2 : 64;
    sh_eval_item *p = sh_realloc(v->v, (size_t)cap * sizeof *p);
    if (!p) return no_memory(e);
    v->v = p;
    v->cap = cap;
  }
  sh_eval_item *t = &v->v[v->n++];
  *t = (sh_eval_item){.line = number};
  sh_json *line;
  sh_arena *a = sh_arena_new((64u << 20) + n * 64);
  if (!a) return no_memory(e);
  int rc = sh_json_parse(s, n, NULL, a, &line, e);
  if (rc == 0) rc = read_item(j, t, line, groups, a, e);
  if (rc < 0) sh_fail_in(e, rc, "%s line %d", j->o->tasks, number);
  sh_arena_free(a);
  return rc;
}

int sh_eval_tasks_load(sh_eval_job *j, sh_error *e) {
  char *text = NULL;
  size_t len;
  int rc = sh_file_read(j->o->tasks, SH_SAMPLES_MAX_FILE, &text, &len, e), number = 0;
  if (rc < 0) return rc;
  sh_eval_task *groups = sh_arena_array(j->r->private_arena, SH_EVAL_MAX_GROUPS, sizeof *groups);
  if (!groups) rc = no_memory(e);
  j->r->tasks = groups;
  for (const char *s = text, *end = text + len, *stop; rc == 0 && s < end; s = stop + 1) {
    stop = memchr(s, '\n', (size_t)(end - s));
    if (!stop) stop = end;
    number++;
    if (strspn(s, " \t\r\n") >= (size_t)(stop - s)) continue;
    rc = read_task(j, s, (size_t)(stop - s), number, groups, e);
  }
  if (rc == 0 && j->tasks.n == 0) rc = sh_fail(e, SH_ERR_ARG, "%s holds no task", j->o->tasks);
  sh_free(text);
  return rc;
}

void sh_eval_tasks_free(sh_eval_items *t) {
  for (int i = 0; i < t->n; i++) {
    sh_ids_free(&t->v[i].prompt);
    for (int k = 0; k < t->v[i].n_choices; k++) sh_free(t->v[i].choices[k]);
    sh_free(t->v[i].choices);
    sh_free(t->v[i].n_ids);
  }
  sh_free(t->v);
  *t = (sh_eval_items){0};
}

/* ---- Comparing ---- */

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void trim(const char **s, size_t *n) {
  while (*n && blank(**s)) (*s)++, (*n)--;
  while (*n && blank((*s)[*n - 1])) (*n)--;
}

/* Equal as JSON values: numbers by value, objects whatever the order of their keys. */
static bool same_value(const sh_json *a, const sh_json *b) {
  if (a->type != b->type) return false;
  double x, y;
  switch (a->type) {
  case SH_JSON_NULL: return true;
  case SH_JSON_BOOL: return a->b == b->b;
  case SH_JSON_NUMBER:
    return (a->len == b->len && !memcmp(a->s, b->s, a->len)) || (sh_json_double(a, &x) == 0 && sh_json_double(b, &y) == 0 && x == y);
  case SH_JSON_STRING: return a->len == b->len && !memcmp(a->s, b->s, a->len);
  case SH_JSON_ARRAY:
    for (size_t i = 0; i < a->len && a->len == b->len; i++)
      if (!same_value(&a->items[i], &b->items[i])) return false;
    return a->len == b->len;
  case SH_JSON_OBJECT:
    for (size_t i = 0; i < a->len && a->len == b->len; i++) {
      const sh_json *other = sh_json_get(b, a->members[i].key);
      if (!other || !same_value(&a->members[i].value, other)) return false;
    }
    return a->len == b->len;
  }
  return false;
}

/* What stands after the last </think>, without the blanks around it. */
static void without_thought(const char **s, size_t *n) {
  static const char end[] = "</think>";
  for (size_t i = *n; i + 1 > sizeof end - 1; i--)
    if (!memcmp(*s + i - (sizeof end - 1), end, sizeof end - 1)) {
      *s += i, *n -= i;
      break;
    }
  trim(s, n);
}

static bool is_right(const sh_eval_item *t, const char *s, size_t n) {
  without_thought(&s, &n);
  if (!t->json) {
    const char *want = t->answer;
    size_t n_want = t->n_answer;
    without_thought(&want, &n_want);
    return n == n_want && !memcmp(s, want, n);
  }
  sh_json *value;
  sh_arena *a = sh_arena_new((16u << 20) + n * 64);
  bool right = a && sh_json_parse(s, n, NULL, a, &value, NULL) == 0 && same_value(value, t->json);
  sh_arena_free(a);
  return right;
}

/* ---- Answering ---- */

static int check_answer(sh_eval_job *j, const sh_eval_item *t, const sh_eval_gen *g, int side, sh_eval_task *groups, sh_error *e) {
  sh_buf text;
  sh_buf_init(&text, 16 << 20);
  int rc = sh_tok_decode(j->tok, g->out, (size_t)g->n_out, true, &text, e);
  if (rc == 0) groups[t->group].right[side] += is_right(t, text.p ? text.p : "", text.len);
  sh_buf_free(&text);
  return rc;
}

static int run_choice(sh_eval_job *j, const sh_eval_item *t, int side, sh_eval_task *groups, sh_error *e) {
  double sum[MAX_CHOICES];
  int best = 0, norm = 0;
  int rc = sh_eval_choices(&j->side[side], t->prompt.v, (int)t->prompt.n, t->choices, t->n_ids, t->n_choices, j->vocab, sum, e);
  for (int i = 1; i < t->n_choices; i++) {
    if (sum[i] > sum[best]) best = i;
    if (sum[i] / t->n_ids[i] > sum[norm] / t->n_ids[norm]) norm = i;
  }
  groups[t->group].best[side] += best == t->index;
  groups[t->group].best_norm[side] += norm == t->index;
  return rc;
}

/* The next answers from task *at on, as many as are computed at once. */
static int run_answers(sh_eval_job *j, int *at, int side, sh_eval_task *groups, sh_error *e) {
  sh_eval_gen gen[SH_EVAL_GROUP] = {0};
  const sh_eval_item *items[SH_EVAL_GROUP];
  int n = 0, rc = 0;
  for (; *at < j->tasks.n && n < SH_EVAL_GROUP && rc == 0; (*at)++) {
    const sh_eval_item *t = &j->tasks.v[*at];
    if (!t->answer) continue;
    gen[n] = (sh_eval_gen){.prompt = t->prompt.v, .n_prompt = (int)t->prompt.n, .max_new = t->max_new};
    gen[n].out = sh_calloc((size_t)t->max_new, sizeof *gen[n].out);
    if (!gen[n].out) rc = no_memory(e);
    items[n++] = t;
  }
  if (rc == 0) rc = sh_eval_generate(&j->side[side], gen, n, j->vocab, j->ends, j->n_ends, e);
  for (int i = 0; i < n; i++) {
    if (rc == 0) rc = check_answer(j, items[i], &gen[i], side, groups, e);
    sh_free(gen[i].out);
  }
  return rc;
}

int sh_eval_tasks_run(sh_eval_job *j, sh_error *e) {
  sh_eval_task *groups = (sh_eval_task *)(uintptr_t)j->r->tasks; /* ours until the result is handed out */
  int rc = 0;
  for (int side = 0; side < j->n_sides; side++) {
    for (int at = 0; rc == 0 && at < j->tasks.n;) rc = run_answers(j, &at, side, groups, e);
    for (int i = 0; rc == 0 && i < j->tasks.n; i++)
      if (!j->tasks.v[i].answer) rc = run_choice(j, &j->tasks.v[i], side, groups, e);
  }
  return rc;
}
