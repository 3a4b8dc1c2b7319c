#define MGE_ORDERED_KERNELS ordered_kernels_avx2
#include "ordered/kernels.inc"
