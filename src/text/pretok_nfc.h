/* Unicode normalization form C, linear in the text whatever the text. */
#ifndef SH_TEXT_PRETOK_NFC_H
#define SH_TEXT_PRETOK_NFC_H

#include "base/err.h"
#include "base/mem.h"

typedef struct sh_nfc sh_nfc; /* the table of characters that may need work; immutable */
sh_nfc *sh_nfc_new(void);     /* NULL: out of memory. Caller frees with sh_nfc_free */
void sh_nfc_free(sh_nfc *t);  /* accepts NULL */
/* True when s[0..n), valid UTF-8, is certainly in form C already (false: it may be). */
bool sh_nfc_is_normal(const sh_nfc *t, const char *s, size_t n);
int sh_nfc_append(const sh_nfc *t, const char *s, size_t n, sh_buf *out); /* appends the normal form. SH_ERR_NOMEM, SH_ERR_LIMIT */

#endif
