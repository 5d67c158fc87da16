/* The pre-tokenizing pipeline.
 *
 * Built by the thread that opens a model; run by any thread, each with its own sh_pretok_run (match data, the larger JIT stack when one was
 * needed). The steps call each other: a step finds its words one by one and feeds each to the next step, the last one to the sink, so
 * nothing is collected and 10 MB of text need no array of words. That the behaviours need to look one word ahead or back is handled by
 * holding one word (struct splitter).
 *
 * Patterns are compiled with PCRE2 (UTF, UCP, JIT where the machine has it). Matching is limited in steps and heap, so a pattern that
 * backtracks without end becomes an error and not a hang; the limit grows with the text because a run of n spaces is given back one by one
 * in n steps. Refused: hand-written splitters for the well-known patterns (PCRE2's JIT takes 40 ns per word, the rest of the encoder more).
 */
#include "text/pretok.h"

#include "base/text.h"

#include <pcre2.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_STEPS = 16, MAX_PATTERN = 1 << 16 }; /* MAX_PATTERN: bytes; ten times the longest one in use */
enum { JIT_STACK_MAX = 16 << 20 };              /* bytes; needed only by patterns that repeat groups */
enum { HEAP_LIMIT_KIB = 256 << 10, MATCH_STEPS = 100000, MATCH_STEPS_PER_BYTE = 64 };

typedef enum step_kind { STEP_REGEX, STEP_DIGITS, STEP_PREFIX_SPACE } step_kind;

typedef struct step {
  step_kind kind;
  sh_pretok_behavior behavior;
  bool invert;
  pcre2_code *re; /* STEP_REGEX; owned */
  bool jit;
} step;

struct sh_pretok {
  step steps[MAX_STEPS];
  int n_steps;
};

struct sh_pretok_run {
  const sh_pretok *p; /* borrowed */
  sh_pretok_sink sink;
  void *ctx;
  sh_error *e; /* of the call in progress */
  pcre2_general_context *memory;
  pcre2_match_data *md;
  pcre2_match_context *mc;
  pcre2_jit_stack *stack; /* made when the default one was too small */
};

/* --- Building ------------------------------------------------------------------------------------------------------------------------- */

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

sh_pretok *sh_pretok_new(void) { return sh_calloc(1, sizeof(sh_pretok)); }

void sh_pretok_free(sh_pretok *p) {
  if (!p) return;
  for (int i = 0; i < p->n_steps; i++) pcre2_code_free(p->steps[i].re);
  sh_free(p);
}

static int add_step(sh_pretok *p, step s, sh_error *e) {
  if (p->n_steps < MAX_STEPS) {
    p->steps[p->n_steps++] = s;
    return 0;
  }
  pcre2_code_free(s.re);
  return sh_fail(e, SH_ERR_LIMIT, "the pre-tokenizer has more than %d steps", MAX_STEPS);
}

static void *pcre_malloc(size_t n, void *unused) {
  (void)unused;
  return sh_malloc(n);
}

static void pcre_free(void *p, void *unused) {
  (void)unused;
  sh_free(p);
}

/* `re` is in PCRE2's language. */
static int compile(const char *re, size_t n, bool literal, step *s, sh_error *e) {
  uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int code;
  PCRE2_SIZE at;
  pcre2_general_context *memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
  pcre2_compile_context *cc = memory ? pcre2_compile_context_create(memory) : NULL;
  pcre2_general_context_free(memory);
  if (!cc) return sh_fail(e, SH_ERR_NOMEM, "out of memory for a split pattern");
  pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
  s->re = pcre2_compile((PCRE2_SPTR)re, n, options, &code, &at, cc);
  pcre2_compile_context_free(cc);
  if (!s->re && code == PCRE2_ERROR_HEAP_FAILED) return sh_fail(e, SH_ERR_NOMEM, "out of memory for a split pattern");
  if (!s->re) {
    char why[160];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return sh_fail(e, SH_ERR_FORMAT, "the split pattern \"%.200s\" does not compile: %s (at byte %zu)", re, why, (size_t)at);
  }
  size_t jit_size = 0;
  pcre2_jit_compile(s->re, PCRE2_JIT_COMPLETE);
  s->jit = pcre2_pattern_info(s->re, PCRE2_INFO_JITSIZE, &jit_size) == 0 && jit_size > 0;
  return 0;
}

int sh_pretok_add_split(sh_pretok *p, const char *pattern, size_t n, bool literal, sh_pretok_behavior behavior, bool invert, sh_error *e) {
  step s = {.kind = STEP_REGEX, .behavior = behavior, .invert = invert};
  sh_buf re;
  sh_buf_init(&re, MAX_PATTERN);
  int rc = literal ? sh_buf_put(&re, pattern, n) : sh_pretok_translate(pattern, n, &re, e);
  if (re.failed) rc = sh_fail(e, re.failed, "a split pattern of %zu bytes is too long", n);
  if (!rc) rc = compile(re.p ? re.p : "", re.len, literal, &s, e);
  sh_buf_free(&re);
  return rc ? rc : add_step(p, s, e);
}

int sh_pretok_add_digits(sh_pretok *p, bool individual, sh_error *e) {
  return add_step(p, (step){.kind = STEP_DIGITS, .behavior = individual ? SH_PRETOK_ISOLATED : SH_PRETOK_CONTIGUOUS}, e);
}

int sh_pretok_add_byte_level(sh_pretok *p, bool add_prefix_space, bool use_regex, sh_error *e) {
  int rc = add_prefix_space ? add_step(p, (step){.kind = STEP_PREFIX_SPACE}, e) : 0;
  if (!rc && use_regex) rc = sh_pretok_add_split(p, gpt2_pattern, sizeof gpt2_pattern - 1, false, SH_PRETOK_ISOLATED, false, e);
  return rc;
}

/* --- Finding matches ------------------------------------------------------------------------------------------------------------------ */

/* Where the search in one text stands. */
typedef struct cursor {
  const char *s;
  size_t n, at, last_end;
  bool matched_before;
} cursor;

static int match_failed(sh_pretok_run *r, int code) {
  if (code == PCRE2_ERROR_NOMEMORY) return sh_fail(r->e, SH_ERR_NOMEM, "out of memory while splitting text into words");
  char why[160];
  pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
  return sh_fail(r->e, SH_ERR_LIMIT, "the tokenizer's split pattern gave up on this text: %s", why);
}

static int run_match(sh_pretok_run *r, const step *st, const cursor *c) {
  if (st->jit) return pcre2_jit_match(st->re, (PCRE2_SPTR)c->s, c->n, c->at, PCRE2_NO_UTF_CHECK, r->md, r->mc);
  return pcre2_match(st->re, (PCRE2_SPTR)c->s, c->n, c->at, PCRE2_NO_UTF_CHECK, r->md, r->mc);
}

/* The next match from c->at: 1 and [*start, *end), 0 at the end, or an error. An empty match right after the last match does not count. */
static int next_regex(sh_pretok_run *r, const step *st, cursor *c, size_t *start, size_t *end) {
  while (c->at <= c->n) {
    int rc = run_match(r, st, c);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !r->stack) {
      r->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, r->memory);
      if (!r->stack) return match_failed(r, PCRE2_ERROR_NOMEMORY);
      pcre2_jit_stack_assign(r->mc, NULL, r->stack);
      rc = run_match(r, st, c);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return match_failed(r, rc);
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->md);
    if (o[0] < c->at || o[1] < o[0]) return sh_fail(r->e, SH_ERR_UNSUPPORTED, "the tokenizer's split pattern moves the start of its match");
    if (o[0] == o[1] && c->matched_before && o[1] == c->last_end) {
      c->at++;
      while (c->at < c->n && ((unsigned char)c->s[c->at] & 0xC0) == 0x80) c->at++;
      continue;
    }
    *start = o[0];
    *end = c->at = c->last_end = o[1];
    c->matched_before = true;
    return 1;
  }
  return 0;
}

/* Numeric characters, one at a time. */
static int next_digit(cursor *c, size_t *start, size_t *end) {
  while (c->at < c->n) {
    uint32_t cp = (unsigned char)c->s[c->at];
    int used = cp < 0x80 ? 1 : sh_utf8_decode(c->s + c->at, c->n - c->at, &cp);
    if (used < 0) used = -used;
    *start = c->at;
    *end = c->at += (size_t)used;
    if (cp < 0x80) {
      if (cp >= '0' && cp <= '9') return 1;
      continue;
    }
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)cp);
    if (cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO) return 1;
  }
  return 0;
}

/* --- Words from matches --------------------------------------------------------------------------------------------------------------- */

static int feed(sh_pretok_run *r, int i_step, const char *s, size_t n);

/* Turns the alternating stretches (matched or not) of one text into words for step `next`, holding back one stretch where the behaviour can
 * still extend it: the unmatched one before a match (MERGED_WITH_PREVIOUS), the match before an unmatched one (MERGED_WITH_NEXT), a run of
 * one kind (CONTIGUOUS). */
typedef struct splitter {
  sh_pretok_run *r;
  const step *st;
  int next;
  const char *s;
  bool holding, held_match, last_match;
  size_t held_start, held_end;
} splitter;

static int emit(splitter *w, size_t start, size_t end) { return feed(w->r, w->next, w->s + start, end - start); }

static int release(splitter *w) {
  if (!w->holding) return 0;
  w->holding = false;
  return emit(w, w->held_start, w->held_end);
}

static int hold(splitter *w, size_t start, size_t end, bool match) {
  int rc = release(w);
  w->holding = true;
  w->held_match = match;
  w->held_start = start;
  w->held_end = end;
  return rc;
}

static int stretch(splitter *w, size_t start, size_t end, bool match) {
  if (w->st->invert) match = !match;
  switch (w->st->behavior) {
  case SH_PRETOK_ISOLATED: return emit(w, start, end);
  case SH_PRETOK_REMOVED: return match ? 0 : emit(w, start, end);
  case SH_PRETOK_MERGED_WITH_PREVIOUS:
    if (match && w->holding && !w->held_match) {
      w->held_end = end;
      w->held_match = true;
      return release(w);
    }
    return hold(w, start, end, match);
  case SH_PRETOK_MERGED_WITH_NEXT:
    if (!match && w->holding && w->held_match) {
      w->held_end = end;
      return release(w);
    }
    return match ? hold(w, start, end, true) : emit(w, start, end);
  case SH_PRETOK_CONTIGUOUS:
    if (w->holding && w->held_match == match) {
      w->held_end = end;
      return 0;
    }
    return hold(w, start, end, match);
  }
  return SH_ERR_INTERNAL;
}

static int split(sh_pretok_run *r, int i_step, const char *s, size_t n) {
  const step *st = &r->p->steps[i_step];
  cursor c = {.s = s, .n = n};
  splitter w = {.r = r, .st = st, .next = i_step + 1, .s = s};
  size_t done = 0, start = 0, end = 0;
  int rc;
  while ((rc = st->kind == STEP_DIGITS ? next_digit(&c, &start, &end) : next_regex(r, st, &c, &start, &end)) == 1) {
    rc = done < start ? stretch(&w, done, start, false) : 0;
    if (!rc) rc = stretch(&w, start, end, true);
    if (rc) return rc;
    done = end;
  }
  if (!rc && done < n) rc = stretch(&w, done, n, false);
  return rc ? rc : release(&w);
}

static int prefix_space(sh_pretok_run *r, int i_step, const char *s, size_t n) {
  if (s[0] == ' ') return feed(r, i_step + 1, s, n);
  char *with = sh_malloc(n + 1);
  if (!with) return sh_fail(r->e, SH_ERR_NOMEM, "out of memory while splitting text into words");
  with[0] = ' ';
  memcpy(with + 1, s, n);
  int rc = feed(r, i_step + 1, with, n + 1);
  sh_free(with);
  return rc;
}

static int feed(sh_pretok_run *r, int i_step, const char *s, size_t n) {
  if (n == 0) return 0;
  if (i_step == r->p->n_steps) return r->sink(r->ctx, s, n);
  return r->p->steps[i_step].kind == STEP_PREFIX_SPACE ? prefix_space(r, i_step, s, n) : split(r, i_step, s, n);
}

/* --- One call ------------------------------------------------------------------------------------------------------------------------- */

sh_pretok_run *sh_pretok_run_new(const sh_pretok *p, sh_pretok_sink sink, void *ctx) {
  sh_pretok_run *r = sh_calloc(1, sizeof *r);
  if (!r) return NULL;
  r->p = p;
  r->sink = sink;
  r->ctx = ctx;
  r->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
  r->md = r->memory ? pcre2_match_data_create(1, r->memory) : NULL;
  r->mc = r->memory ? pcre2_match_context_create(r->memory) : NULL;
  if (!r->md || !r->mc) {
    sh_pretok_run_free(r);
    return NULL;
  }
  pcre2_set_heap_limit(r->mc, HEAP_LIMIT_KIB);
  return r;
}

void sh_pretok_run_free(sh_pretok_run *r) {
  if (!r) return;
  pcre2_match_data_free(r->md);
  pcre2_match_context_free(r->mc);
  pcre2_jit_stack_free(r->stack);
  pcre2_general_context_free(r->memory);
  sh_free(r);
}

int sh_pretok_run_text(sh_pretok_run *r, const char *text, size_t n, sh_error *e) {
  uint64_t steps = MATCH_STEPS + (uint64_t)MATCH_STEPS_PER_BYTE * n;
  pcre2_set_match_limit(r->mc, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
  r->e = e;
  return feed(r, 0, text, n);
}
