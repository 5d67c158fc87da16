/* `sheng inspect MODEL`: a dry check before serving. Says what a model is made of, which kernels its weights will get, everything that is
 * missing, left over or wrong (not only the first of it), what the tokenizer and the template do, and how much fits in memory. Writes
 * nothing and computes nothing with the weights. */
#ifndef SH_OPS_INSPECT_H
#define SH_OPS_INSPECT_H

#include "base/opt.h"

typedef struct sh_inspect_options {
  const char *model; /* a folder or .gguf that exists; borrowed */
  bool json, exact;
  sh_strlist context; /* tokens, as text */
  int64_t memory;     /* bytes; 0 = that of the cgroup or machine */
  double memory_utilization;
  const char *cpu, *head, *kv_cache_dtype;
} sh_inspect_options;

extern const sh_opt sh_inspect_option_table[];
extern const sh_inspect_options sh_inspect_option_defaults;

/* Appends the report (text, or one JSON object and a newline) to out. *will_start: `sheng serve` with these options will. What is wrong
 * with the model is in the report; an error is a wrong option (SH_ERR_ARG) or no memory. */
int sh_inspect_run(const sh_inspect_options *o, sh_buf *out, bool *will_start, sh_error *e);

#endif
