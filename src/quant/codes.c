/* Names of the layouts. Pure; any thread. */
#include "quant/codes.h"

const char *sh_qformat_name(sh_qformat f) {
  static const char *const NAMES[] = {[SH_QF_AWQ] = "awq", [SH_QF_GPTQ] = "gptq", [SH_QF_CT] = "compressed-tensors"};
  return (unsigned)f < sizeof NAMES / sizeof NAMES[0] ? NAMES[f] : "?";
}
