#define MGE_FLOAT_KERNELS float_kernels_avx512
#include "float/kernels.inc"
