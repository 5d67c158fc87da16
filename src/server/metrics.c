/* GET /metrics: Prometheus text, in vLLM's names so that its dashboards work. Loop thread.
 *
 * One table: name, type, help and where the value comes from. Only what this server counts is listed; a dashboard shows a gap for the rest,
 * which is more honest than a zero. Values are read in one call (sh_engine_stats) and are consistent with each other.
 *
 * Refused alternative: a metrics library. It would be a dependency for a page of text. */
#include "server/state.h"
#include <stddef.h>
#include <string.h>

typedef struct sample {
  sh_stats stats;
  sh_counters server;
  double kv_usage;
} sample;

typedef struct metric {
  const char *name, *type, *help;
  size_t at;         /* in sample */
  bool real;         /* double, not int64_t */
  const char *label; /* value of finished_reason, or NULL */
} metric;

#define STAT(f) offsetof(sample, stats.f), false
#define SERVER(f) offsetof(sample, server.f), false
#define FINISHED "vllm:request_success_total", "counter", "Answers completed, by the reason of their end."

static const metric metrics[] = {
    {"vllm:num_requests_running", "gauge", "Sequences in the running batch.", STAT(running), NULL},
    {"vllm:num_requests_waiting", "gauge", "Sequences waiting to be scheduled.", STAT(waiting), NULL},
    {"vllm:kv_cache_usage_perc", "gauge", "Share of the KV pages in use, 0 to 1.", offsetof(sample, kv_usage), true, NULL},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens computed.", STAT(prompt_tokens), NULL},
    {"vllm:generation_tokens_total", "counter", "Tokens generated.", STAT(generation_tokens), NULL},
    {FINISHED, SERVER(finished[SH_FINISH_STOP]), "stop"},
    {FINISHED, SERVER(finished[SH_FINISH_LENGTH]), "length"},
    {FINISHED, SERVER(finished[SH_FINISH_ABORT]), "abort"},
    {FINISHED, SERVER(finished[SH_FINISH_ERROR]), "error"},
    {"vllm:num_preemptions_total", "counter", "Sequences put back to make room.", STAT(preemptions), NULL},
    {"sheng:num_requests_parked", "gauge", "Sequences waiting for a slow client.", STAT(parked), NULL},
    {"sheng:requests_cancelled_total", "counter", "Requests whose client went away.", STAT(requests_cancelled), NULL},
    {"sheng:requests_rejected_total", "counter", "Requests answered 503 because a queue was full.", SERVER(rejected), NULL},
    {"sheng:steps_total", "counter", "Steps of the engine.", STAT(steps), NULL},
};

/* A label value: backslash, quote and newline are escaped. */
static void put_label(sh_buf *out, const char *s) {
  for (; *s; s++) {
    if (*s == '\n') sh_buf_puts(out, "\\n");
    else if (*s == '\\' || *s == '"') sh_buf_printf(out, "\\%c", *s);
    else sh_buf_putc(out, *s);
  }
}

static void put_metric(const sh_server *s, const metric *m, const sample *v, sh_buf *out) {
  sh_buf_printf(out, "%s{model_name=\"", m->name);
  put_label(out, s->names[0]);
  sh_buf_puts(out, "\",engine=\"0\"");
  if (m->label) sh_buf_printf(out, ",finished_reason=\"%s\"", m->label);
  const char *at = (const char *)v + m->at;
  if (m->real) sh_buf_printf(out, "} %.6g\n", *(const double *)(const void *)at);
  else sh_buf_printf(out, "} %lld\n", (long long)*(const int64_t *)(const void *)at);
}

int sh_api_metrics(sh_call *c, sh_api_error *e) {
  (void)e;
  const sh_server *s = c->srv;
  sample v = {.server = s->counters};
  if (s->phase == SH_PHASE_READY || s->phase == SH_PHASE_DRAINING) sh_engine_stats(s->engine, &v.stats);
  v.kv_usage = v.stats.pages_total ? (double)v.stats.pages_used / (double)v.stats.pages_total : 0;
  const char *last = "";
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
    const metric *m = &metrics[i];
    if (strcmp(m->name, last) != 0) sh_buf_printf(&c->out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type);
    last = m->name;
    put_metric(s, m, &v, &c->out);
  }
  c->type = "text/plain; version=0.0.4; charset=utf-8";
  return 0;
}
