#define MGE_POOLING_KERNELS pooling_kernels_avx2
#include "pooling/kernels.inc"
