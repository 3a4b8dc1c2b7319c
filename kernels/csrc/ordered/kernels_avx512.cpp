#define MGE_ORDERED_KERNELS ordered_kernels_avx512
#include "ordered/kernels.inc"
