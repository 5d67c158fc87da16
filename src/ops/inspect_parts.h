/* What an inspection has found: for inspect*.c only. inspect.c fills the struct with inspect_weights.c and inspect_text.c;
 * inspect_show.c and inspect_json.c write it. */
#ifndef SH_OPS_INSPECT_PARTS_H
#define SH_OPS_INSPECT_PARTS_H

#include "backend/backend.h"
#include "engine/plan.h"
#include "model/weights.h"
#include "ops/inspect.h"
#include "text/chat.h"
#include "text/tokenizer.h"

enum {
  SH_INSP_FILES = 2048, /* kept; more are counted */
  SH_INSP_NAMES = 1000, /* issues and unused tensors kept; more are counted */
  SH_INSP_ROWS = 256,   /* rows of the table of weights */
  SH_INSP_PLANS = 16,
  SH_INSP_STOPS = 64,
};

typedef struct sh_insp_file {
  const char *name;
  int64_t bytes;
} sh_insp_file;

typedef struct sh_insp_issue {
  bool fatal;        /* serve will not start; else worth knowing */
  const char *where; /* "weights", "config", ... */
  const char *text;
} sh_insp_issue;

/* Tensors of one group that are stored alike and computed alike. */
typedef struct sh_insp_row {
  int group;
  const char *format, *kernel;
  int64_t tensors, bytes; /* a quantized module counts once */
} sh_insp_row;

typedef struct sh_insp_plan {
  int64_t context;
  int rc;
  sh_plan plan;
  const char *error;
} sh_insp_plan;

typedef struct sh_insp_tokenizer {
  const char *model, *normalizer, *pretokenizer, *source;
  int vocab, n_added, n_special;
  int32_t bos, eos;
  bool round_trip; /* a probe text came back as it was */
  bool adds_special;
} sh_insp_tokenizer;

typedef struct sh_insp_template {
  const char *source; /* NULL: there is none */
  size_t bytes;
  bool compiles, takes_parts;
  const char *renders_error; /* NULL: the probe conversation rendered */
  bool thinks, has_switch;   /* leaves a thought open unless told otherwise; enable_thinking changes what it writes */
} sh_insp_template;

typedef struct sh_insp {
  const sh_inspect_options *o;
  sh_head head; /* what the options of these names say */
  sh_kv_type kv_type;
  sh_arena *a;
  sh_error *e;    /* of what ends the inspection */
  bool no_memory; /* a text was lost */

  sh_insp_file *files; /* [SH_INSP_FILES] */
  int n_files;
  int64_t n_files_all, file_bytes, weight_file_bytes;

  sh_ckpt *ck;    /* NULL: nothing could be opened */
  bool text_only; /* ck was opened without weights, which could not be */
  bool is_gguf;
  sh_backend *be;
  sh_config cfg;
  bool has_config, has_weights;
  sh_quant quant;
  sh_weights w;
  sh_insp_row *rows; /* [SH_INSP_ROWS] by group */
  int n_rows;
  const char **unused; /* [SH_INSP_NAMES] */
  int64_t n_unused, unused_bytes, n_visual, visual_bytes, n_mtp;

  sh_tok *tok;
  sh_chat *chat;
  bool has_tok;
  sh_insp_tokenizer tk;
  sh_insp_template tp;
  const sh_json *gen; /* sampling defaults or NULL */
  int32_t stops[SH_INSP_STOPS];
  int n_stops;

  int64_t total_bytes, weight_bytes; /* of the plan */
  sh_insp_plan serve;                /* what serve will do unasked */
  sh_insp_plan plans[SH_INSP_PLANS];
  int n_plans;

  sh_insp_issue *issues; /* [SH_INSP_NAMES] */
  int n_issues;
  int64_t n_fatal, n_warnings; /* all of them */
} sh_insp;

/* Notes an issue; a text that begins with the model's path loses it. */
void sh_insp_issue_add(sh_insp *p, bool fatal, const char *where, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* A copy without control characters, cut when very long: names come from files, and go to a terminal. Never NULL. */
const char *sh_insp_clean(sh_insp *p, const char *s);

/* inspect_weights.c */
int sh_insp_weights(sh_insp *p); /* 0 or SH_ERR_NOMEM; issues tell the rest */
const char *sh_insp_group_name(int group);

/* inspect_text.c */
void sh_insp_tokenizer_read(sh_insp *p);
void sh_insp_template_read(sh_insp *p);
void sh_insp_generation_read(sh_insp *p);

/* inspect_show.c, inspect_json.c */
void sh_insp_show(const sh_insp *p, sh_buf *out);
void sh_insp_json(const sh_insp *p, sh_buf *out);
/* Sequences of that context which fit whole at once. */
int64_t sh_insp_whole(const sh_insp_plan *p);

#endif
