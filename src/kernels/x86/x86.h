/* x86-64 variants. Files named *_avx2.c are compiled with AVX2, FMA, F16C and BMI2 and are reached only through the table of kernels.h. */
#ifndef SH_KERNELS_X86_X86_H
#define SH_KERNELS_X86_X86_H

#include "kernels/kernels.h"

#endif
