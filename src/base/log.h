/* Logging to stderr: one line per call, "2026-01-31T12:00:00.123Z INFO text", written with a single write() so that lines of threads never
 * mix. Control characters in the text are escaped (a request must not be able to forge a log line). */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

typedef enum sh_log_level { SH_LOG_ERROR, SH_LOG_WARN, SH_LOG_INFO, SH_LOG_DEBUG } sh_log_level;

void sh_log_set_level(sh_log_level l);
int sh_log_level_parse(const char *name, sh_log_level *out); /* error|warning|warn|info|debug, any case */
void sh_log(sh_log_level l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same line without time and level, whatever the level: what a command says before it ends. */
void sh_log_plain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
