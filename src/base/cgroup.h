/* What a container allows this process: cgroup v1 and v2 limits. Private to base/: sys.c uses it with the real paths, its test with made-up
 * ones. */
#ifndef SH_BASE_CGROUP_H
#define SH_BASE_CGROUP_H

#include <stdint.h>

/* proc_self_cgroup: path of this process's cgroup list ("/proc/self/cgroup"); root: where the hierarchies are mounted ("/sys/fs/cgroup").
 * The smallest limit of the group and of all groups around it, -1 when there is none. */
int sh_cgroup_cpus(const char *proc_self_cgroup, const char *root);       /* CPU quota in cores, rounded up */
int64_t sh_cgroup_memory(const char *proc_self_cgroup, const char *root); /* bytes */
/* Bytes that may still be taken: the smallest of limit - usage, where pages of files count as free. -1: no limit. */
int64_t sh_cgroup_memory_free(const char *proc_self_cgroup, const char *root);

#endif
