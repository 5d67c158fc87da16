/* cgroup limits of this process.
 *
 * Any thread, at start-up; no state. /proc/self/cgroup has one line per hierarchy, "id:controllers:path"; the unified one (v2) has an empty
 * controller list. The limit of a group holds for all under it, so every folder from the group up to the mount is read and the smallest
 * value counts. In a container the listed path may not exist below the mount (v1 shows the host's path there): the walk then finds its
 * first files at the mount itself, which is the container's own group. Everything unreadable means "no limit": a wrong guess here must not
 * keep the program from starting. */
#include "base/cgroup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A small text file into buf; false when it is not there. */
static bool read_small(const char *path, char *buf, size_t cap) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t n = 0;
  for (ssize_t got; n + 1 < cap && (got = read(fd, buf + n, cap - 1 - n)) > 0;) n += (size_t)got;
  close(fd);
  buf[n] = '\0';
  return n > 0;
}

/* A non-negative number at the start of a file, -1 without one ("max", "-1", no file). */
static int64_t read_number(const char *dir, const char *name) {
  char path[PATH_MAX], text[64];
  int n = snprintf(path, sizeof path, "%s/%s", dir, name);
  if (n < 0 || n >= (int)sizeof path || !read_small(path, text, sizeof text)) return -1;
  if (text[0] < '0' || text[0] > '9') return -1;
  return strtoll(text, NULL, 10); /* saturates */
}

static int64_t smaller(int64_t a, int64_t b) { return a < 0 ? b : b < 0 || a < b ? a : b; }

/* --- The files of one folder ---------------------------------------------------------------------------------------------------------- */

/* Cores allowed by quota / period, rounded up; -1: no quota. */
static int64_t cores(int64_t quota, int64_t period) { return quota <= 0 || period <= 0 ? -1 : quota / period + (quota % period != 0); }

static int64_t cpu_v2(const char *dir) {
  char path[PATH_MAX], text[64];
  int n = snprintf(path, sizeof path, "%s/cpu.max", dir);
  if (n < 0 || n >= (int)sizeof path || !read_small(path, text, sizeof text)) return -1;
  long long quota, period;
  return sscanf(text, "%lld %lld", &quota, &period) == 2 ? cores(quota, period) : -1; /* "max 100000" does not scan */
}

static int64_t cpu_v1(const char *dir) { return cores(read_number(dir, "cpu.cfs_quota_us"), read_number(dir, "cpu.cfs_period_us")); }

static int64_t memory_v2(const char *dir) { return read_number(dir, "memory.max"); }

static int64_t memory_v1(const char *dir) {
  int64_t v = read_number(dir, "memory.limit_in_bytes");
  return v >= INT64_C(1) << 60 ? -1 : v; /* "unlimited" is the largest page-aligned number there */
}

/* The number behind "key " at the start of a line of memory.stat; 0 without one. */
static int64_t stat_value(const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, key, n) == 0 && line[n] == ' ') return strtoll(line + n + 1, NULL, 10);
  }
  return 0;
}

/* What a limit leaves, given the usage and the two kinds of file pages in it. */
static int64_t room(const char *dir, int64_t limit, const char *usage, const char *inactive, const char *active) {
  char path[PATH_MAX], text[16384];
  int64_t used = limit < 0 ? -1 : read_number(dir, usage);
  if (used < 0) return -1;
  int n = snprintf(path, sizeof path, "%s/memory.stat", dir);
  if (n > 0 && n < (int)sizeof path && read_small(path, text, sizeof text)) used -= stat_value(text, inactive) + stat_value(text, active);
  if (used < 0) used = 0;
  return used < limit ? limit - used : 0;
}

static int64_t room_v2(const char *dir) { return room(dir, memory_v2(dir), "memory.current", "inactive_file", "active_file"); }

static int64_t room_v1(const char *dir) {
  return room(dir, memory_v1(dir), "memory.usage_in_bytes", "total_inactive_file", "total_active_file");
}

/* --- The walk ------------------------------------------------------------------------------------------------------------------------- */

/* The smallest value from mount/path up to the mount. `path` is changed. */
static int64_t walk_up(const char *mount, char *path, int64_t (*value)(const char *dir)) {
  int64_t best = -1;
  for (;;) {
    char dir[PATH_MAX];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    if (n > 0 && n < (int)sizeof dir) best = smaller(best, value(dir));
    char *slash = strrchr(path, '/');
    if (!slash) return best;
    *slash = '\0';
  }
}

/* Is `name` one of the comma-separated words of list? */
static bool has_word(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *w = list; w; w = strchr(w, ',')) {
    if (*w == ',') w++;
    if (strncmp(w, name, n) == 0 && (w[n] == ',' || w[n] == '\0')) return true;
  }
  return false;
}

static int64_t limit_of(const char *proc_self_cgroup, const char *root, const char *controller, int64_t (*v1)(const char *),
                        int64_t (*v2)(const char *)) {
  char text[8192];
  if (!read_small(proc_self_cgroup, text, sizeof text)) return -1;
  int64_t best = -1;
  for (char *line = text, *next; line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = '\0';
    char *list = strchr(line, ':');
    char *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    *list++ = '\0';
    *path++ = '\0';
    char mount[PATH_MAX];
    if (*list == '\0') {
      best = smaller(best, walk_up(root, path, v2));
    } else if (has_word(list, controller)) {
      int n = snprintf(mount, sizeof mount, "%s/%s", root, list); /* "cpu,cpuacct", and commonly a link "cpu" to it */
      if (n > 0 && n < (int)sizeof mount && access(mount, F_OK) != 0) snprintf(mount, sizeof mount, "%s/%s", root, controller);
      best = smaller(best, walk_up(mount, path, v1));
    }
  }
  return best;
}

int sh_cgroup_cpus(const char *proc_self_cgroup, const char *root) {
  int64_t v = limit_of(proc_self_cgroup, root, "cpu", cpu_v1, cpu_v2);
  return v > INT_MAX ? -1 : (int)v;
}

int64_t sh_cgroup_memory(const char *proc_self_cgroup, const char *root) {
  return limit_of(proc_self_cgroup, root, "memory", memory_v1, memory_v2);
}

int64_t sh_cgroup_memory_free(const char *proc_self_cgroup, const char *root) {
  return limit_of(proc_self_cgroup, root, "memory", room_v1, room_v2);
}
