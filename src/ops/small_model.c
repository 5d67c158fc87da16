/* Where the model that lies beside the program is found. Any thread: there is no state.
 *
 * It is looked for beside the program itself and not under a path fixed when building: a folder that was copied to a machine without a
 * network, program and models together, works from anywhere. Refused: the weights inside the program, which every copy of it would carry
 * and which no other tool could read. */
#include "ops/small_model.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

static const char *const PLACES[] = {"models", "../share/sheng/models", "../../models"};

int sh_small_model_find_from(const char *dir, char **path, sh_error *e) {
  *path = NULL;
  sh_buf tried;
  sh_buf_init(&tried, 4 * PATH_MAX);
  int rc = SH_ERR_NOT_FOUND;
  for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES && rc == SH_ERR_NOT_FOUND; i++) {
    char *place = sh_path_join(dir, PLACES[i]), *folder = place ? sh_path_join(place, SH_SMALL_MODEL) : NULL;
    char *config = folder ? sh_path_join(folder, "config.json") : NULL;
    if (!config) rc = sh_fail(e, SH_ERR_NOMEM, "out of memory");
    else if (sh_file_exists(config)) rc = SH_OK;
    else sh_buf_printf(&tried, "%s%s", tried.len ? ", " : "", folder);
    if (rc == SH_OK) *path = folder;
    else sh_free(folder);
    sh_free(place);
    sh_free(config);
  }
  if (rc == SH_ERR_NOT_FOUND)
    rc = sh_fail(e, rc, "there is none beside the program either (looked for %s)", tried.len ? tried.p : dir);
  sh_buf_free(&tried);
  return rc;
}

int sh_small_model_find(char **path, sh_error *e) {
  char exe[PATH_MAX];
  *path = NULL;
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n <= 0) return sh_fail(e, SH_ERR_IO, "/proc/self/exe: %s", strerror(errno));
  exe[n] = 0;
  char *slash = strrchr(exe, '/');
  if (slash) *slash = 0;
  return sh_small_model_find_from(slash && slash != exe ? exe : "/", path, e);
}
