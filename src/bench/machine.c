/* The description of the machine, from /proc, /sys and uname. Any thread; no state.
 *
 * In a virtual machine the model name may say little ("AMD EPYC"); it is repeated as the system has it, and nothing is guessed from it. The
 * load stands beside it because a busy machine is the usual reason why two runs differ. */
#include "bench/machine.h"

#include "base/file.h"
#include "base/pool.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

/* Extensions worth knowing when numbers of two machines differ; those that a kernel here uses come first. */
static const char *const ISA[] = {"avx2",        "fma",         "f16c",     "bmi2",     "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
                                  "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "asimddp",  "i8mm",    "bf16",     "sve"};

/* A small text file of the system, NUL-terminated; false without it. Such files say a length of 0, hence no sh_file_read_regular. */
static bool read_text(const char *root, const char *path, char *buf, size_t cap) {
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  FILE *f = fopen(full, "re");
  if (!f) return false;
  size_t n = fread(buf, 1, cap - 1, f);
  fclose(f);
  buf[n] = '\0';
  return n > 0;
}

/* The value of the first line "key : value" of /proc/cpuinfo. */
static bool cpuinfo_value(const char *text, const char *key, char *out, size_t cap) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, key, n) != 0 || !strchr("\t :", line[n])) continue;
    const char *from = line + n + strspn(line + n, "\t :");
    snprintf(out, cap, "%.*s", (int)strcspn(from, "\n"), from);
    return out[0] != '\0';
  }
  return false;
}

static bool has_word(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
    if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ')) return true;
  return false;
}

static void put(char *buf, size_t cap, const char *separator, const char *word) {
  size_t n = strlen(buf);
  snprintf(buf + n, cap - n, "%s%s", n ? separator : "", word);
}

static void read_cpu(sh_machine *m, const char *root) {
  char text[16384], flags[8192];
  if (!read_text(root, "/proc/cpuinfo", text, sizeof text)) return;
  if (!cpuinfo_value(text, "model name", m->cpu, sizeof m->cpu)) cpuinfo_value(text, "CPU implementer", m->cpu, sizeof m->cpu);
  if (!cpuinfo_value(text, "flags", flags, sizeof flags) && !cpuinfo_value(text, "Features", flags, sizeof flags)) return;
  for (size_t i = 0; i < sizeof ISA / sizeof *ISA; i++)
    if (has_word(flags, ISA[i])) put(m->isa, sizeof m->isa, " ", ISA[i]);
}

static void read_caches(sh_machine *m, const char *root) {
  for (int i = 0; i < 16; i++) {
    char path[96], level[16], type[32], size[32], text[96], bytes[32];
    int64_t n;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
    if (!read_text(root, path, level, sizeof level)) return;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
    if (!read_text(root, path, type, sizeof type)) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
    if (!read_text(root, path, size, sizeof size)) continue;
    size[strcspn(size, "\n")] = '\0';
    level[strcspn(level, "\n")] = '\0';
    if (sh_parse_size(size, &n) < 0) continue;
    snprintf(text, sizeof text, "L%s%s %s", level, type[0] == 'D' ? "d" : type[0] == 'I' ? "i" : "", sh_format_size(n, bytes));
    put(m->caches, sizeof m->caches, ", ", text);
    if (n > m->last_cache) m->last_cache = n;
  }
}

void sh_machine_read(sh_machine *m, const char *root) {
  char text[128];
  struct utsname u;
  *m = (sh_machine){.cores = sh_cpu_count(), .memory = sh_memory_limit(), .load = -1};
  read_cpu(m, root);
  read_caches(m, root);
  if (read_text(root, "/proc/loadavg", text, sizeof text)) m->load = strtod(text, NULL);
  if (uname(&u) == 0) {
    snprintf(m->kernel, sizeof m->kernel, "%.40s %.80s", u.sysname, u.release);
    snprintf(m->arch, sizeof m->arch, "%.31s", u.machine);
  }
  if (!m->cpu[0]) snprintf(m->cpu, sizeof m->cpu, "unknown");
  if (!m->isa[0]) snprintf(m->isa, sizeof m->isa, "none of those that matter here");
  if (!m->caches[0]) snprintf(m->caches, sizeof m->caches, "unknown");
}

void sh_machine_text(const sh_machine *m, const char *prefix, sh_buf *out) {
  char memory[32];
  sh_buf_printf(out, "%s%s (%s), %d core%s, %s memory, %s\n", prefix, m->cpu, m->arch, m->cores, m->cores == 1 ? "" : "s",
                sh_format_size(m->memory, memory), m->kernel);
  sh_buf_printf(out, "%scaches: %s; instructions: %s\n", prefix, m->caches, m->isa);
  if (m->load >= 0) sh_buf_printf(out, "%sload when it began: %.2f\n", prefix, m->load);
}

void sh_machine_json(const sh_machine *m, sh_jw *w) {
  sh_jw_obj(w);
  sh_jw_kstr(w, "cpu", m->cpu);
  sh_jw_kstr(w, "arch", m->arch);
  sh_jw_kint(w, "cores", m->cores);
  sh_jw_kstr(w, "caches", m->caches);
  sh_jw_kstr(w, "isa", m->isa);
  sh_jw_kint(w, "memory_bytes", m->memory);
  sh_jw_kstr(w, "kernel", m->kernel);
  if (m->load >= 0) sh_jw_kdouble(w, "load", m->load);
  else sh_jw_knull(w, "load");
  sh_jw_end_obj(w);
}
