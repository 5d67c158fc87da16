/* Model hubs: which files a repository has, where each is fetched from, and what an error of a hub means for the user. Three APIs: Hugging
 * Face (and every hub that offers the same one), ModelScope and Modelers. */
#ifndef SH_OPS_HUB_H
#define SH_OPS_HUB_H

#include "base/json.h"
#include "base/sha.h"
#include "ops/fetch.h"

typedef enum sh_hub_kind { SH_HUB_HF, SH_HUB_MODELSCOPE, SH_HUB_MODELERS } sh_hub_kind;

typedef struct sh_hub {
  sh_hub_kind kind;
  const char *label;         /* "Hugging Face", for messages; borrowed */
  const char *id;            /* what --from calls it: "huggingface"..., or the URL itself; borrowed */
  char *endpoint;            /* without a slash at the end; owned */
  const char *token;         /* NULL: none; borrowed */
  const char *token_var;     /* the variable it comes from; borrowed */
  const char *main_revision; /* when none is asked for; borrowed */
} sh_hub;

typedef struct sh_hub_file {
  const char *path;      /* checked by sh_hub_path_check; in the list's arena */
  int64_t size;          /* bytes */
  sh_sha_kind hash_kind; /* 0: the hub gives none. SH_SHA1: git's blob id, which is of "blob SIZE\0" and the bytes */
  char hash[SH_SHA_HEX]; /* lower case hex */
} sh_hub_file;

typedef struct sh_hub_list {
  sh_hub_file *v; /* [n], sorted by path; owned */
  int n, private_cap;
  char commit[SH_SHA_HEX]; /* the revision as a commit, "" when the hub does not say */
  sh_arena *arena;
} sh_hub_list;

/* "owner/name": one to three parts of A-Za-z0-9._- none of which begins with a dot. */
bool sh_hub_name_ok(const char *name);

/* Is a file name of a repository one that may be written below a folder? NULL, or what is wrong with it ("leaves the folder"). */
const char *sh_hub_path_check(const char *path, size_t n);

/* Everything in the repository, whatever the number of pages and folders. Files without a size, unsafe names and contradictions fail it.
 * list: zeroed; caller frees with sh_hub_list_free, also after a failure. */
int sh_hub_list_files(const sh_hub *h, sh_fetch *f, const char *name, const char *revision, sh_hub_list *list, sh_error *e);
void sh_hub_list_free(sh_hub_list *list);
const sh_hub_file *sh_hub_list_find(const sh_hub_list *list, const char *path); /* NULL: not there */

/* One answer of the listing call, taken into `list`; folders that still have to be listed go to *dirs (an array of their paths in the
 * list's arena; NULL: they are ignored). *entries counts what the answer held, folders too. */
typedef struct sh_hub_dirs {
  const char **v;
  int n, cap;
} sh_hub_dirs;
int sh_hub_read_page(const sh_hub *h, const char *text, size_t n, sh_hub_list *list, sh_hub_dirs *dirs, int *entries, sh_error *e);

/* Where a file's bytes are; revision: a commit when it is known. Allocated (sh_free), NULL: out of memory. */
char *sh_hub_file_url(const sh_hub *h, const char *name, const char *revision, const char *path);

/* The sentence for a status the hub refused with: what it means and what to do. what: the file that was asked for, or NULL. Returns the
 * code it put into e. */
int sh_hub_explain(const sh_hub *h, const char *name, const char *revision, const char *what, long status, const char *error_code,
                   const char *message, sh_error *e);

#endif
