/* The names of --kv-cache-dtype. Pure functions, any thread. */
#include "formats/kv.h"

#include <string.h>

static const char *const NAMES[] = {"float32", "bfloat16", "int8"}; /* in the enum's order */

const char *sh_kv_name(sh_kv_type type) { return NAMES[type]; }

int sh_kv_parse(const char *name, bool exact, sh_kv_type *out, sh_error *e) {
  *out = exact ? SH_KV_F32 : SH_KV_BF16;
  if (!name || !strcmp(name, "auto")) return 0;
  size_t i = 0;
  while (i < sizeof NAMES / sizeof NAMES[0] && strcmp(name, NAMES[i])) i++;
  if (i == sizeof NAMES / sizeof NAMES[0]) return sh_fail(e, SH_ERR_ARG, "kv-cache-dtype is %.40s; one of " SH_KV_NAMES " is wanted", name);
  if (exact && i != SH_KV_F32)
    return sh_fail(e, SH_ERR_ARG, "kv-cache-dtype %s contradicts exact, which keeps keys and values in float32; leave one of them out",
                   name);
  *out = (sh_kv_type)i;
  return 0;
}
