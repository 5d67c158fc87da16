/* `sheng pull`: downloads a model repository into the local store (or a folder), and finds there what was downloaded.
 *
 *   STORE/models/OWNER/NAME/...              the files, under the names they have in the repository
 *   STORE/models/OWNER/NAME/.sheng-pull.json what the folder holds; written when everything is there
 *   STORE/models/OWNER/NAME/.sheng-pull/     only while a pull runs or was cut: parts, journals, a lock, and `resume`, the command that
 * goes on
 *
 * STORE is $SHENG_HOME, else $XDG_CACHE_HOME/sheng, else ~/.cache/sheng. A folder given with --local-dir has the same layout from its root.
 */
#ifndef SH_OPS_PULL_H
#define SH_OPS_PULL_H

#include "base/opt.h"

typedef struct sh_pull_options {
  const char *name; /* "owner/name" */
  const char *from, *revision, *local_dir, *home;
  sh_strlist include;
  bool dry_run, verify;
  int64_t jobs, retries; /* connections; tries after the first without progress between them */
  int64_t stall_timeout; /* seconds */
  int64_t part_size;     /* bytes */
  const char *hf_endpoint, *modelscope_endpoint, *modelers_endpoint;
  const char *hf_token, *modelscope_token, *modelers_token, *hub_token;
  const char *ca_file, *libcurl;
} sh_pull_options;

extern const sh_opt sh_pull_option_table[];
extern const sh_pull_options sh_pull_option_defaults;

/* Pulls. Says what it does on stderr (a progress bar when that is a terminal); *path: the folder, caller frees. SH_ERR_CANCELLED after
 * SIGINT, SIGTERM or SIGHUP, which it handles while it runs (a second one kills). Main thread. */
int sh_pull_run(const sh_pull_options *o, char **path, sh_error *e);

/* Where the model `name` is: name itself when there is a file or folder of that name, else its folder in the store. *path: allocated
 * (sh_free). SH_ERR_NOT_FOUND when neither is there, SH_ERR_BUSY when a pull into it is running or was cut; the sentence says what to do.
 */
int sh_pull_find(const char *name, char **path, sh_error *e);

#endif
