/* The machine as this process may use it: clocks, cores, memory.
 *
 * Any thread; no state. Cores and memory take the container into account, because a pool of 64 threads under a quota of 4 cores is
 * throttled to a standstill several times a second, and a KV cache sized by the host's memory is killed. Refused: get_nprocs() and sysconf
 * alone, for that reason. */
#include "base/pool.h"

#include "base/cgroup.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const char proc_cgroup[] = "/proc/self/cgroup";
static const char cgroup_root[] = "/sys/fs/cgroup";

/* Cores in the affinity mask, -1 when the kernel does not say. Room for 64k cores: the kernel refuses a set smaller than its own. */
static int affinity_cores(void) {
  cpu_set_t sets[64];
  memset(sets, 0, sizeof sets);
  if (sched_getaffinity(0, sizeof sets, sets) != 0) return -1;
  return CPU_COUNT_S(sizeof sets, sets);
}

int sh_cpu_count(void) {
  int n = affinity_cores();
  if (n < 1) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
  int quota = sh_cgroup_cpus(proc_cgroup, cgroup_root);
  if (quota > 0 && quota < n) n = quota;
  return n < 1 ? 1 : n;
}

int64_t sh_memory_limit(void) {
  int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
  int64_t group = sh_cgroup_memory(proc_cgroup, cgroup_root);
  return group > 0 && group < machine ? group : machine;
}

/* MemAvailable of /proc/meminfo in bytes, -1 without it. */
static int64_t machine_available(void) {
  char text[4096];
  int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return -1;
  text[n] = '\0';
  const char *at = strstr(text, "\nMemAvailable:");
  long long kib;
  return at && sscanf(at, " MemAvailable: %lld", &kib) == 1 && kib >= 0 ? (int64_t)kib * 1024 : -1;
}

int64_t sh_memory_available(void) {
  int64_t machine = machine_available(), group = sh_cgroup_memory_free(proc_cgroup, cgroup_root);
  return group >= 0 && (machine < 0 || group < machine) ? group : machine;
}

int64_t sh_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t sh_unix_time(void) { return (int64_t)time(NULL); }

int64_t sh_rss_bytes(void) {
  char text[128];
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  long long size, resident; /* pages */
  return sscanf(text, "%lld %lld", &size, &resident) == 2 ? (int64_t)resident * sysconf(_SC_PAGESIZE) : 0;
}

int64_t sh_rss_peak_bytes(void) {
  struct rusage u;
  return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}
