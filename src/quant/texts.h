/* The two texts in the program: one to calibrate a quantization with, one to measure it on. They share no text (tools/make_texts.py). */
#ifndef SH_QUANT_TEXTS_H
#define SH_QUANT_TEXTS_H

#include <stddef.h>

/* JSONL, lines of {"text"} or {"messages", "tools"?}, for sh_samples_load; English, Chinese, code and dialogues. About 200 KB and 60 KB. */
const char *sh_text_calibration(size_t *len);
const char *sh_text_evaluation(size_t *len);

#endif
