#define MGE_GROUPED_KERNELS grouped_kernels_avx2
#include "grouped/kernels.inc"
