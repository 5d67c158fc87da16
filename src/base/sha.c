/* SHA-256 and SHA-1 (FIPS 180-4).
 *
 * Any thread; a context belongs to one. A model has up to hundreds of GB and plain C does some 250 MB/s, while libcrypto uses the SHA
 * instructions of x86-64 and ARM. It is on nearly every machine, and with libcurl it is in the process anyway, so it is opened at run time
 * and used when it is there; the own code is what remains without it, and what the tests compare it with. Refused: linking to libcrypto (a
 * second .so version to ship for), and SHA intrinsics per instruction set (the same speed for a third implementation). */
#include "base/sha.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* --- libcrypto ------------------------------------------------------------------------------------------------------------------------ */

static struct {
  pthread_once_t once;
  bool usable;
  void *(*ctx_new)(void);
  void (*ctx_free)(void *ctx);
  int (*init)(void *ctx, const void *type, void *engine);
  int (*update)(void *ctx, const void *p, size_t n);
  int (*final)(void *ctx, unsigned char *out, unsigned *n);
  const void *(*sha1)(void);
  const void *(*sha256)(void);
} crypto = {.once = PTHREAD_ONCE_INIT};

static bool find(void *lib, const char *name, void *slot) {
  void *p = dlsym(lib, name);
  memcpy(slot, &p, sizeof p); /* ISO C has no cast from an object to a function pointer */
  return p != NULL;
}

static void open_crypto(void) {
  static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
  for (size_t i = 0; i < sizeof names / sizeof names[0] && !crypto.usable; i++) {
    void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) continue;
    crypto.usable = find(lib, "EVP_MD_CTX_new", &crypto.ctx_new) && find(lib, "EVP_MD_CTX_free", &crypto.ctx_free) &&
                    find(lib, "EVP_DigestInit_ex", &crypto.init) && find(lib, "EVP_DigestUpdate", &crypto.update) &&
                    find(lib, "EVP_DigestFinal_ex", &crypto.final) && find(lib, "EVP_sha1", &crypto.sha1) &&
                    find(lib, "EVP_sha256", &crypto.sha256);
    if (!crypto.usable) dlclose(lib);
  }
}

/* A ready context, or NULL: a FIPS policy may refuse SHA-1, for example. */
static void *crypto_start(sh_sha_kind kind) {
  pthread_once(&crypto.once, open_crypto);
  if (!crypto.usable) return NULL;
  void *ctx = crypto.ctx_new();
  if (ctx && crypto.init(ctx, kind == SH_SHA1 ? crypto.sha1() : crypto.sha256(), NULL) != 1) {
    crypto.ctx_free(ctx);
    ctx = NULL;
  }
  return ctx;
}

/* --- The own code --------------------------------------------------------------------------------------------------------------------- */

static const uint32_t k256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotl(uint32_t x, int n) { return x << n | x >> (32 - n); }
static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t load_be(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static void block_sha256(uint32_t h[8], const uint8_t *p) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; i++) w[i] = load_be(p + 4 * i);
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + w[i - 7] + (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
  }
  memcpy(s, h, sizeof s);
  for (int i = 0; i < 64; i++) {
    uint32_t t1 = s[7] + (rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k256[i] + w[i];
    uint32_t t2 = (rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += t1;
    s[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) h[i] += s[i];
}

static void block_sha1(uint32_t h[8], const uint8_t *p) {
  uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
  for (int i = 0; i < 16; i++) w[i] = load_be(p + 4 * i);
  for (int i = 16; i < 80; i++) w[i] = rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  for (int i = 0; i < 80; i++) {
    uint32_t f, k;
    if (i < 20) f = (b & c) | (~b & d), k = 0x5a827999;
    else if (i < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
    else if (i < 60) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
    else f = b ^ c ^ d, k = 0xca62c1d6;
    uint32_t t = rotl(a, 5) + f + e + k + w[i];
    e = d;
    d = c;
    c = rotl(b, 30);
    b = a;
    a = t;
  }
  h[0] += a;
  h[1] += b;
  h[2] += c;
  h[3] += d;
  h[4] += e;
}

static void take_block(sh_sha *s, const uint8_t *p) {
  if (s->kind == SH_SHA1) block_sha1(s->private_h, p);
  else block_sha256(s->private_h, p);
}

static void plain_update(sh_sha *s, const uint8_t *p, size_t n) {
  size_t have = s->private_len % 64;
  s->private_len += n;
  if (have) {
    size_t take = n < 64 - have ? n : 64 - have;
    memcpy(s->private_block + have, p, take);
    p += take;
    n -= take;
    if (have + take < 64) return;
    take_block(s, s->private_block);
  }
  for (; n >= 64; p += 64, n -= 64) take_block(s, p);
  if (n) memcpy(s->private_block, p, n);
}

static void plain_final(sh_sha *s, uint8_t out[SH_SHA_MAX_BYTES]) {
  static const uint8_t pad[64] = {0x80};
  uint64_t bits = s->private_len * 8;
  uint8_t end[8];
  for (int i = 0; i < 8; i++) end[i] = (uint8_t)(bits >> (56 - 8 * i));
  size_t have = s->private_len % 64;
  plain_update(s, pad, have < 56 ? 56 - have : 120 - have);
  plain_update(s, end, 8);
  for (int i = 0; i < SH_SHA_MAX_BYTES; i++) out[i] = (uint8_t)(s->private_h[i / 4] >> (24 - 8 * (i % 4)));
}

/* --- The interface -------------------------------------------------------------------------------------------------------------------- */

void sh_sha_init_plain(sh_sha *s, sh_sha_kind kind) {
  static const uint32_t h1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  static const uint32_t h256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  *s = (sh_sha){.kind = kind};
  memcpy(s->private_h, kind == SH_SHA1 ? h1 : h256, sizeof s->private_h);
}

void sh_sha_init(sh_sha *s, sh_sha_kind kind) {
  sh_sha_init_plain(s, kind);
  s->private_evp = crypto_start(kind);
}

void sh_sha_update(sh_sha *s, const void *p, size_t n) {
  if (!n) return;
  if (s->private_evp) crypto.update(s->private_evp, p, n);
  else plain_update(s, p, n);
}

void sh_sha_hex(sh_sha *s, char out[SH_SHA_HEX]) {
  uint8_t digest[64] = {0}; /* what libcrypto may write at most */
  size_t n = s->kind == SH_SHA1 ? 20 : 32;
  if (s->private_evp) crypto.final(s->private_evp, digest, NULL);
  else plain_final(s, digest);
  for (size_t i = 0; i < n; i++) {
    out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
  out[2 * n] = 0;
  sh_sha_free(s);
}

void sh_sha_free(sh_sha *s) {
  if (s->private_evp) crypto.ctx_free(s->private_evp);
  *s = (sh_sha){0};
}
