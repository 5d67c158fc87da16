/* SHA-256 and SHA-1, for checking what was downloaded. SHA-1 is here only because git names its blobs by it; it protects against damage,
 * not against an attacker. */
#ifndef SH_BASE_SHA_H
#define SH_BASE_SHA_H

#include "base/mem.h"

typedef enum sh_sha_kind { SH_SHA1 = 1, SH_SHA256 = 2 } sh_sha_kind;

enum { SH_SHA_MAX_BYTES = 32, SH_SHA_HEX = 65 /* room for the longest digest in hex and its NUL */ };

typedef struct sh_sha {
  sh_sha_kind kind;
  uint32_t private_h[8];
  uint64_t private_len; /* bytes taken */
  uint8_t private_block[64];
  void *private_evp; /* a context of libcrypto, when that does the work */
} sh_sha;

/* A zeroed struct may be freed; a started one must be (it may hold a context of libcrypto). Never fails: without libcrypto, or when its
 * context cannot be had, the own code does the work. */
void sh_sha_init(sh_sha *s, sh_sha_kind kind);
void sh_sha_init_plain(sh_sha *s, sh_sha_kind kind); /* the own code whatever is installed */
void sh_sha_update(sh_sha *s, const void *p, size_t n);
void sh_sha_hex(sh_sha *s, char out[SH_SHA_HEX]); /* lower case; ends the computation and frees */
void sh_sha_free(sh_sha *s);                      /* accepts a zeroed struct */

#endif
