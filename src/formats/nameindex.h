/* A table from names to numbers, built once when a file is opened and then only read: tensor names, metadata keys. */
#ifndef SH_FORMATS_NAMEINDEX_H
#define SH_FORMATS_NAMEINDEX_H

#include <stddef.h>
#include <stdint.h>

typedef struct sh_nameslot {
  const char *name;
  uint32_t len;
  int32_t value;
} sh_nameslot;
typedef struct sh_nameindex {
  sh_nameslot *private_slots;
  size_t private_cap, private_used;
} sh_nameindex;

/* Room for n names, fixed. SH_ERR_NOMEM. Free with sh_nameindex_free, which accepts a zeroed struct. */
int sh_nameindex_init(sh_nameindex *x, size_t n);
void sh_nameindex_free(sh_nameindex *x);
/* Borrows name until the table is freed. value >= 0. SH_ERR_FORMAT when the name is there already, SH_ERR_INTERNAL over n. */
int sh_nameindex_add(sh_nameindex *x, const char *name, size_t len, int32_t value);
int32_t sh_nameindex_find(const sh_nameindex *x, const char *name, size_t len); /* -1 when absent, also in a zeroed table */

#endif
