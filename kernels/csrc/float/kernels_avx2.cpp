#define MGE_FLOAT_KERNELS float_kernels_avx2
#include "float/kernels.inc"
