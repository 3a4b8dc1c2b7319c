#define MGE_GROUPED_KERNELS grouped_kernels_avx512
#include "grouped/kernels.inc"
