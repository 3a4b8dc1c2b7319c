#define MGE_WINOGRAD_KERNELS winograd_kernels_avx2
#include "winograd/kernels.inc"
