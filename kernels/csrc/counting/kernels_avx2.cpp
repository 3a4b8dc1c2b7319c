#define MGE_COUNTING_KERNELS counting_kernels_avx2
#include "counting/kernels.inc"
