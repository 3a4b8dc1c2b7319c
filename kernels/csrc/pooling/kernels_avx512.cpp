#define MGE_POOLING_KERNELS pooling_kernels_avx512
#include "pooling/kernels.inc"
