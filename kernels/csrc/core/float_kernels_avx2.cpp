#define MGE_FLOAT_KERNELS float_kernels_avx2
#include "core/float_kernels.inc"
