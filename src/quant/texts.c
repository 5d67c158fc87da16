/* The texts of texts/, embedded as they are. Constant data.
 *
 * .incbin takes the bytes at build time, from the root of the repository where make runs; the Makefile names the files as what this object
 * depends on. Refused: a generated array of numbers, which takes the compiler a thousand times longer for the same bytes. */
#include "quant/texts.h"

#define EMBED(name, file)                                                                                                                  \
  __asm__(".pushsection .rodata\n"                                                                                                         \
          ".hidden sh_text_data_" #name "\n.globl sh_text_data_" #name "\nsh_text_data_" #name ":\n.incbin \"" file "\"\n"                 \
          ".hidden sh_text_end_" #name "\n.globl sh_text_end_" #name "\nsh_text_end_" #name ":\n.byte 0\n.popsection\n");                  \
  extern const char sh_text_data_##name[], sh_text_end_##name[]

EMBED(calibration, "src/quant/texts/calibration.jsonl");
EMBED(evaluation, "src/quant/texts/evaluation.jsonl");

const char *sh_text_calibration(size_t *len) {
  *len = (size_t)(sh_text_end_calibration - sh_text_data_calibration);
  return sh_text_data_calibration;
}

const char *sh_text_evaluation(size_t *len) {
  *len = (size_t)(sh_text_end_evaluation - sh_text_data_evaluation);
  return sh_text_data_evaluation;
}
