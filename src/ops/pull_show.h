/* What a pull says on stderr: the plan, a progress bar on a terminal or a line now and then elsewhere, and notes between them. */
#ifndef SH_OPS_PULL_SHOW_H
#define SH_OPS_PULL_SHOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sh_pshow {
  bool private_tty, private_bar; /* a bar stands on the line */
  int64_t private_next_ns, private_last_ns, private_last_bytes;
  double private_speed; /* bytes per s, smoothed */
} sh_pshow;

void sh_pshow_init(sh_pshow *s);
void sh_pshow_note(sh_pshow *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool sh_pshow_due(const sh_pshow *s); /* time for another sh_pshow_progress */
/* what: the file in hand. done, total: bytes of the whole pull. received: bytes that came over the network in this process, for the speed.
 */
void sh_pshow_progress(sh_pshow *s, const char *what, int64_t done, int64_t total, int64_t received);
void sh_pshow_end(sh_pshow *s); /* takes the bar away */

#endif
