#define MGE_COUNTING_KERNELS counting_kernels_avx512
#include "counting/kernels.inc"
