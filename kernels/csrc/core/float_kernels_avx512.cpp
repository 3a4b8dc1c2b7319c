#define MGE_FLOAT_KERNELS float_kernels_avx512
#include "core/float_kernels.inc"
